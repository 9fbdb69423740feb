"""``neutrino-probe sites``: where in a file's kernels probes would go, and in which kernels nowhere."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, field
from typing import TYPE_CHECKING, Any

from neutrino.cli.machine_code import text_alone_notes
from neutrino.cli.probe_input import File, Kernels, add_options
from neutrino.cli.probe_status import Commands
from neutrino.cli.streams import escaped, width_of
from neutrino.cli.table import counted, table
from neutrino.late_dataclass import dataclass

if TYPE_CHECKING:
    from neutrino.backend.protocol import PlannedKernel
    from neutrino.patched_files.preview import Preview
    from neutrino.twins.probe_units import ProbeLeftOut
    from neutrino.twins.values import LeftOut, Site

_MAX_SITES = 60
"""Sites that are shown one by one; of a file with more, only how many each kernel has."""
_MAX_KERNELS = 25
"""Rows of the table that counts sites by kernel."""
_MAX_EXAMPLES = 3
"""Kernels that are named as examples for each reason why kernels have no site."""
_DEFAULT_WIDTH = 140
"""Columns of tables where there is no terminal to measure."""
_MANY_SITES = 100
"""Sites of a kernel from which on its twin may be long: a log adds up to some 100 lines at each."""
_MOST_WRITTEN = 20
"""Kernels of a file whose twins are written to find out."""
_MIN_LAST_COLUMN = 24
"""Columns that an instruction, or a list of probes, has on the narrowest terminal."""
_NAME_WIDTH = 56
"""Columns of a kernel's name, where there is room."""
_COUNTS_WIDTH = 52
"""Columns of the table that counts sites by kernel, without the names."""


def configure(commands: Commands) -> None:
    """Add the command ``neutrino-probe sites`` and its options. commands: the subparsers of ``neutrino-probe``."""
    parser = commands.add_parser(
        "sites",
        help="show which instructions of a library or PTX file the probes match",
        description="Show where probes go in the kernels of FILE: the number of the site (SITE in a snippet), the line "
        "of the PTX, the source line if the text has line information, the probes and the instruction. Nothing is "
        "assembled, so ptxas and the check of the arithmetic may still refuse some (neutrino-patch --dry-run).",
        epilog="Exit status: 0 done, even if FILE has no device code; 2 an invalid probe or an unreadable file; 3 no "
        "selected kernel has a site.",
    )
    add_options(parser)
    parser.add_argument(
        "--all", action="store_true",
        help=f"show every site and kernel (default: from {_MAX_SITES} sites on, only their number per kernel)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, with all sites")
    parser.set_defaults(run=run)


@dataclass
class _FileSites:
    """What is shown of one file. probed: kernels with sites. skipped: kernels without, with the reason."""

    file: File
    probed: list[_Probed] = field(default_factory=list)
    skipped: list[Preview] = field(default_factory=list)


@dataclass(frozen=True)
class _Probed:
    """A kernel that can be probed: its sites, and what the probes match but cannot probe (left_out).

    probes_left_out: probes that it cannot take at all. length_warning: what to say of a twin that is long to assemble.
    It holds no plan: the plans of all kernels of a large file would fill the memory. container, image: indices.
    """

    name: str
    container: int
    image: int
    arch: str
    sites: tuple[_Instruction, ...]
    left_out: tuple[LeftOut, ...]
    probes_left_out: tuple[ProbeLeftOut, ...] = ()
    length_warning: str = ""


@dataclass(frozen=True)
class _Instruction:
    """A site (instruction that probes match) and the probes that go there, in the order in which they run.

    number: the site's number in the twin (instrumented copy), None at a kernel's entry and end. line: of the PTX text.
    source: the source line, "" if the text has no line information. function: the called function that the instruction
    is in, "" in the kernel itself.
    """

    number: int | None
    line: int
    source: str
    function: str
    instruction: str
    probes: tuple[str, ...]


