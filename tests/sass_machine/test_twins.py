"""Twins in machine code, run: the kernel's results, the records of the twin in PTX, and no register used too early.

The kernels run as PTX on the embedded device, and as ptxas assembles them in the interpreter of machine code, which
also judges stalls and scoreboards of what ptxas made (no alarm) and of twins.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from neutrino.errors import MachineCodeError
from tests.kernels.cases import cases
from tests.kernels.model import Case
from tests.sass_machine.executed import COUNTING, counted, judge_records
from tests.sass_machine.launching import Host, plain_program, records_of, twin_of
from tests.sass_machine.mutants import tally
from tests.sass_twin.listing import tool

_CASES = {"vecadd": (2, 256), "reduce_shuffle": (2, 256), "collatz": (1, 64)}
"""Blocks and their threads. A vector sum; one with shared memory, shuffles and atomics; a loop that each lane leaves
when it is done."""
PROBES = ("block_sched", "gmem_bytes", "dmat")
_ATOMIC = ("reduce_shuffle", "dmat")
"""Left alone: there is no code for atomics."""


def few_blocks(name: str, grid: tuple[int, int, int], block: tuple[int, int, int] | None = None) -> Case:
    """A case with fewer blocks: what these compute is the same."""
    (case,) = (case for case in cases() if case.name == name)
    return dataclasses.replace(case, grid=grid, block=block or case.block)


@pytest.fixture(scope="module", params=_CASES)
def host(request) -> Host:
    tool("ptxas")
    blocks, threads = _CASES[request.param]
    return Host(few_blocks(request.param, (blocks, 1, 1), (threads, 1, 1)))


def _bytes(results: dict[int, np.ndarray]) -> dict[int, bytes]:
    return {place: array.tobytes() for place, array in results.items()}


def test_plain_kernels_compute_what_their_ptx_does(host):
    wanted = _bytes(host.run_ptx())
    program = plain_program(host.case.path, host.case.kernel)
    for seed in (None, 1):
        launch = host.run_machine_code(program, seed=seed)
        assert launch.executed > 100
        assert _bytes(host.results()) == wanted


@pytest.mark.parametrize("probe", PROBES)
def test_twins_compute_the_same_and_record_what_their_ptx_does(host, probe):
    case = host.case
    if (case.name, probe) == _ATOMIC:
        with pytest.raises(MachineCodeError, match="for which the probes have no code"):
            twin_of(case.path, case.kernel, probe)
        return
    wanted = _bytes(host.run_ptx())
    records = records_of(host.run_twin_of_ptx(probe))
    plain = host.run_machine_code(plain_program(case.path, case.kernel))
    assert sum(map(len, records.values())) > 0
    for seed in (None, 1):
        views = host.run_twin(probe, seed=seed, in_graph=seed is None)
        assert _bytes(host.results()) == wanted
        assert records_of(views) == records
        assert list(judge_records(probe, plain, host.launched, views)) == []


@pytest.mark.parametrize("probe", COUNTING)
def test_twins_count_the_instructions_that_lanes_execute(host, probe):
    case = host.case
    plain = host.run_machine_code(plain_program(case.path, case.kernel))
    wanted = _bytes(host.results())
    assert counted(probe, plain)["all"] == sum(plain.lanes_at.values()) > 1000
    for seed in (None, 1):
        views = host.run_twin(probe, seed=seed, in_graph=seed is None)
        assert _bytes(host.results()) == wanted
        assert list(judge_records(probe, plain, host.launched, views)) == []


def test_faults_are_seen_by_both_judges():
    tool("ptxas")
    # Some lanes end at once, the others at the end.
    case = few_blocks("vecadd", (1, 1, 1), (32, 1, 1))
    host = Host(dataclasses.replace(case, arguments=(*case.arguments[:-1], np.int32(20))))
    found = tally(host, "block_sched")
    # Nothing that goes wrong when it runs may pass the checker.
    assert found.missed == []
    # Of waits, those for what nobody else waits for; of stalls, those that anybody needs.
    least = {"write barrier": 1.0, "wait": 0.9, "read barrier": 1.0, "stall": 0.5}
    for name, share in least.items():
        assert found.tried[name] >= 2
        assert found.ran[name] >= share * found.tried[name], (name, found)


def test_faults_of_counting_are_seen_by_the_checker():
    tool("ptxas")
    case = few_blocks("vecadd", (1, 1, 1), (32, 1, 1))
    host = Host(dataclasses.replace(case, arguments=(*case.arguments[:-1], np.int32(20))))
    found = tally(host, "inst_count", every=11)
    assert found.missed == []
    assert sum(found.checked.values()) >= sum(found.ran.values()) > 10
