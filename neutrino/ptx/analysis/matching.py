"""Which instructions of a body the tracepoints of a set match, by source lines too, and which they miss by little."""

from __future__ import annotations

import fnmatch
import functools
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, overload

from neutrino.probing.ir.probe_set import Probe
from neutrino.probing.model import Pattern, SourceLines, Subject
from neutrino.ptx.isa.forms import TYPE
from neutrino.ptx.isa.instruction import Mnemonic
from neutrino.ptx.text.body import Body, Statement
from neutrino.ptx.text.module import NOT_CODE, Function, Module

_LOC = re.compile(
    r"\.loc[ \t]+(\d+)[ \t]+(\d+)(?:[ \t]+(\d+))?"
    r"(?:\s*,\s*function_name\s+[\w$]+(?:\s*\+\s*\d+)?\s*,\s*inlined_at\s+(\d+)\s+(\d+)\s+(\d+))?",
    re.ASCII,
)
_DEEPEST = 32
"""Calls that are followed outwards; a text may claim that a line was inlined into itself."""


@dataclass(frozen=True)
class SourcePlace:
    """A line of a source file, and where the function that it is in was inlined, from the inside out."""

    file: str
    line: int
    callers: tuple[tuple[str, int], ...] = ()

    def is_in(self, lines: SourceLines) -> bool:
        """Whether the line itself is one of these; those that it was inlined into do not count."""
        return lines.first <= self.line <= lines.last and is_file(self.file, lines.file)

    def __str__(self) -> str:
        """``file.cu:42, inlined at main.cu:7``, without folders."""
        places = [(self.file, self.line), *self.callers]
        return ", inlined at ".join(f"{file.rpartition('/')[2]}:{line}" for file, line in places)


def is_file(path: str, name: str) -> bool:
    """Whether a path ends in name, at a ``/``."""
    return path == name or path.endswith("/" + name.lstrip("/"))


@dataclass(frozen=True)
class _Location:
    """One ``.loc``: file, line and column, and of which place it was inlined into."""

    at: tuple[int, int, int]
    inlined: tuple[int, int, int] | None


class Locations:
    """The line information of a body: of a module's text from start to end. Read when first asked for."""

    def __init__(self, module: Module, start: int, end: int) -> None:
        self._module = module
        self._start = start
        self._end = end
        self._places: dict[int, SourcePlace | None] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    @cached_property
    def _found(self) -> list[re.Match[str]]:
        return _directives(self._module.text, self._start, self._end)

    @cached_property
    def _starts(self) -> list[int]:
        return [match.start() for match in self._found]

    def place(self, position: int) -> SourcePlace | None:
        """What the instruction at a position of the text is from, None where the text does not say."""
        index = bisect_right(self._starts, position) - 1
        if index not in self._places:
            self._places[index] = self._place(index) if index >= 0 else None
        return self._places[index]

    def _place(self, index: int) -> SourcePlace | None:
        location = self._location(index)
        file, line, _ = location.at
        if not line:
            return None  # line 0: no line of the source (DWARF, 6.2.2)
        callers: list[tuple[str, int]] = []
        while location.inlined is not None and len(callers) < _DEEPEST:
            callers.append((self._file(location.inlined[0]), location.inlined[1]))
            before = self._inlining.get(location.inlined, ())
            index = bisect_right(before, index - 1) - 1
            if index < 0:
                break
            index = before[index]
            location = self._location(index)
        return SourcePlace(self._file(file), line, tuple(callers))

    @cached_property
    def _inlining(self) -> dict[tuple[int, int, int], list[int]]:
        # By their place, the numbers of the directives that inlined ones may refer to.
        found: dict[tuple[int, int, int], list[int]] = {}
        for index in range(len(self._found)):
            found.setdefault(self._location(index).at, []).append(index)
        return found

    def _location(self, index: int) -> _Location:
        file, line, column, *inlined = (int(group or 0) for group in self._found[index].groups())
        return _Location((file, line, column), tuple(inlined) if any(inlined) else None)  # type: ignore[arg-type]

    def _file(self, number: int) -> str:
        return self._module.source_files.get(number, f"file {number}")


