"""Code for the sums of probes: each thread adds up in registers; where threads end, these are added up over the lanes
that end together, then to memory.

Where probes only add constants, threads do not add to each sum: they count in a few counters how often they execute
which runs of sites. The sums are computed from these where a thread ends (``analysis/counter_placement.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from neutrino.abi.levels import Level, Per
from neutrino.abi.records import Field
from neutrino.abi.scalars import ScalarType
from neutrino.ir.operands import SavedOperand
from neutrino.maps.declaration import Map
from neutrino.maps.float_sums import FLOATS
from neutrino.probing.ir.probe_set import Snippet
from neutrino.probing.ir.structured import Save, registers_of
from neutrino.ptx.analysis.counter_placement import CounterPlan, Fork, FormulaTerm, Row, SumFormula, plan_counters
from neutrino.ptx.instrument.probe_block import ProbeBlock, Slots, copy_address
from neutrino.ptx.instrument.records import as_bits, converted
from neutrino.ptx.instrument.registers import Guard, LongLived, ProbeRegisters, Take, Value, bits, guarded, under
from neutrino.ptx.isa.scalars import WARP_LANES
from neutrino.ptx.snippets.writer import operand_text
from neutrino.ptx.text.inserted import Label, Lines, Scope, mem, op

Key = tuple[int, int]
"""A field of a map: (map number, field number)."""

# PTX ISA, "redux.sync": requires sm_80.
_ADDS_OVER_LANES = 80

# The lower bits of which the sum over 32 lanes stays within 32 bits.
_LOW_BITS = 27

_FEWEST_WORDS = 3
"""Of a record: fewer are added one after the other by one lane."""

# A signed sum is added up over the warp in parts: 26 + 26 + 12 bits.
_PART_BITS = 26


@dataclass(frozen=True)
class Word:
    """A register with a counter or a sum of one thread. bits: 32 or 64. signed: it may be negative, so that the upper
    ones of its 64 bits are often set."""

    name: str
    bits: int
    signed: bool = False


class EndSums:
    """Collects what each thread of a kernel adds to fields of maps where it ends, then writes the code that adds it to
    memory.

    maps: of the probes; a field of one is named by its ``Key``. take: gives a new register of a type (``Take``). block:
    has the addresses of the maps' records. architecture: 80 for ``sm_80``.
    """

    def __init__(self, maps: Sequence[Map], take: Take, block: ProbeBlock, architecture: int) -> None:
        """Set up a writer of code that adds values to memory where threads end; no values yet. Parameters: see the
        class."""
        self._maps = maps
        self._cells = [entry.kind.cells(entry.fields) for entry in maps]
        self._take = take
        self._block = block
        self._adds_over_lanes = architecture >= _ADDS_OVER_LANES
        # The registers, by the numbers that formulas have for them; and what each field gets, as a formula of these.
        self._words: list[Word] = []
        self._formulas: dict[Key, SumFormula] = {}
        self._lines: Lines = []

    def add_register(self, word: Word) -> int:
        """Add a register to those that formulas may name; return the number by which they name it."""
        self._words.append(word)
        return len(self._words) - 1

    def add(self, key: Key, formula: SumFormula) -> None:
        """Have each thread add the value of a formula (a constant plus registers times factors) to a map's field, too.
        """
        previous = self._formulas.get(key, SumFormula())
        self._formulas[key] = SumFormula(previous.constant + formula.constant, previous.terms + formula.terms)

    def write(self) -> Lines:
        """Return the code that adds the values of all formulas to memory where a thread ends. Called once.

        Nothing may come after it, since it may end most threads.
        """
        by_level: dict[Level, dict[Key, SumFormula]] = {}
        # Threads with rows of their own are not added up over the warp.
        own: dict[Key, SumFormula] = {}
        for key, formula in self._formulas.items():
            if formula != SumFormula():  # the empty formula adds nothing
                map_number, _ = key
                entry = self._maps[map_number]
                (own if entry.per is Per.THREAD else by_level.setdefault(entry.level, {}))[key] = formula
        if own:
            self._add_all(own, self._words, None)
        # Sums of all threads come last, since most threads end there.
        for level in (Level.BLOCK, Level.WARP):
            if level in by_level:
                self._add_all(by_level[level], self._words, None, member=self._first_of(level))
        if Level.THREAD in by_level:
            if self._adds_over_lanes:
                self._add_together(by_level[Level.THREAD])
            else:
                self._add_all(by_level[Level.THREAD], self._words, None)
        return self._lines

    def _add_together(self, formulas: Mapping[Key, SumFormula]) -> None:
        """Write the code that adds values up over the threads of a warp that end together, and then to memory by one of
        them.

        The others end: one atomic per warp in place of one per thread; or several of them add to a word each, at once.
        ``redux`` adds 32 bits. So of an unsigned
        counter of 64 bits only the lower ``_LOW_BITS`` are added up over the lanes; a thread in which higher bits are
        set stays as well and adds those itself. Few threads count so far, and these have run for so long that another
        atomic does not matter.
        """
        take, lines = self._take, self._lines
        active, lower, leader = self._leader()
        # A thread's own registers, replaced below by those that hold their sums over the lanes.
        words = list(self._words)
        used = sorted({term.counter for formula in formulas.values() for term in formula.terms})
        wide = [index for index in used if words[index].bits == 64 and not words[index].signed]
        # By the register's number, the sum over the lanes of its 32 bits, or of its lower bits.
        totals: dict[int, str] = {}
        for index in used:
            word = words[index]
            if word.signed:
                words[index] = Word(self._signed_sum(word.name, active), 64)
                continue
            total = totals[index] = take("b32")
            source = word.name
            if index in wide:
                lines += [op("cvt.u32.u64", total, source), op("and.b32", total, total, str((1 << _LOW_BITS) - 1))]
                source = total
            else:
                words[index] = Word(total, 32)
            lines.append(op("redux.sync.add.u32", total, source, active))
        # Each thread adds the constants: in the total they are multiplied by the number of threads.
        thread_count = take("b32")
        if any(formula.constant for formula in formulas.values()):
            lines.append(op("popc.b32", thread_count, active))
        if not wide:
            lanes = self._lanes_of_cells(formulas)
            if lanes is None:
                self._add_all(formulas, words, thread_count, ending=leader, lower=lower)
                return
            few, number = take("pred"), take("b32")
            lines += [op("popc.b32", number, active), op("setp.le.u32", few, number, str(max(lanes))), Scope.OPEN,
                      op("bra", "$few", when=few)]  # fmt: skip
            self._add_by_lanes(lanes, words, thread_count, lower)
            lines += [op("bra.uni", "$added"), Label("$few")]
            self._add_all(formulas, words, thread_count, ending=leader, lower=lower)
            lines += [Label("$added"), Scope.CLOSE]
            return
        # Threads with higher bits set add to memory, too. So that the totals are added once, they become zero in all
        # but the leader.
        counted = [thread_count] if any(formula.constant for formula in formulas.values()) else []
        lines += [op("selp.b32", name, name, "0", leader) for name in (*totals.values(), *counted)]
        lines += [op("selp.b64", words[index].name, words[index].name, "0", leader) for index in used
                  if self._words[index].signed]  # fmt: skip
        # The predicate of the threads that add: the leader, and those with higher bits set in some counter.
        member = leader
        for index in wide:
            high, low, more = take("b64"), take("b64"), take("pred")
            lines += [
                op("and.b64", high, words[index].name, str(-(1 << _LOW_BITS))),
                op("setp.ne.or.u64", more, high, "0", member),
                op("cvt.u64.u32", low, totals[index]),
                op("add.u64", high, high, low),
            ]
            words[index] = Word(high, 64)
            member = more
        self._add_all(formulas, words, thread_count, ending=member)

    def _lanes_of_cells(self, formulas: Mapping[Key, SumFormula]) -> dict[int, tuple[Key, SumFormula]] | None:
        """Return by word of a map's record what is added to it, where lanes can add to one word each, all at once.

        That is so if all sums are of one map and need 32 bits, over all lanes. None if not, or if they are too few.
        """
        by_word: dict[int, tuple[Key, SumFormula]] = {}
        for (index, number), formula in formulas.items():
            cell = self._cells[index][number]
            is_small = formula.most is not None and formula.most * WARP_LANES < 1 << 32
            if cell.type.size != 8 or not is_small or cell.offset >= 8 * WARP_LANES:
                return None
            by_word[cell.offset // 8] = (index, number), formula
        is_one = len({index for index, _ in formulas}) == 1
        return by_word if is_one and len(by_word) >= _FEWEST_WORDS else None

    def _add_by_lanes(
        self, of_words: Mapping[int, tuple[Key, SumFormula]], words: Sequence[Word], thread_count: str, lower: str
    ) -> None:  # fmt: skip
        """Write the code by which the n-th of the threads here adds to the n-th word of a map's record, if anything is.

        So memory has one access with all of them. of_words: as ``_lanes_of_cells`` gives it. Others: as of
        ``_add_all``.
        """
        take, lines = self._take, self._lines
        ((index, _), _), *_ = of_words.values()
        values = {
            word: value_of(formula, 32, words, thread_count, take, lines)
            for word, (_, formula) in of_words.items()
        }  # fmt: skip
        rank, bit, adds = take("b32"), take("b32"), take("pred")
        lines.append(op("popc.b32", rank, lower))
        # By pairs of words whose numbers differ in one bit, from the lowest bit on.
        place = 0
        while len(values) > 1 or 0 not in values:
            is_upper = take("pred")
            lines += [op("and.b32", bit, rank, str(1 << place)), op("setp.ne.u32", is_upper, bit, "0")]
            chosen: dict[int, str] = {}
            for word in sorted({word >> 1 for word in values}):
                low, high = values.get(2 * word), values.get(2 * word + 1)
                if low is None or high is None:
                    chosen[word] = low or high or ""
                    continue
                chosen[word] = take("b32")
                lines.append(op("selp.b32", chosen[word], high, low, is_upper))
            values, place = chosen, place + 1
        wide, mask = take("b64"), sum(1 << word for word in of_words)
        base = copy_address(self._maps[index], index, self._block, take, lines, ending=True)
        lines += [
            # Lanes with higher numbers shift by more than all bits.
            op("mov.u32", bit, str(mask)), op("shr.u32", bit, bit, rank), op("and.b32", bit, bit, "1"),
            op("setp.ne.u32", adds, bit, "0"), op("mad.wide.u32", base, rank, "8", base),
            op("cvt.u64.u32", wide, values[0]), op("red.global.add.u64", mem(base), wide, when=adds),
        ]  # fmt: skip

    def _add_all(
        self,
        formulas: Mapping[Key, SumFormula],
        words: Sequence[Word],
        thread_count: str | None,
        *,
        member: str | None = None,
        ending: str | None = None,
        lower: str | None = None,
    ) -> None:
        """Write the code in which threads add the values of formulas to the maps' fields in memory, atomically.

        words: the registers, by their numbers in formulas. thread_count: a register with the number of threads that a
        value is for, None for one. member: the predicate of the threads that add; ending: the same, and the other
        threads end here. At most one of the two is given; without any all threads add. lower: see ``copy_address``.
        """
        # By the map's number, the address of the copy of its record that this thread adds to.
        bases: dict[int, str] = {}
        adds = [op("exit", when=f"!{ending}")] if ending else []
        for (index, number), formula in formulas.items():
            cell = self._cells[index][number]
            if index not in bases:
                bases[index] = copy_address(
                    self._maps[index], index, self._block, self._take, self._lines, lower, ending=True
                )
            width = cell.type.size * 8
            value = value_of(formula, width, words, thread_count, self._take, self._lines)
            adds.append(op(f"red.global.add.u{width}", mem(bases[index], cell.offset), value, when=member or ""))
        # Next to each other, so that in the machine code one branch skips all of them.
        self._lines += adds

    def _leader(self) -> tuple[str, str, str]:
        """Write the code that chooses one of the threads of a warp that end together here: the one in the lowest lane,
        the leader.

        Returns registers: the mask of these threads, the mask of those of them in lower lanes than this one, and a
        predicate, whether this thread is the leader.
        """
        active, lower, leader = self._take("b32"), self._take("b32"), self._take("pred")
        self._lines += [
            op("activemask.b32", active),
            op("mov.u32", lower, "%lanemask_lt"),
            op("and.b32", lower, lower, active),
            op("setp.eq.u32", leader, lower, "0"),
        ]
        return active, lower, leader

    def _first_of(self, level: Level) -> str:
        """Return a predicate that says whether this is the first thread of its warp or block, as level says.

        It alone adds to sums of that level.
        """
        thread, y, z, size = (self._take("b32") for _ in range(4))
        first = self._take("pred")
        self._lines += [op("mov.u32", thread, "%tid.x"), op("mov.u32", y, "%tid.y"), op("mov.u32", z, "%tid.z")]
        if level is Level.BLOCK:
            self._lines += [op("or.b32", thread, thread, y), op("or.b32", thread, thread, z)]
        else:
            self._lines += [
                op("mov.u32", size, "%ntid.y"),
                op("mad.lo.u32", y, z, size, y),
                op("mov.u32", size, "%ntid.x"),
                # Now the thread's linear index in its block, whose lowest bits are its lane.
                op("mad.lo.u32", thread, y, size, thread),
                op("and.b32", thread, thread, str(WARP_LANES - 1)),
            ]
        self._lines.append(op("setp.eq.u32", first, thread, "0"))
        return first

    def _signed_sum(self, name: str, active: str) -> str:
        """Return a register with the sum of a register of 64 bits over the active lanes, exact modulo 2 to the 64.

        ``redux`` adds 32 bits, so the number is split into three parts whose sums over 32 lanes fit into 32 bits. name:
        of the register to add up. active: a register with the lanes' mask.
        """
        mask = str((1 << _PART_BITS) - 1)
        total, shifted = self._take("b64"), self._take("b64")
        low, middle, high = (self._take("b32") for _ in range(3))
        self._lines += [
            op("cvt.u32.u64", low, name),
            op("and.b32", low, low, mask),
            op("shr.u64", shifted, name, str(_PART_BITS)),
            op("cvt.u32.u64", middle, shifted),
            op("and.b32", middle, middle, mask),
            op("shr.u64", shifted, name, str(2 * _PART_BITS)),
            op("cvt.u32.u64", high, shifted),
            *(op("redux.sync.add.u32", part, part, active) for part in (low, middle, high)),
            op("cvt.u64.u32", total, low),
            op("mad.wide.u32", total, middle, str(1 << _PART_BITS), total),
            op("cvt.u64.u32", shifted, high),
            op("shl.b64", shifted, shifted, str(2 * _PART_BITS)),
            op("add.u64", total, total, shifted),
        ]
        return total


def value_of(
    formula: SumFormula, width: int, words: Sequence[Word], thread_count: str | None, take: Take, lines: Lines
) -> str:
    """Return a register with the value of a formula, of that width in bits, 32 or 64; its code is appended to lines.

    A formula is a constant plus terms, each a number in a counter times a factor. words: the registers of counters, by
    their numbers in the formula. thread_count: a register with the number of threads over which the counters were added
    up, which constants are multiplied by; None for one thread.
    """
    threads = WARP_LANES if thread_count else 1
    # Computed in 32 bits where the value fits, which takes fewer instructions.
    small = width == 32 or (formula.most is not None and formula.most * threads < 1 << 32)
    computed_width = 32 if small else 64
    modulus = 1 << computed_width
    terms = [(_term_number(term, words, computed_width, take, lines), term.factor) for term in formula.terms]
    # Constants and factors may be negative. The remainder is their two's complement, which adds up to the same.
    constant = formula.constant % modulus
    if constant and thread_count:
        name = thread_count
        if computed_width == 64:
            name = take("b64")
            lines.append(op("cvt.u64.u32", name, thread_count))
        terms.append((name, constant))
        constant = 0
    # The register with the sum of the terms so far, "" before the first.
    total = ""
    # Terms with the factor 1 first: the multiplication of another term adds them in the same instruction (mad).
    for value, factor in sorted(terms, key=lambda term: term[1] != 1):
        if factor == 1 and not total:
            total = value
            continue
        name = take(f"b{computed_width}")
        if factor == 1:
            lines.append(op(f"add.u{computed_width}", name, value, total))
        elif total:
            lines.append(op(f"mad.lo.u{computed_width}", name, value, str(factor % modulus), total))
        else:
            lines.append(op(f"mul.lo.u{computed_width}", name, value, str(factor % modulus)))
        total = name
    if constant or not total:
        name = take(f"b{computed_width}")
        number = str(constant)
        add, move = (f"add.u{computed_width}", name, total, number), (f"mov.b{computed_width}", name, number)
        lines.append(op(*(add if total else move)))
        total = name
    return _widened(total, computed_width, width, take, lines)


def _term_number(term: FormulaTerm, words: Sequence[Word], width: int, take: Take, lines: Lines) -> str:
    """Return a register, 32 or 64 bits wide, with the number that a formula's term multiplies: some bits of a counter.

    words: the registers of counters, by their numbers. Appends code to lines.
    """
    word = words[term.counter]
    name = word.name
    if term.shift or term.width:
        source, name = name, take("b32")
        # A width of 0 is all bits from the shift on.
        if not term.width:
            lines.append(op("shr.u32", name, source, str(term.shift)))
        elif not term.shift:
            lines.append(op("and.b32", name, source, str((1 << term.width) - 1)))
        else:
            lines.append(op("bfe.u32", name, source, str(term.shift), str(term.width)))
    return _widened(name, word.bits, width, take, lines)


def _widened(name: str, own_width: int, width: int, take: Take, lines: Lines) -> str:
    """Return a register of that width in bits with the unsigned value of one of own_width bits; the same one if they
    are equal."""
    if own_width == width:
        return name
    converted_name = take(f"b{width}")
    lines.append(op(f"cvt.u{width}.u{own_width}", converted_name, name))
    return converted_name



def _is_decimal(text: str) -> bool:
    """Whether an operand is a number from 1, in decimal, that fits any field."""
    return text.isdecimal() and text[0] != "0" and len(text) < 10


class Sums:
    """Writes the code for sums in one body: registers in which a thread adds up what probes add to fields of maps, or
    counters from which these sums are computed where the thread ends (see ``choose_counters``).

    maps: of the probes. prefix: starts every private register. registers: the probes' own. block: has the addresses of
    the maps' records. take: gives a new register of a type (``Take``). architecture: 80 for ``sm_80``. kernel: for the
    body of a function that a kernel calls, the sums of the kernel; else None.
    """

    def __init__(
        self, maps: Sequence[Map], prefix: str, registers: ProbeRegisters, block: ProbeBlock, take: Take,
        architecture: int, kernel: Sums | None,
    ) -> None:  # fmt: skip
        """Set up a writer of the code for sums (accumulators of probes) in one body; none yet. Parameters: see the
        class."""
        self._maps = maps
        self._cells = [entry.kind.cells(entry.fields) for entry in maps]
        self._prefix = prefix
        self._registers = registers
        self._block = block
        self._take = take
        self._architecture = architecture
        # The registers of sums that the body's code names, by field; and those of the kernel and all its functions.
        self._sums: dict[tuple[int, int], str] = {}
        self._all_sums: dict[tuple[int, int], str] = kernel._all_sums if kernel else {}
        # The counters that runs of sites add to, in place of the probes' registers and the sums; None without counters.
        self._counter_plan: CounterPlan | None = None
        # Their registers.
        self._counters: list[Word] = []
        # By field, what snippets at the ends add to it that is computed from counters.
        self._ending: dict[tuple[int, int], list[SumFormula]] = {}
        # The probes' registers to which `update_registers` has added what the counters stand for.
        self._updated: set[str] = set()

    @property
    def long_lived(self) -> list[LongLived]:
        """The registers in which a thread adds up sums until it ends, as far as the body's code uses them."""
        registers = []
        for (map_index, cell), name in self._sums.items():
            # Signed and unsigned numbers are added alike.
            kind = _unsigned(self._cells[map_index][cell])
            registers.append(LongLived(name, kind, "0", kind))
        return registers

    @property
    def counter_registers(self) -> list[LongLived]:
        """The registers of the counters from which sums are computed where a thread ends."""
        return [LongLived(word.name, f"u{word.bits}", "0", f"u{word.bits}") for word in self._counters]

    @property
    def has_end(self) -> bool:
        """Whether a thread has sums to add to memory where it ends."""
        formulas = self._counter_plan.formulas if self._counter_plan is not None else {}
        has_field_formula = any(isinstance(key, tuple) for key in formulas)
        return bool(self._all_sums or self._ending or has_field_formula)

    @property
    def has_counters(self) -> bool:
        """Whether sums of constants are not added up at sites (probed instructions), but computed from counters at the
        thread's end."""
        return self._counter_plan is not None

    def choose_counters(self, rows: Sequence[Row], forks: Sequence[Fork]) -> None:
        """Choose counters from which all that groups of sites (probed instructions) add can be computed where a thread
        ends.

        Called once, when the code at sites is written. rows: of each group, what it adds to which sums: registers of
        the probes, by name, and fields, by ``Key``. forks: see ``plan_counters``.
        """
        # Bits by sum.
        widths: dict[Hashable, int] = {name: bits(kind) for name, kind in self._registers.types.items()}
        for index, entry in enumerate(self._maps):
            widths.update(((index, number), field.type.size * 8) for number, field in enumerate(entry.fields))
        self._counter_plan = plan_counters(rows, widths, forks)
        self._counters = [
            Word(f"{self._prefix}c{index}", counter.bits) for index, counter in enumerate(self._counter_plan.counters)
        ]

    def count_group(self, number: int, guard: Guard | None) -> Lines:
        """Return the code that adds to the counters when a group of sites (probed instructions) is executed; [] without
        counters.

        It is for the group's beginning. number: of the group, which is that of its row in ``choose_counters``. guard:
        the predicate of the group's sites, None without one.
        """
        if self._counter_plan is None:
            return []
        when = under(guard)
        added = [(self._counters[index], str(amount)) for index, amount in self._counter_plan.adds[number]]
        return [op(f"add.u{word.bits}", word.name, word.name, amount, when=when) for word, amount in added]

    def add(
        self, index: int, save: Save, operand_value: Callable[[SavedOperand], Value], lines: Lines, slots: Slots,
        guard: Guard | None, *, ending: bool,
    ) -> None:  # fmt: skip
        """Append the code with which a save (a probe's statement that records values) adds its operands to the sums of
        a map.

        index: of the map. operand_value: gives the value of an operand there. slots: of the thread. guard: the
        predicate of the threads that save, None for all. ending: the save is at an end of the thread: the part of an
        operand that is computed from counters is noted, and ``end`` adds it.
        """
        target = self._maps[index]
        when = None
        for number, (field, operand) in enumerate(zip(target.fields, save.operands, strict=True)):
            text = operand_text(operand)
            if field.type in FLOATS or self._registers.is_zero(text):
                continue
            if ending:
                formula = self._known_part(text)
                if formula is not None:
                    self._ending.setdefault((index, number), []).append(formula)
                    # Only what code has changed in the register itself is left to add here.
                    if self._registers.private(text) not in self._registers.changed:
                        continue
            # Made once, and only if something is added.
            if when is None:
                when = under(guard)
                if target.level is not Level.THREAD:
                    slot = slots.at(target.level, lines)
                    when = guarded(slot.inside, guard, self._take, lines)
            value = operand_value(operand)
            name = self.name(index, number)
            # Constants need no register and no conversion.
            text = value.text
            if value.type is not None or not _is_decimal(value.text):
                text = as_bits(converted(value, field, self._take, lines), self._take, lines)
            kind = _unsigned(field)
            lines.append(op(f"add.{kind}", name, name, text, when=when))

    def add_amount(
        self, index: int, number: int, amount: str, when: str, lines: Lines, *, operation: str = "add"
    ) -> None:  # fmt: skip
        """Append the code that adds a number or a register to the register in which a thread sums up a cell of the
        index-th map.

        number: of the cell. when: the predicate of the threads that do, as ``%p``; "" for all. operation: or ``sub``.
        """
        name = self.name(index, number)
        lines.append(op(f"{operation}.{_unsigned(self._cells[index][number])}", name, name, amount, when=when))

    def name(self, index: int, number: int) -> str:
        """Return the register in which a thread sums up a cell of the index-th map, for code that changes it. number:
        of the cell."""
        name = self._all_sums.setdefault((index, number), f"{self._prefix}s{index}_{number}")
        self._sums[index, number] = name
        self._registers.changed.add(name)
        return name

    def update_registers(self, snippets: Iterable[Snippet]) -> Lines:
        """Return the code that adds to probes' registers what counters stand for, before snippets at a thread's end
        read them.

        Where counters are kept, code at sites adds to them and not to these registers. Registers that the snippets only
        add to sums are left out: ``add`` and ``end`` add their formulas to the sums directly. snippets: all at the
        ends.
        """
        if self._counter_plan is None:
            return []
        # Names of the registers whose values the snippets need.
        read: set[str] = set()
        for statement in (statement for snippet in snippets for statement in snippet.straight):
            if not isinstance(statement, Save):
                read.update(register.name for register in registers_of(statement))
                continue
            if statement.guard is not None:
                read.add(statement.guard.name)
            adds_constants = statement.map.adds_constants
            for field, operand in zip(statement.map.fields, statement.operands, strict=True):
                name = operand_text(operand)
                if not adds_constants or not self._field_fits(name, field):
                    read.add(name)
        lines: Lines = []
        # Keys that are strings are registers, the others fields.
        for name in sorted(read.intersection(key for key in self._counter_plan.formulas if isinstance(key, str))):
            width = bits(self._registers.types[name])
            value = self._value_here(self._counter_plan.formulas[name], width, lines)
            private_name = self._registers.use(name)
            lines.append(op(f"add.u{width}", private_name, private_name, value))
            self._registers.changed.add(private_name)
            self._updated.add(name)
        return lines

    def end(self, lines: Lines) -> None:
        """Append the code that adds this thread's sums to memory where it ends: those of the kernel, and of its
        functions as far as their code has been written."""
        # The code names all of them, also those that only other bodies added to.
        self._sums = dict(self._all_sums)
        sums = EndSums(self._maps, self._take, self._block, self._architecture)
        counter_plan = self._counter_plan or CounterPlan((), (), {})
        # First the counters: formulas name them by their index.
        for word in self._counters:
            sums.add_register(word)
        for key, formulas in self._ending.items():
            for formula in formulas:
                sums.add(key, formula)
        for sum_key, formula in counter_plan.formulas.items():
            # A tuple is a field; registers of the probes are no sums in memory.
            if isinstance(sum_key, tuple):
                sums.add(sum_key, formula)
        for key, name in self._sums.items():
            index, number = key
            scalar = self._cells[index][number].type
            counter_number = sums.add_register(Word(name, scalar.size * 8, signed=scalar is ScalarType.S64))
            # All bits of the register, times one.
            sums.add(key, SumFormula(0, (FormulaTerm(counter_number, shift=0, width=0, factor=1, most=None),)))
        lines += sums.write()

    def _field_fits(self, name: str, field: Field) -> bool:
        """Return whether a field that a register is saved to may get the register's formula of counters in place of its
        value.

        name: a register of the probes that a snippet at the end saves. field: of the map. The value, extended to the
        field's width, is another number than the formula's where it has wrapped around in the register, or code has
        changed the register. So the widths must be equal, or the greatest value of the formula (``most``, None if not
        known) must fit the register. A register without a formula has no counters, so that nothing stands in place of
        its value.
        """
        formula = self._counter_plan.formulas.get(name) if self._counter_plan else None
        if formula is None or bits(self._registers.types[name]) == field.type.size * 8:
            return True
        if formula.most is None or self._registers.private(name) in self._registers.changed:
            return False
        initial = self._registers.initial(name)
        # Not negative even as a signed number of 32 bits: it is extended to the same number by zeros and by sign.
        return initial >= 0 and initial + formula.most < 1 << 31

    def _known_part(self, operand: str) -> SumFormula | None:
        """Return the part of an operand's value, at an end, that is constant or computed from counters, as a formula;
        else None.

        It is the whole value unless other code has changed the register. operand: of a ``SAVE``, as text.
        """
        if _is_decimal(operand):
            return SumFormula(int(operand))
        formula = self._counter_plan.formulas.get(operand) if self._counter_plan else None
        # After `update_registers` the register itself holds the whole value.
        if formula is None or operand in self._updated:
            return None
        # A changed register is added by itself, and its initial value with it.
        if self._registers.private(operand) in self._registers.changed:
            return formula
        return replace(formula, constant=(formula.constant + self._registers.initial(operand)) % (1 << 64))

    def _value_here(self, formula: SumFormula, width: int, lines: Lines) -> str:
        """Return a register of that width in bits with the value that a formula of the counters has in this thread."""
        return value_of(formula, width, self._counters, None, self._take, lines)


def _unsigned(field: Field) -> str:
    """Return the unsigned type of a field's width: sums of signed numbers are the same bits."""
    return f"u{field.type.size * 8}"
