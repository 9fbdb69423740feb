"""The layout of records: fields at the offsets that a C compiler would give them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neutrino.abi.scalars import NUMPY_TYPES, ScalarType
from neutrino.abi.structures import align_up

if TYPE_CHECKING:
    import numpy as np

MAX_RECORD = 65536
"""Largest size of a record that has a slot, in bytes."""
MAX_TABLE = (1 << 20) + 128
"""Largest size of a record that a launch has copies of, such as a table: 1 MiB, and what is not for places."""


@dataclass(frozen=True)
class Field:
    """One field of a record. offset: bytes from the record's start, by C alignment."""

    name: str
    type: ScalarType
    offset: int


def lay_out_fields(fields: Sequence[tuple[str, ScalarType]]) -> tuple[tuple[Field, ...], int, int]:
    """Assign offsets to the fields of a record, which is what a probe saves at once, by C alignment.

    fields: name and type of each, in order; a value is aligned to its size. Returns the fields, the record's size in
    bytes, which is a multiple of the largest alignment, and how many bytes of it are padding.
    """
    offset = 0
    alignment = 1
    with_offsets = []
    for name, scalar in fields:
        offset = align_up(offset, scalar.size)
        with_offsets.append(Field(name, scalar, offset))
        offset += scalar.size
        alignment = max(alignment, scalar.size)
    size = align_up(offset, alignment)
    return tuple(with_offsets), size, size - sum(scalar.size for _, scalar in fields)


def record_dtype(fields: Sequence[Field], size: int) -> np.dtype[np.void]:
    """Return the NumPy type that reads records with these fields from a trace. size: of a record, in bytes."""
    import numpy as np

    return np.dtype(
        {
            "names": [field.name for field in fields],
            "formats": [NUMPY_TYPES[field.type.value] for field in fields],
            "offsets": [field.offset for field in fields],
            "itemsize": size,
        }
    )
