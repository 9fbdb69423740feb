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
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from neutrino.abi.levels import Level
from neutrino.errors import Diagnostic, NeutrinoError, ProbeError
from neutrino.language.faults import Faults, LanguageError
from neutrino.language.snippets import SnippetReader
from neutrino.maps.declaration import Map
from neutrino.maps.registry import TYPE_KEYS
from neutrino.probing.document import MAX_SIZE, Document
from neutrino.probing.ir.draft import DraftProbes
from neutrino.probing.ir.operands import Register
from neutrino.probing.ir.probe_set import Probe
from neutrino.probing.maps import MAP_KEYS, read_map
from neutrino.probing.reading import read_text_file
from neutrino.probing.tracepoints import parse_tracepoint

_PROBE_KEYS = ("pos", "position", "level", "before", "after", "size")


def read_python_file(path: str | Path) -> DraftProbes:
    """The probes of one file, not verified. Raises ProbeError with all its faults, NeutrinoError if unreadable."""
    try:
        data = read_text_file(path, 4 * MAX_SIZE + 4)
        text = data.decode("utf-8")
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise NeutrinoError(f"{path}: cannot read the probe file: {reason}") from error
    return read_python_text(str(path), text)


def read_python_text(file: str, text: str) -> DraftProbes:
    """The probes of a text. file: its path. Raises ProbeError."""
    faults = Faults(file, text)
    if len(text) > MAX_SIZE:
        message = f"the file has more than {MAX_SIZE} characters"
        raise ProbeError([Diagnostic(file, 1, 1, "", message, code="too-large")])
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        column = getattr(error, "offset", None) or 1
        source = text.split("\n")[line - 1] if line <= text.count("\n") + 1 else ""
        message = f"not Python: {getattr(error, 'msg', None) or error or 'nested too deeply'}"
        raise ProbeError([Diagnostic(file, line, max(column, 1), source, message, code="not-python")]) from None
    reader = _Reader(faults, file, text)
    try:
        draft = reader.read(module)
    except RecursionError:
        message = "expressions are nested too deeply"
        raise ProbeError([Diagnostic(file, 1, 1, "", message, code="python-expression")]) from None
    if faults.found:
        raise ProbeError(sorted(faults.found, key=lambda item: (item.line, item.column)))
    return draft


