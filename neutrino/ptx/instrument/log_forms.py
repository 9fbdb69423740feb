"""Code that saves the records of any lanes of a warp as a group of a log, in the shortest forms that their values have;
and that takes chunks for groups. The layout is in ``maps/log_groups.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neutrino.maps.declaration import Map
from neutrino.maps.log_columns import LOG_CONTROL, LOG_UNIT
from neutrino.maps.log_groups import (
    GROUP_ALIGN,
    GROUP_CHUNK_LEAST,
    GROUP_CHUNK_MOST,
    GROUP_ROWS_AT,
    GROUP_ROWS_FIELD_AT,
    GroupLayout,
)
from neutrino.maps.log_single import LOG_OWN
from neutrino.ptx.instrument.probe_block import ProbeBlock, Slots
from neutrino.ptx.instrument.records import LOST, NO_ROOM, Saved, in_few_stores
from neutrino.ptx.instrument.registers import Take, bits
from neutrino.ptx.text.inserted import Label, Lines, mem, op, vector

# What a thread keeps of its chunk, from the lowest bit on: how much room it has left, in units of GROUP_ALIGN; how many
# times it was doubled; how many records were lost since it was taken, where it is after the end of the region.
LEFT_BITS = 12
_DOUBLED_BITS = 4
LOST_AT = LEFT_BITS + _DOUBLED_BITS
_MOST_DOUBLED = (GROUP_CHUNK_MOST // GROUP_CHUNK_LEAST).bit_length() - 1
_UNITS_MOST = (1 << 31) - (1 << 14)
"""Units in a region, at most, so that 32 bits hold every place and every order."""

@dataclass(frozen=True)
class _Compared:
    """A field whose values may differ in the lanes of a group, in registers.

    number, size: the field's, in bytes. value: of the field. difference: to the lowest lane's, of 32 or 64 bits.
    is_flat: a predicate, whether the difference is the stride times the lane's rank; of fewer than 8 bytes, whether it
    is 0. stride: "" without one. form, area: once they are chosen, the field's form and where its area begins.
    """

    number: int
    size: int
    value: str
    difference: str
    is_flat: str
    stride: str
    form: str
    area: str


@dataclass(frozen=True)
class GroupForms:
    """Writes the code that saves a group of any lanes with any values to one log, in one body.

    entry, index: the map and its index. layout: of its groups. place, state, order: registers of 32 bits, at first 0,
    that each thread keeps to its end: where the next group goes that this thread is the lowest lane of, in units of
    GROUP_ALIGN; what is known of the chunk there; and the greatest order of a group that it was in, NO_ROOM once a
    record was lost.
    """

    entry: Map
    index: int
    layout: GroupLayout
    place: str
    state: str
    order: str
    block: ProbeBlock
    take: Take

    def _append_other(
        self, values: Sequence[Saved], here: str, base: str, name: str, lines: Lines
    ) -> None:
        """Append the code that saves the records of the lanes in the mask here, whatever they are.

        It stays at the site although it seldom runs: around calls of a function ptxas does not let the lanes that leave
        a loop one after the other meet again.

        base: the register with the region's address. name: begins labels; it may branch to that of the end.
        """
        take = self.take
        rank, count, leader, leads = take("b32"), take("b32"), take("b32"), take("pred")
        lines += [
            op("mov.u32", rank, "%lanemask_lt"),
            op("and.b32", rank, rank, here),
            op("popc.b32", rank, rank),
            op("popc.b32", count, here),
            op("setp.eq.u32", leads, rank, "0"),
            op("brev.b32", leader, here),
            op("bfind.shiftamt.u32", leader, leader),
        ]
        fields = self._compare(values, here, rank, leader, lines)
        forms, size, is_flat = take("b32"), take("b32"), take("pred")
        lines += [op("mov.u32", forms, "0"), op("mov.u32", size, str(self.layout.head // GROUP_ALIGN))]
        rows = ""
        if fields:
            flat = [field.is_flat for field in fields]
            lines.append(op("mov.pred", is_flat, flat[0]))
            lines += [op("and.pred", is_flat, is_flat, other) for other in flat[1:]]
            rows = next((field.stride for field in fields if field.stride), "") and take("b32")
            if rows:
                lines.append(op("mov.u32", rows, "0"))
            lines += [op("vote.sync.all.pred", is_flat, is_flat, here), op("bra", f"{name}_sized", when=is_flat)]
            if rows:
                self._split(fields, rows, forms, size, is_flat, here, rank, lines)
                lines.append(op("bra", f"{name}_sized", when=is_flat))
            self._choose(fields, forms, size, here, count, lines)
            lines.append(Label(f"{name}_sized"))
        left, needs = take("b32"), take("pred")
        lines += [
            op("and.b32", left, self.state, str((1 << LEFT_BITS) - 1)),
            op("setp.lt.and.u32", needs, left, size, leads),
            op("bra", f"{name}_taken", when=f"!{needs}"),
        ]
        self._take_chunk(base, size, lines)
        lines.append(Label(f"{name}_taken"))
        place, at, is_lost, is_stored = take("b32"), take("b64"), take("pred"), take("pred")
        lines += [
            # Later than every group that one of these lanes was in. Where one of them has lost a record, this group is
            # lost, too: what a thread has are its first records.
            op("redux.sync.max.u32", self.order, self.order, here),
            op("setp.eq.u32", is_lost, self.order, NO_ROOM),
            op("add.u32", self.order, self.order, "1", when=f"!{is_lost}"),
            op("shfl.sync.idx.b32", place, self.place, leader, "31", here),
            op("not.pred", is_stored, is_lost),
            op("and.pred", is_stored, is_stored, leads),
            op("mad.wide.u32", at, place, str(GROUP_ALIGN), base),
        ]
        strides = {field.number: field.stride for field in fields}
        for offset, kind, text in self._head(values, strides, here, forms, self.order, rows, lines):
            lines.append(op(f"st.global.{kind}", mem(at, LOG_CONTROL + offset), text, when=is_stored))
        if rows and self.layout.rows == self.layout.head:
            has_rows = take("pred")
            lines += [
                op("setp.ge.and.u32", has_rows, forms, str(1 << GROUP_ROWS_AT), is_stored),
                op("st.global.b32", mem(at, LOG_CONTROL + self.layout.rows), rows, when=has_rows),
            ]
        lines += [
            op("sub.u32", self.state, self.state, size, when=leads),
            op("add.u32", self.place, self.place, size, when=is_stored),
            op("and.pred", leads, leads, is_lost),
            op("shl.b32", count, count, str(LOST_AT)),
            op("add.u32", self.state, self.state, count, when=leads),
        ]
        if fields:
            lines += [op("or.pred", is_flat, is_flat, is_lost), op("bra", f"{name}_end", when=is_flat)]
            for field in fields:
                self._store(field, at, rank, lines)

    def _compare(
        self, values: Sequence[Saved], here: str, rank: str, leader: str, lines: Lines
    ) -> list[_Compared]:
        """Append the code that compares the value of each field that is not constant with that of the lowest lane."""
        take = self.take
        fields: list[_Compared] = []
        second = ""
        for number, value in enumerate(values):
            if value.is_same:
                continue
            size = self.entry.fields[number].type.size
            is_flat, form, area = take("pred"), take("b32"), take("b32")
            if size < 8:
                own, first, difference = self._as_word(value, size, lines), take("b32"), take("b32")
                lines += [
                    op("shfl.sync.idx.b32", first, own, leader, "31", here),
                    op("sub.u32", difference, own, first),
                    op("setp.eq.u32", is_flat, difference, "0"),
                ]
                fields.append(_Compared(number, size, value.text, difference, is_flat, "", form, area))
                continue
            if not second:
                # The second of the lanes; of one alone, that one.
                second, others, is_alone = take("b32"), take("b32"), take("pred")
                lines += [
                    op("add.u32", others, here, "-1"),
                    op("and.b32", others, others, here),
                    op("setp.eq.u32", is_alone, others, "0"),
                    op("brev.b32", second, others),
                    op("bfind.shiftamt.u32", second, second),
                    op("selp.b32", second, leader, second, is_alone),
                ]
            low, high, stride = take("b32"), take("b32"), take("b32")
            difference, expected = take("b64"), take("b64")
            lines += [
                op("mov.b64", vector(low, high), value.text),
                op("shfl.sync.idx.b32", low, low, leader, "31", here),
                op("shfl.sync.idx.b32", high, high, leader, "31", here),
                op("mov.b64", difference, vector(low, high)),
                op("sub.u64", difference, value.text, difference),
                op("cvt.u32.u64", low, difference),
                op("shfl.sync.idx.b32", stride, low, second, "31", here),
                op("mul.wide.s32", expected, stride, rank),
                op("setp.eq.u64", is_flat, difference, expected),
            ]
            fields.append(_Compared(number, size, value.text, difference, is_flat, stride, form, area))
        return fields

    def _split(
        self, fields: Sequence[_Compared], rows: str, forms: str, size: str, is_flat: str, here: str, rank: str,
        lines: Lines,
    ) -> None:  # fmt: skip
        """Append the code that finds whether the values of the first field with a stride lie in rows of 2, 4, 8 or 16
        lanes, and the other fields are flat. If so, it brings true into the predicate is_flat, the stride from row to
        row into rows, and the forms and the group's size into registers."""
        take = self.take
        split = next(field for field in fields if field.stride)
        apart, lowest, lane, length, log, inner, outer = (take("b32") for _ in range(7))
        expected, is_odd = take("b64"), take("pred")
        lines += [
            # The first lane that a single stride does not reach begins the second row.
            op("not.pred", is_odd, split.is_flat),
            op("vote.sync.ballot.b32", apart, is_odd, here),
            op("neg.s32", lowest, apart),
            op("and.b32", lowest, lowest, apart),
            op("bfind.u32", lane, lowest),
            op("add.u32", lowest, lowest, "-1"),
            op("and.b32", lowest, lowest, here),
            op("popc.b32", length, lowest),
            op("cvt.u32.u64", rows, split.difference),
            op("shfl.sync.idx.b32", rows, rows, lane, "31", here),
            op("bfind.u32", log, length),
            op("add.u32", inner, length, "-1"),
            op("and.b32", lowest, inner, length),
            op("and.b32", inner, inner, rank),
            op("shr.u32", outer, rank, log),
            op("mul.wide.s32", expected, split.stride, inner),
            op("mad.wide.s32", expected, rows, outer, expected),
            op("setp.eq.u64", is_flat, split.difference, expected),
            # A power of two above 1; and some lane does begin a row.
            op("setp.eq.and.u32", is_flat, lowest, "0", is_flat),
            op("setp.gt.and.u32", is_flat, length, "1", is_flat),
            op("setp.ne.and.u32", is_flat, apart, "0", is_flat),
            *(op("and.pred", is_flat, is_flat, field.is_flat) for field in fields if field is not split),
            op("vote.sync.all.pred", is_flat, is_flat, here),
            op("shl.b32", log, log, str(GROUP_ROWS_AT)),
            op("or.b32", log, log, str(split.number << GROUP_ROWS_FIELD_AT)),
            op("selp.b32", forms, log, "0", is_flat),
        ]
        if self.layout.rows == self.layout.head:
            lines.append(op("add.u32", size, size, "1", when=is_flat))

    def _choose(
        self, fields: Sequence[_Compared], forms: str, size: str, here: str, count: str, lines: Lines
    ) -> None:
        """Append the code that chooses the form of each field in a group of count lanes, and brings the forms and the
        group's size into registers."""
        take = self.take
        end, width, fits = take("b32"), take("b32"), take("pred")
        lines.append(op("mov.u32", end, str(self.layout.head)))
        for field in fields:
            form, kind = field.form, f"u{64 if field.size == 8 else 32}"
            lines.append(op("mov.u32", form, "3"))
            moved = take(f"b{kind[1:]}")
            # Differences that fit in 4 bytes with a sign, or even in 2.
            for code, sign in ((2, 1 << 31), (1, 1 << 15)):
                if 1 << code < field.size:
                    lines += [
                        op(f"add.{kind}", moved, field.difference, str(sign)),
                        op(f"setp.lt.{kind}", fits, moved, str(2 * sign)),
                        op("vote.sync.all.pred", fits, fits, here),
                        op("selp.b32", form, str(code), form, fits),
                    ]
            lines += [
                op("vote.sync.all.pred", fits, field.is_flat, here),
                op("selp.b32", form, "0", form, fits),
                # Bytes of each lane: none, 2, 4, or all.
                op("shl.b32", width, "1", form),
                op("and.b32", width, width, "-2"),
                op("min.u32", width, width, str(field.size)),
                op("mov.u32", field.area, end),
                op("mad.lo.u32", end, width, count, end),
                op("add.u32", end, end, "7"),
                op("and.b32", end, end, "-8"),
                op("shl.b32", width, form, str(2 * field.number)),
                op("or.b32", forms, forms, width),
            ]
        lines += [
            op("add.u32", size, end, str(GROUP_ALIGN - 1)),
            op("shr.u32", size, size, str(GROUP_ALIGN.bit_length() - 1)),
        ]

    def _take_chunk(self, base: str, size: str, lines: Lines) -> None:
        """Append the code by which a thread takes a chunk for a group of a size. base: the register with the region's
        address."""
        take = self.take
        slot = Slots(self.block, take).at(self.entry.level, lines)
        doubled, length, most = take("b32"), take("b32"), take("b32")
        units, first, end, limit = (take("b64") for _ in range(4))
        fits, has_lost, at, zero, shape = take("pred"), take("pred"), take("b64"), take("b32"), take("b32")
        own, warps, total = take("b32"), take("b32"), take("b64")
        lines += [
            op("shr.u32", length, self.state, str(LOST_AT)),
            op("cvt.u64.u32", units, length),
            op("setp.ne.u32", has_lost, length, "0"),
            op("red.global.add.u64", mem(base, LOST), units, when=has_lost),
            op("bfe.u32", doubled, self.state, str(LEFT_BITS), str(_DOUBLED_BITS)),
            op("mov.u32", length, str(GROUP_CHUNK_LEAST)),
            op("shl.b32", length, length, doubled),
            # At least as much as the group needs.
            op("mad.lo.u32", most, size, str(GROUP_ALIGN), str(GROUP_ALIGN + LOG_UNIT - 1)),
            op("max.u32", length, length, most),
            op("shr.u32", length, length, str(LOG_UNIT.bit_length() - 1)),
            op("cvt.u64.u32", units, length),
            op("atom.global.add.u64", first, mem(base), units),
            # After the chunks of all warps.
            self.block.load_log_first(self.index, own),
            self.block.load_warps(warps),
            op("mul.wide.u32", total, warps, own),
            op("add.u64", first, first, total),
            # All of it must be before the end, also where what was taken is not a number of units: replays of a graph
            # for which there is no memory share some that is not zeroed.
            op("add.u64", end, first, units),
            *self.block.load_log_units(self.index, limit),
            op("min.u64", limit, limit, str(_UNITS_MOST)),
            op("setp.lt.and.u64", fits, first, end, slot.inside),
            op("setp.le.and.u64", fits, end, limit, fits),
            op("mad.lo.u64", at, first, str(LOG_UNIT), base),
            op("mov.u32", zero, "0"),
            op("mov.u32", shape, str(self.layout.shape)),
            op("st.global.v4.b32", mem(at, LOG_CONTROL), vector(slot.index, shape, zero, length), when=fits),
            # After the header. A chunk after the end is filled likewise, but for the stores.
            op("cvt.u32.u64", self.place, first),
            op("mad.lo.u32", self.place, self.place, str(LOG_UNIT // GROUP_ALIGN), "1"),
            op("max.u32", self.order, self.order, self.place),
            op("selp.b32", self.order, self.order, NO_ROOM, fits),
            op("mad.lo.u32", length, length, str(LOG_UNIT // GROUP_ALIGN), "-1"),
            op("add.u32", doubled, doubled, "1"),
            op("min.u32", doubled, doubled, str(_MOST_DOUBLED)),
            op("shl.b32", doubled, doubled, str(LEFT_BITS)),
            op("or.b32", self.state, length, doubled),
        ]

    def _head(
        self, values: Sequence[Saved], strides: Mapping[int, str], here: str, forms: str, order: str, rows: str,
        lines: Lines,
    ) -> list[tuple[int, str, str]]:  # fmt: skip
        """The stores of what every group begins with, by its lowest lane: as ``Records.as_few_stores`` returns them.

        strides: registers, by the field's number; "" without one. order: a register. rows: the register with the stride
        from row to row; "" without one.
        """
        strides = {number: stride for number, stride in strides.items() if stride}
        single = [(0, "b32", here), (4, "b32", forms), (8, "b32", order)]
        for number, offset in self.layout.strides.items():
            if number not in strides:
                strides[number] = self.take("b32")
                lines.append(op("mov.u32", strides[number], "0"))
            single.append((offset, "b32", strides[number]))
        if rows and self.layout.rows < self.layout.head:
            single.append((self.layout.rows, "b32", rows))
        single += self._record(values, self.layout.record, lines)
        return in_few_stores(single, GROUP_ALIGN, self.take, lines)

    def _record(self, values: Sequence[Saved], begin: int, lines: Lines) -> list[tuple[int, str, str]]:
        """The stores of a record that begins at an offset: of each the offset, the type and the operand."""
        single: list[tuple[int, str, str]] = []
        for field, value in zip(self.entry.fields, values, strict=True):
            offset, kind, text = begin + field.offset, f"b{field.type.size * 8}", value.text
            if kind == "b16" and bits(value.type) == 32:
                text = self.take("b16")
                lines.append(op("cvt.u16.u32", text, value.text))
            # Two of 16 bits become one of 32, as ``in_few_stores`` makes one of 64 of two of 32.
            if kind == "b16" and offset % 4 == 2 and single and single[-1][:2] == (offset - 2, "b16"):
                _, _, lower = single.pop()
                offset, kind, both = offset - 2, "b32", self.take("b32")
                lines.append(op("mov.b32", both, vector(lower, text)))
                text = both
            single.append((offset, kind, text))
        return single

    def _as_word(self, value: Saved, size: int, lines: Lines) -> str:
        """A register of 32 bits with the value of a field of fewer than 8 bytes, its upper bits 0."""
        own = self.take("b32")
        lines.append(op("cvt.u32.u16" if bits(value.type) == 16 else "mov.b32", own, value.text))
        if size < 4:
            # Of a register the upper bits may be anything.
            lines.append(op("and.b32", own, own, str((1 << 8 * size) - 1)))
        return own

    def _store(self, field: _Compared, at: str, rank: str, lines: Lines) -> None:
        """Append the stores of each lane's value of a field that is not flat in the group at an address."""
        take = self.take
        where, wide, is_form, low = take("b32"), take("b64"), take("pred"), field.difference
        lines += [op("mov.u32", where, "1"), op("shl.b32", where, where, field.form)]
        if field.size < 8:
            lines.append(op("min.u32", where, where, str(field.size)))
        lines += [
            op("mad.lo.u32", where, where, rank, field.area),
            op("cvt.u64.u32", wide, where),
            op("add.u64", wide, wide, at),
        ]
        if field.size == 8:
            low = take("b32")
            lines.append(op("cvt.u32.u64", low, field.difference))
        for code, text in ((1, low), (2, low), (3, field.value)):
            size = min(1 << code, field.size)
            if code == 3 or size < field.size:
                lines += [
                    op("setp.eq.u32", is_form, field.form, str(code)),
                    op(f"st.global.b{size * 8}", mem(wide, LOG_CONTROL), text, when=is_form),
                ]

    def _of_lane(self, register: str, source: str | int, present: str, lines: Lines) -> str:
        """A register with the value that a register has in a lane. Of a lane that is not there it is any."""
        value = self.take("b32")
        lines.append(op("shfl.sync.idx.b32", value, register, str(source), "31", present))
        return value

    def open(self, lines: Lines) -> None:
        """Append the code where a kernel begins: each warp's first lane takes the warp's own chunk, if there is one,
        and the kernel's first thread says how many units these are."""
        take = self.take
        slot = Slots(self.block, take).at(self.entry.level, lines)
        own, warps, wide, total, base, first = (
            take("b32"), take("b32"), take("b64"), take("b64"), take("b64"), take("b64")
        )  # fmt: skip
        leads, place, at, zero, shape = take("pred"), take("b32"), take("b64"), take("b32"), take("b32")
        self.block.load_map(self.index, base, lines, ending=False)
        per_unit = LOG_UNIT // GROUP_ALIGN
        lines += [
            self.block.load_log_first(self.index, own),
            op("setp.ne.and.u32", leads, own, "0", slot.inside),
            op("mul.wide.u32", first, slot.index, own),
            op("cvt.u32.u64", place, first),
            # After the header. No lane of the warp has been in a group yet: they begin with the same order.
            op("mad.lo.u32", place, place, str(per_unit), "1"),
            op("selp.b32", self.order, place, "0", leads),
            op("setp.eq.and.u32", leads, slot.lane, "0", leads),
            op("mov.u32", self.place, place, when=leads),
            op("mad.lo.u32", self.state, own, str(per_unit), str((1 << LEFT_BITS) - 1), when=leads),
            op("mad.lo.u64", at, first, str(LOG_UNIT), base),
            op("mov.u32", zero, "0"),
            op("mov.u32", shape, str(self.layout.shape)),
            op("st.global.v4.b32", mem(at, LOG_CONTROL), vector(slot.index, shape, zero, own), when=leads),
            self.block.load_warps(warps),
            op("cvt.u64.u32", wide, own),
            op("mul.wide.u32", total, warps, own),
            op("setp.eq.and.u32", leads, slot.index, "0", leads),
            op("st.global.v2.u64", mem(base, LOG_OWN), vector(total, wide), when=leads),
        ]

    def close(self, lines: Lines) -> None:
        """Append the code where a thread ends: it counts the records that were lost since its last chunk.

        A kernel may run again with the same memory, as in the body of a loop of a graph, where no warp has a chunk of
        its own. Orders begin where chunks do, so none may be beyond them now: threads whose lanes have filled older
        chunks may have got there. They take a chunk for nothing.
        """
        take = self.take
        base, lost, wide, has_lost = take("b64"), take("b32"), take("b64"), take("pred")
        self.block.load_map(self.index, base, lines, ending=True)
        lines += [
            op("shr.u32", lost, self.state, str(LOST_AT)),
            op("cvt.u64.u32", wide, lost),
            op("setp.ne.u32", has_lost, lost, "0"),
            op("red.global.add.u64", mem(base, LOST), wide, when=has_lost),
        ]
        here, most, lower, zero, shape, length = (take("b32") for _ in range(6))
        taken, limit, end = take("b64"), take("b64"), take("b64")
        leads, is_behind, fits, own = take("pred"), take("pred"), take("pred"), take("b32")
        lines += [
            self.block.load_log_first(self.index, own),
            op("activemask.b32", here),
            op("redux.sync.max.u32", most, self.order, here),
            op("mov.u32", lower, "%lanemask_lt"),
            op("and.b32", lower, lower, here),
            op("setp.eq.u32", leads, lower, "0"),
            op("setp.ne.and.u32", leads, most, "0", leads),
            op("setp.ne.and.u32", leads, most, NO_ROOM, leads),
            op("setp.eq.and.u32", leads, own, "0", leads),
            op("mov.u64", taken, "0"),
            op("ld.volatile.global.u64", taken, mem(base), when=leads),
            # Units that end after the greatest order.
            op("cvt.u64.u32", wide, most),
            op("add.u64", wide, wide, str(LOG_UNIT // GROUP_ALIGN - 1)),
            op("shr.u64", wide, wide, str((LOG_UNIT // GROUP_ALIGN).bit_length() - 1)),
            op("setp.gt.and.u64", is_behind, wide, taken, leads),
            op("sub.u64", wide, wide, taken),
            op("atom.global.add.u64", taken, mem(base), wide, when=is_behind),
            op("add.u64", end, taken, wide),
            *self.block.load_log_units(self.index, limit),
            op("setp.lt.and.u64", fits, taken, end, is_behind),
            op("setp.le.and.u64", fits, end, limit, fits),
            op("mad.lo.u64", end, taken, str(LOG_UNIT), base),
            op("mov.u32", zero, "0"),
            op("mov.u32", shape, str(self.layout.shape)),
            op("cvt.u32.u64", length, wide),
            op("st.global.v4.b32", mem(end, LOG_CONTROL), vector(zero, shape, zero, length), when=fits),
        ]
