"""The records of a log in groups, the compact form in which lanes that save together share what they can: by C.

``neutrino.maps.log_reading`` reads logs of all forms, with who saved each record, by NumPy alone: several times slower.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.maps.log_reading import LOG_CONTROL, LOG_OWN, LOG_UNIT
from neutrino.tracing.aggregate import LIBRARY

Array = npt.NDArray[Any]
_INTERFACE = 5
_BATCH = 1 << 20
"""Bytes of a log whose records are taken apart together: adjacent addresses have sixteen times as many."""


@functools.cache
def log_library() -> ctypes.CDLL | None:
    """Return the library that takes groups apart; None if it is missing or of another version."""
    try:
        library = ctypes.CDLL(str(LIBRARY))
        if library.nt_accesses_interface() != _INTERFACE:
            return None
    except (OSError, AttributeError):
        return None
    for name in ("nt_accesses_chunks", "nt_accesses_reuse", "nt_log_records"):
        getattr(library, name).restype = ctypes.c_int64
    return library


def address_of(array: Array) -> ctypes.c_void_p:
    """Return an array's address, for C."""
    return ctypes.c_void_p(array.ctypes.data)


def groups_of(library: ctypes.CDLL, region: Array) -> tuple[Array, Array | None]:
    """Return a log's bytes from its first chunk on, and where its chunks of groups are: u64 ``[chunk][4]``, the first
    byte, the end, the slot, the shape of the records. None in place of these if it has chunks of another kind.

    region: of one launch, uint8.
    """
    own, own_each = region[LOG_OWN : LOG_OWN + 16].view("<u8").tolist()
    taken = int(region[:8].view("<u8")[0]) + own
    log = np.ascontiguousarray(region[LOG_CONTROL : LOG_CONTROL + LOG_UNIT * taken])

    def found(chunks: Array) -> int:
        """Find the chunks, as many as there is room for; return how many there are, or -1."""
        return int(library.nt_accesses_chunks(
            address_of(log), ctypes.c_uint64(len(log)), ctypes.c_uint64(own), ctypes.c_uint64(own_each),
            address_of(chunks), ctypes.c_uint64(len(chunks)),
        ))  # fmt: skip

    count = found(np.empty((0, 4), "<u8"))
    if count < 0:
        return log, None
    chunks = np.zeros((count, 4), "<u8")
    found(chunks)
    return log, chunks


def records_of_groups(region: Array, dtype: np.dtype[Any]) -> Iterator[Array] | None:
    """Yield the records of a log, some at a time, in no order that means something. None if they cannot be read so: a
    log with chunks of another kind, or without the library.

    region: of one launch, uint8. dtype: of a record.
    """
    library = log_library()
    if library is None:
        return None
    log, chunks = groups_of(library, region)
    return None if chunks is None else _batches(library, log, chunks, dtype)


def _batches(library: ctypes.CDLL, log: Array, chunks: Array, dtype: np.dtype[Any]) -> Iterator[Array]:
    """Yield the records of chunks of groups, those of about a batch at a time."""
    batch = np.cumsum(chunks[:, 1] - chunks[:, 0]) // np.uint64(_BATCH)
    ends = [*(np.flatnonzero(batch[1:] != batch[:-1]) + 1).tolist(), len(chunks)]
    for begin, end in zip([0, *ends], ends, strict=False):
        part = chunks[begin:end]

        def write(records: ctypes.c_void_p | None, part: Array = part) -> int:
            """Write the records of the part, or count them; return how many there are."""
            return int(library.nt_log_records(
                address_of(log), ctypes.c_uint64(len(log)), address_of(part), ctypes.c_uint64(len(part)),
                ctypes.c_uint64(dtype.itemsize), records,
            ))  # fmt: skip

        records = np.empty(write(None), dtype)
        write(address_of(records))
        if len(records):
            yield records
