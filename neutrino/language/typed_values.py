"""Values of a probe function: their types, conversions, and the registers that hold them."""

from __future__ import annotations

import ast
from collections.abc import Collection

from neutrino.ir.operands import Constant, Register, SiteOperand, Value
from neutrino.ir.statements import Convert, Load, Operation, Operator, Reinterpret
from neutrino.ir.types import Type
from neutrino.language.faults import Faults
from neutrino.language.literals import Number, constant, fits
from neutrino.language.locals import Locals, Result
from neutrino.language.vocabulary import TYPES, settled, type_of_result
from neutrino.probing.document import shown
from neutrino.probing.ir.structured import Statement


class ValueWriter:
    """Brings values into types and registers; the statements for that are appended to a list.

    alias: the name that ``neutrino.language`` is imported as. registers: those that all probes of the file share, by
    name with ``%``; local variables and temporaries are added. locals: the probe's own registers.
    """

    def __init__(self, faults: Faults, alias: str, registers: dict[str, Register]) -> None:
        """Prepare to write the conversions of one function's values between types; it has no local variables yet.

        Parameters: see the class.
        """
        self.locals = Locals(registers)
        self._faults = faults
        self._alias = alias

    # Types

    def type_of(self, node: ast.expr) -> Type:
        """Return the type that an expression such as ``nl.u64`` names. Raises LanguageError if it names none."""
        if isinstance(node, ast.Attribute) and self._is_language(node) and node.attr in TYPES:
            return TYPES[node.attr]
        known = ", ".join(f"{self._alias}.{name}" for name in TYPES)
        message = f"'{self._faults.quote(node)}' is no type"
        raise self._faults.refuse(node, "python-type", message, f"the types are {known}")

    def values_in_turns(self, node: ast.expr) -> Collection[int] | None:
        """Return all values that an expression of loops' variables takes; None for any other. Here None: derived
        classes know them."""

    def _common_type(
        self, left: Result, right: Result, expected: Type | None, node: ast.expr,
        sides: tuple[ast.expr, ast.expr] | None = None,
    ) -> Type:  # fmt: skip
        """Return the type in which two operands are combined: the wider of two integers of one sign, or of two floats.

        An operand without a type takes the other's; ``expected`` is the type if neither has one. sides: the operands'
        expressions: of one of loops' variables the sign is the other's if that holds its values. Raises LanguageError
        if the types do not match, or if there is none.
        """
        both = (type_of_result(each, self._faults.words) for each in (left, right))
        types = [type_ for type_ in both if type_ is not None]
        # Bits without a meaning take the other's type; two of them are unsigned integers.
        types = [type_ for type_ in types if not type_.is_untyped] or [Type(f"u{type_.bits}") for type_ in types]
        if not types:
            return self._require_type(left, expected, node)
        # The same one twice if one operand has no type.
        first, second = types[0], types[-1]
        if first is second:
            return first
        if sides is not None and len(types) == 2 and first.is_integer and second.is_integer:
            first, second = self._with_one_sign(first, second, sides, expected)
        alike = first.is_float == second.is_float and first.is_signed == second.is_signed
        if not alike or Type.PRED in {first, second}:
            hint = f"convert one of them: {self._alias}.{first}(…)"
            message = f"{first} and {second} in '{self._faults.quote(node)}'"
            raise self._faults.refuse(node, "python-type", message, hint)
        return first if first.bits >= second.bits else second

    def _with_one_sign(
        self, left: Type, right: Type, sides: tuple[ast.expr, ast.expr], expected: Type | None
    ) -> tuple[Type, Type]:
        """Return the types of two integers made alike in sign, where that of one operand holds all values of the other.

        That is one of loops' variables and constants, which are numbers in each turn.
        """
        if left.is_signed == right.is_signed:
            return left, right
        changed: list[tuple[Type, Type]] = []
        for type_, node, pair in (
            (left, sides[0], lambda kind: (kind, right)), (right, sides[1], lambda kind: (left, kind)),
        ):  # fmt: skip
            other = Type(f"{'u' if type_.is_signed else 's'}{type_.bits}")
            values = self.values_in_turns(node)
            if values is not None and fits(other, values):
                changed.append(pair(other))
        # Where both may change, the context decides, and signed ones hold what a difference may be.
        wanted = expected is None or expected.is_signed
        changed.sort(key=lambda pair: pair[0].is_signed != wanted)
        return changed[0] if changed else (left, right)

    def _require_type(self, result: Result, expected: Type | None, node: ast.expr) -> Type:
        """Return the type of an expression's value, or the expected type if it has none of its own, as a literal.

        Raises LanguageError, reported at ``node``, if there is neither.
        """
        known_type = settled(type_of_result(result, self._faults.words)) or expected
        if known_type is None:
            message = f"'{self._faults.quote(node)}' has no type"
            raise self._faults.refuse(node, "python-type", message, f"say which: {self._alias}.u32(…)")
        return known_type

    def convert(self, result: Result, target_type: Type, node: ast.expr, code: list[Statement]) -> Register | Constant:
        """Return an expression's value in a type; a load or conversion is appended to ``code`` if it takes one.

        result: the value. node: the expression, for faults. Raises LanguageError for a number that the type cannot
        represent.
        """
        if isinstance(result, (int, float)):
            return self.constant(target_type, result, node)
        if isinstance(result, SiteOperand):
            # A site operand of the instruction's type is loaded as the type that is asked for.
            # One of a type of its own is loaded as that, and converted below.
            register = self._temporary(type_of_result(result, self._faults.words) or target_type, node)
            code.append(Load(register, result, self._faults.span(node)))
            result = register
        if result.type is target_type:
            return result
        if result.type.is_untyped and target_type.is_float:
            if result.type.bits != target_type.bits:
                message = f"{result.type.bits} bits as {target_type}, which has {target_type.bits}"
                raise self._faults.refuse(node, "python-type", message)
            target = self._temporary(target_type, node)
            code.append(Reinterpret(target, result, self._faults.span(node)))
            return target
        target = self._temporary(target_type, node)
        code.append(Convert(target, result, self._faults.span(node)))
        return target

    def constant(self, type_: Type, number: Number, node: ast.expr) -> Constant:
        """Return a number as a constant of a type, rounded to nearest if that is a floating-point type.

        Raises LanguageError, reported at ``node``, for a number out of the type's range. Unsigned integers also take
        -1, as all bits set.
        """
        value = constant(type_, number)
        if value is None:
            is_fraction = isinstance(number, float) and not number.is_integer() and not type_.is_float
            hint = f"convert the other value, as in f32(…) * {shown(number)}" if is_fraction else ""
            raise self._faults.refuse(node, "python-type", f"{shown(number)} does not fit in {type_}", hint)
        return value

    # Registers

    def _emit(
        self, operation: Operator, type_: Type, sources: tuple[Value, ...], node: ast.expr, code: list[Statement]
    ) -> Register:
        """Append an operation on ``sources`` that writes a new temporary of a type, and return that temporary.

        node: the expression that is computed, for the operation's place in the file.
        """
        target = self._temporary(type_, node)
        code.append(Operation(operation, target, sources, self._faults.span(node)))
        return target

    def in_register(self, value: Register | Constant, node: ast.expr, code: list[Statement]) -> Register:
        """Return a value's register; a constant is moved into a new one."""
        if isinstance(value, Register):
            return value
        return self._emit(Operator.MOVE, value.type, (value,), node, code)

    def copied(self, value: Register | Constant, node: ast.expr, code: list[Statement]) -> Register | Constant:
        """Return a value that later assignments do not change: a copy of a variable's register, others as they are."""
        if isinstance(value, Constant) or self.locals.is_temporary(value):
            return value
        return self._emit(Operator.MOVE, value.type, (value,), node, code)

    def _temporary(self, type_: Type, node: ast.expr) -> Register:
        """Make a register for an intermediate result, the value of an expression."""
        return self.locals.temporary(type_, self._faults.span(node))

    def _is_warp(self, node: ast.expr) -> bool:
        """Return whether an expression is ``nl.warp``, which has the reductions over the lanes of a warp."""
        return isinstance(node, ast.Attribute) and self._is_language(node) and node.attr == "warp"

    def _is_language(self, node: ast.Attribute) -> bool:
        """Return whether an attribute is one of ``neutrino.language``, as in ``nl.u64``."""
        return isinstance(node.value, ast.Name) and node.value.id == self._alias
