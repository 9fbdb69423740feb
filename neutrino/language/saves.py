"""What the ``nl.save`` of one probe are together: a record of its own map, with fields named after what is saved."""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace

from neutrino.abi.levels import Level
from neutrino.abi.scalars import ScalarType
from neutrino.errors import Span
from neutrino.ir.operands import SavedOperand
from neutrino.language.faults import Faults
from neutrino.language.vocabulary import TYPES
from neutrino.maps.declaration import Map
from neutrino.maps.registry import ARRAY
from neutrino.probing.ir.structured import For, If, Save, Statement, While

_MAX_FIELD_NAME = 63
PLACEHOLDER = Map("", ARRAY, Level.THREAD, 0, 1, (), Span(1, 1))
"""The map of ``nl.save`` until the whole probe is read: its fields are what is saved."""


@dataclass
class Record:
    """What the ``nl.save`` of a probe save: together one record of the probe's own map.

    fields: name and type of each value. operands: the values. places: of these. first, last: the first call, and the
    last one so far.
    """

    fields: dict[str, ScalarType] = field(default_factory=dict)
    operands: list[SavedOperand] = field(default_factory=list)
    places: list[Span] = field(default_factory=list)
    first: ast.Call | None = None
    last: ast.Call | None = None


def field_name(value: ast.expr, alias: str, faults: Faults, taken: Container[str]) -> str:
    """Choose the name of the field that keeps a saved value: that of the variable or helper saved, else ``value``.

    alias: the name that ``neutrino.language`` is imported as. taken: names of other fields; a number is appended to one
    of these.
    """
    node = value
    if isinstance(node, ast.Call) and node.args and getattr(node.func, "attr", "") in TYPES:
        # nl.u32(x) is x.
        node = node.args[0]
    # nl.out.y is out_y, nl.in1[2] in1_2; nl.param(0, offset=8, dtype=…) is param_0_8.
    parts = [node]
    is_name = isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) or not getattr(node, "args", [node])
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "param":
        offsets = (keyword.value for keyword in node.keywords if keyword.arg == "offset")
        parts, is_name = [node.func, *node.args, *offsets], True
    words = [word for part in parts for word in re.findall(r"\w+", faults.quote(part), re.ASCII)]
    name = "_".join(words[words[:1] == [alias] :])
    if not is_name or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        name = "value"
    name, number = name[:_MAX_FIELD_NAME], 1
    candidate = name
    while candidate in taken:
        number += 1
        candidate = f"{name}_{number}"
    return candidate


def saving_to(own_map: Map | None, statements: Sequence[Statement]) -> tuple[Statement, ...]:
    """Return statements whose saves to ``PLACEHOLDER`` go to a map instead; without those saves if the map is None."""
    replaced: list[Statement] = []
    for statement in statements:
        if isinstance(statement, If):
            then, otherwise = saving_to(own_map, statement.then), saving_to(own_map, statement.otherwise)
            statement = replace(statement, then=then, otherwise=otherwise)
        elif isinstance(statement, (For, While)):
            statement = replace(statement, body=saving_to(own_map, statement.body))
        elif isinstance(statement, Save) and statement.map is PLACEHOLDER:
            if own_map is None:
                continue
            statement = replace(statement, map=own_map)
        replaced.append(statement)
    return tuple(replaced)
