"""What do pages of large traces cost, and how fast are accesses read? ``python -m bench.pictures record`` or ``judge``.

A trace of a launch of a million blocks is written, and ``neutrino-report --html`` makes its page. Logs of 10⁸ accesses
are made in memory, as the hook would leave them, in three patterns, and read by ``neutrino.tracing.accesses``, which
decodes them. Processor time, since wall time depends on who else works; of memory what is no page of a file.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.reading import MOST_BYTES, machine, run_report
from bench.recorded import judge_files, say_verdicts
from bench.tree import made_of
from neutrino.abi.levels import Level
from neutrino.maps.declaration import Map
from neutrino.maps.log_reading import LOG_CONTROL, GroupLayout
from neutrino.tracing.accesses import read_accesses
from neutrino.tracing.views import Geometry, MapView
from neutrino.verification import load_probes
from tests.tracing.trace_writer import BLOCK_SCHED, TraceWriter, fill_regions

Json = Any
ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "pictures.json"
BLOCKS, MULTIPROCESSORS, RESIDENT = 1_000_000, 132, 8
PAGE_ROUNDS, ACCESS_ROUNDS = 3, 3
MOST_PAGE_SECONDS, MOST_ACCESS_SECONDS = 5.0, 3.0
MOST_PAGE_BYTES = 8 << 20
WANTED_PAGE_BYTES = 6 << 20
ACCESSES = 100_000_000
LANES, CHUNK = 32, 4096
PATTERNS = ("linear", "stride", "random")
_SITES = 8
_STRIDES = {"linear": 4, "stride": 256}
_WARPS = 1 << 16
_BASE = 0x7F00_0000_0000
_SPAN = 1 << 30
"""Bytes of memory that the accesses are in."""


def write_schedule(path: Path) -> None:
    """Write a trace of one launch of a million blocks with warps of their own, as many at once as fit."""
    writer = TraceWriter(path)
    writer.kernel(1, "gemm", maps=[BLOCK_SCHED])
    random = np.random.default_rng(1)
    rows = np.zeros((BLOCKS, 1), BLOCK_SCHED.dtype)
    turns = np.arange(BLOCKS) // (MULTIPROCESSORS * RESIDENT)
    begins = 10**9 + turns * 20_000 + random.integers(0, 3000, BLOCKS)
    rows["start"] = begins[:, None]
    rows["elapsed"] = random.integers(12_000, 17_000, rows.shape)
    rows["cuid"] = (np.arange(BLOCKS) % MULTIPROCESSORS)[:, None]
    regions = fill_regions([BLOCK_SCHED], 1, {"BlockSched": rows}, blocks=BLOCKS)
    writer.launch(1, (BLOCKS, 1, 1), (LANES, 1, 1), regions)
    writer.write()


def page(path: Path) -> Json:
    """Make the page of a trace; return seconds of processor time, the most memory held, and the page's size.

    Memory and size: in bytes.
    """
    out = path.with_suffix(".html")
    seconds, most, _ = run_report("--html", str(out), str(path))
    size = out.stat().st_size
    out.unlink()
    return {"cpu_seconds": seconds, "anonymous_bytes": most, "bytes": size}


def log_of(entry: Map, pattern: str) -> MapView:
    """Return a log of a launch's accesses, as groups of the lanes of a warp.

    entry: the map ``GlobalAccesses`` of ``dmat``. pattern: of ``PATTERNS``.
    """
    layout = GroupLayout.of(entry.fields, entry.size)
    assert layout is not None
    area = 8 * LANES if pattern == "random" else 0
    size = layout.head + area
    per = (CHUNK - 16) // size
    chunks = -(-ACCESSES // LANES // per)
    region = np.zeros(LOG_CONTROL + chunks * CHUNK, np.uint8)
    region[:8].view("<u8")[0] = chunks * CHUNK // 32
    all_chunks = region[LOG_CONTROL:].reshape(chunks, CHUNK)
    heads = all_chunks[:, :16].view("<u4")
    heads[:, 0], heads[:, 1], heads[:, 3] = np.arange(chunks) % _WARPS, layout.shape, CHUNK // 32
    groups = all_chunks[:, 16 : 16 + per * size].reshape(chunks, per, size)

    def put(offset: int, values: Any, kind: str) -> None:
        """Write a value into each group."""
        raw = np.ascontiguousarray(np.broadcast_to(values, (chunks, per)).astype(kind))[..., None].view(np.uint8)
        groups[:, :, offset : offset + raw.shape[-1]] = raw

    numbers = np.arange(chunks * per).reshape(chunks, per)
    offsets: Any = entry.dtype.fields
    put(0, 0xFFFFFFFF, "<u4")
    put(4, 3 if area else 0, "<u4")
    put(8, numbers[0], "<u4")
    put(layout.strides[0], _STRIDES.get(pattern, 0), "<i4")
    put(layout.record + offsets["address"][1], _BASE + numbers * LANES * 4 % _SPAN, "<u8")
    put(layout.record + offsets["clock"][1], numbers // 100, "<u8")
    put(layout.record + offsets["site"][1], numbers % _SITES, "<u4")
    put(layout.record + offsets["bytes"][1], 4, "<u2")
    if area:
        random = np.random.default_rng(2)
        for first in range(0, chunks, 1 << 12):
            part = groups[first : first + (1 << 12)]
            values = _BASE + random.integers(0, _SPAN // 4, (*part.shape[:2], LANES)).astype("<u8") * 4
            part[:, :, layout.head :] = values.view(np.uint8).reshape(*part.shape[:2], area)
    return MapView(entry, Geometry(_WARPS // 8, 256, LANES), region, None)


def accesses(view: MapView) -> Json:
    """Time the reading of a log; return seconds of processor time, how many accesses there are, and the pattern."""
    before = time.process_time()
    facts = read_accesses(view, _SITES)
    seconds = time.process_time() - before
    return {
        "cpu_seconds": round(seconds, 6), "accesses": facts.accesses, "pattern": facts.sites[0].pattern.value,
        "sectors": sum(site.sectors for site in facts.sites),
        "executions": sum(site.executions for site in facts.sites),
    }  # fmt: skip


def record(folder: Path) -> Json:
    """Make pages, and read logs; return the raw samples, round by round. folder: empty, for the traces."""
    entry = next(entry for entry in load_probes(["dmat"]).maps if entry.name == "GlobalAccesses")
    assert entry.level is Level.THREAD
    results: Json = {
        **made_of("pictures"), "machine": machine(), "python": platform.python_version(), "numpy": np.__version__,
        "blocks": BLOCKS, "accesses": ACCESSES,
    }  # fmt: skip
    write_schedule(folder / "schedule")
    page(folder / "schedule")
    results["page"] = [page(folder / "schedule") for _ in range(PAGE_ROUNDS)]
    for pattern in PATTERNS:
        view = log_of(entry, pattern)
        results[pattern] = [accesses(view) for _ in range(ACCESS_ROUNDS)]
        del view
    return results


_SECTORS = {"linear": 4, "stride": 32}
"""That each execution touches; of random ones it is fewer than 32 only where two lanes meet."""


def judge(results: Json) -> list[str]:
    """Return which bounds the recorded results break, a line each; nothing when all are met."""
    wrong = []
    if results["blocks"] != BLOCKS or results["accesses"] != ACCESSES:
        wrong.append(f"{results['blocks']} blocks and {results['accesses']} accesses, not {BLOCKS} and {ACCESSES}")
    samples = results["page"]
    if len(samples) < PAGE_ROUNDS:
        return [*wrong, f"page: {len(samples)} rounds"]
    if (seconds := min(sample["cpu_seconds"] for sample in samples)) > MOST_PAGE_SECONDS:
        wrong.append(f"page: {seconds} s of processor time, at most {MOST_PAGE_SECONDS}")
    if (most := max(sample["anonymous_bytes"] for sample in samples)) > MOST_BYTES or not most:
        wrong.append(f"page: {most} bytes of anonymous memory, at most {MOST_BYTES}")
    if not 0 < max(sample["bytes"] for sample in samples) <= MOST_PAGE_BYTES:
        wrong.append(f"page: {samples[0]['bytes']} bytes, at most {MOST_PAGE_BYTES}")
    for pattern in PATTERNS:
        samples = results[pattern]
        if len(samples) < ACCESS_ROUNDS:
            wrong.append(f"{pattern}: {len(samples)} rounds")
            continue
        for sample in samples:
            each = sample["sectors"] / max(sample["executions"], 1)
            is_right = each == _SECTORS[pattern] if pattern in _SECTORS else 31.9 < each <= 32
            if not ACCESSES <= sample["accesses"] < ACCESSES * 1.01 or sample["pattern"] != pattern or not is_right:
                wrong.append(f"{pattern}: {sample}")
        seconds = min(sample["cpu_seconds"] for sample in samples)
        if seconds > MOST_ACCESS_SECONDS:
            wrong.append(f"{pattern}: {seconds} s of processor time, at most {MOST_ACCESS_SECONDS}")
    return wrong


def table(results: Json) -> str:
    """Return the figures as a table for people."""
    pages = results["page"]
    seconds = min(sample["cpu_seconds"] for sample in pages)
    most = max(sample["anonymous_bytes"] for sample in pages)
    lines = [
        f"{results['machine']}, NumPy {results['numpy']}",
        f"--html of {results['blocks']:,} blocks: {seconds:.2f} s, {pages[0]['bytes'] / 1e6:.1f} MB, {most >> 20} MiB "
        "of anonymous memory",
    ]  # fmt: skip
    for pattern in PATTERNS:
        seconds = min(sample["cpu_seconds"] for sample in results[pattern])
        lines.append(f"{results[pattern][0]['accesses']:,} accesses, {pattern}: {seconds:.2f} s")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Record, if asked to, and print figures and unmet bounds.

    Returns the exit status: 1 when there are any, 2 without results.
    """
    parser = argparse.ArgumentParser(prog="python -m bench.pictures")
    parser.add_argument("action", choices=("record", "judge"))
    parser.add_argument("--out", type=Path, default=RESULTS, help="the raw samples, as JSON")
    options = parser.parse_args(arguments)
    if options.action == "record":
        with tempfile.TemporaryDirectory() as folder:
            results = record(Path(folder))
        options.out.write_text(json.dumps(results, separators=(",", ":")).replace('{"cpu', '\n{"cpu') + "\n")
    keys = ("blocks", "accesses", "page", *PATTERNS)
    return judge_files(
        [options.out], "python -m bench.pictures record", keys, lambda results: say_verdicts(results, table, judge)
    )


if __name__ == "__main__":
    sys.exit(main())
