"""What becomes of values that probes save: records in slots, sums in cells, and addresses of both."""

from __future__ import annotations

from dataclasses import dataclass

from neutrino.abi.levels import Level, Per
from neutrino.abi.probe_block import (
    BLOCK_CELL,
    BLOCK_COPY_MASK,
    BLOCK_HEADER,
    BLOCK_PER_MAP,
    BLOCK_WARP_CAPACITY,
    BLOCK_WARPS_PER_BLOCK,
)
from neutrino.abi.records import Field
from neutrino.errors import Span
from neutrino.gcn.instrument.code import Code, Mask, Scalar, Value, Vector
from neutrino.gcn.instrument.compute import CannotError, Computing
from neutrino.gcn.instrument.surroundings import Surroundings
from neutrino.ir.memory import AccumulateSaved, MapStatement, StoreRecord
from neutrino.ir.operands import Constant, Register, Special
from neutrino.ir.statements import Operation, Operator
from neutrino.ir.types import Type
from neutrino.maps.builder import Combining, Lanes, SavedValues
from neutrino.maps.declaration import Layout, Map
from neutrino.maps.regions import SM_ROWS, copy_stride, has_counts, row_stride
from neutrino.probing.ir.structured import Save

_HERE = Span(0, 0)
_COPIES = "hwreg({}, 4, 12)"
"""Bits that differ between compute units, by which copies of a record are chosen."""


def why_not(entry: Map) -> str:
    """Return what of a map is not possible, "" if all is."""
    if entry.kind.layout is Layout.SLOTS:
        if entry.cap != 1 or entry.kind.keeps_last:
            return f"map '{entry.name}': more than one record in a slot is not possible in AMD's kernels yet"
        return ""
    if entry.kind.name != "sum" or any(cell.type.value[0] == "f" for cell in entry.fields):
        return f"map '{entry.name}': a {entry.kind.name} is not possible in AMD's kernels yet"
    return ""


class AnySaved(SavedValues):
    """A SAVE of values of which nothing is known, on a target whose lanes are each by themselves."""

    may_branch = True

    def __init__(self, wave: int, *, is_conditional: bool) -> None:
        """wave: its lanes."""
        self._lanes = Lanes(wave, Combining.NOTHING)
        self._is_conditional = is_conditional

    @property
    def lanes(self) -> Lanes:
        """Those of a wave."""
        return self._lanes

    @property
    def is_conditional(self) -> bool:
        """Whether some lanes do not save."""
        return self._is_conditional


@dataclass(frozen=True)
class Total(Scalar):
    """A sum over all lanes of a wave, in SGPRs."""


