"""What map types' statements compute in a warp of 32 and of 64 lanes, without any target: as their readers read it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace

import numpy as np
import pytest

from neutrino.ir.memory import Extent, Kept
from neutrino.ir.operands import Constant
from neutrino.ir.statements import Operator
from neutrino.ir.types import Type
from neutrino.maps.builder import Builder, Combining, Lanes
from neutrino.maps.declaration import Map
from neutrino.maps.log import Log
from neutrino.maps.log_reading import LOG_CONTROL, LOG_UNIT, chunks
from neutrino.maps.regions import most_copies
from neutrino.verification import read_probes
from tests.maps.statement_machine import Warp
from tests.pairs import pairs

WAYS = [
    *(Lanes(32, combining) for combining in Combining), Lanes(64, Combining.MATCH), Lanes(64, Combining.REDUCE),
]  # fmt: skip
VISITS = 20


@dataclass(frozen=True)
class Facts:
    """A SAVE of values of which nothing is known; or at a site."""

    lanes: Lanes
    may_branch: bool
    is_conditional: bool
    site: int | None = None
    same: frozenset[int] = frozenset()
    is_elected: bool = False
    is_whole: bool = False
    is_rare: bool = False

    @property
    def has_condition(self) -> bool:
        return self.is_conditional

    def is_same(self, number: int) -> bool:
        return number in self.same

    def is_read_together(self, number: int) -> bool:
        return False

    def constant(self, number: int) -> int | None:
        return None

    def choices(self, number: int) -> tuple[int, ...]:
        return ()

    def own_sites(self) -> tuple[int, ...]:
        return ()

    def site_key(self) -> int | None:
        return self.site


def declared(table: str, data: str, level: str = "thread") -> Map:
    """The map with a table."""
    declared_fields = re.findall(r'(\w+) = "[us](\d+)"', data)
    registers = " ".join(f".reg .b{bits} %{name};" for name, bits in declared_fields)
    probes = read_probes(
        "test.toml",
        f"""platform = "cuda"
