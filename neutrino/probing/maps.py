"""Reads ``[map.NAME]``: a map, to which probes save records, its fields and their layout."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from neutrino.abi.levels import Level, Per
from neutrino.abi.probe_block import MAX_MAPS
from neutrino.abi.records import MAX_RECORD, Field, lay_out_fields
from neutrino.abi.scalars import ScalarType
from neutrino.errors import Span
from neutrino.maps.array import Array
from neutrino.maps.declaration import Layout, Map, MapType
from neutrino.maps.float_sums import FLOATS
from neutrino.maps.hash import Hash
from neutrino.maps.log import Log
from neutrino.maps.registry import ARRAY, type_named, type_names
from neutrino.maps.table_layout import AGGREGATES
from neutrino.probing.document import Document, KeyPath, shown, shown_key
from neutrino.probing.savable_maps import KEEP_ALL

MAX_MAP_NAME = 63
"""Characters of a map's name: ``result/<id>.bin`` has 64 bytes for it, the last one NUL."""
MAX_CAP = 1 << 20
"""Records per slot. Far more than the memory of any GPU holds; keeps 32-bit indices from wrapping around."""
MAP_COUNT = (f"map {MAX_MAPS + 1} of the run", f"a run has room for {MAX_MAPS}: save several values in one record")
"""Message and hint for one map too many."""

MAP_KEYS = ("type", "level", "per", "size", "cap", "data")
"""The keys of ``[map.NAME]``, for maps of every type."""
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SITE = "site"
"""``per = "site"``: a map that is written as this is a ``hash`` with the key ``SITE``."""
_TYPE = re.compile(r"[bfsui]\d+", re.ASCII)
_TYPE_SYNONYMS = {
    **{f"i{bits}": f"s{bits}" for bits in (8, 16, 32, 64)}, **{f"b{bits}": f"u{bits}" for bits in (8, 16, 32, 64)},
    **{f"int{bits}": f"s{bits}" for bits in (8, 16, 32, 64)}, **{f"uint{bits}": f"u{bits}" for bits in (8, 16, 32, 64)},
    "int": "s32", "uint": "u32", "unsigned": "u32", "long": "s64", "size": "u64", "ptr": "u64", "bool": "u8",
    "char": "s8", "byte": "u8", "short": "s16", "float": "f32", "double": "f64", "float32": "f32", "float64": "f64",
    "pred": "u32", "f16": "f32", "bf16": "f32", "half": "f32",
}  # fmt: skip
"""Names of types in other languages and in PTX → the type of a field that corresponds."""


def read_map(document: Document, name: str, table: Mapping[str, Any]) -> Map | None:
    """Read a map from its table; faults are reported to the document.

    The result is None if the fields or the options of its type are invalid. A map with other faults is returned, so
    that saves to it can be verified; with an invalid level it counts as one per thread.
    """
    path = ("map", name)
    type_name = document.choice((*path, "type"), table.get("type", "array"), type_names(), "type of a map", "map-type")
    map_class = type_named(type_name) if type_name else None
    # An array of as many records as there are is a log.
    if map_class is Array and table.get("cap") == "dynamic":
        map_class = Log
        table = {key: value for key, value in table.items() if key != "cap"}
    known_keys = (*MAP_KEYS, *(map_class.keys if map_class else ()))
    for key in table:
        if key not in known_keys:
            document.unknown_key((*path, key), known_keys)
    check_map_name(document, path, name)
    level = read_level(document, path, table)
    word = _per(document, path, table, map_class, level)
    if level is Level.GROUP and map_class and map_class.layout is Layout.SLOTS:
        message = f"{_a(map_class)} keeps records of each thread, warp or block, and a group has no place of its own"
        document.report(document.value(*path, "level"), "level", message, KEEP_ALL)
    elif level is Level.GROUP:
        # What a lane saves for its group is kept as what each saves for itself.
        level = Level.THREAD
    cap = _cap(document, path, table, map_class)
    fields = _fields(document, path, table, map_class)
    if not fields:
        return None
    # A map of an unknown type, which has been reported, is treated as an array.
    map_type = map_class.declared(_Table(document, path, table), fields) if map_class else ARRAY
    if map_type is None:
        return None
    size = _size(document, path, table, map_type, fields)
    narrow = [field for field in map_type.cells(fields) if field.type.size != 8]
    if word == Per.RUN.value and map_class and map_class.takes_per and narrow:
        message = f"a {map_class.name} over the run with the field '{narrow[0].name}' of {narrow[0].type.value}"
        document.report(document.value(*path, "per"), "per", message, "write u64 or s64: the sum of a run needs it")
    if word == Per.RUN.value and map_type.adds_constants and len({field.type in FLOATS for field in fields}) > 1:
        message = f"{_a(type(map_type))} over the run with integers and floating-point numbers"
        document.report(document.value(*path, "per"), "per", message, "write a map for the fields of either kind")
    span = document.span(document.key(*path))
    if word == _SITE and map_class:
        return _by_site(document, path, map_class, level or Level.THREAD, fields, span)
    per = Per(word)
    return Map(name, map_type, level or Level.THREAD, size, 1 if cap is None else cap, fields, span, per)


