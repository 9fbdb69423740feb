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
from neutrino.sass.decoder import decode
from neutrino.sass.fields import OPCODE
from neutrino.sass.instruction import RegisterFile
from neutrino.sass.twin import control
from neutrino.sass.twin.checking import check_cubin
from neutrino.sass.twin.cutting import Cutter
from neutrino.sass.twin.free_registers import PRESERVED, PRESERVED_UNIFORM
from neutrino.sass.twin.growing import Growth, code_of, grow
from neutrino.sass.twin.probed import probed_twin
from neutrino.sass.twin.trampolines import instruction_words
from neutrino.toolchain.tool_choice import find_assembler
from tests.sass_twin import leaving
from tests.sass_twin.listing import assemble, elf_dump, instructions, resources, tool
from tests.sass_twin.probed_listing import Code, Judge
from tests.sass_twin.reused_listing import ReusedJudge

_PLACES = re.compile(r"EIATTR_EXIT_INSTR_OFFSETS\s+Format:\s+\S+\s+Value:\s+((?:0x\w+ )+)")
_BLOCK = 40
"""Bytes of a probe block with one map."""


@pytest.fixture(scope="module")
def code() -> ProbeCode:
    tool("ptxas")
    return ProbeCode(load_probes(["block_sched"]), "sm_90", find_assembler())


