"""The part of a report on ``neutrino --benchmark``: how long launches took with and without the probes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from neutrino.abi.reasons import REASON_TEXT
from neutrino.tracing.benchmark import CONFIDENCE, Benchmark, BenchmarkGroup
from neutrino.tracing.shown.model import Cell, Column, Kind, Line, Name, Section, Table, counted

_MOST_GROUPS = 20
"""Groups that are shown without --all."""


def shown_benchmark(found: Benchmark, names: Mapping[int, str], *, show_all: bool = False) -> Section:
    """Return the section on what was timed: a table of groups, those with most time first, how much slower all are
    together, and what is left out.

    names: of kernels, by id. show_all: also of groups beyond the first ones.
    """
    shown = found.groups if show_all else found.groups[:_MOST_GROUPS]
    title = f"Benchmark: times on the GPU without and with the probes, intervals of {CONFIDENCE:.0%}"
    left_out = len(found.groups) - len(shown)
    more = Line.of(f"and {_groups(left_out)} more (neutrino-report --all)", indent=1) if left_out else None
    columns, rows = _rows(found, shown, names)
    table = Table("benchmark", columns, rows, 1, left_out=left_out, more=more)
    return Section("benchmark", Line.of(title), (table, *_lines(found)))


def _lines(found: Benchmark) -> Iterator[Line]:
    """Yield the lines below the table."""
    if found.slowdown is None:
        yield Line.of("overall: no group has enough launches", indent=1)
    else:
        launches = sum(group.launches for group in found.compared)
        yield Line.of(
            f"overall: {found.slowdown:.3f} times as long, by the medians of {_groups(len(found.compared))} "
            f"and their {launches:,} launches",
            indent=1,
        )
    few = [group for group in found.groups if group.ratio is None]
    if few:
        launches = sum(group.launches for group in few)
        yield Line.of(
            f"left out: {_groups(len(few))} of too few launches or without times, {launches:,} launches", indent=1
        )
    if found.untimed:
        yield Line.of(f"left out: {found.untimed:,} launches for which no events were free", indent=1)
    for reason, count in found.not_probed.items():
        yield Line.of(
            f"left out: {count:,} launches that cannot be probed: {reason.word} ({REASON_TEXT[reason]})", indent=1
        )
    overlapped = sum(group.overlapped for group in found.groups)
    if overlapped:
        yield Line.of(
            f"{overlapped:,} launches ran beside others in other streams, which both slow each other down", indent=1
        )
    if any(group.is_short for group in found.compared):
        yield Line.of(
            f"short: below 20 times the {found.floor_ns / 1000:.1f} µs that two events show with nothing between "
            "them, which is in both times; the ratio of the kernel alone is greater",
            indent=1,
        )


def _rows(
    found: Benchmark, shown: tuple[BenchmarkGroup, ...], names: Mapping[int, str]
) -> tuple[tuple[Column, ...], tuple[tuple[Cell, ...], ...]]:
    """Return the columns of the table, and a row for each group of launches that is shown.

    names: of kernels, by id.
    """
    has_shared = any(group.shared for group in found.groups)
    has_devices = len({group.device for group in found.groups}) > 1
    columns = [Column("kernel", Kind.NAME), Column("grid", Kind.TEXT), Column("block", Kind.TEXT)]
    columns += [Column("shared", unit="bytes")] if has_shared else []
    columns += [Column("device")] if has_devices else []
    columns += [Column("launches"), Column("original µs", unit="µs"), Column("probed µs", unit="µs"), Column("ratio")]
    columns += [Column("interval", Kind.TEXT), Column("verdict", Kind.TEXT)]
    rows = []
    for group in shown:
        ratio = group.ratio
        rows.append((
            Cell.named(_name(group, names)), Cell(_extent(group, group.grid)), Cell(_extent(group, group.block)),
            *([Cell(f"{group.shared:,}", group.shared)] if has_shared else []),
            *([Cell(str(group.device), group.device)] if has_devices else []),
            Cell(f"{len(group.originals):,} + {len(group.probed):,}", len(group.originals) + len(group.probed)),
            *(
                Cell("") if math.isnan(median) else Cell(f"{median / 1000:,.2f}", median / 1000)
                for median in group.medians_ns
            ),
            Cell("") if ratio is None else Cell(f"{ratio.ratio:.3f}", ratio.ratio),
            Cell("" if ratio is None else f"{ratio.low:.3f} to {ratio.high:.3f}"),
            Cell(group.verdict),
        ))  # fmt: skip
    return tuple(columns), tuple(rows)


def _name(group: BenchmarkGroup, names: Mapping[int, str]) -> Name:
    """What launches of a group are of: the kernel's name, or a graph. names: of kernels, by id."""
    if group.kernel is None:
        return Name(f"replays of graph {group.graph}")
    # A process that was killed may not have written the kernel's event.
    return Name(names.get(group.kernel, f"kernel {group.kernel}"), group.kernel)


def _extent(group: BenchmarkGroup, extent: tuple[int, ...]) -> str:
    """A grid or block as text, ``64x2`` or ``128``; "" for a group of graph replays, which has none."""
    if group.graph:
        return ""
    while len(extent) > 1 and extent[-1] == 1:
        extent = extent[:-1]
    return "x".join(map(str, extent))


def _groups(number: int) -> str:
    """A number of groups in words."""
    return counted(number, "group", "groups")
