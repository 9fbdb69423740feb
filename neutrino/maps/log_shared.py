"""Groups of a log in typed statements: the lanes of a warp that save together store what they share once.

For targets whose lanes reduce values and that have no groups of their own. A field has the lowest lane's value in all
lanes, one of 8 bytes that plus a stride for each lane; or else each lane's own (``log_groups.py`` has the layout).
"""

from __future__ import annotations

from collections.abc import Sequence

from neutrino.ir.memory import At, MapStatement
from neutrino.ir.operands import Constant, Register
from neutrino.ir.statements import Operator, Reduction, Relation
from neutrino.ir.types import Type
from neutrino.maps.builder import Builder, Lanes, SavedValues
from neutrino.maps.declaration import Map
from neutrino.maps.log_columns import LOG_CONTROL, LOG_UNIT, LOST_WORD, NO_ROOM, mask_words
from neutrino.maps.log_groups import GROUP_ALIGN, GROUP_CHUNK_LEAST, GROUP_CHUNK_MOST, GroupLayout

# What a thread keeps of its chunk: how much room it has left, in units of GROUP_ALIGN; how many times it was doubled.
_LEFT, _DOUBLED_AT = (1 << 12) - 1, 12
_MOST_DOUBLED = (GROUP_CHUNK_MOST // GROUP_CHUNK_LEAST).bit_length() - 1
_EACH = 3
"""The form of a field that has each lane's value."""
_PER_UNIT = LOG_UNIT // GROUP_ALIGN


def save_in_group(entry: Map, saved: SavedValues, layout: GroupLayout) -> Sequence[MapStatement]:
    """Return the store of the records of all lanes that save together, as a group in a chunk of the lowest of them."""
    code = Builder(entry.span)
    saving, slot = code.both(code.has_slot(), code.saving(saved)), code.slot()
    if saving is None:
        raise TypeError("a thread may have no slot")
    place, state, order = (code.kept(number, type_=Type.U32) for number in range(3))
    base, here = code.base(), code.here()
    # Lanes that do not save compute the same of each other, and store nothing: so nothing branches.
    savers = code.over(here, Reduction.BALLOT, saving)
    others = code.compute(Operator.AND, here, code.compute(Operator.NOT, savers))
    lanes = code.select(saving, savers, others, Type.LANES)
    rank = code.compute(Operator.POPC, code.below(lanes), type_=Type.U32)
    count = code.compute(Operator.POPC, lanes, type_=Type.U32)
    leader = code.compute(Operator.LOWEST, lanes, type_=Type.U32)
    leads = code.both(code.compare(Relation.EQ, rank, 0), saving) or saving

    # Which fields have each lane's value, where these begin, and where the group ends.
    forms: Register = code.variable(Constant(Type.U32, 0))
    end: Register = code.variable(Constant(Type.U32, layout.head))
    strides: dict[int, Register] = {}
    areas: list[tuple[Register, Register, Register, int]] = []
    for number, field in enumerate(entry.fields):
        size, value = field.type.size, code.saved(number, field)
        value = code.as_bits(Type.U64 if size == 8 else Type.U32, value)
        difference = code.compute(Operator.SUB, value, code.of_lane(value, leader, lanes))
        if size == 8:
            strides[number], expected = _stride(code, difference, lanes, leader, rank, count)
            is_other = code.compare(Relation.NE, difference, expected)
        else:
            is_other = code.compare(Relation.NE, difference, 0)
        is_spread = code.over(lanes, Reduction.ANY, is_other)
        areas.append((value, is_spread, end, size))
        form = code.select(is_spread, _EACH << 2 * number, 0, Type.U32)
        forms = code.compute(Operator.OR, forms, form)
        bytes_ = code.compute(Operator.MUL, code.select(is_spread, size, 0, Type.U32), count)
        end = _aligned(code, code.compute(Operator.ADD, end, bytes_), 8)
    size_ = code.compute(Operator.SHR, _aligned(code, end, GROUP_ALIGN), GROUP_ALIGN.bit_length() - 1)

    _take_chunk(code, layout, base, size_, leads, slot)
    # Later than every group that one of these lanes was in. Where one of them has lost a record, this group is lost,
    # too: what a thread has are its first records.
    latest = code.over(lanes, Reduction.MAX, order)
    is_lost = code.compare(Relation.EQ, latest, NO_ROOM)
    is_kept = code.both(code.compute(Operator.NOT, is_lost), saving) or saving
    code.change(order, Operator.MOVE, latest, saving)
    code.change(order, Operator.ADD, 1, is_kept)
    at = code.after(base, code.of_lane(place, leader, lanes), GROUP_ALIGN)
    is_stored = code.both(is_kept, leads) or leads
    after = LOG_CONTROL
    for word in (*mask_words(code, lanes, saved.lanes), forms, order):
        code.store(at, after, [word], Type.U32, is_stored)
        after += 4
    for number, offset in layout.strides.items():
        code.store(at, LOG_CONTROL + offset, [strides[number]], Type.U32, is_stored)
    code.store_saved(at, LOG_CONTROL + layout.record, is_stored)
    for value, is_spread, begin, size in areas:
        own = code.after(code.after(at, begin, 1), rank, size)
        when = code.both(is_spread, is_kept) or is_kept
        code.store(own, LOG_CONTROL, [value], Type(f"u{8 * size}"), when)
    code.change(state, Operator.SUB, size_, is_stored)
    code.change(place, Operator.ADD, size_, is_stored)
    code.update(Operator.ADD, At(base, LOST_WORD), code.convert(Type.U64, count), code.both(is_lost, leads))
    return code.statements


def _stride(
    code: Builder, difference: Register, lanes: Register, leader: Register, rank: Register, count: Register
) -> tuple[Register, Register]:
    """Return how much the second of the lanes is beyond the lowest, an s32 as u32, and so what each lane would be."""
    lowest = code.compute(Operator.SHL, code.variable(Constant(Type.LANES, 1)), leader)
    second = code.compute(Operator.LOWEST, code.compute(Operator.XOR, lanes, lowest), type_=Type.U32)
    second = code.select(code.compare(Relation.EQ, count, 1), leader, second, Type.U32)
    stride = code.of_lane(code.convert(Type.U32, difference), second, lanes)
    signed = code.as_bits(Type.U64, code.convert(Type.S64, code.as_bits(Type.S32, stride)))
    return stride, code.compute(Operator.MUL, signed, code.convert(Type.U64, rank))


def _take_chunk(
    code: Builder, layout: GroupLayout, base: Register, size: Register, leads: Register, slot: Register
) -> None:
    """Add the code by which the lowest lane takes a chunk, if its own has no room for a group of a size."""
    place, state, order = (code.kept(number, type_=Type.U32) for number in range(3))
    has_none = code.compare(Relation.LT, code.compute(Operator.AND, state, _LEFT), size)
    is_first = code.compare(Relation.NE, order, NO_ROOM)
    needs = code.both(code.both(has_none, is_first), leads) or leads
    doubled = code.compute(Operator.SHR, state, _DOUBLED_AT)
    length = code.compute(Operator.SHL, code.variable(Constant(Type.U32, GROUP_CHUNK_LEAST)), doubled)
    least = code.compute(Operator.MUL, code.compute(Operator.ADD, size, 1), GROUP_ALIGN)
    length = _aligned(code, code.compute(Operator.MAX, length, least), LOG_UNIT)
    length = code.compute(Operator.SHR, length, LOG_UNIT.bit_length() - 1)
    first, fits = code.reserve(base, length, needs)
    _begin_chunk(code, layout, base, first, length, slot, code.both(fits, needs) or needs)
    begin = code.compute(Operator.ADD, code.compute(Operator.MUL, first, _PER_UNIT), 1)
    code.change(place, Operator.MOVE, begin, needs)
    code.change(order, Operator.MAX, begin, needs)
    code.change(order, Operator.MOVE, NO_ROOM, code.both(code.compute(Operator.NOT, fits), needs))
    left = code.compute(Operator.SUB, code.compute(Operator.MUL, length, _PER_UNIT), 1)
    doubled = code.compute(Operator.MIN, code.compute(Operator.ADD, doubled, 1), _MOST_DOUBLED)
    left = code.compute(Operator.OR, left, code.compute(Operator.SHL, doubled, _DOUBLED_AT))
    code.change(state, Operator.MOVE, left, needs)


def _begin_chunk(
    code: Builder, layout: GroupLayout, base: Register, first: Register, length: Register, slot: Register | int,
    when: Register,
) -> None:  # fmt: skip
    head = [slot, layout.shape, 0, length]
    code.store(code.after(base, first, LOG_UNIT), LOG_CONTROL, head, Type.U32, when)


def close_groups(entry: Map, lanes: Lanes, layout: GroupLayout) -> Sequence[MapStatement]:
    """Return what makes a later run of the kernel with the same memory begin after all orders of this one: these begin
    where chunks do, and threads that filled older chunks may have got beyond. They take units for nothing."""
    code = Builder(entry.span)
    order, base, here = code.kept(2, type_=Type.U32), code.base(), code.here()
    is_there = code.compare(Relation.NE, order, NO_ROOM)
    most = code.over(here, Reduction.MAX, code.select(is_there, order, 0, Type.U32))
    taken = code.load(At(base, 0))
    units = code.compute(Operator.ADD, most, _PER_UNIT - 1)
    wide = code.convert(Type.U64, code.compute(Operator.SHR, units, _PER_UNIT.bit_length() - 1))
    is_behind = code.compare(Relation.GT, wide, taken)
    leads = code.both(code.lowest(here), is_behind) or is_behind
    length = code.convert(Type.U32, code.compute(Operator.SUB, wide, taken))
    first, fits = code.reserve(base, length, leads)
    _begin_chunk(code, layout, base, first, length, 0, code.both(fits, leads) or leads)
    return code.statements


def _aligned(code: Builder, number: Register, size: int) -> Register:
    return code.compute(Operator.AND, code.compute(Operator.ADD, number, size - 1), -size)
