"""Instructions that a pattern misses by their type alone: Triton's loads are ``.b32`` where nvcc's are ``.f32``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from neutrino.probing.model import Pattern, Subject
from neutrino.ptx.isa.snippet_forms import TYPE
from neutrino.ptx.text.body import Body

_MOST = 3
"""Opcodes that are named."""


def near_misses(body: Body, patterns: Iterable[Pattern]) -> tuple[str, ...]:
    """Opcodes in a body that some pattern would find if it did not name a type; the first ones, each once."""
    loose: dict[str, list[Pattern]] = {}
    for pattern in patterns:
        untyped = tuple(part for part in pattern.opcode if not TYPE.fullmatch(part))
        if pattern.subject is Subject.OPCODE and untyped != pattern.opcode:
            loose.setdefault(pattern.opcode[0], []).append(replace(pattern, opcode=untyped))
    if not loose:
        return ()
    near = {
        opcode
        for opcode in body.opcodes
        if any(pattern.matches(opcode.parts) for pattern in loose.get(opcode.word, ()))
    }
    found = dict.fromkeys(body.statement(index).opcode for index in body.where(near))
    return tuple(found)[:_MOST]
