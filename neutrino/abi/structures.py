"""Descriptions of C structures, from which the C header, the NumPy types of the reader and ``read.py`` are generated.

All integers are little endian; every structure has C alignment and no hidden padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from neutrino.abi.scalars import NUMPY_TYPES

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Member:
    """One member of a C structure. count: length of an array, 1 for a single value. note: a comment for the header.

    type: as in ``NUMPY_TYPES``, or ``char``: then the member is a byte string of ``count`` bytes.
    """

    name: str
    type: str
    count: int = 1
    note: str = ""


@dataclass(frozen=True)
class Struct:
    """A C structure without hidden padding. name: in C, with the ``neutrino_`` prefix left out."""

    name: str
    members: tuple[Member, ...]
    note: str

    @property
    def dtype(self) -> np.dtype[np.void]:
        """This binary structure as a NumPy type, with its fields at their offsets."""
        # Imported here because reading a probe file needs this module, and should not wait for NumPy.
        import numpy as np

        fields: list[tuple[str, str] | tuple[str, str, tuple[int]]] = []
        for member in self.members:
            if member.type == "char":
                fields.append((member.name, f"S{member.count}"))
            elif member.count > 1:
                fields.append((member.name, NUMPY_TYPES[member.type], (member.count,)))
            else:
                fields.append((member.name, NUMPY_TYPES[member.type]))
        return np.dtype(fields)

    @property
    def size(self) -> int:
        """The size of this binary structure in bytes."""
        return self.dtype.itemsize


def align_up(value: int, alignment: int) -> int:
    """Round a value up to a multiple of ``alignment``, which must be a power of two."""
    return (value + alignment - 1) & ~(alignment - 1)
