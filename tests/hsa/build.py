"""Compile the stand-in of HSA's runtime. Needs a C compiler and HSA's headers (Debian: ``libhsa-runtime-dev``)."""

from __future__ import annotations

import subprocess
from pathlib import Path

from neutrino.gcn.build import compiler

SOURCES = Path(__file__).with_name("csrc")
LIBRARY = "libhsa-runtime64.so.1"
# HSA's functions have parameters that the stand-in has no use for.
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter")


def build(folder: Path) -> None:
    """Compile it into a folder. Raises CalledProcessError if the compiler fails."""
    command = [
        *compiler(), "-std=gnu11", "-O1", "-g", "-fPIC", "-shared", *WARNINGS, *map(str, sorted(SOURCES.glob("*.c"))),
        "-o", str(folder / LIBRARY), f"-Wl,-soname,{LIBRARY}", f"-Wl,--version-script={SOURCES / 'stand_in.map'}",
    ]  # fmt: skip
    subprocess.run(command, check=True)
