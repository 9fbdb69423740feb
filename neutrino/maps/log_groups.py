"""Groups of a log: the lanes of a warp that save together store what they share once.

Where all is as expected, with one form for all lanes, that takes few instructions; else each field gets the shortest
form that its values have. docs/trace.md has the layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from neutrino.ir.memory import At, Extent
from neutrino.ir.operands import Constant, Register
from neutrino.ir.statements import Operator, Reduction, Relation
from neutrino.ir.types import Type
from neutrino.maps.builder import Builder, Lanes, Number, SavedValues
from neutrino.maps.declaration import Map
from neutrino.maps.log_reading import (
    GROUP_ALIGN,
    GROUP_CHUNK_LEAST,
    GROUP_CHUNK_MOST,
    GROUP_ROWS_AT,
    GROUP_ROWS_FIELD_AT,
    LOG_CONTROL,
    LOG_OWN,
    LOG_UNIT,
    LOST_WORD,
    GroupLayout,
)

NO_ROOM = 0xFFFFFFFF
"""In place of a chunk's first unit: there was no memory for it. Records in it are not stored."""
# What a thread keeps of its chunk, from the lowest bit on: how much room it has left, in units of GROUP_ALIGN; how many
# times it was doubled; how many records were lost since it was taken, where it is after the end of the region.
LEFT_BITS, _DOUBLED_BITS = 12, 4
LEFT = (1 << LEFT_BITS) - 1
LOST_AT = LEFT_BITS + _DOUBLED_BITS
_MOST_DOUBLED = (GROUP_CHUNK_MOST // GROUP_CHUNK_LEAST).bit_length() - 1
_UNITS_MOST = (1 << 31) - (1 << 14)
"""Units in a region, at most, so that 32 bits hold every place and every order."""
_PER_UNIT = LOG_UNIT // GROUP_ALIGN
_EACH = 3
"""The form of a field that has each lane's value."""
Parts = list[tuple[int, Number, Type]]


def mask_words(code: Builder, lanes: Register, target: Lanes) -> list[Number]:
    """Return a set of lanes as u32, the lower ones first: one, or two where a warp has 64 lanes."""
    if target.number <= 32:
        return [code.convert(Type.U32, lanes)]
    wide = code.convert(Type.U64, lanes)
    return [code.convert(Type.U32, wide), code.convert(Type.U32, code.compute(Operator.SHR, wide, 32))]


class Value(NamedTuple):
    """What is saved in a field, in a register of 64 bits, or of 32 for narrower fields. is_same: all lanes of a group
    have the same, known when the code is written. is_read: since they read it together, as a clock. choices: the two
    values that it has, if that is known."""

    register: Register
    is_same: bool
    is_read: bool
    choices: tuple[int, ...]


@dataclass
class _Compared:
    """A field whose values may differ in the lanes of a group.

    number, size: the field's, in bytes. value: of the field. difference: to the lowest lane's. is_flat: a predicate,
    whether that is the stride times the lane's rank; of fewer than 8 bytes, whether it is 0. form, area: once they are
    chosen, the field's form and where its area begins.
    """

    number: int
    size: int
    value: Register
    difference: Register
    is_flat: Register
    stride: Register | None
    form: Register | None = None
    area: Number = 0


class Shape(NamedTuple):
    """What the head of a group says of its values. strides: by the field's number. rows: from row to row."""

    strides: Mapping[int, Register]
    forms: Number
    rows: Register | None


class Rowed(NamedTuple):
    """A value of 8 bytes that is expected to have one stride, or to lie in rows of lanes.

    number: the field's. value, low: of each lane, and its lower half. first: of the lowest lane. stride: from lane to
    lane. saving: a predicate of the lanes whose values count, None if all do. forms, rows: registers for what the
    group's head says.
    """

    number: int
    value: Register
    low: Register
    first: Register
    stride: Register
    saving: Register | None
    forms: Register
    rows: Register


_Groups = TypeVar("_Groups", bound="Groups")


@dataclass(frozen=True)
class Groups:
    """Writes the code of a log. lanes: of a warp."""

    entry: Map
    layout: GroupLayout
    lanes: Lanes
    code: Builder

    def _in(self: _Groups, code: Builder) -> _Groups:
        """Return what writes to another piece of code."""
        return replace(self, code=code)

    @property
    def _recomputes(self) -> bool:
        """Whether code that seldom runs computes numbers again rather than keep them in registers, of which values of 8
        bytes take many."""
        return bool(self.layout.strides)

    @property
    def _kept(self) -> tuple[Register, Register, Register]:
        """What each thread keeps: where its next group goes, as the lowest lane, in units of GROUP_ALIGN; what is
        known of the chunk there; and the greatest order of a group that it was in, NO_ROOM once a record was lost."""
        place, state, order = (self.code.kept(number, type_=Type.U32) for number in range(3))
        return place, state, order

    def values(self, saved: SavedValues, save: int | None = None) -> tuple[Value, ...]:
        """Return what is saved. save: as of ``ReadSaved``; None for a single one."""
        code, found = self.code, []
        for number, field in enumerate(self.entry.fields):
            register = code.saved(number, field, save or 0)
            bits = code.as_bits(Type.U64 if field.type.size == 8 else Type.U32, register)
            choices = saved.choices(number) if save is not None and field.type.size <= 2 else ()
            found.append(Value(bits, saved.is_same(number), saved.is_read_together(number), choices))
        return tuple(found)

    def save(
        self, values: Sequence[Value], saving: Register | None, present: Register | None = None, *, tries: bool = True
    ) -> None:
        """Add the store of a record of each lane.

        saving: a predicate, in which threads; None in all. present: a set of lanes; others do not save together with
        these. tries: whether values may be as expected.
        """
        whole = self.code.inner()
        if saving is not None:
            whole.leave("end", unless=saving)
        here = whole.here()
        if present is not None:
            here = whole.compute(Operator.AND, here, present)
        base = whole.base()
        if tries:
            other = whole.inner()
            self._in(other)._save_expected(values, here, base)
            whole.block("other", other)
        self._in(whole)._save_other(values, here, base)
        self.code.block("end", whole)

    def _save_other(self, values: Sequence[Value], here: Register, base: Register) -> None:
        """Add the store of the records of some lanes, whatever they are. It leaves the block ``end``.

        It stays at the site although it seldom runs: around calls of a function ptxas does not let the lanes that leave
        a loop one after the other meet again.
        """
        code, layout = self.code, self.layout
        place, state, order = self._kept
        rank = code.compute(Operator.POPC, code.below(here), type_=Type.U32)
        count = None if self._recomputes else self._size(here)
        leads = code.compare(Relation.EQ, rank, 0)
        leader = code.compute(Operator.LOWEST, here, type_=Type.U32)
        fields = self._compare(values, here, rank, leader)
        forms: Register = code.variable(Constant(Type.U32, 0))
        size: Register = code.variable(Constant(Type.U32, layout.head // GROUP_ALIGN))
        rows = is_flat = None
        if fields:
            flat: Register | None = None
            for field in fields:
                flat = code.both(flat, field.is_flat)
            is_strided = any(field.stride for field in fields)
            rows = code.variable(Constant(Type.U32, 0)) if is_strided else None
            is_flat = code.over(here, Reduction.ALL, flat or fields[0].is_flat)
            sized = code.inner()
            sized.leave("sized", is_flat, is_uniform=True)
            if rows is not None:
                self._in(sized)._split(fields, rows, forms, size, is_flat, here, rank)
                sized.leave("sized", is_flat, is_uniform=True)
            self._in(sized)._choose(fields, forms, size, here, count)
            code.block("sized", sized)
        needs = code.compare(Relation.LT, code.compute(Operator.AND, state, LEFT), size, leads)
        taken = code.inner()
        taken.leave("taken", unless=needs)
        self._in(taken)._take_chunk(base, size)
        code.block("taken", taken)
        # Later than every group that one of these lanes was in. Where one of them has lost a record, this group is
        # lost, too: what a thread has are its first records.
        code.over(here, Reduction.MAX, order, into=order)
        is_lost = code.compare(Relation.EQ, order, NO_ROOM)
        is_kept = code.compute(Operator.NOT, is_lost)
        code.change(order, Operator.ADD, 1, is_kept)
        at_ = code.of_lane(place, leader, here)
        is_stored = code.both(is_kept, leads) or leads
        at = code.after(base, at_, GROUP_ALIGN)
        strides = {field.number: field.stride for field in fields if field.stride is not None}
        own = [value.register for value in values]
        parts = self._head(own, Shape(strides, forms, rows), here, order)
        code.store_together(at, LOG_CONTROL, parts, GROUP_ALIGN, is_stored)
        if rows is not None and layout.rows == layout.head:
            has_rows = code.compare(Relation.GE, forms, 1 << GROUP_ROWS_AT, is_stored)
            code.store(at, LOG_CONTROL + layout.rows, [rows], Type.U32, has_rows)
        code.change(state, Operator.SUB, size, leads)
        code.change(place, Operator.ADD, size, is_stored)
        lost = code.compute(Operator.SHL, count or self._size(here), LOST_AT)
        code.change(state, Operator.ADD, lost, code.both(leads, is_lost) or leads)
        if is_flat is not None:
            code.leave("end", code.compute(Operator.OR, is_flat, is_lost), is_uniform=True)
        for field in fields:
            if self._recomputes:
                field.form = code.compute(Operator.AND, self._right(forms, 2 * field.number), 3)
            self._store(field, at, rank)

    def _size(self, lanes: Register) -> Register:
        """Return how many lanes are in a set, a u32."""
        return self.code.compute(Operator.POPC, lanes, type_=Type.U32)

    def _right(self, number: Register, bits: int) -> Register:
        """Return a number moved to the right by some bits."""
        return self.code.compute(Operator.SHR, number, bits) if bits else number

    def _compare(
        self, values: Sequence[Value], here: Register, rank: Register, leader: Register
    ) -> list[_Compared]:
        """Add the code that compares the value of each field that is not constant with that of the lowest lane."""
        code, fields = self.code, list[_Compared]()
        second = None
        for number, value in enumerate(values):
            if value.is_same:
                continue
            size = self.entry.fields[number].type.size
            if size < 8:
                own = self._cut(value.register, size)
                difference = code.compute(Operator.SUB, own, code.of_lane(own, leader, here))
                is_flat = code.compare(Relation.EQ, difference, 0)
                fields.append(_Compared(number, size, value.register, difference, is_flat, None))
                continue
            if second is None:
                # The second of the lanes; of one alone, that one.
                others = code.compute(Operator.SUB, here, Constant(Type.LANES, 1))
                others = code.compute(Operator.AND, others, here)
                is_alone = code.compare(Relation.EQ, others, Constant(Type.LANES, 0))
                second = code.compute(Operator.LOWEST, others, type_=Type.U32)
                second = code.select(is_alone, leader, second, Type.U32)
            difference = code.compute(Operator.SUB, value.register, code.of_lane(value.register, leader, here))
            stride = code.of_lane(code.convert(Type.U32, difference), second, here)
            is_flat = code.compare(Relation.EQ, difference, self._times(stride, rank, 0))
            fields.append(_Compared(number, size, value.register, difference, is_flat, stride))
        return fields

    def _cut(self, value: Register, size: int) -> Register:
        """Return the bits of a field of fewer than 8 bytes, the others 0."""
        return value if size == 4 else self.code.compute(Operator.AND, value, (1 << 8 * size) - 1)

    def _times(self, stride: Register, number: Register, base: Number) -> Register:
        """Return ``base + number * stride``, a u64. stride: an s32 as u32."""
        code = self.code
        signed, times = code.as_bits(Type.S32, stride), code.as_bits(Type.S32, number)
        return code.multiply_add(signed, times, base, Type.U64)

    def _split(
        self, fields: Sequence[_Compared], rows: Register, forms: Register, size: Register, is_flat: Register,
        here: Register, rank: Register,
    ) -> None:  # fmt: skip
        """Add the code that finds whether the values of the first field with a stride lie in rows of 2, 4, 8 or 16
        lanes, and the other fields are flat. If so, it brings true into the predicate is_flat, the stride from row to
        row into rows, and the forms and the group's size into registers."""
        code = self.code
        split = next(field for field in fields if field.stride is not None)
        stride = split.stride or rows
        # The first lane that a single stride does not reach begins the second row.
        is_odd = code.compute(Operator.NOT, split.is_flat)
        apart = code.over(here, Reduction.BALLOT, is_odd)
        lowest = code.compute(Operator.AND, apart, code.compute(Operator.NEG, apart))
        lane = code.compute(Operator.HIGHEST, lowest, type_=Type.U32)
        before = code.compute(Operator.SUB, lowest, Constant(Type.LANES, 1))
        length = code.compute(Operator.POPC, code.compute(Operator.AND, before, here), type_=Type.U32)
        code.of_lane(code.convert(Type.U32, split.difference), lane, here, into=rows)
        log = code.compute(Operator.HIGHEST, length)
        most = code.compute(Operator.SUB, length, 1)
        inner = code.compute(Operator.AND, most, rank)
        expected = self._times(stride, inner, 0)
        expected = self._times(rows, code.compute(Operator.SHR, rank, log), expected)
        is_like = code.compare(Relation.EQ, split.difference, expected)
        # A power of two above 1; and some lane does begin a row.
        is_like = code.compare(Relation.EQ, code.compute(Operator.AND, most, length), 0, is_like)
        is_like = code.compare(Relation.GT, length, 1, is_like)
        is_like = code.compare(Relation.NE, apart, Constant(Type.LANES, 0), is_like)
        for field in fields:
            if field is not split:
                is_like = code.both(is_like, field.is_flat) or is_like
        code.over(here, Reduction.ALL, is_like, into=is_flat)
        log = code.compute(Operator.SHL, log, GROUP_ROWS_AT)
        log = code.compute(Operator.OR, log, split.number << GROUP_ROWS_FIELD_AT)
        code.select(is_flat, log, 0, Type.U32, into=forms)
        if self.layout.rows == self.layout.head:
            code.change(size, Operator.ADD, 1, is_flat)

    def _choose(
        self, fields: Sequence[_Compared], forms: Register, size: Register, here: Register, count: Register | None
    ) -> None:
        """Add the code that chooses the form of each field in a group of count lanes, and brings the forms and the
        group's size into registers. count: None where it is to be computed."""
        code, count = self.code, count or self._size(here)
        end: Number = self.layout.head
        for field in fields:
            field.form = form = code.variable(Constant(Type.U32, _EACH))
            # Differences that fit in 4 bytes with a sign, or even in 2.
            for kind, sign in ((2, 1 << 31), (1, 1 << 15)):
                if 1 << kind < field.size:
                    moved = code.compute(Operator.ADD, field.difference, sign)
                    fits = code.over(here, Reduction.ALL, code.compare(Relation.LT, moved, 2 * sign))
                    code.select(fits, kind, form, Type.U32, into=form)
            fits = code.over(here, Reduction.ALL, field.is_flat)
            code.select(fits, 0, form, Type.U32, into=form)
            field.area = end
            # Bytes of each lane: none, 2, 4, or all.
            width = code.compute(Operator.SHL, code.variable(Constant(Type.U32, 1)), form)
            width = code.compute(Operator.AND, width, -2)
            width = code.compute(Operator.MIN, width, field.size)
            end = code.multiply_add(width, count, end)
            end = code.compute(Operator.AND, code.compute(Operator.ADD, end, 7), -8)
            code.change(forms, Operator.OR, code.compute(Operator.SHL, form, 2 * field.number))
        if isinstance(end, Register):
            end = code.compute(Operator.ADD, end, GROUP_ALIGN - 1)
            code.compute(Operator.SHR, end, GROUP_ALIGN.bit_length() - 1, into=size)

    def _take_chunk(self, base: Register, size: Number) -> None:
        """Add the code by which a thread takes a chunk for a group of a size."""
        code = self.code
        place, state, order = self._kept
        owner = None if self._recomputes else (code.slot(), code.has_slot())
        lost = code.compute(Operator.SHR, state, LOST_AT)
        self._count_lost(base, lost)
        doubled = code.compute(Operator.SHR, state, LEFT_BITS)
        doubled = code.compute(Operator.AND, doubled, (1 << _DOUBLED_BITS) - 1)
        length = code.compute(Operator.SHL, code.variable(Constant(Type.U32, GROUP_CHUNK_LEAST)), doubled)
        # At least as much as the group needs.
        if isinstance(size, int):
            length = code.compute(Operator.MAX, length, size * GROUP_ALIGN + GROUP_ALIGN + LOG_UNIT - 1)
        elif isinstance(size, Register):
            least = code.multiply_add(size, GROUP_ALIGN, GROUP_ALIGN + LOG_UNIT - 1)
            length = code.compute(Operator.MAX, length, least)
        length = code.compute(Operator.SHR, length, LOG_UNIT.bit_length() - 1)
        left = code.multiply_add(length, _PER_UNIT, -1)
        doubled = code.compute(Operator.MIN, code.compute(Operator.ADD, doubled, 1), _MOST_DOUBLED)
        code.compute(Operator.OR, left, code.compute(Operator.SHL, doubled, LEFT_BITS), into=state)
        first, fits = code.reserve(base, length, None, after_own=True, most=_UNITS_MOST)
        slot, inside = owner or (code.slot(), code.has_slot())
        fits = code.both(fits, inside) or fits
        self._begin_chunk(base, first, slot, length, fits)
        # After the header. A chunk after the end is filled likewise, but for the stores.
        code.multiply_add(first, _PER_UNIT, 1, into=place)
        code.compute(Operator.MAX, order, place, into=order)
        code.select(fits, order, NO_ROOM, Type.U32, into=order)

    def _count_lost(self, base: Register, lost: Register) -> None:
        """Add the addition of a number of records to those that the log has lost, where it is not 0."""
        code = self.code
        wide = code.convert(Type.U64, lost)
        code.update(Operator.ADD, At(base, LOST_WORD), wide, code.compare(Relation.NE, lost, 0))

    def _begin_chunk(self, base: Register, first: Register, slot: Number, length: Register, when: Register) -> None:
        """Add the store of a chunk's header. first, length: in units."""
        at = self.code.after(base, first, LOG_UNIT)
        self.code.store(at, LOG_CONTROL, [slot, self.layout.shape, 0, length], Type.U32, when)

    def _head(self, values: Sequence[Number], shape: Shape, here: Register, order: Register) -> Parts:
        """Return what every group begins with, stored by its lowest lane."""
        layout, words = self.layout, mask_words(self.code, here, self.lanes)
        numbers = (*words, shape.forms, order)
        parts: Parts = [(4 * place, number, Type.U32) for place, number in enumerate(numbers)]
        parts += [(offset, shape.strides.get(number, 0), Type.U32) for number, offset in layout.strides.items()]
        if shape.rows is not None and layout.rows < layout.head:
            parts.append((layout.rows, shape.rows, Type.U32))
        return [*parts, *self._record(values, layout.record)]

    def _record(self, values: Sequence[Number], begin: int) -> Parts:
        """Return a record that begins at an offset."""
        return [
            (begin + field.offset, value, Type(f"u{8 * field.type.size}"))
            for field, value in zip(self.entry.fields, values, strict=True)
        ]

    def _store(self, field: _Compared, at: Register, rank: Register) -> None:
        """Add the stores of each lane's value of a field that is not flat in the group at an address."""
        code, chosen = self.code, field.form
        if chosen is None:
            raise ValueError("no form was chosen")
        width = code.compute(Operator.SHL, code.variable(Constant(Type.U32, 1)), chosen)
        if field.size < 8:
            width = code.compute(Operator.MIN, width, field.size)
        where = code.multiply_add(width, rank, field.area)
        place = code.compute(Operator.ADD, code.convert(Type.U64, where), at)
        low = code.convert(Type.U32, field.difference) if field.size == 8 else field.difference
        for form, value in ((1, low), (2, low), (_EACH, field.value)):
            size = min(1 << form, field.size)
            if form == _EACH or size < field.size:
                is_form = code.compare(Relation.EQ, chosen, form)
                code.store(place, LOG_CONTROL, [value], Type(f"u{8 * size}"), is_form)

    def _begin_expected(self, here: Register, present: Register) -> tuple[Register, Register]:
        """Return a predicate, whether some lanes are a warp's first ones, or none, and those that are present were in
        the same groups and have lost none; and the lane's number."""
        code = self.code
        _, _, order = self._kept
        lane = code.lane()
        is_expected = self._are_first(here, None)
        is_expected = code.compare(Relation.EQ, order, code.of_lane(order, 0, present), is_expected)
        return code.compare(Relation.NE, order, NO_ROOM, is_expected), lane

    def _are_first(self, lanes: Register, also: Register | None) -> Register:
        """Return a predicate, whether a set are the first lanes of a warp, or none."""
        code = self.code
        above = code.compute(Operator.AND, code.compute(Operator.ADD, lanes, Constant(Type.LANES, 1)), lanes)
        return code.compare(Relation.EQ, above, Constant(Type.LANES, 0), also)

    def _expect(
        self, values: Sequence[Value], lane: Register, present: Register, is_like: Register, saving: Register | None,
        small: int | None = None,
    ) -> tuple[Shape, Register, list[Rowed]]:  # fmt: skip
        """Return what the group's head says of values, all fields flat, but that the first one with a stride may lie in
        rows; a predicate, whether is_like is true and this thread's are so; and that first one, if there is any, which
        is not compared yet.

        saving: a predicate of the lanes whose values count, None if all do. small: a field that is not compared.
        """
        code = self.code
        strides: dict[int, Register] = {}
        rowed = list[Rowed]()
        for number, value in enumerate(values):
            if value.is_same or number == small:
                continue
            size = self.entry.fields[number].type.size
            if size < 8:
                own = self._cut(value.register, size)
                is_like = code.compare(Relation.EQ, own, code.of_lane(own, 0, present), is_like)
                continue
            wide = code.of_lane(value.register, 0, present)
            low, first = code.convert(Type.U32, value.register), code.convert(Type.U32, wide)
            stride = code.compute(Operator.SUB, code.of_lane(low, 1, present), first)
            if not strides and self.layout.rows < self.layout.head:
                # What is said of a single row: all lanes.
                log = self.lanes.number.bit_length() - 1
                forms = code.variable(Constant(Type.U32, log << GROUP_ROWS_AT | number << GROUP_ROWS_FIELD_AT))
                rows = code.variable(Constant(Type.U32, 0))
                rowed.append(Rowed(number, value.register, low, wide, stride, saving, forms, rows))
            else:
                is_like = code.compare(Relation.EQ, value.register, self._times(stride, lane, wide), is_like)
            strides[number] = stride
        if rowed:
            return Shape(strides, rowed[0].forms, rowed[0].rows), is_like, rowed
        return Shape(strides, 0, None), is_like, rowed

    def _expect_flat(self, rowed: Sequence[Rowed], lane: Register, is_like: Register) -> Register:
        """Return a predicate, whether is_like is true and this thread's values have one stride."""
        for value in rowed:
            is_like = self._expect_value(value, self._times(value.stride, lane, value.first), is_like)
        return is_like

    def _expect_rows(
        self, rowed: Sequence[Rowed], lane: Register, present: Register, is_like: Register
    ) -> Register:
        """Return a predicate, whether is_like is true and this thread's values lie in rows, perhaps in one; and bring
        what the group's head says of them into registers."""
        code = self.code
        for value in rowed:
            first = code.convert(Type.U32, value.first)
            expected = code.multiply_add(value.stride, lane, first)
            is_apart = code.compare(Relation.NE, value.low, expected, value.saving)
            # The first lane that a single stride does not reach begins the second row.
            apart = code.over(present, Reduction.BALLOT, is_apart)
            length = code.compute(Operator.LOWEST, apart, type_=Type.U32)
            length = code.compute(Operator.MIN, length, self.lanes.number)
            log = code.compute(Operator.HIGHEST, length)
            inner = code.compute(Operator.AND, code.compute(Operator.SUB, length, 1), lane)
            outer = code.compute(Operator.SHR, lane, log)
            # Of all in one row it is lane 0.
            code.compute(Operator.SUB, code.of_lane(value.low, length, present), first, into=value.rows)
            forms = code.compute(Operator.SHL, log, GROUP_ROWS_AT)
            code.compute(Operator.OR, forms, value.number << GROUP_ROWS_FIELD_AT, into=value.forms)
            wide = self._times(value.rows, outer, self._times(value.stride, inner, value.first))
            is_like = self._expect_value(value, wide, is_like)
        return is_like

    def _expect_value(self, value: Rowed, expected: Register, is_like: Register) -> Register:
        """Return a predicate, whether is_like is true and this thread's value is as expected, or does not count."""
        code = self.code
        if value.saving is None:
            return code.compare(Relation.EQ, value.value, expected, is_like)
        is_other = code.compare(Relation.NE, value.value, expected, value.saving)
        return code.compute(Operator.AND, is_like, code.compute(Operator.NOT, is_other))

    def _save_expected(self, values: Sequence[Value], here: Register, base: Register) -> None:
        """Add the store of the records of a warp's first lanes, or of all, which leaves the block ``end``, if all is as
        expected, else ``other``: there is room, no lane was in groups without the others, and all fields are as
        ``_expect`` has it, but that one of 1 or 2 bytes may be anything."""
        code, head = self.code, self.layout.head
        place, state, order = self._kept
        is_expected, lane = self._begin_expected(here, here)
        leads = code.compare(Relation.EQ, lane, 0)
        # One field of 1 or 2 bytes, which have no shorter form, may have other values in each lane.
        small = [
            number for number, value in enumerate(values)
            if not value.is_same and self.entry.fields[number].type.size <= 2
        ]  # fmt: skip
        chosen = small[0] if len(small) == 1 else None
        is_equal = None
        if chosen is not None:
            spread = self._cut(values[chosen].register, self.entry.fields[chosen].type.size)
            is_equal = code.compare(Relation.EQ, spread, code.of_lane(spread, 0, here))
        shape, is_expected, rowed = self._expect(values, lane, here, is_expected, None, chosen)
        left = code.compute(Operator.AND, state, LEFT)
        has_none = code.compare(Relation.LT, left, head // GROUP_ALIGN, leads)
        used: Number = head // GROUP_ALIGN
        if chosen is None:
            is_ready = code.compute(Operator.AND, is_expected, code.compute(Operator.NOT, has_none))
            is_flat = code.over(here, Reduction.ALL, self._expect_flat(rowed, lane, is_ready))
            if rowed:
                in_rows = code.inner()
                in_rows.leave("rowed", is_flat, is_uniform=True)
                is_ready = self._in(in_rows)._expect_rows(rowed, lane, here, is_ready)
                in_rows.over(here, Reduction.ALL, is_ready, into=is_flat)
                code.block("rowed", in_rows)
            code.leave("other", unless=is_flat, is_uniform=True)
        else:
            is_expected = self._expect_rows(rowed, lane, here, is_expected)
            is_ready = code.compute(Operator.AND, is_expected, code.compute(Operator.NOT, has_none))
            is_flat = code.over(here, Reduction.ALL, code.both(is_ready, is_equal) or is_ready)
            used = code.variable(Constant(Type.U32, head // GROUP_ALIGN))
            forms = code.variable(shape.forms if isinstance(shape.forms, Register) else Constant(Type.U32, 0))
            shape = shape._replace(forms=forms)
            same, value = code.inner(), values[chosen].register
            same.leave("same", is_flat, is_uniform=True)
            self._in(same)._spread(chosen, value, lane, forms, used, leads, left, is_expected, here, base)
            code.block("same", same)
        code.change(order, Operator.ADD, 1)
        met = code.inner()
        met.leave("met", unless=leads)
        at = met.after(base, place, GROUP_ALIGN)
        met.change(state, Operator.SUB, used)
        met.change(place, Operator.ADD, used)
        parts = self._in(met)._head([value.register for value in values], shape, here, order)
        met.store_together(at, LOG_CONTROL, parts, GROUP_ALIGN)
        code.block("met", met)
        code.meet(here)
        code.leave("end")

    def _spread(
        self, number: int, value: Register, lane: Register, forms: Register, used: Register, leads: Register,
        left: Register, is_expected: Register, here: Register, base: Register,
    ) -> None:  # fmt: skip
        """Add the store of each lane's value of a field of 1 or 2 bytes in a group that is otherwise as expected.

        used: the group's size, which it changes, as the forms. Else as in ``_save_expected``.
        """
        code, head, size = self.code, self.layout.head, self.entry.fields[number].type.size
        place, _, _ = self._kept
        most = (head + self.lanes.number * size + GROUP_ALIGN - 1) // GROUP_ALIGN
        has_none = code.compare(Relation.LT, left, most, leads)
        is_ready = code.both(is_expected, code.compute(Operator.NOT, has_none)) or is_expected
        code.leave("other", unless=code.over(here, Reduction.ALL, is_ready), is_uniform=True)
        at = code.after(base, code.of_lane(place, 0, here), GROUP_ALIGN)
        at = code.after(at, lane, size)
        code.store_together(at, LOG_CONTROL + head, [(0, value, Type(f"u{8 * size}"))], size)
        code.change(forms, Operator.OR, _EACH << 2 * number)
        bytes_ = code.multiply_add(code.compute(Operator.POPC, here, type_=Type.U32), size, head + GROUP_ALIGN - 1)
        code.compute(Operator.SHR, bytes_, GROUP_ALIGN.bit_length() - 1, into=used)

    def begin(self) -> None:
        """Add the code where a kernel begins: each warp's first lane takes the warp's own chunk, if there is one, and
        the kernel's first thread says how many units these are."""
        code = self.code
        place, state, order = self._kept
        slot, inside, base = code.slot(), code.has_slot(), code.base()
        own = code.extent(Extent.OWN_UNITS)
        leads = code.compare(Relation.NE, own, 0, inside)
        first = code.compute(Operator.MUL, slot, own)
        # After the header. No lane of the warp has been in a group yet: they begin with the same order.
        begin = code.multiply_add(first, _PER_UNIT, 1)
        code.select(leads, begin, 0, Type.U32, into=order)
        leads = code.compare(Relation.EQ, code.lane(), 0, leads)
        code.change(place, Operator.MOVE, begin, leads)
        code.change(state, Operator.MOVE, code.multiply_add(own, _PER_UNIT, LEFT), leads)
        self._begin_chunk(base, first, slot, own, leads)
        total = code.multiply_add(code.extent(Extent.WARPS), own, 0, Type.U64)
        leads = code.compare(Relation.EQ, slot, 0, leads)
        code.store(base, LOG_OWN, [total, code.convert(Type.U64, own)], Type.U64, leads)

    def close(self) -> None:
        """Add the code where a thread ends: it counts the records that were lost since its last chunk.

        A kernel may run again with the same memory, as in the body of a loop of a graph, where no warp has a chunk of
        its own. Orders begin where chunks do, so none may be beyond them now: threads whose lanes have filled older
        chunks may have got there. They take a chunk for nothing.
        """
        code = self.code
        _, state, order = self._kept
        base = code.base()
        self._count_lost(base, code.compute(Operator.SHR, state, LOST_AT))
        own, here = code.extent(Extent.OWN_UNITS), code.here()
        most = code.over(here, Reduction.MAX, order)
        leads = code.lowest(here)
        leads = code.compare(Relation.NE, most, 0, leads)
        leads = code.compare(Relation.NE, most, NO_ROOM, leads)
        leads = code.compare(Relation.EQ, own, 0, leads)
        taken = code.load(At(base, 0), leads)
        # Units that end after the greatest order.
        end = code.compute(Operator.ADD, code.convert(Type.U64, most), _PER_UNIT - 1)
        end = code.compute(Operator.SHR, end, _PER_UNIT.bit_length() - 1)
        is_behind = code.compare(Relation.GT, end, taken, leads)
        length = code.convert(Type.U32, code.compute(Operator.SUB, end, taken))
        first, fits = code.reserve(base, length, is_behind)
        self._begin_chunk(base, first, 0, length, code.both(fits, is_behind) or fits)
