"""The operations that map types write their code with: a target (PTX) turns each of them into its instructions.

Registers are opaque names, of 32 or 64 bits; an operand is a register or a number. Types of operations are written
as in PTX: ``u32``, ``s64``.
"""

from __future__ import annotations

from typing import Protocol

Operand = str | int


class Operations(Protocol):
    """Arithmetic on registers. Each method emits one operation, and returns the new register that has its result."""

    def binary(self, operation: str, kind: str, a: Operand, b: Operand) -> str:
        """Emit add, sub, mul.lo, mul.hi or shr of u32 … s64, or and, or, xor of b32 and b64."""

    def compare(self, relation: str, kind: str, a: Operand, b: Operand) -> str:
        """Emit a comparison (eq, ne, lt, le, gt or ge); returns a predicate."""

    def both(self, a: str, b: str) -> str:
        """Emit the conjunction of two predicates; returns a predicate."""

    def select(self, bits: int, when: str, a: Operand, b: Operand) -> str:
        """Emit a selection: a where the predicate ``when`` holds, else b."""

    def convert(self, to: str, kind: str, a: str) -> str:
        """Emit the conversion of an integer of type ``kind`` to another width."""

    def highest_bit(self, kind: str, a: str) -> str:
        """Emit the search for the highest bit that is set, from 0; -1 if there is none. Returns a u32."""


class SaveWriter(Operations, Protocol):
    """Writes the code of one ``SAVE``, for the threads that execute it."""

    def append_record(self) -> None:
        """Store the operands as the next record of this thread's slot, if there is room, and count it."""

    def add_fields(self) -> None:
        """Add the operands to the fields, kept in registers until the thread ends."""

    def constant(self, number: int) -> int | None:
        """Return an operand's value if it is a constant in the probe, else None. number: of the operand, from 0."""

    def value(self, number: int) -> str:
        """Return the register of an operand, converted to its field's type; narrow types are extended to 32 bits."""

    def add_to(self, cell: int) -> None:
        """Add one to a cell (u64) of a known number, in a register until the thread ends."""

    def add_at(self, cell: str) -> None:
        """Add one to the cell (u64) whose number is in a register, in memory; lanes with equal numbers add at once."""

    def raise_kept(self, number: int, bits: int, value: Operand, when: str | None = None) -> None:
        """Raise a register, kept until the thread ends and at first 0, to a value if that is greater.

        number: which of the registers. bits: its width. when: a predicate; None for always.
        """


class EndWriter(Operations, Protocol):
    """Writes the code where threads end. Values are combined over the threads that end together; one of them stores."""

    def greatest(self, number: int, bits: int) -> str:
        """Emit the maximum over the threads of a register that ``raise_kept`` kept. number, bits: as there."""

    def write_greatest(self, cell: int, value: str, when: str) -> None:
        """Raise a cell (u64) in memory to a value if that is greater, where the predicate ``when`` holds."""

    def write_greatest_or_mark(self, cell: int, mark: int, value: str, when: str) -> None:
        """Raise a cell as ``write_greatest`` does; for a value of 0, which changes no cell, put 1 into ``mark``."""
