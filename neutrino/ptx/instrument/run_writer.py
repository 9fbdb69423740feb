"""The code of runs: what sites in a row only add up, written once at the first of them (``additions.py``)."""

from __future__ import annotations

from collections.abc import Mapping

from neutrino.probing.ir.probe_set import Probe
from neutrino.probing.model import Lanes
from neutrino.ptx.analysis.additions import Additions, Parted, Run, Runs, row, sums_added_to, with_amounts
from neutrino.ptx.analysis.flow_graph import FlowGraph
from neutrino.ptx.analysis.matching import Hit
from neutrino.ptx.instrument.emission import Emission
from neutrino.ptx.instrument.guards import Guard
from neutrino.ptx.instrument.probe_facts import ProbeFacts
from neutrino.ptx.isa.instruction import guard_register
from neutrino.ptx.text.body import Body
from neutrino.ptx.text.edits import Edits, before


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
