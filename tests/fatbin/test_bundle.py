"""Offload bundles: clang's own, judged by clang-offload-bundler, and those built here, whole and damaged."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import struct
import subprocess
import tracemalloc
import zlib
from pathlib import Path

import pytest
import zstandard
from amd_inputs import TARGETS, compile_hip, find_llvm, need_clang, need_llvm
from fatbin_inputs import need, run
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.elf.cursor import Cursor
from neutrino.errors import FormatError
from neutrino.fatbin import (
    Compression,
    Container,
    ImageKind,
    build_bundle,
    read_container,
    read_file,
    write_container,
)
from neutrino.fatbin.bundle import bundle_target
from neutrino.fatbin.compressed_bundle import compress_bundle
from neutrino.fatbin.container import read_bundles

HOST = "host-x86_64-unknown-linux--"
NAMES = (HOST, "hipv4-amdgcn-amd-amdhsa--gfx90a", "hipv4-amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-")
CODE = b"\x7fELF\x02\x01\x01\x40" + bytes(8) + b"\x03\0\xe0\0" + bytes(range(200))
BITCODE = b"BC\xc0\xde" + bytes(range(250)) * 30
PLAIN = build_bundle(zip(NAMES, (b"", CODE, BITCODE), strict=True))
COMPRESSED = [(how, version) for how in (Compression.ZLIB, Compression.ZSTD) for version in (1, 2, 3)]
FORMS = [(Compression.NONE, 0), *COMPRESSED]


def in_form(plain: bytes, form: tuple[Compression, int]) -> bytes:
    how, version = form
    return plain if how is Compression.NONE else compress_bundle(plain, how, version)


@pytest.fixture(scope="module")
def clang(tmp_path_factory) -> str:
    # clang runs it to make the host's object; Debian has it in a package of its own, clang-tools.
    need_llvm("clang-offload-bundler")
    return need_clang(tmp_path_factory.mktemp("clang"))


@pytest.fixture(scope="module")
def objects(clang, tmp_path_factory) -> dict[str, Path]:
    """A plain, a compressed and a relocatable object."""
    folder = tmp_path_factory.mktemp("objects")
    archs = [f"--offload-arch={target}" for target in TARGETS]
    return {
        "plain": compile_hip(clang, folder, "plain.o", *archs, name="plain"),
        "compressed": compile_hip(clang, folder, "compressed.o", "--offload-compress", *archs[:1], archs[3]),
        "relocatable": compile_hip(clang, folder, "relocatable.o", "-fgpu-rdc", archs[0], name="relocatable"),
        "device": compile_hip(clang, folder, "device.hipfb", "--cuda-device-only", *archs),
    }


def bundler_list(bundle: Path) -> list[str]:
    return sorted(run(need_llvm("clang-offload-bundler"), "--list", "--type=o", f"--input={bundle}").split())


def unbundled(bundle: Path, target: str) -> bytes:
    output = bundle.with_suffix(".unbundled")
    argv = ("--unbundle", "--type=o", f"--input={bundle}", f"--targets={target}", f"--output={output}")
    run(need_llvm("clang-offload-bundler"), *argv)
    return output.read_bytes()


def check_with_bundler(container: Container, folder: Path) -> None:
    """Every entry and every image as clang-offload-bundler has them; and the same bytes when written."""
    bundle = folder / "bundle"
    bundle.write_bytes(write_container(container))
    assert container.bundle is not None
    assert sorted(entry.name for entry in container.bundle.entries) == bundler_list(bundle)
    assert container.images
    for image in container.images:
        assert image.data == unbundled(bundle, image.identifier)
        assert image.size == len(image.data)


def test_a_bundle_of_clang(objects, tmp_path):
    (container,) = read_file(objects["device"])
    assert (container.kind, container.offset) == ("hip-bundle", 0)
    assert write_container(container) == objects["device"].read_bytes()
    assert {image.arch for image in container.images} == set(TARGETS)
    assert {image.kind for image in container.images} == {ImageKind.CODE_OBJECT}
    check_with_bundler(container, tmp_path)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form[0].value}-{form[1]}")
def test_every_form_of_a_bundle_of_clang(form, objects, tmp_path):
    """The bundler itself reads no version 3, so what it judges then is the same bundle in version 2."""
    plain = objects["device"].read_bytes()
    container = read_container(in_form(plain, form), "bundle")
    assert write_container(container) == in_form(plain, form)
    assert {image.compression for image in container.images} == {form[0]}
    if form[1] == 3:
        again = read_container(compress_bundle(plain, form[0], 2), "bundle")
        assert [image.data for image in container.images] == [image.data for image in again.images]
        container = again
    check_with_bundler(container, tmp_path)


def test_a_bundle_is_built_as_the_bundler_builds_it(tmp_path):
    bundler = need_llvm("clang-offload-bundler")
    files = []
    for number, content in enumerate((b"", CODE, BITCODE)):
        files.append(tmp_path / str(number))
        files[-1].write_bytes(content)
    for alignment in (1, 4096):
        argv = ["--type=o", f"--targets={','.join(NAMES)}", f"--bundle-align={alignment}"]
        run(bundler, *argv, *(f"--input={file}" for file in files), f"--output={tmp_path / 'bundle'}")
        theirs = (tmp_path / "bundle").read_bytes()
        bundle = read_container(theirs, "bundle").bundle
        assert bundle is not None
        # LLVM 19 repeats the triple in the host's name.
        names = [entry.name for entry in bundle.entries]
        assert names[1:] == list(NAMES[1:])
        assert build_bundle(zip(names, (b"", CODE, BITCODE), strict=True), alignment=alignment) == theirs


def linked(clang: str, objects: list[Path], output: Path, *arguments: str) -> Path:
    run(clang, "-shared", *arguments, *objects, "-o", output)
    return output


@pytest.mark.parametrize("arguments", [(), ("-fuse-ld=lld",), ("-Wl,-z,pack-relative-relocs",), ("-s",)])
def test_plain_and_compressed_bundles_in_one_section(arguments, objects, clang, tmp_path):
    if "-fuse-ld=lld" in arguments and find_llvm("ld.lld") is None:
        pytest.skip("no ld.lld on PATH")
    library = linked(clang, [objects["plain"], objects["compressed"]], tmp_path / "lib.so", *arguments)
    data = library.read_bytes()
    found = read_file(library)
    assert [container.section for container in found] == [".hip_fatbin"] * 2
    assert [len(container.images) for container in found] == [4, 2]
    assert {image.compression for image in found[1].images} == {Compression.ZSTD}
    for container in found:
        assert container.offset % 4096 == 0
        assert data[container.offset : container.offset + container.size] == write_container(container)
        check_with_bundler(container, tmp_path)
    for image in found[0].images:
        assert data[image.offset : image.offset + image.stored_size] == image.data


def test_bundles_without_section_headers(objects, clang, tmp_path):
    library = linked(clang, [objects["plain"], objects["compressed"]], tmp_path / "lib.so")
    whole = read_file(library)
    data = bytearray(library.read_bytes())
    struct.pack_into("<Q", data, 0x28, 0)
    struct.pack_into("<HHH", data, 0x3A, 0, 0, 0)
    library.write_bytes(data)
    bare = read_file(library)
    assert [(container.section, container.offset) for container in bare] == [("", found.offset) for found in whole]
    assert [write_container(container) for container in bare] == [write_container(container) for container in whole]


def test_a_bundle_in_a_programs_data(tmp_path):
    """As a string of bytes that the program itself hands to the runtime; the code objects in it are its own."""
    whole = build_bundle(zip(NAMES, (b"", CODE, CODE), strict=True))
    (tmp_path / "bundle").write_bytes(whole)
    (tmp_path / "data.s").write_text(f'.data\n.balign 16\n.quad 1, 2\n.incbin "{tmp_path / "bundle"}"\n.quad 3\n')
    run(need("cc"), "-shared", "-nostdlib", tmp_path / "data.s", "-o", tmp_path / "lib.so")
    (container,) = read_file(tmp_path / "lib.so")
    assert (container.section, container.kind) == (".data", "hip-bundle")
    assert write_container(container) == whole


def test_relocatable_objects_hold_bitcode(objects, tmp_path):
    (container,) = read_file(objects["relocatable"])
    (image,) = container.images
    assert (container.kind, image.kind, image.arch) == ("hip-bundle", ImageKind.BITCODE, "gfx90a")
    assert container.section == "__CLANG_OFFLOAD_BUNDLE__" + image.identifier
    assert image.data == write_container(container) == unbundled(objects["relocatable"], image.identifier)


def test_one_bundle_for_two_wrappers(objects, clang, tmp_path):
    """As relocatable objects are linked: each object's wrapper points to the bundle, by a symbol."""
    if find_llvm("ld.lld") is None:
        pytest.skip("no ld.lld on PATH")
    other = compile_hip(clang, tmp_path, "other.o", "-fgpu-rdc", "--offload-arch=gfx90a", name="other")
    # The driver links the runtime, which need not be here.
    run(need("cc"), "-shared", "-x", "c", "/dev/null", "-o", tmp_path / "libamdhip64.so")
    library = tmp_path / "lib.so"
    argv = ["--hip-link", "-fgpu-rdc", "--offload-arch=gfx90a", "-shared", f"-L{tmp_path}"]
    done = subprocess.run(
        [clang, *argv, objects["relocatable"], other, "-o", library], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"clang links no relocatable HIP objects here: {done.stderr.strip()[-300:]}")
    (container,) = read_file(library)
    assert len(container.wrappers) == 2
    check_with_bundler(container, tmp_path)
    data = bytearray(library.read_bytes())
    struct.pack_into("<Q", data, 0x28, 0)
    struct.pack_into("<HHH", data, 0x3A, 0, 0, 0)
    library.write_bytes(data)
    assert [write_container(bare) for bare in read_file(library)] == [write_container(container)]


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("hipv4-amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-", "gfx942:sramecc+:xnack-"),
        ("hip-amdgcn-amd-amdhsa-gfx906", "gfx906"),
        ("hip-amdgcn-amd-amdhsa-unknown-gfx906", "gfx906"),
        ("openmp-amdgcn-amd-amdhsa--gfx90a:xnack+", "gfx90a:xnack+"),
        ("hipv4-amdgcn-amd-amdhsa--gfx10-3-generic", "gfx10-3-generic"),
        ("hipv4-amdgcn-amd-amdhsa--gfx9-4-generic:sramecc-", "gfx9-4-generic:sramecc-"),
        ("cuda-nvptx64-nvidia-cuda--sm_90a", "sm_90a"),
        ("host-x86_64-unknown-linux-gnu", "host-x86_64-unknown-linux"),
        ("host-x86_64-unknown-linux--", "host-x86_64-unknown-linux"),
        ("hip-spirv64-amd-amdhsa--amdgcnspirv", "amdgcnspirv"),
        ("something", "something"),
        ("", ""),
    ],
)
def test_target_of_an_entry(name, target):
    assert bundle_target(name) == target


