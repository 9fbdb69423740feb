"""Comments above the code that probing put into a kernel's text: which probe each piece is of. For reading only."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence

from neutrino.cli.difference import Line, runs
from neutrino.cli.streams import visible
from neutrino.probing.ir.probe_set import Probe, ProbeSet
from neutrino.probing.ir.statements import Assembly, registers_of
from neutrino.ptx.instrument.twin import Site

_END = re.compile(r"\s*(?:@!?\s*[\w$%]+\s+)?(?:ret|exit)\b|\s*}")
_OWN_REGISTER = re.compile(r"_r_([\w$]+)", re.ASCII)
"""A register of the probe file in the twin's text: its name follows the prefix of the twin's own."""
_COUNTER = re.compile(r"add\.u(?:32|64) %neutrino_(?:x_)*c\d+,", re.ASCII)
"""A counter of executions, for any probes that add constants there."""
_FAR = 32
"""Inserted pieces above a site that may hold its code."""


def with_comments(
    lines: Sequence[Line], sites: Sequence[Site], probes: ProbeSet, *, first: int, is_kernel: bool
) -> list[Line]:
    """The lines, with comments above inserted code.

    sites: those of this text. first: the line of the PTX that it begins in. is_kernel: it is the kernel's, not a
    called function's.
    """
    pieces = _Pieces(lines)
    by_name = {probe.name: probe for probe in probes.probes}
    labels: dict[int, Counter[str]] = {at: Counter() for at in pieces.places}
    for site in sites:
        probe = by_name[site.probe]
        at = site.line - first
        of_kernel = probe.tracepoint.is_kernel
        home = pieces.home(probe, at) if probe.before is not None and not of_kernel else None
        if home is not None:
            labels[home][f"{probe.name}: before {probe.tracepoint.text}"] += 1
        # What runs after the kernel is inserted before each end of a thread.
        place_after = at if of_kernel else at + 1
        if probe.after is not None and place_after in labels:
            labels[place_after][f"{probe.name}: after {probe.tracepoint.text}"] = 1
    begins = {site.probe for site in sites if site.instruction.startswith(".entry")}
    entry = [f"{probe.name}: before kernel" for probe in probes.probes if probe.name in begins and probe.before]
    found: list[Line] = []
    above = {place: at for at, place in pieces.places.items()}
    for place, line in enumerate(lines):
        if place in above:
            at = above[place]
            words = [text if number == 1 else f"{text}, {number} sites" for text, number in labels[at].items()]
            if at == pieces.entry:
                words = ["the probes' registers", *entry, *words]
            elif not words and _END.match(pieces.line_after(place)):
                words = ["counts of the maps, where a thread ends" if is_kernel else "registers return to the kernel"]
            if words:
                found.append(Line("+", f"    // {visible('; '.join(words))}", line.original))
        found.append(line)
    return found


class _Pieces:
    """The code inserted between two lines of the original, by the number of the second. places: where each begins.

    entry: the piece that declares the registers, None without one.
    """

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines
        self.places = {lines[place].original: place for place in runs(lines)}
        declares = (at for at, place in self.places.items() if lines[place].text.lstrip().startswith(".reg "))
        self.entry = next(declares, None)
        self._order = sorted(self.places)
        self._registers = {at: self._registers_of(place) for at, place in self.places.items()}
        self._counting = {at for at, place in self.places.items() if self._counts(place)}

    def _registers_of(self, place: int) -> frozenset[str]:
        found: set[str] = set()
        while place < len(self._lines) and self._lines[place].mark == "+":
            found.update(_OWN_REGISTER.findall(self._lines[place].text))
            place += 1
        return frozenset(found)

    def _counts(self, place: int) -> bool:
        while place < len(self._lines) and self._lines[place].mark == "+":
            if _COUNTER.search(self._lines[place].text):
                return True
            place += 1
        return False

    def home(self, probe: Probe, at: int) -> int | None:
        """The piece with the code of a probe's site: the one right before it, or one above where additions of several
        sites were made one. None where there is none."""
        statements = probe.before.straight if probe.before else ()
        written = [statement for statement in statements if isinstance(statement, Assembly)]
        names = {register.name[1:] for statement in written for register in registers_of(statement)}
        only_adds = bool(statements) and all(statement.opcode.startswith("add.") for statement in written)
        last = bisect_right(self._order, at)
        for piece in reversed(self._order[max(0, last - _FAR) : last]):
            if piece == at and not names:
                return at
            if not names.isdisjoint(self._registers[piece]) and (piece == at or piece != self.entry):
                return piece
            if only_adds and piece in self._counting:
                return piece
        if at in self.places or not only_adds:
            return at if at in self.places else None
        # Every thread executes the site, so its sums are constants that are added at the ends.
        ends = (piece for piece in self._order if _END.match(self.line_after(self.places[piece])))
        return next((piece for piece in ends if piece >= at), None)

    def line_after(self, place: int) -> str:
        """The original line that follows a piece, "" at the end of the text."""
        return next((line.text for line in self._lines[place:] if line.mark != "+"), "")
