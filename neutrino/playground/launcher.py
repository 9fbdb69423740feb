"""A program that launches one kernel by the CUDA driver API and saves the contents of its buffers.

    python -m neutrino.playground.launcher FOLDER PARENT_PID

FOLDER/launch.json says what to launch (``attempt`` writes it). The program writes into FOLDER: the buffers after the
launch, the module's variables before and after it, and ``done.json`` with the buffers' addresses and the error, if any.
It loads ``libcuda.so.1`` as any program does, so that it can be probed as any program is. Its stdout is the kernel's.
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
_POINTER_BYTES = 8
_SHARED_WITHOUT_ASKING = 48 << 10
"""Bytes of dynamic shared memory above which a program must set an attribute of the function before the launch."""
_PR_SET_PDEATHSIG = 1  # prctl(2)
# cuda.h, CUjit_option: the buffer for the reason why the driver refuses an image, and the buffer's size.
_JIT_ERROR_LOG_BUFFER = 5
_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6
_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # cuda.h, CUfunction_attribute


class _CallError(Exception):
    """A call of the driver that failed.

    call: the function. code, name: its CUresult. log: the driver's log of loading an image, "" if it has not written
    one.
    """

    def __init__(self, call: str, code: int, name: str, log: str) -> None:
        """Make the error of a failed driver call. call: the function. code, name: the CUresult. log: what the driver
        said."""
        super().__init__(f"{call}: {name}")
        self.call = call
        self.code = code
        self.name = name
        self.log = log


def _text(characters: Any) -> str:
    """Return a zero-terminated C string."""
    data = ffi.string(characters)
    return data.decode("utf-8", "replace") if isinstance(data, bytes) else data


class _Driver:
    """Calls of the driver API: ``driver("cuInit", 0)``. A call that fails raises _CallError."""

    def __init__(self) -> None:
        """Load the driver, or the embedded device's stand-in for it."""
        self._library: Any = ffi.dlopen("libcuda.so.1")
        self._log = ffi.new("char[]", _LOG_BYTES)  # the driver writes it when it loads an image

    def __call__(self, call: str, *arguments: Any) -> None:
        """Call a function of the driver by its name. Raises _CallError unless it returns CUDA_SUCCESS, 0."""
        code = getattr(self._library, call)(*arguments)
        if code:
            # Stays NULL for a code that the driver does not know.
            name = ffi.new("const char **")
            self._library.cuGetErrorName(code, name)
            raise _CallError(call, code, _text(name[0]) if name[0] else "?", _text(self._log).strip())

    def load(self, image: bytes) -> Any:
        """Load a module from zero-terminated PTX, and return its CUmodule. A failure's ``log`` has the reason."""
        module = ffi.new("CUmodule *")
        options = ffi.new("int[]", [_JIT_ERROR_LOG_BUFFER, _JIT_ERROR_LOG_BUFFER_SIZE_BYTES])
        # One value per option; the size is passed as if it were a pointer.
        values = ffi.new("void *[]", [self._log, ffi.cast("void *", _LOG_BYTES)])
        self("cuModuleLoadDataEx", module, ffi.from_buffer(image), 2, options, values)
        return module[0]

    def variable(self, module: Any, name: str) -> tuple[int, int]:
        """Return the device address and the size in bytes of a variable of a module."""
        address, size = ffi.new("CUdeviceptr *"), ffi.new("size_t *")
        self("cuModuleGetGlobal_v2", address, size, module, name.encode())
        return address[0], size[0]

    def read(self, address: int, size: int) -> bytes:
        """Copy ``size`` bytes of device memory from an address."""
        data = bytearray(size)
        self("cuMemcpyDtoH_v2", ffi.from_buffer(data), address, size)
        return bytes(data)


def run(folder: Path) -> dict[str, Any]:
    """Launch what FOLDER/launch.json says, and return the contents of ``done.json``, a dictionary with two keys.

    addresses: (address, size) of each buffer that was allocated. failure: of a call of the driver, None if none failed.
    """
    plan = json.loads((folder / "launch.json").read_text())
    addresses: list[tuple[int, int]] = []
    try:
        _launch(_Driver(), folder, plan, addresses)
    except _CallError as error:
        failure = {"call": error.call, "code": error.code, "name": error.name, "log": error.log}
        return {"addresses": addresses, "failure": failure}
    return {"addresses": addresses, "failure": None}


