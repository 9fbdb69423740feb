"""What becomes of values that probes save: records in slots, sums in cells, and whatever else a map's type writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache, partial

from neutrino.abi.levels import Level, Per
from neutrino.abi.records import Field
from neutrino.errors import Span
from neutrino.gcn.instrument import compute
from neutrino.gcn.instrument.code import Code, Mask, Scalar, Vector
from neutrino.gcn.instrument.compute import CannotError, Computing
from neutrino.gcn.instrument.machine import Machine
from neutrino.gcn.instrument.map_memory import Where
from neutrino.gcn.instrument.map_statements import COMPUTED, WRITTEN, MapStatements, kept_name, plain_statements
from neutrino.gcn.instrument.remembered import remembered
from neutrino.gcn.instrument.surroundings import Surroundings
from neutrino.ir.memory import AccumulateSaved, Kept, MapStatement, StoreRecord
from neutrino.ir.operands import Constant, Immediate, Register
from neutrino.ir.statements import Convert, Operator
from neutrino.ir.types import Type
from neutrino.maps.builder import Combining, Lanes, SavedValues
from neutrino.maps.declaration import Map
from neutrino.maps.float_sums import FLOATS
from neutrino.maps.regions import SM_ROWS, has_counts
from neutrino.probing.ir.structured import Save

_HERE = Span(0, 0)
_COUNT = Kept("%count", Type.U32, 0, _HERE, key=(-1,))
"""How many records a slot's owner has saved."""
_ROW = Kept("%row", Type.U32, 0, _HERE, key=(-2,))
"""Of a map that keeps the last ones, where the next one goes, if that is not in the count's lower bits."""
_MOST_SLOT = 1 << 31
"""Bytes of the slots of a wave."""


def why_not(entry: Map, machine: Machine) -> str:
    """Return what of a map cannot be saved to in a processor's kernels, in words; "" if all can."""
    if entry.per is Per.SM and machine.most_units > SM_ROWS:
        return f"map '{entry.name}': it has {SM_ROWS} rows, too few for the compute units of {machine.processor}"
    return _not_lowered(entry, machine.wave)


@lru_cache(maxsize=256)
def _not_lowered(entry: Map, wave: int) -> str:
    """Return which statement of a map's type is not lowered, "" for none."""
    lanes = Lanes(wave, Combining.NOTHING)
    kept = kept_by_type(entry, wave)
    kind = entry.kind
    pieces = kind.save(entry, AnySaved(wave)), kind.begin(entry, kept, lanes), kind.settle(entry, kept, lanes)
    for statement in _statements_in(pieces):
        reason = ""
        if isinstance(statement, COMPUTED):
            reason = compute.why_not(statement)
        elif type(statement) not in WRITTEN and not isinstance(statement, (StoreRecord, AccumulateSaved)):
            reason = f"{type(statement).__name__} is not possible in AMD's kernels yet"
        if reason:
            return f"map '{entry.name}', a {kind.name}: {reason}"
    if has_counts(entry) and entry.cap * entry.size * wave >= _MOST_SLOT:
        return f"map '{entry.name}': {entry.cap:,} records of {entry.size} bytes are too many in AMD's kernels"
    return ""


def kept_registers(entry: Map, index: int, wave: int) -> list[Register]:
    """Return the registers that a map keeps in each lane from a kernel's entry to its ends, with the names by which
    their homes are asked for. index: of the map."""
    kept = list(kept_by_type(entry, wave))
    if has_counts(entry):
        kept.append(_COUNT)
        if _has_row(entry):
            kept.append(_ROW)
    return [Register(kept_name(index, one), one.type, one.initial, one.span) for one in kept]


@lru_cache(maxsize=256)
def kept_by_type(entry: Map, wave: int) -> tuple[Kept, ...]:
    """Return the registers that a map's type asks to keep from a kernel's entry to its ends."""
    kind, found = entry.kind, dict[str, Kept]()
    for node in _nodes_in(kind.save(entry, AnySaved(wave))):
        if isinstance(node, Kept):
            found.setdefault(node.name, node)
    if not found:
        return ()
    # A piece of code that takes memory may keep more.
    lanes = Lanes(wave, Combining.NOTHING)
    kept = tuple(found.values())
    for node in _nodes_in((kind.begin(entry, kept, lanes), kind.settle(entry, kept, lanes))):
        if isinstance(node, Kept):
            found.setdefault(node.name, node)
    return tuple(found.values())


