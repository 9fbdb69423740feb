"""Integers that are the same in all lanes, computed in SGPRs."""

from __future__ import annotations

from neutrino.gcn.instrument.code import Scalar, Value
from neutrino.gcn.instrument.compute_moves import Moves
from neutrino.ir.operands import Constant
from neutrino.ir.statements import Operator, Relation
from neutrino.ir.types import Type

BITWISE = {Operator.AND: "and", Operator.OR: "or", Operator.XOR: "xor"}
RELATIONS = {Relation.EQ: "eq", Relation.NE: "ne", Relation.LT: "lt", Relation.LE: "le", Relation.GT: "gt",
             Relation.GE: "ge"}  # fmt: skip
"""As vector instructions on integers name them."""
_SCALAR_NAMES = {**RELATIONS, Relation.NE: "lg"}
_SWAPPED = {Relation.GT: Relation.LT, Relation.LE: Relation.GE}
"""Relations of two numbers → the same of these in the other order."""
_SIGN = 1 << 31
OF_SCALARS = frozenset({
    Operator.ADD, Operator.SUB, Operator.MUL, Operator.MIN, Operator.MAX, Operator.AND, Operator.OR, Operator.XOR,
    Operator.NOT, Operator.NEG, Operator.ABS, Operator.SHL, Operator.SHR, Operator.POPC, Operator.CLZ,
    Operator.MUL_ADD,
})  # fmt: skip
"""What scalar instructions compute of integers."""


