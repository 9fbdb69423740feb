"""The records of logs in groups, taken apart by C: those that NumPy reads, also of damaged logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from neutrino.abi.results import FRAME
from neutrino.cli.report import main
from neutrino.maps.log_reading import read_log
from neutrino.tracing import log_records
from neutrino.tracing.views import MapView
from neutrino.verification import load_probes
from tests.tracing.test_accesses import accesses, damaged, log_of, made_group, made_log, scattered, spread
from tests.tracing.trace_writer import TraceWriter

Array = npt.NDArray[Any]


def by_c(view: MapView) -> Array:
    found = log_records.records_of_groups(view.records, view.map.dtype)
    assert found is not None
    return np.sort(np.concatenate([np.empty(0, view.map.dtype), *found]))


def by_numpy(view: MapView) -> Array:
    records = read_log(view.records, {"size": view.map.size})["record"]
    return np.sort(np.ascontiguousarray(records).view(view.map.dtype))


@pytest.mark.parametrize("threads", [96, 70, 1])
def test_records_of_a_run_are_those_of_numpy(threads: int) -> None:
    """All forms of fields that the twin chooses, and further records."""
    view, _ = accesses(spread(np.random.default_rng(threads), 3 * threads, 1 << 18), threads=threads)
    expected = by_numpy(view)
    assert len(expected) > 10 * threads
    assert (by_c(view) == expected).all()


def test_records_of_a_large_log_come_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    entry = next(entry for entry in load_probes(["dmat"]).maps if entry.name == "GlobalAccesses")
    groups = [made_group(entry, number, scattered(random, number)) for number in range(900)]
    view = made_log(entry, [groups[:300], groups[300:]])
    monkeypatch.setattr(log_records, "_BATCH", 10_000)
    found = log_records.records_of_groups(view.records, view.map.dtype)
    assert found is not None
    sizes = [len(part) for part in found]
    assert len(sizes) > 20
    assert max(sizes) < 2000
    assert (by_c(view) == by_numpy(view)).all()


def test_damaged_logs_have_the_records_that_numpy_reads() -> None:
    """A flipped byte may be of a value, a form, a mask, a length or the end."""
    view, _ = accesses(spread(np.random.default_rng(5), 96, 1 << 16), blocks=1, threads=96)
    compared = 0
    for region in damaged(view.records, 150, 23):
        other = log_of(view.map, np.array(region))
        if log_records.records_of_groups(other.records, view.map.dtype) is None:
            continue
        compared += 1
        assert (by_c(other) == by_numpy(other)).all()
    assert compared > 100


def test_chunks_of_other_kinds_are_left_to_numpy() -> None:
    view, _ = accesses(spread(np.random.default_rng(5), 96, 1 << 16), "sm_70", blocks=1, threads=96)
    assert log_records.records_of_groups(view.records, view.map.dtype) is None
    (records,) = (piece.records for piece in view.pieces())
    assert (np.sort(records.reshape(-1)) == by_numpy(view)).all()


def test_a_report_is_the_same_without_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    view, sites = accesses(spread(np.random.default_rng(5), 96, 1 << 16), blocks=1, threads=96)
    writer = TraceWriter(tmp_path / "trace")
    rows = [{"site": at, "probe": "p", "tracepoint": "ld", "line": 9 + at, "instruction": "ld"} for at in range(sites)]
    writer.kernel(1, "walk", maps=[view.map], sites=rows)
    used = 128 + 32 * int(view.records[:8].view("<u8")[0])
    number = writer.launch(1, (1, 1, 1), (96, 1, 1), bytes(view.records[:used]))
    record = writer.records[number]
    frame = np.frombuffer(writer.frames[1], FRAME.dtype, 1, offset=int(record["data_offset"]))
    record["log_units"] = frame["log_units"] = (used - 128) // 32
    writer.write()
    assert main([str(tmp_path / "trace"), "--json"]) == 0
    expected = capsys.readouterr().out
    assert f'"records": {len(by_numpy(view))}' in expected
    monkeypatch.setattr(log_records, "log_library", lambda: None)
    assert main([str(tmp_path / "trace"), "--json"]) == 0
    assert capsys.readouterr().out == expected
