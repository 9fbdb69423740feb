"""A summary in constant memory says what all records at once say, and takes no more for more of them."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_writer import BLOCK_SCHED, GMEM_BYTES, TraceWriter, fill_regions, make_map

from neutrino.abi.launches import LAUNCH, LAUNCHES_HEADER_SIZE, LaunchState
from neutrino.abi.levels import Level
from neutrino.abi.records import lay_out_fields, record_dtype
from neutrino.abi.scalars import NUMPY_TYPES, ScalarType
from neutrino.errors import Span
from neutrino.maps.average import Average
from neutrino.maps.declaration import Layout, Map, Report
from neutrino.maps.extreme import Maximum, Minimum
from neutrino.maps.hash import Hash
from neutrino.maps.histogram import Histogram
from neutrino.maps.keyed import Keyed
from neutrino.maps.log import Log
from neutrino.maps.log_reading import LOG_CONTROL, LOG_UNIT, slices
from neutrino.maps.regions import copies_of
from neutrino.maps.ring import Ring
from neutrino.maps.topk import TopK
from neutrino.tracing import (
    MapView,
    Trace,
    aggregate,
    log_records,
    map_records,
    sampling,
    summarize,
    summary,
    trace,
    views,
)
from neutrino.tracing.aggregate import Tiles, ranges_of
from neutrino.tracing.sampling import Sample, medians_near
from neutrino.tracing.summary import MapSummary
from tests.maps.aggregates import probes_of, random_values, run

SCALARS = [scalar.value for scalar in ScalarType]
COMBINING = {
    "sum": make_map("m", "sum", "thread", {"value": "u64"}).kind, "min": Minimum(), "max": Maximum(), "avg": Average(),
    "histogram": Histogram(), "hash": Hash(4, ("sum", "min", "max")), "topk": TopK(4, ("sum",), n=2),
}  # fmt: skip


def combining(name: str, kind: str) -> Map:
    of = COMBINING[kind]
    row = {"value": ScalarType.U32}
    if kind in ("hash", "topk"):
        row = {"site": ScalarType.U32, "value": ScalarType.U32}
    fields, _, _ = lay_out_fields(list(row.items()))
    return Map(name, of, Level.THREAD, of.size(fields), 1, fields, Span(1, 1))


@st.composite
def maps(draw: st.DrawFn) -> list[Map]:
    chosen = []
    for number in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["array", "array", "ring", *COMBINING]))
        if kind in COMBINING:
            chosen.append(combining(f"M{number}", kind))
            continue
        fields = {f"f{field}": draw(st.sampled_from(SCALARS)) for field in range(draw(st.integers(1, 3)))}
        if draw(st.booleans()):
            fields["site"] = draw(st.sampled_from(["u16", "u32", "u64", "s32"]))
        made = make_map(f"M{number}", "array", draw(st.sampled_from(["block", "warp", "thread"])), fields,
                        draw(st.sampled_from([1, 1, 3])))  # fmt: skip
        chosen.append(Map(**{**vars(made), "kind": Ring()}) if kind == "ring" else made)
    return chosen


def values_of(entries: list[Map], blocks: int, warps: int, random: np.random.Generator) -> dict[str, Any]:
    """Any bytes as records; tables of keys with a few keys."""
    values: dict[str, Any] = {}
    for entry in entries:
        slots = blocks if entry.level is Level.BLOCK else blocks * warps * (32 if entry.level is Level.THREAD else 1)
        count = slots * entry.cap if entry.kind.layout is Layout.SLOTS else copies_of(entry, blocks * warps)
        raw = random.integers(0, 256, (count, entry.size), np.uint8)
        raw[random.random(count) < 0.5] = 0
        if entry.kind.report is Report.KEYS:
            width = 2 + len(entry.kind.document(entry.fields)["kept"])
            words = raw.view("<u8").reshape(count, -1, width)
            words[:] = random.integers(0, 9, words.shape)
            # No two entries of a table have the same key.
            words[:, :, 0] = ~np.arange(words.shape[1], dtype="<u8")
        values[entry.name] = raw.reshape(-1).view(entry.dtype)
        if entry.kind.layout is Layout.SLOTS and "site" in (entry.dtype.names or ()) and random.random() < 0.7:
            values[entry.name]["site"] %= 100
        if entry.kind.layout is Layout.SLOTS and (entry.cap != 1 or entry.kind.keeps_last):
            values[f"{entry.name}.counts"] = random.integers(0, entry.cap + 3, slots)
    return values


def write_trace(path: Path, entries: list[Map], shapes: list[tuple[int, int]], seed: int) -> Path:
    random = np.random.default_rng(seed)
    writer = TraceWriter(path)
    writer.kernel(1, "k", maps=entries)
    for blocks, threads in shapes:
        warps = -(-threads // 32)
        regions = fill_regions(entries, warps, values_of(entries, blocks, warps, random), blocks=blocks)
        writer.launch(1, (blocks, 1, 1), (threads, 1, 1), regions)
    # Threads take numbers in advance.
    for record, submitted in zip(writer.records, random.permutation(len(shapes)), strict=True):
        record["submit_ns"] = submitted
    return writer.write()


def check(entry: Map, found: MapSummary, views_of_all: list[MapView]) -> None:
    """Compare with NumPy on the records of all launches together."""
    rows = np.concatenate([view.valid() for view in views_of_all])
    assert found.dropped == sum(view.dropped for view in views_of_all)
    assert found.wanted == max(view.wanted for view in views_of_all)
    if entry.kind.report is Report.BUCKETS:
        table = rows["count"].reshape(len(views_of_all), -1).astype(object).sum(axis=0)
        assert [bucket.count for bucket in found.buckets] == table.tolist()
        return
    if entry.kind.report is Report.KEYS:
        # Those of all launches together may be others than those of each.
        rows = np.concatenate([Keyed.read(view.records, entry.document()) for view in views_of_all])
        wanted = {int(key): rows[rows["key"] == key] for key in np.unique(rows["key"])}
        for key in found.keys:
            assert key.count == wanted[key.key]["count"].sum()
            for name, combine in (("sum", np.sum), ("min", np.min), ("max", np.max)):
                assert name not in key.kept or key.kept[name] == combine(wanted[key.key][name])
        assert len(found.keys) == min(len(wanted), entry.document().get("n", len(wanted)))
        assert found.dropped_sum == sum(view.dropped_sum for view in views_of_all)
        return
    assert found.records == len(rows)
    fields = {field.name: field for field in found.fields}
    if entry.kind.report is Report.MEANS:
        rows = rows[["count", "mean"]]
        if len(rows):
            (field,) = found.fields
            weights = rows["count"] / rows["count"].sum(dtype=np.float64)
            assert field.values == sum(rows["count"].tolist())
            assert field.mean == pytest.approx(float((rows["mean"] * weights).sum()), rel=1e-12)
            middle = np.partition(rows["mean"], (len(rows) - 1) // 2)[(len(rows) - 1) // 2]
            assert (field.minimum, field.median, field.maximum) == (rows["mean"].min(), middle, rows["mean"].max())
        return
    for item in entry.fields if len(rows) else ():
        values = rows[item.name]
        if item.name == "site" and values.dtype.kind in "ui":
            numbers, counts = np.unique(values, return_counts=True)
            assert {site.number: site.records for site in found.sites} == dict(
                zip(numbers.tolist(), counts.tolist(), strict=True)
            )
            continue
        field = fields.pop(item.name)
        middle = (len(values) - 1) // 2
        wanted_numbers = (values.min(), np.partition(values, middle)[middle], values.max())
        np.testing.assert_array_equal((field.minimum, field.median, field.maximum), wanted_numbers)
        assert field.total == (sum(values.tolist()) if entry.kind.report is Report.TOTALS else None)
    assert not fields


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    maps(), st.lists(st.sampled_from([(1, 32), (2, 70), (3, 1), (2, 64)]), min_size=1, max_size=6),
    st.booleans(), st.booleans(), st.integers(0, 1 << 32),
)  # fmt: skip
def test_it_says_what_all_records_say(
    tmp_path_factory: pytest.TempPathFactory, entries: list[Map], shapes: list[tuple[int, int]], in_c: bool,
    keeps: bool, seed: int,
) -> None:  # fmt: skip
    path = write_trace(tmp_path_factory.mktemp("trace") / "t", entries, shapes, seed)
    with pytest.MonkeyPatch.context() as patch:
        if not in_c:
            patch.setattr(aggregate, "_library", lambda: None)
        if not keeps:
            # Results of launches are read again in each pass; two launches at once, and one.
            patch.setattr(map_records, "_KEPT", 0)
            patch.setattr(views, "_BATCH", 1)
            patch.setattr(trace, "_BATCH", 2)
        (kernel,) = summarize(Trace(path)).kernels
    launches = list(Trace(path).kernels[0].launches())
    assert [int(launch.record["submit_ns"]) for launch in launches] == sorted(range(len(shapes)))
    assert kernel.written == kernel.submitted == len(shapes)
    for entry, found in zip(entries, kernel.maps, strict=True):
        check(entry, found, [launch.maps[entry.name] for launch in launches])
        for launch in launches:
            view = launch.maps[entry.name]
            pieces = [row.tobytes() for tiles in view.pieces() for piece in tiles.pieces() for row in piece]
            assert sorted(pieces) == sorted(row.tobytes() for row in view.valid())


@pytest.mark.parametrize("most", [1, 200, 5000, 1 << 20])
@pytest.mark.parametrize("level", ["thread", "thread sm_60", "warp", "block"])
def test_a_log_in_slices_has_each_record_once(level: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """sm_60 has rows for threads, sm_90 groups."""
    values = random_values("u32", 700, np.random.default_rng(3))
    level, _, arch = level.partition(" ")
    view = run(probes_of('type = "log"', "u32", level), values, "u32", arch or "sm_90")
    monkeypatch.setattr(views, "_LOG_BATCH", most)
    monkeypatch.setattr(log_records, "_BATCH", most)
    parts = [tiles.records.reshape(-1) for tiles in view.pieces()]
    assert len(parts) > 2 or most > 100
    assert np.sort(np.concatenate(parts)["value"]).tobytes() == np.sort(view.valid()["value"]).tobytes()
    # A damaged region: what Log.read leaves out is in no slice.
    broken = np.array(view.records)
    broken[LOG_CONTROL + len(broken) // 3 // LOG_UNIT * LOG_UNIT :][:64] = 0
    row = {"size": 4}
    found = [Log.read(part, row)["record"] for part in slices(broken, 4, most)]
    wanted = Log.read(broken, row)["record"]
    assert np.sort(np.concatenate([*found, wanted[:0]]).view("<u4")).tolist() == np.sort(wanted.view("<u4")).tolist()


@pytest.mark.parametrize("kind", SCALARS)
def test_medians_by_a_sample(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "SAMPLE", 300)
    monkeypatch.setattr(sampling, "_MOST_PARTS", 5)
    random = np.random.default_rng(2)
    fields, size, _ = lay_out_fields([("value", ScalarType(kind)), ("few", ScalarType(kind))])
    of = np.dtype(NUMPY_TYPES[kind])
    found = 0
    for count in (1, 2, 50, 20_000, 20_001):
        rows = np.zeros(count, record_dtype(fields, size))
        rows["value"] = random_values(kind, count, random)
        rows["few"] = random.integers(0, 2, count).astype(of) + of.type(3)
        tiles = [Tiles.of(rows[first : first + 999]) for first in range(0, count, 999)]
        sample = Sample()
        for part in tiles:
            sample.add(part)
        assert sample.size == sum(map(len, sample.parts)) <= 600
        types = dict.fromkeys(("value", "few"), NUMPY_TYPES[kind])
        near = medians_near(tiles, sample, types, ranges_of(tiles, ("value", "few")))
        for name, median in near.items():
            assert median == np.partition(rows[name], (count - 1) // 2)[(count - 1) // 2]
        found += len(near)
        # Where the sample lies, nothing is said.
        sample.parts = [np.sort(rows, order="value")[-3:]]
        wrong = medians_near(tiles, sample, {"value": NUMPY_TYPES[kind]}, ranges_of(tiles, ("value",)))
        assert count < 50 or wrong.get("value", near["value"]) == near["value"]
        monkeypatch.setattr(sampling, "MOST_NEAR", 3)
        assert medians_near(tiles, sample, types, ranges_of(tiles, ("value", "few"))).get("few", 3) in (3, 4)
        monkeypatch.undo()
        monkeypatch.setattr(sampling, "SAMPLE", 300)
    assert found == 10


def test_numbers_that_were_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_BATCH", 2)
    path = write_trace(tmp_path / "t", [BLOCK_SCHED], [(1, 32)] * 9, 1)
    records = np.frombuffer((path / "launches.bin").read_bytes(), np.uint8).copy()
    launches = records[LAUNCHES_HEADER_SIZE:].view(LAUNCH.dtype)[:9]
    launches["state"][[0, 1, 2, 4, 6, 7]] = LaunchState.EMPTY
    launches["kernel"][5] = 7
    (path / "launches.bin").write_bytes(records.tobytes())
    opened = Trace(path)
    (kernel,) = opened.kernels
    assert sorted(kernel.indices.tolist()) == [3, 8]
    assert (opened.numbers_of(7).tolist(), opened.numbers_of(9).tolist()) == ([5], [])
    (found,) = summarize(opened).kernels
    assert (found.written, found.maps[0].records) == (2, 2)


def peak(path: Path) -> int:
    """Bytes that Python and NumPy hold at most while a trace is summarised; pages of mapped files do not count."""
    tracemalloc.start()
    try:
        summarize(Trace(path))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("in_c", [True, False])
def test_memory_does_not_grow_with_the_records(tmp_path: Path, in_c: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not in_c:
        monkeypatch.setattr(aggregate, "_library", lambda: None)
    slots = make_map("Slots", "array", "thread", {"value": "u64", "site": "u8"}, cap=3)
    peaks = []
    for blocks in (1000, 16_000):
        entries = [BLOCK_SCHED, slots]
        path = write_trace(tmp_path / str(blocks), entries, [(blocks, 33)] * 2, 3)
        assert (path / "result/1.bin").stat().st_size > blocks * 2 * 2 * 32 * 3 * 16
        peaks.append(peak(path))
    assert peaks[1] < peaks[0] + (2 << 20) < 16 << 20


def test_launches_take_few_bytes_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(map_records, "_KEPT", 1 << 16)
    monkeypatch.setattr(summary, "_MOST_ROWS", 1 << 10)
    monkeypatch.setattr(sampling, "SAMPLE", 1 << 8)
    entries = [GMEM_BYTES, *(combining(f"M{number}", kind) for number, kind in enumerate(("max", "avg", "hash")))]
    peaks = []
    for launches in (2000, 6000):
        writer = TraceWriter(tmp_path / str(launches))
        writer.kernel(1, "k", maps=entries)
        regions = fill_regions(entries, 1, values_of(entries, 1, 1, np.random.default_rng(1)))
        for _ in range(launches):
            writer.launch(1, (1, 1, 1), (32, 1, 1), regions)
        path = writer.write()
        del writer
        monkeypatch.setattr(trace, "_BATCH", 1000)
        monkeypatch.setattr(views, "_BATCH", 1 << 18)
        peaks.append(peak(path))
    # Their numbers, twice while they are collected.
    assert peaks[1] < peaks[0] + 4000 * 16 + (64 << 10)
