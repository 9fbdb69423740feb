"""A program of the driver API that knows nothing of Neutrino: it launches one kernel and keeps what its buffers hold.

    python -m neutrino.playground.program FOLDER PID_OF_THE_STARTER

FOLDER/launch.json says what to launch (``attempt`` writes it); the buffers' contents after it, those of the module's
variables before and after, and ``done.json`` with the buffers' addresses or with what went wrong, are written there.
It finds the driver as every program does. Its stdout is the kernel's own.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from neutrino.loader._interface import ffi

_LOG_BYTES = 8192
_PR_SET_PDEATHSIG = 1  # prctl(2)
# cuda.h, CUjit_option: where the driver puts the reason why it refuses an image, and how much room there is.
_JIT_ERROR_LOG_BUFFER = 5
_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6


class _CallError(Exception):
    """A call of the driver that failed. code: its CUresult. log: what it said of an image."""

    def __init__(self, call: str, code: int, name: str, log: str) -> None:
        super().__init__(f"{call}: {name}")
        self.call = call
        self.code = code
        self.name = name
        self.log = log


def _text(characters: Any) -> str:
    data = ffi.string(characters)
    return data.decode("utf-8", "replace") if isinstance(data, bytes) else data


class _Driver:
    def __init__(self) -> None:
        self._library: Any = ffi.dlopen("libcuda.so.1")
        self._log = ffi.new("char[]", _LOG_BYTES)

    def __call__(self, call: str, *arguments: Any) -> None:
        code = getattr(self._library, call)(*arguments)
        if code:
            name = ffi.new("const char **")
            self._library.cuGetErrorName(code, name)
            raise _CallError(call, code, _text(name[0]) if name[0] else "?", _text(self._log).strip())

    def load(self, image: bytes) -> Any:
        module = ffi.new("CUmodule *")
        options = ffi.new("int[]", [_JIT_ERROR_LOG_BUFFER, _JIT_ERROR_LOG_BUFFER_SIZE_BYTES])
        values = ffi.new("void *[]", [self._log, ffi.cast("void *", _LOG_BYTES)])
        self("cuModuleLoadDataEx", module, ffi.from_buffer(image), 2, options, values)
        return module[0]

    def variable(self, module: Any, name: str) -> tuple[int, int]:
        address, size = ffi.new("CUdeviceptr *"), ffi.new("size_t *")
        self("cuModuleGetGlobal_v2", address, size, module, name.encode())
        return address[0], size[0]

    def read(self, address: int, size: int) -> bytes:
        data = bytearray(size)
        self("cuMemcpyDtoH_v2", ffi.from_buffer(data), address, size)
        return bytes(data)


def run(folder: Path) -> dict[str, Any]:
    """Launch what FOLDER/launch.json says. Returns what goes into ``done.json``."""
    plan = json.loads((folder / "launch.json").read_text())
    addresses: list[tuple[int, int]] = []
    try:
        _launch(_Driver(), folder, plan, addresses)
    except _CallError as error:
        failure = {"call": error.call, "code": error.code, "name": error.name, "log": error.log}
        return {"addresses": addresses, "failure": failure}
    return {"addresses": addresses, "failure": None}


def _launch(driver: _Driver, folder: Path, plan: dict[str, Any], addresses: list[tuple[int, int]]) -> None:
    device, context = ffi.new("CUdevice *"), ffi.new("CUcontext *")
    driver("cuInit", 0)
    driver("cuDeviceGet", device, 0)
    driver("cuDevicePrimaryCtxRetain", context, device[0])
    driver("cuCtxSetCurrent", context[0])
    module = driver.load((folder / "kernel.ptx").read_bytes() + b"\0")
    variables = [driver.variable(module, name) for name in plan["variables"]]
    for index, place in enumerate(variables):
        (folder / f"{index}.before").write_bytes(driver.read(*place))
    function = ffi.new("CUfunction *")
    driver("cuModuleGetFunction", function, module, plan["kernel"].encode())
    parameters = [bytearray(bytes.fromhex(text)) for text in plan["parameters"]]
    for index, buffer in enumerate(plan["buffers"]):
        data = (folder / f"{index}.in").read_bytes()
        address = ffi.new("CUdeviceptr *")
        driver("cuMemAlloc_v2", address, len(data))
        driver("cuMemcpyHtoD_v2", address[0], ffi.from_buffer(data), len(data))
        addresses.append((address[0], len(data)))
        parameter, offset = buffer
        parameters[parameter][offset : offset + 8] = address[0].to_bytes(8, "little")
    storage = [ffi.from_buffer(parameter) for parameter in parameters]
    pointers = ffi.new("void *[]", [*storage, ffi.NULL])
    if plan["shared"] > 48 << 10:
        # cuda.h, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: beyond 48 KiB a program must ask.
        driver("cuFuncSetAttribute", function[0], 8, plan["shared"])
    grid, block, shared = plan["grid"], plan["block"], plan["shared"]
    driver("cuLaunchKernel", function[0], *grid, *block, shared, ffi.NULL, pointers, ffi.NULL)
    driver("cuCtxSynchronize")
    for index, place in enumerate(addresses):
        (folder / f"{index}.out").write_bytes(driver.read(*place))
    for index, place in enumerate(variables):
        (folder / f"{index}.after").write_bytes(driver.read(*place))
    driver("cuModuleUnload", module)
    driver("cuDevicePrimaryCtxRelease_v2", device[0])


def _end_with_parent(parent: int) -> None:
    """End with the process that started this one, which limits the run time: the kernel may not end by itself."""
    libc: Any = ffi.dlopen(None)
    if libc.prctl(_PR_SET_PDEATHSIG, ffi.cast("unsigned long", signal.SIGKILL)) != 0:
        sys.exit("PR_SET_PDEATHSIG was refused")
    if os.getppid() != parent:
        sys.exit("who started this has ended")


if __name__ == "__main__":
    _end_with_parent(int(sys.argv[2]))
    target = Path(sys.argv[1])
    (target / "done.json").write_text(json.dumps(run(target)))
