"""``[map.NAME]``: where records go, checked and laid out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from neutrino.abi.levels import Level
from neutrino.abi.probe_block import MAX_MAPS
from neutrino.abi.records import MAX_RECORD, Field, lay_out_fields
from neutrino.abi.scalars import ScalarType
from neutrino.maps.declaration import DYNAMIC_CAP, Map, MapType
from neutrino.maps.registry import ARRAY, type_named, type_names
from neutrino.probing.document import Document, KeyPath, shown, shown_key

MAX_MAP_NAME = 63
"""Characters of a map's name: ``result/<id>.bin`` has 64 bytes for it, the last one NUL."""
MAX_CAP = 1 << 20
"""Records a slot. Far above what the pool of any GPU holds; keeps 32-bit indices from wrapping around."""
MAP_COUNT = (f"map {MAX_MAPS + 1} of the run", f"a run has room for {MAX_MAPS}: save several values in one record")
"""What is wrong with one map too many, and what to do."""

MAP_KEYS = ("type", "level", "size", "cap", "data")
"""What stands in ``[map.NAME]``."""
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_TYPE = re.compile(r"[bfsui]\d+", re.ASCII)
_MEANT = {
    **{f"i{bits}": f"s{bits}" for bits in (8, 16, 32, 64)}, **{f"b{bits}": f"u{bits}" for bits in (8, 16, 32, 64)},
    **{f"int{bits}": f"s{bits}" for bits in (8, 16, 32, 64)}, **{f"uint{bits}": f"u{bits}" for bits in (8, 16, 32, 64)},
    "int": "s32", "uint": "u32", "unsigned": "u32", "long": "s64", "size": "u64", "ptr": "u64", "bool": "u8",
    "char": "s8", "byte": "u8", "short": "s16", "float": "f32", "double": "f64", "float32": "f32", "float64": "f64",
    "pred": "u32", "f16": "u16", "bf16": "u16", "half": "u16",
}  # fmt: skip
"""What other languages, and PTX, call the types of fields."""


def read_map(document: Document, name: str, table: Mapping[str, Any]) -> Map | None:
    """The map of a table; None without its fields. What is wrong is noted.

    A map with other faults is used to verify what is saved to it; without a level it counts as per thread.
    """
    path = ("map", name)
    kinds = type_names()
    word = document.choice((*path, "type"), table.get("type", "array"), kinds, "type of a map", "map-type")
    kind = type_named(word) if word else None
    known = (*MAP_KEYS, *(kind.keys if kind else ()))
    for key in table:
        if key not in known:
            document.unknown_key((*path, key), known)
    check_map_name(document, path, name)
    level = read_level(document, path, table)
    cap = _cap(document, path, table, kind)
    fields = _fields(document, path, table, kind)
    if not fields:
        return None
    declared = kind.declared(_Table(document, path, table), fields) if kind else ARRAY
    if declared is None:
        return None
    size = _size(document, path, table, declared, fields)
    span = document.span(document.key(*path))
    cap = 1 if cap is None else cap
    return Map(name, declared, level or Level.THREAD, size, cap, fields, span)


def check_map_name(document: Document, path: KeyPath, name: str) -> None:
    """Note it when a map cannot have this name."""
    if not _NAME.fullmatch(name) or len(name) > MAX_MAP_NAME:
        hint = f"up to {MAX_MAP_NAME} letters, digits and underscores, no digit first"
        document.report(document.key(*path), "map-name", f"map name {shown_key(name)}", hint)


def read_level(document: Document, path: KeyPath, table: Mapping[str, Any]) -> Level | None:
    """``level`` of a map or of a probe; None when it is wrong, which is noted."""
    words = [level.value for level in Level]
    if "level" not in table:
        document.missing(path, "level", 'level = "thread", "warp" or "block"')
        return None
    word = document.choice((*path, "level"), table["level"], words, "level", "level")
    return Level(word) if word else None


def check_cap(document: Document, offset: int, cap: object, kind: type[MapType] | None) -> int | None:
    """Records a slot as a number; None when it is none, which is noted at the offset."""
    if not isinstance(cap, int) or isinstance(cap, bool) or not 0 < cap <= MAX_CAP:
        hint = f'write an integer from 1 to {MAX_CAP}, or "dynamic"'
        document.report(offset, "cap", f"cap is {shown(cap)}", hint)
    elif kind and not kind.in_slots and cap != 1:
        document.report(offset, "cap", f"cap is {cap}, but a {kind.name} has one record", "leave cap out")
    else:
        return cap
    return None


