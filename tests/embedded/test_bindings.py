"""NVIDIA's cuda-bindings on the stand-in driver, end to end."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Bench

PROGRAM = """
import ctypes, sys
import numpy as np
from cuda.bindings import driver as cuda

def check(answer):
    assert answer[0] == cuda.CUresult.CUDA_SUCCESS, answer
    return answer[1] if len(answer) == 2 else answer[1:]

check(cuda.cuInit(0))
device = check(cuda.cuDeviceGet(0))
print(check(cuda.cuDeviceGetName(100, device)).split(b"\\0")[0].decode())
attribute = cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
print(check(cuda.cuDeviceGetAttribute(attribute, device)), check(cuda.cuDriverGetVersion()))
context = check(cuda.cuCtxCreate(None, 0, device))
module = check(cuda.cuModuleLoadData(open(sys.argv[1], "rb").read() + b"\\0"))
function = check(cuda.cuModuleGetFunction(module, b"vecadd"))
stream = check(cuda.cuStreamCreate(0))
n = 5000
a, b = np.random.default_rng(1).random((2, n), np.float32)
c = np.zeros_like(a)
pointers = [check(cuda.cuMemAlloc(a.nbytes)) for _ in range(3)]
for pointer, values in zip(pointers[1:], (a, b)):
    check(cuda.cuMemcpyHtoDAsync(pointer, values.ctypes.data, values.nbytes, stream))
arguments = ((pointers[0], pointers[1], pointers[2], n), (None, None, None, ctypes.c_int))
check(cuda.cuLaunchKernel(function, -(-n // 256), 1, 1, 256, 1, 1, 0, stream, arguments, 0))
check(cuda.cuMemcpyDtoHAsync(c.ctypes.data, pointers[0], c.nbytes, stream))
check(cuda.cuStreamSynchronize(stream))
print((c == a + b).all())
print(check(cuda.cuGetErrorName(cuda.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS)).decode())
check(cuda.cuStreamBeginCapture(stream, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
check(cuda.cuLaunchKernel(function, -(-n // 256), 1, 1, 256, 1, 1, 0, stream, arguments, 0))
graph = check(cuda.cuStreamEndCapture(stream))
executable = check(cuda.cuGraphInstantiate(graph, 0))
check(cuda.cuMemsetD8(pointers[0], 0, c.nbytes))
check(cuda.cuGraphLaunch(executable, stream))
check(cuda.cuStreamSynchronize(stream))
check(cuda.cuMemcpyDtoH(c.ctypes.data, pointers[0], c.nbytes))
print((c == a + b).all())
check(cuda.cuCtxDestroy(context))
"""


def test_vecadd_and_its_graph(bench: Bench) -> None:
    if importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None:
        pytest.skip("cuda-bindings is not installed")
    image = Path(__file__).parent / "kernels.ptx"
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(image)],
        env=bench.environment(strict=1),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "Neutrino embedded device (PTX interpreter, step clock)",
        "9 13000",
        "True",
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "True",
    ]
