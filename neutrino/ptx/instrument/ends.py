"""The ends of a body: where threads leave it, before which code for the ends goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from neutrino.ptx.text.body import Body, Statement


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


def all_ends(body: Body, leaving: Sequence[Statement]) -> list[End]:
    """Every end of a body, falling off it included. leaving: its ``ret`` and ``exit``, as in ``Found.ends``."""
    ends = [End(statement.start, statement.guard, " ".join(statement.text.split())) for statement in leaving]
    if _is_fallen_off(body):
        # -1: before the closing brace.
        ends.append(End(body.end - 1, None, "}"))
    return ends


def _is_fallen_off(body: Body) -> bool:
    """Whether control may come to the closing brace: not when the last instruction always leads elsewhere."""
    # What follows the last semicolon counts as a statement; it is empty but for braces and labels.
    remainder = len(body) - 1
    is_labelled = any(label.before == remainder for label in body.labels)
    if remainder == 0 or body.mnemonics[remainder] is not None or is_labelled:
        return True
    last = body.statement(remainder - 1)
    return last.guard is not None or last.mnemonic is None or not last.mnemonic.ends_block
