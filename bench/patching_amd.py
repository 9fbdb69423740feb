"""How fast AMD's code is read and probed, and what memory a large library takes: ``python -m bench.patching_amd``.

Three sources for one processor: what clang makes of the kernels of ``tests/gcn``, without optimization; Triton's
kernels (``--triton PYTHON``); and the two largest of XLA's code objects in JAX's wheel (``--wheels FOLDER``). Of each
the processor time for decoding, planning and writing all twins, with their texts, of the fastest of ROUNDS; bytes of
the originals' assembly text, as ``neutrino-extract --asm`` shows them. Besides, ``neutrino-patch`` writes the library
of that wheel with its 1,215 code objects: the most memory that its processes take, together, as they share it (PSS),
and the largest of them (RSS).

Writes ``bench/results/patching_amd.json``; ``verdicts`` judges it. ``--pack FILE`` writes the code objects to a file,
of which ``--packed FILE`` takes the times elsewhere, on a machine that does nothing else; the library's memory is then
that of the record, if it is of these sources.
"""

from __future__ import annotations

import argparse
import gc
import json
import lzma
import os
import pickle
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.check_corpus import CorpusError, fetch
from bench.corpus_amd import BUILT, ROOT, WHEELS, code_objects_in, of_clang, of_triton, print_verdicts
from bench.probed_amd import XLA
from bench.recorded import judge_files, load, save
from bench.tree import made_of
from neutrino.backend.gcn_source import CodeObjectSource
from neutrino.backend.gcn_target import GcnTarget
from neutrino.backend.gcn_twin import GcnTwins
from neutrino.backend.gcn_values import ORIGINAL
from neutrino.fatbin.code_object_functions import code_object_functions
from neutrino.gcn.snippets.meaning import typed
from neutrino.twins.able import able_probes
from neutrino.verification import load_probes

Json = Any

RESULTS = ROOT / "bench" / "results" / "patching_amd.json"
PROCESSOR = "gfx942"
PROBES = ("block_sched", "gmem_bytes", "inst_count")
ROUNDS = 3
LARGEST = 2
LIBRARY = "xla_rocm_plugin.so"
LEAST_SPEED = 2e6
"""Bytes of text a second and core, for JUDGED probes."""
JUDGED = ("block_sched", "gmem_bytes")
MOST_MEMORY = 500
"""MB (2^20) of all processes together."""
_INTERVAL_S = 0.1
_THRESHOLDS = 20_000, 20, 50
"""Of the garbage collector, as the workers of ``neutrino-patch`` have them."""


def timed(probe: str, objects: Sequence[bytes]) -> dict[str, Json]:
    """Write all twins of code objects, one after the other; return what they are and the seconds that it took."""
    able, left_out = able_probes(GcnTarget(), load_probes([probe], platform="hip"))
    probes = typed(able)
    kernels = text = 0
    seconds = [0.0, 0.0, 0.0]
    for data in objects:
        begin = time.process_time()
        source = CodeObjectSource(0, code_object_functions(data, "code object").target, data)
        names = [function.name for function in source.module.functions if function.is_kernel and function.code]
        read = time.process_time()
        twins = GcnTwins(source, probes, left_out)
        plan = twins.plan(names)
        planned = time.process_time()
        code = twins.write(plan)
        written = time.process_time()
        kernels += len(code.twins)
        text += sum(twin.texts[ORIGINAL].size for twin in code.twins)
        steps = read - begin, planned - read, written - planned
        seconds = [before + now for before, now in zip(seconds, steps, strict=True)]
    return {"kernels": kernels, "text": text, "seconds": [round(one, 3) for one in seconds]}


def fastest(probe: str, objects: Sequence[bytes]) -> dict[str, Json]:
    """Return the fastest of ROUNDS of ``timed``."""
    return min((timed(probe, objects) for _ in range(ROUNDS)), key=lambda row: sum(row["seconds"]))


