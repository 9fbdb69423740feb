"""The statements of a probe function's body, read into statements of the typed IR."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from neutrino.abi.scalars import ScalarType
from neutrino.ir.operands import Constant, Register, SavedOperand, SiteOperand
from neutrino.ir.statements import Compare, Convert, Load, Operation, Operator, Select
from neutrino.ir.types import Type
from neutrino.language.bounds import UNKNOWN, with_bounds
from neutrino.language.expressions import ExpressionReader
from neutrino.language.faults import Faults, LanguageError
from neutrino.language.functions import Function, assigned_names
from neutrino.language.literals import Number
from neutrino.language.literals import constant as literal
from neutrino.language.locals import Result, Scope
from neutrino.language.other_words import hint_of_target
from neutrino.language.saves import PLACEHOLDER, Record, field_name
from neutrino.language.vocabulary import settled, type_of_result
from neutrino.maps.declaration import Map
from neutrino.probing.ir.probe_set import Snippet
from neutrino.probing.ir.structured import For, If, Save, Statement, While
from neutrino.probing.ir.verifier import BUDGET

_STATEMENT_NAMES: Mapping[type[ast.stmt], str] = {
    ast.FunctionDef: "'def'", ast.AsyncFunctionDef: "'async def'", ast.ClassDef: "'class'", ast.Delete: "'del'",
    ast.ImportFrom: "'import'", ast.Expr: "an expression", ast.AnnAssign: "a declaration without a value",
    ast.Assign: "an assignment", ast.AugAssign: "an assignment",
}  # fmt: skip
_MAX_CALLS = 1024
"""Calls of the file's own functions in one probe, those inside them included."""
_MAX_STATEMENTS = 4096
"""Statements that are read for one probe, those of a function once for each call."""
_TAKE_NUMBERS = frozenset({"array", "bound", "param"})
"""Functions of the language whose arguments are known when the file is read."""
_RESULT = "return"
"""The variable that a function's result is assigned to: no variable of Python can have this name."""
_WITH_DESTINATION = (Operation, Convert, Compare, Select, Load)
"""Statements of the IR that write one register, their ``destination``."""


def statement_words(node: ast.stmt) -> str:
    """Return what error messages call a Python statement: ``an assignment``, ``'while'``."""
    return _STATEMENT_NAMES.get(type(node)) or f"'{type(node).__name__.lower()}'"


@dataclass(frozen=True)
class Names:
    """What a file declares, for its functions to use.

    alias: the name that ``neutrino.language`` is imported as. registers: those that all probes of the file share, by
    name with ``%``; the functions' local ones are added. maps: by name. constants: the numbers that have names.
    functions: the file's own functions, which probes call. failed: what has faults of its own, and so no value.
    """

    alias: str
    registers: dict[str, Register]
    maps: Mapping[str, Map]
    constants: Mapping[str, Number] = field(default_factory=dict)
    functions: Mapping[str, Function] = field(default_factory=dict)
    failed: frozenset[str] = frozenset()


