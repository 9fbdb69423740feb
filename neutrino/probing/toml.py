"""Probe files in TOML: ``[map.NAME]`` and ``[probe.NAME]``, read into one validated ``ProbeSet``.

What the assembly in a snippet means is not judged here but in ``neutrino.ptx.snippet``; this module knows the
file, its keys, maps and registers. All faults of a file are reported at once, each at its line and column.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from neutrino.errors import Diagnostic, NeutrinoError, ProbeError
from neutrino.probing.layout import lay_out_fields
from neutrino.probing.model import (
    DYNAMIC_CAP,
    Field,
    Instruction,
    Lanes,
    Level,
    Map,
    MapKind,
    Probe,
    ProbeSet,
    Register,
    Save,
    ScalarType,
    Snippet,
    Span,
    Tracepoint,
)
from neutrino.probing.nearest import nearest
from neutrino.probing.places import Place, find_places
from neutrino.probing.special_registers import SPECIAL_REGISTERS
from neutrino.probing.statements import (
    REGISTER_TYPES,
    Declaration,
    Fault,
    SaveCall,
    Statement,
    parse_declaration,
    parse_save,
    split_statements,
)
from neutrino.probing.tracepoints import parse_tracepoint
from neutrino.resources import shipped_probes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_MAP_NAME = 63
"""Characters of a map's name: ``result/<id>.bin`` has 64 bytes for it, the last one NUL."""
MAX_CAP = 1 << 20
"""Records a slot. Far above what the pool of any GPU holds; keeps 32-bit indices from wrapping around."""

