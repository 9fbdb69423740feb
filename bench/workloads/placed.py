"""The program of bench/placed.py: launches the kernels of placed.cu by the driver's interface.

    python placed.py --image FILE --out FILE.json --case NAME [--case NAME …] [--contexts] [--child FILE.json]

The report holds, launch by launch, the kernel, seed, geometry, context, the addresses of its arrays and the digest of
what came out. With --contexts the launches go to two contexts by pairs, of two devices where there are two: the first
pair by modules of each context, the others by one library. With --child the program forks and executes itself anew.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bench.placed_model import CASES, CHILD, CONTEXTS, Launch, inputs


class Driver:
    """The driver's interface; every call is checked."""

    def __init__(self) -> None:
        """Load the CUDA driver that the environment leads to."""
        self._library = ctypes.CDLL("libcuda.so.1")

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call a function of the CUDA driver. Raises SystemExit when it answers with an error."""
        status = getattr(self._library, name)(*arguments)
        if status:
            raise SystemExit(f"{name}: error {status}")

    def number(self, name: str, *arguments: Any) -> int:
        """Call a function of the driver that answers with a number or a handle at its first argument; that answer."""
        value = ctypes.c_uint64()
        self(name, ctypes.byref(value), *arguments)
        return value.value


class Started:
    """A launch that was submitted in the current context."""

    def __init__(self, driver: Driver, function: int, launch: Launch, context: int) -> None:
        """Copy the launch's inputs to the device and submit it.

        function: the kernel's handle. context: its number, for the report.
        """
        table, self._x = inputs(launch)
        self._driver, self._launch, self._context = driver, launch, context
        sizes = table.nbytes, self._x.nbytes, self._x.nbytes
        self._addresses = [driver.number("cuMemAlloc_v2", ctypes.c_size_t(size)) for size in sizes]
        for address, array in zip(self._addresses, (table, self._x), strict=False):
            driver("cuMemcpyHtoD_v2", ctypes.c_uint64(address), ctypes.c_void_p(array.ctypes.data),
                   ctypes.c_size_t(array.nbytes))  # fmt: skip
        out, size = ctypes.c_uint64(self._addresses[2]), ctypes.c_size_t(self._x.nbytes)
        driver("cuMemsetD8_v2", out, ctypes.c_ubyte(0xFF), size)
        shape = launch.shape
        values = [*(ctypes.c_uint64(address) for address in self._addresses), ctypes.c_uint32(shape.threads)]
        pointers = (ctypes.c_void_p * 4)(*(ctypes.addressof(value) for value in values))
        driver("cuLaunchKernel", ctypes.c_void_p(function), shape.grid, 1, 1, shape.block, 1, 1, launch.shared, None,
               pointers, None)  # fmt: skip

    def finish(self) -> dict[str, Any]:
        """Wait for the launch's end, in the context where it was submitted; its row of the report."""
        driver, out = self._driver, np.empty_like(self._x)
        driver("cuCtxSynchronize")
        driver("cuMemcpyDtoH_v2", ctypes.c_void_p(out.ctypes.data), ctypes.c_uint64(self._addresses[2]),
               ctypes.c_size_t(out.nbytes))  # fmt: skip
        for address in self._addresses:
            driver("cuMemFree_v2", ctypes.c_uint64(address))
        return {
            "kernel": self._launch.kernel, "seed": self._launch.seed, "context": self._context,
            "table": self._addresses[0], "sha256": hashlib.sha256(out.tobytes()).hexdigest(),
        }  # fmt: skip


def _one_context(driver: Driver, image: bytes, cases: list[str]) -> list[dict[str, Any]]:
    """Launch all that the named cases have, in one context; a row of the report for each."""
    context = driver.number("cuDevicePrimaryCtxRetain", 0)
    driver("cuCtxSetCurrent", ctypes.c_void_p(context))
    module = driver.number("cuModuleLoadData", ctypes.c_char_p(image))
    rows = []
    for case in (*CASES, CHILD):
        for launch in case.launches if case.name in cases else ():
            function = driver.number("cuModuleGetFunction", ctypes.c_void_p(module), launch.kernel.encode())
            rows.append(Started(driver, function, launch, 0).finish())
    return rows


def _two_contexts(driver: Driver, image: bytes, devices: int) -> list[dict[str, Any]]:
    """Launch by pairs in two contexts, of two devices where there are two: the first pair by modules of each context,
    the others by one library. A row of the report for each.
    """
    contexts = [driver.number("cuDevicePrimaryCtxRetain", device) for device in range(min(devices, 2))]
    if len(contexts) == 1:
        contexts.append(driver.number("cuCtxCreate_v2", 0, 0))
    library = driver.number("cuLibraryLoadData", ctypes.c_char_p(image), None, None, 0, None, None, 0)
    kernel = driver.number("cuLibraryGetKernel", ctypes.c_void_p(library), b"calls")
    functions = []
    for context in contexts:
        driver("cuCtxSetCurrent", ctypes.c_void_p(context))
        module = driver.number("cuModuleLoadData", ctypes.c_char_p(image))
        functions.append(driver.number("cuModuleGetFunction", ctypes.c_void_p(module), b"calls"))
    rows = []
    launches = iter(CONTEXTS.launches)
    for turn, pair in enumerate(zip(launches, launches, strict=True)):
        started = []
        for which, launch in enumerate(pair):
            driver("cuCtxSetCurrent", ctypes.c_void_p(contexts[which]))
            started.append(Started(driver, functions[which] if turn == 0 else kernel, launch, which))
        for which, submitted in enumerate(started):
            driver("cuCtxSetCurrent", ctypes.c_void_p(contexts[which]))
            rows.append(submitted.finish())
    return rows


def main() -> int:
    """Launch the cases that the command line names, start a child process if asked to, and write the report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--image", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--case", action="append", default=[])
    parser.add_argument("--contexts", action="store_true")
    parser.add_argument("--child", type=Path)
    options = parser.parse_args()
    driver = Driver()
    driver("cuInit", 0)
    image = options.image.read_bytes() + b"\0"
    devices = driver.number("cuDeviceGetCount")
    report: dict[str, Any] = {"devices": devices, "pid": os.getpid()}
    if options.contexts:
        report["launches"] = _two_contexts(driver, image, devices)
    else:
        report["launches"] = _one_context(driver, image, options.case)
    if options.child:
        child = os.fork()
        if not child:
            os.execv(sys.executable, [sys.executable, __file__, "--image", str(options.image), "--case", CHILD.name,
                                      "--out", str(options.child)])  # fmt: skip
        report["child"] = {"pid": child, "exit": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}
    options.out.write_text(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
