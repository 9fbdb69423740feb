"""Random kernels: what ptxas makes of them computes what their PTX does, and breaks no rule on timing; so do twins."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from neutrino.errors import MachineCodeError
from neutrino.toolchain.refusal import AssemblyError
from tests.kernels.model import Case
from tests.oracle.bench import Kernel
from tests.oracle.random_kernels import kernels
from tests.sass_machine.executed import judge_records
from tests.sass_machine.launching import Host, plain_program, twin_of
from tests.sass_twin.listing import tool

_FEW, _MORE = 3, "NEUTRINO_RANDOM_MACHINE_CODE"
"""Kernels of a usual run, and the variable that asks for another number."""
_PROBES = ("block_sched", "gmem_bytes", "dmat", "inst_count")


def as_case(kernel: Kernel, folder: Path) -> Case:
    """A kernel of the oracle's as a case."""
    path = folder / "random.ptx"
    if path.exists() and path.read_text() != kernel.text:
        path = folder / f"{abs(hash(kernel.text)):x}.ptx"
    path.write_text(kernel.text)
    return Case(kernel.name, path, kernel.entry, kernel.grid, kernel.block, kernel.arguments, {}, kernel.shared)


def judge(case: Case, seed: int | None = None) -> list[str]:
    """What is wrong with a kernel or its twins, run under a seed."""
    host = Host(case)
    wanted = [array.tobytes() for array in host.run_ptx().values()]

    def same() -> bool:
        return [array.tobytes() for array in host.results().values()] == wanted

    wrong = []
    plain = host.run_machine_code(plain_program(case.path, case.kernel), seed=seed)
    if not same():
        wrong.append("the kernel computes something else")
    for probe in _PROBES:
        try:
            twin_of(case.path, case.kernel, probe)
        except MachineCodeError:
            continue
        views = host.run_twin(probe, seed=seed, in_graph=bool(seed))
        if not same():
            wrong.append(f"{probe}: the twin computes something else")
        # Those of PTX have loads that ptxas leaves out.
        wrong += [f"{probe}: {one}" for one in judge_records(probe, plain, host.launched, views)]
    return wrong


def test_random_kernels(tmp_path_factory: pytest.TempPathFactory) -> None:
    tool("ptxas")
    folder = tmp_path_factory.mktemp("random")
    count = int(os.environ.get(_MORE, _FEW))
    ran = []

    @settings(
        max_examples=count, deadline=None, database=None, derandomize=count == _FEW, phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip
    @given(kernels())
    def check(kernel: Kernel) -> None:
        case = as_case(kernel, folder)
        try:
            plain_program(case.path, case.kernel)
        except AssemblyError:
            # ptxas itself crashes on one of some fifty of these.
            return
        assert judge(case, len(ran) % 3 or None) == [], kernel.text
        ran.append(np.count_nonzero(kernel.arguments[0]))

    check()
    assert len(ran) >= 0.9 * count - 1
