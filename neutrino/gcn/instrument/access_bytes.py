"""How many bytes an access moves, by its instruction."""

from __future__ import annotations

import re

from neutrino.gcn.code import Instruction
from neutrino.gcn.instrument.compute import CannotError
from neutrino.gcn.snippets.opcodes import names_of

_WORDS = {"byte": 1, "ubyte": 1, "sbyte": 1, "short": 2, "ushort": 2, "sshort": 2, "dword": 4}
_SIZED = re.compile(r"(?:global|buffer)_(?:load|store)_(?:d16_)?(?:hi_)?(?:([a-z]+)(?:x(\d))?|[biu](\d+))")
_ATOMIC = re.compile(r"(?:global|buffer)_atomic_\w+?(_x2|_[a-z]+64|_[a-z]+32)?")
_SCALAR = re.compile(r"s_(?:buffer_)?load_(?:dword(?:x(\d+))?|b(\d+))")


def bytes_of(instruction: Instruction) -> tuple[int, bool]:
    """Return how many bytes an access moves, and whether each lane does, rather than the wave. Raises CannotError."""
    mnemonic = instruction.mnemonic
    if (match := _SCALAR.fullmatch(mnemonic)) is not None:
        return (int(match[2]) // 8 if match[2] else 4 * int(match[1] or 1)), False
    if (match := _SIZED.fullmatch(mnemonic)) is not None:
        if match[3]:
            return int(match[3]) // 8, True
        if match[1] in _WORDS:
            return _WORDS[match[1]] * int(match[2] or 1), True
    if "atomic" in names_of(mnemonic, instruction.modifiers).classes and (match := _ATOMIC.fullmatch(mnemonic)):
        suffix = match[1] or ""
        return (8 if suffix == "_x2" or suffix.endswith("64") else 4), True
    raise CannotError(f"how many bytes {mnemonic} moves is not known")
