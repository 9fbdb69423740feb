"""Twins with a probe's code, of kernels that end in many ways, judged by what nvdisasm and cuobjdump print."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping

import pytest

from neutrino import load_probes
from neutrino.backend.sass_probe_code import ProbeCode
from neutrino.errors import MachineCodeError
from neutrino.sass.cubin import read_cubin
from neutrino.sass.twin import control
from neutrino.sass.twin.cutting import Cutter
from neutrino.sass.twin.growing import Growth, code_of, grow
from neutrino.sass.twin.probed import probed_twin
from neutrino.sass.twin.trampolines import instruction_words
from neutrino.toolchain.tool_choice import find_assembler
from tests.sass_twin import leaving
from tests.sass_twin.listing import assemble, elf_dump, instructions, resources, tool
from tests.sass_twin.probed_listing import Code, Judge

_PLACES = re.compile(r"EIATTR_EXIT_INSTR_OFFSETS\s+Format:\s+\S+\s+Value:\s+((?:0x\w+ )+)")
_BLOCK = 40
"""Bytes of a probe block with one map."""


@pytest.fixture(scope="module")
def code() -> ProbeCode:
    tool("ptxas")
    return ProbeCode(load_probes(["block_sched"]), "sm_90", find_assembler())


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Cutter:
    return Cutter(assemble(leaving.module("sm_90"), "sm_90", tmp_path_factory.mktemp("leaving")), "leaving")


@pytest.fixture(scope="module")
def assembled(code, tmp_path_factory) -> Callable[[int, bool], tuple[Mapping[int, str], list[int]]]:
    """What nvdisasm prints of the code that ptxas made for a probe block at an offset, with the words."""
    folder = tmp_path_factory.mktemp("code")

    @functools.cache
    def listing(offset: int, frugal: bool) -> tuple[Mapping[int, str], list[int]]:
        cubin = assemble(code.text(offset, frugal=frugal), "sm_90", folder)
        (name,) = read_cubin(cubin, "code").kernels
        return instructions(cubin, name, folder), instruction_words(code_of(cubin, name, "code"))

    return listing


def _judged(original, count, listed, words, offset, assembled) -> list[list[str]]:
    """What is wrong with a twin, if its code is each of those that a kernel may get.

    original, listed: what nvdisasm prints of the kernel and of the twin. count: of the kernel's registers. words: of
    the twin. offset: of its probe block.
    """
    at = 16 + offset % 16
    return [
        Judge(original, listed, words, count).judge(Code.of(*assembled(at, frugal), offset - at, 0x210 + at))
        for frugal in (False, True)
    ]


@pytest.mark.parametrize("kernel", [*leaving.HAND_WRITTEN, *leaving.RANDOM])
def test_twins_read_as_they_should(kernel, ends, code, assembled, tmp_path):
    cut = ends.cut(kernel)
    twin = probed_twin(cut, kernel, "cut", code.at)
    original, listed = instructions(cut, kernel, tmp_path), instructions(twin.data, kernel, tmp_path)
    had, has = resources(cut, kernel, tmp_path), resources(twin.data, kernel, tmp_path)
    words = instruction_words(code_of(twin.data, kernel, "twin"))
    verdicts = _judged(original, had["REG"], listed, words, twin.parameter_offset, assembled)
    assert [] in verdicts, min(verdicts, key=len)
    # cuobjdump: the file says what its code says.
    found = _PLACES.search(elf_dump(twin.data, tmp_path))
    places = {place for place, line in listed.items() if re.search(r"\bEXIT\b", line)}
    assert found is not None
    assert {int(place, 16) for place in found[1].split()} == places
    named = {int(number) for line in listed.values() for number in re.findall(r"(?<![A-Z])R(\d+)", line)}
    assert has["REG"] >= max(named) + 3
    assert has == {**had, "REG": twin.registers, "CONSTANT[0]": 0x210 + twin.parameter_offset + _BLOCK}


def test_the_kernels_have_the_forms_that_hurt(ends, tmp_path):
    lines = {kernel: list(instructions(ends.cut(kernel), kernel, tmp_path).values())
             for kernel in (*leaving.HAND_WRITTEN[:-1], *leaving.RANDOM)}  # fmt: skip

    def count(pattern: str, kernels) -> int:
        return sum(bool(re.search(pattern, line)) for kernel in kernels for line in lines[kernel])

    assert count(r"^@!?P\d EXIT$", ["guarded"]) == 2
    assert count(r"^@!?P\d EXIT !?P\d$", lines) >= 3
    assert count(r"\bCALL", ["called"]) == 1
    assert count(r"\bHMMA", ["matrix"]) == 1
    assert count(r"\bBSSY", lines) >= 5
    assert count(r"\bEXIT", leaving.RANDOM) >= 20


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [("full", r"would need \d+ registers, over 255"), ("crowded", r"too many for 1024 threads")],
)
def test_kernels_without_room(kernel, reason, ends, code):
    with pytest.raises(MachineCodeError, match=reason):
        probed_twin(ends.cut(kernel), kernel, "cut", code.at)


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [("printed", "calls vprintf"), ("nothing", "has its parameters at 0x0")],
)
def test_kernels_that_are_left_alone(kernel, reason, whole, code):
    with pytest.raises(MachineCodeError, match=reason):
        probed_twin(Cutter(whole, "whole").cut(kernel), kernel, "cut", code.at)


@pytest.mark.parametrize(
    ("index", "change", "reason"),
    [
        (5, lambda word: word | 0xFFF, r"an instruction at 0x50 that the table of sm_90 lacks"),
        (0, lambda word: word & ~(0xFF << 16) | 4 << 16, r"begins with LDC, not by setting the stack's address"),
        (5, lambda word: control.branch(0x50, 0), r"comes back to its first instruction from 0x50"),
        (5, lambda word: 0x3900000000000000000794D | word >> 105 << 105, r"ends threads by EXIT"),
    ],
)
def test_code_that_is_left_alone(index, change, reason, ends, code):
    cut = ends.cut("guarded")
    words = instruction_words(code_of(cut, "guarded", "cut"))
    words[index] = change(words[index])
    changed = grow(cut, Growth(b"".join(word.to_bytes(16, "little") for word in words)), "cut").data
    with pytest.raises(MachineCodeError, match=reason):
        probed_twin(changed, "guarded", "changed", code.at)


@pytest.mark.parametrize("kernel", ["reversed", "divided", "asserted", "switched"])
def test_other_kernels(kernel, whole, code, assembled, tmp_path):
    cut = Cutter(whole, "whole").cut(kernel)
    twin = probed_twin(cut, kernel, "cut", code.at)
    original, listed = instructions(cut, kernel, tmp_path), instructions(twin.data, kernel, tmp_path)
    count = read_cubin(cut, "cut").kernels[kernel].registers
    words = instruction_words(code_of(twin.data, kernel, "twin"))
    verdicts = _judged(original, count, listed, words, twin.parameter_offset, assembled)
    assert [] in verdicts, min(verdicts, key=len)


def _changed(word: int, low: int, bits: int, value: int) -> int:
    mask = (1 << bits) - 1
    return word & ~(mask << low) | value << low


def test_the_judge_sees_what_is_wrong(ends, code, assembled, tmp_path):
    kernel = "guarded"
    cut = ends.cut(kernel)
    original, count = instructions(cut, kernel, tmp_path), read_cubin(cut, "cut").kernels[kernel].registers
    twin = probed_twin(cut, kernel, "cut", code.at)
    words = instruction_words(code_of(twin.data, kernel, "twin"))
    listed = instructions(twin.data, kernel, tmp_path)
    first = min(twin.exits.values())
    inside = {place: line for place, line in listed.items() if place >= first}

    def at(pattern: str) -> int:
        return next(place for place, line in inside.items() if re.search(pattern, line)) // 16

    store, clock, lanes, back = at(r"STG"), at(r"CS2R\.32"), at(r"^S2R .*SR_TID\.X"), at(r"^@!?P\d BRA")
    multiply, pair = at(r"UIMAD"), at(r"ULDC\.64")
    faults = {
        "a register of the kernel's": (clock, _changed(words[clock], 16, 8, 4)),
        "another register": (store, words[store] ^ 1 << 24),
        "a wait dropped": (multiply, _changed(words[multiply], 116, 6, 0)),
        "a uniform register for two values": (pair, _changed(words[pair], 16, 6, words[multiply] >> 16 & 62)),
        "a shorter stall": (at(r"IADD3\.X"), _changed(words[at(r"IADD3\.X")], 105, 4, 1)),
        "an instruction lost": (lanes, words[at(r"^NOP$")]),
        "all lanes go back": (back, _changed(words[back], 12, 4, 7)),
        "those that leave go back": (back, words[back] ^ 1 << 15),
        "an operand kept": (at(r"IADD3\.X"), words[at(r"IADD3\.X")] | 1 << 122),
        "another constant": (at(r"LDC\.64"), words[at(r"LDC\.64")] ^ 8 << 38),
    }
    for name, (index, word) in faults.items():
        wrong = [*words[:index], word, *words[index + 1 :]]
        data = grow(twin.data, Growth(b"".join(each.to_bytes(16, "little") for each in wrong)), "wrong").data
        reads = instructions(data, kernel, tmp_path)
        assert [] not in _judged(original, count, reads, wrong, twin.parameter_offset, assembled), name


@pytest.mark.parametrize("frugal", [False, True])
def test_each_part_reads_its_own_clock(frugal, assembled):
    code = Code.of(*assembled(16, frugal), 0, 0x220)
    for part in (code.entry, code.exit):
        assert sum("SR_CLOCK" in text for text, _ in part) == 1
    assert sum("STG" in text for text, _ in code.exit) == 1
    uniform = {token for text, _ in code.exit for token in re.findall(r"\bUR\d+", text)}
    assert len(uniform) <= 2 if frugal else len(uniform) > 2


def test_the_same_code_for_kernels_with_other_parameters(ends, whole, code):
    code.at(16)
    before = len(code._lifted)
    for cutter, kernel in ((ends, "guarded"), (ends, "both"), (Cutter(whole, "whole"), "asserted")):
        probed_twin(cutter.cut(kernel), kernel, "cut", code.at)
    # By the remainder of the probe block's offset and 16: one more at most.
    assert len(code._lifted) <= before + 1
    assert {offset % 8 for offset in code._lifted} == {0}


@pytest.mark.parametrize(
    ("probe", "reason"),
    [("gmem_bytes", "is at instructions"), ("launch_skew", "which is not put into kernels|lanes may see differently")],
)
def test_probes_that_are_not_put_into_machine_code(probe, reason):
    tool("ptxas")
    with pytest.raises(MachineCodeError, match=reason):
        ProbeCode(load_probes([probe]), "sm_90", find_assembler()).at(16)
