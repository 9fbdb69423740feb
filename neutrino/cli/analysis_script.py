"""What the shipped scripts do: the findings of one or more analyses, of a trace or of a dump of one kernel."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from neutrino.cli.kernel_names import shorten
from neutrino.cli.report_faults import report_faults
from neutrino.cli.report_messages import DONE, NOTHING, fail, say
from neutrino.cli.section_text import section_lines
from neutrino.cli.streams import escaped, print_anything
from neutrino.errors import NeutrinoError
from neutrino.tracing import Trace, summarize
from neutrino.tracing.analyses.registry import ANALYSES
from neutrino.tracing.analyses.run import findings_of
from neutrino.tracing.shown.findings import full_findings

_NAME_WIDTH = 100
_DUMP = re.compile(r"(\d{1,9})(?:\.\d+)?\.bin", re.ASCII)
"""``ID.bin`` or ``ID.PART.bin``: the data of a kernel."""


def run(names: Sequence[str], arguments: Sequence[str]) -> int:
    """Print the findings of analyses, as an analyze hook, as a callback, or by hand.

    names: of the analyses. arguments: of the command, the script's name first; the next one is a trace, or the path of
    a dump in it, TRACE/result/ID.bin: then those of its kernel. Returns the exit status: 0 done, 2 bad input, 3 the
    trace has nothing for these analyses.
    """
    print_anything()
    if len(arguments) != 2 or arguments[1].startswith("-"):
        questions = " ".join(ANALYSES[name].question for name in names)
        say(f"{questions} usage: {Path(arguments[0]).name} TRACE, or TRACE/result/ID.bin")
        return 2
    path = Path(arguments[1])
    dump = _DUMP.fullmatch(path.name) if path.parent.name == "result" else None
    try:
        trace = Trace(path.parent.parent if dump else path, is_tolerant=True)
        summary = summarize(trace, lambda kernel: dump is None or kernel.id == int(dump[1]))
        findings = findings_of(summary, names=names)
    except NeutrinoError as error:
        return fail(error)
    # Other analyses' probes are no matter of this script.
    sections = [section for section in full_findings(findings) if section.kind == "finding"]
    lines = [line for section in sections for line in section_lines(section, _label)]
    try:
        print("".join(f"{escaped(line)}\n" for line in lines), end="", flush=True)
    except OSError as error:
        # What is left in the buffer must not fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE if isinstance(error, BrokenPipeError) else fail(error.strerror or str(error))
    status = report_faults([trace])
    if not findings.found and status == DONE:
        probes = " or ".join(" ".join(f"-p {probe}" for probe in ANALYSES[name].probes[0]) for name in names)
        say(f"{path}: nothing was recorded that tells; record it with {probes}")
        return NOTHING
    return status


def _label(name: str) -> str:
    """Return a kernel's name as it is shown."""
    return shorten(name, _NAME_WIDTH)
