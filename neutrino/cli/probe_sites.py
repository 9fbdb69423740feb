"""``neutrino-probe sites``: where in a file's kernels probes would go, and in which kernels nowhere."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from neutrino.cli.probe_input import File, Kernels, add_options
from neutrino.cli.probe_status import Commands
from neutrino.cli.streams import visible, width_of
from neutrino.cli.table import count, table

if TYPE_CHECKING:
    from neutrino.ahead.preview import Preview
    from neutrino.ptx.instrument.plan import KernelPlan
    from neutrino.ptx.instrument.twin import LeftOut, Site

_LISTED_SITES = 60
"""Sites that are shown one by one; of a file with more, how many each kernel has."""
_LISTED_KERNELS = 25
_NAMED = 3
"""Kernels that stand for all that share a reason."""
_WIDTH = 140
"""Columns of tables where there is no terminal to measure."""
_LEAST = 24
"""Columns of an instruction, or a list of probes, on the narrowest terminal."""
_NAME = 56
"""Columns of a kernel's name, where there is room."""


def configure(commands: Commands) -> None:
    """Add the command and its options."""
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
        help=f"show every site and kernel (default: from {_LISTED_SITES} sites on, only their number per kernel)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, with all sites")
    parser.set_defaults(run=run)


@dataclass
class _Found:
    """A file, and of its kernels what is shown."""

    file: File
    probed: list[_Probed] = field(default_factory=list)
    skipped: list[Preview] = field(default_factory=list)


@dataclass(frozen=True)
class _Probed:
    """A kernel with sites. Its plan is gone: of a large file they would fill the memory."""

    name: str
    container: int
    image: int
    arch: str
    sites: tuple[_Instruction, ...]
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True)
class _Instruction:
    """A site, and the probes that go there, in the order in which they run. number: None at entries and ends.

    function: the called function that it is in, "" in the kernel itself.
    """

    number: int | None
    line: int
    source: str
    function: str
    instruction: str
    probes: tuple[str, ...]


def run(options: argparse.Namespace) -> int:
    """Show the sites. Returns the exit status."""
    from neutrino.cli.loading import load

    kernels = Kernels(options, load(options.probe))
    found = [_look(file, previews) for file, previews in kernels.files()]
    probes = [probe.name for probe in kernels.probes.probes]
    if options.json:
        print(json.dumps({"probes": probes, "files": [_document(item) for item in found]}, indent=1))
    else:
        shown = [item for item in found if item.probed or item.skipped]
        width = width_of(sys.stdout, _WIDTH) if sys.stdout is not None else _WIDTH
        for number, item in enumerate(shown):
            if number:
                print()
            for line in _lines(item, everything=options.all, width=width):
                print(line)
    return kernels.ending(found=any(item.probed for item in found))


def _look(file: File, previews: Iterator[Preview]) -> _Found:
    found = _Found(file)
    for kernel in previews:
        if kernel.plan is None:
            found.skipped.append(kernel)
        else:
            place = (kernel.name, kernel.container, kernel.image, kernel.arch)
            found.probed.append(_Probed(*place, tuple(_instructions(kernel.plan)), kernel.plan.left_out))
    return found


def _instructions(plan: KernelPlan) -> Iterator[_Instruction]:
    """The kernel's sites, with all probes of an instruction together."""
    grouped: dict[tuple[int | None, str, int, str], list[Site]] = {}
    for site in plan.sites:
        grouped.setdefault((site.number, site.function, site.line, site.instruction), []).append(site)
    for (number, function, line, instruction), sites in grouped.items():
        inside = "" if function == plan.name else function
        probes = tuple(site.probe for site in sites)
        yield _Instruction(number, line, sites[0].source, inside, instruction, probes)


# Words and tables


def _lines(found: _Found, *, everything: bool, width: int) -> Iterator[str]:
    from neutrino.demangle import demangle

    total = sum(len(kernel.sites) for kernel in found.probed)
    kernels = len(found.probed) + len(found.skipped)
    yield visible(f"{found.file.name}, {found.file.arch}:")
    yield f"  {count(total, 'site')} in {len(found.probed):,} of {count(kernels, 'kernel')}"
    if everything or total <= _LISTED_SITES:
        short = _short([kernel.name for kernel in found.probed])
        often = Counter(short.values())
        for kernel in found.probed:
            whole = everything or often[short[kernel.name]] > 1
            yield ""
            name = demangle(kernel.name) if whole else short[kernel.name]
            yield f"{visible(name)}: {count(len(kernel.sites), 'site')}"
            if kernel.sites:
                yield from _sites(kernel.sites, width=None if everything else width)
    else:
        yield ""
        yield from _counted(found.probed, width)
    yield from _left_out(found.probed, width)
    if found.skipped:
        yield ""
        yield from _skipped(found.skipped)


