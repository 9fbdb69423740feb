"""Rules for code at accesses: each kind of mutant of a twin that counts bytes is refused by the rule that it breaks.

The code is what a shipped probe, ``gmem_bytes``, becomes in a kernel with accesses of many widths, under predicates and
without. Widths are judged by PTX, which says them, and additions by nvdisasm.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from neutrino import load_probes
from neutrino.api import load_probes as load_one_liners
from neutrino.backend.sass_probe_code import ProbeCode
from neutrino.sass.cubin import read_cubin
from neutrino.sass.decoder import decode
from neutrino.sass.fields import (
    ALWAYS,
    GUARD,
    NEGATED,
    NO_YIELD,
    OPCODE,
    READ_BARRIER,
    REUSE,
    STALL,
    WAIT,
    WRITE_BARRIER,
    Field,
)
from neutrino.sass.twin.accesses import (
    Counted,
    Sums,
    access_bytes,
    addition,
    check_counted,
    check_site,
    check_sums,
)
from neutrino.sass.twin.checking import check_code, check_cubin
from neutrino.sass.twin.control import branch, nop
from neutrino.sass.twin.cutting import Cutter
from neutrino.sass.twin.hazards import Columns
from neutrino.sass.twin.instruction_rules import Surroundings
from neutrino.sass.twin.probed import ProbedTwin
from neutrino.sass.twin.reference import Reference
from neutrino.sass.twin.trampolines import identity_twin, instruction_words
from neutrino.toolchain.tool_choice import find_assembler
from tests.sass_twin.listing import assemble, tool

_PTX = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry counted(.param .u64 at, .param .u32 count)
{
	.reg .pred %p<3>;
	.reg .b16 %h<2>;
	.reg .b32 %r<12>;
	.reg .b64 %rd<8>;
	.shared .align 16 .b8 kept[64];
	ld.param.u64 %rd1, [at];
	ld.param.u32 %r1, [count];
	mov.u32 %r2, %tid.x;
	setp.ge.u32 %p1, %r2, %r1;
	@%p1 bra LEAVE;
	mul.wide.u32 %rd2, %r2, 64;
	add.u64 %rd3, %rd1, %rd2;
	ld.global.u8 %h1, [%rd3];
	setp.eq.u16 %p2, %h1, 7;
	ld.global.v4.u32 {%r3, %r4, %r5, %r6}, [%rd3+16];
	mov.u32 %r7, kept;
	cp.async.ca.shared.global [%r7], [%rd3+32], 8;
	cp.async.wait_all;
	bar.sync 0;
	ld.shared.u32 %r8, [kept+4];
	@%p2 ld.global.u64 %rd4, [%rd3+8];
	add.u32 %r9, %r3, %r8;
	add.u32 %r9, %r9, %r6;
	@%p2 st.global.u64 [%rd3+40], %rd4;
	st.global.u32 [%rd3+48], %r9;
	red.global.add.u32 [%rd1], %r9;
	atom.global.add.u64 %rd5, [%rd1+8], %rd2;
	st.global.u64 [%rd3+56], %rd5;
LEAVE:
	ret;
}
"""
KERNEL = "counted"
_COUNTING = "ld.global | wmma.load.global { @n = count(); @b = sum(BYTES) }"
_CONSTANT, _PRODUCT_ADDED, _FIRST = Field(32, 32), Field(64, 8), Field(16, 8)
_ADDRESS, _DATA, _OFFSET, _TABLE = Field(24, 8), Field(32, 8), Field(38, 16), Field(72, 8)
_ADD, _MOVE, _REDUCE, _EXIT = 0x825, 0x802, 0x98E, 0x94D


@dataclass
class Twin:
    """A twin of which something is changed. old, words: the original's instructions and the twin's."""

    old: list[int]
    words: list[int]

    def find(self, opcode: int, nth: int = 0, guarded: bool | None = None) -> int:
        """The n-th instruction of an opcode in trampolines. guarded: with or without a guard alone."""
        found = [
            at for at in range(len(self.old), len(self.words))
            if OPCODE.get(self.words[at]) == opcode and guarded in (None, GUARD.get(self.words[at]) != ALWAYS)
        ]  # fmt: skip
        return found[nth]

    def put(self, at: int, field: Field, value: int) -> None:
        self.words[at] = field.put(self.words[at], value)

    def after(self, at: int, opcode: int) -> int:
        """The next instruction of an opcode."""
        return next(one for one in range(at, len(self.words)) if OPCODE.get(self.words[one]) == opcode)

    def site(self, nth: int = 0) -> int:
        """The place of an access, the n-th, that has a branch instead."""
        return [
            at for at, (old, new) in enumerate(zip(self.old, self.words, strict=False))
            if old != new and OPCODE.get(new) == 0x947 and OPCODE.get(old) in (0x981, 0x986)
        ][nth]  # fmt: skip


