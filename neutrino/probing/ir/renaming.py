"""Replaces registers in statements and probes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from neutrino.ir.operands import Register

_Node = TypeVar("_Node")
_MODULES = ("neutrino.ir.", "neutrino.probing.ir.")


def with_registers(node: _Node, registers: Mapping[str, Register]) -> _Node:
    """Return an IR node, such as a probe or a statement, or a tuple of them, with registers replaced.

    registers: name of a register → the register to replace it; others stay.
    """
    replaced: _Node = _replaced(node, registers)
    return replaced


def _replaced(node: Any, registers: Mapping[str, Register]) -> Any:
    """Replace registers in a node and, recursively, in its members; anything else is returned as it is."""
    if isinstance(node, Register):
        return registers.get(node.name, node)
    # Only plain tuples: a named tuple is not built from one iterable, and has no registers.
    if type(node) is tuple:
        return tuple(_replaced(item, registers) for item in node)
    # Only dataclasses of the IR: others, such as maps and spans, have no registers. is_dataclass is true of the classes
    # themselves too.
    if is_dataclass(node) and not isinstance(node, type) and type(node).__module__.startswith(_MODULES):
        new_members = {member.name: _replaced(getattr(node, member.name), registers) for member in fields(node)}
        return replace(node, **new_members)
    return node
