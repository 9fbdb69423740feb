"""Where values of probes are, and what their code is written with: text, and registers for a while.

Values of 8 and 16 bits are in a word of their own, extended by the sign of their type, others by zeros. A predicate is
a ``Mask`` whose bits are 0 in lanes that are not active (EXEC) where it was computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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

    def __init__(self, machine: Machine, scalars: Iterable[int], vectors: Iterable[int], labels: str = "") -> None:
        """labels: what the names of labels begin with, besides ``.L``."""
        self.machine = machine
        self.lines: list[str] = []
        self.changes_mode = False
        self._free: dict[type[Place], set[int]] = {Scalar: set(scalars), Vector: set(vectors)}
        self._used: dict[type[Place], set[int]] = {Scalar: set(), Vector: set()}
        self._pinned: dict[type[Place], set[int]] = {Scalar: set(), Vector: set()}
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
        self._pinned[kind].update(numbers)

    def release(self, *places: Place) -> None:
        """Give registers back, so that later code of the snippet may take them."""
        for place in places:
            kind, numbers = _numbers(place)
            self._free[kind].update(numbers)
            self._pinned[kind].difference_update(numbers)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Give back all registers at the end that have been taken meanwhile, but for those that are pinned."""
        before = {kind: set(numbers) for kind, numbers in self._free.items()}
        yield
        for kind, numbers in before.items():
            self._free[kind] |= numbers - self._pinned[kind]

    @property
    def scalars_used(self) -> frozenset[int]:
        """The numbers of the SGPRs that the snippet has taken, those included that it has given back."""
        return frozenset(self._used[Scalar])

    @property
    def vectors_used(self) -> frozenset[int]:
        """The numbers of the VGPRs that the snippet has taken, those included that it has given back."""
        return frozenset(self._used[Vector])

    def _take(self, kind: type[Place], words: int, *, is_even: bool) -> int:
        """Take free registers in a row and return the number of the first one.

        kind: ``Scalar`` for SGPRs, ``Vector`` for VGPRs. is_even: whether that number must be even. Raises
        NoRegistersError.
        """
        free = self._free[kind]
        for first in sorted(free):
            numbers = range(first, first + words)
            if (not is_even or first % 2 == 0) and free.issuperset(numbers):
                free.difference_update(numbers)
                self._used[kind].update(numbers)
                return first
        name = "scalar" if kind is Scalar else "vector"
        raise NoRegistersError(f"no {words} {name} register{'s' if words > 1 else ''} in a row are left for a probe")


def _numbers(place: Place) -> tuple[type[Place], range]:
    """Return of which kind registers are, ``Scalar`` or ``Vector``, and their numbers."""
    kind: type[Place] = Vector if isinstance(place, Vector) else Scalar
    return kind, range(place.first, place.first + place.words)


def _text(kind: str, first: int, words: int) -> str:
    """Return registers in a row as assembly names them: ``s4``, or ``s[4:5]`` for two."""
    return f"{kind}{first}" if words == 1 else f"{kind}[{first}:{first + words - 1}]"
