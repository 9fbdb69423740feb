"""The committed C header is what ``neutrino.maps.c_header`` writes, and C computes regions as Python does."""

from __future__ import annotations

import base64
import hashlib
import mmap
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from cffi import FFI
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from neutrino.abi.entries import TWINS_HEADER
from neutrino.abi.levels import LEVELS, PERS, Level, Per
from neutrino.abi.probe_block import block_size
from neutrino.abi.records import MAX_RECORD, MAX_TABLE
from neutrino.abi.results import MAP_DESCRIPTOR
from neutrino.backend.launch_memory import LaunchMemory
from neutrino.errors import Span
from neutrino.loader import interface
from neutrino.loader.interface import declarations
from neutrino.maps.c_header import c_header
from neutrino.maps.declaration import Layout, Map, MapType
from neutrino.maps.regions import region_layout
from neutrino.maps.registry import MAP_TYPES, number_of
from neutrino.twins.cache_entry import DIGESTED_FROM, read_entry

from .conftest import CSRC, IMAGE, Bench, compile_c, entry_of

maps = st.lists(
    st.tuples(
        st.sampled_from([kind() for kind in MAP_TYPES]), st.sampled_from(LEVELS), st.integers(1, MAX_TABLE),
        st.integers(1, 1000), st.sampled_from(PERS),
    ),
    max_size=8,
)


def _entry(name: str, kind: MapType, level: Level, size: int, cap: int, per: Per) -> Map:
    """A map that a cache entry may have."""
    per = per if kind.takes_per else Per.LAUNCH
    size = min(size, MAX_TABLE if kind.layout is Layout.COPIES else MAX_RECORD)
    if per is Per.RUN:
        size = -(-size // 8) * 8  # The results of the run are words.
    # A log that a kernel never saves to has cap 0.
    cap = {Layout.SLOTS: cap, Layout.CHUNKS: cap % 2}.get(kind.layout, 1)
    return Map(name, kind, level, size, cap, (), Span(1, 1), per)


def test_the_header_is_generated_from_the_layout() -> None:
    committed = (CSRC / "base" / "neutrino_layout.h").read_text()
    assert committed == c_header(), (
        "regenerate it: python -m neutrino.maps.c_header > neutrino/loader/csrc/base/neutrino_layout.h"
    )


def test_the_interface_is_generated_from_the_headers(tmp_path: Path) -> None:
    interface.generate(tmp_path / "_interface.py")
    committed = Path(interface.__file__).with_name("_interface.py").read_text()
    assert (tmp_path / "_interface.py").read_text() == committed, "regenerate it: python -m neutrino.loader.interface"


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> tuple[FFI, object]:
    library = tmp_path_factory.mktemp("core") / "core.so"
    sources = ("image/entry.c", "base/memory.c", "base/regions.c", "base/sha256.c", "image/image_bytes.c")
    compile_c(library, "-shared", "-fPIC", *(str(CSRC / name) for name in sources))
    ffi = FFI()
    headers = ("base/neutrino_layout.h", "base/regions.h", "image/image_bytes.h", "image/entry.h")
    ffi.cdef("\n".join(map(declarations, headers)))
    return ffi, ffi.dlopen(str(library))


@settings(deadline=None)
@given(maps, st.integers(0, 1 << 24), st.integers(1, 64), st.sampled_from([32, 64]),
       st.integers(0, (1 << 32) - 2))
def test_regions_in_c_and_in_python(
    core: tuple[FFI, object], rows: list[tuple[MapType, Level, int, int, Per]], blocks: int, warps: int,
    lanes: int, log_units: int,
) -> None:
    ffi, library = core
    entries = [_entry(f"m{index}", *row) for index, row in enumerate(rows)]
    expected, total = region_layout(entries, blocks, warps, lanes, log_units)
    assume(total < 1 << 60)  # What is larger has no layout in C.
    shape = (blocks, blocks * warps, warps * lanes, warps, lanes)
    extent = ffi.new("struct nt_extent *", (*shape, log_units))
    table = ffi.new("struct neutrino_map[]", max(len(rows), 1))
    for row, entry in zip(table, entries, strict=False):
        row.kind = number_of(entry.kind)
        row.level = LEVELS.index(entry.level)
        row.record_size = entry.size
        row.per = PERS.index(entry.per)
        row.cap = entry.cap
    for index, entry in enumerate(entries):
        assert not entry.cap or library.nt_regions_is_valid(table + index)  # type: ignore[attr-defined]
    assert library.nt_regions_size(table, len(rows), extent) == total  # type: ignore[attr-defined]
    # What may run repeatedly in a graph adds to its maps: no slots.
    in_slots = any(entry.kind.layout is Layout.SLOTS for entry in entries)
    assert library.nt_regions_add_up(table, len(rows)) == (not in_slots)  # type: ignore[attr-defined]
    logs = [entry.kind.layout is Layout.CHUNKS and entry.cap == 1 for entry in entries]
    assert [bool(library.nt_regions_is_log(table + index)) for index in range(len(rows))] == logs  # type: ignore[attr-defined]
    wanted = library.nt_regions_log_units(table, len(rows), extent, 1)  # type: ignore[attr-defined]
    assert bool(wanted) == (any(logs) and blocks > 0)
    # Of a frame that keeps one unit of each log: pieces of this launch's regions, back to back.
    ranges = ffi.new("struct nt_range[]", len(rows) + 1)
    count = library.nt_regions_ranges(table, len(rows), extent, min(log_units, 1), ranges)  # type: ignore[attr-defined]
    _, kept = region_layout(entries, blocks, warps, lanes, min(log_units, 1), in_frame=True)
    assert sum(ranges[index].size for index in range(count)) == kept
    offset = 0
    region = ffi.new("struct nt_region *")
    for index, wanted in enumerate(expected):
        offset = library.nt_regions_region(table + index, extent, offset, region)  # type: ignore[attr-defined]
        assert (region.records, region.records_size, region.counts_size) == (
            wanted.records,
            wanted.records_size,
            wanted.counts_size,
        )
        assert wanted.counts is None or region.counts == wanted.counts


extents = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))


