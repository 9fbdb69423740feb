"""What the report of a trace shows: what ran, the probed kernels with their maps, what was not probed, and notes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from neutrino.abi.reasons import Reason
from neutrino.errors import TraceError
from neutrino.late_dataclass import dataclass
from neutrino.tracing.analyses.run import Findings
from neutrino.tracing.benchmark import Benchmark
from neutrino.tracing.liveness import awaited_words
from neutrino.tracing.manifest import Assembly, Retargeted, Spills
from neutrino.tracing.memory_usage import is_measured
from neutrino.tracing.saved_values import Field, Meaning
from neutrino.tracing.shown.benchmark import shown_benchmark
from neutrino.tracing.shown.findings import brief_findings
from neutrino.tracing.shown.maps import NOTHING_KNOWN, Known, empty_maps, may_be_of_first, of_map, shown_map
from neutrino.tracing.shown.model import (
    Cell,
    Choice,
    Column,
    Heading,
    Kind,
    Line,
    Name,
    Section,
    ShownReport,
    Table,
    counted,
)  # fmt: skip
from neutrino.tracing.shown.overview import overview
from neutrino.tracing.since_first import times_since_first
from neutrino.tracing.summary import KernelSummary, MapSummary, NotProbed, TraceSummary
from neutrino.tracing.trace import Clock, Trace, TraceKernel

MOST_IN_FULL = 4
"""Probed kernels that are shown one by one without --all or -k; of more there is an overview."""
MOST_REASONS = 8
"""Kernels that were not probed that are listed without --all; of more the reasons are."""


def _no_maps(_: Trace) -> frozenset[str]:
    """Know nothing of probes."""
    return frozenset()


def _no_reason(_: TraceKernel, __: str) -> str:
    """Know nothing of probes."""
    return ""


def _no_meanings(_: Trace) -> Mapping[Field, Meaning]:
    """Know nothing of probes."""
    return {}


def _no_lines(_: KernelSummary) -> Sequence[str]:
    """Know nothing of the device's registers."""
    return ()


@dataclass(frozen=True)
class Sources:
    """What a trace alone does not say: who shows a report asks the probes' text and the device's table for it.

    ``neutrino.cli.report_sources.SOURCES`` answers all; without it the report lacks these sentences. maps_of_first: the
    maps whose records of a warp or block are those of its first thread. why_nothing: for a kernel and the name of a map
    why nothing was saved. occupancy: lines on blocks that fit on a multiprocessor at a time.
    meanings: what fields of maps hold: addresses, clocks.
    """

    maps_of_first: Callable[[Trace], frozenset[str]] = _no_maps
    why_nothing: Callable[[TraceKernel, str], str] = _no_reason
    occupancy: Callable[[KernelSummary], Sequence[str]] = _no_lines
    meanings: Callable[[Trace], Mapping[Field, Meaning]] = _no_meanings


NO_SOURCES = Sources()
DEFAULT = Choice()


def shown_report(
    summary: TraceSummary, choice: Choice = DEFAULT, sources: Sources = NO_SOURCES, findings: Findings | None = None
) -> ShownReport:
    """Choose what is shown of a trace. summary: of ``summarize``. choice: how much. sources: what else is known.
    findings: of its analyses, None where they were not run.
    """
    trace = summary.trace
    sections: list[Section] = []
    brief = brief_findings(findings, show_all=choice.all) if findings is not None else None
    if brief is not None:
        sections.append(brief)
    benchmark = readable_benchmark(trace)
    if benchmark is not None:
        names = {kernel.id: kernel.full_name for kernel in trace.kernels}
        sections.append(shown_benchmark(benchmark, names, show_all=choice.all))
    if choice.chosen or choice.all or choice.has_rows or len(summary.kernels) <= MOST_IN_FULL:
        sections += [
            _kernel(kernel, trace, choice, sources)
            for kernel in summary.kernels
            # Only notes report a kernel without a manifest: summarize leaves it out.
            if kernel.kernel.manifest is not None
        ]
    else:
        sections += overview(summary.kernels, lambda kernel: _known(kernel, trace, choice, sources))
    sections += _not_probed(summary.not_probed, choice)
    notes = tuple(Line.of(note, role="note") for note in summary.notes)
    return ShownReport(heading(trace), tuple(sections), notes)


def heading(trace: Trace) -> Heading:
    """Return what was run, where, when and on which devices, and what share of its launches was probed."""
    process = trace.process
    words = process.get("argv")
    # Of a run with --memusage nothing was probed.
    coverage = f"--memusage: {trace.coverage.forecast}" if is_measured(trace) else trace.coverage.sentence
    lines = [coverage]
    if trace.lost[0]:
        lines.append(trace.lost[1])
    if missing := awaited_words(trace):
        lines.append(missing)
    if trace.clock is Clock.STEPS:
        lines.insert(0, "embedded device: times are steps of the interpreter, not cycles")
    return Heading(
        str(trace.path),
        " ".join(map(str, words)) if isinstance(words, list) else "",
        f"pid {process.get('pid', '?')} on {process.get('host', '?')}",
        trace.started,
        tuple(f"{device.get('name')} ({device.get('arch')})" for device in trace.devices),
        tuple(map(Line.of, lines)),
    )


