"""Faults of the rewriter, seeded: each is noticed, and by what it should be."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from tests.oracle import end_faults, site_faults
from tests.oracle.assembling import arithmetic_differs
from tests.oracle.bench import Bench, Kernel, Problem, make_twins
from tests.oracle.fault import Fault
from tests.oracle.probes import BLOCKS, COUNTS, PROBES, Probe, probe_set

FAULTS = (*site_faults.FAULTS, *end_faults.FAULTS)
_SCHEDULES = (None, 1)
_PAIRS = list({(kernel.name, probe.name): (kernel, probe) for fault in FAULTS for kernel, probe in fault.on}.values())


@cache
def _bench(name: str) -> Bench:
    kernel = next(kernel for fault in FAULTS for kernel, _ in fault.on if kernel.name == name)
    return Bench(kernel, (*PROBES, BLOCKS, COUNTS), _SCHEDULES)


@cache
def _valid_text(name: str, probe: Probe) -> str:
    return make_twins(_bench(name).kernel, probe_set(probe)).render()


def _problems(kernel: Kernel, probe: Probe, fault: Fault | None) -> list[Problem]:
    given = probe
    if fault and fault.probe:
        assert probe.text
        given = replace(probe, text=fault.probe(probe.text))
    twins = make_twins(kernel, probe_set(given))
    text = twins.render()
    (twin,) = twins.kernels
    known = twin
    if fault:
        text, known = fault.rewrite(text), fault.manifest(twin)
        changed = text != _valid_text(kernel.name, probe) or known != twin
        assert changed, f"{fault.name} changes nothing in {kernel.name} with {probe.name}"
    if fault and "arithmetic" in fault.caught_by:
        said = arithmetic_differs(kernel.text, twin, text)
        return [Problem("arithmetic", said)] if said else []
    bench = _bench(kernel.name)
    return [problem for seed in _SCHEDULES for problem in bench.judge_run(probe, known, text, seed)]


def test_there_are_enough() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(names) == len(set(names)) >= 60


@pytest.mark.parametrize(("kernel", "probe"), _PAIRS, ids=lambda part: part.name)
def test_valid_twins_pass(kernel: Kernel, probe: Probe) -> None:
    """The control: the same kernels, probes and checks without a fault."""
    assert _problems(kernel, probe, None) == []


@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize(
    ("kernel", "probe"),
    [pair for fault in FAULTS if "arithmetic" in fault.caught_by for pair in fault.on][:1],
    ids=lambda part: part.name,
)
def test_valid_twins_keep_their_arithmetic(kernel: Kernel, probe: Probe) -> None:
    twins = make_twins(kernel, probe_set(probe))
    assert arithmetic_differs(kernel.text, twins.kernels[0], twins.render()) == ""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_faults_are_caught(fault: Fault, request: pytest.FixtureRequest) -> None:
    if "arithmetic" in fault.caught_by:
        request.getfixturevalue("ptxas")
    kinds = set()
    for kernel, probe in fault.on:
        kinds |= {problem.kind for problem in _problems(kernel, probe, fault)}
        if kinds & fault.caught_by:
            return
    assert kinds & fault.caught_by, f"noticed by {kinds or 'nothing'}, not by {set(fault.caught_by)}"
