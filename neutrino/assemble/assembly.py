"""The interface between the attempts and what assembles originals and twins."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from neutrino.assemble.emit import Emit
from neutrino.sass.cubin import Cubin
from neutrino.toolchain.ptxas import Assembled


class CutError(Exception):
    """The originals of a part cannot be assembled without the module's other kernels."""


@dataclass(frozen=True)
class AssembledTwins:
    """Twins that were assembled together.

    image: what is loaded into the driver, in the form emit. assembled: the cubin, and what ptxas reports of it.
    """

    image: bytes
    assembled: Assembled
    emit: Emit = Emit.SASS


class Assembly(Protocol):
    """Assembles the original kernels of one image and their twins (instrumented copies).

    name: of the assembler, with its version. arch: the target architecture. machine: the originals' machine code that
    runs; None if the driver compiles their text. bounded_stack: whether a thread's stack has the size that the program
    asked for, as on every GPU. max_registers: the user's register cap of twins, None without one. ``originals`` and
    ``twins`` raise as ``Assembler.assemble`` and may run at the same time.
    """

    @property
    def name(self) -> str: ...

    @property
    def arch(self) -> str: ...

    @property
    def machine(self) -> Cubin | None: ...

    @property
    def bounded_stack(self) -> bool: ...

    @property
    def max_registers(self) -> int | None: ...

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
        """Assemble the twins of the named kernels.

        registers: limits per thread, by the kernel's name, beside the user's. stage: name of the files under
        ``--save-temps``; "" writes none.
        """
