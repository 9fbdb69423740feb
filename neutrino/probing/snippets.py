"""The snippets of a probe: statements into instructions and saves, with the maps that they save to."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from neutrino.abi.levels import Level
from neutrino.abi.records import Field
from neutrino.errors import Span
from neutrino.maps.declaration import Map
from neutrino.probing.document import Document, KeyPath, shown_key
from neutrino.probing.ir.types import Type
from neutrino.probing.nearest import nearest
from neutrino.probing.registers import REGISTER_WORD, Registers
from neutrino.probing.special_registers import SPECIAL_REGISTERS
from neutrino.probing.syntax import (
    Fault,
    SaveCall,
    Statement,
    TypedSave,
    parse_declaration,
    parse_save,
    split_lines,
    split_statements,
)
from neutrino.probing.written import WrittenInstruction, WrittenSave, WrittenSnippet

_SAVE_WORD = re.compile(r"SAVE\b")
_GUARDED_SAVE = re.compile(r"@\s*!?\s*%[^\s@!]+\s+SAVE\s*\[")
_Part = Statement | SaveCall | TypedSave


class Side(NamedTuple):
    """``before`` or ``after`` of a probe, taken apart; its declarations are among the file's registers by now.

    path: of its text in the document. parts: in order, statements that are no SAVE as instructions. unread: whether
    there is a SAVE that could not be read.
    """

    path: KeyPath
    parts: tuple[Statement | SaveCall | TypedSave, ...]
    unread: bool = False

    @property
    def typed_saves(self) -> tuple[TypedSave, ...]:
        """Its saves in the older dialect; together they make one record."""
        return tuple(part for part in self.parts if isinstance(part, TypedSave))


def read_side(document: Document, registers: Registers, path: KeyPath, text: str, platform: str) -> Side:
    """Take a snippet apart. Its registers are declared; what follows must know those of all snippets of the file."""
    statements, faults = split_lines(text) if platform == "hip" else split_statements(text)
    parts: list[_Part] = []
    unread = False
    for statement in statements:
        if statement.text.startswith(".reg") and platform == "cuda":
            declarations, more = parse_declaration(statement)
            faults += more
            for declaration in declarations:
                registers.declare(path, declaration)
        elif _SAVE_WORD.match(statement.text) or (platform == "cuda" and _GUARDED_SAVE.match(statement.text)):
            call = parse_save(statement)
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
    """Sides of a file's probes into snippets.

    maps: of the file, None for those that are wrong. levelless: names of those whose level is not known.
    """

    def __init__(
        self,
        document: Document,
        registers: Registers,
        maps: Mapping[str, Map | None],
        platform: str,
        levelless: Collection[str] = (),
    ) -> None:
        self._document = document
        self._registers = registers
        self._maps = maps
        self._platform = platform
        self._levelless = levelless
        self.saved: set[str] = set()
        """Names of the maps that were saved to."""

    def snippet(self, side: Side, level: Level | None, record: Map | None) -> WrittenSnippet | None:
        """What is inserted; None when that is nothing. level: the probe's, None when it is wrong.

        record: the map that the typed saves of an older probe make one record of.
        """
        body: list[WrittenInstruction | WrittenSave] = []
        taken: set[str] = set()
        operands: list[str] = []
        typed = side.typed_saves
        last_named = _last_named(side)
        for index, part in enumerate(side.parts):
            if isinstance(part, Statement):
                body.append(self._instruction(side.path, part))
            elif isinstance(part, SaveCall):
                body += self._save(side.path, part, level)
            elif record:
                fields = record.fields[len(operands) : len(operands) + len(part.operands)]
                moves, words = self._operands(side.path, part.operands, fields, taken)
                span = self._document.span(self._document.within(side.path, part.start))
                named = {word for word in words if last_named.get(word, -1) > index}
                copies, words = self._copied(words, named, span, taken)
                body += [*moves, *copies]
                operands += words
                if part is typed[-1]:
                    first = self._document.span(self._document.within(side.path, typed[0].start))
                    body.append(WrittenSave(record, tuple(operands), first))
                    self.saved.add(record.name)
        return WrittenSnippet(tuple(body)) if body else None

    def _instruction(self, path: KeyPath, statement: Statement) -> WrittenInstruction:
        span = self._document.span(self._document.within(path, statement.start))
        if self._platform == "cuda":
            for match in REGISTER_WORD.finditer(statement.text):
                offset = self._document.within(path, statement.start + match.start())
                self._registers.stretch(match.group(), offset)
        return WrittenInstruction(" ".join(statement.text.split()), span)

    def _save(self, path: KeyPath, call: SaveCall, level: Level | None) -> list[WrittenInstruction | WrittenSave]:
        offset = self._document.within(path, call.start)
        target = self._map(call.map, self._document.within(path, call.map_start))
        if target is None:
            return []
        self.saved.add(target.name)
        if level and target.level is not level and target.name not in self._levelless:
            message = f"a {level.value} probe saves to '{target.name}', a {target.level.value} map"
            hint = f'give both the same level: level = "{target.level.value}"'
            self._document.report(offset, "save-level", message, hint)
        if len(call.operands) != len(target.fields):
            names = ", ".join(field.name for field in target.fields)
            found, wanted = (
                f"{number} {what}{'s' if number != 1 else ''}"
                for number, what in ((len(call.operands), "operand"), (len(target.fields), "field"))
            )
            message = f"{found} for the {wanted} of '{target.name}'"
            self._document.report(offset, "save-operands", message, f"its fields are {names}")
            # The probe is invalid; what it names is verified all the same.
            words = tuple(" ".join(word.split()) for _, word in call.operands)
            return [WrittenSave(target, words, self._document.span(offset), call.guard, call.is_inverted)]
        moves, operands = self._operands(path, call.operands, target.fields, set())
        save = WrittenSave(target, tuple(operands), self._document.span(offset), call.guard, call.is_inverted)
        return [*moves, save]

    def _map(self, name: str, offset: int) -> Map | None:
        if name in self._maps:
            return self._maps[name]
        alike = [known for known in self._maps if _squeezed(known) == _squeezed(name)]
        if len(alike) == 1:
            message = f"map {shown_key(name)} is read as '{alike[0]}'"
            self._document.warn(offset, "map-spelling", message, f"write {alike[0]}")
            return self._maps[alike[0]]
        guess = nearest(name, self._maps)
        hint = f"did you mean '{guess}'?" if guess else f"declare [map.{shown_key(name)[1:-1] or 'NAME'}]"
        self._document.report(offset, "unknown-map", f"there is no map {shown_key(name)}", hint)
        return None

    # Operands

    def _operands(
        self, path: KeyPath, words: Sequence[tuple[int, str]], fields: Sequence[Field], taken: set[str]
    ) -> tuple[list[WrittenInstruction], list[str]]:
        """The operands of a save, and what must be read into registers first."""
        moves = []
        operands = []
        for (start, text), field in zip(words, fields, strict=True):
            word = " ".join(text.split())
            offset = self._document.within(path, start)
            if self._platform == "cuda":
                self._registers.stretch(word, offset)
                if word in SPECIAL_REGISTERS:
                    move, word = self._read_special(word, field, offset, taken)
                    moves.append(move)
            operands.append(word)
        return moves, operands

    def _read_special(self, word: str, field: Field, offset: int, taken: set[str]) -> tuple[WrittenInstruction, str]:
        """A special register among the operands of SAVE: read into a register of its own first."""
        kind = SPECIAL_REGISTERS[word]
        wide = kind == "u32" and field.type.size == 8
        message = f"{word} inside SAVE is read into a register first"
        self._document.warn(offset, "special-register-saved", message, f"write mov.{kind} %r, {word};")
        span = self._document.span(offset)
        name = "%save_" + word[1:].replace(".", "_") + ("_u64" if wide else "")
        name = self._registers.add(name, Type.U64 if wide else Type(kind), span, taken)
        text = f"cvt.u64.u32 {name}, {word}" if wide else f"mov.{kind} {name}, {word}"
        return WrittenInstruction(text, span), name

    def _copied(
        self, words: Sequence[str], named: set[str], span: Span, taken: set[str]
    ) -> tuple[list[WrittenInstruction], list[str]]:
        """Copies of the operands that instructions between here and the record's last SAVE name."""
        copies = []
        operands = []
        for word in words:
            kind = self._registers.type_of(word)
            if word in named and kind in _COPIED:
                name = self._registers.add(f"{word}_saved", kind, span, taken)
                copies.append(WrittenInstruction(f"mov.{_COPIED[kind]} {name}, {word}", span))
                operands.append(name)
            else:
                operands.append(word)
        return copies, operands


def _last_named(side: Side) -> dict[str, int]:
    """Register → index of the last instruction that names it before the last typed SAVE."""
    last = max((index for index, part in enumerate(side.parts) if isinstance(part, TypedSave)), default=0)
    return {
        word: index
        for index, part in enumerate(side.parts[:last])
        if isinstance(part, Statement)
        for word in REGISTER_WORD.findall(part.text)
    }


_COPIED = {
    **dict.fromkeys(("b16", "u16", "s16", "f16"), "b16"),
    **dict.fromkeys(("b32", "u32", "s32", "f16x2"), "b32"),
    **dict.fromkeys(("b64", "u64", "s64"), "b64"),
    "f32": "f32", "f64": "f64",
}  # fmt: skip
"""Type of a register that can be saved → the type of ``mov`` for it."""


def _squeezed(name: str) -> str:
    return name.replace("_", "").lower()