def _directives(text: str, start: int, end: int) -> list[re.Match[str]]:
    """Every ``.loc`` of a stretch of text, those in comments and strings left out."""
    if text.find(".loc", start, end) < 0:
        return []
    found = list(_LOC.finditer(text, start, end))
    hidden = [match.span() for match in NOT_CODE.finditer(text, start, end)]
    if not hidden:
        return found
    starts = [opening for opening, _ in hidden]

    def is_code(position: int) -> bool:
        index = bisect_right(starts, position) - 1
        return index < 0 or position >= hidden[index][1]

    return [match for match in found if is_code(match.start())]


_MOST = 3
"""Opcodes that are named."""


def near_misses(body: Body, patterns: Iterable[Pattern]) -> tuple[str, ...]:
    """Opcodes in a body that some pattern would find if it did not name a type; the first ones, each once."""
    loose: dict[str, list[Pattern]] = {}
    for pattern in patterns:
        untyped = tuple(part for part in pattern.opcode if not TYPE.fullmatch(part))
        if pattern.subject is Subject.OPCODE and untyped != pattern.opcode:
            loose.setdefault(pattern.opcode[0], []).append(replace(pattern, opcode=untyped))
    if not loose:
        return ()
    near = {
        opcode
        for opcode in body.opcodes
        if any(pattern.matches(opcode.parts) for pattern in loose.get(opcode.word, ()))
    }
    found = dict.fromkeys(body.statement(index).opcode for index in body.where(near))
    return tuple(found)[:_MOST]


_GLOB = frozenset("*?[")


class Hit(NamedTuple):
    """An instruction that probes match. number: its place among those of the kernel, in text order.

    statement: the instruction. probes: those of the instruction itself, in file order. opens, closes: those of the
    source lines whose run of instructions begins or ends with it, with the number of the run's first instruction.
    An instruction that only ends runs has no number of its own.
    """

    number: int | None
    statement: Statement
    probes: tuple[Probe, ...]
    opens: tuple[Probe, ...] = ()
    closes: tuple[tuple[Probe, int], ...] = ()


class OpcodeHits(Sequence[Hit]):
    """The hits of a body where opcode and guard alone decide which probes match. Each `Hit` is made when asked for.

    indices: the matched instructions, by their places in the body. first: the number of the first hit.
    """

    def __init__(self, body: Body, first: int, plan: _Plan) -> None:
        self._body = body
        self._first = first
        self._choices = plan.choices
        self._guarded = plan.guarded
        self._opcodes = plan.matched(body.opcodes)
        self.indices = body.where(self._opcodes)
        if plan.guarded is not plan.choices:
            self.indices = [index for index in self.indices if self._probes(index)]

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, at: int) -> Hit: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[Hit, ...]: ...

    def __getitem__(self, at: int | slice) -> Hit | tuple[Hit, ...]:
        if isinstance(at, slice):
            return tuple(self[index] for index in range(*at.indices(len(self))))
        index = self.indices[at]
        return Hit(self._first + at % len(self), self._body.statement(index), self._probes(index))

    @cached_property
    def unguarded(self) -> dict[Mnemonic, tuple[Probe, ...]]:
        """The probes of an instruction without a guard, by its opcode, for each opcode of the body that has any."""
        chosen = ((opcode, self._choices[opcode]) for opcode in self._opcodes)
        return {opcode: choice.probes for opcode, choice in chosen if choice is not None and choice.probes}

    @property
    def different_probes(self) -> Iterator[tuple[Probe, ...]]:
        """Every combination of probes that some hit has."""
        if self._guarded is self._choices:
            return iter(self.unguarded.values())
        return map(self._probes, self.indices)

    def _probes(self, index: int) -> tuple[Probe, ...]:
        opcode = self._body.mnemonics[index]
        if opcode is None:
            return ()
        choice = (self._guarded if self._body.is_guarded(index) else self._choices)[opcode]
        return choice.probes if choice is not None else ()


