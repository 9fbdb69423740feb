"""``neutrino-report A --diff B``: what changed between two traces beyond the noise of their launches."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

from neutrino.cli.kernel_names import demangled, shorten
from neutrino.cli.report_faults import report_faults
from neutrino.cli.report_messages import BAD_INPUT, DONE, fail, say
from neutrino.cli.streams import escaped, print_anything
from neutrino.cli.trace_choice import one_trace, print_lines
from neutrino.errors import NeutrinoError
from neutrino.probing.selection import Selection
from neutrino.tracing import Trace, TraceKernel
from neutrino.tracing.comparison import DOUBT, Change, Comparison, KernelComparison, Verdict, compare
from neutrino.tracing.launch_figures import Group, Part
from neutrino.tracing.roles import roles_of

SCHEMA = "neutrino-diff 1"
"""Name and version of the JSON document: the version rises when a member changes or goes."""
CHANGED = 1
"""Exit status if something changed beyond the threshold."""
_NAME_WIDTH = 100
_MOST_DETAILS = 12
"""Lines, ranges and roles of a kernel that are shown without ``--all``."""


def print_comparison(options: argparse.Namespace) -> int:
    """Compare two traces, and print what changed.

    Returns the exit status: 0 nothing changed beyond the threshold, 1 something did, 2 bad input, no kernel has data in
    both traces, or nothing could be judged.
    """
    print_anything()
    try:
        selection = Selection(tuple(options.kernel), tuple(options.filter))
        first = Trace(one_trace(options.trace, options.rank), is_tolerant=True)
        second = Trace(one_trace([options.diff], options.rank), is_tolerant=True)
        # Of the text: a fraction of binary digits is not 1.1 %.
        threshold = Fraction(str(options.threshold)) / 100
        comparison = compare(first, second, partial(_is_selected, selection), threshold, _roles)
    except NeutrinoError as error:
        return fail(error)
    if options.html or options.open or options.png or options.svg:
        # Imported here: most comparisons are no page.
        from neutrino.cli.report_page import write_comparison

        lines = []
        if status := write_comparison([first, second], comparison_document(comparison), options):
            return status
    elif options.json:
        lines = [json.dumps(comparison_document(comparison), indent=1)]
    else:
        lines = [escaped(line) for line in comparison_lines(comparison, show_all=options.all, is_wide=options.wide)]
    status = print_lines(lines) or report_faults([first, second])
    if status != DONE:
        return status
    if not comparison.kernels:
        say("no kernel has data in both traces")
        return BAD_INPUT
    if comparison.is_changed:
        return CHANGED
    if not any(map(_is_judged, comparison.kernels)):
        # A test does not pass because nothing was looked at.
        needed = f"; {comparison.launches_needed} launches of a kernel are needed in each trace"
        say(f"nothing was judged, so it is not known whether something changed{needed if _lacks(comparison) else ''}")
        return BAD_INPUT
    return DONE


def _lacks(comparison: Comparison) -> bool:
    """Whether a figure has too few launches to be judged."""
    return any(change.reason.startswith("too few") for kernel in comparison.kernels for change in kernel.changes)


def _times(comparison: Comparison) -> str:
    """Return of how many kernels the time got longer, and of how many shorter; "" if no time changed."""
    added = [kernel.time_added for kernel in comparison.changed]
    slower, faster = sum(time > 0 for time in added), sum(time < 0 for time in added)
    parts = [f"{slower:,} slower"] * bool(slower) + [f"{faster:,} faster"] * bool(faster)
    return f" ({', '.join(parts)})" if parts else ""


def _roles(kernel: TraceKernel) -> dict[int, str]:
    """Return the roles of a kernel's warps, by their numbers in the block."""
    return roles_of(kernel).names


def _is_selected(selection: Selection, kernel: TraceKernel) -> bool:
    """Whether the user's options -k and --filter select a kernel."""
    return selection.selects(kernel.name, demangled(kernel))


