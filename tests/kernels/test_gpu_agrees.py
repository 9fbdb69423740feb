"""The embedded device computes what an NVIDIA GPU computed from the same PTX, inputs and launch.

The results of the GPU are those of ``python3 -m bench.device record``.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from bench.device import RESULTS, Json, digest, kept_elements
from tests.kernels.cases import cases
from tests.kernels.launch import fixed_results
from tests.kernels.model import Array, Case, Expected

MUST_COMPARE = 12


@pytest.fixture(scope="module")
def recorded() -> Json:
    return json.loads(RESULTS.read_text())


def _differs(expected: Expected, result: Array, row: Json) -> str:
    mine = expected.canonical(result).reshape(-1)
    if expected.exact:
        return "" if digest(mine) == row["sha256"] else "other bits than the GPU's"
    theirs = kept_elements(row, mine.dtype)
    assert theirs is not None
    sample = mine[:: row["step"]]
    return Expected(theirs, exact=False, rtol=expected.rtol, atol=expected.atol).mismatch(sample)


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_agrees_with_the_gpu(case: Case, recorded: Json) -> None:
    row = recorded["cases"].get(case.name)
    assert row is not None, "not recorded: python3 -m bench.device record"
    assert row["digest"] == case.digest(), "recorded from other PTX or inputs: python3 -m bench.device record"
    assert row.get("error") is None
    assert row["wrong"] == []
    results = fixed_results(case.name)
    for place, expected in case.expected.items():
        assert _differs(expected, results[place], row["outputs"][str(place)]) == "", f"argument {place}"


def test_enough_is_compared_to_the_bit(recorded: Json) -> None:
    kept = recorded["cases"]
    exact = [case for case in cases() if case.exact and case.digest() == kept.get(case.name, {}).get("digest")]
    compared = [case.name for case in exact if kept[case.name].get("outputs")]
    assert len(compared) >= MUST_COMPARE
    assert all(recorded[fact] for fact in ("tree", "device", "driver"))


def test_another_bit_would_be_seen() -> None:
    value = np.arange(8, dtype=np.float32)
    row = {"sha256": digest(value)}
    assert _differs(Expected(value), value, row) == ""
    assert _differs(Expected(value), np.nextafter(value, np.float32(9)), row) != ""
