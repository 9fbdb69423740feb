"""Code that nearly never does anything, of several sites under one branch after the last of them.

A predicate is true once one of the conditions was; the code is skipped unless it is. ``snippets/deferral.py`` says
which code that may be. Between the sites and it nothing may change what it reads: registers of the program.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from neutrino.abi.levels import Level
from neutrino.ir.operands import Register
from neutrino.lazy import lazy
from neutrino.probing.ir.probe_set import Deferral, Snippet
from neutrino.ptx.analysis.float_facts import FloatFacts, float_types
from neutrino.ptx.analysis.flow_graph import FlowGraph
from neutrino.ptx.analysis.matching import Hit
from neutrino.ptx.instrument.emission import Emission
from neutrino.ptx.instrument.explicit_fma import Products
from neutrino.ptx.instrument.lanes_together import LaneMasks
from neutrino.ptx.instrument.registers import Guard, Resolver, Value, no_helpers, under
from neutrino.ptx.instrument.site_values import SiteOperands
from neutrino.ptx.instrument.watched_values import Watched, WatchedValues
from neutrino.ptx.isa.instruction import REGISTER, Instruction
from neutrino.ptx.text.body import Body, Statement
from neutrino.ptx.text.inserted import Edits, Label, Line, Lines, Scope, after, before, op

# Opcodes at which lanes that are apart may meet within a basic block, but for those with one of these in their names.
_MEETING = frozenset({"sync", "aligned"})
_MEETING_WORDS = frozenset({"bar", "barrier", "call", "shfl", "vote"})
# Where code must not wait any longer: it would have the time after a barrier, or calls would have a state without it.
_ENDING_WORDS = frozenset({"bar", "barrier", "call"})

_FEW = 48
"""Registers of a program, in words."""
_NAN = 80
"""The first architecture whose minima and maxima of f32 can be NaNs: sm_80."""


class Meetings:
    """The instructions of a body at which threads of a warp that have diverged may converge again.

    words: of those that begin with one of these alone.
    """

    def __init__(self, body: Body, words: frozenset[str] | None = None) -> None:
        """Set up a search in a body; nothing is found before it is asked for."""
        self._body = body
        self._words = words

    def lie_between(self, first: int, last: int) -> bool:
        """Whether such an instruction is among those of the body from one index to another, both included."""
        following = bisect_left(self._indices, first)
        return following < len(self._indices) and self._indices[following] <= last

    @lazy
    def _indices(self) -> list[int]:
        """The instructions, by index in the body, ascending."""
        words, parts = (_MEETING_WORDS, _MEETING) if self._words is None else (self._words, frozenset[str]())
        return self._body.where({
            mnemonic for mnemonic in set(self._body.mnemonics)
            if mnemonic is not None and (mnemonic.word in words or not parts.isdisjoint(mnemonic.parts))
        })  # fmt: skip


def until_changed(
    body: Body, changes: Callable[[str], Sequence[int]], read: Iterable[str], statement: Statement, at: int, spot: int
) -> int | None:
    """Return the index of the first instruction that changes a register which code reads that is to wait.

    changes: gives the instructions that write a register, by index in the body, ascending. read: those registers.
    statement, at: the code's own, and where it would stand next to it; spot: where it can stand at the earliest. None
    where that is too late, as a register has changed or is not in scope any more.
    """
    first = statement.index + (at > statement.start)
    last = bisect_right(body.ends, spot) - 1
    until = len(body.ends)
    for name in read:
        declared = body.declaration(name, at)
        if declared is None:
            continue
        if body.declaration(name, spot) != declared:
            return None
        written = changes(name)
        following = bisect_left(written, first)
        if following < len(written):
            until = min(until, written[following])
        until = min(until, bisect_right(body.ends, declared.end))
    return None if until <= last else until


@dataclass(frozen=True, eq=False)
class _Waiting:
    """The unlikely code of one site. code: all of it, or only what tests ``condition``, a predicate, for which the
    snippet ``once`` has the rest. number: of the site. read: the program's registers that it reads. until: the first
    instruction that changes one of them. value: what is looked at when the group ends. stays_until: the instruction at
    which it is no longer worth waiting for."""

    deferral: Deferral
    code: Lines
    condition: str
    number: int
    read: frozenset[str]
    until: int = 0
    value: Watched | None = None
    stays_until: int = 0

    def stays(self, index: int) -> bool:
        """Whether it had better wait beyond the end of its group, at an instruction."""
        value = self.value
        return index <= self.stays_until and value is not None and value.cover is None and not value.covers


class _Uses(NamedTuple):
    """Where a register of the program is used, by index in the body.

    changes, reads: the instructions that write it, and that read it, ascending. last: the last that reads it; beyond
    the body's end where one reads it that stands before all writers, as in a loop.
    """

    changes: list[int]
    reads: list[int]
    last: int


class UnlikelyCode:
    """Collects unlikely code of a body's sites, in text order, and inserts it after several of them."""

    _MOST = 32
    _MOST_STAYING = 128
    """Values that wait for later ones, with all others: they are looked through at each site."""
    _MOST_HELD = 12
    """Registers of the program that only what waits still reads: they cannot be reused before it is written."""
    _MOST_HELD_OF_FEW = 6
    """The same where the program itself needs few registers, so that a few more leave room for fewer warps. What has
    ``once`` tests few values, and holds them for a short time."""

    def __init__(self, body: Body, products: Products, emission: Emission, edits: Edits) -> None:
        """Set up a writer that has collected nothing. Parameters: those of ``SiteWriter``."""
        self._body = body
        self._products = products
        self._emission = emission
        self._edits = edits
        self._endings = Meetings(body, _ENDING_WORDS)
        self._calls = Meetings(body, frozenset({"call"}))
        # What waits, in order; where it goes, and the index of the last instruction before that; the basic block.
        self._waiting: list[_Waiting] = []
        self._at = 0
        self._is_after = False
        self._index = 0
        self._block = -1
        # The code of the site that is being written, if what waits stands right after the tests in it.
        self._open: Lines | None = None
        # The number of the group that waits; and by number where the code of the last one stands: above that place its
        # registers belong to no other group. Groups overlap where code goes further down, beyond a product's sum.
        self._group = 0
        self._ends: dict[int, int] = {}
        # Whether the group's predicate has a value; and a value that waits to be tested for a NaN with another one.
        self._is_any_set = False
        self._unpaired: str | None = None
        self._values = WatchedValues(emission, lambda: self._facts, self._register)
        # By register, the last instruction whose result in it was tested for a NaN, with its type and code for one.
        self._tested: dict[str, tuple[int, str, Snippet]] = {}
        self.count = 0
        """How often code was deferred."""

    def come_to(self, statement: Statement) -> None:
        """Insert what waits if it cannot wait for the code of an instruction, which comes next."""
        if self._waiting and (
            self._graph.block(statement.index) != self._block
            or self._ended.lie_between(self._index, statement.index)
        ):
            self.write()

    def add(
        self, deferral: Deferral, operands: SiteOperands, values: SiteOperands, masks: LaneMasks, guard: Guard | None,
        hit: Hit, at: int, lines: Lines,
    ) -> bool:  # fmt: skip
        """Append the test of a snippet's condition to lines, and keep its unlikely code for later.

        operands: of the site. values, masks: of the site likewise, for code of its own. guard: of the threads that the
        snippet is for. at: where lines will be inserted, next to the instruction. Returns False, and has appended
        nothing, where the code cannot wait at all.
        """
        if guard is not None and guard.register.startswith(self._emission.prefix):
            return False
        if deferral.extremes is not None and self._emission.architecture < _NAN:
            return False
        statement = hit.statement
        if deferral.nan is not None and self._is_never_first(deferral, operands.instruction, statement.index):
            self.count += 1
            return True
        spot = self._products.first_clear(at)
        waiting = self._to_wait(deferral, values, masks, guard, hit.number or 0)
        until = until_changed(self._body, lambda name: self._uses[name].changes if name in self._uses else (),
                              waiting.read, statement, at, spot)  # fmt: skip
        if values.early or until is None:
            return False
        index = bisect_right(self._body.ends, spot) - 1
        value = self._values.watched(deferral, operands, guard) if deferral.extremes is not None else None
        stays_until = self._covered_at(value, statement.index, until) if deferral.is_counting else -1
        waiting = replace(waiting, until=until, value=value, stays_until=stays_until)
        if self._waiting:
            first = self._waiting[0]
            is_late = index >= min(each.until for each in self._waiting)
            if is_late or len(self._waiting) >= self._MOST_STAYING or (
                (first.deferral.once, first.deferral.extremes) != (deferral.once, deferral.extremes)
            ):  # fmt: skip
                self.write()
            elif self._at <= at and self._is_full(waiting, max(index, statement.index)):
                self._write([each for each in self._waiting if not each.stays(statement.index)])
                if self._waiting:
                    self._begin(at)
        if not self._waiting:
            self._begin(at)
        taken = len(operands.here)
        tests: Lines = []
        if value is not None:
            self._values.join(value, [each.value for each in self._waiting if each.value is not None])
        elif deferral.extremes is not None:
            tests = self._values.bring(deferral, operands, guard)
        elif deferral.nan is not None:
            tests = self._to_nan(deferral, operands, guard, statement.index)
        else:
            tests = self._to_any(deferral, operands, guard)
        lines += [*operands.here[taken:], *tests]
        self._note(waiting, spot, index, statement, lines if spot == at else None)
        return True

    @property
    def _ended(self) -> Meetings:
        """The instructions for which what waits cannot wait: counts come to the same behind a barrier."""
        return self._calls if all(each.deferral.is_counting for each in self._waiting) else self._endings

    def _begin(self, at: int) -> None:
        """Begin another group, whose first test goes to a place."""
        numbers = ((self._group + 1) % 2, *range(len(self._ends) + 1))
        self._group = next(number for number in numbers if self._ends.get(number, at) <= at)
        self._is_any_set = False
        self._values.begin()

    def _covered_at(self, value: Watched | None, index: int, until: int) -> int:
        """Return the next instruction of the basic block, up to another, in whose result's shadow a value is; else -1.

        index: of the instruction that gives the value.
        """
        if value is None:
            return -1
        reads = self._uses[value.name].reads
        block = self._graph.block(index)
        for reader in reads[bisect_right(reads, index) :]:
            if reader >= until or self._graph.block(reader) != block:
                break
            instruction = self._body.statement(reader).instruction
            if instruction is not None and self._values.covers(instruction, value):
                return reader
        return -1

    def _is_full(self, waiting: _Waiting, index: int) -> bool:
        """Whether the code of one more site may not wait as well, up to an instruction."""
        going = [each for each in (*self._waiting, waiting) if not each.stays(index)]
        if len(going) > self._MOST:
            return True
        read = frozenset[str]().union(*(each.read for each in going))
        most = self._MOST_HELD_OF_FEW if self._has_few and waiting.deferral.once is None else self._MOST_HELD
        return sum(self._uses[name].last <= index for name in read if name in self._uses) > most

    def _to_any(self, deferral: Deferral, operands: SiteOperands, guard: Guard | None) -> Lines:
        """Return the code that notes whether the condition of a site is true in the group's predicate."""
        lines, condition = self._condition(deferral.test, deferral.conditions, operands)
        any_ = self._register("any", "pred")
        if self._is_any_set:
            lines.append(op("or.pred", any_, any_, condition, when=under(guard)))
        elif guard is not None:
            lines.append(op("and.pred", any_, condition, guard.text))
        else:
            lines.append(op("mov.pred", any_, condition))
        self._is_any_set = True
        return lines

    def _to_nan(self, deferral: Deferral, operands: SiteOperands, guard: Guard | None, index: int) -> Lines:
        """Return the code that notes whether the result of a site is a NaN. One instruction tests two of them."""
        instruction = operands.instruction
        self._note_tested(deferral, instruction, index)
        if guard is not None or instruction.predicate is not None or deferral.nan != "f32":
            return self._to_any(deferral, operands, guard)
        value = operands("OUT", None).text
        if self._unpaired is None:
            self._unpaired = value
            return []
        return self._test_pair(self._unpaired, value)

    def _test_pair(self, left: str, right: str) -> Lines:
        """Return the code that notes whether one of two values is a NaN."""
        any_ = self._register("any", "pred")
        opcode, others = ("setp.nan.or.f32", [any_]) if self._is_any_set else ("setp.nan.f32", [])
        self._unpaired, self._is_any_set = None, True
        return [op(opcode, any_, left, right, *others)]

    def _note_tested(self, deferral: Deferral, instruction: Instruction, index: int) -> None:
        """Note that after an instruction the thread has had a NaN if its result is one."""
        types = float_types(instruction)
        if instruction.predicate is None and types[:1] == (deferral.nan,) and deferral.once is not None:
            for name in instruction.written:
                self._tested[name] = index, types[0], deferral.once

    def _is_never_first(self, deferral: Deferral, instruction: Instruction, index: int) -> bool:
        """Whether a NaN of an instruction is never the first one: its thread has had one, which was tested before."""
        types = float_types(instruction)
        sources = self._facts.nan_sources(instruction) if types[:1] == (deferral.nan,) else None
        if sources is None or instruction.predicate is not None:
            return False
        for name in sources:
            tested = self._tested.get(name)
            if tested is None or tested[1:] != (types[-1], deferral.once):
                return False
            changes = self._uses[name].changes
            before = bisect_left(changes, index)
            is_near = self._graph.block(tested[0]) == self._graph.block(index)
            if not before or changes[before - 1] != tested[0] or not (is_near or len(changes) == 1):
                return False
        self._note_tested(deferral, instruction, index)
        return True

    def leave(self) -> None:
        """Note that the code of a site has been inserted: what comes to its place now stands after it."""
        self._open = None

    def _note(self, waiting: _Waiting, spot: int, index: int, statement: Statement, lines: Lines | None) -> None:
        """Note that code waits; that it can stand at a spot, after an instruction, from now on.

        index: of the instruction. statement: its site. lines: the site's code, if it is to be inserted there.
        """
        self._open = lines
        self._waiting.append(waiting)
        self.count += 1
        self._at, self._is_after = spot, spot != statement.start
        self._index, self._block = max(index, statement.index), self._graph.block(statement.index)

    def _to_wait(
        self, deferral: Deferral, values: SiteOperands, masks: LaneMasks, guard: Guard | None, number: int
    ) -> _Waiting:  # fmt: skip
        """Write the unlikely code of a site. values, masks, guard: see ``add``; number: of the site."""
        condition = ""
        with self._emission.scratch.apart():
            values.begin_snippet(guard)
            if deferral.once is None:
                with self._emission.block.apart():
                    code = self._emission.snippet(deferral.later, values, guard, level=Level.THREAD).all
            else:
                code, condition = self._condition(deferral.test, deferral.conditions, values)
                if guard is not None:
                    code.append(op("and.pred", condition, condition, guard.text))
        lines = [*masks.first, *values.here, *code]
        return _Waiting(deferral, lines, condition, number, self._named(lines))

    def _condition(
        self, snippet: Snippet, conditions: Sequence[Register], operands: Resolver = no_helpers
    ) -> tuple[Lines, str]:  # fmt: skip
        """Return the code of a test, and the predicate that is true where all of its conditions are."""
        lines, (condition, *others) = self._emission.conditions(snippet, conditions, operands)
        if others:
            joined = self._emission.scratch.take("pred")
            for other in others:
                lines.append(op("and.pred", joined, condition, other))
                condition = joined
        return lines, condition

    def write(self) -> None:
        """Insert the code that waits; none waits any more then."""
        if self._waiting:
            self._write(self._waiting)

    def _write(self, group: Sequence[_Waiting]) -> None:
        """Insert the code of a group of what waits; the others begin another one."""
        with self._emission.scratch.apart():
            lines = self._code(group)
        if self._open is not None:
            self._open += lines
        else:
            self._edits.insert(self._at, after(lines) if self._is_after else before(lines))
        self._ends[self._group] = self._at
        # The order counts only for other groups than those of which some stay.
        self._waiting = [waiting for waiting in self._waiting if waiting not in group]

    def _code(self, group: Sequence[_Waiting]) -> Lines:
        """Return the code of a group: that nothing of it does anything, and after a branch over it all of it."""
        lines: Lines = []
        first = group[0].deferral
        end = f"${self._emission.prefix.removeprefix('%')}likely"
        if first.extremes is not None:
            values = [waiting.value for waiting in group if waiting.value is not None]
            is_all, rest = self._values.fold(values, first.extremes, end, lines)
        else:
            is_all, rest = f"!{self._any(group, lines)}", []
        rest += self._rest(group)
        return [*lines, Scope.OPEN, op("bra", end, when=is_all), *rest, Label(end), Scope.CLOSE]

    def _register(self, name: str, kind: str) -> str:
        """Return a register of the group that waits. kind: its type."""
        return self._emission.of_body(f"{name}{self._group}", kind)

    def _any(self, group: Sequence[_Waiting], lines: Lines) -> str:
        """Return the predicate that is true in the threads in which some code of a group does anything."""
        any_, first = self._register("any", "pred"), group[0].deferral
        if self._unpaired is not None:
            lines += self._test_pair(self._unpaired, self._unpaired)
        # The same for all of them, or left out: the code itself tests it again.
        if first.state_conditions and all(waiting.deferral.state == first.state for waiting in group):
            tests, condition = self._condition(first.state, first.state_conditions)
            lines += [*tests, op("and.pred", any_, any_, condition)]
        return any_

    def _rest(self, group: Sequence[_Waiting]) -> Lines:
        """Return the code of a group, behind the branch. Of ``once`` only the first site whose condition is true has
        any."""
        lines: Lines = []
        once = group[0].deferral.once
        if once is None:
            for waiting in group:
                lines += waiting.code
            return lines
        number = self._emission.of_body("site", "b32")
        # The first of them is the last to be written.
        for waiting in reversed(group):
            lines += [*waiting.code, op("mov.u32", number, str(waiting.number), when=waiting.condition)]
        with self._emission.block.apart():
            code = self._emission.snippet(once, lambda name, element: Value(number, "u32"), level=Level.THREAD)
        return [*lines, *code.lines, *code.stores]

    def _named(self, code: Iterable[Line]) -> frozenset[str]:
        """The names of registers in code, without those of inserted code."""
        names: set[str] = set()
        for instruction in (each for line in code for each in line.instructions):
            if instruction.predicate is not None:
                names.add(instruction.predicate)
            for operand in instruction.operands:
                names.update(REGISTER.findall(operand))
        return frozenset(name for name in names if not name.startswith(self._emission.prefix))

    @lazy
    def _uses(self) -> dict[str, _Uses]:
        """By name, the registers of the program that it writes."""
        changes: defaultdict[str, list[int]] = defaultdict(list)
        reads: defaultdict[str, list[int]] = defaultdict(list)
        for statement in self._body:
            instruction, index = statement.instruction, statement.index
            if instruction is None:
                continue
            for name in REGISTER.findall(" ".join((instruction.predicate or "", *instruction.sources))):
                reads[name].append(index)
            for name in instruction.written:
                changes[name].append(index)
        uses: dict[str, _Uses] = {}
        for name, written in changes.items():
            read = reads.get(name) or [written[0]]
            uses[name] = _Uses(written, read, len(self._body.ends) if read[0] < written[0] else read[-1])
        return uses

    @lazy
    def _has_few(self) -> bool:
        """Whether the program needs few registers: by what lies between the first and the last use of each in text."""
        changes: Counter[int] = Counter()
        for name, (written, read, last) in self._uses.items():
            declared = self._body.declaration(name, self._body.ends[written[0]])
            if declared is not None and declared.type != "pred":
                words = 2 if declared.type.endswith("64") else 1
                changes[min(written[0], read[0])] += words
                changes[max(written[-1], last)] -= words
        return max(accumulate(changes[index] for index in sorted(changes)), default=0) <= _FEW

    @lazy
    def _facts(self) -> FloatFacts:
        """What is known of the program's values."""
        return FloatFacts(self._body)

    @lazy
    def _graph(self) -> FlowGraph:
        """The basic blocks of the body."""
        return FlowGraph(self._body)
