"""Code objects: AMD's machine code in ELF. Its target, and the registers, memory and arguments of its kernels.

LLVM documents all of it ("User Guide for AMDGPU Backend", sections "ELF Code Object", "Code Object Metadata" and
"Kernel Descriptor"). The figures are those of the metadata note; what a kernel's descriptor, which the hardware is
set up from, says otherwise is named in the kernel's ``conflicts``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from neutrino.elf.constants import EM_AMDGPU, ET_REL, SHT_DYNSYM, SHT_SYMTAB
from neutrino.elf.cursor import Cursor
from neutrino.elf.reader import Elf
from neutrino.elf.rows import Note, Symbol
from neutrino.errors import FormatError

_OSABI_HSA = 64
_ABI_VERSIONS = {0: 2, 1: 3, 2: 4, 3: 5, 4: 6}
"""EI_ABIVERSION → version of the code object ("ELFABIVERSION_AMDGPU_HSA_V2" to "_V6")."""

# e_flags, "AMDGPU ELF Header e_flags": for code object V3, and from V4 on.
_MACHINE = 0xFF
_XNACK_V3, _SRAMECC_V3 = 0x100, 0x200
_XNACK_SHIFT, _SRAMECC_SHIFT = 8, 10
_FEATURE = 3
_SIGNS = {2: "-", 3: "+"}

_PROCESSORS = {
    0x20: "gfx600", 0x21: "gfx601", 0x22: "gfx700", 0x23: "gfx701", 0x24: "gfx702", 0x25: "gfx703", 0x26: "gfx704",
    0x28: "gfx801", 0x29: "gfx802", 0x2A: "gfx803", 0x2B: "gfx810", 0x2C: "gfx900", 0x2D: "gfx902", 0x2E: "gfx904",
    0x2F: "gfx906", 0x30: "gfx908", 0x31: "gfx909", 0x32: "gfx90c", 0x33: "gfx1010", 0x34: "gfx1011", 0x35: "gfx1012",
    0x36: "gfx1030", 0x37: "gfx1031", 0x38: "gfx1032", 0x39: "gfx1033", 0x3A: "gfx602", 0x3B: "gfx705", 0x3C: "gfx805",
    0x3D: "gfx1035", 0x3E: "gfx1034", 0x3F: "gfx90a", 0x40: "gfx940", 0x41: "gfx1100", 0x42: "gfx1013", 0x43: "gfx1150",
    0x44: "gfx1103", 0x45: "gfx1036", 0x46: "gfx1101", 0x47: "gfx1102", 0x48: "gfx1200", 0x49: "gfx1250",
    0x4A: "gfx1151", 0x4B: "gfx941", 0x4C: "gfx942", 0x4E: "gfx1201", 0x4F: "gfx950", 0x51: "gfx9-generic",
    0x52: "gfx10-1-generic", 0x53: "gfx10-3-generic", 0x54: "gfx11-generic", 0x55: "gfx1152", 0x58: "gfx1153",
    0x59: "gfx12-generic", 0x5A: "gfx1251", 0x5F: "gfx9-4-generic",
}  # fmt: skip
"""EF_AMDGPU_MACH → processor. Those that clang 19 knows were compared with what it writes."""

_NOTE_OWNER = b"AMDGPU\0"
_NT_AMDGPU_METADATA = 32
_MAX_METADATA = 64 << 20
"""Bytes of the metadata, which become Python objects: a kernel takes about 1000."""

# group_segment_fixed_size, private_segment_fixed_size, kernarg_size; compute_pgm_rsrc1; kernel_code_properties.
_DESCRIPTOR = struct.Struct("<III36xI4xH6x")
DESCRIPTOR_SIZE = 64
_WAVEFRONT_SIZE32 = 0x400
_TRIPLE = "amdgcn-amd-amdhsa--"


@dataclass(frozen=True)
class CodeObjectKernel:
    """What a code object says of one kernel.

    symbol: of its descriptor. vgprs, sgprs, agprs: registers; agprs is None where the architecture has none of its
    own or the metadata do not say. vgpr_spills, sgpr_spills: registers that were spilled, None where not said.
    group_segment (LDS of a work-group), private_segment (scratch of a work-item) and kernarg_segment: bytes.
    wavefront_size, max_workgroup_size: work-items. dynamic_stack: whether the scratch needed is not known. conflicts:
    fields in which the descriptor says something else, for people.
    """

    name: str
    symbol: str
    vgprs: int
    sgprs: int
    agprs: int | None
    vgpr_spills: int | None
    sgpr_spills: int | None
    group_segment: int
    private_segment: int
    kernarg_segment: int
    wavefront_size: int
    max_workgroup_size: int
    dynamic_stack: bool
    conflicts: tuple[str, ...]


@dataclass(frozen=True)
class CodeObject:
    """A code object. target: its target id, as ``gfx942:sramecc+``, empty when unknown. version: 3 to 6, None for
    other systems' than HSA. kernels: by name, in the metadata's order."""

    target: str
    version: int | None
    kernels: dict[str, CodeObjectKernel]


def read_code_object(data: bytes | memoryview, name: str) -> CodeObject:
    """Read a code object; one without metadata, as of other systems than HSA, has no kernels here.

    name: for error messages. Raises FormatError if it is not a valid code object.
    """
    elf = _open(data, name)
    metadata = _metadata(elf)
    kernels: dict[str, CodeObjectKernel] = {}
    if metadata is not None:
        descriptors = _descriptors(elf)
        for row in metadata.rows("amdhsa.kernels"):
            kernel = _kernel(elf, row, descriptors)
            kernels[kernel.name] = kernel
    return CodeObject(_target(elf, metadata), _version(elf), kernels)


def code_object_target(data: bytes | memoryview, name: str) -> str:
    """The target id alone; empty when it is unknown. Raises FormatError as ``read_code_object``."""
    elf = _open(data, name)
    return _target(elf, None) or _target(elf, _metadata(elf))


def code_object_kernel_names(data: bytes | memoryview, name: str) -> tuple[str, ...]:
    """The kernels' mangled names alone. Raises FormatError as ``read_code_object``."""
    metadata = _metadata(_open(data, name))
    return () if metadata is None else tuple(row.text(".name") for row in metadata.rows("amdhsa.kernels"))


