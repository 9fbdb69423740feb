"""Code at the instructions of one body that probes match: the snippets before and behind each."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from neutrino.abi.levels import Level
from neutrino.errors import PtxError
from neutrino.probing.ir.probe_set import Probe, Snippet
from neutrino.probing.ir.statements import Save
from neutrino.probing.model import Lanes
from neutrino.ptx.analysis.additions import Run, Runs, row, sums_added_to, with_amounts
from neutrino.ptx.analysis.contraction import PRODUCT, Contractions
from neutrino.ptx.analysis.flow_graph import FlowGraph
from neutrino.ptx.analysis.linkage import Callee
from neutrino.ptx.analysis.matching import Hit, Locations
from neutrino.ptx.instrument.emission import Emission
from neutrino.ptx.instrument.operands import LineOperands, SiteOperands
from neutrino.ptx.instrument.registers import Guard, UnsupportedError, bits
from neutrino.ptx.instrument.rewriting import ProbeFacts
from neutrino.ptx.instrument.twin import Shown
from neutrino.ptx.isa.instruction import Instruction, guard_register
from neutrino.ptx.text.body import Body, Statement
from neutrino.ptx.text.edits import Edits, after, before
from neutrino.ptx.text.module import Module


class RunWriter:
    """Writes what the sites of one body add up to in their runs."""

    def __init__(self, body: Body, runs: Runs | None, facts: ProbeFacts, emission: Emission, edits: Edits) -> None:
        self._body = body
        self._runs = runs
        self._facts = facts
        self._emission = emission
        self._edits = edits

    def write(self, *, alone: bool) -> None:
        """Insert what sites in a row add up to; behind all other code of sites, which it stands before.

        alone: it is a kernel that calls no copies, so that its sums need not be known before a thread ends.
        """
        runs = self._runs.runs if self._runs is not None else []
        forks = self._runs.forks() if self._runs is not None and alone else []
        tallied: dict[int, tuple[str | tuple[int, int], ...]] = {}
        if alone:
            for probe in {id(probe): probe for run in runs for probe, _ in run.totals.values()}.values():
                sums = sums_added_to(probe, self._emission.numbers)
                if self._emission.registers.may_tally(sums, probe.level):
                    tallied[id(probe)] = sums
            graph = FlowGraph(self._body) if runs else None
            rows = [row(run, tallied, graph) for run in runs] if graph is not None else []
            self._emission.sums.tally(rows, forks)
        # Code of probes that add for themselves, by the guard and what they add.
        known: dict[tuple[str | None, tuple[tuple[int, tuple[int, ...]], ...]], list[str]] = {}
        for number, run in enumerate(runs):
            guard = Guard(guard_register(run.guard), "!" in run.guard) if run.guard is not None else None
            lines = self._emission.sums.add_row(number, guard)
            if not run.totals.keys() <= tallied.keys():
                others = {probe: tuple(totals) for probe, (_, totals) in run.totals.items() if probe not in tallied}
                key = (run.guard, tuple(others.items()))
                if key not in known:
                    known[key] = self._code(run, others, guard)
                lines += known[key]
            self._edits.insert_before(run.first.start, lines)

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
            spot = self._contractions.first_clear(position)
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
        self._edits.insert_before(statement.start, lines)
        self._emission.count_arithmetic(opcode)
        return name


class Placed(NamedTuple):
    """Where the code of one instruction's probes goes: before start and behind end.

    probes: those whose code goes there; what others add is left to a run of sites.
    """

    hit: Hit
    start: int
    end: int
    probes: tuple[Probe, ...]

    @property
    def has_code(self) -> bool:
        """Not all is left to a run."""
        return bool(self.probes or self.hit.opens or self.hit.closes)


@dataclass(frozen=True)
class _Repeated:
    """Code before and behind an instruction that may stand at others too. stores: where stores may stand."""

    before: str
    behind: str
    stores: bool


class SiteWriter:
    """Writes the code of one body's sites, in text order.

    variables: by name of a module variable, the register with its address. places: the lines of the source.
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
    ) -> None:
        self._module = callee.module
        self._code = callee.module.code
        self._body = callee.body
        self._facts = facts
        self._emission = emission
        self._edits = edits
        self._variables = variables
        self._places = places
        self._products = Products(self._module, self._body, edits, emission)
        # Code of sites that depends on nothing but the opcode, the guard, the probes and the scratch registers in use.
        self._repeated: dict[tuple[str, str | None, int, tuple[int, ...]], _Repeated] = {}

    def write_snippets(self, place: Placed) -> bool:
        """Insert the snippets of probes at a place, as they were written at an equal one where that may be.

        Whether equal ones are equal by opcode and guard alone. Raises UnsupportedError.
        """
        hit = place.hit
        statement, guard = hit.statement, hit.statement.guard
        position, end = statement.position, statement.end
        # Behind an instruction that writes its own predicate other code goes than behind one that does not.
        plain = not hit.opens and not hit.closes and not (guard and guard_register(guard) in self._code[position:end])
        key = (statement.opcode, guard, id(place.probes), tuple(self._emission.scratch.mark().values()))
        repeated = self._repeated.get(key) if plain else None
        if repeated is not None and (not repeated.stores or self._is_clear(place)):
            self._edits.insert(place.start, repeated.before)
            self._edits.insert(place.end, repeated.behind)
            return True
        instruction = statement.instruction
        if instruction is None:
            start = statement.start
            raise PtxError(self._module.line(start), self._code[start : start + 80], "not an instruction")
        code = self._insert(place, instruction)
        if not plain or code is None:
            return False
        self._repeated[key] = code
        return True

    def _what(self, statement: Statement) -> str:
        """How errors call an instruction."""
        shown = Shown.of(statement, self._module, self._places)
        return f"line {shown.line}: {shown.text!r}"

    def is_clear(self, position: int) -> bool:
        """Stores and instructions between lanes may stand there."""
        return self._products.clear_of(position) == position

    def _is_clear(self, place: Placed) -> bool:
        """Stores may stand right before and right behind an instruction."""
        return self.is_clear(place.start) and self.is_clear(place.end)

    def _insert(self, place: Placed, instruction: Instruction) -> _Repeated | None:
        """Insert the code at one site; the code when it depends on opcode, guard and free registers alone."""
        hit, start, end, probes = place.hit, place.start, place.end, place.probes
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
        code = _Repeated(before([*first, *early]), after(last), any(map(self._facts.must_be_clear, probes)))
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
            self._edits.insert(spot, after(code.stores))
        else:
            lines += code.stores
        return waits
