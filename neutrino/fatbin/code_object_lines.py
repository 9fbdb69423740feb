"""Lines of source code and the notes of code objects, by pyelftools, which only the extra ``amd`` installs."""

from __future__ import annotations

import io
import posixpath
import struct
from collections.abc import Iterator
from typing import Any

from neutrino.errors import FormatError, ToolMissingError

AMD_HINT = 'pip install "neutrino-gpu[amd]"'
_MOST_ROWS = 5_000_000
"""Limit of the rows of line tables that are read."""
_DAMAGE = (
    ValueError, KeyError, IndexError, AttributeError, TypeError, AssertionError, OverflowError, RecursionError,
    NotImplementedError, struct.error, MemoryError,
)  # fmt: skip
"""What pyelftools raises for damaged files beside errors of its own."""


def source_lines(data: bytes, name: str) -> dict[int, str]:
    """Return the lines that a code object's machine code was compiled from: ``FILE:LINE`` by address.

    Each holds up to the next address, and is empty where code comes of no line. Without line tables there are none.
    name: for error messages. Raises FormatError for a damaged table, ToolMissingError without pyelftools.
    """
    lines: dict[int, str] = {}
    for address, source in _read(data, name, "line table", _rows):
        lines[address] = source
    return lines


def notes(data: bytes, name: str) -> list[tuple[str, int, bytes]]:
    """Return the notes of a code object: owner, type and content of each.

    name: for error messages. Raises FormatError for a damaged note, ToolMissingError without pyelftools.
    """
    return list(_read(data, name, "note", _notes))


def _read(data: bytes, name: str, field: str, read: Any) -> Iterator[Any]:
    """Yield what a function reads of an ELF file, with pyelftools' errors as ours. field: what it is, for messages."""
    try:
        from elftools.common.exceptions import DWARFError, ELFError
        from elftools.construct import ConstructError
        from elftools.elf.elffile import ELFFile
    except ImportError as error:
        raise ToolMissingError("pyelftools", AMD_HINT) from error
    try:
        yield from read(ELFFile(io.BytesIO(data)))
    except (ELFError, DWARFError, ConstructError, *_DAMAGE) as error:
        found = f"damaged ({type(error).__name__}: {error!s:.80})"
        raise FormatError(name, 0, field, found, "one that pyelftools reads") from error


def _notes(elf: Any) -> Iterator[tuple[str, int, bytes]]:
    """Yield the notes of a file's segments, without segments of its sections."""
    parts = [part for part in elf.iter_segments() if part["p_type"] == "PT_NOTE"]
    if not elf.num_segments():
        parts = [part for part in elf.iter_sections() if part["sh_type"] == "SHT_NOTE"]
    for part in parts:
        for note in part.iter_notes():
            # A type that it has a name for is that name.
            kind = note["n_type"] if isinstance(note["n_type"], int) else -1
            yield str(note["n_name"]), kind, bytes(note["n_descdata"])


def _rows(elf: Any) -> Iterator[tuple[int, str]]:
    """Yield the rows of all line tables. Raises ValueError for more than there can be."""
    if not elf.has_dwarf_info(strict=True):
        return
    debug = elf.get_dwarf_info()
    count = 0
    for unit in debug.iter_CUs():
        program = debug.line_program_for_CU(unit)
        if program is None:
            continue
        names: dict[int, str] = {}
        for entry in program.get_entries():
            state = entry.state
            if state is None:
                continue
            count += 1
            if count > _MOST_ROWS:
                raise ValueError(f"more than {_MOST_ROWS} rows")
            # Line 0 is code that comes of no line.
            if state.end_sequence or not state.line:
                yield state.address, ""
                continue
            if state.file not in names:
                names[state.file] = _file_name(program, state.file)
            yield state.address, f"{names[state.file]}:{state.line}"


def _file_name(program: Any, number: int) -> str:
    """Return the name of a file of a line table: with its folder, unless that is the one it was compiled in."""
    header = program.header
    # Since version 5 the numbers of files begin with 0; before, 0 is the folder of the compilation.
    has_zero = header["version"] >= 5
    entry = header["file_entry"][number if has_zero else number - 1]
    name = entry.name.decode("utf-8", "replace")
    folders = header["include_directory"]
    folder = b"" if entry.dir_index == 0 else folders[entry.dir_index if has_zero else entry.dir_index - 1]
    return posixpath.join(folder.decode("utf-8", "replace"), name)
