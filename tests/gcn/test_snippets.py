"""Hand-written snippets for AMD's GPUs: the documented one runs, wrong ones are refused at their line, with a hint."""

from __future__ import annotations

from pathlib import Path

import pytest

from neutrino.errors import ProbeError
from neutrino.gcn.snippets.meaning import typed
from neutrino.ir.operands import Constant, Register, SiteOperand
from neutrino.ir.statements import Convert, Load, Operation, Operator
from neutrino.ir.types import Type
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.ir.structured import Save, Statement
from neutrino.run.probes import RunProbes
from neutrino.targets import trace_text, written
from neutrino.verification import check_probes, load_probe_file

GUIDE = Path(__file__).parents[1] / "fixtures/probes/guide_hip.toml"
HEAD = """\
platform = "hip"
[map.M]
type = "array"
level = "LEVEL"
size = 24
data = { a = "u64", b = "u32", c = "u32", d = "f32", e = "u16", f = "s16" }
[probe.p]
position = "POSITION"
level = "LEVEL"
register = { u32 = 3, u64 = 3, f32 = 4, s32 = 5 }
SIDE = '''
"""
SAVE = "SAVE [ M ] { PD0, P0, P1, P3, P2, 0 }"
LINE = HEAD.count("\n") + 1
"""Of the snippet's first line."""


def text_of(snippet: str, position: str = "kernel", side: str = "after", level: str = "thread") -> str:
    head = HEAD.replace("POSITION", position).replace("SIDE", side).replace("LEVEL", level)
    return f"{head}{snippet}\n'''\n"


def read(tmp_path: Path, snippet: str, **where: str) -> ProbeSet:
    path = tmp_path / "p.toml"
    path.write_text(text_of(snippet, **where))
    return load_probe_file(path)


def meant(tmp_path: Path, snippet: str, **where: str) -> list[Statement]:
    """What a snippet with a right SAVE after it means."""
    (probe,) = typed(read(tmp_path, f"{snippet}\n{SAVE}", **where)).probes
    side = probe.after or probe.before
    assert side is not None
    return list(side.statements[:-1])


def test_the_documented_snippet_is_verified_as_it_is_written() -> None:
    checked = check_probes([str(GUIDE)], platform="hip", device="gfx90a")
    assert {fault.severity for fault in checked.diagnostics} == {"warning"}
    (probe,) = typed(checked.probe_set()).probes
    assert probe.before is not None
    assert probe.after is not None
    (begin,) = probe.before.statements
    read, sub, cut, place, save = probe.after.statements
    loads = [one for one in (begin, read, place) if isinstance(one, Load)]
    values = [one.operand.text for one in loads if isinstance(one.operand, SiteOperand)]
    assert values == ["s_memrealtime", "s_memrealtime", "s_getreg_b32.hwreg(HW_REG_HW_ID)"]
    assert isinstance(sub, Operation)
    assert sub.operator is Operator.SUB
    assert isinstance(cut, Convert)
    assert isinstance(save, Save)
    names = [[one.name for one in (*words.sources, words.destination) if isinstance(one, Register)] for words in (sub,)]
    assert names == [["PD1", "PD0", "PD1"]]


@pytest.mark.parametrize(
    ("processor", "lacks"),
    [
        ("gfx90a", []), ("gfx942", []), ("gfx950", []), ("gfx1030", []),
        ("gfx1100", ["s_memrealtime", "s_memrealtime", "HW_REG_HW_ID"]),
        ("gfx1201", ["s_memrealtime", "s_memrealtime", "HW_REG_HW_ID"]),
    ],
)
def test_what_a_generation_lacks_is_said_at_its_line_with_the_portable_helper(processor: str, lacks: list[str]) -> None:
    faults = check_probes([str(GUIDE)], platform="hip", device=processor).diagnostics
    errors = [fault for fault in faults if fault.severity == "error"]
    assert [fault.message for fault in errors] == [f"{processor} has no {what}" for what in lacks]
    lines = GUIDE.read_text().split("\n")
    for fault, what in zip(errors, lacks, strict=True):
        assert what.lower() in lines[fault.line - 1].lower()
        assert ("nl.time()" if what.startswith("s_") else "nl.cuid()") in fault.hint


def test_a_set_reads_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text(text_of(f"s_memtime PD0\ns_lshl_b32 P0, P1, 3\nv_mov_b32 P2, 0x10\n{SAVE}"))
    probes = load_probe_file(path)
    (tmp_path / "back.toml").write_text(trace_text(probes))
    (tmp_path / "written.toml").write_text(written(probes))
    for name in ("back", "written"):
        assert load_probe_file(tmp_path / f"{name}.toml").digest == probes.digest


