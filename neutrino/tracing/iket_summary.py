"""What a file of IKET's events says of each kernel: how long its warps were there, and its ranges and marks."""

from __future__ import annotations

from collections.abc import Sequence

from neutrino.late_dataclass import dataclass
from neutrino.tracing.iket import EventFile, Launch


@dataclass(frozen=True)
class Times:
    """How long something took: how often, in all, and at least and at most."""

    name: str
    count: int
    total: int
    least: int
    most: int

    @property
    def mean(self) -> float:
        """How long on average."""
        return self.total / self.count

    @staticmethod
    def of(name: str, lengths: Sequence[int]) -> Times:
        """Sum up lengths of time, of which there is at least one."""
        return Times(name, len(lengths), sum(lengths), min(lengths), max(lengths))


@dataclass(frozen=True)
class KernelEvents:
    """The events of a kernel's launches of one grid and block. span: of each launch, from its first event to the last;
    None without an event. warps: by the warp's number in the block. marks: how often each was reached."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    timebase: str
    launches: int
    sms: int
    span: Times | None
    warps: tuple[Times, ...]
    ranges: tuple[Times, ...]
    marks: tuple[tuple[str, int], ...]


def kernel_events(file: EventFile) -> list[KernelEvents]:
    """Return what a file says of each kernel, those with the longest launches first."""
    groups: dict[tuple[object, ...], list[Launch]] = {}
    for launch in file.all_launches:
        groups.setdefault((launch.kernel, launch.grid, launch.block, launch.timebase), []).append(launch)
    found = [_of_launches(file, launches) for launches in groups.values()]
    return sorted(found, key=lambda events: -(events.span.total if events.span else 0))


def _of_launches(file: EventFile, launches: Sequence[Launch]) -> KernelEvents:
    """Sum up launches of one kernel, grid and block."""
    spans: list[int] = []
    warps: dict[int, list[int]] = {}
    ranges: dict[str, list[int]] = {}
    marks: dict[str, int] = {}
    sms = set()
    for launch in launches:
        times = [one.time for one in launch.markers]
        # What ends before it begins has no length; the file's doubts name it.
        for lifetime in (one for one in launch.lifetimes if one.begin <= one.end):
            place = file.locations[lifetime.location]
            warps.setdefault(place.warp, []).append(lifetime.end - lifetime.begin)
            sms.add(place.sm)
            times += (lifetime.begin, lifetime.end)
        for one in (one for one in launch.ranges if one.begin <= one.end):
            ranges.setdefault(file.strings[one.name], []).append(one.end - one.begin)
            sms.add(file.locations[one.first].sm)
            times += (one.begin, one.end)
        for mark in launch.markers:
            marks[file.strings[mark.name]] = marks.get(file.strings[mark.name], 0) + 1
        if times:
            spans.append(max(times) - min(times))
    first = launches[0]
    of_ranges = [Times.of(name, lengths) for name, lengths in ranges.items()]
    return KernelEvents(
        first.kernel, first.grid, first.block, first.timebase, len(launches), len(sms - {-1}),
        Times.of("launch", spans) if spans else None,
        tuple(Times.of(f"warp {warp}", warps[warp]) for warp in sorted(warps)),
        tuple(sorted(of_ranges, key=lambda times: -times.total)),
        tuple(sorted(marks.items(), key=lambda row: -row[1])),
    )  # fmt: skip
