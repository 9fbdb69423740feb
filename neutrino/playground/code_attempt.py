"""One attempt on machine code: run the kernel in an interpreter of it without and with the probe."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from neutrino.abi.reasons import Reason
from neutrino.backend.kernel_runs import CannotRunError, KernelResult, KernelRun, Probed, Use, Uses
from neutrino.backend.launch_memory import LaunchMemory
from neutrino.backend.protocol import Options, Shipped
from neutrino.backend.registry import target_of_device
from neutrino.errors import NeutrinoError
from neutrino.fatbin import Container
from neutrino.maker.patcher import make_twins
from neutrino.maps.declaration import Layout
from neutrino.places import scratch_parent
from neutrino.playground.attempt import ROOT, Attempt, Output, missed_argument, shortened, stop, suggestions
from neutrino.playground.elements import element_type
from neutrino.playground.launch_inputs import Buffer, Choices, Inputs, make_inputs
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.selection import Selection
from neutrino.resources import tool_path
from neutrino.targets import trace_text
from neutrino.tracing import Trace
from neutrino.tracing.manifest import read_manifest
from neutrino.tracing.written import OneLaunch, write_trace
from neutrino.twins.cache_entry import KernelEntry
from neutrino.twins.kernel_text import Kernel

_PROGRAM = "neutrino.playground.code_runner"
_LEARNING_S = 5.0
"""Seconds of a run of one block that shows what the buffers are."""
_DIAGNOSTIC_S = 1.0
"""Seconds of the second run of a kernel that did not end, which shows where it is."""
_NOT_THE_PROGRAMS = "__hip_cuid_"
_LOG_BYTES, _LOG_UNIT = 32 << 20, 32
"""Memory of all logs together; bytes of a unit of it."""


@dataclass(frozen=True)
class FoundCode:
    """A kernel of machine code in a file. container: that it is in. shipped: what a device runs of that."""

    container: Container
    shipped: Shipped
    image: bytes
    kernel: str


@dataclass(frozen=True)
class CodeRequest:
    """What to try. tracedir: parent of the trace. order: seed of the order in which warps run, None for one after the
    other. timeout: seconds that each of the two runs may take."""

    found: FoundCode
    probes: ProbeSet
    probe_names: tuple[str, ...]
    choices: Choices
    tracedir: Path
    order: int | None = None
    timeout: float = 60.0


def attempt_code(request: CodeRequest) -> Attempt:
    """Run the kernel in the interpreter of its machine code with and without the probe, to compare what both wrote.

    Each runs in a process of its own, both at the same time. Raises NeutrinoError for invalid settings, for what the
    interpreter does not know, which it names, and for a launch that ends by a fault; and OSError.
    """
    found = request.found
    target = target_of_device(found.shipped.arch)
    kernel, inputs = _inputs(request)
    with tempfile.TemporaryDirectory(prefix="neutrino-try-", dir=scratch_parent()) as scratch:
        entry, image, probed = _twin(request, inputs, Path(scratch))
        plain_run = _run_of(request, inputs, found.image, kernel.name)
        runs = [plain_run]
        if probed is not None:
            runs.append(replace(plain_run, image=image, kernel=entry.twin, probed=probed))
        results = _results(request, kernel, inputs, runs, Path(scratch))
    plain, with_probe = results[0], results[-1]
    outputs = (
        *(
            Output(buffer.value.name, buffer.type, buffer.data, *contents)
            for buffer, *contents in zip(inputs.buffers, plain.buffers, with_probe.buffers, strict=True)
        ),
        *_variables(plain, with_probe),
    )
    launch = OneLaunch(
        target.interpreter, found.shipped.arch, ("code object", len(found.image)), kernel.name, entry.reason,
        entry.detail, " ".join(request.probe_names), inputs.grid, inputs.block, inputs.shared,
    )  # fmt: skip
    if probed is not None:
        units, frame = probed.memory.frame(with_probe.maps)
        text = trace_text(target.lowered(request.probes)).encode()
        launch = replace(
            launch, lanes=entry.lanes, files=entry.files, maps=probed.memory.maps, frame=frame, log_units=units,
            whole_run=probed.memory.whole_run(with_probe.maps),
            others={"probe.toml": text, "read.py": tool_path("read.py").read_bytes()},
        )  # fmt: skip
    trace = Trace(write_trace(request.tracedir, launch))
    used = _as_used(inputs, plain.uses)
    return Attempt(kernel, used, outputs, ("", ""), trace, trace.kernels[kernel.name])


def _inputs(request: CodeRequest) -> tuple[Kernel, Inputs]:
    """Return the kernel and its inputs. What its buffers are, a short run of one block shows."""
    found = request.found
    target = target_of_device(found.shipped.arch)
    kernel = target.kernel_of(found.shipped, found.kernel, None)
    inputs = make_inputs(kernel, request.choices)
    if not inputs.buffers:
        return kernel, inputs
    run = replace(_run_of(request, inputs, found.image, kernel.name), grid=(1, 1, 1), seconds=_LEARNING_S)
    uses: Uses = target.run_kernel(run).uses
    kernel = target.kernel_of(found.shipped, found.kernel, uses)
    return kernel, make_inputs(kernel, request.choices)


def _run_of(request: CodeRequest, inputs: Inputs, image: bytes, kernel: str) -> KernelRun:
    """Return the launch of a kernel with these inputs."""
    shipped = request.found.shipped
    arguments = []
    pointers: dict[tuple[int, int], int] = {}
    for number, (size, items) in enumerate(inputs.arguments):
        data = bytearray(size)
        for item in items:
            at = item.value.offset
            if isinstance(item, Buffer):
                pointers[number, at] = len(pointers)
            else:
                data[at : at + len(item.data)] = item.data
        arguments.append(bytes(data))
    return KernelRun(
        shipped.arch, image, kernel, inputs.grid, inputs.block, inputs.shared, tuple(arguments), pointers,
        tuple(buffer.data for buffer in inputs.buffers), request.order,
    )  # fmt: skip


def _twin(request: CodeRequest, inputs: Inputs, scratch: Path) -> tuple[KernelEntry, bytes, Probed | None]:
    """Make the kernel's twin; return its entry, the image with it, and what it gets besides. None without a twin."""
    found = request.found
    target = target_of_device(found.shipped.arch)
    options = Options()
    tools, _ = target.tools(found.container, found.shipped, options)
    # A pattern between slashes is a regular expression.
    only_this = Selection((f"/^{re.escape(found.kernel)}$/",))
    twins = make_twins(target, found.shipped, request.probes, selection=only_this, tools=tools, options=options)
    entry = next(one for one in twins.kernels if one.name == found.kernel)
    if entry.reason is not Reason.PROBED:
        return entry, b"", None
    path = scratch / "manifest.json"
    path.write_bytes(entry.files["manifest.json"])
    # The kernel's own: of a log that it never saves to there is nothing.
    maps = read_manifest(path).maps
    logs = sum(one.kind.layout is Layout.CHUNKS and bool(one.cap) for one in maps)
    units = _LOG_BYTES // _LOG_UNIT // logs if logs else 0
    memory = LaunchMemory(maps, inputs.grid, inputs.block, entry.lanes, units)
    return entry, twins.images[entry.image], Probed(memory, entry.block_offset, entry.block_size)