Change = Callable[[Twin], None]


def _at(opcode: int, field: Field, value: int, nth: int = 0, guarded: bool | None = None) -> Change:
    """A field of an instruction in a trampoline has another value."""
    return lambda twin: twin.put(twin.find(opcode, nth, guarded), field, value)


def _as(opcode: int, word: Callable[[Twin, int], int], nth: int = 0) -> Change:
    """Another instruction in the place of one in a trampoline."""

    def change(twin: Twin) -> None:
        at = twin.find(opcode, nth)
        twin.words[at] = word(twin, at)

    return change


def _back(twin: Twin, nth: int = 0) -> None:
    """No branch at a site: the access is where it was."""
    site = twin.site(nth)
    twin.words[site] = twin.old[site]


def _around(twin: Twin) -> None:
    """A site's branch goes to the displaced instruction, past the code."""
    site = twin.site()
    at = next(one for one in range(len(twin.old), len(twin.words)) if twin.words[one] == REUSE.put(twin.old[site], 0))
    twin.words[site] = branch(site * 16, at * 16, 90, WAIT.get(twin.words[site]))


def _swap(twin: Twin) -> None:
    at = twin.find(_ADD)
    twin.words[at], twin.words[at + 1] = twin.words[at + 1], twin.words[at]


def _other_sum(twin: Twin) -> None:
    """The addition of one load goes to the sum of stores."""
    sums = sorted({_FIRST.get(word) for word in twin.words[len(twin.old) :] if OPCODE.get(word) == _ADD})
    at = twin.find(_ADD)
    other = next(one for one in sums if one != _FIRST.get(twin.words[at]))
    twin.put(at, _FIRST, other)
    twin.put(at, _PRODUCT_ADDED, other)


def _sum_added(twin: Twin) -> None:
    """A sum in the place of the register that holds 1."""
    at = twin.find(_ADD)
    sums = {_FIRST.get(word) for word in twin.words[len(twin.old) :] if OPCODE.get(word) == _ADD}
    twin.put(at, _ADDRESS, next(iter(sums - {_FIRST.get(twin.words[at])})))


def _register_added(number: int) -> Change:
    def change(twin: Twin) -> None:
        at = twin.find(_ADD)
        twin.put(at, _FIRST, number)
        twin.put(at, _PRODUCT_ADDED, number)

    return change


def _other_register(twin: Twin) -> None:
    """At one EXIT, the move of one sum is from the register of another."""
    sums = {_FIRST.get(word) for word in twin.words[len(twin.old) :] if OPCODE.get(word) == _ADD}
    moves = [at for at in range(len(twin.old), len(twin.words))
             if OPCODE.get(twin.words[at]) == 0x202 and _DATA.get(twin.words[at]) in sums]  # fmt: skip
    other = next(one for one in sums if one != _DATA.get(twin.words[moves[0]]))
    twin.put(moves[0], _DATA, other)


def _never_missing(twin: Twin) -> None:
    """The test whether all lanes end together asks for another mask."""
    at = next(at for at in range(len(twin.old), len(twin.words))
              if OPCODE.get(twin.words[at]) == 0x80C and _CONSTANT.get(twin.words[at]) == 0xFFFFFFFF)  # fmt: skip
    twin.put(at, _CONSTANT, 0xFFFFFFFE)


def _same_data(twin: Twin) -> None:
    """Two reductions of one sum."""
    twin.put(twin.find(_REDUCE, 1), _DATA, _DATA.get(twin.words[twin.find(_REDUCE, 0)]))


def _written_at_the_end(twin: Twin) -> None:
    at = twin.find(_REDUCE)
    word = twin.words[twin.find(_MOVE)]
    twin.words[at - 1] = _FIRST.put(word, _DATA.get(twin.words[at]))


def _without_exit(twin: Twin) -> None:
    site = next(at for at, word in enumerate(twin.old) if OPCODE.get(word) == _EXIT and twin.words[at] != word)
    twin.words[site] = twin.old[site]


