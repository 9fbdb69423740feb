"""Records with their places, conditions, groups and orders: what plain Python says of the same records, in memory that
does not grow with them."""

from __future__ import annotations

import math
import tracemalloc
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_per import trace as owners  # noqa: F401 - a fixture
from test_read_script import read  # noqa: F401 - a fixture
from test_summary import maps, write_trace
from trace_writer import TraceWriter, fill_regions, make_map

from neutrino.errors import TraceError
from neutrino.maps.declaration import Layout, Map
from neutrino.tracing import Trace, queries, recorded, trace, views
from neutrino.tracing.expression import Expression
from neutrino.tracing.queries import FirstRows, GroupsError, group, matching
from neutrino.tracing.recorded import RecordedMap, Rows
from tests.maps.aggregates import probes_of, random_values, run

SHAPES = st.lists(st.sampled_from([(1, 32), (2, 70), (3, 1), (2, 64)]), min_size=1, max_size=5)
SLOTS = make_map("Slots", "array", "thread", {"value": "u64", "small": "s8", "part": "f32"}, cap=3)


def lines(source: Any) -> list[tuple[Any, ...]]:
    parts = ([column.tolist() for column in rows.columns.values()] for rows in source)
    return [line for columns in parts for line in zip(*columns, strict=True)]


def plain(line: tuple[Any, ...]) -> list[Any]:
    """Numbers that can be compared."""
    return ["nan" if isinstance(value, float) and math.isnan(value) else value for value in line]


@settings(max_examples=60, deadline=None)
@given(maps(), SHAPES, st.sampled_from([1, 40, 1 << 16]), st.integers(0, 1 << 32), st.booleans())
def test_records_are_those_of_each_launch(
    tmp_path_factory: pytest.TempPathFactory, entries: list[Map], shapes: list[tuple[int, int]], most: int, seed: int,
    few: bool,
) -> None:  # fmt: skip
    path = write_trace(tmp_path_factory.mktemp("trace") / "t", entries, shapes, seed)
    (kernel,) = Trace(path).kernels
    chosen = range(1, 3) if few else None
    launches = [launch for launch in kernel.launches() if chosen is None or launch.index in chosen]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorded, "MOST_RECORDS", most)
        patch.setattr(trace, "_BATCH", 2)
        patch.setattr(views, "_BATCH", 1 + seed % 3000)
        for entry in entries:
            found = RecordedMap([kernel], entry.name, chosen)
            pieces, types = [], list(found.types)
            for rows in found.rows():
                assert list(rows.columns) == types
                assert [values.dtype for values in rows.columns.values()] == list(found.types.values())
                columns = [values.tolist() for values in rows.columns.values()]
                pieces += [*zip(*columns, strict=True)]
                assert most > 1 or entry.kind.layout is not Layout.SLOTS or len(rows) == 1
            wanted = []
            dropped = 0
            for launch in launches:
                view = launch.maps[entry.name]
                records = view.valid()
                places = list(view.places().values()) if entry.kind.layout is Layout.SLOTS else []
                columns = [column.tolist() for column in (*places, *(records[name] for name in records.dtype.names))]
                wanted += [(launch.index, *line) for line in zip(*columns, strict=True)]
                dropped += 0 if entry.kind.keeps_last else view.dropped
            assert list(map(plain, pieces)) == list(map(plain, wanted))
            assert found.dropped == dropped


