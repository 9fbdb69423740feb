"""Which instructions of a body the tracepoints of a set match, by source lines too, and which they miss by little."""

from __future__ import annotations

import fnmatch
import functools
import itertools
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import NamedTuple, overload

from neutrino.lazy import lazy
from neutrino.probing.ir.probe_set import Probe
from neutrino.probing.model import Pattern, SourceLines, Subject
from neutrino.ptx.analysis.flow_graph import FlowGraph, Loops
from neutrino.ptx.analysis.surroundings import (
    CallSequences,
    Locations,
    Ranges,
    Surroundings,
    asks_for_lines,
    asks_for_surroundings,
    flow_places,
)
from neutrino.ptx.isa.forms import TYPES
from neutrino.ptx.isa.instruction import Mnemonic
from neutrino.ptx.isa.opcodes import meaning_of
from neutrino.ptx.text.body import Body, Statement
from neutrino.ptx.text.module import Function, Module

_MOST = 3
"""Names of each kind that are named at most, since they go into a message."""


def near_misses(module: Module, body: Body, patterns: Sequence[Pattern]) -> str:
    """Return a message about what a body has that patterns of a probe just miss, for where they match no instruction of
    it.

    "" if there is nothing to say; else it begins with a comma or a semicolon. module: that the body is in.
    """
    words = []
    untyped = _untyped(body, patterns)
    if untyped:
        words.append(f", but for the type: {', '.join(untyped)}")
    if any(pattern.callees for pattern in patterns):
        called = {name: None for name, start, _ in body.called if body.declaration(name, start) is None}
        words.append(f"; it calls {_listed(called)}" if called else "; it calls no function by its name")
    if any(pattern.ranges for pattern in patterns):
        marked = Ranges(module, body).names
        words.append(f"; it has marks of {_listed(marked)}" if marked else "; it has no marks of ranges")
    if any(pattern.subject in {Subject.LOOP_HEAD, Subject.BACK_EDGE} for pattern in patterns):
        words.append("; it has no loop" if not Loops(body, FlowGraph(body)).heads else "")
    return "".join(words)


def _listed(names: Iterable[str]) -> str:
    """Return names as a list for a message, the first few of them."""
    names = list(names)
    return ", ".join(names[:_MOST]) + (" …" if len(names) > _MOST else "")


def _untyped(body: Body, patterns: Iterable[Pattern]) -> tuple[str, ...]:
    """Return opcodes of a body that some pattern would match if it did not name a type, as a hint where it matches
    nothing.

    Compilers use different types: for ``ld.global.f32`` the body may have ``ld.global.b32``. The first ones in text
    order, each once. patterns: of probes that matched nothing in the body.
    """
    # The patterns that name a type, with the type removed, by the first part of their opcode.
    untyped_patterns: dict[str, list[Pattern]] = {}
    for pattern in patterns:
        untyped = tuple(part for part in pattern.opcode if part not in TYPES)
        if pattern.subject is Subject.OPCODE and untyped != pattern.opcode:
            untyped_patterns.setdefault(pattern.opcode[0], []).append(replace(pattern, opcode=untyped))
    if not untyped_patterns:
        return ()
    near = {
        opcode
        for opcode in body.opcodes
        if any(pattern.matches(opcode.parts, meaning=meaning_of) for pattern in untyped_patterns.get(opcode.word, ()))
    }
    in_text_order = dict.fromkeys(body.statement(index).opcode for index in body.where(near))
    return tuple(in_text_order)[:_MOST]


_GLOB = frozenset("*?[")


class Hit(NamedTuple):
    """An instruction that probes match. number: its place among those of the kernel, in text order: the probes' SITE.

    statement: the instruction. probes: those that match the instruction itself, in file order. opens: the probes of
    source lines whose run of instructions begins with it; closes: those whose run ends with it, each with the number
    of the run's first instruction. An instruction that only ends runs has no number of its own.
    """

    number: int | None
    statement: Statement
    probes: tuple[Probe, ...]
    opens: tuple[Probe, ...] = ()
    closes: tuple[tuple[Probe, int], ...] = ()


