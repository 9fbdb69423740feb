"""What was meant by a COMMAND that there is not, or by options of ``neutrino`` that stand after it."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from neutrino.resources import shipped_probes

_OF_TOOLS = {
    "probe": ("check", "compile", "codes", "list", "new", "show", "sites", "try"),
    "ctl": ("flush", "off", "on", "status", "top"),
}
"""Words of other commands of Neutrino."""
_VERBS = frozenset({"exec", "launch", "profile", "record", "run", "start"})
"""What the commands of other tools begin with."""
_OF_PROBES = re.compile(r"^@(?:\w+\.)?probe\b", re.MULTILINE)
_OF_SHELLS = frozenset("|<>;&$`*")
_MOST_READ = 1 << 16


def hint_of_command(command: Sequence[str]) -> str:
    """Return what to write in place of a command that cannot be run; "" if it can, or nothing is known.

    command: with its arguments.
    """
    name, *arguments = command
    path = Path(name)
    if shutil.which(name):
        return ""
    if path.is_dir():
        has_traces = any(path.glob("events.jsonl")) or any(path.glob("*/events.jsonl"))
        return f"to read a trace: neutrino report {name}" if has_traces else "it is a folder: give a program in it"
    if any(character.isspace() for character in name) and not path.exists():
        return _of_quoted(name)
    if path.is_file():
        return _of_file(name, path)
    if name in shipped_probes():
        return f"before each probe stands -p: -p {name}"
    for tool, words in _OF_TOOLS.items():
        if name in words:
            example = f"{name} …" if tool == "probe" else f"PID {name}"
            return f"neutrino {tool} {example if name not in ('list', 'codes') else name} is meant"
    if name in _VERBS and arguments:
        return "without it: neutrino [-p PROBE] COMMAND"
    return ""


def _of_quoted(name: str) -> str:
    """Return what to write for a command line in quotes."""
    if _OF_SHELLS & set(name):
        return f"for a shell: neutrino … sh -c {shlex.quote(name)}"
    return f"COMMAND and its arguments stand without quotes around them: neutrino … {name}"


def _of_file(name: str, path: Path) -> str:
    """Return what to do with a file that is no program in PATH, or is none."""
    if path.suffix == ".toml":
        return f"a probe stands after -p: -p ./{path.name}" if path.parent == Path() else f"-p {name} for a probe"
    if path.suffix == ".py":
        try:
            with path.open(encoding="utf-8", errors="replace") as file:
                is_probe = _OF_PROBES.search(file.read(_MOST_READ)) is not None
        except OSError:
            is_probe = False
        shown = name if "/" in name else f"./{name}"
        return f"a probe stands after -p: -p {shown}" if is_probe else f"a script: neutrino … python {name}"
    if os.access(path, os.X_OK):
        return f"of this folder: ./{name}"
    return "a source is compiled first" if path.suffix in {".c", ".cc", ".cpp", ".cu", ".cxx"} else ""


def options_after(command: Sequence[str]) -> str:
    """Return the options of ``neutrino`` that stand after COMMAND, and so are COMMAND's, as a sentence; "" for none.

    Only what hardly is an option of COMMAND: a probe by its name or file, a probe in one line, the embedded device.
    """
    shipped = shipped_probes()
    for option, value in itertools.pairwise(command[1:]):
        is_probe = value in shipped or (value.endswith((".py", ".toml")) and Path(value).is_file())
        if (
            (option in {"-p", "--probe"} and is_probe)
            or (option in {"-e", "--expression"} and re.search(r"\{[^}]*@\w*(\[|\s*=)", value))
            or (option == "--device" and value.partition(":")[0] == "embedded")
        ):
            return f"{option} {value} stands after COMMAND, and so is COMMAND's: options of neutrino stand before it"
    return ""
