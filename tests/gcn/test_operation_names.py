"""What AMD's instructions are called as operations, and which processors have them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from neutrino.gcn.code import Function, Instruction, decode
from neutrino.gcn.instrument.site_operands import NoValueError, SiteOperandTexts
from neutrino.gcn.isa.mnemonics import plain
from neutrino.gcn.language import GCN
from neutrino.gcn.llvm import AssemblyError, Llvm
from neutrino.gcn.operation_names import division_steps, matrix_operations, mnemonics_of, names_of_operation, table
from neutrino.gcn.snippets.opcodes import WHOLE, Part, matched_parts, named_on
from neutrino.probing.model import Tracepoint
from neutrino.probing.tracepoints import parse_tracepoint
from neutrino.verification import check_probes
from tests.gcn.objects import need_llvm

PROCESSORS = ("gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201")
OPERANDS = (
    "", "v0, v1", "v0, v1, v2", "v0, v1, v2, v3", "v[0:1], v[2:3]", "v[0:1], v[2:3], v[4:5]",
    "v[0:1], v[2:3], v[4:5], v[6:7]", "v0, v[2:3]", "v[0:1], v2", "v0, v1, 0x4249, v2", "v0, v1, v2, 0x4249", "s0, s1",
    "s0, s1, s2", "s0, s1, 0x4249, s2", "s0, s1, s2, 0x4249", "s[0:1], s[2:3]", "s[0:1], s[2:3], s[4:5]", "vcc, v0, v1",
    "vcc_lo, v0, v1", "vcc, v[0:1], v[2:3]", "vcc_lo, v[0:1], v[2:3]", "v0, v1, v2, vcc", "v0, v1, v2, vcc_lo",
    "v[0:1], v2, v[4:5]", "v[0:1], vcc, v1, v2, v[4:5]", "v[0:1], vcc_lo, v1, v2, v[4:5]", "s[0:1], s[2:3], s4",
    "s[0:1]",
    "-1", "0x0", "v[0:1], v[2:3]", "v[2:3], v[4:5]", "s[0:1], 0", "v0, v1",
)  # fmt: skip


def _tracepoint(text: str) -> Tracepoint:
    found, faults = parse_tracepoint(text, GCN.words)
    assert found is not None
    assert not faults
    return found


def _accepted(llvm: Llvm, name: str, processor: str) -> list[str]:
    """The lines of an instruction with each of OPERANDS that the assembler takes: it says which it does not."""
    lines = [f"{name} {operands}" for operands in OPERANDS]
    try:
        llvm.assemble("\n".join(lines), processor)
    except AssemblyError as error:
        wrong = {complaint.line for complaint in error.complaints}
        assert 0 not in wrong
        return [line for number, line in enumerate(lines, 1) if number not in wrong]
    return lines


def _which_has(llvm: Llvm, names: Iterable[str], processor: str) -> set[str]:
    lines = [(name, line) for name in names for line in _accepted(llvm, name, processor)]
    code = llvm.assemble("\n".join(line for _, line in lines), processor)
    rows = decode([("k", 0, code, True, 32)], processor, "", llvm).functions[0].instructions
    # Older names are read, too, and mean others.
    return {name for (name, _), row in zip(lines, rows, strict=True) if plain(row.mnemonic) == name}


@pytest.mark.parametrize("processor", PROCESSORS)
def test_processors_have_what_the_table_says(processor: str) -> None:
    llvm = need_llvm()
    mine = {mnemonic for mnemonic, _ in mnemonics_of(processor)}
    names = [name for name in table() if not name.startswith(("v_cmp_", "v_cmpx_", "s_cbranch_"))]
    assert len(names) > 200
    assert _which_has(llvm, names, processor) ^ mine.intersection(names) == set()


@pytest.mark.parametrize(
    ("mnemonic", "modifiers", "name"),
    [
        ("v_add_f32_e32", (), "add.f32"), ("v_subrev_f16_sdwa", (), "sub.f16"), ("v_mac_f32_dpp", (), "mad.f32"),
        ("v_fmamk_f32", (), "fma.f32"), ("v_fma_mixhi_f16", (), "fma.f16"), ("v_rsq_f64_e32", (), "rsqrt.approx.f64"),
        ("v_exp_f32_e32", (), "ex2.approx.f32"), ("s_add_f32", (), "add.uniform.f32"), ("s_barrier", (), "bar.sync"),
        ("v_cmp_nlt_f32_e64", (), "setp.geu.f32"), ("v_dual_mul_f32", (), "mul.f32"), ("s_waitcnt", (), ""),
        ("v_mfma_f32_32x32x8_f16", (), "mma.sync.aligned.m32n32k8.f32.f16.f16.f32"),
        ("v_mfma_f32_32x32x8bf16_1k", (), "mma.sync.aligned.m32n32k8.f32.bf16.bf16.f32"),
        ("v_mfma_f32_16x16x32_fp8_bf8", (), "mma.sync.aligned.m16n16k32.f32.e4m3.e5m2.f32"),
        ("v_mfma_f32_4x4x4_16b_f16", (), "mma.sync.aligned.m4n4k4.f32.f16.f16.f32"),
        ("v_mfma_f32_16x16x128_f8f6f4", ("cbsz:4", "blgp:1"),
         "mma.sync.aligned.m16n16k128.kind::f8f6f4.f32.e2m1.e5m2.f32"),
        ("v_wmma_i32_16x16x16_iu8", ("neg_lo:[1,0,0]",), "mma.sync.aligned.m16n16k16.s32.s8.u8.s32"),
        ("v_smfmac_f32_32x32x16_bf16", (), "mma.sp.sync.aligned.m32n32k16.f32.bf16.bf16.f32"),
    ],
)  # fmt: skip
def test_names(mnemonic: str, modifiers: tuple[str, ...], name: str) -> None:
    assert ".".join(next(iter(names_of_operation(mnemonic, modifiers)), ())) == name


@pytest.mark.parametrize(
    ("text", "wave", "operations"),
    [
        ("v_mfma_f32_32x32x8_f16 v[0:15], v[16:17], v[18:19], v[0:15]", 64, 2 * 32 * 32 * 8),
        ("v_mfma_f32_32x32x4_2b_f16 v[0:31], v[32:33], v[34:35], v[0:31]", 64, 2 * 32 * 32 * 4 * 2),
        ("v_mfma_f32_4x4x4_16b_f16 a[0:3], v[2:3], v[4:5], a[0:3]", 64, 2 * 4 * 4 * 4 * 16),
        ("v_mfma_f64_4x4x4_4b_f64 v[0:1], v[2:3], v[4:5], v[0:1]", 64, 2 * 4 * 4 * 4 * 4),
        ("v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]", 32, 2 * 16 * 16 * 16),
        ("v_wmma_f32_16x16x16_f16 v[0:3], v[8:15], v[16:23], v[0:3]", 64, 2 * 16 * 16 * 16),
        ("v_smfmac_f32_16x16x32_f16 v[0:3], v[4:5], v[6:9], v10", 64, 2 * 16 * 16 * 32),
    ],
)
def test_operations_of_matrix_instructions(text: str, wave: int, operations: int) -> None:
    mnemonic, _, rest = text.partition(" ")
    row = Instruction(0, 8, mnemonic, tuple(rest.split(", ")), (), text)
    assert matrix_operations(row, wave) == operations


def _decoded(lines: str, processor: str) -> Function:
    llvm = need_llvm()
    code = b"".join(llvm.assemble(line, processor) for line in lines.strip().split("\n"))
    return decode([("k", 0, code, True, 32)], processor, "", llvm).functions[0]


def test_both_halves_of_an_instruction_and_both_numbers_of_a_result() -> None:
    row = _decoded("v_dual_mul_f32 v0, v1, v2 :: v_dual_fmac_f32 v3, v4, v5", "gfx1100").instructions[0]
    assert matched_parts(_tracepoint("mul.f32"), row) == (Part(0),)
    assert matched_parts(_tracepoint("fma.f32"), row) == (Part(1),)
    assert matched_parts(_tracepoint("mul.f32 | fma.f32"), row) == (Part(0), Part(1))
    # By its own name it is one instruction.
    assert matched_parts(_tracepoint("v_dual_fmac_f32"), row) == (Part(1),)
    assert matched_parts(_tracepoint("v_dual_*"), row) == (WHOLE,)
    assert matched_parts(_tracepoint("*"), row) == (WHOLE,)
    packed = _decoded("v_pk_mul_f32 v[0:1], v[2:3], v[4:5]", "gfx942").instructions[0]
    assert matched_parts(_tracepoint("mul.f32"), packed) == (Part(None, 0), Part(None, 1))
    assert matched_parts(_tracepoint("mul.f32x2"), packed) == (WHOLE,)
    assert matched_parts(_tracepoint("v_pk_mul_f32"), packed) == (WHOLE,)


def test_steps_of_a_division_have_no_name() -> None:
    # Of one half, a step reads a register that the other half writes.
    function = _decoded(
        """
