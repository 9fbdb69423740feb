"""The verifier of hand-written snippets: a probe reads the program's registers and writes only its own.

What passes here assembles in the kernel, as far as the snippet alone decides; types of the program's operands
(OUT, IN1 …) are known only at each site.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from neutrino.abi.levels import Level
from neutrino.abi.records import Field
from neutrino.errors import Diagnostic, Span
from neutrino.probing.document import printable
from neutrino.probing.ir.draft import DraftProbes
from neutrino.probing.ir.operands import (
    AssemblyOperand,
    Immediate,
    Inverted,
    Pair,
    Register,
    SavedOperand,
    SiteOperand,
    SpecialRegister,
)
from neutrino.probing.ir.probe_set import Probe, Snippet
from neutrino.probing.ir.statements import Assembly, Load, Save, walk
from neutrino.probing.ir.types import Type
from neutrino.probing.model import CLASSES, Pattern
from neutrino.probing.nearest import nearest
from neutrino.probing.special_registers import SPECIAL_REGISTERS
from neutrino.probing.syntax import literal_fits
from neutrino.probing.tracepoints import OTHER_NAMES
from neutrino.probing.written import WrittenInstruction, WrittenProbe, WrittenProbes, WrittenSave, WrittenSnippet
from neutrino.ptx.isa.form_table import FAULTS, FORBIDDEN, REASONS
from neutrino.ptx.isa.forms import (
    MODIFIERS,
    NO_IMMEDIATES,
    REGISTER_TYPES,
    Form,
    behind_type,
    bits_of,
    find_form,
    fits,
    forms,
    is_collective,
    is_modifier,
    operand_type,
    types_last,
)
from neutrino.ptx.isa.opcodes import FIRST_PARTS, NO_AFTER
from neutrino.ptx.isa.scalars import integer
from neutrino.ptx.snippets.lowering import TARGET
from neutrino.ptx.snippets.site_operands import HELPER, HELPER_TYPES, HELPERS, Side, misplaced

_INSTRUCTION = re.compile(
    r"(?:@ ?(?P<negated>!)? ?(?P<guard>[^\s!@]+) )?(?P<opcode>[A-Za-z_][\w.:]*)(?: (?P<operands>.*))?", re.ASCII
)
_LABEL = re.compile(r"[\w$%]+\s*:(?!:)", re.ASCII)
_NOT_ASCII = re.compile(r"[^\x20-\x7e]")
_INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|0[0-7]*U?|[1-9]\d*U?)", re.ASCII)
_FLOAT = re.compile(r"0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|[+-]?(\d+\.\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_DIRECTIVE = re.compile(r"\.[a-zA-Z]\w*", re.ASCII)
_KNOWN_IN_SCOPE = re.compile(r"(?:\.reg|SAVE)\b")
"""What stands in a scope and would be right without it."""
_LIKE_SAVE = re.compile(r"save\b\s*[\[({.]|\w+\.save\s*\(", re.IGNORECASE | re.ASCII)
_INPUT = re.compile(r"IN\d+", re.ASCII)
_FIRST_OF_CLASS = {
    "memory": "ld", "load": "ld", "store": "st", "atomic": "atom", "barrier": "bar", "branch": "bra", "tensor": "mma",
    "convert": "cvt", "special": "sin",
}  # fmt: skip
"""An opcode that a class has, for hints."""
_MOST_DIGITS = 80
"""Of an integer; binary ones have 64. Python refuses to convert thousands."""
_FAR = 64
"""Lines after a statement's first in which its words are looked for."""
_MANY_NAMES = 2000
"""So many registers are not compared with a misspelt word."""
_GUESSES = 100
"""Words that are compared with others, which takes milliseconds each."""


@dataclass(frozen=True)
class Verified:
    """What the verifier says of a file. probes: None where something is wrong. diagnostics: in file order."""

    probes: tuple[Probe, ...] | None
    diagnostics: tuple[Diagnostic, ...]


def verify(written: WrittenProbes) -> Verified:
    """Verify every snippet and tracepoint of a file whose assembly is PTX."""
    return _Checker(written).verified(written.probes)


