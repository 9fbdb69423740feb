"""Probes in one line, ``neutrino -e``, read into typed IR.

    ld.global { @bytes = hist(BYTES) }
    kernel { @t = avg(elapsed) }
    st.global /BYTES == 16/ { @wide = count(); @most = max(ADDR) }

    program   = clause { clause }
    clause    = position [ "/" expression "/" ] "{" statement { ";" statement } "}"
    statement = map "=" function "(" arguments ")" | a statement of a probe in Python
    map       = "@" [ NAME ] [ "[" key "]" ]

Positions are those of probe files, expressions and statements those of probes in Python. A map is made by its use. The
text is parsed, never run; all faults are reported at once, each at its line and column.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from neutrino.abi.levels import Level
from neutrino.errors import Diagnostic, ProbeError
from neutrino.language.faults import Faults, LanguageError, TooManyFaultsError
from neutrino.language.statements import Names, SnippetReader
from neutrino.language.vocabulary import (
    CHANGING,
    FUNCTIONS,
    HELPERS,
    PLACES,
    SITE_OPERANDS,
    TYPES,
    type_of_result,
)
from neutrino.maps.declaration import Map
from neutrino.probing.document import MAX_SIZE, Document
from neutrino.probing.ir.draft import DraftProbes
from neutrino.probing.ir.operands import Constant, Register, SavedOperand, SiteOperand, Special
from neutrino.probing.ir.probe_set import Probe, Snippet
from neutrino.probing.ir.statements import Operation, Operator, Save, Statement, walk
from neutrino.probing.ir.types import Type
from neutrino.probing.maps import MAX_MAP_NAME, read_map
from neutrino.probing.model import Subject, Tracepoint
from neutrino.probing.nearest import nearest
from neutrino.probing.tracepoints import parse_tracepoint

FILE = "-e"
"""What diagnostics call the text of the option."""
FAULTS = {"one-liner": "a clause of a one-liner that cannot be read, or a map that cannot be made"}
"""Code → what is wrong; others are those of probes in Python."""
UNNAMED = "unnamed"
"""The name that the map ``@`` has in traces."""

_ALIAS = "nl"
_ELAPSED = "elapsed"
_WORDS = frozenset({*HELPERS, *PLACES, *SITE_OPERANDS, _ELAPSED})
_NAMES = frozenset({*TYPES, *FUNCTIONS, "bits", "warp"})
"""Written in small letters alone."""
_KEYS, _MOST_KEYS = 256, 512
"""Keys that a map has room for, at least and at most."""
_EXAMPLE = "write POSITION { STATEMENT }, as in 'ld.global { @bytes = sum(BYTES) }'"
_OPENING = re.compile(r"\s/(?!/)|\{")
_CLOSING = re.compile(r"/\s*\{")
_LANGUAGE = re.compile(rf"\b{_ALIAS}\.(\w+)(?:\(\))?")
_MAP = re.compile(r"@([A-Za-z_]\w*)?", re.ASCII)
_COMPOUND = re.compile(r"\s*(if|for|while)\b")
_BRACKETS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True)
class _Function:
    """A function that makes a map. arguments: in words. table: the keys of the map's table, from the arguments.

    field: the name of its one field, "" without a value. constants: names of the arguments after the value. keep: what
    a map with keys keeps of the values; None for a function that has none. is_integer: takes no fractions.
    """

    arguments: str
    table: Callable[[Mapping[str, int]], dict[str, Any]]
    field: str = "value"
    constants: tuple[str, ...] = ()
    keep: tuple[str, ...] | None = None
    is_integer: bool = True


_FUNCTIONS: Mapping[str, _Function] = {
    "count": _Function("", lambda _: {"type": "sum"}, field="", keep=()),
    "sum": _Function("value", lambda _: {"type": "sum"}, field="sum", keep=("sum",)),
    "min": _Function("value", lambda _: {"type": "min"}, field="min", keep=("min",), is_integer=False),
    "max": _Function("value", lambda _: {"type": "max"}, field="max", keep=("max",), is_integer=False),
    "avg": _Function("value", lambda _: {"type": "avg"}, keep=("sum",)),
    "hist": _Function("value", lambda _: {"type": "histogram", "scale": "log2"}),
    "lhist": _Function(
        "value, low, high, step", lambda given: {"type": "histogram", "scale": "linear", **given},
        constants=("low", "high", "step"),
    ),
    # Kept as a hash, so that the results of launches and of kernels can be added up.
    "topk": _Function("value, n", lambda given: {"type": "hash", "room": _room(given["n"])}, "key", ("n",)),
}  # fmt: skip


def _room(most: int) -> int:
    """Return for how many keys there is room in a map of which so many are printed."""
    return max(_KEYS, min(4 * most, _MOST_KEYS))


@dataclass(frozen=True)
class Use:
    """How a map is used. function: the name. most: how many keys are printed; 0 for all. is_address: shown in hex."""

    function: str
    most: int = 0
    is_address: bool = False


@dataclass(frozen=True)
class _Clause:
    """Where the parts of a clause are in the text: each from its first character to after its last."""

    position: tuple[int, int]
    filter: tuple[int, int] | None
    statements: tuple[tuple[int, int], ...]


class _OneLineFaults(Faults):
    """Faults that quote the text as it was written: without the names that it was given for Python's parser."""

    def __init__(self, source: str) -> None:
        super().__init__(FILE, source)
        self._text = source

    def quote(self, node: ast.AST) -> str:
        """Return a construct's text as it was written."""
        written = ast.get_source_segment(self._text, node)
        return super().quote(node) if written is None else " ".join(written.split())

    def report(self, node: Any, code: str, message: str, hint: str = "") -> None:
        """Add a fault; names of ``neutrino.language`` are those of a one-liner, without ``nl.``."""
        super().report(node, code, *(_LANGUAGE.sub(r"\1", text) for text in (message, hint)))


