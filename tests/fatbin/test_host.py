"""Host files of every form that linkers make, with containers put in by the assembler, so that no nvcc is needed."""

from __future__ import annotations

import os
import struct
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from fatbin_inputs import PTX, SOURCE, need, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neutrino.errors import FormatError
from neutrino.fatbin import Compression, ImageKind, build_container, build_entry, read_file, write_container

HOST = """\
    .section .nv_fatbin,"a"
    .balign 8
container:
    .incbin "{container}"
    .section .nvFatBinSegment,"aw"
    .balign 8
    .globl {name}
    .hidden {name}
{name}:
    .long 0x466243b1, 1
    .quad container
    .quad 0
    # What looks like a wrapper and is none: another version, no container after it, nothing after it.
    .long 0x466243b1, 3
    .quad container
    .quad 0
    .long 0x466243b1, 1
    .quad {name}
    .quad 0
    .long 0x466243b1, 2
    .quad empty
    .quad 0
    .bss
    .balign 8
empty:
    .skip 64
    .section .note.GNU-stack,"",@progbits
"""
MAIN = """\
    .text
    .globl main
main:
    xorl %eax, %eax
    ret
"""
LINKS: dict[str, list[str]] = {
    "shared": ["-shared"],
    "shared-lld": ["-shared", "-fuse-ld=lld"],
    "shared-relr": ["-shared", "-Wl,-z,pack-relative-relocs"],
    "shared-stripped": ["-shared", "-s"],
    "pie": ["-pie"],
    "executable": ["-no-pie"],
    "static": ["-static"],
    "static-pie": ["-static-pie"],
    "relocatable": ["-r", "-nostdlib"],
}


def containers(number: int) -> bytes:
    ptx = PTX.format(arch="sm_90").encode() + f"// {number}\n".encode()
    return build_container(
        [
            build_entry(ImageKind.PTX, ptx, "sm_90", compression=Compression.LZ4),
            build_entry(ImageKind.CUBIN, bytes([number]) * 64, "sm_80"),
        ]
    )


@pytest.fixture(scope="module")
def hosts(tmp_path_factory) -> dict[str, Path]:
    """Two objects with a container each, linked in every way that this machine's linkers know."""
    if os.uname().machine != "x86_64":
        pytest.skip("the host objects are written in x86-64 assembly")
    cc = need("cc")
    folder = tmp_path_factory.mktemp("hosts")
    objects = []
    for number in (1, 2):
        (folder / f"{number}.fatbin").write_bytes(containers(number))
        source = folder / f"{number}.s"
        source.write_text(HOST.format(container=folder / f"{number}.fatbin", name=f"wrapper{number}"))
        objects.append(folder / f"{number}.o")
        run(cc, "-c", source, "-o", objects[-1])
    (folder / "main.s").write_text(MAIN)
    made = {"object": objects[0]}
    for name, arguments in LINKS.items():
        parts = [] if "-shared" in arguments or "-r" in arguments else [folder / "main.s"]
        target = folder / name
        argv = [cc, *arguments, *parts, *objects, "-o", target]
        done = subprocess.run(list(map(str, argv)), capture_output=True, text=True, check=False)
        if done.returncode == 0:
            made[name] = target
    return made


def linked(hosts: dict[str, Path], link: str) -> Path:
    if link not in hosts:
        pytest.skip(f"this machine's compiler cannot link with {' '.join(LINKS[link])}")
    return hosts[link]


def check(path: Path, numbers: tuple[int, ...], section: str) -> None:
    found = read_file(path)
    data = path.read_bytes()
    assert [container.index for container in found] == list(range(len(numbers)))
    for container, number in zip(found, numbers, strict=True):
        assert (container.kind, container.section) == ("cuda-fatbin", section)
        assert write_container(container) == containers(number)
        assert data[container.offset : container.offset + container.size] == containers(number)
        assert [image.arch for image in container.images] == ["sm_90", "sm_80"]
        assert container.images[0].data.endswith(f"// {number}\n".encode())
        assert container.images[1].data == bytes([number]) * 64
        for image in container.images:
            assert data[image.offset :].startswith(image.header)


