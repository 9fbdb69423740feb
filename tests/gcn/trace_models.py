"""What shipped probes must have recorded of a launch, worked out from what the launch executed, probe by probe.

Each model is written after the words at the head of its probe and in docs/library.md: it knows neither the probe's
statements nor where the tools put them. Where a probe reads clocks, the model says how many there are, whose they are
and between which ticks of the wave they lie.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from neutrino.emulator.gcn.kernel import hardware_identity
from tests.gcn.executed import Event, Ran, WaveTrace
from tests.gcn.operation_trace import OperationTrace

Array = npt.NDArray[Any]
Rows = list[tuple[Any, ...]]
_WORD = 1 << 32
_SHARED, _PRIVATE = 0x1_0000, 0x2_0000
"""Upper halves of generic addresses in LDS and in scratch memory, in the interpreter."""
_EPOCH = 10**15
"""What the interpreter's counter of 100 MHz is before that of cycles."""


class Launch(NamedTuple):
    """A launch of an original and of its twin. numbers: of sites, by the address of the instruction. ticks: the
    clocks that each wave of the twin has read. left_out: addresses of instructions that the tools do not probe, for a
    reason that they say."""

    ran: Ran
    processor: str
    grid: tuple[int, int, int]
    warps: int
    numbers: Mapping[int, int]
    ticks: Mapping[Any, list[int]]
    left_out: frozenset[int] = frozenset()

    @property
    def blocks(self) -> int:
        """How many blocks the grid has."""
        return int(np.prod(self.grid))


class Asked(NamedTuple):
    """An access that lanes ask for. space: as the address says where it is generic. addresses: of all lanes; only those
    of mask count. size: bytes of each lane; once: whether the wave asks for them once."""

    wave: WaveTrace
    event: Event
    what: str
    mask: Array
    addresses: Array
    size: int
    once: bool


@dataclass
class Model:
    """What is known of a probe. judge: takes a launch and the maps' rows by name; gives what is wrong. matches: whether
    it has a site at an instruction; None if it has none at all. clocks: whether some fields are bounded, not known."""

    judge: Callable[[Launch, Mapping[str, Any]], Iterator[str]]
    matches: Callable[[Event, Ran], bool] | None = None
    clocks: bool = False


# ---------------------------------------------------------------- what is executed


def _plain(name: str) -> str:
    return name.removeprefix("v_dual_")


_CLASSES: dict[str, re.Pattern[str]] = {
    "barrier": re.compile(r"s_(cluster_)?barrier\w*"),
    "branch": re.compile(r"s_(branch|cbranch_\w+|setpc_b64|set_pc_i64|swappc_b64|swap_pc_i64|call_\w+|endpgm\w*)"),
    "tensor": re.compile(r"v_(mfma|smfmac|wmma|swmmac)_\w+"),
    "convert": re.compile(r"[sv]_cvt_\w+"),
    "special": re.compile(r"[sv]_(s_)?(exp|log|rcp|rcp_iflag|rsq|sqrt|sin|cos|tanh)_[fb]\w+"),
}


def classes_of(event: Event) -> set[str]:
    """The classes of an instruction, as docs/opcodes.md has them."""
    access = event.instruction.access
    if access is not None:
        return {"load", "store"} if access.what == "copy" else {access.what}
    return {name for name, pattern in _CLASSES.items() for one in event.instruction.names if pattern.fullmatch(one)}


def counted(launch: Launch) -> Counter[str]:
    """How often lanes executed instructions, in all and by class."""
    found: Counter[str] = Counter()
    by_instruction: Counter[int] = Counter()
    texts: dict[int, Event] = {}
    for _, event in launch.ran.events():
        by_instruction[event.instruction.address] += event.lanes
        texts.setdefault(event.instruction.address, event)
    for address, number in by_instruction.items():
        found["all"] += number
        for name in classes_of(texts[address]):
            found[name] += number
    return found


