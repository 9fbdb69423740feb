"""What probing changed in a kernel's text: a line-by-line difference from the original.

A twin is its original with lines inserted and a few changed, so lines are paired in order. That takes time
proportional to the text, and is fast for kernels of ten thousand lines.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_INNER = (".reg", ".param", ".local", ".shared")
"""Directives that are indented as instructions are."""
_AHEAD = 3
"""How many of the lines after one are looked up to decide whether it was changed."""


@dataclass(frozen=True)
class Line:
    """A line of either text. mark: `` `` in both, ``+`` inserted, ``-`` removed. original: its number in the original,
    from 0; of an inserted line, that of the next one."""

    mark: str
    text: str
    original: int


def compare(original: Sequence[str], probed: Sequence[str]) -> list[Line]:
    """The lines of both texts in the order of the probed one, removed lines before those that replace them.

    Indentation is ignored, since inserted code may shift it. Inserted lines are indented alike, labels not at all;
    blank inserted lines are left out.
    """
    places: dict[str, list[int]] = {}
    for at, text in enumerate(probed):
        places.setdefault(text.strip(), []).append(at)

    def following(text: str, start: int) -> int | None:
        found = places.get(text.strip(), ())
        at = bisect_left(found, start)
        return found[at] if at < len(found) else None

    lines: list[Line] = []
    position = 0
    for number, text in enumerate(original):
        place: int | None = following(text, position)
        if place is not None and place != position:
            # If a later line is found earlier, this one was changed, and the place found is an equal line elsewhere.
            later = [line for line in original[number + 1 : number + 1 + _AHEAD] if line.strip()]
            sooner = [following(line, position) for line in later]
            if any(other is not None and other < place for other in sooner):
                place = None
        if place is None:
            lines.append(Line("-", text, number))
            continue
        lines += _added(lines, probed[position:place], number)
        lines.append(Line(" ", text, number))
        position = place + 1
    lines += _added(lines, probed[position:], len(original))
    return lines


def _added(lines: Sequence[Line], texts: Sequence[str], number: int) -> list[Line]:
    """The inserted texts as lines. The first of them are indented as the removed lines that they replace."""
    gone = len(lines)
    while gone and lines[gone - 1].mark == "-":
        gone -= 1
    replaced = [line.text for line in lines[gone:]]
    added: list[Line] = []
    for text in texts:
        words = text.strip()
        if not words:
            continue
        outer = words.endswith(":") or (words.startswith((".", "{", "}", ")")) and not words.startswith(_INNER))
        indent = "" if outer else "    "
        if len(added) < len(replaced):
            old = replaced[len(added)]
            indent = old[: len(old) - len(old.lstrip())]
        added.append(Line("+", f"{indent}{words}", number))
    return added


def hunks(lines: Sequence[Line], context: int = 3, *, first: int = 1) -> Iterator[str]:
    """The unified form of a difference, without file names; nothing where nothing changed.

    first: the number of the original's first line, where it is part of a longer text.
    """
    changed = [index for index, line in enumerate(lines) if line.mark != " "]
    at = 0
    while at < len(changed):
        last = at
        while last + 1 < len(changed) and changed[last + 1] - changed[last] <= 2 * context:
            last += 1
        yield from _hunk(lines, max(0, changed[at] - context), changed[last] + context + 1, first)
        at = last + 1


def _hunk(lines: Sequence[Line], start: int, end: int, first: int) -> Iterator[str]:
    part = lines[start:end]
    before = sum(line.mark != "-" for line in lines[:start])
    old = sum(line.mark != "+" for line in part)
    new = sum(line.mark != "-" for line in part)
    yield f"@@ -{_range(part[0].original + first, old)} +{_range(before + 1, new)} @@"
    for line in part:
        yield f"{line.mark}{line.text}"


def _range(start: int, count: int) -> str:
    # As in diff(1): an empty range names the line before.
    return str(start) if count == 1 else f"{start if count else start - 1},{count}"


def runs(lines: Sequence[Line]) -> Iterator[int]:
    """The index of the first line of each run of inserted lines."""
    for index, line in enumerate(lines):
        if line.mark == "+" and (not index or lines[index - 1].mark != "+"):
            yield index
