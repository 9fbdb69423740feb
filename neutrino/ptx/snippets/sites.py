"""What a probe asks of the instructions that it matches: its tracepoint, their operands, and times around loads.

Helpers (``OUT``, ``IN1``, ``ADDR`` …) are names for values of such an instruction: this has their types, and at which
tracepoints each one has a value; and the operands of hand-written snippets, from their text to values of the
intermediate representation.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from fnmatch import fnmatchcase

from neutrino.abi.records import Field
from neutrino.errors import Span
from neutrino.ir.operands import (
    AssemblyOperand,
    Immediate,
    Inverted,
    Pair,
    Register,
    SavedOperand,
    SiteOperand,
    Special,
    SpecialRegister,
)
from neutrino.ir.statements import SETS_OF_LANES, Assembly, ClockAfter, Collective, Convert, Operation, Operator
from neutrino.ir.types import Type
from neutrino.probing.ir.probe_set import Probe, Snippet
from neutrino.probing.ir.structured import walk
from neutrino.probing.model import CLASSES, FLOW_SUBJECTS, Pattern, Subject
from neutrino.probing.nearest import nearest
from neutrino.probing.source_text import SourceText
from neutrino.probing.tracepoints import OTHER_PLACES
from neutrino.probing.written import WrittenProbe
from neutrino.ptx.isa.forms import (
    MODIFIERS,
    bits_of,
    fits,
    is_modifier,
    misplaced_modifier,
    type_by_pattern,
    types_last,
)
from neutrino.ptx.isa.instruction import OF_REQUESTS
from neutrino.ptx.isa.opcodes import FIRST_PARTS, NO_AFTER, OPCODES, OTHER_NAMES, Measure, Opcode, Role, find, in_class
from neutrino.ptx.isa.scalars import SPECIAL_REGISTERS

_WITH_ELEMENTS = ("OUT", *(f"IN{number}" for number in range(1, 10)))
_WITHOUT_ELEMENTS = (
    "ADDR", "BYTES", "OPS", "PRED", "LANES", "LEADER", "ELECTED", "THREAD", "BLOCK", "SITE", "LINE", "ELEMENTS",
    "SECTORS", "DISTINCT",
)  # fmt: skip
_ELEMENT = r"(?:\.(?P<element>bits|(?:[xyzw]|\d{1,3})(?:\.bits)?))?"

_PARAMETER_TYPES = (
    "bits", "b8", "b16", "b32", "b64", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64",
    "f16", "bf16", "f32", "f64",
)  # fmt: skip
_PARAMETER = (
    r"(?P<which>\d{1,4}|[A-Za-z_$%][\w$]*)(?:\+(?P<offset>\d{1,5}))?"
    rf"(?:\.(?P<type>{'|'.join(_PARAMETER_TYPES)}))?"
)
PARAMETER = re.compile(_PARAMETER, re.ASCII)
"""What follows ``PARAM.``. Groups: which of the kernel's parameters, by number or name; the byte in it, and the type of
what is there, both None for the parameter itself; ``bits`` is the parameter as bits without a type."""

HELPERS = (*_WITH_ELEMENTS, *_WITHOUT_ELEMENTS, "HAS.f32", "PARAM.0")
"""The names of all helpers."""

HELPER = re.compile(
    rf"(?P<name>{'|'.join(_WITH_ELEMENTS)}){_ELEMENT}|{'|'.join(_WITHOUT_ELEMENTS)}"
    rf"|HAS\.(?P<modifiers>\w[\w:]*(?:\.\w[\w:]*)*)|PARAM\.(?P<parameter>{_PARAMETER})",
    re.ASCII,
)
"""A helper as a whole operand. Groups: name and element of ``OUT.y``, None of helpers without elements; what follows
``HAS.``, parts of an opcode or the name of a class. The element may
end in ``bits`` (``OUT.bits``, ``OUT.y.bits``): then the value is taken as bits without a type."""

HELPER_TYPES = {
    "ADDR": "u64", "BYTES": "u64", "OPS": "u64", "PRED": "pred", "LANES": "b32", "LEADER": "pred", "ELECTED": "pred",
    "THREAD": "u32", "BLOCK": "u64", "SITE": "u32", "LINE": "u32", "ELEMENTS": "u32",
    "SECTORS": "u32", "DISTINCT": "u32",
}  # fmt: skip
"""The PTX types of the helpers whose type does not depend on the instruction; those of ``HAS.…`` are u32, too."""

_NUMBERED = frozenset({"SITE", "LINE"})
"""Helpers that have a value at source lines and places between instructions, too."""

_EVERYWHERE = frozenset({"LANES", "LEADER", "ELECTED", "THREAD", "BLOCK"})
"""Helpers that have a value wherever a probe runs."""

Fault = tuple[str, str, str]
"""Code, message and hint of a diagnostic."""

_MAX_PART = 80
"""Of an opcode: a longer word is not compared with known ones."""
_MAX_ELEMENTS = 128
"""Greatest number of registers in one operand, such as that of ``tcgen05.ld`` with ``.x128``."""
_MEASURES_WITH_BYTES = frozenset({Measure.ACCESS, Measure.COPY, Measure.MATRIX, Measure.FRAGMENT})
_MEASURES_WITH_OPS = frozenset({Measure.WARP, Measure.WARPGROUP, Measure.DESCRIPTOR})
_NO_OPERANDS = {
    Subject.KERNEL: ("'kernel'", "a kernel has no operands; probe an instruction"),
    Subject.FUNCTION: ("a function", "a function has no operands; probe an instruction, such as 'ld.global func:NAME'"),
    Subject.LINE: ("a source line", "a line has no operands; probe an instruction, such as 'ld.global file.cu:42'"),
    Subject.RANGE: ("a mark", "a mark has no operands; probe an instruction, such as 'ld.global range:NAME'"),
    **{
        subject: (f"'{subject.value}'", "a place between instructions has no operands; probe an instruction")
        for subject in FLOW_SUBJECTS
    },
}


_POLICY = "L2::cache_hint"
_WITH_POLICY = frozenset({"ld", "st", "red", "atom"})
_ATOMIC_OPERATIONS = frozenset(["add", "and", "or", "xor", "inc", "dec", "min", "max", "exch"])
_SHARED_ONLY = (("st", "async"), ("st", "bulk"), ("red", "async"))
"""Names of rows whose instructions take no third operand unless they access shared memory."""


def helper_type(word: str) -> str | None:
    """Return the PTX type of a helper, None if it depends on the instruction or the kernel."""
    return "u32" if word.startswith("HAS.") else HELPER_TYPES.get(word)


def is_literal(word: str) -> bool:
    """Return whether a helper is a number at each site, of any width from 32 bits on."""
    return word in _NUMBERED or word == "ELEMENTS" or word.startswith("HAS.")


@dataclass(frozen=True)
class SnippetSide:
    """The snippet of a probe that runs before the matched instruction, or the one that runs after it."""

    probe: Probe | WrittenProbe
    after: bool


def misplaced(word: str, side: SnippetSide) -> Fault | None:
    """Return why a helper has no value in a snippet, as a diagnostic's parts; None if it may have one.

    It may have one if each pattern of the tracepoint may match some instruction with that operand. Whether the
    instruction at each site has it is only known when a kernel is probed.

    word: the helper as written, with its element (``OUT.y``).
    """
    match = HELPER.fullmatch(word)
    if match is None:
        return "not-an-operand", f"'{word}' is no operand", "the helpers are " + ", ".join(HELPERS)
    if match["parameter"] is not None:
        # Kernels have parameters, not instructions: all places in one have them.
        if match["offset"] is not None and match["type"] in {None, "bits"}:
            hint = f"write what is there, as in {word.removesuffix('.bits')}.u32"
            return "not-an-operand", f"'{word}' has no type", hint
        return None
    for part in (match["modifiers"] or "").split(".") if match["modifiers"] else ():
        if part not in FIRST_PARTS and part not in CLASSES and not is_modifier(part):
            guess = nearest(part, [*MODIFIERS, *FIRST_PARTS, *CLASSES]) if len(part) <= _MAX_PART else None
            hint = f"did you mean '{guess}'?" if guess else "it is a part of an opcode, such as f32 or v4, or a class"
            return "unknown-modifier", f"no instruction of PTX has '{part}'", hint
    element = (match["element"] or "").removesuffix("bits").rstrip(".")
    if element and element.isdigit() and int(element) >= _MAX_ELEMENTS:
        return "operand-absent", f"no operand has an element {element}", f"they count from 0 to {_MAX_ELEMENTS - 1}"
    for pattern in side.probe.tracepoint.patterns:
        # These do not come from operands: threads are everywhere, and source lines and places have numbers too.
        if word in _EVERYWHERE or (word in _NUMBERED and (pattern.subject is Subject.LINE or pattern.is_place)):
            continue
        if not pattern.has_operands:
            where, hint = _NO_OPERANDS[pattern.subject]
            return "operand-without-instruction", f"{word} at {where}", hint
    if match["name"] == "OUT" and not side.after:
        return "out-in-before", f"{word} in 'before'", "the result is there in 'after' only"
    for pattern in side.probe.tracepoint.patterns:
        fault = _absent_from_all(pattern, match["name"] or word, word)
        if fault is not None:
            return fault
    return None


def value_type(pattern: Pattern, word: str) -> str | None:
    """Return the PTX type of ``OUT`` or an input of every instruction that a pattern matches.

    None if it may have several, or is bits without a type. word: the helper with its element, as written.
    """
    name = word.partition(".")[0]
    if pattern.subject is not Subject.OPCODE or word.endswith(".bits") or name not in _WITH_ELEMENTS:
        return None
    return type_by_pattern(pattern.opcode, 0 if name == "OUT" else int(name.removeprefix("IN")))


# Cached: each value of the instruction that a probe reads is looked up in the rows of the same patterns.
@functools.lru_cache(maxsize=256)
def possible(pattern: Pattern) -> Sequence[Opcode]:
    """Return the rows of the table of opcodes that an instruction matched by a pattern may have, the closest first.

    Rows that no such instruction has may be included: it is not checked whether modifiers exclude each other.
    """
    rows: Sequence[Opcode] = OPCODES
    if pattern.subject is Subject.CLASS:
        rows = tuple(in_class(pattern.group))
    elif pattern.subject is Subject.OPCODE:
        rows = _rows_of(pattern)
    excluded_classes = set(pattern.without) if pattern.subject is not Subject.OPCODE else set()
    # Which classes are required or excluded is known of a row, and of its first part.
    required = [parts[0] for parts in pattern.requires if len(parts) == 1 and parts[0] in CLASSES]
    first_parts = [parts[0] for parts in pattern.requires if len(parts) > 1]
    return tuple(
        row
        for row in rows
        if not excluded_classes.intersection((row.name[0][0], *row.classes))
        and row.classes.issuperset(required)
        and all(fnmatchcase(row.name[0][0], part) for part in first_parts)
    )


def _rows_of(pattern: Pattern) -> Sequence[Opcode]:
    """Return the rows that an instruction matched by an opcode pattern may have, the closest first."""
    if "*" in pattern.opcode[0]:
        return [row for row in OPCODES if fnmatchcase(row.name[0][0], pattern.opcode[0])]
    closest = find(pattern.opcode)
    rows = [row for row in OPCODES if pattern.opcode[0] in row.name[0]]
    if closest is not None:
        # An instruction with further modifiers may be in a row with a longer name.
        rows = [closest, *(row for row in rows if len(row.name) > len(closest.name))]
    if {"global", "local", "const", "param"}.intersection(pattern.opcode):
        rows = [row for row in rows if tuple(part[0] for part in row.name) not in _SHARED_ONLY]
    excluded = set(pattern.without)
    # Without the rows whose name needs an excluded modifier.
    return [row for row in rows if not any(excluded.issuperset(alternatives) for alternatives in row.name)]


def _absent_from_all(pattern: Pattern, name: str, word: str) -> Fault | None:
    """Return the fault if no instruction that a pattern may match has a helper's value; None if some may have it.

    Each of these instructions lacks it for a reason of its own; the fault is that of the row of the table closest to
    the pattern. name: the helper without its element. word: with it, as written.
    """
    faults = []
    for row in possible(pattern):
        fault = _absent_from(row, name, word, pattern)
        if fault is None:
            return None
        faults.append(fault)
    return faults[0] if faults else None


def _absent_from(row: Opcode, name: str, word: str, pattern: Pattern) -> Fault | None:
    """Return why instructions of a row of the table have no value for a helper; None if they have one.

    name: the helper without its element. word: with it, as written. pattern: that matches them.
    """
    absent = "operand-absent"  # the code of most faults
    if name == "OUT" and row.asynchronous:
        hint = f"the result of {row.text} is not there yet when the next instruction runs"
        return "out-asynchronous", f"{word} of an asynchronous instruction", hint
    if name == "OUT" and not row.destinations:
        return absent, f"{row.text} has no {word}", "it writes no register"
    # A variadic instruction may have any number of inputs.
    if name.startswith("IN") and not row.variadic:
        number = int(name.removeprefix("IN"))
        inputs = row.operands[row.destinations :]
        policy = ""
        if _may_have_policy(row) and _POLICY not in pattern.opcode:
            count = len(inputs)
            # The last one is the policy. Of atomics, only a comparison has two inputs beside its address.
            is_cas = row.name[0] != ("atom",) or "cas" in pattern.opcode or not _ATOMIC_OPERATIONS & set(pattern.opcode)
            inputs = inputs[:-1] if is_cas else inputs[:-2]
            policy = f"; with .{_POLICY} the last one is its cache policy" if number <= count else ""
        if number > len(inputs):
            hint = f"it has {len(inputs) or 'no'} input{'s' if len(inputs) != 1 else ''}{policy}"
            return absent, f"{row.text} has no {name}", hint
        has_element = word.removesuffix(".bits") != name
        if has_element and inputs[number - 1] is Role.ADDRESS:
            return absent, f"{row.text} has no {word}", f"{name} is its address, which has no elements"
    if name in OF_REQUESTS and (row.measure is not Measure.ACCESS or Role.ADDRESS not in row.operands):
        return absent, f"{row.text} has no {name}", "loads, stores and atomics have it"
    if name == "ADDR" and not {Role.ADDRESS, Role.OBJECT}.intersection(row.operands):
        return absent, f"{row.text} has no {name}", "it accesses no memory"
    if name == "BYTES" and row.measure not in _MEASURES_WITH_BYTES and Role.SIZE not in row.operands:
        return absent, f"{row.text} has no {name}", "how many bytes it accesses does not stand in it"
    if name == "OPS" and row.measure not in _MEASURES_WITH_OPS:
        return absent, f"{row.text} has no {name}", "instructions of the class tensor have it"
    return None


def _may_have_policy(row: Opcode) -> bool:
    """Return whether the last operand of an opcode's instructions may be a cache policy, which few of them have."""
    return (
        row.name[0][0] in _WITH_POLICY
        and not row.asynchronous
        and row.operands[-1] is Role.SOURCE
        and (row.syntax.endswith("?"))
    )


