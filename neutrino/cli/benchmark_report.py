"""What ``neutrino --benchmark`` has measured, as text and for JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neutrino.cli.streams import escaped
from neutrino.cli.table import counted, table

if TYPE_CHECKING:
    from neutrino.tracing.benchmark import Benchmark, BenchmarkGroup
    from neutrino.tracing.trace import Trace

_NAME_WIDTH = 60
"""Characters of a kernel's name at the end of a run."""
_MOST_GROUPS = 20
"""Groups that are shown at the end of a run, and without --all."""


def benchmark_text(path: Path) -> str:
    """Return what is printed at the end of a run whose trace is at path. Damaged data are reported in the text."""
    # Imported here, in the process that reads the trace: a run itself does not need NumPy.
    from neutrino.cli.kernel_names import demangled, shorten
    from neutrino.errors import NeutrinoError
    from neutrino.tracing.trace import Trace

    try:
        trace = Trace(path)
        found = trace.benchmark
    except NeutrinoError as error:
        return f"neutrino: the benchmark cannot be read: {error}\n"
    if found is None:
        return "neutrino: nothing was timed: the driver has no cuEventElapsedTime\n"
    names = {kernel.id: shorten(demangled(kernel), _NAME_WIDTH) for kernel in trace.kernels}
    lines = benchmark_lines(found, names)
    return "\n" + "".join(f"{line}\n" for line in lines)


def readable_benchmark(trace: Trace) -> Benchmark | None:
    """Return what a run has measured; None if it has measured nothing, or if it is damaged, which the notes say."""
    from neutrino.errors import TraceError

    try:
        return trace.benchmark
    except TraceError:
        return None


def benchmark_lines(
    found: Benchmark, names: Mapping[int, str], *, show_all: bool = False
) -> Iterator[str]:
    """Yield lines: a table of groups, those with most time first, how much slower all are together, what is left out.

    names: of kernels as they are shown, by id. show_all: also of groups beyond the first ones.
    """
    from neutrino.abi.reasons import REASON_TEXT
    from neutrino.tracing.benchmark import CONFIDENCE

    yield f"Benchmark: times on the GPU without and with the probes, intervals of {CONFIDENCE:.0%}"
    shown = found.groups if show_all else found.groups[:_MOST_GROUPS]
    head, right, rows = _columns(found, shown, names)
    yield from map(escaped, table(head, rows, right))
    if len(found.groups) > len(shown):
        yield f"  and {counted(len(found.groups) - len(shown), 'group')} more (neutrino-report --all)"
    if found.slowdown is None:
        yield "  overall: no group has enough launches"
    else:
        launches = sum(group.launches for group in found.compared)
        yield (
            f"  overall: {found.slowdown:.3f} times as long, by the medians of {counted(len(found.compared), 'group')} "
            f"and their {launches:,} launches"
        )
    few = [group for group in found.groups if group.ratio is None]
    if few:
        launches = sum(group.launches for group in few)
        yield f"  left out: {counted(len(few), 'group')} of too few launches or without times, {launches:,} launches"
    if found.untimed:
        yield f"  left out: {found.untimed:,} launches for which no events were free"
    for reason, count in found.not_probed.items():
        yield f"  left out: {count:,} launches that cannot be probed: {reason.word} ({REASON_TEXT[reason]})"
    overlapped = sum(group.overlapped for group in found.groups)
    if overlapped:
        yield f"  {overlapped:,} launches ran beside others in other streams, which both slow each other down"
    if any(group.is_short for group in found.compared):
        yield (
            f"  short: below 20 times the {found.floor_ns / 1000:.1f} µs that two events show with nothing between "
            "them, which is in both times; the ratio of the kernel alone is greater"
        )


def _columns(
    found: Benchmark, shown: tuple[BenchmarkGroup, ...], names: Mapping[int, str]
) -> tuple[list[str], set[str], list[list[str]]]:
    """The head of the table, which columns are aligned right, and a row for each group of launches that is shown.

    names: of kernels, by id.
    """
    has_shared = any(group.shared for group in found.groups)
    has_devices = len({group.device for group in found.groups}) > 1
    head = ["kernel", "grid", "block", *(["shared"] if has_shared else []), *(["device"] if has_devices else [])]
    head += ["launches", "original µs", "probed µs", "ratio", "interval", "verdict"]
    rows = []
    for group in shown:
        ratio, medians = group.ratio, group.medians_ns
        rows.append([
            _name(group, names), _extent(group, group.grid), _extent(group, group.block),
            *([f"{group.shared:,}"] if has_shared else []), *([str(group.device)] if has_devices else []),
            f"{len(group.originals):,} + {len(group.probed):,}",
            *("" if math.isnan(median) else f"{median / 1000:,.2f}" for median in medians),
            "" if ratio is None else f"{ratio.ratio:.3f}",
            "" if ratio is None else f"{ratio.low:.3f} to {ratio.high:.3f}",
            group.verdict,
        ])  # fmt: skip
    return head, {"shared", "device", "launches", "original µs", "probed µs", "ratio"}, rows


def _name(group: BenchmarkGroup, names: Mapping[int, str]) -> str:
    """What launches of a group are of: the kernel's name, or a graph. names: of kernels, by id."""
    if group.kernel is None:
        return f"replays of graph {group.graph}"
    # A process that was killed may not have written the kernel's event.
    return names.get(group.kernel, f"kernel {group.kernel}")


def _extent(group: BenchmarkGroup, extent: tuple[int, ...]) -> str:
    """A grid or block as text, ``64x2`` or ``128``; "" for a group of graph replays, which has none."""
    if group.graph:
        return ""
    while len(extent) > 1 and extent[-1] == 1:
        extent = extent[:-1]
    return "x".join(map(str, extent))


def benchmark_document(found: Benchmark, trace: Trace) -> dict[str, Any]:
    """Return the object ``benchmark`` of ``neutrino-report --json``. Times are in nanoseconds. trace: has the names."""
    from neutrino.cli.kernel_names import demangled

    names = {kernel.id: (kernel.name, demangled(kernel)) for kernel in trace.kernels}
    return {
        "floor_ns": found.floor_ns,
        "untimed": found.untimed,
        "slowdown": found.slowdown,
        "groups": [
            {
                "kernel": group.kernel,
                **dict(zip(("name", "demangled"), names.get(group.kernel or 0, (None, None)), strict=True)),
                "graph": group.graph,
                "grid": list(group.grid),
                "block": list(group.block),
                "shared": group.shared,
                "device": group.device,
                "originals": len(group.originals),
                "probed": len(group.probed),
                "warm_up": group.warm_up,
                "overlapped": group.overlapped,
                "medians_ns": [None if math.isnan(median) else median for median in group.medians_ns],
                "ratio": group.ratio.ratio if group.ratio else None,
                "interval": [group.ratio.low, group.ratio.high] if group.ratio else None,
                "ratio_above_floor": group.ratio_above_floor,
                "short": group.is_short,
                "verdict": group.verdict,
            }
            for group in found.groups
        ],
    }
