"""Containers built here, whole and damaged: what is written is read, and what is wrong is a FormatError."""

from __future__ import annotations

import contextlib
import dataclasses
import struct
from collections.abc import Iterator

import pytest
from fatbin_inputs import PTX
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.errors import FormatError
from neutrino.fatbin import (
    Compression,
    ImageKind,
    build_container,
    build_entry,
    kernel_names,
    read_container,
    read_file,
    write_container,
)
from neutrino.sass.cubin import read_cubin

TEXT = PTX.format(arch="sm_90").encode()
COMPRESSIONS = st.sampled_from([Compression.NONE, Compression.LZ4, Compression.ZSTD])
BYTES_WITHOUT_NUL = st.binary(max_size=300).map(lambda data: data.replace(b"\0", b"."))
LATIN = st.text(st.characters(codec="latin-1", exclude_characters="\0"), max_size=40)


@dataclasses.dataclass(frozen=True)
class Built:
    kind: ImageKind
    payload: bytes
    arch: str
    compression: Compression
    version: tuple[int, int]
    options: str | None
    identifier: str

    def entry(self) -> bytes:
        return build_entry(self.kind, self.payload, self.arch, version=self.version, options=self.options,
                           compression=self.compression, identifier=self.identifier, level=1)  # fmt: skip


