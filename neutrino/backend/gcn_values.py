"""Values on the way from a kernel of AMD's to its twin (instrumented copy): where probes go, and what was written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from neutrino.abi.probe_block import BLOCK_EXTENTS, block_size
from neutrino.abi.reasons import Reason
from neutrino.abi.structures import align_up
from neutrino.backend.gcn_source import CodeObjectSource
from neutrino.backend.gcn_text import FunctionText, function_text
from neutrino.backend.protocol import TwinText
from neutrino.probing.ir.probe_set import Probe, ProbeSet
from neutrino.twins.probe_units import ProbeLeftOut
from neutrino.twins.spool import Spool, Spooled, SpooledFiles
from neutrino.twins.values import SUFFIX, LeftOut, Site

if TYPE_CHECKING:
    from neutrino.gcn.code import Function
    from neutrino.maps.declaration import Map


ORIGINAL, PROBED = "original.s", "probed.s"
"""Names of the files with a twin's texts."""


@dataclass(frozen=True)
class Place:
    """A parameter's place: offset and size in bytes."""

    offset: int
    size: int


@dataclass(frozen=True, eq=False)
class GcnFunction:
    """A function that a twin has: the kernel, or one that it calls.

    first: the number of the first line of its text, which are counted on from function to function; line_count: how
    many there are. at: the probes at each instruction, by its offset. redirected: as ``gcn.splice.Member`` has it.
    """

    function: Function
    first: int
    line_count: int
    at: Mapping[int, tuple[Probe, ...]]
    redirected: frozenset[int] = frozenset()

    @property
    def name(self) -> str:
        """The function's name, as the code object has it."""
        return self.function.name

    def text(self) -> FunctionText:
        """Return how it is shown, written anew each time."""
        return function_text(self.function, first=self.first)


@dataclass(frozen=True, eq=False)
class GcnKernel:
    """Where the probes go in one kernel; a ``PlannedKernel``.

    source: the code object that it is in. functions: itself, and those that it calls and its twin has copies of.
    named: all functions whose registers probes must leave alone: those, and others that may be called by their
    addresses. figures: of the original.
    """

    name: str
    source: CodeObjectSource
    functions: tuple[GcnFunction, ...]
    named: tuple[Function, ...]
    sites: Sequence[Site]
    probes: ProbeSet
    figures: Any
    parameters: tuple[Place, ...]
    left_out: Sequence[LeftOut] = ()
    probes_left_out: Sequence[ProbeLeftOut] = ()

    @property
    def function(self) -> Function:
        """The kernel's own code."""
        return self.functions[0].function

    @property
    def at(self) -> Mapping[int, tuple[Probe, ...]]:
        """The probes at each instruction of the kernel itself, by its offset."""
        return self.functions[0].at

    @property
    def site_count(self) -> int:
        """The number of sites: instructions, the entry and ends of this kernel where probes run."""
        return len(self.sites)

    @property
    def lines(self) -> Mapping[str, int]:
        """Return by name the line of the text (from 1) where the kernel begins: each kernel has a text of its own."""
        return {one.name: one.first for one in self.functions}


@dataclass(frozen=True)
class GcnPlan:
    """A ``Plan``. kinds: a word for each refusal, by which they are counted: ``code``, ``instruction``, ``call``,
    ``site``."""

    kernels: tuple[GcnKernel, ...]
    refused: Mapping[str, tuple[Reason, str]]
    kinds: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GcnTwin:
    """A kernel's twin; ``Twin``. texts: the files ``original.s`` and ``probed.s``. sgprs: registers that it names.
    registers: of the original and of the twin, vector registers. added: instructions, inserted: bytes that it has more.
    parts: the texts of its functions, if they were asked for. left_out_kinds: a word for each of left_out: as of
    ``NotProbed``, and ``address`` in functions that are called by it."""

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
    texts: Mapping[str, Spooled]
    sgprs: int
    registers: tuple[int, int]
    added: int
    inserted: int
    parts: tuple[TwinText, ...] = ()
    left_out_kinds: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    length_warning: str = ""

    @property
    def original(self) -> str:
        """The text of the kernel without probes, and of the functions that it calls."""
        return self.texts[ORIGINAL].read().decode()

    @property
    def probed(self) -> str:
        """The text of the twin, and of its copies of functions."""
        return self.texts[PROBED].read().decode()

    def files(self, cap: int | None) -> Mapping[str, bytes]:
        """Return the texts that a trace keeps of it. cap: nothing for these twins, which no assembler gives registers.
        """
        return SpooledFiles(self.texts)


@dataclass(frozen=True)
class GcnCode:
    """Twins, the image that has them, and why other planned kernels have none. spool: what keeps the twins' texts.
    kinds: a word for each refusal: those of ``CannotError``, ``branch`` for what cannot be spliced, and ``append``."""

    twins: tuple[GcnTwin, ...]
    image: bytes
    refused: Mapping[str, tuple[Reason, str]]
    llvm: str
    spool: Spool = field(default_factory=Spool)
    kinds: Mapping[str, str] = field(default_factory=dict)


def block_of(kernel: GcnKernel) -> Place:
    """Return where the probe block is among a twin's arguments: after all of the original's, hidden ones included.
    The launch's extents are its last bytes."""
    size = block_size(len(kernel.probes.maps), 0) + BLOCK_EXTENTS
    return Place(align_up(kernel.figures.kernarg_segment, 8), size)


def twin_name(kernel: GcnKernel) -> str:
    """Return the name that a kernel's twin (instrumented copy) gets."""
    return kernel.name + SUFFIX


def copy_names(kernel: GcnKernel) -> tuple[str, ...]:
    """Return the names of a twin's functions: its own, and those of its copies of functions that the kernel calls."""
    names = [twin_name(kernel)]
    for one in kernel.functions[1:]:
        name = f"{one.name}{SUFFIX}_{kernel.name}"
        # Static functions of several sources may have one name.
        names.append(f"{name}__{one.function.address:x}" if name in names else name)
    return tuple(names)
