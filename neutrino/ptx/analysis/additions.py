"""Snippets that only add constants: what several of them in a row add up to may be added at once.

Within a basic block, a thread that executes one instruction executes all of them, each under its predicate, and
nothing looks at a sum or a register of a probe in between. So the additions of a stretch of sites that no label of a
branch, branch, call or end of a thread parts, and of one predicate that is not written in between, are one addition at
the first of them. A thread that never gets to the last, because of a fault or a ``trap``, leaves no records at all.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from neutrino.ir.operands import Immediate, Register
from neutrino.ir.statements import Assembly
from neutrino.lazy import lazy
from neutrino.probing.ir.probe_set import Probe, Snippet
from neutrino.probing.ir.structured import Save, registers_of
from neutrino.probing.model import Lanes
from neutrino.ptx.analysis.counter_placement import Fork, Row
from neutrino.ptx.analysis.flow_graph import FlowGraph, branch_labels
from neutrino.ptx.isa.instruction import (
    Instruction,
    Mnemonic,
    constant_bytes,
    constant_operations,
    guard_register,
    opcode_value,
)
from neutrino.ptx.snippets.writer import operand_text
from neutrino.ptx.text.body import Body, Statement

_ADDS = frozenset({"add.u32", "add.u64", "add.s32", "add.s64"})
# What a probe may add: a number below _MOST_TOTAL, or one that follows from the instruction's text.
_AMOUNTS = frozenset({"BYTES", "OPS", "ELEMENTS"})
_MOST_TOTAL = 1 << 30
"""Amounts stay below, so that they are valid immediates of every type, signed ones included."""


class Parted(NamedTuple):
    """Probes of one instruction: those that only add constants, the others, and all."""

    adding: tuple[Probe, ...]
    others: tuple[Probe, ...]
    all: tuple[Probe, ...]


@dataclass(eq=False)
class Added:
    """What probes that only add constants add at an instruction.

    amounts: each probe with the amounts that it adds, in the order of its operands. most: no amount is greater.
    """

    amounts: tuple[tuple[Probe, tuple[int, ...]], ...]
    most: int


class Additions:
    """Knows which of a set's probes only add constants at their instructions, and what they add there.

    Such probes need no code of their own at each site: what several sites add is added at once. Probes, and tuples of
    them, are known by their ids: the same objects must be given each time.
    """

    def __init__(self, probes: Sequence[Probe]) -> None:
        """Find out which of a set's probes only add constants, to registers or map fields that no snippet at a site
        reads.
        """
        # The statements of all snippets at instructions, source lines or places between instructions. Those at a
        # kernel's entry and ends are left out: they may read a sum, since at the entry nothing was added to it yet, and
        # at the ends everything.
        at_sites = [
            statement
            for probe in probes
            if any(pattern.has_operands or pattern.lines or pattern.is_place for pattern in probe.tracepoint.patterns)
            for snippet in (probe.before, probe.after) if snippet
            for statement in snippet.straight
        ]  # fmt: skip
        # Names of the registers that some snippet at an instruction uses otherwise than to add to them. They are no
        # sums that can be added up later, as their value at each site matters.
        self._read: set[str] = set()
        for statement in at_sites:
            named = [register.name for register in registers_of(statement)]
            counter = _added_to(statement) if isinstance(statement, Assembly) else None
            # 2: as the destination and the first source; a third time would be the amount.
            if counter is not None and named.count(counter.name) == 2:
                named = [name for name in named if name != counter.name]
            self._read.update(named)
        self._adding = {id(probe) for probe in probes if self._only_adds(probe)}
        # The results of `part`, by the id of the probes, of `added` and of `added_alone`.
        self._parted: dict[int, Parted] = {}
        self._added: dict[tuple[Mnemonic | None, int], tuple[Added, ...] | None] = {}
        self._alone: dict[tuple[Mnemonic, int], Added | None] = {}

    def part(self, probes: tuple[Probe, ...]) -> Parted:
        """Separate the probes of an instruction that only add constants, which need no code at each site, from the
        others.

        Returns the same object for the same tuple, so that callers can cache by its id.
        """
        parted = self._parted.get(id(probes))
        # The id may be that of an earlier tuple, which is gone.
        if parted is None or parted.all is not probes:
            adding = tuple(probe for probe in probes if id(probe) in self._adding)
            others = tuple(probe for probe in probes if id(probe) not in self._adding)
            parted = self._parted[id(probes)] = Parted(adding, others, probes)
        return parted

    def added(self, parted: Parted, statement: Statement) -> tuple[Added, ...] | None:
        """Return what the probes that only add constants add when an instruction is executed, to registers and fields
        of maps.

        An ``Added`` holds probes with their amounts. The first is for all probes together, for instructions where all
        count the same threads; then comes one for each probe alone, for instructions with a guard (predicate), where
        some count only the threads that execute it. parted: the probes of the instruction, from ``part``. None where
        the instruction's text does not give an amount, such as the bytes of a bulk copy. The opcode alone decides:
        results are cached by it.
        """
        key = (statement.mnemonic, id(parted))
        added = self._added.get(key)
        if added is None and key not in self._added:
            added = self._added[key] = _added(parted.adding, statement)
        return added

    def added_alone(self, probes: tuple[Probe, ...], body: Body, opcode: Mnemonic) -> Added | None:
        """What these probes add together at any instruction with this opcode; None when they do not only add constants.

        Amounts follow from the opcode alone, so that it is enough to look at one instruction of the body with it; the
        result holds in all bodies.
        """
        key = (opcode, id(probes))
        if key not in self._alone:
            parted = self.part(probes)
            sample = body.statement(body.mnemonics.index(opcode))
            added = None if parted.others else self.added(parted, sample)
            # The first is for all of the probes together.
            self._alone[key] = added[0] if added is not None else None
        return self._alone[key]

    def _only_adds(self, probe: Probe) -> bool:
        """Return whether all that a probe does is to add constants."""
        statements = _statements(probe)
        return bool(statements) and all(self._adds(statement) for statement in statements)

    def _adds(self, statement: Assembly | Save) -> bool:
        """Whether a statement adds constants, unconditionally, to a sum that no snippet at an instruction reads."""
        if isinstance(statement, Save):
            amounts = (_is_amount(operand_text(operand)) for operand in statement.operands)
            return statement.map.adds_constants and statement.guard is None and all(amounts)
        counter = _added_to(statement)
        return (
            counter is not None
            and statement.guard is None
            and counter.name not in self._read
            and _is_amount(operand_text(statement.operands[2]))
        )


def _is_amount(text: str) -> bool:
    """Whether an operand is a number below ``_MOST_TOTAL``, or one that follows from the instruction's text."""
    if text.isdecimal():
        return text == "0" or (text[0] != "0" and len(text) < len(str(_MOST_TOTAL)))
    return text in _AMOUNTS or (text.startswith("HAS.") and text != "HAS.")


