"""``neutrino-probe show``: a kernel's text with the probes in it, and what they changed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from neutrino.cli.machine_code import text_alone_notes
from neutrino.cli.max_registers import add_max_registers
from neutrino.cli.occupancy import registers_text
from neutrino.cli.probe_input import File, Kernels, add_options
from neutrino.cli.probe_status import DONE, NOTHING, Commands, say
from neutrino.cli.streams import Painter, escaped, has_colours
from neutrino.cli.table import counted
from neutrino.errors import NeutrinoError, ToolError
from neutrino.late_dataclass import dataclass

if TYPE_CHECKING:
    from neutrino.backend.protocol import PlannedKernel, ShownTwin
    from neutrino.patched_files.preview import Preview
    from neutrino.probing.ir.probe_set import ProbeSet
    from neutrino.twins.cache_entry import KernelEntry

_MAX_LISTED = 20
"""Kernels that the error lists if a name selects several."""
_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def configure(commands: Commands) -> None:
    """Add the command ``neutrino-probe show`` and its options. commands: the subparsers of ``neutrino-probe``."""
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
    add_max_registers(parser)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, with both texts")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the probed text of the kernel that the options select. Returns the exit status.

    Raises NeutrinoError if several kernels are selected.
    """
    from neutrino.cli.loading import load_for_file

    probes = load_for_file(options.file, options.arch, options.probe, defines=options.define)
    kernels = Kernels(options, probes)
    selected = [(file, kernel) for file, previews in kernels.files() for kernel in previews]
    if not selected:
        return kernels.ending(found=False)
    file, kernel = _single(selected, options.kernel)
    if kernel.plan is None:
        say(f"{kernel.name}: {_why_not_probed(kernel)}")
        for note in text_alone_notes([kernel], file.arch):
            say(f"note: {note}")
        return NOTHING

    from neutrino.backend.registry import target_of_device

    target = target_of_device(kernel.arch)
    if not options.text_only:
        _warn_of_length(kernel.name, target.length_warning(kernel.plan))
    entry, failure = (None, "") if options.text_only else _assemble(kernel, probes, options.max_registers)
    manifest = _manifest(entry)
    shown = _Shown(file, kernel, kernel.plan, target.show(kernel.plan, entry))
    if options.json:
        print(json.dumps(_document(shown, entry, manifest), indent=1))
    else:
        # Comments find a probe's code by its instructions.
        _print(_lines(shown, target.lowered(probes), _assembly_result(entry, manifest) or failure, diff=options.diff))
    return DONE


def _warn_of_length(name: str, warning: str) -> None:
    """Say on stderr, before the assembler is waited for, that a kernel's twin (copy with probes) is long.

    warning: "" if it is not.
    """
    if warning:
        say(
            f"{name}: {warning} (--text-only does not assemble; a position that fewer instructions match makes it "
            "shorter)"
        )


@dataclass(frozen=True)
class _Shown:
    """A kernel of a file, and its twin (instrumented copy), which may call private copies of functions."""

    file: File
    kernel: Preview
    plan: PlannedKernel
    text: ShownTwin


def _single(selected: Sequence[tuple[File, Preview]], names: Sequence[str]) -> tuple[File, Preview]:
    """Return the one kernel to show, and its file. Raises NeutrinoError if several with different names are selected.

    selected: not empty. names: the values of -k. A kernel whose whole mangled name is given is chosen even if others
    contain that name.
    """
    exact = [(file, kernel) for file, kernel in selected if kernel.name in names]
    candidates = exact or selected
    mangled = list(dict.fromkeys(kernel.name for _, kernel in candidates))
    if len(mangled) > 1:
        from neutrino.demangle import demangle

        listed = "".join(f"\n  {name}" + (f"  {demangle(name)}" if demangle(name) != name else "")
                         for name in mangled[:_MAX_LISTED])  # fmt: skip
        more = f"\n  … {len(mangled) - _MAX_LISTED:,} more" if len(mangled) > _MAX_LISTED else ""
        raise NeutrinoError(f"{len(mangled):,} kernels; choose one with -k:{listed}{more}")
    # A kernel may be in several images: the first in which it can be probed, else the first.
    can_be_probed = ((file, kernel) for file, kernel in candidates if kernel.plan is not None)
    return next(can_be_probed, candidates[0])


def _why_not_probed(kernel: Preview) -> str:
    """Return the reason why a kernel cannot be probed, as its code word and a sentence."""
    from neutrino.patched_files.patch_report import FILE_REASON_TEXT

    return f"{kernel.reason.word}: {kernel.detail or FILE_REASON_TEXT[kernel.reason]}"


def _assemble(kernel: Preview, probes: ProbeSet, max_registers: int | None) -> tuple[KernelEntry | None, str]:
    """Assemble a kernel's twin (copy with probes) and verify it, as patching does. max_registers: the user's cap, None
    without one.

    Returns the result, None if there is none, and the reason for that case in words.
    """
    from neutrino.patched_files.preview import assemble

    try:
        # Of a kernel that can be probed there is no result only if its code is device-linked.
        return assemble(kernel, probes, max_registers), "not assembled: device-linked code is assembled as a whole"
    except ToolError as error:
        return None, f"not assembled: {error}"


