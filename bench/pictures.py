"""What do pages of large traces cost, and how fast are accesses read? ``python -m bench.pictures record`` or ``judge``.

A trace of a launch of a million blocks is written, and ``neutrino-report --html`` makes its page. A page that has as
much as one may of each view draws them again in Chromium: wall time after a key (``tests/page/redraws.py``). Logs of
10⁸ accesses are made in memory, as the hook would leave them, in three patterns, and read by
``neutrino.tracing.accesses``, which decodes them. Processor time, since wall time depends on who else works; of memory
what is no page of a file. With ``--parts`` one part is recorded and the other kept in the file, as another machine may
have no browser.
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

from bench.command_line import Bench
from bench.reading import MOST_BYTES, machine, run_report
from bench.tree import made_of
from bench.verdicts import Verdict
from neutrino.abi.levels import Level
from neutrino.tracing.accesses import read_accesses
from neutrino.tracing.views import MapView
from neutrino.verification import load_probes
from tests.page.made_traces import BLOCKS, SITES, log_of, write_schedule
from tests.page.redraws import judge_redraws, record_redraws, redraw_table

Json = Any
ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "pictures.json"
PAGE_ROUNDS, ACCESS_ROUNDS = 3, 3
MOST_PAGE_SECONDS, MOST_ACCESS_SECONDS = 5.0, 3.0
MOST_PAGE_BYTES = 8 << 20
WANTED_PAGE_BYTES = 6 << 20
ACCESSES = 100_000_000
PATTERNS = ("linear", "stride", "random")
PARTS = ("redraws", "reading")


def page(path: Path) -> Json:
    """Make the page of a trace; return seconds of processor time, the most memory held, and the page's size.

    Memory and size: in bytes.
    """
    out = path.with_suffix(".html")
    seconds, most, _ = run_report("--html", str(out), str(path))
    size = out.stat().st_size
    out.unlink()
    return {"cpu_seconds": seconds, "anonymous_bytes": most, "bytes": size}


def accesses(view: MapView) -> Json:
    """Time the reading of a log; return seconds of processor time, how many accesses there are, and the pattern."""
    before = time.process_time()
    facts = read_accesses(view, SITES)
    seconds = time.process_time() - before
    return {
        "cpu_seconds": round(seconds, 6), "accesses": facts.accesses, "pattern": facts.sites[0].pattern.value,
        "sectors": sum(site.sectors for site in facts.sites),
        "executions": sum(site.executions for site in facts.sites),
    }  # fmt: skip


def record(options: argparse.Namespace, neutrino: Sequence[str]) -> Json:
    """Make pages, and read logs; return the raw samples, round by round, with the parts that were recorded before."""
    results: Json = json.loads(options.out.read_text()) if options.out.is_file() else {}
    if results.get("files") != made_of("pictures")["files"]:
        results = {}
    with tempfile.TemporaryDirectory() as folder:
        return {**results, **_recorded(Path(folder), options.parts)}


def _recorded(folder: Path, parts: Sequence[str]) -> Json:
    """Return the samples of some of PARTS. folder: empty, for the traces."""
    results: Json = {**made_of("pictures"), "blocks": BLOCKS, "accesses": ACCESSES}
    if "redraws" in parts:
        results["redraws"] = {**record_redraws(folder), "machine": machine()}
    if "reading" in parts:
        entry = next(entry for entry in load_probes(["dmat"]).maps if entry.name == "GlobalAccesses")
        assert entry.level is Level.THREAD
        results |= {"machine": machine(), "python": platform.python_version(), "numpy": np.__version__}
        write_schedule(folder / "schedule")
        page(folder / "schedule")
        results["page"] = [page(folder / "schedule") for _ in range(PAGE_ROUNDS)]
        for pattern in PATTERNS:
            view = log_of(entry, pattern, ACCESSES)
            results[pattern] = [accesses(view) for _ in range(ACCESS_ROUNDS)]
            del view
    return results


_SECTORS = {"linear": 4, "stride": 32}
"""That each execution touches; of random ones it is fewer than 32 only where two lanes meet."""


def verdicts(results: Json) -> list[str]:
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
    wrong.extend(judge_redraws(results["redraws"]))
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


def judge(results: Json) -> list[Verdict]:
    """Return a verdict on all that was recorded."""
    wrong = verdicts(results)
    return [Verdict("pictures", not wrong, "; ".join(wrong) or "all bounds are met")]


def table(results: Json) -> str:
    """Return the figures as a table for people."""
    pages = results["page"]
    seconds = min(sample["cpu_seconds"] for sample in pages)
    most = max(sample["anonymous_bytes"] for sample in pages)
    lines = [
        f"{results['machine']}, NumPy {results['numpy']}",
        f"--html of {results['blocks']:,} blocks: {seconds:.2f} s, {pages[0]['bytes'] / 1e6:.1f} MB, {most >> 20} MiB "
        "of anonymous memory",
        *redraw_table(results["redraws"]),
    ]  # fmt: skip
    for pattern in PATTERNS:
        seconds = min(sample["cpu_seconds"] for sample in results[pattern])
        lines.append(f"{results[pattern][0]['accesses']:,} accesses, {pattern}: {seconds:.2f} s")
    return "\n".join(lines)


def _add_parts(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--parts PART …`` to the command line."""
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="to record; all by default")


main = Bench(
    "pictures", RESULTS, ("blocks", "accesses", "page", "redraws", *PATTERNS), record, judge, table, add=_add_parts,
).main  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
