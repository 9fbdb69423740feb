"""What is measured of each launch of a kernel, as numbers that two traces can be compared by."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.abi.levels import Per
from neutrino.errors import TraceError
from neutrino.maps.declaration import Layout, Map, Report
from neutrino.maps.keyed import Keyed
from neutrino.tracing.aggregate import ranges_of
from neutrino.tracing.recorded import parts_of
from neutrino.tracing.site_tables import is_by_site, place_of, sites_by_number
from neutrino.tracing.timeline import LaunchTimeline, Names, Sources, is_of_warps
from neutrino.tracing.trace import Trace, TraceKernel
from neutrino.tracing.views import MapView

Array = npt.NDArray[Any]
MOST_LAUNCHES = 250
"""Launches of a kernel with one geometry that are read: of more, as many are taken at equal distances."""
MOST_DETAILED = 100
"""The same, for lines, ranges and roles."""
WITHOUT_PROBES = "time without probes"
"""The name of the figure of launches that ``--benchmark`` ran without probes."""
_NO_QUANTITIES = frozenset({
    "start", "begin", "end", "time", "clock", "cycle", "sm", "smid", "cuid", "site", "line", "address", "addr",
    "tensor", "thread", "block", "warp", "lane", "token", "name", "range", "verb", "kind", "dimensions", "order", "x",
    "y", "z", "w", "v",
})  # fmt: skip
"""Fields that tell where, when or what: their mean means nothing."""


class Part(Enum):
    """What a figure is of."""

    LAUNCH = "launch"
    LINE = "line"
    RANGE = "range"
    ROLE = "role"


@dataclass(frozen=True)
class Key:
    """Which figure it is. name: of the map and field, ``time``, or ``WITHOUT_PROBES``. where: line, range or role, ""
    of the launch."""

    part: Part
    name: str
    where: str = ""

    @property
    def is_time(self) -> bool:
        """Whether it is how long the launch took."""
        return self.part is Part.LAUNCH and self.name in ("time", WITHOUT_PROBES)


@dataclass
class Figure:
    """A figure of each of some launches. unit: of the values, "" for counts. is_count: values are whole numbers that
    the kernel counted. values: float64, in the order of the launches."""

    unit: str
    is_count: bool
    values: list[float] = field(default_factory=list)


Figures = dict[Key, Figure]


@dataclass
class Group:
    """The launches of one kernel with one geometry. numbers: of those with data. code: a digest of the kernel's text;
    "" if the trace has none. variants: how many of them ran under a register cap or with fewer blocks at a time."""

    trace: Trace
    kernel: TraceKernel
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    numbers: Array
    code: str
    variants: int

    @property
    def geometry(self) -> tuple[Any, ...]:
        """Grid, block and dynamic shared memory."""
        return self.grid, self.block, self.shared


def groups_of(
    trace: Trace, keep: Callable[[TraceKernel], bool] = lambda _: True, launches: range | None = None
) -> list[Group]:
    """Return the launches of a trace that have data, by kernel and geometry."""
    groups = []
    for kernel in trace.kernels:
        if kernel.manifest is None or not keep(kernel):
            continue
        numbers = kernel.written_numbers(launches)
        if not len(numbers):
            continue
        records = kernel.records_of(numbers)
        shape = np.column_stack([records["grid"], records["block"], records["shared"]])
        found, inverse = np.unique(shape, axis=0, return_inverse=True)
        code = _digest(kernel)
        for index, row in enumerate(found.tolist()):
            mask = inverse.reshape(-1) == index
            variants = int(np.count_nonzero(records["variant"][mask]))
            groups.append(
                Group(trace, kernel, tuple(row[:3]), tuple(row[3:6]), row[6], numbers[mask], code, variants)
            )
    return groups


def _digest(kernel: TraceKernel) -> str:
    """Return a digest of a kernel's text as it was before it was probed; "" if the trace has none."""
    return next((hashlib.sha256(text).hexdigest() for _, text in kernel.originals()), "")


