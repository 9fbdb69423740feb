"""How a log lies in memory, and its readers, of the same launch's region.

Threads write chunks of three kinds: of columns of whole records, of one lane, and of groups, the compact form, in which
lanes that save together share what they can. docs/trace.md has the layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from neutrino.abi.records import Field
from neutrino.abi.structures import align_up

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from neutrino.maps.declaration import Rows

    Array = npt.NDArray[Any]

LOG_CONTROL = 128
"""Bytes of a log's region before its chunks: u64 the units that chunks took, or would have taken with more memory; u64
the records that did not fit; and at ``LOG_OWN``, for which these units come on top."""
LOG_UNIT = 32
"""Bytes; chunks begin at multiples of it."""
LOG_HEADER = 64
"""Bytes of a chunk before its records: u32 the slot (its warp, at block level its block), u32 a mask of the lanes that
have it, u32 rows, u32 the mask of lanes from 32 on; then a byte for each of these lanes, how many of its rows are not
filled. More than 48 lanes take ``LOG_UNIT`` more. A chunk of groups has no rows: u32 the slot, u32 the shape of its
records, u32 0, u32 its units; then the groups."""
LOG_ROWS_MOST = 32
"""Records of a lane in a chunk of columns, at most. Its first chunk has one row, each further one twice as many."""
LOST_WORD = 1
"""The word of the control words that counts the records that did not fit."""
LOG_OWN = 16
"""Where in the control words a launch has u64 the units of the first chunks of all warps, before all other chunks; u64
those of each. A warp without records leaves them zero."""
LOG_LANE_HEADER = 16
"""Bytes of a chunk of one lane, the first of a warp or of a block, before its records: u32 the slot; u32 ``LOG_LANE``
and from bit ``LOG_LANE_ROWS_AT`` on its rows; u32 0; at ``LOG_LANE_LEFT`` u32 how many of these it has not filled."""
LOG_LANE, LOG_LANE_ROWS_AT, LOG_LANE_ROWS, LOG_LANE_LEFT = 1 << 31, 16, 0x7FFF, 12
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
GROUP_SHORT_FIELDS = 9
"""Groups of records with more fields have no short further records."""
GROUP_IN_TURN_AT, GROUP_SHORT_AT = 18, 19
"""Of the forms of a group with further records the bit that is 1 if these are short: u32 words, first those of the
fields, but for those that have one of two values or the form ``GROUP_LEFT_OUT``, of 8 bytes s32 how much they are
beyond those of the first record; then the order, unless the other bit says that each is greater by 1 than the one
before; then the mask, if there is one. Up to a multiple of 16 bytes."""
GROUP_LEFT_OUT = 3
"""The form of a field that is the same in short further records as in the first one. It has no area."""
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


def header_of(lanes: int) -> int:
    """Return the bytes of a chunk before its records, by how many lanes have it."""
    return max(LOG_HEADER, align_up(16 + lanes, LOG_UNIT))


def chunks(region: Rows, size: int) -> Rows:
    """Return where the chunks of one launch's log are: int64 ``[chunk][4]``, its first unit, how many units, its slot
    (the warp in the grid, at block level the block), and how many records it has.

    region: the log's bytes, uint8. size: of a record, in bytes. Much cheaper than reading the records.
    """
    import numpy as np

    units, own, own_each = _opened(region)
    heads = _heads(units, own, own_each, size)
    found = [
        (head.at, head.length, head.slot, head.rows, head.mask.bit_count() if head.rows else head.mask)
        for head in heads
    ]
    table = np.array(found, np.int64).reshape(-1, 5)
    # Of chunks of one lane these are its records.
    counts = np.where(table[:, 4], 0, table[:, 3])
    # Chunks of rows: after 16 bytes, how many rows each lane has left.
    of_rows = np.flatnonzero(table[:, 3] * table[:, 4])
    if of_rows.size:
        firsts, rows_each, lanes = table[of_rows, 0], table[of_rows, 3], table[of_rows, 4]
        # Those of 64 lanes are in three units; others have a record in the third.
        heads = units.reshape(-1, LOG_UNIT)[firsts[:, None] + np.arange(LOG_HEADER // LOG_UNIT + 1)]
        left = heads.reshape(len(of_rows), -1)[:, 16:80]
        filled = np.maximum(rows_each[:, None] - left, 0)
        filled[np.arange(filled.shape[1]) >= lanes[:, None]] = 0
        counts[of_rows] = filled.sum(axis=1, dtype=np.int64)
    of_groups = (table[:, 3] == 0) & (table[:, 4] != 0)
    for shape in np.unique(table[of_groups, 4]).tolist():
        chosen = np.flatnonzero(of_groups & (table[:, 4] == shape))
        ends = np.column_stack([table[chosen, 0], table[chosen, 0] + table[chosen, 1]]) * LOG_UNIT
        counts[chosen] = count_groups(units, ends, shape, size)
    return np.column_stack([table[:, :3], counts])


class _Head(NamedTuple):
    """The head of a chunk. at, length: in units. slot: whose it is. mask: of the lanes of a chunk of rows, the shape of
    the records of one of groups, 0 of one lane's. rows: of a chunk of rows how many it has, of one lane's how many
    records, else 0."""

    at: int
    length: int
    slot: int
    mask: int
    rows: int


def _opened(region: Rows) -> tuple[Rows, int, int]:
    """Return the units of a log that were taken, as bytes; how many of them by chunks of warps, and by each of these.
    region: the log's bytes, uint8."""
    import numpy as np

    dynamic, own, own_each = region[[*range(8), *range(16, 32)]].view("<u8").tolist()
    taken = min(dynamic + own, (len(region) - LOG_CONTROL) // LOG_UNIT)
    return np.ascontiguousarray(region[LOG_CONTROL : LOG_CONTROL + taken * LOG_UNIT]), own, own_each


def _heads(units: Rows, own: int, own_each: int, size: int) -> Iterator[_Head]:
    """Yield the heads of a log's chunks, as ``Log.read`` finds them.

    units, own, own_each: as ``_opened`` returns them. size: of a record, in bytes.
    """
    # A launch of many warps has a chunk for each: memory is read faster than elements of an array.
    words = units.view("<u4").data
    at, step, taken = 0, LOG_UNIT // 4, len(units) // LOG_UNIT
    while at < taken:
        slot, mask, rows, length = words[at * step : at * step + 4]
        is_of_lane = mask & LOG_LANE and not rows
        left = 0
        if is_of_lane:
            left, rows, mask = length, mask >> LOG_LANE_ROWS_AT & LOG_LANE_ROWS, 0
            length = -(-(LOG_LANE_HEADER + rows * size) // LOG_UNIT)
        elif rows:
            mask |= length << 32
            lanes = mask.bit_count()
            length = -(-(header_of(lanes) + lanes * rows * size) // LOG_UNIT)
        if (mask or is_of_lane) and length and at + length <= taken:
            yield _Head(at, length, slot, mask, max(rows - left, 0) if is_of_lane else rows)
        elif at >= own or not own_each:
            # The last one did not fit, so that nothing was written; else it is a warp without records.
            return
        at += own_each if at < own and own_each else length


def first_slots(region: Rows, size: int, most: int) -> Rows:
    """Return a log with the chunks of its first slots alone, as many slots as have ``most`` records together.

    region, size: as for ``chunks``.
    """
    import numpy as np

    found = chunks(region, size)
    found = found[np.argsort(found[:, 2], kind="stable")]
    enough = np.flatnonzero(np.cumsum(found[:, 3]) >= most)
    if enough.size:
        found = found[found[:, 2] <= found[enough[0], 2]]
    parts = [region[LOG_CONTROL + at * LOG_UNIT :][: length * LOG_UNIT] for at, length in found[:, :2].tolist()]
    control = np.array(region[:LOG_CONTROL])
    control[LOG_OWN : LOG_OWN + 16] = 0
    control[:8] = np.frombuffer(np.uint64(found[:, 1].sum()).tobytes(), np.uint8)
    return np.concatenate([control, *parts])


def slices(region: Rows, size: int, most: int) -> Iterator[Rows]:
    """Yield the chunks of a log as smaller logs, of hardly more than ``most`` bytes each, one after the other.

    ``Log.read`` of them gives all records once. What it says of their order holds within each of them: the chunks of a
    lane are spread over several. region, size: as for ``chunks``.
    """
    import numpy as np

    units, own, own_each = _opened(region)

    def cut(first: int, end: int) -> Rows:
        """Return a log of the units from first up to end, with a beginning that says how many it has."""
        of_warps = min(max(own - first, 0), end - first)
        control = np.zeros(LOG_CONTROL // 8, "<u8")
        control[[0, LOG_OWN // 8, LOG_OWN // 8 + 1]] = end - first - of_warps, of_warps, own_each
        return np.concatenate([control.view(np.uint8), units[first * LOG_UNIT : end * LOG_UNIT]])

    # Where the slice begins, and where its last chunk ends: after that may be warps without records, and may be all.
    first = end = 0
    for head in _heads(units, own, own_each, size):
        if end > first and (head.at - first) * LOG_UNIT >= most:
            yield cut(first, end)
            end = first
        if end == first:
            first = head.at
        end = head.at + head.length
    if end > first:
        yield cut(first, end)


def slot_slices(region: Rows, size: int, most: int) -> Iterator[Rows]:
    """Yield a log as smaller logs with all chunks of some slots each, in the order of the slots.

    They have hardly more than ``most`` bytes, unless a single slot has more. ``Log.read`` of them, one after the other,
    gives the same rows as of the whole. region, size: as for ``chunks``.
    """
    import numpy as np

    units, own, own_each = _opened(region)
    found = _heads(units, own, own_each, size)
    places = ((head.slot, head.at, head.length) for head in found)
    heads = np.fromiter(places, np.dtype([("slot", "<u4"), ("at", "<u4"), ("length", "<u4")]))
    heads = heads[np.argsort(heads["slot"], kind="stable")]
    # Where each slot's chunks end, and how many units there are up to there.
    ends = np.append(np.flatnonzero(heads["slot"][1:] != heads["slot"][:-1]) + 1, len(heads))
    sums = np.append(0, np.cumsum(heads["length"], dtype=np.int64))
    begin = 0
    while begin < len(heads):
        number = int(np.searchsorted(sums[ends], sums[begin] + most // LOG_UNIT, side="right"))
        end = int(ends[max(number - 1, int(np.searchsorted(ends, begin, side="right")))])
        part, length = heads[begin:end], int(sums[end] - sums[begin])
        firsts = part["at"] - (sums[begin:end] - sums[begin])
        chosen = np.repeat(firsts, part["length"]) + np.arange(length)
        control = np.zeros(LOG_CONTROL, np.uint8)
        control[:8] = np.frombuffer(np.uint64(length).tobytes(), np.uint8)
        yield np.concatenate([control, units.reshape(-1, LOG_UNIT)[chosen].reshape(-1)])
        begin = end


def read_log(copies: Rows, row: Mapping[str, Any]) -> Rows:
    """Return the records of a log, ordered by slot, lane and the order in which the lane saved them.

    copies: the region's bytes, uint8, of one launch. The rows have ``slot`` (the warp in the grid, at block level
    the block), ``lane``, ``order`` (from 0 in each lane) and ``record``, a record's bytes.
    """
    import numpy as np

    size = row["size"]
    dynamic, own, own_each = copies[[*range(8), *range(16, 32)]].view("<u8").tolist()
    taken = min(dynamic + own, (len(copies) - LOG_CONTROL) // LOG_UNIT)
    units = copies[LOG_CONTROL : LOG_CONTROL + taken * LOG_UNIT].reshape(-1, LOG_UNIT)
    words = np.ascontiguousarray(units).reshape(-1).view("<u4")
    # Chunks of one form, a mask and a number of rows, are read together: form → the first unit of each. Those of
    # one lane have no mask.
    # Of chunks of groups their first byte, their end and their slot, by the shape of the records.
    forms: dict[tuple[int, int, int], list[int]] = {}
    groups: dict[int, list[tuple[int, int, int]]] = {}
    at, words_of_unit = 0, LOG_UNIT // 4
    while at < taken:
        slot, mask, rows, length = words[at * words_of_unit : at * words_of_unit + 4].tolist()
        is_of_lane = mask & LOG_LANE and not rows
        if is_of_lane:
            rows, mask = mask >> LOG_LANE_ROWS_AT & LOG_LANE_ROWS, 0
            length = -(-(LOG_LANE_HEADER + rows * size) // LOG_UNIT)
        elif rows:
            # Of a warp of 64 lanes with the mask of the upper ones, and a header that may be a unit longer.
            mask |= length << 32
            columns = mask.bit_count()
            length = -(-(LOG_HEADER + LOG_UNIT * (columns > 48) + columns * rows * size) // LOG_UNIT)
        if not (mask or is_of_lane) or not length or at + length > taken:
            # A warp may have no records; and the last chunk may not have fitted, so that nothing was written.
            if at < own and own_each:
                at += own_each
                continue
            break
        if rows:
            forms.setdefault((mask, rows, length), []).append(at)
        elif mask:
            groups.setdefault(mask, []).append((at * LOG_UNIT, (at + length) * LOG_UNIT, slot))
        at += own_each if at < own and own_each else length
    row_type = np.dtype([("slot", "<u4"), ("lane", "<u4"), ("order", "<u4"), ("record", f"V{size}")])
    parts, places = [np.empty(0, row_type)], [np.empty(0, np.int64)]
    for (mask, rows, length), firsts in forms.items():
        lanes = np.array([lane for lane in range(64) if (mask or 1) >> lane & 1])
        chunks = units[np.array(firsts)[:, None] + np.arange(length)].reshape(len(firsts), -1)
        begin = LOG_HEADER + LOG_UNIT * (len(lanes) > 48) if mask else LOG_LANE_HEADER
        records = np.ascontiguousarray(chunks[:, begin : begin + rows * len(lanes) * size])
        part = np.empty((len(firsts), rows, len(lanes)), row_type)
        part["record"] = records.view(f"V{size}").reshape(part.shape)
        part["slot"] = np.ascontiguousarray(chunks[:, :4]).view("<u4")[:, :, None]
        part["lane"] = lanes
        left = chunks[:, 16 : 16 + len(lanes)]
        if not mask:
            left = np.ascontiguousarray(chunks[:, LOG_LANE_LEFT : LOG_LANE_LEFT + 4]).view("<u4")
        filled = rows - left.astype(np.int64)
        is_filled = np.arange(rows)[:, None] < filled[:, None, :]
        place = np.array(firsts)[:, None, None] * LOG_ROWS_MOST + np.arange(rows)[:, None]
        parts.append(part[is_filled])
        places.append(np.broadcast_to(place, part.shape)[is_filled])
    for shape, members in groups.items():
        rows_of_groups = read_groups(units.reshape(-1), np.array(members), shape, row_type)
        parts.append(rows_of_groups)
        places.append(rows_of_groups["order"].astype(np.int64))
    found, place = np.concatenate(parts), np.concatenate(places)
    found = found[np.lexsort((place, found["lane"], found["slot"]))]
    is_first = np.ones(len(found), bool)
    is_first[1:] = (found["slot"][1:] != found["slot"][:-1]) | (found["lane"][1:] != found["lane"][:-1])
    begins = np.flatnonzero(is_first)
    found["order"] = np.arange(len(found)) - np.repeat(begins, np.diff(np.append(begins, len(found))))
    return found


def lanes_at(words: Array, mask_words: int, places: Array) -> Any:
    """Return a row for each mask of lanes, with 1 for those in it.

    words: of a log, u32. mask_words: of a mask. places: of the masks, in bytes.
    """
    import numpy as np

    masks = words[places[:, None] // 4 + np.arange(mask_words)]
    return np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")


def further_layout(
    forms: Array, sizes: Sequence[int], offsets: Sequence[int], record_size: int, mask_words: int
) -> dict[str, Any]:
    """Return where things are in the further records of groups, by the words with their forms, int64: the ``size`` of
    each in bytes, of each field its place (``places``), that of the ``order`` and of the ``mask``, -1 for what it
    lacks; which are short (``is_short``); and the ``forms`` of the first record.

    sizes, offsets: of the fields in whole records, which have record_size bytes. mask_words: of a mask of lanes.
    """
    import numpy as np

    is_short = (forms >> GROUP_SHORT_AT & 1 != 0) & (forms >> GROUP_FURTHER_AT != 0) & (len(sizes) <= 9)
    has_mask = forms >> GROUP_OWN_LANES_AT & 1 != 0
    at, places, plain = np.zeros_like(forms), [], forms & ~np.where(is_short, 3 << GROUP_IN_TURN_AT, 0)
    for number, (size, offset) in enumerate(zip(sizes, offsets, strict=True)):
        form = forms >> 2 * number & 3
        is_two = (size <= 2) & (form == GROUP_TWO_VALUES)
        is_left_out = is_short & (form == GROUP_LEFT_OUT)
        has_mask = has_mask | is_two
        is_there = ~(is_left_out | is_two)
        places.append(np.where(is_short, np.where(is_there, at, -1), offset))
        at = at + 4 * is_there
        plain = plain & ~np.where(is_left_out, 3 << 2 * number, 0)
    has_order = forms >> GROUP_IN_TURN_AT & 1 == 0
    order = np.where(is_short, np.where(has_order, at, -1), -(-record_size // 4) * 4)
    mask = np.where(is_short, at + 4 * has_order, -(-record_size // 4) * 4 + 4)
    end = mask + 4 * mask_words * (has_mask | ~is_short)
    size_of_each = -(-end // GROUP_ALIGN) * GROUP_ALIGN
    return {
        "size": size_of_each, "places": places, "order": order, "mask": mask, "is_short": is_short, "forms": plain,
    }  # fmt: skip


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
        later = further_layout(forms, sizes, offsets, record_size, mask_words)
        times, forms = forms >> GROUP_FURTHER_AT, later["forms"]
        areas, after = [], at + head
        for number, size in enumerate(sizes):
            areas.append(after)
            width = np.minimum((1 << (forms >> 2 * number & 3)) & ~1, size)
            is_mask = (size <= 2) & (forms >> 2 * number & 3 == GROUP_TWO_VALUES)
            after = after + np.where(is_mask, 8 * mask_words, lanes * width + 7 & ~7)
        after = -(-after // GROUP_ALIGN) * GROUP_ALIGN
        if rows_at == head:
            after = after + GROUP_ALIGN * (forms >> GROUP_ROWS_AT & 7 != 0)
        further, after = after, after + later["size"] * times
        is_whole = (lanes > 0) & (after <= ends)
        found.append(np.stack([at, slots, lanes, further, *areas])[:, is_whole])
        at, ends, slots = after[is_whole], ends[is_whole], slots[is_whole]
    at, slots, lanes, further, *areas = np.concatenate(found, axis=1)
    # Further records are as groups of their own, with the head of the first.
    times = 1 + (words[at // 4 + mask_words] >> GROUP_FURTHER_AT).astype(np.int64)
    part = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
    is_further = part > 0
    at, slots, lanes, further, *areas = [np.repeat(column, times) for column in (at, slots, lanes, further, *areas)]
    all_forms = words[at // 4 + mask_words].astype(np.int64)
    later = further_layout(all_forms, sizes, offsets, record_size, mask_words)
    is_short = is_further & later["is_short"]
    further = further + (part - 1) * later["size"]
    has_order = is_further & (later["order"] >= 0)
    given = words[np.where(has_order, further + later["order"], 0) // 4]
    orders = words[at // 4 + mask_words + 1] + np.where(has_order, given, part.astype(np.uint32))

    # A row for each lane of each group. rank: of the lane among those of its group's head.
    bits = lanes_at(words, mask_words, at)
    ranks = np.cumsum(bits, axis=1) - 1
    own = is_further & (words[at // 4 + mask_words] >> GROUP_OWN_LANES_AT & 1 != 0)
    bits[own] = lanes_at(words, mask_words, (further + later["mask"])[own])
    group, lane = np.nonzero(bits)
    rank = ranks[group, lane].astype(np.int64)
    records = np.zeros((len(group), record_size), np.uint8)
    stride_at, split = words_end, later["forms"].astype(np.uint32)
    # Only the first record has areas with a value for each lane.
    small = sum(GROUP_TWO_VALUES << 2 * place for place, size in enumerate(sizes) if size <= 2)
    split[is_further] &= np.uint32(0xFFF << GROUP_ROWS_AT | small)
    to_next = words[np.minimum(at + rows_at, len(data) - 4) // 4].view("<i4").astype(np.int64)
    for number, (size, offset) in enumerate(zip(sizes, offsets, strict=True)):
        form = split >> 2 * number & 3
        source = np.where(is_further & ~is_short, further, at + record) + offset
        values = data.view(f"<u{size}")[source // size]
        # In short further records four bytes, or nothing where it is as in the first one.
        given = np.flatnonzero(is_short & (later["places"][number] >= 0))
        word = words[(further + later["places"][number])[given] // 4]
        values[given] = values[given] + word.view("<i4").astype("<u8") if size == 8 else word.astype(values.dtype)
        values = values[group]
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
            place = np.where(is_further, further + later["mask"], areas[number])[of_two] // 4
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
    words = data.view("<u4")

    # As read_groups: of all chunks the first group, then of all chunks the next one, and so on.
    number, at, ends = np.arange(len(chunks)), chunks[:, 0] + GROUP_ALIGN, chunks[:, 1]
    while len(at):
        has_head = at + head <= ends
        number, at, ends = number[has_head], at[has_head], ends[has_head]
        forms = words[at // 4 + mask_words].astype(np.int64)
        lanes = lanes_at(words, mask_words, at).sum(axis=1, dtype=np.int64)
        times = forms >> GROUP_FURTHER_AT
        further = further_layout(forms, sizes, sizes, record_size, mask_words)
        forms = further["forms"]
        after = at + head
        for field, size in enumerate(sizes):
            width = np.minimum((1 << (forms >> 2 * field & 3)) & ~1, size)
            is_mask = (size <= 2) & (forms >> 2 * field & 3 == GROUP_TWO_VALUES)
            after = after + np.where(is_mask, 8 * mask_words, lanes * width + 7 & ~7)
        after = -(-after // GROUP_ALIGN) * GROUP_ALIGN
        if end == record:
            after = after + GROUP_ALIGN * (forms >> GROUP_ROWS_AT & 7 != 0)
        begin = after
        after = after + further["size"] * times
        is_whole = (lanes > 0) & (after <= ends)
        records = lanes * (1 + times)
        own = np.flatnonzero(is_whole & (forms >> GROUP_OWN_LANES_AT & 1 != 0))
        records[own] = lanes[own]
        for place in range(int(times[own].max(initial=0))):
            own = own[times[own] > place]
            masks = (begin + further["size"] * place + further["mask"])[own]
            records[own] += lanes_at(words, mask_words, masks).sum(axis=1, dtype=np.int64)
        np.add.at(counts, number[is_whole], records[is_whole])
        number, at, ends = number[is_whole], after[is_whole], ends[is_whole]
    return counts