def _added_to(statement: Assembly) -> Register | None:
    """The register of ``add %r, %r, amount``; None for another instruction, and for a register that is local to a
    snippet: it has no value from one site to the next."""
    if statement.opcode not in _ADDS or statement.operands[0] != statement.operands[1]:
        return None
    destination = statement.operands[0]
    return destination if isinstance(destination, Register) and not destination.is_local else None


def _statements(probe: Probe) -> list[Assembly | Save]:
    """Return the statements of a probe's snippets: of the one before an instruction, then of the one after it."""
    return [statement for snippet in (probe.before, probe.after) if snippet for statement in snippet.straight]


def amounts(probe: Probe, instruction: Instruction) -> tuple[int, ...] | None:
    """Return the constants that a probe adds at an instruction, one for each sum, in the order of ``sums_added_to``.

    probe: one that only adds constants. ``BYTES`` and ``OPS`` are such, too, since the instruction's text gives them.
    None where it does not, and for amounts that are too large for an immediate operand.
    """
    amounts_in_order = []
    for statement in _statements(probe):
        # Every operand of a SAVE is an amount; of "add %r, %r, amount" the third.
        operands = statement.operands if isinstance(statement, Save) else statement.operands[2:]
        texts = [operand_text(operand) for operand in operands]
        for text in texts:
            amount: int | None
            if text == "BYTES":
                amount = constant_bytes(instruction)
            elif text == "OPS":
                amount = constant_operations(instruction)
            elif not text.isdigit():
                amount = opcode_value(instruction, *text.partition(".")[::2])
            else:
                amount = int(text)
            if amount is None or amount >= _MOST_TOTAL:
                return None
            amounts_in_order.append(amount)
    return tuple(amounts_in_order)


def _added(probes: tuple[Probe, ...], statement: Statement) -> tuple[Added, ...] | None:
    """Compute what ``Additions.added`` caches: what probes add at an instruction, all together first, then each alone.

    probes: those that only add constants. None where an amount is not known.
    """
    if statement.instruction is None:
        return None
    of_probes = []
    for probe in probes:
        probe_amounts = amounts(probe, statement.instruction)
        if probe_amounts is None:
            return None
        of_probes.append((probe, probe_amounts))
    each = [Added(((probe, probe_amounts),), max(probe_amounts)) for probe, probe_amounts in of_probes]
    # The sum is more than any one amount, and still is a bound.
    return Added(tuple(of_probes), sum(added.most for added in each)), *each


