"""Nsight Compute: how it is run, and what its CSV pages say of each launch of a kernel."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Json = Any

METRICS = (
    "smsp__inst_executed.sum", "smsp__thread_inst_executed.sum",
    "sm__inst_executed.avg", "sm__inst_executed.max",
    "sm__cycles_active.avg", "sm__cycles_active.max", "sm__cycles_active.min",
    "lts__t_sectors.avg", "lts__t_sectors.max", "lts__t_sectors.sum",
    "dram__bytes.sum",
    "sm__inst_executed_pipe_tensor.sum",
    *(f"sm__sass_data_bytes_mem_global_op_{kind}.sum" for kind in ("ld", "st", "atom", "red", "ldgsts")),
    *(f"l1tex__t_{what}_pipe_lsu_mem_global_op_{kind}.sum" for what in ("requests", "sectors")
      for kind in ("ld", "st", "red")),
    "smsp__sass_branch_targets.sum", "smsp__sass_branch_targets_threads_divergent.sum",
)  # fmt: skip
"""Beside those of its full set; see the section "Metrics" of ``ncu --query-metrics``."""
_NUMBER = re.compile(r"-?[\d,]*\.?\d+(?:[eE][-+]?\d+)?")
_OPCODE = re.compile(r"(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)((?:\.[A-Za-z0-9_]+)*)")
_ALSO = re.compile(
    r"smsp__average_warps_issue_stalled_\w+_per_issue_active\.ratio"
    r"|sm__(inst_executed_)?pipe_\w+\.avg\.pct_of_peak_sustained_active"
    r"|(gpu__compute_memory|gpu__dram|sm_|l1tex_|lts_)_throughput\.avg\.pct_of_peak_sustained_elapsed"
    r"|sm__warps_active\.avg\.pct_of_peak_sustained_active|sm__maximum_warps_per_active_cycle_pct"
    r"|gpu__time_duration\.sum|launch__(waves_per_multiprocessor|registers_per_thread)"
    r"|smsp__thread_inst_executed_per_inst_executed\.ratio"
)
"""Metrics of the full set that are kept."""
_KEPT = re.compile(
    r"(Warp Stall Sampling \(All Samples\)|# Samples|stall_(barrier|long_sb|gmma|membar)|Instructions Executed"
    r"|L2 Theoretical Sectors Global( Ideal)?|L1 Wavefronts Shared( Ideal)?)"
)
"""Columns of the source page that are added up by opcode."""


def record_command(ncu: str, report: Path, program: Sequence[str], kernels: Sequence[str]) -> list[str]:
    """Return the command that profiles every launch of kernels of these names into ``report``.ncu-rep."""
    names = f"regex:^({'|'.join(kernels)})$"
    return [
        ncu, "--target-processes", "all", "--clock-control", "none", "--cache-control", "none", "-k", names,
        "--set", "full", "--metrics", ",".join(METRICS), "-f", "-o", str(report), *program,
    ]  # fmt: skip


def page_command(ncu: str, report: Path, page: str) -> list[str]:
    """Return the command that prints a page of ``report``.ncu-rep as CSV: ``raw`` or ``source``."""
    more = {"source": ["--print-source", "sass"], "raw": ["--print-units", "base"]}.get(page, [])
    return [ncu, "-i", f"{report}.ncu-rep", "--page", page, "--csv", *more]


def number(text: str) -> float | None:
    """Return a number as ncu prints it, with commas between thousands; None for a text that is none."""
    found = text.strip()
    return float(found.replace(",", "")) if _NUMBER.fullmatch(found) else None


def read(raw: str, source: str) -> list[Json]:
    """Return the launches in order: the kernel's name, its metrics by name, and what the source page has of each
    opcode of the machine code: opcode → title of a column → sum.

    Raises ValueError where the two pages do not tell of the same launches.
    """
    launches = list(_metrics(raw))
    pages = _once(list(_pages(source)), len(launches))
    if [launch["kernel"] for launch in launches] != [_base(name) for name, _ in pages]:
        raise ValueError(f"the pages differ: {[it['kernel'] for it in launches]} and {[name for name, _ in pages]}")
    return [{**launch, "opcodes": _by_opcode(rows)} for launch, (_, rows) in zip(launches, pages, strict=True)]


def _csv_lines(text: str) -> Iterator[list[str]]:
    """Yield the rows; what ncu and the program print between them begins with no quotation mark."""
    return csv.reader(line for line in text.splitlines() if line.startswith('"'))


def _base(name: str) -> str:
    """Return a kernel's name without its parameters."""
    return name.partition("(")[0].strip()


def _metrics(text: str) -> Iterator[Json]:
    """Yield the launches of the page ``raw``, with all columns that are numbers. Raises ValueError without any."""
    rows = list(_csv_lines(text))
    if not rows:
        raise ValueError(f"no CSV in {text[:300]!r}")
    title = rows[0]
    for row in rows[1:]:
        # The second row has units, and no launch.
        if not row[title.index("ID")].strip():
            continue
        named = zip(title, map(number, row), strict=False)
        metrics = {
            name: value for name, value in named if value is not None and (name in METRICS or _ALSO.fullmatch(name))
        }
        yield {"kernel": _base(row[title.index("Kernel Name")]), "metrics": metrics}


def _pages(text: str) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Yield for each launch of the page ``source`` the kernel's name and the rows of its machine instructions."""
    name: str | None = None
    title: list[str] = []
    rows: list[dict[str, str]] = []
    for row in _csv_lines(text):
        if row[0] == "Kernel Name":
            if name is not None:
                yield name, rows
            name, title, rows = row[1], [], []
        elif not title:
            title = row
        else:
            # Two columns may have one title: the first counts.
            rows.append(dict(reversed(list(zip(title, row, strict=False)))))
    if name is not None:
        yield name, rows


def _once(pages: list[tuple[str, list[dict[str, str]]]], launches: int) -> list[tuple[str, list[dict[str, str]]]]:
    """Return each page once: ncu 2025.3 prints that of a launch twice, one after the other."""
    if len(pages) == 2 * launches and pages[::2] == pages[1::2]:
        return pages[::2]
    return pages


def _by_opcode(rows: Sequence[Mapping[str, str]]) -> dict[str, dict[str, float]]:
    """Return the sums of columns by opcode; those that are 0 are left out.

    The opcode is the first part; of DEPBAR and the like, whose second part says what is waited for, it is both.
    """
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        match = _OPCODE.match(row.get("Source", "").strip())
        if match is None:
            continue
        opcode = match[1] + (match[2] if match[1] in {"WARPGROUP", "SYNCS"} else "")
        for title, text in row.items():
            value = number(text) if _KEPT.fullmatch(title) else None
            if value:
                sums = found.setdefault(opcode, {})
                sums[title] = sums.get(title, 0) + value
    return found
