"""Offload binaries, made and taken apart by clang-offload-packager, and damaged ones."""

from __future__ import annotations

import struct

import pytest
from amd_inputs import compile_hip, need_clang, need_llvm
from fatbin_inputs import PTX, run
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.elf.cursor import Cursor
from neutrino.errors import FormatError
from neutrino.fatbin import Container, ImageKind, kernel_names, read_file, write_container
from neutrino.fatbin.offload_binary import read_offload_binaries

IMAGES = {
    ("amdgcn-amd-amdhsa", "gfx90a:xnack+", "hip"): b"BC\xc0\xde" + bytes(range(100)),
    ("amdgcn-amd-amdhsa", "gfx942", "openmp"): b"\x7fELF\x02\x01\x01\x40" + bytes(8) + b"\x03\0\xe0\0" + bytes(101),
    ("nvptx64-nvidia-cuda", "sm_90a", "cuda"): b"\x7fELF\x02\x01\x01\x33" + bytes(8) + b"\x02\0\xbe\0" + bytes(99),
}
KINDS = [ImageKind.BITCODE, ImageKind.CODE_OBJECT, ImageKind.CUBIN]


def read(data: bytes) -> list[Container]:
    return list(read_offload_binaries(Cursor(memoryview(data), "binary"), ".llvm.offloading"))


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> bytes:
    packager = need_llvm("clang-offload-packager")
    folder = tmp_path_factory.mktemp("packed")
    arguments = []
    for number, ((triple, arch, kind), content) in enumerate(IMAGES.items()):
        (folder / str(number)).write_bytes(content)
        arguments.append(f"--image=file={folder / str(number)},triple={triple},arch={arch},kind={kind}")
    run(packager, "-o", folder / "packed", *arguments)
    return (folder / "packed").read_bytes()


def test_what_the_packager_packed(packed):
    found = read(packed)
    images = [image for container in found for image in container.images]
    assert [image.data for image in images] == list(IMAGES.values())
    assert [image.kind for image in images] == KINDS
    assert [image.arch for image in images] == [arch for _, arch, _ in IMAGES]
    assert {container.kind for container in found} == {"offload-binary"}
    assert [container.index for container in found] == [0, 1, 2]
    assert b"".join(map(write_container, found)) == packed
    for container in found:
        assert packed[container.offset : container.offset + container.size] == write_container(container)


def test_an_object_of_the_new_driver(tmp_path):
    clang, packager = need_clang(tmp_path), need_llvm("clang-offload-packager")
    path = compile_hip(
        clang, tmp_path, "new.o", "--offload-new-driver", "-fgpu-rdc", "--offload-arch=gfx90a", "--offload-arch=gfx1100"
    )
    found = read_file(path)
    assert [container.section for container in found] == [".llvm.offloading"] * 2
    assert {image.arch for container in found for image in container.images} == {"gfx90a", "gfx1100"}
    for container in found:
        (image,) = container.images
        output = tmp_path / image.arch
        argv = f"--image=file={output},triple=amdgcn-amd-amdhsa,arch={image.arch},kind=hip"
        run(packager, path, argv)
        assert image.data == output.read_bytes()
        assert image.kind is ImageKind.BITCODE
        assert kernel_names(image) == ()


def test_text_is_named_by_its_entry():
    text = PTX.format(arch="sm_90").encode()
    (container,) = read(binary(text, kind=5))
    assert container.images[0].kind is ImageKind.PTX
    assert kernel_names(container.images[0]) == ("add_one", "second")


def binary(content: bytes, *, kind: int = 1, **fields: int) -> bytes:
    """One binary for sm_90, with fields other than they should be."""
    strings = b"\0arch\0sm_90\0"
    begin = 32 + 40 + 16 + len(strings)
    table = {
        "version": 1, "size": begin + len(content), "entry": 32, "entry_size": 40, "strings": 72, "count": 1,
        "image": begin, "image_size": len(content), "key": 89, "value": 94,
    } | fields  # fmt: skip
    return (
        struct.pack("<4sIQQQ", b"\x10\xff\x10\xad", *(table[key] for key in ("version", "size", "entry", "entry_size")))
        + struct.pack("<HHIQQQQ", kind, 2, 0, *(table[key] for key in ("strings", "count", "image", "image_size")))
        + struct.pack("<QQ", table["key"], table["value"])
        + strings
        + content
    )


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("version", "offload binary version"),
        ("size", "offload binary (size)"),
        ("entry", "offset of the entry"),
        ("entry_size", None),
        ("strings", "offset of the strings"),
        ("count", "number of strings"),
        ("image", "offset of the image"),
        ("image_size", "image"),
        ("key", "offset of a string"),
        ("value", "offset of a string"),
    ],
)
def test_fields_that_cannot_be(field, said):
    assert read(binary(b"content"))[0].images[0].arch == "sm_90"
    for value in (1000, (1 << 63) if field != "version" else (1 << 31), (1 << 64) - 1 if field != "version" else 7):
        if said is None:
            assert len(read(binary(b"content", **{field: value}))) == 1
            continue
        with pytest.raises(FormatError) as caught:
            read(binary(b"content", **{field: value}))
        assert (caught.value.field, caught.value.file) == (said, "binary")
    for size in range(1, len(binary(b"content"))):
        with pytest.raises(FormatError):
            read(binary(b"content")[:size])


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_damage_raises_nothing_but_format_errors(data):
    content = bytearray(binary(b"content") + bytes(1) + binary(b"other"))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 8))
        layout = data.draw(st.sampled_from(["<B", "<H", "<I", "<Q"]))
        value = data.draw(st.integers(0, 200) | st.integers(0, (1 << 8 * struct.calcsize(layout)) - 1))
        struct.pack_into(layout, content, place, value)
    try:
        for container in read(bytes(content)):
            assert write_container(container) == content[container.offset : container.offset + container.size]
    except FormatError as error:
        if error.file != "binary":
            raise AssertionError(error.file) from error
