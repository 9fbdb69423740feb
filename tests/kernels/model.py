"""One kernel, one launch, and what must come out of it."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures" / "kernels"
POISON = 0xA5
"""Every byte of an output before the launch, so that an element that nobody writes is seen."""


@dataclass(frozen=True)
class Expected:
    """What an argument's array holds after the launch.

    exact: bit for bit, NaN included. Else |got - array| <= atol + rtol * |array|, element by element.
    unordered: the same values in any order, which the order of the atomics decides.
    """

    array: Array
    exact: bool = True
    rtol: float = 0.0
    atol: float = 0.0
    unordered: bool = False

    def canonical(self, array: Array) -> Array:
        """The array, sorted where its order means nothing: what two right results have in common."""
        return np.sort(array, axis=None) if self.unordered else np.atleast_1d(array)

    def mismatch(self, got: Array) -> str:
        """What is wrong with ``got``, of the same shape and type, in words; empty when nothing is."""
        want, have = self.canonical(self.array), self.canonical(got)
        if self.exact:
            words = f"u{want.dtype.itemsize}"
            bad = np.ascontiguousarray(want).view(words) != np.ascontiguousarray(have).view(words)
        else:
            bad = ~np.isclose(have.astype(np.float64), want.astype(np.float64), rtol=self.rtol, atol=self.atol)
        if not bad.any():
            return ""
        first = tuple(int(place[0]) for place in np.nonzero(bad))
        return f"{bad.sum()} of {bad.size} differ, first at {first}: {have[first]!r}, expected {want[first]!r}"


@dataclass(frozen=True)
class Case:
    """One launch of one kernel.

    kernel: the entry's name in the PTX at ``path``. arguments: arrays go by pointer, in and out; NumPy scalars by
    value, as wide as their parameters; bytes are a parameter that is a struct. expected: by the argument's place;
    arrays that it leaves out stay as they are. shared: bytes of dynamic shared memory. constants: module variables to
    write before the launch. schedules_agree: False where the order in which warps run shows in the results.
    """

    name: str
    path: Path
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[Array | np.generic | bytes, ...]
    expected: Mapping[int, Expected]
    shared: int = 0
    constants: Mapping[str, Array] = field(default_factory=dict)
    schedules_agree: bool = True
    tags: frozenset[str] = frozenset()

    @property
    def exact(self) -> bool:
        """Whether every result is known to the bit."""
        return all(expected.exact for expected in self.expected.values())

    def digest(self) -> str:
        """SHA-256, in hex, of the PTX and of all that goes into the launch: results kept elsewhere belong to it."""
        digest = hashlib.sha256(self.path.read_bytes())
        digest.update(repr((self.kernel, self.grid, self.block, self.shared)).encode())
        for value in (*self.arguments, *self.constants.values()):
            digest.update(value if isinstance(value, bytes) else np.ascontiguousarray(value).tobytes())
        return digest.hexdigest()

    def mismatches(self, results: Mapping[int, Array]) -> list[str]:
        """What is wrong after a launch, in words. results: every array argument's contents, by its place."""
        wrong = []
        for place, argument in enumerate(self.arguments):
            if isinstance(argument, np.ndarray):
                said = self.expected.get(place, Expected(argument)).mismatch(results[place])
                if said:
                    wrong.append(f"{self.name}: argument {place}: {said}")
        return wrong


def seeded(name: str) -> np.random.Generator:
    """The generator of one case's inputs, the same on every machine."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def blank(shape: int | tuple[int, ...], dtype: Any) -> Array:
    """An output before the launch: POISON throughout."""
    array = np.empty(shape, dtype)
    array.reshape(-1).view(np.uint8)[:] = POISON
    return array
