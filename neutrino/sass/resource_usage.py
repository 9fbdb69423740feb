"""The resource usage of the functions of a cubin, as ``cuobjdump -res-usage`` prints it.

NVIDIA does not document where the numbers are stored; they were compared with what the tool prints.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from neutrino.elf.reader import Elf
from neutrino.elf.rows import Section
from neutrino.sass.attributes import MIN_STACK_SIZE, REGCOUNT
from neutrino.sass.cubin import REGISTERS_SHIFT, STO_CUDA_ENTRY, function_symbols, open_cubin, section_attributes

_TEXT = ".text."
_CONSTANT = re.compile(r"\.nv\.constant(\d{1,2})(?:\.(.+))?")
_GLOBAL = (".nv.global", ".nv.global.init")
# Types of symbols that texture, sampler and surface references have (STT_CUDA_TEXTURE …; cuobjdump -elf names them).
_TEXTURE, _SAMPLER, _SURFACE = 10, 11, 12


@dataclass(frozen=True)
class FunctionUsage:
    """The resource usage of one function.

    kernel: whether the host can launch it; the others are the functions of relocatable cubins. registers: per
    thread. stack: bytes per thread, including the functions that it calls; 0 before linking. local: bytes of local
    memory per thread that are not stack. shared: bytes of shared memory per block, static and, from sm_90 on, the 1024
    that the system reserves. constants: bytes by constant bank, in the cubin's order. textures, surfaces, samplers:
    number of references that are bound by name (objects passed as parameters are not counted).

    From sm_90 on, cuobjdump prints 0 for references and for the registers of functions that are not kernels, although
    the cubin has the numbers.
    """

    name: str
    kernel: bool
    registers: int
    stack: int
    shared: int
    local: int
    constants: dict[int, int]
    textures: int
    surfaces: int
    samplers: int


@dataclass(frozen=True)
class ResourceUsage:
    """The resource usage of a cubin.

    global_size: bytes of global variables. constants: bytes by constant bank, of banks that all functions share.
    functions: those with a code section, in the cubin's order.
    """

    global_size: int
    constants: dict[int, int]
    functions: tuple[FunctionUsage, ...]


@dataclass
class _Usage:
    """The usage of one function, collected from several sections; fields as in FunctionUsage.

    registers: None while no section states them. references: number of references by type of symbol.
    """

    registers: int | None = None
    stack: int = 0
    shared: int = 0
    local: int = 0
    constants: dict[int, int] = field(default_factory=dict)
    references: dict[int, int] = field(default_factory=dict)


def resource_usage(data: bytes | memoryview, name: str) -> ResourceUsage:
    """Read the resource usage of a cubin. name: for error messages. Raises FormatError if it is not a valid cubin."""
    elf = open_cubin(data, name)
    texts = {section.name.removeprefix(_TEXT): section for section in elf.sections if section.name.startswith(_TEXT)}
    # Only functions with a code section of their own.
    symbols = {
        symbol.name: symbol
        for symbol in function_symbols(elf)
        if symbol.name in texts and texts[symbol.name].index == symbol.section
    }

    # Collect the usage of each function from its own sections, from attributes and from relocations.
    usages = {name: _Usage() for name in symbols}
    shared_constants: dict[int, int] = {}
    for section in elf.sections:
        if match := _CONSTANT.fullmatch(section.name):
            bank, function_name = match.groups()
            # The name is None for a bank that all functions share.
            usage = usages.get(function_name)
            sizes = shared_constants if usage is None else usage.constants
            sizes[int(bank)] = section.size
    for function, usage in usages.items():
        usage.shared = _size(elf, f".nv.shared.{function}")
        usage.local = _size(elf, f".nv.local.{function}")
    _add_attributes(elf, {symbols[name].index: usage for name, usage in usages.items()})
    _add_references(elf, usages)

    functions = tuple(
        FunctionUsage(
            name=name,
            kernel=bool(symbols[name].other & STO_CUDA_ENTRY),
            # Without the attribute: before sm_90 the count is also in the high byte of the text section's sh_info.
            registers=texts[name].info >> REGISTERS_SHIFT if usage.registers is None else usage.registers,
            stack=usage.stack,
            shared=usage.shared,
            local=usage.local,
            constants=usage.constants,
            textures=usage.references.get(_TEXTURE, 0),
            surfaces=usage.references.get(_SURFACE, 0),
            samplers=usage.references.get(_SAMPLER, 0),
        )
        # In the order of the code sections.
        for name, usage in sorted(usages.items(), key=lambda item: texts[item[0]].index)
    )
    return ResourceUsage(sum(_size(elf, name) for name in _GLOBAL), shared_constants, functions)


def _size(elf: Elf, name: str) -> int:
    """Return the size in bytes of a section of an ELF file, 0 without it."""
    section = elf.section(name)
    return 0 if section is None else section.size


def _add_attributes(elf: Elf, usage_by_symbol: dict[int, _Usage]) -> None:
    """Set the registers and the stack of functions from the attributes in ``.nv.info``.

    usage_by_symbol: by the index of the function's symbol; attributes of other symbols are skipped.
    """
    info = elf.section(".nv.info")
    if info is None:
        return
    for attribute, cursor in section_attributes(elf, info, (REGCOUNT, MIN_STACK_SIZE)):
        usage = usage_by_symbol.get(cursor.integer(4, "symbol index"))
        value = cursor.integer(4, "attribute value")
        if usage is None:
            continue
        if attribute == REGCOUNT:
            usage.registers = value
        else:
            usage.stack = value


def _add_references(elf: Elf, usages: dict[str, _Usage]) -> None:
    """Count the texture, sampler and surface references of each function.

    A function refers to one by a relocation in its code or in its own constant bank; a reference counts once for each
    function. usages: by the function's name.
    """
    type_by_symbol = {symbol.index: symbol.type for symbol in elf.symbols(kinds=(_TEXTURE, _SAMPLER, _SURFACE))}
    if not type_by_symbol:
        return
    relocated_symbols: dict[str, set[int]] = {}
    for index, tables in elf.relocation_tables.items():
        # The index is from a relocation section's sh_info, which may be wrong.
        function = _function_of(elf.sections[index]) if index < len(elf.sections) else ""
        if function in usages:
            for table in tables:
                symbols = {relocation.symbol for relocation in elf.relocations(table)}
                relocated_symbols.setdefault(function, set()).update(symbols)
    for function, symbols in relocated_symbols.items():
        references = usages[function].references
        for symbol in symbols:
            if symbol in type_by_symbol:
                symbol_type = type_by_symbol[symbol]
                references[symbol_type] = references.get(symbol_type, 0) + 1


def _function_of(section: Section) -> str:
    """Return the name of the function whose code or constant bank a section is.

    Empty for a constant bank that all functions share; for a section of another kind, that section's own name.
    """
    bank = _CONSTANT.fullmatch(section.name)
    return bank[2] or "" if bank else section.name.removeprefix(_TEXT)
