"""``neutrino --memusage``: it runs originals, and what it says of memory is what the same run then takes."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from neutrino.abi.launches import LaunchState
from neutrino.cli import report
from neutrino.errors import TraceError
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.tracing.memory_usage import MemoryUsage, memory_usage
from neutrino.tracing.trace import Trace
from neutrino.verification import load_probe_file, load_probes

from .conftest import IMAGE, POOL_LEAST, Bench, Reference, probes_with_cap
from .test_command import neutrino
from .trace_files import Files

MEASURES = {"NEUTRINO_MEMUSAGE": "1"}
POOL = {"NEUTRINO_POOL": str(64 << 20)}
TOLERANCE = 0.05
"""Of what a run then takes: what the option promises."""
ONLY_TWINS = {"cuStreamWriteValue64_v2", "cuMemHostAlloc", "cuMemcpyDtoHAsync_v2", "cuMemsetD8Async"}
"""What the hook calls for twins, and never else."""


@dataclass
class Run:
    """A run under the hook. calls: how often it called what of the driver. device_bytes: that anybody allocated."""

    files: Files
    calls: Counter[str]
    device_bytes: int

    @property
    def memory(self) -> int:
        """What the hook says that it had."""
        (event,) = (event for event in self.files.events if event["event"] == "memory")
        return int(event["most"])

    @property
    def disk(self) -> int:
        """Bytes of the trace's files without their holes."""
        found = [path.stat() for path in self.files.path.rglob("*") if path.is_file()]
        return sum(min(status.st_size, 512 * status.st_blocks) for status in found)


def _run(
    bench: Bench, home: Path, scenario: str, expected: tuple[str, int], extra: Mapping[str, str],
    probes: ProbeSet | None = None,
) -> Run:  # fmt: skip
    counts = home / "counts"
    result = bench.run(scenario, home, extra={**POOL, **extra}, device={"count": counts}, probes=probes)
    assert (result.stdout, result.returncode) == expected, result.stderr[-2000:]
    found = json.loads(counts.read_text())
    calls = Counter(found["hook"]) + Counter(found["hook-thread"])
    return Run(Files(home / "trace"), calls, sum(found["bytes"].values()))


def _check_nothing_ran(dry: Run) -> None:
    """That no twin ran, and nothing was recorded or allocated for one."""
    assert not any((dry.files.path / "result").iterdir())
    assert not ONLY_TWINS & dry.calls.keys()
    of_kernels = dry.files.launches[dry.files.launches["kernel"] < 1 << 16]
    assert set(of_kernels["state"]) <= {LaunchState.MEASURED}


def _check_as_said(usage: MemoryUsage, dry: Run, real: Run) -> None:
    """That a run takes what was said, where no log is."""
    assert dry.files.counters.tolist() == real.files.counters.tolist()
    assert not usage.has_logs
    for kernel in usage.kernels:
        written = sum(path.stat().st_size for path in (real.files.path / "result").glob(f"{kernel.kernel.id}.*"))
        assert kernel.data == written
    assert abs(usage.trace_size - real.disk) <= TOLERANCE * real.disk
    assert usage.device is not None
    assert usage.device.pools + usage.device.graphs == dry.memory
    assert abs(dry.memory - real.memory) <= TOLERANCE * real.memory


# Launches by all calls, in a pool that begins with less than it may have; and graphs that change, in one that has all.
@pytest.mark.parametrize(
    ("scenario", "pool", "is_final"), [("forms", 128 << 20, False), ("graph-changes", 64 << 20, True)]
)
def test_a_run_takes_what_was_said(
    bench: Bench, tmp_path: Path, reference: Reference, scenario: str, pool: int, is_final: bool
) -> None:
    expected, extra = reference(scenario), {"NEUTRINO_POOL": str(pool)}
    dry = _run(bench, tmp_path / "dry", scenario, expected, {**MEASURES, **extra})
    real = _run(bench, tmp_path / "real", scenario, expected, extra)
    _check_nothing_ran(dry)
    usage = memory_usage(Trace(dry.files.path))
    _check_as_said(usage, dry, real)
    # Not by the hook's own word: what the driver gave it.
    assert real.device_bytes - dry.device_bytes == real.memory
    assert real.calls["cuMemcpyDtoHAsync_v2"]
    assert usage.device is not None
    assert usage.device.is_final == is_final
    assert usage.device.limit == pool
    with pytest.raises(TraceError, match="without --memusage"):
        memory_usage(Trace(real.files.path))


