"""What a histogram's scale is: how it divides the numbers of a type into buckets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from neutrino.abi.scalars import ScalarType
from neutrino.ir.operands import Register
from neutrino.maps.builder import Builder
from neutrino.maps.declaration import MapTable

LINEAR_KEYS = ("low", "high", "step")
"""Keys of a map's table with a linear scale."""
MAX_BUCKETS = 4096
"""Buckets of a linear scale."""
MAX_EDGES = 64
"""Explicit edges: each save compares its value with all of them."""
SCALES = 'scale = "log2", or scale = "linear" with low, high and step, or edges = [10, 100, 1000]'
"""The hint where a scale is missing or wrong."""


class Scale(ABC):
    """Buckets have numbers from 0, ascending; together they hold all numbers of the type, which scalar is.

    name: in probe files and manifests. of_integers: each bucket is two integers and all between.
    """

    name: ClassVar[str]
    of_integers: ClassVar[bool]

    @classmethod
    def declared(cls, table: MapTable, scalar: ScalarType) -> Scale | None:
        """Read a histogram's scale from a map's table in a probe file; None if its options are invalid, which ``table``
        reports.

        scalar: the type of the values.
        """
        return cls()

    def options(self) -> dict[str, Any]:
        """Return the keys of the map's table in the probe file that declare this scale, with their values."""
        return {"scale": self.name}

    @abstractmethod
    def buckets(self, scalar: ScalarType) -> Sequence[tuple[float, float]]:
        """Return the least and the greatest number of each bucket of a histogram with this scale, ascending."""

    @abstractmethod
    def document(self, scalar: ScalarType) -> dict[str, Any]:
        """Return what a manifest has of the scale: the options, and the buckets unless these follow from the type."""

    def bucket_count(self, scalar: ScalarType) -> int:
        """Return how many buckets a histogram with this scale has."""
        return len(self.buckets(scalar))

    def number_of(self, value: int, scalar: ScalarType) -> int:
        """Return the number of the histogram bucket of a value that is known when code is written; only for scales of
        integers.

        scalar: the type of the values. Scales of floating-point numbers raise TypeError.
        """
        raise TypeError(f"{value} on a scale of {scalar.value}")

    @abstractmethod
    def write(self, code: Builder, value: Register, scalar: ScalarType) -> Register:
        """Append the code that finds a value's histogram bucket; return the register (u32) with its number.

        value: of 32 or 64 bits.
        """