class Saving:
    """Lowers the saves of one snippet. computing: of the same. maps: all of the run, by whose indices the probe block
    has their addresses."""

    def __init__(self, computing: Computing, maps: tuple[Map, ...]) -> None:
        """Begin a snippet."""
        self._computing = computing
        self._here: Surroundings = computing.here
        self._code: Code = computing.code
        self._maps = maps

    def save(self, statement: Save, level: Level) -> None:
        """Append the code of a save. level: the probe's, of the lanes that save."""
        if reason := why_not(statement.map):
            raise CannotError(reason)
        code, machine = self._code, self._code.machine
        wave = machine.wave
        with code.scope():
            outer = code.mask()
            code.emit(f"s_mov_{machine.mask} {outer.text}, {machine.exec}")
            end = code.label()
            if statement.guard is not None:
                guard = self._computing.place(statement.guard)
                name = machine.and_not if statement.is_inverted else f"s_and_{machine.mask}"
                code.emit(f"{name} {machine.exec}, {machine.exec}, {guard.text}")
            self._narrow(level)
            code.emit(f"s_cbranch_execz {end}")
            saved = AnySaved(wave, is_conditional=False)
            for step in statement.map.kind.save(statement.map, saved):
                self._write(step, statement)
            code.emit(f"{end}:", f"s_mov_{machine.mask} {machine.exec}, {outer.text}")

    def _narrow(self, level: Level) -> None:
        """Leave the lanes that save, as EXEC has them: the lowest one, or the first of the wave or work-group."""
        code, machine = self._code, self._code.machine
        if level is Level.THREAD:
            return
        if level is Level.GROUP:
            with code.scope():
                lane = code.scalar()
                code.emit(f"s_ff1_i32_b{machine.wave} {lane.text}, {machine.exec}" if machine.generation < 11
                          else f"s_ctz_i32_b{machine.wave} {lane.text}, {machine.exec}")  # fmt: skip
                code.emit(f"s_lshl_{machine.mask} {machine.exec}, 1, {lane.text}")
            return
        code.emit(f"s_and_{machine.mask} {machine.exec}, {machine.exec}, 1")
        if level is Level.BLOCK:
            with code.scope():
                wave = self._here.special(Special.WARP)
                code.emit(f"s_cmp_eq_u32 {self._computing.word(wave, 0)}, 0")
                code.emit(f"s_cselect_{machine.mask} {machine.exec}, {machine.exec}, 0")

    def _write(self, step: MapStatement, statement: Save) -> None:
        """Append the code of one statement of a map's type."""
        if isinstance(step, StoreRecord):
            self._store(statement)
        elif isinstance(step, AccumulateSaved):
            self._add(statement)
        else:
            raise CannotError(f"map '{statement.map.name}': {type(step).__name__} is not possible in AMD's kernels yet")

    # Addresses

    def _region(self, entry: Map) -> Scalar:
        """Return the address of a map's memory, in two SGPRs."""
        code, here, machine = self._code, self._here, self._code.machine
        index = self._maps.index(entry)
        address = here.block_words(BLOCK_HEADER + BLOCK_PER_MAP * index, 2)
        cell = here.block_words(BLOCK_CELL, 2)
        # What the cell holds is added to all addresses; without a cell nothing is.
        known = code.label()
        code.emit(f"s_cmp_eq_u64 {cell.text}, 0", f"s_cbranch_scc1 {known}")
        code.emit(machine.load(cell.text, cell.text, 0, 2), machine.wait_scalar)
        code.emit(f"{machine.add} {address.word(0)}, {address.word(0)}, {cell.word(0)}")
        code.emit(f"{machine.add_carry} {address.word(1)}, {address.word(1)}, {cell.word(1)}")
        code.emit(f"{known}:")
        return address

    def _offset(self, address: Scalar, number: Scalar, stride: int) -> None:
        """Add so many strides to an address."""
        code, machine = self._code, self._code.machine
        with code.scope():
            low, high = code.scalar(), code.scalar()
            code.emit(f"s_mul_i32 {low.text}, {number.text}, {stride:#x}")
            code.emit(f"s_mul_hi_u32 {high.text}, {number.text}, {stride:#x}")
            code.emit(f"{machine.add} {address.word(0)}, {address.word(0)}, {low.text}")
            code.emit(f"{machine.add_carry} {address.word(1)}, {address.word(1)}, {high.text}")

    def block_number(self) -> Scalar:
        """Return the linear number of the work-group in the grid, a u32."""
        code, here, machine, word = self._code, self._here, self._code.machine, self._computing.word
        number, part = code.scalar(), code.scalar()
        code.emit(f"s_mov_b32 {number.text}, {word(here.special(Special.CTAID_Z), 0)}")
        for axis, (group, count) in enumerate(
            ((Special.CTAID_Y, Special.NCTAID_Y), (Special.CTAID_X, Special.NCTAID_X))
        ):
            del axis
            with code.scope():
                code.emit(f"s_mul_i32 {part.text}, {number.text}, {word(here.special(count), 0)}")
                code.emit(f"{machine.add} {number.text}, {part.text}, {word(here.special(group), 0)}")
        code.release(part)
        return number

    def wave_number(self) -> Scalar:
        """Return the linear number of the wave in the grid, a u32."""
        code, here, machine, word = self._code, self._here, self._code.machine, self._computing.word
        number = self.block_number()
        with code.scope():
            count = here.block_words(BLOCK_WARPS_PER_BLOCK)
            code.emit(f"s_mul_i32 {number.text}, {number.text}, {count.text}")
            code.emit(f"{machine.add} {number.text}, {number.text}, {word(here.special(Special.WARP), 0)}")
        return number

    # Records

    def _store(self, statement: Save) -> None:
        """Store a record in the slot of each lane that saves, or of its wave or work-group."""
        entry, code, here, machine = statement.map, self._code, self._here, self._code.machine
        if has_counts(entry):
            raise CannotError(why_not(entry))
        with code.scope():
            address = self._region(entry)
            wave = self.wave_number()
            # Waves for which the launch has no memory have no slot.
            end = code.label()
            with code.scope():
                capacity = here.block_words(BLOCK_WARP_CAPACITY)
                code.emit(f"s_cmp_lt_u32 {wave.text}, {capacity.text}", f"s_cbranch_scc0 {end}")
            if entry.level is Level.BLOCK:
                self._offset(address, self.block_number(), entry.size)
            else:
                lanes = machine.wave if entry.level is Level.THREAD else 1
                self._offset(address, wave, entry.size * lanes)
            place = code.vector()
            if entry.level is Level.THREAD:
                lane = self._computing.in_vector(here.special(Special.LANE), 1)
                size = self._computing.in_vector(Constant(Type.U32, entry.size), 1)
                code.emit(f"v_mul_lo_u32 {place.text}, {size.text}, {lane.text}")
            else:
                code.emit(f"v_mov_b32_e32 {place.text}, 0")
            for operand, cell in zip(statement.operands, entry.fields, strict=True):
                with code.scope():
                    value = self._field(operand, cell)
                    self._store_value(place, value, address, cell)
            code.emit(f"{end}:")

    def _field(self, operand: object, cell: Field) -> Value:
        """Return what is saved in a field, in VGPRs: integers extended or cut."""
        to = Type(cell.type.value)
        value, source = self._computing.value(operand), _type_of(operand)
        words = 2 if cell.type.size == 8 else 1
        if isinstance(value, Mask):
            result = self._code.vector(words)
            self._computing.from_mask(result, value, to)
            return result
        if source is not None and source.is_float != to.is_float and not source.is_untyped:
            raise CannotError(f"a value of {source} is not saved as {to}")
        if isinstance(value, Constant) or value.words == words:
            return self._computing.in_vector(value, words)
        result = self._code.vector(words)
        if words == 1:
            self._code.emit(f"v_mov_b32_e32 {result.text}, {value.word(0)}")
            return result
        self._code.emit(f"v_mov_b32_e32 {result.word(0)}, {value.word(0)}")
        if to.is_signed:
            self._code.emit(f"v_ashrrev_i32_e32 {result.word(1)}, 31, {result.word(0)}")
        else:
            self._code.emit(f"v_mov_b32_e32 {result.word(1)}, 0")
        return result

    def _store_value(self, place: Vector, value: Value, address: Scalar, cell: Field) -> None:
        """Store a value in a field."""
        code, machine = self._code, self._code.machine
        assert isinstance(value, Vector)
        offset = f" offset:{cell.offset}" if cell.offset else ""
        code.emit(f"{machine.store(8 * cell.type.size)} {place.text}, {value.text}, {address.text}{offset}")

    # Sums

    def _add(self, statement: Save) -> None:
        """Add what is saved to the cells of a launch's record, or of a row."""
        entry, code, machine = statement.map, self._code, self._code.machine
        with code.scope():
            address = self._region(entry)
            lanes_apart = entry.per is Per.THREAD
            place = code.vector()
            code.emit(f"v_mov_b32_e32 {place.text}, 0")
            if entry.per.has_rows:
                self._row(entry, address, place)
            else:
                with code.scope():
                    mask, number = self._here.block_words(BLOCK_COPY_MASK), code.scalar()
                    register = "HW_REG_HW_ID" if machine.generation == 9 else "HW_REG_HW_ID1"
                    # Any copy is right; compute units take different ones.
                    code.emit(f"s_getreg_b32 {number.text}, {_COPIES.format(register)}")
                    code.emit(f"s_and_b32 {number.text}, {number.text}, {mask.text}")
                    self._offset(address, number, copy_stride(entry.size))
            for operand, cell in zip(statement.operands, entry.fields, strict=True):
                with code.scope():
                    self._add_value(operand, cell, address, place, is_apart=lanes_apart)

    def _add_value(self, operand: object, cell: Field, address: Scalar, place: Vector, *, is_apart: bool) -> None:
        """Add a value of each lane to a cell; what is the same in all lanes by one of them, as often as there are."""
        code, machine, computing = self._code, self._code.machine, self._computing
        value = computing.value(operand)
        bits = 8 * cell.type.size
        words = bits // 32
        is_total = isinstance(value, Total)
        if is_apart or isinstance(value, (Vector, Mask)):
            if is_total:
                raise CannotError("a sum of a wave is not one of a lane")
            amount = self._field(operand, cell)
            self._atomic(amount, address, place, cell)
            return
        total = code.scalar(words)
        if is_total:
            computing.move(total, value, Type.U64)
        else:
            self._times_lanes(total, value, Type(cell.type.value), operand)
        outer = code.mask()
        code.emit(f"s_mov_{machine.mask} {outer.text}, {machine.exec}")
        self._narrow(Level.GROUP)
        self._atomic(computing.in_vector(total, words), address, place, cell)
        code.emit(f"s_mov_{machine.mask} {machine.exec}, {outer.text}")

    def _times_lanes(self, total: Scalar, value: Value, type_: Type, operand: object) -> None:
        """Multiply a value by the number of lanes that save it."""
        code, machine, computing = self._code, self._code.machine, self._computing
        lanes, extended = code.scalar(), code.scalar(total.words)
        code.emit(f"s_bcnt1_i32_{machine.mask} {lanes.text}, {machine.exec}")
        source = _type_of(operand) or type_
        computing.integer(extended, type_, value, source)
        here = Register("%", type_, 0, _HERE, is_local=True)
        computing.scalar_product(total, Operation(Operator.MUL, here, (), _HERE), [extended, lanes])

    def _atomic(self, amount: Value, address: Scalar, place: Vector, cell: Field) -> None:
        """Add to a cell in memory."""
        code, machine = self._code, self._code.machine
        assert isinstance(amount, Vector)
        offset = f" offset:{cell.offset}" if cell.offset else ""
        code.emit(f"{machine.atomic('add', 8 * cell.type.size)} {place.text}, {amount.text}, {address.text}{offset}")

    def _row(self, entry: Map, address: Scalar, place: Vector) -> None:
        """Add to an address where the row of the work-group, wave, lane or compute unit begins; of a lane the rest is
        in ``place``. The first row is of those that have none."""
        code, here, machine = self._code, self._here, self._code.machine
        stride = row_stride(entry)
        with code.scope():
            if entry.per is Per.SM:
                unit = here.special(Special.CUID)
                number = code.scalar()
                code.emit(f"{machine.add} {number.text}, {self._computing.word(unit, 0)}, 1")
                code.emit(f"s_cmp_le_u32 {number.text}, {SM_ROWS}", f"s_cselect_b32 {number.text}, {number.text}, 0")
                self._offset(address, number, stride)
                return
            number = self.block_number() if entry.per is Per.BLOCK else self.wave_number()
            limit = code.scalar()
            capacity = here.block_words(BLOCK_WARP_CAPACITY)
            if entry.per is Per.BLOCK:
                # Work-groups whose waves have memory have a row.
                count = here.block_words(BLOCK_WARPS_PER_BLOCK)
                code.emit(f"s_mul_i32 {limit.text}, {number.text}, {count.text}")
                code.emit(f"s_cmp_lt_u32 {limit.text}, {capacity.text}")
            else:
                code.emit(f"s_cmp_lt_u32 {number.text}, {capacity.text}")
            has_row = code.scalar()
            code.emit(f"s_cselect_b32 {has_row.text}, 1, 0")
            if entry.per is Per.THREAD:
                code.emit(f"s_mul_i32 {number.text}, {number.text}, {machine.wave}")
            code.emit(f"{machine.add} {number.text}, {number.text}, 1")
            code.emit(f"s_cmp_lg_u32 {has_row.text}, 0", f"s_cselect_b32 {number.text}, {number.text}, 0")
            self._offset(address, number, stride)
            if entry.per is Per.THREAD:
                lane = self._computing.in_vector(here.special(Special.LANE), 1)
                rows = code.scalar()
                code.emit(f"s_mul_i32 {rows.text}, {has_row.text}, {stride}")
                code.emit(f"v_mul_lo_u32 {place.text}, {rows.text}, {lane.text}")


def _type_of(operand: object) -> Type | None:
    """Return the type of an operand, None of a site's value."""
    return operand.type if isinstance(operand, (Register, Constant)) else None
