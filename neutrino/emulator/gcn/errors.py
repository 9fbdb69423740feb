"""What the interpreter raises."""

from __future__ import annotations

from neutrino.errors import NeutrinoError


class GcnError(NeutrinoError):
    """A kernel that cannot be run, or did what it must not do."""


class UnknownInstructionError(GcnError):
    """An instruction, operand or register that the interpreter does not know. text: as it was disassembled."""

    def __init__(self, text: str, reason: str = "") -> None:
        """Build the message from the instruction's text and the reason, "" without one."""
        super().__init__(f"the interpreter does not know {text!r}{': ' + reason if reason else ''}")
        self.text = text


class GcnFaultError(GcnError):
    """Something that a program must not do: an access out of bounds, a missing wait, waves that wait for ever.

    kind: ``memory``, ``lds``, ``scratch``, ``wait``, ``register``, ``clause``, ``limit``, ``code`` or ``trap``.
    """

    def __init__(self, kind: str, message: str) -> None:
        """Set the message and the kind of fault. kind: see the class."""
        super().__init__(message)
        self.kind = kind
