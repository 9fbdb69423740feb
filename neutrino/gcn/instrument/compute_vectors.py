"""Integers that differ between lanes, computed in VGPRs."""

from __future__ import annotations

from neutrino.gcn.instrument.code import Mask, Value, Vector
from neutrino.gcn.instrument.compute_scalars import BITWISE, RELATIONS, Scalars
from neutrino.ir.operands import Constant
from neutrino.ir.statements import Operator, Relation
from neutrino.ir.types import Type

_COUNTS = (Operator.POPC, Operator.CLZ, Operator.HIGHEST, Operator.LOWEST)


class Vectors(Scalars):
    """Lowers operations on integers in VGPRs."""

    @property
    def plain_add(self) -> str:
        """The vector addition of 32 bits without a carry."""
        return "v_add_nc_u32" if self._machine.generation >= 10 else "v_add_u32"

    @property
    def plain_subtract(self) -> str:
        """The vector subtraction of 32 bits without a borrow."""
        return "v_sub_nc_u32" if self._machine.generation >= 10 else "v_sub_u32"

    @property
    def carry(self) -> str:
        """VCC, as a wave's instructions name it."""
        return "vcc" if self._machine.wave == 64 else "vcc_lo"

    def vector(self, destination: Vector, operator: Operator, type_: Type, values: list[Value], source: Type) -> None:
        """Compute an integer. type_: the destination's. source: of the first operand."""
        if operator is Operator.MUL_ADD:
            self._vector_product_sum(destination, values, is_signed=source.is_signed)
            return
        words = self.words(source)
        is_shift = operator in (Operator.SHL, Operator.SHR)
        operands = [self.in_vector(value, 1 if is_shift and number else words) for number, value in enumerate(values)]
        if operator in _COUNTS:
            self._count(destination, operator, operands[0])
        elif operator is Operator.MUL_HIGH and words == 2:
            self.move(destination, self.high_product(operands[0], operands[1]), type_)
        elif destination.words == 1:
            self._vector_word(destination, operator, type_, operands)
        else:
            self._vector_pair(destination, operator, type_, operands)
        self.narrow(destination, type_)

    def _vector_word(self, destination: Vector, operator: Operator, type_: Type, values: list[Vector]) -> None:
        """Compute 32 bits."""
        code, to = self.code, destination.text
        texts = [value.text for value in values]
        kind = "i32" if type_.is_signed else "u32"
        if operator is Operator.ADD:
            code.emit(f"{self.plain_add} {to}, {texts[0]}, {texts[1]}")
        elif operator is Operator.SUB:
            code.emit(f"{self.plain_subtract} {to}, {texts[0]}, {texts[1]}")
        elif operator is Operator.MUL:
            code.emit(f"v_mul_lo_u32 {to}, {texts[0]}, {texts[1]}")
        elif operator is Operator.MUL_HIGH:
            code.emit(f"v_mul_hi_u32 {to}, {texts[0]}, {texts[1]}")
        elif operator in BITWISE:
            code.emit(f"v_{BITWISE[operator]}_b32 {to}, {texts[0]}, {texts[1]}")
        elif operator is Operator.NOT:
            code.emit(f"v_not_b32 {to}, {texts[0]}")
        elif operator is Operator.NEG:
            code.emit(f"{self.plain_subtract} {to}, 0, {texts[0]}")
        elif operator in (Operator.MIN, Operator.MAX):
            code.emit(f"v_{operator.value}_{kind} {to}, {texts[0]}, {texts[1]}")
        elif operator is Operator.ABS:
            part = code.vector()
            code.emit(f"{self.plain_subtract} {part.text}, 0, {texts[0]}")
            code.emit(f"v_max_i32 {to}, {texts[0]}, {part.text}")
        else:
            is_arithmetic = operator is Operator.SHR and type_.is_signed
            name = "lshlrev_b32" if operator is Operator.SHL else "ashrrev_i32" if is_arithmetic else "lshrrev_b32"
            part = code.vector()
            code.emit(f"v_min_u32 {part.text}, 31, {texts[1]}")
            if is_arithmetic:
                code.emit(f"v_{name} {to}, {part.text}, {texts[0]}")
                return
            is_inside = code.mask()
            code.emit(f"v_cmp_gt_u32_e64 {is_inside.text}, 32, {texts[1]}")
            code.emit(f"v_{name} {part.text}, {part.text}, {texts[0]}")
            code.emit(f"v_cndmask_b32_e64 {to}, 0, {part.text}, {is_inside.text}")

    def _count(self, destination: Vector, operator: Operator, source: Vector) -> None:
        """Count bits, or find one, of 32 or 64."""
        code, to, machine = self.code, destination.word(0), self._machine
        if operator is Operator.POPC:
            counted = code.vector()
            code.emit(f"v_bcnt_u32_b32 {counted.text}, {source.word(0)}, 0")
            if source.words == 2:
                code.emit(f"v_bcnt_u32_b32 {counted.text}, {source.word(1)}, {counted.text}")
            code.emit(f"v_mov_b32 {to}, {counted.text}")
            return
        width = 32 * source.words
        is_lowest = operator is Operator.LOWEST
        name = ("v_ctz_i32_b32" if is_lowest else "v_clz_i32_u32") if machine.generation >= 11 else (
            "v_ffbl_b32" if is_lowest else "v_ffbh_u32")  # fmt: skip
        parts = [code.vector() for _ in range(source.words)]
        # Zeros in front of the first 1 or behind the last one; without any 1 as many as a word has.
        for number, part in enumerate(parts):
            code.emit(f"{name} {part.text}, {source.word(number)}", f"v_min_u32 {part.text}, 32, {part.text}")
        if source.words == 2:
            near, far = parts if is_lowest else parts[::-1]
            # Those of the far word count where the near one has 32.
            is_near = code.mask()
            code.emit(f"v_cmp_gt_u32_e64 {is_near.text}, 32, {near.text}")
            code.emit(f"{self.plain_add} {far.text}, {far.text}, {near.text}")
            code.emit(f"v_cndmask_b32_e64 {far.text}, {far.text}, {near.text}, {is_near.text}")
            parts = [far]
        if operator is Operator.CLZ:
            code.emit(f"v_mov_b32 {to}, {parts[0].text}")
            return
        is_there, found = code.mask(), code.vector()
        code.emit(f"v_cmp_ne_u32_e64 {is_there.text}, {self.number(width).text}, {parts[0].text}")
        if is_lowest:
            code.emit(f"v_mov_b32 {found.text}, {parts[0].text}")
        else:
            code.emit(f"{self.plain_subtract} {found.text}, {width - 1}, {parts[0].text}")
        code.emit(f"v_cndmask_b32_e64 {to}, -1, {found.text}, {is_there.text}")

    def add_pair(self, destination: Vector, left: Vector, right: Vector, *, is_sum: bool = True) -> None:
        """Add or subtract 64 bits, by VCC."""
        vcc, name = self.carry, "add" if is_sum else "sub"
        if self._machine.generation >= 10:
            low, high = f"v_{name}_co_u32", f"v_{name}_co_ci_u32"
        else:
            low, high = f"v_{name}_co_u32", "v_addc_co_u32" if is_sum else "v_subb_co_u32"
        result = destination
        if destination.first in (left.first + 1, right.first + 1):
            result = self.code.vector(2)
        self.code.emit(
            f"{low} {result.word(0)}, {vcc}, {left.word(0)}, {right.word(0)}",
            f"{high} {result.word(1)}, {vcc}, {left.word(1)}, {right.word(1)}, {vcc}",
        )
        self.move(destination, result, Type.U64)

    def negative(self, value: Vector) -> Vector:
        """Return 0 minus a number."""
        result = self.code.vector(value.words)
        if value.words == 1:
            self.code.emit(f"{self.plain_subtract} {result.text}, 0, {value.text}")
        else:
            self.add_pair(result, self.number(0, 2), value, is_sum=False)
        return result

    def _vector_pair(self, destination: Vector, operator: Operator, type_: Type, values: list[Vector]) -> None:
        """Compute 64 bits."""
        code, left = self.code, values[0]
        if operator in (Operator.ADD, Operator.SUB):
            self.add_pair(destination, left, values[1], is_sum=operator is Operator.ADD)
        elif operator is Operator.NEG:
            self.move(destination, self.negative(left), type_)
        elif operator is Operator.MUL:
            self.move(destination, self.low_product(left, values[1]), type_)
        elif operator in BITWISE or operator is Operator.NOT:
            for number in range(2):
                words = [value.word(number) for value in values]
                name = BITWISE.get(operator, "not")
                code.emit(f"v_{name}_b32 {destination.word(number)}, {', '.join(words)}")
        elif operator in (Operator.MIN, Operator.MAX):
            takes = code.mask()
            relation = Relation.LT if operator is Operator.MIN else Relation.GT
            self.compare_integers(takes, relation, left, values[1], type_)
            self.choose(destination, takes, left, values[1])
        elif operator is Operator.ABS:
            negative, is_negative = self.negative(left), code.mask()
            self.compare_integers(is_negative, Relation.LT, left, Constant(type_, 0), type_)
            self.choose(destination, is_negative, negative, left)
        else:
            self._shift_pair(destination, operator, type_, left, values[1])

    def _shift_pair(self, destination: Vector, operator: Operator, type_: Type, left: Vector, amount: Vector) -> None:
        """Shift 64 bits."""
        code = self.code
        is_arithmetic = operator is Operator.SHR and type_.is_signed
        name = "lshlrev_b64" if operator is Operator.SHL else "ashrrev_i64" if is_arithmetic else "lshrrev_b64"
        by, result = code.vector(), code.vector(2)
        code.emit(f"v_min_u32 {by.text}, 63, {amount.text}", f"v_{name} {result.text}, {by.text}, {left.text}")
        if is_arithmetic:
            self.move(destination, result, type_)
            return
        is_inside = code.mask()
        code.emit(f"v_cmp_gt_u32_e64 {is_inside.text}, 64, {amount.text}")
        for number in range(2):
            code.emit(f"v_cndmask_b32_e64 {destination.word(number)}, 0, {result.word(number)}, {is_inside.text}")

    def low_product(self, left: Vector, right: Vector) -> Vector:
        """Return the lower 64 bits of a product."""
        code, result, part = self.code, self.code.vector(2), self.code.vector()
        code.emit(f"v_mul_lo_u32 {result.word(0)}, {left.word(0)}, {right.word(0)}")
        code.emit(f"v_mul_hi_u32 {result.word(1)}, {left.word(0)}, {right.word(0)}")
        for one, other in ((0, 1), (1, 0)):
            code.emit(f"v_mul_lo_u32 {part.text}, {left.word(one)}, {right.word(other)}")
            code.emit(f"{self.plain_add} {result.word(1)}, {result.word(1)}, {part.text}")
        return result

    def high_product(self, left: Vector, right: Vector) -> Vector:
        """Return the upper 64 bits of an unsigned product of 64-bit numbers."""
        code = self.code
        result, carried, part = code.vector(2), code.vector(2), code.vector(2)
        # The upper word of the lowest product, and both mixed ones, added in 64 bits each: none of these sums is too
        # large for them.
        code.emit(f"v_mul_hi_u32 {carried.word(0)}, {left.word(0)}, {right.word(0)}", f"v_mov_b32 {carried.word(1)}, 0")
        code.emit(f"v_mul_lo_u32 {part.word(0)}, {left.word(1)}, {right.word(0)}")
        code.emit(f"v_mul_hi_u32 {part.word(1)}, {left.word(1)}, {right.word(0)}")
        self.add_pair(carried, carried, part)
        code.emit(f"v_mov_b32 {result.word(0)}, {carried.word(1)}", f"v_mov_b32 {result.word(1)}, 0")
        code.emit(f"v_mov_b32 {carried.word(1)}, 0")
        code.emit(f"v_mul_lo_u32 {part.word(0)}, {left.word(0)}, {right.word(1)}")
        code.emit(f"v_mul_hi_u32 {part.word(1)}, {left.word(0)}, {right.word(1)}")
        self.add_pair(carried, carried, part)
        code.emit(f"v_mov_b32 {carried.word(0)}, {carried.word(1)}", f"v_mov_b32 {carried.word(1)}, 0")
        self.add_pair(result, result, carried)
        code.emit(f"v_mul_lo_u32 {part.word(0)}, {left.word(1)}, {right.word(1)}")
        code.emit(f"v_mul_hi_u32 {part.word(1)}, {left.word(1)}, {right.word(1)}")
        self.add_pair(result, result, part)
        return result

    def _vector_product_sum(self, destination: Vector, values: list[Value], *, is_signed: bool) -> None:
        """Add a product of 32-bit numbers to a number."""
        code = self.code
        left, right = (self.in_vector(value, 1) for value in values[:2])
        addend = self.in_vector(values[2], destination.words)
        result = code.vector(destination.words)
        code.emit(f"v_mul_lo_u32 {result.word(0)}, {left.text}, {right.text}")
        if destination.words == 1:
            code.emit(f"{self.plain_add} {destination.text}, {result.text}, {addend.text}")
            return
        kind = "i32" if is_signed else "u32"
        code.emit(f"v_mul_hi_{kind} {result.word(1)}, {left.text}, {right.text}")
        self.add_pair(destination, result, addend)

    def compare_integers(self, destination: Mask, relation: Relation, left: Value, right: Value, type_: Type) -> None:
        """Compare two integers; the predicate is 0 in lanes that are not active."""
        code, machine = self.code, self._machine
        if not isinstance(left, Vector) and not isinstance(right, Vector):
            self.scalar_test(relation, left, right, type_)
            code.emit(f"s_cselect_{machine.mask} {destination.text}, {machine.exec}, 0")
            return
        words = self.words(type_)
        kind = f"{'i' if type_.is_signed else 'u'}{32 * words}"
        one, other = self.in_vector(left, words), self.in_vector(right, words)
        code.emit(f"v_cmp_{RELATIONS[relation]}_{kind}_e64 {destination.text}, {one.text}, {other.text}")
