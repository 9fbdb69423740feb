"""Whether a twin with code in the kernel's own registers reads as its original with that code in it, by what nvdisasm
prints. Nothing of the writer's is used.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.sass_twin.probed_listing import Code, Judge


class ReusedJudge(Judge):
    """Judges twins with code in the kernel's own registers, and the clock in uniform ones in between. clock: those.
    clock_at: the first register that ptxas' code has it in. ahead: exits that read the clock before all else."""

    clock: tuple[int, ...] = ()
    clock_at = -1
    ahead = 0

    def body(self, at: int, rows: Sequence[tuple[str, int]], code: Code) -> int:
        """Compare what is before ptxas' code, and that."""
        if rows is code.entry:
            return self._entry(at, rows)
        rest = list(rows)
        if self.twin.get(at, "").startswith("PMTRIG"):
            for start in ("PMTRIG", "CS2R"):
                row = next(one for one in rest if one[0].startswith(start))
                rest.remove(row)
                self.same(at, row[0], self.twin.get(at, ""), {}, code)
                at += 16
            self.ahead += 1
        cycles = waits = 0
        while self.twin.get(at) == "NOP":
            cycles += self.words[at // 16] >> 105 & 15
            waits |= self.words[at // 16] >> 116 & 0x3F
            at += 16
        if cycles < 40 or waits != 0x3F:
            self.say(at, f"{cycles} cycles and the scoreboards {waits:#x} are waited for")
        for more, number in enumerate(self.clock):
            found = re.fullmatch(rf"MOV R(\d+), UR{number}", self.twin.get(at, ""))
            if found is None:
                self.say(at, f"{self.twin.get(at)} in place of a move of UR{number}")
            else:
                self.maps["R"][self.clock_at + more] = int(found[1])
            at += 16
        for text, word in code.entry:
            if "SR_LTMASK" in text:
                self.same(at, text, self.twin.get(at, ""), {}, code)
                if (self.words[at // 16] ^ word) >> 110 & 0x3F:
                    self.say(at, "takes another scoreboard than in ptxas' code")
                at += 16
        return super().body(at, rest, code)

    def _entry(self, at: int, rows: Sequence[tuple[str, int]]) -> int:
        texts = [text for text, _ in rows if text != "NOP"]
        first = re.fullmatch(r"CS2R R(\d+), SR_CLOCKLO", texts[0])
        assert first is not None
        assert len(texts) == 2, texts
        assert "SR_LTMASK" in texts[1]
        self.clock_at = int(first[1])
        found = re.fullmatch(r"CS2R R(\d+), SR_CLOCKLO", self.twin.get(at, ""))
        if found is None:
            self.say(at, f"{self.twin.get(at)} in place of {texts[0]}")
            return at
        cycles = self.words[at // 16] >> 105 & 15
        at += 16
        while self.twin.get(at) == "NOP":
            cycles += self.words[at // 16] >> 105 & 15
            at += 16
        if cycles < 37:
            self.say(at, f"the clock is used after {cycles} cycles")
        numbers = []
        for more in range(2):
            moved = re.fullmatch(rf"R2UR UR(\d+), R{int(found[1]) + more}", self.twin.get(at, ""))
            if moved is None:
                self.say(at, f"{self.twin.get(at)} in place of a move of the clock")
                return at
            numbers.append(int(moved[1]))
            at += 16
        self.clock = tuple(numbers)
        # On sm_80 R2UR takes a scoreboard.
        while self.twin.get(at) == "NOP":
            at += 16
        return at

    def registers(self) -> None:
        """Note registers that the kernel has not, two that have become one, and uniform ones of the original's."""
        for kind, found in self.maps.items():
            if len(set(found.values())) != len(found):
                self.say(0, f"two {kind} have become one: {found}")
        for old, new in self.maps["R"].items():
            if new >= self.had - 2 or new == 1:
                self.say(0, f"R{old} has become R{new}, of {self.had} registers")
        for new in {*self.uniform, *self.clock} & self.named("UR"):
            self.say(0, f"UR{new} is the original's")
        if set(self.clock) & set(self.uniform):
            self.say(0, "the clock is in a register of another value")
