"""Rules for twins that count instructions: each kind of mutant is refused by the rule that it breaks.

The code is what ``inst_count`` becomes in a kernel with a loop that lanes leave one by one, instructions under
predicates, lanes that end early, a barrier, and a function. What it counts is judged by running it
(``tests/sass_machine``); here what the checker refuses.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from neutrino import load_probes
from neutrino.api import load_probes as load_one_liners
from neutrino.backend.sass_probe_code import ProbeCode
from neutrino.errors import MachineCodeError
from neutrino.sass.cubin import read_cubin
from neutrino.sass.decoder import Code, decode
from neutrino.sass.fields import ALWAYS, GUARD, NEGATED, OPCODE, REUSE, STALL, WAIT, WRITE_BARRIER, Field
from neutrino.sass.twin.checking import check_code, check_cubin
from neutrino.sass.twin.control import branch, branch_target, moved_branch, nop, plain_target
from neutrino.sass.twin.cutting import Cutter
from neutrino.sass.twin.executed import Added, CountedInstructions, Entrances, check_executed
from neutrino.sass.twin.instruction_rules import Surroundings
from neutrino.sass.twin.probed import ProbedTwin, places_of
from neutrino.sass.twin.trampolines import instruction_words
from neutrino.toolchain.tool_choice import find_assembler
from tests.sass_twin.listing import assemble, tool

_PTX = """
.version 8.0
.target sm_90
.address_size 64
.func (.reg .f32 %back) noise(.reg .f32 %x, .reg .u32 %n)
{
	.reg .pred %p<2>;
	setp.gt.u32 %p1, %n, 77;
	div.rn.f32 %back, %x, 0f40490FDB;
	@%p1 sqrt.rn.f32 %back, %back;
	ret;
}
.visible .entry counted(.param .u64 at, .param .u32 count)
{
	.reg .pred %p<6>;
	.reg .b32 %r<16>;
	.reg .f32 %f<6>;
	.reg .b64 %rd<8>;
	.shared .align 16 .b8 kept[1024];
	ld.param.u64 %rd1, [at];
	ld.param.u32 %r1, [count];
	mov.u32 %r2, %tid.x;
	setp.ge.u32 %p1, %r2, %r1;
	@%p1 ret;
	mul.wide.u32 %rd2, %r2, 4;
	add.u64 %rd3, %rd1, %rd2;
	ld.global.u32 %r3, [%rd3];
	and.b32 %r4, %r3, 15;
	mov.u32 %r5, 0;
LOOP:
	setp.ge.u32 %p2, %r5, %r4;
	@%p2 bra DONE;
	add.u32 %r5, %r5, 1;
	mad.lo.u32 %r3, %r3, 1664525, 1013904223;
	and.b32 %r6, %r3, 64;
	setp.ne.u32 %p3, %r6, 0;
	@%p3 st.global.u32 [%rd3+4096], %r3;
	@!%p3 xor.b32 %r3, %r3, 12345;
	bra LOOP;
DONE:
	cvt.rn.f32.u32 %f1, %r3;
	call (%f2), noise, (%f1, %r4);
	mov.u32 %r7, kept;
	mad.lo.u32 %r7, %r2, 4, %r7;
	st.shared.f32 [%r7], %f2;
	bar.sync 0;
	ld.shared.f32 %f3, [kept];
	add.f32 %f3, %f3, %f2;
	st.global.f32 [%rd3], %f3;
	ret;
}
"""
KERNEL = "counted"
_AMOUNT, _FIRST, _ADDEND = Field(32, 32), Field(16, 8), Field(64, 8)
_ADD, _BRANCH, _EXIT, _BSYNC, _BSSY = 0x825, 0x947, 0x94D, 0x941, 0x945


class Twin:
    """A twin of which something is changed. old, words: the original's instructions and the twin's. sites: place of a
    site → that of its trampoline, in instructions."""

    def __init__(self, old: list[int], words: list[int], sites: dict[int, int]) -> None:
        self.old, self.words, self.sites = old, list(words), sites

    def added(self, *, guarded: bool | None = None) -> list[int]:
        """Where additions are at sites."""
        found = []
        for first in sorted(self.sites.values()):
            at = first
            while OPCODE.get(self.words[at]) == _ADD:
                if guarded in (None, GUARD.get(self.words[at]) != ALWAYS):
                    found.append(at)
                at += 1
        return found

    def put(self, at: int, field: Field, value: int) -> None:
        self.words[at] = field.put(self.words[at], value)

    def site_of(self, opcode: int, *, guarded: bool | None = None) -> int:
        """The first site at an instruction of an opcode, by its number in the code."""
        return next(
            site for site in sorted(self.sites)
            if OPCODE.get(self.old[site]) == opcode and guarded in (None, GUARD.get(self.old[site]) != ALWAYS)
        )  # fmt: skip

    def displaced(self, site: int) -> int:
        """Where a site's branch is in its trampoline."""
        return next(at for at in range(self.sites[site], len(self.words)) if OPCODE.get(self.words[at]) == _BRANCH)

    def restore(self, site: int) -> None:
        self.words[site] = self.old[site]

    def displace(self, opcode: int) -> None:
        """A trampoline at an instruction that has none, with nothing in it, as if it could run anywhere."""
        site = next(at for at, word in enumerate(self.old) if OPCODE.get(word) == opcode and at not in self.sites)
        place = len(self.words)
        self.words += [REUSE.put(self.old[site], 0), branch((place + 1) * 16, (site + 1) * 16, 90)]
        self.words += [nop()] * (-len(self.words) % 8 or 8)
        self.words[site] = branch(site * 16, place * 16, 90, WAIT.get(self.old[site]))
        self.words[site - 1] = REUSE.put(self.words[site - 1], 0)


