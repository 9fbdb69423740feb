"""The line of the PTX text that each machine instruction of a cubin comes from, as ``ptxas -lineinfo`` records it.

The section ``.nv_debug_line_sass`` holds line number programs as DWARF 2 has them (6.2, "Line Number Information"), one
after the other; the address that each begins with is relocated to a function's symbol. ``nvdisasm -gp`` prints them.
"""

from __future__ import annotations

from neutrino.elf.cursor import Cursor
from neutrino.elf.reader import Elf
from neutrino.sass.cubin import open_cubin

SECTION = ".nv_debug_line_sass"

# DWARF 2, 7.21: standard and extended opcodes.
_COPY, _ADVANCE_PC, _ADVANCE_LINE, _SET_FILE, _SET_COLUMN, _NEGATE, _BASIC_BLOCK, _CONST_ADD, _FIXED = range(1, 10)
_END_SEQUENCE, _SET_ADDRESS = 1, 2
_MOST_ROWS = 1 << 22
"""As many as a kernel of 64 MiB has; a malformed program could claim more in a few bytes."""


def sass_lines(cubin: bytes | memoryview, file: str) -> dict[str, list[tuple[int, int]]]:
    """By function, the offset in its code from which on instructions are of a line, and the line, in order.

    file: what is read, for errors. Empty without line information. Raises FormatError for a damaged cubin.
    """
    elf = open_cubin(cubin, file)
    section = elf.section(SECTION)
    if section is None:
        return {}
    names = _names(elf, section.index)
    contents = elf.contents(section)
    cursor = Cursor(contents, file, base=section.offset)
    found: dict[str, list[tuple[int, int]]] = {}
    while cursor.remaining:
        _unit(cursor, names, found)
    return {name: sorted(rows, key=lambda row: row[0]) for name, rows in found.items()}


def _names(elf: Elf, target: int) -> dict[int, str]:
    """The symbols that relocations put into a section, by offset."""
    symbols = {symbol.index: symbol.name for symbol in elf.symbols()}
    found = {}
    for table in elf.relocation_tables.get(target, ()):
        for relocation in elf.relocations(table):
            found[relocation.offset] = symbols.get(relocation.symbol, "")
    return found


def _unit(cursor: Cursor, names: dict[int, str], found: dict[str, list[tuple[int, int]]]) -> None:
    """Read one line number program with its header."""
    length = cursor.integer(4, "length")
    end = cursor.position + length
    if length > cursor.remaining:
        raise cursor.error("length", str(length), f"at most {cursor.remaining}")
    version = cursor.integer(2, "version")
    if version not in (2, 3):
        raise cursor.error("version", str(version), "2 or 3")
    header = cursor.integer(4, "header length")
    program = cursor.position + header
    unit, _, line_base, line_range, opcode_base = (cursor.integer(1, "header") for _ in range(5))
    line_base -= 256 if line_base > 127 else 0
    if not line_range or not opcode_base or not unit:
        raise cursor.error("header", "zero", "a length, range and first opcode")
    lengths = [0, *(cursor.integer(1, "standard opcode lengths") for _ in range(opcode_base - 1))]
    if not cursor.position <= program <= end:
        raise cursor.error("header length", str(header), "one within the unit")
    cursor.seek(program, "header length")
    name, address, line = "", 0, 1
    rows = 0
    while cursor.position < end:
        opcode = cursor.integer(1, "opcode")
        row = opcode == _COPY or opcode >= opcode_base
        if opcode >= opcode_base:
            address += (opcode - opcode_base) // line_range * unit
            line += line_base + (opcode - opcode_base) % line_range
        elif opcode == 0:
            size = _unsigned(cursor)
            if not 0 < size <= end - cursor.position:
                raise cursor.error("extended opcode", f"{size} bytes", f"1 to {end - cursor.position}")
            following = cursor.position + size
            extended = cursor.integer(1, "extended opcode")
            if extended == _SET_ADDRESS:
                name = names.get(cursor.position, "")
                address = cursor.integer(8, "address")
            elif extended == _END_SEQUENCE:
                name, address, line = "", 0, 1
            cursor.seek(following, "extended opcode")
        elif opcode == _ADVANCE_PC:
            address += _unsigned(cursor) * unit
        elif opcode == _ADVANCE_LINE:
            line += _signed(cursor)
        elif opcode == _CONST_ADD:
            address += (255 - opcode_base) // line_range * unit
        elif opcode == _FIXED:
            address += cursor.integer(2, "advance")
        else:
            for _ in range(lengths[opcode]):
                _unsigned(cursor)
        if row and name:
            rows += 1
            if rows > _MOST_ROWS:
                raise cursor.error("program", "too many rows", f"at most {_MOST_ROWS}")
            found.setdefault(name, []).append((address, line))
    if cursor.position != end:
        raise cursor.error("program", f"ends at {cursor.position:#x}", f"{end:#x}")


def _leb128(cursor: Cursor) -> tuple[int, int, int]:
    value = shift = 0
    while True:
        byte = cursor.integer(1, "LEB128")
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value, shift, byte
        if shift > 63:
            raise cursor.error("LEB128", "more than 64 bits", "at most 64")


def _unsigned(cursor: Cursor) -> int:
    return _leb128(cursor)[0]


def _signed(cursor: Cursor) -> int:
    value, shift, last = _leb128(cursor)
    return value - (1 << shift) if last & 0x40 else value
