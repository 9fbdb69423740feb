"""What programs of random driver calls printed on a GPU, with the hook and without."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench.calls import RESULTS, RUNS


@pytest.fixture(scope="module")
def recorded() -> Any:
    return json.loads(RESULTS.read_text())


def test_every_program_was_run_on_a_gpu(recorded: Any) -> None:
    assert [(row["seed"], row["threads"], row["calls"]) for row in recorded["runs"]] == RUNS
    assert "NVIDIA" in recorded["device"]


def test_the_hook_changed_nothing_that_a_program_sees(recorded: Any) -> None:
    for row in recorded["runs"]:
        plain, hooked = row["sha256"]
        assert plain == hooked, f"seed {row['seed']}: {row['differing']}"
        assert row["status"] == [0, 0]
        assert row["lines"] > 100


def test_launches_were_probed_or_left_alone_for_a_reason_that_is_expected(recorded: Any) -> None:
    for row in recorded["runs"]:
        launches = row["launches"]
        assert launches["probed"] > 100
        assert launches.keys() <= {"probed", "graph", "refused"}