def can_save(register_type: str, field: Field) -> bool:
    """Return whether a PTX register of a type can be stored in a record's field as it is, without a conversion."""
    if field.type.size >= 4:
        return fits(register_type, field.type.value)
    # Fields of 1 and 2 bytes take the low bits of an integer register of 16 or 32 bits.
    return register_type != "pred" and register_type[0] != "f" and bits_of(register_type) in {16, 32}


def parse_saved_operand(word: str, registers: Mapping[str, Register]) -> SavedOperand:
    """Parse one operand of a ``SAVE``, which has been checked before. registers: those of the probe file, by name."""
    operand = parse_operand(word, registers)
    # A save takes neither !%p nor %p|%q: the check has reported them, and the snippet is not used.
    return operand if not isinstance(operand, (Inverted, Pair)) else Immediate(word)


def parse_operand(word: str, registers: Mapping[str, Register]) -> AssemblyOperand:
    """Parse one operand, which has been checked before; an invalid one becomes an ``Immediate``.

    registers: those of the probe file, by name.
    """
    helper = HELPER.fullmatch(word)
    if helper and helper["parameter"] is not None:
        return SiteOperand("PARAM", helper["parameter"])
    if helper and helper["modifiers"] is not None:
        return SiteOperand("HAS", helper["modifiers"])
    if helper:
        # Helpers without elements (ADDR) are the whole word, and in no group of the pattern.
        return SiteOperand(helper["name"] or word, helper["element"])
    if word in registers:
        return registers[word]
    if word in SPECIAL_REGISTERS:
        return SpecialRegister(word, Type(SPECIAL_REGISTERS[word]))
    if word.startswith("!"):
        operand = parse_operand(word[1:].strip(), registers)
        return Inverted(operand) if isinstance(operand, (Register, SiteOperand)) else Immediate(word)
    first, bar, second = (part.strip() for part in word.partition("|"))
    if bar and first in registers and second in registers:
        return Pair(registers[first], registers[second])
    return Immediate(word)


