"""Reads a kernel and its twin in a code object as llvm-objdump prints them, and says where the twin is something else
than the kernel with code between its instructions. It shares no code with what writes twins."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

import pytest

OBJDUMP, READELF = "llvm-objdump-19", "llvm-readelf-19"
_ROW = re.compile(r"\s+(\S+)(.*?)\s*// ([0-9A-F]+):((?: [0-9A-F]{8})+)(?: <.*>)?$")
_FUNCTION = re.compile(r"^ *\d+: ([0-9a-f]+) +(\d+) FUNC +\S+ +\S+ +\d+ (\S+)$", re.MULTILINE)
_BEGIN = re.compile(r"([0-9a-f]+) <(.*)>:")
_BRANCH = re.compile(r"s_branch|s_cbranch_\w+|s_call_b64")
_PAIR = re.compile(r"s\[(\d+):(\d+)\]")
_SEARCHED = 200
"""Instructions behind one that reads the program counter, inserted ones among them."""


class NotATwinError(AssertionError):
    """The twin is something else than the kernel with insertions."""


@dataclass
class Row:
    """One instruction. address: virtual. words: 32 bits each. target: of a branch, an address. shown: mnemonic and
    operands."""

    address: int
    words: tuple[int, ...]
    mnemonic: str
    shown: str
    target: int | None = None

    @property
    def end(self) -> int:
        return self.address + 4 * len(self.words)


@dataclass
class Listing:
    """A function's instructions. places: by the number of an instruction with half of a literal that is added to a
    program counter, the number of the instruction that reads it, and the address that both halves give."""

    name: str
    rows: list[Row]
    places: dict[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Reading:
    """inserted: the code in front of each instruction, by the instruction's offset in the original; that behind the
    last one by its size. passed: by the offset of each branch, how many bytes of what is inserted in front of the
    instruction that it leads to it passes over; likewise for addresses in the function. ambiguous: how many
    instructions may stand at one of several places in the twin. to_copies: offsets of what reads the program counter,
    or calls, in the original, and gives the address of a function's copy in the twin."""

    inserted: Mapping[int, bytes]
    passed: Mapping[int, int]
    ambiguous: int
    to_copies: frozenset[int] = frozenset()


def listings(path: Path, processor: str = "") -> dict[str, Listing]:
    """Every function of a code object by its name; without llvm-objdump the test is skipped."""
    if shutil.which(OBJDUMP) is None:
        pytest.skip(f"no {OBJDUMP} on PATH")
    argv = [OBJDUMP, "-d", "-z", *([f"--mcpu={processor}"] if processor else []), str(path)]
    printed = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    symbols = subprocess.run([READELF, "-sW", str(path)], capture_output=True, text=True, check=True).stdout
    sizes = {row[3]: int(row[2]) for row in _FUNCTION.finditer(symbols)}
    found: dict[str, Listing] = {}
    rows: list[Row] = []
    end = 0
    for line in printed.splitlines():
        if begin := _BEGIN.fullmatch(line):
            rows = []
            found[begin[2]] = Listing(begin[2], rows)
            end = int(begin[1], 16) + sizes.get(begin[2], 0)
        elif row := _ROW.fullmatch(line):
            # What fills up behind a function is no part of it.
            if int(row[3], 16) >= end:
                continue
            words = tuple(int(word, 16) for word in row[4].split())
            rows.append(Row(int(row[3], 16), words, row[1], f"{row[1]} {row[2].strip()}"))
            rows[-1].target = _target(rows[-1])
        elif line.startswith("\t"):
            raise NotATwinError(f"{OBJDUMP} prints what is not understood: {line}")
    for listing in found.values():
        _find_places(listing)
    return found


def listing_of(name: str, address: int, code: bytes, rows: Iterable[tuple[int, int, str | None]]) -> Listing:
    """A function from another disassembler. rows: offset, size in bytes and text of each instruction."""
    made: list[Row] = []
    for offset, size, text in rows:
        words = tuple(int.from_bytes(code[at : at + 4], "little") for at in range(offset, offset + size, 4))
        made.append(Row(address + offset, words, (text or "data").split(" ")[0], text or "data"))
        made[-1].target = _target(made[-1])
    listing = Listing(name, made)
    _find_places(listing)
    return listing


def _target(row: Row) -> int | None:
    """Where a branch leads; None for what is none."""
    if not _BRANCH.fullmatch(row.mnemonic):
        return None
    distance = row.words[0] & 0xFFFF
    return row.end + 4 * (distance - (distance >> 15 << 16))


def _find_places(listing: Listing) -> None:
    """Find the literals that are added to a program counter."""
    for number, row in enumerate(listing.rows):
        if row.mnemonic != "s_getpc_b64":
            continue
        pair = _PAIR.search(row.shown)
        assert pair
        halves: list[tuple[int, int]] = []
        for other in range(number + 1, min(number + 1 + _SEARCHED, len(listing.rows))):
            words, shown = listing.rows[other].words, listing.rows[other].shown
            register = pair[1 + len(halves)]
            if re.match(rf"s_add(c|_co|_co_ci)?_u32 s{register}, s{register}, ", shown) and len(words) == 2:
                halves.append((other, words[1]))
            if len(halves) == 2:
                break
        else:
            raise NotATwinError(f"{listing.name}: s_getpc_b64 at {row.address:#x} has no literal")
        (low, low_word), (high, high_word) = halves
        to = row.end + low_word + (high_word << 32) & (1 << 64) - 1
        listing.places[low] = listing.places[high] = number, to