PTX_ENTRIES = st.builds(
    Built,
    kind=st.just(ImageKind.PTX),
    payload=BYTES_WITHOUT_NUL,
    arch=st.sampled_from(["sm_50", "sm_90", "sm_90a", "sm_100f", "sm_121a"]),
    compression=COMPRESSIONS,
    version=st.tuples(st.integers(0, 99), st.integers(0, 99)),
    options=st.none() | LATIN,
    identifier=LATIN,
)
OTHER_ENTRIES = st.builds(
    Built,
    kind=st.sampled_from([ImageKind.CUBIN, ImageKind.NVVM]),
    # A multiple of eight, as every ELF file is: the container says no size but the padded one.
    payload=st.binary(max_size=300).map(lambda data: data[: len(data) // 8 * 8].replace(b"\x7f", b"e")),
    arch=st.sampled_from(["sm_50", "sm_90", "sm_90a"]),
    compression=COMPRESSIONS,
    version=st.just((0, 0)),
    options=st.none(),
    identifier=LATIN,
)
CONTENTS = st.lists(PTX_ENTRIES | OTHER_ENTRIES, max_size=5)


@given(contents=CONTENTS, trailing=st.binary(max_size=20))
def test_read_is_what_was_built(contents, trailing):
    data = build_container(built.entry() for built in contents)
    container = read_container(data + trailing, "built")
    assert container.size == len(data)
    assert write_container(container) == data + trailing
    assert len(container.images) == len(contents)
    for index, (image, built) in enumerate(zip(container.images, contents, strict=True)):
        assert image.index == index
        assert (image.kind, image.arch, image.compression) == (built.kind, built.arch, built.compression)
        assert (image.data, image.size) == (built.payload, len(built.payload))
        assert (image.options, image.identifier) == (built.options or "", built.identifier)
        assert data[image.offset :].startswith(image.header)
        if built.kind is ImageKind.PTX:
            assert image.version == built.version


SAMPLE = build_container(
    [
        build_entry(ImageKind.PTX, TEXT, "sm_90a", options="-O1", compression=Compression.ZSTD, identifier="k.cu"),
        build_entry(ImageKind.PTX, TEXT, "sm_80", options="", compression=Compression.LZ4),
        build_entry(ImageKind.CUBIN, bytes(64), "sm_80"),
        build_entry(ImageKind.PTX, TEXT, "sm_75"),
    ]
)
FIRST = 16
"""Offset of SAMPLE's first entry, the one in ZSTD."""


@contextlib.contextmanager
def only_format_errors(file: str, data: bytes | bytearray) -> Iterator[None]:
    """Lets a FormatError pass that names the file and a place in it, and nothing else."""
    try:
        yield
    except FormatError as error:
        if not error.file.startswith(file) or not 0 <= error.offset <= len(data):
            raise AssertionError(f"{error.file} at {error.offset}") from error


def read_all(data: bytes) -> None:
    """Everything that can be asked of a container."""
    container = read_container(data, "damaged")
    assert write_container(container) == data
    for image in container.images:
        with only_format_errors("damaged", data):
            assert len(image.data) == image.size
            kernel_names(image)


@given(cut=st.integers(0, len(SAMPLE) - 1))
def test_every_truncation_is_a_format_error(cut):
    with pytest.raises(FormatError) as caught:
        read_container(SAMPLE[:cut], "cut")
    assert caught.value.file == "cut"
    assert 0 <= caught.value.offset <= cut


@given(flips=st.lists(st.integers(0, len(SAMPLE) * 8 - 1), min_size=1, max_size=4))
@settings(max_examples=200)
def test_bit_flips_raise_nothing_but_format_errors(flips):
    data = bytearray(SAMPLE)
    for flip in flips:
        data[flip // 8] ^= 1 << flip % 8
    with only_format_errors("damaged", data):
        read_all(bytes(data))


@given(
    field=st.sampled_from([(0x04, "<I"), (0x08, "<Q"), (0x10, "<I"), (0x14, "<I"), (0x20, "<I"), (0x24, "<I"),
                           (0x28, "<Q"), (0x38, "<Q"), (-8, "<Q"), (-10, "<H"), (0x64, "<I"), (0x60, "<I")]),
    value=st.integers(0, 1 << 64) | st.sampled_from([1 << 31, 1 << 32, 1 << 62, 1 << 63, (1 << 64) - 8]),
)  # fmt: skip
@settings(max_examples=200)
def test_hostile_sizes_raise_nothing_but_format_errors(field, value):
    offset, layout = field
    data = bytearray(SAMPLE)
    struct.pack_into(layout, data, FIRST + offset, value & ((1 << 8 * struct.calcsize(layout)) - 1))
    with only_format_errors("damaged", data):
        read_all(bytes(data))


def changed(offset: int, layout: str, value: int) -> bytes:
    data = bytearray(SAMPLE)
    struct.pack_into(layout, data, offset, value)
    return bytes(data)


@pytest.mark.parametrize(
    ("offset", "layout", "value", "field"),
    [
        (0, "<I", 0x1EE55A01, "content"),
        (4, "<H", 2, "container version"),
        (6, "<H", 8, "container header_size"),
        (8, "<Q", len(SAMPLE), "container"),
        (8, "<Q", 1 << 63, "container"),
        (FIRST + 0x04, "<I", 0x38, "header_size"),
        (FIRST + 0x04, "<I", 1 << 31, "header_size"),
        (FIRST + 0x08, "<Q", 1 << 63, "payload_size"),
        (FIRST + 0x10, "<I", 1 << 31, "compressed_size"),
        (FIRST + 0x14, "<I", 1 << 20, "options"),
        (FIRST + 0x20, "<I", 1 << 20, "name"),
        (FIRST + 0x24, "<I", 1 << 20, "name"),
    ],
)
def test_a_wrong_field_is_named(offset, layout, value, field):
    with pytest.raises(FormatError) as caught:
        read_container(changed(offset, layout, value), "wrong")
    assert field in caught.value.field
    assert caught.value.file == "wrong"


@pytest.mark.parametrize("size", [1 << 63, 1 << 40, 1 << 31, 1 << 30, len(TEXT), len(TEXT) + 2])
def test_a_wrong_decoded_size_is_refused_without_allocating_it(size):
    for first in (FIRST, read_container(SAMPLE, "sample").images[1].offset):
        container = read_container(changed(first + 0x38, "<Q", size), "wrong")
        image = next(image for image in container.images if image.offset == first)
        with pytest.raises(FormatError, match=r"uncompressed_size|LZ4"):
            _ = image.data


def test_a_zstd_frame_that_claims_more_than_its_entry():
    frame = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 62) + b"\x01\0\0"
    entry = bytearray(build_entry(ImageKind.PTX, b"", "sm_90", compression=Compression.ZSTD))
    payload = frame + bytes(-len(frame) % 8)
    struct.pack_into("<QI", entry, 8, len(payload), len(frame))
    (image,) = read_container(build_container([bytes(entry[:64]) + payload]), "claim").images
    with pytest.raises(FormatError, match="ZSTD content size"):
        _ = image.data


def test_a_size_without_a_known_compression():
    """Some later compression: kept, and named when it is asked for."""
    data = changed(FIRST + 0x28, "<Q", 0x11 | 1 << 40)
    container = read_container(data, "later")
    assert write_container(container) == data
    with pytest.raises(FormatError, match=r"flags.*0x10000000011"):
        _ = container.images[0].data


def test_unknown_kinds_and_fields_are_kept():
    known = build_entry(ImageKind.PTX, TEXT, "sm_90")
    unknown = bytearray(build_entry(ImageKind.CUBIN, b"a future kind...", "sm_80"))
    # Its name and options may mean anything; reserved bits and words as well.
    struct.pack_into("<HH", unknown, 0, 0x77, 0x0203)
    struct.pack_into("<IIQQ", unknown, 0x20, 0xFFFF, 0xFFFF, 1 << 60, 7)
    data = build_container([known, bytes(unknown), known])
    container = read_container(data, "future")
    assert [image.kind for image in container.images] == [ImageKind.PTX, ImageKind.UNKNOWN, ImageKind.PTX]
    assert container.images[1].data == b"a future kind..."
    assert kernel_names(container.images[1]) == ()
    assert write_container(container) == data


def longer_header(entry: bytes) -> bytes:
    """The entry as nvcc 12.4 and libnvfatbin write it: eight zero bytes more before the name and the options."""
    header = bytearray(entry[:64])
    (size,) = struct.unpack_from("<I", header, 4)
    struct.pack_into("<I", header, 4, size + 8)
    tail = bytearray(entry[64:size])
    for field in (0x14, 0x20):
        (offset,) = struct.unpack_from("<I", header, field)
        if offset:
            struct.pack_into("<I", header, field, offset + 8)
            if field == 0x14:
                (text,) = struct.unpack_from("<I", entry, offset)
                struct.pack_into("<I", tail, offset - 64, text + 8)
    return bytes(header) + bytes(8) + bytes(tail) + entry[size:]


def test_headers_of_0x48_bytes_crlf_and_utf8():
    text = TEXT.replace(b"\n", b"\r\n") + b"// caf\xc3\xa9\r\n"
    entry = build_entry(ImageKind.PTX, text, "sm_90", options="-O1 ", identifier="k.cu")
    data = build_container([longer_header(entry), longer_header(entry)])
    container = read_container(data, "12.4")
    for image in container.images:
        assert (image.data, image.options, image.identifier) == (text, "-O1 ", "k.cu")
    assert write_container(container) == data


def test_containers_with_zero_bytes_between_them(tmp_path):
    file = tmp_path / "two.fatbin"
    gaps = bytes(4096), bytes(8), b"", bytes(24)
    file.write_bytes(b"".join(SAMPLE + gap for gap in gaps))
    containers = read_file(file)
    assert [container.index for container in containers] == [0, 1, 2, 3]
    data = file.read_bytes()
    for container in containers:
        assert data[container.offset : container.offset + container.size] == SAMPLE == write_container(container)
        for image in container.images:
            assert data[image.offset :].startswith(image.header)
            assert image.header


def test_something_else_between_containers(tmp_path):
    file = tmp_path / "else.fatbin"
    file.write_bytes(SAMPLE + bytes(16) + b"rubbish." + SAMPLE)
    with pytest.raises(FormatError) as caught:
        read_file(file)
    assert (caught.value.offset, caught.value.field) == (len(SAMPLE) + 16, "container magic")


def test_the_magic_in_a_payload_is_no_container(tmp_path):
    file = tmp_path / "nested.fatbin"
    file.write_bytes(build_container([build_entry(ImageKind.NVVM, SAMPLE, "sm_80")]))
    ((image,),) = (container.images for container in read_file(file))
    assert image.data == SAMPLE


def test_exchanged_images_fit_into_the_size():
    container = read_container(SAMPLE, "sample")
    shorter = write_container(dataclasses.replace(container, images=container.images[1:3]))
    assert [image.data for image in read_container(shorter, "shorter").images] == [
        image.data for image in container.images[1:3]
    ]
    assert shorter == build_container(image.header + bytes(image.payload) for image in container.images[1:3])


@pytest.mark.parametrize("end", [b"", b"\0", b"\0\0\0rest"])
def test_bare_ptx(end):
    data = b"\n// made by hand\n/* .target sm_20 */\n" + TEXT + end
    container = read_container(data, "text")
    (image,) = container.images
    assert (container.kind, container.section, container.size) == ("file", "", len(data))
    assert (image.kind, image.arch, image.compression) == (ImageKind.PTX, "sm_90", Compression.NONE)
    assert image.data == data.partition(b"\0")[0]
    assert (image.size, image.stored_size) == (len(image.data), len(data))
    assert kernel_names(image) == ("add_one", "second")
    assert write_container(container) == data


def test_bare_cubin(cubins):
    for arch, data in cubins.items():
        container = read_container(memoryview(data), arch)
        (image,) = container.images
        assert (container.kind, image.kind, image.arch) == ("file", ImageKind.CUBIN, arch)
        assert image.data == data == write_container(container)
        assert set(kernel_names(image)) == {"add_one", "second"}


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "empty"),
        (b"hello, world\nand more", "text that begins with 'hello, world'"),
        (b"\x01\x02\x03\x04", "01 02 03 04"),
        (struct.pack("<IIQQ", 0x466243B1, 1, 0, 0), "wrapper"),
        (b"!<arch>\n", "archive"),
        (b"\x7fELF", "cut off"),
        (b"\x7fELF\x01" + bytes(59), "01 00"),
        (b"\x7fELF\x02\x01\x01" + bytes(57), "0"),
    ],
)
def test_what_is_no_image_is_named(data, found):
    with pytest.raises(FormatError) as caught:
        read_container(data, "other")
    assert found in caught.value.found


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((ImageKind.CODE_OBJECT, b"", "sm_90"), "code-object"),
        ((ImageKind.PTX, b"", "gfx90a"), "gfx90a"),
        ((ImageKind.PTX, b"a\0b", "sm_90"), "NUL"),
    ],
)
def test_what_cannot_be_built(arguments, message):
    with pytest.raises(ValueError, match=message):
        build_entry(*arguments)
    with pytest.raises(ValueError, match="options"):
        build_entry(ImageKind.CUBIN, b"", "sm_90", options="-O1")
    with pytest.raises(ValueError, match="zlib"):
        build_entry(ImageKind.PTX, b"", "sm_90", compression=Compression.ZLIB)


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_cubins_raise_nothing_but_format_errors(cubins, data):
    arch = data.draw(st.sampled_from(sorted(cubins)))
    cubin = bytearray(cubins[arch])
    if data.draw(st.booleans()):
        del cubin[data.draw(st.integers(0, len(cubin) - 1)) :]
    for _ in range(data.draw(st.integers(0, 6))):
        if len(cubin) > 1:
            flip = data.draw(st.integers(0, len(cubin) - 1))
            cubin[flip] ^= data.draw(st.integers(1, 255))
    for read in (read_cubin, read_container):
        with only_format_errors("damaged", cubin):
            read(bytes(cubin), "damaged")


@given(data=st.data())
@settings(max_examples=120, deadline=None)
def test_damaged_tables_of_cubins_raise_nothing_but_format_errors(cubins, data):
    """Numbers of the ELF header and the section headers, set to values that matter."""
    cubin = bytearray(cubins["sm_90a"])
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    places = [*range(0x20, 0x40, 2), *range(table, len(cubin) - 8, 4)]
    for _ in range(data.draw(st.integers(1, 3))):
        layout = data.draw(st.sampled_from(["<H", "<I", "<Q"]))
        size = struct.calcsize(layout)
        value = data.draw(st.sampled_from([0, 1, 7, len(cubin), (1 << 8 * size) - 1, 1 << 8 * size - 1, 0xFF00]))
        place = min(data.draw(st.sampled_from(places)), len(cubin) - size)
        struct.pack_into(layout, cubin, place, value & ((1 << 8 * size) - 1))
    for read in (read_cubin, read_container):
        with only_format_errors("damaged", cubin):
            read(bytes(cubin), "damaged")
