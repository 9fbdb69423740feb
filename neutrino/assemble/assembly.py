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
    """Twins assembled together. image: what is loaded into the driver, in the form emit."""

    image: bytes
    assembled: Assembled
    emit: Emit = Emit.SASS


class Assembly(Protocol):
    """Assembles the originals and the twins of one image.

    name: of the assembler, with its version. arch: the target. machine: the code of the originals that runs, None if it
    is what assembling their text gives. bounded_stack: a thread's stack has the size that the program asked for, as on
    every GPU. Both methods raise as ``Assembler.assemble`` and may run at the same time.
    """

    @property
    def name(self) -> str: ...

    @property
    def arch(self) -> str: ...

    @property
    def machine(self) -> Cubin | None: ...

    @property
    def bounded_stack(self) -> bool: ...

    def originals(self, names: Collection[str]) -> Assembled:
        """Assemble the named kernels' original text, possibly with others. Raises CutError in place of AssemblyError
        for a part of a module."""

    def twins(
        self, names: Collection[str], registers: Mapping[str, int] | None = None, *, stage: str = ""
    ) -> AssembledTwins:
        """Assemble the named kernels' twins, with the register caps in registers. stage: the name in dumps."""
