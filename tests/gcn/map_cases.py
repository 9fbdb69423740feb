"""Maps that threads save to, and what each of them has afterwards, by a plain model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from tests.gcn.map_runs import BLOCK, GRID, Case, Ran, Saved, rows

Rows = list[tuple[Any, ...]]


def _signed(k: int) -> int:
    return k - (1 << 32) if k >> 31 else k


WIDE = "nl.u64(k) << 29"


def _case(
    fields: str, declared: str, values: str, model: Callable[[int], tuple[float, ...]], level: str = "thread"
) -> Case:  # fmt: skip
    """fields: as ``a:u64 b:u32``."""
    named = tuple((name, type_) for name, _, type_ in (one.partition(":") for one in fields.split()))
    return Case(declared, named, values, model, level)


def _number(k: int) -> tuple[int, ...]:
    return (k,)


def _wide(k: int) -> tuple[int, ...]:
    return (k << 29,)


POWERS = 'type="histogram", scale="log2"'
SAME = "nl.select(k & 5 != 0, 9, 3)"
"""9 in all lanes that save, which the code of a probe does not know."""
CASES: dict[str, Case] = {
    "array": _case(
        "a:u64 b:u32 c:u16 d:s16", 'type="array", cap=1', f"{WIDE}, k, nl.u16(k), nl.s16(k)",
        lambda k: (k << 29, k, k & 0xFFFF, (k & 0x7FFF) - (k & 0x8000)),
    ),
    "array of warps": _case("a:u64", 'type="array", cap=3', WIDE, _wide, "warp"),
    "array of blocks": _case("a:u32", 'type="array", cap=2', "k", _number, "block"),
    "array with counts": _case("a:u8 b:u32", 'type="array", cap=2', "nl.u8(k), k", lambda k: (k & 255, k)),
    "ring": _case("a:u32", 'type="ring", cap=2', "k", _number),
    "ring of three": _case("a:u64", 'type="ring", cap=3', WIDE, _wide),
    "ring of one": _case("a:u32", 'type="ring", cap=1', "k", _number, "warp"),
    "log": _case("a:u64 b:u32 c:u16", 'type="log"', f"{WIDE}, k, nl.u16(k)", lambda k: (k << 29, k, k & 0xFFFF)),
    "log of warps": _case("a:u64", 'type="log"', WIDE, _wide, "warp"),
    "log of blocks": _case("a:u32", 'type="log"', "k", _number, "block"),
    "sum": _case(
        "a:u64 b:u32 c:s64", 'type="sum"', f"{WIDE}, k, nl.s64(nl.s32(k))", lambda k: (k << 29, k, _signed(k))
    ),
    "sum of a constant": _case("a:u64 b:u64", 'type="sum"', "3, 5", lambda k: (3, 5)),
    "sum of a value": _case(
        "a:u64 b:u32", 'type="sum"', f"nl.u64({SAME}) << 31, {SAME}", lambda k: (9 << 31, 9)
    ),
    "sum of warps": _case("a:u64", 'type="sum"', WIDE, _wide, "warp"),
    "sum of groups": _case("a:u64", 'type="sum"', WIDE, _wide, "group"),
    "avg": _case("a:u32", 'type="avg"', "k", _number),
    "avg of u64": _case("a:u64", 'type="avg"', WIDE, _wide),
    "avg of s32": _case("a:s32", 'type="avg"', "nl.s32(k)", lambda k: (_signed(k),)),
    "min": _case("a:u64 b:s32", 'type="min"', f"{WIDE}, nl.s32(k)", lambda k: (k << 29, _signed(k))),
    "max": _case("a:u32 b:s64", 'type="max"', "k, nl.s64(nl.s32(k))", lambda k: (k, _signed(k))),
    "hash": _case(
        "a:u32 b:u32", 'type="hash", keep=["sum", "min", "max"]', "k & 31, k >> 3", lambda k: (k & 31, k >> 3)
    ),
    "small hash": _case("a:u64", 'type="hash", room=8', "nl.u64(k & 3) << 40", lambda k: ((k & 3) << 40,)),
    "hash of a key": _case("a:u32 b:u32", 'type="hash", keep=["sum", "min", "max"]', f"{SAME}, k", lambda k: (9, k)),
    "hash of a pair": _case(
        "a:u32 b:u32", 'type="hash", keep=["sum", "min", "max"]', f"{SAME}, {SAME} * 3", lambda k: (9, 27)
    ),
    "topk": _case("a:u32 b:u64", 'type="topk", n=5', f"k & 15, {WIDE} >> 20", lambda k: (k & 15, k << 9)),
    "histogram": _case("a:u32", 'type="histogram", edges=[10, 100, 1000]', "k & 2047", lambda k: (k & 2047,)),
    "histogram of powers": _case("a:u32", POWERS, "k >> (k & 31)", lambda k: (k >> (k & 31),)),
    "histogram of wide powers": _case("a:s64", POWERS, "nl.s64(nl.s32(k))", lambda k: (_signed(k),)),
    "histogram of steps": _case(
        "a:u32", 'type="histogram", scale="linear", low=10, high=640, step=7', "k & 1023", lambda k: (k & 1023,)
    ),
    "histogram of floats": _case(
        "a:f32", 'type="histogram", scale="linear", low=-100.0, high=900.0, step=12.5',
        "nl.f32(nl.s32(k & 2047) - 1000)", lambda k: ((k & 2047) - 1000,),
    ),
    "histogram of halves": _case(
        "a:f64", 'type="histogram", edges=[-1.5, 0.25, 600.0]', "nl.f64(nl.s32(k & 2047) - 1000) * 0.5",
        lambda k: (((k & 2047) - 1000) / 2,),
    ),
    "sum of floats": _case(
        "a:f32 b:f64", 'type="sum"', "nl.f32(k & 1023), nl.f64(nl.s32(k)) * 0.5", lambda k: (k & 1023, _signed(k) / 2)
    ),
    "avg of floats": _case("a:f32", 'type="avg"', "nl.f32(nl.s32(k & 2047) - 1000)", lambda k: ((k & 2047) - 1000,)),
    "min of floats": _case(
        "a:f32 b:f64", 'type="min"', "nl.f32(nl.s32(k & 2047) - 1000), nl.f64(k) * -0.5",
        lambda k: ((k & 2047) - 1000, k / -2),
    ),
    "max of floats": _case("a:f64", 'type="max"', "nl.f64(k & 2047) * -0.5", lambda k: ((k & 2047) / -2,)),
    "hash of floats": _case(
        "a:u32 b:f32", 'type="hash", keep=["sum", "min", "max"]', "k & 7, nl.f32(k & 2047)", lambda k: (k & 7, k & 2047)
    ),
    "ring of floats": _case("a:f32", 'type="ring", cap=2', "nl.f32(k & 2047)", lambda k: (k & 2047,)),
}
"""By a name whose first word is the map's type."""