@dataclass(frozen=True)
class Found:
    """What a body holds. ends: its ``ret`` and ``exit``, predicated or not. next_number: after the last hit's.

    places: the source lines of its instructions. lacks_lines: a probe asks for some, and the text has none.
    """

    hits: OpcodeHits | tuple[Hit, ...]
    ends: tuple[Statement, ...]
    next_number: int
    places: Locations
    lacks_lines: bool = False

    @property
    def probes(self) -> tuple[Probe, ...]:
        """Each probe of some hit, once."""
        if isinstance(self.hits, OpcodeHits):
            # Most hits share a few tuples.
            matched = {id(probes): probes for probes in self.hits.different_probes}.values()
            return tuple({id(probe): probe for probes in matched for probe in probes}.values())
        found: dict[int, Probe] = {}
        seen: set[int] = set()
        for hit in self.hits:
            # Most hits share a few tuples.
            if id(hit.probes) not in seen:
                seen.add(id(hit.probes))
                found.update((id(probe), probe) for probe in hit.probes)
            if hit.opens or hit.closes:
                found.update((id(probe), probe) for probe in (*hit.opens, *(probe for probe, _ in hit.closes)))
        return tuple(found.values())


@dataclass(frozen=True)
class _Choice:
    """What applies to an opcode. probes: whatever its line. on_lines: by the probe's index, lines to be on."""

    probes: tuple[Probe, ...]
    on_lines: tuple[tuple[int, tuple[SourceLines, ...]], ...]


class _Choices(dict[Mnemonic, "_Choice | None"]):
    """What applies to an opcode, None where nothing does; found out when first asked for."""

    def __init__(self, choose: Callable[[Mnemonic], _Choice | None]) -> None:
        self._choose = choose

    def __missing__(self, opcode: Mnemonic) -> _Choice | None:
        return self.setdefault(opcode, self._choose(opcode))


@dataclass(frozen=True)
class _Wanted:
    """A probe as it applies to one function. index: its place in file order."""

    index: int
    probe: Probe
    patterns: tuple[Pattern, ...]


@dataclass
class _LineSides:
    """The line probes whose runs begin at an instruction, and those whose runs end there with where they began."""

    opens: tuple[Probe, ...] = ()
    closes: tuple[tuple[Probe, int], ...] = ()


_NO_SIDES = _LineSides()


class _Plan:
    """The probes that apply in some function, with the patterns that do."""

    def __init__(self, wanted: Sequence[_Wanted]) -> None:
        self._wanted = tuple(entry for entry in wanted if any(pattern.has_operands for pattern in entry.patterns))
        self.choices = _Choices(functools.partial(self._choose, guarded=False))
        self.guarded = self.choices
        # By the first part of an opcode, by class, and under "" for every instruction; with their probe's index.
        self._patterns: dict[str, list[tuple[int, Pattern]]] = {}
        self._narrowed: dict[tuple[int, frozenset[int]], tuple[Probe, ...]] = {}
        # Opcodes that were met, and those of them that have probes.
        self._met: set[Mnemonic] = set()
        self._matched: set[Mnemonic] = set()
        self.line_probes = [
            (entry.probe, lines)
            for entry in wanted
            if (lines := [pattern.lines for pattern in entry.patterns
                          if pattern.subject is Subject.LINE and pattern.lines is not None])
        ]  # fmt: skip
        patterns = []
        for entry in self._wanted:
            for pattern in entry.patterns:
                if pattern.has_operands:
                    patterns.append(pattern)
                    key = pattern.opcode[0] if pattern.subject is Subject.OPCODE else pattern.group
                    self._patterns.setdefault(key, []).append((entry.index, pattern))
        if any(pattern.predicated for pattern in patterns):
            self.guarded = _Choices(functools.partial(self._choose, guarded=True))

    @cached_property
    def asks_for_lines(self) -> bool:
        """Some pattern names a source line."""
        return bool(self.line_probes) or any(pattern.lines for entry in self._wanted for pattern in entry.patterns)

    def matched(self, opcodes: Set[Mnemonic]) -> Set[Mnemonic]:
        """Those of some opcodes that have probes, with a guard or without, if source lines do not matter."""
        for opcode in opcodes - self._met:
            self._met.add(opcode)
            if any(choice is not None and choice.probes for choice in (self.choices[opcode], self.guarded[opcode])):
                self._matched.add(opcode)
        return opcodes & self._matched

    def probes(self, choice: _Choice, place: SourcePlace | None) -> tuple[Probe, ...]:
        """The probes that match an instruction on a line; the same tuple for the same ones."""
        if place is None:
            return choice.probes
        chosen = frozenset(index for index, asked in choice.on_lines if any(place.is_in(lines) for lines in asked))
        key = (id(choice), chosen)
        if key not in self._narrowed:
            always = {id(probe) for probe in choice.probes}
            self._narrowed[key] = tuple(
                entry.probe for entry in self._wanted if entry.index in chosen or id(entry.probe) in always
            )
        return self._narrowed[key]

    def _choose(self, opcode: Mnemonic, *, guarded: bool) -> _Choice | None:
        parts = opcode.parts
        groups = opcode.row.classes if opcode.row is not None else frozenset()
        # By the probe's index, the patterns that match.
        matching: dict[int, list[Pattern]] = {}
        for key in {parts[0], *groups, ""}:
            for index, pattern in self._patterns.get(key, ()):
                if (guarded or not pattern.predicated) and pattern.matches(parts, groups):
                    matching.setdefault(index, []).append(pattern)
        always = []
        on_lines = []
        for entry in self._wanted if matching else ():
            found = matching.get(entry.index, ())
            lines = tuple(pattern.lines for pattern in found if pattern.lines is not None)
            if len(lines) < len(found):
                always.append(entry.probe)
            elif lines:
                on_lines.append((entry.index, lines))
        return _Choice(tuple(always), tuple(on_lines)) if always or on_lines else None


