"""``log``: as many records of each thread, warp or block as there is memory for.

Groups of records are in modules of their own (``log_groups.py``, ``log_several.py``), and what reads logs
(``log_reading.py``), which says where what lies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neutrino.abi.levels import Level
from neutrino.ir.memory import At, Extent, Kept, MapStatement
from neutrino.ir.operands import Constant, Register
from neutrino.ir.statements import Operator, Reduction, Relation
from neutrino.ir.types import Type
from neutrino.maps.builder import Builder, Combining, Lanes, SavedValues, SavesTogether
from neutrino.maps.declaration import Layout, Map, MapType
from neutrino.maps.log_groups import NO_ROOM, mask_words
from neutrino.maps.log_reading import (
    LOG_CONTROL,
    LOG_HEADER,
    LOG_LANE,
    LOG_LANE_HEADER,
    LOG_LANE_LEFT,
    LOG_LANE_ROWS,
    LOG_LANE_ROWS_AT,
    LOG_OWN,
    LOG_ROWS_MOST,
    LOG_UNIT,
    LOST_WORD,
    GroupLayout,
    read_log,
)
from neutrino.maps.log_several import GroupsOfSaves

if TYPE_CHECKING:
    from neutrino.maps.declaration import Rows

_CHUNK_BYTES = 1024
"""Of a lane in a chunk, at most, unless a single record is larger."""
_LEFT = 16
"""Where a chunk has the bytes that say how many rows its lanes have not filled."""
# What a thread keeps of its chunk, besides its first unit: 8 bits each of the rows that it has filled, of all rows, of
# the lanes that have the chunk, and of which one of them it is.
_ROWS_AT, _LANES_AT, _RANK_AT, _BYTE = 8, 16, 24, 255
# Of a chunk of one lane.
_LANE_CHUNK, _LANE_CHUNK_MOST = 64, 2048
"""Bytes of a lane's first chunk of its own, if they are enough for ``_LANE_ROWS`` records; and of any, about."""
_LANE_ROWS, _LANE_RECORD = 3, 32
"""Rows of a first chunk, at least, of records up to so many bytes."""
# What a thread keeps of its chunk: from the lowest bit on how many rows it has left, then how many it has in all; the
# highest bit, if nothing is stored. Of a thread that never saves all bits are set, or fewer in the lower half.
_ROWS_LEFT = (1 << LOG_LANE_ROWS_AT) - 1
_NOT_STORED = 1 << 31
_NEVER = 0xFFFFFFFF
_NEVER_LEAST = _NEVER - _ROWS_LEFT
_ROWS_MOST = LOG_LANE_ROWS - 1
"""Rows of a chunk, at most. One more is of a thread that never saves."""
_ALL_LEFT = (1 << LOG_LANE_ROWS_AT) + 1
"""What rows are multiplied by for those of a new chunk."""
_HAD_LEAST = 1 << LOG_LANE_ROWS_AT
"""The least state, as a number with a sign, of a thread that has a chunk."""
_TESTED, _TESTED_BYTES = 7, 256
"""For how many saves there may be one test where this takes fewer tests, and for how many bytes."""