_CLASS_EXAMPLES = {
    "memory": "ld", "load": "ld", "store": "st", "atomic": "atom", "barrier": "bar", "branch": "bra", "tensor": "mma",
    "convert": "cvt", "special": "sin",
}  # fmt: skip
"""Class of instructions → one of its opcodes, for hints."""


class SiteChecker:
    """Checks the tracepoints of one file, and when its probes read clocks.

    source: of the file. report: adds a diagnostic, from its place, code, message, hint and severity. guess: returns the
    known word that is closest to a misspelt one.
    """

    def __init__(
        self, source: SourceText, report: Callable[..., None], guess: Callable[[str, Iterable[str]], str | None]
    ) -> None:
        """Prepare to check the tracepoints of one probe file. source: its text. report: adds a diagnostic. guess:
        returns the known word that is closest to a misspelt one."""
        self._source = source
        self._report = report
        self._guess = guess

    def check_tracepoint(self, probe: WrittenProbe | Probe) -> None:
        """Check the opcode and the excluded modifiers (``!tensor``) of each of a tracepoint's patterns."""
        for pattern in probe.tracepoint.patterns:
            if pattern.opcode:
                self._check_pattern(pattern, probe)
            elif pattern.subject in FLOW_SUBJECTS and probe.after:
                message = f"'{pattern.subject.value}' has no after: its code goes before what is there"
                self._report(self._locate_pattern(pattern, probe), "nothing-after", message, "use before")
            for modifier in pattern.without:
                exclamation_mark = self._source.locate(f"!{modifier}", self._locate_pattern(pattern, probe))
                # The modifier follows its exclamation mark.
                place = Span(exclamation_mark.line, exclamation_mark.column + 1)
                # Of a class or "*", opcodes and classes may be excluded, too.
                if pattern.subject is Subject.OPCODE or modifier not in {*FIRST_PARTS, *CLASSES}:
                    self._check_modifier(modifier, place, "it excludes nothing")
            for parts, effect in (
                *((parts, "the pattern finds nothing") for parts in pattern.requires),
                *((parts, "it excludes nothing") for parts in pattern.excludes),
            ):
                self._check_further(parts, effect, self._locate_pattern(pattern, probe))

    def check_lanes(self, statement: Collective) -> None:
        """Report a set of lanes that goes into a register of another width than 32 bits."""
        kind = statement.destination.type
        if statement.reduction in SETS_OF_LANES and kind is not Type.U32:
            self._report(statement.span, "helper-type", f"a set of lanes is u32, and goes into no {kind}")

    def _check_further(self, parts: tuple[str, ...], effect: str, start: Span) -> None:
        """Check the spelling of an opcode, class or modifier that narrows a tracepoint's pattern. effect: of an unknown
        one, for the hint."""
        place = self._source.locate(".".join(parts), start)
        if len(parts) == 1:
            if not _known_first_part(parts[0]) and parts[0] not in CLASSES:
                self._check_modifier(parts[0], place, effect)
            return
        if not _known_first_part(parts[0]):
            guess = self._guess(parts[0], FIRST_PARTS)
            hint = f"did you mean '{guess}'?" if guess else effect
            self._report(place, "unknown-opcode", f"PTX has no instruction '{parts[0]}'", hint)
            return
        column = place.column + len(parts[0])
        for modifier in parts[1:]:
            self._check_modifier(modifier, Span(place.line, column + 1), effect)
            column += 1 + len(modifier)

    def _check_pattern(self, pattern: Pattern, probe: WrittenProbe | Probe) -> None:
        """Check a tracepoint's pattern that names an opcode, such as ``ld.global``: report what PTX does not have."""
        opcode = pattern.opcode[0]
        place = self._locate_pattern(pattern, probe)
        if not _known_first_part(opcode):
            self._report(place, "unknown-opcode", f"PTX has no instruction '{opcode}'", self._opcode_hint(pattern))
        elif opcode in NO_AFTER and probe.after:
            hint = 'use before, or position = "kernel"'
            self._report(place, "nothing-after", f"nothing can run after '{opcode}'", hint)
        else:
            column = place.column + len(opcode)
            for modifier in pattern.opcode[1:]:
                # One more, for the dot before the modifier.
                self._check_modifier(modifier, Span(place.line, column + 1), "the pattern finds nothing")
                column += 1 + len(modifier)
            self._check_order(pattern.opcode, place)

    def _opcode_hint(self, pattern: Pattern) -> str:
        """Return what to write in place of a pattern whose opcode PTX does not have."""
        opcode = pattern.opcode[0]
        guess = self._guess(opcode, [*FIRST_PARTS, *CLASSES])
        if opcode in OTHER_PLACES:
            return f"did you mean '{OTHER_PLACES[opcode]}'?"
        if opcode in CLASSES:
            example = ".".join((_CLASS_EXAMPLES[opcode], *pattern.opcode[1:]))
            return f'a class has no modifiers: write "{opcode}", or an opcode such as "{example}"'
        # Names that CUDA C++ and machine code have for it.
        if opcode in OTHER_NAMES:
            return f'PTX has it as "{OTHER_NAMES[opcode]}"'
        if guess:
            return f"did you mean '{guess}'?"
        return "it begins with a PTX instruction, such as ld; the option -k selects kernels, func:NAME functions"

    def _check_order(self, opcode: tuple[str, ...], span: Span) -> None:
        """Warn of a state space or a vector after a type: in every instruction it comes before the type.

        opcode: the dotted parts of a pattern. span: where it is written.
        """
        index = misplaced_modifier(opcode)
        if index is not None:
            # Each part before it takes one column more, for its dot.
            column = span.column + sum(len(part) + 1 for part in opcode[:index])
            hint = f'did you mean "{".".join(types_last(opcode))}"?'
            message = f"no instruction of PTX has '{opcode[index]}' after its type"
            self._report(Span(span.line, column), "modifier-order", message, hint, "warning")

    def _check_modifier(self, modifier: str, span: Span, default_hint: str) -> None:
        """Warn of a modifier that no instruction of PTX has. default_hint: used if no known one is similar."""
        is_known = is_modifier(modifier)
        if "*" in modifier:
            # Shapes are no list of names: any number may stand for a part of one.
            is_known = bool(fnmatch.filter(MODIFIERS, modifier)) or is_modifier(modifier.replace("*", "8"))
        if not is_known and modifier != "*":
            guess = self._guess(modifier, MODIFIERS)
            hint = f"did you mean '{guess}'?" if guess else default_hint
            message = f"no instruction of PTX has the modifier '{modifier}'"
            self._report(span, "unknown-modifier", message, hint, "warning")

    def _locate_pattern(self, pattern: Pattern, probe: WrittenProbe | Probe) -> Span:
        """Return where a pattern is written in its probe's ``position``: the place of its opcode, class or ``*``.

        If the file writes it in another way, such as with escapes, the result is the place of the probe.
        """
        start = self._source.locate(probe.tracepoint.text, probe.span)
        word = pattern.subject.value if pattern.subject in FLOW_SUBJECTS else "*"
        return self._source.locate(".".join(pattern.opcode) or pattern.group or word, start)

    def warn_of_early_clocks(self, probes: Sequence[Probe]) -> None:
        """Warn of a time that ends when a load was issued, not when its result is there.

        That is a clock in ``after`` of a load that does not wait for ``OUT``, in a file that reads a clock before such
        an instruction, too, or subtracts from this one. A time without another one is a point in time.
        """
        starts = any(_clock_reads(probe.before) for probe in probes if probe.tracepoint.has_operands)
        for probe in probes:
            if probe.after is None or not _loads(probe):
                continue
            reads = _clock_reads(probe.after)
            waits_for = _made_from_result(probe.after)
            first = next((read for read in reads if read.guard not in waits_for), None)
            if first is None or not (starts or _subtracts(probe.after, reads)):
                continue
            hint = "read it under a predicate made from OUT: setp.ne.b32 %p, OUT, 0; @%p mov …; @!%p mov …;"
            message = f"{_clock_of(first)} after a load does not wait for the load's result"
            self._report(self._source.locate(_clock_of(first), first.span), "early-clock", message, hint, "warning")

    def warn_of_typed_early_clocks(self, probes: Sequence[Probe]) -> None:
        """Warn of a time, in a typed probe, that ends when a load was issued, not when its result is there.

        See ``warn_of_early_clocks``; here a clock that waits is a statement of its own.
        """
        starts = any(_typed_clocks(probe.before) for probe in probes if probe.tracepoint.has_operands)
        for probe in probes:
            if probe.after is None or not _loads(probe):
                continue
            reads = _typed_clocks(probe.after)
            if not reads or isinstance(reads[0], ClockAfter):
                # What is read later in the snippet waits as well.
                continue
            if starts or _subtracts_typed(probe.after, reads):
                hint = "write nl.clock(after=x) with the loaded value, as in x: nl.u32 = nl.out"
                message = "this clock after a load does not wait for the load's result"
                self._report(reads[0].span, "early-clock", message, hint, "warning")


