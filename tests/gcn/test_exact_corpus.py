"""The records of shipped probes in AMD's kernels, in the interpreter, and their verdicts."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from bench.recorded import load
from tests.gcn import exact_corpus

MISSED: tuple[str, ...] = ()
"""How the verdicts begin that the record does not meet."""


@pytest.fixture(scope="module")
def exact() -> Any:
    return load(exact_corpus.RESULTS)


def failing(bench: Any, results: Any) -> list[str]:
    return [text for text, holds in bench.verdicts(results) if not holds]


def test_the_records_meet_their_bounds(exact: Any) -> None:
    found = failing(exact_corpus, exact)
    assert [any(text.startswith(missed) for missed in MISSED) for text in found] == [True] * len(MISSED), found


def test_the_record_is_small(exact: Any) -> None:
    assert exact_corpus.RESULTS.stat().st_size < 100_000
    # Nothing is judged twice or left out.
    keys = [(row["build"], row["probe"]) for row in exact["rows"]]
    assert len(set(keys)) == len(keys)
    assert len(keys) == len({build for build, _ in keys}) * len({probe for _, probe in keys})


@pytest.mark.parametrize(("change", "message"), [
    ("wrong", "1 wrong"), ("lost", "are accounted for"), ("refused", "% refused"), ("processor", "gfx1030: 0 kernels"),
    ("waves", "waves of 32"), ("original", "all originals run"), ("site", "without a site"), ("probe", "probes"),
])  # fmt: skip
def test_verdicts_fail_for_what_is_wrong(exact: Any, change: str, message: str) -> None:
    results = copy.deepcopy(exact)
    rows = [row for row in results["rows"] if row["probe"] == "gmem_bytes"]
    row = rows[0]
    if change == "wrong":
        row["faults"] = {"axpy": "other results"}
        row["equal"] -= 1
        row["wrong"] += 1
    elif change == "lost":
        row["equal"] -= 1
    elif change == "refused":
        for each in rows:
            each["refused"], each["equal"] = each["refused"] + each["equal"], 0
    elif change in ("processor", "waves"):
        left_out = {"processor": "gfx1030", "waves": "gfx1030 wave64"}[change]
        results["rows"] = [each for each in results["rows"] if each["build"] != left_out]
    elif change == "original":
        results["rows"].append({"build": row["build"], "probe": "", "kernels": row["kernels"], "faults": {"axpy": "x"}})
    elif change == "site":
        for each in rows:
            each["none"], each["equal"], each["refused"] = each["kernels"], 0, 0
    else:
        for name in ("gmem_bytes", "dmat"):
            results["rows"] = [each for each in results["rows"] if each["probe"] != name]
    found = set(failing(exact_corpus, results)) - set(failing(exact_corpus, exact))
    assert any(message in text for text in found), found