class Matcher:
    """Finds the instructions that a set's probes match.

    demangle: gives a function's name as people write it; without it functions go by their mangled names alone. What is
    found are these very probes.
    """

    def __init__(self, probes: Sequence[Probe], demangle: Callable[[str], str] | None = None) -> None:
        self._demangle = demangle or str
        self.probes = tuple(probes)
        self.kernel_probes = tuple(probe for probe in probes if probe.tracepoint.is_kernel)
        """Those at the entry and the ends of kernels, in file order."""
        self._at_functions = tuple(
            (probe, patterns) for probe in probes
            if (patterns := [entry for entry in probe.tracepoint.patterns if entry.subject is Subject.FUNCTION])
        )  # fmt: skip
        self._names: dict[str, frozenset[str]] = {}
        self._plans: dict[tuple[str, ...], _Plan] = {}
        self._restrictions = tuple(sorted({
            pattern.function
            for probe in probes for pattern in probe.tracepoint.patterns
            if pattern.function and pattern.subject is not Subject.FUNCTION
        }))  # fmt: skip

    def function_probes(self, name: str) -> tuple[Probe, ...]:
        """The probes whose ``func:NAME`` is this function, given by its mangled name; in file order."""
        if not self._at_functions:
            return ()
        return tuple(
            probe
            for probe, patterns in self._at_functions
            if any(self._is_called(name, pattern.function) for pattern in patterns)
        )

    def find(self, module: Module, function: Function, body: Body, first: int = 0) -> Found:
        """What the body of a function of a module holds. first: the number of its first hit."""
        plan = self._plan(function.name)
        places = Locations(module, body.start, body.end)
        lacks_lines = not places if plan.asks_for_lines else False
        ends = tuple(map(body.statement, body.leaving))
        hits: OpcodeHits | tuple[Hit, ...]
        if plan.asks_for_lines:
            hits, next_number = self._find_by_line(plan, body, places, first)
        else:
            hits = OpcodeHits(body, first, plan)
            next_number = first + len(hits)
        return Found(hits, ends, next_number, places, lacks_lines)

    def _find_by_line(
        self, plan: _Plan, body: Body, places: Locations, first: int
    ) -> tuple[tuple[Hit, ...], int]:
        """The hits where some depend on an instruction's source line, and the number after the last one's."""
        line_sides = _line_sides(plan, body, places) if plan.line_probes else {}
        hits: list[Hit] = []
        number = first
        numbers: dict[int, int] = {}
        choices, guarded = plan.choices, plan.guarded
        looked_at = {opcode for opcode in body.opcodes if line_sides or choices[opcode] or guarded[opcode]}
        for index in body.where(looked_at):
            statement = body.statement(index)
            if statement.mnemonic is None:
                continue
            choice = (choices if statement.guard is None else guarded)[statement.mnemonic]
            probes: tuple[Probe, ...] = ()
            if choice is not None:
                probes = plan.probes(choice, places.place(statement.position)) if choice.on_lines else choice.probes
            sides = line_sides.get(index, _NO_SIDES)
            own = number if probes or sides.opens else None
            if own is not None:
                numbers[index] = own
                number += 1
            closes = tuple((probe, numbers[opening]) for probe, opening in sides.closes)
            if own is not None or closes:
                hits.append(Hit(own, statement, probes, sides.opens, closes))
        return tuple(hits), number

    def _plan(self, function: str) -> _Plan:
        held = tuple(name for name in self._restrictions if self._is_called(function, name))
        plan = self._plans.get(held)
        if plan is None:
            wanted = []
            for index, probe in enumerate(self.probes):
                patterns = tuple(
                    pattern for pattern in probe.tracepoint.patterns
                    if pattern.subject not in {Subject.KERNEL, Subject.FUNCTION}
                    and (not pattern.function or pattern.function in held)
                )  # fmt: skip
                if patterns:
                    wanted.append(_Wanted(index, probe, patterns))
            plan = self._plans[held] = _Plan(wanted)
        return plan

    def _is_called(self, function: str, name: str) -> bool:
        names = self._names.get(function)
        if names is None:
            names = self._names[function] = frozenset(_names(function, self._demangle(function)))
        return name in names or any(fnmatch.fnmatchcase(known, name) for known in names if _GLOB & set(name))