class _Words(ast.NodeTransformer):
    """Gives words such as ``BYTES`` and ``clock`` their meaning in ``neutrino.language``."""

    def __init__(self, start: str) -> None:
        """start: the register that ``elapsed`` counts from."""
        self._start = start
        self.has_elapsed = False
        self.has_out = False

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        """Give words their meaning; the function that makes a map keeps its name."""
        name, _ = _map_of(node)
        if name is None or not isinstance(node.value, ast.Call):
            self.generic_visit(node)
            return node
        node.targets = [self.visit(target) for target in node.targets]
        node.value.args = [self.visit(argument) for argument in node.value.args]
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return what a name stands for; variables and maps stay."""
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
        """Leave ``nl.bytes`` as it is, and give the words in ``x.y`` their meaning otherwise."""
        if isinstance(node.value, ast.Name) and node.value.id == _ALIAS:
            self.has_out |= node.attr == "out"
            return node
        self.generic_visit(node)
        return node


class _ClauseReader(SnippetReader):
    """Reads the statements of a clause: those of probes, and ``@name = function(value)``.

    tables: map → the table that it was made from, over all clauses; uses: how it is used. Maps that it makes are added
    to the mapping of maps.
    """

    def __init__(
        self, faults: Faults, registers: dict[str, Register], maps: dict[str, Map], tables: dict[str, dict[str, Any]],
        uses: dict[str, Use],
    ) -> None:  # fmt: skip
        super().__init__(faults, Names(_ALIAS, registers, maps), set())
        self._made = maps
        self._tables = tables
        self._uses = uses

    def _statement(self, node: ast.stmt, code: list[Statement]) -> None:
        """Translate one statement. Raises LanguageError if it is not supported."""
        name, key = _map_of(node)
        if name is None:
            super()._statement(node, code)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            self._action(name, key, node, node.value, code)
        else:
            hint = f"write {_shown(name)} = count(), or another of {', '.join(_FUNCTIONS)}"
            raise self._faults.refuse(node, "one-liner", "a map is made by a function", hint)

    def _own_save_of(self, node: ast.stmt) -> None:
        """Return None: a clause has no ``nl.save``, only maps that are made by their use."""

    def _action(self, name: str, key: ast.expr | None, node: ast.stmt, call: ast.Call, code: list[Statement]) -> None:
        """Translate ``@name[key] = function(value)``: a save to the map, which is made at its first use."""
        word = call.func.id if isinstance(call.func, ast.Name) else ""
        function = _FUNCTIONS.get(word)
        if function is None:
            guess = nearest(word, _FUNCTIONS) if word else None
            hint = f"did you mean {guess}?" if guess else f"there are {', '.join(_FUNCTIONS)}"
            raise self._faults.refuse(call, "one-liner", f"'{self._faults.quote(call.func)}' makes no map", hint)
        if call.keywords or len(call.args) != len(function.constants) + bool(function.field):
            message = f"{len(call.args) + len(call.keywords)} arguments of {word}"
            raise self._faults.refuse(call, "one-liner", message, f"write {word}({function.arguments})")
        if key is not None and function.keep is None:
            others = ", ".join(other for other, each in _FUNCTIONS.items() if each.keep is not None)
            raise self._faults.refuse(key, "one-liner", f"{word} has no key", f"with a key there are {others}")
        constants = dict(zip(function.constants, map(self._integer, call.args[1:]), strict=True))
        table = function.table(constants)
        values = [(function.field, call.args[0])] if function.field else []
        if key is not None:
            table = {"type": "hash", "room": _MOST_KEYS, "keep": list(function.keep or ())}
            values = [("key", key), *((("value", call.args[0]),) if function.field else ())]
        saved = [(field, *self._value(function, argument, code)) for field, argument in values]
        # What only counts saves a 1.
        saved = saved or [("count", Type.U64, Constant(Type.U64, 1))]
        # What is printed in hex: keys, and the least and greatest value.
        shown = key if key is not None else call.args[0] if word in {"min", "max", "topk"} else None
        use = Use(word, constants.get("n", 0), shown is not None and _has_address(shown))
        table |= {"level": "thread", "data": {field: kind.value for field, kind, _ in saved}}
        operands = tuple(operand for *_, operand in saved)
        code.append(Save(self._map(name, table, use, node), operands, self._faults.span(node)))

    def _value(self, function: _Function, node: ast.expr, code: list[Statement]) -> tuple[Type, SavedOperand]:
        """Evaluate a value or key that is saved: return the type of its field, 64 bits of its kind, and the operand."""
        result = self._expressions.evaluate(node, code, Type.U64)
        value = type_of_result(result)
        kind = Type.U64
        if value is not None and value.is_float:
            if function.is_integer:
                hint = "write u64(…) or s64(…) to round it to an integer; min and max take fractions"
                raise self._faults.refuse(node, "one-liner", f"'{self._faults.quote(node)}' is {value}", hint)
            kind = Type.F64 if value is Type.F64 else Type.F32
        elif value is not None and value is not Type.PRED and value.is_signed:
            kind = Type.S64
        if isinstance(result, SiteOperand) and value in {None, kind}:
            return kind, result
        return kind, self._expressions.convert(result, kind, node, code)

    def _map(self, name: str, table: dict[str, Any], use: Use, node: ast.stmt) -> Map:
        """Return the map of that name, which is made at its first use. Raises LanguageError if it has another use."""
        first = self._uses.setdefault(name, use)
        if first.function != use.function or self._tables.setdefault(name, table) != table:
            hint = "use another name; one map takes values of one kind"
            message = f"{_shown(name)} is {first.function}() of other values elsewhere"
            if first.function != use.function:
                message = f"{_shown(name)} is {first.function}() elsewhere"
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


def _shown(name: str) -> str:
    """Return a map's name as it is written in a one-liner."""
    return "@" if name == UNNAMED else f"@{name}"


