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


class SplitProbes(NamedTuple):
    """The probes of one instruction by what they do there: those that only add constants, the others, and all."""

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
        # The results of `split`, by the id of the probes, of `added` and of `added_by_opcode`.
        self._split: dict[int, SplitProbes] = {}
        self._added: dict[tuple[Mnemonic | None, int], tuple[Added, ...] | None] = {}
        self._by_opcode: dict[tuple[Mnemonic, int], Added | None] = {}

    def split(self, probes: tuple[Probe, ...]) -> SplitProbes:
        """Separate the probes of one instruction into those that only add constants, which need no code at each site,
        and the others.

        Returns the same object for the same tuple, so that callers can cache by its id.
        """
        split = self._split.get(id(probes))
        # The id may be that of an earlier tuple, which is gone.
        if split is None or split.all is not probes:
            adding = tuple(probe for probe in probes if id(probe) in self._adding)
            others = tuple(probe for probe in probes if id(probe) not in self._adding)
            split = self._split[id(probes)] = SplitProbes(adding, others, probes)
        return split

    def added(self, split: SplitProbes, statement: Statement) -> tuple[Added, ...] | None:
        """Return which constants an instruction's probes add to registers and fields of maps each time it is executed.

        An ``Added`` holds probes with their amounts. The first is for all probes together, for instructions where all
        count the same threads; then comes one for each probe alone, for instructions with a guard (predicate), where
        some count only the threads that execute it. split: the probes of the instruction, from ``split``. None where
        the instruction's text does not give an amount, such as the bytes of a bulk copy. The opcode alone decides:
        results are cached by it.
        """
        key = (statement.mnemonic, id(split))
        added = self._added.get(key)
        if added is None and key not in self._added:
            added = self._added[key] = _added(split.adding, statement)
        return added

    def added_by_opcode(self, probes: tuple[Probe, ...], body: Body, opcode: Mnemonic) -> Added | None:
        """Return which constants these probes add at any instruction with this opcode; None when they do more than add
        constants.

        It is enough to look at one instruction of the body with that opcode; the result holds in all bodies.
        """
        key = (opcode, id(probes))
        if key not in self._by_opcode:
            split = self.split(probes)
            sample = body.statement(body.mnemonics.index(opcode))
            added = None if split.others else self.added(split, sample)
            # The first is for all of the probes together.
            self._by_opcode[key] = added[0] if added is not None else None
        return self._by_opcode[key]

    def _only_adds(self, probe: Probe) -> bool:
        """Return whether all that a probe's code does is to add constants to sums."""
        statements = _statements(probe)
        return bool(statements) and all(self._adds(statement) for statement in statements)

    def _adds(self, statement: Assembly | Save) -> bool:
        """Whether a statement of a probe does nothing but add constants to a sum, unconditionally.

        The sum must be one that no probe's code at an instruction reads, so that it can be brought up to date later.
        """
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
    """Whether an operand is a constant that a probe may add: a small number, or one that the program's instruction
    determines.

    The latter are, for example, ``BYTES``, the bytes that it accesses.
    """
    if text.isdecimal():
        return text == "0" or (text[0] != "0" and len(text) < len(str(_MOST_TOTAL)))
    return text in _AMOUNTS or (text.startswith("HAS.") and text != "HAS.")


