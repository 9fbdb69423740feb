"""The verifier of hand-written snippets: a probe reads the program's registers and writes only its own.

What passes here assembles in the kernel, as far as the snippet alone decides; types of the program's operands
(OUT, IN1 …) are known only at each site.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from neutrino.errors import Diagnostic, ProbeError
from neutrino.probing.model import Field, Instruction, Probe, ProbeSet, Register, Save, Span
from neutrino.probing.nearest import nearest
from neutrino.probing.special_registers import SPECIAL_REGISTERS
from neutrino.ptx.snippet_table import FORBIDDEN, FORMS, NO_AFTER, OPCODES

_TYPE = re.compile(r"(pred)|([busf])(8|16|32|64)|(f16x2)")
_INSTRUCTION = re.compile(r"(?:@(!?)\s*(\S+)\s+)?([A-Za-z_][\w.:]*)\s*(.*)", re.DOTALL)
_INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|0[0-7]*U?|[1-9]\d*U?)")
_FLOAT = re.compile(r"0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|[+-]?(\d+\.\d*|\.\d+)([eE][+-]?\d+)?")
_HELPER = re.compile(r"(OUT|IN[123])(\.[yzw])?|ADDR|BYTES")
_WORD = re.compile(r"[%!]?[\w$.]+(?:::\w+)?|\S")
_HELPERS = ("OUT", "IN1", "IN2", "IN3", "ADDR", "BYTES")
_ASYNCHRONOUS = (("wgmma",), ("tcgen05",), ("cp",))


def check_snippets(probe_set: ProbeSet) -> None:
    """Verify every snippet and tracepoint of the set. Raises ProbeError with all faults, in file order."""
    diagnostics: list[Diagnostic] = []
    for part in probe_set.parts or (probe_set,):
        diagnostics += _Checker(part).check()
    if diagnostics:
        raise ProbeError(diagnostics)


@dataclass(frozen=True)
class _Side:
    """Where a snippet goes."""

    probe: Probe
    after: bool


@dataclass(frozen=True)
class _Use:
    """An instruction whose operands are being checked. types: those among its modifiers."""

    opcode: str
    types: tuple[str, ...]
    side: _Side

    def wanted(self, kind: str) -> str:
        """The type of an operand, from its word in the table."""
        if kind in {"t", "m", "T"}:
            return self.types[0]
        if kind in {"s", "S"}:
            return self.types[1]
        if kind == "w":
            return f"{self.types[0][0]}{2 * _bits(self.types[0])}"
        if kind in {"p", "pp"}:
            return "pred"
        return "b32" if kind == "i" else kind


@dataclass(frozen=True)
class _Form:
    slots: tuple[frozenset[str], ...]
    optional: tuple[bool, ...]
    operands: tuple[str, ...]

    def types(self, modifiers: list[str]) -> tuple[str, ...] | None:
        """The types among the modifiers when they fit this form, else None."""
        rest = list(modifiers)
        for slot, optional in zip(self.slots, self.optional, strict=True):
            if rest and rest[0] in slot:
                rest.pop(0)
            elif not optional:
                return None
        return None if rest else tuple(word for word in modifiers if _TYPE.fullmatch(word))


@functools.cache
def _forms() -> dict[str, list[_Form]]:
    forms: dict[str, list[_Form]] = {}
    for rows in FORMS.values():
        for opcode, modifiers, operands in rows:
            slots = modifiers.split()
            forms.setdefault(opcode, []).append(
                _Form(
                    tuple(frozenset(slot.rstrip("?").split("|")) for slot in slots),
                    tuple(slot.endswith("?") for slot in slots),
                    tuple(operands.split()),
                )
            )
    return forms


class _Checker:
    """One file's snippets; collects the faults."""

    def __init__(self, probe_set: ProbeSet) -> None:
        self.file = probe_set.file
        self.source = probe_set.source.replace("\r\n", "\n").split("\n")
        self.registers = {register.name: register for register in probe_set.registers}
        self.probes = probe_set.probes
        self.diagnostics: list[Diagnostic] = []

    def check(self) -> list[Diagnostic]:
        for probe in self.probes:
            self._check_tracepoint(probe)
            for side in (_Side(probe, False), _Side(probe, True)):
                snippet = probe.after if side.after else probe.before
                for statement in snippet.statements if snippet else ():
                    if isinstance(statement, Save):
                        self._check_save(statement, side)
                    else:
                        self._check_instruction(statement, side)
        return sorted(self.diagnostics, key=lambda diagnostic: (diagnostic.line, diagnostic.column))

    def _report(self, span: Span, message: str, hint: str = "") -> None:
        line = self.source[span.line - 1] if span.line <= len(self.source) else ""
        self.diagnostics.append(Diagnostic(self.file, span.line, span.column, line, message, hint))

    def _check_tracepoint(self, probe: Probe) -> None:
        tracepoint = probe.tracepoint
        if not tracepoint.patterns[0].opcode:
            return
        opcode = tracepoint.patterns[0].opcode[0]
        if opcode not in OPCODES:
            guess = nearest(opcode, OPCODES)
            hint = f"did you mean '{guess}'?" if guess else "it begins with a PTX instruction, such as ld"
            span = self._locate(tracepoint.text, probe.span)
            self._report(span, f"PTX has no instruction '{opcode}'", hint)
        elif opcode in NO_AFTER and probe.after:
            self._report(
                self._locate(tracepoint.text, probe.span),
                f"nothing can run after '{opcode}'",
                'use before, or position = "kernel"',
            )

    def _locate(self, word: str, start: Span) -> Span:
        """The place of a word at or after start; start itself when it is not found."""
        edge = r"(?<![\w%$.])" if word[:1].isalnum() else ""
        pattern = re.compile(edge + re.escape(word) + r"(?![\w$])")
        for line in range(start.line, len(self.source) + 1):
            text = self.source[line - 1]
            match = pattern.search(text, start.column - 1 if line == start.line else 0)
            if match:
                return Span(line, match.start() + 1)
        return start

    # Instructions

    def _check_instruction(self, instruction: Instruction, side: _Side) -> None:
        text = instruction.text
        span = instruction.span
        if re.match(r"[\w$%]+\s*:(?!:)", text):
            self._report(span, "a label in a snippet", FORBIDDEN["bra"])
            return
        brace = re.search(r"[{}\[\]]", text)
        if brace and self._opcode(text) not in {"SAVE", *FORBIDDEN}:
            hint = "vectors are taken apart with shifts" if brace.group() in "{}" else FORBIDDEN["ld"]
            self._report(self._locate(brace.group(), span), f"'{brace.group()}' in a snippet", hint)
            return
        match = _INSTRUCTION.fullmatch(text)
        if not match:
            self._report(span, f"'{text}' is no instruction", "write 'opcode.type destination, sources;'")
            return
        _, guard, opcode, operands = match.groups()
        if guard is not None:
            self._check_predicate(guard, self._locate(guard, span))
        self._check_opcode(opcode, self._locate(opcode, span), operands, side)

    def _opcode(self, text: str) -> str:
        match = _INSTRUCTION.fullmatch(text)
        return match.group(3).partition(".")[0] if match else ""

    def _check_opcode(self, opcode: str, span: Span, operands: str, side: _Side) -> None:
        name, *modifiers = opcode.split(".")
        if name == "SAVE":
            hint = "SAVE stands alone; select what it saves with selp"
            self._report(span, "SAVE under a predicate is not supported", hint)
            return
        if name in FORBIDDEN:
            self._report(span, f"'{opcode}' is not allowed in a snippet", FORBIDDEN[name])
            return
        if name not in _forms():
            guess = nearest(name, _forms())
            known = "arithmetic, logic, mov, cvt, setp, selp"
            hint = f"did you mean '{guess}'?" if guess else f"snippets are made of {known}"
            what = "is not allowed in a snippet" if name in OPCODES else "is no PTX instruction"
            self._report(span, f"'{name}' {what}", hint)
            return
        if "cc" in modifiers:
            self._report(span, f"'{opcode}' is not allowed in a snippet", FORBIDDEN["addc"])
            return
        for form in _forms()[name]:
            types = form.types(modifiers)
            if types is not None:
                self._check_operands(_Use(opcode, types, side), form, operands, span)
                return
        self._report(span, f"'{opcode}' is not a form that a snippet may use", _form_hint(name, modifiers))

    def _check_operands(self, use: _Use, form: _Form, text: str, span: Span) -> None:
        words = [word.strip() for word in text.split(",")] if text.strip() else []
        if len(words) != len(form.operands):
            expected = len(form.operands)
            self._report(span, f"'{use.opcode}' takes {expected} operands, not {len(words)}")
            return
        place = Span(span.line, span.column + len(use.opcode))
        for word, kind in zip(words, form.operands, strict=True):
            found = self._locate(word, place)
            place = found if found == place else Span(found.line, found.column + len(word))
            if kind.startswith("="):
                self._check_destination(use, word, kind[1:], found)
            else:
                self._check_source(use, word, kind, found)

    def _check_destination(self, use: _Use, word: str, kind: str, span: Span) -> None:
        names = [part.strip() for part in word.split("|")] if kind == "pp" else [word]
        if len(names) > 2:
            self._report(span, f"'{word}' is no destination", "write %p or %p|%q")
            return
        for name in names:
            if _HELPER.fullmatch(name) or name in SPECIAL_REGISTERS:
                hint = "a probe writes only registers that it declares"
                self._report(span, f"{name} cannot be written", hint)
                continue
            register = self._register(name, span)
            if register:
                self._check_type(use, register, kind, span)

    def _check_source(self, use: _Use, word: str, kind: str, span: Span) -> None:
        if kind == "p":
            if word not in {"0", "1"}:
                self._check_predicate(word.removeprefix("!").strip(), span)
        elif _HELPER.fullmatch(word):
            self._check_helper(use, word, kind, span)
        elif _INTEGER.fullmatch(word) or _FLOAT.fullmatch(word):
            self._check_immediate(use, word, kind, span)
        elif kind == "i":
            self._report(span, f"'{word}' is not an immediate", f"'{use.opcode}' needs a number here")
        elif word in SPECIAL_REGISTERS and word not in self.registers:
            if kind not in {"m", "S"}:
                hint = f"read it first: mov.{SPECIAL_REGISTERS[word]} %r, {word};"
                self._report(span, f"'{use.opcode}' cannot read the special register {word}", hint)
            else:
                special = Register(word, SPECIAL_REGISTERS[word], 0, span)
                self._check_type(use, special, kind, span)
        else:
            register = self._register(word, span)
            if register:
                self._check_type(use, register, kind, span)

    def _register(self, word: str, span: Span) -> Register | None:
        if word in self.registers:
            return self.registers[word]
        if f"{word}.x" in SPECIAL_REGISTERS:
            self._report(span, f"{word} is a vector", f"write {word}.x, {word}.y or {word}.z")
            return None
        guess = nearest(word, [*self.registers, *SPECIAL_REGISTERS, *_HELPERS])
        if not word.startswith("%"):
            hint = f"did you mean {guess}?" if guess else "registers begin with '%'"
            self._report(span, f"'{word}' is no operand", hint)
        else:
            hint = f"did you mean {guess}?" if guess else f"declare it: .reg .b64 {word};"
            self._report(span, f"register {word} is not declared", hint)
        return None

    def _check_predicate(self, word: str, span: Span) -> None:
        register = self._register(word, span)
        if register and register.type != "pred":
            self._report(span, f"{word} is a .{register.type} register, not a predicate", "declare it .pred")

    def _check_type(self, use: _Use, register: Register, kind: str, span: Span) -> None:
        wanted = use.wanted(kind)
        relaxed = kind in {"T", "S"}
        if not _fits(register.type, wanted, relaxed):
            width = "or wider " if relaxed else ""
            self._report(
                span,
                f"{register.name} is .{register.type}, but '{use.opcode}' takes .{wanted} here",
                f"use a .{wanted} {width}register" if wanted != "pred" else "use a .pred register",
            )

    def _check_immediate(self, use: _Use, word: str, kind: str, span: Span) -> None:
        wanted = use.wanted(kind)
        is_float = not _INTEGER.fullmatch(word)
        if wanted.startswith("f16"):
            hint = f"mov.b{_bits(wanted)} it into a register first"
            self._report(span, f"'{use.opcode}' takes no immediate", hint)
        elif is_float and not wanted.startswith("f"):
            self._report(span, f"'{word}' is not an integer", f"'{use.opcode}' takes .{wanted} here")
        elif not is_float and wanted.startswith("f"):
            hint = f"'{use.opcode}' takes .{wanted} here: write {word}.0"
            self._report(span, f"'{word}' is an integer", hint)
        elif not is_float and not -(1 << 63) <= _integer(word) < 1 << 64:
            self._report(span, f"'{word}' does not fit in 64 bits")

    def _check_helper(self, use: _Use, word: str, kind: str, span: Span) -> None:
        self._check_helper_place(word, span, use.side)
        wanted = use.wanted(kind)
        if kind == "i":
            self._report(span, f"{word} is not an immediate", f"'{use.opcode}' needs a number here")
        elif word in {"ADDR", "BYTES"} and not _fits("u64", wanted, kind == "S"):
            message = f"{word} has 64 bits, but '{use.opcode}' takes .{wanted} here"
            self._report(span, message, f"cvt.u32.u64 %r, {word}; first")

    def _check_helper_place(self, word: str, span: Span, side: _Side) -> None:
        tracepoint = side.probe.tracepoint
        if tracepoint.is_kernel:
            self._report(span, f"{word} at 'kernel'", "a kernel has no operands; probe an instruction")
        elif word.startswith("OUT") and not side.after:
            self._report(span, f"{word} in 'before'", "the result is there in 'after' only")
        elif word.startswith("OUT") and tracepoint.patterns[0].opcode[:1] in _ASYNCHRONOUS:
            self._report(
                span,
                f"{word} of an asynchronous instruction",
                f"the result of {tracepoint.text} is not there yet when the next instruction runs",
            )

    # SAVE

    def _check_save(self, save: Save, side: _Side) -> None:
        place = save.span
        for word, field in zip(save.operands, save.map.fields, strict=True):
            found = self._locate(word, place)
            place = found if found == place else Span(found.line, found.column + len(word))
            self._check_saved(word, field, found, side)

    def _check_saved(self, word: str, field: Field, span: Span, side: _Side) -> None:
        integer = not field.type.value.startswith("f")
        if _HELPER.fullmatch(word):
            self._check_helper_place(word, span, side)
            if word in {"ADDR", "BYTES"} and field.type.value not in {"u64", "s64"}:
                message = f"{word} has 64 bits, but field '{field.name}' is {field.type.value}"
                self._report(span, message, "make the field u64")
        elif _INTEGER.fullmatch(word):
            if not integer:
                self._report(span, f"'{word}' is an integer", f"field '{field.name}' is {field.type.value}")
            elif not -(1 << (8 * field.type.size - 1)) <= _integer(word) < 1 << (8 * field.type.size):
                self._report(span, f"'{word}' does not fit in field '{field.name}', which is {field.type.value}")
        elif _FLOAT.fullmatch(word):
            self._report(span, f"'{word}' in SAVE", "mov it into a register first")
        else:
            register = self._register(word, span)
            if register and not _saves(register.type, field):
                message = f"{word} is .{register.type}, but field '{field.name}' is {field.type.value}"
                self._report(span, message, "registers are saved as they are; convert with cvt first")