class SnippetReader:
    """Reads the body of one probe function into a snippet (the IR that is inserted into a kernel).

    names: what the file declares. called: the names of the file's own functions that were called so far; added to.

    record: what the probe saves by ``nl.save``; without fields if it does not.
    """

    def __init__(self, faults: Faults, names: Names, called: set[str]) -> None:
        """Prepare to compile probe functions. names: what the file declares. called: gets the names of called
        functions. faults: where errors go."""
        self.record = Record()
        self._faults = faults
        self._alias = names.alias
        self._registers = names.registers
        self._maps = names.maps
        self._constants = names.constants
        self._functions = names.functions
        self._called = called
        self._expressions = ExpressionReader(
            faults, names.alias, names.registers, names.constants, names.functions, self._call_for_value
        )
        self._expressions.failed_names |= names.failed
        self._locals = self._expressions.locals
        # A function's name and its parameter → whether that is to be a number that is known.
        self._wanted: dict[tuple[str, str], bool] = {}
        # Functions whose calls are being read, the outermost first.
        self._stack: list[str] = []
        self._calls = 0
        self._statements = 0

    def read(self, function: ast.FunctionDef) -> Snippet:
        """Return the function's statements. Faults are reported, and the statements that have them are left out.

        A record of ``nl.save`` is saved to ``PLACEHOLDER``; ``saving_to`` replaces it.
        """
        faults_before = len(self._faults.diagnostics)
        statements, failed = with_bounds(self._block(function.body), self._faults.words.greatest)
        # What ends a loop may be in a statement that has a fault.
        if len(self._faults.diagnostics) > faults_before:
            failed = []
        for loop in dict.fromkeys(loop.span for loop in failed):
            hint = f"it may turn more than {BUDGET} times: write while {self._alias}.bound(8) and …, or count its turns"
            self._faults.report(loop, "python-statement", "a while of a probe has a bound, and none is found", hint)
        return Snippet(statements)

    def _block(self, nodes: Sequence[ast.stmt]) -> tuple[Statement, ...]:
        """Translate the statements of a body or branch. A statement with a fault is reported and skipped."""
        code: list[Statement] = []
        # The places of the block's calls of nl.save.
        saves = [index for index, node in enumerate(nodes) if self._own_save_of(node) is not None]
        for index, node in enumerate(nodes):
            try:
                call = self._own_save_of(node)
                if call is not None:
                    # Statements before the last save may assign what this one saves.
                    is_copied = any(other not in saves for other in range(index, saves[-1]))
                    is_first, is_last = index == saves[0], index == saves[-1]
                    self._save_to_own(call, code, is_first=is_first, is_last=is_last, is_copied=is_copied)
                else:
                    self._statement(node, code)
            except LanguageError:
                # Reported when it was raised; the next statements are still checked.
                continue
        return tuple(code)

    def _statement(self, node: ast.stmt, code: list[Statement]) -> None:
        """Translate one Python statement and append its IR to ``code``. Raises LanguageError if it is not supported."""
        self._statements += 1
        if self._statements == _MAX_STATEMENTS:
            hint = "loops over arrays and calls of functions are written out"
            message = f"a probe of more than {_MAX_STATEMENTS} statements"
            self._faults.report(node, "python-statement", message, hint)
        if self._statements >= _MAX_STATEMENTS:
            raise LanguageError(_RESULT)
        if isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            # A constant alone is a docstring, or does nothing.
            return
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            self._assign(node.targets[0], node.value, None, code)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._assign(node.target, node.value, self._expressions.type_of(node.annotation), code)
        elif isinstance(node, ast.AugAssign):
            # x += y is read as x = x + y.
            self._check_augmented(node.target)
            target = node.target
            left: ast.expr = ast.Name(getattr(target, "id", ""), ast.Load())
            if isinstance(target, ast.Subscript):
                left = ast.Subscript(target.value, target.slice, ast.Load())
            left = ast.copy_location(left, target)
            self._assign(node.target, ast.copy_location(ast.BinOp(left, node.op, node.value), node), None, code)
        elif isinstance(node, ast.If) and (decided := self._decided(node.test)) is not None:
            code += self._block(node.body if decided else node.orelse)
            # With other constants the other side calls these.
            left_out = ast.Module(node.orelse if decided else node.body, [])
            names = {getattr(call.func, "id", "") for call in ast.walk(left_out) if isinstance(call, ast.Call)}
            self._called |= names & self._functions.keys()
        elif isinstance(node, ast.If):
            with self._faults_inside(node):
                test, unlikely = self._expressions.without_hint(node.test)
                condition = self._expressions.condition(test, code)
            then, otherwise = self._block(node.body), self._block(node.orelse)
            code.append(If(condition, then, otherwise, self._faults.span(node), unlikely))
        elif isinstance(node, ast.For):
            with self._faults_inside(node):
                variable, values = self._head(node)
            self._loop(node, variable, values, code)
        elif isinstance(node, ast.While):
            self._while(node, code)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            function = node.value.func
            if isinstance(function, ast.Name) and function.id in self._functions:
                self._call(node.value, code)
            else:
                self._save(node.value, code)
        elif isinstance(node, ast.Global):
            self._global(node)
        else:
            hint = "a probe assigns, saves, calls functions, and has if, for over a range, and while"
            raise self._faults.refuse(node, "python-statement", f"{statement_words(node)} in a probe", hint)

    def _decided(self, node: ast.expr) -> bool | None:
        """Return whether a condition is true where constants decide it; None for one that is computed at run time."""
        known = self._expressions.known(self._expressions.without_hint(node)[0])
        return None if known is None else bool(known)

    def _check_augmented(self, target: ast.expr) -> None:
        """Raise LanguageError for a target of ``+=`` that is neither a name nor an element of an array."""
        name = target.value if isinstance(target, ast.Subscript) else target
        is_element = isinstance(name, ast.Name) and name.id in self._locals.scope.arrays
        if not isinstance(target, ast.Name) and not (isinstance(target, ast.Subscript) and is_element):
            hint = hint_of_target(target, self._maps)
            raise self._faults.refuse(target, "python-statement", "a probe assigns to names alone", hint)

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
        # An element of an array, and an array itself.
        if isinstance(target, ast.Subscript) and getattr(target.value, "id", "") in self._locals.scope.arrays:
            self._assign_element(target, value, code)
            return
        if isinstance(target, ast.Name) and isinstance(value, ast.Call) and self._expressions.is_array_call(value):
            self._check_assignable(target)
            if f"%{target.id}" in self._registers or annotated is not None:
                raise self._faults.refuse(target, "python-type", "an array is a local variable without an annotation")
            self._expressions.declare_array(target.id, value, code)
            return
        # The variable that is assigned, and its type where it is known already.
        if not isinstance(target, ast.Name):
            hint = hint_of_target(target, self._maps)
            raise self._faults.refuse(target, "python-statement", "a probe assigns to names alone", hint)
        self._check_assignable(target)
        variable = self._locals.variable(target.id)
        if variable is not None and annotated not in {None, variable.type}:
            message = f"{target.id} is {variable.type}, and cannot become {annotated}"
            raise self._faults.refuse(target, "python-type", message)
        expected = variable.type if variable is not None else annotated

        # The value, and a new local variable of its type if this is the first assignment.
        result = self._expressions.evaluate(value, code, expected)
        if variable is None:
            inferred = expected or settled(type_of_result(result, self._faults.words))
            if inferred is None and target.id in self._expressions.failed_names:
                # Its first assignment, which was reported, may give it a type.
                raise LanguageError(target.id)
            if inferred is None:
                hint = f"write {target.id}: {self._alias}.u32 = {self._faults.quote(value)}"
                if target.id == _RESULT:
                    hint = f"write -> {self._alias}.u32 after the parameters of {self._stack[-1]}"
                raise self._faults.refuse(value, "python-type", f"{target.id} has no type", hint)
            variable = self._locals.declare(target.id, inferred, self._faults.span(target))

        # The code that brings the value into the variable.
        span = self._faults.span(target)
        if isinstance(result, SiteOperand) and type_of_result(result, self._faults.words) in {None, variable.type}:
            code.append(Load(variable, result, self._faults.span(value)))
            return
        converted = self._expressions.convert(result, variable.type, value, code)
        last = code[-1] if code else None
        is_temporary = self._locals.is_temporary(converted)
        # converted may also be a constant, or another variable, which must keep its value.
        if is_temporary and isinstance(last, _WITH_DESTINATION) and last.destination == converted:
            # The statement that computed the temporary writes the variable instead; no move is needed.
            code[-1] = replace(last, destination=variable)
        else:
            code.append(Operation(Operator.MOVE, variable, (converted,), span))

    def _assign_element(self, target: ast.Subscript, value: ast.expr, code: list[Statement]) -> None:
        """Translate ``ARRAY[index] = value``: one assignment, or of a computed index a choice for each element.

        An index that is computed and beyond the array assigns nothing.
        """
        elements, index = self._expressions.indexed(target, code)
        kind = elements[0].type
        converted = self._expressions.convert(self._expressions.evaluate(value, code, kind), kind, value, code)
        span = self._faults.span(target)
        if isinstance(index, int):
            code.append(Operation(Operator.MOVE, elements[index], (converted,), span))
            return
        for number, element in enumerate(elements):
            chosen = self._expressions.is_index(index, number, target, code)
            code.append(Select(element, chosen, converted, element, span))

    def _global(self, node: ast.Global) -> None:
        """Check ``global NAME``, which Python's tools want for a register that is assigned, and which changes nothing.

        Raises LanguageError for a name that is no register that all probes share.
        """
        for name in node.names:
            if f"%{name}" not in self._registers:
                hint = f"write {name}: {self._alias}.u64 = 0 at the top of the file"
                raise self._faults.refuse(node, "python-name", f"{name} is no register that all probes share", hint)

    @contextmanager
    def _faults_inside(self, node: ast.If | ast.For | ast.While) -> Iterator[None]:
        """While the context is open, read the head of a statement; if that has a fault, report those of its body, too.

        The statement itself is left out then.
        """
        try:
            yield
        except LanguageError:
            target = getattr(node, "target", None)
            if isinstance(target, ast.Name):
                self._expressions.failed_names.add(target.id)
            self._block(node.body)
            self._block(node.orelse)
            raise

    def _head(self, node: ast.For) -> tuple[Register, range]:
        """Parse ``for NAME in range(...)`` with constant bounds: return the variable, and its values.

        Raises LanguageError for any other loop.
        """
        call = node.iter
        is_range = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range"
        # The second condition follows from the first, for the type checker.
        if not is_range or not isinstance(call, ast.Call) or not isinstance(node.target, ast.Name) or node.orelse:
            raise self._faults.refuse(node, "python-statement", "a loop of a probe is over range(…)")
        rule = "the bounds of a range are whole numbers that are known here"
        bounds = [self._expressions.constant_integer(argument, rule) for argument in call.args]
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
        variable = self._locals.variable(node.target.id) or self._locals.declare(
            node.target.id, counter_type, self._faults.span(node.target)
        )
        if step == 0:
            message = "a loop whose step is 0 has no end"
            raise self._faults.refuse(call.args[2], "python-statement", message, "write 1, or -1 to count down")
        return variable, range(start, stop, step)

    def _loop(self, node: ast.For, variable: Register, values: range, code: list[Statement]) -> None:
        """Translate a loop over a range: to one that the target unrolls, or, if its variable must be a known number,
        turn by turn.
        """
        name = node.target.id  # type: ignore[attr-defined]
        loops = self._locals.scope.loops
        before = loops.get(name)
        loops[name] = values
        try:
            if self._wants_number(node.body, name):
                self._unroll(node, variable, values, code)
            else:
                body = self._block(node.body)
                code.append(For(variable, values.start, values.stop, values.step, body, self._faults.span(node)))
        finally:
            loops.pop(name)
            if before is not None:
                loops[name] = before

    def _while(self, node: ast.While, code: list[Statement]) -> None:
        """Translate ``while nl.bound(8) and CONDITION``, which ends after so many turns at the latest, or a loop whose
        bound is found when the whole probe is read.

        Raises LanguageError for a bound at another place, and for an ``else``.
        """
        # nl.bound(8) alone, or as the first of what "and" joins.
        first, *others = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
        is_joined = not isinstance(node.test, ast.BoolOp) or isinstance(node.test.op, ast.And)
        bounds = [call for call in ast.walk(node.test) if self._is_bound(call)]
        call = first if isinstance(first, ast.Call) and is_joined and bounds == [first] else None
        if (bounds and call is None) or (call and (len(call.args) != 1 or call.keywords)) or node.orelse:
            hint = f"write while {self._alias}.bound(8) and …: it ends after 8 turns at the latest"
            raise self._faults.refuse(node, "python-statement", "a while of a probe has a bound, and no else", hint)
        with self._faults_inside(node):
            bound = self._expressions.constant_integer(call.args[0]) if call is not None else UNKNOWN
        if call is not None and bound == UNKNOWN:
            raise self._faults.refuse(call, "python-statement", "a loop of 0 turns")
        test: list[Statement] = []
        rest = node.test
        if call is not None and len(others) != 1:
            # Without a condition it is that many turns.
            rest = ast.copy_location(ast.BoolOp(ast.And(), others) if others else ast.Constant(True), node.test)
        elif call is not None:
            (rest,) = others
        with self._faults_inside(node):
            condition = self._expressions.condition(rest, test)
        code.append(While(tuple(test), condition, self._block(node.body), bound, self._faults.span(node)))

    def _is_bound(self, node: ast.AST) -> bool:
        """Return whether a part of an expression is ``nl.bound(…)``."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "bound":
            return False
        return isinstance(node.func.value, ast.Name) and node.func.value.id == self._alias

    def _wants_number(self, nodes: Sequence[ast.AST], name: str) -> bool:
        """Return whether statements use a variable where only a constant will do, so that the loop over it has to be
        unrolled.

        Such places are bounds of a range, a divisor, an index, a number of elements, turns or a parameter, also of the
        functions that they call with it.
        """
        for node in itertools.chain.from_iterable(ast.walk(part) for part in nodes):
            places: list[ast.AST] = []
            if isinstance(node, ast.Subscript):
                places = [node.slice]
            elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.FloorDiv, ast.Mod)):
                # Integers of 64 bits are divided by nothing else.
                places = [node.right]
            elif isinstance(node, ast.Call):
                word = node.func
                is_range = isinstance(word, ast.Name) and word.id == "range"
                is_own = isinstance(word, ast.Attribute) and word.attr in _TAKE_NUMBERS
                if is_range or (is_own and getattr(getattr(word, "value", None), "id", "") == self._alias):
                    places = [*node.args, *(keyword.value for keyword in node.keywords)]
                elif isinstance(word, ast.Name) and word.id in self._functions:
                    function = self._functions[word.id]
                    # Not strict: a call with too few is reported when it is read.
                    places = [
                        argument
                        for argument, parameter in zip(node.args, function.parameter_names, strict=False)
                        if self._parameter_wants_number(function, parameter)
                    ]
            names = (part for place in places for part in ast.walk(place))
            if any(isinstance(part, ast.Name) and part.id == name for part in names):
                return True
        return False

    def _parameter_wants_number(self, function: Function, parameter: str) -> bool:
        """Return whether a function of the file uses a parameter where only a constant will do (see ``_wants_number``).
        """
        key = function.name, parameter
        if key not in self._wanted:
            # One that calls itself is refused when it is read.
            self._wanted[key] = False
            self._wanted[key] = self._wants_number(function.node.body, parameter)
        return self._wanted[key]

    def _unroll(self, loop: ast.For, variable: Register, values: range, code: list[Statement]) -> None:
        """Translate a loop whose variable is to be a number in each turn: its body once for each value."""
        name = loop.target.id  # type: ignore[attr-defined]
        if any(name in assigned_names(statement) for statement in loop.body):
            message = f"{name} is the variable of a loop around this"
            raise self._faults.refuse(loop, "python-name", message, "choose another name")
        turns = self._locals.scope.turns
        for value in values:
            turns[name] = value
            constant = self._expressions.constant(variable.type, value, loop.target)
            code.append(Operation(Operator.MOVE, variable, (constant,), self._faults.span(loop)))
            code += self._block(loop.body)
            if self._statements >= _MAX_STATEMENTS:
                break
        turns.pop(name, None)

    # The file's own functions

    def _call_for_value(self, call: ast.Call, code: list[Statement]) -> Result:
        """Translate a call of one of the file's own functions whose result is used. Raises LanguageError for faults."""
        name = call.func.id  # type: ignore[attr-defined]
        function = self._functions[name]
        if function.saves_or_shares(self._shared_names()):
            self._called.add(name)
            hint = "call it as a statement of its own, or return what is to be saved or assigned"
            message = f"{name} saves, or assigns a register that all probes share, and so has no result"
            raise self._faults.refuse(call, "python-call", message, hint)
        result = self._call(call, code)
        if result is None:
            raise self._faults.refuse(call, "python-call", f"{name} returns nothing", "end it with return")
        return result

    def _call(self, call: ast.Call, code: list[Statement]) -> Result | None:
        """Translate a call of one of the file's own functions: its statements are put in the place of the call.

        Returns its result, None if it has none. Raises LanguageError for faults of the call, such as recursion.
        """
        name = call.func.id  # type: ignore[attr-defined]
        function = self._functions[name]
        self._called.add(name)
        if name in self._stack:
            message = f"{name} calls itself"
            hint = "a call is written out, so it has to end: use a loop"
            raise self._faults.refuse(call, "python-call", message, hint)
        self._calls += 1
        if self._calls == _MAX_CALLS + 1:
            self._faults.report(call, "python-call", f"a probe of more than {_MAX_CALLS} calls")
        if self._calls > _MAX_CALLS:
            raise LanguageError(name)
        values = self._arguments(call, function, code)
        outer = self._locals.scope
        self._locals.scope = Scope(f"{self._calls}_", values)
        for parameter, value in list(values.items()):
            if parameter in function.assigned:
                self._own_parameter(parameter, value, call, code)
        self._stack.append(name)
        try:
            body = function.with_single_end(_RESULT, self._faults)
            returns = function.node.returns
            if returns is not None and not _is_none(returns):
                result_type = self._expressions.type_of(returns)
                self._locals.declare(_RESULT, result_type, self._faults.span(returns))
            code += self._block(body)
            # A result that failed was reported, and so was a probe that is too long.
            if _RESULT in self._expressions.failed_names or self._statements >= _MAX_STATEMENTS:
                raise LanguageError(_RESULT)
            return self._locals.scope.values.get(_RESULT)
        finally:
            self._expressions.failed_names -= {_RESULT, *function.assigned}
            self._stack.pop()
            self._locals.scope = outer

    def _own_parameter(self, name: str, value: Result, call: ast.Call, code: list[Statement]) -> None:
        """Give a parameter a variable of its own, which begins with the value of the call, since its function assigns
        to it.
        """
        # Numbers and values of the instruction have got a type, and so a register or a constant.
        if isinstance(value, (Register, Constant)):
            span = self._faults.span(call)
            variable = self._locals.declare(name, value.type, span)
            code.append(Operation(Operator.MOVE, variable, (value,), span))

    def _arguments(self, call: ast.Call, function: Function, code: list[Statement]) -> dict[str, Result]:
        """Return the values of a function's parameters, by name. Raises LanguageError for arguments that do not fit."""
        names = function.parameters(self._faults)
        if len(call.args) != len(names) or call.keywords:
            message = f"{len(call.args) + len(call.keywords)} values for the {len(names)} parameters of {function.name}"
            hint = f"its parameters are {', '.join(names)}" if names else "it has none"
            raise self._faults.refuse(call, "python-call", message, hint)
        values: dict[str, Result] = {}
        for argument, (name, annotation) in zip(call.args, names.items(), strict=True):
            kind = self._expressions.type_of(annotation) if annotation is not None else None
            value = self._expressions.evaluate(argument, code, kind)
            if kind is None and name in function.assigned:
                kind = type_of_result(value, self._faults.words)
                if kind is None:
                    message = f"{name} is assigned in {function.name}, and has no type"
                    hint = f"write {name}: {self._alias}.u32 there"
                    raise self._faults.refuse(argument, "python-type", message, hint)
            if kind is not None:
                value = self._expressions.convert(value, kind, argument, code)
            if isinstance(value, Register) and self._parameter_wants_number(function, name):
                value = self._as_number(argument, value)
            if isinstance(value, Register):
                # The function may assign the register that is given.
                value = self._expressions.copied(value, argument, code)
            values[name] = value
        return values

    def _as_number(self, argument: ast.expr, value: Register) -> Register | Constant:
        """Return the value that a call gives for a parameter for which only a constant will do: the constant if it is
        known here."""
        number = self._expressions.known_integer(argument)
        constant = literal(value.type, number) if number is not None and value.type.is_integer else None
        return value if constant is None else constant

    def _shared_names(self) -> set[str]:
        """Return the names of the registers that all probes share."""
        return {name[1:] for name, register in self._registers.items() if not register.is_local}

    # Saves

    def _own_save_of(self, node: ast.stmt) -> ast.Call | None:
        """Return the call of ``nl.save``, which saves to the probe's own map, in a statement; None for any other
        statement."""
        call = node.value if isinstance(node, ast.Expr) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != "save":
            return None
        is_language = isinstance(call.func.value, ast.Name) and call.func.value.id == self._alias
        return call if is_language else None

    def _save_to_own(
        self, call: ast.Call, code: list[Statement], *, is_first: bool, is_last: bool, is_copied: bool
    ) -> None:
        """Translate ``nl.save(x, dtype=nl.u32)`` or ``nl.save((x, y), dtype=…)``: part of a record of the probe's own
        map.

        is_first, is_last: of the calls that make one record. is_copied: variables may change before the last one.
        Raises LanguageError for faults, and for a second record.
        """
        record = self.record
        if self._stack:
            hint = "save in the probe itself, or declare a map with @Map"
            raise self._faults.refuse(call, "python-call", f"a save in function {self._stack[-1]}", hint)
        if is_first and record.first not in {None, call}:
            hint = "declare a map with @Map, which can be saved to in several places"
            message = f"a second record: all {self._alias}.save of a probe stand in one block"
            raise self._faults.refuse(call, "python-call", message, hint)
        if is_first:
            # The same call comes again in each turn of a loop that is unrolled.
            record.first = call
            record.fields, record.operands, record.places = {}, [], []
        record.last = call
        kinds = [keyword.value for keyword in call.keywords if keyword.arg == "dtype"]
        if len(call.args) != 1 or len(kinds) != 1 or len(call.keywords) != 1:
            hint = f"write {self._alias}.save(x, dtype={self._alias}.u64), or a tuple of values"
            raise self._faults.refuse(call, "python-call", "a save has one value or tuple, and a dtype", hint)
        kind = self._expressions.type_of(kinds[0])
        if kind.value not in {scalar.value for scalar in ScalarType}:
            hint = "fields are " + ", ".join(scalar.value for scalar in ScalarType)
            raise self._faults.refuse(kinds[0], "python-type", f"no field can be {kind}", hint)
        values = call.args[0].elts if isinstance(call.args[0], ast.Tuple) else [call.args[0]]
        if not values:
            raise self._faults.refuse(call.args[0], "python-call", "the save saves nothing")
        for value in values:
            operand = self._saved(value, kind, code)
            if is_copied and isinstance(operand, Register):
                operand = self._expressions.copied(operand, value, code)
            record.fields[field_name(value, self._alias, self._faults, record.fields)] = ScalarType(kind.value)
            record.operands.append(operand)
            record.places.append(self._faults.span(value))
        if is_last:
            span = self._faults.span(call)
            code.append(Save(PLACEHOLDER, tuple(record.operands), span, places=tuple(record.places)))

    def _saved(self, argument: ast.expr, kind: Type, code: list[Statement]) -> SavedOperand:
        """Return a value that is saved in a field of a type. Values of the probed instruction are saved directly."""
        result = self._expressions.evaluate(argument, code, kind)
        if isinstance(result, SiteOperand) and type_of_result(result, self._faults.words) in {None, kind}:
            return result
        return self._expressions.convert(result, kind, argument, code)

    def _save(self, call: ast.Call, code: list[Statement]) -> None:
        """Translate ``MAP.save(value, ...)`` with one value per field of the map. Raises LanguageError for faults.

        A statement that calls anything else is such a fault.
        """
        # Which map is saved to; "" if it is no attribute of a name that is called.
        function = call.func
        name = function.value.id if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) else ""
        if name in self._expressions.failed_names:
            # Its map was reported.
            raise LanguageError(name)
        if not isinstance(function, ast.Attribute) or function.attr != "save" or name not in self._maps:
            hint = f"a probe calls the save of its maps, {self._alias}.save, and functions of its file"
            if name in self._maps:
                values = ", ".join(self._faults.quote(argument) for argument in call.args)
                hint = f"write {name}.save({values})"
            elif isinstance(function, ast.Attribute) and function.attr == "save" and name.isidentifier():
                # Imported here: only a mistake needs it.
                from neutrino.probing.nearest import nearest

                meant = nearest(name, self._maps)
                hint = f"there is no map {name} here: put it into the file, or the notebook's cell, that has the probe"
                hint = f"there is no map {name}; did you mean {meant}?" if meant else hint
            raise self._faults.refuse(call, "python-call", f"'{self._faults.quote(function)}' is called", hint)
        target = self._maps[name]
        fields = target.saved_fields
        if len(call.args) == 1 and isinstance(call.args[0], ast.Tuple):
            values = ", ".join(self._faults.quote(value) for value in call.args[0].elts)
            hint = f"write {name}.save({values})"
            raise self._faults.refuse(call, "python-call", "a tuple is saved", hint)
        if len(call.args) != len(fields) or call.keywords:
            names = ", ".join(field.name for field in fields)
            message = f"{len(call.args)} values for the {len(fields)} fields of {name}"
            raise self._faults.refuse(call, "python-call", message, f"its fields are {names}")

        # Its operands, each in its field's type. Values of the probed instruction that fit are saved directly.
        operands = [
            self._saved(argument, Type(field.type.value), code)
            for argument, field in zip(call.args, fields, strict=True)
        ]
        span = self._faults.span(call)
        places = [self._faults.span(argument) for argument in call.args]
        if target.by_site:
            operands.insert(0, SiteOperand("SITE"))
            places.insert(0, span)
        code.append(Save(target, tuple(operands), span, places=tuple(places)))

    def _check_assignable(self, node: ast.Name) -> None:
        """Raise LanguageError if the name is that of a map or of the language, which are not variables."""
        if node.id == self._alias or node.id in self._maps or node.id in self._functions:
            raise self._faults.refuse(node, "python-name", f"{node.id} is no variable", "choose another name")
        if node.id in self._constants:
            hint = f"write {node.id}: {self._alias}.u32 = … at the top for a register that probes change"
            raise self._faults.refuse(node, "python-name", f"{node.id} is a constant of the file", hint)
        if isinstance(self._locals.scope.values.get(node.id), (int, float, Constant, SiteOperand)):
            # A parameter that was given a number or a value of the instruction: assigned_names finds what is assigned.
            raise self._faults.refuse(node, "python-name", f"{node.id} cannot be assigned here", "choose another name")


def _is_none(node: ast.expr) -> bool:
    """Return whether an expression is ``None``."""
    return isinstance(node, ast.Constant) and node.value is None
