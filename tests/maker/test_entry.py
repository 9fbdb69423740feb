"""Cache entries: what is written is read back, and a damaged entry is refused."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import subprocess
import sysconfig
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.abi.entries import TWIN_KERNEL, TWINS_HEADER
from neutrino.abi.levels import LEVELS, Level
from neutrino.abi.probe_block import block_size
from neutrino.abi.reasons import Reason
from neutrino.abi.results import MAP_DESCRIPTOR
from neutrino.errors import FormatError, NeutrinoError, Span
from neutrino.loader import build
from neutrino.maps.c_header import c_header
from neutrino.maps.declaration import Map
from neutrino.maps.log import Log
from neutrino.maps.registry import ARRAY, SUM
from neutrino.twins.cache_entry import DIGESTED_FROM, Entry, KernelEntry, MapEntry, read_entry, write_entry

CSRC = Path(build.__file__).parent / "csrc"
KEY = int(TWINS_HEADER.dtype.fields["key"][1])
NAMES = st.text(
    st.characters(codec="ascii", exclude_characters="\0", categories=["L", "N", "P"]), min_size=1, max_size=20
)
FILE_NAMES = NAMES.filter(lambda name: name[0] != "." and "/" not in name)
FILES = st.dictionaries(FILE_NAMES, st.binary(max_size=60), max_size=3)
DETAILS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)


@st.composite
def kernels(draw: st.DrawFn, maps: Sequence[Map], images: int) -> KernelEntry:
    """Those that the hook can launch, and those that have a reason."""
    reason = draw(st.sampled_from(Reason)) if images else Reason.NO_PTX
    if reason is not Reason.PROBED:
        return KernelEntry(draw(NAMES), reason, draw(DETAILS), files=draw(FILES))
    variables = draw(st.lists(NAMES, max_size=4))
    return KernelEntry(
        draw(NAMES), reason, draw(DETAILS), draw(NAMES),
        tuple(draw(st.lists(st.tuples(st.integers(0, 30000), st.integers(0, 30000)), max_size=4))), tuple(variables),
        draw(st.integers(60000, 65536)), block_size(len(maps), len(variables)), draw(st.integers(0, images - 1)),
        draw(st.integers(0, images - 1)), draw(FILES),
        tuple(index for index, entry in enumerate(maps) if entry.kind == Log() and draw(st.booleans())),
        draw(st.booleans()), draw(st.sampled_from([32, 64])),
    )  # fmt: skip
MAPS = st.builds(
    Map, NAMES, st.just(ARRAY), st.sampled_from(LEVELS), st.integers(1, 65536), st.integers(1, 99),
    st.just(()), st.just(Span(1, 1)),
) | st.builds(
    Map, NAMES, st.sampled_from([SUM, Log()]), st.sampled_from(LEVELS), st.integers(1, 999), st.just(1), st.just(()),
    st.just(Span(1, 1)),
)  # fmt: skip


@st.composite
def entries(draw: st.DrawFn) -> tuple[bytes, list[Map], list[KernelEntry], list[bytes]]:
    maps, images = draw(st.lists(MAPS, max_size=3)), draw(st.lists(st.binary(max_size=200), max_size=3))
    made = draw(st.lists(kernels(maps, len(images)), max_size=4))
    return draw(st.binary(min_size=32, max_size=32)), maps, made, images


ENTRIES = entries()


@given(ENTRIES)
def test_round_trip(parts):
    key, maps, kernels, images = parts
    entry = read_entry(write_entry(key, maps, kernels, images), "test")
    described = tuple(MapEntry(item.name, type(item.kind), item.level, item.size, item.cap) for item in maps)
    assert entry == Entry(key, described, tuple(kernels), tuple(images))


@settings(max_examples=60)
@given(ENTRIES, st.data())
def test_no_damage_passes(parts, data):
    whole = write_entry(*parts)
    position = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[position] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(FormatError):
        read_entry(bytes(flipped), "test")
    with pytest.raises(FormatError):
        read_entry(whole[:position], "test")


def test_every_bit_of_the_header_counts():
    """The first bytes stand before what the digest is of."""
    whole = write_entry(bytes(32), [], [], [])
    for bit in range(8 * TWINS_HEADER.size):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError):
            read_entry(bytes(flipped), "test")


def test_errors_name_the_place() -> None:
    """Of a member of the header, and of the row of a table."""
    maps = [Map(name, ARRAY, Level.WARP, 16, 1, (), Span(1, 1)) for name in "ab"]
    kernels = [KernelEntry(name, Reason.NO_SITE) for name in "ab"]
    whole = write_entry(bytes(32), maps, kernels, [])
    (header,) = np.frombuffer(whole, TWINS_HEADER.dtype, 1)
    maps_row = int(header["maps_offset"]) + MAP_DESCRIPTOR.size
    kernels_row = int(header["kernels_offset"]) + TWIN_KERNEL.size
    for position, at in (
        (int(TWINS_HEADER.dtype.fields["reserved"][1]), 12),
        (int(TWINS_HEADER.dtype.fields["maps"][1]), 112),
        (maps_row + int(MAP_DESCRIPTOR.dtype.fields["kind"][1]), maps_row),
        (kernels_row + int(TWIN_KERNEL.dtype.fields["reason"][1]), kernels_row),
    ):
        damaged = bytearray(whole)
        damaged[position : position + 4] = b"\xff" * 4
        damaged[DIGESTED_FROM - 32 : DIGESTED_FROM] = hashlib.sha256(damaged[DIGESTED_FROM:]).digest()
        with pytest.raises(FormatError) as raised:
            read_entry(bytes(damaged), "test")
        assert raised.value.offset == at


@given(st.binary(max_size=300))
def test_a_right_digest_does_not_excuse_wrong_bounds(tail):
    kernel = KernelEntry("k", Reason.PROBED, twin="k__neutrino", files={"a": b"b"}, lanes=32)
    whole = bytearray(write_entry(bytes(32), [], [kernel], [b"image"]))
    start = TWINS_HEADER.size
    whole[start : start + len(tail)] = tail[: len(whole) - start]
    whole[DIGESTED_FROM - 32 : DIGESTED_FROM] = hashlib.sha256(whole[DIGESTED_FROM:]).digest()
    # Any other exception fails the test.
    with contextlib.suppress(FormatError):
        read_entry(bytes(whole), "test")


@pytest.fixture(scope="module")
def hook(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """What the hook reads entries by."""
    library = tmp_path_factory.mktemp("hook") / "entry.so"
    sources = [str(CSRC / name) for name in ("image/entry.c", "base/memory.c", "base/regions.c", "base/sha256.c")]
    try:
        subprocess.run(
            [*build.compiler(), "-shared", "-fPIC", "-O1", "-D_GNU_SOURCE", f"-I{CSRC}", *sources, "-o", str(library)],
            check=True,
        )
    except FileNotFoundError:
        pytest.skip("no C compiler")
    return ctypes.CDLL(str(library))


@settings(max_examples=300)
@given(st.data())
def test_the_hook_takes_what_python_takes(hook: ctypes.CDLL, data: st.DataObject) -> None:
    """Words of an entry are changed and its digest is right: images out of range, tables and parameters anywhere."""
    maps = [
        Map("m", ARRAY, Level.WARP, 16, 1, (), Span(1, 1)),
        Map("s", SUM, Level.THREAD, 8, 1, (), Span(1, 1)),
        Map("l", Log(), Level.THREAD, 8, 1, (), Span(1, 1)),
    ]
    block = block_size(3, 1)
    kernels = [
        KernelEntry("a", Reason.PROBED, "", "a", ((0, 8), (8, 4)), ("v",), 16, block, 1, 2, {"f": b"text"}, (2,),
                    lanes=32),
        KernelEntry("b", Reason.NO_SITE, "none"),
    ]
    whole = bytearray(write_entry(bytes(32), maps, kernels, [b"first", b"second", b"capped"]))
    size = len(whole)
    words = st.sampled_from(
        [0, 1, 2, 3, 4, 15, 16, 17, block, 64, 65, 65536, 65537, 2**32 - 1, 2**64 - 1, size, size - 8]
    )
    for _ in range(data.draw(st.integers(1, 3))):
        width = data.draw(st.sampled_from([4, 4, 8]))
        at = data.draw(st.integers(DIGESTED_FROM // width, size // width - 1)) * width
        value = data.draw(words | st.integers(0, size)) % 2 ** (8 * width)
        whole[at : at + width] = value.to_bytes(width, "little")
    whole[DIGESTED_FROM - 32 : DIGESTED_FROM] = hashlib.sha256(whole[DIGESTED_FROM:]).digest()
    try:
        entry = read_entry(bytes(whole), "test")
    except FormatError as error:
        entry, refused = None, str(error)
    result = (ctypes.c_uint64 * 16)()
    taken = bool(hook.nt_entry_open(bytes(whole), ctypes.c_size_t(size), bytes(whole[KEY : KEY + 32]), result) & 0xFF)
    if entry is not None:
        assert taken
    else:
        # Python knows which reasons there are, and that an empty name is none.
        assert not taken or "reason" in refused or "twin of kernel" in refused


def test_entries_of_other_versions_are_refused(hook: ctypes.CDLL) -> None:
    """Only logs may be marked as not saved to."""
    maps = [Map(name, kind, Level.WARP, 16, 1, (), Span(1, 1)) for name, kind in (("a", ARRAY), ("l", Log()))]
    size = block_size(2, 0)
    kernels = [
        KernelEntry(name, Reason.PROBED, "", "twin", block_size=size, unused_logs=unused, lanes=32)
        for name, unused in (("a", ()), ("b", (1,)), ("c", ()))
    ]
    result = (ctypes.c_uint64 * 16)()

    def taken(whole: bytes) -> bool:
        whole = bytearray(whole)
        whole[DIGESTED_FROM - 32 : DIGESTED_FROM] = hashlib.sha256(whole[DIGESTED_FROM:]).digest()
        is_taken = bool(hook.nt_entry_open(bytes(whole), ctypes.c_size_t(len(whole)), bytes(32), result) & 0xFF)
        with contextlib.nullcontext() if is_taken else pytest.raises(FormatError):
            entry = read_entry(bytes(whole), "test")
            assert [kernel.unused_logs for kernel in entry.kernels] == [(), (1,) if has_unused else (), ()]
        return is_taken

    for has_unused in (False, True):
        shown = kernels if has_unused else [replace(kernel, unused_logs=()) for kernel in kernels]
        whole = bytearray(write_entry(bytes(32), maps, shown, [b"image"]))
        assert taken(whole)
        for version in (5, 6, 8):
            whole[8] = version
            assert not taken(whole)
    whole[8] = 7
    (header,) = np.frombuffer(whole, TWINS_HEADER.dtype, 1)
    rows = int(header["kernels_offset"]) + 3 * TWIN_KERNEL.size
    for bits in (1, 4):
        whole[rows] = bits
        assert not taken(whole)


def test_images_are_aligned_for_the_driver():
    whole = write_entry(bytes(32), [], [KernelEntry("k", Reason.NO_PTX)], [b"\x7fELF" + b"a" * 61, b"\x7fELFb"])
    assert whole.index(b"\x7fELFa") % 64 == 0
    assert whole.index(b"\x7fELFb") % 64 == 0


def test_a_long_map_name_is_an_error():
    entry = Map("m" * 64, SUM, Level.THREAD, 8, 1, (), Span(1, 1))
    with pytest.raises(NeutrinoError, match="64 bytes"):
        write_entry(bytes(32), [entry], [], [])


def test_c_reads_what_python_writes(tmp_path):
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    (tmp_path / "neutrino_layout.h").write_text(c_header())
    (tmp_path / "read.c").write_text(
        """
        #include <stdio.h>
        #include "neutrino_layout.h"
        static char data[1 << 16];
        int main(int argc, char **argv) {
            FILE *file = fopen(argv[argc - 1], "rb");
            size_t size = fread(data, 1, sizeof data, file);
            struct neutrino_twins_header *header = (void *)data;
            struct neutrino_twin_kernel *kernel = (void *)(data + header->kernels_offset);
            struct neutrino_twin_parameter *parameter = (void *)(data + kernel[1].parameters_offset);
            uint64_t *variable = (void *)(data + kernel[1].variables_offset);
            struct neutrino_twin_file *row = (void *)(data + kernel[1].files_offset);
            printf("%d %u %s %u %s %s %u %u %u %s %s %.*s", size == header->size, header->kernels,
                   data + kernel[0].name_offset, kernel[0].reason, data + kernel[0].detail_offset,
                   data + kernel[1].twin_offset, parameter[1].offset, kernel[1].image, kernel[1].capped,
                   data + variable[1],
                   data + row[0].name_offset, (int)row[0].size, data + row[0].offset);
        }
        """
    )
    build = [compiler, "-std=c11", "-Wall", "-Werror", "-o", tmp_path / "read", tmp_path / "read.c"]
    try:
        subprocess.run(build, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("no C compiler")
    kernels = [
        KernelEntry("a", Reason.NO_PTX, "no"),
        KernelEntry("b", Reason.PROBED, "", "b__neutrino", ((0, 8), (8, 4)), ("v", "w"), 16, 32, 1, 2, {"f": b"text"},
                    lanes=32),
    ]
    (tmp_path / "entry").write_bytes(write_entry(bytes(32), [], kernels, 3 * [b"image"]))
    printed = subprocess.run([tmp_path / "read", tmp_path / "entry"], check=True, capture_output=True, text=True).stdout
    assert printed == "1 2 a 1 no b__neutrino 8 1 2 w f text"
    assert TWIN_KERNEL.size % 8 == 0


@pytest.mark.parametrize("lanes", [0, 16, 128])
def test_a_twin_says_how_many_lanes_its_warps_have(lanes: int) -> None:
    with pytest.raises(ValueError, match=f"{lanes} lanes of a warp, expected 32 or 64"):
        KernelEntry("k", Reason.PROBED, twin="k__neutrino", lanes=lanes)