def run(options: argparse.Namespace) -> int:
    """Show where the probes go in a file's kernels. Returns the exit status."""
    from neutrino.cli.loading import load_for_file

    probes_of_file = load_for_file(options.file, options.arch, options.probe, defines=options.define)
    kernels = Kernels(options, probes_of_file)
    files = [_collect(file, previews) for file, previews in kernels.files()]
    probes = [probe.name for probe in kernels.probes.probes]
    if options.json:
        print(json.dumps({"probes": probes, "files": [_document(file_sites) for file_sites in files]}, indent=1))
    else:
        # Files without a selected kernel are left out.
        shown = [file_sites for file_sites in files if file_sites.probed or file_sites.skipped]
        width = width_of(sys.stdout, _DEFAULT_WIDTH) if sys.stdout is not None else _DEFAULT_WIDTH
        for number, file_sites in enumerate(shown):
            if number:
                print()
            for line in _lines(file_sites, everything=options.all, width=width):
                print(line)
    return kernels.ending(found=any(file_sites.probed for file_sites in files))


def _collect(file: File, previews: Iterator[Preview]) -> _FileSites:
    """Return a file's sites (instructions that probes match), taken from the previews (plans of where probes go) of its
    kernels.

    previews: consumed one by one, since the plans of all kernels of a large file would fill the memory.
    """
    from neutrino.backend.registry import target_of_device

    collected = _FileSites(file)
    written = 0
    for kernel in previews:
        if kernel.plan is None:
            collected.skipped.append(kernel)
        else:
            sites = tuple(_instructions(kernel.plan))
            plan = kernel.plan
            warning = ""
            if len(sites) >= _MANY_SITES and written < _MOST_WRITTEN:
                written += 1
                warning = target_of_device(kernel.arch).length_warning(plan)
            collected.probed.append(
                _Probed(
                    kernel.name, kernel.container, kernel.image, kernel.arch, sites, tuple(plan.left_out),
                    tuple(plan.probes_left_out), warning,
                )
            )  # fmt: skip
    return collected


def _instructions(plan: PlannedKernel) -> Iterator[_Instruction]:
    """Yield the instructions of a kernel that probes match, each once, with all of its probes."""
    grouped: dict[tuple[int | None, str, int, str], list[Site]] = {}
    for site in plan.sites:
        grouped.setdefault((site.number, site.function, site.line, site.instruction), []).append(site)
    for (number, function, line, instruction), sites in grouped.items():
        called_function = "" if function == plan.name else function
        # The sites of a group differ in their probe alone, so the source line of the first is that of all.
        probes = tuple(site.probe for site in sites)
        yield _Instruction(number, line, sites[0].source, called_function, instruction, probes)


# Words and tables


def _lines(found: _FileSites, *, everything: bool, width: int) -> Iterator[str]:
    """Yield the text about one file: its kernels' sites (instructions that probes match), what was left out, and the
    kernels without a site.

    everything: show all sites (--all); else a file with many has only their numbers. width: of the text, in columns.
    """
    from neutrino.demangle import demangle

    total = sum(len(kernel.sites) for kernel in found.probed)
    kernels = len(found.probed) + len(found.skipped)
    yield escaped(f"{found.file.name}, {found.file.arch}:")
    yield f"  {counted(total, 'site')} in {len(found.probed):,} of {counted(kernels, 'kernel')}"

    # Each kernel's sites, or only how many each kernel has.
    if everything or total <= _MAX_SITES:
        short = _short([kernel.name for kernel in found.probed])
        uses = Counter(short.values())
        for kernel in found.probed:
            # Names that look the same when shortened are shown whole.
            is_ambiguous = uses[short[kernel.name]] > 1
            yield ""
            name = demangle(kernel.name) if everything or is_ambiguous else short[kernel.name]
            yield f"{escaped(name)}: {counted(len(kernel.sites), 'site')}"
            if kernel.sites:
                yield from _site_table(kernel.sites, width=None if everything else width)
    else:
        yield ""
        yield from _count_table(found.probed, width)

    for kernel in found.probed:
        if kernel.length_warning:
            yield ""
            yield escaped(f"{demangle(kernel.name)}: {kernel.length_warning}")
            yield "  -k and --filter choose kernels, and probes at fewer instructions make it shorter"
    yield from _left_out_table(found.probed, width)
    yield from _probes_left_out_lines(found.probed)
    if found.skipped:
        yield ""
        yield from _skipped_table(found.skipped)
        yield from (f"note: {note}" for note in text_alone_notes(found.skipped, found.file.arch))


