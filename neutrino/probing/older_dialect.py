"""Reads the maps of the older dialect, where each table at the top level is a probe with a map of its own.

The ``datamodel`` says the level and size of the map's records; the ``SAVE`` statements give the fields.

[block_sched]
position = "kernel"
datamodel = "warp:16"
after = "SAVE.u64 {%start}; SAVE.u32 {%elapsed, %smid};"
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from neutrino.abi.levels import LEVELS, Level
from neutrino.abi.records import Field, lay_out_fields
from neutrino.abi.scalars import ScalarType
from neutrino.maps.declaration import Layout, Map, MapType
from neutrino.maps.log import Log
from neutrino.maps.registry import ARRAY, MAP_TYPES
from neutrino.probing.document import Document, KeyPath, shown, shown_name
from neutrino.probing.maps import MAX_MAP_NAME, check_cap, check_field, check_map_name, check_padding
from neutrino.probing.snippets import Side
from neutrino.probing.syntax import Fault, TypedSave

KEYS = frozenset({"datamodel", "position", "pos", "before", "after"})
"""A table at the top level with one of these keys is a probe."""

_FORMS = 'write "LEVEL:BYTES", "LEVEL:BYTES:CAP", "LEVEL:BYTES:count" or "LEVEL:TYPE:BYTES:CAP"'
_UNTYPED = re.compile(r"b(?P<bits>8|16|32|64)")


class Datamodel(NamedTuple):
    """The value of ``datamodel``. size: bytes per record. cap: records per slot; 1 for maps without slots."""

    level: Level
    map_type: MapType
    size: int
    cap: int


def read_datamodel(document: Document, path: KeyPath, table: Mapping[str, Any]) -> Datamodel | None:
    """Parse a probe's ``datamodel``, such as ``thread:16:2``; None if it is missing or invalid, which is reported.

    path, table: of the probe.
    """
    if "datamodel" not in table:
        return None
    path = (*path, "datamodel")
    text = table["datamodel"]
    place = document.value(*path)
    words = text.split(":") if isinstance(text, str) else []
    # The type of the map is the second word, and optional: without it, the words are level, size and maybe cap.
    map_types = {map_class.name: map_class() for map_class in MAP_TYPES if map_class.in_older_dialect}
    map_type = map_types[words.pop(1)] if len(words) > 2 and words[1] in map_types else ARRAY
    if len(words) not in (2, 3) or not re.fullmatch(r"[1-9]\d{0,8}", words[1], re.ASCII):
        document.report(place, "datamodel", f"datamodel is {shown(text)}", _FORMS)
        return None
    level_word, size_word = words[:2]
    cap_word = words[2] if len(words) == 3 else "1"
    cap: int | None
    levels = [level.value for level in LEVELS]
    level = document.choice(path, level_word, levels, "level in datamodel", "datamodel")
    # A map that is not in slots has one record, so there is nothing to count.
    if cap_word == "count" and map_type.layout is Layout.SLOTS:
        map_type, cap = Log(), 1
    elif not re.fullmatch(r"\d{1,9}", cap_word, re.ASCII):
        document.report(place, "datamodel", f'cap in datamodel is "{shown_name(cap_word)}"', "write a number or count")
        return None
    else:
        cap = check_cap(document, place, int(cap_word), type(map_type))
    if level is None or cap is None:
        return None
    return Datamodel(Level(level), map_type, int(size_word), cap)


def make_map(
    document: Document, name: str, datamodel: Datamodel, sides: Sequence[Side], saved: str
) -> Map | None:
    """Return the map of an older probe: it has the probe's name, and the fields that the ``SAVE`` statements give.

    The result is None if a ``SAVE`` is invalid. A map with other faults, which are reported, is returned, so that saves
    to it can be verified. name, datamodel: of the probe. sides: before and after, of which at least one has typed
    saves. saved: what a SAVE of two operands saves, for hints.
    """
    errors_before = document.errors
    # The fields of one record for each side that saves: one or two.
    records = [_fields(document, side, saved) for side in sides if side.typed_saves]
    if document.errors > errors_before:
        return None
    check_map_name(document, (name,), name)
    if len(records) > 1:
        before_record, after_record = records
        _check_same_record(document, datamodel, sides[-1], before_record, after_record)
    fields = records[0]
    _check_record(document, name, datamodel, fields)
    span = document.span(document.key(name))
    return Map(name, datamodel.map_type, datamodel.level, datamodel.size, datamodel.cap, fields, span)


def _check_same_record(
    document: Document, datamodel: Datamodel, after: Side, before_fields: tuple[Field, ...],
    after_fields: tuple[Field, ...],
) -> None:  # fmt: skip
    """Report that ``before`` and ``after`` of a probe save different records; warn if the map has room for only one of
    the two.

    before_fields, after_fields: of the record that each side saves. after: where both are reported.
    """
    before_types = [field.type.value for field in before_fields]
    after_types = [field.type.value for field in after_fields]
    place = document.within(after.path, after.typed_saves[0].start)
    if before_types != after_types:
        message = f"after saves {_listed(after_types)}, before saves {_listed(before_types)}"
        document.report(place, "records-differ", message, "both sides save records of one form")
    elif datamodel.map_type.layout is Layout.SLOTS and datamodel.cap == 1:
        hint = f'keep both: datamodel = "{datamodel.level.value}:{datamodel.size}:2"'
        document.warn(place, "one-record", "both sides save, but a slot keeps one record: the later one", hint)


def _check_record(document: Document, name: str, datamodel: Datamodel, fields: tuple[Field, ...]) -> None:
    """Report fields that take another size than the ``datamodel`` gives, or that its type of map cannot have.

    name: of the probe whose ``datamodel`` it is.
    """
    place = document.value(name, "datamodel")
    # The size includes padding, which it warns of.
    size = check_padding(document, place, fields)
    if size != datamodel.size:
        message = f"datamodel has records of {datamodel.size} bytes, but what is saved takes {size}"
        document.report(place, "record-size", message, f"write {size} for the {datamodel.size}")
    for field in fields:
        check_field(document, place, type(datamodel.map_type), field.name, field.type)


def _fields(document: Document, side: Side, saved: str) -> tuple[Field, ...]:
    """Return the fields of the record that a probe saves on one side of an instruction (before or after it), named
    after the operands of its SAVE statements.

    An invalid save is reported, and gives no fields.
    """
    fields: dict[str, ScalarType] = {}
    numbers: dict[str, int] = {}
    for save in side.typed_saves:
        scalar = _scalar(save)
        if isinstance(scalar, Fault):
            document.fault(side.path, scalar)
        elif not save.operands:
            fault = Fault(save.start, "save-operands", "the SAVE saves nothing", f"write 'SAVE.u64 {saved}'")
            document.fault(side.path, fault)
        else:
            for _, word in save.operands:
                fields[_field_name(word, fields, numbers)] = scalar
    return lay_out_fields(list(fields.items()))[0]


def _scalar(save: TypedSave) -> ScalarType | Fault:
    """Return the type of the fields that a statement ``SAVE.type`` of the older dialect writes; untyped bits (``b32``)
    become unsigned integers."""
    untyped = _UNTYPED.fullmatch(save.type)
    scalar_names = [scalar.value for scalar in ScalarType]
    name = f"u{untyped['bits']}" if untyped else save.type
    if name in scalar_names:
        return ScalarType(name)
    message = f"SAVE has no type {shown(save.type)}"
    return Fault(save.type_start, "typed-save", message, f"use {', '.join(scalar_names)} or b8 to b64")


def _field_name(word: str, taken: Mapping[str, ScalarType], numbers: dict[str, int]) -> str:
    """Return the field name for an operand: ``%start`` gives ``start``, ``OUT.y`` ``out_y``, a number ``value``.

    If the name is taken, a number is appended, from 2. numbers: name → the last number appended to it; updated.
    """
    # Cut: an operand may be very long.
    name = re.sub(r"\W+", "_", word[:MAX_MAP_NAME].lstrip("%"), flags=re.ASCII).strip("_")
    # A number, or a word that begins with one.
    if not re.match(r"[A-Za-z_]", name):
        name = "value"
    elif not word.startswith("%"):
        name = name.lower()  # a helper: OUT
    candidate = name
    while candidate in taken:
        numbers[name] = numbers.get(name, 1) + 1
        candidate = f"{name}_{numbers[name]}"
    return candidate


def _listed(types: Sequence[str]) -> str:
    """Return types as a list for a message: ``{u32, u64}``."""
    return "{" + ", ".join(types) + "}"
