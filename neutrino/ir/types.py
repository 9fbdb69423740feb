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

    def __str__(self) -> str:
        """The type as assembly and probe files write it, such as ``u32``."""
        return self.value

    def __format__(self, format_spec: str) -> str:
        """Format the type's text, such as ``u32``."""
        return format(self.value, format_spec)

    @property
    def bits(self) -> int:
        """Width of a value; 1 for ``pred``, 0 for ``lanes``, whose width the target knows."""
        return _BITS[self]

    @property
    def is_integer(self) -> bool:
        """Whether the type is of integers: signed, unsigned, or bits without a meaning."""
        return self.value[0] in "us" or self.is_untyped

    @property
    def is_untyped(self) -> bool:
        """Whether the type is of bits without a meaning: ``b8`` to ``b64``."""
        return self.value[0] == "b" and self is not Type.BF16

    @property
    def is_float(self) -> bool:
        """Whether the type is of one floating-point number."""
        return self in {Type.F16, Type.BF16, Type.F32, Type.F64}

    @property
    def is_signed(self) -> bool:
        """Whether the type is a signed integer."""
        return self.value[0] == "s"


# All others end in their width.
_BITS = {Type.PRED: 1, Type.F16X2: 32, Type.LANES: 0}
_BITS.update({type_: int(type_.value.lstrip("busf")) for type_ in Type if type_ not in _BITS})

PROBE_TYPES = tuple(type_ for type_ in Type if type_ is not Type.LANES)
"""Types that probes' registers have."""
