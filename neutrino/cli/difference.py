"""What probing changed in a kernel's text: a line-by-line difference from the original.

A twin is its original with lines inserted and a few changed. Which lines are the original's, what wrote it may say.
Otherwise lines are paired in order by their text, which takes time proportional to it, and is fast for kernels of ten
thousand lines.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from neutrino.late_dataclass import dataclass

_INDENTED_DIRECTIVES = (".reg", ".param", ".local", ".shared")
"""Directives that are indented as instructions are; others begin at the margin."""
_LOOKAHEAD = 3
"""How many of the lines after a line are looked up to decide whether it was changed."""


@dataclass(frozen=True)
class Line:
    """A line of the original or the probed text. mark: `` `` if it is in both, ``+`` inserted, ``-`` removed.

    original: its index in the original text, from 0; of an inserted line, the index of the next original line.
    """

    mark: str
    text: str
    original: int


def compare_paired(original: Sequence[str], probed: Sequence[str], pairs: Sequence[int | None]) -> list[Line]:
    """Return the difference of two texts whose lines are paired. pairs: for each line of the original which one of the
    probed text it is, ascending, None for none. Else as ``compare``."""
    lines: list[Line] = []
    position = 0
    for number, (text, match) in enumerate(zip(original, pairs, strict=True)):
        if match is None:
            lines.append(Line("-", text, number))
            continue
        lines += _inserted(lines, probed[position:match], number)
        position = match + 1
        if text.strip() == probed[match].strip():
            lines.append(Line(" ", text, number))
        else:
            lines.append(Line("-", text, number))
            lines += _inserted(lines, [probed[match]], number + 1)
    lines += _inserted(lines, probed[position:], len(original))
    return lines


def compare(original: Sequence[str], probed: Sequence[str]) -> list[Line]:
    """Return the difference of two texts: all lines in the order of ``probed``, removed ones before their replacements.

    original, probed: the lines of a kernel's PTX without and with probes. Probing inserts lines and changes a few, so
    lines are paired in order, which takes time proportional to the text. Lines are compared without indentation, since
    inserted code may shift it. Inserted lines are indented anew; blank ones are left out.
    """
    # Line → its indices in the probed text, ascending.
    occurrences: dict[str, list[int]] = {}
    for index, text in enumerate(probed):
        occurrences.setdefault(text.strip(), []).append(index)

    def next_occurrence(text: str, start: int) -> int | None:
        """Return the index of the first equal line of the probed text from ``start`` on; None if there is none."""
        indices = occurrences.get(text.strip(), ())
        number = bisect_left(indices, start)
        return indices[number] if number < len(indices) else None

    lines: list[Line] = []
    # Index of the first line of the probed text that is not paired yet.
    position = 0
    for number, text in enumerate(original):
        match: int | None = next_occurrence(text, position)
        if match is not None and match != position:
            # If one of the next lines occurs before the match, this line was changed, and the match is an equal line
            # of another place.
            # Blank lines and braces occur anywhere, so they say nothing.
            following = [line for line in original[number + 1 : number + 1 + _LOOKAHEAD] if line.strip(" \t{}")]
            matches = [next_occurrence(line, position) for line in following]
            if any(other is not None and other < match for other in matches):
                match = None
        if match is None:
            lines.append(Line("-", text, number))
            continue
        # What is between the last pair and this one was inserted.
        lines += _inserted(lines, probed[position:match], number)
        lines.append(Line(" ", text, number))
        position = match + 1
    lines += _inserted(lines, probed[position:], len(original))
    return lines


def _inserted(lines: Sequence[Line], texts: Sequence[str], number: int) -> list[Line]:
    """Return inserted texts as lines, indented; blank ones are left out.

    lines: the difference so far. Texts that replace the removed lines at its end take their indentation, one by one;
    others are indented as PTX usually is. number: the index of the next line of the original.
    """
    # The removed lines at the end of the difference.
    start = len(lines)
    while start and lines[start - 1].mark == "-":
        start -= 1
    replaced = [line.text for line in lines[start:]]

    inserted: list[Line] = []
    for text in texts:
        stripped = text.strip()
        if not stripped:
            continue
        # Labels, braces and most directives begin at the margin.
        is_directive = stripped.startswith(".") and not stripped.startswith(_INDENTED_DIRECTIVES)
        at_margin = stripped.endswith(":") or is_directive or stripped.startswith(("{", "}", ")"))
        indent = "" if at_margin else "    "
        # The first of these texts replaces the first removed line, and so on.
        if len(inserted) < len(replaced):
            old = replaced[len(inserted)]
            indent = old[: len(old) - len(old.lstrip())]
        inserted.append(Line("+", f"{indent}{stripped}", number))
    return inserted


def hunks(lines: Sequence[Line], context: int = 3, *, first: int = 1) -> Iterator[str]:
    """Yield the lines of a unified diff, without file names; nothing if nothing changed.

    context: unchanged lines before and after each change. first: the line number that the original begins with, where
    it is part of a longer text.
    """
    # Indices in the difference. begin, last: of the first and the last change of a hunk, in this list.
    changed = [index for index, line in enumerate(lines) if line.mark != " "]
    begin = 0
    while begin < len(changed):
        # A hunk goes on as long as the unchanged lines between changes would be context of both.
        last = begin
        while last + 1 < len(changed) and changed[last + 1] - changed[last] <= 2 * context:
            last += 1
        yield from _hunk(lines, max(0, changed[begin] - context), changed[last] + context + 1, first)
        begin = last + 1


def _hunk(lines: Sequence[Line], start: int, end: int, first: int) -> Iterator[str]:
    """Yield one hunk of a unified diff: the line with the ranges, then ``lines[start:end]`` with their marks.

    first: the line number that the original begins with.
    """
    part = lines[start:end]
    # Lines of the probed text before the hunk; lines of both texts in it.
    before = sum(line.mark != "-" for line in lines[:start])
    old = sum(line.mark != "+" for line in part)
    new = sum(line.mark != "-" for line in part)
    # original counts from 0, first from 1. The probed text has no place in a longer one, so its lines count from 1.
    yield f"@@ -{_range(part[0].original + first, old)} +{_range(before + 1, new)} @@"
    for line in part:
        yield f"{line.mark}{line.text}"


def _range(start: int, count: int) -> str:
    """Return lines ``start`` to ``start + count - 1`` as ``@@`` lines of a diff have them: ``7,3``, or ``7`` for one
    line.
    """
    # As in diff(1), an empty range has the number of the line before it.
    return str(start) if count == 1 else f"{start if count else start - 1},{count}"


def runs(lines: Sequence[Line]) -> Iterator[int]:
    """Yield the index of the first line of each run of consecutive inserted lines."""
    for index, line in enumerate(lines):
        if line.mark == "+" and (not index or lines[index - 1].mark != "+"):
            yield index
