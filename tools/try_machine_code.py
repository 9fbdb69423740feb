"""Try twins of machine code on this machine's GPU: do programs compute the same, and are the records right?

    python3 tools/try_machine_code.py [--out FILE.json] [--ptx]

Neutrino writes twins of kernels that ship as machine code for architectures of which no GPU was at hand when they were
made (docs/machine-code.md): they run with ``--machine-code unproven`` alone. Whoever has such a GPU can run this, which
takes about a minute, and send the file that it writes. Five kernels of its own, assembled by ``ptxas``, and, if PyTorch
is installed, ten of its operators run plainly twice, with block_sched and with gmem_bytes. Outputs are compared bit by
bit; block_sched must have a record of each warp, and gmem_bytes the bytes that arithmetic says. --ptx: the own kernels
are loaded as PTX and run on Neutrino's embedded device, which tries this script where no GPU is. Exit status: 0 if all
is right, 1 if something is not, 2 if nothing could be tried here.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

OK, WRONG, NOTHING = 0, 1, 2
EMBEDDED = Path(__file__).resolve().parent.parent / "neutrino" / "emulator" / "lib" / "libcuda.so.1"
THREADS, BLOCK = 10_007, 160
"""Threads that do something, an odd number; and of a block, so that the last warp of many is not whole."""
GRID = -(-THREADS // BLOCK)
WORDS = 16
"""Words of 32 bits that a thread has in each of two buffers."""
PROBES = ("block_sched", "gmem_bytes")
ARCHITECTURES = {(8, 0): "sm_80", (8, 6): "sm_80", (8, 7): "sm_80", (8, 9): "sm_80", (9, 0): "sm_90"}
"""Compute capability of a GPU → which machine code of those that twins are made of it runs."""
_HEAD = """.version 7.8
.target {arch}
.address_size 64
"""
_BEGIN = """
.visible .entry {name}(.param .u64 in, .param .u64 out, .param .u32 n)
{{
    .reg .b64 %rd<8>;
    .reg .b32 %r<16>;
    .reg .pred %p<6>;
    .shared .align 4 .b8 kept[1024];
    ld.param.u64 %rd1, [in];
    ld.param.u64 %rd2, [out];
    ld.param.u32 %r1, [n];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.u32 %r2, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r2, %r1;
    mul.wide.u32 %rd3, %r2, 64;
    add.u64 %rd1, %rd1, %rd3;
    add.u64 %rd2, %rd2, %rd3;
"""
_BODIES = {
    # Every width, and threads that leave by a branch.
    "widths": """
    @%p1 bra DONE;
    ld.global.v4.u32 {%r6, %r7, %r8, %r9}, [%rd1];
    ld.global.u64 %rd4, [%rd1+16];
    ld.global.u8 %r10, [%rd1+31];
    st.global.v4.u32 [%rd2], {%r7, %r6, %r9, %r8};
    st.global.u64 [%rd2+16], %rd4;
    st.global.u8 [%rd2+24], %r10;
DONE:
    ret;
}
""",
    # Accesses under predicates that differ by lane, and an EXIT of some lanes.
    "predicated": """
    @%p1 exit;
    ld.global.u32 %r6, [%rd1];
    and.b32 %r7, %r6, 1;
    setp.eq.u32 %p2, %r7, 1;
    @%p2 ld.global.u32 %r6, [%rd1+4];
    st.global.u32 [%rd2], %r6;
    @%p2 exit;
    st.global.u32 [%rd2+4], %r7;
    ret;
}
""",
    # A loop of which each lane has another number of turns.
    "loops": """
    @%p1 exit;
    and.b32 %r6, %r2, 7;
    mov.u32 %r7, 0;
    mov.u32 %r8, 0;
