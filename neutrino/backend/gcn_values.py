"""Values on the way from a kernel of AMD's to its twin (instrumented copy): where probes go, and what was written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neutrino.abi.probe_block import block_size
from neutrino.abi.reasons import Reason
from neutrino.abi.structures import align_up
from neutrino.backend.gcn_source import CodeObjectSource
from neutrino.backend.gcn_text import FunctionText
from neutrino.probing.ir.probe_set import Probe, ProbeSet
from neutrino.twins.probe_units import ProbeLeftOut
from neutrino.twins.values import SUFFIX, LeftOut, Site

if TYPE_CHECKING:
    from neutrino.gcn.code import Function
    from neutrino.maps.declaration import Map


@dataclass(frozen=True)
class Place:
    """A parameter's place: offset and size in bytes."""

    offset: int
    size: int


@dataclass(frozen=True, eq=False)
class GcnKernel:
    """Where the probes go in one kernel; a ``PlannedKernel``.

    source: the code object that it is in. function: its code. text: how that is shown. at: the probes at each
    instruction, by its offset. figures: of the original.
    """

    name: str
    source: CodeObjectSource
    function: Function
    text: FunctionText
    sites: Sequence[Site]
    at: Mapping[int, tuple[Probe, ...]]
    probes: ProbeSet
    figures: Any
    parameters: tuple[Place, ...]
    left_out: Sequence[LeftOut] = ()
    probes_left_out: Sequence[ProbeLeftOut] = ()

    @property
    def site_count(self) -> int:
        """The number of sites."""
        return len(self.sites)

    @property
    def lines(self) -> Mapping[str, int]:
        """By name, the line where the kernel begins: each has a text of its own."""
        return {self.name: 1}


@dataclass(frozen=True)
class GcnPlan:
    """A ``Plan``."""

    kernels: tuple[GcnKernel, ...]
    refused: Mapping[str, tuple[Reason, str]]


@dataclass(frozen=True)
class GcnTwin:
    """A kernel's twin; ``Twin``. original, probed: texts. code: what is appended. registers: of the original and of the
    twin, vector registers."""

    name: str
    twin_name: str
    parameters: tuple[Place, ...]
    block_offset: int
    block_size: int
    lanes: int
    maps: tuple[Map, ...]
    sites: Sequence[Site]
    left_out: Sequence[LeftOut]
    probes_left_out: Sequence[ProbeLeftOut]
    original: str
    probed: str
    code: Any
    registers: tuple[int, int]
    added: int
    variables: tuple[str, ...] = ()
    length_warning: str = ""

    def files(self, cap: int | None) -> Mapping[str, bytes]:
        """Return the texts that a trace keeps of it. cap: nothing for these twins, which no assembler gives registers.
        """
        return {"original.s": self.original.encode(), "probed.s": self.probed.encode()}


@dataclass(frozen=True)
class GcnCode:
    """Twins, the image that has them, and why other planned kernels have none."""

    twins: tuple[GcnTwin, ...]
    image: bytes
    refused: Mapping[str, tuple[Reason, str]]
    llvm: str


def block_of(kernel: GcnKernel) -> Place:
    """Return where the probe block is among a twin's arguments: behind all of the original's, hidden ones included."""
    return Place(align_up(kernel.figures.kernarg_segment, 8), block_size(len(kernel.probes.maps), 0))


def twin_name(kernel: GcnKernel) -> str:
    """Return the name of a kernel's twin."""
    return kernel.name + SUFFIX
