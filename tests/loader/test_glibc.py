"""The oldest glibc that the built libraries run with, by the versions of the symbols that they need."""

from __future__ import annotations

import re
import subprocess

import pytest

from .conftest import Bench

OLDEST = (2, 34)
"""Since that version threads and dlopen are in libc itself, so libraries that are linked there need it."""
FEW = ("libneutrino_audit.so", "libneutrino_stub.so")
"""Loaded into programs that have nothing to do with Neutrino: they need no version at all."""


@pytest.mark.parametrize("name", ["libcuda.so.1", "libneutrino_late.so", *FEW])
def test_a_library_needs_no_newer_glibc(bench: Bench, name: str) -> None:
    listing = subprocess.run(
        ["objdump", "-T", str(bench.folder / "lib" / name)], capture_output=True, text=True, check=True
    ).stdout
    needed = {
        tuple(map(int, version.split("."))): symbol
        for version, symbol in re.findall(r"\*UND\*.*\(GLIBC_([\d.]+)\) (\S+)", listing)
        # What the headers of glibc 2.38 and later put in place of sscanf.
        if not symbol.startswith("__isoc23_")
    }
    assert {version: symbol for version, symbol in needed.items() if version > OLDEST} == {}
    assert bool(needed) == (name not in FEW)
