"""The statements of map types as instructions: what becomes of saved values in registers and in memory.

Lanes are each by themselves (``Combining.NOTHING``): what differs between them is in VGPRs, and everything is computed
there, since most values do. Where a statement is for some lanes alone, EXEC has these while it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from neutrino.abi.levels import Level, Per
from neutrino.abi.probe_block import (
    BLOCK_HEADER,
    BLOCK_LOG_FIRST,
    BLOCK_LOG_UNITS,
    BLOCK_PER_MAP,
    BLOCK_WARP_CAPACITY,
    BLOCK_WARPS_PER_BLOCK,
)
from neutrino.gcn.instrument.code import Place, Vector
from neutrino.gcn.instrument.compute import CannotError
from neutrino.gcn.instrument.map_memory import Stored, Where
from neutrino.gcn.instrument.map_places import Places
from neutrino.gcn.instrument.map_together import MapTogether
from neutrino.gcn.instrument.surroundings import Surroundings
from neutrino.ir.memory import (
    Accumulate,
    Apart,
    At,
    AtomicUpdate,
    Block,
    Branch,
    CompareAnd,
    CompareAndSwap,
    EachInTurn,
    Elect,
    EnsureRoom,
    Extent,
    HasSlot,
    Kept,
    Leave,
    LoadCell,
    LoadStored,
    Locate,
    MapStatement,
    Meet,
    OneOf,
    ReadExtent,
    ReadSaved,
    ReserveInLog,
    SlotNumber,
    Store,
    StoreSaved,
    StoreTogether,
    When,
)
from neutrino.ir.operands import Constant, Register
from neutrino.ir.statements import (
    Collective,
    Compare,
    Convert,
    Operation,
    Operator,
    Reduction,
    Reinterpret,
    Select,
)
from neutrino.ir.types import Type
from neutrino.maps.declaration import Layout, Map

COMPUTED = (Operation, Convert, Reinterpret, Compare, Select)
"""Statements that map types share with probes."""
_CELL = 8
"""Bytes of a cell that has a place."""
ReadField = Callable[[int, Type], Vector]
"""Brings the value that is saved to a field, by its number, into VGPRs, as a type."""


def kept_name(index: int, register: Kept) -> str:
    """Return the name, among all of a kernel, of a register that a map keeps. index: of the map."""
    return f"%map{index}{register.name}"


class MapStatements(MapTogether):
    """Lowers statements of a map's type. entry, index: the map. read: see ``ReadField``; None where nothing is saved.
    EXEC has the lanes that execute them, at least one.
    """

    def __init__(self, here: Surroundings, entry: Map, index: int, read: ReadField | None = None) -> None:
        """Begin a piece of code."""
        super().__init__(here, entry)
        self.places = Places(self)
        self._index, self._read = index, read

    def write(self, statements: tuple[MapStatement, ...]) -> None:
        """Append the instructions of statements."""
        self.write_plain(plain_statements(statements, self.code.machine.wave))

    def write_plain(self, statements: tuple[MapStatement, ...]) -> None:
        """Append the instructions of what ``plain_statements`` returned."""
        self._rows(statements)

    def place(self, register: Register) -> Place:
        """Return where a register is: a local one is in VGPRs, whatever it has, and a predicate in SGPRs."""
        if isinstance(register, Kept):
            return self.here.home(replace(register, name=kept_name(self._index, register)))
        found = self._places.get(register.name)
        if found is None:
            found = self.code.mask() if register.type is Type.PRED else self.code.vector(self.words(register.type))
            self._places[register.name] = found
            self.code.pin(found)
        return found

    def _lower(self, statement: Any) -> None:
        """Append the instructions for one statement of a map type. Raises CannotError for one that is not possible."""
        writer = _WRITERS.get(type(statement))
        if writer is not None:
            writer(self, statement)
        elif isinstance(statement, COMPUTED):
            super()._lower(statement)
        else:
            raise CannotError(f"{type(statement).__name__} is not possible in AMD's kernels yet")

    # Values

    def _compare_and(self, statement: CompareAnd) -> None:
        """Append a comparison of which the result is true only where another predicate is true as well."""
        machine, destination = self.code.machine, self.place(statement.destination)
        plain = Compare(statement.relation, statement.destination, statement.left, statement.right, statement.span)
        super()._lower(plain)
        also = self.place(statement.also)
        self.code.emit(f"s_and_{machine.mask} {destination.text}, {destination.text}, {also.text}")

    @property
    def _combines(self) -> bool:
        """Whether the lanes that end together combine their values: threads' own, which have no rows of their own."""
        return self._entry.level is Level.THREAD and self._entry.per is not Per.THREAD

    def _together(self, statement: Collective) -> None:
        """Reduce a value over the lanes that end together, which are the first ones of the wave, by a tree: each lane
        takes that of its neighbour, then of the one two lanes after it, and so on. The first lane has the result."""
        code, machine, type_ = self.code, self.code.machine, statement.destination.type
        destination = self.place(statement.destination)
        self.move(destination, self.value(statement.source), type_)
        if not self._combines:
            return
        assert isinstance(destination, Vector)
        operator = {Reduction.MAX: Operator.MAX, Reduction.SUM: Operator.ADD}[statement.reduction]
        other = Register("%other", type_, 0, statement.span, is_local=True)
        taken = code.vector(destination.words)
        self.bind(other, taken)
        step_of = Operation(operator, statement.destination, (statement.destination, other), statement.span)
        lane, place = code.vector(), code.vector()
        code.emit(*machine.lane(lane.text))
        step = 1
        while step < machine.permuted:
            code.emit(
                f"v_add{self.no_carry}_u32_e32 {place.text}, {step}, {lane.text}",
                f"v_lshlrev_b32_e32 {place.text}, 2, {place.text}",
                # Of lanes that are not there it gives 0, which changes neither a sum nor the greatest.
                *(f"ds_bpermute_b32 {taken.word(word)}, {place.text}, {destination.word(word)}"
                  for word in range(destination.words)),
                machine.wait_shared,
            )  # fmt: skip
            super()._lower(step_of)
            step *= 2
        if step < machine.wave:
            end, upper = code.label(), code.scalar(destination.words)
            code.emit("s_cmp_eq_u32 exec_hi, 0", f"s_cbranch_scc1 {end}")
            for word in range(destination.words):
                code.emit(f"v_readlane_b32 {upper.word(word)}, {destination.word(word)}, {step}")
            self.move(taken, upper, type_)
            super()._lower(step_of)
            code.emit(f"{end}:")

    def _elect(self, statement: Elect) -> None:
        """Append code that elects, as a lane mask, the lane that acts for all; each lane itself where lanes do not
        combine."""
        machine = self.code.machine
        lanes = "1" if self._combines else machine.exec
        self.code.emit(f"s_and_{machine.mask} {self.place(statement.destination).text}, {machine.exec}, {lanes}")

    def _read_saved(self, statement: ReadSaved) -> None:
        """Append code that reads one of the values that the probe saves."""
        type_ = statement.destination.type
        self.move(self.place(statement.destination), self._saved(statement.number, type_), type_)

    def _saved(self, number: int, type_: Type) -> Vector:
        """Return the VGPRs that have one of the values that the probe saves. number: its place among them."""
        if self._read is None:
            raise CannotError("nothing is saved here")
        return self._read(number, type_)

    def _slot_number(self, statement: SlotNumber) -> None:
        """Append code that writes the number of the slot that a lane saves to: its thread's, warp's or block's."""
        self.move(self.place(statement.destination), self.places.slot(self._entry.level), Type.U32)

    def _has_slot(self, statement: HasSlot) -> None:
        """Append code that writes a predicate: whether a lane is one of those that save at the map's level."""
        machine, level = self.code.machine, self._entry.level
        found = self.places.owners(self.places.slot(level), level)
        self.code.emit(f"s_mov_{machine.mask} {self.place(statement.destination).text}, {found.text}")

    def _extent(self, statement: ReadExtent) -> None:
        """Append code that reads one of the numbers that a launch gives to a log, such as how many warps there are."""
        offset = {
            Extent.OWN_UNITS: self._of_map(BLOCK_LOG_FIRST), Extent.WARPS: BLOCK_WARP_CAPACITY,
            Extent.WARPS_PER_BLOCK: BLOCK_WARPS_PER_BLOCK,
        }[statement.extent]  # fmt: skip
        self.move(self.place(statement.destination), self.here.block_words(offset), Type.U32)

    def _of_map(self, offset: int) -> int:
        """Return where the probe block has a word of the map."""
        return BLOCK_HEADER + BLOCK_PER_MAP * self._index + offset

    # Cells

    def record(self) -> Where:
        """Return where the cells are that a lane here adds to; of a log, where its region begins."""
        if self._record is None:
            code = self.code
            if self._entry.kind.layout is Layout.CHUNKS:
                base, place = self.places.region(self._index), code.vector()
                code.emit(f"v_mov_b32_e32 {place.text}, 0")
            else:
                base, place = self.places.record(self._index, self._entry)
            code.pin(base)
            code.pin(place)
            self._record = Where(place, base)
        return self._record

    def _address(self, where: Where, place: Vector) -> None:
        """Write a place to two VGPRs. Its offset is 0."""
        code = self.code
        assert where.base is not None
        with code.scope():
            extended = code.vector(2)
            code.emit(f"v_mov_b32_e32 {extended.word(0)}, {where.address.text}", f"v_mov_b32_e32 {extended.word(1)}, 0")
            self.add_pair(place, self.in_vector(where.base, 2), extended)

    def _locate(self, statement: Locate) -> None:
        """Append code that computes the address of a cell, by its number, in the map's record or from another place."""
        code, size, destination = self.code, _CELL * statement.words, self.place(statement.destination)
        assert isinstance(destination, Vector)
        with code.scope():
            if statement.base is None:
                where = self.record()
                place = code.vector(2)
                self._address(where, place)
            else:
                base = self.place(statement.base)
                assert isinstance(base, Vector)
                place = base
            with self.only(statement.when, skips=False):
                number = Constant(Type.U32, size)
                product = Operation(
                    Operator.MUL_ADD, statement.destination, (statement.cell, number, self._name(place, Type.U64)),
                    statement.span,
                )  # fmt: skip
                if isinstance(statement.cell, Constant) and not statement.cell.bits:
                    self.move(destination, place, Type.U64)
                else:
                    super()._lower(product)

    def _name(self, place: Place, type_: Type) -> Register:
        """Return a register of statements that is at a place, till the next one is asked for."""
        register = replace(_SCRATCH, type=type_)
        self.bind(register, place)
        return register

    def _at(self, cell: At) -> Where:
        """Return where in memory a cell is that lies some cells after a place."""
        place = self.place(cell.place)
        assert isinstance(place, Vector)
        return self.memory.after(Where(place), _CELL * cell.after)

    def _load_cell(self, statement: LoadCell) -> None:
        """Append code that loads a cell of 64 bits."""
        destination = self.place(statement.destination)
        assert isinstance(destination, Vector)
        with self.only(statement.when):
            self.memory.load(destination, self._at(statement.cell))

    def _swap(self, statement: CompareAndSwap) -> None:
        """Append code that writes a value to a cell if it has the expected one, and returns what it had (compare and
        swap)."""
        destination = self.place(statement.destination)
        assert isinstance(destination, Vector)
        with self.only(statement.when):
            where = self._at(statement.cell)
            desired, expected = self.value(statement.desired), self.value(statement.expected)
            self.swap(destination, where, desired, expected)

    def _update(self, statement: AtomicUpdate) -> None:
        """Append an atomic update (add, max and so on) of a cell in memory."""
        cell = statement.cell
        if not isinstance(cell, At):
            self.record()
        with self.only(statement.when), self.code.scope():
            if isinstance(cell, At):
                where = self._at(cell)
            elif isinstance(cell, OneOf):
                where = self._one_of(cell)
            else:
                where = self.memory.after(self.record(), self._offset(cell))
            value = self.value(statement.value)
            if statement.value.type.is_float:
                self.memory.add_float(where, self.in_vector(value, 2))
            else:
                self.combine(statement.operator, where, value, 2)

    def _one_of(self, cell: OneOf) -> Where:
        """Return where in memory one of two cells is, by a predicate."""
        code, record = self.code, self.record()
        then, otherwise = self._offset(cell.then), self._offset(cell.otherwise)
        place, condition = code.vector(2), self.place(cell.condition)
        self._address(record, place)
        with code.scope():
            first, second = self.in_vector(Constant(Type.U32, then), 1), code.vector(2)
            other = self.in_vector(Constant(Type.U32, otherwise), 1)
            code.emit(
                f"v_mov_b32_e32 {second.word(1)}, 0",
                *self.code.machine.ahead_of_lanes,
                f"v_cndmask_b32_e64 {second.word(0)}, {other.text}, {first.text}, {condition.text}",
            )
            self.add_pair(place, place, second)
        return Where(place)

    def _offset(self, cell: int) -> int:
        """Return where a cell is in the record, in bytes."""
        return self._entry.kind.cells(self._entry.fields)[cell].offset

    def _accumulate(self, statement: Accumulate) -> None:
        """Append an addition to a cell of the map's record in memory."""
        record = self.record()
        with self.only(statement.when), self.code.scope():
            where = self.memory.after(record, self._offset(statement.cell))
            self.combine(statement.operator, where, self.value(statement.amount), 2)

    # Logs

    def _reserve(self, statement: ReserveInLog) -> None:
        """Append code that takes some units of a log's memory, and says whether they were there."""
        code, machine, here = self.code, self.code.machine, self.here
        first, fits = self.place(statement.destination), self.place(statement.fits)
        base = self.place(statement.base)
        assert isinstance(base, Vector)
        units = self.in_vector(self.value(statement.units), 1)
        with self.only(statement.when):
            old = code.vector(2)
            self.take(old, Where(base), units)
            if statement.after_own:
                own, total = here.block_words(self._of_map(BLOCK_LOG_FIRST)), code.scalar(2)
                warps = here.block_words(BLOCK_WARP_CAPACITY)
                code.emit(f"s_mul_i32 {total.word(0)}, {own.text}, {warps.text}")
                code.emit(f"s_mul_hi_u32 {total.word(1)}, {own.text}, {warps.text}")
                self.add_pair(old, old, self.in_vector(total, 2))
            limit = here.block_words(self._of_map(BLOCK_LOG_UNITS))
            if statement.most is not None:
                code.emit(f"s_min_u32 {limit.text}, {limit.text}, {statement.most:#x}")
            # All of it must be before the end, also where what was taken is not a number of units: replays of a graph
            # for which there is no memory share some that is not zeroed.
            part, left, most = code.mask(), code.vector(), self.in_vector(limit, 1)
            subtract = "v_sub_nc_u32" if machine.generation >= 10 else "v_sub_u32"
            code.emit(
                f"v_cmp_eq_u32_e64 {fits.text}, 0, {old.word(1)}",
                f"v_cmp_le_u32_e64 {part.text}, {old.word(0)}, {most.text}",
                f"s_and_{machine.mask} {fits.text}, {fits.text}, {part.text}",
                f"{subtract}_e32 {left.text}, {most.text}, {old.word(0)}",
                f"v_cmp_ge_u32_e64 {part.text}, {left.text}, {units.text}",
                f"s_and_{machine.mask} {fits.text}, {fits.text}, {part.text}",
            )
            self.move(first, Vector(old.first), Type.U32)

    def _stored(self, place: Register, after: int, parts: list[Stored], when: Register | None) -> None:
        """Append code that stores numbers in memory some bytes after a place."""
        base = self.place(place)
        assert isinstance(base, Vector)
        with self.only(when):
            self.memory.store(Where(base, offset=after), parts)

    def _store(self, statement: Store) -> None:
        """Append a store of numbers of one type, one after the other."""
        size = statement.type.bits // 8
        parts = [Stored(number * size, self.value(value), size) for number, value in enumerate(statement.values)]
        self._stored(statement.place, statement.after, parts, statement.when)

    def _store_together(self, statement: StoreTogether) -> None:
        """Append a store of numbers of several types, each at its offset."""
        parts = [Stored(part.after, self.value(part.value), part.type.bits // 8) for part in statement.parts]
        self._stored(statement.place, statement.after, parts, statement.when)

    def _store_saved(self, statement: StoreSaved) -> None:
        """Append a store of the values that the probe saves, as the fields of a record."""
        with self.only(statement.when):
            parts = self.saved_parts()
            self._stored(statement.place, statement.after, parts, None)

    def saved_parts(self) -> list[Stored]:
        """Return what is saved to each field."""
        return [
            Stored(cell.offset, self._saved(number, Type(cell.type.value)), cell.type.size)
            for number, cell in enumerate(self._entry.fields)
        ]

    def _load_stored(self, statement: LoadStored) -> None:
        """Append a load of what this wave has stored before."""
        destination, base = self.place(statement.destination), self.place(statement.place)
        assert isinstance(destination, Vector)
        assert isinstance(base, Vector)
        with self.only(statement.when):
            self.memory.load(destination, self.memory.after(Where(base), statement.after), is_shared=False)

    def _ensure_room(self, statement: EnsureRoom) -> None:
        """Append code that makes sure that a log has memory left for another record."""
        entry = self._entry
        self.write(tuple(entry.kind.make_room(entry, 1, entry.kind.rooms(entry)[0], statement.when)))


_SCRATCH = Register("%at", Type.U64, 0, None, is_local=True)  # type: ignore[arg-type]
_WRITERS: dict[type, Callable[[MapStatements, Any], None]] = {
    Apart: MapStatements._apart, When: MapStatements._when, Branch: MapStatements._branch_all,
    Block: MapStatements._block, Leave: MapStatements._leave, EachInTurn: MapStatements._in_turn,
    Meet: MapStatements._meet, CompareAnd: MapStatements._compare_and, Collective: MapStatements._together,
    Elect: MapStatements._elect, ReadSaved: MapStatements._read_saved, SlotNumber: MapStatements._slot_number,
    HasSlot: MapStatements._has_slot, ReadExtent: MapStatements._extent, Locate: MapStatements._locate,
    LoadCell: MapStatements._load_cell, CompareAndSwap: MapStatements._swap, AtomicUpdate: MapStatements._update,
    Accumulate: MapStatements._accumulate, ReserveInLog: MapStatements._reserve, Store: MapStatements._store,
    StoreTogether: MapStatements._store_together, StoreSaved: MapStatements._store_saved,
    LoadStored: MapStatements._load_stored, EnsureRoom: MapStatements._ensure_room,
}  # fmt: skip
WRITTEN = frozenset(_WRITERS)
"""The types of statements besides ``COMPUTED`` that are lowered."""


def plain_statements(statements: tuple[MapStatement, ...], wave: int) -> tuple[MapStatement, ...]:
    """Return statements in which sets of lanes are integers. wave: how many lanes there are."""
    plain: tuple[MapStatement, ...] = _with_plain_lanes(statements, Type.U64 if wave == 64 else Type.U32)
    return plain


def _with_plain_lanes(node: Any, mask: Type) -> Any:
    """Return statements in which sets of lanes are integers of a type."""
    if isinstance(node, tuple):
        return tuple(_with_plain_lanes(one, mask) for one in node)
    if isinstance(node, (Register, Constant)):
        return replace(node, type=mask) if node.type is Type.LANES else node
    if not is_dataclass(node) or isinstance(node, type):
        return node
    changed = {
        one.name: _with_plain_lanes(getattr(node, one.name), mask) for one in fields(node) if one.name != "span"
    }
    return replace(node, **changed)
