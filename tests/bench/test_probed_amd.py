"""The record of shipped probes in AMD's kernels: what it says, and that verdicts fail for what is wrong."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from bench import probed_amd

MISSED = ["9 of 17 probes", "inst_count: 3.4 % refused", "opcode_mix: 4.1 % refused", "work_per_warp: 4.1 % refused"]
"""How the verdicts begin that the record does not meet."""


@pytest.fixture(scope="module")
def recorded() -> Any:
    return json.loads(probed_amd.RESULTS.read_text())


def failing(results: Any) -> list[str]:
    return [text for text, holds in probed_amd.verdicts(results) if not holds]


def test_the_record_meets_its_bounds_but_for_known_ones(recorded: Any) -> None:
    found = failing(recorded)
    assert [any(text.startswith(missed) for missed in MISSED) for text in found] == [True] * len(MISSED), found


@pytest.mark.parametrize(("change", "message"), [
    ("wrong", "; 1 are not"), ("lost", "are accounted for"), ("waves", "keep their waves"), ("processor", "processors"),
])  # fmt: skip
def test_verdicts_fail_for_what_is_wrong(recorded: Any, change: str, message: str) -> None:
    results = copy.deepcopy(recorded)
    row = next(row for row in results["rows"] if row["probe"] == "block_sched")
    if change == "wrong":
        row["wrong"] = ["add: s_branch leads elsewhere"]
    elif change == "lost":
        row["kernels"] -= 1
        row["written"] -= 2
    elif change == "waves":
        row["waves"] = 0
    else:
        results["rows"].remove(row)
    found = set(failing(results)) - set(failing(recorded))
    assert any(text.startswith("block_sched") and message in text for text in found), found
