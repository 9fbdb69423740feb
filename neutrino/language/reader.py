"""Probe files in Python, read into typed IR.

    from neutrino import probe, Map
    import neutrino.language as nl

    @Map(level="warp", type="array", size=16, cap=1)
    class BlockSched:
        start: nl.u64
        elapsed: nl.u32
        cuid: nl.u32

    start: nl.u64 = 0            # a register that all probes share

    @probe(pos="kernel", level="warp", before=True)
    def thread_start():
        start = nl.clock()

The file is parsed, never run. All faults are reported at once, each at its line and column.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Collection, Mapping
from dataclasses import replace
from keyword import iskeyword
from pathlib import Path
from typing import Any

from neutrino.abi.levels import Level
from neutrino.errors import Diagnostic, ProbeError, Span
from neutrino.ir.operands import Register
from neutrino.language.expressions import ExpressionReader
from neutrino.language.faults import Faults, LanguageError, TooManyFaultsError
from neutrino.language.functions import Function
from neutrino.language.literals import Number
from neutrino.language.live import LiveText, declarations
from neutrino.language.probe_bodies import Names, SnippetReader, statement_words
from neutrino.language.saves import Record, saving_to
from neutrino.maps.declaration import Map
from neutrino.maps.registry import TYPE_KEYS
from neutrino.probing.document import MAX_SIZE, Document, KeyPath, printable, shown
from neutrino.probing.ir.draft import DraftProbes
from neutrino.probing.ir.probe_set import Probe, Snippet
from neutrino.probing.ir.structured import Save, walk
from neutrino.probing.maps import MAP_KEYS, read_map
from neutrino.probing.model import Lanes, Tracepoint
from neutrino.probing.syntax import MAX_REGISTER_NAME
from neutrino.probing.target import Language
from neutrino.probing.toml import find_script, probe_file_text
from neutrino.probing.tracepoints import parse_tracepoint

PROBE_KEYS = ("pos", "position", "level", "before", "after", "lanes", "size", "cap")
"""The arguments of ``@probe``."""
_NOTHING: Mapping[str, Number] = {}


def read_python_file(path: str | Path, language: Language, defines: Mapping[str, Number] = _NOTHING) -> DraftProbes:
    """Read the probes of a Python file, without verifying them. defines: other values of its constants, by name.

    language: of the target that they are for.

    Raises ProbeError with all faults of the file, NeutrinoError if it cannot be read.
    """
    return read_python_text(str(path), probe_file_text(path, "a probe file"), language, defines)


def read_live_text(part: LiveText, language: Language, defines: Mapping[str, Number] = _NOTHING) -> DraftProbes:
    """Read probes from the text of a running program, without verifying them. Otherwise as ``read_python_text``."""
    return read_python_text(part.file, part.text, language, defines, part)


def read_python_text(
    file: str, text: str, language: Language, defines: Mapping[str, Number] = _NOTHING, program: LiveText | None = None
) -> DraftProbes:
    """Read the probes of a Python file's text, without verifying them. file: its path, for diagnostics.

    language: of the target that they are for. defines: other values of its constants, by name; names that the file does
    not have are no fault. program: which probes to read, if the text is a program's. Raises ProbeError with all faults
    of the text.
    """
    # Line ends as Python's parser counts them, and no byte order mark.
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    # A limit of probe files in any form, checked before Python's parser needs time and memory for the text.
    if len(text) > MAX_SIZE:
        message = f"the file has {len(text)} characters, more than {MAX_SIZE}"
        raise ProbeError([Diagnostic(file, 1, 1, "", message, "is it a probe file?", code="too-large")])
    faults = Faults(file, text, language.words)
    module = _parse(file, text)
    try:
        if program is not None:
            module = declarations(module, program)
        draft = _Reader(faults, file, text, language, defines, program).read(module)
    except RecursionError:
        message = "expressions or statements are nested too deeply"
        raise ProbeError([Diagnostic(file, 1, 1, "", message, code="python-expression")]) from None
    except TooManyFaultsError:
        raise ProbeError(_in_file_order(faults.diagnostics)) from None
    if faults.diagnostics:
        raise ProbeError(_in_file_order([*faults.diagnostics, *draft.warnings]), (replace(draft, warnings=()),))
    return draft


def _parse(file: str, text: str) -> ast.Module:
    """Return the syntax tree of a text. Raises ProbeError if Python's parser refuses it. file: its path."""
    try:
        with warnings.catch_warnings():
            # The parser warns of invalid escapes in strings; probe files are not run, so they do no harm.
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        # Not every error has a place, and the place may be after the last line.
        lines = text.split("\n")
        line = min(getattr(error, "lineno", None) or 1, len(lines))
        column = max(getattr(error, "offset", None) or 1, 1)
        # RecursionError and MemoryError may come without a message.
        reason = getattr(error, "msg", None) or str(error) or "nested too deeply"
        if "\0" in text:
            # Python reports NUL bytes without a place.
            line = text[: text.index("\0")].count("\n") + 1
            column, reason = lines[line - 1].index("\0") + 1, "a NUL byte"
        message = printable(f"not Python: {reason}")
        hint = "write 'and' and 'or'" if "&&" in lines[line - 1] or "||" in lines[line - 1] else ""
        raise ProbeError([Diagnostic(file, line, column, lines[line - 1], message, hint, code="not-python")]) from None


