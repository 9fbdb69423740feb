"""The registers of a probe file: one namespace for all snippets, live from a kernel's entry to its exit."""

from __future__ import annotations

import re

from neutrino.errors import Span
from neutrino.ir.operands import SCRATCH, Register
from neutrino.ir.types import Type
from neutrino.probing.document import Document, KeyPath
from neutrino.probing.special_registers import SPECIAL_REGISTERS
from neutrino.probing.syntax import Declaration

REGISTER_WORD = re.compile(r"%[A-Za-z_$][\w$]*", re.ASCII)
"""A register in a statement, also the first part of a special register such as ``%tid.x``."""

MAX_REGISTERS_OF_A_FILE = 8192
"""Names that all ``.reg`` of a file declare; a name counts each time that it is declared."""


class Registers:
    """The registers of a file that are declared so far. Faults are reported to the document."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._registers: dict[str, Register] = {}
        # Name → initial value, of the registers for which a declaration gives one.
        self._initial: dict[str, int] = {}
        # "%P" → its declaration ``%P<2>``.
        self._ranges: dict[str, Declaration] = {}
        # Names declared with two types, for which the first declaration has been reported.
        self._clashes: set[str] = set()
        # Name → type, of the registers that no snippet declares.
        self._added: dict[str, Type] = {}
        # Names declared so far, for MAX_REGISTERS_OF_A_FILE.
        self._declared = 0

    @property
    def all(self) -> tuple[Register, ...]:
        """Return all registers in the order of their declarations."""
        return tuple(self._registers.values())

    def type_of(self, name: str) -> Type | None:
        """Return the type of a register; None if there is none of this name."""
        register = self._registers.get(name)
        return register.type if register else None

    def declare(self, path: KeyPath, declaration: Declaration) -> None:
        """Add the registers of a ``.reg`` declaration, unless the file then declares too many. path: of its snippet.

        Faults are reported, such as for a name that is a special register's.
        """
        names = [declaration.name]
        if declaration.number is not None:
            names = [f"{declaration.name}{index}" for index in range(declaration.number)]
            self._ranges[declaration.name] = declaration
        offset = self._document.within(path, declaration.start)
        was_within_limit = self._declared <= MAX_REGISTERS_OF_A_FILE
        self._declared += len(names)
        if self._declared > MAX_REGISTERS_OF_A_FILE:
            # Reported once per file.
            if was_within_limit:
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
        """Add one register, or check that an earlier declaration of the same name agrees. offset: in the source.

        Declarations agree if they have the same type, and the same initial value or none.
        """
        span = self._document.span(offset)
        earlier = self._registers.get(name)
        if earlier and earlier.type != declaration.type:
            self._clash(earlier, Register(name, Type(declaration.type), 0, span))
            return
        initial = declaration.initial
        is_local = SCRATCH in name
        if is_local and initial:
            message = f"{name} begins with a value, but is lost after each snippet"
            self._document.report(offset, "initial-value", message, f"a name without '{SCRATCH}' keeps its value")
            return
        # setdefault: the first value that is given is kept. If it is another than this one, a declaration before this
        # one gave it.
        if initial is not None and self._initial.setdefault(name, initial) != initial and earlier:
            message = f"{name} begins with another value in line {earlier.span.line}"
            self._document.report(offset, "initial-value", message, "one register has one first value")
        # A later declaration adds nothing, unless it is the one with the value.
        elif earlier is None or initial is not None:
            self._registers[name] = Register(name, Type(declaration.type), initial or 0, span, is_local)

    def _clash(self, earlier: Register, later: Register) -> None:
        """Report one name with two types at both declarations; at the earlier one only once, if more follow."""
        pairs = [(later, earlier)]  # where to report, and the other declaration
        if earlier.name not in self._clashes:
            self._clashes.add(earlier.name)
            pairs.append((earlier, later))
        for register, other in pairs:
            message = f"{register.name} is declared as .{register.type}, and as .{other.type} in line {other.span.line}"
            hint = "all registers of a file are one namespace: rename one"
            self._document.report_span(register.span, "register-clash", message, hint)

    def extend_range(self, name: str, offset: int) -> None:
        """Declare ``%P2``, used at an offset of the source, if ``%P<2>`` declares ``%P0`` and ``%P1``; warn of it.

        The older documentation counts the registers of a range that way. Nothing happens for other names.
        """
        stem = name.rstrip("0123456789")
        declaration = self._ranges.get(stem)
        if not declaration or declaration.number is None or name in self._registers:
            return
        if name == f"{stem}{declaration.number}":
            range_text = f"{declaration.name}<{declaration.number}>"
            hint = f"write {declaration.name}<{declaration.number + 1}>"
            message = f"{range_text} does not declare {name}, which is used; it is added"
            self._document.warn(offset, "register-range", message, hint)
            span = self._document.span(offset)
            self._registers[name] = Register(name, Type(declaration.type), 0, span, SCRATCH in name)

    def add(self, name: str, register_type: Type, span: Span, reserved: set[str]) -> str:
        """Add a register that no snippet declares and return its name, with a number if ``name`` is in use.

        The reader of snippets needs such registers, for example for a special register inside SAVE. One that was added
        before is reused if it has the same type and is not reserved. reserved: registers whose values are still needed;
        the new one joins it.
        """
        number = 1
        candidate = name
        while candidate in reserved or not self._can_add(candidate, register_type):
            number += 1
            candidate = f"{name}_{number}"
        reserved.add(candidate)
        self._registers.setdefault(candidate, Register(candidate, register_type, 0, span))
        self._added[candidate] = register_type
        return candidate

    def _can_add(self, name: str, register_type: Type) -> bool:
        """Return whether ``add`` may use a name: nothing has it, or a register that ``add`` made with this type."""
        return name not in self._registers or self._added.get(name) == register_type