AGAIN:
    ld.global.u32 %r9, [%rd1];
    add.u32 %r7, %r7, %r9;
    add.u64 %rd1, %rd1, 4;
    add.u32 %r8, %r8, 1;
    setp.le.u32 %p2, %r8, %r6;
    @%p2 bra AGAIN;
    st.global.u32 [%rd2], %r7;
    ret;
}
""",
    # All threads add to cells that they share.
    "atomics": """
    @%p1 exit;
    ld.param.u64 %rd5, [out];
    ld.global.u32 %r6, [%rd1];
    and.b32 %r7, %r6, 63;
    mul.wide.u32 %rd6, %r7, 4;
    add.u64 %rd5, %rd5, %rd6;
    red.global.add.u32 [%rd5], 1;
    ret;
}
""",
    # Shared memory and barriers, with which all threads of a block wait for each other.
    "barriers": """
    mov.u32 %r6, 0;
    @!%p1 ld.global.u32 %r6, [%rd1];
    mov.u32 %r7, kept;
    shl.b32 %r8, %r5, 2;
    add.u32 %r9, %r7, %r8;
    st.shared.u32 [%r9], %r6;
    bar.sync 0;
    sub.u32 %r10, %r4, %r5;
    sub.u32 %r10, %r10, 1;
    shl.b32 %r10, %r10, 2;
    add.u32 %r10, %r7, %r10;
    ld.shared.u32 %r11, [%r10];
    bar.sync 0;
    @%p1 exit;
    st.global.u32 [%rd2], %r11;
    ret;
}
""",
}
KERNELS = tuple(_BODIES)
OPERATORS: Mapping[str, Callable[[Any, Any, Any], Any]] = {
    "add": lambda t, a, b: a + b, "multiply": lambda t, a, b: a * b, "exp": lambda t, a, b: t.exp(a),
    "relu": lambda t, a, b: t.relu(a), "to_half": lambda t, a, b: a.half(), "sum": lambda t, a, b: a.sum(),
    "softmax": lambda t, a, b: t.softmax(a[: 1001 * 999].view(1001, 999), 1),
    "sort": lambda t, a, b: t.sort(a[:30_001])[0], "cumsum": lambda t, a, b: t.cumsum(a, 0),
    "index": lambda t, a, b: a[t.arange(0, 1_000_003, 3, device=a.device)],
}  # fmt: skip
"""Ten of PyTorch's, on vectors of odd length."""
ODD = 1_000_003


class MissingError(Exception):
    """What is not here, in words, so that nothing can be tried."""


def values() -> list[int]:
    """Return what is in the first buffer: words of a generator, the same everywhere."""
    state, out = 1, []
    for _ in range(THREADS * WORDS):
        state = state * 1664525 + 1013904223 & 0xFFFFFFFF
        out.append(state >> 8)
    return out


def expected(kernel: str, given: Sequence[int]) -> dict[str, int]:
    """Return the bytes that a kernel's threads load, store and add to, by arithmetic."""
    odd = sum(given[WORDS * thread] & 1 for thread in range(THREADS))
    return {
        "widths": {"load": 25 * THREADS, "store": 25 * THREADS, "atomic": 0},
        "predicated": {"load": 4 * THREADS + 4 * odd, "store": 4 * THREADS + 4 * (THREADS - odd), "atomic": 0},
        "loops": {"load": 4 * sum((thread & 7) + 1 for thread in range(THREADS)), "store": 4 * THREADS, "atomic": 0},
        "atomics": {"load": 4 * THREADS, "store": 0, "atomic": 4 * THREADS},
        "barriers": {"load": 4 * THREADS, "store": 4 * THREADS, "atomic": 0},
    }[kernel]


def module_text(arch: str) -> str:
    """Return the PTX of the own kernels."""
    return _HEAD.format(arch=arch) + "".join(_BEGIN.format(name=name) + body for name, body in _BODIES.items())


class Driver:
    """The CUDA driver, as far as it is needed. Raises MissingError without one, RuntimeError for an error of it."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        """library: the driver's, as it is loaded."""
        try:
            self._library = ctypes.CDLL(library)
        except OSError:
            raise MissingError(f"there is no NVIDIA driver here ({library})") from None
        status = self._library.cuInit(0)
        if status:
            raise MissingError(f"the NVIDIA driver finds no GPU (cuInit: error {status})")
        self._device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(self._device), 0)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the driver."""
        status = getattr(self._library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: error {status}")

    def attribute(self, number: int) -> int:
        """Return an attribute of the GPU by its number."""
        found = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(found), number, self._device)
        return found.value

    @property
    def capability(self) -> tuple[int, int]:
        """The GPU's compute capability."""
        return self.attribute(75), self.attribute(76)

    @property
    def name(self) -> str:
        """The GPU's name."""
        text = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", text, 256, self._device)
        return text.value.decode()

    @property
    def version(self) -> str:
        """The version of CUDA that the driver has."""
        found = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(found))
        return f"{found.value // 1000}.{found.value % 1000 // 10}"

    def run(self, image: bytes, kernel_names: Sequence[str], given: Sequence[int]) -> dict[str, str]:
        """Run kernels of an image; return by name the digest of the second buffer."""
        context, module = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuModuleLoadData", ctypes.byref(module), image)
        size = 4 * len(given)
        buffers = [ctypes.c_uint64(), ctypes.c_uint64()]
        for buffer in buffers:
            self.call("cuMemAlloc_v2", ctypes.byref(buffer), ctypes.c_size_t(size))
        content = (ctypes.c_uint32 * len(given))(*given)
        self.call("cuMemcpyHtoD_v2", buffers[0], content, ctypes.c_size_t(size))
        digests = {}
        for name in kernel_names:
            function = ctypes.c_void_p()
            self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
            self.call("cuMemsetD8_v2", buffers[1], ctypes.c_ubyte(0), ctypes.c_size_t(size))
            count = ctypes.c_uint32(THREADS)
            pointers = [ctypes.cast(ctypes.byref(one), ctypes.c_void_p) for one in (*buffers, count)]
            arguments = (ctypes.c_void_p * len(pointers))(*pointers)
            self.call("cuLaunchKernel", function, GRID, 1, 1, BLOCK, 1, 1, 0, None, arguments, None)
            self.call("cuCtxSynchronize")
            result = (ctypes.c_uint32 * len(given))()
            self.call("cuMemcpyDtoH_v2", result, buffers[1], ctypes.c_size_t(size))
            digests[name] = hashlib.sha256(bytes(result)).hexdigest()
        return digests