def _has_address(node: ast.expr) -> bool:
    """Return whether a value is computed from an address."""
    return any(isinstance(each, ast.Attribute) and each.attr == "addr" for each in ast.walk(node))


def _map_of(node: ast.stmt) -> tuple[str | None, ast.expr | None]:
    """Return the name of the map that a statement is about, None if it is about none, and its key if it has one."""
    target: ast.expr | None = node.value if isinstance(node, ast.Expr) else None
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        (target,) = node.targets
    key = None
    if isinstance(target, ast.Subscript):
        key = target.slice
        target = target.value
    name = getattr(target, "map_name", None)
    return (name, key) if isinstance(name, str) else (None, None)


def read_one_liner(text: str) -> DraftProbes:
    """Read the probes of one line, without verifying them. Raises ProbeError with all its faults."""
    return _read(text)[0]


def uses_of_maps(text: str) -> Mapping[str, Use]:
    """Return how the maps of a one-liner are used, by name. Raises ProbeError as ``read_one_liner``."""
    return _read(text)[1]


def _read(text: str) -> tuple[DraftProbes, Mapping[str, Use]]:
    """Read a text: its probes, and how its maps are used. Raises ProbeError with all faults."""
    if len(text) > MAX_SIZE:
        message = f"the text has {len(text)} characters, more than {MAX_SIZE}"
        raise ProbeError([Diagnostic(FILE, 1, 1, "", message, "longer probes go in a .py file", code="too-large")])
    faults = _OneLineFaults(text)
    reader = _Reader(faults, text)
    try:
        draft = reader.read()
    except RecursionError:
        message = "expressions are nested too deeply"
        raise ProbeError([Diagnostic(FILE, 1, 1, "", message, code="python-expression")]) from None
    except TooManyFaultsError:
        draft = None
    if draft is None or faults.diagnostics:
        raise ProbeError(sorted(faults.diagnostics, key=lambda item: (item.line, item.column)))
    return draft, reader.uses


