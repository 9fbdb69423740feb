"""How originals and twins become machine code, whatever they are assembled and linked with."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from neutrino.assemble.emit import Emit
from neutrino.sass.cubin import Cubin
from neutrino.toolchain.ptxas import Assembled


class CutError(Exception):
    """The originals of a part are refused without the module's other kernels."""


@dataclass(frozen=True)
class AssembledTwins:
    """Twins assembled together. image: what the driver is given, in the form emit."""

    image: bytes
    assembled: Assembled
    emit: Emit = Emit.SASS


class Assembly(Protocol):
    """How the originals and the twins of one image become machine code.

    name: of what assembles, with its version. arch: what for. machine: the originals as they run, None where that
    is what assembling their text gives. bounded_stack: a thread has no more stack than the program has asked for, as on
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
        """The named kernels' own text assembled, possibly with others. Raises CutError in place of AssemblyError where
        this is a part of a module, and only the whole of it can be assembled."""

    def twins(
        self, names: Collection[str], registers: Mapping[str, int] | None = None, *, stage: str = ""
    ) -> AssembledTwins:
        """The named kernels' twins, under a register cap where registers has one. stage: dumped under that name."""