def _names(mangled: str, demangled: str) -> Iterator[str]:
    """What a function may be called: its names with and without parameters and result."""
    yield mangled
    yield demangled
    depth = 0
    closing = demangled.rfind(")")
    for at in range(closing, -1, -1):
        depth += {")": 1, "(": -1}.get(demangled[at], 0)
        if depth == 0 and closing > 0:
            bare = demangled[:at].strip()
            yield bare
            yield from _without_result(bare)
            return


def _without_result(name: str) -> Iterator[str]:
    """A demangled name after each space outside of brackets: templates' names follow their result types."""
    depth = 0
    for at, character in enumerate(name):
        depth += {"<": 1, "(": 1, "[": 1, ">": -1, ")": -1, "]": -1}.get(character, 0)
        if character == " " and depth == 0:
            yield name[at + 1 :]


def _line_sides(plan: _Plan, body: Body, places: Locations) -> dict[int, _LineSides]:
    """By the place of an instruction in the body, what begins and ends at it.

    A run is instructions in a row that one pattern names by their line, within one basic block: each run that begins
    also ends. A call with the moves of its arguments is one instruction, of the line of the ``call``.
    """
    sides: dict[int, _LineSides] = {}
    if not places:
        return sides
    runs: dict[int, _Run] = {}

    def close(index: int) -> None:
        run = runs.pop(index)
        entry = sides.setdefault(run.last, _LineSides())
        entry.closes = (*entry.closes, (plan.line_probes[index][0], run.first))

    calls = _Calls(body)
    labelled = sorted(label.before for label in body.labels)
    before = -1
    for statement in body:
        if statement.mnemonic is None:
            continue
        at = statement.index
        place = places.place(calls.stands_for(statement.position))
        if bisect_right(labelled, at) > bisect_right(labelled, before):
            for index in list(runs):
                close(index)
        for index, (probe, asked) in enumerate(plan.line_probes):
            which = None if place is None else next((lines for lines in asked if place.is_in(lines)), None)
            if index in runs and runs[index].lines is not which:
                close(index)
            if which is None:
                continue
            if index in runs:
                runs[index].last = at
            else:
                runs[index] = _Run(which, at, at)
                entry = sides.setdefault(at, _LineSides())
                entry.opens = (*entry.opens, probe)
        if statement.mnemonic.ends_block:
            for index in list(runs):
                close(index)
        before = at
    for index in list(runs):
        close(index)
    return sides


@dataclass
class _Run:
    """first, last: places of its instructions."""

    lines: SourceLines
    first: int
    last: int


class _Calls:
    """The call that an instruction belongs to."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._calls = [body.statement(index).position for index in body.calls]

    def stands_for(self, at: int) -> int:
        """The position of the call in whose sequence an instruction is, else the instruction's own."""
        sequence = self._body.call_sequence(at)
        if sequence is None:
            return at
        return next(call for call in self._calls if call >= sequence[0])
