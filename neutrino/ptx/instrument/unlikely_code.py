"""Code that nearly never does anything, of several sites under one branch after the last of them.

A predicate is true once one of the conditions was; the code is skipped unless it is. ``snippets/deferral.py`` says
which code that may be. Between the sites and it nothing may change what it reads: registers of the program.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
from neutrino.ptx.isa.instruction import REGISTER, Instruction
from neutrino.ptx.text.body import Body, Statement
from neutrino.ptx.text.inserted import Edits, Label, Line, Lines, Scope, after, before, op

# Opcodes at which lanes that are apart may meet within a basic block, but for those with one of these in their names.
_MEETING = frozenset({"sync", "aligned"})
_MEETING_WORDS = frozenset({"bar", "barrier", "call", "shfl", "vote"})
# Where code must not wait any longer: it would have the time after a barrier, or calls would have a state without it.
_ENDING_WORDS = frozenset({"bar", "barrier", "call"})


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


@dataclass(frozen=True)
class _Waiting:
    """The unlikely code of one site. code: all of it, or only what tests ``condition``, a predicate, for which the
    snippet ``once`` has the rest. number: of the site. read: the program's registers that it reads."""

    deferral: Deferral
    code: Lines
    condition: str
    number: int
    read: frozenset[str]


class _Uses(NamedTuple):
    """Where a register of the program is used, by index in the body.

    changes: the instructions that write it, ascending. last: the last that reads it; beyond the body's end where one
    reads it that stands before all writers, as in a loop.
    """

    changes: list[int]
    last: int


