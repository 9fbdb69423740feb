"""What ptxas fuses with a sum, and through what: ``contraction.py`` must know of all of it."""

import itertools

import pytest
from machine import arithmetic

from neutrino.ptx.analysis.contraction import Contractions, has_hidden_product, has_product, may_contract
from neutrino.ptx.text.body import Body
from neutrino.ptx.text.module import parse

ARCHITECTURES = ("sm_75", "sm_120a")
# Everything that computes one or two f32, and moves them.
FIRST = [
    *(f"{name} %f4, %f1, %f2;" for name in (
        "mul.f32", "mul.ftz.f32", "mul.rn.f32", "mul.rn.ftz.f32", "mul.rz.f32", "mul.sat.f32", "mul.rn.sat.f32",
        "div.full.f32", "div.full.ftz.f32", "div.approx.f32", "div.approx.ftz.f32", "div.rn.f32", "div.rn.ftz.f32",
        "div.rz.f32", "add.f32", "sub.f32", "add.rn.f32", "min.f32", "max.f32", "copysign.f32",
    )),
    *(f"{name} %f4, %f1;" for name in (
        "rcp.approx.f32", "rcp.approx.ftz.f32", "rcp.rn.f32", "sqrt.approx.f32", "sqrt.approx.ftz.f32", "sqrt.rn.f32",
        "rsqrt.approx.f32", "rsqrt.approx.ftz.f32", "sin.approx.f32", "cos.approx.f32", "lg2.approx.f32",
        "lg2.approx.ftz.f32", "ex2.approx.f32", "ex2.approx.ftz.f32", "tanh.approx.f32", "abs.f32", "cvt.rni.f32.f32",
    )),
    "fma.rn.f32 %f4, %f1, %f2, %f2;", "mul.rn.f32 %f4, %f1, 0f40000000;",
    # What ptxas knows of the operand's range spares it part of the expansion.
    "min.f32 %f4, %f1, 0fC3480000; ex2.approx.f32 %f4, %f4;",
    "max.f32 %f4, %f1, 0fC2C80000; ex2.approx.f32 %f4, %f4;",
    "abs.f32 %f4, %f1; min.f32 %f4, %f4, 0f00400000; sqrt.approx.f32 %f4, %f4;",
    "abs.f32 %f4, %f1; min.f32 %f4, %f4, 0f00400000; rsqrt.approx.f32 %f4, %f4;",
    "abs.f32 %f4, %f1; min.f32 %f4, %f4, 0f00400000; lg2.approx.f32 %f4, %f4;",
]  # fmt: skip
SUMS = ["add.f32 %f5, %f4, %f3;", "add.ftz.f32 %f5, %f4, %f3;", "sub.f32 %f5, %f3, %f4;", "add.sat.f32 %f5, %f3, %f4;"]
ROUNDED = ["add.rn.f32 %f5, %f4, %f3;", "fma.rn.f32 %f5, %f4, 0f3F800000, %f3;", "fma.rn.f32 %f5, %f1, %f2, %f4;"]
BETWEEN = [
    "mov.f32 %f6, %f4;", "mov.b32 %r5, %f4; mov.b32 %f6, %r5;", "neg.f32 %f6, %f4;", "abs.f32 %f6, %f4;",
    "mov.b64 %rd5, {%f4, %f3}; mov.b64 {%f6, %f7}, %rd5;", "cvt.f32.f32 %f6, %f4;", "or.b32 %f6, %f4, 0;",
    "and.b32 %f6, %f4, -1;", "xor.b32 %f6, %f4, 0;", "mov.b32 %r5, %f4; add.s32 %r5, %r5, 0; mov.b32 %f6, %r5;",
    "mov.b32 %r5, %f4; shl.b32 %r5, %r5, 0; mov.b32 %f6, %r5;", "mul.rn.f32 %f6, %f4, 0f3F800000;",
    "mul.f32 %f6, %f4, 0fBF800000;", "mul.rn.f32 %f6, %f4, 0f40000000;", "selp.f32 %f6, %f4, %f3, %p1;",
    "min.f32 %f6, %f4, 0f7F800000;", "prmt.b32 %f6, %f4, %f4, 0x3210;", "mov.f32 %f6, %f3; @%p1 mov.f32 %f6, %f4;",
    "st.local.f32 [l], %f4; ld.local.f32 %f6, [l];", "st.shared.f32 [s], %f4; ld.shared.f32 %f6, [s];",
    "st.global.f32 [%a+128], %f4; ld.global.f32 %f6, [%a+128];", "shfl.sync.idx.b32 %f6, %f4, %r1, 31, -1;",
    "mov.f32 %f6, %f3; @!%p1 bra L; mov.f32 %f6, %f4; L:", "fma.rn.f32 %f6, %f4, 0f3F800000, 0f80000000;",
    "add.rn.f32 %f6, %f4, 0f80000000;", "mov.f32 %f6, %f4; L:", "mov.f32 %f6, %f4; bar.sync 0;",
]  # fmt: skip


