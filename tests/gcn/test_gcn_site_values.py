"""Values of sites: in every form of an access, by the interpreter's own notes; and of other instructions, by hand."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from neutrino.emulator.gcn.launch import launch
from neutrino.emulator.gcn.memory import Memory
from neutrino.gcn.analysis.flow_graph import FlowGraph
from neutrino.gcn.analysis.placement import Placement
from neutrino.gcn.analysis.scratch_buffers import scratch_accesses
from neutrino.gcn.code import Module, decode, wave_features
from neutrino.gcn.instrument.code import Code, Mask, Scalar, Vector
from neutrino.gcn.instrument.machine import Machine
from neutrino.gcn.instrument.site_values import SiteValues
from neutrino.gcn.isa.memory import access_of
from neutrino.gcn.llvm import Llvm
from neutrino.gcn.processors import PROCESSORS
from neutrino.gcn.snippets.opcodes import names_of
from neutrino.ir.operands import Constant, SiteOperand
from neutrino.ir.types import Type
from tests.emulator.gcn.by_text import descriptor
from tests.gcn.objects import need_llvm
from tests.gcn.site_judge import Anywhere, Judged, SiteJudge

_PROCESSORS = (
    ("gfx90a", 64), ("gfx942", 64), ("gfx950", 64), ("gfx1030", 32), ("gfx1030", 64), ("gfx1100", 32), ("gfx1100", 64),
    ("gfx1201", 32), ("gfx1201", 64),
)  # fmt: skip
_ARRAY = 1 << 14
"""Bytes of the buffer that the text accesses, 64 for each work-item."""
_SPACES = frozenset({"global", "flat", "buffer", "scratch", "ds"})
_NEW_NAMES = {
    "ubyte_d16_hi": "d16_hi_u8", "sbyte_d16": "d16_i8", "short_d16_hi": "d16_hi_b16", "short_d16": "d16_b16",
    "store_byte_d16_hi": "store_d16_hi_b8", "ubyte": "u8", "sbyte": "i8", "ushort": "u16", "sshort": "i16",
    "store_byte": "store_b8", "store_short": "store_b16", "dwordx4": "b128", "dwordx3": "b96", "dwordx2": "b64",
    "dword": "b32", "ds_read2st64": "ds_load_2addr_stride64", "ds_read2": "ds_load_2addr", "ds_read": "ds_load",
    "ds_write2": "ds_store_2addr", "ds_write": "ds_store",
}  # fmt: skip
# v[2:3] has the address of the work-item's 64 bytes, v1 its offset, s[4:5] the array, s[8:11] a buffer of it.
_START = """s_load_dwordx2 s[4:5], s[0:1], 0x0
WAIT
s_mov_b32 s8, s4
s_mov_b32 s9, s5
s_movk_i32 s10, 0x1800
s_mov_b32 s11, WORD3
s_movk_i32 s6, 0x20
v_and_b32 v0, 0x3ff, v0
v_lshlrev_b32 v1, 6, v0
v_mov_b32 v3, s5
v_mov_b32 v4, 0x1234567
v_mov_b32 v5, -7
v_mov_b32 v6, 0x9876
v_mov_b32 v7, 0x80c0ffee
v_add_co_u32 v2, VCC, s4, v1
CARRY v3, VCC, 0, v3, VCC"""
_FORMS = """s_load_dword s12, s[4:5], 0x14
s_load_dwordx4 s[16:19], s[4:5], s6 offset:0x8
s_buffer_load_dwordx2 s[4:5], s[8:11], 0x8
WAIT
s_mov_b64 s[4:5], s[8:9]
global_load_dword v8, v[2:3], off
global_load_dwordx2 v[10:11], v[2:3], off offset:-8
global_load_ubyte v9, v1, s[4:5] offset:3
global_load_sbyte v9, v1, s[4:5] offset:5
global_load_sshort v9, v1, s[4:5] offset:-2
global_load_dwordx3 v[12:14], v1, s[4:5] offset:16
global_load_dwordx4 v[16:19], v1, s[4:5]
global_load_ubyte_d16_hi v20, v[2:3], off
global_load_sbyte_d16 v20, v[2:3], off offset:1
global_load_short_d16_hi v20, v[2:3], off offset:4
global_load_short_d16 v20, v1, s[4:5]
global_store_byte v[2:3], v4, off offset:7
global_store_short v1, v5, s[4:5] offset:10
global_store_byte_d16_hi v1, v7, s[4:5] offset:12
global_store_dwordx3 v[2:3], v[4:6], off offset:36
global_store_dwordx4 v1, v[4:7], s[4:5] offset:48
global_store_dword v1, v6, vcc offset:4
WAIT
global_load_dword v2, v[2:3], off
global_load_dword v1, v1, s[4:5]
WAIT
v_lshlrev_b32 v1, 6, v0
v_mov_b32 v3, s5
v_add_co_u32 v2, VCC, s4, v1
CARRY v3, VCC, 0, v3, VCC
flat_load_dword v8, v[2:3]
flat_load_dwordx3 v[12:14], v[2:3]
flat_store_byte v[2:3], v4
flat_store_dwordx2 v[2:3], v[4:5]
flat_load_ushort v3, v[2:3]
WAIT
v_mov_b32 v3, s5
v_add_co_u32 v2, VCC, s4, v1
CARRY v3, VCC, 0, v3, VCC
buffer_load_dword v8, v1, s[8:11], 0 offen
buffer_load_dwordx3 v[12:14], v1, s[8:11], s6 offen offset:8
buffer_load_ushort v9, off, s[8:11], s6 offset:6
buffer_store_dwordx2 v[4:5], v1, s[8:11], 0 offen offset:40
scratch_load_dword v8, off, off offset:16
scratch_load_dword v8, off, s6 offset:8
scratch_store_dword v0, v4, off offset:4
scratch_store_dwordx2 off, v[4:5], s6
ds_write_b32 v1, v4
ds_write_b8 v1, v5 offset:9
ds_write_b64 v1, v[4:5] offset:16
ds_write2_b32 v1, v4, v5 offset0:2 offset1:7
ds_read_b32 v8, v1 offset:4
ds_read_b96 v[12:14], v1
ds_read_b128 v[16:19], v1 offset:16
ds_read_u8 v9, v1 offset:9
ds_read_i16 v9, v1 offset:8
ds_read2_b32 v[10:11], v1 offset0:3 offset1:4
ds_read2_b64 v[16:19], v1 offset0:1 offset1:2
ds_read2st64_b32 v[10:11], v1 offset1:1
ds_add_rtn_u32 v8, v1, v4
ds_add_u32 v1, v4 offset:8
WAIT
ds_read_b32 v1, v1
WAIT
v_lshlrev_b32 v1, 6, v0
global_atomic_add v8, v1, v4, s[4:5] offset:4 RETURN
global_atomic_add v[2:3], v4, off offset:8
global_atomic_cmpswap_x2 v[10:11], v1, v[4:7], s[4:5] RETURN
s_endpgm"""


def _text(processor: str, wave: int) -> str:
    """The forms as a processor has them."""
    machine = Machine(PROCESSORS[processor], wave)
    text = f"{_START}\ns_mov_b64 vcc, s[4:5]\n{_FORMS}"
    vcc = "vcc" if wave == 64 else "vcc_lo"
    waits = "\n".join((*machine.wait_all_loads, machine.wait_scalar))
    lines = []
    for line in text.split("\n"):
        line = line.replace("WAIT", waits).replace("VCC", vcc)
        line = line.replace("CARRY", "v_addc_co_u32" if machine.generation == 9 else "v_add_co_ci_u32")
        line = line.replace("WORD3", "0x20000" if machine.generation == 9 else "0x31014000")
        if line.startswith("global_atomic"):
            line = line.replace(" RETURN", machine.returns)
            if not machine.is_old:
                line = line.replace("atomic_add", "atomic_add_u32").replace("cmpswap_x2", "cmpswap_b64")
        elif not machine.is_old:
            for old, new in _NEW_NAMES.items():
                line = line.replace(old, new)
        if machine.generation == 12:
            line = line.replace("s[8:11], 0 offen", "s[8:11], null offen")
        if processor == "gfx90a" and line.startswith("scratch_") and "off, off" in line:
            continue
        lines.append(line)
    return "\n".join(lines)


def _module(text: str, processor: str, wave: int, llvm: Llvm) -> Module:
    code = llvm.assemble(text, processor, wave_features(processor, "", wave))
    return decode([("kernel", 0, code, True, wave)], processor, "", llvm)


def _judged(processor: str, wave: int, llvm: Llvm, text: str) -> Judged:
    module = _module(text, processor, wave, llvm)
    function = module.functions[0]
    settings = descriptor(wave, lds=1 << 15, scratch=1 << 12)
    judge = SiteJudge(module, function, llvm, settings, 1 << 16)
    memory = Memory(1 << 20)
    array = memory.put(np.random.default_rng(7).integers(0, 1 << 32, _ARRAY // 4, np.uint32))
    kernarg = struct.pack("<QQ", array + 64, 0)
    return judge.run(
        [],
        lambda program, watch: launch(
            program, judge.descriptor, 1 << 16, memory, (1, 1, 1), (100, 1, 1), kernarg, checks=True,
            observer=watch.observe,
        ),
    )  # fmt: skip


@pytest.mark.parametrize(("processor", "wave"), _PROCESSORS)
def test_every_form_of_an_access(processor: str, wave: int) -> None:
    text = _text(processor, wave)
    found = _judged(processor, wave, need_llvm(), text)
    assert found.wrong == []
    assert not found.refused, found.refused
    waves = -(-100 // wave)
    count = sum(line.partition("_")[0] in _SPACES for line in text.split("\n")) * waves
    assert found.compared["BYTES after"] >= count - waves
    # In front and behind.
    assert found.compared["ADDR after"] >= 2 * (count - waves)
    assert found.compared["OUT after"] >= 36 * waves
    assert found.compared["LEADER after"] >= count


def _values(text: str, processor: str, wave: int = 0) -> tuple[SiteValues, Machine]:
    """The values of the last instruction of a text, or of the last access."""
    llvm = need_llvm()
    machine = Machine(PROCESSORS[processor], wave or (64 if processor.startswith("gfx9") else 32))
    function = _module(f"{text}\ns_nop 0\ns_endpgm", processor, machine.wave, llvm).functions[0]
    rows = function.instructions[:-2]
    site = next((row for row in rows[::-1] if access_of(row) is not None), rows[-1])
    return SiteValues(function, site, machine, placement=Placement(function), site=3), machine


@pytest.mark.parametrize(
    ("text", "processor", "name", "lines", "value"),
    [
        # What is in registers is read there.
        ("v_add_f32 v1, v2, v3", "gfx942", "OUT", [], Vector(1)),
        ("v_add_f32 v1, v2, v3", "gfx942", "IN2", [], Vector(3)),
        ("v_add_f32 v1, s2, v3", "gfx942", "IN1", [], Scalar(2)),
        ("v_mul_f64 v[2:3], v[4:5], v[6:7]", "gfx942", "OUT", [], Vector(2, 2)),
        ("v_mul_f64 v[2:3], v[4:5], v[6:7]", "gfx942", "IN1.y", [], Vector(5)),
        ("v_pk_fma_f32 v[2:3], v[4:5], v[6:7], v[8:9]", "gfx942", "OUT", [], Vector(2)),
        ("v_pk_fma_f32 v[2:3], v[4:5], v[6:7], v[8:9]", "gfx942", "OUT.y", [], Vector(3)),
        ("v_mfma_f32_16x16x16_f16 v[4:7], v[0:1], v[2:3], v[4:7]", "gfx942", "OUT.2", [], Vector(6)),
        ("v_mad_u64_u32 v[2:3], vcc, v4, v5, v[6:7]", "gfx942", "IN3", [], Vector(6, 2)),
        ("s_mul_i32 s4, s5, s6", "gfx1100", "OUT", [], Scalar(4)),
        ("s_and_b64 s[4:5], s[6:7], s[8:9]", "gfx1100", "IN2", [], Scalar(8, 2)),
        ("v_readfirstlane_b32 s4, v1", "gfx1100", "OUT", [], Scalar(4)),
        # Numbers.
        ("v_add_f32 v1, 1.0, v3", "gfx942", "IN1", [], Constant(Type.B32, 0x3F800000)),
        ("v_add_f32 v1, 0xc0490fdb, v3", "gfx942", "IN1", [], Constant(Type.B32, 0xC0490FDB)),
        ("v_add_u32 v1, -5, v3", "gfx942", "IN1", [], Constant(Type.B32, 0xFFFFFFFB)),
        ("v_add_f16 v1, -2.0, v3", "gfx942", "IN1", [], Constant(Type.B16, 0xC000)),
        ("v_add_f64 v[2:3], v[2:3], 0.5", "gfx942", "IN2", [], Constant(Type.B64, 0x3FE0 << 48)),
        ("v_lshlrev_b64 v[2:3], 3, v[4:5]", "gfx942", "IN1", [], Constant(Type.B32, 3)),
        ("s_lshl_b64 s[4:5], s[6:7], 3", "gfx942", "IN2", [], Constant(Type.B32, 3)),
        ("s_and_b64 s[4:5], s[6:7], -2", "gfx942", "IN2", [], Constant(Type.B64, (1 << 64) - 2)),
        # Signs, halves, sets of lanes, and registers that no value can be in.
        ("v_add_f32_e64 v1, -v2, v3", "gfx942", "IN1", ["v_xor_b32_e32 v100, 0x80000000, v2"], Vector(100)),
        ("v_add_f32_e64 v1, -|v2|, v3", "gfx942", "IN1",
         ["v_and_b32_e32 v100, 0x7fffffff, v2", "v_xor_b32_e32 v100, 0x80000000, v100"], Vector(100)),
        ("v_add_f64 v[2:3], -v[4:5], v[6:7]", "gfx942", "IN1",
         ["v_mov_b32_e32 v100, v4", "v_xor_b32_e32 v101, 0x80000000, v5"], Vector(100, 2)),
        ("v_add_f16 v1, v2, v3", "gfx942", "OUT", ["v_and_b32_e32 v100, 0xffff, v1"], Vector(100)),
        ("v_add_f16 v1.l, v2.h, v3.l", "gfx1201", "IN1", ["v_lshrrev_b32_e32 v100, 16, v2"], Vector(100)),
        ("v_cmp_lt_u32_e64 s[4:5], v1, v2", "gfx942", "OUT", ["s_and_b64 s[60:61], s[4:5], exec"], Mask(60, 2)),
        ("v_cmp_lt_u32_e64 s4, v1, v2", "gfx1100", "OUT", ["s_and_b32 s60, s4, exec_lo"], Mask(60)),
        ("v_cndmask_b32_e32 v1, v2, v3, vcc", "gfx942", "IN3",
         ["s_mov_b64 s[60:61], vcc", "s_and_b64 s[62:63], s[60:61], exec"], Mask(62, 2)),
        ("s_mov_b64 vcc, s[4:5]", "gfx942", "OUT", ["s_mov_b64 s[60:61], vcc"], Scalar(60, 2)),
        ("v_accvgpr_write_b32 a3, v1", "gfx942", "OUT", ["v_accvgpr_read_b32 v100, a3"], Vector(100)),
        # Results under way.
        ("s_memtime s[4:5]", "gfx942", "OUT", ["s_waitcnt lgkmcnt(0)"], Scalar(4, 2)),
        ("ds_bpermute_b32 v1, v2, v3", "gfx1201", "OUT", ["s_wait_dscnt 0x0"], Vector(1)),
        ("flat_load_dword v1, v[2:3]", "gfx942", "OUT", ["s_waitcnt vmcnt(0)", "s_waitcnt lgkmcnt(0)"], Vector(1)),
        ("global_load_b32 v1, v[2:3], off", "gfx1201", "OUT", ["s_wait_loadcnt 0x0"], Vector(1)),
        ("s_load_dword s4, s[6:7], 0x0", "gfx1030", "OUT", ["s_waitcnt lgkmcnt(0)"], Scalar(4)),
    ],
)  # fmt: skip
def test_where_a_value_is(text: str, processor: str, name: str, lines: list[str], value: object) -> None:
    values, machine = _values(text, processor)
    operand = SiteOperand(*name.split(".", 1)) if "." in name else SiteOperand(name)
    after = name.startswith("OUT")
    assert values.problem(operand, after=after) == ""
    code = Code(machine, range(60, 100), range(100, 140))
    assert values.prepare([operand], Anywhere(code), after=after) == {operand: value}
    assert code.lines == lines


@pytest.mark.parametrize(
    ("text", "processor", "name", "message"),
    [
        ("s_barrier", "gfx942", "OUT", "s_barrier has no OUT"),
        ("global_store_dword v1, v2, s[4:5]", "gfx942", "OUT", "global_store_dword has no OUT"),
        ("v_add_f32 v1, v2, v3", "gfx942", "ADDR", "v_add_f32_e32 has no ADDR"),
        ("v_add_f32 v1, v2, v3", "gfx942", "IN3", "v_add_f32_e32 has no IN3"),
        ("v_add_f32 v1, v2, v3", "gfx942", "IN2.y", "v_add_f32_e32 has no IN2.y"),
        ("v_add_f32 v1, v2, v3", "gfx942", "OPCODE", "v_add_f32_e32 has no OPCODE: AMD's GPUs have no such value yet"),
        ("v_add_f32_dpp v1, v2, v3 row_shr:1 row_mask:0xf bank_mask:0xf", "gfx942", "IN1",
         "v_add_f32_dpp has no IN1: it is another lane's"),
        ("v_and_b32_sdwa v1, v2, v3 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_1 src1_sel:DWORD", "gfx942",
         "IN1", "v_and_b32_sdwa has no IN1: it may be a part of a register"),
        ("v_pk_fma_f32 v[2:3], v[4:5], v[6:7], v[8:9] op_sel_hi:[1,0,1]", "gfx942", "IN2",
         "v_pk_fma_f32 has no IN2: its register is taken otherwise (op_sel_hi:[1,0,1])"),
        ("v_dual_mov_b32 v1, v2 :: v_dual_add_f32 v4, v5, v7", "gfx1100", "OUT",
         "v_dual_mov_b32 has no OUT: it is two instructions"),
        ("buffer_load_dword v1, v2, s[4:7], 0 idxen", "gfx942", "ADDR",
         "buffer_load_dword has no ADDR: it is an element's of a buffer of structures (idxen)"),
        ("global_load_lds_dword v[2:3], off", "gfx942", "OUT",
         "global_load_lds_dword has no OUT: what it loads goes into LDS"),
        ("ds_append v1", "gfx942", "ADDR", "ds_append has no ADDR: M0 has a part of it"),
    ],
)  # fmt: skip
def test_what_is_not_there_is_refused(text: str, processor: str, name: str, message: str) -> None:
    values, _ = _values(text, processor)
    operand = SiteOperand(*name.split(".", 1)) if "." in name else SiteOperand(name)
    assert values.problem(operand, after=name == "OUT") == message


def test_the_result_does_not_exist_before() -> None:
    values, _ = _values("global_load_dword v1, v[2:3], off", "gfx942")
    message = "global_load_dword has no OUT: it does not exist before the instruction"
    assert values.problem(SiteOperand("OUT"), after=False) == message


def test_what_the_instruction_overwrites_is_kept() -> None:
    values, machine = _values("global_load_dword v2, v[2:3], off offset:4", "gfx942")
    addr, out = SiteOperand("ADDR"), SiteOperand("OUT")
    assert values.kept([out, addr, SiteOperand("BYTES")]) == [addr]
    early = Code(machine, range(60, 70), range(100, 110))
    kept = values.keep([addr], Anywhere(early))
    assert early.lines == ["v_add_co_u32_e32 v100, vcc, 0x4, v2", "v_addc_co_u32_e32 v101, vcc, 0, v3, vcc"]
    late = Code(machine, range(70, 80), range(110, 120))
    assert values.prepare([out, addr], Anywhere(late), after=True, kept=kept) == {addr: Vector(100, 2), out: Vector(2)}
    assert late.lines == ["s_waitcnt vmcnt(0)"]
    # Registers that stay are not copied, but kept ones are the snippet's.
    values, machine = _values("global_load_dword v2, v[2:3], off", "gfx942")
    early = Code(machine, range(60, 70), range(100, 110))
    assert values.keep([addr], Anywhere(early)) == {addr: Vector(100, 2)}
    assert early.lines == ["v_mov_b32_e32 v100, v2", "v_mov_b32_e32 v101, v3"]


def test_loads_of_a_clause_may_be_under_way() -> None:
    llvm = need_llvm()
    text = "s_clause 0x2\n" + "\n".join(f"global_load_b32 v{n}, v[4:5], off offset:{n}" for n in (1, 2, 4))
    function = _module(f"{text}\ns_nop 0\ns_endpgm", "gfx1100", 32, llvm).functions[0]
    machine = Machine(PROCESSORS["gfx1100"], 32)
    found = []
    for row in function.instructions[1:4]:
        values = SiteValues(function, row, machine, placement=Placement(function))
        code = Code(machine, range(60, 70), range(100, 110))
        values.prepare([SiteOperand("OUT")], Anywhere(code), after=True)
        found += code.lines
        # The last one of them overwrites the address, wherever the snippet is that reads it.
        assert values.kept([SiteOperand("ADDR")]) == [SiteOperand("ADDR")]
    assert found == ["s_waitcnt vmcnt(2)", "s_waitcnt vmcnt(1)", "s_waitcnt vmcnt(0)"]


def test_places_in_the_launch() -> None:
    values, machine = _values("v_add_f32 v1, v2, v3", "gfx1201")
    code = Code(machine, range(60, 70), range(100, 110))
    found = values.prepare([SiteOperand("LANES"), SiteOperand("SITE")], Anywhere(code), after=False)
    assert found == {SiteOperand("LANES"): Scalar(60, 2), SiteOperand("SITE"): Constant(Type.U32, 3)}
    assert code.lines == ["s_mov_b32 s60, exec_lo", "s_mov_b32 s61, 0"]


def test_scratch_memory_may_be_a_buffer() -> None:
    llvm = need_llvm()
    text = """s_mov_b64 s[14:15], s[2:3]
