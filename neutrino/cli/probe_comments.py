"""Comments above the code that probes inserted into a kernel's text: which probe each piece of code belongs to.

They are for readers of the text; nothing parses them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence

from neutrino.cli.difference import Line, runs
from neutrino.cli.streams import escaped
from neutrino.ir.statements import Assembly
from neutrino.probing.ir.probe_set import Probe, ProbeSet
from neutrino.probing.ir.structured import registers_of
from neutrino.twins.values import Site

_THREAD_END = re.compile(r"\s*(?:@!?\s*[\w$%]+\s+)?(?:ret|exit)\b|\s*}")
_PROBE_REGISTER = re.compile(r"_r_([\w$]+)", re.ASCII)
"""A probe file's register as the probed text has it: its name follows a prefix that the program does not use."""
_COUNTER = re.compile(r"add\.u(?:32|64) %neutrino_(?:x_)*c\d+,", re.ASCII)
"""An execution counter, which stands for all probes that add constants to maps in that basic block."""
_MARK = re.compile(r"/[/*]\s*neutrino\s+(begin|end)\b")
"""A mark of a range in the source, as sites show it."""
_MAX_PIECES_ABOVE = 32
"""How many inserted pieces above a site are searched for its code, so that a large kernel takes no longer per site."""


def with_comments(
    lines: Sequence[Line], sites: Sequence[Site], probes: ProbeSet, *, first: int, is_kernel: bool
) -> list[Line]:
    """Return the difference of a text, with a comment line above each piece of inserted code that names its probes.

    The comments are for readers of ``neutrino-probe show``; nothing parses them. lines: the difference between the
    original and the probed text. sites: where probes went in this text. first: the line of the PTX file where the
    original begins. is_kernel: it is the kernel's text, not a called function's.
    """
    pieces = _Pieces(lines)
    labels = _labels(pieces, sites, probes, first)
    # The site of a probe before the kernel is the directive .entry; its code is in the piece that declares registers.
    probes_at_entry = {site.probe for site in sites if site.instruction.startswith(".entry")}
    entry_labels = [
        f"{probe.name}: before kernel" for probe in probes.probes if probe.name in probes_at_entry and probe.before
    ]
    commented: list[Line] = []
    piece_at = {index: piece for piece, index in pieces.starts.items()}
    for index, line in enumerate(lines):
        if index in piece_at:
            piece = piece_at[index]
            words = [text if number == 1 else f"{text}, {number} sites" for text, number in labels[piece].items()]
            # Code of no probe: registers are declared, and values are written to the maps where a thread ends.
            if piece == pieces.entry:
                words = ["the probes' registers", *entry_labels, *words]
            elif not words and _THREAD_END.match(pieces.line_after(index)):
                words = ["counts of the maps, where a thread ends" if is_kernel else "registers return to the kernel"]
            # A piece that no probe could be found for has no comment.
            if words:
                commented.append(Line("+", f"    // {escaped('; '.join(words))}", line.original))
        commented.append(line)
    return commented


def _labels(pieces: _Pieces, sites: Sequence[Site], probes: ProbeSet, first: int) -> dict[int, Counter[str]]:
    """Return for each piece of inserted code what its comment says: phrases, with the number of sites (instructions
    that probes match) of each.

    A phrase is as ``NAME: before POSITION``. Pieces are numbered as in ``_Pieces``. first: the line of the PTX file
    where the original begins.
    """
    by_name = {probe.name: probe for probe in probes.probes}
    labels: dict[int, Counter[str]] = {piece: Counter() for piece in pieces.starts}
    for site in sites:
        probe = by_name[site.probe]
        # As in the pieces, from 0 in this text.
        line = site.line - first
        mark = _MARK.match(site.instruction)
        if mark is not None:
            # Code of both sides comes before its mark.
            if line in labels:
                side = "before" if mark[1] == "begin" else "after"
                labels[line][f"{probe.name}: {side} {probe.tracepoint.text}"] = 1
            continue
        is_of_kernel = probe.tracepoint.is_kernel
        before = pieces.code_before(probe, line) if probe.before is not None and not is_of_kernel else None
        if before is not None:
            # Code of several sites may have been combined into one piece.
            labels[before][f"{probe.name}: before {probe.tracepoint.text}"] += 1
        # After the kernel means before its site, which is an instruction that ends a thread; other code comes after its
        # site.
        after = line if is_of_kernel else line + 1
        # There may be none, as where a constant is added once for all sites. The code after a site is of it alone.
        if probe.after is not None and after in labels:
            labels[after][f"{probe.name}: after {probe.tracepoint.text}"] = 1
    return labels


