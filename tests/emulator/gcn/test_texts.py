"""Instructions one by one: what no compiler of the other tests writes, and what must be noticed."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from neutrino.emulator.gcn.errors import GcnFaultError, UnknownInstructionError
from neutrino.emulator.gcn.memory import Memory
from tests.emulator.gcn.by_text import run

_LANE = np.arange(64)


def _scalars(text: str, processor: str = "gfx942") -> tuple[list[int], int]:
    ended = run(text, processor)
    return ended.s, ended.scc


# ---------------------------------------------------------------- what is not known


@pytest.mark.parametrize(
    "text", ["v_frobnicate_b32 v1, v0", "s_frobnicate_b32 s4, s5", "global_frobnicate v0, v[2:3], off"]
)
def test_unknown_instructions_are_named(text: str) -> None:
    with pytest.raises(UnknownInstructionError) as caught:
        run(text)
    assert caught.value.text == text


def test_unknown_instructions_that_are_not_executed_do_not_matter() -> None:
    assert run("s_branch behind\nv_frobnicate_b32 v1, v0\nbehind:\ns_mov_b32 s5, 3").s[5] == 3


# ---------------------------------------------------------------- scalars


def test_carries_and_borrows() -> None:
    s, scc = _scalars(
        "s_mov_b32 s4, -1\ns_add_u32 s5, s4, 1\ns_addc_u32 s6, 0, 0\ns_sub_u32 s7, 0, 1\ns_subb_u32 s8, 5, 1"
    )
    assert (s[5], s[6], s[7], s[8], scc) == (0, 1, 0xFFFFFFFF, 3, 0)


def test_signed_overflow_is_scc() -> None:
    assert _scalars("s_mov_b32 s4, 0x7fffffff\ns_add_i32 s5, s4, 1")[1] == 1
    assert _scalars("s_mov_b32 s4, 0x7fffffff\ns_add_i32 s5, s4, -1")[1] == 0


def test_wide_sums_of_gfx12_leave_scc() -> None:
    s, scc = _scalars("s_mov_b64 s[4:5], -1\ns_cmp_eq_u32 0, 0\ns_add_nc_u64 s[4:5], s[4:5], 2", "gfx1201")
    assert (s[4], s[5], scc) == (1, 0, 1)


def test_fields_and_counts_of_bits() -> None:
    s, _ = _scalars(
        "s_mov_b32 s4, 0xf0\ns_bfe_u32 s5, s4, 0x40004\ns_bfe_i32 s6, s4, 0x40004\ns_bcnt1_i32_b32 s7, s4\n"
        "s_ff1_i32_b32 s8, s4\ns_flbit_i32_b32 s9, s4\ns_ff1_i32_b32 s10, 0\ns_bfm_b32 s11, 4, 3"
    )
    assert s[5:12] == [15, 0xFFFFFFFF, 4, 4, 24, 0xFFFFFFFF, 0x78]


def test_exec_is_saved_and_restored() -> None:
    ended = run(
        "s_mov_b64 s[4:5], 0xff\ns_and_saveexec_b64 s[6:7], s[4:5]\nv_mov_b32_e32 v1, 7\ns_mov_b64 exec, s[6:7]"
    )
    assert (ended.v[1] == 7).sum() == 8
    assert (ended.v[1, :8] == 7).all()
    assert (ended.s[6], ended.s[7]) == (0xFFFFFFFF, 0xFFFFFFFF)


def test_clocks_grow() -> None:
    s, _ = _scalars("s_memtime s[4:5]\ns_memtime s[6:7]\ns_memrealtime s[8:9]")
    assert s[6] > s[4]
    assert s[9] > s[7]
    s, _ = _scalars(
        "s_getreg_b32 s4, hwreg(HW_REG_SHADER_CYCLES, 0, 20)\ns_sendmsg_rtn_b64 s[6:7], sendmsg(MSG_RTN_GET_REALTIME)\n"
        "s_getreg_b32 s5, hwreg(HW_REG_SHADER_CYCLES, 0, 20)",
        "gfx1100",
    )
    assert 0 < s[4] < s[5] < 1 << 20


# ---------------------------------------------------------------- vectors


def test_denormal_numbers_are_as_mode_says() -> None:
    text = "v_mov_b32_e32 v1, 0x00000400\nv_add_f32_e32 v2, v1, v1\nv_mul_f32_e32 v3, 1.0, v1"
    kept = run(text)
    assert (kept.v[2] == 0x800).all()
    assert (kept.v[3] == 0x400).all()
    flushed = run(text, mode=0xC0)
    assert not flushed.v[2].any()
    assert not flushed.v[3].any()
    # Changed on the way.
    changed = run(f"s_mov_b32 s4, 0\ns_setreg_b32 hwreg(HW_REG_MODE, 4, 2), s4\n{text}")
    assert not changed.v[2].any()


def test_results_are_rounded_as_mode_says() -> None:
    text = "v_mov_b32_e32 v1, 0x33800000\nv_add_f32_e32 v2, 1.0, v1\nv_sub_f32_e32 v3, 1.0, 1.0"
    sums = [run(text, mode=0xF0 | mode).v[2:4, 0].tolist() for mode in range(4)]
    # To nearest and even, up, down (where nothing is -0), and toward 0.
    assert sums == [[0x3F800000, 0], [0x3F800001, 0], [0x3F800000, 0x80000000], [0x3F800000, 0]]
    changed = run(f"s_round_mode 0x1\n{text}", "gfx1100")
    assert changed.v[2, 0] == 0x3F800001


def test_what_is_not_known_to_be_rounded_is_refused() -> None:
    with pytest.raises(UnknownInstructionError, match="rounding mode"):
        run("v_add_f64 v[2:3], 1.0, 1.0", mode=0xF4)
    with pytest.raises(UnknownInstructionError, match="rounding mode"):
        run("v_rcp_f32_e32 v2, 1.0", mode=0xF1)


def test_fused_sums_round_once() -> None:
    # 1 + 2^-23 squared is 1 + 2^-22 + 2^-46: with 2^-46 less than nothing is left of the last part.
    ended = run("v_mov_b32_e32 v1, 0x3f800001\nv_mov_b32_e32 v2, 0xbf800002\nv_fma_f32 v3, v1, v1, v2")
    assert (ended.f(3) == np.float32(2.0**-46)).all()


def test_modifiers_of_floats() -> None:
    ended = run(
        "v_mov_b32_e32 v1, -4.0\nv_add_f32_e64 v2, |v1|, -v1 mul:2\nv_add_f32_e64 v3, |v1|, -v1 clamp\n"
        "v_mul_f32_e64 v4, v1, 0.5 div:2"
    )
    assert (ended.f(2)[0], ended.f(3)[0], ended.f(4)[0]) == (16, 1, -1)


@pytest.mark.parametrize(
    ("control", "source", "valid"),
    [
        ("quad_perm:[1,0,3,2]", _LANE ^ 1, _LANE >= 0),
        ("row_shl:3", _LANE + 3, _LANE % 16 < 13),
        ("row_shr:1", _LANE - 1, _LANE % 16 > 0),
        ("row_ror:4", _LANE // 16 * 16 + (_LANE - 4) % 16, _LANE >= 0),
        ("row_mirror", _LANE ^ 15, _LANE >= 0),
        ("row_half_mirror", _LANE ^ 7, _LANE >= 0),
        ("row_bcast:15", _LANE // 16 * 16 - 1, _LANE > 15),
        ("row_bcast:31", _LANE * 0 + 31, _LANE > 31),
        ("wave_shr:1", _LANE - 1, _LANE > 0),
        ("row_newbcast:5", _LANE // 16 * 16 + 5, _LANE >= 0),
    ],
)
def test_dpp_moves_lanes(control: str, source: np.ndarray, valid: np.ndarray) -> None:
    for bound, outside in (("", 99), (" bound_ctrl:1", 0)):
        ended = run(
            f"v_mov_b32_e32 v1, 0x63\nv_lshlrev_b32_e32 v2, 1, v0\n"
            f"v_mov_b32_dpp v1, v2 {control} row_mask:0xf bank_mask:0xf{bound}"
        )
        assert (ended.v[1] == np.where(valid, 2 * np.clip(source, 0, 63), outside)).all()


def test_dpp_leaves_out_rows_banks_and_lanes_that_are_not_active() -> None:
    ended = run("v_mov_b32_e32 v1, 0x63\nv_mov_b32_dpp v1, v0 quad_perm:[0,1,2,3] row_mask:0xa bank_mask:0x3")
    assert (ended.v[1] == np.where((_LANE // 16 % 2 == 1) & (_LANE // 4 % 4 < 2), _LANE, 99)).all()
    ended = run(
        "v_mov_b32_e32 v1, 0x63\ns_mov_b64 exec, 0x55\n"
        "v_mov_b32_dpp v1, v0 quad_perm:[1,0,2,2] row_mask:0xf bank_mask:0xf"
    )
    # Lanes 0 and 4 read lanes 1 and 5, which are not active.
    assert [int(ended.v[1, lane]) for lane in range(8)] == [99, 99, 2, 99, 99, 99, 6, 99]


def test_lanes_are_read_and_written_whatever_exec_is() -> None:
    ended = run(
        "s_mov_b64 exec, 0\nv_readlane_b32 s4, v0, 9\nv_mov_b32_e32 v1, 1\nv_writelane_b32 v2, 77, 5\n"
        "v_readfirstlane_b32 s5, v0\ns_mov_b64 exec, 0xf0\nv_readfirstlane_b32 s6, v0"
    )
    assert (ended.s[4], ended.s[5], ended.s[6], int(ended.v[2, 5])) == (9, 0, 4, 77)


def test_permutations_through_lds_hardware() -> None:
    ended = run(
        "v_lshlrev_b32_e32 v1, 2, v0\nv_xor_b32_e32 v1, 20, v1\nds_bpermute_b32 v2, v1, v0\ns_waitcnt lgkmcnt(0)"
    )
    assert (ended.v[2] == (_LANE ^ 5)).all()
    ended = run("v_lshlrev_b32_e32 v1, 3, v0\nds_permute_b32 v2, v1, v0\ns_waitcnt lgkmcnt(0)", "gfx90a")
    # Lanes 32 and on write the same places again; the highest one stays.
    assert (ended.v[2] == np.where(_LANE % 2 == 0, _LANE // 2 + 32, 0)).all()


def test_rows_and_halves_of_a_wave_are_swapped() -> None:
    ended = run("v_mov_b32_e32 v1, v0\nv_add_u32_e32 v2, 0x64, v0\nv_permlane32_swap_b32_e32 v1, v2", "gfx950")
    assert (ended.v[1] == np.where(_LANE < 32, _LANE, _LANE - 32 + 100)).all()
    assert (ended.v[2] == np.where(_LANE < 32, _LANE + 32, _LANE + 100)).all()
    ended = run("v_permlanex16_b32 v1, v0, 0x76543210, 0xfedcba98", "gfx1100")
    assert (ended.v[1] == (np.arange(32) ^ 16)).all()


def test_parts_of_registers() -> None:
    ended = run(
        "v_mov_b32_e32 v1, 0x81828384\nv_mov_b32_e32 v2, 0x11111111\n"
        "v_add_u32_sdwa v3, v1, sext(v1) dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_1 src1_sel:WORD_1\n"
        "v_mov_b32_sdwa v2, v1 dst_sel:BYTE_2 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_0",
        "gfx90a",
    )
    assert (ended.v[3] == (0x83 + 0xFFFF8182)).all()
    assert (ended.v[2] == 0x11841111).all()


def test_results_of_16_bits_clear_or_keep_the_upper_half() -> None:
    text = "v_mov_b32_e32 v1, 0x12340003\nv_add_u16_e32 v1, 1, v1"
    assert (run(text, "gfx942").v[1] == 4).all()
    assert (run(text.replace("u16_e32 v1, 1, v1", "nc_u16 v1, v1, 1"), "gfx1030").v[1] == 0x12340004).all()
    assert (run("v_mov_b32_e32 v1, 0x12340003\nv_mov_b16_e32 v1.h, v1.l", "gfx1100").v[1] == 0x30003).all()


def test_m0_indexes_registers() -> None:
    ended = run(
        "v_mov_b32_e32 v7, 5\ns_mov_b32 s4, 3\ns_set_gpr_idx_on s4, gpr_idx(SRC0)\nv_mov_b32_e32 v1, v4\n"
        "s_set_gpr_idx_off\nv_mov_b32_e32 v2, v4\nv_mov_b32_e32 v3, v1",
        "gfx90a",
    )
    assert (ended.v[1] == 5).all()
    assert (ended.v[3] == 5).all()
    assert not (ended.v[2] == 5).all()


def test_dual_instructions_read_before_they_write() -> None:
    ended = run("v_mov_b32_e32 v1, 1\nv_mov_b32_e32 v2, 2\nv_dual_mov_b32 v1, v2 :: v_dual_mov_b32 v2, v1", "gfx1100")
    assert (ended.v[1] == 2).all()
    assert (ended.v[2] == 1).all()


# ---------------------------------------------------------------- memory


def test_buffers_have_bounds() -> None:
    memory = Memory(1 << 20)
    at = memory.put(np.arange(64, dtype=np.uint32))
    ended = run(
        "s_load_dwordx2 s[4:5], s[0:1], 0x0\ns_waitcnt lgkmcnt(0)\ns_mov_b32 s6, 0x80\ns_mov_b32 s7, 0x27000\n"
        "v_lshlrev_b32_e32 v1, 2, v0\nv_mov_b32_e32 v2, 7\nbuffer_load_dword v2, v1, s[4:7], 0 offen\n"
        "buffer_store_dword v0, v1, s[4:7], 0 offen offset:4\ns_waitcnt vmcnt(0)",
        memory=memory,
        kernarg=struct.pack("<Q", at),
    )
    assert (ended.v[2] == np.where(_LANE < 32, _LANE, 0)).all()
    after = np.frombuffer(memory.read(at, 256), np.uint32)
    assert (after == np.where((_LANE > 0) & (_LANE < 32), _LANE - 1, _LANE)).all()


def test_loads_go_to_lds() -> None:
    memory = Memory(1 << 20)
    at = memory.put(np.arange(64, dtype=np.uint32) * 3)
    ended = run(
        "s_load_dwordx2 s[4:5], s[0:1], 0x0\nv_lshlrev_b32_e32 v1, 2, v0\ns_mov_b32 m0, 0x40\ns_waitcnt lgkmcnt(0)\n"
        "global_load_lds_dword v1, s[4:5]\ns_waitcnt vmcnt(0)\nds_read_b32 v2, v1 offset:64\ns_waitcnt lgkmcnt(0)",
        memory=memory,
        kernarg=struct.pack("<Q", at),
        lds=512,
    )
    assert (ended.v[2] == _LANE * 3).all()


def test_flat_addresses_reach_lds_and_scratch() -> None:
    ended = run(
        "s_mov_b64 s[4:5], src_shared_base\nv_lshlrev_b32_e32 v2, 2, v0\nv_mov_b32_e32 v3, s5\nds_write_b32 v2, v0\n"
        "s_mov_b64 s[6:7], src_private_base\nv_mov_b32_e32 v4, 8\nv_mov_b32_e32 v5, s7\n"
        "scratch_store_dword off, v2, off offset:8\n"
        "s_waitcnt vmcnt(0) lgkmcnt(0)\nflat_load_dword v6, v[2:3]\nflat_load_dword v7, v[4:5]\n"
        "s_waitcnt vmcnt(0) lgkmcnt(0)",
        lds=256,
        scratch=16,
    )
    assert (ended.v[6] == _LANE).all()
    assert (ended.v[7] == 4 * _LANE).all()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("v_mov_b32_e32 v1, 0x100\nds_read_b32 v2, v1", "lds"),
        ("scratch_load_dword v2, off, off offset:16", "scratch"),
        ("s_load_dwordx2 s[4:5], s[0:1], 0x10", "memory"),
        ("v_mov_b32_e32 v2, 0\nv_mov_b32_e32 v3, 0\nglobal_load_dword v4, v[2:3], off", "memory"),
        ("s_trap 2", "trap"),
        ("here:\ns_branch here", "limit"),
        ("s_mov_b64 s[4:5], 0\ns_setpc_b64 s[4:5]\ns_nop 0", "limit"),
        ("s_mov_b64 s[4:5], 2\ns_setpc_b64 s[4:5]", "code"),
    ],
)
def test_faults_are_named(text: str, kind: str) -> None:
    with pytest.raises(GcnFaultError) as caught:
        run(text, lds=256, scratch=16, limit=1000)
    assert caught.value.kind == kind


# ---------------------------------------------------------------- checks


_POINTER = "s_load_dwordx2 s[4:5], s[0:1], 0x0\ns_waitcnt lgkmcnt(0)\nv_lshlrev_b32_e32 v1, 2, v0\n"
_TWO = f"{_POINTER}global_load_dword v2, v1, s[4:5]\nglobal_load_dword v3, v1, s[4:5]\n"


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        (f"{_TWO}s_waitcnt vmcnt(1)\nv_mov_b32_e32 v4, v2", True),
        (f"{_TWO}s_waitcnt vmcnt(1)\nv_mov_b32_e32 v4, v3", False),
        (f"{_TWO}s_waitcnt lgkmcnt(0)\nv_mov_b32_e32 v4, v2", False),
        (f"{_TWO}v_mov_b32_e32 v2, 0", False),
        (f"{_TWO}s_waitcnt vmcnt(0)\nv_mov_b32_e32 v2, v3", True),
        # Scalar loads arrive in any order.
        ("s_load_dword s4, s[0:1], 0x0\ns_load_dword s5, s[0:1], 0x4\ns_waitcnt lgkmcnt(1)\ns_mov_b32 s6, s4", False),
        ("s_load_dword s4, s[0:1], 0x0\ns_load_dword s5, s[0:1], 0x4\ns_waitcnt lgkmcnt(0)\ns_mov_b32 s6, s4", True),
        ("s_memtime s[4:5]\ns_add_u32 s4, s4, 1", False),
        # Both halves of a register are loaded by themselves.
        (f"{_POINTER}global_load_short_d16 v2, v1, s[4:5]\nglobal_load_short_d16_hi v2, v1, s[4:5]\n"
            "s_waitcnt vmcnt(1)\n"
         "ds_write_b16 v1, v2", True),
        (f"{_POINTER}global_load_short_d16 v2, v1, s[4:5]\nglobal_load_short_d16_hi v2, v1, s[4:5]\n"
            "s_waitcnt vmcnt(1)\n"
         "ds_write_b32 v1, v2", False),
    ],
)  # fmt: skip
def test_waits_are_checked(text: str, is_right: bool) -> None:
    memory = Memory(1 << 20)
    kernarg = struct.pack("<Q", memory.put(np.arange(64, dtype=np.uint32)))
    if is_right:
        run(text, memory=memory, kernarg=kernarg, lds=256, checks=True)
        return
    with pytest.raises(GcnFaultError) as caught:
        run(text, memory=memory, kernarg=kernarg, lds=256, checks=True)
    assert caught.value.kind == "wait"


def test_waits_of_gfx12_count_apart() -> None:
    text = (
        "s_load_b64 s[4:5], s[0:1], 0x0\ns_wait_kmcnt 0x0\nv_lshlrev_b32_e32 v1, 2, v0\n"
        "global_load_b32 v2, v1, s[4:5]\n"
    )
    memory = Memory(1 << 20)
    kernarg = struct.pack("<Q", memory.put(np.arange(64, dtype=np.uint32)))
    ended = run(
        f"{text}s_wait_loadcnt_dscnt 0x3f\nv_mov_b32_e32 v3, v2", "gfx1201", memory=memory, kernarg=kernarg, checks=True
    )
    assert (ended.v[3] == np.arange(32)).all()
    with pytest.raises(GcnFaultError, match="before the wait"):
        run(f"{text}s_wait_dscnt 0x0\nv_mov_b32_e32 v3, v2", "gfx1201", memory=memory, kernarg=kernarg, checks=True)


@pytest.mark.parametrize(
    ("text", "processor", "is_right"),
    [
        ("v_mov_b32_e32 v7, 0\ns_mov_b32 s15, 0", "gfx90a", True),
        ("v_mov_b32_e32 v8, 0", "gfx90a", False),
        ("s_mov_b32 s16, 0", "gfx942", False),
        ("v_accvgpr_write_b32 a0, 0", "gfx942", False),
            ("v_mov_b32_e32 v7, 0\ns_mov_b32 s101, 0", "gfx1100", True),
        ("v_mov_b32_e32 v8, 0", "gfx1100", False),
        ("v_mov_b32_e32 v3, 0", "gfx906", True),
        ("v_mov_b32_e32 v4, 0", "gfx906", False),
    ],
)
def test_registers_that_the_descriptor_does_not_give(text: str, processor: str, is_right: bool) -> None:
    if is_right:
        run(text, processor, registers=0, checks=True)
        return
    with pytest.raises(GcnFaultError, match="which the descriptor does not give") as caught:
        run(text, processor, registers=0, checks=True)
    assert caught.value.kind == "register"


def test_clauses_have_accesses_alone() -> None:
    text = f"{_POINTER.replace('dwordx2', 'b64')}s_clause 0x1\nglobal_load_b32 v2, v1, s[4:5]\n"
    rest = "global_load_b32 v3, v1, s[4:5]\ns_waitcnt vmcnt(0)\nv_mov_b32_e32 v4, v3"
    memory = Memory(1 << 20)
    kernarg = struct.pack("<Q", memory.put(np.arange(64, dtype=np.uint32)))
    run(text + rest, "gfx1100", memory=memory, kernarg=kernarg, checks=True)
    with pytest.raises(GcnFaultError) as caught:
        run(f"{text}s_nop 0\n{rest}", "gfx1100", memory=memory, kernarg=kernarg, checks=True)
    assert caught.value.kind == "clause"


def test_registers_that_nothing_wrote_are_reported() -> None:
    ended = run("v_mov_b32_e32 v1, v9\ns_mov_b32 s4, s30\nv_mov_b32_e32 v2, v0", checks=True)
    assert set(ended.statistics.undefined) == {0, 1}
    assert not (run("v_mov_b32_e32 v1, v9", poison=1).v[1] == run("v_mov_b32_e32 v1, v9", poison=2).v[1]).all()


# ---------------------------------------------------------------- waves


def test_waves_begin_as_documented() -> None:
    kernel = "v_and_b32_e32 v1, 0x3ff, v0\nv_bfe_u32 v2, v0, 10, 10\nv_mov_b32_e32 v3, s2"
    ended = run(kernel, block=(8, 8, 1))
    assert (ended.v[1] == _LANE % 8).all()
    assert (ended.v[2] == _LANE // 8).all()
    assert not ended.v[3].any()
    ended = run("v_mov_b32_e32 v3, v1", "gfx1030", block=(32, 1, 1))
    assert (ended.v[0] == np.arange(32)).all()
    ended = run(
        "s_mov_b32 s4, ttmp9\ns_bfe_u32 s5, ttmp8, 0x50019\ns_and_b32 s6, ttmp7, 0xffff", "gfx1201", grid=(3, 2, 1)
    )
    assert ended.s[4:7] == [0, 0, 0]


def test_lanes_beyond_the_block_are_not_active() -> None:
    assert run("v_mov_b32_e32 v1, 0", block=(40, 1, 1)).mask.sum() == 40


def test_every_order_of_waves_is_tried() -> None:
    """Waves that add and read without a barrier see one another in some order."""
    text = (
        "s_load_dwordx2 s[4:5], s[0:1], 0x0\ns_waitcnt lgkmcnt(0)\nv_mov_b32_e32 v1, 0\nv_mov_b32_e32 v2, 1\n"
        "global_atomic_add v3, v1, v2, s[4:5] sc0\ns_waitcnt vmcnt(0)"
    )
    seen = set()
    for seed in range(8):
        memory = Memory(1 << 20)
        at = memory.put(np.zeros(1, np.uint32))
        ended = run(text, memory=memory, kernarg=struct.pack("<Q", at), block=(256, 1, 1), seed=seed)
        assert memory.read(at, 4) == (256).to_bytes(4, "little")
        seen.add(int(ended.v[3, 0]))
    assert len(seen) > 1