MEANINGS: dict[str, tuple[Operator, list[object]]] = {
    "s_add_u32 P0, P1, P2": (Operator.ADD, ["P1", "P2"]),
    "S_ADD_U32 P0, P1, -1": (Operator.ADD, ["P1", (1 << 32) - 1]),
    "v_add_u32_e32 P0, P1, 010": (Operator.ADD, ["P1", 10]),
    "s_and_b64 PD0, PD1, 0xffffffffff": (Operator.AND, ["PD1", 0xFFFFFFFFFF]),
    "s_min_i32 P4, P4, -5": (Operator.MIN, ["P4", (1 << 32) - 5]),
    "s_bcnt1_i32_b64 P0, PD2": (Operator.POPC, ["PD2"]),
    "SUB64 PD0, PD1, PD2": (Operator.SUB, ["PD1", "PD2"]),
    "s_lshl_b32 P0, P1, 35": (Operator.SHL, ["P1", 3]),
    "v_lshrrev_b32 P0, 4, P1": (Operator.SHR, ["P1", 4]),
    "s_mov_b64 PD0, 7": (Operator.MOVE, [7]),
}


@pytest.mark.parametrize("snippet", MEANINGS)
def test_what_computes_means_a_typed_statement(tmp_path: Path, snippet: str) -> None:
    (found,) = meant(tmp_path, snippet)
    assert isinstance(found, Operation)
    sources = [one.bits if isinstance(one, Constant) else getattr(one, "name", None) for one in found.sources]
    assert (found.operator, sources) == MEANINGS[snippet]


def test_the_amount_of_a_shift_is_taken_modulo_the_width(tmp_path: Path) -> None:
    masked, shifted = meant(tmp_path, "s_lshr_b64 PD0, PD1, P2")
    assert isinstance(masked, Operation)
    assert isinstance(shifted, Operation)
    assert masked.operator is Operator.AND
    assert masked.sources[1] == Constant(Type.U32, 63)
    assert shifted.sources[1] == masked.destination
    assert masked.destination.is_local


def test_values_of_the_instruction_are_loaded(tmp_path: Path) -> None:
    found = meant(tmp_path, "v_mov_b32 P0, OUT\ns_mov_b64 PD0, ADDR", position="global_load_dword")
    assert [one.operand for one in found if isinstance(one, Load)] == [SiteOperand("OUT"), SiteOperand("ADDR")]


