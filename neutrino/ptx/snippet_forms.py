"""The forms of ``snippet_table`` as values: which one an opcode is, its types, and which targets know it."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from neutrino.ptx.snippet_table import ARITHMETIC, FORMS, NEWER_FORMS, Need

TYPE = re.compile(r"pred|[busf](?:8|16|32|64)|b?f16(?:x2)?|[us]16x2|tf32", re.ASCII)
"""A modifier that is a type."""

_COLLECTIVES = frozenset({"match", "redux", "shfl", "vote"})
_OPCODE = re.compile(r"\s*(?:@\s*!?\s*\S+\s+)?([\w.:]+)", re.ASCII)


@dataclass(frozen=True)
class Form:
    """One row of the table. need: the lowest target that knows it, None where every target does."""

    opcode: str
    modifiers: str
    operands: tuple[str, ...]
    need: Need | None

    @functools.cached_property
    def _slots(self) -> tuple[tuple[frozenset[str], bool], ...]:
        return tuple((frozenset(slot.rstrip("?").split("|")), slot.endswith("?")) for slot in self.modifiers.split())

    def types(self, modifiers: list[str]) -> tuple[str, ...] | None:
        """The types among the modifiers when they fit this form, else None."""
        at = 0
        for words, optional in self._slots:
            if at < len(modifiers) and modifiers[at] in words:
                at += 1
            elif not optional:
                return None
        return None if at < len(modifiers) else tuple(word for word in modifiers if TYPE.fullmatch(word))


@functools.cache
def forms() -> dict[str, tuple[Form, ...]]:
    """The forms by the first part of their opcode."""
    found: dict[str, list[Form]] = {}
    every: list[tuple[Need | None, tuple[tuple[str, str, str], ...]]] = [(None, rows) for rows in FORMS.values()]
    for need, rows in [*every, *NEWER_FORMS.items()]:
        for opcode, modifiers, operands in rows:
            found.setdefault(opcode, []).append(Form(opcode, modifiers, tuple(operands.split()), need))
    return {opcode: tuple(entries) for opcode, entries in found.items()}


@functools.cache
def find_form(opcode: str) -> tuple[Form, tuple[str, ...]] | None:
    """The form of a whole opcode (``add.rn.f32``) and the types among its modifiers; None if no snippet may use it."""
    name, *modifiers = opcode.split(".")
    for form in forms().get(name, ()):
        types = form.types(modifiers)
        if types is not None:
            return form, types
    return None


def need(text: str) -> Need | None:
    """The lowest target that knows an instruction of a verified snippet; None where every target does."""
    match = _OPCODE.match(text)
    found = find_form(match[1]) if match else None
    return found[0].need if found else None


@functools.cache
def hidden_arithmetic(opcode: str) -> tuple[str, ...]:
    """Floating-point machine instructions (``FADD`` …) that an opcode becomes though it is not called after them."""
    name, *modifiers = opcode.split(".")
    for other, words, found in ARITHMETIC:
        if other == name and Form(other, words, (), None).types(modifiers) is not None:
            return found
    return ()


def is_collective(text: str) -> bool:
    """Whether an instruction of a verified snippet involves the warp's other lanes."""
    match = _OPCODE.match(text)
    return match is not None and match[1].partition(".")[0] in _COLLECTIVES
