"""How often a thread comes by a place of a body, as far as the text alone says.

Branches and their labels are taken as stretches of the text. Nothing that goes round from a place comes back to it
without a branch from behind it to before it. And every thread that ends has come by a place that no branch leads
past and no end stands before.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections.abc import Iterable

from neutrino.ptx.body import Body
from neutrino.ptx.matching import instructions_named

_TARGET = re.compile(r"\s+([\w$%]+)\s*\Z", re.ASCII)
_LABEL = re.compile(r"(?<![\w$%])([A-Za-z_$%][\w$]*)\s*:(?!:)(?<!::)", re.ASCII)


class Passes:
    """Of one body. ends: where threads may end, by position."""

    def __init__(self, body: Body, ends: Iterable[int]) -> None:
        self._first_end = min(ends, default=body.end)
        # From a branch to its label, (lower, upper): those that lead back and those that lead on.
        back: list[tuple[int, int]] = []
        on: list[tuple[int, int]] = []
        labels: dict[str, list[int]] = {}
        for label in _LABEL.finditer(body.code, body.start, body.end):
            labels.setdefault(label[1], []).append(label.start())
        for branch in instructions_named(("bra", "brx")).finditer(body.code, body.start, body.end):
            at = branch.start("opcode")
            statement = body.code[branch.end("opcode") : body.code.find(";", at)]
            target = _TARGET.match(statement) if branch["opcode"].startswith("bra") else None
            # Where a branch by a table goes is not looked up, and a name may have several labels, each in its braces.
            places = labels.get(target[1], ()) if target else ()
            lowest, highest = min(places, default=body.start), max(places, default=body.end)
            if lowest <= at:
                back.append((lowest, at + 1))
            if highest > at:
                on.append((at + 1, highest))
        self._back, self._on = _united(back), _united(on)

    def once(self, position: int) -> bool:
        """No thread comes by there twice."""
        return not _holds(self._back, position)

    def always(self, position: int) -> bool:
        """Every thread that ends has come by there, once."""
        return position <= self._first_end and self.once(position) and not _holds(self._on, position)


def _united(stretches: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same places in stretches that do not overlap, in text order."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(stretches):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _holds(stretches: list[tuple[int, int]], position: int) -> bool:
    """Whether a stretch reaches from the position or before to behind it."""
    at = bisect_right(stretches, (position, sys.maxsize)) - 1
    return at >= 0 and position < stretches[at][1]