def row(run: Run, sums: Mapping[int, Sequence[str | tuple[int, int]]], graph: FlowGraph) -> Row:
    """Return what a run of sites (probed instructions that are counted at once) adds to each sum of a thread.

    ``plan_tallies`` chooses the counters for such rows. sums: by the probe's id, the sums that it adds to, from
    ``sums_added_to``; probes that are not in it are left out. graph: of the body that the run is in.
    """
    by_sum: dict[Hashable, int] = {}
    for probe_id, (_, totals) in run.totals.items():
        # Not strict for a probe that is left out: it has totals and no sums.
        for name, amount in zip(sums.get(probe_id, ()), totals, strict=probe_id in sums):
            if amount:
                by_sum[name] = by_sum.get(name, 0) + amount
    index = run.first.index
    # Under a guard not every thread that comes to the run adds.
    return Row(by_sum, graph.once(index), run.guard is None and graph.always(index))


def with_amounts(probe: Probe, totals: Iterable[int]) -> Snippet:
    """Return a probe's snippet with other amounts, so that what it adds at several instructions is added at once.

    It is inserted once for a run of sites. totals: in the order of the probe's amounts (``amounts``).
    """
    remaining = iter(totals)
    statements: list[Assembly | Save] = []
    for statement in _statements(probe):
        if isinstance(statement, Save):
            operands = tuple(Immediate(str(next(remaining))) for _ in statement.operands)
            statements.append(replace(statement, operands=operands))
        else:
            # "add %r, %r, amount": only the amount changes.
            statements.append(replace(statement, operands=(*statement.operands[:2], Immediate(str(next(remaining))))))
    return Snippet(tuple(statements))


def sums_added_to(probe: Probe, index: Mapping[str, int]) -> tuple[str | tuple[int, int], ...]:
    """Return the sums that a probe adds constants to, in the order of its amounts (``amounts``).

    A sum is the name of a register, or a field of a map as (map number, field number). index: by the name of each map
    of the set, its number.
    """
    sums: list[str | tuple[int, int]] = []
    for statement in _statements(probe):
        if isinstance(statement, Save):
            sums += [(index[statement.map.name], field_number) for field_number in range(len(statement.operands))]
        elif (register := _added_to(statement)) is not None:
            sums.append(register.name)
    return tuple(sums)


@dataclass
class Run:
    """Sites in a row whose additions are made all at once at the first of them.

    guard: the predicate of all of them as written, None without one. first, last: the instructions of the first and the
    latest site (last is not kept up to date for runs without a guard). block: the number of the basic block, as `Runs`
    counts them. counts: what is added, and at how many sites. most: no sum gets more than that over all sites.
    """

    guard: str | None
    first: Statement
    last: Statement
    block: int
    most: int = 0
    counts: dict[Added, int] = field(default_factory=dict)

    def add(self, added: Added) -> None:
        """Count one more site of the run. added: what its probes add there."""
        self.most += added.most
        self.counts[added] = self.counts.get(added, 0) + 1

    @lazy
    def totals(self) -> dict[int, tuple[Probe, list[int]]]:
        """By the probe's id, the probe and what it adds over all sites, in the order of its amounts (``amounts``).

        Computed once: only to be asked for when all sites were added.
        """
        results: dict[int, tuple[Probe, list[int]]] = {}
        for added, count in self.counts.items():
            for probe, amounts in added.amounts:
                known = results.get(id(probe))
                if known is None:
                    results[id(probe)] = (probe, [count * amount for amount in amounts])
                else:
                    _, totals = known
                    for place, amount in enumerate(amounts):
                        totals[place] += count * amount
        return results


_NO_BORDER = sys.maxsize


