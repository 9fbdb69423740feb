"""A program that launches kernels of a text of PTX: ``python launch_pairs.py FILE KERNEL:GRID:BLOCK …``.

Each kernel has one parameter, the address of a buffer of 4 MiB of zeros.
"""

import ctypes
import sys
from pathlib import Path


def main() -> None:
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        result = getattr(driver, name)(*arguments)
        if result:
            raise SystemExit(f"{name}: {result}")

    size = 4 << 20
    context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    buffer = ctypes.c_uint64()
    call("cuInit", 0)
    call("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
    text = Path(sys.argv[1]).read_bytes() + b"\0"
    call("cuModuleLoadData", ctypes.byref(module), text)
    for launch in sys.argv[2:]:
        name, grid, block = launch.split(":")
        call("cuMemAlloc_v2", ctypes.byref(buffer), ctypes.c_size_t(size))
        call("cuMemsetD8_v2", buffer, ctypes.c_ubyte(0), ctypes.c_size_t(size))
        call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(buffer))
        call("cuLaunchKernel", function, int(grid), 1, 1, int(block), 1, 1, 0, None, arguments, None)
        call("cuCtxSynchronize")
        call("cuMemFree_v2", buffer)


main()
