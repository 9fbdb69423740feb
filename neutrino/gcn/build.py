"""Compile the two libraries that AMD's LLVM needs and its wheel lacks, into ``neutrino/gcn/lib``. Needs a C compiler
alone."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path

SOURCES = ("rocm_sysdeps_z.c", "rocm_sysdeps_zstd.c")
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wshadow", "-Wstrict-prototypes", "-Wvla")
LIBRARIES = ("librocm_sysdeps_z.so.1", "librocm_sysdeps_zstd.so.1")
"""That of each source; LLVM asks for them by these names."""

_HERE = Path(__file__).resolve().parent


def compiler() -> list[str]:
    """Return the command of the C compiler: ``$CC``, else the one that built Python if installed, else ``cc``."""
    if "CC" in os.environ:
        return shlex.split(os.environ["CC"])
    command = shlex.split(sysconfig.get_config_var("CC") or "cc")
    # Python's own flags (such as -pthread) are dropped.
    return [part for part in command if not part.startswith("-")] if shutil.which(command[0]) else ["cc"]


def build(target: Path, *, flags: tuple[str, ...] = ("-O2",), warnings: tuple[str, ...] = WARNINGS) -> Path:
    """Compile the libraries into the folder ``target``, and return it.

    flags: for optimisation. warnings: options of the compiler, too. Raise CalledProcessError if the compiler fails.
    """
    source = _HERE / "csrc"
    target.mkdir(parents=True, exist_ok=True)
    for name, library in zip(SOURCES, LIBRARIES, strict=True):
        # Not over a library that a running process has mapped: a new file takes its place.
        made = target / f".{library}.new"
        command = [
            *compiler(), "-std=gnu11", "-g", "-fPIC", "-shared", "-fvisibility=hidden", *flags, *warnings,
            f"-ffile-prefix-map={source}=csrc", str(source / name), "-o", str(made), f"-Wl,-soname,{library}",
            # LLVM asks for symbols of this version.
            f"-Wl,--version-script={source / 'rocm_sysdeps.map'}", "-Wl,-z,relro,-z,now", "-Wl,-z,noexecstack",
        ]  # fmt: skip
        subprocess.run(command, check=True)
        made.replace(target / library)
    return target


if __name__ == "__main__":
    import argparse

    _parser = argparse.ArgumentParser("python -m neutrino.gcn.build", description="Compile what AMD's LLVM lacks.")
    _parser.add_argument("folder", nargs="?", type=Path, default=_HERE / "lib", help="default: in the package")
    build(_parser.parse_args().folder)
