"""Where the instructions of a function are when code is inserted, and the detours of branches that no longer reach.

A branch leads 128 KiB away at most. Where its target is farther, it leads to a branch that is inserted on the way, an
island, which leads on. What runs past an island jumps over it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from neutrino.gcn.code import ENDS, Function, is_call
from neutrino.gcn.llvm import WORD

FARTHEST = 1 << 15
"""Words that a branch leads back at most, one more than forward."""
_MARGIN = 1 << 9
"""Words less than that to a new island: others may yet come in between."""
_MOST_ROUNDS = 50
SHORT = (FARTHEST - 1) * WORD
"""Bytes of code in which each branch reaches."""
_LEAVES = frozenset({*ENDS, "s_setpc_b64", "s_branch"})
"""Mnemonics of what does not run on to the next instruction."""
_SOPP, _SOPP_SHIFT, _SOPP_CODE = 0x17F, 7, 0x7F
"""The upper 9 bits of instructions without operands, and the next 7, which say what it is."""
_FIRST_NEW_BRANCH, _OLD_BRANCH, _NEW_BRANCH = 32, 0xBF82, 0xBFA0
"""From gfx11 on branches have other numbers than before; the upper halves of ``s_branch``."""


class Target(NamedTuple):
    """What a branch leads to: an instruction, by its offset. is_ahead: in front of all that is inserted there."""

    offset: int
    is_ahead: bool


@dataclass(frozen=True, eq=False)
class Moved(Mapping[int, int]):
    """Where something of each instruction is when code is inserted, by its offset; of the end of the code, too.

    offsets: of all of them, ascending. begins: of those that something is inserted in front of, ascending. shifts: how
    much is inserted up to each of these, from 0 in front of the first one on. is_ahead: whether it is asked where that
    begins which is inserted there, else where that ends. less: by an offset, bytes by which it is less than that.
    """

    offsets: Sequence[int]
    begins: Sequence[int]
    shifts: Sequence[int]
    is_ahead: bool = False
    less: Mapping[int, int] = field(default_factory=dict)

    def __getitem__(self, offset: int) -> int:
        """Return where it is of the instruction at an offset. Raises KeyError where none begins."""
        index = bisect_left(self.offsets, offset)
        if index == len(self.offsets) or self.offsets[index] != offset:
            raise KeyError(offset)
        find = bisect_left if self.is_ahead else bisect_right
        return offset + self.shifts[find(self.begins, offset)] - self.less.get(offset, 0)

    def __iter__(self) -> Iterator[int]:
        """Yield the offsets."""
        return iter(self.offsets)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.offsets)


@dataclass
class Layout:
    """Where instructions are. moved: by their offsets in the original; the original's size leads to where the last one
    ends. labels: likewise, where what branches to them leads. ahead: where what is inserted there begins. islands:
    places of inserted branches, by the instruction that they are in front of and what they lead to. passed: of these
    instructions, those whose islands are jumped over. size: of the code, in bytes."""

    moved: Mapping[int, int]
    labels: Mapping[int, int]
    ahead: Mapping[int, int]
    islands: dict[int, dict[Target, int]] = field(default_factory=dict)
    passed: set[int] = field(default_factory=set)
    size: int = 0
    _ways: dict[Target, list[int]] = field(default_factory=dict)
    """The islands' places, by what they lead to, in the order of the code."""

    def island_size(self, offset: int) -> int:
        """Return the bytes of the islands in front of an instruction, with the branch past them."""
        row = self.islands.get(offset)
        return 0 if row is None else WORD * (len(row) + (offset in self.passed))

    def add_island(self, before: int, target: Target, at: int) -> None:
        """Add an island. before: the instruction that it is in front of; of several, in the order of the code."""
        self.islands[before][target] = at
        self._ways.setdefault(target, []).append(at)

    def ways_to(self, target: Target) -> Sequence[int]:
        """Return the places of the islands that lead to a target."""
        return self._ways.get(target, ())

    def place(self, target: Target) -> int:
        """Return where a target is."""
        return (self.ahead if target.is_ahead else self.labels)[target.offset]


def reaches(end: int, to: int) -> bool:
    """Return whether a branch can lead to a place. end: of the branch itself, in bytes."""
    return -FARTHEST <= (to - end) // WORD < FARTHEST


def laid_out(
    function: Function, sizes: Mapping[int, Sequence[tuple[int, bool]]], header: int, closed: set[int]
) -> Layout:
    """Return where instructions are, with the islands that branches need.

    sizes: of what is inserted in front of each instruction, by its offset, and whether that is ahead of its label; in
    order. header: bytes at the beginning that keep their place. closed: offsets of instructions that nothing goes in
    front of. Where no islands help, there are none.
    """
    without = _without_islands(function, sizes)
    if without.size <= SHORT:
        return without
    # Asked for each instruction, tables are faster.
    layout = _layout(function, sizes, {})
    branches = [
        (row.offset, row.size, Target(row.target, row.offset < header)) for row in function.instructions.branches
        if row.target is not None and not is_call(row)
    ]  # fmt: skip
    open_places = [row.offset for row in function.instructions if row.offset > header and row.offset not in closed]
    islands: dict[int, list[Target]] = {}
    for _ in range(_MOST_ROUNDS):
        wanted = list(_wanted(layout, branches, open_places))
        if not wanted:
            return layout
        for offset, target in wanted:
            if target not in islands.setdefault(offset, []):
                islands[offset].append(target)
        layout = _layout(function, sizes, islands)
    return without