def readable_benchmark(trace: Trace) -> Benchmark | None:
    """Return what a run has timed; None if it has timed nothing, or if that is damaged, which the notes say."""
    try:
        return trace.benchmark
    except TraceError:
        return None


def _kernel(summary: KernelSummary, trace: Trace, choice: Choice, sources: Sources) -> Section:
    """Return the section of a probed kernel: its launches, what its twin (instrumented copy) costs, and its maps (what
    probes save to).

    trace: that it is of.
    """
    kernel = summary.kernel
    of_first = frozenset[str]()
    if any(map(may_be_of_first, summary.maps)):
        of_first = sources.maps_of_first(trace)
    known = _known(summary, trace, choice, sources)
    maps: list[Section] = []
    empty: list[tuple[MapSummary, str]] = []
    for entry in summary.maps:
        # Of chosen launches others may have something.
        is_empty = bool(summary.written) and choice.launches is None and entry.is_nothing
        nothing = sources.why_nothing(kernel, entry.name) if is_empty else ""
        if is_empty and not entry.dropped and not choice.all:
            empty.append((entry, nothing))
            continue
        is_of_first = may_be_of_first(entry) and entry.name in of_first
        maps.append(
            shown_map(
                entry, kernel.id, is_of_first=is_of_first, show_all=choice.all, nothing=nothing, known=known(entry.name)
            )
        )
    maps += empty_maps(empty, kernel.id)
    blocks: tuple[Line | Section, ...] = (*_facts(summary, sources), *maps)
    return Section("kernel", Line.of(Name(kernel.full_name, kernel.id)), blocks, kernel.id)


def _known(summary: KernelSummary, trace: Trace, choice: Choice, sources: Sources) -> Callable[[str], Known]:
    """Return what gives for the name of a map of a kernel what is known of its numbers."""
    # Only numbers of 64 bits are addresses of global memory, or clocks that do not begin again.
    wide = (found for entry in summary.maps for found in entry.fields if "64" in found.type)
    if not any(wide) and not any(entry.keys or entry.buckets for entry in summary.maps):
        return lambda _: NOTHING_KNOWN
    meanings = sources.meanings(trace)
    try:
        times = times_since_first(summary.kernel, meanings, choice.launches)
    except TraceError:
        # Which the report says anyway.
        times = {}
    return lambda name: Known(of_map(meanings, name), of_map(times, name), trace.clock)


def _facts(summary: KernelSummary, sources: Sources) -> Iterator[Line]:
    """Yield the lines on a kernel's launches and on what its twin (copy with probes) costs and lacks."""
    manifest = summary.kernel.manifest
    if manifest is None:
        return
    sets = {one.number: one for one in summary.kernel.trace.sets}
    if len(sets) > 1 and summary.kernel.set in sets:
        yield Line.of(f"set {summary.kernel.set} of the probes: {sets[summary.kernel.set].probes}", indent=1)
    launches = f"{counted(summary.submitted, 'launch', 'launches')} probed"
    if summary.unprobed:
        launches += f", {summary.unprobed:,} not"
    yield Line.of(f"{launches}; {_resources(manifest.assembly, summary)}", indent=1)
    for text in sources.occupancy(summary):
        yield Line.of(text, indent=1)
    if manifest.retargeted is not None:
        yield Line.of(_retargeted(manifest.retargeted), indent=1)
    if manifest.made_of:
        yield Line.of(f"its twin was made of {manifest.made_of}, not of PTX", indent=1)
    for probe in manifest.probes_left_out:
        yield Line.of(probe.shown, indent=1)
        if probe.remedy:
            yield Line.of(f"what helps: {probe.remedy}", indent=3, role="remedy")
    for name in manifest.not_probed:
        yield Line.of(f"{name}: not probed in this kernel", indent=1)


