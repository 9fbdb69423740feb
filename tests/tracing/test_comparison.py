"""Comparing traces: silent for the same build, and a slower kernel is named first. All noise is made, and known."""

from __future__ import annotations

import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neutrino.abi.benchmark_file import BENCHMARK_HEADER, BENCHMARK_MAGIC, SAMPLE, SampleKind
from neutrino.abi.versions import BENCHMARK_VERSION
from neutrino.tracing import Trace, find_traces, summarize
from neutrino.tracing.comparison import DOUBT, Comparison, Verdict, compare
from neutrino.tracing.launch_figures import Key, Part, details_of, figures_of, groups_of
from tests.tracing.test_benchmark import planted
from tests.tracing.test_timeline import WAITS
from tests.tracing.trace_writer import BLOCK_SCHED, GMEM_BYTES, TraceWriter, fill_regions, make_map

ROOT = Path(__file__).resolve().parents[2]
BLOCKS, WARPS = 6, 2
KERNELS = {"gemm": 40_000, "softmax": 8_000, "copy": 2_000, "reduce": 500}
"""Names, and the cycles of each warp."""
SITES = [
    {"site": 3, "probe": "p", "tracepoint": "bar", "line": 7, "instruction": "bar.sync 0;", "source": "gemm.cu:42"},
    {"site": 4, "probe": "p", "tracepoint": "bar", "line": 9, "instruction": "bar.sync 1;", "source": "gemm.cu:50"},
]


