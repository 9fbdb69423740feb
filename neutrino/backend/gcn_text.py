"""The text of one kernel of AMD's machine code, line by line, as probes' places are shown in it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Set
from typing import NamedTuple

from neutrino.gcn.code import Function


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