def _wait_dropped(twin: Twin) -> None:
    """A site's branch does not wait for what its access waited for."""
    site = next(
        at for at, (old, new) in enumerate(zip(twin.old, twin.words, strict=False))
        if old != new and WAIT.get(old) and OPCODE.get(old) in (0x981, 0x986)
    )  # fmt: skip
    twin.put(site, WAIT, 0)


MUTANTS: dict[str, tuple[Change, str]] = {
    "another constant": (_at(_ADD, _CONSTANT, 3), "another number than the access has bytes"),
    "nothing added": (_at(_ADD, _CONSTANT, 0, 1), "another number than the access has bytes"),
    "the bytes of another width": (_at(_ADD, _CONSTANT, 4, guarded=True), "another number than the access has bytes"),
    "a guard dropped": (_at(_ADD, GUARD, ALWAYS, guarded=True), "of other lanes than the access"),
    "the opposite guard": (
        lambda twin: twin.put(
            at := twin.find(_ADD, guarded=True), NEGATED, NEGATED.get(twin.words[at]) ^ 1
        ), "of other lanes than the access",
    ),
    "another guard": (
        lambda twin: twin.put(at := twin.find(_ADD, guarded=True), GUARD, GUARD.get(twin.words[at]) ^ 1),
        "of other lanes than the access",
    ),
    "a guard where the access has none": (_at(_ADD, GUARD, 0, guarded=False), "of other lanes than the access"),
    "never added": (_at(_ADD, NEGATED, 1, guarded=False), "of other lanes than the access"),
    "a kernel's register added to": (_register_added(2), "is the kernel's, whose registers end"),
    "a register that nobody set": (_register_added(200), "R200 is part of a sum, and not 0"),
    "the sum of another kind": (_other_sum, "adds to other sums than others of its kind|part of two sums"),
    "another register kept": (_at(_ADD, _PRODUCT_ADDED, 255), "not an addition of a constant"),
    "a part of a pair": (
        lambda twin: _register_added(_FIRST.get(twin.words[twin.find(_ADD)]) + 1)(twin),
        "not an addition of a constant",
    ),
    "a sum multiplied": (_sum_added, "and added instead of 1|not an addition"),
    "a signed product": (_at(_ADD, Field(73, 1), 1), "not an addition of a constant"),
    "the sum negated": (_at(_ADD, Field(75, 1), 1), "not an addition of a constant"),
    "nothing at an access": (_as(_ADD, lambda *_: nop()), "not an addition of a constant"),
    "a constant moved": (
        _as(_ADD, lambda twin, at: _FIRST.put(twin.words[twin.find(_MOVE)], _FIRST.get(twin.words[at]))),
        "not an addition of a constant",
    ),
    "code after the access": (_swap, "the displaced instruction is another|no branch back to"),
    "an access without a site": (_back, "has no code, although accesses are counted"),
    "a store without a site": (lambda twin: _back(twin, -1), "has no code, although accesses are counted"),
    "a branch past the code": (_around, "has no code, although accesses are counted"),
    "another access": (
        lambda twin: twin.put(at := twin.find(_ADD) + 1, Field(24, 8), Field(24, 8).get(twin.words[at]) ^ 1),
        "the displaced instruction is another",
    ),
    "a wait dropped at a site": (_wait_dropped, "does not wait for what"),
    "a branch back one too far": (
        lambda twin: twin.words.__setitem__(
            at := twin.after(twin.find(_ADD), 0x947), twin.words[at] + (4 << 16)
        ), "no branch back to",
    ),
    "a scoreboard taken": (_at(_ADD, WRITE_BARRIER, 3), "takes a scoreboard"),
    "a scoreboard taken for operands": (_at(_ADD, READ_BARRIER, 5), "takes a scoreboard"),
    "an operand kept": (_at(_ADD, REUSE, 1), "an operand is kept"),
    "a stall that does not exist": (
        lambda twin: (twin.put(at := twin.find(_ADD), STALL, 0), twin.put(at, NO_YIELD, 1)), "does not exist",
    ),
    "a sum that begins at 4": (_at(_MOVE, _CONSTANT, 4, 1), "is part of a sum, and not 0"),
    "2 instead of 1": (_at(_MOVE, _CONSTANT, 2), "is added instead of 1, and not 1"),
    "a sum not set": (_as(_MOVE, lambda *_: nop(), 1), "is part of a sum, and not 0|which no inserted code"),
    "a sum set by some lanes": (_at(_MOVE, GUARD, 0, 1), "is part of a sum, and not 0"),
    "a sum not stored": (_as(_REDUCE, lambda *_: nop()), "is missing that ptxas assembled|another instruction than"),
    "a sum not stored at another EXIT": (
        _as(_REDUCE, lambda *_: nop(), 7), "is missing that ptxas assembled|another instruction than",
    ),
    "a sum stored twice": (_same_data, "another instruction than ptxas assembled"),
    "a sum stored by other lanes": (_at(_REDUCE, GUARD, 6), "another instruction than ptxas assembled|two registers"),
    "half a sum stored": (_at(_REDUCE, Field(73, 3), 0), "another instruction than ptxas assembled"),
    "a sum written where a thread ends": (_written_at_the_end, "another instruction than|did not assemble"),
    "a sum read from another register": (_other_register, "has not what is kept there|threads end with sums in"),
    "lanes that are missing added up": (_never_missing, "another instruction than ptxas assembled"),
    "a distance between lanes": (_at(0xF89, Field(56, 1), 1), "another instruction than ptxas assembled"),
    "an EXIT without code": (_without_exit, "an EXIT has no trampoline"),
    "a sum as an address": (
        lambda twin: twin.put(at := twin.find(_REDUCE), _ADDRESS, _DATA.get(twin.words[at])),
        "another instruction than ptxas assembled",
    ),
    "an address before the region": (_at(_REDUCE, Field(63, 1), 1), "has a negative offset"),
    "an index that is not masked": (_at(0x292, _TABLE, 0xFC), "under no bound from the probe block"),
    "an index taken away": (_at(0xC10, Field(72, 1), 1), "takes something away"),
    "an address from the driver": (_at(0xB82, _OFFSET, 0x10, 1), "made of the driver's constants|neither the driver's"),
    "a descriptor that nobody wrote": (_at(_REDUCE, Field(64, 6), 20), "has a descriptor|which no inserted"),
}  # fmt: skip
"""What is wrong → what does it to a twin, and the rule that must be named (a regular expression)."""


