"""``python setup.py install``, which newer setuptools advise against, and older ones do wrong."""

from __future__ import annotations

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