def child(image: Path, out: Path) -> int:
    """Run everything once, as the program that is probed, and write the digests of what was computed."""
    found: dict[str, Any] = {"own": Driver().run(image.read_bytes(), KERNELS, values())}
    if image.suffix != ".ptx" and importlib.util.find_spec("torch") is not None:
        found["torch"] = operators()
    out.write_text(json.dumps(found))
    return OK


def operators() -> dict[str, str]:
    """Run PyTorch's operators; return by name the digest of the result, or what the operator raised."""
    import torch  # type: ignore[import-not-found, unused-ignore]

    if not torch.cuda.is_available():
        return {}
    torch.manual_seed(1)
    a, b = torch.randn(2 * ODD).cuda().split(ODD)
    found = {}
    for name, operator in OPERATORS.items():
        try:
            result = operator(torch, a, b).cpu().contiguous().numpy().tobytes()
            found[name] = hashlib.sha256(result).hexdigest()
        except RuntimeError as error:
            found[name] = f"error: {error}"[:200]
    return found


def assemble(arch: str, folder: Path) -> Path:
    """Return the cubin of the own kernels. Raises MissingError where ``ptxas`` is not there, or too old."""
    from neutrino.errors import NeutrinoError
    from neutrino.toolchain.tool_choice import find_assembler

    try:
        cubin = find_assembler().assemble(module_text(arch), arch).cubin
    except NeutrinoError as error:
        raise MissingError(f"the own kernels cannot be assembled: {error}") from None
    path = folder / "own.cubin"
    path.write_bytes(cubin)
    return path


def run(image: Path, folder: Path, probe: str, options: Sequence[str]) -> dict[str, Any]:
    """Run the program in a process of its own, probed or not; return what it computed, or why it failed.

    probe: "" for none. options: of ``neutrino``.
    """
    out, traces = folder / f"{probe or 'plain'}.json", folder / f"{probe}-traces"
    out.unlink(missing_ok=True)
    program = [sys.executable, str(Path(__file__).resolve()), "--child", str(image), str(out)]
    argv = [sys.executable, "-m", "neutrino", "-q", "-p", probe, "--tracedir", str(traces), *options, *program]
    environment = dict(os.environ)
    if image.suffix == ".ptx":
        environment["LD_LIBRARY_PATH"] = str(EMBEDDED.parent)
        # The device is a process of the first python3 there.
        environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        argv if probe else program, capture_output=True, text=True, timeout=300, check=False, env=environment
    )
    if done.returncode or not out.exists():
        return {"failed": f"exit status {done.returncode}: {(done.stderr or done.stdout).strip()[-1500:]}"}
    found: dict[str, Any] = json.loads(out.read_text())
    return found | ({"kernels": recorded(traces, probe)} if probe else {})


def recorded(traces: Path, probe: str) -> list[dict[str, Any]]:
    """Return what the traces have of each kernel: reason, launches, records of warps or sums of bytes."""
    from neutrino import open_trace
    from neutrino.tracing import find_traces

    rows = []
    for path in find_traces(traces):
        for kernel in open_trace(path).kernels:
            row: dict[str, Any] = {"name": kernel.name, "reason": kernel.reason.word, "detail": kernel.detail}
            row["launches"] = sum(kernel.counters.values())
            if kernel.manifest is not None:
                row["made_of"] = kernel.manifest.made_of or "PTX"
            row["records"] = [_of_launch(launch, probe) for launch in kernel.launches]
            rows.append(row)
    return rows