class Runs:
    """Groups the sites of one body, which come in text order, into runs: same basic block, guard and guard's value.

    runs: those so far, in the order of their first sites. A border is where one basic block ends and the next begins;
    calls are borders, too.
    """

    def __init__(self, body: Body) -> None:
        """Begin with no runs. body: the function's text, whose basic blocks limit the runs."""
        self._body = body
        self._code = body.code
        # By guard, the latest run, which further sites may be added to.
        self._open: dict[str | None, Run] = {}
        # Places in the body: statement i is at 2 * i + 1, the gap before it at 2 * i. A label's border is the gap
        # before its statement; that of a branch is at the branch itself, which still belongs to the block that it ends.
        # Labels that no branch goes to, as those of debug information, are none.
        labels = {2 * label.before for found in branch_labels(body).values() for label in found}
        self._borders = sorted([*(2 * index + 1 for index in body.controls), *labels])
        # The number of borders that were passed, which numbers the current block, and the place of the next one.
        self._block = 0
        self._next_border = self._borders[0] if self._borders else _NO_BORDER
        self.runs: list[Run] = []

    def at(self, guard: str | None, statement: Statement) -> Run:
        """Return the run that a site (a probed instruction) belongs to, and make the site its last one.

        It is the open run with the same guard in the same basic block; else a new one is begun. Sites come in program
        order. guard: the site's predicate as written, None for all threads.
        """
        # See `__init__` for the numbers of places.
        place = 2 * statement.index + 1
        if self._next_border < place:
            self._pass_borders(place)
        block = self._block
        run = self._open.get(guard)
        # A run is full when its sums may become too large for an immediate.
        is_open = run is not None and run.block == block and run.most < _MOST_TOTAL
        if run is not None and is_open and (guard is None or self._holds(run, guard, statement.start)):
            run.last = statement
            return run
        run = self._open[guard] = Run(guard, statement, statement, block)
        self.runs.append(run)
        return run

    def add_site(self, statement: Statement, added: tuple[Added, ...]) -> None:
        """Count one site in the runs that it belongs to: one without a guard, one for the guard that it has, or both.

        added: from ``Additions.added``: what all probes of the site add together, and then each alone.
        """
        if statement.guard is None:
            self.at(None, statement).add(added[0])
            return
        # Probes that count the executing lanes add under the instruction's predicate, the others for every lane.
        for alone in added[1:]:
            probe, _ = alone.amounts[0]
            guard = statement.guard if probe.lanes is Lanes.EXECUTING else None
            self.at(guard, statement).add(alone)

    def add_all(self, indices: Sequence[int], added: Sequence[Added], begin: int, end: int) -> None:
        """Count many sites without a guard at once, with the same result as ``at`` and ``Run.add`` for each.

        indices: of the instructions among the body's statements, in text order; added: what is added at each. Of both
        lists the part from begin to end counts.
        """
        while begin < end:
            run = self.at(None, self._body.statement(indices[begin]))
            # The sites of one block at once: up to the first statement after the next border. Statement i is at place
            # 2 * i + 1, so it is after the border when i >= (border + 1) // 2.
            stop = bisect_left(indices, (self._next_border + 1) // 2, begin, end)
            counts = Counter(added[begin:stop])
            # The largest amount that one execution of the run adds to any sum stays a valid immediate.
            most = sum([one.most * count for one, count in counts.items()])
            if run.most + most < _MOST_TOTAL:
                run.most += most
                for one, count in counts.items():
                    run.counts[one] = run.counts.get(one, 0) + count
            else:
                # Too much for one run: one by one, so that `at` begins new runs where needed.
                for at in range(begin, stop):
                    self.at(None, self._body.statement(indices[at])).add(added[at])
            begin = stop

    def _pass_borders(self, place: int) -> None:
        """Go on to the block of a place (see ``__init__``), past the borders before it."""
        borders, block = self._borders, self._block
        while block < len(borders) and borders[block] < place:
            block += 1
        self._block = block
        self._next_border = borders[block] if block < len(borders) else _NO_BORDER

    def forks(self) -> list[Fork]:
        """The runs, by their index in ``runs``, around each conditional branch that is itself a site.

        That is: the run of the block that the branch ends, the run of the branch under its predicate, whose threads
        take it, and the run of the block after it, whose threads do not. Since each thread of the first is in one of
        the other two, ``plan_tallies`` can do without a counter for one of them.
        """
        forks: list[Fork] = []
        if all(run.guard is None for run in self.runs):
            return forks
        # The first run without a guard of each block.
        plain = {run.block: number for number, run in reversed(list(enumerate(self.runs))) if run.guard is None}
        for number, run in enumerate(self.runs):
            # A label right after the branch is one more border, so that no run has the next block's number: other
            # threads arrive there, too.
            if run.guard is None or run.block not in plain or run.block + 1 not in plain:
                continue
            if run.last.word == "bra":
                forks.append(Fork(plain[run.block], number, plain[run.block + 1]))
        return forks

    def _holds(self, run: Run, guard: str, start: int) -> bool:
        """Whether a guard is the same register with the same value at a position as at the run's last site.

        Only then does each thread execute either all sites of the run or none. start: of a later statement in the same
        block. False also where the register only may have changed: wherever the text between names it other than as a
        guard.
        """
        name = guard_register(guard)
        code = self._code
        at = code.find(name, run.last.start, start)
        while at >= 0:
            end = at + len(name)
            if not (_continues(code[end]) or _continues(code[at - 1]) or _is_guard(code, at)):
                return False
            at = code.find(name, end, start)
        # Only a brace that closes a scope can end the register's declaration, so that the name is another register's.
        if code.find("}", run.last.start, start) < 0:
            return True
        return self._body.declaration(name, run.first.start) == self._body.declaration(name, start)


def _continues(character: str) -> bool:
    """Return whether a character may be part of a register's name."""
    return character.isalnum() or character in "_$%"


def _is_guard(code: str, at: int) -> bool:
    """Whether the register whose name begins at a position is a guard: follows ``@`` or ``@!``."""
    at -= 1
    while code[at].isspace() or code[at] == "!":
        at -= 1
    return code[at] == "@"
