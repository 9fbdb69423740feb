"""Snippets that only add constants: what several of them in a row add up to may be added at once.

Within a basic block, a thread that executes one instruction executes all of them, each under its predicate, and
nothing looks at a sum or a register of a probe in between. So the additions of a stretch of sites that no label,
branch, call or end of a thread parts, and of one predicate that is not written in between, are one addition at the
first of them. A thread that never gets to the last, because of a fault or a ``trap``, leaves no records at all.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from neutrino.probing.ir.operands import Immediate, Register
from neutrino.probing.ir.probe_set import Probe, Snippet
from neutrino.probing.ir.statements import Assembly, Save, registers_of
from neutrino.probing.model import Lanes
from neutrino.ptx.analysis.counter_placement import Fork, Row
from neutrino.ptx.analysis.flow_graph import FlowGraph
from neutrino.ptx.isa.instruction import Instruction, Mnemonic, guard_register
from neutrino.ptx.isa.measures import constant_bytes, constant_operations
from neutrino.ptx.text.body import Body, Statement

_ADDS = frozenset({"add.u32", "add.u64", "add.s32", "add.s64"})
_AMOUNT = re.compile(r"0|[1-9]\d{0,8}|BYTES|OPS", re.ASCII)
_MOST = 1 << 30
"""Amounts stay within the immediates of every type."""


class Parted(NamedTuple):
    """Probes of one instruction: those that only add constants, the others, and all."""

    adding: tuple[Probe, ...]
    others: tuple[Probe, ...]
    all: tuple[Probe, ...]


@dataclass(eq=False)
class Added:
    """What probes that only add constants add at an instruction: of each of them, in the order of its operands."""

    amounts: tuple[tuple[Probe, tuple[int, ...]], ...]
    most: int


class Additions:
    """Which of a set's probes only add constants at their instructions."""

    def __init__(self, probes: Sequence[Probe]) -> None:
        at_sites = [
            statement
            for probe in probes if any(pattern.has_operands or pattern.lines for pattern in probe.tracepoint.patterns)
            for snippet in (probe.before, probe.after) if snippet
            for statement in snippet.straight
        ]  # fmt: skip
        # Registers that snippets at instructions do anything else with than to add to them.
        self._read: set[str] = set()
        for statement in at_sites:
            named = [register.name for register in registers_of(statement)]
            added = _added_to(statement) if isinstance(statement, Assembly) else None
            if added is not None and named.count(added.name) == 2:
                named = [name for name in named if name != added.name]
            self._read.update(named)
        self._adding = {id(probe) for probe in probes if self._only_adds(probe)}
        self._parted: dict[int, Parted] = {}
        # By opcode and the probes: what they add, all together and then each.
        self._added: dict[tuple[Mnemonic | None, int], tuple[Added, ...] | None] = {}
        self._alone: dict[tuple[Mnemonic, int], Added | None] = {}

    def part(self, probes: tuple[Probe, ...]) -> Parted:
        """Tell those that only add constants from the others; the same value for the same probes."""
        known = self._parted.get(id(probes))
        if known is None or known.all is not probes:
            adding = tuple(probe for probe in probes if id(probe) in self._adding)
            others = tuple(probe for probe in probes if id(probe) not in self._adding)
            known = self._parted[id(probes)] = Parted(adding, others, probes)
        return known

    def added(self, parted: Parted, statement: Statement) -> tuple[Added, ...] | None:
        """What the probes that only add add at an instruction: all together, and each of them.

        None where the instruction's text does not say it.
        """
        key = (statement.mnemonic, id(parted))
        known = self._added.get(key)
        if known is None and key not in self._added:
            known = self._added[key] = _added(parted.adding, statement)
        return known

    def added_alone(self, probes: tuple[Probe, ...], body: Body, opcode: Mnemonic) -> Added | None:
        """What is added at an instruction of a body without a guard, by its opcode; None where probes do more there."""
        key = (opcode, id(probes))
        if key not in self._alone:
            parted = self.part(probes)
            sample = body.statement(body.mnemonics.index(opcode))
            added = None if parted.others else self.added(parted, sample)
            self._alone[key] = added[0] if added is not None else None
        return self._alone[key]

    def _only_adds(self, probe: Probe) -> bool:
        statements = _statements(probe)
        return bool(statements) and all(self._adds(statement) for statement in statements)

    def _adds(self, statement: Assembly | Save) -> bool:
        if isinstance(statement, Save):
            amounts = (_AMOUNT.fullmatch(operand.text) for operand in statement.operands)
            return statement.map.kind.adds_constants and statement.guard is None and all(amounts)
        added = _added_to(statement)
        return (
            added is not None
            and statement.guard is None
            and added.name not in self._read
            and _AMOUNT.fullmatch(statement.operands[2].text) is not None
        )


