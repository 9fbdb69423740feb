"""A cubin of one kernel with longer code, more registers and one more parameter.

What follows in the file moves; places within the code stay. The attributes that say how many registers and parameters a
kernel has, and the constant bank with the parameters, are changed to match.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from neutrino.elf.constants import SHT_SYMTAB, STT_FUNC
from neutrino.elf.rows import SYMBOL_LAYOUT
from neutrino.errors import FormatError, MachineCodeError
from neutrino.sass.attributes import (
    CBANK_PARAM_SIZE,
    CTAIDZ_USED,
    HVAL,
    KPARAM_INFO,
    KPARAM_INFO_V2,
    MAX_THREADS,
    NVAL,
    PARAM_CBANK,
    REGCOUNT,
    REQNTID,
    SVAL,
)
from neutrino.sass.cubin import REGISTERS_SHIFT, STO_CUDA_ENTRY, function_symbols, open_cubin
from neutrino.sass.fields import INSTRUCTION_BYTES
from neutrino.sass.twin.attributes import Attribute, moved_places, read_attributes, replaced, symbol_of
from neutrino.sass.twin.sections import Part, read_parts, write_cubin

CODE_ALIGNMENT = 128
"""Bytes of which the size of a kernel's code is a multiple."""
MOST_REGISTERS = 255
_REGISTER_FILE = 65536
REGISTER_GRANULE = 8
"""Registers of a thread are handed out in multiples of this."""
_CLASSIC_PARAMETERS = 4096
"""Bytes of parameters that every driver takes."""
_LARGE_PARAMETERS = 32764
"""Bytes that a driver takes which takes a kernel with more than the classic ones: its parameters are in the form V2."""
_LARGEST_SIZE = 1 << 14
"""Of a parameter, in bytes, from which KPARAM_INFO cannot hold it."""
_PLAIN_PARAMETER = 0x1F000
"""Bits of KPARAM_INFO that all parameters have in common, below the size."""
_STT_SECTION = 3
_PARAMETER = struct.Struct("<IHHI")
_PARAM_CBANK = struct.Struct("<IHH")


@dataclass(frozen=True)
class Growth:
    """What a kernel's cubin gets more. code: all of the new code, the kernel's old places unchanged. registers: the new
    count per thread, 0 to leave it. parameter: bytes of a parameter by value that is appended, 0 for none; alignment:
    of its offset. moved: new places in the code of instructions that moved, in bytes, by their old ones. third_index:
    whether the cubin has to say that the code reads the block's third index."""

    code: bytes
    registers: int = 0
    parameter: int = 0
    alignment: int = 8
    moved: Mapping[int, int] = field(default_factory=dict)
    third_index: bool = False


@dataclass(frozen=True)
class Grown:
    """A grown cubin. data: its bytes. parameter_offset: of the new parameter among the kernel's, in bytes, -1 without
    one. parameter_base: where parameters begin in constant bank 0, in bytes."""

    data: bytes
    parameter_offset: int
    parameter_base: int


