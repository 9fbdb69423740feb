"""The type ``log``: declarations, and reading regions, damaged ones included."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pytest

from neutrino.emulator.device import Device
from neutrino.errors import ProbeError
from neutrino.maps.declaration import Layout
from neutrino.maps.log import Log, lane_rows, most_rows
from neutrino.maps.log_reading import (
    LOG_CONTROL,
    LOG_HEADER,
    LOG_ROWS_MOST,
    LOG_UNIT,
    chunks,
    first_slots,
    header_of,
    slices,
    slot_slices,
)
from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.text.module import parse
from neutrino.targets import written as write
from neutrino.verification import read_probes
from tests.maps.aggregates import kernel_text, probes_of, random_values, read_by, run
from tests.oracle.twin_launch import Launch, LoadedTwin

ROW = {"size": 8}


def _chunk(slot: int, mask: int, rows: int, left: tuple[int, ...], values: list[int]) -> bytes:
    head = np.array([slot, mask % (1 << 32), rows, mask >> 32], "<u4").tobytes() + bytes(left)
    text = head.ljust(header_of(mask.bit_count()), b"\0") + np.array(values, "<u8").tobytes()
    return text + bytes(-len(text) % LOG_UNIT)


def _region(chunks: bytes, *, taken: int | None = None, room: int | None = None) -> np.ndarray:
    units = len(chunks) // LOG_UNIT if taken is None else taken
    control = np.array([units, 0], "<u8").tobytes().ljust(LOG_CONTROL, b"\0")
    return np.frombuffer(control + chunks.ljust(room or len(chunks), b"\0"), np.uint8)


def _rows(region: np.ndarray) -> list[tuple[int, int, int, int]]:
    rows = Log.read(region, ROW)
    values = np.ascontiguousarray(rows["record"]).view("<u8")
    return [(*row[:3], int(value)) for row, value in zip(rows.tolist(), values, strict=True)]


def _lane_chunk(slot: int, rows: int, left: int, values: list[int]) -> bytes:
    """A chunk of one lane."""
    head = np.array([slot, 1 << 31 | rows << 16, 0, left], "<u4").tobytes()
    text = head + np.array(values, "<u8").tobytes()
    return text + bytes(-len(text) % LOG_UNIT)


ONE = _chunk(7, 0b1010, 2, (0, 1), [10, 20, 11, 21])
TWO = _chunk(3, 0b1, 1, (0,), [5])
THREE = _chunk(7, 0b10, 2, (1,), [12, 13])


def test_columns_are_lanes_and_later_chunks_come_later() -> None:
    expected = [(3, 0, 0, 5), (7, 1, 0, 10), (7, 1, 1, 11), (7, 1, 2, 12), (7, 3, 0, 20)]
    assert _rows(_region(ONE + TWO + THREE)) == expected


@pytest.mark.parametrize(
    ("region", "records"),
    [
        (_region(b""), 0),
        (_region(b"", taken=99), 0),
        # The control words say less, or more than there is: a chunk that did not fit.
        (_region(ONE + TWO, taken=len(ONE) // LOG_UNIT), 3),
        (_region(ONE + TWO, taken=1 << 40, room=4096), 4),
        (_region(ONE + THREE[:LOG_HEADER]), 3),
        # Nothing was written where a chunk is to begin.
        (_region(ONE + bytes(256) + TWO), 3),
        # More rows left than there are.
        (_region(_chunk(0, 1, 1, (200,), [1])), 0),
    ],
)
def test_what_is_not_whole_is_left_out(region: np.ndarray, records: int) -> None:
    assert len(Log.read(region, ROW)) == records
    assert chunks(region, ROW["size"])[:, 3].sum() == records


_FIRST = _lane_chunk(4, 3, 1, [10, 11, 0])
_OTHER = _lane_chunk(2, 1, 0, [5])
_LATER = _lane_chunk(4, 4, 0, [12, 13, 14, 15])


@pytest.mark.parametrize(
    ("text", "own", "each"),
    [
        (_FIRST + _OTHER + _LATER, 0, 0),
        # Each warp has four units of its own: one of them none that it has used, one none that it has begun.
        (_FIRST.ljust(128, b"\0") + bytes(128) + _lane_chunk(9, 14, 14, []).ljust(128, b"\0") + _OTHER + _LATER, 12, 4),
    ],
)
def test_chunks_of_one_lane(text: bytes, own: int, each: int) -> None:
    region = _region(text, taken=len(text) // LOG_UNIT - own).copy()
    region[16:32] = np.array([own, each], "<u8").view(np.uint8)
    expected = [(2, 0, 0, 5), *((4, 0, order, 10 + order) for order in range(6))]
    assert _rows(region) == expected
    assert sorted(chunks(region, 8)[:, 2:].tolist())[:3] == [[2, 1], [4, 2], [4, 4]]
    assert _rows(first_slots(region, 8, 1)) == expected[:1]
    # What is not whole is left out.
    assert _rows(region[: len(region) - LOG_UNIT]) == expected[:3]


def test_chunks_of_one_lane_and_of_columns_are_told_apart() -> None:
    """A mask may have the highest lane; version 5 has such chunks at all levels."""
    highest = _chunk(1, 1 << 31, 2, (1,), [7, 0])
    assert _rows(_region(highest + _OTHER)) == [(1, 31, 0, 7), (2, 0, 0, 5)]


@pytest.mark.parametrize("mask", [1 << 40, 0b11 << 31, (1 << 48) - 1, (1 << 49) - 1, (1 << 64) - 1, 1 << 63 | 1])
def test_columns_of_warps_of_64_lanes(mask: int) -> None:
    lanes = [lane for lane in range(64) if mask >> lane & 1]
    left = tuple(lane % 3 for lane in lanes)
    wide = _chunk(5, mask, 2, left, [100 * row + lane for row in range(2) for lane in lanes])
    expected = [(5, lane, row, 100 * row + lane) for lane in lanes for row in range(2 - lane % 3)]
    region = _region(wide + TWO)
    assert _rows(region) == [(3, 0, 0, 5), *expected]
    assert chunks(region, 8)[:, 3].tolist() == [len(expected), 1]
    assert sorted(row for part in slices(region, 8, 1) for row in _rows(part)) == _rows(region)


@pytest.mark.parametrize(("most", "rows"), [(0, 1), (1, 1), (2, 5), (9, 5)])
def test_the_first_slots_are_read_alone(most: int, rows: int) -> None:
    region = _region(ONE + TWO + THREE)
    assert _rows(first_slots(region, ROW["size"], most)) == _rows(region)[:rows]


@pytest.mark.parametrize("most", [1, 64, 500, 1 << 20])
def test_slices_leave_out_warps_without_records(most: int) -> None:
    """Each of 40 warps has a chunk of 3 units of its own, and two have records; other chunks come after these."""
    own = bytes(3 * 96) + _chunk(3, 1, 1, (0,), [3]) + bytes(26 * 96) + _chunk(30, 1, 1, (0,), [30]) + bytes(9 * 96)
    region = np.array(_region(own + ONE + TWO))
    region[:8] = np.array([(len(ONE) + len(TWO)) // LOG_UNIT], "<u8").view(np.uint8)
    region[16:32] = np.array([len(own) // LOG_UNIT, 3], "<u8").view(np.uint8)
    wanted = sorted(value for *_, value in _rows(region))
    assert wanted == [3, 5, 10, 11, 20, 30]
    parts = list(slices(region, ROW["size"], most))
    assert sorted(value for part in parts for *_, value in _rows(part)) == wanted
    assert max(map(len, parts)) <= LOG_CONTROL + 2 * max(most, 160)
    # Slot by slot they are in order.
    parts = list(slot_slices(region, ROW["size"], most))
    assert [row for part in parts for row in _rows(part)] == _rows(region)
    assert (len(parts) == 1) == (most >= 500)
    assert max(map(len, parts)) <= LOG_CONTROL + max(most, 320)


def test_a_lane_has_few_bytes_in_a_chunk() -> None:
    assert [most_rows(size) for size in (1, 8, 32, 33, 64, 1024, 4096, 65536)] == [32, 32, 32, 16, 16, 1, 1, 1]
    # The header has a byte for each lane after its words, and rows fit in one.
    assert LOG_HEADER >= 16 + 32
    assert LOG_ROWS_MOST < 256


def test_a_first_chunk_of_one_lane_is_small() -> None:
    """Three records of 16 bytes in 64: a warp's entry, a branch and its exit."""
    assert [lane_rows(size) for size in (1, 8, 16, 32, 64, 4096)] == [
        (48, 2048), (6, 256), (3, 128), (3, 64), (1, 32), (1, 1),
    ]  # fmt: skip


