"""Probes of a running Python program: functions with ``@nl.probe`` in a notebook's cell, the REPL or a module.

The text of such a function is that of its file or cell, which ``linecache`` knows. What else stands there is left out.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Sequence
from types import CodeType, FunctionType
from typing import NamedTuple

from neutrino import language
from neutrino.errors import NeutrinoError

_NUMBERS = (ast.Constant, ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator, ast.Name, ast.Load)
"""What the expression of a constant consists of."""


class LiveText(NamedTuple):
    """A file or cell that holds probes.

    file: its name. alias: the name of ``neutrino.language`` there, which may be imported in another cell. names: of the
    functions that are its probes.
    """

    file: str
    text: str
    alias: str
    names: tuple[str, ...]


def live_texts(functions: Sequence[object]) -> list[LiveText]:
    """Find the source texts (files or notebook cells) that define some functions; return each with the functions that
    are probes.

    Raises NeutrinoError for an object that is no function, and for one whose text is not known, or has changed since it
    was run.
    """
    names: dict[tuple[str, str, str], list[str]] = {}
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
        alias = next((name for name, value in function.__globals__.items() if value is language), "nl")
        names.setdefault((code.co_filename, text, alias), []).append(code.co_name)
    return [LiveText(*key, tuple(dict.fromkeys(found))) for key, found in names.items()]


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
        return all(item.name == "neutrino.language" and item.asname for item in node.names)
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
