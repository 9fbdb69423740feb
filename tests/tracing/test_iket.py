"""Files of IKET's events: read and written again they are the same, and those of a trace have its events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.errors import TraceError
from neutrino.tracing import Trace
from neutrino.tracing.iket import document_of, read_iket, write_iket
from neutrino.tracing.iket_summary import kernel_events
from tests.tracing.test_perfetto import TIMES, gemm
from tests.tracing.test_timeline import EVENTS, WAITS
from tests.tracing.trace_writer import BLOCK_SCHED, TraceWriter, fill_regions

_NUMBER = st.integers(0, 2**63)
_MORE = st.dictionaries(
    st.sampled_from(["color", "clusterId", "note"]), st.integers() | st.text(max_size=3), max_size=2
)
_SIZE = st.fixed_dictionaries({
    **{f"{name}Dim{axis}": st.integers(0, 2**31) for name in ("grid", "block") for axis in "XYZ"},
    "contextId": _NUMBER, "gridId": _NUMBER, "kernelName": st.text(max_size=8),
})  # fmt: skip


@st.composite
def documents(draw: Any) -> dict[str, Any]:
    """Documents of the public shape, with members besides."""
    strings = draw(st.lists(st.text(max_size=5), min_size=1, max_size=3))
    location = st.fixed_dictionaries({
        "ctaId": st.lists(st.integers(0, 9), min_size=3, max_size=3) | st.integers(0, 9), "smId": st.integers(-1, 200),
        "warpId": st.integers(0, 31), "gpcId": st.integers(-1, 9), "tpcId": st.integers(-1, 9),
    })  # fmt: skip
    locations = draw(st.lists(location, min_size=1, max_size=4))
    place, name = st.integers(0, len(locations) - 1), st.integers(0, len(strings) - 1)
    event = st.fixed_dictionaries({"eventId": st.integers(0, 99), "timestamp": _NUMBER}) | st.fixed_dictionaries(
        {"eventId": st.integers(0, 99), "timestamp": _NUMBER, "payloadType": st.just(5), "payloadVal": st.integers()}
    )
    ranges = st.fixed_dictionaries({
        "rangeNameIdx": name, "startTs": _NUMBER, "endTs": _NUMBER, "warpLocIdxs": st.tuples(place, place).map(list),
        "internalEvents": st.lists(event, max_size=2), "rangeId": st.integers(0, 2**32), "rangeType": st.just(2),
    })  # fmt: skip
    lifetimes = st.fixed_dictionaries({"locIdx": place, "startTs": _NUMBER, "endTs": _NUMBER})
    markers = st.fixed_dictionaries({"locIdx": place, "markerNameIdx": name, "timestamp": _NUMBER, "color": _NUMBER})

    def launch() -> dict[str, Any]:
        lists = {"markers": markers, "ranges": ranges, "warpLifetimes": lifetimes}
        return draw(_SIZE) | {key: draw(st.lists(row, max_size=3)) for key, row in lists.items()} | draw(_MORE)

    launches = [launch() for _ in range(draw(st.integers(0, 2)))]
    return {
        "stringTable": strings, "locationTable": locations, "launches": launches,
        "graphLaunches": {key: [launch()] for key in draw(st.lists(st.text(max_size=4), max_size=2))}, **draw(_MORE),
    }  # fmt: skip


@settings(max_examples=120, deadline=None)
@given(documents())
def test_reading_and_writing_gives_the_same(tmp_path_factory: pytest.TempPathFactory, document: dict[str, Any]) -> None:
    path = tmp_path_factory.mktemp("iket") / "events.json"
    path.write_text(json.dumps(document))
    found = read_iket(path)
    assert document_of(found) == document
    # What is summed up is there, whatever the file has, but for what ends before it begins.
    events = kernel_events(found)
    assert sum(one.launches for one in events) == len(found.all_launches)
    rows = [row for launch in found.all_launches for row in launch.ranges if row.begin <= row.end]
    assert sum(times.count for one in events for times in one.ranges) == len(rows)


@settings(max_examples=150, deadline=None)
@given(documents(), st.data())
def test_a_damaged_document_is_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, document: dict[str, Any], data: Any
) -> None:
    path = tmp_path_factory.mktemp("iket") / "events.json"

    def places(value: Any) -> list[tuple[Any, Any]]:
        keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
        return [(value, key) for key in keys] + [row for key in keys for row in places(value[key])]

    holder, key = data.draw(st.sampled_from(places(document)))
    holder[key] = data.draw(st.sampled_from([None, -1, 2**70, "x", [], {}, 1.5, True, [1], 10**6]))
    path.write_text(json.dumps(document))
    said = f"{path}: "
    try:
        kernel_events(read_iket(path))
    except TraceError as error:
        said = str(error)
    assert said.startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"), ("[" * 100_000, "not JSON"), ("[]", "the document is [], expected an object"),
        ('{"launches": []}', "has no stringTable"), ("\xff\xfe", "not JSON"),
        ('{"stringTable": [], "locationTable": [{"ctaId": 1, "warpId": 1}], "launches": [{"kernelName": "k", '
         '"gridDimX": 1, "gridDimY": 1, "gridDimZ": 1, "blockDimX": 1, "blockDimY": 1, "blockDimZ": 1, '
         '"warpLifetimes": '
         '[{"locIdx": 1, "startTs": 1, "endTs": 2}]}]}',
         "launches[0].warpLifetimes[0].locIdx is 1, expected a number below 1"),
    ],
)  # fmt: skip
def test_what_is_no_file_of_events(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "events.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(TraceError) as caught:
        read_iket(path)
    assert says in str(caught.value)


def test_a_trace_as_events(tmp_path: Path) -> None:
    events = np.zeros((2, 8), EVENTS.dtype)
    events[1, :4] = [(1010, 1, 5, 0, 7), (1020, 1, 6, 0, 8), (1030, 2, 0, 0, 0), (1070, 0, 8, 0, 11)]
    values = {"BlockSched": [(1000, 50, 3), (1000, 100, 4)], "Events": events, "Events.counts": [0, 4]}
    writer = gemm(tmp_path / "trace", [BLOCK_SCHED, EVENTS], values, threads=32)
    writer.records[0]["submit_ns"] = 5000
    trace = Trace(writer.write())
    written = write_iket(trace, tmp_path / "events.json")
    assert (written.launches, written.lifetimes, written.ranges, written.markers) == (1, 2, 2, 1)
    document = json.loads((tmp_path / "events.json").read_text())
    assert document.keys() >= {"stringTable", "locationTable", "launches", "graphLaunches"}
    (launch,) = document["launches"]
    assert (launch["kernelName"], launch["gridDimX"], launch["blockDimX"]) == ("gemm", 2, 32)
    # As scripts read it: the lifetimes and ranges of each warp, by the tables.
    places = document["locationTable"]
    assert places[0] == {"ctaId": [0, 0, 0], "gpcId": -1, "smId": 3, "tpcId": -1, "warpId": 0}
    lives = {tuple(places[row["locIdx"]]["ctaId"]): (row["startTs"], row["endTs"]) for row in launch["warpLifetimes"]}
    assert lives == {(0, 0, 0): (5000, 5050), (1, 0, 0): (5000, 5100)}
    strings = document["stringTable"]
    ranges = {
        strings[row["rangeNameIdx"]]: (row["startTs"], row["endTs"], row["internalEvents"][0]["payloadVal"])
        for row in launch["ranges"]
    }
    assert ranges == {"Events 5 (unclosed)": (5010, 5100, 7), "Events 6": (5020, 5030, 8)}
    assert {tuple(row["warpLocIdxs"]) for row in launch["ranges"]} == {(1, 1)}
    (mark,) = launch["markers"]
    assert (strings[mark["markerNameIdx"]], mark["timestamp"], mark["payloadVal"]) == ("Events 8", 5070, 11)
    assert launch["timebase"] == "cycles"
    # And read back by ourselves.
    found = read_iket(tmp_path / "events.json")
    assert found.faults == []
    assert document_of(found) == document
    (kernel,) = kernel_events(found)
    assert (kernel.sms, kernel.span.total if kernel.span else 0) == (2, 100)
    assert [(times.name, times.total) for times in kernel.ranges] == [("Events 5 (unclosed)", 90), ("Events 6", 10)]


def test_nanoseconds_are_the_gpus_own_and_graphs_are_apart(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "trace")
    writer.kernel(1, "gemm", maps=[TIMES])
    for begin in (70_000, 80_000, 90_000):
        writer.launch(1, (1, 1, 1), (32, 1, 1), fill_regions([TIMES], 1, {"Times": [(begin, begin + 500, 1)]}))
    for number in (1, 2):
        writer.records[number]["graph"], writer.records[number]["node"] = 4, number
    write_iket(Trace(writer.write()), tmp_path / "events.json")
    found = read_iket(tmp_path / "events.json")
    assert [launch.lifetimes[0].begin for launch in found.launches] == [70_000]
    assert {key: [launch.number for launch in launches] for key, launches in found.graphs.items()} == {"4": [1, 2]}
    assert {launch.timebase for launch in found.all_launches} == {"ns"}


def test_many_pieces_are_one_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neutrino.tracing.timeline.LaunchTimeline.pieces.__defaults__", (1,))
    waits = np.zeros((6, 4), WAITS.dtype)
    waits["start"], waits["elapsed"], waits["site"] = 1005, 3, 3
    values = {"BlockSched": [(1000, 50, sm) for sm in range(6)], "Waits": waits, "Waits.counts": [2] * 6}
    gemm(tmp_path / "trace", [BLOCK_SCHED, WAITS], values, threads=32, blocks=6).write()
    write_iket(Trace(tmp_path / "trace"), tmp_path / "events.json")
    (launch,) = read_iket(tmp_path / "events.json").launches
    assert sorted(one.location for one in launch.lifetimes) == list(range(6))
    assert sorted(one.first for one in launch.ranges) == sorted([*range(6)] * 2)