Change = Callable[[Twin], object]


def _amount(change: Callable[[int], int], nth: int = 0, *, guarded: bool | None = None) -> Change:
    def apply(twin: Twin) -> None:
        at = twin.added(guarded=guarded)[nth]
        twin.put(at, _AMOUNT, change(_AMOUNT.get(twin.words[at])))

    return apply


def _left_out(twin: Twin) -> None:
    """A block without its count: its instruction is where it was."""
    twin.restore(next(site for site in sorted(twin.sites) if OPCODE.get(twin.old[site]) != _EXIT))


def _around(twin: Twin) -> None:
    """A branch to what is displaced, past the additions."""
    site = twin.site_of(_BRANCH)
    twin.words[site] = branch(site * 16, twin.displaced(site) * 16, 90, WAIT.get(twin.words[site]))


def _exchanged(twin: Twin) -> None:
    """Two blocks with each other's counts."""
    plain = twin.added(guarded=False)
    one = plain[0]
    other = next(at for at in plain if _FIRST.get(twin.words[at]) == _FIRST.get(twin.words[one])
                 and _AMOUNT.get(twin.words[at]) != _AMOUNT.get(twin.words[one]))  # fmt: skip
    amounts = _AMOUNT.get(twin.words[one]), _AMOUNT.get(twin.words[other])
    twin.put(one, _AMOUNT, amounts[1])
    twin.put(other, _AMOUNT, amounts[0])


def _moved_to_another_block(twin: Twin) -> None:
    """The count of one block is in another, on top of its own: the totals of the code are as they were."""
    plain = twin.added(guarded=False)
    one = plain[0]
    other = next(at for at in plain[1:] if _FIRST.get(twin.words[at]) == _FIRST.get(twin.words[one]))
    twin.put(other, _AMOUNT, _AMOUNT.get(twin.words[other]) + _AMOUNT.get(twin.words[one]))
    twin.put(one, _AMOUNT, 0)


def _other_sum(twin: Twin) -> None:
    plain = twin.added(guarded=False)
    one = plain[0]
    other = next(at for at in plain if _FIRST.get(twin.words[at]) != _FIRST.get(twin.words[one]))
    for field in (_FIRST, _ADDEND):
        twin.put(one, field, _FIRST.get(twin.words[other]))


def _guard(change: Callable[[int, int], tuple[int, int]], *, guarded: bool = True) -> Change:
    def apply(twin: Twin) -> None:
        at = twin.added(guarded=guarded)[0]
        number, negated = change(GUARD.get(twin.words[at]), NEGATED.get(twin.words[at]))
        twin.put(at, GUARD, number)
        twin.put(at, NEGATED, negated)

    return apply