def figures_of(group: Group) -> Figures:
    """Return what is measured of whole launches: how long they took, sums, and means over the records of each launch.

    Raises TraceError for damaged data.
    """
    found: Figures = {}
    _add_benchmark(found, group)
    sources = Sources.of(group.kernel)
    for number in _some(group.numbers, MOST_LAUNCHES).tolist():
        if sources is not None:
            launch = LaunchTimeline(group.trace, group.kernel, sources, number, Names())
            if launch.span.warps:
                _add(found, Key(Part.LAUNCH, "time"), launch.unit.value, launch.span.duration)
        ((_, views),) = group.kernel.numbered_stacks(np.array([number]), is_checked=True)
        for entry in group.kernel.manifest.probed_maps if group.kernel.manifest else ():
            if entry.per is Per.RUN:
                continue
            for name, value, is_count in _of_map(entry, views[entry.name].of(0)):
                _add(found, Key(Part.LAUNCH, f"{entry.name}.{name}"), _unit(name, group), value, is_count=is_count)
    return found


def details_of(group: Group, roles: Callable[[TraceKernel], dict[int, str]] | None = None) -> Figures:
    """Return what is measured of lines, ranges and roles of some launches.

    roles: what the warps of a block do, by their numbers. Raises TraceError for damaged data.
    """
    found: Figures = {}
    kernel, names = group.kernel, Names()
    sources = Sources.of(kernel)
    # The mean of these is that of the lifetimes, which have their own figure.
    lifetimes = sources.lifetimes.name if sources is not None and sources.lifetimes is not None else ""
    sites = {number: _where(site) for number, site in sites_by_number(_sites(kernel)).items()}
    by_warp = roles(kernel) if roles else {}
    for number in _some(group.numbers, MOST_DETAILED).tolist():
        ((_, views),) = kernel.numbered_stacks(np.array([number]), is_checked=True)
        for entry in kernel.manifest.probed_maps if kernel.manifest else ():
            if entry.per is not Per.RUN and is_by_site(entry):
                for site, name, value, is_count in _of_keys(entry, views[entry.name].of(0)):
                    key = Key(Part.LINE, f"{entry.name}.{name}", sites.get(site, f"site {site}"))
                    _add(found, key, _unit(name, group), value, is_count=is_count)
            elif by_warp and entry.per is not Per.RUN and is_of_warps(entry) and entry.name != lifetimes:
                for role, name, value in _of_roles(entry, views[entry.name], by_warp):
                    _add(found, Key(Part.ROLE, f"{entry.name}.mean {name}", role), _unit(name, group), value)
        if sources is not None:
            launch = LaunchTimeline(group.trace, kernel, sources, number, names)
            for part, where, name, value in _of_timeline(launch, names, by_warp):
                _add(found, Key(part, name, where), "" if name == "count" else launch.unit.value, value,
                     is_count=name == "count")  # fmt: skip
    return found


def _sites(kernel: TraceKernel) -> Sequence[dict[str, Any]]:
    """Return the sites (instructions that probes match) of a kernel's manifest."""
    return kernel.manifest.sites if kernel.manifest else ()


def _where(site: dict[str, Any]) -> str:
    """Return the place of a site and its instruction."""
    place, instruction = place_of(site)
    return f"{place}: {instruction.rstrip(';')}" if instruction else place


def _some(numbers: Array, most: int) -> Array:
    """Return at most so many of the launches, at equal distances."""
    if len(numbers) <= most:
        return numbers
    return numbers[np.linspace(0, len(numbers) - 1, most).astype(np.int64)]


def _unit(name: str, group: Group) -> str:
    """Return the unit of a field, by its name."""
    if name.removeprefix("mean ") in ("elapsed", "cycles") or name.endswith("_cycles"):
        return group.trace.clock.value
    return ""


def _add(found: Figures, key: Key, unit: str, value: float, *, is_count: bool = False) -> None:
    """Add the value of a launch to its figure."""
    found.setdefault(key, Figure(unit, is_count)).values.append(float(value))


def _add_benchmark(found: Figures, group: Group) -> None:
    """Add the times of launches without probes, if ``neutrino --benchmark`` measured some."""
    try:
        benchmark = group.trace.benchmark
    except TraceError:
        return
    for measured in benchmark.groups if benchmark else ():
        same = (measured.grid, measured.block, measured.shared) == group.geometry
        if measured.kernel == group.kernel.id and same and len(measured.originals):
            figure = found.setdefault(Key(Part.LAUNCH, WITHOUT_PROBES), Figure("ns", False))
            figure.values += measured.originals.astype(float).tolist()


