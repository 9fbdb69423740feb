"""The text of one kernel of AMD's machine code, line by line, as probes' places are shown in it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence, Set
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from neutrino.gcn.code import Function, Instruction
from neutrino.gcn.instruction_text import Decoded
from neutrino.gcn.llvm import WORD

if TYPE_CHECKING:
    from neutrino.gcn.splice import Spliced


class FunctionText(NamedTuple):
    """A function's text. lines: with its name and labels. places: by an instruction's offset, the number of its line.
    """

    lines: tuple[str, ...]
    places: Mapping[int, int]

    @property
    def text(self) -> str:
        """The assembly text of the function: its lines, joined."""
        return "".join(f"{line}\n" for line in self.lines)


def function_text(function: Function, moved: Mapping[int, int] | None = None, first: int = 1) -> FunctionText:
    """Write a function's text. Labels are called by the offset of what they stand before.

    moved: of a twin (copy with probes), by an original instruction's offset where it is now: labels keep the names that
    they have in the original, and others within what was inserted are called ``.Lp``. first: the number of its first
    line.
    """
    targets = {
        instruction.target
        for instruction in function.instructions
        if instruction.target is not None and 0 <= instruction.target < len(function.code)
    }
    names = {target: f".L{target:x}" for target in targets if target}
    if moved is not None:
        names = _kept_names(function, moved, targets)
    lines = [f"{function.name}:"]
    places: dict[int, int] = {}
    for instruction in function.instructions:
        if instruction.offset in names:
            lines.append(f"{names[instruction.offset]}:")
        text = instruction.text
        if not text:
            code = function.code[instruction.offset : instruction.end]
            text = f".long {int.from_bytes(code, 'little'):#010x}"
        elif instruction.target is not None and instruction.target in names:
            operands = ", ".join((*instruction.operands[:-1], names[instruction.target]))
            text = f"{instruction.mnemonic} {operands}"
        lines.append(f"  {text}")
        places[instruction.offset] = first - 1 + len(lines)
    return FunctionText(tuple(lines), places)


class Piece(NamedTuple):
    """Code that is inserted. branches: by their indices. offsets: of its instructions. lines: of text."""

    branches: Mapping[int, Decoded]
    offsets: Sequence[int]
    lines: Sequence[str]


def original_text(function: Function) -> str:
    """Write the text of ``function_text`` of a function that is no twin's. It takes less time so."""
    lines = _lines(function)
    rows, size = function.instructions, len(function.code)
    targets = {row.target for row in rows.branches if row.target is not None and 0 < row.target < size}
    for row in rows.branches:
        if row.target in targets:
            lines[bisect_left(rows.offsets, row.offset)] = _branch(row.mnemonic, row.operands, f".L{row.target:x}")
    text = [f"{function.name}:"]
    begin = 0
    for target in sorted(targets):
        end = bisect_left(rows.offsets, target)
        text += lines[begin:end]
        if rows.begins(target):
            text.append(f".L{target:x}:")
        begin = end
    return "\n".join([*text, *lines[begin:], ""])


