"""Memory of every space and width: vectors, generic addresses, module variables, frames of local memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.kernels.model import FIXTURES, Case, Expected, blank, seeded

PATH = FIXTURES / "hand" / "memory.ptx"
_TAGS = frozenset({"hand"})
_PRIMES = np.array([2, 3, 5, 7, 11, 13, 17, 19], np.uint32)


def cases() -> Iterator[Case]:
    """The kernels of memory.ptx."""
    yield from (_vectors(), _generic(), _variables(), _frames())


def _vectors() -> Case:
    count = 512
    data = seeded("vectors").integers(0, 256, (count, 16)).astype(np.uint8)
    out = blank((count, 112), np.uint8)
    want = out.copy()

    def part(start: int, stop: int, kind: str) -> np.ndarray:
        return np.ascontiguousarray(data[:, start:stop]).view(kind)

    def put(offset: int, values: np.ndarray) -> None:
        raw = np.ascontiguousarray(values).view(np.uint8).reshape(count, -1)
        want[:, 64 + offset : 64 + offset + raw.shape[1]] = raw

    put(-64, data[:, 7:3:-1])
    put(-60, part(2, 4, "<i1").astype("<i2"))
    put(-56, part(8, 16, "<u2")[:, [1, 0, 3, 2]])
    put(-48, part(0, 16, "<u4")[:, [3, 1, 2, 0]])
    put(-32, part(8, 16, "<u8"))
    put(-16, np.repeat(part(0, 8, "<u8") ^ part(8, 16, "<u8"), 2, 1))
    put(0, part(0, 16, "<u4")[:, ::-1])
    signed_half, signed_byte = part(6, 8, "<i2"), part(14, 15, "<i1")
    put(16, signed_half.astype("<i4"))
    put(20, data[:, 15:].astype("<u4"))
    put(24, signed_byte.astype("<i8"))
    put(32, part(12, 14, "<u2").astype("<u8"))
    put(40, signed_half.astype("<u1"))
    put(42, signed_byte.astype("<i2"))
    return Case("vectors", PATH, "vectors", (4, 1, 1), (128, 1, 1), (data, out), {1: Expected(want)}, tags=_TAGS)


def _generic() -> Case:
    count = 512
    values = seeded("generic").integers(0, 1 << 20, count).astype(np.uint32)
    i = np.arange(count)
    lane = i % 4
    tripled = values * 3
    read = np.select([lane == 0, lane == 3], [2 * tripled, _PRIMES[(i & 28) // 4]], tripled)
    spaces = np.array([1, 2, 4, 8])[lane]
    return Case("generic", PATH, "generic", (4, 1, 1), (128, 1, 1),
                (values, blank((count, 2), np.uint32), np.uint32(count)),
                {0: Expected(np.where(lane == 2, tripled, values)),
                 1: Expected(np.stack([read, spaces], 1).astype(np.uint32))}, tags=_TAGS | {"shared"})  # fmt: skip


def _variables() -> Case:
    threads = 96
    t = np.arange(threads)
    record = np.dtype([("prime", "<u4"), ("sum", "<u4"), ("product", "<f4"), ("weight", "<f4"), ("seeds", "<u8")])
    out = blank(threads, record)
    want = out.copy()
    weights = np.array([1, -2, 0.5, np.float32(3.14159274)], np.float32)
    primes = _PRIMES.copy()
    primes[5] = 1301
    seeds = np.array([0xFEDCBA9876543210, 58], np.uint64)
    want["prime"], want["sum"] = primes[t & 7], primes[t & 7] + primes[3]
    want["product"], want["weight"], want["seeds"] = weights[t & 3] * weights[2], weights[3], seeds.sum()
    words = (threads, record.itemsize // 4)
    return Case("variables", PATH, "variables", (1, 1, 1), (threads, 1, 1), (out.view(np.uint32).reshape(words),),
                {0: Expected(want.view(np.uint32).reshape(words))},
                constants={"primes": primes, "seeds": seeds}, tags=_TAGS | {"const"})  # fmt: skip


def _frames() -> Case:
    count = 480
    values = seeded("frames").integers(0, 1 << 32, count).astype(np.uint32)
    box = np.zeros((count, 16), np.uint32)
    for k in range(16):
        place = (k ^ values) & 15
        box[np.arange(count), place] = k * 1000 + place
    box.view(np.uint8)[:, 5] = values
    start = (values & 3) * 4
    taken = np.take_along_axis(box, start[:, None].astype(np.int64) + np.arange(4), 1)
    want = np.concatenate([taken, box[:, :2]], 1)
    return Case("frames", PATH, "frames", (10, 1, 1), (48, 1, 1), (values, blank(want.shape, np.uint32)),
                {1: Expected(want)}, tags=_TAGS | {"local"})  # fmt: skip
