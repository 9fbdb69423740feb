"""Probes in one line, ``neutrino -e``, read into typed IR.

    ld.global { @bytes = hist(BYTES) }
    kernel { @t = avg(elapsed) }
    st.global /BYTES == 16/ { @wide = count(); print("{:#x}", ADDR) }

    program   = clause { clause }
    clause    = position [ "/" expression "/" ] "{" statement { ";" statement } "}"
    statement = [ map "=" ] function "(" arguments ")" | a statement of a probe in Python
    map       = "@" [ NAME ] [ "[" key "]" ]

Positions are those of probe files, expressions and statements those of probes in Python. A map is made by its use; only
``print`` needs no name for it. The text is parsed, never run; all faults are reported at once, each at its line and
column.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from neutrino.abi.levels import Level
from neutrino.errors import Diagnostic, ProbeError
from neutrino.ir.operands import Constant, Register, SavedOperand, SiteOperand, Special
from neutrino.ir.statements import Operation, Operator
from neutrino.ir.types import Type
from neutrino.language.clauses import UNNAMED, Clause, ClauseText, map_of
from neutrino.language.faults import Faults, LanguageError, TooManyFaultsError
from neutrino.language.locals import Result
from neutrino.language.other_words import OF_MAPS, OF_VALUES, OTHER_FUNCTIONS, RESULTS, VALUES
from neutrino.language.probe_bodies import Names, SnippetReader
from neutrino.language.uses import (
    ALL_FUNCTIONS,
    FUNCTIONS,
    MOST_COLUMNS,
    MOST_KEYS,
    MOST_ROOM,
    PRINT,
    ROWS,
    TextError,
    Use,
    Value,
    checked_text,
    field_name,
)
from neutrino.language.vocabulary import (
    CHANGING,
    ELSEWHERE,
    HELPERS,
    PARAMETER,
    PLACES,
    SITE_OPERANDS,
    TYPES,
    settled,
    type_of_result,
)
from neutrino.language.vocabulary import FUNCTIONS as COMPUTING
from neutrino.maps.declaration import Map
from neutrino.probing.document import MAX_SIZE, Document
from neutrino.probing.ir.draft import DraftProbes
from neutrino.probing.ir.probe_set import Probe, Snippet
from neutrino.probing.ir.structured import Save, Statement, walk
from neutrino.probing.maps import MAX_MAP_NAME, read_map
from neutrino.probing.model import Subject, Tracepoint
from neutrino.probing.nearest import nearest
from neutrino.probing.target import Language, Words
from neutrino.probing.tracepoints import parse_tracepoint

FILE = "-e"
"""What diagnostics call the text of the option."""
FAULTS = {"one-liner": "a clause of a one-liner that cannot be read, or a map that cannot be made"}
"""Code → what is wrong; others are those of probes in Python."""

_ALIAS = "nl"
_ELAPSED, _LINE = "elapsed", "line"
_WORDS = frozenset({*HELPERS, *PLACES, *SITE_OPERANDS, "param", _ELAPSED})
_SMALL = frozenset({"leader", "elected", "thread", "block", _LINE})
"""Values of the instruction that are not shown in capitals."""
_SHOWN_WORDS = sorted({word.upper() if word in {*SITE_OPERANDS} - _SMALL else word for word in _WORDS})
_OPERAND = re.compile(r"out|in[1-9]", re.ASCII)
_HALVES = frozenset({Type.F16, Type.BF16})
"""Types of operands that fields of f32 take."""
_NAMES = frozenset({*TYPES, *COMPUTING, "bits", "has", "is_global", "warp"})
"""Written in small letters alone."""
_AXES = frozenset("XYZW")
_LANGUAGE = re.compile(rf"\b{_ALIAS}\.(\w+)(?:\(\))?")


class _OneLineFaults(Faults):
    """Faults that quote the text as it was written: without the names that it was given for Python's parser."""

    def __init__(self, source: str, words: Words) -> None:
        """Begin to collect the faults of a one-liner. source: the text as it was written. words: of the target, for
        hints."""
        super().__init__(FILE, source, words)
        self._text = source

    def quote(self, node: ast.AST) -> str:
        """Return a construct's text, for a message, as the user wrote it."""
        written = ast.get_source_segment(self._text, node)
        return super().quote(node) if written is None else " ".join(written.split())

    def report(self, node: Any, code: str, message: str, hint: str = "") -> None:
        """Add a fault; names of ``neutrino.language`` are those of a one-liner, without ``nl.``."""
        if code == "python-name" and isinstance(node, ast.Name) and (map_name := self.quote(node)).startswith("@"):
            message = f"{map_name} is a map, which a probe cannot read"
            hint = "its results are there when COMMAND ends; a value that a probe goes on with needs no @"
        elif code == "python-name" and isinstance(node, ast.Name) and not hint:
            guess = VALUES.get(node.id.lower()) or ELSEWHERE.get(node.id) or nearest(node.id, _SHOWN_WORDS)
            hint = f"did you mean {guess}?" if guess else "the values of an instruction are ADDR, BYTES, OUT, IN1 …"
            hint = OF_VALUES.get(node.id.lower(), hint)
            if node.id.lower() in RESULTS:
                hint = "results are shown for each kernel anyway, and each process has a trace of its own"
        super().report(node, code, *(_LANGUAGE.sub(r"\1", text) for text in (message, hint)))

