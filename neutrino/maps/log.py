"""``log``: as many records of each thread, warp or block as there is memory for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from neutrino.abi.levels import Level
from neutrino.ir.memory import AppendToLog, CloseLog, Kept, MapStatement
from neutrino.ir.operands import Register
from neutrino.maps.builder import Combining, Lanes, SavedValues
from neutrino.maps.declaration import Layout, Map, MapType
from neutrino.maps.log_columns import (
    LOG_CONTROL,
    LOG_HEADER,
    LOG_ROWS_MOST,
    LOG_UNIT,
    close_column,
    header_of,
    save_in_column,
)
from neutrino.maps.log_groups import GroupLayout, count_groups, read_groups
from neutrino.maps.log_shared import close_groups, save_in_group
from neutrino.maps.log_single import (
    LOG_LANE,
    LOG_LANE_HEADER,
    LOG_LANE_LEFT,
    LOG_LANE_ROWS,
    LOG_LANE_ROWS_AT,
    LOG_OWN,
    begin_alone,
    close_alone,
    make_room_alone,
    rooms,
    save_alone,
)

if TYPE_CHECKING:
    from neutrino.maps.declaration import Rows


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


@dataclass(frozen=True)
class Log(MapType):
    """All records that are saved, as far as the launch's memory reaches; those that do not fit are counted.

    Threads take chunks of the region. Where the lanes of a warp can exchange values, those that save together write a
    group, which holds what their records have in common once (``log_groups.py``), into a chunk of the lowest of them.
    Otherwise the lanes that need a chunk at the same time take one together, by one atomic. It has a column for each
    of these lanes, which it fills from row to row: ``[row][lane]``. At the levels warp and block the one lane that
    saves has chunks of its own.
    """

    name = "log"
    layout = Layout.CHUNKS
    stores_at_sites = True
    combines_lanes = True

    def describe(self, entry: Map) -> str:
        """Return a map in words: ``a log of records of 16 bytes per thread``."""
        return f"a log of records of {entry.size} bytes per {entry.level.value}"

    def save(self, entry: Map, saved: SavedValues) -> Sequence[MapStatement]:
        """Return the store of a record, in a chunk that the thread has or takes."""
        if _is_alone(entry, saved.lanes):
            return save_alone(entry, saved)
        layout = _groups(entry, saved.lanes)
        if layout is not None:
            return [AppendToLog(entry.span)] if saved.lanes.own_logs else save_in_group(entry, saved, layout)
        return save_in_column(entry, saved)

    def rooms(self, entry: Map) -> tuple[int, ...]:
        """Return for how many records there may be one test for room."""
        return rooms(entry.size)

    def make_room(self, entry: Map, need: int, most: int, when: Register | None) -> Sequence[MapStatement]:
        """Return what takes a chunk, if this thread's own has no room."""
        return make_room_alone(entry, need, most, when)

    def begin(self, entry: Map, kept: Sequence[Kept], lanes: Lanes) -> Sequence[MapStatement]:
        """Return what gives threads the chunks of their own, in a launch that has such chunks."""
        return begin_alone(entry) if _is_alone(entry, lanes) else ()

    def settle(self, entry: Map, kept: Sequence[Kept], lanes: Lanes) -> Sequence[MapStatement]:
        """Return the store of how many records the thread's last chunk has room for."""
        if _is_alone(entry, lanes):
            return close_alone(entry)
        layout = _groups(entry, lanes)
        if layout is not None:
            return [CloseLog(entry.span)] if lanes.own_logs else close_groups(entry, lanes, layout)
        return close_column(entry)

    @staticmethod
    def read(copies: Rows, row: Mapping[str, Any]) -> Rows:
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


def _groups(entry: Map, lanes: Lanes) -> GroupLayout | None:
    """The layout of a log's groups; None for one of columns, or of one lane's chunks."""
    if lanes.combining is not Combining.REDUCE or entry.level is not Level.THREAD:
        return None
    return GroupLayout.of(entry.fields, entry.size, lanes.number)


def _is_alone(entry: Map, lanes: Lanes) -> bool:
    """Whether the lane that saves has chunks of its own, not columns of shared ones."""
    return lanes.own_logs and entry.level is not Level.THREAD
