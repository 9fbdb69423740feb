"""All cases, by kind of kernel."""

from __future__ import annotations

from functools import cache

from tests.kernels import (
    atomics,
    barriers,
    calls,
    control,
    elementwise,
    floats,
    integers,
    jumps,
    matrices,
    reductions,
    roundings,
    scans,
    spaces,
    tensors,
    triton,
    warps,
    words,
)
from tests.kernels.model import Case, Expected

__all__ = ["Case", "Expected", "cases"]

_KINDS = (
    elementwise, reductions, scans, control, calls, integers, floats, atomics, matrices, triton, roundings, words,
    spaces, warps, barriers, jumps, tensors,
)  # fmt: skip


@cache
def cases() -> tuple[Case, ...]:
    """Every case, in a fixed order, its inputs the same on every machine. The arrays are shared: copy, do not write."""
    return tuple(case for kind in _KINDS for case in kind.cases())
