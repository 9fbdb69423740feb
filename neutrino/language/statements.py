"""The statements of a probe function's body, read into statements of the typed IR."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace

from neutrino.language.expressions import ExpressionReader, type_of_result
from neutrino.language.faults import Faults, LanguageError
from neutrino.maps.declaration import Map
from neutrino.probing.ir.operands import Register, SavedOperand, SiteOperand
from neutrino.probing.ir.probe_set import Snippet
from neutrino.probing.ir.statements import (
    Compare,
    Convert,
    For,
    If,
    Load,
    Operation,
    Operator,
    Save,
    Select,
    Statement,
)
from neutrino.probing.ir.types import Type

_STATEMENT_NAMES: Mapping[type[ast.stmt], str] = {
    ast.FunctionDef: "'def'", ast.AsyncFunctionDef: "'async def'", ast.ClassDef: "'class'", ast.Delete: "'del'",
    ast.ImportFrom: "'import'", ast.Expr: "an expression", ast.AnnAssign: "a declaration without a value",
    ast.Assign: "an assignment", ast.AugAssign: "an assignment",
}  # fmt: skip
_WITH_DESTINATION = (Operation, Convert, Compare, Select, Load)
"""Statements of the IR that write one register, their ``destination``."""


def statement_words(node: ast.stmt) -> str:
    """Return what error messages call a Python statement: ``an assignment``, ``'while'``."""
    return _STATEMENT_NAMES.get(type(node)) or f"'{type(node).__name__.lower()}'"


class SnippetReader:
    """Reads the body of one probe function into a snippet (the IR that is inserted into a kernel).

    alias: the name that ``neutrino.language`` is imported as. registers: those that all probes of the file share, by
    name with ``%``; the function's local ones are added. maps: the file's maps by name.
    """

    def __init__(self, faults: Faults, alias: str, registers: dict[str, Register], maps: Mapping[str, Map]) -> None:
        """faults: where faults are reported. The others are described at the class."""
        self._faults = faults
        self._alias = alias
        self._registers = registers
        self._maps = maps
        self._expressions = ExpressionReader(faults, alias, registers)

    def read(self, function: ast.FunctionDef) -> Snippet:
        """Return the function's statements. Faults are reported, and the statements that have them are left out."""
        return Snippet(self._block(function.body))

    def _block(self, nodes: Sequence[ast.stmt]) -> tuple[Statement, ...]:
        """Translate the statements of a body or branch. A statement with a fault is reported and skipped."""
        code: list[Statement] = []
        for node in nodes:
            try:
                self._statement(node, code)
            except LanguageError:
                # Reported when it was raised; the next statements are still checked.
                continue
        return tuple(code)

    def _statement(self, node: ast.stmt, code: list[Statement]) -> None:
        """Translate one Python statement and append its IR to ``code``. Raises LanguageError if it is not supported."""
        if isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            # A constant alone is a docstring, or does nothing.
            return
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            self._assign(node.targets[0], node.value, None, code)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, node.value, self._expressions.type_of(node.annotation), code)
        elif isinstance(node, ast.AugAssign):
            # x += y is read as x = x + y. A target that is no name, and so has no id, is refused when it is assigned.
            left = ast.copy_location(ast.Name(getattr(node.target, "id", ""), ast.Load()), node.target)
            self._assign(node.target, ast.copy_location(ast.BinOp(left, node.op, node.value), node), None, code)
        elif isinstance(node, ast.If):
            condition = self._expressions.condition(node.test, code)
            then, otherwise = self._block(node.body), self._block(node.orelse)
            code.append(If(condition, then, otherwise, self._faults.span(node)))
        elif isinstance(node, ast.For):
            self._loop(node, code)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self._save(node.value, code)
        else:
            hint = "a probe assigns, saves, and has if and for over a range"
            raise self._faults.refuse(node, "python-statement", f"{statement_words(node)} in a probe", hint)

    def _assign(self, target: ast.expr, value: ast.expr, annotated: Type | None, code: list[Statement]) -> None:
        """Translate ``target = value``, as ``_assign_checked`` does.

        If that fails, later uses of the target are not reported as undefined as well.
        """
        try:
            self._assign_checked(target, value, annotated, code)
        except LanguageError:
            if isinstance(target, ast.Name):
                self._expressions.failed_names.add(target.id)
            raise

    def _assign_checked(self, target: ast.expr, value: ast.expr, annotated: Type | None, code: list[Statement]) -> None:
        """Translate ``target = value`` and append its IR to ``code``. Raises LanguageError for faults.

        annotated: the type that the statement declares, None without an annotation. The first assignment to a name
        fixes its type; later ones convert to it.
        """
        # The variable that is assigned, and its type where it is known already.
        if not isinstance(target, ast.Name):
            raise self._faults.refuse(target, "python-statement", "a probe assigns to names alone")
        self._check_assignable(target)
        variable = self._expressions.variable(target.id)
        if variable is not None and annotated not in {None, variable.type}:
            message = f"{target.id} is {variable.type}, and cannot become {annotated}"
            raise self._faults.refuse(target, "python-type", message)
        expected = variable.type if variable is not None else annotated

        # The value, and a new local variable of its type if this is the first assignment.
        result = self._expressions.evaluate(value, code, expected)
        if variable is None:
            inferred = expected or type_of_result(result)
            if inferred is None:
                hint = f"write {target.id}: {self._alias}.u32 = {self._faults.quote(value)}"
                raise self._faults.refuse(value, "python-type", f"{target.id} has no type", hint)
            variable = self._expressions.declare_local(target.id, inferred, self._faults.span(target))

        # The code that brings the value into the variable.
        span = self._faults.span(target)
        if isinstance(result, SiteOperand) and type_of_result(result) in {None, variable.type}:
            code.append(Load(variable, result, span))
            return
        converted = self._expressions.convert(result, variable.type, value, code)
        last = code[-1] if code else None
        is_temporary = self._expressions.is_temporary(converted)
        # converted may also be a constant, or another variable, which must keep its value.
        if is_temporary and isinstance(last, _WITH_DESTINATION) and last.destination == converted:
            # The statement that computed the temporary writes the variable instead; no move is needed.
            code[-1] = replace(last, destination=variable)
        else:
            code.append(Operation(Operator.MOVE, variable, (converted,), span))

    def _loop(self, node: ast.For, code: list[Statement]) -> None:
        """Translate ``for NAME in range(...)`` with constant bounds. Raises LanguageError for any other loop."""
        call = node.iter
        is_range = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range"
        # The second condition follows from the first, for the type checker.
        if not is_range or not isinstance(call, ast.Call) or not isinstance(node.target, ast.Name) or node.orelse:
            raise self._faults.refuse(node, "python-statement", "a loop of a probe is over range(…)")
        bounds = [self._integer(argument) for argument in call.args]
        if not 1 <= len(bounds) <= 3 or call.keywords:
            raise self._faults.refuse(call, "python-call", "range takes one to three numbers")
        self._check_assignable(node.target)
        if f"%{node.target.id}" in self._registers:
            message = f"{node.target.id} is a register that all probes share, and no variable of a loop"
            raise self._faults.refuse(node.target, "python-name", message, "choose another name")
        # range(stop), range(start, stop) and range(start, stop, step), as in Python.
        start, stop = (0, bounds[0]) if len(bounds) == 1 else (bounds[0], bounds[1])
        step = bounds[2] if len(bounds) == 3 else 1
        # A counter that is never negative is unsigned; one that counts down may pass 0.
        counter_type = Type.U32 if start >= 0 and stop >= 0 and step > 0 else Type.S32
        variable = self._expressions.variable(node.target.id) or self._expressions.declare_local(
            node.target.id, counter_type, self._faults.span(node.target)
        )
        code.append(For(variable, start, stop, step, self._block(node.body), self._faults.span(node)))

    def _integer(self, node: ast.expr) -> int:
        """Return the value of a constant integer expression. Raises LanguageError if it is not one."""
        # A constant needs no code, so what would be computed at run time is discarded with the list.
        result = self._expressions.evaluate(node, [], None)
        if not isinstance(result, int):
            raise self._faults.refuse(node, "python-expression", "the bounds of a range are whole numbers")
        return result

    def _save(self, call: ast.Call, code: list[Statement]) -> None:
        """Translate ``MAP.save(value, ...)`` with one value per field of the map. Raises LanguageError for faults.

        A statement that calls anything else is such a fault.
        """
        # Which map is saved to; "" if it is no attribute of a name that is called.
        function = call.func
        name = function.value.id if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) else ""
        if not isinstance(function, ast.Attribute) or function.attr != "save" or name not in self._maps:
            if name == self._alias and isinstance(function, ast.Attribute) and function.attr == "save":
                hint = "declare a class with @Map, and call its save"
                raise self._faults.refuse(call, "python-call", "a save without a map", hint)
            hint = "a probe calls the save of its maps"
            raise self._faults.refuse(call, "python-call", f"'{self._faults.quote(function)}' is called", hint)
        target = self._maps[name]
        if len(call.args) != len(target.fields) or call.keywords:
            names = ", ".join(field.name for field in target.fields)
            message = f"{len(call.args)} values for the {len(target.fields)} fields of {name}"
            raise self._faults.refuse(call, "python-call", message, f"its fields are {names}")

        # Its operands, each in its field's type. Values of the probed instruction that fit are saved directly.
        operands: list[SavedOperand] = []
        for argument, field in zip(call.args, target.fields, strict=True):
            field_type = Type(field.type.value)
            result = self._expressions.evaluate(argument, code, field_type)
            if isinstance(result, SiteOperand) and type_of_result(result) in {None, field_type}:
                operands.append(result)
            else:
                operands.append(self._expressions.convert(result, field_type, argument, code))
        code.append(Save(target, tuple(operands), self._faults.span(call)))

    def _check_assignable(self, node: ast.Name) -> None:
        """Raise LanguageError if the name is that of a map or of the language, which are not variables."""
        if node.id == self._alias or node.id in self._maps:
            raise self._faults.refuse(node, "python-name", f"{node.id} is no variable", "choose another name")
