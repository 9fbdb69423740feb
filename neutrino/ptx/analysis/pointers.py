"""What the addresses in a body are computed from: accesses through the same pointer mostly go to the same array."""

from __future__ import annotations

from functools import cached_property

from neutrino.ptx.isa.instruction import REGISTER, Instruction
from neutrino.ptx.text.body import Body

# By opcode, the operands that may be the pointer that the result is computed from; products and the like are offsets.
_FOLLOWED = {
    "add": slice(1, 3), "sub": slice(1, 2), "mov": slice(1, 2), "cvta": slice(1, 2), "selp": slice(1, 3),
    "mad": slice(3, 4),
}  # fmt: skip
_MOST_REGISTERS = 200
"""Further ones are not followed."""


class Pointers:
    """The pointers of one body: a guess that follows registers by their names, whatever the flow of control and the
    scopes. Equal names in different scopes are taken as one register."""

    def __init__(self, body: Body) -> None:
        self._body = body

    def of(self, instruction: Instruction) -> frozenset[str]:
        """Where the pointers come from that an instruction's addresses are computed from: parameters, as they are
        loaded, or the places of other loads."""
        roots: set[str] = set()
        waiting = {
            name for operand in instruction.operands if operand.startswith("[") for name in REGISTER.findall(operand)
        }
        seen: set[str] = set()
        while waiting and len(seen) < _MOST_REGISTERS:
            name = waiting.pop()
            seen.add(name)
            for source in self._sources.get(name, ()):
                if source.startswith("%"):
                    waiting.add(source)
                else:
                    roots.add(source)
            waiting -= seen
        return frozenset(roots)

    @cached_property
    def _sources(self) -> dict[str, set[str]]:
        """By register of 64 bits, what it is computed from: registers, which begin with "%", and loads."""
        body = self._body
        sources: dict[str, set[str]] = {}
        chosen = {
            mnemonic for mnemonic in set(body.mnemonics)
            if mnemonic is not None and (
                (mnemonic.word in {*_FOLLOWED, "ld"} and mnemonic.text.endswith("64"))
                or mnemonic.text.startswith("mad.wide.")
            )
        }  # fmt: skip
        for index in body.where(chosen):
            instruction = body.statement(index).instruction
            if instruction is None:
                continue
            found = sources.setdefault(instruction.operands[0].strip("{} \t"), set())
            word = instruction.mnemonic.word
            if word == "ld":
                is_parameter = instruction.opcode.startswith("ld.param")
                found.add(instruction.operands[1] if is_parameter else str(index))
            else:
                operands = instruction.operands[_FOLLOWED[word]]
                found.update(operand for operand in operands if operand.startswith("%"))
        return sources
