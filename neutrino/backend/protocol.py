"""What a way of probing is: the steps from a kernel's code to what the hook launches in its place.

    kernels ─ plan ─► where the probes go ─ write ─► code with probes ─ assemble ─► verified outcomes ─ entries ─► BackendResult

Each step takes the value that the one before gave, and changes nothing of it. Twins of one PTX module are one way
(``ptx_twin.py``), twins of modules that the device linker put together another (``linked_twin.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from neutrino.abi.reasons import Reason
from neutrino.cache.entry import KernelEntry
from neutrino.ptx.instrument.twin import LeftOut, Site


class PlannedKernel(Protocol):
    """Where the probes go in one kernel; an entry and an end are sites, too.

    name: the kernel's. site_count: how many sites there are, which is found out without looking at what stands there.
    lines: where the kernel, and functions that it calls with probes in them, begin in its source, from 1, by name.
    """

    @property
    def name(self) -> str: ...

    @property
    def site_count(self) -> int: ...

    @property
    def sites(self) -> Sequence[Site]: ...

    @property
    def left_out(self) -> Sequence[LeftOut]: ...

    @property
    def lines(self) -> Mapping[str, int]: ...


class Plan(Protocol):
    """Where the probes go in the kernels that were asked for; a value that nobody changes.

    kernels: those that can be probed as far as their code says. refused: the others, and why. Each kernel that was
    asked for is in one of both.
    """

    @property
    def kernels(self) -> Sequence[PlannedKernel]: ...

    @property
    def refused(self) -> Mapping[str, tuple[Reason, str]]: ...


_Plan = TypeVar("_Plan", bound=Plan)
_Code = TypeVar("_Code")
_Outcomes = TypeVar("_Outcomes")


@dataclass(frozen=True)
class BackendResult:
    """What became of the planned kernels: their entries by name, and the images that those name by their places."""

    entries: Mapping[str, KernelEntry]
    images: tuple[bytes, ...] = ()


class Backend(Protocol[_Plan, _Code, _Outcomes]):
    """A way of probing the kernels of one image for one device with one set of probes.

    target: what probes have to be lowered to, and hand-written assembly in them to be. kernels: the names of all
    kernels of the image. refusal: why none of them can be probed; None when some may. What of a probe's tracepoints and
    operands it can do for a kernel, ``plan`` says for each.
    """

    @property
    def target(self) -> str: ...

    @property
    def kernels(self) -> Sequence[str]: ...

    @property
    def refusal(self) -> tuple[Reason, str] | None: ...

    def plan(self, kernels: Sequence[str]) -> _Plan:
        """Find where the probes go. Nothing is started for it. Raises ProbeError for what an instruction has not."""

    def write(self, plan: _Plan) -> _Code:
        """The planned kernels' code with the probes in it."""

    def assemble(self, code: _Code) -> _Outcomes:
        """Machine code of it, each held against its original's. Raises ToolError, OSError of the machine's faults."""

    def entries(self, code: _Code, outcomes: _Outcomes) -> BackendResult:
        """What the hook has to know, and the driver is given."""