def _in_file_order(diagnostics: list[Diagnostic]) -> list[Diagnostic]:
    """Return diagnostics by their place in the file."""
    return sorted(diagnostics, key=lambda item: (item.line, item.column))


def _of_a_program(module: ast.Module) -> ast.stmt | None:
    """Return the first statement that no probe file has, of a file without decorators: of a program; None of others."""
    if any(getattr(node, "decorator_list", None) for node in ast.walk(module)):
        return None
    if all(isinstance(node, (ast.Import, ast.ImportFrom)) for node in module.body):
        return None
    for node in module.body:
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or "."]
        is_foreign = any(name.partition(".")[0] not in {"neutrino", "__future__"} for name in names)
        if is_foreign or isinstance(node, (ast.With, ast.For, ast.While, ast.If, ast.Try)):
            return node
    return None


class _Reader:
    """Reads one module: its maps, shared registers and probes.

    _alias: the name that ``neutrino.language`` has in it, ``nl`` before its import. _registers: those that all probes
    share, and later the probes' local ones, by name with ``%``. _maps, _constants, _functions: by name. _declared: all
    names that the file has declared so far. _called: names of the functions that probes call.
    """

    def __init__(
        self, faults: Faults, file: str, source: str, language: Language, defines: Mapping[str, Number],
        program: LiveText | None,
    ) -> None:  # fmt: skip
        """Prepare to read the probes of one Python file. file: its path, for diagnostics. source: its text. language:
        of the target that the probes are for. defines: values for the file's constants, by name. program: which probes
        to read, if the text is a program's; then functions that no probe calls are no fault."""
        self._is_program = program is not None
        # The program's functions that were given as probes.
        self._given = frozenset(program.names if program is not None else ())
        self._faults = faults
        self._language = language
        self._defines = defines
        self._file = file
        self._source = source
        self._alias = "nl" if program is None else program.alias
        # The name that neutrino itself has, of which probe and Map are attributes.
        self._package = "neutrino" if program is None else program.package
        self._registers: dict[str, Register] = {}
        self._maps: dict[str, Map] = {}
        self._constants: dict[str, Number] = {}
        self._functions: dict[str, Function] = {}
        self._called: set[str] = set()
        # Names of declarations that have faults.
        self._failed: set[str] = set()
        self._declared: set[str] = set()
        self._callbacks: list[str] = []
        self._warnings: list[Diagnostic] = []

    def read(self, module: ast.Module) -> DraftProbes:
        """Return the probes, maps and registers of a module. Faults are reported, and what has them is left out."""
        if not self._is_program and (other := _of_a_program(module)) is not None:
            hint = f"is it the program? neutrino -p PROBE python {self._file}; a probe is a function with @probe"
            self._faults.report(other, "python-statement", "no probe in the file", hint)
            module = ast.Module([], [])
        # Functions come last, since a probe may use maps and registers that the file declares after it.
        functions: list[ast.FunctionDef] = []
        for node in module.body:
            try:
                self._declaration(node, functions)
            except LanguageError:
                # Reported when it was raised, here and below.
                self._failed |= _names_of(node)
                continue
        # The file's own functions first: probes call those that stand after them, too.
        probe_functions = []
        for function in functions:
            try:
                if function.decorator_list:
                    probe_functions.append(function)
                else:
                    self._declare(function.name, function)
                    self._functions[function.name] = Function(function)
            except LanguageError:
                continue
        probes: list[Probe] = []
        unread: set[str] = set()
        for function in probe_functions:
            fault_count = len(self._faults.diagnostics)
            try:
                probes.append(self._probe(function))
            except LanguageError:
                continue
            if len(self._faults.diagnostics) > fault_count:
                unread.add(function.name)
        for name, own in self._functions.items():
            # After a fault, a call of it may be in what was not read.
            if name in self._given:
                hint = 'write @probe(pos="kernel", level="warp") above it'
                self._faults.report(own.node, "python-decorator", f"function {name} is no probe", hint)
            if name not in self._called and not self._is_program and not self._faults.diagnostics:
                hint = 'write @probe(pos="kernel", level="warp") above it, or remove it'
                message = f"function {name} is no probe, and no probe calls it"
                self._faults.report(own.node, "python-decorator", message, hint)
        # Anything else that is wrong may be the reason why there is none.
        if not functions and not self._faults.diagnostics:
            self._faults.report(module, "python-statement", "no probe in the file", "decorate a function with @probe")
        maps, registers = tuple(self._maps.values()), tuple(self._registers.values())
        return DraftProbes(
            self._file, self._source, maps, registers, tuple(probes), tuple(self._warnings), tuple(self._callbacks),
            tuple(self._constants), not self._faults.diagnostics, frozenset(unread),
            self._language.platform, self._language.words.lane_mask,
        )  # fmt: skip

    def _declaration(self, node: ast.stmt, functions: list[ast.FunctionDef]) -> None:
        """Read one statement at the top level of the file; functions are appended to the list, to be read later.

        Raises LanguageError for what a probe file cannot have there.
        """
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self._import(node)
        elif isinstance(node, ast.ClassDef):
            self._map(node)
        elif isinstance(node, ast.FunctionDef):
            functions.append(node)
        elif isinstance(node, ast.AnnAssign):
            self._register(node)
        elif isinstance(node, ast.Assign):
            self._assignment(node)
        # A constant alone is a docstring, or does nothing.
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            hint = "a probe file, which is not run, holds imports, constants, maps, registers, functions and probes"
            raise self._faults.refuse(node, "python-statement", f"{statement_words(node)} at the top of the file", hint)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Check an import, and remember the name that ``neutrino.language`` gets.

        Raises LanguageError for any other import than those of neutrino, probe, Map, neutrino.language and from
        __future__.
        """
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name == "neutrino":
                    self._package = name.asname or name.name
                elif name.name != "neutrino.language" or name.asname is None:
                    hint = "a probe file is not run: it imports neutrino.language as nl, and probe and Map of neutrino"
                    raise self._faults.refuse(node, "python-statement", f"'import {name.name}'", hint)
                else:
                    self._alias = name.asname
        elif node.module != "__future__":
            # level counts the dots of a relative import, which a probe file cannot have.
            for name in node.names:
                if node.module == "neutrino" and node.level == 0 and name.name == "language":
                    self._alias = name.asname or "language"
                elif node.module != "neutrino" or node.level or name.name not in {"probe", "Map"} or name.asname:
                    hint = "a probe file is not run: it imports probe and Map from neutrino, and neutrino.language"
                    raise self._faults.refuse(node, "python-statement", f"'{self._faults.quote(node)}'", hint)

    def _declare(self, name: str, node: ast.AST) -> None:
        """Note that the file declares a name. Raises LanguageError if it has another meaning already.

        Maps, probes and registers have one namespace, as in Python.
        """
        if name in self._declared or name in {self._alias, "probe", "Map"}:
            hint = "a name is declared once; choose another"
            raise self._faults.refuse(node, "python-name", f"{name} stands for something else already", hint)
        self._declared.add(name)

    def _register(self, node: ast.AnnAssign) -> None:
        """Read ``NAME: nl.TYPE = NUMBER``, a register that all probes share; it starts with 0 if there is no number.

        Raises LanguageError for an invalid name, type or number.
        """
        if not isinstance(node.target, ast.Name):
            raise self._faults.refuse(node, "python-statement", "a register is a name")
        # For types and constants alone, so without variables.
        expressions = ExpressionReader(self._faults, self._alias, {})
        register_type = expressions.type_of(node.annotation)
        initial = 0
        if node.value is not None:
            number = self._literal(node.value)
            if not isinstance(number, (int, float)) or isinstance(number, bool):
                raise self._faults.refuse(node.value, "python-type", "a register begins with a number")
            initial = expressions.constant(register_type, number, node.value).bits
        self._declare(node.target.id, node)
        name = f"%{node.target.id}"
        is_reserved = self._faults.words.is_reserved(name)
        if not name.isascii() or len(name) > MAX_REGISTER_NAME or is_reserved:
            message = f"a register that all probes share cannot be called {node.target.id}"
            # The length of a register's name includes the %.
            hint = f"up to {MAX_REGISTER_NAME - 1} letters of ASCII, digits and underscores; no special register's name"
            raise self._faults.refuse(node, "python-name", message, hint)
        self._registers[name] = Register(name, register_type, initial, self._faults.span(node.target))

    def _assignment(self, node: ast.Assign) -> None:
        """Read ``CALLBACK = "script.py"`` (in small letters, too), or ``NAME = NUMBER``, a constant, which ``defines``
        may give another value.

        Raises LanguageError for another target or value.
        """
        (target, *others) = node.targets
        if not isinstance(target, ast.Name) or others:
            raise self._faults.refuse(node, "python-statement", "a constant is one name", "write NAME = 4")
        if target.id in {"CALLBACK", "callback"}:
            self._callback(node)
            return
        # With the constants before it, and for constants alone, so without variables.
        expressions = ExpressionReader(self._faults, self._alias, {}, self._constants)
        value = expressions.known(node.value)
        if value is None:
            # What has no value at all has a fault of its own.
            expressions.checked(node.value)
            hint = f"write {target.id}: {self._alias}.u64 = 0 for a register that all probes share"
            raise self._faults.refuse(node.value, "python-expression", "a constant is a number", hint)
        self._declare(target.id, target)
        self._constants[target.id] = self._defined(target, value)

    def _defined(self, name: ast.Name, value: Number) -> Number:
        """Return the value of a constant of the file, which ``defines`` (of the command line) may replace. value: its
        own.

        Raises LanguageError for one of another type: a number stays one, and ``True`` and ``False`` are 1 and 0 too.
        """
        given = self._defines.get(name.id, value)
        if isinstance(value, bool):
            if given in {0, 1}:
                return bool(given)
            kind = "true or false"
        elif isinstance(given, bool) or (isinstance(value, int) and not isinstance(given, int)):
            kind = "a whole number" if isinstance(value, int) else "a number"
        else:
            # A float that is written as an integer.
            return given if isinstance(value, int) else float(given)
        shown_value = str(given).lower() if isinstance(given, bool) else given
        message = f"-D {name.id}={shown_value}, but {name.id} is {kind}"
        raise self._faults.refuse(name, "python-define", message, f"in the file it is {value}")

    def _callback(self, node: ast.Assign) -> None:
        """Read ``CALLBACK``: a script, or a tuple or list of them. One that does not exist is a warning."""
        values = node.value.elts if isinstance(node.value, (ast.Tuple, ast.List)) else [node.value]
        for value in values:
            script = self._literal(value)
            # No file system has a path with a NUL.
            if not isinstance(script, str) or not script or "\0" in script:
                message = f"CALLBACK is {shown(script)}"
                raise self._faults.refuse(value, "script", message, 'write CALLBACK = "script.py"')
            path, problem = find_script(self._file, script)
            if problem:
                message = f"script {shown(script)} {problem}, and is not run"
                self._warn(value, "script-missing", message, "paths are relative to the probe file")
            elif path not in self._callbacks:
                self._callbacks.append(path)

    def _warn(self, node: ast.AST | Span, code: str, message: str, hint: str) -> None:
        """Add a warning about the construct (node or place) of a probe file."""
        span = node if isinstance(node, Span) else self._faults.span(node)
        line = self._source.split("\n")[span.line - 1]
        self._warnings.append(Diagnostic(self._file, span.line, span.column, line, message, hint, "warning", code))

    def _map(self, node: ast.ClassDef) -> None:
        """Read a class with ``@Map(...)`` as a map: its annotated members are the fields of a record.

        Faults of the map's layout are reported at the class. Raises LanguageError for a class that is no map.
        """
        if len(node.decorator_list) != 1 or not self._is_named(node.decorator_list[0], "Map") or node.bases:
            hint = 'write @Map(level="warp", size=16) above it'
            if any(isinstance(member, ast.FunctionDef) for member in node.body):
                hint = "classes are maps alone; probes are functions at the top of the file"
            raise self._faults.refuse(node, "python-decorator", f"class {node.name} is no map", hint)
        (decorator,) = node.decorator_list
        self._declare(node.name, node)
        # In TOML the key "data" has the fields, which the members of the class have here.
        known = (*(key for key in MAP_KEYS if key != "data"), *TYPE_KEYS)
        arguments = self._arguments(decorator, known)
        # For types alone, so without variables.
        expressions = ExpressionReader(self._faults, self._alias, {})
        fields: dict[str, tuple[str, ast.expr]] = {}
        for member in node.body:
            if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name) and member.value is None:
                # A field that is called as a keyword of Python is written as such names are: async_.
                bare = member.target.id.removesuffix("_")
                name = bare if iskeyword(bare) else member.target.id
                if name in fields:
                    raise self._faults.refuse(member, "python-map", f"a second field {name}")
                fields[name] = expressions.type_of(member.annotation).value, member.annotation
            # A constant alone is a docstring, or does nothing.
            elif not (isinstance(member, ast.Expr) and isinstance(member.value, ast.Constant)):
                raise self._faults.refuse(member, "python-map", "a map has fields, as in 'start: nl.u64'")

        table = {key: value for key, (value, _) in arguments.items()}
        data = {name: kind for name, (kind, _) in fields.items()}
        places: dict[KeyPath, ast.expr] = {}
        places |= {("map", node.name, key): place for key, (_, place) in arguments.items()}
        places |= {("map", node.name, "data", name): place for name, (_, place) in fields.items()}
        if self._add_map(node.name, {**table, "data": data}, places, node) is None:
            self._failed.add(node.name)

    def _add_map(
        self, name: str, table: Mapping[str, Any], places: Mapping[KeyPath, ast.expr], node: ast.AST
    ) -> Map | None:
        """Add a map, which the code that checks maps in TOML files reads from a table; return it, None for faults.

        places: key path → the expression where faults of that key are reported; others are reported at ``node``.
        """
        document = _Layout(self._file, places)
        declared = read_map(document, name, table)
        for fault, place in zip(document.diagnostics, document.found, strict=True):
            if fault.severity == "error":
                self._faults.report(place or node, "python-map", fault.message, fault.hint)
            else:
                self._warn(place or node, fault.code, fault.message, fault.hint)
        if declared is None:
            return None
        self._maps[name] = replace(declared, span=self._faults.span(node))
        return self._maps[name]

    def _probe(self, node: ast.FunctionDef) -> Probe:
        """Read a function with ``@probe(...)`` as a probe. Raises LanguageError if it cannot be used."""
        decorator = next((item for item in node.decorator_list if self._is_named(item, "probe")), None)
        if decorator is None or len(node.decorator_list) != 1:
            hint = 'write @probe(pos="kernel", level="warp") above it'
            message = f"function {node.name} is no probe"
            if decorator is not None:
                message = f"probe {node.name} has {len(node.decorator_list)} decorators"
                hint = f'one @probe is above it; "|" joins positions, as in pos="{self._faults.words.load} | memory"'
            raise self._faults.refuse(node, "python-decorator", message, hint)
        arguments = node.args
        if arguments.args or arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs:
            hint = f"its values are those of the instruction, such as {self._alias}.addr, and registers of the file"
            raise self._faults.refuse(node, "python-statement", f"probe {node.name} takes no arguments", hint)
        self._declare(node.name, node)

        # Its statements are read for their faults even where it is not known where they go.
        # A body whose statements all have faults is not reported as empty too.
        fault_count = len(self._faults.diagnostics)
        try:
            table = self._arguments(decorator, PROBE_KEYS)
            tracepoint = self._tracepoint(node, decorator, table)
            level = self._level(node, decorator, table)
            is_after = self._is_after(decorator, table)
            lanes = self._lanes(node, decorator, table)
        except LanguageError:
            table, tracepoint, level, is_after, lanes = {}, None, None, False, Lanes.EXECUTING

        # Its code.
        known = {*self._maps, *self._constants, *self._functions, *(name[1:] for name in self._registers)}
        names = Names(
            self._alias, self._registers, self._maps, self._constants, self._functions, frozenset(self._failed - known)
        )
        reader = SnippetReader(self._faults, names, self._called)
        snippet = reader.read(node)
        if tracepoint is None:
            # Its faults are reported above.
            raise LanguageError(node.name)
        if level is not None:
            snippet = self._with_own_map(node, decorator, table, reader.record, snippet)
        else:
            # That of a map that it saves to, with which nothing else is wrong.
            snippet = Snippet(saving_to(None, snippet.statements))
            saves = (statement for statement in walk(snippet.statements) if isinstance(statement, Save))
            level = next((save.map.level for save in saves), Level.THREAD)
        # What it saves to may be a map with faults.
        if not snippet.statements and len(self._faults.diagnostics) == fault_count and not self._failed:
            hint = "save a value to a map: NAME.save(…)"
            self._faults.report(node, "python-statement", f"probe {node.name} does nothing", hint)
        before, after = (None, snippet) if is_after else (snippet, None)
        return Probe(node.name, tracepoint, level, before, after, self._faults.span(decorator), lanes=lanes)

    def _tracepoint(
        self, node: ast.FunctionDef, decorator: ast.expr, table: Mapping[str, tuple[Any, ast.expr]]
    ) -> Tracepoint | None:
        """Return where a probe goes, by its decorator's arguments; None, with faults, for what cannot be read.

        table: an argument is a value and its place; a missing one has the decorator's place. Raises LanguageError if
        there is no position.
        """
        position, place = table.get("pos") or table.get("position") or (None, decorator)
        if not isinstance(position, str):
            hint = f'write pos="kernel" or an opcode such as pos="{self._faults.words.load}"'
            if isinstance(position, (list, tuple)) and position:
                hint = f'join positions by "|": pos="{" | ".join(map(str, position))}"'
            self._faults.report(place, "python-decorator", f"probe {node.name} has no position", hint)
            return None
        tracepoint, tracepoint_faults = parse_tracepoint(position, self._faults.words)
        for fault in tracepoint_faults:
            self._faults.report(self._faults.within(place, fault.start), fault.code, fault.message, fault.hint)
        return tracepoint

    def _level(
        self, node: ast.FunctionDef, decorator: ast.expr, table: Mapping[str, tuple[Any, ast.expr]]
    ) -> Level | None:
        """Return a probe's level; None, with a fault, for another one and where it has none."""
        level, place = table.get("level", (None, decorator))
        if level in [item.value for item in Level]:
            return Level(level)
        what = f"the level of probe {node.name} is {shown(level)}"
        if "level" not in table:
            what = f"probe {node.name} has no level"
        self._faults.report(place, "python-decorator", what, 'write level="thread", "warp" or "block"')
        return None

    def _lanes(
        self, node: ast.FunctionDef, decorator: ast.expr, table: Mapping[str, tuple[Any, ast.expr]]
    ) -> Lanes:
        """Return for which lanes a probe runs; with a fault those that execute the instruction."""
        lanes, place = table.get("lanes", (Lanes.EXECUTING.value, decorator))
        if lanes in [item.value for item in Lanes]:
            return Lanes(lanes)
        hint = 'write lanes="executing" or lanes="reaching"'
        message = f"the lanes of probe {node.name} are {shown(lanes)}"
        self._faults.report(place, "python-decorator", message, hint)
        return Lanes.EXECUTING

    def _with_own_map(
        self, node: ast.FunctionDef, decorator: ast.expr, table: Mapping[str, tuple[Any, ast.expr]], record: Record,
        snippet: Snippet,
    ) -> Snippet:  # fmt: skip
        """Return a probe's statements with what it saves by ``nl.save`` going to a map of its own, which has the
        probe's name.

        table: the decorator's arguments; ``size`` and ``cap`` are the map's. record: what the probe saves.
        """
        options = {key: table[key] for key in ("size", "cap") if key in table}
        if record.first is None:
            for key, (_, place) in options.items():
                message = f"'{key}' is of what {self._alias}.save saves, and probe {node.name} does not"
                self._faults.report(place, "python-decorator", message, f"remove {key}")
            return snippet
        if not record.fields:
            # What it saves has faults, which are reported.
            return Snippet(saving_to(None, snippet.statements))
        map_table = {
            "type": "array", "level": table["level"][0], **{key: value for key, (value, _) in options.items()},
            "data": {name: kind.value for name, kind in record.fields.items()},
        }  # fmt: skip
        places: dict[KeyPath, ast.expr] = {("map", node.name, key): place for key, (_, place) in options.items()}
        own_map = self._add_map(node.name, map_table, places, record.first)
        return Snippet(saving_to(own_map, snippet.statements))

    def _is_after(self, decorator: ast.expr, table: Mapping[str, tuple[Any, ast.expr]]) -> bool:
        """Return whether a probe runs after its position, by the arguments ``before`` and ``after`` of its decorator.

        Without them ``@nl.probe`` runs before, ``@probe`` after. table: argument → its value and expression. Raises
        LanguageError for values that are no bool or contradict each other.
        """
        sides = {key: table[key] for key in ("before", "after") if key in table}
        for key, (value, place) in sides.items():
            if not isinstance(value, bool):
                message = f"'{key}' is {shown(value)}"
                raise self._faults.refuse(place, "python-decorator", message, f"write {key}=True")
        # after=True and before=False both mean after.
        answers = {value == (key == "after") for key, (value, _) in sides.items()}
        if len(answers) > 1:
            hint = "write two, with before=True and with after=True"
            raise self._faults.refuse(decorator, "python-decorator", "a probe runs before or after", hint)
        return answers.pop() if answers else not self._is_of(decorator, {self._alias})

    # Decorators

    def _is_named(self, node: ast.expr, name: str) -> bool:
        """Return whether a decorator is ``@NAME``, ``@neutrino.NAME`` or ``@nl.NAME``, with or without arguments."""
        function = node.func if isinstance(node, ast.Call) else node
        if isinstance(function, ast.Attribute):
            return function.attr == name and self._is_of(node, {self._alias, self._package})
        return isinstance(function, ast.Name) and function.id == name

    def _is_of(self, node: ast.expr, modules: Collection[str]) -> bool:
        """Return whether a decorator is an attribute of one of some modules, as ``@nl.probe`` of ``nl``."""
        function = node.func if isinstance(node, ast.Call) else node
        return (
            isinstance(function, ast.Attribute)
            and isinstance(function.value, ast.Name)
            and function.value.id in modules
        )

    def _arguments(self, node: ast.expr, known: tuple[str, ...]) -> dict[str, tuple[Any, ast.expr]]:
        """Return a decorator's arguments by name: the value of each, and its expression for the place of faults.

        known: names that are allowed. Raises LanguageError for others, for arguments without a name, and for values
        that are not literals.
        """
        arguments: dict[str, tuple[Any, ast.expr]] = {}
        for keyword in node.keywords if isinstance(node, ast.Call) else ():
            if keyword.arg is None or keyword.arg not in known:
                hint = "known here: " + ", ".join(known)
                what = f"argument '{keyword.arg}'" if keyword.arg else "'**' among arguments"
                raise self._faults.refuse(keyword, "python-decorator", what, hint)
            arguments[keyword.arg] = self._literal(keyword.value), keyword.value
        if isinstance(node, ast.Call) and node.args:
            name = "pos" if known is PROBE_KEYS else "type"
            hint = f"write {name}={self._faults.quote(node.args[0])}"
            raise self._faults.refuse(node, "python-decorator", "arguments are given by name", hint)
        return arguments

    def _literal(self, node: ast.expr) -> Any:
        """Return the value of a literal expression, or of one of constants. Raises LanguageError for any other."""
        expressions = ExpressionReader(self._faults, self._alias, {}, self._constants)
        known = expressions.known(node)
        if known is not None:
            return known
        # A choice of texts.
        if isinstance(node, ast.IfExp) and (chosen := expressions.known(node.test)) is not None:
            return self._literal(node.body if chosen else node.orelse)
        if any(isinstance(part, ast.Name) and part.id in self._constants for part in ast.walk(node)):
            expressions.checked(node)
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            message = f"'{self._faults.quote(node)}' is no constant"
            hint = "write a number, or a text in quotes"
            raise self._faults.refuse(node, "python-expression", message, hint) from None


