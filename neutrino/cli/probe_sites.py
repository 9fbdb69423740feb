"""``neutrino-probe sites``: where in a file's kernels probes would go, and in which kernels nowhere."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from neutrino.cli.probe_input import File, Kernels, add_options
from neutrino.cli.probe_status import DONE, NOTHING, Commands, say
from neutrino.cli.streams import visible
from neutrino.cli.table import count, table

if TYPE_CHECKING:
    from neutrino.ahead.preview import Preview
    from neutrino.ptx.twin import Site, TwinKernel

_LISTED_SITES = 60
"""Sites that are shown one by one; of a file with more, how many each kernel has."""
_LISTED_KERNELS = 30
_NAMED = 3
"""Kernels that stand for all that share a reason."""
_INSTRUCTION = 72
_NAME = 60


def configure(commands: Commands) -> None:
    """Add the command and its options."""
    parser = commands.add_parser(
        "sites",
        help="which instructions of a library or PTX file probes would go to",
        description="Show where probes would go in the kernels of FILE: the number of the site (SITE in a snippet), "
        "the line of the PTX, the source line where the text has line information, the probes and the instruction. "
        "Nothing is assembled: ptxas and the check of the arithmetic have the last word (neutrino-patch --dry-run).",
        epilog="Exit status: 0 done, also for a file without device code; 2 a wrong probe or an unreadable file; 3 no "
        "kernel of those asked for has a site.",
    )
    add_options(parser)
    parser.add_argument(
        "--all", action="store_true",
        help=f"show each site and each kernel, however many (else, from {_LISTED_SITES} sites on, a count by kernel)",
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
    """A kernel with sites. The twin's texts are gone: of a large file they would fill the memory."""

    name: str
    container: int
    image: int
    arch: str
    sites: tuple[_Instruction, ...]


@dataclass(frozen=True)
class _Instruction:
    """A site, and the probes that go there, in the order in which they run."""

    number: int
    line: int
    instruction: str
    probes: tuple[str, ...]


def run(options: argparse.Namespace) -> int:
    """Show the sites. Returns the exit status."""
    from neutrino.cli.loading import load

    kernels = Kernels(options, load(options.probe))
    found = []
    empty = False
    for file, previews in kernels.files():
        if file.vendor:
            kernels.pause()
            say(f"{file.name}: {file.vendor} is a vendor-licensed library, which is never rewritten")
        elif not file.arch:
            kernels.pause()
            say(f"{file.name}: no device code found")
            empty = True
        found.append(_look(file, previews))
    probes = [probe.name for probe in kernels.probes.probes]
    if options.json:
        print(json.dumps({"probes": probes, "files": [_document(item) for item in found]}, indent=1))
    else:
        shown = [item for item in found if item.probed or item.skipped]
        for number, item in enumerate(shown):
            if number:
                print()
            for line in _lines(item, everything=options.all):
                print(line)
    if kernels.status != DONE or any(item.probed for item in found) or empty:
        return kernels.status
    if not any(item.skipped or item.file.vendor for item in found):
        say(f"{options.file}: no kernel of those asked for")
    return NOTHING


def _look(file: File, previews: Iterator[Preview]) -> _Found:
    found = _Found(file)
    for kernel in previews:
        if kernel.twin is None:
            found.skipped.append(kernel)
        else:
            place = (kernel.name, kernel.container, kernel.image, kernel.arch)
            found.probed.append(_Probed(*place, tuple(_instructions(kernel.twin))))
    return found


def _instructions(twin: TwinKernel) -> Iterator[_Instruction]:
    """The twin's sites, with all probes of an instruction together."""
    grouped: dict[tuple[int, str], list[Site]] = {}
    for site in twin.sites:
        grouped.setdefault((site.line, site.instruction), []).append(site)
    for number, ((line, instruction), sites) in enumerate(grouped.items()):
        yield _Instruction(number, line, instruction, tuple(site.probe for site in sites))


# Words and tables


