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
_CHOOSING = frozenset({"-k", "--kernel", "--filter", "--launches", "--tracedir"})
"""Options of ``neutrino`` that are noted after COMMAND."""
_NO_NAME = re.compile(r"-|\d*\.?\d*$")
"""Values of ``-k`` that name no kernel: options, numbers."""
_MOST_OF_PROGRAM = 1 << 24
"""Bytes of a program that are searched for its own options; of larger ones nothing is said."""


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
    if "/" in name:
        return _of_missing(path)
    if name in shipped_probes():
        return f"before each probe stands -p: -p {name}"
    for tool, words in _OF_TOOLS.items():
        if name in words:
            example = f"{name} …" if tool == "probe" else f"PID {name}"
            return f"neutrino {tool} {example if name not in ('list', 'codes') else name} is meant"
    if name in _VERBS and arguments:
        return "without it: neutrino [-p PROBE] COMMAND"
    return ""


def _of_missing(path: Path) -> str:
    """Return the file that may be meant by a path at which there is none, or what makes its folder; "" for neither."""
    # Imported here: only a mistake needs it.
    from neutrino.probing.nearest import nearest

    folder = path.parent
    try:
        if folder.is_dir():
            meant = nearest(path.name, [each.name for each in folder.iterdir() if os.access(each, os.X_OK)])
            shown = f"./{meant}" if folder == Path() else folder / (meant or "")
            return f"did you mean {shown}?" if meant else f"there is no such file in {folder}"
        above = next((each for each in folder.parents if each.is_dir()), Path())
    except OSError:
        return ""
    missing = f"there is no folder {folder}"
    return f"{missing}; make -C {above} may build it" if (above / "Makefile").is_file() else missing


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
    if path.suffix == ".ipynb":
        return "a notebook is no program: its cells use neutrino.trace()"
    if os.access(path, os.X_OK):
        return f"of this folder: ./{name}"
    return "a source is compiled first" if path.suffix in {".c", ".cc", ".cpp", ".cu", ".cxx"} else ""


def options_after(command: Sequence[str]) -> str:
    """Return the options of ``neutrino`` that stand after COMMAND, and so are COMMAND's, as a sentence; "" for none.

    Only what hardly is an option of COMMAND: a probe by its name or file, a probe in one line, the embedded device; and
    what chooses kernels or launches, where COMMAND is a program of machine code that has no such word in it, and no
    function that reads options.
    """
    shipped = shipped_probes()
    own = _bytes_of_program(command[0])
    for option, value in itertools.pairwise(command[1:]):
        is_probe = value in shipped or (value.endswith((".py", ".toml")) and Path(value).is_file())
        if (
            (option in {"-p", "--probe"} and is_probe)
            or (option in {"-e", "--expression"} and re.search(r"\{[^}]*@\w*(\[|\s*=)", value))
            or (option == "--device" and value.partition(":")[0] == "embedded")
            or (option in _CHOOSING and own and not _NO_NAME.match(value) and not _may_take(own, option))
        ):
            return f"{option} {value} stands after COMMAND, and so is COMMAND's: options of neutrino stand before it"
    return ""


def _bytes_of_program(name: str) -> bytes:
    """Return a program of machine code that is named by a path; b"" for any other, and a large one."""
    try:
        path = Path(name)
        if "/" not in name or not path.is_file() or path.stat().st_size > _MOST_OF_PROGRAM:
            return b""
        data = path.read_bytes()
    except OSError:
        return b""
    return data if data.startswith(b"\x7fELF") else b""


def _may_take(program: bytes, option: str) -> bool:
    """Whether a program may have an option: its name, or a function that reads options, is in it."""
    # One letter is in every program.
    name = option if len(option) == 2 else option.removeprefix("--")
    return any(word in program for word in (b"getopt", b"argp_", b"popt", b"gflags", b"boost", b"Py_", name.encode()))