def _sites(sites: Sequence[_Instruction], *, width: int | None) -> Iterator[str]:
    """width: None shows everything, whatever its width."""
    with_source = any(site.source for site in sites)
    with_function = any(site.function for site in sites)
    functions = _short([site.function for site in sites if site.function])
    rows = []
    for site in sites:
        row = ["-" if site.number is None else str(site.number), str(site.line)]
        if with_source:
            row.append((site.source.partition(", ")[0] if width else site.source) or "-")
        if with_function:
            row.append(functions.get(site.function, "-"))
        rows.append([*row, ", ".join(site.probes), site.instruction])
    head = ["site", "line", *(["source"] if with_source else []), *(["function"] if with_function else [])]
    yield from _table([*head, "probe", "instruction"], rows, ("site", "line"), width)


def _left_out(kernels: Sequence[_Probed], width: int) -> Iterator[str]:
    """What probes match and could not go to, by reason, each with an example."""
    groups: dict[str, list[LeftOut]] = {}
    for kernel in kernels:
        for item in kernel.left_out:
            groups.setdefault(item.reason, []).append(item)
    if not groups:
        return
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    rows = [
        [f"{len(items):,}", reason, f"line {items[0].line}: {items[0].instruction}"] for reason, items in ordered
    ]
    yield ""
    yield "matched, but not probed"
    yield from _table(("sites", "why", "the first"), rows, ("sites",), width)


def _counted(kernels: Sequence[_Probed], width: int) -> Iterator[str]:
    """A row for each name, short enough for a table: instances of one template may be hundreds."""
    groups: dict[str, list[_Probed]] = {}
    short = _short([kernel.name for kernel in kernels], max(_LEAST, min(_NAME, width - 52)))
    for kernel in kernels:
        groups.setdefault(short[kernel.name], []).append(kernel)
    sites = {name: sum(len(kernel.sites) for kernel in group) for name, group in groups.items()}
    ordered = sorted(groups, key=lambda name: -sites[name])
    rows = []
    for name in ordered[:_LISTED_KERNELS]:
        by_probe = Counter(probe for kernel in groups[name] for site in kernel.sites for probe in site.probes)
        words = ", ".join(f"{probe} {number:,}" for probe, number in by_probe.items())
        rows.append([f"{sites[name]:,}", f"{len(groups[name]):,}", name, words])
    yield from _table(("sites", "kernels", "kernel", "probes"), rows, ("sites", "kernels"), width)
    rest = ordered[_LISTED_KERNELS:]
    if rest:
        number = sum(len(groups[name]) for name in rest)
        yield f"  … {count(number, 'more kernel')} with {count(sum(sites[name] for name in rest), 'site')}"
    yield "  --all shows every site, -k NAME those of a kernel"


def _skipped(skipped: Sequence[Preview]) -> Iterator[str]:
    from neutrino.ahead.report import KernelReport, group_skipped

    reports = [
        KernelReport(kernel.name, kernel.container, kernel.image, kernel.arch, (), kernel.reason, kernel.detail)
        for kernel in skipped
    ]
    rows = []
    for group in group_skipped(reports):
        names = list(dict.fromkeys(_short([kernel.name for kernel in group.kernels]).values()))
        shown = ", ".join(names[:_NAMED]) + (" …" if len(names) > _NAMED else "")
        rows.append([f"{len(group.kernels):,}", group.reason.word, f"{group.text}: {shown}"])
    yield "without a site"
    # The reason is not cut: it is all that there is to know.
    yield from _table(("kernels", "reason", "why"), rows, ("kernels",), None)


def _short(names: Sequence[str], width: int = _NAME) -> dict[str, str]:
    """Demangled names short enough for a table; several may look the same."""
    from neutrino.cli.kernel_names import shorten
    from neutrino.demangle import demangle

    return {name: shorten(demangle(name), width) for name in names}


def _table(
    head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str], width: int | None
) -> Iterator[str]:
    """A table, its last column cut so that it is no wider than that; None cuts nothing."""
    cells = [[visible(cell) for cell in row] for row in rows]
    if width is not None:
        before = sum(2 + max(len(row[column]) for row in (head, *cells)) for column in range(len(head) - 1))
        left = max(_LEAST, width - before - 2)
        cells = [[*row[:-1], row[-1] if len(row[-1]) <= left else f"{row[-1][: left - 1]}…"] for row in cells]
    yield from table(head, cells, right=right)


# JSON


def _document(found: _Found) -> dict[str, Any]:
    kernels = [
        _kernel(kernel)
        | {
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
        }
        for kernel in found.probed
    ]
    kernels += [
        _kernel(kernel)
        | {"reason": kernel.reason.word, "detail": kernel.detail, "by_probe": {}, "sites": [], "left_out": []}
        for kernel in found.skipped
    ]
    vendor = found.file.vendor
    return {"file": found.file.name, "arch": found.file.arch or None, "vendor": vendor or None, "kernels": kernels}


def _kernel(kernel: _Probed | Preview) -> dict[str, Any]:
    from neutrino.demangle import demangle

    return {
        "name": kernel.name,
        "demangled": demangle(kernel.name),
        "container": kernel.container,
        "image": kernel.image,
        "arch": kernel.arch,
    }
