"""The reader of ELF files against pyelftools and readelf, on generated and real files; damaged and foreign ones."""

from __future__ import annotations

import contextlib
import io
import re
import struct
import subprocess
import sysconfig
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationSection
from elftools.elf.sections import SymbolTableSection
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.elf.constants import PT_DYNAMIC, SHT_DYNSYM, SHT_SYMTAB
from neutrino.elf.cursor import Cursor
from neutrino.elf.reader import Elf
from neutrino.elf.tables import Tables
from neutrino.errors import FormatError
from tests.elf.generated import Description, descriptions, write

LIBRARIES = Path(sysconfig.get_path("platlib"))
REAL = sorted(LIBRARIES.glob("numpy/**/*.so"))[:6] + sorted(LIBRARIES.glob("zstandard/*.so"))


def read(data: bytes) -> Elf:
    return Elf(memoryview(data), "a file", base=1000)


def everything(elf: Elf) -> list[object]:
    """All that the reader can be asked, so that whatever is damaged is looked at."""
    found: list[object] = [*elf.segments, *elf.sections, elf.dynamic, list(elf.notes())]
    for section in elf.sections:
        found.append(bytes(elf.contents(section)))
        for table in elf.relocation_tables.get(section.index, ()):
            found += elf.relocations(table)
            found.append(elf.symbol_row(elf.sections[table.link], 0) if table.link < len(elf.sections) else None)
    for kind in (SHT_SYMTAB, SHT_DYNSYM):
        found += elf.symbols(kind)
    return found