def test_a_log_has_no_cap() -> None:
    for cap in ("2", '"dynamic"'):
        with pytest.raises(ProbeError) as caught:
            probes_of(f'type = "log"\ncap = {cap}', "u32")
        (diagnostic,) = caught.value.diagnostics
        assert (diagnostic.code, diagnostic.hint) == ("cap", "leave cap out")
        assert "a log has room for all records" in diagnostic.message


@pytest.mark.parametrize("keys", ['type = "log"', 'type = "array"\ncap = "dynamic"', 'cap = "dynamic"'])
def test_it_is_written_as_it_is_read(keys: str) -> None:
    probes = probes_of(keys, "u32")
    (entry,) = probes.maps
    assert entry.kind.layout is Layout.CHUNKS
    assert entry.kind.describe(entry) == "a log of records of 4 bytes per thread"
    text = write(probes)
    assert "cap" not in text
    assert read_probes("again.toml", text).maps[0].document() == entry.document()


@pytest.mark.parametrize("arch", ["sm_60", "sm_75", "sm_90"])
@pytest.mark.parametrize("kind", ["u8", "s16", "f32", "s64"])
def test_all_values_are_there(kind: str, arch: str) -> None:
    """Warps part in this kernel, and threads leave by two exits."""
    values = random_values(kind, 700, np.random.default_rng(3))
    for level in ("thread", "warp", "block"):
        probes = probes_of('type = "log"', kind, level)
        view = run(probes, values, kind, arch)
        assert view.dropped == 0
        assert np.sort(view.valid()["value"]).tobytes() == np.sort(read_by(values, 70, 3, level)).tobytes()
        # A thread reads one value in so many.
        if level == "thread":
            places = view.places()
            index = (places["block"] * 70 + places["warp"] * 32 + places["lane"]) + places["order"] * 210
            assert view.valid()["value"].tobytes() == values[index].tobytes()


