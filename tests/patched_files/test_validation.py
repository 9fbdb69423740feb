"""Patched files as LIEF reads them, and faults that it finds."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from neutrino.abi.sections import SECTION_HEADER, SECTION_MAGIC
from neutrino.abi.versions import SECTION_VERSION
from neutrino.cli.patch import _print_check
from neutrino.elf.constants import PT_LOAD, SHT_GNU_HASH
from neutrino.elf.reader import Elf
from neutrino.patched_files.attach import attach
from neutrino.patched_files.check import Check, check_file
from neutrino.patched_files.image_twins import Settings
from neutrino.patched_files.patching import patch_file
from neutrino.patched_files.validation import complaints, new_complaints
from neutrino.toolchain.ptxas import Assembler
from neutrino.verification import load_probes
from tests.patched_files.hosts import HOSTS, Workshop
from tests.patched_files.libraries import SCALE, fatbin, link


def section() -> list[bytes | memoryview]:
    head = SECTION_MAGIC + SECTION_VERSION.to_bytes(4, "little")
    return [head, bytes(SECTION_HEADER.size - len(head)), memoryview(b"twins" * 5000)]


@pytest.mark.parametrize("name", HOSTS)
def test_no_complaint_of_a_patched_file(name: str, workshop: Workshop, tmp_path: Path) -> None:
    host = workshop.host(name)
    attach(host, tmp_path / name, section(), "/nowhere/libneutrino-stub.so")
    assert new_complaints(complaints(tmp_path / name), complaints(host)) == []


@pytest.mark.parametrize("name", HOSTS)
def test_hashes_at_the_end_of_a_segment_are_no_fault(name: str, workshop: Workshop, tmp_path: Path) -> None:
    """LIEF does not read them there; pyelftools does, and LIEF too when the segment goes on after them."""
    patched = tmp_path / name
    attach(workshop.host(name), patched, section(), "/nowhere/libneutrino-stub.so")
    if not _hashes_end_a_segment(patched):
        return
    with patched.open("rb") as file:
        elf = ELFFile(file)
        hashes, symbols = elf.get_section_by_name(".gnu.hash"), elf.get_section_by_name(".dynsym")
        # A program that exports nothing has a table without hash values; LIEF wants some all the same.
        exports_nothing = not any(hashes.params["buckets"])
        more = 4 * symbols.num_symbols() if exports_nothing else 1
        assert exports_nothing or hashes.get_number_of_symbols() == symbols.num_symbols()
    data = bytearray(patched.read_bytes())
    elf = Elf(memoryview(bytes(data)), "patched")
    last = max(number for number, segment in enumerate(elf.segments) if segment.type == PT_LOAD)
    at = elf.program_headers + 56 * last
    for field in (32, 40):
        struct.pack_into("<Q", data, at + field, struct.unpack_from("<Q", data, at + field)[0] + more)
    patched.write_bytes(data)
    assert not _hashes_end_a_segment(patched)
    assert complaints(patched) == []


def _hashes_end_a_segment(path: Path) -> bool:
    elf = Elf(memoryview(path.read_bytes()), str(path))
    ends = {segment.offset + segment.file_size for segment in elf.segments if segment.type == PT_LOAD}
    return any(row.type == SHT_GNU_HASH and row.offset + row.size in ends for row in elf.sections)


@pytest.fixture(scope="module")
def patched(assembler: Assembler, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("validation")
    library = link(folder / "libk.so", [fatbin(assembler, SCALE, cubins=["sm_80"], ptx=["sm_80"])])
    target = folder / "patched.so"
    settings = Settings(load_probes(["block_sched"]))
    patch_file(library, target, settings, names=["block_sched"], archs=["sm_80"], jobs=1, stub="libstub.so")
    return target


def test_check_says_that_lief_has_read_it(patched: Path) -> None:
    check = check_file(patched)
    assert check.is_valid
    assert check.lief
    assert check.document()["lief"] == check.lief


def test_a_damaged_table_is_a_fault(patched: Path, tmp_path: Path) -> None:
    """The section header table is said to have a row more than there is room for in the file."""
    data = bytearray(patched.read_bytes())
    struct.pack_into("<H", data, 0x3C, 0xFE00)
    damaged = tmp_path / "damaged.so"
    damaged.write_bytes(data)
    assert complaints(damaged) != []
    assert new_complaints(complaints(damaged), complaints(patched)) != []
    assert not check_file(damaged).is_valid


def test_a_file_that_lief_complains_of_is_not_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    _print_check(Check(Path("a.so"), faults=["LIEF: a complaint"], lief="1.0.0"), as_json=False)
    assert capsys.readouterr().out == "a.so: fault: LIEF: a complaint\n"


def test_without_lief(patched: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from neutrino.cli.patch import main

    assert main(["--check", str(patched)]) == 0
    assert "accepts it too" in capsys.readouterr().out
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["--check", str(patched)]) == 0
    assert "not checked with LIEF" in capsys.readouterr().out
