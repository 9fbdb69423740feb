"""Random kernels with random probes: twins compute what originals compute, records are what the tracer saw."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, event, given, settings

from tests.oracle.bench import Bench, Kernel, skip_of
from tests.oracle.probes import ACCESSES, COUNTS, GROWING, KINDS, SUMS, WARPS, Probe
from tests.oracle.random_kernels import kernels
from tests.oracle.random_probes import probes
from tests.oracle.simulation import matches

_FEW = 20


def _check(kernel: Kernel, *chosen: Probe) -> None:
    bench = Bench(kernel, chosen, (None, 3))
    for probe in chosen:
        twins = bench.twins(probe)
        skip = skip_of(twins)
        if skip is not None:
            event(f"{skip.reason.word}")
            assert skip.reason.word == "no-site", skip.detail
            ran = [
                site.text
                for site in bench.tracer.sites
                for position in probe.positions
                if matches(position, site.opcode)
            ]
            assert not ran or skip.reason.word != "no-site", ran
            assume(False)
        assert bench.judge(probe, twins) == [], kernel.text


def test_random_kernels_with_random_probes(pytestconfig: pytest.Config) -> None:
    count = pytestconfig.getoption("--random-rewrites") or _FEW

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=count == _FEW,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(kernels(), probes())
    def check(kernel: Kernel, probe: Probe) -> None:
        _check(kernel, probe)

    check()


def test_random_kernels_with_random_aggregates(pytestconfig: pytest.Config) -> None:
    count = pytestconfig.getoption("--random-rewrites") or _FEW

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=count == _FEW,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    @given(kernels(), probes(aggregates=True))
    def check(kernel: Kernel, probe: Probe) -> None:
        _check(kernel, probe)

    check()


def test_random_kernels_with_the_probes_of_the_matrix(pytestconfig: pytest.Config) -> None:
    count = (pytestconfig.getoption("--random-rewrites") or _FEW) // 4

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=count == _FEW // 4,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(kernels())
    def check(kernel: Kernel) -> None:
        _check(kernel, ACCESSES, SUMS, WARPS, KINDS, COUNTS, GROWING)

    check()