def _branch_elsewhere(twin: Twin) -> None:
    site = twin.site_of(_BRANCH)
    at = twin.displaced(site)
    wanted = plain_target(twin.words[at], at * 16, 90)
    assert wanted is not None
    twin.words[at] = moved_branch(twin.words[at], at * 16, wanted + 16, 90)


def _branch_as_it_was(twin: Twin) -> None:
    """A displaced branch that goes as far as from its old place."""
    site = twin.site_of(_BRANCH)
    twin.words[twin.displaced(site)] = REUSE.put(twin.old[site], 0)


def _branch_of_others(twin: Twin) -> None:
    at = twin.displaced(twin.site_of(_BRANCH, guarded=True))
    twin.put(at, NEGATED, NEGATED.get(twin.words[at]) ^ 1)


def _branch_of_all(twin: Twin) -> None:
    at = twin.displaced(twin.site_of(_BRANCH, guarded=True))
    twin.put(at, GUARD, ALWAYS)
    twin.put(at, NEGATED, 0)


def _staying_elsewhere(twin: Twin) -> None:
    """Lanes that a displaced branch does not take go on one too far."""
    at = twin.displaced(twin.site_of(_BRANCH, guarded=True)) + 1
    there = branch_target(twin.words[at], at * 16, 90)
    assert there is not None
    twin.words[at] = branch(at * 16, there + 16, 90)


def _parted(twin: Twin) -> None:
    """A branch to a trampoline of some lanes alone."""
    site = twin.site_of(_BRANCH, guarded=True)
    twin.put(site, GUARD, GUARD.get(twin.old[site]))


def _after_leaving(twin: Twin) -> None:
    """At an EXIT under a predicate, what all count is counted after others went back: the first part comes later."""
    site = twin.site_of(_EXIT, guarded=True)
    first = twin.sites[site]
    at = first
    while OPCODE.get(twin.words[at]) == _ADD:
        at += 1
    words = twin.words
    # From the last addition's place on: the branch first.
    target = plain_target(words[at], at * 16, 90)
    assert at > first
    assert target is not None
    words[at - 1], words[at] = moved_branch(words[at], (at - 1) * 16, target, 90), words[at - 1]


def _twice(twin: Twin) -> None:
    """Two sites with one trampoline."""
    one, other = [site for site in sorted(twin.sites) if OPCODE.get(twin.old[site]) == _BRANCH][:2]
    twin.words[other] = branch(other * 16, twin.sites[one] * 16, 90, WAIT.get(twin.words[other]))


def _wait_dropped(twin: Twin) -> None:
    site = next(site for site in sorted(twin.sites) if WAIT.get(twin.old[site]))
    twin.put(site, WAIT, 0)


def _same_sum_at_once(twin: Twin) -> None:
    """Two additions to one sum without the cycles that the first one takes."""
    plain = twin.added()
    at = next(at for at in plain if at + 1 in plain)
    for field in (_FIRST, _ADDEND):
        twin.put(at + 1, field, _FIRST.get(twin.words[at]))
    twin.put(at, STALL, 1)


