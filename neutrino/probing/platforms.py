"""Whose assembly a set's snippets are in, and what to say when it is another's than the device's."""

from __future__ import annotations

import re
from collections.abc import Sequence

from neutrino.errors import Diagnostic, ProbeError
from neutrino.probing.ir.draft import DraftProbes
from neutrino.probing.written import WrittenProbes

_PLATFORM = re.compile(r"[ \t]*platform[ \t]*=[ \t]*", re.MULTILINE)


def require_platform(parts: Sequence[WrittenProbes | DraftProbes], platform: str) -> None:
    """Raise ProbeError, at the ``platform`` of each file, when the snippets of some are for another one than this."""
    hint = 'write its snippets in PTX, with platform = "cuda", for NVIDIA GPUs and the embedded device'
    faults = [
        platform_fault(part, f'platform is "{part.platform}": AMD\'s assembly is not put into kernels yet', hint)
        for part in parts
        if part.platform != platform
    ]
    if faults:
        raise ProbeError(faults)


def mixed_platforms(parts: Sequence[WrittenProbes | DraftProbes]) -> list[Diagnostic]:
    """A fault at the ``platform`` of each file that is for another one than the first."""
    return [
        platform_fault(
            part,
            f'platform is "{part.platform}", that of {parts[0].file} is "{parts[0].platform}"',
            "probes of one run are for one platform",
        )
        for part in parts
        if part.platform != parts[0].platform
    ]


def platform_fault(part: WrittenProbes | DraftProbes, message: str, hint: str) -> Diagnostic:
    """A fault at the ``platform`` of a file."""
    source = part.source.replace("\r\n", "\n").split("\n")
    for number, line in enumerate(source, 1):
        match = _PLATFORM.match(line)
        if match:
            return Diagnostic(part.file, number, match.end() + 1, line, message, hint, code="platform")
    return Diagnostic(part.file, 1, 1, source[0], message, hint, code="platform")
