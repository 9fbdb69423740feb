"""Types of single numbers: of a record's fields and of the structures' members."""

from __future__ import annotations

import enum

NUMPY_TYPES = {
    "u8": "<u1", "u16": "<u2", "u32": "<u4", "u64": "<u8", "f32": "<f4",
    "s8": "<i1", "s16": "<i2", "s32": "<i4", "s64": "<i8", "f64": "<f8",
}  # fmt: skip
"""What NumPy calls them."""


class ScalarType(enum.Enum):
    """Type of one field of a record, by the names of PTX and of the DSL."""

    U8 = "u8"
    S8 = "s8"
    U16 = "u16"
    S16 = "s16"
    U32 = "u32"
    S32 = "s32"
    U64 = "u64"
    S64 = "s64"
    F32 = "f32"
    F64 = "f64"

    def __init__(self, name: str) -> None:
        """Set a member's size in bytes, which follows from the bits in its name: ``u32`` has 4."""
        self.size = int(name[1:]) // 8
        """Bytes of one value, which is also its alignment."""
