"""What the probes cost in time: the committed run's verdicts, and that each thing that may be wrong is named."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from bench import slowdown
from neutrino.resources import shipped_probes

Json = Any


@pytest.fixture
def recorded() -> Json:
    return copy.deepcopy(json.loads(slowdown.RESULTS.read_text()))


def _wrong(results: Json) -> list[str]:
    return [verdict.case for verdict in slowdown.judge(results) if not verdict.good]


def test_the_committed_run(recorded: Json) -> None:
    judged = slowdown.judge(recorded)
    assert [verdict for verdict in judged if not verdict.good] == []
    probes = len(shipped_probes())
    assert len(judged) == 1 + 2 * probes + len(slowdown.MOST_TIMES)


def test_the_page_holds_the_table_and_the_bounds(recorded: Json) -> None:
    page = (slowdown.ROOT / "bench" / "README.md").read_text()
    lines = slowdown.table(recorded)
    assert len(lines.splitlines()) == 2 + len(recorded["runs"])
    assert f"```text\n{lines}\n```" in page
    (bounds,) = (line for line in page.splitlines() if line.startswith("| `PROBE: times`"))
    for probe, most in slowdown.MOST_TIMES.items():
        assert f"`{probe}`" in bounds
        assert f" {most:g}" in bounds.replace("1.10", "1.1")


def _slower(mode: str, kernel: str, times: float) -> Callable[[Json], None]:
    def change(results: Json) -> None:
        for run in results["runs"][mode]:
            row = run["kernels"][kernel]
            row["ms"] = [times * ms for ms in row["ms"]]

    return change


def _set(*path: str | int, to: Json) -> Callable[[Json], None]:
    def change(results: Json) -> None:
        place = results["runs"]
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "case"),
    [
        (_set("gmem_bytes", 1, "kernels", "matmul", "output", to="0"), "gmem_bytes: outputs"),
        (_set("value_watch", 0, "kernels", "tensor", "output", to="0"), "value_watch: outputs"),
        (_set("plain", 2, "kernels", "vecadd", "output", to="0"), "plain: outputs"),
        (_set("plain", 1, "kernels", "vecadd", "ms", to=[0.2]), "plain: outputs"),
        (_set("inst_count", 1, "kernels", "vecadd", "ms", 3, to=0.0), "inst_count: outputs"),
        (_set("block_sched", 2, "probed", "vecadd", to=21), "block_sched: launches"),
        (_set("program_progress", 2, "probed", "vecadd", to=23), "program_progress: launches"),
        (_set("program_progress", 2, "probed", "another", to=1), "program_progress: launches"),
        (_set("value_watch", 0, "originals", to={"vecadd": {"memory": 1}}), "value_watch: launches"),
        *[(_slower(mode, "softmax", most * 1.05), f"{mode}: times") for mode, most in slowdown.MOST_TIMES.items()],
    ],
)
def test_what_is_wrong_is_named(recorded: Json, change: Callable[[Json], None], case: str) -> None:
    change(recorded)
    assert _wrong(recorded) == [case]


def test_too_few(recorded: Json) -> None:
    del recorded["runs"]["value_watch"]
    recorded["runs"]["tensorop"].pop()
    assert _wrong(recorded) == ["tensorop: outputs", "value_watch: outputs", "value_watch: launches"]


def test_reasons_of_originals_are_told(recorded: Json) -> None:
    for run in recorded["runs"]["value_watch"]:
        run["originals"] = {name: {"memory": slowdown._LAUNCHES - count} for name, count in run["probed"].items()}
    (verdict,) = (verdict for verdict in slowdown.judge(recorded) if verdict.case == "value_watch: launches")
    assert verdict.good, verdict.figure
    assert verdict.figure.endswith("; memory 339")
