"""Record groups: the compact form of a log's records, in which the lanes that save together share what they can.

Whether the lanes of a warp save groups depends on the architecture and on the map (``GroupLayout.of``); otherwise each
has a column of whole records (``log.py``). docs/trace.md has the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neutrino.abi.records import Field
from neutrino.abi.structures import align_up

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[Any]

GROUP_ALIGN = 16
"""Groups begin at multiples of it, in bytes; so long is the header of a chunk of groups, too."""
GROUP_WORDS = 12
"""Bytes of a group before its strides: u32 mask of its lanes, u32 forms, 2 bits for each field, u32 order."""
GROUP_WIDE = 1 << 30
"""Of the shape in a chunk's header the bit that is 1 where a warp has 64 lanes: all masks of lanes in the groups of the
chunk are u64 then, at multiples of 4, and what follows them is 4 bytes further."""
GROUP_CHUNK_LEAST = 128
"""Bytes of a lane's first chunk of groups; each further one has twice as many, as far as the most."""
GROUP_CHUNK_MOST = 4096
GROUP_FIELDS_MOST = 10
"""Whose sizes a chunk's header has room for."""
GROUP_ROWS_AT = 20
"""Of the forms the bit from which on is, in 3 bits, 0 or the logarithm of the lanes in a row: the values of a field lie
in rows of lanes, as those of a tile do. A second stride takes them from row to row."""
GROUP_OWN_LANES_AT = 23
"""Of the forms the bit that is 1 if each further record has a mask of the lanes that have it, some of the group's. Then
no field has one of two values."""
GROUP_ROWS_FIELD_AT = 24
"""Of the forms the bit from which on is, in 4 bits, the number of that field."""
GROUP_FURTHER_AT = 28
"""Of the forms the bit from which on is, in 4 bits, how many further records each lane has, in which fields differ from
lane to lane by as much as in the first one. No field has an area then, but those with one of two values."""
GROUP_TWO_VALUES = 1
"""The form of a field of 1 or 2 bytes that has the lowest lane's value or one other: its area has u32 mask of the lanes
with the other, u32 that value."""
_SHAPE_BITS = 3
"""Of a field's size in a chunk's header: its logarithm plus one, so that 0 is no field."""
_STRIDED = 8
"""Bytes of a field that may have a stride: addresses have them."""


@dataclass(frozen=True)
class GroupLayout:
    """Where things are in a group of records with the same fields.

    shape: the sizes of the fields, as a chunk's header has them. strides: offsets of the strides, of the fields that
    have one. record: offset of the record of the lowest lane. head: bytes before the areas, what every group has. rows:
    offset of the stride from row to row, where there are rows: before the record, if there is room, or after the head.
    further: bytes of the lowest lane's part of further records, each at the end of the group, with u32 at offset later:
    how much greater its order is than that of the first; and the mask as in the area of a field with one of two values.
    masks: bytes of a mask of lanes.
    """

    shape: int
    strides: dict[int, int]
    record: int
    head: int
    rows: int
    later: int
    further: int
    masks: int

    @classmethod
    def of(cls, fields: Sequence[Field], size: int, lanes: int = 32) -> GroupLayout | None:
        """Return the layout for records of these fields and this size in bytes, None if they are too many fields.

        lanes: of a warp, 32 or 64.
        """
        sizes = [field.type.size for field in fields]
        if len(fields) > GROUP_FIELDS_MOST:
            return None
        shape = sum(bytes_.bit_length() << _SHAPE_BITS * number for number, bytes_ in enumerate(sizes))
        strided = [number for number, bytes_ in enumerate(sizes) if bytes_ == _STRIDED]
        masks = lanes // 8
        words = GROUP_WORDS - 4 + masks
        shape |= GROUP_WIDE * (lanes > 32)
        strides = {number: words + 4 * place for place, number in enumerate(strided)}
        end = words + 4 * len(strides)
        record = align_up(end, max(sizes))
        head = align_up(record + size, GROUP_ALIGN)
        later = align_up(size, 4)
        further = align_up(later + 4 + masks, GROUP_ALIGN)
        return cls(shape, strides, record, head, end if end < record else head, later, further, masks)


