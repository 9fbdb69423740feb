"""The verdicts on the committed times of listings, and that each broken bound is caught."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from bench.listing import MOST_BYTES, RESULTS, ROUNDS, judge

Json = Any


@pytest.fixture
def results() -> Json:
    return json.loads(RESULTS.read_text())


def test_committed_results_meet_every_bound(results: Json) -> None:
    assert judge(results) == []


def _slow(results: Json) -> None:
    row = results["libraries"][0]
    for run in row["ours"]:
        run["seconds"] = 1.3 * min(other["seconds"] for other in row["theirs"])


def _large(results: Json) -> None:
    results["libraries"][0]["ours"][3]["peak_bytes"] = MOST_BYTES + 1


def _large_huge(results: Json) -> None:
    results["huge"]["run"]["peak_bytes"] = MOST_BYTES + 1


def _few(results: Json) -> None:
    results["libraries"][0]["ours"] = results["libraries"][0]["ours"][: ROUNDS - 1]


def _missing(results: Json) -> None:
    results["libraries"] = results["libraries"][:1]


def _incomplete(results: Json) -> None:
    results["libraries"][0]["images"]["ours"] -= 1 + max(0, results["libraries"][0]["images"]["ours"]) // 2


@pytest.mark.parametrize("damage", [_slow, _large, _large_huge, _few, _missing, _incomplete])
def test_what_is_not_as_it_must_be_is_named(results: Json, damage: Callable[[Json], None]) -> None:
    broken = copy.deepcopy(results)
    damage(broken)
    assert len(judge(broken)) >= 1
