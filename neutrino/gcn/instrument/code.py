"""Where values of probes are, and what their code is written with: text, and registers for a while.

Values of 8 and 16 bits are in a word of their own, extended by the sign of their type, others by zeros. A predicate is
a ``Mask`` whose bits are 0 in lanes that are not active (EXEC) where it was computed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from neutrino.gcn.instrument.machine import Machine
from neutrino.ir.operands import Constant


class NoRegistersError(Exception):
    """A snippet needs more registers than are left; the message says which kind."""


@dataclass(frozen=True)
class Scalar:
    """A value in SGPRs, the same in all lanes. first: the number of the first one. words: how many, 1 or 2."""

    first: int
    words: int = 1

    @property
    def text(self) -> str:
        """As assembly names it: ``s4``, ``s[4:5]``."""
        return _text("s", self.first, self.words)

    def word(self, number: int) -> str:
        """Return the name of one of its registers, the lowest bits first."""
        return f"s{self.first + number}"


@dataclass(frozen=True)
class Mask(Scalar):
    """A set of lanes in SGPRs, a bit for each, in as many words as a wave has 32 lanes."""


@dataclass(frozen=True)
class Vector:
    """A value in VGPRs, one for each lane. first: the number of the first one. words: how many."""

    first: int
    words: int = 1

    @property
    def text(self) -> str:
        """As assembly names it: ``v4``, ``v[4:5]``."""
        return _text("v", self.first, self.words)

    def word(self, number: int) -> str:
        """Return the name of one of its registers, the lowest bits first."""
        return f"v{self.first + number}"


Place = Scalar | Mask | Vector
"""Registers that have a value."""
Value = Place | Constant
"""What an instruction of a probe reads."""


class Code:
    """Instructions of a snippet, as text, and the registers that it may use.

    They may change SCC and VCC, which whoever puts the snippet into a kernel saves where they are in use; EXEC and MODE
    only if they restore them; M0 never. machine: what they are for. scalars, vectors: the numbers of registers that are
    free there. changes_mode: whether floats are computed, for which the frame sets MODE around the snippet.
    """

    def __init__(
        self, machine: Machine, scalars: Iterable[int] | int, vectors: Iterable[int] | int, labels: str = ""
    ) -> None:
        """scalars, vectors: their numbers, or these as a set that has a bit for each. labels: what the names of labels
        begin with, besides ``.L``."""
        self.machine = machine
        self.lines: list[str] = []
        self.changes_mode = False
        # Sets of numbers, a bit for each: they change with nearly every instruction.
        self._free: dict[type[Place], int] = {Scalar: set_of(scalars), Vector: set_of(vectors)}
        self._used: dict[type[Place], int] = {Scalar: 0, Vector: 0}
        self._pinned: dict[type[Place], int] = {Scalar: 0, Vector: 0}
        self._labels = labels
        self._label_count = 0

    def emit(self, *lines: str) -> None:
        """Append lines of assembly, instructions or labels, to the snippet."""
        self.lines += lines

    def label(self) -> str:
        """Return the name of a new label, which ``emit(f"{name}:")`` puts somewhere."""
        self._label_count += 1
        return f".L{self._labels}{self._label_count}"

    def scalar(self, words: int = 1) -> Scalar:
        """Return free SGPRs; two begin at an even one. Raises NoRegistersError."""
        return Scalar(self._take(Scalar, words, is_even=words > 1), words)

    def mask(self) -> Mask:
        """Return free SGPRs for a set of lanes. Raises NoRegistersError."""
        words = self.machine.mask_words
        return Mask(self._take(Scalar, words, is_even=words > 1), words)

    def vector(self, words: int = 1) -> Vector:
        """Return free VGPRs, which follow each other; more than one begin at an even one where the processor wants it.
        Raises NoRegistersError."""
        return Vector(self._take(Vector, words, is_even=words > 1 and self.machine.aligns_vectors), words)

    def pin(self, place: Place) -> None:
        """Keep registers that have been taken beyond the end of a ``scope``, till they are released."""
        kind, numbers = _numbers(place)
        self._pinned[kind] |= numbers

    def release(self, *places: Place) -> None:
        """Give registers back, so that later code of the snippet may take them."""
        for place in places:
            kind, numbers = _numbers(place)
            self._free[kind] |= numbers
            self._pinned[kind] &= ~numbers

    def scope(self) -> _Scope:
        """Give back all registers at the end that have been taken meanwhile, but for those that are pinned."""
        return _Scope(self._free, self._pinned)

    @property
    def scalars_used(self) -> frozenset[int]:
        """The numbers of the SGPRs that the snippet has taken, those included that it has given back."""
        return _numbers_in(self._used[Scalar])

    @property
    def used(self) -> tuple[int, int]:
        """SGPRs and VGPRs that the snippet has taken, as sets that have a bit for each number."""
        return self._used[Scalar], self._used[Vector]

    @property
    def vectors_used(self) -> frozenset[int]:
        """The numbers of the VGPRs that the snippet has taken, those included that it has given back."""
        return _numbers_in(self._used[Vector])

    def _take(self, kind: type[Place], words: int, *, is_even: bool) -> int:
        """Take free registers in a row and return the number of the first one.

        kind: ``Scalar`` for SGPRs, ``Vector`` for VGPRs. is_even: whether that number must be even. Raises
        NoRegistersError.
        """
        # Of those that are free with the ones after them the lowest.
        beginnings = free = self._free[kind]
        for number in range(1, words):
            beginnings &= free >> number
        while beginnings:
            lowest = beginnings & -beginnings
            first = lowest.bit_length() - 1
            if is_even and first % 2:
                beginnings ^= lowest
                continue
            taken = (1 << words) - 1 << first
            self._free[kind] = free & ~taken
            self._used[kind] |= taken
            return first
        name = "scalar" if kind is Scalar else "vector"
        raise NoRegistersError(f"no {words} {name} register{'s' if words > 1 else ''} in a row are left for a probe")


class _Scope:
    """A ``with`` that gives registers back, unless it is left by an exception."""

    __slots__ = ("_before", "_free", "_pinned")

    def __init__(self, free: dict[type[Place], int], pinned: dict[type[Place], int]) -> None:
        """free, pinned: of the snippet."""
        self._free, self._pinned = free, pinned
        self._before: tuple[int, int]

    def __enter__(self) -> None:
        """Note which registers are free."""
        self._before = self._free[Scalar], self._free[Vector]

    def __exit__(self, kind: object, *_: object) -> None:
        """Give back those that were free, but for those that are pinned. kind: of an exception, None without one."""
        if kind is None:
            scalars, vectors = self._before
            self._free[Scalar] |= scalars & ~self._pinned[Scalar]
            self._free[Vector] |= vectors & ~self._pinned[Vector]


def _numbers(place: Place) -> tuple[type[Place], int]:
    """Return of which kind registers are, ``Scalar`` or ``Vector``, and their numbers as a set."""
    kind: type[Place] = Vector if isinstance(place, Vector) else Scalar
    return kind, (1 << place.words) - 1 << place.first


def set_of(numbers: Iterable[int] | int) -> int:
    """Return numbers as a set: a bit for each. They may be one already."""
    if isinstance(numbers, int):
        return numbers
    found = 0
    for number in numbers:
        found |= 1 << number
    return found


def _numbers_in(numbers: int) -> frozenset[int]:
    """Return the numbers in a set that has a bit for each."""
    found = []
    while numbers:
        lowest = numbers & -numbers
        found.append(lowest.bit_length() - 1)
        numbers ^= lowest
    return frozenset(found)


def _text(kind: str, first: int, words: int) -> str:
    """Return registers in a row as assembly names them: ``s4``, or ``s[4:5]`` for two."""
    return f"{kind}{first}" if words == 1 else f"{kind}[{first}:{first + words - 1}]"
