"""At which lines of a kernel's text its sites are, instructions that probes matched, whose lines are those of a module.

A line of PTX may hold several instructions, or a part of one, with labels, braces and comments between.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from neutrino.tracing.manifest import Manifest

STARTS = re.compile(r"^\s*(?:\.visible\s+|\.weak\s+|\.extern\s+)*\.(entry|func)\b")
"""Lines with which a function of PTX begins."""
_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_OF_ONE_LINE = re.compile(r"^[ \t]*\.(?:loc|file|version|target|address_size)\b[^\n;]*$", re.MULTILINE)
"""Directives that no semicolon ends."""
_NAMED = re.compile(r"\.(?:entry|func)\b\s*(?:\([^)]*\)\s*)?([A-Za-z_$%][\w$]*)")
_BEFORE = re.compile(r"\s*(?:[{}]|[A-Za-z_$%][\w$]*\s*:(?!:)|\.[^{}]*\{)")
"""What may stand before a statement: braces, labels, and the head of a function."""


@dataclass
class KernelText:
    """A kernel's text. places: of lines, the file and line of the source, by the line's number from 1. later: how much
    greater a line's number is in the whole module, which is what reports say.
    """

    name: str
    lines: list[str]
    places: dict[int, tuple[str, int]] = field(default_factory=dict)
    later: dict[int, int] = field(default_factory=dict)


def site_lines(manifest: Manifest, text: KernelText) -> dict[int, tuple[int, str]]:
    """Return the line in the text and the source's place of each site of a kernel, by its number; say in ``later`` of
    the text how lines are called.

    A text is a part of the module that lines of sites are of: each function's sites tell from where it is. Sites of a
    function that is not found have none.
    """
    by_function: dict[str, list[dict[str, Any]]] = {}
    for site in manifest.sites:
        if isinstance(site.get("line"), int) and site.get("instruction"):
            by_function.setdefault(str(site.get("function")), []).append(site)
    is_ptx = text.name.endswith(".ptx")
    plain = _without_comments(text.lines) if is_ptx else "\n".join(line.partition("//")[0] for line in text.lines)
    begun: dict[int, set[str]] = {}
    for line, statement in _statements(plain) if is_ptx else enumerate(plain.split("\n"), 1):
        begun.setdefault(line, set()).add(_spaced(statement))
    names = {1 + plain.count("\n", 0, found.start()): found[1] for found in _NAMED.finditer(plain)} if is_ptx else {}
    starts = sorted(names) or [number for number, line in enumerate(text.lines, 1) if STARTS.match(line)]
    count = len(text.lines)
    found: dict[int, tuple[int, str]] = {}
    for function, sites in by_function.items():
        own = [line for line in starts if names.get(line) == function]
        bodies = [range(at, min((start for start in starts if start > at), default=count + 1)) for at in own]
        later = _offset(begun, sites, bodies if is_ptx else [range(1, count + 1)])
        if later is None:
            continue
        for site in sites:
            if isinstance(site.get("site"), int):
                found.setdefault(site["site"], (site["line"] - later, str(site.get("source") or "")))
        # All lines of the function that has these sites.
        at = max((start for start in starts if start <= sites[0]["line"] - later), default=1)
        past = min((start for start in starts if start > at), default=count + 1)
        text.later |= dict.fromkeys(range(at, past), later)
    return found


def _offset(begun: dict[int, set[str]], sites: Iterable[dict[str, Any]], bodies: Iterable[range]) -> int | None:
    """Return how much greater the lines of sites are than those of the text; None if no lines have their instructions.

    begun: the statements that begin in each line. bodies: lines in which the function may be.
    """
    wanted = {(site["line"], _spaced(str(site["instruction"]))) for site in sites}
    # Heads and ends of functions are no statements.
    wanted = {row for row in wanted if not row[1].startswith((".", "}"))}
    if not wanted:
        return None
    first, instruction = min(wanted)
    for number in (number for body in bodies for number in body):
        if instruction not in begun.get(number, ()):
            continue
        later: int = first - number
        if all(statement in begun.get(line - later, ()) for line, statement in wanted):
            return later
    return None


def _without_comments(lines: list[str]) -> str:
    """Return a text of PTX whose comments, and directives of one line, are blanks, its lines as they were."""
    plain = _COMMENT.sub(lambda found: "\n" * found[0].count("\n") or " ", "\n".join(lines))
    return _OF_ONE_LINE.sub("", plain)


def _statements(plain: str) -> Iterator[tuple[int, str]]:
    """Yield the statements of a text of PTX without comments, each after the number of the line in which it begins."""
    line, at = 1, 0
    for piece in plain.split(";"):
        start = at
        before = _BEFORE.match(piece)
        inner = 0
        while before:
            inner = before.end()
            before = _BEFORE.match(piece, inner)
        inner += len(piece[inner:]) - len(piece[inner:].lstrip())
        line += plain.count("\n", start, start + inner)
        yield line, piece[inner:]
        at = start + len(piece) + 1
        line += plain.count("\n", start + inner, at)


def _spaced(statement: str) -> str:
    """Return a statement without its end, a scope's brace before it, and with single spaces."""
    return " ".join(statement.rstrip().rstrip(";").lstrip("{ \t").split())
