"""An instruction's text taken apart, as LLVM prints it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_FORMS = re.compile(r"(?:_e64_dpp|_e32_dpp|_dpp|_sdwa|_e32|_e64|_dpp8)$")
_LISTS = ("s_waitcnt", "s_delay_alu", "s_wait_alu", "s_waitcnt_depctr", "s_wait_event")
"""Mnemonics whose operand is a list of words."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """text: as printed. mnemonic: without the suffix of its encoding. form: that suffix, such as ``_dpp``, or "".
    operands: in order. modifiers: by name; the value is "" for those that have none. second: of a dual instruction."""

    text: str
    mnemonic: str
    form: str
    operands: tuple[str, ...]
    modifiers: dict[str, str]
    second: Parsed | None = None

    def number(self, modifier: str, default: int = 0) -> int:
        """Return the value of a modifier that is a number."""
        value = self.modifiers.get(modifier)
        return int(value, 0) if value else default

    def numbers(self, modifier: str) -> tuple[int, ...]:
        """Return the value of a modifier that is a list, () without it."""
        value = self.modifiers.get(modifier)
        return tuple(int(part, 0) for part in value.strip("[]").split(",")) if value else ()


@lru_cache(1 << 16)
def parse(text: str) -> Parsed:
    """Take apart the text of one instruction, or of a dual one, whose halves ``::`` separates."""
    first, _, other = text.partition("::")
    second = _one(other.strip().replace("v_dual_", "v_", 1), text) if other else None
    parsed = _one(first.strip().replace("v_dual_", "v_", 1) if other else first.strip(), text)
    return Parsed(text, parsed.mnemonic, parsed.form, parsed.operands, parsed.modifiers, second)


def _one(part: str, text: str) -> Parsed:
    """Take apart the text of one instruction. part: its text; text: that of the whole, which may be of two
    instructions."""
    full, _, rest = part.partition(" ")
    form = _FORMS.search(full)
    mnemonic = full[: form.start()] if form else full
    suffix = form[0] if form else ""
    rest = rest.strip()
    if mnemonic in _LISTS:
        return Parsed(text, mnemonic, suffix, tuple(word for word in rest.split() if word != "|"), {})
    pieces = [piece.strip() for piece in _split(rest, ",")] if rest else []
    modifiers: dict[str, str] = {}
    if pieces:
        words = [word for word in _split(pieces[-1], " ") if word]
        pieces[-1] = words[0]
        for word in words[1:]:
            name, _, value = word.partition(":")
            modifiers[name] = value
    return Parsed(text, mnemonic, suffix, tuple(pieces), modifiers)


def _split(text: str, separator: str) -> list[str]:
    """Split at a character outside brackets."""
    parts, depth, begin = [], 0, 0
    for at, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == separator and not depth:
            parts.append(text[begin:at])
            begin = at + 1
    return [*parts, text[begin:]]
