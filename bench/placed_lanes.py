"""Lanes that were at a line together, and what instructions between them give."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_, xor

from bench.placed_model import LANES, Case, inputs, lines
from bench.placed_records import Json, Recorded, active, existing_lanes, recorded_launches, slots_of
from bench.verdicts import need

_WORD = 0xFFFFFFFF

Found = Mapping[tuple[int, ...], Sequence[Mapping[str, int]]]
"""Slot → records, field by field."""

TOGETHER = ("WHOLE", "AGAIN")
"""Lines right after ``__syncwarp``, to which whole warps come together."""


def _rule(line: str, lane: int, x: int) -> bool:
    """Whether the test program lets a lane (of a warp, 0 to 31) with input x come to a source line. line: its name in
    the source."""
    rules = {"QUARTER": lane % 4 == 0, "SECOND": lane % 4 == 1, "CALLED": lane & 2 != 0, "TURN": x & 3 > 0}
    return rules.get(line, True)


@dataclass(frozen=True)
class Group:
    """Lanes that were at a line together. records: lane → record, field by field."""

    line: str
    mask: int
    records: Mapping[int, Mapping[str, int]]


def _line_names(recorded: Recorded) -> dict[int, str]:
    """Return the names of the source lines that probed places (sites) lie on, by the sites' numbers, as the checks know
    them."""
    names = {f"placed.cu:{number}": name for name, number in lines().items()}
    return {number: names.get(source.split(",")[0], source) for number, source in recorded.sites.items()}


def _groups(recorded: Recorded, name: str, found: Found) -> Iterator[Group]:
    """Yield the groups of lanes (threads of a warp) that were at a source line together, with what each lane recorded
    there.

    Each lane records the mask of the lanes that it was with, so all lanes of a mask must have as many records of the
    line. recorded: the launch. name: of the map; found: its records by block, warp, lane. Raises BrokenError where the
    masks contradict each other or the program.
    """
    shape, x = recorded.launch.shape, inputs(recorded.launch)[1]
    sites = _line_names(recorded)
    for (block, warp), existing in existing_lanes(shape).items():
        together: dict[tuple[str, int], dict[int, list[Mapping[str, int]]]] = {}
        for lane in range(LANES):
            for record in found.get((block, warp, lane), ()):
                mask, line = record["lanes"], sites[record["site"]]
                together.setdefault((line, mask), {}).setdefault(lane, []).append(record)
        for (line, mask), by_lane in together.items():
            where = f"seed {recorded.launch.seed}, {name}, block {block}, warp {warp}, {line}: lanes {mask:#010x}"
            members = [lane for lane in range(LANES) if mask >> lane & 1]
            need(set(members) == set(by_lane), f"{where}, but records of lanes {sorted(by_lane)}")
            need(len({len(rows) for rows in by_lane.values()}) == 1, f"{where}: not as many records of each")
            first = block * shape.block + warp * LANES
            wrong = [lane for lane in members if not _rule(line, lane, int(x[first + lane]))]
            need(not wrong, f"{where}, of which {wrong} do not come there")
            need(line not in TOGETHER or mask == existing, f"{where}, expected {existing:#010x}")
            for k in range(len(by_lane[members[0]])):
                yield Group(line, mask, {lane: by_lane[lane][k] for lane in members})


def _as_fields(recorded: Recorded, name: str) -> dict[tuple[int, ...], list[dict[str, int]]]:
    """Return the records of a map (what probes save to) by slot (block, warp, lane), each as a dict from field to
    value."""
    fields = [field for field, *_ in recorded.maps[name]["fields"]]
    return {
        slot: [dict(zip(fields, record, strict=True)) for record in records]
        for slot, records in slots_of(recorded, name).items()
    }


def collectives(mask: int, values: Mapping[int, int], lane: int) -> dict[str, int | None]:
    """Return what each instruction between lanes of placed_lanes.toml must give a lane, by the PTX manual.

    None: any value (from a lane outside). mask: the lanes that execute it together; values: of each of them.
    """
    same = sum(1 << other for other, value in values.items() if value == values[lane])
    is_same = same == mask
    odd = sum(1 << other for other, value in values.items() if value & 1)
    every = list(values.values())
    less = [value - 4 for value in every]
    lowest = min(values)
    bits = {other: other << 3 | value for other, value in values.items()}

    def moved(source: int, inside: bool) -> int | None:
        """What a shuffle gives this lane: the word of the lane ``source``, or its own word where there is no such lane
        (``inside`` false). None: that lane was not at the line, so any value will do.
        """
        return bits[lane] if not inside else bits.get(source)

    return {
        "value": values[lane], "any": same, "any64": same, "all": mask if is_same else 0, "alike": int(is_same),
        "all64": mask, "alike64": 1,
        "votes": int(odd == mask) | 2 * (odd != 0) | 4 * (odd in (0, mask)), "ballot": odd,
        "add": sum(every), "least": min(every), "greatest": max(every),
        "signed_add": sum(less) & _WORD, "signed_least": min(less) & _WORD, "signed_greatest": max(less) & _WORD,
        "and": reduce(and_, every), "or": reduce(or_, every), "xor": reduce(xor, every), "first": bits[lowest],
        "up": moved(lane - 1, lane >= 1), "up_inside": int(lane >= 1),
        "down": moved(lane + 2, lane + 2 < LANES), "down_inside": int(lane + 2 < LANES),
        "other": moved(lane ^ 4, True), "other_inside": 1, "moved": moved(values[lane], True),
    }  # fmt: skip


def judge_collectives(run: Json, case: Case) -> str:
    """Check what instructions between lanes gave every thread, by the manual, for the lanes that were at a line
    together. run: the results of the case. Returns a line of figures; raises BrokenError (by ``need``).
    """
    counted: dict[str, list[int]] = {}
    for recorded in recorded_launches(run, case):
        found = _as_fields(recorded, "Lanes")
        sites = _line_names(recorded)
        for place, thread in active(recorded.launch):
            rows = [(sites[record["site"]], record["value"]) for record in found.get(place, ())]
            expected = [(line, value & 7) for line, value in thread.others]
            need(rows == expected, f"seed {recorded.launch.seed}, Lanes{list(place)}: {rows}, expected {expected}")
        need(set(found) == {place for place, _ in active(recorded.launch)}, "records of threads that are not there")
        for group in _groups(recorded, "Lanes", found):
            values = {lane: record["value"] for lane, record in group.records.items()}
            for lane, record in group.records.items():
                for name, value in collectives(group.mask, values, lane).items():
                    said = f"seed {recorded.launch.seed}, {group.line}, lanes {group.mask:#010x}, lane {lane}: {name}"
                    need(value is None or record[name] == value, f"{said} is {record[name]}, expected {value}")
            counted.setdefault(group.line, []).append(len(values))
    return _told(counted)


def _told(counted: Mapping[str, Sequence[int]]) -> str:
    """Return a line on how many groups of lanes were at each source line, and of what size. counted: line → sizes of
    its groups.

    Raises BrokenError when a line that must have records has none.
    """
    missing = set(TOGETHER) - set(counted)
    need(not missing, f"no records at {', '.join(missing)}")
    parts = [f"{line} {len(sizes)} of {sum(sizes) / len(sizes):.1f}" for line, sizes in counted.items()]
    return f"groups, and lanes together: {', '.join(parts)}"


def judge_lines(run: Json, case: Case) -> str:
    """Check that every thread has a record for each line that it came to, and which lanes were there with it.

    run: the results of the case. Returns a line of figures; raises BrokenError (by ``need``).
    """
    counted: dict[str, list[int]] = {}
    for recorded in recorded_launches(run, case):
        found = _as_fields(recorded, "AtLine")
        sites = _line_names(recorded)
        for place, thread in active(recorded.launch):
            rows = [sites[record["site"]] for record in found.get(place, ())]
            expected = [line for line, _ in thread.others if line in ("WHOLE", "QUARTER", "TURN", "AGAIN")]
            need(rows == expected, f"seed {recorded.launch.seed}, AtLine{list(place)}: {rows}, expected {expected}")
        for group in _groups(recorded, "AtLine", found):
            for lane, record in group.records.items():
                for name in ("ballot", "any"):
                    said = f"{group.line}, lane {lane}: {name} is {record[name]:#010x}"
                    need(record[name] == group.mask, f"{said}, expected {group.mask:#010x}")
            counted.setdefault(group.line, []).append(len(group.records))
    return _told(counted)
