"""The element types of buffers: how elements of a PTX type are generated, encoded and decoded with NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# PTX type → NumPy type. A bf16, which NumPy does not have, is stored as the upper half of an f32.
_NUMPY: Mapping[str, str] = {
    "u8": "u1", "s8": "i1", "u16": "<u2", "s16": "<i2", "u32": "<u4", "s32": "<i4", "u64": "<u8", "s64": "<i8",
    "f16": "<f2", "bf16": "<u2", "f32": "<f4", "f64": "<f8",
}  # fmt: skip
NAMES = tuple(_NUMPY)
"""The types that a user may name."""


@dataclass(frozen=True)
class ElementType:
    """The type of a buffer's elements. name: one of ``NAMES``."""

    name: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type in which elements are stored."""
        return np.dtype(_NUMPY[self.name])

    @property
    def is_float(self) -> bool:
        """Whether elements are floating-point numbers."""
        return self.name in ("f16", "bf16", "f32", "f64")

    def encode(self, values: Array) -> Array:
        """Convert numbers to the bits of elements of this type, as an array of ``dtype``."""
        if self.name == "bf16":
            # The lower half of the f32 is cut off: rounded towards zero.
            return (values.astype("<f4").view("<u4") >> 16).astype("<u2")
        return values.astype(self.dtype)

    def decode(self, data: bytes) -> Array:
        """Return the elements in ``data`` as numbers to print. Bytes after the last whole element are ignored."""
        size = self.dtype.itemsize
        stored = np.frombuffer(data, self.dtype, len(data) // size)
        return (stored.astype("<u4") << 16).view("<f4") if self.name == "bf16" else stored

    def random(self, count: int, below: int, generator: np.random.Generator) -> Array:
        """Return ``count`` random elements: fractions from -1 to 1, or integers from 0 to ``below`` (exclusive)."""
        if self.is_float:
            return self.encode(generator.uniform(-1, 1, count))
        # Within the type, and at least 1, so that there is a number to choose: 0.
        limit = min(below, int(np.iinfo(self.dtype).max))
        return generator.integers(0, max(limit, 1), count, self.dtype)


def element_type(ptx: str) -> ElementType:
    """Return the element type of a PTX type; for one that is not in ``NAMES``, unsigned integers of the same size.

    ptx: without the dot. ``b32`` gives u32, and ``f16x2`` u16, the size of one of its two numbers. Types that have no
    size of 16, 32 or 64 bits, such as ``e4m3``, give u8.
    """
    if ptx in _NUMPY:
        return ElementType(ptx)
    # The number of bits: the digits before the ``x`` of a packed type.
    digits = "".join(character for character in ptx.partition("x")[0] if character.isdigit())
    return ElementType({"16": "u16", "32": "u32", "64": "u64"}.get(digits, "u8"))
