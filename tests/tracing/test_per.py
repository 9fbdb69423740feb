"""Maps with results of blocks, warps, threads and multiprocessors: both readers, the report, and what is damaged."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from test_read_script import read  # noqa: F401 - a fixture
from trace_writer import TraceWriter

from neutrino.abi.results import MAP_DESCRIPTOR, RESULT_HEADER
from neutrino.cli.report import main as report
from neutrino.errors import TraceError
from neutrino.maps.declaration import Map
from neutrino.ptx.snippets.lowering import lower
from neutrino.targets import written as write
from neutrino.tracing import Trace
from neutrino.verification import load_probe_file, read_probes

BLOCKS, THREADS, WARPS, LANES = 3, 40, 2, 32
PROBES = """
from neutrino import probe, Map
import neutrino.language as nl

@Map(level="thread", type="sum", per="block")
class Blocks:
    small: nl.u32
    large: nl.u64

@Map(level="thread", type="min", per="thread")
class Threads:
    value: nl.f32

@Map(level="warp", type="avg", per="warp")
class Warps:
    value: nl.u32

@Map(level="thread", type="histogram", per="sm", edges=[10, 20])
class Multiprocessors:
    value: nl.u32

@Map(level="warp", type="max", per="site")
class Sites:
    site: nl.u16

@probe(pos="ld", level="thread")
def threads():
    Blocks.save(1, 2)
    Threads.save(nl.f32(0.5))
    Multiprocessors.save(nl.lane)

@probe(pos="ld", level="warp")
def warps():
    Warps.save(nl.lane)
    Sites.save(nl.u16(7))
"""


def maps_of(tmp_path: Path) -> tuple[Map, ...]:
    """The maps of the probes in Python; compiled to TOML they are the same."""
    (tmp_path / "p.py").write_text(PROBES)
    typed = lower(load_probe_file(tmp_path / "p.py"))
    again = read_probes("p.toml", write(typed))
    assert again.digest == typed.digest
    assert [entry.per.value for entry in again.maps] == ["block", "thread", "warp", "sm", "launch"]
    # A map per instruction is a table with the key SITE.
    *maps, sites = again.maps
    assert (sites.kind.name, sites.kind.options(), sites.by_site) == ("hash", {"room": 256, "keep": ["max"]}, False)
    assert [(item.name, item.type.value) for item in sites.fields] == [("site_", "u32"), ("site", "u16")]
    assert "SAVE [ Sites ] { SITE, " in write(typed)
    return tuple(maps)


def region(rows: dict[int, bytes], count: int, stride: int) -> bytes:
    """The memory of a map: rows by their numbers, the first one belongs to none."""
    data = bytearray(stride * (1 + count))
    for number, row in rows.items():
        data[number * stride : number * stride + len(row)] = row
    return bytes(data).ljust(-(-len(data) // 128) * 128, b"\0")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two launches, of which the second one has twice as much in its sums."""
    maps = maps_of(tmp_path)
    assert [entry.size for entry in maps] == [16, 8, 16, 24]
    writer = TraceWriter(tmp_path / "Nov20_131500_1")
    writer.kernel(3, "k", maps=maps)

    def key(value: float) -> bytes:
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
        # The inverse of what is greater for greater numbers that are not negative.
        return struct.pack("<Q", (bits | 1 << 31) ^ 0xFFFFFFFF)

    for factor in (1, 2):
        writer.launch(
            3, (BLOCKS, 1, 1), (THREADS, 1, 1),
            region({1: struct.pack("<I4xQ", 7 * factor, 9), 3: struct.pack("<I4xQ", 5, 1 << 40)}, BLOCKS, 16)
            # The thread 33 of block 1 is lane 1 of its second warp.
            + region({1: key(1.5), 1 + 64 + 33: key(0.25)}, BLOCKS * WARPS * LANES, 8)
            + region({1 + 3: struct.pack("<QQ", 4, 10)}, BLOCKS * WARPS, 16)
            # What has no row of its own is in the first one.
            + region({0: struct.pack("<3Q", 0, 0, 1), 1 + 131: struct.pack("<3Q", 2, 0, 3)}, 256, 128),
        )  # fmt: skip
    return writer.write()


