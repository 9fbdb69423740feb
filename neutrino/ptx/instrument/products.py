"""Probes beside multiplications that may be fused with a sum: their values, and where code may stand that parts them.

``ptxas`` fuses a product that has one reader, within a basic block. So a probe that names a product reads a private
copy, rounded as it is where nothing is fused, and predicated stores wait until the sum has consumed the product.
"""

from __future__ import annotations

from functools import cached_property

from neutrino.errors import PtxError
from neutrino.ptx.analysis.contraction import PRODUCT, Contractions
from neutrino.ptx.instrument.emission import Emission
from neutrino.ptx.instrument.guards import Guard
from neutrino.ptx.instrument.values import bits
from neutrino.ptx.text.body import Body
from neutrino.ptx.text.edits import Edits
from neutrino.ptx.text.module import Module


class Products:
    """The products of one body. edits, emission: what is written of it."""

    def __init__(self, module: Module, body: Body, edits: Edits, emission: Emission) -> None:
        self._module = module
        self._body = body
        self._edits = edits
        self._emission = emission
        self._copies: dict[int, str] = {}

    @cached_property
    def _contractions(self) -> Contractions:
        return Contractions(self._body)

    def clear_of(self, position: int) -> int:
        """The first place from position on for predicated stores: within no product and sum, no call sequence."""
        if not self._contractions:
            return position
        while True:
            spot = self._contractions.clear_of(position)
            sequence = self._body.call_sequence(spot)
            if sequence is not None and spot > sequence[0]:
                spot = sequence[1]
            if spot == position:
                return spot
            position = spot

    def copy_of(self, position: int, register: str, is_out: bool) -> str | None:
        """A register with the product that one of the program's holds at an instruction, None when none may be fused.

        is_out: as its result.
        """
        products = self._contractions
        found = products.at(position) if is_out else products.open_product(register, position)
        declared = self._body.declaration
        if found and not is_out and declared(register, found.start) != declared(register, position):
            found = None
        return self._private(found.start) if found else None

    def _private(self, position: int) -> str:
        """A register with the rounded product of the ``mul`` at a position, for probes alone."""
        if position in self._copies:
            return self._copies[position]
        statement = self._body.statement(self._body.index_at(position))
        instruction = statement.instruction
        kind = PRODUCT.match(instruction.opcode) if instruction else None
        if instruction is None or kind is None:
            raise PtxError(self._module.line(position), statement.text[:80], "not a multiplication")
        name = self._emission.product_copy(kind["type"])
        self._copies[position] = name
        opcode = "mul.rn" + instruction.opcode[len("mul") :]
        sources = ", ".join(instruction.operands[1:])
        lines = [f"{opcode} {name}, {sources};"]
        if instruction.predicate is not None:
            guard = Guard(instruction.predicate, instruction.negated)
            lines = [f"mov.b{bits(kind['type'])} {name}, {instruction.operands[0]};", guard.prefix + lines[0]]
        self._edits.ahead_of(statement.start, lines)
        self._emission.count_arithmetic(opcode)
        return name
