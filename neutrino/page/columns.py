"""Columns of numbers as a page has them: differences, by bytes of one weight, compressed, as text."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_LEVEL = 5
"""Of the compression: higher ones take twice the time for 2 %."""
_PIECE = 3 << 18
"""Bytes that are written as text at once; a multiple of 3, so that pieces of base64 fit together."""


@dataclass
class Columns:
    """Columns that are read together, to be written as one block of text.

    The layout is read by ``web/data.js``: bytes of gzip, of a line of JSON and the columns' bytes. A column has all
    lowest bytes of its numbers, then all second ones, and so on, which compresses well where numbers are small.
    """

    _header: list[dict[str, Any]] = field(default_factory=list)
    _parts: list[bytes] = field(default_factory=list)

    def add(self, name: str, values: Array, *, differences: bool = False) -> None:
        """Add a column of integers from 0 on, below 2^53, in as few bytes each as the largest needs.

        differences: whether the values are kept as differences from the one before, which may be negative.
        """
        whole = values
        if differences:
            signed: npt.NDArray[np.int64] = values.astype(np.int64)
            signed[1:] -= values[:-1].astype(np.int64)
            # 0, -1, 1, -2 … as 0, 1, 2, 3.
            whole = ((signed << 1) ^ (signed >> 63)).view(np.uint64)
        largest = int(whole.max()) if len(whole) else 0
        width = max((largest.bit_length() + 7) // 8, 1)
        wide = np.ascontiguousarray(whole.astype("<u8"))
        planes = wide.view(np.uint8).reshape(-1, 8)
        for weight in range(width):
            self._parts.append(planes[:, weight].tobytes())
        self._header.append({"name": name, "count": len(values), "bytes": width, "differences": differences})

    def add_floats(self, name: str, values: Array) -> None:
        """Add a column of numbers as 32-bit floating-point ones, by bytes of one weight, too."""
        planes = np.ascontiguousarray(values.astype("<f4")).view(np.uint8).reshape(-1, 4)
        for weight in range(4):
            self._parts.append(planes[:, weight].tobytes())
        self._header.append({"name": name, "count": len(values), "bytes": 4, "float": True})

    def compressed(self) -> bytes:
        """Return the columns as bytes of gzip."""
        head = json.dumps(self._header, separators=(",", ":")).encode() + b"\n"
        return gzipped([head, *self._parts])


def gzipped(parts: list[bytes]) -> bytes:
    """Compress bytes for a page, in the format that browsers read."""
    # 16: with the header of gzip, without a time.
    maker = zlib.compressobj(_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    return b"".join([*map(maker.compress, parts), maker.flush()])


def gzipped_json(document: Any) -> bytes:
    """Compress a JSON document for a page. Text that is no valid Unicode is written with escapes, as JSON can."""
    return gzipped([json.dumps(document, separators=(",", ":"), allow_nan=False).encode()])


def base64_pieces(data: bytes) -> list[str]:
    """Return bytes as text, in pieces to be written one after the other."""
    return [base64.b64encode(data[at : at + _PIECE]).decode() for at in range(0, len(data), _PIECE)]


def read_columns(data: bytes) -> dict[str, Array]:
    """Return columns by name from bytes of gzip, as the page's script does: whole numbers as int64, others as f4."""
    head, _, body = zlib.decompress(data, 16 + zlib.MAX_WBITS).partition(b"\n")
    found: dict[str, Array] = {}
    at = 0
    for column in json.loads(head):
        count, width = column["count"], column["bytes"]
        planes = np.frombuffer(body, np.uint8, count * width, at).reshape(width, count)
        at += count * width
        wide = np.zeros((count, 8), np.uint8)
        wide[:, :width] = planes.T
        values = wide.view("<u8").reshape(-1)
        if column.get("float"):
            found[column["name"]] = values.astype("<u4").view("<f4")
        elif column.get("differences"):
            signs = -(values & np.uint64(1)).astype(np.int64)
            found[column["name"]] = np.cumsum((values >> np.uint64(1)).astype(np.int64) ^ signs)
        else:
            found[column["name"]] = values.astype(np.int64)
    return found
