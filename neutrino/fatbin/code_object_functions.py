"""The functions in a code object: where the code of each kernel and of each other function is, as bytes.

A kernel's code begins where its descriptor says, which is what the hardware does; where a function ends, and what other
functions there are, the symbols say.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from neutrino.elf.constants import ET_REL, PF_X, PT_LOAD, SHF_EXECINSTR, SHT_DYNSYM, SHT_SYMTAB, STT_FUNC, STT_OBJECT
from neutrino.elf.cursor import Cursor
from neutrino.elf.reader import Elf
from neutrino.elf.rows import Symbol
from neutrino.errors import FormatError
from neutrino.fatbin.code_object import (
    WAVEFRONT_SIZE32,
    descriptor_bytes,
    descriptors_of,
    metadata_of,
    open_code_object,
    target_of,
)

# kernel_code_entry_byte_offset, from the descriptor's address on; kernel_code_properties ("Kernel Descriptor").
_ENTRY = struct.Struct("<16xq32xH6x")
_SECTION_STEP = 256
"""The sections of an object file are placed at multiples of this many bytes."""
_ADDRESSES = 1 << 64
_MIXED = 0
"""The wave of functions that kernels of either size may call."""


class CodeFunction(NamedTuple):
    """A function's code.

    name: mangled, empty for code that no symbol names. address: virtual; the sections of an object file are placed one
    after the other, from 0 on. code: its bytes. is_kernel: whether it is one. wave: lanes of its waves, 32 or 64; of a
    function that kernels of both sizes may call, 0.
    """

    name: str
    address: int
    code: bytes
    is_kernel: bool
    wave: int


@dataclass(frozen=True)
class CodeFunctions:
    """What code a code object has.

    target: its target id, empty when unknown. functions: in the order of their addresses. variables: names of what is
    not code, by address. pointed: addresses that a loader writes into its data.
    """

    target: str
    functions: tuple[CodeFunction, ...]
    variables: Mapping[int, str]
    pointed: frozenset[int] = frozenset()


class _Area(NamedTuple):
    """Bytes with code. address: virtual, of the first. section: index of an object file's section, else -1."""

    address: int
    code: memoryview
    section: int

    @property
    def end(self) -> int:
        """The address after the last byte of this area of code."""
        return self.address + len(self.code)


class _Range(NamedTuple):
    """Where a function's code is. area: its index. begin, end: addresses."""

    area: int
    begin: int
    end: int


class _Named(NamedTuple):
    """Where a function is, and the other fields of ``CodeFunction``."""

    place: _Range
    name: str
    is_kernel: bool
    wave: int


def code_object_functions(data: bytes | memoryview, name: str, *, unnamed: bool = False) -> CodeFunctions:
    """Read which functions a code object has.

    name: for error messages. unnamed: also the code that no symbol names, which is padding in most files.

    Raises FormatError if it is not a valid code object: also for a kernel that begins outside the code or within
    another function, and for functions that overlap.
    """
    elf = open_code_object(data, name)
    metadata = metadata_of(elf)
    areas = _areas(elf)
    symbols = _functions(elf, areas)
    descriptors = descriptors_of(elf)
    kernels: dict[str, tuple[_Range, int]] = {}
    for kernel in metadata.maps("amdhsa.kernels") if metadata is not None else ():
        descriptor = descriptors.get(kernel.text(".symbol"))
        if descriptor is None:
            raise _error(elf, f"descriptor of {kernel.text('.name')}", "missing", "a symbol")
        entry, wave = _entry(elf, descriptor)
        kernels[kernel.text(".name")] = _kernel_range(elf, descriptor, entry, areas, symbols), wave

    waves = {wave for _, wave in kernels.values()}
    target = target_of(elf, metadata)
    usual = waves.pop() if len(waves) == 1 else _MIXED if waves else _usual_wave(target)
    named = [_Named(place, kernel, True, wave) for kernel, (place, wave) in kernels.items()]
    taken = {place for place, _ in kernels.values()}
    for symbol, place in symbols:
        # Of several names of one function the first stays. Several functions may have one name.
        if place not in taken and place.begin < place.end:
            taken.add(place)
            named.append(_Named(place, symbol, False, usual))
    functions: list[CodeFunction] = []
    for index, area in enumerate(areas):
        rows = sorted(row for row in named if row.place.area == index)
        functions += _in_order(elf, area, rows, usual if unnamed else None)
    functions.sort(key=lambda function: function.address)
    return CodeFunctions(target, tuple(functions), _variables(elf), frozenset(_pointed(elf)))


def _in_order(elf: Elf, area: _Area, rows: list[_Named], unnamed_wave: int | None) -> Iterator[CodeFunction]:
    """Yield an area's functions in the order of their addresses.

    rows: its functions, in that order. unnamed_wave: of code between them, None
    to leave that out. Raises FormatError for functions that overlap.
    """
    previous, last = _Range(0, area.address, area.address), ""
    for place, name, is_kernel, wave in rows:
        if place.begin < previous.end and place != previous:
            raise _error(
                elf, f"function {name}", f"at {place.begin:#x}", f"after {last}, which ends at {previous.end:#x}"
            )
        if unnamed_wave is not None and place.begin > previous.end:
            yield _function(area, "", previous.end, place.begin, is_kernel=False, wave=unnamed_wave)
        yield _function(area, name, place.begin, place.end, is_kernel=is_kernel, wave=wave)
        previous, last = place, name
    if unnamed_wave is not None and previous.end < area.end:
        yield _function(area, "", previous.end, area.end, is_kernel=False, wave=unnamed_wave)


