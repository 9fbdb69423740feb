"""The verifier of hand-written snippets for AMD's GPUs: a probe reads the hardware and writes only its own registers.

A snippet that passes has become typed statements, but for what reads the hardware; what these become on a processor is
the same as of a probe in Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from neutrino.abi.levels import Level
from neutrino.abi.records import Field
from neutrino.errors import Diagnostic, Span
from neutrino.gcn.operation_names import first_parts
from neutrino.gcn.snippets.forms import (
    FORMS,
    HARDWARE_REGISTERS,
    INSTEAD,
    REALTIME,
    SHORT_CYCLES,
    TIMES,
    Form,
    Meaning,
    has,
)
from neutrino.gcn.snippets.meaning import TARGET, number_of
from neutrino.gcn.snippets.opcodes import PORTABLE, is_mnemonic, is_opcode
from neutrino.ir.operands import Constant, Immediate, Register, SavedOperand, SiteOperand, Special
from neutrino.ir.statements import Assembly, ClockAfter, Operator
from neutrino.ir.types import Type
from neutrino.probing.capabilities import CODE
from neutrino.probing.document import printable
from neutrino.probing.ir.draft import DraftProbes
from neutrino.probing.ir.probe_set import Probe, ProbeSet, Snippet
from neutrino.probing.ir.structured import Save, Statement, walk
from neutrino.probing.model import Subject
from neutrino.probing.nearest import nearest
from neutrino.probing.source_text import SourceText
from neutrino.probing.target import Verified
from neutrino.probing.written import WrittenInstruction, WrittenProbe, WrittenProbes, WrittenSave, WrittenSnippet

_HELPERS: Mapping[str, Type | None] = {
    "OUT": None, **{f"IN{number}": None for number in range(1, 10)}, "ADDR": Type.U64, "BYTES": Type.U64,
    "SITE": Type.U32, "THREAD": Type.U32, "BLOCK": Type.U64,
}  # fmt: skip
"""Values that snippets can name → their types, None where the instruction decides."""
_EVERYWHERE = frozenset({"THREAD", "BLOCK"})
_WORD = re.compile(r"(?P<opcode>[A-Za-z_][\w.]*)(?: (?P<operands>.*))?", re.ASCII)
_LABEL = re.compile(r"[\w$.]+\s*:(?!:)", re.ASCII)
_INTEGER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]{1,40}|\d{1,40})", re.ASCII)
_FLOAT = re.compile(r"[+-]?(?:\d+\.\d*|\.\d+|\d+[eE][+-]?\d+)", re.ASCII)
_HWREG = re.compile(r"hwreg\s*\(\s*(?P<name>\w+)\s*(?:,\s*(?P<offset>\d{1,4})\s*,\s*(?P<size>\d{1,4})\s*)?\)", re.I)
_MESSAGE = re.compile(r"sendmsg\s*\(\s*MSG_RTN_GET_REALTIME\s*\)", re.IGNORECASE)
_PROGRAM_REGISTER = re.compile(
    r"(?:s|v|a|ttmp)(?:\d+|\[\d+(?::\d+)?\])|vcc(?:_lo|_hi)?|exec(?:_lo|_hi)?|scc|vccz|execz|m0|null|flat_scratch\w*|"
    r"src_\w+|xnack_mask\w*",
    re.ASCII | re.IGNORECASE,
)
_LIKE_SAVE = re.compile(r"save\b\s*[\[({.]|\w+\.save\s*\(", re.IGNORECASE | re.ASCII)
_PTX = re.compile(r"[a-z]+\w*\.[a-z]\w*(?:[.:]\w+)*", re.ASCII)

_REASONS = {
    "writes-memory": "a probe writes no memory but its maps; use SAVE",
    "reads-memory": "a probe reads no memory of the program; use OUT, IN1, IN2 …",
    "synchronises": "a probe does not synchronise, with other threads or with the hardware",
    "leaves-snippet": "a probe runs straight through: no branch, call, label or end",
    "carry-flag": "SCC and VCC belong to the program; ADD64 and SUB64 compute with 64 bits",
}
_FORBIDDEN: tuple[tuple[str, str], ...] = (
    ("carry-flag", r"s_(addc|subb|add_co_ci|sub_co_ci|cselect|cmov|cmp|bitcmp)\w*|v_(addc|subb|subbrev|add_co|sub_co|"
                   r"subrev_co|cmp|cmpx|cndmask|div_fmas)\w*"),
    ("leaves-snippet", r"s_(branch|cbranch|call|setpc|swappc|getpc|set_pc|swap_pc|get_pc|endpgm|trap|rfe|sethalt|"
                       r"subvector|add_pc)\w*"),
    ("synchronises", r"s_(cluster_)?(barrier|sleep|wait|wakeup|sendmsg|icache|dcache|gl1|setprio|incperflevel|"
                     r"decperflevel|ttrace)\w*|buffer_(gl0|gl1|wb|inv)\w*|global_(inv|wb)\w*|ds_gws\w*"),
    ("writes-memory", r"(global|flat|buffer|tbuffer|scratch|image|ds|s|s_buffer|s_scratch)_(store|write|atomic)\w*|"
                      r"ds_(add|sub|rsub|min|max|and|or|xor|inc|dec|cmpst|cmpstore|wrxchg|storexchg)_\w*"),
    ("reads-memory", r"(global|flat|buffer|tbuffer|scratch|image|ds|s|s_buffer|s_scratch)_(load|read|sample)\w*"),
)  # fmt: skip
"""Codes of faults, and which instructions have them: of the first that fits, unless snippets may use it."""


class Checker:
    """Checks the tracepoints and snippets of one file and collects the diagnostics."""

    def __init__(self, written: WrittenProbes) -> None:
        """written: the file."""
        self._file = written.file
        self._source = SourceText(written.source)
        self._registers = {register.name: register for register in written.registers}
        self._diagnostics: list[Diagnostic] = []

    def verified(self, written: Sequence[WrittenProbe]) -> Verified:
        """Check the probes of the file; return them, None if one is wrong, with all diagnostics."""
        probes = []
        for probe in written:
            self._check_tracepoint(probe)
            before = self._snippet(probe.before, probe, after=False)
            after = self._snippet(probe.after, probe, after=True)
            probes.append(Probe(probe.name, probe.tracepoint, probe.level, before, after, probe.span, probe.lanes))
        ordered = tuple(sorted(self._diagnostics, key=lambda each: (each.line, each.column)))
        is_wrong = any(each.severity == "error" for each in ordered)
        return Verified(None if is_wrong else tuple(probes), ordered)

    def _report(self, span: Span, code: str, message: str, hint: str = "") -> None:
        """Add an error to the file's diagnostics. span: where in the file. code: the short name of its kind. hint: what
        to write instead."""
        line = self._source.line(span.line)
        self._diagnostics.append(
            Diagnostic(self._file, span.line, span.column, line, printable(message), printable(hint), "error", code)
        )

    def _check_tracepoint(self, probe: WrittenProbe) -> None:
        """Report opcodes of a probe's patterns that no processor of AMD's has."""
        for pattern in probe.tracepoint.patterns:
            if pattern.subject is not Subject.OPCODE or is_opcode(pattern.opcode[0]):
                continue
            place = self._source.locate(".".join(pattern.opcode), probe.span)
            guess = nearest(pattern.opcode[0], (*PORTABLE, *first_parts(), *FORMS))
            hint = f"did you mean '{guess}'?" if guess else "such as global_load_dword, ld.global, add.f32, memory"
            self._report(place, "unknown-opcode", f"no instruction of AMD's is called '{pattern.opcode[0]}'", hint)

    def _snippet(self, written: WrittenSnippet | None, probe: WrittenProbe, *, after: bool) -> Snippet | None:
        """Check a probe's snippet and return its statements; what cannot be read is left out, and has been reported.

        after: whether it runs after the instructions that the probe matches.
        """
        if written is None:
            return None
        statements: list[Statement] = []
        for statement in written.statements:
            if isinstance(statement, WrittenSave):
                statements += self._save(statement, probe, after=after)
            else:
                statements += self._instruction(statement, probe, after=after)
        return Snippet(tuple(statements))

    # Instructions

    def _instruction(self, written: WrittenInstruction, probe: WrittenProbe, *, after: bool) -> Iterator[Statement]:
        """Yield the typed statements that an instruction of a snippet means; nothing for a wrong one, which is
        reported."""
        text, span = written.text.rstrip(";").strip(), written.span
        character = next((each for each in text if not " " <= each <= "~"), "")
        if character:
            place = self._source.locate_character(character, span)
            shown = character if character.isprintable() else ascii(character)[1:-1]
            self._report(place, "not-ascii", f"'{shown}' in an instruction", "GCN is written in ASCII")
            return
        match = self._matched(text, span)
        if match is None:
            return
        opcode = match["opcode"]
        name = opcode.lower()
        for encoding in ("_e32", "_e64"):
            name = name.removesuffix(encoding)
        form = FORMS.get(name)
        place = self._source.locate(opcode, span)
        if form is None:
            self._report_opcode(opcode, name, place)
            return
        words = _split(match["operands"] or "")
        expected = 1 + len(form.sources) + form.setting
        if len(words) != expected:
            counted = f"{expected} operand{'s' * (expected != 1)}"
            self._report(place, "operand-count", f"'{opcode}' takes {counted}, not {len(words)}", _example(name, form))
            return
        places = list(self._source.locate_each(words, Span(place.line, place.column + len(opcode))))
        destination = self._destination(words[0], form.destination, places[0], opcode)
        if form.setting:
            read = self._message if name.startswith("s_sendmsg") else self._setting
            setting = read(words[1], places[1])
            if destination is not None and setting is not None:
                yield Assembly(TARGET, name, (destination, Immediate(setting)), span, writes=(destination,))
            return
        if form.meaning is Meaning.HARDWARE:
            if destination is not None:
                yield Assembly(TARGET, name, (destination,), span, writes=(destination,))
            return
        kinds = form.sources[::-1] if form.is_reversed else form.sources
        sources = [
            self._source_operand(word, kind, at, probe, opcode, after=after)
            for word, kind, at in zip(words[1:], kinds, places[1:], strict=True)
        ]
        values = [value for value in sources if value is not None]
        if destination is None or len(values) < len(sources):
            return
        if probe.level is Level.GROUP:
            message = f"a group probe writes {words[0]}, which each thread keeps"
            self._report(places[0], "group-register", message, 'make the level "thread", or write the probe in Python')
            return
        yield Assembly(TARGET, name, (destination, *values), span, writes=(destination,))

    def _matched(self, text: str, span: Span) -> re.Match[str] | None:
        """Take an instruction's text apart into name and operands; report why and return None if that cannot be done.
        """
        if text.startswith("."):
            hint = "registers are counted by the probe's key register; what it keeps goes to a map, with SAVE"
            self._report(span, "not-an-instruction", f"'{text.partition(' ')[0]}' is no instruction", hint)
        elif _LABEL.match(text):
            self._report(span, "label", "a label in a snippet", _REASONS["leaves-snippet"])
        elif text.startswith("@"):
            self._report(span, "not-an-instruction", "a predicate before an instruction", "AMD's have none")
        elif _LIKE_SAVE.match(text):
            self._report(span, "not-an-instruction", f"'{text}' is no instruction", "write 'SAVE [ MAP ] { P0 }'")
        elif text.startswith(("{", "}")):
            self._report(span, "brackets", f"'{text[0]}' in a snippet", "one instruction a line, without braces")
        elif (match := _WORD.fullmatch(text)) is not None:
            return match
        else:
            self._report(span, "not-an-instruction", f"'{text}' is no instruction", "write 'opcode P0, P1'")
        return None

    def _report_opcode(self, opcode: str, name: str, place: Span) -> None:
        """Report an instruction of a snippet that none may have, with the reason: unknown, or one that would harm the
        program."""
        for code, pattern in _FORBIDDEN:
            if re.fullmatch(pattern, name):
                self._report(place, code, f"'{opcode}' is not allowed in a snippet", _REASONS[code])
                return
        if _PTX.fullmatch(opcode):
            hint = 'the snippets of NVIDIA\'s GPUs are in PTX; there platform = "cuda"'
            self._report(place, "unknown-instruction", f"'{opcode}' is no GCN instruction", hint)
            return
        guess = nearest(name, FORMS)
        known = "moves, sums, products, logic, shifts, s_memtime, s_memrealtime, s_getreg_b32, SUB64, CVT32"
        hint = f"did you mean '{guess}'?" if guess else f"snippets are made of {known}"
        if is_mnemonic(name):
            self._report(place, "instruction-not-allowed", f"'{opcode}' is not allowed in a snippet", hint)
        else:
            self._report(place, "unknown-instruction", f"'{opcode}' is no GCN instruction", hint)

    # Operands

    def _destination(self, word: str, kind: Type, span: Span, opcode: str) -> Register | None:
        """Return the register that an instruction writes; None of a wrong one, which is reported."""
        if word.partition(".")[0] in _HELPERS:
            hint = "a probe writes only registers that its key register counts"
            self._report(span, "write-refused", f"{word} cannot be written", hint)
            return None
        if _INTEGER.fullmatch(word) or _FLOAT.fullmatch(word):
            self._report(span, "not-a-destination", f"'{word}' is no destination of '{opcode}'", "write a register: P0")
            return None
        register = self._register(word, span, kind)
        return register if register is not None and self._fits(register, kind, span, opcode) else None

    def _source_operand(
        self, word: str, kind: Type, span: Span, probe: WrittenProbe, opcode: str, *, after: bool
    ) -> Register | SiteOperand | Immediate | None:
        """Return an operand that is read; None of a wrong one, which is reported."""
        if word.partition(".")[0] in _HELPERS:
            if not self._helper_has_value(word, span, probe, after=after):
                return None
            own = _HELPERS[word.partition(".")[0]]
            if own is not None and own.bits != kind.bits:
                message = f"{word} has {own.bits} bits, but '{opcode}' takes {kind.bits} here"
                hint = "s_mov_b64 moves it, then CVT32" if own.bits == 64 else "s_mov_b32 moves it, then CVT64"
                self._report(span, "helper-type", message, hint)
                return None
            name = opcode.lower().removesuffix("_e32").removesuffix("_e64")
            if FORMS[name].operator is not Operator.MOVE:
                hint = f"write s_mov_b{kind.bits} {'PD' if kind.bits == 64 else 'P'}0, {word} first"
                self._report(span, "not-an-operand", f"{word} as an operand of '{opcode}'", hint)
                return None
            return _helper(word)
        if _INTEGER.fullmatch(word):
            number = number_of(word)
            if not -(1 << kind.bits - 1) <= number < 1 << kind.bits:
                self._report(span, "immediate-range", f"'{word}' does not fit in {kind.bits} bits", "make it smaller")
                return None
            return Immediate(word)
        if _FLOAT.fullmatch(word):
            self._report(span, "immediate-type", f"'{word}' where '{opcode}' takes an integer", "write its bits")
            return None
        register = self._register(word, span, kind)
        return register if register is not None and self._fits(register, kind, span, opcode) else None

    def _register(self, word: str, span: Span, kind: Type) -> Register | None:
        """Return the register of the probe that a word names; None and a report without one."""
        register = self._registers.get(word)
        if register is not None:
            return register
        if _PROGRAM_REGISTER.fullmatch(word):
            hint = "a probe has registers of its own: P0, P1 … and PD0, PD1 … that its key register counts"
            self._report(span, "undeclared-register", f"{word} is a register of the program", hint)
        elif re.fullmatch(r"PD?\d{1,4}", word):
            type_name = "u64" if word.startswith("PD") else "u32"
            count = int(word.lstrip("PD")) + 1
            hint = f"write register = {{ {type_name} = {count} }}"
            self._report(span, "undeclared-register", f"{word} is not declared", hint)
        elif word.startswith("%"):
            hint = f"AMD's registers have no '%': {word[1:]}" if word[1:] in self._registers else "P0 … and PD0 … are"
            self._report(span, "not-an-operand", f"'{word}' is no operand", hint)
        else:
            guess = nearest(word, [*self._registers, *_HELPERS])
            hint = f"did you mean '{guess}'?" if guess else f"write {'PD0' if kind.bits == 64 else 'P0'}, or a number"
            self._report(span, "not-an-operand", f"'{word}' is no operand", hint)
        return None

    def _fits(self, register: Register, kind: Type, span: Span, opcode: str) -> bool:
        """Return whether a register has the width and kind that an instruction takes; report it if not."""
        own = register.type
        if own.bits == kind.bits and not own.is_float and own is not Type.PRED and own is not Type.F16X2:
            if not kind.is_signed or own.is_signed or own.is_untyped:
                return True
        elif own.bits == kind.bits and kind.is_untyped:
            # A move or logic takes bits, whatever they are.
            return True
        message = f"{register.name} is {own}, but '{opcode}' takes {kind} here"
        hints = {(64, 32): "CVT32 makes 32 bits of it", (32, 64): "CVT64 makes 64 bits of it"}
        hint = hints.get((own.bits, kind.bits), f"count such registers in the key register: {kind} = 1")
        self._report(span, "register-type", message, hint)
        return False

    def _helper_has_value(self, word: str, span: Span, probe: WrittenProbe, *, after: bool) -> bool:
        """Return whether a helper (a word such as ADDR for a value of the matched instruction) may have a value where a
        probe runs; report it if not."""
        name, _, element = word.partition(".")
        if element and (_HELPERS[name] is not None or not re.fullmatch(r"[xyzw]|\d{1,2}|bits", element)):
            self._report(span, "not-an-operand", f"'{word}' is no operand", f"write {name}")
            return False
        if name in _EVERYWHERE:
            return True
        for pattern in probe.tracepoint.patterns:
            if not pattern.has_operands:
                hint = "probe an instruction, such as global_load_dword"
                self._report(span, "operand-without-instruction", f"{word} at '{pattern.subject.value}'", hint)
                return False
            if name in ("ADDR", "BYTES") and pattern.subject is Subject.CLASS and pattern.group not in _OF_MEMORY:
                self._report(span, "operand-absent", f"{word} at '{pattern.group}'", "only accesses to memory have it")
                return False
        if name == "OUT" and not after:
            self._report(span, "out-in-before", f"{word} in 'before'", "the result is there in 'after' only")
            return False
        return True

    def _message(self, word: str, span: Span) -> str | None:
        """Return what ``s_sendmsg_rtn_b64`` asks for; None of what snippets may not ask for, which is reported."""
        if _MESSAGE.fullmatch(word):
            return REALTIME
        self._report(span, "not-an-operand", f"'{word}' is no operand", f"write {REALTIME}")
        return None

    def _setting(self, word: str, span: Span) -> str | None:
        """Return what ``s_getreg_b32`` reads of the hardware; None of what is unknown, which is reported."""
        match = _HWREG.fullmatch(word)
        if match is None:
            self._report(span, "not-an-operand", f"'{word}' is no operand", "write hwreg(HW_REG_HW_ID)")
            return None
        # The table of helpers writes HWREG(HW_REG_HW_ID), others HWREG(HW_ID).
        name = match["name"].lower()
        name = name if name.startswith("hw_reg_") else f"hw_reg_{name}"
        if name not in HARDWARE_REGISTERS:
            guess = nearest(name, HARDWARE_REGISTERS)
            names = ", ".join(known.upper() for known in HARDWARE_REGISTERS)
            hint = f"did you mean {guess.upper()}?" if guess else f"there are {names}"
            self._report(span, "not-an-operand", f"{match['name']} is no register of the hardware", hint)
            return None
        offset, size = int(match["offset"] or 0), int(match["size"] or 32)
        if not 0 < size <= 32 - offset:
            message = f"bits {offset} to {offset + size - 1} of 32"
            self._report(span, "immediate-range", message, "write hwreg(NAME, OFFSET, SIZE), in bits")
            return None
        whole = (offset, size) == (0, 32)
        return f"hwreg({name.upper()})" if whole else f"hwreg({name.upper()}, {offset}, {size})"

    # SAVE

    def _save(self, save: WrittenSave, probe: WrittenProbe, *, after: bool) -> Iterator[Statement]:
        """Yield a SAVE statement (it appends a record to a map) with its operands; nothing for a wrong one, which is
        reported."""
        operands: list[SavedOperand] = []
        if len(save.operands) != len(save.map.fields):
            # Reported when the file was read.
            return
        places = tuple(self._source.locate_each(save.operands, save.span))
        for word, item, place in zip(save.operands, save.map.fields, places, strict=True):
            operand = self._saved(word, item, place, probe, after=after)
            if operand is not None:
                operands.append(operand)
        if len(operands) == len(save.operands):
            yield Save(save.map, tuple(operands), save.span, places=places)

    def _saved(self, word: str, item: Field, span: Span, probe: WrittenProbe, *, after: bool) -> SavedOperand | None:
        """Return one of the values that a SAVE statement records; None for a wrong one, which is reported."""
        kind = Type(item.type.value)
        if word == "SITE" or word.partition(".")[0] in _HELPERS:
            if not self._helper_has_value(word, span, probe, after=after):
                return None
            own = _HELPERS[word.partition(".")[0]]
            if own is not None and (kind.is_float or kind.bits < own.bits):
                message = f"{word} has {own.bits} bits, but field '{item.name}' is {kind}"
                self._report(span, "save-type", message, f"make the field {own}")
                return None
            return _helper(word)
        if _INTEGER.fullmatch(word):
            number = number_of(word)
            if kind.is_float:
                self._report(span, "save-type", f"'{word}' is an integer", f"field '{item.name}' is {kind}")
                return None
            least = -(1 << kind.bits - 1) if kind.is_signed else 0
            if not least <= number < least + (1 << kind.bits):
                message = f"'{word}' does not fit in field '{item.name}', which is {kind}"
                self._report(span, "save-range", message, f"it holds {least} to {least + (1 << kind.bits) - 1}")
                return None
            return Immediate(word)
        if _FLOAT.fullmatch(word):
            self._report(span, "save-type", f"'{word}' in SAVE", "move its bits into a register first")
            return None
        register = self._register(word, span, kind)
        if register is None:
            return None
        # The low bits of a register fill a narrower field of integers.
        is_right = (
            register.type.bits == kind.bits
            if kind.bits >= 32 or kind.is_float
            else register.type.bits == 32
        ) and (register.type.is_float == kind.is_float or register.type.is_untyped)
        if not is_right:
            hint = "CVT32 makes 32 bits of it" if register.type.bits == 64 else "CVT64 makes 64 bits of it"
            message = f"{word} is {register.type}, but field '{item.name}' is {kind}"
            self._report(span, "save-type", message, hint if not kind.is_float else "save its bits to an integer field")
            return None
        return register


_OF_MEMORY = frozenset({"memory", "load", "store", "atomic"})


def verify(written: WrittenProbes) -> Verified:
    """Check every snippet and tracepoint of a probe file for AMD's GPUs; return the probes and all diagnostics."""
    return Checker(written).verified(written.probes)