def sums(saves: list[Saved], case: Case) -> Rows:
    """The row of a sum."""
    if case.fields[0][1].startswith("f"):
        # All of them and their sums are floats, so that the order does not matter.
        return [tuple(sum(float(save.values[number]) for save in saves) for number in range(len(case.fields)))]
    bits = [int(type_[1:]) for _, type_ in case.fields]
    totals = [sum(int(save.values[number]) for save in saves) % (1 << width) for number, width in enumerate(bits)]
    return [
        tuple(
            total - (1 << width) if type_[0] == "s" and total >> width - 1 else total
            for total, width, (_, type_) in zip(totals, bits, case.fields, strict=True)
        )
    ]


def _slots(saves: list[Saved], lanes: int, case: Case, keep: Callable[[Rows], Rows]) -> Rows:
    of_thread: dict[tuple[int, int], Rows] = defaultdict(list)
    for save in saves:
        of_thread[save.block, save.thread].append(save.values)
    # In slots of threads: by wave, then the row, then the lane.
    found = []
    if case.level != "thread":
        return [row for key in sorted(of_thread) for row in keep(of_thread[key])]
    for block in range(GRID[0]):
        for wave in range(-(-BLOCK[0] // lanes)):
            threads = [wave * lanes + lane for lane in range(lanes)]
            of_wave = [keep(of_thread[block, thread]) for thread in threads]
            for number in range(max(map(len, of_wave))):
                found += [kept[number] for kept in of_wave if number < len(kept)]
    return found


def is_right(name: str, case: Case, ran: Ran, *, saved: list[Saved] | None = None) -> bool:
    """Return whether a map of CASES has what was saved to it. saved: at instructions."""
    saves = case.saves(ran.lanes) if saved is None else saved
    found: Rows = rows(ran)
    if not name.startswith("histogram"):
        return found == expected_of(name, saves, case, ran.lanes)
    # Each bucket has as many as there are between its edges.
    counts = [sum(low <= save.values[0] <= high for save in saves) for low, high, _ in found]
    return [row[2] for row in found] == counts and sum(counts) == len(saves)


def expected_of(name: str, saves: list[Saved], case: Case, lanes: int) -> Rows:
    """What ``rows`` gives of a map of CASES that is no histogram. lanes: of a wave."""
    kind = name.split(maxsplit=1)[0]
    if kind == "sum":
        return sums(saves, case)
    if kind == "array":
        cap = int(case.declared.split("cap=")[1][0])
        if cap == 1:
            last = {(one.block, one.thread): one.values for one in saves}
            zero = (0,) * len(case.fields)
            return [last.get((block, thread), zero) for block in range(GRID[0]) for thread in range(BLOCK[0])]
        return _slots(saves, lanes, case, lambda one: one[:cap])
    if kind == "ring":
        cap = int(case.declared.split("cap=")[1][0])
        return _slots(saves, lanes, case, lambda one: one[-cap:])
    if kind == "log":
        return [save.values for save in sorted(saves, key=lambda one: (one.block, one.thread, one.turn))]
    if kind == "avg":
        if case.fields[0][1].startswith("f"):
            mean = sum(float(save.values[0]) for save in saves)
            return [(len(saves), mean, mean / len(saves))]
        total = sum(int(save.values[0]) for save in saves)
        is_signed = case.fields[0][1].startswith("s")
        return [(len(saves), total if is_signed else total % (1 << 64), total / len(saves))]
    if kind in ("min", "max"):
        best = min if kind == "min" else max
        return [tuple(best(save.values[number] for save in saves) for number in range(len(case.fields)))]
    groups: dict[Any, list[Any]] = defaultdict(list)
    for save in saves:
        groups[save.values[0]].append(save.values[1] if len(save.values) > 1 else 0)
    if kind == "topk":
        found = [(key, len(values), sum(values), 0) for key, values in groups.items()]
        return sorted(found, key=lambda row: (-row[2], row[0]))[:5]
    if name == "small hash":
        return sorted((key, len(values), 0) for key, values in groups.items())
    return sorted((key, len(values), sum(values), min(values), max(values), 0) for key, values in groups.items())
