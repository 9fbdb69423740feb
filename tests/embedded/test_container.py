"""The reader of images against containers written here, and by NVIDIA's fatbinary where it is."""

from __future__ import annotations

import contextlib
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import lz4.block
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from neutrino.emulator.loaded_ptx import ImageError, ImageFault, find_ptx

PTX = 1
CUBIN = 2
LZ4 = 0x2000
ZSTD = 0x8000
ARCH_SPECIFIC = 0x100000


def entry(text: bytes, arch: int, flags: int = 0, kind: int = PTX) -> bytes:
    data = text
    if flags & LZ4:
        data = lz4.block.compress(text, store_size=False)
    elif flags & ZSTD:
        data = zstandard.ZstdCompressor().compress(text)
    stored = len(data)
    payload = data + bytes(-stored % 8)
    compressed = stored if flags & (LZ4 | ZSTD) else 0
    size = len(text) if compressed else 0
    fields = (kind, 0x101, 64, len(payload), compressed, 0, 0, 8, arch, 0, 0, flags | 0x11, 0, size)
    return struct.pack("<HHIQIIHHIIIQQQ", *fields) + payload


def container(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def text(arch: str) -> bytes:
    return f".version 8.0\n.target {arch}\n.address_size 64\n".encode() * 3


@pytest.mark.parametrize("flags", [0, LZ4, ZSTD])
def test_text_comes_back_however_it_is_stored(flags: int) -> None:
    assert find_ptx(container(entry(text("sm_80"), 80, flags))) == text("sm_80").decode()


def test_the_highest_that_the_device_takes_is_taken() -> None:
    entries = [
        entry(b"\x7fELF", 90, kind=CUBIN),
        entry(text("sm_70"), 70, LZ4),
        entry(text("sm_90"), 90, ZSTD),
        entry(text("sm_80"), 80),
        entry(text("sm_100"), 100),
    ]
    assert "sm_90\n" in find_ptx(container(*entries))
    entries.append(entry(text("sm_90a"), 90, ARCH_SPECIFIC))
    assert "sm_90a" in find_ptx(container(*entries))
    assert "sm_70" in find_ptx(container(entry(text("sm_80a"), 80, ARCH_SPECIFIC), entries[1]))


@pytest.mark.parametrize(
    ("image", "said"),
    [
        (container(entry(b"\x7fELF", 90, kind=CUBIN)), "machine code only"),
        (container(entry(text("sm_100"), 100)), "sm_100"),
        (container(), "it holds none"),
    ],
)
def test_what_holds_no_ptx_for_the_device_is_no_binary(image: bytes, said: str) -> None:
    with pytest.raises(ImageError, match=said) as caught:
        find_ptx(image)
    assert caught.value.fault is ImageFault.NO_BINARY


@pytest.mark.parametrize(
    ("image", "fault"),
    [
        (text("sm_91"), ImageFault.INVALID_PTX),
        (text("sm_120a"), ImageFault.INVALID_PTX),
        (text("sm_80a"), ImageFault.INVALID_PTX),
        (b".version 9.1\n.target sm_90\n", ImageFault.UNSUPPORTED_PTX_VERSION),
        (b".version 99.0\n.target sm_120\n", ImageFault.UNSUPPORTED_PTX_VERSION),
    ],
)
def test_text_for_newer_devices_and_drivers_is_refused(image: bytes, fault: ImageFault) -> None:
    with pytest.raises(ImageError) as caught:
        find_ptx(image)
    assert caught.value.fault is fault
    assert find_ptx(b".version 9.0\n.target sm_90a\n")


@given(st.data())
def test_a_damaged_container_is_an_error_and_nothing_worse(data: st.DataObject) -> None:
    image = bytearray(container(entry(text("sm_70"), 70, LZ4), entry(text("sm_80"), 80, ZSTD)))
    for _ in range(data.draw(st.integers(1, 4))):
        image[data.draw(st.integers(4, len(image) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(5, len(image)))
    found = ".version"
    with contextlib.suppress(ImageError):
        found = find_ptx(bytes(image[:cut]))
    assert ".version" in found


def _fatbinary() -> str | None:
    beside = Path(sys.prefix) / "lib"
    found = sorted(beside.glob("python*/site-packages/nvidia/cu13/bin/fatbinary"))
    return str(found[0]) if found else shutil.which("fatbinary")


@pytest.mark.parametrize("mode", ["none", "speed", "size"])
def test_what_nvidias_tool_packs_is_read(tmp_path: Path, mode: str) -> None:
    tool = _fatbinary()
    if tool is None:
        pytest.skip("no fatbinary on this machine")
    source = Path(__file__).parent / "kernels.ptx"
    packed = tmp_path / "kernels.fatbin"
    subprocess.run(
        [
            tool,
            "--create",
            str(packed),
            "--64",
            f"--compress-mode={mode}",
            f"--image3=kind=ptx,sm=80,file={source}",
        ],
        check=True,
        capture_output=True,
    )
    assert statements(find_ptx(packed.read_bytes())) == statements(source.read_text())


def statements(ptx: str) -> list[str]:
    """The lines, without the comments and white space that the tool drops."""
    lines = [line.split("//")[0].strip() for line in ptx.splitlines()]
    return [line for line in lines if line]


@pytest.mark.parametrize(
    ("head", "fault"),
    [
        (".version 7.8\n.target sm_90", None),
        (".version 7.7\n.target sm_90", ImageFault.INVALID_PTX),
        (".version 8.0\n.target sm_90a", None),
        (".version 7.8\n.target sm_90a", ImageFault.INVALID_PTX),
        (".version 6.3\n.target sm_75", None),
        (".version 6.2\n.target sm_75", ImageFault.INVALID_PTX),
        (".version 8.0", ImageFault.INVALID_PTX),
        (".version 9.1\n.target sm_90", ImageFault.UNSUPPORTED_PTX_VERSION),
    ],
)
def test_versions_and_targets_that_do_not_go_together(head: str, fault: ImageFault | None) -> None:
    image = f"{head}\n.address_size 64\n".encode()
    if fault is None:
        assert find_ptx(image) == image.decode()
        return
    with pytest.raises(ImageError) as caught:
        find_ptx(image)
    assert caught.value.fault == fault
