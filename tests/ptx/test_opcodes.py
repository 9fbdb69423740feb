"""The table of opcodes against ptxas: instructions of every row, probed with every helper that they have."""

from __future__ import annotations

import re
from bisect import bisect_right
from pathlib import Path

import pytest
from isa_examples import EXAMPLES
from machine import ptxas_version, refused_lines, run_ptxas
from ptx_text import array

from neutrino import opcode_rows
from neutrino.cli import probe
from neutrino.probing.model import CLASSES
from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.instrument.registers import Scratch, UnsupportedError
from neutrino.ptx.instrument.site_values import SiteOperands
from neutrino.ptx.isa.instruction import read_instruction
from neutrino.ptx.isa.opcodes import FIRST_PARTS, OPCODES, Measure, find
from neutrino.ptx.text.body import Body
from neutrino.ptx.text.module import parse
from neutrino.verification import load_probe_file


def _number(arch: str) -> int:
    return int(arch[3:].rstrip("af"))


_ARCHITECTURES = tuple(dict.fromkeys(arch for arch, _, _ in EXAMPLES))
_REGISTERS = (
    ".reg .pred %p<8>; .reg .b16 %h<16>; .reg .b32 %r<140>; .reg .f32 %f<140>;\n"
    ".reg .b64 %rd<16>; .reg .f64 %d<16>; .shared .align 128 .b8 smem[256];"
)
_VERSIONS = [(6, 3), (6, 4), (6, 5), *((7, minor) for minor in range(9)), *((8, minor) for minor in range(9)), (9, 0)]
_FIRST = tuple(dict.fromkeys(row.architecture if _number(row.architecture) > 75 else "sm_75" for row in OPCODES))
# The first version of PTX with an architecture, and an architecture before it.
_FLOORS = ((103, (8, 8)), (100, (8, 6)), (90, (7, 8)), (80, (7, 0)), (75, (6, 3)))
_OLDER = ((100, "sm_90"), (90, "sm_89"), (80, "sm_75"))
_ALWAYS = ("PRED", "LANES", "SITE", "LINE")
_HELPERS = ("OUT", *(f"IN{number}" for number in range(1, 10)), "ADDR", "BYTES", "OPS")

# PTX ISA 9.0, 4.3.1, reserved instruction keywords.
_KEYWORDS = """
abs activemask add addc alloca and applypriority atom bar barrier bfe bfi bfind bmsk bra brev brkpt brx call clz cnot
copysign cos cp createpolicy cvt cvta discard div dp2a dp4a elect ex2 exit fence fma fns getctarank griddepcontrol
isspacep istypep ld ldmatrix ldu lg2 lop3 mad mad24 madc mapa match max mbarrier membar min mma mov movmatrix mul mul24
multimem nanosleep neg not or pmevent popc prefetch prefetchu prmt rcp red redux rem ret rsqrt sad selp set setmaxnreg
setp shf shfl shl shr sin slct sqrt st stackrestore stacksave stmatrix sub subc suld suq sured sust szext tanh tcgen05
tensormap testp tex tld4 trap txq vabsdiff vabsdiff2 vabsdiff4 vadd vadd2 vadd4 vavrg2 vavrg4 vmad vmax vmax2 vmax4 vmin
vmin2 vmin4 vote vset vset2 vset4 vshl vshr vsub vsub2 vsub4 wgmma wmma xor
"""

# Shuffles and votes without .sync have no machine code from sm_70 on, and ptxas 13 begins with sm_75.
_NOT_ASSEMBLED = {"shfl", "vote"}


def _kernel(number: int, instruction: str) -> str:
    wide = " .reg .b128 %q<4>;" if "%q" in instruction else ""
    table = " table: .branchtargets L1;" if instruction.startswith("brx") else ""
    # A probe's own st and ld are none of the instructions here.
    return (
        f".visible .entry k{number}(.param .u64 a)\n{{\n{_REGISTERS}{wide}{table}\n{instruction};\nL1:\nret;\n}}\n"
    )


def _module(arch: str, kernels: str) -> str:
    return f".version 9.0\n.target {arch}\n.address_size 64\n.func helper() {{ ret; }}\n{kernels}"


def _site(arch: str, instruction: str, *, after: bool) -> SiteOperands:
    module = parse(_module(arch, _kernel(0, instruction)))
    (entry,) = module.entries
    assert entry.body is not None
    read = read_instruction(instruction)
    assert read is not None
    return SiteOperands(
        read, Body(module.code, *entry.body), module.code.index(f"{instruction};"), Scratch("%own_"),
        after=after, module_addresses={}, product=lambda name, is_out: None,
    )  # fmt: skip


