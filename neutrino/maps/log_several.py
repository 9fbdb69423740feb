"""Several saves to a log whose code is written together: lanes that do all of them share one group, or few.

Where all is as expected that takes few instructions; else it is the code of one save, in a loop.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from neutrino.abi.structures import align_up
from neutrino.ir.operands import Constant, Register
from neutrino.ir.statements import Operator, Reduction, Relation
from neutrino.ir.types import Type
from neutrino.maps.builder import Number, SavesTogether
from neutrino.maps.log_groups import LEFT, LOST_AT, NO_ROOM, Groups, Parts, Rowed, Shape, Value, mask_words
from neutrino.maps.log_reading import (
    GROUP_ALIGN,
    GROUP_FURTHER_AT,
    GROUP_IN_TURN_AT,
    GROUP_LEFT_OUT,
    GROUP_OWN_LANES_AT,
    GROUP_SHORT_AT,
    GROUP_SHORT_FIELDS,
    GROUP_TWO_VALUES,
    LOG_CONTROL,
)


class _Save(NamedTuple):
    """One of several saves. number: of it. saving: a predicate, in which threads; None in all. lanes: these, once they
    are known. condition, kind: equal for saves in the same threads, and for such as may be further records of a group.
    added: of a value that is known to be an amount more than an earlier save's, that value and the amount, by field.
    later: of a clock of 8 bytes the first save's, and its own lower half, by field. constants: of each field that is
    one, what is equal for equal ones."""

    number: int
    values: tuple[Value, ...]
    saving: Register | None
    lanes: Register
    condition: Hashable
    kind: Hashable
    added: Mapping[int, tuple[Register, int]]
    later: Mapping[int, tuple[Register, Register]]
    constants: tuple[Hashable, ...]


class _Further(NamedTuple):
    """What the further records of a group are like. size: of each, in bytes. has_own: whether each has a mask of its
    own lanes. left_out: of short ones the fields that are as in the first record, else None. is_in_turn: of these
    whether their orders are one after the other, and not stored."""

    size: int
    has_own: bool
    is_in_turn: bool
    left_out: tuple[int, ...] | None


def _in_words(words: Sequence[Number], begin: int = 0) -> Parts:
    """Return u32 that are stored one after the other from an offset on."""
    return [(begin + 4 * number, word, Type.U32) for number, word in enumerate(words)]


@dataclass(frozen=True)
class GroupsOfSaves(Groups):
    """Writes the code of several saves to a log."""

    def save_all(self, saves: SavesTogether) -> None:
        """Add the code of several saves that each thread does all or some of, as ``save`` does that of one.

        Where all is as expected they share it but for what they store. Else it is that of each, one after the other.
        """
        whole = self.code.inner()
        present, base = whole.here(), whole.base()
        own = self._in(whole)
        of_each = own._gather(saves, present)
        together = whole.compute(Operator.AND, whole.were_here(), present)
        # By what they have in common: each such group begins with one whose lanes include those of the others.
        alike: dict[Hashable, list[_Save]] = {}
        for save in of_each:
            alike.setdefault(save.kind, []).append(save)
        is_expected, lane = own._begin_expected(of_each[0].lanes, present)
        leads = whole.compare(Relation.EQ, lane, 0)
        shapes, rowed = list[Shape](), list[Rowed]()
        for group in alike.values():
            is_expected = own._expect_lanes(group, of_each[0].lanes, is_expected)
            shape, is_expected, more = own._expect_all(group, lane, present, is_expected)
            shapes.append(shape)
            rowed += more
        heads = len(alike) * self.layout.head
        heads += GROUP_ALIGN * sum(self._two_valued(group[0].values) is not None for group in alike.values())
        further = sum((len(group) - 1) * self._further(group).size for group in alike.values())
        total = (heads + further) // GROUP_ALIGN
        is_expected = whole.compare(Relation.EQ, together, present, is_expected)
        place, state, order = self._kept
        left = whole.compute(Operator.AND, state, LEFT)
        has_none = whole.compare(Relation.LT, left, total, leads)
        has_room = whole.compute(Operator.NOT, has_none)
        is_ready = whole.compute(Operator.AND, own._expect_flat(rowed, lane, is_expected), has_room)
        is_ready = whole.over(present, Reduction.ALL, is_ready)
        ready = whole.inner()
        ready.leave("ready", is_ready, is_uniform=True)
        if rowed:
            is_expected = self._in(ready)._expect_rows(rowed, lane, present, is_expected)
            is_ready = ready.compute(Operator.AND, is_expected, has_room)
            ready.leave("ready", ready.over(present, Reduction.ALL, is_ready), is_uniform=True)
        each = ready.inner()
        each.leave("each", unless=each.over(present, Reduction.ALL, is_expected), is_uniform=True)
        self._in(each)._take_for_all(total, of_each, leads, base, present)
        ready.block("each", each)
        self._in(ready)._save_in_turn(of_each, present)
        ready.leave("all")
        whole.block("ready", ready)
        whole.change(order, Operator.ADD, len(of_each))
        # All lanes run what lane 0 stores by: that takes fewer registers than numbers that are there before a branch.
        at = whole.after(base, place, GROUP_ALIGN)
        begin = LOG_CONTROL
        for shape, group in zip(shapes, alike.values(), strict=True):
            begin = own._store_alike(group, shape, present, leads, at, begin, len(of_each))
        whole.change(state, Operator.SUB, total, leads)
        whole.change(place, Operator.ADD, total, leads)
        self.code.block("all", whole)

    def _gather(self, saves: SavesTogether, present: Register) -> list[_Save]:
        """Return the saves, after the code that finds the lanes that do each. It leaves the block ``all`` if no lane
        saves anything."""
        code = self.code
        firsts: dict[Hashable, tuple[Register, int]] = {}
        clocks: dict[int, Register] = {}
        lanes: dict[Hashable, tuple[Register | None, Register]] = {}
        found = []
        for number, saved in enumerate(saves.each):
            values, condition = self.values(saved, number), saves.condition(number)
            kind = (saves.kin(number), *((value.is_same, value.choices) for value in values))
            added = {}
            for place, value in enumerate(values):
                known = None if value.is_same else saves.beyond(number, place)
                if known is not None:
                    earlier, least = firsts.setdefault((kind, place, known[0]), (value.register, known[1]))
                    if earlier is not value.register:
                        added[place] = earlier, known[1] - least
            if condition not in lanes:
                saving = code.saving(saved, number)
                doing = present if saving is None else code.over(present, Reduction.BALLOT, saving)
                lanes[condition] = saving, doing
            later = {}
            for place, value in enumerate(values):
                if value.is_read and self.entry.fields[place].type.size == 8:
                    first = clocks.setdefault(place, value.register)
                    if first is not value.register:
                        later[place] = first, code.convert(Type.U32, value.register)
            constants = tuple(saves.constant(number, place) for place in range(len(values)))
            found.append(_Save(number, values, *lanes[condition], condition, kind, added, later, constants))
        if None not in lanes:
            (_, some), *others = lanes.values()
            for _, other in others:
                some = code.compute(Operator.OR, some, other)
            code.leave("all", code.compare(Relation.EQ, some, Constant(Type.LANES, 0)), is_uniform=True)
        return found

    def _take_for_all(
        self, total: int, saves: Sequence[_Save], leads: Register, base: Register, present: Register
    ) -> None:
        """Add the code by which lane 0 takes a chunk for groups of a total size.

        It leaves the block ``ready``; or where there is no room ``all``, after it has counted the records as lost."""
        code = self.code
        _, state, order = self._kept
        taken = code.inner()
        taken.leave("taken", unless=leads)
        self._in(taken)._take_chunk(base, total)
        code.block("taken", taken)
        code.meet(present)
        code.of_lane(order, 0, present, into=order)
        code.leave("ready", code.compare(Relation.NE, order, NO_ROOM), is_uniform=True)
        counts = [code.compute(Operator.POPC, save.lanes, type_=Type.U32) for save in saves]
        lost = counts[0]
        for count in counts[1:]:
            lost = code.compute(Operator.ADD, lost, count)
        code.change(state, Operator.ADD, code.compute(Operator.SHL, lost, LOST_AT), leads)
        code.leave("all")

    def _expect_lanes(self, saves: Sequence[_Save], here: Register, is_expected: Register) -> Register:
        """Return a predicate, whether is_expected is true, the lanes that do the first of some saves are a warp's first
        ones, and those of each other one are among them, with lane 0, or none.

        here: those of the first save of all, which are known to be first ones.
        """
        code, none = self.code, Constant(Type.LANES, 0)
        first, *others = (save.lanes for save in saves)
        if first != here:
            is_expected = self._are_first(first, is_expected)
        if saves[0].saving is not None:
            is_expected = code.compare(Relation.NE, first, none, is_expected)
        # Of all other sets together what is not in the first one, and the lowest lane of each.
        union: Register = first
        lowest: Register | Constant = none
        for other in dict.fromkeys(others):
            if other == first:
                continue
            if self._two_valued(saves[0].values) is not None:
                is_expected = code.compare(Relation.EQ, other, first, is_expected)
                continue
            union = code.compute(Operator.OR, union, other)
            own = code.compute(Operator.AND, other, code.compute(Operator.NEG, other))
            lowest = code.compute(Operator.OR, lowest, own) if isinstance(lowest, Register) else own
        if isinstance(lowest, Register):
            is_expected = code.compare(Relation.EQ, union, first, is_expected)
            is_expected = code.compare(Relation.LE, lowest, Constant(Type.LANES, 1), is_expected)
        return is_expected

    def _expect_all(
        self, saves: Sequence[_Save], lane: Register, present: Register, is_expected: Register
    ) -> tuple[Shape, Register, list[Rowed]]:
        """Return what the head of a group of some saves says of their values; a predicate, whether is_expected is
        true and this lane's are so; and of the first one what is not compared yet, as ``_expect`` does."""
        code, (first, *_) = self.code, saves
        two = self._two_valued(first.values)
        shape, rowed = None, list[Rowed]()
        for condition, saving in {save.condition: save.saving for save in saves}.items():
            # Of lanes that do not save, values do not count.
            start = is_like = is_expected if saving is None else saving
            if condition == first.condition:
                shape, is_like, rowed = self._expect(first.values, lane, present, is_like, saving, two)
            for save in saves:
                if save is not first and save.condition == condition:
                    is_like = self._expect_alike(first.values, save, present, is_like, two)
            if saving is None:
                is_expected = is_like
            elif is_like is not start:
                is_other = code.compute(Operator.XOR, is_like, saving)
                is_expected = code.both(is_expected, code.compute(Operator.NOT, is_other)) or is_expected
        if shape is None:
            raise ValueError("no saves")
        return shape, is_expected, rowed

    def _expect_alike(
        self, values: Sequence[Value], other: _Save, present: Register, is_like: Register, small: int | None
    ) -> Register:
        """Return a predicate, whether is_like is true and the values of another save, of which the same fields are
        constant, do not differ from lane to lane in another way. small: a field that is not compared."""
        code = self.code
        for number, (value, own) in enumerate(zip(values, other.values, strict=True)):
            size = self.entry.fields[number].type.size
            if own.is_same or number in other.added or number == small:
                continue
            if size < 8:
                # Those of the first save are all the same.
                left, right = self._cut(own.register, size), self._cut(value.register, size)
                is_like = code.compare(Relation.EQ, left, right, is_like)
                continue
            moved = code.compute(Operator.SUB, own.register, value.register)
            first = code.of_lane(code.convert(Type.U32, moved), 0, present)
            wide = code.convert(Type.S64, code.as_bits(Type.S32, first))
            is_like = code.compare(Relation.EQ, moved, code.as_bits(Type.U64, wide), is_like)
        return is_like

    def _two_valued(self, values: Sequence[Value]) -> int | None:
        """Return the field that is stored as a mask, since it has one of two values in each lane; None without one."""
        return next((number for number, value in enumerate(values) if value.choices and not value.is_same), None)

    def _lanes_with_greater(self, values: Sequence[Value], present: Register) -> Register:
        """Return the lanes that have the greater value of the field with one of two; none without such a field."""
        code, number = self.code, self._two_valued(values)
        if number is None:
            return code.variable(Constant(Type.LANES, 0))
        size = self.entry.fields[number].type.size
        own = self._cut(values[number].register, size)
        is_greater = code.compare(Relation.EQ, own, values[number].choices[1] % (1 << 8 * size))
        return code.over(present, Reduction.BALLOT, is_greater)

    def _stored(self, save: _Save) -> list[Number]:
        """Return what is stored for the fields of a save: of one with one of two values the less one. Values that are
        computed from an earlier save's take no registers before."""
        found, two = list[Number](), self._two_valued(save.values)
        for number, value in enumerate(save.values):
            if number == two:
                found.append(value.choices[0] % (1 << 16))
            else:
                found.append(self._added(save, number))
        return found

    def _added(self, save: _Save, number: int) -> Register:
        """Return the value of a field, computed from an earlier save's if that is known; of a clock from how much later
        it was read, so that only its lower half takes a register before."""
        code = self.code
        if number in save.later:
            first, low = save.later[number]
            passed = code.compute(Operator.SUB, low, code.convert(Type.U32, first))
            return code.compute(Operator.ADD, code.convert(Type.U64, passed), first)
        earlier, amount = save.added.get(number, (save.values[number].register, 0))
        return code.compute(Operator.ADD, earlier, amount) if amount else earlier

    def _lanes_again(self, save: _Save, present: Register) -> Register:
        """Return the lanes that do a save, found again so that they take no register before."""
        return save.lanes if save.saving is None else self.code.over(present, Reduction.BALLOT, save.saving)

    def _store_alike(
        self, saves: Sequence[_Save], shape: Shape, present: Register, leads: Register, at: Register, begin: int,
        count: int,
    ) -> int:  # fmt: skip
        """Add the store, by the lane that leads, of saves that share a group, and return where the next group begins,
        as begin says of this one. count: of all saves."""
        code, layout, (first, *others) = self.code, self.layout, saves
        _, _, last = self._kept
        two, further = self._two_valued(first.values), self._further(saves)
        known = len(others) << GROUP_FURTHER_AT | (0 if two is None else GROUP_TWO_VALUES << 2 * two)
        known |= further.has_own << GROUP_OWN_LANES_AT
        if further.left_out is not None:
            known |= 1 << GROUP_SHORT_AT | further.is_in_turn << GROUP_IN_TURN_AT
            known |= sum(GROUP_LEFT_OUT << 2 * number for number in further.left_out)
        order = code.compute(Operator.ADD, last, first.number + 1 - count)
        forms: Number = known
        if isinstance(shape.forms, Register):
            forms = code.compute(Operator.OR, shape.forms, known)
        lanes = self._lanes_again(first, present)
        parts = self._head(self._stored(first), shape._replace(forms=forms), lanes, order)
        code.store_together(at, begin, parts, GROUP_ALIGN, leads)
        begin += layout.head
        if two is not None:
            value = first.values[two].choices[1] % (1 << 16)
            words = [*mask_words(code, self._lanes_with_greater(first.values, present), self.lanes), value]
            code.store_together(at, begin, _in_words(words), GROUP_ALIGN, leads)
            begin += GROUP_ALIGN
        for save in others:
            words = [] if further.is_in_turn else [save.number - first.number]
            if further.has_own:
                words += mask_words(code, self._lanes_again(save, present), self.lanes)
            elif two is not None or further.left_out is None:
                words += mask_words(code, self._lanes_with_greater(save.values, present), self.lanes)
            if further.left_out is None:
                parts = [*self._record(self._stored(save), 0), *_in_words(words, layout.later)]
            else:
                fields = (number for number in range(len(save.values)) if number not in {*further.left_out, two})
                parts = _in_words([*(self._short(first, save, number) for number in fields), *words])
            code.store_together(at, begin, parts, GROUP_ALIGN, leads)
            begin += further.size
        return begin

    def _further(self, saves: Sequence[_Save]) -> _Further:
        """Return what the further records of saves that share a group are like: short, if that is shorter."""
        first, *others = saves
        two, words = self._two_valued(first.values), self.layout.masks // 4
        has_own = two is None and any(save.condition != first.condition for save in others)
        is_in_turn = all(save.number == first.number + 1 + place for place, save in enumerate(others))
        long = _Further(self.layout.further, has_own, False, None)
        if not others or len(first.values) > GROUP_SHORT_FIELDS:
            return long
        left_out = []
        for number, value in enumerate(first.values):
            known = first.constants[number]
            if number != two and known is not None and all(save.constants[number] == known for save in others):
                left_out.append(number)
            elif self.entry.fields[number].type.size == 8 and not self._fits(first, others, number, value):
                return long
        count = len(first.values) - len(left_out) - (two is not None)
        count += (not is_in_turn) + words * (has_own or two is not None)
        size = align_up(4 * count, GROUP_ALIGN)
        return _Further(size, has_own, is_in_turn, tuple(left_out)) if size < long.size else long

    def _fits(self, first: _Save, others: Sequence[_Save], number: int, value: Value) -> bool:
        """Return whether a field of 8 bytes differs from that of the first save by what 4 bytes hold with a sign, where
        all is as expected."""
        for save in others:
            earlier, amount = save.added.get(number, (None, 0))
            if number in save.later or (earlier is None and not save.values[number].is_same):
                continue
            if earlier is not value.register or (amount + (1 << 31)) % (1 << 64) >= 1 << 32:
                return False
        return True

    def _short(self, first: _Save, save: _Save, number: int) -> Number:
        """Return what a short further record has of a field: of 8 bytes how much it is beyond the first save's."""
        code, value = self.code, save.values[number]
        if self.entry.fields[number].type.size < 8:
            return value.register
        if number in save.added:
            return save.added[number][1] % (1 << 32)
        low, before = (
            one.later[number][1] if number in one.later else code.convert(Type.U32, one.values[number].register)
            for one in (save, first)
        )
        return code.compute(Operator.SUB, low, before)

    def _save_in_turn(self, saves: Sequence[_Save], present: Register) -> None:
        """Add the code of saves one after the other: as a loop, in which their values take no registers meanwhile."""
        code, is_conditional = self.code, any(save.saving is not None for save in saves)
        rows: list[list[Register | Constant]] = []
        for save in saves:
            row: list[Register | Constant] = [self._added(save, number) for number in range(len(save.values))]
            if is_conditional:
                row.append(save.saving or Constant(Type.PRED, 1))
            rows.append(row)
        then = code.inner()
        values = []
        for number, field in enumerate(self.entry.fields):
            # Lanes that are together now may have read the clock one after the other.
            is_same = all(save.values[number].is_same and not save.values[number].is_read for save in saves)
            register = then.fresh(Type.U64 if field.type.size == 8 else Type.U32)
            values.append(Value(register, is_same, False, ()))
        saving = then.fresh(Type.PRED) if is_conditional else None
        self._in(then).save(values, saving, present, tries=False)
        registers = [value.register for value in values] + ([saving] if saving is not None else [])
        code.in_turn(registers, rows, present, then)
