"""Branches in code after an access, from which the lanes of a warp do not come together again: asked by the checker.

Such a branch leads over the code to its end, where a probe measures few executions. Lanes that took it and lanes that
did not would go on apart. So what decides about it has to be the same in all lanes that are there: an answer to a vote
in the code before the same access, to which they came together, since nothing in between parts them.
"""

from __future__ import annotations

from collections.abc import Sequence

from neutrino.sass.fields import ALWAYS, GUARD, WAIT
from neutrino.sass.twin.hazards import FILES, GENERAL, Columns

_BRANCH = 0x947
_PLAIN = 0x000FEA00_03800000_00000000_00000947
"""A branch as ``ptxas`` writes it: five cycles, no scoreboard, no second predicate; without guard and distance."""
_DISTANCE = 0xFF << 16 | (1 << 48) - 1 << 34
_GUARDED = 0xF << 12
_TAIL = frozenset({"NOP", "R2P"})
_COMPARES, _ANSWERS = ("ISETP.EQ.U32.AND", "ISETP.NE.U32.AND"), ("VOTE.ANY", "VOTE.ALL")
_NO_GUARD = -1


def leap_target(word: int, index: int) -> int | None:
    """Return the number of the instruction that a branch under a predicate leads to, on sm_90; None for anything else.

    word: 128 bits. index: the instruction's number.
    """
    if word & 0xFFF != _BRANCH or GUARD.get(word) == ALWAYS:
        return None
    if word & ~_DISTANCE & ~_GUARDED & ~WAIT.put(0, (1 << WAIT.bits) - 1) != _PLAIN:
        return None
    distance = word >> 16 & 0xFF | (word >> 34 & (1 << 48) - 1) << 8
    distance -= distance >> 55 << 56
    return None if distance % 4 else index + 1 + distance // 4


def wrong_with_leap(columns: Columns, index: int, word: int, before: range, after: range) -> str:
    """Return what is wrong with a branch in code after an access, "" if nothing is.

    index: the branch's. word: of it. before, after: the code at the access.
    """
    target = leap_target(word, index)
    if target is None:
        return "a branch is another than one under a predicate, as ptxas writes it"
    if not index < target <= after.stop or any(columns.names[at] not in _TAIL for at in range(target, after.stop)):
        return "a branch leads elsewhere than to the end of the code after the access"
    at, registers = index, columns.guards[index] & FILES["P"]
    for where, opcodes, reads in (
        (after, _COMPARES, GENERAL), (after, ("MOV",), GENERAL), (before, ("MOV",), GENERAL),
        (before, ("SEL",), FILES["P"]), (before, _ANSWERS, FILES["P"]),
    ):  # fmt: skip
        found = _written_by(columns, where, at if at in where else where.stop, registers)
        if found is None or columns.conditions[found] != _NO_GUARD or not _is_one_of(columns, found, opcodes):
            return "lanes that are together may part at a branch: no vote decides about it"
        at, registers = found, columns.reads[found]
        if opcodes is not _ANSWERS and (registers & ~reads or registers.bit_count() != 1):
            return "lanes that are together may part at a branch: no vote alone decides about it"
        if where is after and opcodes == ("MOV",):
            # It is kept over the access: nothing after that has changed it.
            if _written_by(columns, after, at, registers) is not None:
                return "lanes that are together may part at a branch: what it asks for was changed"
            at = before.stop
    return ""


def _written_by(columns: Columns, where: Sequence[int], until: int, registers: int) -> int | None:
    """Return the number of the last instruction of a range, above another, that writes registers; None without one."""
    return next((at for at in reversed(range(where[0] if where else 0, until)) if columns.writes[at] & registers), None)


def _is_one_of(columns: Columns, index: int, names: Sequence[str]) -> bool:
    """Whether an instruction is one of some, by its name."""
    form = columns.forms[index]
    return form is not None and form.name in names
