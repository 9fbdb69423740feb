"""What a target offers to the code of map types: a target's writer turns each operation into its instructions.

Registers are opaque names, of 32 or 64 bits; an operand is a register or a number. Types of operations are written
as in PTX: ``u32``, ``s64``.
"""

from __future__ import annotations

from typing import Protocol

Operand = str | int


class Operations(Protocol):
    """Arithmetic on registers. Each gives a new register."""

    def binary(self, operation: str, kind: str, a: Operand, b: Operand) -> str:
        """``add``, ``sub``, ``mul.lo``, ``mul.hi``, ``shr`` of u32 … s64, or ``and``, ``or``, ``xor`` of b32, b64."""

    def compare(self, relation: str, kind: str, a: Operand, b: Operand) -> str:
        """A predicate: ``eq``, ``ne``, ``lt``, ``le``, ``gt``, ``ge``."""

    def both(self, a: str, b: str) -> str:
        """A predicate: two of them hold."""

    def select(self, bits: int, when: str, a: Operand, b: Operand) -> str:
        """a where the predicate holds, else b."""

    def convert(self, to: str, kind: str, a: str) -> str:
        """An integer as one of another width."""

    def highest_bit(self, kind: str, a: str) -> str:
        """The number of the highest bit that is set, -1 without one, as u32."""


class SaveWriter(Operations, Protocol):
    """One ``SAVE``, for the threads that it counts for."""

    def append_record(self) -> None:
        """Store the operands as the next record of this thread's slot, if there is room, and count it."""

    def add_fields(self) -> None:
        """Add the operands to the fields, kept in registers until the thread ends."""

    def constant(self, number: int) -> int | None:
        """What an operand is in every thread, as far as it is written there."""

    def value(self, number: int) -> str:
        """An operand as its field holds it: its bits, those of narrow types extended to 32."""

    def add_to(self, cell: int) -> None:
        """Add one to a cell, kept in a register until the thread ends."""

    def add_at(self, cell: str) -> None:
        """Add one to the cell of that number (u64), in memory; equal numbers of the warp's lanes at once."""

    def raise_kept(self, number: int, bits: int, value: Operand, when: str | None = None) -> None:
        """Let a register that is kept until the thread ends, at first 0, have the greater of it and a value."""


class EndWriter(Operations, Protocol):
    """Code where threads end. It is for those that end here together; each value is brought to one that writes it."""

    def greatest(self, number: int, bits: int) -> str:
        """The greatest of what the threads kept under a number."""

    def write_greatest(self, cell: int, value: str, when: str) -> None:
        """Let a cell (u64) in memory have the greater of it and a value, where the predicate holds."""

    def write_greatest_or_mark(self, cell: int, mark: int, value: str, when: str) -> None:
        """The same, but a value of 0, which would leave no trace, puts 1 into the cell mark instead."""