def _results(
    request: CodeRequest, kernel: Kernel, inputs: Inputs, runs: Sequence[KernelRun], scratch: Path
) -> list[KernelResult]:
    """Run the launches at the same time, each in a process of its own: without the probe, then with it if there is a
    twin. Raises NeutrinoError for faults, and for those that take too long."""
    folders = [scratch / name for name in ("plain", "probed")[: len(runs)]]
    processes: list[subprocess.Popen[bytes]] = []
    results = []
    try:
        for run, folder in zip(runs, folders, strict=True):
            folder.mkdir()
            (folder / "run.pickle").write_bytes(pickle.dumps(run))
            processes.append(_start(folder))
        # In this order: a kernel that fails without the probe, too, is reported as failing without it.
        for process, folder in zip(processes, folders, strict=True):
            prefix = "with the probe: " if folder.name == "probed" else ""
            try:
                _, stderr = process.communicate(timeout=request.timeout)
            except subprocess.TimeoutExpired:
                raise NeutrinoError(_late(request, kernel, inputs, runs[0], prefix)) from None
            results.append(_result(folder, stderr, kernel, inputs, prefix))
    finally:
        for process in processes:
            stop(process)
    return results


def _start(folder: Path) -> subprocess.Popen[bytes]:
    """Start the program that runs what a folder has. It gets the id of this process to end with it."""
    python_path = ":".join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, "-m", _PROGRAM, str(folder), str(os.getpid())],
        env={**os.environ, "PYTHONPATH": python_path}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )  # fmt: skip


