"""The body of a probe function as statements of the IR."""

from __future__ import annotations

import ast
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from neutrino.errors import Span
from neutrino.language.faults import Faults, LanguageError
from neutrino.maps.declaration import Map
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
_Computing = (Operation, Convert, Compare, Select, Load)
_Number = int | float
_Result = Value | _Number
"""What an expression comes to; a number takes the type of what it meets."""


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
            word = type(node).__name__.lower()
            raise self._faults.refuse(node, "python-statement", f"'{word}' in a probe", hint)

    def _assign(self, target: ast.expr, value: ast.expr, kind: Type | None, code: list[Statement]) -> None:
        if not isinstance(target, ast.Name):
            raise self._faults.refuse(target, "python-statement", "a probe assigns to names alone")
        known = self._registers.get(f"%{target.id}") or self._locals.get(target.id)
        if known is not None and kind not in {None, known.type}:
            message = f"{target.id} is {known.type}, and cannot become {kind}"
            raise self._faults.refuse(target, "python-type", message)
        wanted = known.type if known is not None else kind
        result = self._expression(value, code, wanted)
        if known is None:
            if wanted is None and isinstance(result, (int, float)):
                hint = f"write {target.id}: {self._alias}.u32 = {result}"
                raise self._faults.refuse(value, "python-type", f"{target.id} has no type", hint)
            if wanted is None and isinstance(result, SiteOperand):
                hint = f"write {target.id}: {self._alias}.u32 = {self._alias}.{result.name.lower()}"
                raise self._faults.refuse(value, "python-type", f"{result.name.lower()} has no type of its own", hint)
            own = wanted or (result.type if not isinstance(result, (int, float, SiteOperand)) else Type.U32)
            known = self._local(target.id, own, self._faults.span(target))
        span = self._faults.span(target)
        if isinstance(result, SiteOperand):
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
            raise self._faults.refuse(call, "python-call", f"'{ast.unparse(function)}' is called", hint)
        target = self._maps[name]
        if len(call.args) != len(target.fields) or call.keywords:
            names = ", ".join(field.name for field in target.fields)
            message = f"{len(call.args)} values for the {len(target.fields)} fields of {name}"
            raise self._faults.refuse(call, "python-call", message, f"its fields are {names}")
        operands: list[SavedOperand] = []
        for argument, field in zip(call.args, target.fields, strict=True):
            kind = Type(field.type.value)
            result = self._expression(argument, code, kind)
            if isinstance(result, SiteOperand):
                operands.append(result)
                continue
            fitting = self._converted(result, kind, argument, code)
            operands.append(fitting if isinstance(fitting, Constant) and not kind.is_float else
                            self._register(fitting, kind, argument, code))  # fmt: skip
        code.append(Save(target, tuple(operands), self._faults.span(call)))

    # Expressions

    def _expression(self, node: ast.expr, code: list[Statement], wanted: Type | None) -> _Result:
        """wanted: the type of what it is for, which numbers and site operands take; None where nothing says."""
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            return self.constant(Type.PRED, int(node.value), node) if isinstance(node.value, bool) else node.value
        if isinstance(node, ast.Name):
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
        raise self._faults.refuse(node, "python-expression", f"'{ast.unparse(node)}' in a probe")

    def _call(self, node: ast.Call, code: list[Statement]) -> _Result:
        function = node.func
        if isinstance(function, ast.Attribute) and self._is_language(function) and not node.keywords:
            if function.attr in HELPERS and not node.args:
                return self._into(HELPERS[function.attr], node, code)
            if function.attr in SITE_OPERANDS and not node.args:
                return SiteOperand(function.attr.upper())
            if function.attr in TYPES and len(node.args) == 1:
                kind = TYPES[function.attr]
                result = self._expression(node.args[0], code, kind)
                if isinstance(result, SiteOperand):
                    register = self._temporary(kind, node)
                    code.append(Load(register, result, self._faults.span(node)))
                    return register
                return self._converted(result, kind, node, code)
        hint = "the helpers are " + ", ".join(f"{self._alias}.{name}()" for name in HELPERS)
        raise self._faults.refuse(node, "python-call", f"'{ast.unparse(function)}' is called", hint)

    def _binary(self, node: ast.BinOp, code: list[Statement], wanted: Type | None) -> _Result:
        if isinstance(node.op, ast.Div):
            hint = "// divides integers; of floats save both, and divide afterwards"
            raise self._faults.refuse(node, "python-expression", "'/' in a probe", hint)
        computed = _OPERATORS.get(type(node.op))
        if computed is None:
            raise self._faults.refuse(node, "python-expression", f"'{ast.unparse(node)}' in a probe")
        left, right = self._expression(node.left, code, wanted), self._expression(node.right, code, wanted)
        if isinstance(left, (int, float)) and isinstance(right, (int, float)):
            return self._folded(computed, left, right, node)
        if computed in _FOLDED_SHIFTS:
            value = self._value(left, wanted or Type.U64, node.left, code)
            amount = self._converted(right, Type.U32, node.right, code)
            return self._computed(computed, value.type, (value, amount), node, code)
        kind = self._common(left, right, wanted, node)
        first, second = self._value(left, kind, node.left, code), self._value(right, kind, node.right, code)
        return self._computed(computed, kind, (first, second), node, code)

    def _folded(self, computed: Operator, left: _Number, right: _Number, node: ast.expr) -> _Number:
        if computed in _FOLDED_SHIFTS and not 0 <= right < 64:
            raise self._faults.refuse(node, "python-expression", f"'{ast.unparse(node)}' shifts by {right}")
        try:
            result: _Number = _FOLDED[computed](left, right)
        except (ArithmeticError, TypeError, ValueError) as error:
            raise self._faults.refuse(node, "python-expression", f"'{ast.unparse(node)}': {error}") from None
        if isinstance(result, int) and result.bit_length() > 128:
            raise self._faults.refuse(node, "python-expression", f"'{ast.unparse(node)}' is beyond 128 bits")
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
        value = self._value(result, wanted or Type.U64, node.operand, code)
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
            operands = [node.left, *node.comparators]
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
        value = self._value(result, Type.U64, node, code)
        return self._register(self._converted(value, Type.PRED, node, code), Type.PRED, node, code)

    def _compared(
        self, operation: ast.cmpop, left: ast.expr, right: ast.expr, node: ast.expr, code: list[Statement]
    ) -> Register:
        relation = _RELATIONS.get(type(operation))
        if relation is None:
            raise self._faults.refuse(node, "python-expression", f"'{ast.unparse(node)}' in a probe")
        first, second = self._expression(left, code, None), self._expression(right, code, None)
        kind = self._common(first, second, None, node)
        target = self._temporary(Type.PRED, node)
        values = self._value(first, kind, left, code), self._value(second, kind, right, code)
        code.append(Compare(relation, target, *values, self._faults.span(node)))
        return target

    def _choice(self, node: ast.IfExp, code: list[Statement], wanted: Type | None) -> Register:
        condition = self._condition(node.test, code)
        then, otherwise = self._expression(node.body, code, wanted), self._expression(node.orelse, code, wanted)
        kind = self._common(then, otherwise, wanted, node)
        target = self._temporary(kind, node)
        values = self._value(then, kind, node.body, code), self._value(otherwise, kind, node.orelse, code)
        code.append(Select(target, condition, *values, self._faults.span(node)))
        return target

    # Types

    def _common(self, left: _Result, right: _Result, wanted: Type | None, node: ast.expr) -> Type:
        """The type in which two values meet: the wider of two integers of one sign, or of two floats."""
        kinds = [value.type for value in (left, right) if not isinstance(value, (int, float, SiteOperand))]
        if not kinds:
            if wanted is not None:
                return wanted
            hint = f"say which: {self._alias}.u32(…)"
            raise self._faults.refuse(node, "python-type", f"'{ast.unparse(node)}' has no type", hint)
        first, second = kinds[0], kinds[-1]
        if first is second:
            return first
        alike = first.is_float == second.is_float and first.is_signed == second.is_signed
        if not alike or Type.PRED in {first, second}:
            hint = f"convert one of them: {self._alias}.{first}(…)"
            raise self._faults.refuse(node, "python-type", f"{first} and {second} in '{ast.unparse(node)}'", hint)
        return first if first.bits >= second.bits else second

    def _value(self, result: _Result, kind: Type, node: ast.expr, code: list[Statement]) -> Register | Constant:
        """A result as a value, of that type where it has none of its own."""
        if isinstance(result, SiteOperand):
            register = self._temporary(kind, node)
            code.append(Load(register, result, self._faults.span(node)))
            return register
        return self._converted(result, kind, node, code)

    def _converted(self, result: _Result, kind: Type, node: ast.expr, code: list[Statement]) -> Register | Constant:
        if isinstance(result, SiteOperand):
            return self._register(result, kind, node, code)
        if isinstance(result, (int, float)):
            return self.constant(kind, result, node)
        if isinstance(result, Special):
            result = self._into(result, node, code)
        if result.type is kind:
            return result
        target = self._temporary(kind, node)
        code.append(Convert(target, result, self._faults.span(node)))
        return target

    def constant(self, kind: Type, number: _Number, node: ast.expr) -> Constant:
        if kind.is_float:
            form = {Type.F64: ("<d", "<Q"), Type.F32: ("<f", "<I"), Type.F16: ("<e", "<H")}.get(kind)
            try:
                if form is None:
                    (bits,) = struct.unpack("<I", struct.pack("<f", float(number)))
                    if bits & 0xFFFF:
                        raise self._faults.refuse(node, "python-type", f"{number} is no bf16")
                    return Constant(kind, bits >> 16)
                (bits,) = struct.unpack(form[1], struct.pack(form[0], float(number)))
            except OverflowError:
                raise self._faults.refuse(node, "python-type", f"{number} does not fit in {kind}") from None
            return Constant(kind, bits)
        least = -(1 << (kind.bits - 1)) if kind.is_signed else -1
        if not isinstance(number, int) or not least <= number < 1 << (kind.bits - kind.is_signed):
            raise self._faults.refuse(node, "python-type", f"{number} does not fit in {kind}")
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

    def _into(self, special: Special, node: ast.expr, code: list[Statement]) -> Register:
        """A value of the hardware, read where it stands."""
        return self._computed(Operator.MOVE, special.type, (special,), node, code)

    def _register(
        self, result: Value, kind: Type, node: ast.expr, code: list[Statement]
    ) -> Register:
        if isinstance(result, Register):
            return result
        register = self._temporary(kind, node)
        span = self._faults.span(node)
        code.append(Load(register, result, span) if isinstance(result, SiteOperand) else
                    Operation(Operator.MOVE, register, (result,), span))  # fmt: skip
        return register

    def _temporary(self, kind: Type, node: ast.expr) -> Register:
        self._temporaries += 1
        name = f"%$t{kind}{self._temporaries}"
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
        raise self._faults.refuse(node, "python-type", f"'{ast.unparse(node)}' is no type", f"the types are {known}")
