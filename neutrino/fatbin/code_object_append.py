"""Appends kernels to a code object: what is in it stays where it is, byte for byte but for the fields named here.

A kernel that is appended is like one of the object's: it has that one's descriptor and metadata with what differs, and
code of its own. Both use the object's variables, and one module has both. What grows is written anew behind the file:
program headers, the metadata note, both symbol tables with their names, and the hash tables of the dynamic one. The
file's own fields that change: in the ELF header those of the two header tables, in the dynamic section the places of
symbols, names and hashes.

Two segments are appended. That with the code comes first, so where each kernel's code will be follows from the sizes
alone (``place``): code that refers to variables by their distance must know it.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from neutrino.elf.constants import (
    DT_GNU_HASH,
    DT_HASH,
    DT_NULL,
    DT_STRSZ,
    DT_STRTAB,
    DT_SYMTAB,
    DT_VERSYM,
    ET_REL,
    PF_R,
    PF_X,
    PT_DYNAMIC,
    PT_LOAD,
    PT_NOTE,
    PT_PHDR,
    SHF_ALLOC,
    SHF_EXECINSTR,
    SHT_DYNSYM,
    SHT_GNU_HASH,
    SHT_HASH,
    SHT_NOTE,
    SHT_PROGBITS,
    SHT_SYMTAB,
    STT_FUNC,
    STT_OBJECT,
)
from neutrino.elf.reader import Elf
from neutrino.elf.rows import (
    DYNAMIC_LAYOUT,
    NOTE_LAYOUT,
    SECTION_LAYOUT,
    SEGMENT_LAYOUT,
    SYMBOL_LAYOUT,
    Note,
    Section,
    Segment,
    Symbol,
)
from neutrino.errors import PatchError
from neutrino.fatbin.code_object import (
    DESCRIPTOR_SIZE,
    WAVEFRONT_SIZE32,
    descriptor_bytes,
    descriptors_of,
    metadata_of,
    open_code_object,
    target_of,
)

PAGE = 4096
"""Bytes to which segments are aligned, as lld does for these machines."""
CODE_ALIGNMENT = 256
"""Of a kernel's first instruction, in bytes ("Kernel Descriptor", KERNEL_CODE_ENTRY_BYTE_OFFSET)."""
BLOCK_ALIGNMENT = 8
"""Of the argument that is added, in bytes."""
_BEHIND = 256
"""Bytes behind the last instruction: the hardware fetches them ahead, and never runs them."""
_NOP, _CODE_END = 0xBF800000, 0xBF9F0000
"""What compilers put there: ``s_nop 0`` for gfx9, ``s_code_end`` later."""
_DESCRIPTOR_ALIGNMENT = 64

# Offsets in the descriptor ("Kernel Descriptor"), and bits of COMPUTE_PGM_RSRC1 and 3.
_KERNARG_SIZE, _ENTRY, _RSRC3, _RSRC1, _PROPERTIES = 8, 16, 44, 48, 56
_WORD, _HALF, _LONG = struct.Struct("<I"), struct.Struct("<H"), struct.Struct("<q")
_VGPRS, _SGPRS, _SGPRS_SHIFT = 0x3F, 0xF, 6
_ACCUM, _ACCUM_GRANULE = 0x3F, 4
_PREFETCH_SHIFT, _PREFETCH_LINE = 4, 128
_PREFETCH: Mapping[str, int] = {"gfx11": 0x3F, "gfx12": 0xFF}
"""The field with how many lines of code are fetched ahead, by the beginning of processors' names."""
_SGPR_GRANULE, _SGPRS_OF_HARDWARE = 8, 6
"""Of gfx9, where a kernel has as many scalar registers as it asks for; at their end are VCC, FLAT_SCRATCH and
XNACK_MASK."""
_MOST_SGPRS_GFX9, _MOST_SGPRS = 102, 106
_UNIFIED = ("gfx90a", "gfx940", "gfx941", "gfx942", "gfx950", "gfx9-4-generic")
"""Processors that have accumulators in the file of the other vector registers, behind them."""
_UNIFIED_GRANULE = 8
_MOST_VGPRS = 256
_MOST_ARGUMENTS = (1 << 32) - 1
"""In bytes, which the descriptor has 32 bits for."""