def _has_row(entry: Map) -> bool:
    """Return whether a map that keeps the last records counts rows apart, since its cap is no power of two."""
    return entry.kind.keeps_last and bool(entry.cap & (entry.cap - 1))


class AnySaved(SavedValues):
    """A SAVE of values of which nothing is known but constants, on a target whose lanes are each by themselves."""

    may_branch = True
    is_conditional = False
    """EXEC has the lanes that save."""

    def __init__(self, wave: int, operands: Sequence[object] = ()) -> None:
        """wave: its lanes. operands: of the save."""
        self._lanes = Lanes(wave, Combining.NOTHING)
        self._operands = operands

    @property
    def lanes(self) -> Lanes:
        """How many lanes save together, of which each is by itself: those of a wave."""
        return self._lanes

    def constant(self, number: int) -> int | None:
        """Return the value of an operand that is an integer known when code is written."""
        operand = self._operands[number] if self._operands else None
        if not isinstance(operand, Constant) or not operand.type.is_integer:
            return None
        is_negative = operand.type.is_signed and operand.bits >> operand.type.bits - 1
        return operand.bits - (1 << operand.type.bits) if is_negative else operand.bits


@dataclass(frozen=True)
class Total(Scalar):
    """A sum over all lanes of a wave, in SGPRs."""


def _steps(wave: int, statement: Save) -> tuple[list[MapStatement], tuple[MapStatement, ...]]:
    """Return the statements of a save that are written here, and the others, without sets of lanes. wave: its lanes."""
    own: list[MapStatement] = []
    others: list[MapStatement] = []
    for step in statement.map.kind.save(statement.map, AnySaved(wave, statement.operands)):
        (own if isinstance(step, (StoreRecord, AccumulateSaved)) else others).append(step)
    return own, plain_statements(tuple(others), wave)


_STEPS = {wave: remembered(partial(_steps, wave)) for wave in (32, 64)}


