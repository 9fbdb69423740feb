"""A finding: one plain sentence on one kernel, with its figures, thresholds, and how sure it is.

All texts are data: names, places and instructions come from the program, and may hold markup or anything else. Whoever
renders a finding escapes them for its own medium, and takes none for an instruction.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from neutrino.tracing.coverage import Coverage
from neutrino.tracing.coverage import percent as rounded_down
from neutrino.tracing.percent import percent

Value = int | float | str
_EXACT_ENOUGH, _MOST_ERROR = 0.1, 0.5
"""Of estimates, as a share of them: below it is as good as exact; from there on it leaves hardly anything of them."""


class State(Enum):
    """How a figure stands to its thresholds."""

    OK = "ok"
    MINOR = "minor"
    ISSUE = "issue"


@dataclass(frozen=True)
class FigureKind:
    """A figure that an analysis computes: its name, as in ``--fail-if``; its unit, "" for counts and ratios; and what
    it is, in words.

    words: of a text, those that it may be, () for any; None for numbers, of which none is below 0. is_bounded: whether
    a share is 1 at most.
    """

    name: str
    unit: str
    meaning: str
    words: tuple[str, ...] | None = None
    is_bounded: bool = True


@dataclass(frozen=True)
class Figure:
    """A figure of a finding."""

    kind: FigureKind
    value: Value

    @property
    def text(self) -> str:
        """The value as all views print it: integers with separators, shares in percent, others with three digits."""
        if isinstance(self.value, str):
            return self.value
        if self.kind.unit == "share":
            return percent(self.value)
        number = f"{self.value:,}" if isinstance(self.value, int) else brief(self.value)
        return f"{number} {self.kind.unit}".rstrip()


@dataclass(frozen=True)
class Threshold:
    """From where on a figure is minor, or an issue. below: whether small values are the bad ones."""

    figure: str
    minor: float
    issue: float
    below: bool = False

    def state(self, value: float) -> State:
        """Return the state of a value of the figure."""
        sign = -1 if self.below else 1
        if sign * value >= sign * self.issue:
            return State.ISSUE
        return State.MINOR if sign * value >= sign * self.minor else State.OK

    @property
    def text(self) -> str:
        """The threshold in words."""
        way = "at most" if self.below else "at least"
        if self.minor == self.issue:
            return f"issue where {self.figure} is {way} {self.issue:g}"
        if self.issue in (float("inf"), float("-inf")):
            return f"minor where {self.figure} is {way} {self.minor:g}"
        return f"minor where {self.figure} is {way} {self.minor:g}, issue {way} {self.issue:g}"


@dataclass(frozen=True)
class Cost:
    """What all probes of the run cost this kernel, by ``--benchmark``: how many times as long a launch takes with them,
    with the ends of its interval. original_ns: median of the launches without. added_ns: by the medians of both.
    floor_ns: what of original_ns the two events add that timed a launch.
    """

    ratio: float
    low: float
    high: float
    original_ns: float
    added_ns: float
    floor_ns: float = 0.0

    @property
    def below_ns(self) -> float:
        """Below which a difference between two times of probed launches means nothing: it may be the probes' own."""
        return max(abs(self.added_ns), self.original_ns * (self.high - self.low) / 2)


@dataclass(frozen=True)
class Spread:
    """How far a figure differs between launches. launches: that were compared, evenly chosen if there are many."""

    figure: str
    least: float
    median: float
    greatest: float
    launches: int