def _open(data: bytes | memoryview, name: str) -> Elf:
    elf = Elf(memoryview(data), name)
    if elf.machine != EM_AMDGPU:
        raise Cursor(elf.data, name).error("e_machine", str(elf.machine), f"{EM_AMDGPU} (AMD GPU)", at=0x12)
    return elf


def _version(elf: Elf) -> int | None:
    return _ABI_VERSIONS.get(elf.abi_version) if elf.os_abi == _OSABI_HSA else None


def _target(elf: Elf, metadata: _Table | None) -> str:
    """From e_flags; from the metadata for a processor that is not in the table."""
    processor = _PROCESSORS.get(elf.flags & _MACHINE)
    if processor is None:
        said = metadata.text("amdhsa.target", "") if metadata is not None else ""
        return said.removeprefix(_TRIPLE) if said.startswith(_TRIPLE) else ""
    version = _version(elf)
    # A feature that is not named may be on or off; V3 could not say that one is off.
    sramecc = xnack = ""
    if version == 3:
        sramecc = "+" if elf.flags & _SRAMECC_V3 else ""
        xnack = "+" if elf.flags & _XNACK_V3 else ""
    elif version is not None and version > 3:
        sramecc = _SIGNS.get(elf.flags >> _SRAMECC_SHIFT & _FEATURE, "")
        xnack = _SIGNS.get(elf.flags >> _XNACK_SHIFT & _FEATURE, "")
    return processor + (sramecc and f":sramecc{sramecc}") + (xnack and f":xnack{xnack}")


@dataclass(frozen=True)
class _Table:
    """A map of the metadata. Its getters check types; an absent key is an error unless there is a default."""

    values: Mapping[str, Any]
    file: str
    offset: int

    def text(self, key: str, default: str | None = None) -> str:
        value = self.values.get(key, default)
        if not isinstance(value, str):
            raise self._error(key, value, "a string")
        return value

    def number(self, key: str) -> int:
        value = self.optional(key)
        if value is None:
            raise self._error(key, value, "a number")
        return value

    def optional(self, key: str) -> int | None:
        value = self.values.get(key)
        if value is not None and (type(value) is not int or value < 0):
            raise self._error(key, value, "a number from 0 on")
        return value

    def rows(self, key: str) -> Iterator[_Table]:
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
            raise self._error(key, value, "a list of maps")
        for row in value:
            yield _Table(row, self.file, self.offset)

    def _error(self, key: str, found: object, expected: str) -> FormatError:
        return FormatError(self.file, self.offset, f"metadata {key}", f"{type(found).__name__} {found!r:.40}", expected)