def _probe(path: Path, instruction: str, helpers: tuple[str, ...]) -> None:
    saves = {"before": "", "after": ""}
    for helper in (*helpers, *_ALWAYS):
        name = helper.partition(":")[0]
        # Of any type, in fields of integers.
        name += ".bits" if name.startswith(("OUT", "IN")) else ""
        saves["after"] += f"SAVE [ M ] {{ {name} }};\n"
        if not name.startswith("OUT"):
            saves["before"] += f"SAVE [ M ] {{ {name} }};\n"
    opcode = instruction.partition(" ")[0]
    sides = ["before"] if opcode.partition(".")[0] in {"bra", "brx", "ret", "exit", "trap"} else list(saves)
    text = "\n".join(f"{side} = '''{saves[side]}'''" for side in sides)
    path.write_text(
        f'platform = "cuda"\n{array(["u64"], 8)}[probe.p]\nposition = "{opcode}"\nlevel = "thread"\n{text}\n'
    )


@pytest.mark.parametrize("arch", _ARCHITECTURES)
def test_every_row_assembles_with_a_probe_that_reads_all_it_has(arch, tools, tmp_path):
    if ptxas_version() < (13, 0):
        pytest.skip("the instructions are PTX ISA 9.0's, which ptxas knows from 13.0 on")
    path = tmp_path / "probe.toml"
    kernels = ""
    for number, (target, instruction, helpers) in enumerate(EXAMPLES):
        if target != arch:
            continue
        _probe(path, instruction, helpers)
        twins = probe_module(parse(_module(arch, _kernel(number, instruction))), load_probe_file(path))
        assert not twins.skipped, twins.skipped
        (twin,) = twins.kernels
        assert twin.probed_text.count("st.global") >= len(helpers)
        kernels += twin.probed_text + "\n"
    run_ptxas(_module(arch, kernels), arch, tmp_path)


@pytest.mark.parametrize("arch", _FIRST)
def test_every_row_says_since_when_there_is_one(arch, tools, tmp_path):
    """At its version and architecture ptxas takes an instruction of the row, one version before none.

    Older architectures and versions than ptxas knows are not judged.
    """
    if ptxas_version() < (13, 0):
        pytest.skip("the instructions are PTX ISA 9.0's, which ptxas knows from 13.0 on")
    number = _number(arch)
    rows = [row for row in OPCODES if arch == (row.architecture if _number(row.architecture) > 75 else "sm_75")]
    shown = {row: [text for _, text, _ in EXAMPLES if find(tuple(text.split()[0].split("."))) is row] for row in rows}
    floor = (8, 0) if arch == "sm_90a" else next(version for least, version in _FLOORS if number >= least)
    older = next((name for least, name in _OLDER if number >= least), None) if arch[-1].isdigit() else arch[:-1]
    if older is not None:
        texts = [text for row in rows for text in shown[row]]
        assert _taken(older, (9, 0), texts, tmp_path) == []
    for version in sorted({max(row.version, floor) for row in rows}):
        now = [row for row in rows if max(row.version, floor) == version and row.text not in _NOT_ASSEMBLED]
        texts = [text for row in now for text in shown[row]]
        taken = _taken(arch, version, texts, tmp_path)
        assert [row.text for row in now if not any(text in taken for text in shown[row])] == []
        if version > floor:
            before = _VERSIONS[_VERSIONS.index(version) - 1]
            assert _taken(arch, before, texts, tmp_path) == []


def _taken(arch: str, version: tuple[int, int], instructions: list[str], folder: Path) -> list[str]:
    """Those that ptxas does not refuse, in a module of that version."""
    kernels = "".join(_kernel(number, text) for number, text in enumerate(instructions))
    text = _module(arch, kernels).replace(".version 9.0", f".version {version[0]}.{version[1]}", 1)
    starts = [number for number, line in enumerate(text.split("\n"), 1) if line.startswith(".visible")]
    refused = {bisect_right(starts, line) - 1 for line in refused_lines(text, arch, folder)}
    assert -1 not in refused, "the module itself is refused"
    return [instruction for number, instruction in enumerate(instructions) if number not in refused]


def test_every_row_has_an_instruction_here():
    shown = {find(tuple(instruction.split()[0].split("."))) for _, instruction, _ in EXAMPLES}
    assert {opcode.text for opcode in OPCODES if opcode not in shown} == _NOT_ASSEMBLED
    assert set(_KEYWORDS.split()) | {"clusterlaunchcontrol"} == FIRST_PARTS


def test_what_an_instruction_has_and_what_it_lacks():
    """Numbers are what the example says; whatever it does not name is refused with the instruction's name."""
    for arch, instruction, helpers in EXAMPLES:
        _judge_helpers(arch, instruction, dict(helper.partition(":")[::2] for helper in helpers))


def _judge_helpers(arch: str, instruction: str, expected: dict[str, str]) -> None:
    opcode = instruction.split(maxsplit=1)[0]
    row = find(tuple(opcode.split(".")))
    read = read_instruction(instruction)
    assert row is not None, instruction
    assert read is not None, instruction
    assert row.variadic or len(read.operands) <= len(row.operands), instruction
    for after in (False, True):
        site = _site(arch, instruction, after=after)
        for helper in (*_HELPERS, "OUT.127", "IN1.127", "ADDR.x", "BYTES.0"):
            name, _, element = helper.partition(".")
            if helper in expected and (after or name != "OUT"):
                value = site(name, element or None)
                if expected[helper]:
                    assert value.text == expected[helper], (instruction, helper)
            elif f"{helper}.y" not in expected and not _is_left_out(helper, expected):
                with pytest.raises(UnsupportedError, match=re.escape(opcode)):
                    site(name, element or None)


