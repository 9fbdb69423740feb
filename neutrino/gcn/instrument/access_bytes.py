"""How many bytes an access moves, by its instruction."""

from __future__ import annotations

from neutrino.gcn.code import Instruction
from neutrino.gcn.instrument.compute import CannotError
from neutrino.gcn.isa.memory import Space, access_of


def bytes_of(instruction: Instruction) -> tuple[int, bool]:
    """Return how many bytes an access moves, and whether each lane does, rather than the wave. Raises CannotError."""
    access = access_of(instruction)
    if access is None:
        raise CannotError(f"how many bytes {instruction.mnemonic} moves is not known")
    return access.size, access.space is not Space.SCALAR
