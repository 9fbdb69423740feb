"""What is known while a file is read: numbers and truth values of constants, and of variables of unrolled loops."""

from __future__ import annotations

import ast
import itertools
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from neutrino.ir.operands import Constant, Register
from neutrino.ir.statements import Operator
from neutrino.ir.types import Type
from neutrino.language.faults import Faults
from neutrino.language.literals import Number, bounds, fold
from neutrino.language.typed_values import ValueWriter

OPERATORS: Mapping[type[ast.operator], Operator] = {
    ast.Add: Operator.ADD, ast.Sub: Operator.SUB, ast.Mult: Operator.MUL, ast.FloorDiv: Operator.DIV,
    ast.Mod: Operator.REM, ast.BitAnd: Operator.AND, ast.BitOr: Operator.OR, ast.BitXor: Operator.XOR,
    ast.LShift: Operator.SHL, ast.RShift: Operator.SHR,
}  # fmt: skip
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
_NOTHING: Mapping[str, Number] = {}
_MOST_VALUES = 4096
"""Values of an expression of loops' variables that are looked at: with more it is not known."""


class _Known(NamedTuple):
    """A number, or a truth value, with the least and the greatest number that the computation of it may have."""

    number: Number
    low: float = float("-inf")
    high: float = float("inf")


class ConstantReader(ValueWriter):
    """Evaluates what is known while the file is read, without writing any code.

    constants: the numbers that the file gives names.
    """

    def __init__(
        self, faults: Faults, alias: str, registers: dict[str, Register], constants: Mapping[str, Number] = _NOTHING
    ) -> None:
        """Set up an evaluator of constant expressions. Parameters are those of ``ValueWriter``; constants: see the
        class."""
        super().__init__(faults, alias, registers)
        self._constants = constants

    def known(self, node: ast.expr) -> Number | None:
        """Return the constant that an expression evaluates to, a number or a ``bool``; None if it is only known at run
        time.

        Raises LanguageError for what constants have no value for, as a division by 0.
        """
        found = self._known(node, {})
        return None if found is None else found.number

    def without_hint(self, node: ast.expr) -> tuple[ast.expr, bool]:
        """Return the condition of an ``if`` without ``nl.unlikely`` around it, and whether that was there.

        Raises LanguageError unless it is given one condition.
        """
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "unlikely":
            return node, False
        if not self._is_language(node.func) or len(node.args) != 1 or node.keywords:
            raise self._faults.refuse(node, "python-call", f"{self._alias}.unlikely takes 1 condition")
        return node.args[0], True

    def known_integer(self, node: ast.expr) -> int | None:
        """Return the integer constant that an expression evaluates to; None if it is computed at run time, or no
        integer.

        Raises as ``known``.
        """
        value = self.known(node)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def constant_integer(self, node: ast.expr, what: str = "") -> int:
        """Return the integer constant that an expression evaluates to. what: the rule that asks for one, for a message.

        Raises LanguageError if it is computed at run time, or no integer.
        """
        value = self.known_integer(node)
        if value is not None:
            return value
        # Names that there are not, and the like, are their own faults.
        self.checked(node)
        written = self._faults.quote(node)
        message = f"{what}, and '{written}' is not" if what else f"'{written}' is not a whole number that is known here"
        hint = "write a number, a constant at the top of the file, or the variable of a for around it"
        raise self._faults.refuse(node, "python-expression", message, hint)

    def checked(self, node: ast.expr) -> None:
        """Raise LanguageError for an expression without any value, such as an unknown name. Derived classes do; here
        nothing is checked."""

    def values_in_turns(self, node: ast.expr) -> Collection[int] | None:
        """Return all values that an integer expression takes in the iterations of the (unrolled) loops around it.

        None if it has other values than those of constants and loops' variables, or if it wraps around.
        """
        names = sorted({part.id for part in ast.walk(node) if isinstance(part, ast.Name)})
        loops = {name: self.locals.scope.loops[name] for name in names if name in self.locals.scope.loops}
        count = 1
        for turns in loops.values():
            count *= len(turns)
        if not loops or count > _MOST_VALUES:
            return None
        values: set[int] = set()
        for numbers in itertools.product(*loops.values()):
            found = self._known(node, dict(zip(loops, numbers, strict=True)))
            if found is None or isinstance(found.number, (bool, float)):
                return None
            values.add(found.number)
        return values

    def _known(self, node: ast.expr, turns: Mapping[str, int]) -> _Known | None:
        """Evaluate an expression as a constant; None if it is none. turns: values of loops' variables in one iteration,
        by name."""
        if isinstance(node, ast.Constant):
            return _Known(node.value) if isinstance(node.value, (int, float)) else None
        if isinstance(node, ast.Name):
            return self._known_name(node.id, turns)
        if isinstance(node, ast.UnaryOp):
            return self._known_unary(node, turns)
        if isinstance(node, ast.BinOp):
            return self._known_binary(node, turns)
        if isinstance(node, ast.BoolOp):
            return _joined(node.op, [self._known(value, turns) for value in node.values])
        if isinstance(node, ast.Compare):
            return self._known_comparison(node, turns)
        if isinstance(node, ast.IfExp):
            return self._known_choice(node.test, node.body, node.orelse, turns)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and self._is_language(node.func):
            return self._known_call(node.func.attr, node, turns)
        return None

    def _known_name(self, name: str, turns: Mapping[str, int]) -> _Known | None:
        """Return the value of a loop's variable, of a parameter that was given a number, or of a constant."""
        scope = self.locals.scope
        value = scope.values.get(name)
        if name in turns or name in scope.turns:
            number = turns[name] if name in turns else scope.turns[name]
            # Typed expressions of it have to stay in what its register holds; as an index it is a number alone.
            if name in turns and isinstance(value, Register):
                return _Known(number, *bounds(value.type))
            return _Known(number)
        if isinstance(value, Constant):
            return _of_constant(value)
        if value is None and f"%{name}" not in self.locals.registers:
            value = self._constants.get(name)
        return _Known(value) if isinstance(value, (int, float)) else None

    def _known_unary(self, node: ast.UnaryOp, turns: Mapping[str, int]) -> _Known | None:
        """Return the value of ``-x``, ``+x``, ``~x`` or ``not x``; None if it is unknown. turns: see ``_known``."""
        operand = self._known(node.operand, turns)
        if operand is None or isinstance(node.op, ast.Not):
            return None if operand is None else _Known(not operand.number)
        number = operand.number
        if isinstance(number, bool) or (isinstance(node.op, ast.Invert) and not isinstance(number, int)):
            return None
        if isinstance(node.op, ast.Invert):
            return _checked(~number, operand)  # type: ignore[operator]
        return _checked(-number if isinstance(node.op, ast.USub) else number, operand)

    def _known_binary(self, node: ast.BinOp, turns: Mapping[str, int]) -> _Known | None:
        """Return the value of ``x OP y``; None if it is not known. turns: see ``_known``."""
        operation = OPERATORS.get(type(node.op))
        left, right = self._known(node.left, turns), self._known(node.right, turns)
        if operation is None or left is None or right is None or bool in {type(left.number), type(right.number)}:
            return None
        return _checked(self._fold(operation, left.number, right.number, node), left, right)

    def _fold(self, operation: Operator, left: Number, right: Number, node: ast.expr) -> Number:
        """Return ``left OP right`` for two literal numbers, by Python's rules.

        Raises LanguageError for a division by zero, an operation that the numbers do not have, and large results.
        """
        try:
            return fold(operation, left, right)
        except ValueError as error:
            message = f"'{self._faults.quote(node)}'{error}"
            raise self._faults.refuse(node, "python-expression", message) from None

    def _known_comparison(self, node: ast.Compare, turns: Mapping[str, int]) -> _Known | None:
        """Return whether a comparison holds; of a chain also where one that does not is known."""
        operands = [self._known(operand, turns) for operand in (node.left, *node.comparators)]
        answers: list[_Known | None] = []
        # Each operand with the next one: the last has none, so the lists differ in length.
        for relation, left, right in zip(node.ops, operands, operands[1:], strict=False):
            compare = _COMPARISONS.get(type(relation))
            is_known = compare is not None and left is not None and right is not None
            answers.append(
                _Known(compare(left.number, right.number)) if is_known and compare and left and right else None
            )
        return _joined(ast.And(), answers)

    def _known_choice(
        self, test: ast.expr, then: ast.expr, otherwise: ast.expr, turns: Mapping[str, int]
    ) -> _Known | None:
        """Return the value of ``then if test else otherwise``; None if it is unknown. turns: see ``_known``."""
        condition = self._known(test, turns)
        return None if condition is None else self._known(then if condition.number else otherwise, turns)

    def _known_call(self, name: str, node: ast.Call, turns: Mapping[str, int]) -> _Known | None:
        """Return the value of ``nl.min``, ``nl.max``, ``nl.abs`` and ``nl.select``."""
        if name == "select" and len(node.args) == 3 and not node.keywords:
            return self._known_choice(node.args[0], node.args[1], node.args[2], turns)
        if name not in {"min", "max", "abs"} or node.keywords:
            return None
        found = [self._known(argument, turns) for argument in node.args]
        values = [value for value in found if value is not None]
        if len(values) < len(found) or len(values) < (1 if name == "abs" else 2) or (name == "abs" and len(values) > 1):
            return None
        numbers = [value.number for value in values]
        if any(isinstance(number, bool) for number in numbers):
            return None
        number = abs(numbers[0]) if name == "abs" else min(numbers) if name == "min" else max(numbers)
        return _checked(number, *values)


def _of_constant(value: Constant) -> _Known | None:
    """Return the number that a typed constant is; None for one of a type with fractions, which rounds it."""
    if value.type is Type.PRED:
        return _Known(bool(value.bits))
    if not value.type.is_integer:
        return None
    low, high = bounds(value.type)
    return _Known(value.bits if value.bits <= high else value.bits - (1 << value.type.bits), low, high)


def _checked(number: Number, *operands: _Known) -> _Known | None:
    """Return a result computed from constants; None if a register would wrap around, so that it had another value at
    run time."""
    low, high = max(operand.low for operand in operands), min(operand.high for operand in operands)
    return _Known(number, low, high) if low <= number <= high else None


def _joined(joined: ast.boolop, sides: Sequence[_Known | None]) -> _Known | None:
    """Evaluate ``and`` or ``or`` of conditions, each true, false or None (computed at run time); None if it is not
    decided."""
    decisive = isinstance(joined, ast.Or)
    answers = [None if side is None else bool(side.number) for side in sides]
    if decisive in answers:
        return _Known(decisive)
    return None if None in answers else _Known(not decisive)
