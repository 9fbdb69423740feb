"""Aggregates of records in constant memory: the range and the sum of fields, and exact medians.

``csrc/aggregate.c`` does the passes over memory; without its library NumPy does, at a third of the speed. Both give the
same numbers, but for sums of floating-point values, whose last digits depend on the order.
"""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.late_dataclass import dataclass

Array = npt.NDArray[Any]
LIBRARY = Path(__file__).resolve().parent / "lib" / "libneutrino_aggregate.so"
BUCKETS = 1 << 16
"""Of a counting pass. C has the same number."""
MOST_RECORDS = 1 << 16
"""That NumPy works on at once: their fields stay in the cache."""
_INTERFACE = 1
"""The version of the library's functions."""
_TYPES = {name: number for number, name in enumerate(("u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f4", "f8"))}
"""Types of fields by their numbers in C."""
_WORD = (1 << 64) - 1
_RANGE = np.dtype([("minimum", "<u8"), ("maximum", "<u8"), ("sum", "<u8", (2,)), ("nans", "<u8")])
_FIELD = np.dtype([(name, "<u8") for name in ("offset", "type", "low", "shift", "range", "counts")])
"""Structures of ``aggregate.c``."""


@dataclass(frozen=True)
class Tiles:
    """Records of launches of one geometry, a view of them that copies nothing.

    records: structured ``[launch][block][tile][k][lane]``; of a launch they lie back to back. counts: how many records
    each slot saved, u32 ``[launch][block][tile][lane]``, as far apart as launches; None where each has one. threads:
    how many lanes of a block's tiles exist; slots of others do not count.
    """

    records: Array
    counts: Array | None
    threads: int

    def __post_init__(self) -> None:
        """Raise ValueError for records or counts that do not lie in memory as described, since C code goes through it.
        """
        launches = self.records.strides[0]
        for rows in (self.records,) if self.counts is None else (self.records, self.counts):
            dense = rows.itemsize
            for extent, stride in zip(rows.shape[:0:-1], rows.strides[:0:-1], strict=True):
                if extent > 1 and stride != dense:
                    raise ValueError("the records of a launch are not back to back")
                dense *= extent
            if len(rows) > 1 and rows.strides[0] != launches:
                raise ValueError("the counts of launches are not as far apart as the records")

    @classmethod
    def of(cls, rows: Array) -> Tiles:
        """Make one tile of rows, a structured 1-D array. They are copied if they do not lie back to back."""
        rows = np.ascontiguousarray(rows)
        return cls(rows.reshape(1, 1, 1, 1, -1), None, len(rows))

    @property
    def is_whole(self) -> bool:
        """Whether all places in the array hold records: each slot saved one, and no lane of a warp is missing."""
        _, _, tiles, _, lanes = self.records.shape
        return self.counts is None and self.threads == tiles * lanes

    def pieces(self) -> Iterator[Array]:
        """Yield the records that were saved, as 1-D structured arrays of about ``MOST_RECORDS`` at most."""
        launches, blocks, tiles, cap, lanes = self.records.shape
        per_block = tiles * cap * lanes
        plain = plain_bytes(self.records)
        for blocks_of, first, last in _slices(launches, blocks, max(MOST_RECORDS // max(per_block, 1), 1)):
            part = plain[blocks_of, first:last]
            mask = self._mask(blocks_of, first, last)
            if mask is not None:
                yield part[mask].view(self.records.dtype)
                continue
            # A view where the records of a single launch are back to back. A block may have very many.
            rows = part.reshape(-1)
            for begin in range(0, len(rows), MOST_RECORDS):
                yield rows[begin : begin + MOST_RECORDS].view(self.records.dtype)

    def _mask(self, launches: slice, first: int, last: int) -> Array | None:
        """Return which places of some launches and blocks hold saved records, as bool in their shape; None for all.

        first, last: of the blocks, those from first to last - 1.
        """
        _, _, tiles, cap, lanes = self.records.shape
        if self.is_whole:
            return None
        exists = (np.arange(tiles * lanes) < self.threads).reshape(tiles, 1, lanes)
        if self.counts is None:
            shape = self.records[launches, first:last].shape
            return np.broadcast_to(exists, shape)
        saved = np.arange(cap)[:, None] < self.counts[launches, first:last, :, None, :]
        return saved & exists


def plain_bytes(records: Array) -> Array:
    """Return a view of structured records as items without fields, which NumPy copies much faster."""
    return records.view(np.dtype((np.void, records.dtype.itemsize)))


def _slices(launches: int, blocks: int, most: int) -> Iterator[tuple[slice, int, int]]:
    """Divide a launches x blocks grid into pieces of at most ``most`` blocks: yield the launches of each, its first
    block, and the one after its last.
    """
    if blocks <= most:
        step = most // max(blocks, 1)
        for begin in range(0, launches, step):
            yield slice(begin, begin + step), 0, blocks
        return
    for launch in range(launches):
        for first in range(0, blocks, most):
            yield slice(launch, launch + 1), first, min(first + most, blocks)


@dataclass
class Range:
    """What is known of a field.

    count: of values. minimum, maximum: 0 without a value; NaN if one is, as NumPy has it. total: the exact sum of
    integers; of floating-point values in f64.
    """

    count: int = 0
    minimum: int | float = 0
    maximum: int | float = 0
    total: int | float = 0

    def add(self, count: int, minimum: int | float, maximum: int | float, total: int | float) -> None:
        """Merge what is known of further values into this range: how many, the least, the greatest, the sum. count: at
        least 1."""
        if not self.count:
            self.minimum, self.maximum = minimum, maximum
        # No comparison with a NaN holds, so that one stays.
        if minimum < self.minimum or math.isnan(minimum):
            self.minimum = minimum
        if maximum > self.maximum or math.isnan(maximum):
            self.maximum = maximum
        self.count += count
        self.total += total


@dataclass
class Ranges:
    """The ranges of some fields of records, and what the counts of their slots say.

    fields: by name. records: how many. wanted: the greatest count of a slot. dropped: saves beyond the cap.
    """

    fields: dict[str, Range]
    records: int = 0
    wanted: int = 0
    dropped: int = 0


@dataclass(frozen=True)
class Window:
    """Which values of a field are counted: those whose key is less than ``BUCKETS << shift`` above low.

    A key is an integer, of floating point ``key_of``. Each bucket has ``1 << shift`` keys.
    """

    name: str
    low: int
    shift: int


def ranges_of(source: Iterable[Tiles], names: Sequence[str]) -> Ranges:
    """Compute least, greatest, sum and number of the values of some fields, in one pass over the records of all tiles.
    """
    found = Ranges({name: Range() for name in names})
    for tiles in source:
        if not tiles.records.size:
            continue
        library = _library_for(tiles, names)
        if library is None:
            wanted, dropped = saves_of(tiles)
            found.wanted, found.dropped = max(found.wanted, wanted), found.dropped + dropped
            for piece in tiles.pieces():
                _add_piece(found, piece)
            continue
        rows, results, saves = _rows_of(tiles, names), np.zeros(len(names), _RANGE), np.zeros(2, "<u8")
        for number, name in enumerate(names):
            results[number]["minimum"], results[number]["maximum"] = _NOTHING[_kind(tiles, name)[0]]
        rows["range"] = results.ctypes.data + np.arange(len(names), dtype=np.uint64) * np.uint64(_RANGE.itemsize)
        count = _visit(library, tiles, rows, saves)
        found.records += count
        found.wanted = max(found.wanted, int(saves[0]))
        found.dropped += int(saves[1])
        for number, name in enumerate(names):
            if count:
                found.fields[name].add(count, *_values(results[number : number + 1], _kind(tiles, name)[0]))
    return found


def count_buckets(source: Iterable[Tiles], windows: Sequence[Window]) -> Array:
    """Count how many values fall into each bucket of some windows of values, u64 ``[window][bucket]``, in one pass."""
    counts = np.zeros((len(windows), BUCKETS), "<u8")
    names = [window.name for window in windows]
    for tiles in source:
        if not tiles.records.size:
            continue
        library = _library_for(tiles, names)
        if library is not None:
            rows = _rows_of(tiles, names)
            rows["low"] = [window.low & _WORD for window in windows]
            rows["shift"] = [window.shift for window in windows]
            rows["counts"] = counts.ctypes.data + np.arange(len(names), dtype=np.uint64) * np.uint64(8 * BUCKETS)
            _visit(library, tiles, rows, np.zeros(2, "<u8"))
            continue
        for piece in tiles.pieces():
            for window, row in zip(windows, counts, strict=True):
                bucket = (_keys(piece[window.name]) - np.uint64(window.low & _WORD)) >> np.uint64(window.shift)
                row += np.bincount(bucket[bucket < BUCKETS].astype(np.int64), minlength=BUCKETS).astype("<u8")
    return counts


def count_values(
    source: Callable[[], Iterable[Tiles]], name: str, dtype: np.dtype[Any], records: int
) -> dict[int, int]:
    """Return how many records have each value of an integer field.

    Memory grows with the number of values, unless they are near 0 or the type's greatest number. source: gives the
    same tiles at each call. dtype: of the field. records: how many there are.
    """
    # Of the greatest numbers, too, which stand for what has no number; of signed types those are negative.
    end = 0 if dtype.kind == "i" else 1 << 8 * dtype.itemsize
    windows = [Window(name, 0, 0)]
    if dtype.itemsize > 2 or end == 0:
        windows.append(Window(name, end - BUCKETS, 0))
    found: dict[int, int] = {}
    for window, counts in zip(windows, count_buckets(source(), windows), strict=True):
        for bucket in np.flatnonzero(counts).tolist():
            found[window.low + bucket] = int(counts[bucket])
    if sum(found.values()) == records:
        return found
    found.clear()
    for tiles in source():
        for piece in tiles.pieces():
            values, counts = np.unique(piece[name], return_counts=True)
            for value, count in zip(values.tolist(), counts.tolist(), strict=True):
                found[value] = found.get(value, 0) + count
    return found


def medians_of(source: Callable[[], Iterable[Tiles]], types: dict[str, str], ranges: Ranges) -> dict[str, int | float]:
    """Return the median of each field, the lower of the two middle values, in a few passes; fields without one are left
    out. NaNs count as greater than all numbers.

    source: gives the same tiles at each call. types: NumPy's, ``<u4``, of each field. ranges: of these fields.
    """
    searches = {
        name: _Search.of(np.dtype(kind), ranges.fields[name])
        for name, kind in types.items()
        if ranges.fields[name].count
    }
    while windows := [Window(name, search.low, search.shift) for name, search in searches.items() if search.bits]:
        counts = count_buckets(source(), windows)
        for window, row in zip(windows, counts, strict=True):
            searches[window.name].narrow(row)
    return {name: search.value for name, search in searches.items()}


@dataclass
class _Search:
    """Where the value of a rank is: its key is less than ``1 << bits`` above low. rank: among those, from 0."""

    dtype: np.dtype[Any]
    low: int
    bits: int
    rank: int

    @classmethod
    def of(cls, dtype: np.dtype[Any], known: Range) -> _Search:
        """Begin a search for the median of a field's values. known: how many there are, and from where to where."""
        rank = (known.count - 1) // 2
        if dtype.kind == "f" and (math.isnan(known.minimum) or math.isnan(known.maximum)):
            return cls(dtype, 0, 8 * dtype.itemsize, rank)
        if dtype.kind == "f":
            # The keys of both zeros differ, and either may be the extreme.
            low, high = (key_of(edge or zero, dtype) for edge, zero in ((known.minimum, -0.0), (known.maximum, 0.0)))
        else:
            low, high = int(known.minimum), int(known.maximum)
        return cls(dtype, low, (high - low).bit_length(), rank)

    @property
    def shift(self) -> int:
        """How many keys (as a power of two) each bucket of the next counting pass has."""
        return max(self.bits - (BUCKETS.bit_length() - 1), 0)

    def narrow(self, counts: Array) -> None:
        """Narrow the search for a median to the bucket that holds it. counts: how many values each bucket of the window
        has."""
        sums = np.cumsum(counts)
        bucket = min(int(np.searchsorted(sums, self.rank, side="right")), BUCKETS - 1)
        self.rank -= int(sums[bucket]) - int(counts[bucket])
        self.low, self.bits = self.low + (bucket << self.shift), self.shift

    @property
    def value(self) -> int | float:
        """The value that was searched for, such as a median, once only one key is left."""
        if self.dtype.kind != "f":
            return self.low
        sign = 1 << (8 * self.dtype.itemsize - 1)
        bits = self.low ^ (sign if self.low & sign else 2 * sign - 1)
        return float(np.array([bits], f"<u{self.dtype.itemsize}").view(self.dtype)[0])


def key_of(value: float, dtype: np.dtype[Any]) -> int:
    """Return the key of a floating-point value: an unsigned number of its width, greater for a greater value."""
    return int(_keys(np.array([value], dtype))[0])


def _keys(values: Array) -> Array:
    """Map values to unsigned numbers (u64) in the same order, so that they can be searched by bits; NaNs have the
    greatest.

    Those of negative integers are modulo 2 to the 64.
    """
    if values.dtype.kind != "f":
        return values.astype(np.int64 if values.dtype.kind == "i" else np.uint64).view(np.uint64)
    size = values.dtype.itemsize
    bits = np.ascontiguousarray(values).view(f"<u{size}")
    sign = bits.dtype.type(1 << (8 * size - 1))
    keys = np.where(bits & sign, ~bits, bits | sign)
    return np.where(np.isnan(values), bits.dtype.type((1 << 8 * size) - 1), keys).astype(np.uint64)


def saves_of(tiles: Tiles) -> tuple[int, int]:
    """Return what the counts of saved records say: the greatest count of a slot, and how many saves are beyond the cap.

    Zeros without counts.
    """
    wanted = dropped = 0
    if tiles.counts is None:
        return wanted, dropped
    launches, blocks, *slots = tiles.counts.shape
    cap = tiles.records.shape[3]
    for chosen, first, last in _slices(launches, blocks, max(MOST_RECORDS // max(math.prod(slots), 1), 1)):
        counts = tiles.counts[chosen, first:last]
        wanted = max(wanted, int(counts.max(initial=0)))
        # Counts are u32, whose sum may need 64 bits.
        dropped += int(np.maximum(counts, cap).sum(dtype=np.uint64)) - counts.size * cap
    return wanted, dropped


def _add_piece(found: Ranges, piece: Array) -> None:
    """Add a piece of records, a structured array, to the ranges of their fields, by NumPy."""
    found.records += len(piece)
    for name, known in found.fields.items() if len(piece) else ():
        # Fields of records are apart: back to back, NumPy reads them three times as fast.
        values = np.ascontiguousarray(piece[name])
        minimum, maximum = values.min().item(), values.max().item()
        known.add(len(values), minimum, maximum, _total(values, minimum, maximum))


def _total(values: Array, minimum: int | float, maximum: int | float) -> int | float:
    """Return the exact sum of integers as a Python int, and that of floats. minimum, maximum: of the values."""
    if values.dtype.kind == "f":
        # Infinities of both signs have no sum, which is a NaN in C, too.
        with np.errstate(over="ignore", invalid="ignore"):
            return float(values.sum(dtype=np.float64))
    wide = np.int64 if values.dtype.kind == "i" else np.uint64
    if len(values) * (int(maximum) - int(minimum)) <= _WORD:
        # Modulo 2 to the 64, which leaves one number that the sum can be.
        least = len(values) * int(minimum)
        return least + (int(np.add.reduce(values, dtype=wide)) - least & _WORD)
    # The upper half has the sign, as >> of signed numbers keeps it; the lower half counts as unsigned.
    halves = values.astype(wide)
    return (int((halves >> 32).sum()) << 32) + int((halves & 0xFFFFFFFF).sum())


def _bits(value: float) -> int:
    """Return the bits of a floating-point number (f64) as an unsigned integer."""
    return int(np.array(value, "<f8").view("<u8"))


_NOTHING = {
    **dict.fromkeys(("u1", "u2", "u4", "u8"), (_WORD, 0)),
    **dict.fromkeys(("i1", "i2", "i4", "i8"), ((1 << 63) - 1, 1 << 63)),
    **dict.fromkeys(("f4", "f8"), (_bits(math.inf), _bits(-math.inf))),
}
"""What a range begins with in C, by the type: the first value is less, and greater."""


def _values(result: Array, kind: str) -> tuple[int | float, int | float, int | float]:
    """Return minimum, maximum and sum that C has computed of a field.

    result: one row of _RANGE. kind: the field's type, as ``u4``.
    """
    row = result[0]
    low, high = (int(word) for word in row["sum"])
    if kind[0] == "f":
        minimum, maximum, total = (float(word.view("<f8")) for word in (row["minimum"], row["maximum"], row["sum"][0]))
        return (math.nan, math.nan, total) if row["nans"] else (minimum, maximum, total)
    if kind[0] == "u":
        return int(row["minimum"]), int(row["maximum"]), low + (high << 64)
    return (
        int(row["minimum"].view("<i8")),
        int(row["maximum"].view("<i8")),
        low + (int(row["sum"][1].view("<i8")) << 64),
    )


def _kind(tiles: Tiles, name: str) -> tuple[str, int]:
    """Return a field's type without its byte order, such as ``u4``, and its offset in a record, in bytes."""
    fields: Any = tiles.records.dtype.fields
    kind, offset, *_ = fields[name]
    return kind.str[1:], offset


def _rows_of(tiles: Tiles, names: Sequence[str]) -> Array:
    """Return the table of fields that a pass in C takes: offset and type of each; what to do with them is still to be
    set.
    """
    rows = np.zeros(len(names), _FIELD)
    for row, name in zip(rows, names, strict=True):
        kind, row["offset"] = _kind(tiles, name)
        row["type"] = _TYPES[kind]
    return rows


def _visit(library: ctypes.CDLL, tiles: Tiles, rows: Array, saves: Array) -> int:
    """Let the C library go over all records of tiles once; return how many were saved.

    rows: the fields, and what to do with each. saves: u64, the greatest count of a slot and how many saves were
    dropped, which are added to.
    """
    launches, blocks, per_block, cap, lanes = tiles.records.shape
    size = tiles.records.dtype.itemsize
    shape = np.array([launches, tiles.records.strides[0], blocks, per_block, cap, lanes, tiles.threads, size], "<u8")
    counts = None if tiles.counts is None else tiles.counts.ctypes.data
    return int(
        library.nt_aggregate(
            tiles.records.ctypes.data, counts, shape.ctypes.data, rows.ctypes.data, len(rows), saves.ctypes.data
        )
    )


def _library_for(tiles: Tiles, names: Sequence[str]) -> ctypes.CDLL | None:
    """Return the C library if it is there and knows the types of these fields; None where NumPy has to do."""
    return _library() if all(_kind(tiles, name)[0] in _TYPES for name in names) else None


@functools.cache
def _library() -> ctypes.CDLL | None:
    """Return the library; None where it was not built, or from other sources. Calls of it release the GIL."""
    # C takes numbers as they are in memory.
    if sys.byteorder != "little":
        return None
    try:
        library = ctypes.CDLL(str(LIBRARY))
        library.nt_aggregate_interface.restype = ctypes.c_uint64
        if library.nt_aggregate_interface() != _INTERFACE:
            return None
        library.nt_aggregate.restype = ctypes.c_uint64
        library.nt_aggregate.argtypes = [*[ctypes.c_void_p] * 4, ctypes.c_uint64, ctypes.c_void_p]
    except (OSError, AttributeError):
        return None
    return library
