"""Findings of traces with known answers: figures, how sure they are, conditions on them, and how they are written."""

from __future__ import annotations

import heapq
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from neutrino.abi.benchmark_file import BENCHMARK_HEADER, BENCHMARK_MAGIC, SAMPLE, SampleKind
from neutrino.abi.levels import Level
from neutrino.abi.reasons import Reason
from neutrino.abi.versions import BENCHMARK_VERSION
from neutrino.cli.report import main
from neutrino.cli.report_summary import MOST_LINES
from neutrino.errors import NeutrinoError
from neutrino.maps.declaration import Map
from neutrino.maps.hash import Hash
from neutrino.maps.regions import copies_in
from neutrino.tracing import Trace, TraceKernel, summarize
from neutrino.tracing.analyses.block_times import gaps, places
from neutrino.tracing.analyses.condition import ConditionError, known_names, read_condition
from neutrino.tracing.analyses.finding import Cost, Finding, State, Threshold, brief
from neutrino.tracing.analyses.registry import ANALYSES
from neutrino.tracing.analyses.run import Findings, findings_of
from neutrino.tracing.percent import percent
from neutrino.tracing.summary import FieldSummary, KeySummary, MapSummary
from tests.tracing.trace_writer import BLOCK_SCHED, GMEM_BYTES, TraceWriter, fill_regions, make_map

DIVERGENCE = make_map(
    "BranchDivergence", "sum", "thread", dict.fromkeys(("branches", "diverged", "taken", "passed"), "u64")
)
REQUESTS = make_map(
    "LoadRequests", "sum", "thread", dict.fromkeys(("requests", "lanes", "sectors", "asked", "distinct"), "u64")
)
HOSTILE = "<script>alert(1)</script>\x1b[2J\u202e & ]]> \x00 --say 'ok'"


def of_blocks(path: Path, blocks: list[tuple[int, int, int]], device: str = "NVIDIA H200", launches: int = 1) -> Path:
    """A trace of block_sched with launches of blocks of one warp each: multiprocessor, begin and end."""
    writer = TraceWriter(path, device=device)
    writer.kernel(1, "k", maps=[BLOCK_SCHED])
    values = {"BlockSched": [(10**15 + begin, end - begin, sm) for sm, begin, end in blocks]}
    for _ in range(launches):
        regions = fill_regions([BLOCK_SCHED], len(blocks), values)
        writer.launch(1, (len(blocks), 1, 1), (32, 1, 1), regions)
    return writer.write()


def of_sums(path: Path, entry: Map, *rows: tuple[int, ...], name: str = "k") -> TraceWriter:
    """A trace with a launch of one warp for each row of a sum map."""
    writer = TraceWriter(path)
    writer.kernel(1, name, maps=[entry])
    for row in rows:
        values = {entry.name: [row] + [(0,) * len(row)] * (copies_in(1) - 1)}
        writer.launch(1, (1, 1, 1), (32, 1, 1), fill_regions([entry], 1, values))
    return writer


def timed(path: Path, original_ns: int, probed_ns: int, floor_ns: int = 0) -> Path:
    """Add a benchmark of 20 launches of kernel 1 without and with probes to a trace. floor_ns: of two events alone."""
    samples = np.zeros(41, SAMPLE.dtype)
    samples["kernel"], samples["grid"], samples["block"], samples["stream"] = 1, (2, 1, 1), (32, 1, 1), 1
    samples["kind"] = [SampleKind.ORIGINAL, SampleKind.PROBED] * 20 + [SampleKind.FLOOR]
    samples["elapsed_ns"] = [original_ns, probed_ns] * 20 + [floor_ns]
    header = np.zeros((), BENCHMARK_HEADER.dtype)
    header["magic"], header["version"], header["record_size"] = BENCHMARK_MAGIC, BENCHMARK_VERSION, SAMPLE.size
    (path / "benchmark.bin").write_bytes(header.tobytes().ljust(SAMPLE.size, b"\0") + samples.tobytes())
    return path


