"""``kernel/<id>/manifest.json``: how the twin (instrumented copy) of one kernel was made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neutrino.abi.levels import LEVELS, Level, Per
from neutrino.abi.records import Field
from neutrino.abi.scalars import ScalarType
from neutrino.errors import Span, TraceError
from neutrino.late_dataclass import dataclass
from neutrino.maps.declaration import Map, MapType
from neutrino.maps.registry import type_named, type_names
from neutrino.tracing.files import parse_json, read_file


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
class ProbeLeftOut:
    """A probe of the run that is not in a kernel's twin. detail: why. remedy: what helps, "" if that is not known.

    reason: its word. maps: those that it saves to, of which the twin records nothing.
    """

    probe: str
    tracepoint: str
    reason: str
    detail: str
    remedy: str
    maps: tuple[str, ...]

    @property
    def shown(self) -> str:
        """The probe as reports name it, and why it is not there."""
        return f"probe '{self.probe}' ({self.tracepoint}) is left out: {self.detail}"


@dataclass(frozen=True)
class Manifest:
    """One probed kernel. assembly: None where there was no assembler, as the embedded device allows.

    maps: as they lie in the kernel's data, also those that its twin has nothing in. retargeted: None where the PTX was
    the machine code's own. sites: probe, tracepoint, line and text of each matched instruction. probes_left_out: those
    that the kernel could not take. max_registers: of ``--max-registers``, None where that did not count. made_of: what
    the twin was made of, "" for text. raw: the whole document.
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
    probes_left_out: tuple[ProbeLeftOut, ...] = ()
    max_registers: int | None = None
    made_of: str = ""

    @property
    def not_probed(self) -> dict[str, ProbeLeftOut]:
        """The maps of probes that were left out, by name: they have no figures of this kernel. With the first such
        probe, which is the cause."""
        causes: dict[str, ProbeLeftOut] = {}
        for probe in self.probes_left_out:
            for name in probe.maps:
                causes.setdefault(name, probe)
        return causes

    @property
    def probed_maps(self) -> tuple[Map, ...]:
        """The maps (what probes save to) that the kernel's twin has figures of: without those of probes that were left
        out.
        """
        return tuple(entry for entry in self.maps if entry.name not in self.not_probed)


def read_manifest(path: Path) -> Manifest:
    """Read a kernel's ``manifest.json``. Raises TraceError that names the invalid member."""
    try:
        document = parse_json(read_file(path, inside=3))
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: not JSON: {error}") from error
    reader = _Reader(path)
    table = reader.table(document, "the document")
    # "assembler" is null where there was none. Without that member the manifest is damaged, which assembly() reports.
    is_assembled = table.get("assembler", "") is not None
    return Manifest(
        name=reader.text(table, "name"),
        demangled=reader.text(table, "demangled"),
        twin=reader.text(table, "twin"),
        arch=reader.text(table, "arch"),
        maps=tuple(reader.map(entry) for entry in reader.rows(table, "maps")),
        assembly=reader.assembly(table) if is_assembled else None,
        retargeted=reader.retargeted(table),
        sites=tuple(reader.table(site, "a site") for site in reader.rows(table, "sites")),
        raw=table,
        probes_left_out=reader.probes_left_out(table),
        max_registers=reader.optional_number(table, "max_registers"),
        made_of=reader.text(table, "made_of") if "made_of" in table else "",
    )


