"""``neutrino-report --why``: why launches of a kernel were not probed, and what the user can do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from neutrino.abi.reasons import Reason
from neutrino.tracing.coverage import Coverage, percent
from neutrino.tracing.manifest import ProbeLeftOut
from neutrino.tracing.summary import NotProbed, not_probed_launches
from neutrino.tracing.trace import Trace, TraceKernel


@dataclass(frozen=True)
class Line:
    """A line of text about a kernel. indent: in characters."""

    text: str
    indent: int


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
        yield Line(share, 2)
        if self.image.get("source"):
            yield Line(f"in {self.image['source']} ({self.image.get('kind', 'image')})", 2)
        for row in self.rows:
            launches = f"{row.launches:,} " if row.launches else ""
            yield Line(f"{launches}{row.reason.word}: {row.text}", 2)
            for fact in self.facts(row):
                yield Line(fact, 6)
            if row.remedy:
                yield Line(f"what helps: {row.remedy}", 6)
        for probe in self.left_out:
            yield Line(probe.shown, 2)
            if probe.maps:
                yield Line(f"not probed in this kernel: {', '.join(probe.maps)}", 6)
            if probe.remedy:
                yield Line(f"what helps: {probe.remedy}", 6)

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


def coverage_document(coverage: Coverage) -> dict[str, Any]:
    """Return a trace's coverage as an object of the JSON document."""
    return {
        "probed": coverage.probed,
        "launches": coverage.launches,
        "share": coverage.share,
        "kernels_probed": coverage.kernels_probed,
        "kernels": coverage.kernels,
        "left_out": coverage.left_out,
        "not_probed": {reason.word: count for reason, count in coverage.not_probed.items()},
    }


def why_document(why: Why) -> dict[str, Any]:
    """Return a kernel's object in the JSON document of ``neutrino-report --why``."""
    return {
        "kernel": why.kernel.id,
        "name": why.kernel.name,
        "image": why.image.get("source", ""),
        "launches": why.chosen,
        "probed": why.probed,
        "reasons": [
            {
                "reason": row.reason.word,
                "launches": row.launches,
                "text": row.text,
                "detail": row.detail,
                "facts": list(why.facts(row)),
                "remedy": row.remedy,
            }
            for row in why.rows
        ],
        "probes_left_out": [asdict(probe) for probe in why.left_out],
    }


def not_probed_rows(trace: Trace) -> list[NotProbed]:
    """Return what was not probed of all kernels of a trace."""
    return [row for kernel in trace.kernels for row in not_probed_launches(kernel)]