@pytest.mark.parametrize("scenario", ["threads", "capture"])
def test_measuring_harms_nothing(any_bench: Bench, tmp_path: Path, reference: Reference, scenario: str) -> None:
    dry = _run(any_bench, tmp_path, scenario, reference(scenario), MEASURES)
    _check_nothing_ran(dry)
    counted = dry.files.counted("count_p2")
    assert set(counted) == {"probed"}
    assert len(dry.files.launches) - len(dry.files.replays()) == counted["probed"]


def test_tables_histograms_and_records_of_threads(bench: Bench, tmp_path: Path, reference: Reference) -> None:
    probes = tmp_path / "probes.toml"
    probes.write_text(
        'platform = "cuda"\n'
        '[map.Each]\ntype = "array"\nlevel = "thread"\ncap = 3\ndata = { value = "u64" }\n'
        '[map.Blocks]\ntype = "sum"\nlevel = "thread"\nper = "block"\ndata = { value = "u64" }\n'
        '[map.Whole]\ntype = "max"\nlevel = "warp"\nper = "run"\ndata = { value = "u64" }\n'
        '[map.Sizes]\ntype = "histogram"\nlevel = "thread"\nscale = "log2"\ndata = { value = "u64" }\n'
        '[map.Keys]\ntype = "hash"\nlevel = "warp"\ndata = { key = "u64" }\n'
        + "".join(
            f'[probe.{name}]\nposition = "atom.global.add.u64"\nlevel = "{level}"\n'
            f'after = """\nSAVE [ {name} ] {{ OUT }};\n"""\n'
            for name, level in (
                ("Each", "thread"), ("Blocks", "thread"), ("Whole", "warp"), ("Sizes", "thread"), ("Keys", "warp")
            )
        )
    )  # fmt: skip
    loaded = load_probe_file(probes)
    dry = _run(bench, tmp_path / "dry", "cut", reference("cut"), MEASURES, loaded)
    real = _run(bench, tmp_path / "real", "cut", reference("cut"), {}, loaded)
    usage = memory_usage(Trace(dry.files.path))
    _check_as_said(usage, dry, real)
    assert list((real.files.path / "result").glob("*.run"))
    # Launches of several sizes: the least and the most is what their records have.
    for kernel in usage.kernels:
        sizes = real.files.launches["data_size"][real.files.launches["kernel"] == kernel.kernel.id]
        in_run = next(entry for entry in kernel.maps if entry.entry.name == "Whole")
        assert sizes.min() + in_run.least == kernel.least
        assert sizes.max() + in_run.most == kernel.most
    assert any(kernel.least < kernel.most for kernel in usage.kernels)


