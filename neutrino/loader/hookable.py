"""Whether the dynamic loader will load the hook's auditing module into COMMAND itself."""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path

_ELF_HEADER = struct.Struct("<16sHHIQQQIHHH")
"""The fields of Elf64_Ehdr up to e_phnum (System V ABI, Figure 4-3)."""
_SEGMENT = struct.Struct("<IIQQQQ")
"""The fields of Elf64_Phdr up to p_filesz."""
_PT_INTERP = 3
_LARGEST_HEADERS = 1 << 16
_LONGEST_LINE = 4096
_MOST_INTERPRETERS = 4
"""Scripts whose interpreter is a script: as many as Linux follows."""


def why_not_hooked(program: Path) -> str | None:
    """Return why a program cannot have the hook, as a clause; None if it can, or if that is not known.

    For a script, this is about its interpreter. Programs that the program starts are not considered.
    """
    try:
        for _ in range(_MOST_INTERPRETERS):
            with program.open("rb") as file:
                start = file.read(_LARGEST_HEADERS)
                if not start.startswith(b"#!"):
                    return _of_elf(start, program, os.fstat(file.fileno()))
            words = start[2:_LONGEST_LINE].partition(b"\n")[0].split()
            program = Path(os.fsdecode(words[0]))
    except (OSError, IndexError, struct.error, ValueError):
        # exec will say what is wrong with it.
        pass
    return None


def _of_elf(start: bytes, program: Path, status: os.stat_result) -> str | None:
    """Return the clause for an ELF file. start: its first bytes. Raises struct.error for a damaged one."""
    if not start.startswith(b"\x7fELF"):
        return None
    # EI_CLASS: 2 is 64-bit.
    if start[4] != 2:
        return "it is a 32-bit program"
    if _is_privileged(program, status):
        return "it has privileges of its own (set-user-id or capabilities), so the dynamic loader ignores LD_AUDIT"
    header = _ELF_HEADER.unpack_from(start)
    offset, size, count = header[5], header[9], header[10]
    for index in range(count):
        kind, _, begin, _, _, length = _SEGMENT.unpack_from(start, offset + index * size)
        if kind == _PT_INTERP:
            loader = Path(os.fsdecode(start[begin : begin + length].rstrip(b"\0"))).name
            return "it is linked to musl, which has no LD_AUDIT" if loader.startswith("ld-musl") else None
    # The dynamic loader itself, which is started with a program as its argument, names none.
    if program.resolve().name.startswith("ld"):
        return None
    return "it is statically linked"


def _is_privileged(program: Path, status: os.stat_result) -> bool:
    """Whether the kernel gives a program privileges that its caller does not have (AT_SECURE)."""
    if status.st_mode & stat.S_ISUID and status.st_uid != os.getuid():
        return True
    # Without execute permission of the group the bit means something else.
    if status.st_mode & stat.S_ISGID and status.st_mode & stat.S_IXGRP and status.st_gid != os.getgid():
        return True
    if os.getuid() == 0:
        # Root has all capabilities already.
        return False
    try:
        return bool(os.getxattr(program, "security.capability"))
    except OSError:
        return False
