"""What bench.overhead says of recorded samples."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from bench.overhead import COMPLETE, KERNELS, LIMITS, PLAIN, judge, summarize, table


@pytest.fixture(scope="module")
def good() -> Any:
    def run(times: float, launches: int) -> Any:
        return {
            "kernels": {name: {"ms": [times] * launches, "output": name} for name in KERNELS},
            "probed": dict.fromkeys(KERNELS, launches + 2), "originals": {},
            "logs": {name: {"records": 100, "dropped": 0, "bytes": 300} for name in KERNELS},
        }  # fmt: skip

    runs = {mode: [run(1.01, 6 if mode in COMPLETE else 20)] * 3 for mode in LIMITS}
    return {"device": "a GPU", "driver": "1", "runs": {PLAIN: [run(1.0, 20)] * 3, **runs}}


def faults(results: Any) -> list[str]:
    return [verdict.case for verdict in judge(summarize(results)) if not verdict.good]


def test_good_samples_are_good(good: Any) -> None:
    assert faults(good) == []
    assert "dmat" in table(summarize(good))


@pytest.mark.parametrize(
    ("mode", "change", "named"),
    [
        ("dmat", lambda run: run["kernels"]["gemm"].update(output="other"), "dmat: outputs"),
        (PLAIN, lambda run: run["kernels"]["gemm"].update(output="one two"), "plain: outputs"),
        ("latency", lambda run: run["probed"].update(pool=21), "latency: launches"),
        ("tensorop", lambda run: run["kernels"]["conv"].update(ms=[1.07] * 20), "tensorop: times"),
        ("inst_count", lambda run: run["kernels"]["conv"].update(ms=[2.2] * 20), "inst_count: times"),
        ("dmat", lambda run: run["logs"]["total"].update(dropped=1), "dmat: records"),
        ("dmat", lambda run: run["logs"]["gather"].update(bytes=5000), "dmat: records"),
    ],
)
def test_each_fault_is_seen(good: Any, mode: str, change: Any, named: str) -> None:
    results = copy.deepcopy(good)
    for index, run in enumerate(results["runs"][mode]):
        results["runs"][mode][index] = copy.deepcopy(run)
        change(results["runs"][mode][index])
    assert named in faults(results)