def comparison_lines(comparison: Comparison, *, show_all: bool = False, is_wide: bool = False) -> Iterator[str]:
    """Yield the lines of a report for people. show_all: also what did not change."""
    changed = comparison.changed
    judged = [kernel for kernel in comparison.kernels if _is_judged(kernel)]
    same = len(judged) - len(changed)
    counts = [f"{len(changed):,} changed{_times(comparison)}", f"{same:,} not"]
    if unknown := len(comparison.kernels) - len(judged):
        counts.append(f"{unknown:,} not judged")
    yield f"{comparison.first.path} → {comparison.second.path}"
    yield f"{_counted(len(comparison.kernels), 'kernel', 'kernels')} compared: {', '.join(counts)}"
    sure = ""
    if comparison.figures:
        number = _counted(comparison.figures, "interval", "intervals together")
        sure = f"; {number}, missing in {100 * DOUBT:g} % of comparisons at most (by ranks: docs/comparing.md)"
    threshold = float(100 * comparison.threshold)
    yield f"changed: differs by more than {threshold:g} % beyond the noise of the launches{sure}"
    if _lacks(comparison):
        yield f"not judged: figures with too few launches; {comparison.launches_needed} are needed in each trace"
    if comparison.common_shift is not None:
        yield (
            f"note: the times of all kernels differ by about {_percent(comparison.common_shift)}: this may be the "
            "GPU's clock, its power limit or other work on it, and not the program"
        )
    for kernel in changed:
        yield ""
        yield from _kernel_lines(kernel, show_all, is_wide)
    if show_all:
        for kernel in comparison.kernels:
            if not kernel.is_changed:
                yield ""
                yield from _kernel_lines(kernel, show_all, is_wide)
    for title, groups in (
        (f"only in {comparison.first.path}", comparison.only_first),
        (f"only in {comparison.second.path}", comparison.only_second),
        ("probed in one trace alone, and launched in both", comparison.not_seen),
    ):
        if groups:
            yield ""
            yield f"{title}:"
            yield from (f"  {_title(group, is_wide)}" for group in groups)


def _kernel_lines(kernel: KernelComparison, show_all: bool, is_wide: bool) -> Iterator[str]:
    """Yield the lines about one kernel."""
    yield _title(kernel.first, is_wide)
    facts = [f"{len(kernel.first.numbers):,} → {len(kernel.second.numbers):,} launches"]
    if kernel.code_differs is not None:
        facts.append("its code differs" if kernel.code_differs else "the same code")
    if kernel.first.geometry != kernel.second.geometry:
        facts.append(f"now {_geometry(kernel.second)}")
    yield f"  {'; '.join(facts)}"
    yield from (f"  note: {note}" for note in kernel.notes)
    shown = [change for change in kernel.changes if show_all or change.verdict is Verdict.CHANGED or change.key.is_time]
    yield from _table([(change.key.name, change) for change in shown], "  ")
    for part in (Part.LINE, Part.RANGE, Part.ROLE):
        details = [change for change in kernel.details if change.key.part is part]
        found = details if show_all else [change for change in details if change.verdict is Verdict.CHANGED]
        if not found:
            continue
        yield f"  by {part.value}"
        most = len(found) if show_all else _MOST_DETAILS
        yield from _table([(f"{change.key.where}, {change.key.name}", change) for change in found[:most]], "    ")
        if len(found) > most:
            yield f"    and {len(found) - most:,} more (--all)"


def _table(rows: Sequence[tuple[str, Change]], indent: str) -> Iterator[str]:
    """Yield the lines of a table of figures."""
    cells = [(name, f"{_number(c.first)} → {_number(c.second)} {c.unit}".rstrip(), _effect(c)) for name, c in rows]
    widths = [max((len(row[column]) for row in cells), default=0) for column in (0, 1)]
    for name, values, effect in cells:
        yield f"{indent}{name:<{widths[0]}}  {values:<{widths[1]}}  {effect}".rstrip()


def _effect(change: Change) -> str:
    """Return by how much a figure differs, with the interval, or why that is not known."""
    if change.verdict is Verdict.NOT_JUDGED:
        return f"not judged: {change.reason}"
    if change.interval is None:
        text = _percent(change.ratio)
        return f"{text}, without noise" if change.is_exact else text
    text = f"{_percent(change.ratio)} ({_percent(change.interval.low)} to {_percent(change.interval.high)})"
    return text if change.verdict is Verdict.CHANGED else f"{text}, within noise and threshold"


