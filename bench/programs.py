"""Building the workloads, and running programs so that none of them can hang the bench."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bench.cases import IMAGES, WORKLOADS, Workload
from bench.tree import ROOT

SOURCES = Path(__file__).parent / "workloads"
_GRACE = 5.0
# Machine code for the H200 and the PTX that it was made from, which is what twins are made of.
_ARCHITECTURE = ("-gencode", "arch=compute_90,code=[sm_90,compute_90]")


@dataclass(frozen=True)
class Finished:
    """A program that ended or was ended.

    status: as waitpid's, negative for a signal; None: could not be started.
    """

    status: int | None
    timed_out: bool
    seconds: float
    stdout: str
    stderr: str


def run_program(argv: Sequence[str], environment: Mapping[str, str], folder: Path, name: str, limit: float) -> Finished:
    """Run a program for at most limit seconds; its output goes to NAME.out and NAME.err in folder.

    Files rather than pipes: a process that it leaves behind (the listener) may keep them open, and must not
    keep us.
    """
    paths = folder / f"{name}.out", folder / f"{name}.err"
    start = time.monotonic()
    timed_out = False
    status: int | None = None
    with paths[0].open("wb") as out, paths[1].open("wb") as err:
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=dict(environment),
                start_new_session=True,
            )
        except OSError as error:
            err.write(str(error).encode())
        else:
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                timed_out = True
                status = _end(process)
    seconds = time.monotonic() - start
    stdout, stderr = (path.read_bytes().decode(errors="replace") for path in paths)
    return Finished(status, timed_out, round(seconds, 2), stdout, stderr)


def must_run(
    argv: Sequence[str], folder: Path, name: str, limit: float = 120, variables: Mapping[str, str] | None = None
) -> Finished:
    """Run a program, with this tree in PYTHONPATH and a cache of Neutrino's own in folder; SystemExit with the end of
    what it said if it fails.

    name: of the files that take its output. variables: further ones of its environment.
    """
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    caches = {"PYTHONPATH": path, "XDG_CACHE_HOME": str(folder / "cache")}
    environment = {**os.environ, **caches, **(variables or {})}
    done = run_program(argv, environment, folder, name, limit)
    if done.status != 0:
        raise SystemExit(f"{shlex.join(argv)}: exit status {done.status}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done


def _end(process: subprocess.Popen[bytes]) -> int | None:
    """Kill a process with its session, by SIGTERM at first; return its exit status, None if it does not end (stuck in
    the driver)."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        try:
            return process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            continue
    return None


def find_cuda_tool(name: str) -> Path:
    """A tool of the CUDA toolkit, from PATH, CUDA_HOME or NVIDIA's default folder; FileNotFoundError if
    none has it."""
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    found = shutil.which(name) or shutil.which(name, path=str(home / "bin"))
    if not found:
        raise FileNotFoundError(f"{name}: not on PATH nor in {home / 'bin'}: install the CUDA toolkit")
    return Path(found)


def query_gpu(field: str) -> str:
    """A field of the first GPU by nvidia-smi, such as ``driver_version``; empty where there is none."""
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits", "-i", "0"],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def build_command(source: Path, target: Path, flags: Sequence[str] = ()) -> list[str]:
    """nvcc's command line that compiles a workload for the H200, to a program or, where target ends in .fatbin, to a
    container of GPU code that programs load.
    """
    nvcc = [
        str(find_cuda_tool("nvcc")),
        "-O3",
        "-std=c++17",
        *_ARCHITECTURE,
        *flags,
        "-o",
        str(target),
        str(source),
    ]
    if target.suffix == ".fatbin":
        return [*nvcc, "-fatbin"]
    return [*nvcc, "-cudart", "static", "-ldl", "-lpthread"]


def build(folder: Path, workloads: Sequence[Workload] = WORKLOADS) -> dict[str, str]:
    """Compile all workloads and images into folder. Returns what nvcc said of those that failed, by name."""
    commands = {
        entry.name: build_command(SOURCES / entry.source, folder / entry.name, entry.flags)
        for entry in workloads
        if not entry.is_python
    }
    commands["submit"] = build_command(SOURCES / "submit.cu", folder / "submit")
    commands |= {name: build_command(SOURCES / f"{name}.cu", folder / f"{name}.fatbin") for name in IMAGES}
    return build_all(commands, folder)


def build_all(commands: Mapping[str, Sequence[str]], folder: Path) -> dict[str, str]:
    """Run nvcc's command lines, by name, in parallel. Returns name → what nvcc said, of those that failed."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        done = pool.map(
            lambda item: (item[0], run_program(item[1], os.environ, folder, f"nvcc_{item[0]}", 300)),
            commands.items(),
        )
        return {name: finished.stderr for name, finished in done if finished.status != 0}


def command(entry: Workload, folder: Path, report: Path) -> list[str]:
    """Return the command that runs a workload (a test program). folder: where it was built. report: the JSON file that
    it writes."""
    program = [sys.executable, str(SOURCES / entry.source)] if entry.is_python else [str(folder / entry.name)]
    images = ["--images", str(folder)] if entry.name == "reload" else []
    return [*program, "--seeds", str(entry.seeds), "--out", str(report), *images]
