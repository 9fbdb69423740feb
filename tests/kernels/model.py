"""One kernel, one launch, and what must come out of it."""

from __future__ import annotations

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

    def mismatch(self, got: Array) -> str:
        """What is wrong with ``got``, of the same shape and type, in words; empty when nothing is."""
        want, have = np.atleast_1d(self.array), np.atleast_1d(got)
        if self.unordered:
            want, have = np.sort(want, axis=None), np.sort(have, axis=None)
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
