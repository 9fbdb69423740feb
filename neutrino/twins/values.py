"""Twins (instrumented copies of kernels) as everybody sees them but the target that wrote them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from neutrino.abi.reasons import Reason
from neutrino.maps.declaration import Map
from neutrino.twins.probe_units import Found, ProbeLeftOut, ProbeUnit, Refusal

SUFFIX = "__neutrino"
"""Added to a kernel's name, for its twin's."""


class Site(NamedTuple):
    """A place where a probe went. line: in the kernel's text, from 1. instruction: its text, in one line.

    number: of an instruction, what ``SITE`` is there; None at entries and ends. source: the line of the source and
    those that it was inlined into, as ``file.cu:42, inlined at main.cu:7``; "" where the text does not say.
    function: the kernel or the called function that it is in.
    """

    probe: str
    tracepoint: str
    line: int
    instruction: str
    number: int | None = None
    source: str = ""
    function: str = ""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An instruction that a probe matches and could not go to. reason: why. Else as in a ``Site``."""

    probe: str
    tracepoint: str
    line: int
    instruction: str
    source: str
    reason: str
    function: str = ""


@dataclass(frozen=True)
class SkippedKernel:
    """A kernel without a twin. detail: what exactly stood in the way."""

    name: str
    reason: Reason
    detail: str


class Placed(Protocol):
    """A parameter's place: offset and size in bytes."""

    @property
    def offset(self) -> int:
        """Where a kernel's parameter begins in the memory of its parameters, in bytes."""

    @property
    def size(self) -> int:
        """How many bytes a kernel's parameter has."""


class Copy(Protocol):
    """A twin's own copy of a function that the kernel calls, with probes in it.

    name: the function's. copy_name: the copy's. own_arithmetic: how many floating-point instructions the probes add, by
    machine mnemonic. is_recursive: whether it calls itself, directly or not.
    """

    @property
    def name(self) -> str:
        """The name of the function of which a twin (kernel with probes) has a copy with probes."""

    @property
    def copy_name(self) -> str:
        """The name that the copy of a function has in the text of a twin (kernel with probes)."""

    @property
    def own_arithmetic(self) -> Mapping[str, int]:
        """How many floating-point instructions the probes in it add, by machine mnemonic."""

    @property
    def is_recursive(self) -> bool:
        """Whether the function calls itself, directly or not."""


class Twin(Protocol):
    """One kernel's twin. Offsets and sizes are bytes of its parameters.

    name: of the original kernel. twin_name: its own. parameters: the original's, which it has too. block_offset,
    block_size: of the probe block, its last parameter. lanes: of the kernel's warps. maps: the probes', with cap 0 for
    logs that nothing in the twin saves to. variables: names of those whose addresses are passed, in the order of the
    probe block. sites: where probes went. left_out: instructions that were to be probed and are not. probes_left_out:
    those of the set that cannot be placed in this kernel. length_warning: what to say before it is assembled, if that
    takes long, else "".
    """

    @property
    def name(self) -> str:
        """The name of the original kernel, of which this twin is a copy with probes."""

    @property
    def twin_name(self) -> str:
        """The name that the twin (copy with probes) itself has in its image."""

    @property
    def parameters(self) -> Sequence[Placed]:
        """The original kernel's parameters, which the twin (copy with probes) has too."""

    @property
    def block_offset(self) -> int:
        """Where the probe block (its last parameter, what a launch passes to the probes) begins, in bytes."""

    @property
    def block_size(self) -> int:
        """How many bytes the probe block has: the twin's last parameter, what a launch passes to the probes."""

    @property
    def lanes(self) -> int:
        """How many threads a warp of the kernel has: 32 or 64."""

    @property
    def maps(self) -> Sequence[Map]:
        """What the probes save to; a log that nothing in this twin (copy with probes) saves to has cap 0."""

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the variables whose addresses the probe block passes, in its order."""

    @property
    def sites(self) -> Sequence[Site]:
        """The sites of the twin (copy with probes): where in the kernel probes run."""

    @property
    def left_out(self) -> Sequence[LeftOut]:
        """The instructions of the kernel that a probe matches and that it could not be put at, with the reasons."""

    @property
    def probes_left_out(self) -> Sequence[ProbeLeftOut]:
        """The probes of the run that could not be placed in this kernel, with the reasons."""

    @property
    def length_warning(self) -> str:
        """What to say before the twin (copy with probes) is assembled, if that takes long, else ""."""

    def files(self, cap: int | None) -> Mapping[str, bytes]:
        """Return the texts that a trace keeps of it and its original, by file name.

        cap: the most registers per thread that it was assembled with, None for no limit.
        """


class AssembledTwin(Twin, Protocol):
    """A twin whose text an assembler turns into machine code that is compared with the original's.

    own_arithmetic: how many floating-point instructions the probes add, by machine mnemonic. calls: names of the
    functions that it calls, directly or not. all_copies: those that have probes. contractible: whether the assembler
    may fuse some product with a sum. loose: the text of a sum that it may fuse with either of two products, None
    without one. self_contained: whether the kernel names nothing of its image that is in global or constant memory, and
    no function. may_wait: whether a thread of the original may wait for another block.
    """

    @property
    def own_arithmetic(self) -> Mapping[str, int]:
        """How many floating-point instructions the probes add to the twin (copy with probes), by machine mnemonic."""

    @property
    def calls(self) -> Sequence[str]:
        """Names of the functions that the twin (copy with probes) calls, directly or not."""

    @property
    def all_copies(self) -> Sequence[Copy]:
        """The copies of functions, with probes in them, that the twin (kernel with probes) calls in place of the
        originals."""

    @property
    def contractible(self) -> bool:
        """Whether the assembler may fuse some product with a sum, which rounds once instead of twice."""

    @property
    def loose(self) -> str | None:
        """The text of a sum that the assembler may fuse with either of two products; None without one."""

    @property
    def self_contained(self) -> bool:
        """Whether the kernel names no function, and nothing of its image that is in global or constant memory."""

    @property
    def may_wait(self) -> bool:
        """Whether a thread of the original kernel may wait for another block, so that all blocks must run at the same
        time."""


class TwinsWithFewer(Protocol):
    """Twins of one planned kernel with fewer probes than the plan has.

    units: the probes with a site in the kernel, in units of those that can be left out together.
    """

    @property
    def units(self) -> Sequence[ProbeUnit]:
        """The probes with a site (instruction that probes match) in the kernel, in groups that can only be left out
        together.
        """

    def twin(self, names: Collection[str]) -> AssembledTwin | Refusal:
        """Return the twin (copy with probes) with only those of these probes that have these names, or why there is
        none.
        """

    def with_notes(self, twin: AssembledTwin, found: Found) -> AssembledTwin:
        """Return a twin (copy with probes) of this kernel that has the probes that a search has kept, with notes about
        the others.
        """


def ignore(twin: Twin) -> None:
    """Tell nobody of a long twin: for callers that take a function which warns, and want no warning."""