def test_what_follows_a_bundle_is_kept():
    for form in FORMS:
        data = in_form(PLAIN, form) + b"more"
        container = read_container(data, "bundle")
        assert container.size == len(data) - 4
        assert write_container(container) == data


def test_images_can_be_exchanged():
    other = b"\x7fELF" + bytes(5000)
    for form in FORMS:
        container = read_container(in_form(PLAIN, form), "bundle")
        assert container.bundle is not None
        new = dataclasses.replace(
            container.images[0], payload=memoryview(other), decoded_size=len(other), within=None, encoded_size=None
        )
        written = write_container(dataclasses.replace(container, images=(new, container.images[1])))
        expected = build_bundle(zip(NAMES, (b"", other, BITCODE), strict=True))
        assert written == in_form(expected, form)
        with pytest.raises(ValueError, match="1 images for a bundle of 2"):
            container.bundle.write([new])


@pytest.mark.parametrize("form", COMPRESSED, ids=lambda form: f"{form[0].value}-{form[1]}")
def test_the_digest_is_a_note(form):
    stored = bytearray(in_form(PLAIN, form))
    digest = hashlib.md5(PLAIN).digest()[:8]
    bundle = read_container(bytes(stored), "bundle").bundle
    assert bundle is not None
    assert bundle.compressed is not None
    assert bundle.compressed.digest == digest
    assert bundle.compressed.digest_is_right()
    stored[bytes(stored).index(digest)] ^= 1
    other = read_container(bytes(stored), "bundle")
    assert other.bundle is not None
    assert other.bundle.compressed is not None
    assert not other.bundle.compressed.digest_is_right()
    assert [image.data for image in other.images] == [CODE, BITCODE]


