"""The operations that map types write their code with: a target (PTX) turns each of them into its instructions.

Registers are opaque names, of 32 or 64 bits; an operand is a register or a number. Types of operations are written
as in PTX: ``u32``, ``s64``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

Operand = str | int


@dataclass(frozen=True)
class KeyTable:
    """The form of a table of keys in memory, an array of entries of u64 words, all 0 at first.

    An entry has a key with all bits inverted, a count of saves, and the aggregates in keep (``sum``, ``max``, or
    ``min``, which is kept inverted). places: of keys, a power of two; then comes an entry for the key whose inverse
    is 0, then one for saves whose keys found no place. probes: how many places a key may have. period: if not 0, an
    entry with a number may as well be that which so many places, or a multiple, are before.
    """

    places: int
    probes: int
    keep: tuple[str, ...]
    period: int = 0


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
        """Store the operands as the next record of this thread's slot, and count it.

        In a full slot it replaces the oldest one if the map's type keeps the last records, else it is not stored.
        """

    def append_to_log(self) -> None:
        """Store the operands as this thread's next record, in a chunk of the map's region; take one if need be."""

    def add_fields(self) -> None:
        """Add the operands to the fields, kept in registers until the thread ends."""

    def constant(self, number: int) -> int | None:
        """Return an operand's value if it is a constant in the probe, else None. number: of the operand, from 0."""

    def choices(self, number: int) -> tuple[int, ...]:
        """Return the two values, ascending, of which an operand has one, if these are known, else (). number: of the
        operand, from 0."""

    def value(self, number: int) -> str:
        """Return the register of an operand, converted to its field's type; narrow types are extended to 32 bits."""

    def add_to(self, cell: int, amount: Operand = 1) -> None:
        """Add to a cell of a known number, in a register until the thread ends.

        cell: its number; it is a u64 or an s64. amount: a number, or a 64-bit register.
        """

    def add_float(self, cell: int, number: int) -> None:
        """Add an operand of f32 or f64 to a cell of a known number (f64), in a register until the thread ends.

        number: of the operand, from 0. ``EndWriter.add_float`` brings the sum to memory.
        """

    def add_to_one_of_two(self, number: int, cells: tuple[int, int]) -> None:
        """Add one to a cell (u64), in registers until the thread ends; ``EndWriter.add_run`` brings them to memory.

        number: of an operand with ``choices``, which says to which cell. cells: their numbers, by these choices.
        """

    def add_at(self, cell: str) -> None:
        """Add one to the cell (u64) whose number is in a register; ``EndWriter.add_run`` brings the rest to memory."""

    def add_to_key(self, key: str, value: tuple[str, int] | None, table: KeyTable) -> None:
        """Add a save to the entry of a key, in memory; lanes of a warp with equal keys add at once.

        key: a 64-bit register. value: a register and its bits, 32 or 64, of what the entry aggregates as an unsigned
        number; None without one. table: the form of the map's record.
        """

    def site_key(self) -> int | None:
        """Return the number of the site if the first operand is SITE, as in all saves to the map; else None."""

    def add_to_place(self, place: int, value: tuple[str, int] | None, table: KeyTable) -> None:
        """As ``add_to_key``, to the entry with a number; ``EndWriter.add_held`` brings the rest to memory."""

    def raise_kept(self, number: int, bits: int, value: Operand, when: str | None = None) -> None:
        """Raise a register, kept until the thread ends and at first 0, to an unsigned value if that is greater.

        number: which of the map's registers; the map type numbers them. bits: its width. when: a predicate; None for
        always.
        """


class EndWriter(Operations, Protocol):
    """Writes the code where threads end: it takes what ``SaveWriter`` kept in registers to the map's record in memory.

    The threads of a warp that end together combine their values, and one of them writes the result for all. Where that
    is not possible, as on older architectures, each thread writes its own value. Cells are the words of the record, u64
    and at first 0, numbered as ``MapType.cells`` returns them.
    """

    def greatest(self, number: int, bits: int) -> str:
        """Emit the maximum of a kept register over the threads that end together; returns a register that has it.

        number, bits: of the register, as for ``raise_kept``.
        """

    def write_greatest(self, cell: int, value: str, when: str) -> None:
        """Emit an atomic maximum: in memory, a cell becomes the value if that is greater.

        cell: its number. value: a 64-bit register. when: a predicate; threads for which it is false write nothing.
        """

    def write_greatest_or_mark(self, cell: int, mark: int, value: str, when: str) -> None:
        """Emit ``write_greatest`` for a value that may be 0, which would change nothing: 1 is put into mark instead.

        mark: number of the cell that is 1 once a value was 0.
        """

    def add_float(self, cell: int) -> None:
        """Emit the addition of what ``SaveWriter.add_float`` has kept for a cell, over the threads that end together by
        a tree, then to memory."""

    def add_run(self) -> None:
        """Emit the addition of what ``add_at`` and ``add_to_one_of_two`` have counted in registers to the cells."""

    def add_held(self, table: KeyTable) -> None:
        """Emit the addition of what ``add_to_place`` has kept in registers to the table."""

    def close_log(self) -> None:
        """Emit the store of how many records fewer than it has room for the thread's last chunk has."""
