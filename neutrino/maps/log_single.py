"""Chunks of one lane: a log's records at the levels warp and block, of which one lane saves.

A save is a store and two additions. That there is room for it is made sure of before, perhaps at once for several
saves (``EnsureRoom``); what follows where there is none is rare. docs/trace.md has the layout.
"""

from __future__ import annotations

from collections.abc import Sequence

from neutrino.abi.levels import Level
from neutrino.ir.memory import At, Extent, Kept, MapStatement
from neutrino.ir.operands import Register
from neutrino.ir.statements import Operator, Relation
from neutrino.ir.types import Type
from neutrino.maps.builder import Builder, SavedValues
from neutrino.maps.declaration import Map
from neutrino.maps.log_columns import LOG_CONTROL, LOG_UNIT, LOST_WORD

LOG_OWN = 16
"""Where in the control words a launch has u64 the units of the first chunks of all warps, before all other chunks; u64
those of each. A warp without records leaves them zero."""
LOG_LANE_HEADER = 16
"""Bytes of a chunk of one lane, the first of a warp or of a block, before its records: u32 the slot; u32 ``LOG_LANE``
and from bit ``LOG_LANE_ROWS_AT`` on its rows; u32 0; at ``LOG_LANE_LEFT`` u32 how many of these it has not filled."""
LOG_LANE, LOG_LANE_ROWS_AT, LOG_LANE_ROWS, LOG_LANE_LEFT = 1 << 31, 16, 0x7FFF, 12
_LANE_CHUNK, _LANE_CHUNK_MOST = 64, 2048
"""Bytes of a lane's first chunk of its own, if they are enough for ``_LANE_ROWS`` records; and of any, about."""
_LANE_ROWS, _LANE_RECORD = 3, 32
"""Rows of a first chunk, at least, of records up to so many bytes."""
# What a thread keeps of its chunk: from the lowest bit on how many rows it has left, then how many it has in all; the
# highest bit, if nothing is stored. Of a thread that never saves all bits are set, or fewer in the lower half.
_LEFT = (1 << LOG_LANE_ROWS_AT) - 1
_NOT_STORED = 1 << 31
_NEVER = 0xFFFFFFFF
_NEVER_LEAST = _NEVER - _LEFT
_ROWS_MOST = LOG_LANE_ROWS - 1
"""Rows of a chunk, at most. One more is of a thread that never saves."""
_ALL_LEFT = (1 << LOG_LANE_ROWS_AT) + 1
"""What rows are multiplied by for those of a new chunk."""
_HAD_LEAST = 1 << LOG_LANE_ROWS_AT
"""The least state, as a number with a sign, of a thread that has a chunk."""
_TESTED, _TESTED_BYTES = 7, 256
"""For how many saves there may be one test where this takes fewer tests, and for how many bytes."""


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


def _close(code: Builder, entry: Map, left: Register) -> tuple[Register, Register, Register]:
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
    code = Builder(entry.span)
    _, state = _registers(code)
    left = code.compute(Operator.AND, state, _LEFT)
    few = code.compare(Relation.LT if need > 1 else Relation.EQ, left, need if need > 1 else 0, when)
    taking = code.inner()
    never = taking.compare(Relation.GE, state, _NEVER_LEAST)
    taking.change(state, Operator.MOVE, _NEVER, never)
    chunk = code.inner()
    _take_chunk(chunk, entry, most, left)
    taking.apart(taking.compute(Operator.NOT, never), chunk)
    code.apart(few, taking)
    return code.statements


def _take_chunk(code: Builder, entry: Map, most: int, left: Register) -> None:
    """Add the code that closes this thread's chunk, if it has one, and takes another one. left: rows that it has."""
    at, state = _registers(code)
    rows, head, had = _close(code, entry, left)
    slot = code.convert(Type.U32, at)
    code.load_stored(slot, head, LOG_CONTROL, had)
    # The first one has as many rows as a test may need, each further one twice as many more.
    rows = code.compute(Operator.MIN, code.multiply_add(rows, 2, most), lane_rows(entry.size)[1])
    units = code.multiply_add(rows, entry.size, LOG_LANE_HEADER + LOG_UNIT - 1)
    units = code.compute(Operator.SHR, units, LOG_UNIT.bit_length() - 1)
    base = code.base()
    first, fits = code.reserve(base, units, None, after_own=True)
    code.after(base, first, LOG_UNIT, into=at)
    word = code.compute(Operator.OR, code.compute(Operator.SHL, rows, LOG_LANE_ROWS_AT), LOG_LANE)
    code.store(at, LOG_CONTROL, [slot, word], Type.U32, fits)
    # All rows of a chunk without room are lost, but for those of the last such chunk that were not filled.
    lost = code.convert(Type.U64, code.compute(Operator.SUB, rows, code.select(had, 0, left, Type.U32)))
    code.compute(Operator.MUL, rows, _ALL_LEFT, into=state)
    outside = code.inner()
    outside.change(state, Operator.OR, _NOT_STORED)
    outside.update(Operator.ADD, At(base, LOST_WORD), lost, None)
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
    """Return the code where a thread ends: its last chunk gets the number of rows that it has left, or, if nothing was
    stored in that, they are taken off the lost records."""
    code = Builder(entry.span)
    _, state = _registers(code)
    base = code.base()
    left = code.compute(Operator.AND, state, _LEFT)
    _close(code, entry, left)
    # As numbers with a sign: below 0, and not of a thread that never saves.
    is_lost = code.compare(Relation.LT, code.as_bits(Type.S32, state), _NEVER_LEAST - (1 << 32))
    less = code.compute(Operator.NEG, code.convert(Type.U64, left))
    code.update(Operator.ADD, At(base, LOST_WORD), less, is_lost)
    return code.statements
