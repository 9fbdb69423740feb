"""The PTX instructions that only read and write registers, computed on arrays with one element per lane.

The contract: integers, bits, comparisons, and float operations with a rounding modifier (or with none) are exactly what
the PTX ISA and IEEE 754 say, in each rounding; where those leave it open, what an H200 computes. So NaN results are
0x7fffffff (f32) and 0x7fff (f16, bf16); those of f64 are an operand that is NaN, made quiet, else 0xfff8000000000000
(see `double`). Matrix products add as its tensor cores do (see `accumulation`, `matrix`). Approximations are as near as
float64 makes them, which is not always the hardware's last bits (see `approximate`).

Left out, and refused: .oob, stochastic rounding (.rs), sparse and block-scaled `mma`, the video instructions.
"""

from __future__ import annotations

from functools import cache

from neutrino.emulator.arithmetic.bits import BUILDERS as _BITS
from neutrino.emulator.arithmetic.comparison import BUILDERS as _COMPARISONS
from neutrino.emulator.arithmetic.conversion import BUILDERS as _CONVERSIONS
from neutrino.emulator.arithmetic.floats import BUILDERS as _FLOATS
from neutrino.emulator.arithmetic.integers import BUILDERS as _INTEGERS
from neutrino.emulator.arithmetic.matrix import MatrixOperation
from neutrino.emulator.arithmetic.matrix import build as _build_matrix
from neutrino.emulator.arithmetic.operation import Modifiers, Operation

__all__ = ["MatrixOperation", "Operation", "find_matrix_operation", "find_operation"]

_BUILDERS = {**_BITS, **_COMPARISONS, **_CONVERSIONS}
_FLOAT_TYPES = frozenset(("f16", "bf16", "f32", "f64", "f16x2", "bf16x2", "f32x2"))


@cache
def find_operation(opcode: str, destinations: int = 1, sources: int = 0) -> Operation | None:
    """Return the computation of the instruction `opcode`, such as "add.rn.f32" (without predicate and operands).

    destinations: the number of registers written, without the carry flag; 2 for `p|q`. sources: the number of operands
    read if the opcode leaves it open (min and max of three); 0 for the usual number.

    Return None if the instruction does more than compute from registers (memory, control flow, other lanes, special
    registers). Raise ValueError if it is supported in general, but not with these modifiers.
    """
    modifiers = Modifiers(opcode, destinations, sources)
    builder = _BUILDERS.get(modifiers.mnemonic)
    if builder is None:
        # Floating-point and integer instructions share mnemonics such as `add`; the type, which comes last, decides.
        table = _FLOATS if modifiers.peek_last() in _FLOAT_TYPES else _INTEGERS
        builder = table.get(modifiers.mnemonic)
    return None if builder is None else builder(modifiers)


@cache
def find_matrix_operation(opcode: str) -> MatrixOperation | None:
    """Return the computation of `mma.sync.aligned.…` over the fragments that a warp's 32 lanes hold.

    Return None for any other instruction. Raise ValueError for an unknown shape, type or modifier.
    """
    return _build_matrix(opcode)
