"""What findings judge: roles and waiting, loads, hot lines, and arithmetic that looks like products."""

from __future__ import annotations

from pathlib import Path

import pytest

from neutrino.maps.regions import copies_in
from neutrino.tracing.analyses.finding import Certainty, State
from neutrino.tracing.coverage import Coverage
from neutrino.tracing.percent import percent
from neutrino.tracing.summary import KeySummary
from tests.tracing.analyses.test_findings import found_in, key, of_keys, only, timed
from tests.tracing.trace_writer import BLOCK_SCHED, GMEM_BYTES, TraceWriter, fill_regions, make_map

WORK = make_map("Work", "array", "warp", {"copy": "u32", "tensor": "u32", "store": "u32", "waited": "u32"})


@pytest.mark.parametrize("waited", [(700, 100, 100, 900), (700, 400, 400, 900)])
def test_who_waits_for_whom_is_said_by_roles(waited: tuple[int, ...], tmp_path: Path) -> None:
    kinds = [(64, 0, 0), (0, 32, 8), (0, 32, 8), (0, 0, 4)]
    rows = [(*kind, wait) for kind, wait in zip(kinds, waited, strict=True)]
    lives = [(1000, 1000, 0), (1000, 1000, 0), (1000, 1000, 0), (1500, 1000, 0)]
    writer = TraceWriter(tmp_path / "t", device="NVIDIA H200")
    writer.kernel(1, "gemm", maps=[WORK, BLOCK_SCHED])
    values = {"Work": rows * 2, "BlockSched": lives * 2}
    writer.launch(1, (2, 1, 1), (128, 1, 1), fill_regions([WORK, BLOCK_SCHED], 4, values, blocks=2))
    finding = only(found_in(writer.write()), "roles")
    assert finding.value("named") == "producer 1, mma 2, epilogue 1"
    assert (finding.value("critical"), finding.value("most_waiting")) == ("mma", 0.9)
    assert finding.value("critical_waiting") == waited[1] / 1000
    # Together from 1000 to 2000, the epilogue alone until 2500.
    assert finding.value("overlap") == pytest.approx(1000 / 1500)
    assert finding.state is (State.MINOR if waited[1] == 400 else State.OK)
    assert bool(finding.remedies) == (waited[1] == 400)
    assert f"mma (2 warps), which waits {percent(waited[1] / 1000)} of its time" in finding.sentence
    assert finding.certainty.is_timed


def test_where_no_load_takes_long_none_is_a_place_to_look(tmp_path: Path) -> None:
    for mean, state in ((399, State.OK), (400, State.MINOR)):
        loads = ("PerLoad", [key(7, 10, 10, 1, 1), key(8, 10, 10 * mean, 30, 500)])
        finding = only(of_keys(tmp_path / str(mean), "NVIDIA H200", loads), "latency")
        assert finding.value("concentrated") > 0.99
        assert finding.state is state


@pytest.mark.parametrize(
    ("instruction", "state"),
    [
        ("ld.global.u32 %r1, [%rd1];", State.OK), ("st.global.u32 [%rd1], %r1;", State.OK),
        ("@%p1 red.global.add.u32 [%rd1], 1;", State.MINOR), ("{ atom.add.u32 %r1, [%rd1], 1;", State.MINOR),
        ("global_atomic_add v0, v1, s[0:1]", State.MINOR), ("global_load_dword v0, v1, s[0:1]", State.OK),
        # The manifest does not tell.
        ("", State.MINOR),
    ],
)
def test_a_hot_line_matters_where_there_are_atomics(instruction: str, state: State, tmp_path: Path) -> None:
    table = ("HotLines", [KeySummary(256 * line, 100 if line else 10_000, {}, "", "") for line in range(5)])
    sites = [{"site": 0, "probe": "p", "tracepoint": "x", "line": 1, "instruction": instruction}] * bool(instruction)
    finding = only(of_keys(tmp_path / "t", "NVIDIA H200", table, sites=sites), "hot_addresses")
    assert finding.value("top_over_median") == 100
    assert finding.state is state
    assert ("no atomics" in finding.sentence) == (state is State.OK)


@pytest.mark.parametrize(("errors", "ratio", "state"), [((1_000, 50), 60, State.MINOR), ((9_900, 100), 0.5, State.OK)])
def test_a_hot_line_of_estimates_is_judged_by_what_is_sure(
    errors: tuple[int, int], ratio: float, state: State, tmp_path: Path
) -> None:
    first, others = errors
    rows = [KeySummary(256 * line, 100 if line else 10_000, {"error": others if line else first}, "", "")
            for line in range(5)]  # fmt: skip
    finding = only(of_keys(tmp_path / "t", "NVIDIA H200", ("HotLines", rows)), "hot_addresses")
    assert finding.value("top_over_median") == ratio
    assert finding.state is state
    assert f"10,000 ± {first:,} accesses, at least" in finding.sentence


@pytest.mark.parametrize(
    ("error", "word"),
    [(0, "high"), (1_000, "high"), (1_001, "medium"), (4_999, "medium"), (5_000, "low"), (9_999, "low")],
)
def test_how_sure_estimates_are_follows_from_their_error(error: int, word: str, tmp_path: Path) -> None:
    counts = [(10_000, error), (100, 0), (100, 0)]
    rows = [KeySummary(256 * line, count, {"error": of}, "", "") for line, (count, of) in enumerate(counts)]
    sure = only(of_keys(tmp_path / "t", "NVIDIA H200", ("HotLines", rows)), "hot_addresses").certainty
    said = "; ".join(sure.sentences())
    assert sure.word == word
    assert ("exact" in said) == (not error)
    assert (f"estimates, that of the largest within ± {percent(error / 10_000)}" in said) == bool(error)