def asked(launch: Launch, *, spaces: Iterable[str] = ("global",)) -> Iterator[Asked]:
    """Yield accesses of executed instructions to some kinds of memory, of lanes that execute them."""
    for wave, event in launch.ran.events():
        access = event.instruction.access
        if access is None or not event.mask.any():
            continue
        if access.space == "scalar":
            if "global" in spaces and not launch.ran.is_passed(event):
                same_address = np.full(wave.lanes, event.touched[0].places.min(), np.uint64)
                yield Asked(wave, event, access.what, event.mask, same_address, access.size, True)
            continue
        is_local = access.space == "local" or (access.space == "global" and any(
            one.space == "local" for one in event.touched
        ))  # fmt: skip
        mask, space = event.mask, access.space
        addresses: Array = np.zeros(wave.lanes, np.uint64) if event.addresses is None else event.addresses
        if event.addresses is None:
            done = np.zeros(wave.lanes, np.bool_)
            for one in event.touched:
                if access.what in (one.what, "copy"):
                    fresh = ~done[one.lanes]
                    addresses[one.lanes[fresh]] = one.places[fresh]
                    done[one.lanes[fresh]] = True
        if is_local:
            space = "local"
        elif space == "generic":
            upper = addresses >> np.uint64(32)
            mask = mask & ~np.isin(upper, np.array([_SHARED, _PRIVATE], np.uint64))
            space = "global"
        if space in spaces and mask.any():
            yield Asked(wave, event, access.what, mask, addresses, access.size, False)


def _bytes(one: Asked) -> int:
    return one.size if one.once else one.size * int(np.count_nonzero(one.mask))


# ---------------------------------------------------------------- comparing


def rows_of(view: Any) -> Rows:
    """All rows of a map."""
    found = view.valid()
    return [tuple(row[name].item() for name in found.dtype.names) for row in found]


def same(name: str, found: Any, expected: Any) -> Iterator[str]:
    """Yield how two lists of rows differ, if they do."""
    if found != expected and isinstance(found, dict):
        yield f"{name}: {[(key, found[key], expected[key]) for key in found if found[key] != expected[key]]}"
    elif found != expected:
        left = list((Counter(found) - Counter(expected)).items())[:2]
        right = list((Counter(expected) - Counter(found)).items())[:2]
        yield f"{name}: {left} and not {right}; {len(found)} rows, {len(expected)} expected"


def _sum(name: str, views: Mapping[str, Any], expected: tuple[int, ...]) -> Iterator[str]:
    yield from same(name, rows_of(views[name]), [tuple(one % (1 << 64) for one in expected)])


def _keyed(name: str, views: Mapping[str, Any], values: Mapping[int, list[int]]) -> Iterator[str]:
    """A table by key with count, and sum and greatest."""
    expected = sorted((key, len(each), sum(each), max(each), 0) for key, each in values.items())
    yield from same(name, sorted(rows_of(views[name])), expected)


def _unit(launch: Launch, wave: WaveTrace) -> int:
    """The number of its compute unit, as docs/amd.md has it."""
    identity = hardware_identity(launch.processor, wave.block, wave.number)
    if launch.processor.startswith("gfx9"):
        number = identity["HW_REG_HW_ID"] >> 8 & 0xFF
        if launch.processor.startswith(("gfx94", "gfx95")):
            number |= (identity["HW_REG_XCC_ID"] & 15) << 8
        return number
    found = identity["HW_REG_HW_ID1"]
    return (found >> 18 & 7) << 5 | (found >> 16 & 1) << 4 | (found >> 10 & 15)


def _ticks(launch: Launch, block: int, number: int | None = None) -> tuple[int, int]:
    """The first and the last tick that the twin's wave has read, or any wave of the block."""
    found = [
        tick for key, ticks in launch.ticks.items() for tick in ticks
        if _linear(launch, key[0]) == block and number in (None, key[1])
    ]  # fmt: skip
    return (min(found), max(found)) if found else (0, -1)


