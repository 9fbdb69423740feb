"""Kernels appended to code objects: what was there stays, and every reader finds what is new."""

from __future__ import annotations

import io
import shutil
import struct
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from neutrino.errors import FormatError, PatchError
from neutrino.fatbin.code_object import read_code_object
from neutrino.fatbin.code_object_append import Appended, KernelRefusedError, Part, append_kernels, block_offset, place
from neutrino.fatbin.code_object_functions import code_object_functions
from tests.fatbin.code_object_checker import Wanted, problems
from tests.gcn.objects import CLANG, code_objects, need_clang

READELF, BUNDLER = "llvm-readelf-19", "clang-offload-bundler-19"
SIZE = 200


@pytest.fixture(scope="module")
def objects() -> Mapping[str, Path]:
    return code_objects()


def copies(data: bytes, sgprs: int = 40, vgprs: int = 8) -> list[Appended]:
    """A copy of each kernel; its code is as good as any."""
    return [
        Appended(f"{function.name}__neutrino", function.name, function.code, sgprs, vgprs, SIZE)
        for function in code_object_functions(data, "").functions
        if function.is_kernel
    ]


def wanted(kernels: Sequence[Appended]) -> list[Wanted]:
    return [
        Wanted(kernel.name, kernel.like, kernel.code, kernel.block_size, kernel.sgprs, kernel.vgprs)
        for kernel in kernels
    ]


