"""The expressions of a probe function, evaluated into registers and constants of the typed IR."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Mapping

from neutrino.ir.operands import Constant, Register, SiteOperand, Special, Value
from neutrino.ir.statements import (
    ClockAfter,
    Collective,
    Compare,
    IsGlobal,
    Load,
    Operation,
    Operator,
    Reduction,
    Reinterpret,
    Relation,
    Select,
    Shuffle,
    reduced_type,
)
from neutrino.ir.types import Type
from neutrino.language.faults import Faults, LanguageError
from neutrino.language.known import OPERATORS, ConstantReader
from neutrino.language.literals import Number
from neutrino.language.locals import Result
from neutrino.language.other_words import hint_of, hint_of_attribute, hint_of_call
from neutrino.language.vocabulary import (
    CHANGING,
    ELSEWHERE,
    FUNCTIONS,
    HAS,
    HELPERS,
    PARAMETER,
    PLACES,
    REDUCTIONS,
    SITE_OPERANDS,
    TYPES,
    VECTORS,
    is_wider,
    settled,
    type_of_result,
)
from neutrino.probing.document import shown
from neutrino.probing.ir.structured import Statement

_RELATIONS: Mapping[type[ast.cmpop], Relation] = {
    ast.Eq: Relation.EQ, ast.NotEq: Relation.NE, ast.Lt: Relation.LT, ast.LtE: Relation.LE, ast.Gt: Relation.GT,
    ast.GtE: Relation.GE,
}  # fmt: skip
_SHIFTS = frozenset({Operator.SHL, Operator.SHR})
_ELEMENTS = ("x", "y", "z", "w")
"""Names of the first elements of a vector."""
_MAX_ELEMENT = 127
_MAX_PARAMETER, _MAX_OFFSET = 9999, 32767
"""Of a kernel's parameters, which have at most 32764 bytes."""
_OPCODE = re.compile(r"\w[\w:]*(?:\.\w[\w:]*)*", re.ASCII)
_PARAMETER_NAME = re.compile(r"[A-Za-z_$%][\w$]*", re.ASCII)
MOST_ELEMENTS = 64
"""Elements of an array, each of which is a register."""
_NOTHING: Mapping[str, Number] = {}
Caller = Callable[[ast.Call, list[Statement]], Result]
"""Reads the call of one of the file's own functions: appends its statements, and returns what the function returns."""


