"""What a GPU computes for every case of tests/kernels, for the embedded device to be compared with.

    python3 -m bench.device record --out FOLDER        on a machine with a GPU: FOLDER/device_h200.json
    python3 -m bench.device run [NAME …] --out FILE    these cases, a line of JSON each

The PTX is compiled by the driver. ``record`` starts ``run`` for each case, so that none can break or hold another.
"""

from __future__ import annotations

import argparse
import base64
import ctypes
import hashlib
import json
import os
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bench.probed import made_with
from bench.programs import run_program
from bench.recorded import save
from tests.kernels.cases import Case, cases

Json = Any
Array = np.ndarray[Any, Any]

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "device_h200.json"
PATIENCE, AT_ONCE = 30.0, 4
"""Seconds that a case may take, the start of a process included; cases at once."""
SAMPLES = 512
"""Elements kept, evenly spread, of an output that is compared within a tolerance."""

_ERROR_LOG, _ERROR_LOG_SIZE = 5, 6
_STACK_LIMIT, _STACK_BYTES = 0, 16 << 10


class DriverError(Exception):
    """A call that the driver answered with an error. call: its name; said: the driver's words."""

    def __init__(self, call: str, said: str) -> None:
        """Make the error of a failed call of the CUDA driver. call: its name; said: the driver's words."""
        super().__init__(f"{call}: {said}")
        self.call, self.said = call, said


class Launchable(Protocol):
    """What a launch is of: a kernel's name, blocks, threads a block, dynamic shared bytes."""

    @property
    def kernel(self) -> str:
        """The name of the kernel to launch."""
    @property
    def grid(self) -> tuple[int, int, int]:
        """How many blocks the launch's grid has, in x, y and z."""
    @property
    def block(self) -> tuple[int, int, int]:
        """How many threads a block of the launch has, in x, y and z."""
    @property
    def shared(self) -> int:
        """How many bytes of dynamic shared memory a block of the launch gets."""


class Gpu:
    """The first device, through the driver API. Raises OSError where there is no libcuda.so.1, DriverError."""

    def __init__(self) -> None:
        """Take the first device and make its primary context current."""
        self._library = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._call("cuCtxSetLimit", _STACK_LIMIT, ctypes.c_size_t(_STACK_BYTES))

    def _call(self, name: str, *arguments: Any) -> None:
        """Call a function of the CUDA driver. Raises DriverError with its name and the driver's word for the error."""
        status = getattr(self._library, name)(*arguments)
        if status:
            said = ctypes.c_char_p()
            self._library.cuGetErrorName(status, ctypes.byref(said))
            raise DriverError(name, said.value.decode() if said.value else str(status))

    @contextmanager
    def module(self, text: bytes) -> Iterator[ctypes.c_void_p]:
        """A module of PTX, compiled by the driver and unloaded at the end.

        text: ends with a zero byte. Raises DriverError, which holds what the compiler said.
        """
        module, log = ctypes.c_void_p(), ctypes.create_string_buffer(4096)
        options = (ctypes.c_int * 2)(_ERROR_LOG, _ERROR_LOG_SIZE)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), len(log))
        try:
            self._call("cuModuleLoadDataEx", ctypes.byref(module), ctypes.c_char_p(text), 2, options, values)
        except DriverError as error:
            raise DriverError(error.call, f"{error.said}: {log.value.decode(errors='replace')}") from None
        try:
            yield module
        finally:
            self._library.cuModuleUnload(module)

    def write_variable(self, module: ctypes.c_void_p, name: str, values: Array) -> None:
        """Copy the array's bytes into a module's global variable of that name."""
        address, size = ctypes.c_uint64(), ctypes.c_size_t()
        self._call("cuModuleGetGlobal_v2", ctypes.byref(address), ctypes.byref(size), module, name.encode())
        self.write(address, values)

    @contextmanager
    def memory(self, values: Array) -> Iterator[ctypes.c_uint64]:
        """Device memory that holds the array's bytes; freed at the end."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(values.nbytes))
        try:
            self.write(address, values)
            yield address
        finally:
            self._library.cuMemFree_v2(address)

    def write(self, address: ctypes.c_uint64, values: Array) -> None:
        """Copy an array's bytes to an address in device memory."""
        raw = np.ascontiguousarray(values)
        self._call("cuMemcpyHtoD_v2", address, ctypes.c_void_p(raw.ctypes.data), ctypes.c_size_t(raw.nbytes))

    def read(self, address: ctypes.c_uint64, like: Array) -> Array:
        """Copy an array of ``like``'s shape and type from an address of the device."""
        values = np.empty(like.shape, like.dtype)
        self._call("cuMemcpyDtoH_v2", ctypes.c_void_p(values.ctypes.data), address, ctypes.c_size_t(values.nbytes))
        return values

    def launch(self, module: ctypes.c_void_p, case: Launchable, values: Sequence[bytes]) -> None:
        """Launch a kernel and wait for its end.

        case: its name, blocks, threads and dynamic shared bytes. values: its parameters as bytes, one by one.
        """
        function = ctypes.c_void_p()
        self._call("cuModuleGetFunction", ctypes.byref(function), module, case.kernel.encode())
        buffers = [ctypes.create_string_buffer(value, len(value)) for value in values]
        pointers = (ctypes.c_void_p * max(len(buffers), 1))(*map(ctypes.addressof, buffers))
        self._call("cuLaunchKernel", function, *case.grid, *case.block, case.shared, None, pointers, None)
        self._call("cuCtxSynchronize")


