"""Reads the snippets of probes: splits them into instructions and saves, and finds the maps that they save to."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from neutrino.abi.levels import Level
from neutrino.maps.declaration import Map
from neutrino.probing.document import Document, KeyPath, shown_key, shown_name
from neutrino.probing.nearest import nearest
from neutrino.probing.savable_maps import misfit
from neutrino.probing.syntax import Fault, SaveCall, Statement, TypedSave, is_save, parse_save
from neutrino.probing.target import Language, Snippets
from neutrino.probing.written import WrittenInstruction, WrittenSave, WrittenSnippet

_Part = Statement | SaveCall | TypedSave


class Side(NamedTuple):
    """The statements of a probe's ``before`` or ``after``, except ``.reg``: its registers are those of the file.

    path: of its text in the document. parts: saves and, as ``Statement``, instructions. unread: whether there is a SAVE
    that could not be parsed.
    """

    path: KeyPath
    parts: tuple[Statement | SaveCall | TypedSave, ...]
    unread: bool = False

    @property
    def typed_saves(self) -> tuple[TypedSave, ...]:
        """Return the statements ``SAVE.u64 { … }`` of a probe in the older dialect, which together make one record of
        its map."""
        return tuple(part for part in self.parts if isinstance(part, TypedSave))


def read_side(document: Document, language: Language, snippets: Snippets, path: KeyPath, text: str) -> Side:
    """Parse a snippet (a probe's code before or after an instruction), add the registers that it declares to those of
    the file, and report its faults.

    path: of its text in the document. snippets: of the file, in its language.
    """
    statements, faults = snippets.statements(path, text)
    parts: list[_Part] = []
    unread = False
    for statement in statements:
        if is_save(statement.text, language.save_guard):
            call = parse_save(statement, language.save_guard, language.words.saved[1])
            if isinstance(call, Fault):
                faults.append(call)
                unread = True
            else:
                parts.append(call)
        else:
            parts.append(statement)
    for fault in faults:
        document.fault(path, fault)
    return Side(path, tuple(parts), unread)


class SnippetReader:
    """Converts the parsed sides of a file's probes to snippets.

    snippets: of the file. maps: of the file by name, None for those that are invalid. levelless: names of the maps
    whose level is missing or invalid.
    """

    def __init__(
        self,
        document: Document,
        snippets: Snippets,
        maps: Mapping[str, Map | None],
        levelless: Collection[str] = (),
    ) -> None:
        """Prepare to convert the parsed code of a file's probes to snippets. maps: of the file by name, None for
        invalid ones. levelless: names of the maps whose level is missing or invalid."""
        self._document = document
        self._snippets = snippets
        self._maps = maps
        self._levelless = levelless
        self.saved: set[str] = set()
        """Names of the maps that the snippets so far save to."""

    def snippet(self, side: Side, level: Level | None, record_map: Map | None) -> WrittenSnippet | None:
        """Return the instructions and the SAVE that a probe file has for one side of an instruction (before or after
        it); None without any.

        side: which. level: of the probe, None if it is invalid. record_map: the map for the typed saves (``SAVE.u64``)
        of an older probe: all of them become one save, where the last one is.
        """
        body: list[WrittenInstruction | WrittenSave] = []
        reserved: set[str] = set()  # added registers, whose values are needed until the save
        record_operands: list[str] = []  # of the typed saves so far
        typed_saves = side.typed_saves
        last_uses = self._last_uses(side)
        for index, part in enumerate(side.parts):
            if isinstance(part, Statement):
                body.append(self._snippets.instruction(side.path, part))
            elif isinstance(part, SaveCall):
                body += self._save(side.path, part, level)
            # Typed saves without a map for them have been reported, and are left out.
            elif record_map:
                # The fields for these operands: each typed save fills the next ones of the record.
                fields = record_map.fields[len(record_operands) : len(record_operands) + len(part.operands)]
                moves, words = self._snippets.saved(side.path, part.operands, fields, reserved)
                if part.type.startswith("b"):
                    # SAVE.b32 takes the bits of a value, whatever its type.
                    words = [f"{word}.bits" if _VALUE.fullmatch(word) else word for word in words]
                # Until the save of the whole record, instructions may change these registers.
                span = self._document.span(self._document.within(side.path, part.start))
                used_later = {word for word in words if last_uses.get(word, -1) > index}
                copies, words = self._snippets.copied(words, used_later, span, reserved)
                body += [*moves, *copies]
                record_operands += words
                if part is typed_saves[-1]:
                    # For messages, its place is that of the first one.
                    place = self._document.span(self._document.within(side.path, typed_saves[0].start))
                    body.append(WrittenSave(record_map, tuple(record_operands), place))
                    self.saved.add(record_map.name)
        return WrittenSnippet(tuple(body)) if body else None

    def _save(self, path: KeyPath, call: SaveCall, level: Level | None) -> list[WrittenInstruction | WrittenSave]:
        """Return a ``SAVE`` (it appends a record to a map), preceded by moves of its special registers; [] if its map
        is unknown or invalid.

        path: of the snippet. level: of the probe, None if it is invalid.
        """
        offset = self._document.within(path, call.start)  # of the save in the file
        target = self._map(call.map, self._document.within(path, call.map_start))
        if target is None:
            return []
        self.saved.add(target.name)
        # An invalid level, of the probe or of the map, has been reported.
        fault = misfit(level, target) if level and target.name not in self._levelless else None
        if fault:
            self._document.report(offset, "save-level", *fault)
        fields = target.saved_fields
        if len(call.operands) != len(fields):
            names = ", ".join(field.name for field in fields)
            operands = _counted(len(call.operands), "operand")
            message = f"{operands} for the {_counted(len(fields), 'field')} of '{target.name}'"
            self._document.report(offset, "save-operands", message, f"its fields are {names}")
            # The probe is invalid, but its operands are verified all the same.
            words = tuple(" ".join(word.split()) for _, word in call.operands)
            return [WrittenSave(target, words, self._document.span(offset), call.guard, call.is_inverted)]
        # The registers that this adds are needed only until this save, so the next one may reuse them.
        moves, operand_words = self._snippets.saved(path, call.operands, fields, reserved=set())
        if target.by_site:
            operand_words.insert(0, "SITE")
        save = WrittenSave(target, tuple(operand_words), self._document.span(offset), call.guard, call.is_inverted)
        return [*moves, save]

    def _map(self, name: str, offset: int) -> Map | None:
        """Return the map (table or log that probes save to) of this name; None if it is invalid, or if there is none,
        which is reported at the offset.

        A name that differs only in case and underscores is accepted, with a warning.
        """
        if name in self._maps:
            return self._maps[name]
        # Of several similar names, it is not known which one is meant.
        similar = [known for known in self._maps if _squeezed(known) == _squeezed(name)]
        if len(similar) == 1:
            message = f"map {shown_key(name)} is read as '{similar[0]}'"
            self._document.warn(offset, "map-spelling", message, f"write {similar[0]}")
            return self._maps[similar[0]]
        guess = nearest(name, self._maps)
        hint = f"did you mean '{guess}'?" if guess else f"declare [map.{shown_name(name) or 'NAME'}]"
        self._document.report(offset, "unknown-map", f"there is no map {shown_key(name)}", hint)
        return None

    def _last_uses(self, side: Side) -> dict[str, int]:
        """Return for each register the last instruction before the last typed SAVE that names it, by its index among
        the parts.

        Such an instruction may change the register, so a typed SAVE before it has to keep the value in a copy.
        """
        last = max((index for index, part in enumerate(side.parts) if isinstance(part, TypedSave)), default=0)
        # A register that several instructions name gets the index of the last one.
        return {
            word: index
            for index, part in enumerate(side.parts[:last])
            if isinstance(part, Statement)
            for word in self._snippets.named(part.text)
        }


_VALUE = re.compile(r"(?:OUT|IN[1-9])(?:\.(?:[xyzw]|\d{1,3}))?|PARAM\.(?:\d{1,4}|[A-Za-z_$%][\w$]*)", re.ASCII)
"""The helpers whose types depend on the instruction, or on the kernel."""

def _counted(count: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{count} {noun}{'s' if count != 1 else ''}"


def _squeezed(name: str) -> str:
    """Return a name in lower case without underscores, to find names that are spelt differently."""
    return name.replace("_", "").lower()
