"""Probe code in a kernel's own registers, read by nvdisasm; each kind of mutant is refused by the rule that it breaks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import pytest

from neutrino import load_probes
from neutrino.backend.sass_probe_code import ProbeCode
from neutrino.errors import MachineCodeError
from neutrino.sass.cubin import read_cubin
from neutrino.sass.decoder import decode
from neutrino.sass.fields import OPCODE, STALL, WAIT, Field
from neutrino.sass.twin.checking import check_code
from neutrino.sass.twin.control import LONGEST_STALL, nop
from neutrino.sass.twin.cutting import Cutter
from neutrino.sass.twin.growing import code_of
from neutrino.sass.twin.instruction_rules import Surroundings
from neutrino.sass.twin.probed import ProbedTwin, probed_twin
from neutrino.sass.twin.trampolines import instruction_words
from neutrino.toolchain.tool_choice import find_assembler
from tests.sass_twin import leaving
from tests.sass_twin.listing import PTX, assemble, instructions, resources, tool
from tests.sass_twin.probed_listing import Code
from tests.sass_twin.reused_listing import ReusedJudge

_DESTINATION, _SOURCE, _SPECIAL = Field(16, 8), Field(24, 8), Field(72, 8)
_CS2R, _S2R, _R2UR, _MOV, _HMMA = 0x805, 0x919, 0x2CA, 0xC02, 0x23C
_BLOCK = 40


def _moving() -> str:
    """A kernel that moves registers between its warps."""
    text = PTX.read_text().replace(".target sm_90", ".target sm_90a")
    text = text.replace("reversed_param_2\n)", "reversed_param_2\n)\n.reqntid 128, 1, 1\n.minnctapersm 1")
    return text.replace("bar.sync \t0;", "bar.sync \t0;\n\tsetmaxnreg.dec.sync.aligned.u32 24;", 1)


@pytest.fixture(scope="module")
def cuts(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, bytes]:
    """``summed`` has too many registers for its block, ``reversed`` moves them."""
    folder = tmp_path_factory.mktemp("reusing")
    return {
        "summed": Cutter(assemble(leaving.module("sm_90"), "sm_90", folder), "summed").cut("summed"),
        "reversed": Cutter(assemble(_moving(), "sm_90a", folder), "moving").cut("reversed"),
    }


@pytest.fixture(scope="module")
def codes() -> Mapping[str, ProbeCode]:
    tool("ptxas")
    probes = load_probes(["block_sched"])
    architectures = {"summed": "sm_90", "reversed": "sm_90a"}
    return {kernel: ProbeCode(probes, arch, find_assembler()) for kernel, arch in architectures.items()}


@pytest.fixture(scope="module")
def twins(cuts, codes) -> Mapping[str, ProbedTwin]:
    return {kernel: probed_twin(cut, kernel, "cut", codes[kernel].at) for kernel, cut in cuts.items()}


@pytest.mark.parametrize("kernel", ["summed", "reversed"])
def test_twins_read_as_they_should(kernel, cuts, codes, twins, tmp_path):
    twin, cut = twins[kernel], cuts[kernel]
    original, listed = instructions(cut, kernel, tmp_path), instructions(twin.data, kernel, tmp_path)
    had, has = resources(cut, kernel, tmp_path), resources(twin.data, kernel, tmp_path)
    words = instruction_words(code_of(twin.data, kernel, "twin"))
    offset = twin.parameter_offset
    at = 16 + offset % 16
    verdicts = []
    for frugal in (False, True):
        cubin = assemble(codes[kernel].text(at, frugal=frugal), codes[kernel].arch, tmp_path)
        (name,) = read_cubin(cubin, "code").kernels
        code = Code.of(instructions(cubin, name, tmp_path), instruction_words(code_of(cubin, name, "code")),
                       offset - at, 0x210 + at)  # fmt: skip
        verdicts.append(ReusedJudge(original, listed, words, had["REG"]).judge(code))
    assert [] in verdicts, min(verdicts, key=len)
    # Not one register more.
    assert has == {**had, "CONSTANT[0]": 0x210 + offset + _BLOCK}


def test_a_kernel_without_registers_of_its_own(codes, tmp_path):
    # Their stores read nearly all of them, without a scoreboard.
    cutter = Cutter(assemble(leaving.module("sm_90"), "sm_90", tmp_path), "leaving")
    with pytest.raises(MachineCodeError, match=r"over 255; and has \d+ registers of its own left for"):
        probed_twin(cutter.cut("full"), "full", "cut", codes["summed"].at)
    with pytest.raises(MachineCodeError, match="too many for 1024 threads"):
        probed_twin(cutter.cut("crowded"), "crowded", "cut", codes["summed"].at)


def test_sums_are_above_the_kernels_registers(cuts, tmp_path):
    code = ProbeCode(load_probes(["gmem_bytes"]), "sm_90", find_assembler())
    cut = cuts["summed"]
    twin = code.twin_of(cut, "summed", "cut")
    had, has = resources(cut, "summed", tmp_path)["REG"], resources(twin.data, "summed", tmp_path)["REG"]
    # Two sums, loads and stores, of two registers each, and what holds 1.
    assert len(twin.sums) == 2
    assert had < has <= 64
    listed = instructions(twin.data, "summed", tmp_path)
    sums = {register + more for register in twin.sums.values() for more in range(2)}
    assert min(sums) >= had - 2
    begin = min(twin.exits.values())
    end = next(place for place, line in sorted(listed.items()) if place > begin and line == "EXIT")
    lines = [line for place, line in listed.items() if begin <= place < end]
    assert sums <= {int(number) for line in lines for number in re.findall(r"^MOV R\d+, R(\d+)$", line)}
    others = {int(number) for line in lines for number in re.findall(r"(?<![A-Z])R(\d+)", line)} - sums
    assert others
    assert max(others) < had - 2
    assert 1 not in others


class _Changed:
    """A twin's words to be changed. entry, one: where the entry's and an EXIT's trampoline begin."""

    def __init__(self, cut: bytes, kernel: str, twin: ProbedTwin) -> None:
        self.original = code_of(cut, kernel, "cut")
        self.made = code_of(twin.data, kernel, "twin")
        self.words = instruction_words(self.made)
        self.entry = twin.entry // 16
        self.one = max(twin.exits.values()) // 16
        self.around = Surroundings(
            read_cubin(cut, "cut").kernels[kernel].registers,
            (0x210 + twin.parameter_offset, 0x210 + twin.parameter_offset + _BLOCK), 0x210,
        )  # fmt: skip

    def find(self, opcode: int, *, entry: bool = False, nth: int = 0) -> int:
        start = self.entry if entry else self.one
        return [at for at in range(start, len(self.words)) if OPCODE.get(self.words[at]) == opcode][nth]

    def put(self, at: int, field: Field, value: int) -> None:
        self.words[at] = field.put(self.words[at], value)

    def rules(self) -> list[str]:
        changed = b"".join(word.to_bytes(16, "little") for word in self.words)
        return [finding.rule for finding in check_code(self.original, changed, self.around)]