@pytest.mark.parametrize("link", LINKS)
def test_containers_of_sections(link, hosts):
    check(linked(hosts, link), (1, 2), ".nv_fatbin")


def test_containers_of_an_object(hosts):
    check(hosts["object"], (1,), ".nv_fatbin")


def without_section_headers(path: Path, target: Path) -> Path:
    data = bytearray(path.read_bytes())
    struct.pack_into("<Q", data, 0x28, 0)
    struct.pack_into("<HHH", data, 0x3A, 0, 0, 0)
    target.write_bytes(data)
    return target


@pytest.mark.parametrize("link", [link for link in LINKS if link != "relocatable"])
def test_containers_without_section_headers(link, hosts, tmp_path):
    """Found through the wrappers, wherever their pointers are: in the slot, in RELA only (lld), or in RELR."""
    check(without_section_headers(linked(hosts, link), tmp_path / "bare"), (1, 2), "")


@pytest.mark.parametrize("link", ["shared", "pie"])
def test_slots_that_only_the_relocation_fills(link, hosts, tmp_path):
    """As lld leaves them, on machines without lld: every slot with a RELATIVE relocation set to 0."""
    path = linked(hosts, link)
    data = bytearray(path.read_bytes())
    with path.open("rb") as file:
        elf = ELFFile(file)
        segment = elf.get_section_by_name(".nvFatBinSegment")
        begin, bias = segment["sh_addr"], segment["sh_addr"] - segment["sh_offset"]
        slots = [
            relocation["r_offset"] - bias
            for relocation in elf.get_section_by_name(".rela.dyn").iter_relocations()
            if begin <= relocation["r_offset"] < begin + segment["sh_size"]
        ]
    assert len(slots) == 8
    for slot in slots:
        assert any(data[slot : slot + 8])
        data[slot : slot + 8] = bytes(8)
    (tmp_path / "zero").write_bytes(data)
    check(without_section_headers(tmp_path / "zero", tmp_path / "bare"), (1, 2), "")


@pytest.mark.parametrize("gap", [0, 8, (1 << 20) - 8, 1 << 20, (2 << 20) + 16])
def test_a_wrapper_that_ends_its_segment(gap, tmp_path):
    """A file of one segment, the wrapper at its very end and however far from its start."""
    content = containers(1)
    size = 0x80 + len(content) + gap + 24
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 6, 0, 0x10000, 0, size, size, 0x1000)
    wrapper = struct.pack("<IIQQ", 0x466243B1, 1, 0x10080, 0)
    (tmp_path / "end").write_bytes((header + load).ljust(0x80, b"\0") + content + bytes(gap) + wrapper)
    check(tmp_path / "end", (1,), "")


@pytest.mark.parametrize("comment", ["//", "///", "////", "/////"])
def test_a_wrapper_after_an_image_of_odd_size(comment, tmp_path):
    """The search for wrappers leaves out the images in the data, which may end at any byte."""
    text = (comment + "\n" + PTX.format(arch="sm_90")).encode()
    content = containers(1) + text + b"\0"
    content += bytes(-len(content) % 8)
    size = 0x80 + len(content) + 24
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 6, 0, 0x10000, 0, size, size, 0x1000)
    wrapper = struct.pack("<IIQQ", 0x466243B1, 1, 0x10080, 0)
    (tmp_path / "odd").write_bytes((header + load).ljust(0x80, b"\0") + content + wrapper)
    container, bare = read_file(tmp_path / "odd")
    assert container.wrappers == (1,)
    assert write_container(bare) == text


def test_no_device_code(tmp_path):
    cc = need("cc")
    (tmp_path / "main.s").write_text(MAIN)
    run(cc, tmp_path / "main.s", "-o", tmp_path / "main")
    assert read_file(tmp_path / "main") == ()
    assert read_file(without_section_headers(tmp_path / "main", tmp_path / "bare")) == ()


