"""Rules for code in trampolines: each kind of mutant of a twin with a probe's code is refused by the rule it breaks.

The code is what ``ptxas`` makes of a shipped probe, ``block_sched``, and the kernel ends under a predicate and without.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from neutrino import load_probes
from neutrino.backend.sass_probe_code import ProbeCode
from neutrino.sass.decoder import Code, decode
from neutrino.sass.encoding import Place
from neutrino.sass.fields import (
    ALWAYS,
    GUARD,
    NEGATED,
    NO_BARRIER,
    NO_YIELD,
    OPCODE,
    READ_BARRIER,
    REUSE,
    STALL,
    WAIT,
    WRITE_BARRIER,
    Field,
)
from neutrino.sass.instruction import RegisterFile
from neutrino.sass.twin.checking import check_code, check_cubin
from neutrino.sass.twin.control import branch, nop
from neutrino.sass.twin.cutting import Cutter
from neutrino.sass.twin.growing import Growth, code_of, grow
from neutrino.sass.twin.instruction_rules import Surroundings
from neutrino.sass.twin.probed import probed_twin
from neutrino.sass.twin.trampolines import instruction_words
from neutrino.toolchain.tool_choice import find_assembler
from tests.sass_twin.listing import tool

KERNEL = "reversed"
_SPECIAL, _BANK, _OFFSET = Field(72, 8), Field(54, 5), Field(38, 16)
_CONDITION = Field(87, 4)
_EXIT = 0x94D


@dataclass
class Twin:
    """A twin of which something is changed. old, words: the original's instructions and the twin's. code: the twin as
    it was made, decoded. entry: the first instruction of the entry's trampoline; one, other: of those of two EXITs, the
    first of which is under a guard. ends: the EXITs in them. one_site, other_site: where the EXITs were."""

    old: list[int]
    words: list[int]
    code: Code
    entry: int
    one_site: int
    one: int
    one_end: int
    other_site: int
    other: int

    def find(self, name: str, start: int = -1, nth: int = 0) -> int:
        """The n-th instruction of this name from a place on, by default in the first EXIT's trampoline."""
        start = self.one if start < 0 else start
        found = [at for at in range(start, len(self.words)) if self.code.form(at) and self.code.form(at).name == name]
        return found[nth]

    def put(self, at: int, field: Field, value: int) -> None:
        self.words[at] = field.put(self.words[at], value)

    def place(self, at: int, nth: int, *, writes: bool, file: RegisterFile = RegisterFile.GENERAL) -> Place:
        places = [
            one for one in self.code.form(at).places
            if one.field.file is file and (one.writes if writes else one.reads)
        ]  # fmt: skip
        return places[nth]

    def register(self, at: int, nth: int, number: int, **which: object) -> None:
        """Let the n-th operand of an instruction be another register."""
        self.words[at] = self.place(at, nth, **which).field.put(self.words[at], number)


def _stall(name: str, cycles: int, nth: int = 0, *, above: int = 0) -> Callable[[Twin], None]:
    """An instruction, or one so many above it, has another stall."""
    return lambda twin: twin.put(twin.find(name, nth=nth) - above, STALL, cycles)


def _field(name: str, field: Field, value: int, nth: int = 0) -> Callable[[Twin], None]:
    return lambda twin: twin.put(twin.find(name, nth=nth), field, value)


def _register(name: str, operand: int, number: int, nth: int = 0, **which: object) -> Callable[[Twin], None]:
    return lambda twin: twin.register(twin.find(name, nth=nth), operand, number, **{"writes": False, **which})


def _from_kernel(opcode: int) -> Callable[[Twin], None]:
    """An instruction of the kernel in the place of one of the inserted."""

    def change(twin: Twin) -> None:
        word = next(word for word in twin.old if OPCODE.get(word) == opcode)
        twin.words[twin.find("SEL")] = WAIT.put(REUSE.put(word, 0), 0)

    return change


def _swapped_bound(twin: Twin) -> None:
    at = twin.find("ISETP.LT.U32.AND")
    one, other = (twin.place(at, nth, writes=False).field for nth in (0, 1))
    first, second = one.get(twin.words[at]), other.get(twin.words[at])
    twin.words[at] = other.put(one.put(twin.words[at], second), first)


def _same_trampoline(twin: Twin) -> None:
    word = twin.words[twin.other_site]
    twin.words[twin.other_site] = branch(twin.other_site * 16, twin.one * 16, twin.code.sm, WAIT.get(word))


