"""Telling errors of ptxas and nvlink about their input apart from failures of the machine."""

from __future__ import annotations

import errno
import re
import struct

from neutrino.errors import ToolError

_CRASHES = {-4: "SIGILL", -6: "SIGABRT", -8: "SIGFPE", -11: "SIGSEGV"}
"""Exit statuses, negative for a signal, of a tool that crashed rather than was killed."""
_REFUSAL = re.compile(r"^(?:ptxas|nvlink) (?:error|fatal)\s*:|^ptxas .*, line \d+; (?:error|fatal)\s*:", re.MULTILINE)
"""An error message of ptxas or nvlink, with or without the place in the input."""
# The last two are nvlink's for a folder that is not there and for a full disk.
_ENVIRONMENT = re.compile(
    r"could not be (?:opened|read|written|created)|[Mm]emory allocation|No space left|out of memory|bad_alloc"
    r"|Could not open|Internal error: writing file"
)
"""What the tools print when the machine is the cause, not the input."""


class AssemblyError(ToolError):
    """The assembler or linker refused its input or crashed on it: unlike for other errors, the input is the cause."""

    @property
    def reason(self) -> str:
        """The first error line that the tool printed, without the path of the temporary file; or how it crashed."""
        for line in self.stderr.splitlines():
            if _REFUSAL.search(line):
                # ptxas: "ptxas PATH, line 7; error : TEXT"; nvlink: "nvlink error : TEXT in 'PATH'".
                line = re.sub(r"^ptxas .*?, line (\d+); ", r"line \1: ", line)
                line = re.sub(r"^(?:ptxas|nvlink) ", "", line)
                return re.sub(r" in '[^']*/[^']*'", "", line).strip()
        return f"it crashed ({_CRASHES[self.status]})" if self.status in _CRASHES else str(self)


def check_whole(tool: str, cubin: bytes, folder: str) -> None:
    """Raise OSError (no space left) if a tool wrote only a part of a cubin. folder: the one that it wrote to."""
    if not _is_whole_elf(cubin):
        problem = f"{tool} wrote a truncated cubin of {len(cubin)} bytes; is the disk full?"
        raise OSError(errno.ENOSPC, problem, folder)


def classified(error: ToolError) -> ToolError:
    """Return an AssemblyError if the cause of the error is the tool's input, else the error unchanged.

    The input is the cause when the tool printed an error message about it, or crashed, and did not mention a full disk,
    memory or a file.
    """
    is_refusal = error.status is not None and error.status > 0 and _REFUSAL.search(error.stderr)
    is_crash = error.status in _CRASHES
    if (is_refusal or is_crash) and not _ENVIRONMENT.search(error.stderr):
        return AssemblyError(error.argv, error.status, error.stderr)
    return error


def _is_whole_elf(data: bytes) -> bool:
    """Whether data are an ELF64 file that is long enough for its program and section header tables."""
    # The ELF64 header has 64 bytes.
    if len(data) < 64 or data[:4] != b"\x7fELF":
        return False
    # Fields of the ELF header, at their offsets in the gABI.
    phoff, shoff = struct.unpack_from("<QQ", data, 0x20)
    phentsize, phnum, shentsize, shnum = struct.unpack_from("<HHHH", data, 0x36)
    end = max(phoff + phentsize * phnum, shoff + shentsize * shnum)
    return bool(end <= len(data))
