"""``neutrino-probe check``: everything that is wrong with probe files, in one run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neutrino.cli.defines import add_define
from neutrino.cli.diagnostics import document, print_diagnostics
from neutrino.cli.probe_status import BAD_INPUT, DONE, Commands
from neutrino.cli.streams import escaped
from neutrino.cli.table import counted
from neutrino.errors import Diagnostic, NeutrinoError
from neutrino.late_dataclass import dataclass

if TYPE_CHECKING:
    from neutrino.probing.ir.draft import DraftProbes
    from neutrino.probing.written import WrittenProbes

_UNREADABLE = "unreadable-file"
_MAX_LISTED = 12
"""Probes of a valid file that are shown one by one."""


def configure(commands: Commands) -> None:
    """Add the command ``neutrino-probe check`` and its options. commands: the subparsers of ``neutrino-probe``."""
    parser = commands.add_parser(
        "check",
        help="report everything that is wrong with probe files",
        description="Check probe files and report every fault, with line, column and a hint. Of valid files print "
        "what they record and how many instructions their snippets have.",
        epilog="Each file is checked on its own. Exit status: 0 all are valid, with or without warnings; 2 one is not.",
    )
    parser.add_argument("probe", nargs="+", metavar="PROBE", help="a probe file, a shipped probe or probes in one line")
    add_define(parser)
    parser.add_argument(
        "--target", metavar="ARCH", help="architecture of the devices that files in Python are for, such as sm_90 or "
        "gfx1100 (default: NVIDIA's; a file in TOML names its platform)",
    )  # fmt: skip
    parser.add_argument("-q", "--quiet", action="store_true", help="print only warnings of valid files")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.set_defaults(run=run)


@dataclass(frozen=True)
class _Checked:
    """A probe file that was checked. probes: None if it cannot be read or parsed. diagnostics: faults and warnings.
    device: the architecture that is to run it; None if any may."""

    file: str
    probes: WrittenProbes | DraftProbes | None
    diagnostics: list[Diagnostic] = field(default_factory=list)
    device: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the file could be read and has no errors; warnings do not count."""
        return self.probes is not None and all(item.severity != "error" for item in self.diagnostics)


def run(options: argparse.Namespace) -> int:
    """Check every probe file that the options name, and print what is wrong.

    Returns the exit status: 2 if any is invalid.
    """
    # A file that is named twice is checked once.
    defines = dict(options.define)
    from neutrino.probing.model import DEFAULT_PLATFORM

    platform = DEFAULT_PLATFORM
    if options.target is not None:
        from neutrino.backend.registry import device_arch
        from neutrino.targets import platform_of

        platform = platform_of(options.target)
        device_arch(options.target, "--target")
    checked = [_check(name, defines, platform, options.target) for name in dict.fromkeys(options.probe)]
    # In a file that cannot be read, there may be any constant.
    if defines and all(item.probes is not None for item in checked):
        from neutrino.verification import require_constants

        require_constants(defines, [item.probes for item in checked if item.probes is not None])
    if options.json:
        print(json.dumps({"files": [_document(item) for item in checked]}, indent=1))
    else:
        for item in checked:
            # Diagnostics go to stderr: keep the order of both streams on one terminal or in one file.
            sys.stdout.flush()
            print_diagnostics(item.diagnostics)
            if item.ok and item.probes is not None and not options.quiet:
                for line in _description(item, item.probes):
                    print(line)
    return DONE if all(item.ok for item in checked) else BAD_INPUT


def _check(name: str, defines: Mapping[str, int | float], platform: str, device: str | None) -> _Checked:
    """Check one probe file. name: its path, the name of a shipped probe, or probes in one line. defines: values of
    ``-D`` by name.

    platform: for what names none. device: the architecture that is to run it; None if any may.
    """
    from neutrino.verification import check_probes, is_one_liner

    names, one_liners = ([], [name]) if is_one_liner(name) else ([name], [])
    try:
        checked = check_probes(names, one_liners, defines=defines, platform=platform, device=device)
    except NeutrinoError as error:
        # Such as of a file that does not exist; what is wrong in a file is a diagnostic.
        return _Checked(name, None, [_unreadable(name, str(error))])
    diagnostics = list(checked.diagnostics)
    # One file was named. With syntax errors it may have been read in part; that part is not used.
    probes = checked.written[0] if checked.is_read and checked.written else None
    # The path of a shipped probe is only known from what was read of it, or from its faults.
    file = probes.file if probes else diagnostics[0].file
    if probes is not None and all(item.severity != "error" for item in diagnostics) and not _is_shipped(file):
        from neutrino.probing.first_lane import first_lane_warnings
        from neutrino.targets import LANGUAGES

        missed = first_lane_warnings(probes, LANGUAGES[probes.platform].words)
        diagnostics = sorted([*diagnostics, *missed], key=lambda item: (item.line, item.column))
    return _Checked(file, probes, diagnostics, device)