def verify_draft(draft: DraftProbes) -> list[Diagnostic]:
    """Return the faults of typed probes that only this target knows.

    Patterns that name instructions of other targets match nothing here, so that one file serves several: a warning says
    so where that is all that a file has.
    """
    lines = draft.source.split("\n")
    foreign = []
    for probe in draft.probes:
        patterns = probe.tracepoint.patterns
        if not all(one.subject is Subject.OPCODE and not is_opcode(one.opcode[0]) for one in patterns):
            continue
        foreign.append(probe)
    others = [probe for probe in draft.probes if probe not in foreign and not probe.tracepoint.is_kernel]
    if not foreign or others:
        return []
    first = foreign[0]
    line = lines[first.span.line - 1] if 0 < first.span.line <= len(lines) else ""
    message = f"no instruction of AMD's is called '{first.tracepoint.text}'"
    hint = "ld.global, st.shared, add.f32, bar.sync and classes such as memory are there on every target"
    place = (draft.file, first.span.line, first.span.column, line)
    return [Diagnostic(*place, message, hint, "warning", "unknown-opcode")]


def lacking_on(probes: Iterable[Probe], processor: str) -> Iterator[tuple[Span, str, str]]:
    """Yield what hand-written snippets use and a processor lacks: the place, what it is, and what to write instead."""
    for probe in probes:
        for snippet in (probe.before, probe.after):
            for statement in walk(snippet.statements) if snippet is not None else ():
                if not isinstance(statement, Assembly):
                    continue
                if not has(TIMES.get(statement.opcode, frozenset({"gfx"})), processor):
                    yield statement.span, statement.opcode, INSTEAD[statement.opcode]
                for operand in statement.operands:
                    match = _HWREG.fullmatch(operand.text) if isinstance(operand, Immediate) else None
                    name = match["name"].lower() if match is not None else ""
                    if name and not has(HARDWARE_REGISTERS[name], processor):
                        yield statement.span, name.upper(), INSTEAD.get(name, "")


