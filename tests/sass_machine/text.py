"""Machine instructions as nvdisasm prints them, taken apart: guard, name, operands.

Immediates, signs and modifiers come from this text alone; the registers in it are compared with those that the decoder
reads, when an instruction is made ready to run.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.sass_twin.listing import tool

_LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
_GUARD = re.compile(r"@(!?)(U?)P(\d|T)\s+")
_REGISTER = re.compile(r"(!|-|~)?(\|)?(UR|R|UP|P)(\d+|Z|T)((?:\.\w+)*)\|?((?:\.\w+)*)$")
_CONSTANT = re.compile(r"(-|~)?(\|)?c\[(0x[0-9a-f]+)\]\[(?:(R\d+|RZ|UR\d+)\+?)?(-?0x[0-9a-f]+)?\]\|?((?:\.\w+)*)$")
_MEMORY = re.compile(r"(?:desc\[(UR\d+)\])?\[(.*)\]$")
_NUMBER = re.compile(r"-?0x[0-9a-f]+$")
_OTHERS = re.compile(r"(SR_\S+|SRZ|B\d+|SB\d|PR|`\(.*\))$")


class UnknownMachineCodeError(Exception):
    """Something of an instruction that this interpreter does not know."""


@dataclass(frozen=True)
class Text:
    """An operand. kind: R, UR, P, UP (registers), imm, float, c (a constant), mem (an address), or other.

    number: a register's, or an immediate. sign: "-", "~" or "!". base: of an address or a constant, the register that
    is added; wide: whether an address's has 64 bits. uniform: of an address, the uniform register that is added.
    """

    text: str
    kind: str
    number: int = 0
    sign: str = ""
    absolute: bool = False
    parts: tuple[str, ...] = ()
    bank: int = 0
    base: int | None = None
    wide: bool = False
    uniform: int | None = None
    wide_uniform: bool = False
    descriptor: int | None = None


@dataclass(frozen=True)
class Parsed:
    """An instruction's text. guard: (negated, UP instead of P, number), None without."""

    text: str
    guard: tuple[bool, bool, int] | None
    name: str
    parts: tuple[str, ...]
    operands: tuple[Text, ...]


_ZERO = {"R": 255, "UR": 63, "P": 7, "UP": 7}
_known: dict[int, Parsed] = {}


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part for part in text.split(".") if part)


def _register(text: str) -> tuple[str, int]:
    file, number = re.match(r"(UR|R|UP|P)(.*)", text).groups()
    return file, _ZERO[file] if number in "ZT" else int(number)


def _operand(text: str) -> Text:
    """Take an operand apart. Raises UnknownMachineCodeError."""
    if found := _REGISTER.match(text):
        sign, absolute, file, number, one, two = found.groups()
        number = _ZERO[file] if number in "ZT" else int(number)
        return Text(text, file, number, sign or "", bool(absolute), _parts(one + two))
    if _NUMBER.match(text):
        return Text(text, "imm", int(text, 16))
    if found := _CONSTANT.match(text):
        sign, absolute, bank, base, offset, parts = found.groups()
        file, number = _register(base) if base else ("R", None)
        return Text(
            text, "c", int(offset or "0", 16), sign or "", bool(absolute), _parts(parts), int(bank, 16),
            number if file == "R" else None, uniform=number if file == "UR" else None,
        )  # fmt: skip
    if found := _MEMORY.match(text):
        descriptor, inner = found.groups()
        number, base, wide, uniform, wide_uniform = 0, None, False, None, False
        for part in inner.split("+"):
            register = _REGISTER.match(part)
            if _NUMBER.match(part):
                number += int(part, 16)
            elif register and register[3] == "R" and base is None and register[5] in ("", ".64", ".U32"):
                base, wide = _register(register[3] + register[4])[1], register[5] == ".64"
            elif register and register[3] == "UR" and uniform is None and register[5] in ("", ".64"):
                uniform, wide_uniform = _register(register[3] + register[4])[1], register[5] == ".64"
            else:
                raise UnknownMachineCodeError(f"the address {text}")
        return Text(
            text, "mem", number, base=base, wide=wide, uniform=uniform, wide_uniform=wide_uniform,
            descriptor=int(descriptor[2:]) if descriptor else None,
        )  # fmt: skip
    if _OTHERS.match(text):
        return Text(text, "other")
    if re.match(r"[-+]?(\d|INF|QNAN|SNAN)", text):
        return Text(text, "float")
    raise UnknownMachineCodeError(f"the operand {text}")


def _split(text: str) -> list[str]:
    """Operands, at the commas outside of brackets, or where one follows without a comma (``BRX R4 -0x10``)."""
    found, depth, at = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "[(") - (letter in "])")
        if letter in ", " and not depth:
            found.append(text[at:place])
            at = place + 1
    return [one for one in [*found, text[at:]] if one]


def _parse(text: str) -> Parsed:
    text = text.replace(".reuse", "")
    rest, guard = text, None
    if found := _GUARD.match(text):
        guard = bool(found[1]), bool(found[2]), 7 if found[3] == "T" else int(found[3])
        rest = text[found.end() :]
    name, _, operands = rest.partition(" ")
    first, *parts = name.split(".")
    try:
        return Parsed(text, guard, first, tuple(parts), tuple(_operand(one) for one in _split(operands)))
    except UnknownMachineCodeError as error:
        raise UnknownMachineCodeError(f"{text}: {error}") from None


def read(words: Iterable[int]) -> dict[int, Parsed]:
    """Return the text of instructions, all read in one run of nvdisasm. Raises UnknownMachineCodeError."""
    wanted = dict.fromkeys(words)
    missing = [word for word in wanted if word not in _known]
    if missing:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "words"
            path.write_bytes(b"".join(word.to_bytes(16, "little") for word in missing))
            arguments = [tool("nvdisasm"), "-b", "SM90a", "-ndf", str(path)]
            result = subprocess.run(arguments, capture_output=True, text=True, check=False)
        lines = {int(found[1], 16): found[2] for found in _LINE.finditer(result.stdout)}
        for at, word in enumerate(missing):
            if 16 * at not in lines:
                raise UnknownMachineCodeError(f"nvdisasm reads no instruction in {word:032x}: {result.stderr[:200]}")
            _known[word] = _parse(lines[16 * at])
    return {word: _known[word] for word in wanted}