def _added_to(statement: Assembly) -> Register | None:
    """The register of ``add %r, %r, amount``; None for another instruction."""
    if statement.opcode not in _ADDS or statement.operands[0] != statement.operands[1]:
        return None
    first = statement.operands[0]
    return first if isinstance(first, Register) and not first.is_local else None


def _statements(probe: Probe) -> list[Assembly | Save]:
    return [statement for snippet in (probe.before, probe.after) if snippet for statement in snippet.straight]


def amounts(probe: Probe, instruction: Instruction) -> tuple[int, ...] | None:
    """What a probe that only adds constants adds at an instruction, in the order of its operands.

    None where the instruction's text does not say it, and for amounts beyond 32 bits.
    """
    found = []
    for statement in _statements(probe):
        operands = statement.operands if isinstance(statement, Save) else statement.operands[2:]
        words = [operand.text for operand in operands]
        for word in words:
            amount: int | None
            if word == "BYTES":
                amount = constant_bytes(instruction)
            elif word == "OPS":
                amount = constant_operations(instruction)
            else:
                amount = int(word)
            if amount is None or amount >= _MOST:
                return None
            found.append(amount)
    return tuple(found)


def _added(probes: tuple[Probe, ...], statement: Statement) -> tuple[Added, ...] | None:
    if statement.instruction is None:
        return None
    found = []
    for probe in probes:
        amount = amounts(probe, statement.instruction)
        if amount is None:
            return None
        found.append((probe, amount))
    each = [Added((one,), max(one[1])) for one in found]
    return Added(tuple(found), sum(one.most for one in each)), *each


def row(run: Run, sums: Mapping[int, Sequence[str | tuple[int, int]]], graph: FlowGraph) -> Row:
    """What a run adds to which sums. sums: by the probe's id, what it adds to in the order of its amounts."""
    found: dict[Hashable, int] = {}
    for identity, (_, totals) in run.totals.items():
        for name, amount in zip(sums.get(identity, ()), totals, strict=identity in sums):
            if amount:
                found[name] = found.get(name, 0) + amount
    index = run.first.index
    return Row(found, graph.once(index), run.guard is None and graph.always(index))


def with_amounts(probe: Probe, totals: Iterable[int]) -> Snippet:
    """One snippet that adds the totals in place of what the probe adds at each instruction."""
    rest = iter(totals)
    statements: list[Assembly | Save] = []
    for statement in _statements(probe):
        if isinstance(statement, Save):
            added = tuple(Immediate(str(next(rest))) for _ in statement.operands)
            statements.append(replace(statement, operands=added))
        else:
            statements.append(replace(statement, operands=(*statement.operands[:2], Immediate(str(next(rest))))))
    return Snippet(tuple(statements))


def sums_added_to(probe: Probe, index: Mapping[str, int]) -> tuple[str | tuple[int, int], ...]:
    """What a probe that only adds constants adds to, in the order of its amounts: registers, and fields of maps.

    index: of maps by name.
    """
    found: list[str | tuple[int, int]] = []
    for statement in _statements(probe):
        if isinstance(statement, Save):
            found += [(index[statement.map.name], number) for number in range(len(statement.operands))]
        elif (added := _added_to(statement)) is not None:
            found.append(added.name)
    return tuple(found)


@dataclass
class Run:
    """Sites whose additions are made at the first of them. guard: as in the text, None without one.

    first: of them; last: the latest of those with a guard. block: of statements that all run when one does. counts:
    what is added, and how often; at most most in all.
    """

    guard: str | None
    first: Statement
    last: Statement
    block: int
    most: int = 0
    counts: dict[Added, int] = field(default_factory=dict)

    def add(self, added: Added) -> None:
        """Count one more site."""
        self.most += added.most
        self.counts[added] = self.counts.get(added, 0) + 1

    @cached_property
    def totals(self) -> dict[int, tuple[Probe, list[int]]]:
        """By the probe's id, the probe and what it adds; once all sites are known."""
        found: dict[int, tuple[Probe, list[int]]] = {}
        for added, count in self.counts.items():
            for probe, amounts in added.amounts:
                known = found.get(id(probe))
                if known is None:
                    found[id(probe)] = (probe, [count * amount for amount in amounts])
                else:
                    for place, amount in enumerate(amounts):
                        known[1][place] += count * amount
        return found