def run_on_gpu(gpu: Gpu, case: Case) -> dict[int, Array]:
    """Run a test case's kernel on the GPU; return the contents of every array argument after it, by its place among the
    arguments.

    Raises DriverError.
    """
    with ExitStack() as held:
        module = held.enter_context(gpu.module(case.path.read_bytes() + b"\0"))
        for name, values in case.constants.items():
            gpu.write_variable(module, name, values)
        addresses: dict[int, ctypes.c_uint64] = {}
        parameters = []
        for place, argument in enumerate(case.arguments):
            if isinstance(argument, np.ndarray):
                addresses[place] = held.enter_context(gpu.memory(argument))
                parameters.append(bytes(addresses[place]))
            else:
                parameters.append(argument if isinstance(argument, bytes) else argument.tobytes())
        gpu.launch(module, case, parameters)
        return {place: gpu.read(address, np.asarray(case.arguments[place])) for place, address in addresses.items()}


def digest(array: Array) -> str:
    """Return a digest (SHA-256, in hex) of an array's bytes."""
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def output_row(case: Case, place: int, result: Array) -> dict[str, Json]:
    """Return what the results keep of one output array: its digest, or, where it need not be exact, every ``step``-th
    element."""
    expected = case.expected[place]
    flat = expected.canonical(result).reshape(-1)
    if expected.exact:
        return {"sha256": digest(flat)}
    step = -(-flat.size // SAMPLES)
    packed = zlib.compress(np.ascontiguousarray(flat[::step]).tobytes(), 9)
    return {"step": step, "data": base64.b64encode(packed).decode()}


def kept_elements(row: Json, kind: np.dtype[Any]) -> Array:
    """Decode the elements of an output array (every ``step``-th) from its row in the results. kind: their type."""
    return np.frombuffer(zlib.decompress(base64.b64decode(row["data"])), kind)


def run(file: Path, names: Sequence[str]) -> int:
    """Run test cases, all unless they are named, and append a line of JSON for each to a file. Returns 1 when one has
    broken the context, which ends it."""
    gpu = Gpu()
    with file.open("a") as lines:
        for case in (case for case in cases() if not names or case.name in names):
            row: dict[str, Json] = {"name": case.name, "digest": case.digest()}
            began = time.monotonic()
            try:
                results = run_on_gpu(gpu, case)
            except DriverError as error:
                row["error"] = str(error)
            else:
                row["wrong"] = case.mismatches(results)
                row["outputs"] = {place: output_row(case, place, results[place]) for place in case.expected}
            row["ms"] = round((time.monotonic() - began) * 1e3, 1)
            lines.write(json.dumps(row) + "\n")
            if "error" in row:
                return 1
    return 0


def _alone(name: str, folder: Path) -> Json:
    """Run a test case in a process of its own; return its row."""
    file = folder / f"{name}.jsonl"
    command = [sys.executable, "-m", "bench.device", "run", name, "--out", str(file)]
    done = run_program(command, os.environ, folder, name, PATIENCE)
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return rows[0] if rows else {"name": name, "error": f"exit status {done.status}: {done.stderr[-200:]}"}


def record(out: Path) -> int:
    """Run every test case of tests/kernels on the GPU and write the results into the folder out. Returns 0 when at
    least one case gave a result, else 1."""
    result = made_with("device_h200")
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(AT_ONCE) as pool:
        rows = list(pool.map(lambda case: _alone(case.name, Path(scratch)), cases()))
    kept = {row.pop("name"): row for row in rows}
    result |= {"numpy": np.__version__, "cases": kept}
    out.mkdir(parents=True, exist_ok=True)
    save(out / RESULTS.name, result)
    failed = {name: row["error"] for name, row in kept.items() if "error" in row}
    wrong = [line for row in kept.values() for line in row.get("wrong", ())]
    print("\n".join([*(f"{name}: {error}" for name, error in failed.items()), *wrong]))
    print(f"{len(kept)} cases on {result['device']}: {len(failed)} failed, {len(wrong)} outputs wrong")
    return 0 if len(failed) < len(kept) else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all cases on the GPU, or some in this process, as the command line says. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="bench.device")
    parser.add_argument("action", choices=("record", "run"))
    parser.add_argument("names", nargs="*", help="cases to run in this process")
    parser.add_argument("--out", type=Path, default=RESULTS.parent, help="record: a folder; run: a file")
    options = parser.parse_args(arguments)
    return record(options.out) if options.action == "record" else run(options.out, options.names)


if __name__ == "__main__":
    sys.exit(main())
