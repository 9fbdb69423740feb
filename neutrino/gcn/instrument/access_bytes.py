"""How much an instruction does by itself, for its wave or for each lane: bytes it accesses, operations on matrices."""

from __future__ import annotations

from neutrino.gcn.code import Instruction
from neutrino.gcn.isa.memory import Space, access_of
from neutrino.gcn.operation_names import matrix_operations

AMOUNTS = ("BYTES", "OPS")


def amount_of(helper: str, instruction: Instruction, wave: int) -> tuple[int, bool] | None:
    """Return BYTES or OPS of an instruction, and whether each lane has as many, rather than the wave; None of what has
    none, or where it is not known. wave: its lanes."""
    if helper == "OPS":
        operations = matrix_operations(instruction, wave)
        return None if operations is None else (operations, False)
    access = access_of(instruction)
    return None if access is None else (access.size, access.space is not Space.SCALAR)
