"""Code objects: AMD's machine code in ELF. Their targets, and the registers and memory that their kernels use.

LLVM documents all of it ("User Guide for AMDGPU Backend", sections "ELF Code Object", "Code Object Metadata" and
"Kernel Descriptor"). The figures are those of the metadata note. Where a kernel's descriptor, from which the hardware
is set up, has another value, the kernel's ``conflicts`` say so.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from neutrino.elf.constants import E_MACHINE, EM_AMDGPU, ET_REL, SHT_DYNSYM, SHT_SYMTAB
from neutrino.elf.cursor import Cursor
from neutrino.elf.reader import Elf
from neutrino.elf.rows import Symbol
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

NOTE_OWNER = b"AMDGPU\0"
NT_AMDGPU_METADATA = 32
_MAX_METADATA = 64 << 20
"""Limit in bytes of the metadata, which become Python objects: a kernel takes about 1000 bytes."""

# group_segment_fixed_size, private_segment_fixed_size, kernarg_size; compute_pgm_rsrc1; kernel_code_properties.
_DESCRIPTOR = struct.Struct("<III36xI4xH6x")
DESCRIPTOR_SIZE = 64
WAVEFRONT_SIZE32 = 0x400
_TRIPLE = re.compile(r"(?:amdgcn|amdgpu[0-9.]*)-amd-amdhsa-(?:unknown)?-")
"""In front of a target id. From LLVM 23 on, its first part has the version too: ``amdgpu9.42-amd-amdhsa-unknown-``
for gfx942."""


@dataclass(frozen=True)
class CodeObjectKernel:
    """The properties of one kernel in a code object.

    symbol: name of its descriptor's symbol. vgprs, sgprs, agprs: registers; agprs is None where the architecture has no
    separate ones or the metadata do not state them. vgpr_spills, sgpr_spills: spilled registers, None where not stated.
    group_segment (LDS per work-group), private_segment (scratch per work-item) and kernarg_segment: bytes.
    wavefront_size, max_workgroup_size: work-items. dynamic_stack: whether the size of the stack, and so the scratch, is
    only known at run time. conflicts: messages about the fields that differ in the descriptor.
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
    """Read a code object: its target, version and kernels. Without a metadata note it has no kernels here.

    name: for error messages. Raises FormatError if it is not a valid code object.
    """
    elf = open_code_object(data, name)
    metadata = metadata_of(elf)
    kernels: dict[str, CodeObjectKernel] = {}
    if metadata is not None:
        descriptors = descriptors_of(elf)
        for kernel_metadata in metadata.maps("amdhsa.kernels"):
            kernel = _kernel(elf, kernel_metadata, descriptors)
            kernels[kernel.name] = kernel
    return CodeObject(target_of(elf, metadata), _version(elf), kernels)


def code_object_target(data: bytes | memoryview, name: str) -> str:
    """Return the target id of a code object, such as ``gfx942:sramecc+``; empty when it is unknown.

    Raises FormatError as ``read_code_object``.
    """
    elf = open_code_object(data, name)
    # The metadata are only decoded when e_flags do not say it.
    return target_of(elf, None) or target_of(elf, metadata_of(elf))


def code_object_kernel_names(data: bytes | memoryview, name: str) -> tuple[str, ...]:
    """Return the mangled names of the kernels in a code object. Raises FormatError as ``read_code_object``."""
    metadata = metadata_of(open_code_object(data, name))
    return () if metadata is None else tuple(kernel.text(".name") for kernel in metadata.maps("amdhsa.kernels"))


def open_code_object(data: bytes | memoryview, name: str) -> Elf:
    """Open a code object as an ELF file. Raises FormatError when it is not one for an AMD GPU."""
    elf = Elf(memoryview(data), name)
    if elf.machine != EM_AMDGPU:
        raise Cursor(elf.data, name).error("e_machine", str(elf.machine), f"{EM_AMDGPU} (AMD GPU)", at=E_MACHINE)
    return elf


def _version(elf: Elf) -> int | None:
    """Return the version of the code object's ABI (AMD HSA); None for any other file."""
    return _ABI_VERSIONS.get(elf.abi_version) if elf.os_abi == _OSABI_HSA else None


