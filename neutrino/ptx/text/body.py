"""The body of one function: what names it declares where, and which stretches nothing may be put into."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

_BRACE = re.compile(r"[{}]")
_LABEL_NAME = re.compile(r"(?<![\w$%])([A-Za-z_$%][\w$]*)\s*\Z", re.ASCII)
_DECLARATION = re.compile(
    r"(?<=[;{}\s])\.(?P<space>reg|shared|local|param|global|const)\b(?P<rest>[^;{}]*)(?=[;{=])", re.ASCII
)
_DECLARED = re.compile(
    r"(?:^|,)\s*(?P<name>[A-Za-z_$%][\w$]*)\s*(?:<\s*(?P<count>\d{1,9})\s*>)?(?:\[[^\]]*\]\s*)*\s*(?=,|=|\Z)",
    re.ASCII,
)
_GIVEN_REGISTER = re.compile(r"\.reg\s+\.(?P<type>\w+)\s+(?P<name>[A-Za-z_$%][\w$]*)", re.ASCII)
_TYPE_WORDS = re.compile(r"(?:\s*\.(?:align\s+\d+|[a-z]\w*))*\s*", re.ASCII)
_LAST_WORD = re.compile(r"\.([a-z]\w*)\s*\Z", re.ASCII)
CALL = re.compile(r"(?<=[;{}:\s])call\b(?:\.\w+)*", re.ASCII)
"""A call, from its opcode on."""
_TO_CALL = re.compile(r"\s*(?:\.param\b[^;{}]*|st\.param\b[^;{}]*)\s*\Z", re.ASCII)
_AROUND_CALL = re.compile(
    r"\s*(?:\.(?:param|reg)\b|(?:st|ld)\.param\b|[\w$%]+\s*:\s*\.call(?:prototype|targets)\b|\Z)", re.ASCII
)
_CALL_ALONE = re.compile(r"\s*(?:@\s*!?\s*[\w$%]+\s+)?call\b", re.ASCII)
_FROM_CALL = re.compile(r"\s*ld\.param\b[^;{}]*;", re.ASCII)
_TRAILING_DIGITS = re.compile(r"(.*?)(0|[1-9]\d{0,8})\Z", re.ASCII)


@dataclass(frozen=True)
class Declaration:
    """``.reg .b32 %r<5>``: space ``reg``, type ``b32``, name ``%r``, count 5 (None without one).

    start: where it takes effect; end: where its scope ends. Positions are in the module's text.
    """

    name: str
    space: str
    type: str
    count: int | None
    start: int
    end: int


class Body:
    """A function's body, between its braces. code: the module's blanked text.

    head: the header of a function that takes or returns registers, which are declared there; None of a kernel.
    """

    def __init__(self, code: str, start: int, end: int, head: tuple[int, int] | None = None) -> None:
        self.code = code
        self.start = start
        self.end = end
        self._head = head

    @cached_property
    def blocks(self) -> list[tuple[int, int]]:
        """Every pair of braces, by the position of the opening one; the body's own comes first."""
        found = []
        open_braces: list[int] = []
        for brace in _BRACE.finditer(self.code, self.start, self.end):
            if brace[0] == "{":
                open_braces.append(brace.start())
            elif open_braces:
                found.append((open_braces.pop(), brace.start()))
        # Braces that nothing closes hold the rest: such text is for ptxas to refuse.
        return sorted([*found, *((opening, self.end) for opening in open_braces)])

    @cached_property
    def labels(self) -> list[tuple[str, int, int]]:
        """The labels in text order: the name, where it begins, where its colon is."""
        code, found = self.code, []
        colon = code.find(":", self.start, self.end)
        while colon >= 0:
            if code[colon + 1] == ":":
                colon += 1  # within an opcode
            else:
                begin = max(code.rfind(mark, self.start, colon) for mark in ";{}")
                name = _LABEL_NAME.search(code, max(begin + 1, self.start), colon)
                if name is not None:
                    found.append((name[1], name.start(), colon))
            colon = code.find(":", colon + 1, self.end)
        return found

    def enclosing(self, position: int) -> tuple[int, int]:
        """The innermost pair of braces around a position."""
        at = bisect_right(self.blocks, (position, -1)) - 1
        while at > 0 and self.blocks[at][1] < position:
            at -= 1
        return self.blocks[max(at, 0)]

    @cached_property
    def declarations(self) -> dict[str, list[Declaration]]:
        """Declarations by name, in text order; ``%r<5>`` stands under ``%r``."""
        found: dict[str, list[Declaration]] = {}
        for given in _GIVEN_REGISTER.finditer(self.code, *self._head) if self._head else ():
            found[given["name"]] = [Declaration(given["name"], "reg", given["type"], None, self.start, self.end)]
        for match in _DECLARATION.finditer(self.code, self.start, self.end):
            words = _TYPE_WORDS.match(match["rest"])
            names_from = words.end() if words else 0
            kind = _LAST_WORD.search(match["rest"][:names_from])
            scope = self.enclosing(match.start())
            for declared in _DECLARED.finditer(match["rest"][names_from:]):
                declaration = Declaration(
                    declared["name"],
                    match["space"],
                    kind[1] if kind else "",
                    int(declared["count"]) if declared["count"] else None,
                    match.start(),
                    scope[1],
                )
                found.setdefault(declaration.name, []).append(declaration)
        return found

    def declaration(self, name: str, position: int) -> Declaration | None:
        """The declaration that a name means at a position, the innermost one; None if the body declares
        none."""
        candidates = [entry for entry in self.declarations.get(name, ()) if entry.count is None]
        split = _TRAILING_DIGITS.match(name)
        if split is not None:
            number = int(split[2])
            candidates += [
                entry
                for entry in self.declarations.get(split[1], ())
                if entry.count is not None and number < entry.count
            ]
        visible = [entry for entry in candidates if entry.start <= position < entry.end]
        return max(visible, key=lambda entry: entry.start, default=None)

    @cached_property
    def has_calls(self) -> bool:
        """It may call something: without the word it does not."""
        return self.code.find("call", self.start, self.end) >= 0

    @cached_property
    def call_sequences(self) -> list[tuple[int, int]]:
        """Stretches from the first argument's store to the last result's load, in text order.

        A call alone in braces takes the whole block; any other one the stores of parameters right before it and the
        loads right behind it.
        """
        if not self.has_calls:
            return []
        found = []
        for call in CALL.finditer(self.code, self.start, self.end):
            opening, closing = self.enclosing(call.start())
            end = self.code.find(";", call.end()) + 1
            if opening != self.start and self.is_plain_call((opening, closing + 1)):
                found.append((opening, closing + 1))
                continue
            start = self.statement_start(call.start())
            while True:
                semicolon = self.code.rfind(";", self.start, start)
                before = self.statement_start(semicolon)
                if semicolon < 0 or not _TO_CALL.match(self.code[before:semicolon]):
                    break
                start = before
            follow = _FROM_CALL.match(self.code, end, self.end)
            while follow is not None:
                end = follow.end()
                follow = _FROM_CALL.match(self.code, end, self.end)
            found.append((start, end))
        return found

    def call_sequence(self, position: int) -> tuple[int, int] | None:
        """The call sequence that a position lies in."""
        at = bisect_right(self.call_sequences, (position, self.end)) - 1
        if at >= 0 and self.call_sequences[at][0] <= position < self.call_sequences[at][1]:
            return self.call_sequences[at]
        return None

    def is_plain_call(self, sequence: tuple[int, int]) -> bool:
        """A call sequence holds nothing but one call, its declarations, and its arguments and results."""
        statements = self.code[slice(*sequence)].strip("{}").split(";")
        others = [text for text in statements if not _AROUND_CALL.match(text)]
        return len(others) == 1 and _CALL_ALONE.match(others[0]) is not None

    def statement_start(self, position: int) -> int:
        """Where the statement around a position starts: behind the last ``;``, brace or label, white space
        skipped."""
        code = self.code
        start = self.start
        for mark in ";{}":
            start = max(start, code.rfind(mark, start, position) + 1)
        label = code.rfind(":", start, position)
        while label > start and (code[label - 1] == ":" or code[label + 1 : label + 2] == ":"):
            label = code.rfind(":", start, label)
        if label >= start:
            start = label + 1
        while start < position and code[start].isspace():
            start += 1
        return start
