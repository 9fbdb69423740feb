"""Puts code between a function's instructions: each keeps its own bytes but for what depends on its place.

That is the fields of branches and the literals that are added to a program counter; they are computed anew. Nothing is
assembled, so an instruction that no assembler of ours writes goes through as it is.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from neutrino.errors import NeutrinoError
from neutrino.gcn.code import Function
from neutrino.gcn.llvm import WORD

_FIELD = struct.Struct("<h")
"""A branch's field: words from the next instruction on."""
_FARTHEST = 1 << 15
"""Words that a branch leads back at most, one more than forward."""
_LITERAL = struct.Struct("<I")
_LITERAL_BITS = 32
_LITERAL_MASK = 0xFFFF_FFFF
_CLAUSE = "s_clause"
_CLAUSE_LENGTH = 0x3F
"""The bits of a clause's first word that say how many instructions it has, less one."""


class SpliceError(NeutrinoError):
    """Code cannot be inserted into a function as asked."""


@dataclass(frozen=True, slots=True)
class Insertion:
    """Code that goes before the instruction at an offset.

    before: the instruction's offset in the original; the code's size for behind the last one. code: machine code, whole
    words. ahead_of_label: whether what branches to the instruction runs the code first; else only what falls through
    to it does, such as the code of an entry that is a loop's beginning too.
    """

    before: int
    code: bytes
    ahead_of_label: bool = True


@dataclass(frozen=True, slots=True)
class Spliced:
    """A function with code inserted. moved: where each original instruction is now, by its offset in the original; the
    original's size leads to where the last one ends."""

    code: bytes
    moved: Mapping[int, int]


def splice(function: Function, insertions: Iterable[Insertion], address: int, *, header: int = 0) -> Spliced:
    """Insert code into a function. Of several before one instruction those that are not ahead of its label come first,
    else in order.

    address: the result's, in the same code object. header: bytes at its beginning that keep their place, which those
    of a kernel with preloaded arguments do: what branches from there leads in front of all that is inserted.

    Raises SpliceError for a function that is refused, for an insertion that is not before an instruction, is in the
    header or inside a clause, or is no whole number of words, and when a branch or a literal cannot reach its target.
    """
    if function.refused:
        raise SpliceError(f"{function.name}: {function.refused}")
    size = len(function.code)
    inserted = _by_place(function, insertions, header)

    # Where each instruction goes, and where what leads to it does.
    moved: dict[int, int] = {}
    labels: dict[int, int] = {}
    ahead_of_all: dict[int, int] = {}
    parts: list[bytes] = []
    at = 0
    for begin, end in [*((row.offset, row.end) for row in function.instructions), (size, size)]:
        ahead_of_all[begin] = labels[begin] = at
        for passed in (False, True):
            codes = [row.code for row in inserted.get(begin, ()) if row.ahead_of_label is passed]
            if passed:
                labels[begin] = at
            parts += codes
            at += sum(map(len, codes))
        moved[begin] = at
        parts.append(function.code[begin:end])
        at += end - begin

    code = bytearray(b"".join(parts))
    for instruction in function.instructions:
        if instruction.target is not None:
            places = ahead_of_all if instruction.offset < header else labels
            begin = moved[instruction.offset]
            words, rest = divmod(places[instruction.target] - begin - instruction.size, WORD)
            if rest or not -_FARTHEST <= words < _FARTHEST:
                raise SpliceError(
                    f"{function.name}: {instruction.mnemonic} at {instruction.offset:#x} cannot reach"
                    f" {instruction.target:#x}, {words} words away with the inserted code"
                )
            _FIELD.pack_into(code, begin, words)
    ends = {instruction.offset: instruction.end for instruction in function.instructions}
    owners = {place: row.offset for row in function.instructions for place in range(row.offset, row.end, WORD)}
    for get_pc, low, high, target in function.literals:
        inside = target - function.address
        if 0 <= inside < size:
            if inside not in labels:
                raise SpliceError(f"{function.name}: the literal at {low:#x} leads into an instruction, to {inside:#x}")
            target = address + labels[inside]
        distance = target - (address + moved[get_pc] + ends[get_pc] - get_pc)
        for half, shift in ((low, 0), (high, _LITERAL_BITS)):
            place = moved[owners[half]] + half - owners[half]
            _LITERAL.pack_into(code, place, distance >> shift & _LITERAL_MASK)
    return Spliced(bytes(code), MappingProxyType(moved))


def spliced_size(function: Function, insertions: Iterable[Insertion]) -> int:
    """Return the size in bytes that ``splice`` gives, from which follows the address that it needs."""
    return len(function.code) + sum(len(insertion.code) for insertion in insertions)


def _by_place(function: Function, insertions: Iterable[Insertion], header: int) -> Mapping[int, list[Insertion]]:
    """Return the insertions by the offset that they are before. Raises SpliceError for one that cannot be there."""
    starts = {row.offset for row in function.instructions} | {len(function.code)}
    if header not in starts:
        raise SpliceError(f"{function.name}: no instruction begins behind the {header} bytes of its header")
    in_clause = _inside_clauses(function)
    found: dict[int, list[Insertion]] = defaultdict(list)
    for insertion in insertions:
        before = insertion.before
        where = (
            "where no instruction begins" if before not in starts
            else "in the kernel's header" if before < header
            else "inside a clause" if before in in_clause
            else ""
        )  # fmt: skip
        if where:
            raise SpliceError(f"{function.name}: code at {before:#x} would be {where}")
        if len(insertion.code) % WORD:
            raise SpliceError(f"{function.name}: code at {before:#x} has {len(insertion.code)} bytes, no whole words")
        found[before].append(insertion)
    return found


def _inside_clauses(function: Function) -> set[int]:
    """Return the offsets of the instructions of clauses: nothing may go in front of any, since a clause's first word
    counts those behind it."""
    inside: set[int] = set()
    left = 0
    for instruction in function.instructions:
        if left:
            inside.add(instruction.offset)
            left -= 1
        if instruction.mnemonic == _CLAUSE:
            first = int.from_bytes(function.code[instruction.offset : instruction.offset + WORD], "little")
            left = (first & _CLAUSE_LENGTH) + 1
    return inside
