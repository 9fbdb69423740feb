"""Operands of hand-written PTX snippets, from their text to values of the intermediate representation."""

from __future__ import annotations

from collections.abc import Mapping

from neutrino.probing.ir.operands import (
    AssemblyOperand,
    Immediate,
    Inverted,
    Pair,
    Register,
    SavedOperand,
    SiteOperand,
    SpecialRegister,
)
from neutrino.probing.ir.types import Type
from neutrino.probing.special_registers import SPECIAL_REGISTERS
from neutrino.ptx.snippets.site_operands import HELPER


def parse_saved_operand(word: str, registers: Mapping[str, Register]) -> SavedOperand:
    """Parse one operand of a ``SAVE``, which has been checked before. registers: those of the probe file, by name."""
    operand = parse_operand(word, registers)
    # A save takes neither !%p nor %p|%q: the check has reported them, and the snippet is not used.
    return operand if not isinstance(operand, (Inverted, Pair)) else Immediate(word)


def parse_operand(word: str, registers: Mapping[str, Register]) -> AssemblyOperand:
    """Parse one operand, which has been checked before; an invalid one becomes an ``Immediate``.

    registers: those of the probe file, by name.
    """
    helper = HELPER.fullmatch(word)
    if helper:
        # Helpers without elements (ADDR) are the whole word, and in no group of the pattern.
        return SiteOperand(helper["name"] or word, helper["element"])
    if word in registers:
        return registers[word]
    if word in SPECIAL_REGISTERS:
        return SpecialRegister(word, Type(SPECIAL_REGISTERS[word]))
    if word.startswith("!"):
        operand = parse_operand(word[1:].strip(), registers)
        return Inverted(operand) if isinstance(operand, (Register, SiteOperand)) else Immediate(word)
    first, bar, second = (part.strip() for part in word.partition("|"))
    if bar and first in registers and second in registers:
        return Pair(registers[first], registers[second])
    return Immediate(word)