class Spot(NamedTuple):
    """A place between instructions where code of probes goes. number: its place among the sites, as of a hit.

    position: where the code goes, in the module's text. at, text: the position and the text that it is shown by.
    guard: the predicate as written of the threads that it is for, None for all. before: as of a ``Place``. probes: in
    file order; equal ones are the same tuple. is_end: it is where a range ends, so that the ``after`` snippets go
    there; else the ``before`` snippets.
    """

    number: int
    position: int
    at: int
    text: str
    guard: str | None
    before: int | None
    probes: tuple[Probe, ...]
    is_end: bool = False


class Unreachable(NamedTuple):
    """A place that probes match and that no code can go to. at, text: as of a ``Spot``. reason: why."""

    at: int
    text: str
    probes: tuple[Probe, ...]
    reason: str


class OpcodeHits(Sequence[Hit]):
    """The hits of a body where opcode and guard alone decide which probes match: none asks for what is around them.

    Bodies may have very many hits, so each `Hit` is made only when asked for. indices: of the matched instructions in
    the body. first: the number of the first hit. plan: the probes that apply in the body's function.
    """

    def __init__(self, body: Body, first: int, plan: _Plan) -> None:
        """Find the hits (instructions that probes match) of a body. first: the number of the first. plan: which probes
        match what.
        """
        self._body = body
        self._first = first
        self._choices = plan.choices
        self._guarded = plan.guarded
        self._opcodes = plan.matched(body.opcodes)
        self.indices = body.where(self._opcodes)
        if plan.guarded is not plan.choices:
            # An opcode may have probes at instructions with a guard only; those without one are no hits.
            self.indices = [index for index in self.indices if self._probes(index)]

    def __len__(self) -> int:
        """How many instructions of the body probes match."""
        return len(self.indices)

    @overload
    def __getitem__(self, at: int) -> Hit: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[Hit, ...]: ...

    def __getitem__(self, at: int | slice) -> Hit | tuple[Hit, ...]:
        """Return the hit with an index among all hits, or those of a slice."""
        if isinstance(at, slice):
            return tuple(self[index] for index in range(*at.indices(len(self))))
        index = self.indices[at]
        # The modulo makes an index from the end (-1) one from the start.
        return Hit(self._first + at % len(self), self._body.statement(index), self._probes(index))

    @lazy
    def unguarded(self) -> dict[Mnemonic, tuple[Probe, ...]]:
        """By opcode, the probes that match instructions with it and without a guard (predicate); opcodes without any
        are left out."""
        chosen = ((opcode, self._choices[opcode]) for opcode in self._opcodes)
        return {opcode: choice.probes for opcode, choice in chosen if choice is not None and choice.probes}

    @property
    def different_probes(self) -> Iterator[tuple[Probe, ...]]:
        """Every combination of probes that matches the same instruction somewhere; combinations may come more than
        once."""
        if self._guarded is self._choices:
            # Guards do not matter, so the opcodes say it all, and no hit has to be looked at.
            return iter(self.unguarded.values())
        return map(self._probes, self.indices)

    def _probes(self, index: int) -> tuple[Probe, ...]:
        """The probes that match the instruction with an index in the body."""
        opcode = self._body.mnemonics[index]
        if opcode is None:
            return ()
        choice = (self._guarded if self._body.is_guarded(index) else self._choices)[opcode]
        return choice.probes if choice is not None else ()


