"""What a warp may not do yet: registers that are not there, or still needed, when an instruction is issued.

This follows one run, lane by lane, and shares no code with the checker's rules (``neutrino/sass/twin/hazards.py``),
which follow all ways through a kernel: each is there to find what the other misses. Of the facts of the hardware both
know the same. A result of *fixed* latency is there after so many cycles, by the table that was learned from ptxas. One
of *variable* latency is there when a scoreboard that speaks for it has been waited for; so are the operands of such an
instruction until it has read them. A scoreboard can be waited for from the second cycle after it was taken.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

VARIABLE = frozenset({
    "LDG", "STG", "LD", "ST", "LDS", "STS", "LDL", "STL", "LDC", "LDSM", "STSM", "LDGSTS", "LDGDEPBAR", "ATOM", "ATOMG",
    "ATOMS", "RED", "REDG", "SHFL", "MATCH", "REDUX", "S2R", "S2UR", "MUFU", "I2F", "F2I", "F2F", "FRND", "FLO", "POPC",
    "BREV", "FCHK", "B2R", "CCTL", "QSPC",
})  # fmt: skip
"""Opcodes whose results are announced by scoreboards alone."""
_IN_ORDER = {
    **dict.fromkeys(("LDS", "STS", "LDSM", "STSM", "SHFL", "ATOMS"), "shared memory"),
    **dict.fromkeys(("MUFU", "F2F", "F2I", "I2F", "FRND", "POPC", "FLO", "BREV", "FCHK"), "functions"),
    "S2UR": "special registers",
    "REDUX": "sums over lanes",
}
"""Units that answer in the order in which they are asked."""
_SETTLED = 40
"""Cycles after which every result of a fixed latency is there."""
_SOONER = {("IMAD", "WARPSYNC"): 4}
"""What ptxas was seen to leave here, less than in all that the table was learned from: (producer, use) → cycles."""
_SLOWER = {"WIDE", "HI", "MMA", "SP"}


class HazardError(Exception):
    """A register is used too early. It names both instructions."""


@functools.cache
def _table() -> tuple[dict, dict]:
    folder = importlib.resources.files("neutrino.sass").joinpath("tables")
    found = json.loads(folder.joinpath("latencies_90.json").read_text())
    return found["cycles"], found["seldom"]


def kind_of(name: str, parts: Iterable[str]) -> str:
    """What the table knows an instruction by."""
    kept = [part for part in parts if part in _SLOWER]
    if name in {"HMMA", "IMMA", "DMMA", "QMMA", "BMMA"}:
        kept = [part for part in parts if re.fullmatch(r"\d{3,}|\d+x\d+x\d+", part) or part in {"SP", "F16", "F32"}]
    return ".".join([name, *kept])


@functools.cache
def cycles(producer: str, file: str, use: str, strict: bool) -> int | None:
    """How many cycles after a producer a register may be used; None if nobody knows. strict: in code that ptxas did not
    schedule, where what was seldom seen counts too; else, what it was never seen to undercut."""
    often, seldom = (one.get(producer, {}).get(file, {}) for one in _table())
    if not often:
        return None
    if use == f"over {producer}":
        return 1
    if strict:
        return often.get(use, seldom.get(use, often["*"]))
    if (producer, use) in _SOONER:
        return _SOONER[producer, use]
    if use in often:
        return often[use]
    # What was rarely seen may have taken longer by chance; no read of a lane's register is sooner than the soonest.
    if file not in ("R", "P") or use.startswith("over") or use == "guard":
        return 0
    reads = [
        least for other, least in [*often.items(), *seldom.items()]
        if other not in ("*", "guard") and not other.startswith("over")
    ]  # fmt: skip
    return min(reads, default=0)


@dataclass
class Issued:
    """An instruction under way. lanes: for which it runs, a mask; active: those that came to it. done: whether a
    scoreboard has said that its results are there; read: that it has read its operands."""

    op: Op
    time: int
    lanes: int
    active: int
    done: bool = False
    read: bool = False

    def of(self, register: tuple[str, int]) -> int:
        """The lanes whose register it uses."""
        return self.lanes if register[0] in ("R", "P") else self.active


@dataclass
class Use:
    """Registers of an instruction: (file, number). third: it is the third operand, for which the table differs."""

    registers: tuple[tuple[str, int], ...]
    third: bool = False


@dataclass
class Op:
    """An instruction as the rules see it. place: in bytes. strict: not scheduled by ptxas."""

    place: int
    text: str
    name: str
    kind: str
    guard: tuple[str, int] | None
    reads: tuple[Use, ...]
    writes: tuple[tuple[str, int], ...]
    stall: int
    wait: int
    write_barrier: int
    read_barrier: int
    strict: bool
    fresh: int = 256
    """Of strict code: general registers from this on are its own, and must have been written before they are read."""
    left: int = 0
    """Of DEPBAR: how many of a scoreboard's holders may be under way."""
    early: tuple[tuple[str, int], ...] = ()
    """What is written when the operands have been read, as the predicate of a reduction."""
    is_variable: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_variable = self.name in VARIABLE or self.write_barrier != 7

    def __str__(self) -> str:
        return f"{self.text} at {self.place:#x}"