def test_logs_are_named_and_counted_as_empty(bench: Bench, tmp_path: Path, reference: Reference) -> None:
    probes = load_probes(["gmem_bytes", "program_progress"])
    dry = _run(bench, tmp_path / "dry", "plain", reference("plain"), MEASURES, probes)
    real = _run(bench, tmp_path / "real", "plain", reference("plain"), {}, probes)
    usage = memory_usage(Trace(dry.files.path))
    (kernel,) = usage.kernels
    assert usage.size_with_logs is None
    assert usage.has_logs
    assert {entry.entry.name: entry.is_log for entry in kernel.maps} == {"GmemBytes": False, "ProgramProgress": True}
    sums = next(entry for entry in kernel.maps if not entry.is_log)
    assert sums.data == kernel.launches * sums.most
    # As if nothing was saved: what the run then wrote beside is in the logs.
    assert kernel.data < real.disk
    written = (real.files.path / "result" / f"{kernel.kernel.id}.bin").stat().st_size
    in_logs = sum(int(size) for size in real.files.written()["data_size"]) - kernel.launches * (sums.most + 256)
    assert kernel.data == written - in_logs
    # What was not measured is not remembered for later runs.
    assert not list((tmp_path / "dry" / "cache").rglob("*.needs"))
    assert list((tmp_path / "real" / "cache").rglob("*.needs"))
    # What the run has learnt gives an estimate.
    real.files.path.parent.rename(tmp_path / "real" / "before")
    real.files.path = next((tmp_path / "real" / "before").iterdir())
    again = _run(bench, tmp_path / "real", "plain", reference("plain"), MEASURES, probes)
    estimate = memory_usage(Trace(again.files.path)).size_with_logs
    assert estimate is not None
    assert abs(estimate - real.disk) <= TOLERANCE * real.disk


def test_launches_that_are_too_large(
    bench: Bench, tmp_path: Path, reference: Reference, capsys: pytest.CaptureFixture[str]
) -> None:
    extra = {**MEASURES, "NEUTRINO_POOL": str(POOL_LEAST), "NEUTRINO_MAX_TRACE_SIZE": str(4 << 20)}
    probes = probes_with_cap(tmp_path, 64)
    dry = _run(bench, tmp_path / "dry", "large", reference("large"), extra, probes)
    assert dry.files.counted("count_p2")["map-size"] == 1
    assert report.main([str(dry.files.path)]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"count_p2: 1 launch, map-size: the launch needs more map memory than the pool", printed)
    assert "what helps: a larger --max-device-memory" in printed
    assert re.search(r"note: kernel \d+ count_p2: a launch needs \d+ MiB of device memory", printed)


def test_the_command(bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "image").write_bytes(IMAGE)
    probed = ("-p", "block_sched", "--launches", "0:5", "--max-trace-size", "4M")
    result = neutrino(tmp_path, "--memusage", *probed, str(bench.host), "plain")
    assert (result.stdout, result.returncode) == ("120\n", 0)
    said = result.stderr
    assert "--memusage: 5 of 5 launches would be probed (100 %), 1 of 1 kernels; not chosen: 15 more\n" in said
    assert re.search(r"^kernel +launches +bytes per launch +bytes in the trace\ncount_p2 +5 ", said, re.MULTILINE)
    assert re.search(r"^device memory: \d+\.\d MiB for maps, beside the twins' code$", said, re.MULTILINE)
    (trace,) = (tmp_path / "trace").iterdir()
    assert report.main([str(trace), "-k", "other"]) == 0
    printed = capsys.readouterr().out
    # The totals are of all kernels.
    assert "count_p2" not in printed
    assert printed.splitlines()[-2:] == said.splitlines()[-2:]
    assert report.main(["--json", str(trace)]) == 0
    (document,) = json.loads(capsys.readouterr().out)["traces"]
    found = document["memusage"]
    assert found["trace"] == found["data"] + found["records"] + found["rest"]
    assert found["max_trace_size"] == 4 << 20
    assert found["limited"] is None
    assert [(kernel["name"], kernel["launches"]) for kernel in found["kernels"]] == [("count_p2", 5)]
    assert [entry["name"] for entry in found["kernels"][0]["maps"]] == ["BlockSched"]
    assert document["would_be"]["probed"] == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-p", "block_sched", "--hot", "3"), "--hot: --memusage measures what all launches take"),
        (("-p", "block_sched", "--callback", "x.py"), "--callback: with --memusage nothing is recorded"),
        ((), "--memusage needs a probe"),
    ],
)
def test_options_that_make_no_sense(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    result = neutrino(tmp_path, "--memusage", *options, "true")
    assert result.returncode == 125
    assert message in result.stderr