@dataclass(frozen=True)
class Found:
    """What probes match in a body.

    hits: the instructions, in text order. next_number: the number of the next body's first hit. places: the
    source lines of its instructions. lacks_lines: a probe asks for some, and the text has none. spots: the places
    between instructions, in text order; unreachable: those that no code can go to. fault: what is wrong with the marks
    of a range that a probe names, None if they are well-formed.
    """

    hits: OpcodeHits | tuple[Hit, ...]
    next_number: int
    places: Locations
    lacks_lines: bool = False
    spots: tuple[Spot, ...] = ()
    unreachable: tuple[Unreachable, ...] = ()
    fault: str | None = None

    def __bool__(self) -> bool:
        """Whether probes match anything in the body, or it is not known what they match."""
        return bool(self.hits or self.spots or self.unreachable or self.fault)

    @property
    def probes(self) -> tuple[Probe, ...]:
        """Each probe that matches something in the body, once."""
        at_spots = {id(probe): probe for spot in self.spots for probe in spot.probes}
        if isinstance(self.hits, OpcodeHits):
            # Many hits, but few different tuples of probes: first each tuple once, then each probe of them once.
            combinations = {id(probes): probes for probes in self.hits.different_probes}.values()
            return tuple({id(probe): probe for probes in combinations for probe in probes}.values())
        # By id: hits hold the matcher's own probe objects, and most share a few tuples of them.
        matched: dict[int, Probe] = at_spots
        seen_combinations: set[int] = set()
        for hit in self.hits:
            if id(hit.probes) not in seen_combinations:
                seen_combinations.add(id(hit.probes))
                matched.update((id(probe), probe) for probe in hit.probes)
            if hit.opens or hit.closes:
                matched.update((id(probe), probe) for probe in (*hit.opens, *(probe for probe, _ in hit.closes)))
        return tuple(matched.values())


@dataclass(frozen=True)
class _Choice:
    """The probes that match an opcode. probes: those that match it wherever it is. conditional: those that match it
    under conditions only, as (the probe's index in file order, conditions of which one must hold)."""

    probes: tuple[Probe, ...]
    conditional: tuple[tuple[int, tuple[Pattern, ...]], ...]


class _Choices(dict[Mnemonic, "_Choice | None"]):
    """A cache by opcode: the probes that match instructions with it, None where none does; computed when first asked
    for."""

    def __init__(self, choose: Callable[[Mnemonic], _Choice | None]) -> None:
        """Set up a cache by opcode. choose: computes which probes match an opcode that is not in it yet."""
        self._choose = choose

    def __missing__(self, opcode: Mnemonic) -> _Choice | None:
        """Compute and keep the result for an opcode; called by ``dict``."""
        return self.setdefault(opcode, self._choose(opcode))


@dataclass(frozen=True)
class _ActiveProbe:
    """A probe that applies to a function, and those of its patterns that do. index: its place in file order."""

    index: int
    probe: Probe
    patterns: tuple[Pattern, ...]


@dataclass
class _LineBoundaries:
    """At one instruction. opens: the probes of source lines whose runs of instructions begin there. closes: those whose
    runs end there, each with the index of the run's first instruction in the body."""

    opens: tuple[Probe, ...] = ()
    closes: tuple[tuple[Probe, int], ...] = ()


_NO_BOUNDARIES = _LineBoundaries()


