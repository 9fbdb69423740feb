"""What probes add up: counted in registers, added over the lanes that end together, then to memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from neutrino.abi.levels import Level
from neutrino.abi.records import Field
from neutrino.abi.scalars import ScalarType
from neutrino.maps.declaration import Map
from neutrino.probing.ir.operands import SavedOperand
from neutrino.probing.ir.probe_set import Snippet
from neutrino.probing.ir.statements import Save, registers_of
from neutrino.ptx.analysis.counter_placement import Fork, Form, Part, Row, Tallies, plan_tallies
from neutrino.ptx.instrument.probe_block import ProbeBlock, Slots, copy_address
from neutrino.ptx.instrument.records import as_bits, converted
from neutrino.ptx.instrument.registers import Guard, Kept, ProbeRegisters, Take, Value, bits, guarded
from neutrino.ptx.isa.scalars import WARP_LANES

Key = tuple[int, int]
"""A field of a map, both by their number."""

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
        """The code, after which a thread may have ended. Called once."""
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
                f"and.b32 {thread}, {thread}, {WARP_LANES - 1};",
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
    threads = WARP_LANES if times else 1
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


_DECIMAL = re.compile(r"[1-9]\d{0,8}", re.ASCII)


class Sums:
    """Writes the sums of one body. maps: of the probes. prefix: starts every private register.

    kernel: as for ``ProbeRegisters``.
    """

    def __init__(
        self, maps: Sequence[Map], prefix: str, registers: ProbeRegisters, block: ProbeBlock, take: Take,
        architecture: int, kernel: Sums | None,
    ) -> None:  # fmt: skip
        self._maps = maps
        self._cells = [entry.kind.cells(entry.fields) for entry in maps]
        self._prefix = prefix
        self._registers = registers
        self._block = block
        self._take = take
        self._architecture = architecture
        self._sums: dict[tuple[int, int], str] = {}
        # Of the kernel and all its functions.
        self._all_sums: dict[tuple[int, int], str] = kernel._all_sums if kernel else {}
        # What runs of sites add to, in place of registers and sums; None where each adds for itself.
        self._tallies: Tallies | None = None
        # What snippets at the ends add to sums, where counters give it, and which registers hold theirs already.
        self._ending: dict[tuple[int, int], list[Form]] = {}
        self._settled: set[str] = set()

    @property
    def kept(self) -> list[Kept]:
        """The registers of sums that the body's code names."""
        found = []
        for (index, number), name in self._sums.items():
            kind = _unsigned(self._cells[index][number])
            found.append(Kept(name, kind, "0", kind))
        return found

    @property
    def kept_tallies(self) -> list[Kept]:
        """The counters that sums are computed from."""
        return [
            Kept(self._tally_name(index), f"u{counter.bits}", "0", f"u{counter.bits}")
            for index, counter in enumerate(self._tallies.counters if self._tallies else ())
        ]

    @property
    def has_end(self) -> bool:
        """Sums have to be stored when a thread ends."""
        tallied = self._tallies is not None and any(isinstance(key, tuple) for key in self._tallies.forms)
        return bool(self._all_sums or self._ending or tallied)

    @property
    def are_tallied(self) -> bool:
        """What snippets at the ends add is computed from the counters."""
        return self._tallies is not None

    def tally(self, rows: Sequence[Row], forks: Sequence[Fork]) -> None:
        """Keep what these rows come to, once the code at sites is written.

        Their sums are registers of the probes and, by map and number, fields.
        """
        widths: dict[Hashable, int] = {name: bits(kind) for name, kind in self._registers.types.items()}
        for index, entry in enumerate(self._maps):
            widths.update(((index, number), field.type.size * 8) for number, field in enumerate(entry.fields))
        self._tallies = plan_tallies(rows, widths, forks)

    def add_row(self, number: int, guard: Guard | None) -> list[str]:
        """The code of one of the rows, where its run of sites begins."""
        if self._tallies is None:
            return []
        prefix = guard.prefix if guard else ""
        lines = []
        for index, amount in self._tallies.adds[number]:
            name = self._tally_name(index)
            lines.append(f"{prefix}add.u{self._tallies.counters[index].bits} {name}, {name}, {amount};")
        return lines

    def add(
        self, index: int, save: Save, operand_value: Callable[[SavedOperand], Value], lines: list[str], slots: Slots,
        guard: Guard | None, *, ending: bool,
    ) -> None:  # fmt: skip
        """Add a save's operands to the index-th map. operand_value: what an operand is there. ending: at an end, where
        what is tallied waits for ``end``.
        """
        target = self._maps[index]
        prefix = None
        for number, (field, operand) in enumerate(zip(target.fields, save.operands, strict=True)):
            if self._registers.is_zero(operand.text):
                continue
            if ending:
                form = self._told(operand.text)
                if form is not None:
                    self._ending.setdefault((index, number), []).append(form)
                    if self._registers.private(operand.text) not in self._registers.changed:
                        continue
            if prefix is None:
                prefix = guard.prefix if guard else ""
                if target.level is not Level.THREAD:
                    slot = slots.at(target.level, lines)
                    prefix = f"@{guarded(slot.inside, guard, self._take, lines)} "
            value = operand_value(operand)
            name = self._all_sums.setdefault((index, number), f"{self._prefix}s{index}_{number}")
            self._sums[index, number] = name
            self._registers.changed.add(name)
            # Constants need no register.
            text = value.text
            if value.type is not None or not _DECIMAL.fullmatch(value.text):
                text = as_bits(converted(value, field, self._take, lines), self._take, lines)
            kind = _unsigned(field)
            lines.append(f"{prefix}add.{kind} {name}, {name}, {text};")

    def count(self, index: int, number: int, prefix: str, lines: list[str]) -> None:
        """Add one to a cell of the index-th map. prefix: the predicate of the threads that do."""
        name = self._all_sums.setdefault((index, number), f"{self._prefix}s{index}_{number}")
        self._sums[index, number] = name
        self._registers.changed.add(name)
        lines.append(f"{prefix}add.{_unsigned(self._cells[index][number])} {name}, {name}, 1;")

    def settle(self, snippets: Iterable[Snippet]) -> list[str]:
        """Give the registers that snippets at the ends look at what was added to them; others' sums stay numbers."""
        if self._tallies is None:
            return []
        snippets = tuple(snippets)
        looked_at: set[str] = set()
        for statement in (statement for snippet in snippets for statement in snippet.straight):
            if not isinstance(statement, Save):
                looked_at.update(register.name for register in registers_of(statement))
                continue
            if statement.guard is not None:
                looked_at.add(statement.guard.name)
            for field, operand in zip(statement.map.fields, statement.operands, strict=True):
                name = operand.text
                if not statement.map.kind.adds_constants or not self._fits(name, field):
                    looked_at.add(name)
        lines: list[str] = []
        for name in sorted(looked_at.intersection(key for key in self._tallies.forms if isinstance(key, str))):
            width = bits(self._registers.types[name])
            value = self._own_value(self._tallies.forms[name], width, lines)
            own = self._registers.use(name)
            lines.append(f"add.u{width} {own}, {own}, {value};")
            self._registers.changed.add(own)
            self._settled.add(name)
        return lines

    def end(self, lines: list[str]) -> None:
        """Store the sums where a thread ends: those of the kernel and its functions so far."""
        self._sums = dict(self._all_sums)
        sums = EndSums(self._maps, self._take, self._block, self._architecture)
        tallies = self._tallies or Tallies((), (), {})
        for index, kept in enumerate(tallies.counters):
            sums.keep(Word(self._tally_name(index), kept.bits))
        for key, forms in self._ending.items():
            for form in forms:
                sums.add(key, form)
        for counted, form in tallies.forms.items():
            if isinstance(counted, tuple):
                sums.add(counted, form)
        for key, name in self._sums.items():
            kind = self._cells[key[0]][key[1]].type
            number = sums.keep(Word(name, kind.size * 8, kind is ScalarType.S64))
            sums.add(key, Form(0, (Part(number, 0, 0, 1, None),)))
        lines += sums.write()

    def _fits(self, name: str, field: Field) -> bool:
        """A field takes what was added to a register as it is: neither may wrap where the other does not."""
        form = self._tallies.forms.get(name) if self._tallies else None
        if form is None or bits(self._registers.types[name]) == field.type.size * 8:
            return True
        if form.most is None or self._registers.private(name) in self._registers.changed:
            return False
        initial = self._registers.initial(name)
        return initial >= 0 and initial + form.most < 1 << 31

    def _told(self, operand: str) -> Form | None:
        """What of an operand tallies tell; all of it if nothing else changes the register."""
        if _DECIMAL.fullmatch(operand):
            return Form(int(operand))
        form = self._tallies.forms.get(operand) if self._tallies else None
        if form is None or operand in self._settled:
            return None
        if self._registers.private(operand) in self._registers.changed:
            return form
        return replace(form, constant=(form.constant + self._registers.initial(operand)) % (1 << 64))

    def _tally_name(self, index: int) -> str:
        return f"{self._prefix}c{index}"

    def _own_value(self, form: Form, width: int, lines: list[str]) -> str:
        counters = self._tallies.counters if self._tallies else ()
        words = [Word(self._tally_name(index), counter.bits) for index, counter in enumerate(counters)]
        return value_of(form, width, words, None, self._take, lines)


def _unsigned(field: Field) -> str:
    return f"u{field.type.size * 8}"
