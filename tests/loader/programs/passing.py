"""Links files of LTO IR by nvJitLink through NVIDIA's bindings, as Numba does, and launches the kernel ``scale``.

The command line is an option of the link, and the files.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from pathlib import Path

from cuda.bindings import nvjitlink


def main() -> None:
    """Link and launch; print a digest of the machine code."""
    handle = nvjitlink.create(2, ["-lto", sys.argv[1]])
    for path in sys.argv[2:]:
        data = Path(path).read_bytes()
        nvjitlink.add_data(handle, nvjitlink.InputType.LTOIR, data, len(data), path)
    nvjitlink.complete(handle)
    cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
    nvjitlink.get_linked_cubin(handle, cubin)
    nvjitlink.destroy(handle)
    print(hashlib.sha256(cubin).hexdigest())

    driver = ctypes.CDLL("libcuda.so.1")
    context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    pointer, count = ctypes.c_void_p(), ctypes.c_uint()
    parameters = (ctypes.c_void_p * 2)(ctypes.addressof(pointer), ctypes.addressof(count))
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxSetCurrent(context) == 0
    assert driver.cuModuleLoadData(ctypes.byref(module), bytes(cubin)) == 0
    assert driver.cuModuleGetFunction(ctypes.byref(function), module, b"scale") == 0
    assert driver.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, None, parameters, None) == 0


if __name__ == "__main__":
    main()