class _Reader:
    """One module on its way to a draft."""

    def __init__(self, faults: Faults, file: str, source: str) -> None:
        self._faults = faults
        self._file = file
        self._source = source
        self._alias = "nl"
        self._registers: dict[str, Register] = {}
        self._maps: dict[str, Map] = {}

    def read(self, module: ast.Module) -> DraftProbes:
        functions: list[ast.FunctionDef] = []
        for node in module.body:
            try:
                self._top(node, functions)
            except LanguageError:
                continue
        probes = []
        for function in functions:
            try:
                probes.append(self._probe(function))
            except LanguageError:
                continue
        if not functions and not self._faults.found:
            self._faults.report(module, "python-statement", "no probe in the file", "decorate a function with @probe")
        maps, registers = tuple(self._maps.values()), tuple(self._registers.values())
        return DraftProbes(self._file, self._source, maps, registers, tuple(probes))

    def _top(self, node: ast.stmt, functions: list[ast.FunctionDef]) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self._imports(node)
        elif isinstance(node, ast.ClassDef):
            self._map(node)
        elif isinstance(node, ast.FunctionDef):
            functions.append(node)
        elif isinstance(node, ast.AnnAssign):
            self._register(node)
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            hint = "a probe file holds imports, maps, registers and probes"
            word = type(node).__name__.lower()
            raise self._faults.refuse(node, "python-statement", f"'{word}' at the top of the file", hint)

    def _imports(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name != "neutrino.language" or name.asname is None:
                    hint = "write import neutrino.language as nl"
                    raise self._faults.refuse(node, "python-statement", f"'import {name.name}'", hint)
                self._alias = name.asname
        elif node.module == "neutrino" and all(name.name == "language" for name in node.names):
            self._alias = node.names[0].asname or "language"
        elif node.module not in {"neutrino", "__future__"} or any(
            node.module == "neutrino" and (name.name not in {"probe", "Map"} or name.asname) for name in node.names
        ):
            hint = "a probe file is not run: it imports probe and Map from neutrino, and neutrino.language"
            raise self._faults.refuse(node, "python-statement", f"'{ast.unparse(node)}'", hint)

    def _register(self, node: ast.AnnAssign) -> None:
        if not isinstance(node.target, ast.Name):
            raise self._faults.refuse(node, "python-statement", "a register is a name")
        reader = SnippetReader(self._faults, self._alias, {}, {})
        kind = reader.type_of(node.annotation)
        initial = 0
        if node.value is not None:
            number = self._literal(node.value)
            if not isinstance(number, (int, float)) or isinstance(number, bool):
                raise self._faults.refuse(node.value, "python-type", "a register begins with a number")
            initial = reader.constant(kind, number, node.value).bits
        name = f"%{node.target.id}"
        if name in self._registers:
            raise self._faults.refuse(node, "python-name", f"{node.target.id} is declared already")
        self._registers[name] = Register(name, kind, initial, self._faults.span(node.target))

    def _map(self, node: ast.ClassDef) -> None:
        if len(node.decorator_list) != 1 or not self._is_named(node.decorator_list[0], "Map") or node.bases:
            hint = 'write @Map(level="warp", size=16) above it'
            raise self._faults.refuse(node, "python-decorator", f"class {node.name} is no map", hint)
        table = self._arguments(node.decorator_list[0], (*MAP_KEYS, *TYPE_KEYS))
        reader = SnippetReader(self._faults, self._alias, {}, {})
        fields = {}
        for member in node.body:
            if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name) and member.value is None:
                fields[member.target.id] = reader.type_of(member.annotation).value
            elif not (isinstance(member, ast.Expr) and isinstance(member.value, ast.Constant)):
                raise self._faults.refuse(member, "python-map", "a map has fields, as in 'start: nl.u64'")
        # The same rules as in TOML, by the same code.
        written = json.dumps(table)[1:-1].replace('": ', '" = ').replace(", \"", '\n"')
        data = ", ".join(f'{name} = "{kind}"' for name, kind in fields.items())
        document = Document(self._file, f"[map.{node.name}]\n{written}\ndata = {{ {data} }}\n")
        found = read_map(document, node.name, document.tables["map"][node.name])
        for fault in document.diagnostics:
            if fault.severity == "error":
                self._faults.report(node, "python-map", fault.message, fault.hint)
        if found is not None:
            self._maps[node.name] = replace(found, span=self._faults.span(node))

    def _probe(self, node: ast.FunctionDef) -> Probe:
        decorator = next((item for item in node.decorator_list if self._is_named(item, "probe")), None)
        if decorator is None or len(node.decorator_list) != 1:
            hint = 'write @probe(pos="kernel", level="warp") above it'
            raise self._faults.refuse(node, "python-decorator", f"function {node.name} is no probe", hint)
        arguments = node.args
        if arguments.args or arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs:
            raise self._faults.refuse(node, "python-statement", f"probe {node.name} takes no arguments")
        table = self._arguments(decorator, _PROBE_KEYS)
        position = table.get("pos", table.get("position"))
        if not isinstance(position, str):
            hint = 'write pos="kernel" or an opcode such as pos="ld.global"'
            raise self._faults.refuse(decorator, "python-decorator", f"probe {node.name} has no position", hint)
        tracepoint, wrong = parse_tracepoint(position)
        for fault in wrong:
            self._faults.report(decorator, fault.code, fault.message, fault.hint)
        level = table.get("level")
        if tracepoint is None or level not in {item.value for item in Level}:
            if level not in {item.value for item in Level}:
                hint = 'write level="thread", "warp" or "block"'
                self._faults.report(decorator, "python-decorator", f"level of probe {node.name} is {level!r}", hint)
            raise LanguageError(node.name)
        # Without a word nl.probe runs before, probe after.
        is_after = bool(table.get("after", not table.get("before", False)))
        if self._of_language(decorator):
            is_after = bool(table.get("after", False))
        snippet = SnippetReader(self._faults, self._alias, self._registers, self._maps).read(node)
        if not snippet.statements and not self._faults.found:
            self._faults.report(node, "python-statement", f"probe {node.name} does nothing")
        before, after = (None, snippet) if is_after else (snippet, None)
        return Probe(node.name, tracepoint, Level(level), before, after, self._faults.span(node))

    # Decorators

    def _is_named(self, node: ast.expr, name: str) -> bool:
        function = node.func if isinstance(node, ast.Call) else node
        return (isinstance(function, ast.Name) and function.id == name) or (
            self._of_language(node) and isinstance(function, ast.Attribute) and function.attr == name
        )

    def _of_language(self, node: ast.expr) -> bool:
        function = node.func if isinstance(node, ast.Call) else node
        return (
            isinstance(function, ast.Attribute)
            and isinstance(function.value, ast.Name)
            and function.value.id == self._alias
        )

    def _arguments(self, node: ast.expr, known: tuple[str, ...]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for keyword in node.keywords if isinstance(node, ast.Call) else ():
            if keyword.arg not in known:
                hint = "known here: " + ", ".join(known)
                raise self._faults.refuse(keyword, "python-decorator", f"argument '{keyword.arg}'", hint)
            found[keyword.arg or ""] = self._literal(keyword.value)
        if isinstance(node, ast.Call) and node.args:
            raise self._faults.refuse(node, "python-decorator", "arguments are given by name")
        return found

    def _literal(self, node: ast.expr) -> Any:
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            raise self._faults.refuse(node, "python-expression", f"'{ast.unparse(node)}' is no constant") from None