_NO_BORDER = sys.maxsize


class Runs:
    """The runs of one body, whose sites come in text order."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._code = body.code
        self._open: dict[str | None, Run] = {}
        # A label counts before its statement, a branch after it.
        labels = (2 * label.before for label in body.labels)
        self._borders = sorted([*(2 * index + 1 for index in body.controls), *labels])
        self._block = 0
        self._border = self._borders[0] if self._borders else _NO_BORDER
        self.found: list[Run] = []

    def at(self, guard: str | None, statement: Statement) -> Run:
        """Add a site to its run, and return the run: the open one of the same guard and block, else a new one.

        Sites come in program order. guard: the site's predicate as written.
        """
        # Places between statements have even numbers, those of statements odd ones.
        place = 2 * statement.index + 1
        if self._border < place:
            self._go_to(place)
        block = self._block
        run = self._open.get(guard)
        is_open = run is not None and run.block == block and run.most < _MOST
        if run is not None and is_open and (guard is None or self._holds(run, guard, statement.start)):
            run.last = statement
            return run
        run = self._open[guard] = Run(guard, statement, statement, block)
        self.found.append(run)
        return run

    def add_site(self, statement: Statement, added: tuple[Added, ...]) -> None:
        """Count one site. added: as of ``Additions.added``."""
        if statement.guard is None:
            self.at(None, statement).add(added[0])
            return
        for one in added[1:]:
            under = statement.guard if one.amounts[0][0].lanes is Lanes.EXECUTING else None
            self.at(under, statement).add(one)

    def add_all(self, indices: Sequence[int], added: Sequence[Added], begin: int, end: int) -> None:
        """Count the sites from begin to end in two parallel lists, all without a guard: as ``at`` and ``add`` for each.

        indices: the places of the instructions in the body. added: what is added there.
        """
        while begin < end:
            run = self.at(None, self._body.statement(indices[begin]))
            # The first site after the border, which is in another block; see `at` for the numbers.
            stop = bisect_left(indices, (self._border + 1) // 2, begin, end)
            counts = Counter(added[begin:stop])
            most = sum([one.most * count for one, count in counts.items()])
            if run.most + most < _MOST:
                run.most += most
                for one, count in counts.items():
                    run.counts[one] = run.counts.get(one, 0) + count
            else:
                for at in range(begin, stop):
                    self.at(None, self._body.statement(indices[at])).add(added[at])
            begin = stop

    def _go_to(self, place: int) -> None:
        """Pass the borders before a place."""
        borders, block = self._borders, self._block
        while block < len(borders) and borders[block] < place:
            block += 1
        self._block = block
        self._border = borders[block] if block < len(borders) else _NO_BORDER

    def forks(self) -> list[Fork]:
        """Where a block ends in a branch that is a site: the runs before it, and on either side of it."""
        forks: list[Fork] = []
        if all(run.guard is None for run in self.found):
            return forks
        plain = {run.block: number for number, run in reversed(list(enumerate(self.found))) if run.guard is None}
        for number, run in enumerate(self.found):
            # A label right after the branch separates the two blocks: other threads arrive there, too.
            if run.guard is None or run.block not in plain or run.block + 1 not in plain:
                continue
            if run.last.word == "bra":
                forks.append(Fork(plain[run.block], number, plain[run.block + 1]))
        return forks

    def _holds(self, run: Run, guard: str, start: int) -> bool:
        """The predicate is the same register with the same value as where the run was last added to."""
        name = guard_register(guard)
        code = self._code
        at = code.find(name, run.last.start, start)
        while at >= 0:
            end = at + len(name)
            if not (_continues(code[end]) or _continues(code[at - 1]) or _is_guard(code, at)):
                return False
            at = code.find(name, end, start)
        if code.find("}", run.last.start, start) < 0:
            return True
        return self._body.declaration(name, run.first.start) == self._body.declaration(name, start)


def _continues(character: str) -> bool:
    return character.isalnum() or character in "_$%"


def _is_guard(code: str, at: int) -> bool:
    at -= 1
    while code[at].isspace() or code[at] == "!":
        at -= 1
    return code[at] == "@"
