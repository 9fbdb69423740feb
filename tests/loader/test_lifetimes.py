"""Streams, contexts, modules and processes that come, go and come again under the hook."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from neutrino.abi.launches import LaunchState
from neutrino.abi.reasons import Reason

from .conftest import POOL_LEAST, Bench, Reference, probes_with_cap
from .trace_files import Files

LARGE = {"NEUTRINO_POOL": str(64 << 20)}
LEAST = {"NEUTRINO_POOL": str(POOL_LEAST)}
DELAYS = {"seed": 7, "delay": 300}
"""Streams' work begins late, at random; warps take turns at random."""


@pytest.mark.parametrize(("scenario", "launches"), [("churn", 600), ("names", 15), ("primary", 15)])
def test_handles_that_come_go_and_come_again(
    any_bench: Bench, tmp_path: Path, reference: Reference, scenario: str, launches: int
) -> None:
    result = any_bench.run(scenario, tmp_path, device=DELAYS)
    assert (result.stdout, result.returncode) == reference(scenario, device=DELAYS)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"probed": launches}
    assert len(files.written()) == launches
    assert len(files.check_tickets(any_bench.maps)) == 2 * launches


def test_modules_that_come_and_go(any_bench: Bench, tmp_path: Path) -> None:
    result = any_bench.run("reload", tmp_path)
    assert (result.stdout, result.returncode) == ("50\n", 0)
    files = Files(tmp_path / "trace")
    assert int(files.counters[:, Reason.PROBED].sum()) == 50
    assert len(files.kernels("count_p2")) == 2
    assert list(files.check_tickets(any_bench.maps)) == list(range(50))


def test_libraries_that_go_while_contexts_come(any_bench: Bench, tmp_path: Path, reference: Reference) -> None:
    result = any_bench.run("contexts-and-libraries", tmp_path)
    assert (result.stdout, result.returncode) == reference("contexts-and-libraries")
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"probed": 2}
    assert len(files.written()) == 2


def test_four_threads_launch_on_streams_of_their_own_and_shared_ones(any_bench: Bench, tmp_path: Path) -> None:
    result = any_bench.run("threads", tmp_path, device=DELAYS, extra=LARGE)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"probed": 600}
    assert len(files.written()) == 600
    tickets = files.check_tickets(any_bench.maps)
    assert (result.stdout, result.returncode) == (f"{len(tickets)}\n", 0)
    assert list(tickets) == list(range(len(tickets)))


def test_streams_that_end_with_work_on_them_and_others_at_their_address(any_bench: Bench, tmp_path: Path) -> None:
    result = any_bench.run("short-streams", tmp_path, extra=LEAST, device=DELAYS)
    assert (result.stdout, result.returncode) == ("600\n", 0)
    files = Files(tmp_path / "trace")
    # Eight segments, each for one stream of three launches at a time, and the program waits for the records of four.
    assert files.counted("count_p2") == {"probed": 300}
    assert len(files.written()) == 300
    assert len(files.check_tickets(any_bench.maps)) == 600


def test_waiting_for_a_stream_says_nothing_of_one_destroyed_before_at_its_address(
    any_bench: Bench, tmp_path: Path, reference: Reference
) -> None:
    result = any_bench.run("heirs", tmp_path)
    assert (result.stdout, result.returncode) == reference("heirs")
    assert "at the same address" in result.stdout
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"probed": 24}
    assert list(files.check_tickets(any_bench.maps)) == list(range(48))


def test_segments_go_to_streams_that_lack_them(any_bench: Bench, tmp_path: Path) -> None:
    result = any_bench.run("many-streams", tmp_path, extra=LEAST)
    assert (result.stdout, result.returncode) == (f"{2 * 144}\n", 0)
    files = Files(tmp_path / "trace")
    # Without streams that give up segments a third was.
    assert files.counted("count_p2") == {"probed": 144}
    assert len(set(files.written()["stream"])) == 24
    files.check_tickets(any_bench.maps)


