"""What bench.findings reads of Nsight Compute's pages, and what it says of recorded samples."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from bench import accesses, findings
from bench.findings_ncu import read
from bench.findings_verdicts import (
    CRITERIA,
    KERNELS,
    RUNS,
    UNLIKE,
    Criterion,
    criteria_lines,
    judge,
    rows,
    table,
    unlike_lines,
)
from bench.tree import ROOT
from neutrino.tracing.analyses.registry import ANALYSES

LISTED = dict(UNLIKE)
"""Of the committed samples; most tests have none."""
_SAMPLES = "Warp Stall Sampling (All Samples)"
_RAW = '''==PROF== Connected to process 7
"ID","Process ID","Kernel Name","Block Size","sm__cycles_active.avg","launch__func_cache_config","dram__bytes.sum"
"","","","","cycle","","byte"
"0","7","gemm","(128, 1, 1)","1,234.5","CachePreferNone","3e6"
"1","7","pool","(128, 1, 1)","12","CachePreferNone","n/a"
'''
_PAGE = '''"Kernel Name","{name}"
"#","Source","# Samples","stall_barrier","L2 Theoretical Sectors Global","Live Registers"
"1","      LDG.E R2, [R4.64]","{one}","0","1,024","7"
"2","@!P0 LDG.E.64 R2, [R4.64]","2","0","16","9"
"3","BAR.SYNC.DEFER_BLOCKING 0x0","5","4","0","9"
'''


def test_pages_of_ncu_are_read() -> None:
    pages = _PAGE.format(name="gemm", one=3) + _PAGE.format(name="pool", one=0)
    gemm, pool = read(_RAW, pages)
    assert (gemm["kernel"], pool["kernel"]) == ("gemm", "pool")
    assert gemm["metrics"] == {"sm__cycles_active.avg": 1234.5, "dram__bytes.sum": 3e6}
    assert pool["metrics"] == {"sm__cycles_active.avg": 12}
    assert gemm["opcodes"] == {
        "LDG": {"# Samples": 5, "L2 Theoretical Sectors Global": 1040}, "BAR": {"# Samples": 5, "stall_barrier": 4},
    }  # fmt: skip
    assert pool["opcodes"]["LDG"]["# Samples"] == 2


def test_pages_of_other_launches_are_refused() -> None:
    with pytest.raises(ValueError, match="the pages differ"):
        read(_RAW, _PAGE.format(name="gemm", one=3))
    with pytest.raises(ValueError, match="no CSV in '==ERROR=="):
        read("==ERROR== no permission\n", "")


def test_what_is_said_and_what_nsight_has_are_told_apart() -> None:
    plain = Criterion("", lambda profile: 0, 0.2)
    assert [plain.outcome(said, value) for said in (True, False) for value in (0.19, 0.2)] == [
        "false alarm", "agree", "agree", "missed",
    ]  # fmt: skip
    below = Criterion("", lambda profile: 0, 60, below=True, slack=0.25)
    assert [below.outcome(True, value) for value in (75, 76)] == ["agree", "false alarm"]
    assert [below.outcome(False, value) for value in (46, 45)] == ["agree", "missed"]
    assert Criterion("", lambda profile: 0, 0.2, only_denies=True).outcome(False, 0.9) == "agree"


def test_every_analysis_is_judged() -> None:
    assert {*CRITERIA, "first_nan", "roles"} == {*ANALYSES}
    assert [name for run in RUNS for name in run.analyses if name not in ANALYSES] == []
    assert {name for run in RUNS for name in run.analyses} == {*ANALYSES}


@pytest.fixture(scope="module")
def good() -> Any:
    """Samples in which nothing is said, and nothing is to say."""
    metrics = {
        "sm__cycles_active.avg": 95, "sm__cycles_active.max": 100, "lts__t_sectors.max": 11, "lts__t_sectors.avg": 10,
        "sm__warps_active.avg.pct_of_peak_sustained_active": 60, "sm__maximum_warps_per_active_cycle_pct": 100,
        "sm__inst_executed_pipe_tensor.sum": 5,
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": 80,
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": 30,
        "smsp__sass_branch_targets_threads_divergent.sum": 1, "smsp__sass_branch_targets.sum": 100,
        "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio": 1,
        "smsp__average_warps_issue_stalled_long_scoreboard_not_issued_per_issue_active.ratio": 90,
        "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio": 9,
    }  # fmt: skip
    opcodes = {
        "LDG": {_SAMPLES: 90, "L2 Theoretical Sectors Global": 10, "L2 Theoretical Sectors Global Ideal": 9},
        "LDS": {_SAMPLES: 9, "L1 Wavefronts Shared": 10, "L1 Wavefronts Shared Ideal": 9},
        "BAR": {_SAMPLES: 1, "stall_barrier": 1},
    }  # fmt: skip
    outputs = dict.fromkeys(KERNELS, "digest")
    runs = {
        run.name: {
            "outputs": outputs, "not_probed": [], "launches": {name: {"written": 3} for name in KERNELS},
            "findings": [
                {"analysis": analysis, "kernel": name, "state": "ok", "figures": {"side": "memory"}}
                for analysis in run.analyses for name in KERNELS
            ],
        }
        for run in RUNS
    }  # fmt: skip
    ncu = {name: {"metrics": metrics, "opcodes": opcodes} for name in KERNELS}
    return {"device": "a GPU", "driver": "1", "plain": outputs, "runs": runs, "ncu": ncu}


@pytest.fixture(autouse=True)
def _nothing_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries are of the committed samples."""
    for entry in list(UNLIKE):
        monkeypatch.delitem(UNLIKE, entry)