def _not_probed(rows: Sequence[NotProbed], choice: Choice) -> Iterator[Section]:
    """Yield the section on launches that ran the original kernel, with the reason; never launched kernels only with
    --all.
    """
    counted_rows = [row for row in rows if not row.matches_nothing or choice.all]
    nothing = "" if choice.all else nothing_matches_line(rows)
    if nothing:
        yield Section("not_probed", None, (Line.of(nothing),))
    if not counted_rows:
        return
    shown = [row for row in counted_rows if row.launches or choice.all]
    hidden = len(counted_rows) - len(shown)
    blocks: list[Line | Table] = []
    if len(shown) > MOST_REASONS and not choice.all:
        blocks += [_reasons(shown), Line.of("--why names the kernels", indent=1)]
    elif shown:
        cells = [
            (
                Cell(f"{row.launches:,}", row.launches),
                Cell.named(Name(row.kernel.full_name, row.kernel.id)),
                Cell(f"{row.reason.word}: {row.text}{f' ({row.detail})' if row.detail else ''}", row.reason.word),
            )
            for row in shown
        ]
        columns = (Column("launches"), Column("kernel", Kind.NAME), Column("reason", Kind.TEXT))
        blocks.append(Table("not_probed", columns, tuple(cells), 1))
    if hidden:
        kernels = counted(hidden, "kernel that was", "kernels that were")
        blocks.append(Line.of(f"{kernels} never launched (--all lists them)", indent=1))
    yield Section("not_probed", Line.of("Not probed"), tuple(blocks))


def _reasons(rows: Sequence[NotProbed]) -> Table:
    """Return launches that were not probed by reason, with how many kernels."""
    cells = []
    for reason in folded(rows):
        help_text = f"; what helps: {reason.remedy}" if reason.remedy else ""
        cells.append(
            (
                Cell(f"{reason.launches:,}", reason.launches),
                Cell(f"{reason.kernels:,}", reason.kernels),
                Cell(f"{reason.reason.word}: {reason.text}{help_text}", reason.reason.word),
            )
        )
    columns = (Column("launches"), Column("kernels"), Column("reason", Kind.TEXT))
    return Table("reasons", columns, tuple(cells), 1)


def nothing_matches_line(rows: Sequence[NotProbed]) -> str:
    """Return the line about kernels without an instruction that a probe matches; "" without any.

    rows: what was not probed. Kernels that were never launched do not count.
    """
    found = [row for row in rows if row.matches_nothing and row.launches]
    if not found:
        return ""
    kernels = len({row.kernel.id for row in found})
    has = "kernel has" if kernels == 1 else "kernels have"
    launches = sum(row.launches for row in found)
    return f"{kernels:,} {has} no instruction that matches ({launches:,} launch{'es' if launches > 1 else ''})"


@dataclass(frozen=True)
class FoldedReason:
    """Launches that ran the original for one reason. kernels: how many had such launches, or were never launched."""

    reason: Reason
    launches: int
    kernels: int
    text: str
    remedy: str


def folded(rows: Sequence[NotProbed]) -> list[FoldedReason]:
    """Add up launches that were not probed by reason; that with most launches first."""
    by_reason: dict[Reason, list[NotProbed]] = {}
    for row in rows:
        by_reason.setdefault(row.reason, []).append(row)
    found = [
        FoldedReason(
            reason, sum(row.launches for row in own), len({row.kernel.id for row in own}), own[0].text, own[0].remedy
        )
        for reason, own in by_reason.items()
    ]
    return sorted(found, key=lambda row: (-row.launches, -row.kernels, row.reason))


def _retargeted(retargeted: Retargeted) -> str:
    """Return the line about a twin (copy with probes) made of PTX for another architecture than the code that runs:
    what proves it.
    """
    if retargeted.same_code:
        evidence = "it assembles to the code that runs"
    elif retargeted.own_text:
        evidence = "the code that runs was compiled from it, but assembling it gives different code"
    else:
        evidence = "it is not proven to be the program that runs, so results may have differed"
    return f"retargeted: the PTX is for another architecture ({retargeted.target}); {evidence}"


def _resources(assembly: Assembly | None, summary: KernelSummary) -> str:
    """Return the registers per thread and spills of a kernel and its twin (copy with probes), as ``registers 16 → 20;
    spills 0 → 0``.

    The twin under a register cap, if launches used it, is added in brackets. assembly: None if nothing was assembled.
    """
    if assembly is None:
        return "not assembled: no ptxas"
    registers = f"registers {assembly.registers_original} → {assembly.registers_twin}"
    if assembly.spills_original is None and assembly.spills_twin is None:
        # Of code that no assembler wrote.
        return registers
    spills = f"spills {_spills(assembly.spills_original)} → {_spills(assembly.spills_twin)}"
    if summary.capped and assembly.registers_capped is not None:
        registers += f" ({assembly.registers_capped} in {summary.capped:,} launches)"
        spills += f" ({_spills(assembly.spills_capped)})"
    return f"{registers}; {spills}"


def _spills(spills: Spills | None) -> str:
    """Return spills as bytes stored/loaded; ``?`` if they are not known."""
    if spills is None:
        return "?"
    return f"{spills.stores:,}/{spills.loads:,} B" if spills.stores or spills.loads else "0"
