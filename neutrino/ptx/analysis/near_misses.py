"""Instructions that a pattern misses by their type alone: Triton's loads are ``.b32`` where nvcc's are ``.f32``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from neutrino.probing.model import Pattern, Subject
from neutrino.ptx.analysis.matching import instructions_named
from neutrino.ptx.isa.snippet_forms import TYPE
from neutrino.ptx.text.body import Body

_MOST = 3
"""Opcodes that are named."""


def near_misses(code: str, body: Body, patterns: Iterable[Pattern]) -> tuple[str, ...]:
    """Opcodes in a body that some pattern would find if it did not name a type; the first ones, each once."""
    loose: dict[str, list[Pattern]] = {}
    for pattern in patterns:
        untyped = tuple(part for part in pattern.opcode if not TYPE.fullmatch(part))
        if pattern.subject is Subject.OPCODE and untyped != pattern.opcode:
            loose.setdefault(pattern.opcode[0], []).append(replace(pattern, opcode=untyped))
    if not loose:
        return ()
    found: dict[str, None] = {}
    for opcode in _opcodes(code, body, tuple(loose)):
        parts = opcode.split(".")
        if opcode not in found and any(pattern.matches(parts) for pattern in loose[parts[0]]):
            found[opcode] = None
            if len(found) == _MOST:
                break
    return tuple(found)


def _opcodes(code: str, body: Body, words: tuple[str, ...]) -> Iterator[str]:
    for match in instructions_named(tuple(sorted(words))).finditer(code, body.start, body.end):
        yield match["opcode"]
