"""Floats, computed in VGPRs: ``f32`` and ``f64`` by their own instructions, ``f16`` and ``bf16`` in ``f32``.

Of two 16-bit numbers a sum, a difference or a product in ``f32`` that is rounded to 16 bits again is what rounding once
gives. MODE must keep denormal numbers and round to nearest even, for which ``changes_mode`` is set.
"""

from __future__ import annotations

from neutrino.gcn.instrument.code import Mask, Value, Vector
from neutrino.gcn.instrument.compute_division import Divisions
from neutrino.gcn.instrument.compute_moves import CannotError
from neutrino.ir.statements import Operator, Relation
from neutrino.ir.types import Type

_ARITHMETIC = {Operator.ADD: "add", Operator.SUB: "sub", Operator.MUL: "mul"}
_RELATIONS = {Relation.EQ: "eq", Relation.NE: "neq", Relation.LT: "lt", Relation.LE: "le", Relation.GT: "gt",
              Relation.GE: "ge"}  # fmt: skip
"""As instructions on floats name them: ``neq`` is true of a NaN."""
_SIGNS = {16: 0x8000, 32: 0x80000000, 64: 0x80000000}
_HALF = 0x7FFF
"""What is added to an f32 that is cut to a bf16, besides its last bit that stays, so that it is rounded."""
_QUIET = 0x400000
OF_FLOATS = frozenset({*_ARITHMETIC, Operator.MIN, Operator.MAX, Operator.NEG, Operator.ABS, Operator.FMA})


class Floats(Divisions):
    """Lowers operations on floats."""

    def float_operation(self, destination: Vector, operator: Operator, type_: Type, values: list[Value]) -> None:
        """Compute a float."""
        code = self.code
        operands = [self.in_vector(value, self.words(type_)) for value in values]
        if operator in (Operator.NEG, Operator.ABS):
            sign, top = _SIGNS[type_.bits], destination.words - 1
            name, bits = ("xor", sign) if operator is Operator.NEG else ("and", sign - 1)
            if top:
                code.emit(f"v_mov_b32 {destination.word(0)}, {operands[0].word(0)}")
            code.emit(f"v_{name}_b32 {destination.word(top)}, {bits:#x}, {operands[0].word(top)}")
            return
        code.changes_mode = True
        if type_.bits == 16:
            if operator is Operator.FMA:
                raise CannotError(f"fma of {type_} is not possible in AMD's kernels")
            wide = code.vector()
            self._float(wide, operator, Type.F32, [self.to_f32(value, type_) for value in operands])
            self.from_f32(destination, wide, type_)
        else:
            self._float(destination, operator, type_, operands)

    def _float(self, destination: Vector, operator: Operator, type_: Type, values: list[Vector]) -> None:
        """Compute an f32 or f64."""
        code, to = self.code, destination.text
        texts = ", ".join(value.text for value in values)
        if operator is Operator.SUB and type_ is Type.F64:
            code.emit(f"v_add_f64 {to}, {values[0].text}, -{values[1].text}")
        elif operator in _ARITHMETIC:
            code.emit(f"v_{_ARITHMETIC[operator]}_{type_} {to}, {texts}")
        elif operator is Operator.FMA:
            code.emit(f"v_fma_{type_} {to}, {texts}")
        else:
            # A signalling NaN would come out itself, as a quiet one; this makes it a quiet one before.
            quiet = [self.code.vector(value.words) for value in values]
            for new, value in zip(quiet, values, strict=True):
                code.emit(f"v_max_{type_} {new.text}, {value.text}, {value.text}")
            code.emit(f"v_{operator.value}_{type_} {to}, {', '.join(value.text for value in quiet)}")

    # 16 bits

    def to_f32(self, value: Vector, type_: Type) -> Vector:
        """Return an f16, bf16 or f32 as an f32."""
        if type_ is Type.F32:
            return value
        self.code.changes_mode = True
        wide = self.code.vector()
        if type_ is Type.BF16:
            self.code.emit(f"v_lshlrev_b32 {wide.text}, 16, {value.text}")
        else:
            self.code.emit(f"v_cvt_f32_f16 {wide.text}, {value.text}")
        return wide

    def from_f32(self, destination: Vector, value: Vector, type_: Type) -> None:
        """Round an f32 to an f16, bf16 or f32."""
        code = self.code
        if type_ is Type.F32:
            self.move(destination, value, type_)
            return
        code.changes_mode = True
        part = code.vector()
        if type_ is Type.F16:
            # The upper half of the register keeps its value on some processors.
            code.emit(f"v_mov_b32 {part.text}, 0", f"v_cvt_f16_f32 {part.text}, {value.text}")
            self.move(destination, part, type_)
            return
        is_nan, quiet = code.mask(), code.vector()
        code.emit(
            f"v_cmp_u_f32_e64 {is_nan.text}, {value.text}, {value.text}",
            f"v_or_b32 {quiet.text}, {_QUIET:#x}, {value.text}", f"v_bfe_u32 {part.text}, {value.text}, 16, 1",
            f"{self.plain_add} {part.text}, {part.text}, {value.text}",
            f"{self.plain_add} {part.text}, {_HALF:#x}, {part.text}",
            f"v_cndmask_b32_e64 {part.text}, {part.text}, {quiet.text}, {is_nan.text}",
            f"v_lshrrev_b32 {destination.text}, 16, {part.text}",
        )  # fmt: skip

    # Comparisons

    def compare_floats(self, destination: Mask, relation: Relation, left: Value, right: Value, type_: Type) -> None:
        """Compare two floats; the predicate is 0 in lanes that are not active."""
        code = self.code
        code.changes_mode = True
        one, other = (self.in_vector(value, self.words(type_)) for value in (left, right))
        kind = type_
        if type_.bits == 16:
            one, other, kind = self.to_f32(one, type_), self.to_f32(other, type_), Type.F32
        code.emit(f"v_cmp_{_RELATIONS[relation]}_{kind}_e64 {destination.text}, {one.text}, {other.text}")

    def is_number_but_zero(self, destination: Mask, value: Value, type_: Type) -> None:
        """Compute whether a float is not 0: true of a NaN, false of -0. By its bits, whatever MODE is."""
        code, source = self.code, self.in_vector(value, self.words(type_))
        part = code.vector()
        code.emit(f"v_and_b32 {part.text}, {_SIGNS[type_.bits] - 1:#x}, {source.word(source.words - 1)}")
        if source.words == 2:
            code.emit(f"v_or_b32 {part.text}, {part.text}, {source.word(0)}")
        code.emit(f"v_cmp_ne_u32_e64 {destination.text}, 0, {part.text}")
