"""Each shipped probe in AMD's kernels, run beside the originals.

``python -m tests.gcn.exact_corpus [--triton FOLDER]``: kernels are Triton's, of which FOLDER has the code objects,
``NAME_ARCH.hsaco``, as ``tests/gcn/triton_amd.py`` writes them (``.corpus/amd/triton`` unless given), and those of
``judged.hip`` in the tests, which clang compiles. Each is run in the interpreter, and with each probe that loads for
AMD's GPUs its twin: buffers must have the same bits, and maps what an independent trace says
(``tests/gcn/trace_models.py``); where a field is a clock, that it may be one that the wave has read. What was judged is
kept in ``.corpus/amd/exact_amd.json``, so that a run that was stopped goes on. Writes
``build/exact_amd.json``, which ``--out bench/results/exact_amd.json`` records; ``--judge`` judges what is recorded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import pickle
import re
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from bench.recorded import judge_files
from bench.tree import ROOT, judged_files, made_of
from neutrino.emulator.gcn.errors import GcnError
from neutrino.fatbin.code_object_functions import code_object_functions
from neutrino.gcn.llvm import find_llvm
from tests.corpus.outputs import OUT_HELP, write
from tests.emulator.gcn import judge
from tests.emulator.gcn.triton_cases import WARPS, cases
from tests.gcn.corpus_text import print_verdicts
from tests.gcn.exact import Judge, Outcome, Work, kernel_names, portable_probes

Json = Any

RESULTS = ROOT / "bench" / "results" / "exact_amd.json"
_CORPUS = ROOT / ".corpus" / "amd"
_KEPT = _CORPUS / "exact_amd.json"
TRITON = ("gfx942", "gfx950", "gfx1201", "gfx1100 triton", "gfx90a triton")
"""Builds of Triton's kernels, which has no compiler for gfx1030."""
CLANG: Mapping[str, tuple[str, ...]] = {
    "gfx1030": (), "gfx90a": (), "gfx1100": (), "gfx1030 wave64": ("-mwavefrontsize64",),
    "gfx1100 wave64": ("-mwavefrontsize64",),
}  # fmt: skip
"""Builds of ``judged.hip``, with options of clang."""
BUILDS = (
    "gfx942", "gfx1030", "gfx90a", "gfx1100", "gfx1030 wave64", "gfx1100 wave64", "gfx950", "gfx1100 triton", "gfx1201",
    "gfx90a triton",
)  # fmt: skip
"""In the order in which they are judged."""
NEEDED = ("gfx90a", "gfx942", "gfx1030", "gfx1100")
LEAST = 25
"""Kernels of each build for the processors of NEEDED."""
MOST_REFUSED = 15
"""Per cent of the kernels of a probe, over all builds."""
LEAST_PROBES = 20
_MOST_BLOCKS = 2
"""Of a launch: what other blocks do is the same with other numbers."""
_RACING = frozenset({"locks", "extremes", "sum_all", "counted_together", "rotary"})
"""Kernels in which what a wave executes or computes may depend on what others have written."""
SLOW: Mapping[str, str] = {
    "product_bf16": "128 times 128 elements a block: a minute with each probe of operands",
    "attention": "a loop of matrix products: as long",
    "product_fp8": "converts each element by hand but on gfx942: as long",
    "longs": "divides 64-bit integers in 4,000 instructions",
}
"""Kernels of Triton that are left out, and why."""
_CLANG_KERNELS = (
    "mixed_sums", "wide_products", "divided", "shifted_wide", "narrow", "collatz", "common_divisor", "cyclic_code",
    "searched", "switched", "sorted_in_scratch", "calling", "looked_up", "left_early",
    "float_quotients", "float_roots", "half_arithmetic", "double_fused", "polynomial", "mandelbrot", "summed",
    "scanned", "binned", "turned", "exchanged", "bytes_shared", "counted_together",
)  # fmt: skip
_STATES = ("equal", "facts", "none", "refused", "wrong")
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")
_KERNEL = re.compile(r"(?:KERNEL|PHASED)\((\w+)\) ")


@dataclass(frozen=True)
class Job:
    """A kernel to judge. build: of which. kernel: its name in the source. data: the code object. of: the code object,
    or the source that it is built from, as clang's has a number of its own each time."""

    build: str
    kernel: str
    data: bytes
    work: Work
    of: bytes

    @property
    def key(self) -> str:
        """By what its results are kept: they are of this code."""
        return f"{self.build} {self.kernel} {hashlib.sha256(self.of).hexdigest()[:16]}"


