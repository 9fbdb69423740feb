"""Writes a ``ProbeSet`` as a probe file in TOML, for traces and patched files, whatever language it was written in.

The dialect is the newer one, with tables ``[map.NAME]`` and ``[probe.NAME]``; ``older_dialect`` describes the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from neutrino.abi.levels import Per
from neutrino.ir.operands import Register
from neutrino.maps.declaration import Layout, Map
from neutrino.probing.ir.probe_set import Probe, ProbeSet, Snippet
from neutrino.probing.ir.structured import registers_of
from neutrino.probing.model import Lanes
from neutrino.probing.target import Language
from neutrino.probing.toml_positions import BARE_KEY

# Characters that a TOML string must escape: in a basic string, and in one of several lines between triple quotes.
_ESCAPED_IN_STRING = re.compile(r'[\x00-\x1f\x7f"\\]')
_ESCAPED_IN_MULTILINE_STRING = re.compile(r'[\x00-\x08\x0b-\x1f\x7f\\]|"(?="")')
_ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
_Declarations = dict[tuple[str, str], list[Register]]
"""Name of a probe, and ``before`` or ``after`` → the registers that are declared in that snippet."""


def text_of_trace(probe_set: ProbeSet, language: Language) -> str:
    """Return the text of the probe file that is stored in a trace or a patched file, so that the set can be read again.

    It is the set's source, with its comments, if that gives the same set without warnings wherever it is stored;
    otherwise the set as ``write`` writes it. probe_set: lowered to the language.
    """
    # Other sources (Python, the older dialect, several files, a file of which only some probes are used) do not read
    # back. A warning is about something that is tolerated, such as a number in quotes; ``write`` writes it correctly.
    is_clean = probe_set.reads_back and not probe_set.warnings
    # In the source, paths of scripts are relative to the probe file, and would be searched for where the text is
    # stored. The set has absolute paths, and ``write`` writes these.
    has_scripts = bool(probe_set.analyze_hooks or probe_set.callbacks)
    return probe_set.source if is_clean and not has_scripts else write(probe_set, language)


def write(probe_set: ProbeSet, language: Language) -> str:
    """Return a lowered set as the text of a probe file. Reading it gives a set of equal digest, maps and scripts.

    The names of the files that the set was read from stand in a comment in the first line. language: that it was
    lowered to.
    """
    # A set that was merged from files has a part for each; any other set has no parts, and is one file itself.
    files = probe_set.parts or (probe_set,)
    file_names = ", ".join(PurePath(file.file).name for file in files)
    lines = [
        # Escaped: a newline in the name of a file would end the comment.
        f"# {_escape(file_names, _ESCAPED_IN_STRING)}",
        f"platform = {_string(probe_set.platform)}",
        *_scripts("analyze_hook", probe_set.analyze_hooks),
        *_scripts("callback", probe_set.callbacks),
    ]
    for declared_map in probe_set.maps:
        lines += ["", *_map(declared_map)]
    # Probes share registers, so where each one is declared follows from all snippets together.
    declarations = _declarations(probe_set)
    note = language.register_note(probe_set.registers)
    for index, probe in enumerate(probe_set.probes):
        # All probes of a file share what one of them counts.
        lines += ["", *_probe(probe, declarations, language, "" if index else note)]
    return "\n".join(lines) + "\n"


def _scripts(key: str, paths: Sequence[str]) -> Iterator[str]:
    """Yield the line of a key that names scripts, one as a string and several as an array; nothing without any."""
    strings = [_string(path) for path in paths]
    if strings:
        yield f"{key} = {strings[0] if len(strings) == 1 else '[' + ', '.join(strings) + ']'}"


def _map(declared_map: Map) -> Iterator[str]:
    """Yield the lines of TOML that declare a map."""
    yield f"[map.{_key(declared_map.name)}]"
    yield f"type = {_string(declared_map.kind.name)}"
    yield f"level = {_string(declared_map.level.value)}"
    if declared_map.per is not Per.LAUNCH:
        yield f"per = {_string(declared_map.per.value)}"
    yield f"size = {declared_map.size}"
    # A map that is not in slots takes no cap.
    if declared_map.kind.layout is Layout.SLOTS:
        yield f"cap = {declared_map.cap}"
    for key, value in declared_map.kind.options().items():
        yield f"{key} = {_string(value) if isinstance(value, str) else value}"
    fields = ", ".join(f"{_key(field.name)} = {_string(field.type.value)}" for field in declared_map.fields)
    yield f"data = {{ {fields} }}"


def _probe(probe: Probe, declarations: _Declarations, language: Language, note: str) -> Iterator[str]:
    """Yield the lines of a probe's table. declarations: the registers to declare in each snippet of the set."""
    yield f"[probe.{_key(probe.name)}]"
    yield f"position = {_string(probe.tracepoint.text)}"
    yield f"level = {_string(probe.level.value)}"
    # The default is not written.
    if probe.lanes is not Lanes.EXECUTING:
        yield f"lanes = {_string(probe.lanes.value)}"
    if note:
        yield f"register = {note}"
    for key, snippet in _sides(probe):
        if snippet:
            registers = declarations.get((probe.name, key), [])
            lines = language.lines(registers, snippet.straight)
            text = _escape("\n".join(lines), _ESCAPED_IN_MULTILINE_STRING)
            yield f'{key} = """\n{text}\n"""'


def _sides(probe: Probe) -> tuple[tuple[str, Snippet | None], ...]:
    """Return the snippets of a probe, each with its key in the file."""
    return ("before", probe.before), ("after", probe.after)


def _declarations(probe_set: ProbeSet) -> _Declarations:
    """Return which registers each snippet of a probe file has to declare, by probe and side.

    Reading the file must give the registers in the order of the set. So a register is declared in the first snippet
    that uses it or any register after it in that order; one that nothing uses, with the next one, and the last of all,
    if nothing uses it, in the last snippet.
    """
    snippets = [(probe.name, key, snippet) for probe in probe_set.probes for key, snippet in _sides(probe) if snippet]
    first_use: dict[str, int] = {}  # name of a register → index of a snippet
    for index, (_, _, snippet) in enumerate(snippets):
        for statement in snippet.straight:
            for register in registers_of(statement):
                first_use.setdefault(register.name, index)
    declarations: _Declarations = {}
    # From the last register on: none is declared in a later snippet than those after it.
    index = len(snippets) - 1
    for register in reversed(probe_set.registers):
        index = min(index, first_use.get(register.name, index))
        probe_name, key, _ = snippets[index]
        declarations.setdefault((probe_name, key), []).insert(0, register)
    return declarations


def _key(name: str) -> str:
    """Return a name as a key of TOML, in quotes where it needs them."""
    return name if BARE_KEY.fullmatch(name) else _string(name)


def _string(text: str) -> str:
    """Return a text as a TOML string, in quotes."""
    return f'"{_escape(text, _ESCAPED_IN_STRING)}"'


def _escape(text: str, escaped: re.Pattern[str]) -> str:
    """Return a text with the characters that a pattern matches written as escapes."""
    return escaped.sub(lambda match: _ESCAPES.get(match.group()) or f"\\u{ord(match.group()):04x}", text)
