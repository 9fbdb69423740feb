"""Simpler straight-line code for the same values: copies are read through, and what nothing reads is left out.

ptxas does so, too. But that a snippet only adds a constant, so that several sites are counted at once, is seen in its
instructions before. At the instructions with one opcode ``HAS`` and ``ELEMENTS`` are numbers, so that conditions on
them are specialized: what they leave out is not inserted, and the rest needs no predicate.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence, Set
from dataclasses import replace

from neutrino.ir.operands import (
    AssemblyOperand,
    Immediate,
    Inverted,
    Register,
    SavedOperand,
    SiteOperand,
)
from neutrino.ir.statements import Assembly
from neutrino.ir.types import Type
from neutrino.probing.ir.probe_set import Snippet
from neutrino.probing.ir.structured import Save, Straight, registers_of
from neutrino.ptx.isa.scalars import INTEGER, MAX_LITERAL, integer

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

BY_OPCODE = frozenset({"HAS", "ELEMENTS"})
"""Values of the instruction that its opcode alone gives, as numbers."""

_BINARY: dict[str, Callable[[int, int], int]] = {
    "and": int.__and__, "or": int.__or__, "xor": int.__xor__, "add": int.__add__, "sub": int.__sub__,
    "mul.lo": int.__mul__,
}  # fmt: skip
_RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "eq": int.__eq__, "ne": int.__ne__, "lt": int.__lt__, "le": int.__le__, "gt": int.__gt__, "ge": int.__ge__,
    "lo": int.__lt__, "ls": int.__le__, "hi": int.__gt__, "hs": int.__ge__,
}  # fmt: skip
_OPCODE = re.compile(
    r"(?P<name>mov|not|cvt\.u(?:16|32|64)|selp|(?:and|or|xor|add|sub|mul\.lo)|setp\.(?P<relation>\w+))"
    r"\.(?P<type>pred|[bus](?P<bits>16|32|64))",
    re.ASCII,
)


def folded(code: Sequence[Straight]) -> tuple[Straight, ...]:
    """Return the instructions of a snippet (a probe's code) simplified, with the same result: copies and unread values
    removed."""
    return _without_unread(_with_wide_products(_without_copies(code)))


def _with_wide_products(code: Sequence[Straight]) -> list[Straight]:
    """Return the instructions with 64-bit products of two zero-extended 32-bit words written as ``mul.wide``.

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
    """Return the instructions with local registers that hold copies replaced by what they are copies of (copy
    propagation)."""
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
    """Return the value that an instruction copies to a local register; None if it is no copy that may be replaced."""
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
    """Return an instruction that reads, in place of registers that hold copies, what they are copies of, where it can.

    copies: by register, its original.
    """
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
    """Return what an instruction can read in place of a source operand that holds a copy: its original, or the operand
    itself.

    taken: names of the site's values that can stand there. is_addend: where numbers and counts can.
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
    """Return a save in which copies are replaced by what they are copies of. copies: by register, its original."""

    def original(operand: SavedOperand) -> SavedOperand:
        """What a saved operand is a copy of, or the operand itself."""
        found = copies.get(operand.name) if isinstance(operand, Register) else None
        return found if isinstance(found, (Register, SiteOperand)) else operand

    guard = copies.get(save.guard.name) if save.guard is not None else None
    return replace(
        save,
        operands=tuple(map(original, save.operands)),
        guard=guard if isinstance(guard, Register) else save.guard,
    )


def _without_unread(code: Sequence[Straight]) -> tuple[Straight, ...]:
    """Return the instructions without those whose results, in local registers, nothing reads (dead code elimination).
    """
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


def specialized(snippet: Snippet, value: Callable[[SiteOperand], int]) -> Snippet:
    """Return a lowered snippet (a probe's code) simplified for one opcode, which decides some of the values that it
    reads.

    value: gives the values of ``BY_OPCODE``.
    """
    return Snippet(folded(_ConstantFolder(value).specialized(snippet.straight)))


class _ConstantFolder:
    """Folds constants in one snippet: follows which registers hold known numbers. value: see ``specialized``."""

    def __init__(self, value: Callable[[SiteOperand], int]) -> None:
        """Set up constant folding for one snippet. value: gives the number that a value of the site is, by its opcode.
        """
        self._site_value = value
        # Name of a local register → its bits at this point, as an unsigned number.
        self._known: dict[str, int] = {}

    def specialized(self, code: Sequence[Straight]) -> list[Straight]:
        """Return the statements simplified by known numbers, without those whose predicate is known to be false."""
        result: list[Straight] = []
        for statement in code:
            holds = self._value(statement.guard, 1) if statement.guard is not None else None
            if holds is not None:
                if bool(holds) == statement.is_inverted:
                    continue
                statement = replace(statement, guard=None, is_inverted=False)
            if isinstance(statement, Assembly):
                statement = self._simplified(statement)
                self._note(statement)
            result.append(statement)
        return result

    def _note(self, statement: Assembly) -> None:
        """Note which number an instruction puts into a register, as far as that is known."""
        computed = self._computed(statement) if statement.guard is None else None
        for register in statement.writes:
            self._known.pop(register.name, None)
            # A shared register has another value at the next site.
            if computed is not None and register.is_local:
                self._known[register.name] = computed

    def _simplified(self, statement: Assembly) -> Assembly:
        """Return an instruction simplified by known predicates: a selection or conjunction that one of them decides."""
        match = _OPCODE.fullmatch(statement.opcode)
        if match is None or len(statement.writes) != 1:
            return statement
        destination, *sources = statement.operands
        if match["name"] == "selp":
            chosen = self._value(sources[2], 1)
            if chosen is not None:
                opcode = f"mov.b{match['bits']}"
                return replace(statement, opcode=opcode, operands=(destination, sources[0 if chosen else 1]))
        if match["name"] == "mov" and isinstance(sources[0], SiteOperand) and sources[0].name in BY_OPCODE:
            return replace(statement, operands=(destination, Immediate(str(self._site_value(sources[0])))))
        if match["name"] in {"and", "or"} and match["type"] == "pred":
            neutral = int(match["name"] == "and")
            for at, source in enumerate(sources):
                # A known predicate that decides the result is found by `_computed`.
                other = sources[1 - at]
                if self._value(source, 1) == neutral and isinstance(other, (Register, Inverted)):
                    opcode = "not.pred" if isinstance(other, Inverted) else "mov.pred"
                    inner = other.operand if isinstance(other, Inverted) else other
                    return replace(statement, opcode=opcode, operands=(destination, inner))
        return statement

    def _computed(self, statement: Assembly) -> int | None:
        """Return the number that an instruction computes; None if that is not known, or it has several results."""
        match = _OPCODE.fullmatch(statement.opcode)
        if match is None or len(statement.writes) != 1 or statement.operands[:1] != statement.writes:
            return None
        bits = int(match["bits"] or 1)
        name, relation = match["name"], match["relation"]
        values = [self._value(source, bits) for source in statement.operands[1:]]
        known = [each for each in values if each is not None]
        # One predicate may decide: false of "and", true of "or".
        if match["type"] == "pred" and name in {"and", "or"} and int(name == "or") in known:
            return int(name == "or")
        if len(known) < len(values):
            return None
        mask = (1 << bits) - 1
        if relation is not None:
            if match["type"].startswith("s"):
                known = [each - ((each >> (bits - 1)) << bits) for each in known]
            compare = _RELATIONS.get(relation)
            return int(compare(*known)) if compare is not None and len(known) == 2 else None
        if name == "not":
            return ~known[0] & mask
        if name in _BINARY:
            return _BINARY[name](*known) & mask
        if name == "selp":
            return known[0] if known[2] else known[1]
        if name.startswith("cvt"):
            # From unsigned types and bits alone, which are extended by zeros.
            return known[0] & ((1 << int(name[5:])) - 1) if match["type"].startswith("u") else None
        return known[0]

    def _value(self, operand: AssemblyOperand, bits: int) -> int | None:
        """Return the number that an operand is known to be, cut to a width in bits; None if it is not known."""
        if isinstance(operand, Inverted):
            inner = self._value(operand.operand, 1)
            return None if inner is None else 1 - inner
        if isinstance(operand, SiteOperand):
            found = self._site_value(operand) if operand.name in BY_OPCODE else None
        elif isinstance(operand, Register):
            found = self._known.get(operand.name)
        elif isinstance(operand, Immediate) and len(operand.text) <= MAX_LITERAL and INTEGER.fullmatch(operand.text):
            found = integer(operand.text)
        else:
            found = None
        return None if found is None else found & ((1 << bits) - 1)
