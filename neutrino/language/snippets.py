"""The body of a probe function as statements of the IR."""

from __future__ import annotations

import ast
import math
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from neutrino.errors import Span
from neutrino.language.faults import Faults, LanguageError
from neutrino.maps.declaration import Map
from neutrino.probing.document import shown
from neutrino.probing.ir.operands import Constant, Register, SavedOperand, SiteOperand, Special, Value
from neutrino.probing.ir.probe_set import Snippet
from neutrino.probing.ir.statements import (
    Compare,
    Convert,
    For,
    If,
    Load,
    Operation,
    Operator,
    Relation,
    Save,
    Select,
    Statement,
)
from neutrino.probing.ir.types import Type

HELPERS: Mapping[str, Special] = {
    "clock": Special.CLOCK, "time": Special.TIME, "cuid": Special.CUID, "smid": Special.CUID,
}  # fmt: skip
"""Calls without arguments → what they read."""

SITE_OPERANDS = ("out", "addr", "bytes", "in1", "in2", "in3", "in4", "in5", "in6", "in7", "in8", "in9")
"""``nl.out`` and the others: values of the instruction that a probe is at."""

TYPES: Mapping[str, Type] = {
    kind.value: kind
    for kind in Type
    if kind is not Type.F16X2 and kind is not Type.PRED and (kind is Type.BF16 or not kind.value.startswith("b"))
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
_FOLDED_SHIFTS = frozenset({Operator.SHL, Operator.SHR})
_FOLDED: Mapping[Operator, Callable[[Any, Any], Any]] = {
    Operator.ADD: operator.add, Operator.SUB: operator.sub, Operator.MUL: operator.mul, Operator.DIV: operator.floordiv,
    Operator.REM: operator.mod, Operator.AND: operator.and_, Operator.OR: operator.or_, Operator.XOR: operator.xor,
    Operator.SHL: operator.lshift, Operator.SHR: operator.rshift,
}  # fmt: skip
"""Of two numbers in the text."""
_TYPE_AT_SITE: Mapping[str, Type] = {"ADDR": Type.U64, "BYTES": Type.U64}
"""Values of a site that have a type whatever the instruction."""
_WORDS: Mapping[type[ast.stmt], str] = {
    ast.FunctionDef: "'def'", ast.AsyncFunctionDef: "'async def'", ast.ClassDef: "'class'", ast.Delete: "'del'",
    ast.ImportFrom: "'import'", ast.Expr: "an expression", ast.AnnAssign: "a declaration without a value",
    ast.Assign: "an assignment", ast.AugAssign: "an assignment",
}  # fmt: skip
_Computing = (Operation, Convert, Compare, Select, Load)
_Number = int | float
_Result = Register | Constant | SiteOperand | _Number
"""What an expression comes to; a number takes the type of what it meets."""


def statement_words(node: ast.stmt) -> str:
    """What messages call a statement."""
    return _WORDS.get(type(node)) or f"'{type(node).__name__.lower()}'"


class SnippetReader:
    """Reads one function's body. registers: of the file, by name; local ones join. alias: the name of the language."""

    def __init__(self, faults: Faults, alias: str, registers: dict[str, Register], maps: Mapping[str, Map]) -> None:
        self._faults = faults
        self._alias = alias
        self._registers = registers
        self._maps = maps
        self._locals: dict[str, Register] = {}
        self._temporaries = 0
        self._results: set[str] = set()
        # Names whose assignment was refused, which is said once.
        self._unclear: set[str] = set()

    def read(self, function: ast.FunctionDef) -> Snippet:
        """The function's statements; what is wrong with them is reported."""
        return Snippet(self._block(function.body))

    def _block(self, nodes: Sequence[ast.stmt]) -> tuple[Statement, ...]:
        found: list[Statement] = []
        for node in nodes:
            try:
                self._statement(node, found)
            except LanguageError:
                continue
        return tuple(found)

    # Statements

    def _statement(self, node: ast.stmt, code: list[Statement]) -> None:
        if isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            return
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            self._assign(node.targets[0], node.value, None, code)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, node.value, self.type_of(node.annotation), code)
        elif isinstance(node, ast.AugAssign):
            left = ast.copy_location(ast.Name(getattr(node.target, "id", ""), ast.Load()), node.target)
            self._assign(node.target, ast.copy_location(ast.BinOp(left, node.op, node.value), node), None, code)
        elif isinstance(node, ast.If):
            condition = self._register(self._condition(node.test, code), Type.PRED, node.test, code)
            then, otherwise = self._block(node.body), self._block(node.orelse)
            code.append(If(condition, then, otherwise, self._faults.span(node)))
        elif isinstance(node, ast.For):
            self._loop(node, code)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self._save(node.value, code)
        else:
            hint = "a probe assigns, saves, and has if and for over a range"
            raise self._faults.refuse(node, "python-statement", f"{statement_words(node)} in a probe", hint)

    def _assign(self, target: ast.expr, value: ast.expr, kind: Type | None, code: list[Statement]) -> None:
        try:
            self._assigned(target, value, kind, code)
        except LanguageError:
            if isinstance(target, ast.Name):
                self._unclear.add(target.id)
            raise

    def _assigned(self, target: ast.expr, value: ast.expr, kind: Type | None, code: list[Statement]) -> None:
        if not isinstance(target, ast.Name):
            raise self._faults.refuse(target, "python-statement", "a probe assigns to names alone")
        self._check_name(target)
        known = self._registers.get(f"%{target.id}") or self._locals.get(target.id)
        if known is not None and kind not in {None, known.type}:
            message = f"{target.id} is {known.type}, and cannot become {kind}"
            raise self._faults.refuse(target, "python-type", message)
        wanted = known.type if known is not None else kind
        result = self._expression(value, code, wanted)
        if known is None:
            own = wanted or _type_of(result)
            if own is None:
                hint = f"write {target.id}: {self._alias}.u32 = {self._faults.shown(value)}"
                raise self._faults.refuse(value, "python-type", f"{target.id} has no type", hint)
            known = self._local(target.id, own, self._faults.span(target))
        span = self._faults.span(target)
        if isinstance(result, SiteOperand) and _type_of(result) in {None, known.type}:
            code.append(Load(known, result, span))
        else:
            fitting = self._converted(result, known.type, value, code)
            last = code[-1] if code else None
            if isinstance(last, _Computing) and last.destination == fitting and fitting.text in self._results:
                # What was just computed goes there at once.
                code[-1] = replace(last, destination=known)
            else:
                code.append(Operation(Operator.MOVE, known, (fitting,), span))

    def _loop(self, node: ast.For, code: list[Statement]) -> None:
        call = node.iter
        is_range = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range"
        if not is_range or not isinstance(call, ast.Call) or not isinstance(node.target, ast.Name) or node.orelse:
            raise self._faults.refuse(node, "python-statement", "a loop of a probe is over range(…)")
        bounds = [self._integer(argument) for argument in call.args]
        if not 1 <= len(bounds) <= 3 or call.keywords:
            raise self._faults.refuse(call, "python-call", "range takes one to three numbers")
        self._check_name(node.target)
        if f"%{node.target.id}" in self._registers:
            message = f"{node.target.id} is a register that all probes share, and no variable of a loop"
            raise self._faults.refuse(node.target, "python-name", message, "choose another name")
        start, stop = (0, bounds[0]) if len(bounds) == 1 else (bounds[0], bounds[1])
        step = bounds[2] if len(bounds) == 3 else 1
        kind = Type.U32 if start >= 0 and stop >= 0 and step > 0 else Type.S32
        known = self._locals.get(node.target.id)
        variable = known or self._local(node.target.id, kind, self._faults.span(node.target))
        code.append(For(variable, start, stop, step, self._block(node.body), self._faults.span(node)))

    def _integer(self, node: ast.expr) -> int:
        result = self._expression(node, [], None)
        if not isinstance(result, int):
            raise self._faults.refuse(node, "python-expression", "the bounds of a range are whole numbers")
        return result

    def _save(self, call: ast.Call, code: list[Statement]) -> None:
        function = call.func
        name = function.value.id if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) else ""
        if not isinstance(function, ast.Attribute) or function.attr != "save" or name not in self._maps:
            if name == self._alias and isinstance(function, ast.Attribute) and function.attr == "save":
                hint = "declare a class with @Map, and call its save"
                raise self._faults.refuse(call, "python-call", "a save without a map", hint)
            hint = "a probe calls the save of its maps"
            raise self._faults.refuse(call, "python-call", f"'{self._faults.shown(function)}' is called", hint)
        target = self._maps[name]
        if len(call.args) != len(target.fields) or call.keywords:
            names = ", ".join(field.name for field in target.fields)
            message = f"{len(call.args)} values for the {len(target.fields)} fields of {name}"
            raise self._faults.refuse(call, "python-call", message, f"its fields are {names}")
        operands: list[SavedOperand] = []
        for argument, field in zip(call.args, target.fields, strict=True):
            kind = Type(field.type.value)
            result = self._expression(argument, code, kind)
            if isinstance(result, SiteOperand) and _type_of(result) in {None, kind}:
                operands.append(result)
            else:
                operands.append(self._converted(result, kind, argument, code))
        code.append(Save(target, tuple(operands), self._faults.span(call)))

    # Expressions

    def _expression(self, node: ast.expr, code: list[Statement], wanted: Type | None) -> _Result:
        """wanted: the type of what it is for, which numbers and site operands take; None where nothing says."""
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            return self.constant(Type.PRED, int(node.value), node) if isinstance(node.value, bool) else node.value
        if isinstance(node, ast.Name):
            if node.id in self._unclear:
                raise LanguageError(node.id)
            register = self._registers.get(f"%{node.id}") or self._locals.get(node.id)
            if register is None:
                raise self._faults.refuse(node, "python-name", f"{node.id} has no value here")
            return register
        if isinstance(node, ast.BinOp):
            return self._binary(node, code, wanted)
        if isinstance(node, ast.UnaryOp):
            return self._unary(node, code, wanted)
        if isinstance(node, (ast.Compare, ast.BoolOp)):
            return self._condition(node, code)
        if isinstance(node, ast.IfExp):
            return self._choice(node, code, wanted)
        if isinstance(node, ast.Attribute) and self._is_language(node) and node.attr in SITE_OPERANDS:
            return SiteOperand(node.attr.upper())
        if isinstance(node, ast.Call):
            return self._call(node, code)
        raise self._faults.refuse(node, "python-expression", f"'{self._faults.shown(node)}' in a probe")

    def _call(self, node: ast.Call, code: list[Statement]) -> _Result:
        function = node.func
        if isinstance(function, ast.Attribute) and self._is_language(function) and not node.keywords:
            if function.attr in HELPERS and not node.args:
                special = HELPERS[function.attr]
                return self._computed(Operator.MOVE, special.type, (special,), node, code)
            if function.attr in SITE_OPERANDS and not node.args:
                return SiteOperand(function.attr.upper())
            if function.attr in TYPES and len(node.args) == 1:
                kind = TYPES[function.attr]
                result = self._expression(node.args[0], code, kind)
                return self._converted(result, kind, node, code)
        hint = "the helpers are " + ", ".join(f"{self._alias}.{name}()" for name in HELPERS)
        raise self._faults.refuse(node, "python-call", f"'{self._faults.shown(function)}' is called", hint)

    def _binary(self, node: ast.BinOp, code: list[Statement], wanted: Type | None) -> _Result:
        if isinstance(node.op, ast.Div):
            hint = "// divides integers; of fractions save both, and divide afterwards"
            raise self._faults.refuse(node, "python-expression", "'/' in a probe", hint)
        computed = _OPERATORS.get(type(node.op))
        if computed is None:
            raise self._faults.refuse(node, "python-expression", f"'{self._faults.shown(node)}' in a probe")
        left, right = self._expression(node.left, code, wanted), self._expression(node.right, code, wanted)
        if isinstance(left, (int, float)) and isinstance(right, (int, float)):
            return self._folded(computed, left, right, node)
        if computed in _FOLDED_SHIFTS:
            value = self._converted(left, self._own_type(left, wanted, node.left), node.left, code)
            amount = self._converted(right, Type.U32, node.right, code)
            return self._computed(computed, value.type, (value, amount), node, code)
        kind = self._common(left, right, wanted, node)
        first, second = self._converted(left, kind, node.left, code), self._converted(right, kind, node.right, code)
        if computed in {Operator.DIV, Operator.REM} and kind.is_signed:
            return self._floored(computed, kind, first, second, node, code)
        return self._computed(computed, kind, (first, second), node, code)

    def _floored(
        self, computed: Operator, kind: Type, first: Value, second: Value, node: ast.expr, code: list[Statement]
    ) -> Register:
        """``//`` and ``%`` of signed integers: in Python the quotient is rounded down, in the IR towards zero."""
        rest = self._computed(Operator.REM, kind, (first, second), node, code)
        signs = self._computed(Operator.XOR, kind, (rest, second), node, code)
        zero = Constant(kind, 0)
        differs, is_left = self._temporary(Type.PRED, node), self._temporary(Type.PRED, node)
        span = self._faults.span(node)
        code.append(Compare(Relation.LT, differs, signs, zero, span))
        code.append(Compare(Relation.NE, is_left, rest, zero, span))
        is_below = self._computed(Operator.AND, Type.PRED, (differs, is_left), node, code)
        if computed is Operator.REM:
            plain = rest
            other = self._computed(Operator.ADD, kind, (rest, second), node, code)
        else:
            plain = self._computed(Operator.DIV, kind, (first, second), node, code)
            other = self._computed(Operator.SUB, kind, (plain, Constant(kind, 1)), node, code)
        target = self._temporary(kind, node)
        code.append(Select(target, is_below, other, plain, span))
        return target

    def _folded(self, computed: Operator, left: _Number, right: _Number, node: ast.expr) -> _Number:
        if computed in _FOLDED_SHIFTS and not 0 <= right < 64:
            raise self._faults.refuse(node, "python-expression", f"'{self._faults.shown(node)}' shifts by {right}")
        try:
            result: _Number = _FOLDED[computed](left, right)
        except (ArithmeticError, TypeError, ValueError) as error:
            raise self._faults.refuse(node, "python-expression", f"'{self._faults.shown(node)}': {error}") from None
        if isinstance(result, int) and result.bit_length() > 128:
            raise self._faults.refuse(node, "python-expression", f"'{self._faults.shown(node)}' is beyond 128 bits")
        return result

    def _unary(self, node: ast.UnaryOp, code: list[Statement], wanted: Type | None) -> _Result:
        if isinstance(node.op, ast.Not):
            condition = self._condition(node.operand, code)
            return self._computed(Operator.NOT, Type.PRED, (condition,), node, code)
        result = self._expression(node.operand, code, wanted)
        if isinstance(node.op, ast.UAdd):
            return result
        if isinstance(result, (int, float)):
            if isinstance(node.op, ast.USub):
                return -result
            if isinstance(result, int):
                return ~result
            raise self._faults.refuse(node, "python-type", "'~' of a float")
        computed = Operator.NEG if isinstance(node.op, ast.USub) else Operator.NOT
        value = self._converted(result, self._own_type(result, wanted, node.operand), node.operand, code)
        return self._computed(computed, value.type, (value,), node, code)

    def _condition(self, node: ast.expr, code: list[Statement]) -> Register:
        """An expression as a predicate: a comparison, several joined, or whether a number is not 0."""
        if isinstance(node, ast.BoolOp):
            joined = Operator.AND if isinstance(node.op, ast.And) else Operator.OR
            first, *rest = (self._condition(value, code) for value in node.values)
            for other in rest:
                first = self._computed(joined, Type.PRED, (first, other), node, code)
            return first
        if isinstance(node, ast.Compare):
            # Each is read once, also the middle one of a < b < c.
            operands = [(side, self._expression(side, code, None)) for side in (node.left, *node.comparators)]
            found = [
                self._compared(operation, left, right, node, code)
                for operation, left, right in zip(node.ops, operands, operands[1:], strict=False)
            ]
            first, *rest = found
            for other in rest:
                first = self._computed(Operator.AND, Type.PRED, (first, other), node, code)
            return first
        result = self._expression(node, code, None)
        if isinstance(result, (int, float)):
            return self._register(self.constant(Type.PRED, int(bool(result)), node), Type.PRED, node, code)
        value = self._converted(result, self._own_type(result, None, node), node, code)
        return self._register(self._converted(value, Type.PRED, node, code), Type.PRED, node, code)

    def _compared(
        self, operation: ast.cmpop, left: tuple[ast.expr, _Result], right: tuple[ast.expr, _Result], node: ast.expr,
        code: list[Statement],
    ) -> Register:  # fmt: skip
        relation = _RELATIONS.get(type(operation))
        if relation is None:
            raise self._faults.refuse(node, "python-expression", f"'{self._faults.shown(node)}' in a probe")
        kind = self._common(left[1], right[1], None, node)
        target = self._temporary(Type.PRED, node)
        values = self._converted(left[1], kind, left[0], code), self._converted(right[1], kind, right[0], code)
        code.append(Compare(relation, target, *values, self._faults.span(node)))
        return target

    def _choice(self, node: ast.IfExp, code: list[Statement], wanted: Type | None) -> Register:
        condition = self._condition(node.test, code)
        then, otherwise = self._expression(node.body, code, wanted), self._expression(node.orelse, code, wanted)
        kind = self._common(then, otherwise, wanted, node)
        target = self._temporary(kind, node)
        values = self._converted(then, kind, node.body, code), self._converted(otherwise, kind, node.orelse, code)
        code.append(Select(target, condition, *values, self._faults.span(node)))
        return target

    # Types

    def _common(self, left: _Result, right: _Result, wanted: Type | None, node: ast.expr) -> Type:
        """The type in which two values meet: the wider of two integers of one sign, or of two floats."""
        kinds = [kind for kind in map(_type_of, (left, right)) if kind is not None]
        if not kinds:
            return self._own_type(left, wanted, node)
        first, second = kinds[0], kinds[-1]
        if first is second:
            return first
        alike = first.is_float == second.is_float and first.is_signed == second.is_signed
        if not alike or Type.PRED in {first, second}:
            hint = f"convert one of them: {self._alias}.{first}(…)"
            message = f"{first} and {second} in '{self._faults.shown(node)}'"
            raise self._faults.refuse(node, "python-type", message, hint)
        return first if first.bits >= second.bits else second

    def _own_type(self, result: _Result, wanted: Type | None, node: ast.expr) -> Type:
        """The type that a value has, or the one that is wanted. Raises LanguageError where there is neither."""
        kind = _type_of(result) or wanted
        if kind is None:
            message = f"'{self._faults.shown(node)}' has no type"
            raise self._faults.refuse(node, "python-type", message, f"say which: {self._alias}.u32(…)")
        return kind

    def _converted(self, result: _Result, kind: Type, node: ast.expr, code: list[Statement]) -> Register | Constant:
        """A result as a value of a type."""
        if isinstance(result, (int, float)):
            return self.constant(kind, result, node)
        if isinstance(result, SiteOperand):
            # One without a type has the one that is asked for.
            register = self._temporary(_type_of(result) or kind, node)
            code.append(Load(register, result, self._faults.span(node)))
            result = register
        if result.type is kind:
            return result
        target = self._temporary(kind, node)
        code.append(Convert(target, result, self._faults.span(node)))
        return target

    def constant(self, kind: Type, number: _Number, node: ast.expr) -> Constant:
        """A number of the text, to the nearest where the type is one of fractions. Raises LanguageError."""
        if kind.is_float:
            form = {Type.F64: ("<d", "<Q"), Type.F16: ("<e", "<H")}.get(kind, ("<f", "<I"))
            try:
                value = float(number) if kind is not Type.BF16 else _nearest_bf16(float(number))
                (bits,) = struct.unpack(form[1], struct.pack(form[0], value))
                bits >>= 16 if kind is Type.BF16 else 0
            except OverflowError:
                raise self._faults.refuse(node, "python-type", f"{shown(number)} does not fit in {kind}") from None
            return Constant(kind, bits)
        least = -(1 << (kind.bits - 1)) if kind.is_signed else -1
        if not isinstance(number, int) or not least <= number < 1 << (kind.bits - kind.is_signed):
            raise self._faults.refuse(node, "python-type", f"{shown(number)} does not fit in {kind}")
        return Constant(kind, number % (1 << kind.bits))

    # Registers

    def _is_language(self, node: ast.Attribute) -> bool:
        return isinstance(node.value, ast.Name) and node.value.id == self._alias

    def _computed(
        self, computed: Operator, kind: Type, sources: tuple[Value, ...], node: ast.expr, code: list[Statement]
    ) -> Register:
        target = self._temporary(kind, node)
        code.append(Operation(computed, target, sources, self._faults.span(node)))
        return target

    def _register(
        self, result: Register | Constant, kind: Type, node: ast.expr, code: list[Statement]
    ) -> Register:
        if isinstance(result, Register):
            return result
        return self._computed(Operator.MOVE, kind, (result,), node, code)

    def _check_name(self, node: ast.Name) -> None:
        """Refuse to assign to what is no variable."""
        if node.id == self._alias or node.id in self._maps:
            raise self._faults.refuse(node, "python-name", f"{node.id} is no variable", "choose another name")

    def _temporary(self, kind: Type, node: ast.expr) -> Register:
        self._temporaries += 1
        name = f"%$t{self._temporaries}_{kind}"
        self._results.add(name)
        return self._declared(name, kind, self._faults.span(node))

    def _local(self, name: str, kind: Type, span: Span) -> Register:
        # Functions have variables of one name and different types.
        register = self._locals[name] = self._declared(f"%{name}${kind}", kind, span)
        return register

    def _declared(self, name: str, kind: Type, span: Span) -> Register:
        return self._registers.setdefault(name, Register(name, kind, 0, span, is_local=True))

    def type_of(self, node: ast.expr) -> Type:
        """``nl.u64``. Raises LanguageError."""
        if isinstance(node, ast.Attribute) and self._is_language(node) and node.attr in TYPES:
            return TYPES[node.attr]
        known = ", ".join(f"{self._alias}.{name}" for name in TYPES)
        message = f"'{self._faults.shown(node)}' is no type"
        raise self._faults.refuse(node, "python-type", message, f"the types are {known}")


def _type_of(result: _Result) -> Type | None:
    """The type that a result has; None of numbers, and of values that have that of the site's instruction."""
    if isinstance(result, SiteOperand):
        return _TYPE_AT_SITE.get(result.name)
    return None if isinstance(result, (int, float)) else result.type


def _nearest_bf16(number: float) -> float:
    """To 8 binary digits, ties to even."""
    if not math.isfinite(number):
        return number
    place = math.ldexp(1.0, max(math.frexp(number)[1] - 8, -133))
    return math.copysign(round(number / place) * place, number)
