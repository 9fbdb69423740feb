"""``ptxas``: assembles PTX to machine code, and reports resource usage and warnings."""

from __future__ import annotations

import contextlib
import re
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from neutrino.errors import ToolError
from neutrino.places import scratch_parent
from neutrino.toolchain.assembled import Assembled, Resources
from neutrino.toolchain.process import run_tool
from neutrino.toolchain.refusal import check_whole, classified
from neutrino.toolchain.releases import PTX_RELEASES

ASSEMBLE_TIMEOUT = 600.0
"""Seconds that one ``ptxas`` may take; a 4.8 MB module of 201 kernels takes 5 seconds."""


@dataclass(frozen=True)
class Assembler:
    """A ``ptxas``. version: such as (13, 0, 88). identity: differs between builds, for the cache key.

    slots: a context that each thread enters while its process runs, to limit how many run at a time; by default there
    is no limit.
    """

    path: Path
    version: tuple[int, int, int]
    identity: str = field(compare=False)
    slots: contextlib.AbstractContextManager[object] = field(
        default_factory=contextlib.nullcontext, compare=False, repr=False
    )

    @property
    def name(self) -> str:
        """The assembler's name and version for messages, such as ``ptxas 13.0.88``."""
        return "ptxas " + ".".join(map(str, self.version))

    @property
    def ptx_version(self) -> tuple[int, int]:
        """The highest PTX ISA ``.version`` that it is known to accept, such as (9, 0)."""
        # For releases older than the table, whose first row is CUDA 11.0.
        accepted = (6, 5)
        for release, ptx_version in PTX_RELEASES:
            if release <= self.version[:2]:
                accepted = ptx_version
        return accepted

    def limited(self, slots: contextlib.AbstractContextManager[object]) -> Assembler:
        """Return the same assembler, each process of which takes one of these slots while it runs."""
        return replace(self, slots=slots)

    def assemble(
        self,
        text: str | bytes,
        arch: str,
        options: Sequence[str] | str = (),
        *,
        timeout: float = ASSEMBLE_TIMEOUT,
    ) -> Assembled:
        """Assemble PTX to a cubin.

        text: a ``str`` is encoded as latin-1. arch: such as ``sm_90a``. options: further options for ptxas. timeout:
        seconds. Raises AssemblyError when the assembler refuses the text or crashes on it; ToolError or OSError when
        the cause is the machine, not the text (no such file, killed, disk full).
        """
        option_list = shlex.split(options) if isinstance(options, str) else list(options)
        with tempfile.TemporaryDirectory(prefix="neutrino-", dir=scratch_parent()) as folder:
            source, output = Path(folder) / "module.ptx", Path(folder) / "module.cubin"
            source.write_bytes(text.encode("latin-1") if isinstance(text, str) else text)
            argv: list[str | Path] = [self.path, f"-arch={arch}", "-v", *option_list, source, "-o", output]
            try:
                with self.slots:
                    result = run_tool(argv, timeout=timeout)
            except ToolError as error:
                raise classified(error) from error
            cubin = output.read_bytes()
        # ptxas 13.0 exits with status 0 even if the disk became full while it wrote.
        check_whole("ptxas", cubin, folder)
        # Triton's ptxas, and releases before 11, print some lines to stdout.
        printed = result.stderr + result.stdout.decode("utf-8", "replace")
        return Assembled(cubin, _parse_resources(printed), _parse_warnings(printed))


_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")


def _parse_resources(printed: str) -> dict[str, Resources]:
    """Parse the output of ``ptxas -v``, and return the resource usage by kernel name.

    For each kernel ptxas prints its name, its stack frame and spills, its registers, and then the stack frames of the
    functions that it calls.
    """
    resources: dict[str, Resources] = {}
    # The kernel whose registers have not been printed yet; empty after that, until the next kernel begins.
    kernel = ""
    # The function, or the kernel itself, of which the next line with a stack frame is.
    function = ""
    # The functions' frames of the kernel whose registers were printed last.
    called_frames: dict[str, int] = {}
    frame_and_spills = (0, 0, 0)
    for line in printed.splitlines():
        if match := _ENTRY.search(line):
            kernel, frame_and_spills = match[1], (0, 0, 0)
        elif match := _PROPERTIES.search(line):
            function = match[1]
        elif match := _STACK.search(line):
            frame, spill_stores, spill_loads = map(int, match.groups())
            if function == kernel:
                frame_and_spills = (frame, spill_stores, spill_loads)
            elif not kernel:
                called_frames[function] = frame
        elif (match := _REGISTERS.search(line)) and kernel:
            # The new dictionary is filled by the lines that follow.
            called_frames = {}
            resources[kernel] = Resources(int(match[1]), *frame_and_spills, functions=called_frames)
            kernel = ""
    return resources


_WARNING = re.compile(r"^ptxas (?:.*?, line \d+; )?(?:warning|advisory|info)\s*:\s*(.*)")
_CODE = re.compile(r"\(C\d{4}\)")


def _parse_warnings(printed: str) -> tuple[str, ...]:
    """Return the texts of warnings in the output of ptxas.

    Lines with a code such as (C7508) count as well: some releases print them as information.
    """
    warnings = []
    for line in printed.splitlines():
        # Group 1 is the text. The kind of message is before the first colon.
        match = _WARNING.search(line)
        kind, _, _ = line.partition(":")
        if match and ("warning" in kind or _CODE.search(match[1])):
            warnings.append(match[1].strip())
    return tuple(warnings)
