"""Probe files in TOML, of both dialects, taken apart into ``WrittenProbes``.

This package knows the file, its keys, maps and registers; what the assembly in a snippet means is verified in
``neutrino.ptx.snippets.verifier``. All faults of a file are reported at once, each at its line and column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from neutrino.abi.levels import Level
from neutrino.abi.probe_block import MAX_MAPS
from neutrino.errors import Diagnostic, NeutrinoError, ProbeError
from neutrino.maps.declaration import Map
from neutrino.probing import older_dialect
from neutrino.probing.document import MAX_SIZE, Document, KeyPath, shown, shown_key
from neutrino.probing.ir.operands import Register
from neutrino.probing.ir.types import Type
from neutrino.probing.maps import MAP_COUNT, MAP_KEYS, read_level, read_map
from neutrino.probing.model import Lanes, Pattern, Subject, Tracepoint
from neutrino.probing.reading import read_text_file
from neutrino.probing.registers import Registers
from neutrino.probing.snippets import Side, SnippetReader, read_side
from neutrino.probing.syntax import REGISTER_TYPES
from neutrino.probing.tracepoints import parse_tracepoint
from neutrino.probing.written import WrittenProbe, WrittenProbes, WrittenSnippet

PLATFORMS = ("cuda", "hip")
"""Whose assembly snippets may be in."""

TOP_KEYS = ("platform", "map", "probe", "analyze_hook", "callback", "CALLBACK")
"""What stands at the top of a file; any other table there is a probe of the older dialect."""
_PROBE_KEYS = ("position", "pos", "level", "lanes", "before", "after", "register")
_OLDER_KEYS = ("position", "pos", "datamodel", "level", "lanes", "before", "after", "register")
_REGISTER_FILES = ("sgpr", "vgpr")
_LONGEST_NAME = 200


def read_probe_file(path: str | Path) -> WrittenProbes:
    """The probes of one TOML file, not verified. Raises ProbeError with all its faults, NeutrinoError if unreadable."""
    return read_probe_text(str(path), probe_file_text(path, "TOML"))


def probe_file_text(path: str | Path, language: str) -> str:
    """The text of a probe file. language: which it is in. Raises as ``read_probe_file``."""
    try:
        # At most four bytes a character: what is cut off makes it too large all the same.
        data = read_text_file(path, 4 * MAX_SIZE + 4)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise NeutrinoError(f"{path}: cannot read the probe file: {reason}") from error
    if len(data) > 4 * MAX_SIZE:
        message = f"the file has more than {MAX_SIZE} characters"
        raise ProbeError([Diagnostic(str(path), 1, 1, "", message, "is it a probe file?", code="too-large")])
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        column = error.start - (before.rfind(b"\n") + 1) + 1
        message = f"byte {data[error.start]:#04x} is not UTF-8, as {language} must be"
        line = before.count(b"\n") + 1
        hint = "save it as UTF-8"
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):
            hint += ", not as UTF-16"
        raise ProbeError([Diagnostic(str(path), line, column, "", message, hint, code="not-utf-8")]) from error


def read_probe_text(file: str, text: str) -> WrittenProbes:
    """The probes of a text, not verified. file: its path, which paths in it are relative to. Raises ProbeError."""
    return read_document(Document(file, text))


def read_document(document: Document) -> WrittenProbes:
    """The probes of a document. Raises ProbeError."""
    return _Reader(document).probe_set()


class _Entry(NamedTuple):
    """The table of a probe. older: at the top level, in the older dialect."""

    name: str
    path: KeyPath
    table: Mapping[str, Any]
    older: bool


class _Reader:
    """One document on its way to a WrittenProbes."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._platform = self._read_platform()
        self._registers = Registers(document)
        self._maps: dict[str, Map | None] = {}
        self._newer: set[str] = set()

    def probe_set(self) -> WrittenProbes:
        document = self._document
        hooks = self._scripts("analyze_hook")
        callbacks = (*self._scripts("callback"), *self._scripts("CALLBACK"))
        entries = sorted(self._entries(), key=lambda entry: document.key(*entry.path))
        levels = [level.value for level in Level]
        levelless = set()
        for name, table in self._tables("map"):
            self._maps[name] = read_map(document, name, table)
            if table.get("level") not in levels:
                levelless.add(name)
        # All declarations and maps first: a snippet may use those of a later probe of the file.
        sides = [self._sides(entry) for entry in entries]
        records = [self._record(entry, side) for entry, side in zip(entries, sides, strict=True)]
        if not self._maps and not document.errors:
            hint = "declare [map.NAME], or give a probe of the older dialect a datamodel"
            document.report(0, "no-map", "no [map.NAME] in the file", hint)
        for entry in [entry for entry in self._maps.values() if entry is not None][MAX_MAPS : MAX_MAPS + 1]:
            document.report_span(entry.span, "map-count", *MAP_COUNT)
        if not entries:
            place = document.key("probe") if "probe" in document.tables else 0
            document.report(place, "no-probe", "no [probe.NAME] in the file", "write [probe.NAME] with a position")
        reader = SnippetReader(document, self._registers, self._maps, self._platform, levelless)
        probes = [
            self._probe(entry, found, level, record, reader)
            for entry, found, (level, record) in zip(entries, sides, records, strict=True)
        ]
        for name, used in self._maps.items():
            # A SAVE that could not be read may have meant it.
            if used and name not in reader.saved and not document.errors:
                place = document.key("map", name)
                document.warn(place, "unused-map", f"nothing is saved to map '{name}'")
        diagnostics = document.sorted_diagnostics()
        maps = sorted((entry for entry in self._maps.values() if entry), key=_line)
        read = WrittenProbes(
            document.file,
            document.text,
            tuple(maps),
            self._noted_registers(probes) if self._platform == "hip" else self._registers.all,
            tuple(probes),
            tuple(diagnostics),
            platform=self._platform,
            analyze_hooks=hooks,
            callbacks=callbacks,
            is_older=any(entry.older for entry in entries),
        )
        if document.errors:
            raise ProbeError(diagnostics, (read,))
        return read

    # The top of the file

    def _read_platform(self) -> str:
        platform = self._document.tables.get("platform", "cuda")
        if platform in PLATFORMS:
            return str(platform)
        hint = 'AMD\'s is called "hip"' if platform in ("rocm", "amd") else 'write platform = "cuda"'
        message = f"platform {shown(platform)} is not known"
        self._document.report(self._document.value("platform"), "platform", message, hint)
        return "cuda"

    def _scripts(self, key: str) -> tuple[str, ...]:
        """Absolute paths of the scripts that a key names; one that is not there is left out, with a warning."""
        value = self._document.tables.get(key, [])
        scripts: list[str] = []
        if isinstance(value, list) and len(value) > _MOST_SCRIPTS:
            message = f"{key} names {len(value)} scripts, more than {_MOST_SCRIPTS}"
            self._document.report(self._document.value(key), "script", message)
            return ()
        for index, script in enumerate(value if isinstance(value, list) else [value]):
            path = (key, str(index)) if isinstance(value, list) else (key,)
            place = self._document.value(*path)
            if not isinstance(script, str) or not script or "\0" in script:
                message = f"{key} is {shown(script)}"
                self._document.report(place, "script", message, f'write {key} = "script.py"')
                continue
            found = Path(self._document.file).absolute().parent / script
            if _is_file(found):
                scripts.append(str(found))
            else:
                is_there = "is no file" if _exists(found) else "is not there"
                message = f"{key} {shown(script)} {is_there}, and is not run"
                self._document.warn(place, "script-missing", message, "paths are relative to the probe file")
        return tuple(scripts)

    def _tables(self, key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The tables ``[key.NAME]`` of the file."""
        tables = self._document.tables.get(key, {})
        if not isinstance(tables, dict):
            self._document.report(self._document.key(key), "not-a-table", f"'{key}' is no table", f"write [{key}.NAME]")
            return
        for name, value in tables.items():
            if isinstance(value, dict):
                yield name, value
            elif name in older_dialect.KEYS or (key == "map" and name in MAP_KEYS):
                hint = f"write [{key}.NAME]"
                self._document.report(self._document.key(key, name), "not-a-table", f"[{key}] has no name", hint)
                return
            else:
                message = f"'{key}.{shown_key(name)[1:-1]}' is not a table"
                hint = f"write [{key}.{shown_key(name)[1:-1]}]"
                self._document.report(self._document.key(key, name), "not-a-table", message, hint)

    def _entries(self) -> Iterator[_Entry]:
        for name, table in self._tables("probe"):
            self._newer.add(name)
            yield _Entry(name, ("probe", name), table, older=False)
        for name, value in self._document.tables.items():
            if name in TOP_KEYS:
                continue
            if isinstance(value, dict) and older_dialect.KEYS & set(value):
                yield _Entry(name, (name,), value, older=True)
            else:
                self._document.unknown_key((name,), TOP_KEYS)

    # Probes

    def _sides(self, entry: _Entry) -> dict[str, Side]:
        """The snippets that are texts."""
        found = {}
        for key in ("before", "after"):
            path = (*entry.path, key)
            text = entry.table.get(key)
            if isinstance(text, str):
                found[key] = read_side(self._document, self._registers, path, text, self._platform)
            elif text is not None:
                message = f"{key} is {shown(text)}"
                self._document.report(self._document.value(*path), "snippet", message, "write the snippet as a text")
        return found

    def _record(self, entry: _Entry, sides: Mapping[str, Side]) -> tuple[Level | None, Map | None]:
        """The level of a probe, and the map that its typed saves make."""
        typed = [(side, save) for side in sides.values() for save in side.typed_saves]
        if not entry.older or "datamodel" not in entry.table:
            hint = "declare a [map.NAME] and write 'SAVE [ NAME ] { … };'"
            message = "a SAVE of the older dialect, without a map"
            if entry.older:
                hint, message = 'write datamodel = "thread:8", with what one record takes', "a SAVE without a datamodel"
            for side, save in typed:
                self._document.report(self._document.within(side.path, save.start), "save-without-map", message, hint)
            if entry.older and "level" not in entry.table:
                return Level.THREAD, None
            return read_level(self._document, entry.path, entry.table), None
        if "level" in entry.table:
            message = "both level and datamodel are given"
            self._document.report(self._document.key(*entry.path, "level"), "level", message, "remove level")
        datamodel = older_dialect.read_datamodel(self._document, entry.path, entry.table)
        if datamodel is None:
            return None, None
        if not typed:
            place = self._document.value(*entry.path, "datamodel")
            message = f"[{shown_key(entry.name)[1:-1]}] has a datamodel and saves nothing"
            self._document.warn(place, "unused-map", message, "SAVE.u64 { %a }; saves")
            return datamodel.level, None
        if entry.name in self._maps:
            message = f"[{entry.name}] makes a map '{entry.name}', which [map.{entry.name}] is already"
            self._document.report(self._document.key(*entry.path), "map-exists", message, "rename one of the two")
            return datamodel.level, None
        record = older_dialect.make_map(self._document, entry.name, datamodel, list(sides.values()))
        self._maps[entry.name] = record
        return datamodel.level, record

    def _probe(
        self,
        entry: _Entry,
        sides: Mapping[str, Side],
        level: Level | None,
        record: Map | None,
        reader: SnippetReader,
    ) -> WrittenProbe:
        document, path, table = self._document, entry.path, entry.table
        known = _OLDER_KEYS if entry.older else _PROBE_KEYS
        for key in table:
            if key not in known:
                self._unknown_key((*path, key), known)
        if not entry.name.isprintable() or not entry.name.strip() or len(entry.name) > _LONGEST_NAME:
            message = f"probe name {shown_key(entry.name)}"
            document.report(document.key(*path), "probe-name", message, "letters, digits, underscores")
        elif entry.older and entry.name in self._newer:
            message = f"[{entry.name}] and [probe.{entry.name}] have one name"
            document.report(document.key(*path), "probe-name", message, "rename one of the two")
        tracepoint = self._tracepoint(path, table)
        words = [lanes.value for lanes in Lanes]
        lanes = document.choice((*path, "lanes"), table.get("lanes", Lanes.EXECUTING.value), words, "lanes", "lanes")
        note = self._register_note(path, table)
        snippets: dict[str, WrittenSnippet | None] = {}
        for key, side in sides.items():
            snippets[key] = reader.snippet(side, level, record)
        if "before" not in table and "after" not in table:
            document.missing(path, "before or after", 'before = """…"""')
        elif not any(side.parts or side.unread for side in sides.values()) and all(
            isinstance(table.get(key, ""), str) for key in ("before", "after")
        ):
            message = f"[{shown_key('.'.join(path))[1:-1]}] holds no instruction"
            document.report(document.key(*path), "empty-probe", message, "fill before or after")
        span = document.span(document.key(*path))
        before, after = snippets.get("before"), snippets.get("after")
        # For an invalid probe, which is used only to verify its snippets, the least restrictive value.
        return WrittenProbe(
            entry.name,
            tracepoint or _ANYWHERE,
            level or Level.THREAD,
            before,
            after,
            span,
            Lanes(lanes or Lanes.EXECUTING.value),
            note,
        )

    def _unknown_key(self, path: KeyPath, known: Sequence[str]) -> None:
        if path[-1] != "datamodel":
            self._document.unknown_key(path, known)
            return
        hint = f"write [{shown_key(path[-2])[1:-1]}] for the older dialect, or a [map.NAME] for what it saves"
        self._document.report(self._document.key(*path), "unknown-key", "a [probe.NAME] has no datamodel", hint)

    def _tracepoint(self, path: KeyPath, table: Mapping[str, Any]) -> Tracepoint | None:
        document = self._document
        if "pos" in table and "position" in table:
            document.report(document.key(*path, "pos"), "position", "both position and pos are given", "remove pos")
        key = "position" if "position" in table else "pos"
        if key not in table:
            document.missing(path, "position", 'position = "kernel" or an opcode such as "ld.global"')
            return None
        if key == "pos":
            document.warn(document.key(*path, key), "pos", "'pos' is read as 'position'", "write position")
        text = table[key]
        if not isinstance(text, str):
            hint = 'write a text such as "ld.global"'
            if isinstance(text, list) and text and all(isinstance(part, str) for part in text):
                hint = f"write {shown(' | '.join(text))}"
            document.report(document.value(*path, key), "position", f"position is {shown(text)}", hint)
            return None
        tracepoint, faults = parse_tracepoint(text)
        for fault in faults:
            document.fault((*path, key), fault)
        return tracepoint

    def _register_note(self, path: KeyPath, table: Mapping[str, Any]) -> tuple[tuple[str, int | str], ...]:
        """``register = { u32 = 2 }``, a compiler's count of registers: of PTX the declarations decide, not this."""
        document = self._document
        register = table.get("register", {})
        path = (*path, "register")
        if not isinstance(register, dict):
            document.report(
                document.value(*path), "register-note", f"register is {shown(register)}", "write { u64 = 2 }"
            )
            return ()
        for name, count in register.items():
            if name == "type" and self._platform == "hip":
                document.choice((*path, name), count, _REGISTER_FILES, "type of registers", "register-note")
            elif name not in REGISTER_TYPES:
                document.unknown_key((*path, name), REGISTER_TYPES)
            elif not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= _MOST_REGISTERS:
                message = f"count of {name} registers is {shown(count)}"
                document.report(document.value(*path, name), "register-note", message)
        return tuple(register.items()) if self._platform == "hip" else ()

    def _noted_registers(self, probes: Sequence[WrittenProbe]) -> tuple[Register, ...]:
        """Of AMD's assembly the note declares them: ``P0`` … of 32 bits, ``PD0`` … of 64 bits."""
        found: dict[str, Register] = {}
        for probe in probes:
            for kind, count in probe.registers:
                if isinstance(count, int) and kind in REGISTER_TYPES:
                    stem = "PD" if kind.endswith("64") else "P"
                    for index in range(count):
                        found.setdefault(f"{stem}{index}", Register(f"{stem}{index}", Type(kind), 0, probe.span))
        return tuple(found.values())


_ANYWHERE = Tracepoint("", (Pattern(Subject.ANY),))
_MOST_SCRIPTS = 64
_MOST_REGISTERS = 512
"""Registers of a thread that AMD's or NVIDIA's compilers count."""


def _line(entry: Map) -> tuple[int, int]:
    return entry.span.line, entry.span.column


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        # A name that is too long for the file system.
        return False
