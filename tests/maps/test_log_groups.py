"""Groups of a log: which form each field of the lanes that save together gets, and that all bits come back."""

from __future__ import annotations

import re
import struct
from typing import Any

import numpy as np
import pytest

from neutrino.emulator.device import Device
from neutrino.maps.log import LOG_CONTROL, LOG_UNIT, Log
from neutrino.maps.log_groups import GROUP_ALIGN, GroupLayout
from neutrino.ptx.instrument.module_twins import probe_module
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
        assert len(Log.read(damaged, {"size": 8})) <= 32 * 3
