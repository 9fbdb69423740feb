"""Whatever the verifier accepts leaves the program alone: its results, its memory, its end. And ptxas takes it."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

from neutrino.abi.reasons import Reason
from neutrino.errors import DeviceFaultError, ToolMissingError
from neutrino.ptx.instrument.twin import TwinModule
from neutrino.toolchain.location import find_tool
from tests.oracle.assembling import assemble
from tests.oracle.bench import Bench, Kernel, make_twins, skip_of
from tests.oracle.probes import Probe, probe_set
from tests.oracle.random_kernels import kernels
from tests.oracle.random_snippets import probe_files
from tests.oracle.test_matrix import ALL

_FEW = 20
_STEPS = 20_000_000
_REFUSALS = (
    "needs sm_", "needs PTX ISA", "has no ", "takes .", "cannot be saved", "thrown away", "no plain one",
    "between a product and its sum", "cannot read", "is a number, but", "does not exist before it", "asynchronous",
    "part of a call sequence", "it uses the function table", "isspacep.const", "cannot be copied", "at most 64 bits",
    "which is no register", "nothing runs after it",
)  # fmt: skip
"""Of what the rewriter says, that a right probe does not suit a kernel."""


@cache
def _bench(name: str) -> Bench:
    return Bench(ALL[name], (), (None,))


def _judge(bench: Bench, text: str, seed: int | None = None) -> str:
    """Check one probe file on one kernel under a schedule; why there is no twin, empty where there is one."""
    probe = Probe("random", (), text=text)
    probe_set(probe)
    twins = make_twins(bench.kernel, probe_set(probe))
    skip = skip_of(twins)
    if skip is not None:
        assert skip.reason is Reason.NO_SITE or any(words in skip.detail for words in _REFUSALS), (skip, text)
        return skip.reason.word if skip.reason is Reason.NO_SITE else skip.detail
    (twin,) = twins.kernels
    bench.place(seed).device.step_limit = _STEPS
    try:
        _, results = bench.run(probe, twin, twins.render(), seed)
    except DeviceFaultError as error:
        raise AssertionError(f"{error}\n{text}\n{twins.render()}") from error
    for one, other in zip(results, bench.results(None), strict=True):
        assert bench.comparable(one) == bench.comparable(other), text
    _assemble(twins)
    return ""


def _assemble(twins: TwinModule) -> None:
    try:
        find_tool("ptxas")
    except ToolMissingError:
        return
    cubin, said = assemble(twins.render())
    assert cubin, f"{said}\n{twins.render()}"


def test_accepted_snippets_leave_the_program_alone(pytestconfig: pytest.Config) -> None:
    count = pytestconfig.getoption("--random-rewrites") or _FEW
    judged = {"twins": 0, "skips": 0}

    @settings(
        max_examples=count,
        phases=(Phase.generate,),
        deadline=None,
        database=None,
        derandomize=count == _FEW,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.one_of(st.sampled_from(sorted(ALL)), kernels()), probe_files(), st.sampled_from((None, 1)))
    def check(kernel: str | Kernel, text: str, seed: int | None) -> None:
        bench = _bench(kernel) if isinstance(kernel, str) else Bench(kernel, (), (None,))
        why = _judge(bench, text, seed)
        event(why or "twin")
        judged["skips" if why else "twins"] += 1

    check()
    assert judged["twins"] > judged["skips"], judged