def _manifest(entry: KernelEntry | None) -> dict[str, Any]:
    """Return the manifest (facts such as registers) of an assembled twin (copy with probes); empty if it was refused or
    not assembled.
    """
    if entry is None or "manifest.json" not in entry.files:
        return {}
    manifest: dict[str, Any] = json.loads(entry.files["manifest.json"])
    return manifest


def _assembly_result(entry: KernelEntry | None, manifest: dict[str, Any]) -> str:
    """Return in words the registers and spills of an assembled twin (copy with probes), or why it was refused; "" if
    not assembled.

    entry: the result of assembling; None if there is none. manifest: of the twin; empty if it was refused.
    """
    from neutrino.abi.reasons import Reason

    if entry is None:
        return ""
    if entry.reason is not Reason.PROBED:
        return f"refused: {entry.reason.word}: {entry.detail}"
    registers, spills = manifest["registers"], manifest["spills"]
    cost = registers_text(registers, manifest["arch"], manifest.get("max_registers"))
    # Per thread, of the twin's second version, which is compiled with a register cap; None if there is no such version.
    if registers["capped"]:
        cost += f", {registers['capped']} with a register cap"
    # Of the twin itself, not of that second version. Stores alone: what is spilled is stored and loaded, so both would
    # count it twice.
    spilled = spills["twin"]["stores"] - spills["original"]["stores"] if spills else 0
    if spilled > 0:
        cost += f", {spilled} more bytes spilled"
    return f"{cost}, by {manifest['assembler']}"


# Text


def _lines(shown: _Shown, probes: ProbeSet, assembly: str, *, diff: bool) -> Iterator[str]:
    """Yield the probed text with comments that name the probes, after a heading of comment lines.

    assembly: the result of assembling, for the heading; "" for none. diff: yield only what changed, as a unified diff.
    """
    from neutrino.cli.difference import compare, compare_paired, hunks
    from neutrino.cli.probe_comments import with_comments
    from neutrino.demangle import demangle

    file, kernel, twin = shown.file, shown.kernel, shown.text.twin
    # Several probes at one instruction are one site here.
    instructions = len({(site.number, site.function, site.line, site.instruction) for site in twin.sites})
    added = f"{counted(shown.text.added, 'instruction')} inserted"
    yield f"// {escaped(demangle(kernel.name))}: {counted(instructions, 'site')}, {added}"
    yield f"// {escaped(file.name)}, image {kernel.container}.{kernel.image}, {kernel.arch}"
    if assembly:
        yield f"// {escaped(assembly)}"
    for probe in twin.probes_left_out:
        yield f"// left out: {escaped(f'{probe.probe} ({probe.tracepoint}): {probe.detail}')}"
        if probe.remedy:
            yield f"//   what helps: {escaped(probe.remedy)}"

    # The text: the kernel, and the functions that have copies.
    if diff:
        yield "--- original"
        yield "+++ with the probes"
    for number, part in enumerate(shown.text.parts):
        # Whole texts are separated by an empty line; the parts of a diff by the lines that begin with @@.
        if number and not diff:
            yield ""
        original, probed = _split(part.original), _split(part.probed)
        if part.pairs is None:
            lines = compare(original, probed)
        else:
            # What follows the last line end is nothing in both.
            lines = compare_paired(original, probed, (*part.pairs, len(probed) - 1))
        sites = [site for site in twin.sites if site.function == part.name]
        lines = with_comments(lines, sites, probes, first=part.line, is_kernel=part.is_kernel)
        if diff:
            yield from hunks(lines, first=part.line)
        else:
            yield from (line.text for line in lines if line.mark != "-")


def _split(text: str) -> list[str]:
    """Split a text into lines that are safe to print: tabs expanded, control characters escaped."""
    return [escaped(line.rstrip("\r").expandtabs(4)) for line in text.split("\n")]


def _print(lines: Iterator[str]) -> None:
    """Print lines, in colours those that a diff marks, if stdout is a terminal."""
    painter = Painter(sys.stdout is not None and has_colours(sys.stdout))
    for line in lines:
        # The first character is the mark of a line in a diff.
        colour = _COLOURS.get(line[:1])
        print(painter.paint(line, colour) if colour else line)


# JSON


def _document(shown: _Shown, entry: KernelEntry | None, manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON document about a kernel: its sites (instructions that probes match), the cost of its twin (copy
    with probes), and both texts.
    """
    from neutrino.demangle import demangle

    kernel, twin = shown.kernel, shown.text.twin
    return {
        "file": shown.file.name,
        "kernel": kernel.name,
        "demangled": demangle(kernel.name),
        "container": kernel.container,
        "image": kernel.image,
        "arch": kernel.arch,
        "line": shown.plan.lines[kernel.name],
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
        "probes_left_out": [asdict(probe) | {"reason": probe.reason.word} for probe in twin.probes_left_out],
        "instructions_added": shown.text.added,
        "reason": entry.reason.word if entry is not None else None,
        "detail": entry.detail if entry is not None else "",
        "registers": manifest.get("registers"),
        **({"max_registers": manifest["max_registers"]} if "max_registers" in manifest else {}),
        "spills": manifest.get("spills"),
        "assembler": manifest.get("assembler"),
        "original": shown.text.original,
        "probed": shown.text.probed,
    }
