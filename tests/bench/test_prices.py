"""What bench.prices says of recorded samples, and that its list of kernels is the program's."""

from __future__ import annotations

import ast
import copy
from typing import Any

import numpy as np
import pytest

from bench.prices import KERNELS, LIMITS, PROGRAM, SIZES, judge, summary, table
from neutrino.abi.benchmark_file import SAMPLE


@pytest.fixture(scope="module")
def good() -> Any:
    def run() -> Any:
        long = {"ns": [100_000.0, 100_500.0], "launches": [8, 8], "halves": [100_000.0, 100_100.0], "output": "x"}
        short = long | {"ns": [9_000.0, 9_200.0]}
        rows = {f"{name} {size}": copy.deepcopy(long if size == "large" else short)
                for size in SIZES for name in KERNELS}  # fmt: skip
        return {"seconds": 1.0, "rows": rows, "dropped": 0}

    return {"device": "a GPU", "driver": "1", "sizes": list(SIZES), "runs": {probe: run() for probe in LIMITS}}


def faults(results: Any) -> list[str]:
    return [verdict.case for verdict in judge(results) if not verdict.good]


def test_good_samples_are_good(good: Any) -> None:
    assert faults(good) == []
    assert not [verdict for verdict in judge(good) if verdict.missed]
    assert "dmat" in table(good)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda runs: runs["dmat"]["rows"]["gemm usual"].update(output="other"), "dmat: outputs"),
        (lambda runs: runs["block_sched"]["rows"]["gemm usual"].update(output="one two"), "block_sched: outputs"),
        (lambda runs: runs["latency"]["rows"]["pool large"].update(launches=[2, 14]), "latency: outputs"),
        (lambda runs: runs["latency"]["rows"].pop("pool large"), "latency: outputs"),
        (lambda runs: runs["dmat"].update(dropped=1), "dmat: outputs"),
        (lambda runs: runs["coalescing"].update(error="exit status 1"), "coalescing: outputs"),
    ],
)
def test_each_fault_is_seen(good: Any, change: Any, named: str) -> None:
    results = copy.deepcopy(good)
    change(results["runs"])
    assert named in faults(results)


@pytest.mark.parametrize(
    ("row", "probed", "wanted"),
    [
        ("gemm large", 106_000.0, "each 1.05"),
        ("gemm quarter", 9_400.0, "+0.3"),
    ],
)
def test_what_costs_more_than_is_wanted_is_missed(good: Any, row: str, probed: float, wanted: str) -> None:
    results = copy.deepcopy(good)
    results["runs"]["block_sched"]["rows"][row]["ns"][1] = probed
    (missed,) = [verdict for verdict in judge(results) if verdict.missed]
    assert missed.case == "block_sched: times"
    assert wanted in missed.figure


def test_probes_that_were_not_measured_are_named(good: Any) -> None:
    results = copy.deepcopy(good)
    del results["runs"]["coalescing"], results["runs"]["dmat"]
    (missed,) = [verdict for verdict in judge(results) if verdict.missed]
    assert missed.figure == f"{len(LIMITS) - 2} probes; not measured: coalescing, dmat"


def test_what_has_nothing_to_probe_counts_for_nothing(good: Any) -> None:
    results = copy.deepcopy(good)
    for size in SIZES:
        results["runs"]["tensorop"]["rows"][f"pool {size}"] = {"output": "x"}
    assert faults(results) == []


def test_the_kernels_are_those_of_the_program() -> None:
    (names,) = [node.value for node in ast.walk(ast.parse(PROGRAM.read_text()))
                if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "KERNELS"]  # fmt: skip
    assert isinstance(names, ast.Dict)
    written = [key.value for key in names.keys if isinstance(key, ast.Constant)]
    assert tuple(written) == KERNELS[: len(written)]


def test_a_row_has_the_samples_submitted_while_it_ran() -> None:
    samples = np.zeros(9, SAMPLE.dtype)
    samples["submit_ns"] = [30, 10, 11, 12, 13, 14, 15, 2, 50]
    samples["kind"] = [1, 0, 1, 0, 1, 1, 0, 1, 1]
    samples["elapsed_ns"] = [900, 70, 80, 100, 200, 220, 110, 900, 900]
    assert summary(samples, 10, 20) == {"ns": [105, 210], "launches": [2, 2], "halves": [100, 110]}
    assert summary(samples, 31, 60) == {}, "the first ones are not timed"