@settings(deadline=None)
@given(
    maps, extents, extents, st.sampled_from([32, 64]), st.integers(0, 40), st.integers(0, 2), st.integers(0, 8),
    st.integers(0, 1 << 60), st.booleans(),
)
def test_probe_blocks_and_frames_in_c_and_in_python(
    core: tuple[FFI, object], rows: list[tuple[MapType, Level, int, int, Per]], grid: tuple[int, int, int],
    block: tuple[int, int, int], lanes: int, log_units: int, log_first: int, log_beyond: int, address: int,
    has_extents: bool,
) -> None:
    ffi, library = core
    # Little memory, as it is filled.
    entries = [_entry(f"m{index}", *row[:2], row[2] % 50 + 1, row[3] % 3 + 1, row[4]) for index, row in enumerate(rows)]
    table = ffi.new("struct neutrino_map[]", max(len(rows), 1))
    for row, entry in zip(table, entries, strict=False):
        row.kind, row.level, row.per = number_of(entry.kind), LEVELS.index(entry.level), PERS.index(entry.per)
        row.record_size, row.cap = entry.size, entry.cap
    extent = ffi.new("struct nt_extent *")
    assert library.nt_regions_extent(grid, block, lanes, extent) == 0  # type: ignore[attr-defined]
    extent.log_units, extent.log_first, extent.log_beyond = log_units, log_first, log_beyond
    memory = LaunchMemory(entries, grid, block, lanes, log_units, log_first, log_beyond)
    assert library.nt_regions_size(table, len(rows), extent) == memory.size  # type: ignore[attr-defined]
    size = block_size(len(rows), 0)
    described = ffi.new("uint8_t[]", size)
    library.nt_regions_describe(table, len(rows), extent, address, 77, described)  # type: ignore[attr-defined]
    tail = struct.pack("<6I", *grid, *block) if has_extents else b""
    assert memory.probe_block(address, size + len(tail), cell=77) == bytes(described) + tail
    with pytest.raises(ValueError, match="a probe block of"):
        memory.probe_block(address, size + 8)

    # As if all logs had wanted seven units: what is kept of the launch's memory.
    data = np.random.default_rng(1).integers(0, 256, memory.size, np.uint8)
    regions, _ = region_layout(entries, memory.blocks, memory.warps_per_block, lanes, log_units)
    logs = [region for entry, region in zip(entries, regions, strict=True) if entry.kind.layout is Layout.CHUNKS]
    for region in logs:
        data[region.records : region.records + 24] = np.array([4, 0, 3], "<u8").view(np.uint8)
    units = min(7, log_units) if any(entry.kind.layout is Layout.CHUNKS and entry.cap for entry in entries) else 0
    ranges = ffi.new("struct nt_range[]", len(rows) + 1)
    count = library.nt_regions_ranges(table, len(rows), extent, units, ranges)  # type: ignore[attr-defined]
    starts = [(getattr(one, "from"), one.size) for one in list(ranges)[:count]]
    kept = b"".join(data[start : start + length].tobytes() for start, length in starts)
    found_units, found = memory.frame(data.tobytes())
    assert (found_units, len(found)) == (units, len(kept))
    places, _ = region_layout(
        entries, memory.blocks, memory.warps_per_block, lanes, units, in_frame=True
    )
    for place in places:
        # Between the maps is padding, of which C copies what is there.
        for begin, length in ((place.records, place.records_size), (place.counts or 0, place.counts_size)):
            assert found[begin : begin + length] == kept[begin : begin + length]


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=400), st.sampled_from([b"", b"\x7fELF\x02", bytes.fromhex("50ed55ba01001000")]))
def test_measuring_any_bytes_stays_inside_them(core: tuple[FFI, object], data: bytes, start: bytes) -> None:
    ffi, library = core
    image = start + data
    measured = ffi.new("struct nt_image_bytes *")
    buffer = ffi.from_buffer(image)
    if library.nt_image_bytes_measure(buffer, len(image), measured):  # type: ignore[attr-defined]
        assert measured.size <= len(image)