s_mov_b64 s[12:13], s[0:1]
s_add_u32 s12, s12, s9
s_addc_u32 s13, s13, 0
buffer_store_dword v1, v2, s[12:15], s32 offen offset:8
buffer_load_dword v1, off, s[0:3], 0 offset:4
buffer_load_dword v1, off, s[4:7], 0 offset:4
s_mov_b32 s2, 0
buffer_load_dword v1, off, s[0:3], 0 offset:4
s_endpgm"""
    function = _module(text, "gfx1030", 32, llvm).functions[0]
    rows = [row for row in function.instructions if row.mnemonic.startswith("buffer_")]
    found = scratch_accesses(FlowGraph(function), "gfx1030", 10)
    assert [row.offset in found for row in rows] == [True, True, False, False]
    assert not scratch_accesses(FlowGraph(function), "gfx1030", 10, properties=8)
    assert not scratch_accesses(FlowGraph(function), "gfx1100", 11)
    assert ("st", "local", "b32") in names_of(rows[0].mnemonic, is_scratch=True).opcodes
    assert ("st", "global", "b32") in names_of(rows[0].mnemonic).opcodes
    machine = Machine(PROCESSORS["gfx1030"], 32)
    code = Code(machine, range(60, 70), range(100, 110))
    for row, value in ((rows[0], Vector(100, 2)), (rows[1], Constant(Type.U64, 4))):
        values = SiteValues(function, row, machine, placement=Placement(function), is_scratch=True)
        assert values.prepare([SiteOperand("ADDR")], Anywhere(code), after=False) == {SiteOperand("ADDR"): value}
    assert code.lines == [
        "s_lshr_b32 s60, s32, 5", "s_add_u32 s62, s60, 0x8", "s_mov_b32 s63, 0", "v_add_nc_u32_e32 v100, s62, v2",
        "v_mov_b32_e32 v101, 0",
    ]  # fmt: skip


def test_scratch_memory_is_followed_on_every_way() -> None:
    """Compilers put a block's copy at the end, after code that has other uses for the registers."""
    llvm = need_llvm()

    def found(*lines: str) -> list[bool]:
        """Of each access to a buffer, whether it is one to scratch memory."""
        function = _module("\n".join(lines), "gfx90a", 64, llvm).functions[0]
        scratch = scratch_accesses(FlowGraph(function), "gfx90a", 9)
        return [row.offset in scratch for row in function.instructions if row.mnemonic.startswith("buffer_")]

    access, other = "buffer_load_dword v1, off, s[0:3], 0 offset:4", "s_mov_b32 s2, 0"
    # What is overwritten on a way of its own is there on the other one.
    assert found("s_cbranch_execnz 4", other, access, "s_endpgm", access, "s_endpgm") == [False, True]
    # What is overwritten on some of the ways alone is another buffer.
    assert found("s_cbranch_execnz 1", other, access, "s_endpgm") == [False]
    assert found(access, other, "s_cbranch_execnz 65532", "s_endpgm") == [False]
    # A jump by a register may lead to where the function makes an address of.
    # s_add_u32 and s_addc_u32 with literals, which no assembler writes of such small numbers.
    away = ("s_getpc_b64 s[6:7]", ".long 0x8006ff06, 32, 0x8207ff07, 0", "s_setpc_b64 s[6:7]")
    assert found(*away, "s_nop 0", "s_nop 0", "s_endpgm", access, "s_endpgm") == [True]
    assert found(other, *away, "s_nop 0", "s_nop 0", "s_endpgm", access, "s_endpgm") == [False]