def _spelled(checked: _Checked) -> dict[str, tuple[list[str], list[str]]]:
    """Return, by the name of a probe that names operations, which instructions of the device these are, and the names
    for which it has none. Empty without a device, and of one whose instructions are called as the operations are."""
    from neutrino.probing.target import NamesOperations
    from neutrino.targets import LANGUAGES, platform_of

    probes, device = checked.probes, checked.device
    if probes is None or device is None or platform_of(device) != probes.platform:
        return {}
    verifier = LANGUAGES[probes.platform].verifier
    able = verifier.device(device) if verifier is not None else None
    if not isinstance(able, NamesOperations):
        return {}
    found = {probe.name: able.named(probe.tracepoint) for probe in probes.probes}
    return {name: rows for name, rows in found.items() if any(rows)}


def _is_shipped(file: str) -> bool:
    """Whether a file is one of the shipped probes, whose pages say what their records stand for."""
    from neutrino.resources import shipped_probes

    shipped = [*shipped_probes().values(), *shipped_probes("hip").values()]
    return Path(file).resolve() in {path.resolve() for path in shipped}


def _unreadable(name: str, message: str) -> Diagnostic:
    """Return the diagnostic of a file that cannot be read. message: the error's, which may begin with the name.

    The name is taken off, since the diagnostic has it as its file.
    """
    reason = message.removeprefix(f"-p {name}: ").removeprefix(f"{Path(name)}: ")
    # Line 0 means the file as a whole.
    return Diagnostic(name, line=0, column=0, source="", message=reason, code=_UNREADABLE)


def _description(checked: _Checked, probes: WrittenProbes | DraftProbes) -> Iterator[str]:
    """Yield the lines about a valid file: how many probes and maps it has, then each map (what probes save to) and the
    first probes.

    checked: the result of the check, whose diagnostics are warnings alone.
    """
    from neutrino.cli.probe_documents import snippet_sizes
    from neutrino.probing.ir.draft import DraftProbes
    from neutrino.targets import LANGUAGES

    sizes = snippet_sizes(probes)
    # Probes in Python have typed statements, which become instructions when they are lowered to a target.
    unit = "statement" if isinstance(probes, DraftProbes) else "instruction"
    parts = [counted(len(probes.probes), "probe"), counted(len(probes.maps), "map")]
    warnings = f", with {counted(len(checked.diagnostics), 'warning')}" if checked.diagnostics else ""
    yield f"{escaped(checked.file)}: valid{warnings}: {', '.join(parts)}"
    for entry in probes.maps:
        fields = ", ".join(f"{item.name} {item.type.value}" for item in entry.fields)
        yield f"  map {entry.name}: {entry.kind.describe(entry)}: {fields}"
    spelled = _spelled(checked)
    for probe in probes.probes[:_MAX_LISTED]:
        sides = " and ".join(
            side for side, snippet in (("before", probe.before), ("after", probe.after)) if snippet is not None
        )
        # SAVEs are not counted in the size. A valid probe is not empty, so one of size 0 has nothing but SAVEs.
        size = counted(sizes[probe.name], unit) if sizes[probe.name] else "SAVE alone"
        place = f"{sides} {escaped(probe.tracepoint.text)}"
        yield f"  probe {escaped(probe.name)}: {place}, level {probe.level.value}, {size}"
        if probe.name in spelled:
            instructions, missing = spelled[probe.name]
            lacks = f"it has no {', '.join(missing)}" if missing else ""
            yield f"    {checked.device}: {'; '.join(filter(None, (', '.join(instructions), lacks)))}"
    if len(probes.probes) > _MAX_LISTED:
        yield f"  … {counted(len(probes.probes) - _MAX_LISTED, 'more probe')} (--json)"
    language = LANGUAGES[probes.platform]
    if language.verifier is None:
        what = "it" if isinstance(probes, DraftProbes) else "its assembly"
        yield f"  {what} is for {language.vendor}'s GPUs: not verified, and not yet inserted into kernels"


def _document(checked: _Checked) -> dict[str, Any]:
    """Return a checked probe file's object in the JSON document."""
    from neutrino.cli.probe_documents import map_document, probe_document

    probes, spelled = checked.probes, _spelled(checked)
    return {
        "file": checked.file,
        "platform": probes.platform if probes else None,
        "ok": checked.ok,
        "probes": [
            probe_document(probe)
            | dict(zip(("instructions", "no_instruction"), spelled.get(probe.name, ()), strict=False))
            for probe in probes.probes
        ] if probes else [],
        "maps": [map_document(entry) for entry in probes.maps] if probes else [],
        "diagnostics": [document(item) for item in checked.diagnostics],
    }
