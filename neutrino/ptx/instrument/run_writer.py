"""The code of runs: what sites in a row only add up, written once at the first of them (``additions.py``)."""

from __future__ import annotations

from collections.abc import Mapping

from neutrino.probing.ir.probe_set import Probe
from neutrino.probing.model import Lanes
from neutrino.ptx.analysis.additions import Added, Parted, Run, Runs, amounts, row, sums_added_to, with_amounts
from neutrino.ptx.analysis.flow_graph import FlowGraph
from neutrino.ptx.analysis.matching import Hit
from neutrino.ptx.instrument.emission import Emission
from neutrino.ptx.instrument.guards import Guard
from neutrino.ptx.instrument.probe_facts import ProbeFacts
from neutrino.ptx.isa.instruction import Mnemonic, guard_register
from neutrino.ptx.text.body import Body, Statement
from neutrino.ptx.text.edits import Edits, before


class RunWriter:
    """Gathers the additions of one body's sites, and writes them when all sites are known."""

    def __init__(self, body: Body, facts: ProbeFacts, emission: Emission, edits: Edits) -> None:
        self._body = body
        self._facts = facts
        self._emission = emission
        self._edits = edits
        self._runs = Runs(body)
        # By opcode and the probes: what they add, all together and then each; None where the text does not say it.
        self._amounts: dict[tuple[Mnemonic | None, int], tuple[Added, ...] | None] = {}

    def take(self, hit: Hit, parted: Parted) -> tuple[Probe, ...]:
        """Leave what only adds constants at a site to its run; the probes that are still to be written there."""
        statement = hit.statement
        key = (statement.mnemonic, id(parted))
        if key not in self._amounts:
            self._amounts[key] = _added(parted.adding, statement)
        added = self._amounts[key]
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


def _added(probes: tuple[Probe, ...], statement: Statement) -> tuple[Added, ...] | None:
    """What probes add at an instruction: all together, and each of them. None where the text does not say it."""
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
