"""``python setup.py install``, which newer setuptools advise against, and older ones do wrong; ``make setup``."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("version", ["65.5.0", "77.0.1"])
def test_an_install_by_setup_is_refused_with_what_to_run(tmp_path: Path, version: str) -> None:
    folder = tmp_path / "setuptools"
    folder.mkdir()
    (folder / "__init__.py").write_text(f"__version__ = {version!r}\ndef setup(**_): print('installed')\n")
    done = subprocess.run(
        [sys.executable, str(ROOT / "setup.py"), "install"],
        cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Run `pip install .`" in done.stderr
    assert ("too old" in done.stderr) is (version == "65.5.0")
    assert "Traceback" not in done.stderr


def test_make_setup_replaces_a_copy_of_the_package(tmp_path: Path) -> None:
    """Which ``pip install .`` leaves in the environment: no change of the sources would reach it."""
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").touch(0o755)
    for stamp in ("installed", "installed-dev"):
        (venv / stamp).touch()
    package = venv / "lib" / "python3.12" / "site-packages" / "neutrino"

    def says(target: str) -> str:
        argv = ["make", "--no-print-directory", "--dry-run", target, f"VENV={venv}"]
        return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    for target, extra in (("setup", "cuda"), ("setup-dev", "dev")):
        install = f'-m pip install --quiet --editable ".[{extra}]"'
        assert install not in says(target)
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        assert install in says(target)
        shutil.rmtree(package)


def test_installed_as_the_readme_says_the_package_stays_editable() -> None:
    """In the environment that ``make setup`` has made; ``".[cuda]"`` is for others."""
    commands = re.findall(r"pip install [^`\n]*", (ROOT / "README.md").read_text())
    assert commands == ['pip install ".[cuda]"', 'pip install -e ".[amd]"']
