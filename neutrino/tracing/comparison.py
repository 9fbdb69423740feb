"""Two traces of a program compared: what changed by more than the launches of each differ among themselves.

Figures of whole launches are judged first, those of all kernels together; lines, ranges and roles then only in kernels
that changed. A figure has changed if the whole interval of its ratio (``rank_interval``) is further from 1 than the
threshold. The intervals are so wide that all of them together miss with a probability of ``DOUBT`` at most: each has
its share of it (Bonferroni). So two traces of one build show a change with that probability, if their launches do not
depend on each other. Counts that were the same in every launch of a trace, in both, have no noise: they are compared
as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

import numpy as np

from neutrino.tracing.launch_figures import (
    WITHOUT_PROBES,
    Figure,
    Figures,
    Group,
    Key,
    details_of,
    figures_of,
    groups_of,
)
from neutrino.tracing.percent import percent
from neutrino.tracing.rank_interval import Interval, interval_of, rank_of_end, values_needed
from neutrino.tracing.trace import Trace, TraceKernel

DOUBT = 0.01
"""How often, at most, something of two traces of the same build is said to have changed."""
THRESHOLD = 0.02
"""By how much a figure may differ unless the user says otherwise: clocks of a GPU differ from run to run by as much."""


_ALIKE = 3
"""Kernels whose times must differ alike to say that all do."""


class Verdict(Enum):
    """What is known of a figure. SAME: nothing was shown to differ by more than the threshold."""

    CHANGED = "changed"
    SAME = "same"
    NOT_JUDGED = "not judged"


@dataclass(frozen=True)
class Change:
    """A figure in both traces. first, second: its medians over the launches, of which there are launches_first and
    launches_second. interval: of the ratio, None where it is not known. is_exact: it has no noise. reason: why it is
    not judged, "" where it is."""

    key: Key
    unit: str
    first: float
    second: float
    launches_first: int
    launches_second: int
    interval: Interval | None
    is_exact: bool
    verdict: Verdict
    reason: str = ""

    @property
    def ratio(self) -> float:
        """How many times as large the second one is; infinite where the first one is 0."""
        if self.interval is not None:
            return self.interval.ratio
        if self.first == self.second:
            return 1.0
        return self.second / self.first if self.first else math.inf

    @property
    def effect(self) -> float:
        """How far the ratio is from 1, the same for twice and for half."""
        return abs(math.log(self.ratio)) if 0 < self.ratio < math.inf else math.inf


@dataclass(frozen=True)
class KernelComparison:
    """One kernel with one geometry in both traces. changes: figures of its launches. details: of its lines, ranges and
    roles, if it changed. code_differs: None where a trace has no text of it. notes: what makes times not comparable."""

    first: Group
    second: Group
    changes: tuple[Change, ...]
    details: tuple[Change, ...]
    code_differs: bool | None
    notes: tuple[str, ...]

    @property
    def is_changed(self) -> bool:
        """Whether a figure of its launches has changed."""
        return any(change.verdict is Verdict.CHANGED for change in self.changes)

    @property
    def time(self) -> Change | None:
        """How long its launches took, without probes if that was measured; None if the traces do not tell."""
        times = [change for change in self.changes if change.key.is_time]
        return max(times, key=lambda change: change.key.name == WITHOUT_PROBES, default=None)

    @property
    def time_added(self) -> float:
        """How much longer, or shorter, all of its launches take, in the unit of its time; 0 if that did not change."""
        time = self.time
        if time is None or time.verdict is not Verdict.CHANGED:
            return 0.0
        return len(self.first.numbers) * time.first * (time.ratio - 1)


@dataclass(frozen=True)
class Comparison:
    """Two traces compared. kernels: those that changed first, those with most effect first among them. only_first,
    only_second: groups of kernels that the other trace has no launch of. figures: how many were judged by intervals.
    launches_needed: of each kernel in each trace, so that all figures can be judged."""

    first: Trace
    second: Trace
    threshold: Fraction
    kernels: tuple[KernelComparison, ...]
    only_first: tuple[Group, ...]
    only_second: tuple[Group, ...]
    not_seen: tuple[Group, ...]
    figures: int
    launches_needed: int

    @property
    def changed(self) -> tuple[KernelComparison, ...]:
        """The kernels that changed."""
        return tuple(kernel for kernel in self.kernels if kernel.is_changed)

    @property
    def common_shift(self) -> float | None:
        """The ratio by which the times of all kernels differ alike, which tells of the GPU rather than of the program.

        None if less than ``_ALIKE`` kernels have times that were judged, if no time changed, or if the interval of one
        does not hold the ratio.
        """
        times = [time for kernel in self.kernels if (time := kernel.time) is not None and time.interval is not None]
        if len(times) < _ALIKE or not any(time.verdict is Verdict.CHANGED for time in times):
            return None
        middle = float(np.median([time.ratio for time in times]))
        alike = all(time.interval and time.interval.low <= middle <= time.interval.high for time in times)
        return middle if alike else None

    @property
    def is_changed(self) -> bool:
        """Whether something changed beyond the threshold: a figure, or which kernels ran."""
        return bool(self.changed or self.only_first or self.only_second)


def compare(
    first: Trace,
    second: Trace,
    keep: Callable[[TraceKernel], bool] = lambda _: True,
    threshold: float | Fraction = THRESHOLD,
    roles: Callable[[TraceKernel], dict[int, str]] | None = None,
) -> Comparison:
    """Compare two traces. keep: which kernels. threshold: by how much a figure may differ, 0.02 for 2 %. roles: what
    the warps of a kernel's blocks do. Raises TraceError for damaged data."""
    pairs, only_first, only_second = _matched(groups_of(first, keep), groups_of(second, keep))
    measured = [(one, other, figures_of(one), figures_of(other)) for one, other in pairs]
    noisy = sum(_is_noisy(a[key], b[key]) for _, _, a, b in measured for key in a if key in b)
    doubt = DOUBT / max(noisy, 1)
    wanted = sum(_has_noise(a[key], b[key]) for _, _, a, b in measured for key in a if key in b)
    kernels = []
    for one, other, a, b in measured:
        changes = _changes(a, b, threshold, doubt)
        code = None if not one.code or not other.code else one.code != other.code
        kernels.append(KernelComparison(one, other, changes, (), code, tuple(_notes(one, other))))

    # Details of what changed, all of them together with the same doubt again.
    detailed = {
        index: (details_of(kernel.first, roles), details_of(kernel.second, roles))
        for index, kernel in enumerate(kernels) if kernel.is_changed
    }  # fmt: skip
    noisy_details = sum(_is_noisy(a[key], b[key]) for a, b in detailed.values() for key in a if key in b)
    for index, (a, b) in detailed.items():
        kernel = kernels[index]
        details = _changes(a, b, threshold, DOUBT / max(noisy_details, 1))
        kernels[index] = KernelComparison(
            kernel.first, kernel.second, kernel.changes, details, kernel.code_differs, kernel.notes
        )
    kernels.sort(key=_by_effect)
    # A kernel that ran without probes in the other trace is no new one.
    ran_in_first, ran_in_second = (_launched(trace) for trace in (first, second))
    not_seen = [one for one in only_first if one.kernel.name in ran_in_second and _unprobed(second, one)]
    not_seen += [one for one in only_second if one.kernel.name in ran_in_first and _unprobed(first, one)]
    return Comparison(
        first, second, Fraction(str(threshold)), tuple(kernels),
        tuple(one for one in only_first if one not in not_seen),
        tuple(one for one in only_second if one not in not_seen), tuple(not_seen), noisy,
        values_needed(DOUBT / max(wanted, 1)),
    )  # fmt: skip