_STB_GLOBAL, _STV_PROTECTED = 1, 3
_E_PHOFF, _E_SHOFF, _E_PHNUM, _E_SHNUM, _E_SHSTRNDX = 0x20, 0x28, 0x38, 0x3C, 0x3E
_MOST_SECTIONS, _MOST_SEGMENTS = 0xFEFF, 0xFFFE
_NOTE_OWNER, _NT_AMDGPU_METADATA = b"AMDGPU\0", 32
_KERNELS = "amdhsa.kernels"
_ALL_NAMES = (1 << 64) - 1
"""A filter of GNU's hash table that rules no name out."""
_MOST_HASHES = 1 << 12
"""Names of symbols whose hashes are kept."""
# Columns of a row of the section header table.
_TYPE, _ADDRESS, _OFFSET, _SIZE = 1, 3, 4, 5


class Part(NamedTuple):
    """A function in a kernel's code. name: mangled. offset, size: in bytes."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Appended:
    """A kernel that is appended, with functions of its own that it calls.

    name: mangled. like: name of the kernel of the object that it is like. code: it begins where the kernel does, with
    the header of preloaded arguments where that has one; functions are behind the kernel. sgprs, vgprs: registers that
    it names, the highest number and 1; what ``like`` has it has in any case. Accumulators and registers of fixed
    purpose (VCC …) do not count. block_size: bytes of the argument that it has behind those of the other, by value.
    functions: those in its code, the kernel too, in the order of their places; without any, all of it is the kernel's.
    descriptor: the 64 bytes that its own begins as, instead of those of ``like``.
    """

    name: str
    like: str
    code: bytes
    sgprs: int
    vgprs: int
    block_size: int
    functions: tuple[Part, ...] = ()
    descriptor: bytes | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """The functions in its code, the kernel first."""
        return self.functions or (Part(self.name, 0, len(self.code)),)


class KernelRefusedError(PatchError):
    """A kernel that cannot be appended, while others may be. kernel: its name."""

    def __init__(self, file: str, kernel: str, reason: str) -> None:
        """Build the message from the file's and the kernel's names, and why the kernel cannot be appended."""
        super().__init__(file, f"{kernel} cannot be appended: {reason}")
        self.kernel = kernel


def block_offset(kernarg_segment: int) -> int:
    """Return where the added argument begins. kernarg_segment: bytes of the arguments of the kernel that is like it."""
    return _up(kernarg_segment, BLOCK_ALIGNMENT)


def place(data: bytes | memoryview, sizes: Sequence[int], name: str = "the code object") -> tuple[int, ...]:
    """Return at which address ``append_kernels`` puts the code of each kernel, by their sizes in bytes.

    Raises FormatError for what is not a code object.
    """
    address, places = _end_of_loads(open_code_object(data, name)), []
    for size in sizes:
        places.append(address)
        address = next_place(address, size)
    return tuple(places)


def next_place(address: int, size: int) -> int:
    """Return the address of the code that follows what has an address and a size in bytes."""
    return _up(address + size, CODE_ALIGNMENT)


def append_kernels(data: bytes | memoryview, kernels: Sequence[Appended], name: str = "the code object") -> bytes:
    """Append kernels to a code object, and return the whole.

    name: for messages. Raises FormatError if it is not a valid code object, PatchError for one that has no place for
    more: an object file, one without metadata or symbols. KernelRefusedError for the first kernel whose name, or that
    of a function of its own, is taken, whose ``like`` is not there, or whose registers or arguments do not fit.
    """
    return Appender(data, name).appended(kernels) if kernels else bytes(data)


class Appender:
    """Appends kernels to one code object. Raises FormatError and PatchError as ``append_kernels``."""

    def __init__(self, data: bytes | memoryview, name: str = "the code object") -> None:
        """Read the object. name: for messages."""
        self._writer = _Writer(open_code_object(data, name))
        self._known, self._taken = self._writer.known_names()

    def refusal(self, kernel: Appended) -> str:
        """Return why a kernel would be refused, "" if it would not: then its names are taken. Of its code only the
        names of the functions matter."""
        writer = self._writer
        try:
            writer.changed(kernel, writer.original(kernel, self._known, self._taken))
        except KernelRefusedError as error:
            return error.reason
        self._taken |= _names_of(kernel)
        return ""

    def appended(self, kernels: Sequence[Appended]) -> bytes:
        """Return the object with all of its new kernels; once. Raises as ``append_kernels``."""
        return self._writer.appended(kernels)


@dataclass
class _Area:
    """Bytes that are appended. offset: in the file, address: virtual, both of the first one."""

    offset: int
    address: int
    content: bytearray = field(default_factory=bytearray)

    def put(self, content: bytes, alignment: int = 8) -> int:
        """Add bytes; return where they begin, counted from the area's beginning."""
        self.content += bytes(-len(self.content) % alignment)
        begin = len(self.content)
        self.content += content
        return begin


