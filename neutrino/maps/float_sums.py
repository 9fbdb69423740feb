"""Sums of floating-point numbers: fields of ``f32`` and ``f64`` are added up in f64, in an order that has a bound.

docs/probes.md says the order, and how far a sum may be from the exact one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from neutrino.abi.levels import Level
from neutrino.abi.records import Field, lay_out_fields
from neutrino.abi.scalars import ScalarType
from neutrino.ir.operands import Register
from neutrino.ir.statements import Operator, Reduction, Relation
from neutrino.ir.types import Type
from neutrino.maps.builder import Builder

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

FLOATS = frozenset({ScalarType.F32, ScalarType.F64})
"""Types of fields that take floating-point numbers; those of 16 bits go into either, exactly."""


def has_floats(fields: Sequence[Field]) -> bool:
    """Return whether any of some fields takes floating-point numbers."""
    return any(field.type in FLOATS for field in fields)


def summed_cells(fields: Sequence[Field]) -> tuple[Field, ...]:
    """Return the fields of the record in memory for fields that are added up: each f32 is an f64 there."""
    if not any(field.type is ScalarType.F32 for field in fields):
        return tuple(fields)
    wide = [(field.name, ScalarType.F64 if field.type in FLOATS else field.type) for field in fields]
    cells, _, _ = lay_out_fields(wide)
    return cells


def add_float(code: Builder, cell: int, value: Register, saves: Register | None) -> None:
    """Add the statements that add a value to the thread's sum for a cell, in a register that is kept to the thread's
    end.

    value: f32 or f64. saves: a predicate, whether this thread saves; None where all do.
    """
    wide = value if value.type is Type.F64 else code.convert(Type.F64, value)
    code.change(code.kept(cell, type_=Type.F64), Operator.ADD, wide, saves)


def bring_float(code: Builder, cell: int, level: Level) -> None:
    """Add the statements, for the end of threads, that add their sums for a cell to memory.

    Threads that end together add up first. level: of the map: whether threads, warps or blocks save.
    """
    total: Register = code.kept(cell, type_=Type.F64)
    elected = None
    # At other levels one thread has it all.
    if level is Level.THREAD:
        total, elected = code.together(Reduction.SUM, total), code.elect(Reduction.SUM)
    # A sum of 0, as of threads that saved nothing, changes nothing. A NaN is not equal to it.
    adds = code.compare(Relation.NE, total, 0)
    code.update(Operator.ADD, cell, total, code.both(adds, elected))


def added_in_pairs(values: Array) -> Array:
    """Return the sums of f64 over the last axis: neighbours are added, then the sums of two neighbours, and so on.

    That keeps rounding errors small, and the result does not depend on NumPy. A NaN among the values, or infinities of
    both signs, give NaN.
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