@dataclass(frozen=True)
class Certainty:
    """How sure a finding is.

    launches: whose data it is from. launched: launches of the kernel that were chosen, probed or not. left_out: those
    that options such as ``--launches`` have not chosen. coverage: of the process. saved, lost: results that it is from,
    and that found no place. spread: None where it is a figure of all launches together, or of one. cost: None where it
    was not measured. is_timed: whether it is about times, which the probes change; else it is about counts, which they
    do not. error: of counts that a probe estimates, that of the largest as a share of it: in 95 of 100 cases the true
    count is within; None of counts that are no estimates. caveats: what else a reader must know, in sentences.
    """

    launches: int
    launched: int
    left_out: int
    coverage: Coverage
    saved: int = 0
    lost: int = 0
    spread: Spread | None = None
    cost: Cost | None = None
    is_timed: bool = False
    error: float | None = None
    caveats: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """``high``; ``low`` where data were lost, most launches are missing, or the error of estimates is half of them
        or more; else ``medium``. Launches that were not chosen are not missing: nobody asked for them.
        """
        lost_share = self.lost / (self.saved + self.lost) if self.saved + self.lost else 0.0
        error = self.error or 0.0
        if lost_share > 0.01 or self.launches * 2 < self.launched or error >= _MOST_ERROR:
            return "low"
        is_open = not self.coverage.is_known or (self.is_timed and self.cost is None)
        differs = self.spread is not None and self.spread.greatest - self.spread.least > abs(self.spread.median) / 2
        return "medium" if is_open or differs or lost_share or error > _EXACT_ENOUGH else "high"

    def sentences(self) -> list[str]:
        """Return in words what the finding rests on."""
        texts = [f"from {self._which}"]
        coverage = self.coverage
        if not coverage.is_known:
            texts.append("how many launches there were is not known: counts are missing")
        elif coverage.probed < coverage.launches:
            chosen = " that were chosen" if coverage.left_out else ""
            share = rounded_down(coverage.probed, coverage.launches)
            texts.append(f"{share} of the process's launches{chosen} were probed")
        if self.lost:
            texts.append(f"{self.lost:,} results found no place")
        if self.spread is not None and self.spread.launches > 1:
            spread = self.spread
            texts.append(
                f"{spread.figure} is {brief(spread.least)} to {brief(spread.greatest)} over {spread.launches:,} "
                f"launches, median {brief(spread.median)}"
            )
        if self.is_timed and self.cost is not None:
            texts.append(
                f"the probes make the kernel {self.cost.ratio:.2f} times as long; differences below "
                f"{brief(self.cost.below_ns / 1000)} µs mean nothing"
            )
        elif self.is_timed:
            texts.append("what the probes cost this kernel was not measured (--benchmark does)")
        if self.error is not None:
            texts.append(f"counts are estimates, that of the largest within ± {percent(self.error)}")
        elif self.lost and not self.is_timed:
            texts.append("counts may be that much too low")
        elif not self.is_timed:
            texts.append("counts are exact, whatever the probes cost")
        return [*texts, *self.caveats]

    @property
    def _which(self) -> str:
        """The launches that it is from, of how many of the kernel, in words."""
        number = self.launches if not self.coverage.is_known else self.launched
        noun, verb = ("launch", "was") if number == 1 else ("launches", "were")
        if not self.coverage.is_known:
            of_all = f"{number:,}"
        elif self.launches < self.launched:
            of_all = f"{self.launches:,} of {number:,}"
        elif number > 1:
            of_all = f"all {number:,}"
        else:
            of_all = "the only" if self.left_out else "its only"
        of_kernel = "" if of_all == "its only" else " of the kernel"
        chosen = f" that {verb} chosen; not chosen: {self.left_out:,} more" if self.left_out else ""
        return f"{of_all} {noun}{of_kernel}{chosen}"


@dataclass(frozen=True)
class Place:
    """Where something is: the source line as ``file.cu:42``, else ``PTX line 7``; the instruction; ""  if not known.

    note: what is there, in words.
    """

    place: str
    instruction: str
    note: str = ""


@dataclass(frozen=True)
class Finding:
    """What one analysis found in one kernel.

    analysis: its name. kernel: the id in the trace. name, mangled: the kernel's. sentence: what was found, without the
    kernel's name. thresholds: none where the figures are not judged, which makes the state OK. places: source lines and
    instructions, that which matters most first. remedies: what to try. command: that records it again, for a shell.
    """

    analysis: str
    kernel: int
    name: str
    mangled: str
    state: State
    sentence: str
    figures: tuple[Figure, ...]
    thresholds: tuple[Threshold, ...]
    certainty: Certainty
    places: tuple[Place, ...] = ()
    remedies: tuple[str, ...] = ()
    command: str = ""

    @property
    def word(self) -> str:
        """The state, or ``not judged``."""
        return self.state.value if self.thresholds else "not judged"

    def value(self, name: str) -> Value | None:
        """Return the value of a figure; None without it."""
        return next((figure.value for figure in self.figures if figure.kind.name == name), None)


def brief(value: float) -> str:
    """Return a number with three digits, and separators where it is large."""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
