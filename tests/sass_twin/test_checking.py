"""The checker of twins: it accepts what the writer makes, and names the rule that each kind of mutant breaks."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from neutrino.sass.fields import GUARD, NEGATED, NO_YIELD, OPCODE, READ_BARRIER, REUSE, STALL, WAIT, WRITE_BARRIER
from neutrino.sass.twin.checking import check_code, check_cubin
from neutrino.sass.twin.control import branch, nop
from neutrino.sass.twin.cutting import Cutter
from neutrino.sass.twin.growing import Growth, code_of, grow
from neutrino.sass.twin.trampolines import Trampoline, identity_twin, instruction_words
from tests.sass_twin.listing import KERNELS

KERNEL = "switched"
Words = list[int]
Mutant = Callable[[Words, Trampoline, Trampoline], None]


def _set(place: Callable[[Trampoline, Trampoline], int], change: Callable[[int], int]) -> Mutant:
    """A mutant that changes the instruction at a place."""

    def mutate(words: Words, one: Trampoline, other: Trampoline) -> None:
        at = place(one, other) // 16
        words[at] = change(words[at])

    return mutate


def _exchanged(words: Words, one: Trampoline, other: Trampoline) -> None:
    a, b = one.displaced // 16, other.displaced // 16
    words[a], words[b] = words[b], words[a]


def _shared(words: Words, one: Trampoline, other: Trampoline) -> None:
    words[other.site // 16] = branch(other.site, one.place, 90, WAIT.get(words[other.site // 16]))


def _raced(words: Words, one: Trampoline, other: Trampoline) -> None:
    at = one.displaced // 16
    words[at] = STALL.put(words[at], 1)
    words[at + 1] = WAIT.put(words[at + 1], 0x3F)


MUTANTS: dict[str, tuple[Mutant, str]] = {
    "a wait dropped from the branch": (_set(lambda a, _: a.site, lambda w: WAIT.put(w, 0)), "does not wait"),
    "a wait dropped from the displaced": (_set(lambda a, _: a.displaced, lambda w: WAIT.put(w, 0)), "is another"),
    "a write barrier dropped": (_set(lambda a, _: a.displaced, lambda w: WRITE_BARRIER.put(w, 7)), "is another"),
    "a write barrier changed": (
        _set(lambda a, _: a.displaced, lambda w: WRITE_BARRIER.put(w, 5 ^ WRITE_BARRIER.get(w) & 1)), "is another",
    ),
    "a read barrier added": (_set(lambda a, _: a.displaced, lambda w: READ_BARRIER.put(w, 3)), "is another"),
    "the displaced one's stall changed": (
        _set(lambda a, _: a.displaced, lambda w: STALL.put(w, STALL.get(w) ^ 2)), "is another",
    ),
    "its yield changed": (_set(lambda a, _: a.displaced, lambda w: NO_YIELD.put(w, NO_YIELD.get(w) ^ 1)), "is another"),
    "its reuse kept": (_set(lambda a, _: a.displaced, lambda w: REUSE.put(w, 1)), "is another"),
    "its guard negated": (_set(lambda a, _: a.displaced, lambda w: w ^ 1 << 15), "is another"),
    "its guard changed": (_set(lambda a, _: a.displaced, lambda w: w ^ 1 << 12), "is another"),
    "its destination changed": (_set(lambda a, _: a.displaced, lambda w: w ^ 1 << 16), "is another"),
    "its address changed": (_set(lambda a, _: a.displaced, lambda w: w ^ 1 << 24), "is another"),
    "its offset changed": (_set(lambda a, _: a.displaced, lambda w: w ^ 1 << 40), "is another"),
    "it is lost": (_set(lambda a, _: a.displaced, lambda _: nop()), "is another"),
    "two displaced exchanged": (_exchanged, "is another"),
    "a branch back one too far": (_set(lambda a, _: a.back, lambda w: w + (4 << 16)), "no branch back"),
    "a branch back to the site": (_set(lambda a, _: a.back, lambda w: w - (4 << 16)), "no branch back"),
    "no branch back": (_set(lambda a, _: a.back, lambda _: nop()), "no branch back"),
    "a branch back with a guard": (_set(lambda a, _: a.back, lambda w: GUARD.put(w, 0)), "no branch back"),
    "a branch back that is never taken": (_set(lambda a, _: a.back, lambda w: NEGATED.put(w, 1)), "no branch back"),
    "a branch back with another condition": (_set(lambda a, _: a.back, lambda w: w ^ 1 << 87), "no branch back"),
    "a branch back with little stall": (_set(lambda a, _: a.back, lambda w: STALL.put(w, 1)), "other cycles than"),
    "a branch back with a barrier": (
        _set(lambda a, _: a.back, lambda w: WRITE_BARRIER.put(w, 0)), "takes a scoreboard",
    ),
    "a branch with a guard": (_set(lambda a, _: a.site, lambda w: GUARD.put(w, 0)), "not into a branch"),
    "a branch with little stall": (_set(lambda a, _: a.site, lambda w: STALL.put(w, 2)), "other cycles than"),
    "a branch with a barrier": (_set(lambda a, _: a.site, lambda w: READ_BARRIER.put(w, 1)), "takes a scoreboard"),
    "a branch into the old code": (
        _set(lambda a, _: a.site, lambda w: branch(0x40, 0x80, 90, WAIT.get(w))), "where no trampoline is",
    ),
    "a branch into a trampoline's middle": (_set(lambda a, _: a.site, lambda w: w + (4 << 16)), "is another"),
    "two sites with one trampoline": (_shared, "share an instruction"),
    "a scoreboard waited for at once": (_raced, "is another|in the cycle after"),
    "reuse kept above a site": (
        _set(lambda a, _: a.site - 16, lambda w: REUSE.put(w, 1)), "kept for|not into a branch",
    ),
    "an instruction of the kernel lost": (_set(lambda *_: 0x10, lambda _: nop()), "not into a branch"),
    "a register of the kernel changed": (_set(lambda *_: 0x20, lambda w: w ^ 1 << 16), "not into a branch"),
    "a wait of the kernel dropped": (_set(lambda a, _: a.site + 16, lambda w: WAIT.put(w, 0x2A)), "not into a branch"),
    "the opcode of the kernel changed": (_set(lambda *_: 0x30, lambda w: OPCODE.put(w, 0x919)), "not into a branch"),
    "code that nobody reaches": (_set(lambda *_: -16, lambda _: branch(0, 0x200, 90)), "no site leads to"),
}  # fmt: skip
"""What is wrong → what does it to two trampolines, and the rule that must be named."""


@pytest.fixture(scope="module")
def made(whole) -> tuple[bytes, bytes, Trampoline, Trampoline]:
    """The original's code and the twin's, and two trampolines: of a load with a barrier, after an instruction that is
    no site, and of a store."""
    cut = Cutter(whole, "whole").cut(KERNEL)
    twin = identity_twin(cut, KERNEL, "cut")
    words = instruction_words(code_of(cut, KERNEL, "cut"))
    sites = {row.site for row in twin.trampolines}

    def fits(row: Trampoline) -> bool:
        word = words[row.site // 16]
        alone = row.site - 16 not in sites and row.site + 16 not in sites
        return alone and WRITE_BARRIER.get(word) < 6 and WAIT.get(word) != 0 and GUARD.get(word) == 7

    first = next(row for row in twin.trampolines if fits(row))
    second = next(row for row in twin.trampolines if words[row.site // 16] & 0xFFF == 0x986)
    return code_of(cut, KERNEL, "cut"), code_of(twin.data, KERNEL, "twin"), first, second


def _bytes(words: Words) -> bytes:
    return b"".join(word.to_bytes(16, "little") for word in words)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants(name, made):
    original, twin, first, second = made
    mutate, rule = MUTANTS[name]
    words = instruction_words(twin)
    mutate(words, first, second)
    assert _bytes(words) != twin
    found = check_code(original, _bytes(words))
    assert found, name
    assert any(part in finding.rule for finding in found for part in rule.split("|")), found
    assert check_code(original, twin) == []


def test_any_bit_of_a_twin_matters(made):
    original, twin, _, _ = made
    # Bits that may be set in a branch without another meaning: more waits.
    for place in range(0, len(twin) * 8, 977):
        changed = bytearray(twin)
        changed[place // 8] ^= 1 << place % 8
        is_wait = 116 <= place % 128 < 122
        assert is_wait or check_code(original, bytes(changed)), hex(place // 8)


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_is_no_twin_but_a_kernel(kernel, whole):
    cut = Cutter(whole, "whole").cut(kernel)
    assert check_cubin(cut, cut, kernel, "cut") == []
    assert check_cubin(cut, identity_twin(cut, kernel, "cut", registers=3).data, kernel, "cut") == []


def test_displaced_control_flow_is_refused(whole):
    cut = Cutter(whole, "whole").cut("reversed")
    code = code_of(cut, "reversed", "cut")
    words = instruction_words(code)
    barrier = next(index for index, word in enumerate(words) if word & 0xFFF == 0xB1D)
    moved = [*words, words[barrier], branch(len(code) + 16, 16 * barrier + 16, 90), *[nop()] * 6]
    moved[barrier] = branch(16 * barrier, len(code), 90, WAIT.get(words[barrier]))
    (finding,) = check_code(code, _bytes(moved))
    assert finding.rule == "an instruction was displaced that may not move, 0xb1d"


def test_wrong_files(whole):
    cut = Cutter(whole, "whole").cut("divided")
    code = code_of(cut, "divided", "cut")

    def rules(data: bytes) -> str:
        return "; ".join(finding.rule for finding in check_cubin(cut, data, "divided", "twin"))

    assert "17 registers, of the original 18" in rules(grow(cut, Growth(code, registers=17), "cut").data)
    more = grow(grow(cut, Growth(code, parameter=8), "cut").data, Growth(code, parameter=8), "cut").data
    assert "with one more at most" in rules(more)
    assert "other kernels" in rules(Cutter(whole, "whole").cut("reversed"))
    base = struct.pack("<BBHIHH", 4, 0x0A, 8, 10, 0x210, 20)
    assert cut.count(base) == 1
    assert "parameter_base is 528" not in rules(cut)
    assert "parameter_base" in rules(cut.replace(base, struct.pack("<BBHIHH", 4, 0x0A, 8, 10, 0x160, 20)))
    name = b"\0.nv.compat\0"
    assert cut.count(name) == 1
    assert "other sections" in rules(cut.replace(name, b"\0.nv.compas\0"))
