"""Code at the instructions of one body that probes match: the snippets before and behind each."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from neutrino.abi.levels import Level
from neutrino.errors import PtxError
from neutrino.probing.ir.probe_set import Probe, Snippet
from neutrino.probing.ir.statements import Save
from neutrino.probing.model import Lanes
from neutrino.ptx.analysis.additions import Additions, Parted, Run, Runs, row, sums_added_to, with_amounts
from neutrino.ptx.analysis.contraction import PRODUCT, Contractions
from neutrino.ptx.analysis.flow_graph import FlowGraph
from neutrino.ptx.analysis.linkage import Callee
from neutrino.ptx.analysis.matching import Hit, Locations
from neutrino.ptx.instrument.emission import Emission
from neutrino.ptx.instrument.module_variables import check_load
from neutrino.ptx.instrument.operands import LineOperands, SiteOperands
from neutrino.ptx.instrument.registers import Guard, UnsupportedError, bits
from neutrino.ptx.instrument.rewriting import ProbeFacts
from neutrino.ptx.instrument.twin import Shown, SiteList
from neutrino.ptx.isa.instruction import Instruction, guard_register
from neutrino.ptx.isa.opcodes import Flow
from neutrino.ptx.text.body import Body, Statement
from neutrino.ptx.text.edits import Edits, before, behind
from neutrino.ptx.text.module import Module


class RunWriter:
    """Gathers the additions of one body's sites, and writes them when all sites are known."""

    def __init__(
        self, body: Body, facts: ProbeFacts, additions: Additions, emission: Emission, edits: Edits
    ) -> None:
        self._body = body
        self._facts = facts
        self._additions = additions
        self._emission = emission
        self._edits = edits
        self._runs = Runs(body)

    def take(self, hit: Hit, parted: Parted) -> tuple[Probe, ...]:
        """Leave what only adds constants at a site to its run; the probes that are still to be written there."""
        statement = hit.statement
        added = self._additions.added(parted, statement)
        if added is None:
            return parted.all
        if statement.guard is None:
            self._runs.at(None, statement).add(added[0])
            return parted.others
        for one in added[1:]:
            under = statement.guard if one.amounts[0][0].lanes is Lanes.EXECUTING else None
            self._runs.at(under, statement).add(one)
        return parted.others

    def write(self, *, alone: bool) -> None:
        """Insert what sites in a row add up to; behind all other code of sites, which it stands before.

        alone: it is a kernel that calls no copies, so that its sums need not be known before a thread ends.
        """
        runs = self._runs.found
        tallied: dict[int, tuple[str | tuple[int, int], ...]] = {}
        if alone:
            for probe in {id(probe): probe for run in runs for probe, _ in run.totals.values()}.values():
                sums = sums_added_to(probe, self._emission.numbers)
                if self._emission.registers.may_tally(sums, probe.level):
                    tallied[id(probe)] = sums
            graph = FlowGraph(self._body)
            self._emission.sums.tally([row(run, tallied, graph) for run in runs], self._runs.forks())
        known: dict[tuple[str | None, tuple[str, ...], tuple[tuple[int, tuple[int, ...]], ...]], str] = {}
        for number, run in enumerate(runs):
            guard = Guard(guard_register(run.guard), "!" in run.guard) if run.guard is not None else None
            counted = tuple(self._emission.sums.add_row(number, guard))
            others = {probe: tuple(totals) for probe, (_, totals) in run.totals.items() if probe not in tallied}
            key = (run.guard, counted, tuple(others.items()))
            if key not in known:
                known[key] = before([*counted, *self._code(run, others, guard)])
            self._edits.insert(run.first.start, known[key])

    def _code(self, run: Run, totals: Mapping[int, tuple[int, ...]], guard: Guard | None) -> list[str]:
        """Of the probes that add for themselves. totals: what they add, by their ids."""
        lines: list[str] = []
        mark = self._emission.scratch.mark()
        for probe in self._facts.in_order(probe for probe, _ in run.totals.values() if id(probe) in totals):
            snippet = with_amounts(probe, totals[id(probe)])
            lines += self._emission.snippet(snippet, guard=guard, level=probe.level).all
        self._emission.scratch.release(mark)
        return lines


