"""Statements with other registers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from neutrino.probing.ir.operands import Register

_Node = TypeVar("_Node")


def with_registers(node: _Node, registers: Mapping[str, Register]) -> _Node:
    """A node of the IR, or a tuple of them, with registers replaced by name."""
    changed: _Node = _changed(node, registers)
    return changed


def _changed(node: Any, registers: Mapping[str, Register]) -> Any:
    if isinstance(node, Register):
        return registers.get(node.name, node)
    if isinstance(node, tuple) and type(node) is tuple:
        return tuple(_changed(item, registers) for item in node)
    if is_dataclass(node) and not isinstance(node, type) and type(node).__module__.startswith("neutrino.probing.ir."):
        members = {member.name: getattr(node, member.name) for member in fields(node)}
        found = {name: _changed(value, registers) for name, value in members.items()}
        return replace(node, **{name: value for name, value in found.items() if value is not members[name]})
    return node
