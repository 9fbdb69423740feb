"""What instructions of AMD's processors are called as operations, by the names that PTX has for them: ``add.f32``.

So one probe serves both kinds of GPUs: ``v_add_f32`` is a site of ``add.f32``, ``v_mfma_f32_32x32x8_f16`` one of
``mma.f16.f16``, ``s_barrier`` one of ``bar.sync``. What the scalar unit computes for all lanes has the modifier
``uniform`` (``add.uniform.u32``). Names say no rounding, which is the kernel's MODE; those of functions that the
hardware approximates have ``approx``.

An instruction may be several operations (``operations_of``): the halves of ``v_dual_…``, and the two products of
``v_pk_mul_f32``, each with a result of its own. Steps of a division (``division_steps``) have no name: the division is
the instruction that ends it, ``v_div_fixup_f32``. All other steps of what a compiler writes out in several instructions
(square roots, logarithms, divisions of integers) have the names of what they are.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from neutrino.gcn.code import Function, Instruction
from neutrino.gcn.isa.memory import access_of
from neutrino.gcn.isa.mnemonics import expand, plain, rows
from neutrino.gcn.isa.registers import ALL_VECTORS, registers_of

Opcode = tuple[str, ...]
"""The dotted parts of a name: ``("add", "f32")``."""

# A row: mnemonics; the names of each, in the same order, "|" between several names of one; which processors have them,
# by beginnings of their names, "" for all.
_Row = tuple[str, str, str]

_RELATIONS = "lt,eq,le,gt,lg,ge,o,u,nge,nlg,ngt,nle,neq,nlt"
_RELATION_NAMES = "lt,eq,le,gt,ne,ge,num,nan,ltu,equ,leu,gtu,neu,geu"
_GFX9, _MAD, _NEWER_FMA = "gfx9", "gfx90a", "gfx94 gfx95 gfx10 gfx11 gfx12"
_RDNA, _GFX11, _GFX12 = "gfx10 gfx11 gfx12", "gfx11 gfx12", "gfx12"

_FLOATS: tuple[_Row, ...] = (
    ("v_{add,sub,subrev,mul}_{f16,f32}", "{add,sub,sub,mul}.{f16,f32}", ""),
    ("v_{add,mul}_f64", "{add,mul}.f64", ""),
    ("v_mul_legacy_f32", "mul.f32", "gfx9 gfx10"),
    ("v_mul_dx9_zero_f32 v_fma_dx9_zero_f32", "mul.f32 fma.f32", _GFX11),
    ("v_fma_{f16,f32,f64}", "fma.{f16,f32,f64}", ""),
    ("v_fma_mix_f32 v_fma_mix{lo,hi}_f16", "fma.f32 fma.{f16,f16}", ""),
    ("v_fmac_f32", "fma.f32", ""),
    ("v_fmac_f64", "fma.f64", _GFX9),
    ("v_fmac_f16 v_fma{ak,mk}_f16", "fma.f16 fma.{f16,f16}", _RDNA),
    ("v_fma_legacy_f32", "fma.f32", "gfx10"),
    ("v_fma{ak,mk}_f32", "fma.{f32,f32}", _NEWER_FMA),
    ("v_{mad,mac,madak,madmk}_f16 v_mad_legacy_f16", "{mad,mad,mad,mad}.f16 mad.f16", _GFX9),
    ("v_{mad,mac,madak,madmk}_f32 v_mad_legacy_f32", "{mad,mad,mad,mad}.f32 mad.f32", _MAD),
    ("v_div_fixup_{f16,f32,f64}", "div.{f16,f32,f64}", ""),
    ("v_{rcp,sqrt,rsq}_{f16,f32,f64}", "{rcp,sqrt,rsqrt}.approx.{f16,f32,f64}", ""),
    ("v_rcp_iflag_f32", "rcp.approx.f32", ""),
    ("v_{sin,cos,log,exp}_{f16,f32}", "{sin,cos,lg2,ex2}.approx.{f16,f32}", ""),
    ("v_{log,exp}_legacy_f32", "{lg2,ex2}.approx.f32", _GFX9),
    ("v_s_{exp,log,rcp,rsq,sqrt}_{f16,f32}", "{ex2,lg2,rcp,rsqrt,sqrt}.approx.uniform.{f16,f32}", _GFX12),
    ("s_{add,sub,mul}_{f16,f32} s_fmac_{f16,f32}", "{add,sub,mul}.uniform.{f16,f32} fma.uniform.{f16,f32}", _GFX12),
    ("s_fma{ak,mk}_f32", "fma.uniform.{f32,f32}", _GFX12),
    ("v_pk_{add,mul,fma}_f16 v_pk_fmac_f16", "{add,mul,fma}.f16x2 fma.f16x2", ""),
    ("v_pk_{add,mul,fma}_f32", "{add,mul,fma}.f32x2", _GFX9),
    ("v_{min,max}_{f16,f32} v_{min,max}_f64", "{min,max}.{f16,f32} {min,max}.f64", "gfx9 gfx10 gfx11"),
    ("v_{min,max}3_{f16,f32} v_pk_{min,max}_f16", "{min,max}.{f16,f32} {min,max}.f16x2", "gfx9 gfx10 gfx11"),
    ("v_{min,max}_num_{f16,f32,f64} v_{min,max}3_num_{f16,f32}", "{min,max}.{f16,f32,f64} {min,max}.{f16,f32}", _GFX12),
    ("v_pk_{min,max}_num_f16", "{min,max}.f16x2", _GFX12),
    ("v_{minimum,maximum}_{f16,f32,f64}", "{min,max}.NaN.{f16,f32,f64}", _GFX12),
    ("v_{minimum,maximum}3_f32", "{min,max}.NaN.f32", "gfx95 gfx12"),
    ("s_{min,max}_num_{f16,f32}", "{min,max}.uniform.{f16,f32}", _GFX12),
    # Conversions. What is rounded in a way of its own says so.
    ("v_cvt_{f16_f32,f32_f16,f32_f64,f64_f32}", "cvt.{f16.f32,f32.f16,f32.f64,f64.f32}", ""),
    ("v_cvt_pkrtz_f16_f32", "cvt.rz.f16x2.f32", "gfx9 gfx10"),
    ("v_cvt_pk_rtz_f16_f32", "cvt.rz.f16x2.f32", _GFX11),
    ("v_cvt_pk_{f16,bf16}_f32", "cvt.{f16x2,bf16x2}.f32", "gfx95"),
    ("v_cvt_{f32,f64}_{i32,u32} v_cvt_f16_{i16,u16}", "cvt.{f32,f64}.{s32,u32} cvt.f16.{s16,u16}", ""),
    ("v_cvt_{i32,u32}_{f32,f64} v_cvt_{i16,u16}_f16", "cvt.rzi.{s32,u32}.{f32,f64} cvt.rzi.{s16,u16}.f16", ""),
    ("v_{rndne,trunc,floor,ceil}_f16", "cvt.{rni,rzi,rmi,rpi}.f16.f16", ""),
    ("v_{rndne,trunc,floor,ceil}_f32", "cvt.{rni,rzi,rmi,rpi}.f32.f32", ""),
    ("v_{rndne,trunc,floor,ceil}_f64", "cvt.{rni,rzi,rmi,rpi}.f64.f64", ""),
    ("v_cvt_pk_{fp8,bf8}_f32", "cvt.{e4m3x2,e5m2x2}.f32", "gfx94 gfx95 gfx12"),
    ("s_cvt_{f16_f32,f32_f16,f32_i32,f32_u32}", "cvt.uniform.{f16.f32,f32.f16,f32.s32,f32.u32}", _GFX12),
    ("s_cvt_{i32,u32}_f32 s_cvt_pk_rtz_f16_f32", "cvt.rzi.uniform.{s32,u32}.f32 cvt.rz.uniform.f16x2.f32", _GFX12),
    (f"v_cmp_{{{_RELATIONS}}}_{{f16,f32,f64}}", f"setp.{{{_RELATION_NAMES}}}.{{f16,f32,f64}}", ""),
    (f"v_cmpx_{{{_RELATIONS}}}_{{f16,f32,f64}}", f"setp.{{{_RELATION_NAMES}}}.{{f16,f32,f64}}", ""),
)  # fmt: skip

_INTEGERS: tuple[_Row, ...] = (
    ("v_{add,sub,subrev}_u32", "{add.u32|add.s32,sub.u32|sub.s32,sub.u32|sub.s32}", _GFX9),
    ("v_{add,sub,subrev}_nc_u32", "{add.u32|add.s32,sub.u32|sub.s32,sub.u32|sub.s32}", _RDNA),
    ("v_mul_lo_u32 v_mul_hi_{u32,i32}", "mul.lo.u32|mul.lo.s32 mul.hi.{u32,s32}", ""),
    ("v_mul_{u32_u24,i32_i24} v_mad_{u32_u24,i32_i24}", "mul24.lo.{u32,s32} mad24.lo.{u32,s32}", ""),
    ("v_mad_{u64_u32,i64_i32}", "mad.wide.{u32,s32}", "gfx9 gfx10 gfx11"),
    ("v_mad_co_{u64_u32,i64_i32}", "mad.wide.{u32,s32}", _GFX12),
    ("v_{min,max}_{u32,i32} v_{min,max}3_{u32,i32}", "{min,max}.{u32,s32} {min,max}.{u32,s32}", ""),
    ("v_{and,or,xor}_b32 v_not_b32", "{and,or,xor}.b32 not.b32", ""),
    ("v_{lshlrev_b32,lshrrev_b32,ashrrev_i32}", "{shl.b32,shr.u32,shr.s32}", ""),
    ("v_{lshlrev_b64,lshrrev_b64,ashrrev_i64}", "{shl.b64,shr.u64,shr.s64}", ""),
    ("v_bcnt_u32_b32 v_bfrev_b32 v_perm_b32 v_sad_u32", "popc.b32 brev.b32 prmt.b32 sad.u32", ""),
    ("v_bfe_{u32,i32} v_alignbit_b32", "bfe.{u32,s32} shf.r.wrap.b32", ""),
    ("v_and_or_b32 v_or3_b32 v_bfi_b32", "lop3.b32 lop3.b32 lop3.b32", ""),
    ("v_xor3_b32", "lop3.b32", _RDNA),
    ("v_bitop3_b32", "lop3.b32", "gfx95"),
    ("v_cndmask_b32 v_mov_b32", "selp.b32 mov.b32", ""),
    ("v_cmp_{lt,eq,le,gt,ne,ge}_{u32,i32,u64,i64}", "setp.{lt,eq,le,gt,ne,ge}.{u32,s32,u64,s64}", ""),
    ("v_cmpx_{lt,eq,le,gt,ne,ge}_{u32,i32,u64,i64}", "setp.{lt,eq,le,gt,ne,ge}.{u32,s32,u64,s64}", ""),
    ("s_{add,sub}_{u32,i32}", "{add,sub}.uniform.{u32,s32}", "gfx9 gfx10 gfx11"),
    ("s_{add,sub}_co_{u32,i32} s_{add,sub}_nc_u64", "{add,sub}.uniform.{u32,s32} {add,sub}.uniform.u64", _GFX12),
    ("s_mul_i32 s_mul_hi_{u32,i32}", "mul.lo.uniform.u32|mul.lo.uniform.s32 mul.hi.uniform.{u32,s32}", ""),
    ("s_{min,max}_{u32,i32}", "{min,max}.uniform.{u32,s32}", ""),
    ("s_{and,or,xor}_b{32,64} s_not_b{32,64}", "{and,or,xor}.uniform.b{32,64} not.uniform.b{32,64}", ""),
    ("s_lshl_b{32,64}", "shl.uniform.b{32,64}", ""),
    ("s_lshr_b{32,64} s_ashr_i{32,64}", "shr.uniform.u{32,64} shr.uniform.s{32,64}", ""),
    ("s_cselect_b{32,64} s_mov_b{32,64}", "selp.uniform.b{32,64} mov.uniform.b{32,64}", ""),
)  # fmt: skip

_OTHERS: tuple[_Row, ...] = (
    # Where a barrier has two halves, the waves wait in the second one.
    ("s_barrier", "bar.sync|barrier.sync", "gfx9 gfx10 gfx11"),
    ("s_barrier_wait", "bar.sync|barrier.sync", _GFX12),
    ("s_barrier_signal s_barrier_signal_isfirst", "bar.arrive|barrier.arrive bar.arrive|barrier.arrive", _GFX12),
    # Waits for copies that go on by themselves. s_waitcnt is none: it waits for loads, as an instruction of PTX that
    # reads what was loaded does by itself.
    ("s_wait_asynccnt s_wait_tensorcnt", "cp.async.wait_group cp.async.bulk.wait_group", "gfx1250"),
    ("s_branch s_cbranch_{scc0,scc1,vccz,vccnz,execz,execnz}", "bra bra{,,,,,}", ""),
    ("s_swappc_b64 s_call_b64 s_setpc_b64 s_endpgm s_trap s_sleep", "call call ret exit trap nanosleep", ""),
    ("ds_bpermute_b32", "shfl.sync.idx.b32", ""),
)  # fmt: skip

_MATRIX = re.compile(
    r"v_(?P<form>mfma|mfma_scale|smfmac|wmma|swmmac)_(?P<sum>f16|f32|f64|bf16|i32)_"
    r"(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+?)(?:_\d+b_|_)?(?P<kinds>(?:x?f\d+|bf16|fp8|bf8|i8|iu[48]|f8f6f4)(?:_(?:fp8|bf8))?)(?:_1k)?"
)
_FACTORS: Mapping[str, str] = {
    "xf32": "tf32", "i8": "s8", "fp8": "e4m3", "bf8": "e5m2", "i32": "s32", "f16": "f16", "f32": "f32", "f64": "f64",
    "bf16": "bf16",
}  # fmt: skip
_MIXED = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")
"""Types of factors by the numbers that ``cbsz`` and ``blgp`` of ``v_mfma_…_f8f6f4`` have for them."""
_BITS = {"f64": 64, "f32": 32, "tf32": 32, "s32": 32, "f16": 16, "bf16": 16, "s8": 8}


class Operation(NamedTuple):
    """One operation of an instruction. opcodes: its names. half: 1 for the second half of ``v_dual_…``. element: of the
    result, where that is several numbers (``v_pk_mul_f32``): 0 or 1."""

    opcodes: tuple[Opcode, ...]
    half: int = 0
    element: int | None = None


def _rows(rows: Sequence[_Row]) -> Iterator[tuple[str, tuple[Opcode, ...], tuple[str, ...]]]:
    """Yield mnemonics with their names, and beginnings of the names of processors that have them."""
    for mnemonics, names, where in rows:
        for word, name in zip(mnemonics.split(), names.split(), strict=True):
            for mnemonic, each in zip(expand(word), expand(name), strict=True):
                yield mnemonic, tuple(tuple(one.split(".")) for one in each.split("|")), tuple(where.split())


@functools.cache
def table() -> Mapping[str, tuple[tuple[Opcode, ...], tuple[str, ...]]]:
    """Return the names of each mnemonic, but for matrix instructions, and beginnings of the names of processors that
    have it, none for all."""
    return {mnemonic: (names, where) for mnemonic, names, where in _rows((*_FLOATS, *_INTEGERS, *_OTHERS))}


@functools.cache
def first_parts() -> frozenset[str]:
    """Return the first parts of all names: ``add``, ``mma`` …"""
    return frozenset({"mma", *(name[0] for names, _ in table().values() for name in names)})


_ALONE = frozenset({"v_pk_add_f32", "v_pk_mul_f32", "v_pk_fma_f32"})
"""Instructions whose result is two numbers, each in a register."""


@functools.lru_cache(maxsize=1 << 13)
def names_of_operation(mnemonic: str, modifiers: tuple[str, ...] = ()) -> tuple[Opcode, ...]:
    """Return the names of what an instruction, or one of its halves, computes as a whole; none if it has no name."""
    name = plain(mnemonic).replace("v_dual_", "v_")
    found = table().get(name)
    if found is not None:
        return found[0]
    return _matrix(name, modifiers)


def _matrix(name: str, modifiers: Sequence[str]) -> tuple[Opcode, ...]:
    """Return the name of a product of matrices, as PTX has it: sum, factors, sum."""
    match = _MATRIX.fullmatch(name)
    if match is None:
        return ()
    kinds, words = match["kinds"], []
    if kinds == "f8f6f4":
        scaled = match["form"] == "mfma_scale"
        words = ["kind::mxf8f6f4", "block_scale"] if scaled else ["kind::f8f6f4"]
        factors = [_MIXED[min(_number(modifiers, key), 4)] for key in ("cbsz", "blgp")]
    elif kinds.startswith("iu"):
        flags = next((word for word in modifiers if word.startswith("neg_lo:")), "")
        signs = re.findall(r"\d", flags.partition(":")[2]) or ["0", "0"]
        factors = [("s" if sign == "1" else "u") + kinds[2:] for sign in signs[:2]]
    else:
        found = re.findall(r"fp8|bf8|bf16|xf32|f\d+|i8", kinds)
        factors = [_FACTORS[one] for one in (found * 2)[:2]]
    kind = _FACTORS[match["sum"]]
    shape = f"m{match['m']}n{match['n']}k{match['k']}"
    sparse = ["sp"] if match["form"] in ("smfmac", "swmmac") else []
    return (("mma", *sparse, "sync", "aligned", shape, *words, kind, *factors, kind),)


def _number(modifiers: Sequence[str], key: str) -> int:
    """Return the number of a modifier such as ``cbsz:2``, 0 without it."""
    return next((int(word.partition(":")[2], 0) for word in modifiers if word.startswith(f"{key}:")), 0)


def matrix_operations(instruction: Instruction, wave: int) -> int | None:
    """Return how many operations a product of matrices does for all lanes of the wave: 2 * M * N * K for each block of
    matrices; None of another instruction. wave: its lanes.

    How many blocks there are follows from how many sums the registers of the result have.
    """
    match = _MATRIX.fullmatch(plain(instruction.mnemonic))
    if match is None:
        return None
    m, n, k = (int(match[key]) for key in "mnk")
    blocks = 1
    if match["form"] in ("mfma", "mfma_scale"):
        words = registers_of(instruction.operands[0]).bit_count()
        blocks = wave * words * 32 // _BITS[_FACTORS[match["sum"]]] // (m * n)
    return 2 * m * n * k * blocks


_ATOMIC = re.compile(r"(?:global|flat|buffer|s|s_buffer)_atomic_(?P<words>\w+?)(?P<wide>_x2)?|ds_(?P<shared>\w+)")
_COMBINES = re.compile(r"(?P<what>\w+?)(?:_(?P<letter>u|i|b|f|bf)(?P<bits>16|32|64))?")
_COMBINING: Mapping[str, tuple[str, str]] = {
    "add": ("add", "u"), "pk_add": ("add", ""), "min": ("min", "u"), "max": ("max", "u"), "smin": ("min", "i"),
    "smax": ("max", "i"), "umin": ("min", "u"), "umax": ("max", "u"), "fmin": ("min", "f"), "fmax": ("max", "f"),
    "min_num": ("min", "f"), "max_num": ("max", "f"), "inc": ("inc", "u"), "dec": ("dec", "u"), "and": ("and", "b"),
    "or": ("or", "b"), "xor": ("xor", "b"), "swap": ("exch", "b"), "wrxchg": ("exch", "b"), "storexchg": ("exch", "b"),
    "cmpswap": ("cas", "b"), "cmpst": ("cas", "b"), "cmpstore": ("cas", "b"),
}  # fmt: skip
"""What atomic instructions do → what PTX calls it, and the type if the mnemonic names none."""


@functools.lru_cache(maxsize=1 << 12)
def atomic_words(mnemonic: str) -> tuple[Opcode, ...]:
    """Return what an atomic instruction is called by, besides its kind and memory: what it does and the type, such as
    ``add`` and ``u32``. Empty ones if there is no name for it."""
    match = _ATOMIC.fullmatch(mnemonic)
    words = (match["words"] or match["shared"]).replace("_rtn", "") if match is not None else ""
    found = _COMBINES.fullmatch(words)
    if match is None or found is None or found["what"] not in _COMBINING:
        return ((),)
    name, letter = _COMBINING[found["what"]]
    letter = found["letter"] or letter
    bits = found["bits"] or ("64" if match["wide"] else "32")
    if name == "cas" and letter == "f":
        # It compares numbers; PTX's compares bits.
        return ((),)
    if found["what"] == "pk_add":
        return ((name, f"{letter}{bits}x2"),)
    kinds = [f"{letter.replace('i', 's')}{bits}"]
    if name == "add" and kinds == ["u32"]:
        # The sum is the same.
        kinds.append("s32")
    return tuple((name, kind) for kind in kinds)


def operations_of(instruction: Instruction) -> tuple[Operation, ...]:
    """Return the operations that an instruction consists of, if it is several: none of most instructions."""
    if instruction.second is not None:
        halves = (names_of_operation(instruction.mnemonic), names_of_operation(instruction.second[0]))
        return tuple(Operation(names, half) for half, names in enumerate(halves) if names)
    if plain(instruction.mnemonic) in _ALONE:
        names = names_of_operation(instruction.mnemonic)
        single = tuple(tuple("f32" if part == "f32x2" else part for part in name) for name in names)
        return Operation(single, 0, 0), Operation(single, 0, 1)
    return ()


_MATRIX_PROCESSORS: tuple[tuple[str, str], ...] = (
    ("v_mfma_.*xf32.*", "gfx94"), ("v_mfma_.*f8f6f4", "gfx95"), ("v_(mfma|smfmac)_.*(fp8|bf8).*", "gfx94 gfx95"),
    ("v_smfmac_.*", "gfx94 gfx95"), ("v_mfma_.*", _GFX9), ("v_wmma_.*(fp8|bf8).*", _GFX12), ("v_swmmac_.*", _GFX12),
    ("v_wmma_.*", _GFX11),
)  # fmt: skip
"""Which processors have matrix instructions, by patterns of their mnemonics: the first that fits."""


@functools.cache
def mnemonics_of(processor: str) -> tuple[tuple[str, tuple[Opcode, ...]], ...]:
    """Return the mnemonics of a processor that have names of operations, with these. Of the two numbers that an
    instruction may give, the names for each are among them."""
    found = []
    for mnemonic, (names, where) in table().items():
        if where and not processor.startswith(where):
            continue
        if mnemonic in _ALONE:
            names = (*names, *operations_of(Instruction(0, 8, mnemonic, (), (), ""))[0].opcodes)
        found.append((mnemonic, names))
    for mnemonic in rows():
        if _MATRIX.fullmatch(mnemonic) is not None:
            where = next(tuple(of.split()) for pattern, of in _MATRIX_PROCESSORS if re.fullmatch(pattern, mnemonic))
            if processor.startswith(where):
                found.append((mnemonic, names_of_operation(mnemonic)))
    return tuple(found)


_STOPS = ("v_div_scale_", "v_cvt_f32_f16")
"""Where the steps of a division begin: what these give is no step's result, but a factor brought into range."""
_ADDS_TO = ("v_fmac_", "v_mac_", "v_pk_fmac_", "v_dual_fmac_")