class _Plan:
    """The probes that apply in some functions, indexed by what they match.

    active: the probes. choices: by opcode, those of its instructions without a guard; guarded: of those with one, the
    same object when no pattern asks for a guard. line_probes: the probes of source lines, each with its lines.
    place_probes: those of places between instructions, each with its patterns for these.
    """

    def __init__(self, active: Sequence[_ActiveProbe]) -> None:
        """Index the probes that apply in some functions by what they match."""
        # Those that match instructions themselves, not lines of source.
        self._active = tuple(entry for entry in active if any(pattern.has_operands for pattern in entry.patterns))
        self.choices = _Choices(functools.partial(self._choose, guarded=False))
        self.guarded = self.choices
        # The patterns with their probe's index, by what an instruction must have to match: the first part of its
        # opcode or its class; under "" those that match every instruction.
        self._patterns: dict[str, list[tuple[int, Pattern]]] = {}
        # The results of `probes`: by the choice's id and the indices of the probes whose conditions hold.
        self._narrowed: dict[tuple[int, frozenset[int]], tuple[Probe, ...]] = {}
        # For `matched`: the opcodes that were looked at so far, in any body, and those of them that have probes.
        self._met: set[Mnemonic] = set()
        self._matched: set[Mnemonic] = set()
        self.line_probes = [
            (entry.probe, lines)
            for entry in active
            if (lines := [pattern.lines for pattern in entry.patterns
                          if pattern.subject is Subject.LINE and pattern.lines is not None])
        ]  # fmt: skip
        self.place_probes = [
            (entry.probe, [pattern for pattern in entry.patterns if pattern.is_place])
            for entry in active if any(pattern.is_place for pattern in entry.patterns)
        ]  # fmt: skip
        patterns = []
        for entry in self._active:
            for pattern in entry.patterns:
                if pattern.has_operands:
                    patterns.append(pattern)
                    # The group of a pattern for every instruction is "".
                    key = pattern.opcode[0] if pattern.subject is Subject.OPCODE else pattern.group
                    # Nor is that of one whose first part is a wildcard.
                    key = "" if "*" in key else key
                    self._patterns.setdefault(key, []).append((entry.index, pattern))
        if any(pattern.predicated or pattern.unpredicated for pattern in patterns):
            self.guarded = _Choices(functools.partial(self._choose, guarded=True))

    @lazy
    def _all_patterns(self) -> list[Pattern]:
        """All tracepoint patterns of the probes that match instructions or places between them."""
        of_places = [pattern for _, patterns in self.place_probes for pattern in patterns]
        return [*of_places, *(pattern for entry in self._active for pattern in entry.patterns)]

    @lazy
    def asks_for_lines(self) -> bool:
        """Whether some tracepoint pattern names a source line, so that the line information of the text is needed."""
        return bool(self.line_probes) or any(map(asks_for_lines, self._all_patterns))

    @lazy
    def asks_for_surroundings(self) -> bool:
        """Whether opcode and guard (predicate) alone do not decide which probes match, or some go to places between
        instructions."""
        return bool(self.line_probes or self.place_probes) or any(map(asks_for_surroundings, self._all_patterns))

    @lazy
    def ranges(self) -> Set[str]:
        """The names of marked code ranges that tracepoint patterns ask for, which may be globs."""
        return {name for pattern in self._all_patterns for name in (*pattern.ranges, *pattern.not_ranges)}

    def matched(self, opcodes: Set[Mnemonic]) -> Set[Mnemonic]:
        """Return those of some opcodes that probes match, at instructions with a guard (predicate) or without.

        Only for plans that do not ask for surroundings. Many bodies have the same opcodes, so results are kept.
        """
        for opcode in opcodes - self._met:
            self._met.add(opcode)
            if any(choice is not None and choice.probes for choice in (self.choices[opcode], self.guarded[opcode])):
                self._matched.add(opcode)
        return opcodes & self._matched

    def probes(self, choice: _Choice, holds: Callable[[Pattern], bool]) -> tuple[Probe, ...]:
        """Return the probes that match one instruction, in file order: those that its opcode decides, and those whose
        conditions hold.

        choice: what is known by its opcode alone: which probes match anyway, and which under conditions. holds: says
        whether a condition holds at the instruction. Equal results are the same tuple, so that callers can cache by its
        id.
        """
        chosen = frozenset(index for index, conditions in choice.conditional if any(map(holds, conditions)))
        key = (id(choice), chosen)
        if key not in self._narrowed:
            always = {id(probe) for probe in choice.probes}
            self._narrowed[key] = tuple(
                entry.probe for entry in self._active if entry.index in chosen or id(entry.probe) in always
            )
        return self._narrowed[key]

    def _choose(self, opcode: Mnemonic, *, guarded: bool) -> _Choice | None:
        """Return the probes that match an opcode, always or under conditions; None if none does.

        guarded: of instructions with a guard (predicate), which patterns written with ``@`` match, too.
        """
        parts = opcode.parts
        classes = opcode.row.classes if opcode.row is not None else frozenset()
        # By the probe's index, the patterns that match.
        matching: dict[int, list[Pattern]] = {}
        for key in {parts[0], *classes, ""}:
            for index, pattern in self._patterns.get(key, ()):
                is_excluded = pattern.unpredicated if guarded else pattern.predicated
                if not is_excluded and pattern.matches(parts, classes, meaning_of):
                    matching.setdefault(index, []).append(pattern)
        always = []
        conditional = []
        for entry in self._active if matching else ():
            patterns = matching.get(entry.index, ())
            needed = list(filter(asks_for_surroundings, patterns))
            # With one pattern without conditions, the probe matches everywhere.
            if len(needed) < len(patterns):
                always.append(entry.probe)
            elif needed:
                conditional.append((entry.index, tuple(needed)))
        return _Choice(tuple(always), tuple(conditional)) if always or conditional else None


