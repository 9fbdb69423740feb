"""The recorded values of the GPU run are judged again, and damage to them is noticed."""

from __future__ import annotations

import copy
import json

import pytest

from bench.values import RESULTS, SHAPES, TARGETS, verdicts

COMMITTED = json.loads(RESULTS.read_text())


def test_every_recorded_value_is_numpys() -> None:
    assert verdicts(COMMITTED) == []


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("index", range(len(SHAPES)))
@pytest.mark.parametrize("name", ["counts", "address", "value", "order", "product", "stores", "dropped"])
def test_a_changed_figure_is_noticed(target: str, index: int, name: str) -> None:
    damaged = copy.deepcopy(COMMITTED)
    damaged["targets"][target]["launches"][index]["recorded"][name] = None
    assert len(verdicts(damaged)) == 1


def test_a_missing_target_and_changed_outputs_are_noticed() -> None:
    damaged = copy.deepcopy(COMMITTED)
    del damaged["targets"]["sm_75"]
    damaged["targets"]["sm_90"]["launches"][0]["outputs"][1][0] = "0"
    assert len(verdicts(damaged)) == 2