@pytest.fixture(scope="module")
def cut(tmp_path_factory) -> bytes:
    whole = assemble(_PTX, "sm_90", tmp_path_factory.mktemp("counted"))
    return Cutter(whole, "whole").cut(KERNEL)


@pytest.fixture(scope="module")
def code() -> ProbeCode:
    tool("ptxas")
    return ProbeCode(load_probes(["gmem_bytes"]), "sm_90", find_assembler())


@pytest.fixture(scope="module")
def made(cut, code) -> ProbedTwin:
    return code.twin_of(cut, KERNEL, "cut")


@pytest.fixture(scope="module")
def twin(made) -> bytes:
    return made.data


def _around_of(
    cut: bytes, twin: bytes, reference: Reference | None = None, counted: Counted | None = None
) -> Surroundings:  # fmt: skip
    old, new = (read_cubin(data, "cubin").kernels[KERNEL] for data in (cut, twin))
    ((_, offset, size),) = new.parameters[len(old.parameters) :]
    begin = new.parameter_base + offset
    return Surroundings(old.registers, (begin, begin + size), old.parameter_base, counted, reference)


def _words(data: bytes) -> list[int]:
    return instruction_words(read_cubin(data, "cubin").kernels[KERNEL].code)


def _bytes(words: list[int]) -> bytes:
    return b"".join(word.to_bytes(16, "little") for word in words)


def test_what_the_writer_makes(cut, twin, made):
    assert check_cubin(cut, twin, KERNEL, "twin", None, made.reference) == []
    assert check_cubin(cut, twin, KERNEL, "twin", made.counted, made.reference) == []
    # Without it nobody knows what the ends should do.
    rules = [finding.rule for finding in check_cubin(cut, twin, KERNEL, "twin")]
    assert "it is not known what EXITs should have for the sums of accesses" in rules
    words = Twin(_words(cut), _words(twin))
    assert [OPCODE.get(word) for word in words.words[len(words.old) :]].count(_ADD) == 10
    assert words.find(_ADD, guarded=True)
    assert words.find(_ADD, guarded=False)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants(name, cut, twin, made):
    change, rule = MUTANTS[name]
    mutant = Twin(_words(cut), _words(twin))
    change(mutant)
    assert mutant.words != _words(twin)
    found = check_code(_bytes(mutant.old), _bytes(mutant.words), _around_of(cut, twin, made.reference))
    assert any(re.search(rule, finding.rule) for finding in found), found
    around = _around_of(cut, twin, made.reference, made.counted)
    assert check_code(_bytes(mutant.old), _bytes(mutant.words), around), "told what is counted"


