"""Inputs on which fuzzing once made a reader fail otherwise than with a FormatError."""

from __future__ import annotations

import hashlib
import struct

import pytest

from neutrino.errors import FormatError, PatchError
from neutrino.fatbin import read_file
from neutrino.fatbin.host import read_data
from neutrino.patched_files.appended import LARGEST_GAP
from neutrino.patched_files.attach import attach
from neutrino.patched_files.restore import restore
from neutrino.twins.cache_entry import DIGESTED_FROM, read_entry
from tests.fuzz import seeds
from tests.fuzz.fields import places


def test_a_thin_archive_whose_member_has_a_nul_in_its_name(tmp_path):
    file = tmp_path / "thin.a"
    regular = seeds.archive([("a\0b.o", b"")])
    file.write_bytes(regular.replace(b"!<arch>", b"!<thin>"))
    with pytest.raises(FormatError, match="name of a member"):
        read_file(file)


def test_a_cache_entry_whose_map_has_a_name_that_is_no_utf8():
    data = seeds.twins(1).replace(b"BlockSched\0", b"Block\xba\xfeched\0"[:11])
    digest = hashlib.sha256(data[DIGESTED_FROM:]).digest()
    entry = read_entry(data[: DIGESTED_FROM - 32] + digest + data[DIGESTED_FROM:], "entry")
    assert entry.maps[0].name.encode("utf-8", "surrogateescape").startswith(b"Block\xba\xfe")


def test_a_patched_file_whose_edits_share_their_bytes(tmp_path):
    """A section of 100 KB that would restore 100 MB."""
    section = bytearray(seeds.sections()[1])
    place = {place.field: place for place in places(section) if place.structure == "section_header"}
    record = struct.pack("<Q32sII", 100_000, bytes(32), 1000, 0) + struct.pack("<QQQ", 0, 100_000, 0) * 1000
    place["restore_offset"].put(section, len(section))
    place["restore_size"].put(section, len(record))
    section += record + bytes(100_000)
    place["size"].put(section, len(section))
    file = tmp_path / "patched.so"
    file.write_bytes(seeds.elf(62, [seeds.Part(".neutrino", bytes(section))]))
    with pytest.raises(FormatError, match="restore edits"):
        restore(file, tmp_path / "restored.so")


@pytest.mark.parametrize(("field", "at"), [("e_phoff", 0x20), ("e_shoff", 0x28)])
def test_errors_of_the_elf_header_say_where_the_field_is(field, at):
    data = bytearray(seeds.elf(62, [seeds.Part(".data", bytes(8))]))
    struct.pack_into("<Q", data, at, len(data) + 1)
    if field == "e_phoff":
        struct.pack_into("<HH", data, 0x36, 56, 1)
    with pytest.raises(FormatError) as caught:
        read_data(bytes(data), "host.so")
    assert (caught.value.field, caught.value.offset) == (field, at)


def host_without_section_headers(**values: int) -> bytes:
    """A program whose program header table has to move, with fields of its ELF header and its PT_LOAD set."""
    data = bytearray(seeds.host(seeds.containers()[2], headers=False))
    for place in places(data):
        if place.structure == "program header" and place.field == "p_type" and place.value(data) == 4:
            place.put(data, 3)
    for field, value in values.items():
        next(place for place in places(data) if place.field == field).put(data, value)
    return bytes(data)


def test_a_host_without_section_headers_whose_name_table_is_said_to_be_in_the_first(tmp_path):
    file = tmp_path / "host.so"
    file.write_bytes(host_without_section_headers(e_shstrndx=0xFFFF))
    attach(file, tmp_path / "patched.so", [seeds.sections()[1]], "stub.so")
    restore(tmp_path / "patched.so", tmp_path / "restored.so")
    assert (tmp_path / "restored.so").read_bytes() == file.read_bytes()


@pytest.mark.parametrize("size", [LARGEST_GAP + (1 << 20), 1 << 40, 1 << 61, 1 << 63, (1 << 64) - 1])
def test_a_program_that_would_become_a_file_of_nothing(tmp_path, size):
    """Its program header table moves after its .bss, so the file would have to be as long."""
    file = tmp_path / "program"
    file.write_bytes(host_without_section_headers(p_memsz=size))
    with pytest.raises((PatchError, FormatError)):
        attach(file, tmp_path / "patched", [seeds.sections()[1]], "stub.so")
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("offset", [1 << 40, 1 << 62, (1 << 64) - 4096])
def test_a_program_whose_addresses_would_move_out_of_64_bits(tmp_path, offset):
    file = tmp_path / "program"
    file.write_bytes(host_without_section_headers(p_offset=offset))
    with pytest.raises((PatchError, FormatError)):
        attach(file, tmp_path / "patched", [seeds.sections()[1]], "stub.so")
    assert list(tmp_path.iterdir()) == [file]