def check_map_name(document: Document, path: KeyPath, name: str) -> None:
    """Report a map's name that is not allowed in a probe file. path: where the name is written."""
    if not _NAME.fullmatch(name) or len(name) > MAX_MAP_NAME:
        hint = f"up to {MAX_MAP_NAME} letters, digits and underscores, no digit first"
        document.report(document.key(*path), "map-name", f"map name {shown_key(name)}", hint)


def read_level(document: Document, path: KeyPath, table: Mapping[str, Any]) -> Level | None:
    """Return the ``level`` of a map or of a probe; None if it is missing or invalid, which is reported.

    path, table: of the map or probe.
    """
    words = [level.value for level in Level]
    if "level" not in table:
        document.missing(path, "level", 'level = "thread", "warp", "block" or "group"')
        return None
    word = document.choice((*path, "level"), table["level"], words, "level", "level")
    return Level(word) if word else None


def _per(
    document: Document, path: KeyPath, table: Mapping[str, Any], map_class: type[MapType] | None, level: Level | None
) -> str:
    """Read ``per``: whose values a map combines to one result, such as those of a launch or a block; or a site.

    An invalid word is reported, and counts as ``launch``. path, table: of the map. map_class, level: of the map, None
    if they are invalid.
    """
    default = Per.LAUNCH.value
    words = [*(per.value for per in Per), _SITE]
    word = document.choice((*path, "per"), table.get("per", default), words, "per", "per") or default
    place = document.value(*path, "per")
    has_one = word == default and (map_class is None or map_class.layout is Layout.COPIES or "per" not in table)
    if not has_one and map_class and not map_class.takes_per:
        message = f'per is "{word}", but {_a(map_class)} is not combined by {word}'
        hint = "leave per out; sum, min, max, avg and histogram have it"
        document.report(place, "per", message, hint)
        return default
    if word == _SITE and map_class and map_class.name not in AGGREGATES:
        message = f'per is "site", which {_a(map_class)} has not'
        hint = 'sum, min and max have it; a sum per site also has the count of saves: the mean is sum / count'
        document.report(place, "per", message, hint)
        return default
    # Only one thread saves, and it would do so for others with rows of their own.
    finer = {Level.WARP: ("thread",), Level.BLOCK: ("thread", "warp"), Level.GROUP: ("thread",)}
    if level and word in finer.get(level, ()):
        message = f'per is "{word}", but at level {level.value} one thread saves for its {level.value}'
        own = "warp" if level is Level.GROUP else level.value
        hint = f'write per = "{own}", or level = "{word}" for the map and its probes'
        document.report(place, "per", message, hint)
        return default
    return word