def run(
    path: Path, seed: int, *, slower: dict[str, float] | None = None, launches: int = 30, more_bytes: float = 1,
    kernels: dict[str, int] = KERNELS, slow_site: float = 1,
) -> Trace:  # fmt: skip
    """A run of a program. Its launches have noise of their own, outliers, a first launch that is slow, clocks that
    drift, and a speed of the run that differs by up to half a percent."""
    random = np.random.default_rng(seed)
    maps = [BLOCK_SCHED, GMEM_BYTES, WAITS]
    writer = TraceWriter(path)
    of_run = 1 + random.uniform(-0.005, 0.005)
    for identity, name in enumerate(kernels, 1):
        writer.kernel(identity, name, maps=maps, sites=SITES)
    for number in range(launches):
        for identity, (name, cycles) in enumerate(kernels.items(), 1):
            speed = of_run * (slower or {}).get(name, 1) * (1 + 0.004 * np.sin(number / 6))
            speed *= np.exp(0.012 * random.standard_normal())
            speed *= 1.6 if random.random() < 0.03 or not number else 1
            schedule = np.zeros((BLOCKS, WARPS), BLOCK_SCHED.dtype)
            schedule["start"] = 1000 + random.integers(0, max(cycles // 100, 1), (BLOCKS, WARPS))
            schedule["elapsed"] = cycles * speed * np.exp(0.02 * random.standard_normal((BLOCKS, WARPS)))
            schedule["cuid"] = np.arange(BLOCKS)[:, None]
            waits = np.zeros((BLOCKS, WARPS, 4), WAITS.dtype)
            waits["start"][:, :, :2] = schedule["start"][..., None] + 10
            waits["elapsed"][:, :, 0] = np.maximum(cycles * 0.1 * speed * (slow_site if name == "gemm" else 1), 1)
            waits["elapsed"][:, :, 1] = np.maximum(cycles * 0.05 * speed, 1)
            waits["site"][:, :, :2] = (3, 4)
            values: dict[str, Any] = {
                "BlockSched": schedule, "GmemBytes": [(int(4096 * more_bytes), 64, 0, 0, 0)], "Waits": waits,
                "Waits.counts": np.full((BLOCKS, WARPS), 2),
            }  # fmt: skip
            data = fill_regions(maps, WARPS, values, blocks=BLOCKS)
            writer.launch(identity, (BLOCKS, 1, 1), (32 * WARPS, 1, 1), data)
    return Trace(writer.write())


def said(comparison: Comparison) -> list[tuple[str, str]]:
    return [
        (kernel.first.kernel.name, change.key.name)
        for kernel in comparison.kernels for change in kernel.changes if change.verdict is Verdict.CHANGED
    ]  # fmt: skip


def test_the_same_build_twice_is_silent(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    traces = [run(tmp_path / str(seed), seed) for seed in range(8 if pytestconfig.getoption("--thorough") else 5)]
    pairs = list(combinations(traces, 2))
    assert len(pairs) >= 10
    for first, second in pairs:
        comparison = compare(first, second)
        assert said(comparison) == []
        assert not comparison.is_changed
        # It judged: times of all kernels had launches enough.
        assert comparison.figures >= 3 * len(KERNELS)
        times = [kernel.time for kernel in comparison.kernels]
        assert all(time is not None and time.verdict is Verdict.SAME and time.interval for time in times)


@pytest.mark.parametrize("seed", range(5))
def test_a_kernel_slowed_by_5_percent_is_named_first(tmp_path: Path, seed: int) -> None:
    first = run(tmp_path / "a", 100 + seed)
    # A short one, which is slower by a greater ratio, adds less time.
    second = run(tmp_path / "b", 200 + seed, slower={"gemm": 1.05, "reduce": 1.3})
    comparison = compare(first, second)
    assert comparison.is_changed
    assert [kernel.first.kernel.name for kernel in comparison.changed] == ["gemm", "reduce"]
    time = comparison.kernels[0].time
    assert time is not None
    assert time.verdict is Verdict.CHANGED
    assert time.interval is not None
    assert time.interval.low < 1.05 < time.interval.high
    assert comparison.kernels[0].time_added == pytest.approx(30 * 40_000 * 0.05, rel=0.4)


def test_a_faster_kernel_is_a_change_too(tmp_path: Path) -> None:
    comparison = compare(run(tmp_path / "a", 1), run(tmp_path / "b", 2, slower={"softmax": 0.9}))
    assert [kernel.first.kernel.name for kernel in comparison.changed] == ["softmax"]
    assert comparison.kernels[0].time_added < 0


def test_ranges_of_changed_kernels_are_judged(tmp_path: Path) -> None:
    slower = {"gemm": 1.06}
    comparison = compare(run(tmp_path / "a", 3), run(tmp_path / "b", 4, slower=slower, slow_site=1.5))
    (changed,) = comparison.changed
    details = [change for change in changed.details if change.verdict is Verdict.CHANGED]
    assert (details[0].key.part, details[0].key.where) == (Part.RANGE, "bar.sync 0 (gemm.cu:42)")
    assert details[0].ratio == pytest.approx(1.59, rel=0.02)
    # The others are without details.
    assert all(not kernel.details for kernel in comparison.kernels if not kernel.is_changed)


def test_roles_of_changed_kernels_are_judged(tmp_path: Path) -> None:
    first, second = run(tmp_path / "a", 20), run(tmp_path / "b", 21, slower={"gemm": 1.1})
    (changed,) = compare(first, second, roles=lambda _: {0: "producer", 1: "mma"}).changed
    found = {change.key.where: change for change in changed.details if change.key.part is Part.ROLE}
    assert found.keys() == {"producer", "mma"}
    assert all(change.verdict is Verdict.CHANGED and 1.05 < change.ratio < 1.15 for change in found.values())


def test_what_is_recorded_of_each_warp_is_judged_by_role(tmp_path: Path) -> None:
    """The producer waits half as long again, and the others as before."""
    work = make_map("Work", "array", "warp", {"waited": "u32", "site": "u32"})
    traces = []
    for number, factor in enumerate((1.0, 1.5)):
        random = np.random.default_rng(number)
        writer = TraceWriter(tmp_path / str(number))
        writer.kernel(1, "gemm", maps=[work, BLOCK_SCHED])
        for _ in range(30):
            waited = np.array([4000 * factor, 1000]) * random.normal(1, 0.01, (BLOCKS, 2))
            rows = [(int(time), 7) for time in waited.reshape(-1)]
            lives = [(1000, int(9000 * factor * random.normal(1, 0.01)), 0) for _ in range(2 * BLOCKS)]
            data = fill_regions([work, BLOCK_SCHED], 2, {"Work": rows, "BlockSched": lives}, blocks=BLOCKS)
            writer.launch(1, (BLOCKS, 1, 1), (64, 1, 1), data)
        traces.append(Trace(writer.write()))
    (changed,) = compare(*traces, roles=lambda _: {0: "producer", 1: "mma"}).changed
    found = {(change.key.where, change.key.name): change for change in changed.details}
    assert {name for where, name in found if where == "mma"} == {"Work.mean waited", "mean lifetime"}
    assert found["producer", "Work.mean waited"].ratio == pytest.approx(1.5, rel=0.02)
    assert found["producer", "Work.mean waited"].verdict is Verdict.CHANGED
    assert found["mma", "Work.mean waited"].verdict is not Verdict.CHANGED


def test_times_without_probes_come_first(tmp_path: Path) -> None:
    """Probes may hide what changed, or change it: launches that ran without them decide."""
    random = np.random.default_rng(8)
    traces = [run(tmp_path / name, 30 + number, launches=12) for number, name in enumerate("ab")]
    header = np.zeros(1, BENCHMARK_HEADER.dtype)
    header["magic"], header["version"], header["record_size"] = BENCHMARK_MAGIC, BENCHMARK_VERSION, SAMPLE.size
    for trace, factor in zip(traces, (1.0, 1.2), strict=True):
        rows = [
            {"grid": (BLOCKS, 1, 1), "block": (32 * WARPS, 1, 1), "kernel": 2, "kind": kind,
             "elapsed_ns": int(time * (factor if kind is SampleKind.ORIGINAL else 1))}
            for kind in (SampleKind.ORIGINAL, SampleKind.PROBED) for time in 9000 * random.normal(1, 0.01, 20)
        ]  # fmt: skip
        (trace.path / "benchmark.bin").write_bytes(header.tobytes() + planted(*rows).tobytes())
    comparison = compare(traces[0], Trace(traces[1].path))
    assert said(comparison) == [("softmax", "time without probes")]
    time = comparison.kernels[0].time
    assert time is not None
    assert (time.key.name, time.unit, time.launches_first) == ("time without probes", "ns", 20)
    assert time.ratio == pytest.approx(1.2, rel=0.02)


def test_counts_without_noise_are_exact(tmp_path: Path) -> None:
    first, second = run(tmp_path / "a", 5, launches=2), run(tmp_path / "b", 6, launches=2, more_bytes=1.1)
    comparison = compare(first, second)
    assert said(comparison) == [(name, "GmemBytes.load") for name in KERNELS]
    (change,) = [change for change in comparison.kernels[0].changes if change.verdict is Verdict.CHANGED]
    assert change.is_exact
    assert change.ratio == pytest.approx(4505 / 4096)
    # Two launches say nothing of times, and that is said.
    time = comparison.kernels[0].time
    assert time is not None
    assert (time.verdict, time.reason) == (Verdict.NOT_JUDGED, "too few launches (2 and 2)")
    assert comparison.launches_needed > 5
    assert compare(first, second, threshold=0.2).changed == ()


def test_one_launch_of_a_count_is_not_judged(tmp_path: Path) -> None:
    first, second = run(tmp_path / "a", 5, launches=1), run(tmp_path / "b", 6, launches=1, more_bytes=2)
    comparison = compare(first, second)
    assert not comparison.is_changed
    assert all(change.verdict is not Verdict.CHANGED for kernel in comparison.kernels for change in kernel.changes)


def test_kernels_of_one_trace_alone(tmp_path: Path) -> None:
    others = {**{name: cycles for name, cycles in KERNELS.items() if name != "copy"}, "copy_fast": 1800}
    comparison = compare(run(tmp_path / "a", 7), run(tmp_path / "b", 8, kernels=others))
    assert [group.kernel.name for group in comparison.only_first] == ["copy"]
    assert [group.kernel.name for group in comparison.only_second] == ["copy_fast"]
    assert comparison.is_changed
    assert not comparison.changed


def test_code_and_geometry_are_compared(tmp_path: Path) -> None:
    first, second = run(tmp_path / "a", 9), run(tmp_path / "b", 10)
    for trace, text in ((first, "a"), (second, "b")):
        for kernel in (1, 2):
            (trace.path / "kernel" / str(kernel) / "original.ptx").write_text(text if kernel == 1 else "same")
    comparison = compare(first, second)
    found = {kernel.first.kernel.name: kernel.code_differs for kernel in comparison.kernels}
    assert found == {"gemm": True, "softmax": False, "copy": None, "reduce": None}


def test_the_doubt_is_kept_without_a_threshold(tmp_path: Path) -> None:
    """Runs of one speed, so that launches alone differ: false alarms are as rare as promised."""
    kernels = {f"kernel{number}": 3000 + number for number in range(12)}
    alarms = 0
    for seed in range(12):
        first, second = (run(tmp_path / f"{seed}{side}", 1000 + 2 * seed + side, kernels=kernels, launches=12)
                         for side in (0, 1))  # fmt: skip
        # The speed of the run is no noise of launches: it is taken as the threshold.
        alarms += bool(said(compare(first, second, threshold=0.01)))
    assert DOUBT == 0.01
    assert alarms <= 1


def test_lines_are_those_of_tables_by_instruction(tmp_path: Path) -> None:
    """Of a kernel that the embedded device runs: each line's figures are those that the report has of its key."""
    command = ["-m", "neutrino.cli.probe", "try", "latency", str(ROOT / "examples/patterns.ptx"), "-k", "patterns"]
    subprocess.run(
        [sys.executable, *command, "--grid", "3", "--block", "72", "--tracedir", str(tmp_path)], check=True,
        capture_output=True,
    )  # fmt: skip
    (path,) = find_traces(tmp_path)
    trace = Trace(path)
    (group,) = groups_of(trace)
    lines = {key: figure for key, figure in details_of(group).items() if key.part is Part.LINE}
    (entry,) = [entry for entry in summarize(trace).kernels[0].maps if entry.name == "PerLoad"]
    assert len(entry.keys) == 2
    for key in entry.keys:
        where = f"{key.place}: {key.instruction.rstrip(';')}"
        assert lines[Key(Part.LINE, "PerLoad.count", where)].values == [key.count]
        assert lines[Key(Part.LINE, "PerLoad.mean cycles", where)].values == [key.kept["sum"] / key.count]
        assert lines[Key(Part.LINE, "PerLoad.mean cycles", where)].unit == "steps"
    assert len(lines) == 4
    (of_launch,) = [figure for key, figure in figures_of(group).items() if key.name == "PerLoad.count"]
    assert of_launch.values == [sum(key.count for key in entry.keys)]
