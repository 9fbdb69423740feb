"""Why a map has recorded nothing in a trace: no instruction matched, none was reached, a filter was never true …"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from neutrino.cli.streams import escaped
from neutrino.cli.table import counted
from neutrino.late_dataclass import dataclass

if TYPE_CHECKING:
    from neutrino.probing.ir.probe_set import ProbeSet
    from neutrino.tracing import Trace, TraceKernel
    from neutrino.tracing.manifest import ProbeLeftOut

_MOST_NAMED = 4
"""Kernels that are named in one sentence."""


@dataclass(frozen=True)
class _Probe:
    """A probe that saves to the map. has_condition: whether it saves only if something is true."""

    name: str
    tracepoint: str
    has_condition: bool


class NothingSaved:
    """Says of maps of a trace that are empty why they are."""

    def __init__(self, trace: Trace) -> None:
        """Prepare to explain why maps (what probes save to) of a trace are empty."""
        self._trace = trace

    def in_run(self, names: Mapping[int, str], map_name: str) -> str:
        """Return why a map (what probes save to) is empty in all kernels, beginning with "nothing was saved".

        names: of kernels by id, as shown.
        """
        return f"nothing was saved: {self._in_run(names, map_name)}"

    def in_kernel(self, kernel: TraceKernel, map_name: str) -> str:
        """Return why a map (what probes save to) is empty in a kernel whose twin (copy with the probes) has been
        launched; "" if that is not known.
        """
        probes = self._saving(map_name)
        if not probes:
            return ""
        return self._at_sites([kernel], probes) or f"no instruction matches {_tracepoints(probes)}"

    def _in_run(self, names: Mapping[int, str], map_name: str) -> str:
        """Return why a map (what probes save to) is empty in all kernels: nothing launched or chosen, no instruction
        matched, or none was reached. names: of kernels by id, as shown.
        """
        from neutrino.abi.reasons import Reason

        coverage = self._trace.coverage
        if not coverage.launches and not self._trace.complete:
            return "the trace is not complete"
        if not coverage.launches:
            return _nothing_chosen(self._trace, names) if coverage.left_out else "no kernel was launched"
        launched = [kernel for kernel in self._trace.kernels if _chosen(kernel)]
        probed = [kernel for kernel in launched if kernel.counters.get(Reason.PROBED) and kernel.manifest is not None]
        taking = [kernel for kernel in probed if kernel.manifest and map_name not in kernel.manifest.not_probed]
        probes = self._saving(map_name)
        matched = self._at_sites(taking, probes)
        if matched is not None:
            return matched
        if len(taking) < len(probed):
            return "not probed where an instruction matches"
        unmatched = len(taking) + sum(_matches_nothing(kernel) for kernel in launched)
        others = len(launched) - unmatched
        if not unmatched:
            return f"none of {counted(others, 'launched kernel')} could be probed"
        but = f"; {others:,} could not be probed" if others else ""
        # Such as opcodes that come close.
        near = next((kernel.detail for kernel in launched if _matches_nothing(kernel) and "(" in kernel.detail), "")
        hint = f" ({escaped(near)})" if near and self._probes is not None and len(self._probes.probes) == 1 else ""
        return f"no instruction of {counted(unmatched, 'launched kernel')} matches {_tracepoints(probes)}{hint}{but}"

    def _at_sites(self, kernels: Sequence[TraceKernel], probes: Sequence[_Probe]) -> str | None:
        """Return why probes have saved nothing at the instructions that they match (sites) in kernels that ran; None if
        they match none there.
        """
        from neutrino.abi.launches import LaunchState

        used = {probe.name: probe for probe in probes}
        sites = [site for kernel in kernels if kernel.manifest for site in kernel.manifest.sites]
        sites = [site for site in sites if isinstance(site.get("probe"), str) and site["probe"] in used]
        if not sites:
            return None
        # Only launches whose data came back say what was executed.
        if not sum(kernel.count_launches().by_state[LaunchState.WRITTEN] for kernel in kernels):
            return "the records of no launch arrived"
        places = f"{counted(len(sites), 'instruction')} match{'es' if len(sites) == 1 else ''}"
        if all(site.get("site") is None for site in sites):
            places = "it ran" if len(kernels) == 1 else f"{counted(len(kernels), 'kernel')} ran"
        if any(used[site["probe"]].has_condition for site in sites):
            return f"{places}, and the filter or condition was never true for a thread that came there"
        return f"{places}, and no thread came there, or all that was saved adds up to 0"

    @cached_property
    def _probes(self) -> ProbeSet | None:
        """The probes of the run, as the trace has them; None if they cannot be read."""
        from neutrino.errors import NeutrinoError
        from neutrino.probing.toml import probe_file_text
        from neutrino.tracing.files import is_in_trace
        from neutrino.verification import read_probes

        path = self._trace.path / "probe.toml"
        try:
            is_in_trace(path)
            # It may be anything by now: a pipe, or as large as the disk.
            return read_probes(str(path), probe_file_text(path, "TOML"))
        except (OSError, NeutrinoError):
            return None

    def _saving(self, map_name: str) -> list[_Probe]:
        """Return the probes of the run that save to a map."""
        from neutrino.probing.ir.structured import Save

        found = []
        for probe in self._probes.probes if self._probes is not None else ():
            saves = [
                statement
                for snippet in (probe.before, probe.after) if snippet is not None
                for statement in snippet.straight
                if isinstance(statement, Save) and statement.map.name == map_name
            ]  # fmt: skip
            if saves:
                found.append(_Probe(probe.name, probe.tracepoint.text, any(save.guard is not None for save in saves)))
        return found


def _tracepoints(probes: Sequence[_Probe]) -> str:
    """The texts that say where probes go, as ``ld.global or st.global``."""
    return " or ".join(dict.fromkeys(escaped(probe.tracepoint) for probe in probes)) or "the probe"


def _nothing_chosen(trace: Trace, names: Mapping[int, str]) -> str:
    """Return which kernels were launched of which none was chosen, and by what that was decided."""
    from neutrino.abi.reasons import Reason

    launched = [kernel for kernel in trace.kernels if kernel.counters.get(Reason.NOT_SELECTED)]
    shown = list(dict.fromkeys(escaped(names[kernel.id]) for kernel in launched))
    more = f" and {len(shown) - _MOST_NAMED} more" if len(shown) > _MOST_NAMED else ""
    listed = f"{', '.join(shown[:_MOST_NAMED])}{more}"
    if launched and all(kernel.reason is Reason.NOT_SELECTED for kernel in launched):
        return f"-k or --filter leaves out every kernel that was launched: {listed}"
    options = "--launches, --every, --range, --duration, --device or --rank"
    return f"no launch was chosen ({options}) of {listed}"


def _chosen(kernel: TraceKernel) -> int:
    """How many launches of a kernel the options (-k, --launches …) have not left out."""
    from neutrino.abi.reasons import Reason

    return sum(count for reason, count in kernel.counters.items() if reason is not Reason.NOT_SELECTED)


def _matches_nothing(kernel: TraceKernel) -> bool:
    """Whether a kernel has no instruction that a probe matches."""
    from neutrino.tracing.summary import not_probed_launches

    return any(row.matches_nothing for row in not_probed_launches(kernel))


def not_probed_lines(trace: Trace, names: Mapping[int, str], map_name: str) -> Iterator[str]:
    """Yield the lines about kernels that could not take the probe of a map (what probes save to), each with the reason
    and what helps.

    names: of kernels by id, as shown.
    """
    # The details of kernels differ in lines and operands, so only the first is shown of one probe and reason.
    found: dict[tuple[str, str], tuple[ProbeLeftOut, list[str]]] = {}
    for kernel in trace.kernels:
        cause = kernel.manifest.not_probed.get(map_name) if kernel.manifest is not None else None
        if cause is not None and _chosen(kernel):
            _, shown = found.setdefault((cause.probe, cause.reason), (cause, []))
            shown.append(escaped(names[kernel.id]))
    for cause, shown in found.values():
        more = f" and {len(shown) - _MOST_NAMED} more" if len(shown) > _MOST_NAMED else ""
        first = f"in {shown[0]} " if len(shown) > 1 else ""
        helps = f"; what helps: {escaped(cause.remedy)}" if cause.remedy else ""
        detail = f"{escaped(cause.tracepoint)}: {first}{escaped(cause.detail)}"
        yield f"  not probed in {', '.join(shown[:_MOST_NAMED])}{more}: {detail}{helps}"
