"""What a page's data are: columns as they were, schedules that are too long as means, counts that lose nothing."""

from __future__ import annotations

import base64
import gzip
import io
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neutrino.cli.report import main
from neutrino.page import distributions, launch_times, schedule
from neutrino.page.columns import Columns
from neutrino.page.source import Blocks, KeptBlocks, Source, shortened
from neutrino.tracing import Trace, summarize
from tests.page.made_pages import page_of, write_schedule
from tests.tracing.trace_writer import BLOCK_SCHED, TraceWriter, fill_regions, make_map


def read_columns(data: bytes) -> dict[str, Any]:
    """The columns of a block, read as docs say they lie."""
    head, _, body = gzip.decompress(data).partition(b"\n")
    found: dict[str, Any] = {}
    at = 0
    for column in json.loads(head):
        count, width = column["count"], column["bytes"]
        planes = np.frombuffer(body, np.uint8, count * width, at).reshape(width, count).astype(np.uint64)
        values = sum(
            (plane << np.uint64(8 * weight) for weight, plane in enumerate(planes)), np.zeros(count, np.uint64)
        )
        if column["differences"]:
            steps = np.where(values % 2, -((values + 1) // 2).astype(np.int64), (values // 2).astype(np.int64))
            values = np.cumsum(steps)
        found[column["name"]] = values.astype(np.int64)
        at += count * width
    assert at == len(body)
    return found


def blocks_of(text: str) -> dict[int, bytes]:
    """The blocks of a page's text by number."""
    found = re.findall(r'<script type="text/plain" id="block-(\d+)">([A-Za-z0-9+/=]*)</script>', text)
    return {int(number): base64.b64decode(data) for number, data in found}


def source_of(path: Path) -> Source:
    return Source(summarize(Trace(path)), {})


@given(st.lists(st.integers(0, (1 << 53) - 1), max_size=40), st.booleans())
def test_columns_are_what_they_were(values: list[int], differences: bool) -> None:
    columns = Columns()
    columns.add("first", np.array(values, np.int64), differences=differences)
    columns.add("second", np.arange(5))
    found = read_columns(columns.compressed())
    assert found["first"].tolist() == values
    assert found["second"].tolist() == [0, 1, 2, 3, 4]


def test_a_schedule_that_is_too_long_has_exact_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each moment of each multiprocessor, from its own first block on."""
    monkeypatch.setattr(schedule, "MOST_BLOCKS", 100)
    monkeypatch.setattr(schedule, "GRID_COLUMNS", 64)
    (table, _) = write_schedule(tmp_path / "trace", blocks=500, launches=2)
    file = io.StringIO()
    (row,) = schedule.prepare_spans(source_of(tmp_path / "trace"), Blocks(file))["kernels"]
    # The longest launch is there, the other has no room.
    (drawn,) = row["drawn"]
    assert drawn["kind"] == "grid"
    table = [table, _][drawn["launch"]]
    found = read_columns(blocks_of(file.getvalue())[drawn["block"]])
    assert (found["sm"].tolist(), drawn["sms"], drawn["of"]) == (list(range(132)), 7, 132)
    cells = found["cells"].reshape(len(found["sm"]), drawn["columns"]) / drawn["scale"]
    width = drawn["time"] / drawn["columns"]
    edges = np.arange(drawn["columns"] + 1) * width
    for sm, seen in zip(found["sm"], cells, strict=True):
        of_sm = table[table[:, 1] == sm]
        if not len(of_sm):
            assert not seen.any()
            continue
        begin, end = of_sm[:, 2] - of_sm[:, 2].min(), of_sm[:, 3] - of_sm[:, 2].min()
        overlap = np.minimum(end[:, None], edges[1:]) - np.maximum(begin[:, None], edges[:-1])
        expected = np.maximum(overlap, 0).sum(axis=0) / width
        assert np.abs(seen - expected).max() <= 0.51 / drawn["scale"]


def test_launches_share_the_room_by_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first turn draws the longest one."""
    monkeypatch.setattr(schedule, "MOST_BLOCKS", 130)
    tables = write_schedule(tmp_path / "trace", blocks=60, launches=4)
    (row,) = schedule.prepare_spans(source_of(tmp_path / "trace"), Blocks(io.StringIO()))["kernels"]
    assert sum(drawn["blocks"] for drawn in row["drawn"]) == 120
    assert row["time"]["max"] in [drawn["time"] for drawn in row["drawn"]]
    assert row["blocks"] == sum(len(table) for table in tables)
    busy = sum(int((table[:, 3] - table[:, 2]).sum()) for table in tables)
    assert row["busy"] == busy


def test_very_many_launches_are_counted_by_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_times, "MOST_LAUNCHES", 50)
    writer = TraceWriter(tmp_path / "trace")
    for kernel in (1, 2):
        writer.kernel(kernel, f"k{kernel}", maps=[BLOCK_SCHED])
    for number in range(200):
        writer.launch(1 + number % 3 // 2, (1, 1, 1), (32, 1, 1), None)
    file = io.StringIO()
    found = launch_times.prepare_launches(source_of(writer.write()), Blocks(file))
    assert (found["launches"], found["kind"], found["left_out"]) == (200, "moments", 0)
    columns = read_columns(blocks_of(file.getvalue())[found["block"]])
    counts = columns["cells"].reshape(2, found["moments"])
    assert counts.sum(axis=1).tolist() == [134, 66]
    assert counts.max() == 1


@pytest.mark.parametrize("kind", ["<u4", "<i8", "<f8", "<u8"])
def test_buckets_count_what_lies_in_them(kind: str) -> None:
    random = np.random.default_rng(3)
    values = (random.standard_normal(5000) * 10.0 ** random.integers(0, 9, 5000)).astype(
        kind if kind[1] == "f" else "i8"
    )
    values = np.abs(values) if kind[1] == "u" else values
    values = values.astype(kind)
    if kind == "<f8":
        values[:5] = [np.inf, -np.inf, np.nan, 0.0, -0.0]
    keys, counts = np.unique(distributions._buckets(values), return_counts=True)
    buckets = distributions._joined(dict(zip(keys.tolist(), counts.tolist(), strict=True)), kind[1] != "f")
    assert sum(bucket["count"] for bucket in buckets) == len(values)
    seen = [bucket for bucket in buckets if bucket["low"] != "nan"]
    for bucket, following in itertools.pairwise(seen):
        assert bucket["low"] <= bucket["high"] < following["low"]
    for bucket in seen:
        assert bucket["count"] == np.count_nonzero((values >= bucket["low"]) & (values <= bucket["high"]))
    assert len(buckets) <= 2 * 96


def test_a_page_takes_six_megabytes_a_million_blocks(tmp_path: Path) -> None:
    """Of blocks whose times have no pattern, with their warps; what every page has comes on top."""
    write_schedule(tmp_path / "empty", blocks=1, launches=1)
    write_schedule(tmp_path / "trace", blocks=40_000, sms=66, slots=8, warps=2, launches=1)
    base = page_of(tmp_path / "empty", tmp_path).stat().st_size
    blocks = source_of(tmp_path / "trace")
    file = io.StringIO()
    (row,) = schedule.prepare_spans(blocks, Blocks(file))["kernels"]
    exact = len(base64.b64encode(blocks_of(file.getvalue())[row["drawn"][0]["block"]]))
    assert exact / 40_000 <= 6
    # The page's own scripts and style.
    assert base <= 200_000


def test_texts_are_cut_and_say_so() -> None:
    document = {"name": "x" * 10_000, "rows": [("y" * 5000, 3)], "z" * 9000: True}
    cut = shortened(document)
    assert cut["name"].endswith("… (10,000 characters)")
    assert len(json.dumps(cut)) < 13_000


@pytest.mark.parametrize("part", ["result/1.bin", "launches.bin", "kernel/1/manifest.json"])
def test_a_damaged_trace_has_a_page_with_what_can_be_read(
    tmp_path: Path, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit status and the message are those of the report; the page has a note."""
    write_schedule(tmp_path / "trace", blocks=30)
    path = tmp_path / "trace" / part
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    status = main([str(tmp_path / "trace"), "--html", str(tmp_path / "page.html")])
    said = capsys.readouterr().err
    report = main([str(tmp_path / "trace")])
    assert status == report
    page = (tmp_path / "page.html").read_text()
    document = json.loads(gzip.decompress(blocks_of(page)[max(blocks_of(page))]))
    notes = " ".join(document["traces"][0]["document"]["notes"])
    assert part.rpartition("/")[2] in notes or "launches" in notes
    assert "page in" in said


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_schedule(tmp_path / "trace", blocks=3, launches=1)
    assert main([str(tmp_path / "trace"), "--html", str(tmp_path / "no" / "page.html")]) == 2
    assert "No such file" in capsys.readouterr().err
    page = page_of(tmp_path / "trace", tmp_path)
    before = page.read_bytes()
    assert main([str(tmp_path / "trace"), "--html", str(page)]) == 0
    assert page.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "trace"]


def test_warps_of_zeros_are_no_warps(tmp_path: Path) -> None:
    """A place that nothing was saved to has no time. How many multiprocessors this device has is not known."""
    writer = TraceWriter(tmp_path / "trace", device="NVIDIA H200 MIG 1g.18gb")
    writer.kernel(1, "k", maps=[BLOCK_SCHED])
    rows = [(0, 0, 0), (100, 5, 1), (0, 0, 0), (0, 0, 0)]
    writer.launch(1, (2, 1, 1), (64, 1, 1), fill_regions([BLOCK_SCHED], 4, {"BlockSched": rows}))
    file = io.StringIO()
    (row,) = schedule.prepare_spans(source_of(writer.write()), Blocks(file))["kernels"]
    found = read_columns(blocks_of(file.getvalue())[row["drawn"][0]["block"]])
    assert {name: values.tolist() for name, values in found.items()} == {
        "sm": [1], "first": [0], "count": [1], "gap": [0], "took": [5], "block": [0],
    }  # fmt: skip


def test_buckets_of_a_small_range_have_one_width(tmp_path: Path) -> None:
    """All multiprocessors had as many blocks: their bars are of one height, but for the last, which may have fewer."""
    writer = TraceWriter(tmp_path / "trace")
    writer.kernel(1, "gemm", maps=[BLOCK_SCHED])
    blocks = 132 * 6
    rows = [(1000 + at, 50, at % 132) for at in range(blocks)]
    writer.launch(1, (blocks, 1, 1), (32, 1, 1), fill_regions([BLOCK_SCHED], 1, {"BlockSched": rows}, blocks=blocks))
    (found,) = distributions.prepare_distributions(Source(summarize(Trace(writer.write())), {}), KeptBlocks())["maps"]
    (buckets,) = (field["buckets"] for field in found["fields"] if field["name"] == "cuid")
    assert [bucket["count"] for bucket in buckets] == [3 * 6] * 44
    assert [(bucket["low"], bucket["high"]) for bucket in buckets] == [(at, at + 2) for at in range(0, 132, 3)]


@pytest.mark.parametrize(("fields", "is_shared"), [(("begin", "end"), True), (("begin", "took"), False)])
def test_begin_with_end_is_of_one_clock(tmp_path: Path, fields: tuple[str, str], is_shared: bool) -> None:
    """As in files for Perfetto, whatever the map is called."""
    first, last = fields[0], {"took": "elapsed"}.get(fields[1], fields[1])
    mine = make_map("Mine", "array", "warp", {first: "u64", last: "u64", "sm": "u32"})
    writer = TraceWriter(tmp_path / "trace")
    writer.kernel(1, "gemm", maps=[mine])
    rows = [(1000, 1400, 0), (1300, 1700, 1)] if is_shared else [(1000, 400, 0), (1300, 400, 1)]
    writer.launch(1, (2, 1, 1), (32, 1, 1), fill_regions([mine], 1, {"Mine": rows}, blocks=2))
    (row,) = schedule.prepare_spans(source_of(writer.write()), Blocks(io.StringIO()))["kernels"]
    assert (row["shared"], row["ns"], row["time"]["max"]) == (is_shared, is_shared, 700 if is_shared else 400)


def test_views_begin_with_the_kernel_that_took_most_time(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "trace")
    for identity, took in ((1, 50), (2, 900), (3, 200)):
        writer.kernel(identity, f"k{identity}", maps=[BLOCK_SCHED])
        regions = fill_regions([BLOCK_SCHED], 1, {"BlockSched": [(1000, took, 0)]})
        writer.launch(identity, (1, 1, 1), (32, 1, 1), regions)
    document = schedule.prepare_spans(Source(summarize(Trace(writer.write())), {}), KeptBlocks())
    assert [row["kernel"] for row in document["kernels"]] == [2, 3, 1]
