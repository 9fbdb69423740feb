"""A register that was moved stays what it was when the other one is written in some threads only."""

from __future__ import annotations

import numpy as np
import pytest

from neutrino.emulator.device import Device

_HEAD = """.version 8.0
.target sm_80
.address_size 64
.func (.reg .b32 %result) later(.reg .b32 %given)
{{
	.reg .pred %p; .reg .b32 %own;
	mov.u32 %result, %given;
	setp.lt.u32 %p, %given, 20;
	@%p bra over;
	add.u32 %result, %result, 100;
over:
	ret;
}}
.visible .entry k(.param .u64 out)
{{
	.reg .pred %p<3>; .reg .b32 %r<8>; .reg .b64 %rd<4>;
	ld.param.u64 %rd1, [out];
	mov.u32 %r1, %tid.x;
	setp.lt.u32 %p1, %r1, 16;
	setp.lt.u32 %p2, %r1, 8;
	mov.u32 %r2, %r1;
{body}
	mul.wide.u32 %rd2, %r1, 4;
	add.s64 %rd3, %rd1, %rd2;
	st.global.u32 [%rd3], %r3;
	ret;
}}
"""
_MOVED = """
	@%p1 bra one;
	add.u32 %r2, %r2, 100;
one:
	mov.u32 %r3, %r2;
	@%p2 bra two;
	add.u32 %r2, %r2, 1000;
two:
	add.u32 %r4, %r2, %r3;
"""
_RETURNED = """
	call.uni (%r3), later, (%r1);
	add.u32 %r4, %r1, 7;
	@%p1 bra one;
	call (%r5), later, (%r4);
one:
	add.u32 %r6, %r5, %r3;
"""
_PASSED = """
	@%p1 bra one;
	add.u32 %r2, %r2, 100;
one:
	call.uni (%r3), later, (%r2);
	@%p2 bra two;
	add.u32 %r2, %r2, 1000;
two:
	add.u32 %r4, %r2, %r3;
"""
_TID = np.arange(32, dtype=np.uint32)


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (_MOVED, np.where(_TID < 16, _TID, _TID + 100)),
        (_RETURNED, np.where(_TID < 20, _TID, _TID + 100)),
        (_PASSED, np.where(_TID < 16, _TID, _TID + 200)),
    ],
    ids=["moved", "returned", "passed"],
)
def test_the_other_register_stays(body: str, expected: np.ndarray, seed: int | None) -> None:
    device = Device(memory=1 << 20, seed=seed)
    module = device.load(_HEAD.format(body=body))
    out = device.allocate(128)
    device.launch(module.functions["k"], (1, 1, 1), (32, 1, 1), [out])
    assert np.array_equal(np.frombuffer(device.read(out, 128), np.uint32), expected)