def _without_islands(function: Function, sizes: Mapping[int, Sequence[tuple[int, bool]]]) -> Layout:
    """Return where instructions are without islands."""
    size = len(function.code)
    offsets = [*function.instructions.offsets, size]
    begins = sorted(sizes)
    lengths = [sum(length for length, _ in sizes[begin]) for begin in begins]
    shifts = [0, *accumulate(lengths)]
    less = {begin: sum(length for length, is_ahead in sizes[begin] if is_ahead) for begin in begins}
    return Layout(
        Moved(offsets, begins, shifts), Moved(offsets, begins, shifts, less=less),
        Moved(offsets, begins, shifts, is_ahead=True), size=size + shifts[-1],
    )  # fmt: skip


def _wanted(
    layout: Layout, branches: Sequence[tuple[int, int, Target]], open_places: Sequence[int]
) -> Iterator[tuple[int, Target]]:
    """Yield where islands are still to be put, and what they are to lead to.

    branches: offset, size and target of each. open_places: offsets of the instructions that islands may be in front of.
    """
    places = [layout.ahead[offset] for offset in open_places]
    ends = [(layout.moved[offset] + size, target) for offset, size, target in branches]
    ends += [(at + WORD, target) for row in layout.islands.values() for target, at in row.items()]
    away = (FARTHEST - _MARGIN) * WORD
    for is_forward in (True, False):
        last: dict[Target, int] = {}
        # The farthest first, so that those on its way can go by the same island.
        for end, target in sorted(ends, key=lambda row: row[0], reverse=not is_forward):
            to = layout.place(target)
            if (to > end) is not is_forward or next_place(layout, end, target) is not None:
                continue
            if target in last and abs(last[target] - end) <= away:
                continue
            index = bisect_right(places, end + away) - 1 if is_forward else bisect_left(places, end - away)
            if 0 <= index < len(places) and (places[index] > end if is_forward else places[index] < end - WORD):
                last[target] = places[index]
                yield open_places[index], target


def next_place(layout: Layout, end: int, target: Target) -> int | None:
    """Return where a branch leads to get to a target: there, or to an island; None if it reaches neither. end: its
    own."""
    to = layout.place(target)
    if reaches(end, to):
        return to
    nearer = [way for way in layout.ways_to(target) if reaches(end, way) and abs(to - way) < abs(to - end) - WORD]
    return min(nearer, key=lambda way: abs(to - way), default=None)


def _layout(
    function: Function, sizes: Mapping[int, Sequence[tuple[int, bool]]], islands: Mapping[int, Sequence[Target]]
) -> Layout:
    """Return where instructions are. islands: what is led to by those in front of each instruction."""
    rows, size = function.instructions, len(function.code)
    offsets = [*rows.offsets, size]
    leaving = set(rows.named(*_LEAVES))
    # In front of other instructions there is nothing: they stay where they are behind the one before them.
    begins = sorted({*sizes, *islands})
    at = [*offsets[: bisect_left(offsets, begins[0])]] if begins else offsets
    ahead: dict[int, int] = {}
    labels: dict[int, int] = {}
    layout = Layout({}, {}, {})
    shift = 0
    for begin, end in zip(begins, [*begins[1:], size + 1], strict=True):
        index = bisect_left(offsets, begin)
        if begin in islands:
            if index and index - 1 not in leaving:
                layout.passed.add(begin)
                shift += WORD
            layout.islands[begin] = {}
            for target in islands[begin]:
                layout.add_island(begin, target, begin + shift)
                shift += WORD
        ahead[begin] = labels[begin] = begin + shift
        for length, is_ahead in sizes.get(begin, ()):
            shift += length
            if not is_ahead:
                labels[begin] += length
        at += [offset + shift for offset in offsets[index : bisect_left(offsets, end)]]
    moved = dict(zip(offsets, at, strict=True))
    layout.moved, layout.labels, layout.ahead = moved, {**moved, **labels}, {**moved, **ahead}
    layout.size = size + shift
    return layout


def branch_word(function: Function, words: int) -> bytes:
    """Return ``s_branch``, as it is encoded for the function's processor. words: that it leads away."""
    upper = _OLD_BRANCH
    for row in function.instructions.branches:
        own = int.from_bytes(function.code[row.offset + 2 : row.offset + WORD], "little")
        if own >> _SOPP_SHIFT == _SOPP:
            upper = _NEW_BRANCH if own & _SOPP_CODE >= _FIRST_NEW_BRANCH else _OLD_BRANCH
            break
    return (upper << 16 | words & 0xFFFF).to_bytes(WORD, "little")
