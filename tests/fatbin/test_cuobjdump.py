"""Containers that nvcc makes, judged by cuobjdump and fatbinary."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from fatbin_inputs import FATBINS, need, run

from neutrino.fatbin import (
    Compression,
    Image,
    ImageKind,
    build_container,
    build_entry,
    read_container,
    read_file,
    write_container,
)

# cuobjdump lists an obfuscated or plain LTO image only by name, it does not extract it.
KINDS = {ImageKind.PTX: "-xptx", ImageKind.CUBIN: "-xelf"}


def extracted(cuobjdump: str, file: Path, kind: ImageKind, folder: Path) -> list[bytes]:
    """What cuobjdump extracts, in the file's order."""
    folder.mkdir()
    said = run(cuobjdump, "-all", KINDS[kind], "all", file.resolve(), cwd=folder)
    names = re.findall(r"^Extracting .* (\d+): (\S+)", said, re.MULTILINE)
    assert len({name for _, name in names}) == len(names) == len(list(folder.iterdir()))
    return [(folder / name).read_bytes() for _, name in names]


def of_kind(images: tuple[Image, ...], kind: ImageKind) -> list[Image]:
    return [image for image in images if image.kind is kind]


@pytest.mark.parametrize("build", FATBINS)
def test_same_bytes_as_cuobjdump(build, fatbins, cuobjdump, tmp_path):
    (container,) = read_file(fatbins[build])
    for kind in KINDS:
        images = of_kind(container.images, kind)
        theirs = extracted(cuobjdump, fatbins[build], kind, tmp_path / kind.value)
        assert [image.data for image in images] == theirs
        assert [image.size for image in images] == list(map(len, theirs))
    assert of_kind(container.images, ImageKind.PTX)


@pytest.mark.parametrize("build", FATBINS)
def test_written_back_unchanged(build, fatbins):
    data = fatbins[build].read_bytes()
    container = read_container(data, build)
    assert write_container(container) == data
    assert (container.offset, container.size, container.trailing) == (0, len(data), b"")


def test_what_the_header_says(fatbins):
    images = {build: read_file(path)[0].images for build, path in fatbins.items()}
    both = [(kind, arch) for arch in ("sm_80", "sm_90a", "sm_100f") for kind in (ImageKind.CUBIN, ImageKind.PTX)]
    for build in ("default", "none", "lz4", "size", "lz4-all"):
        assert Counter((image.kind, image.arch) for image in images[build]) == Counter(both)
    ptx, cubin, none = ImageKind.PTX, ImageKind.CUBIN, Compression.NONE
    modes = {
        "default": {(ptx, Compression.ZSTD), (cubin, none)},
        "none": {(ptx, none), (cubin, none)},
        "lz4": {(ptx, Compression.LZ4), (cubin, none)},
        "size": {(ptx, Compression.ZSTD), (cubin, Compression.ZSTD)},
        "lz4-all": {(ptx, Compression.LZ4), (cubin, Compression.LZ4)},
    }
    for build, expected in modes.items():
        assert {(image.kind, image.compression) for image in images[build]} == expected
    assert all(image.stored_size < image.size for image in images["size"])
    assert {image.options.strip() for image in of_kind(images["default"], ptx)} == {""}
    for image in of_kind(images["lineinfo"], ptx):
        assert "--generate-line-info" in image.options
        assert "-maxrregcount=40" in image.options
        assert image.identifier == "kernels.cu" or image.identifier.endswith("/kernels.cu")
    assert all("--compile-only" in image.options for image in of_kind(images["relocatable"], ptx))
    assert [image.arch for image in images["same-arch"]] == ["sm_90", "sm_90a", "sm_100"]


def test_obfuscated_lto_is_kept_and_not_decoded(fatbins):
    (obfuscated,) = of_kind(read_file(fatbins["lto"])[0].images, ImageKind.NVVM)
    assert obfuscated.obfuscated
    assert obfuscated.data == bytes(obfuscated.payload[: obfuscated.stored_size])
    (plain,) = of_kind(read_file(fatbins["lto-stored"])[0].images, ImageKind.NVVM)
    assert not plain.obfuscated
    assert plain.arch == "sm_80"
    assert plain.data[:4] == b"\xed\x43\x4e\x7f"


@pytest.mark.parametrize(
    ("build", "mode"), [("none", "none"), ("default", "balance"), ("size", "size"), ("lineinfo", "none")]
)
def test_built_as_fatbinary_builds(build, mode, fatbins, tmp_path):
    """Images taken out of a container and put together again, by us and by fatbinary."""
    fatbinary = need("fatbinary")
    images = [image for image in read_file(fatbins[build])[0].images if image.arch != "sm_100f"]
    entries, arguments = [], []
    for image in images:
        file = tmp_path / f"{image.index}.{image.kind.value}"
        file.write_bytes(image.data)
        kind = "elf" if image.kind is ImageKind.CUBIN else "ptx"
        arguments.append(f"--image3=kind={kind},sm={image.arch.removeprefix('sm_')},file={file}")
        compression = image.compression if mode != "none" else Compression.NONE
        options = "" if image.kind is ImageKind.PTX else None
        level = 5 if mode == "balance" else 19
        entry = build_entry(image.kind, image.data, image.arch, version=image.version, options=options,
                            compression=compression, level=level)  # fmt: skip
        entries.append(entry)
    target = tmp_path / "theirs.fatbin"
    run(fatbinary, "-64", f"--compress-mode={mode}", f"--create={target}", *arguments)
    theirs = target.read_bytes()
    ours = build_container(entries)
    assert [image.data for image in read_container(theirs, "theirs").images] == [image.data for image in images]
    assert ours == theirs


@pytest.mark.parametrize("build", ["default", "lineinfo", "debug", "relocatable"])
def test_rebuilt_entry_is_the_entry(build, fatbins):
    """An entry of nvcc, built anew from what was read, has the same bytes: .nv.compat and all."""
    images = read_file(fatbins[build])[0].images
    assert len(images) >= 2
    for image in images:
        options = image.options if image.kind is ImageKind.PTX else None
        again = build_entry(image.kind, image.data, image.arch, version=image.version, options=options,
                            compression=image.compression, identifier=image.identifier,
                            flags=image.flags & 0x13)  # fmt: skip
        assert again == image.header + bytes(image.payload), image


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4, Compression.ZSTD])
def test_cuobjdump_reads_what_is_built(compression, cubins, cuobjdump, tmp_path):
    texts = [f".version 8.0\n.target {arch}\n.address_size 64\n".encode() for arch in ("sm_75", "sm_90a")]
    texts.append(b".version 8.0\r\n.target sm_90\r\n// caf\xc3\xa9\r\n")
    entries = [
        build_entry(ImageKind.PTX, text, arch, options="-O1", compression=compression)
        for text, arch in zip(texts, ("sm_75", "sm_90a", "sm_90"), strict=True)
    ]
    entries += [build_entry(ImageKind.CUBIN, data, arch, compression=compression) for arch, data in cubins.items()]
    file = tmp_path / "built.fatbin"
    file.write_bytes(build_container(entries))
    assert extracted(cuobjdump, file, ImageKind.PTX, tmp_path / "ptx") == texts
    assert extracted(cuobjdump, file, ImageKind.CUBIN, tmp_path / "cubin") == list(cubins.values())
    assert [image.arch for image in read_file(file)[0].images] == ["sm_75", "sm_90a", "sm_90", *cubins]