def test_large_bundles_are_decoded_in_parts(monkeypatch):
    monkeypatch.setattr("neutrino.fatbin.compressed_bundle._MAX_CACHED", 100)
    for form in COMPRESSED:
        container = read_container(in_form(PLAIN, form), "bundle")
        assert [image.data for image in container.images] == [CODE, BITCODE]
        assert [image.data for image in reversed(container.images)] == [BITCODE, CODE]


CONTENTS = st.sampled_from([b"", CODE, BITCODE, b"\0" * 5000]) | st.binary(max_size=300)


ROWS = st.lists(st.tuples(st.text(st.characters(codec="latin-1"), max_size=40), CONTENTS), max_size=6)


@given(
    # A last entry without content may have padding before it that is not the bundle's.
    rows=ROWS.map(lambda rows: [*rows, ("last", CODE)]),
    form=st.sampled_from(FORMS),
    gap=st.integers(0, 5000),
    alignment=st.sampled_from([1, 8, 4096]),
)
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read(rows, form, gap, alignment):
    plain = build_bundle(rows, alignment=alignment)
    stored = in_form(plain, form)
    data = bytes(gap) + stored + bytes(gap) + stored
    found = list(read_bundles(Cursor(memoryview(data), "bundles"), "section", 3))
    assert [container.index for container in found] == [3, 4]
    assert [container.offset for container in found] == [gap, len(data) - len(stored)]
    for container in found:
        assert container.bundle is not None
        assert [entry.name for entry in container.bundle.entries] == [name for name, _ in rows]
        assert [image.identifier for image in container.images] == [name for name, content in rows if content]
        assert [image.data for image in container.images] == [content for _, content in rows if content]
        assert write_container(container) == stored


