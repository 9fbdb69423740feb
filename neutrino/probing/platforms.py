"""Checks that the snippets of probe files are for the platform of the device, and all for the same one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from neutrino.errors import Diagnostic, ProbeError
from neutrino.probing.ir.draft import DraftProbes
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.target import Languages
from neutrino.probing.written import WrittenProbes

_PLATFORM = re.compile(r"[ \t]*platform[ \t]*=[ \t]*", re.MULTILINE)


def require_verified(parts: Sequence[WrittenProbes | DraftProbes], languages: Languages) -> None:
    """Raise ProbeError if there is no verifier for the assembly of some probe files, with a fault at ``platform`` in
    each.

    parts: the files, as they were read.
    """
    taken = next(language for language in languages.values() if language.verifier is not None)
    hint = (
        f'write its snippets in {taken.words.language}, with platform = "{taken.platform}", for {taken.devices}'
    )
    faults = [
        platform_fault(part, f'platform is "{part.platform}": {vendor}\'s assembly is not put into kernels yet', hint)
        for part in parts
        for vendor in [languages[part.platform].vendor]
        if languages[part.platform].verifier is None
    ]
    if faults:
        raise ProbeError(faults)


def mixed_platforms(parts: Sequence[WrittenProbes | DraftProbes]) -> list[Diagnostic]:
    """Return a fault for each file whose platform differs from that of the first file."""
    return [
        platform_fault(
            part,
            f'platform is "{part.platform}", that of {parts[0].file} is "{parts[0].platform}"',
            "probes of one run are for one platform",
        )
        for part in parts
        if part.platform != parts[0].platform
    ]


def platform_fault(part: WrittenProbes | DraftProbes | ProbeSet, message: str, hint: str) -> Diagnostic:
    """Return a fault at the value of ``platform`` in a file; at the beginning of the file if it has none."""
    lines = part.source.replace("\r\n", "\n").split("\n")
    for number, line in enumerate(lines, 1):
        match = _PLATFORM.match(line)
        if match:
            # Columns count from 1.
            return Diagnostic(part.file, number, match.end() + 1, line, message, hint, code="platform")
    return Diagnostic(part.file, 1, 1, lines[0], message, hint, code="platform")
