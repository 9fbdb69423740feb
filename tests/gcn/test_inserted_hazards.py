"""Fences of inserted code: LLVM's recognizer finds nothing missing, and each of them is needed."""

from __future__ import annotations

import itertools

import pytest

from neutrino.gcn.analysis.flow_graph import FlowGraph
from neutrino.gcn.analysis.neighbours import Neighbours
from neutrino.gcn.code import decode, written
from neutrino.gcn.instrument.fences import Fences
from neutrino.gcn.instrument.hazards import WINDOW, with_fences
from neutrino.gcn.instrument.machine import Machine
from neutrino.gcn.isa.registers import VCC, VECTORS
from neutrino.gcn.processors import PROCESSORS
from tests.gcn.hazard_judge import HazardJudge
from tests.gcn.objects import need_llvm

_JUDGED = (("gfx90a", 64), ("gfx942", 64), ("gfx1030", 32), ("gfx1100", 64))
_DPP = "row_shr:1 row_mask:0xf bank_mask:0xf"

# What probes' code is made of. The program's registers are below 40.
_SNIPPETS = {
    "address": """v_add_co_u32_e32 v100, VCC, 0x10, v2
CARRY_e32 v101, VCC, 0, v3, VCC""",
    "address of a base": """v_mov_b32_e32 v101, s5
v_add_co_u32_e64 v100, VCC, s4, v1
CARRY_e32 v101, VCC, 0, v101, VCC
s_mov_MASK VCC, s[60:61]""",
    "address by the scalar unit": """s_add_u32 s60, s4, 0x10
s_addc_u32 s61, s5, 0
v_mov_b32_e32 v101, s61
v_add_co_u32_e64 v100, s[62:63], s60, v1
CARRY_e64 v101, s[64:65], 0, v101, s[62:63]""",
    "comparison": """v_cmp_lt_u32_e64 s[60:61], v1, v2
s_and_MASK s[60:61], s[60:61], EXEC
v_cndmask_b32_e64 v100, v2, v3, s[60:61]
s_mov_MASK s[60:61], 0""",
    "lanes that branch": """v_cmp_gt_u32_e64 s[60:61], v1, v2
s_and_MASK s[60:61], EXEC, s[60:61]
s_and_MASK s[64:65], EXEC, VCC
v_cndmask_b32_e64 v100, v8, v9, s[60:61]""",
    "leader": """v_readfirstlane_b32 s60, v1
v_readfirstlane_b32 s61, v2
global_store_dword v3, v4, s[60:61]""",
    "lane": """v_readfirstlane_b32 s60, v1
v_readlane_b32 s61, v2, s60
v_writelane_b32 v100, s61, 3""",
    "spared registers": """v_readlane_b32 s60, v100, 1
v_readlane_b32 s61, v100, 2
s_add_u32 s60, s60, s61
v_writelane_b32 v100, s60, 1
v_readlane_b32 s62, v100, 1""",
    "sum of lanes": f"""v_mov_b32_e32 v100, v1
v_add_u32_dpp v100, v100, v100 {_DPP}
v_readlane_b32 s60, v100, 63""",
    "quotient": """v_cvt_f32_u32_e32 v100, v1
v_rcp_iflag_f32_e32 v100, v100
v_mul_f32_e32 v100, 0x4f7ffffe, v100
v_cvt_u32_f32_e32 v100, v100""",
    "copy of results": """v_mov_b32_e32 v100, v8
v_mov_b32_e32 v101, v9
v_mov_b32_e32 v9, v100""",
    "store of results": """global_store_dwordx4 v[2:3], v[8:11], off
v_mov_b32_e32 v8, 0
v_mov_b32_e32 v9, 0""",
    "mode": """s_getreg_b32 s60, hwreg(HW_REG_MODE, 0, 8)
s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 4), 15
v_add_f32_e32 v100, v1, v2
s_setreg_b32 hwreg(HW_REG_MODE, 0, 8), s60""",
    "fewer lanes": """s_mov_MASK s[60:61], EXEC
v_mov_b32_e32 v100, v1
s_mov_MASK EXEC, 1
v_mov_b32_e32 v101, v2
v_add_u32_e32 v102, v100, v101
s_mov_MASK EXEC, s[60:61]""",
    "permutation": "v_permlanex16_b32 v100, v1, 0, 0",
    "saved conditions": """s_mov_MASK s[60:61], VCC
v_cmp_eq_u32_e32 VCC, v1, v2
v_cndmask_b32_e32 v100, v1, v2, VCC
s_mov_MASK VCC, s[60:61]""",
}
_BEFORE = {
    "nothing": "",
    "scalar result": "v_readfirstlane_b32 s4, v1\nv_readfirstlane_b32 s5, v1",
    "address": "v_add_co_u32_e32 v2, VCC, s4, v1",
    "lanes": "v_cmpx_eq_u32_e64 v1, v2",
    "late result": "v_exp_f32_e32 v1, v1\nv_rcp_f32_e32 v8, v2",
    "stored": "global_store_dwordx4 v[2:3], v[100:103], off",
    "stored results": "global_store_dwordx3 v[2:3], v[8:10], off",
    "mask read": "v_cndmask_b32_e32 v1, v1, v2, VCC",
    "mode": "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 4), 15",
}
_BEFORE_CDNA = {
    "product": "v_mfma_f32_16x16x16f16 v[8:11], v[0:1], v[2:3], v[8:11]",
    "large product": "v_mfma_f32_32x32x8f16 v[8:23], v[0:1], v[2:3], v[8:23]",
    "small product": "v_mfma_f32_4x4x4f16 v[8:11], v[0:1], v[2:3], v[8:11]",
    "f64 product": "v_mfma_f64_16x16x4f64 v[8:15], v[0:1], v[2:3], v[8:15]",
    "product of dead registers": "v_mfma_f32_32x32x8f16 v[100:115], v[0:1], v[2:3], v[100:115]",
    "dot product": "v_dot2_f32_f16 v8, v1, v2, v3",
}
_AFTER = {
    "nothing": "",
    "quotient": "v_div_fmas_f32 v5, v6, v7, v7",
    "mode": "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 4), 15",
    "lanes": f"v_mov_b32_dpp v5, v6 {_DPP}",
    "masks": "s_mov_MASK VCC, s[4:5]\ns_and_MASK s[6:7], VCC, s[4:5]",
}
_GENEROUS = ("s_waitcnt_depctr depctr_sa_sdst(0)", "s_waitcnt_depctr 0xfff")


