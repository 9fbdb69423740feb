"""The fundamental types of PTX (PTX ISA 5.2.1, 5.2.3) as NumPy types."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
"""An array with one element per thread; a NumPy scalar stands for the same value in every thread."""

DOUBLE_WORD = np.dtype([("x", "<u8"), ("y", "<u8")])
"""``.b128``: its low and its high half."""

PREDICATE = np.dtype(bool)

TYPES: dict[str, np.dtype[Any]] = {
    "b8": np.dtype("u1"),
    "u8": np.dtype("u1"),
    "s8": np.dtype("i1"),
    "b16": np.dtype("u2"),
    "u16": np.dtype("u2"),
    "s16": np.dtype("i2"),
    "f16": np.dtype("f2"),
    "bf16": np.dtype("u2"),
    "b32": np.dtype("u4"),
    "u32": np.dtype("u4"),
    "s32": np.dtype("i4"),
    "f32": np.dtype("f4"),
    "f16x2": np.dtype("u4"),
    "bf16x2": np.dtype("u4"),
    "tf32": np.dtype("u4"),
    "u16x2": np.dtype("u4"),
    "s16x2": np.dtype("u4"),
    "b64": np.dtype("u8"),
    "u64": np.dtype("u8"),
    "s64": np.dtype("i8"),
    "f64": np.dtype("f8"),
    "f32x2": np.dtype("u8"),
    "b128": DOUBLE_WORD,
    "pred": PREDICATE,
}

_POISON = 0xA5


def word(size: int) -> np.dtype[Any]:
    """Return the unsigned type of `size` bytes (1, 2, 4, 8 or 16), in which registers of that width are stored."""
    return DOUBLE_WORD if size == 16 else np.dtype(f"u{size}")


def poison(dtype: np.dtype[Any]) -> Any:
    """Return the initial value of a register of type `dtype`, as a NumPy scalar: poison bytes, True for a predicate."""
    return np.frombuffer(bytes([_POISON]) * dtype.itemsize, np.uint8).view(dtype)[0] if dtype != PREDICATE else np.True_
