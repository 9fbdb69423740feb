"""The frame of the wrong probe files: a file around a snippet, and what is said of a file.

``¦`` marks the place at which a fault must be reported; it is taken out before the file is read.
"""

from __future__ import annotations

from pathlib import Path

from neutrino.errors import Diagnostic, ProbeError
from neutrino.verification import load_probe_file

MAP = """[map.M]
type = "array"
level = "thread"
size = 8
data = { value = "u64" }
"""


def at_load(after: str, level: str = "thread", position: str = "ld.global", side: str = "after") -> str:
    """A file with one map, and one probe with this snippet."""
    return f'''{MAP}
[probe.p]
position = "{position}"
level = "{level}"
{side} = """
.reg .u64 %a, %b;
.reg .u32 %n;
.reg .f32 %f;
.reg .pred %p, %q;
.reg .b16 %h; .reg .f64 %d;
{after}
SAVE [ M ] {{ %a }};
"""
'''


def check(path: Path) -> None:
    """Read a file as ``-p`` does. Raises ProbeError."""
    load_probe_file(path)


def fault_at_mark(path: Path, marked: str) -> Diagnostic | str:
    """The fault at the mark of a file, or what was said instead."""
    before, _, after = marked.partition("¦")
    path.write_text(before + after)
    line = before.count("\n") + 1
    column = len(before) - before.rfind("\n")
    try:
        check(path)
    except ProbeError as error:
        for fault in error.diagnostics:
            if (fault.line, fault.column, fault.severity) == (line, column, "error"):
                return fault
        return str(error)
    return "no fault"


def named_fault(path: Path, marked: str, message: str, hint: str) -> Diagnostic:
    """The fault at the mark of a file; fails the test unless it is said in these words and shown with its line."""
    assert marked.count("¦") == 1
    fault = fault_at_mark(path, marked)
    assert isinstance(fault, Diagnostic), fault
    assert message in fault.message
    assert hint in fault.hint
    assert fault.file == str(path)
    assert fault.source == path.read_text().split("\n")[fault.line - 1]
    assert str(fault).startswith(f"{path}:{fault.line}:{fault.column}: error: ")
    return fault