class Products:
    """The products of one body. edits, emission: what is written of it."""

    def __init__(self, module: Module, body: Body, edits: Edits, emission: Emission) -> None:
        self._module = module
        self._body = body
        self._edits = edits
        self._emission = emission
        self._copies: dict[int, str] = {}

    @cached_property
    def _contractions(self) -> Contractions:
        return Contractions(self._body)

    def clear_of(self, position: int) -> int:
        """The first place from position on for predicated stores: within no product and sum, no call sequence."""
        if not self._contractions:
            return position
        while True:
            spot = self._contractions.clear_of(position)
            sequence = self._body.call_sequence(spot)
            if sequence is not None and spot > sequence[0]:
                spot = sequence[1]
            if spot == position:
                return spot
            position = spot

    def copy_of(self, position: int, register: str, is_out: bool) -> str | None:
        """A register with the product that one of the program's holds at an instruction, None when none may be fused.

        is_out: as its result.
        """
        products = self._contractions
        found = products.at(position) if is_out else products.open_product(register, position)
        declared = self._body.declaration
        if found and not is_out and declared(register, found.start) != declared(register, position):
            found = None
        return self._private(found.start) if found else None

    def _private(self, position: int) -> str:
        """A register with the rounded product of the ``mul`` at a position, for probes alone."""
        if position in self._copies:
            return self._copies[position]
        statement = self._body.statement(self._body.index_at(position))
        instruction = statement.instruction
        kind = PRODUCT.match(instruction.opcode) if instruction else None
        if instruction is None or kind is None:
            raise PtxError(self._module.line(position), statement.text[:80], "not a multiplication")
        name = self._emission.product_copy(kind["type"])
        self._copies[position] = name
        opcode = "mul.rn" + instruction.opcode[len("mul") :]
        sources = ", ".join(instruction.operands[1:])
        lines = [f"{opcode} {name}, {sources};"]
        if instruction.predicate is not None:
            guard = Guard(instruction.predicate, instruction.negated)
            lines = [f"mov.b{bits(kind['type'])} {name}, {instruction.operands[0]};", guard.prefix + lines[0]]
        self._edits.ahead_of(statement.start, lines)
        self._emission.count_arithmetic(opcode)
        return name


_NEXT = re.compile(r"\n\s*(?:@|[a-z]\w*\.[a-z]|(?:ret|exit|trap)\s*\Z)", re.ASCII)
"""A line that begins as an instruction, within what goes on to the next semicolon. No operand looks so."""


class _Place(NamedTuple):
    """Where the code of one instruction's probes goes: before start and behind end."""

    hit: Hit
    start: int
    end: int


@dataclass(frozen=True)
class _Repeated:
    """Code before and behind an instruction that may stand at others too. stores: where stores may stand."""

    before: str
    behind: str
    stores: bool


