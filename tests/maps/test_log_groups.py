"""Groups of a log: which form each field of the lanes that save together gets, and that all bits come back."""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np
import pytest

from neutrino.emulator.device import Device
from neutrino.maps.log import Log
from neutrino.maps.log_reading import GROUP_ALIGN, LOG_CONTROL, LOG_UNIT, GroupLayout, chunks
from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.text.module import parse
from neutrino.tracing.views import MapView
from neutrino.verification import read_probes
from tests.maps.aggregates import probes_of, random_values, run, run_all
from tests.oracle.twin_launch import Launch, LoadedTwin

LANES = np.arange(32)
BASE = 0x7F12_3456_789A_BCDE


def _edge(low: int, high: int) -> list[int]:
    """The second lane is so much below the first, and the others so much above it."""
    return [0, low, *[high] * 30]


# The form of a field is 0 where a base and a stride say all, 1 and 2 for differences of 2 and 4 bytes, 3 for values.
CASES: dict[str, list[tuple[Any, int]]] = {
    "u64": [
        (BASE + 0 * LANES, 0), (BASE + 4 * LANES, 0), (BASE - 12 * LANES, 0), (BASE + 0x7FFF_FFFF * LANES, 0),
        (BASE - (LANES << 31), 0), (BASE + (LANES << 31), 3), ([-40 + 8 * lane for lane in range(32)], 0),
        (BASE + np.array(_edge(-0x8000, 0x7FFF)), 1), (BASE + np.array(_edge(-0x8001, 0)), 2),
        (BASE + np.array(_edge(0, 0x8000)), 2), (BASE + np.array(_edge(-(1 << 31), (1 << 31) - 1)), 2),
        (BASE + np.array(_edge(-(1 << 31) - 1, 0)), 3), (BASE + np.array(_edge(0, 1 << 31)), 3),
        ([-3, 5, *range(30)], 1), (BASE * LANES, 3),
        # In rows of 2, 4, 8 and 16 lanes; of 3 and of 32 there are none.
        *((BASE + 16 * (LANES % row) - 4096 * (LANES // row), row.bit_length() - 1 << 20) for row in (2, 4, 8, 16)),
        (BASE + 4 * (LANES % 3) + 64 * (LANES // 3), 1), (BASE + 8 * (LANES % 4) + (LANES // 4 << 31), 3),
        (BASE + 4 * (LANES & 7) + 64 * (LANES & 8) + 4096 * (LANES & 16), 2),
    ],
    "u32": [
        ([7] * 32, 0), (4 * LANES, 1), (_edge(-0x8000, 0x7FFF), 1), (_edge(0, 0x8000), 3), (_edge(-0x8001, 0), 3),
        ([-1, 3, *range(30)], 1), (LANES << 20, 3),
    ],
    "s16": [([-5] * 32, 0), (LANES, 3)],
    "u8": [([200] * 32, 0), (LANES, 3)],
    "f32": [([0] * 32, 0), (LANES, 3)],
}  # fmt: skip


def _forms(view: MapView) -> int:
    """The forms in the only group."""
    return int(np.ascontiguousarray(view.records[LOG_CONTROL + GROUP_ALIGN :]).view("<u4")[1])


@pytest.mark.parametrize("kind", CASES)
def test_each_group_has_the_smallest_form(kind: str) -> None:
    bits = int(kind[1:])
    values = np.array([[int(value) % (1 << bits) for value in row] for row, _ in CASES[kind]], f"<u{bits // 8}")
    if kind == "f32":
        values = np.array([row for row, _ in CASES[kind]], "<f4").view("<u4")
    probes = probes_of('type = "log"', kind)
    for row, (_, form) in zip(values, CASES[kind], strict=True):
        # A whole warp, and so few lanes that the case is the same.
        for count in (32, 3):
            view = run(probes, row[:count], kind, "sm_90", blocks=1, threads=32, log_units=64)
            assert view.valid()["value"].tobytes() == row[:count].tobytes()
            assert view.places()["lane"].tolist() == list(range(count))
            assert (view.record_count, len(view.first(1).valid())) == (count, count)
            assert count < 32 or _forms(view) == form, row
    # One lane alone, which has no stride.
    view = run(probes, values[-1][:1], kind, "sm_90", blocks=1, threads=32, log_units=64)
    assert (view.valid()["value"].tobytes(), _forms(view)) == (values[-1][:1].tobytes(), 0)


@pytest.mark.parametrize("kind", ["u64", "u32", "s16", "u8"])
def test_a_group_is_right_whatever_its_site_saved_before(kind: str) -> None:
    # Each case once or more often, so that a warp's first lanes find what they expect, or not.
    random = np.random.default_rng(9)
    bits = int(kind[1:])
    rows = [[int(value) % (1 << bits) for value in row] for row, _ in CASES[kind]]
    chosen = np.concatenate([[number] * int(random.integers(1, 4)) for number in random.permutation(len(rows))])
    for threads in (32, 29, 2, 1):
        values = np.array([rows[number][:threads] for number in chosen], f"<u{bits // 8}").reshape(-1)
        view = run(probes_of('type = "log"', kind), values, kind, "sm_90", blocks=1, threads=threads, log_units=512)
        places = view.places()
        index = places["lane"] + threads * places["order"]
        assert sorted(index.tolist()) == list(range(len(values)))
        assert view.valid()["value"].tobytes() == values[index].tobytes()


_MIXED = """platform = "cuda"
[map.M]
type = "log"
level = "thread"
data = { small = "u8", value = "u64", half = "s16", again = "u64", word = "u32", site = "u16", last = "u8" }
[probe.loads]
position = "ld.global"
level = "thread"
after = \"\"\"
.reg .u32 %w, %site;
.reg .u64 %v;
mov.u64 %v, OUT;
cvt.u32.u64 %w, %v;
mov.u32 %site, SITE;
SAVE [ M ] { %w, OUT, %w, ADDR, %w, %site, 9 };
\"\"\"
"""


def test_fields_of_all_sizes_have_forms_of_their_own() -> None:
    random = np.random.default_rng(5)
    values = random_values("u64", 640, random)
    # Of some groups all, of others the upper bits are equal.
    for number in range(0, 640, 32):
        values[number : number + 32] &= np.uint64((1 << int(random.integers(0, 65))) - 1)
    probes = read_probes("test.toml", _MIXED)
    view = run_all(probes, values, "u64", "sm_90", blocks=2, threads=64)["M"]
    places, rows = view.places(), view.valid()
    index = places["block"] * 64 + places["warp"] * 32 + places["lane"] + places["order"] * 128
    assert sorted(index.tolist()) == list(range(640))
    read = values[index]
    np.testing.assert_array_equal(rows["value"], read)
    for name, kind in (("small", "<u1"), ("half", "<i2"), ("word", "<u4")):
        np.testing.assert_array_equal(rows[name], read.astype(kind))
    np.testing.assert_array_equal(rows["again"] - rows["again"].min(), 8 * index.astype(np.uint64))
    assert set(rows["site"].tolist()) == {0}
    assert set(rows["last"].tolist()) == {9}


def test_records_of_many_fields_have_rows() -> None:
    names = [f"f{number}" for number in range(11)]
    data = ", ".join(f'{name} = "u8"' for name in names)
    text = _MIXED[: _MIXED.index("data")] + f"data = {{ {data} }}\n" + _MIXED[_MIXED.index("[probe") :]
    probes = read_probes("test.toml", re.sub("SAVE.*", f"SAVE [ M ] {{ %w{', %w' * 10} }};", text))
    (entry,) = probes.maps
    assert GroupLayout.of(entry.fields, entry.size) is None
    assert GroupLayout.of(entry.fields[:-1], entry.size - 1) is not None
    values = random_values("u64", 96, np.random.default_rng(1))
    view = run_all(probes, values, "u64", "sm_90", blocks=1, threads=32)["M"]
    for name in names:
        np.testing.assert_array_equal(np.sort(view.valid()[name]), np.sort(values.astype(np.uint8)))


# Lane 0 leaves its last chunk nearly empty, lane 16 takes one, and then all lanes fill that of lane 0.
_PARTING = """
.version 7.8
.target sm_90
.address_size 64
.visible .entry k(.param .u64 values)
{
	.reg .pred %p, %upper;
	.reg .b32 %i, %v, %t;
	.reg .b64 %from;
	ld.param.u64 %from, [values];
	mov.u32 %t, %tid.x;
	setp.ge.u32 %upper, %t, 16;
	mov.u32 %i, 0;
FIRST:
	ld.global.u32 %v, [%from];
	add.u32 %i, %i, 1;
	setp.lt.u32 %p, %i, 118;
	@%p bra FIRST;
	@%upper ld.global.u32 %v, [%from];
SECOND:
	ld.global.u32 %v, [%from];
	add.u32 %i, %i, 1;
	setp.lt.u32 %p, %i, 228;
	@%p bra SECOND;
	ret;
}
"""
_SITES = """platform = "cuda"
[map.M]
type = "log"
level = "thread"
data = { site = "u32" }
[probe.loads]
position = "ld.global"
level = "thread"
before = ".reg .u32 %n; mov.u32 %n, SITE; SAVE [ M ] { %n };"
"""


def _part(times: int, log_units: int) -> MapView:
    probes = read_probes("test.toml", _SITES)
    twins = probe_module(parse(_PARTING), probes)
    device = Device(memory=16 << 20)
    loaded = LoadedTwin(twins.kernels[0], device.load(twins.render()), {})
    launch = Launch((1, 1, 1), (32, 1, 1), struct.pack("<Q", device.allocate(64)), log_units=log_units)
    return loaded.launch(device, launch, times=times)["M"]


def test_what_a_thread_has_are_its_first_records() -> None:
    # No room for the chunk of lane 16, while that of lane 0 has some.
    view = _part(1, (128 + 256 + 512 + 1024 + 2048) // LOG_UNIT)
    assert set(view.valid()["site"].tolist()) == {0}
    assert np.bincount(view.places()["lane"]).tolist() == [118] * 32
    assert view.dropped == 16 + 110 * 32


def test_a_kernel_that_runs_again_begins_after_what_it_left() -> None:
    views = [_part(times, 1 << 12) for times in (1, 2)]
    # Orders count units of 16 bytes from the beginning. That of the upper lanes' group begins with their chunk's.
    upper = (128 + 256 + 512 + 1024 + 2048) // GROUP_ALIGN
    assert views[0].records[:8].view("<u8")[0] == (upper + 2 + 110) // 2 > (upper * GROUP_ALIGN + 128) // LOG_UNIT
    sites, lanes = views[1].valid()["site"], views[1].places()["lane"]
    for lane in range(32):
        assert sites[lanes == lane].tolist() == ([0] * 118 + [1] * (lane >= 16) + [2] * 110) * 2


# The lanes from low to high execute the guarded loads.
_BLOCK = """
.version 7.8
.target sm_90
.address_size 64
.visible .entry k(.param .u64 first, .param .u64 second, .param .u32 low, .param .u32 high)
{
	.reg .pred %p, %q;
	.reg .b32 %t, %b, %v, %s, %m, %n;
	.reg .b64 %a, %c, %wide, %twice;
	.shared .align 4 .b32 tile[32];
	ld.param.u64 %a, [first];
	ld.param.u64 %c, [second];
	mov.u32 %t, %tid.x;
	mul.wide.u32 %wide, %t, 4;
	mul.wide.u32 %twice, %t, 8;
	add.s64 %a, %a, %wide;
	add.s64 %c, %c, %wide;
	ld.param.u32 %b, [low];
	setp.ge.u32 %p, %t, %b;
	ld.param.u32 %b, [high];
	setp.lt.and.u32 %p, %t, %b, %p;
	mov.u32 %s, tile;
	mad.lo.u32 %s, %t, 4, %s;
	and.b32 %m, %t, 5;
	setp.eq.u32 %q, %m, 4;
	selp.b32 %n, 4, 0, %q;
	LOADS
	ret;
}
"""
_ADDRESSES = """platform = "cuda"
[map.M]
type = "log"
level = "thread"
data = { address = "u64", clock = "u64", site = "u32", bytes = "u16" }
[probe.loads]
position = "ld.global | cp.async.ca"
level = "thread"
before = \"\"\"
.reg .u32 %site;
.reg .u16 %bytes;
.reg .u64 %now, %wide;
mov.u32 %site, SITE;
mov.u64 %wide, BYTES;
cvt.u16.u64 %bytes, %wide;
mov.u64 %now, %clock64;
SAVE [ M ] { ADDR, %now, %site, %bytes };
\"\"\"
"""
_ALIKE = ["@%p ld.global.u32 %v, [%a];", "@%p ld.global.u32 %v, [%a+256];", "@%p ld.global.u32 %v, [%a+128];"]
_EACH = _ALIKE[0].replace("@%p ", "")
_OTHER = ["@%p ld.global.u32 %v, [%c];", "@%p ld.global.u32 %v, [%c+128];"]
_MOVED = ["add.s64 %a, %a, %twice;"]
_COPIES = ["cp.async.ca.shared.global [%s], [%a], 4, %n;", "cp.async.ca.shared.global [%s], [%a+256], 4, %n;"]
_MET = ["bar.warp.sync -1;"]


def _groups(view: MapView) -> list[tuple[int, int]]:
    """Of the groups in the warp's own chunk of 200 units and two after it: how many lanes, how many further records."""
    words, found = np.ascontiguousarray(view.records[LOG_CONTROL:]).view("<u4"), []
    for chunk in (0, 200 * LOG_UNIT, 204 * LOG_UNIT):
        at = (chunk + GROUP_ALIGN) // 4
        while words[at]:
            forms, lanes = int(words[at + 1]), int(words[at]).bit_count()
            further, form = forms >> 28, forms >> 6 & 3
            # Further records are short if that is shorter: of all fields but bytes they have how they differ, then an
            # order if these are not in turn, and a mask if each has one.
            short = 3 + (not forms >> 18 & 1) + (form == 1 or forms >> 23 & 1)
            assert (forms >> 19 & 1) == (further > 0 and short <= 4)
            # Of the fields only bytes may have an area: a mask and a value, or a value for each lane.
            area = {0: 0, 1: 16, 3: 0 if further else -(-2 * lanes // 16) * 16}[form]
            found.append((lanes, further))
            at += (48 + area + (16 if forms >> 19 & 1 else 32) * further) // 4
    return found


@pytest.mark.parametrize(
    ("loads", "low", "high", "groups"),
    [
        (_ALIKE, 0, 32, [(32, 2)]),
        (_ALIKE, 0, 20, [(20, 2)]),
        (_ALIKE, 0, 0, []),
        (_ALIKE, 5, 32, [(27, 0)] * 3),
        (_ALIKE[:1], 0, 32, [(32, 0)]),
        # Through two pointers; the records are in the order of the loads all the same.
        ([_ALIKE[0], *_OTHER, _ALIKE[1]], 0, 32, [(32, 1), (32, 1)]),
        # Under different predicates: some lanes execute one of the loads.
        ([_ALIKE[0], _ALIKE[1].replace("@%p ", "")], 0, 32, [(32, 1)]),
        ([_ALIKE[0], _ALIKE[1].replace("@%p ", "")], 0, 20, [(20, 0), (32, 0)]),
        # Some of the first one's lanes do the others: with lane 0, or none does.
        ([_EACH, *_ALIKE[1:]], 0, 20, [(32, 2)]),
        ([_EACH, *_ALIKE[1:]], 0, 0, [(32, 2)]),
        ([_EACH, *_ALIKE[1:]], 4, 20, [(32, 0), (16, 0), (16, 0)]),
        ([_EACH, *_COPIES, _ALIKE[2]], 0, 3, [(32, 1), (32, 1)]),
        # Copies have a mask of their own, so all of them are of the same lanes.
        ([_COPIES[0], f"@%p {_COPIES[1]}"], 0, 32, [(32, 1)]),
        ([_COPIES[0], f"@%p {_COPIES[1]}"], 0, 20, [(32, 0), (20, 0)]),
        # Between them the stride changes, or lanes may meet.
        ([_ALIKE[0], *_MOVED, _ALIKE[1]], 0, 32, [(32, 0)] * 2),
        ([*_ALIKE[:2], *_MET, *_ALIKE[1:]], 0, 32, [(32, 1)] * 2),
        # Each lane copies 4 bytes, or none.
        (_COPIES, 0, 32, [(32, 1)]),
        ([*_ALIKE[:2], *_COPIES, _ALIKE[2]], 0, 32, [(32, 2), (32, 1)]),
        # Eight at most.
        (_ALIKE * 3, 0, 32, [(32, 7), (32, 0)]),
    ],
)  # fmt: skip
def test_saves_of_one_block_share_a_group(
    loads: list[str], low: int, high: int, groups: list[tuple[int, int]]
) -> None:
    text = _BLOCK.replace("LOADS", "\n\t".join(loads))
    twins = probe_module(parse(text), read_probes("test.toml", _ADDRESSES))
    sites = [site.number for site in twins.kernels[0].sites]
    device = Device(memory=16 << 20)
    loaded = LoadedTwin(twins.kernels[0], device.load(twins.render()), {})
    first, second = device.allocate(4096), device.allocate(4096)
    arguments = struct.pack("<QQII", first, second, low, high)
    # Warps with chunks of their own, which have room for all.
    view = loaded.launch(device, Launch((1, 1, 1), (32, 1, 1), arguments, log_units=400, log_first=200))["M"]
    assert _groups(view) == groups
    rows, places = view.valid(), view.places()
    assert len(rows) == view.record_count
    for lane in range(32):
        expected, moved = [], 0
        numbers = iter(sites)
        for load in loads:
            moved += 8 * lane * (load in _MOVED)
            if "global" not in load:
                continue
            number = next(numbers)
            if "@" not in load or low <= lane < high:
                base = first + moved if "%a" in load else second
                offset = int(load.partition("+")[2].partition("]")[0] or 0)
                size = 0 if load.removeprefix("@%p ") in _COPIES and lane & 5 != 4 else 4
                expected.append((base + 4 * lane + offset, size, number))
        own = rows[places["lane"] == lane]
        assert list(zip(own["address"].tolist(), own["bytes"].tolist(), own["site"].tolist(), strict=True)) == expected
        assert (np.diff(own["clock"].astype(np.int64)) > 0).all()


@pytest.mark.parametrize("shape", [0b111, 0b101, 1 << 31, 0b100_100, 0b11, 0])
def test_a_damaged_header_has_no_records(shape: int) -> None:
    view = run(probes_of('type = "log"', "u64"), np.arange(32, dtype=np.uint64), "u64", "sm_90", blocks=1, threads=32)
    region = view.records.copy()
    assert len(Log.read(region, {"size": 8})) == 32
    region[LOG_CONTROL + 4 : LOG_CONTROL + 8] = np.frombuffer(struct.pack("<I", shape), np.uint8)
    assert len(Log.read(region, {"size": 8})) == 0
    # Whatever the forms and the mask say, no record is from outside of the chunk.
    random = np.random.default_rng(2)
    for _ in range(50):
        damaged = view.records.copy()
        damaged[LOG_CONTROL + 16 : LOG_CONTROL + 128] = random.integers(0, 256, 112)
        assert len(Log.read(damaged, {"size": 8})) <= 32 * 6


def _wide_and_narrow_group(random: np.random.Generator, lanes: int, order: int) -> tuple[bytes, list[list[Any]]]:
    """A group of records of u64, u32, u8 in random forms, as docs/trace.md has it; and its rows, by hand: lane, order,
    the fields. lanes: of a warp."""
    chosen = sorted(random.choice(lanes, int(random.integers(1, lanes + 1)), replace=False).tolist())
    others = np.array(chosen) % 3 == 1
    forms = [int(random.choice([0, 0, 1, 2, 3])), int(random.choice([0, 0, 1, 3])), int(random.choice([0, 0, 1, 3]))]
    log = int(random.integers(0, 5)) * (forms == [0, 0, 0])
    times = int(random.integers(0, 4)) * (forms[:2] == [0, 0] and forms[2] != 3)
    has_own = int(times > 0 and forms[2] == 0)
    # Short further records: each is the next in order, or says how much later it is; the field of u32 differs or not.
    is_short, is_in_turn, is_same = (int(bit) for bit in random.integers(0, 2, 3) * (times > 0))
    is_in_turn, is_same = is_in_turn * is_short, is_same * is_short
    rank = np.arange(len(chosen))
    base, stride, to_next = 1 << 40, -12, 4096
    flat = base + stride * (rank % (1 << log) if log else rank) + to_next * (rank >> log) * bool(log)
    spread = [random.integers(-half, half, len(chosen)) for half in (1 << 15, 1 << 31)]
    for one in spread:
        one[0] = 0
    first = [
        [flat, base + spread[0], base + spread[1], random.integers(0, 1 << 62, len(chosen))][forms[0]],
        [np.full(len(chosen), 77_777), 77_777 + spread[0], None, random.integers(0, 1 << 32, len(chosen))][forms[1]],
        [np.full(len(chosen), 9), np.where(others, 200, 9), None, random.integers(0, 256, len(chosen))][forms[2]],
    ]
    # The lowest lane has the value in the record, and of two values the less one stands there.
    record = struct.pack("<QIB3x", int(first[0][0]), int(first[1][0]), 9 if forms[2] == 1 else int(first[2][0]))

    def mask(of: list[int]) -> bytes:
        return sum(1 << lane for lane in of).to_bytes(lanes // 8, "little")

    some = [lane for lane, is_other in zip(chosen, others, strict=True) if is_other]
    word = forms[0] | forms[1] << 2 | forms[2] << 4 | log << 20 | has_own << 23 | times << 28
    word |= is_short << 19 | is_in_turn << 18 | (3 * is_same) << 2 | 3 * is_short * (forms[2] == 0) << 4
    head = mask(chosen) + struct.pack("<IIi", word, order, stride)
    # With masks of 32 lanes the record comes at once, and the stride from row to row after it.
    to_next_row = struct.pack("<i", to_next)
    group = head + (to_next_row if lanes == 64 else b"") + record
    group += bytes(-len(group) % GROUP_ALIGN)
    if log and lanes == 32:
        group += to_next_row.ljust(GROUP_ALIGN, b"\0")
    areas = (
        {1: (first[0] - first[0][0]).astype("<i2"), 2: (first[0] - first[0][0]).astype("<i4"), 3: first[0]},
        {1: (first[1] - first[1][0]).astype("<i2"), 3: first[1].astype("<u4")},
        {3: first[2].astype("<u1")},
    )
    for form, area in zip(forms, areas, strict=True):
        data = area[form].tobytes() if form in area else b""
        if area is areas[2] and form == 1:
            data = mask(some) + struct.pack("<I", 200)
        group += data + bytes(-len(data) % 8)
    group += bytes(-len(group) % GROUP_ALIGN)
    rows = [[lane, order, *(int(value[n]) for value in first)] for n, lane in enumerate(chosen)]
    for further in range(1, times + 1):
        own = [lane for lane in chosen if (lane + further) % 2] if has_own else some
        part = struct.pack("<QIB3xI", base + 8 * further, 5 + further, 9, further) + mask(own)
        if is_short:
            later = 4096 * further - 5000
            words = [later % (1 << 32), *[5 + further] * (not is_same), *[further] * (not is_in_turn)]
            part = struct.pack(f"<{len(words)}I", *words) + mask(own)
        group += part + bytes(-len(part) % GROUP_ALIGN)
        for n, lane in enumerate(chosen):
            if not has_own or lane in own:
                small = 200 if forms[2] == 1 and lane in own else 9
                moved = later if is_short else 8 * further
                word = 77_777 if is_same else 5 + further
                rows.append([lane, order + further, int(flat[n]) + moved, word, small])
    return group, rows


@pytest.mark.parametrize("lanes", [32, 64])
def test_groups_with_masks_of_32_and_of_64_lanes_are_read(lanes: int) -> None:
    random = np.random.default_rng(lanes)
    layout_shape = 4 | 3 << 3 | 1 << 6 | (1 << 30) * (lanes == 64)
    data, expected = b"", []
    for slot in range(40):
        groups = b""
        for number in range(int(random.integers(1, 5))):
            group, rows = _wide_and_narrow_group(random, lanes, 10 * number + 1)
            groups += group
            expected += [[slot, *row] for row in rows]
        # A group without a lane ends a chunk.
        size = -(-(GROUP_ALIGN + len(groups) + GROUP_ALIGN) // LOG_UNIT) * LOG_UNIT
        chunk = struct.pack("<4I", slot, layout_shape, 0, size // LOG_UNIT) + groups
        data += chunk.ljust(size, b"\0")
    region = np.frombuffer(struct.pack("<Q", len(data) // LOG_UNIT).ljust(LOG_CONTROL, b"\0") + data, np.uint8)
    found = Log.read(region, {"size": 16})
    fields = np.ascontiguousarray(found["record"]).view([("a", "<u8"), ("b", "<u4"), ("c", "u1"), ("_", "V3")])
    read = [
        [int(row["slot"]), int(row["lane"]), int(a["a"]), int(a["b"]), int(a["c"])]
        for row, a in zip(found, fields, strict=True)
    ]
    expected.sort(key=lambda row: (row[0], row[1], row[2]))
    assert read == [[slot, lane, *values] for slot, lane, _, *values in expected]
    assert chunks(region, 16)[:, 3].tolist() == np.bincount([row[0] for row in expected], minlength=40).tolist()
    assert max(row[1] for row in read) == lanes - 1