class _Reader:
    """Reads the clauses of one text. uses: how its maps are used."""

    def __init__(self, faults: _OneLineFaults, text: str) -> None:
        self._faults = faults
        self._text = text
        # As in Python's nodes: lines from 1, columns in bytes.
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._registers: dict[str, Register] = {}
        self._maps: dict[str, Map] = {}
        self._tables: dict[str, dict[str, Any]] = {}
        self.uses: dict[str, Use] = {}

    def read(self) -> DraftProbes:
        """Return the probes. Faults are reported, and clauses that have them are left out."""
        probes: list[Probe] = []
        try:
            for number, clause in enumerate(self._clauses(), start=1):
                try:
                    probes += self._probes(number, clause)
                except LanguageError:
                    continue
        except LanguageError:
            pass
        maps, registers = tuple(self._maps.values()), tuple(self._registers.values())
        return DraftProbes(FILE, self._text, maps, registers, tuple(probes))

    # The parts of the text

    def _clauses(self) -> Iterator[_Clause]:
        """Find the clauses. Raises LanguageError where one cannot be read to its end, which is reported."""
        at = self._after_space(0)
        if at == len(self._text):
            raise self._refuse(0, "there is no probe", _EXAMPLE)
        while at < len(self._text):
            opening = _OPENING.search(self._text, at)
            if opening is None:
                raise self._refuse(at, f"'{self._text[at:].strip():.40}' has no statements", _EXAMPLE)
            head = at, opening.start()
            if not self._text[slice(*head)].strip():
                raise self._refuse(at, "there is no position", _EXAMPLE)
            brace, chosen = opening.end() - 1, None
            if self._text[brace] == "/":
                closing = _CLOSING.search(self._text, brace + 1)
                if closing is None:
                    raise self._refuse(brace, "the filter has no end", "write /EXPRESSION/ before the {")
                chosen, brace = (brace + 1, closing.start()), closing.end() - 1
            statements, at = self._body(brace)
            at = self._after_space(at)
            yield _Clause(head, chosen, statements)

    def _after_space(self, at: int) -> int:
        """Return where the next clause begins: after spaces and semicolons."""
        while at < len(self._text) and (self._text[at].isspace() or self._text[at] == ";"):
            at += 1
        return at

    def _body(self, brace: int) -> tuple[tuple[tuple[int, int], ...], int]:
        """Return the statements from a brace on, and what is after the one that closes it."""
        statements, expected, start = [], ["}"], brace + 1
        for at in range(brace + 1, len(self._text)):
            character = self._text[at]
            if character in _BRACKETS:
                expected.append(_BRACKETS[character])
            elif character in _BRACKETS.values():
                if character != expected.pop():
                    raise self._refuse(at, f"'{character}' closes nothing")
                if not expected:
                    statements.append((start, at))
                    return tuple(statements), at + 1
            elif character in ";\n" and len(expected) == 1:
                # As in Python, everything up to the end of the line belongs to an if.
                if character == ";" and _COMPOUND.match(self._text, start):
                    continue
                statements.append((start, at))
                start = at + 1
        raise self._refuse(brace, "the { is not closed", "write a } at the end of the clause")

    def _refuse(self, at: int, message: str, hint: str = "") -> LanguageError:
        """Report a fault at an offset of the text, and return the error for the caller to raise."""
        return self._faults.refuse(self._node_at(at), "one-liner", message, hint)

    def _node_at(self, at: int) -> ast.AST:
        """Return a node at an offset of the text, for faults."""
        line, column = self._place(at)
        return ast.Pass(lineno=line, col_offset=column)

    def _place(self, at: int) -> tuple[int, int]:
        """Return the line of an offset, from 1, and its column in bytes."""
        line = sum(start <= at for start in self._line_starts)
        return line, len(self._text[self._line_starts[line - 1] : at].encode(errors="replace"))

    # Python

    def _parse(self, part: tuple[int, int], mode: str) -> ast.AST | None:
        """Return the syntax tree of a part of the text, with places in the whole text; None if it is empty.

        A name of a map gets an attribute ``map_name``. Raises LanguageError if it is not Python.
        """
        start, end = part
        start += len(self._text[start:end]) - len(self._text[start:end].lstrip())
        written = self._text[start:end].rstrip()
        if not written:
            return None
        names: dict[int, str] = {}

        def plain(match: re.Match[str]) -> str:
            names[len(written[: match.start()].encode())] = match[1] or UNNAMED
            return f"_{match[1] or ''}"

        text = _MAP.sub(plain, written)
        try:
            tree = ast.parse(text, mode=mode)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            offset = max((getattr(error, "offset", None) or 1) - 1, 0)
            reason = getattr(error, "msg", None) or str(error) or "nested too deeply"
            hint = "write 'and' and 'or'" if "&&" in written or "||" in written else ""
            if _COMPOUND.match(written):
                hint = "write it in one line, as in if CONDITION: STATEMENT; longer probes go in a .py file"
            raise self._faults.refuse(
                self._node_at(min(start + offset, end)), "not-python", f"not Python: {reason}", hint
            ) from None
        line, column = self._place(start)
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.lineno == 1 and node.col_offset in names:
                node.map_name = names[node.col_offset]  # type: ignore[attr-defined]
            for lines, columns in (("lineno", "col_offset"), ("end_lineno", "end_col_offset")):
                if getattr(node, lines, None) is None:
                    continue
                if getattr(node, lines) == 1:
                    setattr(node, columns, getattr(node, columns) + column)
                setattr(node, lines, getattr(node, lines) + line - 1)
        return tree

    def _probes(self, number: int, clause: _Clause) -> list[Probe]:
        """Return the probe of a clause, and with ``elapsed`` the one before it that reads the clock.

        number: of the clause, from 1. Raises LanguageError for faults, which are reported.
        """
        start, end = clause.position
        position = self._text[start:end].rstrip()
        if "," in position:
            raise self._refuse(start + position.index(","), "',' in a position", "write | between positions")
        # Quotes stand around positions with spaces and braces; positions have none of their own.
        tracepoint, position_faults = parse_tracepoint(re.sub("['\"]", " ", position))
        for fault in position_faults:
            self._faults.report(self._node_at(start + fault.start), fault.code, fault.message, fault.hint)
        words = _Words(f"start_{number}")
        statements = []
        for part in clause.statements:
            tree = self._parse(part, "exec")
            if isinstance(tree, ast.Module):
                statements += [words.visit(statement) for statement in tree.body]
        chosen = self._parse(clause.filter, "eval") if clause.filter else None
        condition = words.visit(chosen.body) if isinstance(chosen, ast.Expression) else None
        if not statements:
            raise self._refuse(start, f"'{position}' has no statements", _EXAMPLE)
        for node in ast.walk(ast.Module(statements, [])):
            name = getattr(node, "map_name", None)
            if isinstance(name, str) and len(name) > MAX_MAP_NAME:
                message = f"a map's name of {len(name)} characters"
                raise self._faults.refuse(node, "one-liner", message, f"it may have {MAX_MAP_NAME}")
        return self._with_code(number, clause, tracepoint, condition, statements, words)

    def _with_code(
        self, number: int, clause: _Clause, tracepoint: Tracepoint | None, condition: ast.expr | None,
        statements: list[ast.stmt], words: _Words,
    ) -> list[Probe]:  # fmt: skip
        """Return the probes of a clause whose parts are parsed, as ``_probes`` does."""
        span = self._faults.span(self._node_at(clause.position[0]))
        has_start = tracepoint is not None and _has_start(tracepoint)
        if words.has_elapsed:
            register = Register(f"%start_{number}", Type.U64, 0, span)
            self._registers[register.name] = register
            if tracepoint is not None and not has_start:
                hint = (
                    "write kernel { … } or range:NAME { … }; how long an instruction takes is another question: see "
                    "the docs on latency"
                )
                raise self._refuse(clause.position[0], "elapsed is of kernels, or of one range", hint)
        reader = _ClauseReader(self._faults, self._registers, self._maps, self._tables, self.uses)
        body = list(statements)
        if condition is not None:
            body = [ast.copy_location(ast.If(condition, body, []), condition)]
        function = ast.FunctionDef(f"e{number}", _NO_ARGUMENTS, body, [], None)
        snippet = reader.read(function)
        if tracepoint is None or (not snippet.statements and self._faults.diagnostics):
            raise LanguageError(str(number))
        if not any(isinstance(statement, Save) for statement in walk(snippet.statements)):
            raise self._refuse(clause.position[0], "nothing is saved", "write @ = count(), or another map")
        is_after = words.has_elapsed or words.has_out
        before, after = (None, snippet) if is_after else (snippet, None)
        probes = [Probe(f"e{number}", tracepoint, Level.THREAD, before, after, span)]
        if words.has_elapsed:
            read_clock = Snippet((Operation(Operator.MOVE, register, (Special.CLOCK,), span),))
            probes.insert(0, Probe(f"e{number}_start", tracepoint, Level.THREAD, read_clock, None, span))
        return probes


def _has_start(tracepoint: Tracepoint) -> bool:
    """Return whether a tracepoint has a beginning that ``elapsed`` counts from: one for each of its ends."""
    # Two ranges may lie in each other.
    is_range = len(tracepoint.patterns) == 1 and tracepoint.patterns[0].subject is Subject.RANGE
    return is_range or all(pattern.subject is Subject.KERNEL for pattern in tracepoint.patterns)


_NO_ARGUMENTS = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