def _lines(text: str, processor: str, wave: int) -> list[str]:
    """The lines of a text as a processor has them."""
    is_gfx9 = processor.startswith("gfx9")
    vcc, execute = ("vcc", "exec") if wave == 64 else ("vcc_lo", "exec_lo")
    text = text.replace("CARRY", "v_addc_co_u32" if is_gfx9 else "v_add_co_ci_u32")
    text = text.replace("VCC", vcc).replace("EXEC", execute).replace("MASK", f"b{wave}")
    if not is_gfx9:
        for old, new in (("v_add_co_u32_e32", "v_add_co_u32"), ("v_add_co_u32_e64", "v_add_co_u32"),
                         ("v_add_u32", "v_add_nc_u32")):  # fmt: skip
            text = text.replace(old, new)
    else:
        text = text.replace("v_cmpx_eq_u32_e64 v1", "v_cmpx_eq_u32_e64 s[30:31], v1")
        text = text.replace(f"v_add_co_u32_e64 v100, {vcc}", f"v_add_co_u32_e32 v100, {vcc}")
    if wave == 32:
        for pair in ("60:61", "62:63", "64:65", "4:5", "6:7"):
            if "global_store_dword v3" not in text:
                text = text.replace(f"s[{pair}]", f"s{pair.partition(':')[0]}")
    if processor.startswith("gfx11"):
        text = text.replace("dwordx4", "b128").replace("dwordx3", "b96").replace("_dword ", "_b32 ")
    if processor == "gfx942":
        text = text.replace("16x16x16f16", "16x16x16_f16").replace("32x32x8f16", "32x32x8_f16")
        text = text.replace("4x4x4f16", "4x4x4_16b_f16").replace("16x16x4f64", "16x16x4_f64")
    return [line for line in text.split("\n") if line]