WRONG: dict[str, str] = {
    # What a probe must not do
    "s_branch 4": "leaves-snippet", "s_cbranch_scc0 1": "leaves-snippet", "s_cbranch_execz 2": "leaves-snippet",
    "s_endpgm": "leaves-snippet", "s_setpc_b64 PD0": "leaves-snippet", "s_swappc_b64 PD0, PD1": "leaves-snippet",
    "s_call_b64 PD0, 3": "leaves-snippet", "s_getpc_b64 PD0": "leaves-snippet", "s_trap 2": "leaves-snippet",
    "s_rfe_b64 PD0": "leaves-snippet", "S_BRANCH 4": "leaves-snippet", "s_sethalt 1": "leaves-snippet",
    "s_barrier": "synchronises", "s_waitcnt vmcnt(0)": "synchronises", "s_sleep 1": "synchronises",
    "s_wait_loadcnt 0": "synchronises", "s_sendmsg 3": "synchronises", "s_setprio 3": "synchronises",
    "buffer_gl0_inv": "synchronises", "s_dcache_wb": "synchronises", "s_icache_inv": "synchronises",
    "ds_gws_barrier P0": "synchronises", "s_barrier_signal -1": "synchronises", "global_wb": "synchronises",
    "global_store_dword P0, P1": "writes-memory", "ds_write_b32 P0, P1": "writes-memory",
    "flat_store_dwordx2 PD0, PD1": "writes-memory", "buffer_store_byte P0, P1": "writes-memory",
    "global_atomic_add P0, P1": "writes-memory", "ds_add_u32 P0, P1": "writes-memory",
    "scratch_store_dword P0, P1": "writes-memory", "s_store_dword P0, PD0, 0": "writes-memory",
    "ds_cmpst_b32 P0, P1": "writes-memory", "flat_atomic_swap P0, P1": "writes-memory",
    "image_store P0, P1": "writes-memory", "ds_max_rtn_u32 P0, P1": "writes-memory",
    "global_load_dword P0, PD0, off": "reads-memory", "s_load_dwordx2 PD0, PD1, 0": "reads-memory",
    "ds_read_b32 P0, P1": "reads-memory", "flat_load_ubyte P0, PD0": "reads-memory",
    "buffer_load_dword P0, P1": "reads-memory", "scratch_load_dword P0, off": "reads-memory",
    "image_sample P0, P1": "reads-memory", "s_buffer_load_dword P0, PD0, 0": "reads-memory",
    "s_load_b64 PD0, PD1, 0": "reads-memory", "ds_load_b32 P0, P1": "reads-memory",
    "s_addc_u32 P0, P1, P2": "carry-flag", "s_subb_u32 P0, P1, P2": "carry-flag",
    "s_cselect_b32 P0, 1, 0": "carry-flag", "s_cmp_lg_u32 P0, 0": "carry-flag",
    "v_add_co_u32 P0, vcc, P1, P2": "carry-flag", "v_cmp_eq_u32 P0, P1": "carry-flag",
    "v_cndmask_b32 P0, P1, P2": "carry-flag", "v_cmpx_lt_u32 P0, P1": "carry-flag",
    "v_addc_co_u32 P0, vcc, P1, P2": "carry-flag", "s_bitcmp1_b32 P0, 3": "carry-flag",
    # Instructions that snippets lack
    "s_nop 0": "instruction-not-allowed", "v_readfirstlane_b32 P0, P1": "instruction-not-allowed",
    "v_mfma_f32_4x4x1f32 P0, P1": "instruction-not-allowed", "v_fma_f32 P3, P3, P3, P3": "instruction-not-allowed",
    "s_setreg_b32 hwreg(HW_REG_MODE), P0": "instruction-not-allowed", "v_exp_f32 P3, P3": "instruction-not-allowed",
    "s_mov_b16 P0, P1": "instruction-not-allowed", "v_writelane_b32 P0, P1, 0": "instruction-not-allowed",
    "s_and_saveexec_b64 PD0, PD1": "instruction-not-allowed", "v_div_scale_f32 P3, P3, P3": "instruction-not-allowed",
    "SUB46 PD0, PD1, PD0": "unknown-instruction", "CTV32 P0, PD1": "unknown-instruction",
    "mov.u64 PD0, PD1": "unknown-instruction", "add.s32 P0, P1, P2": "unknown-instruction",
    "mov PD0, PD1": "unknown-instruction", "rdtsc PD0": "unknown-instruction",
    # Forms
    "SUB64 PD0, PD1": "operand-count", "CVT32 P0": "operand-count", "s_memtime": "operand-count",
    "s_memtime PD0, PD1": "operand-count", "s_getreg_b32 P0": "operand-count",
    "s_add_u32 P0, P1, P2, P0": "operand-count", "s_mov_b32": "operand-count",
    "s_add_u32 P0, P1, s4": "undeclared-register", "s_mov_b64 PD0, s[4:5]": "undeclared-register",
    "v_mov_b32 P0, v7": "undeclared-register", "s_mov_b64 PD0, vcc": "undeclared-register",
    "s_mov_b64 exec, PD0": "undeclared-register", "s_mov_b32 m0, P0": "undeclared-register",
    "s_mov_b32 P0, scc": "undeclared-register", "s_mov_b64 PD0, exec": "undeclared-register",
    "s_memtime s[2:3]": "undeclared-register", "s_mov_b32 P0, ttmp9": "undeclared-register",
    "s_memtime PD3": "undeclared-register", "s_mov_b32 P9, 1": "undeclared-register",
    "v_mov_b32 a3, P0": "undeclared-register", "s_mov_b32 flat_scratch_lo, P0": "undeclared-register",
    "SUB64 P0, PD1, PD0": "register-type", "SUB64 PD0, P1, PD0": "register-type", "CVT32 PD0, PD1": "register-type",
    "CVT32 P0, P1": "register-type", "s_memtime P0": "register-type", "s_memrealtime P1": "register-type",
    "s_getreg_b32 PD0, hwreg(HW_REG_HW_ID)": "register-type", "s_add_u32 P0, P1, P3": "register-type",
    "s_min_i32 P0, P1, P2": "register-type", "s_lshl_b64 PD0, PD1, PD2": "register-type",
    "s_mov_b32 P0, %P1": "not-an-operand", "s_mov_b32 P0, q7": "not-an-operand",
    "s_getreg_b32 P0, HW_REG_HW_ID": "not-an-operand", "s_getreg_b32 P0, hwreg(HW_REG_XYZ)": "not-an-operand",
    "s_getreg_b32 P0, hwreg(4)": "not-an-operand", "s_add_u32 P0, THREAD, 1": "not-an-operand",
    "s_getreg_b32 P0, hwreg(HW_REG_HW_ID, 8, 32)": "immediate-range",
    "s_getreg_b32 P0, hwreg(HW_REG_HW_ID, 0, 0)": "immediate-range",
    "s_mov_b32 P0, 0x100000000": "immediate-range", "s_add_u32 P0, P1, -2147483649": "immediate-range",
    "s_mov_b64 PD0, 0x10000000000000000": "immediate-range", "s_mov_b32 P0, 1.5": "immediate-type",
    "s_mov_b32 1, P0": "not-a-destination", "s_memtime 0": "not-a-destination",
    "s_mov_b64 ADDR, PD0": "write-refused", "v_mov_b32 OUT, P0": "write-refused",
    "v_mov_b32 P0, OUT": "operand-without-instruction", "s_mov_b64 PD0, ADDR": "operand-without-instruction",
    "v_mov_b32 P0, IN2": "operand-without-instruction", "v_mov_b32 P0, THREAD.x": "not-an-operand",
    "s_mov_b32 P0, BLOCK": "helper-type", "s_mov_b64 PD0, THREAD": "helper-type",
    # No instructions
    "LOOP:": "label", "@P0 s_mov_b32 P0, 1": "not-an-instruction", ".reg .u32 P0": "not-an-instruction",
    "save [ M ] { P0 }": "not-an-instruction", "M.save(P0)": "not-an-instruction", "{": "brackets",
    "s_mov_b32 P0, µ": "not-ascii", "+": "not-an-instruction", "s_mov_b32(P0)": "not-an-instruction",
    # SAVE
    "SAVE [ M ] { PD0, P0, P1, P3, P2 }": "save-operands", "SAVE [ N ] { PD0 }": "unknown-map",
    "SAVE [ M ] { P0, P0, P1, P3, P2, 0 }": "save-type", "SAVE [ M ] { PD0, PD1, P1, P3, P2, 0 }": "save-type",
    "SAVE [ M ] { PD0, P0, P3, P3, P2, 0 }": "save-type", "SAVE [ M ] { PD0, P0, P1, 1, P2, 0 }": "save-type",
    "SAVE [ M ] { PD0, P0, P1, P1, P2, 0 }": "save-type", "SAVE [ M ] { PD0, 1.5, P1, P3, P2, 0 }": "save-type",
    "SAVE [ M ] { PD0, BLOCK, P1, P3, P2, 0 }": "save-type", "SAVE [ M ] { -1, P0, P1, P3, P2, 0 }": "save-range",
    "SAVE [ M ] { PD0, P0, P1, P3, 65536, 0 }": "save-range", "SAVE [ M ] { PD0, P0, P1, P3, 0, 32768 }": "save-range",
    "SAVE [ M ] { PD0, s4, P1, P3, P2, 0 }": "undeclared-register",
    "SAVE [ M ] { PD0, OUT, P1, P3, P2, 0 }": "operand-without-instruction",
    "SAVE [ M ] { PD0 P0 }": "save-operands", "SAVE { PD0 }": "save-form",
}