def _linear(launch: Launch, index: tuple[int, int, int]) -> int:
    return index[0] + launch.grid[0] * (index[1] + launch.grid[1] * index[2])


def _is_clock(launch: Launch, value: int, block: int, number: int | None = None, *, bits: int = 64) -> bool:
    """Whether a clock is one that the wave may have read: of cycles, or of 100 MHz."""
    first, last = _ticks(launch, block, number)
    ranges = [(first, last), (first + _EPOCH, last + _EPOCH), ((first + _EPOCH) * 10, (last + _EPOCH) * 10)]
    if bits == 64:
        return any(low <= value <= high for low, high in ranges)
    return any((value - low) % _WORD <= high - low for low, high in ranges)


def _is_time(launch: Launch, value: int, block: int, number: int | None = None) -> bool:
    first, last = _ticks(launch, block, number)
    return (first + _EPOCH) * 10 <= value <= (last + _EPOCH) * 10 and value % 10 == 0


def _is_span(launch: Launch, value: int, block: int | None = None, number: int | None = None) -> bool:
    """Whether a difference of two clocks of a wave may be that of two ticks that it has read."""
    blocks = range(launch.blocks) if block is None else [block]
    return any(0 <= value <= last - first for first, last in (_ticks(launch, each, number) for each in blocks))


# ---------------------------------------------------------------- probes


def _block_sched(launch: Launch, views: Mapping[str, Any]) -> Iterator[str]:
    rows = rows_of(views["BlockSched"])
    if len(rows) != launch.blocks * launch.warps:
        yield f"BlockSched: {len(rows)} records of {launch.blocks * launch.warps} waves"
        return
    for wave in launch.ran.waves:
        start, elapsed, unit = rows[wave.block * launch.warps + wave.number]
        if unit != _unit(launch, wave):
            yield f"BlockSched: unit {unit} and not {_unit(launch, wave)}"
        if not (_is_clock(launch, start, wave.block, wave.number) and elapsed > 0):
            yield f"BlockSched: wave {wave.number} of {wave.block}: from {start} for {elapsed}"
        elif not _is_clock(launch, start + elapsed, wave.block, wave.number):
            yield f"BlockSched: wave {wave.number} of {wave.block}: until {start + elapsed}"


def _launch_skew(launch: Launch, views: Mapping[str, Any]) -> Iterator[str]:
    rows = rows_of(views["Begins"])
    if len(rows) != launch.blocks:
        yield f"Begins: {len(rows)} records of {launch.blocks} blocks"
        return
    for wave in launch.ran.waves:
        if wave.number:
            continue
        time, unit, cycle = rows[wave.block]
        if unit != _unit(launch, wave) or not _is_time(launch, time, wave.block, 0):
            yield f"Begins: {time}, {unit} of block {wave.block}"
        if not _is_clock(launch, cycle, wave.block, 0, bits=32):
            yield f"Begins: cycle {cycle} of block {wave.block}"
    times = [row[0] for row in rows]
    yield from same("FirstBegin", rows_of(views["FirstBegin"]), [(min(times),)])
    yield from same("LastBegin", rows_of(views["LastBegin"]), [(max(times),)])


def _warp_timeline(launch: Launch, views: Mapping[str, Any]) -> Iterator[str]:
    view = views["WarpTimes"]
    rows, places = rows_of(view), view.places()
    found = {(int(places["block"][at]), int(places["warp"][at])): row for at, row in enumerate(rows)}
    if len(found) != len(rows) or found.keys() != {(wave.block, wave.number) for wave in launch.ran.waves}:
        yield f"WarpTimes: {len(rows)} rows of {len(launch.ran.waves)} waves"
        return
    for wave in launch.ran.waves:
        begin, end, cycles, unit = found[wave.block, wave.number]
        where = wave.block, wave.number
        is_right = _is_time(launch, begin, *where) and _is_time(launch, end, *where) and begin < end
        if not is_right or unit != _unit(launch, wave) or cycles <= 0 or not _is_span(launch, cycles, *where):
            yield f"WarpTimes: {begin}, {end}, {cycles}, {unit} of wave {where}"


