"""The verdicts of ``bench.benchmark_option`` on planted times."""

from __future__ import annotations

import copy
from typing import Any

from bench.benchmark_option import DRAWN, PROBED, PROBES, judge, table
from bench.slowdown import KERNELS
from bench.verdicts import Verdict


def planted(apart: float, drawn: float) -> Any:
    """Results in which each kernel takes that many times as long by either measurement."""

    def run(ms: float) -> Any:
        return {"kernels": {name: {"ms": [ms] * 60, "output": name} for name in KERNELS}}

    row = {"originals": [1_000_000] * 30, "probed": [round(drawn * 1_000_000)] * 30, "warm_up": 2, "verdict": ""}
    benchmark = {"floor": 2000.0, "untimed": 0, "kernels": dict.fromkeys(KERNELS, row)}
    ways = {PROBED: [run(apart)] * 3, DRAWN: [run(1.1) | {"benchmark": benchmark}] * 3}
    probes = {probe: copy.deepcopy(ways) for probe in PROBES}
    return {"device": "GPU", "driver": "1", "plain": [run(1.0)] * 3, "probes": probes}


def bad(results: Any) -> list[Verdict]:
    return [verdict for verdict in judge(results) if not verdict.good]


def test_verdicts() -> None:
    assert not bad(planted(1.5, 1.515))
    assert len(judge(planted(1.5, 1.515))) == 1 + 3 * len(PROBES)
    assert "1.515/1.500" in table(planted(1.5, 1.515))
    # More than two points apart, in either direction.
    assert len(bad(planted(1.5, 1.525))) == len(bad(planted(1.5, 1.475))) == len(PROBES)
    results = planted(1.5, 1.5)
    results["probes"][PROBES[0]][DRAWN][1]["benchmark"]["untimed"] = 1
    results["probes"][PROBES[1]][PROBED][1]["kernels"]["matmul"]["output"] = "other"
    assert len(bad(results)) == 2