@dataclass(frozen=True)
class Log(MapType):
    """All records that are saved, as far as the launch's memory reaches; those that do not fit are counted.

    Threads take chunks of the region. Where the lanes of a warp can exchange values, those that save together write a
    group, which holds what their records have in common once (``log_groups.py``), into a chunk of the lowest of them.
    Otherwise the lanes that need a chunk at the same time take one together, by one atomic. It has a column for each
    of these lanes, which it fills from row to row: ``[row][lane]``. At the levels warp and block the one lane that
    saves has chunks of its own.
    """

    name = "log"
    layout = Layout.CHUNKS
    stores_at_sites = True
    combines_lanes = True

    def describe(self, entry: Map) -> str:
        """Return a map in words: ``a log of records of 16 bytes per thread``."""
        return f"a log of records of {entry.size} bytes per {entry.level.value}"

    def save(self, entry: Map, saved: SavedValues) -> Sequence[MapStatement]:
        """Return the store of a record, in a chunk that the thread has or takes."""
        if entry.level is not Level.THREAD:
            return save_alone(entry, saved)
        groups = _groups(entry, saved.lanes)
        if groups is None:
            return save_in_column(entry, saved)
        values = groups.values(saved)
        groups.save(values, groups.code.saving(saved))
        return groups.code.statements

    def gathers(self, entry: Map, lanes: Lanes) -> bool:
        """Return whether lanes that save together share a group, which several saves may be written to."""
        return _groups(entry, lanes) is not None

    def save_all(self, entry: Map, saves: SavesTogether) -> Sequence[MapStatement]:
        """Return the stores of several records."""
        groups = _groups(entry, saves.lanes)
        if groups is None:
            raise TypeError("saves that are not in groups are not gathered")
        if len(saves.each) > 1:
            groups.save_all(saves)
        else:
            (saved,) = saves.each
            groups.save(groups.values(saved), groups.code.saving(saved))
        return groups.code.statements

    def rooms(self, entry: Map) -> tuple[int, ...]:
        """Return for how many records there may be one test for room."""
        return rooms(entry.size)

    def make_room(self, entry: Map, need: int, most: int, when: Register | None) -> Sequence[MapStatement]:
        """Return what takes a chunk, if this thread's own has no room."""
        return make_room_alone(entry, need, most, when)

    def begin(self, entry: Map, kept: Sequence[Kept], lanes: Lanes) -> Sequence[MapStatement]:
        """Return what gives warps chunks of their own, in a launch that has such chunks."""
        if entry.level is not Level.THREAD:
            return begin_alone(entry)
        groups = _groups(entry, lanes)
        if groups is None:
            return ()
        groups.begin()
        return groups.code.statements

    def settle(self, entry: Map, kept: Sequence[Kept], lanes: Lanes) -> Sequence[MapStatement]:
        """Return the store of what is known of the thread's last chunk only where the thread ends."""
        if entry.level is not Level.THREAD:
            return close_alone(entry)
        groups = _groups(entry, lanes)
        if groups is None:
            return close_column(entry)
        groups.close()
        return groups.code.statements

    @staticmethod
    def read(copies: Rows, row: Mapping[str, Any]) -> Rows:
        """Return the records of a log, ordered by slot, lane and the order in which the lane saved them.

        copies: the region's bytes, uint8, of one launch. The rows have ``slot`` (the warp in the grid, at block level
        the block), ``lane``, ``order`` (from 0 in each lane) and ``record``, a record's bytes.
        """
        return read_log(copies, row)


def _groups(entry: Map, lanes: Lanes) -> GroupsOfSaves | None:
    """Return what writes a log in groups; None for one in columns, or in chunks of one lane."""
    layout = GroupLayout.of(entry.fields, entry.size, lanes.number)
    if entry.level is not Level.THREAD or lanes.combining is not Combining.REDUCE or layout is None:
        return None
    return GroupsOfSaves(entry, layout, lanes, Builder(entry.span))


def most_rows(record_size: int) -> int:
    """Return how many records a lane has in a chunk, at most: a power of two. record_size: in bytes."""
    rows = LOG_ROWS_MOST
    while rows > 1 and rows * record_size > _CHUNK_BYTES:
        rows //= 2
    return rows


def save_in_column(entry: Map, saved: SavedValues) -> Sequence[MapStatement]:
    """Return the store of a record in this thread's column, after taking a chunk if it has no row left."""
    code = Builder(entry.span)
    saving, slot = code.both(code.has_slot(), code.saving(saved)), code.slot()
    if saving is None:
        raise TypeError("a thread may have no slot")
    unit, state = code.kept(0, type_=Type.U32), code.kept(1, type_=Type.U32)
    base = code.base()
    used, rows = code.compute(Operator.AND, state, _BYTE), _byte(code, state, _ROWS_AT)
    needs = code.compare(Relation.EQ, used, rows, saving)
    _take_chunk(code, entry, saved.lanes, base, rows, needs, slot)
    # The record's place: [row][lane] in the chunk.
    used, lanes = code.compute(Operator.AND, state, _BYTE), _byte(code, state, _LANES_AT)
    cell = code.multiply_add(used, lanes, code.compute(Operator.SHR, state, _RANK_AT))
    at = code.after(code.after(base, unit, LOG_UNIT), cell, entry.size)
    if saved.lanes.number > _SHORT:
        extra = code.select(code.compare(Relation.GT, lanes, _SHORT), LOG_UNIT, 0, Type.U32)
        at = code.after(at, extra, 1)
    is_stored = code.compare(Relation.NE, unit, NO_ROOM, saving)
    code.store_saved(at, LOG_CONTROL + LOG_HEADER, is_stored)
    code.change(state, Operator.ADD, 1, saving)
    return code.statements


