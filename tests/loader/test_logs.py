"""Logs under the hook: all records as far as memory reaches, in the trace only what launches used."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from neutrino.abi.results import FRAME
from neutrino.abi.structures import align_up
from neutrino.maps.log_reading import LOG_CONTROL, LOG_OWN, LOG_UNIT
from neutrino.maps.regions import REGION_ALIGN, copy_stride
from neutrino.tracing import Trace, TraceLaunch, summarize
from neutrino.tracing.views import MapView
from neutrino.verification import load_probe_file, load_probes

from .conftest import POOL_LEAST, Bench, Reference
from .trace_files import Files

LOGS = Path(__file__).parent / "logs.toml"
PROBES = load_probe_file(LOGS)
TICKETS = (10, 100, 100, 300, 7, 300)
"""Of each warp in the launches of the program growing."""


def launches_of(home: Path, name: str) -> list[TraceLaunch]:
    (path,) = (home / "trace").iterdir()
    (kernel,) = (kernel for kernel in Trace(path).kernels if kernel.name == name)
    return list(kernel.launches())


def read_script() -> ModuleType:
    """tools/read.py."""
    spec = importlib.util.spec_from_file_location("read_script", Path(__file__).parents[2] / "tools/read.py")
    assert spec is not None
    assert spec.loader is not None
    read = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(read)
    return read


def _rows(view: MapView) -> list[tuple[int, ...]]:
    """Where each record of a log is from."""
    return list(zip(*(column.tolist() for column in view.places().values()), strict=True))


def _check_log(view: MapView, wanted: int) -> int:
    """That a log has its records in order, and counts the others; how many it has."""
    rows = _rows(view)
    assert rows == sorted(set(rows))
    # Each thread's records are its first ones.
    assert {(*row[:-1], row[-1] - 1) for row in rows if row[-1]} <= set(rows)
    assert len(rows) == len(view.valid()) == view.record_count
    first = view.first(3)
    assert _rows(first)[:3] == rows[:3]
    assert first.valid()[:3].tolist() == view.valid()[:3].tolist()
    assert len(rows) + view.dropped == wanted
    return len(rows)


def check(launch: TraceLaunch, tickets: int) -> int:
    """The records of one launch of a kernel that takes tickets; how many logs have dropped."""
    maps = launch.maps
    blocks, threads = int(np.prod(launch.record["grid"])), int(np.prod(launch.record["block"]))
    warps = -(-threads // 32)
    taken, firsts, everyone = maps["Tickets"], maps["Firsts"], maps["All"]
    kept = _check_log(taken, blocks * warps * tickets)
    _check_log(firsts, blocks * tickets)
    _check_log(everyone, blocks * threads)
    assert (taken.valid()["seven"] == 7).all()
    assert (everyone.valid()["seven"] == 7).all()
    assert (taken.valid()["block"] == taken.places()["block"]).all()
    assert len(np.unique(taken.valid()["ticket"])) == kept
    places = everyone.places()
    assert (everyone.valid()["thread"] == places["warp"] * 32 + places["lane"]).all()
    # The array beside the logs says which tickets a warp took, and in which order.
    counted = maps["Counted"]
    places = taken.places()
    inside = places["order"] < counted.cap
    expected = counted.records["ticket"][places["block"][inside], places["warp"][inside], places["order"][inside]]
    np.testing.assert_array_equal(taken.valid()["ticket"][inside], expected)
    # What thread 0 took is what its warp took.
    of_warps = dict(zip(_rows(taken), taken.valid()["ticket"].tolist(), strict=True))
    for (block, order), ticket in zip(_rows(firsts), firsts.valid()["ticket"].tolist(), strict=True):
        assert of_warps.get((block, 0, order), ticket) == ticket
    assert maps["Blocks"].valid()["block"].tolist() == list(range(blocks))
    assert maps["Entered"].total() == {"threads": blocks * threads}
    return taken.dropped + firsts.dropped + everyone.dropped


def test_the_first_launch_is_complete(any_bench: Bench, tmp_path: Path, reference: Reference) -> None:
    result = any_bench.run("growing", tmp_path, probes=PROBES, extra={"NEUTRINO_POOL": str(64 << 20)})
    assert (result.stdout, result.returncode) == reference("growing")
    launches = launches_of(tmp_path, "loop_p2")
    dropped = [check(launch, tickets) for launch, tickets in zip(launches, TICKETS, strict=True)]
    units = [int(launch.record["log_units"]) for launch in launches]
    # The first one has all the memory that there is; later ones twice what was needed before, or a little.
    assert units[0] > 10 * max(units[1:])
    assert dropped[0] == 0
    # One that needs no more than an earlier one is complete.
    assert [dropped[number] for number in (2, 4, 5)] == [0, 0, 0]
    # The trace has what was used.
    assert all(int(launch.record["data_size"]) < 128 << 10 for launch in launches)


def test_larger_grids_and_longer_loops_are_complete(
    bench: Bench, tmp_path: Path, reference: Reference, slow_clock: Mapping[str, str]
) -> None:
    """A need is known of each warp, so that a larger grid's is, too; loops that grow find room where much is free.

    What a launch needs is known when the results of earlier ones have been read, which on a loaded machine may now and
    then come too late for it.
    """
    dropped = []
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        result = bench.run("spreading", folder, probes=PROBES, extra={"NEUTRINO_POOL": str(64 << 20), **slow_clock})
        assert (result.stdout, result.returncode) == reference("spreading")
        launches = launches_of(folder, "loop_p2")
        dropped.append([check(launch, tickets) for launch, tickets in zip(launches, (50, 50, 200), strict=True)])
        if not any(dropped[-1]):
            break
    assert dropped[-1] == [0] * 3, dropped


def test_warps_have_chunks_of_their_own_where_memory_is_scarce(
    bench: Bench, tmp_path: Path, reference: Reference, slow_clock: Mapping[str, str]
) -> None:
    """Once it is known that they want nothing beyond these: room for as much again is not needed."""
    result = bench.run("widening", tmp_path, probes=PROBES, extra={"NEUTRINO_POOL": str(POOL_LEAST), **slow_clock})
    assert (result.stdout, result.returncode) == reference("widening")
    launches = launches_of(tmp_path, "loop_p2")
    assert [check(launch, 50) for launch in launches] == [0] * 3
    own = [launch.maps["Tickets"].records[LOG_OWN : LOG_OWN + 16].view("<u8").tolist() for launch in launches]
    assert [each > 0 for _, each in own] == [False, True, True]
    units = int(launches[2].record["log_units"])
    assert own[2][0] < units < 2 * own[2][0]


def test_what_does_not_fit_is_counted(any_bench: Bench, tmp_path: Path, reference: Reference) -> None:
    result = any_bench.run("crowded", tmp_path, probes=PROBES, extra={"NEUTRINO_POOL": str(POOL_LEAST)})
    assert (result.stdout, result.returncode) == reference("crowded")
    launches = launches_of(tmp_path, "loop_p2")
    dropped = [check(launch, tickets) for launch, tickets in zip(launches, (20, 20, 20), strict=True)]
    assert any(dropped)
    # The array beside the logs is too large in the last launch, of 131,072 warps.
    assert Files(tmp_path / "trace").counted("loop_p2") == {"probed": 3, "map-size": 1}
    (path,) = (tmp_path / "trace").iterdir()
    (note,) = (note for note in summarize(Trace(path)).notes if "map Tickets" in note)
    lost = sum(launch.maps["Tickets"].dropped for launch in launches)
    assert f"{lost:,} records of map Tickets were dropped: there was no memory for them" in note


def test_data_of_several_pieces(bench: Bench, tmp_path: Path) -> None:
    """More than the 8 MiB that are copied at once."""
    more = {f"more{number}": "OUT" for number in range(10)}
    text = LOGS.read_text()
    text = text.replace('seven = "u32"', ", ".join(['seven = "u32"', *(f'{name} = "u64"' for name in more)]))
    text = text.replace("%block, 7", ", ".join(["%block, 7", *more.values()]))
    (tmp_path / "wide.toml").write_text(text)
    probes = load_probe_file(tmp_path / "wide.toml")
    # A device that is large enough for the whole pool at once.
    device = {"memory": 4 << 30}
    result = bench.run("spread", tmp_path, probes=probes, extra={"NEUTRINO_POOL": str(128 << 20)}, device=device)
    assert (result.stdout, result.returncode) == (f"{2 * 1200 * 70}\n", 0)
    launches = launches_of(tmp_path, "loop_p2")
    assert all(int(launch.record["data_size"]) > 8 << 20 for launch in launches)
    for launch in launches:
        assert check(launch, 70) == 0


@pytest.mark.parametrize(
    ("program", "pool", "memory", "wanted", "of_warps", "expected"),
    [
        # The pool begins with 32 MiB for large launches, and grows before the first one.
        ("growing", 1 << 30, 4 << 30, 360_000, 360_000, {"probed": 6}),
        # No launch wanted that much, but by what one wanted for each warp the first one may, until it is known.
        ("growing", 1 << 30, 4 << 30, 1_000, 360_000, {"probed": 6}),
        # The program has left no memory to grow.
        ("growing-in-little", 1 << 30, 640 << 20, 1_000_000, 1_000_000, {}),
        # There is room for two at a time, and later launches cannot wait for it: none ends before all were made.
        ("growing-in-a-row", 64 << 20, 1 << 30, 150_000, 150_000, {"probed": 2, "pool-full": 4}),
        # Launches of so few warps have never needed that much.
        ("growing-in-a-row", 64 << 20, 1 << 30, 150_000, 0, {"probed": 6}),
    ],
)
def test_a_need_that_is_known_is_met(
    bench: Bench, tmp_path: Path, reference: Reference, slow_clock: Mapping[str, str], program: str, pool: int,
    memory: int, wanted: int, of_warps: int, expected: dict[str, int],
) -> None:  # fmt: skip
    """As far as memory reaches: a launch waits until it has as much. Where it waits in vain it is not probed, and what
    was missing is said. of_warps: what all its warps want, by what one wanted earlier; 0: as the first run has it."""
    need = max(wanted, of_warps)
    extra, device = {"NEUTRINO_POOL": str(pool)}, {"memory": memory}
    bench.run("growing", tmp_path, probes=PROBES, extra=extra, device=device)
    (kept,) = (tmp_path / "cache").rglob("*.needs")
    # The one row: the kernel, the units of one of three logs, and those of each warp in 256ths.
    *head, units_before, per_warp_before = struct.unpack("<5Q", kept.read_bytes())
    assert per_warp_before == -(-units_before * 256 // 6)
    kept.write_bytes(struct.pack("<5Q", *head, wanted, of_warps * 256 // 6 or per_warp_before))
    shutil.rmtree(tmp_path / "trace")
    if program == "growing":
        # No launch waits in vain, and on a loaded machine none shall end its wait before there is room.
        extra |= slow_clock
    result = bench.run(program, tmp_path, probes=PROBES, extra=extra, device=device)
    assert (result.stdout, result.returncode) == reference("growing")
    launches = launches_of(tmp_path, "loop_p2")
    counted = Files(tmp_path / "trace").counted("loop_p2")
    units = [int(launch.record["log_units"]) for launch in launches]
    if program == "growing-in-little":
        # The first launches may come before it is known that there is no more: how many, the machine's load decides.
        assert counted["probed"] >= 1
        assert sum(counted.values()) == len(TICKETS)
        assert 0 < max(units) < need
        return
    least = need if of_warps == wanted else units_before
    assert min(units) >= least
    assert units[0] >= (need if of_warps else least)
    assert counted == expected
    (path,) = (tmp_path / "trace").iterdir()
    missing = [note for note in summarize(Trace(path)).notes if "found no room" in note]
    # All logs of a launch, and the other maps.
    assert len(missing) == ("pool-full" in expected)
    needs = [int(number) for note in missing for number in re.findall(r"need (\d+) bytes: \1 of them", note)]
    assert len(needs) == len(missing)
    assert all(number > 3 * need * LOG_UNIT for number in needs)
    assert [check(launch, tickets) for launch, tickets in zip(launches, TICKETS, strict=False)] == [0] * len(units)


def test_a_log_that_a_kernel_never_saves_to_takes_nothing(bench: Bench, tmp_path: Path, reference: Reference) -> None:
    """Of dmat's three logs, one: neither memory of the device nor, beyond the control words, bytes of the trace."""
    result = bench.run("growing", tmp_path, probes=load_probes(["dmat"]), extra={"NEUTRINO_POOL": str(64 << 20)})
    assert (result.stdout, result.returncode) == reference("growing")
    launches = launches_of(tmp_path, "loop_p2")
    assert len(launches) == len(TICKETS)
    # The first launch's one log has half of the pool's 32 MiB for large launches.
    assert int(launches[0].record["log_units"]) * LOG_UNIT > 15 << 20
    read = read_script()
    for launch, tickets in zip(launches, TICKETS, strict=True):
        maps = launch.maps
        accesses, *others = maps["GlobalAccesses"], maps["BulkCopies"], maps["TensorCopies"]
        blocks, threads = int(np.prod(launch.record["grid"])), int(np.prod(launch.record["block"]))
        assert len(accesses.valid()) + accesses.dropped == blocks * -(-threads // 32) * tickets
        assert [len(view.records) for view in others] == [LOG_CONTROL] * 2
        assert [(len(view.valid()), view.record_count, view.dropped) for view in others] == [(0, 0, 0)] * 2
        assert int(launch.record["data_size"]) == sum(
            align_up(view.records.nbytes, REGION_ALIGN) for view in (accesses, *others)
        ) + maps["NotTraced"].records.shape[0] * copy_stride(maps["NotTraced"].map.size)
        (file,) = (tmp_path / "trace").glob("*/result/*.bin")
        _, sections, records = read.parse(file, launch.index)
        assert [(section["name"], section["dropped"], section["cap"]) for section in sections[:3]] == [
            (view.map.name, view.dropped, None) for view in (accesses, *others)
        ]
        assert [len(records[section["name"]]) for section in sections[:3]] == [len(accesses.valid()), 0, 0]


def test_replays_of_graphs(any_bench: Bench, tmp_path: Path, reference: Reference) -> None:
    result = any_bench.run("capture", tmp_path, probes=PROBES, extra={"NEUTRINO_POOL": str(64 << 20)})
    assert (result.stdout, result.returncode) == reference("capture")
    launches = launches_of(tmp_path, "count_p2")
    assert len(launches) == 18 + 3 * 5 * 3
    for launch in launches:
        assert check(launch, 1) == 0


def test_replays_without_room(bench: Bench, tmp_path: Path, reference: Reference) -> None:
    result = bench.run("graph-small-crowd", tmp_path, probes=PROBES, extra={"NEUTRINO_POOL": str(POOL_LEAST)})
    assert (result.stdout, result.returncode) == reference("graph-small-crowd")
    counted = Files(tmp_path / "trace").counted("count_p2")
    assert set(counted) == {"probed", "pool-full"}
    assert sum(counted.values()) == 101 * 3
    launches = launches_of(tmp_path, "count_p2")
    assert len(launches) == counted["probed"]
    for launch in launches:
        check(launch, 1)


def test_read_py_reads_the_same(bench: Bench, tmp_path: Path) -> None:
    bench.run("crowded", tmp_path, probes=PROBES, extra={"NEUTRINO_POOL": str(POOL_LEAST)})
    (path,) = (tmp_path / "trace").iterdir()
    read = read_script()
    for launch in launches_of(tmp_path, "loop_p2"):
        (result,) = (file for file in (path / "result").iterdir() if launch.index in read.parse(file)[0]["launches"])
        _, sections, records = read.parse(result, launch.index)
        for section in sections:
            view = launch.maps[section["name"]]
            if section["kind"] != "log":
                continue
            assert (section["dropped"], section["cap"]) == (view.dropped, None)
            rows = records[section["name"]]
            expected = view.places() | {name: view.valid()[name] for name in view.map.dtype.names or ()}
            # The map Tickets has a field of that name.
            renamed = {"[block]": view.places()["block"]} if section["name"] == "Tickets" else {}
            for name, column in (expected | renamed).items():
                np.testing.assert_array_equal(rows[name], column)


def test_frames_without_logs_say_none(bench: Bench, tmp_path: Path) -> None:
    bench.run("growing", tmp_path)
    (path,) = (tmp_path / "trace").iterdir()
    launches = launches_of(tmp_path, "loop_p2")
    assert launches
    for launch in launches:
        assert launch.record["log_units"] == 0
    data = np.fromfile(next((path / "result").iterdir()), np.uint8)
    at = bytes(data).index(b"NTFRAME\0")
    assert np.frombuffer(data, FRAME.dtype, 1, at)["log_units"] == 0


def test_what_was_wanted_is_kept_for_the_next_process(bench: Bench, tmp_path: Path) -> None:
    def run() -> list[TraceLaunch]:
        shutil.rmtree(tmp_path / "trace", ignore_errors=True)
        bench.run("growing", tmp_path, probes=PROBES, extra={"NEUTRINO_POOL": str(64 << 20)})
        return launches_of(tmp_path, "loop_p2")

    units = [int(launch.record["log_units"]) for launch in run()]
    (kept,) = (tmp_path / "cache").rglob("*.needs")
    assert kept.stat().st_mode & 0o777 == 0o600
    assert not [*(tmp_path / "cache").rglob("*~")]
    # Its first launch gets what the last one of the process before got, and no record is dropped.
    launches = run()
    assert {int(launch.record["log_units"]) for launch in launches} == {max(units[1:])}
    assert [check(launch, tickets) for launch, tickets in zip(launches, TICKETS, strict=True)] == [0] * 6
    content = kept.read_bytes()
    # What is not whole, or says that there are more rows, counts as nothing, and is written again.
    for damaged in (b"", content[:-1], content[:12], b"X" + content[1:], content[:8] + b"\xff" * 8 + content[16:]):
        kept.write_bytes(damaged)
        assert int(run()[0].record["log_units"]) == units[0]
        assert kept.read_bytes() == content
    # Nor is a file of another kind waited for.
    kept.unlink()
    os.mkfifo(kept)
    assert int(run()[0].record["log_units"]) == units[0]
