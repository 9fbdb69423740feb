"""A ``ProbeSet`` as a probe file: what goes into traces and patched files, whatever the probes came from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import PurePath

from neutrino.maps.declaration import DYNAMIC_CAP, Map
from neutrino.probing.ir.operands import Register
from neutrino.probing.ir.probe_set import Probe, ProbeSet, Snippet
from neutrino.probing.ir.statements import Assembly, registers_of
from neutrino.probing.model import Lanes
from neutrino.probing.places import BARE_KEY

_ESCAPED = re.compile(r'[\x00-\x1f\x7f"\\]')
_ESCAPED_LINES = re.compile(r'[\x00-\x08\x0b-\x1f\x7f\\]|"(?="")')
_ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
_DECLARED_TOGETHER = 8
"""Registers of one type in one declaration."""

_Declared = dict[tuple[str, str], list[Register]]
"""Name of a probe, and ``before`` or ``after`` → the registers that are declared there."""


def trace_text(probe_set: ProbeSet) -> str:
    """The probe file that is kept beside the records of a lowered set.

    The text of its file, comments and all, where that is one file in the newer dialect, without warnings and without
    paths relative to it; else ``write``'s.
    """
    alone = not probe_set.parts and not probe_set.warnings and probe_set.reads_back
    as_written = alone and not probe_set.analyze_hooks and not probe_set.callbacks
    return probe_set.source if as_written else write(probe_set)


def write(probe_set: ProbeSet) -> str:
    """A lowered set in the newer dialect. Read back it is a set of the same digest and the same scripts."""
    files = ", ".join(PurePath(part.file).name for part in probe_set.parts or (probe_set,))
    lines = [
        f"# {_escape(files, _ESCAPED)}",
        f"platform = {_text(probe_set.platform)}",
        *_scripts("analyze_hook", probe_set.analyze_hooks),
        *_scripts("callback", probe_set.callbacks),
    ]
    for entry in probe_set.maps:
        lines += ["", *_map(entry)]
    declared = _declarations(probe_set)
    for probe in probe_set.probes:
        lines += ["", *_probe(probe, declared)]
    return "\n".join(lines) + "\n"


def _scripts(key: str, paths: Sequence[str]) -> Iterator[str]:
    texts = [_text(path) for path in paths]
    if texts:
        yield f"{key} = {texts[0] if len(texts) == 1 else '[' + ', '.join(texts) + ']'}"


def _map(entry: Map) -> Iterator[str]:
    yield f"[map.{_key(entry.name)}]"
    yield f"type = {_text(entry.kind.name)}"
    yield f"level = {_text(entry.level.value)}"
    yield f"size = {entry.size}"
    if entry.kind.in_slots:
        yield f"cap = {_text('dynamic') if entry.cap == DYNAMIC_CAP else entry.cap}"
    for key, value in entry.kind.options().items():
        yield f"{key} = {_text(value) if isinstance(value, str) else value}"
    fields = ", ".join(f"{_key(field.name)} = {_text(field.type.value)}" for field in entry.fields)
    yield f"data = {{ {fields} }}"


def _probe(probe: Probe, declared: _Declared) -> Iterator[str]:
    yield f"[probe.{_key(probe.name)}]"
    yield f"position = {_text(probe.tracepoint.text)}"
    yield f"level = {_text(probe.level.value)}"
    if probe.lanes is not Lanes.EXECUTING:
        yield f"lanes = {_text(probe.lanes.value)}"
    for key, snippet in _sides(probe):
        if snippet:
            lines = [*_declared(declared.get((probe.name, key), [])), *(text + ";" for text in _statements(snippet))]
            text = _escape("\n".join(lines), _ESCAPED_LINES)
            yield f'{key} = """\n{text}\n"""'


def _sides(probe: Probe) -> tuple[tuple[str, Snippet | None], ...]:
    return ("before", probe.before), ("after", probe.after)


def _statements(snippet: Snippet) -> Iterator[str]:
    for statement in snippet.straight:
        if isinstance(statement, Assembly):
            yield statement.text
        else:
            operands = ", ".join(operand.text for operand in statement.operands)
            guard = statement.guard
            prefix = "" if guard is None else f"@{'!' if statement.is_inverted else ''}{guard.text} "
            yield f"{prefix}SAVE [ {statement.map.name} ] {{ {operands} }}"


def _declarations(probe_set: ProbeSet) -> _Declared:
    """Which registers to declare where.

    Read back they come in the order of the set, so a register is declared in the first snippet that uses it or one of
    those after it.
    """
    snippets = [
        (probe.name, key, snippet) for probe in probe_set.probes for key, snippet in _sides(probe) if snippet
    ]
    first_use: dict[str, int] = {}
    for index, (_, _, snippet) in enumerate(snippets):
        for statement in snippet.straight:
            for register in registers_of(statement):
                first_use.setdefault(register.name, index)
    declared: _Declared = {}
    index = len(snippets) - 1
    for register in reversed(probe_set.registers):
        index = min(index, first_use.get(register.name, index))
        declared.setdefault(snippets[index][:2], []).insert(0, register)
    return declared


def _declared(registers: Iterable[Register]) -> Iterator[str]:
    for kind, group in groupby(registers, key=lambda register: register.type):
        words = [register.name + _initial(register) for register in group]
        for start in range(0, len(words), _DECLARED_TOGETHER):
            yield f".reg .{kind} {', '.join(words[start : start + _DECLARED_TOGETHER])};"


def _initial(register: Register) -> str:
    value, kind = register.initial, register.type
    if not value:
        return ""
    if kind == "f32":
        return f" = 0f{value:08X}"
    if kind == "f64":
        return f" = 0d{value:016X}"
    if kind.is_signed and value >> (kind.bits - 1):
        value -= 1 << kind.bits
    return f" = {value}"


def _key(name: str) -> str:
    return name if BARE_KEY.fullmatch(name) else _text(name)


def _text(text: str) -> str:
    return f'"{_escape(text, _ESCAPED)}"'


def _escape(text: str, escaped: re.Pattern[str]) -> str:
    return escaped.sub(lambda match: _ESCAPES.get(match.group()) or f"\\u{ord(match.group()):04x}", text)
