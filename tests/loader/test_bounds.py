"""What has no bound: streams, threads, memory that launches ask for; and a process in which nothing happens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from neutrino.tracing import Trace

from .conftest import Bench, Reference, probes_with_cap
from .trace_files import Files

POOL = {"NEUTRINO_POOL": str(64 << 20)}


@pytest.mark.parametrize(
    ("scenario", "wished", "launches"),
    [("passing-streams", 4_600, 4_600), ("standing-streams", 4_500, 9_000), ("passing-threads", 4_200, 4_200)],
)
def test_streams_without_number_are_all_recorded(
    bench: Bench, tmp_path: Path, scenario: str, wished: int, launches: int
) -> None:
    result = bench.run(scenario, tmp_path, extra=POOL | {"HOST_COUNT": str(wished)})
    assert (result.stdout, result.returncode) == (f"{launches}\n", 0)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"probed": launches}
    assert len(files.written()) == launches


@pytest.mark.parametrize(
    ("scenario", "wished", "launches"),
    [("passing-streams", 600, 600), ("standing-streams", 200, 400), ("passing-threads", 200, 200)],
)
def test_streams_that_come_and_go_under_sanitizers(
    any_bench: Bench, tmp_path: Path, scenario: str, wished: int, launches: int
) -> None:
    result = any_bench.run(scenario, tmp_path, extra=POOL | {"HOST_COUNT": str(wished)})
    assert (result.stdout, result.returncode) == (f"{launches}\n", 0)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"probed": launches}
    assert list(files.check_tickets(any_bench.maps)) == list(range(launches))


def test_an_idle_process_is_not_woken(bench: Bench, tmp_path: Path) -> None:
    result = bench.run("idle", tmp_path)
    assert (result.stdout, result.returncode) == ("400\n", 0)
    # At most the last look that the thread takes before it sleeps without an end.
    assert [int(times) <= 1 for times in re.findall(r"slept (\d+) times", result.stderr)] == [True, True]
    assert Files(tmp_path / "trace").counted("count_p2") == {"probed": 200}


def test_memory_is_given_back_when_the_program_lacks_it(bench: Bench, tmp_path: Path, reference: Reference) -> None:
    result = bench.run("out-of-memory", tmp_path, extra=POOL)
    assert (result.stdout, result.returncode) == reference("out-of-memory")
    plain = bench.run("out-of-memory", tmp_path / "plain", hook=False)
    got, without = (int(re.findall(r"got (\d+) MiB", run.stderr)[0]) for run in (result, plain))
    # A segment is the stream's own, in a slab of 16 MiB; and the twins are on the device.
    assert without - 20 <= got <= without
    files = Files(tmp_path / "trace")
    assert len(files.written()) == files.counted("count_p2")["probed"]
    files.check_tickets(bench.maps)


def test_a_pool_grows_while_the_program_does_not_lack_memory(bench: Bench, tmp_path: Path) -> None:
    device = {"memory": 4 << 30}
    probes = probes_with_cap(tmp_path, 8192)
    result = bench.run("growth", tmp_path, probes=probes, extra={"NEUTRINO_POOL": str(1 << 30)}, device=device)
    assert result.returncode == 0
    files = Files(tmp_path / "trace")
    counted = files.counted("count_p2")
    # The first one finds too little room; those after it have what was allocated meanwhile, however late that is.
    assert counted.get("probed", 0) >= 1, counted
    assert set(counted) <= {"probed", "pool-full"}
    assert len(files.written()) == counted["probed"]
    assert max(files.written()["data_size"]) > 40 << 20


def test_a_launch_larger_than_the_pool_is_noted_with_both_sizes(bench: Bench, tmp_path: Path) -> None:
    probes = probes_with_cap(tmp_path, 8192)
    result = bench.run("growth", tmp_path, probes=probes, extra={"NEUTRINO_POOL": str(32 << 20)})
    assert result.returncode == 0
    files = Files(tmp_path / "trace")
    assert set(files.counted("count_p2")) == {"map-size"}
    (note,) = Trace(files.path).notes
    assert re.search(r"needs 4\d MiB .* at most 16 MiB", note)