def _gmem_bytes(launch: Launch, views: Mapping[str, Any]) -> Iterator[str]:
    total: Counter[str] = Counter()
    for one in asked(launch):
        # What is copied into LDS is loaded.
        total["load" if one.what == "copy" else one.what] += _bytes(one)
    yield from _sum("GmemBytes", views, (total["load"], total["store"], total["atomic"], 0, 0))


def _inst_count(launch: Launch, views: Mapping[str, Any]) -> Iterator[str]:
    total = counted(launch)
    names = ("all", "load", "store", "atomic", "barrier", "branch", "tensor", "convert", "special")
    yield from _sum("InstCount", views, tuple(total[name] for name in names))


def _work_per_warp(launch: Launch, views: Mapping[str, Any]) -> Iterator[str]:
    view = views["WarpWork"]
    places = view.places()
    found = {
        (int(places["block"][at]), int(places["warp"][at])): row for at, row in enumerate(rows_of(view))
    }  # fmt: skip
    expected = {}
    for wave in launch.ran.waves:
        executed, accesses = np.zeros(wave.lanes, int), np.zeros(wave.lanes, int)
        for event in wave.events:
            executed += event.mask
            access = event.instruction.access
            if access is not None and not (access.space == "scalar" and launch.ran.is_passed(event)):
                accesses += event.mask
        expected[wave.block, wave.number] = int(executed.max()), int(accesses.max())
    yield from same("WarpWork", sorted(found.items()), sorted(expected.items()))


def _groups(keys: Array) -> list[int]:
    """How many times each different key is there."""
    return [int(count) for count in np.unique(keys, return_counts=True)[1]]


def _atomic_contention(launch: Launch, views: Mapping[str, Any]) -> Iterator[str]:
    instructions = lanes = addresses = 0
    sites: dict[int, list[int]] = defaultdict(list)
    for wave, event in launch.ran.events():
        access = event.instruction.access
        if access is None or access.what != "atomic" or not event.mask.any():
            continue
        at = event.addresses if event.addresses is not None else np.zeros(wave.lanes, np.uint64)
        if event.addresses is None:
            for one in event.touched:
                at[one.lanes] = one.places
        groups = _groups(at[event.mask])
        instructions += 1
        lanes += event.lanes
        addresses += len(groups)
        sites[launch.numbers.get(event.instruction.address, -1)] += groups
    yield from _sum("Atomics", views, (instructions, lanes, addresses))
    yield from _keyed("PerAtomic", views, sites)


def _is_atomic(event: Event, ran: Ran) -> bool:
    access = event.instruction.access
    return access is not None and access.what == "atomic"


def _is_global(event: Event, ran: Ran, whats: tuple[str, ...]) -> bool:
    access = event.instruction.access
    if access is None or access.what not in whats:
        return False
    if access.space == "scalar":
        return not ran.is_passed(event)
    return access.space in ("global", "generic") and not any(
        one.space == "local" and access.space == "global" for one in event.touched
    )


def _coalescing(launch: Launch, views: Mapping[str, Any]) -> Iterator[str]:
    totals = {"load": [0] * 5, "store": [0] * 5}
    sites: dict[int, list[int]] = defaultdict(list)
    for one in asked(launch):
        if one.what == "atomic":
            continue
        addresses = one.addresses[one.mask]
        sectors = len(np.unique(addresses >> np.uint64(5)))
        distinct = one.size if one.once else one.size * len(np.unique(addresses))
        values = (1, addresses.size, sectors, _bytes(one), distinct)
        total = totals["store" if one.what == "store" else "load"]
        total[:] = [a + b for a, b in zip(total, values, strict=True)]
        sites[launch.numbers.get(one.event.instruction.address, -1)].append(sectors)
    yield from _sum("LoadRequests", views, tuple(totals["load"]))
    yield from _sum("StoreRequests", views, tuple(totals["store"]))
    if "PerAccess" in views:
        yield from _keyed("PerAccess", views, sites)