class _Pieces:
    """The pieces of inserted code in a difference. A piece is identified by the original line that follows it.

    Lines are numbered from 0 in the original. starts: piece → index in the difference of its first line. entry: the
    piece that declares the registers, None if there is none.
    """

    def __init__(self, lines: Sequence[Line]) -> None:
        """Find the pieces of inserted code. lines: the difference between the original and the probed text.

        _order: the pieces, ascending. _registers: the probe file's registers in each piece. _with_counter: pieces that
        add to an execution counter.
        """
        self._lines = lines
        self.starts = {lines[index].original: index for index in runs(lines)}
        declaring = (piece for piece, start in self.starts.items() if lines[start].text.lstrip().startswith(".reg "))
        self.entry = next(declaring, None)
        self._order = sorted(self.starts)
        self._registers = {piece: self._registers_in(start) for piece, start in self.starts.items()}
        self._with_counter = {piece for piece, start in self.starts.items() if self._has_counter(start)}

    def _registers_in(self, start: int) -> frozenset[str]:
        """Return the names of the probe file's registers in the piece that begins at an index of the difference."""
        return frozenset(name for text in self._texts(start) for name in _PROBE_REGISTER.findall(text))

    def _has_counter(self, start: int) -> bool:
        """Return whether the piece that begins at an index of the difference adds to an execution counter."""
        return any(_COUNTER.search(text) for text in self._texts(start))

    def _texts(self, start: int) -> Iterator[str]:
        """Yield the texts of the lines of the piece that begins at an index of the difference."""
        index = start
        while index < len(self._lines) and self._lines[index].mark == "+":
            yield self._lines[index].text
            index += 1

    def code_before(self, probe: Probe, line: int) -> int | None:
        """Return the piece with the code that a probe runs before its site (instruction that probes match); None if
        none can be found.

        line: the site's line in the original. The piece is the one right before the site, or one above it if the
        additions of several sites were combined there.
        """
        statements = probe.before.straight if probe.before else ()
        assembly = [statement for statement in statements if isinstance(statement, Assembly)]
        # Without the % that their names begin with.
        registers = {register.name[1:] for statement in assembly for register in registers_of(statement)}
        # Only such snippets may have been replaced by counters of executions.
        only_adds = bool(statements) and all(statement.opcode.startswith("add.") for statement in assembly)

        # The nearest piece that uses the probe's registers, or counts executions for it.
        end = bisect_right(self._order, line)
        for piece in reversed(self._order[max(0, end - _MAX_PIECES_ABOVE) : end]):
            if piece == line and not registers:
                # Code without registers cannot be recognized, so it is taken to be at its site.
                return line
            # The entry's piece declares all registers, so finding them there says nothing.
            if not registers.isdisjoint(self._registers[piece]) and (piece == line or piece != self.entry):
                return piece
            if only_adds and piece in self._with_counter:
                return piece
        # No piece has the registers: whatever was inserted right before the site is taken to be the code.
        if line in self.starts:
            return line
        if not only_adds:
            return None
        # Without a counter, every thread executes the site: its sums are constants, added where threads end.
        thread_ends = (piece for piece in self._order if _THREAD_END.match(self.line_after(self.starts[piece])))
        return next((piece for piece in thread_ends if piece >= line), None)

    def line_after(self, index: int) -> str:
        """Return the text of the first original line from an index of the difference on, "" at the end of the text."""
        return next((line.text for line in self._lines[index:] if line.mark != "+"), "")