def read_all(data: bytes) -> None:
    for image in read_container(data, "damaged").images:
        bytes(image.data)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form[0].value}-{form[1]}")
def test_every_truncation_is_a_format_error(form):
    stored = in_form(PLAIN, form)
    for size in [*range(4, 160), *range(160, len(stored), 97), len(stored) - 1]:
        with pytest.raises(FormatError) as caught:
            read_all(stored[:size])
        assert caught.value.file == "damaged"


INTERESTING = st.sampled_from([0, 1, 24, 4096, 1 << 31, (1 << 32) - 1, 1 << 63, (1 << 64) - 1])


@given(form=st.sampled_from(FORMS), data=st.data())
@settings(max_examples=100, deadline=None)
def test_damage_raises_nothing_but_format_errors(form, data):
    stored = bytearray(in_form(PLAIN, form))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(4, min(200, len(stored) - 8)) | st.integers(4, len(stored) - 8))
        layout = data.draw(st.sampled_from(["<B", "<H", "<I", "<Q"]))
        top = 1 << 8 * struct.calcsize(layout)
        value = data.draw(INTERESTING | st.integers(0, len(stored)) | st.integers(0, top - 1))
        struct.pack_into(layout, stored, place, value % top)
    try:
        container = read_container(bytes(stored), "damaged")
        assert write_container(container) == stored
        read_all(bytes(stored))
    except FormatError as error:
        if error.file != "damaged":
            raise AssertionError(error.file) from error