def twin_text(
    function: Function, name: str, inserted: Mapping[int, Sequence[bytes]], spliced: Spliced,
    decode: Callable[[bytes], Sequence[Decoded]], pieces: dict[bytes, Piece],
) -> tuple[str, int]:  # fmt: skip
    """Write the text of ``function_text`` of a twin, of its original's lines, and of what is inserted;
    return how many instructions that is, too. Nothing is decoded but that, and what depends on its place.

    function: the original. inserted: code by the offset of the instruction that it is before, in order. decode: returns
    instructions of machine code. pieces: what is inserted in many places, by its bytes.
    """
    rows, size, code, moved = function.instructions, len(function.code), spliced.code, spliced.moved
    offsets, lines = rows.offsets, _lines(function)
    # What is in between, by the places where it begins in the twin: offsets of instructions, lines, and the original's
    # offset that these are from or in front of.
    stretches: list[tuple[int, Sequence[int], list[str], int, bool]] = []
    targets: dict[tuple[int, int], tuple[Decoded | Instruction, int]] = {}
    """Of branches that lead somewhere in the twin, by the number of their stretch and index in it."""
    count = 0

    def leads_inside(at: int, index: int, row: Decoded | Instruction) -> bool:
        """Return whether a branch leads to somewhere in the twin, and note that. at: where it is there. index: in the
        last stretch."""
        target = at + row.size + WORD * int.from_bytes(code[at : at + 2], "little", signed=True)
        if 0 <= target < len(code):
            targets[len(stretches) - 1, index] = row, target
            return True
        return False

    literals = {rows.having(half).offset for row in function.literals for half in (row.low, row.high)}
    changed = sorted({*literals, *(row.offset for row in rows.branches)})
    def decoded(piece: bytes) -> Piece:
        """Return the instructions of code that is inserted."""
        if piece not in pieces:
            found = decode(piece)
            within = [0, *accumulate(row.size for row in found)][:-1]
            pieces[piece] = Piece(
                {index: row for index, row in enumerate(found) if row.is_branch}, within,
                [
                    f"  {row.text}" if row.text else _data(piece[at : at + row.size])
                    for at, row in zip(within, found, strict=True)
                ],
            )  # fmt: skip
        return pieces[piece]

    begin = place = 0
    for before in [*sorted(inserted), size]:
        first, last = bisect_left(offsets, begin), bisect_left(offsets, before)
        if first < last:
            stretches.append((place, offsets[first:last], lines[first:last], begin, False))
            shift = place - begin
            for offset in changed[bisect_left(changed, begin) : bisect_left(changed, before)]:
                index = bisect_left(offsets, offset)
                at, row = offset + shift, rows[index]
                if row.target is None or not leads_inside(at, index - first, row):
                    (now,) = decode(code[at : at + row.size])
                    stretches[-1][2][index - first] = f"  {now.text}"
            place += before - begin
        begin = before
        if before not in inserted:
            continue
        for piece in filter(None, inserted[before]):
            found, within, texts = decoded(piece)
            stretches.append((place, within, list(texts), before, True))
            count += len(texts)
            for index in found:
                leads_inside(place + within[index], index, found[index])
            place += len(piece)
    places = {target for _, target in targets.values()}
    names = {target: f".Lp{target:x}" for target in places}
    begins = [stretch[0] for stretch in stretches]
    marks: dict[int, list[tuple[int, int]]] = {}
    for target in sorted(places):
        number = bisect_right(begins, target) - 1
        at, within, _, original, is_inserted = stretches[number]
        if not is_inserted:
            target_of = original + target - at
            if rows.begins(target_of):
                names[target] = f".L{target_of:x}"
        elif at == target and not (number and stretches[number - 1][4]) and moved[original] not in places:
            # What was inserted before an instruction may belong to whoever branches to it, or be left out then.
            names[target] = f".L{original:x}"
        base = original if not is_inserted else 0
        index = bisect_left(within, target - at + base)
        if index < len(within) and within[index] == target - at + base:
            marks.setdefault(number, []).append((index, target))
    for (number, index), (branch, target) in targets.items():
        stretches[number][2][index] = _branch(branch.mnemonic, branch.operands, names[target])
    text = [f"{name}:"]
    for number, (_, _, own, _, _) in enumerate(stretches):
        begin = 0
        for index, target in marks.get(number, ()):
            text += own[begin:index]
            text.append(f"{names[target]}:")
            begin = index
        text += own[begin:] if begin else own
    return "\n".join([*text, ""]), count


def _lines(function: Function) -> list[str]:
    """Return a line for each instruction, in which branches lead to numbers."""
    code = function.code
    return [f"  {row.text}" if row.text else _data(code[row.offset : row.end]) for row in function.instructions]


def _data(code: bytes) -> str:
    """Return the line of words that are no instruction."""
    return f"  .long {int.from_bytes(code, 'little'):#010x}"


def _branch(mnemonic: str, operands: Sequence[str], label: str) -> str:
    """Return the line of a branch to a label."""
    return f"  {mnemonic} {', '.join((*operands[:-1], label))}"


def line_numbers(function: Function, first: int = 1) -> dict[int, int]:
    """Return by an instruction's offset the number of its line in ``function_text``; by the code's size that of the
    line after the last one. first: as there."""
    labels = {row.target for row in function.instructions if row.target}
    line = first
    found = {}
    for row in function.instructions:
        # A label is a line of its own.
        line += 2 if row.offset in labels else 1
        found[row.offset] = line
    found[len(function.code)] = line + 1
    return found


def paired_lines(
    original: FunctionText, probed: FunctionText, moved: Mapping[int, int], first: int
) -> tuple[int | None, ...]:
    """Return for each line of a function's text which line of its twin's (copy with probes) it is, from 0; None for a
    label to which nothing leads any more.

    moved: as of ``function_text``. first: the number of the original's first line.
    """
    # Labels have names of their own, of which those of the original stay.
    labels = {line: number for number, line in enumerate(probed.lines) if not line.startswith(" ")}
    offsets = {line: offset for offset, line in original.places.items()}
    pairs: list[int | None] = []
    for number, line in enumerate(original.lines):
        offset = offsets.get(first + number)
        # The first line is the function's name, which differs.
        pairs.append(0 if not number else labels.get(line) if offset is None else probed.places[moved[offset]] - 1)
    return tuple(pairs)


def _kept_names(function: Function, moved: Mapping[int, int], targets: Set[int]) -> dict[int, str]:
    """Return the names of labels in a twin by their offsets. moved: see ``function_text``, ascending. targets: of
    branches."""
    rows = function.instructions
    offsets = [row.offset for row in rows]
    befores, places = list(moved), list(moved.values())
    names = {}
    for target in targets:
        names[target] = f".Lp{target:x}"
        # What was inserted before an instruction may belong to whoever branches to it, or be left out then.
        index = bisect_left(places, target)
        if index == len(places):
            continue
        if places[index] != target:
            before = bisect_left(offsets, places[index - 1]) if index else len(rows)
            end = 0 if not index else rows[before].end if before < len(rows) else places[index - 1]
            if end != target or places[index] in targets:
                continue
        names[target] = f".L{befores[index]:x}"
    return names