class _Words(ast.NodeTransformer):
    """Gives words such as ``BYTES`` and ``clock`` their meaning in ``neutrino.language``."""

    def __init__(self, start: str) -> None:
        """Prepare to replace words such as ``BYTES`` in a syntax tree. start: the register that ``elapsed`` counts
        from."""
        self._start = start
        self.has_elapsed = False
        self.has_out = False

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        """Replace words in an assignment, but not the name of the function that makes a map, as in ``@n = count()``."""
        name, _ = map_of(node)
        if name is None or not isinstance(node.value, ast.Call):
            self.generic_visit(node)
            return node
        node.targets = [self.visit(target) for target in node.targets]
        node.value.args = [self.visit(argument) for argument in node.value.args]
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return what a word stands for: ``BYTES`` becomes ``nl.bytes``, ``clock`` a call; variables and maps stay."""
        word = node.id.lower()
        is_word = word in _WORDS and node.id in {word, word.upper()}
        if not isinstance(node.ctx, ast.Load) or not (is_word or node.id in _NAMES):
            return node
        self.has_out |= word == "out"
        self.has_elapsed |= word == _ELAPSED
        language = ast.copy_location(ast.Name(_ALIAS, ast.Load()), node)
        attribute = "clock" if word == _ELAPSED else word
        value: ast.expr = ast.copy_location(ast.Attribute(language, attribute, ast.Load()), node)
        if attribute in CHANGING:
            value = ast.copy_location(ast.Call(value, [], []), node)
        if word != _ELAPSED:
            return value
        start = ast.copy_location(ast.Name(self._start, ast.Load()), node)
        return ast.copy_location(ast.BinOp(value, ast.Sub(), start), node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Replace a word before a dot, as in ``tid.x``; ``nl.bytes`` stays as it is."""
        if isinstance(node.value, ast.Name) and node.value.id == _ALIAS:
            self.has_out |= node.attr == "out"
            return node
        if isinstance(node.value, ast.Name) and node.value.id.lower() in _WORDS and node.attr in _AXES:
            node.attr = node.attr.lower()
        self.generic_visit(node)
        return node


