"""What the probes cost in time: the committed run's verdicts, and that each thing that may be wrong is named."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from bench import slowdown

Json = Any


@pytest.fixture
def recorded() -> Json:
    return copy.deepcopy(json.loads(slowdown.RESULTS.read_text()))


def test_the_committed_run(recorded: Json) -> None:
    assert slowdown.judge(recorded) == []
    lines = slowdown.table(recorded)
    assert len(lines.splitlines()) == 2 + len(recorded["runs"])
    assert lines in (slowdown.ROOT / "bench" / "README.md").read_text()


def test_other_outputs(recorded: Json) -> None:
    recorded["runs"]["gmem_bytes"][1]["kernels"]["matmul"]["output"] = "0"
    assert slowdown.judge(recorded) == ["gmem_bytes: other outputs of matmul"]


def test_launches_that_were_not_probed(recorded: Json) -> None:
    recorded["runs"]["block_sched"][2]["probed"]["vecadd"] -= 1
    assert slowdown.judge(recorded) == ["block_sched: not every launch of vecadd was probed"]


def test_too_few(recorded: Json) -> None:
    del recorded["runs"]["value_watch"]
    recorded["runs"]["plain"].pop()
    assert slowdown.judge(recorded) == ["plain: 2 processes, not 3", "no runs with value_watch"]
