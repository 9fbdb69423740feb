"""Code that saves records to a log of which only one lane of a warp saves: at the levels warp and block. The layout is
in ``maps/log.py``.

A save is a store and two additions. That there is room for it is tested before, at once for several saves
(``log_room.py``); what follows where there is none is rare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neutrino.abi.levels import Level
from neutrino.maps.declaration import Map
from neutrino.maps.log import LOG_LANE, LOG_LANE_HEADER, LOG_LANE_LEFT, LOG_LANE_ROWS_AT, LOG_OWN, lane_rows
from neutrino.maps.log_columns import LOG_CONTROL, LOG_UNIT
from neutrino.ptx.instrument.log_room import RoomMark
from neutrino.ptx.instrument.probe_block import ProbeBlock, Slots
from neutrino.ptx.instrument.records import LOST
from neutrino.ptx.instrument.registers import Take
from neutrino.ptx.text.inserted import Label, Lines, Scope, mem, op, vector

# What a thread keeps of its chunk: from the lowest bit on how many rows it has left, then how many it has in all; the
# highest bit, if nothing is stored. Of a thread that never saves all bits are set, or fewer in the lower half.
_LEFT = (1 << LOG_LANE_ROWS_AT) - 1
_ROWS_BITS = 31 - LOG_LANE_ROWS_AT
_NOT_STORED = 1 << 31
_NEVER = 0xFFFFFFFF
_NEVER_LEAST = _NEVER - _LEFT
_ROWS_MOST = (1 << _ROWS_BITS) - 2
"""Rows of a chunk, at most. One more is of a thread that never saves."""
_ALL_LEFT = (1 << LOG_LANE_ROWS_AT) + 1
"""What rows are multiplied by for those of a new chunk."""
_HAD_LEAST = 1 << LOG_LANE_ROWS_AT
"""The least state, as a number with a sign, of a thread that has a chunk."""
_TESTED, _TESTED_BYTES = 7, 256
"""For how many saves there may be one test where this takes fewer tests, and for how many bytes."""


@dataclass(frozen=True)
class SingleCode:
    """Writes the code of one log in one body.

    entry, index: the map and its index. at: a register of 64 bits, that each thread keeps to its end: where its next
    record goes, less the bytes before a chunk's first one; the number of its slot, before it has a chunk. state: one of
    32 bits, what is known of that chunk. prefix: starts every private register. meets: whether lanes that have parted
    have to be brought together again.
    """

    entry: Map
    index: int
    at: str
    state: str
    block: ProbeBlock
    take: Take
    prefix: str
    meets: bool

    @property
    def most(self) -> tuple[int, ...]:
        """As of ``RoomCode``: as many as the least first chunk has rows; or more, which take a larger one."""
        least, _ = lane_rows(self.entry.size)
        return least, max(least, min(_TESTED, _TESTED_BYTES // self.entry.size))

    def append(self, stores: Sequence[tuple[int, str, str]], guard: str | None, lines: Lines) -> None:
        """Append the code that saves a record to lines, after a mark for ``place_rooms``.

        stores: of the record, as ``Records.as_few_stores`` returns them. guard: a predicate, whether this thread saves,
        None for all.
        """
        lines.append(RoomMark(self.index, guard or ""))
        is_stored, when = self.take("pred"), guard or ""
        lines.append(op("setp.gt.and.s32", is_stored, self.state, "0", when) if when else
                     op("setp.gt.s32", is_stored, self.state, "0"))  # fmt: skip
        for where, kind, text in stores:
            place = mem(self.at, LOG_CONTROL + LOG_LANE_HEADER + where)
            lines.append(op(f"st.global.{kind}", place, text, when=is_stored))
        lines += [
            op("add.u64", self.at, self.at, str(self.entry.size), when=when),
            op("add.u32", self.state, self.state, "-1", when=when),
        ]

    def room(self, guard: str, need: int, most: int) -> Lines:
        """As of ``RoomCode``: the code takes a chunk.

        guard: a predicate, in which threads; "" for all. It branches, but only forward, to a label of its own.
        """
        take, state, at, size = self.take, self.state, self.at, self.entry.size
        left, rows, slot, filled, units = (take("b32") for _ in range(5))
        few, never, had, has_left = (take("pred") for _ in range(4))
        head, base = take("b64"), take("b64")
        # Labels are local to braces, so that the text can be inserted elsewhere, too.
        end, here = f"${self.prefix[1:]}room", take("b32")
        joined, given = (".and", (guard,)) if guard else ("", ())
        lines: Lines = [
            Scope.OPEN,
            *([op("activemask.b32", here)] if self.meets else []),
            op("and.b32", left, state, str(_LEFT)),
            op(f"setp.lt{joined}.u32", few, left, str(need), *given) if need > 1 else
            op(f"setp.eq{joined}.u32", few, left, "0", *given),
            op("bra", end, when=f"!{few}"),
            op("setp.ge.u32", never, state, str(_NEVER_LEAST)),
            op("mov.u32", state, str(_NEVER), when=never),
            op("bra", end, when=never),
            # The last chunk, if there was one: how many of its rows stay empty, and whose it was.
            op("setp.ge.s32", had, state, str(_HAD_LEAST)),
            op("bfe.u32", rows, state, str(LOG_LANE_ROWS_AT), str(_ROWS_BITS)),
            op("sub.u32", filled, rows, left),
            op("mad.wide.s32", head, filled, str(-size), at),
            op("setp.ne.and.u32", has_left, left, "0", had),
            op("st.global.u32", mem(head, LOG_CONTROL + LOG_LANE_LEFT), left, when=has_left),
            op("cvt.u32.u64", slot, at),
            op("ld.global.u32", slot, mem(head, LOG_CONTROL), when=had),
            # The first one has as many rows as a test may need, each further one twice as many more.
            op("mad.lo.u32", rows, rows, "2", str(most)),
            op("min.u32", rows, rows, str(lane_rows(size)[1])),
            op("mad.lo.u32", units, rows, str(size), str(LOG_LANE_HEADER + LOG_UNIT - 1)),
            op("shr.u32", units, units, str(LOG_UNIT.bit_length() - 1)),
        ]  # fmt: skip
        self.block.load_map(self.index, base, lines, ending=True)
        taken, wide, lost, fits = take("b64"), take("b64"), take("b64"), take("pred")
        low, high, limit, own, warps, word = (take("b32") for _ in range(6))
        lines += [
            op("cvt.u64.u32", wide, units),
            op("atom.global.add.u64", taken, mem(base), wide),
            # After the chunks of all warps.
            self.block.load_log_first(self.index, own),
            self.block.load_warps(warps),
            op("mad.wide.u32", taken, own, warps, taken),
            op("mov.b64", vector(low, high), taken),
            self.block.load_log_limit(self.index, limit),
            # All of it must be before the end, also where what was taken is not a number of units: replays of a graph
            # for which there is no memory share some that is not zeroed.
            op("setp.eq.u32", fits, high, "0"),
            op("setp.le.and.u32", fits, low, limit, fits),
            op("sub.u32", limit, limit, low),
            op("setp.ge.and.u32", fits, limit, units, fits),
            op("mad.wide.u32", at, low, str(LOG_UNIT), base),
            op("shl.b32", word, rows, str(LOG_LANE_ROWS_AT)),
            op("or.b32", word, word, str(LOG_LANE)),
            op("st.global.v2.b32", mem(at, LOG_CONTROL), vector(slot, word), when=fits),
            # All rows of a chunk without room are lost, but for those of the last such chunk that were not filled.
            op("selp.b32", left, "0", left, had),
            op("sub.u32", left, rows, left),
            op("cvt.u64.u32", lost, left),
            op("mul.lo.u32", state, rows, str(_ALL_LEFT)),
            op("bra", end, when=fits),
            op("or.b32", state, state, str(_NOT_STORED)),
            op("red.global.add.u64", mem(base, LOST), lost),
            Label(end),
            # As before, also for a program that asks which lanes are together.
            *([op("bar.warp.sync", here)] if self.meets else []),
            Scope.CLOSE,
        ]
        return lines

    def open(self, lines: Lines) -> None:
        """Append the code where a kernel begins: which threads save at all, and their slots. In a launch with chunks of
        each warp's own they have these, and the kernel's first thread says how many units these are."""
        take, size = self.take, self.entry.size
        slot = Slots(self.block, take).at(self.entry.level, lines)
        own, own_each, warps, first, rows, word = (take("b32") for _ in range(6))
        base, total, wide, at = (take("b64") for _ in range(4))
        has_own, leads = take("pred"), take("pred")
        self.block.load_map(self.index, base, lines, ending=True)
        lines.append(self.block.load_log_first(self.index, own))
        lines.append(op("mov.u32", own_each, own))
        if self.entry.level is Level.BLOCK:
            # A block has what its warps would have.
            lines += [self.block.load_warps_per_block(warps), op("mul.lo.u32", own_each, own, warps)]
        lines += [
            op("setp.ne.and.u32", has_own, own, "0", slot.inside),
            self.block.load_warps(warps),
            op("mul.wide.u32", total, own, warps),
            op("cvt.u64.u32", wide, own_each),
            op("setp.eq.and.u32", leads, slot.index, "0", has_own),
            op("st.global.v2.u64", mem(base, LOG_OWN), vector(total, wide), when=leads),
            op("mul.lo.u32", rows, own_each, str(LOG_UNIT)),
            op("sub.u32", rows, rows, str(LOG_LANE_HEADER)),
            op("div.u32", rows, rows, str(size)) if size & (size - 1) else
            op("shr.u32", rows, rows, str(size.bit_length() - 1)),
            op("min.u32", rows, rows, str(_ROWS_MOST)),
            op("setp.ne.and.u32", has_own, rows, "0", has_own),
            op("mul.lo.u32", first, slot.index, own_each),
            op("mad.wide.u32", at, first, str(LOG_UNIT), base),
            op("shl.b32", word, rows, str(LOG_LANE_ROWS_AT)),
            op("or.b32", word, word, str(LOG_LANE)),
            op("st.global.v2.b32", mem(at, LOG_CONTROL), vector(slot.index, word), when=has_own),
            op("cvt.u64.u32", self.at, slot.index),
            op("selp.b64", self.at, at, self.at, has_own),
            op("mul.lo.u32", rows, rows, str(_ALL_LEFT)),
            op("selp.b32", self.state, rows, "0", has_own),
            op("selp.b32", self.state, self.state, str(_NEVER), slot.inside),
        ]  # fmt: skip

    def close(self, lines: Lines) -> None:
        """Append the code where a thread ends: its last chunk gets the number of rows that it has left, or, if nothing
        was stored in that, they are taken off the lost records."""
        take, state = self.take, self.state
        left, rows, base, head, less = take("b32"), take("b32"), take("b64"), take("b64"), take("b64")
        has_left, is_lost = take("pred"), take("pred")
        self.block.load_map(self.index, base, lines, ending=True)
        lines += [
            op("and.b32", left, state, str(_LEFT)),
            op("bfe.u32", rows, state, str(LOG_LANE_ROWS_AT), str(_ROWS_BITS)),
            op("sub.u32", rows, rows, left),
            op("mad.wide.s32", head, rows, str(-self.entry.size), self.at),
            op("setp.ge.s32", has_left, state, str(_HAD_LEAST)),
            op("setp.ne.and.u32", has_left, left, "0", has_left),
            op("st.global.u32", mem(head, LOG_CONTROL + LOG_LANE_LEFT), left, when=has_left),
            # As numbers with a sign: below 0, and not of a thread that never saves.
            op("setp.lt.s32", is_lost, state, str(_NEVER_LEAST - (1 << 32))),
            op("cvt.u64.u32", less, left),
            op("neg.s64", less, less),
            op("red.global.add.u64", mem(base, LOST), less, when=is_lost),
        ]
