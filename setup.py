"""Adds to what pyproject.toml says: the C of four packages is compiled, probes and tools are packed."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any

import setuptools
from setuptools import setup

_OLDEST = 77
"""The first setuptools that reads this pyproject.toml; an older one fails, or installs without the libraries."""
if int(setuptools.__version__.partition(".")[0]) < _OLDEST:
    raise SystemExit(
        f"setup.py: setuptools {setuptools.__version__} is too old: {_OLDEST} or newer is needed. Run `pip install .`, "
        "which gets one by itself."
    )
if "install" in sys.argv[1:2]:
    raise SystemExit("setup.py: `python setup.py install` is not supported. Run `pip install .`")

from setuptools.command.bdist_wheel import bdist_wheel  # noqa: E402
from setuptools.command.build_py import build_py  # noqa: E402

ROOT = Path(__file__).resolve().parent


COMPILED = ("loader", "emulator", "tracing", "gcn")
"""Packages with a build.py that compiles their csrc into their lib."""


def _compile(package: str, target: Path) -> None:
    # Loaded by path: the package's own dependencies are not there while it is being built.
    path = ROOT / "neutrino" / package / "build.py"
    spec = importlib.util.spec_from_file_location(f"neutrino_build_{package}", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is missing from the source tree")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.build(target)


class BuildWithLibraries(build_py):
    """``build_py`` that compiles the libraries, in place for an editable install."""

    def run(self) -> None:
        super().run()
        package = ROOT / "neutrino" if self.editable_mode else Path(self.build_lib) / "neutrino"
        for name in COMPILED:
            _compile(name, package / name / "lib")
        if self.editable_mode:
            return
        for name in ("probes", "probes_amd", "tools"):
            shutil.copytree(ROOT / name, package / name, dirs_exist_ok=True,
                            ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip


class PlatformWheel(bdist_wheel):
    """A wheel for one platform and any Python 3: the libraries are machine code, but no Python extension."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[Any, ...]:
        return ("py3", "none", super().get_tag()[2])


setup(cmdclass={"build_py": BuildWithLibraries, "bdist_wheel": PlatformWheel})