def triton_jobs(folder: Path, builds: Sequence[str], slow: bool) -> Iterator[Job]:
    """Yield Triton's kernels. slow: those of SLOW, too."""
    for build in builds:
        processor = build.split()[0]
        for name, case in cases(processor).items():
            path = folder / f"{name}_{processor}.hsaco"
            if not path.is_file() or (name in SLOW and not slow):
                continue
            data = path.read_bytes()
            (function,) = [one for one in code_object_functions(data, name).functions if one.is_kernel]
            x, y, z = case.grid
            grid = (min(x, _MOST_BLOCKS), min(y, _MOST_BLOCKS), z)
            work = Work(grid, (function.wave * WARPS, 1, 1), case.arguments, name in _RACING)
            yield Job(build, name, data, work, data)


def clang_jobs(folder: Path, builds: Sequence[str], names: Sequence[str] = _CLANG_KERNELS) -> Iterator[Job]:
    """Yield kernels of ``judged.hip``, each compiled alone, as decoding the others would take most of the time. folder:
    an empty one."""
    values = judge.inputs(5)
    lines = judge.SOURCE.read_text().splitlines(keepends=True)
    for build in builds:
        for name in names:
            source = folder / f"{name}.hip"
            source.write_text("".join(line for line in lines if _name_of(line) in ("", name)))
            data = judge.compile_for_gpu(folder, build.split()[0], ("-O2", *CLANG.get(build, ())), source)
            work = Work((_MOST_BLOCKS, 1, 1), (judge.BLOCK, 1, 1), values, name in _RACING)
            yield Job(build, name, data, work, source.read_bytes())


def _name_of(line: str) -> str:
    """The kernel that a line of ``judged.hip`` has, "" for other lines."""
    match = _KERNEL.match(line)
    return match[1] if match else ""


def judged(job: Job) -> tuple[str, dict[str, Json]]:
    """Judge a kernel with all probes. Returns its key, and by probe what became of it; the seconds of processor time
    under ``""``."""
    begin = time.process_time()
    name = job.kernel if job.kernel in kernel_names(job.data) else kernel_names(job.data)[0]
    found: dict[str, Json] = {}
    try:
        one = Judge(job.data, name, job.work)
    except (GcnError, struct.error) as error:
        return job.key, {"": round(time.process_time() - begin, 2), "original": str(error)}
    for probe, probes in portable_probes().items():
        outcome: Outcome = one.judge(probe, probes)
        found[probe] = [outcome.state, outcome.why, outcome.sites, outcome.records]
    return job.key, {**found, "": round(time.process_time() - begin, 2)}


def record(jobs: Sequence[Job], processes: int, slow: bool) -> dict[str, Json]:
    """Judge what is not kept yet; return the results."""
    files = judged_files("exact_amd")
    kept: dict[str, Json] = {}
    if _KEPT.is_file():
        document = json.loads(_KEPT.read_text())
        if document["files"] == files:
            kept = document["kernels"]
    _KEPT.parent.mkdir(parents=True, exist_ok=True)
    waiting = [job for job in jobs if job.key not in kept]
    with get_context("spawn").Pool(processes) as pool:
        for key, found in pool.imap_unordered(judged, waiting):
            kept[key] = found
            _KEPT.write_text(json.dumps({"files": files, "kernels": kept}))
            wrong = [f"{probe}: {one[1]}" for probe, one in found.items() if probe and one[0] == "wrong"]
            name = key.rpartition(" ")[0]
            print(f"{len(kept)} of {len(jobs)}: {name}: {found['']} s", *wrong, sep="\n  ", flush=True)
    rows = _rows(jobs, kept)
    # What was judged before others changed the sources is not of one tree.
    assert judged_files("exact_amd") == files, "sources have changed meanwhile"
    seconds = sum(kept[job.key][""] for job in jobs)
    return {
        **made_of("exact_amd"), "llvm": find_llvm().identity, "seconds": round(seconds),
        "objects": hashlib.sha256("".join(sorted(job.key for job in jobs)).encode()).hexdigest(), "rows": rows,
        "left_out": {} if slow else dict(SLOW), "numpy": np.__version__,
    }  # fmt: skip


def _rows(jobs: Sequence[Job], kept: Mapping[str, Json]) -> list[Json]:
    """Return a row for each build and probe."""
    rows = []
    for build in dict.fromkeys(job.build for job in jobs):
        mine = {job.kernel: kept[job.key] for job in jobs if job.build == build}
        for probe in sorted({probe for found in mine.values() for probe in found if probe not in ("", "original")}):
            each = {kernel: found[probe] for kernel, found in mine.items() if probe in found}
            states = Counter(one[0] for one in each.values())
            refused: dict[str, list[str]] = {}
            faults = {kernel: one[1] for kernel, one in each.items() if one[0] == "wrong"}
            for kernel, one in each.items():
                if one[0] == "refused":
                    refused.setdefault(_NUMBERS.sub("N", one[1]), []).append(kernel)
            rows.append(
                {
                    "build": build, "probe": probe, "kernels": len(mine), **{name: states[name] for name in _STATES},
                    "sites": sum(one[2] for one in each.values()), "records": sum(one[3] for one in each.values()),
                    "refusals": refused, "faults": faults,
                }
            )  # fmt: skip
        failed = {kernel: found["original"] for kernel, found in mine.items() if "original" in found}
        if failed:
            rows.append({"build": build, "probe": "", "kernels": len(mine), "faults": failed})
    return rows