def division_steps(function: Function) -> frozenset[tuple[int, int]]:
    """Return the instructions that compute what a ``v_div_fixup`` completes: their offsets, with 1 for the second half.

    They are looked for from that instruction backwards, within its basic block, through what each reads.
    """
    rows = function.instructions
    ends = rows.beginning_with("v_div_fixup_")
    if not ends:
        return frozenset()
    targets = {row.target for row in rows.branches}
    found: set[tuple[int, int]] = set()
    for index in ends:
        operands = rows[index].operands
        # The dividend and the divisor are no steps' results, wherever they are read.
        kept = _vectors(operands[2:4])
        wanted = _vectors(operands[1:2]) & ~kept
        for row in reversed(rows[:index]):
            if not wanted or row.target is not None:
                break
            if access_of(row) is not None:
                # What was saved to memory meanwhile is not followed.
                wanted &= ~_vectors(row.operands[:1])
                continue
            # Both halves read what was there before.
            sources = 0
            for half, (mnemonic, texts) in enumerate(_halves(row)):
                written = _vectors(texts[:1])
                if not written & wanted:
                    continue
                wanted &= ~written
                if not mnemonic.startswith(_STOPS):
                    found.add((row.offset, half))
                    sources |= _vectors(texts if mnemonic.startswith(_ADDS_TO) else texts[1:])
            wanted |= sources & ~kept
            if row.offset in targets:
                break
    return frozenset(found)


def _halves(row: Instruction) -> list[tuple[str, tuple[str, ...]]]:
    """Return the mnemonics and operands of an instruction's halves; none if it is not one of the vector unit."""
    if not row.mnemonic.startswith("v_"):
        return []
    first = [(row.mnemonic, row.operands)]
    return first if row.second is None else [*first, row.second]


def _vectors(operands: Sequence[str]) -> int:
    """Return the VGPRs that operands name, as a set of ``isa.registers``."""
    found = 0
    for operand in operands:
        found |= registers_of(operand.strip("-|")) & ALL_VECTORS
    return found
