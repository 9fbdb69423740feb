"""All that probes compute on all of AMD's processors that get probes, and on both sizes of waves.

    python -m bench.compute_amd [PROGRAMS]

Operators, conversions and comparisons of each type, of all pairs of its edges and of random numbers, in VGPRs and in
SGPRs; random programs, 200 for each processor or as many as PROGRAMS says; a probe of everything in compiled kernels.
The interpreter of AMD's machine code runs them. Prints what differs from docs/ir.md as NumPy computes it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from neutrino.emulator.gcn.errors import GcnError
from neutrino.ir.types import Type
from tests.gcn.compute_bench import MACHINES
from tests.gcn.test_compute import check_programs, check_values, every_comparison, every_conversion, every_operator
from tests.gcn.test_compute_probes import check_probe
from tests.oracle.test_typed import NUMBERS

_PROGRAMS = 200
_ALL_PAIRS = 1 << 14
_KERNELS = ("scanned", "exchanged", "sorted_together", "left_early")
# LLVM 19 compiles nothing for gfx950.
_COMPILED = (
    ("gfx90a", ()), ("gfx942", ()), ("gfx1030", ()), ("gfx1030", ("-mwavefrontsize64",)),
    ("gfx1100", ()), ("gfx1100", ("-mwavefrontsize64",)), ("gfx1201", ()), ("gfx1201", ("-mwavefrontsize64",)),
)  # fmt: skip


def is_right(name: str, check: Callable[[], None]) -> bool:
    """Run a check, print what fails under its name, and return whether nothing did."""
    try:
        check()
    except (AssertionError, GcnError) as error:
        print(f"{name}: {str(error)[:2000]}", flush=True)
        return False
    return True


def main(programs: int) -> int:
    """Run all checks; return 1 if something is wrong. programs: random ones, for each processor."""
    results = []
    for place in MACHINES:
        every = (*NUMBERS, Type.PRED)
        for make, kinds in ((every_operator, every), (every_conversion, every), (every_comparison, NUMBERS)):
            for kind in kinds:
                for uniform in ((), ("IN1", "IN2")):
                    check = partial(check_values, place, *make(kind), kind, uniform, _ALL_PAIRS)
                    results.append(is_right(f"{place} {make.__name__} of {kind} {uniform}", check))
        results.append(is_right(f"{place} random programs", partial(check_programs, place, programs)))
    for processor, options in _COMPILED:
        for name in _KERNELS:
            with tempfile.TemporaryDirectory() as folder:
                check = partial(check_probe, Path(folder), processor, options, name)
                results.append(is_right(f"{processor} {options} {name}", check))
    print(f"{len(results)} checks, {results.count(False)} wrong")
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else _PROGRAMS))