class _Reader:
    """Typed access to a JSON document. Every method raises TraceError, with the file's name, for an invalid value."""

    def __init__(self, path: Path) -> None:
        """Give checked access to a JSON document. path: of the document, for errors."""
        self.path = path

    def _error(self, name: str, value: Any, expected: str) -> TraceError:
        """Return the error for an invalid value. name: the member's. expected: what should be there, in words."""
        return TraceError(f"{self.path}: {name} is {value!r:.80}, expected {expected}")

    def table(self, value: Any, name: str) -> dict[str, Any]:
        """Return a value that must be an object. name: what errors call it."""
        if not isinstance(value, dict):
            raise self._error(name, value, "an object")
        return value

    def rows(self, table: dict[str, Any], name: str) -> list[Any]:
        """Return the member ``name`` of an object, which must be a list."""
        value = table.get(name)
        if not isinstance(value, list):
            raise self._error(name, value, "a list")
        return value

    def text(self, table: dict[str, Any], name: str) -> str:
        """Return the member ``name`` of an object, which must be a string."""
        value = table.get(name)
        if not isinstance(value, str):
            raise self._error(name, value, "a text")
        return value

    def number(self, table: dict[str, Any], name: str) -> int:
        """Return the member ``name`` of an object, which must be an integer from 0 on."""
        value = table.get(name)
        # JSON's true is no number, but bool is a subclass of int.
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self._error(name, value, "a number")
        return value

    def optional_number(self, table: dict[str, Any], name: str) -> int | None:
        """Return the member ``name`` of an object, an integer from 0 on; None if it is missing or null."""
        return None if table.get(name) is None else self.number(table, name)

    def spills(self, table: dict[str, Any], name: str) -> Spills | None:
        """Return the spills of ``original``, ``twin`` or ``capped``, in bytes; None where they are not known."""
        if table.get(name) is None:
            return None
        row = self.table(table[name], f"spills.{name}")
        return Spills(self.number(row, "stores"), self.number(row, "loads"))

    def assembly(self, table: dict[str, Any]) -> Assembly:
        """Return what the assembler reported of a kernel and its twin (copy with probes).

        table: the manifest of an assembled twin.
        """
        registers = self.table(table.get("registers"), "registers")
        # null where nothing is spilled by an assembler: code that is put between a kernel's instructions.
        spills = {} if table.get("spills", "") is None else self.table(table.get("spills"), "spills")
        return Assembly(
            name=self.text(table, "assembler"),
            registers_original=self.number(registers, "original"),
            registers_twin=self.number(registers, "twin"),
            registers_capped=self.optional_number(registers, "capped"),
            spills_original=self.spills(spills, "original"),
            spills_twin=self.spills(spills, "twin"),
            spills_capped=self.spills(spills, "capped"),
        )

    def probes_left_out(self, table: dict[str, Any]) -> tuple[ProbeLeftOut, ...]:
        """Return the probes that are not in the twin (copy with probes), from the manifest's table; none for earlier
        manifests, which do not say so.
        """
        if "probes_left_out" not in table:
            return ()
        rows = [self.table(row, "a probe that is left out") for row in self.rows(table, "probes_left_out")]
        found = []
        for row in rows:
            maps = self.rows(row, "maps")
            if not all(isinstance(name, str) for name in maps):
                raise self._error("maps", maps, "names")
            probe, tracepoint, reason = (self.text(row, name) for name in ("probe", "tracepoint", "reason"))
            detail, remedy = self.text(row, "detail"), self.text(row, "remedy")
            found.append(ProbeLeftOut(probe, tracepoint, reason, detail, remedy, tuple(maps)))
        return tuple(found)

    def retargeted(self, table: dict[str, Any]) -> Retargeted | None:
        """Return how the twin's PTX was retargeted; None if it was made of PTX for the architecture that runs."""
        if table.get("retargeted") is None:
            return None
        row = self.table(table["retargeted"], "retargeted")
        # What is not stated is not proven.
        return Retargeted(self.text(row, "target"), row.get("same_code") is True, row.get("own_text") is True)

    def map_type(self, name: str, entry: dict[str, Any], fields: list[Field]) -> MapType:
        """Return the type of a map (array, sum, histogram …) with its options, such as a histogram's buckets.

        name, fields: of the map (what probes save to). entry: its object, whose other members the type reads itself.
        """
        type_name = self.text(entry, "kind")
        map_type = type_named(type_name)
        if map_type is None:
            known = ", ".join(type_names())
            raise TraceError(
                f"{self.path}: map {name!r} is of type {type_name!r:.80}, which this version does not know ({known}); "
                "read it with the Neutrino that wrote it"
            )
        declared = map_type.declared(_MapOptions(self, name, entry), fields)
        made = declared.as_made(entry) if declared is not None else None
        if made is None:
            raise self._error(f"map {name!r}", entry, f"the keys of a {type_name}")
        return made

    def map(self, value: Any) -> Map:
        """Return a map (what probes save into) from its object in the manifest.

        What a reader of the data relies on is checked: the fields and the type's cells lie within a record.
        """
        entry = self.table(value, "a map")
        size = self.number(entry, "size")
        fields = [self.field(row, size) for row in self.rows(entry, "fields")]
        # Map types rely on a field.
        if not fields:
            raise self._error("fields", fields, "at least one field")
        if len({field.name for field in fields}) != len(fields):
            raise self._error("fields", [field.name for field in fields], "different names")
        if entry.get("level") not in [level.value for level in LEVELS]:
            raise self._error("a map's level", entry.get("level"), "thread, warp or block")
        level = Level(entry["level"])
        try:
            per = Per(entry.get("per", Per.LAUNCH.value))
        except ValueError as error:
            raise self._error("a map's per", entry.get("per"), "launch, block, warp, thread, sm or run") from error
        name = self.text(entry, "name")
        map_type = self.map_type(name, entry, fields)
        if per is not Per.LAUNCH and not map_type.takes_per:
            raise self._error("a map's per", per.value, f"none of a {map_type.name}")
        # A histogram has a cell for each bucket, of which damaged options may give too many.
        too_small = any(cell.offset + cell.type.size > size for cell in map_type.cells(fields))
        if too_small or 8 * map_type.words(fields) > size:
            raise self._error(f"the size of map {name!r}", size, "room for its cells")
        # The place in a probe file is not known here.
        return Map(name, map_type, level, size, self.number(entry, "cap"), tuple(fields), Span(0, 0), per)

    def field(self, value: Any, record_size: int) -> Field:
        """Return a field of a map (what probes save to) from its object.

        It must lie within a record of ``record_size`` bytes.
        """
        row = self.table(value, "a field")
        try:
            # What is no string becomes one that names no type.
            scalar = ScalarType(str(row.get("type")))
        except ValueError as error:
            raise self._error("a field's type", row.get("type"), "a type such as 'u64'") from error
        offset = self.number(row, "offset")
        if offset + scalar.size > record_size:
            raise self._error("a field's offset", offset, f"room in a record of {record_size} bytes")
        return Field(self.text(row, "name"), scalar, offset)


class _MapOptions:
    """A map's object, as the ``MapTable`` from which a map type reads its own keys. Faults raise TraceError.

    Their hints are for authors of probe files, and left out.
    """

    def __init__(self, reader: _Reader, name: str, entry: dict[str, Any]) -> None:
        """Give access to a map's options in a manifest. reader: for errors. name: the map's. entry: its JSON object."""
        self._reader = reader
        self._name = name
        self._entry = entry

    def get(self, key: str) -> Any:
        """Return the value of a key of the map's description, None without it."""
        return self._entry.get(key)

    def missing(self, key: str, hint: str) -> None:
        """Raise TraceError: a key is missing in the description of a map."""
        raise TraceError(f"{self._reader.path}: map {self._name!r} has no {key}")

    def fault(self, key: str, message: str, hint: str) -> None:
        """Raise TraceError: a key of the map (what probes save to) has an invalid value, as the message says."""
        raise TraceError(f"{self._reader.path}: map {self._name!r}: {message}")