MUTANTS: dict[str, tuple[Change, str]] = {
    "one too many": (_amount(lambda amount: amount + 1), r"the block adds \d+ instead of \d+ to sum"),
    "one too few": (_amount(lambda amount: amount - 1, 3), r"the block adds \d+ instead of \d+ to sum"),
    "one too many under a predicate": (_amount(lambda amount: amount + 1, guarded=True), r"to sum \d+ under P"),
    "nothing": (_amount(lambda _: 0, 1), r"the block adds 0 instead of"),
    "a negative number": (_amount(lambda amount: amount | 1 << 31), "the block adds"),
    "a block left out": (_left_out, "the block adds 0 instead of|that no site leads to"),
    "a branch past the additions": (_around, "that no site leads to|the block adds 0 instead of"),
    "two blocks exchanged": (_exchanged, "the block adds"),
    "a count at another block": (_moved_to_another_block, "the block adds"),
    "the sum of another kind": (_other_sum, "the block adds"),
    "a guard dropped": (_guard(lambda *_: (ALWAYS, 0)), r"the block adds"),
    "the opposite guard": (_guard(lambda number, negated: (number, negated ^ 1)), "the block adds"),
    "another guard": (_guard(lambda number, negated: (number ^ 1, negated)), "of which it is not known|the block adds"),
    "a guard where none is": (_guard(lambda *_: (0, 0), guarded=False), "of which it is not known|the block adds"),
    "never": (_guard(lambda *_: (ALWAYS, 1), guarded=False), "of which it is not known"),
    "a branch elsewhere": (_branch_elsewhere, "the displaced branch goes elsewhere"),
    "a branch as far as before": (_branch_as_it_was, "the displaced branch goes elsewhere"),
    "a branch of the other lanes": (_branch_of_others, "the displaced instruction is another"),
    "a branch of all lanes": (_branch_of_all, "the displaced instruction is another"),
    "lanes that stay go on elsewhere": (_staying_elsewhere, "no branch back to"),
    "a branch to a trampoline of some lanes": (_parted, "changed into another, not into a branch"),
    "counted after lanes that stay left": (_after_leaving, "the block adds|do not go back at once"),
    "a trampoline of two sites": (_twice, "two sites share an instruction|no branch back|goes elsewhere"),
    "a wait dropped at a site": (_wait_dropped, "does not wait for what"),
    "a sum added to twice at once": (_same_sum_at_once, r"R\d+ is used \d+ cycles after|cycles"),
    "a scoreboard taken": (lambda twin: twin.put(twin.added()[0], WRITE_BARRIER, 3), "takes a scoreboard"),
    "an operand kept": (lambda twin: twin.put(twin.added()[0], REUSE, 1), "an operand is kept"),
    "a kernel's register": (
        lambda twin: [twin.put(twin.added()[0], field, 2) for field in (_FIRST, _ADDEND)],
        "is the kernel's, whose registers end",
    ),
    "nothing at a site": (lambda twin: twin.words.__setitem__(twin.added()[0], nop()), "not an addition of a constant"),
    "BSYNC displaced": (lambda twin: twin.displace(_BSYNC), "displaced that may not move"),
    "BSSY displaced": (lambda twin: twin.displace(_BSSY), "displaced that may not move"),
    "a barrier displaced": (lambda twin: twin.displace(0xB1D), "displaced that may not move"),
    "a call displaced": (lambda twin: twin.displace(0x944), "displaced that may not move"),
    "a return displaced": (lambda twin: twin.displace(0x950), "displaced that may not move"),
}  # fmt: skip
"""What is wrong → what does it to a twin, and the rule that must be named (a regular expression)."""


@pytest.fixture(scope="module")
def cut(tmp_path_factory) -> bytes:
    whole = assemble(_PTX, "sm_90", tmp_path_factory.mktemp("counted"))
    return Cutter(whole, "whole").cut(KERNEL)


@pytest.fixture(scope="module")
def code() -> ProbeCode:
    tool("ptxas")
    return ProbeCode(load_probes(["inst_count"]), "sm_90", find_assembler())


@pytest.fixture(scope="module")
def made(cut, code) -> ProbedTwin:
    return code.twin_of(cut, KERNEL, "cut")


@pytest.fixture(scope="module")
def original(cut) -> bytes:
    return read_cubin(cut, "cut").kernels[KERNEL].code


@pytest.fixture(scope="module")
def around(cut, code, made) -> Surroundings:
    old = read_cubin(cut, "cut").kernels[KERNEL]
    new = read_cubin(made.data, "twin").kernels[KERNEL]
    base = new.parameter_base + made.parameter_offset
    places = places_of(cut, KERNEL, "cut")
    return Surroundings(
        old.registers, (base, base + code.block_size), new.parameter_base, made.counted, made.reference,
        entrances=Entrances(places.functions, places.indirect),
    )  # fmt: skip


