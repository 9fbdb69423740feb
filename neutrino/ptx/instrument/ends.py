"""Where the threads of a kernel begin and end, and code there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from neutrino.ptx.text.body import Body, Statement
from neutrino.ptx.text.edits import Edits, behind

_DECLARATIONS = re.compile(r"(?:\s*\.(?:reg|shared|local|param|pragma)\b[^;{}]*;)*", re.ASCII)


class End(NamedTuple):
    """Where threads leave a body. at: the position before which code goes. guard: ``@!%p`` as written, None without.

    shown: the instruction in one line, ``}`` where threads fall off the body.
    """

    at: int
    guard: str | None
    shown: str

    @property
    def is_exit(self) -> bool:
        """The thread ends here, in a called function too."""
        return self.shown.split()[-1].startswith("exit")


def find_ends(body: Body, leaving: Sequence[Statement]) -> list[End]:
    """Every end of a body, falling off it included. leaving: its ``ret`` and ``exit``, as in ``Found.ends``."""
    found = [End(statement.start, statement.guard, " ".join(statement.text.split())) for statement in leaving]
    if _is_fallen_off(body):
        found.append(End(body.end - 1, None, "}"))
    return found


def _is_fallen_off(body: Body) -> bool:
    """Control may come to the closing brace."""
    rest = len(body) - 1
    if rest == 0 or body.mnemonics[rest] is not None or any(label.before == rest for label in body.labels):
        return True
    last = body.statement(rest - 1)
    return last.guard is not None or last.mnemonic is None or not last.mnemonic.ends_block


def close(edits: Edits, code: str, end: End, closing: Sequence[str], label: str) -> None:
    """Put instructions before an end; around them a branch for the threads that do not end there.

    code: the module's blanked text. label: for that branch, used nowhere else.
    """
    lines = closing
    if end.guard:
        predicate = end.guard.strip()[1:].strip()
        other = predicate[1:].strip() if predicate.startswith("!") else f"!{predicate}"
        lines = [f"@{other} bra {label};", *closing]
        edits.insert(code.find(";", end.at) + 1, f"\n{label}:")
    edits.ahead_of(end.at, lines)


def insert_at_entry(edits: Edits, body: Body, lines: Sequence[str]) -> None:
    """Put instructions before all others of a body, behind its declarations."""
    if lines:
        match = _DECLARATIONS.match(body.code, body.start + 1, body.end)
        edits.insert_first(match.end() if match else body.start + 1, behind(lines))
