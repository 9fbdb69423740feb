"""A kernel for the library of probes: loads by an index in many patterns, atomics, barriers and NaNs."""

from __future__ import annotations

import numpy as np

from tests.oracle.bench import Kernel

BLOCKS, THREADS, TURNS, ELEMENTS = 3, 72, 3, 1024
"""The last warp of each block has 8 lanes."""

_TEXT = """.version 8.0
.target sm_90
.address_size 64

.visible .entry patterns(.param .u64 values, .param .u64 indices, .param .u64 out, .param .u64 bins)
{
    .reg .pred %odd, %more;
    .reg .b32 %i, %j, %k, %n, %t, %old;
    .reg .f32 %x, %y, %root;
    .reg .b64 %values, %indices, %out, %bins, %at;
    ld.param.u64 %values, [values];
    ld.param.u64 %indices, [indices];
    ld.param.u64 %out, [out];
    ld.param.u64 %bins, [bins];
    mov.u32 %i, %ctaid.x;
    mov.u32 %n, %ntid.x;
    mov.u32 %t, %tid.x;
    mad.lo.u32 %i, %i, %n, %t;
    mad.wide.u32 %indices, %i, 4, %indices;
    mad.wide.u32 %out, %i, 4, %out;
    and.b32 %t, %i, 1;
    setp.ne.u32 %odd, %t, 0;
    mov.u32 %k, 0;
again:
    ld.global.nc.u32 %j, [%indices];
    mad.wide.u32 %at, %j, 8, %values;
    ld.global.v2.f32 {%x, %y}, [%at];
    sub.f32 %x, %x, %y;
    sqrt.rn.f32 %root, %x;
    add.f32 %root, %root, %y;
    @%odd st.global.f32 [%out], %root;
    and.b32 %t, %j, 3;
    mad.wide.u32 %at, %t, 4, %bins;
    atom.global.add.u32 %old, [%at], 1;
    @%odd red.global.add.u32 [%at+16], 1;
    bar.sync 0;
    add.s64 %indices, %indices, 864;
    add.u32 %k, %k, 1;
    setp.lt.u32 %more, %k, 3;
    @%more bra again;
    ret;
}
"""
_COUNT = BLOCKS * THREADS


def _kernel(name: str, indices: np.ndarray[tuple[int, ...], np.dtype[np.uint32]]) -> Kernel:
    random = np.random.default_rng(14)
    values = random.random((ELEMENTS, 2), np.float32)
    # Of which none is negative, except for some.
    values.sort(axis=1)
    values[:] = values[:, ::-1]
    values[random.integers(0, ELEMENTS, 60), 1] = 2
    arguments = (values, indices.astype(np.uint32), np.zeros(_COUNT, np.float32), np.zeros(8, np.uint32))
    # What an atomic returns depends on the order, and nothing reads it.
    return Kernel(name, _TEXT, "patterns", (BLOCKS, 1, 1), (THREADS, 1, 1), arguments)


def patterns() -> dict[str, Kernel]:
    """The kernel by the pattern in which its threads load."""
    each = np.arange(_COUNT * TURNS)
    random = np.random.default_rng(7)
    found = {
        "linear": each,
        "stride": each * 9 % ELEMENTS,
        "gather": random.permutation(ELEMENTS)[:_COUNT].repeat(TURNS),
        "broadcast": np.repeat(np.arange(TURNS), _COUNT),
        "random": random.integers(0, ELEMENTS, _COUNT * TURNS),
    }
    return {name: _kernel(name, indices) for name, indices in found.items()}
