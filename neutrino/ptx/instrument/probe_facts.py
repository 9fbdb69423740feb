"""What the rewriting asks about the probes of a set, whatever the kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from neutrino.maps.regions import has_counts
from neutrino.probing.ir.probe_set import Probe, Snippet
from neutrino.probing.ir.statements import Assembly, Save, site_operands_of
from neutrino.ptx.isa.snippet_forms import is_collective


class ProbeFacts:
    """Answers about these very probes, by identity: they are asked for at every site, so all are found out at first.

    probes: of one set, in file order.
    """

    def __init__(self, probes: Sequence[Probe]) -> None:
        self._order = {id(probe): index for index, probe in enumerate(probes)}
        self._reading = {id(probe) for probe in probes if _names_operands(probe)}
        self._collective = {id(snippet) for probe in probes for snippet in _snippets(probe) if _has_collective(snippet)}
        self._storing = {
            id(probe) for probe in probes if any(save.map.kind.stores_at_sites for save in _saves(probe))
        }
        self.has_end_work = any(
            (probe.tracepoint.is_kernel and probe.after is not None) or any(map(_ends_with_store, _saves(probe)))
            for probe in probes
        )
        """Every end of a thread gets code, in functions too: ``after`` of a kernel, sums or counts."""

    def in_order(self, probes: Iterable[Probe]) -> list[Probe]:
        """Each probe once, in file order."""
        return sorted({id(probe): probe for probe in probes}.values(), key=lambda probe: self._order[id(probe)])

    def must_be_clear(self, probe: Probe) -> bool:
        """It holds code that must not stand between a product and its sum."""
        return id(probe) in self._storing or any(map(self.is_collective, _snippets(probe)))

    def reads_operands(self, probe: Probe) -> bool:
        """It names an operand of its instructions."""
        return id(probe) in self._reading

    def is_collective(self, snippet: Snippet) -> bool:
        """It holds an instruction between lanes, which ends a basic block."""
        return id(snippet) in self._collective


def _snippets(probe: Probe) -> Iterator[Snippet]:
    return (snippet for snippet in (probe.before, probe.after) if snippet)


def _saves(probe: Probe) -> Iterator[Save]:
    for snippet in _snippets(probe):
        yield from (statement for statement in snippet.straight if isinstance(statement, Save))


def _ends_with_store(save: Save) -> bool:
    return save.map.kind.settles or has_counts(save.map)


def _names_operands(probe: Probe) -> bool:
    return any(
        operand.name.startswith(("OUT", "IN", "ADDR"))
        for snippet in _snippets(probe)
        for statement in snippet.straight
        for operand in site_operands_of(statement)
    )


def _has_collective(snippet: Snippet) -> bool:
    return any(isinstance(statement, Assembly) and is_collective(statement.opcode) for statement in snippet.straight)
