"""Integer and float literals of snippets, and which integers fit in a type or in a field of a map."""

from __future__ import annotations

import re

from neutrino.abi.records import Field
from neutrino.probing.syntax import literal_fits
from neutrino.ptx.isa.scalars import integer

INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|0[0-7]*U?|[1-9]\d*U?)", re.ASCII)
FLOAT = re.compile(r"0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|[+-]?(\d+\.\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)

MAX_LITERAL = 80
"""Characters of an integer that may fit somewhere: binary ones have 64 digits. Python refuses to convert thousands."""


def in_range(word: str, bits: int) -> bool:
    """Return whether an integer literal fits in so many bits, as a signed or an unsigned number."""
    return len(word) <= MAX_LITERAL and -(1 << (bits - 1)) <= integer(word) < 1 << bits


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
