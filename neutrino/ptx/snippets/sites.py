"""What a probe asks of the instructions that it matches: the check of its tracepoint, and of times around loads."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Sequence, Set

from neutrino.errors import Span
from neutrino.ir.operands import Register, SiteOperand, Special, SpecialRegister
from neutrino.ir.statements import SETS_OF_LANES, Assembly, ClockAfter, Collective, Convert, Operation, Operator
from neutrino.ir.types import Type
from neutrino.probing.ir.probe_set import Probe, Snippet
from neutrino.probing.ir.structured import walk
from neutrino.probing.model import CLASSES, FLOW_SUBJECTS, Pattern, Subject
from neutrino.probing.source_text import SourceText
from neutrino.probing.tracepoints import OTHER_PLACES
from neutrino.probing.written import WrittenProbe
from neutrino.ptx.isa.forms import MODIFIERS, is_modifier, misplaced_modifier, types_last
from neutrino.ptx.isa.opcodes import FIRST_PARTS, NO_AFTER, OTHER_NAMES
from neutrino.ptx.snippets.operands import possible

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
        """Report a set of lanes in a register that has not 32 bits."""
        kind = statement.destination.type
        if statement.reduction in SETS_OF_LANES and kind is not Type.U32:
            self._report(statement.span, "helper-type", f"a set of lanes is u32, and goes into no {kind}")

    def _check_further(self, parts: tuple[str, ...], effect: str, start: Span) -> None:
        """Check an opcode, a class or a modifier that narrows a pattern. effect: of an unknown one, for the hint."""
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
        """Check a pattern that names an opcode, such as ``ld.global``."""
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
        """Warn as ``warn_of_early_clocks``, of typed probes: there a clock that waits is a statement of its own."""
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
    """Return whether an instruction that a probe matches may read memory into a register, not asynchronously."""
    rows = (row for pattern in probe.tracepoint.patterns if pattern.has_operands for row in possible(pattern))
    if any(pattern.subject is Subject.ANY for pattern in probe.tracepoint.patterns):
        return False
    return any(row.destinations and not row.asynchronous and row.classes & {"load", "atomic"} for row in rows)


def _clock_of(read: Assembly) -> str:
    """Return the clock that an instruction reads, "" if none."""
    clocks = (operand.name for operand in read.operands if isinstance(operand, SpecialRegister))
    return next((name for name in clocks if name in _CLOCKS), "")


def _clock_reads(snippet: Snippet | None) -> list[Assembly]:
    """Return the instructions of a snippet that read a clock."""
    statements = snippet.statements if snippet else ()
    return [statement for statement in statements if isinstance(statement, Assembly) and _clock_of(statement)]


def _subtracts(snippet: Snippet, reads: Sequence[Assembly]) -> bool:
    """Return whether a snippet computes a difference of what these instructions read."""
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
    """Return whether a typed snippet computes a difference of what these statements read."""
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
    """Return the registers of a snippet that are computed from ``OUT``."""
    made: set[Register | SiteOperand] = set()
    for statement in snippet.statements:
        if isinstance(statement, Assembly) and any(
            (isinstance(operand, SiteOperand) and operand.name == "OUT") or operand in made
            for operand in statement.operands
            if operand not in statement.writes
        ):
            made.update(statement.writes)
    return made