def _no_trampoline(twin: Twin) -> None:
    twin.words[twin.other_site] = twin.old[twin.other_site]


def _two_values(twin: Twin) -> None:
    """The second value of ULDC in the register of the first one, which nobody reads any more."""
    one, other = (twin.find("ULDC", nth=nth) for nth in (0, 3))
    which = {"writes": True, "file": RegisterFile.UNIFORM}
    twin.register(other, 0, twin.place(one, 0, **which).field.get(twin.words[one]), **which)


UNIFORM = {"file": RegisterFile.UNIFORM, "writes": True}
MUTANTS: dict[str, tuple[Callable[[Twin], None], str]] = {
    "a wait dropped": (_field("IMAD", WAIT, 0), "before its scoreboard says"),
    "a wait dropped for a load": (_field("IADD3", WAIT, 0), "before its scoreboard says"),
    "a wait dropped for a uniform register": (_field("UIMAD", WAIT, 0), "before its scoreboard says"),
    "the wait at the entry's end dropped": (
        lambda twin: twin.put(twin.find("NOP", twin.entry), WAIT, 0), "still to be written where",
    ),
    "a write barrier dropped": (_field("S2R", WRITE_BARRIER, NO_BARRIER, 2), "before its scoreboard says"),
    "a write barrier dropped at the entry": (
        lambda twin: twin.put(twin.find("S2R", twin.entry), WRITE_BARRIER, NO_BARRIER), "still to be written where",
    ),
    "another scoreboard taken": (_field("LDG.E.64", WRITE_BARRIER, 3), "before its scoreboard says"),
    "another scoreboard waited for": (_field("IADD3", WAIT, 0b1000), "before its scoreboard says"),
    "a scoreboard taken at the entry's end": (
        lambda twin: twin.put(twin.find("NOP", twin.entry), READ_BARRIER, 3), "was taken and not waited for",
    ),
    "a read barrier dropped": (_field("LDG.E.64", READ_BARRIER, NO_BARRIER), "before it has been read"),
    "stall 1 before a wait": (_stall("LDG.E.64", 1, above=1), "in the cycle after it was taken"),
    "a predicate's latency one short": (_stall("ISETP.LT.U32.AND", 3), "3 cycles after ISETP, not 4"),
    "a guard's latency one short": (_stall("ULDC.64", 11, 2), "12 cycles after ISETP, not 13"),
    "a carry's latency one short": (_stall("IADD3", 3), "3 cycles after IADD3, not 4"),
    "an address' latency one short": (_stall("IADD3.X", 4), "4 cycles after IADD3, not 5"),
    "a product's latency one short": (_stall("IMAD.HI.U32", 1), "cycles after (IMAD|SEL), not"),
    "a vote's latency one short": (_stall("ULDC.64", 1), "3 cycles after VOTE, not 4"),
    "a uniform product's latency one short": (_stall("ULDC", 1, 3), "cycles after (UIMAD|ULDC), not"),
    "the stack's address written": (_register("SEL", 0, 1, writes=True), "R1 is the kernel's"),
    "a kernel's register read": (_register("SEL", 0, 2), "R2 is read, which no inserted"),
    "a kernel's register written at once": (
        lambda twin: twin.put(twin.find("CS2R.32"), Field(16, 8), 0), "R0 is (used|written)",
    ),
    "a register read that nobody wrote": (_register("SEL", 0, 99), "R99 is read, which no inserted"),
    "a predicate read that nobody wrote": (
        _register("SEL", 0, 6, file=RegisterFile.PREDICATE), "P6 is read, which no inserted",
    ),
    "a kernel's uniform register written": (_register("ULDC", 0, 4, **UNIFORM), "UR4 is written, which the kernel"),
    "two values in one uniform register": (_two_values, "gets two values"),
    "a lane's number in a uniform register": (_field("S2UR", _SPECIAL, 0x21), "special register 0x21, which lanes"),
    "a clock in a uniform register": (_field("S2UR", _SPECIAL, 0x50, 1), "special register 0x50, which lanes"),
    "a guard of the wrong file": (_field("ULDC", GUARD, 0), "guarded by a uniform predicate"),
    "a kernel's predicate written at once": (
        _register("ISETP.NE.U32.AND", 0, 0, writes=True, file=RegisterFile.PREDICATE),
        "P0 is the kernel's, and written",
    ),
    "a store without a guard": (_field("STG.E.128", GUARD, ALWAYS), "made by S2UR, under no bound"),
    "a store under another predicate": (_field("STG.E.128", GUARD, 2), "made by S2UR, under no bound"),
    "a store under the opposite": (_field("STG.E.128", NEGATED, 1), "made by S2UR, under no bound"),
    "a bound and its number exchanged": (_swapped_bound, "made by S2UR, under no bound"),
    "a bound that was not loaded": (
        lambda twin: twin.register(
            at := twin.find("ISETP.LT.U32.AND"), 1,
            twin.place(at, 0, writes=False).field.get(twin.words[at]), writes=False,
        ),
        "made by S2UR, under no bound",
    ),
    "a branch back one too far": (
        lambda twin: twin.words.__setitem__(at := twin.find("BRA", twin.entry), twin.words[at] + (4 << 16)),
        "no branch back to 0x10",
    ),
    "a branch back to the site": (
        lambda twin: twin.words.__setitem__(at := twin.find("BRA", twin.entry), twin.words[at] - (4 << 16)),
        "no branch back to 0x10",
    ),
    "lanes that stay go one too far": (
        lambda twin: twin.words.__setitem__(twin.one, twin.words[twin.one] + (4 << 16)), "lanes that stay",
    ),
    "lanes that stay run the code": (lambda twin: twin.words.__setitem__(twin.one, nop()), "lanes that stay"),
    "lanes that leave go back": (
        lambda twin: twin.put(twin.one, NEGATED, NEGATED.get(twin.words[twin.one]) ^ 1), "lanes that stay",
    ),
    "lanes stay by another predicate": (
        lambda twin: twin.put(twin.one, GUARD, GUARD.get(twin.words[twin.one]) ^ 1), "lanes that stay",
    ),
    "a second predicate of those that stay": (lambda twin: twin.put(twin.one, _CONDITION, 1), "lanes that stay"),
    "little stall at those that stay": (lambda twin: twin.put(twin.one, STALL, 2), "other cycles than"),
    "an EXIT of some lanes": (lambda twin: twin.put(twin.one_end, GUARD, 0), "the EXIT is another"),
    "an EXIT of no lane": (lambda twin: twin.put(twin.one_end, NEGATED, 1), "the EXIT is another"),
    "an EXIT of some lanes by its second predicate": (
        lambda twin: twin.put(twin.one_end, _CONDITION, 0), "the EXIT is another",
    ),
    "a barrier inserted": (_from_kernel(0xB1D), "BAR may not be inserted"),
    "shared memory read": (_from_kernel(0x984), "LDS may not be inserted"),
    "a branch inserted": (
        lambda twin: twin.words.__setitem__(twin.find("SEL"), branch(twin.find("SEL") * 16, 0x20, twin.code.sm)),
        "BRA may not be inserted",
    ),
    "an EXIT inserted": (_from_kernel(_EXIT), "the EXIT is another|no site leads to"),
    "an operand kept": (_field("SEL", REUSE, 1), "an operand is kept in inserted code"),
    "a stall that does not exist": (
        lambda twin: (twin.put(twin.find("SEL"), STALL, 0), twin.put(twin.find("SEL"), NO_YIELD, 1)), "does not exist",
    ),
    "a parameter of the program read": (_field("LDC.64", _OFFSET, 0x210), "neither the driver's nor"),
    "a constant beyond the probe block": (_field("LDC.64", _OFFSET, 0x210 + 64), "neither the driver's nor"),
    "a constant of the module": (_field("LDC.64", _BANK, 3), "neither the driver's nor"),
    "an unknown instruction": (_field("SEL", OPCODE, 0xFFF), "not in the decoder's table"),
    "the first instruction lost": (
        lambda twin: twin.words.__setitem__(twin.find("BRA", twin.entry) - 1, nop()), "is another than the site's",
    ),
    "two EXITs with one trampoline": (_same_trampoline, "lanes that stay|share an instruction"),
    "an EXIT without a trampoline": (_no_trampoline, "no trampoline, although others have"),
}  # fmt: skip
"""What is wrong → what does it to a twin, and the rule that must be named (a regular expression)."""