def of_keys(
    path: Path, device: str, *tables: tuple[str, list[KeySummary]], sites: Sequence[dict[str, Any]] = (),
    benchmark: tuple[int, int] | None = None, **sums: int,
) -> Findings:
    """The findings of a kernel with one launch whose maps have these keys, and ``elapsed`` of all warps if it is given.
    """
    writer = TraceWriter(path, device=device)
    writer.kernel(1, "k", maps=[DIVERGENCE], sites=list(sites))
    values = {"BranchDivergence": [(0, 0, 0, 0)] * copies_in(1)}
    writer.launch(1, (1, 1, 1), (32, 1, 1), fill_regions([DIVERGENCE], 1, values))
    written = writer.write()
    summary = summarize(Trace(timed(written, *benchmark) if benchmark else written))
    maps = [
        MapSummary(name, Hash(), Level.THREAD, 1, 0, 1, 0, (), keys=tuple(keys), key_name="site")
        for name, keys in tables
    ]
    for elapsed in sums.values():
        field = FieldSummary("elapsed", "u32", elapsed, elapsed, elapsed, None, added=elapsed)
        maps.append(MapSummary("BlockSched", BLOCK_SCHED.kind, Level.WARP, 1, 0, 1, 0, (field,)))
    return findings_of(replace(summary, kernels=(replace(summary.kernels[0], maps=tuple(maps)),)))


def key(number: int, count: int, total: int, low: int, high: int) -> KeySummary:
    kept = {"sum": total, "min": low, "max": high}
    return KeySummary(number, count, dict(kept), f"k.cu:{number}", f"ld.global.u32 %r{number}")


def found_in(path: Path, **options: Any) -> Findings:
    return findings_of(summarize(Trace(path)), **options)


def only(findings: Findings, analysis: str) -> Finding:
    (finding,) = (finding for finding in findings.found if finding.analysis == analysis)
    return finding


def test_time_between_blocks_is_exact(tmp_path: Path) -> None:
    # Two places on one multiprocessor, one on the other: 10 + 20 and 30 of 300 + 30.
    blocks = [(0, 0, 100), (0, 0, 50), (0, 60, 110), (0, 120, 170), (7, 1000, 1020), (7, 1050, 1080)]
    finding = only(found_in(of_blocks(tmp_path / "t", blocks)), "scheduling")
    busy, empty = 100 + 50 + 50 + 50 + 20 + 30, (60 - 50) + (120 - 100) + 30
    assert finding.value("share") == pytest.approx(empty / (empty + busy))
    assert (finding.value("scheduling"), finding.value("working")) == (round(empty / 3), round(busy / 3))
    assert finding.value("blocks_per_place") == 2
    assert finding.state is State.ISSUE


def test_the_published_case(tmp_path: Path) -> None:
    """Blocks of a fill kernel: 142 674 of a multiprocessor's 823 543 cycles pass between them; none if one goes on."""
    ends = np.cumsum([2000] * 340 + [869])
    pauses = np.cumsum([0] + [420] * 339 + [294])
    blocks = [(0, int(end + pause - length), int(end + pause))
              for end, pause, length in zip(ends, pauses, [2000] * 340 + [869], strict=True)]  # fmt: skip
    finding = only(found_in(of_blocks(tmp_path / "plain", blocks)), "scheduling")
    assert "17 % of their time" in finding.sentence
    assert "142,674 of 823,543 cycles each, which run 341 blocks" in finding.sentence
    assert (finding.value("scheduling"), finding.value("working")) == (142_674, 823_543 - 142_674)
    assert finding.state is State.ISSUE
    assert "persistent" in finding.remedies[0]
    persistent = only(found_in(of_blocks(tmp_path / "persistent", [(0, 0, 823_543 - 142_674)])), "scheduling")
    assert (persistent.state, persistent.value("share")) == (State.OK, 0)


def test_chosen_launches_are_those_that_are_counted(tmp_path: Path) -> None:
    path = of_sums(tmp_path / "t", DIVERGENCE, (100, 10, 0, 0), (100, 90, 0, 0), (100, 20, 0, 0)).write()
    chosen = range(1, 2)
    findings = findings_of(summarize(Trace(path), launches=chosen), launches=chosen)
    finding = only(findings, "divergence")
    assert finding.value("diverged") == 90
    assert (finding.certainty.launches, finding.certainty.launched) == (1, 3)


def test_gaps_are_those_of_a_queue() -> None:
    """Each place that a block leaves is taken by the next block; that which was left first is taken first."""
    random = np.random.default_rng(5)
    for _ in range(200):
        room, blocks = int(random.integers(1, 5)), int(random.integers(1, 40))
        free = [0] * room
        begins, ends, empty = [], [], 0
        for used in range(blocks):
            left = heapq.heappop(free)
            begin = max(left + int(random.integers(0, 9)), begins[-1] if begins else 0)
            if used >= room:
                empty += begin - left
            begins.append(begin)
            ends.append(begin + int(random.integers(1, 30)))
            heapq.heappush(free, ends[-1])
        # Places that were never full at once are fewer, and then have no time before their first block.
        first, last = np.sort(begins), np.sort(ends)
        if places(first, last) == min(room, blocks):
            assert gaps(first, last) == empty
        assert all(a <= b for a, b in pairwise(first))