def read_twin(
    original: Listing,
    twin: Listing,
    moved: Mapping[int, int] | None = None,
    copies: Mapping[int, int] = MappingProxyType({}),
) -> Reading:
    """Read a twin, or its copy of a function. moved: where the writer says that each instruction is, by offsets.
    copies: where the twin's copies of functions begin, by where the originals do: an address of such a function may
    become the copy's. Raises NotATwinError."""
    ours, theirs = original.rows, twin.rows
    at = ours[0].address
    if moved is None:
        first = _embedding(original, twin)
        last = [len(theirs) - 1 - number for number in _embedding(_reversed(original), _reversed(twin))][::-1]
    else:
        numbers = {row.address - theirs[0].address: number for number, row in enumerate(theirs)}
        if not {row.address - at for row in ours} <= set(moved) or not set(moved.values()) - {
            theirs[-1].end - theirs[0].address
        } <= set(numbers):
            raise NotATwinError(f"{twin.name}: an instruction is not where it should be")
        first = last = [numbers[moved[row.address - at]] for row in ours]
        for number, place in enumerate(first):
            if _key(original, number) != _key(twin, place):
                raise NotATwinError(f"{twin.name}: {ours[number].shown} has become {theirs[place].shown}")
        if any(second <= first for first, second in pairwise(first)):
            raise NotATwinError(f"{twin.name}: instructions are out of order")

    by_address = {row.address: number for number, row in enumerate(ours)}

    starts = {row.address for row in theirs}
    passed: dict[int, int] = {}

    def lands(number: int, label: int, to: int) -> bool:
        """Whether an address in the twin, to which an instruction leads, is in front of another, or of what is inserted
        there."""
        at_label = by_address[label]
        begin = theirs[first[at_label - 1]].end if at_label else theirs[0].address
        passed[ours[number].address - at] = to - begin
        return begin <= to <= theirs[last[at_label]].address and to in starts

    # Where the kernel's own branch may be at one of several places, any of them may be an inserted one.
    kept = {theirs[place].address for place, other in zip(first, last, strict=True) if place == other}
    branches = {
        row.address: row.target
        for row in theirs
        if row.mnemonic == "s_branch" and row.target is not None and row.address not in kept
    }

    def arrives(number: int, label: int, to: int) -> bool:
        """As ``lands``, also by way of branches that are inserted, one after the other."""
        for _ in branches:
            if lands(number, label, to):
                return True
            if to not in branches:
                return False
            to = branches[to]
        return lands(number, label, to)

    to_copies: set[int] = set()

    def to_copy(number: int, to: int, to_now: int | None) -> bool:
        """Whether an address of a function becomes its copy's."""
        if to not in copies or to_now != copies[to]:
            return False
        to_copies.add(ours[number].address - at)
        return True

    for number, row in enumerate(ours):
        for place in {first[number], last[number]}:
            now = theirs[place]
            if row.target is not None and row.mnemonic == "s_call_b64" and row.target not in by_address:
                if now.target != row.target and not to_copy(number, row.target, now.target):
                    raise NotATwinError(f"{twin.name}: {row.shown} at {row.address:#x} calls something else")
            elif row.target is not None:
                # What is inserted may have branches, too, of which one alone is the kernel's.
                same = range(first[number], last[number] + 1)
                perhaps = [theirs[one] for one in same if _key(twin, one) == _key(original, number)]
                if not any(one.target is not None and arrives(number, row.target, one.target) for one in perhaps):
                    raise NotATwinError(f"{twin.name}: {row.shown} at {row.address:#x} leads elsewhere: {now.shown}")
            if number in original.places:
                reads, to = original.places[number]
                if place not in twin.places:
                    raise NotATwinError(f"{twin.name}: {now.shown} is added to no program counter")
                reads_now, to_now = twin.places[place]
                inside = ours[0].address <= to < ours[-1].end and to not in copies
                leads = lands(number, to, to_now) if inside else to == to_now or to_copy(reads, to, to_now)
                if reads_now not in range(first[reads], last[reads] + 1) or not leads:
                    raise NotATwinError(f"{twin.name}: {row.shown} gives {to_now:#x}, not {to:#x}")
    ambiguous = sum(one != other for one, other in zip(first, last, strict=True))
    return Reading(_between(ours, theirs, first), passed, ambiguous, frozenset(to_copies))


def _between(ours: Sequence[Row], theirs: Sequence[Row], places: Sequence[int]) -> dict[int, bytes]:
    """What stands in front of each instruction."""
    found: dict[int, bytes] = {}
    begin = 0
    offsets = [row.address - ours[0].address for row in ours]
    for offset, place in zip([*offsets, ours[-1].end - ours[0].address], [*places, len(theirs)], strict=True):
        words = [word for row in theirs[begin:place] for word in row.words]
        if words:
            found[offset] = b"".join(word.to_bytes(4, "little") for word in words)
        begin = place + 1
    return found


def _key(listing: Listing, number: int) -> tuple[int, ...]:
    """What an instruction keeps at another place."""
    row = listing.rows[number]
    if row.target is not None:
        return (row.words[0] & 0xFFFF0000, *row.words[1:])
    return row.words[:1] if number in listing.places else (*row.words, -1)


def _reversed(listing: Listing) -> Listing:
    """A listing from its end on."""
    last = len(listing.rows) - 1
    places = {last - number: (last - reads, to) for number, (reads, to) in listing.places.items()}
    return Listing(listing.name, listing.rows[::-1], places)


def _embedding(original: Listing, twin: Listing) -> list[int]:
    """The earliest place in the twin of each instruction, in order."""
    found: list[int] = []
    place = 0
    for number, row in enumerate(original.rows):
        key = _key(original, number)
        while place < len(twin.rows) and _key(twin, place) != key:
            place += 1
        if place == len(twin.rows):
            raise NotATwinError(f"{twin.name}: {row.shown} at {row.address:#x} is missing")
        found.append(place)
        place += 1
    return found
