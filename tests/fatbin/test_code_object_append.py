"""Kernels appended to code objects: what was there stays, and every reader finds what is new."""

from __future__ import annotations

import io
import shutil
import struct
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from neutrino.errors import FormatError, PatchError
from neutrino.fatbin.code_object import read_code_object
from neutrino.fatbin.code_object_append import Appended, append_kernels, block_offset, place
from neutrino.fatbin.code_object_functions import code_object_functions
from tests.gcn.objects import code_objects

READELF = "llvm-readelf-19"
SIZE = 200


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    return code_objects(tmp_path_factory)


def copies(data: bytes, sgprs: int = 40, vgprs: int = 8) -> list[Appended]:
    """A copy of each kernel; its code is as good as any."""
    return [
        Appended(f"{function.name}__neutrino", function.name, function.code, sgprs, vgprs, SIZE)
        for function in code_object_functions(data, "").functions
        if function.is_kernel
    ]


@pytest.mark.parametrize("name", ["gfx90a-O2", "gfx942-features", "gfx1030-O0", "gfx1100-v6", "gfx1201-O2"])
def test_what_was_there_stays(name: str, objects: Mapping[str, Path]) -> None:
    data = objects[name].read_bytes()
    patched = append_kernels(data, copies(data))
    # Program and section headers' offsets and numbers; values of five rows of the dynamic section.
    differing = [at for at in range(len(data)) if data[at] != patched[at]]
    header = [at for at in differing if at < 64]
    assert {*header} <= {*range(0x20, 0x30), 0x38, 0x39, 0x3C, 0x3D}
    dynamic = _section(data, ".dynamic")
    rest = {(at - dynamic[0]) // 16 for at in differing if at >= 64}
    assert all(0 <= at - dynamic[0] < dynamic[1] and (at - dynamic[0]) % 16 >= 8 for at in differing if at >= 64)
    assert len(rest) <= 5
    before, after = code_object_functions(data, ""), code_object_functions(patched, "")
    assert set(before.functions) <= set(after.functions)
    assert before.variables.items() <= after.variables.items()
    old, new = read_code_object(data, ""), read_code_object(patched, "")
    assert {name: new.kernels[name] for name in old.kernels} == old.kernels
    assert (old.target, old.version) == (new.target, new.version)


def _section(data: bytes, name: str) -> tuple[int, int]:
    """Offset and size of a section, by pyelftools."""
    elffile = pytest.importorskip("elftools.elf.elffile")
    header = elffile.ELFFile(io.BytesIO(data)).get_section_by_name(name).header
    return header["sh_offset"], header["sh_size"]


@pytest.mark.parametrize("name", ["gfx90a-O2", "gfx942-preload", "gfx1030-wave64", "gfx1100-O0", "gfx1201-O2"])
def test_what_is_new_is_where_it_was_said(name: str, objects: Mapping[str, Path]) -> None:
    data = objects[name].read_bytes()
    kernels = copies(data)
    patched = append_kernels(data, kernels)
    functions = {function.name: function for function in code_object_functions(patched, "").functions}
    read = read_code_object(patched, "")
    for kernel, address in zip(kernels, place(data, [len(kernel.code) for kernel in kernels]), strict=True):
        assert address % 256 == 0
        assert functions[kernel.name] == functions[kernel.like]._replace(name=kernel.name, address=address)
        twin, original = read.kernels[kernel.name], read.kernels[kernel.like]
        assert twin == replace(
            original,
            name=kernel.name,
            symbol=f"{kernel.name}.kd",
            kernarg_segment=block_offset(original.kernarg_segment) + SIZE,
            vgprs=max(original.vgprs, 8),
            sgprs=max(original.sgprs, 46 if name.startswith("gfx9") else 40),
        )
        # What the metadata say, the descriptor says.
        assert not twin.conflicts


@pytest.mark.parametrize("name", ["gfx90a-lines", "gfx942-O2", "gfx1100-wave64", "gfx1201-O2"])
def test_readers_accept_it(name: str, objects: Mapping[str, Path], tmp_path: Path) -> None:
    """LLVM's reader says nothing; pyelftools and LIEF find each symbol by the hash tables that were written."""
    elffile = pytest.importorskip("elftools.elf.elffile")
    lief = pytest.importorskip("lief")
    data = objects[name].read_bytes()
    kernels = copies(data)
    path = tmp_path / "patched.hsaco"
    path.write_bytes(append_kernels(data, kernels))
    names = [*(kernel.name for kernel in kernels), *(f"{kernel.name}.kd" for kernel in kernels)]
    with path.open("rb") as file:
        elf = elffile.ELFFile(file)
        for table in (".hash", ".gnu.hash"):
            section = elf.get_section_by_name(table)
            for wanted in (*names, kernels[0].like, f"{kernels[0].like}.kd"):
                found = section.get_symbol(wanted)
                assert found is not None
                assert found.name == wanted
            assert section.get_symbol("none") is None
        # Program headers: in the order of their addresses, none over another, and each row in the note's place.
        loads = [segment.header for segment in elf.iter_segments("PT_LOAD")]
        for one, two in pairwise(loads):
            assert one.p_vaddr + one.p_memsz <= two.p_vaddr
            assert one.p_offset + one.p_filesz <= two.p_offset
        assert all(load.p_offset % load.p_align == load.p_vaddr % load.p_align for load in loads)
        (headers,) = elf.iter_segments("PT_PHDR")
        assert headers["p_offset"] == elf["e_phoff"]
        assert headers["p_filesz"] == 56 * elf["e_phnum"]
        (note_segment,) = elf.iter_segments("PT_NOTE")
        (note,) = [section for section in elf.iter_sections() if section["sh_type"] == "SHT_NOTE"]
        assert (note["sh_offset"], note["sh_addr"]) == (note_segment["p_offset"], note_segment["p_vaddr"])
        assert note.data() == note_segment.data()
        static = {symbol.name: symbol.entry for symbol in elf.get_section_by_name(".symtab").iter_symbols()}
        dynamic = {symbol.name: symbol.entry for symbol in elf.get_section_by_name(".dynsym").iter_symbols()}
        for wanted in names:
            assert static[wanted]["st_value"] == dynamic[wanted]["st_value"]
            owner = elf.get_section(dynamic[wanted]["st_shndx"])
            assert owner["sh_addr"] <= dynamic[wanted]["st_value"] < owner["sh_addr"] + owner["sh_size"]
    parsed = lief.ELF.parse(str(path))
    assert {symbol.name for symbol in parsed.dynamic_symbols} >= {*names}
    assert {symbol.name for symbol in parsed.symtab_symbols} >= {*names}
    if shutil.which(READELF) is None:
        pytest.skip(f"no {READELF} on PATH; pyelftools and LIEF accept it")
    argv = [READELF, "-a", "--hash-table", "--gnu-hash-table", str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert all(f".name:           {kernel.name}\n" in done.stdout for kernel in kernels)


def descriptor(data: bytes, name: str) -> bytes:
    elffile = pytest.importorskip("elftools.elf.elffile")
    elf = elffile.ELFFile(io.BytesIO(data))
    (symbol,) = elf.get_section_by_name(".dynsym").get_symbol_by_name(f"{name}.kd")
    (offset,) = elf.address_offsets(symbol["st_value"])
    return data[offset : offset + 64]


@pytest.mark.parametrize(("name", "sgprs", "vgprs", "fields"), [
    # rsrc1: granules of VGPRs less one, of SGPRs with the six of the hardware; rsrc3: where accumulators would begin.
    ("gfx90a-O2", 90, 33, lambda r1, r3: (r1 & 63, r1 >> 6 & 15, r3 & 63) == (4, 11, 8)),
    ("gfx942-O2", 91, 4, lambda r1, r3: (r1 & 63, r1 >> 6 & 15, r3 & 63) == (0, 12, 0)),
    ("gfx1030-O2", 100, 33, lambda r1, r3: (r1 & 63, r1 >> 6 & 15) == (4, 0)),
    ("gfx1100-wave64", 100, 33, lambda r1, r3: (r1 & 63, r1 >> 6 & 15) == (8, 0)),
])  # fmt: skip
def test_registers(
    name: str, sgprs: int, vgprs: int, fields: Callable[[int, int], bool], objects: Mapping[str, Path]
) -> None:
    data = objects[name].read_bytes()
    # The kernel that does nothing has fewest.
    (kernel,) = [kernel for kernel in copies(data, sgprs, vgprs) if kernel.like == "nothing"]
    patched = append_kernels(data, [kernel])
    rsrc3, rsrc1 = struct.unpack_from("<II", descriptor(patched, kernel.name), 44)
    assert fields(rsrc1, rsrc3)
    # All other bits are those of the original.
    old3, old1 = struct.unpack_from("<II", descriptor(data, kernel.like), 44)
    assert rsrc1 >> 10 == old1 >> 10
    assert rsrc3 >> 10 == old3 >> 10


def test_no_register_is_taken_away(objects: Mapping[str, Path]) -> None:
    data = objects["gfx90a-O0"].read_bytes()
    for kernel in (kernels := copies(data, 1, 1)):
        patched = append_kernels(data, kernels)
        old, new = descriptor(data, kernel.like), descriptor(patched, kernel.name)
        assert new[:8] + new[12:16] + new[24:] == old[:8] + old[12:16] + old[24:]


@pytest.mark.parametrize(("change", "problem"), [
    (lambda kernel: replace(kernel, name=kernel.like), "there is saxpy already"),
    (lambda kernel: replace(kernel, name="table"), "there is table already"),
    (lambda kernel: replace(kernel, like="none"), "there is no kernel none"),
    (lambda kernel: replace(kernel, vgprs=257), "names 257 vector registers"),
    (lambda kernel: replace(kernel, sgprs=103), "names 103 scalar registers"),
])  # fmt: skip
def test_what_cannot_be_appended(
    change: Callable[[Appended], Appended], problem: str, objects: Mapping[str, Path]
) -> None:
    data = objects["gfx90a-O2"].read_bytes()
    (kernel,) = [kernel for kernel in copies(data) if kernel.like == "saxpy"]
    with pytest.raises(PatchError, match=problem):
        append_kernels(data, [change(kernel)])


def test_the_same_name_twice(objects: Mapping[str, Path]) -> None:
    data = objects["gfx90a-O2"].read_bytes()
    kernel = copies(data)[0]
    with pytest.raises(PatchError, match="already"):
        append_kernels(data, [kernel, kernel])
    # What was appended to once, is appended to again.
    once = append_kernels(data, [kernel])
    twice = append_kernels(once, [replace(kernel, name="second")])
    assert {"second", kernel.name, kernel.like} <= set(read_code_object(twice, "").kernels)
    assert append_kernels(data, []) == data


def test_damaged(objects: Mapping[str, Path]) -> None:
    data = objects["gfx1100-O2"].read_bytes()
    kernel = copies(data)[0]
    with pytest.raises(FormatError):
        append_kernels(data[:64], [kernel])
    whole = bytearray(data)
    whole[16] = 1
    with pytest.raises(PatchError, match="it is an object file"):
        append_kernels(bytes(whole), [kernel])