class _New(NamedTuple):
    """A symbol that is added. section: index of a row of the section header table."""

    name: str
    type: int
    section: int
    address: int
    size: int


class _Writer:
    """Writes one code object. rows: of its section header table, in which those that move are changed. tags: values of
    the dynamic section that change."""

    def __init__(self, elf: Elf) -> None:
        """Check that the object has a place for more. Raises FormatError and PatchError."""
        self.elf = elf
        if elf.type == ET_REL or not elf.segments:
            raise self.error("it is an object file, which a linker has yet to give segments")
        self.metadata, self.note, self.note_segment = self._metadata()
        if DT_VERSYM in elf.dynamic or DT_SYMTAB not in elf.dynamic:
            raise self.error("its symbols have versions" if DT_VERSYM in elf.dynamic else "it has no dynamic symbols")
        self.rows = [list(row) for row in SECTION_LAYOUT.iter_unpack(self._section_table())]
        if len(self.rows) > _MOST_SECTIONS - 2 or len(elf.segments) > _MOST_SEGMENTS - 2:
            raise self.error(f"it has {len(self.rows)} sections and {len(elf.segments)} segments")
        self.tags: dict[int, int] = {}
        self.processor = target_of(elf, None).split(":")[0]

    def error(self, reason: str) -> PatchError:
        """Return the error for an object to which nothing can be appended."""
        return PatchError(self.elf.file, f"no kernel can be appended: {reason}")

    def refusal(self, kernel: Appended, reason: str) -> KernelRefusedError:
        """Return the error for a kernel that cannot be appended."""
        return KernelRefusedError(self.elf.file, kernel.name, reason)

    def appended(self, kernels: Sequence[Appended]) -> bytes:
        """Return the object with the kernels. Raises FormatError and PatchError."""
        elf = self.elf
        known, taken = self.known_names()
        originals = []
        for kernel in kernels:
            originals.append(self.original(kernel, known, taken))
            taken |= _names_of(kernel)
        code = _Area(_up(len(elf.data), PAGE), _end_of_loads(elf))
        addresses = [code.address + code.put(kernel.code, CODE_ALIGNMENT) for kernel in kernels]
        code.put(_WORD.pack(_NOP if self.processor.startswith("gfx9") else _CODE_END) * (_BEHIND // _WORD.size), 4)
        code_size = len(code.content)
        code.put(b"", PAGE)

        # The segment that is read: descriptors first, as a section of their own.
        tables = _Area(code.offset + len(code.content), code.address + len(code.content))
        code_section, descriptor_section = len(self.rows), len(self.rows) + 1
        entries, symbols = [], []
        for kernel, original, address in zip(kernels, originals, addresses, strict=True):
            entry, descriptor = self.changed(kernel, original)
            at = tables.put(descriptor, _DESCRIPTOR_ALIGNMENT)
            _LONG.pack_into(tables.content, at + _ENTRY, address - tables.address - at)
            entries.append(entry)
            symbols += [
                *(_New(part.name, STT_FUNC, code_section, address + part.offset, part.size) for part in kernel.parts),
                _New(f"{kernel.name}.kd", STT_OBJECT, descriptor_section, tables.address + at, DESCRIPTOR_SIZE),
            ]
        descriptors_size = len(tables.content)
        note_segment = self._put_note(tables, entries)
        self._put_dynamic_symbols(tables, symbols)
        segments = self._segments(note_segment)
        headers_size = SEGMENT_LAYOUT.size * (len(segments) + 2)
        headers = tables.put(bytes(headers_size))
        # In the order of their addresses, which is what loaders rely on.
        last = max(index for index, segment in enumerate(segments) if segment.type == PT_LOAD) + 1
        segments[last:last] = [
            Segment(PT_LOAD, PF_R | PF_X, code.offset, code.address, code_size, code_size, PAGE),
            Segment(PT_LOAD, PF_R, tables.offset, tables.address, len(tables.content), len(tables.content), PAGE),
        ]
        for index, segment in enumerate(segments):
            if segment.type == PT_PHDR:
                place = tables.offset + headers, tables.address + headers, headers_size, headers_size
                segment = segment._replace(offset=place[0], address=place[1], file_size=place[2], memory_size=place[3])
            SEGMENT_LAYOUT.pack_into(tables.content, headers + SEGMENT_LAYOUT.size * index, *_segment_row(segment))

        # What is not loaded.
        rest = _Area(tables.offset + len(tables.content), 0)
        names = self._put_static_symbols(rest, symbols)
        for name, flags, area, size, alignment in (
            (names[0], SHF_ALLOC | SHF_EXECINSTR, code, code_size, CODE_ALIGNMENT),
            (names[1], SHF_ALLOC, tables, descriptors_size, _DESCRIPTOR_ALIGNMENT),
        ):
            self.rows.append([name, SHT_PROGBITS, flags, area.address, area.offset, size, 0, 0, alignment, 0])
        section_headers = rest.put(b"".join(SECTION_LAYOUT.pack(*row) for row in self.rows))

        whole = bytearray(elf.data)
        self._change_dynamic_section(whole)
        _LONG.pack_into(whole, _E_PHOFF, tables.offset + headers)
        _LONG.pack_into(whole, _E_SHOFF, rest.offset + section_headers)
        _HALF.pack_into(whole, _E_PHNUM, len(segments))
        _HALF.pack_into(whole, _E_SHNUM, len(self.rows))
        whole += bytes(code.offset - len(whole))
        return bytes(whole + code.content + tables.content + rest.content)

    def _metadata(self) -> tuple[Mapping[str, Any], Note, Segment]:
        """Return the metadata, their note, and the segment that has it."""
        elf = self.elf
        metadata = metadata_of(elf)
        if metadata is None:
            raise self.error("it has no metadata")
        note = next(note for note in elf.notes() if note.type == _NT_AMDGPU_METADATA and note.owner == _NOTE_OWNER)
        at = note.offset - elf.base
        segment = next(
            segment
            for segment in elf.segments
            if segment.type == PT_NOTE and segment.offset <= at < segment.offset + segment.file_size
        )
        for kernel in metadata.maps(_KERNELS):
            # What is used of them below has the right type.
            for key in (".name", ".symbol"):
                kernel.text(key)
            for key in (".kernarg_segment_size", ".vgpr_count", ".sgpr_count"):
                kernel.number(key)
            list(kernel.maps(".args"))
        return metadata.values, note, segment

    def known_names(self) -> tuple[Mapping[str, Mapping[str, Any]], set[str]]:
        """Return the metadata of the object's kernels by name, and all names that are taken in it."""
        known = {kernel[".name"]: kernel for kernel in self.metadata.get(_KERNELS, ())}
        names = {symbol.name for table in (SHT_DYNSYM, SHT_SYMTAB) for symbol in self.elf.symbols(table)}
        return known, names | set(known)

    def original(
        self, kernel: Appended, known: Mapping[str, Mapping[str, Any]], taken: Collection[str]
    ) -> Mapping[str, Any]:
        """Return the metadata of the kernel that an appended one is like. known, taken: as ``known_names``, with the
        names of kernels that are appended before it."""
        names = [*(part.name for part in kernel.parts), f"{kernel.name}.kd"]
        for number, name in enumerate(names):
            if name in taken or name in names[:number]:
                raise self.refusal(kernel, f"there is {name} already")
        if kernel.like not in known:
            raise self.refusal(kernel, f"there is no kernel {kernel.like}")
        return known[kernel.like]

    @cached_property
    def _descriptors(self) -> Mapping[str, Symbol]:
        """The symbols of the object's kernel descriptors."""
        return descriptors_of(self.elf)

    def changed(self, kernel: Appended, original: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Return the metadata and the descriptor of an appended kernel. original: metadata of the one it is like."""
        symbol = self._descriptors.get(original[".symbol"])
        if symbol is None:
            raise self.refusal(kernel, "it has no descriptor")
        descriptor = bytearray(kernel.descriptor or descriptor_bytes(self.elf, symbol))
        entry = {**original, ".name": kernel.name, ".symbol": f"{kernel.name}.kd"}
        offset = block_offset(original[".kernarg_segment_size"])
        size = offset + kernel.block_size
        if size > _MOST_ARGUMENTS:
            raise self.refusal(kernel, f"it has {size} bytes of arguments")
        entry[".args"] = [
            *original.get(".args", ()), {".offset": offset, ".size": kernel.block_size, ".value_kind": "by_value"}
        ]  # fmt: skip
        entry[".kernarg_segment_size"] = size
        _WORD.pack_into(descriptor, _KERNARG_SIZE, size)

        entry[".kernarg_segment_align"] = max(original.get(".kernarg_segment_align", 0), BLOCK_ALIGNMENT)
        is_wave32 = bool(_HALF.unpack_from(descriptor, _PROPERTIES)[0] & WAVEFRONT_SIZE32)
        (rsrc1,), (rsrc3,) = _WORD.unpack_from(descriptor, _RSRC1), _WORD.unpack_from(descriptor, _RSRC3)
        vgprs = kernel.vgprs
        if kernel.vgprs > _MOST_VGPRS:
            raise self.refusal(kernel, f"it names {kernel.vgprs} vector registers")
        is_unified = self.processor in _UNIFIED
        if is_unified:
            boundary = ((rsrc3 & _ACCUM) + 1) * _ACCUM_GRANULE
            if vgprs > boundary:
                # Accumulators go up with the number at which they begin: code names them by numbers of their own.
                accumulators = self._accumulators(original, boundary, ((rsrc1 & _VGPRS) + 1) * _UNIFIED_GRANULE)
                boundary = _up(vgprs, _ACCUM_GRANULE)
                rsrc3 = rsrc3 & ~_ACCUM | boundary // _ACCUM_GRANULE - 1
                vgprs = boundary + accumulators if accumulators else vgprs
        granule = _UNIFIED_GRANULE if is_unified or is_wave32 else 4
        rsrc1 = rsrc1 & ~_VGPRS | max(rsrc1 & _VGPRS, -(-vgprs // granule) - 1)
        entry[".vgpr_count"] = max(original[".vgpr_count"], vgprs)
        is_gfx9 = self.processor.startswith("gfx9")
        if kernel.sgprs > (_MOST_SGPRS_GFX9 if is_gfx9 else _MOST_SGPRS):
            raise self.refusal(kernel, f"it names {kernel.sgprs} scalar registers")
        if is_gfx9:
            sgprs = kernel.sgprs + _SGPRS_OF_HARDWARE
            least = -(-sgprs // _SGPR_GRANULE) - 1
            field = max(rsrc1 >> _SGPRS_SHIFT & _SGPRS, least)
            rsrc1 = rsrc1 & ~(_SGPRS << _SGPRS_SHIFT) | field << _SGPRS_SHIFT
        else:
            sgprs = kernel.sgprs
        entry[".sgpr_count"] = max(original[".sgpr_count"], sgprs)
        lines = next((mask for begin, mask in _PREFETCH.items() if self.processor.startswith(begin)), 0)
        if rsrc3 >> _PREFETCH_SHIFT & lines:
            fetched = min(-(-kernel.parts[0].size // _PREFETCH_LINE), lines)
            rsrc3 = rsrc3 & ~(lines << _PREFETCH_SHIFT) | fetched << _PREFETCH_SHIFT
        _WORD.pack_into(descriptor, _RSRC1, rsrc1)
        _WORD.pack_into(descriptor, _RSRC3, rsrc3)
        return entry, bytes(descriptor)

    def _accumulators(self, original: Mapping[str, Any], boundary: int, allocated: int) -> int:
        """Return how many accumulators a kernel has after its other vector registers. boundary: where they begin.
        allocated: registers of both kinds, by the descriptor."""
        count = original.get(".agpr_count")
        if count == 0:
            return 0
        most = allocated if count is None else original[".vgpr_count"]
        return max(count or 0, most - boundary, 0)

    def _put_note(self, tables: _Area, entries: Sequence[Mapping[str, Any]]) -> Segment:
        """Write the notes with the kernels' metadata; return their segment."""
        import msgpack

        note, segment = self.note, self.note_segment
        content = msgpack.packb({**self.metadata, _KERNELS: [*self.metadata[_KERNELS], *entries]})
        begin = note.offset - self.elf.base
        header = begin - NOTE_LAYOUT.size - len(_padded(note.owner))
        end = min(begin + _up(len(note.content), 4), segment.offset + segment.file_size)
        written = NOTE_LAYOUT.pack(len(note.owner), len(content), note.type) + _padded(note.owner) + _padded(content)
        before = self.elf.bytes_at(segment.offset, header - segment.offset, "PT_NOTE")
        behind = self.elf.bytes_at(end, segment.offset + segment.file_size - end, "PT_NOTE")
        at = tables.put(bytes(before) + written + bytes(behind), max(segment.alignment, 4))
        grown = len(written) - (end - header)
        for row in self.rows:
            if row[_TYPE] == SHT_NOTE and segment.offset <= row[_OFFSET] < segment.offset + segment.file_size:
                moved = at + row[_OFFSET] - segment.offset + (grown if row[_OFFSET] > header else 0)
                row[_SIZE] += grown if row[_OFFSET] <= header < row[_OFFSET] + row[_SIZE] else 0
                row[_ADDRESS], row[_OFFSET] = tables.address + moved, tables.offset + moved
        size = segment.file_size + grown
        return segment._replace(
            offset=tables.offset + at, address=tables.address + at, file_size=size, memory_size=size
        )

    def _segments(self, note_segment: Segment) -> list[Segment]:
        """Return the object's segments. note_segment: what is now that of the metadata."""
        return [note_segment if segment == self.note_segment else segment for segment in self.elf.segments]

    def _put_dynamic_symbols(self, tables: _Area, symbols: Sequence[_New]) -> None:
        """Write the dynamic symbols, their names and their hash tables."""
        elf = self.elf
        table = self._table(SHT_DYNSYM)
        if table is None:
            raise self.error("no section has its dynamic symbols")
        names, content = self._with_symbols(table, symbols)
        at_names = tables.put(names, 1)
        at_symbols = tables.put(content)
        self._move(table.link, tables, at_names, len(names))
        self._move(table.index, tables, at_symbols, len(content))
        self.tags |= {
            DT_STRTAB: tables.address + at_names, DT_STRSZ: len(names), DT_SYMTAB: tables.address + at_symbols,
        }  # fmt: skip
        all_names = [_name_at(names, row[0]) for row in SYMBOL_LAYOUT.iter_unpack(content)]
        for tag, kind, write in ((DT_HASH, SHT_HASH, _hash_table), (DT_GNU_HASH, SHT_GNU_HASH, _gnu_hash_table)):
            if tag in elf.dynamic:
                hashes = write(all_names)
                at = tables.put(hashes)
                self.tags[tag] = tables.address + at
                for index, row in enumerate(self.rows):
                    if row[_TYPE] == kind:
                        self._move(index, tables, at, len(hashes))

    def _put_static_symbols(self, rest: _Area, symbols: Sequence[_New]) -> tuple[int, int]:
        """Write the symbols that are not loaded, if the object has any, and all names that are not loaded.

        Returns where the names of the two new sections begin among those of sections.
        """
        table = self._table(SHT_SYMTAB)
        texts: dict[int, bytes] = {}
        if table is not None:
            texts[table.link], content = self._with_symbols(table, symbols)
            self._move(table.index, rest, rest.put(content), len(content))
        (index,) = _HALF.unpack_from(self.elf.data, _E_SHSTRNDX)
        # One table may have the names of symbols and of sections.
        names = texts.get(index, bytes(self.elf.contents(self.elf.sections[index])))
        first = len(names)
        names += b".neutrino.text\0"
        second = len(names)
        texts[index] = names + b".neutrino.rodata\0"
        for owner, text in texts.items():
            self._move(owner, rest, rest.put(text, 1), len(text))
        return first, second

    def _with_symbols(self, table: Section, symbols: Sequence[_New]) -> tuple[bytes, bytes]:
        """Return the names of a symbol table and its rows, with those that are added at the end."""
        elf = self.elf
        names = bytearray(elf.contents(elf.sections[table.link]))
        content = bytearray(elf.contents(table))
        for symbol in symbols:
            info = _STB_GLOBAL << 4 | symbol.type
            row = len(names), info, _STV_PROTECTED, symbol.section, symbol.address, symbol.size
            content += SYMBOL_LAYOUT.pack(*row)
            names += symbol.name.encode() + b"\0"
        return bytes(names), bytes(content)

    def _move(self, section: int, area: _Area, at: int, size: int) -> None:
        """Say that a section's content is now in an area, at a place counted from its beginning."""
        row = self.rows[section]
        # What is not loaded has no address.
        row[_ADDRESS] = area.address + at if area.address else 0
        row[_OFFSET], row[_SIZE] = area.offset + at, size

    def _change_dynamic_section(self, whole: bytearray) -> None:
        """Write what changes in the dynamic section, where it is."""
        for segment in self.elf.segments:
            if segment.type == PT_DYNAMIC:
                for at in range(segment.offset, segment.offset + segment.file_size, DYNAMIC_LAYOUT.size):
                    tag, value = DYNAMIC_LAYOUT.unpack_from(whole, at)
                    if tag == DT_NULL:
                        break
                    DYNAMIC_LAYOUT.pack_into(whole, at, tag, self.tags.get(tag, value))

    def _table(self, kind: int) -> Section | None:
        """Return the section with the symbols of that type."""
        return next((section for section in self.elf.sections if section.type == kind), None)

    def _section_table(self) -> memoryview:
        """Return the section header table."""
        size = len(self.elf.sections) * SECTION_LAYOUT.size
        return self.elf.bytes_at(self.elf.section_headers, size, "section header table")


def _names_of(kernel: Appended) -> set[str]:
    """Return the names of the symbols of an appended kernel."""
    return {*(part.name for part in kernel.parts), f"{kernel.name}.kd"}


def _end_of_loads(elf: Elf) -> int:
    """Return the first address behind the object's segments at which one can begin."""
    return _up(max((row.address + row.memory_size for row in elf.segments if row.type == PT_LOAD), default=0), PAGE)


def _segment_row(segment: Segment) -> tuple[int, ...]:
    """Return the row of a segment; its physical address is its virtual one."""
    kind, flags, offset, address, file_size, memory_size, alignment = segment
    return kind, flags, offset, address, address, file_size, memory_size, alignment


def _hash_table(names: Sequence[bytes]) -> bytes:
    """Return the hash table of dynamic symbols (gABI, chapter 5, "Hash Table"). names: of all of them, in order."""
    buckets = [0] * max(1, len(names) // 2)
    chains = [0] * len(names)
    # Symbol 0 is none, and ends chains.
    for index in range(1, len(names)):
        bucket = _hash(names[index]) % len(buckets)
        chains[index], buckets[bucket] = buckets[bucket], index
    return struct.pack(f"<II{len(buckets) + len(chains)}I", len(buckets), len(chains), *buckets, *chains)


@lru_cache(maxsize=_MOST_HASHES)
def _hash(name: bytes) -> int:
    """Return the hash of a name. The same kernels are in the code objects of many processors."""
    value = 0
    for byte in name:
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high
    return value


def _gnu_hash_table(names: Sequence[bytes]) -> bytes:
    """Return GNU's hash table of dynamic symbols. It has one chain: with several, the symbols would have to be in their
    order, and relocations refer to symbols by number."""
    hashes = [_gnu_hash(name) for name in names[1:]]
    chain = [value & ~1 for value in hashes]
    if chain:
        chain[-1] |= 1
    # Buckets, the first symbol that is in it, words of the filter and its shift.
    header = struct.pack("<IIIIQI", 1, 1, 1, 0, _ALL_NAMES, 1 if chain else 0)
    return header + struct.pack(f"<{len(chain)}I", *chain)


@lru_cache(maxsize=_MOST_HASHES)
def _gnu_hash(name: bytes) -> int:
    """Return GNU's hash of a name."""
    value = 5381
    for byte in name:
        value = value * 33 + byte & 0xFFFFFFFF
    return value


def _name_at(names: bytes, offset: int) -> bytes:
    """Return the name that begins at an offset of a table of names."""
    return names[offset : names.index(b"\0", offset)]


def _padded(content: bytes) -> bytes:
    """Return a note's owner or content with what fills it up to whole words."""
    return content + bytes(-len(content) % 4)


def _up(number: int, alignment: int) -> int:
    """Return the number, or the next one that is a multiple of the alignment."""
    return -(-number // alignment) * alignment