def _launched(trace: Trace) -> set[str]:
    """Return the names of the kernels that a trace counts launches of."""
    return {kernel.name for kernel in trace.kernels if sum(kernel.counters.values())}


def _unprobed(trace: Trace, group: Group) -> bool:
    """Whether launches of a group's kernel are counted in another trace of which it has no data: nobody knows which
    geometry they had."""
    kernels = [kernel for kernel in trace.kernels if kernel.name == group.kernel.name]
    return sum(sum(kernel.counters.values()) for kernel in kernels) > sum(
        len(kernel.written_numbers()) for kernel in kernels
    )


def _by_effect(kernel: KernelComparison) -> tuple[bool, float, float]:
    """Return what kernels are sorted by: changed ones first, by the time that they add to all launches, then by the
    greatest ratio."""
    effects = [change.effect for change in kernel.changes if change.verdict is Verdict.CHANGED]
    return not effects, -abs(kernel.time_added), -max(effects, default=0.0)


def _matched(
    first: Sequence[Group], second: Sequence[Group]
) -> tuple[list[tuple[Group, Group]], list[Group], list[Group]]:
    """Pair the groups of two traces: by name, text and geometry; then by name and geometry; then, where one group is
    left of a name, by the name. Returns the pairs, and what is left of each."""
    left, right = list(first), list(second)
    pairs = []

    def take(one: Group, other: Group) -> None:
        pairs.append((one, other))
        left.remove(one)
        right.remove(other)

    for with_code in (True, False):
        for one in list(left):
            same = [
                other for other in right
                if (other.kernel.name, other.geometry) == (one.kernel.name, one.geometry)
                and (not with_code or (other.code and other.code == one.code))
            ]  # fmt: skip
            if same:
                take(one, same[0])
    for one in list(left):
        of_name = [group for group in left if group.kernel.name == one.kernel.name]
        others = [group for group in right if group.kernel.name == one.kernel.name]
        if len(of_name) == len(others) == 1:
            take(one, others[0])
    return pairs, left, right


