"""One attempt: run the kernel on the embedded device without and with the probe, launched as by any program."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from neutrino.backend.registry import EMBEDDED_DEVICE, target_of_device
from neutrino.errors import NeutrinoError
from neutrino.loader.embedded_driver import VARIABLE, EmbeddedDevice, stand_in
from neutrino.places import scratch_parent
from neutrino.playground.elements import ElementType, element_type
from neutrino.playground.launch_inputs import MOST_SHARED, Buffer, Choices, Inputs, Number, make_inputs
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.selection import Selection
from neutrino.run.probes import RunProbes
from neutrino.run.start import Request, prepare
from neutrino.tracing import Trace, TraceKernel
from neutrino.twins.kernel_text import Kernel, Role

ROOT = Path(__file__).resolve().parents[2]
"""The folder of the package."""
_PROGRAM = "neutrino.playground.launcher"
_DEVICE_MESSAGE = re.compile(r"^neutrino: embedded device: (.*)$", re.MULTILINE)
_ADDRESS = re.compile(r"\bat (0x[0-9a-f]+)\b")
_PTX_LINE = re.compile(r"PTX line \d+: .*$")
_MAX_DISTANCE = 4 << 20
"""An access up to this many bytes away from a buffer is reported as one that missed that buffer."""
_MAX_MESSAGE_LENGTH = 600
"""Characters of the device's messages that are shown: they quote statements, which may be of any length."""
_PAGE = 1 << 12
"""Addresses in the first page are small offsets from a null pointer."""
_DIAGNOSTIC_STEPS = 20_000
_DIAGNOSTIC_SECONDS = 10.0
"""Limits of the second run of a kernel that did not end, which shows where it is: basic blocks, and seconds."""


@dataclass(frozen=True)
class Output:
    """A buffer, or a variable of the module, before and after both runs. type: of its elements."""

    name: str
    type: ElementType
    before: bytes
    plain: bytes
    probed: bytes

    @property
    def elements(self) -> int:
        """How many elements the buffer or variable holds."""
        return len(self.before) // self.type.dtype.itemsize

    @property
    def changed(self) -> bool:
        """Whether the kernel, run without a probe, changed its bytes."""
        return self.plain != self.before

    @property
    def identical(self) -> bool:
        """Whether the runs with and without the probe left the same bytes in it."""
        return self.plain == self.probed


@dataclass(frozen=True)
class Attempt:
    """The result of both runs.

    kernel, inputs: what was run, and with which launch and arguments. outputs: the buffers, then the ``.global``
    variables of the module. printed: what the kernel wrote to stdout, without the probe and with it. trace: of the run
    with the probe; probed: the kernel in it. Both can be read as long as the trace's folder exists.
    """

    kernel: Kernel
    inputs: Inputs
    outputs: tuple[Output, ...]
    printed: tuple[str, str]
    trace: Trace
    probed: TraceKernel

    @property
    def same_lines(self) -> bool:
        """Whether both runs printed the same lines. In which order does not matter: that of threads is not defined."""
        plain, probed = (sorted(text.splitlines()) for text in self.printed)
        return plain == probed

    @property
    def identical(self) -> bool:
        """Whether every output holds the same bits after both runs, and both printed the same lines."""
        return self.same_lines and all(output.identical for output in self.outputs)


@dataclass(frozen=True)
class AttemptRequest:
    """What to try. text: a PTX module, latin-1. kernel: its name, None where there is only one.

    tracedir: parent of the trace. timeout: seconds that each of the two runs may take.
    """

    text: str
    kernel: str | None
    probes: ProbeSet
    probe_names: tuple[str, ...]
    choices: Choices
    tracedir: Path
    device: EmbeddedDevice = field(default_factory=EmbeddedDevice)
    timeout: float = 60.0


