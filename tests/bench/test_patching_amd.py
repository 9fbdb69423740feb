"""The record of how fast AMD's code is read and probed, and its verdicts."""

from __future__ import annotations

import copy
import os
from typing import Any

import pytest

from bench import patching_amd
from bench.recorded import load

MISSED = ("clang -O0, gmem_bytes", "Triton, block_sched", "Triton, gmem_bytes")
"""How the verdicts begin that the record does not meet."""


@pytest.fixture(scope="module")
def recorded() -> Any:
    return load(patching_amd.RESULTS)


def failing(results: Any) -> list[str]:
    return [text for text, holds in patching_amd.verdicts(results) if not holds]


def test_the_record_meets_its_bounds_but_for_known_ones(recorded: Any) -> None:
    found = failing(recorded)
    assert [any(text.startswith(missed) for missed in MISSED) for text in found] == [True] * len(MISSED), found


def test_verdicts_fail_for_what_is_wrong(recorded: Any) -> None:
    results = copy.deepcopy(recorded)
    results["rows"] = [
        {"source": "XLA", "probe": "block_sched", "kernels": 1, "text": 1_300_000, "seconds": [0.2, 0.1, 0.3]}
    ]
    assert not any(text.startswith("XLA, block_sched") for text in failing(results))
    results["rows"][0]["text"] = 1_100_000
    assert "XLA, block_sched: 1.8 MB of text a second" in failing(results)
    results["library"] = {"kernels": 2, "probed": 0, "together": 501, "largest": 300}
    assert {text.partition(": ")[2] for text in failing(results)} >= {
        "0 of 2 kernels probed", "501 MB together, 300 MB the largest process"
    }  # fmt: skip


def test_the_memory_of_a_process_is_what_the_kernel_says() -> None:
    pss, rss = patching_amd.memory(os.getpid())
    assert 0 < pss <= rss
    assert patching_amd.memory(0) == (0, 0)