def _dmat(launch: Launch, views: Mapping[str, Any]) -> Iterator[str]:
    expected: dict[tuple[int, int, int], list[tuple[int, ...]]] = defaultdict(list)
    for one in asked(launch):
        access = one.event.instruction.access
        assert access is not None
        kind = {"load": 0, "copy": 0, "store": 1}.get(one.what, 2 if access.returns else 3)
        lanes = np.flatnonzero(one.mask)
        for lane in lanes:
            size = one.size if not one.once or lane == lanes[0] else 0
            site = launch.numbers.get(one.event.instruction.address, -1)
            key = one.wave.block, one.wave.number, int(lane)
            expected[key].append((int(one.addresses[lane]), site, size, kind))
    view = views["GlobalAccesses"]
    if view.dropped:
        yield f"GlobalAccesses: {view.dropped} records lost"
        return
    found: dict[tuple[int, int, int], list[tuple[int, ...]]] = defaultdict(list)
    clocks: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    rows, places = rows_of(view), view.places()
    for at, (address, clock, site, size, kind) in enumerate(rows):
        key = int(places["block"][at]), int(places["warp"][at]), int(places["lane"][at])
        found[key].append((address, site, size, kind))
        clocks[key].append(clock)
    for key in sorted({*found, *expected}):
        if found.get(key, []) != expected.get(key, []):
            yield f"GlobalAccesses: of {key}: {found.get(key, [])[:2]} and not {expected.get(key, [])[:2]}"
            return
        first, last = clocks[key][0], clocks[key][-1]
        is_ordered = all(a < b for a, b in zip(clocks[key], clocks[key][1:], strict=False))
        if not is_ordered or not all(_is_clock(launch, one, key[0], key[1]) for one in (first, last)):
            yield f"GlobalAccesses: of {key}: clocks {clocks[key][:3]}"
            return
    for name in ("BulkCopies", "TensorCopies"):
        if name in views and rows_of(views[name]):
            yield f"{name}: has records"
    if "NotTraced" in views:
        yield from _sum("NotTraced", views, (0, 0))


_MOST_LINES = 512


def _hot_lines(launch: Launch, views: Mapping[str, Any]) -> Iterator[str]:
    lines: Counter[int] = Counter()
    for one in asked(launch):
        lines.update((one.addresses[one.mask] >> np.uint64(7) << np.uint64(7)).tolist())
    rows = rows_of(views["HotLines"])
    lost = views["HotLines"].dropped
    if lost or len(lines) > _MOST_LINES // 2:
        # Keys beyond the table's room are lost, and counted.
        wrong = [row for row in rows if row[1] > lines[row[0]]]
        if wrong or sum(row[1] for row in rows) + lost > lines.total():
            yield f"HotLines: {wrong[:2]}, {lost} lost of {lines.total()}"
        if lost or wrong:
            return
    ordered = sorted(lines.items(), key=lambda row: (-row[1], row[0]))[:20]
    yield from same("HotLines", [row[:2] for row in rows], ordered)


def _reuse_distance(launch: Launch, views: Mapping[str, Any]) -> Iterator[str]:
    counts: Counter[int] = Counter()
    recent: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for one in asked(launch):
        for lane in np.flatnonzero(one.mask):
            line = int(one.addresses[lane]) >> 7 & _WORD - 1
            mine = recent[one.wave.block, one.wave.number, int(lane)]
            distance = mine.index(line) if line in mine else 8
            if line in mine:
                mine.remove(line)
            mine.insert(0, line)
            del mine[8:]
            counts[distance] += 1
    rows = rows_of(views["Distances"])
    found = {int(low): count for low, _, count in rows if count}
    yield from same("Distances", sorted(found.items()), sorted(counts.items()))


