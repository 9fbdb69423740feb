"""Probes of a running Python program: functions with ``@nl.probe`` in a notebook's cell, the REPL or a module.

The text of such a function is that of its file or cell, which ``linecache`` knows, and after it what it needs of
others: maps that stand in another cell, and constants. What else stands there is left out.
"""

from __future__ import annotations

import ast
import linecache
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from neutrino import language
from neutrino.errors import NeutrinoError

_NUMBERS = (ast.Constant, ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator, ast.Name, ast.Load)
"""What the expression of a constant consists of."""


class LiveText(NamedTuple):
    """A file or cell that holds probes, and the parts of others that they need.

    file: its name. alias, package: the names of ``neutrino.language`` and of ``neutrino`` there, which may be imported
    in another cell. names: of the functions that are its probes.
    """

    file: str
    text: str
    alias: str
    names: tuple[str, ...]
    package: str = "neutrino"


def live_texts(functions: Sequence[object]) -> list[LiveText]:
    """Find the source texts (files or notebook cells) that define some functions; return each with the functions that
    are probes.

    Raises NeutrinoError for an object that is no function, and for one whose text is not known, or has changed since it
    was run.
    """
    parts: dict[tuple[str, str], list[FunctionType]] = {}
    for function in functions:
        if not isinstance(function, FunctionType):
            raise NeutrinoError(f"{function!r} is no probe: give a function with @nl.probe, or the name of a file")
        code = function.__code__
        linecache.checkcache(code.co_filename)
        text = "".join(linecache.getlines(code.co_filename, function.__globals__))
        if not _defines(text, code):
            raise NeutrinoError(
                f"the text of {function.__name__} is not known, or has changed since it was run: run it again, or give "
                "the text itself as source="
            )
        parts.setdefault((code.co_filename, text), []).append(function)
    return [_with_others(group) for group in _sharing(parts)]


def _sharing(
    parts: Mapping[tuple[str, str], Sequence[FunctionType]],
) -> Iterator[list[tuple[str, str, Sequence[FunctionType]]]]:
    """Yield texts and their probes in groups: those whose probes save to the same maps are one file."""
    groups: list[tuple[set[int], list[tuple[str, str, Sequence[FunctionType]]]]] = []
    for (file, text), functions in parts.items():
        maps = {id(value) for value in _maps(text, functions[0].__globals__).values()}
        alike = [group for group in groups if group[0] & maps]
        others = [group for group in groups if not group[0] & maps]
        joined = [part for group in alike for part in group[1]]
        groups = [*others, (maps.union(*(group[0] for group in alike)), [*joined, (file, text, functions)])]
    for _, group in groups:
        yield group


def _maps(text: str, names: Mapping[str, Any]) -> dict[str, type]:
    """Return the maps that a text declares or uses, by their names in it. names: the program's."""
    used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    used |= {node.name for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}
    return {name: names[name] for name in sorted(used) if language.place_of_map(names.get(name)) is not None}


def _with_others(group: Sequence[tuple[str, str, Sequence[FunctionType]]]) -> LiveText:
    """Return the text of some probes, and after it that of others that save to the same maps, and what they need."""
    file = group[0][0]
    texts = [text for _, text, _ in group]
    names = group[0][2][0].__globals__
    declared = {name for text in texts for name in _declared(text)}
    others = {name: value for text in texts for name, value in _maps(text, names).items() if name not in declared}
    maps = [_text_of_map(name, value) for name, value in others.items()]
    read = {name for text in (*texts, *maps) for name in _read_names(text)}
    constants = [f"{name} = {names[name]!r}" for name in sorted(read - declared) if _is_number(names, name)]
    # The first text stands first: faults in it have their lines.
    joined = "\n".join([*(text.removesuffix("\n") for text in texts), *constants, *maps, ""])
    alias = next((name for name, value in names.items() if value is language), "nl")
    package = next((name for name, value in names.items() if value is sys.modules["neutrino"]), "neutrino")
    found = dict.fromkeys(function.__name__ for _, _, functions in group for function in functions)
    return LiveText(file, joined, alias, tuple(found), package)


def _is_number(names: Mapping[str, Any], name: str) -> bool:
    """Return whether a name is that of a number, and not of a register, which has an annotation."""
    value: Any = names.get(name)
    return type(value) in {int, float, bool} and math.isfinite(value) and name not in names.get("__annotations__", ())


