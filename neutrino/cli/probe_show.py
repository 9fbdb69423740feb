"""``neutrino-probe show``: a kernel's text with the probes in it, and what they changed."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neutrino.cli.probe_input import File, Kernels, add_options
from neutrino.cli.probe_status import DONE, NOTHING, Commands, say
from neutrino.cli.streams import Painter, has_colours, visible
from neutrino.cli.table import count
from neutrino.errors import NeutrinoError, ToolError

if TYPE_CHECKING:
    from neutrino.ahead.preview import Preview
    from neutrino.cache.entry import KernelEntry
    from neutrino.probing.ir.probe_set import ProbeSet
    from neutrino.ptx.instrument.twin import TwinKernel

_NAMED = 20
"""Kernels that are named when several are meant."""
# What is in comments and strings is in both texts.
_DECLARATION = re.compile(r"(?<!\w)\.(?:reg|local|shared|param|pragma)\b[^;(){}]*;")
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def configure(commands: Commands) -> None:
    """Add the command and its options."""
    parser = commands.add_parser(
        "show",
        help="the probed text of a kernel, and what changed",
        description="Print the PTX of a kernel of FILE with the probes in it. Comments show where each probe was "
        "inserted; they are not part of the text that is assembled. If ptxas is installed, the twin is assembled, and "
        "the registers of the original and the twin are reported.",
        epilog="Exit status: 0 done, even if FILE has no device code; 2 an invalid probe, an unreadable file, or "
        "several kernels of that name; 3 no such kernel, or nothing to probe in it.",
    )
    add_options(parser)
    parser.add_argument("--diff", action="store_true", help="only what changed, with the lines around it")
    parser.add_argument("--text-only", action="store_true", help="do not assemble, which takes long for large kernels")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, with both texts")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Show the kernel. Returns the exit status."""
    from neutrino.cli.loading import load

    probes = load(options.probe)
    kernels = Kernels(options, probes)
    found = [(file, kernel) for file, previews in kernels.files() for kernel in previews]
    if not found:
        return kernels.ending(found=False)
    file, kernel = _the_one(found, options.kernel)
    if kernel.plan is None:
        say(f"{kernel.name}: {_why(kernel)}")
        return NOTHING
    entry, words = (None, "") if options.text_only else _assemble(kernel, probes)
    manifest = _manifest(entry)
    from neutrino.ptx.instrument.kernel_rewriter import write_twin

    twin = write_twin(kernel.plan)
    shown = _Shown(file, kernel, twin, kernel.plan.lines, _probed(twin, entry))
    if options.json:
        print(json.dumps(_document(shown, entry, manifest), indent=1))
    else:
        _print(_lines(shown, probes, _assembled(entry, manifest) or words, diff=options.diff))
    return DONE


@dataclass(frozen=True)
class _Shown:
    """A kernel of a file and its twin. lines: where the kernel and functions with copies begin in the PTX, by name.

    probed: the twin's text with those of the functions that have copies for it.
    """

    file: File
    kernel: Preview
    twin: TwinKernel
    lines: Mapping[str, int]
    probed: str

    def texts(self) -> dict[str, str]:
        """The twin's text and each copy's, by their names."""
        from neutrino.ptx.text.module import parse

        module = parse(self.probed)
        return {entry.name: module.source(entry.statement) for entry in (*module.functions, *module.entries)}


def _probed(twin: TwinKernel, entry: KernelEntry | None) -> str:
    """As it was assembled, under a register cap and pinned where it is; as it is written where nothing assembled it."""
    if entry is None or "probed.ptx" not in entry.files:
        return twin.whole_text()
    return entry.files["probed.ptx"].decode("latin-1")


def _the_one(found: Sequence[tuple[File, Preview]], asked: Sequence[str]) -> tuple[File, Preview]:
    """The kernel that is meant. Raises NeutrinoError when several are."""
    exact = [item for item in found if item[1].name in asked]
    candidates = exact or found
    names = list(dict.fromkeys(kernel.name for _, kernel in candidates))
    if len(names) > 1:
        from neutrino.demangle import demangle

        listed = "".join(f"\n  {name}" + (f"  {demangle(name)}" if demangle(name) != name else "")
                         for name in names[:_NAMED])  # fmt: skip
        more = f"\n  … {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
        raise NeutrinoError(f"{len(names):,} kernels; choose one with -k:{listed}{more}")
    # Of one name in several images the first that has a twin.
    return next((item for item in candidates if item[1].plan is not None), candidates[0])


def _why(kernel: Preview) -> str:
    from neutrino.abi.reasons import REASON_TEXT

    return f"{kernel.reason.word}: {kernel.detail or REASON_TEXT[kernel.reason]}"


def _assemble(kernel: Preview, probes: ProbeSet) -> tuple[KernelEntry | None, str]:
    """The kernel's twin, verified as patching does, or in words why it was not assembled."""
    from neutrino.ahead.preview import assemble

    try:
        return assemble(kernel, probes), "not assembled: device-linked code is assembled as a whole"
    except ToolError as error:
        return None, f"not assembled: {error}"


