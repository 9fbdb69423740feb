"""The types of maps as text: each is short enough to be read as the description of its algorithm."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from neutrino.maps.declaration import MapType
from neutrino.maps.log import Log
from neutrino.maps.registry import MAP_TYPES

MOST = 150
"""Lines of the module of a type, with its declaration and its reading; docstrings may be as long as they need."""


def modules_of(kind: type[MapType]) -> list[Path]:
    """Return the file of a type, and of each class between it and ``MapType``."""
    classes = [each for each in kind.__mro__ if issubclass(each, MapType) and each is not MapType]
    return list(dict.fromkeys(Path(inspect.getfile(each)) for each in classes))


def length(path: Path) -> int:
    """How many lines a module has, without its docstrings."""
    text = path.read_text()
    lines = set(range(len(text.splitlines())))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno - 1, node.end_lineno or 0))
    return len(lines)


@pytest.mark.parametrize("kind", [kind for kind in MAP_TYPES if kind is not Log])
def test_types_are_short(kind: type[MapType]) -> None:
    modules = modules_of(kind)
    lines = {path.name: length(path) for path in modules}
    assert modules
    assert max(lines.values()) <= MOST, lines