def _result(folder: Path, stderr: bytes, kernel: Kernel, inputs: Inputs, prefix: str) -> KernelResult:
    """Return what a run has left in its folder. prefix: of messages. Raises NeutrinoError if it ended early."""
    error, result_path = folder / "error.txt", folder / "result.pickle"
    if error.is_file():
        raise NeutrinoError(f"{prefix}{shortened(error.read_text('utf-8'))}")
    if not result_path.is_file():
        last = stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["it was killed"]
        raise NeutrinoError(f"{prefix}{kernel.name}: the interpreter ended early: {shortened(last[0])}")
    # Written by the process that this one has started.
    result: KernelResult = pickle.loads(result_path.read_bytes())
    if not result.fault:
        return result
    hint = ""
    if result.missed is not None:
        sizes = [len(buffer.data) for buffer in inputs.buffers]
        hint = missed_argument(result.missed, list(zip(result.addresses, sizes, strict=True)), inputs)
    elif result.kind == "lds":
        hint = "\nthe kernel may want another --block, or more --shared"
    raise NeutrinoError(f"{prefix}{kernel.name}: {shortened(result.fault)}{hint}")


def _late(request: CodeRequest, kernel: Kernel, inputs: Inputs, plain: KernelRun, prefix: str) -> str:
    """Return the message for a kernel that did not end in time: where it is, and what may make it shorter.

    plain: the launch without the probe, which is run once more.
    """
    message = f"{prefix}{kernel.name} has not ended within {request.timeout:g} s"
    try:
        result = target_of_device(plain.arch).run_kernel(replace(plain, seconds=_DIAGNOSTIC_S))
    except CannotRunError:
        return message
    if result.kind == "limit":
        message += f"; after {_DIAGNOSTIC_S:g} s a warp was at {shortened(result.fault)}"
    return f"{message}\n{suggestions(kernel, inputs)}"


def _variables(plain: KernelResult, probed: KernelResult) -> list[Output]:
    """Return the variables of the image that both runs have, with their bytes before and after."""
    found = []
    for name, (before, after) in plain.variables.items():
        # What clang puts into each object to tell it from others is none of the program's.
        if name in probed.variables and not name.startswith(_NOT_THE_PROGRAMS):
            probed_before, probed_after = probed.variables[name]
            # Addresses of the image in them differ between the runs: what the probed run left as it was is the same.
            kept = bytes(
                reference if old == new else new
                for reference, old, new in zip(before, probed_before, probed_after, strict=True)
            )
            element = element_type("b32" if len(before) % 4 == 0 else "b8")
            found.append(Output(name, element, before, after, kept))
    return found


def _as_used(inputs: Inputs, uses: Uses) -> Inputs:
    """Return inputs whose buffers say what the run has done with them."""
    numbers = iter(range(len(inputs.buffers)))

    def used(buffer: Buffer) -> Buffer:
        """Return a buffer with what was done with it."""
        kinds = {kind for _, kind in uses.get(next(numbers), ())}
        value = replace(
            buffer.value, loads=Use.LOAD in kinds, stores=Use.STORE in kinds, updates=Use.UPDATE in kinds
        )
        return replace(buffer, value=value)

    arguments = tuple(
        (size, tuple(used(item) if isinstance(item, Buffer) else item for item in items))
        for size, items in inputs.arguments
    )
    return replace(inputs, arguments=arguments)
