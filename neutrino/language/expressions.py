"""The expressions of a probe function, evaluated into registers and constants of the typed IR."""

from __future__ import annotations

import ast
import math
import operator
import struct
from collections.abc import Callable, Mapping
from typing import Any

from neutrino.errors import Span
from neutrino.language.faults import Faults, LanguageError
from neutrino.probing.document import shown
from neutrino.probing.ir.operands import Constant, Register, SiteOperand, Special, Value
from neutrino.probing.ir.statements import (
    Compare,
    Convert,
    Load,
    Operation,
    Operator,
    Relation,
    Select,
    Statement,
)
from neutrino.probing.ir.types import Type

HELPERS: Mapping[str, Special] = {
    "clock": Special.CLOCK, "time": Special.TIME, "cuid": Special.CUID, "smid": Special.CUID,
}  # fmt: skip
"""Functions without arguments, such as ``nl.clock()`` → the hardware value that they read."""

SITE_OPERANDS = ("out", "addr", "bytes", "in1", "in2", "in3", "in4", "in5", "in6", "in7", "in8", "in9")
"""``nl.out`` and the others: values of the instruction that a probe is at."""

TYPES: Mapping[str, Type] = {
    ir_type.value: ir_type
    for ir_type in Type
    if ir_type is not Type.F16X2
    and ir_type is not Type.PRED
    and (ir_type is Type.BF16 or not ir_type.value.startswith("b"))
}
"""``nl.u64`` and the others."""

_OPERATORS: Mapping[type[ast.operator], Operator] = {
    ast.Add: Operator.ADD, ast.Sub: Operator.SUB, ast.Mult: Operator.MUL, ast.FloorDiv: Operator.DIV,
    ast.Mod: Operator.REM, ast.BitAnd: Operator.AND, ast.BitOr: Operator.OR, ast.BitXor: Operator.XOR,
    ast.LShift: Operator.SHL, ast.RShift: Operator.SHR,
}  # fmt: skip
_RELATIONS: Mapping[type[ast.cmpop], Relation] = {
    ast.Eq: Relation.EQ, ast.NotEq: Relation.NE, ast.Lt: Relation.LT, ast.LtE: Relation.LE, ast.Gt: Relation.GT,
    ast.GtE: Relation.GE,
}  # fmt: skip
_SHIFTS = frozenset({Operator.SHL, Operator.SHR})
_CONSTANT_OPERATIONS: Mapping[Operator, Callable[[Any, Any], Any]] = {
    Operator.ADD: operator.add, Operator.SUB: operator.sub, Operator.MUL: operator.mul, Operator.DIV: operator.floordiv,
    Operator.REM: operator.mod, Operator.AND: operator.and_, Operator.OR: operator.or_, Operator.XOR: operator.xor,
    Operator.SHL: operator.lshift, Operator.SHR: operator.rshift,
}  # fmt: skip
"""How two literal numbers are combined while the file is read."""
_LITERAL_SHIFT_LIMIT, _MAX_LITERAL_BITS = 64, 128
"""Limits that keep a chain of shifts and products of literals in a probe file from growing without bound."""
_BF16_DIGITS = 8
"""Significant bits of a bf16."""
_BF16_LEAST_EXPONENT = -133
"""The smallest bf16 above 0, a subnormal number, is 2 to this power."""
_SITE_OPERAND_TYPES: Mapping[str, Type] = {"ADDR": Type.U64, "BYTES": Type.U64}
"""Site operands whose type does not depend on the instruction."""
_Number = int | float
_Result = Register | Constant | SiteOperand | _Number
"""The result of an expression. A plain number has no type yet: it takes the type of its context."""


