"""``kernel/<id>/manifest.json``: how the twin of one kernel was made."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neutrino.abi.levels import Level
from neutrino.abi.records import Field
from neutrino.abi.scalars import ScalarType
from neutrino.errors import Span, TraceError
from neutrino.maps.declaration import Map, MapType
from neutrino.maps.registry import type_named, type_names


@dataclass(frozen=True)
class Spills:
    """Bytes of spill stores and loads, as the assembler counts them."""

    stores: int
    loads: int


@dataclass(frozen=True)
class Assembly:
    """What the assembler reports of a kernel and its twin. capped: the twin with a register cap, None without one.

    registers: per thread. name: of the assembler, as ``ptxas 13.0.88``.
    """

    name: str
    registers_original: int
    registers_twin: int
    registers_capped: int | None
    spills_original: Spills | None
    spills_twin: Spills | None
    spills_capped: Spills | None


@dataclass(frozen=True)
class Retargeted:
    """A twin's PTX that is for another architecture than the code that runs. target: ``sm_120 → sm_90``.

    same_code: whether it assembles to the code that runs. own_text: whether that code states that it was compiled from
    this PTX. Without either it is not proven that both are the same program.
    """

    target: str
    same_code: bool
    own_text: bool


@dataclass(frozen=True)
class Manifest:
    """One probed kernel. assembly: None where there was no assembler, as the embedded device allows.

    retargeted: None where the PTX was the machine code's own.
    sites: probe, tracepoint, line and text of each matched instruction. raw: the whole document.
    """

    name: str
    demangled: str
    twin: str
    arch: str
    maps: tuple[Map, ...]
    assembly: Assembly | None
    retargeted: Retargeted | None
    sites: tuple[dict[str, Any], ...]
    raw: dict[str, Any]


def read_manifest(path: Path) -> Manifest:
    """Read a manifest. Raises TraceError that names the member at fault."""
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: not JSON: {error}") from error
    reader = _Reader(path)
    table = reader.table(document, "the document")
    return Manifest(
        name=reader.text(table, "name"),
        demangled=reader.text(table, "demangled"),
        twin=reader.text(table, "twin"),
        arch=reader.text(table, "arch"),
        maps=tuple(reader.map(entry) for entry in reader.rows(table, "maps")),
        assembly=None if table.get("assembler", "") is None else reader.assembly(table),
        retargeted=reader.retargeted(table),
        sites=tuple(reader.table(site, "a site") for site in reader.rows(table, "sites")),
        raw=table,
    )


class _Reader:
    """Typed access to a JSON document, with the file's name in every error."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _fail(self, name: str, value: Any, expected: str) -> TraceError:
        return TraceError(f"{self.path}: {name} is {value!r:.80}, expected {expected}")

    def table(self, value: Any, name: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._fail(name, value, "an object")
        return value

    def rows(self, table: dict[str, Any], name: str) -> list[Any]:
        value = table.get(name)
        if not isinstance(value, list):
            raise self._fail(name, value, "a list")
        return value

    def text(self, table: dict[str, Any], name: str) -> str:
        value = table.get(name)
        if not isinstance(value, str):
            raise self._fail(name, value, "a text")
        return value

    def number(self, table: dict[str, Any], name: str) -> int:
        value = table.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self._fail(name, value, "a number")
        return value

    def optional_number(self, table: dict[str, Any], name: str) -> int | None:
        return None if table.get(name) is None else self.number(table, name)

    def spills(self, table: dict[str, Any], name: str) -> Spills | None:
        if table.get(name) is None:
            return None
        row = self.table(table[name], f"spills.{name}")
        return Spills(self.number(row, "stores"), self.number(row, "loads"))

    def assembly(self, table: dict[str, Any]) -> Assembly:
        registers = self.table(table.get("registers"), "registers")
        spills = self.table(table.get("spills"), "spills")
        return Assembly(
            name=self.text(table, "assembler"),
            registers_original=self.number(registers, "original"),
            registers_twin=self.number(registers, "twin"),
            registers_capped=self.optional_number(registers, "capped"),
            spills_original=self.spills(spills, "original"),
            spills_twin=self.spills(spills, "twin"),
            spills_capped=self.spills(spills, "capped"),
        )

    def retargeted(self, table: dict[str, Any]) -> Retargeted | None:
        if table.get("retargeted") is None:
            return None
        row = self.table(table["retargeted"], "retargeted")
        return Retargeted(self.text(row, "target"), row.get("same_code") is True, row.get("own_text") is True)

    def map_type(self, name: str, entry: dict[str, Any], fields: list[Field]) -> MapType:
        word = self.text(entry, "kind")
        kind = type_named(word)
        if kind is None:
            known = ", ".join(type_names())
            raise TraceError(
                f"{self.path}: map {name!r} is of type {word!r:.80}, which this version does not know ({known}); "
                "read it with the Neutrino that wrote it"
            )
        declared = kind.declared(_Options(self, name, entry), fields)
        if declared is None:
            raise self._fail(f"map {name!r}", entry, f"the keys of a {word}")
        return declared

    def map(self, value: Any) -> Map:
        entry = self.table(value, "a map")
        size = self.number(entry, "size")
        fields = []
        for row in self.rows(entry, "fields"):
            field = self.table(row, "a field")
            try:
                scalar = ScalarType(str(field.get("type")))
            except ValueError as error:
                raise self._fail("a field's type", field.get("type"), "a type such as 'u64'") from error
            offset = self.number(field, "offset")
            if offset + scalar.size > size:
                raise self._fail("a field's offset", offset, f"room in a record of {size} bytes")
            fields.append(Field(self.text(field, "name"), scalar, offset))
        if len({field.name for field in fields}) != len(fields):
            raise self._fail("fields", [field.name for field in fields], "different names")
        try:
            level = Level(entry.get("level"))
        except ValueError as error:
            raise self._fail("a map's level", entry.get("level"), "thread, warp or block") from error
        name = self.text(entry, "name")
        kind = self.map_type(name, entry, fields)
        return Map(name, kind, level, size, self.number(entry, "cap"), tuple(fields), Span(0, 0))


class _Options:
    """What a type of maps reads its own keys from."""

    def __init__(self, reader: _Reader, name: str, entry: dict[str, Any]) -> None:
        self._reader = reader
        self._name = name
        self._entry = entry

    def get(self, key: str) -> Any:
        """As of ``MapTable``."""
        return self._entry.get(key)

    def missing(self, key: str, hint: str) -> None:
        """As of ``MapTable``."""
        raise TraceError(f"{self._reader.path}: map {self._name!r} has no {key}")

    def fault(self, key: str, message: str, hint: str) -> None:
        """As of ``MapTable``."""
        raise TraceError(f"{self._reader.path}: map {self._name!r}: {message}")
