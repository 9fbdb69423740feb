"""Decoded functions: what an instruction's text is taken apart into, where branches lead, what is refused."""

from __future__ import annotations

import pytest

from neutrino.errors import ToolMissingError
from neutrino.gcn.code import Function, Instruction, PcLiteral, decode, split_target
from neutrino.gcn.llvm import Llvm, find_llvm


@pytest.fixture(scope="module")
def llvm() -> Llvm:
    try:
        return find_llvm("gfx942")
    except ToolMissingError as error:
        pytest.skip(error.hint)


def decoded(llvm: Llvm, text: str, processor: str, wave: int = 64, address: int = 0x1000) -> Function:
    features = "+wavefrontsize64,-wavefrontsize32" if wave == 64 and processor.startswith("gfx1") else ""
    code = llvm.assemble(text, processor, features)
    (function,) = decode([("kernel", address, code, True, wave)], processor, "", llvm).functions
    assert function.code == code
    assert [i.offset for i in function.instructions] == [0, *(i.end for i in function.instructions[:-1])]
    return function


@pytest.mark.parametrize(("processor", "text", "operands", "modifiers"), [
    ("gfx942", "s_endpgm", (), ()),
    ("gfx942", "s_waitcnt vmcnt(0) lgkmcnt(1)", ("vmcnt(0)", "lgkmcnt(1)"), ()),
    ("gfx942", "buffer_inv sc0 sc1", (), ("sc0", "sc1")),
    ("gfx942", "global_load_dwordx2 v[0:1], v2, s[4:5] offset:-8 sc0 nt",
     ("v[0:1]", "v2", "s[4:5]"), ("offset:-8", "sc0", "nt")),
    ("gfx942", "buffer_load_dword v0, v1, s[4:7], 0 offen offset:4",
     ("v0", "v1", "s[4:7]", "0"), ("offen", "offset:4")),
    ("gfx942", "s_getreg_b32 s0, hwreg(HW_REG_HW_ID, 8, 4)", ("s0", "hwreg(HW_REG_HW_ID, 8, 4)"), ()),
    ("gfx942", "v_mov_b32_dpp v0, v1 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf",
     ("v0", "v1"), ("quad_perm:[1,0,3,2]", "row_mask:0xf", "bank_mask:0xf")),
    ("gfx942", "v_fma_f32 v0, -v1, |v2|, v3 clamp", ("v0", "-v1", "|v2|", "v3"), ("clamp",)),
    ("gfx942", 'ds_swizzle_b32 v0, v1 offset:swizzle(BITMASK_PERM,"00p11")',
     ("v0", "v1"), ('offset:swizzle(BITMASK_PERM,"00p11")',)),
    ("gfx1100", "s_delay_alu instid0(VALU_DEP_1) | instskip(NEXT) | instid1(VALU_DEP_2)",
     ("instid0(VALU_DEP_1)", "instskip(NEXT)", "instid1(VALU_DEP_2)"), ()),
    ("gfx1201", "global_wb scope:SCOPE_SYS", (), ("scope:SCOPE_SYS",)),
])  # fmt: skip
def test_parts_of_a_text(
    llvm: Llvm, processor: str, text: str, operands: tuple[str, ...], modifiers: tuple[str, ...]
) -> None:
    (instruction,) = decoded(llvm, text, processor).instructions
    assert (instruction.mnemonic, instruction.operands, instruction.modifiers) == (
        text.split(maxsplit=1)[0],
        operands,
        modifiers,
    )
    assert instruction.second is None


def test_two_in_one(llvm: Llvm) -> None:
    text = "v_dual_mov_b32 v0, v1 :: v_dual_add_f32 v3, v3, v5"
    (instruction,) = decoded(llvm, text, "gfx1100", wave=32).instructions
    assert (instruction.mnemonic, instruction.operands) == ("v_dual_mov_b32", ("v0", "v1"))
    assert instruction.second == ("v_dual_add_f32", ("v3", "v3", "v5"))


def test_data_has_no_mnemonic(llvm: Llvm) -> None:
    function = decoded(llvm, "s_nop 0\n.long 0xffffffff\ns_endpgm", "gfx942")
    assert function.instructions[1] == Instruction(4, 4, "", (), (), "")


