"""Why launches of a kernel were not probed, and what helps, as ``neutrino-report --why`` shows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from neutrino.abi.reasons import Reason
from neutrino.late_dataclass import dataclass
from neutrino.tracing.coverage import percent
from neutrino.tracing.manifest import ProbeLeftOut
from neutrino.tracing.shown.model import Line
from neutrino.tracing.summary import NotProbed, not_probed_launches
from neutrino.tracing.trace import Trace, TraceKernel


@dataclass(frozen=True)
class Why:
    """A kernel of a trace, and its launches by the reason why they were not probed, most first.

    image: the event about the image that it is in; empty without one.
    """

    kernel: TraceKernel
    image: dict[str, Any]
    rows: tuple[NotProbed, ...]

    @property
    def probed(self) -> int:
        """How many launches of this kernel were probed."""
        return self.kernel.counters.get(Reason.PROBED, 0)

    @property
    def chosen(self) -> int:
        """Launches that options such as ``-k`` and ``--launches`` have not left out."""
        return sum(count for reason, count in self.kernel.counters.items() if reason is not Reason.NOT_SELECTED)

    def lines(self) -> Iterator[Line]:
        """Yield what there is to print below the kernel's name."""
        if self.probed:
            share = f"{self.probed:,} of {self.chosen:,} launches probed ({percent(self.probed, self.chosen)})"
        elif self.chosen:
            share = f"none of {self.chosen:,} launches probed" if self.chosen > 1 else "its only launch was not probed"
        else:
            share = "no launch was chosen" if self.kernel.counters else "never launched"
        if self.chosen and (left_out := self.kernel.counters.get(Reason.NOT_SELECTED, 0)):
            share += f"; not chosen: {left_out:,} more"
        yield Line.of(share, indent=1)
        if self.image.get("source"):
            yield Line.of(f"in {self.image['source']} ({self.image.get('kind', 'image')})", indent=1)
        for row in self.rows:
            launches = f"{row.launches:,} " if row.launches else ""
            yield Line.of(f"{launches}{row.reason.word}: {row.text}", indent=1)
            for fact in self.facts(row):
                yield Line.of(fact, indent=3)
            if row.remedy:
                yield Line.of(f"what helps: {row.remedy}", indent=3, role="remedy")
        for probe in self.left_out:
            yield Line.of(probe.shown, indent=1)
            if probe.maps:
                yield Line.of(f"not probed in this kernel: {', '.join(probe.maps)}", indent=3)
            if probe.remedy:
                yield Line.of(f"what helps: {probe.remedy}", indent=3, role="remedy")

    @property
    def left_out(self) -> tuple[ProbeLeftOut, ...]:
        """The probes of the run that are not in its twin (copy with probes)."""
        return self.kernel.manifest.probes_left_out if self.kernel.manifest is not None else ()

    @property
    def matches_nothing(self) -> bool:
        """Whether nothing is to say but that the kernel has no instruction that a probe matches."""
        return bool(self.rows) and all(row.matches_nothing or row.reason is Reason.NOT_SELECTED for row in self.rows)

    def facts(self, row: NotProbed) -> Iterator[str]:
        """Yield what the trace knows about a reason: the detail of the event, and figures of the manifest."""
        if row.detail:
            yield row.detail
        manifest = self.kernel.manifest
        if manifest is None:
            return
        assembly = manifest.assembly
        if row.reason is Reason.OCCUPANCY and assembly is not None:
            capped = assembly.registers_capped
            cap = "" if capped is None else f", {capped} under a cap"
            yield f"registers per thread: {assembly.registers_original} → {assembly.registers_twin}{cap}"
        if row.reason in (Reason.MAP_SIZE, Reason.POOL_FULL):
            # Logs that the kernel never saves to take no memory.
            for entry in manifest.maps:
                if entry.cap:
                    per = f", per {entry.per.value}" if entry.per.has_rows else ""
                    size = f"{entry.size:,} bytes per record"
                    yield f"map {entry.name}: {entry.kind.name}, {size}, level {entry.level.value}{per}"


def explain(trace: Trace, kernels: Sequence[TraceKernel], whole: bool) -> list[Why]:
    """Return the kernels with launches that were not probed though they were chosen, those with most first, and kernels
    whose twins lack a probe.

    whole: also kernels that were probed throughout, that were left out, that were never launched, and that have no
    instruction that a probe matches.
    """
    # Events may be damaged.
    images = {image["id"]: image for image in trace.images if isinstance(image.get("id"), int)}
    found = []
    for kernel in kernels:
        rows = sorted(not_probed_launches(kernel), key=lambda row: -row.launches)
        why = Why(kernel, images.get(kernel.image, {}), tuple(rows))
        if whole or (why.chosen > why.probed and not why.matches_nothing) or (why.probed and why.left_out):
            found.append(why)
    return sorted(found, key=lambda why: (-(why.chosen - why.probed), why.kernel.id))


def not_probed_rows(trace: Trace) -> list[NotProbed]:
    """Return what was not probed of all kernels of a trace."""
    return [row for kernel in trace.kernels for row in not_probed_launches(kernel)]
