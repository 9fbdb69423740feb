"""What adds the sums of threads that end to memory.

Of the threads of a warp that end together one adds for all, where there is an instruction that adds registers up over
them. Which of several copies of a record is added to depends on the multiprocessor; the reader adds the copies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from neutrino.abi.levels import Level
from neutrino.maps.declaration import Map
from neutrino.maps.regions import LANES
from neutrino.ptx.analysis.counter_placement import Form, Part
from neutrino.ptx.instrument.copies import copy_address
from neutrino.ptx.instrument.probe_block import ProbeBlock

Key = tuple[int, int]
"""A field of a map, both by their number."""
Take = Callable[[str], str]
"""A free register of type b32, b64 or pred."""

# PTX ISA, "redux.sync": requires sm_80.
_ADDS_OVER_LANES = 80

# The lower bits of which the sum over 32 lanes stays within 32 bits.
_LOW_BITS = 27

# A signed sum is added up over the warp in parts: 26 + 26 + 12 bits.
_PART_BITS = 26


@dataclass(frozen=True)
class Word:
    """A register that holds a counter. bits: 32 or 64; signed: it has 64, the upper ones often set."""

    name: str
    bits: int
    signed: bool = False


class EndSums:
    """Collects the sums of one kernel, then writes the code.

    take: as of ``Take``.
    """

    def __init__(self, maps: Sequence[Map], take: Take, block: ProbeBlock, architecture: int) -> None:
        self._maps = maps
        self._cells = [entry.kind.cells(entry.fields) for entry in maps]
        self._take = take
        self._block = block
        self._adds_over_lanes = architecture >= _ADDS_OVER_LANES
        self._words: list[Word] = []
        self._forms: dict[Key, Form] = {}
        self._lines: list[str] = []

    def keep(self, word: Word) -> int:
        """The number by which forms name a register."""
        self._words.append(word)
        return len(self._words) - 1

    def add(self, key: Key, form: Form) -> None:
        """Let a field have the value of a form in each thread, besides what it has."""
        known = self._forms.get(key, Form())
        self._forms[key] = Form(known.constant + form.constant, known.parts + form.parts)

    def write(self) -> list[str]:
        """The code, behind which a thread may have ended. Called once."""
        by_level: dict[Level, dict[Key, Form]] = {}
        for key, form in self._forms.items():
            if form != Form():
                by_level.setdefault(self._maps[key[0]].level, {})[key] = form
        # Those that all threads add to come last: most threads end there.
        for level in (Level.BLOCK, Level.WARP):
            if level in by_level:
                self._add_all(by_level[level], self._words, None, member=self._first_of(level))
        if Level.THREAD in by_level:
            if self._adds_over_lanes:
                self._add_together(by_level[Level.THREAD])
            else:
                self._add_all(by_level[Level.THREAD], self._words, None)
        return self._lines

    def _add_together(self, wanted: Mapping[Key, Form]) -> None:
        """Let one of the threads that end together here add for all of them, and the others end.

        Of a number of 64 bits the lower ones are added up, and a thread in which others are set adds these itself:
        it was at work for so long before that it does not matter.
        """
        take, lines = self._take, self._lines
        active, lower, leader = self._leader()
        words = list(self._words)
        used = sorted({part.counter for form in wanted.values() for part in form.parts})
        long = [index for index in used if words[index].bits == 64 and not words[index].signed]
        totals: dict[int, str] = {}
        for index in used:
            word = words[index]
            if word.signed:
                words[index] = Word(self._signed_sum(word.name, active), 64)
                continue
            total = totals[index] = take("b32")
            source = word.name
            if index in long:
                lines += [f"cvt.u32.u64 {total}, {source};", f"and.b32 {total}, {total}, {(1 << _LOW_BITS) - 1};"]
                source = total
            else:
                words[index] = Word(total, 32)
            lines.append(f"redux.sync.add.u32 {total}, {source}, {active};")
        times = take("b32")
        if any(form.constant for form in wanted.values()):
            lines.append(f"popc.b32 {times}, {active};")
        if not long:
            self._add_all(wanted, words, times, ending=leader, lower=lower)
            return
        # What is added up is the leader's alone.
        counted = [times] if any(form.constant for form in wanted.values()) else []
        lines += [f"selp.b32 {name}, {name}, 0, {leader};" for name in (*totals.values(), *counted)]
        lines += [f"selp.b64 {words[index].name}, {words[index].name}, 0, {leader};" for index in used
                  if self._words[index].signed]  # fmt: skip
        member = leader
        for index in long:
            high, low, more = take("b64"), take("b64"), take("pred")
            lines += [
                f"and.b64 {high}, {words[index].name}, {-(1 << _LOW_BITS)};",
                f"setp.ne.or.u64 {more}, {high}, 0, {member};",
                f"cvt.u64.u32 {low}, {totals[index]};",
                f"add.u64 {high}, {high}, {low};",
            ]
            words[index] = Word(high, 64)
            member = more
        self._add_all(wanted, words, times, ending=member)

    def _add_all(
        self,
        wanted: Mapping[Key, Form],
        words: Sequence[Word],
        times: str | None,
        *,
        member: str | None = None,
        ending: str | None = None,
        lower: str | None = None,
    ) -> None:
        """Add sums to memory. member: the predicate of the threads that do; ending: so, and the others end here.

        lower: a register that is zero in the threads that do, but not known to be the same in all.
        """
        bases: dict[int, str] = {}
        prefix = f"@{member} " if member else ""
        adds = [f"@!{ending} exit;"] if ending else []
        for (index, number), form in wanted.items():
            field = self._cells[index][number]
            if index not in bases:
                bases[index] = copy_address(self._maps[index], index, self._block, self._take, self._lines, lower)
            width = field.type.size * 8
            value = value_of(form, width, words, times, self._take, self._lines)
            where = f"[{bases[index]}+{field.offset}]" if field.offset else f"[{bases[index]}]"
            adds.append(f"{prefix}red.global.add.u{width} {where}, {value};")
        # Side by side, so that what jumps around one of them jumps around all.
        self._lines += adds

    def _leader(self) -> tuple[str, str, str]:
        """The threads that end together here, those of them below this one, and a predicate for the lowest."""
        active, lower, leader = self._take("b32"), self._take("b32"), self._take("pred")
        self._lines += [
            f"activemask.b32 {active};",
            f"mov.u32 {lower}, %lanemask_lt;",
            f"and.b32 {lower}, {lower}, {active};",
            f"setp.eq.u32 {leader}, {lower}, 0;",
        ]
        return active, lower, leader

    def _first_of(self, level: Level) -> str:
        """A predicate for the thread of its warp or block that a sum of that level is about."""
        thread, y, z, size = (self._take("b32") for _ in range(4))
        first = self._take("pred")
        self._lines += [f"mov.u32 {thread}, %tid.x;", f"mov.u32 {y}, %tid.y;", f"mov.u32 {z}, %tid.z;"]
        if level is Level.BLOCK:
            self._lines += [f"or.b32 {thread}, {thread}, {y};", f"or.b32 {thread}, {thread}, {z};"]
        else:
            self._lines += [
                f"mov.u32 {size}, %ntid.y;",
                f"mad.lo.u32 {y}, {z}, {size}, {y};",
                f"mov.u32 {size}, %ntid.x;",
                f"mad.lo.u32 {thread}, {y}, {size}, {thread};",
                f"and.b32 {thread}, {thread}, {LANES - 1};",
            ]
        self._lines.append(f"setp.eq.u32 {first}, {thread}, 0;")
        return first

    def _signed_sum(self, name: str, active: str) -> str:
        """The sum over the lanes of 64 bits, of which the upper ones are often set."""
        mask = (1 << _PART_BITS) - 1
        total, shifted = self._take("b64"), self._take("b64")
        low, middle, high = (self._take("b32") for _ in range(3))
        self._lines += [
            f"cvt.u32.u64 {low}, {name};",
            f"and.b32 {low}, {low}, {mask};",
            f"shr.u64 {shifted}, {name}, {_PART_BITS};",
            f"cvt.u32.u64 {middle}, {shifted};",
            f"and.b32 {middle}, {middle}, {mask};",
            f"shr.u64 {shifted}, {name}, {2 * _PART_BITS};",
            f"cvt.u32.u64 {high}, {shifted};",
            *(f"redux.sync.add.u32 {part}, {part}, {active};" for part in (low, middle, high)),
            f"cvt.u64.u32 {total}, {low};",
            f"mad.wide.u32 {total}, {middle}, {1 << _PART_BITS}, {total};",
            f"cvt.u64.u32 {shifted}, {high};",
            f"shl.b64 {shifted}, {shifted}, {2 * _PART_BITS};",
            f"add.u64 {total}, {total}, {shifted};",
        ]
        return total


def value_of(
    form: Form, width: int, words: Sequence[Word], times: str | None, take: Take, lines: list[str]
) -> str:
    """A register of that width with the value of a form. words: what holds the counters that it names.

    times: a register with the number of threads that it is added up over; None for one thread.
    """
    threads = LANES if times else 1
    small = width == 32 or (form.most is not None and form.most * threads < 1 << 32)
    kind = 32 if small else 64
    terms = [(_number(part, words, kind, take, lines), part.factor) for part in form.parts]
    constant = form.constant % (1 << kind)
    if constant and times:
        name = times
        if kind == 64:
            name = take("b64")
            lines.append(f"cvt.u64.u32 {name}, {times};")
        terms.append((name, constant))
        constant = 0
    total = ""
    # Those without a factor first: the others' multiplications add them.
    for value, factor in sorted(terms, key=lambda term: term[1] != 1):
        if factor == 1 and not total:
            total = value
            continue
        name = take(f"b{kind}")
        if factor == 1:
            lines.append(f"add.u{kind} {name}, {value}, {total};")
        elif total:
            lines.append(f"mad.lo.u{kind} {name}, {value}, {factor % (1 << kind)}, {total};")
        else:
            lines.append(f"mul.lo.u{kind} {name}, {value}, {factor % (1 << kind)};")
        total = name
    if constant or not total:
        name = take(f"b{kind}")
        lines.append(f"add.u{kind} {name}, {total}, {constant};" if total else f"mov.b{kind} {name}, {constant};")
        total = name
    return _widened(total, kind, width, take, lines)


def _number(part: Part, words: Sequence[Word], width: int, take: Take, lines: list[str]) -> str:
    """The number that a part takes of its counter."""
    word = words[part.counter]
    name = word.name
    if part.shift or part.width:
        source, name = name, take("b32")
        if not part.width:
            lines.append(f"shr.u32 {name}, {source}, {part.shift};")
        elif not part.shift:
            lines.append(f"and.b32 {name}, {source}, {(1 << part.width) - 1};")
        else:
            lines.append(f"bfe.u32 {name}, {source}, {part.shift}, {part.width};")
    return _widened(name, word.bits, width, take, lines)


def _widened(name: str, have: int, width: int, take: Take, lines: list[str]) -> str:
    if have == width:
        return name
    other = take(f"b{width}")
    lines.append(f"cvt.u{width}.u{have} {other}, {name};")
    return other
