"""Judge the interpreter of AMD's machine code: ``python -m bench.gcn_judge`` (part of ``make corpus-amd``).

Every kernel of ``judged.hip`` in the tests, compiled by clang for AMD's GPUs and for this CPU: for each target and
optimisation, how many elements of the results differ. Writes ``bench/results/gcn_judge.json``.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.recorded import save
from bench.tree import made_of
from neutrino.gcn.llvm import find_llvm
from tests.emulator.gcn import judge

RESULTS = Path(__file__).resolve().parent / "results" / "gcn_judge.json"
TARGETS = ("gfx906", "gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1201")
OPTIONS = (("-O0",), ("-O1",), ("-O2",), ("-O3",))
WAVE64 = ("-O2", "-mwavefrontsize64")
"""Besides, for processors whose waves may have 32 or 64 lanes."""
SEEDS = (1, 2)


def source_hash() -> str:
    """Return the hash of the kernels' source."""
    return hashlib.sha256(judge.SOURCE.read_bytes()).hexdigest()


def main() -> int:
    """Judge, write the results, and return 1 if anything differs."""
    assert judge.CLANG is not None
    version = subprocess.run([judge.CLANG, "--version"], capture_output=True, text=True, check=True).stdout.split("\n")[
        0
    ]
    kernels = judge.kernels()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cpu = judge.compile_for_cpu(folder)
        expected = {}
        for seed in SEEDS:
            values = judge.inputs(seed)
            expected[seed] = {kernel.name: judge.on_cpu(cpu, kernel, *values) for kernel in kernels}
        for target in TARGETS:
            disassemble = find_llvm(target).disassemble
            for options in (*OPTIONS, *((WAVE64,) if target.startswith("gfx1") else ())):
                data = judge.compile_for_gpu(folder, target, options)
                instructions, different = 0, {}
                for seed in SEEDS[: 1 if options == ("-O0",) else None]:
                    for kernel, found, executed in judge.on_gpu(data, disassemble, kernels, judge.inputs(seed), seed):
                        instructions += executed
                        count = judge.differences(kernel, expected[seed][kernel.name], found)
                        if count:
                            different[kernel.name] = count
                rows.append(
                    {
                        "target": target, "options": " ".join(options), "object": hashlib.sha256(data).hexdigest(),
                        "kernels": len(kernels), "instructions": instructions, "different": different,
                    }
                )  # fmt: skip
                print(f"{target} {' '.join(options)}: {len(kernels)} kernels, {instructions} instructions, {different}")
    result = {"source": source_hash(), "clang": version, "rows": rows, **made_of("gcn_judge")}
    save(RESULTS, result)
    return int(any(row["different"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