@pytest.mark.parametrize("device", ["NVIDIA H200", "Another GPU"])
def test_a_tail_counts_multiprocessors_without_blocks(device: str, tmp_path: Path) -> None:
    # Four multiprocessors with two blocks each, one of them for 300 instead of 100.
    blocks = [(sm, begin, begin + 50) for sm in range(3) for begin in (0, 50)] + [(3, 0, 100), (3, 100, 300)]
    finding = only(found_in(of_blocks(tmp_path / "t", blocks, device)), "tail")
    count = 132 if device == "NVIDIA H200" else 4
    assert finding.value("multiprocessors") == count
    assert finding.value("idle") == pytest.approx(1 - (3 * 100 + 300) / (count * 300))
    assert finding.value("waves") == 8 / count
    assert finding.value("longest_block") == 4
    assert finding.state is State.ISSUE
    assert any("more blocks" in remedy for remedy in finding.remedies) == (device == "NVIDIA H200")


def test_a_wave_that_is_not_full_is_named(tmp_path: Path) -> None:
    # 4 places, 5 blocks: the second wave has one.
    blocks = [(sm, 0, 100) for sm in range(4)] + [(0, 100, 200)]
    finding = only(found_in(of_blocks(tmp_path / "t", blocks, "Another GPU")), "tail")
    assert (finding.value("waves"), finding.value("last_wave")) == (1.25, 0.25)
    assert finding.value("idle") == pytest.approx(3 * 100 / (4 * 200))
    assert "1.25 waves, of which the last is 25 % full" in finding.sentence
    assert "stream-K" in finding.remedies[0]
    assert finding.value("at_once") == 1
    assert "two blocks" in finding.remedies[1]


def test_blocks_of_other_lengths_are_told_from_a_grid_that_does_not_fit(tmp_path: Path) -> None:
    # Two places on each of four multiprocessors, all with a block: those of two take a quarter of the time.
    blocks = [(sm, 0, 100 if sm < 2 else 400) for sm in range(4) for _ in range(2)]
    finding = only(found_in(of_blocks(tmp_path / "t", blocks, "Another GPU")), "tail")
    assert finding.value("idle") == pytest.approx(2 * 300 / (4 * 400))
    assert finding.value("idle_of_equal_blocks") == 0
    assert "if all blocks took equally long, it would be 0.0 %" in finding.sentence
    assert "longest blocks" in finding.remedies[0]
    assert not any("more blocks" in remedy for remedy in finding.remedies)


@pytest.mark.parametrize(("count", "at_once"), [(5, 1), (7, 1), (9, 2), (13, 3), (12, 3)])
def test_equal_blocks_leave_idle_what_they_would(count: int, at_once: int, tmp_path: Path) -> None:
    """On four multiprocessors; each wave gives each of them a block before any a second one."""
    waves = [divmod(number, 4 * at_once) for number in range(count)]
    blocks = [(place % 4, 100 * wave, 100 * wave + 100) for wave, place in waves]
    finding = only(found_in(of_blocks(tmp_path / "t", blocks, "Another GPU")), "tail")
    assert (finding.value("multiprocessors"), finding.value("at_once")) == (4, at_once)
    assert finding.value("idle_of_equal_blocks") == pytest.approx(finding.value("idle"))
    assert "equally long" not in finding.sentence


@pytest.mark.parametrize("blocks", [
    # Two at once on each of four, and then one more; one on each of four, where a second one may fit or not.
    [(sm, 0, 100) for sm in range(4) for _ in range(2)] + [(0, 100, 300)],
    [(sm, 0, 100) for sm in range(3)] + [(3, 0, 300)],
])  # fmt: skip
def test_two_blocks_at_once_are_no_remedy_where_two_run_or_none_had_to_wait(
    blocks: list[tuple[int, int, int]], tmp_path: Path
) -> None:
    finding = only(found_in(of_blocks(tmp_path / "t", blocks, "Another GPU")), "tail")
    assert finding.state is State.ISSUE
    assert finding.remedies
    assert not any("two blocks" in remedy for remedy in finding.remedies)