class ExpressionReader:
    """Evaluates expressions: appends the statements that compute them to a list, and returns where the result is.

    alias: the name that ``neutrino.language`` is imported as. registers: those that all probes of the file share, by
    name with ``%``; local variables and temporaries are added.

    failed_names: variables whose assignment was reported as a fault, so that their uses are not reported as well.
    """

    def __init__(self, faults: Faults, alias: str, registers: dict[str, Register]) -> None:
        """Start a function: there are no local variables yet. faults: where faults are reported.

        _locals: local variables by name. _temporary_names: of the registers that hold intermediate results.
        """
        self.failed_names: set[str] = set()
        self._faults = faults
        self._alias = alias
        self._registers = registers
        self._locals: dict[str, Register] = {}
        self._temporary_names: set[str] = set()

    def evaluate(self, node: ast.expr, code: list[Statement], expected: Type | None) -> _Result:
        """Return the value of an expression; statements that compute it are appended to ``code``.

        expected: the type of the context, such as the variable that is assigned; literals and site operands take it.
        None where the context has no type. Raises LanguageError for unsupported expressions.
        """
        # bool is a subclass of int.
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            return self.constant(Type.PRED, int(node.value), node)
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            return node.value
        if isinstance(node, ast.Name):
            if node.id in self.failed_names:
                # Its assignment was reported; this stops the statement without another fault.
                raise LanguageError(node.id)
            register = self.variable(node.id)
            if register is None:
                raise self._faults.refuse(node, "python-name", f"{node.id} has no value here")
            return register
        if isinstance(node, ast.BinOp):
            return self._binary(node, code, expected)
        if isinstance(node, ast.UnaryOp):
            return self._unary(node, code, expected)
        if isinstance(node, (ast.Compare, ast.BoolOp)):
            return self.condition(node, code)
        if isinstance(node, ast.IfExp):
            return self._conditional(node, code, expected)
        if isinstance(node, ast.Attribute) and self._is_language(node) and node.attr in SITE_OPERANDS:
            return SiteOperand(node.attr.upper())
        if isinstance(node, ast.Call):
            return self._call(node, code)
        raise self._faults.refuse(node, "python-expression", f"'{self._faults.quote(node)}' in a probe")

    def _call(self, node: ast.Call, code: list[Statement]) -> _Result:
        """Evaluate a helper (``nl.clock()``), site operand (``nl.out()``) or type conversion (``nl.u32(x)``).

        Raises LanguageError for any other call.
        """
        function = node.func
        if isinstance(function, ast.Attribute) and self._is_language(function) and not node.keywords:
            if function.attr in HELPERS and not node.args:
                # Read now, into a register: the value may change before it is used.
                special = HELPERS[function.attr]
                return self._emit(Operator.MOVE, special.type, (special,), node, code)
            if function.attr in SITE_OPERANDS and not node.args:
                return SiteOperand(function.attr.upper())
            if function.attr in TYPES and len(node.args) == 1:
                target_type = TYPES[function.attr]
                result = self.evaluate(node.args[0], code, target_type)
                return self.convert(result, target_type, node, code)
        hint = "the helpers are " + ", ".join(f"{self._alias}.{name}()" for name in HELPERS)
        raise self._faults.refuse(node, "python-call", f"'{self._faults.quote(function)}' is called", hint)

    # Operators

    def _binary(self, node: ast.BinOp, code: list[Statement], expected: Type | None) -> _Result:
        """Evaluate ``left OP right``: a plain number if both operands are literals, else a register.

        expected: as in ``evaluate``. Raises LanguageError for unsupported operators and for types that do not match.
        """
        if isinstance(node.op, ast.Div):
            # In Python its result is always a fraction.
            hint = "// divides integers; of fractions save both, and divide afterwards"
            raise self._faults.refuse(node, "python-expression", "'/' in a probe", hint)
        operation = _OPERATORS.get(type(node.op))
        if operation is None:
            raise self._faults.refuse(node, "python-expression", f"'{self._faults.quote(node)}' in a probe")
        left, right = self.evaluate(node.left, code, expected), self.evaluate(node.right, code, expected)
        if isinstance(left, (int, float)) and isinstance(right, (int, float)):
            return self._fold(operation, left, right, node)

        if operation in _SHIFTS:
            # The shift amount is u32, whatever is shifted.
            value = self.convert(left, self._require_type(left, expected, node.left), node.left, code)
            amount = self.convert(right, Type.U32, node.right, code)
            return self._emit(operation, value.type, (value, amount), node, code)

        common_type = self._common_type(left, right, expected, node)
        first = self.convert(left, common_type, node.left, code)
        second = self.convert(right, common_type, node.right, code)
        # Of unsigned integers, the IR's division is Python's.
        if operation in {Operator.DIV, Operator.REM} and common_type.is_signed:
            return self._floor_division(operation, common_type, first, second, node, code)
        return self._emit(operation, common_type, (first, second), node, code)

    def _floor_division(
        self, operation: Operator, type_: Type, dividend: Value, divisor: Value, node: ast.expr, code: list[Statement]
    ) -> Register:
        """Emit ``//`` (DIV) or ``%`` (REM) of signed integers as Python defines them.

        Python rounds the quotient down, the IR's division rounds towards zero. They differ when the division is inexact
        and the operands have different signs: then the quotient is one less, and the remainder one divisor more.

        type_: of both operands and the result.
        """
        zero = Constant(type_, 0)
        span = self._faults.span(node)
        remainder = self._emit(Operator.REM, type_, (dividend, divisor), node, code)

        # The remainder has the dividend's sign, so its exclusive or with the divisor is negative if the signs differ.
        signs = self._emit(Operator.XOR, type_, (remainder, divisor), node, code)
        signs_differ, is_inexact = self._temporary(Type.PRED, node), self._temporary(Type.PRED, node)
        code.append(Compare(Relation.LT, signs_differ, signs, zero, span))
        code.append(Compare(Relation.NE, is_inexact, remainder, zero, span))
        needs_correction = self._emit(Operator.AND, Type.PRED, (signs_differ, is_inexact), node, code)

        if operation is Operator.REM:
            truncated = remainder
            corrected = self._emit(Operator.ADD, type_, (remainder, divisor), node, code)
        else:
            truncated = self._emit(Operator.DIV, type_, (dividend, divisor), node, code)
            corrected = self._emit(Operator.SUB, type_, (truncated, Constant(type_, 1)), node, code)
        target = self._temporary(type_, node)
        code.append(Select(target, needs_correction, corrected, truncated, span))
        return target

    def _fold(self, operation: Operator, left: _Number, right: _Number, node: ast.expr) -> _Number:
        """Return ``left OP right`` for two literal numbers, by Python's rules.

        Raises LanguageError for a division by zero, an operation that the numbers do not have, and large results.
        """
        if operation in _SHIFTS and not 0 <= right < _LITERAL_SHIFT_LIMIT:
            raise self._faults.refuse(node, "python-expression", f"'{self._faults.quote(node)}' shifts by {right}")
        try:
            result: _Number = _CONSTANT_OPERATIONS[operation](left, right)
        except (ArithmeticError, TypeError, ValueError) as error:
            raise self._faults.refuse(node, "python-expression", f"'{self._faults.quote(node)}': {error}") from None
        if isinstance(result, int) and result.bit_length() > _MAX_LITERAL_BITS:
            message = f"'{self._faults.quote(node)}' is beyond {_MAX_LITERAL_BITS} bits"
            raise self._faults.refuse(node, "python-expression", message)
        return result

    def _unary(self, node: ast.UnaryOp, code: list[Statement], expected: Type | None) -> _Result:
        """Evaluate ``not x``, ``+x``, ``-x`` or ``~x``; of a literal at once. expected: as in ``evaluate``."""
        if isinstance(node.op, ast.Not):
            condition = self.condition(node.operand, code)
            return self._emit(Operator.NOT, Type.PRED, (condition,), node, code)
        result = self.evaluate(node.operand, code, expected)
        if isinstance(node.op, ast.UAdd):
            return result
        if isinstance(result, (int, float)):
            if isinstance(node.op, ast.USub):
                return -result
            # Only ~ is left, which Python has for integers alone.
            if isinstance(result, int):
                return ~result
            raise self._faults.refuse(node, "python-type", "'~' of a float")
        operation = Operator.NEG if isinstance(node.op, ast.USub) else Operator.NOT
        value = self.convert(result, self._require_type(result, expected, node.operand), node.operand, code)
        return self._emit(operation, value.type, (value,), node, code)

    def condition(self, node: ast.expr, code: list[Statement]) -> Register:
        """Evaluate an expression as a predicate: a comparison, ``and``/``or`` of several, or whether a number is not 0.

        Both operands of ``and`` and ``or`` are always evaluated, since predicates are combined without a branch.
        """
        if isinstance(node, ast.BoolOp):
            joined = Operator.AND if isinstance(node.op, ast.And) else Operator.OR
            return self._join(joined, [self.condition(value, code) for value in node.values], node, code)
        if isinstance(node, ast.Compare):
            # Each operand is evaluated once, also the middle one of a < b < c.
            operands = [(side, self.evaluate(side, code, None)) for side in (node.left, *node.comparators)]
            # Each operand with the next one: the last has none, so the lists differ in length.
            comparisons = [
                self._compare(relation, left, right, node, code)
                for relation, left, right in zip(node.ops, operands, operands[1:], strict=False)
            ]
            return self._join(Operator.AND, comparisons, node, code)
        result = self.evaluate(node, code, None)
        if isinstance(result, (int, float)):
            return self._in_register(self.constant(Type.PRED, int(bool(result)), node), node, code)
        value = self.convert(result, self._require_type(result, None, node), node, code)
        return self._in_register(self.convert(value, Type.PRED, node, code), node, code)

    def _join(self, operation: Operator, predicates: list[Register], node: ast.expr, code: list[Statement]) -> Register:
        """Combine one or more predicates by AND or OR (``operation``); return the predicate with the result."""
        joined, *others = predicates
        for predicate in others:
            joined = self._emit(operation, Type.PRED, (joined, predicate), node, code)
        return joined

    def _compare(
        self, comparison: ast.cmpop, left: tuple[ast.expr, _Result], right: tuple[ast.expr, _Result], node: ast.expr,
        code: list[Statement],
    ) -> Register:  # fmt: skip
        """Emit one comparison and return its predicate. left, right: an operand's expression, and its value.

        Raises LanguageError for ``is`` and ``in``, and for types that do not match.
        """
        relation = _RELATIONS.get(type(comparison))
        if relation is None:
            raise self._faults.refuse(node, "python-expression", f"'{self._faults.quote(node)}' in a probe")
        (left_node, left_result), (right_node, right_result) = left, right
        common_type = self._common_type(left_result, right_result, None, node)
        target = self._temporary(Type.PRED, node)
        first = self.convert(left_result, common_type, left_node, code)
        second = self.convert(right_result, common_type, right_node, code)
        code.append(Compare(relation, target, first, second, self._faults.span(node)))
        return target

    def _conditional(self, node: ast.IfExp, code: list[Statement], expected: Type | None) -> Register:
        """Evaluate ``a if condition else b`` by a select: both values are computed. expected: as in ``evaluate``."""
        condition = self.condition(node.test, code)
        then, otherwise = self.evaluate(node.body, code, expected), self.evaluate(node.orelse, code, expected)
        common_type = self._common_type(then, otherwise, expected, node)
        target = self._temporary(common_type, node)
        first = self.convert(then, common_type, node.body, code)
        second = self.convert(otherwise, common_type, node.orelse, code)
        code.append(Select(target, condition, first, second, self._faults.span(node)))
        return target

    # Types

    def type_of(self, node: ast.expr) -> Type:
        """Return the type that an expression such as ``nl.u64`` names. Raises LanguageError if it names none."""
        if isinstance(node, ast.Attribute) and self._is_language(node) and node.attr in TYPES:
            return TYPES[node.attr]
        known = ", ".join(f"{self._alias}.{name}" for name in TYPES)
        message = f"'{self._faults.quote(node)}' is no type"
        raise self._faults.refuse(node, "python-type", message, f"the types are {known}")

    def _common_type(self, left: _Result, right: _Result, expected: Type | None, node: ast.expr) -> Type:
        """Return the type in which two operands are combined: the wider of two integers of one sign, or of two floats.

        An operand without a type takes the other's; ``expected`` is the type if neither has one. Raises LanguageError
        if the types do not match, or if there is none.
        """
        types = [type_ for type_ in map(type_of_result, (left, right)) if type_ is not None]
        if not types:
            return self._require_type(left, expected, node)
        # The same one twice if one operand has no type.
        first, second = types[0], types[-1]
        if first is second:
            return first
        alike = first.is_float == second.is_float and first.is_signed == second.is_signed
        if not alike or Type.PRED in {first, second}:
            hint = f"convert one of them: {self._alias}.{first}(…)"
            message = f"{first} and {second} in '{self._faults.quote(node)}'"
            raise self._faults.refuse(node, "python-type", message, hint)
        return first if first.bits >= second.bits else second

    def _require_type(self, result: _Result, expected: Type | None, node: ast.expr) -> Type:
        """Return the type of an expression's value, or the expected type if it has none of its own, as a literal.

        Raises LanguageError, reported at ``node``, if there is neither.
        """
        known_type = type_of_result(result) or expected
        if known_type is None:
            message = f"'{self._faults.quote(node)}' has no type"
            raise self._faults.refuse(node, "python-type", message, f"say which: {self._alias}.u32(…)")
        return known_type

    def convert(self, result: _Result, target_type: Type, node: ast.expr, code: list[Statement]) -> Register | Constant:
        """Return an expression's value in a type; a load or conversion is appended to ``code`` if it takes one.

        result: the value. node: the expression, for faults. Raises LanguageError for a number that the type cannot
        represent.
        """
        if isinstance(result, (int, float)):
            return self.constant(target_type, result, node)
        if isinstance(result, SiteOperand):
            # A site operand of the instruction's type is loaded as the type that is asked for.
            # One of a type of its own is loaded as that, and converted below.
            register = self._temporary(type_of_result(result) or target_type, node)
            code.append(Load(register, result, self._faults.span(node)))
            result = register
        if result.type is target_type:
            return result
        target = self._temporary(target_type, node)
        code.append(Convert(target, result, self._faults.span(node)))
        return target

    def constant(self, type_: Type, number: _Number, node: ast.expr) -> Constant:
        """Return a number as a constant of a type, rounded to nearest if that is a floating-point type.

        Raises LanguageError, reported at ``node``, for a number out of the type's range. Unsigned integers also take
        -1, as all bits set.
        """
        if type_.is_float:
            # struct rounds to nearest, but has no format for bf16, the upper half of an f32: such a value is rounded
            # before, and an f32 holds the result exactly.
            float_format, bits_format = {Type.F64: ("<d", "<Q"), Type.F16: ("<e", "<H")}.get(type_, ("<f", "<I"))
            try:
                value = float(number) if type_ is not Type.BF16 else _nearest_bf16(float(number))
                (bits,) = struct.unpack(bits_format, struct.pack(float_format, value))
                if type_ is Type.BF16:
                    bits >>= 16
            except OverflowError:
                raise self._faults.refuse(node, "python-type", f"{shown(number)} does not fit in {type_}") from None
            return Constant(type_, bits)
        least = -(1 << (type_.bits - 1)) if type_.is_signed else -1
        greatest = (1 << (type_.bits - 1 if type_.is_signed else type_.bits)) - 1
        if not isinstance(number, int) or not least <= number <= greatest:
            raise self._faults.refuse(node, "python-type", f"{shown(number)} does not fit in {type_}")
        # Negative numbers as two's complement.
        return Constant(type_, number % (1 << type_.bits))

    # Registers

    def variable(self, name: str) -> Register | None:
        """Return the register of a variable: a shared register of the file or a local variable; None if undefined."""
        return self._registers.get(f"%{name}") or self._locals.get(name)

    def declare_local(self, name: str, type_: Type, span: Span) -> Register:
        """Make a local variable of the function and return its register."""
        # The type is part of the name: functions may have variables of one name and different types.
        register = self._locals[name] = self._declare(f"%{name}${type_}", type_, span)
        return register

    def is_temporary(self, value: Register | Constant) -> bool:
        """Return whether a value is in a register that this reader made for an intermediate result."""
        return value.text in self._temporary_names

    def _emit(
        self, operation: Operator, type_: Type, sources: tuple[Value, ...], node: ast.expr, code: list[Statement]
    ) -> Register:
        """Append an operation on ``sources`` that writes a new temporary of a type, and return that temporary.

        node: the expression that is computed, for the operation's place in the file.
        """
        target = self._temporary(type_, node)
        code.append(Operation(operation, target, sources, self._faults.span(node)))
        return target

    def _in_register(self, value: Register | Constant, node: ast.expr, code: list[Statement]) -> Register:
        """Return a value's register; a constant is moved into a new one."""
        if isinstance(value, Register):
            return value
        return self._emit(Operator.MOVE, value.type, (value,), node, code)

    def _temporary(self, type_: Type, node: ast.expr) -> Register:
        """Make a register for an intermediate result. Its name has a ``$``, which no Python variable can have."""
        name = f"%$t{len(self._temporary_names) + 1}_{type_}"
        self._temporary_names.add(name)
        return self._declare(name, type_, self._faults.span(node))

    def _declare(self, name: str, type_: Type, span: Span) -> Register:
        """Return the local register of that name; other functions of the file may have declared it already."""
        return self._registers.setdefault(name, Register(name, type_, 0, span, is_local=True))

    def _is_language(self, node: ast.Attribute) -> bool:
        """Return whether an attribute is one of ``neutrino.language``, as in ``nl.u64``."""
        return isinstance(node.value, ast.Name) and node.value.id == self._alias


def type_of_result(result: _Result) -> Type | None:
    """Return the type of an expression's value.

    None for a plain number, and for a site operand that has whatever type the probed instruction has.
    """
    if isinstance(result, SiteOperand):
        return _SITE_OPERAND_TYPES.get(result.name)
    return None if isinstance(result, (int, float)) else result.type


def _nearest_bf16(number: float) -> float:
    """Round a number to the 8 significant bits of a bf16, ties to even. Infinities and NaN are returned as they are.

    The result may be 2^128 or more, which no f32 can hold: the caller refuses it. Raises OverflowError for one that no
    f64 can hold either.
    """
    if not math.isfinite(number):
        return number
    # number is fraction * 2^exponent with a fraction from 1/2 to below 1. unit: what the last significant bit of the
    # result counts; subnormal numbers have fewer bits. It is a power of two, so the division is exact; round() rounds
    # ties to even, and copysign keeps the sign of a zero.
    _, exponent = math.frexp(number)
    unit = math.ldexp(1.0, max(exponent - _BF16_DIGITS, _BF16_LEAST_EXPONENT))
    rounded = math.copysign(round(number / unit) * unit, number)
    if math.isinf(rounded):
        raise OverflowError
    return rounded
