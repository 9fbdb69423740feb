"""What an analysis has to look at: one kernel of a trace, its maps by what they hold, and its launches."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.abi.reasons import Reason
from neutrino.errors import TraceError
from neutrino.maps.declaration import Report
from neutrino.tracing.analyses.finding import Certainty, Cost, Figure, FigureKind, Finding, Spread, State, Threshold
from neutrino.tracing.roles import WarpRoles, roles_of
from neutrino.tracing.summary import KernelSummary, KeySummary, MapSummary
from neutrino.tracing.trace import Clock, Trace
from neutrino.tracing.views import MapView

Array = npt.NDArray[Any]
MOST_LAUNCHES = 16
"""Launches of a kernel whose records are read, evenly chosen among all."""
MOST_RECORDS = 1 << 20
"""Records of a map of a kernel that are read, but for the first launch, which is read whole."""

_MOST_OF_ROLES = 1 << 18
"""Records of a map that are read to tell roles: they are the same in all blocks."""


@dataclass(frozen=True)
class Evidence:
    """One probed kernel. chosen: launches whose records are read (``--launch``); None: all. has_spread: whether figures
    of single launches are compared, which takes time.
    """

    summary: KernelSummary
    chosen: range | None = None
    has_spread: bool = True

    @property
    def trace(self) -> Trace:
        """The trace that has the kernel."""
        return self.summary.kernel.trace

    @property
    def unit(self) -> str:
        """What times by the multiprocessors' clocks are in: cycles, or steps on the embedded device."""
        return self.trace.clock.value

    @property
    def has_time(self) -> bool:
        """Whether times are durations: on the embedded device they are an order of events."""
        return self.trace.clock is Clock.CYCLES

    @property
    def device(self) -> str:
        """The name of the first device; "" if the trace has none."""
        return str(self.trace.devices[0].get("name", "")) if self.trace.devices else ""

    def entry(self, name: str, fields: Sequence[str] = ()) -> MapSummary | None:
        """Return a map (what probes save to) by its name, if it has these fields and something was recorded; None
        without it.
        """
        for entry in self.summary.maps:
            if entry.name == name and entry.records and {field.name for field in entry.fields} >= set(fields):
                return entry
        return None

    def totals(self, name: str, fields: Sequence[str] = ()) -> dict[str, int] | None:
        """Return the totals of a sum map over all launches, by field; None without such a map."""
        entry = self.entry(name, fields)
        if entry is None or entry.kind.report is not Report.TOTALS:
            return None
        totals = {field.name: field.total or 0 for field in entry.fields}
        # Of a map of the same name that counts nothing there are none.
        return {name: total for name, total in totals.items() if isinstance(total, int)} or None

    def keys(self, name: str, kept: Sequence[str]) -> tuple[KeySummary, ...]:
        """Return the keys of a map of all launches together, if it keeps these; none without such a map."""
        for entry in self.summary.maps:
            if entry.name == name and entry.kind.report is Report.KEYS and entry.keys:
                return entry.keys if set(kept) <= entry.keys[0].kept.keys() else ()
        return ()

    def lost(self, name: str) -> int:
        """Return how many saves to a map (what probes save to) found no place."""
        return sum(entry.dropped for entry in self.summary.maps if entry.name == name)

    def error(self, names: Sequence[str]) -> float | None:
        """Return the error of maps whose counts are estimates, of the largest count of each as a share of it; the
        greatest of several. None where all counts are exact but for what was lost.
        """
        found = []
        for entry in self.summary.maps:
            errors = [float(key.kept.get("error", 0)) for key in entry.keys] if entry.name in names else []
            if any(errors):
                largest = max(entry.keys, key=lambda key: key.count)
                found.append(shared(float(largest.kept["error"]), largest.count))
        return max(found, default=None)

    def saved(self, name: str) -> int:
        """Return how many results of a map (what probes save to) there are: of one with keys, saves."""
        entries = [entry for entry in self.summary.maps if entry.name == name]
        return sum(sum(key.count for key in entry.keys) if entry.keys else entry.records for entry in entries)

    @cached_property
    def numbers(self) -> Array:
        """The numbers of the launches whose records are read: some of many, evenly chosen."""
        numbers = self.summary.kernel.written_numbers(self.chosen)
        if len(numbers) <= MOST_LAUNCHES:
            return numbers
        return numbers[np.linspace(0, len(numbers) - 1, MOST_LAUNCHES).astype(np.int64)]

    def views(self, name: str) -> Iterator[MapView]:
        """Yield the view of a map (what probes save to) of some launches, one launch each."""
        records = 0
        for numbers, views in self.summary.kernel.numbered_stacks(self.numbers):
            if name not in views:
                return
            for at in range(len(numbers)):
                view = views[name].of(at)
                before, records = records, records + view.geometry.blocks * view.geometry.warps
                # The first launch is read whole.
                if before and records > MOST_RECORDS:
                    return
                yield view

    def per_launch(self, name: str, figure: Callable[[Mapping[str, float]], float | None]) -> list[float]:
        """Return a figure of the totals of a sum map for some launches one by one; those without it are left out."""
        found = []
        try:
            for view in self.views(name) if self.has_spread else ():
                value = figure({key: float(total) for key, total in view.total().items()})
                if value is not None:
                    found.append(value)
        except (TraceError, ValueError):
            return []
        return found

    @cached_property
    def roles(self) -> WarpRoles:
        """What the warps of a block are for, by one launch; no roles where they do the same, or no record tells."""
        return roles_of(self.summary.kernel, self.chosen, most_launches=1, most_records=_MOST_OF_ROLES)

    @cached_property
    def cost(self) -> Cost | None:
        """What the probes cost the kernel, by ``--benchmark``: of its group with most time; None if not measured."""
        try:
            benchmark = self.trace.benchmark
        except TraceError:
            return None
        for group in benchmark.groups if benchmark is not None else ():
            if group.kernel == self.summary.kernel.id and group.ratio is not None:
                original, probed = group.medians_ns
                ratio = group.ratio
                return Cost(ratio.ratio, ratio.low, ratio.high, original, probed - original, group.floor_ns)
        return None

    def certainty(
        self, names: Sequence[str], *, is_timed: bool, spread: Spread | None = None, launches: int | None = None,
        caveats: Sequence[str] = (),
    ) -> Certainty:
        """Return how sure a finding is. names: of the maps that it is from. launches: whose records were read, by
        default all whose data are in the trace.
        """
        kernel = self.summary.kernel
        launched = sum(count for reason, count in kernel.counters.items() if reason is not Reason.NOT_SELECTED)
        notes = list(caveats)
        if is_timed and not self.has_time:
            notes.append("times are steps of the embedded device, an order of events and no durations: not judged")
        others = [entry.name for entry in self.summary.maps if entry.name not in names]
        if is_timed and others:
            notes.append(f"the probes that save to {', '.join(others)} are in these times, too")
        written = self.summary.written if self.chosen is None else len(kernel.written_numbers(self.chosen))
        if launches is not None and launches < written:
            notes.append(f"the records of {launches:,} of {written:,} launches were read, evenly chosen")
        return Certainty(
            launches=written,
            launched=max(launched, self.summary.written),
            left_out=kernel.counters.get(Reason.NOT_SELECTED, 0),
            coverage=self.trace.coverage,
            saved=sum(map(self.saved, names)),
            lost=sum(map(self.lost, names)),
            spread=spread,
            cost=self.cost,
            is_timed=is_timed,
            error=self.error(names),
            caveats=tuple(notes),
        )

    def command(self, probes: Sequence[str]) -> str:
        """Return the command that records this again: for a shell, with all words quoted as it needs."""
        words = self.trace.process.get("argv")
        program = [str(word) for word in words] if isinstance(words, list) else ["COMMAND"]
        options = [word for probe in probes for word in ("-p", probe)]
        device = ["--device", "embedded"] if not self.has_time else []
        return shlex.join(["neutrino", *device, *options, "-k", literal(self.summary.kernel.name), *program])


