"""Code that saves records to a log as groups: the lanes of a warp that save together store what they share once. The
layout is in ``maps/log_groups.py``."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from neutrino.abi.structures import align_up
from neutrino.maps.log_columns import LOG_CONTROL
from neutrino.maps.log_groups import (
    GROUP_ALIGN,
    GROUP_FURTHER_AT,
    GROUP_OWN_LANES_AT,
    GROUP_ROWS_AT,
    GROUP_ROWS_FIELD_AT,
    GROUP_TWO_VALUES,
)
from neutrino.ptx.instrument.log_forms import LEFT_BITS, LOST_AT, GroupForms
from neutrino.ptx.instrument.records import NO_ROOM, Saved, in_few_stores
from neutrino.ptx.instrument.registers import Guard, positive
from neutrino.ptx.isa.scalars import WARP_LANES
from neutrino.ptx.text.inserted import Label, Lines, Scope, mem, op, vector

WAITING_ALIGN = 8
"""Saves that wait in local memory are at multiples of it, in bytes."""


@dataclass(frozen=True)
class PendingSave:
    """A save whose code is written with that of others. values: of the fields, in registers that nothing changes until
    then, or constants. guard: of the threads that save, None for all. kin: saves with the same one are expected to have
    values that differ by the same amount in all lanes."""

    values: tuple[Saved, ...]
    guard: Guard | None
    kin: Hashable


@dataclass(frozen=True)
class _Shape:
    """What the head of a group says of its values, in registers. strides: by the field's number. rows: the stride from
    row to row, "" without one."""

    strides: Mapping[int, str]
    forms: str
    rows: str


class _Savers(NamedTuple):
    """Which lanes do a save: a register with their mask, and a predicate for each of them, "" if all do."""

    is_saving: str
    mask: str


@dataclass(frozen=True)
class GroupCode(GroupForms):
    """Writes the code of one log in one body."""

    def append(
        self, values: Sequence[Saved], guard: Guard | None, lines: Lines, *, ending: bool,
        present: str = "", tries: bool = True,
    ) -> None:  # fmt: skip
        """Append the code that saves a record to lines, which may not stand between a product and its sum.

        values: of the fields. guard: of the threads that save, None for all. ending:
        the code stands where the thread ends. present: a mask of lanes; others do not save together with these. tries:
        whether values may be as expected. It branches, but only forward, to labels of its own; all threads meet
        again after it.
        """
        # Labels are local to braces, so that the text can be inserted again elsewhere.
        name = f"${self.place[1:]}"
        lines.append(Scope.OPEN)
        if guard is not None:
            lines.append(op("bra", f"{name}_end", when=Guard(guard.register, not guard.negated).text))
        here, base = self.take("b32"), self.take("b64")
        lines.append(op("activemask.b32", here))
        if present:
            lines.append(op("and.b32", here, here, present))
        self.block.load_map(self.index, base, lines, ending=ending)
        if tries:
            self._append_expected(values, here, base, name, lines)
        self._append_other(values, here, base, name, lines)
        lines += [Label(f"{name}_end"), Scope.CLOSE]

    @property
    def waiting_bytes(self) -> int:
        """Bytes of local memory that ``append_all`` needs for each save."""
        return align_up(self._after_record + 4, WAITING_ALIGN)

    @property
    def _after_record(self) -> int:
        """Where a save that waits in local memory has, after its record, a word."""
        return align_up(self.entry.size, 4)

    def append_all(
        self, saves: Sequence[PendingSave], mask: str, memory: str, lines: Lines
    ) -> None:
        """Append the code of several saves that each thread does all or some of, as ``append`` does that of one: where
        all is as expected they share it but for what they store. Else it is that of each, one after the other.

        mask: the register with the lanes that were together at the places of the saves. memory: a variable in local
        memory, of ``waiting_bytes`` for each.
        """
        take = self.take
        name = f"${self.place[1:]}_all"
        present, base = take("b32"), take("b64")
        lines += [Scope.OPEN, op("activemask.b32", present)]
        self.block.load_map(self.index, base, lines, ending=False)
        # By what they have in common, the saves with their numbers: each such group begins with one whose lanes include
        # those of the others.
        saves = _with_bases(saves)
        kin: dict[Hashable, list[tuple[int, PendingSave]]] = {}
        for number, save in enumerate(saves):
            kin.setdefault(_kind(save), []).append((number, save))
        savers = self._find_savers(saves, present, name, lines)
        here = savers[saves[0].guard].mask
        is_expected = take("pred")
        lane = self._begin_expected(here, present, is_expected, lines)
        leads = take("pred")
        lines.append(op("setp.eq.u32", leads, lane, "0"))
        shapes = []
        for alike in kin.values():
            self._expect_lanes([savers[save.guard].mask for _, save in alike], here, alike, is_expected, lines)
            shapes.append(self._expect_all(alike, savers, lane, present, is_expected, lines))
        masks = sum(self._two_valued(first.values) is not None for (_, first), *_ in kin.values())
        heads = len(kin) * self.layout.head + masks * GROUP_ALIGN
        total = (heads + (len(saves) - len(kin)) * self.layout.further) // GROUP_ALIGN
        left, has_room, at, together, is_ready = take("b32"), take("pred"), take("b64"), take("b32"), take("pred")
        lines += [
            op("and.b32", together, mask, present),
            op("setp.eq.and.u32", is_expected, together, present, is_expected),
            op("and.b32", left, self.state, str((1 << LEFT_BITS) - 1)),
            op("setp.lt.and.u32", has_room, left, str(total), leads),
            op("not.pred", has_room, has_room),
            op("and.pred", is_ready, is_expected, has_room),
            op("vote.sync.all.pred", is_ready, is_ready, present),
            op("bra.uni", f"{name}_other", when=f"!{is_ready}"),
            Label(f"{name}_ready"),
            op("add.u32", self.order, self.order, str(len(saves))),
        ]
        # What stands in the group instead of a field that has one of two values: the lanes with the greater one.
        others_of = [self._lanes_with_greater(save.values, present, lines) for save in saves]
        lines += [
            op("bra", f"{name}_met", when=f"!{leads}"),
            op("mad.wide.u32", at, self.place, str(GROUP_ALIGN), base),
            op("sub.u32", self.state, self.state, str(total)),
            op("add.u32", self.place, self.place, str(total)),
        ]
        begin = LOG_CONTROL
        for shape, ((number, first), *others) in zip(shapes, kin.values(), strict=True):
            group, order, forms = savers[first.guard].mask, take("b32"), take("b32")
            two = self._two_valued(first.values)
            has_own = two is None and any(save.guard != first.guard for _, save in others)
            known = len(others) << GROUP_FURTHER_AT | (0 if two is None else GROUP_TWO_VALUES << 2 * two)
            lines += [
                op("add.u32", order, self.order, str(number + 1 - len(saves))),
                op("or.b32", forms, shape.forms, f"{known | has_own << GROUP_OWN_LANES_AT:#x}"),
            ]
            values = self._with_least(first.values, lines)
            stores = self._head(values, shape.strides, group, forms, order, shape.rows, lines)
            if two is not None:
                greater = take("b32")
                lines.append(op("mov.u32", greater, str(first.values[two].choices[1] % (1 << 16))))
                area = [(self.layout.head, "b32", others_of[number]), (self.layout.head + 4, "b32", greater)]
                stores += in_few_stores(area, GROUP_ALIGN, take, lines)
            lines += [op(f"st.global.{kind}", mem(at, begin + where), text) for where, kind, text in stores]
            begin += self.layout.head + (0 if two is None else GROUP_ALIGN)
            for later, other in others:
                offset, after = take("b32"), self.layout.later
                lines.append(op("mov.u32", offset, str(later - number)))
                single = self._record(self._added(self._with_least(other.values, lines), lines), 0, lines)
                own = savers[other.guard].mask if has_own else others_of[later]
                single += [(after, "b32", offset), (after + 4, "b32", own)]
                stores = in_few_stores(single, GROUP_ALIGN, take, lines)
                lines += [op(f"st.global.{kind}", mem(at, begin + where), text) for where, kind, text in stores]
                begin += self.layout.further
        lines += [
            Label(f"{name}_met"),
            op("bar.warp.sync", present),
            op("bra.uni", f"{name}_end"),
            Label(f"{name}_other"),
            op("vote.sync.all.pred", is_expected, is_expected, present),
            op("bra.uni", f"{name}_each", when=f"!{is_expected}"),
        ]
        self._take_for_all(total, [savers[save.guard].mask for save in saves], leads, base, present, name, lines)
        lines.append(Label(f"{name}_each"))
        self._append_each(saves, present, memory, name, lines)
        lines += [Label(f"{name}_end"), Scope.CLOSE]

    def _take_for_all(
        self, total: int, masks: Sequence[str], leads: str, base: str, present: str, name: str, lines: Lines
    ) -> None:
        """Append the code by which lane 0 takes a chunk for groups of a total size, then branches to where they are
        written, or where there is no room for it, counts the records of the lanes in the masks as lost."""
        take = self.take
        size, has_room, lost = take("b32"), take("pred"), take("b32")
        lines += [op("bra", f"{name}_taken", when=f"!{leads}"), op("mov.u32", size, str(total))]
        self._take_chunk(base, size, lines)
        lines += [
            Label(f"{name}_taken"),
            op("bar.warp.sync", present),
            op("shfl.sync.idx.b32", self.order, self.order, "0", "31", present),
            op("setp.ne.u32", has_room, self.order, NO_ROOM),
            op("bra.uni", f"{name}_ready", when=has_room),
            op("mov.u32", lost, "0"),
        ]
        for saving in masks:
            count = take("b32")
            lines += [op("popc.b32", count, saving), op("add.u32", lost, lost, count)]
        lines += [
            op("shl.b32", lost, lost, str(LOST_AT)),
            op("add.u32", self.state, self.state, lost, when=leads),
            op("bra.uni", f"{name}_end"),
        ]

    def _expect_lanes(
        self, masks: Sequence[str], here: str, alike: Sequence[tuple[int, PendingSave]], is_expected: str,
        lines: Lines,
    ) -> None:  # fmt: skip
        """Append the code that makes the predicate is_expected false unless the lanes that do the first of some saves
        are a warp's first ones, and those of each other one are among them, with lane 0, or none.

        masks: of the lanes of each. here: that of the first save of all, whose lanes are known to be first ones.
        """
        first, *others = masks
        if first != here:
            above = self.take("b32")
            lines += [
                op("add.u32", above, first, "1"),
                op("and.b32", above, above, first),
                op("setp.eq.and.u32", is_expected, above, "0", is_expected),
            ]
        if alike[0][1].guard is not None:
            lines.append(op("setp.ne.and.u32", is_expected, first, "0", is_expected))
        for other in dict.fromkeys(others):
            if other == first:
                continue
            if self._two_valued(alike[0][1].values) is not None:
                lines.append(op("setp.eq.and.u32", is_expected, other, first, is_expected))
                continue
            both, lowest = self.take("b32"), self.take("b32")
            lines += [
                op("or.b32", both, other, first),
                op("setp.eq.and.u32", is_expected, both, first, is_expected),
                op("neg.s32", lowest, other),
                op("and.b32", lowest, lowest, other),
                op("setp.le.and.u32", is_expected, lowest, "1", is_expected),
            ]

    def _expect_all(
        self, alike: Sequence[tuple[int, PendingSave]], savers: Mapping[Guard | None, _Savers], lane: str,
        present: str, is_expected: str, lines: Lines,
    ) -> _Shape:  # fmt: skip
        """Append the code that makes the predicate is_expected false where a lane's values are not what the head of a
        group of some saves, given with their numbers, says of them; returns what it says. Else as in ``append_all``."""
        ((_, first), *_) = alike
        two = self._two_valued(first.values)
        shape = None
        for guard in dict.fromkeys(save.guard for _, save in alike):
            # Of lanes that do not save, values do not count.
            is_saving, checks = savers[guard].is_saving, Lines()
            is_like = self.take("pred") if is_saving else is_expected
            if guard == first.guard:
                shape = self._expect(first.values, lane, present, is_like, is_saving, checks, two)
            for _, save in alike:
                if save is not first and save.guard == guard:
                    self._expect_alike(first.values, save.values, present, is_like, checks, two)
            if not is_saving or not any(is_like in one.written for line in checks for one in line.instructions):
                lines += checks
                continue
            lines += [
                op("mov.pred", is_like, is_saving),
                *checks,
                op("xor.pred", is_like, is_like, is_saving),
                op("not.pred", is_like, is_like),
                op("and.pred", is_expected, is_expected, is_like),
            ]
        if shape is None:
            raise ValueError("no saves")
        return shape

    def _two_valued(self, values: Sequence[Saved]) -> int | None:
        """The field that is stored as a mask, since it has one of two values in each lane; None without one."""
        return next(
            (
                number for number, value in enumerate(values)
                if value.choices and not value.is_same and self.entry.fields[number].type.size <= 2
            ),
            None,
        )  # fmt: skip

    def _lanes_with_greater(self, values: Sequence[Saved], present: str, lines: Lines) -> str:
        """A register with the mask of the lanes that have the greater value of the field with one of two; 0 without
        such a field."""
        number, mask = self._two_valued(values), self.take("b32")
        if number is None:
            lines.append(op("mov.u32", mask, "0"))
            return mask
        size, is_greater = self.entry.fields[number].type.size, self.take("pred")
        own = self._as_word(values[number], size, lines)
        lines += [
            op("setp.eq.u32", is_greater, own, str(values[number].choices[1] % (1 << 8 * size))),
            op("vote.sync.ballot.b32", mask, is_greater, present),
        ]
        return mask

    def _with_least(self, values: Sequence[Saved], lines: Lines) -> Sequence[Saved]:
        """Values with the less one of a field that has one of two."""
        number = self._two_valued(values)
        if number is None:
            return values
        least = self.take("b16")
        lines.append(op("mov.b16", least, str(values[number].choices[0] % (1 << 16))))
        return [*values[:number], Saved(least, "b16", is_same=True), *values[number + 1 :]]

    def _added(self, values: Sequence[Saved], lines: Lines) -> Sequence[Saved]:
        """Values of which those with a base are computed from it, so that they take no registers before."""
        found = []
        for value in values:
            if value.base is not None:
                register, amount = value.base
                total = self.take("b64")
                lines.append(op("add.s64", total, register, str(amount)))
                value = replace(value, text=total, type="b64")
            found.append(value)
        return found

    def _append_each(
        self, saves: Sequence[PendingSave], present: str, memory: str, name: str, lines: Lines
    ) -> None:
        """Append the code of saves one after the other: a loop, which reads their values from local memory, so that
        they take no registers meanwhile. present: the mask of the lanes. memory: as of ``append_all``.
        name: begins labels."""
        take, stride, after = self.take, self.waiting_bytes, self._after_record
        start, at, end, flag = take("b64"), take("b64"), take("b64"), take("b32")
        lines.append(op("mov.u64", start, memory))
        for number, save in enumerate(saves):
            lines.append(op("mov.u32", flag, "1"))
            if save.guard is not None:
                lines.append(op("selp.b32", flag, "1", "0", positive(save.guard, take, lines)))
            single = self._record(self._added(save.values, lines), 0, lines)
            single.append((after, "b32", flag))
            stores = in_few_stores(single, WAITING_ALIGN, take, lines)
            lines += [
                op(f"st.local.{kind}", f"[{start}+{number * stride + where}]", text) for where, kind, text in stores
            ]
        lines += [
            op("mov.u64", at, start),
            op("add.u64", end, start, str(len(saves) * stride)),
            Label(f"{name}_next"),
            # So that no lane is at another save than those that it saves with. Other lanes may be.
            op("bar.warp.sync", present),
        ]
        values = []
        for number, field in enumerate(self.entry.fields):
            # There are no registers of 8 bits.
            kind, width = f"b{8 * field.type.size}", max(8 * field.type.size, 16)
            register = take(f"b{width}")
            lines.append(op(f"ld.local.{kind}", register, f"[{at}+{field.offset}]"))
            # Lanes that are together now may have read the clock one after the other.
            is_same = all(save.values[number].is_same and not save.values[number].is_read for save in saves)
            values.append(Saved(register, f"b{width}", is_same))
        is_saved, is_next = take("pred"), take("pred")
        lines += [
            op("ld.local.b32", flag, mem(at, after)),
            op("setp.ne.u32", is_saved, flag, "0"),
            op("add.u64", at, at, str(stride)),
        ]
        self.append(values, Guard(is_saved, False), lines, ending=False, present=present, tries=False)
        lines += [op("setp.lt.u64", is_next, at, end), op("bra.uni", f"{name}_next", when=is_next)]

    def _find_savers(
        self, saves: Sequence[PendingSave], present: str, name: str, lines: Lines
    ) -> dict[Guard | None, _Savers]:
        """Append the code that finds the lanes that do each save, by its guard.

        It branches to the end if no lane saves anything. present: the register with the mask of the lanes.
        """
        take = self.take
        savers: dict[Guard | None, _Savers] = {None: _Savers("", present)}
        for guard in dict.fromkeys(save.guard for save in saves):
            if guard is not None:
                savers[guard] = _Savers(positive(guard, take, lines), take("b32"))
                lines.append(op("vote.sync.ballot.b32", savers[guard].mask, savers[guard].is_saving, present))
        if all(save.guard is not None for save in saves):
            some, *others = [found.mask for guard, found in savers.items() if guard is not None]
            is_none = take("pred")
            for other in others:
                both = take("b32")
                lines.append(op("or.b32", both, some, other))
                some = both
            lines += [op("setp.eq.u32", is_none, some, "0"), op("bra.uni", f"{name}_end", when=is_none)]
        return savers

    def _begin_expected(self, here: str, present: str, is_expected: str, lines: Lines) -> str:
        """Append the code that makes the predicate is_expected true if the lanes in the mask here are a warp's first
        ones, or none, and the lanes in the mask present were in the same groups and have lost none; returns a register
        with the lane's number."""
        lane, above = self.take("b32"), self.take("b32")
        lines += [
            op("mov.u32", lane, "%laneid"),
            op("add.u32", above, here, "1"),
            op("and.b32", above, above, here),
            op("setp.eq.u32", is_expected, above, "0"),
        ]
        order = self._of_lane(self.order, 0, present, lines)
        lines += [
            op("setp.eq.and.u32", is_expected, self.order, order, is_expected),
            op("setp.ne.and.u32", is_expected, self.order, NO_ROOM, is_expected),
        ]
        return lane

    def _expect(
        self, values: Sequence[Saved], lane: str, present: str, is_like: str, is_saving: str, lines: Lines,
        small: int | None = None,
    ) -> _Shape:  # fmt: skip
        """Append the code that makes the predicate is_like false where a value is not what the group's head says of it:
        all fields are flat, but that the first one with a stride may lie in rows.

        lane: a register with the lane's number. is_saving: a predicate of the lanes whose values count, "" if all do.
        small: a field that is not compared.
        """
        take = self.take
        forms, rows = take("b32"), ""
        strides: dict[int, str] = {}
        lines.append(op("mov.u32", forms, "0"))
        for number, value in enumerate(values):
            if value.is_same or number == small:
                continue
            size = self.entry.fields[number].type.size
            if size < 8:
                own = self._as_word(value, size, lines)
                first = self._of_lane(own, 0, present, lines)
                lines.append(op("setp.eq.and.u32", is_like, own, first, is_like))
                continue
            low, high, wide, stride = take("b32"), take("b32"), take("b64"), take("b32")
            lines.append(op("mov.b64", vector(low, high), value.text))
            first, upper, second = (
                self._of_lane(half, source, present, lines) for half, source in ((low, 0), (high, 0), (low, 1))
            )
            lines += [op("mov.b64", wide, vector(first, upper)), op("sub.u32", stride, second, first)]
            if not strides and self.layout.rows < self.layout.head:
                log, length, inner, outer, apart = (take("b32") for _ in range(5))
                is_apart = take("pred")
                lines += [
                    op("mad.lo.u32", inner, stride, lane, first),
                    op("setp.ne.u32", is_apart, low, inner),
                ]
                if is_saving:
                    lines.append(op("and.pred", is_apart, is_apart, is_saving))
                lines += [
                    # The first lane that a single stride does not reach begins the second row.
                    op("vote.sync.ballot.b32", apart, is_apart, present),
                    op("brev.b32", length, apart),
                    op("bfind.shiftamt.u32", length, length),
                    op("min.u32", length, length, str(WARP_LANES)),
                    op("bfind.u32", log, length),
                    op("add.u32", inner, length, "-1"),
                    op("and.b32", inner, inner, lane),
                    op("shr.u32", outer, lane, log),
                ]
                # Of all in one row it is lane 0.
                rows = self._of_lane(low, length, present, lines)
                lines += [
                    op("sub.u32", rows, rows, first),
                    op("mad.wide.s32", wide, stride, inner, wide),
                    op("mad.wide.s32", wide, rows, outer, wide),
                    op("shl.b32", forms, log, str(GROUP_ROWS_AT)),
                ]
                if number:
                    lines.append(op("or.b32", forms, forms, str(number << GROUP_ROWS_FIELD_AT)))
            else:
                lines.append(op("mad.wide.s32", wide, stride, lane, wide))
            lines.append(op("setp.eq.and.u64", is_like, value.text, wide, is_like))
            strides[number] = stride
        return _Shape(strides, forms, rows)

    def _expect_alike(
        self, values: Sequence[Saved], others: Sequence[Saved], present: str, is_like: str, lines: Lines,
        small: int | None,
    ) -> None:  # fmt: skip
        """Append the code that makes the predicate is_like false where others do not differ from lane to lane as values
        do, those of another save of which the same fields are constant. small: a field that is not compared."""
        take = self.take
        for number, (value, other) in enumerate(zip(values, others, strict=True)):
            size = self.entry.fields[number].type.size
            if other.is_same or other.base is not None or number == small:
                continue
            if size < 8:
                # Those of the first save are all the same.
                own, first = self._as_word(other, size, lines), self._as_word(value, size, lines)
                lines.append(op("setp.eq.and.u32", is_like, own, first, is_like))
                continue
            moved, low, sign, wide = take("b64"), take("b32"), take("b32"), take("b64")
            lines += [op("sub.u64", moved, other.text, value.text), op("cvt.u32.u64", low, moved)]
            first = self._of_lane(low, 0, present, lines)
            lines += [
                op("shr.s32", sign, first, "31"),
                op("mov.b64", wide, vector(first, sign)),
                op("setp.eq.and.u64", is_like, moved, wide, is_like),
            ]

    def _append_expected(
        self, values: Sequence[Saved], here: str, base: str, name: str, lines: Lines
    ) -> None:
        """Append the code that saves the records of a warp's first lanes, or of all, and branches to the end, if all is
        as expected, else to ``other``: there is room, no lane was in groups without the others, and all fields are as
        ``_expect`` has it, but that one of 1 or 2 bytes may be anything. name: as of ``_append_other``."""
        take, head = self.take, self.layout.head
        leads, has_room, is_expected = take("pred"), take("pred"), take("pred")
        lane = self._begin_expected(here, here, is_expected, lines)
        lines.append(op("setp.eq.u32", leads, lane, "0"))
        # One field of 1 or 2 bytes, which have no shorter form, may have other values in each lane.
        small = [
            number for number, value in enumerate(values)
            if not value.is_same and self.entry.fields[number].type.size <= 2
        ]  # fmt: skip
        spread = is_equal = ""
        if len(small) == 1:
            size = self.entry.fields[small[0]].type.size
            spread, is_equal = self._as_word(values[small[0]], size, lines), take("pred")
            lines.append(op("setp.eq.u32", is_equal, spread, self._of_lane(spread, 0, here, lines)))
        shape = self._expect(values, lane, here, is_expected, "", lines, small[0] if spread else None)
        left, at, is_flat, used = take("b32"), take("b64"), take("pred"), take("b32")
        lines += [
            op("and.b32", left, self.state, str((1 << LEFT_BITS) - 1)),
            op("setp.lt.and.u32", has_room, left, str(head // GROUP_ALIGN), leads),
            op("not.pred", has_room, has_room),
            op("and.pred", is_flat, is_expected, has_room),
        ]
        if spread:
            lines.append(op("and.pred", is_flat, is_flat, is_equal))
        lines += [
            op("vote.sync.all.pred", is_flat, is_flat, here),
            op("mov.u32", used, str(head // GROUP_ALIGN)),
            op("bra.uni", f"{name}_{'same' if spread else 'other'}", when=is_flat if spread else f"!{is_flat}"),
        ]
        if spread:
            self._spread(small[0], spread, lane, shape.forms, used, leads, left, is_expected, here, base, name, lines)
            lines.append(Label(f"{name}_same"))
        lines += [
            op("add.u32", self.order, self.order, "1"),
            op("bra", f"{name}_met", when=f"!{leads}"),
            op("mad.wide.u32", at, self.place, str(GROUP_ALIGN), base),
            op("sub.u32", self.state, self.state, used),
            op("add.u32", self.place, self.place, used),
        ]
        for where, kind, text in self._head(values, shape.strides, here, shape.forms, self.order, shape.rows, lines):
            lines.append(op(f"st.global.{kind}", mem(at, LOG_CONTROL + where), text))
        lines += [Label(f"{name}_met"), op("bar.warp.sync", here), op("bra.uni", f"{name}_end"), Label(f"{name}_other")]

    def _spread(
        self, number: int, value: str, lane: str, forms: str, used: str, leads: str, left: str, is_expected: str,
        here: str, base: str, name: str, lines: Lines,
    ) -> None:  # fmt: skip
        """Append the code that stores each lane's value of a field of 1 or 2 bytes in a group that is otherwise
        as expected. used: the group's size, which it changes. Else as in ``_append_expected``."""
        take, head, size = self.take, self.layout.head, self.entry.fields[number].type.size
        has_room, where, at = take("pred"), take("b32"), take("b64")
        most = (head + WARP_LANES * size + GROUP_ALIGN - 1) // GROUP_ALIGN
        lines += [
            op("setp.lt.and.u32", has_room, left, str(most), leads),
            op("not.pred", has_room, has_room),
            op("and.pred", is_expected, is_expected, has_room),
            op("vote.sync.all.pred", is_expected, is_expected, here),
            op("bra.uni", f"{name}_other", when=f"!{is_expected}"),
            op("shfl.sync.idx.b32", where, self.place, "0", "31", here),
            op("mad.wide.u32", at, where, str(GROUP_ALIGN), base),
            op("mad.wide.u32", at, lane, str(size), at),
            op(f"st.global.b{8 * size}", mem(at, LOG_CONTROL + head), value),
            op("or.b32", forms, forms, str(3 << 2 * number)),
            op("popc.b32", used, here),
            op("mad.lo.u32", used, used, str(size), str(head + GROUP_ALIGN - 1)),
            op("shr.u32", used, used, str(GROUP_ALIGN.bit_length() - 1)),
        ]


def _with_bases(saves: Sequence[PendingSave]) -> list[PendingSave]:
    """Saves of which each value that is known to be an amount more than that of an earlier alike one has a base."""
    first: dict[Hashable, Saved] = {}
    found = []
    for save in saves:
        values = list(save.values)
        for number, value in enumerate(values):
            if value.sum is None or value.is_same:
                continue
            earlier = first.setdefault((_kind(save), number, value.sum.terms), value)
            if earlier is not value and earlier.sum is not None:
                amount = value.sum.constant - earlier.sum.constant
                signed = (amount + (1 << 63)) % (1 << 64) - (1 << 63)
                values[number] = replace(value, base=(earlier.text, signed))
        found.append(replace(save, values=tuple(values)))
    return found


def _kind(save: PendingSave) -> Hashable:
    """What saves have in common that may be further records of one group."""
    return (save.kin, *((value.is_same, value.choices) for value in save.values))