@pytest.mark.parametrize("most", [1, 3000, 1 << 18])
@pytest.mark.parametrize("level", ["thread", "thread sm_60", "warp", "block"])
def test_records_of_a_log_are_in_order(level: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """sm_60 has rows for threads, sm_90 groups."""
    values = random_values("u32", 700, np.random.default_rng(3))
    level, _, arch = level.partition(" ")
    view = run(probes_of('type = "log"', "u32", level), values, "u32", arch or "sm_90")
    monkeypatch.setattr(recorded, "_LOG_BYTES", most)
    found = []
    parts = 0
    for places, records in recorded._of_log(view):
        parts += 1
        found += [*zip(*(places[axis].tolist() for axis in view.places()), records["value"].tolist(), strict=True)]
    columns = [column.tolist() for column in view.places().values()]
    assert found == [*zip(*columns, view.valid()["value"].tolist(), strict=True)]
    assert (parts > 2) == (most == 1) or most == 3000


def test_results_of_owners_have_their_places(owners: Path, read: Any) -> None:  # noqa: F811
    """read.py shares nothing with this but what a type of maps reads."""
    (kernel,) = Trace(owners).kernels
    for name, axes in (("Blocks", 1), ("Threads", 3), ("Warps", 2), ("Multiprocessors", 1)):
        wanted = []
        for launch in (0, 1):
            _, _, records = read.parse(owners / "result/3.bin", launch)
            wanted += [(launch, *row) for row in records[name].tolist()]
        found = RecordedMap([kernel], name)
        assert lines(found.rows()) == wanted
        assert found.places == 1 + axes


def test_a_place_gives_way_to_a_field_of_its_name(tmp_path: Path) -> None:
    odd = make_map("Odd", "array", "warp", {"block": "u32", "launch": "u64", "async": "u8"})
    path = write_trace(tmp_path / "t", [odd], [(2, 64)], 1)
    found = RecordedMap(Trace(path).kernels, "Odd")
    assert list(found.types) == ["[launch]", "[block]", "warp", "k", "block", "launch", "async"]
    (view,) = (launch.maps["Odd"] for launch in Trace(path).kernels[0].launches())
    assert [line[4] for line in lines(found.rows())] == view.valid()["block"].tolist()


def test_maps_that_differ_are_not_read_together(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t")
    for number, kind in enumerate(("u32", "u64")):
        writer.kernel(number, f"k{number}", maps=[make_map("M", "array", "warp", {"value": kind})])
    kernels = Trace(writer.write()).kernels
    with pytest.raises(TraceError, match=r"map M of k1\(int\*\) differs from that of k0\(int\*\)"):
        RecordedMap(kernels, "M")
    with pytest.raises(TraceError, match="has no map N"):
        RecordedMap(kernels, "N")


CONDITIONS = ["value % 3 == 1 and small < 0", "part > 0.5 or lane == 3", "small * value > 2", "block + warp + k"]


@pytest.fixture(scope="module")
def slots(tmp_path_factory: pytest.TempPathFactory) -> RecordedMap:
    """Three kernels with launches of different shapes, and fields of small and of all values."""
    random = np.random.default_rng(5)
    writer = TraceWriter(tmp_path_factory.mktemp("slots") / "t")
    for number in range(3):
        writer.kernel(number, f"k{number}", maps=[SLOTS])
    for launch in range(12):
        blocks = 1 + launch % 3
        count = blocks * 2 * 32
        values = np.zeros(count * 3, SLOTS.dtype)
        values["value"] = random.choice(np.array([0, 1, 2, 3, 2**63, 2**64 - 1], "<u8"), len(values))
        values["small"] = random.integers(-3, 4, len(values))
        parts = [0.25, -1.5, math.nan, math.inf, 3.0]
        values["part"] = random.choice(parts, len(values), p=[0.4, 0.3, 0.02, 0.08, 0.2])
        counts = random.integers(0, 5, count)
        writer.launch(
            launch % 3, (blocks, 1, 1), (50, 1, 1),
            fill_regions([SLOTS], 2, {"Slots": values, "Slots.counts": counts}, blocks=blocks),
        )  # fmt: skip
    return RecordedMap(Trace(writer.write()).kernels, "Slots")


def records_of(source: RecordedMap) -> list[dict[str, Any]]:
    return [
        {"kernel": rows.kernel.name} | dict(zip(source.types, line, strict=True))
        for rows in source.rows()
        for line in lines([rows])
    ]


def expression(source: RecordedMap, text: str) -> Expression:
    return Expression.read(text, {name: kind.kind == "f" for name, kind in source.types.items()})


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("most", [7, 1 << 16])
def test_conditions(slots: RecordedMap, condition: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "MOST_RECORDS", most)
    wanted = [record for record in records_of(slots) if eval(condition, {}, record)]
    found = matching(slots.rows(), expression(slots, condition))
    names = list(slots.types)
    assert [plain(tuple(record[name] for name in names)) for record in wanted] == list(map(plain, lines(found)))
    assert 0 < len(wanted) < len(records_of(slots))


@pytest.mark.parametrize("order", ["value", "-value", "small * 3 - lane", "part", "-part", "launch", "-value * value"])
@pytest.mark.parametrize("most", [0, 1, 25, 10_000])
@pytest.mark.parametrize("waiting", [1, 300, 1 << 16])
def test_the_first_in_an_order(
    slots: RecordedMap, order: str, most: int, waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "_MOST_WAITING", waiting)
    monkeypatch.setattr(recorded, "MOST_RECORDS", 50)
    records = records_of(slots)

    def key(record: dict[str, Any]) -> tuple[bool, Any]:
        value = eval(order, {}, record)
        return (True, 0) if math.isnan(value) else (False, value)

    wanted = sorted(records, key=key)[:most]
    first = FirstRows(slots.rows(), most, expression(slots, order))
    assert first.count == len(records)
    names = list(slots.types)
    assert list(map(plain, lines(first))) == [plain(tuple(record[name] for name in names)) for record in wanted]
    assert [rows.kernel.name for rows in first for _ in range(len(rows))] == [record["kernel"] for record in wanted]
    # Without an order as they come.
    first = FirstRows(slots.rows(), most)
    wanted = records[:most]
    assert list(map(plain, lines(first))) == [plain(tuple(record[name] for name in names)) for record in wanted]


@pytest.mark.parametrize("key", ["small", "value", "part", "value + small", "block", "small < 0", "value % 2 * lane"])
@pytest.mark.parametrize("waiting", [1, 1 << 16])
def test_groups(slots: RecordedMap, key: str, waiting: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "_MOST_WAITING", waiting)
    monkeypatch.setattr(recorded, "MOST_RECORDS", 50)
    by_key: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for record in records_of(slots):
        number = eval(key, {}, record)
        by_key["nan" if math.isnan(number) else number].append(record)
    read_key = expression(slots, key)
    found = group(slots.rows(), lambda rows: read_key.values(rows.columns, len(rows)), ("value", "small", "part"))
    ours = {"nan" if math.isnan(number) else number: index for index, number in enumerate(found.keys.tolist())}
    assert ours.keys() == by_key.keys()
    for number, records in by_key.items():
        index = ours[number]
        assert found.counts[index] == len(records)
        for name in ("value", "small"):
            values = [record[name] for record in records]
            known = found.of(name)
            assert (known.minimum[index], known.maximum[index], known.total[index], known.mean[index]) == (
                min(values), max(values), sum(values), sum(values) / len(values),
            )  # fmt: skip
        parts = np.array([record["part"] for record in records])
        known = found.of("part")
        numbers = (known.minimum[index], known.maximum[index], known.total[index])
        np.testing.assert_allclose(numbers, (parts.min(), parts.max(), parts.sum()))


def test_sums_of_any_size() -> None:
    random = np.random.default_rng(1)
    values = {"u": random.integers(0, 1 << 64, 1000, np.uint64), "s": -random.integers(0, 1 << 63, 1000)}
    groups = queries.Groups(("u", "s"))
    for _ in range(70):
        groups.add(np.zeros(1000, np.int64), values)
    groups.finish()
    assert groups.of("u").total == [70 * sum(values["u"].tolist())]
    assert groups.of("s").total == [70 * sum(values["s"].tolist())]
    # As if there were very many.
    for name in ("u", "s"):
        totals = groups._totals[name]
        for _ in range(40):
            totals = queries._Totals(
                np.tile(totals.least, 2), np.tile(totals.greatest, 2), [np.tile(limb, 2) for limb in totals.sums]
            ).reordered(np.arange(2), np.array([0]))
        assert totals.total() == [70 * 2**40 * sum(values[name].tolist())]


def test_too_many_groups(slots: RecordedMap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "MOST_GROUPS", 7)
    assert len(group(slots.rows(), lambda rows: rows.columns["small"], ()).keys) == 7
    monkeypatch.setattr(queries, "MOST_GROUPS", 6)
    with pytest.raises(GroupsError, match="more than 6 groups"):
        group(slots.rows(), lambda rows: rows.columns["small"], ())


def test_nothing() -> None:
    groups = group(iter(()), lambda rows: rows.columns["small"], ("value",))
    assert (len(groups.keys), groups.of("value").total) == (0, [])
    first = FirstRows(iter(()), 5, Expression.read("1", {}))
    assert (first.count, list(first)) == (0, [])


def peak(path: Path, sorts: bool) -> int:
    """Bytes that are held at most by a query; pages of mapped files do not count."""
    tracemalloc.start()
    try:
        source = RecordedMap(Trace(path).kernels, "Slots")
        rows = matching(source.rows(), expression(source, "value % 3 != 1 or small > 0"))
        if sorts:
            assert FirstRows(rows, 100, expression(source, "-value")).count
        else:
            assert group(rows, lambda part: part.columns["small"], ("value", "part")).counts.sum()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("sorts", [True, False])
def test_memory_does_not_grow_with_the_records(tmp_path: Path, sorts: bool) -> None:
    peaks = []
    for blocks in (1000, 8000):
        path = write_trace(tmp_path / str(blocks), [SLOTS], [(blocks, 33)], 3)
        with np.errstate(all="ignore"):
            peaks.append(peak(path, sorts))
    assert peaks[1] < peaks[0] + (1 << 20) < 64 << 20


def test_a_launch_at_once_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boxes cover an array once, in its order, and none is larger than asked for."""
    for shape in ((2, 3, 2, 4, 5), (1, 1, 1, 9, 1), (3, 0, 2, 1, 1), (7, 1, 1, 1, 1)):
        numbers = np.arange(math.prod(shape)).reshape(shape)
        for most in (1, 4, 5, 7, 20, 1000):
            boxes = [numbers[box] for box in recorded._boxes(shape, most)]
            assert all(0 < box.size <= most for box in boxes)
            together = np.concatenate([box.reshape(-1) for box in boxes]) if boxes else numbers.reshape(-1)
            assert together.tolist() == list(range(numbers.size))


def test_rows_are_chosen() -> None:
    rows = Rows(None, {"a": np.arange(3), "b": np.arange(3.0)})  # type: ignore[arg-type]
    assert len(rows) == 3
    assert lines([rows.chosen(slice(1, 2))]) == [(1, 1.0)]
