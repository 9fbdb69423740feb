"""Triton's kernels in the interpreter of AMD's machine code, against NumPy.

``python -m tests.emulator.gcn.triton_numpy [FOLDER]``: FOLDER has their code objects, ``NAME_ARCH.hsaco``, as
``tests/gcn/triton_amd.py`` writes them; that is ``.corpus/amd/triton`` unless given. Each is run twice, with another
order of waves and other numbers in registers that nothing wrote: the results must be the same bits. Writes
``build/gcn_numpy.json``, and says how that differs from what is recorded; ``--out bench/results/gcn_numpy.json``
records.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path
from typing import Any

from bench.tree import ROOT, made_of
from neutrino.gcn.llvm import find_llvm
from tests.corpus.outputs import OUT_HELP, write
from tests.emulator.gcn.triton_cases import cases, run_case, worst_error

RESULTS = ROOT / "bench" / "results" / "gcn_numpy.json"
PROCESSORS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
LEAST = 25
"""Kernels of each processor."""
_ORDERED = frozenset({"locks"})
"""Kernels whose work-groups wait for one another: they are run in a random order only."""


def main() -> int:
    """Run all kernels, write the results, and return 1 if one is wrong."""
    parser = argparse.ArgumentParser("python -m tests.emulator.gcn.triton_numpy", description=__doc__.split("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / ".corpus" / "amd" / "triton")
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    options = parser.parse_args()
    folder = options.folder
    rows: list[dict[str, Any]] = []
    is_wrong = False
    for processor in PROCESSORS:
        disassemble = find_llvm(processor).disassemble
        for name, case in cases(processor).items():
            path = folder / f"{name}_{processor}.hsaco"
            if not path.is_file():
                continue
            data = path.read_bytes()
            first = run_case(data, case, disassemble, seed=1, checks=True)
            second = run_case(data, case, disassemble, seed=None if name not in _ORDERED else 2, poison=9)
            error = worst_error(case, first)
            same = all(first.buffers[number].tobytes() == second.buffers[number].tobytes() for number in first.buffers)
            is_wrong |= error > case.error or not same
            digest = hashlib.sha256(data).hexdigest()
            rows.append(
                {
                    "kernel": name, "processor": processor, "object": digest, "instructions": first.instructions,
                    "error": error, "allowed": case.error, "same": same,
                }
            )  # fmt: skip
            print(f"{name} {processor}: {first.instructions} instructions, error {error:.1e}", "" if same else "!")
    write(options.out, RESULTS, {"rows": rows, **made_of("gcn_numpy")})
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