class Saving:
    """Lowers the saves of one snippet. computing: of the same. maps: all of the run, by whose indices the probe block
    has their addresses. level: the probe's, of the lanes that save; at level group the lowest of those that are at the
    site together, whatever conditions the save is under."""

    def __init__(self, computing: Computing, maps: tuple[Map, ...], level: Level) -> None:
        """Begin a snippet, in front of its statements."""
        self._computing = computing
        self._here: Surroundings = computing.here
        self._code: Code = computing.code
        self._maps, self._level = maps, level
        self._leader: Mask | None = None
        if level is Level.GROUP:
            self._leader = self._code.mask()
            self._code.pin(self._leader)
            self._find_leader(self._leader)

    def _find_leader(self, leader: Mask) -> None:
        """Append code that finds the lowest active lane, as a lane mask; empty if no lane is active."""
        code, machine = self._code, self._code.machine
        code.emit(f"{machine.add} {leader.word(0)}, exec_lo, -1")
        if machine.wave == 64:
            code.emit(f"{machine.add_carry} {leader.word(1)}, exec_hi, -1")
        code.emit(f"{machine.and_not} {leader.text}, {machine.exec}, {leader.text}")

    def save(self, statement: Save) -> None:
        """Append the code of a save."""
        code, machine, entry = self._code, self._code.machine, statement.map
        if reason := why_not(entry, machine):
            raise CannotError(reason, "map")
        index = self._maps.index(entry)
        with code.scope():
            outer, end = code.mask(), code.label()
            code.emit(f"s_mov_{machine.mask} {outer.text}, {machine.exec}")
            if statement.guard is not None:
                guard = self._computing.place(statement.guard)
                name = machine.and_not if statement.is_inverted else f"s_and_{machine.mask}"
                code.emit(f"{name} {machine.exec}, {machine.exec}, {guard.text}")
            writer = MapStatements(self._here, entry, index, partial(self._read, statement))
            if self._leader is not None:
                code.emit(f"s_and_{machine.mask} {machine.exec}, {machine.exec}, {self._leader.text}")
            else:
                writer.places.narrow(self._level)
            code.emit(f"s_cbranch_execz {end}")
            own, others = _STEPS[machine.wave](statement)
            for step in own:
                if isinstance(step, StoreRecord):
                    self._store(writer, entry, index)
                else:
                    self._add(writer, statement)
            writer.write_plain(others)
            code.emit(f"{end}:", f"s_mov_{machine.mask} {machine.exec}, {outer.text}")

    # Values

    def _read(self, statement: Save, number: int, type_: Type) -> Vector:
        """Return where a value that the probe saves to a field is, in the field's type."""
        code = self._code
        value = self._field(statement.operands[number], statement.map.fields[number])
        if type_.bits >= 32:
            return value
        narrow = code.vector()
        kind = "i32" if type_.is_signed else "u32"
        code.emit(f"v_bfe_{kind} {narrow.text}, {value.text}, 0, {type_.bits}")
        return narrow

    def _field(self, operand: object, cell: Field) -> Vector:
        """Return a value that is saved to a field in VGPRs: integers extended or cut to the field's type."""
        code, computing, to = self._code, self._computing, Type(cell.type.value)
        if isinstance(operand, Immediate):
            operand = Constant(to, int(operand.text, 0) % (1 << to.bits))
        source = _type_of(operand)
        words = 2 if cell.type.size == 8 else 1
        if source is not None and source.is_float and to.is_float and source is not to:
            converted = Register("%saved", to, 0, _HERE, is_local=True)
            result = code.vector(words)
            computing.bind(converted, result)
            computing._lower(Convert(converted, operand, _HERE))  # type: ignore[arg-type]
            return result
        value = computing.value(operand)
        if isinstance(value, Mask):
            result = code.vector(words)
            computing.from_mask(result, value, to)
            return result
        if source is not None and source.is_float != to.is_float and not source.is_untyped:
            raise CannotError(f"a value of {source} is not saved as {to}")
        if isinstance(value, Constant) or value.words == words:
            return computing.in_vector(value, words)
        result = code.vector(words)
        code.emit(f"v_mov_b32_e32 {result.word(0)}, {value.word(0)}")
        if words == 2 and to.is_signed:
            code.emit(f"v_ashrrev_i32_e32 {result.word(1)}, 31, {result.word(0)}")
        elif words == 2:
            code.emit(f"v_mov_b32_e32 {result.word(1)}, 0")
        return result

    # Records

    def _store(self, writer: MapStatements, entry: Map, index: int) -> None:
        """Store a record in the slot of each lane that saves, or of its wave or work-group, and count it."""
        code = self._code
        with code.scope():
            address, place = writer.places.slot_memory(index, entry)
            # Waves for which the launch has no memory have no slot.
            end = code.label()
            code.emit(f"s_cbranch_scc0 {end}")
            full = None
            if has_counts(entry):
                full = self._counted(writer, entry, place)
            if full is not None:
                code.emit(f"s_cbranch_execz {full}")
            with code.scope():
                writer.memory.store(Where(place, address), writer.saved_parts())
            if full is not None:
                code.emit(f"{full}:")
            code.emit(f"{end}:")

    def _counted(self, writer: MapStatements, entry: Map, place: Vector) -> str | None:
        """Append code that counts a record of each active lane and moves a place on to the record's row.

        Lanes whose slot is full become inactive. Returns the label to go to where none is left, None if there is always
        room.
        """
        code, machine = self._code, self._code.machine
        lanes = machine.wave if entry.level is Level.THREAD else 1
        count = writer.place(_COUNT)
        row = writer.place(_ROW) if _has_row(entry) else count
        if entry.cap > 1:
            stride = code.scalar()
            with code.scope():
                number = code.vector()
                if entry.kind.keeps_last and not _has_row(entry):
                    code.emit(f"v_and_b32_e32 {number.text}, {entry.cap - 1:#x}, {row.text}")
                else:
                    code.emit(f"v_mov_b32_e32 {number.text}, {row.text}")
                code.emit(
                    f"s_mov_b32 {stride.text}, {entry.size * lanes:#x}",
                    f"v_mul_lo_u32 {number.text}, {number.text}, {stride.text}",
                    f"v_add{writer.no_carry}_u32_e32 {place.text}, {number.text}, {place.text}",
                )
        if entry.kind.keeps_last:
            if row is not count:
                limit, again, next_row = code.scalar(), code.mask(), code.vector()
                code.emit(
                    f"v_add{writer.no_carry}_u32_e32 {next_row.text}, 1, {row.text}",
                    f"s_mov_b32 {limit.text}, {entry.cap:#x}",
                    f"v_cmp_gt_u32_e64 {again.text}, {limit.text}, {next_row.text}", *machine.ahead_of_lanes,
                    f"v_cndmask_b32_e64 {row.text}, 0, {next_row.text}, {again.text}",
                )  # fmt: skip
            code.emit(f"v_add{writer.no_carry}_u32_e32 {count.text}, 1, {count.text}")
            return None
        limit, fits = code.scalar(), code.mask()
        code.emit(
            f"s_mov_b32 {limit.text}, {entry.cap:#x}", f"v_cmp_gt_u32_e64 {fits.text}, {limit.text}, {count.text}",
            f"v_add{writer.no_carry}_u32_e32 {count.text}, 1, {count.text}",
            f"s_and_{machine.mask} {machine.exec}, {machine.exec}, {fits.text}",
        )  # fmt: skip
        return code.label()

    # Sums

    def _add(self, writer: MapStatements, statement: Save) -> None:
        """Append code that adds what is saved to the cells of a launch's record, or of a row; floats are added
        elsewhere."""
        entry, code = statement.map, self._code
        cells = entry.kind.cells(entry.fields)
        record = writer.record()
        for operand, cell, saved in zip(statement.operands, cells, entry.fields, strict=True):
            if saved.type not in FLOATS:
                with code.scope():
                    self._add_value(writer, operand, cell, writer.memory.after(record, cell.offset), entry.per)

    def _add_value(self, writer: MapStatements, operand: object, cell: Field, where: Where, per: Per) -> None:
        """Append code that adds a value of each lane to a cell in memory.

        What is the same in all lanes is added by one of them, times their number.
        """
        code, machine, computing = self._code, self._code.machine, self._computing
        value = Constant(Type(cell.type.value), int(operand.text, 0)) if isinstance(operand, Immediate) else (
            computing.value(operand))  # fmt: skip
        words = cell.type.size // 4
        if isinstance(value, Total):
            if per is Per.THREAD:
                raise CannotError("a sum of a wave is not one of a lane")
            outer = code.mask()
            code.emit(f"s_mov_{machine.mask} {outer.text}, {machine.exec}", *writer.lowest())
            writer.memory.atomic(Operator.ADD, where, computing.in_vector(Scalar(value.first, words), words))
            code.emit(f"s_mov_{machine.mask} {machine.exec}, {outer.text}")
            return
        if isinstance(value, (Vector, Mask)):
            writer.combine(Operator.ADD, where, self._field(operand, cell), words)
            return
        type_ = Type(cell.type.value)
        extended = code.scalar(words)
        computing.integer(extended, type_, value, _type_of(operand) or type_)
        writer.combine(Operator.ADD, where, extended, words)


