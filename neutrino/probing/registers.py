"""The registers of a probe file: one namespace, alive from a kernel's entry to its exit."""

from __future__ import annotations

import re

from neutrino.errors import Span
from neutrino.probing.document import Document, KeyPath
from neutrino.probing.ir.operands import Register
from neutrino.probing.ir.types import Type
from neutrino.probing.special_registers import SPECIAL_REGISTERS
from neutrino.probing.syntax import Declaration

REGISTER_WORD = re.compile(r"%[A-Za-z_$][\w$]*", re.ASCII)
"""A register in a statement, also the first part of a special one such as ``%tid.x``."""

MAX_REGISTERS_OF_A_FILE = 8192
"""Names that ``.reg`` declares, again ones too."""


class Registers:
    """Declared so far, in order. Faults go to the document."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._registers: dict[str, Register] = {}
        self._initial: dict[str, int] = {}
        self._ranges: dict[str, Declaration] = {}
        self._clashes: set[str] = set()
        self._own: dict[str, Type] = {}
        self._declared = 0

    @property
    def all(self) -> tuple[Register, ...]:
        """In the order of their declarations."""
        return tuple(self._registers.values())

    def type_of(self, name: str) -> Type | None:
        """Type of a register; None when there is none of this name."""
        register = self._registers.get(name)
        return register.type if register else None

    def declare(self, path: KeyPath, declaration: Declaration) -> None:
        """Add what a ``.reg`` declares in the snippet at path."""
        names = [declaration.name]
        if declaration.number is not None:
            names = [f"{declaration.name}{index}" for index in range(declaration.number)]
            self._ranges[declaration.name] = declaration
        offset = self._document.within(path, declaration.start)
        before, self._declared = self._declared, self._declared + len(names)
        if self._declared > MAX_REGISTERS_OF_A_FILE:
            if before <= MAX_REGISTERS_OF_A_FILE:
                message = f"more than {MAX_REGISTERS_OF_A_FILE} registers in one file"
                self._document.report(offset, "register-count", message, "a thread has at most 255")
            return
        for name in names:
            if name in SPECIAL_REGISTERS or f"{name}.x" in SPECIAL_REGISTERS:
                message = f"{name} is a special register"
                self._document.report(offset, "special-register-declared", message, "choose another name")
            else:
                self._declare(name, declaration, offset)

    def _declare(self, name: str, declaration: Declaration, offset: int) -> None:
        span = self._document.span(offset)
        earlier = self._registers.get(name)
        if earlier and earlier.type != declaration.type:
            self._clash(earlier, Register(name, Type(declaration.type), 0, span))
            return
        initial = self._initial.setdefault(name, declaration.initial) if declaration.initial is not None else None
        if initial != declaration.initial and earlier:
            message = f"{name} begins with another value in line {earlier.span.line}"
            self._document.report(offset, "initial-value", message, "one register has one first value")
        elif earlier is None:
            self._registers[name] = Register(name, Type(declaration.type), initial or 0, span)
        elif initial is not None:
            self._registers[name] = Register(name, Type(declaration.type), initial, span)

    def _clash(self, earlier: Register, later: Register) -> None:
        """One name for two types: said at both places, at the first one once."""
        pairs = [(later, earlier)]
        if earlier.name not in self._clashes:
            self._clashes.add(earlier.name)
            pairs.append((earlier, later))
        for here, there in pairs:
            message = f"{here.name} is declared as .{here.type}, and as .{there.type} in line {there.span.line}"
            hint = "all registers of a file are one namespace: rename one"
            self._document.report_span(here.span, "register-clash", message, hint)

    def stretch(self, name: str, offset: int) -> None:
        """``%P2`` after ``%P<2>``, as the documents' example has it: one register more, with a warning."""
        stem = name.rstrip("0123456789")
        declaration = self._ranges.get(stem)
        if not declaration or declaration.number is None or name in self._registers:
            return
        if name == f"{stem}{declaration.number}":
            written = f"{declaration.name}<{declaration.number}>"
            hint = f"write {declaration.name}<{declaration.number + 1}>"
            message = f"{written} does not declare {name}, which is used; it is added"
            self._document.warn(offset, "register-range", message, hint)
            self._registers[name] = Register(name, Type(declaration.type), 0, self._document.span(offset))

    def add(self, name: str, kind: Type, span: Span, taken: set[str]) -> str:
        """A register of the reader's own: this name, or with a number when it is taken.

        taken: registers that must not be used again here; this one joins it.
        """
        number = 1
        candidate = name
        while candidate in taken or not self._is_own(candidate, kind):
            number += 1
            candidate = f"{name}_{number}"
        taken.add(candidate)
        self._registers.setdefault(candidate, Register(candidate, kind, 0, span))
        self._own[candidate] = kind
        return candidate

    def _is_own(self, name: str, kind: Type) -> bool:
        return name not in self._registers or self._own.get(name) == kind
