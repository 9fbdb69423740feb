"""PTX that passed through a program's process is kept for later runs, in which the machine code comes from a file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from neutrino.fatbin import ImageKind, build_container, build_entry
from neutrino.maker.passed import keep_passed
from neutrino.maker.serving import TwinSettings, make_entry
from neutrino.maker.store import Cache
from neutrino.probing.selection import Selection
from neutrino.run.probes import RunProbes
from neutrino.toolchain.ptxas import Assembler
from neutrino.verification import load_probes

TEXT = b""".version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 p)
{
ret;
}
"""
CODE = b"\x7fELF" + bytes(60)


def image_of(code: bytes, identifier: str = "neutrino: passed by NVRTC", text: bytes = TEXT) -> bytes:
    """What the hook asks for, of machine code without PTX."""
    return build_container([
        build_entry(ImageKind.PTX, text, "sm_90", identifier=identifier), build_entry(ImageKind.CUBIN, code, "sm_90")
    ])  # fmt: skip


@pytest.mark.parametrize("padding", range(8))
def test_what_is_kept(tmp_path: Path, padding: int) -> None:
    """By the machine code with zeros up to a multiple of 8 bytes, as the hook finds it."""
    code = b"\x7fELF" + bytes(range(1, 61 + padding))
    path = keep_passed(tmp_path, image_of(code))
    name = hashlib.sha256(code + bytes(-len(code) % 8)).hexdigest()
    assert path == tmp_path / "passed" / name[:2] / f"{name}.ptx"
    assert path.read_bytes() == b"NVRTC".ljust(32, b"\0") + hashlib.sha256(TEXT).digest() + TEXT
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "image",
    [
        image_of(CODE, "a.cu"), image_of(CODE, "x neutrino: passed by NVRTC"), TEXT, b"",
        image_of(CODE, "neutrino: passed by " + 40 * "x"), b"neutrino: passed by NVRTC",
        build_container([build_entry(ImageKind.PTX, TEXT, "sm_90", identifier="neutrino: passed by NVRTC")]),
        image_of(CODE)[:200],
    ],
)  # fmt: skip
def test_other_images_are_not_kept(tmp_path: Path, image: bytes) -> None:
    assert keep_passed(tmp_path, image) is None
    assert not list(tmp_path.iterdir())


def test_it_is_kept_when_twins_are_made(assembler: Assembler, tmp_path: Path) -> None:
    settings = TwinSettings(
        RunProbes.of(load_probes(["block_sched"])), Selection((), ()), bytes(32), Cache(tmp_path / "cache"), None
    )  # fmt: skip
    image = image_of(assembler.assemble(TEXT.decode(), "sm_90").cubin)
    version = assembler.version[0] * 1000 + assembler.version[1] * 10
    assert make_entry(image, "sm_90", version, bytes(32), settings)
    (path,) = (tmp_path / "cache" / "passed").glob("*/*.ptx")
    assert path.read_bytes().endswith(TEXT)