_TOP_KEYS = ("platform", "map", "probe", "analyze_hook", "callback", "CALLBACK")
_MAP_KEYS = ("type", "level", "size", "cap", "data")
_PROBE_KEYS = ("position", "pos", "level", "lanes", "before", "after", "register")
_SUM_TYPES = frozenset({ScalarType.U32, ScalarType.S32, ScalarType.U64, ScalarType.S64})
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_REGISTER_WORD = re.compile(r"%[A-Za-z_$][\w$]*", re.ASCII)
_NUMBERED = re.compile(r"(%.*?)(\d+)")
_COLON_KEY = re.compile(r"[{,]\s*(\"[^\"]*\"|[\w-]+)\s*$")
_TOML_POSITION = re.compile(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", re.DOTALL)

_Path = tuple[str, ...]


def load_probes(names: Sequence[str]) -> ProbeSet:
    """The probes that ``-p`` names, merged in this order.

    A name with a ``/`` or ending in ``.toml`` is a path, any other a probe that ships with Neutrino. Raises
    ProbeError with all faults of all files, NeutrinoError for a file or a shipped probe that is not there.
    """
    if not names:
        raise NeutrinoError("no probe is named; give -p a shipped probe or the path of a .toml file")
    parts = []
    diagnostics: list[Diagnostic] = []
    for name in dict.fromkeys(names):
        try:
            parts.append(load_probe_file(_find(name)))
        except ProbeError as error:
            diagnostics += error.diagnostics
    if diagnostics:
        raise ProbeError(diagnostics)
    return parts[0] if len(parts) == 1 else _merge(parts)


def load_probe_file(path: str | Path) -> ProbeSet:
    """The probes of one TOML file. Raises ProbeError with all its faults, NeutrinoError if unreadable."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise NeutrinoError(f"{path}: cannot read the probe file: {error.strerror or error}") from error
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        column = error.start - (before.rfind(b"\n") + 1) + 1
        message = f"byte {data[error.start]:#04x} is not UTF-8, as TOML must be"
        raise ProbeError([Diagnostic(str(path), before.count(b"\n") + 1, column, "", message)]) from error
    return _Reader(str(path), text).probe_set()


def _find(name: str) -> Path:
    if name.endswith(".py"):
        raise NeutrinoError(f"-p {name}: probes in Python are not supported yet; write it in TOML")
    if "/" in name or name.endswith(".toml"):
        return Path(name)
    shipped = shipped_probes()
    if name in shipped:
        return shipped[name]
    guess = nearest(name, shipped)
    meant = f"; did you mean {guess}?" if guess else ""
    raise NeutrinoError(
        f"-p {name}: no such shipped probe{meant} (there are: {', '.join(shipped)}; "
        f"a file's name needs a '/' or must end in .toml)"
    )


class _Reader:
    """One probe file on its way to a ProbeSet; collects the faults."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        # tomllib reads CRLF as LF too; offsets count in this form.
        self.source = text.replace("\r\n", "\n")
        self.lines = self.source.split("\n")
        self.diagnostics: list[Diagnostic] = []
        self.places: dict[_Path, Place] = {}
        self.maps: dict[str, Map] = {}
        self.bad_maps: set[str] = set()
        self.saved: set[str] = set()
        self.registers: dict[str, Register] = {}
        self.initial: dict[str, int] = {}
        self.ranges: dict[str, Declaration] = {}
        self.probes: list[Probe] = []

    def probe_set(self) -> ProbeSet:
        document = self._parse()
        self.places = find_places(self.source)
        self._read_top(document)
        self._read_maps(self._table(document, "map"))
        self._read_probes(self._table(document, "probe"))
        self._warn_of_unused_maps()
        self.diagnostics.sort(key=lambda diagnostic: (diagnostic.line, diagnostic.column))
        errors = [diagnostic for diagnostic in self.diagnostics if diagnostic.severity == "error"]
        if errors:
            raise ProbeError(errors)
        return ProbeSet(
            self.file,
            self.text,
            tuple(self.maps.values()),
            tuple(self.registers.values()),
            tuple(self.probes),
            tuple(str(diagnostic) for diagnostic in self.diagnostics),
        )

    # Places and faults

    def _span(self, offset: int) -> Span:
        start = self.source.rfind("\n", 0, offset) + 1
        return Span(self.source.count("\n", 0, offset) + 1, offset - start + 1)

    def _report(self, offset: int, message: str, hint: str = "", severity: str = "error") -> None:
        span = self._span(offset)
        line = self.lines[span.line - 1]
        self.diagnostics.append(Diagnostic(self.file, span.line, span.column, line, message, hint, severity))

    def _warn(self, offset: int, message: str, hint: str = "") -> None:
        self._report(offset, message, hint, "warning")

    def _key(self, *path: str) -> int:
        """Offset of a key, or of the nearest enclosing one that stands in the file."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.places:
                return self.places[path[:length]].key
        return 0

    def _value(self, *path: str) -> int:
        return self.places[path].value if path in self.places else self._key(*path)

    # The document

    def _parse(self) -> dict[str, Any]:
        while True:
            try:
                return tomllib.loads(self.source)
            except RecursionError:
                self._report(0, "tables or arrays are nested too deeply")
                raise ProbeError(self.diagnostics[-1:]) from None
            except tomllib.TOMLDecodeError as error:
                match = _TOML_POSITION.fullmatch(str(error))
                message = match.group(1) if match else str(error)
                offset = len(self.source.rstrip())
                if match and match.group(2):
                    lines = self.source.split("\n")[: int(match.group(2)) - 1]
                    offset = sum(len(line) + 1 for line in lines) + int(match.group(3)) - 1
                if self._mend_colon(offset):
                    continue
                message = message[:1].lower() + message[1:]
                hint = "texts stand in quotes" if message.startswith("invalid value") else ""
                if self.source.startswith("\ufeff"):
                    offset, hint = 0, "the file begins with a byte order mark; save it without"
                self._report(offset, f"not TOML: {message}", hint)
                raise ProbeError(self.diagnostics[-1:]) from error
            except ValueError as error:
                # An integer of thousands of digits, which Python does not convert.
                self._report(0, f"not TOML: {error}")
                raise ProbeError(self.diagnostics[-1:]) from error

    def _mend_colon(self, offset: int) -> bool:
        """``{ "start": "u64" }``, as the documents wrote inline tables: taken as ``=``, with one warning."""
        before = self.source[self.source.rfind("\n", 0, offset) + 1 : offset]
        if not self.source.startswith(":", offset) or not _COLON_KEY.search(before):
            return False
        if not self.diagnostics:
            self._warn(offset, "':' in an inline table, read as '='", 'TOML writes { start = "u64" }')
        self.source = self.source[:offset] + "=" + self.source[offset + 1 :]
        return True

    def _read_top(self, document: Mapping[str, Any]) -> None:
        platform = document.get("platform", "cuda")
        if platform != "cuda":
            known = isinstance(platform, str) and platform in {"hip", "rocm", "opencl"}
            message = f"platform {platform!r} is not supported{' yet' if known else ''}"
            self._report(self._value("platform"), message, 'write platform = "cuda"')
        for key, value in document.items():
            if key in {"analyze_hook", "callback", "CALLBACK"}:
                self._warn(self._key(key), f"'{key}' is not run yet; the trace's read.py reads the data")
            elif isinstance(value, dict) and {"datamodel", "position", "before", "after"} & set(value):
                self._report(
                    self._key(key),
                    f"[{key}] is in the older dialect, which is not supported yet",
                    f"write [probe.{key}], and a [map.NAME] for what it saves",
                )
            elif key not in _TOP_KEYS:
                self._unknown_key((key,), _TOP_KEYS)

    def _unknown_key(self, path: _Path, known: Iterable[str]) -> None:
        guess = nearest(path[-1], known)
        hint = f"did you mean '{guess}'?" if guess else "known here: " + ", ".join(known)
        self._report(self._key(*path), f"unknown key '{path[-1]}'", hint)

    def _table(self, document: Mapping[str, Any], key: str) -> dict[str, dict[str, Any]]:
        tables = document.get(key, {})
        entries = tables if isinstance(tables, dict) else {}
        if not entries:
            self._report(self._key(key) if key in document else 0, f"no [{key}.NAME] in the file")
        for name, value in entries.items():
            if not isinstance(value, dict):
                self._report(self._key(key, name), f"'{key}.{name}' is not a table", f"write [{key}.{name}]")
        return {name: value for name, value in entries.items() if isinstance(value, dict)}

    def _choice(self, path: _Path, value: Any, known: Sequence[str], what: str) -> str | None:
        if isinstance(value, str) and value in known:
            return value
        guess = nearest(value, known) if isinstance(value, str) else None
        hint = f'did you mean "{guess}"?' if guess else "use " + " or ".join(f'"{word}"' for word in known)
        self._report(self._value(*path), f"{what} is {_shown(value)}", hint)
        return None

    def _missing(self, path: _Path, key: str, example: str) -> None:
        self._report(self._key(*path), f"[{'.'.join(path)}] has no {key}", f"write {example}")

    # Maps

    def _read_maps(self, tables: Mapping[str, dict[str, Any]]) -> None:
        for name, table in tables.items():
            before = self._errors()
            entry = self._read_map(name, table)
            if entry and self._errors() == before:
                self.maps[name] = entry
            else:
                self.bad_maps.add(name)

    def _errors(self) -> int:
        return sum(diagnostic.severity == "error" for diagnostic in self.diagnostics)

    def _read_map(self, name: str, table: Mapping[str, Any]) -> Map | None:
        path = ("map", name)
        for key in table:
            if key not in _MAP_KEYS:
                self._unknown_key((*path, key), _MAP_KEYS)
        if not _NAME.fullmatch(name) or len(name) > MAX_MAP_NAME:
            hint = f"up to {MAX_MAP_NAME} letters, digits and underscores"
            self._report(self._key(*path), f"map name '{name}'", hint)
        kind = self._choice((*path, "type"), table.get("type", "array"), ("array", "sum"), "type of a map")
        level = self._level(path, table)
        cap = self._cap(path, table, kind)
        fields, size = self._fields(path, table, kind)
        if fields:
            self._check_size(path, table, fields, size)
        if kind is None or level is None or cap is None or not fields:
            return None
        return Map(name, MapKind(kind), level, size, cap, fields, self._span(self._key(*path)))

    def _level(self, path: _Path, table: Mapping[str, Any]) -> Level | None:
        if "level" not in table:
            self._missing(path, "level", 'level = "thread", "warp" or "block"')
            return None
        word = self._choice((*path, "level"), table["level"], [level.value for level in Level], "level")
        return Level(word) if word else None

    def _cap(self, path: _Path, table: Mapping[str, Any], kind: str | None) -> int | None:
        cap = table.get("cap", 1)
        place = self._value(*path, "cap")
        if cap == "dynamic":
            if kind != "sum":
                return DYNAMIC_CAP
            self._report(place, 'cap is "dynamic", but a sum has one record', "leave cap out")
        elif not isinstance(cap, int) or isinstance(cap, bool) or not 0 < cap <= MAX_CAP:
            self._report(place, f"cap is {_shown(cap)}", f'write an integer from 1 to {MAX_CAP}, or "dynamic"')
        elif kind == "sum" and cap != 1:
            self._report(place, f"cap is {cap}, but a sum has one record", "leave cap out")
        else:
            return cap
        return None

    def _fields(
        self, path: _Path, table: Mapping[str, Any], kind: str | None
    ) -> tuple[tuple[Field, ...], int]:
        data = table.get("data")
        path = (*path, "data")
        if not isinstance(data, dict) or not data:
            if "data" in table:
                self._report(self._value(*path), "data names no field", 'write { start = "u64" }')
            else:
                self._missing(path[:-1], "data", 'data = { start = "u64" }')
            return (), 0
        types = [scalar.value for scalar in ScalarType]
        fields = []
        for name, word in data.items():
            if not _NAME.fullmatch(name):
                hint = "use letters, digits, underscores"
                self._report(self._key(*path, name), f"field name '{name}'", hint)
            chosen = self._choice((*path, name), word, types, f"type of field '{name}'")
            if chosen is None:
                continue
            scalar = ScalarType(chosen)
            if kind == "sum" and scalar not in _SUM_TYPES:
                self._report(
                    self._value(*path, name),
                    f"field '{name}' of a sum is {chosen}",
                    "a sum adds u32, s32, u64 or s64",
                )
            fields.append((name, scalar))
        placed, size, _ = lay_out_fields(fields)
        return (placed, size) if len(fields) == len(data) else ((), 0)

    def _check_size(
        self, path: _Path, table: Mapping[str, Any], fields: tuple[Field, ...], size: int
    ) -> None:
        padding = size - sum(field.type.size for field in fields)
        if padding:
            self._warn(
                self._value(*path, "data"),
                f"{padding} of the {size} bytes of a record are padding",
                "put wide fields first",
            )
        if "size" not in table:
            return
        written = table["size"]
        place = self._value(*path, "size")
        if isinstance(written, str) and written.isascii() and written.isdigit():
            self._warn(place, f'size = "{written}" is read as a number', f"write size = {written}")
            written = int(written)
        if not isinstance(written, int) or isinstance(written, bool):
            self._report(place, f"size is {_shown(written)}", f"write size = {size}")
        elif written != size:
            message = f"size is {written}, but the fields take {size} bytes"
            self._report(place, message, f"write size = {size}")

    def _warn_of_unused_maps(self) -> None:
        for name in self.maps:
            if name not in self.saved:
                self._warn(self._key("map", name), f"nothing is saved to map '{name}'")

    # Probes

    def _read_probes(self, tables: Mapping[str, dict[str, Any]]) -> None:
        # Declarations first: a snippet may use what a later probe of the file declares.
        statements: dict[_Path, list[Statement]] = {}
        for name, table in tables.items():
            for side in ("before", "after"):
                if isinstance(table.get(side), str):
                    path = ("probe", name, side)
                    statements[path] = self._declare(path, table[side])
        for name, table in tables.items():
            probe = self._read_probe(name, table, statements)
            if probe:
                self.probes.append(probe)

    def _declare(self, path: _Path, text: str) -> list[Statement]:
        """Registers of one snippet go into the file's namespace. Returns the other statements."""
        statements, faults = split_statements(text)
        rest = []
        for statement in statements:
            if not statement.text.startswith(".reg"):
                rest.append(statement)
                continue
            declarations, more = parse_declaration(statement)
            faults += more
            for declaration in declarations:
                self._declare_register(path, declaration)
        for fault in faults:
            self._report_fault(path, fault)
        return rest

    def _declare_register(self, path: _Path, declaration: Declaration) -> None:
        names = [declaration.name]
        if declaration.count is not None:
            names = [f"{declaration.name}{index}" for index in range(declaration.count)]
            self.ranges[declaration.name] = declaration
        offset = self._within(path, declaration.start)
        for name in names:
            if name in SPECIAL_REGISTERS or f"{name}.x" in SPECIAL_REGISTERS:
                self._report(offset, f"{name} is a special register", "choose another name")
                continue
            earlier = self.registers.get(name)
            if earlier and earlier.type != declaration.type:
                self._report(
                    offset,
                    f"{name} is declared as .{declaration.type}, and as .{earlier.type} in line "
                    f"{earlier.span.line}",
                    "all registers of a file are one namespace: rename one",
                )
                continue
            if earlier and declaration.initial is not None:
                other = self.initial.get(name)
                if other is not None and other != declaration.initial:
                    message = f"{name} begins with another value in line {earlier.span.line}"
                    self._report(offset, message, "one register has one first value")
                    continue
            if declaration.initial is not None:
                self.initial[name] = declaration.initial
            if earlier is None or declaration.initial is not None:
                self.registers[name] = Register(name, declaration.type, self.initial.get(name, 0), self._span(offset))

    def _within(self, path: _Path, start: int) -> int:
        """Offset in the file of an offset in a snippet."""
        characters = self.places[path].characters
        return characters[min(start, len(characters) - 1)]

    def _report_fault(self, path: _Path, fault: Fault) -> None:
        self._report(self._within(path, fault.start), fault.message, fault.hint)

    def _read_probe(
        self, name: str, table: Mapping[str, Any], statements: Mapping[_Path, list[Statement]]
    ) -> Probe | None:
        path = ("probe", name)
        for key in table:
            if key not in _PROBE_KEYS:
                self._unknown_key((*path, key), _PROBE_KEYS)
        tracepoint = self._tracepoint(path, table)
        level = self._level(path, table)
        lanes = self._lanes(path, table)
        self._check_register_key(path, table)
        snippets: dict[str, Snippet | None] = {"before": None, "after": None}
        for side in snippets:
            if side not in table:
                continue
            if not isinstance(table[side], str):
                message = f"{side} is {_shown(table[side])}"
                self._report(self._value(*path, side), message, "write the snippet as a text")
                return None
            side_path = (*path, side)
            body = self._snippet(side_path, statements[side_path], level)
            snippets[side] = Snippet(tuple(body)) if body else None
        if "before" not in table and "after" not in table:
            self._missing(path, "before or after", 'before = """…"""')
        elif not any(statements.get((*path, side)) for side in snippets):
            self._report(self._key(*path), f"[probe.{name}] holds no instruction", "fill before or after")
        if tracepoint is None or level is None:
            return None
        span = self._span(self._key(*path))
        return Probe(name, tracepoint, level, snippets["before"], snippets["after"], span, lanes)

    def _tracepoint(self, path: _Path, table: Mapping[str, Any]) -> Tracepoint | None:
        if "pos" in table and "position" in table:
            self._report(self._key(*path, "pos"), "both position and pos are given", "remove pos")
        key = "position" if "position" in table else "pos"
        if key not in table:
            self._missing(path, "position", 'position = "kernel" or an opcode such as "ld.global"')
            return None
        if key == "pos":
            self._warn(self._key(*path, key), "'pos' is read as 'position'", "write position")
        text = table[key]
        if not isinstance(text, str):
            self._report(self._value(*path, key), f"position is {_shown(text)}", 'write a text such as "ld.global"')
            return None
        tracepoint, faults = parse_tracepoint(text)
        for fault in faults:
            self._report_fault((*path, key), fault)
        return tracepoint

    def _lanes(self, path: _Path, table: Mapping[str, Any]) -> Lanes:
        words = [lanes.value for lanes in Lanes]
        word = self._choice((*path, "lanes"), table.get("lanes", Lanes.EXECUTING.value), words, "lanes")
        return Lanes(word) if word else Lanes.EXECUTING

    def _check_register_key(self, path: _Path, table: Mapping[str, Any]) -> None:
        """``register = { u32 = 2 }``, a compiler's count of registers: the declarations decide, not this."""
        register = table.get("register", {})
        path = (*path, "register")
        if not isinstance(register, dict):
            self._report(self._value(*path), f"register is {_shown(register)}", "write { u64 = 2 }")
            return
        for name, count in register.items():
            if name not in REGISTER_TYPES:
                self._unknown_key((*path, name), REGISTER_TYPES)
            elif not isinstance(count, int) or isinstance(count, bool) or count < 0:
                self._report(self._value(*path, name), f"count of {name} registers is {_shown(count)}")

    # Snippets

    def _snippet(
        self, path: _Path, statements: Sequence[Statement], level: Level | None
    ) -> list[Instruction | Save]:
        body: list[Instruction | Save] = []
        for statement in statements:
            if re.match(r"SAVE\b", statement.text):
                call = parse_save(statement)
                if isinstance(call, Fault):
                    self._report_fault(path, call)
                else:
                    body += self._save(path, call, level)
                continue
            for match in _REGISTER_WORD.finditer(statement.text):
                self._stretch_range(match.group(), self._within(path, statement.start + match.start()))
            span = self._span(self._within(path, statement.start))
            body.append(Instruction(" ".join(statement.text.split()), span))
        return body

    def _stretch_range(self, name: str, offset: int) -> None:
        """``%P2`` after ``%P<2>``, as the documents' example has it: one register more, with a warning."""
        match = _NUMBERED.fullmatch(name)
        if not match or name in self.registers or match.group(1) not in self.ranges:
            return
        declaration = self.ranges[match.group(1)]
        if declaration.count is not None and match.group(2) == str(declaration.count):
            written = f"{declaration.name}<{declaration.count}>"
            hint = f"write {declaration.name}<{declaration.count + 1}>"
            self._warn(offset, f"{written} does not declare {name}, which is used; it is added", hint)
            self.registers[name] = Register(name, declaration.type, 0, self._span(offset))

    def _save(self, path: _Path, call: SaveCall, level: Level | None) -> list[Instruction | Save]:
        offset = self._within(path, call.start)
        target = self._saved_map(call.map, self._within(path, call.map_start))
        if target is None:
            return []
        self.saved.add(target.name)
        if level and level is not target.level:
            self._report(
                offset,
                f"a {level.value} probe saves to '{target.name}', a {target.level.value} map",
                f'give both the same level: level = "{target.level.value}"',
            )
        if len(call.operands) != len(target.fields):
            names = ", ".join(field.name for field in target.fields)
            self._report(
                offset,
                f"{len(call.operands)} operands for the {len(target.fields)} fields of '{target.name}'",
                f"its fields are {names}",
            )
            return []
        body: list[Instruction | Save] = []
        operands = []
        for (start, word), field in zip(call.operands, target.fields, strict=True):
            place = self._within(path, start)
            self._stretch_range(word, place)
            if word in SPECIAL_REGISTERS:
                move = self._read_special(word, field, place)
                word = move.text.split()[1].rstrip(",")
                body.append(move)
            operands.append(word)
        body.append(Save(target, tuple(operands), self._span(offset)))
        return body

    def _saved_map(self, name: str, offset: int) -> Map | None:
        if name in self.maps:
            return self.maps[name]
        if name in self.bad_maps:
            return None
        alike = [known for known in self.maps if _squeezed(known) == _squeezed(name)]
        if len(alike) == 1:
            self._warn(offset, f"map '{name}' is read as '{alike[0]}'", f"write {alike[0]}")
            return self.maps[alike[0]]
        guess = nearest(name, self.maps)
        hint = f"did you mean '{guess}'?" if guess else f"declare [map.{name or 'NAME'}]"
        self._report(offset, f"there is no map '{name}'", hint)
        return None

    def _read_special(self, word: str, field: Field, offset: int) -> Instruction:
        """A special register among the operands of SAVE: read into a register of its own first."""
        kind = SPECIAL_REGISTERS[word]
        wide = kind == "u32" and field.type.size == 8
        name = "%save_" + word[1:].replace(".", "_") + ("_u64" if wide else "")
        self._warn(
            offset, f"{word} inside SAVE is read into a register first", f"write mov.{kind} %r, {word};"
        )
        span = self._span(offset)
        self.registers.setdefault(name, Register(name, "u64" if wide else kind, 0, span))
        return Instruction(f"cvt.u64.u32 {name}, {word}" if wide else f"mov.{kind} {name}, {word}", span)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return str(value).lower() if isinstance(value, bool) else str(value)


def _squeezed(name: str) -> str:
    return name.replace("_", "").lower()


def _merge(parts: Sequence[ProbeSet]) -> ProbeSet:
    """One set of several. Registers of one name in two files are two registers: the later is renamed."""
    maps: dict[str, tuple[Map, ProbeSet]] = {}
    registers: dict[str, Register] = {}
    probes: list[Probe] = []
    faults = []
    for part in parts:
        for entry in part.maps:
            if entry.name in maps:
                line = part.source.splitlines()[entry.span.line - 1]
                message = f"map '{entry.name}' is also in {maps[entry.name][1].file}"
                span = entry.span
                faults.append(
                    Diagnostic(part.file, span.line, span.column, line, message, "rename one of the two")
                )
            maps.setdefault(entry.name, (entry, part))
        renamed = {}
        for register in part.registers:
            name = register.name
            taken = {*registers, *(other.name for other in part.registers)}
            suffix = 2
            while name in registers:
                candidate = f"{register.name}_{suffix}"
                suffix += 1
                if candidate not in taken:
                    name = candidate
            renamed[register.name] = name
            registers[name] = Register(name, register.type, register.initial, register.span)
        probes += [_rename(probe, renamed) for probe in part.probes]
    if faults:
        raise ProbeError(faults)
    return ProbeSet(
        ", ".join(part.file for part in parts),
        "\n".join(f"# {part.file}\n{part.source}" for part in parts),
        tuple(entry for entry, _ in maps.values()),
        tuple(registers.values()),
        tuple(probes),
        tuple(warning for part in parts for warning in part.warnings),
        tuple(parts),
    )


def _rename(probe: Probe, names: Mapping[str, str]) -> Probe:
    def word(text: str) -> str:
        return _REGISTER_WORD.sub(lambda match: names.get(match.group(), match.group()), text)

    def snippet(side: Snippet | None) -> Snippet | None:
        if side is None:
            return None
        return Snippet(
            tuple(
                Instruction(word(statement.text), statement.span)
                if isinstance(statement, Instruction)
                else Save(statement.map, tuple(word(item) for item in statement.operands), statement.span)
                for statement in side.statements
            )
        )

    return Probe(
        probe.name, probe.tracepoint, probe.level, snippet(probe.before), snippet(probe.after), probe.span, probe.lanes
    )