def _notes(one: Group, other: Group) -> list[str]:
    """Return why times of two groups may differ though the program is the same."""
    notes = []
    if one.geometry != other.geometry:
        notes.append("the geometry differs")
    shares = [group.variants / len(group.numbers) for group in (one, other)]
    if abs(shares[0] - shares[1]) > 0.01:
        texts = [percent(share) for share in shares]
        notes.append(
            f"{texts[0]} and {texts[1]} of the launches had a twin under a register cap, or fewer blocks at a time"
        )
    archs = [group.kernel.manifest.arch if group.kernel.manifest else "" for group in (one, other)]
    names = [str(group.trace.devices[0].get("name", "")) if group.trace.devices else "" for group in (one, other)]
    if names[0] != names[1] or archs[0] != archs[1]:
        notes.append(f"the devices differ: {names[0]} ({archs[0]}) and {names[1]} ({archs[1]})")
    return notes


def _has_noise(first: Figure, second: Figure) -> bool:
    """Whether a figure is to be judged by an interval."""
    return not _reason(first, second) and not _is_exact(first, second) and any((*first.values, *second.values))


def _is_noisy(first: Figure, second: Figure) -> bool:
    """Whether a figure takes a part of the doubt: it is to be judged by an interval, and has launches for one."""
    return _has_noise(first, second) and bool(rank_of_end(len(first.values), len(second.values), DOUBT))


def _is_exact(first: Figure, second: Figure) -> bool:
    """Whether a count was the same in each of at least two launches of both traces."""
    return (
        first.is_count and second.is_count and min(len(first.values), len(second.values)) > 1
        and len(set(first.values)) == len(set(second.values)) == 1
    )  # fmt: skip


def _reason(first: Figure, second: Figure) -> str:
    """Return why a figure cannot be judged, whatever the number of launches; "" if it can."""
    if first.unit != second.unit:
        return f"{first.unit or 'numbers'} in one trace, {second.unit or 'numbers'} in the other"
    if first.unit == "steps":
        return "steps of the embedded device are no durations"
    values = [*first.values, *second.values]
    if not all(map(math.isfinite, values)):
        return "some values are no finite numbers"
    return ""


def _changes(first: Figures, second: Figures, threshold: float | Fraction, doubt: float) -> tuple[Change, ...]:
    """Judge the figures that both have; those that changed first, time before others, then by their effect."""
    changes = [_change(key, first[key], second[key], threshold, doubt) for key in first if key in second]
    order = (Verdict.CHANGED, Verdict.NOT_JUDGED, Verdict.SAME)
    changes.sort(key=lambda change: (order.index(change.verdict), not change.key.is_time, -change.effect))
    return tuple(changes)


def _change(key: Key, first: Figure, second: Figure, threshold: float | Fraction, doubt: float) -> Change:
    """Judge one figure. doubt: the probability that its interval misses."""
    a, b = np.array(first.values), np.array(second.values)
    medians = float(np.median(a)), float(np.median(b))
    counts = len(a), len(b)
    reason = _reason(first, second)
    if reason:
        return Change(key, first.unit, *medians, *counts, None, False, Verdict.NOT_JUDGED, reason)
    if not a.any() and not b.any() and min(counts) > 1:
        return Change(key, first.unit, *medians, *counts, None, _is_exact(first, second), Verdict.SAME)
    if _is_exact(first, second):
        ratio = medians[1] / medians[0] if medians[0] else math.inf
        verdict = Verdict.CHANGED if Interval(ratio, ratio, ratio).exceeds(threshold) else Verdict.SAME
        return Change(key, first.unit, *medians, *counts, None, True, verdict)
    interval = interval_of(a, b, doubt) if rank_of_end(*counts, DOUBT) else None
    if interval is None:
        reason = f"too few launches ({counts[0]} and {counts[1]})"
        return Change(key, first.unit, *medians, *counts, None, False, Verdict.NOT_JUDGED, reason)
    verdict = Verdict.CHANGED if interval.exceeds(threshold) else Verdict.SAME
    return Change(key, first.unit, *medians, *counts, interval, False, verdict)