def _site_table(sites: Sequence[_Instruction], *, width: int | None) -> Iterator[str]:
    """Yield the table of one kernel's sites (instructions that probes match), cut to a width in columns; None cuts
    nothing.

    It has columns for source lines and called functions only if a site has any.
    """
    with_source = any(site.source for site in sites)
    with_function = any(site.function for site in sites)
    head = ["site", "line"]
    if with_source:
        head.append("source")
    if with_function:
        head.append("function")
    functions = _short([site.function for site in sites if site.function])
    rows = []
    for site in sites:
        # Kernel entries and ends have no number.
        row = ["-" if site.number is None else str(site.number), str(site.line)]
        if with_source:
            # "a.cu:42, inlined at main.cu:7": the first line is enough where the width is limited.
            first_line, _, _ = site.source.partition(", ")
            row.append((site.source if width is None else first_line) or "-")
        if with_function:
            row.append(functions.get(site.function, "-"))
        rows.append([*row, ", ".join(site.probes), site.instruction])
    yield from _table([*head, "probe", "instruction"], rows, ("site", "line"), width)


def _left_out_table(kernels: Sequence[_Probed], width: int) -> Iterator[str]:
    """Yield the table of instructions that match but cannot be probed: for each reason how many, and an example.

    Nothing if there are none. width: of the table, in columns.
    """
    groups: dict[str, list[LeftOut]] = {}
    for kernel in kernels:
        for item in kernel.left_out:
            groups.setdefault(item.reason, []).append(item)
    if not groups:
        return
    rows = []
    most_frequent_first = sorted(groups, key=lambda reason: -len(groups[reason]))
    for reason in most_frequent_first:
        items = groups[reason]
        first = items[0]
        rows.append([f"{len(items):,}", reason, f"line {first.line}: {first.instruction}"])
    yield ""
    yield "matched, but not probed"
    yield from _table(("sites", "why", "the first"), rows, ("sites",), width)


def _probes_left_out_lines(kernels: Sequence[_Probed]) -> Iterator[str]:
    """Yield the lines about probes that kernels cannot take: of each and reason the first kernel, and how many more."""
    groups: dict[tuple[str, str], list[tuple[_Probed, ProbeLeftOut]]] = {}
    for kernel in kernels:
        for probe in kernel.probes_left_out:
            groups.setdefault((probe.probe, probe.reason.word), []).append((kernel, probe))
    if not groups:
        return
    yield ""
    yield "probes that are left out of kernels"
    for rows in groups.values():
        kernel, probe = rows[0]
        name = _short([kernel.name])[kernel.name]
        more = f" and {len(rows) - 1:,} more" if len(rows) > 1 else ""
        yield escaped(f"  {probe.probe} ({probe.tracepoint}): in {name}{more}: {probe.detail}")
        if probe.remedy:
            yield escaped(f"    what helps: {probe.remedy}")


def _count_table(kernels: Sequence[_Probed], width: int) -> Iterator[str]:
    """Yield the table of how many sites (instructions that probes match) kernels have, those with most first. width: of
    the table, in columns.

    Kernels whose shortened names are the same share a row: instances of one template may be hundreds.
    """
    groups: dict[str, list[_Probed]] = {}
    name_width = max(_MIN_LAST_COLUMN, min(_NAME_WIDTH, width - _COUNTS_WIDTH))
    short = _short([kernel.name for kernel in kernels], name_width)
    for kernel in kernels:
        groups.setdefault(short[kernel.name], []).append(kernel)
    sites = {name: sum(len(kernel.sites) for kernel in group) for name, group in groups.items()}
    most_sites_first = sorted(groups, key=lambda name: -sites[name])

    rows = []
    for name in most_sites_first[:_MAX_KERNELS]:
        by_probe = Counter(probe for kernel in groups[name] for site in kernel.sites for probe in site.probes)
        probes = ", ".join(f"{probe} {number:,}" for probe, number in by_probe.items())
        rows.append([f"{sites[name]:,}", f"{len(groups[name]):,}", name, probes])
    yield from _table(("sites", "kernels", "kernel", "probes"), rows, ("sites", "kernels"), width)

    unlisted = most_sites_first[_MAX_KERNELS:]
    if unlisted:
        number = sum(len(groups[name]) for name in unlisted)
        yield f"  … {counted(number, 'more kernel')} with {counted(sum(sites[name] for name in unlisted), 'site')}"
    yield "  --all shows every site, -k NAME those of a kernel"