class ExpressionReader(ConstantReader):
    """Evaluates expressions: appends the statements that compute them to a list, and returns where the result is.

    alias: the name that ``neutrino.language`` is imported as. registers: those that all probes of the file share, by
    name with ``%``; local variables and temporaries are added. constants: the numbers that the file gives names.

    locals: the probe's own registers. failed_names: variables whose assignment was reported as a fault, so that
    their uses are not reported as well.
    """

    def __init__(
        self, faults: Faults, alias: str, registers: dict[str, Register], constants: Mapping[str, Number] = _NOTHING,
        functions: Collection[str] = (), call: Caller | None = None,
    ) -> None:  # fmt: skip
        """Start a function: there are no local variables yet. faults: where faults are reported.

        functions: the names of the file's own functions, which ``call`` reads.
        """
        super().__init__(faults, alias, registers, constants)
        self.failed_names: set[str] = set()
        self._functions = functions
        self._caller = call

    def evaluate(self, node: ast.expr, code: list[Statement], expected: Type | None) -> Result:
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
            return self._named(node)
        if isinstance(node, ast.BinOp):
            return self._binary(node, code, expected)
        if isinstance(node, ast.UnaryOp):
            return self._unary(node, code, expected)
        if isinstance(node, (ast.Compare, ast.BoolOp)):
            value = self.known(node)
            return self.condition(node, code) if value is None else self.constant(Type.PRED, int(value), node)
        if isinstance(node, ast.IfExp):
            return self._conditional(node, code, expected)
        operand = self._site_operand(node)
        if operand is not None:
            return operand
        special = self._place(node)
        if special is not None:
            # Read now, into a register: a clock has another value later.
            kind = self._faults.words.lane_mask if special is Special.LANEMASK_LT else special.type
            return self._emit(Operator.MOVE, kind, (special,), node, code)
        if isinstance(node, ast.Call):
            return self._call(node, code, expected)
        if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") in self.locals.scope.arrays:
            return self._element(node, code)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ELSEWHERE:
            # threadIdx.x: what it is an attribute of has no value.
            return self.evaluate(node.value, code, expected)
        if isinstance(node, ast.Attribute) and self._is_language(node):
            hint = hint_of_attribute(node.attr, self._alias)
            raise self._faults.refuse(node, "python-name", f"the language has no value '{node.attr}'", hint)
        # A text has quotes already.
        quoted = self._faults.quote(node)
        quoted = quoted.strip("'") if isinstance(node, ast.Constant) else quoted
        hint = hint_of(node, self._alias)
        raise self._faults.refuse(node, "python-expression", f"'{quoted}' in a probe", hint)

    def _named(self, node: ast.Name) -> Result:
        """Return the value of a name: of a variable or parameter, else of a constant of the file."""
        value = self.locals.scope.values.get(node.id)
        if value is None:
            value = self.locals.registers.get(f"%{node.id}")
        if value is None:
            value = self._constants.get(node.id)
        if value is None and node.id in self.locals.scope.arrays:
            hint = f"write {node.id}[0]"
            raise self._faults.refuse(node, "python-type", f"{node.id} is an array, of which elements are read", hint)
        if value is None:
            hint = f"did you mean {self._alias}.{ELSEWHERE[node.id]}?" if node.id in ELSEWHERE else ""
            raise self._faults.refuse(node, "python-name", f"{node.id} has no value here", hint)
        if isinstance(value, bool):
            return self.constant(Type.PRED, int(value), node)
        return value

    def _site_operand(self, node: ast.expr) -> SiteOperand | None:
        """Return the value of the instruction that an expression names, as ``nl.out``, ``nl.out()``, ``nl.out.y`` or
        ``nl.in1[2]``; None for any other expression. Raises LanguageError for an element that no operand has.
        """
        if isinstance(node, ast.Call) and not node.args and not node.keywords:
            node = node.func
        if isinstance(node, ast.Attribute) and self._is_language(node) and node.attr in SITE_OPERANDS:
            return SiteOperand(node.attr.upper())
        if not isinstance(node, (ast.Attribute, ast.Subscript)):
            return None
        vector = self._site_operand(node.value)
        if vector is None:
            return None
        element = node.attr if isinstance(node, ast.Attribute) else str(self.constant_integer(node.slice))
        is_element = element in _ELEMENTS or (element.isdigit() and int(element) <= _MAX_ELEMENT)
        if vector.element is not None or vector.name.lower() not in VECTORS or not is_element:
            hint = f"elements of a vector are {self._alias}.out.x, .y, .z, .w, or {self._alias}.out[0] to [127]"
            message = f"'{self._faults.quote(node)}' is no value of an instruction"
            raise self._faults.refuse(node, "python-expression", message, hint)
        return SiteOperand(vector.name, element)

    def _place(self, node: ast.expr) -> Special | None:
        """Return the hardware value that an expression names, as ``nl.tid.y``, ``nl.lane`` or ``nl.smid()``.

        None for any other expression, and for ``nl.clock``, which is called.
        """
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and self._is_language(node.value):
            return PLACES.get(node.value.attr, {}).get(node.attr)
        is_call = isinstance(node, ast.Call) and not node.args and not node.keywords
        name = node.func if isinstance(node, ast.Call) and is_call else node
        if not isinstance(name, ast.Attribute) or not self._is_language(name):
            return None
        return HELPERS.get(name.attr) if is_call or name.attr not in CHANGING else None

    # Arrays

    def declare_array(self, name: str, call: ast.Call, code: list[Statement]) -> None:
        """Make an array, for ``NAME = nl.array(nl.u64, 4)``: its elements are registers, which are set to 0.

        Raises LanguageError for another type or number of elements than an array can have.
        """
        if len(call.args) != 2 or call.keywords:
            hint = f"write {self._alias}.array({self._alias}.u32, 4)"
            raise self._faults.refuse(call, "python-call", "an array has a type and a number of elements", hint)
        element_type = self.type_of(call.args[0])
        size = self.constant_integer(call.args[1])
        if not 1 <= size <= MOST_ELEMENTS:
            message = f"an array of {shown(size)} elements"
            hint = f"each element is a register: write 1 to {MOST_ELEMENTS}"
            raise self._faults.refuse(call.args[1], "python-expression", message, hint)
        span = self._faults.span(call)
        elements = self.locals.elements(name, size, element_type, span)
        earlier = self.locals.scope.arrays.get(name, elements)
        if earlier != elements or name in self.locals.scope.values:
            hint = "choose another name"
            raise self._faults.refuse(call, "python-type", f"{name} is something else already", hint)
        self.locals.scope.arrays[name] = elements
        zero = Constant(element_type, 0)
        code += [Operation(Operator.MOVE, element, (zero,), span) for element in elements]

    def is_array_call(self, node: ast.expr) -> bool:
        """Return whether an expression is ``nl.array(…)``."""
        return (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and self._is_language(node.func)
            and node.func.attr == "array"
        )  # fmt: skip

    def _element(self, node: ast.Subscript, code: list[Statement]) -> Result:
        """Read an element of an array: a register where the index is a constant, else a choice among all of them.

        An index that is computed and beyond the array reads 0.
        """
        elements, index = self.indexed(node, code)
        if isinstance(index, int):
            # As a copy: the element may be assigned before the value is used.
            return self._emit(Operator.MOVE, elements[index].type, (elements[index],), node, code)
        value: Register | Constant = Constant(elements[0].type, 0)
        for number, element in enumerate(elements):
            target = self._temporary(element.type, node)
            chosen = self.is_index(index, number, node, code)
            code.append(Select(target, chosen, element, value, self._faults.span(node)))
            value = target
        return value

    def indexed(
        self, node: ast.Subscript, code: list[Statement]
    ) -> tuple[tuple[Register, ...], int | Register]:
        """Return the elements of the array that is indexed, and the index: a number from 0 on, or a register.

        Raises LanguageError for a constant index beyond the array, and for an index that is no integer.
        """
        elements = self.locals.scope.arrays[node.value.id]  # type: ignore[attr-defined]
        constant = self.known_integer(node.slice)
        if constant is not None:
            if not -len(elements) <= constant < len(elements):
                message = f"element {shown(constant)} of an array of {len(elements)}"
                raise self._faults.refuse(node.slice, "python-expression", message)
            return elements, constant % len(elements)
        result = self.evaluate(node.slice, code, Type.U32)
        index = self.convert(result, type_of_result(result, self._faults.words) or Type.U32, node.slice, code)
        if not index.type.is_integer or not isinstance(index, Register):
            raise self._faults.refuse(node.slice, "python-type", f"an index is an integer, and this is {index.type}")
        return elements, index

    def is_index(self, index: Register, number: int, node: ast.expr, code: list[Statement]) -> Register:
        """Emit the comparison of an index with the number of an element; return its predicate."""
        target = self._temporary(Type.PRED, node)
        # A number beyond what the index can have is of an element that it never reaches.
        bits = index.type.bits - index.type.is_signed
        bound = Constant(index.type, min(number, (1 << bits) - 1))
        code.append(Compare(Relation.EQ, target, index, bound, self._faults.span(node)))
        return target

    # Constants

    def checked(self, node: ast.expr) -> None:
        """Raise LanguageError, with its fault, for an expression that has no value at all."""
        self.evaluate(node, [], Type.U64)

    def _type_of_other(self, node: ast.expr, expected: Type | None) -> Type | None:
        """Return the type of a value that is not chosen; None if it has none, or faults, which are not reported."""
        with self._faults.unreported():
            try:
                return settled(type_of_result(self.evaluate(node, [], expected), self._faults.words))
            except LanguageError:
                return None

    # Calls

    def _call(self, node: ast.Call, code: list[Statement], expected: Type | None) -> Result:
        """Evaluate a helper (``nl.clock()``), a function (``nl.min(a, b)``), a type conversion (``nl.u32(x)``), or a
        call of one of the file's own functions. Raises LanguageError for any other call.
        """
        function = node.func
        if isinstance(function, ast.Name) and function.id in self._functions and self._caller is not None:
            return self._caller(node, code)
        if isinstance(function, ast.Attribute) and self._is_warp(function.value) and function.attr in REDUCTIONS:
            return self._reduction(REDUCTIONS[function.attr], node, code)
        if isinstance(function, ast.Attribute) and self._is_warp(function.value) and function.attr == "shuffle":
            return self._shuffle(node, code)
        if isinstance(function, ast.Attribute) and self._is_language(function) and function.attr == "clock":
            return self._clock_after(node, code)
        if isinstance(function, ast.Attribute) and self._is_language(function) and function.attr == "param":
            return self._parameter(node)
        if isinstance(function, ast.Attribute) and self._is_language(function) and function.attr == "has":
            return self._has(node, code)
        if isinstance(function, ast.Attribute) and self._is_language(function) and not node.keywords:
            if function.attr == "is_global" and len(node.args) == 1:
                address = self.convert(self.evaluate(node.args[0], code, Type.U64), Type.U64, node.args[0], code)
                target = self._temporary(Type.PRED, node)
                code.append(IsGlobal(target, address, self._faults.span(node)))
                return target
            if function.attr == "bits" and len(node.args) == 1:
                return self._bits(node.args[0], code, expected)
            if function.attr in FUNCTIONS:
                return self._function(function.attr, node, code, expected)
            if function.attr in TYPES and len(node.args) == 1:
                target_type = TYPES[function.attr]
                result = self.evaluate(node.args[0], code, target_type)
                return self.convert(result, target_type, node, code)
        hint = hint_of_call(function, self._alias)
        raise self._faults.refuse(node, "python-call", f"'{self._faults.quote(function)}' is called", hint)

    def _function(self, name: str, node: ast.Call, code: list[Statement], expected: Type | None) -> Result:
        """Evaluate ``nl.min(a, b)`` or another of ``FUNCTIONS``. expected: see ``evaluate``.

        Raises LanguageError for another number of values than it takes, and for types that it does not.
        """
        count, is_open = FUNCTIONS[name], name in {"min", "max"}
        if len(node.args) < count or (len(node.args) > count and not is_open):
            message = f"{self._alias}.{name} takes {count}{' or more' if is_open else ''} value{'s' * (count > 1)}"
            raise self._faults.refuse(node, "python-call", message)
        if name == "select":
            condition, then, otherwise = node.args
            return self._conditional(ast.copy_location(ast.IfExp(condition, then, otherwise), node), code, expected)
        if name in {"popc", "clz"}:
            return self._bit_count(Operator(name), node, code)
        results = [self.evaluate(argument, code, expected) for argument in node.args]
        if name == "abs":
            (result,), (argument,) = results, node.args
            if isinstance(result, (int, float)):
                return abs(result)
            value = self.convert(result, self._require_type(result, expected, argument), argument, code)
            # An unsigned number is its own absolute value.
            is_unsigned = value.type.is_integer and not value.type.is_signed
            return value if is_unsigned else self._emit(Operator.ABS, value.type, (value,), node, code)
        joined, *others = results
        for argument, other in zip(node.args[1:], others, strict=True):
            if isinstance(joined, (int, float)) and isinstance(other, (int, float)):
                joined = min(joined, other) if name == "min" else max(joined, other)
                continue
            sides = (node.args[0], argument) if joined is results[0] else None
            common_type = self._common_type(joined, other, expected, node, sides)
            first = self.convert(joined, common_type, node.args[0], code)
            second = self.convert(other, common_type, argument, code)
            joined = self._emit(Operator(name), common_type, (first, second), node, code)
        return joined

    def _reduction(self, reduction: Reduction, node: ast.Call, code: list[Statement]) -> Register:
        """Evaluate ``nl.warp.sum(x)`` or another of ``REDUCTIONS``. Raises LanguageError for other than one value."""
        if len(node.args) != 1 or node.keywords:
            message = f"'{self._faults.quote(node.func)}' takes one value"
            raise self._faults.refuse(node, "python-call", message)
        (argument,) = node.args
        if reduction in {Reduction.ANY, Reduction.ALL, Reduction.BALLOT}:
            # Which lanes are there: a target may know that at once.
            is_true = isinstance(argument, ast.Constant) and argument.value is True
            source: Register | Constant = Constant(Type.PRED, 1) if is_true else self.condition(argument, code)
        else:
            result = self.evaluate(argument, code, None)
            source = self.convert(result, self._require_type(result, None, argument), argument, code)
        target = self._temporary(reduced_type(reduction, source.type, self._faults.words.lane_mask), node)
        code.append(Collective(reduction, target, source, self._faults.span(node)))
        return target

    def _shuffle(self, node: ast.Call, code: list[Statement]) -> Register:
        """Evaluate ``nl.warp.shuffle(x, lane)``. Raises LanguageError for other than two values."""
        if len(node.args) != 2 or node.keywords:
            hint = f"write {self._alias}.warp.shuffle(x, {self._alias}.lane ^ 1)"
            raise self._faults.refuse(node, "python-call", f"'{self._faults.quote(node.func)}' takes two values", hint)
        result = self.evaluate(node.args[0], code, None)
        source = self.convert(result, self._require_type(result, None, node.args[0]), node.args[0], code)
        lane = self.convert(self.evaluate(node.args[1], code, Type.U32), Type.U32, node.args[1], code)
        target = self._temporary(source.type, node)
        code.append(Shuffle(target, source, lane, self._faults.span(node)))
        return target

    def _clock_after(self, node: ast.Call, code: list[Statement]) -> Register:
        """Evaluate ``nl.clock(after=x)``, a clock that is read when a value is there.

        Raises LanguageError for other arguments, and for a value without a type.
        """
        if node.args or [keyword.arg for keyword in node.keywords] != ["after"]:
            hint = f"write {self._alias}.clock(), or {self._alias}.clock(after=x) to wait for a value"
            raise self._faults.refuse(node, "python-call", "a clock has no other argument than after", hint)
        argument = node.keywords[0].value
        result = self.evaluate(argument, code, None)
        value = self.convert(result, self._require_type(result, None, argument), argument, code)
        target = self._temporary(Type.U64, node)
        code.append(ClockAfter(target, self.in_register(value, argument, code), self._faults.span(node)))
        return target

    def _has(self, node: ast.Call, code: list[Statement]) -> Register:
        """Evaluate ``nl.has("v4")`` or ``nl.has(nl.f32)``, which is decided at each instruction.

        Raises LanguageError for another form of call.
        """
        argument = node.args[0] if len(node.args) == 1 and not node.keywords else None
        words = None
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            words = argument.value
        elif isinstance(argument, ast.Attribute) and self._is_language(argument) and argument.attr in TYPES:
            words = argument.attr
        if words is None or _OPCODE.fullmatch(words) is None:
            alias = self._alias
            hint = f'write {alias}.has("v4"), {alias}.has({alias}.f32) or {alias}.has("{self._faults.words.load}")'
            message = "has takes a type, or a text: a modifier, an opcode or a class"
            raise self._faults.refuse(argument or node, "python-call", message, hint)
        number, target = self._temporary(Type.U32, node), self._temporary(Type.PRED, node)
        span = self._faults.span(node)
        code.append(Load(number, SiteOperand(HAS, words), span))
        code.append(Compare(Relation.NE, target, number, Constant(Type.U32, 0), span))
        return target

    def _parameter(self, node: ast.Call) -> SiteOperand:
        """Return the parameter of the kernel that ``nl.param(0)`` or ``nl.param("n", offset=8, dtype=nl.u32)`` names.

        Raises LanguageError for another form of call.
        """
        options = {keyword.arg: keyword.value for keyword in node.keywords}
        if len(node.args) != 1 or not options.keys() <= {"offset", "dtype"}:
            hint = f'write {self._alias}.param(0), {self._alias}.param("NAME"), or with offset= and dtype='
            raise self._faults.refuse(node, "python-call", "a parameter is named by its number or its name", hint)
        which = node.args[0]
        if isinstance(which, ast.Constant) and isinstance(which.value, str):
            name = which.value
            is_known = _PARAMETER_NAME.fullmatch(name) is not None
        else:
            number = self.constant_integer(which)
            name, is_known = str(number), 0 <= number <= _MAX_PARAMETER
        if not is_known:
            language = self._faults.words.language
            hint = f"they are numbered from 0, up to {_MAX_PARAMETER}, and have the names of the {language} text"
            raise self._faults.refuse(which, "python-expression", f"no parameter is called {shown(name)}", hint)
        if "dtype" not in options:
            if "offset" in options:
                hint = f"add dtype={self._alias}.u32, or another type"
                raise self._faults.refuse(node, "python-call", "an offset without the type of what is there", hint)
            return SiteOperand(PARAMETER, name)
        offset = self.constant_integer(options["offset"]) if "offset" in options else 0
        if not 0 <= offset <= _MAX_OFFSET:
            raise self._faults.refuse(options["offset"], "python-expression", f"an offset of {shown(offset)} bytes")
        kind = self.type_of(options["dtype"])
        return SiteOperand(PARAMETER, f"{name}+{offset}.{kind}" if offset else f"{name}.{kind}")

    def _bits(self, argument: ast.expr, code: list[Statement], expected: Type | None) -> Result:
        """Evaluate ``nl.bits(x)``: bits without a meaning, which take the type that they are used as.

        A value of the instruction is such bits already. Raises LanguageError for a value without a type, and for a
        predicate.
        """
        result = self.evaluate(argument, code, expected)
        if isinstance(result, SiteOperand) and type_of_result(result, self._faults.words) is None:
            # Of a parameter the kernel says what it is.
            return SiteOperand(PARAMETER, f"{result.element}.bits") if result.name == PARAMETER else result
        value = self.convert(result, self._require_type(result, None, argument), argument, code)
        if value.type is Type.PRED:
            hint = f"{self._alias}.u32(…) is 0 or 1"
            raise self._faults.refuse(argument, "python-type", "a predicate has no bits", hint)
        target = self._temporary(Type(f"b{value.type.bits}"), argument)
        code.append(Reinterpret(target, value, self._faults.span(argument)))
        return target

    def _bit_count(self, operation: Operator, node: ast.Call, code: list[Statement]) -> Result:
        """Evaluate ``nl.popc(x)`` or ``nl.clz(x)``: the number of bits that are set, or of zeros before the first one.

        Narrow integers are counted in 32 bits, of which the additional ones are no part of the number.
        """
        (argument,) = node.args
        result = self.evaluate(argument, code, None)
        kind = self._require_type(result, None, argument)
        if not kind.is_integer:
            message = f"{self._alias}.{operation.value} of {kind}"
            raise self._faults.refuse(argument, "python-type", message, "it counts the bits of an integer")
        # Unsigned first, so that a negative number gets zeros where it is extended.
        value = self.convert(result, Type(f"u{kind.bits}"), argument, code)
        value = self.convert(value, Type.U64 if kind.bits == 64 else Type.U32, argument, code)
        count = self._emit(operation, Type.U32, (value,), node, code)
        if operation is Operator.POPC or kind.bits >= 32:
            return count
        return self._emit(Operator.SUB, Type.U32, (count, Constant(Type.U32, 32 - kind.bits)), node, code)

    # Operators

    def _binary(self, node: ast.BinOp, code: list[Statement], expected: Type | None) -> Result:
        """Evaluate ``left OP right``: a plain number if both operands are literals, else a register.

        expected: see ``evaluate``. Raises LanguageError for unsupported operators and for types that do not match.
        """
        if isinstance(node.op, ast.Div):
            # In Python its result is always a fraction.
            hint = "// divides integers; of fractions save both, and divide afterwards"
            raise self._faults.refuse(node, "python-expression", "'/' in a probe", hint)
        operation = OPERATORS.get(type(node.op))
        if operation is None:
            hint = "write x * x, or 1 << n" if isinstance(node.op, ast.Pow) else ""
            raise self._faults.refuse(node, "python-expression", f"'{self._faults.quote(node)}' in a probe", hint)
        left, right = self.evaluate(node.left, code, expected), self.evaluate(node.right, code, expected)
        if isinstance(left, (int, float)) and isinstance(right, (int, float)):
            return self._fold(operation, left, right, node)

        if operation in _SHIFTS:
            # The shift amount is u32, whatever is shifted.
            value = self.convert(left, self._require_type(left, expected, node.left), node.left, code)
            amount = self.convert(right, Type.U32, node.right, code)
            return self._emit(operation, value.type, (value, amount), node, code)

        common_type = self._common_type(left, right, expected, node, (node.left, node.right))
        first = self.convert(left, common_type, node.left, code)
        if operation in {Operator.DIV, Operator.REM} and common_type.is_integer and common_type.bits == 64:
            return self._wide_division(operation, first, right, node, code)
        second = self.convert(right, common_type, node.right, code)
        # Of unsigned integers, the IR's division is Python's.
        if operation in {Operator.DIV, Operator.REM} and common_type.is_signed:
            return self._floor_division(operation, common_type, first, second, node, code)
        return self._emit(operation, common_type, (first, second), node, code)

    def _wide_division(
        self, operation: Operator, dividend: Register | Constant, right: Result, node: ast.BinOp, code: list[Statement]
    ) -> Register:
        """Emit ``//`` (DIV) or ``%`` (REM) of a 64-bit integer by a constant. right: the divisor.

        Raises LanguageError for a divisor that is not known here, and for 0.
        """
        type_ = dividend.type
        number = right if isinstance(right, int) else self.known_integer(node.right)
        divisor = right if isinstance(right, Constant) and right.type.is_integer else None
        if number is not None:
            divisor = self.constant(type_, number, node.right)
        if divisor is None:
            alias = self._alias
            hint = f"divide by a number or a constant of the file, divide {alias}.u32(…), or divide what was saved"
            what = self._faults.quote(node.right)
            message = f"64-bit integers have no '//' and no '%' by what is computed, as '{what}'"
            raise self._faults.refuse(node.right, "python-type", message, hint)
        if divisor.bits == 0:
            raise self._faults.refuse(node.right, "python-expression", "a division by 0", "write another divisor")
        # Extended by its own sign.
        bits = divisor.bits
        if divisor.type.is_signed and bits >> (divisor.type.bits - 1):
            bits -= 1 << divisor.type.bits
        divisor = Constant(type_, bits % (1 << type_.bits))
        if not type_.is_signed:
            return self._emit(operation, type_, (dividend, divisor), node, code)
        # Of a power of two, a shift rounds down, as Python does, and a mask gives the remainder.
        if bits > 0 and bits & (bits - 1) == 0:
            if operation is Operator.DIV:
                amount = Constant(Type.U32, bits.bit_length() - 1)
                return self._emit(Operator.SHR, type_, (dividend, amount), node, code)
            return self._emit(Operator.AND, type_, (dividend, Constant(type_, bits - 1)), node, code)
        return self._floor_division(operation, type_, dividend, divisor, node, code)

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

    def _unary(self, node: ast.UnaryOp, code: list[Statement], expected: Type | None) -> Result:
        """Evaluate ``not x``, ``+x``, ``-x`` or ``~x``; of a literal at once. expected: see ``evaluate``."""
        if isinstance(node.op, ast.Not):
            known = self.known(node)
            if known is not None:
                return self.constant(Type.PRED, int(known), node)
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
        known = self.known(node)
        if known is not None:
            return self.in_register(self.constant(Type.PRED, int(bool(known)), node), node, code)
        if isinstance(node, ast.BoolOp):
            joined = Operator.AND if isinstance(node.op, ast.And) else Operator.OR
            # Of those that are known none decides, or the whole were known.
            computed = [value for value in node.values if self.known(value) is None]
            return self._join(joined, [self.condition(value, code) for value in computed], node, code)
        if isinstance(node, ast.Compare):
            # Each operand is evaluated once, also the middle one of a < b < c.
            operands = [(side, self.evaluate(side, code, None)) for side in (node.left, *node.comparators)]
            # Each operand with the next one: the last has none, so the lists differ in length.
            comparisons = [
                self._compare(relation, left, right, node, code)
                for relation, left, right in zip(node.ops, operands, operands[1:], strict=False)
                if self.known(ast.Compare(left[0], [relation], [right[0]])) is None
            ]
            return self._join(Operator.AND, comparisons, node, code)
        result = self.evaluate(node, code, None)
        if isinstance(result, SiteOperand) and type_of_result(result, self._faults.words) is None:
            # Of whatever type it is at a site, which is known only there.
            target = self._temporary(Type.PRED, node)
            code.append(Load(target, result, self._faults.span(node)))
            return target
        value = self.convert(result, self._require_type(result, None, node), node, code)
        return self.in_register(self.convert(value, Type.PRED, node, code), node, code)

    def _join(self, operation: Operator, predicates: list[Register], node: ast.expr, code: list[Statement]) -> Register:
        """Combine one or more predicates by AND or OR (``operation``); return the predicate with the result."""
        joined, *others = predicates
        for predicate in others:
            joined = self._emit(operation, Type.PRED, (joined, predicate), node, code)
        return joined

    def _compare(
        self, comparison: ast.cmpop, left: tuple[ast.expr, Result], right: tuple[ast.expr, Result], node: ast.expr,
        code: list[Statement],
    ) -> Register:  # fmt: skip
        """Emit one comparison and return its predicate. left, right: an operand's expression, and its value.

        Raises LanguageError for ``is`` and ``in``, and for types that do not match.
        """
        relation = _RELATIONS.get(type(comparison))
        if relation is None:
            raise self._faults.refuse(node, "python-expression", f"'{self._faults.quote(node)}' in a probe")
        (left_node, left_result), (right_node, right_result) = left, right
        common_type = self._common_type(left_result, right_result, None, node, (left_node, right_node))
        target = self._temporary(Type.PRED, node)
        first = self.convert(left_result, common_type, left_node, code)
        second = self.convert(right_result, common_type, right_node, code)
        code.append(Compare(relation, target, first, second, self._faults.span(node)))
        return target

    def _conditional(self, node: ast.IfExp, code: list[Statement], expected: Type | None) -> Result:
        """Evaluate ``a if condition else b`` by a select: both values are computed. expected: see ``evaluate``.

        Where the condition is known, the other value is left out, but for its type: that of both is the result's.
        """
        known = self.known(node.test)
        if known is not None:
            chosen, other = (node.body, node.orelse) if known else (node.orelse, node.body)
            result = self.evaluate(chosen, code, expected)
            own, others = settled(type_of_result(result, self._faults.words)), self._type_of_other(other, expected)
            if others is None or (own is not None and not is_wider(others, own)):
                return result
            return self.convert(result, others, chosen, code)
        condition = self.condition(node.test, code)
        then, otherwise = self.evaluate(node.body, code, expected), self.evaluate(node.orelse, code, expected)
        common_type = self._common_type(then, otherwise, expected, node, (node.body, node.orelse))
        target = self._temporary(common_type, node)
        first = self.convert(then, common_type, node.body, code)
        second = self.convert(otherwise, common_type, node.orelse, code)
        code.append(Select(target, condition, first, second, self._faults.span(node)))
        return target