def _is_left_out(helper: str, expected: dict[str, str]) -> bool:
    """Long lists of operands are shown by some of their inputs."""
    number = helper[2:]
    return helper.startswith("IN") and number.isdigit() and any(
        name.startswith("IN") and int(name[2:].partition(".")[0]) > int(number) for name in expected
    )  # fmt: skip


def test_facts_hold_together():
    assert {word for opcode in OPCODES for word in opcode.classes} == set(CLASSES)
    tensor = {opcode for opcode in OPCODES if opcode.measure in {Measure.WARP, Measure.WARPGROUP, Measure.DESCRIPTOR}}
    assert tensor == {opcode for opcode in OPCODES if "tensor" in opcode.classes}
    for opcode in OPCODES:
        assert ("memory" in opcode.classes) == (not opcode.classes.isdisjoint({"load", "store", "atomic"}))
        written = [role.is_written for role in opcode.operands]
        assert written == sorted(written, reverse=True)
        parts = tuple(alternatives[0] for alternatives in opcode.name)
        assert find(parts) is opcode
        assert parts[0] in FIRST_PARTS
    assert find(("memry",)) is None
    assert find(()) is None


@pytest.mark.parametrize(("opcode", "row"), [
    ("mbarrier.arrive.expect_tx.shared.b64", "mbarrier.arrive"),
    ("barrier.cluster.arrive.release", "barrier.cluster"),
    ("bar.warp.sync", "bar.warp"),
    ("barrier.cta.red.popc.u32", "barrier.red"),
    ("add.rn.f32.bf16", "add.f32.f16|bf16"),
    ("mad.lo.cc.u32", "mad.cc"),
    ("mma.sp::ordered_metadata.sync.aligned.m16n8k32", "mma.sp"),
    ("tcgen05.mma.ws.sp.cta_group::1", "tcgen05.mma.ws.sp"),
    ("cp.async.bulk.prefetch.tensor.2d.L2.global", "cp.async.bulk.prefetch.tensor"),
    ("tcgen05.wait::st.sync.aligned", "tcgen05.wait"),
])  # fmt: skip
def test_the_most_exact_row_counts(opcode, row):
    found = find(tuple(opcode.split(".")))
    assert found is not None
    assert found.text == row


def test_every_instruction_is_listed():
    listed = list(opcode_rows.rows())
    assert [row[0] for row in listed] == [opcode.text for opcode in OPCODES]
    assert {len(row) for row in listed} == {len(opcode_rows.HEAD)}
    of_classes = {row[0]: set(row[2].split(", ")) - {""} for row in listed}
    assert of_classes == {opcode.text: set(opcode.classes) for opcode in OPCODES}
    for group in CLASSES:
        assert [row[0] for row in opcode_rows.rows(group)] == [name for name, of in of_classes.items() if group in of]


@pytest.mark.parametrize(("word", "first", "number"), [
    ("ld.global.v4.f32", ("ld", "1.0 sm_10", "memory, load", "yes", "a v?", "yes", "type × vector", ""), 1),
    ("ld.global.nc", ("ld.global.nc", "3.1 sm_32", "memory, load", "yes", "a v?", "yes", "type × vector", ""), 1),
    ("mma.sp", ("mma.sp", "7.1 sm_80", "tensor", "yes", "v v v v*", "", "", "2·m·n·k / 32"), 1),
    ("mbarrier", ("mbarrier.init", "7.0 sm_80", "", "", "a v", "yes", "", ""), 9),
    ("add.bf16x2", ("add.bf16|bf16x2", "7.8 sm_90", "", "yes", "v v", "", "", ""), 1),
    ("cp.async.bulk.tensor", ("cp.async.bulk.tensor", "8.0 sm_90", "memory, load, store", "", "o o v*", "", "", ""), 1),
])  # fmt: skip
def test_a_word_lists_what_it_names(word, first, number):
    listed = list(opcode_rows.rows(word))
    assert (listed[0], len(listed)) == (first, number)


def test_the_command_prints_the_rows(capsys):
    assert probe.main(["opcodes", "tensor"]) == 0
    printed = capsys.readouterr().out.splitlines()
    # No tensor instruction has BYTES.
    assert printed[0].split() == ["instruction", "since", "classes", "OUT", "inputs", "ADDR", "OPS"]
    listed = [line.split()[0] for line in printed[1 : printed.index("")]]
    assert listed == [row[0] for row in opcode_rows.rows("tensor")]
    assert probe.main(["opcodes", "lod"]) == 2
    said = capsys.readouterr()
    assert said.err == "neutrino-probe: lod: no class or instruction of PTX ISA 9.0; did you mean load?\n"
    assert not said.out
