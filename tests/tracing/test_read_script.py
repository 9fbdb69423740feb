"""tools/read.py: its layout is the generated one, and it reads what the package's reader reads."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from trace_writer import (
    BLOCK_SCHED,
    GMEM_BYTES,
    RECORDS_OFFSET,
    TraceWriter,
    fill_regions,
    make_map,
    write_histogram,
)

from neutrino.abi.launches import LAUNCH
from neutrino.abi.records import record_dtype
from neutrino.abi.results import FRAME, MAP_DESCRIPTOR, RESULT_HEADER
from neutrino.errors import TraceError
from neutrino.maps.read_script import BEGIN, END, python_layout, replace_layout
from neutrino.maps.regions import copies_in
from neutrino.resources import tool_path
from neutrino.tracing import Trace, summarize
from neutrino.tracing.result import Result


@pytest.fixture(scope="module")
def read() -> ModuleType:
    spec = importlib.util.spec_from_file_location("read_script", tool_path("read.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    sites = make_map("Sites", "array", "thread", {"at": "u64", "kind": "u8", "value": "f32"}, cap=2)
    blocks_of = make_map("Blocks", "array", "block", {"at": "u32"}, cap=3)
    ends = make_map("Ends", "array", "block", {"at": "u16"})
    grows = make_map("Grows", "array", "warp", {"at": "u64", "kind": "s8"}, cap=4)
    threads_of = make_map("Threads", "array", "thread", {"value": "f64"}, cap=7)
    maps = [BLOCK_SCHED, sites, blocks_of, grows, ends, threads_of, GMEM_BYTES]
    writer = TraceWriter(tmp_path / "Nov20_131500_1")
    writer.kernel(3, "_Z1kv", maps=maps)
    random = np.random.default_rng(7)
    # Earlier traces do not say how many lanes a warp has.
    for blocks, threads, said in ((2, 48, 0), (1, 33, 32), (3, 32, 0), (2, 100, 64)):
        lanes = said or 32
        warps = -(-threads // lanes)
        values = {}
        for entry, slots in (
            (BLOCK_SCHED, blocks * warps),
            (sites, blocks * warps * 2 * lanes),
            (blocks_of, blocks * 3),
            (grows, blocks * warps * 4),
            (ends, blocks),
            (threads_of, blocks * warps * 7 * lanes),
            (GMEM_BYTES, copies_in(blocks * warps)),
        ):
            raw = random.integers(0, 120, (slots, entry.size), np.uint8)
            values[entry.name] = raw.view(record_dtype(entry.fields, entry.size))
        values["Sites.counts"] = random.integers(0, 4, blocks * warps * lanes)
        values["Blocks.counts"] = random.integers(0, 5, blocks)
        values["Grows.counts"] = random.integers(0, 9, blocks * warps)
        values["Threads.counts"] = random.integers(0, 9, blocks * warps * lanes)
        regions = fill_regions(maps, warps, values, blocks=blocks, lanes=lanes)
        writer.launch(3, (blocks, 1, 1), (threads, 1, 1), regions, lanes=said)
    return writer.write()


def test_files_of_the_versions_before_are_read(trace: Path, read: ModuleType) -> None:
    """Logs had fewer kinds of chunks, and all of a kernel's had memory; the rest is the same."""
    path = trace / "result/3.bin"
    expected = {name: rows.tobytes() for name, rows in read.parse(path)[2].items()}
    data = bytearray(path.read_bytes())
    assert data[8] == 8
    for version in (7, 6, 5, 4, 3):
        data[8] = version
        path.write_bytes(data)
        assert {name: rows.tobytes() for name, rows in read.parse(path)[2].items()} == expected
        (kernel,) = Trace(trace).kernels
        assert next(kernel.launches()).maps.keys() == expected.keys()
    data[8] = 2
    path.write_bytes(data)
    with pytest.raises(ValueError, match="version 8"):
        read.parse(path)


def test_the_layout_is_the_generated_one() -> None:
    text = tool_path("read.py").read_text()
    assert replace_layout(text) == text, "run: python -m neutrino.maps.read_script tools/read.py"
    assert text.count(BEGIN) == text.count(END) == 1
    assert python_layout() in text


def test_it_reads_what_the_package_reads(read: ModuleType, trace: Path) -> None:
    (kernel,) = Trace(trace).kernels
    launches = list(kernel.launches())
    assert len(launches) == 4
    for launch in launches:
        header, sections, records = read.parse(trace / "result" / "3.bin", launch.index)
        assert header["launch"] == launch.index
        assert header["launches"] == [0, 1, 2, 3]
        assert header["name"] == "_Z1kv(int*)"
        assert header["block"] == tuple(launch.record["block"])
        for section in sections:
            view = launch.maps[section["name"]]
            if section["kind"] == "sum":
                assert {name: int(records["GmemBytes"][name]) for name in section["fields"]} == view.total()
                continue
            ours = records[section["name"]]
            assert ours.shape == view.records.shape
            for name in section["fields"]:
                np.testing.assert_array_equal(ours[name], view.records[name])
                np.testing.assert_array_equal(read.valid(header, section, ours)[name], view.valid()[name])
            assert section["cap"] == view.cap
            if section["counts"] is not None or view.counts is not None:
                np.testing.assert_array_equal(section["counts"], view.counts)