def _known_first_part(word: str) -> bool:
    """Return whether the opcode of some instruction begins with a word, which may have wildcards (``ld*``)."""
    return word in FIRST_PARTS or ("*" in word and bool(fnmatch.filter(FIRST_PARTS, word)))


_CLOCKS = frozenset({"%clock", "%clock64", "%clock_hi", "%globaltimer", "%globaltimer_lo"})


def _loads(probe: Probe) -> bool:
    """Return whether an instruction that a probe matches may be a load that waits for its result, not an asynchronous
    copy."""
    rows = (row for pattern in probe.tracepoint.patterns if pattern.has_operands for row in possible(pattern))
    if any(pattern.subject is Subject.ANY for pattern in probe.tracepoint.patterns):
        return False
    return any(row.destinations and not row.asynchronous and row.classes & {"load", "atomic"} for row in rows)


def _clock_of(read: Assembly) -> str:
    """Return the name of the clock that an instruction reads, "" if it reads none."""
    clocks = (operand.name for operand in read.operands if isinstance(operand, SpecialRegister))
    return next((name for name in clocks if name in _CLOCKS), "")


def _clock_reads(snippet: Snippet | None) -> list[Assembly]:
    """Return the instructions of a snippet (a probe's code) that read a clock."""
    statements = snippet.statements if snippet else ()
    return [statement for statement in statements if isinstance(statement, Assembly) and _clock_of(statement)]