def _metadata(elf: Elf) -> _Table | None:
    for note in elf.notes():
        if note.type == _NT_AMDGPU_METADATA and note.owner == _NOTE_OWNER:
            return _unpacked(elf, note)
    return None


def _unpacked(elf: Elf, note: Note) -> _Table:
    import msgpack

    def error(found: str, expected: str) -> FormatError:
        return FormatError(elf.file, note.offset, "metadata note", found, expected)

    if len(note.content) > _MAX_METADATA:
        raise error(f"{len(note.content)} bytes long", f"at most {_MAX_METADATA}")
    try:
        # Sizes that the content claims are compared with its own, and keys must be strings.
        found = msgpack.unpackb(note.content)
    except (msgpack.UnpackException, ValueError, OverflowError) as fault:
        raise error(f"damaged ({fault!s:.80})", "a msgpack object") from fault
    if not isinstance(found, dict):
        raise error(f"a {type(found).__name__}", "a map")
    return _Table(found, elf.file, note.offset)


def _descriptors(elf: Elf) -> dict[str, Symbol]:
    """Symbols of descriptors by name; a stripped file has them in its dynamic symbols."""
    found = {}
    for table in (SHT_DYNSYM, SHT_SYMTAB):
        for symbol in elf.symbols(table):
            if symbol.name.endswith(".kd"):
                found[symbol.name] = symbol
    return found


def _kernel(elf: Elf, row: _Table, descriptors: Mapping[str, Symbol]) -> CodeObjectKernel:
    symbol = row.text(".symbol")
    figures = {
        "group_segment_fixed_size": row.number(".group_segment_fixed_size"),
        "private_segment_fixed_size": row.number(".private_segment_fixed_size"),
        "kernarg_size": row.number(".kernarg_segment_size"),
        "wavefront size": row.number(".wavefront_size"),
    }
    return CodeObjectKernel(
        name=row.text(".name"),
        symbol=symbol,
        vgprs=row.number(".vgpr_count"),
        sgprs=row.number(".sgpr_count"),
        agprs=row.optional(".agpr_count"),
        vgpr_spills=row.optional(".vgpr_spill_count"),
        sgpr_spills=row.optional(".sgpr_spill_count"),
        group_segment=figures["group_segment_fixed_size"],
        private_segment=figures["private_segment_fixed_size"],
        kernarg_segment=figures["kernarg_size"],
        wavefront_size=figures["wavefront size"],
        max_workgroup_size=row.number(".max_flat_workgroup_size"),
        dynamic_stack=bool(row.values.get(".uses_dynamic_stack", False)),
        conflicts=_conflicts(elf, symbol, descriptors.get(symbol), figures),
    )


def _conflicts(elf: Elf, name: str, symbol: Symbol | None, figures: Mapping[str, int]) -> tuple[str, ...]:
    if symbol is None:
        return (f"no descriptor {name}",)
    content = _symbol_bytes(elf, symbol)
    group, private, kernarg, _, properties = _DESCRIPTOR.unpack(content)
    found = {
        "group_segment_fixed_size": group,
        "private_segment_fixed_size": private,
        "kernarg_size": kernarg,
        "wavefront size": 32 if properties & _WAVEFRONT_SIZE32 else 64,
    }
    return tuple(
        f"{field} is {found[field]} in the descriptor, {said} in the metadata"
        for field, said in figures.items()
        if found[field] != said
    )


def _symbol_bytes(elf: Elf, symbol: Symbol) -> memoryview:
    field = f"descriptor {symbol.name}"
    cursor = Cursor(elf.data, elf.file, base=elf.base)
    if elf.type == ET_REL:
        if symbol.section >= len(elf.sections):
            raise cursor.error(field, f"in section {symbol.section}", f"in one of {len(elf.sections)}")
        section = elf.sections[symbol.section]
        contents = Cursor(elf.contents(section), elf.file, base=elf.base + section.offset)
        contents.seek(symbol.value, field)
        return contents.take(DESCRIPTOR_SIZE, field)
    place = elf.file_range(symbol.value)
    if place is None:
        raise cursor.error(field, f"at {symbol.value:#x}", "an address in the file")
    return elf.bytes_at(place[0], DESCRIPTOR_SIZE, field)
