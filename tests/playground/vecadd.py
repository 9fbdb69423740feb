"""c = a + b through NVIDIA's cuda-bindings; knows nothing of Neutrino. Prints the sum, or the driver's error."""

import sys
from pathlib import Path

import numpy as np
from cuda.bindings import driver


def ask(answer):
    error, *values = answer
    if error != driver.CUresult.CUDA_SUCCESS:
        sys.exit(f"{error.name}")
    return values[0] if len(values) == 1 else values


ask(driver.cuInit(0))
context = ask(driver.cuDevicePrimaryCtxRetain(ask(driver.cuDeviceGet(0))))
ask(driver.cuCtxSetCurrent(context))
module = ask(driver.cuModuleLoadData(Path(sys.argv[1]).read_bytes() + b"\0"))
function = ask(driver.cuModuleGetFunction(module, b"vecadd"))
count = 1000
a, b, c = (np.arange(count, dtype="f4") * scale for scale in (1, 2, 0))
addresses = []
for array in (a, b, c):
    addresses.append(ask(driver.cuMemAlloc(array.nbytes)))
    ask(driver.cuMemcpyHtoD(addresses[-1], array.ctypes.data, array.nbytes))
storage = [*(np.array([int(address)], "u8") for address in addresses), np.array([count], "u4")]
pointers = np.array([item.ctypes.data for item in storage], "u8")
stream = ask(driver.cuStreamCreate(0))
ask(driver.cuLaunchKernel(function, 8, 1, 1, 128, 1, 1, 0, stream, pointers.ctypes.data, 0))
ask(driver.cuStreamSynchronize(stream))
ask(driver.cuMemcpyDtoH(c.ctypes.data, addresses[2], c.nbytes))
print("equal" if (c == a + b).all() else "wrong", float(c.sum()))
