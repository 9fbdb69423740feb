"""Simpler straight-line code for the same values: copies are read through, and what nothing reads is left out.

ptxas does so, too. But that a snippet only adds a constant, so that several sites are counted at once, is seen in its
instructions before.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from neutrino.probing.ir.operands import (
    AssemblyOperand,
    Immediate,
    Inverted,
    Register,
    SavedOperand,
    SiteOperand,
)
from neutrino.probing.ir.statements import Assembly, Save, Straight, registers_of
from neutrino.probing.ir.types import Type

_COPIES = frozenset({"mov.b16", "mov.b32", "mov.b64", "mov.f32", "mov.f64", "mov.pred"})
_NONE: Set[str] = frozenset()
_SUMS = frozenset({"add.u32", "add.s32", "add.u64", "add.s64"})
"""Instructions that take numbers and counts of the site as their last operand, so that they add a constant."""
_COUNTS = frozenset({"BYTES", "OPS"})
"""Values of the site that are mostly constants; u64."""
_TAKES_SITE = {
    "isspacep.global": frozenset({"ADDR"}), "cvt.u32.u64": frozenset({"ADDR"}), "selp.b64": _COUNTS,
}  # fmt: skip
"""Instructions that take values of the site where they take registers."""


def folded(code: Sequence[Straight]) -> tuple[Straight, ...]:
    """Return lowered statements that compute the same, of one snippet."""
    return _without_unread(_with_wide_products(_without_copies(code)))


def _with_wide_products(code: Sequence[Straight]) -> list[Straight]:
    """Return the statements with products of 64 bits of two extended words as ``mul.wide``.

    It is one machine instruction, which takes a sum with the product as well. ptxas does not see that by itself.
    """
    # Name of a register → the word that it is extended from.
    words: dict[str, AssemblyOperand] = {}
    result: list[Straight] = []
    for statement in code:
        if isinstance(statement, Save):
            result.append(statement)
            continue
        opcode, read = statement.opcode, [getattr(source, "name", "") for source in statement.operands[1:]]
        if opcode == "mul.lo.u64" and all(name in words for name in read):
            sources = [words[name] for name in read]
            statement = replace(statement, opcode="mul.wide.u32", operands=(statement.operands[0], *sources))
        for written in statement.writes:
            words = {
                name: word for name, word in words.items() if name != written.name and word != written
            }
        if opcode == "cvt.u64.u32" and statement.guard is None:
            words[statement.writes[0].name] = statement.operands[1]
        result.append(statement)
    return result


def _without_copies(code: Sequence[Straight]) -> list[Straight]:
    """Return the statements with local registers that are copies replaced by what they are copies of."""
    # Name of a local register → the value that it is a copy of at this point.
    copies: dict[str, AssemblyOperand] = {}
    result: list[Straight] = []
    for statement in code:
        if isinstance(statement, Save):
            result.append(_save(statement, copies))
            continue
        statement = _instruction(statement, copies)
        for written in statement.writes:
            copies.pop(written.name, None)
            for name in [name for name, source in copies.items() if source == written]:
                del copies[name]
        source = _copied(statement)
        if source is not None:
            copies[statement.writes[0].name] = source
        result.append(statement)
    return result


def _copied(statement: Assembly) -> AssemblyOperand | None:
    """Return what an instruction copies to a local register; None if it is no such copy."""
    if statement.opcode not in _COPIES or statement.guard is not None or not statement.writes[0].is_local:
        return None
    target, source = statement.writes[0], statement.operands[1]
    if isinstance(source, Register):
        # Of other types instructions may not take it. A copy of itself is none.
        return source if source.type is target.type and source != target else None
    if isinstance(source, SiteOperand):
        return source if source.text in _COUNTS | {"ADDR"} and target.type in {Type.U64, Type.S64} else None
    return source if isinstance(source, Immediate) else None


def _instruction(statement: Assembly, copies: dict[str, AssemblyOperand]) -> Assembly:
    """Return an instruction that reads the originals of copies where it can."""
    if not copies or len(statement.writes) != 1 or statement.operands[:1] != statement.writes:
        return statement
    first, *sources = statement.operands
    last = len(sources) - 1
    read = [
        _read(
            source, copies, _TAKES_SITE.get(statement.opcode, _NONE),
            is_addend=statement.opcode in _SUMS and number == last,
        )
        for number, source in enumerate(sources)
    ]
    guard = statement.guard
    if isinstance(guard, Register):
        original = copies.get(guard.name)
        guard = original if isinstance(original, Register) else guard
    if guard is statement.guard and read == sources:
        return statement
    return replace(statement, operands=(first, *read), guard=guard)


def _read(
    source: AssemblyOperand, copies: dict[str, AssemblyOperand], taken: Set[str], *, is_addend: bool
) -> AssemblyOperand:
    """Return the original of a source operand that is a copy, if it can stand there.

    taken: names of the site's values that can. is_addend: where numbers and counts can.
    """
    if isinstance(source, Inverted):
        inner = source.operand
        original = copies.get(inner.name) if isinstance(inner, Register) else None
        return Inverted(original) if isinstance(original, Register) else source
    original = copies.get(source.name) if isinstance(source, Register) else None
    if isinstance(original, SiteOperand):
        return original if original.text in taken or (is_addend and original.text in _COUNTS) else source
    return original if isinstance(original, Register) or (original is not None and is_addend) else source


def _save(save: Save, copies: dict[str, AssemblyOperand]) -> Save:
    """Return a save of the originals of copies."""

    def original(operand: SavedOperand) -> SavedOperand:
        found = copies.get(operand.name) if isinstance(operand, Register) else None
        return found if isinstance(found, (Register, SiteOperand)) else operand

    guard = copies.get(save.guard.name) if save.guard is not None else None
    return replace(
        save,
        operands=tuple(map(original, save.operands)),
        guard=guard if isinstance(guard, Register) else save.guard,
    )


def _without_unread(code: Sequence[Straight]) -> tuple[Straight, ...]:
    """Return the statements without instructions whose results, in local registers, nothing reads."""
    # Names of the local registers that statements further down read.
    live: set[str] = set()
    kept: list[Straight] = []
    for statement in reversed(code):
        read = list(registers_of(statement))
        if isinstance(statement, Assembly):
            if statement.writes and all(item.is_local and item.name not in live for item in statement.writes):
                continue
            for written in statement.writes:
                # As a destination; a register that is read as well is named once more.
                read.remove(written)
                if statement.guard is None:
                    live.discard(written.name)
        live |= {register.name for register in read if register.is_local}
        kept.append(statement)
    return tuple(reversed(kept))