class Timing:
    """The scoreboards and registers of one warp. clock: cycles."""

    def __init__(self, *, judged: bool = True) -> None:
        self.clock = 0
        self.judged = judged
        self._flying: list[Issued] = []
        self._writing: dict[tuple[str, int], list[Issued]] = {}
        self._reading: dict[tuple[str, int], list[Issued]] = {}
        self._recent: dict[tuple[str, int], list[Issued]] = {}
        self._written: dict[tuple[str, int], int] = {}
        self._taken: list[tuple[int, Op | None, int]] = [(-9, None, 0)] * 6

    def issue(self, op: Op, lanes: int, active: int) -> None:
        """An instruction is issued. lanes: for which its guard holds; active: those that come here together."""
        if self.judged:
            if op.wait or op.name == "DEPBAR":
                self._wait(op, active)
            self._judge(op, lanes, active)
            # One that no lane executes takes its scoreboards, too, as ptxas knows.
            if lanes or op.is_variable or op.read_barrier != 7:
                self._note(op, lanes, active)
        self.clock += max(op.stall, 1)

    def _fail(self, op: Op, what: str) -> None:
        raise HazardError(f"{op}: {what}")

    def _wait(self, op: Op, active: int) -> None:
        for number in range(6):
            if op.wait >> number & 1:
                time, taker, lanes = self._taken[number]
                # What lanes that come here at another time wait for is not theirs.
                if self.clock - time < 2 and lanes & active:
                    self._fail(op, f"waits for scoreboard {number} in the cycle after {taker} took it")
                self._complete(number, 0)
        if op.name == "DEPBAR":
            self._complete(int(re.search(r"SB(\d)", op.text)[1]), op.left)

    def _complete(self, number: int, left: int) -> None:
        """All instructions that hold a scoreboard are through, but for the last so many."""
        holding = [one for one in self._flying if number in (one.op.write_barrier, one.op.read_barrier)]
        for one in holding[: len(holding) - left] if left else holding:
            if one.op.write_barrier == number:
                self._done(one)
            # Its results are there: it has read its operands before.
            self._has_read(one)
        self._flying = [one for one in self._flying if not (one.done and one.read)]

    def _done(self, last: Issued) -> None:
        unit = _IN_ORDER.get(last.op.name)
        for one in self._flying:
            if one is last or (unit is not None and _IN_ORDER.get(one.op.name) == unit):
                one.done = True
                for register in one.op.writes:
                    _drop(self._writing, register, one)
            if one is last:
                break

    def _has_read(self, last: Issued) -> None:
        """They read their operands in the order in which they were issued."""
        for one in self._flying:
            if not one.read:
                one.read = True
                for use in one.op.reads:
                    for register in use.registers:
                        _drop(self._reading, register, one)
                for register in one.op.early:
                    _drop(self._writing, register, one)
            if one is last:
                break

    def _judge(self, op: Op, lanes: int, active: int) -> None:
        if op.guard is not None:
            self._judge_read(op, op.guard, active, "guard")
        if not lanes:
            return
        for use in op.reads:
            of = f"{op.kind} third" if use.third else op.kind
            for register in use.registers:
                self._judge_read(op, register, lanes if register[0] in ("R", "P") else active, of)
        unit = _IN_ORDER.get(op.name)
        for register in op.writes:
            concerned = lanes if register[0] in ("R", "P") else active
            for one in self._writing.get(register, ()):
                if one.of(register) & concerned and (unit is None or _IN_ORDER.get(one.op.name) != unit):
                    self._fail(op, f"writes {_name(register)}, of which {one.op} has a result under way")
            if not op.is_variable:
                for one in self._reading.get(register, ()):
                    if one.of(register) & concerned:
                        self._fail(op, f"writes {_name(register)}, which {one.op} may not have read yet")
            self._judge_age(op, register, concerned, f"over {op.kind}")

    def _judge_read(self, op: Op, register: tuple[str, int], lanes: int, use: str) -> None:
        for one in self._writing.get(register, ()):
            if one.of(register) & lanes:
                self._fail(op, f"reads {_name(register)} before a scoreboard says that {one.op} has written it")
        # What the kernel has in its own registers, inserted code may look at, whether anything is there or not.
        if op.strict and register[0] == "R" and register[1] >= op.fresh and lanes & ~self._written.get(register, 0):
            self._fail(op, f"reads {_name(register)}, which nothing has written")
        self._judge_age(op, register, lanes, use)

    def _judge_age(self, op: Op, register: tuple[str, int], lanes: int, use: str) -> None:
        recent = self._recent.get(register)
        if not recent:
            return
        for one in recent:
            age = self.clock - one.time
            if age >= _SETTLED or not one.of(register) & lanes:
                continue
            needed = cycles(one.op.kind, register[0], use, op.strict or one.op.strict)
            if needed is None and (op.strict or one.op.strict):
                self._fail(op, f"uses {_name(register)} {age} cycles after {one.op}, whose latency is not known")
            if needed is not None and age < needed:
                self._fail(op, f"uses {_name(register)} {age} cycles after {one.op}, not {needed}")

    def _note(self, op: Op, lanes: int, active: int) -> None:
        for number in (op.write_barrier, op.read_barrier):
            if number != 7:
                self._taken[number] = self.clock, op, active
        # Uniform registers count as those of all lanes that are here together: others may come between.
        issued = Issued(op, self.clock, lanes, active if lanes else 0)
        for register in op.writes if lanes else ():
            mine = issued.of(register)
            self._written[register] = self._written.get(register, 0) | mine
            recent = [
                one for one in self._recent.get(register, ())
                if self.clock - one.time < _SETTLED and one.of(register) & ~mine
            ]  # fmt: skip
            if not op.is_variable:
                recent.append(issued)
            self._recent[register] = recent
        if op.is_variable or op.read_barrier != 7:
            self._flying.append(issued)
            if op.write_barrier == 7 and not op.writes:
                issued.done = True
            for register in op.writes if op.is_variable else ():
                self._writing.setdefault(register, []).append(issued)
            for use in op.reads:
                for register in use.registers:
                    # What it overwrites itself, it has read before.
                    if register[0] == "R" and register not in op.writes:
                        self._reading.setdefault(register, []).append(issued)


def _drop(table: dict[tuple[str, int], list[Issued]], register: tuple[str, int], one: Issued) -> None:
    if register in table:
        table[register] = [other for other in table[register] if other is not one]


def _name(register: tuple[str, int]) -> str:
    return f"{register[0]}{register[1]}"
