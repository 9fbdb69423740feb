"""mma of the formats and shapes that the products of matrices lack; matrices between memory and registers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.kernels.model import FIXTURES, Array, Case, Expected, blank, seeded

PATH = FIXTURES / "hand" / "tensors.ptx"
FRAGMENTS = FIXTURES / "hand" / "fragments.ptx"
_TILES = 24
_TAGS = frozenset({"hand", "mma"})


def cases() -> Iterator[Case]:
    """The kernels of tensors.ptx and fragments.ptx."""
    yield from (_mma_f64(), _mma_f16(), _mma_u8(), _fragments())


def _whole(random: np.random.Generator, low: int, high: int, shape: tuple[int, ...]) -> Array:
    return random.integers(low, high, (_TILES, *shape))


def _case(name: str, arguments: tuple[Array | np.generic, ...], want: Array) -> Case:
    return Case(name, PATH, name, (_TILES // 4, 1, 1), (128, 1, 1), arguments, {2: Expected(want)}, tags=_TAGS)


def _mma_f64() -> Case:
    depth = 24
    random = seeded("mma_f64")
    a, b, c = (_whole(random, -1000, 1000, shape).astype(np.float64) for shape in ((8, depth), (depth, 8), (8, 8)))
    return _case("mma_f64", (a, b, c, np.uint32(depth)), c + a @ b)


def _mma_f16() -> Case:
    random = seeded("mma_f16")
    a, b, c = (_whole(random, -8, 8, shape).astype(np.float16) for shape in ((16, 8), (8, 8), (16, 8)))
    want = c + a.astype(np.float32) @ b.astype(np.float32)
    return _case("mma_f16", (a, b, c), want.astype(np.float16))


def _mma_u8() -> Case:
    random = seeded("mma_u8")
    a = _whole(random, 0, 256, (16, 16)).astype(np.uint8)
    b = _whole(random, -128, 128, (8, 16)).astype(np.int8)
    c = _whole(random, -(1 << 20), 1 << 20, (16, 8)).astype(np.int32)
    want = c + a.astype(np.int32) @ b.astype(np.int32).transpose(0, 2, 1)
    return _case("mma_u8", (a, b, c), want)


def _fragments() -> Case:
    matrices = seeded("fragments").integers(0, 1 << 16, (_TILES, 8, 8, 8)).astype(np.uint16)
    straight, turned = matrices.swapaxes(0, 1), matrices.transpose(1, 0, 3, 2)
    kept = [straight[3], turned[1], straight[2], straight[0], turned[4], straight[5]]
    want = np.stack([*kept, straight[6][:, ::-1].transpose(0, 2, 1), turned[7]], 1)
    return Case("fragments", FRAGMENTS, "fragments", (_TILES, 1, 1), (32, 1, 1),
                (matrices, blank(matrices.shape, np.uint16)), {1: Expected(want)},
                tags=frozenset({"hand", "ldmatrix", "shared"}))  # fmt: skip
