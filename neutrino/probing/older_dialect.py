"""The older dialect: a table at the top level is a probe, and its ``datamodel`` with its ``SAVE``s is its map.

[block_sched]
position = "kernel"
datamodel = "warp:16"
after = "SAVE.u64 {%start}; SAVE.u32 {%elapsed, %smid};"
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from neutrino.abi.levels import Level
from neutrino.abi.records import Field, lay_out_fields
from neutrino.abi.scalars import ScalarType
from neutrino.maps.declaration import DYNAMIC_CAP, Map, MapType
from neutrino.maps.registry import ARRAY, MAP_TYPES
from neutrino.probing.document import Document, KeyPath, shown
from neutrino.probing.maps import MAX_MAP_NAME, check_cap, check_field, check_map_name, check_padding
from neutrino.probing.snippets import Side
from neutrino.probing.syntax import Fault, TypedSave

KEYS = frozenset({"datamodel", "position", "pos", "before", "after"})
"""A table at the top level that has one of them is a probe."""

_FORMS = 'write "LEVEL:BYTES", "LEVEL:BYTES:CAP", "LEVEL:BYTES:count" or "LEVEL:TYPE:BYTES:CAP"'
_BITS = re.compile(r"b(8|16|32|64)")


class Datamodel(NamedTuple):
    """``datamodel``: whose slots there are, of what, bytes of a record and records a slot."""

    level: Level
    kind: MapType
    size: int
    cap: int


def read_datamodel(document: Document, path: KeyPath, table: Mapping[str, Any]) -> Datamodel | None:
    """What a probe's ``datamodel`` says; None without one or when it is wrong, which is noted."""
    if "datamodel" not in table:
        return None
    path = (*path, "datamodel")
    text = table["datamodel"]
    place = document.value(*path)
    words = text.split(":") if isinstance(text, str) else []
    kinds = {kind.name: kind() for kind in MAP_TYPES if kind.in_older_dialect}
    kind = kinds[words.pop(1)] if len(words) > 2 and words[1] in kinds else ARRAY
    if len(words) not in (2, 3) or not re.fullmatch(r"[1-9]\d{0,8}", words[1], re.ASCII):
        document.report(place, "datamodel", f"datamodel is {shown(text)}", _FORMS)
        return None
    levels = [level.value for level in Level]
    level = document.choice(path, words[0], levels, "level in datamodel", "datamodel")
    if len(words) == 3 and words[2] == "count" and kind.in_slots:
        cap: int | None = DYNAMIC_CAP
    elif len(words) == 3 and not re.fullmatch(r"\d{1,9}", words[2], re.ASCII):
        document.report(place, "datamodel", f'cap in datamodel is "{shown(words[2])[1:-1]}"', "write a number or count")
        return None
    else:
        cap = check_cap(document, place, int(words[2]) if len(words) == 3 else 1, type(kind))
    if level is None or cap is None:
        return None
    return Datamodel(Level(level), kind, int(words[1]), cap)


def make_map(document: Document, name: str, datamodel: Datamodel, sides: Sequence[Side]) -> Map | None:
    """The map of an older probe that saves: its name, and fields as its ``SAVE``s have them.

    None when those are wrong. A map with other faults, which are reported, is used to verify what is saved to it.
    """
    before = document.errors
    records = [_fields(document, side) for side in sides if side.typed_saves]
    if document.errors > before:
        return None
    check_map_name(document, (name,), name)
    fields = records[0]
    types = [[field.type.value for field in record] for record in records]
    second = sides[-1]
    place = document.within(second.path, second.typed_saves[0].start) if second.typed_saves else 0
    if types[0] != types[-1]:
        message = f"after saves {_listed(types[-1])}, before saves {_listed(types[0])}"
        document.report(place, "records-differ", message, "both sides save records of one form")
    elif len(records) > 1 and datamodel.kind.in_slots and datamodel.cap == 1:
        hint = f'keep both: datamodel = "{datamodel.level.value}:{datamodel.size}:2"'
        document.warn(place, "one-record", "both sides save, but a slot keeps one record: the later one", hint)
    _check_record(document, name, datamodel, fields)
    span = document.span(document.key(name))
    return Map(name, datamodel.kind, datamodel.level, datamodel.size, datamodel.cap, fields, span)


def _check_record(document: Document, name: str, datamodel: Datamodel, fields: tuple[Field, ...]) -> None:
    place = document.value(name, "datamodel")
    size = check_padding(document, place, fields)
    if size != datamodel.size:
        message = f"datamodel has records of {datamodel.size} bytes, but what is saved takes {size}"
        document.report(place, "record-size", message, f"write {size} for the {datamodel.size}")
    for field in fields:
        check_field(document, place, type(datamodel.kind), field.name, field.type)


def _fields(document: Document, side: Side) -> tuple[Field, ...]:
    """The fields that the saves of one side make, named as their operands."""
    fields: dict[str, ScalarType] = {}
    numbers: dict[str, int] = {}
    for save in side.typed_saves:
        scalar = _scalar(save)
        if isinstance(scalar, Fault):
            document.fault(side.path, scalar)
        elif not save.operands:
            fault = Fault(save.start, "save-operands", "the SAVE saves nothing", "write 'SAVE.u64 { %a, %b };'")
            document.fault(side.path, fault)
        else:
            for _, word in save.operands:
                fields[_field_name(word, fields, numbers)] = scalar
    return lay_out_fields(list(fields.items()))[0]


def _scalar(save: TypedSave) -> ScalarType | Fault:
    bits = _BITS.fullmatch(save.type)
    words = [scalar.value for scalar in ScalarType]
    word = f"u{bits.group(1)}" if bits else save.type
    if word in words:
        return ScalarType(word)
    message = f"SAVE has no type {shown(save.type)}"
    return Fault(save.type_start, "typed-save", message, f"use {', '.join(words)} or b8 to b64")


def _field_name(word: str, taken: Mapping[str, ScalarType], numbers: dict[str, int]) -> str:
    """``%start`` as ``start``, ``OUT.y`` as ``out_y``, a number as ``value``; a second one with its number.

    numbers: the last number of each name so far.
    """
    name = re.sub(r"\W+", "_", word[:MAX_MAP_NAME].lstrip("%"), flags=re.ASCII).strip("_")
    if not re.match(r"[A-Za-z_]", name):
        name = "value"
    elif not word.startswith("%"):
        name = name.lower()
    candidate = name
    while candidate in taken:
        numbers[name] = numbers.get(name, 1) + 1
        candidate = f"{name}_{numbers[name]}"
    return candidate


def _listed(types: Sequence[str]) -> str:
    return "{" + ", ".join(types) + "}"