def _skipped_table(skipped: Sequence[Preview]) -> Iterator[str]:
    """Yield the table of kernels without a site: for each reason how many, and a few of their names."""
    from neutrino.patched_files.patch_report import KernelReport, group_skipped

    # group_skipped groups reports of patching: these kernels have no twins, so none for any device.
    reports = [
        KernelReport(
            kernel.name, kernel.container, kernel.image, kernel.arch, devices=(), reason=kernel.reason,
            detail=kernel.detail,
        )
        for kernel in skipped
    ]  # fmt: skip
    rows = []
    for group in group_skipped(reports):
        # Instances of one template may look the same when they are shortened.
        names = list(dict.fromkeys(_short([kernel.name for kernel in group.kernels]).values()))
        examples = ", ".join(names[:_MAX_EXAMPLES]) + (" …" if len(names) > _MAX_EXAMPLES else "")
        rows.append([f"{len(group.kernels):,}", group.reason.word, f"{group.text}: {examples}"])
    yield "without a site"
    # Not cut to a width, since a reason must be read whole.
    yield from _table(("kernels", "reason", "why"), rows, ("kernels",), None)


def _short(names: Sequence[str], width: int = _NAME_WIDTH) -> dict[str, str]:
    """Return mangled name → demangled name, shortened to a width in characters; several may look the same."""
    from neutrino.cli.kernel_names import shorten
    from neutrino.demangle import demangle

    return {name: shorten(demangle(name), width) for name in names}


def _table(
    head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str], width: int | None
) -> Iterator[str]:
    """Yield a table whose last column is cut so that no line is wider than ``width`` columns; None cuts nothing.

    right: the heads of the columns that are aligned right.
    """
    cells = [[escaped(cell) for cell in row] for row in rows]
    if width is not None:
        # Every column has two blanks before it, the last one too. What is cut off is replaced by one character, "…".
        used = sum(2 + max(len(row[column]) for row in (head, *cells)) for column in range(len(head) - 1))
        available = max(_MIN_LAST_COLUMN, width - used - 2)
        for row in cells:
            if len(row[-1]) > available:
                row[-1] = f"{row[-1][: available - 1]}…"
    yield from table(head, cells, right=right)


# JSON


def _document(found: _FileSites) -> dict[str, Any]:
    """Return a file's object in the JSON document: its kernels, first those with sites (instructions that probes
    match).

    All kernels have the same members: those without a site have empty ones.
    """
    kernels = [_probed_document(kernel) for kernel in found.probed]
    kernels += [
        _kernel(kernel)
        | {"reason": kernel.reason.word, "detail": kernel.detail, "by_probe": {}, "sites": [], "left_out": [],
           "probes_left_out": []}
        for kernel in found.skipped
    ]
    vendor = found.file.vendor
    return {"file": found.file.name, "arch": found.file.arch or None, "vendor": vendor or None, "kernels": kernels}


def _probed_document(kernel: _Probed) -> dict[str, Any]:
    """Return the JSON object of a kernel with sites (instructions that probes match); ``left_out`` has what matches but
    cannot be probed.
    """
    return _kernel(kernel) | {
        "reason": None,
        "detail": "",
        "by_probe": dict(Counter(probe for site in kernel.sites for probe in site.probes)),
        "sites": [
            {
                "site": site.number,
                "line": site.line,
                "source": site.source or None,
                "function": site.function or kernel.name,
                "instruction": site.instruction,
                "probes": list(site.probes),
            }
            for site in kernel.sites
        ],
        "left_out": [
            {
                "probe": item.probe,
                "line": item.line,
                "source": item.source or None,
                "function": item.function or kernel.name,
                "instruction": item.instruction,
                "reason": item.reason,
            }
            for item in kernel.left_out
        ],
        "probes_left_out": [asdict(probe) | {"reason": probe.reason.word} for probe in kernel.probes_left_out],
    }


def _kernel(kernel: _Probed | Preview) -> dict[str, Any]:
    """Return the members that the JSON objects of all kernels begin with; container and image are indices."""
    from neutrino.demangle import demangle

    return {
        "name": kernel.name,
        "demangled": demangle(kernel.name),
        "container": kernel.container,
        "image": kernel.image,
        "arch": kernel.arch,
    }
