"""Errors of ptxas and nvlink about their input, as opposed to failures of the machine."""

from __future__ import annotations

import errno
import re
import struct

from neutrino.errors import ToolError

_CRASHES = {-4: "SIGILL", -6: "SIGABRT", -8: "SIGFPE", -11: "SIGSEGV"}
_REFUSAL = re.compile(
    r"^(?:ptxas|nvlink) (?:error|fatal)\s*:|^ptxas .*, line \d+; (?:error|fatal)\s*:", re.MULTILINE
)
# The last two are nvlink's for a folder that is not there and for a full disk.
_ENVIRONMENT = re.compile(
    r"could not be (?:opened|read|written|created)|[Mm]emory allocation|No space left|out of memory|bad_alloc"
    r"|Could not open|Internal error: writing file"
)

class AssemblyError(ToolError):
    """The assembler or linker refused its input or crashed on it: a verdict about that, unlike any other ToolError."""

    @property
    def reason(self) -> str:
        """The first line that says what is wrong, without the path of the temporary file."""
        for line in self.stderr.splitlines():
            if _REFUSAL.search(line):
                line = re.sub(r"^ptxas .*?, line (\d+); ", r"line \1: ", line)
                line = re.sub(r"^(?:ptxas|nvlink) ", "", line)
                return re.sub(r" in '[^']*/[^']*'", "", line).strip()
        return f"it crashed ({_CRASHES[self.status]})" if self.status in _CRASHES else str(self)


def check_whole(tool: str, cubin: bytes, folder: str) -> None:
    if not _is_whole_elf(cubin):
        problem = f"{tool} wrote a truncated cubin of {len(cubin)} bytes; is the disk full?"
        raise OSError(errno.ENOSPC, problem, folder)


def classified(error: ToolError) -> ToolError:
    refused = error.status is not None and error.status > 0 and _REFUSAL.search(error.stderr)
    if (refused or error.status in _CRASHES) and not _ENVIRONMENT.search(error.stderr):
        return AssemblyError(error.argv, error.status, error.stderr)
    return error


def _is_whole_elf(data: bytes) -> bool:
    if len(data) < 64 or data[:4] != b"\x7fELF":
        return False
    programs, sections = struct.unpack_from("<QQ", data, 0x20)
    program_size, program_count, section_size, section_count = struct.unpack_from("<HHHH", data, 0x36)
    end = max(programs + program_size * program_count, sections + section_size * section_count)
    return bool(end <= len(data))
