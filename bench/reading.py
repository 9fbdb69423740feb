"""How fast are traces read, and in how much memory? ``python -m bench.reading record`` (then ``judge``).

Five traces are written into a temporary folder, one after the other: 256 MiB of records of 16 bytes, in frames of four
launches, whose nine aggregates (least, greatest and sum of three fields) are computed in C and by NumPy alone; 1, 4 and
10 GiB of them, and one of 4 KiB. Of all ``neutrino-report`` prints a summary. Two million warps are written for
Perfetto. Processor time, since wall time depends on who else reads; of memory what is no page of a file, sampled while
the report runs. The files are read once before, so that no disk is.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.command_line import Bench
from bench.tree import made_of
from bench.verdicts import Verdict
from neutrino.abi.launches import LAUNCH, LaunchState
from neutrino.abi.reasons import Reason
from neutrino.abi.results import FRAME, FRAME_MAGIC
from neutrino.maps.regions import region_layout
from neutrino.tracing import Trace, aggregate
from tests.tracing.trace_writer import BLOCK_SCHED, TraceWriter, fill_regions

Json = Any
ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "reading.json"
FIELDS = ("start", "elapsed", "cuid")
LAUNCHES, WARPS = 4, 8
SIZES = {"fast": 256 << 20, "big": 1 << 30, "large": 4 << 30, "huge": 10 << 30, "small": 4096}
"""Bytes of records in each trace."""
ROUNDS = {"c": 7, "numpy": 7, "fast": 3, "big": 3, "large": 2, "huge": 2, "small": 9}
LEAST_SPEED = {"c": 5.0, "numpy": 2.0}
"""GB of records per second of processor time."""
PERFETTO_BLOCKS, PERFETTO_ROUNDS, LEAST_SLICES = 1 << 18, 5, 2e6
"""Blocks of the launch that is written for Perfetto; slices per second of processor time, start of Python included."""
REPORTS = ("fast", "big", "large", "huge", "small")
MOST_HUGE_SECONDS = 60.0
"""Of processor time, for a report on the largest trace."""
MOST_GROWTH = 1.25
"""Seconds for each byte of the two largest traces, one by the other: time is linear."""
MOST_BYTES = 200 << 20
"""Of anonymous memory, whatever the size of the trace."""
MOST_SECONDS = 0.3
"""Of processor time, for a report on a small trace."""


def write_trace(path: Path, size: int) -> Json:
    """Write a trace with ``size`` bytes of random records; return what a report on it must show.

    That is the least, median and largest value of each field. Of a large trace the records of its first frames, 256 MiB
    together, come again.
    """
    writer = TraceWriter(path)
    writer.kernel(1, "vecadd", maps=[BLOCK_SCHED])
    header = bytes(writer.frames.pop(1))
    blocks = min(size, SIZES["fast"]) // (LAUNCHES * WARPS * BLOCK_SCHED.size)
    _, regions = region_layout([BLOCK_SCHED], blocks, WARPS, lanes=32)
    random = np.random.default_rng(1)
    columns: dict[str, list[Any]] = {name: [] for name in FIELDS}
    first = []
    for number in range(LAUNCHES):
        rows = np.zeros(blocks * WARPS, BLOCK_SCHED.dtype)
        rows["start"] = 10**18 + number * 10**9 + np.cumsum(random.integers(0, 100, len(rows)))
        rows["elapsed"] = random.integers(0, 1 << 20, len(rows))
        rows["cuid"] = random.integers(0, 132, len(rows))
        for name, column in columns.items():
            column.append(rows[name].copy())
        first.append(rows.tobytes().ljust(regions, b"\0"))
    with (path / "result" / "1.bin").open("wb") as file:
        file.write(header)
        for number in range(LAUNCHES * max(size // SIZES["fast"], 1)):
            record, frame = np.zeros((), LAUNCH.dtype), np.zeros((), FRAME.dtype)
            for row in (record, frame):
                row["grid"], row["block"] = (blocks, 1, 1), (32 * WARPS, 1, 1)
            record["kernel"], record["state"], record["submit_ns"] = 1, LaunchState.WRITTEN, number
            record["data_offset"], record["data_size"] = file.tell(), regions
            frame["magic"], frame["launch"], frame["size"] = FRAME_MAGIC, number, regions
            writer.records.append(record)
            writer.counters[1, Reason.PROBED] += 1
            data = first[number % LAUNCHES]
            file.write(frame.tobytes())
            file.write(data)
            file.write(bytes(-(frame.nbytes + len(data)) % 64))
    writer.write()
    found = {}
    for name, column in columns.items():
        values = np.concatenate(column)
        # The same where all of them come equally often.
        middle = (len(values) - 1) // 2
        found[name] = [int(values.min()), int(np.partition(values, middle)[middle]), int(values.max())]
    return found


def aggregates(path: Path) -> tuple[float, Json]:
    """Time the aggregation (least, greatest and sum) of three fields over all records of a trace; return seconds, and
    the results.

    Seconds of processor time.
    """
    (kernel,) = Trace(path).kernels
    stacks = list(kernel.stacks())
    before = time.process_time()
    ranges = aggregate.ranges_of((stack["BlockSched"].tiles() for stack in stacks), FIELDS)
    seconds = time.process_time() - before
    found = {name: [known.minimum, known.maximum, known.total] for name, known in ranges.fields.items()}
    return round(seconds, 6), found


def write_schedule(path: Path) -> None:
    """Write a trace of one launch of blocks of eight warps, eight blocks at once on each of 132 multiprocessors."""
    writer = TraceWriter(path)
    writer.kernel(1, "gemm", maps=[BLOCK_SCHED])
    random = np.random.default_rng(1)
    rows = np.zeros((PERFETTO_BLOCKS, WARPS), BLOCK_SCHED.dtype)
    turns = np.arange(PERFETTO_BLOCKS) // (132 * 8)
    begins = 10**9 + turns * 20_000 + random.integers(0, 3000, PERFETTO_BLOCKS)
    rows["start"] = begins[:, None] + random.integers(0, 300, rows.shape)
    rows["elapsed"] = random.integers(12_000, 20_000, rows.shape)
    rows["cuid"] = random.integers(0, 132, PERFETTO_BLOCKS)[:, None]
    regions = fill_regions([BLOCK_SCHED], WARPS, {"BlockSched": rows}, blocks=PERFETTO_BLOCKS)
    writer.launch(1, (PERFETTO_BLOCKS, 1, 1), (32 * WARPS, 1, 1), regions)
    writer.write()


def perfetto(path: Path) -> Json:
    """Run ``neutrino-report --perfetto`` on a trace; return seconds of processor time, the most memory held in bytes,
    and the numbers of slices and bytes that were written."""
    out = path.with_suffix(".pftrace")
    seconds, most, text = run_report("--perfetto", str(out), str(path))
    found = re.search(r"([\d,]+) slices", text)
    size = out.stat().st_size
    out.unlink()
    slices = int(found[1].replace(",", "")) if found else 0
    return {"cpu_seconds": seconds, "anonymous_bytes": most, "slices": slices, "bytes": size}


def report(path: Path) -> Json:
    """Run ``neutrino-report`` on a trace; return seconds of processor time, the most memory held, and what it says of
    each field.

    Memory: bytes that are no file's. Raises SystemExit when it fails.
    """
    seconds, most, text = run_report("--json", str(path))
    (document,) = json.loads(text)["traces"]
    rows = document["kernels"][0]["maps"][0]["fields"]
    fields = {row["name"]: [row["min"], row["median"], row["max"]] for row in rows}
    return {"cpu_seconds": seconds, "anonymous_bytes": most, "fields": fields}


def run_report(*arguments: str) -> tuple[float, int, str]:
    """Run ``neutrino-report``; return seconds of processor time, the most bytes held that are no file's, and its
    output.

    Raises SystemExit when it fails.
    """
    command = [sys.executable, "-m", "neutrino.cli.report_start", *arguments]
    # Compiled modules are kept, as those of an installed package are.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    most = 0
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, cwd=ROOT, env=env)
        done, status, usage = 0, 0, None
        while not done:
            try:
                text = Path(f"/proc/{process.pid}/status").read_text()
            except OSError:
                text = ""
            most = max([most, *(int(word) << 10 for word in re.findall(r"RssAnon:\s+(\d+) kB", text))])
            time.sleep(0.001)
            done, status, usage = os.wait4(process.pid, os.WNOHANG)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode or usage is None:
            raise SystemExit(f"{command}: exit status {process.returncode}")
        output.seek(0)
        return round(usage.ru_utime + usage.ru_stime, 6), most, output.read().decode()


def record() -> Json:
    """Write traces, and time aggregates and reports on them; return the raw samples, round by round.

    Raises SystemExit when the library of aggregates is not built.
    """
    library: Callable[[], Any] = aggregate._library
    if library() is None:
        raise SystemExit("the library is not built: python -m neutrino.tracing.build")
    results: Json = {
        **made_of("reading"), "machine": machine(), "python": platform.python_version(), "numpy": np.__version__,
        "sizes": SIZES, "expected": {}, "c": [], "numpy_alone": [], **{name: [] for name in REPORTS},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        _measure(Path(name), results, library)
    return results


def _measure(folder: Path, results: Json, library: Callable[[], Any]) -> None:
    """Write the traces into a folder, and add what reading them takes to the results. library: loads the one in C."""
    results["expected"]["fast"] = write_trace(folder / "fast", SIZES["fast"])
    for way, key in (("c", "c"), ("numpy", "numpy_alone")):
        aggregate._library = library if way == "c" else lambda: None  # type: ignore[assignment]
        aggregates(folder / "fast")
        samples = [aggregates(folder / "fast") for _ in range(ROUNDS[way])]
        results[key] = [seconds for seconds, _ in samples]
        results["expected"][f"aggregates by {way}"] = samples[0][1]
    aggregate._library = library  # type: ignore[assignment]
    for name in REPORTS:
        if name != "fast":
            results["expected"][name] = write_trace(folder / name, SIZES[name])
        report(folder / name)
        results[name] = [report(folder / name) for _ in range(ROUNDS[name])]
        shutil.rmtree(folder / name)
    write_schedule(folder / "schedule")
    perfetto(folder / "schedule")
    results["perfetto"] = [perfetto(folder / "schedule") for _ in range(PERFETTO_ROUNDS)]


def machine() -> str:
    """Return the name of the processor and how many there are."""
    names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} processors"


def speeds(results: Json) -> dict[str, float]:
    """Return how fast records are aggregated by the C library and by NumPy alone: GB a second of processor time, in the
    best round."""
    return {
        way: results["sizes"]["fast"] / 1e9 / min(results[key]) for way, key in (("c", "c"), ("numpy", "numpy_alone"))
    }


def seconds_of(results: Json, name: str) -> float:
    """Return the processor time that a report on a trace takes, in the best round."""
    return float(min(sample["cpu_seconds"] for sample in results[name]))


def verdicts(results: Json) -> list[str]:
    """Return which bounds on speed, memory and right figures the recorded results break, a line each; nothing when all
    are met."""
    wrong = []
    samples = {"c": results["c"], "numpy": results["numpy_alone"], **{name: results[name] for name in REPORTS}}
    # Aggregates and reports of the same trace.
    wrong += [f"{name}: fewer rounds than {least}" for name, least in ROUNDS.items() if len(samples[name]) < least]
    sizes = results["sizes"]
    wrong += [f"{name}: {sizes.get(name)} bytes, not {size}" for name, size in SIZES.items() if sizes.get(name) != size]
    if wrong:
        return wrong
    for way, speed in speeds(results).items():
        if speed < LEAST_SPEED[way]:
            wrong.append(f"{way}: {speed:.2f} GB/s, at least {LEAST_SPEED[way]} are needed")
    for name in REPORTS:
        for sample in results[name]:
            if sample["fields"] != results["expected"][name] or len(sample["fields"]) != len(FIELDS):
                wrong.append(f"{name}: the report says {sample['fields']}")
            if not 0 < sample["anonymous_bytes"] <= MOST_BYTES:
                wrong.append(f"{name}: {sample['anonymous_bytes']} bytes of anonymous memory, at most {MOST_BYTES}")
    if (seconds := min(sample["cpu_seconds"] for sample in results["small"])) > MOST_SECONDS:
        wrong.append(f"small: a report takes {seconds} s of processor time, at most {MOST_SECONDS}")
    if (seconds := seconds_of(results, "huge")) > MOST_HUGE_SECONDS:
        wrong.append(f"huge: a report takes {seconds} s of processor time, at most {MOST_HUGE_SECONDS}")
    small = seconds_of(results, "small")
    each = [(seconds_of(results, name) - small) / SIZES[name] for name in ("large", "huge")]
    if not each[1] <= MOST_GROWTH * each[0]:
        wrong.append(f"huge: {each[1] / each[0]:.2f} times as long for each byte as large, at most {MOST_GROWTH}")
    wrong += _judge_perfetto(results["perfetto"])
    by_way = [results["expected"][f"aggregates by {way}"] for way in LEAST_SPEED]
    if by_way[0] != by_way[1] or {name: row[:2] for name, row in by_way[0].items()} != {
        name: [row[0], row[2]] for name, row in results["expected"]["fast"].items()
    }:
        wrong.append("the nine aggregates differ")
    return wrong


def _judge_perfetto(samples: Json) -> list[str]:
    """Return which bounds the writing for Perfetto breaks, a line each."""
    wrong = []
    expected = 1 + PERFETTO_BLOCKS * (1 + WARPS)
    others = [sample["slices"] for sample in samples if sample["slices"] != expected]
    wrong += [f"perfetto: {slices} slices, not {expected}" for slices in others]
    most = max((sample["anonymous_bytes"] for sample in samples), default=0)
    if len(samples) < PERFETTO_ROUNDS or not 0 < most <= MOST_BYTES:
        wrong.append(f"perfetto: {len(samples)} rounds, {most} bytes of anonymous memory, at most {MOST_BYTES}")
    elif (speed := expected / min(sample["cpu_seconds"] for sample in samples)) < LEAST_SLICES:
        wrong.append(f"perfetto: {speed:.0f} slices a second of processor time, at least {LEAST_SLICES:.0f}")
    return wrong


def judge(results: Json) -> list[Verdict]:
    """Return a verdict on all that was recorded."""
    wrong = verdicts(results)
    return [Verdict("reading", not wrong, "; ".join(wrong) or "all bounds are met")]


def table(results: Json) -> str:
    """Return the figures as a table for people: speed of aggregates, time and memory of reports."""
    found = speeds(results)
    lines = [f"{results['machine']}, NumPy {results['numpy']}"]
    for way, title in (("c", "C"), ("numpy", "NumPy alone")):
        lines.append(f"nine aggregates, {title}: {found[way]:.1f} GB/s")
    titles = {"small": "4 KiB", "fast": "256 MiB", "big": "1 GiB", "large": "4 GiB", "huge": "10 GiB"}
    for name, title in titles.items():
        seconds = min(sample["cpu_seconds"] for sample in results[name])
        most = max(sample["anonymous_bytes"] for sample in results[name])
        lines.append(f"neutrino-report, {title}: {seconds:.2f} s, {most >> 20} MiB of anonymous memory")
    seconds = min(sample["cpu_seconds"] for sample in results["perfetto"])
    most = max(sample["anonymous_bytes"] for sample in results["perfetto"])
    slices, size = results["perfetto"][0]["slices"], results["perfetto"][0]["bytes"]
    lines.append(f"--perfetto: {slices / seconds / 1e6:.1f} million slices a second, {size / slices:.0f} bytes each, "
                 f"{most >> 20} MiB of anonymous memory")  # fmt: skip
    return "\n".join(lines)


main = Bench(
    "reading", RESULTS, ("sizes", "expected", "c", "numpy_alone", *REPORTS, "perfetto"),
    lambda options, neutrino: record(), judge, table,
).main  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