def _launch(driver: _Driver, folder: Path, plan: dict[str, Any], addresses: list[tuple[int, int]]) -> None:
    """Load the kernel, launch it, and save the buffers and the module's variables to files in ``folder``.

    ``attempt`` reads the files: N.out has buffer N after the launch, N.before and N.after have variable N. plan: the
    contents of launch.json. addresses: gets (address, size) of each buffer; it is complete up to the call that fails,
    since an access that faults is explained by it. Raises _CallError.
    """
    device, context = ffi.new("CUdevice *"), ffi.new("CUcontext *")
    driver("cuInit", 0)
    driver("cuDeviceGet", device, 0)
    driver("cuDevicePrimaryCtxRetain", context, device[0])
    driver("cuCtxSetCurrent", context[0])

    module = driver.load((folder / "kernel.ptx").read_bytes() + b"\0")
    variables = [driver.variable(module, name) for name in plan["variables"]]
    for index, (variable, size) in enumerate(variables):
        (folder / f"{index}.before").write_bytes(driver.read(variable, size))
    function = ffi.new("CUfunction *")
    driver("cuModuleGetFunction", function, module, plan["kernel"].encode())

    # Each buffer is allocated and filled, and its address written into a parameter at the offset that the plan says.
    parameters = [bytearray(bytes.fromhex(text)) for text in plan["parameters"]]
    for index, (parameter, offset) in enumerate(plan["buffers"]):
        data = (folder / f"{index}.in").read_bytes()
        address = ffi.new("CUdeviceptr *")
        driver("cuMemAlloc_v2", address, len(data))
        driver("cuMemcpyHtoD_v2", address[0], ffi.from_buffer(data), len(data))
        addresses.append((address[0], len(data)))
        parameters[parameter][offset : offset + _POINTER_BYTES] = address[0].to_bytes(_POINTER_BYTES, "little")

    # ``storage`` keeps alive what the pointers point to. With the NULL after them, the array is never empty.
    storage = [ffi.from_buffer(parameter) for parameter in parameters]
    pointers = ffi.new("void *[]", [*storage, ffi.NULL])
    if plan["shared"] > _SHARED_WITHOUT_ASKING:
        driver("cuFuncSetAttribute", function[0], _MAX_DYNAMIC_SHARED_SIZE_BYTES, plan["shared"])
    grid, block, shared = plan["grid"], plan["block"], plan["shared"]
    stream = extra = ffi.NULL  # the default stream; the parameters are given by ``pointers``
    driver("cuLaunchKernel", function[0], *grid, *block, shared, stream, pointers, extra)
    driver("cuCtxSynchronize")

    for index, (buffer, size) in enumerate(addresses):
        (folder / f"{index}.out").write_bytes(driver.read(buffer, size))
    for index, (variable, size) in enumerate(variables):
        (folder / f"{index}.after").write_bytes(driver.read(variable, size))
    driver("cuModuleUnload", module)
    driver("cuDevicePrimaryCtxRelease_v2", device[0])


def end_with_parent(parent: int) -> None:
    """Let this process be killed when its parent ends: the parent limits the run time, and a kernel may never end.

    parent: its process id. It may have ended already; then this process exits at once.
    """
    libc: Any = ffi.dlopen(None)  # the symbols of this process, those of the C library among them
    if libc.prctl(_PR_SET_PDEATHSIG, ffi.cast("unsigned long", signal.SIGKILL)) != 0:
        sys.exit("PR_SET_PDEATHSIG was refused")
    # Asked afterwards: a parent that ended before the call of prctl sends no signal.
    if os.getppid() != parent:
        sys.exit("who started this has ended")


if __name__ == "__main__":
    end_with_parent(int(sys.argv[2]))
    target = Path(sys.argv[1])
    (target / "done.json").write_text(json.dumps(run(target)))