def test_a_header_longer_than_the_image_is_refused(core: tuple[FFI, object]) -> None:
    ffi, library = core
    # What a fuzzer found: a container of 17 bytes whose header has 28,271.
    image = base64.b64decode("UO1Vun9/RbJGLnZlcnNpb24=")
    memory = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    memory[mmap.PAGESIZE - len(image) : mmap.PAGESIZE] = image
    start = ffi.from_buffer(memory) + mmap.PAGESIZE - len(image)
    measured = ffi.new("struct nt_image_bytes *")
    assert not library.nt_image_bytes_measure(start, len(image), measured)  # type: ignore[attr-defined]


@pytest.mark.parametrize("field", ["program headers", "section table", "section"])
def test_an_image_in_memory_ends_where_its_pages_do(core: tuple[FFI, object], field: str) -> None:
    ffi, library = core
    sections, far = 64, 1 << 40
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, 190, 1, 0, far if field == "program headers" else 0,
        far if field == "section table" else sections, 0, 64, 56, int(field == "program headers"), 64, 1, 0,
    )  # fmt: skip
    row = struct.pack("<IIQQQQIIQQ", 0, 1, 0, 0, 0, far if field == "section" else 8, 0, 0, 0, 0)
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    memory[: len(header + row)] = header + row
    measured = ffi.new("struct nt_image_bytes *")
    unknown = (1 << 64) - 1
    assert not library.nt_image_bytes_measure(ffi.from_buffer(memory), unknown, measured)  # type: ignore[attr-defined]


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_an_entry_with_any_byte_changed_is_refused(core: tuple[FFI, object], data: st.DataObject) -> None:
    ffi, library = core
    entry = bytearray(entry_of(IMAGE))
    key = read_entry(bytes(entry), "entry").key
    opened = ffi.new("struct nt_entry *")
    assert library.nt_entry_open(ffi.from_buffer(bytes(entry)), len(entry), key, opened)  # type: ignore[attr-defined]
    place = data.draw(st.integers(0, len(entry) - 1))
    entry[place] ^= data.draw(st.integers(1, 255))
    changed = ffi.new("uint64_t[]", len(entry) // 8 + 1)
    ffi.memmove(changed, bytes(entry), len(entry))
    assert not library.nt_entry_open(changed, len(entry), key, opened)  # type: ignore[attr-defined]


def test_the_hook_exports_the_drivers_names_and_few_of_its_own(bench: Bench) -> None:
    hook = str(bench.folder / "lib" / "libcuda.so.1")
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", hook],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    names = [line.split()[2] for line in listing.splitlines()]
    assert len(names) > 40
    # By the first one a patched library's stub knows that a hook is there, the second one is for NVTX, the third for
    # the auditing module; the others are those of control.h.
    own = [
        "neutrino_hook", "InitializeInjectionNvtx2", "neutrino_passing", "neutrino_flush", "neutrino_now",
        "neutrino_range_pop", "neutrino_range_push", "neutrino_record", "neutrino_set", "neutrino_trace_dir",
        "neutrino_use",
    ]  # fmt: skip
    assert sorted(name for name in names if not name.startswith("cu")) == sorted(own)
    undefined = subprocess.run(
        ["nm", "-D", "--undefined-only", hook],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "Py" not in undefined


def opens(core: tuple[FFI, object], map_index: int, member: str, value: int) -> bool:
    """Whether the hook would use the tests' entry with one member of one map changed, under a digest that fits."""
    ffi, library = core
    entry = bytearray(entry_of(IMAGE))
    key = read_entry(bytes(entry), "entry").key
    offset = int(np.frombuffer(entry, TWINS_HEADER.dtype, 1)["maps_offset"][0])
    np.frombuffer(entry, MAP_DESCRIPTOR.dtype, 2, offset)[member][map_index] = value
    entry[DIGESTED_FROM - 32 : DIGESTED_FROM] = hashlib.sha256(entry[DIGESTED_FROM:]).digest()
    data = ffi.new("uint64_t[]", len(entry) // 8 + 1)
    ffi.memmove(data, bytes(entry), len(entry))
    return bool(library.nt_entry_open(data, len(entry), key, ffi.new("struct nt_entry *")))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("member", "value", "sound"),
    [
        ("level", 0, True), ("level", 2, True), ("level", 3, False),
        ("kind", 1, True), ("kind", len(MAP_TYPES), False),
        ("cap", 0, False), ("cap", 1, True), ("cap", 2**32 - 1, True),
        ("record_size", 0, False), ("record_size", 65536, True), ("record_size", 65537, False),
        # In copies, as the second map has it.
        ("1 record_size", MAX_TABLE, True), ("1 record_size", MAX_TABLE + 1, False),
    ],
)  # fmt: skip
def test_an_entry_is_used_only_with_maps_that_are_known(
    core: tuple[FFI, object], member: str, value: int, sound: bool
) -> None:
    assert opens(core, int(member[0] == "1"), member.removeprefix("1 "), value) == sound


def test_a_sum_has_one_record(core: tuple[FFI, object]) -> None:
    assert opens(core, 1, "cap", 1)
    assert not opens(core, 1, "cap", 0)
    assert not opens(core, 1, "cap", 2)