def test_the_rest_is_counted() -> None:
    values = np.arange(700, dtype=np.uint32)
    probes = probes_of('type = "log"', "u32")
    kept = [run(probes, values, "u32", "sm_90", log_units=units) for units in (0, 3, 50, 200, 1000)]
    assert [len(view.valid()) + view.dropped for view in kept] == [700] * 5
    assert [view.dropped for view in kept] == sorted((view.dropped for view in kept), reverse=True)
    assert kept[0].dropped == 700
    assert kept[-1].dropped == 0


_APART = """
.version 8.0
.target sm_90
.address_size 64
.func store(.param .u64 at)
{
	.reg .u64 %at;
	ld.param.u64 %at, [at];
	st.global.u32 [%at], 1;
	ret;
}
.visible .entry k(.param .u64 out)
{
	.reg .u64 %out;
	.reg .u32 %x;
	ld.param.u64 %out, [out];
	ld.global.u32 %x, [%out];
	{
	.param .u64 at;
	st.param.u64 [at], %out;
	call.uni store, (at);
	}
	ret;
}
"""


def test_a_log_that_nothing_saves_to_takes_nothing() -> None:
    """It is there, and empty. What only a called function saves to has memory."""
    maps = "".join(f'[map.M{number}]\ntype = "log"\nlevel = "thread"\ndata = {{ at = "u64" }}\n' for number in range(3))
    sites = "".join(
        f'[probe.p{number}]\nposition = "{position}"\nlevel = "thread"\nbefore = "SAVE [ M{number} ] {{ ADDR }};"\n'
        for number, position in enumerate(("ld.global", "st.global", "atom.global"))
    )
    probes = read_probes("test.toml", f'platform = "cuda"\n{maps}{sites}')
    twins = probe_module(parse(_APART), probes)
    (twin,) = twins.kernels
    assert [entry.cap for entry in twin.maps] == [1, 1, 0]
    assert [entry.cap for entry in probes.maps] == [1, 1, 1]
    device = Device(memory=16 << 20)
    loaded = LoadedTwin(twin, device.load(twins.render()), {})
    out = device.allocate(64)
    views = loaded.launch(device, Launch((2, 1, 1), (64, 1, 1), struct.pack("<Q", out), log_units=1000))
    assert [len(views[f"M{number}"].records) for number in range(3)] == [128 + 32_000] * 2 + [128]
    assert [len(views[f"M{number}"].valid()) for number in range(3)] == [128, 128, 0]
    assert (views["M2"].dropped, views["M2"].record_count, views["M2"].places()["lane"].tolist()) == (0, 0, [])


def test_the_example_of_the_page_records(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/probes.md").read_text()
    found = re.search(r"### Logs\n```toml\n(.*?)```", page, re.DOTALL)
    assert found
    example = found[1] + (
        '[probe.loads]\nposition = "ld.global"\nlevel = "thread"\n'
        'before = ".reg .u32 %site; mov.u32 %site, SITE; SAVE [ Loads ] { ADDR, %site };"\n'
    )
    probes = read_probes("page.toml", f'platform = "cuda"\n{example}')
    assert probes.maps[0].kind == Log()
    twins = probe_module(parse(kernel_text("u32", "sm_90")), probes)
    assert not twins.skipped


@pytest.mark.parametrize("level", ["thread", "warp", "block"])
def test_threads_that_save_nothing_take_no_memory(level: str) -> None:
    """One warp, of which each thread reads 21 values: chunks of 1, 3, 6 and 12 groups, or of 12 and 36 rows."""
    values = np.arange(21 * 32, dtype=np.uint32)
    probes = probes_of('type = "log"', "u32", level)
    view = run(probes, values, "u32", "sm_90", blocks=1, threads=32)
    # A group has 16 bytes and 2 for each lane, a chunk 16 bytes before its groups or rows.
    units = sum((128, 256, 512, 1024) if level == "thread" else (64, 160)) // LOG_UNIT
    assert view.records[:8].view("<u8")[0] == units
    assert len(view.valid()) == 21 * (32 if level == "thread" else 1)
