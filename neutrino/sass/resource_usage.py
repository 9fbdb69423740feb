"""The resource usage of the functions of a cubin: the figures of ``cuobjdump -res-usage``.

NVIDIA does not document them; they were compared with what the tool prints.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from neutrino.elf.reader import Elf
from neutrino.elf.rows import Section
from neutrino.sass.cubin import MIN_STACK_SIZE, REGCOUNT, STO_CUDA_ENTRY, attributes, function_symbols, open_cubin

_TEXT = ".text."
_CONSTANT = re.compile(r"\.nv\.constant(\d{1,2})(?:\.(.+))?")
_GLOBAL = (".nv.global", ".nv.global.init")
# Types of symbols that texture, sampler and surface references have (STT_CUDA_TEXTURE …; cuobjdump -elf names them).
_TEXTURE, _SAMPLER, _SURFACE = 10, 11, 12


@dataclass(frozen=True)
class FunctionUsage:
    """What one function uses.

    kernel: whether the host can launch it; the others are the functions of relocatable cubins. registers: of a
    thread. stack: bytes that a thread needs, with what the function calls; 0 before linking. local: bytes of a thread
    in local memory that are no stack. shared: bytes of a block, static and, from sm_90 on, the 1024 that the system
    reserves. constants: bytes by constant bank, in the cubin's order.
    textures, surfaces, samplers: references that are bound by name (objects passed as parameters are not counted).

    From sm_90 on, cuobjdump itself says 0 for references and for the registers of functions that are no kernels,
    where the cubin says more.
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
    """What a cubin uses. global_size: bytes of global variables. constants: bytes of constant banks that belong to
    no one function. functions: those with code of their own, in the cubin's order."""

    global_size: int
    constants: dict[int, int]
    functions: tuple[FunctionUsage, ...]


@dataclass
class _Found:
    """What is said of a function in sections other than its code."""

    registers: int | None = None
    stack: int = 0
    shared: int = 0
    local: int = 0
    constants: dict[int, int] = field(default_factory=dict)
    references: dict[int, int] = field(default_factory=dict)


def resource_usage(data: bytes | memoryview, name: str) -> ResourceUsage:
    """The figures of a cubin. name: for error messages. Raises FormatError if it is not a valid cubin."""
    elf = open_cubin(data, name)
    texts = {section.name.removeprefix(_TEXT): section for section in elf.sections if section.name.startswith(_TEXT)}
    symbols = {
        symbol.name: symbol
        for symbol in function_symbols(elf)
        if symbol.name in texts and texts[symbol.name].index == symbol.section
    }
    found = {name: _Found() for name in symbols}
    constants: dict[int, int] = {}
    for section in elf.sections:
        if bank := _CONSTANT.fullmatch(section.name):
            owner = found.get(bank[2])
            sizes = constants if owner is None else owner.constants
            sizes[int(bank[1])] = section.size
    for function, one in found.items():
        one.shared = _size(elf, f".nv.shared.{function}")
        one.local = _size(elf, f".nv.local.{function}")
    _from_attributes(elf, {symbols[name].index: one for name, one in found.items()})
    _from_relocations(elf, found)
    functions = tuple(
        FunctionUsage(
            name=name,
            kernel=bool(symbols[name].other & STO_CUDA_ENTRY),
            registers=texts[name].info >> 24 if found[name].registers is None else found[name].registers or 0,
            stack=found[name].stack,
            shared=found[name].shared,
            local=found[name].local,
            constants=found[name].constants,
            textures=found[name].references.get(_TEXTURE, 0),
            surfaces=found[name].references.get(_SURFACE, 0),
            samplers=found[name].references.get(_SAMPLER, 0),
        )
        for name in sorted(symbols, key=lambda name: texts[name].index)
    )
    return ResourceUsage(sum(_size(elf, name) for name in _GLOBAL), constants, functions)


def _size(elf: Elf, name: str) -> int:
    section = elf.section(name)
    return 0 if section is None else section.size


def _from_attributes(elf: Elf, by_symbol: dict[int, _Found]) -> None:
    info = elf.section(".nv.info")
    if info is None:
        return
    for attribute, cursor in attributes(elf, info):
        if attribute in (REGCOUNT, MIN_STACK_SIZE):
            one = by_symbol.get(cursor.integer(4, "symbol index"))
            value = cursor.integer(4, "attribute value")
            if one is not None and attribute == REGCOUNT:
                one.registers = value
            elif one is not None:
                one.stack = value


def _from_relocations(elf: Elf, found: dict[str, _Found]) -> None:
    """Count the references by the relocations that put their numbers into the code or a constant bank."""
    kinds = {symbol.index: symbol.type for symbol in elf.symbols(kinds=(_TEXTURE, _SAMPLER, _SURFACE))}
    if not kinds:
        return
    used: dict[str, set[int]] = {}
    for index, tables in elf.relocation_tables.items():
        name = _owner(elf.sections[index]) if index < len(elf.sections) else ""
        if name in found:
            for table in tables:
                used.setdefault(name, set()).update(relocation.symbol for relocation in elf.relocations(table))
    for name, indices in used.items():
        for index in indices:
            if index in kinds:
                references = found[name].references
                references[kinds[index]] = references.get(kinds[index], 0) + 1


def _owner(section: Section) -> str:
    bank = _CONSTANT.fullmatch(section.name)
    return bank[2] or "" if bank else section.name.removeprefix(_TEXT)
