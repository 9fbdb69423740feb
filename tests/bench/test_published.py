"""What bench.published says of recorded samples, and how it measures a launch's blocks."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import numpy as np
import pytest

from bench.published import (
    ACTIVE,
    ACTIVE_MOST,
    FILL,
    PAIRS,
    RESULTS,
    WARPS,
    judge,
    measured,
    read_counters,
    short,
    table,
)
from bench.tree import ROOT
from neutrino.tracing.analyses.block_times import gaps, places

MULTIPROCESSORS = 132
CASES = {
    "gemm": ("gemm_tiles", "gemm_small_tiles", "gemm_stream_k"), "attention": ("attention_one", "attention_two"),
    "fill": (FILL, "fill_published", "fill_persistent"), "attention_published": ("attention_one", "attention_two"),
}  # fmt: skip


def _launch(empty: int, idle: int, resident: int) -> Any:
    spans = {"count": MULTIPROCESSORS, "sum": MULTIPROCESSORS * (1000 - idle), "max": 1000}
    places_of_all = MULTIPROCESSORS * resident
    return {
        "blocks": 264, "empty": empty, "working": 1000, "places": places_of_all, "resident": resident, "spans": spans
    }  # fmt: skip


def _findings(kernel: str, launch: Any) -> list[Any]:
    share = launch["empty"] / (launch["empty"] + launch["working"])
    idle = 1 - launch["spans"]["sum"] / (MULTIPROCESSORS * launch["spans"]["max"])
    return [
        {
            "kernel": kernel, "analysis": "scheduling", "state": "issue" if share >= 0.15 else "ok", "remedies": ["a"],
            "sentence": "empty", "figures": {"share": share, "blocks_per_place": 2.0},
        },
        {
            "kernel": kernel, "analysis": "tail", "state": "issue" if idle >= 0.25 else "ok", "remedies": ["b"],
            "sentence": "idle", "figures": {"idle": idle, "waves": 1.0},
        },
    ]  # fmt: skip


@pytest.fixture(scope="module")
def good() -> Any:
    cases: Any = {}
    faulty = {pair.faulty for pair in PAIRS}
    for case, kernels in CASES.items():
        launches = {
            name: _launch(250 if name in faulty else 0, 400 if name in faulty else 10, 2 if name.endswith("two") else 1)
            for name in kernels
        }
        rows = {name: {"ms": [2.0 if name in faulty else 1.0] * 60, "outputs": [name], "grid": 264, "block": 128}
                for name in (*kernels, "torch")}  # fmt: skip
        report = {"multiprocessors": MULTIPROCESSORS, "torch": "2", "kernels": rows}
        profiled = [{"name": "zeros", "grid": [264, 1, 1], "block": [128, 1, 1]}]
        cases[case] = {
            "plain": {**report, "profiled": profiled}, "probed": copy.deepcopy(report),
            "launches": {name: [launch] * 8 for name, launch in launches.items()},
            "findings": [found for name, launch in launches.items() for found in _findings(name, launch)],
            "counters": [
                {
                    "kernel": short(name), "blocks": 264, ACTIVE: launch["spans"]["sum"] / MULTIPROCESSORS,
                    ACTIVE_MOST: 1000, WARPS: 50.0 if name in faulty else 90.0,
                }
                for name, launch in launches.items()
            ],
            "counts": [*([name, {"probed": 8}] for name in kernels), [FILL, {"no-ptx": 8}]],
        }  # fmt: skip
    return {"device": "a GPU", "driver": "1", "cases": cases}


def test_good_samples_are_good(good: Any) -> None:
    assert [(verdict.case, verdict.figure) for verdict in judge(good) if verdict.word != "ok"] == []
    assert "  tried: gemm_stream_k: 2000.0 → 1000.0 µs; then ok: idle" in table(good).splitlines()


def test_the_gallery_shows_the_record() -> None:
    page = (ROOT / "docs" / "gallery.md").read_text()
    figures, *found = table(json.loads(RESULTS.read_text())).split("\n\n")
    assert f"```text\n{figures}\n```" in page
    said = " ".join(page.split())
    assert len(found) == 4
    for one in found:
        before, after = re.findall(r"tried: \w+: ([\d.]+) → ([\d.]+) µs", one)[0]
        (share,) = re.findall(r" (\d+) % of (?:their time|a launch)", one.partition("\n  try:")[0].replace("\n   ", ""))
        assert f"{before} → {after} µs" in said
        assert f"{share} % " in said


def _set_state(case: Any, kernel: str, analysis: str, state: str) -> None:
    for found in case["findings"]:
        if (found["kernel"], found["analysis"]) == (kernel, analysis):
            found["state"] = state


@pytest.mark.parametrize(
    ("case", "change", "named", "word"),
    [
        ("gemm", lambda it: it["probed"]["kernels"]["gemm_tiles"].update(outputs=["x"]), "gemm: outputs", "FAIL"),
        ("gemm", lambda it: it["plain"]["kernels"]["gemm_tiles"].update(outputs=["x", "y"]), "gemm: outputs", "FAIL"),
        ("gemm", lambda it: it["counts"][0][1].update({"pool": 1}), "gemm: outputs", "FAIL"),
        ("gemm", lambda it: it["launches"]["gemm_tiles"][0].update(empty=251), "gemm: figures", "FAIL"),
        ("gemm", lambda it: it["launches"]["gemm_tiles"].pop(), "gemm: outputs", "FAIL"),
        ("gemm", lambda it: it["launches"]["gemm_tiles"][3].update(resident=2), "gemm: gemm_tiles: finding", "FAIL"),
        ("gemm", lambda it: it.update(failed="nvcc: no"), "gemm: figures", "FAIL"),
        ("fill", lambda it: it["plain"]["profiled"][0].update(grid=[263, 1, 1]), "fill: the kernel of PyTorch", "FAIL"),
        ("fill", lambda it: it["plain"].update(profiled="no profiler"), "fill: the kernel of PyTorch", "FAIL"),
        ("gemm", lambda it: it["counters"][0].update({ACTIVE: 700}), "gemm: gemm_tiles: Nsight Compute", "FAIL"),
        ("gemm", lambda it: it["counters"].pop(0), "gemm: gemm_tiles: Nsight Compute", "FAIL"),
        ("gemm", lambda it: it.update(counters="no ncu"), "gemm: gemm_tiles: Nsight Compute", "missed"),
        (
            "fill", lambda it: it["counters"][2].update({WARPS: 49.0}),
            "fill: vectorized_elementwise_kernel: Nsight Compute", "FAIL",
        ),
        (
            "attention", lambda it: _set_state(it, "attention_one", "tail", "ok"), "attention: attention_one: finding",
            "missed",
        ),
        (
            "attention", lambda it: it["plain"]["kernels"]["attention_two"].update(ms=[2.0] * 60),
            "attention: attention_one: gain", "missed",
        ),
        (
            "attention", lambda it: _set_state(it, "attention_two", "tail", "issue"),
            "attention: attention_one: finding", "ok",
        ),
    ],
)  # fmt: skip
def test_each_fault_is_seen(good: Any, case: str, change: Any, named: str, word: str) -> None:
    results = copy.deepcopy(good)
    # Launches share what the fixture made once.
    launches = results["cases"][case]["launches"]
    launches.update({name: [copy.deepcopy(launch) for launch in rows] for name, rows in launches.items()})
    change(results["cases"][case])
    assert {verdict.case: verdict.word for verdict in judge(results)}[named] == word


def test_a_remedy_after_which_the_fault_is_as_large_fails(good: Any) -> None:
    results = copy.deepcopy(good)
    case = results["cases"]["attention"]
    case["launches"]["attention_two"] = [_launch(0, 399, 2)] * 8
    case["findings"] = [
        *(found for found in case["findings"] if found["kernel"] != "attention_two"),
        *_findings("attention_two", _launch(0, 399, 2)),
    ]  # fmt: skip
    found = {verdict.case: verdict for verdict in judge(results)}
    assert found["attention: attention_one: finding"].figure.endswith("no weaker")


def test_counters_are_read_between_other_lines() -> None:
    titles = ["ID", "Kernel Name", "Block Size", "Grid Size", ACTIVE, ACTIVE_MOST, WARPS]
    rows = [
        ["", "", "", "", "cycle", "cycle", "%"],
        ["0", "gemm_tiles(half *, half *)", "(256, 1, 1)", "(136, 1, 1)", "170,123.5", "330,000", "12.4"],
        ["1", "attention_one", "(256, 1, 1)", "(12, 12, 1)", "1.5", "2", "25"],
    ]  # fmt: skip
    quoted = [",".join(f'"{cell}"' for cell in row) for row in (titles, *rows)]
    text = "\n".join(["==PROF== Connected to process 7", quoted[0], *quoted[1:], "==PROF== Disconnected"])
    assert read_counters(text) == [
        {"kernel": "gemm_tiles", "blocks": 136, ACTIVE: 170123.5, ACTIVE_MOST: 330000.0, WARPS: 12.4},
        {"kernel": "attention_one", "blocks": 144, ACTIVE: 1.5, ACTIVE_MOST: 2.0, WARPS: 25.0},
    ]  # fmt: skip
    with pytest.raises(ValueError, match="no launches"):
        read_counters("==ERROR== no counters\n")


def test_blocks_are_measured_as_the_analyses_do() -> None:
    random = np.random.default_rng(5)
    records = np.zeros((300, 4), [("start", "u8"), ("elapsed", "u4"), ("cuid", "u4")])
    free = {sm: [1 << 40] * (1 + sm % 3) for sm in range(7)}
    for row in records:
        sm = int(random.integers(7))
        at = min(range(len(free[sm])), key=free[sm].__getitem__)
        begin = free[sm][at] + int(random.integers(0, 50))
        row["start"] = begin + random.integers(0, 5, 4)
        row["elapsed"] = random.integers(20, 400, 4)
        row["cuid"] = sm
        row["start"][2] = begin
        free[sm][at] = int((row["start"] + row["elapsed"]).max())
    found = measured(records)
    begins, ends = records["start"].min(axis=1).astype(np.int64), (records["start"] + records["elapsed"]).max(axis=1)
    empty, rooms = 0, []
    for sm in range(7):
        mine = records["cuid"][:, 0] == sm
        first, last = np.sort(begins[mine]), np.sort(ends[mine].astype(np.int64))
        empty += gaps(first, last)
        rooms.append(places(first, last))
    assert (found["empty"], found["places"], found["resident"]) == (empty, sum(rooms), max(rooms))
    assert max(rooms) > 1
    assert found["working"] == int((ends.astype(np.int64) - begins).sum())
    assert (found["blocks"], found["spans"]["count"]) == (300, 7)