def verdicts(results: Mapping[str, Json]) -> list[tuple[str, bool]]:
    """Return what must hold of recorded results, in words, and whether it does."""
    rows = [row for row in results["rows"] if row["probe"]]
    probes = sorted({row["probe"] for row in rows})
    builds: dict[str, int] = {row["build"]: row["kernels"] for row in results["rows"]}
    found = [
        (f"{len(probes)} probes, at least {LEAST_PROBES}", len(probes) >= LEAST_PROBES),
        ("waves of 32 and of 64 lanes", {"gfx1030", "gfx1030 wave64"} <= builds.keys()),
        ("all originals run", len(rows) == len(results["rows"])),
    ]
    for processor in NEEDED:
        count = builds.get(processor, 0)
        found.append((f"{processor}: {count} kernels, at least {LEAST}", count >= LEAST))
    for probe in probes:
        mine = [row for row in rows if row["probe"] == probe]
        total = {name: sum(row[name] for row in mine) for name in ("kernels", *_STATES)}
        wrong = [f"{row['build']} {kernel}: {why}" for row in mine for kernel, why in row["faults"].items()]
        known = total["equal"] + total["facts"]
        what = "equal to a trace" if total["equal"] else "with clocks that waves have read" if total["facts"] else "run"
        share = 100 * total["refused"] / max(total["kernels"], 1)
        found += [
            (f"{probe}: {known} kernels {what}, {total['wrong']} wrong{f' ({wrong[0]})' if wrong else ''}", not wrong),
            (f"{probe}: {sum(total[name] for name in _STATES)} of {total['kernels']} kernels are accounted for",
             sum(total[name] for name in _STATES) == total["kernels"] == sum(builds.values())),
            (f"{probe}: {share:.1f} % refused, {MOST_REFUSED} % at most", share <= MOST_REFUSED),
            (f"{probe}: {total['none']} of {total['kernels']} without a site", total["none"] < total["kernels"]),
        ]  # fmt: skip
    return found


def say(results: Mapping[str, Json]) -> int:
    """Print the verdicts on recorded results. Returns the exit status: 0 when all hold, else 1."""
    return print_verdicts(verdicts(results))


def main(arguments: Sequence[str] | None = None) -> int:
    """Record and judge; ``--judge`` judges what is recorded."""
    parser = argparse.ArgumentParser("python -m tests.gcn.exact_corpus", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--judge", action="store_true", help="judge the recorded results, and write nothing")
    parser.add_argument("--triton", type=Path, default=_CORPUS / "triton", metavar="FOLDER", help="code objects")
    parser.add_argument("--builds", default="", help="of processors and waves, with commas between; all unless given")
    parser.add_argument("--kernels", default="", help="their names; nothing is written then")
    parser.add_argument("--slow", action="store_true", help="kernels that are left out otherwise, too")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path, help=OUT_HELP)
    parser.add_argument("--pack", type=Path, metavar="FILE", help="write what is judged to it, and judge nothing")
    parser.add_argument("--packed", type=Path, metavar="FILE", help="what --pack wrote, on a machine without clang")
    options = parser.parse_args(arguments)
    if options.judge:
        return judge_files([RESULTS], "python -m tests.gcn.exact_corpus", ("rows",), say)
    builds = options.builds.split(",") if options.builds else BUILDS
    if options.packed is not None:
        # It is our own.
        results = record(pickle.loads(lzma.decompress(options.packed.read_bytes())), options.jobs, options.slow)
        write(options.out, RESULTS, results)
        return say(results)
    with tempfile.TemporaryDirectory() as folder:
        names = set(filter(None, options.kernels.split(",")))
        jobs = [
            job for build in builds for job in (
                clang_jobs(Path(folder), [build], [one for one in _CLANG_KERNELS if not names or one in names])
                if build in CLANG else triton_jobs(options.triton, [build], options.slow)
            ) if not names or job.kernel in names
        ]  # fmt: skip
        if options.pack is not None:
            options.pack.write_bytes(lzma.compress(pickle.dumps(jobs), preset=1))
            return 0
        results = record(jobs, options.jobs, options.slow)
    if not names:
        write(options.out, RESULTS, results)
    return say(results)


if __name__ == "__main__":
    sys.exit(main())
