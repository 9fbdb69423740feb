"""``bench/workloads/graph.cu`` by the driver API, for the embedded device, which runs no program of cudart.

graph_program.py --seeds N --out FILE
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver as cuda

N, NODES, REPLAYS, LESS, THREADS = 1007, 3, 5, 200, 128
PTX = b"""
.version 7.8
.target sm_90
.address_size 64
.visible .entry advance(.param .u64 values, .param .u32 n)
{
    .reg .pred %p;
    .reg .b32 %r<6>;
    .reg .b64 %d<3>;
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %ntid.x;
    mov.u32 %r2, %tid.x;
    mad.lo.u32 %r3, %r0, %r1, %r2;
    ld.param.u32 %r4, [n];
    setp.ge.u32 %p, %r3, %r4;
    @%p bra DONE;
    ld.param.u64 %d0, [values];
    cvta.to.global.u64 %d1, %d0;
    mad.wide.u32 %d2, %r3, 4, %d1;
    ld.global.u32 %r5, [%d2];
    mad.lo.u32 %r5, %r5, 1664525, 1013904223;
    st.global.u32 [%d2], %r5;
DONE:
    ret;
}
"""


def check(answer: Any) -> Any:
    assert answer[0] == cuda.CUresult.CUDA_SUCCESS, answer
    return answer[1] if len(answer) == 2 else answer[1:]


def main() -> int:
    seeds, out = int(sys.argv[2]), Path(sys.argv[4])
    check(cuda.cuInit(0))
    device = check(cuda.cuDeviceGet(0))
    check(cuda.cuCtxCreate(None, 0, device))
    multiprocessors = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    function = check(cuda.cuModuleGetFunction(check(cuda.cuModuleLoadData(PTX + b"\0")), b"advance"))
    stream = check(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING))
    values = check(cuda.cuMemAlloc(4 * N))
    launches: list[Any] = []
    outputs, checks = [], "ok"

    def launch(n: int) -> None:
        arguments = ((values, n), (None, ctypes.c_uint))
        check(cuda.cuLaunchKernel(function, -(-n // THREADS), 1, 1, THREADS, 1, 1, 0, stream, arguments, 0))

    def row(n: int) -> list[Any]:
        # Time means nothing on this device: so long that it bounds any number of its steps.
        return ["advance", [-(-n // THREADS), 1, 1], [THREADS, 1, 1], 1e6, [4 * n, 4 * n, 0, 0]]

    for seed in range(seeds):
        x = np.random.default_rng(seed).integers(0, 1 << 32, N, np.uint32)
        check(cuda.cuMemcpyHtoD(values, x.ctypes.data, x.nbytes))
        launch(N)
        launches.append(row(N))
        sizes = [N - (node + 1) * LESS for node in range(NODES)]
        check(cuda.cuStreamBeginCapture(stream, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
        for n in sizes:
            launch(n)
        graph = check(cuda.cuStreamEndCapture(stream))
        executable = check(cuda.cuGraphInstantiate(graph, 0))
        for _ in range(REPLAYS):
            check(cuda.cuGraphLaunch(executable, stream))
            launches += map(row, sizes)
        check(cuda.cuStreamSynchronize(stream))
        for n in [N, *sizes * REPLAYS]:
            x[:n] = x[:n] * np.uint32(1664525) + np.uint32(1013904223)
        result = np.zeros_like(x)
        check(cuda.cuMemcpyDtoH(result.ctypes.data, values, x.nbytes))
        if not (result == x).all():
            checks = f"seed {seed}: values differ"
        outputs.append(hashlib.sha256(result.tobytes()).hexdigest())
    report = {
        "workload": "graph", "checks": checks, "outputs": outputs, "launches": launches,
        "device": "embedded", "sm_count": check(cuda.cuDeviceGetAttribute(multiprocessors, device)),
        "clock_khz": 1_000_000, "driver": check(cuda.cuDriverGetVersion()),
        "extra": {"replayed": NODES * REPLAYS * seeds},
    }  # fmt: skip
    out.write_text(json.dumps(report))
    return 0 if checks == "ok" else 1


if __name__ == "__main__":
    sys.exit(main())