def test_the_spread_over_launches_and_what_is_missing(tmp_path: Path) -> None:
    writer = of_sums(tmp_path / "t", DIVERGENCE, (100, 10, 0, 0), (100, 20, 0, 0), (100, 60, 0, 0))
    writer.launch(1, (1, 1, 1), (32, 1, 1), None)
    writer.count(1, Reason.POOL_FULL, 6)
    finding = only(found_in(writer.write()), "divergence")
    assert finding.value("share") == pytest.approx(90 / 300)
    spread = finding.certainty.spread
    assert spread is not None
    assert (spread.least, spread.median, spread.greatest, spread.launches) == (0.1, 0.2, 0.6, 3)
    # 3 of 10 launches have data.
    assert (finding.certainty.launches, finding.certainty.launched) == (3, 10)
    assert finding.certainty.word == "low"
    assert "from 3 of 10 launches of the kernel" in finding.certainty.sentences()
    assert "40 % of the process's launches were probed" in finding.certainty.sentences()


def test_of_many_launches_some_are_compared(tmp_path: Path) -> None:
    rows = [(100, number, 0, 0) for number in range(100)]
    finding = only(found_in(of_sums(tmp_path / "t", DIVERGENCE, *rows).write()), "divergence")
    # All are in the figure; the first and the last are among those that are compared.
    assert finding.value("diverged") == sum(range(100))
    spread = finding.certainty.spread
    assert spread is not None
    assert (spread.least, spread.greatest, spread.launches) == (0, 0.99, 16)


def test_what_the_probes_cost_is_in_findings_about_times(tmp_path: Path) -> None:
    path = timed(of_blocks(tmp_path / "t", [(0, 0, 100), (0, 150, 250)]), 10_000, 12_500)
    finding = only(found_in(path), "scheduling")
    assert finding.certainty.cost == Cost(1.25, 1.25, 1.25, 10_000, 2500)
    assert finding.certainty.cost.below_ns == 2500
    assert any("1.25 times as long; differences below 2.5 µs" in text for text in finding.certainty.sentences())
    assert finding.certainty.word == "high"


@pytest.mark.parametrize(
    ("mean", "state"), [(799, State.OK), (800, State.MINOR), (1599, State.MINOR), (1600, State.ISSUE)]
)
def test_latency_in_cycles(mean: int, state: State, tmp_path: Path) -> None:
    loads = ("PerLoad", [key(7, 10, 10 * 300, 200, 400), key(8, 10, 10 * mean, 30, 5000)])
    finding = only(of_keys(tmp_path / "t", "NVIDIA H200", loads), "latency")
    assert (finding.state, finding.value("worst_mean")) == (state, mean)
    assert finding.value("worst_share") == pytest.approx(mean / (300 + mean))
    assert [place.place for place in finding.places] == ["k.cu:8", "k.cu:7"]
    # Steps of the embedded device are no durations.
    steps = only(of_keys(tmp_path / "u", "Neutrino embedded device", loads), "latency")
    assert (steps.state, steps.word, steps.value("worst_mean")) == (State.OK, "not judged", mean)


@pytest.mark.parametrize(
    ("of_warps", "share", "state"),
    [(36_001, 0.1, State.OK), (36_000, 0.1, State.MINOR), (12_000, 0.3, State.ISSUE), (0, None, State.MINOR)],
)
def test_waiting_is_a_share_of_the_time_of_the_warps(
    of_warps: int, share: float | None, state: State, tmp_path: Path
) -> None:
    # Ten waits take 4,000 cycles, of which 40 are in each: 3,600 beyond that, of the time of all warps.
    waits = ("PerWait", [key(3, 5, 3500, 40, 900), key(4, 5, 500, 90, 110)])
    times = {"elapsed": of_warps} if of_warps else {}
    finding = only(of_keys(tmp_path / "t", "NVIDIA H200", waits, **times), "barrier_wait")
    if share is None:
        # By the mean, 400 cycles, it would be none; a mean of 500 is.
        assert finding.state is State.OK
        longer = ("PerWait", [key(3, 5, 5000, 40, 900)])
        finding = only(of_keys(tmp_path / "u", "NVIDIA H200", longer), "barrier_wait")
        assert any("add -p warp_timeline" in caveat for caveat in finding.certainty.caveats)
    else:
        assert finding.value("share") == pytest.approx(share, rel=1e-4)
    assert finding.state is state
    assert finding.places[0].place == "k.cu:3"


