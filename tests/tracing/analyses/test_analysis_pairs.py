"""Each analysis on two kernels, with the fault that it names and without it, on the embedded device."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from neutrino.tracing import Trace, find_traces, summarize
from neutrino.tracing.analyses.finding import Finding, State
from neutrino.tracing.analyses.registry import ANALYSES
from neutrino.tracing.analyses.run import findings_of

HERE = Path(__file__).parent
SMALL = (4, 128)
"""Grid and block of most launches: 16 warps."""
RUNS = {
    ("coalescing", "branch_divergence", "work_per_warp", "hot_lines", "atomic_contention", "nan_finder",
     "smem_bank_conflict", "tensorop", "opcode_mix", "gmem_bytes"): {
        f"{name}_{way}": SMALL
        for name in ("uncoalesced", "divergence", "imbalance", "hot_addresses", "first_nan", "bank_conflicts",
                     "tensor_cores", "roofline")
        for way in ("bad", "good")
    },
    ("latency",): {"latency_bad": SMALL, "latency_good": SMALL},
    ("barrier_wait", "warp_timeline"): {"barrier_wait_bad": SMALL, "barrier_wait_good": SMALL},
    # 264 blocks are two for each of 132 multiprocessors, which run 16 384 threads at once.
    ("block_sched",): {
        "scheduling_bad": (264, 1024), "scheduling_good": (16, 1024), "tail_bad": (32, 128), "tail_good": (32, 128)
    },
}  # fmt: skip


TIMED = {"latency": "concentrated", "barrier_wait": "share", "scheduling": "share", "tail": "idle"}
"""Analyses of times, which the embedded device has no durations for: the figures that would be judged on a GPU."""
PAIRED = dict.fromkeys(name.rpartition("_")[0] for launches in RUNS.values() for name in launches)
WITH_ROLES = {("dmat", "work_per_warp"): {"roles_even": SMALL, "roles_odd": SMALL}}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Finding]:
    """The findings of all pairs, by analysis and kernel."""
    return _found(tmp_path_factory.mktemp("pairs"), RUNS)


def _found(
    folder: Path, runs: Mapping[tuple[str, ...], Mapping[str, tuple[int, int]]]
) -> dict[tuple[str, str], Finding]:
    """The findings of runs with these probes, by analysis and kernel."""
    findings: dict[tuple[str, str], Finding] = {}
    for number, (probes, launches) in enumerate(runs.items()):
        words = [f"{name}:{grid}:{block}" for name, (grid, block) in launches.items()]
        options = [word for probe in probes for word in ("-p", probe)]
        if "latency" in probes:
            options += ["-D", "SAMPLE=1"]
        # Of so few accesses there would be hardly a sample.
        options += ["-D", "SAMPLE=1"] if "hot_lines" in probes else []
        traces = folder / str(number)
        subprocess.run(
            [sys.executable, "-m", "neutrino.cli.run", "--device", "embedded", "-q", "--tracedir", traces, *options,
             sys.executable, HERE / "launch_pairs.py", HERE / "pairs.ptx", *words],
            check=True, timeout=600, env=os.environ,
        )  # fmt: skip
        (trace,) = find_traces(traces)
        summary = summarize(Trace(trace))
        for finding in findings_of(summary).found:
            assert (finding.analysis, finding.name) not in findings
            findings[finding.analysis, finding.name] = finding
    return findings


@pytest.mark.parametrize("name", [name for name in PAIRED if name != "roofline"])
def test_the_fault_is_named_and_its_absence_is_not(name: str, found: dict[tuple[str, str], Finding]) -> None:
    bad, good = found[name, f"{name}_bad"], found[name, f"{name}_good"]
    states = [bad.state, good.state]
    if name in TIMED:
        assert {(one.state, one.word, one.remedies) for one in (bad, good)} == {(State.OK, "not judged", ())}
        assert any("no durations: not judged" in sentence for sentence in bad.certainty.sentences())
        values = [one.value(TIMED[name]) for one in (bad, good)]
        states = [ANALYSES[name].state({TIMED[name]: float(value or 0)}) for value in values]
    else:
        # Who reads that there is a fault reads what to do about it, and how to see it again.
        assert bad.remedies
        assert not good.remedies
    assert states == [State.MINOR if name == "latency" else State.ISSUE, State.OK], (bad, good)
    assert f"-k {name}_bad " in bad.command
    assert all(f"-p {probe}" in bad.command for probe in ANALYSES[name].probes[0])
    assert bad.certainty.launches == bad.certainty.launched == 1
    assert not bad.certainty.lost


def test_roles_have_work_of_their_own(tmp_path: Path) -> None:
    """A warp that copies does less than the others, which is no imbalance; one of the others that does more is."""
    found = _found(tmp_path, WITH_ROLES)
    for name, rounds in (("roles_even", 20), ("roles_odd", 200)):
        roles, imbalance = found["roles", name], found["imbalance", name]
        assert roles.value("named") == "producer 1, epilogue 3"
        # 7 before the loop, 3 in each round, 4 after it, less the branch that ends the loop: it is not taken.
        work = [7 + 3 * count - 1 + 4 for count in (rounds, 20, 20)]
        assert imbalance.value("greatest") == work[0]
        assert imbalance.value("greatest_over_mean") == pytest.approx(max(3 * work[0] / sum(work), 1))
        assert imbalance.state is (State.OK if name == "roles_even" else State.ISSUE)
        assert "mean of its role's" in imbalance.sentence


def test_memory_and_arithmetic_are_told_apart(found: dict[tuple[str, str], Finding]) -> None:
    bad, good = found["roofline", "roofline_bad"], found["roofline", "roofline_good"]
    assert (bad.value("side"), good.value("side")) == ("memory", "arithmetic")
    # 512 threads load and store 4 bytes, and add once; they load 4 bytes, and multiply and add 512 times.
    assert (bad.value("bytes"), bad.value("intensity"), bad.value("intensity_least")) == (4096, 0.25, 0.125)
    assert (good.value("bytes"), good.value("operations"), good.value("intensity")) == (2048, 512 * 512 * 2, 256)


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        # 16 warps load and store once each, every lane from a line of its own.
        ("uncoalesced_bad", {"requests": 32, "sectors": 1024, "sectors_per_request": 32, "wasted": 0.875}),
        ("uncoalesced_good", {"requests": 32, "sectors": 128, "sectors_per_request": 4, "wasted": 0}),
        ("divergence_bad", {"branches": 16, "diverged": 16, "share": 1}),
        ("divergence_good", {"branches": 16, "diverged": 0, "share": 0}),
        ("first_nan_bad", {"nan_count": 512, "instructions": 1}),
        ("first_nan_good", {"nan_count": 0, "instructions": 0}),
        ("bank_conflicts_bad", {"ways": 32, "least": 16, "wavefronts": 512}),
        ("bank_conflicts_good", {"ways": 1, "least": 16, "wavefronts": 16}),
        ("hot_addresses_bad", {"lanes_per_address": 32, "lines": 1, "top": 512}),
        ("hot_addresses_good", {"lanes_per_address": 1, "lines": 16, "top": 32}),
        # 3 instructions before the loop and 3 in each round; the end, at which the probe saves, does not count.
        ("imbalance_bad", {"greatest": 303, "waiting": 1 - (303 + 3 * 6) / (4 * 303)}),
        ("imbalance_good", {"greatest": 31, "waiting": 0, "greatest_over_mean": 1}),
        # 16 products of 16 x 8 x 16 by each of 16 warps.
        ("tensor_cores_good", {"operations": 16 * 16 * 2 * 16 * 8 * 16}),
        ("tensor_cores_bad", {"operations": 0, "ordinary": 512 * 32, "share": 0, "half_without": 1}),
    ],
)  # fmt: skip
def test_figures_are_exact(name: str, figures: dict[str, float], found: dict[tuple[str, str], Finding]) -> None:
    finding = found[name.rpartition("_")[0], name]
    assert {figure: finding.value(figure) for figure in figures} == pytest.approx(figures, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "instruction"),
    [
        ("uncoalesced_bad", "global.f32"), ("first_nan_bad", "sqrt.rn.f32"), ("latency_bad", "ld.global.u32 %y"),
        ("barrier_wait_bad", "bar.sync"), ("hot_addresses_bad", "red.global.add.u32"),
    ],
)  # fmt: skip
def test_the_line_is_named(name: str, instruction: str, found: dict[tuple[str, str], Finding]) -> None:
    finding = found[name.rpartition("_")[0], name]
    place = finding.places[0]
    assert instruction in place.instruction
    lines = (HERE / "pairs.ptx").read_text().splitlines()
    assert place.instruction in lines[int(place.place.removeprefix("PTX line ")) - 1]
    assert place.place in finding.sentence