def processor_faults(part: WrittenProbes, probes: Iterable[Probe], processor: str) -> list[Diagnostic]:
    """Return a fault for each instruction of hand-written snippets that a processor lacks."""
    lines = part.source.split("\n")
    return [
        Diagnostic(
            part.file, span.line, span.column, lines[span.line - 1] if 0 < span.line <= len(lines) else "",
            f"{processor} has no {what}", hint, "error", CODE,
        )
        for span, what, hint in lacking_on(probes, processor)
    ]  # fmt: skip


def clock_warnings(part: WrittenProbes | DraftProbes, probes: Iterable[Probe], processor: str) -> list[Diagnostic]:
    """Return a warning where a file first reads a clock that counts something else on a processor than on others."""
    lines = part.source.split("\n")
    for probe in probes:
        for snippet in (probe.before, probe.after):
            for statement in walk(snippet.statements) if snippet is not None else ():
                text = _clock_of(statement, processor)
                if text:
                    message, hint = text
                    span = statement.span
                    line = lines[span.line - 1] if 0 < span.line <= len(lines) else ""
                    return [Diagnostic(part.file, span.line, span.column, line, message, hint, "warning", "clock-unit")]
    return []


def _clock_of(statement: Statement, processor: str) -> tuple[str, str] | None:
    """Return what is said of a statement that reads a clock, and a hint; None of another one."""
    if isinstance(statement, Assembly):
        matches = [_HWREG.fullmatch(one.text) for one in statement.operands if isinstance(one, Immediate)]
        if any(match is not None and match["name"].lower() == SHORT_CYCLES for match in matches):
            return (
                "the counter of cycles has 20 bits there, and comes round after 1,048,576 cycles",
                f"save the clock of 100 MHz too: s_sendmsg_rtn_b64 PD0, {REALTIME} tells which differences are short",
            )
        return None
    reads = any(
        Special.CLOCK in (value if isinstance(value, tuple) else (value,))
        for value in (getattr(statement, name, None) for name in ("sources", "source", "operand", "left", "right"))
    )
    if processor.startswith("gfx11") and (reads or isinstance(statement, ClockAfter)):
        return (
            f"nl.clock() counts units of 10 ns on {processor}, not cycles",
            "its counter of cycles has 20 bits; a snippet by hand reads it: s_getreg_b32 P0, "
            "hwreg(HW_REG_SHADER_CYCLES, 0, 20)",
        )
    return None