def _with_sums_of(twin: Twin, *opcodes: int) -> list[int]:
    """The additions at accesses of some opcodes."""
    return [
        at for at in range(len(twin.old), len(twin.words) - 1)
        if OPCODE.get(twin.words[at]) == _ADD and OPCODE.get(twin.words[at + 1]) in opcodes
    ]  # fmt: skip


def _swapped(twin: Twin) -> None:
    """All loads add to the sum of stores, and all stores to that of loads."""
    loads, stores = _with_sums_of(twin, 0x981), _with_sums_of(twin, 0x986)
    sums = _FIRST.get(twin.words[loads[0]]), _FIRST.get(twin.words[stores[0]])
    for rows, own in ((loads, sums[1]), (stores, sums[0])):
        for at in rows:
            twin.put(at, _FIRST, own)
            twin.put(at, _PRODUCT_ADDED, own)


def _all_more(twin: Twin) -> None:
    """Each load adds 1 more than it should."""
    for at in _with_sums_of(twin, 0x981):
        twin.put(at, _CONSTANT, _CONSTANT.get(twin.words[at]) + 1)


def _store_with_code(twin: Twin) -> None:
    """A store, which is not counted, has a load's trampoline put after it: code that adds, the store, a branch."""
    site = next(at for at, word in enumerate(twin.old) if OPCODE.get(word) == 0x986)
    at = next(at for at in range(len(twin.words) - 1, len(twin.old), -1) if twin.words[at - 3] != _filling(twin))
    addition_ = GUARD.put(twin.words[twin.find(_ADD)], GUARD.get(twin.old[site])) | NEGATED.get(twin.old[site]) << 15
    twin.words[at : at + 3] = [
        addition_, REUSE.put(twin.old[site], 0), branch((at + 2) * 16, (site + 1) * 16, 90),
    ]  # fmt: skip
    twin.words += [_filling(twin)] * (-len(twin.words) % 8)
    twin.words[site - 1] = REUSE.put(twin.words[site - 1], 0)
    twin.words[site] = branch(site * 16, at * 16, 90, WAIT.get(twin.old[site]))


def _filling(twin: Twin) -> int:
    return twin.words[-1]


@pytest.fixture(scope="module")
def counting(cut) -> ProbedTwin:
    """A twin that counts loads, and of stores nothing."""
    tool("ptxas")
    return ProbeCode(load_one_liners([_COUNTING]), "sm_90", find_assembler()).twin_of(cut, KERNEL, "cut")


_COUNTED_MUTANTS: dict[str, tuple[Change, str]] = {
    "all loads count 2": (
        lambda twin: [twin.put(at, _CONSTANT, 2) for at in range(len(twin.old), len(twin.words))
                      if OPCODE.get(twin.words[at]) == _ADD and _CONSTANT.get(twin.words[at]) == 1] and None,
        "LDG adds other than counted",
    ),
    "all loads add 1 more": (_all_more, "LDG adds other than counted"),
    "one load adds 1 more": (_at(_ADD, _CONSTANT, 3), "LDG adds other than counted"),
    "count and bytes in each other's register": (
        lambda twin: [
            (twin.put(at, _CONSTANT, _CONSTANT.get(twin.words[at + 1])), twin.put(at + 1, _CONSTANT, one))
            for at in range(len(twin.old), len(twin.words) - 1)
            if OPCODE.get(twin.words[at]) == OPCODE.get(twin.words[at + 1]) == _ADD
            and (one := _CONSTANT.get(twin.words[at])) is not None
        ] and None,
        "LDG adds other than counted",
    ),
    "a load without code": (_back, "LDG has no code, although it is counted"),
    "a branch past the code": (_around, "LDG has no code, although it is counted"),
    "a store with code": (_store_with_code, "STG has code, which the probes do not count"),
}  # fmt: skip


