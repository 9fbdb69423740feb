"""The registers of a probe function: its variables, those of the functions that it calls, and temporaries."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from neutrino.errors import Span
from neutrino.ir.operands import Constant, Register, SiteOperand
from neutrino.ir.types import Type
from neutrino.language.literals import Number

Result = Register | Constant | SiteOperand | Number
"""The result of an expression. A plain number has no type yet: it takes the type of its context."""

_MAX_NAME = 64
"""Characters of a variable's name that are in its register's."""


@dataclass
class Scope:
    """The names of the function that is being read.

    prefix: what the names of its registers have between the variable's name and its type, so that each call of a
    function has registers of its own. values: variables and parameters; a parameter may be a number or a value of the
    instruction. arrays: name → the registers of its elements. turns: variables of loops that are unrolled while the
    file is read → their present value. loops: variables of the loops around a statement → the values that they have.
    """

    prefix: str = ""
    values: dict[str, Result] = field(default_factory=dict)
    arrays: dict[str, tuple[Register, ...]] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)
    loops: dict[str, range] = field(default_factory=dict)


class Locals:
    """Makes the local registers of one probe.

    scope: the names of the function that is being read; it changes with each call. registers: those that all probes of
    the file share, by name with ``%``; local ones are added.
    """

    def __init__(self, registers: dict[str, Register]) -> None:
        """Set up the local registers of one probe. registers: those that all probes share, by name, to which they are
        added."""
        self.scope = Scope()
        self.registers = registers
        self._temporary_names: set[str] = set()
        self._odd_names: dict[str, int] = {}

    def variable(self, name: str) -> Register | None:
        """Return the register of a variable of the probe: a local one or one that the file shares; None if it is
        undefined."""
        value = self.scope.values.get(name)
        return value if isinstance(value, Register) else self.registers.get(f"%{name}")

    def declare(self, name: str, type_: Type, span: Span) -> Register:
        """Make a local variable of the function and return its register."""
        # The type is part of the name: functions may have variables of one name and different types.
        register = self._register(f"%{self._ascii(name)}${self.scope.prefix}{type_}", type_, span)
        self.scope.values[name] = register
        return register

    def elements(self, name: str, size: int, type_: Type, span: Span) -> tuple[Register, ...]:
        """Return the registers of an array's elements, made when first asked for. name: of the array. size: how many.
        """
        stem = f"%{self._ascii(name)}${self.scope.prefix}"
        return tuple(self._register(f"{stem}{index}_{type_}", type_, span) for index in range(size))

    def temporary(self, type_: Type, span: Span) -> Register:
        """Make a register for an intermediate result. Its name has a ``$``, which no Python variable can have."""
        name = f"%$t{len(self._temporary_names) + 1}_{type_}"
        self._temporary_names.add(name)
        return self._register(name, type_, span)

    def is_temporary(self, value: Register | Constant) -> bool:
        """Return whether a value is in a register for an intermediate result, so that no variable's assignment changes
        it."""
        return isinstance(value, Register) and value.name in self._temporary_names

    def _register(self, name: str, type_: Type, span: Span) -> Register:
        """Return the local register of that name; other functions of the file may have declared it already."""
        return self.registers.setdefault(name, Register(name, type_, 0, span, is_local=True))

    def _ascii(self, variable: str) -> str:
        """Return a variable's name as assembly can have it: letters of ASCII, and not too long."""
        if variable.isascii() and len(variable) <= _MAX_NAME:
            return variable
        # With a number of its own after "$$", which is in no other register's name.
        number = self._odd_names.setdefault(variable, len(self._odd_names))
        ascii_name = re.sub(r"[^\x00-\x7f]", "_", variable[:_MAX_NAME])
        return f"{ascii_name}$${number}"