def check_as_pyelftools(data: bytes) -> None:
    elf, other = read(data), ELFFile(io.BytesIO(data))
    assert (elf.type, elf.machine, elf.flags) == (
        struct.unpack_from("<H", data, 16)[0], struct.unpack_from("<H", data, 18)[0], other["e_flags"],
    )  # fmt: skip
    theirs = list(other.iter_sections())
    assert [(one.name, one.offset, one.size, one.address, one.flags, one.link, one.info) for one in elf.sections] == [
        (one.name, one["sh_offset"], one["sh_size"], one["sh_addr"], one["sh_flags"], one["sh_link"], one["sh_info"])
        for one in theirs
    ]
    assert [
        (one.flags, one.offset, one.address, one.file_size, one.memory_size, one.alignment) for one in elf.segments
    ] == [
        tuple(one[name] for name in ("p_flags", "p_offset", "p_vaddr", "p_filesz", "p_memsz", "p_align"))
        for one in other.iter_segments()
    ]
    for mine, their in zip(elf.sections, theirs, strict=True):
        if isinstance(their, SymbolTableSection) and mine.type in (SHT_SYMTAB, SHT_DYNSYM):
            rows = list(their.iter_symbols())
            assert [(row.name, row.value, row.size) for row in elf.symbols(mine.type)] == [
                (row.name, row["st_value"], row["st_size"]) for row in rows
            ]
            for index in {0, len(rows) // 2, len(rows) - 1}:
                row = elf.symbol_row(mine, index)
                assert (row.value, row.size) == (rows[index]["st_value"], rows[index]["st_size"])
        if isinstance(their, RelocationSection):
            assert [tuple(row) for row in elf.relocations(mine)] == [
                (row["r_offset"], row["r_info_sym"], row["r_info_type"], row["r_addend"] if their.is_RELA() else 0)
                for row in their.iter_relocations()
            ]
    assert elf.dynamic == _dynamic(data, elf)


def _dynamic(data: bytes, elf: Elf) -> dict[int, int]:
    found = {}
    for segment in elf.segments:
        if segment.type == PT_DYNAMIC:
            for at in range(segment.offset, segment.offset + segment.file_size - 15, 16):
                tag, value = struct.unpack_from("<QQ", data, at)
                if not tag:
                    break
                found[tag] = value
    return found


@given(descriptions())
@settings(deadline=None, max_examples=60)
def test_generated_files_as_pyelftools_reads_them(described: Description) -> None:
    data = write(described)
    check_as_pyelftools(data)
    elf = read(data)
    assert [(note.owner, note.type, bytes(note.content)) for note in elf.notes()] == described.notes
    assert [data[note.offset - 1000 :][: len(note.content)] for note in elf.notes()] == [
        content for _, _, content in described.notes
    ]
    assert [(row.name, row.type, row.other, row.value, row.size) for row in elf.symbols()][1:] == described.symbols
    first = elf.section(".first")
    assert first is not None
    tables = elf.relocation_tables[first.index]
    assert [list(map(tuple, elf.relocations(table))) for table in tables] == [
        described.rela, [(*row, 0) for row in described.rel]
    ]  # fmt: skip
    wanted = {row[0] for row in described.rela[::2]}
    assert [row.offset for row in elf.relocations(tables[0], wanted)] == [
        row[0] for row in described.rela if row[0] in wanted
    ]


@given(descriptions())
@settings(deadline=None, max_examples=50)
def test_tables_are_packed_as_they_were_read(described: Description) -> None:
    data = write(described)
    tables = Tables(read(data))
    assert tables.pack_header(tables.elf.section_headers) == data[:64]
    assert tables.pack_programs() == data[64 : 64 + 56 * 2]
    assert data.endswith(tables.pack_sections())
    assert data[tables.dynamic_offset :].startswith(tables.pack_dynamic())


@pytest.mark.parametrize("path", REAL, ids=lambda path: path.name)
def test_real_libraries_as_pyelftools_reads_them(path: Path) -> None:
    check_as_pyelftools(path.read_bytes())


def test_real_libraries_as_readelf_reads_them() -> None:
    assert REAL
    for path in REAL[:3]:
        shown = subprocess.run(["readelf", "-rW", path], capture_output=True, text=True, check=True).stdout
        told = [int(word, 16) for word in re.findall(r"^([0-9a-f]{16})  [0-9a-f]{16} R_", shown, re.MULTILINE)]
        elf = read(path.read_bytes())
        tables = [table for tables in elf.relocation_tables.values() for table in tables]
        rows = [row.offset for table in sorted(tables, key=lambda row: row.index) for row in elf.relocations(table)]
        assert rows == told
        assert rows


@given(descriptions(), st.data())
@settings(deadline=None)
def test_a_file_cut_anywhere_is_refused(described: Description, data: st.DataObject) -> None:
    """The section header table is last: without all of it there is no reading."""
    whole = write(described)
    size = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(FormatError) as error:
        everything(read(whole[:size]))
    assert error.value.file == "a file"
    assert 1000 <= error.value.offset <= 1000 + len(whole)
    assert error.value.field
    assert error.value.found
    assert error.value.expected


@given(descriptions(), st.data())
@settings(deadline=None, max_examples=150)
def test_damage_is_refused_or_read(described: Description, data: st.DataObject) -> None:
    """Nothing but a FormatError comes of it, and nothing that is larger than the file."""
    whole = bytearray(write(described))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(whole) - 8))
        value = data.draw(st.sampled_from([0, 1, 0xFF, 0xFFFF, 1 << 31, 1 << 63, (1 << 64) - 1]) | st.integers(0, 300))
        size = data.draw(st.sampled_from([1, 2, 4, 8]))
        whole[at : at + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
    with contextlib.suppress(FormatError):
        assert len(everything(read(bytes(whole)))) < len(whole)


@pytest.mark.parametrize(
    ("ident", "word"),
    [
        (b"\1\1", "ELF32, little endian"),
        (b"\1\2", "ELF32, big endian"),
        (b"\2\2", "ELF64, big endian"),
        (b"\7\7", "07 07"),
    ],
)
def test_other_classes_and_byte_orders_are_named(ident: bytes, word: str) -> None:
    data = bytearray(write(Description(62, [], [], [], [], [])))
    data[4:6] = ident
    with pytest.raises(
        FormatError, match=rf"at 0x3ec: EI_CLASS, EI_DATA .*{word}.*expected 02 01: ELF64, little endian"
    ):
        read(bytes(data))


def test_what_is_not_asked_for_is_not_looked_at() -> None:
    """A section that leaves the file, and names that leave their table, are refused where they are used."""
    data = bytearray(write(Description(62, [b"content"], [("name", 1, 0, 0, 0)], [], [], [])))
    elf = read(bytes(data))
    section = elf.section(".data.0")
    assert section is not None
    struct.pack_into("<Q", data, elf.section_headers + 64 * section.index + 24, 1 << 40)
    damaged = read(bytes(data))
    assert damaged.section(".data.0") is not None
    assert list(damaged.symbols())
    with pytest.raises(FormatError, match=r"section \.data\.0"):
        damaged.contents(damaged.sections[section.index])


@given(st.binary(max_size=40), st.lists(st.tuples(st.sampled_from("tis"), st.integers(-5, 50)), max_size=8))
def test_a_cursor_never_leaves_its_range(data: bytes, steps: list[tuple[str, int]]) -> None:
    half = len(data) // 2
    cursor = Cursor(memoryview(data), "a file", start=half // 2, end=half)
    for step, number in steps:
        before = cursor.position
        try:
            if step == "t":
                taken = cursor.take(number, "field")
                assert bytes(taken) == data[before : before + number]
            elif step == "i":
                width = (1, 2, 4, 8)[number % 4]
                assert cursor.integer(width, "field") == int.from_bytes(data[before : before + width], "little")
            else:
                cursor.seek(number, "field")
        except FormatError:
            assert cursor.position == before
        assert half // 2 <= cursor.position <= half
