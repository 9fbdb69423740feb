"""Hostile input: what is done to sound files, blindly and knowing their headers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from bench.fuzz_fields import Place, places

VALUES = (0, 1, 2, 7, 8, 16, 0xFF, 0x7FFF, 0xFFFF, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 62,
          (1 << 63) - 1, 1 << 63, (1 << 64) - 8, (1 << 64) - 1)  # fmt: skip
"""Values at which sizes, counts and offsets change their meaning."""
WORDS = (
    b".version 8.0\n", b".target sm_90a", b".visible .entry k(", b"//", b"/*", b"*/", b'"', b"\\", b"\0", b"\x7fELF",
    b"\x50\xed\x55\xba", b"\xb1\x43\x62\x46", b"BC\xc0\xde", b"CCOB", b"__CLANG_OFFLOAD_BUNDLE__", b"!<arch>\n",
    b"\x28\xb5\x2f\xfd", b".nv_fatbin\0", b"hipv4-amdgcn-amd-amdhsa--gfx942:xnack+", b"amdhsa.kernels",
)  # fmt: skip
"""Words that a parser compares with, which blind changes would not find."""


def mutate(data: bytes, other: bytes, random_: random.Random, limit: int) -> bytes:
    """data changed in one to eight places, at most limit bytes long. other: input to take pieces from."""
    changed = bytearray(data)
    for _ in range(1 << random_.randrange(4)):
        random_.choice(_MUTATIONS)(changed, other, random_)
    return bytes(changed[:limit])


def field_values(place: Place, found: Sequence[Place], data: bytes) -> tuple[int, ...]:
    """What a field is set to: the values of VALUES, the file's size, what would lead past its end, onto other fields,
    or to what other fields hold."""
    size = len(data)
    near = (size, size - 1, size + 1, size - place.offset, place.offset, place.value(data) + 1, place.value(data) - 1)
    overlapping = (value for entry in found[:: max(1, len(found) // 8)] for value in (entry.offset, entry.value(data)))
    return (*VALUES, *near, *overlapping)


def _field(data: bytearray, _other: bytes, random_: random.Random) -> None:
    found = places(data)
    if found:
        place = random_.choice(found)
        place.put(data, random_.choice(field_values(place, found, bytes(data))))


def _bit(data: bytearray, _other: bytes, random_: random.Random) -> None:
    if data:
        data[random_.randrange(len(data))] ^= 1 << random_.randrange(8)


def _byte(data: bytearray, _other: bytes, random_: random.Random) -> None:
    if data:
        data[random_.randrange(len(data))] = random_.randrange(256)


def _integer(data: bytearray, _other: bytes, random_: random.Random) -> None:
    width = random_.choice((1, 2, 4, 8))
    if len(data) >= width:
        place = Place("", "", random_.randrange(len(data) - width + 1) // width * width, width)
        step = random_.choice((0, random_.randrange(-9, 10)))
        place.put(data, place.value(data) + step if step else random_.choice((*VALUES, len(data))))


def _truncate(data: bytearray, _other: bytes, random_: random.Random) -> None:
    del data[random_.randrange(len(data) + 1) :]


def _delete(data: bytearray, _other: bytes, random_: random.Random) -> None:
    begin = random_.randrange(len(data) + 1)
    del data[begin : begin + random_.choice((1, 4, 8, 16, 64, random_.randrange(256)))]


def _insert(data: bytearray, _other: bytes, random_: random.Random) -> None:
    at = random_.randrange(len(data) + 1)
    data[at:at] = random_.choice((random_.choice(WORDS), bytes(random_.choice((1, 8, 64))), random_.randbytes(8)))


def _overwrite(data: bytearray, _other: bytes, random_: random.Random) -> None:
    word = random_.choice(WORDS)
    at = random_.randrange(len(data) + 1)
    data[at : at + len(word)] = word


def _copy(data: bytearray, _other: bytes, random_: random.Random) -> None:
    _take(data, bytes(data), random_)


def _splice(data: bytearray, other: bytes, random_: random.Random) -> None:
    _take(data, other, random_)


def _take(data: bytearray, source: bytes, random_: random.Random) -> None:
    begin = random_.randrange(len(source) + 1)
    piece = source[begin : begin + random_.choice((8, 16, 64, 512, len(source)))]
    at = random_.randrange(len(data) + 1)
    data[at : at + (len(piece) if random_.random() < 0.5 else 0)] = piece


_MUTATIONS: tuple[Callable[[bytearray, bytes, random.Random], None], ...] = (
    _field, _field, _field, _field, _bit, _byte, _integer, _integer, _truncate, _delete, _insert, _overwrite, _copy,
    _splice,
)  # fmt: skip