def test_there_are_many() -> None:
    assert len(WRONG) >= 140
    assert len(set(WRONG.values())) >= 25


@pytest.mark.parametrize("snippet", WRONG)
def test_a_wrong_snippet_is_refused_at_its_line_with_a_hint(tmp_path: Path, snippet: str) -> None:
    path = tmp_path / "p.toml"
    # Behind a right line, so that the line is not that of the snippet's beginning.
    path.write_text(text_of(f"s_memtime PD0\n{snippet}\n{SAVE}"))
    with pytest.raises(ProbeError) as error:
        load_probe_file(path)
    errors = [fault for fault in error.value.diagnostics if fault.severity == "error"]
    assert {fault.code for fault in errors} == {WRONG[snippet]}
    assert {fault.line for fault in errors} == {LINE + 1}
    assert all(fault.message for fault in errors)
    assert all(fault.hint for fault in errors)


@pytest.mark.parametrize(
    ("position", "side", "snippet", "code"),
    [
        ("global_load_dword", "before", "v_mov_b32 P0, OUT", "out-in-before"),
        ("barrier", "before", "s_mov_b64 PD0, ADDR", "operand-absent"),
        ("globalload", "before", "s_mov_b32 P0, 1", "unknown-opcode"),
        ("LDG", "before", "s_mov_b32 P0, 1", "position"),
    ],
)
def test_a_wrong_place_is_refused(tmp_path: Path, position: str, side: str, snippet: str, code: str) -> None:
    with pytest.raises(ProbeError) as error:
        read(tmp_path, f"{snippet}\n{SAVE}", position=position, side=side)
    assert {fault.code for fault in error.value.diagnostics} == {code}


def test_groups_write_no_register_that_threads_keep(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    text = text_of(f"s_mov_b32 P0, 1\n{SAVE}").replace('level = "thread"\nregister', 'level = "group"\nregister')
    path.write_text(text)
    with pytest.raises(ProbeError) as error:
        load_probe_file(path)
    assert "group-register" in {fault.code for fault in error.value.diagnostics}


def test_what_runs_is_not_probed_by_them() -> None:
    with pytest.raises(ProbeError) as error:
        RunProbes.of(load_probe_file(GUIDE))
    (fault,) = error.value.diagnostics
    assert (fault.line, fault.column, fault.code) == (1, 12, "platform")
    assert fault.message == "platform is \"hip\": kernels of AMD's GPUs are probed in files, not as they run"
