"""Types of single values and of special registers, numbers as PTX writes them, and which integers fit in what."""

from __future__ import annotations

import re
from collections.abc import Mapping

from neutrino.abi.records import Field

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

# PTX ISA 9.0, chapter 10.
_VECTOR_REGISTERS = (
    "tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid",
)  # fmt: skip
_U32_REGISTERS = (
    "laneid", "warpid", "nwarpid", "smid", "nsmid", "cluster_ctarank", "cluster_nctarank",
    "lanemask_eq", "lanemask_le", "lanemask_lt", "lanemask_ge", "lanemask_gt",
    "clock", "clock_hi", "globaltimer_lo", "globaltimer_hi",
    "total_smem_size", "aggr_smem_size", "dynamic_smem_size",
)  # fmt: skip
_U64_REGISTERS = ("gridid", "clock64", "globaltimer", "current_graph_exec")

SPECIAL_REGISTERS: dict[str, str] = {
    **{f"%{name}.{part}": "u32" for name in _VECTOR_REGISTERS for part in "xyz"},
    **{f"%{name}": "u32" for name in _U32_REGISTERS},
    **{f"%{name}": "u64" for name in _U64_REGISTERS},
    **{f"%pm{index}": "u32" for index in range(8)},
    **{f"%pm{index}_64": "u64" for index in range(8)},
    **{f"%envreg{index}": "b32" for index in range(32)},
}
"""The special registers that a probe may read: name with ``%`` → PTX type without the dot."""

SPECIAL_NEEDS: dict[str, tuple[tuple[int, int], int]] = {
    f"%{name}.{part}": ((7, 8), 90)
    for name in ("clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
    for part in "xyz"
} | {f"%{name}": ((7, 8), 90) for name in ("cluster_ctarank", "cluster_nctarank")}
"""Name of a special register → the lowest ``.version`` and architecture that have it, of those that not all have."""


def integer(literal: str) -> int:
    """Return the value of an integer literal: ``0x1F``, ``0b11``, octal ``017`` or ``23U``.

    Raises ValueError for other words.
    """
    digits = literal.rstrip("uU")
    # Base 0 reads decimals and the prefixes 0x and 0b as PTX does, but not octal numbers, which begin with a plain 0.
    is_octal = digits.lstrip("+-").startswith("0") and digits.lstrip("+-").isdecimal()
    return int(digits, 8 if is_octal else 0)


def known_integer(literal: str) -> int | None:
    """Return the value of an integer literal, as ``integer``; None for other words."""
    try:
        return integer(literal) if "_" not in literal else None
    except ValueError:
        return None


INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|0[0-7]*U?|[1-9]\d*U?)", re.ASCII)
FLOAT = re.compile(r"0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|[+-]?(\d+\.\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)

MAX_LITERAL = 80
"""Characters of an integer that may fit somewhere: binary ones have 64 digits. Python refuses to convert thousands."""


def in_range(word: str, bits: int) -> bool:
    """Return whether an integer literal fits in that many bits, as a signed or an unsigned number."""
    return len(word) <= MAX_LITERAL and -(1 << (bits - 1)) <= integer(word) < 1 << bits


def literal_fits(bits: int, signed: bool, text: str, value: int) -> bool:
    """Return whether an integer literal fits a type of that many bits. text: the literal, of which value is the value.

    Unsigned types also accept negative numbers: -1 means all bits set. Signed types accept values above their maximum
    in hexadecimal, octal or binary only, where the literal gives the bit pattern.
    """
    if not -(1 << (bits - 1)) <= value < 1 << bits:
        return False
    digits = text.lstrip("+-")
    # Others begin with 0x, 0b or, in octal, 0; a single 0 is decimal.
    is_decimal = len(digits) == 1 or not digits.startswith("0")
    return not signed or value < 1 << (bits - 1) or not is_decimal


def fits_field(word: str, field: Field) -> bool:
    """Return whether an integer literal can be stored in a field of an integer type."""
    is_signed = field.type.value.startswith("s")
    return len(word) <= MAX_LITERAL and literal_fits(8 * field.type.size, is_signed, word, integer(word))


def range_hint(field: Field) -> str:
    """Return the numbers that an integer field holds, for a hint."""
    bits = 8 * field.type.size
    if field.type.value.startswith("s"):
        half = 1 << (bits - 1)
        return f"from {-half} to {half - 1}; the bits of others in hexadecimal, such as {(1 << bits) - 1:#x}"
    return f"from 0 to {(1 << bits) - 1}; -1 is all ones"


def is_special(name: str) -> bool:
    """Return whether a name is a special register, or a vector of them without its element (``%tid``)."""
    return name in SPECIAL_REGISTERS or f"{name}.x" in SPECIAL_REGISTERS