def _subtracts(snippet: Snippet, reads: Sequence[Assembly]) -> bool:
    """Return whether a snippet subtracts clocks: computes a difference of what these instructions read."""
    times = {register for read in reads for register in read.writes}
    return any(
        isinstance(statement, Assembly)
        and statement.opcode.partition(".")[0] == "sub"
        and not times.isdisjoint(operand for operand in statement.operands[1:] if isinstance(operand, Register))
        for statement in snippet.statements
    )


def _typed_clocks(snippet: Snippet | None) -> list[Operation | ClockAfter]:
    """Return the typed statements of a snippet that read a clock, in order."""
    return [
        statement
        for statement in walk(snippet.statements if snippet else ())
        if isinstance(statement, ClockAfter)
        or (isinstance(statement, Operation) and statement.sources[0] in {Special.CLOCK, Special.TIME})
    ]


def _subtracts_typed(snippet: Snippet, reads: Sequence[Operation | ClockAfter]) -> bool:
    """Return whether a typed snippet subtracts clocks: computes a difference of what these statements read."""
    times = {read.destination for read in reads}
    for statement in walk(snippet.statements):
        if isinstance(statement, Convert) and statement.source in times:
            times.add(statement.destination)
        elif isinstance(statement, Operation) and not times.isdisjoint(statement.sources):
            if statement.operator is Operator.SUB:
                return True
            if statement.operator is Operator.MOVE:
                times.add(statement.destination)
    return False


def _made_from_result(snippet: Snippet) -> Set[Register | SiteOperand]:
    """Return the registers of a snippet that are computed from ``OUT``, the result of the probed instruction."""
    made: set[Register | SiteOperand] = set()
    for statement in snippet.statements:
        if isinstance(statement, Assembly) and any(
            (isinstance(operand, SiteOperand) and operand.name == "OUT") or operand in made
            for operand in statement.operands
            if operand not in statement.writes
        ):
            made.update(statement.writes)
    return made