def test_a_line_whose_error_is_its_count_is_not_called_hot(tmp_path: Path) -> None:
    rows = [KeySummary(256 * line, 1_280, {"error": 2_209}, "", "") for line in range(5)]
    finding = only(of_keys(tmp_path / "t", "NVIDIA H200", ("HotLines", rows)), "hot_addresses")
    assert finding.sentence.startswith("no line is known to be hot: that with most accesses has 1,280 ± 2,209")
    assert [figure.kind.name for figure in finding.figures] == ["lines"]
    assert (finding.certainty.word, finding.state) == ("low", State.OK)


def test_times_of_some_loads_are_said_to_be_estimates(tmp_path: Path) -> None:
    row = KeySummary(7, 160, {"sum": 160_000, "min": 900, "max": 1_100, "error": 40}, "", "")
    finding = only(of_keys(tmp_path / "t", "NVIDIA H200", ("PerLoad", [row])), "latency")
    assert "counts are estimates, that of the largest within ± 25" in "; ".join(finding.certainty.sentences())


@pytest.mark.parametrize("lost", [0, 5])
def test_counts_of_which_some_were_lost_are_not_exact(lost: int) -> None:
    sentences = Certainty(1, 1, 0, Coverage(1, 1, 1, 1, 0, {}), saved=10_000, lost=lost).sentences()
    assert ("counts are exact, whatever the probes cost" in sentences) == (not lost)
    assert ("counts may be that much too low" in sentences) == bool(lost)


@pytest.mark.parametrize(
    ("ordinary", "loads", "size", "state"),
    [
        # As a softmax has: six operations on each element, by vectors of four; and a product by tiles.
        (6_000, 500, 8_000, State.OK), (32_000, 500, 8_000, State.MINOR), (31_999, 500, 8_000, State.OK),
        # Without bytes.
        (8_000, 500, 0, State.MINOR), (7_999, 500, 0, State.OK),
        # Each operation has loads of its own, from shared memory.
        (32_000, 16_000, 8_000, State.OK),
    ],
)  # fmt: skip
def test_what_may_be_a_product_is_told_from_what_reduces(
    ordinary: int, loads: int, size: int, state: State, tmp_path: Path
) -> None:
    names = ("fp16", "fp32", "fp64", "load", "store")
    mix = make_map("OpcodeMix", "sum", "thread", dict.fromkeys(names, "u64"))
    tensor = make_map("TensorOps", "sum", "thread", dict.fromkeys(("f16", "tf32"), "u64"))
    maps = [mix, tensor, GMEM_BYTES] if size else [mix, tensor]
    writer = TraceWriter(tmp_path / "t")
    writer.kernel(1, "k", maps=maps)
    rows = {"OpcodeMix": (0, ordinary, 0, loads, 0), "TensorOps": (0, 0), "GmemBytes": (size, 0, 0, 0, 0)}
    values = {name: [row] + [(0,) * len(row)] * (copies_in(1) - 1) for name, row in rows.items()}
    writer.launch(1, (1, 1, 1), (32, 1, 1), fill_regions(maps, 1, values))
    assert only(found_in(writer.write()), "tensor_cores").state is state


def test_bytes_that_memory_cannot_move_are_those_of_caches(tmp_path: Path) -> None:
    """Threads ask for 71 MB in 10 µs, in which an H200's memory moves 48: what it did move is not known."""
    mix = make_map("OpcodeMix", "sum", "thread", dict.fromkeys(("fp16", "fp32", "fp64"), "u64"))
    maps = [GMEM_BYTES, mix]
    writer = TraceWriter(tmp_path / "t")
    writer.kernel(1, "gemm", maps=maps)
    rows = {"GmemBytes": (71_000_000, 0, 0, 0, 0), "OpcodeMix": (0, 66_900_000, 0)}
    values = {name: [row] + [(0,) * len(row)] * (copies_in(1) - 1) for name, row in rows.items()}
    writer.launch(1, (2, 1, 1), (32, 1, 1), fill_regions(maps, 1, values))
    finding = only(found_in(timed(writer.write(), 10_000, 10_000)), "roofline")
    assert (finding.value("side"), finding.value("reached"), finding.state) == ("either", None, State.OK)
    assert finding.value("cached") == pytest.approx(1 - 48 / 71)
    assert "of the limit of arithmetic it reaches 20 %" in finding.sentence


def test_waiting_is_of_the_time_without_probes_if_that_is_known(tmp_path: Path) -> None:
    """Warps live 80,000 cycles, in a kernel that takes eight times as long with the probes, and wait 2,000."""
    waits = [KeySummary(3, 10, {"sum": 2_000, "min": 0, "max": 300}, "k.cu:3", "bar.sync 0;")]
    for name, ratio in (("alone", 1), ("measured", 8)):
        path = tmp_path / name
        findings = of_keys(path, "NVIDIA H200", ("PerWait", waits), elapsed=80_000, benchmark=(1_000, ratio * 1_000))
        finding = only(findings, "barrier_wait")
        assert finding.value("share") == pytest.approx(ratio * 2_000 / 80_000)
        assert "take without probes" in finding.sentence
    finding = only(of_keys(tmp_path / "u", "NVIDIA H200", ("PerWait", waits), elapsed=80_000), "barrier_wait")
    assert finding.value("share") == 2_000 / 80_000
    assert any("without them the share is larger" in caveat for caveat in finding.certainty.caveats)
