"""The record of twins of AMD's corpus, and its verdicts."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from bench import twins_amd
from bench.recorded import load


@pytest.fixture(scope="module")
def recorded() -> Any:
    return load(twins_amd.RESULTS)


def failing(results: Any) -> list[str]:
    return [text for text, holds in twins_amd.verdicts(results) if not holds]


def test_the_record_meets_its_bounds(recorded: Any) -> None:
    assert failing(recorded) == []


def test_verdicts_fail_for_what_is_wrong(recorded: Any) -> None:
    def changed(change: str) -> Any:
        results = copy.deepcopy(recorded)
        row = results["rows"][0]
        if change == "wrong":
            row["wrong"] = ["saxpy: s_branch leads elsewhere"]
            row["read"] -= 1
        elif change == "refused":
            row["refused"] = {"s_branch": row["kernels"] - 1}
            row["read"] = 1
        elif change == "lost":
            row["read"] -= 1
        else:
            del results["rows"][0]
        return results

    for change, count in (("wrong", 2), ("refused", 1), ("lost", 1), ("processor", 1)):
        assert len(failing(changed(change))) == count
