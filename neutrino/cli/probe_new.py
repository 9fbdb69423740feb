"""``neutrino-probe new``: writes a first probe, with comments, that works as it is."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from neutrino.cli.arguments import given
from neutrino.cli.probe_status import DONE, Commands
from neutrino.cli.streams import escaped
from neutrino.errors import NeutrinoError

_TOML = '''\
# {name}: what threads load from global memory. Try it without a GPU, on any kernel in PTX:
#     neutrino-probe check {path}
#     neutrino-probe try {path} KERNEL.ptx
# Then on a program:
#     neutrino -p {path} COMMAND
#     neutrino-report

# Where records go: each thread keeps the first 4 that it saves, and counts the others.
# Instead of "array", type = "sum" adds all threads' values, and "histogram" counts them by size.
[map.Loads]
type = "array"
level = "thread"
cap = 4
data = {{ address = "u64", bytes = "u32", count = "u32" }}

# Where the code runs: after each load from global memory.
# Other tracepoints: "kernel" (entry and exit), "st.global", "atomic", "barrier", "file.cu:42".
[probe.loads]
position = "ld.global"
level = "thread"
after = """
.reg .u32 %count, %bytes;       // registers: one per thread, 0 at first, kept until the thread ends
add.u32 %count, %count, 1;
cvt.u32.u64 %bytes, BYTES;      // BYTES and ADDR: what the instruction accesses
SAVE [ Loads ] {{ ADDR, %bytes, %count }};
"""
'''
_PYTHON = """\
# {name}: what threads load from global memory. Try it without a GPU, on any kernel in PTX:
#     neutrino-probe check {path}
#     neutrino-probe try {path} KERNEL.ptx
# Then on a program:
#     neutrino -p {path} COMMAND
#     neutrino-report
# This file is parsed and never run.
import neutrino.language as nl
from neutrino import Map, probe


# Where records go: each thread keeps the first 4 that it saves, and counts the others.
# Instead of "array", type="sum" adds all threads' values, and "histogram" counts them by size.
@Map(type="array", level="thread", cap=4)
class Loads:
    address: nl.u64
    bytes: nl.u32
    count: nl.u32


# A register: one per thread, kept until the thread ends.
count: nl.u32 = 0


# Where the code runs: after each load from global memory.
# Other tracepoints: "kernel" (entry and exit), "st.global", "atomic", "barrier", "file.cu:42".
@probe(pos="ld.global", level="thread")
def loads():
    count += 1
    Loads.save(nl.addr(), nl.u32(nl.bytes()), count)
"""
_TEMPLATES = {".toml": _TOML, ".py": _PYTHON}


def configure(commands: Commands) -> None:
    """Add the command ``neutrino-probe new`` and its options. commands: the subparsers of ``neutrino-probe``."""
    parser = commands.add_parser(
        "new",
        help="write a first probe, with comments, to start from",
        description="Write a probe file that works as it is: it records what threads load from global memory. Comments "
        "say what each part does and how to run it.",
        epilog="An existing file is never overwritten. Exit status: 0 written; 2 not written.",
    )
    parser.add_argument(
        "file", type=given, metavar="FILE",
        help="path of the file: .toml for a probe in assembly, .py for Python",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the probe file. Returns the exit status.

    Raises NeutrinoError for a name that ends in neither ``.toml`` nor ``.py``, and for a file that exists; OSError.
    """
    path = Path(options.file)
    template = _TEMPLATES.get(path.suffix)
    if template is None:
        raise NeutrinoError(f"{path}: name it {path.name}.toml for a probe in assembly, or {path.name}.py for Python")
    # In the comments, as it has to be typed; a name with line ends would end a comment.
    shown = escaped(os.fspath(path))
    text = template.format(name=escaped(path.stem), path=shown)
    try:
        # "x": created here, or an error.
        file = path.open("x", encoding="utf-8", errors="backslashreplace")
    except FileExistsError:
        raise NeutrinoError(f"{path} exists, and is not overwritten") from None
    try:
        with file:
            file.write(text)
    except OSError as error:
        # A part of it would be in the way of the next attempt.
        path.unlink(missing_ok=True)
        # An error of writing has no name of a file.
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error
    print(f"{shown}: written; neutrino-probe check {shown}")
    return DONE