def test_full_segments_come_back_though_no_other_follows_them(any_bench: Bench, tmp_path: Path) -> None:
    probes = probes_with_cap(tmp_path, 64)
    result = any_bench.run("full-streams", tmp_path, probes=probes, extra=LEAST)
    assert (result.stdout, result.returncode) == ("4800\n", 0)
    files = Files(tmp_path / "trace")
    # Two launches fill a segment, and the third finds none; 24 more come when segments are back.
    assert files.counted("count_p2") == {"probed": 40, "pool-full": 8}
    assert len(files.written()) == 40
    files.check_tickets(probes.maps)


def test_threads_that_came_and_went_leave_no_segments_behind(any_bench: Bench, tmp_path: Path) -> None:
    result = any_bench.run("own-streams", tmp_path, extra=LEAST)
    assert (result.stdout, result.returncode) == ("80\n", 0)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"probed": 40}
    assert list(files.check_tickets(any_bench.maps)) == list(range(80))


def test_a_kernel_that_waits_for_200_more_launches_ends(
    any_bench: Bench, tmp_path: Path, reference: Reference
) -> None:
    result = any_bench.run("spin", tmp_path, extra=LARGE)
    assert (result.stdout, result.returncode) == reference("spin")
    files = Files(tmp_path / "trace")
    assert files.counted("spin_p1") == {"probed": 1}
    assert files.counted("count_p2") == {"probed": 200}
    assert len(files.written()) == 201
    assert list(files.check_tickets(any_bench.maps)) == list(range(400))


def test_a_kernel_that_never_ends_costs_the_process_five_seconds(bench: Bench, tmp_path: Path) -> None:
    begin = time.monotonic()
    result = bench.run("endless", tmp_path)
    assert result.returncode == 5
    # That it ends at all says the rest: on a busy machine it may take longer.
    assert time.monotonic() - begin > 4
    files = Files(tmp_path / "trace")
    assert files.header["ended"] == 0
    assert list(files.launches["state"]) == [LaunchState.SUBMITTED]


def test_a_context_is_drained_before_it_goes(any_bench: Bench, tmp_path: Path, reference: Reference) -> None:
    result = any_bench.run("destroy", tmp_path, device=DELAYS)
    assert (result.stdout, result.returncode) == reference("destroy", device=DELAYS)
    files = Files(tmp_path / "trace")
    assert len(files.written()) == 31
    assert len(files.check_tickets(any_bench.maps)) == 62


def test_a_context_reset_by_a_pointer_older_than_the_hook(
    bench: Bench, tmp_path: Path, reference: Reference
) -> None:
    # Not under ThreadSanitizer: nothing orders such a reset and what the hook's own thread did before.
    result = bench.run("reset-unseen", tmp_path)
    assert (result.stdout, result.returncode) == reference("reset-unseen")
    files = Files(tmp_path / "trace")
    # Four times five, and each time one more at least by which it saw that the next ones will be. The hook's own thread
    # may notice first, so that the context is prepared when it is made current.
    counted = files.counted("count_p2")
    assert set(counted) <= {"probed", "context"}
    assert counted["probed"] == len(files.written()) >= 24
    files.check_tickets(bench.maps)


def test_a_context_that_ends_while_its_pool_is_made(any_bench: Bench, tmp_path: Path) -> None:
    result = any_bench.run("unannounced", tmp_path, device={"fail": "slowalloc=120ms"})
    assert result.returncode == 0
    files = Files(tmp_path / "trace")
    # Of the last context one at least: the program has waited for it. In those before, the pool comes too late, or now
    # and then not, where the program got no processor meanwhile.
    counted = files.counted("count_p2")
    assert set(counted) == {"probed", "context"}
    assert counted["probed"] == len(files.written())


