"""Kernels with probes in called functions: their arithmetic and their stack, as ptxas makes them."""

from __future__ import annotations

import json

import pytest

from neutrino.abi.reasons import Reason
from neutrino.device.kind import DeviceKind
from neutrino.maker.patcher import patch_image
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.selection import Selection
from neutrino.toolchain.ptxas import Assembler
from neutrino.twins.cache_entry import KernelEntry, read_entry
from neutrino.verification import load_probe_file, load_probes

MODULE = """.version 8.0
.target sm_90
.address_size 64
.func (.param .b32 result) scaled(.param .b64 place)
{
	.reg .b64 %d; .reg .f32 %f<5>;
	ld.param.u64 %d, [place];
	ld.global.f32 %f1, [%d]; ld.global.f32 %f2, [%d+4];
	mul.f32 %f3, %f1, %f2;
	add.f32 %f4, %f3, %f1;
	st.param.f32 [result], %f4;
	ret;
}
.func (.param .b32 result) deep(.param .b64 place, .param .b32 depth)
{
	.reg .b64 %d; .reg .b32 %r<5>; .reg .pred %p;
	ld.param.u64 %d, [place]; ld.param.u32 %r1, [depth];
	ld.global.u32 %r2, [%d];
	st.param.b32 [result], %r2;
	setp.eq.u32 %p, %r1, 0;
	@%p ret;
	sub.s32 %r1, %r1, 1;
	call (%r3), deep, (%d, %r1);
	add.s32 %r3, %r3, %r2;
	st.param.b32 [result], %r3;
	ret;
}
.visible .entry fused(.param .u64 p)
{
	.reg .b64 %d; .reg .f32 %f;
	ld.param.u64 %d, [p];
	call (%f), scaled, (%d);
	st.global.f32 [%d+8], %f;
	ret;
}
.visible .entry recursive(.param .u64 p)
{
	.reg .b64 %d; .reg .b32 %r;
	ld.param.u64 %d, [p];
	call (%r), deep, (%d, 20);
	st.global.u32 [%d+8], %r;
	ret;
}
"""
PRODUCTS = """
[map.Products]
type = "array"
level = "thread"
size = 4
cap = 2
data = { value = "f32" }
[probe.product]
position = "mul.f32"
level = "thread"
after = "SAVE [ Products ] { OUT };"
"""


def patched(probes: ProbeSet, assembler: Assembler, device: DeviceKind = DeviceKind.GPU) -> dict[str, KernelEntry]:
    image = MODULE.encode() + b"\0"
    every = Selection((), ())
    data = patch_image(image, probes, "sm_90", selection=every, assembler=assembler, key=bytes(32), device=device)
    return {kernel.name: kernel for kernel in read_entry(data, "entry").kernels}


def test_arithmetic_of_the_function_is_compared(assembler, tmp_path):
    (tmp_path / "products.toml").write_text(PRODUCTS)
    kernel = patched(load_probe_file(tmp_path / "products.toml"), assembler)["fused"]
    assert kernel.reason is Reason.PROBED, kernel.detail
    manifest = json.loads(kernel.files["manifest.json"])
    assert manifest["numerics"]["original"] == {"FFMA": 1}
    assert manifest["numerics"]["twin"] == {"FFMA": 1, "FMUL": 1}
    assert manifest["numerics"]["own"] == {"FMUL": 1}
    assert [site["function"] for site in manifest["sites"]] == ["scaled"]
    assert b".func (.param .b32 result) scaled__neutrino_fused(" in kernel.files["probed.ptx"]


@pytest.mark.parametrize("device", DeviceKind)
def test_recursion_where_the_stack_is_bounded(device, assembler):
    """The driver gives a recursive kernel what the program has set as limit; the embedded device has no limit."""
    kernels = patched(load_probes(["gmem_bytes"]), assembler, device)
    assert kernels["fused"].reason is Reason.PROBED
    if device is DeviceKind.EMBEDDED:
        assert kernels["recursive"].reason is Reason.PROBED
        return
    assert kernels["recursive"].reason is Reason.UNSUPPORTED
    assert kernels["recursive"].detail.startswith("deep is recursive to an unknown depth, and its stack frame grows")


def test_recursion_without_probes_in_it_is_no_reason(assembler):
    assert patched(load_probes(["block_sched"]), assembler)["recursive"].reason is Reason.PROBED