_SHORT = LOG_HEADER - _LEFT
"""For how many lanes a header has room that is no unit longer."""


def _take_chunk(
    code: Builder, entry: Map, target: Lanes, base: Register, rows: Register, needs: Register, slot: Register
) -> None:
    """Add the code by which the threads for which ``needs`` holds take a chunk, together where lanes can. rows: of this
    thread's last one."""
    unit, state = code.kept(0, type_=Type.U32), code.kept(1, type_=Type.U32)
    joins = target.combining is not Combining.NOTHING
    leads = needs
    if joins:
        here = code.here()
        mask = code.over(here, Reduction.BALLOT, needs)
        rank = code.compute(Operator.POPC, code.below(mask), type_=Type.U32)
        lanes = code.compute(Operator.POPC, mask, type_=Type.U32)
        leads = code.compare(Relation.EQ, rank, 0, needs)
    else:
        mask = code.compute(Operator.SHL, code.variable(Constant(Type.LANES, 1)), code.lane())
        rank, lanes = (code.variable(Constant(Type.U32, number)) for number in (0, 1))
    # Twice the rows of the last chunk, by the lowest of the lanes that need one; of any lanes if none does.
    rows = code.compute(Operator.MIN, code.compute(Operator.SHL, rows, 1), most_rows(entry.size))
    rows = code.compute(Operator.MAX, rows, 1)
    if joins:
        is_none = code.compare(Relation.EQ, mask, Constant(Type.LANES, 0))
        some = code.select(is_none, here, mask, Type.LANES)
        leader = code.compute(Operator.LOWEST, some, type_=Type.U32)
        rows = code.of_lane(rows, leader, here)
    count = code.compute(Operator.MUL, rows, lanes)
    units = code.multiply_add(count, entry.size, LOG_HEADER + LOG_UNIT - 1)
    if target.number > _SHORT:
        extra = code.select(code.compare(Relation.GT, lanes, _SHORT), LOG_UNIT, 0, Type.U32)
        units = code.compute(Operator.ADD, units, extra)
    units = code.compute(Operator.SHR, units, LOG_UNIT.bit_length() - 1)
    first, fits = code.reserve(base, units, leads)
    # All rows of a chunk without room; those that are not filled are taken off where the thread ends.
    is_lost = code.both(code.compute(Operator.NOT, fits), leads)
    code.update(Operator.ADD, At(base, LOST_WORD), code.convert(Type.U64, count), is_lost)
    first = code.select(fits, first, NO_ROOM, Type.U32)
    at = code.after(base, first, LOG_UNIT)
    lower, *upper = mask_words(code, mask, target)
    head = [slot, lower, rows, *(upper or [0])]
    code.store(at, LOG_CONTROL, head, Type.U32, code.both(fits, leads) or leads)
    if joins:
        first = code.of_lane(first, leader, here)
    taken = code.compute(Operator.SHL, rows, _ROWS_AT)
    for number, shift in ((lanes, _LANES_AT), (rank, _RANK_AT)):
        taken = code.compute(Operator.OR, taken, code.compute(Operator.SHL, number, shift))
    code.change(state, Operator.MOVE, taken, needs)
    code.change(unit, Operator.MOVE, first, needs)


def close_column(entry: Map) -> Sequence[MapStatement]:
    """Return the store of how many rows this thread's column has left in its last chunk; if that had no room, these are
    taken off the lost records."""
    code = Builder(entry.span)
    unit, state = code.kept(0, type_=Type.U32), code.kept(1, type_=Type.U32)
    base = code.base()
    left = code.compute(Operator.SUB, _byte(code, state, _ROWS_AT), code.compute(Operator.AND, state, _BYTE))
    at = code.after(code.after(base, unit, LOG_UNIT), code.compute(Operator.SHR, state, _RANK_AT), 1)
    has_left = code.compare(Relation.NE, left, 0)
    has_room = code.compare(Relation.NE, unit, NO_ROOM, has_left)
    code.store(at, LOG_CONTROL + _LEFT, [left], Type.U8, has_room)
    is_lost = code.compare(Relation.EQ, unit, NO_ROOM, has_left)
    less = code.compute(Operator.NEG, code.convert(Type.U64, left))
    code.update(Operator.ADD, At(base, LOST_WORD), less, is_lost)
    return code.statements