def _cases(processor: str, wave: int) -> list[tuple[str, list[str], list[str], list[str]]]:
    """Name, what is before, snippet, and what is after."""
    before = _BEFORE | (_BEFORE_CDNA if processor.startswith("gfx9") else {})
    found = []
    # Each snippet with each of what is before it, and one of what is after it in turn.
    for number, ((one, snippet), (two, first)) in enumerate(itertools.product(_SNIPPETS.items(), before.items())):
        three, last = list(_AFTER.items())[(number + number // len(before)) % len(_AFTER)]
        if not processor.startswith("gfx9") and (one == "sum of lanes" or three == "lanes"):
            # DPP has no rules there, and llc-19 takes other operands than the assembler.
            continue
        if processor.startswith("gfx9") and one == "permutation":
            continue
        parts = [_lines(text, processor, wave) for text in (first, snippet, last)]
        found.append((f"{two} | {one} | {three}", parts[0], parts[1], parts[2]))
    return found


def _fenced(machine: Machine, before: list[str], snippet: list[str], after: list[str]) -> list[str]:
    ways = [[written("s_nop 7")] * (WINDOW - len(before)) + [written(line) for line in before]]
    return with_fences(ways, snippet, [[written(line) for line in after]], machine)


def _is_fence(line: str) -> bool:
    return line.startswith(("s_nop", "s_waitcnt_depctr", "s_wait_alu"))


@pytest.mark.parametrize(("processor", "wave"), _JUDGED)
def test_nothing_is_missing(processor: str, wave: int) -> None:
    machine = Machine(PROCESSORS[processor], wave)
    judge = HazardJudge(processor, wave)
    cases = _cases(processor, wave)
    # Neighbours that are no code of a compiler's, since they lack something themselves.
    kept = judge.added([[*before, *after] for _, before, _, after in cases])
    cases = [case for case, found in zip(cases, kept, strict=True) if not found]
    whole = [[*before, *_fenced(machine, before, snippet, after), *after] for _, before, snippet, after in cases]
    found = _added(judge, whole)
    missing = [(name, lines, each) for (name, *_), lines, each in zip(cases, whole, found, strict=True) if each]
    assert not missing, (len(missing), missing[:3])
    # Without one of the fences, something is.
    fewer, names = [], []
    for (name, before, snippet, after), lines in zip(cases, whole, strict=True):
        for at in range(len(before), len(lines) - len(after)):
            if _is_fence(lines[at]) and lines[at] not in snippet:
                fewer.append([*lines[:at], *lines[at + 1 :]])
                names.append(f"{name}: {lines[at]}")
    unnoticed = [name for name, each in zip(names, _added(judge, fewer), strict=True) if not each]
    # How long products take is not known of each, and what the kernel does behind a snippet need not be.
    assert all("product" in name or name.endswith(_GENEROUS) for name in unnoticed), unnoticed
    assert processor == "gfx1030" or len(unnoticed) < len(names) / 2, (len(unnoticed), len(names))
    if processor.startswith("gfx9"):
        # Each wait state counts.
        short, names = [], []
        for (name, before, snippet, after), lines in zip(cases, whole, strict=True):
            if "product" not in name:
                for at in range(len(before), len(lines) - len(after)):
                    if lines[at].startswith("s_nop ") and lines[at] not in snippet and lines[at] != "s_nop 0":
                        states = int(lines[at].split()[1])
                        short.append([*lines[:at], f"s_nop {states - 1}", *lines[at + 1 :]])
                        names.append(f"{name}: {lines[at]}")
        assert len(short) > 20
        unnoticed = [name for name, each in zip(names, _added(judge, short), strict=True) if not each]
        assert not unnoticed


def _added(judge: HazardJudge, sequences: list[list[str]]) -> list[list[tuple[int, str]]]:
    """What is missing in each sequence."""
    if not sequences:
        return []
    return [
        # LLVM puts this wait behind an instruction without a look at what stands there.
        [(at, text) for at, text in found if sequences[number][at - 1] != "s_waitcnt_depctr depctr_sa_sdst(0)"]
        for number, found in enumerate(judge.added(sequences))
    ]


def test_where_there_is_no_judge() -> None:
    # gfx12: what one unit has written the other reads after a wait; and so does the kernel what is restored.
    machine = Machine(PROCESSORS["gfx1201"], 32)
    clean = [[written("s_wait_alu depctr_sa_sdst(0) depctr_va_sdst(0) depctr_va_vcc(0)")] * WINDOW]
    lines = ["s_add_co_u32 s60, s4, 16", "s_add_co_ci_u32 s61, s5, 0", "v_mov_b32_e32 v100, s60",
             "v_cmp_eq_u32_e64 s62, v1, v2", "s_and_b32 s62, s62, exec_lo", "v_cndmask_b32_e64 v101, v1, v2, s62",
             "s_mov_b32 vcc_lo, s60"]  # fmt: skip
    assert with_fences(clean, lines, [[]], machine) == [
        *lines[:2], "s_wait_alu depctr_sa_sdst(0)", *lines[2:5], "s_wait_alu depctr_sa_sdst(0)", *lines[5:],
        "s_wait_alu depctr_sa_sdst(0)",
    ]  # fmt: skip
    # SGPRs that no vector instruction reads need no wait.
    assert with_fences(clean, [*lines[:2], "s_mov_b32 s63, s61"], [[]], machine, read_by_vectors=VCC) == [
        *lines[:2], "s_mov_b32 s63, s61",
    ]  # fmt: skip
    # Where it is not known what ran before, registers of the kernel are waited for.
    assert with_fences(None, lines[2:3], [[]], machine) == [
        "s_wait_alu depctr_sa_sdst(0) depctr_va_sdst(0)", lines[2],
    ]  # fmt: skip
    # gfx950: as gfx942, with one state more behind products.
    machine = Machine(PROCESSORS["gfx950"], 64)
    product = [[written("v_mfma_f32_16x16x32_f16 v[8:11], v[0:3], v[4:7], v[8:11]")] * WINDOW]
    assert with_fences(product, ["v_mov_b32_e32 v100, v8"], [[]], machine) == [
        "s_nop 7", "s_nop 3", "v_mov_b32_e32 v100, v8",
    ]  # fmt: skip


def test_a_loop_brings_its_end_to_its_beginning() -> None:
    machine = Machine(PROCESSORS["gfx942"], 64)
    lines = [".L1:", "v_readlane_b32 s61, v1, s60", "s_nop 0", "v_readfirstlane_b32 s60, v2", "s_cbranch_scc1 .L1"]
    quiet = [[written("s_nop 7")] * WINDOW]
    assert with_fences(quiet, lines, [[]], machine) == [lines[0], "s_nop 2", *lines[1:]]
    # The branch is a wait state; what leads nowhere back needs none.
    assert with_fences(quiet, lines[:4], [[]], machine) == lines[:4]


def test_ways_to_a_place() -> None:
    llvm = need_llvm()
    text = """s_mov_b32 s4, 0
s_cmp_lg_u32 s4, 1
s_cbranch_scc1 2
s_mov_b32 s5, 1
s_branch 1
s_mov_b32 s5, 2
s_mov_b32 s6, 3
s_cbranch_scc0 65534
s_endpgm"""
    function = decode([("k", 0, llvm.assemble(text, "gfx942", ""), True, 64)], "gfx942", "", llvm).functions[0]
    rows = function.instructions
    ways = Neighbours(FlowGraph(function)).before(rows[6].offset, 3)
    assert ways is not None
    # Past one branch, past the other, and from the loop's end.
    assert sorted([row.offset for row in way] for way in ways) == [
        [4, 8, 20], [8, 12, 16], [16, 24, 28], [20, 24, 28], [28, 24, 28],
    ]  # fmt: skip
    start = Neighbours(FlowGraph(function)).before(rows[1].offset, 5)
    assert start is not None
    assert [[row.mnemonic for row in way] for way in start] == [["s_mov_b32"]]
    behind = Neighbours(FlowGraph(function)).after(rows[7].offset, 4)
    assert behind is not None
    assert sorted([row.mnemonic for row in way] for way in behind) == [
        ["s_cbranch_scc0", "s_endpgm"], ["s_cbranch_scc0", "s_mov_b32", "s_cbranch_scc0", "s_endpgm"],
        ["s_cbranch_scc0", "s_mov_b32", "s_cbranch_scc0", "s_mov_b32"],
    ]  # fmt: skip


def test_other_snippets_may_stand_just_before() -> None:
    llvm = need_llvm()
    text = "s_nop 0\nv_mov_b32_e32 v1, v2\ns_endpgm"
    function = decode([("k", 0, llvm.assemble(text, "gfx942", ""), True, 64)], "gfx942", "", llvm).functions[0]
    fences = Fences(FlowGraph(function), Machine(PROCESSORS["gfx942"], 64))
    lines = ["v_readlane_b32 s60, v100, 1", "global_store_dword v1, v2, s[62:63]"]
    assert fences.around(4, lines) == lines
    # A register that another one keeps, of lanes and of the wave.
    assert fences.around(4, lines, 1 << VECTORS + 100) == ["s_nop 0", *lines]
    assert fences.around(4, lines, 3 << 62) == [lines[0], "s_nop 3", lines[1]]
    assert fences.at_start(0, lines) == lines
    assert fences.around(8, lines[:1]) == lines[:1]