def _manifest(entry: KernelEntry | None) -> dict[str, Any]:
    """The manifest of a twin that a run would use, else nothing."""
    found: dict[str, Any] = json.loads(entry.files["manifest.json"]) if entry and "manifest.json" in entry.files else {}
    return found


def _assembled(entry: KernelEntry | None, manifest: dict[str, Any]) -> str:
    """What the assembler made of the twin, in words."""
    from neutrino.abi.reasons import Reason

    if entry is None:
        return ""
    if entry.reason is not Reason.PROBED:
        return f"refused: {entry.reason.word}: {entry.detail}"
    registers, spills = manifest["registers"], manifest["spills"]
    words = f"registers {registers['original']} → {registers['twin']}"
    if registers["capped"]:
        words += f", {registers['capped']} with a register cap"
    grown = spills["twin"]["stores"] - spills["original"]["stores"]
    if grown > 0:
        words += f", {grown} more bytes spilled"
    return f"{words}, by {manifest['assembler']}"


# Text


def _lines(shown: _Shown, probes: ProbeSet, words: str, *, diff: bool) -> Iterator[str]:
    from neutrino.cli.difference import compare, hunks
    from neutrino.cli.probe_comments import with_comments
    from neutrino.demangle import demangle

    file, kernel, twin = shown.file, shown.kernel, shown.twin
    instructions = len({(site.number, site.function, site.line, site.instruction) for site in twin.sites})
    added = f"{count(_instructions_added(shown), 'instruction')} inserted"
    yield f"// {visible(demangle(kernel.name))}: {count(instructions, 'site')}, {added}"
    yield f"// {visible(file.name)}, image {kernel.container}.{kernel.image}, {kernel.arch}"
    if words:
        yield f"// {visible(words)}"
    if diff:
        yield "--- original"
        yield "+++ with the probes"
    for number, part in enumerate(_parts(shown)):
        if number and not diff:
            yield ""
        lines = compare(_split(part.original), _split(part.probed))
        sites = [site for site in twin.sites if site.function == part.name]
        lines = with_comments(lines, sites, probes, first=part.line, is_kernel=part.is_kernel)
        if diff:
            yield from hunks(lines, first=part.line)
        else:
            yield from (line.text for line in lines if line.mark != "-")


@dataclass(frozen=True)
class _Part:
    """The kernel, or a function that has a copy for it. line: of the PTX that it begins in."""

    name: str
    line: int
    original: str
    probed: str
    is_kernel: bool = False


def _parts(shown: _Shown) -> Iterator[_Part]:
    """What the probes changed, in the order of the text."""
    twin, lines, texts = shown.twin, shown.lines, shown.texts()
    parts = [
        _Part(copy.name, lines[copy.name], copy.original_text, texts[copy.copy_name]) for copy in twin.all_copies
    ]
    parts.append(_Part(twin.name, lines[twin.name], twin.original_text, texts[twin.twin_name], is_kernel=True))
    yield from sorted(parts, key=lambda part: part.line)


def _instructions_added(shown: _Shown) -> int:
    """By how many instructions the texts grew: their semicolons, but for those of declarations."""
    return sum(
        sign * (text.count(";") - len(_DECLARATION.findall(text)))
        for part in _parts(shown)
        for sign, text in ((1, part.probed), (-1, part.original))
    )


def _split(text: str) -> list[str]:
    return [visible(line.rstrip("\r").expandtabs(4)) for line in text.split("\n")]


def _print(lines: Iterator[str]) -> None:
    painter = Painter(sys.stdout is not None and has_colours(sys.stdout))
    for line in lines:
        colour = _COLOURS.get(line[:1])
        print(painter.paint(line, colour) if colour else line)


# JSON


def _document(shown: _Shown, entry: KernelEntry | None, manifest: dict[str, Any]) -> dict[str, Any]:
    from neutrino.demangle import demangle

    kernel, twin = shown.kernel, shown.twin
    return {
        "file": shown.file.name,
        "kernel": kernel.name,
        "demangled": demangle(kernel.name),
        "container": kernel.container,
        "image": kernel.image,
        "arch": kernel.arch,
        "line": shown.lines[kernel.name],
        "sites": [
            {
                "probe": site.probe,
                "position": site.tracepoint,
                "site": site.number,
                "line": site.line,
                "source": site.source or None,
                "instruction": site.instruction,
                "function": site.function,
            }
            for site in twin.sites
        ],
        "instructions_added": _instructions_added(shown),
        "reason": entry.reason.word if entry is not None else None,
        "detail": entry.detail if entry is not None else "",
        "registers": manifest.get("registers"),
        "spills": manifest.get("spills"),
        "assembler": manifest.get("assembler"),
        "original": twin.original_text,
        "probed": shown.probed,
    }