@pytest.fixture
def twin(original, made) -> Twin:
    words = instruction_words(read_cubin(made.data, "twin").kernels[KERNEL].code)
    return Twin(
        instruction_words(original), words, {site // 16: place // 16 for site, place in made.accesses.items()}
    )  # fmt: skip


def _packed(words: list[int]) -> bytes:
    return b"".join(word.to_bytes(16, "little") for word in words)


def test_the_twin_is_accepted(cut, original, made, twin, around):
    assert check_code(original, _packed(twin.words), around) == []
    assert check_cubin(cut, made.data, KERNEL, "twin", made.counted, made.reference) == []
    names = {OPCODE.get(twin.old[site]) for site in twin.sites}
    # It has sites of all kinds, and additions under predicates.
    assert {_BRANCH, _EXIT} < names
    assert twin.added(guarded=True)
    assert len(twin.sites) > 8
    assert {_BSYNC, _BSSY, 0x944, 0x950} <= {OPCODE.get(word) for word in twin.old}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_refused(name, original, twin, around):
    change, rule = MUTANTS[name]
    change(twin)
    found = check_code(original, _packed(twin.words), around)
    assert any(re.search(rule, one.rule) for one in found), found


def test_a_twin_that_counts_something_else_is_refused(cut, made):
    """What each instruction counts, the checker is told by what the probes are, not by the twin."""
    assert isinstance(made.counted, CountedInstructions)
    for kind in ("IMAD", "BRA", "LDG", "MUFU.RCP", "EXIT"):
        row = made.counted.added[kind]
        assert row is not None
        other = CountedInstructions({**made.counted.added, kind: {**row, 0: 2}})
        found = check_cubin(cut, made.data, KERNEL, "twin", other, made.reference)
        assert any("the block adds" in one.rule for one in found), kind
        unknown = CountedInstructions({**made.counted.added, kind: None})
        found = check_cubin(cut, made.data, KERNEL, "twin", unknown, made.reference)
        assert any("counts is not known" in one.rule for one in found), kind


def _straight(*words: int) -> Code:
    return decode(_packed([*words]), 90)


_MOV = 0x000FE20000000F00_0000000400027202
_SET = 0x000FE20003F05270_000000FF0200720C
"""MOV R2, R4, and ISETP.NE.AND P0, PT, R2, RZ, PT."""
_END = 0x000FEA0003800000_000000000000794D
_EACH = CountedInstructions({name: {0: 1} for name in ("MOV", "ISETP", "EXIT", "BRX", "BRA")})


def _under(word: int, number: int, negated: int = 0) -> int:
    return NEGATED.put(GUARD.put(word, number), negated)


def _wrong(code: Code, *added: tuple[int, int, tuple[int, int]], entrances: Entrances | None = None) -> list[str]:
    rows: dict[int, list[Added]] = {}
    for index, amount, guard in added:
        rows.setdefault(index, []).append(Added(100 + index, 40, amount, guard))
    return [rule for _, rule in check_executed(code, _EACH, entrances or Entrances(), rows, [40])]


def test_a_predicate_is_another_one_after_it_is_written():
    code = _straight(_MOV, _under(_MOV, 0), _SET, _under(_MOV, 0), _under(_MOV, 0, 1), _END)
    assert [form.name for form in code.forms if form is not None and form.name != "MOV"]
    every = (5, 3, (ALWAYS, 0))
    assert _wrong(code, (1, 1, (0, 0)), (3, 1, (0, 0)), (3, 1, (0, 1)), every) == []
    # At the instruction that writes it, it is as before; of either sign it is there.
    assert _wrong(code, (2, 1, (0, 0)), (4, 1, (0, 0)), (5, 1, (0, 1)), every) == []
    assert "under P0" in _wrong(code, (1, 2, (0, 0)), (4, 1, (0, 1)), every)[0]
    assert "under P0" in _wrong(code, (3, 2, (0, 0)), (3, 1, (0, 1)), every)[0]
    # Nobody knows that it is there yet.
    assert "of which it is not known" in _wrong(code, (0, 1, (0, 0)), (3, 1, (0, 0)), (3, 1, (0, 1)), every)[0]


def test_what_is_not_understood_is_refused():
    assert _wrong(_straight(_MOV, _END), (1, 2, (ALWAYS, 0))) == []
    # The code runs on behind its end.
    assert "runs on" in _wrong(_straight(_MOV, _MOV), (1, 2, (ALWAYS, 0)))[0]
    # Something is counted where nobody comes.
    assert _wrong(_straight(_MOV, _END, _MOV, _END), (1, 2, (ALWAYS, 0)), (3, 2, (ALWAYS, 0)))
    # A function begins in the middle.
    inside = Entrances(frozenset({16}))
    assert "adds 0 instead of 1" in _wrong(_straight(_MOV, _END), (1, 2, (ALWAYS, 0)), entrances=inside)[0]
    assert _wrong(_straight(_MOV, _MOV, _END), (1, 1, (ALWAYS, 0)), (2, 2, (ALWAYS, 0))) == []
    assert _wrong(_straight(_MOV, _MOV, _END), (1, 1, (ALWAYS, 0)), (2, 1, (ALWAYS, 0))) != []


def test_a_branch_by_a_register_needs_a_list():
    words = (_MOV, 0x000FEA000383FFFF_FFFFFFF402007949, _MOV, _END)
    code = _straight(*words)
    form = code.form(1)
    assert form is not None
    assert form.name == "BRX"
    listed = Entrances(indirect={16: [32]})
    assert _wrong(code, (0, 2, (ALWAYS, 0)), (3, 2, (ALWAYS, 0)), entrances=listed) == []
    assert "where BRX goes is not known" in _wrong(code, (0, 2, (ALWAYS, 0)), (3, 2, (ALWAYS, 0)))[0]


def test_what_lanes_do_together_is_no_place_for_counts():
    """``WARPSYNC.COLLECTIVE``: lanes that come from several places execute what is up to ENDCOLLECTIVE together."""
    begin, end = 0x000FEA0003C00000_0000000015087348, 0x0003FE2000380000_000000000000791B
    code = _straight(_MOV, begin, _MOV, end, _MOV, _END)
    assert [form.name for form in (code.form(1), code.form(3)) if form is not None] == [
        "WARPSYNC.COLLECTIVE", "ENDCOLLECTIVE",
    ]  # fmt: skip
    each = CountedInstructions({**_EACH.added, "WARPSYNC": {0: 1}, "ENDCOLLECTIVE": {0: 1}})

    def wrong(code: Code, index: int) -> list[str]:
        rows = {index: [Added(100, 40, 6, (ALWAYS, 0))]}
        return [rule for _, rule in check_executed(code, each, Entrances(), rows, [40])]

    for index in (0, 1, 4, 5):
        assert wrong(code, index) == []
    for index in (2, 3):
        assert wrong(code, index) == ["something is counted where lanes are together that come from several places"]
    # One that goes on elsewhere, one that ends nothing.
    assert any("goes on elsewhere" in rule for rule in wrong(_straight(_MOV, begin, _MOV, _MOV, end, _END), 0))
    assert any("ends what nothing begins" in rule for rule in wrong(_straight(_MOV, _MOV, end, _MOV, _MOV, _END), 0))


def test_the_sums_of_all_exits_are_those_of_the_instructions(original, made, twin, around):
    """A kernel whose threads end with fewer sums than its instructions add to."""
    assert isinstance(made.counted, CountedInstructions)
    more = {kind: None if row is None else {**row, 20: 1} for kind, row in made.counted.added.items()}
    changed = replace(around, counted=CountedInstructions(more))
    found = check_code(original, _packed(twin.words), changed)
    assert any("threads end with" in one.rule for one in found)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("add { @n = count() }", "which may be"),
        ("ld.shared { @n = count() }", ""),
        ("bar.sync | barrier.sync { @n = count() }", ""),
        ("bar.sync { @n = count() }", "which may be barrier.sync"),
        ("div { @n = count() }", "of which machine code does not tell"),
        ("ld.shared.volatile { @n = count() }", "of which machine code does not tell"),
        ("ld.shared.f32 { @n = count() }", "of which machine code does not tell"),
        ("branch { @n = count() }", ""),
        ("mma | wmma.mma { @n = count() }", "has no instruction that the probes are for"),
    ],
)
def test_probes_are_at_what_does_the_same_as_what_they_name(line, why, cut):
    tool("ptxas")

    def made_of() -> ProbedTwin:
        return ProbeCode(load_one_liners([line]), "sm_90", find_assembler()).twin_of(cut, KERNEL, "cut")

    if why:
        with pytest.raises(MachineCodeError, match=re.escape(why)):
            made_of()
    else:
        assert made_of().accesses
