"""The PTX line that each machine instruction of a cubin was compiled from, as ``ptxas -lineinfo`` records it; and the
line of the source, where the PTX named it.

The sections ``.nv_debug_line_sass`` and ``.debug_line`` have line number programs as in DWARF 2 (6.2, "Line Number
Information"), one after the other. The address that each sets is relocated to a function's symbol. ``nvdisasm -gp``
prints them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from neutrino.elf.cursor import Cursor
from neutrino.elf.reader import Elf
from neutrino.sass.cubin import open_cubin

SECTION = ".nv_debug_line_sass"
SOURCE_SECTION = ".debug_line"

# DWARF 2, 7.21: standard and extended opcodes.
_COPY, _ADVANCE_PC, _ADVANCE_LINE, _SET_FILE, _SET_COLUMN, _NEGATE, _BASIC_BLOCK, _CONST_ADD, _FIXED = range(1, 10)
_END_SEQUENCE, _SET_ADDRESS = 1, 2
_ESCAPED, _ESCAPED_AFTER = re.compile(r"\\[23][0-7]{2}$"), re.compile(r"2[0-7]{2}")
_MAX_ROWS = 1 << 22
"""As many rows as a kernel of 64 MiB has; a malformed program could produce more from a few bytes."""


def sass_lines(cubin: bytes | memoryview, file: str) -> dict[str, list[tuple[int, int]]]:
    """Return the PTX lines of a cubin's instructions: for each function, (offset, line) pairs, sorted by offset.

    The assembler records them if it is called with ``-lineinfo``, in a section with line number programs as in DWARF.
    The instructions from an offset (in bytes, in the function's code) up to the next pair's come from that line of the
    PTX text. Empty without line information. file: the cubin's name, for errors. Raises FormatError when it is damaged.
    """
    found = line_rows(cubin, file, SECTION)
    return {name: [(offset, line) for offset, line, _ in rows] for name, rows in found.items()}


def line_rows(cubin: bytes | memoryview, file: str, name: str) -> dict[str, list[tuple[int, int, str]]]:
    """Return the rows of a cubin's line number programs in a section: for each function, (offset, line, path) of
    instructions from an offset on, sorted by offset. Empty without that section. name: of the section; file: of the
    cubin, for errors. Raises FormatError when it is damaged.
    """
    elf = open_cubin(cubin, file)
    section = elf.section(name)
    if section is None:
        return {}
    functions = _relocated_symbols(elf, section.index)
    cursor = Cursor(elf.contents(section), file, base=section.offset)
    rows_by_function: dict[str, list[tuple[int, int, str]]] = {}
    while cursor.remaining:
        _read_program(cursor, functions, rows_by_function)
    # By offset only: rows of equal offset stay in the order in which the program appended them.
    return {name: sorted(rows, key=lambda row: row[0]) for name, rows in rows_by_function.items()}


def _relocated_symbols(elf: Elf, section_index: int) -> dict[int, str]:
    """Return the names of the symbols that a section's relocations refer to, by the offset that is relocated.

    Where a line number program sets an address, the relocation shows which function it is in.
    """
    symbols = {symbol.index: symbol.name for symbol in elf.symbols()}
    names = {}
    for table in elf.relocation_tables.get(section_index, ()):
        for relocation in elf.relocations(table):
            names[relocation.offset] = symbols.get(relocation.symbol, "")
    return names


class _ProgramHeader(NamedTuple):
    """The header of a line number program; the fields but ``end`` are those of DWARF 2.

    end: position of the cursor at which the program ends. operand_counts: of each standard opcode, how many LEB128
    operands follow it; index 0 is unused. paths: of the source files, by their numbers from 1.
    """

    end: int
    minimum_instruction_length: int
    line_base: int
    line_range: int
    opcode_base: int
    operand_counts: list[int]
    paths: list[str]


def _read_header(cursor: Cursor) -> _ProgramHeader:
    """Read the header of a line number program, and move the cursor to its first opcode."""
    length = cursor.integer(4, "length")
    end = cursor.position + length
    if length > cursor.remaining:
        raise cursor.error("length", str(length), f"at most {cursor.remaining}")
    version = cursor.integer(2, "version")
    if version not in (2, 3):
        raise cursor.error("version", str(version), "2 or 3")
    header_length = cursor.integer(4, "header length")
    first_opcode = cursor.position + header_length
    # The field that is skipped is default_is_stmt.
    instruction_length, _, line_base, line_range, opcode_base = (cursor.integer(1, "header") for _ in range(5))
    # line_base is a signed byte.
    if line_base > 127:
        line_base -= 256
    # A program with a zero here could not advance, or would divide by it.
    if not line_range or not opcode_base or not instruction_length:
        raise cursor.error("header", "zero", "a length, range and first opcode")
    operand_counts = [0, *(cursor.integer(1, "standard opcode lengths") for _ in range(opcode_base - 1))]
    if not cursor.position <= first_opcode <= end:
        raise cursor.error("header length", str(header_length), "one within the unit")
    paths = _read_paths(cursor, first_opcode)
    cursor.seek(first_opcode, "header length")
    return _ProgramHeader(end, instruction_length, line_base, line_range, opcode_base, operand_counts, paths)


def _read_paths(cursor: Cursor, end: int) -> list[str]:
    """Read the tables of folders and files before a position; return the files' paths, the first of which is none.

    They are as in ``.file``, escapes included, of which ``ptxas`` takes the last backslash for that of a folder.
    """
    folders, paths = [""], [""]
    while cursor.position < end and (folder := _text(cursor, end)):
        folders.append(folder)
    while cursor.position < end and (name := _text(cursor, end)):
        # What follows the folder's number: when the file was changed, and its size.
        number, _, _ = _unsigned(cursor), _unsigned(cursor), _unsigned(cursor)
        folder = folders[number] if number < len(folders) and not name.startswith("/") else ""
        # The further bytes of a character of UTF-8, of which the folder has the first.
        mark = "\\" if _ESCAPED.search(folder) and _ESCAPED_AFTER.match(name) else "/"
        paths.append(f"{folder}{mark}{name}" if folder else name)
    return paths


def _text(cursor: Cursor, end: int) -> str:
    """Read a text that ends with NUL, before a position. Raises FormatError if it does not."""
    found = bytearray()
    while byte := cursor.integer(1, "text"):
        found.append(byte)
        if cursor.position >= end:
            raise cursor.error("text", "no NUL", "one within the header")
    return found.decode("latin-1")


def _read_program(
    cursor: Cursor, functions: dict[int, str], rows_by_function: dict[str, list[tuple[int, int, str]]]
) -> None:
    """Run the line number program at the cursor (DWARF 2, 6.2.5), and add its rows to ``rows_by_function``.

    functions: the function whose address is at an offset of the section. The rows are (offset in the function, line,
    path). Raises FormatError for a damaged program.
    """
    end, instruction_length, line_base, line_range, opcode_base, operand_counts, paths = _read_header(cursor)
    # The state in which each sequence begins; function is empty while no address was set.
    function, address, line, number = "", 0, 1, 1
    row_count = 0
    while cursor.position < end:
        opcode = cursor.integer(1, "opcode")
        appends_row = opcode == _COPY or opcode >= opcode_base
        if opcode >= opcode_base:
            # A special opcode advances address and line in one byte.
            address_steps, line_step = divmod(opcode - opcode_base, line_range)
            address += address_steps * instruction_length
            line += line_base + line_step
        elif opcode == 0:
            size = _unsigned(cursor)
            if not 0 < size <= end - cursor.position:
                raise cursor.error("extended opcode", f"{size} bytes", f"1 to {end - cursor.position}")
            next_opcode = cursor.position + size
            extended = cursor.integer(1, "extended opcode")
            if extended == _SET_ADDRESS:
                # The operand is relocated to the function, so what is stored there is the offset in it.
                function = functions.get(cursor.position, "")
                address = cursor.integer(8, "address")
            elif extended == _END_SEQUENCE:
                function, address, line, number = "", 0, 1, 1
            cursor.seek(next_opcode, "extended opcode")
        elif opcode == _ADVANCE_PC:
            address += _unsigned(cursor) * instruction_length
        elif opcode == _ADVANCE_LINE:
            line += _signed(cursor)
        elif opcode == _SET_FILE:
            number = _unsigned(cursor)
        elif opcode == _CONST_ADD:
            # As much as special opcode 255.
            address += (255 - opcode_base) // line_range * instruction_length
        elif opcode == _FIXED:
            address += cursor.integer(2, "advance")
        else:
            # The other opcodes set what is not needed here; their operands are skipped.
            for _ in range(operand_counts[opcode]):
                _unsigned(cursor)
        # After the opcode has advanced the address and the line.
        if appends_row and function:
            row_count += 1
            if row_count > _MAX_ROWS:
                raise cursor.error("program", "too many rows", f"at most {_MAX_ROWS}")
            path = paths[number] if number < len(paths) else ""
            rows_by_function.setdefault(function, []).append((address, line, path))
    if cursor.position != end:
        raise cursor.error("program", f"ends at {cursor.position:#x}", f"{end:#x}")


def _leb128(cursor: Cursor) -> tuple[int, int, int]:
    """Read a LEB128 number (DWARF 2, 7.6): its value as an unsigned number, its number of bits, and its last byte.

    Raises FormatError for more than 10 bytes.
    """
    value = shift = 0
    while True:
        byte = cursor.integer(1, "LEB128")
        # 7 bits per byte, the lowest first; the high bit says that more bytes follow.
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, shift, byte
        # 10 bytes, of 7 bits each, hold 64 bits.
        if shift > 63:
            raise cursor.error("LEB128", "more than 64 bits", "at most 64")


def _unsigned(cursor: Cursor) -> int:
    """Read an unsigned number in LEB128 (a code of variable length)."""
    return _leb128(cursor)[0]


def _signed(cursor: Cursor) -> int:
    """Read a signed number in LEB128 (a code of variable length)."""
    value, bits, last_byte = _leb128(cursor)
    # Bit 6 of the last byte is the sign.
    return value - (1 << bits) if last_byte & 0x40 else value