def _latency(launch: Launch, views: Mapping[str, Any]) -> Iterator[str]:
    counts: Counter[int] = Counter()
    rows = rows_of(views["PerLoad"])
    for _, event in launch.ran.events():
        if _is_timed(event, launch.ran) and event.mask.any():
            counts[launch.numbers.get(event.instruction.address, -1)] += event.lanes
    yield from same("PerLoad", sorted(row[:2] for row in rows), sorted(counts.items()))
    for key, count, total, least, most, missed in rows:
        if not 0 < least <= most or not least * count <= total <= most * count or missed or not _is_span(launch, most):
            yield f"PerLoad: site {key}: {count}, {total}, {least}, {most}, {missed}"
    overhead = rows_of(views["ClockOverhead"])
    if len(overhead) != 1 or overhead[0][0] <= 0 or not _is_span(launch, overhead[0][0]):
        yield f"ClockOverhead: {overhead}"


def _is_timed(event: Event, ran: Ran) -> bool:
    """Loads whose result, or the first of two, a probe has as a number of up to 64 bits."""
    access = event.instruction.access
    if access is None or access.what != "load" or (access.space == "scalar" and ran.is_passed(event)):
        return False
    is_twice = re.search("read2|2addr", event.instruction.names[0]) is not None
    return access.size // (1 + is_twice) <= 8


def _barrier_wait(launch: Launch, views: Mapping[str, Any]) -> Iterator[str]:
    counts: Counter[int] = Counter()
    for _, event in launch.ran.events():
        if _is_barrier(event, launch.ran) and event.mask.any():
            counts[launch.numbers.get(event.instruction.address, -1)] += 1
    rows = rows_of(views["PerWait"])
    yield from same("PerWait", sorted(row[:2] for row in rows), sorted(counts.items()))
    for key, count, total, least, most, missed in rows:
        if not 0 < least <= most or not least * count <= total <= most * count or missed or not _is_span(launch, most):
            yield f"PerWait: site {key}: {count}, {total}, {least}, {most}, {missed}"


def _is_barrier(event: Event, ran: Ran) -> bool:
    return any(name in ("s_barrier", "s_barrier_wait") for name in event.instruction.names)


def _smem_bank_conflict(launch: Launch, views: Mapping[str, Any]) -> Iterator[str]:
    total: Counter[str] = Counter()
    for one in asked(launch, spaces=("shared",)):
        if not _is_shared(one.event, launch.ran):
            continue
        name = one.event.instruction.names[0]
        bits = 4 if re.search("_b(96|128)", name) else 3 if "_b64" in name else 2
        group = 128 >> bits
        total[one.what] += 1
        for first in range(0, one.wave.lanes, group):
            units = one.addresses[first : first + group][one.mask[first : first + group]] >> np.uint64(bits)
            if units.size:
                total[f"{one.what}_wavefronts"] += max(_groups(np.unique(units) % np.uint64(128 >> bits)))
                total[f"{one.what}_least"] += 1
    names = ("load", "load_wavefronts", "load_least", "store", "store_wavefronts", "store_least")
    yield from _sum("SmemBankConflict", views, (*(total[name] for name in names), 0, 0, 0))


def _is_shared(event: Event, ran: Ran) -> bool:
    access = event.instruction.access
    return access is not None and access.space == "shared" and access.what in ("load", "store")


def _operations(launch: Launch) -> OperationTrace:
    assert launch.ran.operations is not None
    return launch.ran.operations


def _value_watch(launch: Launch, views: Mapping[str, Any]) -> Iterator[str]:
    trace = _operations(launch)
    for address in launch.left_out:
        trace.results.pop(address, None)
    results, nans, infinities, least, greatest = trace.watched()
    yield from _sum("ValueCounts", views, (results, nans, infinities))
    yield from same("ValueLeast", rows_of(views["ValueLeast"]), [(least,)] if least is not None else [])
    yield from same("ValueGreatest", rows_of(views["ValueGreatest"]), [(greatest,)] if greatest is not None else [])