def lower_entry(here: Surroundings, entry: Map, index: int) -> None:
    """Append a map's code for a kernel's entry, which has set the registers that it keeps to their first values."""
    wave = here.code.machine.wave
    kept = kept_by_type(entry, wave)
    if kept:
        MapStatements(here, entry, index).write(
            tuple(entry.kind.begin(entry, kept, Lanes(wave, Combining.NOTHING)))
        )  # fmt: skip


def lower_settle(here: Surroundings, entry: Map, index: int) -> None:
    """Append a map's code for the ends of a kernel, where EXEC has all lanes of the wave that began: it brings what it
    keeps to memory."""
    code, machine = here.code, here.code.machine
    writer = MapStatements(here, entry, index)
    if has_counts(entry):
        with code.scope():
            address, place = writer.places.slot_memory(index, entry, counts=True)
            end, outer = code.label(), code.mask()
            code.emit(f"s_cbranch_scc0 {end}", f"s_mov_{machine.mask} {outer.text}, {machine.exec}")
            writer.places.narrow(entry.level)
            count = writer.place(_COUNT)
            code.emit(f"{machine.store(32)} {place.text}, {count.text}, {address.text}")
            code.emit(f"s_mov_{machine.mask} {machine.exec}, {outer.text}", f"{end}:")
    kept = kept_by_type(entry, machine.wave)
    if kept:
        writer.write(tuple(entry.kind.settle(entry, kept, Lanes(machine.wave, Combining.NOTHING))))


def _nodes_in(node: object) -> Iterator[object]:
    """Yield statements with their operands and those inside them."""
    if isinstance(node, (tuple, list)):
        for one in node:
            yield from _nodes_in(one)
    elif is_dataclass(node) and not isinstance(node, type):
        yield node
        if not isinstance(node, Register):
            for one in fields(node):
                yield from _nodes_in(getattr(node, one.name))


def _statements_in(pieces: object) -> Iterator[MapStatement]:
    """Yield statements, and those inside them."""
    for node in _nodes_in(pieces):
        if isinstance(node, (*COMPUTED, *WRITTEN)) or (hasattr(node, "span") and not isinstance(node, Register)):
            yield node  # type: ignore[misc]


def _type_of(operand: object) -> Type | None:
    """Return the type of an operand, None of a value of the probed instruction, which may have any."""
    return operand.type if isinstance(operand, (Register, Constant)) else None
