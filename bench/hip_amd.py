"""AMD's own HIP runtime with kernels that have the shipped probes: ``python -m bench.hip_amd``.

Debian's ``libamdhip64.so.5`` on the stand-in of HSA's runtime of the tests (``tests/hsa``) loads bundles whose code
objects for gfx90a and gfx1030 have been patched, finds originals and twins, and launches both: twins by
``kernelParams`` and by ``extra``. The interpreter executes the dispatches. Results must be the original's, and records
what it executed.
Writes ``bench/results/hip_amd.json``; ``--judge`` judges it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.corpus_amd import print_verdicts
from bench.recorded import judge_files, save
from bench.tree import made_of
from neutrino.gcn.llvm import find_llvm
from tests.gcn.objects import CLANG, SOURCE
from tests.hsa.build import build

Json = Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results" / "hip_amd.json"
ISAS = {"gfx90a": "amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-", "gfx1030": "amdgcn-amd-amdhsa--gfx1030"}
KERNELS = (
    "saxpy", "wide", "block_sum", "steps", "bits", "floats", "histogram", "scratch", "checked", "nothing",
)  # fmt: skip
"""Of the tests' ``kernels.hip``: those without calls whose results do not depend on the order of waves."""
LEAST_PROBES = 17
LEAST_TWINS = 100
"""Of each processor."""


def _compiled(folder: Path) -> None:
    """Compile the kernels for each processor, as code objects of version 4, which this runtime knows."""
    for processor in ISAS:
        command = [
            CLANG, "-x", "hip", "--offload-device-only", "--no-gpu-bundle-output", "-nogpuinc", "-nogpulib", "-w",
            "-O2", "-mcode-object-version=4", f"--offload-arch={processor}", str(SOURCE), "-o",
            str(folder / f"{processor}.hsaco"),
        ]  # fmt: skip
        subprocess.run(command, check=True)


def _judged(stand_in: Path, objects: Path, processor: str) -> dict[str, dict[str, Json]]:
    """Run all kernels with all probes in a process of its own. Returns what became of each."""
    paths = [str(stand_in), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(paths), "HSA_STAND_IN_ISA": ISAS[processor]}
    command = [sys.executable, "-m", "tests.hsa.probed", str(objects), ",".join(KERNELS), ""]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, dict[str, Json]] = json.loads(done.stdout)
    return found


def record() -> dict[str, Json]:
    """Run everything; return the results."""
    rows: list[Json] = []
    with tempfile.TemporaryDirectory() as name:
        stand_in, objects = Path(name) / "hsa", Path(name) / "objects"
        stand_in.mkdir()
        objects.mkdir()
        build(stand_in)
        _compiled(objects)
        for processor in ISAS:
            for probe, each in _judged(stand_in, objects, processor).items():
                states: Counter[str] = Counter()
                refused: dict[str, str] = {}
                wrong: dict[str, str] = {}
                for kernel, became in each.items():
                    if isinstance(became, list):
                        states["records"] += became[1]
                        states["twins"] += 1
                        wrong |= {kernel: became[0]} if became[0] else {}
                    elif became.startswith("no_site"):
                        states["none"] += 1
                    else:
                        refused[kernel] = became
                counts = {key: states[key] for key in ("twins", "none", "records")}
                rows.append({"processor": processor, "probe": probe, **counts, "refused": refused, "wrong": wrong})
    return {**made_of("hip_amd"), "llvm": find_llvm().identity, "kernels": len(KERNELS), "rows": rows}


def verdicts(results: Mapping[str, Json]) -> list[tuple[str, bool]]:
    """Return what must hold of recorded results, in words, and whether it does."""
    found = []
    for processor in ISAS:
        rows = [row for row in results["rows"] if row["processor"] == processor]
        wrong = [f"{row['probe']} in {kernel}: {why}" for row in rows for kernel, why in row["wrong"].items()]
        twins, refused = sum(row["twins"] for row in rows), sum(len(row["refused"]) for row in rows)
        counted = {row["twins"] + row["none"] + len(row["refused"]) for row in rows}
        found += [
            (f"{processor}: {len(rows)} probes, at least {LEAST_PROBES}", len(rows) >= LEAST_PROBES),
            (f"{processor}: {twins} twins launched by kernelParams and by extra, at least {LEAST_TWINS}; "
             f"{refused} refused", twins >= LEAST_TWINS),
            (f"{processor}: {len(wrong)} have other results or records{f' ({wrong[0]})' if wrong else ''}", not wrong),
            (f"{processor}: all kernels are accounted for", counted == {results["kernels"]}),
            (f"{processor}: {sum(row['records'] for row in rows)} records",
             all(row["records"] for row in rows if row["twins"])),
        ]  # fmt: skip
    return found


def say(results: Mapping[str, Json]) -> int:
    """Print the verdicts on recorded results. Returns the exit status: 0 when all hold, else 1."""
    return print_verdicts(verdicts(results))


def main(arguments: Sequence[str] | None = None) -> int:
    """Record and judge; ``--judge`` judges what is recorded."""
    parser = argparse.ArgumentParser("python -m bench.hip_amd", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--judge", action="store_true", help="judge the recorded results, and write nothing")
    if parser.parse_args(arguments).judge:
        return judge_files([RESULTS], "python -m bench.hip_amd", ("rows",), say)
    results = record()
    save(RESULTS, results)
    return say(results)


if __name__ == "__main__":
    sys.exit(main())
