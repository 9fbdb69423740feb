"""Sums of floating-point numbers: fields of ``f32`` and ``f64`` are added up in f64, in an order that has a bound.

docs/probes.md says the order, and how far a sum may be from the exact one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from neutrino.abi.records import Field, lay_out_fields
from neutrino.abi.scalars import ScalarType

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

FLOATS = frozenset({ScalarType.F32, ScalarType.F64})
"""Types of fields that take floating-point numbers; those of 16 bits go into either, exactly."""


def has_floats(fields: Sequence[Field]) -> bool:
    """Return whether any of some fields takes floating-point numbers."""
    return any(field.type in FLOATS for field in fields)


def summed_cells(fields: Sequence[Field]) -> tuple[Field, ...]:
    """Return the fields that memory holds for the sums of some: f64 in place of f32, and as they are without it."""
    if not any(field.type is ScalarType.F32 for field in fields):
        return tuple(fields)
    wide = [(field.name, ScalarType.F64 if field.type in FLOATS else field.type) for field in fields]
    cells, _, _ = lay_out_fields(wide)
    return cells


def added_in_pairs(values: Array) -> Array:
    """Return the sums of f64 over the last axis: neighbours are added, then the sums of two neighbours, and so on.

    A NaN among them, or infinities of both signs, give NaN.
    """
    import numpy as np

    # What overflows is infinity, and NaNs need no warning.
    with np.errstate(over="ignore", invalid="ignore"):
        while values.shape[-1] > 1:
            whole = values.shape[-1] // 2 * 2
            pairs = values[..., :whole:2] + values[..., 1:whole:2]
            values = np.concatenate([pairs, values[..., whole:]], axis=-1)
    sums = np.add.reduce(values, axis=-1)
    return np.asarray(sums)