def attempt(request: AttemptRequest) -> Attempt:
    """Run the kernel on the embedded device (an emulator) with and without the probe, to compare what both runs wrote.

    Each runs in a process of its own, both at the same time. The probed one is run as any program is with probes.
    Raises NeutrinoError for an invalid kernel or invalid settings, for a kernel that the device refuses, and for a
    launch that ends by a fault, with the argument that an access missed; and OSError.
    """
    target = target_of_device(EMBEDDED_DEVICE)
    target.check_text(request.text)
    kernels = target.kernel_text(request.text)
    kernel = kernels.kernel(kernels.choose(request.kernel))
    inputs = make_inputs(kernel, request.choices)
    # They are compared after both runs, as the buffers are.
    variables = [(name, element_type(word)) for name, word in kernels.variables]
    # The folders' names are part of the messages: see ``_check_finished``.
    with tempfile.TemporaryDirectory(prefix="neutrino-try-", dir=scratch_parent()) as scratch:
        folders = [Path(scratch) / name for name in ("plain", "probed")]
        for folder in folders:
            _write_inputs(folder, request.text, kernel, inputs, [name for name, _ in variables])

        plain_folder, probed_folder = folders
        runs = [_start(plain_folder, _plain_environment(request.device))]
        printed = []
        try:
            runs.append(_start(probed_folder, _probed_environment(request, kernel)))
            # In this order: a kernel that fails without the probe, too, is reported as failing without it.
            for run, folder in zip(runs, folders, strict=True):
                try:
                    stdout, stderr = run.communicate(timeout=request.timeout)
                except subprocess.TimeoutExpired:
                    raise NeutrinoError(_timeout_message(request, kernel, inputs, folder)) from None
                _check_finished(folder, stderr, kernel, inputs)
                printed.append(stdout)
        finally:
            # After an error the other run may still be under way.
            for run in runs:
                stop(run)

        outputs = (*_buffers_after(inputs, folders), *_variables_after(variables, folders))
    _, probed_run = runs
    trace, probed_kernel = _trace_of(request.tracedir, probed_run.pid, kernel.name)
    printed_plain, printed_probed = printed
    return Attempt(kernel, inputs, outputs, (printed_plain, printed_probed), trace, probed_kernel)


def _buffers_after(inputs: Inputs, folders: Sequence[Path]) -> Iterator[Output]:
    """Yield each buffer with its contents after both runs. folders: of the plain and of the probed run."""
    for index, buffer in enumerate(inputs.buffers):
        plain, probed = ((folder / f"{index}.out").read_bytes() for folder in folders)
        yield Output(buffer.value.name, buffer.type, buffer.data, plain, probed)


def _variables_after(variables: Sequence[tuple[str, ElementType]], folders: Sequence[Path]) -> Iterator[Output]:
    """Yield each variable of the module, (name, element type), with its contents before and after both runs.

    folders: of the plain and of the probed run.
    """
    plain_folder, probed_folder = folders
    for index, (name, element) in enumerate(variables):
        plain_before, plain = ((plain_folder / f"{index}.{when}").read_bytes() for when in ("before", "after"))
        probed_before, probed = ((probed_folder / f"{index}.{when}").read_bytes() for when in ("before", "after"))
        if probed_before != plain_before:
            # Initial values with an address in them may differ between the runs. That is no difference that the probe
            # made, so bytes that the probed run did not change get the plain run's initial value.
            initial, final, reference = (
                np.frombuffer(data, np.uint8) for data in (probed_before, probed, plain_before)
            )
            probed = np.where(initial == final, reference, final).astype(np.uint8).tobytes()
        yield Output(name, element, plain_before, plain, probed)


def _write_inputs(folder: Path, text: str, kernel: Kernel, inputs: Inputs, variables: Sequence[str]) -> None:
    """Create a folder with the files that ``playground.launcher``, which launches the kernel, reads in its process.

    The files: kernel.ptx, launch.json with the launch and its parameters, and N.in with the contents of buffer N.
    variables: the names of the module's variables that the program is to save.
    """
    folder.mkdir()
    parameters: list[str] = []  # the bytes of each, in hexadecimal
    buffers: list[tuple[int, int]] = []  # of each: the parameter with its address, and the address's offset in it
    for index, (size, items) in enumerate(inputs.arguments):
        data = bytearray(size)
        for item in items:
            if isinstance(item, Buffer):
                # Its address is known only when the program has allocated it, and zero until then.
                (folder / f"{len(buffers)}.in").write_bytes(item.data)
                buffers.append((index, item.value.offset))
            else:
                data[item.value.offset : item.value.offset + len(item.data)] = item.data
        parameters.append(data.hex())
    plan = {
        "kernel": kernel.name, "grid": inputs.grid, "block": inputs.block, "shared": inputs.shared,
        "parameters": parameters, "buffers": buffers, "variables": variables,
    }  # fmt: skip
    (folder / "launch.json").write_text(json.dumps(plan))
    (folder / "kernel.ptx").write_bytes(text.encode("latin-1"))