def patched(wheel: Path) -> dict[str, Json]:
    """Patch the library of a wheel; return how many kernels were probed, the seconds of processor time and the most
    memory in MB: ``together``, ``largest``. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as name:
        library = Path(name) / LIBRARY
        with zipfile.ZipFile(wheel) as archive:
            member = next(one for one in archive.namelist() if one.endswith(f"/{LIBRARY}"))
            library.write_bytes(archive.read(member))
        argv = [sys.executable, "-m", "neutrino.cli.patch", str(library), "-p", "block_sched", "--arch", PROCESSOR,
                "--json", "-o", str(library.with_suffix(".out"))]  # fmt: skip
        together = largest = 0
        with (Path(name) / "report.json").open("w+b") as report:
            process = subprocess.Popen(argv, stdout=report, stderr=subprocess.DEVNULL)
            while process.poll() is None:
                rows = [memory(pid) for pid in _tree(process.pid)]
                together = max(together, sum(pss for pss, _ in rows))
                largest = max([largest, *(rss for _, rss in rows)])
                time.sleep(_INTERVAL_S)
            if process.returncode:
                raise subprocess.CalledProcessError(process.returncode, argv)
            report.seek(0)
            totals = json.load(report)["totals"]
    return {
        "kernels": totals["kernels"], "probed": totals["probed"], "together": together >> 10, "largest": largest >> 10
    }  # fmt: skip


def memory(pid: int) -> tuple[int, int]:
    """Return the memory of a process in KB: shared parts divided by those who share them, and all. Zeros after its end.
    """
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0, 0
    found = {line.split()[0]: int(line.split()[1]) for line in lines if line.startswith(("Pss:", "Rss:"))}
    return found.get("Pss:", 0), found.get("Rss:", 0)


def _tree(pid: int) -> Iterator[int]:
    """Yield a process and those that it started, and these."""
    yield pid
    try:
        children = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:
        return
    for child in (one for row in children for one in row):
        yield from _tree(int(child))


def speed(row: Mapping[str, Json]) -> float:
    """Return the bytes of text a second of a row."""
    return float(row["text"] / sum(row["seconds"]))


def verdicts(results: Mapping[str, Json]) -> list[tuple[str, bool]]:
    """Return what must hold of recorded results, in words, and whether it does."""
    library = results["library"] or {"probed": 0, "kernels": 0, "together": MOST_MEMORY + 1, "largest": 0}
    found = [
        (f"{row['source']}, {row['probe']}: {speed(row) / 1e6:.1f} MB of text a second", speed(row) >= LEAST_SPEED)
        for row in results["rows"] if row["probe"] in JUDGED
    ]  # fmt: skip
    return [
        *found,
        (f"{LIBRARY}: {library['probed']:,} of {library['kernels']:,} kernels probed", library["probed"] > 0),
        (f"{LIBRARY}: {library['together']} MB together, {library['largest']} MB the largest process",
         library["together"] <= MOST_MEMORY),
    ]  # fmt: skip


def table(results: Mapping[str, Json]) -> str:
    """Return recorded results as a table in Markdown."""
    lines = ["| source | probe | kernels | MB of text | seconds: read, plan, write | MB a second |", "|" + " --- |" * 6]
    for row in results["rows"]:
        seconds = ", ".join(f"{one:.2f}" for one in row["seconds"])
        lines.append(
            f"| {row['source']} | {row['probe']} | {row['kernels']} | {row['text'] / 1e6:.2f} | {seconds} "
            f"| {speed(row) / 1e6:.1f} |"
        )
    return "\n".join(lines)


def say(results: Mapping[str, Json]) -> int:
    """Print the verdicts on recorded results. Returns the exit status: 0 when all hold, else 1."""
    return print_verdicts(verdicts(results))


def sources(triton: Path, wheel: Path) -> dict[str, list[bytes]]:
    """Return the code objects, by their source. triton: Python of an environment with Triton. wheel: JAX's."""
    wanted = f"{PROCESSOR}_-O0_-mcode-object-version=5.hsaco"
    clang = [data for _, name, data in of_clang(BUILT / "clang") if name == wanted]
    kernels = [data for _, name, data in of_triton(triton, BUILT / "triton") if name.endswith(f"_{PROCESSOR}.hsaco")]
    xla = [bytes(image.data) for _, image in code_objects_in(wheel) if image.arch.partition(":")[0] == PROCESSOR]
    # By their code: the longest text.
    xla.sort(key=lambda data: -sum(len(row[2]) for row in code_object_functions(data, "code object").functions))
    return {"clang -O0": clang, "Triton": kernels, "XLA": xla[:LARGEST]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Record and judge; ``--judge`` judges what is recorded."""
    parser = argparse.ArgumentParser("python -m bench.patching_amd", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--judge", action="store_true", help="judge the recorded results, and measure nothing")
    parser.add_argument("--triton", type=Path, metavar="PYTHON", help="of an environment with Triton for AMD's GPUs")
    parser.add_argument("--wheels", type=Path, default=WHEELS, help="where the wheels are, or go")
    parser.add_argument("--pack", type=Path, metavar="FILE", help="write the code objects to it, and measure nothing")
    parser.add_argument("--packed", type=Path, metavar="FILE", help="the code objects that --pack wrote")
    parser.add_argument("--library", action="store_true", help="measure the library's memory alone")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    if options.judge:
        return judge_files([options.out], "python -m bench.patching_amd", ["rows", "library"], say)
    results: dict[str, Json] = {**made_of("patching_amd"), "processor": PROCESSOR, "rows": [], "library": None}
    if options.out.is_file() and (before := load(options.out))["files"] == results["files"]:
        results = {**before, **made_of("patching_amd")}
    try:
        if options.packed is None:
            wheel = fetch(XLA, options.wheels)
        if options.packed is None and not options.library:
            if options.triton is None:
                parser.error("--triton or --packed is needed")
            found = sources(options.triton, wheel)
            if options.pack is not None:
                options.pack.write_bytes(lzma.compress(pickle.dumps(found), preset=1))
                return 0
        elif options.packed is not None:
            # It is our own.
            found = pickle.loads(lzma.decompress(options.packed.read_bytes()))
        if not options.library:
            gc.set_threshold(*_THRESHOLDS)
            rows = [
                {"source": source, "probe": probe, **fastest(probe, objects)}
                for source, objects in found.items() for probe in PROBES
            ]  # fmt: skip
            results |= {"rows": rows, "machine": _machine()}
        if options.packed is None:
            results["library"] = patched(wheel)
    except (CorpusError, zipfile.BadZipFile, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 2
    save(options.out, results)
    print(table(results))
    return say(results)


def _machine() -> str:
    """Return the name of this machine's processor, and of how many there are."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return f"{os.cpu_count()} x {name}"


if __name__ == "__main__":
    sys.exit(main())
