"""The verifier of hand-written PTX snippets: a probe reads the program's registers and writes only its own.

A snippet that passes assembles in the kernel, except for types of the program's operands: those of the helpers
(``OUT``, ``IN1`` …) are known only at each site, that is, at each instruction that the probe matches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from neutrino.abi.levels import Level
from neutrino.abi.records import Field
from neutrino.errors import Diagnostic, Span
from neutrino.ir.operands import SCRATCH, Pair, Register, SiteOperand
from neutrino.ir.statements import Assembly, Collective, Load
from neutrino.ir.types import Type
from neutrino.probing.document import printable
from neutrino.probing.ir.draft import DraftProbes
from neutrino.probing.ir.probe_set import Probe, Snippet
from neutrino.probing.ir.structured import Save, registers_of, walk
from neutrino.probing.ir.verifier import OF_THREADS
from neutrino.probing.nearest import nearest
from neutrino.probing.source_text import SourceText
from neutrino.probing.target import Verified
from neutrino.probing.written import WrittenInstruction, WrittenProbe, WrittenProbes, WrittenSave, WrittenSnippet
from neutrino.ptx.isa.form_table import FAULTS, FORBIDDEN, REASONS
from neutrino.ptx.isa.forms import (
    FLOATS,
    NO_IMMEDIATES,
    REGISTER_TYPES,
    Form,
    bits_of,
    example,
    field_for,
    find_form,
    fits,
    form_hint,
    forms,
    is_collective,
    operand_type,
)
from neutrino.ptx.isa.opcodes import FIRST_PARTS
from neutrino.ptx.isa.scalars import (
    FLOAT,
    INTEGER,
    MAX_LITERAL,
    SPECIAL_REGISTERS,
    fits_field,
    in_range,
    integer,
    is_special,
    range_hint,
)
from neutrino.ptx.snippets.lanes import Uniform
from neutrino.ptx.snippets.sites import (
    HELPER,
    HELPERS,
    SiteChecker,
    SnippetSide,
    can_save,
    helper_type,
    is_literal,
    misplaced,
    parse_operand,
    parse_saved_operand,
    value_type,
)  # fmt: skip
from neutrino.ptx.snippets.writer import TARGET

_INSTRUCTION = re.compile(
    r"(?:@ ?(?P<negated>!)? ?(?P<guard>[^\s!@]+) )?(?P<opcode>[A-Za-z_][\w.:]*)(?: (?P<operands>.*))?", re.ASCII
)
_LABEL = re.compile(r"[\w$%]+\s*:(?!:)", re.ASCII)
_DIRECTIVE = re.compile(r"\.[a-zA-Z]\w*", re.ASCII)
_VALID_WITHOUT_SCOPE = re.compile(r"(?:\.reg|SAVE)\b")
"""A statement whose only fault may be the brace before it."""
# In another case, or as Python writes calls: save[MAP], MAP.save(…).
_LIKE_SAVE = re.compile(r"save\b\s*[\[({.]|\w+\.save\s*\(", re.IGNORECASE | re.ASCII)
_MAX_GUESSED_WORD = 80
"""A longer word is not compared with known ones."""
_MAX_GUESS_NAMES = 2000
"""With more registers, a misspelt word is not compared with them, which would take seconds."""
_MAX_GUESSES = 100
"""Misspelt words that are compared with known ones, which takes milliseconds each."""


def verify(written: WrittenProbes) -> Verified:
    """Check every snippet (a probe's code) and tracepoint of a probe file in PTX; return the probes and all
    diagnostics."""
    return _Checker(written).verified(written.probes)


@dataclass(frozen=True)
class _Instruction:
    """An instruction whose operands are being checked. types: the types among its modifiers."""

    opcode: str
    types: tuple[str, ...]
    side: SnippetSide

    def operand_type(self, kind: str) -> str:
        """Return the PTX type of an operand from its kind in ``form_table`` (``t``, ``s``, ``p`` …)."""
        return operand_type(kind, self.types)


def verify_draft(draft: DraftProbes) -> list[Diagnostic]:
    """Return the faults of typed probes that are specific to PTX.

    These are unknown opcodes and modifiers in tracepoints, and values of the instruction (``OUT``, ``IN1`` …) that
    no instruction at the tracepoint has.
    """
    checker = _Checker(draft)
    for probe in draft.probes:
        checker.check_typed(probe)
    # What waits for a value may be among the statements that could not be read.
    if draft.is_whole:
        checker.check_typed_clocks(draft.probes)
    return checker.diagnostics


class _Checker:
    """Checks the tracepoints and snippets of one file and collects the diagnostics.

    kind, as a parameter, is the kind of an operand as ``form_table`` writes it (``t``, ``s`` …); side says whether the
    snippet runs before or after the matched instruction. registers: those that the file declares, by name. guesses:
    misspelt word → the known word closest to it, None if none is.
    """

    def __init__(self, written: WrittenProbes | DraftProbes) -> None:
        """Prepare to check the tracepoints and snippets of one file's probes; no diagnostics yet."""
        self.file = written.file
        self.source = SourceText(written.source)
        self.registers = {register.name: register for register in written.registers}
        self.diagnostics: list[Diagnostic] = []
        self.guesses: dict[str, str | None] = {}
        self._sites = SiteChecker(self.source, self._report, self._guess)
        # What lanes agree on in the snippet that is read, up to here.
        self._uniform = Uniform()

    def check_typed(self, probe: Probe) -> None:
        """Check the tracepoint of a typed probe and the values of the instruction that its snippets read."""
        self._sites.check_tracepoint(probe)
        before, after = SnippetSide(probe, after=False), SnippetSide(probe, after=True)
        for side, snippet in ((before, probe.before), (after, probe.after)):
            # Of typed statements, only the first two name values of the instruction. LANES are everywhere.
            for statement in walk(snippet.statements) if snippet else ():
                if isinstance(statement, Load):
                    self._check_load(statement, side)
                elif isinstance(statement, Save):
                    self._check_saved_site_operands(statement, side)
                elif isinstance(statement, Collective):
                    self._sites.check_lanes(statement)

    def check_typed_clocks(self, probes: Sequence[Probe]) -> None:
        """Warn of times of typed probes that end before a load's result is there."""
        self._sites.warn_of_typed_early_clocks(probes)

    def _check_load(self, load: Load, side: SnippetSide) -> None:
        """Report a load whose register has another width than the helper, or a helper that has no value there.

        Only helpers with one type for all instructions (``ADDR``, ``PRED`` …) are compared.
        """
        word, register_type = load.operand.text, load.destination.type
        own_type = helper_type(word)
        has_value = self._check_helper_place(word, load.span, side)
        if not has_value:
            return
        if own_type is None:
            self._check_loaded_value(load, side)
            return
        same_class = (own_type == "pred") == (register_type is Type.PRED)
        # Values below 16 bits live in 16-bit registers: PTX has no smaller ones.
        if not same_class or max(register_type.bits, 16) != max(bits_of(own_type), 16):
            message = f"{word} is {own_type}, and goes into no register of type {register_type}"
            self._report(load.span, "helper-type", message)

    def _check_loaded_value(self, load: Load, side: SnippetSide) -> None:
        """Report ``OUT`` or an input that is a float in a typed register of integers, or the reverse.

        Only where the tracepoint says which it is.
        """
        register_type, word = load.destination.type, load.operand.text
        if register_type.is_untyped or not (register_type.is_integer or register_type.is_float):
            return
        for pattern in side.probe.tracepoint.patterns:
            kind = value_type(pattern, word)
            if kind is not None and (kind in FLOATS) != register_type.is_float:
                message = (
                    f"{word} of {'.'.join(pattern.opcode)} is {kind}, and goes into no register of {register_type}"
                )
                self._report(load.span, "helper-type", message, f"take it as nl.{kind}")
                return

    def _check_saved_site_operands(self, save: Save, side: SnippetSide) -> None:
        """Check the operands of a typed save that are values of the instruction (``OUT``, ``ADDR`` …)."""
        # Not strict: the verifier of typed IR reports a wrong number of operands.
        for operand, field, place in zip(save.operands, save.map.fields, save.operand_spans, strict=False):
            if isinstance(operand, SiteOperand) and self._check_helper_place(operand.text, place, side):
                own_type = helper_type(operand.text)
                if own_type is not None:
                    self._check_saved_helper(operand.text, own_type, field, place)
                else:
                    self._check_saved_value(operand.text, field, place, side)

    def verified(self, written: Sequence[WrittenProbe]) -> Verified:
        """Check the probes of a file with hand-written snippets and return them with all diagnostics."""
        probes = []
        for probe in written:
            self._sites.check_tracepoint(probe)
            before = self._snippet(probe.before, SnippetSide(probe, after=False))
            after = self._snippet(probe.after, SnippetSide(probe, after=True))
            probes.append(Probe(probe.name, probe.tracepoint, probe.level, before, after, probe.span, probe.lanes))
        self._sites.warn_of_early_clocks(probes)
        diagnostics = tuple(sorted(self.diagnostics, key=lambda diagnostic: (diagnostic.line, diagnostic.column)))
        is_wrong = any(diagnostic.severity == "error" for diagnostic in diagnostics)
        return Verified(None if is_wrong else tuple(probes), diagnostics)

    def _snippet(self, written: WrittenSnippet | None, side: SnippetSide) -> Snippet | None:
        """Check a snippet and return it with parsed operands; instructions that cannot be parsed are left out."""
        if written is None:
            return None
        statements: list[Assembly | Save] = []
        self._uniform = Uniform()
        for statement in written.statements:
            if isinstance(statement, WrittenSave):
                self._check_save(statement, side)
                operands = tuple(parse_saved_operand(word, self.registers) for word in statement.operands)
                # An undeclared guard has been reported by _check_save.
                guard = self.registers.get(statement.guard) if statement.guard is not None else None
                statements.append(Save(statement.map, operands, statement.span, guard, statement.is_inverted))
            else:
                instruction = self._check_instruction(statement, side)
                if instruction is not None:
                    statements.append(instruction)
        self._check_scratch(statements)
        return Snippet(tuple(statements))

    def _check_scratch(self, statements: Sequence[Assembly | Save]) -> None:
        """Report each scratch register that a snippet reads before it sets it, once."""
        known: set[str] = set()
        for statement in statements:
            written = statement.writes if isinstance(statement, Assembly) else ()
            read = [register for register in registers_of(statement) if register.is_local]
            for register in written:
                # As a destination; a register that is read as well is named once more.
                if register in read:
                    read.remove(register)
            for name in dict.fromkeys(register.name for register in read if register.name not in known):
                hint = f"its value is lost after each snippet; a register without '{SCRATCH}' in its name keeps it"
                message = f"{name} is scratch, and nothing has set it"
                self._report(self.source.locate(name, statement.span), "scratch-unset", message, hint)
                known.add(name)
            known |= {register.name for register in written}

    def _report(self, span: Span, code: str, message: str, hint: str = "", severity: str = "error") -> None:
        """Add a diagnostic. code: one of ``FAULTS``; KeyError for any other, as docs/probes.md must list them all."""
        if code not in FAULTS:
            raise KeyError(code)
        line = self.source.line(span.line)
        message, hint = printable(message), printable(hint)
        self.diagnostics.append(Diagnostic(self.file, span.line, span.column, line, message, hint, severity, code))

    def _guess(self, word: str, known: Iterable[str]) -> str | None:
        """Return the known word closest to a misspelt one, for a hint; None if none is close.

        Comparing is slow, so only the first ``_MAX_GUESSES`` different words of a file are compared.
        """
        if word not in self.guesses and len(self.guesses) < _MAX_GUESSES and len(word) <= _MAX_GUESSED_WORD:
            self.guesses[word] = nearest(word, known)
        return self.guesses.get(word)

    # Instructions

    def _check_instruction(self, instruction: WrittenInstruction, side: SnippetSide) -> Assembly | None:
        """Check one instruction and return it with parsed operands; None if it cannot be parsed.

        All faults are reported. The result may have faults too: then the file is rejected as a whole.
        """
        character = next((each for each in instruction.text if not " " <= each <= "~"), "")
        if character:
            # [1:-1]: without the quotes that ascii() adds.
            shown = character if character.isprintable() else ascii(character)[1:-1]
            place = self.source.locate_character(character, instruction.span)
            self._report(place, "not-ascii", f"'{shown}' in an instruction", "PTX is written in ASCII")
            return None
        text, span = self._without_scopes(instruction.text, instruction.span)
        match = self._match_instruction(text, span) if text else None
        if match is None:
            return None
        guard, opcode = match["guard"], match["opcode"]
        opcode_span = self.source.locate(opcode, span)
        if guard is not None:
            self._check_predicate(guard, self.source.locate(guard, span), side)
        self._check_opcode(opcode, opcode_span, match["operands"] or "", side)
        assembly = self._assembly(match, instruction.span)
        # A form that snippets may not use has been reported already.
        agreed = isinstance(assembly.guard, Register) and assembly.guard.name in self._uniform.names
        if guard is not None and not agreed and is_collective(opcode) and find_form(opcode):
            hint = "it would wait for lanes that do not run it; let them vote on the predicate, or select by selp"
            message = f"'{opcode}' under a predicate"
            self._report(self.source.locate("@", span), "collective-guard", message, hint)
        self._uniform.note(assembly)
        return assembly

    def _match_instruction(self, text: str, span: Span) -> re.Match[str] | None:
        """Match a statement with ``_INSTRUCTION``; report why and return None if it is no instruction.

        What people write by mistake is looked for first, so that the message can say what is wrong with it.
        """
        directive = _DIRECTIVE.match(text)
        if directive:
            message = f"'{directive.group()}' is no instruction"
            hint = "a probe declares nothing but registers, with .reg; what it keeps goes to a map, with SAVE"
            self._report(span, "not-an-instruction", message, hint)
            return None
        if _LABEL.match(text):
            self._report(span, "label", "a label in a snippet", REASONS["leaves-snippet"])
            return None
        if _LIKE_SAVE.match(text):
            self._report(span, "not-an-instruction", f"'{text}' is no instruction", "write 'SAVE [ MAP ] { %a, %b };'")
            return None
        match = _INSTRUCTION.fullmatch(text)
        bracket = next((each for each in text if each in "{}[]"), "")
        # Of SAVE and of opcodes that snippets may not use, _check_opcode reports the opcode instead.
        if bracket and (match is None or match["opcode"].partition(".")[0] not in {"SAVE", *FORBIDDEN}):
            place = self.source.locate(bracket, span)
            hint = "vectors are taken apart with shifts" if bracket in "{}" else REASONS["reads-memory"]
            self._report(place, "brackets", f"'{bracket}' in a snippet", hint)
            return None
        if match is None:
            hint = "write 'opcode.type destination, sources;'"
            if text.startswith("#"):
                hint = "comments of a snippet begin with //"
            self._report(span, "not-an-instruction", f"'{text}' is no instruction", hint)
        return match

    def _assembly(self, match: re.Match[str], span: Span) -> Assembly:
        """Return the instruction that ``_INSTRUCTION`` matched, with parsed operands."""
        words = [word.strip() for word in match["operands"].split(",")] if match["operands"] else []
        operands = tuple(parse_operand(word, self.registers) for word in words)
        guard = parse_operand(match["guard"], self.registers) if match["guard"] is not None else None
        known = find_form(match["opcode"])
        writes: tuple[Register, ...] = ()
        # What an unknown opcode writes does not matter: it has been reported, and the snippet is not used.
        if operands and known is not None:
            form, _ = known
            first = operands[0]
            has_destination = bool(form.operands) and form.operands[0].startswith("=")
            if has_destination and isinstance(first, Pair):
                writes = (first.first, first.second)
            elif has_destination and isinstance(first, Register):
                writes = (first,)
        return Assembly(
            TARGET, match["opcode"], operands, span,
            # A guard of another kind has been reported.
            guard=guard if isinstance(guard, (Register, SiteOperand)) else None,
            is_inverted=match["negated"] is not None, writes=writes,
        )  # fmt: skip

    def _without_scopes(self, text: str, span: Span) -> tuple[str, Span]:
        """Strip the braces at the beginning of a statement, and report each: snippets have no scopes.

        Return what remains and its place; ``""`` if nothing remains that has to be checked.
        """
        while text.startswith(("{", "}")):
            place = self.source.locate(text[0], span)
            hint = "a snippet has no scopes: all registers of a file are one namespace"
            self._report(place, "brackets", f"'{text[0]}' in a snippet", hint)
            text = text[1:].lstrip()
            span = self.source.locate(text.partition(" ")[0], Span(place.line, place.column + 1)) if text else place
        # A declaration or SAVE after a brace needs no check as an instruction: without the brace it may be right.
        return ("" if _VALID_WITHOUT_SCOPE.match(text) else text), span

    def _check_opcode(self, opcode: str, span: Span, operands: str, side: SnippetSide) -> None:
        """Check an opcode and, if a snippet may use it, its operands.

        operands: their text, separated by commas. span: of the opcode. side: of the probe, before or after.
        """
        name, *modifiers = opcode.split(".")
        # A SAVE that the reader of the file understands is no instruction and does not come here.
        if name == "SAVE":
            hint = "write @%p SAVE [ MAP ] { %a }; with a predicate register of the probe's"
            self._report(span, "predicated-save", "cannot read the SAVE under a predicate", hint)
            return
        # add.cc writes the carry flag; addc, which reads it, is in FORBIDDEN.
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
        form_and_types = find_form(opcode)
        if form_and_types is None:
            message = f"'{opcode}' is not a form that a snippet may use"
            self._report(span, "unknown-form", message, form_hint(name, modifiers))
            return
        form, types = form_and_types
        self._check_operands(_Instruction(opcode, types, side), form, operands, span)

    def _check_operands(self, instruction: _Instruction, form: Form, text: str, span: Span) -> None:
        """Check the operands of an instruction. text: all of them. span: of the opcode, which precedes them."""
        words = [word.strip() for word in text.split(",")] if text.strip() else []
        if len(words) != len(form.operands):
            message = f"'{instruction.opcode}' takes {len(form.operands)} operands, not {len(words)}"
            hint = "as in " + example(instruction.opcode, instruction.types, form)
            self._report(span, "operand-count", message, hint)
            return
        # At the levels warp and block other lanes may have to keep their values of registers that are not scratch.
        kept = any(SCRATCH not in name for name in words[0].split("|")) if words else False
        level = instruction.side.probe.level
        if kept and level is Level.GROUP:
            hint = f"{OF_THREADS}, or put a '{SCRATCH}' in its name"
            self._report(span, "group-register", f"a group probe writes {words[0]}, which each thread keeps", hint)
        elif kept and level is not Level.THREAD and is_collective(instruction.opcode):
            hint = f"there one lane alone sets it; make the level thread, or put a '{SCRATCH}' in its name"
            self._report(span, "collective-level", f"'{instruction.opcode}' at level {level.value}", hint)
        places = self.source.locate_each(words, Span(span.line, span.column + len(instruction.opcode)))
        for word, kind, place in zip(words, form.operands, places, strict=True):
            if kind.startswith("="):
                self._check_destinations(instruction, word, kind[1:], place)
            else:
                self._check_source(instruction, word, kind, place)

    def _check_destinations(self, instruction: _Instruction, word: str, kind: str, span: Span) -> None:
        """Check a destination operand, which may be two registers (``%a|%p``).

        kind: see ``form_table`` after ``=``: ``t``; ``t|p`` for two registers; ``t|p?`` if the second is optional.
        """
        kinds = kind.rstrip("?").split("|")
        names = [part.strip() for part in word.split("|")]
        least, most = 1 if kind.endswith("?") else len(kinds), len(kinds)
        if not least <= len(names) <= most:
            syntax = {(1, 1): "one register", (1, 2): "%a or %a|%p", (2, 2): "%p|%q"}[least, most]
            message = f"'{word}' is no destination of '{instruction.opcode}'"
            self._report(span, "not-a-destination", message, f"write {syntax}")
            return
        # Not strict: the second kind may be optional, and its register absent.
        for name, one_kind in zip(names, kinds, strict=False):
            self._check_destination(instruction, name, one_kind, span)

    def _check_destination(self, instruction: _Instruction, name: str, kind: str, span: Span) -> None:
        """Check one destination register. kind: see ``form_table``, such as ``t`` for the instruction's type."""
        if HELPER.fullmatch(name) or is_special(name):
            hint = "a probe writes only registers that it declares"
            self._report(span, "write-refused", f"{name} cannot be written", hint)
            return
        register = self._register(name, span, instruction.operand_type(kind), is_read=False)
        if register:
            self._check_type(instruction, register, kind, span)

    def _check_source(self, instruction: _Instruction, word: str, kind: str, span: Span) -> None:
        """Check an operand that is read: a helper, a number, a special register or a register of the probe.

        kind: see ``form_table``: ``lanes`` for a lane mask, ``p`` for a predicate, ``i`` for a literal … The order
        matters: masks, predicates and helpers have rules of their own, for every kind of word.
        """
        if kind == "lanes":
            # Other masks could wait forever for lanes that never arrive.
            if word != "LANES":
                hint = "LANES are here already; other lanes it would wait for, maybe without end"
                self._report(span, "collective-mask", f"the mask of '{instruction.opcode}' is {word}, not LANES", hint)
            else:
                self._check_helper_place(word, span, instruction.side)
        elif instruction.opcode == "mov.pred" and HELPER.fullmatch(word):
            # OUT or an input: what it is is known at each site, where a number is true if it is not 0.
            self._check_helper(instruction, word, kind, span)
        elif kind == "p":
            # A predicate may also be the constant 0 or 1.
            if word not in {"0", "1"}:
                self._check_predicate(word.removeprefix("!").strip(), span, instruction.side)
        elif HELPER.fullmatch(word):
            self._check_helper(instruction, word, kind, span)
        elif INTEGER.fullmatch(word) or FLOAT.fullmatch(word):
            self._check_immediate(instruction, word, kind, span)
        elif kind == "i":
            hint = f"'{instruction.opcode}' needs a number here"
            self._report(span, "immediate-wanted", f"'{word}' is not an immediate", hint)
        # A file that declares a register of that name has been reported for that.
        elif word in SPECIAL_REGISTERS and word not in self.registers:
            # Only mov and cvt, whose operands have these kinds, read special registers.
            if kind not in {"m", "S"}:
                hint = f"read it first: mov.{SPECIAL_REGISTERS[word]} %r, {word};"
                message = f"'{instruction.opcode}' cannot read the special register {word}"
                self._report(span, "special-register", message, hint)
            else:
                special = Register(word, Type(SPECIAL_REGISTERS[word]), 0, span)
                self._check_type(instruction, special, kind, span)
        else:
            register = self._register(word, span, instruction.operand_type(kind))
            if register:
                self._check_type(instruction, register, kind, span)

    def _register(self, word: str, span: Span, expected: str, *, is_read: bool = True) -> Register | None:
        """Return the probe's register of this name; report a fault and return None if it has none.

        expected: the PTX type for a declaration in the hint. is_read: False for a destination: then the hint names no
        special registers and helpers, which cannot be written.
        """
        if word in self.registers:
            return self.registers[word]
        if f"{word}.x" in SPECIAL_REGISTERS:
            message = f"{word} is a vector"
            self._report(span, "vector-register", message, f"write {word}.x, {word}.y or {word}.z")
            return None
        names = self.registers if len(self.registers) <= _MAX_GUESS_NAMES else ()
        # A name of two letters, after its "%", is too often close to some special register.
        specials = SPECIAL_REGISTERS if is_read and expected != "pred" and len(word) > 3 else ()
        guess = self._guess(word, [*names, *specials, *(HELPERS if is_read else ())])
        if not word.startswith("%"):
            hint = f"did you mean {guess}?" if guess else "registers begin with '%'"
            if word[:2] == "IN" and word[2:].isdecimal():
                hint = "inputs are IN1 to IN9"
            self._report(span, "not-an-operand", f"'{word}' is no operand", hint)
        else:
            # Registers have no 8-bit types.
            declared = {"u8": "u16", "s8": "s16"}.get(expected) or REGISTER_TYPES.get(expected, expected)
            declaration = f"declare it: .reg .{declared} {word};"
            hint = f"did you mean {guess}?" if guess else f"{declaration} the program's values are OUT, IN1 … and ADDR"
            self._report(span, "undeclared-register", f"register {word} is not declared", hint)
        return None

    def _check_predicate(self, word: str, span: Span, side: SnippetSide) -> None:
        """Check a guard or a predicate operand, without its ``!``: ``PRED``, ``LEADER`` … or a ``pred`` register."""
        if HELPER.fullmatch(word):
            self._check_helper_place(word, span, side)
            # OUT or an input may hold a predicate, but which type it has is not known before the site is.
            if helper_type(word) != "pred":
                hint = f"mov.pred %p, {word}; first: a number is true if it is not 0"
                self._report(span, "not-a-predicate", f"{word} as a predicate", hint)
            return
        register = self._register(word, span, "pred")
        if register and register.type != "pred":
            message = f"{word} is a .{register.type} register, not a predicate"
            self._report(span, "not-a-predicate", message, "declare it .pred")

    def _check_type(self, instruction: _Instruction, register: Register, kind: str, span: Span) -> None:
        """Check that a register has a type that the instruction takes for an operand of this kind (``form_table``)."""
        expected = instruction.operand_type(kind)
        # Operands of cvt: it uses the low bits of an integer register.
        may_be_wider = kind in {"T", "S"}
        if not fits(register.type, expected, may_be_wider=may_be_wider):
            width = "or wider " if may_be_wider else ""
            declared = REGISTER_TYPES.get(expected, expected)
            self._report(
                span,
                "register-type",
                f"{register.name} is .{register.type}, but '{instruction.opcode}' takes .{expected} here",
                f"use a .{declared} {width}register" if expected != "pred" else "use a .pred register",
            )

    def _check_immediate(self, instruction: _Instruction, word: str, kind: str, span: Span) -> None:
        """Check that an integer or float literal is valid for an operand of this kind (``form_table``: ``byte`` …)."""
        expected = instruction.operand_type(kind)
        is_float = not INTEGER.fullmatch(word)
        if expected in NO_IMMEDIATES:
            hint = f"mov.b{bits_of(expected)} it into a register first"
            self._report(span, "immediate-refused", f"'{instruction.opcode}' takes no immediate", hint)
        elif is_float and not expected.startswith("f"):
            message = f"'{word}' is not an integer"
            self._report(span, "immediate-type", message, f"'{instruction.opcode}' takes .{expected} here")
        elif not is_float and expected.startswith("f"):
            hint = f"'{instruction.opcode}' takes .{expected} here: write {word}.0"
            self._report(span, "immediate-type", f"'{word}' is an integer", hint)
        elif is_float and instruction.opcode.startswith("cvt.rna.") and word[:2] not in {"0f", "0F"}:
            hint = "write 0f and 8 hexadecimal digits, as 0f3F800000 for 1.0"
            self._report(span, "immediate-refused", f"'{instruction.opcode}' takes only the bits of a float", hint)
        elif kind in {"i", "byte"} and not 0 <= integer(word[:MAX_LITERAL]) <= 255:
            # Only the first digits, since Python refuses to convert thousands; they are too large anyway.
            message = f"'{word[:MAX_LITERAL]}' is no number from 0 to 255"
            self._report(span, "immediate-range", message, f"'{instruction.opcode}' takes such a one here")
        elif not is_float and not in_range(word, 64 if kind == "S" else bits_of(expected)):
            # Sources of kind S, those of cvt, may be wider than their type.
            message = f"'{word[:MAX_LITERAL]}' does not fit in .{expected}"
            self._report(span, "immediate-range", message, "the assembler would truncate it silently")

    def _check_helper(self, instruction: _Instruction, word: str, kind: str, span: Span) -> None:
        """Check that an instruction can read a helper (``OUT``, ``ADDR`` …) as an operand.

        kind: of the operand, as in ``form_table``. For ``OUT`` and ``IN1`` …, whose types depend on the matched
        instruction, the type is checked later, in each kernel.
        """
        if not self._check_helper_place(word, span, instruction.side):
            return
        expected = instruction.operand_type(kind)
        own_type = helper_type(word)
        # "x2" is in pairs of halves (bf16x2), which have 32 bits too.
        is_wide_integer = bits_of(expected) >= 32 and expected[0] in "bus" and "x2" not in expected
        if kind == "i":
            hint = f"'{instruction.opcode}' needs a number here"
            self._report(span, "immediate-wanted", f"{word} is not an immediate", hint)
        elif is_literal(word) and kind == "byte":
            # They become a literal, which may be above 255; of a register the instruction takes the low bits.
            hint = f"mov.u32 %r, {word}; first"
            self._report(span, "helper-type", f"'{instruction.opcode}' takes numbers from 0 to 255 only", hint)
        elif own_type is None or (is_literal(word) and is_wide_integer):
            # The type of OUT and inputs is not known here. Literals fit 64-bit operands, too.
            return
        elif own_type == "pred" and expected != "pred":
            message = f"{word} is a predicate, but '{instruction.opcode}' takes .{expected} here"
            hint = f"selp.{REGISTER_TYPES.get(expected, expected)} %r, 1, 0, {word}; first"
            self._report(span, "helper-type", message, hint)
        elif own_type != "pred" and not fits(own_type, expected, may_be_wider=kind == "S"):
            message = f"{word} has {bits_of(own_type)} bits, but '{instruction.opcode}' takes .{expected} here"
            hint = f"cvt.u{bits_of(expected)}.u{bits_of(own_type)} %r, {word}; first"
            if expected == "pred" or expected.startswith("f"):
                hint = "it is an integer"
            self._report(span, "helper-type", message, hint)

    def _check_helper_place(self, word: str, span: Span, side: SnippetSide) -> bool:
        """Return whether a helper may have a value at the probe's tracepoint; report why not if it has none."""
        fault = misplaced(word, side)
        if fault is not None:
            self._report(span, *fault)
        return fault is None

    # SAVE

    def _check_save(self, save: WrittenSave, side: SnippetSide) -> None:
        """Check the guard of a ``SAVE``, and each operand against its field of the map."""
        # Operands come after the guard, so their places are searched for from there on.
        start = save.span
        if save.guard is not None:
            start = self.source.locate(save.guard, start)
            self._check_predicate(save.guard, start, side)
        if len(save.operands) != len(save.map.fields):
            # Reported when the file was read. Which field an operand is for is not known, so only helpers are checked.
            for word in filter(HELPER.fullmatch, save.operands):
                self._check_helper_place(word, self.source.locate(word, start), side)
            return
        places = self.source.locate_each(save.operands, start)
        for word, field, place in zip(save.operands, save.map.fields, places, strict=True):
            self._check_saved(word, field, place, side)

    def _check_saved(self, word: str, field: Field, span: Span, side: SnippetSide) -> None:
        """Check that an operand of ``SAVE`` can be stored in a field."""
        is_integer = not field.type.value.startswith("f")
        if HELPER.fullmatch(word):
            own_type = helper_type(word)
            if not self._check_helper_place(word, span, side):
                return
            if own_type is not None:
                self._check_saved_helper(word, own_type, field, span)
            else:
                self._check_saved_value(word, field, span, side)
        elif INTEGER.fullmatch(word):
            if not is_integer:
                message = f"'{word}' is an integer"
                self._report(span, "save-type", message, f"field '{field.name}' is {field.type.value}")
            elif not fits_field(word, field):
                shown = word[:MAX_LITERAL]
                message = f"'{shown}' does not fit in field '{field.name}', which is {field.type.value}"
                self._report(span, "save-range", message, range_hint(field))
        elif FLOAT.fullmatch(word):
            # Of literals, only integers can be saved.
            self._report(span, "save-type", f"'{word}' in SAVE", "mov it into a register first")
        else:
            # The type to declare, if the register is not: registers have at least 16 bits.
            expected = f"b{max(field.type.size * 8, 16)}" if is_integer else field.type.value
            register = self._register(word, span, expected)
            if register and not can_save(register.type, field):
                message = f"{word} is .{register.type}, but field '{field.name}' is {field.type.value}"
                self._report(span, "save-type", message, "registers are saved as they are; convert with cvt first")

    def _check_saved_helper(self, word: str, own_type: str, field: Field, span: Span) -> None:
        """Report a helper that does not fit in a field.

        own_type: an integer, or ``pred``. A field may be wider than the helper; a predicate, saved as 0 or 1, fits each
        integer field.
        """
        bits = bits_of(own_type)
        if field.type.value.startswith("f") or (own_type != "pred" and field.type.size * 8 < bits):
            width = "is a predicate" if own_type == "pred" else f"has {bits} bits"
            message = f"{word} {width}, but field '{field.name}' is {field.type.value}"
            self._report(span, "save-type", message, f"make the field {'u32' if bits < 64 else 'u64'}")

    def _check_saved_value(self, word: str, field: Field, span: Span, side: SnippetSide) -> None:
        """Report ``OUT`` or an input that is a float in an integer field, or an integer in a float field.

        Only where the tracepoint says which it is; else each kernel is checked.
        """
        is_field_float = field.type.value.startswith("f")
        for pattern in side.probe.tracepoint.patterns:
            kind = value_type(pattern, word)
            if kind is not None and (kind in FLOATS) != is_field_float:
                opcode = ".".join(pattern.opcode)
                message = f"{word} of {opcode} is {kind}, but field '{field.name}' is {field.type.value}"
                self._report(span, "save-type", message, f"make the field {field_for(kind)}, or save {word}.bits")
                return
