"""Adds to what pyproject.toml says: the hook is compiled, and probes/ and tools/ travel inside the package."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


def _compile_hook(target: Path) -> None:
    # Loaded by path: the package's own dependencies are not there while it is being built.
    spec = importlib.util.spec_from_file_location("neutrino_build_hook", ROOT / "neutrino/loader/build.py")
    if spec is None or spec.loader is None:
        raise SystemExit("neutrino/loader/build.py is missing from the source tree")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.build(target)


class BuildWithHook(build_py):
    """``build_py`` that compiles the hook, in place for an editable install."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            _compile_hook(ROOT / "neutrino/loader/lib")
            return
        package = Path(self.build_lib) / "neutrino"
        _compile_hook(package / "loader/lib")
        for name in ("probes", "tools"):
            shutil.copytree(ROOT / name, package / name, dirs_exist_ok=True,
                            ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip


class PlatformWheel(bdist_wheel):
    """A wheel for one platform and any Python 3: the hook is machine code, but no Python extension."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[Any, ...]:
        return ("py3", "none", super().get_tag()[2])


setup(cmdclass={"build_py": BuildWithHook, "bdist_wheel": PlatformWheel})
