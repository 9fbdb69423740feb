"""The verdicts on the committed results, and that each broken bound and missing case is caught and named."""

from __future__ import annotations

import functools
import json
import pickle
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import verdicts
from bench.cases import SUBMIT_MODES, WARM, WORKLOADS, Mode
from bench.verdicts import RESULTS, Verdict, judge
from tests.bench.good_results import good_results

Json = Any
ROOT = Path(__file__).parents[2]
REQUIRED = [entry for entry in WORKLOADS if entry.required]


@functools.cache
def _was_committed() -> bool:
    if not shutil.which("git") or not (ROOT / ".git").exists():
        return False
    done = subprocess.run(
        ["git", "log", "-1", "--format=%h", "--", str(RESULTS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return bool(done.stdout.strip())


def _committed() -> dict[str, Json]:
    if not RESULTS.exists() and not _was_committed():
        pytest.skip(f"{RESULTS.name}: no GPU run has been committed yet")
    results: dict[str, Json] = json.loads(RESULTS.read_text())
    return results


def bad(results: dict[str, Json]) -> list[Verdict]:
    return [verdict for verdict in judge(results) if not verdict.good]


@functools.cache
def _kept(which: str) -> tuple[bytes, frozenset[str]]:
    """Results, pickled, which is the quickest to copy from; the cases that are bad in them as they are."""
    results = good_results() if which == "made up" else _committed()
    return pickle.dumps(results), frozenset(verdict.case for verdict in bad(results))


@pytest.fixture(params=["made up", "committed"])
def which(request: pytest.FixtureRequest) -> str:
    """The results to break."""
    name: str = request.param
    return name


def test_committed_results_meet_every_bound() -> None:
    assert bad(_committed()) == []


def test_a_run_without_faults_meets_every_bound() -> None:
    assert bad(good_results()) == []


def test_the_required_cases_are_those_of_the_issue() -> None:
    names = {entry.name for entry in REQUIRED}
    assert names >= {
        "vecadd", "reduction", "softmax", "matmul", "histogram", "half", "triton_softmax", "triton_matmul",
        "triton_layernorm", "variables", "shapes", "streams", "reload", "spin", "graph", "cupy_vecadd",
        "clocks",
    }  # fmt: skip
    for entry in REQUIRED:
        assert {Mode.PLAIN, Mode.BLOCK_SCHED, Mode.GMEM_BYTES} <= set(entry.modes)
        assert entry.seeds >= 20 or entry.name == "spin"
    assert set(SUBMIT_MODES) >= {"plain", "not_probed", "block_sched"}
    assert len(WARM) >= 2


def _row(results: dict[str, Json], name: str, mode: str, index: int = -1) -> tuple[list[Json], list[str]]:
    trace = results["runs"][name][mode]["trace"]
    return trace["rows"][index], trace["columns"]


def _set(name: str, mode: str, column: str, change: Callable[[Json], Json]) -> Callable[[dict[str, Json]], None]:
    def mutate(results: dict[str, Json]) -> None:
        row, columns = _row(results, name, mode)
        index = columns.index(column)
        row[index] = change(row[index])

    return mutate


def _probed_kernel(results: dict[str, Json], name: str, mode: str) -> dict[str, Json]:
    kernels: list[dict[str, Json]] = results["runs"][name][mode]["trace"]["kernels"]
    return next(kernel for kernel in kernels if kernel["reason"] == "probed")


def _unfuse(results: dict[str, Json]) -> None:
    for mode in ("block_sched", "gmem_bytes", "both"):
        for kernel in results["runs"]["half"][mode]["trace"]["kernels"]:
            if kernel["name"] == "pairs_half2":
                kernel["numerics"]["original"].pop("HFMA2")
                kernel["numerics"]["twin"].pop("HFMA2")


def _at(path: str, value: Json) -> Callable[[dict[str, Json]], None]:
    """Set what a path of keys and indices leads to; DELETE removes it."""

    def mutate(results: dict[str, Json]) -> None:
        *parts, last = [int(part) if part.lstrip("-").isdigit() else part for part in path.split("/")]
        target: Json = results
        for part in parts:
            target = target[part]
        if value is DELETE:
            del target[last]
        else:
            target[last] = value

    return mutate


def _copied(**counts: int) -> Callable[[dict[str, Json]], None]:
    """A kernel with nothing to fuse, of which the twin has these counts and the original one FADD."""

    def mutate(results: dict[str, Json]) -> None:
        kernel = _probed_kernel(results, "reduction", "block_sched")
        kernel["numerics"] = {"original": {"FADD": 1}, "twin": counts, "own": {}, "contractible": False}

    return mutate


DELETE = object()
_SAMPLES = "runs/clocks/block_sched/trace/clocks"

MUTATIONS: dict[str, tuple[str, Callable[[dict[str, Json]], None]]] = {
    "another GPU": ("provenance", _at("device/device", "NVIDIA A100")),
    "no driver": ("provenance", _at("driver", "")),
    "no tree": ("provenance", _at("tree", "abc")),
    "interrupted": ("provenance", _at("interrupted", True)),
    "not built": ("build", _at("build_failures", {"half": "error"})),
    "one bit of one output": ("vecadd: outputs", _at("runs/vecadd/gmem_bytes/outputs/7", "0" * 32)),
    "a seed less": ("softmax: outputs", _at("runs/softmax/block_sched/outputs/-1", DELETE)),
    "the same seed over": ("matmul: outputs", _at("runs/matmul/plain/outputs", ["1" * 32] * 20)),
    "a wrong result": ("histogram: outputs", _at("runs/histogram/plain/checks", "bins[3] is 1, expected 2")),
    "a crash": ("shapes: outputs", _at("runs/shapes/block_sched/exit", -11)),
    "a hang": ("reduction: outputs", _at("runs/reduction/both/timed_out", True)),
    "other stdout": ("graph: outputs", _at("runs/graph/gmem_bytes/stdout", "0" * 32)),
    "a launch less": ("variables: outputs", _at("runs/variables/gmem_bytes/launches", 59)),
    "no time for it": ("exits: outputs", _at("runs/exits/gmem_bytes", {"not_run": "budget"})),
    "no trace": ("vecadd: block_sched", _at("runs/vecadd/block_sched/trace", DELETE)),
    "a broken trace": (
        "vecadd: block_sched",
        _at("runs/vecadd/block_sched/trace", {"trace_error": "E\nTraceError"}),
    ),
    "an open trace": ("softmax: gmem_bytes", _at("runs/softmax/gmem_bytes/trace/complete", False)),
    "foreign launches": ("reload: gmem_bytes", _at("runs/reload/gmem_bytes/trace/unmatched", 1)),
    "a row less": ("streams: gmem_bytes", _at("runs/streams/gmem_bytes/trace/rows/-1", DELETE)),
    "no data": ("shapes: block_sched", _set("shapes", "block_sched", "records", lambda _: None)),
    "a slot less": ("shapes: block_sched", _set("shapes", "block_sched", "records", lambda n: n - 1)),
    "an empty slot": ("vecadd: both", _set("vecadd", "both", "zero_start", lambda _: 1)),
    "no time elapsed": ("half: block_sched", _set("half", "block_sched", "zero_elapsed", lambda _: 1)),
    "longer than the launch": (
        "matmul: block_sched",
        _set("matmul", "block_sched", "elapsed_max", lambda n: n * 10**6),
    ),
    "spread too wide": (
        "matmul: block_sched",
        _set("matmul", "block_sched", "span_max", lambda n: n * 10**6),
    ),
    "an SM that is not": ("softmax: block_sched", _set("softmax", "block_sched", "sm_max", lambda _: 132)),
    "an SM never seen": (
        "triton_softmax: block_sched",
        _set("triton_softmax", "block_sched", "sm_seen", lambda _: 1),
    ),
    "more SMs than blocks": ("spaces: block_sched", _set("spaces", "block_sched", "sm_seen", lambda _: 133)),
    "too many at once": ("vecadd: block_sched", _set("vecadd", "block_sched", "resident_max", lambda _: 65)),
    "a byte more loaded": ("vecadd: gmem_bytes", _set("vecadd", "gmem_bytes", "got_load", lambda n: n + 1)),
    "a byte less stored": ("exits: gmem_bytes", _set("exits", "gmem_bytes", "got_store", lambda n: n - 1)),
    "atomics": ("histogram: gmem_bytes", _set("histogram", "gmem_bytes", "got_atomic", lambda n: n + 4)),
    "copies": (
        "triton_matmul: gmem_bytes",
        _set("triton_matmul", "gmem_bytes", "got_async", lambda n: n - 16),
    ),
    "uncounted": (
        "triton_layernorm: gmem_bytes",
        _set("triton_layernorm", "gmem_bytes", "uncounted", lambda _: 1),
    ),
    "no bytes column": ("vecadd: gmem_bytes", lambda results: _row(results, "vecadd", "gmem_bytes")[1].pop()),
    "fused differently": (
        "half: gmem_bytes",
        lambda results: _probed_kernel(results, "half", "gmem_bytes")["numerics"]["twin"].update(FADD=1),
    ),
    "another kind of arithmetic": ("reduction: block_sched", _copied(FADD=1, FFMA=1)),
    "a kind of arithmetic lost": ("reduction: block_sched", _copied(FMUL=0)),
    "no registers": (
        "variables: block_sched",
        lambda results: _probed_kernel(results, "variables", "block_sched").update(registers=None),
    ),
    "no spills": (
        "spaces: gmem_bytes",
        lambda results: _probed_kernel(results, "spaces", "gmem_bytes").update(spills={"original": None, "twin": None}),
    ),
    "nothing to fuse": ("half: fused pairs", _unfuse),
    "capture not listed": (
        "graph: block_sched",
        lambda results: _probed_kernel(results, "graph", "block_sched")["counters"].pop("graph"),
    ),
    "nothing probed": ("cupy_vecadd: block_sched", _at("runs/cupy_vecadd/block_sched/trace/kernels", [])),
    "on another SM": ("clocks: bracketed", _at(f"{_SAMPLES}/samples/0/5", 10_000)),
    "started after": ("clocks: bracketed", _at(f"{_SAMPLES}/samples/0/3", 1 << 62)),
    "one warp late": ("clocks: bracketed", _at(f"{_SAMPLES}/rows/0/2", 1)),
    "no samples": ("clocks: bracketed", _at(f"{_SAMPLES}/samples", [])),
    "one after the other": ("streams: at once", _at("runs/streams/block_sched/trace/overlaps", [0] * 20)),
    "no further launches": ("spin: ends", _at("runs/spin/block_sched/extra/further_each", 8)),
    "a round that hung": ("spin: ends", _at("runs/spin/gmem_bytes/extra/spun_ms/-1", DELETE)),
    "few reloads": ("reload: same address", _at("runs/reload/block_sched/extra/rounds", 5)),
    "ptxas again": ("vecadd: second run", _at("warm/vecadd/ptxas_started", 1)),
    "patcher again": ("matmul: second run", _at("warm/matmul/imported", ["neutrino.patch"])),
    "slow cache": ("triton_softmax: second run", _at("warm/triton_softmax/trace/images/0/3", 5.1)),
    "not cached": ("vecadd: second run", _at("warm/vecadd/trace/images/0/2", False)),
    "no image": ("vecadd: second run", _at("warm/vecadd/trace/images", [])),
    "slow submission": (
        "submit: block_sched",
        lambda results: [run["extra"].update(submit_us=[9.0] * 5) for run in results["submit"]["block_sched"]],
    ),
    "slow though not probed": (
        "submit: not_probed",
        lambda results: [run["extra"].update(submit_us=[4.5] * 5) for run in results["submit"]["not_probed"]],
    ),
    "a process less": ("submit: plain", _at("submit/plain/-1", DELETE)),
    "launches lost": (
        "submit: gmem_bytes",
        _at("submit/gmem_bytes/0/trace/kernels/0/counters", {"probed": 5}),
    ),
    "probed after all": (
        "submit: not_probed",
        _at("submit/not_probed/0/trace/kernels/0/counters", {"probed": 1, "not-selected": 119_999}),
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_fault_is_caught_under_its_case(which: str, name: str) -> None:
    case, mutate = MUTATIONS[name]
    pickled, before = _kept(which)
    assert case not in before, "the case is already bad: nothing is shown"
    broken = pickle.loads(pickled)
    mutate(broken)
    assert case in {verdict.case for verdict in bad(broken)}


def test_code_may_be_copied_where_nothing_can_be_fused() -> None:
    results = good_results()
    _copied(FADD=7)(results)
    assert bad(results) == []


def test_a_watch_that_sees_nothing_is_caught(which: str) -> None:
    results = pickle.loads(_kept(which)[0])
    for modes in results["runs"].values():
        for run in modes.values():
            run["ptxas_started"], run["imported"] = 0, []
    assert "first runs" in {verdict.case for verdict in bad(results)}


@pytest.mark.parametrize("entry", REQUIRED, ids=lambda entry: entry.name)
def test_a_missing_workload_is_named(entry: Any) -> None:
    results = good_results()
    del results["runs"][entry.name]
    assert f"{entry.name}: outputs" in {verdict.case for verdict in bad(results)}


def test_every_verdict_depends_on_the_results() -> None:
    empty = judge({})
    assert len(empty) == len(judge(good_results()))
    assert not any(verdict.good for verdict in empty)


def test_the_command_names_what_is_bad(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = good_results()
    path = tmp_path / "road.json"
    path.write_text(json.dumps(results))
    assert verdicts.main([str(path)]) == 0
    del results["submit"]["block_sched"]
    path.write_text(json.dumps(results))
    assert verdicts.main([str(path)]) == 1
    assert "FAIL submit: block_sched" in capsys.readouterr().out
    assert verdicts.main([str(tmp_path / "none.json")]) == 2
