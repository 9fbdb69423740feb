"""Every probe on every kernel under three schedules: the program's results stay, the records are right."""

from __future__ import annotations

import time

import pytest

from neutrino.probing.layout import Reason
from tests.kernels.cases import Case, cases
from tests.oracle.assembling import complaints
from tests.oracle.bench import Bench, Kernel, skip_of
from tests.oracle.kernels import KERNELS
from tests.oracle.probes import PROBES, Probe
from tests.oracle.simulation import matches
from tests.oracle.tally import TALLY

ORDER_DEPENDENT = frozenset(
    {"bulk_copy", "last_block", "lock_by_exchange", "maximum_by_swap", "phases", "ping_pong", "updates"}
)
"""Threads wait there for each other in loops, or who comes last goes on: what each does depends on the schedule."""

_EVERY = frozenset(probe.name for probe in PROBES)
SKIPPED: dict[str, tuple[frozenset[str], str]] = {}
"""Case → probes that the rewriter refuses, and the end of its reason. Another refusal is a failure."""


_BLOCKS = (2, 2, 1)
"""Blocks that are launched at most: original and twin are compared with each other, so that a part will do."""


def _kernel(case: Case) -> Kernel:
    x, y, z = (min(blocks, most) for blocks, most in zip(case.grid, _BLOCKS, strict=True))
    return Kernel(
        case.name,
        case.path.read_text(),
        case.kernel,
        (x, y, z),
        case.block,
        case.arguments,
        case.shared,
        case.constants,
        case.schedules_agree,
        case.name not in ORDER_DEPENDENT,
    )


ALL = (*KERNELS, *(_kernel(case) for case in cases()))


@pytest.mark.parametrize("kernel", ALL, ids=lambda kernel: kernel.name)
def test_twins_do_what_their_originals_do(kernel: Kernel) -> None:
    start = time.monotonic()
    bench = Bench(kernel, PROBES)
    found = []
    for probe in PROBES:
        twins = bench.twins(probe)
        skip = skip_of(twins)
        if skip is not None:
            _check_skip(bench, probe, skip.reason, skip.detail)
            continue
        found += [f"{probe.name}: {problem}" for problem in bench.judge(probe, twins)]
        TALLY.twins += 1
        TALLY.runs += len(bench.schedules)
    TALLY.kernels.add(kernel.name)
    TALLY.probes.update(_EVERY)
    TALLY.seconds += time.monotonic() - start
    assert not found, "\n".join(found)


def _check_skip(bench: Bench, probe: Probe, reason: Reason, detail: str) -> None:
    """A kernel without a site ran none; anything else is on the list."""
    if reason is Reason.NO_SITE:
        ran = [
            site.text
            for site in bench.tracer.sites
            if any(position != "kernel" and matches(position, site.opcode) for position in probe.positions)
        ]
        assert not ran, f"{probe.name}: no site, but these ran: {ran}"
        return
    probes, words = SKIPPED.get(bench.kernel.name, (frozenset(), ""))
    assert probe.name in probes, f"{probe.name} is refused: {detail}"
    assert detail.endswith(words), detail


@pytest.mark.usefixtures("ptxas")
def test_twins_assemble() -> None:
    """All of them, without optimising: what is asked here is whether they are PTX."""
    texts = []
    for kernel in ALL:
        bench = Bench(kernel, PROBES)
        for probe in PROBES:
            twins = bench.twins(probe)
            if not twins.skipped:
                texts.append(twins.render())
    assert len(texts) > 300
    assert complaints(texts) == []
