"""``--check`` finds what was spoilt: each fault is put into a valid file, and named."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from neutrino.abi.versions import SECTION_VERSION
from neutrino.elf.reader import Elf
from neutrino.patched_files import patching
from neutrino.patched_files.check import check_file
from neutrino.patched_files.image_twins import Settings
from neutrino.patched_files.patching import patch_file
from neutrino.patched_files.place import find_section
from neutrino.patched_files.section import TwinsRow, read_section
from neutrino.toolchain.ptxas import Assembler
from neutrino.twins.cache_entry import DIGESTED_FROM, Entry, read_entry, write_entry
from neutrino.verification import load_probes
from tests.patched_files.libraries import SCALE, STORE, fatbin, link

PROBES = load_probes(["block_sched"])


@pytest.fixture(scope="module")
def library(assembler: Assembler, tmp_path_factory: pytest.TempPathFactory) -> Path:
    containers = [fatbin(assembler, text, cubins=["sm_80"], ptx=["sm_80"]) for text in (SCALE, STORE)]
    return link(tmp_path_factory.mktemp("check") / "libk.so", containers)


def patch(library: Path, target: Path) -> Path:
    patch_file(library, target, Settings(PROBES), names=["block_sched"], archs=["sm_80"], jobs=1, stub="libstub.so")
    return target


@pytest.fixture(scope="module")
def patched(library: Path) -> Path:
    return patch(library, library.with_name("patched.so"))


def spoilt(patched: Path, target: Path, change: Callable[[bytearray, int], None]) -> Path:
    """A copy with some bytes changed. change: gets the file and where its section is."""
    data = bytearray(patched.read_bytes())
    place = find_section(Elf(memoryview(bytes(data)), "patched"))
    assert place is not None
    change(data, place.offset)
    target.write_bytes(data)
    return target


def faults(path: Path) -> str:
    check = check_file(path)
    assert check.is_valid == (not check.faults)
    return "\n".join(check.faults)


def test_a_valid_file(patched: Path) -> None:
    check = check_file(patched)
    assert (check.faults, check.notes) == ([], [])
    assert check.document() == {
        "file": str(patched), "valid": True, "faults": [], "notes": [], "probes": ["block_sched"],
        "archs": ["sm_80", "sm_86", "sm_87", "sm_88", "sm_89"], "device": "gpu",
        "maker": check.maker, "lief": check.lief, "images": 2, "kernels": 3, "twins": 3,
    }  # fmt: skip


def _entry_place(data: bytearray, section: int) -> int:
    rows_offset = struct.unpack_from("<Q", data, section + 24)[0]
    return section + int(struct.unpack_from("<Q", data, section + rows_offset + 88)[0])


def _spoil_entry(data: bytearray, section: int) -> None:
    data[_entry_place(data, section) + DIGESTED_FROM + 300] ^= 1


def _spoil_key(data: bytearray, section: int) -> None:
    data[section + struct.unpack_from("<Q", data, section + 24)[0] + 40] ^= 1


def _spoil_digest(data: bytearray, section: int) -> None:
    data[section + struct.unpack_from("<Q", data, section + 24)[0]] ^= 1


def _spoil_arch(data: bytearray, section: int) -> None:
    at = section + struct.unpack_from("<Q", data, section + 24)[0] + 72
    data[at : at + 5] = b"sm_12"


def _spoil_report(data: bytearray, section: int) -> None:
    data[section + struct.unpack_from("<Q", data, section + 80)[0]] ^= 1


def _spoil_names(data: bytearray, section: int) -> None:
    (at,) = struct.unpack_from("<Q", data, section + 32)
    assert data[section + at :].startswith(b"block_sched\0")
    struct.pack_into("<Q", data, section + 32, at + 5)


def _spoil_probes(data: bytearray, section: int) -> None:
    (at,) = struct.unpack_from("<Q", data, section + 48)
    data[section + at] = 0xFF


def _spoil_version(data: bytearray, section: int) -> None:
    data[section + 8] = 9


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_spoil_entry, "digest is not that of the content"),
        (_spoil_key, "its key is not that of its row for sm_80"),
        (_spoil_digest, r"row 0 (sm_80): no image of the file has its digest"),
        (_spoil_arch, "its image has nothing that the driver picks for sm_12"),
        (_spoil_report, "the report is not what neutrino-patch writes"),
        (_spoil_names, "the header names the probes '_sched', the report 'block_sched'"),
        (_spoil_probes, "probe.toml is not text: "),
        (_spoil_version, f"section version is 9, expected {SECTION_VERSION}"),
    ],
)
def test_what_is_spoilt_in_the_section(
    patched: Path, tmp_path: Path, change: Callable[[bytearray, int], None], words: str
) -> None:
    found = faults(spoilt(patched, tmp_path / "libk.so", change))
    assert words in found
    # Whoever shows faults names the file.
    assert str(tmp_path) not in found


def test_every_fault_is_listed(patched: Path, tmp_path: Path) -> None:
    def all_of_them(data: bytearray, section: int) -> None:
        for change in (_spoil_entry, _spoil_key, _spoil_report):
            change(data, section)

    found = faults(spoilt(patched, tmp_path / "libk.so", all_of_them))
    assert "digest" in found
    assert "report" in found


def test_an_image_that_was_changed_has_lost_its_twins(patched: Path, library: Path, tmp_path: Path) -> None:
    def change(data: bytearray, _: int) -> None:
        at = data.index(b"add.f32")
        data[at : at + 7] = b"sub.f32"

    path = spoilt(patched, tmp_path / "libk.so", change)
    assert "no image of the file has its digest" in faults(path)
    assert check_file(path).notes == [
        "another tool changed the file after it was patched: --restore cannot restore the original"
    ]


def test_host_bytes_that_were_changed_are_a_note(patched: Path, tmp_path: Path) -> None:
    def change(data: bytearray, _: int) -> None:
        data[data.index(b"fatbin0")] ^= 1

    path = spoilt(patched, tmp_path / "libk.so", change)
    assert faults(path) == ""
    assert "another tool changed the file" in check_file(path).notes[0]


def _without_twin(entry: Entry) -> tuple[list[bytes], Entry]:
    return [b".version 8.0\n.target sm_80\n.address_size 64\n"], entry


def _other_parameters(entry: Entry) -> tuple[list[bytes], Entry]:
    kernels = tuple(replace(kernel, parameters=((0, 4),)) for kernel in entry.kernels)
    return list(entry.images), replace(entry, kernels=kernels)


def _no_image(entry: Entry) -> tuple[list[bytes], Entry]:
    return [], entry


def _no_cubin(entry: Entry) -> tuple[list[bytes], Entry]:
    return [b"\x7fELF that ends here"], entry


def _no_files(entry: Entry) -> tuple[list[bytes], Entry]:
    return list(entry.images), replace(entry, kernels=tuple(replace(kernel, files={}) for kernel in entry.kernels))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_without_twin, "scale__neutrino has parameters (offset, size) none: it is not there"),
        (_other_parameters, "in the file's image for sm_80, [(0, 4)] in the entry"),
        (_no_image, "images of kernel 'clear' is (0, 0), expected below 0"),
        (_no_cubin, "entry 0, image 0: "),
        (_no_files, "scale has no manifest.json, original.ptx, probed.ptx"),
    ],
)
def test_twins_that_do_not_fit_the_originals(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Entry], tuple[list[bytes], Entry]], words: str,
) -> None:  # fmt: skip
    write = patching.write_section

    def spoil(rows: list[TwinsRow], entries: list[memoryview], **texts: str | bytes) -> list[bytes | memoryview]:
        made = []
        for data in entries:
            images, entry = change(read_entry(bytes(data), "entry"))
            made.append(write_entry(entry.key, PROBES.maps, entry.kernels, images))
        return write(rows, made, **texts)

    monkeypatch.setattr(patching, "write_section", spoil)
    assert words in faults(patch(library, tmp_path / "libk.so"))


def test_files_that_are_not_patched(library: Path, tmp_path: Path) -> None:
    assert faults(library) == "there is no .neutrino section: the file is not patched"
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    assert faults(empty) == "the file is empty"
    text = tmp_path / "text"
    text.write_text("text " * 20)
    assert "ELF magic" in faults(text)


def test_the_stub(library: Path, patched: Path, tmp_path: Path) -> None:
    def check(stub: str) -> list[str]:
        target = tmp_path / "libk.so"
        patch_file(library, target, Settings(PROBES), names=["block_sched"], archs=["sm_80"], jobs=1, stub=stub)
        found = check_file(target)
        assert found.faults == []
        return found.notes

    for stub in ("/nowhere/stub.so", "$ORIGIN/stub.so"):
        assert check(stub) == [f"the stub is not on this machine: {stub}; without it only the neutrino command records"]
    (tmp_path / "stub.so").write_bytes(b"")
    assert check("$ORIGIN/stub.so") == ["the stub is not a library: $ORIGIN/stub.so; only the neutrino command records"]
    (tmp_path / "stub.so").write_bytes(library.read_bytes())
    assert check("$ORIGIN/stub.so") == []

    def forget(data: bytearray, _: int) -> None:
        # DT_AUXILIARY becomes DT_DEBUG, which a library has no use for.
        at = data.index(struct.pack("<Q", 0x7FFFFFFD))
        data[at : at + 8] = struct.pack("<Q", 21)

    assert "DT_AUXILIARY names no stub" in faults(spoilt(patched, tmp_path / "without.so", forget))

    def unmark(data: bytearray, _: int) -> None:
        at = data.index(struct.pack("<QQ", 0x6FFFFFFB, 8))
        data[at : at + 16] = struct.pack("<QQ", 0x6FFFFFFB, 0)

    assert "DT_FLAGS_1 lacks NODELETE" in faults(spoilt(patched, tmp_path / "closed.so", unmark))


def test_every_truncation_is_a_fault(patched: Path, tmp_path: Path) -> None:
    data = patched.read_bytes()
    cut = tmp_path / "cut.so"
    for size in range(0, len(data), max(1, len(data) // 60)):
        cut.write_bytes(data[:size])
        assert not check_file(cut).is_valid


def test_the_section_is_read_where_it_lies(patched: Path) -> None:
    data = memoryview(patched.read_bytes())
    place = find_section(Elf(data, "patched"))
    assert place is not None
    assert read_section(data[place.offset :], "patched", place.offset).size == place.size