@dataclass(frozen=True)
class _Use:
    """An instruction whose operands are being checked. types: those among its modifiers."""

    opcode: str
    types: tuple[str, ...]
    side: Side

    def wanted(self, kind: str) -> str:
        """The type of an operand, from its word in the table."""
        return operand_type(kind, self.types)


def verify_draft(draft: DraftProbes) -> list[Diagnostic]:
    """What of typed probes no PTX kernel can have: tracepoints, and values that no site of them has."""
    checker = _Checker(draft)
    for probe in draft.probes:
        checker.check_typed(probe)
    return checker.diagnostics


class _Checker:
    """One file's snippets; collects the faults."""

    def __init__(self, written: WrittenProbes | DraftProbes) -> None:
        self.file = written.file
        self.source = written.source.replace("\r\n", "\n").split("\n")
        self.registers = {register.name: register for register in written.registers}
        self.diagnostics: list[Diagnostic] = []
        self.guesses: dict[str, str | None] = {}

    def check_typed(self, probe: Probe) -> None:
        """Look at a tracepoint, and at the site's values that its typed snippets name."""
        self._check_tracepoint(probe)
        for side, snippet in ((Side(probe, False), probe.before), (Side(probe, True), probe.after)):
            for statement in walk(snippet.statements) if snippet else ():
                if isinstance(statement, Load):
                    self._check_load(statement, side)
                elif isinstance(statement, Save):
                    self._check_saved_sites(statement, side)

    def _check_load(self, load: Load, side: Side) -> None:
        """Where a value of a site has one width whatever the instruction, its register has that too."""
        word, kind = load.operand.text, load.destination.type
        own = HELPER_TYPES.get(word)
        if self._check_helper_place(word, load.span, side) and own is not None:
            wanted = bits_of(own)
            if (own == "pred") != (kind is Type.PRED) or max(kind.bits, 16) != max(wanted, 16):
                self._report(load.span, "helper-type", f"{word} is {own}, and goes into no register of type {kind}")

    def _check_saved_sites(self, save: Save, side: Side) -> None:
        for operand, field in zip(save.operands, save.map.fields, strict=False):
            if isinstance(operand, SiteOperand) and self._check_helper_place(operand.text, save.span, side):
                own = HELPER_TYPES.get(operand.text)
                if own is not None:
                    self._check_saved_helper(operand.text, own, field, save.span)

    def verified(self, written: Sequence[WrittenProbe]) -> Verified:
        """The file's probes, where nothing is wrong with them."""
        probes = []
        for probe in written:
            self._check_tracepoint(probe)
            before = self._snippet(probe.before, Side(probe, False))
            after = self._snippet(probe.after, Side(probe, True))
            probes.append(Probe(probe.name, probe.tracepoint, probe.level, before, after, probe.span, probe.lanes))
        diagnostics = tuple(sorted(self.diagnostics, key=lambda diagnostic: (diagnostic.line, diagnostic.column)))
        is_wrong = any(diagnostic.severity == "error" for diagnostic in diagnostics)
        return Verified(None if is_wrong else tuple(probes), diagnostics)

    def _snippet(self, written: WrittenSnippet | None, side: Side) -> Snippet | None:
        """Its statements, but for those that are wrong."""
        if written is None:
            return None
        statements: list[Assembly | Save] = []
        for statement in written.statements:
            if isinstance(statement, WrittenSave):
                self._check_save(statement, side)
                operands = tuple(self._saved(word) for word in statement.operands)
                guard = self.registers.get(statement.guard or "")
                statements.append(Save(statement.map, operands, statement.span, guard, statement.is_inverted))
            else:
                instruction = self._check_instruction(statement, side)
                if instruction is not None:
                    statements.append(instruction)
        return Snippet(tuple(statements))

    def _saved(self, word: str) -> SavedOperand:
        operand = self._operand(word)
        return operand if not isinstance(operand, (Inverted, Pair)) else Immediate(word)

    def _operand(self, word: str) -> AssemblyOperand:
        """What a word among the operands is, once it has been checked."""
        helper = HELPER.fullmatch(word)
        if helper:
            return SiteOperand(helper["name"] or word, helper["element"])
        if word in self.registers:
            return self.registers[word]
        if word in SPECIAL_REGISTERS:
            return SpecialRegister(word, Type(SPECIAL_REGISTERS[word]))
        if word.startswith("!"):
            operand = self._operand(word[1:].strip())
            return Inverted(operand) if isinstance(operand, (Register, SiteOperand)) else Immediate(word)
        first, bar, second = (part.strip() for part in word.partition("|"))
        if bar and first in self.registers and second in self.registers:
            return Pair(self.registers[first], self.registers[second])
        return Immediate(word)

    def _report(self, span: Span, code: str, message: str, hint: str = "", severity: str = "error") -> None:
        if code not in FAULTS:
            raise KeyError(code)
        line = self.source[span.line - 1] if span.line <= len(self.source) else ""
        message, hint = printable(message), printable(hint)
        self.diagnostics.append(Diagnostic(self.file, span.line, span.column, line, message, hint, severity, code))

    def _locate(self, word: str, start: Span) -> Span:
        """The place of a word at or after start; start itself when it is not found."""
        for line in range(start.line, min(start.line + _FAR, len(self.source)) + 1):
            text = self.source[line - 1]
            at = text.find(word, start.column - 1 if line == start.line else 0)
            while at >= 0:
                joined = at > 0 and word[:1].isalnum() and (text[at - 1].isalnum() or text[at - 1] in "_%$.")
                end = at + len(word)
                after = text[end : end + 1]
                goes_on = word[-1:].isalnum() and (after.isalnum() or after in {"_", "$"})
                if not joined and not goes_on:
                    return Span(line, at + 1)
                at = text.find(word, at + 1)
        return start

    def _locate_character(self, character: str, start: Span) -> Span:
        """The place of a character at or after start; start itself where the file has it as an escape."""
        for line in range(start.line, min(start.line + _FAR, len(self.source)) + 1):
            at = self.source[line - 1].find(character, start.column - 1 if line == start.line else 0)
            if at >= 0:
                return Span(line, at + 1)
        return start

    def _guess(self, word: str, known: Iterable[str]) -> str | None:
        """The known word that a misspelt one may have been. Of hundreds of faults only the first get such a hint."""
        if word not in self.guesses and len(self.guesses) < _GUESSES and len(word) <= _MOST_DIGITS:
            self.guesses[word] = nearest(word, known)
        return self.guesses.get(word)

    # Tracepoints

    def _check_tracepoint(self, probe: WrittenProbe | Probe) -> None:
        for pattern in probe.tracepoint.patterns:
            if pattern.opcode:
                self._check_pattern(pattern, probe)
            for word in pattern.without:
                place = self._locate(f"!{word}", self._place(pattern, probe))
                self._check_modifier(word, Span(place.line, place.column + 1), "it excludes nothing")

    def _check_pattern(self, pattern: Pattern, probe: WrittenProbe | Probe) -> None:
        opcode = pattern.opcode[0]
        if opcode not in FIRST_PARTS:
            guess = self._guess(opcode, [*FIRST_PARTS, *CLASSES])
            hint = "it begins with a PTX instruction, such as ld; the option -k selects kernels, func:NAME functions"
            if opcode in CLASSES:
                of_one = ".".join((_FIRST_OF_CLASS[opcode], *pattern.opcode[1:]))
                hint = f'a class has no modifiers: write "{opcode}", or an opcode such as "{of_one}"'
            elif opcode in OTHER_NAMES:
                hint = f'PTX has it as "{OTHER_NAMES[opcode]}"'
            elif guess:
                hint = f"did you mean '{guess}'?"
            self._report(self._place(pattern, probe), "unknown-opcode", f"PTX has no instruction '{opcode}'", hint)
        elif opcode in NO_AFTER and probe.after:
            hint = 'use before, or position = "kernel"'
            self._report(self._place(pattern, probe), "nothing-after", f"nothing can run after '{opcode}'", hint)
        else:
            place = self._place(pattern, probe)
            at = len(opcode)
            for word in pattern.opcode[1:]:
                self._check_modifier(word, Span(place.line, place.column + at + 1), "the pattern finds nothing")
                at += 1 + len(word)
            self._check_order(pattern.opcode, place)

    def _check_order(self, opcode: tuple[str, ...], span: Span) -> None:
        """Warn of a state space or a vector after a type: in every instruction it comes before the type."""
        index = behind_type(opcode)
        if index is not None:
            column = span.column + sum(len(part) + 1 for part in opcode[:index])
            hint = f'did you mean "{".".join(types_last(opcode))}"?'
            message = f"no instruction of PTX has '{opcode[index]}' after its type"
            self._report(Span(span.line, column), "modifier-order", message, hint, "warning")

    def _check_modifier(self, word: str, span: Span, otherwise: str) -> None:
        if not is_modifier(word):
            guess = self._guess(word, MODIFIERS)
            hint = f"did you mean '{guess}'?" if guess else otherwise
            message = f"no instruction of PTX has the modifier '{word}'"
            self._report(span, "unknown-modifier", message, hint, "warning")

    def _place(self, pattern: Pattern, probe: WrittenProbe | Probe) -> Span:
        """Where a pattern stands in its probe's position."""
        start = self._locate(probe.tracepoint.text, probe.span)
        return self._locate(".".join(pattern.opcode) or pattern.group or "*", start)

    # Instructions

    def _check_instruction(self, instruction: WrittenInstruction, side: Side) -> Assembly | None:
        """The instruction, where its form can be read; what is wrong with it is reported."""
        text = instruction.text
        span = instruction.span
        strange = _NOT_ASCII.search(text)
        if strange:
            character = strange.group()
            shown = character if character.isprintable() else ascii(character)[1:-1]
            message = f"'{shown}' in an instruction"
            self._report(self._locate_character(character, span), "not-ascii", message, "PTX is written in ASCII")
            return None
        text, span = self._without_scopes(text, span)
        if not text:
            return None
        directive = _DIRECTIVE.match(text)
        if directive:
            message = f"'{directive.group()}' is no instruction"
            hint = "a probe declares nothing but registers, with .reg; what it keeps goes to a map, with SAVE"
            self._report(span, "not-an-instruction", message, hint)
            return None
        if _LABEL.match(text):
            self._report(span, "label", "a label in a snippet", REASONS["leaves-snippet"])
            return None
        match = _INSTRUCTION.fullmatch(text)
        if _LIKE_SAVE.match(text):
            self._report(span, "not-an-instruction", f"'{text}' is no instruction", "write 'SAVE [ MAP ] { %a, %b };'")
            return None
        bracket = re.search(r"[{}\[\]]", text)
        if bracket and (match is None or match["opcode"].partition(".")[0] not in {"SAVE", *FORBIDDEN}):
            hint = "vectors are taken apart with shifts" if bracket.group() in "{}" else REASONS["reads-memory"]
            self._report(self._locate(bracket.group(), span), "brackets", f"'{bracket.group()}' in a snippet", hint)
            return None
        if match is None:
            hint = "write 'opcode.type destination, sources;'"
            if text.startswith("#"):
                hint = "comments of a snippet begin with //"
            self._report(span, "not-an-instruction", f"'{text}' is no instruction", hint)
            return None
        guard, opcode = match["guard"], match["opcode"]
        opcode_span = self._locate(opcode, span)
        if guard is not None:
            self._check_predicate(guard, self._locate(guard, span), side)
        self._check_opcode(opcode, opcode_span, match["operands"] or "", side)
        if guard is not None and is_collective(opcode) and find_form(opcode):
            hint = "it would wait for lanes that do not run it; select what it takes with selp"
            message = f"'{opcode}' under a predicate"
            self._report(self._locate("@", span), "collective-guard", message, hint)
        return self._assembly(match, instruction.span)

    def _assembly(self, match: re.Match[str], span: Span) -> Assembly:
        words = [word.strip() for word in (match["operands"] or "").split(",")] if match["operands"] else []
        operands = tuple(self._operand(word) for word in words)
        guard = self._operand(match["guard"]) if match["guard"] is not None else None
        form = find_form(match["opcode"])
        writes: tuple[Register, ...] = ()
        if operands and form is not None and form[0].operands[:1] and form[0].operands[0].startswith("="):
            first = operands[0]
            writes = (first.first, first.second) if isinstance(first, Pair) else (
                (first,) if isinstance(first, Register) else ())
        return Assembly(
            TARGET, match["opcode"], operands, span,
            guard if isinstance(guard, (Register, SiteOperand)) else None,
            match["negated"] is not None, writes,
        )  # fmt: skip

    def _without_scopes(self, text: str, span: Span) -> tuple[str, Span]:
        """A statement without the braces of a scope that it begins with, which are faults; "" if no more is to say."""
        while text[:1] and text[0] in "{}":
            place = self._locate(text[0], span)
            hint = "a snippet has no scopes: all registers of a file are one namespace"
            self._report(place, "brackets", f"'{text[0]}' in a snippet", hint)
            text = text[1:].lstrip()
            span = self._locate(text.partition(" ")[0], Span(place.line, place.column + 1)) if text else place
        return ("" if _KNOWN_IN_SCOPE.match(text) else text), span

    def _check_opcode(self, opcode: str, span: Span, operands: str, side: Side) -> None:
        name, *modifiers = opcode.split(".")
        if name == "SAVE":
            hint = "write @%p SAVE [ MAP ] { %a }; with a predicate register of the probe's"
            self._report(span, "predicated-save", "cannot read the SAVE under a predicate", hint)
            return
        fault = "carry-flag" if "cc" in modifiers else FORBIDDEN.get(name)
        if fault is not None:
            self._report(span, fault, f"'{opcode}' is not allowed in a snippet", REASONS[fault])
            return
        if name not in forms():
            guess = self._guess(name, forms())
            known = "arithmetic, logic, mov, cvt, setp, selp"
            hint = f"did you mean '{guess}'?" if guess else f"snippets are made of {known}"
            if name in FIRST_PARTS:
                self._report(span, "instruction-not-allowed", f"'{name}' is not allowed in a snippet", hint)
            else:
                self._report(span, "unknown-instruction", f"'{name}' is no PTX instruction", hint)
            return
        found = find_form(opcode)
        if found is None:
            message = f"'{opcode}' is not a form that a snippet may use"
            self._report(span, "unknown-form", message, _form_hint(name, modifiers))
            return
        form, types = found
        self._check_operands(_Use(opcode, types, side), form, operands, span)

    def _check_operands(self, use: _Use, form: Form, text: str, span: Span) -> None:
        words = [word.strip() for word in text.split(",")] if text.strip() else []
        if len(words) != len(form.operands):
            message = f"'{use.opcode}' takes {len(form.operands)} operands, not {len(words)}"
            self._report(span, "operand-count", message, "as in " + _example(use, form))
            return
        if is_collective(use.opcode) and use.side.probe.level is not Level.THREAD:
            hint = "at the other levels one lane is alone; make the probe's level thread"
            level = use.side.probe.level.value
            self._report(span, "collective-level", f"'{use.opcode}' at level {level}", hint)
        place = Span(span.line, span.column + len(use.opcode))
        for word, kind in zip(words, form.operands, strict=True):
            found = self._locate(word, place)
            place = found if found == place else Span(found.line, found.column + len(word))
            if kind.startswith("="):
                self._check_destinations(use, word, kind[1:], found)
            else:
                self._check_source(use, word, kind, found)

    def _check_destinations(self, use: _Use, word: str, kind: str, span: Span) -> None:
        first, *second = kind.rstrip("?").split("|")
        names = [part.strip() for part in word.split("|")]
        fewest = 1 if kind.endswith("?") else 1 + len(second)
        if not fewest <= len(names) <= 1 + len(second):
            shown = {(1, 1): "one register", (1, 2): "%a or %a|%p", (2, 2): "%p|%q"}[fewest, 1 + len(second)]
            message = f"'{word}' is no destination of '{use.opcode}'"
            self._report(span, "not-a-destination", message, f"write {shown}")
            return
        for name, wanted in zip(names, (first, *second), strict=False):
            self._check_destination(use, name, wanted, span)

    def _check_destination(self, use: _Use, name: str, kind: str, span: Span) -> None:
        if HELPER.fullmatch(name) or _is_special(name):
            hint = "a probe writes only registers that it declares"
            self._report(span, "write-refused", f"{name} cannot be written", hint)
            return
        register = self._register(name, span, use.wanted(kind), read=False)
        if register:
            self._check_type(use, register, kind, span)

    def _check_source(self, use: _Use, word: str, kind: str, span: Span) -> None:
        if kind == "lanes":
            if word != "LANES":
                hint = "LANES are here already; other lanes it would wait for, maybe without end"
                self._report(span, "collective-mask", f"the mask of '{use.opcode}' is {word}, not LANES", hint)
            else:
                self._check_helper_place(word, span, use.side)
        elif kind == "p":
            if word not in {"0", "1"}:
                self._check_predicate(word.removeprefix("!").strip(), span, use.side)
        elif HELPER.fullmatch(word):
            self._check_helper(use, word, kind, span)
        elif _INTEGER.fullmatch(word) or _FLOAT.fullmatch(word):
            self._check_immediate(use, word, kind, span)
        elif kind == "i":
            hint = f"'{use.opcode}' needs a number here"
            self._report(span, "immediate-wanted", f"'{word}' is not an immediate", hint)
        elif word in SPECIAL_REGISTERS and word not in self.registers:
            if kind not in {"m", "S"}:
                hint = f"read it first: mov.{SPECIAL_REGISTERS[word]} %r, {word};"
                message = f"'{use.opcode}' cannot read the special register {word}"
                self._report(span, "special-register", message, hint)
            else:
                special = Register(word, Type(SPECIAL_REGISTERS[word]), 0, span)
                self._check_type(use, special, kind, span)
        else:
            register = self._register(word, span, use.wanted(kind))
            if register:
                self._check_type(use, register, kind, span)

    def _register(self, word: str, span: Span, wanted: str, *, read: bool = True) -> Register | None:
        if word in self.registers:
            return self.registers[word]
        if f"{word}.x" in SPECIAL_REGISTERS:
            message = f"{word} is a vector"
            self._report(span, "vector-register", message, f"write {word}.x, {word}.y or {word}.z")
            return None
        names = self.registers if len(self.registers) <= _MANY_NAMES else ()
        # Of two letters, half are like some special register.
        others = SPECIAL_REGISTERS if read and wanted != "pred" and len(word) > 3 else ()
        guess = self._guess(word, [*names, *others, *(HELPERS if read else ())])
        if not word.startswith("%"):
            hint = f"did you mean {guess}?" if guess else "registers begin with '%'"
            if _INPUT.fullmatch(word):
                hint = "inputs are IN1 to IN9"
            self._report(span, "not-an-operand", f"'{word}' is no operand", hint)
        else:
            kind = {"u8": "u16", "s8": "s16"}.get(wanted) or REGISTER_TYPES.get(wanted, wanted)
            declaration = f"declare it: .reg .{kind} {word};"
            hint = f"did you mean {guess}?" if guess else f"{declaration} the program's values are OUT, IN1 … and ADDR"
            self._report(span, "undeclared-register", f"register {word} is not declared", hint)
        return None

    def _check_predicate(self, word: str, span: Span, side: Side) -> None:
        if HELPER.fullmatch(word):
            self._check_helper_place(word, span, side)
            if word != "PRED":
                message = f"{word} as a predicate"
                self._report(span, "not-a-predicate", message, f"mov.pred %p, {word}; first, if it is one")
            return
        register = self._register(word, span, "pred")
        if register and register.type != "pred":
            message = f"{word} is a .{register.type} register, not a predicate"
            self._report(span, "not-a-predicate", message, "declare it .pred")

    def _check_type(self, use: _Use, register: Register, kind: str, span: Span) -> None:
        wanted = use.wanted(kind)
        relaxed = kind in {"T", "S"}
        if not fits(register.type, wanted, relaxed):
            width = "or wider " if relaxed else ""
            shown = REGISTER_TYPES.get(wanted, wanted)
            self._report(
                span,
                "register-type",
                f"{register.name} is .{register.type}, but '{use.opcode}' takes .{wanted} here",
                f"use a .{shown} {width}register" if wanted != "pred" else "use a .pred register",
            )

    def _check_immediate(self, use: _Use, word: str, kind: str, span: Span) -> None:
        wanted = use.wanted(kind)
        is_float = not _INTEGER.fullmatch(word)
        if wanted in NO_IMMEDIATES:
            hint = f"mov.b{bits_of(wanted)} it into a register first"
            self._report(span, "immediate-refused", f"'{use.opcode}' takes no immediate", hint)
        elif is_float and not wanted.startswith("f"):
            message = f"'{word}' is not an integer"
            self._report(span, "immediate-type", message, f"'{use.opcode}' takes .{wanted} here")
        elif not is_float and wanted.startswith("f"):
            hint = f"'{use.opcode}' takes .{wanted} here: write {word}.0"
            self._report(span, "immediate-type", f"'{word}' is an integer", hint)
        elif kind in {"i", "byte"} and not 0 <= integer(word[:_MOST_DIGITS]) < 256:
            message = f"'{word[:_MOST_DIGITS]}' is no number from 0 to 255"
            self._report(span, "immediate-range", message, f"'{use.opcode}' takes such a one here")
        elif not is_float and not _in_range(word, 64 if kind in {"S", "p"} else bits_of(wanted)):
            message = f"'{word[:_MOST_DIGITS]}' does not fit in .{wanted}"
            self._report(span, "immediate-range", message, "the assembler would truncate it silently")

    def _check_helper(self, use: _Use, word: str, kind: str, span: Span) -> None:
        if not self._check_helper_place(word, span, use.side):
            return
        wanted = use.wanted(kind)
        own = HELPER_TYPES.get(word)
        if kind == "i":
            self._report(span, "immediate-wanted", f"{word} is not an immediate", f"'{use.opcode}' needs a number here")
        elif word == "SITE" and kind == "byte":
            hint = f"mov.u32 %r, {word}; first"
            self._report(span, "helper-type", f"'{use.opcode}' takes numbers from 0 to 255 only", hint)
        elif own is None or (word == "SITE" and bits_of(wanted) >= 32 and wanted[0] in "bus" and "x2" not in wanted):
            return
        elif own == "pred" and wanted != "pred":
            hint = f"selp.{REGISTER_TYPES.get(wanted, wanted)} %r, 1, 0, {word}; first"
            self._report(span, "helper-type", f"{word} is a predicate, but '{use.opcode}' takes .{wanted} here", hint)
        elif own != "pred" and not fits(own, wanted, kind == "S"):
            message = f"{word} has {bits_of(own)} bits, but '{use.opcode}' takes .{wanted} here"
            hint = f"cvt.u{bits_of(wanted)}.u{bits_of(own)} %r, {word}; first"
            if wanted == "pred" or wanted.startswith("f"):
                hint = "it is an integer"
            self._report(span, "helper-type", message, hint)

    def _check_helper_place(self, word: str, span: Span, side: Side) -> bool:
        """Whether the helper may have a value at the probe's sites."""
        fault = misplaced(word, side)
        if fault is not None:
            self._report(span, *fault)
        return fault is None

    # SAVE

    def _check_save(self, save: WrittenSave, side: Side) -> None:
        place = save.span
        if save.guard is not None:
            place = self._locate(save.guard, place)
            self._check_predicate(save.guard, place, side)
        if len(save.operands) != len(save.map.fields):
            # Said already; which field each is for is not known.
            for word in filter(HELPER.fullmatch, save.operands):
                self._check_helper_place(word, self._locate(word, place), side)
            return
        for word, field in zip(save.operands, save.map.fields, strict=True):
            found = self._locate(word, place)
            place = found if found == place else Span(found.line, found.column + len(word))
            self._check_saved(word, field, found, side)

    def _check_saved(self, word: str, field: Field, span: Span, side: Side) -> None:
        is_integer = not field.type.value.startswith("f")
        if HELPER.fullmatch(word):
            own = HELPER_TYPES.get(word)
            if self._check_helper_place(word, span, side) and own is not None:
                self._check_saved_helper(word, own, field, span)
        elif _INTEGER.fullmatch(word):
            if not is_integer:
                message = f"'{word}' is an integer"
                self._report(span, "save-type", message, f"field '{field.name}' is {field.type.value}")
            elif not _fits_field(word, field):
                shown = word[:_MOST_DIGITS]
                message = f"'{shown}' does not fit in field '{field.name}', which is {field.type.value}"
                self._report(span, "save-range", message, _range_hint(field))
        elif _FLOAT.fullmatch(word):
            self._report(span, "save-type", f"'{word}' in SAVE", "mov it into a register first")
        else:
            wanted = f"b{max(field.type.size * 8, 16)}" if is_integer else field.type.value
            register = self._register(word, span, wanted)
            if register and not _saves(register.type, field):
                message = f"{word} is .{register.type}, but field '{field.name}' is {field.type.value}"
                self._report(span, "save-type", message, "registers are saved as they are; convert with cvt first")

    def _check_saved_helper(self, word: str, own: str, field: Field, span: Span) -> None:
        if field.type.value.startswith("f") or (own != "pred" and field.type.size * 8 < bits_of(own)):
            width = "is a predicate" if own == "pred" else f"has {bits_of(own)} bits"
            message = f"{word} {width}, but field '{field.name}' is {field.type.value}"
            self._report(span, "save-type", message, f"make the field {'u32' if bits_of(own) < 64 else 'u64'}")