def noted(probes: ProbeSet) -> ProbeSet:
    """Return a set with its typed statements as lines that people can read, for the probe file of a trace.

    What they become differs between processors; the texts of twins have that.
    """
    changed = tuple(probe.with_snippets(lambda one: Snippet(tuple(_notes(one.statements)))) for probe in probes.probes)
    return probes.lowered(TARGET, probes.registers, changed)


def _notes(statements: Iterable[Statement]) -> Iterator[Statement]:
    """Yield statements as lines: those inside conditions and loops follow these."""
    for statement in statements:
        if isinstance(statement, (Assembly, Save)):
            yield statement
            continue
        opcode, words = type(statement).__name__.lower(), []
        for member in statement.__dataclass_fields__:
            value = getattr(statement, member)
            if member in ("operator", "relation", "reduction"):
                opcode = value.value
            elif member not in ("span", "then", "otherwise", "body", "test") or isinstance(value, (Register, Constant)):
                words += [_word(one) for one in (value if isinstance(value, tuple) else (value,))]
        yield Assembly(TARGET, opcode, tuple(map(Immediate, words)), statement.span)
        for member in ("test", "then", "otherwise", "body"):
            inner = getattr(statement, member, None)
            if isinstance(inner, tuple):
                yield from _notes(inner)