def _names_of(node: ast.stmt) -> set[str]:
    """Return the names that a statement at the top level declares."""
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


class _Layout(Document):
    """Stands for the TOML document of a map: ``read_map`` reports its faults to it.

    found: for each diagnostic the expression that it is about, None if it is about the map as a whole.
    """

    def __init__(self, file: str, places: Mapping[KeyPath, ast.expr]) -> None:
        """Set up a stand-in for a map's TOML document, so that faults in it become faults of Python expressions.

        file: path of the probe file. places: where values are in Python, by key.
        """
        super().__init__(file, "")
        self.found: list[ast.expr | None] = []
        self._paths = list(places)
        self._nodes = list(places.values())

    def key(self, *path: str) -> int:
        """Return a number that stands for the place in Python of a key of the map: from 1 on, 0 for the map as a whole.
        """
        return self._paths.index(path) + 1 if path in self._paths else 0

    def value(self, *path: str) -> int:
        """Return the number that stands for the place in Python of the value of a key of the map: that of the key
        itself."""
        return self.key(*path)

    def report(self, offset: int, code: str, message: str, hint: str = "", severity: str = "error") -> None:
        """Add a diagnostic, about the expression with a number: "offset", which a TOML document would have, is that
        number.
        """
        self.found.append(self._nodes[offset - 1] if offset else None)
        self.report_span(Span(1, 1), code, message, hint, severity)

    def missing(self, path: KeyPath, key: str, example: str) -> None:
        """Report an argument that is missing. example: of how TOML writes it."""
        self.report(0, "missing-key", f"map {path[-1]} has no {key}", f"write {example.replace(' = ', '=')}")

    def span(self, offset: int) -> Span:
        """Return the file's first place for any offset, since offsets are numbers here: ``found`` has the places."""
        return Span(1, 1)