def grow(data: bytes, growth: Growth, file: str) -> Grown:
    """Return the cubin with more code, registers and parameters.

    data: a cubin of one kernel, as ``Cutter.cut`` returns. file: its name in messages. Raises MachineCodeError for what
    the kernel cannot have, FormatError for a damaged cubin.
    """
    elf = open_cubin(data, file)
    kernels = [symbol for symbol in function_symbols(elf) if symbol.other & STO_CUDA_ENTRY]
    if len(kernels) != 1:
        raise FormatError(file, 0, "number of kernels", str(len(kernels)), "1")
    name, number = kernels[0].name, kernels[0].index
    parts = read_parts(elf)
    by_name = {part.name: part for part in parts}
    text, info = by_name.get(f".text.{name}"), by_name.get(f".nv.info.{name}")
    module, table = by_name.get(".nv.info"), next((part for part in parts if part.type == SHT_SYMTAB), None)
    if text is None or info is None or module is None or table is None:
        raise FormatError(file, 0, f"sections of {name}", "incomplete", "code, attributes and symbols")
    if len(growth.code) < len(text.content) or len(growth.code) % CODE_ALIGNMENT:
        raise MachineCodeError(name, f"new code of {len(growth.code)} bytes: not a longer multiple of {CODE_ALIGNMENT}")

    attributes = list(read_attributes(info.content, file))
    if growth.registers:
        _set_registers(name, number, growth.registers, attributes, module, text, file)
    offset, base = -1, 0
    if growth.parameter:
        bank = by_name.get(f".nv.constant0.{name}")
        if bank is None:
            raise MachineCodeError(name, "has no constant bank for parameters")
        if any(attribute.number == PARAM_CBANK for attribute in attributes):
            attributes, offset, base = _with_parameter(name, attributes, growth, bank)
        else:
            attributes, offset, base = _with_first_parameter(name, attributes, growth, parts, bank, table)
    attributes = [moved_places(attribute, growth.moved) for attribute in attributes]
    if growth.third_index and all(attribute.number != CTAIDZ_USED for attribute in attributes):
        attributes.append(Attribute(NVAL, CTAIDZ_USED, bytes(2)))
    info.content = bytearray().join(attribute.packed() for attribute in attributes)
    text.content = bytearray(growth.code)
    _set_size(table, number, len(growth.code))
    names = parts[struct.unpack_from("<H", elf.bytes_at(0x3E, 2, "e_shstrndx"))[0]]
    return Grown(write_cubin(elf, parts, names), offset, base)


