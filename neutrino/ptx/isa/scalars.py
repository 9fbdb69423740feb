"""Types of single values, and numbers as PTX writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping

WARP_LANES = 32
"""Lanes per warp of every architecture that runs PTX."""

# PTX ISA, "Fundamental Types" and "Packed Data Types": bytes of one element.
TYPE_BYTES: Mapping[str, int] = {
    "b8": 1,
    "u8": 1,
    "s8": 1,
    "e4m3": 1,
    "e5m2": 1,
    "b16": 2,
    "u16": 2,
    "s16": 2,
    "f16": 2,
    "bf16": 2,
    "e4m3x2": 2,
    "e5m2x2": 2,
    "u8x2": 2,
    "s8x2": 2,
    "b32": 4,
    "u32": 4,
    "s32": 4,
    "f32": 4,
    "e4m3x4": 4,
    "e5m2x4": 4,
    "f16x2": 4,
    "bf16x2": 4,
    "u16x2": 4,
    "s16x2": 4,
    "tf32": 4,
    "b64": 8,
    "u64": 8,
    "s64": 8,
    "f64": 8,
    "f32x2": 8,
    "b128": 16,
}

_OCTAL = re.compile(r"[+-]?0\d+\Z", re.ASCII)


def integer(literal: str) -> int:
    """Return the value of an integer literal: ``0x1F``, ``0b11``, octal ``017`` or ``23U``.

    Raises ValueError for other words.
    """
    digits = literal.rstrip("uU")
    # Base 0 reads decimals and the prefixes 0x and 0b as PTX does, but not octal numbers, which begin with a plain 0.
    return int(digits, 8 if _OCTAL.match(digits) else 0)
