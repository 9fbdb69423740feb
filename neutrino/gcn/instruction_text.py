"""The text of an instruction of AMD's processors, as LLVM prints it, taken apart."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_FLAGS = frozenset(
    {
        "glc", "slc", "dlc", "sc0", "sc1", "nt", "scc", "offen", "idxen", "addr64", "lds", "tfe", "lwe", "clamp", "gds",
        "unorm", "a16", "d16", "da", "r128", "done", "vm", "row_en", "compr", "high", "nv",
    }
)  # fmt: skip
"""Modifiers without a value. They follow the operands, but instructions without operands have them too."""
_VALUED = re.compile(r"[a-z_0-9]+:")
_WORDS = frozenset({"s_waitcnt", "s_waitcnt_depctr", "s_wait_alu", "s_delay_alu", "s_wait_event", "s_set_gpr_idx_mode"})
"""Mnemonics whose operand is a list of words."""
_OPENING, _CLOSING = "([{", ")]}"

BRANCHES = re.compile(r"s_branch|s_cbranch_(scc[01]|vccn?z|execn?z|cdbg\w+)|s_call_[bi]64")
"""Mnemonics with a branch field: a signed number of words in the low 16 bits, counted from the next instruction."""
_MOST_KEPT = 1 << 13
"""Texts of snippets whose parts are kept."""


class Decoded(NamedTuple):
    """What machine code says of an instruction without its place. size: in bytes, 0 of a text that nothing has
    assembled. is_branch: whether it has a branch field. The other fields are as ``code.Instruction`` has them."""

    size: int
    text: str
    mnemonic: str
    operands: tuple[str, ...]
    modifiers: tuple[str, ...]
    second: tuple[str, tuple[str, ...]] | None
    is_branch: bool


def decoded(size: int, text: str) -> Decoded:
    """Take the text of a decoded instruction apart. size: in bytes."""
    first, _, other = text.partition(" :: ")
    mnemonic, operands, modifiers = _half(first)
    second = None
    if other:
        second_mnemonic, second_operands, rest = _half(other)
        second = second_mnemonic, second_operands
        modifiers += rest
    return Decoded(size, text, mnemonic, operands, modifiers, second, BRANCHES.fullmatch(mnemonic) is not None)


@lru_cache(maxsize=_MOST_KEPT)
def taken_apart(text: str) -> Decoded:
    """Take the text of an instruction apart that nothing has assembled. Most texts occur more than once."""
    return decoded(0, text)


def _half(text: str) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Return mnemonic, operands and modifiers of one instruction."""
    mnemonic, _, rest = text.partition(" ")
    rest = rest.strip()
    if not rest:
        return mnemonic, (), ()
    if mnemonic in _WORDS:
        return mnemonic, tuple(word for word in _split_outside(rest, " ") if word != "|"), ()
    *front, last = _split_outside(rest, ",")
    words = _split_outside(last, " ")
    # An instruction without operands begins with its modifiers.
    is_operand = bool(front) or not (words[0] in _FLAGS or _VALUED.match(words[0]))
    operands = (*front, words[0]) if is_operand else ()
    return mnemonic, operands, tuple(words[is_operand:])


def _split_outside(text: str, separator: str) -> list[str]:
    """Split a text at a character outside brackets and quotes; parts are stripped, and empty ones left out."""
    if not any(character in text for character in '([{"'):
        return [part.strip() for part in text.split(separator) if part.strip()]
    parts, depth, begin, quoted = [], 0, 0, False
    for at, character in enumerate(text):
        if character == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        elif character == separator and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
    parts.append(text[begin:])
    return [part.strip() for part in parts if part.strip()]
