"""What the hook keeps of PTX that passes through the process: the fatbin that it makes, hostile text, many threads."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from neutrino.fatbin import ImageKind, build_container, build_entry
from neutrino.loader.build import CSRC
from tests.once import SANITIZERS

from .conftest import HERE, compile_c
from .test_assess import CUBIN

TEXT = b".version 8.0\n.target sm_90a, texmode_independent\n.address_size 64\n"
LIMITS = (
    "-DNT_PASSED_MOST=64u", "-DNT_LTOIR_MOST_INPUTS=4u", "-DNT_LTOIR_MOST_BYTES=4000u",
    "-DNT_LTOIR_MOST_BYTES_OF_ALL=9000u",
)  # fmt: skip
SOURCES = ("image/passed", "image/links", "image/ltoir", "image/image_bytes", "base/memory", "base/lock", "base/sha256")


@pytest.fixture(scope="module", params=["address", "thread"])
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a sanitizer, and a store that drops most of what it is given."""
    target = tmp_path_factory.mktemp("kept") / "kept"
    sources = (str(HERE / "programs" / "kept.c"), *(str(CSRC / f"{name}.c") for name in SOURCES))
    compile_c(target, *SANITIZERS[request.param], *LIMITS, *sources)
    return target


def both(program: Path, folder: Path, cubin: bytes, text: bytes) -> tuple[bytes, str]:
    """The fatbin that the hook makes of them, or why there is none."""
    (folder / "cubin").write_bytes(cubin)
    (folder / "text").write_bytes(text)
    done = subprocess.run(
        [program, "both", "sm_90", folder / "cubin", folder / "text"], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr.decode()


@pytest.mark.parametrize("ending", [b"", b"\0", b"\0 not PTX any more"])
@pytest.mark.parametrize("line", [b"", b"// .target sm_100\n", b"\t"])
def test_a_fatbin_of_both_is_as_others_write_it(program: Path, tmp_path: Path, ending: bytes, line: bytes) -> None:
    text = TEXT.replace(b".target", line + b".target", 1)
    expected = build_container([
        build_entry(ImageKind.PTX, text, "sm_90a", identifier="neutrino: passed by a test"),
        build_entry(ImageKind.CUBIN, CUBIN, "sm_90"),
    ])  # fmt: skip
    assert both(program, tmp_path, CUBIN, text + ending) == (expected, "")


@pytest.mark.parametrize(
    "text",
    [
        b"", b"\0", b".target", b".target ", b".target sm_", b".target\nsm_90", b".target sm_x", b" x.target sm_90",
        b".targetsm_", b".target compute_90", b"\xff" * 100,
    ],
)  # fmt: skip
def test_text_without_an_architecture_is_not_taken(program: Path, tmp_path: Path, text: bytes) -> None:
    assert both(program, tmp_path, CUBIN, text) == (b"", "its PTX states no architecture")


def test_a_cubin_with_its_own_ptx_is_left_to_that(program: Path, tmp_path: Path) -> None:
    section = b"\0.nv_debug_ptx_txt\0"
    assert both(program, tmp_path, CUBIN + section, TEXT)[0] != b""
    # Within the bytes that the ELF header spans: here by a program header.
    header = bytearray(CUBIN)
    header[0x20:0x28] = (len(CUBIN) + len(section)).to_bytes(8, "little")
    header[0x38:0x3A] = (1).to_bytes(2, "little")
    assert both(program, tmp_path, bytes(header) + section + bytes(56), TEXT) == (b"", "")


@pytest.mark.parametrize(
    ("count", "size", "kept"), [(1, 100, 3), (4, 1000, 2), (5, 10, 0), (1, 4000, 2), (1, 4001, 0), (2, 2001, 0)]
)
def test_inputs_of_links_are_kept_within_limits(program: Path, count: int, size: int, kept: int) -> None:
    """Of a link all or none, and of all links together no more than the limit, as long as they are in progress."""
    done = subprocess.run([program, "ltoir", str(count), str(size)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == (f"{kept}\n" * 2, "", 0)


def test_threads_find_the_ptx_of_the_cubin_that_they_ask_for(program: Path) -> None:
    done = subprocess.run([program, "threads"], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("1 0\n", "", 0)