def _without_waits(twin: _Changed) -> None:
    """Nothing under way is waited for, neither ahead nor by the first reads of the code itself."""
    for at in range(twin.one, twin.one + 3):
        twin.put(at, WAIT, 0)


def _without_cycles(twin: _Changed) -> None:
    """A register that a matrix product writes is used at once."""
    for at in range(twin.one, twin.one + 3):
        twin.put(at, STALL, 1)
    product = next((word for word in instruction_words(twin.original) if OPCODE.get(word) == _HMMA), None)
    if product is not None:
        twin.put(twin.find(_MOV), _DESTINATION, _DESTINATION.get(product))


def _at_the_entry(opcode: int, field: Field, value: int) -> Callable[[_Changed], None]:
    return lambda twin: twin.put(twin.find(opcode, entry=True), field, value)


def _at_the_exit(opcode: int, field: Field, value: int) -> Callable[[_Changed], None]:
    return lambda twin: twin.put(twin.find(opcode), field, value)


def _moved_late(twin: _Changed) -> None:
    """A value of lanes goes into a uniform register where they end."""
    twin.words[twin.find(_MOV)] = twin.words[twin.find(_R2UR, entry=True)]


def _another_value(twin: _Changed) -> None:
    """What goes into a uniform register at the entry is no clock."""
    at = twin.find(_CS2R, entry=True)
    twin.words[at] = _SPECIAL.put(_DESTINATION.put(twin.words[twin.find(_S2R)], _DESTINATION.get(twin.words[at])), 0x21)