def test_each_result_says_whose_it_is(trace: Path, read: Any, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    wanted = {
        "Blocks": [(0, 7, 9), (1, 0, 0), (2, 5, 1 << 40)],
        "Threads": [(0, 0, 0, 1.5), (1, 1, 1, 0.25)],
        "Warps": [(1, 1, 4, 10, 2.5)],
        "Multiprocessors": [
            (131, 0, 9, 2), (131, 10, 19, 0), (131, 20, (1 << 32) - 1, 3),
            (256, 0, 9, 0), (256, 10, 19, 0), (256, 20, (1 << 32) - 1, 1),
        ],
    }  # fmt: skip
    (kernel,) = Trace(trace).kernels
    for number, launch in enumerate(kernel.launches()):
        _, sections, records = read.parse(trace / "result/3.bin", number)
        for section in sections:
            name, view = section["name"], launch.maps[section["name"]]
            rows = [(row[0], row[1] * 2, *row[2:]) if number and name == "Blocks" and row[0] == 0 else row
                    for row in wanted[name]]  # fmt: skip
            assert records[name].tolist() == rows
            columns = [*view.places().values(), *(view.valid()[field] for field in view.valid().dtype.names or ())]
            assert list(zip(*(column.tolist() for column in columns), strict=True)) == rows
            assert list(records[name].dtype.names)[: len(view.places())] == list(view.places())
        assert launch.maps["Blocks"].total() == {"small": 12 + 7 * number, "large": 9 + (1 << 40)}
    # Of both launches, one after the other.
    (stack,) = kernel.stacks()
    assert stack["Blocks"].valid()["small"].tolist() == [7, 0, 5, 14, 0, 5]
    with pytest.raises(ValueError, match="of one launch"):
        stack["Blocks"].places()

    assert report([str(trace), "--rows", "2"]) == 0
    text = capsys.readouterr().out
    lines = [line.split() for line in text.splitlines()]
    assert "6 results of a sum per block" in text
    assert "4 results of the least per thread" in text
    assert "2 results of a mean per warp" in text
    assert "4 results of a histogram per sm" in text
    at = lines.index(["launch", "block", "small", "large"])
    assert lines[at + 1 : at + 3] == [["0", "2", "5", str(1 << 40)], ["1", "2", "5", str(1 << 40)]]
    at = lines.index(["launch", "block", "warp", "lane", "value"])
    assert [line[-1] for line in lines[at + 1 : at + 3]] == ["0.25", "0.25"]
    assert report([str(trace), "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)["traces"]
    assert [entry["per"] for entry in document["kernels"][0]["maps"]] == ["block", "thread", "warp", "sm"]
    read._print_summary(trace / "result/3.bin", None)
    printed = capsys.readouterr().out
    assert "Blocks (sum, thread) per block: 3 results\n    block 2, small 5, large 1099511627776\n" in printed


def test_a_damaged_owner_is_named(trace: Path, read: Any) -> None:  # noqa: F811
    manifest = trace / "kernel/3/manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"per": "block"', '"per": "blocks"'))
    with pytest.raises(TraceError, match="a map's per is 'blocks', expected launch, block"):
        list(Trace(trace).kernels[0].launches())
    manifest.write_text(text.replace('"kind": "avg"', '"kind": "array"'))
    with pytest.raises(TraceError, match="a map's per is 'warp', expected none of a array"):
        list(Trace(trace).kernels[0].launches())
    manifest.write_text(text)
    data = bytearray((trace / "result/3.bin").read_bytes())
    _, offset = MAP_DESCRIPTOR.dtype.fields["per"]
    at = RESULT_HEADER.size + offset
    for per in (2, 99):
        data[at] = per
        (trace / "result/3.bin").write_bytes(data)
        with pytest.raises(TraceError, match="map 'Blocks' differs from the one in"):
            next(Trace(trace).kernels[0].launches())
    with pytest.raises(ValueError, match="not known"):
        read.parse(trace / "result/3.bin")