class Matcher:
    """Finds the instructions that a set's probes match.

    demangle: returns a function's name as it is written in the source; without it functions go by their mangled names
    alone. Results hold the very probe objects given here, so that callers can identify them by ``id``.
    """

    def __init__(self, probes: Sequence[Probe], demangle: Callable[[str], str] | None = None) -> None:
        """Prepare to find the instructions that probes match, in any number of function bodies. demangle: see the
        class."""
        self._demangle = demangle or str
        self.probes = tuple(probes)
        self.kernel_probes = tuple(probe for probe in probes if probe.tracepoint.is_kernel)
        """Those at the entry and the ends of kernels, in file order."""
        self._at_functions = tuple(
            (probe, patterns) for probe in probes
            if (patterns := [entry for entry in probe.tracepoint.patterns if entry.subject is Subject.FUNCTION])
        )  # fmt: skip
        # The results of `_interned`, by the ids of the probes.
        self._tuples: dict[tuple[int, ...], tuple[Probe, ...]] = {}
        # By mangled name, all names that a function goes by.
        self._names: dict[str, frozenset[str]] = {}
        # The results of `_plan`, by those of the restrictions that a function meets.
        self._plans: dict[tuple[str, ...], _Plan] = {}
        # The NAMEs of "func:NAME" after opcodes, as written: such a pattern matches only in functions of that name.
        self._restrictions = tuple(sorted({
            name
            for probe in probes for pattern in probe.tracepoint.patterns
            for name in (pattern.function, *pattern.not_functions)
            if name and pattern.subject is not Subject.FUNCTION
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
        """Find the instructions that probes match in the body of a kernel, or of a function that it calls.

        module: that the function is in. first: the number of the body's first matched instruction; numbers go on from
        body to body of a kernel, so that each site (probed place) of the kernel has one of its own.
        """
        plan = self._plan(function.name)
        places = Locations(module, body.start, body.end)
        if not plan.asks_for_surroundings:
            hits = OpcodeHits(body, first, plan)
            return Found(hits, first + len(hits), places)
        # Looking at places at all reads the text's line information, which few probes need.
        lacks_lines = not places if plan.asks_for_lines else False
        surroundings = Surroundings(module, body, places, self._is_called)
        numbers = itertools.count(first)
        named = surroundings.ranges.names if plan.ranges else ()
        asked = [name for name in named if any(fnmatch.fnmatchcase(name, glob) for glob in plan.ranges)]
        fault = next(filter(None, map(surroundings.ranges.fault, asked)), None)
        pending, unreachable = self._places(plan, body, surroundings)
        found = tuple(self._numbered(plan, body, surroundings, pending, numbers))
        hits_there = tuple(entry for entry in found if isinstance(entry, Hit))
        spots = tuple(entry for entry in found if isinstance(entry, Spot))
        return Found(hits_there, next(numbers), places, lacks_lines, spots, unreachable, fault)

    def _places(
        self, plan: _Plan, body: Body, surroundings: Surroundings
    ) -> tuple[list[Spot], tuple[Unreachable, ...]]:
        """Return the places between instructions (beginnings of blocks, loops, ranges) that probes match, in text
        order.

        Those where code can go, without numbers yet, and the others.
        """
        spots: list[Spot] = []
        unreachable: list[Unreachable] = []
        for mark in surroundings.ranges.marks if plan.place_probes else ():
            at = mark.position
            probes = self._probes_at(plan, surroundings, {Subject.RANGE}, at, at, mark.name)
            sided = self._interned(tuple(probe for probe in probes if (probe.before if mark.is_begin else probe.after)))
            if sided:
                # Code names what is declared at the entry, which may come after the mark.
                spots.append(Spot(-1, max(at, body.entry), at, mark.text, None, None, sided, not mark.is_begin))
        asked = {pattern.subject for _, patterns in plan.place_probes for pattern in patterns}
        for place in flow_places(body) if asked - {Subject.RANGE} else ():
            probes = self._probes_at(plan, surroundings, place.subjects, place.position, place.at)
            if probes and place.obstacle:
                unreachable.append(Unreachable(place.at, place.text, probes, place.obstacle))
            elif probes:
                spots.append(Spot(-1, place.position, place.at, place.text, place.guard, place.before, probes))
        # Marks come before what begins there.
        return sorted(spots, key=lambda spot: spot.position), tuple(unreachable)

    def _probes_at(
        self, plan: _Plan, surroundings: Surroundings, subjects: Set[Subject], position: int, at: int, mark: str = ""
    ) -> tuple[Probe, ...]:
        """Return the probes that match a place between instructions, in file order.

        subjects: what the place is, such as the head of a loop. position: where code would go. at: the position whose
        source line counts. mark: of the mark of a range, the name of that; else "".
        """
        return self._interned(tuple(
            probe for probe, patterns in plan.place_probes
            if any(
                pattern.subject in subjects
                and (pattern.subject is not Subject.RANGE or fnmatch.fnmatchcase(mark, pattern.ranges[0]))
                and surroundings.meets(pattern, position, at, None)
                for pattern in patterns
            )
        ))  # fmt: skip

    def _interned(self, probes: tuple[Probe, ...]) -> tuple[Probe, ...]:
        """Return the one tuple that stands for all equal ones (interning), so that callers can cache by its id."""
        return self._tuples.setdefault(tuple(map(id, probes)), probes)

    def _numbered(
        self, plan: _Plan, body: Body, surroundings: Surroundings, spots: Sequence[Spot], numbers: Iterator[int]
    ) -> Iterator[Hit | Spot]:
        """Yield the matched instructions and the places between instructions of a body, in text order, each with its
        number.

        plan: the probes that apply in its function. spots: the places, in text order, without numbers. numbers: gives
        them.
        """
        line_boundaries = _line_boundaries(plan, body, surroundings.places) if plan.line_probes else {}
        # The number of each hit, by its instruction's index in the body: where a run ends, that of its first
        # instruction is needed.
        numbers_of: dict[int, int] = {}
        choices, guarded = plan.choices, plan.guarded
        # A run of a line may begin or end at any opcode.
        candidates = {opcode for opcode in body.opcodes if line_boundaries or choices[opcode] or guarded[opcode]}
        pending = deque(spots)
        for index in body.where(candidates):
            statement = body.statement(index)
            if statement.mnemonic is None:
                continue
            while pending and pending[0].position <= statement.start:
                yield pending.popleft()._replace(number=next(numbers))
            choice = (choices if statement.guard is None else guarded)[statement.mnemonic]
            probes: tuple[Probe, ...] = ()
            if choice is not None:
                holds = functools.partial(_meets_conditions, surroundings, statement)
                probes = plan.probes(choice, holds) if choice.conditional else choice.probes
            sides = line_boundaries.get(index, _NO_BOUNDARIES)
            own_number = next(numbers) if probes or sides.opens else None
            if own_number is not None:
                numbers_of[index] = own_number
            closes = tuple((probe, numbers_of[opening]) for probe, opening in sides.closes)
            if own_number is not None or closes:
                yield Hit(own_number, statement, probes, sides.opens, closes)
        for spot in pending:
            yield spot._replace(number=next(numbers))

    def _plan(self, function: str) -> _Plan:
        """The probes that apply to the instructions of a function, indexed by what they match; remembered.

        function: its mangled name. Left out are patterns of kernels and functions as a whole, and patterns that are
        restricted to other functions.
        """
        # The restrictions ("func:NAME") that the function meets. Functions that meet the same ones share a plan.
        met = tuple(name for name in self._restrictions if self._is_called(function, name))
        plan = self._plans.get(met)
        if plan is None:
            active = []
            for index, probe in enumerate(self.probes):
                patterns = tuple(
                    pattern for pattern in probe.tracepoint.patterns
                    if pattern.subject not in {Subject.KERNEL, Subject.FUNCTION}
                    and (not pattern.function or pattern.function in met)
                    and not set(met).intersection(pattern.not_functions)
                )  # fmt: skip
                if patterns:
                    active.append(_ActiveProbe(index, probe, patterns))
            plan = self._plans[met] = _Plan(active)
        return plan

    def _is_called(self, function: str, name: str) -> bool:
        """Whether a function, given by its mangled name, goes by a name that a user wrote in a tracepoint, which may be
        a glob."""
        names = self._names.get(function)
        if names is None:
            names = self._names[function] = frozenset(_names(function, self._demangle(function)))
        return name in names or any(fnmatch.fnmatchcase(known, name) for known in names if _GLOB & set(name))


def _names(mangled: str, demangled: str) -> Iterator[str]:
    """The names that a tracepoint may give a function: mangled, and demangled with and without parameters and result.

    For ``void scale<float>(float*)`` also ``void scale<float>`` and ``scale<float>``.
    """
    yield mangled
    yield demangled
    # The last closing parenthesis ends the parameters. Go back to the one that opens them, past nested ones.
    depth = 0
    closing = demangled.rfind(")")
    for at in range(closing, -1, -1):
        depth += {")": 1, "(": -1}.get(demangled[at], 0)
        if depth == 0 and closing > 0:
            without_parameters = demangled[:at].strip()
            yield without_parameters
            yield from _without_result(without_parameters)
            return


def _without_result(name: str) -> Iterator[str]:
    """Yield the candidates for a demangled name without its result type: the rest after each space outside of brackets.

    Names of templates have their result type before them, such as ``void scale<float>``. A result type may contain
    spaces itself, so it is not known which of the rests is the name.
    """
    depth = 0
    for at, character in enumerate(name):
        depth += {"<": 1, "(": 1, "[": 1, ">": -1, ")": -1, "]": -1}.get(character, 0)
        if character == " " and depth == 0:
            yield name[at + 1 :]


def _meets_conditions(surroundings: Surroundings, statement: Statement, pattern: Pattern) -> bool:
    """Return whether an instruction meets a pattern's conditions on what is around it: source lines, callees and
    ranges."""
    return surroundings.meets(pattern, statement.start, statement.position, statement.index)


def _line_boundaries(plan: _Plan, body: Body, places: Locations) -> dict[int, _LineBoundaries]:
    """Return where stretches of instructions of a probed source line begin and end, by the index of an instruction.

    A stretch is instructions in a row that one pattern names by their line, within one basic block: each one that
    begins also ends. A call with the moves of its arguments is one instruction, of the line of the ``call``.
    """
    sides: dict[int, _LineBoundaries] = {}
    if not places:
        return sides
    # The open runs, by the index of their probe in plan.line_probes.
    runs: dict[int, _Run] = {}

    def close(probe_index: int) -> None:
        """Note that the stretch of instructions of a probe's source line ends here."""
        run = runs.pop(probe_index)
        entry = sides.setdefault(run.last, _LineBoundaries())
        probe, _ = plan.line_probes[probe_index]
        entry.closes = (*entry.closes, (probe, run.first))

    calls = CallSequences(body)
    labelled = sorted(label.before for label in body.labels)
    previous = -1
    for statement in body:
        if statement.mnemonic is None:
            continue
        index = statement.index
        place = places.place(calls.call_position(statement.position))
        # A label since the previous instruction begins a basic block.
        if bisect_right(labelled, index) > bisect_right(labelled, previous):
            for probe_index in list(runs):
                close(probe_index)
        for probe_index, (probe, ranges) in enumerate(plan.line_probes):
            # The first of the probe's line ranges that the instruction is in.
            current = None if place is None else next((lines for lines in ranges if place.is_in(lines)), None)
            if probe_index in runs and runs[probe_index].lines is not current:
                close(probe_index)
            if current is None:
                continue
            if probe_index in runs:
                runs[probe_index].last = index
            else:
                runs[probe_index] = _Run(current, index, index)
                entry = sides.setdefault(index, _LineBoundaries())
                entry.opens = (*entry.opens, probe)
        if statement.mnemonic.ends_block:
            for probe_index in list(runs):
                close(probe_index)
        previous = index
    # The end of the body ends the last block.
    for probe_index in list(runs):
        close(probe_index)
    return sides


@dataclass
class _Run:
    """Instructions in a row on the lines of one pattern. first, last: their indices in the body."""

    lines: SourceLines
    first: int
    last: int
