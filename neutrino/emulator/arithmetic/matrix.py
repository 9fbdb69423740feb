"""Products of small matrices held by a warp together (PTX ISA 9.7.15)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class MatrixOperation:
    """What an `mma.sync` computes.

    a, b, c, d: 32-bit words that each lane holds of the operand (two, the lower first, for each f64).
    function: (uint32[warps, 32, a], uint32[warps, 32, b], uint32[warps, 32, c]) -> uint32[warps, 32, d].
    """

    a: int
    b: int
    c: int
    d: int
    function: Callable[[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32]], NDArray[Any]]


def build(opcode: str) -> MatrixOperation | None:
    """The operation of `opcode`; None where it is no matrix product."""
    return None