def _text_of_map(name: str, declared: type) -> str:
    """Return the text of a map that stands in another file or cell. name: of it where the probe is. Raises
    NeutrinoError if the text is not known, or the map has another name."""
    if declared.__name__ != name:
        raise NeutrinoError(f"the map {declared.__name__} is called {name} here: call it by its own name")
    file, line = language.place_of_map(declared) or ("", 0)
    linecache.checkcache(file)
    text = "".join(linecache.getlines(file))
    try:
        nodes = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        nodes = []
    for node in nodes:
        if not isinstance(node, ast.ClassDef):
            continue
        first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
        if node.name == name and first <= line <= (node.end_lineno or first):
            return "\n".join(text.splitlines()[first - 1 : node.end_lineno])
    raise NeutrinoError(
        f"the text of the map {name} is not known, or has changed since it was run: run it again, or put it into the "
        "file or cell of its probe"
    )


def _declared(text: str) -> set[str]:
    """Return the names that the statements at the top level of a text declare; what it imports has another text."""
    names: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names.add(node.name)
        else:
            names |= {
                part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
            }
    return names


def _read_names(text: str) -> set[str]:
    """Return the names of numbers that the functions and maps of a text may mean: read, and assigned nowhere in it."""
    nodes = [
        part
        for node in ast.parse(text).body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        for part in ast.walk(node)
        if isinstance(part, ast.Name)
    ]
    stored = {node.id for node in nodes if isinstance(node.ctx, ast.Store)}
    return {node.id for node in nodes} - stored


def _defines(text: str, code: CodeType) -> bool:
    """Return whether a text really defines a function: under its name, and beginning in its line.

    ``linecache`` may have another text of the same name, as in an interpreter that was started with ``-c``.
    """
    try:
        nodes = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    # A function begins with its first decorator.
    return any(
        isinstance(node, ast.FunctionDef) and node.name == code.co_name
        and min([node.lineno, *(item.lineno for item in node.decorator_list)]) == code.co_firstlineno
        for node in nodes
    )  # fmt: skip


def declarations(module: ast.Module, part: LiveText) -> ast.Module:
    """Return a module reduced to what the probes of a text may use, without the program around them.

    That is imports of the language, maps, registers, constants and functions. module: the syntax tree of the text.
    """
    called = {node.id for node in ast.walk(module) if isinstance(node, ast.Name)}
    constants: set[str] = set()
    kept: list[ast.stmt] = []
    for node in module.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            is_kept = _is_of_neutrino(node)
        elif isinstance(node, ast.FunctionDef):
            # Functions without a decorator are kept if something calls them; those that no probe calls are no fault.
            is_kept = node.name in part.names or (not node.decorator_list and node.name in called)
        elif isinstance(node, ast.ClassDef):
            is_kept = any("Map" in ast.unparse(item) for item in node.decorator_list)
        elif isinstance(node, ast.AnnAssign):
            is_kept = ast.unparse(node.annotation).partition(".")[0] == part.alias
        elif isinstance(node, ast.Assign):
            is_kept = _is_constant(node, constants)
        else:
            is_kept = False
        if is_kept:
            kept.append(node)
    return ast.Module(kept, [])


def _is_of_neutrino(node: ast.Import | ast.ImportFrom) -> bool:
    """Return whether an import is one that probe files have."""
    if isinstance(node, ast.Import):
        return all(item.name == "neutrino" or (item.name == "neutrino.language" and item.asname) for item in node.names)
    return node.module == "neutrino" and all(item.name in {"language", "probe", "Map"} for item in node.names)


def _is_constant(node: ast.Assign, constants: set[str]) -> bool:
    """Return whether an assignment gives a name to a constant number; the name is then added to ``constants``.

    constants: those of the text so far.
    """
    parts = list(ast.walk(node.value))
    (target, *others) = node.targets
    is_number = all(
        isinstance(part, _NUMBERS)
        and (not isinstance(part, ast.Name) or part.id in constants)
        and (not isinstance(part, ast.Constant) or isinstance(part.value, (int, float)))
        for part in parts
    )
    # A second value of a name, as programs give their variables, makes it no constant.
    if not is_number or others or not isinstance(target, ast.Name) or target.id in constants:
        return False
    constants.add(target.id)
    return True
