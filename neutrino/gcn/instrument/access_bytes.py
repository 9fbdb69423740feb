"""How much an instruction does by itself, for its wave or for each lane: bytes it accesses, operations on matrices."""

from __future__ import annotations

from neutrino.gcn.code import Instruction
from neutrino.gcn.instrument.compute import CannotError
from neutrino.gcn.isa.memory import Space, access_of
from neutrino.gcn.operation_names import matrix_operations


def amount_of(helper: str, instruction: Instruction, wave: int) -> tuple[int, bool]:
    """Return BYTES or OPS of an instruction, and whether each lane has as many, rather than the wave. Raises
    CannotError. wave: its lanes."""
    if helper == "OPS":
        operations = matrix_operations(instruction, wave)
        if operations is None:
            raise CannotError(f"how many operations {instruction.mnemonic} does is not known")
        return operations, False
    access = access_of(instruction)
    if access is None:
        raise CannotError(f"how many bytes {instruction.mnemonic} moves is not known")
    return access.size, access.space is not Space.SCALAR