def _by_site(
    document: Document, path: KeyPath, map_class: type[MapType], level: Level, fields: tuple[Field, ...], span: Span
) -> Map | None:
    """Return a map with ``per = "site"`` as what it stands for: a ``hash`` whose key is the site (the probed
    instruction).

    None if its fields are invalid, which is reported. map_class: sum, min or max. The others: of the map as it is
    written.
    """
    (value, *others) = fields
    if others or value.type.value[0] == "s":
        what = f"{len(fields)} fields" if others else f"a field of {value.type.value}"
        message = f"{_a(map_class)} per site with {what}"
        hint = "write one field, of u8, u16, u32, u64, f32 or f64"
        hint += ", and a map for each of the others" if others else ""
        document.report(document.value(*path, "per"), "per", message, hint)
        return None
    key = "site" if value.name != "site" else "site_"
    laid_out, _, _ = lay_out_fields([(key, ScalarType.U32), (value.name, value.type)])
    kind = Hash(keep=(map_class.name,))
    return Map(path[-1], kind, level, kind.size(laid_out), 1, laid_out, span, by_site=True)


def check_cap(document: Document, offset: int, cap: object, map_class: type[MapType] | None) -> int | None:
    """Return ``cap``, the number of records per slot; None if it is invalid, which is reported at the offset.

    map_class: the type of the map, None if it is unknown. A map that is not in slots has no cap.
    """
    # bool is a subclass of int.
    if not isinstance(cap, int) or isinstance(cap, bool) or not 0 < cap <= MAX_CAP:
        hint = f'write an integer from 1 to {MAX_CAP}, or "dynamic"'
        document.report(offset, "cap", f"cap is {shown(cap)}", hint)
        return None
    if map_class and map_class.layout is not Layout.SLOTS and cap != 1:
        document.report(offset, "cap", f"cap is {cap}, but {_room(map_class)}", "leave cap out")
        return None
    return cap


def _room(map_class: type[MapType]) -> str:
    """Return the words of a message that say how many records fit in a map of this type, where threads have no slots of
    their own."""
    room = "has room for all records" if map_class.layout is Layout.CHUNKS else "has one record"
    return f"{_a(map_class)} {room}"


def _cap(document: Document, path: KeyPath, table: Mapping[str, Any], map_class: type[MapType] | None) -> int | None:
    """Read ``cap``: records per slot; None if it is invalid, which is reported.

    path, table: of the map. map_class: see ``check_cap``.
    """
    cap = table.get("cap", 1)
    is_ring = map_class is not None and map_class.keeps_last
    place = document.value(*path, "cap")
    if map_class and is_ring and (cap == "dynamic" or "cap" not in table):
        hint = "write cap = 16, or another number"
        if "cap" in table:
            document.report(place, "cap", f"cap is {shown(cap)}, but {_a(map_class)} has room for some records", hint)
        else:
            document.missing(path, "cap", hint)
        return None
    if cap == "dynamic" and map_class and map_class.layout is not Layout.SLOTS:
        document.report(place, "cap", f'cap is "dynamic", but {_room(map_class)}', "leave cap out")
        return None
    return check_cap(document, place, cap, map_class)


def _fields(
    document: Document, path: KeyPath, table: Mapping[str, Any], map_class: type[MapType] | None
) -> tuple[Field, ...]:
    """Read ``data``, the fields of a record, and lay them out; () if any of them is invalid, which is reported.

    path, table: of the map. map_class: the type of the map, None if it is unknown.
    """
    data = table.get("data")
    path = (*path, "data")
    if not isinstance(data, dict) or not data:
        if "data" in table:
            document.report(document.value(*path), "fields", "data names no field", 'write { start = "u64" }')
        else:
            table_path = path[:-1]
            document.missing(table_path, "data", 'data = { start = "u64" }')
        return ()
    scalar_names = [scalar.value for scalar in ScalarType]
    fields = []
    for name, word in data.items():
        if not _NAME.fullmatch(name):
            hint = "use letters, digits and underscores, no digit first"
            document.report(document.key(*path, name), "field-name", f"field name {shown_key(name)}", hint)
        # uint32_t is uint32.
        synonym = _TYPE_SYNONYMS.get(word.lower().removesuffix("_t")) if isinstance(word, str) else None
        type_name = document.choice(
            (*path, name), word, scalar_names, f"type of field {shown_key(name)}", "field-type", synonym,
            # A type with a width that does not exist, such as u24, is no misspelling of another.
            may_be_misspelt=not (isinstance(word, str) and _TYPE.fullmatch(word)),
        )  # fmt: skip
        if type_name is None:
            continue
        scalar = ScalarType(type_name)
        if map_class:
            check_field(document, document.value(*path, name), map_class, name, scalar)
        fields.append((name, scalar))
    if map_class and map_class.most_fields and len(data) > map_class.most_fields:
        document.report(document.value(*path), "fields", f"data names {len(data)} fields", map_class.field_hint)
        return ()
    has_invalid_types = len(fields) < len(data)
    if has_invalid_types:
        return ()
    laid_out, _, _ = lay_out_fields(fields)
    return laid_out


