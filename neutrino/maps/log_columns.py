"""Chunks of columns: a log's records where the lanes of a warp share nothing but the chunk.

The lanes that need a chunk at the same time take one together, by one atomic; each has a column in it, which it fills
from row to row. docs/trace.md has the layout.
"""

from __future__ import annotations

from collections.abc import Sequence

from neutrino.abi.structures import align_up
from neutrino.ir.memory import At, MapStatement
from neutrino.ir.operands import Constant, Register
from neutrino.ir.statements import Operator, Reduction, Relation
from neutrino.ir.types import Type
from neutrino.maps.builder import Builder, Combining, Lanes, Number, SavedValues
from neutrino.maps.declaration import Map

LOG_CONTROL = 128
"""Bytes of a log's region before its chunks: u64 the units that chunks took, or would have taken with more memory; u64
the records that did not fit; and at ``LOG_OWN``, for which these units come on top."""
LOG_UNIT = 32
"""Bytes; chunks begin at multiples of it."""
LOG_HEADER = 64
"""Bytes of a chunk before its records: u32 the slot (its warp, at block level its block), u32 a mask of the lanes that
have it, u32 rows, u32 the mask of lanes from 32 on; then a byte for each of these lanes, how many of its rows are not
filled. More than 48 lanes take ``LOG_UNIT`` more. A chunk of groups has no rows: u32 the slot, u32 the shape of its
records, u32 0, u32 its units; then the groups."""
LOG_ROWS_MOST = 32
"""Records of a lane in a chunk of columns, at most. Its first chunk has one row, each further one twice as many."""
_CHUNK_BYTES = 1024
"""Of a lane in a chunk, at most, unless a single record is larger."""
_LEFT = 16
"""Where a chunk has the bytes that say how many rows its lanes have not filled."""
LOST_WORD = 1
"""The word of the control words that counts the records that did not fit."""
NO_ROOM = 0xFFFFFFFF
"""In place of a chunk's first unit: there was no memory for it. Records in it are not stored."""
# What a thread keeps of its chunk, besides its first unit: 8 bits each of the rows that it has filled, of all rows, of
# the lanes that have the chunk, and of which one of them it is.
_ROWS_AT, _LANES_AT, _RANK_AT, _BYTE = 8, 16, 24, 255


def most_rows(record_size: int) -> int:
    """Return how many records a lane has in a chunk, at most: a power of two. record_size: in bytes."""
    rows = LOG_ROWS_MOST
    while rows > 1 and rows * record_size > _CHUNK_BYTES:
        rows //= 2
    return rows


def header_of(lanes: int) -> int:
    """Return the bytes of a chunk before its records, by how many lanes have it."""
    return max(LOG_HEADER, align_up(16 + lanes, LOG_UNIT))


def save_in_column(entry: Map, saved: SavedValues) -> Sequence[MapStatement]:
    """Return the store of a record in this thread's column, after taking a chunk if it has no row left."""
    code = Builder(entry.span)
    saving, slot = code.both(code.has_slot(), code.saving(saved)), code.slot()
    if saving is None:
        raise TypeError("a thread may have no slot")
    unit, state = code.kept(0, type_=Type.U32), code.kept(1, type_=Type.U32)
    base = code.base()
    used, rows = code.compute(Operator.AND, state, _BYTE), _byte(code, state, _ROWS_AT)
    needs = code.both(code.compare(Relation.EQ, used, rows), saving) or saving
    _take_chunk(code, entry, saved.lanes, base, rows, needs, slot)
    # The record's place: [row][lane] in the chunk.
    used, lanes = code.compute(Operator.AND, state, _BYTE), _byte(code, state, _LANES_AT)
    cell = code.compute(Operator.MUL, used, lanes)
    cell = code.compute(Operator.ADD, cell, code.compute(Operator.SHR, state, _RANK_AT))
    at = code.after(code.after(base, unit, LOG_UNIT), cell, entry.size)
    if saved.lanes.number > _SHORT:
        extra = code.select(code.compare(Relation.GT, lanes, _SHORT), LOG_UNIT, 0, Type.U32)
        at = code.after(at, extra, 1)
    is_stored = code.both(code.compare(Relation.NE, unit, NO_ROOM), saving) or saving
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
        leads = code.both(code.compare(Relation.EQ, rank, 0), needs) or needs
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
    units = code.compute(Operator.MUL, count, entry.size)
    units = code.compute(Operator.ADD, units, LOG_HEADER + LOG_UNIT - 1)
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


def mask_words(code: Builder, lanes: Register, target: Lanes) -> list[Number]:
    """Return a set of lanes as u32, the lower ones first: one, or two where a warp has 64 lanes."""
    if target.number <= 32:
        return [code.convert(Type.U32, lanes)]
    wide = code.convert(Type.U64, lanes)
    return [code.convert(Type.U32, wide), code.convert(Type.U32, code.compute(Operator.SHR, wide, 32))]


def close_column(entry: Map) -> Sequence[MapStatement]:
    """Return the store of how many rows this thread's column has left in its last chunk; if that had no room, these are
    taken off the lost records."""
    code = Builder(entry.span)
    unit, state = code.kept(0, type_=Type.U32), code.kept(1, type_=Type.U32)
    base = code.base()
    left = code.compute(Operator.SUB, _byte(code, state, _ROWS_AT), code.compute(Operator.AND, state, _BYTE))
    at = code.after(code.after(base, unit, LOG_UNIT), code.compute(Operator.SHR, state, _RANK_AT), 1)
    has_left = code.compare(Relation.NE, left, 0)
    has_room = code.both(code.compare(Relation.NE, unit, NO_ROOM), has_left) or has_left
    code.store(at, LOG_CONTROL + _LEFT, [left], Type.U8, has_room)
    is_lost = code.both(code.compare(Relation.EQ, unit, NO_ROOM), has_left)
    less = code.compute(Operator.NEG, code.convert(Type.U64, left))
    code.update(Operator.ADD, At(base, LOST_WORD), less, is_lost)
    return code.statements


def _byte(code: Builder, state: Register, at: int) -> Register:
    return code.compute(Operator.AND, code.compute(Operator.SHR, state, at), _BYTE)
