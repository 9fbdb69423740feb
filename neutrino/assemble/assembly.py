"""The interface between the attempts and what assembles originals and twins."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from neutrino.assemble.emit import Emit
from neutrino.assemble.machine_code import CodeReader, MachineCode
from neutrino.toolchain.assembled import Assembled
from neutrino.twins.values import AssembledTwin


class CutError(Exception):
    """The originals of a part cannot be assembled without the module's other kernels."""


@dataclass(frozen=True)
class AssembledTwins:
    """Twins that were assembled together.

    image: what is loaded into the driver, in the form emit. assembled: the machine code, and what the assembler reports
    of it.
    """

    image: bytes
    assembled: Assembled
    emit: Emit = Emit.CODE


@dataclass(frozen=True)
class ExplicitTwins:
    """Twins with explicit FMA. All mappings are by the original kernel's name.

    twins: with the new text. refused: why other twins cannot be written so. codes: for twins whose text still leaves
    the assembler a choice, the machine code in which it chose as in the original.
    """

    twins: Mapping[str, AssembledTwin]
    refused: Mapping[str, str]
    codes: Mapping[str, bytes] = field(default_factory=dict)


class Assembly(Protocol):
    """Assembles the original kernels of one image and their twins (instrumented copies).

    name: of the assembler, with its version. language: what it assembles, for messages. arch: the target architecture.
    machine: the originals' machine code that runs; None if the driver compiles their text. reader: reads such code, and
    compares it. bounded_stack: whether a thread's stack has the size that the program asked for, as on every GPU.
    max_registers: the user's register cap of twins, None without one. mark: part of the file names under
    ``--save-temps``. is_part: whether these are only some of the twins of an image, so that ``originals`` raises
    CutError if they are refused. can_be_explicit: whether ``explicit`` may be called. ``originals`` and ``twins`` raise
    as ``Assembler.assemble`` and may run at the same time.
    """

    @property
    def name(self) -> str:
        """The name and version of the assembler that makes machine code of the kernels."""

    @property
    def language(self) -> str:
        """The name of the assembly language that is assembled, such as ``PTX``, for messages."""

    @property
    def arch(self) -> str:
        """The GPU architecture that the kernels are assembled for, as ``sm_90``."""

    @property
    def machine(self) -> MachineCode | None:
        """The machine code of the original kernels that runs; None if the driver compiles their text."""

    @property
    def reader(self) -> CodeReader:
        """What reads the machine code that the assembler makes, and compares kernels in it."""

    @property
    def bounded_stack(self) -> bool:
        """Whether a thread's stack has the size that the program asked for, as on every GPU."""

    @property
    def max_registers(self) -> int | None:
        """The user's cap on registers per thread of twins (copies with probes); None without one."""

    @property
    def mark(self) -> str:
        """A part of the names of the files that the option ``--save-temps`` keeps of these kernels."""

    @property
    def is_part(self) -> bool:
        """Whether these are only some of the twins (copies with probes) of an image, so that ``originals`` raises
        CutError if they are refused.
        """

    @property
    def can_be_explicit(self) -> bool:
        """Whether twins (copies with probes) can be written so that their text says what is fused (``explicit``)."""

    def of(self, twins: Sequence[AssembledTwin], mark: str, *, is_part: bool, unfused: bool = False) -> Assembly:
        """Return the assembly of other twins (copies with probes) of the same kernels, or of some of them.

        mark, is_part: as for the class. unfused: whether the assembler is asked to fuse no product with a sum.
        """

    def explicit(self, twins: Sequence[AssembledTwin]) -> ExplicitTwins:
        """Write twins (copies with probes) so that their text says which products are fused with sums.

        These are the ones that are fused in the original's machine code. That leaves the assembler no choice. A twin
        that cannot be written so is in the result's ``refused``, with the reason. Raises as ``Assembler.assemble``, and
        CutError.
        """

    def caps(self, names: Collection[str], registers: Mapping[str, int] | None = None) -> Mapping[str, int]:
        """Return by name the register caps that ``twins`` assembles those of the named kernels under.

        registers: as for ``twins``.
        """

    def originals(self, names: Collection[str]) -> Assembled:
        """Assemble the original text of the named kernels, possibly with others.

        Raises CutError instead of AssemblyError if they are only a part of their module.
        """

    def twins(
        self, names: Collection[str], registers: Mapping[str, int] | None = None, *, stage: str = ""
    ) -> AssembledTwins:
        """Assemble the twins (copies with probes) of the named kernels.

        registers: limits per thread, by the kernel's name, beside the user's. stage: name of the files under
        ``--save-temps``; "" writes none.
        """
