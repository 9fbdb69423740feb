"""Verdicts on training with a probe, on results made here."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from bench import training

_WORDS = ["losses", "1" * 16, "weights", "2" * 16, "first", "7.06", "last", "0.01", "ms"]


def _results() -> dict[str, Any]:
    models = {
        model: {
            way: {
                "words": [*_WORDS, f"{20 + number}.5"],
                "seconds": 5.0 + number,
                **({"launches": {"probed": 95, "occupancy": 5, "vendor": 900}} if number > 1 else {}),
            }
            for number, way in enumerate(training.WAYS)
        }
        for model in training.MODELS
    }
    return {"device": "GPU", "driver": "1", "steps": 100, "models": models}


def _bad(results: dict[str, Any]) -> list[str]:
    return [verdict.case for verdict in training.judge(results) if not verdict.good]


def test_vendors_launches_do_not_count_and_time_is_no_result() -> None:
    assert _bad(_results()) == []
    assert "95.0% of 100 launches" in training.judge(_results())[1].figure


@pytest.mark.parametrize("way", training.WAYS)
@pytest.mark.parametrize("word", [1, 3])
def test_another_loss_or_weight_is_bad(way: str, word: int) -> None:
    results = _results()
    results["models"]["unet"][way]["words"][word] = "3" * 16
    assert _bad(results) == ["unet, results"]


@pytest.mark.parametrize("counts", [{"probed": 94, "occupancy": 6}, {"no-ptx": 3}, {"vendor": 3}, {}])
def test_few_probed_launches_are_bad(counts: dict[str, int]) -> None:
    results = copy.deepcopy(_results())
    results["models"]["resnet"]["second"]["launches"] = counts
    assert _bad(results) == ["resnet, second run"]


def test_a_program_that_printed_nothing_is_bad() -> None:
    results = _results()
    for way in training.WAYS:
        results["models"]["transformer"][way]["words"] = []
    assert _bad(results) == ["transformer, results"]


def test_the_table_has_the_means_of_both_plain_runs() -> None:
    (row,) = [line.split() for line in training.table(_results()).splitlines() if line.startswith("resnet")]
    assert row == ["resnet", "21.00", "23.50", "5.5", "7.0", "8.0"]
