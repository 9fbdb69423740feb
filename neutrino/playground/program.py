"""A program of the driver API that knows nothing of Neutrino: it launches one kernel and keeps what its buffers hold.

    python -m neutrino.playground.program FOLDER PID_OF_THE_STARTER

FOLDER/launch.json says what to launch (``attempt`` writes it); the buffers' contents after it, those of the module's
variables before and after, and ``done.json`` with the buffers' addresses or with what went wrong, are written there.
It finds the driver as every program does. Its stdout is the kernel's own.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

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


class _Driver:
    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._log = ctypes.create_string_buffer(_LOG_BYTES)

    def __call__(self, call: str, *arguments: Any) -> None:
        code = getattr(self._library, call)(*arguments)
        if code:
            name = ctypes.c_char_p()
            self._library.cuGetErrorName(code, ctypes.byref(name))
            log = self._log.value.decode("utf-8", "replace").strip()
            raise _CallError(call, code, (name.value or b"?").decode(), log)

    def load(self, image: bytes) -> ctypes.c_void_p:
        module = ctypes.c_void_p()
        options = (ctypes.c_int * 2)(_JIT_ERROR_LOG_BUFFER, _JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(self._log), _LOG_BYTES)
        self("cuModuleLoadDataEx", ctypes.byref(module), ctypes.c_char_p(image), 2, options, values)
        return module

    def variable(self, module: ctypes.c_void_p, name: str) -> tuple[int, int]:
        address, size = ctypes.c_uint64(), ctypes.c_size_t()
        self("cuModuleGetGlobal_v2", ctypes.byref(address), ctypes.byref(size), module, name.encode())
        return address.value, size.value

    def read(self, address: int, size: int) -> bytes:
        data = ctypes.create_string_buffer(size)
        self("cuMemcpyDtoH_v2", data, ctypes.c_uint64(address), ctypes.c_size_t(size))
        return data.raw


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
    device, context = ctypes.c_int(), ctypes.c_void_p()
    driver("cuInit", 0)
    driver("cuDeviceGet", ctypes.byref(device), 0)
    driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    driver("cuCtxSetCurrent", context)
    module = driver.load((folder / "kernel.ptx").read_bytes() + b"\0")
    variables = [driver.variable(module, name) for name in plan["variables"]]
    for index, place in enumerate(variables):
        (folder / f"{index}.before").write_bytes(driver.read(*place))
    function = ctypes.c_void_p()
    driver("cuModuleGetFunction", ctypes.byref(function), module, plan["kernel"].encode())
    parameters = [bytearray(bytes.fromhex(text)) for text in plan["parameters"]]
    for index, buffer in enumerate(plan["buffers"]):
        data = (folder / f"{index}.in").read_bytes()
        address = ctypes.c_uint64()
        driver("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(len(data)))
        driver("cuMemcpyHtoD_v2", address, data, ctypes.c_size_t(len(data)))
        addresses.append((address.value, len(data)))
        parameter, offset = buffer
        parameters[parameter][offset : offset + 8] = address.value.to_bytes(8, "little")
    storage = [(ctypes.c_char * len(parameter)).from_buffer(parameter) for parameter in parameters]
    pointers = (ctypes.c_void_p * max(len(storage), 1))(*(ctypes.addressof(item) for item in storage))
    if plan["shared"] > 48 << 10:
        # cuda.h, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: beyond 48 KiB a program must ask.
        driver("cuFuncSetAttribute", function, 8, plan["shared"])
    driver("cuLaunchKernel", function, *plan["grid"], *plan["block"], plan["shared"], None, pointers, None)
    driver("cuCtxSynchronize")
    for index, place in enumerate(addresses):
        (folder / f"{index}.out").write_bytes(driver.read(*place))
    for index, place in enumerate(variables):
        (folder / f"{index}.after").write_bytes(driver.read(*place))
    driver("cuModuleUnload", module)
    driver("cuDevicePrimaryCtxRelease_v2", device)


def _end_with_parent(parent: int) -> None:
    """A kernel that does not end would go on without the one who gave it a limit."""
    if ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL)) != 0:
        sys.exit("PR_SET_PDEATHSIG was refused")
    if os.getppid() != parent:
        sys.exit("who started this has ended")


if __name__ == "__main__":
    _end_with_parent(int(sys.argv[2]))
    target = Path(sys.argv[1])
    (target / "done.json").write_text(json.dumps(run(target)))
