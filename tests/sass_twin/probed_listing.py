"""Whether a twin reads as its original with a probe's code in it, by what nvdisasm prints of three cubins: the
original, the twin, and the kernel as which ptxas assembled the code. Nothing of the writer's is used.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_TOKEN = re.compile(r"(?<![A-Za-z0-9_])(UR|UP|R|P)(\d+)(?![A-Za-z0-9_])")
_CONSTANT = re.compile(r"c\[0x0\]\[(0x[0-9a-f]+)\]")
_EXIT = re.compile(r"(?:@(!?)P(\d) )?EXIT(?: (!?)P(\d))?$")

Listing = Mapping[int, str]


@dataclass(frozen=True)
class Code:
    """The code that ptxas assembled. entry, exit: texts with their words. shift: bytes by which the probe block of the
    twin is further on. start: where the block begins in constant bank 0."""

    entry: list[tuple[str, int]]
    exit: list[tuple[str, int]]
    shift: int
    start: int

    @staticmethod
    def of(listing: Listing, words: Sequence[int], shift: int, start: int) -> Code:
        """Take the two parts out of a kernel: up to the barrier 14, and from there to 15."""
        rows = [(text.replace(".reuse", ""), words[place // 16]) for place, text in sorted(listing.items())]
        texts = [text for text, _ in rows]
        first, last = (next(index for index, text in enumerate(texts) if re.match(rf"BAR\.SYNC\S* {number}$", text))
                       for number in ("0xe", "0xf"))  # fmt: skip
        assert re.match(r"(LDC|MOV|IMAD\.MOV\.U32) R1, ", texts[0])
        return Code(rows[1:first], rows[first + 1 : last], shift, start)


@dataclass
class Judge:
    """What was found out so far. found: what is wrong."""

    original: Listing
    twin: Listing
    words: Sequence[int]
    had: int
    found: list[str] = field(default_factory=list)
    maps: dict[str, dict[int, int]] = field(default_factory=lambda: {"R": {}, "P": {}})
    uniform: dict[int, str] = field(default_factory=dict)
    kept: dict[int, int] = field(default_factory=dict)

    def say(self, place: int, what: str) -> None:
        self.found.append(f"{place:#x}: {what}")

    def named(self, kind: str) -> set[int]:
        """The numbers of registers that the original's text names."""
        texts = self.original.values()
        return {int(number) for text in texts for found, number in _TOKEN.findall(text) if found == kind}

    def judge(self, code: Code) -> list[str]:
        """Return what is wrong with the twin."""
        end = max(self.original) + 16
        leaving = {place: _EXIT.match(text) for place, text in self.original.items()
                   if _EXIT.match(text) and not text.startswith("@!PT")}  # fmt: skip
        used: set[int] = set()
        for place, text in self.original.items():
            new = self.twin[place].replace(".reuse", "")
            if place not in leaving and place != 0:
                if new != text.replace(".reuse", ""):
                    self.say(place, f"{text} has become {new}")
                continue
            target = _target(new)
            if target is None or target < end:
                self.say(place, f"no branch to a trampoline: {new}")
                continue
            at = target
            if place == 0:
                at = self.body(at, code.entry, code)
                at = self.settled(target, at)
                self.expect(at, text)
                self.expect(at + 16, "BRA `(0x10)")
                at += 32
            else:
                for line in _for_those_that_stay(leaving[place], place, at):
                    self.expect(at, line)
                    at += 16
                begin = at
                at = self.settled(begin, self.body(at, code.exit, code))
                self.expect(at, "EXIT")
                at += 16
            span = set(range(target, at, 16))
            if span & used:
                self.say(place, "two trampolines share instructions")
            used |= span
        for place, text in self.twin.items():
            if place >= end and place not in used and text != "NOP":
                self.say(place, f"no site leads to {text}")
        self.registers()
        return self.found

    def expect(self, place: int, text: str) -> None:
        """Note if another text stands at a place."""
        if self.twin.get(place, "").replace(".reuse", "") != text.replace(".reuse", ""):
            self.say(place, f"{self.twin.get(place)} in place of {text}")

    def body(self, at: int, rows: Sequence[tuple[str, int]], code: Code) -> int:
        """Compare a body with ptxas' code; return the place after it."""
        uniform = dict(self.kept) if rows is code.exit else {}
        apart, needed = 0, 0
        for text, word in rows:
            if text == "NOP":
                needed += word >> 105 & 15
                continue
            while self.twin.get(at) == "NOP":
                apart += self.words[at // 16] >> 105 & 15
                at += 16
            new = self.twin.get(at, "")
            if apart < needed:
                self.say(at, f"{new} is {apart} cycles after the one above, in ptxas' code {needed}")
            self.same(at, text, new, uniform, code)
            if at // 16 >= len(self.words):
                return at
            mine = self.words[at // 16]
            # nvdisasm does not print it of every operand.
            if mine >> 122 & 0xF:
                self.say(at, f"an operand is kept: {new}")
            if (mine >> 110 & 0x3F) != (word >> 110 & 0x3F) or word >> 116 & 0x3F & ~(mine >> 116):
                self.say(at, f"{new} takes or waits for other scoreboards than in ptxas' code")
            apart, needed = mine >> 105 & 15, word >> 105 & 15
            at += 16
        if rows is code.entry:
            self.kept = uniform
        while self.twin.get(at) == "NOP":
            at += 16
        return at

    def settled(self, begin: int, end: int) -> int:
        """Note what is still under way at the end of a body, and waits in the cycle after a scoreboard was taken."""
        taken: set[int] = set()
        for place in range(begin, min(end, 16 * len(self.words) - 16), 16):
            word = self.words[place // 16]
            waits = {number for number in range(6) if word >> 116 + number & 1}
            taken -= waits
            mine = {word >> 110 & 7, word >> 113 & 7} - {7}
            after = self.words[place // 16 + 1] >> 116 & 0x3F
            if (word >> 105 & 15) < 2 and any(after >> number & 1 for number in mine):
                self.say(place, "a scoreboard is waited for in the cycle after it was taken")
            taken |= mine
        if taken:
            self.say(end, f"scoreboards {sorted(taken)} are still taken")
        return end

    def same(self, place: int, text: str, new: str, uniform: dict[int, int], code: Code) -> None:
        """Compare one instruction with ptxas', register by register. uniform: what stands for each uniform one."""
        old_tokens, new_tokens = _TOKEN.findall(text), _TOKEN.findall(new)
        blank = _TOKEN.sub(r"\1#", _CONSTANT.sub(lambda at: _moved(at, code), text))
        if blank != _TOKEN.sub(r"\1#", new) or len(old_tokens) != len(new_tokens):
            self.say(place, f"{new} in place of {text}")
            return
        writes_uniform = re.match(r"(U[A-Z]|S2UR)", text) is not None
        values = [number for kind, number in new_tokens if kind == "UR"]
        # What it reads first: it may write the same register.
        pairs = list(enumerate(zip(old_tokens, new_tokens, strict=True)))
        for index, ((kind, old), (_, mine)) in pairs[1:] + pairs[:1]:
            if kind == "UP":
                self.say(place, f"a uniform predicate: {new}")
            elif kind == "UR":
                if index == 0 and writes_uniform:
                    self.given(place, int(old), int(mine), new, uniform)
                elif uniform.get(int(old)) != int(mine):
                    self.say(place, f"UR{mine} in place of {uniform.get(int(old))} in {new}")
            elif self.maps[kind].setdefault(int(old), int(mine)) != int(mine):
                self.say(place, f"{kind}{mine} in place of {self.maps[kind][int(old)]} in {new}")
        if values and writes_uniform and re.search(r"(?<!U)\bR\d", new):
            self.say(place, f"a uniform register that depends on a lane: {new}")
        if re.match(r"(@\S+ )?(VOTEU|REDUX|R2UR|UFLO|UPOPC)", new) or re.match(r"S2UR .*SR_(CLOCK|LT|LANE|TID)", new):
            self.say(place, f"a value of a group of lanes in a uniform register: {new}")

    def given(self, place: int, old: int, mine: int, new: str, uniform: dict[int, int]) -> None:
        """Note what a uniform register stands for, once an instruction has written it."""
        for more in range(2 if ".64" in new else 1):
            uniform[old + more] = mine + more
            known = self.uniform.setdefault(mine + more, f"{more} of {new}")
            if known != f"{more} of {new}":
                self.say(place, f"UR{mine + more} has two values: {known}, {more} of {new}")

    def registers(self) -> None:
        """Note registers of the original's that the code uses, and two that have become one."""
        base = max(self.had - 2, *self.named("R"), 0)
        for kind, found in self.maps.items():
            if len(set(found.values())) != len(found):
                self.say(0, f"two {kind} have become one: {found}")
        for old, new in self.maps["R"].items():
            if new < base or new % 4 != old % 4:
                self.say(0, f"R{old} has become R{new}, of {self.had} registers")
        groups = {(old // 4, new // 4) for old, new in self.maps["R"].items()}
        if len({old for old, _ in groups}) != len(groups) or len({new for _, new in groups}) != len(groups):
            self.say(0, f"neighbours are apart: {self.maps['R']}")
        for new in self.uniform.keys() & self.named("UR"):
            self.say(0, f"UR{new} is the original's")


def _target(text: str) -> int | None:
    found = re.fullmatch(r"BRA `\((0x[0-9a-f]+)\)", text)
    return int(found[1], 16) if found else None


def _for_those_that_stay(leaving: re.Match[str], place: int, at: int) -> list[str]:
    """The instructions by which lanes that an EXIT does not end go back."""
    inverted, guard, negated, condition = leaving.groups()
    if condition is not None:
        under = f"@{inverted}P{guard} " if guard is not None else ""
        return [f"{under}BRA {negated}P{condition}, `({at + 32:#x})", f"BRA `({place + 16:#x})"]
    if guard is None:
        return []
    return [f"@{'' if inverted else '!'}P{guard} BRA `({place + 16:#x})"]


def _moved(constant: re.Match[str], code: Code) -> str:
    """A constant of the probe block, where it is in the twin."""
    at = int(constant[1], 16)
    return f"c[0x0][{at + code.shift if at >= code.start else at:#x}]"
