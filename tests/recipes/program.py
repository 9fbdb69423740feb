"""Runs launches.json by the driver API and nothing else, and writes what its arrays are then, and where.

Stands in a folder as ``program``, where the examples of pages have theirs.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    plan = json.loads((HERE / "launches.json").read_text())
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        status = getattr(driver, name)(*arguments)
        if status:
            sys.exit(f"{name}: {status}")

    call("cuInit", 0)
    context, module = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuModuleLoadData", ctypes.byref(module), (HERE / "kernels.ptx").read_bytes() + b"\0")
    arrays = {}
    for name, text in plan["arrays"].items():
        content = bytes.fromhex(text)
        address = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(len(content)))
        call("cuMemcpyHtoD_v2", address, content, ctypes.c_size_t(len(content)))
        arrays[name] = (address, len(content))
    for launch in plan["launches"]:
        function = ctypes.c_void_p()
        call("cuModuleGetFunction", ctypes.byref(function), module, launch["kernel"].encode())
        values = [
            arrays[value][0] if isinstance(value, str)
            else ctypes.c_float(value) if isinstance(value, float) else ctypes.c_uint32(value)
            for value in launch["arguments"].values()
        ]  # fmt: skip
        pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(value) for value in values])
        call("cuLaunchKernel", function, *launch["grid"], *launch["block"], 0, None, pointers, None)
    call("cuCtxSynchronize")
    after = {}
    for name, (address, size) in arrays.items():
        content = ctypes.create_string_buffer(size)
        call("cuMemcpyDtoH_v2", content, address, ctypes.c_size_t(size))
        after[name] = content.raw.hex()
    addresses = {name: address.value for name, (address, _) in arrays.items()}
    (HERE / "after.json").write_text(json.dumps({"addresses": addresses, "arrays": after}))


if __name__ == "__main__":
    main()