def faults(results: Any) -> list[str]:
    return [verdict.case for verdict in judge(results) if not verdict.good]


def test_good_samples_are_good(good: Any) -> None:
    assert faults(good) == []
    assert "uncoalesced" in table(good)


def _say(run: str, state: str = "issue", **figures: str) -> Any:
    """Return what changes a run's first finding."""
    return lambda results: results["runs"][run]["findings"][0].update(state=state, figures=figures)


_MEMORY, _ARITHMETIC = (
    f"{name}.avg.pct_of_peak_sustained_elapsed" for name in ("gpu__compute_memory_throughput", "sm__throughput")
)


def _have(metrics: dict[str, float]) -> Any:
    """Return what changes metrics of a kernel."""
    return lambda results: results["ncu"]["pool"]["metrics"].update(metrics)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_say("coalescing"), "uncoalesced"),
        (_say("shared", "minor"), "bank_conflicts"),
        (_say("branches"), "divergence"),
        (_say("hot"), "hot_addresses"),
        (_say("nan"), "first_nan"),
        (_say("accesses"), "access_patterns"),
        (_say("blocks"), "tail"),
        (_say("waits"), "barrier_wait"),
        (_say("latency"), "latency"),
        (_say("arithmetic"), "tensor_cores"),
        (_have({"sm__cycles_active.avg": 70}), "tail"),
        (_have({"smsp__sass_branch_targets_threads_divergent.sum": 20}), "divergence"),
        (_have({"lts__t_sectors.max": 21}), "hot_addresses"),
        (_have({_MEMORY: 20, _ARITHMETIC: 20}), "roofline"),
        (_have({_ARITHMETIC: 81}), "roofline's side"),
        (lambda results: results["ncu"]["pool"]["opcodes"]["BAR"].update(stall_barrier=40), "barrier_wait"),
        (lambda results: results["ncu"]["pool"]["opcodes"].update(LDG={_SAMPLES: 4}), "uncoalesced"),
        (lambda results: results["ncu"].pop("pool"), "uncoalesced"),
        (lambda results: results["runs"].update(nan={"failed": "exit status 1"}), "run nan"),
        (lambda results: results["runs"]["hot"]["outputs"].update(pool="other"), "run hot"),
        (lambda results: results["runs"]["hot"]["launches"].pop("pool"), "run hot"),
    ],
)
def test_each_fault_is_seen(good: Any, change: Any, named: str) -> None:
    results = copy.deepcopy(good)
    # Kernels share their samples in the fixture.
    results = {**results, "ncu": {name: copy.deepcopy(profile) for name, profile in results["ncu"].items()}}
    results["runs"] = {name: {**run, "outputs": dict(run["outputs"])} for name, run in results["runs"].items()}
    change(results)
    assert named in faults(results)


def test_what_is_listed_is_no_fault_until_it_agrees(good: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    results = copy.deepcopy(good)
    monkeypatch.setitem(UNLIKE, ("gemm", "uncoalesced"), "a reason")
    assert faults(results) == ["uncoalesced"]
    _say("coalescing")(results)
    assert faults(results) == []


def test_the_page_has_the_measured_latencies_of_memory() -> None:
    results = json.loads(accesses.RESULTS.read_text())
    near, far = (accesses.cycles(results, name)[1] for name in ("chase_l2", "chase_hbm"))
    page = " ".join((ROOT / "docs" / "findings.md").read_text().split())
    assert f"takes {near:.0f} cycles from L2 and {far:.0f} from memory" in page


def test_the_pages_list_criteria_and_what_is_unlike() -> None:
    UNLIKE.update(LISTED)
    for name, lines in (("bench/README.md", criteria_lines()), ("docs/findings.md", unlike_lines())):
        page = " ".join((ROOT / name).read_text().split())
        assert [line for line in lines if line not in page] == []


def test_the_page_says_how_many_agree() -> None:
    results = json.loads(findings.RESULTS.read_text())
    outcomes = [row.outcome for name in CRITERIA for row in rows(results, name)]
    sides = sum(analysis == "side" for _, analysis in LISTED)
    agree, every = outcomes.count("agree") + len(KERNELS) - sides, len(outcomes) + len(KERNELS)
    assert every - agree == len(LISTED)
    page = " ".join((ROOT / "docs" / "findings.md").read_text().split())
    assert f"{agree} of {every} agree" in page