class Scalars(Moves):
    """Lowers operations on integers in SGPRs."""

    def scalar(self, destination: Scalar, operator: Operator, type_: Type, values: list[Value], source: Type) -> None:
        """Compute an integer. type_: the destination's. source: of the first operand."""
        code, machine = self.code, self._machine
        if operator in (Operator.ADD, Operator.SUB, Operator.NEG):
            first, second = (Constant(type_, 0), values[0]) if operator is Operator.NEG else (values[0], values[1])
            is_sum = operator is Operator.ADD
            low, high = (machine.add, machine.add_carry) if is_sum else (machine.subtract, machine.subtract_borrow)
            # What may need a register comes first: moves leave the carry alone all the same.
            pairs = [self.pair(first, second, number) for number in range(destination.words)]
            for name, number, words in zip((low, high), range(destination.words), pairs, strict=False):
                code.emit(f"{name} {destination.word(number)}, {words}")
        elif operator in (Operator.MUL, Operator.MUL_ADD):
            self.scalar_product(destination, operator, values, is_signed=source.is_signed)
        elif operator in BITWISE:
            for number in range(destination.words):
                pair = self.pair(values[0], values[1], number)
                code.emit(f"s_{BITWISE[operator]}_b32 {destination.word(number)}, {pair}")
        elif operator is Operator.NOT:
            for number in range(destination.words):
                code.emit(f"s_not_b32 {destination.word(number)}, {self.word(values[0], number)}")
        elif operator in (Operator.SHL, Operator.SHR):
            self._scalar_shift(destination, operator, type_, values)
        elif operator in (Operator.MIN, Operator.MAX):
            self._scalar_extreme(destination, operator, type_, values)
        elif operator is Operator.ABS:
            negative = code.scalar(destination.words)
            self.scalar(negative, Operator.NEG, type_, values, source)
            self._scalar_extreme(destination, Operator.MAX, type_, [values[0], negative])
        elif operator is Operator.POPC:
            counted = self._whole(values[0], source)
            code.emit(f"s_bcnt1_i32_b{32 * counted.words} {destination.word(0)}, {counted.text}")
        elif operator is Operator.CLZ:
            counted = self._whole(values[0], source)
            name = "s_clz_i32_u" if machine.generation >= 11 else "s_flbit_i32_b"
            code.emit(f"{name}{32 * counted.words} {destination.word(0)}, {counted.text}")
            code.emit(f"s_min_u32 {destination.word(0)}, {destination.word(0)}, {32 * counted.words}")
        self.narrow(destination, type_)

    def _scalar_extreme(self, destination: Scalar, operator: Operator, type_: Type, values: list[Value]) -> None:
        """Take the lesser or the greater of two."""
        code = self.code
        if destination.words == 1:
            kind = "i32" if type_.is_signed else "u32"
            code.emit(f"s_{operator.value}_{kind} {destination.text}, {self.pair(values[0], values[1])}")
            return
        left, right = (self._whole(value, type_) for value in values)
        self.scalar_test(Relation.LT if operator is Operator.MIN else Relation.GT, left, right, type_)
        for number in range(2):
            code.emit(f"s_cselect_b32 {destination.word(number)}, {left.word(number)}, {right.word(number)}")

    def _whole(self, value: Value, type_: Type) -> Scalar:
        """Return an operand in SGPRs."""
        return self.in_scalar(value, self.words(type_))

    def scalar_product(self, destination: Scalar, operator: Operator, values: list[Value], *, is_signed: bool) -> None:
        """Multiply, and add if asked. is_signed: of ``MUL_ADD``, the factors."""
        code, machine, word = self.code, self._machine, self.word
        left, right = values[:2]
        if destination.words == 1:
            product = code.scalar()
            code.emit(f"s_mul_i32 {product.text}, {self.pair(left, right)}")
            if operator is Operator.MUL_ADD:
                code.emit(f"{machine.add} {product.text}, {product.text}, {word(values[2], 0)}")
            self.move(destination, product, Type.U32)
            return
        result, part = code.scalar(2), code.scalar()
        kind = "i32" if is_signed and operator is Operator.MUL_ADD else "u32"
        code.emit(f"s_mul_i32 {result.word(0)}, {self.pair(left, right)}")
        code.emit(f"s_mul_hi_{kind} {result.word(1)}, {self.pair(left, right)}")
        if operator is Operator.MUL:
            for first, second, one, other in ((left, right, 0, 1), (left, right, 1, 0)):
                if isinstance(first, Constant) and isinstance(second, Constant):
                    first = self._whole(first, first.type)
                code.emit(f"s_mul_i32 {part.text}, {word(first, one)}, {word(second, other)}")
                code.emit(f"{machine.add} {result.word(1)}, {result.word(1)}, {part.text}")
        else:
            code.emit(f"{machine.add} {result.word(0)}, {result.word(0)}, {word(values[2], 0)}")
            code.emit(f"{machine.add_carry} {result.word(1)}, {result.word(1)}, {word(values[2], 1)}")
        code.emit(f"s_mov_b64 {destination.text}, {result.text}")

    def _scalar_shift(self, destination: Scalar, operator: Operator, type_: Type, values: list[Value]) -> None:
        """Shift: an amount of the width or more gives 0, or all signs."""
        code = self.code
        value, amount = values
        width = max(type_.bits, 32)
        is_arithmetic = operator is Operator.SHR and type_.is_signed
        name = "lshl" if operator is Operator.SHL else "ashr" if is_arithmetic else "lshr"
        name = f"s_{name}_{'i' if is_arithmetic else 'b'}{width}"
        source = self._whole(value, type_)
        if isinstance(amount, Constant):
            if amount.bits >= width and not is_arithmetic:
                self.move(destination, Constant(type_, 0), type_)
            else:
                code.emit(f"{name} {destination.text}, {source.text}, {min(amount.bits, width - 1)}")
            return
        clamped, result = code.scalar(), code.scalar(destination.words)
        code.emit(f"s_min_u32 {clamped.text}, {self.word(amount, 0)}, {width - 1}")
        code.emit(f"{name} {result.text}, {source.text}, {clamped.text}")
        if is_arithmetic:
            self.move(destination, result, type_)
            return
        code.emit(f"s_cmp_lt_u32 {self.word(amount, 0)}, {width}")
        for number in range(destination.words):
            code.emit(f"s_cselect_b32 {destination.word(number)}, {result.word(number)}, 0")

    def scalar_test(self, relation: Relation, left: Value, right: Value, type_: Type) -> None:
        """Set SCC to whether a relation holds of two integers in SGPRs."""
        code, machine = self.code, self._machine
        if self.words(type_) == 1:
            kind = "i32" if type_.is_signed else "u32"
            code.emit(f"s_cmp_{_SCALAR_NAMES[relation]}_{kind} {self.pair(left, right)}")
            return
        first, second = self._whole(left, type_), self._whole(right, type_)
        if relation in (Relation.EQ, Relation.NE):
            code.emit(f"s_cmp_{_SCALAR_NAMES[relation]}_u64 {first.text}, {second.text}")
            return
        if relation in _SWAPPED:
            # a > b is b < a, and a <= b is b >= a.
            relation, first, second = _SWAPPED[relation], second, first
        highs = [first.word(1), second.word(1)]
        if type_.is_signed:
            for number in range(2):
                flipped = code.scalar()
                code.emit(f"s_xor_b32 {flipped.text}, {highs[number]}, {_SIGN:#x}")
                highs[number] = flipped.text
        part = code.scalar()
        code.emit(f"{machine.subtract} {part.text}, {first.word(0)}, {second.word(0)}")
        code.emit(f"{machine.subtract_borrow} {part.text}, {highs[0]}, {highs[1]}")
        if relation is Relation.GE:
            # Not less: SCC is inverted.
            code.emit(f"s_cselect_b32 {part.text}, 0, 1", f"s_cmp_lg_u32 {part.text}, 0")
