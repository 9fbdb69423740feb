"""Twins for sm_80, by the judges and the mutants of those for sm_90: what nvdisasm prints of them, and that the checker
refuses what is wrong. No GPU of that architecture has run any."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from neutrino import load_probes
from neutrino.backend.sass_probe_code import ProbeCode
from neutrino.errors import MachineCodeError
from neutrino.sass.cubin import read_cubin
from neutrino.sass.decoder import decode
from neutrino.sass.fields import ALWAYS, GUARD, NEGATED, OPCODE, STALL, WAIT, WRITE_BARRIER, Field
from neutrino.sass.twin.checking import check_code, check_cubin
from neutrino.sass.twin.constant_reads import constant_reads
from neutrino.sass.twin.cutting import Cutter
from neutrino.sass.twin.growing import Growth, code_of, grow
from neutrino.sass.twin.hazards import hazards
from neutrino.sass.twin.instruction_rules import Surroundings
from neutrino.sass.twin.probed import probed_twin
from neutrino.sass.twin.trampolines import instruction_words
from neutrino.toolchain.tool_choice import find_assembler
from tests.sass_twin import leaving, test_inserted, test_sums
from tests.sass_twin.listing import KERNELS, PTX, assemble, elf_dump, instructions, resources, tool
from tests.sass_twin.probed_listing import Code, Judge
from tests.sass_twin.reused_listing import ReusedJudge

ARCH, SM = "sm_80", 80
_BASE, _BLOCK = 0x160, 40
"""Where parameters begin in constant bank 0, and the bytes of a probe block with one map."""
_OFFSET, _BANK, _COMPARISON = Field(38, 16), Field(54, 5), Field(76, 3)
_GREATER = 4


def _waited_at_once(twin: test_inserted.Twin) -> None:
    at = twin.find("S2UR")
    twin.put(at + 1, WAIT, 1 << WRITE_BARRIER.get(twin.words[at]))


def _two_values(twin: test_inserted.Twin) -> None:
    one, other = twin.find("ULDC.64"), twin.find("S2UR")
    number = twin.place(one, 0, **test_inserted.UNIFORM).field.get(twin.words[one])
    twin.register(other, 0, number, **test_inserted.UNIFORM)


def _field(name: str, field: Field, value: int, nth: int = 0) -> Callable[[test_inserted.Twin], None]:
    return lambda twin: twin.put(twin.find(name, nth=nth), field, value)


_UNBOUNDED = "under no bound from the probe block"
MUTANTS: dict[str, tuple[Callable[[test_inserted.Twin], None], str]] = {
    **test_inserted.MUTANTS,
    # The code for sm_80 has constants as operands, and fewer uniform registers.
    "a wait dropped for a uniform register": (_field("MOV", WAIT, 0), "before its scoreboard says"),
    "stall 1 before a wait": (_waited_at_once, "in the cycle after it was taken"),
    "a guard's latency one short": (_field("ISETP.NE.U32.AND.EX", STALL, 12), "12 cycles after ISETP, not 13"),
    "a product's latency one short": (_field("SEL", STALL, 4), "4 cycles after SEL, not 5"),
    "a kernel's uniform register written": (
        lambda twin: twin.register(twin.find("ULDC.64"), 0, 4, **test_inserted.UNIFORM),
        "UR4, UR5 is written, which the kernel names",
    ),
    "two values in one uniform register": (_two_values, "gets two values"),
    "a guard of the wrong file": (_field("ULDC.64", GUARD, 0), "guarded by a uniform predicate"),
    "a store without a guard": (_field("STG.E.128", GUARD, ALWAYS), _UNBOUNDED),
    "a store under another predicate": (_field("STG.E.128", GUARD, 2), _UNBOUNDED),
    "a store under the opposite": (_field("STG.E.128", NEGATED, 1), _UNBOUNDED),
    "a bound and its number exchanged": (_field("ISETP.LT.U32.AND", _COMPARISON, _GREATER), _UNBOUNDED),
    "a bound that was not loaded": (_field("ISETP.LT.U32.AND", _OFFSET, 0x8), _UNBOUNDED),
    "a parameter of the program read": (_field("IMAD", _OFFSET, _BASE, 4), "neither the driver's nor"),
    "a constant beyond the probe block": (_field("IMAD", _OFFSET, _BASE + 64, 4), "neither the driver's nor"),
    "a constant of the module": (_field("IMAD", _BANK, 3, 4), "neither the driver's nor"),
}  # fmt: skip
# Nothing there is so close to what it needs.
del MUTANTS["a vote's latency one short"]
del MUTANTS["a uniform product's latency one short"]
del MUTANTS["a kernel's register written at once"]


@pytest.fixture(scope="module")
def sched() -> ProbeCode:
    tool("ptxas")
    return ProbeCode(load_probes(["block_sched"]), ARCH, find_assembler())


@pytest.fixture(scope="module")
def uncut(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return assemble(leaving.module(ARCH), ARCH, tmp_path_factory.mktemp("leaving"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return assemble(PTX.read_text().replace(".target sm_90", f".target {ARCH}"), ARCH, tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("kernel", [*leaving.HAND_WRITTEN, *leaving.RANDOM])
def test_twins_read_as_they_should(kernel, uncut, sched, tmp_path):
    cut = Cutter(uncut, "leaving").cut(kernel)
    twin = probed_twin(cut, kernel, "cut", sched.at)
    original, listed = instructions(uncut, kernel, tmp_path), instructions(twin.data, kernel, tmp_path)
    had, has = resources(cut, kernel, tmp_path), resources(twin.data, kernel, tmp_path)
    words = instruction_words(code_of(twin.data, kernel, "twin"))
    at = 16 + twin.parameter_offset % 16
    verdicts = []
    for frugal in (False, True):
        cubin = assemble(sched.text(at, frugal=frugal), ARCH, tmp_path)
        (name,) = read_cubin(cubin, "code").kernels
        made = instructions(cubin, name, tmp_path), instruction_words(code_of(cubin, name, "code"))
        for judge in (Judge, ReusedJudge):
            code = Code.of(*made, twin.parameter_offset - at, _BASE + at)
            verdicts.append(judge(original, listed, words, had["REG"]).judge(code))
    assert [] in verdicts, min(verdicts, key=len)
    assert has == {**had, "REG": twin.registers, "CONSTANT[0]": _BASE + twin.parameter_offset + _BLOCK}
    # The code reads the block's third index, which a cubin of this architecture has to say.
    assert "EIATTR_CTAIDZ_USED" in elf_dump(twin.data, tmp_path)


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants(name, whole, sched):
    cut = Cutter(whole, "whole").cut(test_inserted.KERNEL)
    made = probed_twin(cut, test_inserted.KERNEL, "cut", sched.at)
    original, changed = (code_of(data, test_inserted.KERNEL, "cubin") for data in (cut, made.data))
    twin = test_inserted.twin_of(original, changed, made.exits, made.entry, SM)
    around = Surroundings(10, (_BASE + 24, _BASE + 64), _BASE, sm=SM)
    assert check_code(original, changed, around, SM) == []
    change, rule = MUTANTS[name]
    change(twin)
    found = check_code(original, b"".join(word.to_bytes(16, "little") for word in twin.words), around, SM)
    assert any(re.search(rule, finding.rule) for finding in found), found


def test_a_cubin_that_does_not_say_that_the_third_index_is_read(whole, sched):
    cut = Cutter(whole, "whole").cut("reversed")
    twin = probed_twin(cut, "reversed", "cut", sched.at)
    code = code_of(twin.data, "reversed", "twin")
    words = instruction_words(code)
    moved = {
        site: 16 * next(at for at in range(place // 16, len(words)) if OPCODE.get(words[at]) == 0x94D)
        for site, place in twin.exits.items()
    }  # fmt: skip
    said = grow(cut, Growth(code, twin.registers, _BLOCK, 8, moved, third_index=True), "cut").data
    assert said == twin.data
    silent = grow(cut, Growth(code, twin.registers, _BLOCK, 8, moved), "cut").data
    rules = [finding.rule for finding in check_cubin(cut, silent, "reversed", "twin")]
    assert rules == ["inserted code reads the block's third index, and no attribute says so"]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Cutter:
    text = test_sums.SOURCE.read_text().replace(".target sm_90", f".target {ARCH}")
    text += "".join(test_sums.random_kernel(f"random{seed}", seed) for seed in range(test_sums.RANDOM))
    return Cutter(assemble(text, ARCH, tmp_path_factory.mktemp("kernels")), "kernels")


@pytest.mark.parametrize("kernel", [*test_sums.KERNELS, *(f"random{seed}" for seed in range(test_sums.RANDOM))])
def test_each_access_adds_its_bytes(kernel, kernels, tmp_path):
    code = ProbeCode(load_probes(["gmem_bytes"]), ARCH, find_assembler())
    judge = test_sums.Judge(*test_sums.read(kernels, code, kernel, tmp_path))
    assert judge.judge() == []
    assert judge.accesses > 1


def test_code_at_accesses_is_refused():
    tool("ptxas")
    with pytest.raises(MachineCodeError, match="only machine code from sm_90 on can have yet"):
        ProbeCode(load_probes(["dmat"]), ARCH, find_assembler())


def test_kernels_of_ptxas_break_no_rule(whole, uncut):
    for data in (whole, uncut):
        for name, kernel in read_cubin(data, "kernels").kernels.items():
            assert hazards(decode(kernel.code, SM, name)) == [], name


def test_constants_that_nvdisasm_prints(whole, tmp_path):
    count = 0
    for kernel in (*KERNELS, "counted", "scaled"):
        listed = instructions(whole, kernel, tmp_path)
        code = read_cubin(whole, "whole").kernels[kernel].code
        printed = {
            place: (int(found[1], 16), int(found[2], 16))
            for place, line in listed.items() if (found := re.search(r"\bc\[(0x[1-9a-f]+)\]\[(0x[0-9a-f]+)\]", line))
        }  # fmt: skip
        read = {one.place: (one.bank, one.offset) for one in constant_reads(code) if not one.by_register}
        assert read == printed
        count += len(printed)
    assert count > 4


def test_parameters_of_more_than_four_kilobytes(sched, tmp_path):
    # They begin elsewhere in the constant bank.
    text = f""".version 8.1
.target {ARCH}
.address_size 64
.visible .entry k(.param .align 8 .b8 many[5000])
{{
    .reg .b64 %rd<2>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [many+4992];
    ld.param.u32 %r1, [many+4000];
    st.global.u32 [%rd1], %r1;
    ret;
}}
"""
    cut = Cutter(assemble(text, ARCH, tmp_path), "k").cut("k")
    base = read_cubin(cut, "k").kernels["k"].parameter_base
    assert base != _BASE
    twin = probed_twin(cut, "k", "cut", sched.at)
    assert twin.parameter_offset == 5000
    listed = instructions(twin.data, "k", tmp_path)
    read = {int(at, 16) for line in listed.values() for at in re.findall(r"c\[0x0\]\[(0x\w+)\]", line)}
    assert {at - base - 5000 for at in read if at >= base + 5000} == {0, 4, 16, 20, 24, 28}
