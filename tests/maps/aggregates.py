"""One kernel in which warps part, whose loads a probe saves to a map; run on the embedded device, then read."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.emulator.device import Device
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.instrument.twin import TwinModule
from neutrino.ptx.text.module import parse
from neutrino.tracing.views import MapView
from neutrino.verification import read_probes
from tests.oracle.twin_launch import Launch, LoadedTwin

Values = npt.NDArray[Any]
# Each thread reads a number of values of its own, so that warps part; every third one leaves by another exit.
_TEXT = """
.version 7.8
.target {arch}
.address_size 64
.visible .entry k(.param .u64 values, .param .u64 out, .param .u32 n)
{{
	.reg .pred %p, %q;
	.reg .b32 %i, %n, %step, %t;
	.reg .b64 %at, %from, %to;
	.reg .b{bits} %value, %sum;
	ld.param.u64 %from, [values];
	ld.param.u64 %to, [out];
	ld.param.u32 %n, [n];
	mov.u32 %t, %ctaid.x;
	mov.u32 %step, %ntid.x;
	mov.u32 %i, %tid.x;
	mad.lo.u32 %i, %t, %step, %i;
	mov.u32 %t, %nctaid.x;
	mul.lo.u32 %step, %step, %t;
	rem.u32 %t, %i, 3;
	setp.eq.u32 %q, %t, 0;
	mov.b{bits} %sum, 0;
AGAIN:
	setp.ge.u32 %p, %i, %n;
	@%p bra DONE;
	mad.wide.u32 %at, %i, {size}, %from;
	ld.global.{kind} %value, [%at];
	xor.b{bits} %sum, %sum, %value;
	add.u32 %i, %i, %step;
	bra AGAIN;
DONE:
	@%q exit;
	st.global.b{size8} [%to], %sum;
	ret;
}}
"""


def kernel_text(kind: str, arch: str) -> str:
    """The kernel for values of a type."""
    size = int(kind[1:]) // 8
    return _TEXT.format(kind=kind, arch=arch, bits=max(size * 8, 16), size=size, size8=size * 8)


def probes_of(table: str, kind: str, level: str = "thread", operand: str = "OUT", name: str = "value") -> ProbeSet:
    """A probe that saves what each load gets. table: of its map, but for level and data."""
    return read_probes(
        "test.toml",
        f"""platform = "cuda"
[map.M]
{table}
level = "{level}"
data = {{ {name} = "{kind}" }}
[probe.loads]
position = "ld.global"
level = "{level}"
after = "SAVE [ M ] {{ {operand} }};"
"""
    )


def twin_of(probes: ProbeSet, kind: str, arch: str) -> TwinModule:
    """The kernel's twin."""
    twins = probe_module(parse(kernel_text(kind, arch)), probes)
    assert not twins.skipped, twins.skipped
    return twins


def run(
    probes: ProbeSet, values: Values, kind: str, arch: str, blocks: int = 3, threads: int = 70, **launch: int
) -> MapView:
    """What the map M holds after a launch over the values."""
    return run_twin(twin_of(probes, kind, arch), values, blocks, threads, **launch)["M"]


def run_all(
    probes: ProbeSet, values: Values, kind: str, arch: str, blocks: int = 3, threads: int = 70, **launch: int
) -> dict[str, MapView]:
    """What the maps hold after a launch over the values."""
    return run_twin(twin_of(probes, kind, arch), values, blocks, threads, **launch)


def run_twin(twins: TwinModule, values: Values, blocks: int, threads: int, **launch: int) -> dict[str, MapView]:
    """As ``run_all``, of any kernel with these parameters."""
    device = Device(memory=16 << 20, seed=1)
    module = device.load(twins.render())
    source, out = device.allocate(max(values.nbytes, 1)), device.allocate(64)
    device.write(source, np.ascontiguousarray(values))
    loaded = LoadedTwin(twins.kernels[0], module, {})
    packed = struct.pack("<QQI", source, out, len(values))
    return loaded.launch(device, Launch((blocks, 1, 1), (threads, 1, 1), packed, **launch))


def read_by(values: Values, threads: int, blocks: int, chosen: str) -> Values:
    """The values that the first threads of warps or of blocks read, or all."""
    reader = np.arange(len(values)) % (threads * blocks) % threads
    return values[{"thread": reader >= 0, "warp": reader % 32 == 0, "block": reader == 0}[chosen]]


def random_values(kind: str, count: int, random: np.random.Generator) -> Values:
    """Values of all magnitudes of a type, its extremes among them."""
    dtype = np.dtype({"u": "<u", "s": "<i", "f": "<f"}[kind[0]] + str(int(kind[1:]) // 8))
    raw = random.integers(0, 1 << 63, count, np.uint64) >> random.integers(0, 63, count).astype(np.uint64)
    bits = raw.astype(f"<u{dtype.itemsize}")
    if kind[0] == "s":
        return np.where(random.random(count) < 0.4, (~bits), bits).astype(bits.dtype).view(dtype)
    if kind[0] == "f":
        return random.standard_normal(count).astype(dtype) * dtype.type(1e3)
    return bits.view(dtype)