v_mul_f32 v9, v1, v1
v_div_scale_f32 v3, s2, v1, v1, v0
v_div_scale_f32 v5, vcc_lo, v0, v1, v0
v_rcp_f32 v4, v3
v_fma_f32 v7, -v3, v4, 1.0
v_dual_fmac_f32 v4, v7, v4 :: v_dual_mul_f32 v7, v9, v10
v_mul_f32 v6, v5, v4
v_fma_f32 v8, -v3, v6, v5
v_fmac_f32 v6, v8, v4
v_fma_f32 v3, -v3, v6, v5
v_div_fmas_f32 v3, v3, v4, v6
v_div_fixup_f32 v2, v3, v1, v0
v_add_f32 v7, v7, v2
s_endpgm""",
        "gfx1100",
    )
    steps = division_steps(function)
    named = _tracepoint("add.f32 | mul.f32 | fma.f32 | rcp.f32 | div.f32")
    found = [
        (row.mnemonic, parts) for row in function.instructions if (parts := matched_parts(named, row, steps=steps))
    ]
    assert found == [
        ("v_mul_f32_e32", (WHOLE,)), ("v_dual_fmac_f32", (Part(1),)), ("v_div_fixup_f32", (WHOLE,)),
        ("v_add_f32_e32", (WHOLE,)),
    ]  # fmt: skip


def test_the_quotient_of_halves_is_computed_in_steps() -> None:
    function = _decoded(
        """