def kernel(name: str, code: str) -> str:
    return f"""
.visible .entry {name}(.param .u64 p)
{{
.reg .pred %p<4>; .reg .f32 %f<12>; .reg .u64 %a; .reg .b32 %r<8>; .reg .b64 %rd<9>;
.local .align 4 .b8 l[4]; .shared .align 4 .b8 s[4];
ld.param.u64 %a, [p]; ld.global.u32 %r1, [%a+256]; setp.ne.u32 %p1, %r1, 7;
ld.global.f32 %f1, [%a]; ld.global.f32 %f2, [%a+8]; ld.global.f32 %f3, [%a+16];
{code}
st.global.f32 [%a+64], %f5; ret; }}
"""


def assembled(codes: list[str], arch: str, folder) -> list[dict[str, int]]:
    """What each of the codes becomes in a kernel of its own."""
    head = f".version {'8.8' if arch == 'sm_120a' else '8.0'}\n.target {arch}\n.address_size 64\n"
    text = head + "".join(kernel(f"k{number}", code) for number, code in enumerate(codes))
    found = arithmetic(text, arch, folder)
    return [found[f"k{number}"] for number in range(len(codes))]


def holds(code: str, check) -> bool:
    module = parse(".version 8.0\n.target sm_90\n.address_size 64\n" + kernel("k", code))
    return check(Body(module.code, *module.entries[0].body))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_what_ends_with_a_product_is_known(arch, tools, tmp_path):
    """Each instruction before each sum, and the same with a store in between under a predicate."""
    cases = list(itertools.product(FIRST, SUMS + ROUNDED))
    store = "@%p1 st.global.u32 [%a], %r1;"
    codes = [f"{first} {between} {total}" for first, total in cases for between in ("", store)]
    found = assembled(codes, arch, tmp_path)
    fused = {case for number, case in enumerate(cases) if found[2 * number] != found[2 * number + 1]}
    assert not {total for _, total in fused} & set(ROUNDED)
    known = {first for first in FIRST if holds(first, has_product)}
    # Saturated products are held for such too, and are none.
    assert {first for first, _ in fused} == {first for first in known if ".sat" not in first}
    hidden = {first for first in FIRST if holds(first, has_hidden_product)}
    assert hidden == {first for first in known if not first.startswith("mul")}


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_ways_from_a_product_to_a_sum_are_known(arch, tools, tmp_path):
    firsts = ["mul.f32 %f4, %f1, %f2;", "div.full.f32 %f4, %f1, %f2;"]
    codes = [f"{first} {between} add.f32 %f5, %f6, %f8;" for first in firsts for between in BETWEEN]
    found = assembled([f"ld.global.f32 %f8, [%a+24]; {code}" for code in codes], arch, tmp_path)
    apart = assembled(
        [f"ld.global.f32 %f8, [%a+24]; {code.replace('add.f32', 'add.rn.f32')}" for code in codes], arch, tmp_path
    )
    fused = {code for code, one, other in zip(codes, found, apart, strict=True) if one != other}
    assert len(fused) >= 20
    assert {code for code in fused if not holds(code, may_contract)} == set()
    # Not all that there is counts as a way.
    assert not holds("mul.f32 %f4, %f1, %f2; fma.rn.f32 %f6, %f4, %f1, %f2; add.f32 %f5, %f6, %f8;", may_contract)
    assert not holds("mul.f32 %f4, %f1, %f2; ex2.approx.f32 %f6, %f4; add.f32 %f5, %f6, %f8;", may_contract)
    assert not holds("ld.global.f32 %f6, [%a]; mul.f32 %f4, %f1, %f2; st.global.f32 [%a], %f4; add.f32 %f5, %f6, %f8;",
                     may_contract)  # fmt: skip
    assert holds("L: ld.global.f32 %f6, [%a]; mul.f32 %f4, %f1, %f2; st.global.f32 [%a], %f4; add.f32 %f5, %f6, %f8;"
                 " @%p1 bra L;", may_contract)  # fmt: skip


# By the type of a product and its sum: a register's type, and what they are in machine code when fused.
KINDS = {
    "f32": ("b32", "FFMA"), "f64": ("b64", "DFMA"), "f16": ("b16", "HFMA2"), "f16x2": ("b32", "HFMA2"),
    "bf16": ("b16", "HFMA2"), "bf16x2": ("b32", "HFMA2"),
}  # fmt: skip
EXCHANGES = [
    "activemask.b32 %m;", "vote.sync.ballot.b32 %r2, %p2, %m;", "vote.sync.any.pred %p3, %p2, %m;",
    "vote.sync.all.pred %p3, %p2, %m;", "vote.sync.uni.pred %p3, %p2, %m;", "shfl.sync.idx.b32 %r2, %r3, 0, 31, %m;",
    "shfl.sync.up.b32 %r2|%p3, %r3, 1, 0, %m;", "shfl.sync.bfly.b32 %r2|%p3, %r3, 1, 31, %m;",
    "match.any.sync.b32 %r2, %r3, %m;", "match.any.sync.b64 %r2, %d3, %m;", "match.all.sync.b32 %r2|%p3, %r3, %m;",
]  # fmt: skip
# Since sm_80.
REDUCTIONS = [f"redux.sync.{kind} %r2, %r3, %m;" for kind in ("add.u32", "min.u32", "max.s32", "and.b32", "xor.b32")]