@pytest.fixture(scope="module")
def sched() -> ProbeCode:
    tool("ptxas")
    return ProbeCode(load_probes(["block_sched"]), "sm_90", find_assembler())


@pytest.fixture(scope="module")
def cut(whole) -> bytes:
    return Cutter(whole, "whole").cut(KERNEL)


@pytest.fixture(scope="module")
def made(cut, sched) -> tuple[bytes, bytes, dict[int, int], int]:
    """Both cubins' code, where the EXITs' trampolines are, and the entry's."""
    twin = probed_twin(cut, KERNEL, "cut", sched.at)
    return code_of(cut, KERNEL, "cut"), code_of(twin.data, KERNEL, "twin"), twin.exits, twin.entry


def _twin(made) -> Twin:
    return twin_of(*made, 90)


def twin_of(original: bytes, changed: bytes, exits: dict[int, int], entry: int, sm: int) -> Twin:
    """A twin to change. original, changed: the code of both. exits, entry: where the trampolines are, in bytes."""
    old = instruction_words(original)
    one, other = sorted(exits, key=lambda site: GUARD.get(old[site // 16]) == ALWAYS)
    words = instruction_words(changed)
    end = next(at for at in range(exits[one] // 16, len(words)) if OPCODE.get(words[at]) == _EXIT)
    return Twin(
        old, words, decode(changed, sm), entry // 16, one // 16, exits[one] // 16, end, other // 16, exits[other] // 16
    )


def _bytes(words: list[int]) -> bytes:
    return b"".join(word.to_bytes(16, "little") for word in words)


_AROUND = Surroundings(10, (0x210 + 24, 0x210 + 64), 0x210)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants(name, made):
    change, rule = MUTANTS[name]
    twin = _twin(made)
    change(twin)
    assert _bytes(twin.words) != made[1]
    found = check_code(made[0], _bytes(twin.words), _AROUND)
    assert any(re.search(rule, finding.rule) for finding in found), found
    assert check_code(made[0], made[1], _AROUND) == []


def test_wrong_files(cut, sched):
    twin = probed_twin(cut, KERNEL, "cut", sched.at)
    code = code_of(twin.data, KERNEL, "twin")

    def rules(data: bytes) -> str:
        return "; ".join(finding.rule for finding in check_cubin(cut, data, KERNEL, "twin"))

    assert rules(twin.data) == ""
    sites = _ends(twin.exits, code)
    whole = Growth(code, twin.registers, 40, 8, sites)
    assert grow(cut, whole, "cut").data == twin.data
    short = Growth(code, twin.registers - 1, 40, 8, sites)
    assert f"{twin.registers - 1} registers, of which inserted code names R{twin.registers - 3}" in rules(
        grow(cut, short, "cut").data
    )
    assert "attribute 0x1c is not what" in rules(grow(cut, Growth(code, twin.registers, 40, 8), "cut").data)
    assert "no parameter for it" in rules(grow(cut, Growth(code, twin.registers, moved=sites), "cut").data)
    # Of the block's 40 bytes the last ones are read.
    assert "neither the driver's nor the probe block's" in rules(
        grow(cut, Growth(code, twin.registers, 16, 8, sites), "cut").data
    )
    places = struct.pack("<2I", *sorted(sites.values()))
    assert twin.data.count(places) == 1
    assert "attribute 0x1c is not what" in rules(twin.data.replace(places, struct.pack("<2I", *sorted(sites))))


def _ends(exits: dict[int, int], code: bytes) -> dict[int, int]:
    """The place of an EXIT → that of the EXIT in its trampoline."""
    words = instruction_words(code)
    return {
        site: 16 * next(at for at in range(place // 16, len(words)) if OPCODE.get(words[at]) == _EXIT)
        for site, place in exits.items()
    }


@pytest.mark.parametrize("kernel", ["divided", "asserted", "switched"])
def test_twins_with_code(kernel, whole, sched):
    cut = Cutter(whole, "whole").cut(kernel)
    assert check_cubin(cut, probed_twin(cut, kernel, "cut", sched.at).data, kernel, "twin") == []


def test_callers_of_the_driver(whole, sched):
    cut = Cutter(whole, "whole").cut("asserted")
    twin = probed_twin(cut, "asserted", "cut", sched.at).data
    assert cut.count(b"\0__assertfail\0") == twin.count(b"\0__assertfail\0") == 1
    one, other = (data.replace(b"\0__assertfail\0", b"\0__assertgone\0") for data in (cut, twin))
    assert [finding.rule for finding in check_cubin(one, other, "asserted", "twin")] == [
        "the kernel calls __assertgone, whose registers are not known"
    ]