@pytest.fixture(scope="module")
def uncut(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The cubin of all kernels of ``leaving.py``: one listing has all originals."""
    return assemble(leaving.module("sm_90"), "sm_90", tmp_path_factory.mktemp("leaving"))


@pytest.fixture(scope="module")
def ends(uncut: bytes) -> Cutter:
    return Cutter(uncut, "leaving")


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
        judge(original, listed, words, count).judge(Code.of(*assembled(at, frugal), offset - at, 0x210 + at))
        for frugal in (False, True) for judge in (Judge, ReusedJudge)
    ]  # fmt: skip


@pytest.mark.parametrize("kernel", [*leaving.HAND_WRITTEN, *leaving.RANDOM])
def test_twins_read_as_they_should(kernel, uncut, ends, code, assembled, tmp_path):
    cut = ends.cut(kernel)
    twin = probed_twin(cut, kernel, "cut", code.at)
    original, listed = instructions(uncut, kernel, tmp_path), instructions(twin.data, kernel, tmp_path)
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


def test_the_kernels_have_the_forms_that_hurt(uncut, tmp_path):
    lines = {kernel: list(instructions(uncut, kernel, tmp_path).values())
             for kernel in (*leaving.HAND_WRITTEN[:-1], *leaving.RANDOM)}  # fmt: skip

    def count(pattern: str, kernels) -> int:
        return sum(bool(re.search(pattern, line)) for kernel in kernels for line in lines[kernel])

    assert count(r"^@!?P\d EXIT$", ["guarded"]) == 2
    assert count(r"^@!?P\d EXIT !?P\d$", lines) >= 3
    assert count(r"\bCALL", ["called"]) == 1
    assert count(r"\bHMMA", ["matrix"]) == 1
    assert count(r"\bBSSY", lines) >= 5
    assert count(r"\bEXIT", leaving.RANDOM) >= 20


def test_a_function_of_the_driver_that_comes_back(whole, code, assembled, tmp_path):
    cut = Cutter(whole, "whole").cut("printed")
    twin = probed_twin(cut, "printed", "cut", code.at)
    original, listed = instructions(cut, "printed", tmp_path), instructions(twin.data, "printed", tmp_path)
    had = resources(cut, "printed", tmp_path)["REG"]
    words = instruction_words(code_of(twin.data, "printed", "twin"))
    verdicts = _judged(original, had, listed, words, twin.parameter_offset, assembled)
    assert [] in verdicts, min(verdicts, key=len)
    assert not check_cubin(cut, twin.data, "printed", "twin")
    # A function of the driver may change UR30, in which the clock would be: R2UR puts it there.
    at = next(index for index in range(twin.entry // 16, len(words)) if OPCODE.get(words[index]) == 0x2CA)
    changed = [*words[:at], _changed(words[at], 16, 6, 30), *words[at + 1 :]]
    moved = {site: 16 * _first_exit(words, place // 16) for site, place in twin.exits.items()}
    growth = Growth(b"".join(word.to_bytes(16, "little") for word in changed), twin.registers, _BLOCK, 8, moved)
    rules = [finding.rule for finding in check_cubin(cut, grow(cut, growth, "cut").data, "printed", "twin")]
    assert any(re.search("UR30 may be changed by a function of the driver", rule) for rule in rules), rules
    other, gone = (data.replace(b"\0vprintf\0", b"\0vprints\0") for data in (cut, twin.data))
    with pytest.raises(MachineCodeError, match="calls vprints, which may use registers"):
        probed_twin(other, "printed", "cut", code.at)
    assert "the kernel calls vprints, whose registers are not known" in [
        finding.rule for finding in check_cubin(other, gone, "printed", "twin")
    ]


def _first_exit(words: list[int], start: int) -> int:
    return next(index for index in range(start, len(words)) if OPCODE.get(words[index]) == 0x94D)


_KEPT = """.version 8.0
.target sm_90
.address_size 64
.extern .func (.param .b32 of) vprintf(.param .b64 text, .param .b64 values);
.global .align 1 .b8 text[4] = {{37, 100, 10, 0}};
.visible .entry kept(.param .u64 a, .param .align 4 .b8 b[512])
{{
    .reg .b64 %rd<8>;
    .reg .b32 %r<400>;
    ld.param.u64 %rd2, [a];
    {before}
    {{
        .param .b64 p;
        .param .b64 q;
        .param .b32 of;
        mov.u64 %rd3, text;
        cvta.global.u64 %rd4, %rd3;
        mov.u64 %rd5, 0;
        st.param.b64 [p], %rd4;
        st.param.b64 [q], %rd5;
        call (of), vprintf, (p, q);
    }}
    {after}
    ret;
}}
"""


@pytest.mark.parametrize("uniform", [False, True])
def test_what_ptxas_keeps_over_such_calls(uniform, tmp_path):
    """The registers from which on a function of the driver changes none, as ptxas relies on it."""
    count = 40 if uniform else 150
    value = ("ld.param.u32 %r{0}, [b+{1}]; mul.lo.u32 %r{0}, %r{0}, %r{0};" if uniform
             else "ld.volatile.global.u32 %r{0}, [%rd2+{1}];")  # fmt: skip
    before = "\n".join(value.format(10 + one, 4 * one) for one in range(count))
    after = "\n".join(f"st.volatile.global.u32 [%rd2+{4 * one}], %r{10 + one};" for one in range(count))
    cubin = assemble(_KEPT.format(before=before, after=after), "sm_90", tmp_path)
    code = decode(code_of(cubin, "kept", "kept"), 90)
    call = next(index for index in range(len(code)) if code[index].name.startswith("CALL.ABS"))
    file = RegisterFile.UNIFORM if uniform else RegisterFile.GENERAL
    read: set[int] = set()
    written: set[int] = set()
    for one in code[call + 1 :]:
        read |= {number for of, number in one.reads() if of is file} - written
        written |= {number for of, number in one.writes() if of is file}
        if one.name == "EXIT":
            break
    first = PRESERVED_UNIFORM if uniform else PRESERVED
    assert set(range(first, first + 20)) <= read
    # And below only some.
    assert len({number for number in read if number < first}) < first // 2


def test_a_kernel_without_parameters(whole, code, assembled, tmp_path):
    cut = Cutter(whole, "whole").cut("nothing")
    twin = probed_twin(cut, "nothing", "cut", code.at)
    original, listed = instructions(cut, "nothing", tmp_path), instructions(twin.data, "nothing", tmp_path)
    had, has = resources(cut, "nothing", tmp_path), resources(twin.data, "nothing", tmp_path)
    words = instruction_words(code_of(twin.data, "nothing", "twin"))
    assert [] in _judged(original, had["REG"], listed, words, 0, assembled)
    assert has == {**had, "REG": twin.registers, "CONSTANT[0]": 0x210 + _BLOCK}


@pytest.mark.parametrize(
    ("index", "change", "reason"),
    [
        (5, lambda word: word | 0xFFF, r"an instruction at 0x50 that the table of sm_90 lacks"),
        (0, lambda word: word & ~(0xFF << 16) | 4 << 16, r"begins with LDC, not by setting the stack's address"),
        (5, lambda word: control.branch(0x50, 0, 90), r"comes back to its first instruction from 0x50"),
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
    [
        ("branch_divergence", "of which machine code does not tell"),
        ("value_watch", "runs after an instruction"),
    ],
)
def test_probes_that_are_not_put_into_machine_code(probe, reason):
    tool("ptxas")
    with pytest.raises(MachineCodeError, match=reason):
        ProbeCode(load_probes([probe]), "sm_90", find_assembler()).at(16)
