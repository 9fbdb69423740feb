"""``ptxas``: PTX to machine code, and what it says about its work."""

from __future__ import annotations

import contextlib
import re
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from neutrino.errors import ToolError
from neutrino.toolchain.process import run_tool
from neutrino.toolchain.refusal import check_whole, classified
from neutrino.toolchain.releases import PTX_RELEASES

ASSEMBLE_TIMEOUT = 600.0
"""Seconds that one ``ptxas`` may take; a 4.8 MB module of 201 kernels takes 5."""


@dataclass(frozen=True)
class Resources:
    """What ``ptxas -v`` says of one kernel. Stack frame and spills in bytes per thread, called functions not
    included.

    functions: stack frames of functions that it calls and that were assembled with it.
    """

    registers: int
    frame: int
    spill_stores: int
    spill_loads: int
    functions: Mapping[str, int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Assembled:
    """A cubin, and what ``ptxas`` said. resources: by kernel. warnings: the warning and advisory lines, in order."""

    cubin: bytes
    resources: dict[str, Resources]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Assembler:
    """A ``ptxas``. version: (13, 0, 88). identity: differs between builds, for the cache key.

    slots: held by each thread while the process runs: by default as many run as are asked for.
    """

    path: Path
    version: tuple[int, int, int]
    identity: str = field(compare=False)
    slots: contextlib.AbstractContextManager[object] = field(
        default_factory=contextlib.nullcontext, compare=False, repr=False
    )

    @property
    def name(self) -> str:
        """``ptxas 13.0.88``."""
        return "ptxas " + ".".join(map(str, self.version))

    @property
    def ptx_version(self) -> tuple[int, int]:
        """The highest PTX ISA ``.version`` that it is known to accept."""
        accepted = (6, 5)
        for release, ptx in PTX_RELEASES:
            if release <= self.version[:2]:
                accepted = ptx
        return accepted

    def assemble(
        self,
        text: str | bytes,
        arch: str,
        options: Sequence[str] | str = (),
        *,
        timeout: float = ASSEMBLE_TIMEOUT,
    ) -> Assembled:
        """Assemble PTX for arch (``sm_90a``) with further ptxas options. Text counts as latin-1; timeout in seconds.

        Raises AssemblyError when the text is refused or crashes the assembler; ToolError or OSError when the
        machine is at fault (no such file, killed, disk full), so that nothing was learned about the text.
        """
        words = shlex.split(options) if isinstance(options, str) else list(options)
        with tempfile.TemporaryDirectory(prefix="neutrino-") as folder:
            source, result = Path(folder) / "module.ptx", Path(folder) / "module.cubin"
            source.write_bytes(text.encode("latin-1") if isinstance(text, str) else text)
            argv: list[str | Path] = [self.path, f"-arch={arch}", "-v", *words, source, "-o", result]
            try:
                with self.slots:
                    done = run_tool(argv, timeout=timeout)
            except ToolError as error:
                raise classified(error) from error
            cubin = result.read_bytes()
        # ptxas 13.0 ends with status 0 when the disk filled up while it wrote.
        check_whole("ptxas", cubin, folder)
        # Triton's ptxas and those before 11 print some of it on stdout.
        printed = done.stderr + done.stdout.decode("utf-8", "replace")
        return Assembled(cubin, _parse_resources(printed), _parse_warnings(printed))


_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")


def _parse_resources(printed: str) -> dict[str, Resources]:
    """The kernels' lines of ``ptxas -v``; a kernel's are followed by those of the functions that it calls."""
    found: dict[str, Resources] = {}
    called: dict[str, int] = {}
    entry = function = ""
    stack = (0, 0, 0)
    for line in printed.splitlines():
        if match := _ENTRY.search(line):
            entry, stack = match[1], (0, 0, 0)
        elif match := _PROPERTIES.search(line):
            function = match[1]
        elif (match := _STACK.search(line)) and function == entry:
            stack = (int(match[1]), int(match[2]), int(match[3]))
        elif match and not entry:
            called[function] = int(match[1])
        elif (match := _REGISTERS.search(line)) and entry:
            called = {}
            found[entry] = Resources(int(match[1]), *stack, functions=called)
            entry = ""
    return found


_WARNING = re.compile(r"^ptxas (?:.*?, line \d+; )?(?:warning|advisory|info)\s*:\s*(.*)")
_CODE = re.compile(r"\(C\d{4}\)")


def _parse_warnings(printed: str) -> tuple[str, ...]:
    """Warnings, and the lines with a code such as (C7508), which some releases print as information."""
    found = []
    for line in printed.splitlines():
        match = _WARNING.search(line)
        if match and ("warning" in line.split(":")[0] or _CODE.search(match[1])):
            found.append(match[1].strip())
    return tuple(found)
