"""C structures as data: what the header, the NumPy types of the reader and ``read.py`` are made from.

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
    """One member of a C structure. count > 1: an array; type ``char``: bytes."""

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
        """The structure as a NumPy type."""
        # Here, because reading a probe file needs this module but must not wait for NumPy.
        import numpy as np

        return np.dtype(
            [
                (member.name, NUMPY_TYPES[member.type], (member.count,))
                if member.count > 1 and member.type != "char"
                else (member.name, f"S{member.count}" if member.type == "char" else NUMPY_TYPES[member.type])
                for member in self.members
            ]
        )

    @property
    def size(self) -> int:
        """Bytes."""
        return self.dtype.itemsize


def align_up(value: int, alignment: int) -> int:
    """The smallest multiple of alignment (a power of two) not below value."""
    return (value + alignment - 1) & ~(alignment - 1)
