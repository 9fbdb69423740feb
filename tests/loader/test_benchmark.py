"""--benchmark: each launch runs the original or the twin by a draw that is balanced in each group, and is timed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neutrino.abi.benchmark_file import SampleFlag, SampleKind
from neutrino.abi.launches import NO_KERNEL
from neutrino.cli import report, run
from neutrino.cli.benchmark_report import benchmark_text
from neutrino.tracing.benchmark import read_samples

from .conftest import Bench, Reference
from .trace_files import Files

Samples = np.ndarray[Any, np.dtype[np.void]]
ON = {"NEUTRINO_BENCHMARK": "7", "NEUTRINO_POOL": str(64 << 20)}
GEOMETRY = ("kernel", "graph", "grid", "block", "shared", "device")


def groups_of(samples: Samples) -> dict[tuple[object, ...], Samples]:
    """Samples of launches and replays by group, in the order of their draws."""
    found: dict[tuple[object, ...], list[np.void]] = {}
    for sample in samples[samples["kind"] <= SampleKind.PROBED]:
        found.setdefault(tuple(sample[name].tobytes() for name in GEOMETRY), []).append(sample)
    return {key: np.sort(np.array(rows), order="number") for key, rows in found.items()}


def check_draws(samples: Samples, *, replays: int = 1) -> None:
    """Of each two draws one is of either kind, and the first of either kind does not count."""
    for rows in groups_of(samples).values():
        assert list(rows["number"]) == list(range(len(rows)))
        kinds = rows["kind"][::replays]
        for offset in range(replays):
            assert (rows["kind"][offset::replays] == kinds[: len(rows[offset::replays])]).all()
        pairs = kinds[: len(kinds) // 2 * 2].reshape(-1, 2)
        assert (pairs.sum(axis=1) == SampleKind.PROBED).all()
        first = rows["number"] // replays < 2
        changed = (rows["number"] % replays == 0) & (replays > 1)
        assert ((rows["flags"] & SampleFlag.WARM_UP != 0) == (first | changed)).all()


def test_each_launch_is_drawn_and_timed_once(any_bench: Bench, tmp_path: Path, reference: Reference) -> None:
    # Four threads.
    result = any_bench.run("threads", tmp_path, extra=ON)
    assert (result.stdout, result.returncode) == reference("threads")
    files = Files(tmp_path / "trace")
    files.check_tickets(any_bench.maps)
    samples, seed = read_samples(files.path / "benchmark.bin")
    check_draws(samples)
    kinds = Counter(map(int, samples["kind"]))
    counted = files.counted("count_p2")
    assert seed == 7
    assert kinds[SampleKind.UNTIMED] == 0
    assert kinds[SampleKind.PROBED] == counted["probed"] == len(files.written()) > 0
    assert kinds[SampleKind.ORIGINAL] == counted["not-selected"] > 0
    assert kinds[SampleKind.PROBED] + kinds[SampleKind.ORIGINAL] == 600
    timed = samples[samples["kind"] <= SampleKind.PROBED]
    assert set(timed["kernel"]) <= set(files.kernels("count_p2"))
    assert (timed["elapsed_ns"] > 0).all()


def test_draws_differ_by_the_seed(bench: Bench, tmp_path: Path) -> None:
    drawn = []
    for number, seed in enumerate(("1", "1", "2")):
        bench.run("many", tmp_path / str(number), extra=ON | {"NEUTRINO_BENCHMARK": seed, "HOST_LAUNCHES": "128"})
        samples, _ = read_samples(Files(tmp_path / str(number) / "trace").path / "benchmark.bin")
        (rows,) = groups_of(samples).values()
        drawn.append(list(rows["kind"]))
    assert drawn[0] == drawn[1] != drawn[2]
    # Neither kind is always the first of a pair.
    assert 16 < sum(drawn[0][::2]) < 48


@pytest.mark.parametrize("scenario", ["graph-many", "graph-threads"])
def test_graphs_are_drawn_by_whole_replays(
    any_bench: Bench, tmp_path: Path, reference: Reference, scenario: str
) -> None:
    extra = ON | {"HOST_LAUNCHES": "128"}
    result = any_bench.run(scenario, tmp_path, extra=extra)
    assert scenario == "graph-many" or (result.stdout, result.returncode) == reference(scenario)
    assert result.returncode == 0
    files = Files(tmp_path / "trace")
    files.check_tickets(any_bench.maps)
    samples, _ = read_samples(files.path / "benchmark.bin")
    replays = samples[(samples["kind"] <= SampleKind.PROBED) & (samples["graph"] > 0)]
    assert (replays["kernel"] == NO_KERNEL).all()
    check_draws(replays, replays=2)
    probed = np.count_nonzero(replays["kind"] == SampleKind.PROBED)
    assert probed == len(files.replays())
    # Each replay with twins has them in all of its kernels.
    nodes = Counter(zip(files.written()["graph"].tolist(), files.written()["submit_ns"].tolist(), strict=True))
    assert set(nodes.values()) == ({5} if scenario == "graph-many" else {6})
    assert len(nodes) == probed


@pytest.mark.parametrize(
    "scenario", ["capture", "capture-amid", "graph-changes", "graph-reset", "passing-threads", "forms"]
)
def test_captures_contexts_and_streams_are_unharmed(
    bench: Bench, tmp_path: Path, reference: Reference, scenario: str
) -> None:
    result = bench.run(scenario, tmp_path, extra=ON)
    assert (result.stdout, result.returncode) == reference(scenario)
    files = Files(tmp_path / "trace")
    files.check_tickets(bench.maps)
    samples, _ = read_samples(files.path / "benchmark.bin")
    timed = samples[samples["kind"] <= SampleKind.PROBED]
    assert np.count_nonzero((timed["kind"] == SampleKind.PROBED) & (timed["graph"] == 0)) == sum(
        launch["graph"] == 0 for launch in files.written()
    )


def test_what_cannot_be_timed_is_counted(bench: Bench, tmp_path: Path) -> None:
    # More replays than there are events for, after a kernel that waits for the program.
    result = bench.run("graph-crowd", tmp_path, extra=ON | {"HOST_COUNT": "2000"})
    assert result.returncode == 0
    files = Files(tmp_path / "trace")
    samples, _ = read_samples(files.path / "benchmark.bin")
    counted = files.counted("count_p2")
    of_graph = samples[samples["graph"] > 0]
    untimed = int(of_graph["number"][of_graph["kind"] == SampleKind.UNTIMED].sum())
    timed = np.count_nonzero(of_graph["kind"] <= SampleKind.PROBED)
    assert untimed > 0
    # Of three kernels each; twins that found no memory were not what was drawn.
    assert 3 * (timed + untimed) == counted["probed"] + counted["not-selected"]
    assert sum(counted.values()) == 2001 * 3


def test_a_timed_launch_is_two_more_calls(bench: Bench, tmp_path: Path) -> None:
    calls = []
    for launches in (64, 1088):
        counts = tmp_path / f"{launches}.json"
        extra = ON | {"HOST_LAUNCHES": str(launches)}
        bench.run("many", tmp_path / str(launches), device={"count": counts}, extra=extra)
        calls.append(Counter(json.loads(counts.read_text())["hook"]))
    added = calls[1] - calls[0]
    # Two for each launch, and those of full segments.
    assert 2048 <= added.pop("cuEventRecord") <= 2048 + 64
    assert added.pop("cuThreadExchangeStreamCaptureMode", 0) <= 64
    assert set(added) <= {"cuLaunchKernel", "cuStreamIsCapturing", "cuStreamGetCtx", "cuCtxGetCurrent", "cuCtxGetId"}


def test_the_command_and_the_report_say_what_was_measured(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.run("graph-many", tmp_path, extra=ON | {"HOST_LAUNCHES": "64"})
    path = Files(tmp_path / "trace").path
    text = benchmark_text(path)
    assert "replays of graph 1" in text
    assert "overall: " in text
    assert report.main([str(path)]) == 0
    assert text.strip() in capsys.readouterr().out
    assert report.main([str(path), "--json"]) == 0
    (trace,) = json.loads(capsys.readouterr().out)["traces"]
    (group, *_) = (group for group in trace["benchmark"]["groups"] if group["graph"])
    # Of 64 replays every other one counts, and of those not the first of either kind.
    assert (group["originals"], group["probed"], group["warm_up"]) == (15, 15, 34)
    assert trace["benchmark"]["floor_ns"] > 0
    assert group["interval"][0] <= group["ratio"] <= group["interval"][1]


def test_draws_are_not_of_chosen_launches(capsys: pytest.CaptureFixture[str]) -> None:
    for option in (["--launches", "2:9"], ["--every", "2"]):
        with pytest.raises(SystemExit) as ended:
            run.main(["--benchmark", *option, "-p", "block_sched", "true"])
        assert ended.value.code == run.OWN_FAILURE
        assert "--benchmark draws which launches are probed" in capsys.readouterr().err