@pytest.mark.parametrize("name", _COUNTED_MUTANTS)
def test_mutants_of_counts(name, cut, counting):
    change, rule = _COUNTED_MUTANTS[name]
    around = _around_of(cut, counting.data, counting.reference, counting.counted)
    mutant = Twin(_words(cut), _words(counting.data))
    assert check_code(_bytes(mutant.old), _bytes(mutant.words), around) == []
    change(mutant)
    assert mutant.words != _words(counting.data)
    rules = [finding.rule for finding in check_code(_bytes(mutant.old), _bytes(mutant.words), around)]
    assert any(re.search(rule, one) for one in rules), rules


def test_each_kind_has_its_own_sum(cut, twin, made):
    mutant = Twin(_words(cut), _words(twin))
    _swapped(mutant)
    old, new = _bytes(mutant.old), _bytes(mutant.words)
    found = check_code(old, new, _around_of(cut, twin, made.reference, made.counted))
    assert any("LDG adds other than counted" in finding.rule for finding in found)
    # Who is not told cannot know.
    assert check_code(old, new, _around_of(cut, twin, made.reference)) == []


def test_what_is_asked_for(cut, twin, made):
    # Trampolines without code count nothing.
    same = identity_twin(cut, KERNEL, "cut").data
    assert check_cubin(cut, same, KERNEL, "twin") == []
    uncounted = check_cubin(cut, same, KERNEL, "twin", Counted({"STG": ((0, None),)}))
    assert "has no parameter for what it should count" in "; ".join(finding.rule for finding in uncounted)
    # Of a probe for loads alone nothing else may have code.
    loads = Counted({"LDG": ((0, None),)})
    rules = [finding.rule for finding in check_cubin(cut, twin, KERNEL, "twin", loads, made.reference)]
    assert "threads end with 4 sums, accesses add to 1" in rules


_ACCESSES: dict[str, int] = {
    "ld.global.u8 %h1, [%rd1];": 1, "ld.global.s8 %h1, [%rd1];": 1, "ld.global.u16 %h1, [%rd1];": 2,
    "ld.global.f32 %f1, [%rd1];": 4, "ld.global.b64 %rd2, [%rd1];": 8, "ld.global.v2.u32 {%r1, %r2}, [%rd1];": 8,
    "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1];": 16, "ld.global.nc.v2.u64 {%rd2, %rd3}, [%rd1];": 16,
    "st.global.u8 [%rd1], %h1;": 1, "st.global.u16 [%rd1], %h1;": 2, "st.global.u32 [%rd1], %r1;": 4,
    "st.global.v2.f64 [%rd1], {%d1, %d2};": 16, "red.global.add.u32 [%rd1], %r1;": 4,
    "red.global.add.u64 [%rd1], %rd2;": 8, "red.global.add.f64 [%rd1], %d1;": 8,
    "red.global.add.noftz.f16x2 [%rd1], %r1;": 4, "red.global.v2.f32.add [%rd1], {%f1, %f2};": 8,
    "red.global.v4.f32.add [%rd1], {%f1, %f2, %f3, %f4};": 16, "atom.global.cas.b64 %rd2, [%rd1], %rd2, %rd3;": 8,
    "atom.global.exch.b32 %r1, [%rd1], %r2;": 4, "atom.global.max.s64 %rd2, [%rd1], %rd3;": 8,
    "cp.async.ca.shared.global [%r1], [%rd1], 4;": 4, "cp.async.ca.shared.global [%r1], [%rd1], 8;": 8,
    "cp.async.cg.shared.global [%r1], [%rd1], 16;": 16,
}  # fmt: skip
"""An access in PTX → the bytes that it says."""


def _single(accesses: list[str]) -> str:
    head = ".version 8.3\n.target sm_90\n.address_size 64\n"
    entries = []
    for number, access in enumerate(accesses):
        used = sorted(set(re.findall(r"%(h|r|f|rd|d)(\d)", access)))
        loads = [
            f"ld.param.{kind} %{letter}{digit}, [in+{8 * index}];" for index, (letter, digit) in enumerate(used)
            for kind in [{"h": "u16", "r": "u32", "f": "f32", "rd": "u64", "d": "f64"}[letter]]
        ]  # fmt: skip
        kept = [
            f"st.shared.{kind} [kept], %{letter}{digit};" for letter, digit in used
            for kind in [{"h": "u16", "r": "u32", "f": "f32", "rd": "u64", "d": "f64"}[letter]]
        ]  # fmt: skip
        entries.append(
            f".visible .entry k{number}(.param .align 8 .b8 in[64]) {{\n.reg .b16 %h<5>; .reg .b32 %r<5>;"
            f"\n.reg .f32 %f<5>; .reg .b64 %rd<5>; .reg .f64 %d<5>; .shared .align 16 .b8 kept[64];\n"
            + "\n".join([*loads, access, *(line.replace("st.shared", "st.volatile.shared") for line in kept), "ret; }"])
        )
    return head + "\n".join(entries)