[map.M]
{table}
level = "{level}"
data = {{ {data} }}
[probe.loads]
position = "ld.global"
level = "{level}"
before = "{registers} SAVE [ M ] {{ {', '.join('%' + name for name, _ in declared_fields)} }};"
""",
    )
    return probes.maps[0]


@dataclass(frozen=True)
class Visit:
    """What lanes save at once. lanes: that are there; saving: those of them that save; values: by field and lane."""

    lanes: list[int]
    saving: frozenset[int]
    values: list[list[int]]


def visits(lanes: Lanes, random: np.random.Generator, draw: list[list[int]], *, conditional: bool) -> Iterator[Visit]:
    """Some, by lanes that are together by chance. draw: for each field, of which values."""
    for _ in range(VISITS):
        here = [lane for lane in range(lanes.number) if random.random() < random.choice([0.1, 0.9, 1.0])] or [0]
        same = random.random() < 0.5
        values = []
        for choices in draw:
            chosen = [choices[index] for index in random.integers(0, len(choices), lanes.number)]
            values.append([chosen[0]] * lanes.number if same else chosen)
        saving = frozenset(lane for lane in here if not conditional or random.random() < 0.6)
        yield Visit(here, saving, values)


def run(entry: Map, facts: Facts, random: np.random.Generator, draw: list[list[int]]) -> tuple[Warp, list[Visit]]:
    """Save at visits, then end in two groups of lanes."""
    words = entry.size // 8
    warp = Warp(facts.lanes, [0] * words)
    every = list(visits(facts.lanes, random, draw, conditional=facts.is_conditional))
    # The registers that saves name are known when the kernel's entry is written.
    code = entry.kind.save(entry, facts)
    kept = list(dict.fromkeys(kept_in(code)))
    everyone = list(range(facts.lanes.number))
    warp.run(entry.kind.begin(entry, kept, facts.lanes), everyone)
    for visit in every:
        warp.saved, warp.saving = visit.values, visit.saving
        warp.run(code, visit.lanes)
    middle = int(random.integers(1, facts.lanes.number))
    for group in (everyone[middle:], everyone[:middle]):
        warp.run(entry.kind.settle(entry, kept, facts.lanes), group)
    for cell, sums in warp.sums.items():
        warp.memory[cell] = (warp.memory[cell] + sum(sums)) % (1 << 64)
    return warp, every


def kept_in(node: object) -> Iterator[Kept]:
    """The kept registers that statements name."""
    if isinstance(node, Kept):
        yield node
    elif isinstance(node, (tuple, list)):
        for item in node:
            yield from kept_in(item)
    elif is_dataclass(node):
        for member in fields(node):
            yield from kept_in(getattr(node, member.name))


def rows(entry: Map, warp: Warp) -> np.ndarray:
    """What the reader makes of the record."""
    record = np.array(warp.memory, "<u8").view(entry.dtype)
    return entry.kind.read(record.reshape(1, 1), entry.document()).reshape(-1)


def saved(every: list[Visit]) -> Iterator[tuple[int, ...]]:
    """Each record, of one lane."""
    for visit in every:
        for lane in sorted(visit.saving):
            yield tuple(field[lane] for field in visit.values)


SCALES = {
    "held": 'type = "histogram"\nscale = "linear"\nlow = 0\nhigh = 40\nstep = 1',
    "last": 'type = "histogram"\nscale = "linear"\nlow = 0\nhigh = 900\nstep = 3',
    "log2": 'type = "histogram"\nscale = "log2"',
}


@pytest.mark.parametrize(
    ("scale", "lanes", "may_branch", "conditional"), pairs(SCALES, WAYS, (False, True), (False, True)), ids=str
)
def test_histograms(scale: str, lanes: Lanes, may_branch: bool, conditional: bool) -> None:
    entry = declared(SCALES[scale], 'value = "u64"')
    random = np.random.default_rng(7)
    warp, every = run(entry, Facts(lanes, may_branch, conditional), random, [[0, 1, 5, 38, 39, 77, 1000, 1 << 63]])
    counts = Counter(value for (value,) in saved(every))
    for low, high, count in rows(entry, warp).tolist():
        assert count == sum(number for value, number in counts.items() if low <= value <= high)


@pytest.mark.parametrize(
    ("kind", "site", "lanes", "may_branch", "conditional"),
    pairs(("u32", "u64"), (None, 3, 40, 200), WAYS, (False, True), (False, True)), ids=str,
)  # fmt: skip
def test_tables(kind: str, site: int | None, lanes: Lanes, may_branch: bool, conditional: bool) -> None:
    entry = declared('type = "hash"\nroom = 64\nkeep = ["min", "sum", "max"]', f'key = "u64", value = "{kind}"')
    random = np.random.default_rng(11)
    most = (1 << int(kind[1:])) - 1
    keys = [0, 1, 77, (1 << 64) - 1, 1 << 40] if site is None else [site]
    entry = entry if site is None else replace(entry, kind=entry.kind.for_sites(site + 1))
    warp, every = run(entry, Facts(lanes, may_branch, conditional, site), random, [keys, [0, 3, 1000, most, most - 1]])
    groups: dict[int, list[int]] = defaultdict(list)
    for key, value in saved(every):
        groups[key].append(value)
    wanted = {key: (len(some), sum(some) % (1 << 64), min(some), max(some), 0) for key, some in groups.items()}
    names = ["key", "count", "sum", "min", "max", "missed"]
    assert {key: tuple(row) for key, *row in rows(entry, warp)[names].tolist()} == wanted


@pytest.mark.parametrize("lanes", [way for way in WAYS if way.combining is not Combining.NOTHING], ids=str)
@pytest.mark.parametrize("sample", [2, 8])
def test_of_saves_together_one_is_counted(sample: int, lanes: Lanes) -> None:
    """Lanes that have parted draw apart. Each number is for as many saves as one of them stands for."""
    entry = declared(f'type = "topk"\nn = 64\nroom = 64\nsample = {sample}', 'key = "u64"')
    random = np.random.default_rng(5)
    warp, drawn, wanted = Warp(lanes, [0] * (entry.size // 8), entry), [12345] * lanes.number, Counter[int]()
    warp.kept[32,] = list(drawn)
    for _ in range(VISITS):
        here = [lane for lane in range(lanes.number) if random.random() < random.choice([0.5, 1.0])]
        conditions = [(None, 0)[int(random.integers(2))] for _ in range(int(random.integers(1, 9)))]
        keys = [list(map(int, random.integers(0, 9, lanes.number))) for _ in conditions]
        some = frozenset(here[::3])
        saving = [frozenset(here) if condition is None else some for condition in conditions]
        facts = [Facts(lanes, may_branch=True, is_conditional=condition is not None) for condition in conditions]
        warp.each = [([key], own) for key, own in zip(keys, saving, strict=True)]
        warp.run(entry.kind.save_all(entry, Together(lanes, facts, conditions, [None] * len(keys))), here)
        for lane in here:
            for first in range(0, len(keys), sample):
                drawn[lane] = (drawn[lane] * 747796405 + 2891336453) % (1 << 32)
                chosen = first + drawn[lane] * sample // (1 << 32)
                if chosen < len(keys) and lane in saving[chosen]:
                    wanted[keys[chosen][lane]] += sample
    assert {row["key"]: row["count"] for row in rows(entry, warp)} == wanted
    assert len(wanted) == 9


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("lanes", WAYS, ids=str)
@pytest.mark.parametrize("site", [3, 5, 40, 200])
def test_one_of_the_lanes_saves(site: int, lanes: Lanes, is_whole: bool) -> None:
    """Of lanes that are together one saves, whichever: a visit counts once, with the value of a lane that is there."""
    entry = declared('type = "hash"\nroom = 64\nkeep = ["sum", "min", "max"]', 'key = "u64", value = "u32"')
    entry = replace(entry, kind=entry.kind.for_sites(site + 1))
    facts = Facts(lanes, True, True, site, is_elected=True, is_whole=is_whole)
    random = np.random.default_rng(site)
    everyone = list(range(lanes.number))
    every = [everyone] if is_whole else [
        [lane for lane in everyone if random.random() < random.choice([0.1, 0.9, 1.0])] or [5] for _ in range(VISITS)
    ]  # fmt: skip
    warp = Warp(lanes, [0] * (entry.size // 8))
    code = entry.kind.save(entry, facts)
    kept = list(dict.fromkeys(kept_in(code)))
    warp.run(entry.kind.begin(entry, kept, lanes), everyone)
    for number, here in enumerate(every):
        warp.saved = [[site] * lanes.number, [100 * number + lane for lane in everyone]]
        warp.saving = frozenset(here[:1])
        warp.run(code, here)
    for group in [everyone] if site == 5 else [everyone[7:], everyone[:7]]:
        warp.run(entry.kind.settle(entry, kept, lanes), group)
    (row,) = rows(entry, warp)
    assert (row["key"], row["count"], row["missed"]) == (site, len(every), 0)
    least, most = (sum(100 * number + pick(here) for number, here in enumerate(every)) for pick in (min, max))
    assert least <= row["sum"] <= most
    for name, number in (("min", 0), ("max", len(every) - 1)):
        assert int(row[name]) - 100 * number in every[number]


@pytest.mark.parametrize("lanes", WAYS, ids=str)
def test_sites_beyond_the_memory_have_no_place(lanes: Lanes) -> None:
    """A table with room for one key has 12 words, of which a site's two cells take two."""
    entry = declared('type = "hash"\nroom = 1\nkeep = ["max"]', 'key = "u64", value = "u64"')
    entry = replace(entry, kind=entry.kind.for_sites(9))
    everyone = list(range(lanes.number))
    warp = Warp(lanes, [0] * (entry.size // 8))
    for site in (5, 6, 8):
        warp.saved, warp.saving = [[site] * lanes.number, everyone], frozenset(everyone)
        warp.run(entry.kind.save(entry, Facts(lanes, may_branch=True, is_conditional=True, site=site)), everyone)
    assert rows(entry, warp).tolist() == [(5, lanes.number, lanes.number - 1, 0)]
    record = np.array(warp.memory, "<u8").view(entry.dtype)
    assert entry.kind.lost(record, entry.document()) == (2 * lanes.number, 0)


@pytest.mark.parametrize("lanes", [way for way in WAYS if way.combining is Combining.REDUCE], ids=str)
@pytest.mark.parametrize(
    ("keep", "accesses"), [((), 1), (("sum",), 1), (("sum", "min", "max"), 2), (("min", "max"), 2), (("max",), 2)]
)
def test_further_sites_take_few_accesses(keep: tuple[str, ...], accesses: int, lanes: Lanes) -> None:
    """Of a site that no lane holds: a warp's save is an access for the cells that are added to, and one for those of
    which the greatest is kept, each to one sector of 32 bytes, in lines that other multiprocessors do not touch."""
    site = 2 * lanes.number + 7
    data = 'key = "u64", value = "u32"' if keep else 'key = "u64"'
    entry = declared(f'type = "hash"\nkeep = {list(keep)}', data)
    entry = replace(entry, kind=entry.kind.for_sites(site + 1))
    facts = Facts(lanes, may_branch=True, is_conditional=False, site=site)
    code = entry.kind.save(entry, facts)
    begin = entry.kind.begin(entry, list(dict.fromkeys(kept_in(code))), facts.lanes)
    of_units: list[set[int]] = []
    apart = most_copies(entry.kind, entry.size)
    for unit in (0, apart):
        for here, wanted in ((list(range(lanes.number)), accesses), ([5, 9], accesses), ([3], 1 + len(keep))):
            warp = Warp(lanes, [0] * (entry.size // 8), unit=unit)
            warp.saved = [[site] * lanes.number, list(range(lanes.number))]
            warp.run(begin, here)
            warp.run(code, here)
            assert len(warp.atomics) == wanted
            assert len({cell // 4 for cells in warp.atomics for cell in cells}) == 1
            (row,) = rows(entry, warp).tolist()
            of_values = {"sum": sum(here), "min": min(here), "max": max(here)}
            assert row == (site, len(here), *(of_values[name] for name in keep), 0)
        of_units.append({cell // 16 for cells in warp.atomics for cell in cells})
    assert not of_units[0] & of_units[1]


@pytest.mark.parametrize(
    ("type_", "kind", "lanes", "conditional"),
    pairs(("min", "max", "avg"), ("u32", "s32", "u64", "s64"), WAYS, (False, True)), ids=str,
)  # fmt: skip
def test_whole_values(type_: str, kind: str, lanes: Lanes, conditional: bool) -> None:
    entry = declared(f'type = "{type_}"', f'value = "{kind}"')
    random = np.random.default_rng(3)
    bits = int(kind[1:])
    draw = [0, 1, (1 << bits) - 1, 1 << (bits - 1), 12345]
    warp, every = run(entry, Facts(lanes, False, conditional), random, [draw])
    numbers = [value - (1 << bits) if kind[0] == "s" and value >> (bits - 1) else value for (value,) in saved(every)]
    (row,) = rows(entry, warp)
    if type_ == "avg":
        assert (row["count"], row["mean"]) == (len(numbers), sum(numbers) / len(numbers))
    else:
        assert row["value"] == {"min": min, "max": max}[type_](numbers)


def test_types_are_not_mixed() -> None:
    entry = declared('type = "sum"', 'value = "u64"')
    code = Builder(entry.span)
    wide = code.variable(Constant(Type.U64, 1))
    with pytest.raises(TypeError, match="u32"):
        code.compute(Operator.ADD, wide, Constant(Type.U32, 1))


def _values(size: int, lanes: int, random: np.random.Generator) -> list[int]:
    """What lanes save in a field: the same, with a stride, but for one lane, or anything."""
    ones = (1 << 8 * size) - 1
    base, stride = int(random.integers(0, 1 << min(8 * size, 62))), int(random.integers(-300, 300))
    kind = int(random.integers(4))
    if kind == 3:
        return [int(value) for value in random.integers(0, 1 << min(8 * size, 62), lanes)]
    odd = int(random.integers(lanes)) if kind == 2 else -1
    return [base + stride * lane * (kind > 0) + (lane == odd) & ones for lane in range(lanes)]


@dataclass(frozen=True)
class Together:
    """SAVEs that are written together.

    conditions: of each, None for one of all lanes. amounts: how much the first field of each is known to be beyond that
    of the first one; None where that is not known.
    """

    lanes: Lanes
    each: list[Facts]
    conditions: list[int | None]
    amounts: list[int | None]

    def kin(self, save: int) -> int:
        return 0

    def condition(self, save: int) -> int | None:
        return self.conditions[save]

    def beyond(self, save: int, number: int) -> tuple[str, int] | None:
        amount = self.amounts[save]
        return ("base", amount % (1 << 64)) if number == 0 and amount is not None else None

    def constant(self, save: int, number: int) -> None:
        return None


Saved = defaultdict[tuple[int, int], list[list[int]]]


def _save(warp: Warp, here: list[int], random: np.random.Generator, saved: Saved) -> None:
    """Save a record, and note it."""
    entry, lanes = warp.entry, warp.lanes
    assert entry is not None
    is_conditional = bool(random.integers(2))
    warp.saving = frozenset(lane for lane in here if not is_conditional or random.random() < 0.6)
    warp.saved = [_values(field.type.size, lanes.number, random) for field in entry.fields]
    same = frozenset(number for number, values in enumerate(warp.saved) if len(set(values)) == 1)
    facts = Facts(lanes, may_branch=True, is_conditional=is_conditional, same=same)
    warp.run(entry.kind.save(entry, facts), here)
    for lane in here:
        if lane in warp.saving and (warp.has_slot is None or lane in warp.has_slot):
            saved[warp.slot, lane].append([values[lane] for values in warp.saved])


def _save_together(warp: Warp, here: list[int], random: np.random.Generator, saved: Saved) -> None:
    """Save some records whose code is written together, and note them."""
    entry, lanes, number = warp.entry, warp.lanes, int(random.integers(1, 4))
    assert entry is not None
    least = int(random.choice([0.4, 1.0]) * len(here))
    of_conditions = {0: frozenset(here[: max(least, 1)]), 1: frozenset(lane for lane in here if random.random() < 0.6)}
    conditions = [(None, 0, 1)[int(random.integers(3))] for _ in range(number)]
    values = [[_values(field.type.size, lanes.number, random) for field in entry.fields] for _ in range(number)]
    amounts: list[int | None] = [None] * number
    if random.integers(2):
        # Like those of one instruction of an unrolled loop.
        for save in range(1, number):
            amount = int(random.integers(-500, 500))
            ones = (1 << 8 * entry.fields[0].type.size) - 1
            values[save] = [[value + amount & ones for value in values[0][0]], *values[0][1:]]
            if entry.fields[0].type.size == 8:
                amounts[0], amounts[save] = 0, amount
    saving = [frozenset(here) if condition is None else of_conditions[condition] for condition in conditions]
    facts = [Facts(lanes, may_branch=True, is_conditional=condition is not None) for condition in conditions]
    warp.each, warp.were_here = list(zip(values, saving, strict=True)), sum(1 << lane for lane in here)
    warp.run(entry.kind.save_all(entry, Together(lanes, facts, conditions, amounts)), here)
    warp.each = ()
    for own, some in zip(values, saving, strict=True):
        for lane in sorted(some):
            saved[warp.slot, lane].append([field[lane] for field in own])


def _read(region: np.ndarray, entry: Map) -> Saved:
    """What readers make of a region, by slot and lane."""
    found = Log.read(region, {"size": entry.size})
    read: Saved = defaultdict(list)
    for row in found:
        record = row["record"].tobytes()
        values = [
            int.from_bytes(record[field.offset : field.offset + field.type.size], "little") for field in entry.fields
        ]
        read[int(row["slot"]), int(row["lane"])].append(values)
    assert len(found) == chunks(region, entry.size)[:, 3].sum()
    return read


@pytest.mark.parametrize(
    ("saved_by", "memory_of", "lanes"),
    pairs(
        (
            ("thread", 'a = "u64", b = "u16"'), ("thread", 'a = "u16"'),
            ("thread", 'c = "u64", d = "u64", a = "u32", b = "s16"'),
            ("warp", 'a = "u64", b = "u16"'), ("block", 'a = "u64", b = "u16"'),
        ),
        ((1 << 11, 0), (1 << 11, 5), (24, 0)), WAYS,
    ),
    ids=str,
)  # fmt: skip
def test_logs_are_read_as_lanes_wrote_them(saved_by: tuple[str, str], memory_of: tuple[int, int], lanes: Lanes) -> None:
    """Warps save in turns, by some of their lanes; at last each is told that it ends, in two parts. Then the kernel
    runs again with the same memory, but not where warps have units of their own."""
    (level, data), (units, own) = saved_by, memory_of
    entry = declared('type = "log"', data, level)
    random = np.random.default_rng(lanes.number + units)
    memory = [0] * ((LOG_CONTROL + units * LOG_UNIT) // 8)
    saved: Saved = defaultdict(list)
    everyone = list(range(lanes.number))
    has_slot = None if level == "thread" else frozenset({0})
    extents = {Extent.OWN_UNITS: own, Extent.WARPS: 4, Extent.WARPS_PER_BLOCK: 2}
    for _ in range(1 if own else 2):
        warps = [
            Warp(lanes, memory, entry, slot=slot, has_slot=has_slot, extents=extents)
            for slot in ((0, 1) if level == "block" else (0, 3))
        ]
        for warp in warps:
            warp.run(entry.kind.begin(entry, [], lanes), everyone)
        for visit in range(8):
            for warp in warps:
                share = (0.1, 0.5, 1.0)[int(random.integers(3))]
                here = [lane for lane in everyone if random.random() < share] or [visit]
                gathers = entry.kind.gathers(entry, lanes) and random.integers(2)
                (_save_together if gathers else _save)(warp, here, random, saved)
        for warp in warps:
            for part in (everyone[::3], [lane for lane in everyone if lane % 3]):
                warp.run(entry.kind.settle(entry, [], lanes), part)
    region = np.array(memory, "<u8").view(np.uint8)
    read = _read(region, entry)
    total, lost = sum(map(len, saved.values())), memory[1]
    assert sum(map(len, read.values())) == total - lost
    if units > 24:
        assert lost == 0
        assert read == saved
        # Those that lanes share take less than columns of them: lanes that reduce write groups.
        is_shared = region[LOG_CONTROL + 8 : LOG_CONTROL + 12].tolist() == [0] * 4
        assert is_shared == (lanes.combining is Combining.REDUCE or level != "thread")
        shape = int.from_bytes(region[LOG_CONTROL + 4 : LOG_CONTROL + 8].tobytes(), "little")
        assert not is_shared or level != "thread" or shape >> 30 == lanes.number // 64
    else:
        assert bool(lost) or level != "thread"
        # Of each run the first ones.
        for owner, rows in read.items():
            assert all(row in saved[owner] for row in rows)


@pytest.mark.parametrize(("number", "first", "second"), [(32, 118, 110), (64, 59, 55)])
def test_a_kernel_that_runs_again_begins_after_the_orders_of_groups(number: int, first: int, second: int) -> None:
    """Lane 0 leaves its last chunk half empty, lane 16 takes one, and both fill that of lane 0: beyond all units."""
    lanes = Lanes(number, Combining.REDUCE)
    entry = declared('type = "log"', 'a = "u32"')
    memory = [0] * ((LOG_CONTROL + 512 * LOG_UNIT) // 8)
    kept = [Kept(f"%{key}", Type.U32, 0, entry.span, key=(key,)) for key in (0, 1, 2)]
    statements = entry.kind.save(entry, Facts(lanes, may_branch=True, is_conditional=False))
    values: defaultdict[int, list[int]] = defaultdict(list)
    for turn in range(2 * (first + second + 1)):
        place = turn % (first + second + 1)
        if place == 0:
            warp = Warp(lanes, memory, entry, extents={Extent.OWN_UNITS: 0, Extent.WARPS: 4})
        here = [16] if place == first else [0, 16]
        warp.saved = [[turn] * number]
        warp.run(statements, here)
        for lane in here:
            values[lane].append(turn)
        if place == first + second:
            warp.run(entry.kind.settle(entry, kept, lanes), [0, 16])
    found = Log.read(np.array(memory, "<u8").view(np.uint8), {"size": entry.size})
    records = np.ascontiguousarray(found["record"]).view("<u4")
    assert memory[1] == 0
    for lane in (0, 16):
        assert records[found["lane"] == lane].tolist() == values[lane]
