"""Does gmem_bytes count the same bytes in machine code as in the PTX that it was made of?

    python3 -m bench.machine_code sums --out out/machine_code_sums_h200.json     on a machine with a GPU
    python3 -m bench.machine_code_sums                                           the verdicts alone

The kernels of ``workloads/machine_code_sums.ptx`` are assembled, and get twins in machine code and in PTX. All three
run over the same input, of an odd number of threads: the output must have the same bits, and both twins the same sums.
Some kernels' sums must also be what their accesses and the input say, by NumPy.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.probed import made_with
from bench.recorded import judge_files, save
from bench.tree import ROOT
from neutrino import load_probes
from neutrino.backend.sass_probe_code import ProbeCode
from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.text.module import parse
from neutrino.sass.twin.cutting import Cutter
from neutrino.toolchain.tool_choice import find_assembler

Json = Any

SOURCE = ROOT / "bench" / "workloads" / "machine_code_sums.ptx"
RESULTS = ROOT / "bench" / "results" / "machine_code_sums_h200.json"
PROBE = "gmem_bytes"
FIELDS = ("load", "store", "atomic", "async", "uncounted")
KERNELS = ("widths", "predicated", "loops", "atomics", "copies", "calls")
THREADS, BLOCK = 100_003, 256
LANE_BYTES = 64
_COPIES, _COPY_BYTES = 128, 128
"""Copies of the map's record, one for each multiprocessor up to their number, and how far they are apart."""


@dataclass(frozen=True)
class _Launch:
    """What ``bench.device`` launches."""

    kernel: str
    grid: tuple[int, int, int] = (-(-THREADS // BLOCK) + 1, 1, 1)
    block: tuple[int, int, int] = (BLOCK, 1, 1)
    shared: int = 0


def twins() -> dict[str, dict[str, tuple[str, bytes]]]:
    """Return by kernel, of the original (``own``) and both twins (``sass``, ``ptx``), the name and a cubin."""
    text, assembler, probes = SOURCE.read_text(), find_assembler(), load_probes([PROBE])
    code = ProbeCode(probes, "sm_90", assembler)
    cutter = Cutter(assembler.assemble(text, "sm_90").cubin, SOURCE.name)
    module = probe_module(parse(text), probes)
    in_ptx = {kernel.name: kernel.twin_name for kernel in module.kernels}
    cubin = assembler.assemble(module.render(), "sm_90").cubin
    made = {}
    for kernel in KERNELS:
        cut = cutter.cut(kernel)
        twin = code.twin_of(cut, kernel, SOURCE.name)
        made[kernel] = {"own": (kernel, cut), "sass": (kernel, twin.data), "ptx": (in_ptx[kernel], cubin)}
    return made


def values() -> NDArray[np.uint32]:
    """The input: [threads, 16] random words."""
    return np.random.default_rng(1).integers(0, 1 << 32, (THREADS, LANE_BYTES // 4), np.uint32)


def expected(kernel: str, given: NDArray[np.uint32]) -> list[int] | None:
    """Return the fields of the map that a kernel's accesses and its input say, or None where they are not computed."""
    first = given[:, 0].astype(np.int64)
    odd = int((first & 1).sum())
    if kernel == "widths":
        return [31 * THREADS, 31 * THREADS, 0, 0, 0]
    if kernel == "copies":
        return [0, 16 * THREADS, 0, 28 * THREADS, 0]
    if kernel == "atomics":
        return [8 * THREADS, 4 * THREADS, 24 * THREADS + 4 * THREADS, 0, 0]
    if kernel == "predicated":
        ends = int((first & 6 == 4).sum())
        return [4 * THREADS + 4 * odd + 8 * (THREADS - odd), 4 * ends + 12 * (THREADS - ends), 0, 0, 0]
    return None


def record_sums(out: Path) -> int:
    """Run all kernels and write the results. Returns the exit status: 0 when all verdicts hold."""
    # With the driver's library, which other machines lack.
    from bench.device import Gpu

    gpu, given, rows = Gpu(), values(), []
    for kernel, versions in twins().items():
        row: dict[str, Json] = {"kernel": kernel, "expected": expected(kernel, given)}
        first: NDArray[np.uint32] | None = None
        for version, (name, cubin) in versions.items():
            with ExitStack() as held:
                module = held.enter_context(gpu.module(cubin))
                source, target = held.enter_context(gpu.memory(given)), held.enter_context(gpu.memory(given * 0))
                copies = np.zeros((_COPIES, _COPY_BYTES // 8), np.uint64)
                sums = held.enter_context(gpu.memory(copies))
                parameters = [bytes(source), bytes(target), struct.pack("<I", THREADS)]
                if version != "own":
                    # As in neutrino/abi: no logs, the mask of the copies, no graph, the map's memory, no counts.
                    parameters.append(struct.pack("<IIIIQQQ", 0, 0, 0, _COPIES - 1, 0, sums.value, 0))
                gpu.launch(module, _Launch(name), parameters)
                result = gpu.read(target, given)
                first = result if first is None else first
                row[f"same {version}"] = bool((result == first).all())
                row[version] = [int(one) for one in gpu.read(sums, copies).sum(axis=0)[: len(FIELDS)]]
        rows.append(row)
    results = {**made_with(RESULTS.stem), "threads": THREADS, "rows": rows}
    out.parent.mkdir(parents=True, exist_ok=True)
    save(out, results)
    return say(results)


def wrong(row: Json) -> list[str]:
    """Return what does not hold of a kernel's results."""
    found = [f"{version}: other results" for version in ("sass", "ptx") if not row[f"same {version}"]]
    if row["sass"] != row["ptx"] or not any(row["sass"]):
        found.append(f"machine code has {row['sass']}, PTX {row['ptx']}")
    if row["expected"] is not None and row["sass"] != row["expected"]:
        found.append(f"machine code has {row['sass']}, by its accesses {row['expected']}")
    return found


def say(results: Json) -> int:
    """Print a table and what does not hold; return the exit status: 0 when all does."""
    good = {row["kernel"] for row in results["rows"]} == set(KERNELS)
    for row in results["rows"]:
        found = wrong(row)
        good &= not found
        figures = ", ".join(f"{name} {value:,}" for name, value in zip(FIELDS, row["sass"], strict=True) if value)
        print(f"{'missed' if found else 'ok    '} {row['kernel']:10} {figures}{''.join(f'; {one}' for one in found)}")
    return 0 if good else 1


def main(paths: Sequence[str]) -> int:
    """Print the verdicts on files of results, by default the recorded one; return the exit status."""
    files = [Path(path) for path in paths] or [RESULTS]
    return judge_files(files, "bench.machine_code sums --out FILE", ("threads", "rows"), say)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
