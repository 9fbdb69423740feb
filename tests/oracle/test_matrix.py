"""Every probe on every kernel: results stay, the records are right.

A quarter of the pairs of a kernel and a probe that ships run under two schedules, all others under one; of the six
other probes each kernel has one. ``--thorough`` takes all pairs, and all three schedules of each.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from math import prod
from zlib import crc32

import pytest

from neutrino.abi.reasons import Reason
from neutrino.errors import ToolMissingError
from neutrino.toolchain.location import find_tool
from tests.kernels.cases import Case, cases
from tests.oracle.assembling import assemble, together
from tests.oracle.bench import SCHEDULES, Bench, Kernel, skip_of
from tests.oracle.kernels import KERNELS
from tests.oracle.probes import PROBES, SHIPPED, Probe
from tests.oracle.simulation import matches
from tests.oracle.tally import TALLY

ORDER_DEPENDENT = frozenset(
    {"bulk_copy", "last_block", "lock_by_exchange", "maximum_by_swap", "phases", "ping_pong", "rare", "updates"}
)
"""Threads wait there for each other in loops, or who comes last goes on: what each does depends on the schedule."""

_TABLE = "it uses the function table"
_CONST = "it asks for the constant space (isspacep.const) and uses constant variables"
SKIPPED: dict[str, str] = {
    "function_table": _TABLE,
    "generic": _CONST,
    "indirect_calls": _TABLE,
}
"""Kernels that the rewriter refuses for every probe, with what it says. Another refusal is a failure."""
_THREADS = 256
"""A launch is cut down to about so many: original and twin are compared with each other, so that a part will do."""


def _kernel(case: Case) -> Kernel:
    x, y, _ = case.grid
    x = min(x, 2 if 2 * prod(case.block) <= _THREADS else 1)
    y = min(y, 2 if 2 * x * prod(case.block) <= _THREADS else 1)
    return Kernel(
        case.name,
        case.path.read_text(),
        case.kernel,
        (x, y, 1),
        case.block,
        case.arguments,
        case.shared,
        case.constants,
        stable=case.name not in ORDER_DEPENDENT,
        ordered=case.schedules_agree,
    )


ALL = {kernel.name: kernel for kernel in (*KERNELS, *map(_kernel, cases()))}


@dataclass
class Outcome:
    """What came of one kernel. refused: what ptxas has against its twins, None where there is no ptxas."""

    problems: list[str] = field(default_factory=list)
    refused: str | None = None
    twins: int = 0
    runs: int = 0
    seconds: float = 0.0


def _schedules(kernel: str, probe: Probe, *, thorough: bool) -> tuple[int | None, ...]:
    """For a quarter of the probes that ship the fixed one and a random one; for all others one of all, this or that."""
    if thorough:
        return SCHEDULES
    number = crc32(f"{kernel} {probe.name}".encode())
    if probe in SHIPPED and number & 192 == 192:
        return SCHEDULES[0], SCHEDULES[1 + number % (len(SCHEDULES) - 1)]
    return (SCHEDULES[number % len(SCHEDULES)],)


def _probes(kernel: str, *, thorough: bool) -> list[Probe]:
    """Those that a kernel is run with: the ones that ship, and one of the others by its name."""
    number = crc32(kernel.encode())
    others = [probe for probe in PROBES if probe not in SHIPPED]
    return [*SHIPPED, *(others if thorough else others[number % len(others) :][:1])]


def judge_kernel(name: str, *, thorough: bool) -> Outcome:
    """The probes of one kernel on it."""
    start = time.monotonic()
    outcome = Outcome()
    bench = Bench(ALL[name], PROBES)
    made = []
    for probe in _probes(name, thorough=thorough):
        twins = bench.twins(probe)
        skip = skip_of(twins)
        if skip is not None:
            outcome.problems += _wrong_skip(bench, probe, skip.reason, skip.detail)
            continue
        schedules = _schedules(name, probe, thorough=thorough)
        outcome.problems += [f"{probe.name}: {problem}" for problem in bench.judge(probe, twins, schedules=schedules)]
        outcome.twins += 1
        outcome.runs += len(schedules)
        made.append(twins)
    outcome.seconds = time.monotonic() - start
    try:
        find_tool("ptxas")
    except ToolMissingError:
        return outcome
    outcome.refused = assemble(together(made))[1] if made else ""
    return outcome


def _wrong_skip(bench: Bench, probe: Probe, reason: Reason, detail: str) -> list[str]:
    """A kernel without a site ran none; anything else is on the list."""
    if reason is Reason.NO_SITE:
        ran = [
            site.text
            for site in bench.tracer.sites
            if any(position != "kernel" and matches(position, site.opcode) for position in probe.positions)
        ]
        return [f"{probe.name}: no site, but these ran: {ran}"] if ran else []
    words = SKIPPED.get(bench.kernel.name)
    return [] if words and words in detail else [f"{probe.name} is refused: {detail}"]


@pytest.fixture(scope="module", params=ALL)
def outcome(request: pytest.FixtureRequest) -> Outcome:
    """Of one kernel, for all tests that ask about it."""
    outcome = judge_kernel(request.param, thorough=request.config.getoption("--thorough"))
    TALLY.judged[request.param] = outcome.twins, outcome.runs, outcome.seconds
    return outcome


def test_twins_do_what_their_originals_do(outcome: Outcome) -> None:
    assert not outcome.problems, "\n".join(outcome.problems)


@pytest.mark.usefixtures("ptxas")
def test_twins_assemble(outcome: Outcome) -> None:
    """Without optimising: what is asked here is whether they are PTX."""
    assert outcome.refused == ""


def test_refusals_are_still_needed() -> None:
    """The lists above hold nothing that the rewriter has learnt meanwhile."""
    for name in SKIPPED:
        for probe in PROBES:
            assert skip_of(Bench(ALL[name], ()).twins(probe)), (name, probe.name)
