"""What map types' statements compute in a warp of 32 and of 64 lanes, without any target: as their readers read it."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace

import numpy as np
import pytest

from neutrino.ir.memory import Kept
from neutrino.ir.operands import Constant
from neutrino.ir.statements import Operator
from neutrino.ir.types import Type
from neutrino.maps.builder import Builder, Combining, Lanes
from neutrino.maps.declaration import Map
from neutrino.maps.log import Log, chunks
from neutrino.maps.log_columns import LOG_CONTROL, LOG_UNIT
from neutrino.maps.regions import most_copies
from neutrino.verification import read_probes
from tests.maps.statement_machine import Warp

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

    def constant(self, number: int) -> int | None:
        return None

    def choices(self, number: int) -> tuple[int, ...]:
        return ()

    def site_key(self) -> int | None:
        return self.site


def declared(table: str, data: str) -> Map:
    """The map with a table."""
    declared_fields = re.findall(r'(\w+) = "[us](\d+)"', data)
    registers = " ".join(f".reg .b{bits} %{name};" for name, bits in declared_fields)
    probes = read_probes(
        "test.toml",
        f"""platform = "cuda"
[map.M]
{table}
level = "thread"
data = {{ {data} }}
[probe.loads]
position = "ld.global"
level = "thread"
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


@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize("may_branch", [False, True])
@pytest.mark.parametrize("lanes", WAYS, ids=str)
@pytest.mark.parametrize("scale", SCALES)
def test_histograms(scale: str, lanes: Lanes, may_branch: bool, conditional: bool) -> None:
    entry = declared(SCALES[scale], 'value = "u64"')
    random = np.random.default_rng(7)
    warp, every = run(entry, Facts(lanes, may_branch, conditional), random, [[0, 1, 5, 38, 39, 77, 1000, 1 << 63]])
    counts = Counter(value for (value,) in saved(every))
    for low, high, count in rows(entry, warp).tolist():
        assert count == sum(number for value, number in counts.items() if low <= value <= high)


@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize("may_branch", [False, True])
@pytest.mark.parametrize("lanes", WAYS, ids=str)
@pytest.mark.parametrize("site", [None, 3, 40, 200])
@pytest.mark.parametrize("kind", ["u32", "u64"])
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


@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize("lanes", WAYS, ids=str)
@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("type_", ["min", "max", "avg"])
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


@pytest.mark.parametrize("lanes", WAYS)
@pytest.mark.parametrize("units", [1 << 10, 24])
@pytest.mark.parametrize("data", ['a = "u64", b = "u16"', 'a = "u16"'])
def test_logs_are_read_as_lanes_wrote_them(lanes: Lanes, units: int, data: str) -> None:
    """Warps save in turns, by some of their lanes; at last each is told that it ends, in two parts. Then the kernel
    runs again with the same memory."""
    entry = declared('type = "log"', data)
    random = np.random.default_rng(lanes.number + units)
    memory = [0] * ((LOG_CONTROL + units * LOG_UNIT) // 8)
    saved: defaultdict[tuple[int, int], list[list[int]]] = defaultdict(list)
    for _ in range(2):
        warps = [Warp(lanes, memory, slot=slot, fields=entry.fields) for slot in (0, 3)]
        for visit in range(5):
            for warp in warps:
                is_conditional = bool(random.integers(2))
                share = (0.1, 0.5, 1.0)[int(random.integers(3))]
                here = [lane for lane in range(lanes.number) if random.random() < share] or [visit]
                saving = [lane for lane in here if not is_conditional or random.random() < 0.6]
                warp.saving = frozenset(saving)
                warp.saved = [_values(field.type.size, lanes.number, random) for field in entry.fields]
                warp.run(entry.kind.save(entry, Facts(lanes, may_branch=True, is_conditional=is_conditional)), here)
                for lane in saving:
                    saved[warp.slot, lane].append([values[lane] for values in warp.saved])
        kept = [Kept(f"%{number}", Type.U32, 0, entry.span, key=(number,)) for number in (0, 1, 2)]
        for warp in warps:
            for part in (range(0, lanes.number, 3), [lane for lane in range(lanes.number) if lane % 3]):
                warp.run(entry.kind.settle(entry, kept, lanes), part)
    region = np.array(memory, "<u8").view(np.uint8)
    found = Log.read(region, {"size": entry.size})
    fields_ = [np.ascontiguousarray(found["record"]).view(np.uint8).reshape(-1, entry.size)] if len(found) else []
    read: defaultdict[tuple[int, int], list[list[int]]] = defaultdict(list)
    for number, row in enumerate(found):
        record = fields_[0][number].tobytes()
        values = [
            int.from_bytes(record[field.offset : field.offset + field.type.size], "little") for field in entry.fields
        ]
        read[int(row["slot"]), int(row["lane"])].append(values)
    total, lost = sum(map(len, saved.values())), memory[1]
    assert len(found) == chunks(region, entry.size)[:, 3].sum() == total - lost
    assert bool(lost) == (units == 24)
    if not lost:
        assert read == saved
        # Those that lanes share take less than columns of them: lanes that reduce write groups.
        is_shared = region[LOG_CONTROL + 8 : LOG_CONTROL + 12].tolist() == [0] * 4
        assert is_shared == (lanes.combining is Combining.REDUCE)
        shape = int.from_bytes(region[LOG_CONTROL + 4 : LOG_CONTROL + 8].tobytes(), "little")
        assert not is_shared or shape >> 30 == lanes.number // 64
    else:
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
            warp = Warp(lanes, memory, fields=entry.fields)
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