def _word(value: object) -> str:
    """Return an operand of a typed statement as a word of text."""
    if isinstance(value, Constant):
        return str(value.bits)
    text = getattr(value, "text", None) or getattr(value, "value", value)
    return str(text)


def _helper(word: str) -> SiteOperand:
    """Return the value of the matched instruction that a helper, a word such as ``IN1`` or ``IN1.x``, stands for."""
    name, _, element = word.partition(".")
    return SiteOperand(name, element or None)


def _split(text: str) -> list[str]:
    """Split the text of an instruction's operands at the commas outside of parentheses."""
    words, depth, begin = [], 0, 0
    for at, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0:
            words.append(text[begin:at].strip())
            begin = at + 1
    if text.strip():
        words.append(text[begin:].strip())
    return words


def _example(name: str, form: Form) -> str:
    """Return a right use of an instruction, with made-up registers, to put into a hint."""
    kinds = form.sources[::-1] if form.is_reversed else form.sources
    words = [("PD" if kind.bits == 64 else "P") + str(index) for index, kind in enumerate((form.destination, *kinds))]
    setting = [REALTIME if name.startswith("s_sendmsg") else "hwreg(HW_REG_HW_ID)"] if form.setting else []
    return f"as in {name} {', '.join([*words, *setting])}"
