"""The source lines of PTX that a cubin keeps: ``ptxas`` leaves them out of the text, and has them for its code.

In the text each ``.loc`` is an empty line, so that instructions between two empty lines are of one source line. Which
one, tell the two line tables of the machine code: of its PTX and of its source.
"""

from __future__ import annotations

import re
from bisect import bisect_right

from neutrino.errors import FormatError
from neutrino.sass.lines import SECTION, SOURCE_SECTION, line_rows

Place = tuple[str, int]
_WRITTEN = re.compile(r'(?:[^"\\\x00-\x1f]|\\.)*')
_LOCATION = re.compile(r"^\s*\.(?:loc|file)\b", re.MULTILINE)


def with_source_lines(text: str, cubin: bytes | memoryview, file: str) -> str:
    """Return PTX with ``.loc`` in place of empty lines, and the ``.file`` directives at the end; the lines stay.

    text: what the cubin keeps, as it is. file: the cubin's name. Instructions of which the machine code has nothing, or
    of several places, are said to be of no line (0); what the compiler has said so of itself, as it adds it, has the
    line before it, since tables have no 0. The text as it is without line tables, or if they are damaged.
    """
    try:
        places = _places(cubin, file)
    except FormatError:
        return text
    if not places or _LOCATION.search(text):
        return text
    lines = text.split("\n")
    numbers: dict[str, int] = {}
    is_known = False
    for begin, end in _pieces(lines):
        found = set().union(*(places.get(number, set()) for number in range(begin + 1, end + 1)))
        if len(found) == 1 and all(found):
            ((path, line),) = found
            lines[begin - 1] = f"\t.loc\t{numbers.setdefault(path, len(numbers) + 1)} {line} 0"
            is_known = True
        elif is_known:
            lines[begin - 1] = "\t.loc\t1 0 0"
            is_known = False
    names = [f'.file\t{number} "{_quoted(path)}"' for path, number in numbers.items()]
    return "\n".join([*lines, *names, ""])


def _places(cubin: bytes | memoryview, file: str) -> dict[int, set[Place]]:
    """Return, by the number of a PTX line, the places in the source of the machine instructions that were made of it.

    Raises FormatError when the line tables are damaged.
    """
    sources = line_rows(cubin, file, SOURCE_SECTION)
    places: dict[int, set[Place]] = {}
    for function, rows in line_rows(cubin, file, SECTION).items():
        of_source = sources.get(function, [])
        begins = [offset for offset, _, _ in rows], [offset for offset, _, _ in of_source]
        for offset in sorted({*begins[0], *begins[1]}):
            one, other = (bisect_right(of_table, offset) - 1 for of_table in begins)
            if one < 0 or other < 0:
                continue
            _, line, path = of_source[other]
            if path and line > 0:
                places.setdefault(rows[one][1], set()).add((path, line))
    return places


def _pieces(lines: list[str]) -> list[tuple[int, int]]:
    """Return the pieces of a text after empty lines, as the index of the first line and that after the last one; from
    the first body on."""
    body = next((index for index, line in enumerate(lines) if "{" in line), len(lines))
    empty = [index for index, line in enumerate(lines) if index > body and not line.strip()]
    after = [*empty[1:], len(lines)]
    return [(index + 1, end) for index, end in zip(empty, after, strict=True) if end > index + 1]


def _quoted(path: str) -> str:
    """Return a path as it is written between quotes. The table has it as the program's compiler wrote it there."""
    if _WRITTEN.fullmatch(path):
        return path
    return "".join(char if char.isalnum() or char in "/._- " else f"\\{ord(char):03o}" for char in path)