def table(count: int, *rows: tuple[int, int, bytes]) -> bytes:
    entries = b"".join(struct.pack("<QQQ", offset, size, len(name)) + name for offset, size, name in rows)
    return (b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", count) + entries).ljust(8192, b"\0")


DAMAGED = {
    "more entries than there are bytes": (table(1 << 63), "number of entries"),
    "an entry over the table": (table(1, (0, 100, b"a")), "offset of a"),
    "entries that overlap": (table(2, (4096, 100, b"a"), (4195, 10, b"b")), "offset of b"),
    "the same bytes for two": (table(2, (4096, 100, b"a"), (4096, 100, b"b")), "offset of b"),
    "an end past 64 bits": (table(1, ((1 << 64) - 1, 2, b"a")), "end of a"),
    "an end past the file": (table(1, (4096, 4097, b"a")), "end of a"),
    "fewer entries than are counted": (table(341), "entry"),
    "a name past the file": (b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<QQQQ", 1, 0, 0, 9000), "table of entries"),
    "a total below the header": (b"CCOB" + struct.pack("<HHIIQ", 2, 1, 23, 10, 0), "total size"),
    "a total past the file": (b"CCOB" + struct.pack("<HHIIQ", 2, 1, 1000, 10, 0), "compressed bundle (total size)"),
    "a size of 2 ** 63": (b"CCOB" + struct.pack("<HHQQQ", 3, 1, 132, 1 << 63, 0) + bytes(100), "uncompressed size"),
    "version 4": (b"CCOB" + struct.pack("<HHQQQ", 4, 1, 32, 0, 0), "compressed bundle version"),
    "method 2": (b"CCOB" + struct.pack("<HHQQQ", 3, 2, 32, 0, 0), "compression method"),
    "another magic": (b"__CLANG_OFFLOAD_BUNDLER_" + bytes(8), "bundle magic"),
    "a bundle within": (compress_bundle(compress_bundle(PLAIN, Compression.ZSTD), Compression.ZLIB), "bundle magic"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_fields_that_cannot_be(case):
    data, field = DAMAGED[case]
    with pytest.raises(FormatError) as caught:
        read_all(data)
    assert caught.value.field == field


BOMB_SIZE = 256 << 20


@functools.cache
def bomb_payload(how: Compression) -> bytes:
    """BOMB_SIZE zero bytes."""
    size = BOMB_SIZE
    if how is Compression.ZLIB:
        coder = zlib.compressobj(9)
        return b"".join(coder.compress(bytes(1 << 20)) for _ in range(size >> 20)) + coder.flush()
    # A frame of blocks that each repeat one byte (RFC 8878, 3.1.1.2.2).
    blocks = [struct.pack("<I", (1 << 17) << 3 | 1 << 1 | last)[:3] + b"\0" for last in (0, 1)]
    payload = b"\x28\xb5\x2f\xfd\x00\x58" + blocks[0] * ((size >> 17) - 1) + blocks[1]
    assert zstandard.get_frame_parameters(payload).content_size == zstandard.CONTENTSIZE_UNKNOWN
    return payload


def bomb(how: Compression, version: int, claimed: int) -> bytes:
    """A bundle that is BOMB_SIZE zero bytes when decoded, and claims another size."""
    payload = bomb_payload(how)
    head = struct.pack("<4sHH", b"CCOB", version, 0 if how is Compression.ZLIB else 1)
    rest = {1: "<IQ", 2: "<IIQ", 3: "<QQQ"}[version]
    total = () if version == 1 else (len(head) + struct.calcsize(rest) + len(payload),)
    return head + struct.pack(rest, *total, claimed, 0) + payload


@pytest.mark.parametrize("how", [Compression.ZLIB, Compression.ZSTD])
@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("claimed", [100, 1 << 20, BOMB_SIZE])
def test_decompression_bombs(how, version, claimed):
    """Whatever they claim, a few megabytes are enough to find out that there is no bundle in them."""
    data = bomb(how, version, claimed)
    tracemalloc.start()
    with pytest.raises(FormatError):
        read_all(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20
