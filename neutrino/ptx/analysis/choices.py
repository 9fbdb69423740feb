"""The one or two values that a register may have: of one that only moves and selections of constants write, as the size
that a compiler gives a masked ``cp.async``, ``selp.b32 %r, 16, 0, %p``."""

from __future__ import annotations

import re
from typing import NamedTuple

from neutrino.ptx.isa.scalars import TYPE_BYTES
from neutrino.ptx.text.body import Body, Declaration

MOST_CHOICES = 2
"""Of more values than these nothing is said."""
_INTEGER = re.compile(r"-?(?:0[xX][0-9a-fA-F]{1,16}|[1-9]\d{0,18}|0)U?", re.ASCII)
# By opcode, which operands are the values that the result may have.
_CHOSEN = {"mov": slice(1, 2), "selp": slice(1, 3)}


class _Register(NamedTuple):
    """A register: its declaration may be one of a numbered series."""

    declaration: Declaration
    name: str


class _Sources(NamedTuple):
    """What is moved into a register. None among the registers is an operand that is none."""

    registers: list[_Register | None]
    numbers: list[int]


class Choices:
    """The values of one body's registers. It follows registers through the whole body, whatever the flow of control: a
    register has a value that some instruction of the body gives it."""

    def __init__(self, body: Body) -> None:
        self._body = body
        # What `_sources` gave.
        self._known: dict[_Register, _Sources | None] = {}

    def of(self, operand: str, position: int) -> tuple[int, ...]:
        """The values, ascending and unsigned, that an operand at a position of the module's text may have; () where
        they are not known, or more than a few."""
        if _INTEGER.fullmatch(operand):
            return (int(operand.rstrip("U"), 0),)
        first = self._register(operand, position)
        values: set[int] = set()
        waiting, seen = {first}, set[_Register | None]()
        while waiting:
            register = waiting.pop()
            seen.add(register)
            found = self._sources(register) if register is not None else None
            if found is None:
                return ()
            values.update(found.numbers)
            if len(values) > MOST_CHOICES:
                return ()
            waiting.update(set(found.registers) - seen)
        return tuple(sorted(values))

    def _register(self, name: str, position: int) -> _Register | None:
        """The register that a name means at a position; None if it is no register of the body."""
        declaration = self._body.declaration(name, position)
        return _Register(declaration, name) if declaration is not None else None

    def _sources(self, register: _Register) -> _Sources | None:
        """What a register's value may be; None if that is not known."""
        if register not in self._known:
            self._known[register] = self._find_sources(register)
        return self._known[register]

    def _find_sources(self, register: _Register) -> _Sources | None:
        body, (declaration, name) = self._body, register
        width = TYPE_BYTES.get(declaration.type, 0)
        # A function's parameter has its value from the caller; such are declared where the body begins.
        if declaration.space != "reg" or declaration.start == body.start or not width:
            return None
        sources = _Sources([], [])
        for start, _ in body.occurrences(name):
            if body.declaration(name, start) != declaration:
                continue
            instruction = body.statement(body.index_at(start)).instruction
            if instruction is None or name not in instruction.written:
                continue
            # Of another width it would be a conversion, or the operand a pair of registers.
            own_width = TYPE_BYTES.get(instruction.type or "", 0)
            which = _CHOSEN.get(instruction.mnemonic.word)
            if which is None or own_width != width or instruction.operands[0] != name:
                return None
            for operand in instruction.operands[which]:
                if _INTEGER.fullmatch(operand):
                    sources.numbers.append(int(operand.rstrip("U"), 0) % (1 << 8 * width))
                else:
                    sources.registers.append(self._register(operand, start))
        # One that nothing writes has no value.
        return sources if sources.registers or sources.numbers else None