def _nan_finder(launch: Launch, views: Mapping[str, Any]) -> Iterator[str]:
    first = {address: count for address, count in _operations(launch).first.items() if count}
    rows = rows_of(views["FirstNaN"])
    if not launch.left_out:
        expected = sorted((launch.numbers.get(address, -1), count) for address, count in first.items())
        yield from same("FirstNaN", sorted(row[:2] for row in rows), expected)
    elif sum(row[1] for row in rows) > sum(first.values()):
        yield f"FirstNaN: {rows[:3]} of {sum(first.values())} threads"
    for key, _, time, _ in rows:
        if not any(_is_time(launch, time, block) for block in range(launch.blocks)):
            yield f"FirstNaN: site {key}: {time}"


_PRODUCT = re.compile(
    r"v_(?:mfma|wmma)_(f16|f32|f64|bf16|i32)_(\d+)x(\d+)x(\d+?)(?:_\d+b_|_)?([a-z]*f\d+|i8|iu[48])\w*"
)
_FIELDS = {
    "f64": "f64", "xf32": "tf32", "f16": "f16", "bf16": "bf16", "fp8": "f8", "bf8": "f8", "i8": "i8", "iu8": "i8",
    "iu4": "i4",
}  # fmt: skip


def _tensorop(launch: Launch, views: Mapping[str, Any]) -> Iterator[str]:
    total: Counter[str] = Counter()
    instructions = 0
    lanes = launch.ran.waves[0].lanes
    for text, times in _operations(launch).matrices.items():
        match = _PRODUCT.fullmatch(text.split()[0].removesuffix("_e64"))
        if match is None:
            yield f"the model does not know {text}"
            return
        m, n, k = (int(match[group]) for group in (2, 3, 4))
        instructions += times
        # A register of all lanes has as many sums; several blocks of matrices have theirs one after the other.
        first, last = (int(number) for number in re.findall(r"\d+", text.split()[1])[:2])
        sums = lanes * (last - first + 1) // (2 if match[1] == "f64" else 1)
        blocks = sums // (m * n) if "mfma" in text else 1
        total[_FIELDS.get(match[5], "")] += 2 * m * n * k * blocks * times
    names = ("f64", "tf32", "f16", "bf16", "f8", "f4", "i8", "i4", "b1")
    yield from _sum("TensorOps", views, tuple(total[name] for name in names))
    found = sum(rows_of(views["TensorInstructions"])[0])
    if found != instructions:
        yield f"TensorInstructions: {found} and not {instructions}"


def _is_product(event: Event, ran: Ran) -> bool:
    return "tensor" in classes_of(event)


def _branch_divergence(launch: Launch, views: Mapping[str, Any]) -> Iterator[str]:
    assert launch.ran.branches is not None
    counted_ = launch.ran.branches.counted()
    if not launch.left_out:
        yield from _sum("BranchDivergence", views, counted_)
        return
    (row,) = rows_of(views["BranchDivergence"])
    if any(one > most for one, most in zip(row, counted_, strict=True)):
        yield f"BranchDivergence: {row} of {counted_}"


_ENTRY, _EXIT = (1 << 32) - 1, (1 << 32) - 2


def _program_progress(launch: Launch, views: Mapping[str, Any]) -> Iterator[str]:
    assert launch.ran.branches is not None
    view = views["ProgramProgress"]
    places = view.places()
    found: dict[tuple[int, int], list[tuple[Any, ...]]] = defaultdict(list)
    for at in np.lexsort((places["order"], places["warp"], places["block"])):
        found[int(places["block"][at]), int(places["warp"][at])].append(rows_of_one(view, int(at)))
    steps = launch.ran.branches.steps
    for wave in launch.ran.waves:
        index = wave.block % launch.grid[0], wave.block // launch.grid[0] % launch.grid[1], wave.block // (
            launch.grid[0] * launch.grid[1]
        )  # fmt: skip
        reached = [launch.numbers.get(step, -1) for step in steps.get((index, wave.number), [])
                   if step not in launch.left_out]  # fmt: skip
        rows = found[wave.block, wave.number]
        # The end of the kernel is a branch, too, at which the first lane may be no more.
        sites = [row[1] for row in rows if row[1] not in (_ENTRY, _EXIT)]
        if sites != reached:
            yield f"ProgramProgress: {sites[:4]} and not {reached[:4]}"
            return
        clocks = [row[0] for row in rows]
        if [row[1] for row in rows[:1]] != [_ENTRY] or sorted(clocks) != clocks or {row[2] for row in rows} != {
            _unit(launch, wave)
        }:  # fmt: skip
            yield f"ProgramProgress: {rows[:2]} of unit {_unit(launch, wave)}"
            return


