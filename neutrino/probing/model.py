"""Tracepoints of probes: plain values, from TOML and from Python alike."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence, Set
from fnmatch import fnmatchcase

from neutrino.late_dataclass import dataclass

DEFAULT_PLATFORM = "cuda"
"""``platform`` of probe files that name none, and of those in Python."""

Meaning = Callable[[str, Sequence[str]], bool | None]
"""Whether a word that is no modifier holds for an opcode with these modifiers; None of a word that is a modifier."""


def _modifiers_alone(word: str, modifiers: Sequence[str]) -> bool | None:
    """Say that a word of a pattern has no meaning of its own, so that it is a modifier (a ``Meaning``)."""
    return None


class Lanes(enum.Enum):
    """For which lanes a snippet runs, if the instruction at its site has a predicate.

    ``EXECUTING``: lanes whose predicate lets the instruction execute. ``REACHING``: all lanes that reach it.
    """

    EXECUTING = "executing"
    REACHING = "reaching"


CLASSES = ("memory", "load", "store", "atomic", "barrier", "branch", "tensor", "convert", "special")
"""Words that stand for many instructions; the assembly's table of opcodes says which."""


class Subject(enum.Enum):
    """What a pattern matches.

    ``KERNEL``: the entry and the ends of a kernel. ``OPCODE``, ``CLASS``, ``ANY``: instructions. ``FUNCTION``: the
    entry and the returns of a ``.func``. ``LINE``: a source line. ``RANGE``: the beginning and the end of a range that
    is marked in the source. ``BLOCK``: the beginning of a basic block. ``LOOP_HEAD``: the head of a natural loop.
    ``BACK_EDGE``: a branch taken back to one.
    """

    KERNEL = "kernel"
    OPCODE = "opcode"
    CLASS = "class"
    ANY = "any"
    FUNCTION = "function"
    LINE = "line"
    RANGE = "range"
    BLOCK = "block"
    LOOP_HEAD = "loop-head"
    BACK_EDGE = "back-edge"


FLOW_SUBJECTS = (Subject.BLOCK, Subject.LOOP_HEAD, Subject.BACK_EDGE)
"""Those that are places in the flow graph. Their code goes between instructions, on the ``before`` side alone."""


@dataclass(frozen=True)
class SourceLines:
    """Lines first to last of a source file. file: its name, or the end of its path from a ``/`` on."""

    file: str
    first: int
    last: int


@dataclass(frozen=True)
class Pattern:
    """One alternative of a tracepoint.

    opcode: the dotted parts of an ``OPCODE`` pattern (``("ld", "global")``). group: one of ``CLASSES``.
    without: modifiers that an instruction must not have, written ``!tensor``; without them
    ``cp.async.bulk.shared.global`` would also match its tensor form. function, lines: the subject itself
    (``FUNCTION``, ``LINE``), else the function and the source lines that instructions must belong to. A function's
    name may be mangled, demangled or a glob. predicated: only instructions with a predicate, written ``@``.

    requires, excludes: further dotted opcodes that an instruction must match or must not match, as in
    ``load & ld.global``; one of a single part also names a class or a modifier (``load & volatile``). not_functions,
    not_lines: functions and source lines that it must not belong to. unpredicated: only instructions without a
    predicate, written ``!@``.

    callees: names of functions, all of which the called function must have, written ``call:NAME``; not_callees: those
    that it must not have. ranges: the subject itself (``RANGE``), else marked ranges in all of which instructions must
    lie; not_ranges: those in which they must not. Each may be a glob.
    """

    subject: Subject
    opcode: tuple[str, ...] = ()
    group: str = ""
    without: tuple[str, ...] = ()
    function: str = ""
    lines: SourceLines | None = None
    predicated: bool = False
    requires: tuple[tuple[str, ...], ...] = ()
    excludes: tuple[tuple[str, ...], ...] = ()
    not_functions: tuple[str, ...] = ()
    not_lines: tuple[SourceLines, ...] = ()
    unpredicated: bool = False
    callees: tuple[str, ...] = ()
    not_callees: tuple[str, ...] = ()
    ranges: tuple[str, ...] = ()
    not_ranges: tuple[str, ...] = ()

    @property
    def is_place(self) -> bool:
        """Whether the pattern of a tracepoint matches places between instructions: marks of ranges, loop heads and the
        like."""
        return self.subject is Subject.RANGE or self.subject in FLOW_SUBJECTS

    @property
    def has_operands(self) -> bool:
        """Whether the pattern matches instructions, which have operands for a snippet to read."""
        return self.subject in {Subject.OPCODE, Subject.CLASS, Subject.ANY}

    def matches(
        self, instruction: Sequence[str], groups: Set[str] = frozenset(), meaning: Meaning = _modifiers_alone
    ) -> bool:
        """Return whether the pattern matches an opcode.

        instruction: the dotted parts of the opcode. groups: the classes that it belongs to. meaning: of the target's
        words that are no modifiers.

        For an opcode pattern, the first parts must be equal, and its other parts must occur in the same order among
        the modifiers. ``shared`` also matches ``shared::cta`` and ``shared::cluster``, and a ``*`` stands for any
        modifiers or letters. The caller checks what does not follow from the opcode: ``function``, ``lines``,
        ``callees``, ``ranges``, ``predicated`` and their opposites.
        """
        # Kernels, functions and lines are found in another way.
        if not instruction or not self.has_operands:
            return False
        modifiers = instruction[1:]
        if any(_is_modifier(modifier, part) for part in self.without for modifier in modifiers):
            return False
        # Of an opcode the first part is known, of a class it is not: "memory !ld".
        known: Set[str] = frozenset() if self.subject is Subject.OPCODE else {instruction[0], *groups}
        if not known.isdisjoint(self.without):
            return False
        if any(has_parts(instruction, groups, parts, meaning) for parts in self.excludes):
            return False
        if not all(has_parts(instruction, groups, parts, meaning) for parts in self.requires):
            return False
        if self.subject is Subject.ANY:
            return True
        if self.subject is Subject.CLASS:
            return self.group in groups
        return _fits(instruction, self.opcode, meaning)