def _set_registers(
    name: str, number: int, registers: int, attributes: list[Attribute], module: Part, text: Part, file: str
) -> None:
    """Set the number of registers per thread.

    name, number: the kernel's, and its symbol's. attributes: of the kernel. module: ``.nv.info``. Raises
    MachineCodeError for more registers than a thread, or the largest block that it allows, may have.
    """
    if registers > MOST_REGISTERS:
        raise MachineCodeError(name, f"would need {registers} registers, over {MOST_REGISTERS}")
    granted = -(-registers // REGISTER_GRANULE) * REGISTER_GRANULE
    for attribute in attributes:
        if attribute.number in (MAX_THREADS, REQNTID) and len(attribute.value) == 12:
            x, y, z = struct.unpack("<3I", attribute.value)
            if x * y * z * granted > _REGISTER_FILE:
                raise MachineCodeError(name, f"would need {registers} registers, too many for {x * y * z} threads")
    out, found = bytearray(), False
    for attribute in read_attributes(module.content, file):
        mine = attribute.number == REGCOUNT and symbol_of(attribute, file) == number
        found |= mine
        out += (replaced(attribute, struct.pack("<II", number, registers)) if mine else attribute).packed()
    if not found:
        raise MachineCodeError(name, "no attribute says how many registers it has")
    module.content = out
    # Up to sm_89, which writes the number here, too, the driver reads this one.
    if text.info >> REGISTERS_SHIFT:
        text.info = registers << REGISTERS_SHIFT | text.info & (1 << REGISTERS_SHIFT) - 1


def _with_parameter(
    name: str, attributes: list[Attribute], growth: Growth, bank: Part
) -> tuple[list[Attribute], int, int]:
    """Return the attributes with one more parameter, its offset among them, and where they begin in constant bank 0.

    bank: constant bank 0, which gets as long as the parameters need. Raises MachineCodeError where there is none to
    go by, and where the parameters would get too long.
    """
    known = [attribute for attribute in attributes if attribute.number in (KPARAM_INFO, KPARAM_INFO_V2)]
    banks = [attribute for attribute in attributes if attribute.number == PARAM_CBANK]
    if not known or len(banks) != 1 or any(len(row.value) != _PARAMETER.size for row in known):
        raise MachineCodeError(name, "has no parameters, after which another could be put")
    if len(banks[0].value) != _PARAM_CBANK.size:
        raise MachineCodeError(name, "has an attribute of another length than known, PARAM_CBANK")
    symbol, base, size = _PARAM_CBANK.unpack(banks[0].value)
    offset = -(-size // growth.alignment) * growth.alignment
    new_size = offset + growth.parameter
    most = _LARGE_PARAMETERS if size > _CLASSIC_PARAMETERS else _CLASSIC_PARAMETERS
    if new_size > most or growth.parameter >= _LARGEST_SIZE:
        raise MachineCodeError(name, f"would have {new_size} bytes of parameters, over {most}")
    if {attribute.number for attribute in known} != {KPARAM_INFO}:
        # All parameters of a kernel are stored in one of the two forms.
        kind, word = KPARAM_INFO_V2, _PARAMETER.unpack(known[0].value)[3] & 0xFF000000 | growth.parameter
    else:
        kind, word = KPARAM_INFO, _PARAMETER.unpack(known[0].value)[3] & 0x3FFFF | growth.parameter << 18
    if known[0].number != kind:
        raise MachineCodeError(name, "has parameters of two forms")
    new = Attribute(known[0].format, kind, _PARAMETER.pack(0, len(known), offset, word))
    out: list[Attribute] = []
    for attribute in attributes:
        # Compilers list the last parameter first.
        if attribute is known[0]:
            out.append(new)
        if attribute.number == CBANK_PARAM_SIZE:
            out.append(replaced(attribute, struct.pack("<H", new_size)))
        elif attribute.number == PARAM_CBANK:
            out.append(replaced(attribute, _PARAM_CBANK.pack(symbol, base, new_size)))
        else:
            out.append(attribute)
    if len(bank.content) < base + size:
        raise MachineCodeError(name, "has a constant bank that is shorter than its parameters")
    bank.content += bytes(max(0, base + new_size - len(bank.content)))
    return out, offset, base


def _with_first_parameter(
    name: str, attributes: list[Attribute], growth: Growth, parts: list[Part], bank: Part, table: Part
) -> tuple[list[Attribute], int, int]:  # fmt: skip
    """Return what ``_with_parameter`` does, of a kernel that has no parameter yet: they begin where constant bank 0
    ends, which has what the driver needs alone.

    parts: all sections. table: the symbols. Raises MachineCodeError for a kernel that says something of parameters.
    """
    of_parameters = {KPARAM_INFO, KPARAM_INFO_V2, CBANK_PARAM_SIZE}
    if any(attribute.number in of_parameters for attribute in attributes) or growth.parameter >= _LARGEST_SIZE:
        raise MachineCodeError(name, "has no parameters, but says something of them")
    index = next(number for number, part in enumerate(parts) if part is bank)
    symbols = [number for number, row in enumerate(SYMBOL_LAYOUT.iter_unpack(table.content))
               if row[1] & 0xF == _STT_SECTION and row[3] == index]  # fmt: skip
    if not symbols:
        raise MachineCodeError(name, "has no symbol for constant bank 0")
    base = len(bank.content)
    new = [
        Attribute(SVAL, KPARAM_INFO, _PARAMETER.pack(0, 0, 0, _PLAIN_PARAMETER | growth.parameter << 18)),
        Attribute(HVAL, CBANK_PARAM_SIZE, struct.pack("<H", growth.parameter)),
        Attribute(SVAL, PARAM_CBANK, _PARAM_CBANK.pack(symbols[0], base, growth.parameter)),
    ]
    bank.content += bytes(growth.parameter)
    return [*new, *attributes], 0, base


def _set_size(table: Part, number: int, size: int) -> None:
    """Set the size in bytes of a function in the symbol table. number: the symbol's."""
    row = list(SYMBOL_LAYOUT.unpack_from(table.content, number * SYMBOL_LAYOUT.size))
    assert row[1] & 0xF == STT_FUNC
    row[5] = size
    SYMBOL_LAYOUT.pack_into(table.content, number * SYMBOL_LAYOUT.size, *row)


def code_of(data: bytes, kernel: str, file: str) -> bytes:
    """Return all of a kernel's code section. Raises FormatError where there is none of whole instructions."""
    elf = open_cubin(data, file)
    section = elf.section(f".text.{kernel}")
    if section is None or section.size % INSTRUCTION_BYTES:
        raise FormatError(file, 0, f"code of {kernel}", "absent or odd", f"a multiple of {INSTRUCTION_BYTES} bytes")
    return bytes(elf.contents(section))
