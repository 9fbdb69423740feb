"""Counting one save in so many, chosen at random: the code that chooses, and the error of what is estimated.

Each lane draws numbers from a linear congruential generator in a register. The lanes of a warp begin with the same one:
as long as they draw together, a save of the warp is counted for all its lanes or for none. Lanes that have parted draw
apart, and from then on may have different numbers. A count is multiplied by how many saves stand for one. Of the
counts of a key, each chosen independently, the variance is at most ``(sample - 1) * lanes * count``, where each save of
a warp counts for up to ``lanes``. Of saves that follow each other one number chooses one at most, each as often as if
it were alone; that one excludes another makes the variance less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from neutrino.ir.memory import Kept
from neutrino.ir.operands import Register, Special
from neutrino.ir.statements import Operator, Relation
from neutrino.ir.types import Type
from neutrino.maps.builder import Builder

if TYPE_CHECKING:
    import numpy.typing as npt

SAMPLES = tuple(1 << power for power in range(17))
"""For how many saves one may stand."""
_NUMBER = 32
"""Key of the kept register with the warp's last number; tables use lower ones."""
_MULTIPLIER, _INCREMENT = 747796405, 2891336453
"""Of a generator with a period of 2 to the 32 (M. E. O'Neill, PCG, 2014)."""
_MIXING = ((16, 0x85EBCA6B), (13, 0xC2B2AE35))
"""Shifts and factors by which all bits of a seed depend on each other (A. Appleby, MurmurHash3)."""


def choose_saves(code: Builder, sample: int) -> Register:
    """Append the code that draws the next number; return a predicate, true once in ``sample`` (a power of two)
    times."""
    return code.compare(Relation.LT, draw_number(code), (1 << 32) // sample)


def draw_number(code: Builder) -> Register:
    """Append the code that draws the next number; return the register with it, a u32, until one is drawn again."""
    number = code.kept(_NUMBER, type_=Type.U32)
    code.change(number, Operator.MUL, _MULTIPLIER)
    code.change(number, Operator.ADD, _INCREMENT)
    return number


def begin_choice(code: Builder, kept: Sequence[Kept]) -> None:
    """Append the code for a kernel's start that sets a warp's first number, if saves draw any.

    It depends on the warp and on the time, so that the launches of a kernel choose differently. kept: the registers
    that saves to the map keep to the thread's end.
    """
    if not any(register.key == (_NUMBER,) for register in kept):
        return
    clock = code.convert(Type.U32, code.special(Special.CLOCK))
    number = code.compute(Operator.XOR, code.compute(Operator.MUL, code.slot(), _MULTIPLIER), clock)
    for shift, factor in _MIXING:
        number = code.compute(Operator.XOR, code.compute(Operator.SHR, number, shift), number)
        number = code.compute(Operator.MUL, number, factor)
    code.change(code.kept(_NUMBER, type_=Type.U32), Operator.MOVE, number)


def scale_counts(rows: npt.NDArray[Any], sample: int) -> None:
    """Turn counts and sums of rows, of saves that were chosen, into estimates for all, and set the rows' ``error``."""
    import numpy as np

    for name in {"count", "sum", "missed"} & {*(rows.dtype.names or ())}:
        rows[name] *= sample
    # 1.96 standard deviations: 95 of 100 cases. A save of a warp counts for up to 32 lanes.
    rows["error"] = np.ceil(1.96 * np.sqrt((sample - 1) * 32.0 * rows["count"]))