@dataclass(frozen=True)
class Tracepoint:
    """Where a probe is inserted. text: as the user wrote it. patterns: its alternatives, at least one."""

    text: str
    patterns: tuple[Pattern, ...]

    @property
    def is_kernel(self) -> bool:
        """Whether the probe goes to the kernel's entry and ends, by one of its alternatives."""
        return any(pattern.subject is Subject.KERNEL for pattern in self.patterns)

    @property
    def has_operands(self) -> bool:
        """Whether every alternative matches instructions, so that a snippet may use helpers such as ``OUT``."""
        return all(pattern.has_operands for pattern in self.patterns)

    def matches(
        self, instruction: Sequence[str], groups: Set[str] = frozenset(), meaning: Meaning = _modifiers_alone
    ) -> bool:
        """Return whether one of the tracepoint's alternatives matches an instruction, given as its dotted opcode's
        parts.

        groups, meaning: as for ``Pattern.matches``.
        """
        return any(pattern.matches(instruction, groups, meaning) for pattern in self.patterns)


def has_parts(
    instruction: Sequence[str], groups: Set[str], parts: tuple[str, ...], meaning: Meaning = _modifiers_alone
) -> bool:
    """Return whether an instruction has a dotted opcode or, for a single part, that class or modifier."""
    if len(parts) > 1:
        return _fits(instruction, parts, meaning)
    (word,) = parts
    holds = meaning(word, instruction[1:])
    if holds is not None:
        return "memory" in groups and holds
    return word in groups or any(_is_modifier(part, word) for part in instruction)


def _fits(instruction: Sequence[str], opcode: tuple[str, ...], meaning: Meaning) -> bool:
    """Return whether an instruction's opcode is the pattern's: equal in its first part, with the others among its
    modifiers.

    They must occur in the same order there.
    """
    first, modifiers = instruction[0], instruction[1:]
    if opcode[0] != first and not ("*" in opcode[0] and fnmatchcase(first, opcode[0])):
        return False
    # Each search continues after the modifier that the part before it matched.
    remaining = iter(modifiers)
    for part in opcode[1:]:
        holds = meaning(part, modifiers)
        # "*" stands for any number of modifiers, which there may be everywhere.
        if holds is None and part != "*":
            holds = any(_is_modifier(modifier, part) for modifier in remaining)
        if holds is False:
            return False
    return True


def _is_modifier(modifier: str, part: str) -> bool:
    """Return whether a modifier is the one that a pattern names: ``shared`` names those with a sub-qualifier too."""
    return modifier == part or modifier.partition("::")[0] == part or ("*" in part and fnmatchcase(modifier, part))
