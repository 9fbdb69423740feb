"""Which counters to keep so that sums of constants can be computed at the end of a thread.

What probes add in runs of sites is known: each run adds a row of constants whenever a thread executes it. So a sum is a
constant for the rows that every thread executes once, plus multiples of the execution counts of the others. Often few
numbers determine all sums: proportional rows share a counter, and so do sums that grow proportionally everywhere. Rows
that no thread executes twice add up to little, so that several of their sums fit one word of 32 bits, even added up
over a warp.

Everything is exact modulo 2 to the width of a sum.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd
from typing import NamedTuple

from neutrino.lazy import lazy
from neutrino.ptx.isa.scalars import WARP_LANES

_WORD = 32
_MOST_PACKED = 64
"""With more tallies by rows than that, packing them into few words is not tried."""
_MOST_UNDIVIDED = 256
"""Counters stay small for long if their steps are below that."""


class Row(NamedTuple):
    """The constants that one run of sites (probed instructions, counted at once) adds to sums whenever a thread
    executes it.

    amounts: by sum, the constant added to it; no zeros. once: no thread executes the run twice; always: every thread
    that ends has executed it, once.
    """

    amounts: Mapping[Hashable, int]
    once: bool
    always: bool

    @property
    def subtracts(self) -> bool:
        """Whether executing this row, which adds a constant to each of several sums, makes any of them smaller."""
        return min(self.amounts.values(), default=0) < 0


class Fork(NamedTuple):
    """Three rows around a conditional branch, by number: come runs for all threads that come to it, take for those that
    take it, stay for those that do not. So take runs as often as come less stay."""

    come: int
    take: int
    stay: int


@dataclass(frozen=True)
class Counter:
    """A register that each thread counts in. bits: 32 or 64. packed: it holds several small numbers, and each of them
    keeps within its bits of the 32 even when it is added up over a warp."""

    bits: int
    packed: bool


@dataclass(frozen=True)
class FormulaTerm:
    """One term of a ``SumFormula``: a number in some bits of a counter register, times a factor.

    counter: its index in ``CounterPlan.counters``. shift: the number's lowest bit; width: how many bits it has, 0 for
    all from there on. most: an upper bound of the number in a thread, None without one.
    """

    counter: int
    shift: int
    width: int
    factor: int
    most: int | None


@dataclass(frozen=True)
class SumFormula:
    """How to compute a sum from a thread's counters where the thread ends: a constant plus terms, each a factor times
    the number in some bits of a counter.

    The constant or a factor may be negative, the sum is not.
    """

    constant: int = 0
    terms: tuple[FormulaTerm, ...] = ()

    @property
    def most(self) -> int | None:
        """An upper bound, for one thread, of the sum that this formula (constant + factors × counters) gives; None if
        some counter has none."""
        total = self.constant
        for term in self.terms:
            if term.most is None:
                return None
            total += term.most * max(term.factor, 0)
        return total


@dataclass(frozen=True)
class CounterPlan:
    """Which counters to keep in registers. adds: by row (a run of probed instructions), the (counter index, amount)
    pairs to add where it is executed; formulas: by sum, how to compute it from the counters."""

    counters: tuple[Counter, ...]
    adds: tuple[tuple[tuple[int, int], ...], ...]
    formulas: Mapping[Hashable, SumFormula]


def plan_counters(rows: Sequence[Row], bits: Mapping[Hashable, int], forks: Sequence[Fork] = ()) -> CounterPlan:
    """Choose the few counter registers that a thread keeps, from which all its sums are computed where it ends.

    Of the plans that are tried, the one that needs the fewest registers, then the fewest additions. rows: the constants
    that stretches of a kernel's instructions add to sums when they are executed. bits: by sum, its width, 32 or 64.
    forks: rows around branches, of which one can be computed from the other two.
    """
    if all(row.always for row in rows):
        # Every sum is a constant.
        return _described(_Plan(rows, [], []), bits)
    variants = [rows]
    if forks:
        # Rows with negative amounts may need fewer counters, but such amounts rule out other ways to save some.
        variants = [_without_taken(rows, forks, below_zero=False)]
        below_zero = _without_taken(rows, forks, below_zero=True)
        variants += [below_zero, rows] if below_zero != variants[0] else []
    plans = [plan for variant in variants for plan in _plans(variant)]
    best = plans[0] if len(plans) == 1 else min(plans, key=lambda plan: _cost(plan, bits))
    return _described(best, bits)


class _Plan(NamedTuple):
    """Which numbers (tallies) to count for some rows.

    groups: each gets a counter of its own; words: those that share one of 32 bits, for each such counter. Rows that
    every thread executes once need none: they are constants of the formulas.
    """

    rows: Sequence[Row]
    groups: Sequence[_Tally]
    words: Sequence[Sequence[_Tally]]


def _plans(rows: Sequence[Row]) -> Iterable[_Plan]:
    """Generate the ways to count worth comparing, given the constants that each row (a stretch of instructions) adds to
    sums.

    Rows that no thread executes twice can share words, since their numbers stay small; the others need counters of
    their own. A plan is either that, or adds rows of the first kind to the counters of the second.
    """
    once = {number: row for number, row in enumerate(rows) if row.once and not row.always and row.amounts}
    often = {number: row for number, row in enumerate(rows) if not row.once and row.amounts}
    words = _fewest_words(once)
    if any(tally.width > _WORD for word in words for tally in word):
        # Too large for a word: counted as if they might be executed any number of times.
        often, once, words = often | once, {}, []
    groupings = [_by_rows(often)]
    # Numbers by sums are not used where amounts are negative: some would have to decrease. Else they are tried first,
    # and alone where they need fewer counters.
    if often and not any(row.subtracts for row in often.values()):
        by_sums = _undivided(_by_sums(often))
        groupings = [by_sums, *groupings] if len(groupings[0]) <= len(by_sums) else [by_sums]
    for groups in groupings:
        if groups and once:
            # Rows that run once may be added to the counters of the groups, if multiples of these give their amounts.
            absorbing = [replace(group, added=dict(group.added)) for group in groups]
            with_first_factor = [(group, *next(iter(group.factors.items()))) for group in absorbing]
            remaining = {
                number: row for number, row in once.items() if not _absorb(with_first_factor, number, row.amounts)
            }
            if len(remaining) < len(once):
                yield _Plan(rows, absorbing, _fewest_words(remaining))
        yield _Plan(rows, groups, words)


def _cost(plan: _Plan, bits: Mapping[Hashable, int]) -> tuple[int, int]:
    """The cost of a plan for counting, for comparisons: registers of 32 bits, then instructions that add to them. bits:
    by sum, its width, 32 or 64."""
    registers = sum(_group_bits(group, bits) // _WORD for group in plan.groups) + len(plan.words)
    additions = sum(len(group.added) for group in plan.groups)
    for word in plan.words:
        # One addition per row, whatever number of the word's tallies it adds to.
        additions += len(word[0].added if len(word) == 1 else {row for entry in word for row in entry.added})
    return registers, additions


def _group_bits(group: _Tally, bits: Mapping[Hashable, int]) -> int:
    """The width in bits that a counter needs: that of the widest sum that is computed from it. bits: by sum."""
    return max([bits[key] for key in group.factors])


def _without_taken(rows: Sequence[Row], forks: Iterable[Fork], *, below_zero: bool) -> list[Row]:
    """Return rows (constants that stretches of code add to sums) that give the same sums with nothing left to count on
    taken branches.

    The threads that take a branch are those that come to it less those that do not take it. So what a taken row adds is
    added in the row of those that come, and subtracted in the row of those that stay; the taken row becomes empty.

    forks: the rows around each branch. below_zero: do so even where it makes an amount of a row negative.
    """
    changed: dict[int, dict[Hashable, int]] = {}

    def amounts(number: int) -> dict[Hashable, int]:
        """The amounts of the row with a number, as a copy that may be changed."""
        if number not in changed:
            changed[number] = dict(rows[number].amounts)
        return changed[number]

    for come, take, stay in forks:
        taken, staying = amounts(take), amounts(stay)
        # A row that always runs is no counter but a constant, which may be negative.
        if not (below_zero or rows[stay].always or all(staying.get(key, 0) >= taken[key] for key in taken)):
            continue
        changed[take] = {}
        coming, staying = amounts(come), amounts(stay)
        for key, amount in taken.items():
            coming[key] = coming.get(key, 0) + amount
            staying[key] = staying.get(key, 0) - amount
    # Unchanged rows stay the same objects; in the others amounts may have become zero, which rows do not hold.
    return [
        row if number not in changed
        else Row({key: amount for key, amount in changed[number].items() if amount}, row.once, row.always)
        for number, row in enumerate(rows)
    ]  # fmt: skip


@dataclass
class _Tally:
    """A number that each thread counts, to compute one or several sums from it.

    added: by row number, the amount that the row adds to it. factors: by sum, how many times the number is part of it.
    """

    added: dict[int, int] = field(default_factory=dict)
    factors: dict[Hashable, int] = field(default_factory=dict)

    @lazy
    def most(self) -> int:
        """The greatest value of this number in a thread that executes no row twice. Ask for it when all that is added
        is known."""
        return sum(self.added.values())

    @lazy
    def width(self) -> int:
        """How many bits hold this number added up over the lanes of a warp, if no thread executes a row twice. Ask for
        it when all is added."""
        return (self.most * WARP_LANES).bit_length()


def _described(plan: _Plan, bits: Mapping[Hashable, int]) -> CounterPlan:
    """Spell out a plan for counting: the counter registers, what each row (a stretch of code) adds to them, and each
    sum's formula.

    bits: by sum, its width, 32 or 64.
    """
    rows, groups, words = plan
    counters: list[Counter] = []
    # By row, the amounts by counter.
    adds: list[dict[int, int]] = [{} for _ in rows]
    terms: dict[Hashable, list[FormulaTerm]] = {}
    constants: dict[Hashable, int] = {}
    for row in rows:
        if row.always:
            for key, amount in row.amounts.items():
                constants[key] = constants.get(key, 0) + amount
    for group in groups:
        width = _group_bits(group, bits)
        for number, amount in group.added.items():
            # The counter wraps around; what branches take from rows and add to others may be more than it holds.
            if amount % (1 << width):
                adds[number][len(counters)] = amount % (1 << width)
        for key, factor in group.factors.items():
            terms.setdefault(key, []).append(FormulaTerm(len(counters), 0, 0, factor, None))
        counters.append(Counter(width, packed=False))
    for word in words:
        # The numbers of a word are packed side by side into one register.
        shift = 0
        for entry in word:
            # One addition of a row to the word adds to each of its numbers, since none overflows into the next.
            for number, amount in entry.added.items():
                adds[number][len(counters)] = adds[number].get(len(counters), 0) + (amount << shift)
            # The last one has all upper bits, so that it need not be masked.
            width = 0 if entry is word[-1] else entry.width
            for key, factor in entry.factors.items():
                terms.setdefault(key, []).append(FormulaTerm(len(counters), shift, width, factor, entry.most))
            shift += entry.width
        counters.append(Counter(_WORD, packed=True))
    formulas = {key: SumFormula(constants.get(key, 0), tuple(terms.get(key, ()))) for key in {**constants, **terms}}
    return CounterPlan(tuple(counters), tuple(tuple(added.items()) for added in adds), formulas)


def _fewest_words(once: Mapping[int, Row]) -> list[list[_Tally]]:
    """Choose what a thread counts, so that all sums follow from it and it takes the fewest registers of 32 bits.

    Say block A of the code adds 1 to loads and 4 to bytes, and block B adds 1 to loads. A thread can count by rows
    (how often it was in A, and in B) or by sums (loads and bytes themselves); several counts share a register, as bit
    fields. once: by number, the rows: what each block adds to each sum. A thread executes each at most once. Returns
    the counts in each register.
    """
    if not once:
        return []
    by_rows = _by_rows(once)
    # Numbers by sums would have to decrease, and could then change the others in their word.
    if any(row.subtracts for row in once.values()):
        return _in_words(by_rows)
    by_sums = _by_sums(once)
    undivided = _undivided(by_sums)
    choices = [undivided, by_sums] if undivided != by_sums else [by_sums]
    if len(by_rows) <= _MOST_PACKED:
        choices.append(by_rows)
    return min(map(_in_words, choices), key=_packing_cost) if len(choices) > 1 else _in_words(by_sums)


def _in_words(small: Sequence[_Tally]) -> list[list[_Tally]]:
    """Pack small numbers (bit fields) into words of 32 bits by first fit, the widest first. Returns the numbers of each
    word."""
    words: list[list[_Tally]] = []
    # Bits in use, by word.
    used_bits: list[int] = []
    for entry in sorted(small, key=lambda tally: -tally.width):
        width = entry.width
        for number, used in enumerate(used_bits):
            if used + width <= _WORD:
                words[number].append(entry)
                used_bits[number] += width
                break
        else:
            words.append([entry])
            used_bits.append(width)
    return words


def _packing_cost(words: Sequence[Sequence[_Tally]]) -> tuple[bool, int, int, int]:
    """The cost of one way to pack numbers into words of 32 bits, to compare it with other ways.

    First, whether any number is too wide for a word, then how many words, multiplications and numbers there are. words:
    the numbers that share each word, the widest first.
    """
    has_too_wide = any(word[0].width > _WORD for word in words)
    return (
        has_too_wide,
        len(words),
        sum(factor != 1 for word in words for entry in word for factor in entry.factors.values()),
        sum(map(len, words)),
    )


def _by_rows(rows: Mapping[int, Row]) -> list[_Tally]:
    """Choose the numbers to count: one for each set of rows (constants that code adds to sums) that are multiples of
    one another.

    Of the rows {a: 2, b: 4} and {a: 3, b: 6} the number gets 2 and 3, and is once part of the sum a and twice of b.
    """
    by_proportion: dict[frozenset[tuple[Hashable, int]], _Tally] = {}
    for number, row in rows.items():
        common = gcd(*row.amounts.values())
        factors = row.amounts if common == 1 else {key: amount // common for key, amount in row.amounts.items()}
        proportion = frozenset(factors.items())
        tally = by_proportion.get(proportion)
        if tally is None:
            tally = by_proportion[proportion] = _Tally(factors=dict(factors))
        tally.added[number] = common
    return list(by_proportion.values())


def _by_sums(rows: Mapping[int, Row]) -> list[_Tally]:
    """Choose the numbers to count: one for each set of sums that all rows (constants that code adds) add to in the same
    proportion.

    With a and b in the rows {a: 2, b: 4} and {a: 3, b: 6} the number gets 2 and 3, and is once part of a and twice of
    b.
    """
    columns: dict[Hashable, dict[int, int]] = {}
    for number, row in rows.items():
        for key, amount in row.amounts.items():
            columns.setdefault(key, {})[number] = amount
    by_proportion: dict[tuple[tuple[int, int], ...], _Tally] = {}
    for key, column in columns.items():
        common = gcd(*column.values())
        added = {number: amount // common for number, amount in column.items()}
        # As a tuple, since columns are gathered in the order of rows.
        by_proportion.setdefault(tuple(added.items()), _Tally(added=added)).factors[key] = common
    return list(by_proportion.values())


def _undivided(groups: Iterable[_Tally]) -> list[_Tally]:
    """Scale counted numbers so that the sum with the smallest factor is the number itself, which saves a
    multiplication.

    Each is scaled only if that factor divides the others and is small. For a sum of bytes, a counter of 4-byte accesses
    counts by 4 with the factor 1, instead of by 1 with the factor 4.
    """
    results = []
    for group in groups:
        least = min(group.factors.values())
        if 1 < least < _MOST_UNDIVIDED and not any(factor % least for factor in group.factors.values()):
            added = {number: amount * least for number, amount in group.added.items()}
            group = _Tally(added, {key: factor // least for key, factor in group.factors.items()})
        results.append(group)
    return results


def _absorb(groups: Sequence[tuple[_Tally, Hashable, int]], number: int, amounts: Mapping[Hashable, int]) -> bool:
    """Try to count a row in counters that exist already, rather than in one of its own. Returns whether that is
    possible.

    It is if multiples of the groups (numbers with a counter each) give exactly the row's amounts; the multiples are put
    into the ``added`` of the groups. groups: each with the first sum of its factors, and the factor of that. number,
    amounts: of the row.
    """
    remaining = dict(amounts)
    chosen: list[tuple[_Tally, int]] = []
    for group, first_key, first_factor in groups:
        if first_key not in remaining:
            continue
        times, rest = divmod(remaining[first_key], first_factor)
        # The amount is no positive multiple of the factor.
        if rest or times <= 0:
            continue
        if all(remaining.get(key, 0) == times * factor for key, factor in group.factors.items()):
            chosen.append((group, times))
            for key in group.factors:
                del remaining[key]
    if remaining:
        return False
    for group, times in chosen:
        group.added[number] = times
    return True