def _added_to(statement: Assembly) -> Register | None:
    """The register that an instruction of the form ``add %r, %r, amount`` adds to; None for any other instruction.

    None also for a register that is local to a snippet (a probe's code at one place): it has no value from one site to
    the next.
    """
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
    """Compute which constants probes add at an instruction: all probes together first, then each alone.

    This is what ``Additions.added`` caches. probes: those that only add constants. None where an amount is not known.
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


def group_amounts(group: SiteGroup, sums: Mapping[int, Sequence[str | tuple[int, int]]], graph: FlowGraph) -> Row:
    """Return the constants that a group of sites (probed instructions, counted at once) adds to each sum when it is
    executed.

    ``plan_counters`` chooses the counters for such rows. sums: by the probe's id, the sums that it adds to, from
    ``sums_added_to``; probes that are not in it are left out. graph: of the body that the group is in.
    """
    by_sum: dict[Hashable, int] = {}
    for probe_id, (_, totals) in group.totals.items():
        # Not strict for a probe that is left out: it has totals and no sums.
        for name, amount in zip(sums.get(probe_id, ()), totals, strict=probe_id in sums):
            if amount:
                by_sum[name] = by_sum.get(name, 0) + amount
    index = group.first.index
    # Under a guard not every thread that comes to the group adds.
    return Row(by_sum, graph.runs_once(index), group.guard is None and graph.runs_always(index))


def with_amounts(probe: Probe, totals: Iterable[int]) -> Snippet:
    """Return a copy of a probe's code that adds other constants: what the probe adds at several instructions, at once.

    It is inserted once for a group of sites. totals: the constants, in the order of the probe's own (``amounts``).
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
    """Return the sums (accumulators) that a probe adds constants to, in the order of its constants (``amounts``).

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
class SiteGroup:
    """Sites (probed instructions) that each thread executes all or none of, so that what probes add at all of them is
    added at the first.

    guard: the predicate of all of them as written, None without one. first, last: the instructions of the first and the
    latest site (last is not kept up to date for groups without a guard). block: the number of the basic block, as
    ``SiteGroups`` counts them. counts: what is added, and at how many sites. most: no sum gets more than that over all
    sites.
    """

    guard: str | None
    first: Statement
    last: Statement
    block: int
    most: int = 0
    counts: dict[Added, int] = field(default_factory=dict)

    def add(self, added: Added) -> None:
        """Add one more site (probed instruction) to this group. added: the constants that its probes add there."""
        self.most += added.most
        self.counts[added] = self.counts.get(added, 0) + 1

    @lazy
    def totals(self) -> dict[int, tuple[Probe, list[int]]]:
        """Return for each probe what one execution of this group of sites adds in all: by the probe's id, the probe and
        its constants, summed over the sites, in the order of ``amounts``.

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


