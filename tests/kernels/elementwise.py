"""One element a thread: guards, strides, two and three dimensions, tiles with a halo."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.kernels.model import FIXTURES, Case, Expected, blank, seeded

PATH = FIXTURES / "clang" / "elementwise.ptx"


def cases() -> Iterator[Case]:
    """The kernels of elementwise.cu."""
    yield from (_vecadd("vecadd", 40, 256, 9999), _vecadd("vecadd_many_blocks", 3000, 32, 95990))
    yield from (_saxpy(), _coordinates(), _stencil(), _transpose(), _greyscale())


def _vecadd(name: str, blocks: int, threads: int, n: int) -> Case:
    a, b = seeded(name).standard_normal((2, n)).astype(np.float32)
    out = blank(n + 5, np.float32)
    want = out.copy()
    want[:n] = a + b
    return Case(name, PATH, "vecadd", (blocks, 1, 1), (threads, 1, 1), (a, b, out, np.int32(n)), {2: Expected(want)})


def _saxpy() -> Case:
    # Values between 1 and 2: the product and the sum are exact in double precision, so it is rounded once.
    n = 9001
    x, y = seeded("saxpy").uniform(1, 2, (2, n)).astype(np.float32)
    alpha = np.float32(1.7)
    want = (x.astype(np.float64) * np.float64(alpha) + y).astype(np.float32)
    return Case("saxpy", PATH, "saxpy", (9, 1, 1), (96, 1, 1), (alpha, x, y, np.int32(n)), {2: Expected(want)})


def _coordinates() -> Case:
    width, height, depth = 37, 21, 9
    z, y, x = np.indices((depth, height, width), np.uint32)
    want = x | y << 10 | z << 20 | np.uint32((3 * 5 & 3) << 30)
    sizes = tuple(np.int32(size) for size in (width, height, depth))
    return Case("coordinates", PATH, "coordinates", (5, 5, 3), (8, 5, 3), (blank(want.shape, np.uint32), *sizes),
                {0: Expected(want)}, tags=frozenset({"3-D"}))  # fmt: skip


def _stencil() -> Case:
    width, height = 75, 50
    image = seeded("stencil").standard_normal((height, width)).astype(np.float32)
    want = image.copy()
    around = (image[:-2, 1:-1] + image[2:, 1:-1]) + (image[1:-1, :-2] + image[1:-1, 2:])
    want[1:-1, 1:-1] = image[1:-1, 1:-1] * np.float32(0.5) + around * np.float32(0.125)
    return Case("stencil", PATH, "stencil", (3, 4, 1), (32, 16, 1),
                (image, blank(image.shape, np.float32), np.int32(width), np.int32(height)),
                {1: Expected(want)}, tags=frozenset({"2-D", "shared"}))  # fmt: skip


def _transpose() -> Case:
    width, height = 100, 70
    image = seeded("transpose").integers(0, 1 << 32, (height, width), np.uint32)
    return Case("transpose", PATH, "transpose", (4, 3, 1), (32, 8, 1),
                (image, blank((width, height), np.uint32), np.int32(width), np.int32(height)),
                {1: Expected(np.ascontiguousarray(image.T))}, tags=frozenset({"2-D", "shared"}))  # fmt: skip


def _greyscale() -> Case:
    n = 1500
    pixels = seeded("greyscale").integers(0, 256, (n * 4, 4)).astype(np.uint32)
    grey = (pixels[:, 0] * 77 + pixels[:, 1] * 150 + pixels[:, 2] * 29 + 128) >> 8
    word = pixels[:, 0] | pixels[:, 1] << 8 | pixels[:, 2] << 16 | pixels[:, 3] << 24
    want = grey | grey << 8 | grey << 16 | pixels[:, 3] << 24
    return Case("greyscale", PATH, "greyscale", (32, 1, 1), (48, 1, 1),
                (word, blank(n * 4, np.uint32), np.int32(n)), {1: Expected(want)})  # fmt: skip
