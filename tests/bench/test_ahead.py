"""The verdicts on patched libraries: recomputed from the committed run, and bad where a figure is."""

from __future__ import annotations

import copy
import json

import pytest

from bench.ahead_cases import ALL_PROBES, EMITTED, LIBRARIES, RECORDS, SEEDS, SUBMIT_PROCESSES, Way
from bench.ahead_verdicts import RESULTS, judge
from bench.measure import GMEM_COLUMNS, LAUNCH_COLUMNS, SCHED_COLUMNS
from tests.bench.good_results import DEVICE

SCHED = [64, 0, 0, 900, 1200, 20000, 21000, 31, 32, 2]
GMEM = [8000, 4000, 0, 0, 8000, 4000, 0, 0, 0]


def trace(probes: tuple[str, ...]) -> dict[str, object]:
    columns, row = list(LAUNCH_COLUMNS), ["work", [32, 1, 1], [64, 1, 1], 0.02]
    if "block_sched" in probes:
        columns, row = [*columns, *SCHED_COLUMNS], [*row, *SCHED]
    numerics = {"original": {"FFMA": 2}, "twin": {"FFMA": 2}, "own": {}}
    return {"complete": True, "unmatched": 0, "notes": [], "columns": [*columns, *GMEM_COLUMNS],
            "rows": [[*row, *GMEM] for _ in range(SEEDS)],
            "kernels": [{"name": "work", "reason": "probed", "numerics": numerics}]}  # fmt: skip


def run(way: Way) -> dict[str, object]:
    made = {"way": way.value, "exit": 0, "timed_out": False, "seconds": 1.0, "stdout": "s", "traces": 0, "checks": "ok",
            "outputs": [str(seed) for seed in range(SEEDS)], "launches": SEEDS,
            "extra": {"submit_us": [2.0, 2.1, 2.2]}, "torch": {"digests": ["t", "t", "t"]}}  # fmt: skip
    if way in RECORDS:
        made |= {"traces": 1, "trace": trace(("gmem_bytes",) if way is Way.OTHER else ALL_PROBES)}
    return made


def good() -> dict[str, object]:
    cases = {library.name: (Way.PLAIN, *library.ways) for library in LIBRARIES}
    cases |= {f"emit_{emit}": (Way.PLAIN, Way.STUB) for emit in EMITTED}
    cases |= {"loader": (Way.PLAIN, Way.BARE, Way.STUB, Way.COMMAND)}
    cases |= {f"torch_{name}": (Way.PLAIN, Way.BARE, Way.STUB) for name in ("vecadd", "linked")}
    patched = {"exit": 0, "check": 0, "kernels": 2, "reasons": {"probed": 2}, "seconds": 2.0}
    names = [f"{library.name}_both" for library in LIBRARIES] + [f"vecadd_emit_{emit}" for emit in EMITTED]
    used = {"exit": 0, "timed_out": False, "checks": "ok", "outputs": {f"f{index}": "o" for index in range(14)}}
    rows = [[f"kernel{index}", [32, 1, 1], [64, 1, 1], *SCHED] for index in range(14)]
    return {
        "device": DEVICE, "driver": "580.1", "tree": "0" * 64, "build_failures": {}, "link_failures": {},
        "patched": {name: dict(patched) for name in [*names, "vecadd_single", "submit_single"]},
        "runs": {name: {way.value: run(way) for way in ways} for name, ways in cases.items()},
        "submit": {mode: [run(Way.BARE) for _ in range(SUBMIT_PROCESSES)] for mode in ("plain", "bare")},
        "ctranslate2": {
            "patched": {**patched, "kernels": 540, "reasons": {"probed": 540}}, "plain": used,
            "stub": {**used, "trace": {"complete": True, "columns": ["kernel", "grid", "block", *SCHED_COLUMNS],
                                       "rows": rows}},
        },
    }  # fmt: skip


def test_good_figures_are_good():
    assert [verdict for verdict in judge(good()) if not verdict.good] == []


@pytest.mark.parametrize(
    ("path", "value", "case"),
    [
        (("device", "device"), "NVIDIA A100", "provenance"),
        (("patched", "linked_both", "reasons"), {"probed": 1, "unsupported": 1}, "patched"),
        (("patched", "half_both", "check"), 2, "patched"),
        (("runs", "vecadd", "bare", "outputs"), ["x"] * SEEDS, "vecadd: outputs"),
        (("runs", "vecadd", "hidden", "exit"), 1, "vecadd: outputs"),
        (("runs", "vecadd", "hidden", "traces"), 1, "vecadd: outputs"),
        (("runs", "vecadd", "stub", "traces"), 2, "vecadd: outputs"),
        (("runs", "vecadd", "other", "trace"), trace(ALL_PROBES), "vecadd: other"),
        (("runs", "histogram", "command", "trace", "rows", 1, -5), 8004, "histogram: command"),
        (("runs", "variables", "stub", "trace", "rows", 0, 4), 63, "variables: stub"),
        (("runs", "linked", "stub", "trace", "unmatched"), 1, "linked: stub"),
        (("runs", "loader", "stub", "launches"), SEEDS + 1, "loader: stub"),
        (("runs", "torch_vecadd", "stub", "torch", "digests"), ["t", "u", "t"], "torch: its own work"),
        (("submit", "bare", 0, "traces"), 1, "submit: not recording"),
        (("ctranslate2", "patched", "reasons"), {"probed": 539}, "ctranslate2: patched"),
        (("ctranslate2", "stub", "outputs"), {}, "ctranslate2: used"),
    ],
)
def test_a_bad_figure_is_named(path, value, case):
    results = copy.deepcopy(good())
    place = results
    for word in path[:-1]:
        place = place[word]
    place[path[-1]] = value
    assert case in {verdict.case for verdict in judge(results) if not verdict.good}


def test_a_slower_submission_is_bad():
    results = good()
    for one in results["submit"]["bare"]:
        one["extra"] = {"submit_us": [3.0, 3.0, 3.0]}
    assert [verdict.case for verdict in judge(results) if not verdict.good] == ["submit: not recording"]


def test_nothing_passes_by_being_absent():
    verdicts = judge({})
    assert len(verdicts) > 20
    assert not [verdict for verdict in verdicts if verdict.good]


@pytest.mark.skipif(not RESULTS.exists(), reason="the GPU run of the patched libraries is not committed")
def test_the_committed_run_is_good():
    assert [verdict for verdict in judge(json.loads(RESULTS.read_text())) if not verdict.good] == []