class SiteGroups:
    """Divides the sites (probed instructions) of one body into groups of which a thread executes all or none: those of
    one basic block and one guard (predicate) that keeps its value.

    Sites come in text order. groups: those so far, in the order of their first sites. A border is where one basic block
    ends and the next begins; calls are borders, too.
    """

    def __init__(self, body: Body) -> None:
        """Begin to divide the probed instructions of a body into groups that are counted at once. body: the function's
        text."""
        self._body = body
        self._code = body.code
        # By guard, the latest group, which further sites may be added to.
        self._open: dict[str | None, SiteGroup] = {}
        # Places in the body: statement i is at 2 * i + 1, the gap before it at 2 * i. A label's border is the gap
        # before its statement; that of a branch is at the branch itself, which still belongs to the block that it ends.
        # Labels that no branch goes to, as those of debug information, are none.
        labels = {2 * label.before for found in branch_labels(body).values() for label in found}
        self._borders = sorted([*(2 * index + 1 for index in body.controls), *labels])
        # The number of borders that were passed, which numbers the current block, and the place of the next one.
        self._block = 0
        self._next_border = self._borders[0] if self._borders else _NO_BORDER
        self.groups: list[SiteGroup] = []

    def group_of(self, guard: str | None, statement: Statement) -> SiteGroup:
        """Return the group that a site (a probed instruction) belongs to, begun here if need be, and note the site as
        its last one.

        A group's sites have the same guard and lie in the same basic block. Sites come in program order. guard: the
        site's predicate as written, None for all threads.
        """
        # See `__init__` for the numbers of places.
        place = 2 * statement.index + 1
        if self._next_border < place:
            self._pass_borders(place)
        block = self._block
        group = self._open.get(guard)
        # A group is full when its sums may become too large for an immediate.
        is_open = group is not None and group.block == block and group.most < _MOST_TOTAL
        if group is not None and is_open and (guard is None or self._keeps_value(group, guard, statement.start)):
            group.last = statement
            return group
        group = self._open[guard] = SiteGroup(guard, statement, statement, block)
        self.groups.append(group)
        return group

    def add_site(self, statement: Statement, added: tuple[Added, ...]) -> None:
        """Add a probed instruction to the group of unpredicated instructions or to that of its predicate, or one probe
        to each.

        A group is instructions of one basic block and predicate whose probes' additions are made at once. A probe that
        counts executing lanes adds under the instruction's predicate, others add for every lane. added: from
        ``Additions.added``: what all probes of the instruction add together, and then each alone.
        """
        if statement.guard is None:
            of_all_probes = added[0]
            self.group_of(None, statement).add(of_all_probes)
            return
        for alone in added[1:]:
            probe, _ = alone.amounts[0]
            guard = statement.guard if probe.lanes is Lanes.EXECUTING else None
            self.group_of(guard, statement).add(alone)

    def add_all(self, indices: Sequence[int], added: Sequence[Added], begin: int, end: int) -> None:
        """Add many unpredicated probed instructions to their groups at once; the result is that of ``SiteGroup.add``
        for each.

        indices: of the instructions among the body's statements, in text order; added: what is added at each. Of both
        lists the part from begin to end counts.
        """
        while begin < end:
            group = self.group_of(None, self._body.statement(indices[begin]))
            # The sites of one block at once: up to the first statement after the next border. Statement i is at place
            # 2 * i + 1, so it is after the border when i >= (border + 1) // 2.
            stop = bisect_left(indices, (self._next_border + 1) // 2, begin, end)
            counts = Counter(added[begin:stop])
            # The largest amount that one execution of the group adds to any sum stays a valid immediate.
            most = sum([one.most * count for one, count in counts.items()])
            if group.most + most < _MOST_TOTAL:
                group.most += most
                for one, count in counts.items():
                    group.counts[one] = group.counts.get(one, 0) + count
            else:
                # Too much for one group: one by one, so that `group_of` begins new groups where needed.
                for at in range(begin, stop):
                    self.group_of(None, self._body.statement(indices[at])).add(added[at])
            begin = stop

    def _pass_borders(self, place: int) -> None:
        """Make the basic block that a place lies in the current one: go past all block borders before the place."""
        borders, block = self._borders, self._block
        while block < len(borders) and borders[block] < place:
            block += 1
        self._block = block
        self._next_border = borders[block] if block < len(borders) else _NO_BORDER

    def forks(self) -> list[Fork]:
        """Find the conditional branches with a group of probed instructions before, under and after them; give the
        groups' indices.

        That is: the group of the block that the branch ends, the group of the branch under its predicate, whose threads
        take it, and the group of the block after it, whose threads do not. Since each thread of the first is in one of
        the other two, ``plan_counters`` can do without a counter for one of them.
        """
        forks: list[Fork] = []
        if all(group.guard is None for group in self.groups):
            return forks
        # The first group without a guard of each block.
        plain = {group.block: number for number, group in reversed(list(enumerate(self.groups))) if group.guard is None}
        for number, group in enumerate(self.groups):
            # A label right after the branch is one more border, so that no group has the next block's number: other
            # threads arrive there, too.
            if group.guard is None or group.block not in plain or group.block + 1 not in plain:
                continue
            if group.last.word == "bra":
                forks.append(Fork(plain[group.block], number, plain[group.block + 1]))
        return forks

    def _keeps_value(self, group: SiteGroup, guard: str, start: int) -> bool:
        """Whether a predicate has not changed between a group's last instruction and a later position in the same basic
        block.

        Only then does each thread execute either all sites of the group or none. guard: the predicate as written;
        start: the position. False also where the register only may have changed: wherever the text between names it
        other than as a guard.
        """
        name = guard_register(guard)
        code = self._code
        at = code.find(name, group.last.start, start)
        while at >= 0:
            end = at + len(name)
            if not (_continues(code[end]) or _continues(code[at - 1]) or _is_guard(code, at)):
                return False
            at = code.find(name, end, start)
        # Only a brace that closes a scope can end the register's declaration, so that the name is another register's.
        if code.find("}", group.last.start, start) < 0:
            return True
        return self._body.declaration(name, group.first.start) == self._body.declaration(name, start)


def _continues(character: str) -> bool:
    """Return whether a character next to a register's name makes it another, longer name."""
    return character.isalnum() or character in "_$%"


def _is_guard(code: str, at: int) -> bool:
    """Whether a register's name, which begins at a position, stands there as the predicate of an instruction: after
    ``@`` or ``@!``."""
    at -= 1
    while code[at].isspace() or code[at] == "!":
        at -= 1
    return code[at] == "@"
