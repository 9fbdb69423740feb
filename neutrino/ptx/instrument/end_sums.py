"""Code that adds to memory, where threads end, what each of them has in registers: added up over the lanes that end
together, so that a warp adds each sum once.

Nearly always whole warps end, outside of graphs, and counters are small. One test finds out whether all of that is so;
then code runs that is made for it. All else is for code that takes any lanes and any numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from neutrino.abi.levels import Level, Per
from neutrino.maps.declaration import Map
from neutrino.maps.regions import copy_stride
from neutrino.ptx.analysis.counter_placement import FormulaTerm, SumFormula
from neutrino.ptx.instrument.probe_block import CopyNumbers, ProbeBlock, copies_limit, copy_address
from neutrino.ptx.instrument.registers import Take
from neutrino.ptx.isa.scalars import WARP_LANES
from neutrino.ptx.text.inserted import Label, Lines, Scope, mem, op, vector

Key = tuple[int, int]
"""A field of a map: (map number, field number)."""

# PTX ISA, "redux.sync": requires sm_80.
_ADDS_OVER_LANES = 80

# The lower bits of which the sum over 32 lanes stays within 32 bits.
_LOW_BITS = 27

_FEWEST_LOW_BITS = 16
"""Counters with more are seldom, so that it pays to have code for such as need no more."""

_FEWEST_WORDS = 3
"""Of a record: fewer are added one after the other by one lane."""

_WORDS_APART = 8
"""Lanes that add to one map begin at a multiple of that."""

# A signed sum is added up over the warp in parts: 26 + 26 + 12 bits.
_PART_BITS = 26


@dataclass(frozen=True)
class Word:
    """A register with a counter or a sum of one thread. bits: 32 or 64. signed: it may be negative, so that the upper
    ones of its 64 bits are often set."""

    name: str
    bits: int
    signed: bool = False


@dataclass(frozen=True)
class _LanesOfCells:
    """Which lanes add to which cells. by_lane: by the lane's number, what it adds to, and what. firsts: by the map's
    number, the lane that adds to the first word of its record, in ascending order."""

    by_lane: Mapping[int, tuple[Key, SumFormula]]
    firsts: Mapping[int, int]


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
        """Have each thread also add the value of a formula (constant plus registers times factors) to a map's field."""
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
        """Write the code that adds values up over the threads of a warp that end together, and then to memory: one
        atomic per warp in place of one per thread.

        A whole warp with small counters, outside of graphs, has code of its own: its threads need not be counted, and
        the address is known.
        """
        take, lines = self._take, self._lines
        active = take("b32")
        lines.append(op("activemask.b32", active))
        if not self._block.is_parameter:
            self._add_of_some(formulas, active)
            return
        used = _used(formulas)
        of_lanes, low_bits = self._whole_lanes(formulas)
        # By the register's number, its lower 32 bits.
        lower = {index: self._words[index].name for index in used}
        lines.append(Scope.OPEN)
        # Of all counters of 64 bits together, the bits that must be 0.
        beyond = ""
        for index in used:
            word = self._words[index]
            if word.bits == 64:
                lower[index], high = take("b32"), take("b32")
                lines.append(op("mov.b64", vector(lower[index], high), word.name))
                some = take("b32")
                lines.append(op("and.b32", some, lower[index], str((1 << 32) - (1 << low_bits))))
                for found in (high, beyond):
                    if found:
                        lines.append(op("or.b32", some, some, found))
                beyond = some
        here = active
        if beyond:
            is_small, here = take("pred"), take("b32")
            lines += [
                op("setp.eq.u32", is_small, beyond, "0"),
                op("vote.sync.ballot.b32", here, is_small, active),
            ]
        others, is_other = take("b32"), take("pred")
        lines.append(op("not.b32", others, here))
        lines += [op("or.b32", others, others, half) for half in self._block.displaced(self._take, lines)]
        lines += [op("setp.ne.u32", is_other, others, "0"), op("bra", "$neutrino_some", when=is_other)]
        with self._block.in_place():
            self._add_of_all(formulas, lower, active, of_lanes, low_bits)
        lines += [op("bra.uni", "$neutrino_summed"), Label("$neutrino_some")]
        self._add_of_some(formulas, active)
        lines += [Label("$neutrino_summed"), Scope.CLOSE]

    def _whole_lanes(self, formulas: Mapping[Key, SumFormula]) -> tuple[_LanesOfCells | None, int]:
        """Return which lanes of a whole warp add to which cells, None if one adds to all; and how many bits of its
        counters of 64 bits may be set, in each thread."""
        for low_bits in range(_LOW_BITS, _FEWEST_LOW_BITS - 1, -1):
            of_lanes = self._lanes_of_cells(self._bounded(formulas, low_bits))
            if of_lanes is not None:
                return of_lanes, low_bits
        return None, _LOW_BITS

    def _bounded(self, formulas: Mapping[Key, SumFormula], low_bits: int) -> dict[Key, SumFormula]:
        """Return the formulas as they are where no counter of 64 bits has more than its lower ones."""
        most = (1 << low_bits) - 1

        def bounded(term: FormulaTerm) -> FormulaTerm:
            is_wide = self._words[term.counter].bits == 64
            return replace(term, most=most) if is_wide and term.most is None else term

        return {key: replace(formula, terms=tuple(map(bounded, formula.terms))) for key, formula in formulas.items()}

    def _add_of_all(
        self, formulas: Mapping[Key, SumFormula], lower: Mapping[int, str], active: str,
        of_lanes: _LanesOfCells | None, low_bits: int,
    ) -> None:  # fmt: skip
        """Write the code for a whole warp whose counters have no other bits than the lower ones.

        lower: by the register's number, that with its lower 32 bits. active: the mask of all lanes. of_lanes, low_bits:
        of ``_whole_lanes``.
        """
        take, lines = self._take, self._lines
        words = list(self._words)
        for index, source in lower.items():
            total = take("b32")
            lines.append(op("redux.sync.add.u32", total, source, active))
            words[index] = Word(total, 32)
        rank = take("b32")
        lines.append(op("mov.u32", rank, "%laneid"))
        if of_lanes is not None:
            self._add_by_lanes(of_lanes, words, WARP_LANES, rank)
            return
        leader = take("pred")
        lines.append(op("setp.eq.u32", leader, rank, "0"))
        self._add_all(self._bounded(formulas, low_bits), words, WARP_LANES, ending=leader, lower=rank)

    def _add_of_some(self, formulas: Mapping[Key, SumFormula], active: str) -> None:
        """Write the code that adds values up over any threads of a warp that end together, and then to memory by one of
        them.

        The others end; or several of them add to a word each, at once. ``redux`` adds 32 bits. So of an unsigned
        counter of 64 bits only the lower ``_LOW_BITS`` are added up over the lanes; a thread in which higher bits are
        set stays as well and adds those itself. Few threads count so far, and these have run for so long that another
        atomic does not matter. active: the mask of the threads.
        """
        take, lines = self._take, self._lines
        lower, leader = self._leader(active)
        # A thread's own registers, replaced below by those that hold their sums over the lanes.
        words = list(self._words)
        used = _used(formulas)
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
            few, number, rank = take("pred"), take("b32"), take("b32")
            lines += [op("popc.b32", number, active), op("setp.le.u32", few, number, str(max(lanes.by_lane))),
                      Scope.OPEN, op("bra", "$few", when=few), op("popc.b32", rank, lower)]  # fmt: skip
            self._add_by_lanes(lanes, words, thread_count, rank)
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

    def _lanes_of_cells(self, formulas: Mapping[Key, SumFormula]) -> _LanesOfCells | None:
        """Return which lanes can add to one word of a map's record each, all at once.

        They can if all sums need 32 bits, over all lanes, and the maps' records have copies of one size. None if not,
        or if they are too few.
        """
        maps = sorted({index for index, _ in formulas})
        entries = [self._maps[index] for index in maps]
        copies = {(copy_stride(entry.size), copies_limit(entry)) for entry in entries}
        are_alike = len(maps) == 1 or (len(copies) == 1 and not any(entry.per.has_rows for entry in entries))
        if len(formulas) < _FEWEST_WORDS or not are_alike:
            return None
        by_lane: dict[int, tuple[Key, SumFormula]] = {}
        firsts: dict[int, int] = {}
        for index in maps:
            first = firsts[index] = -(-(max(by_lane, default=-1) + 1) // _WORDS_APART) * _WORDS_APART
            for (owner, number), formula in formulas.items():
                if owner != index:
                    continue
                cell = self._cells[index][number]
                is_small = formula.most is not None and formula.most * WARP_LANES < 1 << 32
                lane = first + cell.offset // 8
                if cell.type.size != 8 or not is_small or lane >= WARP_LANES:
                    return None
                by_lane[lane] = (index, number), formula
        return _LanesOfCells(by_lane, firsts)

    def _add_by_lanes(
        self, of_lanes: _LanesOfCells, words: Sequence[Word], thread_count: str | int, rank: str
    ) -> None:  # fmt: skip
        """Write the code by which the n-th of the threads here adds to the n-th word of a map's record, if anything is.

        So memory has one access with all of them. of_lanes: what each adds. rank: a register with n, from 0. Others: as
        of ``_add_all``.
        """
        take, lines, by_lane = self._take, self._lines, of_lanes.by_lane
        values = {
            lane: value_of(formula, 32, words, thread_count, take, lines) for lane, (_, formula) in by_lane.items()
        }  # fmt: skip
        bit, adds = take("b32"), take("pred")
        # By pairs of lanes whose numbers differ in one bit, from the lowest bit on.
        place = 0
        while len(values) > 1 or 0 not in values:
            is_upper = take("pred")
            lines += [op("and.b32", bit, rank, str(1 << place)), op("setp.ne.u32", is_upper, bit, "0")]
            chosen: dict[int, str] = {}
            for lane in sorted({lane >> 1 for lane in values}):
                low, high = values.get(2 * lane), values.get(2 * lane + 1)
                if low is None or high is None:
                    chosen[lane] = low or high or ""
                    continue
                chosen[lane] = take("b32")
                lines.append(op("selp.b32", chosen[lane], high, low, is_upper))
            values, place = chosen, place + 1
        if len(by_lane) == max(by_lane) + 1:
            lines.append(op("setp.lt.u32", adds, rank, str(len(by_lane))))
        else:
            # Lanes with higher numbers shift by more than all bits.
            mask = sum(1 << lane for lane in by_lane)
            lines += [op("mov.u32", bit, str(mask)), op("shr.u32", bit, bit, rank), op("and.b32", bit, bit, "1"),
                      op("setp.ne.u32", adds, bit, "0")]  # fmt: skip
        base, wide = self._address_by_lanes(of_lanes.firsts, rank), take("b64")
        lines += [op("cvt.u64.u32", wide, values[0]), op("red.global.add.u64", mem(base), wide, when=adds)]

    def _address_by_lanes(self, firsts: Mapping[int, int], rank: str) -> str:
        """Return a register with the address of the word that this thread adds to. firsts: by the map's number, the
        first lane that adds to it. rank: of this thread."""
        take, lines, block = self._take, self._lines, self._block
        (index, _), *others = firsts.items()
        entry, address = self._maps[index], take("b64")
        if not others and entry.per.has_rows:
            base = copy_address(entry, index, block, take, lines, ending=True)
            lines.append(op("mad.wide.u32", address, rank, "8", base))
            return address
        base = take("b64")
        lines.append(block.load_records(index, base))
        for number, first in others:
            other, is_other = take("b64"), take("pred")
            lines += [
                block.load_records(number, other),
                # What is added below is too much by the lanes of the maps before.
                op("sub.u64", other, other, str(8 * first)),
                op("setp.ge.u32", is_other, rank, str(first)),
                op("selp.b64", base, other, base, is_other),
            ]
        block.displace(base, lines, ending=True, take=take)
        # In words: copies are far fewer than 32 bits count.
        word = take("b32")
        copy = CopyNumbers(block, take).of(entry, lines)
        lines += [
            op("mad.lo.u32", word, copy, str(copy_stride(entry.size) // 8), rank),
            op("mad.wide.u32", address, word, "8", base),
        ]
        return address

    def _add_all(
        self,
        formulas: Mapping[Key, SumFormula],
        words: Sequence[Word],
        thread_count: str | int | None,
        *,
        member: str | None = None,
        ending: str | None = None,
        lower: str | None = None,
    ) -> None:
        """Write the code in which threads add the values of formulas to the maps' fields in memory, atomically.

        words: the registers, by their numbers in formulas. thread_count: the number of threads that a value is for, or
        a register with it, None for one. member: the predicate of the threads that add; ending: the same, and the other
        threads end here. At most one of the two is given; without any all threads add. lower: see ``CopyNumbers``.
        """
        # By the map's number, the address of the copy of its record that this thread adds to.
        bases: dict[int, str] = {}
        copies = CopyNumbers(self._block, self._take, lower)
        adds = [op("exit", when=f"!{ending}")] if ending else []
        for (index, number), formula in formulas.items():
            cell = self._cells[index][number]
            if index not in bases:
                bases[index] = copy_address(
                    self._maps[index], index, self._block, self._take, self._lines, copies, ending=True
                )
            width = cell.type.size * 8
            value = value_of(formula, width, words, thread_count, self._take, self._lines)
            adds.append(op(f"red.global.add.u{width}", mem(bases[index], cell.offset), value, when=member or ""))
        # Next to each other, so that in the machine code one branch skips all of them.
        self._lines += adds

    def _leader(self, active: str) -> tuple[str, str]:
        """Write the code that chooses one of the threads of a warp that end together here: the one in the lowest lane,
        the leader.

        active: the mask of these threads. Returns registers: the mask of those of them in lower lanes than this one,
        and a predicate, whether this thread is the leader.
        """
        lower, leader = self._take("b32"), self._take("pred")
        self._lines += [
            op("mov.u32", lower, "%lanemask_lt"),
            op("and.b32", lower, lower, active),
            op("setp.eq.u32", leader, lower, "0"),
        ]
        return lower, leader

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


def _used(formulas: Mapping[Key, SumFormula]) -> list[int]:
    """Return the numbers of the registers that formulas name, in ascending order."""
    return sorted({term.counter for formula in formulas.values() for term in formula.terms})


def value_of(
    formula: SumFormula, width: int, words: Sequence[Word], thread_count: str | int | None, take: Take, lines: Lines
) -> str:
    """Return a register with the value of a formula, of that width in bits, 32 or 64; its code is appended to lines.

    A formula is a constant plus terms, each a number in a counter times a factor. words: the registers of counters, by
    their numbers in the formula. thread_count: the number of threads over which the counters were added up, or a
    register with it, which constants are multiplied by; None for one thread.
    """
    threads = WARP_LANES if thread_count else 1
    # Computed in 32 bits where the value fits, which takes fewer instructions.
    small = width == 32 or (formula.most is not None and formula.most * threads < 1 << 32)
    computed_width = 32 if small else 64
    modulus = 1 << computed_width
    terms = [(_term_number(term, words, computed_width, take, lines), term.factor) for term in formula.terms]
    # Constants and factors may be negative. The remainder is their two's complement, which adds up to the same.
    constant = formula.constant * (thread_count if isinstance(thread_count, int) else 1) % modulus
    if constant and isinstance(thread_count, str):
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