class SiteWriter:
    """Writes the code of one body's sites, in text order.

    sites: told of each. variables: by name of a module variable, the register with its address. places: the lines of
    the source. points_to_constants: a generic load may mean a constant, which lies elsewhere for the twin.
    """

    def __init__(
        self,
        callee: Callee,
        facts: ProbeFacts,
        additions: Additions,
        emission: Emission,
        edits: Edits,
        sites: SiteList,
        *,
        variables: Mapping[str, str],
        places: Locations,
        points_to_constants: bool,
    ) -> None:
        self._module = callee.module
        self._code = callee.module.code
        self._body = callee.body
        self._facts = facts
        self._additions = additions
        self._emission = emission
        self._edits = edits
        self._sites = sites
        self._variables = variables
        self._places = places
        self._points_to_constants = points_to_constants
        self._calls = bool(callee.body.call_sequences)
        self._products = Products(self._module, self._body, edits, emission)
        self._runs = RunWriter(self._body, facts, additions, emission, edits)
        # Code of sites that depends on nothing but the opcode, the guard, the probes and the scratch registers in use.
        self._repeated: dict[tuple[str, str | None, int, tuple[int, ...]], _Repeated] = {}

    def write(self, hit: Hit) -> None:
        """Insert the snippets of the matching probes around one instruction, or around a call that it is part of.

        Raises UnsupportedError.
        """
        statement = hit.statement
        decoded, start, end = statement.mnemonic, statement.start, statement.end
        if decoded is None:
            raise PtxError(self._module.line(start), self._code[start : start + 80], "not an instruction")
        if self._code.find("\n", start, end - 1) >= 0:
            self._check_end(statement)
        if self._points_to_constants and decoded.text.startswith("ld"):
            check_load(statement, self._module.line(start))
        probes = hit.probes
        in_call = self._calls and self._body.call_sequence(statement.position) is not None
        if decoded.flow is None and not (in_call or hit.opens or hit.closes):
            # By far the most instructions: what only adds constants is counted, and often that is all.
            self._sites.add(statement, probes, hit.number)
            parted = self._additions.part(probes)
            if parted.adding:
                probes = self._runs.take(hit, parted)
            if probes:
                self._write(_Place(hit, start, end), probes)
            return
        place = _Place(hit, start, end)
        if in_call:
            place, probes = self._around_call(place)
        # A function may end the thread, so that nothing behind its call runs.
        stands_alone = place.start != start or decoded.flow is Flow.CALL
        if decoded.ends_block and any(probe.after for probe in probes):
            self._sites.leave_out(
                self._shown(statement), [probe for probe in probes if probe.after], "nothing runs behind it"
            )
            probes = tuple(probe for probe in probes if probe.before)
            stands_alone = True
        self._sites.add(statement, self._facts.in_order((*probes, *hit.opens)) if hit.opens else probes, hit.number)
        parted = self._additions.part(probes)
        probes = self._runs.take(hit, parted) if parted.adding and not stands_alone else parted.all
        if probes or hit.opens or hit.closes:
            self._write(place, probes)

    def _check_end(self, statement: Statement) -> None:
        text = statement.text
        if next_one := _NEXT.search(text, statement.position - statement.start + len(statement.opcode)):
            line = self._module.line(statement.start)
            raise PtxError(line, text[: next_one.start()], "no ';' before the next instruction")

    def _write(self, place: _Place, probes: tuple[Probe, ...]) -> None:
        """Insert the snippets of probes at a place, as they were written at an equal one where that may be."""
        hit = place.hit
        statement, guard = hit.statement, hit.statement.guard
        position, end = statement.position, statement.end
        # Behind an instruction that writes its own predicate other code goes than behind one that does not.
        plain = not hit.opens and not hit.closes and not (guard and guard_register(guard) in self._code[position:end])
        key = (statement.opcode, guard, id(probes), tuple(self._emission.scratch.mark().values()))
        repeated = self._repeated.get(key) if plain else None
        if repeated is not None and (not repeated.stores or self._is_clear(place)):
            self._edits.insert(place.start, repeated.before)
            self._edits.insert(place.end, repeated.behind)
            return
        instruction = statement.instruction
        if instruction is None or not self._code.startswith(";", end - 1):
            start = statement.start
            raise PtxError(self._module.line(start), self._code[start : start + 80], "not an instruction")
        code = self._insert(place, instruction, probes)
        if plain and code is not None:
            self._repeated[key] = code

    def write_runs(self, *, alone: bool) -> None:
        """Insert what sites only add up; when all of them are written. alone: as of ``RunWriter.write``."""
        self._runs.write(alone=alone)

    def _around_call(self, place: _Place) -> tuple[_Place, tuple[Probe, ...]]:
        """Where code goes, and of which probes, when the instruction belongs to a call: nothing goes inside."""
        hit = place.hit
        sequence = self._body.call_sequence(hit.statement.position)
        if sequence is None:
            return place, hit.probes
        is_call = hit.statement.word == "call"
        if not self._body.is_plain_call(sequence):
            detail = "shares its braces with other instructions" if is_call else "is part of a call sequence"
            raise UnsupportedError(f"{self._what(hit.statement)} {detail}")
        if is_call:
            return place._replace(start=sequence[0], end=sequence[1]), hit.probes
        # Not all threads that pass arguments come back: what moves them counts on its own side of the call.
        side = sequence[0] if hit.statement.opcode.startswith("st") else sequence[1]
        around = place._replace(start=side, end=side)
        lacking = [probe for probe in hit.probes if self._facts.reads_operands(probe)]
        reason = "it is part of a call, around which its operands are not known"
        self._sites.leave_out(self._shown(hit.statement), lacking, reason)
        return around, tuple(probe for probe in hit.probes if probe not in lacking) if lacking else hit.probes

    def _shown(self, statement: Statement) -> Shown:
        return Shown.of(statement, self._module, self._places)

    def _what(self, statement: Statement) -> str:
        """How errors call an instruction."""
        shown = self._shown(statement)
        return f"line {shown.line}: {shown.text!r}"

    def _is_clear(self, place: _Place) -> bool:
        """Stores may stand right before and right behind an instruction."""
        clear_of = self._products.clear_of
        return clear_of(place.start) == place.start and clear_of(place.end) == place.end

    def _insert(self, place: _Place, instruction: Instruction, probes: tuple[Probe, ...]) -> _Repeated | None:
        """Insert the code at one site; the code when it depends on opcode, guard and free registers alone."""
        hit, start, end = place.hit, place.start, place.end
        scratch = self._emission.scratch
        mark = scratch.mark()
        counted = dict(self._emission.arithmetic)
        waited = False
        operands = self._operands(instruction, hit, after=False)
        operands_after = self._operands(instruction, hit, after=True)
        guard = Guard(instruction.predicate, instruction.negated) if instruction.predicate else None
        guard_after = guard
        early: list[str] = []
        if guard is not None and guard.register in instruction.written and any(probe.after for probe in probes):
            copy = scratch.take("pred")
            early.append(f"mov.pred {copy}, {guard.register};")
            guard_after = Guard(copy, guard.negated)
        first: list[str] = []
        last: list[str] = []
        leaves = instruction.mnemonic.ends_block
        own = {id(probe) for probe in probes}
        closing = {id(probe): number for probe, number in hit.closes}
        asking = ""
        try:
            for probe in self._facts.in_order((*probes, *hit.opens)) if hit.opens else probes:
                if probe.before is None:
                    continue
                asking = probe.name
                if id(probe) in own:
                    mask = guard if probe.lanes is Lanes.EXECUTING else None
                    waited |= self._snippet(probe.before, operands, mask, start, first, level=probe.level)
                else:
                    at_line = LineOperands(hit.number, scratch)
                    waited |= self._snippet(probe.before, at_line, None, start, first, level=probe.level)
            ended = (probe for probe, _ in hit.closes)
            for probe in self._facts.in_order((*probes, *ended)) if closing else probes:
                if probe.after is None or (leaves and id(probe) in own):
                    continue
                asking = probe.name
                if id(probe) in own:
                    mask = guard_after if probe.lanes is Lanes.EXECUTING else None
                    waited |= self._snippet(probe.after, operands_after, mask, end, last, level=probe.level)
                else:
                    # Of lines that end with a branch the last place is before it.
                    at, lines = (start, first) if leaves else (end, last)
                    at_line = LineOperands(closing[id(probe)], scratch)
                    waited |= self._snippet(probe.after, at_line, None, at, lines, level=probe.level)
        except UnsupportedError as error:
            raise UnsupportedError(f"probe '{asking}' at {self._what(hit.statement)}: {error}") from None
        early += operands_after.early
        code = _Repeated(before([*first, *early]), behind(last), any(map(self._facts.must_be_clear, probes)))
        self._edits.insert(start, code.before)
        self._edits.insert(end, code.behind)
        if waited:
            return None
        scratch.release(mark)
        reads = operands.reads_operands or operands_after.reads_operands or early
        return None if reads or counted != self._emission.arithmetic else code

    def _operands(self, instruction: Instruction, hit: Hit, *, after: bool) -> SiteOperands:
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
        )

    def _snippet(
        self,
        snippet: Snippet,
        operands: SiteOperands | LineOperands,
        guard: Guard | None,
        at: int,
        lines: list[str],
        *,
        level: Level,
    ) -> bool:
        """Append one snippet's code; True when its stores wait further down for a product to be consumed."""
        spot = at
        saves = [statement for statement in snippet.straight if isinstance(statement, Save)]
        if any(save.map.kind.stores_at_sites for save in saves):
            spot = self._products.clear_of(at)
        if self._facts.is_collective(snippet) and self._products.clear_of(at) != at:
            raise UnsupportedError("an instruction between lanes would stand between a product and its sum")
        waits = spot != at
        operands.begin_snippet(guard)
        known = len(operands.here)
        code = self._emission.snippet(snippet, operands, guard, level=level, waits=waits)
        lines += operands.here[known:]
        lines += code.lines
        if waits:
            self._edits.insert(spot, behind(code.stores))
        else:
            lines += code.stores
        return waits