def check_field(document: Document, offset: int, map_class: type[MapType], name: str, scalar: ScalarType) -> None:
    """Report a field of a map's records whose type the map's type does not allow.

    offset: where in the file. name, scalar: of the field.
    """
    if scalar not in map_class.field_types:
        message = f"field '{name}' of {_a(map_class)} is {scalar.value}"
        document.report(offset, "field-type", message, map_class.field_hint)


def _a(map_class: type[MapType]) -> str:
    """Return a map type's name with its article, for messages: ``a sum``, ``an avg``."""
    return f"{'an' if map_class.name[0] in 'aeiou' else 'a'} {map_class.name}"


def check_padding(document: Document, offset: int, fields: tuple[Field, ...], *, as_written: bool = True) -> int:
    """Return the size of a record in bytes; warn of padding and report a record that is too large.

    offset: where faults are reported. Padding are unused bytes between fields, which are aligned as in C, and after the
    last one. as_written: the fields are those of the file, whose order may be another.
    """
    _, size, padding = lay_out_fields([(field.name, field.type) for field in fields])
    if padding and as_written:
        message = f"{padding} of the {size} bytes of a record are padding"
        document.warn(offset, "padding", message, "put wide fields first")
    if size > MAX_RECORD:
        message = f"a record of {size} bytes"
        document.report(offset, "record-size", message, f"write fields of up to {MAX_RECORD} bytes")
    return size


class _Table:
    """A table ``[map.NAME]``, as a ``MapTable`` from which the map's type reads its own keys."""

    def __init__(self, document: Document, path: KeyPath, table: Mapping[str, Any]) -> None:
        """Give access to a map's table of a probe file. path: of the table in the document. table: its keys and values.
        """
        self._document = document
        self._path = path
        self._table = table

    def get(self, key: str) -> Any:
        """Return the value that the map's table in the probe file has for a key, None without the key."""
        return self._table.get(key)

    def missing(self, key: str, hint: str) -> None:
        """Report that the map's table in the probe file lacks a key. hint: what to write."""
        self._document.missing(self._path, key, hint)

    def fault(self, key: str, message: str, hint: str) -> None:
        """Report that a key of the map's table in the probe file has an invalid value. hint: what to write."""
        self._document.report(self._document.value(*self._path, key), "map-option", message, hint)


def _size(
    document: Document, path: KeyPath, table: Mapping[str, Any], map_type: MapType, fields: tuple[Field, ...]
) -> int:
    """Return the size of a record in bytes, computed from its fields; report a ``size`` that differs.

    path, table: of the map. map_type: its type, which may store a record as other fields than those declared
    (``MapType.cells``).
    """
    # Words without names have no padding.
    cells = map_type.cells(fields)
    size = map_type.size(fields)
    if cells:
        size = check_padding(document, document.value(*path, "data"), cells, as_written=cells == fields)
    written = table.get("size", size)
    place = document.value(*path, "size")
    # At most nine digits: Python converts no number of thousands of them.
    if isinstance(written, str) and written.isascii() and written.isdigit() and len(written) <= 9:
        hint = f"write size = {int(written)}"
        document.warn(place, "size-in-quotes", f'size = "{written}" is read as a number', hint)
        written = int(written)
    # bool is a subclass of int.
    if not isinstance(written, int) or isinstance(written, bool):
        document.report(place, "record-size", f"size is {shown(written)}", f"write size = {size}")
    elif written != size:
        message = f"size is {shown(written)}, but the fields take {size} bytes"
        document.report(place, "record-size", message, f"write size = {size}")
    return size