class _Operands(ast.NodeTransformer):
    """Gives operands the type that the position names: ``OUT`` becomes ``s32(OUT)``.

    kinds: by the name in ``neutrino.language``, of those that have one. Others may be saved as they are, as unsigned
    integers, but not computed with: how wide they are is not known, which is reported. of_elements: the
    types of elements of vectors. is_typed: all have a type that is known only when they are saved.
    """

    def __init__(
        self, faults: Faults, kinds: Mapping[str, Type], of_elements: Mapping[str, Type], *, is_typed: bool
    ) -> None:
        """Prepare to give operands in a syntax tree their types. kinds, of_elements: types of operands, and of the
        elements of vectors, by name. is_typed: all have a type that is known only when they are saved."""
        self._faults = faults
        self._kinds = kinds
        self._of_elements = of_elements
        self._is_typed = is_typed

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Read the operand of a conversion such as ``s32(OUT)`` as of the type that the position names; if none, as of
        s32.
        """
        function = node.func
        is_conversion = isinstance(function, ast.Attribute) and function.attr in TYPES and len(node.args) == 1
        operand = node.args[0] if node.args else None
        element = operand.value if isinstance(operand, ast.Attribute) else operand
        name = _operand_of(element) if element is not None else ""
        if not is_conversion or not name or operand is None:
            self.generic_visit(node)
        elif name in self._of_elements:
            node.args = [self._as(self._of_elements[name], operand)]
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Return an operand such as ``nl.out`` as one of the type that the position names."""
        return self._converted(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """Return an element of a vector operand, ``nl.out[1]``, as one of the type that the position names."""
        if _operand_of(node):
            return self._converted(node)
        self.generic_visit(node)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """Refuse to compute with an operand that has no type."""
        for side in (node.left, node.right):
            if self._is_untyped(side):
                written = self._faults.quote(side)
                hint = f"say which: u32({written}), s32({written}), u64({written}) …"
                self._faults.report(side, "python-type", f"'{written}' has no type", hint)
        self.generic_visit(node)
        # With a type, whichever, what follows has no further fault.
        node.left, node.right = (
            self._as(Type.U32, side) if self._is_untyped(side) else side for side in (node.left, node.right)
        )
        return node

    def _is_untyped(self, node: ast.expr) -> bool:
        """Return whether an expression is an operand that cannot be computed with as it is."""
        return bool(_operand_of(node)) and not self._is_typed and _operand_of(node) not in self._kinds

    def _converted(self, node: ast.expr) -> ast.expr:
        """Return an operand with the type that the position says of it, ``nl.s32(nl.out)``; others as they are."""
        kind = self._kinds.get(_operand_of(node))
        return node if kind is None else self._as(kind, node)

    def _as(self, kind: Type, node: ast.expr) -> ast.expr:
        """Return the expression that takes an operand as of a type: ``nl.s32(nl.out)``."""
        language = ast.copy_location(ast.Name(_ALIAS, ast.Load()), node)
        function = ast.copy_location(ast.Attribute(language, kind.value, ast.Load()), node)
        return ast.copy_location(ast.Call(function, [node], []), node)


class _ClauseReader(SnippetReader):
    """Reads the statements of a clause: those of probes, ``@name = function(value)`` and ``print(value)``.

    tables: map → the table that it was made from, over all clauses; uses: how it is used. Maps that it makes are added
    to the mapping of maps.
    """

    def __init__(
        self, faults: Faults, registers: dict[str, Register], maps: dict[str, Map], tables: dict[str, dict[str, Any]],
        uses: dict[str, Use], operand_type: Type | None,
    ) -> None:  # fmt: skip
        """Set up a translator of a clause's statements. operand_type: of OUT and IN at all its instructions; None if
        not known."""
        super().__init__(faults, Names(_ALIAS, registers, maps), set())
        self._made = maps
        self._tables = tables
        self._uses = uses
        self._operand_type = operand_type
        # Those without a name, by place: a loop that is unrolled has them several times.
        self._prints: dict[tuple[int, int], str] = {}

    def _statement(self, node: ast.stmt, code: list[Statement]) -> None:
        """Translate one statement. Raises LanguageError if it is not supported."""
        name, key = map_of(node)
        call = node.value if isinstance(node, (ast.Expr, ast.Assign)) else None
        function = call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else ""
        if name is not None and isinstance(node, ast.Assign) and isinstance(call, ast.Call):
            self._action(name, key, node, call, code)
        elif name is not None:
            hint = f"write {_shown(name)} = count(), or another of {', '.join(ALL_FUNCTIONS)}"
            raise self._faults.refuse(node, "one-liner", "a map is made by a function", hint)
        elif isinstance(call, ast.Call) and isinstance(node, ast.Expr) and function == PRINT:
            place = call.lineno, call.col_offset
            if place not in self._prints:
                names = (f"{PRINT}_{number}" if number > 1 else PRINT for number in itertools.count(1))
                self._prints[place] = next(each for each in names if each not in self._uses)
            self._rows(self._prints[place], node, call, PRINT, code)
        elif isinstance(call, ast.Call) and isinstance(node, ast.Expr) and function in ALL_FUNCTIONS:
            hint = f"write @name = {self._faults.quote(call)}"
            raise self._faults.refuse(node, "one-liner", f"the map of {function} has no name", hint)
        elif isinstance(call, ast.Call) and isinstance(node, ast.Expr) and (hint := self._meant(call, function)):
            raise self._faults.refuse(node, "one-liner", f"'{self._faults.quote(call.func)}' is called", hint)
        elif isinstance(call, ast.Call) and isinstance(node, ast.Assign) and _makes_map(node.targets[0], call):
            target = self._faults.quote(node.targets[0])
            hint = f"write @{target} = {self._faults.quote(call)}"
            raise self._faults.refuse(node, "one-liner", f"{target} is no map: the name of a map begins with @", hint)
        else:
            super()._statement(node, code)

    def _meant(self, call: ast.Call, function: str) -> str:
        """Return which function a user may have meant by a call of an unknown one, for a hint; "" if nothing is
        similar."""
        method = call.func
        if isinstance(method, ast.Attribute) and hasattr(method.value, "map_name"):
            values = ", ".join(self._faults.quote(argument) for argument in call.args)
            return f"write {self._faults.quote(method.value)} = {method.attr}({values})"
        if function.lower() in OF_MAPS:
            return "a probe only saves; results are printed when COMMAND ends, or by interval:1s { print }"
        guess = OTHER_FUNCTIONS.get(function.lower()) or (nearest(function, ALL_FUNCTIONS) if function else None)
        return f"did you mean {guess}?" if guess else ""

    def _own_save_of(self, node: ast.stmt) -> None:
        """Return None: a clause has no ``nl.save``, only maps that are made by their use."""

    def _action(self, name: str, key: ast.expr | None, node: ast.stmt, call: ast.Call, code: list[Statement]) -> None:
        """Translate ``@name[key] = function(value)``: a save to the map, which is made at its first use."""
        word = call.func.id if isinstance(call.func, ast.Name) else ""
        function = FUNCTIONS.get(word)
        if function is None and word not in ROWS:
            guess = OTHER_FUNCTIONS.get(word.lower()) or (nearest(word, ALL_FUNCTIONS) if word else None)
            hint = f"did you mean {guess}?" if guess else f"there are {', '.join(ALL_FUNCTIONS)}"
            raise self._faults.refuse(call, "one-liner", f"'{self._faults.quote(call.func)}' makes no map", hint)
        if key is not None and (function is None or function.keep is None):
            others = ", ".join(other for other, each in FUNCTIONS.items() if each.keep is not None)
            hint = f"write the key as a value: {word}(key, …)" if function is None else f"with a key there are {others}"
            raise self._faults.refuse(key, "one-liner", f"{word} has no key", hint)
        if function is None:
            self._rows(name, node, call, word, code)
            return
        if call.keywords or len(call.args) != len(function.constants) + bool(function.field):
            number = len(call.args) + len(call.keywords)
            message = f"{number} argument{'' if number == 1 else 's'} of {word}"
            raise self._faults.refuse(call, "one-liner", message, f"write {word}({function.arguments})")
        numbers = (self._number(word, argument, is_integer=word == "topk") for argument in call.args[1:])
        constants: dict[str, Any] = dict(zip(function.constants, numbers, strict=True))
        if word == "topk" and not 1 <= constants["n"] <= MOST_ROOM:
            hint = f"write a number of keys from 1 to {MOST_ROOM}"
            raise self._faults.refuse(call.args[1], "one-liner", f"topk of {constants['n']} keys", hint)
        table = function.table(constants)
        values = [(function.field, call.args[0])] if function.field else []
        if key is not None:
            table = {"type": "hash", "room": MOST_KEYS, "keep": list(function.keep or ())}
            values = [("key", key), *((("value", call.args[0]),) if function.field else ())]
        # What is printed as more than a number: keys, and the least and greatest value.
        shown = key if key is not None else call.args[0] if word in {"min", "max", "topk"} else None
        value = self._shown_value(shown) if shown is not None and (key is not None or word == "topk") else Value()
        if word in {"min", "max"} and key is None:
            value = Value(is_address=_has_address(call.args[0]))
        if value.is_site:
            # Reports know a field of this name.
            values[0] = ("site", values[0][1])
        saved = [(field, *self._value(argument, code)) for field, argument in values]
        # What only counts saves a 1.
        saved = saved or [("count", Type.U64, Constant(Type.U64, 1))]
        nodes = [argument for _, argument in values]
        self._save_to(name, table, Use(word, constants.get("n", 0), value), saved, nodes, node, code)

    def _number(self, word: str, node: ast.expr, *, is_integer: bool) -> int | float:
        """Return a number that is an argument of a function that makes a map. is_integer: fractions are refused."""
        if not is_integer:
            value = self._expressions.evaluate(node, [], Type.F64)
            if isinstance(value, float):
                return value
        kind = "whole numbers" if is_integer else "numbers"
        return self._expressions.constant_integer(node, f"the numbers of {word} are {kind} that are known here")

    def _rows(self, name: str, node: ast.stmt, call: ast.Call, word: str, code: list[Statement]) -> None:
        """Translate ``save(…)`` or ``print(…)``, which record rows: a save to a log, which is made at its first use."""
        arguments, text = list(call.args), None
        if word == PRINT and arguments and isinstance(getattr(arguments[0], "value", None), str):
            text = arguments.pop(0)
        if call.keywords or (not arguments and text is None) or len(arguments) > MOST_COLUMNS:
            number = len(arguments) + len(call.keywords)
            message = f"{number} value{'' if number == 1 else 's'} of {word}"
            if call.keywords:
                message = f"{call.keywords[0].arg or '**'}= in {word}"
            hint = f"write {word}({ROWS[word]})"
            if len(arguments) > MOST_COLUMNS:
                hint = f"there are at most {MOST_COLUMNS}"
            raise self._faults.refuse(call, "one-liner", message, hint)
        columns: list[Value] = []
        saved: list[tuple[str, Type, SavedOperand]] = []
        for argument in arguments:
            if isinstance(argument, ast.JoinedStr) or (
                isinstance(argument, ast.Constant) and isinstance(argument.value, (str, bytes))
            ):
                hint = 'write print("{:#x} has {}", ADDR, BYTES): the text first, a {} for each value'
                raise self._faults.refuse(argument, "one-liner", "a text in the place of a value", hint)
            shown = self._shown_value(argument)
            field = "site" if shown.is_site else shown.title
            column = replace(shown, field=field_name(field, [each.field for each in columns]))
            columns.append(column)
            saved.append((column.field, *self._row_value(argument, code)))
        shown_text = None
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            try:
                kinds = zip(columns, saved, strict=True)
                examples = ["" if column.is_site else 0.0 if kind.is_float else 0 for column, (_, kind, _) in kinds]
                shown_text = checked_text(text.value, examples)
            except TextError as error:
                raise self._faults.refuse(text, "one-liner", str(error), error.hint) from None
        # A text alone saves a 1.
        saved = saved or [("printed", Type.U8, Constant(Type.U8, 1))]
        use = Use(word, columns=tuple(columns), text=shown_text)
        self._save_to(name, {"type": "log"}, use, saved, arguments, node, code)

    def _save_to(
        self, name: str, table: dict[str, Any], use: Use, saved: Sequence[tuple[str, Type, SavedOperand]],
        nodes: Sequence[ast.expr], node: ast.stmt, code: list[Statement],
    ) -> None:  # fmt: skip
        """Append a save to a map, which is made if it is new. table: of the map, without its fields. use: how it is
        shown.

        saved: for each field name, type and value. nodes: the expressions of the values.
        """
        table = table | {"level": "thread", "data": {field: kind.value for field, kind, _ in saved}}
        operands = tuple(operand for *_, operand in saved)
        places = tuple(self._faults.span(each) for each in nodes)
        code.append(Save(self._map(name, table, use, node), operands, self._faults.span(node), places=places))

    def _shown_value(self, node: ast.expr) -> Value:
        """Return how reports show a key or a value of a row: an address in hex, an instruction's number as its place.
        """
        is_site = isinstance(node, ast.Attribute) and node.attr in {"site", _LINE} and _is_language(node.value)
        is_line = is_site and isinstance(node, ast.Attribute) and node.attr == _LINE
        title = self._faults.quote(node)
        if is_line and isinstance(node, ast.Attribute):
            # Recorded as the instruction's number, of which readers look the file up, too.
            node.attr = "site"
        return Value("", title, _has_address(node), is_site, is_line)

    def _value(self, node: ast.expr, code: list[Statement]) -> tuple[Type, SavedOperand]:
        """Evaluate a value or key that is saved: return the type of its field, and the operand.

        Integers have 64 bits, floating-point numbers at least 32.
        """
        result = self._expressions.evaluate(node, code, Type.U64)
        value = self._type_of(result)
        kind = Type.U64
        if value is not None and value.is_float:
            kind = Type.F64 if value is Type.F64 else Type.F32
        elif value is not None and value is not Type.PRED and value.is_signed:
            kind = Type.S64
        if isinstance(result, SiteOperand) and value in {None, kind, *_HALVES}:
            return kind, result
        return kind, self._expressions.convert(result, kind, node, code)

    def _type_of(self, result: Result) -> Type | None:
        """Return the type of a value; None for a number, and for an operand whose type is not known."""
        value = type_of_result(result, self._faults.words)
        # A parameter has the type that its kernel gives it, whatever the instruction's operands are.
        of_instruction = isinstance(result, SiteOperand) and result.name != PARAMETER
        return self._operand_type if value is None and of_instruction else value

    def _row_value(self, node: ast.expr, code: list[Statement]) -> tuple[Type, SavedOperand]:
        """Evaluate a value of a row; return the type of its field and the operand to save.

        The field has the value's own type if fields can have it.
        """
        result = self._expressions.evaluate(node, code, Type.U64)
        value = settled(self._type_of(result))
        if isinstance(result, (int, float)):
            kind = Type.F64 if isinstance(result, float) else Type.S64 if result < 0 else Type.U64
        elif value is None or value is Type.PRED:
            kind = Type.U8 if value is Type.PRED else Type.U64
        else:
            kind = Type.F32 if value in {Type.F16, Type.BF16} else value
        if isinstance(result, SiteOperand) and value in {None, kind, *_HALVES}:
            return kind, result
        return kind, self._expressions.convert(result, kind, node, code)

    def _map(self, name: str, table: dict[str, Any], use: Use, node: ast.stmt) -> Map:
        """Return the map of that name, which is made at its first use. Raises LanguageError if it has another use."""
        first = self._uses.setdefault(name, use)
        message = f"{_shown(name)} is {first.function}() elsewhere"
        if first.function == use.function:
            message = f"{_shown(name)} is {first.function}() of other values elsewhere"
        is_alike = (first.function, first.text) == (use.function, use.text)
        if not is_alike or self._tables.setdefault(name, table) != table:
            hint = "use another name; one map takes values of one kind"
            raise self._faults.refuse(node, "one-liner", message, hint)
        if name not in self._made:
            document = Document(FILE, "")
            made = read_map(document, name, table)
            for fault in document.diagnostics:
                if fault.severity == "error":
                    self._faults.report(node, "one-liner", fault.message, fault.hint)
            if made is None:
                del self._uses[name], self._tables[name]
                raise LanguageError(name)
            self._made[name] = made
        return self._made[name]


def _operand_type(tracepoint: Tracepoint, words: Words) -> Type | None:
    """Return the type of OUT and IN, where the position names it and all of its patterns the same one; None otherwise.
    """
    kinds = {words.type_of_operands(pattern) for pattern in tracepoint.patterns}
    return kinds.pop() if len(kinds) == 1 else None


def _operand_of(node: ast.expr) -> str:
    """Return the name of an operand, as ``out``, of which this is the whole or an element; "" for anything else."""
    value = node.value if isinstance(node, ast.Subscript) else node
    is_operand = isinstance(value, ast.Attribute) and _is_language(value.value) and _OPERAND.fullmatch(value.attr)
    return value.attr if is_operand and isinstance(value, ast.Attribute) else ""


def _typed_operands(tracepoint: Tracepoint, words: Words, *, elements: bool = False) -> Mapping[str, Type]:
    """Return the types of the operands, by name, where a position names one that can be computed with as it is.

    elements: also of vectors, whose elements have it.
    """
    found = [words.operand_types(pattern, elements=elements) for pattern in tracepoint.patterns]
    return {name: kind for name, kind in found[0].items() if all(each.get(name) is kind for each in found)}


def _shown(name: str) -> str:
    """Return a map's name as it is written in a one-liner."""
    return "@" if name == UNNAMED else f"@{name}"


def _makes_map(target: ast.expr, call: ast.Call) -> bool:
    """Return whether a map lacks its @: a call that is assigned makes one, as ``count()`` and ``max(x)``, and not
    ``max(x, y)``. target: to what it is assigned."""
    name = target.value if isinstance(target, ast.Subscript) else target
    word = getattr(call.func, "id", "") or getattr(call.func, "attr", "")
    is_map = word in ALL_FUNCTIONS and (word not in COMPUTING or len(call.args) < COMPUTING[word])
    return is_map and isinstance(name, ast.Name) and not hasattr(name, "map_name")


def _is_language(node: ast.expr) -> bool:
    """Return whether an expression is the name of the language, ``nl``."""
    return isinstance(node, ast.Name) and node.id == _ALIAS


def _has_address(node: ast.expr) -> bool:
    """Return whether an expression is computed from an address."""
    return any(isinstance(each, ast.Attribute) and each.attr == "addr" for each in ast.walk(node))


def read_one_liner(text: str, language: Language) -> DraftProbes:
    """Read the probes of one line, without verifying them. Raises ProbeError with all its faults.

    language: of the target that they are for.
    """
    return _read(text, language)[0]


def uses_of_maps(text: str, language: Language) -> Mapping[str, Use]:
    """Return, by name, what reports have to know of how the maps of a one-liner are used. Raises ProbeError as
    ``read_one_liner``."""
    return _read(text, language)[1]


def _read(text: str, language: Language) -> tuple[DraftProbes, Mapping[str, Use]]:
    """Read a one-liner: return its probes, and how its maps are used. Raises ProbeError with all faults."""
    if len(text) > MAX_SIZE:
        message = f"the text has {len(text)} characters, more than {MAX_SIZE}"
        raise ProbeError([Diagnostic(FILE, 1, 1, "", message, "longer probes go in a .py file", code="too-large")])
    faults = _OneLineFaults(text, language.words)
    reader = _Reader(faults, text, language)
    try:
        draft = reader.read()
    except RecursionError:
        message = "expressions are nested too deeply"
        raise ProbeError([Diagnostic(FILE, 1, 1, "", message, code="python-expression")]) from None
    except TooManyFaultsError:
        draft = None
    if draft is None or faults.diagnostics:
        partial = () if draft is None else (draft,)
        raise ProbeError(sorted(faults.diagnostics, key=lambda item: (item.line, item.column)), partial)
    return draft, reader.uses


class _Reader:
    """Reads the clauses of one text. uses: how its maps are used."""

    def __init__(self, faults: _OneLineFaults, text: str, language: Language) -> None:
        """Set up a reader of a one-liner. text: its clauses. faults: where they are reported. language: of the kernels'
        assembly."""
        self._faults = faults
        self._language = language
        self._text = ClauseText(faults, text)
        self._registers: dict[str, Register] = {}
        self._maps: dict[str, Map] = {}
        self._tables: dict[str, dict[str, Any]] = {}
        self.uses: dict[str, Use] = {}

    def read(self) -> DraftProbes:
        """Return the probes. Faults are reported, and clauses that have them are left out."""
        probes: list[Probe] = []
        unread: set[str] = set()
        try:
            for number, clause in enumerate(self._text.clauses(), start=1):
                fault_count = len(self._faults.diagnostics)
                try:
                    probes += self._probes(number, clause)
                except LanguageError:
                    continue
                if len(self._faults.diagnostics) > fault_count:
                    unread.add(f"e{number}")
        except LanguageError:
            pass
        maps, registers = tuple(self._maps.values()), tuple(self._registers.values())
        return DraftProbes(
            FILE, self._text.text, maps, registers, tuple(probes), is_whole=not self._faults.diagnostics,
            unread=frozenset(unread), platform=self._language.platform, lane_mask=self._language.words.lane_mask,
        )  # fmt: skip

    def _probes(self, number: int, clause: Clause) -> list[Probe]:
        """Return the probe of a clause, and with ``elapsed`` the one before it that reads the clock.

        number: of the clause, from 1. Raises LanguageError for faults, which are reported.
        """
        text = self._text
        start, end = clause.position
        position = text.text[start:end].rstrip()
        # Quotes stand around names of functions with spaces, commas and braces.
        unquoted = re.sub("'[^']*'|\"[^\"]*\"", lambda quoted: " " * len(quoted[0]), position)
        if "," in unquoted:
            hint = "write | between positions, and quotes around the name of a function with a comma"
            raise text.refuse(start + unquoted.index(","), "',' in a position", hint)
        tracepoint, position_faults = parse_tracepoint(re.sub("['\"]", " ", position), self._faults.words)
        for fault in position_faults:
            self._faults.report(text.node_at(start + fault.start), fault.code, fault.message, fault.hint)
        words = _Words(f"start_{number}")
        statements = []
        for part in clause.statements:
            tree = text.parse(part, "exec")
            if isinstance(tree, ast.Module):
                statements += [words.visit(statement) for statement in tree.body]
        chosen = text.parse(clause.filter, "eval") if clause.filter else None
        if clause.filter and chosen is None:
            raise text.refuse(clause.filter[0] - 1, "the filter is empty", "write /EXPRESSION/, or leave it out")
        condition = words.visit(chosen.body) if isinstance(chosen, ast.Expression) else None
        if not statements:
            raise text.refuse(start, f"'{position}' has no statements", text.example)
        for node in ast.walk(ast.Module(statements, [])):
            name = getattr(node, "map_name", None)
            if isinstance(name, str) and len(name) > MAX_MAP_NAME:
                message = f"a map's name of {len(name)} characters"
                raise self._faults.refuse(node, "one-liner", message, f"it may have {MAX_MAP_NAME}")
        return self._with_code(number, clause, tracepoint, condition, statements, words)

    def _with_code(
        self, number: int, clause: Clause, tracepoint: Tracepoint | None, condition: ast.expr | None,
        statements: list[ast.stmt], words: _Words,
    ) -> list[Probe]:  # fmt: skip
        """Return the probe of a clause, or two if it says ``elapsed``: one more, which reads the clock where it starts.

        number: of the clause. tracepoint, condition, statements: its parsed parts, None for one without. words: which
        words it has. Raises LanguageError for faults.
        """
        span = self._faults.span(self._text.node_at(clause.position[0]))
        has_start = tracepoint is not None and _has_start(tracepoint)
        if words.has_elapsed:
            register = Register(f"%start_{number}", Type.U64, 0, span)
            self._registers[register.name] = register
            if tracepoint is not None and not has_start:
                hint = (
                    "write kernel { … } or range:NAME { … }; how long instructions take: -p latency (loads), "
                    "-p barrier_wait (barriers)"
                )
                raise self._text.refuse(clause.position[0], "elapsed is of kernels, or of one range", hint)
        operand_type = _operand_type(tracepoint, self._faults.words) if tracepoint is not None else None
        kinds = _typed_operands(tracepoint, self._faults.words) if tracepoint is not None else {}
        of_elements = _typed_operands(tracepoint, self._faults.words, elements=True) if tracepoint is not None else {}
        # A predicate's type is no other operand's.
        if not all(kind.is_float or kind is Type.U32 for kind in kinds.values()) or kinds.get("in2") is Type.U32:
            operand_type = None
        reader = _ClauseReader(self._faults, self._registers, self._maps, self._tables, self.uses, operand_type)
        body = list(statements)
        if condition is not None:
            body = [ast.copy_location(ast.If(condition, body, []), condition)]
        faults_before = len(self._faults.diagnostics)
        # Halves are widened where they are saved, and not computed with.
        is_typed = operand_type is not None and operand_type.bits >= 32
        typed = _Operands(self._faults, kinds, of_elements, is_typed=is_typed)
        body = [typed.visit(statement) for statement in body]
        function = ast.FunctionDef(f"e{number}", _NO_ARGUMENTS, body, [], None)
        snippet = reader.read(function)
        if tracepoint is None or (not snippet.statements and self._faults.diagnostics):
            raise LanguageError(str(number))
        if not any(isinstance(statement, Save) for statement in walk(snippet.statements)):
            if len(self._faults.diagnostics) > faults_before:
                raise LanguageError(str(number))
            raise self._text.refuse(clause.position[0], "nothing is saved", "write @ = count(), or another map")
        is_after = words.has_elapsed or words.has_out
        before, after = (None, snippet) if is_after else (snippet, None)
        probes = [Probe(f"e{number}", tracepoint, Level.THREAD, before, after, span)]
        if words.has_elapsed:
            read_clock = Snippet((Operation(Operator.MOVE, register, (Special.CLOCK,), span),))
            probes.insert(0, Probe(f"e{number}_start", tracepoint, Level.THREAD, read_clock, None, span))
        return probes


def _has_start(tracepoint: Tracepoint) -> bool:
    """Return whether a tracepoint has a beginning that ``elapsed`` counts from: one that belongs to each of its ends.
    """
    # Two ranges may lie in each other.
    is_range = len(tracepoint.patterns) == 1 and tracepoint.patterns[0].subject is Subject.RANGE
    return is_range or all(pattern.subject is Subject.KERNEL for pattern in tracepoint.patterns)


_NO_ARGUMENTS = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
