"""Puts code between a function's instructions: each keeps its own bytes but for what depends on its place.

That is the fields of branches and the literals that are added to a program counter; they are computed anew. Nothing is
assembled, so an instruction that no assembler of ours writes goes through as it is.

Where a branch no longer reaches, it leads to one that is inserted on the way (``layout``).

A kernel that calls functions is copied together with them (``splice_group``): calls in the copies lead to copies, while
addresses of functions that the program stores or compares stay those of the originals.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from neutrino.errors import NeutrinoError
from neutrino.gcn.code import Function, is_call
from neutrino.gcn.layout import FARTHEST, SHORT, Layout, Target, branch_word, laid_out, next_place
from neutrino.gcn.llvm import WORD

_FIELD = struct.Struct("<h")
"""A branch's field: words from the next instruction on."""
_LITERAL = struct.Struct("<I")
_LITERAL_BITS = 32
_LITERAL_MASK = 0xFFFF_FFFF
FUNCTION_ALIGNMENT = 64
"""Of functions in a group, in bytes: the hardware fetches lines of so many."""
_FILLING = b"\x00\x00\x80\xbf"
"""``s_nop 0``, on all processors. It is never run."""
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
    original's size leads to where the last one ends. islands: branches that are inserted, too, where others would not
    reach; by the offset of the instruction that they are before, ahead of all else there."""

    code: bytes
    moved: Mapping[int, int]
    islands: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Member:
    """A function of a group that is copied together.

    insertions: code that goes into it. header: as for ``splice``. redirected: offsets of the instructions that read the
    program counter to make the address of a function of the group, and whose sums are to give that of its copy
    (``analysis.calls`` says which: those that are called and nothing else). Without the others, addresses of functions
    stay those of the originals.
    """

    function: Function
    insertions: Sequence[Insertion] = ()
    header: int = 0
    redirected: frozenset[int] = frozenset()

    @cached_property
    def size(self) -> int:
        """The size in bytes that the function has in a group. Of one that cannot be spliced it is not known."""
        function = self.function
        if function.refused:
            return len(function.code)
        size = len(function.code) + sum(len(insertion.code) for insertion in self.insertions)
        if size <= SHORT:
            return size
        inserted: dict[int, list[Insertion]] = defaultdict(list)
        for insertion in self.insertions:
            inserted[insertion.before].append(insertion)
        return _laid_out(self, inserted, _inside_clauses(function)).size


@dataclass(frozen=True, slots=True)
class SplicedGroup:
    """Functions that were copied together. code: of all, the first one's at its beginning, with what fills it up
    between them. members: in the order that they were given in. offsets: where each begins in the code, in bytes."""

    code: bytes
    members: tuple[Spliced, ...]
    offsets: tuple[int, ...]


def splice(function: Function, insertions: Iterable[Insertion], address: int, *, header: int = 0) -> Spliced:
    """Insert code into a function. Of several before one instruction those that are not ahead of its label come first,
    else in order.

    address: the result's, in the same code object. header: bytes at its beginning that keep their place, which those
    of a kernel with preloaded arguments do: what branches from there leads in front of all that is inserted.

    Raises SpliceError for a function that is refused, for an insertion that is not before an instruction, is in the
    header or inside a clause, or is no whole number of words, and when a branch or a literal cannot reach its target.
    """
    return _splice(Member(function, tuple(insertions), header), address, {})


def splice_group(members: Sequence[Member], address: int) -> SplicedGroup:
    """Insert code into a kernel and functions that it calls, and put them one behind the other.

    members: the kernel first, no function twice. address: the result's, in the same code object. A call in a copy
    (``s_call_b64``, or of an address that is ``redirected``) leads to the beginning of the called function's copy, so
    that it runs what is inserted before its first instruction, ahead of its label or not.

    Raises SpliceError as ``splice``, and for an address that is to be redirected and is no function's of the group.
    """
    offsets = _offsets(members)
    copies = {
        member.function.address: address + offset
        for member, offset in zip(members, offsets, strict=True)
        if not member.function.is_kernel
    }
    if len({member.function.address for member in members}) < len(members):
        raise SpliceError(f"{members[0].function.name}: a function is in its group twice")
    spliced = tuple(_splice(member, address + at, copies) for member, at in zip(members, offsets, strict=True))
    code = bytearray()
    for one, at in zip(spliced, offsets, strict=True):
        code += _FILLING * ((at - len(code)) // WORD) + one.code
    return SplicedGroup(bytes(code), spliced, offsets)


def group_size(members: Sequence[Member]) -> int:
    """Return the size in bytes that ``splice_group`` gives, from which follows the address that it needs."""
    return _offsets(members)[-1] + members[-1].size


def _offsets(members: Sequence[Member]) -> tuple[int, ...]:
    """Return where each function of a group begins in its code."""
    found, at = [], 0
    for member in members:
        found.append(at)
        at += member.size
        at += -at % FUNCTION_ALIGNMENT
    return tuple(found)


def _splice(member: Member, address: int, copies: Mapping[int, int]) -> Spliced:
    """As ``splice``. copies: by the addresses of functions, those of their copies."""
    function, header = member.function, member.header
    if function.refused:
        raise SpliceError(f"{function.name}: {function.refused}")
    size = len(function.code)
    closed = _inside_clauses(function)
    inserted = _by_place(function, member.insertions, header, closed)

    layout = _laid_out(member, inserted, closed)
    moved, labels = layout.moved, layout.labels
    # Between these places nothing is inserted.
    begins = sorted({0, size, *inserted, *layout.islands})
    parts: list[bytes] = []
    original = bytes(function.code)
    for begin, end in zip(begins, [*begins[1:], size], strict=True):
        # What is overwritten by the islands there.
        parts.append(bytes(layout.island_size(begin)))
        here = inserted.get(begin, ())
        parts += [row.code for row in here if not row.ahead_of_label]
        parts += [row.code for row in here if row.ahead_of_label]
        parts.append(original[begin:end])
    code = bytearray(b"".join(parts))
    islands = _write_islands(function, layout, code)
    rows = function.instructions
    for instruction in rows.branches:
        assert instruction.target is not None
        begin = moved[instruction.offset]
        end = begin + instruction.size
        if is_call(instruction):
            called = function.address + instruction.target
            own = labels.get(instruction.target)
            to = copies.get(called, called if own is None else address + own) - address
        else:
            aim = Target(instruction.target, instruction.offset < header)
            way = next_place(layout, end, aim)
            to = layout.place(aim) if way is None else way
        words, rest = divmod(to - end, WORD)
        if rest or not -FARTHEST <= words < FARTHEST:
            raise SpliceError(
                f"{function.name}: {instruction.mnemonic} at {instruction.offset:#x} cannot reach"
                f" {instruction.target:#x}, {words} words away with the inserted code"
            )
        _FIELD.pack_into(code, begin, words)
    for get_pc, low, high, target in function.literals:
        inside = target - function.address
        if get_pc in member.redirected:
            if target not in copies:
                raise SpliceError(f"{function.name}: the literal at {low:#x} is no address of a copied function")
            target = copies[target]
        elif 0 <= inside < size and not (inside == 0 and target in copies):
            if inside not in labels:
                raise SpliceError(f"{function.name}: the literal at {low:#x} leads into an instruction, to {inside:#x}")
            target = address + labels[inside]
        distance = target - (address + moved[get_pc] + rows.having(get_pc).size)
        for half, shift in ((low, 0), (high, _LITERAL_BITS)):
            owner = rows.having(half).offset
            place = moved[owner] + half - owner
            _LITERAL.pack_into(code, place, distance >> shift & _LITERAL_MASK)
    return Spliced(bytes(code), MappingProxyType(moved), MappingProxyType(islands))


def spliced_size(function: Function, insertions: Iterable[Insertion], header: int = 0) -> int:
    """Return the size in bytes that ``splice`` gives, from which follows the address that it needs."""
    return Member(function, tuple(insertions), header).size


def _write_islands(function: Function, layout: Layout, code: bytearray) -> dict[int, bytes]:
    """Write the inserted branches; return the code of those in front of each instruction, by its offset."""
    written = {}
    for offset, row in layout.islands.items():
        behind = layout.ahead[offset]
        begin = behind - WORD * (len(row) + (offset in layout.passed))
        if offset in layout.passed:
            code[begin : begin + WORD] = branch_word(function, len(row))
        for target, at in row.items():
            way = next_place(layout, at + WORD, target)
            if way is None:
                raise SpliceError(f"{function.name}: nothing on the way to {target.offset:#x} can be reached")
            code[at : at + WORD] = branch_word(function, (way - at - WORD) // WORD)
        written[offset] = bytes(code[begin:behind])
    return written


def _laid_out(member: Member, inserted: Mapping[int, Sequence[Insertion]], closed: set[int]) -> Layout:
    """Return where a function's instructions are. inserted: by the offsets of the instructions that it is before.
    closed: as ``_inside_clauses`` gives them."""
    sizes = {offset: [(len(row.code), row.ahead_of_label) for row in rows] for offset, rows in inserted.items()}
    return laid_out(member.function, sizes, member.header, closed)


def _by_place(
    function: Function, insertions: Iterable[Insertion], header: int, closed: set[int]
) -> Mapping[int, list[Insertion]]:
    """Return the insertions by the offset that they are before. closed: as ``_inside_clauses`` gives them.

    Raises SpliceError for one that cannot be there.
    """
    rows, size = function.instructions, len(function.code)
    if header != size and not rows.begins(header):
        raise SpliceError(f"{function.name}: no instruction begins behind the {header} bytes of its header")
    found: dict[int, list[Insertion]] = defaultdict(list)
    for insertion in insertions:
        before = insertion.before
        where = (
            "where no instruction begins" if before != size and not rows.begins(before)
            else "in the kernel's header" if before < header
            else "inside a clause" if before in closed
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
    rows = function.instructions
    for index in rows.named(_CLAUSE):
        first = int.from_bytes(function.code[rows[index].offset : rows[index].offset + WORD], "little")
        inside.update(rows.offsets[index + 1 : index + 2 + (first & _CLAUSE_LENGTH)])
    return inside