def _plain_environment(device: EmbeddedDevice) -> dict[str, str]:
    """Return the environment of a run without probes: programs load the embedded device as ``libcuda.so.1``."""
    # An empty entry in LD_LIBRARY_PATH would be the working directory.
    library_path = ":".join([str(stand_in().parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    return {**os.environ, **device.environment(os.environ), "LD_LIBRARY_PATH": library_path}


def _probed_environment(request: AttemptRequest, kernel: Kernel) -> dict[str, str]:
    """Return the environment of a run in which the kernel is probed, as any program is run with probes."""
    # A regular expression between slashes: exactly this kernel.
    selection = Selection((f"/^{re.escape(kernel.name)}$/",))
    # Quiet and without the probes' scripts: what there is to say, the caller says from the result.
    run = Request(
        [sys.executable], RunProbes.of(request.probes), request.probe_names, selection,
        tracedir=request.tracedir, device=request.device, quiet=True, says_long=True, scripts=False,
    )  # fmt: skip
    return prepare(run)


def _start(folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start the program that launches the kernel. folder: its inputs, and where it writes its results.

    The program is a module of this package, so the folder of the package is on its path. It gets the id of this process
    to end with it.
    """
    python_path = ":".join([str(ROOT), *filter(None, [environment.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-m", _PROGRAM, str(folder), str(os.getpid())], env={**environment, "PYTHONPATH": python_path},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
        errors="replace",
    )  # fmt: skip


def stop(run: subprocess.Popen[Any]) -> None:
    """Kill a run of the kernel's program that has not ended."""
    if run.poll() is None:
        run.kill()
        run.wait()


def _timeout_message(request: AttemptRequest, kernel: Kernel, inputs: Inputs, folder: Path) -> str:
    """Return the message for a kernel that did not end in time: where it is, and what may make it shorter.

    folder: of the run that did not end.
    """
    prefix = "with the probe: " if folder.name == "probed" else ""
    message = f"{prefix}{kernel.name} has not ended within {request.timeout:g} s"
    # Of the plain run in any case: a line of the probed kernel is none of the user's text.
    reached = _reached_line(folder.parent / "plain", request.device)
    if reached:
        message += f"; after {_DIAGNOSTIC_STEPS:,} basic blocks a thread was at {reached}"

    return f"{message}\n{suggestions(kernel, inputs)}"


def suggestions(kernel: Kernel, inputs: Inputs) -> str:
    """Return what may make a kernel's run shorter."""
    # An integer argument is often a number of elements or of iterations. The first one is suggested.
    numbers = [item for _, items in inputs.arguments for item in items if isinstance(item, Number)]
    integer = next((item.value.name for item in numbers if item.value.role is Role.INTEGER), None)
    smaller = f"a smaller --arg {integer}=NUMBER, " if integer else ""
    # A kernel with ``.reqntid`` takes no other block.
    fewer = "--grid 1" if kernel.exact else "--grid 1 or --block 32"
    return f"{smaller}{fewer} may make it shorter; --timeout SECONDS allows more time"


def _reached_line(folder: Path, device: EmbeddedDevice) -> str:
    """Run a kernel that does not end once more, with a step limit, and return the PTX line that a thread has reached.

    The device reports it as a fault on stderr. Returns "" if that takes too long, or if there is no such fault. folder:
    of the plain run, with its inputs.
    """
    environment = dict(_plain_environment(device))
    environment[VARIABLE] += f";steps={_DIAGNOSTIC_STEPS}"
    run = _start(folder, environment)
    try:
        _, stderr = run.communicate(timeout=_DIAGNOSTIC_SECONDS)
    except subprocess.TimeoutExpired:
        return ""
    finally:
        stop(run)
    match = next((_PTX_LINE.search(line) for line in _DEVICE_MESSAGE.findall(stderr) if "step limit" in line), None)
    return shortened(match[0]) if match else ""


def shortened(text: str) -> str:
    """Return a text, without its middle if it is longer than ``_MAX_MESSAGE_LENGTH`` characters."""
    half = _MAX_MESSAGE_LENGTH // 2  # from each end
    return text if len(text) <= _MAX_MESSAGE_LENGTH else f"{text[:half]} … {text[-half:]}"


def _check_finished(folder: Path, stderr: str, kernel: Kernel, inputs: Inputs) -> None:
    """Raise NeutrinoError with the reason if the program ended early, or a call of the driver failed in it.

    folder: of the run; its name is "plain" or "probed". stderr: what the program and the embedded device wrote there.
    The program writes the failed call into done.json, and the device the reason to stderr.
    """
    done = folder / "done.json"
    if not done.is_file():
        # The last line of a Python traceback says what happened.
        last_line = stderr.strip().splitlines()[-1:] or ["without a message"]
        raise NeutrinoError(f"{kernel.name}: the program that launches it ended early: {shortened(last_line[0])}")
    result: dict[str, Any] = json.loads(done.read_text())
    failure = result["failure"]
    if failure is None:
        return

    messages = [shortened(line) for line in _DEVICE_MESSAGE.findall(stderr)]
    last_message = messages[-1] if messages else failure["name"]
    prefix = "with the probe: " if folder.name == "probed" else ""
    if failure["call"] == "cuModuleLoadDataEx":
        # The driver's log says why, in its first line.
        reason = failure["log"].splitlines()[0] if failure["log"] else last_message
        raise NeutrinoError(f"{kernel.name}: the embedded device cannot run this text: {shortened(reason)}")
    if failure["call"] == "cuFuncSetAttribute":
        raise NeutrinoError(
            f"{kernel.name}: {prefix}--shared {inputs.shared} and the kernel's own shared memory are more than the "
            f"{MOST_SHARED:,} bytes that a block may have"
        )
    if failure["call"] == "cuMemAlloc_v2":
        grid, block = (",".join(map(str, extents)) for extents in (inputs.grid, inputs.block))
        size = sum(len(buffer.data) for buffer in inputs.buffers)
        raise NeutrinoError(
            f"{kernel.name}: {prefix}no memory for its buffers of {size:,} bytes, generated for --grid {grid} and "
            f"--block {block}: launch fewer threads, or give smaller ones, --arg NAME=TYPE:COUNT"
        )
    # Else a launch, or the wait for it. Where the kernel faulted, the device has named the line.
    fault = next((message for message in messages if "PTX line" in message), None)
    if fault is None:
        raise NeutrinoError(f"{kernel.name}: {prefix}{failure['call']}: {last_message}")
    raise NeutrinoError(f"{prefix}{fault}{_nearest_argument(fault, result['addresses'], inputs)}")


def _nearest_argument(fault: str, addresses: list[list[int]], inputs: Inputs) -> str:
    """Return a line on which argument an invalid access was probably meant for, and what may help; "" if unknown.

    Generated buffers may be too small for what the kernel does. fault: the device's message, with the address.
    addresses: [start, size] of each buffer of ``inputs``.
    """
    match = _ADDRESS.search(fault)
    # An address in shared memory is none of a buffer.
    if match and "shared memory" in fault:
        return "\nthe kernel may want another --block, or more --shared"
    if match is None:
        return ""
    address = int(match[1], 16)
    if "misaligned" in fault and address >= _PAGE:
        # A larger buffer would not help.
        inside = ((buffer, start) for buffer, (start, size) in zip(inputs.buffers, addresses, strict=False)
                  if start <= address < start + size)  # fmt: skip
        return next((f"\nthat is {buffer.value.name} + {address - start:,} bytes" for buffer, start in inside), "")
    return missed_argument(address, addresses, inputs)


def missed_argument(address: int, addresses: Sequence[Sequence[int]], inputs: Inputs) -> str:
    """Return a line on which argument an access to an address that no buffer has was probably meant for, and what may
    help; "" without buffers.

    addresses: (start, size) of each buffer of ``inputs``.
    """
    if not addresses:
        return ""
    if address < _PAGE:
        return "\nthat address is next to a null pointer"

    # Of the address from each buffer, before it or after its end; 0 inside.
    distances = [max(start - address, address - start - size, 0) for start, size in addresses]
    nearest = min(range(len(distances)), key=distances.__getitem__)
    buffer, (start, size) = inputs.buffers[nearest], addresses[nearest]
    name, type_name = buffer.value.name, buffer.type.name
    if distances[nearest] > _MAX_DISTANCE:
        return "\nno argument is near: an index that leads far away, a variable of the module, a pointer in a buffer?"
    side = "before" if address < start else "after the end of"
    # 0 bytes after the end, or an access that begins inside and ends outside.
    distance = f"{distances[nearest]:,} bytes" if distances[nearest] else "right"
    return (
        f"\nthat is {distance} {side} {name} ({type_name} × {buffer.elements:,}, {size:,} bytes); "
        f"--arg {name}={type_name}:COUNT makes it larger, and smaller integers may keep the kernel inside"
    )


def _trace_of(tracedir: Path, pid: int, name: str) -> tuple[Trace, TraceKernel]:
    """Return the trace that the process ``pid`` left in ``tracedir``, and the kernel of that name in it.

    Raises NeutrinoError if there is no trace, or the kernel is not in it.
    """
    # Folders are named by the time and the process id. An earlier process, whose trace was kept, may have had the same.
    folders = sorted(tracedir.glob(f"*_{pid}"), key=lambda folder: folder.stat().st_mtime)
    if not folders:
        raise NeutrinoError(f"{tracedir}: the run with the probe left no trace")
    trace = Trace(folders[-1])
    for kernel in trace.kernels:
        if kernel.name == name:
            return trace, kernel
    raise NeutrinoError(f"{name}: the trace does not name the kernel: {'; '.join(trace.notes) or 'it says nothing'}")