def test_the_first_launch_is_the_default(read: ModuleType, trace: Path) -> None:
    assert read.parse(trace / "result" / "3.bin")[0]["launch"] == 0
    with pytest.raises(LookupError, match="launch 9 is not in the file"):
        read.parse(trace / "result" / "3.bin", 9)


def test_it_runs_inside_the_trace_without_the_package(trace: Path) -> None:
    script = trace / "read.py"
    shutil.copy(tool_path("read.py"), script)
    done = subprocess.run(
        [sys.executable, "-I", str(script)], capture_output=True, text=True, check=True, cwd=trace.parent
    )
    assert "_Z1kv(int*), 4 launches with data" in done.stdout
    assert "BlockSched (array, warp): 4 records" in done.stdout
    assert done.stderr == ""


def test_files_that_were_cut_off_anywhere(read: ModuleType, trace: Path) -> None:
    """Both readers: the launches whose frames are whole, or an error that says what is wrong."""
    path = trace / "result" / "3.bin"
    whole = path.read_bytes()
    launches = Trace(trace).launches
    ends = [int(record["data_offset"] + FRAME.size + record["data_size"]) for record in launches]
    assert len(ends) == 4
    (kernel,) = Trace(trace).kernels
    headers = int(launches[0]["data_offset"]) + FRAME.size
    around = (size for end in ends for size in range(end - 3, end + FRAME.size + 3))
    for size in sorted({*range(0, headers, 3), *around, *range(0, len(whole), 201)} & {*range(len(whole))}):
        path.write_bytes(whole[:size])
        left = sum(end <= size for end in ends)
        if left:
            assert len(read.parse(path)[0]["launches"]) == left
        else:
            with pytest.raises((ValueError, LookupError), match=r"cut off|not in the file"):
                read.parse(path)
        result = Result(path, 3, kernel.manifest.maps if kernel.manifest else ())
        for index, record in enumerate(launches):
            if index < left:
                assert result.view(record, index)
            else:
                with pytest.raises(TraceError, match="cut off"):
                    result.view(record, index)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"maps": [', b'"maps": [7, '),
        (b'"maps": [{', b'"maps": {"a": {'),
        (b'"type": "u64"', b'"type": 64'),
        (b'"type": "u64"', b'"type": "v64"'),
        (b'"type": "u64"', b'"type": ""'),
        (b'"type": "u64", "offset": 0', b'"type": "u64", "offset": []'),
        (b'"type": "u64", "offset": 0', b'"type": "u64", "offset": 99999999999999999999'),
        (b'"type": "u64", "offset": 0', b'"type": "u64", "offset": 77'),
        (b'"name": "start"', b'"name": "elapsed"'),
    ],
)
def test_a_damaged_manifest_is_an_error(
    read: ModuleType, trace: Path, before: bytes, after: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    path = trace / "kernel" / "3" / "manifest.json"
    text = path.read_bytes()
    assert before in text
    path.write_bytes(text.replace(before, after, 1) if b"{" not in after else b"[1]")
    assert read.main([str(trace / "result" / "3.bin")]) == 2
    assert "3" in capsys.readouterr().err


@pytest.mark.parametrize("buckets", [None, [], [[1]], [[0, 1], [2, 3]]])
def test_damaged_buckets_are_an_error(read: ModuleType, tmp_path: Path, buckets: object) -> None:
    path = write_histogram(tmp_path / "t", buckets=buckets)
    with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
        read.parse(path / "result/1.bin")


@pytest.mark.parametrize("size", [0, 65537, 2**32 - 1])
def test_a_record_size_that_no_map_has(read: ModuleType, trace: Path, size: int) -> None:
    """Without a manifest a record has a field for each byte."""
    path = trace / "result" / "3.bin"
    shutil.rmtree(trace / "kernel")
    assert read.main([str(path)]) == 0
    data = bytearray(path.read_bytes())
    at = RESULT_HEADER.size + int(MAP_DESCRIPTOR.dtype.fields["record_size"][1])
    data[at : at + 4] = size.to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(ValueError, match="record size"):
        read.parse(path)


@pytest.mark.parametrize(
    ("grid", "block"),
    [((0, 1, 1), (48, 1, 1)), ((0, 0, 0), (2**20, 2**20, 2**20)), ((0, 1, 1), (2**31, 1, 1)), ((2, 1, 1), (0, 1, 1))],
)
def test_a_launch_that_cannot_have_been(
    read: ModuleType, trace: Path, grid: tuple[int, ...], block: tuple[int, ...]
) -> None:
    """Both files say the same, and no bytes are needed for no slots."""
    for path, struct, at in (
        (trace / "launches.bin", LAUNCH, RECORDS_OFFSET),
        (trace / "result" / "3.bin", FRAME, int(Trace(trace).launches[0]["data_offset"])),
    ):
        data = bytearray(path.read_bytes())
        (row,) = np.frombuffer(data, struct.dtype, 1, at)
        row["grid"], row["block"] = grid, block
        path.write_bytes(data)
    with pytest.raises(TraceError, match="blocks of"):
        summarize(Trace(trace))
    with pytest.raises(ValueError, match="blocks of"):
        read.parse(trace / "result" / "3.bin")
