"""The types of values in probes."""

from __future__ import annotations

import enum


class Type(str, enum.Enum):
    """A register's type. ``B`` types are bits without a meaning, as PTX has them for its operands.

    ``F16X2`` is a pair in 32 bits, which only hand-written assembly takes apart. ``LANES`` is a set of lanes of a warp,
    a bit for each: 32 or 64 of them, by the target. Map types alone have it.
    """

    U8 = "u8"
    U16 = "u16"
    U32 = "u32"
    U64 = "u64"
    S8 = "s8"
    S16 = "s16"
    S32 = "s32"
    S64 = "s64"
    B8 = "b8"
    B16 = "b16"
    B32 = "b32"
    B64 = "b64"
    F16 = "f16"
    BF16 = "bf16"
    F16X2 = "f16x2"
    F32 = "f32"
    F64 = "f64"
    PRED = "pred"
    LANES = "lanes"

    def __init__(self, word: str) -> None:
        """Set up a type. word: as assembly and probe files write it, such as ``u32``."""
        # Attributes, since code of twins asks for them thousands of times.
        widths = {"pred": 1, "f16x2": 32, "lanes": 0}
        self.bits = widths[word] if word in widths else int(word.lstrip("busf"))
        """Width of a value; 1 for ``pred``, 0 for ``lanes``, whose width the target knows."""
        self.is_untyped = word[0] == "b" and word != "bf16"
        """Whether the type is of bits without a meaning: ``b8`` to ``b64``."""
        self.is_integer = word[0] in "us" or self.is_untyped
        """Whether the type is of integers: signed, unsigned, or bits without a meaning."""
        self.is_float = word in {"f16", "bf16", "f32", "f64"}
        """Whether the type is of one floating-point number."""
        self.is_signed = word[0] == "s"
        """Whether the type is a signed integer."""

    __hash__ = str.__hash__

    def __str__(self) -> str:
        """The type as assembly and probe files write it, such as ``u32``."""
        return str.__str__(self)

    def __format__(self, format_spec: str) -> str:
        """Format the type's text, such as ``u32``."""
        return str.__format__(self, format_spec)


PROBE_TYPES = tuple(type_ for type_ in Type if type_ is not Type.LANES)
"""Types that probes' registers have."""
