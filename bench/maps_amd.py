"""All maps of the tests on all of AMD's processors that get probes, at kernels' ends and at instructions.

    python -m bench.maps_amd [PART OF A MAP'S NAME ...]

Each kernel with a probe runs in the interpreter of AMD's machine code. Prints what differs from the model of the map or
changes the kernel's results, and how many pairs there were.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from neutrino.emulator.gcn.errors import GcnFaultError
from tests.gcn.map_cases import CASES, is_right
from tests.gcn.map_runs import as_gfx950, run
from tests.gcn.objects import build as build_objects

_BUILDS = (
    "gfx90a-O2", "gfx942-O2", "gfx950-O2", "gfx1030-O2", "gfx1030-wave64", "gfx1100-O2", "gfx1100-wave64", "gfx1201-O2",
    "gfx1201-wave64",
)  # fmt: skip
_WHERE = (("saxpy", ""), ("histogram", "load"))
"""Kernels, and the instructions at which is saved; "" at the entry and the ends."""


def differs(path: Path, name: str, kernel: str, position: str, seed: int) -> str:
    """Return what is wrong with a map in a kernel of a file, "" if nothing is. name: of the map. seed: of the order of
    waves."""
    case = replace(CASES[name], position=position)
    with tempfile.TemporaryDirectory() as folder:
        try:
            ran = run(path, path.stem.partition("-")[0], kernel, case, Path(folder), seed=seed)
        except (AssertionError, GcnFaultError) as error:
            return str(error)
    saved = case.at_sites(ran.executed, ran.lanes) if position else None
    if not is_right(name, case, ran, saved=saved):
        return "the map has something else"
    return "" if ran.is_same else "the kernel's results are others"


def main(parts: list[str]) -> int:
    """Run all pairs; return 1 if something is wrong. parts: of the names of maps to run, none for all."""
    names = [name for name in CASES if not parts or any(part in name for part in parts)]
    count = wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        build_objects(Path(folder))
        as_gfx950(Path(folder) / "gfx942-O2.hsaco", Path(folder))
        for build in _BUILDS:
            for name in names:
                for kernel, position in _WHERE:
                    count += 1
                    if reason := differs(Path(folder) / f"{build}.hsaco", name, kernel, position, count):
                        wrong += 1
                        print(f"{build} {name} in {kernel} at {position or 'its ends'}: {reason}")
    print(f"{count} pairs of maps and processors, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