def _percent(ratio: float) -> str:
    """Return a ratio as the difference from 1, in percent."""
    if ratio == math.inf:
        return "from 0"
    return f"{100 * (ratio - 1):+.1f} %" if ratio < 10 else f"{ratio:.1f} times"


def _number(value: float) -> str:
    """Return a figure as it is printed."""
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.4g}"


def _is_judged(kernel: KernelComparison) -> bool:
    """Whether it is known of a figure whether it changed; of one that is not 0 in both traces, if others are unknown:
    that a kernel still has no atomics says nothing of it.
    """
    judged = [change for change in kernel.changes if change.verdict is not Verdict.NOT_JUDGED]
    if len(judged) == len(kernel.changes):
        return bool(judged)
    return any(change.first or change.second for change in judged)


def _title(group: Group, is_wide: bool) -> str:
    """Return a kernel's name and geometry."""
    name = demangled(group.kernel)
    return f"{name if is_wide else shorten(name, _NAME_WIDTH)}: {_geometry(group)}"


def _geometry(group: Group) -> str:
    """Return the grid, the block and the dynamic shared memory of a kernel's launches."""
    shared = f", shared {group.shared:,} B" if group.shared else ""
    return f"grid {'x'.join(map(str, group.grid))}, block {'x'.join(map(str, group.block))}{shared}"


def _counted(number: int, one: str, many: str) -> str:
    """Return a number with a noun. one: the singular, many: the plural."""
    return f"{number:,} {one if number == 1 else many}"


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as a JSON document. Numbers that are none in JSON are texts."""
    return {
        "schema": SCHEMA,
        "first": str(comparison.first.path),
        "second": str(comparison.second.path),
        "changed": comparison.is_changed,
        "threshold_percent": float(100 * comparison.threshold),
        "false_alarms_percent": 100 * DOUBT,
        "figures_judged_together": comparison.figures,
        "launches_needed": comparison.launches_needed,
        "common_shift": comparison.common_shift,
        "kernels": [_kernel_document(kernel) for kernel in comparison.kernels],
        "only_first": [_group_document(group) for group in comparison.only_first],
        "only_second": [_group_document(group) for group in comparison.only_second],
        "probed_in_one": [_group_document(group) for group in comparison.not_seen],
    }


def _kernel_document(kernel: KernelComparison) -> dict[str, Any]:
    """Return one kernel's object in the JSON document."""
    return {
        **_group_document(kernel.first),
        "launches_second": len(kernel.second.numbers),
        "grid_second": kernel.second.grid,
        "block_second": kernel.second.block,
        "changed": kernel.is_changed,
        "code_differs": kernel.code_differs,
        "notes": kernel.notes,
        "time_added": kernel.time_added,
        "figures": [_change_document(change) for change in kernel.changes],
        "details": [_change_document(change) for change in kernel.details],
    }


def _group_document(group: Group) -> dict[str, Any]:
    """Return a kernel's name, geometry and launches in the JSON document."""
    return {
        "name": group.kernel.name, "demangled": demangled(group.kernel), "grid": group.grid, "block": group.block,
        "shared": group.shared, "launches": len(group.numbers),
    }  # fmt: skip


def _change_document(change: Change) -> dict[str, Any]:
    """Return a figure's object in the JSON document."""
    interval = change.interval
    return {
        "of": change.key.part.value,
        "where": change.key.where,
        "name": change.key.name,
        "unit": change.unit,
        "first": _plain(change.first),
        "second": _plain(change.second),
        "ratio": _plain(change.ratio),
        "low": None if interval is None else _plain(interval.low),
        "high": None if interval is None else _plain(interval.high),
        "without_noise": change.is_exact,
        "verdict": change.verdict.value,
        "reason": change.reason,
    }


def _plain(value: float) -> float | str:
    """Return a number as JSON can have it: infinities and NaN as text."""
    return value if math.isfinite(value) else str(value)
