"""Reads probe files in TOML, of both dialects, into ``WrittenProbes``.

This package reads the keys, maps and registers of the file; what the assembly in a snippet means is verified by its
target (``target.py``). All faults of a file are reported at once, each at its line and column.
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
from neutrino.probing.document import MAX_SIZE, Document, KeyPath, shown, shown_key, shown_name
from neutrino.probing.maps import MAP_COUNT, MAP_KEYS, read_level, read_map
from neutrino.probing.model import DEFAULT_PLATFORM, Lanes, Pattern, Subject, Tracepoint
from neutrino.probing.named_files import read_text_file
from neutrino.probing.snippets import Side, SnippetReader, read_side
from neutrino.probing.syntax import TypedSave
from neutrino.probing.target import Language, Languages
from neutrino.probing.tracepoints import parse_tracepoint
from neutrino.probing.written import WrittenProbe, WrittenProbes
from neutrino.resources import shipped_script

TOP_KEYS = ("platform", "map", "probe", "analyze_hook", "callback", "CALLBACK")
"""The keys at the top level of a file; any other table there is a probe of the older dialect."""
_PROBE_KEYS = ("position", "pos", "level", "lanes", "before", "after", "register")
_OLDER_KEYS = ("position", "pos", "datamodel", "level", "lanes", "before", "after", "register")
_MAX_NAME_LENGTH = 200
_MAX_SCRIPTS = 64
_MAX_REGISTERS = 512
"""Registers of a thread that compilers count."""
# Stands in for an invalid position.
_ANYWHERE = Tracepoint("", (Pattern(Subject.ANY),))


def read_probe_file(path: str | Path, languages: Languages) -> WrittenProbes:
    """Return the probes of one TOML file, not yet verified. languages: by platform.

    Raises ProbeError with all its faults, and NeutrinoError if it cannot be read.
    """
    return read_probe_text(str(path), probe_file_text(path, "TOML"), languages)


def probe_file_text(path: str | Path, language: str) -> str:
    """Return the text of a probe file. language: TOML or Python, for messages.

    Raises NeutrinoError if it cannot be read, ProbeError if it is too large or not UTF-8.
    """
    try:
        # A character of UTF-8 has at most four bytes, so a file cut off here has more than MAX_SIZE characters.
        data = read_text_file(path, 4 * MAX_SIZE + 4)
    except (OSError, ValueError) as error:
        # Without the number and path that an OSError adds.
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise NeutrinoError(f"{path}: cannot read the probe file: {reason}") from None
    if len(data) > 4 * MAX_SIZE:
        message = f"the file has more than {MAX_SIZE} characters"
        raise ProbeError([Diagnostic(str(path), 1, 1, "", message, "is it a probe file?", code="too-large")])
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line_start = before.rfind(b"\n") + 1
        line, column = before.count(b"\n") + 1, error.start - line_start + 1  # in bytes, as characters are not known
        message = f"byte {data[error.start]:#04x} is not UTF-8, as {language} must be"
        hint = "save it as UTF-8"
        has_utf16_byte_order_mark = data.startswith((b"\xff\xfe", b"\xfe\xff"))
        if has_utf16_byte_order_mark:
            hint += ", not as UTF-16"
        raise ProbeError([Diagnostic(str(path), line, column, "", message, hint, code="not-utf-8")]) from error


def read_probe_text(file: str, text: str, languages: Languages) -> WrittenProbes:
    """Return the probes of a TOML text, not yet verified. Raises ProbeError with all its faults.

    file: its path, for messages; paths in the text are relative to its folder. languages: by platform.
    """
    return read_document(Document(file, text), languages)


def read_document(document: Document, languages: Languages) -> WrittenProbes:
    """Return the probes of a parsed TOML document, not yet verified. Raises ProbeError with all its faults."""
    return _Reader(document, languages).read()


def find_script(file: str, script: str) -> tuple[str, str]:
    """Return the absolute path of a script that a probe file names, and what is wrong with it, ``""`` if nothing is.

    file: the path of the probe file, to whose folder the script's path is relative. A name without a folder that is not
    there may be one of a shipped script, such as ``dmat.py``.
    """
    path = Path(file).absolute().parent / script
    if _is_file(path):
        return str(path), ""
    if not _exists(path) and (shipped := shipped_script(script)) is not None:
        return str(shipped), ""
    return str(path), "is no file" if _exists(path) else "is not there"


class _Entry(NamedTuple):
    """The table of a probe. path: its keys in the document. is_older: in the older dialect, at the top level."""

    name: str
    path: KeyPath
    table: Mapping[str, Any]
    is_older: bool


class _Reader:
    """Reads one document; faults are reported to it."""

    def __init__(self, document: Document, languages: Languages) -> None:
        """Prepare to read the probes of one TOML file. document: the file. languages: assembly languages by platform.
        """
        self._document = document
        self._language = self._read_platform(languages)
        self._snippets = self._language.snippets(document)
        # By name, of both dialects. None: the table has faults that leave no map.
        self._maps: dict[str, Map | None] = {}
        # Names of the tables [probe.NAME].
        self._newer_names: set[str] = set()

    def read(self) -> WrittenProbes:
        """Return the document's probes. Raises ProbeError with all diagnostics if any of them is an error."""
        document = self._document
        loose = document.tables.get("probe")
        if isinstance(loose, dict) and loose and not any(isinstance(value, dict) for value in loose.values()):
            hint = 'write [probe.NAME], as in [probe.loads], and position, level and before or after below it'
            name = next((name for name in loose if name in older_dialect.KEYS), next(iter(loose)))
            document.report(document.key("probe", name), "not-a-table", "[probe] has no name", hint)
            raise ProbeError(document.sorted_diagnostics()[:1])
        hooks = self._scripts("analyze_hook")
        callbacks = (*self._scripts("callback"), *self._scripts("CALLBACK"))
        # In file order: at a site, probes run in the order of the file.
        entries = sorted(self._entries(), key=lambda entry: document.key(*entry.path))

        # All maps and register declarations (_sides) before any snippet is read (_probe), since a snippet may use those
        # of a later probe of the file.
        levels = [level.value for level in Level]
        levelless = set()
        for name, table in self._tables("map"):
            self._maps[name] = read_map(document, name, table)
            if table.get("level") not in levels:
                levelless.add(name)
        sides = [self._sides(entry) for entry in entries]
        levels_and_maps = [self._level_and_map(entry, side) for entry, side in zip(entries, sides, strict=True)]
        maps = [declared for declared in self._maps.values() if declared is not None]

        # After other errors, a map may be missing only because its table could not be read.
        if not self._maps and not document.errors:
            hint = "declare [map.NAME], or give a probe of the older dialect a datamodel"
            document.report(0, "no-map", "no [map.NAME] in the file", hint)
        if len(maps) > MAX_MAPS:
            document.report_span(maps[MAX_MAPS].span, "map-count", *MAP_COUNT)
        if not entries:
            place = document.key("probe") if "probe" in document.tables else 0
            document.report(place, "no-probe", "no [probe.NAME] in the file", "write [probe.NAME] with a position")

        reader = SnippetReader(document, self._snippets, self._maps, levelless)
        probes = [
            self._probe(entry, probe_sides, level, record_map, reader)
            for entry, probe_sides, (level, record_map) in zip(entries, sides, levels_and_maps, strict=True)
        ]
        for name, declared in self._maps.items():
            # With errors there is no warning: a SAVE that could not be read may be one to this map.
            if declared and name not in reader.saved and not document.errors:
                place = document.key("map", name)
                document.warn(place, "unused-map", f"nothing is saved to map '{name}'")

        diagnostics = document.sorted_diagnostics()
        written = WrittenProbes(
            document.file,
            document.text,
            tuple(sorted(maps, key=_position)),
            self._snippets.registers(probes),
            tuple(probes),
            tuple(diagnostics),
            platform=self._language.platform,
            analyze_hooks=hooks,
            callbacks=callbacks,
            is_older=any(entry.is_older for entry in entries),
        )
        if document.errors:
            # With what could be read, whose snippets are verified all the same.
            raise ProbeError(diagnostics, (written,))
        return written

    # The top of the file

    def _read_platform(self, languages: Languages) -> Language:
        """Return the language of ``platform``; the default one without it, and after reporting an unknown one."""
        platform = self._document.tables.get("platform", DEFAULT_PLATFORM)
        if isinstance(platform, str) and platform in languages:
            return languages[platform]
        meant = next((language for language in languages.values() if platform in language.other_platforms), None)
        hint = f'{meant.vendor}\'s is called "{meant.platform}"' if meant else f'write platform = "{DEFAULT_PLATFORM}"'
        message = f"platform {shown(platform)} is not known"
        self._document.report(self._document.value("platform"), "platform", message, hint)
        return languages[DEFAULT_PLATFORM]

    def _scripts(self, key: str) -> tuple[str, ...]:
        """Return the absolute paths of the scripts that a key names, one or an array of them.

        A script that does not exist is left out, with a warning.
        """
        value = self._document.tables.get(key, [])
        is_array = isinstance(value, list)
        scripts: list[str] = []
        if is_array and len(value) > _MAX_SCRIPTS:
            message = f"{key} names {len(value)} scripts, more than {_MAX_SCRIPTS}"
            self._document.report(self._document.value(key), "script", message)
            return ()
        for index, script in enumerate(value if is_array else [value]):
            # The place of an element of an array is under its index.
            key_path = (key, str(index)) if is_array else (key,)
            place = self._document.value(*key_path)
            # No file system has a path with a NUL.
            if not isinstance(script, str) or not script or "\0" in script:
                message = f"{key} is {shown(script)}"
                self._document.report(place, "script", message, f'write {key} = "script.py"')
                continue
            path, problem = find_script(self._document.file, script)
            if not problem:
                scripts.append(path)
            else:
                message = f"{key} {shown(script)} {problem}, and is not run"
                self._document.warn(place, "script-missing", message, "paths are relative to the probe file")
        return tuple(scripts)

    def _tables(self, key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield name and content of the tables ``[key.NAME]`` of the file; report what else is under the key."""
        tables = self._document.tables.get(key, {})
        if not isinstance(tables, dict):
            self._document.report(self._document.key(key), "not-a-table", f"'{key}' is no table", f"write [{key}.NAME]")
            return
        for name, value in tables.items():
            if isinstance(value, dict):
                yield name, value
            elif name in older_dialect.KEYS or (key == "map" and name in MAP_KEYS):
                # The keys of a probe or a map directly under [probe] or [map]: the other keys are not reported too.
                hint = f"write [{key}.NAME]"
                self._document.report(self._document.key(key, name), "not-a-table", f"[{key}] has no name", hint)
                return
            else:
                message = f"'{key}.{shown_name(name)}' is not a table"
                hint = f"write [{key}.{shown_name(name)}]"
                self._document.report(self._document.key(key, name), "not-a-table", message, hint)

    def _entries(self) -> Iterator[_Entry]:
        """Yield the tables of all probes of the file, those of the newer dialect first; report unknown keys at the top
        level."""
        for name, table in self._tables("probe"):
            self._newer_names.add(name)
            yield _Entry(name, ("probe", name), table, is_older=False)
        for name, value in self._document.tables.items():
            if name in TOP_KEYS:
                continue
            # A table with none of the keys of a probe is more likely a misspelt [map] or [probe].
            if isinstance(value, dict) and older_dialect.KEYS & set(value):
                yield _Entry(name, (name,), value, is_older=True)
            else:
                self._document.unknown_key((name,), TOP_KEYS)

    # Probes

    def _sides(self, entry: _Entry) -> dict[str, Side]:
        """Parse the snippets of a probe into statements, by key (``before``, ``after``)."""
        sides = {}
        for key in ("before", "after"):
            path = (*entry.path, key)
            text = entry.table.get(key)
            if isinstance(text, str):
                sides[key] = read_side(self._document, self._language, self._snippets, path, text)
            elif text is not None:
                message = f"{key} is {shown(text)}"
                self._document.report(self._document.value(*path), "snippet", message, "write the snippet as a text")
        return sides

    def _level_and_map(self, entry: _Entry, sides: Mapping[str, Side]) -> tuple[Level | None, Map | None]:
        """Return the level of a probe, and the map to which its ``SAVE.type`` statements save one record.

        sides: from ``_sides``. The level is None if it is invalid. The map exists only in the older dialect, if the
        probe has a ``datamodel`` and saves; it is added to the maps of the file. A probe with neither ``datamodel`` nor
        ``level``, in the older dialect, runs per thread.
        """
        typed_saves = [(side, save) for side in sides.values() for save in side.typed_saves]
        if not entry.is_older or "datamodel" not in entry.table:
            self._report_saves_without_map(typed_saves, entry.is_older)
            if entry.is_older and "level" not in entry.table:
                return Level.THREAD, None
            return read_level(self._document, entry.path, entry.table), None
        # The datamodel begins with the level.
        if "level" in entry.table:
            message = "both level and datamodel are given"
            self._document.report(self._document.key(*entry.path, "level"), "level", message, "remove level")
        datamodel = older_dialect.read_datamodel(self._document, entry.path, entry.table)
        if datamodel is None:
            return None, None
        # With a datamodel, the saves of an older probe declare a map of the probe's name.
        if not typed_saves:
            place = self._document.value(*entry.path, "datamodel")
            message = f"[{shown_name(entry.name)}] has a datamodel and saves nothing"
            self._document.warn(place, "unused-map", message, f"SAVE.u64 {self._language.words.saved[0]} saves")
            return datamodel.level, None
        if entry.name in self._maps:
            message = f"[{entry.name}] makes a map '{entry.name}', which [map.{entry.name}] is already"
            self._document.report(self._document.key(*entry.path), "map-exists", message, "rename one of the two")
            return datamodel.level, None
        record_map = older_dialect.make_map(
            self._document, entry.name, datamodel, list(sides.values()), self._language.words.saved[1]
        )
        self._maps[entry.name] = record_map
        return datamodel.level, record_map

    def _report_saves_without_map(self, typed_saves: Sequence[tuple[Side, TypedSave]], is_older: bool) -> None:
        """Report each ``SAVE.type`` of a probe without a ``datamodel``, which would declare the map that it saves to.

        typed_saves: each with its side, for its place. is_older: whether the probe is in the older dialect, and so may
        have a ``datamodel``.
        """
        hint = "declare a [map.NAME] and write 'SAVE [ NAME ] { … };'"
        message = "a SAVE of the older dialect, without a map"
        if is_older:
            hint, message = 'write datamodel = "thread:8", with what one record takes', "a SAVE without a datamodel"
        for side, save in typed_saves:
            self._document.report(self._document.within(side.path, save.start), "save-without-map", message, hint)

    def _probe(
        self,
        entry: _Entry,
        sides: Mapping[str, Side],
        level: Level | None,
        record_map: Map | None,
        reader: SnippetReader,
    ) -> WrittenProbe:
        """Read the table of a probe and return it with its snippets.

        sides: from ``_sides``. level, record_map: from ``_level_and_map``. For invalid values the result has the least
        restrictive ones: it is used only to verify the probe's snippets.
        """
        document, path, table = self._document, entry.path, entry.table
        known_keys = _OLDER_KEYS if entry.is_older else _PROBE_KEYS
        for key in table:
            if key not in known_keys:
                self._unknown_key((*path, key), known_keys)
        self._check_name(entry)
        tracepoint = self._tracepoint(path, table)
        words = [lanes.value for lanes in Lanes]
        lanes = document.choice((*path, "lanes"), table.get("lanes", Lanes.EXECUTING.value), words, "lanes", "lanes")
        note = self._register_note(path, table)
        snippets = {key: reader.snippet(side, level, record_map) for key, side in sides.items()}
        # Snippets that are no strings, and saves that cannot be parsed, have been reported.
        has_statements = any(side.parts or side.unread for side in sides.values())
        are_strings = all(isinstance(table.get(key, ""), str) for key in ("before", "after"))  # those that there are
        if "before" not in table and "after" not in table:
            document.missing(path, "before or after", 'before = """…"""')
        elif not has_statements and are_strings:
            message = f"[{shown_name('.'.join(path))}] holds no instruction"
            document.report(document.key(*path), "empty-probe", message, "fill before or after")
        return WrittenProbe(
            entry.name,
            tracepoint or _ANYWHERE,
            level or Level.THREAD,
            snippets.get("before"),
            snippets.get("after"),
            document.span(document.key(*path)),
            Lanes(lanes or Lanes.EXECUTING.value),
            note,
        )

    def _check_name(self, entry: _Entry) -> None:
        """Report an invalid name of a probe, or one that another probe has in the newer dialect.

        Two probes of one dialect cannot have one name: TOML refuses a second table of that name.
        """
        place = self._document.key(*entry.path)
        if not entry.name.isprintable() or not entry.name.strip() or len(entry.name) > _MAX_NAME_LENGTH:
            message = f"probe name {shown_key(entry.name)}"
            self._document.report(place, "probe-name", message, "letters, digits, underscores")
        elif entry.is_older and entry.name in self._newer_names:
            message = f"[{entry.name}] and [probe.{entry.name}] have one name"
            self._document.report(place, "probe-name", message, "rename one of the two")

    def _unknown_key(self, path: KeyPath, known: Sequence[str]) -> None:
        """Report an unknown key of a probe's table; ``datamodel`` of the older dialect with a hint of its own.

        path: of the key. known: the keys that such a table may have.
        """
        if path[-1] != "datamodel":
            self._document.unknown_key(path, known)
            return
        probe_name, _ = path[-2:]
        hint = f"write [{shown_name(probe_name)}] for the older dialect, or a [map.NAME] for what it saves"
        self._document.report(self._document.key(*path), "unknown-key", "a [probe.NAME] has no datamodel", hint)

    def _tracepoint(self, path: KeyPath, table: Mapping[str, Any]) -> Tracepoint | None:
        """Parse a probe's ``position``, or ``pos`` with a warning; report faults and return None if it is invalid.

        path, table: of the probe.
        """
        document = self._document
        if "pos" in table and "position" in table:
            document.report(document.key(*path, "pos"), "position", "both position and pos are given", "remove pos")
        # Of both, position is read.
        key = "position" if "position" in table else "pos"
        if key not in table:
            example = self._language.words.load
            document.missing(path, "position", f'position = "kernel" or an opcode such as "{example}"')
            return None
        if key == "pos":
            document.warn(document.key(*path, key), "pos", "'pos' is read as 'position'", "write position")
        text = table[key]
        if not isinstance(text, str):
            hint = f'write a text such as "{self._language.words.load}"'
            # An array of patterns, which are the alternatives of one text.
            if isinstance(text, list) and text and all(isinstance(part, str) for part in text):
                hint = f"write {shown(' | '.join(text))}"
            document.report(document.value(*path, key), "position", f"position is {shown(text)}", hint)
            return None
        tracepoint, faults = parse_tracepoint(text, self._language.words)
        for fault in faults:
            document.fault((*path, key), fault)
        return tracepoint

    def _register_note(self, path: KeyPath, table: Mapping[str, Any]) -> tuple[tuple[str, int | str], ...]:
        """Check ``register = { u32 = 2 }``, a compiler's counts of registers by type, and return its items.

        path, table: of the probe. The result is empty for assembly whose snippets declare their registers. Items with
        faults, which are reported, are in the result too.
        """
        document = self._document
        register = table.get("register", {})
        path = (*path, "register")
        if not isinstance(register, dict):
            document.report(
                document.value(*path), "register-note", f"register is {shown(register)}", "write { u64 = 2 }"
            )
            return ()
        for name, count in register.items():
            # The file of registers, scalar or vector, of assembly that has several.
            if name == "type" and self._language.register_files:
                files = self._language.register_files
                document.choice((*path, name), count, files, "type of registers", "register-note")
            elif name not in self._language.register_types:
                document.unknown_key((*path, name), self._language.register_types)
            elif not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= _MAX_REGISTERS:
                message = f"count of {name} registers is {shown(count)}"
                document.report(document.value(*path, name), "register-note", message)
        return tuple(register.items()) if self._language.register_files else ()


def _position(declared: Map) -> tuple[int, int]:
    """Return the place in the file where a map (table or log that probes save to) is declared, as a key to sort by."""
    return declared.span.line, declared.span.column


def _exists(path: Path) -> bool:
    """Return whether a path exists; False also for one that the file system rejects, such as a too long name."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _is_file(path: Path) -> bool:
    """Return whether a path is a regular file; False also for one that the file system rejects."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