def test_a_context_without_memory_for_a_pool_is_not_asked_again(bench: Bench, tmp_path: Path) -> None:
    counts = tmp_path / "counts"
    result = bench.run("no-memory", tmp_path, device={"fail": "alloc@3+", "count": counts})
    assert (result.stdout, result.returncode) == ("2\n", 0)
    assert Files(tmp_path / "trace").counted("count_p2") == {"context": 1}
    calls = json.loads(counts.read_text())
    assert calls["hook"]["cuMemAlloc_v2"] < 12
    assert calls["hook"].get("cuKernelGetFunction", 0) < 12


@pytest.mark.parametrize("scenario", ["fault", "misaligned", "trap"])
def test_what_was_written_before_a_fault_stays_written(
    any_bench: Bench, tmp_path: Path, reference: Reference, scenario: str
) -> None:
    result = any_bench.run(scenario, tmp_path)
    assert (result.stdout, result.returncode) == reference(scenario)
    files = Files(tmp_path / "trace")
    assert list(files.launches["state"][:11]) == 10 * [LaunchState.WRITTEN] + [LaunchState.LOST]
    # What the driver refuses because the context is lost is no capture.
    assert files.counted("count_p2") == {"probed": 10, "refused": 2}
    assert list(files.check_tickets(any_bench.maps)) == list(range(20))


def test_a_fault_is_every_contexts_affair(any_bench: Bench, tmp_path: Path, reference: Reference) -> None:
    result = any_bench.run("fault-elsewhere", tmp_path)
    assert (result.stdout, result.returncode) == reference("fault-elsewhere")
    files = Files(tmp_path / "trace")
    # What was launched before it in the other context; all launches after it are refused, wherever.
    assert files.counted("count_p2") == {"probed": 1, "refused": 10}
    assert set(files.launches["state"]) == {LaunchState.LOST}


@pytest.mark.parametrize(("scenario", "launches"), [("fork", 4), ("bare-fork", 1), ("fork-and-call", 2)])
def test_a_forked_child_passes_through_and_leaves_the_trace_alone(
    any_bench: Bench, tmp_path: Path, reference: Reference, scenario: str, launches: int
) -> None:
    result = any_bench.run(scenario, tmp_path)
    assert (result.stdout, result.returncode) == reference(scenario)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"probed": launches}
    assert list(files.check_tickets(any_bench.maps)) == list(range(launches))
    assert result.stderr.count("neutrino: trace in") == 1


def test_a_child_forked_before_the_driver_was_used_has_a_trace_of_its_own(any_bench: Bench, tmp_path: Path) -> None:
    result = any_bench.run("fork-first", tmp_path)
    assert (result.stdout, result.returncode) == ("120\n120\n", 0)
    traces = list((tmp_path / "trace").iterdir())
    assert len(traces) == 2
    for trace in traces:
        assert list(Files.of(trace).check_tickets(any_bench.maps)) == list(range(120))


def test_children_while_other_threads_launch(any_bench: Bench, tmp_path: Path, reference: Reference) -> None:
    result = any_bench.run("fork-amid", tmp_path)
    assert (result.stdout, result.returncode) == reference("fork-amid")
    files = Files(tmp_path / "trace")
    counted = files.counted("count_p2")
    assert set(counted) == {"probed"}
    tickets = files.check_tickets(any_bench.maps)
    assert list(tickets) == list(range(2 * counted["probed"]))


def test_a_killed_process_leaves_a_readable_trace(any_bench: Bench, tmp_path: Path) -> None:
    result = any_bench.run("kill", tmp_path)
    assert result.returncode == -9
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"probed": 100}
    assert list(files.check_tickets(any_bench.maps)) == list(range(100))
    assert files.header["ended"] == 0


def test_the_end_while_other_threads_launch(any_bench: Bench, tmp_path: Path) -> None:
    result = any_bench.run("exit-amid", tmp_path)
    assert result.returncode == 4
    files = Files(tmp_path / "trace")
    assert files.header["ended"] == 1
    counted = files.counted("count_p2")
    others = sum(counted.get(word, 0) for word in ("ending", "pool-full"))
    assert sum(counted.values()) - others == counted["probed"]
    assert 0 < len(files.written()) <= counted["probed"]
    files.check_tickets(any_bench.maps)