def _lines(found: _Found, *, everything: bool) -> Iterator[str]:
    from neutrino.fatbin.demangle import demangle

    total = sum(len(kernel.sites) for kernel in found.probed)
    kernels = len(found.probed) + len(found.skipped)
    yield (
        f"{visible(found.file.name)}, {found.file.arch}: {count(total, 'site')} in {len(found.probed):,} of "
        f"{count(kernels, 'kernel')}"
    )
    if found.probed:
        names = _short([kernel.name for kernel in found.probed])
        each = everything or total <= _LISTED_SITES
        for kernel in found.probed if each else ():
            yield ""
            yield f"{visible(demangle(kernel.name))}: {count(len(kernel.sites), 'site')}"
            yield from _sites(kernel.sites, everything=everything)
        if not each:
            yield ""
            yield from _counted(found.probed, names)
    if found.skipped:
        yield ""
        yield from _skipped(found.skipped)


def _sites(sites: Sequence[_Instruction], *, everything: bool) -> Iterator[str]:
    rows = [
        [
            str(site.number), str(site.line), visible(", ".join(site.probes)),
            visible(site.instruction if everything else _cut(site.instruction, _INSTRUCTION)),
        ]
        for site in sites
    ]  # fmt: skip
    yield from table(("site", "line", "probe", "instruction"), rows, right=("site", "line"))


def _counted(kernels: Sequence[_Probed], names: dict[str, str]) -> Iterator[str]:
    ordered = sorted(kernels, key=lambda kernel: -len(kernel.sites))
    rows = []
    for kernel in ordered[:_LISTED_KERNELS]:
        by_probe = Counter(probe for site in kernel.sites for probe in site.probes)
        words = ", ".join(f"{probe} {number:,}" for probe, number in by_probe.items())
        rows.append([f"{len(kernel.sites):,}", visible(names[kernel.name]), visible(_cut(words, _INSTRUCTION))])
    yield from table(("sites", "kernel", "probes"), rows, right=("sites",))
    rest = ordered[_LISTED_KERNELS:]
    if rest:
        sites = sum(len(kernel.sites) for kernel in rest)
        yield f"  … {count(len(rest), 'more kernel')} with {count(sites, 'site')}"
    yield "  --all shows every site, -k NAME those of a kernel"


def _skipped(skipped: Sequence[Preview]) -> Iterator[str]:
    from neutrino.ahead.report import KernelReport, group_skipped

    reports = [
        KernelReport(kernel.name, kernel.container, kernel.image, kernel.arch, (), kernel.reason, kernel.detail)
        for kernel in skipped
    ]
    rows = []
    for group in group_skipped(reports):
        short = list(dict.fromkeys(_short([kernel.name for kernel in group.kernels[: 4 * _NAMED]]).values()))
        shown = ", ".join(short[:_NAMED]) + (" …" if len(group.kernels) > _NAMED else "")
        rows.append([f"{len(group.kernels):,}", group.reason.word, visible(f"{group.text}: {shown}")])
    yield "without a site"
    yield from table(("kernels", "reason", "why"), rows, right=("kernels",))


def _short(names: Sequence[str]) -> dict[str, str]:
    """Demangled names short enough for a table, in full where two of them would look the same."""
    from neutrino.cli.kernel_names import shorten
    from neutrino.fatbin.demangle import demangle

    whole = {name: demangle(name) for name in names}
    short = {name: shorten(text, _NAME) for name, text in whole.items()}
    often = Counter(short.values())
    return {name: text if often[text] == 1 else whole[name] for name, text in short.items()}


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


# JSON


def _document(found: _Found) -> dict[str, Any]:
    from neutrino.fatbin.demangle import demangle

    kernels = [
        {
            "name": kernel.name,
            "demangled": demangle(kernel.name),
            "container": kernel.container,
            "image": kernel.image,
            "arch": kernel.arch,
            "reason": None,
            "detail": "",
            "by_probe": dict(Counter(probe for site in kernel.sites for probe in site.probes)),
            "sites": [
                {"site": site.number, "line": site.line, "instruction": site.instruction, "probes": list(site.probes)}
                for site in kernel.sites
            ],
        }
        for kernel in found.probed
    ]
    kernels += [
        {
            "name": kernel.name,
            "demangled": demangle(kernel.name),
            "container": kernel.container,
            "image": kernel.image,
            "arch": kernel.arch,
            "reason": kernel.reason.word,
            "detail": kernel.detail,
            "by_probe": {},
            "sites": [],
        }
        for kernel in found.skipped
    ]
    vendor = found.file.vendor
    return {"file": found.file.name, "arch": found.file.arch or None, "vendor": vendor or None, "kernels": kernels}
