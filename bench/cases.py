"""The closed list of what the road runs: the runner and the verdicts both read it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class Mode(enum.Enum):
    """How a workload runs: without Neutrino, or under it with these probes."""

    PLAIN = "plain"
    BLOCK_SCHED = "block_sched"
    GMEM_BYTES = "gmem_bytes"
    BOTH = "both"

    @property
    def probes(self) -> tuple[str, ...]:
        """The names of the probes of this mode, as the option ``-p`` takes them; () without any."""
        if self is Mode.BOTH:
            return (Mode.BLOCK_SCHED.value, Mode.GMEM_BYTES.value)
        return () if self is Mode.PLAIN else (self.value,)


EACH = (Mode.PLAIN, Mode.BLOCK_SCHED, Mode.GMEM_BYTES)
ALL = (*EACH, Mode.BOTH)


@dataclass(frozen=True)
class Workload:
    """One program under ``bench/workloads``.

    source: file name. seeds: how many it computes in its one process. alone: nothing else runs beside it. variables:
    environment. flags: of nvcc.
    """

    name: str
    source: str
    modes: tuple[Mode, ...] = EACH
    seeds: int = 20
    alone: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()

    @property
    def is_python(self) -> bool:
        """Whether this workload is a Python program, and not a CUDA source to be compiled."""
        return self.source.endswith(".py")


WORKLOADS = (
    Workload("vecadd", "vecadd.cu", ALL),
    # The same program with a stream for each thread: its launches reach the driver by the _ptsz names.
    Workload("vecadd_per_thread", "vecadd.cu", flags=("--default-stream", "per-thread")),
    Workload("reduction", "reduction.cu", ALL),
    Workload("matmul", "matmul.cu", ALL),
    Workload("half", "half.cu", ALL),
    Workload("variables", "variables.cu", ALL),
    Workload("shapes", "shapes.cu"),
    Workload("spaces", "spaces.cu"),
    Workload("exits", "exits.cu"),
    Workload("clocks", "clocks.cu", alone=True),
    Workload("streams", "streams.cu", alone=True),
    Workload("reload", "reload.cu"),
    Workload("printing", "printing.cu"),
    Workload("spin", "spin.cu", seeds=4, alone=True),
    Workload("triton_softmax", "triton_softmax.py", ALL),
    Workload("triton_matmul", "triton_matmul.py", ALL),
    Workload("cupy_vecadd", "cupy_vecadd.py", variables={"CUPY_COMPILE_WITH_PTX": "1"}),
)

IMAGES = ("reload_one", "reload_two")
"""Fatbins that reload.cu loads, from .cu files of these names."""

SUBMIT_MODES: Mapping[str, tuple[str, ...] | None] = {
    "plain": None,
    "not_probed": ("-p", "block_sched", "-k", "nothing_matches_this"),
    "block_sched": ("-p", "block_sched"),
    "gmem_bytes": ("-p", "gmem_bytes"),
}
"""How the submission of 20 000 small launches is measured: options of ``neutrino``, None for no Neutrino at all."""
SUBMIT_LAUNCHES = 20_000
SUBMIT_REPETITIONS = 5
SUBMIT_PROCESSES = 3

WARM = ("vecadd", "matmul", "triton_softmax")
"""Workloads whose block_sched run is made once more, with everything cached."""


def workload(name: str) -> Workload:
    """Return the workload of that name; KeyError when there is none."""
    return {entry.name: entry for entry in WORKLOADS}[name]
