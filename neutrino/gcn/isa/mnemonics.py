"""The instructions of AMD's processors that may stand in a kernel that gets probes, by what they do with registers.

One table. What is not in it is not known, and a kernel that has it gets no probes. Sources: AMD's manuals of the
instruction sets ("Vega", "CDNA 3", "RDNA 2", "RDNA 3", "RDNA 4"); LLVM's listing of implicit operands judges it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

# A row: names; how many of the first operands are written; marks. In a name ``{a,b}`` stands for either. Marks:
#     c C   reads, writes SCC             v V   reads, writes VCC without naming it
#     e E   reads, writes EXEC            m M   reads, writes M0
#     o O   reads, writes MODE            t     what is written is read as well
#     b     goes elsewhere, or ends       k     calls a function
#     x     VGPRs by an index             r     gives the old value where a modifier says so
#     d     what is written keeps its other half, so it is read as well
_Row = tuple[str, int, str]

_COMPARED = "{f,lt,eq,le,gt,lg,ge,o,u,nge,nlg,ngt,nle,neq,nlt,tru,t,ne,class}_{f16,f32,f64,i16,u16,i32,u32,i64,u64}"
_ORDERED = "{eq,lg,gt,ge,lt,le}"
_FLOAT_ORDERED = "{lt,eq,le,gt,lg,ge,o,u,nge,nlg,ngt,nle,neq,nlt}_{f16,f32}"
_LOGIC = "{and,or,xor,andn2,orn2,nand,nor,xnor,and_not1,or_not1,andn1,orn1,and_not0,or_not0}"

_SCALAR: tuple[_Row, ...] = (
    # Two operands.
    ("s_{add,sub}_{u32,i32,co_u32,co_i32} s_{min,max}_{u32,i32} s_absdiff_i32 s_lshl{1,2,3,4}_add_u32", 1, "C"),
    ("s_{addc,subb}_u32 s_{add,sub}_co_ci_u32", 1, "cC"),
    ("s_{and,or,xor,andn2,orn2,nand,nor,xnor,and_not1,or_not1}_b{32,64}", 1, "C"),
    ("s_{lshl,lshr}_b{32,64} s_ashr_i{32,64} s_bfe_{u32,i32,u64,i64}", 1, "C"),
    ("s_mul_i32 s_mul_hi_{u32,i32} s_mul_u64 s_bfm_b{32,64} s_pack_{ll,lh,hh,hl}_b32_b16 s_{add,sub}_nc_u64", 1, ""),
    ("s_cselect_b{32,64}", 1, "c"),
    ("s_{add,sub,mul,min,max,minimum,maximum,min_num,max_num}_f{16,32} s_fma{ak,mk}_f32", 1, "o"),
    ("s_cvt_pk_rtz_f16_f32", 1, "o"),
    ("s_fmac_f{16,32}", 1, "to"),
    # One operand.
    ("s_mov_b{32,64} s_movk_i32 s_brev_b{32,64} s_sext_i32_i{8,16} s_bitreplicate_b64_b32", 1, ""),
    ("s_ff{0,1}_i32_b{32,64} s_flbit_i32_b{32,64} s_flbit_i32{,_i64} s_ctz_i32_b{32,64} s_clz_i32_u{32,64}", 1, ""),
    ("s_cls_i32{,_i64}", 1, ""),
    ("s_bitset{0,1}_b{32,64}", 1, "t"),
    ("s_not_b{32,64} s_wqm_b{32,64} s_quadmask_b{32,64} s_bcnt{0,1}_i32_b{32,64} s_abs_i32", 1, "C"),
    ("s_cmov_b{32,64} s_cmovk_i32", 1, "tc"),
    (f"s_{_LOGIC}_saveexec_b{{32,64}}", 1, "eEC"),
    ("s_{andn1,andn2,and_not0,and_not1}_wrexec_b{32,64}", 1, "eEC"),
    ("s_cvt_{f32_i32,f32_u32,i32_f32,u32_f32,f16_f32,f32_f16,hi_f32_f16}", 1, "o"),
    ("s_{ceil,floor,trunc,rndne}_f{16,32}", 1, "o"),
    # Compared, or with a constant.
    (f"s_cmp_{_ORDERED}_{{i32,u32}} s_cmp_{{eq,lg}}_u64 s_cmpk_{_ORDERED}_{{i32,u32}}", 0, "C"),
    ("s_bitcmp{0,1}_b{32,64}", 0, "C"),
    (f"s_cmp_{_FLOAT_ORDERED}", 0, "Co"),
    ("s_addk_i32 s_addk_co_i32", 1, "tC"),
    ("s_mulk_i32", 1, "t"),
    ("s_getreg_b32", 1, "o"),
    ("s_setreg_b32 s_setreg_imm32_b32 s_round_mode s_denorm_mode", 0, "oO"),
    ("s_set_gpr_idx_on", 0, "mMoOx"),
    ("s_set_gpr_idx_{off,mode}", 0, "mMoOx"),
    ("s_set_gpr_idx_idx", 0, "mMx"),
    # Where it goes.
    ("s_branch", 0, "b"),
    ("s_cbranch_scc{0,1}", 0, "bc"),
    ("s_cbranch_vcc{z,nz}", 0, "bv"),
    ("s_cbranch_exec{z,nz}", 0, "be"),
    ("s_endpgm s_endpgm_saved s_setpc_b64", 0, "b"),
    ("s_swappc_b64 s_call_b64", 1, "k"),
    ("s_getpc_b64", 1, ""),
    # Waits and what else changes no register.
    ("s_nop s_sleep s_sethalt s_setprio s_setprio_inc_wg s_trap s_code_end s_icache_inv s_clause s_delay_alu", 0, ""),
    ("s_inst_prefetch s_set_inst_prefetch_distance s_waitcnt s_waitcnt_{vscnt,vmcnt,lgkmcnt,expcnt,depctr}", 0, ""),
    ("s_wait_{alu,loadcnt,storecnt,samplecnt,bvhcnt,expcnt}", 0, ""),
    ("s_wait_{dscnt,kmcnt,loadcnt_dscnt,storecnt_dscnt,idle,event}", 0, ""),
    ("s_barrier s_barrier_wait s_wakeup s_incperflevel s_decperflevel s_sleep_var", 0, ""),
    ("s_barrier_signal", 0, "m"),
    ("s_barrier_signal_isfirst", 0, "mC"),
    ("s_barrier_leave", 0, "C"),
    ("s_sendmsg s_sendmsghalt", 0, "em"),
    ("s_ttracedata", 0, "m"),
    ("s_ttracedata_imm", 0, ""),
    ("s_sendmsg_rtn_b{32,64}", 1, "m"),
    # Memory.
    ("s_{,buffer_,scratch_}load_dword{,x2,x3,x4,x8,x16} s_{,buffer_}load_b{32,64,96,128,256,512}", 1, ""),
    ("s_{,buffer_}load_{u8,i8,u16,i16}", 1, ""),
    ("s_memtime s_memrealtime", 1, ""),
    ("s_{,buffer_,scratch_}store_dword{,x2,x4}", 0, ""),
    ("s_dcache_{inv,wb,inv_vol,wb_vol} s_gl1_inv s_prefetch_{inst,data} s_buffer_prefetch_data", 0, ""),
)  # fmt: skip

_FLOATS = "f{16,32,64}"
_VECTOR: tuple[_Row, ...] = (
    ("v_nop v_clrexcp v_pipeflush", 0, ""),
    ("v_mov_b{16,32,64} v_not_b{16,32} v_bfrev_b32 v_ff{bh_u32,bl_b32,bh_i32}", 1, ""),
    ("v_c{lz_i32_u32,tz_i32_b32,ls_i32}", 1, ""),
    ("v_accvgpr_{read,write}_b32 v_accvgpr_mov_b32", 1, ""),
    ("v_{add,sub,subrev}_{u16,u32,nc_u16,nc_u32,i16,i32,nc_i16,nc_i32,f16,f32,f64} v_{add,sub}_nc_u64", 1, "o"),
    ("v_{add,sub,subrev}_co_u32", 2, ""),
    ("v_{addc,subb,subbrev}_co_u32 v_{add,sub,subrev}_co_ci_u32", 2, "v"),
    ("v_add3_u32 v_add_lshl_u32 v_lshl_add_u{32,64} v_lshl_or_b32 v_and_or_b32 v_or3_b32 v_xad_u32", 1, ""),
    ("v_xor3_b32", 1, ""),
    ("v_{lshl,lshr,ashr}rev_{b16,i16,b32,i32,b64,i64} v_{lshl,lshr,ashr}_{b32,b64,i32,i64}", 1, ""),
    ("v_{and,or,xor,xnor}_b{16,32} v_bfi_b32 v_bfe_{u32,i32} v_bfm_b32 v_perm_b32", 1, ""),
    ("v_align{bit,byte}_b32 v_bitop3_b{16,32}", 1, ""),
    ("v_mul_{lo_u16,lo_u32,lo_i32,hi_u32,hi_i32,u32_u24}", 1, "o"),
    ("v_mul_{i32_i24,hi_u32_u24,hi_i32_i24,u64,legacy_f32,dx9_zero_f32}", 1, "o"),
    (f"v_mul_{_FLOATS} v_{{min,max,min_num,max_num,minimum,maximum}}_{_FLOATS}", 1, "o"),
    ("v_{min,max}_{u16,i16,u32,i32,u64,i64} v_{min,max,med}3_{u16,i16,u32,i32,f16,f32,num_f16,num_f32}", 1, "o"),
    ("v_{minimum,maximum}3_f{16,32} v_{minmax,maxmin}_{u32,i32,f16,f32,num_f16,num_f32}", 1, "o"),
    ("v_{minimummaximum,maximumminimum}_f{16,32}", 1, "o"),
    ("v_mad_{u16,i16,u32_u16,i32_i16,u32_u24,i32_i24,f16,f32,legacy_f32,legacy_f16,legacy_u16,legacy_i16}", 1, "o"),
    ("v_sad_{u8,hi_u8,u16,u32}", 1, "o"),
    ("v_mad_{u64_u32,i64_i32,co_u64_u32,co_i64_i32}", 2, ""),
    ("v_mad_nc_{u64_u32,i64_i32} v_mad_u32", 1, ""),
    (f"v_fma_{_FLOATS} v_fma_{{mix_f32,dx9_zero_f32,legacy_f32}} v_fma{{ak,mk}}_f{{16,32,64}}", 1, "o"),
    ("v_mad{ak,mk}_f{16,32} v_mad_mix_f32", 1, "o"),
    ("v_{fma,mad}_mix{lo,hi}_f16", 1, "do"),
    ("v_{fmac,mac}_{f16,f32,f64} v_{mac,fmac}_{legacy_f32,dx9_zero_f32} v_pk_fmac_f16", 1, "to"),
    ("v_pk_{add,sub,mul_lo,max,min,lshlrev,lshrrev,ashrrev,mad}_{u16,i16,b16}", 1, "o"),
    ("v_pk_{add,mul,fma,min,max}_{f16,f32,bf16}", 1, "o"),
    ("v_pk_{min_num,max_num,minimum,maximum,minimum3,maximum3}_f16 v_pk_mov_b32 v_pack_b32_f16", 1, "o"),
    ("v_{rcp,rsq,sqrt,exp,log,sin,cos,floor,ceil,trunc,rndne,fract}_f{16,32,64} v_rcp_iflag_f32", 1, "o"),
    ("v_{exp,log}_legacy_f32", 1, "o"),
    ("v_frexp_{mant_f16,mant_f32,mant_f64,exp_i16_f16,exp_i32_f32,exp_i32_f64} v_ldexp_f{16,32,64}", 1, "o"),
    ("v_prng_b32", 1, "o"),
    ("v_cvt_{f16_f32,f32_f16,f32_f64,f64_f32,f32_i32,f32_u32,i32_f32,u32_f32,f64_i32,f64_u32,i32_f64,u32_f64}", 1, "o"),
    ("v_cvt_{f16_i16,f16_u16,i16_f16,u16_f16,f32_ubyte0,f32_ubyte1,f32_ubyte2,f32_ubyte3,u32_u16,i32_i16}", 1, "o"),
    ("v_cvt_{flr_i32_f32,rpi_i32_f32,floor_i32_f32,nearest_i32_f32,off_f32_i4,norm_i16_f16,norm_u16_f16}", 1, "o"),
    ("v_cvt_{pkrtz_f16_f32,pk_rtz_f16_f32,pk_bf16_f32,pk_f16_f32,pk_i16_i32,pk_u16_u32,pk_i16_f32,pk_u16_f32}", 1, "o"),
    ("v_cvt_{pknorm_i16_f32,pknorm_u16_f32,pk_norm_i16_f32,pk_norm_u16_f32}", 1, "o"),
    ("v_cvt_{f32_fp8,f32_bf8,pk_f32_fp8,pk_f32_bf8,f32_bf16}", 1, "o"),
    ("v_cvt_{pk_fp8_f32,pk_bf8_f32,sr_fp8_f32,sr_bf8_f32,pk_u8_f32}", 1, "to"),
    ("v_cvt_scalef32_pk_{f32,f16,bf16}_{fp8,bf8,fp4}", 1, "o"),
    ("v_cvt_scalef32_{pk,sr}_{fp8,bf8,fp4}_{f32,f16,bf16}", 1, "to"),
    ("v_div_scale_f{32,64}", 2, "o"),
    ("v_div_fixup_f{16,32,64}", 1, "o"),
    ("v_div_fmas_f{32,64}", 1, "vo"),
    ("v_cndmask_b{16,32}", 1, "v"),
    ("v_bcnt_u32_b32 v_mbcnt_{lo,hi}_u32_b32 v_sat_pk_u8_i16 v_lerp_u8 v_trig_preop_f64 v_mqsad_pk_u16_u8", 1, "o"),
    ("v_dot2_{f32_f16,f32_bf16,f16_f16,bf16_bf16,i32_i16,u32_u16} v_dot4_{i32_i8,u32_u8,i32_iu8}", 1, "o"),
    ("v_dot8_{i32_i4,u32_u4,i32_iu4}", 1, "o"),
    ("v_dot4_f32_{fp8_bf8,bf8_fp8,fp8_fp8,bf8_bf8}", 1, "o"),
    ("v_dot{2c_f32_f16,2c_f32_bf16,2c_i32_i16,4c_i32_i8,8c_i32_i4} v_dot2acc_f32_f16", 1, "to"),
    ("v_readfirstlane_b32 v_readlane_b32", 1, ""),
    ("v_s_{exp,log,rcp,rsq,sqrt}_f{16,32}", 1, "o"),
    ("v_writelane_b32", 1, "t"),
    ("v_permlane{16,x16}_{b32,var_b32} v_permlane64_b32", 1, "t"),
    ("v_swap_b{16,32} v_permlane{16,32}_swap_b32", 2, "t"),
    ("v_movrels_b32 v_movreld_b32 v_movrelsd_b32 v_movrelsd_2_b32", 1, "tmx"),
    (f"v_cmp_{_COMPARED}", 1, "o"),
    (f"v_cmpx_{_COMPARED}", 1, "Eo"),
    ("v_mfma_{f32,f64,i32}_{32x32,16x16,4x4}x{1,2,4,8}{,_4b,_2b,_16b}{,_}{f32,f16,bf16,i8,xf32,f64}{,_1k}", 1, "o"),
    ("v_mfma_{f32,f64,i32}_{32x32,16x16,4x4}x{16,32,64,128}{,_}{f32,f16,bf16,i8,xf32,f64}{,_1k}", 1, "o"),
    ("v_mfma_{f32,f64,i32}_{32x32,16x16,4x4}x{1,2,4,8,16,32}_{4b,2b,16b}_{f32,f16,bf16,i8,f64}", 1, "o"),
    ("v_mfma_f32_{32x32,16x16}x{16,32}_{fp8,bf8}_{fp8,bf8} v_mfma_{,scale_}f32_{32x32x64,16x16x128}_f8f6f4", 1, "o"),
    ("v_smfmac_{f32,i32}_{16x16,32x32}x{16,32,64,128}_{f16,bf16,i8}", 1, "to"),
    ("v_smfmac_f32_{16x16,32x32}x{32,64,128}_{fp8,bf8}_{fp8,bf8}", 1, "to"),
    ("v_wmma_f32_16x16x16_{f16,bf16} v_wmma_{f16,bf16}_16x16x16_{f16,bf16} v_wmma_i32_16x16x16_iu{4,8}", 1, "to"),
    ("v_wmma_i32_16x16x32_iu4", 1, "to"),
    ("v_wmma_f32_16x16x16_{fp8,bf8}_{fp8,bf8}", 1, "to"),
    ("v_swmmac_{f32,f16,bf16}_16x16x32_{f16,bf16} v_swmmac_i32_16x16x{32,64}_iu{4,8}", 1, "to"),
    ("v_swmmac_f32_16x16x32_{fp8,bf8}_{fp8,bf8}", 1, "to"),
    ("v_dual_{mov_b32,add_f32,sub_f32,subrev_f32,mul_f32}", 1, "o"),
    ("v_dual_{mul_dx9_zero_f32,max_f32,min_f32,max_num_f32,min_num_f32}", 1, "o"),
    ("v_dual_{add_nc_u32,lshlrev_b32,and_b32,fmaak_f32,fmamk_f32}", 1, "o"),
    ("v_dual_{fmac_f32,dot2acc_f32_f16,dot2acc_f32_bf16}", 1, "to"),
    ("v_dual_cndmask_b32", 1, "v"),
)  # fmt: skip


class Row(NamedTuple):
    """What an instruction does with registers. written: how many of its first operands. marks: as in the table.
    is_vector: whether it computes lane by lane, under EXEC."""

    written: int
    marks: str
    is_vector: bool


_ENCODING = re.compile(r"(_e32|_e64|_dpp8|_dpp|_sdwa)+$")
_BRACES = re.compile(r"\{([^{}]*)\}")


@functools.lru_cache(maxsize=1 << 12)
def plain(mnemonic: str) -> str:
    """Return a mnemonic without the suffix that only says how it is encoded, such as ``_e32``."""
    return _ENCODING.sub("", mnemonic) if mnemonic.startswith("v_") else mnemonic


def expand(name: str) -> list[str]:
    """Return the names that one with alternatives in braces stands for, in order."""
    match = _BRACES.search(name)
    if match is None:
        return [name]
    return [each for word in match[1].split(",") for each in expand(name[: match.start()] + word + name[match.end() :])]


def _table(rows: Sequence[_Row], *, is_vector: bool) -> dict[str, Row]:
    """Return rows of a table by each of the names that a row stands for.

    is_vector: whether they are instructions of the vector unit.
    """
    return {
        each: Row(written, marks, is_vector)
        for names, written, marks in rows for name in names.split() for each in expand(name)
    }  # fmt: skip


@functools.cache
def rows() -> Mapping[str, Row]:
    """Return what each instruction that computes, moves or branches does, by its plain mnemonic."""
    return {**_table(_SCALAR, is_vector=False), **_table(_VECTOR, is_vector=True)}
