"""Forms of operands, parameters and declarations that ptxas takes and few compilers write."""

from __future__ import annotations

import numpy as np
import pytest

from neutrino.emulator.device import Device
from neutrino.errors import PtxRefusedError

_HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
_ENTRY = """.visible .entry k(.param .u64 data)
{
.reg .b16 %h<4>; .reg .b32 %r<8>; .reg .s32 %s<4>; .reg .b64 %rd<8>; .reg .f32 %f<4>; .reg .f64 %fd<4>; .reg .pred %p;
ld.param.u64 %rd1, [data];
ld.global.u32 %r1, [%rd1];
"""


def _run(text: str, words: list[int]) -> list[int]:
    """Run kernel k in one thread on 32-bit words, and return them as it leaves them."""
    device = Device(memory=1 << 20)
    module = device.load(_HEAD + text)
    data = device.allocate(4 * len(words))
    device.write(data, np.array(words, np.uint32).tobytes())
    device.launch(module.functions["k"], (1, 1, 1), (1, 1, 1), [data])
    return np.frombuffer(device.read(data, 4 * len(words)), np.uint32).tolist()


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        # The wanted values are what the code that ptxas 13.0 makes of them computes.
        ("mov.u32 %r2, %r1+2; st.global.u32 [%rd1+8], %r2;", 7),
        ("st.global.u32 [%rd1+8], %r1+0x10;", 21),
        ("add.u32 %r2, %r1+3, %r1+-2; st.global.u32 [%rd1+8], %r2;", 11),
        ("mad.lo.u32 %r2, %r1+1, %r1+2, %r1+3; st.global.u32 [%rd1+8], %r2;", 50),
        ("mul.wide.u32 %rd2, %r1+4294967295, 8; st.global.u64 [%rd1+8], %rd2;", 32),
        ("shl.b32 %r2, %r1, %r1+-3; st.global.u32 [%rd1+8], %r2;", 20),
        ("setp.lt.u32 %p, %r1+4, 9; selp.u32 %r2, %r1+1, %r1+2, %p; st.global.u32 [%rd1+8], %r2;", 7),
        ("mov.u32 %s1, %r1; cvt.s64.s32 %rd2, %s1+-7; shr.s64 %rd2, %rd2, 40; st.global.u32 [%rd1+8], %rd2;",
         2**32 - 1),
        ("add.u64 %rd2, %rd1, %rd1+4; sub.u64 %rd2, %rd2, %rd1; sub.u64 %rd2, %rd2, %rd1; "
         "st.global.u32 [%rd1+8], %rd2;", 4),
        ("shfl.sync.idx.b32 %r2, %r1+1, 0, 31, 1; st.global.u32 [%rd1+8], %r2;", 6),
        ("red.global.add.u32 [%rd1+8], %r1+7;", 13),
        ("cvt.u16.u32 %h1, %r1; add.u16 %h1, %h1+65535, 0; cvt.u32.u16 %r2, %h1; st.global.u32 [%rd1+8], %r2;", 4),
        ("mov.f64 %fd1, 0d3FD0000000000000; rsqrt.approx.f64 %fd1, %fd1; cvt.rzi.u32.f64 %r2, %fd1; "
         "st.global.u32 [%rd1+8], %r2;", 2),
    ],
)  # fmt: skip
def test_values(statement: str, expected: int) -> None:
    assert _run(f"{_ENTRY}{statement}\nret;\n}}", [5, 0, 1, 0])[2] == expected


@pytest.mark.parametrize("statement", ["mov.u32 %r2, %r1-1;", "mul.f32 %f1, %f2+1, %f3;", "bra L+1;"])
def test_what_ptxas_does_not_take_either(statement: str) -> None:
    """Differences are errors; of sums with floating-point registers ptxas 13.0 crashes."""
    with pytest.raises(PtxRefusedError):
        _run(f"{_ENTRY}{statement}\nL: ret;\n}}", [0])


def test_vectors_of_registers_are_passed() -> None:
    text = """
.func (.reg .v2 .u32 swapped, .reg .u32 third) swap(.reg .v2 .u32 pair, .reg .v4 .u32 more)
{
mov.u32 swapped.x, pair.y;
mov.u32 swapped.y, pair.x;
add.u32 third, more.x, more.w;
ret;
}
"""
    body = """
.reg .v2 .u32 pair; .reg .v4 .u32 four;
ld.global.v2.u32 pair, [%rd1];
mov.u32 four.x, 3; mov.u32 four.y, 90; mov.u32 four.z, 90; mov.u32 four.w, 4;
call (pair, %r3), swap, (pair, four);
st.global.v2.u32 [%rd1], pair;
st.global.u32 [%rd1+8], %r3;
ret;
}"""
    assert _run(text + _ENTRY + body, [1, 2, 0]) == [2, 1, 7]


def test_variables_of_bodies() -> None:
    """Each declaration is one variable, which lasts from launch to launch; none can be asked for by name."""
    text = """
.global .u32 count = 100;
.func (.reg .u32 result) next() { .global .u32 count = 10; atom.global.add.u32 result, [count], 1; ret; }
""" + _ENTRY + """
.global .align 4 .u32 offsets[] = {5, 6}; .const .u32 factor = 7;
ld.global.u32 %r2, [offsets+4]; ld.const.u32 %r3, [factor];
{ .global .u32 count<2>; { .global .u32 count1 = 3; ld.global.u32 %r4, [count1]; } st.global.u32 [count1], %r4;
  ld.global.u32 %r5, [count1]; }
call (%r6), next; call (%r6), next; ld.global.u32 %r7, [count];
add.u32 %r2, %r2, %r3; add.u32 %r4, %r4, %r5;
st.global.v4.u32 [%rd1], {%r2, %r4, %r6, %r7};
ret; }"""  # fmt: skip
    device = Device(memory=1 << 20)
    module = device.load(_HEAD + text)
    assert set(module.variables) == {"count"}
    data = device.allocate(16)
    for launch in range(2):
        device.launch(module.functions["k"], (1, 1, 1), (1, 1, 1), [data])
        words = np.frombuffer(device.read(data, 16), np.uint32).tolist()
        assert words == [13, 6, 11 + 2 * launch, 100]
