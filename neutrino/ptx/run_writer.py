"""The code of runs: what sites in a row only add up, written once at the first of them (``additions.py``)."""

from __future__ import annotations

from neutrino.probing.model import Lanes, Probe
from neutrino.ptx.additions import Parted, Run, Runs, amounts, with_amounts
from neutrino.ptx.body import Body
from neutrino.ptx.edits import Edits, before
from neutrino.ptx.emission import Emission, Guard
from neutrino.ptx.instruction import guard_register, read_instruction
from neutrino.ptx.matching import Hit
from neutrino.ptx.probe_facts import ProbeFacts


class RunWriter:
    """Gathers the additions of one body's sites, and writes them when all sites are known."""

    def __init__(self, body: Body, facts: ProbeFacts, emission: Emission, edits: Edits) -> None:
        self._facts = facts
        self._emission = emission
        self._edits = edits
        self._runs = Runs(body)
        # By opcode and the probes: what each of them adds.
        self._amounts: dict[tuple[str, int], list[tuple[int, ...]]] = {}

    def take(self, hit: Hit, start: int, parted: Parted, text: str) -> tuple[Probe, ...]:
        """Leave what only adds constants at a site to its run; the probes that are still to be written there.

        start: of the instruction, its predicate included; text: the instruction's.
        """
        adding = parted.adding
        opcode, guard = hit.match["opcode"], hit.match["guard"]
        key = (opcode, id(adding))
        added = self._amounts.get(key)
        if added is None:
            instruction = read_instruction(text)
            found = [amounts(probe, instruction) if instruction is not None else None for probe in adding]
            added = self._amounts[key] = [amount for amount in found if amount is not None]
        if len(added) < len(adding):
            return parted.all
        for probe, amount in zip(adding, added, strict=True):
            under = guard if probe.lanes is Lanes.EXECUTING else None
            self._runs.at(under, start, hit.match.start("opcode")).add(probe, amount)
        return parted.others

    def write(self) -> None:
        """Insert what sites in a row add up to; behind all other code of sites, which it stands before."""
        known: dict[tuple[str | None, tuple[tuple[int, tuple[int, ...]], ...]], str] = {}
        for run in self._runs.found:
            key = (run.guard, tuple((probe, tuple(totals)) for probe, (_, totals) in run.totals.items()))
            if key not in known:
                known[key] = self._code(run)
            self._edits.insert(run.start, known[key])

    def _code(self, run: Run) -> str:
        lines: list[str] = []
        guard = Guard(guard_register(run.guard), "!" in run.guard) if run.guard is not None else None
        mark = self._emission.scratch.mark()
        for probe in self._facts.in_order(probe for probe, _ in run.totals.values()):
            snippet = with_amounts(probe, run.totals[id(probe)][1])
            lines += self._emission.snippet(snippet, guard=guard, level=probe.level).all
        self._emission.scratch.release(mark)
        return before(lines)
