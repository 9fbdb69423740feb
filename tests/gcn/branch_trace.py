"""What probes of branches must record: followed in the interpreter, by what EXEC was and where waves went."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Protocol

from neutrino.emulator.gcn.program import Program
from neutrino.emulator.gcn.wave import Wave

Key = tuple[tuple[int, int, int], int]
_BRANCH = re.compile(r"s_(?:c?branch\w*) (\d+)")
_CHANGES = re.compile(r"s_\w+_saveexec_b\d+ .*|s_\w+ exec(?:_lo)?,.*|v_cmpx_.*")
_TAKES_OUT = re.compile(r"s_and_saveexec.*|s_(?:and|andn2|and_not1|mov)_b\d+ exec.*|v_cmpx_.*")
_OTHER_SIDE = re.compile(r"s_xor_b\d+ exec.*|s_(?:andn2|and_not1|or)_saveexec.*")
_ALL_LANES = re.compile(r"s_or_saveexec_b\d+ \S+, -1")
_STEPS = re.compile(r"s_c?branch.*|s_setpc.*|s_swappc.*|s_endpgm.*|s_barrier.*")


class HasProgram(Protocol):
    """A loaded object."""

    def program(self, lanes: int) -> Program:
        """The code, as waves of so many lanes run it."""


@dataclass
class BranchTrace:
    """The observer of an original's launch. begin: address of the kernel. reached, taken: lanes by branch that was
    executed. steps: what the first lane of each wave has reached, as offsets."""

    begin: int
    reached: list[tuple[int, int]] = field(default_factory=list)
    steps: dict[Key, list[int]] = field(default_factory=lambda: defaultdict(list))
    _texts: list[tuple[int, str, bool]] = field(default_factory=list)
    _last: dict[Key, tuple[int, int]] = field(default_factory=dict)
    _changed: dict[Key, tuple[int, str] | None] = field(default_factory=dict)
    _bracket: dict[Key, bool] = field(default_factory=dict)

    def observer(self, loaded: HasProgram, lanes: int) -> BranchTrace:
        """Itself, ready for a program."""
        rows = loaded.program(lanes).instructions
        targets = set()
        for row in rows:
            match = _BRANCH.match(row.text or "")
            if match is not None:
                words = int(match[1])
                targets.add(row.address + row.size + 4 * (words - (words >> 15 << 16)))
        self._texts = [(row.address - self.begin, (row.text or "").strip(), row.address in targets) for row in rows]
        return self

    def __call__(self, wave: Wave, place: int) -> None:
        key, now = (wave.group.index, wave.number), wave.execute()
        if key in self._last:
            self._finish(key, place, now)
        _, _, is_target = self._texts[place]
        if is_target:
            self._changed[key], self._bracket[key] = None, False
        self._last[key] = place, now
        self._before(key, place, now)

    def _before(self, key: Key, place: int, now: int) -> None:
        offset, text, _ = self._texts[place]
        if _STEPS.match(text) and not text.startswith(("s_cbranch_exec", "s_endpgm")) and now & 1:
            self.steps[key].append(offset)
        if text.startswith("s_endpgm") and now & 1:
            self.steps[key].append(offset)
        if text.startswith("s_cbranch_exec"):
            lanes = self._reaching(key, now)
            if lanes is not None and lanes & 1:
                self.steps[key].append(offset)

    def _reaching(self, key: Key, now: int) -> int | None:
        """Lanes that reach a branch that depends on EXEC; None of one that is the other side of another."""
        changed = self._changed.get(key)
        if changed is None:
            return now
        before, text = changed
        if _OTHER_SIDE.match(text):
            return None
        return before if _TAKES_OUT.match(text) and not now & ~before else now

    def _finish(self, key: Key, place: int, now: int) -> None:
        last, before = self._last.pop(key)
        _, text, _ = self._texts[last]
        match = _BRANCH.match(text)
        if text.startswith("s_cbranch_exec"):
            lanes = self._reaching(key, before)
            if lanes:
                self.reached.append((lanes, before if text.startswith("s_cbranch_execnz") else lanes & ~before))
        elif text.startswith("s_cbranch") and before:
            self.reached.append((before, before if place != last + 1 else 0))
        if match is not None:
            self._changed[key], self._bracket[key] = None, False
        elif _ALL_LANES.fullmatch(text):
            self._bracket[key] = True
        elif _CHANGES.fullmatch(text):
            if self._bracket.get(key):
                # EXEC is what it was before all lanes were active.
                self._bracket[key] = False
            else:
                self._changed[key] = before, text

    def counted(self) -> tuple[int, int, int, int]:
        """What ``branch_divergence`` must record."""
        return (
            len(self.reached), sum(0 < taken < lanes and taken != lanes for lanes, taken in self.reached),
            sum(taken.bit_count() for _, taken in self.reached),
            sum((lanes & ~taken).bit_count() for lanes, taken in self.reached),
        )  # fmt: skip