@pytest.mark.parametrize("processor", ["gfx90a", "gfx1030", "gfx1201"])
def test_branches_lead_to_offsets(llvm: Llvm, processor: str) -> None:
    function = decoded(llvm, "a: s_nop 0\ns_cbranch_scc1 b\ns_branch a\nb: s_call_b64 s[0:1], a\ns_endpgm", processor)
    assert [i.target for i in function.instructions] == [None, 12, 0, 0, None]
    assert not function.refused


@pytest.mark.parametrize(("text", "reason"), [
    ("s_branch 2\ns_endpgm", "s_branch at 0x0 leads out of the function"),
    ("s_nop 0\ns_branch 0xfffd\ns_endpgm", "s_branch at 0x4 leads out of the function"),
    ("s_branch 1\ns_mov_b32 s0, 0x12345", "s_branch at 0x0 leads into an instruction"),
    ("s_getpc_b64 s[0:1]\ns_endpgm", "s_getpc_b64 at 0x0 without a literal that is added to it"),
    ("s_getpc_b64 s[0:1]\ns_add_u32 s0, s0, 64\ns_addc_u32 s1, s1, 0",
     "s_getpc_b64 at 0x0 without a literal that is added to it"),
    ("s_getpc_b64 s[0:1]\ns_mov_b32 s1, 0\ns_add_u32 s0, s0, 0x1234\ns_addc_u32 s1, s1, 0x1234",
     "s_getpc_b64 at 0x0 without a literal that is added to it"),
    ("s_cbranch_i_fork s[0:1], 0\ns_endpgm", "s_cbranch_i_fork at 0x0 depends on its own place"),
])  # fmt: skip
def test_what_cannot_be_moved_is_refused_by_name(llvm: Llvm, text: str, reason: str) -> None:
    assert decoded(llvm, text, "gfx90a").refused == reason


def test_subvector_loops_are_refused_by_name(llvm: Llvm) -> None:
    text = "a: s_subvector_loop_begin s0, b\ns_subvector_loop_end s0, a\nb: s_endpgm"
    assert decoded(llvm, text, "gfx1030", wave=32).refused == "s_subvector_loop_begin at 0x0 depends on its own place"


@pytest.mark.parametrize(("processor", "low", "high", "between"), [
    ("gfx942", "s_add_u32", "s_addc_u32", ""),
    ("gfx1100", "s_add_u32", "s_addc_u32", "s_delay_alu instid0(SALU_CYCLE_1)\n"),
    ("gfx1201", "s_add_co_u32", "s_add_co_ci_u32", "s_wait_alu 0xfffe\n"),
])  # fmt: skip
@pytest.mark.parametrize("distance", [0x20, -0x40, 0x1_2345_6780])
def test_literals_of_program_counters(
    llvm: Llvm, processor: str, low: str, high: str, between: str, distance: int
) -> None:
    """The sum that the hardware forms: the address behind ``s_getpc_b64``, and the distance."""
    text = (
        f"s_nop 0\ns_getpc_b64 s[4:5]\n{between}{low} s4, s4, lit({distance & 0xFFFFFFFF})\n"
        f"{between}{high} s5, s5, lit({distance >> 32 & 0xFFFFFFFF})\ns_endpgm"
    )
    function = decoded(llvm, text, processor)
    first = 12 + 4 * bool(between)
    second = first + 8 + 4 * bool(between)
    assert function.literals == (PcLiteral(4, first, second, 0x1008 + distance),)
    assert function.code[first : first + 4] + function.code[second : second + 4] == distance.to_bytes(
        8, "little", signed=True
    )
    assert not function.refused


def test_functions_of_both_wave_sizes_are_refused(llvm: Llvm) -> None:
    (function,) = decode([("f", 0, llvm.assemble("s_endpgm", "gfx1100"), False, 0)], "gfx1100", "", llvm).functions
    assert function.refused == "kernels with waves of 32 and of 64 lanes may call it"


def test_target_ids_have_features() -> None:
    assert split_target("gfx942:sramecc+:xnack-") == ("gfx942", "+sramecc,-xnack")
    assert split_target("gfx1100") == ("gfx1100", "")