def _byte(code: Builder, state: Register, at: int) -> Register:
    """Return one byte of what a thread keeps of its chunk, a u32. at: its lowest bit."""
    return code.compute(Operator.AND, code.compute(Operator.SHR, state, at), _BYTE)


def lane_rows(record_size: int) -> tuple[int, int]:
    """Return the least rows of the first chunk that one lane takes, and the most of any. record_size: in bytes."""
    least = (_LANE_CHUNK - LOG_LANE_HEADER) // record_size
    least = max(least, _LANE_ROWS if record_size <= _LANE_RECORD else 1)
    return least, max(least, _LANE_CHUNK_MOST // record_size)


def rooms(record_size: int) -> tuple[int, ...]:
    """Return for how many saves there may be one test for room: as many as the least first chunk has rows; or more,
    which take a larger one. record_size: in bytes."""
    least, _ = lane_rows(record_size)
    return least, max(least, min(_TESTED, _TESTED_BYTES // record_size))


def _registers(code: Builder) -> tuple[Kept, Kept]:
    """Return what a thread keeps: where its next record goes, less the bytes before a chunk's first one, or before it
    has a chunk the number of its slot; and what is known of the chunk."""
    return code.kept(0), code.kept(1, type_=Type.U32)


def save_alone(entry: Map, saved: SavedValues) -> Sequence[MapStatement]:
    """Return the store of a record in this thread's own chunk. Threads without a slot store nothing."""
    code = Builder(entry.span)
    at, state = _registers(code)
    when = code.condition(saved)
    code.ensure_room(when)
    is_stored = code.compare(Relation.GT, code.as_bits(Type.S32, state), 0, when)
    code.store_saved(at, LOG_CONTROL + LOG_LANE_HEADER, is_stored)
    code.change(at, Operator.ADD, entry.size, when)
    code.change(state, Operator.ADD, -1, when)
    return code.statements


def _rows(code: Builder, state: Register) -> Register:
    """Return how many rows this thread's chunk has."""
    rows = code.compute(Operator.SHR, state, LOG_LANE_ROWS_AT)
    return code.compute(Operator.AND, rows, LOG_LANE_ROWS)


def _close_chunk(code: Builder, entry: Map, left: Register) -> tuple[Register, Register, Register]:
    """Add the store of how many rows this thread's chunk has left; return all its rows, its place, and a predicate,
    whether there is such a chunk."""
    at, state = _registers(code)
    rows = _rows(code, state)
    head = code.after(at, code.compute(Operator.SUB, rows, left), -entry.size)
    had = code.compare(Relation.GE, code.as_bits(Type.S32, state), _HAD_LEAST)
    has_left = code.compare(Relation.NE, left, 0, had)
    code.store(head, LOG_CONTROL + LOG_LANE_LEFT, [left], Type.U32, has_left)
    return rows, head, had


def make_room_alone(entry: Map, need: int, most: int, when: Register | None) -> Sequence[MapStatement]:
    """Return the code that takes a chunk, if this thread's own has no room for as many records as it needs.

    when: a predicate, in which threads; None in all. most: the number of ``rooms`` that was chosen for the body.
    """
    code = Builder(entry.span, "room")
    _, state = _registers(code)
    left = code.compute(Operator.AND, state, _ROWS_LEFT)
    few = code.compare(Relation.LT if need > 1 else Relation.EQ, left, need if need > 1 else 0, when)
    taking = code.inner()
    never = taking.compare(Relation.GE, state, _NEVER_LEAST)
    taking.change(state, Operator.MOVE, _NEVER, never)
    chunk = code.inner()
    _take_lane_chunk(chunk, entry, most, left)
    taking.apart(taking.compute(Operator.NOT, never), chunk)
    code.apart(few, taking)
    return code.statements


def _take_lane_chunk(code: Builder, entry: Map, most: int, left: Register) -> None:
    """Add the code that closes this thread's chunk, if it has one, and takes another one. left: rows that it has."""
    at, state = _registers(code)
    before, head, had = _close_chunk(code, entry, left)
    slot = code.convert(Type.U32, at)
    code.load_stored(slot, head, LOG_CONTROL, had)
    # The first one has as many rows as a test may need, each further one twice as many more.
    rows = code.compute(Operator.MIN, code.multiply_add(before, 2, most), lane_rows(entry.size)[1])
    units = code.multiply_add(rows, entry.size, LOG_LANE_HEADER + LOG_UNIT - 1)
    units = code.compute(Operator.SHR, units, LOG_UNIT.bit_length() - 1)
    base = code.base()
    first, fits = code.reserve(base, units, None, after_own=True)
    code.after(base, first, LOG_UNIT, into=at)
    word = code.compute(Operator.OR, code.compute(Operator.SHL, rows, LOG_LANE_ROWS_AT), LOG_LANE)
    code.store(at, LOG_CONTROL, [slot, word], Type.U32, fits)
    # Once a chunk had no room, no further one has: what was to go into one is counted when it is full, or at the end.
    lost = code.compute(Operator.SUB, before, left)
    code.compute(Operator.MUL, rows, _ALL_LEFT, into=state)
    outside = code.inner()
    outside.change(state, Operator.OR, _NOT_STORED)
    was_lost = outside.compare(Relation.NE, outside.select(had, 0, lost, Type.U32), 0)
    outside.update(Operator.ADD, At(base, LOST_WORD), outside.convert(Type.U64, lost), was_lost)
    code.apart(code.compute(Operator.NOT, fits), outside)


def begin_alone(entry: Map) -> Sequence[MapStatement]:
    """Return the code where a kernel begins: which threads save at all, and their slots.

    In a launch with chunks of each warp's own they have these, and the kernel's first thread says how many units these
    are."""
    code = Builder(entry.span)
    at, state = _registers(code)
    slot, inside, base = code.slot(), code.has_slot(), code.base()
    own = own_each = code.extent(Extent.OWN_UNITS)
    if entry.level is Level.BLOCK:
        # A block has what its warps would have.
        own_each = code.compute(Operator.MUL, own, code.extent(Extent.WARPS_PER_BLOCK))
    has_own = code.compare(Relation.NE, own, 0, inside)
    total = code.multiply_add(own, code.extent(Extent.WARPS), 0, Type.U64)
    leads = code.compare(Relation.EQ, slot, 0, has_own)
    code.store(base, LOG_OWN, [total, code.convert(Type.U64, own_each)], Type.U64, leads)
    rows = code.compute(Operator.SUB, code.compute(Operator.MUL, own_each, LOG_UNIT), LOG_LANE_HEADER)
    size = entry.size
    if size & (size - 1):
        rows = code.compute(Operator.DIV, rows, size)
    else:
        rows = code.compute(Operator.SHR, rows, size.bit_length() - 1)
    rows = code.compute(Operator.MIN, rows, _ROWS_MOST)
    has_own = code.compare(Relation.NE, rows, 0, has_own)
    place = code.after(base, code.compute(Operator.MUL, slot, own_each), LOG_UNIT)
    word = code.compute(Operator.OR, code.compute(Operator.SHL, rows, LOG_LANE_ROWS_AT), LOG_LANE)
    code.store(place, LOG_CONTROL, [slot, word], Type.U32, has_own)
    code.select(has_own, place, code.convert(Type.U64, slot), Type.U64, into=at)
    rows = code.select(has_own, code.compute(Operator.MUL, rows, _ALL_LEFT), 0, Type.U32)
    code.select(inside, rows, _NEVER, Type.U32, into=state)
    return code.statements


def close_alone(entry: Map) -> Sequence[MapStatement]:
    """Return the code where a thread ends: its last chunk gets the number of rows that it has left, or, if that had no
    room, the others count as lost records."""
    code = Builder(entry.span)
    _, state = _registers(code)
    base = code.base()
    left = code.compute(Operator.AND, state, _ROWS_LEFT)
    rows, _, _ = _close_chunk(code, entry, left)
    # As numbers with a sign: below 0, and not of a thread that never saves.
    is_lost = code.compare(Relation.LT, code.as_bits(Type.S32, state), _NEVER_LEAST - (1 << 32))
    lost = code.convert(Type.U64, code.compute(Operator.SUB, rows, left))
    code.update(Operator.ADD, At(base, LOST_WORD), lost, is_lost)
    return code.statements