def literal(name: str) -> str:
    """Return a kernel's name for ``-k``: as it is where that takes it for a text; else with ``?`` for what that takes
    for a pattern or for the end of a name.
    """
    plain = "".join("?" if letter in "*?[]:/" or not letter.isprintable() else letter for letter in name)
    return plain or "*"


def spread_of(figure: str, values: Sequence[float]) -> Spread | None:
    """Return how far a figure differs between launches; None of none."""
    if not values:
        return None
    ordered = sorted(values)
    return Spread(figure, ordered[0], ordered[(len(ordered) - 1) // 2], ordered[-1], len(ordered))


def middle(values: Array | Sequence[float]) -> float:
    """Return the median of numbers, of which there is at least one; the lower of two middle ones.

    Not NumPy's, which imports masked arrays: that takes longer than a small report.
    """
    return float(np.sort(values)[(len(values) - 1) // 2])


def shared(part: float, whole: float) -> float:
    """Return a share; 0 of nothing."""
    return part / whole if whole else 0.0


@dataclass(frozen=True)
class Analysis:
    """One analysis.

    name: its own, the module's. question: which it answers. probes: shipped ones whose maps it needs, of which each
    tuple is one that suffices. figures: that its findings may have. run: yields findings of a kernel, none where the
    trace has not what it needs. is_cheap: whether it needs no records, so that reports run it without being asked.
    """

    name: str
    question: str
    probes: tuple[tuple[str, ...], ...]
    figures: tuple[FigureKind, ...]
    thresholds: tuple[Threshold, ...]
    run: Callable[[Analysis, Evidence], Iterator[Finding]]
    is_cheap: bool = True

    def figure(self, name: str, value: int | float | str) -> Figure:
        """Return a figure of this analysis. Raises KeyError for one that it has not declared."""
        kinds = {kind.name: kind for kind in self.figures}
        return Figure(kinds[name], value)

    def state(self, values: Mapping[str, float]) -> State:
        """Return the worst state of figures by their thresholds."""
        order = (State.OK, State.MINOR, State.ISSUE)
        states = [row.state(values[row.figure]) for row in self.thresholds if row.figure in values]
        return max(states, key=order.index, default=State.OK)

    def finding(
        self, evidence: Evidence, sentence: str, values: Mapping[str, int | float | str], certainty: Certainty,
        **more: Any,
    ) -> Finding:
        """Return a finding. values: of figures, by name. more: members of ``Finding``; state: by the thresholds unless
        it is given; remedies: left out where nothing is to mend. Times that are no durations are not judged.
        """
        kernel = evidence.summary.kernel
        numbers = {name: float(value) for name, value in values.items() if not isinstance(value, str)}
        state, thresholds = more.pop("state", None) or self.state(numbers), self.thresholds
        if certainty.is_timed and not evidence.has_time:
            state, thresholds = State.OK, ()
        if state is State.OK:
            more.pop("remedies", None)
        found = Finding(
            self.name, kernel.id, kernel.full_name, kernel.name, state, sentence,
            tuple(self.figure(name, value) for name, value in values.items()), thresholds, certainty,
            command=evidence.command(self.probes[0]),
        )  # fmt: skip
        return replace(found, **more)
