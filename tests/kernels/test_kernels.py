"""Every kernel on the embedded device gives what its NumPy reference says, and writes nothing else."""

from __future__ import annotations

import pytest

from neutrino.emulator.device import Device
from tests.kernels.cases import cases
from tests.kernels.launch import run_case
from tests.kernels.model import Case


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_equals_its_reference(case: Case) -> None:
    results, statistics = run_case(case, Device())
    assert case.mismatches(results) == []
    assert 0 < statistics.steps <= statistics.thread_instructions


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_equals_its_reference_in_any_order(case: Case) -> None:
    # Besides the device this judges the kernels: a race of theirs would be taken for a fault of a probe.
    results, _ = run_case(case, Device(seed=20261121))
    assert case.mismatches(results) == []
