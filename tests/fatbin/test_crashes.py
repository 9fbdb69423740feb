"""Inputs on which fuzzing once made a reader fail otherwise than with a FormatError."""

from __future__ import annotations

import hashlib

import pytest

from bench import fuzz_seeds
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