def _function(area: _Area, name: str, begin: int, end: int, *, is_kernel: bool, wave: int) -> CodeFunction:
    """Return the function between two addresses of an area."""
    return CodeFunction(name, begin, bytes(area.code[begin - area.address : end - area.address]), is_kernel, wave)


def _areas(elf: Elf) -> list[_Area]:
    """Return the bytes with code: executable segments, of an object file sections. Raises FormatError when they leave
    the file."""
    if elf.type == ET_REL:
        sections = [section for section in elf.sections if section.flags & SHF_EXECINSTR and section.size]
        found, begin = [], 0
        # Each section begins at address 0: one after the other, so that an address stands for one place.
        for section in sections:
            found.append(_Area(begin, elf.contents(section), section.index))
            begin = -(-(begin + section.size) // _SECTION_STEP) * _SECTION_STEP
        return found
    areas = [
        _Area(segment.address, elf.bytes_at(segment.offset, segment.file_size, "executable PT_LOAD"), -1)
        for segment in elf.segments
        if segment.type == PT_LOAD and segment.flags & PF_X and segment.file_size
    ]
    return sorted(areas, key=lambda area: area.address)


def _functions(elf: Elf, areas: list[_Area]) -> list[tuple[str, _Range]]:
    """Return where the functions are that symbols name. Some kernels are empty: for processors that they are not made
    for. Raises FormatError for one that leaves the code."""
    functions: dict[tuple[str, _Range], None] = {}
    # A stripped file has only the dynamic symbols, an object file only the others.
    for table in (SHT_DYNSYM, SHT_SYMTAB):
        for symbol in elf.symbols(table, kinds=(STT_FUNC,)):
            if symbol.section == 0:
                continue
            section = symbol.section if elf.type == ET_REL else -1
            # In an object file the value is an offset in the section.
            starts = (area.address for area in areas if area.section == section)
            begin = symbol.value + (next(starts, 0) if elf.type == ET_REL else 0)
            end = begin + symbol.size
            index = _area_at(areas, begin, section)
            if index is None or end > areas[index].end:
                raise _error(elf, f"function {symbol.name}", f"{begin:#x} to {end:#x}", "inside the code")
            functions[symbol.name, _Range(index, begin, end)] = None
    return list(functions)


def _variables(elf: Elf) -> dict[int, str]:
    """Return the names of what is not code, by address. Of several names the first in order stays."""
    names: dict[int, str] = {}
    for table in (SHT_DYNSYM, SHT_SYMTAB):
        for symbol in elf.symbols(table, kinds=(STT_OBJECT,)):
            if symbol.section and symbol.name:
                names[symbol.value] = min(symbol.name, names.get(symbol.value, symbol.name))
    return names


def _pointed(elf: Elf) -> Iterator[int]:
    """Yield the addresses that a loader writes, before it moves the code object; of an object file none."""
    if elf.type == ET_REL:
        return
    for row in elf.dynamic_relocations(range(_ADDRESSES)):
        symbol = elf.dynamic_symbol_row(row.symbol) if row.symbol else None
        yield row.addend + (symbol.value if symbol is not None else 0)


def _area_at(areas: list[_Area], address: int, section: int) -> int | None:
    """Return the index of the area with an address, None if there is none. section: as ``_Area``."""
    for index, area in enumerate(areas):
        if area.section == section and area.address <= address < area.end:
            return index
    # Empty functions may lie after all others.
    ends = [area.end if area.section == section else None for area in areas]
    return ends.index(address) if address in ends else None


def _entry(elf: Elf, descriptor: Symbol) -> tuple[int, int]:
    """Return the address at which a kernel's code begins, and the lanes of its waves. Raises FormatError."""
    offset, properties = _ENTRY.unpack(descriptor_bytes(elf, descriptor))
    return descriptor.value + offset, 32 if properties & WAVEFRONT_SIZE32 else 64


def _kernel_range(
    elf: Elf, descriptor: Symbol, entry: int, areas: list[_Area], symbols: list[tuple[str, _Range]]
) -> _Range:
    """Return where a kernel's code is. entry: where it begins. Raises FormatError if no function begins there."""
    name = descriptor.name.removesuffix(".kd")
    # In an object file a relocation gives the descriptor the place of the code.
    own = [place for symbol, place in symbols if symbol == name and (place.begin == entry or elf.type == ET_REL)]
    for place in [*own, *(place for _, place in symbols if place.begin == entry)]:
        return place
    if _area_at(areas, entry, -1) is None:
        raise _error(elf, f"code of {name}", f"at {entry:#x}", "inside the code")
    raise _error(elf, f"code of {name}", f"at {entry:#x}", "where a function begins")


def _usual_wave(target: str) -> int:
    """Return the lanes of a processor's waves, in code without kernels."""
    return 64 if target.startswith(("gfx6", "gfx7", "gfx8", "gfx9")) else 32


def _error(elf: Elf, field: str, found: str, expected: str) -> FormatError:
    """Return the error for a field of the code object that has a wrong value."""
    return Cursor(elf.data, elf.file, base=elf.base).error(field, found, expected, at=0)