v_cvt_f32_f16 v2, v0
v_cvt_f32_f16 v3, v1
v_rcp_f32 v3, v3
v_mul_f32 v2, v2, v3
v_cvt_f16_f32 v2, v2
v_div_fixup_f16 v0, v2, v1, v0
v_mul_f16 v0, v0, v0
s_endpgm""",
        "gfx1030",
    )
    steps = division_steps(function)
    assert [row.mnemonic for row in function.instructions if (row.offset, 0) in steps] == [
        "v_rcp_f32_e32", "v_mul_f32_e32", "v_cvt_f16_f32_e32",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("processor", "text", "is_known"),
    [
        ("gfx942", "v_add_f32_dpp v0, v1, v2 row_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:1", True),
        ("gfx942", "v_add_f32_dpp v0, v1, v2 row_shr:1 row_mask:0xf bank_mask:0xf", False),
        ("gfx942", "v_add_f32_dpp v0, v1, v2 row_bcast:15 row_mask:0xa bank_mask:0xf bound_ctrl:1", False),
        ("gfx1100", "v_add_f32_dpp v0, v1, v2 dpp8:[7,6,5,4,3,2,1,0] fi:1", True),
        ("gfx1100", "v_add_f32_dpp v0, v1, v2 dpp8:[7,6,5,4,3,2,1,0]", False),
        ("gfx942", "v_add_f16_sdwa v0, v1, v2 dst_sel:BYTE_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD",
         False),
    ],
)  # fmt: skip
def test_a_result_that_not_all_lanes_may_have_is_none(processor: str, text: str, is_known: bool) -> None:
    texts = SiteOperandTexts(_decoded(text, processor).instructions[0], int(processor[3:-2]))
    if is_known:
        assert texts.result().text == "v0"
        return
    with pytest.raises(NoValueError, match="has no OUT: "):
        texts.result()


def test_what_a_processor_has_no_instruction_for_is_named() -> None:
    assert named_on(_tracepoint("add.f32 | tanh.f32 | memory | v_mov_b32"), "gfx1030") == (["v_add_f32"], ["tanh.f32"])
    assert named_on(_tracepoint("cvt.bf16x2.f32"), "gfx950") == (["v_cvt_pk_bf16_f32"], [])
    assert named_on(_tracepoint("cvt.bf16x2.f32"), "gfx942") == ([], ["cvt.bf16x2.f32"])
    assert named_on(_tracepoint("bar.sync"), "gfx1201") == (["s_barrier_wait"], [])


@pytest.mark.diagonal(3)
@pytest.mark.parametrize(
    "probe", ["barrier_wait", "branch_divergence", "nan_finder", "program_progress", "tensorop", "value_watch"]
)
@pytest.mark.parametrize("processor", PROCESSORS)
def test_shipped_probes_are_valid(probe: str, processor: str) -> None:
    found = check_probes([probe], platform="hip", device=processor).diagnostics
    # The clock of gfx11 is another one.
    assert [one for one in found if one.code != "clock-unit"] == []
    assert bool(found) == (processor == "gfx1100" and probe in ("barrier_wait", "program_progress"))
