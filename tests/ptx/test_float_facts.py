"""What is said of signs and NaNs before a kernel runs holds for what the embedded device computes."""

from __future__ import annotations

import itertools

import numpy as np

from neutrino.ptx.analysis.float_facts import FloatFacts
from neutrino.ptx.text.body import Body
from neutrino.ptx.text.module import parse
from tests.oracle.bench import Bench, Kernel

_BITS = (0, 1 << 31, 1, 0x807FFFFF, 0x3F800000, 0xC0490FDB, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000)
"""Zeros, numbers below normal ones, 1, -pi, the greatest and the least number, infinities, a NaN."""
# By instruction on a, b, c, or the sizes p and q of two: whether its result is at least +0; whether a NaN comes from
# its sources alone.
_CASES = {
    "add.f32 d, a, b": (False, False), "add.f32 d, p, q": (True, True), "add.ftz.f32 d, a, 0f3F800000": (False, True),
    "sub.f32 d, p, q": (False, False), "sub.f32 d, 0fBF800000, a": (False, True), "add.f32 d, p, a": (False, False),
    "mul.f32 d, a, b": (False, False), "mul.f32 d, a, a": (True, True), "mul.f32 d, p, q": (True, False),
    "mul.f32 d, a, 0f3FB8AA3B": (False, True), "mul.f32 d, 0f00000000, a": (False, False),
    "mul.ftz.f32 d, a, 0f00000001": (False, False), "mul.f32 d, p, 0f7F800000": (True, False),
    "fma.rn.f32 d, a, a, p": (True, True), "fma.rn.f32 d, a, b, c": (False, False),
    "fma.rn.f32 d, a, a, b": (False, False), "fma.rn.f32 d, a, 0f40000000, 0fC0000000": (False, True),
    "div.rn.f32 d, p, q": (True, False), "rcp.rn.f32 d, p": (True, True), "rcp.rn.f32 d, a": (False, True),
    "sqrt.rn.f32 d, p": (True, True), "sqrt.rn.f32 d, a": (False, False), "lg2.approx.f32 d, p": (False, True),
    "rsqrt.approx.f32 d, p": (True, True), "ex2.approx.f32 d, a": (True, True), "abs.f32 d, a": (True, None),
    "max.f32 d, p, a": (False, None), "max.f32 d, p, q": (True, None), "min.f32 d, p, q": (True, None),
    "neg.f32 d, p": (False, None), "mov.b32 d, p": (True, None), "mov.b32 d, a": (False, None),
    "tanh.approx.f32 d, a": (False, True), "cos.approx.f32 d, a": (False, False),
}  # fmt: skip




def test_what_is_said_of_an_instruction_holds() -> None:
    lines = [instruction.replace(" d,", f" d{number},") for number, instruction in enumerate(_CASES)]
    text = "\n".join([
        ".version 7.8", ".target sm_80", ".address_size 64", ".visible .entry k(.param .u64 x, .param .u64 y)", "{",
        f".reg .f32 a, b, c, p, q, d<{len(lines)}>;", ".reg .b32 %t, %n;", ".reg .b64 %x, %y, %at;",
        "ld.param.u64 %x, [x];", "ld.param.u64 %y, [y];", "mov.u32 %t, %tid.x;", "mov.u32 %n, %ctaid.x;",
        f"mad.lo.u32 %t, %n, {len(_BITS) ** 2}, %t;", "mul.wide.u32 %at, %t, 12;", "add.u64 %x, %x, %at;",
        f"mul.wide.u32 %at, %t, {4 * len(lines)};", "add.u64 %y, %y, %at;",
        *(f"ld.global.f32 {name}, [%x+{4 * place}];" for place, name in enumerate("abc")),
        "abs.f32 p, a;", "abs.f32 q, b;",
        *(f"{line};\nst.global.f32 [%y+{4 * number}], d{number};" for number, line in enumerate(lines)),
        "ret;", "}", "",
    ])  # fmt: skip
    values = np.array(list(itertools.product(_BITS, repeat=3)), np.uint32).view(np.float32)
    out = np.zeros((len(values), len(lines)), np.float32)
    kernel = Kernel("k", text, "k", (len(_BITS), 1, 1), (len(_BITS) ** 2, 1, 1), (values.reshape(-1), out))
    results = np.frombuffer(Bench(kernel, ()).results(None)[1], np.float32).reshape(out.shape)
    module = parse(text)
    body = Body(module.code, *module.entries[0].body)
    facts = FloatFacts(body)
    known = dict(zip("abcpq", (*values.T, *np.abs(values.T[:2])), strict=True))
    for number, (line, (is_positive, comes_from_sources)) in enumerate(zip(lines, _CASES.values(), strict=True)):
        (made,) = [each.instruction for each in body if each.instruction and f"d{number}" in each.instruction.written]
        assert facts.is_nonnegative(f"d{number}") == is_positive, line
        result = results[:, number]
        if is_positive:
            assert not np.signbit(result[~np.isnan(result)]).any(), line
        sources = facts.nan_sources(made)
        if comes_from_sources is not None:
            assert (sources is not None) == comes_from_sources, line
        if sources is not None:
            had = np.any([np.isnan(known[source]) for source in sources], axis=0)
            assert not (np.isnan(result) & ~had).any(), line


def test_a_sum_over_a_loop_keeps_its_sign() -> None:
    """As Triton writes it: what comes around the loop is moved."""
    text = """.reg .f32 %sum, %next, %e, %x, %down; .reg .pred %p;
    mov.b32 %sum, 0f00000000; mov.b32 %down, 0f00000000;
    $loop: ex2.approx.f32 %e, %x; add.f32 %next, %sum, %e; mov.b32 %sum, %next; sub.f32 %down, %down, %e;
    @%p bra $loop; shfl.sync.bfly.b32 %x, %sum, 1, 31, -1; ret;"""
    facts = FloatFacts(Body(text, 0, len(text)))
    assert [name for name in ("%sum", "%next", "%e", "%x", "%down") if facts.is_nonnegative(name)] == [
        "%sum", "%next", "%e", "%x",
    ]  # fmt: skip
