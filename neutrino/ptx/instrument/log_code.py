"""Code for logs: taking chunks of a log's region, storing records in them. ``neutrino/maps/log.py`` has the layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neutrino.maps.declaration import Map
from neutrino.maps.log import LOG_CONTROL, LOG_HEADER, LOG_UNIT, most_rows
from neutrino.ptx.instrument.probe_block import ProbeBlock
from neutrino.ptx.instrument.registers import Take

_NO_ROOM = "0xffffffff"
"""In place of a chunk's first unit: the chunk is after the end of the region. Records in it are not stored."""
_LOST = 8
"""Offset of the count of lost records in the region."""
_LEFT = 16
"""Offset in a chunk of the bytes that say how many rows of its column each lane has left."""


@dataclass(frozen=True)
class LogCode:
    """Writes the code of one log in one body.

    entry, index: the map and its index. unit, state: registers of 32 bits, at first 0, that each thread keeps to its
    end: where its chunk begins, and from the lowest byte on how many rows it has filled, how many rows there are, how
    many lanes have the chunk, and which of them it is. joins: whether lanes can take a chunk together.
    """

    entry: Map
    index: int
    unit: str
    state: str
    block: ProbeBlock
    take: Take
    joins: bool

    def append(
        self, stores: Sequence[tuple[int, str, str]], slot: str, takes_part: str, lines: list[str], *, ending: bool
    ) -> None:
        """Append the code that saves a record to lines, which may not stand between a product and its sum.

        stores: of the record, as ``Records.as_few_stores`` returns them. slot: the register with the slot's number.
        takes_part: a predicate, whether this thread saves. ending: the code stands where the thread ends.
        """
        take, state = self.take, self.state
        base, used, rows, needs = take("b64"), take("b32"), take("b32"), take("pred")
        self.block.load_map(self.index, base, lines, ending=ending)
        lines += [
            f"and.b32 {used}, {state}, 255;",
            f"bfe.u32 {rows}, {state}, 8, 8;",
            f"setp.eq.and.u32 {needs}, {used}, {rows}, {takes_part};",
        ]
        self._take_chunk(base, rows, needs, slot, lines)
        # The record's place: [row][lane] in the chunk.
        lanes, place, at, is_stored = take("b32"), take("b32"), take("b64"), take("pred")
        lines += [
            f"and.b32 {used}, {state}, 255;",
            f"bfe.u32 {lanes}, {state}, 16, 8;",
            f"shr.u32 {place}, {state}, 24;",
            f"mad.lo.u32 {place}, {used}, {lanes}, {place};",
            f"mad.wide.u32 {at}, {self.unit}, {LOG_UNIT}, {base};",
            f"mad.wide.u32 {at}, {place}, {self.entry.size}, {at};",
            f"setp.ne.and.u32 {is_stored}, {self.unit}, {_NO_ROOM}, {takes_part};",
        ]
        first = LOG_CONTROL + LOG_HEADER
        lines += [f"@{is_stored} st.global.{kind} [{at}+{first + where}], {text};" for where, kind, text in stores]
        lines.append(f"@{takes_part} add.u32 {state}, {state}, 1;")

    def _take_chunk(self, base: str, rows: str, needs: str, slot: str, lines: list[str]) -> None:
        """Append the code by which the threads for which needs holds take a chunk together.

        base: the register with the region's address. rows: that with the rows of this thread's last chunk, which is
        overwritten. slot: as for ``append``.
        """
        take = self.take
        mask, rank, lanes, leads = take("b32"), take("b32"), take("b32"), take("pred")
        if self.joins:
            here = take("b32")
            lines += [
                f"activemask.b32 {here};",
                f"vote.sync.ballot.b32 {mask}, {needs}, {here};",
                f"mov.u32 {rank}, %lanemask_lt;",
                f"and.b32 {rank}, {rank}, {mask};",
                f"popc.b32 {rank}, {rank};",
                f"popc.b32 {lanes}, {mask};",
                f"setp.eq.and.u32 {leads}, {rank}, 0, {needs};",
            ]
        else:
            lines += [
                f"mov.u32 {mask}, %lanemask_eq;",
                f"mov.u32 {rank}, 0;",
                f"mov.u32 {lanes}, 1;",
                f"mov.pred {leads}, {needs};",
            ]
        # Twice the rows of the last chunk, by the first lane.
        lines += [
            f"shl.b32 {rows}, {rows}, 1;",
            f"min.u32 {rows}, {rows}, {most_rows(self.entry.size)};",
            f"max.u32 {rows}, {rows}, 1;",
        ]
        if self.joins:
            # The lowest of the lanes that need one; of any lanes if none does.
            leader, none = take("b32"), take("pred")
            lines += [
                f"setp.eq.u32 {none}, {mask}, 0;",
                f"selp.b32 {leader}, {here}, {mask}, {none};",
                f"brev.b32 {leader}, {leader};",
                f"clz.b32 {leader}, {leader};",
                f"shfl.sync.idx.b32 {rows}, {rows}, {leader}, 31, {here};",
            ]
        count, size = take("b32"), take("b32")
        units, first, end, limit = (take("b64") for _ in range(4))
        unit, fits, is_head, is_lost = take("b32"), take("pred"), take("pred"), take("pred")
        lines += [
            f"mul.lo.u32 {count}, {rows}, {lanes};",
            f"mad.lo.u32 {size}, {count}, {self.entry.size}, {LOG_HEADER + LOG_UNIT - 1};",
            f"shr.u32 {size}, {size}, {LOG_UNIT.bit_length() - 1};",
            f"cvt.u64.u32 {units}, {size};",
            f"mov.u64 {first}, 0;",
            f"@{leads} atom.global.add.u64 {first}, [{base}], {units};",
            # All of it must be before the end, also where what was taken is not a number of units: replays of a graph
            # for which there is no memory share some that is not zeroed.
            f"add.u64 {end}, {first}, {units};",
            self.block.load_log_units(self.index, limit),
            f"setp.lt.u64 {fits}, {first}, {end};",
            f"setp.le.and.u64 {fits}, {end}, {limit}, {fits};",
            f"and.pred {is_head}, {fits}, {leads};",
            f"not.pred {is_lost}, {fits};",
            f"and.pred {is_lost}, {is_lost}, {leads};",
            f"cvt.u32.u64 {unit}, {first};",
            f"selp.b32 {unit}, {unit}, {_NO_ROOM}, {fits};",
            # All rows of a chunk without room; those that are not filled are taken off where the thread ends.
            f"cvt.u64.u32 {units}, {count};",
            f"@{is_lost} red.global.add.u64 [{base}+{_LOST}], {units};",
        ]
        at, zero, taken = take("b64"), take("b32"), take("b32")
        lines += [
            f"mad.wide.u32 {at}, {unit}, {LOG_UNIT}, {base};",
            f"mov.u32 {zero}, 0;",
            f"@{is_head} st.global.v4.b32 [{at}+{LOG_CONTROL}], {{{slot}, {mask}, {rows}, {zero}}};",
        ]
        if self.joins:
            lines.append(f"shfl.sync.idx.b32 {unit}, {unit}, {leader}, 31, {here};")
        lines += [
            f"shl.b32 {taken}, {rows}, 8;",
            f"shl.b32 {lanes}, {lanes}, 16;",
            f"or.b32 {taken}, {taken}, {lanes};",
            f"shl.b32 {rank}, {rank}, 24;",
            f"or.b32 {taken}, {taken}, {rank};",
            f"selp.b32 {self.state}, {taken}, {self.state}, {needs};",
            f"selp.b32 {self.unit}, {unit}, {self.unit}, {needs};",
        ]

    def close(self, lines: list[str]) -> None:
        """Append the code where a thread ends: its last chunk gets the number of rows that the thread has left, or, if
        that chunk has no room, they are taken off the lost records."""
        take = self.take
        base, left, used, rank, at, less = (take(kind) for kind in ("b64", "b32", "b32", "b32", "b64", "b64"))
        has_left, has_room = take("pred"), take("pred")
        self.block.load_map(self.index, base, lines, ending=True)
        lines += [
            f"and.b32 {used}, {self.state}, 255;",
            f"bfe.u32 {left}, {self.state}, 8, 8;",
            f"sub.u32 {left}, {left}, {used};",
            f"shr.u32 {rank}, {self.state}, 24;",
            f"mad.wide.u32 {at}, {self.unit}, {LOG_UNIT}, {base};",
            f"cvt.u64.u32 {less}, {rank};",
            f"add.u64 {at}, {at}, {less};",
            f"setp.ne.u32 {has_left}, {left}, 0;",
            f"setp.ne.and.u32 {has_room}, {self.unit}, {_NO_ROOM}, {has_left};",
            f"@{has_room} st.global.u8 [{at}+{LOG_CONTROL + _LEFT}], {left};",
            f"setp.eq.and.u32 {has_left}, {self.unit}, {_NO_ROOM}, {has_left};",
            f"cvt.u64.u32 {less}, {left};",
            f"neg.s64 {less}, {less};",
            f"@{has_left} red.global.add.u64 [{base}+{_LOST}], {less};",
        ]