@pytest.mark.parametrize(
    ("size", "operations", "reached", "state", "side"),
    [
        (19_200_000, 0, 0.4, State.MINOR, "memory"), (24_000_000, 100, 0.5, State.OK, "memory"),
        (7_200_000, 0, 0.15, State.ISSUE, "memory"),
        # As many operations as take 5 of 10 µs, on few bytes.
        (1_000, 167_250_000, 0.5, State.OK, "arithmetic"),
    ],
)  # fmt: skip
def test_a_roofline_by_the_data_sheet(
    size: int, operations: int, reached: float, state: State, side: str, tmp_path: Path
) -> None:
    mix = make_map("OpcodeMix", "sum", "thread", dict.fromkeys(("fp16", "fp32", "fp64"), "u64"))
    writer = TraceWriter(tmp_path / "t")
    writer.kernel(1, "k", maps=[GMEM_BYTES, mix])
    copies = copies_in(1) - 1
    values = {
        "GmemBytes": [(size, 0, 0, 0, 0)] + [(0,) * 5] * copies, "OpcodeMix": [(0, operations, 0)] + [(0,) * 3] * copies
    }  # fmt: skip
    writer.launch(1, (2, 1, 1), (32, 1, 1), fill_regions([GMEM_BYTES, mix], 1, values))
    # What the two events add to the launch is no time of it.
    finding = only(found_in(timed(writer.write(), 12_000, 12_000, 2_000)), "roofline")
    # 4.8 TB/s and 66.9 TFLOP/s of an H200, in 10 µs.
    assert finding.value("reached") == pytest.approx(reached)
    assert (finding.state, finding.value("side"), finding.value("seconds")) == (state, side, 1e-5)