def _of_map(entry: Map, view: MapView) -> Iterator[tuple[str, float, bool]]:
    """Yield what one launch has in a map: a name, the value, and whether it was counted."""
    report = entry.kind.report
    if report is Report.BUCKETS:
        return
    if report is Report.KEYS:
        rows = Keyed.read(view.records[None], entry.document()).reshape(-1)
        yield "count", int(rows["count"].sum()), True
        if "sum" in (rows.dtype.names or ()) and rows["count"].sum():
            yield f"mean {entry.fields[-1].name}", float(rows["sum"].sum() / rows["count"].sum()), False
        return
    names = [one.name for one in entry.fields if one.name not in _NO_QUANTITIES]
    if report is Report.TOTALS and not entry.per.has_rows:
        rows = view.valid()
        for name in names:
            yield name, rows[name][0].item(), rows[name].dtype.kind in "iu"
        return
    if report is Report.MEANS:
        return
    if entry.kind.layout is Layout.COPIES and not entry.per.has_rows:
        rows = view.valid()
        for name in names if len(rows) else ():
            yield name, rows[name][0].item(), False
        return
    ranges = ranges_of(view.pieces(), names)
    if entry.kind.layout is Layout.CHUNKS or entry.cap > 1:
        yield "records", ranges.records, True
    for name in names:
        one = ranges.fields[name]
        if one.count:
            yield f"mean {name}", one.total / one.count, False


def _of_roles(entry: Map, view: MapView, roles: dict[int, str]) -> Iterator[tuple[str, str, float]]:
    """Yield the mean of each field of a map with a result of each warp, of the warps of each role: the role, the
    field's name, the mean. view: of one launch.
    """
    names = [one.name for one in entry.fields if one.name not in _NO_QUANTITIES]
    known = list(dict.fromkeys(roles.values()))
    # Warps without a role come last, and are left out.
    most = max(roles) + 1
    numbers = np.array([known.index(roles[warp]) if warp in roles else len(known) for warp in range(most + 1)])
    counts = np.zeros(len(known) + 1)
    sums = {name: np.zeros(len(known) + 1) for name in names}
    for _, places, records in parts_of(view, np.zeros(1, np.int64)):
        role = numbers[np.minimum(places["warp"].astype(np.int64), most)]
        counts += np.bincount(role, minlength=len(known) + 1)
        for name in names:
            sums[name] += np.bincount(role, records[name].astype(float), len(known) + 1)
    for index, role_name in enumerate(known):
        for name in names if counts[index] else ():
            yield role_name, name, float(sums[name][index] / counts[index])


def _of_keys(entry: Map, view: MapView) -> Iterator[tuple[int, str, float, bool]]:
    """Yield what one launch has in a table by site: the site, a name, the value, and whether it was counted."""
    rows = Keyed.read(view.records[None], entry.document()).reshape(-1)
    has_sum = "sum" in (rows.dtype.names or ())
    for row in rows:
        site, count = int(row["key"]), int(row["count"])
        yield site, "count", count, True
        if has_sum and count:
            yield site, f"mean {entry.fields[-1].name}", float(row["sum"]) / count, False


def _of_timeline(
    launch: LaunchTimeline, names: Names, roles: dict[int, str]
) -> Iterator[tuple[Part, str, str, float]]:
    """Yield what one launch has of ranges and roles: what the figure is of, which, the figure's name and value."""
    counts: dict[str, int] = {}
    times: dict[str, int] = {}
    lifetimes: dict[str, list[int]] = {}
    for piece in launch.pieces():
        for ranges in piece.ranges:
            known, inverse = np.unique(ranges.name, return_inverse=True)
            many = np.bincount(inverse.reshape(-1), minlength=len(known))
            length = np.bincount(inverse.reshape(-1), (ranges.end - ranges.begin).astype(float), len(known))
            for index, name in enumerate(known.tolist()):
                counts[names.texts[name]] = counts.get(names.texts[name], 0) + int(many[index])
                if not ranges.is_mark:
                    times[names.texts[name]] = times.get(names.texts[name], 0) + int(length[index])
        part = piece.lifetimes
        for warp, role in roles.items():
            mask = part.warp % launch.warps == warp
            total = lifetimes.setdefault(role, [0, 0])
            total[0] += int(np.count_nonzero(mask))
            total[1] += int((part.end - part.begin)[mask].sum())
    for name, count in counts.items():
        yield Part.RANGE, name, "count", count
        if name in times:
            yield Part.RANGE, name, "mean time", times[name] / count
    for role, (count, total_time) in lifetimes.items():
        if count:
            yield Part.ROLE, role, "mean lifetime", total_time / count