def target_of(elf: Elf, metadata: Metadata | None) -> str:
    """Return the target id, such as ``gfx942:sramecc+``; empty when it is unknown.

    It is taken from e_flags, and for a processor that is not in the table from the metadata, if there are any.
    """
    processor = _PROCESSORS.get(elf.flags & _MACHINE)
    if processor is None:
        target = metadata.text("amdhsa.target", "") if metadata is not None else ""
        # Code for other systems than HSA has another triple: the rest need not be a target id.
        triple = _TRIPLE.match(target)
        return target[triple.end() :] if triple else ""
    version = _version(elf)
    # A feature without a sign is unsupported, or may be on or off. V3 could not express that it must be off.
    sramecc = xnack = ""
    if version == 3:
        sramecc = "+" if elf.flags & _SRAMECC_V3 else ""
        xnack = "+" if elf.flags & _XNACK_V3 else ""
    elif version is not None and version > 3:
        sramecc = _SIGNS.get(elf.flags >> _SRAMECC_SHIFT & _FEATURE, "")
        xnack = _SIGNS.get(elf.flags >> _XNACK_SHIFT & _FEATURE, "")
    # Target ids have their features in alphabetic order.
    target = processor
    if sramecc:
        target += f":sramecc{sramecc}"
    if xnack:
        target += f":xnack{xnack}"
    return target