def lanes_at(words: Array, mask_words: int, places: Array) -> Any:
    """Return a row for each mask of lanes, with 1 for those in it.

    words: of a log, u32. mask_words: of a mask. places: of the masks, in bytes.
    """
    import numpy as np

    masks = words[places[:, None] // 4 + np.arange(mask_words)]
    return np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")


def read_groups(data: Array, chunks: Array, shape: int, row_type: np.dtype[Any]) -> Array:
    """Return the records of chunks of groups, as ``Log.read`` does, but for ``order``, which only grows in each lane.

    data: uint8, whole units. chunks: rows of a chunk's first byte, its end and its slot. shape: as in their headers.
    """
    import numpy as np

    # Words of a mask of lanes.
    mask_words = 2 if shape & GROUP_WIDE else 1
    shape &= ~GROUP_WIDE
    # The fields: sizes, and offsets as C has them.
    sizes, offsets, end = [], [], 0
    while 1 <= shape & 7 <= 4:
        sizes.append(1 << (shape & 7) - 1)
        offsets.append(-(-end // sizes[-1]) * sizes[-1])
        end = offsets[-1] + sizes[-1]
        shape >>= 3
    record_size = row_type["record"].itemsize
    if shape or not sizes or -(-end // max(sizes)) * max(sizes) != record_size:
        return np.empty(0, row_type)
    words_end = GROUP_WORDS + 4 * (mask_words - 1)
    rows_at = words_end + 4 * sizes.count(8)
    record = -(-rows_at // max(sizes)) * max(sizes)
    head = -(-(record + record_size) // GROUP_ALIGN) * GROUP_ALIGN
    later = -(-record_size // 4) * 4
    size_of_further = -(-(later + 4 + 4 * mask_words) // GROUP_ALIGN) * GROUP_ALIGN
    words = data.view("<u4")
    if rows_at == record:
        rows_at = head

    # The groups: of all chunks the first one, then of all chunks the next one, and so on.
    at, ends, slots = chunks[:, 0] + GROUP_ALIGN, chunks[:, 1], chunks[:, 2]
    found = [np.empty((4 + len(sizes), 0), np.int64)]
    while len(at):
        has_head = at + head <= ends
        at, ends, slots = at[has_head], ends[has_head], slots[has_head]
        forms = words[at // 4 + mask_words].astype(np.int64)
        lanes = lanes_at(words, mask_words, at).sum(axis=1, dtype=np.int64)
        areas, after = [], at + head
        for number, size in enumerate(sizes):
            areas.append(after)
            width = np.minimum((1 << (forms >> 2 * number & 3)) & ~1, size)
            is_mask = (size <= 2) & (forms >> 2 * number & 3 == GROUP_TWO_VALUES)
            after = after + np.where(is_mask, 8 * mask_words, lanes * width + 7 & ~7)
        after = -(-after // GROUP_ALIGN) * GROUP_ALIGN
        if rows_at == head:
            after = after + GROUP_ALIGN * (forms >> GROUP_ROWS_AT & 7 != 0)
        further, after = after, after + size_of_further * (forms >> GROUP_FURTHER_AT)
        is_whole = (lanes > 0) & (after <= ends)
        found.append(np.stack([at, slots, lanes, further, *areas])[:, is_whole])
        at, ends, slots = after[is_whole], ends[is_whole], slots[is_whole]
    at, slots, lanes, further, *areas = np.concatenate(found, axis=1)
    # Further records are as groups of their own, with the head of the first.
    first = record + at
    times = 1 + (words[at // 4 + mask_words] >> GROUP_FURTHER_AT).astype(np.int64)
    part = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
    is_further = part > 0
    at, slots, lanes, further, first, *areas = [
        np.repeat(column, times) for column in (at, slots, lanes, further, first, *areas)
    ]
    first = np.where(is_further, further + (part - 1) * size_of_further, first)
    orders = words[at // 4 + mask_words + 1] + np.where(is_further, words[(first + later) // 4 * is_further], 0)

    # A row for each lane of each group. rank: of the lane among those of its group's head.
    bits = lanes_at(words, mask_words, at)
    ranks = np.cumsum(bits, axis=1) - 1
    own = is_further & (words[at // 4 + mask_words] >> GROUP_OWN_LANES_AT & 1 != 0)
    bits[own] = lanes_at(words, mask_words, (first + later + 4)[own])
    group, lane = np.nonzero(bits)
    rank = ranks[group, lane].astype(np.int64)
    records = np.zeros((len(group), record_size), np.uint8)
    stride_at, split = words_end, words[at // 4 + mask_words]
    # Only the first record has areas with a value for each lane.
    small = sum(GROUP_TWO_VALUES << 2 * place for place, size in enumerate(sizes) if size <= 2)
    split[is_further] &= np.uint32(0xFFF << GROUP_ROWS_AT | small)
    to_next = words[np.minimum(at + rows_at, len(data) - 4) // 4].view("<i4").astype(np.int64)
    for number, (size, offset) in enumerate(zip(sizes, offsets, strict=True)):
        form = split >> 2 * number & 3
        values = data.view(f"<u{size}")[(first + offset) // size][group]
        if size == 8:
            stride = np.where(form == 0, words[(at + stride_at) // 4].view("<i4"), 0).astype(np.int64)
            # From lane to lane, and of a field in rows from row to row; else all are in one.
            log = np.where(split >> GROUP_ROWS_FIELD_AT & 15 == number, split >> GROUP_ROWS_AT & 7, 0)
            log = np.where(log, log, 6).astype(np.int64)[group]
            steps = stride[group] * (rank & (1 << log) - 1) + to_next[group] * (rank >> log)
            values += steps.view(np.uint64)
            stride_at += 4
        if size <= 2:
            two = np.flatnonzero((form == GROUP_TWO_VALUES)[group])
            of_two = group[two]
            place = np.where(is_further, first + later + 4, areas[number])[of_two] // 4
            has_other = words[place + lane[two] // 32] >> (lane[two] % 32).astype(np.uint32) & 1 != 0
            other = words[areas[number][of_two] // 4 + mask_words]
            values[two] = np.where(has_other, other.astype(values.dtype), values[two])
        # What was added to the lowest lane's value, in 2 or 4 bytes; or the value itself.
        for code, kind in ((1, "<i2"), (2, "<i4"), (3, f"<u{size}")):
            chosen = np.flatnonzero((form == code)[group] & (code == 3 or 1 << code < size))
            stored = data.view(kind)[areas[number][group[chosen]] // np.dtype(kind).itemsize + rank[chosen]]
            values[chosen] = stored if code == 3 else values[chosen] + stored.astype(f"<i{size}").view(values.dtype)
        records[:, offset : offset + size] = values.view(np.uint8).reshape(-1, size)
    rows = np.empty(len(group), row_type)
    rows["slot"], rows["lane"], rows["order"] = slots[group], lane, orders[group]
    rows["record"] = records.view(row_type["record"]).reshape(-1)
    return rows


def count_groups(data: Array, chunks: Array, shape: int, record_size: int) -> Array:
    """Return how many records each chunk of groups has, int64: much cheaper than reading them.

    data, shape: as for ``read_groups``. chunks: rows of a chunk's first byte and its end. record_size: in bytes.
    """
    import numpy as np

    counts = np.zeros(len(chunks), np.int64)
    sizes: list[int] = []
    mask_words = 2 if shape & GROUP_WIDE else 1
    shape &= ~GROUP_WIDE
    while 1 <= shape & 7 <= 4:
        sizes.append(1 << (shape & 7) - 1)
        shape >>= _SHAPE_BITS
    if shape or not sizes:
        return counts
    end = GROUP_WORDS + 4 * (mask_words - 1) + 4 * sizes.count(_STRIDED)
    record = align_up(end, max(sizes))
    head = align_up(record + record_size, GROUP_ALIGN)
    further = align_up(align_up(record_size, 4) + 4 + 4 * mask_words, GROUP_ALIGN)
    words = data.view("<u4")

    # As read_groups: of all chunks the first group, then of all chunks the next one, and so on.
    number, at, ends = np.arange(len(chunks)), chunks[:, 0] + GROUP_ALIGN, chunks[:, 1]
    while len(at):
        has_head = at + head <= ends
        number, at, ends = number[has_head], at[has_head], ends[has_head]
        forms = words[at // 4 + mask_words].astype(np.int64)
        lanes = lanes_at(words, mask_words, at).sum(axis=1, dtype=np.int64)
        after = at + head
        for field, size in enumerate(sizes):
            width = np.minimum((1 << (forms >> 2 * field & 3)) & ~1, size)
            is_mask = (size <= 2) & (forms >> 2 * field & 3 == GROUP_TWO_VALUES)
            after = after + np.where(is_mask, 8 * mask_words, lanes * width + 7 & ~7)
        after = -(-after // GROUP_ALIGN) * GROUP_ALIGN
        if end == record:
            after = after + GROUP_ALIGN * (forms >> GROUP_ROWS_AT & 7 != 0)
        begin, times = after, forms >> GROUP_FURTHER_AT
        after = after + further * times
        is_whole = (lanes > 0) & (after <= ends)
        records = lanes * (1 + times)
        own = np.flatnonzero(is_whole & (forms >> GROUP_OWN_LANES_AT & 1 != 0))
        records[own] = lanes[own]
        for place in range(int(times[own].max(initial=0))):
            own = own[times[own] > place]
            masks = begin[own] + further * place + align_up(record_size, 4) + 4
            records[own] += lanes_at(words, mask_words, masks).sum(axis=1, dtype=np.int64)
        np.add.at(counts, number[is_whole], records[is_whole])
        number, at, ends = number[is_whole], after[is_whole], ends[is_whole]
    return counts
