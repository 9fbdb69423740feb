"""Remembers what was found out about statements, which are lowered at each of a probe's sites, the same at each."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

_Node = TypeVar("_Node")
_Result = TypeVar("_Result")
_MOST = 1 << 12
"""Results of a function that are kept."""


def remembered(function: Callable[[_Node], _Result]) -> Callable[[_Node], _Result]:
    """Return a function that computes its result once for each object, which nobody may change.

    Objects are told apart by identity: to compare trees of statements takes as long as to go through them.
    """
    # An object that is kept here keeps its id.
    known: dict[int, tuple[_Node, _Result]] = {}

    @wraps(function)
    def wrapper(node: _Node) -> _Result:
        """Return the result for an object."""
        found = known.get(id(node))
        if found is None:
            if len(known) >= _MOST:
                known.clear()
            found = known[id(node)] = node, function(node)
        return found[1]

    return wrapper
