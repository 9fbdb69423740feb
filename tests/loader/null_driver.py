"""A driver that does nothing, programs in front of it, and the hook between them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

from neutrino.loader import build, install
from tests.loader.conftest import RUN_KEY

PROGRAMS = Path(__file__).resolve().parent / "programs"
BUILT = Path(build.__file__).parent / "lib"


def compile_c(source: Path, target: Path, *flags: str) -> None:
    """Compile a C file, with the flags, into a program or library at target.

    Raises CalledProcessError.
    """
    command = [*build.compiler(), "-std=gnu11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror"]
    libraries = ["-ldl", "-lpthread"]
    subprocess.run(
        [*command, f"-I{Path(build.__file__).parent / 'csrc'}", f"-I{PROGRAMS}", *flags, str(source), "-o", str(target),
         *libraries],
        check=True,
    )  # fmt: skip


def build_driver(folder: Path, *flags: str) -> Path:
    """Compile the driver, with these flags too, into a folder of its own under this one; return its path."""
    driver = folder / "driver" / "libcuda.so.1"
    driver.parent.mkdir()
    compile_c(PROGRAMS / "null_driver.c", driver, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", *flags)
    return driver


def plain_environment(driver: Path) -> dict[str, str]:
    """Return environment variables with which alone a program finds the driver, without the hook."""
    return {"LD_LIBRARY_PATH": str(driver.parent)}


def hooked_environment(driver: Path, library: Path, cache: Path, trace: Path) -> Mapping[str, str]:
    """Return environment variables with which alone a program gets the hook (Neutrino's library in the program).

    library: the folder of its build. trace: of its traces.
    """
    with mock.patch.object(install, "_BUILT", library):
        module = install.install_hook(driver, cache)
    return {
        **plain_environment(driver),
        **install.variables(module, {}),
        "NEUTRINO_DRIVER": str(driver),
        "NEUTRINO_KEY": RUN_KEY.hex(),
        "NEUTRINO_CACHE": str(cache),
        "NEUTRINO_TRACEDIR": str(trace),
    }