def test_thresholds_include_their_ends() -> None:
    above = Threshold("x", 0.1, 0.3)
    assert [above.state(value) for value in (0, 0.0999, 0.1, 0.2999, 0.3, 9)] == [
        State.OK, State.OK, State.MINOR, State.MINOR, State.ISSUE, State.ISSUE,
    ]  # fmt: skip
    below = Threshold("x", 0.4, 0.15, below=True)
    assert [below.state(value) for value in (1, 0.4, 0.2, 0.15, 0)] == [
        State.OK, State.MINOR, State.MINOR, State.ISSUE, State.ISSUE,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0.0 %"), (0.0001, "under 0.1 %"), (0.173, "17 %"), (0.0524, "5.2 %"), (1, "100 %")]
)
def test_shares_in_words(value: float, text: str) -> None:
    assert percent(value) == text
    assert brief(12345.6) == "12,346"


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("divergence.share > 0.25", True), ("divergence.share > 0.35", False),
        ("0.2 < divergence.share <= 0.3 and not branches < 300", True), ("diverged / branches == 0.3", True),
        ("divergence.state == 'issue'", True), ("divergence.state != 'issue'", False), ("issues", True),
        ("-diverged + 90 == 0 or coverage < 1", True), ("coverage < 1", False), ("diverged * 2 - 180", False),
    ],
)  # fmt: skip
def test_conditions(text: str, holds: bool, tmp_path: Path) -> None:
    path = of_sums(tmp_path / "t", DIVERGENCE, (300, 90, 0, 0)).write()
    hits = read_condition(text).hits(Trace(path).coverage, found_in(path))
    assert bool(hits) is holds
    assert main([str(path), "--fail-if", text]) == int(holds)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("diverge > 1", "did you mean"), ("nonsense > 1", "first_nan.nan_count: threads that compute a NaN"),
        ("share > 1", "several analyses have 'share'"), ("1 > 0", "no figure"), ("", "not a condition"),
        ("__import__('os').system('true')", "not allowed"), ("diverged.real.imag", "not allowed"),
        ("diverged ** 9 ** 9", "not allowed"), ("[x for x in 'a']", "not allowed"), ("diverged if 1 else 2", "not al"),
        ("diverged > 1; 2", "not a condition"), ("diverged > (lambda: 1)()", "not all"), ("f'{diverged}'", "not all"),
        ("not " * 60 + "diverged", "nested"), ("(" * 900 + "1", "not a condition"), ("1 + " * 400 + "1", "more than"),
        ("divergence.state > 1", "cannot be compared"), ("diverged / 0", "division"), ("-divergence.state", "no numb"),
        ("divergence.state == 'isue'", "did you mean 'issue'?); there are 'ok', 'minor', 'issue'"),
        ("'tma' != roles.critical", "there are 'mma', 'producer'"), ("side == 'cache'", "there are 'memory', 'arithm"),
        ("tail.state == divergence.state == side", "it is never 'memory'"), ("divergence.state > 'ok'", "no order"),
        ("diverged > 0 or divergence.state", "is a text, and holds always"), ("not side", "is a text, and holds"),
        ("divergence.share > 25", "is never true: shares are from 0 to 1"), ("coverage < 90", "is always true"),
        ("0 <= diverged < 7", "is always true: figures are 0"), ("-diverged > 0", "is never true"),
        ("nan_count > 0", "record it with -p nan_finder"), ("uncoalesced.state == 'ok'", "-p coalescing"),
    ],
)  # fmt: skip
def test_wrong_conditions_say_what_is_wrong(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = of_sums(tmp_path / "t", DIVERGENCE, (300, 90, 0, 0)).write()
    assert main([str(path), "--fail-if", text]) == 2
    assert says in capsys.readouterr().err


def test_what_is_not_judged_has_no_state(tmp_path: Path) -> None:
    """A test in CI does not pass because times were those of the embedded device."""
    condition = read_condition("latency.state == 'issue'")
    for device in ("Neutrino embedded device", "NVIDIA H200"):
        found = of_keys(tmp_path / device, device, ("PerLoad", [key(7, 10, 10 * 300, 200, 400)]))
        coverage = Trace(tmp_path / device).coverage
        if device == "NVIDIA H200":
            assert condition.hits(coverage, found) == []
        else:
            with pytest.raises(ConditionError, match="latency is not judged"):
                condition.hits(coverage, found)
        assert read_condition("latency.mean > 100").hits(coverage, found)


def test_conditions_are_of_one_kernel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = of_sums(tmp_path / "t", DIVERGENCE, (300, 90, 0, 0))
    writer.kernel(2, "other", maps=[DIVERGENCE])
    values = {"BranchDivergence": [(10, 0, 0, 0)] + [(0, 0, 0, 0)] * (copies_in(1) - 1)}
    writer.launch(2, (1, 1, 1), (32, 1, 1), fill_regions([DIVERGENCE], 1, values))
    path = writer.write()
    assert main([str(path), "--fail-if", "branches < 100 and diverged > 0"]) == 0
    assert main([str(path), "--fail-if", "branches < 100", "--fail-if", "diverged > 1000"]) == 1
    text = capsys.readouterr().err
    assert "holds in other(int*): divergence.branches = 10" in text
    assert "k(int*)" not in text


def test_every_figure_can_be_asked_for() -> None:
    for name, meaning in known_names().items():
        for value in ("0", "'ok'", "'memory'", "'mma'"):
            try:
                assert read_condition(f"{name} == {value}").names == (name,)
                break
            except ConditionError as error:
                assert value == "0" or "there are" in str(error), meaning  # noqa: PT017
        else:
            pytest.fail(f"nothing can be asked of {name}")


def test_an_analysis_that_there_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = of_blocks(tmp_path / "t", [(0, 0, 100)])
    with pytest.raises(NeutrinoError, match="no analysis 'speed'; there are first_nan"):
        found_in(path, names=["speed"])
    assert main([str(path), "--findings", "--analysis", "speed"]) == 2
    assert main([str(path), "--findings", "--analysis", "tail"]) == 0
    text = capsys.readouterr().out
    assert "tail in k(int*)" in text
    assert "scheduling" not in text


def test_the_report_says_first_what_is_no_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = of_sums(tmp_path / "bad", DIVERGENCE, (300, 90, 0, 0)).write()
    good = of_sums(tmp_path / "good", DIVERGENCE, (300, 0, 0, 0)).write()
    assert main([str(bad)]) == 0
    text = capsys.readouterr().out
    assert text.index("issue: k(int*): lanes part at 30 %") < text.index("BranchDivergence: 1 launch")
    assert "--findings says how sure that is" in text
    assert main([str(good)]) == 0
    assert "Findings" not in capsys.readouterr().out


@pytest.mark.parametrize("form", ["--findings", "--summary", "--json", "--xml", "--proof", ""])
def test_names_are_data(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = of_sums(tmp_path / "t", DIVERGENCE, (300, 90, 0, 0), name=HOSTILE)
    writer.kernel(2, HOSTILE + "2", Reason.VENDOR, HOSTILE)
    writer.count(2, Reason.VENDOR, 3)
    path = writer.write()
    assert main([str(path), *([form] if form else [])]) == 0
    text = capsys.readouterr().out
    assert not {"\x1b", "\x00", "\u202e"} & set(text)
    if form == "--xml":
        root = ElementTree.fromstring(text)
        assert not root.findall(".//script")
        assert [item.get("analysis") for item in root.findall(".//findings/item")] == ["divergence"]
        found = root.find(".//findings/item")
        assert found is not None
        assert found.get("name") == HOSTILE.replace("\x1b", "\\x1b").replace("\x00", "\\x00")
    if form == "--json":
        # The command is one for a shell: the name in it is one word.
        command = json.loads(text)["traces"][0]["findings"][0]["command"]
        words = subprocess.run(["bash", "-c", f"printf '%s\\n' {command}"], capture_output=True, text=True, check=True)
        lines = words.stdout.splitlines()
        assert lines[:4] == ["neutrino", "-p", "branch_divergence", "-k"]
        assert lines[5:] == ["python", "train.py"]


def test_xml_has_what_json_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = of_sums(tmp_path / "t", REQUESTS, (10, 320, 80, 1280, 1280), (10, 320, 40, 1280, 1280)).write()
    assert main([str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert main([str(path), "--xml"]) == 0
    root = ElementTree.fromstring(capsys.readouterr().out)
    assert_same(document, root)


def assert_same(value: Any, element: ElementTree.Element) -> None:
    """Every member of a JSON value is in an element, and no more are."""
    children = list(element)
    if isinstance(value, list):
        kept = [item for item in value if item is not None]
        assert len(children) == len(kept)
        for item, child in zip(kept, children, strict=True):
            assert_same(item, child)
    elif isinstance(value, dict):
        kept = {name: member for name, member in value.items() if member is not None}
        named = {child.get("name") if child.tag == "member" else child.tag: child for child in children}
        assert len(children) + len([name for name in element.attrib if name in kept]) == len(kept)
        for name, member in kept.items():
            if name in named:
                assert_same(member, named[name])
            else:
                assert element.get(name) == (str(member).lower() if isinstance(member, bool) else str(member))
    else:
        assert (element.text or "") == (str(value).lower() if isinstance(value, bool) else str(value))


def test_json_keeps_to_its_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = of_sums(tmp_path / "t", REQUESTS, (10, 320, 80, 1280, 1280), (10, 320, 40, 1280, 1280))
    writer.kernel(2, "v", Reason.VENDOR)
    writer.count(2, Reason.VENDOR, 3)
    path = writer.write()
    assert main(["--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert main([str(path), str(of_blocks(tmp_path / "u", [(0, 0, 9)])), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["traces"][0]["findings"]
    keeps_to(document, schema)
    # The check is one: it refuses what is wrong.
    for member, value in (("state", "fine"), ("sentence", 3), ("sure", None)):
        wrong = json.loads(json.dumps(document))
        wrong["traces"][0]["findings"][0][member] = value
        with pytest.raises(AssertionError):
            keeps_to(wrong, schema)


def keeps_to(value: Any, schema: dict[str, Any]) -> None:
    """Hold a value against a JSON Schema, as far as ours go."""
    names = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    if "const" in schema:
        assert value == schema["const"]
    if "enum" in schema:
        assert value in schema["enum"]
    if "type" in schema:
        kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        assert any(
            is_number and (kind == "number" or not isinstance(value, float))
            if kind in ("number", "integer") else isinstance(value, names[kind])
            for kind in kinds
        ), (value, schema)  # fmt: skip
    if isinstance(value, dict):
        assert set(schema.get("required", ())) <= value.keys()
        for name, member in schema.get("properties", {}).items():
            if name in value:
                keeps_to(value[name], member)
    for item in value if isinstance(value, list) else ():
        keeps_to(item, schema.get("items", {}))
    if isinstance(value, (int, float)):
        assert schema.get("minimum", value) <= value <= schema.get("maximum", value)


def test_a_summary_is_one_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = of_sums(tmp_path / "t", DIVERGENCE, (300, 90, 0, 0))
    values = {"BranchDivergence": [(10, 9, 0, 0)] + [(0, 0, 0, 0)] * (copies_in(1) - 1)}
    for kernel in range(2, 90):
        writer.kernel(kernel, f"kernel_{'x' * 900}_{kernel}", maps=[DIVERGENCE])
        writer.launch(kernel, (1, 1, 1), (32, 1, 1), fill_regions([DIVERGENCE], 1, values))
    for kernel in range(100, 200):
        writer.kernel(kernel, f"v{kernel}", list(Reason)[2 + kernel % 9])
        writer.count(kernel, list(Reason)[2 + kernel % 9], 3)
    path = writer.write()
    assert main([str(path), "--summary"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 20 < len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= 400
    text = "\n".join(lines)
    for words in ("trace: ", "ran: python train.py", "issue: divergence in", "  try: ", "  sure: ", "not analysed: ",
                  "cost of the probes: not measured", "kernel: and 81 more", "findings: and 81 more"):  # fmt: skip
        assert words in text


@pytest.mark.parametrize(
    "options",
    [("--findings", "--json"), ("--summary", "--why"), ("--xml", "--rows", "3"), ("--fail-if", "issues", "--why")],
)
def test_forms_exclude_each_other(options: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as error:
        main([str(tmp_path), *options])
    assert error.value.code == 2


def test_maps_of_other_probes_with_these_names(tmp_path: Path) -> None:
    """A user's map may have the name of one that an analysis knows, and anything in it."""
    other = make_map("BlockSched", "array", "thread", {"start": "f32", "elapsed": "f32", "cuid": "f32"})
    writer = TraceWriter(tmp_path / "t")
    writer.kernel(1, "k", maps=[other])
    writer.launch(1, (1, 1, 1), (32, 1, 1), fill_regions([other], 1, {"BlockSched": [(np.nan, 1, 2)] * 32}))
    trace = Trace(writer.write(), is_tolerant=True)
    assert not findings_of(summarize(trace)).found
    assert not trace.faults


def test_lists_of_analyses_agree() -> None:
    assert list(ANALYSES) == list(dict.fromkeys(ANALYSES))
    for name, analysis in ANALYSES.items():
        assert analysis.name == name
        declared = {figure.name for figure in analysis.figures}
        assert {row.figure for row in analysis.thresholds} <= declared
    with pytest.raises(ConditionError):
        read_condition("share > 0")


def test_reports_without_findings_import_no_more_than_they_need(tmp_path: Path) -> None:
    path = of_blocks(tmp_path / "t", [(0, 0, 100)])
    code = (
        "import sys; from neutrino.cli.report import main; main(sys.argv[1:]); "
        "print(*[name for name in ('urllib.request', 'xml.sax', 'hashlib', 'neutrino.cli.report_proof', "
        "'neutrino.tracing.analyses.condition') if name in sys.modules], file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert ran.stderr.split() in ([], ["hashlib"])


def test_the_page_on_findings_lists_all_analyses() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "findings.md").read_text()
    for name, analysis in ANALYSES.items():
        thresholds = "; ".join(row.text for row in analysis.thresholds)
        (row,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        assert row.endswith(f"| {thresholds} |")
        assert analysis.question in row
        assert all(f"`{probe}`" in row for probes in analysis.probes for probe in probes)


def test_many_kernels_whose_data_never_came_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An overview of kernels without data has their launches, and no figures."""
    writer = TraceWriter(tmp_path / "t")
    for kernel in range(1, 7):
        writer.kernel(kernel, f"k{kernel}", maps=[DIVERGENCE])
        writer.launch(kernel, (1, 1, 1), (32, 1, 1), None)
    assert main([str(writer.write())]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["k3(int*)", "1"] in rows


def test_the_kernel_that_takes_most_time_comes_first(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t")
    for kernel, elapsed in ((1, 100), (2, 900), (3, 10)):
        writer.kernel(kernel, f"k{kernel}", maps=[BLOCK_SCHED])
        for _ in range(kernel % 3 + 1):
            values = {"BlockSched": [(1, elapsed, 0), (1, elapsed // 10, 1)]}
            writer.launch(kernel, (2, 1, 1), (32, 1, 1), fill_regions([BLOCK_SCHED], 2, values))
    found = [finding.name for finding in found_in(writer.write(), names=["tail"]).found]
    assert found == ["k2(int*)", "k1(int*)", "k3(int*)"]


def test_of_many_kernels_few_have_their_records_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report that nobody asked for findings reads no more for a thousand kernels than for sixteen."""
    writer = TraceWriter(tmp_path / "t")
    values = {
        "BranchDivergence": [(10, 9, 0, 0)] + [(0, 0, 0, 0)] * (copies_in(1) - 1), "BlockSched": [(1, 9, 0)]
    }  # fmt: skip
    for kernel in range(1, 41):
        writer.kernel(kernel, f"k{kernel}", maps=[DIVERGENCE, BLOCK_SCHED])
        for _ in range(3):
            writer.launch(kernel, (1, 1, 1), (32, 1, 1), fill_regions([DIVERGENCE, BLOCK_SCHED], 1, values))
    summary = summarize(Trace(writer.write()))
    reads: list[int] = []
    stacks = TraceKernel.numbered_stacks

    def counted(self: TraceKernel, *given: Any, **more: Any) -> Any:
        reads.append(self.id)
        return stacks(self, *given, **more)

    monkeypatch.setattr(TraceKernel, "numbered_stacks", counted)
    few = findings_of(summary, reads_all=False)
    assert len(set(reads)) == 16
    assert few.skipped == 24
    # What needs no records is said of all kernels.
    assert len([finding for finding in few.found if finding.analysis == "divergence"]) == 40
    assert len([finding for finding in few.found if finding.analysis == "tail"]) == 16
    reads.clear()
    assert findings_of(summary).skipped == 0
    assert len(set(reads)) == 40