def _bits(kind: str) -> int:
    return 32 if kind == "f16x2" else 1 if kind == "pred" else int(kind[1:])


def _integer(word: str) -> int:
    digits = word.removesuffix("U")
    octal = re.fullmatch(r"[+-]?0\d+", digits)
    return int(digits, 8 if octal else 0)


def _fits(register: str, wanted: str, relaxed: bool = False) -> bool:
    """Type checking of PTX ISA 9.0, 9.4: sizes equal, float and integer apart, bits with all."""
    if register == "pred" or wanted == "pred":
        return register == wanted
    same_class = "b" in (register[0], wanted[0]) or (register[0] == "f") == (wanted[0] == "f")
    if not same_class or ("f16x2" in (register, wanted) and "f32" in (register, wanted)):
        return False
    if relaxed:
        # Registers of a float type are never wider than the instruction's type.
        wider = register[0] != "f" and _bits(register) >= _bits(wanted)
        return wider or _bits(register) == _bits(wanted)
    return _bits(register) == _bits(wanted)


def _saves(register: str, field: Field) -> bool:
    kind = field.type.value
    if field.type.size >= 4:
        return _fits(register, kind)
    return register != "pred" and register[0] != "f" and _bits(register) in {16, 32}


def _form_hint(name: str, modifiers: list[str]) -> str:
    """The forms of an opcode for the type at hand, else all of them."""
    wanted = modifiers[-1] if modifiers else ""
    rows = [row for section in FORMS.values() for row in section if row[0] == name]
    near = [row for row in rows if any(wanted in slot.rstrip("?").split("|") for slot in row[1].split())]
    return "known: " + ", ".join(".".join((name, *row[1].split())) for row in near or rows)
