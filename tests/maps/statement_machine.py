"""Runs the statements of map types as docs/ir.md defines them, for one warp of any number of lanes: no target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from neutrino.ir.memory import (
    Accumulate,
    Apart,
    At,
    AtomicUpdate,
    Below,
    Block,
    Branch,
    CompareAnd,
    CompareAndSwap,
    EachInTurn,
    Elect,
    EnsureRoom,
    Extent,
    HasCondition,
    HasSlot,
    Here,
    IsAbsent,
    IsSaving,
    Kept,
    Leave,
    LoadCell,
    LoadStored,
    Locate,
    MapStatement,
    Meet,
    OfLane,
    OneOf,
    OverLanes,
    ReadExtent,
    ReadSaved,
    ReserveInLog,
    SlotNumber,
    Store,
    StoreSaved,
    StoreTogether,
    WereHere,
    When,
)
from neutrino.ir.operands import Constant, Register, Special, Value
from neutrino.ir.statements import (
    Collective,
    Compare,
    Convert,
    Operation,
    Operator,
    Reduction,
    Reinterpret,
    Relation,
    Select,
)
from neutrino.ir.types import Type
from neutrino.maps.builder import Combining, Lanes
from neutrino.maps.declaration import Map
from neutrino.maps.log_reading import LOG_CONTROL, LOG_UNIT


@dataclass
class Warp:
    """lanes: of the target. memory: the record's words, or a log's control words and units. entry: the map, of a log.
    kept: by key, the registers, a value by lane. slot: of the warp. sums: by cell, what each lane has accumulated.
    saved: by field and lane; saving: the lanes whose condition holds. unit: the multiprocessor. atomics: of each update
    of memory that some lanes have executed, the cells. has_slot: the lanes that have one; None for all. extents: of
    the launch. each: of several saves that are written together, ``saved`` and ``saving``. were_here: as a mask."""

    lanes: Lanes
    memory: list[int]
    entry: Map | None = None
    kept: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    sums: dict[int, list[int]] = field(default_factory=dict)
    saved: Sequence[Sequence[int]] = ()
    saving: frozenset[int] = frozenset()
    slot: int = 0
    unit: int = 77
    has_slot: frozenset[int] | None = None
    extents: Mapping[Extent, int] = field(default_factory=dict)
    each: Sequence[tuple[Sequence[Sequence[int]], frozenset[int]]] = ()
    were_here: int = 0
    atomics: list[set[int]] = field(default_factory=list)

    def run(self, statements: Sequence[MapStatement], here: Sequence[int]) -> None:
        """Execute statements by the lanes that are here together."""
        _Run(self, {}).run(statements, sorted(here))


@dataclass
class _Run:
    """left: by the names of the blocks around, from the outermost on, the lanes that have left them."""

    warp: Warp
    registers: dict[str, dict[int, int]]
    left: dict[str, list[int]] = field(default_factory=dict)

    def run(self, statements: Sequence[MapStatement], here: Sequence[int]) -> Sequence[int]:
        """Return the lanes that come to the end."""
        for statement in statements:
            if isinstance(statement, Branch):
                (condition,) = {self.value(statement.condition, lane) for lane in here}
                self.run(statement.then if condition else statement.otherwise, here)
            elif isinstance(statement, Apart):
                if some := [lane for lane in here if self.value(statement.condition, lane)]:
                    self.run(statement.then, some)
            elif isinstance(statement, Block):
                assert statement.name not in self.left
                self.left[statement.name] = []
                rest = self.run(statement.then, here)
                here = sorted([*rest, *self.left.pop(statement.name)])
            elif isinstance(statement, Leave):
                leaving = [
                    lane for lane in here
                    if statement.when is None or bool(self.value(statement.when, lane)) != statement.is_inverted
                ]  # fmt: skip
                if statement.is_uniform:
                    assert leaving in ([], list(here))
                else:
                    assert statement.name == list(self.left)[-1]
                self.left[statement.name] += leaving
                here = [lane for lane in here if lane not in leaving]
            elif isinstance(statement, Meet):
                lanes = {self.value(statement.lanes, lane) for lane in here}
                assert lanes == {sum(1 << lane for lane in here)}
            elif isinstance(statement, EachInTurn):
                for row in statement.rows:
                    for register, value in zip(statement.registers, row, strict=True):
                        for lane in here:
                            self.put(register, lane, self.value(value, lane))
                    assert sorted(self.run(statement.then, here)) == list(here)
            elif isinstance(statement, EnsureRoom):
                self.make_room(statement, here)
            elif isinstance(statement, OverLanes):
                self.reduce(statement, here)
            elif isinstance(statement, OfLane):
                self.exchange(statement, here)
            elif isinstance(statement, Collective):
                values = [self.value(statement.source, lane) for lane in here]
                combine: Callable[..., int] = {Reduction.MAX: max}[statement.reduction]
                for lane in here:
                    # Where lanes are not combined, each has its own.
                    alone = self.warp.lanes.combining is Combining.NOTHING
                    result = self.value(statement.source, lane) if alone else combine(values)
                    self.put(statement.destination, lane, result)
            else:
                if isinstance(statement, AtomicUpdate):
                    self.note(statement, here)
                for lane in here:
                    self.step(statement, lane, here)
            if not here:
                break
        return here

    def make_room(self, statement: EnsureRoom, here: Sequence[int]) -> None:
        entry = self.warp.entry
        assert entry is not None
        code = entry.kind.make_room(entry, 1, entry.kind.rooms(entry)[0], statement.when)
        self.run(code, here)

    def note(self, statement: AtomicUpdate, here: Sequence[int]) -> None:
        when = statement.when
        if cells := {self.cell(statement.cell, lane) for lane in here if when is None or self.value(when, lane)}:
            self.warp.atomics.append(cells)

    def reduce(self, statement: OverLanes, here: Sequence[int]) -> None:
        found = {}
        for lane in here:
            mask = self.value(statement.lanes, lane)
            group = [other for other in range(self.warp.lanes.number) if mask >> other & 1]
            # All of them execute it, with the same set.
            assert lane in group
            assert set(group) <= set(here)
            assert {self.value(statement.lanes, other) for other in group} == {mask}
            values = {other: self.value(statement.source, other) for other in group}
            mine = values[lane]
            found[lane] = {
                Reduction.SUM: sum(values.values()),
                Reduction.MIN: min(values.values()),
                Reduction.MAX: max(values.values()),
                Reduction.ANY: int(any(values.values())),
                Reduction.ALL: int(all(values.values())),
                Reduction.BALLOT: sum(1 << other for other, value in values.items() if value),
                Reduction.MATCH: sum(1 << other for other, value in values.items() if value == mine),
            }[statement.reduction]
        for lane, value in found.items():
            self.put(statement.destination, lane, value)

    def exchange(self, statement: OfLane, here: Sequence[int]) -> None:
        found = {}
        for lane in here:
            mask, other = self.value(statement.lanes, lane), self.value(statement.lane, lane)
            other %= self.warp.lanes.number
            assert mask >> lane & 1
            # Of one that is not there it has no meaning.
            found[lane] = self.value(statement.source, other) if mask >> other & 1 and other in here else 0xDEAD
        for lane, value in found.items():
            self.put(statement.destination, lane, value)

    def write(self, at: int, value: int, size: int) -> None:
        """Store bytes. at: where, in bytes; they are in one word."""
        assert at % size == 0
        shift, ones = at % 8 * 8, (1 << 8 * size) - 1
        word = self.warp.memory[at // 8] & ~(ones << shift)
        self.warp.memory[at // 8] = word | (value & ones) << shift

    def step(self, statement: MapStatement, lane: int, here: Sequence[int]) -> None:
        warp = self.warp
        if isinstance(statement, When):
            if self.value(statement.condition, lane):
                for change in statement.then:
                    self.step(change, lane, here)
            return
        when = getattr(statement, "when", None)
        if when is not None and not self.value(when, lane):
            if isinstance(statement, ReserveInLog):
                # Neither has a meaning.
                self.put(statement.destination, lane, 0xDEAD)
                self.put(statement.fits, lane, lane & 1)
            elif isinstance(statement, LoadCell):
                self.put(statement.destination, lane, 0xDEAD)
            return
        if isinstance(statement, Operation):
            self.put(statement.destination, lane, self.operation(statement, lane))
        elif isinstance(statement, Compare):
            left, right = (_signed(self.value(side, lane), _type(side)) for side in (statement.left, statement.right))
            self.put(statement.destination, lane, int(_RELATIONS[statement.relation](left, right)))
        elif isinstance(statement, CompareAnd):
            left, right = (_signed(self.value(side, lane), _type(side)) for side in (statement.left, statement.right))
            holds = _RELATIONS[statement.relation](left, right) and self.value(statement.also, lane)
            self.put(statement.destination, lane, int(holds))
        elif isinstance(statement, Select):
            chosen = statement.then if self.value(statement.condition, lane) else statement.otherwise
            self.put(statement.destination, lane, self.value(chosen, lane))
        elif isinstance(statement, (Convert, Reinterpret)):
            source = self.value(statement.source, lane)
            self.put(statement.destination, lane, _signed(source, _type(statement.source)))
        elif isinstance(statement, ReadSaved):
            values = warp.each[statement.save][0] if warp.each else warp.saved
            self.put(statement.destination, lane, values[statement.number][lane])
        elif isinstance(statement, IsSaving):
            saving = warp.each[statement.save][1] if warp.each else warp.saving
            self.put(statement.destination, lane, int(lane in saving and self.has_slot(lane)))
        elif isinstance(statement, HasCondition):
            self.put(statement.destination, lane, int(lane in warp.saving))
        elif isinstance(statement, WereHere):
            self.put(statement.destination, lane, warp.were_here)
        elif isinstance(statement, ReadExtent):
            self.put(statement.destination, lane, warp.extents[statement.extent])
        elif isinstance(statement, LoadStored):
            at = self.value(statement.place, lane) + statement.after
            self.put(statement.destination, lane, warp.memory[at // 8] >> at % 8 * 8)
        elif isinstance(statement, Here):
            self.put(statement.destination, lane, sum(1 << other for other in here))
        elif isinstance(statement, Below):
            self.put(statement.destination, lane, self.value(statement.lanes, lane) & ((1 << lane) - 1))
        elif isinstance(statement, IsAbsent):
            mask = self.value(statement.lanes, lane)
            self.put(statement.destination, lane, int(not mask >> self.value(statement.lane, lane) & 1))
        elif isinstance(statement, Elect):
            alone = warp.lanes.combining is Combining.NOTHING
            self.put(statement.destination, lane, int(alone or lane == min(here)))
        elif isinstance(statement, SlotNumber):
            self.put(statement.destination, lane, warp.slot)
        elif isinstance(statement, HasSlot):
            self.put(statement.destination, lane, int(self.has_slot(lane)))
        elif isinstance(statement, ReserveInLog):
            at, units = self.value(statement.base, lane) // 8, self.value(statement.units, lane)
            first, warp.memory[at] = warp.memory[at], warp.memory[at] + units
            if statement.after_own:
                first += warp.extents[Extent.OWN_UNITS] * warp.extents[Extent.WARPS]
            fits = LOG_CONTROL + (first + units) * LOG_UNIT <= 8 * len(warp.memory)
            self.put(statement.destination, lane, first)
            self.put(statement.fits, lane, int(fits))
        elif isinstance(statement, Store):
            size = statement.type.bits // 8
            for number, stored in enumerate(statement.values):
                at = self.value(statement.place, lane) + statement.after + number * size
                self.write(at, self.value(stored, lane), size)
        elif isinstance(statement, StoreSaved):
            at = self.value(statement.place, lane) + statement.after
            assert warp.entry is not None
            for saved_field, values in zip(warp.entry.fields, warp.saved, strict=True):
                self.write(at + saved_field.offset, values[lane], saved_field.type.size)
        elif isinstance(statement, StoreTogether):
            place = self.value(statement.place, lane) + statement.after
            assert place % statement.align == 0
            for part in statement.parts:
                self.write(place + part.after, self.value(part.value, lane), part.type.bits // 8)
        elif isinstance(statement, Locate):
            base = self.value(statement.base, lane) if statement.base is not None else 0
            self.put(statement.destination, lane, base + 8 * self.value(statement.cell, lane) * statement.words)
        elif isinstance(statement, LoadCell):
            self.put(statement.destination, lane, warp.memory[self.cell(statement.cell, lane)])
        elif isinstance(statement, CompareAndSwap):
            cell = self.cell(statement.cell, lane)
            old = warp.memory[cell]
            if old == self.value(statement.expected, lane):
                warp.memory[cell] = self.value(statement.desired, lane)
            self.put(statement.destination, lane, old)
        elif isinstance(statement, AtomicUpdate):
            cell, value = self.cell(statement.cell, lane), self.value(statement.value, lane)
            combined = _OPERATORS[statement.operator](warp.memory[cell], value)
            warp.memory[cell] = combined % (1 << 64)
        elif isinstance(statement, Accumulate):
            sums = warp.sums.setdefault(statement.cell, [0] * warp.lanes.number)
            sums[lane] = _OPERATORS[statement.operator](sums[lane], self.value(statement.amount, lane)) % (1 << 64)
        else:
            raise NotImplementedError(type(statement).__name__)

    def has_slot(self, lane: int) -> bool:
        return self.warp.has_slot is None or lane in self.warp.has_slot

    def operation(self, statement: Operation, lane: int) -> int:
        values = [self.value(source, lane) for source in statement.sources]
        kind = _type(statement.sources[0])
        bits = self.warp.lanes.number if kind is Type.LANES else kind.bits
        if statement.operator in _OF_ONE:
            (value,) = values
            return {
                Operator.NOT: value ^ ((1 << bits) - 1), Operator.MOVE: value, Operator.POPC: value.bit_count(),
                Operator.HIGHEST: value.bit_length() - 1, Operator.LOWEST: (value & -value).bit_length() - 1,
                Operator.NEG: -value,
            }[statement.operator]  # fmt: skip
        if statement.operator is Operator.MUL_ADD:
            left, right = (_signed(value, kind) for value in values[:2])
            return left * right + values[2]
        if statement.operator is Operator.MUL_HIGH:
            return values[0] * values[1] >> bits
        if statement.operator is Operator.SHR:
            return _signed(values[0], kind) >> values[1]
        return _OPERATORS[statement.operator](values[0], values[1])

    def cell(self, cell: int | OneOf | At, lane: int) -> int:
        if isinstance(cell, At):
            return self.value(cell.place, lane) // 8 + cell.after
        if isinstance(cell, OneOf):
            return cell.then if self.value(cell.condition, lane) else cell.otherwise
        return cell

    def value(self, value: Value, lane: int) -> int:
        if isinstance(value, Constant):
            return value.bits
        if isinstance(value, Kept):
            return self.of_kept(value)[lane]
        if isinstance(value, Register):
            return self.registers[value.name][lane]
        return {Special.LANE: lane, Special.CUID: self.warp.unit}[value]  # type: ignore[index]

    def of_kept(self, register: Kept) -> list[int]:
        return self.warp.kept.setdefault(register.key, [register.initial] * self.warp.lanes.number)

    def put(self, register: Register, lane: int, value: int) -> None:
        bits = self.warp.lanes.number if register.type is Type.LANES else register.type.bits
        value %= 1 << bits
        if isinstance(register, Kept):
            self.of_kept(register)[lane] = value
        else:
            self.registers.setdefault(register.name, {})[lane] = value


_OF_ONE = {Operator.NOT, Operator.MOVE, Operator.POPC, Operator.HIGHEST, Operator.LOWEST, Operator.NEG}
_OPERATORS: Mapping[Operator, Callable[[int, int], int]] = {
    Operator.ADD: lambda a, b: a + b, Operator.SUB: lambda a, b: a - b, Operator.MUL: lambda a, b: a * b,
    Operator.AND: lambda a, b: a & b, Operator.OR: lambda a, b: a | b, Operator.XOR: lambda a, b: a ^ b,
    Operator.MIN: min, Operator.MAX: max, Operator.SHL: lambda a, b: a << b, Operator.DIV: lambda a, b: a // b,
}  # fmt: skip
_RELATIONS: Mapping[Relation, Callable[[int, int], bool]] = {
    Relation.EQ: lambda a, b: a == b, Relation.NE: lambda a, b: a != b, Relation.LT: lambda a, b: a < b,
    Relation.LE: lambda a, b: a <= b, Relation.GT: lambda a, b: a > b, Relation.GE: lambda a, b: a >= b,
}  # fmt: skip


def _type(value: Value) -> Type:
    assert not isinstance(value, str)
    return value.type  # type: ignore[union-attr]


def _signed(value: int, kind: Type) -> int:
    return value - (1 << kind.bits) if kind.is_signed and value >> (kind.bits - 1) else value