@pytest.mark.parametrize(
    "name",
    ["gfx906-O1", "gfx90a-preload", "gfx942-features", "gfx1030-wave64", "gfx1100-O0", "gfx1100-v6", "gfx1201-O2"],
)
def test_a_reader_that_shares_no_code_finds_nothing_wrong(name: str, objects: Mapping[str, Path]) -> None:
    data = objects[name].read_bytes()
    kernels = copies(data)
    assert problems(data, append_kernels(data, kernels), wanted(kernels)) == []
    before, after = code_object_functions(data, ""), code_object_functions(append_kernels(data, kernels), "")
    assert set(before.functions) <= set(after.functions)
    assert before.variables.items() <= after.variables.items()


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
    lief = pytest.importorskip("lief")
    data = objects[name].read_bytes()
    kernels = copies(data)
    path = tmp_path / "patched.hsaco"
    path.write_bytes(append_kernels(data, kernels))
    names = {*(kernel.name for kernel in kernels), *(f"{kernel.name}.kd" for kernel in kernels)}
    parsed = lief.ELF.parse(str(path))
    assert {symbol.name for symbol in parsed.dynamic_symbols} >= names
    assert {symbol.name for symbol in parsed.symtab_symbols} >= names
    for tool in (READELF, BUNDLER):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} on PATH; LIEF accepts it")
    argv = [READELF, "-a", "--hash-table", "--gnu-hash-table", str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert all(f".name:           {kernel.name}\n" in done.stdout for kernel in kernels)
    # In a bundle and out of it again.
    targets = f"host-x86_64-unknown-linux-gnu,hipv4-amdgcn-amd-amdhsa--{read_code_object(data, '').target}"
    bundle, back, empty = tmp_path / "bundle", tmp_path / "back", tmp_path / "empty"
    empty.write_bytes(b"")
    common = [BUNDLER, "--type=o", f"--targets={targets}"]
    subprocess.run([*common, f"--input={empty}", f"--input={path}", f"--output={bundle}"], check=True)
    subprocess.run([*common, "--unbundle", f"--input={bundle}", f"--output={empty}", f"--output={back}"], check=True)
    assert back.read_bytes() == path.read_bytes()


class Fault(NamedTuple):
    """A change of a patched code object. at: where, in the file."""

    name: str
    at: Callable[[bytes], int]
    bits: int = 1


def of_section(name: str, at: int) -> Callable[[bytes], int]:
    """A place in a section; from its end if negative."""

    def place_of(data: bytes) -> int:
        begin, size = section(data, name)
        return begin + at + (size if at < 0 else 0)

    return place_of


def row_of(table: str, wanted: str, at: int) -> Callable[[bytes], int]:
    """A place in the row of a header table. table: "segment" or "section". wanted: a segment's type, or the name of a
    section."""

    def place_of(data: bytes) -> int:
        elf = elf_of(data)
        rows = elf.iter_segments() if table == "segment" else elf.iter_sections()
        (number,) = [
            number for number, row in enumerate(rows) if wanted == (row["p_type"] if table == "segment" else row.name)
        ]
        begin, size = (elf["e_phoff"], 56) if table == "segment" else (elf["e_shoff"], 64)
        return int(begin + size * number + at)

    return place_of


def tag_of(tag: str) -> Callable[[bytes], int]:
    """The value of a tag of the dynamic section."""

    def place_of(data: bytes) -> int:
        table = elf_of(data).get_section_by_name(".dynamic")
        (number,) = [number for number, row in enumerate(table.iter_tags()) if row.entry.d_tag == tag]
        return int(table["sh_offset"] + 16 * number + 8)

    return place_of


def new_load(number: int, at: int) -> Callable[[bytes], int]:
    """A place in the program header of one of the two segments that are new."""

    def place_of(data: bytes) -> int:
        elf = elf_of(data)
        loads = [row for row, segment in enumerate(elf.iter_segments()) if segment["p_type"] == "PT_LOAD"]
        return int(elf["e_phoff"] + 56 * loads[-2:][number] + at)

    return place_of


def text_in_note(text: bytes, at: int) -> Callable[[bytes], int]:
    """A place after the last occurrence of a text in the metadata."""

    def place_of(data: bytes) -> int:
        begin, size = section(data, ".note")
        return data.rindex(text, begin, begin + size) + at

    return place_of


LAST_SYMBOL, LAST_BUT_ONE = -24, -48
FAULTS = [
    *(Fault(f"kd byte {at}", of_section(".neutrino.rodata", at))
      for at in (0, 4, 8, 16, 17, 24, 44, 48, 49, 52, 56, 58)),
    Fault("kd sgprs", of_section(".neutrino.rodata", 48), 0x40),
    Fault("kd accumulators", of_section(".neutrino.rodata", 44), 2),
    *(Fault(f"{table} {what}", of_section(table, LAST_SYMBOL + at), bits)
      for table in (".symtab", ".dynsym")
      for what, at, bits in (("name", 0, 1), ("type", 4, 1), ("bind", 4, 0x20), ("visibility", 5, 1), ("section", 6, 1),
                             ("value", 8, 0x40), ("size", 16, 1))),
    *(Fault(f"{table} function's value", of_section(table, LAST_BUT_ONE + 9)) for table in (".symtab", ".dynsym")),
    Fault("strtab", of_section(".strtab", -2)), Fault("dynstr", of_section(".dynstr", -2)),
    Fault("hash buckets", of_section(".hash", 0)), Fault("hash bucket", of_section(".hash", 8), 0xFF),
    Fault("hash chain", of_section(".hash", -4), 0x7F), Fault("gnu hash", of_section(".gnu.hash", -4), 2),
    Fault("gnu hash end", of_section(".gnu.hash", -4), 1), Fault("gnu bucket", of_section(".gnu.hash", 24), 3),
    Fault("gnu filter", of_section(".gnu.hash", 16), 0xFF),
    Fault("shstrtab", of_section(".shstrtab", -3)),
    *(Fault(tag, tag_of(tag), 8) for tag in ("DT_SYMTAB", "DT_STRTAB", "DT_STRSZ", "DT_HASH", "DT_GNU_HASH")),
    *(Fault(f"{kind} {what}", row_of("segment", kind, at), bits)
      for kind in ("PT_NOTE", "PT_PHDR", "PT_DYNAMIC")
      for what, at, bits in (("offset", 8, 4), ("address", 16, 4), ("size", 32, 4))),
    *(Fault(f"new segment {number} {what}", new_load(number, at), bits)
      for number in (0, 1)
      for what, at, bits in (("flags", 4, 2), ("offset", 9, 0x10), ("address", 17, 0x10), ("size", 33, 0x80),
                             ("alignment", 50, 1))),
    *(Fault(f"{name} {what}", row_of("section", name, at), bits)
      for name in (".note", ".dynsym", ".neutrino.text", ".neutrino.rodata")
      for what, at, bits in (("flags", 8, 4), ("address", 16, 0x40), ("offset", 24, 0x40), ("size", 33, 0xFF))),
    Fault("note kind", of_section(".note", 8)), Fault("note size", of_section(".note", 4), 4),
    Fault("note owner", of_section(".note", 12)),
    Fault("note's argument", text_in_note(b".offset", 8), 2), Fault("note's kind", text_in_note(b"by_value", 0), 2),
    Fault("note's kernarg", text_in_note(b".kernarg_segment_size", 22), 2),
    Fault("note's symbol", text_in_note(b"__neutrino.kd", 2), 1),
    Fault("note's sgprs", text_in_note(b".sgpr_count", 11)), Fault("note's vgprs", text_in_note(b".vgpr_count", 11)),
    Fault("note's lds", text_in_note(b".group_segment_fixed_size", 25), 1),
    Fault("code", of_section(".neutrino.text", 0)),
    Fault("e_phnum", lambda data: 0x38), Fault("e_shnum", lambda data: 0x3C),
    Fault("an original's code", of_section(".text", 8)), Fault("an original's descriptor", of_section(".rodata", 8)),
]  # fmt: skip


@pytest.mark.parametrize("name", ["gfx90a-O2"])
def test_faults_are_noticed(name: str, objects: Mapping[str, Path]) -> None:
    """Each of FAULTS by the reader above, which finds nothing wrong without them."""
    data = objects[name].read_bytes()
    kernels = copies(data, sgprs=90, vgprs=40)
    # Of the kernel that is appended last: it is last in each table.
    kernels = [kernel for kernel in kernels if kernel.like in ("saxpy", "nothing")]
    patched = append_kernels(data, kernels)
    assert problems(data, patched, wanted(kernels)) == []
    missed = []
    for fault in FAULTS:
        wrong = bytearray(patched)
        wrong[fault.at(patched)] ^= fault.bits
        if not problems(data, bytes(wrong), wanted(kernels)):
            missed.append(fault.name)
    assert not missed
    assert len(FAULTS) >= 60


def elf_of(data: bytes) -> Any:
    return pytest.importorskip("elftools.elf.elffile").ELFFile(io.BytesIO(data))


def section(data: bytes, name: str) -> tuple[int, int]:
    """Offset and size of a section, by pyelftools."""
    header = elf_of(data).get_section_by_name(name).header
    return header["sh_offset"], header["sh_size"]


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
    (lambda kernel: replace(kernel, block_size=1 << 32), "bytes of arguments"),
    (lambda kernel: replace(kernel, functions=(Part("new", 0, 4), Part("tiles", 4, 4))), "there is tiles already"),
])  # fmt: skip
def test_what_cannot_be_appended(
    change: Callable[[Appended], Appended], problem: str, objects: Mapping[str, Path]
) -> None:
    data = objects["gfx90a-O2"].read_bytes()
    (kernel,) = [kernel for kernel in copies(data) if kernel.like == "saxpy"]
    (other,) = [kernel for kernel in copies(data) if kernel.like == "tiles"]
    with pytest.raises(KernelRefusedError, match=problem) as caught:
        append_kernels(data, [other, change(kernel)])
    # The others can be.
    assert caught.value.kernel == change(kernel).name


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