def exchanging(name: str, kind: str, code: str) -> str:
    """A product and its sum with code between them whose results are stored."""
    register = KINDS[kind][0]
    return f"""
.visible .entry {name}(.param .u64 p)
{{
.reg .pred %p<4>; .reg .{register} %x<6>; .reg .u64 %a; .reg .b32 %m, %r<6>; .reg .b64 %d<4>;
ld.param.u64 %a, [p]; ld.global.u32 %r1, [%a+256]; ld.global.u32 %r3, [%a+260]; ld.global.u64 %d3, [%a+264];
setp.ne.u32 %p1, %r1, 7; setp.gt.u32 %p2, %r3, 9; setp.gt.u32 %p3, %r3, 19; mov.u32 %r2, 1; mov.u32 %m, 0;
ld.global.{register} %x1, [%a]; ld.global.{register} %x2, [%a+8]; ld.global.{register} %x3, [%a+16];
mul.{kind} %x4, %x1, %x2;
{code}
add.{kind} %x5, %x4, %x3;
selp.b32 %r4, 1, 0, %p3;
st.global.{register} [%a+64], %x5; st.global.u32 [%a+512], %r2; st.global.u32 [%a+516], %r4;
st.global.u32 [%a+520], %m; ret; }}
"""


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"])
def test_instructions_between_lanes_part_a_product_and_its_sum_where_they_are_refused(arch, tools, tmp_path):
    """Without a predicate: halves before sm_90, nothing else. Under one: all."""
    number = int("".join(filter(str.isdigit, arch)))
    kinds = [kind for kind in KINDS if number >= 90 or not kind.startswith("bf16")]
    exchanges = EXCHANGES + (REDUCTIONS if number >= 80 else [])
    cases = list(itertools.product(kinds, exchanges, ("", "@%p1 ")))
    # The mask as LANES gives it.
    codes = [
        f"{guard}{code}" if code.startswith("activemask") else f"activemask.b32 %m; {guard}{code}"
        for _, code, guard in cases
    ]
    head = f".version 8.7\n.target {arch}\n.address_size 64\n"
    kernels = [
        exchanging(f"k{index}", kind, code) for index, ((kind, _, _), code) in enumerate(zip(cases, codes, strict=True))
    ]
    found = arithmetic(head + "".join(kernels), arch, tmp_path)
    for index, (kind, code, guard) in enumerate(cases):
        body = parse(head + kernels[index])
        contractions = Contractions(Body(body.code, *body.entries[0].body))
        position = body.code.index(codes[index])
        assert contractions.first_clear(position) > position
        # Asking for the mask exchanges nothing yet.
        harmless = code.startswith("activemask") or contractions.may_exchange(position, number)
        allowed = not guard and harmless
        is_fused = found[f"k{index}"] == {KINDS[kind][1]: 1}
        assert is_fused == allowed, (kind, guard + code, found[f"k{index}"])


def _guarded() -> list[str]:
    """What lowering puts under the predicate of an ``If``, and the clock that waits for a value."""
    codes = []
    for width, register in ((16, "%h1"), (32, "%r2"), (64, "%d3")):
        for name in ("add", "sub", "min", "max", "shr", "mul.lo"):
            amount = "%r3" if name == "shr" else register
            codes += [f"{name}.{letter}{width} {register}, {register}, {amount};" for letter in "us"]
        codes += [f"{name}.b{width} {register}, {register}, {register};" for name in ("and", "or", "xor")]
        codes += [f"{name}.b{width} {register}, {register};" for name in ("not", "mov")]
        codes += [f"{name}.s{width} {register}, {register};" for name in ("neg", "abs")]
        codes.append(f"shl.b{width} {register}, {register}, %r3;")
    return [*codes, "mov.u32 %r2, %smid;", "mov.u64 %d3, %clock64;", "mov.pred %p3, %p2;"]


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a"])
def test_guarded_integers_do_not_part_a_product_from_its_sum(arch, tools, tmp_path):
    number = int("".join(filter(str.isdigit, arch)))
    kinds = [kind for kind in KINDS if number >= 90 or not kind.startswith("bf16")]
    cases = list(itertools.product(kinds, _guarded()))
    used = "cvt.u32.u16 %r1, %h1; st.global.u32 [%a+524], %r1; st.global.u64 [%a+528], %d3; st.global"
    kernels = [
        exchanging(f"k{index}", kind, f"@%p1 {code}")
        .replace(".reg .b64 %d<4>;", ".reg .b64 %d<4>; .reg .b16 %h<2>; ")
        .replace("mul.", "ld.global.u16 %h1, [%a+300]; mul.", 1).replace("st.global", used, 1)
        for index, (kind, code) in enumerate(cases)
    ]  # fmt: skip
    found = arithmetic(f".version 8.7\n.target {arch}\n.address_size 64\n" + "".join(kernels), arch, tmp_path)
    parted = [case for index, case in enumerate(cases) if found[f"k{index}"] != {KINDS[case[0]][1]: 1}]
    assert parted == []
