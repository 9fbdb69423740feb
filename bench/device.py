"""What a GPU computes for every case of tests/kernels, for the embedded device to be compared with.

    python3 -m bench.device record --out FOLDER    on a machine with a GPU: FOLDER/device_h200.json
    python3 -m bench.device run FIRST FILE         the cases from the FIRST on, a line of JSON each

The PTX is compiled by the driver. ``record`` starts ``run`` in a process of its own, and again after the case that
broke the context or did not come back, so that each case is on its own.
"""

from __future__ import annotations

import argparse
import base64
import ctypes
import hashlib
import json
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bench.recorded import save
from bench.tree import made_of
from tests.kernels.cases import Case, cases

Json = Any
Array = np.ndarray[Any, Any]

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "device_h200.json"
PATIENCE = 20.0
"""Seconds that a case may take, the start of a process included, unless ``--patience`` says otherwise."""
BUDGET = 55.0
"""Seconds for all cases, unless ``--budget`` says otherwise."""
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


def run(first: int, file: Path) -> int:
    """Run the test cases from the one with index ``first`` on, and append a line of JSON for each to a file.

    Returns 0 when all are done, 1 when one broke the context, so that a new process must go on after it.
    """
    gpu = Gpu()
    with file.open("a") as lines:
        for case in cases()[first:]:
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
            lines.flush()
            if "error" in row:
                return 1
    return 0


def _run_while_it_progresses(command: Sequence[str], file: Path, patience: float, until: float) -> str:
    """Run a command, and end it if it makes no progress: adds nothing to a file for ``patience`` seconds, or runs
    beyond ``until``.

    until: a moment of time.monotonic(). Returns in words why it ended.
    """
    # Why the process ended, in words: it is ended when it adds nothing to the file for too long.
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    size, moved = 0, time.monotonic()
    while True:
        try:
            _, said = process.communicate(timeout=0.1)
        except subprocess.TimeoutExpired:
            now = time.monotonic()
            if file.exists() and file.stat().st_size > size:
                size, moved = file.stat().st_size, now
            if now - moved > patience or now > until:
                process.kill()
                process.communicate()
                return f"no result after {now - moved:.0f} s"
        else:
            last = said.strip().splitlines()[-1:] or [""]
            return f"exit status {process.returncode}: {last[0]}"


def _rows(file: Path) -> list[Json]:
    """Read the complete lines of a file of JSON lines; none without the file."""
    return [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")] if file.exists() else []


def read_device() -> tuple[str, str]:
    """The first device's name and its driver's version, by nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    name, driver = said.splitlines()[0].split(",")
    return name.strip(), driver.strip()


def record(out: Path, patience: float = PATIENCE, budget: float = BUDGET) -> int:
    """Run every test case of tests/kernels on the GPU and write the results into the folder out.

    patience: seconds that a case may take; budget: that all may. Returns 0 when at least one case gave a result, else
    1.
    """
    device, driver = read_device()
    names = [case.name for case in cases()]
    began = time.monotonic()
    kept: dict[str, Json] = {}
    first = 0
    with tempfile.TemporaryDirectory() as scratch:
        while first < len(names) and time.monotonic() - began < budget:
            file = Path(scratch) / f"{first}.jsonl"
            command = [sys.executable, "-m", "bench.device", "run", str(first), str(file)]
            why = _run_while_it_progresses(command, file, patience, began + budget)
            rows = _rows(file)
            kept |= {row.pop("name"): row for row in rows}
            first += len(rows)
            if first < len(names) and not (rows and "error" in rows[-1]):
                kept[names[first]] = {"error": why}
                first += 1
    for name in names[first:]:
        kept[name] = {"error": f"not run: {budget:.0f} s were over"}
    result = {**made_of("device_h200"), "device": device, "driver": driver, "numpy": np.__version__, "cases": kept}
    out.mkdir(parents=True, exist_ok=True)
    save(out / RESULTS.name, result)
    failed = {name: row["error"] for name, row in kept.items() if "error" in row}
    wrong = [line for row in kept.values() for line in row.get("wrong", ())]
    print("\n".join([*(f"{name}: {error}" for name, error in failed.items()), *wrong]))
    seconds = time.monotonic() - began
    print(f"{len(kept)} cases on {device} in {seconds:.1f} s: {len(failed)} failed, {len(wrong)} outputs wrong")
    return 0 if len(failed) < len(kept) else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all cases on the GPU, or some in this process, as the command line says. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="bench.device")
    actions = parser.add_subparsers(dest="action", required=True)
    recording = actions.add_parser("record")
    recording.add_argument("--out", type=Path, default=RESULTS.parent)
    recording.add_argument("--patience", type=float, default=PATIENCE, help="seconds that a case may take")
    recording.add_argument("--budget", type=float, default=BUDGET, help="seconds for all cases")
    running = actions.add_parser("run")
    running.add_argument("first", type=int)
    running.add_argument("file", type=Path)
    options = parser.parse_args(arguments)
    if options.action == "record":
        return record(options.out, options.patience, options.budget)
    return run(options.first, options.file)


if __name__ == "__main__":
    sys.exit(main())