def test_files_that_are_an_image(tmp_path, cubins):
    for name, data, kind in (
        ("k.ptx", PTX.format(arch="sm_90").encode(), ImageKind.PTX),
        ("k.cubin", cubins["sm_90a"], ImageKind.CUBIN),
        ("k.bc", b"BC\xc0\xde" + bytes(16), ImageKind.BITCODE),
        ("k.hsaco", b"\x7fELF\x02\x01\x01" + bytes(11) + b"\xe0\0" + bytes(44), ImageKind.CODE_OBJECT),
    ):
        (tmp_path / name).write_bytes(data)
        (container,) = read_file(tmp_path / name)
        (image,) = container.images
        assert (container.kind, image.kind, image.data) == ("file", kind, data)


@pytest.mark.parametrize("data", [b"", b"text", b"!<arch>\n" + bytes(60), b"\x7fELF\x01\x01\x01" + bytes(57)])
def test_files_that_are_none(data, tmp_path):
    file = tmp_path / "other"
    file.write_bytes(data)
    with pytest.raises(FormatError) as caught:
        read_file(file)
    assert caught.value.file == str(file)


def test_what_is_no_regular_file(tmp_path):
    with pytest.raises(FormatError):
        read_file("/dev/null")
    with pytest.raises(OSError, match="nowhere"):
        read_file(tmp_path / "nowhere")
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path)


def test_a_container_that_leaves_its_section(hosts, tmp_path):
    data = bytearray(hosts["shared"].read_bytes())
    last = read_file(hosts["shared"])[-1]
    struct.pack_into("<Q", data, last.offset + 8, last.size)
    (tmp_path / "long").write_bytes(data)
    with pytest.raises(FormatError) as caught:
        read_file(tmp_path / "long")
    assert caught.value.field == "container"
    assert caught.value.offset == last.offset + 16


@given(data=st.data())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_damaged_hosts_raise_nothing_but_format_errors(hosts, tmp_path_factory, data):
    content = bytearray(hosts["shared"].read_bytes())
    (table,) = struct.unpack_from("<Q", content, 0x28)
    if data.draw(st.booleans()):
        struct.pack_into("<Q", content, 0x28, 0)
    tables = [*range(0x20, 0x40, 2), *range(0x40, 0x300, 4), *range(table, len(content) - 8, 4)]
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.sampled_from(tables) | st.integers(0, len(content) - 8))
        layout = data.draw(st.sampled_from(["<B", "<H", "<I", "<Q"]))
        top = 1 << 8 * struct.calcsize(layout)
        value = data.draw(st.sampled_from([0, 1, len(content) % top, top - 1, top >> 1]) | st.integers(0, top - 1))
        struct.pack_into(layout, content, place, value)
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    file = tmp_path_factory.getbasetemp() / "damaged"
    file.write_bytes(content)
    try:
        for container in read_file(file):
            for image in container.images:
                bytes(image.data)
    except FormatError as error:
        if error.file != str(file):
            raise AssertionError(error.file) from error


@pytest.mark.parametrize("relocatable", [False, True])
def test_a_library_of_nvcc(relocatable, nvcc, cuobjdump, tmp_path):
    """Both sections that nvcc makes; the device linker's output has no PTX, the objects' containers have."""
    library = tmp_path / "lib.so"
    arguments = ["-rdc=true"] if relocatable else []
    run(nvcc, "-shared", "-arch=sm_80", *arguments, "-Xcompiler=-fPIC", "-o", library, SOURCE)
    found = read_file(library)
    sections = Counter(container.section for container in found)
    assert set(sections) == ({".nv_fatbin", "__nv_relfatbin"} if relocatable else {".nv_fatbin"})
    ours = {ImageKind.PTX: [], ImageKind.CUBIN: []}
    for container in found:
        for image in container.images:
            ours[image.kind].append(image.data)
    for kind, option in ((ImageKind.PTX, "-xptx"), (ImageKind.CUBIN, "-xelf")):
        folder = tmp_path / kind.value
        folder.mkdir()
        run(cuobjdump, "-all", option, "all", library, cwd=folder)
        assert sorted(ours[kind]) == sorted(path.read_bytes() for path in folder.iterdir())
        assert ours[kind]