def _kept_in_general(twin: _Changed) -> None:
    """The exit relies on what the entry left in a register of the kernel's."""
    for nth in (1, 0):
        twin.words[twin.find(_MOV, nth=nth)] = nop() | LONGEST_STALL << 105


def _early(twin: _Changed) -> None:
    """The kernel goes on right after the clock was read."""
    at = twin.find(_CS2R, entry=True)
    for number in range(at, at + 3):
        twin.put(number, STALL, 1)


MUTANTS: Mapping[str, tuple[Callable[[_Changed], None], str]] = {
    "results under way are not waited for": (_without_waits, "under way|before it has been read"),
    "no cycles for results of fixed latency": (_without_cycles, "is used [0-9]+ cycles after"),
    "the clock is used too early": (_early, "cycles after CS2R|cycles before it goes on"),
    "the stack's address at the entry": (_at_the_entry(_CS2R, _DESTINATION, 0), "R1 is the kernel's"),
    "the stack's address at an exit": (_at_the_exit(_MOV, _DESTINATION, 1), "R1 is the kernel's"),
    "a uniform register gets a value where lanes end": (_moved_late, "is written by R2UR, in which groups"),
    "a uniform register gets another value": (_another_value, "gets what lanes may see differently"),
    "a uniform register of the kernel's": (_at_the_entry(_R2UR, Field(16, 6), 4), "UR4 is written, which the kernel"),
    "another register is moved": (_at_the_entry(_R2UR, _SOURCE, 2), "R2 is read, which no inserted code has written"),
    "what was left in a register of the kernel's": (_kept_in_general, "is read, which no inserted code has written"),
    "a register above the count of a warp": (_at_the_exit(_MOV, _DESTINATION, 24), "may be another warp's"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants(name, cuts, twins):
    change, rule = MUTANTS[name]
    seen = []
    for kernel in ("summed", "reversed"):
        twin = _Changed(cuts[kernel], kernel, twins[kernel])
        assert twin.rules() == []
        change(twin)
        seen += twin.rules()
    assert any(re.search(rule, one) for one in seen), seen


def test_code_at_accesses_has_none_of_the_kernels_registers(cuts, tmp_path):
    code = ProbeCode(load_probes(["gmem_bytes"]), "sm_90", find_assembler())
    cut = Cutter(assemble(PTX.read_text(), "sm_90", tmp_path), "whole").cut("divided")
    twin = code.twin_of(cut, "divided", "cut")
    original, words = code_of(cut, "divided", "cut"), instruction_words(code_of(twin.data, "divided", "twin"))
    at = min(twin.accesses.values()) // 16
    assert decode(code_of(twin.data, "divided", "twin"), 90)[at].name.startswith("IMAD.WIDE")
    words[at] = Field(64, 8).put(_DESTINATION.put(words[at], 2), 2)
    around = Surroundings(18, (0x210 + twin.parameter_offset, 0x210 + twin.parameter_offset + 64), 0x210)
    changed = b"".join(word.to_bytes(16, "little") for word in words)
    rules = [finding.rule for finding in check_code(original, changed, around)]
    assert any("R2, R3 is the kernel's" in rule for rule in rules), rules
