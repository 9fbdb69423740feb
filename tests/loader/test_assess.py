"""For which images the hook asks for twins: those with PTX; machine code alone only if a target of the run takes it;
and none of a whole image where each kernel asks for its own."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

import pytest

from neutrino.fatbin import ImageKind, build_container, build_entry
from neutrino.loader.build import CSRC
from tests.loader.conftest import HERE, compile_c

CUBIN = struct.pack("<4sBBB9xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 2, 190, 1, 0, 0, 0, 0, 64, 0, 0, 0, 0, 0)
TEXT = b".version 8.0\n.target sm_90\n.address_size 64\n"
IMAGES = {
    "text": TEXT,
    "fatbin": build_container([build_entry(ImageKind.PTX, TEXT, "sm_90")]),
    "both": build_container([build_entry(ImageKind.CUBIN, CUBIN, "sm_90"), build_entry(ImageKind.PTX, TEXT, "sm_90")]),
    "cubin": CUBIN,
    "code": build_container([build_entry(ImageKind.CUBIN, CUBIN, "sm_90")]),
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("assessed") / "assessed"
    names = ("image/assess", "image/image_bytes", "base/settings", "base/memory", "base/sha256")
    compile_c(target, str(HERE / "programs" / "assessed.c"), *(str(CSRC / f"{name}.c") for name in names))
    return target


@pytest.mark.parametrize(
    ("setting", "how", "of_text", "of_code"),
    [
        (None, "", "asked", "no-ptx"),
        ("", "w", "asked", "no-ptx"),
        ("1", "", "asked", "asked"),
        ("1", "w", "asked", "asked"),
        # A kernel's twin may be of its machine code, which its own request finds out.
        ("kernels", "", "asked", "no-ptx"),
        ("kernels", "w", "no-ptx", "no-ptx"),
        ("kernels", "wk", "asked", "no-ptx"),
        ("only", "", "no-ptx", "no-ptx"),
        ("only", "k", "asked", "no-ptx"),
    ],
)
def test_what_is_asked_for_is_what_the_run_says(
    program: Path, tmp_path: Path, setting: str | None, how: str, of_text: str, of_code: str
) -> None:
    for name, image in IMAGES.items():
        (tmp_path / name).write_bytes(image)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NEUTRINO_")}
    if setting is not None:
        environment["NEUTRINO_MACHINE_CODE"] = setting
    command = [program, how, *(tmp_path / name for name in IMAGES)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert dict(zip(IMAGES, done.stdout.split(), strict=True)) == {
        "text": of_text, "fatbin": of_text, "both": of_text, "cubin": of_code, "code": of_code,
    }  # fmt: skip