@dataclass(frozen=True)
class Metadata:
    """A map of the metadata note, whose getters check types.

    values: by key, unchecked, as msgpack decoded them. file, offset: of the note, for error messages.
    """

    values: Mapping[str, Any]
    file: str
    offset: int

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string. Raises FormatError for another type, and for an absent key without a default."""
        value = self.values.get(key, default)
        if not isinstance(value, str):
            raise self._error(key, value, "a string")
        return value

    def number(self, key: str) -> int:
        """Return a number from 0 on. Raises FormatError for anything else, and for an absent key."""
        value = self.optional_number(key)
        if value is None:
            raise self._error(key, value, "a number")
        return value

    def optional_number(self, key: str) -> int | None:
        """Return a number from 0 on, None for an absent key. Raises FormatError for anything else."""
        value = self.values.get(key)
        # The exact type, because bool is a subclass of int.
        if value is not None and (type(value) is not int or value < 0):
            raise self._error(key, value, "a number from 0 on")
        return value

    def numbers(self, key: str) -> tuple[int, ...]:
        """Return a list of numbers from 0 on, () for an absent key. Raises FormatError for anything else."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
            raise self._error(key, value, "a list of numbers from 0 on")
        return tuple(value)

    def maps(self, key: str) -> Iterator[Metadata]:
        """Yield the maps of a list, none for an absent key. Raises FormatError for anything else."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self._error(key, value, "a list of maps")
        for item in value:
            yield Metadata(item, self.file, self.offset)

    def _error(self, key: str, found: object, expected: str) -> FormatError:
        """Return the error for a metadata value of another type than expected. found: the value."""
        return FormatError(self.file, self.offset, f"metadata {key}", f"{type(found).__name__} {found!r:.40}", expected)


def metadata_of(elf: Elf) -> Metadata | None:
    """Return the content of the first metadata note, None if there is none. Raises FormatError for a damaged one."""
    for note in elf.notes():
        if note.type == NT_AMDGPU_METADATA and note.owner == NOTE_OWNER:
            return unpacked(note.content, elf.file, note.offset)
    return None


def unpacked(content: bytes | memoryview, file: str, offset: int) -> Metadata:
    """Decode a metadata note, which is a msgpack map. Raises FormatError when it is too large or damaged.

    content: of the note. file, offset: of the content, for error messages.
    """
    import msgpack

    def error(found: str, expected: str) -> FormatError:
        """Return the error for a damaged metadata note."""
        return FormatError(file, offset, "metadata note", found, expected)

    if len(content) > _MAX_METADATA:
        raise error(f"{len(content)} bytes long", f"at most {_MAX_METADATA}")
    try:
        # msgpack itself checks the lengths that the data claim, and that keys are strings.
        metadata = msgpack.unpackb(content)
    except (msgpack.UnpackException, ValueError, OverflowError) as exception:
        raise error(f"damaged ({exception!s:.80})", "a msgpack object") from exception
    if not isinstance(metadata, dict):
        raise error(f"a {type(metadata).__name__}", "a map")
    return Metadata(metadata, file, offset)


def descriptors_of(elf: Elf) -> dict[str, Symbol]:
    """Return the symbols of the kernel descriptors by name (``NAME.kd``)."""
    descriptors = {}
    # A stripped file has only the dynamic symbols; an object file has only the others.
    for table in (SHT_DYNSYM, SHT_SYMTAB):
        for symbol in elf.symbols(table):
            if symbol.name.endswith(".kd"):
                descriptors[symbol.name] = symbol
    return descriptors


def _kernel(elf: Elf, metadata: Metadata, descriptors: Mapping[str, Symbol]) -> CodeObjectKernel:
    """Return the properties of one kernel.

    metadata: the kernel's map of the metadata note. descriptors: symbols of the kernel descriptors by name. Raises
    FormatError for a missing or malformed property, and for a descriptor that leaves the file.
    """
    symbol = metadata.text(".symbol")
    # The four that the kernel's descriptor has too, by the names of its fields: they are compared with it.
    figures = {
        "group_segment_fixed_size": metadata.number(".group_segment_fixed_size"),
        "private_segment_fixed_size": metadata.number(".private_segment_fixed_size"),
        "kernarg_size": metadata.number(".kernarg_segment_size"),
        "wavefront size": metadata.number(".wavefront_size"),
    }
    return CodeObjectKernel(
        name=metadata.text(".name"),
        symbol=symbol,
        vgprs=metadata.number(".vgpr_count"),
        sgprs=metadata.number(".sgpr_count"),
        agprs=metadata.optional_number(".agpr_count"),
        vgpr_spills=metadata.optional_number(".vgpr_spill_count"),
        sgpr_spills=metadata.optional_number(".sgpr_spill_count"),
        group_segment=figures["group_segment_fixed_size"],
        private_segment=figures["private_segment_fixed_size"],
        kernarg_segment=figures["kernarg_size"],
        wavefront_size=figures["wavefront size"],
        max_workgroup_size=metadata.number(".max_flat_workgroup_size"),
        dynamic_stack=bool(metadata.values.get(".uses_dynamic_stack", False)),
        conflicts=_conflicts(elf, symbol, descriptors.get(symbol), figures),
    )


def _conflicts(elf: Elf, name: str, symbol: Symbol | None, metadata_figures: Mapping[str, int]) -> tuple[str, ...]:
    """Compare a kernel's metadata with its descriptor, and return a message for each field that differs.

    The figures that are shown are those of the metadata, but the hardware is set up from the descriptor. name, symbol:
    of the descriptor; symbol is None when the file has no such symbol. metadata_figures: values of the metadata by
    descriptor field. Raises FormatError for a descriptor that leaves the file.
    """
    if symbol is None:
        return (f"no descriptor {name}",)
    content = descriptor_bytes(elf, symbol)
    group, private, kernarg, _, properties = _DESCRIPTOR.unpack(content)
    descriptor_figures = {
        "group_segment_fixed_size": group,
        "private_segment_fixed_size": private,
        "kernarg_size": kernarg,
        "wavefront size": 32 if properties & WAVEFRONT_SIZE32 else 64,
    }
    return tuple(
        f"{field} is {descriptor_figures[field]} in the descriptor, {value} in the metadata"
        for field, value in metadata_figures.items()
        if descriptor_figures[field] != value
    )


def descriptor_bytes(elf: Elf, symbol: Symbol) -> memoryview:
    """Return the ``DESCRIPTOR_SIZE`` bytes of the kernel descriptor that a symbol stands for.

    Raises FormatError when they leave the file or the section.
    """
    field = f"descriptor {symbol.name}"
    cursor = Cursor(elf.data, elf.file, base=elf.base)
    # In an object file the symbol's value is an offset in its section, in a linked file a virtual address.
    if elf.type == ET_REL:
        if symbol.section >= len(elf.sections):
            raise cursor.error(field, f"in section {symbol.section}", f"in one of {len(elf.sections)}")
        section = elf.sections[symbol.section]
        contents = Cursor(elf.contents(section), elf.file, base=elf.base + section.offset)
        contents.seek(symbol.value, field)
        return contents.take(DESCRIPTOR_SIZE, field)
    file_range = elf.file_range(symbol.value)
    if file_range is None:
        raise cursor.error(field, f"at {symbol.value:#x}", "an address in the file")
    begin, _ = file_range
    return elf.bytes_at(begin, DESCRIPTOR_SIZE, field)
