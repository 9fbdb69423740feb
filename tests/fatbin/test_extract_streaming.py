"""Listings of files with many images: what they hold in memory and how much they decode, counted."""

from __future__ import annotations

import io
import json
import struct
import sys
import tracemalloc
from pathlib import Path

import msgpack
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from neutrino.cli.extract import main
from neutrino.cli.json_writer import JsonWriter
from neutrino.fatbin import Compression, build_bundle

IMAGES = 48
KERNELS = 400
PADDING = 1 << 19
NAME = "_ZN7product" + "".join("6number" for _ in range(60)) + "E"


def code_object(kernels: int, padding: int) -> bytes:
    """An ELF file for gfx90a with metadata of kernels, and zeros after them."""
    rows = [
        {
            ".name": f"{NAME}{number}", ".symbol": f"k{number}.kd", ".vgpr_count": 8, ".sgpr_count": 16,
            ".group_segment_fixed_size": 0, ".private_segment_fixed_size": 0, ".kernarg_segment_size": 8,
            ".wavefront_size": 64, ".max_flat_workgroup_size": 256,
        }
        for number in range(kernels)
    ]  # fmt: skip
    metadata = msgpack.packb({"amdhsa.kernels": rows})
    note = struct.pack("<III", 7, len(metadata), 32) + b"AMDGPU\0\0" + metadata + bytes(-len(metadata) % 4)
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1\x40\2", 3, 224, 1, 0, 64, 0, 0x3F, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 4, 4, 120, 0, 0, len(note), len(note), 4)
    return header + segment + note + bytes(padding)


@pytest.fixture(scope="module")
def many_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One compressed bundle, larger than what is kept decoded."""
    entries = [
        (f"hipv4-amdgcn-amd-amdhsa--gfx90a{'+' * number}", code_object(KERNELS, PADDING)) for number in range(IMAGES)
    ]
    file = tmp_path_factory.mktemp("streaming") / "many.hipfb"
    file.write_bytes(build_bundle(entries, Compression.ZSTD))
    return file


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each piece that was decoded."""
    pieces: list[int] = []

    class Reader:
        def __init__(self, reader: zstandard.ZstdDecompressionReader) -> None:
            self._reader = reader

        def read(self, size: int) -> bytes:
            piece = self._reader.read(size)
            pieces.append(len(piece))
            return piece

    class Decompressor:
        def __init__(self, **options: int) -> None:
            self._decompressor = decompressor(**options)

        def stream_reader(self, payload: memoryview) -> Reader:
            return Reader(self._decompressor.stream_reader(payload))

    decompressor = zstandard.ZstdDecompressor
    monkeypatch.setattr(zstandard, "ZstdDecompressor", Decompressor)
    return pieces


@pytest.mark.parametrize(
    "asked", [("--json",), ("--json", "--resources"), ("--resources",), ("--kernels",)], ids=" ".join
)
def test_neither_the_output_nor_the_images_are_held(asked, many_images, decoded, tmp_path, monkeypatch):
    out = tmp_path / "out"
    with out.open("w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        tracemalloc.start()
        try:
            assert main([*asked, str(many_images)]) == 0
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    size = IMAGES * len(code_object(KERNELS, PADDING))
    # Once for the kinds of the images, and once for what is in them.
    assert size < sum(decoded) < 2.5 * size
    # An image decoded and taken apart, what of it is written, and 4 MiB of rows of tables.
    assert peak < 10 << 20
    if "--json" in asked:
        text = out.read_text()
        assert len(text) > (16 << 20)
        images = json.loads(text)["containers"][0]["images"]
        assert [len(image["kernels"]) for image in images] == [KERNELS] * IMAGES
        assert text == json.dumps(json.loads(text), indent=2) + "\n"


def test_damage_midway_leaves_the_document_whole(tmp_path, capsys):
    entries = [(f"hipv4-amdgcn-amd-amdhsa--gfx90{number}", code_object(2, 0)) for number in range(3)]
    data = bytearray(build_bundle(entries))
    second = data.index(b"\x7fELF", data.index(b"\x7fELF") + 1)
    data[second + 4] = 1
    file = tmp_path / "damaged.hipfb"
    file.write_bytes(data)
    assert main(["--json", "--resources", str(file)]) == 2
    output = capsys.readouterr()
    images = json.loads(output.out)["containers"][0]["images"]
    assert [len(image["kernels"]) for image in images] == [2, 0, 2]
    assert images[1]["fault"] in output.err


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def written(value: object, json_writer: JsonWriter, depth: int) -> None:
    """Write a value, opened by hand as deep as that."""
    if depth and isinstance(value, dict):
        json_writer.begin_object()
        for key, member in value.items():
            json_writer.key(key)
            written(member, json_writer, depth - 1)
        json_writer.end()
    elif depth and isinstance(value, list):
        json_writer.begin_list()
        for member in value:
            written(member, json_writer, depth - 1)
        json_writer.end()
    else:
        json_writer.value(value)


@given(VALUES, st.integers(0, 4))
def test_as_the_standard_library_writes_it(value, depth):
    text = io.StringIO()
    written(value, JsonWriter(text.write), depth)
    assert text.getvalue() == json.dumps(value, indent=2)
