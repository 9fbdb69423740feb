"""Kernels in graphs: every replay runs twins, has memory of its own, and computes what it does without the hook."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from neutrino.abi.launches import LaunchState

from .conftest import POOL_LEAST, Bench, Reference
from .trace_files import Files


@pytest.mark.parametrize(
    ("scenario", "counted", "replays"),
    [
        # 3 modes of 3 launches, 5 replays, and 18 launches between.
        ("capture", {"probed": 18 + 3 * 5 * 3}, 15),
        ("fork-and-join", {"probed": 6 + 3 * 2}, 3),
        ("capture-first", {"probed": 3 + 3}, 3),
        ("nodes", {"probed": 4}, 2),
        # 100 replays of 5 kernels, 10 launches between.
        ("graph-replays", {"probed": 510}, 100),
        ("graph-streams", {"probed": 69 * 4}, 69),
        # 10 rounds of 3 replays, one after a refused update, one after the graph was destroyed; 50 other graphs.
        ("graph-changes", {"probed": 32 * 4 + 50 * 4}, 82),
        ("graph-threads", {"probed": 4 * 40 * 6}, 160),
        ("graph-contexts", {"probed": 15}, 15),
        ("graph-reset", {"probed": 12}, 4),
        ("graph-sizes", {"probed": 200}, 200),
        ("graph-disabled", {"probed": 4}, 2),
        ("graph-handed", {"probed": 400}, 200),
    ],
)
def test_every_kernel_of_every_replay_is_recorded(
    any_bench: Bench, tmp_path: Path, reference: Reference, scenario: str, counted: dict[str, int], replays: int
) -> None:
    result = any_bench.run(scenario, tmp_path, extra={"NEUTRINO_POOL": str(64 << 20)})
    assert (result.stdout, result.returncode) == reference(scenario)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == counted
    assert len(files.written()) == counted["probed"]
    files.check_tickets(any_bench.maps)
    assert len(files.replays()) == replays
    assert (files.replays()["state"] == LaunchState.WRITTEN).all()
    of_graphs = files.written()[files.written()["graph"] != 0]
    assert set(of_graphs["graph"]) == set(files.replays()["graph"])
    # Each replay's kernels have the time of its submission.
    assert set(of_graphs["submit_ns"]) == set(files.replays()["submit_ns"])


def test_replays_without_room_compute_all_the_same(any_bench: Bench, tmp_path: Path, reference: Reference) -> None:
    result = any_bench.run("graph-crowd", tmp_path, extra={"NEUTRINO_POOL": str(POOL_LEAST)})
    assert (result.stdout, result.returncode) == reference("graph-crowd")
    files = Files(tmp_path / "trace")
    counted = files.counted("count_p2")
    assert counted["probed"] + counted["pool-full"] == 801 * 3
    assert counted["probed"] % 3 == 0
    assert counted["probed"] > 0
    assert counted["pool-full"] > 0
    assert len(files.written()) == counted["probed"] + 1
    # The records that there are are those of their own replays.
    files.check_tickets(any_bench.maps)
    numbers = np.sort(files.written()[files.written()["graph"] != 0]["node"])
    assert (np.bincount(numbers)[1:] == counted["probed"] // 3).all()


def test_a_replay_after_one_whose_stream_is_gone_has_its_own_memory(
    any_bench: Bench, tmp_path: Path, reference: Reference
) -> None:
    result = any_bench.run("graph-captured-end", tmp_path)
    assert (result.stdout, result.returncode) == reference("graph-captured-end")
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"probed": 6}
    files.check_tickets(any_bench.maps)


def test_the_memory_of_a_replay_does_not_grow_with_changes(bench: Bench, tmp_path: Path) -> None:
    bench.run("graph-sizes", tmp_path, extra={"NEUTRINO_POOL": str(64 << 20)})
    sizes = Files(tmp_path / "trace").replays()["data_size"]
    assert sizes.max() <= 2 * sizes[2]


def test_replays_in_short_streams_give_their_room_back(bench: Bench, tmp_path: Path) -> None:
    bench.run("graph-short-streams", tmp_path, extra={"NEUTRINO_POOL": str(POOL_LEAST)})
    assert Files(tmp_path / "trace").counted("count_p2") == {"probed": 120}