class UnlikelyCode:
    """Collects unlikely code of a body's sites, in text order, and inserts it after several of them."""

    _MOST = 32
    _MOST_HELD = 8
    """Registers of the program that only what waits still reads: they cannot be reused before it is written."""

    def __init__(self, body: Body, products: Products, emission: Emission, edits: Edits) -> None:
        """Set up a writer that has collected nothing. Parameters: those of ``SiteWriter``."""
        self._body = body
        self._products = products
        self._emission = emission
        self._edits = edits
        self._endings = Meetings(body, _ENDING_WORDS)
        # What waits, in order; where it goes, and the index of the last instruction before that; the basic block; and
        # the first instruction that overwrites a register that the code reads.
        self._waiting: list[_Waiting] = []
        self._at = 0
        self._is_after = False
        self._index = 0
        self._block = -1
        self._until = 0
        # The code of the site that is being written, if what waits stands right after the tests in it.
        self._open: Lines | None = None
        # The number of the group that waits: two can overlap, where the code of the first goes further down.
        self._group = 0
        # Whether the group's predicate has a value; and a value that waits to be tested for a NaN with another one.
        self._is_any_set = False
        self._unpaired: str | None = None
        # By register, the last instruction whose result in it was tested for a NaN, with its type and code for one.
        self._tested: dict[str, tuple[int, str, Snippet]] = {}
        self.count = 0
        """How often code was deferred."""

    def come_to(self, statement: Statement) -> None:
        """Insert what waits if it cannot wait for the code of an instruction, which comes next."""
        if self._waiting and (
            self._graph.block(statement.index) != self._block
            or self._endings.lie_between(self._index, statement.index)
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
        until = self._until_changed(waiting.read, statement, at, spot)
        if values.early or until is None:
            return False
        index = bisect_right(self._body.ends, spot) - 1
        if self._waiting and (
            (self._is_full(waiting, max(index, statement.index)) and self._at <= at) or index >= self._until
            or self._waiting[0].deferral.once != deferral.once
            or self._waiting[0].deferral.extremes != deferral.extremes
        ):  # fmt: skip
            self.write()
        if not self._waiting:
            self._group = (self._group + 1) % 2
            self._is_any_set = False
        taken = len(operands.here)
        if deferral.extremes is not None:
            tests = self._to_extremes(deferral, operands, guard)
        elif deferral.nan is not None:
            tests = self._to_nan(deferral, operands, guard, statement.index)
        else:
            tests = self._to_any(deferral, operands, guard)
        lines += [*operands.here[taken:], *tests]
        self._note(waiting, until, spot, index, statement, lines if spot == at else None)
        return True

    def _is_full(self, waiting: _Waiting, index: int) -> bool:
        """Whether the code of one more site may not wait as well, up to an instruction."""
        if len(self._waiting) >= self._MOST:
            return True
        read = waiting.read.union(*(each.read for each in self._waiting))
        return sum(self._uses[name].last <= index for name in read if name in self._uses) > self._MOST_HELD

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

    def _note(
        self, waiting: _Waiting, until: int, spot: int, index: int, statement: Statement, lines: Lines | None
    ) -> None:  # fmt: skip
        """Note that code waits, until an instruction; that it can stand at a spot, after an instruction, from now on.

        until, index: of the instructions. statement: its site. lines: the site's code, if it is to be inserted there.
        """
        self._open = lines
        self._until = min(until, self._until) if self._waiting else until
        self._waiting.append(waiting)
        self.count += 1
        self._at, self._is_after = spot, spot != statement.start
        self._index, self._block = max(index, statement.index), self._graph.block(statement.index)

    def _to_extremes(self, deferral: Deferral, operands: SiteOperands, guard: Guard | None) -> Lines:
        """Return the code that brings the values of a site to the least and the greatest one of those that wait.

        The greatest is a NaN once a value was.
        """
        lines, values = self._emission.conditions(deferral.test, deferral.conditions, operands)
        least, greatest = self._register("least", "b32"), self._register("greatest", "b32")
        shared = map(self._emission.shared, deferral.extremes or ())
        if not self._waiting:
            first, *values = values
            for register, elsewhere in zip((least, greatest), shared, strict=True):
                if guard is None:
                    lines.append(op("mov.b32", register, first))
                else:
                    choice = (elsewhere, first) if guard.negated else (first, elsewhere)
                    lines.append(op("selp.b32", register, *choice, guard.register))
        for value in values:
            lines.append(op("min.f32", least, least, value, when=under(guard)))
            lines.append(op("max.NaN.f32", greatest, greatest, value, when=under(guard)))
        return lines

    def _from_extremes(self, extremes: tuple[Register, Register], lines: Lines) -> str:
        """Return the predicate that is true where all values that wait are finite, and use their extremes there."""
        take = self._emission.scratch.take
        least, greatest = self._register("least", "b32"), self._register("greatest", "b32")
        size, low, high = take("b32"), take("pred"), take("pred")
        for register, result in ((least, low), (greatest, high)):
            lines += [op("abs.f32", size, register), op("setp.lt.f32", result, size, "0f7F800000")]
        lines.append(op("and.pred", low, low, high))
        for opcode, extreme, value in zip(("min.f32", "max.f32"), extremes, (least, greatest), strict=True):
            shared = self._emission.shared(extreme)
            lines.append(op(opcode, shared, shared, value, when=low))
        return low

    def _to_wait(
        self, deferral: Deferral, values: SiteOperands, masks: LaneMasks, guard: Guard | None, number: int
    ) -> _Waiting:  # fmt: skip
        """Write the unlikely code of a site. values, masks, guard: see ``add``; number: of the site."""
        values.begin_snippet(guard)
        if deferral.once is None:
            with self._emission.block.apart():
                code = self._emission.snippet(deferral.later, values, guard, level=Level.THREAD)
            lines = [*masks.first, *values.here, *code.lines, *code.stores]
            return _Waiting(deferral, lines, "", number, self._named(lines))
        tests, condition = self._condition(deferral.test, deferral.conditions, values)
        if guard is not None:
            tests.append(op("and.pred", condition, condition, guard.text))
        lines = [*masks.first, *values.here, *tests]
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
        if not self._waiting:
            return
        scratch = self._emission.scratch
        mark = scratch.mark()
        lines: Lines = []
        first = self._waiting[0].deferral
        is_none = self._is_none(first, lines)
        end = f"${self._emission.prefix.removeprefix('%')}likely"
        lines += [Scope.OPEN, op("bra", end, when=is_none), *self._rest(first.once), Label(end), Scope.CLOSE]
        if self._open is not None:
            self._open += lines
        else:
            self._edits.insert(self._at, after(lines) if self._is_after else before(lines))
        self._waiting.clear()
        scratch.release(mark)

    def _register(self, name: str, kind: str) -> str:
        """Return a register of the group that waits. kind: its type."""
        return self._emission.of_body(f"{name}{self._group}", kind)

    def _is_none(self, first: Deferral, lines: Lines) -> str:
        """Return the guard of the threads in which none of what waits does anything. first: the deferral of the first.
        """
        if first.extremes is not None:
            return self._from_extremes(first.extremes, lines)
        any_ = self._register("any", "pred")
        if self._unpaired is not None:
            lines += self._test_pair(self._unpaired, self._unpaired)
        # The same for all of them, or left out: the code itself tests it again.
        if first.state_conditions and all(waiting.deferral.state == first.state for waiting in self._waiting):
            tests, condition = self._condition(first.state, first.state_conditions)
            lines += [*tests, op("and.pred", any_, any_, condition)]
        return f"!{any_}"

    def _rest(self, once: Snippet | None) -> Lines:
        """Return the code behind the branch. once: what the first of the sites does whose condition is true."""
        lines: Lines = []
        if once is None:
            for waiting in self._waiting:
                lines += waiting.code
            return lines
        number = self._emission.of_body("site", "b32")
        # The first of them is the last to be written.
        for waiting in reversed(self._waiting):
            lines += [*waiting.code, op("mov.u32", number, str(waiting.number), when=waiting.condition)]
        with self._emission.block.apart():
            code = self._emission.snippet(once, lambda name, element: Value(number, "u32"), level=Level.THREAD)
        return [*lines, *code.lines, *code.stores]

    def _until_changed(self, read: Iterable[str], statement: Statement, at: int, spot: int) -> int | None:
        """Return the index of the first instruction that changes a register which code reads that is to wait.

        read: those registers. statement, at: its own, and where it would stand next to it; spot: where it can stand at
        the earliest. None where that is too late, as a register has changed or is not in scope any more.
        """
        declaration = self._body.declaration
        first = statement.index + (at > statement.start)
        last = bisect_right(self._body.ends, spot) - 1
        until = len(self._body.ends)
        for name in read:
            declared = declaration(name, at)
            if declared is None:
                continue
            if declaration(name, spot) != declared:
                return None
            changes = self._uses[name].changes if name in self._uses else []
            following = bisect_left(changes, first)
            if following < len(changes):
                until = min(until, changes[following])
            until = min(until, bisect_right(self._body.ends, declared.end))
        return None if until <= last else until

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
        """By name, the registers of the program."""
        changes: defaultdict[str, list[int]] = defaultdict(list)
        last: dict[str, int] = {}
        for statement in self._body:
            instruction, index = statement.instruction, statement.index
            if instruction is None:
                continue
            for name in REGISTER.findall(" ".join((instruction.predicate or "", *instruction.sources))):
                last[name] = index if name in changes else len(self._body.ends)
            for name in instruction.written:
                changes[name].append(index)
        return {name: _Uses(indices, last.get(name, indices[0])) for name, indices in changes.items()}

    @lazy
    def _facts(self) -> FloatFacts:
        """What is known of the program's values."""
        return FloatFacts(self._body)

    @lazy
    def _graph(self) -> FlowGraph:
        """The basic blocks of the body."""
        return FlowGraph(self._body)
