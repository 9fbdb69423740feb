"""What code of a snippet may ask of the place where it stands: values of the hardware, the instruction, the launch."""

from __future__ import annotations

from typing import Protocol

from neutrino.gcn.instrument.code import Code, Place, Scalar, Value
from neutrino.ir.operands import Register, SiteOperand, Special


class Surroundings(Protocol):
    """Of one snippet at one site, or at a kernel's entry or end. Its methods append instructions to ``code`` where they
    need some."""

    @property
    def code(self) -> Code:
        """The text of the snippet (a probe's code at one place), to which instructions are appended, and its registers.
        """

    @property
    def site(self) -> int:
        """The number of the site (place where probes run) that the snippet is for; 0 of a kernel's entry and ends."""

    @property
    def is_exec_known(self) -> bool:
        """Whether at least one lane is known to be active where the snippet runs (EXEC is not 0)."""

    def home(self, register: Register) -> Place:
        """Return where a register is that lives from the kernel's entry to its ends: a probe's shared one, or one that
        a map keeps (``Kept``). A ``Vector`` where lanes may differ."""

    def special(self, special: Special) -> Value:
        """Return where a value of the hardware is, such as the lane's number; code that reads it is appended.

        The registers are the snippet's, to be released.
        """

    def operand(self, operand: SiteOperand) -> Value:
        """Return a value of the site's instruction, bits unchanged. The registers may be the program's: they are only
        read. A predicate is a ``Mask``."""

    def block_words(self, offset: int, words: int = 1) -> Scalar:
        """Load 1 or 2 words of the probe block, and wait for them. offset: from its beginning, in bytes."""

    def grid_blocks(self, axis: int) -> Value:
        """Return how many work-groups the launch's grid has on an axis (0 to 2), as a u32."""
