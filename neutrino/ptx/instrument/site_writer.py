"""Code at the sites of one body, the instructions that probes match: the snippets before and after each."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from neutrino.abi.levels import Level
from neutrino.errors import PtxError
from neutrino.lazy import lazy
from neutrino.probing.ir.probe_set import Branching, Deferral, Probe, Snippet
from neutrino.probing.ir.structured import Save
from neutrino.probing.model import Lanes
from neutrino.ptx.analysis.additions import SiteGroup, SiteGroups, group_amounts, sums_added_to, with_amounts
from neutrino.ptx.analysis.flow_graph import FlowGraph
from neutrino.ptx.analysis.linkage import Callee
from neutrino.ptx.analysis.matching import Hit, Spot
from neutrino.ptx.analysis.register_values import Addresses, Pointers, PossibleValues, Sum
from neutrino.ptx.analysis.surroundings import Locations
from neutrino.ptx.instrument.emission import Emission
from neutrino.ptx.instrument.explicit_fma import Products
from neutrino.ptx.instrument.lanes_together import MATCHES, LaneMasks
from neutrino.ptx.instrument.log_code import DeferredSaves
from neutrino.ptx.instrument.map_code import ConstantAdds
from neutrino.ptx.instrument.registers import Guard, UnsupportedError, guarded
from neutrino.ptx.instrument.requests import RequestCode
from neutrino.ptx.instrument.rewriting import ProbeFacts
from neutrino.ptx.instrument.site_values import PlaceOperands, SiteOperands
from neutrino.ptx.instrument.twin import Shown
from neutrino.ptx.instrument.unlikely_code import Meetings, UnlikelyCode
from neutrino.ptx.isa.instruction import Instruction, guard_register, opcode_value
from neutrino.ptx.snippets.folding import BY_OPCODE, specialized
from neutrino.ptx.text.body import Body, Statement
from neutrino.ptx.text.inserted import Edits, Inserted, Label, Line, Lines, Scope, after, before, branches, op


class SiteGroupWriter:
    """Writes the code of probes that only add constants: not at each site, but once per group of sites
    (``additions.SiteGroup``: those that a thread executes all or none of), at its beginning.

    groups: of the body, None without any. edits: of the body, to insert the code.
    """

    def __init__(
        self, body: Body, groups: SiteGroups | None, facts: ProbeFacts, emission: Emission, edits: Edits
    ) -> None:  # fmt: skip
        """Set up a writer of code that adds constants, once per group of sites of a body. Parameters: see the class."""
        self._body = body
        self._groups = groups
        self._facts = facts
        self._emission = emission
        self._edits = edits

    def write(self, *, alone: bool) -> None:
        """Insert the code that adds constants, once for each group of sites (probed instructions that a thread executes
        all of).

        Called after all other code of sites, so that it stands right before them. alone: it is a kernel that calls no
        copies of functions, so that its sums need not be known before a thread ends. Then counters may be kept: a group
        adds to these, and the sums are computed from them at the end.
        """
        groups = self._groups.groups if self._groups is not None else []
        forks = self._groups.forks() if self._groups is not None and alone else []
        # By the id of each probe whose additions are counted so, the sums that it adds to.
        by_counters: dict[int, tuple[str | tuple[int, int], ...]] = {}
        if alone:
            # Each probe once, by its id.
            for probe in {id(probe): probe for group in groups for probe, _ in group.totals.values()}.values():
                sums = sums_added_to(probe, self._emission.numbers)
                if self._emission.registers.may_use_counters(sums, probe.level):
                    by_counters[id(probe)] = sums
            graph = FlowGraph(self._body) if groups else None
            rows = [group_amounts(group, by_counters, graph) for group in groups] if graph is not None else []
            self._emission.sums.choose_counters(rows, forks)
        # The code of the other probes, by the guard and what they add: many groups add the same, and share its text.
        code_of_others: dict[tuple[str | None, tuple[tuple[int, tuple[int, ...]], ...]], Lines] = {}
        for number, group in enumerate(groups):
            guard = Guard(guard_register(group.guard), "!" in group.guard) if group.guard is not None else None
            lines = self._emission.sums.count_group(number, guard)
            # Some probe of the group is not counted: its snippet is inserted, with the totals of the group.
            if not group.totals.keys() <= by_counters.keys():
                others = {
                    probe_id: tuple(totals)
                    for probe_id, (_, totals) in group.totals.items() if probe_id not in by_counters
                }  # fmt: skip
                key = (group.guard, tuple(others.items()))
                if key not in code_of_others:
                    code_of_others[key] = self._code(group, others, guard)
                lines += code_of_others[key]
            self._edits.insert_before(group.first.start, lines)

    def _code(self, group: SiteGroup, totals: Mapping[int, tuple[int, ...]], guard: Guard | None) -> Lines:
        """Return the code that adds what some probes add over all sites of a group, at once.

        totals: by the probe's id, what it adds over all sites, in the order of its amounts; other probes are left out.
        """
        lines: Lines = []
        # Saves may wait where a group begins.
        with self._emission.scratch.apart():
            for probe in self._facts.in_order(probe for probe, _ in group.totals.values() if id(probe) in totals):
                snippet = with_amounts(probe, totals[id(probe)])
                lines += self._emission.snippet(snippet, guard=guard, level=probe.level).all
        return lines


class Placed(NamedTuple):
    """Where the code of one instruction's probes goes: ``before`` snippets at the position start, ``after`` snippets at
    the position end, those of the instruction or of the call sequence that it is part of.

    probes: those whose code goes there; what others add is left to a group of sites.
    """

    hit: Hit
    start: int
    end: int
    probes: tuple[Probe, ...]

    @property
    def has_code(self) -> bool:
        """Whether probes have code of their own around this instruction, that is, not all is added for a group of sites
        at once."""
        return bool(self.probes or self.hit.opens or self.hit.closes)


@dataclass(frozen=True)
class _ReusableCode:
    """Code before and after an instruction that can be inserted at other ones as it is. stores: it holds code that must
    not stand between a product and a sum that ptxas fuses, so that this has to be checked. constant_adds: what is
    counted besides, as of ``Emission.snippet``."""

    before: Inserted
    after: Inserted
    stores: bool
    constant_adds: ConstantAdds


class WaitingSaves:
    """The saves (records of probes) of one body whose code is written at the last of several sites, since it is shorter
    than that of each.

    They go to logs in groups of lanes, or to tables in which few are counted; their sites lie in one basic block, and
    lanes that are apart do not meet between them.
    """

    def __init__(self, body: Body, products: Products, emission: Emission, edits: Edits, most: int) -> None:
        """Set up a writer of saves that collects those of several sites; none yet.

        most: of them. The others are those of ``SiteWriter``.
        """
        self._most = most
        self._body = body
        self._products = products
        self._emission = emission
        self._edits = edits
        self._groups = SiteGroups(body)
        self._meetings = Meetings(body)
        self._pointers = Pointers(body)
        self._addresses = Addresses(body)
        self._group: SiteGroup | None = None
        self._deferred: DeferredSaves | None = None
        # How many saves wait; and of the last site with one its index in the body, and where code after it goes.
        self._count = 0
        self._index = 0
        self._at = 0
        self._is_after = False
        # The state of the scratch registers before the first of them; None if others are in use for longer.
        self._mark: dict[str, int] | None = None
        # Whether no other save may join.
        self._is_closed = False

    def come_to(self, place: Placed) -> None:
        """Write the code of waiting saves (records of probes) that cannot wait any longer, since the code of another
        site comes next.

        place: the site (probed instruction) whose code is about to be written.
        """
        statement = place.hit.statement
        group = self._groups.group_of(None, statement)
        if self._count:
            meets = self._meetings.lie_between(self._index, statement.index)
            if group is not self._group or meets or self._is_closed or not self._may_wait(place):
                self.write()
        self._group = group

    def deferred(self, place: Placed, instruction: Instruction) -> DeferredSaves | None:
        """Return what collects the saves (records of probes) of a site to write them with those of later sites; None if
        they cannot wait.

        It is told what the site's addresses come from: those of the same kin (opcode and pointers) are expected to
        differ by one amount in all lanes, and sums of the same terms are known to, so that less has to be saved.
        """
        if not self._may_wait(place):
            return None
        kin = (instruction.opcode, self._pointers.of(instruction))

        def sum_of(address: tuple[str, int]) -> Sum | None:
            """Return an address (register and offset) as a sum of terms, so that addresses can be compared; None if it
            is not known."""
            register, offset = address
            found = self._addresses.of(register, place.hit.statement.index)
            return found and Sum(found.terms, (found.constant + offset) % (1 << 64))

        if self._deferred is None:
            self._deferred = DeferredSaves(kin, sum_of)
        self._deferred.kin, self._deferred.sum_of = kin, sum_of
        return self._deferred

    def _may_wait(self, place: Placed) -> bool:
        """Return whether the saves (records of probes) of a site may be written together with those of later sites.

        Those of a scattered access (each lane has loaded its address) may not, to a log: the lanes' addresses have
        nothing in common, so that all that wait with it would take the longer way.
        """
        instruction = place.hit.statement.instruction
        if instruction is None or not _is_plain(place):
            return False
        return not (self._emission.has_logs and self._addresses.is_scattered(instruction))

    def note(self, place: Placed, mark: dict[str, int], lines: Iterable[Line], *, waited: bool) -> bool:
        """Note that the code of a site (probed instruction) was written; return whether any of its saves still waits to
        be written.

        mark: the state of the scratch registers before. lines: the code. waited: registers stay in use for its stores.
        """
        before, deferred = self._count, self._deferred
        self._count = sum(len(saves) for saves in deferred.saves.values()) if deferred is not None else 0
        if not self._count:
            return False
        # The registers of the first of these saves on can be released once all are written, unless stores use some.
        if not before:
            self._mark = mark
        if waited:
            self._mark = None
        # Lanes may be apart after a branch.
        self._is_closed |= self._count >= self._most or branches(lines)
        if self._count == before:
            return False
        # Those that wait are written at this site at the earliest.
        statement = place.hit.statement
        ends_block = statement.mnemonic is not None and statement.mnemonic.ends_block
        self._index = statement.index
        self._is_after = any(probe.after for probe in place.probes) and not ends_block
        self._at = place.end if self._is_after else place.start
        return True

    def write(self) -> None:
        """Insert the code of the saves (records of probes) that wait, after the last of their sites; none waits any
        more then."""
        if self._deferred is None or not self._count:
            return
        scratch = self._emission.scratch
        lines = self._emission.save_all(self._deferred)
        spot = self._products.first_clear(self._at)
        self._edits.insert(spot, after(lines) if self._is_after or spot != self._at else before(lines))
        # Further down the registers may be in use by the code of other sites.
        if self._mark is not None and spot == self._at:
            scratch.release(self._mark)
        self._deferred, self._count, self._is_closed = None, 0, False


def _is_plain(place: Placed) -> bool:
    """Whether all code of a probed instruction stands right before or after it, and none is of probes on its source
    line."""
    statement = place.hit.statement
    return (place.start, place.end) == (statement.start, statement.end) and not place.hit.opens and not place.hit.closes


_Defer = Callable[[Deferral, SiteOperands, Guard | None, int, Lines], bool]
"""Has unlikely code run later: takes it, the values at the site, the guard, where its test goes and the lines there."""


class SiteWriter:
    """Writes the code of one body's sites (the instructions that probes match), in text order.

    edits: of the body, to insert the code. variables: by name of a module variable, the register with its address.
    places: the source lines of the body, for messages. together: so many saves of different sites may be written
    together, 0 for none.
    """

    def __init__(
        self,
        callee: Callee,
        facts: ProbeFacts,
        emission: Emission,
        edits: Edits,
        *,
        variables: Mapping[str, str],
        places: Locations,
        together: int,
    ) -> None:
        """Set up a writer of the probes' code at the sites of one body. Parameters: see the class."""
        self._module = callee.module
        self._code = callee.module.code
        self._body = callee.body
        self._facts = facts
        self._emission = emission
        self._edits = edits
        self._variables = variables
        self._places = places
        self._products = Products(self._module, self._body, edits, emission)
        # By the id of a snippet that asks for its instruction's opcode, and the opcode.
        self._snippets_by_opcode: dict[tuple[int, str], Snippet] = {}
        self._possible_values = PossibleValues(self._body)
        self._calls = frozenset(self._body.calls)
        # Code of sites that depends on nothing but these: opcode, guard, id of the probes, scratch registers in use.
        self._reusable: dict[tuple[str, str | None, int, tuple[int, ...]], _ReusableCode] = {}
        # What all threads count at sites, in text order: the instruction, and where its code goes.
        self._constant_adds: list[tuple[Statement, int, ConstantAdds]] = []
        self._waiting = WaitingSaves(self._body, self._products, emission, edits, together) if together else None
        self._unlikely = UnlikelyCode(self._body, self._products, emission, edits)
        self._requests = RequestCode(self._body, self._products, emission, edits)
        # The instruction whose code is being written; and its index, -1 at places between instructions.
        self._hit: Hit
        self._index = -1

    def write_snippets(self, place: Placed) -> bool:
        """Insert the code of probes around one instruction, reusing that of an equal instruction where possible.

        A kernel may have thousands. Returns whether the code depends on nothing but opcode, guard and probes, so that
        it is the same at every instruction with these. Raises UnsupportedError when a probe asks for what the
        instruction does not have.
        """
        hit = place.hit
        statement, guard = hit.statement, hit.statement.guard
        position, end = statement.position, statement.end
        if self._waiting is not None:
            self._waiting.come_to(place)
        self._unlikely.come_to(statement)
        self._requests.come_to(statement)
        # Not plain: code of source lines, or an instruction that names its own predicate as an operand. If it writes
        # it, other code goes after it than after one that does not.
        plain = not hit.opens and not hit.closes and not (guard and guard_register(guard) in self._code[position:end])
        key = (statement.opcode, guard, id(place.probes), tuple(self._emission.scratch.mark().values()))
        reusable = self._reusable.get(key) if plain else None
        if reusable is not None and (not reusable.stores or self._are_sides_clear(place)):
            self._edits.insert(place.start, reusable.before)
            self._edits.insert(place.end, reusable.after)
            if reusable.constant_adds:
                self._constant_adds.append((statement, place.start, reusable.constant_adds))
            return True
        instruction = statement.instruction
        if instruction is None:
            start = statement.start
            raise PtxError(self._module.line(start), self._code[start : start + 80], "not an instruction")
        code = self._insert(place, instruction)
        self._unlikely.leave()
        if not plain or code is None:
            return False
        self._reusable[key] = code
        return True

    def write_collected(self) -> None:
        """Insert the code that was only collected at sites (probed instructions): of saves that wait, and of constants
        that are added.

        The latter once for each group of sites that a thread executes all or none of, before the first of them. Called
        after all other code of sites.
        """
        if self._waiting is not None:
            self._waiting.write()
        self._unlikely.write()
        self._requests.write()
        if not self._constant_adds:
            return
        groups = SiteGroups(self._body)
        totals: dict[int, tuple[int, ConstantAdds]] = {}
        for statement, position, constant_adds in self._constant_adds:
            _, total = totals.setdefault(id(groups.group_of(None, statement)), (position, {}))
            for cell, amount in constant_adds.items():
                total[cell] = total.get(cell, 0) + amount
        for position, total in totals.values():
            self._edits.insert_before(position, self._emission.add_constants(total))

    @lazy
    def _straight(self) -> int:
        """How many of the body's statements, from the first on, warps execute with all of their lanes, and once."""
        return FlowGraph(self._body).straight if self._emission.fills_warps else 0

    def _describe(self, statement: Statement) -> str:
        """Return an instruction in the words of error messages: line and text."""
        shown = Shown.of(statement, self._module, self._places)
        return f"line {shown.line}: {shown.text!r}"

    def may_exchange(self, position: int) -> bool:
        """Whether instructions between lanes may stand at a position if they have no predicate."""
        return self._products.may_exchange(position, None)

    def is_clear(self, position: int) -> bool:
        """Whether stores, and instructions between lanes, may be inserted at a position, whatever their predicate.

        They may not between a product and a sum that ptxas may fuse.
        """
        return self._products.first_clear(position) == position

    def _are_sides_clear(self, place: Placed) -> bool:
        """Whether stores may be inserted right before and right after an instruction, without keeping ptxas from fusing
        others."""
        return self.is_clear(place.start) and self.is_clear(place.end)

    def _insert(self, place: Placed, instruction: Instruction) -> _ReusableCode | None:
        """Write and insert the code of all probes around one instruction, those on source lines that begin or end with
        it included.

        Returns the code when it depends on opcode, guard and free registers alone, else None. Raises UnsupportedError
        when a probe asks for what the instruction does not have.
        """
        hit, start, end, probes = place.hit, place.start, place.end, place.probes
        self._hit, self._index = hit, hit.statement.index
        scratch = self._emission.scratch
        mark = scratch.mark()
        # Whether stores of some snippet went further down.
        waited = False
        guard = Guard(instruction.predicate, instruction.negated) if instruction.predicate else None
        guard_after = guard
        # Code before the instruction that the snippets after it need: copies of registers that it overwrites, here of
        # its own predicate.
        early: Lines = []
        if guard is not None and guard.register in instruction.written and any(probe.after for probe in probes):
            copy = scratch.take("pred")
            early.append(op("mov.pred", copy, guard.register))
            guard_after = Guard(copy, guard.negated)
        # The code right before and right after the instruction. After one that ends its basic block nothing can go.
        first: Lines = []
        last: Lines = []
        masks_before, masks_after = LaneMasks(first), LaneMasks(last)
        operands = self._operands(instruction, hit, masks_before, after=False)
        operands_after = self._operands(instruction, hit, masks_after, after=True)
        leaves = instruction.mnemonic.ends_block
        # Unlikely code of a call or of source lines is not deferred.
        may_defer = _is_plain(place) and hit.statement.index not in self._calls
        deferrals = self._unlikely.count, self._requests.count

        def joins(snippet: Snippet, guard: Guard | None) -> bool:
            """Leave a snippet to the code of several sites, if it can be."""
            return may_defer and self._requests.fits(snippet) and self._requests.add(
                snippet, lambda: self._operands(instruction, hit, LaneMasks([]), after=False), instruction, guard, hit,
                start,
            )  # fmt: skip

        def defer(*, after: bool) -> _Defer | None:
            """Return what has unlikely code of one side run later."""
            return functools.partial(self._defer, instruction, hit, after) if may_defer else None

        # Ids of the probes of the instruction itself; the others are those of source lines. Of those whose lines end
        # here: what SITE is, the number of the line's first instruction.
        own = {id(probe) for probe in probes}
        # Around a call nothing is left for later: a thread may end in it.
        constant_adds: ConstantAdds | None = None if hit.statement.index in self._calls else {}
        deferred = self._waiting.deferred(place, instruction) if self._waiting is not None else None
        line = functools.partial(self._line, hit.statement.position)
        closing = {id(probe): number for probe, number in hit.closes}
        # The name of the probe whose snippet is being written, for the message.
        asking = ""
        try:
            for probe in self._facts.in_order((*probes, *hit.opens)) if hit.opens else probes:
                if probe.before is None:
                    continue
                asking = probe.name
                if id(probe) in own:
                    own_guard = guard if probe.lanes is Lanes.EXECUTING else None
                    if joins(probe.before, own_guard):
                        continue
                    waited |= self._snippet(
                        probe.before, operands, own_guard, start, first, constant_adds,
                        level=probe.level, deferred=deferred, defer=defer(after=False)
                    )
                else:
                    at_line = PlaceOperands("a source line", hit.number, line, scratch, masks_before)
                    waited |= self._snippet(probe.before, at_line, None, start, first, constant_adds, level=probe.level)
            ended = (probe for probe, _ in hit.closes)
            for probe in self._facts.in_order((*probes, *ended)) if closing else probes:
                if probe.after is None or (leaves and id(probe) in own):
                    continue
                asking = probe.name
                if id(probe) in own:
                    own_guard = guard_after if probe.lanes is Lanes.EXECUTING else None
                    waited |= self._snippet(
                        probe.after, operands_after, own_guard, end, last, constant_adds,
                        level=probe.level, deferred=deferred, defer=defer(after=True)
                    )
                else:
                    # Of lines that end with a branch the last place is before it.
                    at, lines, masks = (start, first, masks_before) if leaves else (end, last, masks_after)
                    at_line = PlaceOperands("a source line", closing[id(probe)], line, scratch, masks)
                    waited |= self._snippet(probe.after, at_line, None, at, lines, constant_adds, level=probe.level)
        except UnsupportedError as error:
            message = f"probe '{asking}' at {self._describe(hit.statement)}: {error}"
            raise UnsupportedError(message, error.remedy) from None
        early += operands_after.early
        first[:0], last[:0] = masks_before.first, masks_after.first
        stores = any(map(self._facts.must_be_clear, probes))
        code = _ReusableCode(before([*first, *early]), after(last), stores, constant_adds or {})
        self._edits.insert(start, code.before)
        self._edits.insert(end, code.after)
        if constant_adds:
            self._constant_adds.append((hit.statement, start, constant_adds))
        if self._waiting is not None and self._waiting.note(place, mark, [*first, *last], waited=waited):
            return None
        if waited:
            # The registers stay in use: stores further down still read them.
            return None
        scratch.release(mark)
        if (self._unlikely.count, self._requests.count) != deferrals:
            return None
        return None if operands.reads_operands or operands_after.reads_operands or early else code

    def write_spot(self, spot: Spot) -> None:
        """Insert the code of probes at a place between instructions, such as the head of a loop. Raises
        UnsupportedError."""
        self._index = -1
        scratch = self._emission.scratch
        mark = scratch.mark()
        guard = Guard(guard_register(spot.guard), "!" in spot.guard) if spot.guard is not None else None
        lines: Lines = []
        masks = LaneMasks(lines)
        operands = PlaceOperands(
            "a place between instructions", spot.number, functools.partial(self._line, spot.at), scratch, masks
        )
        waited = False
        for probe in spot.probes:
            snippet = probe.after if spot.is_end else probe.before
            if snippet is None:
                continue
            try:
                waited |= self._snippet(snippet, operands, guard, spot.position, lines, None, level=probe.level)
            except UnsupportedError as error:
                line = self._module.line(spot.at)
                message = f"probe '{probe.name}' at line {line}: {spot.text!r}: {error}"
                raise UnsupportedError(message, error.remedy) from None
        self._edits.insert(spot.position, before(masks.first + lines))
        # As at instructions: stores further down still read the registers.
        if not waited:
            scratch.release(mark)

    def _for_opcode(self, snippet: Snippet, instruction: Instruction) -> Snippet:
        """Return a snippet (a probe's code) as it is at an instruction: without the branches that its opcode rules out.
        """
        if snippet.operands_of_site.isdisjoint(BY_OPCODE):
            return snippet
        key = (id(snippet), instruction.opcode)
        if key not in self._snippets_by_opcode:
            self._snippets_by_opcode[key] = specialized(
                snippet, lambda operand: opcode_value(instruction, operand.name, operand.element) or 0
            )
        return self._snippets_by_opcode[key]

    def _operands(self, instruction: Instruction, hit: Hit, masks: LaneMasks, *, after: bool) -> SiteOperands:
        """Return the object that looks up names in a snippet (a probe's code), such as ADDR, the instruction's address.

        hit: where the probe applies. after: whether the snippet runs after the instruction. masks: the lanes that run
        it.
        """
        position = hit.statement.position
        return SiteOperands(
            instruction,
            self._body,
            position,
            self._emission.scratch,
            after=after,
            module_addresses=self._variables,
            product=functools.partial(self._products.copy_of, position),
            site=hit.number or 0,
            line=functools.partial(self._line, hit.statement.position),
            choices=self._possible_values.of,
            masks=masks,
        )

    def _defer(
        self, instruction: Instruction, hit: Hit, after: bool, deferral: Deferral, operands: SiteOperands,
        guard: Guard | None, at: int, lines: Lines,
    ) -> bool:  # fmt: skip
        """Have the unlikely code of a snippet run later; see ``UnlikelyCode.add``. after: its side."""
        masks = LaneMasks([])
        values = self._operands(instruction, hit, masks, after=after)
        return self._unlikely.add(deferral, operands, values, masks, guard, hit, at, lines)

    def _branch(
        self, branching: Branching, instruction: Instruction, guard: Guard | None, lines: Lines, *, after: bool
    ) -> bool:  # fmt: skip
        """Append the code of a snippet, whose last part stands behind a branch, to lines; return False, and append
        nothing, where it reads what the instruction overwrites, or lanes cannot agree on the way.

        guard: as of ``_snippet``. Before code that reads a clock threads branch whether it holds or not, so that all of
        a warp may do so alike. after: the snippet's side.
        """
        emission = self._emission
        if not branching.is_clocked and emission.architecture < MATCHES:
            return False
        values = self._operands(instruction, self._hit, LaneMasks([]), after=after)
        values.begin_snippet(guard)
        tests, (condition,) = emission.conditions(branching.test, [branching.condition], values, guard)
        given: dict[str, str] = {}
        inside = guard
        if not branching.is_clocked:
            # All lanes that are here go one way: ptxas writes code between lanes better where they do not part.
            condition = guarded(condition, guard, emission.scratch.take, tests)
            given[branching.condition.name], inside = condition, None
            here, condition = emission.scratch.take("b32"), emission.scratch.take("pred")
            tests += [op("activemask.b32", here), op("vote.sync.any.pred", condition, *given.values(), here)]
        with emission.block.apart():
            code = emission.snippet(branching.inside, values, inside, level=Level.THREAD, given=given)
        if values.early:
            return False
        end = f"${emission.prefix.removeprefix('%')}likely"
        lines += [
            *values.here, *tests, Scope.OPEN, op("bra", end, when=f"!{condition}"), *code.all, Label(end), Scope.CLOSE,
        ]  # fmt: skip
        return True

    def _line(self, position: int) -> int:
        """Return the source line of the instruction at a position, 0 where the text does not say."""
        place = self._places.place(position)
        return place.line if place is not None else 0

    def _snippet(
        self,
        snippet: Snippet,
        operands: SiteOperands | PlaceOperands,
        guard: Guard | None,
        at: int,
        lines: Lines,
        constant_adds: ConstantAdds | None,
        *,
        level: Level,
        deferred: DeferredSaves | None = None,
        defer: _Defer | None = None,
    ) -> bool:
        """Append the code of one snippet (a probe's code) to lines; return whether its stores are inserted elsewhere,
        further down.

        They are where lines go between a product and its sum, which stores would part. operands: give the values of
        helpers. guard: of the threads that the snippet is for, None for all. at: the position where lines will be
        inserted. constant_adds, deferred: see ``Emission.snippet``. defer: has unlikely code run later, if it can.
        Raises UnsupportedError.
        """
        original = snippet
        if isinstance(operands, SiteOperands):
            snippet = self._for_opcode(snippet, operands.instruction)
        # Where the stores go.
        spot = at
        saves = [statement for statement in snippet.straight if isinstance(statement, Save)]
        if any(save.map.kind.stores_at_sites for save in saves):
            spot = self._products.first_clear(at)
        if self._facts.is_collective(original) and not self._products.may_exchange(at, guard):
            raise UnsupportedError("an instruction between lanes would stand between a product and its sum")
        waits = spot != at
        operands.begin_snippet(guard)
        deferral = snippet.deferral
        if (
            defer is not None and deferral is not None and isinstance(operands, SiteOperands)
            and defer(deferral, operands, guard, at, lines)
        ):  # fmt: skip
            if deferral.here is None:
                return False
            snippet = deferral.here
        elif original.deferral is not None:
            # What waits comes first, since this code may read what that changes.
            self._unlikely.write()
        if (
            snippet.branching is not None and isinstance(operands, SiteOperands) and self.is_clear(at)
            and self._branch(
                snippet.branching, operands.instruction, guard, lines, after=at != self._hit.statement.start
            )
        ):  # fmt: skip
            operands.reads_operands = True
            return False
        # Of the code for helpers' values, what earlier snippets at the site asked for is in lines already.
        already_inserted = len(operands.here)
        code = self._emission.snippet(
            snippet, operands, guard, level=level, waits=waits, constant_adds=constant_adds, deferred=deferred,
            is_whole="ELECTED" in snippet.operands_of_site and 0 <= self._index < self._straight,
        )
        lines += operands.here[already_inserted:]
        lines += code.lines
        if waits:
            self._edits.insert(spot, after(code.stores))
        else:
            lines += code.stores
        return waits
