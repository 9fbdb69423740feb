"""The protocol of a backend: the steps from original kernels to the twins that the hook launches in their place.

    kernels ─ plan ─► sites ─ write ─► code with probes ─ assemble ─► verified outcomes ─ entries ─► BackendResult

Each step takes the immutable value that the previous one returned. There are two backends: for the kernels of one PTX
module (``ptx_twin.py``), and for those of modules that the device linker put together (``linked_twin.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from neutrino.abi.reasons import Reason
from neutrino.cache.entry import KernelEntry
from neutrino.twins.values import LeftOut, Site


class PlannedKernel(Protocol):
    """Where the probes go in one kernel.

    name: the kernel's. sites: the instructions that probes match, and the kernel's entry and ends if probes run there.
    site_count: their number, which takes less time to find than the sites themselves. left_out: sites that cannot be
    probed. lines: the line in the PTX (from 1) where the kernel, and each function with probes that it calls, begins,
    by name.
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
    """Where the probes go in the kernels that were asked for; immutable.

    kernels: those that can be probed, as far as their code shows. refused: the others, by name, with reason and detail.
    Each kernel that was asked for is in exactly one of the two.
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
    """The result of a backend. entries: by the kernel's name. images: of the twins; entries refer to them by index."""

    entries: Mapping[str, KernelEntry]
    images: tuple[bytes, ...] = ()


class Backend(Protocol[_Plan, _Code, _Outcomes]):
    """A way of probing the kernels of one image, for one device, with one set of probes.

    target: the assembly language of the probes' code, such as ``ptx``. kernels: the names of all kernels of the image.
    refusal: why none of them can be probed; None if some may. Which of a probe's tracepoints and operands are supported
    in a kernel shows in the result of ``plan``.
    """

    @property
    def target(self) -> str: ...

    @property
    def kernels(self) -> Sequence[str]: ...

    @property
    def refusal(self) -> tuple[Reason, str] | None: ...

    def plan(self, kernels: Sequence[str]) -> _Plan:
        """Find where the probes go in the named kernels, without running any tool.

        Raises ProbeError if a probe reads an operand that a matched instruction does not have.
        """

    def write(self, plan: _Plan) -> _Code:
        """Return the planned kernels' code with the probes in it."""

    def assemble(self, code: _Code) -> _Outcomes:
        """Assemble the code and compare each twin (instrumented copy of a kernel) with its original.

        Raises ToolError, OSError for failures of the machine.
        """

    def entries(self, code: _Code, outcomes: _Outcomes) -> BackendResult:
        """Return what the hook has to know of each kernel, and the images that the driver loads."""
