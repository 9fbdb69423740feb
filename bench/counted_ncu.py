"""Nsight Compute: how it is run, and what its CSV pages say of each kernel launch."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.counted_groups import machine_opcode

METRICS = (
    "smsp__inst_executed.sum",
    "smsp__thread_inst_executed.sum",
    "smsp__thread_inst_executed_pred_on.sum",
    *(f"sm__sass_data_bytes_mem_global_op_{kind}.sum" for kind in (
        "ld", "st", "atom", "red", "ldgsts", "ldgsts_cache_access", "ldgsts_cache_bypass")),
    *(f"sm__ops_path_tensor_src_{kind}.sum" for kind in (
        "fp16", "bf16_dst_fp32", "tf32_dst_fp32", "fp64", "fp8", "int8", "int1")),
    "sm__inst_executed_pipe_tensor.sum",
    *(f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{kind}.sum" for kind in ("ld", "st")),
    *(f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{kind}.sum" for kind in ("ld", "st")),
    "smsp__sass_branch_targets.sum",
    "smsp__sass_branch_targets_threads_divergent.sum",
    "smsp__sass_inst_executed_op_branch.sum",
    "sm__sass_inst_executed_op_tma_ld.sum",
    "sm__sass_inst_executed_op_tma_st.sum",
)  # fmt: skip
"""Without ``.sum``, as results have them; see the section "Metrics" of ``ncu --query-metrics``."""

_NUMBER = re.compile(r"-?[\d,]+(?:\.\d+)?")
_SHARED = {"LDS": "load", "STS": "store", "LDSM": "load_matrix", "STSM": "store_matrix"}
# Columns of the source page, by how their titles begin: newer versions add to them.
_WARPS = "Instructions Executed"
_THREADS = "Thread Instructions Executed"
_ON = "Predicated-On Thread Instructions Executed"
_WAVEFRONTS = "L1 Wavefronts Shared"
_IDEAL = "L1 Wavefronts Shared Ideal"
_SIZE = "Access Size"


@dataclass
class Profile:
    """One launch. metrics: without ``.sum``; None where the chip has no such number.

    machine: opcode → executions by warps, by threads, by threads with the predicate on. shared: kind of access →
    instructions of warps, wavefronts, ideal wavefronts. accessed: opcode → bytes of threads with the predicate on.
    rows: each machine instruction in order of address: its text, and executions as in ``machine``.
    """

    kernel: str
    metrics: dict[str, int | None] = field(default_factory=dict)
    machine: dict[str, list[int]] = field(default_factory=dict)
    shared: dict[str, list[int]] = field(default_factory=dict)
    accessed: dict[str, int] = field(default_factory=dict)
    rows: list[tuple[str, int, int, int]] = field(default_factory=list)


def record_command(ncu: str, report: Path, program: Sequence[str], kernels: str = "") -> list[str]:
    """Profiles every launch, or of kernels whose mangled name the expression finds, into ``report``.ncu-rep."""
    chosen = ["--kernel-name-base", "mangled", "-k", f"regex:{kernels}"] if kernels else []
    return [ncu, "--target-processes", "all", "--clock-control", "none", "--cache-control", "none", *chosen,
            "--section", "SourceCounters", "--metrics", ",".join(METRICS), "-f", "-o", str(report),
            *program]  # fmt: skip


def page_command(ncu: str, report: Path, page: str) -> list[str]:
    """Prints a page of ``report``.ncu-rep: ``raw`` or ``source``."""
    source = ["--print-source", "sass"] if page == "source" else ["--print-units", "base"]
    return [ncu, "-i", f"{report}.ncu-rep", "--page", page, "--csv", "--print-kernel-base", "mangled", *source]


def read(raw: str, source: str) -> list[Profile]:
    """The launches in order. Raises ValueError where the two pages do not tell of the same launches."""
    profiles = _raw(raw)
    pages = _once(list(_pages(source)), len(profiles))
    if [profile.kernel for profile in profiles] != [name for name, _ in pages]:
        found = [profile.kernel for profile in profiles], [name for name, _ in pages]
        raise ValueError(f"the pages differ: {found[0]} and {found[1]}")
    for profile, (_, rows) in zip(profiles, pages, strict=True):
        _add_rows(profile, rows)
    return profiles


def _csv_lines(text: str) -> Iterator[list[str]]:
    """The rows; what ncu and the program print between them begins with no quotation mark."""
    return csv.reader(line for line in text.splitlines() if line.startswith('"'))


def _number(text: str) -> int | None:
    match = _NUMBER.fullmatch(text.strip())
    return round(float(match[0].replace(",", ""))) if match else None


def _raw(text: str) -> list[Profile]:
    rows = list(_csv_lines(text))
    if not rows:
        raise ValueError(f"no CSV in {text[:300]!r}")
    title = rows[0]
    if "Metric Name" in title:
        return _long(title, rows[1:])
    names = title.index("Kernel Name")
    found = []
    for row in rows[1:]:
        # The second row holds units, and no launch.
        if not row[title.index("ID")].strip():
            continue
        columns = {name: _number(value) for name, value in zip(title, row, strict=False) if name in METRICS}
        found.append(Profile(row[names], {name.removesuffix(".sum"): columns.get(name) for name in METRICS}))
    return found


def _long(title: list[str], rows: list[list[str]]) -> list[Profile]:
    """One metric a row, as ncu prints while it profiles."""
    place = {name: title.index(name) for name in ("ID", "Kernel Name", "Metric Name", "Metric Value")}
    found: dict[str, Profile] = {}
    for row in rows:
        profile = found.setdefault(row[place["ID"]], Profile(row[place["Kernel Name"]]))
        name = row[place["Metric Name"]]
        if name in METRICS:
            profile.metrics[name.removesuffix(".sum")] = _number(row[place["Metric Value"]])
    return list(found.values())


def _pages(text: str) -> Iterator[tuple[str, list[dict[str, str]]]]:
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
    """ncu 2025.3 prints the page of a launch twice, one behind the other."""
    if len(pages) == 2 * launches and pages[::2] == pages[1::2]:
        return pages[::2]
    return pages


def _add_rows(profile: Profile, rows: list[dict[str, str]]) -> None:
    for row in rows:
        opcode, modifiers = machine_opcode(row["Source"])
        counts = [_number(row.get(title, "")) or 0 for title in (_WARPS, _THREADS, _ON)]
        profile.rows.append((row["Source"].strip(), counts[0], counts[1], counts[2]))
        if not opcode or not any(counts):
            continue
        kept = profile.machine.setdefault(opcode, [0, 0, 0])
        for place, count in enumerate(counts):
            kept[place] += count
        size = _number(row.get(_SIZE, ""))
        if size:
            profile.accessed[opcode] = profile.accessed.get(opcode, 0) + size // 8 * counts[2]
        kind = _SHARED.get(opcode)
        if kind is not None:
            wavefronts = profile.shared.setdefault(kind + _width(modifiers), [0, 0, 0])
            for place, count in enumerate((counts[0], _number(row.get(_WAVEFRONTS, "")) or 0,
                                           _number(row.get(_IDEAL, "")) or 0)):  # fmt: skip
                wavefronts[place] += count


def _width(modifiers: str) -> str:
    """``_64`` or ``_128``, nothing for 32 bits and less."""
    match = re.search(r"\.(64|128)\b", modifiers)
    return f"_{match[1]}" if match else ""
