"""Says what is wrong with a code object to which kernels were appended, as pyelftools reads it. It shares no code with
what writes them."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgpack
import pytest

_METADATA = 32
_GLOBAL, _PROTECTED = "STB_GLOBAL", "STV_PROTECTED"


class Wanted(NamedTuple):
    """A kernel that should be there. like: the one that it is like. block: bytes of its last argument. sgprs, vgprs:
    that it names."""

    name: str
    like: str
    code: bytes
    block: int
    sgprs: int
    vgprs: int


def problems(original: bytes, patched: bytes, wanted: Sequence[Wanted]) -> list[str]:
    """What is wrong, in words; nothing for a code object that is right. Without pyelftools the test is skipped."""
    try:
        return [*_Checker(original, patched).problems(wanted)]
    except Exception as error:  # noqa: BLE001 # whatever a damaged file makes a reader raise
        return [f"{type(error).__name__}: {error}"]


class _Checker:
    """pyelftools's view of both files."""

    def __init__(self, original: bytes, patched: bytes) -> None:
        elffile = pytest.importorskip("elftools.elf.elffile")
        self.data = patched
        self.old: Any = elffile.ELFFile(io.BytesIO(original))
        self.new: Any = elffile.ELFFile(io.BytesIO(patched))
        self.original = original

    def problems(self, wanted: Sequence[Wanted]) -> Iterator[str]:
        yield from self._segments()
        yield from self._sections()
        yield from self._dynamic_section()
        yield from self._what_was_there()
        note, old_note = self._metadata(self.new), self._metadata(self.old)
        kernels = {kernel[".name"]: kernel for kernel in note["amdhsa.kernels"]}
        if note["amdhsa.kernels"][: len(old_note["amdhsa.kernels"])] != old_note["amdhsa.kernels"]:
            yield "metadata of the kernels that were there"
        if {key: value for key, value in note.items() if key != "amdhsa.kernels"} != {
            key: value for key, value in old_note.items() if key != "amdhsa.kernels"
        }:
            yield "metadata besides those of kernels"
        if len(kernels) != len(old_note["amdhsa.kernels"]) + len(wanted):
            yield "number of kernels"
        for kernel in wanted:
            yield from self._kernel(kernel, kernels)

    def _segments(self) -> Iterator[str]:
        segments = [segment.header for segment in self.new.iter_segments()]
        loads = [row for row in segments if row.p_type == "PT_LOAD"]
        moved = ("PT_NOTE", "PT_PHDR")
        before = [segment.header for segment in self.old.iter_segments()]
        stayed = [row for row in segments if row not in loads[-2:]]
        for one, two in zip(before, stayed, strict=True):
            if one != two and not (one.p_type in moved and (one.p_type, one.p_flags) == (two.p_type, two.p_flags)):
                yield f"{one.p_type} has changed"
        if [row.p_flags for row in loads[-2:]] != [5, 4]:
            yield "what may be done with the new segments"
        for row in segments:
            if row.p_offset + row.p_filesz > len(self.data):
                yield f"{row.p_type} leaves the file"
        for one, two in pairwise(loads):
            if one.p_vaddr + one.p_memsz > two.p_vaddr or one.p_offset + one.p_filesz > two.p_offset:
                yield "segments over one another, or out of order"
        for load in loads:
            if load.p_offset % load.p_align != load.p_vaddr % load.p_align or load.p_vaddr != load.p_paddr:
                yield "a segment's alignment"
            if load.p_flags & 3 == 3:
                yield "code that may be written"
        for row in segments:
            if row.p_type in ("PT_NOTE", "PT_PHDR", "PT_DYNAMIC") and not any(
                load.p_vaddr <= row.p_vaddr
                and row.p_vaddr + row.p_memsz <= load.p_vaddr + load.p_memsz
                and row.p_vaddr - load.p_vaddr == row.p_offset - load.p_offset
                for load in loads
            ):
                yield f"{row.p_type} is not loaded from where it is"
            if row.p_type == "PT_PHDR" and (row.p_offset, row.p_filesz) != (
                self.new["e_phoff"], 56 * self.new["e_phnum"],
            ):  # fmt: skip
                yield "PT_PHDR is elsewhere"

    def _sections(self) -> Iterator[str]:
        loads = [segment.header for segment in self.new.iter_segments() if segment["p_type"] == "PT_LOAD"]
        names = [section.name for section in self.new.iter_sections()]
        if names != [*(section.name for section in self.old.iter_sections()), ".neutrino.text", ".neutrino.rodata"]:
            yield "names of sections"
        for one, two in zip(self.old.iter_sections(), self.new.iter_sections(), strict=False):
            if any(one[key] != two[key] for key in ("sh_type", "sh_flags", "sh_link", "sh_info", "sh_addralign")):
                yield f"{one.name} is another section"
        for section in self.new.iter_sections():
            if section["sh_type"] not in ("SHT_NULL", "SHT_NOBITS"):
                if section["sh_offset"] + section["sh_size"] > len(self.data):
                    yield f"{section.name} leaves the file"
                if section["sh_flags"] & 2 and not any(
                    load.p_vaddr <= section["sh_addr"]
                    and section["sh_addr"] + section["sh_size"] <= load.p_vaddr + load.p_filesz
                    and section["sh_addr"] - load.p_vaddr == section["sh_offset"] - load.p_offset
                    for load in loads
                ):
                    yield f"{section.name} is not loaded from where it is"
        (note,) = [section for section in self.new.iter_sections() if section["sh_type"] == "SHT_NOTE"]
        (segment,) = [segment for segment in self.new.iter_segments() if segment["p_type"] == "PT_NOTE"]
        if note["sh_offset"] != segment["p_offset"] or note["sh_size"] != segment["p_filesz"]:
            yield "the section with the note is not its segment"

    def _dynamic_section(self) -> Iterator[str]:
        tags = {tag.entry.d_tag: tag.entry.d_val for tag in self.new.get_section_by_name(".dynamic").iter_tags()}
        for tag, name, key in (
            ("DT_SYMTAB", ".dynsym", "sh_addr"), ("DT_STRTAB", ".dynstr", "sh_addr"),
            ("DT_STRSZ", ".dynstr", "sh_size"), ("DT_HASH", ".hash", "sh_addr"),
            ("DT_GNU_HASH", ".gnu.hash", "sh_addr"),
        ):  # fmt: skip
            section = self.new.get_section_by_name(name)
            if section is not None and tags.get(tag) != section[key]:
                yield f"{tag} is not that of {name}"
        dynamic = self.new.get_section_by_name(".dynsym")
        for table in (".hash", ".gnu.hash"):
            section = self.new.get_section_by_name(table)
            for symbol in dynamic.iter_symbols():
                if symbol.name:
                    found = section.get_symbol(symbol.name)
                    if found is None or found.name != symbol.name:
                        yield f"{table} does not find {symbol.name}"
            if section.get_symbol("there is none") is not None:
                yield f"{table} finds what is not there"

        words = self.new.get_section_by_name(".gnu.hash").data()
        if not words[-4] & 1:
            yield "a chain of .gnu.hash has no end"

    def _what_was_there(self) -> Iterator[str]:
        """Bytes of the file, and the symbols."""
        dynamic = self.old.get_section_by_name(".dynamic")
        values = {
            dynamic["sh_offset"] + 16 * number + at
            for number, tag in enumerate(dynamic.iter_tags())
            if tag.entry.d_tag in ("DT_SYMTAB", "DT_STRTAB", "DT_STRSZ", "DT_HASH", "DT_GNU_HASH")
            for at in range(8, 16)
        }
        listed = values | {*range(0x20, 0x30), 0x38, 0x39, 0x3C, 0x3D}
        if any(self.original[at] != self.data[at] for at in range(len(self.original)) if at not in listed):
            yield "a byte of the file that was there"
        for table in (".symtab", ".dynsym"):
            old, new = self.old.get_section_by_name(table), self.new.get_section_by_name(table)
            if old is None:
                continue
            before = [(symbol.name, symbol.entry.items()) for symbol in old.iter_symbols()]
            after = [(symbol.name, symbol.entry.items()) for symbol in new.iter_symbols()]
            for (name, one), (other, two) in zip(before, after, strict=False):
                one, two = dict(one), dict(two)
                one.pop("st_name"), two.pop("st_name")
                if (name, one) != (other, two):
                    yield f"{name} in {table}"
            if new["sh_info"] != old["sh_info"] or new["sh_link"] != old["sh_link"]:
                yield f"links of {table}"

    def _kernel(self, wanted: Wanted, kernels: Mapping[str, Any]) -> Iterator[str]:
        name, like = wanted.name, wanted.like
        metadata, original = kernels[name], kernels[like]
        places: dict[str, int] = {}
        for table in (".symtab", ".dynsym"):
            section = self.new.get_section_by_name(table)
            for symbol, type_, size in ((name, "STT_FUNC", len(wanted.code)), (f"{name}.kd", "STT_OBJECT", 64)):
                found = section.get_symbol_by_name(symbol) or []
                if len(found) != 1:
                    yield f"{len(found)} of {symbol} in {table}"
                    return
                entry = found[0].entry
                if (entry.st_info.type, entry.st_info.bind, entry.st_other.visibility, entry.st_size) != (
                    type_, _GLOBAL, _PROTECTED, size,
                ):  # fmt: skip
                    yield f"{symbol} in {table}"
                owner = self.new.get_section(entry.st_shndx)
                if not owner["sh_addr"] <= entry.st_value <= owner["sh_addr"] + owner["sh_size"] - size:
                    yield f"{symbol} is not in its section"
                if bool(owner["sh_flags"] & 4) != (type_ == "STT_FUNC"):
                    yield f"{symbol} is in {owner.name}"
                if places.setdefault(symbol, entry.st_value) != entry.st_value:
                    yield f"{symbol} is at two places"
        descriptor, old_descriptor = self._at(places[f"{name}.kd"], 64), self._at_symbol(f"{like}.kd")
        begin = places[f"{name}.kd"] + struct.unpack_from("<q", descriptor, 16)[0]
        if begin != places[name] or begin % 256 or places[f"{name}.kd"] % 64:
            yield f"the descriptor of {name} leads elsewhere"
        if self._at(places[name], len(wanted.code)) != wanted.code:
            yield f"the code of {name}"
        # The argument, behind the others, where all of it fits.
        offset = -(-original[".kernarg_segment_size"] // 8) * 8
        arguments = [*original.get(".args", []), {".offset": offset, ".size": wanted.block, ".value_kind": "by_value"}]
        if metadata[".args"] != arguments:
            yield f"the arguments of {name}"
        size = offset + wanted.block
        if metadata[".kernarg_segment_size"] != size or struct.unpack_from("<I", descriptor, 8)[0] != size:
            yield f"the size of the arguments of {name}"
        same = {
            key: value for key, value in original.items()
            if key not in (".name", ".symbol", ".args", ".kernarg_segment_size", ".kernarg_segment_align",
                           ".vgpr_count", ".sgpr_count")
        }  # fmt: skip
        if metadata[".kernarg_segment_align"] != max(original[".kernarg_segment_align"], 8):
            yield f"the alignment of the arguments of {name}"
        if metadata[".symbol"] != f"{name}.kd" or any(metadata.get(key) != value for key, value in same.items()):
            yield f"the metadata of {name}"
        if descriptor[:8] + descriptor[12:16] + descriptor[24:44] + descriptor[52:] != (
            old_descriptor[:8] + old_descriptor[12:16] + old_descriptor[24:44] + old_descriptor[52:]
        ):
            yield f"the descriptor of {name}"
        yield from self._registers(wanted, metadata, original, descriptor, old_descriptor)

    def _registers(
        self, wanted: Wanted, metadata: Mapping[str, Any], original: Mapping[str, Any], now: bytes, before: bytes
    ) -> Iterator[str]:
        machine = self.new["e_flags"] & 0xFF
        # gfx906, gfx90a, gfx942, gfx950; the last three have one file for both kinds of vector registers.
        is_gfx9, is_unified = machine in (0x2F, 0x3F, 0x4C, 0x4F), machine in (0x3F, 0x4C, 0x4F)
        (rsrc3, rsrc1), (old3, old1) = struct.unpack_from("<II", now, 44), struct.unpack_from("<II", before, 44)
        granule = 8 if is_unified or now[57] & 4 else 4
        vgprs = (rsrc1 & 63) + 1
        if vgprs * granule < wanted.vgprs or vgprs != max((old1 & 63) + 1, -(-wanted.vgprs // granule)):
            yield f"the vector registers of {wanted.name}"
        if metadata[".vgpr_count"] != max(original[".vgpr_count"], wanted.vgprs):
            yield f"the number of vector registers of {wanted.name}"
        scalars = (rsrc1 >> 6 & 15) + 1
        if is_gfx9 and scalars != max((old1 >> 6 & 15) + 1, -(-(wanted.sgprs + 6) // 8)):
            yield f"the scalar registers of {wanted.name}"
        if metadata[".sgpr_count"] != max(original[".sgpr_count"], wanted.sgprs + 6 * is_gfx9):
            yield f"the number of scalar registers of {wanted.name}"
        if rsrc1 >> 10 != old1 >> 10:
            yield f"other settings of {wanted.name}"
        # How many lines of 128 bytes are fetched ahead: gfx11 has 6 bits for it, gfx12 has 8.
        lines = {0x41: 0x3F, 0x4E: 0xFF}.get(machine, 0)
        fetched = old3 >> 4 & lines and min(-(-len(wanted.code) // 128), lines)
        if rsrc3 >> 4 & lines != fetched:
            yield f"what of {wanted.name} is fetched ahead"
        listed = lines << 4 | 63 * is_unified
        if rsrc3 & ~listed != old3 & ~listed:
            yield f"the third word of settings of {wanted.name}"
        if is_unified and ((rsrc3 & 63) + 1) * 4 != max(((old3 & 63) + 1) * 4, -(-wanted.vgprs // 4) * 4):
            yield f"where accumulators of {wanted.name} begin"

    def _metadata(self, elf: Any) -> Any:
        (segment,) = [segment for segment in elf.iter_segments() if segment["p_type"] == "PT_NOTE"]
        notes = [note for note in segment.iter_notes() if note["n_name"] == "AMDGPU"]
        assert len(notes) == 1, "one note of metadata"
        assert struct.unpack_from("<I", segment.data(), 8) == (_METADATA,), "a note of another type"
        content = notes[0]["n_descdata"]
        return msgpack.unpackb(content if isinstance(content, bytes) else content.encode("latin-1"))

    def _at(self, address: int, size: int) -> bytes:
        (offset,) = self.new.address_offsets(address, size)
        return self.data[offset : offset + size]

    def _at_symbol(self, name: str) -> bytes:
        (symbol,) = self.new.get_section_by_name(".dynsym").get_symbol_by_name(name)
        return self._at(symbol["st_value"], 64)