def _of_launch(launch: Any, probe: str) -> dict[str, Any]:
    """Return what the data of one launch say. block_sched: warps with a record, and those with an impossible one."""
    (records,) = (view.valid() for view in launch.maps.values())
    if probe == "gmem_bytes":
        return {name: int(records[name].sum()) for name in ("load", "store", "atomic")}
    blocks = int(launch.record["grid"].prod())
    warps = blocks * -(-int(launch.record["block"].prod()) // 32)
    elapsed = records["elapsed"].reshape(-1)
    return {"warps": warps, "records": int((elapsed > 0).sum()), "most_cycles": int(elapsed.max(initial=0))}


def verdict(results: Mapping[str, Any]) -> list[str]:
    """Return what is wrong, in lines."""
    wrong = []
    plain = results["runs"]["plain"]
    for name, found in results["runs"].items():
        if "failed" in found:
            wrong.append(f"{name}: {found['failed']}")
            continue
        for part in ("own", "torch"):
            for kernel, digest in plain.get(part, {}).items():
                if found.get(part, {}).get(kernel) != digest:
                    wrong.append(f"{name}: {kernel} computes something else")
        wrong += [f"{name}: {line}" for line in _wrong_records(name, found.get("kernels", []))]
    return wrong


def _wrong_records(probe: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what is wrong with the records of a run, in lines."""
    wrong = []
    given = values()
    by_name = {row["name"]: row for row in rows}
    for name in KERNELS if probe in PROBES else ():
        row = by_name.get(name)
        if row is None or not row["records"]:
            why = "was not seen" if row is None else f"has no records: {row['reason']} {row['detail']}"
            wrong.append(f"{name} {why}")
    for row in rows:
        for found in row["records"]:
            if probe == "block_sched" and found["records"] != found["warps"]:
                wrong.append(f"{row['name'][:60]}: {found['records']} records of {found['warps']} warps")
            if probe == "gmem_bytes" and row["name"] in KERNELS and found != expected(row["name"], given):
                wrong.append(f"{row['name']}: {found}, by arithmetic {expected(row['name'], given)}")
    return wrong


def table(results: Mapping[str, Any]) -> str:
    """Return the results in short."""
    lines = [f"{results['gpu']} ({results['arch']}), CUDA {results['driver']}, machine code for {results['code']}"]
    for name, found in results["runs"].items():
        if "failed" in found:
            lines.append(f"{name:<12} failed")
            continue
        rows = found.get("kernels", [])
        twins = sum(bool(row["records"]) for row in rows)
        lines.append(f"{name:<12} {len(found['own'])} own kernels, {len(found.get('torch', {}))} operators"
                     + (f", {twins} of {len(rows)} kernels with records" if rows else ""))  # fmt: skip
    wrong = verdict(results)
    return "\n".join([*lines, *wrong, "all is right" if not wrong else f"{len(wrong)} things are wrong"])


def main(argv: Sequence[str] | None = None) -> int:
    """Try, print a table, and write one file. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="try_machine_code.py", description="Try twins of machine code on this GPU.")
    parser.add_argument("--out", type=Path, default=Path("machine_code.json"), help="the file to send")
    parser.add_argument("--ptx", action="store_true", help="try this script, by PTX on the embedded device")
    parser.add_argument("--child", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    try:
        if options.child:
            return child(*options.child)
        # The folder above has the package, if it is not installed.
        if importlib.util.find_spec("neutrino") is None:
            raise MissingError("neutrino is not installed: pip install it, or set PYTHONPATH to the repository")
        driver = Driver(*([str(EMBEDDED)] if options.ptx else []))
        capability = driver.capability
        code = "PTX" if options.ptx else ARCHITECTURES.get(capability)
        if code is None:
            known = ", ".join(f"{major}.{minor}" for major, minor in ARCHITECTURES)
            mine = ".".join(map(str, capability))
            raise MissingError(f"{driver.name} has compute capability {mine}: twins are made for {known} so far")
        with tempfile.TemporaryDirectory(prefix="try_machine_code-") as text:
            folder = Path(text)
            if options.ptx:
                image = folder / "own.ptx"
                image.write_bytes(module_text("sm_80").encode() + b"\0")
            else:
                image = assemble(code, folder)
            more = ["--device", "embedded"] if options.ptx else ["--machine-code", "unproven"]
            runs = {
                "plain": run(image, folder, "", ()), "again": run(image, folder, "", ()),
                **{probe: run(image, folder, probe, more) for probe in PROBES},
            }  # fmt: skip
        results = {
            "gpu": driver.name, "arch": f"sm_{capability[0]}{capability[1]}", "driver": driver.version, "code": code,
            "python": platform.python_version(), "runs": runs,
        }  # fmt: skip
    except MissingError as missing:
        print(f"try_machine_code: {missing}", file=sys.stderr)
        return NOTHING
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))
    print(f"written: {options.out}")
    return WRONG if verdict(results) else OK


if __name__ == "__main__":
    sys.exit(main())
