"""Which numbers to keep so that sums of constants come out at the end of a thread.

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

from neutrino.ptx.isa.scalars import WARP_LANES

_WORD = 32
_MOST_SMALL = 64
"""With more numbers than that, packing them into few words is not tried."""
_MOST_WHOLE = 256
"""Counters stay small for long where what they count by is below that."""


class Row(NamedTuple):
    """What one run adds, by sum; no zeros. once: no thread executes it twice; always: every thread that ends has."""

    amounts: Mapping[Hashable, int]
    once: bool
    always: bool

    @property
    def has_negative(self) -> bool:
        """Some amount is below zero."""
        return min(self.amounts.values(), default=0) < 0


class Fork(NamedTuple):
    """Rows, by their numbers, of threads that come to a branch, of those that take it and of those that do not."""

    come: int
    take: int
    stay: int


@dataclass(frozen=True)
class Counter:
    """A register. bits: 32 or 64. packed: it holds small numbers, and fits 32 bits when added up over a warp."""

    bits: int
    packed: bool


@dataclass(frozen=True)
class Part:
    """A number of a counter, times a factor. width: how many bits from shift on, 0 for all of them.

    most: what it is at most in a thread; None for what has no bound.
    """

    counter: int
    shift: int
    width: int
    factor: int
    most: int | None


@dataclass(frozen=True)
class Form:
    """What a sum is in each thread that ends: a constant and the parts. Some may be negative, all together are not."""

    constant: int = 0
    parts: tuple[Part, ...] = ()

    @property
    def most(self) -> int | None:
        """What it is at most; None without a bound."""
        total = self.constant
        for part in self.parts:
            if part.most is None:
                return None
            total += part.most * max(part.factor, 0)
        return total


@dataclass(frozen=True)
class Tallies:
    """counters: the registers; adds: by row, what is added to which; forms: what each sum is."""

    counters: tuple[Counter, ...]
    adds: tuple[tuple[tuple[int, int], ...], ...]
    forms: Mapping[Hashable, Form]


def plan_tallies(rows: Sequence[Row], bits: Mapping[Hashable, int], forks: Sequence[Fork] = ()) -> Tallies:
    """The cheapest that is known. bits: 32 or 64 by sum."""
    if all(row.always for row in rows):
        return _tallies(_Plan(rows, [], []), bits)
    kinds = [rows]
    if forks:
        kinds = [_without_taken(rows, forks, below_zero=False)]
        below_zero = _without_taken(rows, forks, below_zero=True)
        kinds += [below_zero, rows] if below_zero != kinds[0] else []
    plans = [plan for kind in kinds for plan in _plans(kind)]
    best = plans[0] if len(plans) == 1 else min(plans, key=lambda plan: _cost(plan, bits))
    return _tallies(best, bits)


class _Plan(NamedTuple):
    """Wide counters for the groups, shared words for what is small; constants for what every thread executes."""

    rows: Sequence[Row]
    groups: Sequence[_Small]
    small: Sequence[_Small]


def _plans(rows: Sequence[Row]) -> Iterable[_Plan]:
    """What is worth a look for rows as they are."""
    once = {number: row for number, row in enumerate(rows) if row.once and not row.always and row.amounts}
    often = {number: row for number, row in enumerate(rows) if not row.once and row.amounts}
    small = _smallest(once)
    if any(entry.width > _WORD for entry in small):
        # Too large for a word: counted as if they might be more.
        often, once, small = often | once, {}, []
    ways = [_by_rows(often)]
    if often and not any(row.has_negative for row in often.values()):
        by_sums = _whole(_by_sums(often))
        ways = [by_sums, *ways] if len(ways[0]) <= len(by_sums) else [by_sums]
    for groups in ways:
        if groups and once:
            absorbing = [replace(group, added=dict(group.added)) for group in groups]
            firsts = [(group, *next(iter(group.factors.items()))) for group in absorbing]
            left = {number: row for number, row in once.items() if not _tell(firsts, number, row.amounts)}
            if len(left) < len(once):
                yield _Plan(rows, absorbing, _smallest(left))
        yield _Plan(rows, groups, small)


def _cost(plan: _Plan, bits: Mapping[Hashable, int]) -> tuple[int, int]:
    """Registers of 32 bits, then additions."""
    words = _in_words(plan.small)
    registers = sum(_group_bits(group, bits) // _WORD for group in plan.groups) + len(words)
    additions = sum(len(group.added) for group in plan.groups)
    for word in words:
        additions += len(word[0].added if len(word) == 1 else {row for entry in word for row in entry.added})
    return registers, additions


def _group_bits(group: _Small, bits: Mapping[Hashable, int]) -> int:
    """Bits of the counter of a group."""
    return max([bits[key] for key in group.factors])


def _without_taken(rows: Sequence[Row], forks: Iterable[Fork], *, below_zero: bool) -> list[Row]:
    """The same sums from fewer rows: those that take a branch are those that come to it, less those that stay.

    below_zero: where that makes a row negative, too.
    """
    changed: dict[int, dict[Hashable, int]] = {}

    def amounts(number: int) -> dict[Hashable, int]:
        if number not in changed:
            changed[number] = dict(rows[number].amounts)
        return changed[number]

    for come, take, stay in forks:
        taken, staying = amounts(take), amounts(stay)
        if not (below_zero or rows[stay].always or all(staying.get(key, 0) >= taken[key] for key in taken)):
            continue
        changed[take] = {}
        coming, staying = amounts(come), amounts(stay)
        for key, amount in taken.items():
            coming[key] = coming.get(key, 0) + amount
            staying[key] = staying.get(key, 0) - amount
    return [
        row if number not in changed
        else Row({key: amount for key, amount in changed[number].items() if amount}, row.once, row.always)
        for number, row in enumerate(rows)
    ]  # fmt: skip


@dataclass
class _Small:
    """Numbers for words that several share: what each row adds, and which sums have it, times what."""

    added: dict[int, int] = field(default_factory=dict)
    factors: dict[Hashable, int] = field(default_factory=dict)

    @property
    def most(self) -> int:
        return sum(self.added.values())

    @property
    def width(self) -> int:
        """Bits of its sum over a warp."""
        return (self.most * WARP_LANES).bit_length()


def _tallies(plan: _Plan, bits: Mapping[Hashable, int]) -> Tallies:
    """What a plan comes to."""
    rows, groups, small = plan
    counters: list[Counter] = []
    adds: list[dict[int, int]] = [{} for _ in rows]
    parts: dict[Hashable, list[Part]] = {}
    constants: dict[Hashable, int] = {}
    for row in rows:
        if row.always:
            for key, amount in row.amounts.items():
                constants[key] = constants.get(key, 0) + amount
    for group in groups:
        for number, amount in group.added.items():
            adds[number][len(counters)] = amount
        for key, factor in group.factors.items():
            parts.setdefault(key, []).append(Part(len(counters), 0, 0, factor, None))
        counters.append(Counter(_group_bits(group, bits), False))
    for word in _in_words(small):
        shift = 0
        for entry in word:
            for number, amount in entry.added.items():
                adds[number][len(counters)] = adds[number].get(len(counters), 0) + (amount << shift)
            width = 0 if entry is word[-1] else entry.width
            for key, factor in entry.factors.items():
                parts.setdefault(key, []).append(Part(len(counters), shift, width, factor, entry.most))
            shift += entry.width
        counters.append(Counter(_WORD, True))
    forms = {key: Form(constants.get(key, 0), tuple(parts.get(key, ()))) for key in {**constants, **parts}}
    return Tallies(tuple(counters), tuple(tuple(added.items()) for added in adds), forms)


def _smallest(once: Mapping[int, Row]) -> list[_Small]:
    """The way that needs the fewest words for what runs once at most."""
    if not once:
        return []
    by_rows = _by_rows(once)
    if any(row.has_negative for row in once.values()):
        return by_rows
    by_sums = _by_sums(once)
    ways = [_whole(by_sums), by_sums]
    return min([*ways, by_rows] if len(by_rows) <= _MOST_SMALL else ways, key=_words)


def _in_words(small: Sequence[_Small]) -> list[list[_Small]]:
    """The first word that has room takes it, the widest first."""
    words: list[list[_Small]] = []
    taken: list[int] = []
    for width, entry in sorted(((entry.width, entry) for entry in small), key=lambda known: -known[0]):
        for number, used in enumerate(taken):
            if used + width <= _WORD:
                words[number].append(entry)
                taken[number] += width
                break
        else:
            words.append([entry])
            taken.append(width)
    return words


def _words(small: Sequence[_Small]) -> tuple[bool, int, int, int]:
    """What is better: nothing too wide, fewer words, fewer multiplications, fewer numbers."""
    return (
        any(entry.width > _WORD for entry in small),
        len(_in_words(small)),
        sum(factor != 1 for entry in small for factor in entry.factors.values()),
        len(small),
    )


def _by_rows(rows: Mapping[int, Row]) -> list[_Small]:
    """A number for each proportion that rows have."""
    found: dict[frozenset[tuple[Hashable, int]], _Small] = {}
    for number, row in rows.items():
        common = gcd(*row.amounts.values())
        factors = row.amounts if common == 1 else {key: amount // common for key, amount in row.amounts.items()}
        proportion = frozenset(factors.items())
        group = found.get(proportion)
        if group is None:
            group = found[proportion] = _Small(factors=dict(factors))
        group.added[number] = common
    return list(found.values())


def _by_sums(rows: Mapping[int, Row]) -> list[_Small]:
    """A number for each proportion in which sums grow."""
    columns: dict[Hashable, dict[int, int]] = {}
    for number, row in rows.items():
        for key, amount in row.amounts.items():
            columns.setdefault(key, {})[number] = amount
    found: dict[tuple[tuple[int, int], ...], _Small] = {}
    for key, column in columns.items():
        common = gcd(*column.values())
        added = {number: amount // common for number, amount in column.items()}
        found.setdefault(tuple(added.items()), _Small(added=added)).factors[key] = common
    return list(found.values())


def _whole(groups: Iterable[_Small]) -> list[_Small]:
    """The same numbers, each one of its sums where it can be."""
    found = []
    for group in groups:
        least = min(group.factors.values())
        if 1 < least < _MOST_WHOLE and not any(factor % least for factor in group.factors.values()):
            added = {number: amount * least for number, amount in group.added.items()}
            group = _Small(added, {key: factor // least for key, factor in group.factors.items()})
        found.append(group)
    return found


def _tell(
    groups: Sequence[tuple[_Small, Hashable, int]], number: int, amounts: Mapping[Hashable, int]
) -> bool:
    """Add a row to the groups that tell it exactly, if they do. groups: with the first of their factors."""
    left = dict(amounts)
    chosen: list[tuple[_Small, int]] = []
    for group, first, divisor in groups:
        if first not in left:
            continue
        times, over = divmod(left[first], divisor)
        if over or times <= 0:
            continue
        if all(left.get(key, 0) == times * factor for key, factor in group.factors.items()):
            chosen.append((group, times))
            for key in group.factors:
                del left[key]
    if left:
        return False
    for group, times in chosen:
        group.added[number] = times
    return True
