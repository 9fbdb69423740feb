"""A part of the tests under each Python that is installed and that Neutrino is for.

    python .ci/pythons.py [PYTHON ...]        those named, or all of 3.10 to 3.14 in PATH and below ~/.pyenv

Each gets an environment in build/pythons, with what users get and what these tests need. All modules are imported,
probes read, one-liners run on the embedded device, and traces read. Exits with 1 if that fails under one of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

MINORS = range(10, 15)
TESTS = ("tests/test_public.py", "tests/probing", "tests/cli/test_one_liners.py", "tests/tracing/test_trace.py")
_LEFT_OUT = ("--ignore=tests/probing/test_editors.py",)
"""It runs mypy, which is as new as the Python that it is installed for."""
_ROOT = Path(__file__).resolve().parents[1]
_NEEDED = (
    "hypothesis>=6.100", "pytest>=8.2", "pytest-timeout>=2.3", "pytest-xdist>=3.6", "tomli>=2.0",
    "nvidia-cuda-nvcc>=13.0,<13.1", "pyelftools>=0.31",
)  # fmt: skip
_IMPORT_ALL = """
import importlib, pkgutil, neutrino
for module in pkgutil.walk_packages(neutrino.__path__, "neutrino."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        # Of extras, and of the tests.
        if error.name not in ("lief", "matplotlib", "mypy", "mypy.nodes"):
            raise
"""


def installed() -> dict[str, Path]:
    """Pythons of this machine by their version, as ``3.12``."""
    found: dict[str, Path] = {}
    for minor in MINORS:
        version = f"3.{minor}"
        below = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
        path = below[-1] if below else shutil.which(f"python{version}")
        if path:
            found[version] = Path(path)
    return found


def checked(version: str, python: Path) -> bool:
    """Whether all went well under a Python."""
    folder = _ROOT / "build" / "pythons" / version
    own = folder / "bin" / "python"
    commands: list[list[str]] = []
    if not own.exists():
        commands.append([str(python), "-m", "venv", str(folder)])
    commands += [
        [str(own), "-m", "pip", "install", "--quiet", "--editable", str(_ROOT), *_NEEDED],
        [str(own), "-c", _IMPORT_ALL],
        [str(own), "-m", "pytest", "-q", "-n", str(os.cpu_count() or 1), "-p", "no:cacheprovider", *TESTS, *_LEFT_OUT],
    ]
    print(f"== Python {version}: {python}", flush=True)
    return all(subprocess.run(command, cwd=_ROOT, check=False).returncode == 0 for command in commands)


def main(pythons: list[str]) -> int:
    """Check the Pythons that are named, or all; 1 if something fails under one of them."""
    chosen = {Path(path).name.removeprefix("python") or path: Path(path) for path in pythons} or installed()
    wrong = [version for version, path in chosen.items() if not checked(version, path)]
    print(f"Pythons: {', '.join(chosen)}" + (f"; failed: {', '.join(wrong)}" if wrong else ""))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