@pytest.mark.parametrize("key", [b".symbol", b".kernarg_segment_size", b".vgpr_count", b".sgpr_count", b".args"])
def test_damaged_metadata(key: bytes, objects: Mapping[str, Path]) -> None:
    data = objects["gfx90a-O2"].read_bytes()
    kernel = copies(data)[0]
    # The value's first byte becomes that of a boolean; what follows it may be anything then.
    at = data.index(key) + len(key)
    wrong = data[:at] + b"\xc3" + data[at + 1 :]
    with pytest.raises(FormatError):
        append_kernels(wrong, [kernel])


def test_damaged(objects: Mapping[str, Path]) -> None:
    data = objects["gfx1100-O2"].read_bytes()
    kernel = copies(data)[0]
    with pytest.raises(FormatError):
        append_kernels(data[:64], [kernel])
    whole = bytearray(data)
    whole[16] = 1
    with pytest.raises(PatchError, match="it is an object file"):
        append_kernels(bytes(whole), [kernel])


@pytest.mark.parametrize("name", ["gfx1100-O2", "gfx1201-O2"])
def test_as_much_is_fetched_ahead_as_there_is(name: str, objects: Mapping[str, Path]) -> None:
    """In an object whose descriptors ask for it, which those of clang 19 do not."""
    data = bytearray(objects[name].read_bytes())
    begin, size = section(bytes(data), ".rodata")
    symbols = elf_of(bytes(data)).get_section_by_name(".dynsym").iter_symbols()
    descriptors = [symbol["st_value"] for symbol in symbols if symbol.name.endswith(".kd")]
    address = elf_of(bytes(data)).get_section_by_name(".rodata")["sh_addr"]
    assert descriptors
    for at in descriptors:
        assert 0 <= at - address < size
        data[begin + at - address + 44] |= 0x10
    kernels = copies(bytes(data))
    kernels = [*kernels[1:], replace(kernels[0], code=kernels[0].code * (9000 // len(kernels[0].code) + 1))]
    assert problems(bytes(data), append_kernels(bytes(data), kernels), wanted(kernels)) == []


def test_other_notes_stay(tmp_path: Path) -> None:
    """An object with a build id has two notes, in one segment."""
    need_clang()
    source, made = tmp_path / "empty.hip", tmp_path / "empty.hsaco"
    source.write_text('extern "C" __attribute__((global)) void empty(int *at) { *at = 1; }\n')
    argv = [CLANG, "-x", "hip", "--offload-device-only", "--no-gpu-bundle-output", "-nogpuinc", "-nogpulib", "-w",
            "--offload-arch=gfx942", "-Xoffload-linker", "--build-id=sha1", str(source), "-o", str(made)]  # fmt: skip
    subprocess.run(argv, check=True)
    data = made.read_bytes()
    patched = append_kernels(data, copies(data))
    before, after = (
        [
            (note["n_name"], note["n_type"], note["n_desc"] if note["n_name"] == "GNU" else "")
            for segment in elf_of(content).iter_segments("PT_NOTE")
            for note in segment.iter_notes()
        ]
        for content in (data, patched)
    )
    assert len(before) == 2
    assert before == after
    by_section = [
        note["n_name"]
        for one in elf_of(patched).iter_sections()
        if one["sh_type"] == "SHT_NOTE"
        for note in one.iter_notes()
    ]
    assert sorted(by_section) == ["AMDGPU", "GNU"]
    assert {*read_code_object(patched, "").kernels} == {"empty", "empty__neutrino"}
