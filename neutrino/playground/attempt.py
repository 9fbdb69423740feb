"""One attempt: the kernel on the embedded device as it is and with the probe, by the same road as any program."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from neutrino.errors import NeutrinoError
from neutrino.loader.embedded import EmbeddedDevice, stand_in
from neutrino.loader.start import Request, prepare
from neutrino.playground.inputs import Buffer, Choices, Inputs, make_inputs
from neutrino.playground.parameters import Kernel, choose_kernel, read_kernel
from neutrino.probing.model import ProbeSet
from neutrino.probing.selection import Selection
from neutrino.ptx.module import parse
from neutrino.tracing import Trace, TraceKernel

_ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = "neutrino.playground.program"
_SAID = re.compile(r"^neutrino: embedded device: (.*)$", re.MULTILINE)
_ADDRESS = re.compile(r"\bat (0x[0-9a-f]+)\b")
_NEAR = 4 << 20
"""Bytes between an access and a buffer up to which the buffer is taken for the one that was meant."""


@dataclass(frozen=True)
class Output:
    """One buffer after both runs. changed: the kernel wrote something else into it than it held."""

    buffer: Buffer
    plain: bytes
    probed: bytes

    @property
    def changed(self) -> bool:
        """Whether the kernel, without a probe, left other bytes than it found."""
        return self.plain != self.buffer.data

    @property
    def identical(self) -> bool:
        """Whether both runs left the same bytes."""
        return self.plain == self.probed


@dataclass(frozen=True)
class Attempt:
    """What came out. trace: of the run with the probe; probed: the kernel in it. Both valid while the folder is."""

    kernel: Kernel
    inputs: Inputs
    outputs: tuple[Output, ...]
    trace: Trace
    probed: TraceKernel

    @property
    def identical(self) -> bool:
        """Whether every buffer holds the same bits after both runs."""
        return all(output.identical for output in self.outputs)


@dataclass(frozen=True)
class Question:
    """What to try. text: a PTX module, latin-1. kernel: its name, None where there is only one.

    tracedir: parent of the trace. timeout: seconds that a run may take.
    """

    text: str
    kernel: str | None
    probes: ProbeSet
    probe_names: tuple[str, ...]
    choices: Choices
    tracedir: Path
    device: EmbeddedDevice = field(default_factory=EmbeddedDevice)
    timeout: float = 60.0


def attempt(question: Question) -> Attempt:
    """Run the kernel with and without the probe.

    Raises NeutrinoError: for a kernel or choices that are wrong, for one that the device refuses, for a launch that
    ends by a fault, with the argument that an access missed; and OSError.
    """
    module = parse(question.text)
    kernel = read_kernel(module, choose_kernel(module, question.kernel))
    inputs = make_inputs(kernel, question.choices)
    with tempfile.TemporaryDirectory(prefix="neutrino-try-") as scratch:
        folders = [Path(scratch) / name for name in ("plain", "probed")]
        for folder in folders:
            _lay_out(folder, question.text, kernel, inputs)
        runs = [_start(folders[0], _plain_environment(question.device))]
        try:
            runs.append(_start(folders[1], _probed_environment(question, kernel)))
            for run, folder in zip(runs, folders, strict=True):
                _check(folder, _finish(run, question.timeout), kernel, inputs)
        finally:
            for run in runs:
                if run.poll() is None:
                    run.kill()
                    run.wait()
        outputs = tuple(
            Output(buffer, *((folder / f"{index}.out").read_bytes() for folder in folders))
            for index, buffer in enumerate(inputs.buffers)
        )
    return Attempt(kernel, inputs, outputs, *_trace_of(question.tracedir, runs[1].pid, kernel.name))


def _lay_out(folder: Path, text: str, kernel: Kernel, inputs: Inputs) -> None:
    """Write what the program reads."""
    folder.mkdir()
    parameters: list[str] = []
    buffers: list[tuple[int, int]] = []
    for index, (size, items) in enumerate(inputs.arguments):
        data = bytearray(size)
        for item in items:
            if isinstance(item, Buffer):
                (folder / f"{len(buffers)}.in").write_bytes(item.data)
                buffers.append((index, item.value.offset))
            else:
                data[item.value.offset : item.value.offset + len(item.data)] = item.data
        parameters.append(data.hex())
    plan = {
        "kernel": kernel.name, "grid": inputs.grid, "block": inputs.block, "shared": inputs.shared,
        "parameters": parameters, "buffers": buffers,
    }  # fmt: skip
    (folder / "launch.json").write_text(json.dumps(plan))
    (folder / "kernel.ptx").write_bytes(text.encode("latin-1"))


def _plain_environment(device: EmbeddedDevice) -> dict[str, str]:
    found = ":".join([str(stand_in().parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    return {**os.environ, **device.environment(os.environ), "LD_LIBRARY_PATH": found}


def _probed_environment(question: Question, kernel: Kernel) -> dict[str, str]:
    # A literal part of a name selects; what else it selects is not launched.
    selection = Selection((f"/^{re.escape(kernel.name)}$/",))
    request = Request(
        [sys.executable], question.probes, question.probe_names, selection,
        tracedir=question.tracedir, device=question.device, quiet=True,
    )  # fmt: skip
    return prepare(request)


def _start(folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    search = ":".join([str(_ROOT), *filter(None, [environment.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-m", _PROGRAM, str(folder)], env={**environment, "PYTHONPATH": search},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8",
        errors="replace",
    )  # fmt: skip


def _finish(run: subprocess.Popen[str], timeout: float) -> str:
    try:
        return run.communicate(timeout=timeout)[1]
    except subprocess.TimeoutExpired:
        raise NeutrinoError(f"the kernel has not ended within {timeout:g} s") from None


def _check(folder: Path, said: str, kernel: Kernel, inputs: Inputs) -> None:
    """Raise NeutrinoError with the reason when the program did not come to its end."""
    done = folder / "done.json"
    if not done.is_file():
        last = said.strip().splitlines()[-1:] or ["it said nothing"]
        raise NeutrinoError(f"{kernel.name}: the program that launches it ended early: {last[0]}")
    result: dict[str, Any] = json.loads(done.read_text())
    failure = result["failure"]
    if failure is None:
        return
    words = _SAID.findall(said)
    where = "with the probe: " if folder.name == "probed" else ""
    if failure["call"] == "cuModuleLoadDataEx":
        reason = failure["log"].splitlines()[0] if failure["log"] else words[-1] if words else failure["name"]
        raise NeutrinoError(f"{kernel.name}: the embedded device does not run this text: {reason}")
    fault = next((line for line in words if "PTX line" in line), None)
    if fault is None:
        raise NeutrinoError(f"{kernel.name}: {where}{failure['call']}: {words[-1] if words else failure['name']}")
    raise NeutrinoError(f"{where}{fault}{_missed(fault, result['addresses'], inputs)}")


def _missed(fault: str, addresses: list[list[int]], inputs: Inputs) -> str:
    """Which argument an access outside of all buffers was probably meant for, and what may help."""
    found = _ADDRESS.search(fault)
    if found and "shared memory" in fault:
        return "\nthe kernel may want another --block, or more --shared"
    if found is None or not addresses:
        return ""
    address = int(found[1], 16)
    if address < 1 << 12:
        return "\nthat address is next to a null pointer"
    distances = [max(start - address, address - start - size, 0) for start, size in addresses]
    nearest = min(range(len(distances)), key=distances.__getitem__)
    if distances[nearest] > _NEAR:
        return "\nno argument is near: an index that leads far away, a variable of the module, a pointer in a buffer?"
    buffer, (start, size) = inputs.buffers[nearest], addresses[nearest]
    name, kind = buffer.value.name, buffer.type.name
    side = "before" if address < start else "behind the end of"
    distance = f"{distances[nearest]:,} bytes" if distances[nearest] else "right"
    return (
        f"\nthat is {distance} {side} {name} ({kind} × {buffer.elements:,}, {size:,} bytes); "
        f"--arg {name}={kind}:COUNT makes it larger, and smaller integers may keep the kernel inside"
    )


def _trace_of(tracedir: Path, pid: int, name: str) -> tuple[Trace, TraceKernel]:
    folders = list(tracedir.glob(f"*_{pid}"))
    if not folders:
        raise NeutrinoError(f"{tracedir}: the run with the probe left no trace")
    trace = Trace(folders[-1])
    for kernel in trace.kernels:
        if kernel.name == name:
            return trace, kernel
    raise NeutrinoError(f"{name}: the trace does not name the kernel: {'; '.join(trace.notes) or 'it says nothing'}")