def _is_special(name: str) -> bool:
    return name in SPECIAL_REGISTERS or f"{name}.x" in SPECIAL_REGISTERS


def _in_range(word: str, bits: int) -> bool:
    return len(word) <= _MOST_DIGITS and -(1 << (bits - 1)) <= integer(word) < 1 << bits


def _fits_field(word: str, field: Field) -> bool:
    signed = field.type.value.startswith("s")
    return len(word) <= _MOST_DIGITS and literal_fits(8 * field.type.size, signed, word, integer(word))


def _range_hint(field: Field) -> str:
    bits = 8 * field.type.size
    if field.type.value.startswith("s"):
        half = 1 << (bits - 1)
        return f"from {-half} to {half - 1}; the bits of others in hexadecimal, such as {(1 << bits) - 1:#x}"
    return f"from 0 to {(1 << bits) - 1}; -1 is all ones"


def _saves(register: str, field: Field) -> bool:
    kind = field.type.value
    if field.type.size >= 4:
        return fits(register, kind)
    return register != "pred" and register[0] != "f" and bits_of(register) in {16, 32}


def _example(use: _Use, form: Form) -> str:
    """The instruction with a register of the right type in each place."""
    words = []
    for operand in form.operands:
        kind = operand.lstrip("=").rstrip("?").partition("|")[0]
        wanted = use.wanted(kind)
        words.append("LANES" if kind == "lanes" else "1" if kind == "i" else f"%{REGISTER_TYPES.get(wanted, wanted)}")
    return f"{use.opcode} {', '.join(words)};"


def _form_hint(name: str, modifiers: list[str]) -> str:
    """The forms of an opcode for the type at hand, else all of them."""
    wanted = modifiers[-1] if modifiers else ""
    rows = forms()[name]
    for rounding in ("rn", "rni"):
        if find_form(".".join((name, rounding, *modifiers))):
            return f"floating-point instructions carry their rounding: {'.'.join((name, rounding, *modifiers))}"
    if name == "div" and wanted in {"f32", "f64", "f16", "bf16"}:
        return "divisions of fractions become calls: multiply by rcp.approx.f32, or save both and divide afterwards"
    near = [row for row in rows if any(wanted in slot.rstrip("?").split("|") for slot in row.modifiers.split())]
    return "known: " + ", ".join(".".join((name, *row.modifiers.split())) for row in near or rows)