def test_bytes_of_accesses(tmp_path):
    data = assemble(_single(list(_ACCESSES)), "sm_90", tmp_path)
    kernels = read_cubin(data, "cubin").kernels
    for number, (access, size) in enumerate(_ACCESSES.items()):
        columns = Columns(decode(kernels[f"k{number}"].code, 90))
        forms = [
            form for form in columns.forms
            if form is not None and form.name.partition(".")[0] in ("LDG", "STG", "ATOMG", "REDG", "LDGSTS")
        ]  # fmt: skip
        assert [access_bytes(form) for form in forms] == [size], (access, forms)


def _texts(words: list[int], folder) -> Iterator[str]:
    """As nvdisasm prints them."""
    path = folder / "words.bin"
    path.write_bytes(_bytes(words))
    argv = [tool("nvdisasm"), "-b", "SM90a", "-ndf", str(path)]
    text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    yield from (re.sub(r"\s+", " ", one) for one in re.findall(r"/\*[0-9a-f]{4}\*/\s+(.*?) ?;", text))


def test_additions_read_as_nvdisasm_reads_them(cut, twin, tmp_path):
    inserted = _words(twin)[len(_words(cut)) :]
    found = [word for word in inserted if OPCODE.get(word) == _ADD and addition(word) is not None]
    short = 0x0000000007FFE0FF_0000000000000810 | 0x000FE2 << 104
    found += [_CONSTANT.put(Field(24, 8).put(_FIRST.put(GUARD.put(short, ALWAYS), 40), 40), 12)]
    assert len(found) == 11
    for word, text in zip(found, _texts(found, tmp_path), strict=True):
        one = addition(word)
        assert one is not None
        guard = "" if GUARD.get(word) == ALWAYS else f"@{'!' * NEGATED.get(word)}P{GUARD.get(word)} "
        if one.registers == 2:
            rest = f"IMAD.WIDE.U32 R{one.first}, R{one.one}, {one.amount:#x}, R{one.first}"
        else:
            rest = f"IADD3 R{one.first}, R{one.first}, {one.amount:#x}, RZ"
        assert text == guard + rest


@pytest.mark.parametrize(
    ("access", "rule"),
    [
        ("ld.u32 %r1, [%rd1];", "LD is an access that should be counted, and no constant"),
        ("st.u32 [%rd1], %r1;", "ST is an access that should be counted"),
        ("atom.add.u32 %r1, [%rd1], %r2;", "ATOM is an access that should be counted"),
    ],
)
def test_accesses_that_cannot_be_counted(access, rule, tmp_path):
    data = assemble(_single([access]), "sm_90", tmp_path)
    columns = Columns(decode(read_cubin(data, "cubin").kernels["k0"].code, 90))
    assert any(rule in found for _, found in check_sums(columns, {}, Sums()))
    name = rule.partition(" ")[0]
    for rows in (None, ((0, None),)):
        asked = check_counted(columns, Sums(), Counted({name: rows}), [40] * bool(rows))
        assert any(rule.partition(",")[0] in found for _, found in asked)
    assert list(check_counted(columns, Sums(), Counted({}), ())) == []


def test_sites_that_cannot_have_code(tmp_path):
    copy = "{ .reg .pred %p; setp.eq.u32 %p, %r2, 0; cp.async.ca.shared.global [%r1], [%rd1], 8, %p; }"
    data = assemble(_single([copy, "ld.global.u32 %r1, [%rd1];"]).replace("8.3", "8.6"), "sm_90", tmp_path)
    rules = []
    for kernel in ("k0", "k1"):
        code = decode(read_cubin(data, "cubin").kernels[kernel].code, 90)
        (at,) = (at for at in range(len(code)) if code.form(at).name.startswith(("LDGSTS", "LDG.")))
        word = int(code.words[at, 0]) | int(code.words[at, 1]) << 64
        rules.append(list(check_site(code.form(at), word)))
        assert any("no access" in rule for rule in check_site(code.form(at + 1), word))
    assert any("second predicate" in rule or "how many bytes" in rule for rule in rules[0])
    assert rules[1] == []
