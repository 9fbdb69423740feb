"""Elements of a buffer: generated, read from a file, compared and shown, by their PTX type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# PTX type → NumPy's. bf16 is kept as its upper halves of f32; what NumPy lacks otherwise is bytes.
_NUMPY: Mapping[str, str] = {
    "u8": "u1", "s8": "i1", "u16": "<u2", "s16": "<i2", "u32": "<u4", "s32": "<i4", "u64": "<u8", "s64": "<i8",
    "f16": "<f2", "bf16": "<u2", "f32": "<f4", "f64": "<f8",
}  # fmt: skip
NAMES = tuple(_NUMPY)
"""The types that a user may name."""


@dataclass(frozen=True)
class ElementType:
    """One of ``NAMES``; what else PTX has (``e4m3`` …) becomes ``u8``, ``u16`` …"""

    name: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """How NumPy stores it."""
        return np.dtype(_NUMPY[self.name])

    @property
    def is_float(self) -> bool:
        """Whether it holds fractions."""
        return self.name in ("f16", "bf16", "f32", "f64")

    def encode(self, values: Array) -> Array:
        """Numbers as elements."""
        if self.name == "bf16":
            return (values.astype("<f4").view("<u4") >> 16).astype("<u2")
        return values.astype(self.dtype)

    def decode(self, data: bytes) -> Array:
        """Elements as numbers that can be printed; bytes after the last whole element are left out."""
        size = self.dtype.itemsize
        stored = np.frombuffer(data, self.dtype, len(data) // size)
        return (stored.astype("<u4") << 16).view("<f4") if self.name == "bf16" else stored

    def random(self, count: int, below: int, generator: np.random.Generator) -> Array:
        """Generated elements: fractions from -1 to 1, integers from 0 to less than below."""
        if self.is_float:
            return self.encode(generator.uniform(-1, 1, count))
        most = min(below, int(np.iinfo(self.dtype).max))
        return generator.integers(0, max(most, 1), count, self.dtype)


def element_type(ptx: str) -> ElementType:
    """The type by its PTX name, or integers of the same size for one without a NumPy type."""
    if ptx in _NUMPY:
        return ElementType(ptx)
    digits = "".join(character for character in ptx.partition("x")[0] if character.isdigit())
    return ElementType({"16": "u16", "32": "u32", "64": "u64"}.get(digits, "u8"))
