"""Inputs on which fuzzing once made a reader fail otherwise than with a FormatError."""

from __future__ import annotations

import hashlib
import struct

import pytest

from bench import fuzz_seeds
from bench.fuzz_fields import places
from neutrino.ahead.restore import restore
from neutrino.entry import DIGESTED_FROM, read_entry
from neutrino.errors import FormatError
from neutrino.fatbin import read_file


def test_a_thin_archive_whose_member_has_a_nul_in_its_name(tmp_path):
    file = tmp_path / "thin.a"
    regular = fuzz_seeds.archive([("a\0b.o", b"")])
    file.write_bytes(regular.replace(b"!<arch>", b"!<thin>"))
    with pytest.raises(FormatError, match="name of a member"):
        read_file(file)


def test_a_cache_entry_whose_map_has_a_name_that_is_no_utf8():
    data = fuzz_seeds.twins(1).replace(b"BlockSched\0", b"Block\xba\xfeched\0"[:11])
    digest = hashlib.sha256(data[DIGESTED_FROM:]).digest()
    entry = read_entry(data[: DIGESTED_FROM - 32] + digest + data[DIGESTED_FROM:], "entry")
    assert entry.maps[0].name.encode("utf-8", "surrogateescape").startswith(b"Block\xba\xfe")


def test_a_patched_file_whose_edits_share_their_bytes(tmp_path):
    """A section of 100 KB that would restore 100 MB."""
    section = bytearray(fuzz_seeds.sections()[1])
    place = {place.field: place for place in places(section) if place.structure == "section_header"}
    record = struct.pack("<Q32sII", 100_000, bytes(32), 1000, 0) + struct.pack("<QQQ", 0, 100_000, 0) * 1000
    place["restore_offset"].put(section, len(section))
    place["restore_size"].put(section, len(record))
    section += record + bytes(100_000)
    place["size"].put(section, len(section))
    file = tmp_path / "patched.so"
    file.write_bytes(fuzz_seeds.elf(62, [fuzz_seeds.Part(".neutrino", bytes(section))]))
    with pytest.raises(FormatError, match="restore edits"):
        restore(file, tmp_path / "restored.so")