def _cap(document: Document, path: KeyPath, table: Mapping[str, Any], kind: type[MapType] | None) -> int | None:
    cap = table.get("cap", 1)
    place = document.value(*path, "cap")
    if cap != "dynamic":
        return check_cap(document, place, cap, kind)
    if kind and not kind.in_slots:
        document.report(place, "cap", f'cap is "dynamic", but a {kind.name} has one record', "leave cap out")
        return None
    return DYNAMIC_CAP


def _fields(
    document: Document, path: KeyPath, table: Mapping[str, Any], kind: type[MapType] | None
) -> tuple[Field, ...]:
    data = table.get("data")
    path = (*path, "data")
    if not isinstance(data, dict) or not data:
        if "data" in table:
            document.report(document.value(*path), "fields", "data names no field", 'write { start = "u64" }')
        else:
            document.missing(path[:-1], "data", 'data = { start = "u64" }')
        return ()
    types = [scalar.value for scalar in ScalarType]
    fields = []
    for name, word in data.items():
        if not _NAME.fullmatch(name):
            hint = "use letters, digits and underscores, no digit first"
            document.report(document.key(*path, name), "field-name", f"field name {shown_key(name)}", hint)
        what = f"type of field {shown_key(name)}"
        meant = _MEANT.get(word.lower().removesuffix("_t")) if isinstance(word, str) else None
        # A width that there is not is no slip of the pen.
        misspelt = not (isinstance(word, str) and _TYPE.fullmatch(word))
        chosen = document.choice((*path, name), word, types, what, "field-type", meant, misspelt=misspelt)
        if chosen is None:
            continue
        scalar = ScalarType(chosen)
        if kind:
            check_field(document, document.value(*path, name), kind, name, scalar)
        fields.append((name, scalar))
    if kind and kind.most_fields and len(data) > kind.most_fields:
        document.report(document.value(*path), "fields", f"data names {len(data)} fields", kind.field_hint)
        return ()
    return lay_out_fields(fields)[0] if len(fields) == len(data) else ()


def check_field(document: Document, offset: int, kind: type[MapType], name: str, scalar: ScalarType) -> None:
    """Note it when a map of that type cannot have such a field."""
    if scalar not in kind.field_types:
        message = f"field '{name}' of a {kind.name} is {scalar.value}"
        document.report(offset, "field-type", message, kind.field_hint)


def check_padding(document: Document, offset: int, fields: tuple[Field, ...]) -> int:
    """Bytes of a record; warns when some of them are padding."""
    _, size, padding = lay_out_fields([(field.name, field.type) for field in fields])
    if padding:
        message = f"{padding} of the {size} bytes of a record are padding"
        document.warn(offset, "padding", message, "put wide fields first")
    if size > MAX_RECORD:
        message = f"a record of {size} bytes"
        document.report(offset, "record-size", message, f"write fields of up to {MAX_RECORD} bytes")
    return size


class _Table:
    """What a type of maps reads its own keys from."""

    def __init__(self, document: Document, path: KeyPath, table: Mapping[str, Any]) -> None:
        self._document = document
        self._path = path
        self._table = table

    def get(self, key: str) -> Any:
        """As of ``MapTable``."""
        return self._table.get(key)

    def missing(self, key: str, hint: str) -> None:
        """As of ``MapTable``."""
        self._document.missing(self._path, key, hint)

    def fault(self, key: str, message: str, hint: str) -> None:
        """As of ``MapTable``."""
        self._document.report(self._document.value(*self._path, key), "map-option", message, hint)


def _size(
    document: Document, path: KeyPath, table: Mapping[str, Any], kind: MapType, fields: tuple[Field, ...]
) -> int:
    size = check_padding(document, document.value(*path, "data"), kind.cells(fields))
    written = table.get("size", size)
    place = document.value(*path, "size")
    if isinstance(written, str) and written.isascii() and written.isdigit() and len(written) < 10:
        hint = f"write size = {int(written)}"
        document.warn(place, "size-in-quotes", f'size = "{written}" is read as a number', hint)
        written = int(written)
    if not isinstance(written, int) or isinstance(written, bool):
        document.report(place, "record-size", f"size is {shown(written)}", f"write size = {size}")
    elif written != size:
        message = f"size is {shown(written)}, but the fields take {size} bytes"
        document.report(place, "record-size", message, f"write size = {size}")
    return size
