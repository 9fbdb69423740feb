"""Which instructions of AMD's a tracepoint matches: by mnemonics, classes, modifiers and names of every target."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from neutrino.fatbin import ImageKind, read_container
from neutrino.gcn.code import Instruction
from neutrino.gcn.language import GCN
from neutrino.gcn.snippets.opcodes import matches
from neutrino.patched_files.preview import preview
from neutrino.probing.selection import Selection
from neutrino.probing.tracepoints import parse_tracepoint
from neutrino.verification import check_probes, load_probes
from tests.gcn.objects import code_objects, need_llvm


def instruction(text: str) -> Instruction:
    mnemonic, _, rest = text.partition(" ")
    words = rest.split(",")
    last = words[-1].split() or [""]
    return Instruction(0, 4, mnemonic, (*map(str.strip, words[:-1]), last[0]), tuple(last[1:]), text)


CASES: dict[str, tuple[list[str], list[str]]] = {
    "global_load_dword": (["global_load_dword v0, v[2:3], off"], ["global_load_dwordx2 v[0:1], v[2:3], off"]),
    "global_load*": (
        ["global_load_dwordx2 v[0:1], v[2:3], off", "global_load_b32 v0, v1, s[0:1]"], ["flat_load_dword v0, v[2:3]"],
    ),
    "v_add_f32": (["v_add_f32_e32 v0, v1, v2", "v_add_f32_e64 v0, v1, v2"], ["v_add_f16_e32 v0, v1, v2"]),
    "global_load_dword.glc": (["global_load_dword v0, v[2:3], off glc"], ["global_load_dword v0, v[2:3], off"]),
    "ld.global": (
        ["global_load_dword v0, v[2:3], off", "buffer_load_dword v0, v1, s[0:3], 0",
         "s_load_dwordx2 s[0:1], s[4:5], 0x8"],
        ["flat_load_dword v0, v[2:3]", "ds_read_b32 v0, v1", "global_store_dword v[0:1], v2, off",
         "global_atomic_add v0, v[2:3], v1, off glc", "scratch_load_dword v0, off, off"],
    ),
    "st.shared": (["ds_write_b32 v0, v1", "ds_store_b64 v0, v[2:3]"], ["ds_read_b32 v0, v1", "ds_add_u32 v0, v1"]),
    "ld.global & (b32 | u8)": (
        ["global_load_dword v0, v[2:3], off", "global_load_ubyte v0, v[2:3], off", "buffer_load_b32 v0, v1, s[0:3], 0"],
        ["global_load_dwordx2 v[0:1], v[2:3], off", "global_load_sbyte v0, v[2:3], off", "ds_read_b32 v0, v1"],
    ),
    "ld.shared.v2.b64": (["ds_read2_b64 v[0:3], v4", "ds_load_2addr_b64 v[0:3], v4"], ["ds_read_b64 v[0:1], v4"]),
    "ld.global & !b128": (["s_load_dwordx2 s[0:1], s[4:5], 0x8"], ["s_load_b128 s[0:3], s[4:5], 0x8"]),
    "ld.local": (["scratch_load_dword v0, off, s32"], ["global_load_dword v0, v[2:3], off"]),
    "ld.generic": (["flat_load_ubyte v0, v[2:3]"], ["global_load_ubyte v0, v[2:3], off"]),
    "atom.global": (
        ["global_atomic_add v0, v[2:3], v1, off glc", "global_atomic_add v0, v[2:3], v1, off sc0",
         "global_atomic_add_u32 v0, v1, v2, s[0:1] th:TH_ATOMIC_RETURN"],
        ["global_atomic_add v[2:3], v1, off"],
    ),
    "ld.global.b32": (["global_load_dword v0, v[2:3], off", "s_load_b32 s0, s[4:5], 0x8"],
                      ["global_load_dwordx2 v[0:1], v[2:3], off", "ds_read_b32 v0, v1"]),
    "st.shared.b64": (["ds_write_b64 v0, v[2:3]", "ds_store_b64 v0, v[2:3]"], ["ds_write_b32 v0, v1"]),
    "atom.global.cas.b64": (["global_atomic_cmpswap_x2 v[0:1], v[2:3], v[4:7], off glc"],
                            ["global_atomic_cmpswap v0, v[2:3], v[4:5], off glc"]),
    "atom.*.add": (["global_atomic_add v0, v[2:3], v1, off glc", "ds_add_rtn_u32 v0, v1, v2"],
                   ["ds_min_rtn_i32 v0, v1, v2"]),
    "red.add.s32": (["global_atomic_add v[2:3], v1, off", "global_atomic_add_u32 v[2:3], v1, off", "ds_add_u32 v0, v1"],
                    ["global_atomic_add_x2 v[2:3], v[0:1], off", "global_atomic_add_f32 v[2:3], v1, off"]),
    "red.global.add.f16x2": (["global_atomic_pk_add_f16 v[2:3], v1, off"], ["global_atomic_add_f32 v[2:3], v1, off"]),
    "red.shared.min.s32": (["ds_min_i32 v0, v1"], ["ds_min_u32 v0, v1", "ds_min_rtn_i32 v0, v1, v2"]),
    "red.global.max.u64": (["global_atomic_umax_x2 v[2:3], v[0:1], off", "global_atomic_max_u64 v[2:3], v[0:1], off"],
                           ["global_atomic_smax_x2 v[2:3], v[0:1], off"]),
    "red.global": (["global_atomic_add v[2:3], v1, off"], ["global_atomic_add v0, v[2:3], v1, off glc"]),
    "atom.shared": (["ds_add_rtn_u32 v0, v1, v2"], ["ds_add_u32 v0, v1", "ds_bpermute_b32 v0, v1, v2"]),
    "call": (["s_swappc_b64 s[30:31], s[4:5]"], ["s_setpc_b64 s[30:31]"]),
    "memory !ld": (["global_store_dword v[0:1], v2, off"], ["global_load_dword v0, v[2:3], off"]),
    "load & !ld.shared": (["global_load_dword v0, v[2:3], off"], ["ds_read_b32 v0, v1"]),
    "load & ld.global": (["global_load_dword v0, v[2:3], off"], ["ds_read_b32 v0, v1"]),
    "atomic": (["buffer_atomic_swap v0, v1, s[0:3], 0", "ds_cmpst_rtn_b32 v0, v1, v2, v3"], ["ds_write_b32 v0, v1"]),
    "barrier": (["s_barrier ", "s_barrier_signal -1", "s_barrier_wait -1"], ["s_waitcnt vmcnt(0)"]),
    "branch": (["s_cbranch_scc0 4", "s_branch 4", "s_endpgm ", "s_setpc_b64 s[30:31]"], ["s_cmp_lg_u32 s0, 0"]),
    "tensor": (["v_mfma_f32_16x16x16_f16 v[0:3], v[4:5], v[6:7], v[0:3]",
                "v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]"],
               ["v_fma_f32 v0, v1, v2, v3"]),
    "convert": (["v_cvt_f32_u32_e32 v0, v1", "s_cvt_f32_i32 s0, s1"], ["v_mov_b32_e32 v0, v1"]),
    "special": (["v_exp_f32_e32 v0, v1", "v_rcp_iflag_f32_e32 v0, v1", "v_s_rcp_f32 s0, s1"],
                ["v_mul_f32_e32 v0, v1, v2"]),
    "bra @": (["s_cbranch_scc0 4", "s_cbranch_execnz 4"], ["s_branch 4", "s_endpgm "]),
    "bra !@": (["s_branch 4"], ["s_cbranch_vccz 4"]),
    "* @": (["s_cbranch_scc0 4"], ["v_mov_b32_e32 v0, v1"]),
    "*": (["s_nop 0", "v_mov_b32_e32 v0, v1"], []),
    "load": (["buffer_load_dword v1, s[0:3], 0 offen lds", "global_load_lds_dword v[0:1], off"],
             ["s_getreg_b32 s0, hwreg(HW_REG_HW_ID)"]),
    "store": (["buffer_load_dword v1, s[0:3], 0 offen lds"], ["image_load v0, v1, s[0:7]"]),
}  # fmt: skip


@pytest.mark.parametrize("position", CASES)
def test_patterns(position: str) -> None:
    tracepoint, faults = parse_tracepoint(position, GCN.words)
    assert not faults
    assert tracepoint is not None
    yes, no = CASES[position]
    assert [text for text in yes if not matches(tracepoint, instruction(text))] == []
    assert [text for text in no if matches(tracepoint, instruction(text))] == []


def test_data_is_no_instruction() -> None:
    tracepoint, _ = parse_tracepoint("*", GCN.words)
    assert tracepoint is not None
    assert not matches(tracepoint, Instruction(0, 4, "", (), (), ""))


def test_a_load_of_an_argument_is_none_of_global_memory() -> None:
    tracepoint, _ = parse_tracepoint("ld.global", GCN.words)
    assert tracepoint is not None
    load = instruction("s_load_dwordx2 s[0:1], s[4:5], 0x8")
    assert matches(tracepoint, load)
    assert not matches(tracepoint, load, is_parameter=True)


@pytest.mark.parametrize("name", ["gfx90a-O2", "gfx1100-O2"])
def test_sites_of_a_code_object(name: str) -> None:
    need_llvm()
    path = code_objects()[name]
    container = read_container(path.read_bytes(), path.name)
    assert container.images[0].kind is ImageKind.CODE_OBJECT
    probes = load_probes(["inst_count", "gmem_bytes"], platform="hip")
    chosen = Selection(("/^(saxpy|tiles|histogram)$/",))
    found = {one.name: one.plan for one in preview([container], container.images[0].arch, probes, chosen)}
    assert found.keys() == {"saxpy", "tiles", "histogram"}
    for plan in found.values():
        assert plan is not None
        text = plan.functions[0].text().text.split("\n")  # type: ignore[attr-defined]
        by_probe = Counter(site.probe for site in plan.sites)
        count = sum(line.startswith("  ") and not line.startswith("  .long") for line in text)
        assert by_probe["all"] == count
        for site in plan.sites:
            if site.number is not None:
                # The line of a site is where the text has its instruction; branches name labels there.
                mnemonic = site.instruction.split()[0]
                assert text[site.line - 1].split()[0] == mnemonic
            if site.probe == "load_global":
                assert site.instruction.startswith(("global_load", "s_load", "buffer_load"))
    saxpy = found["saxpy"]
    assert saxpy is not None
    # Loads of x, of y and of a table; of arguments and of the packet with the work-group's size none counts.
    loads = [site.instruction for site in saxpy.sites if site.probe == "load_global"]
    assert [load.split("_")[0] for load in loads] == ["global"] * 3


def test_what_a_processor_lacks_is_said_with_its_name() -> None:
    faults = check_probes([], ["loop-head { @turns = count() }"], platform="hip", device="gfx942").diagnostics
    assert {fault.code for fault in faults} == {"target-lacks"}
    assert all("kernels in gfx942" in fault.message and fault.line for fault in faults)


def test_probes_on_cuda_import_nothing_of_amds(tmp_path: Path) -> None:
    (tmp_path / "k.ptx").write_text(".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() { ret; }\n")
    script = (
        "import sys\nfrom neutrino.cli import probe\nprobe.main(['sites', 'block_sched', 'k.ptx'])\n"
        "print([name for name in sys.modules if name.startswith('neutrino.gcn')])\n"
        "print('libLLVM' in open('/proc/self/maps').read())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\nFalse\n")