def rows_of_one(view: Any, at: int) -> tuple[Any, ...]:
    """One row of a map."""
    row = view.valid()[at]
    return tuple(row[name].item() for name in row.dtype.names)


def _opcode_mix(launch: Launch, views: Mapping[str, Any]) -> Iterator[str]:
    total = counted(launch)
    copies = sum(
        event.lanes for _, event in launch.ran.events()
        if event.instruction.access is not None and event.instruction.access.what == "copy"
    )  # fmt: skip
    known = {name: total[name] for name in ("all", "special", "convert", "atomic", "barrier", "branch", "tensor")}
    known |= {"load": total["load"] - copies, "store": total["store"] - copies, "copy": copies}
    (row,) = views["OpcodeMix"].valid()
    yield from same("OpcodeMix", {name: int(row[name]) for name in known}, known)
    # An instruction of two halves counts for each.
    for name in row.dtype.names:
        if not 0 <= int(row[name]) <= 2 * known["all"]:
            yield f"OpcodeMix: {name} {row[name]}"


def facts(launch: Launch, views: Mapping[str, Any], maps: Iterable[Any]) -> Iterator[str]:
    """Yield what cannot be, of any probe's maps: values that are lost, keys that are no site, records of nobody."""
    for entry in maps:
        view = views[entry.name]
        records = rows_of(view)
        names = view.valid().dtype.names or ()
        if "key" in names and entry.fields[0].name == "site":
            strange = [row[0] for row in records if row[0] not in range(len(launch.numbers))]
            if strange:
                yield f"{entry.name}: sites {strange[:3]} of {len(launch.numbers)}"
        if "missed" in names and any(row[-1] for row in records):
            yield f"{entry.name}: keys without a place"


def _any_global(event: Event, ran: Ran) -> bool:
    return _is_global(event, ran, ("load", "store", "atomic", "copy"))


def _load_or_store(event: Event, ran: Ran) -> bool:
    return _is_global(event, ran, ("load", "store", "copy"))


MODELS: Mapping[str, Model] = {
    "atomic_contention": Model(_atomic_contention, _is_atomic),
    "barrier_wait": Model(_barrier_wait, _is_barrier, clocks=True),
    "block_sched": Model(_block_sched, clocks=True),
    "branch_divergence": Model(_branch_divergence),
    "coalescing": Model(_coalescing, _load_or_store),
    "dmat": Model(_dmat, _any_global, clocks=True),
    "gmem_bytes": Model(_gmem_bytes, _any_global),
    "hot_lines": Model(_hot_lines, _any_global),
    "inst_count": Model(_inst_count, lambda event, ran: True),
    "latency": Model(_latency, clocks=True),
    "launch_skew": Model(_launch_skew, clocks=True),
    "nan_finder": Model(_nan_finder, clocks=True),
    "opcode_mix": Model(_opcode_mix, lambda event, ran: True, clocks=True),
    "program_progress": Model(_program_progress, clocks=True),
    "reuse_distance": Model(_reuse_distance, _any_global),
    "smem_bank_conflict": Model(_smem_bank_conflict, _is_shared),
    "tensorop": Model(_tensorop, _is_product),
    "value_watch": Model(_value_watch),
    "warp_timeline": Model(_warp_timeline, clocks=True),
    "work_per_warp": Model(_work_per_warp, lambda event, ran: True),
}
"""By the name of a shipped probe."""
