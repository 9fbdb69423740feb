"""The stand-in driver under C programs of the driver API, which check what they see themselves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from neutrino.run.own_process import importing

from .conftest import ROOT, SCENARIOS, Bench

QUIET = (*SCENARIOS, "life bare-fork")

# Whose results random delays would change if work were not in order.
SHUFFLED = (
    "basic order",
    "graph replay",
    "replays write-value",
    "replays swapped",
    "life events",
    "life threads",
    "life spin",
)


@pytest.mark.parametrize("program", QUIET)
def test_a_program_sees_what_the_driver_would_show(bench: Bench, program: str) -> None:
    result = bench.run(*program.split(), strict=1)
    assert (result.stdout, result.stderr, result.returncode) == ("done\n", "", 0)


def test_what_clusters_would_change_is_not_run(bench: Bench) -> None:
    result = bench.run("replays", "clusters", strict=1)
    assert (result.stdout, result.returncode) == ("done\n", 0)
    assert result.stderr == "neutrino: embedded device: clusters of blocks are not run\n"


def test_a_green_context_in_two_threads_is_reported(bench: Bench) -> None:
    result = bench.run("green", "two-threads")
    assert (result.stdout, result.returncode) == ("done\n", 0)
    # Once more if the first thread then goes on before the second one has ended.
    line = "neutrino: embedded device: a green context became current to a second thread"
    assert set(result.stderr.splitlines()) == {line}


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("program", SHUFFLED)
def test_random_delays_and_schedules_change_no_result(bench: Bench, program: str, seed: int) -> None:
    result = bench.run(*program.split(), strict=1, seed=seed, delay=2000)
    assert (result.stdout, result.stderr, result.returncode) == ("done\n", "", 0)


@pytest.mark.parametrize(
    ("kind", "code", "said"),
    [
        ("trap", 719, "trap"),
        ("red-zone", 700, "access outside every allocation"),
        ("freed", 700, "access outside every allocation"),
        ("host-pointer", 700, "access outside every allocation"),
        ("misaligned", 716, "misaligned access"),
    ],
)
def test_a_fault_takes_the_device_from_the_process(bench: Bench, kind: str, code: int, said: str) -> None:
    result = bench.run("life", "fault", kind, str(code), strict=1)
    assert (result.stdout, result.returncode) == ("done\n", 0)
    (line,) = result.stderr.splitlines()
    assert line.startswith("neutrino: embedded device: ")
    assert said in line


def test_a_kernel_that_never_ends_is_given_up(bench: Bench, tmp_path: Path) -> None:
    endless = tmp_path / "endless.ptx"
    text = (bench_image()).read_text().replace("trap;", "again: bra again;")
    endless.write_text(text)
    result = bench.run("life", "fault", "trap", "702", extra={"HOST_IMAGE": str(endless)}, steps=2000)
    assert (result.stdout, result.returncode) == ("done\n", 0)
    assert "step limit reached" in result.stderr


def bench_image() -> Path:
    return Path(__file__).parent / "kernels.ptx"


def test_a_destroyed_stream_is_an_error_or_if_strict_the_end(bench: Bench) -> None:
    said = "neutrino: embedded device: a destroyed stream was used\n"
    lenient = bench.run("life", "stale-stream")
    assert (lenient.stdout, lenient.stderr, lenient.returncode) == ("done\n", said, 0)
    strict = bench.run("life", "stale-stream", strict=1)
    assert (strict.stderr, strict.returncode) == (said, -signal.SIGABRT)


def test_the_host_cannot_follow_a_pointer_of_the_devices(bench: Bench) -> None:
    assert bench.run("life", "device-pointer").returncode == -signal.SIGSEGV


def test_a_library_of_a_wrong_image_says_so_when_it_is_asked(bench: Bench) -> None:
    result = bench.run("life", "lazy-library", strict=1)
    assert (result.stdout, result.returncode) == ("done\n", 0)
    assert result.stderr == "neutrino: embedded device: PTX line 3: PTX has no instruction bogus: 'bogus;'\n"


def test_failures_on_request(bench: Bench) -> None:
    result = bench.run("life", "allocations", fail="alloc@3,launch@2=701,launch@4=719")
    assert result.stdout == "0 2 0 0 0 701 0 719 done\n"


def _device_processes(pid: int) -> list[int]:
    """Processes of the device of that host: they hold a pidfd of it."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == pid:
            continue
        try:
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
            info = (folder / "fdinfo" / "4").read_text()
        except OSError:
            continue
        if any(b"neutrino.emulator.server" in word for word in arguments) and f"Pid:\t{pid}\n" in info:
            found.append(int(folder.name))
    return found


def test_the_device_process_ends_with_its_host(bench: Bench) -> None:
    host = subprocess.Popen(
        [str(bench.folder / "life"), "wait"], env=bench.environment(), stdout=subprocess.PIPE, text=True
    )
    assert host.stdout is not None
    assert host.stdout.readline() == "ready\n"
    (device,) = _device_processes(host.pid)
    status = Path(f"/proc/{device}/status").read_text()
    assert f"PPid:\t{host.pid}\n" not in status
    # Nothing of the host's is open in it: stdio on /dev/null, the socket, the host's pidfd, and what Python opens.
    for descriptor in range(3):
        assert Path(f"/proc/{device}/fd/{descriptor}").readlink() == Path("/dev/null")
    host.kill()
    host.wait()
    host.stdout.close()
    until = time.monotonic() + 600
    while time.monotonic() < until and Path(f"/proc/{device}").exists():
        time.sleep(0.01)
    assert not Path(f"/proc/{device}").exists()


def test_calls_are_counted_by_caller(bench: Bench, tmp_path: Path) -> None:
    counts = tmp_path / "counts.json"
    bench.run("basic", "order", count=counts)
    found = json.loads(counts.read_text())
    assert found["hook"] == found["hook-thread"] == {}
    assert found["program"]["cuLaunchKernel"] == 4 * 20
    assert found["program"]["cuStreamCreate"] == 4
    assert found["program"]["cuCtxSynchronize"] == 1


def test_a_missing_interpreter_is_named(bench: Bench) -> None:
    result = bench.run("life", "reuse", python="/nowhere/python")
    assert "neutrino: embedded device: the interpreter named by python= cannot be started" in result.stderr
    assert "error 100" in result.stdout


def test_a_broken_package_is_named(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "neutrino").mkdir()
    (tmp_path / "neutrino" / "__init__.py").write_text("raise RuntimeError('not today')")
    result = bench.run("life", "reuse", root=tmp_path)
    assert "error 100" in result.stdout
    assert "not today" in result.stderr


def test_files_beside_the_package_are_no_modules(bench: Bench, tmp_path: Path) -> None:
    """As a checkout has them after ``neutrino-patch libvector.so -o copy.so``; what is nowhere else is found there."""
    (tmp_path / "neutrino").symlink_to(ROOT / "neutrino")
    (tmp_path / "copy.so").write_bytes(b"\x7fELF")
    (tmp_path / "struct.py").write_text("raise RuntimeError('no module')")
    (tmp_path / "numpy.py").write_text("raise RuntimeError('no module')")
    result = bench.run("basic", "vecadd", root=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")


def test_another_process_of_the_session_takes_neutrino_alone_from_there(tmp_path: Path) -> None:
    (tmp_path / "neutrino").symlink_to(ROOT / "neutrino")
    (tmp_path / "copy.so").write_bytes(b"\x7fELF")
    (tmp_path / "only_there.py").touch()
    script = "import copy, dataclasses, only_there, neutrino.run.start; print(neutrino.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", f"{importing(str(tmp_path))}; {script}"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{tmp_path}/neutrino/__init__.py\n", "")


IMAGES = {
    "machine code": (b"\x7fELF" + bytes(100), 209, "machine code only"),
    "no image": (b"nothing like it", 200, "neither a container nor PTX"),
    "broken": (b".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry x( {", 218, "PTX line"),
    "by nvcc": (
        b"//\n// Generated by NVIDIA NVVM Compiler\n//\n.version 8.0\n.target sm_80\n.address_size 64\n",
        218,
        "made by nvcc or NVRTC",
    ),
}


@pytest.mark.parametrize("name", sorted(IMAGES))
def test_an_image_that_is_not_taken(bench: Bench, tmp_path: Path, name: str) -> None:
    image, code, said = IMAGES[name]
    (tmp_path / "image").write_bytes(image)
    result = bench.run("life", "reuse", extra={"HOST_IMAGE": str(tmp_path / "image")})
    assert f"error {code}" in result.stdout
    (line,) = result.stderr.splitlines()
    assert line.startswith("neutrino: embedded device: ")
    assert said in line


def test_a_limit_on_files_and_closed_descriptors_do_not_matter(bench: Bench) -> None:
    program = bench.folder / "basic"
    script = f"ulimit -f 1; exec {program} vecadd <&- 2>&-"
    result = subprocess.run(
        ["/bin/bash", "-c", script], env=bench.environment(), stdout=subprocess.PIPE, timeout=600, check=False
    )
    assert (result.stdout, result.returncode) == (b"done\n", 0)


def _with_descriptors(bench: Bench, most: str) -> subprocess.CompletedProcess[str]:
    script = f"ulimit -n {most}; exec {bench.folder / 'basic'} vecadd"
    return subprocess.run(
        ["/bin/bash", "-c", script],
        env=bench.environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_a_low_limit_on_descriptors_is_kept_or_named(bench: Bench) -> None:
    for most in ("16", "32", "-S 5"):
        enough = _with_descriptors(bench, most)
        assert (enough.stdout, enough.stderr, enough.returncode) == ("done\n", "", 0)
    said = {
        "15": "a limit of 15 open files is too low for the device process, which needs 16",
        "-S 4": "no shared memory or socket for the device process: Too many open files",
    }
    for most, cause in said.items():
        short = _with_descriptors(bench, most)
        assert short.stderr == f"neutrino: embedded device: {cause}\n"
        # cuInit's line.
        assert short.stdout.endswith("host.h:63: error 100\n")


def test_the_end_of_the_device_process_is_an_error_and_not_the_hosts_end(bench: Bench) -> None:
    host = subprocess.Popen(
        [str(bench.folder / "life"), "lost-device"],
        env=bench.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert host.stdout is not None
    assert host.stdout.readline() == "ready\n"
    (device,) = _device_processes(host.pid)
    os.kill(device, signal.SIGKILL)
    output, errors = host.communicate("go on\n", timeout=600)
    assert (output, host.returncode) == ("done\n", 0)
    assert errors.startswith("neutrino: embedded device: the device process has ended\n")


def test_a_pipe_that_nobody_reads_does_not_end_the_program(bench: Bench) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    result = subprocess.run(
        [str(bench.folder / "life"), "fault", "trap", "719"],
        env=bench.environment(),
        stdout=subprocess.PIPE,
        stderr=writing,
        timeout=600,
        check=False,
    )
    os.close(writing)
    assert (result.stdout, result.returncode) == (b"done\n", 0)


def _segments(pid: int) -> int:
    """How many System V segments that process made are still there."""
    table = Path("/proc/sysvipc/shm").read_text().splitlines()
    column = table[0].split().index("cpid")
    return sum(line.split()[column] == str(pid) for line in table[1:])


def test_segments_are_gone_afterwards(bench: Bench) -> None:
    host = subprocess.Popen(
        [str(bench.folder / "life"), "wait"], env=bench.environment(), stdout=subprocess.PIPE, text=True
    )
    assert host.stdout is not None
    assert host.stdout.readline() == "ready\n"
    assert _segments(host.pid) == 2
    host.kill()
    host.wait()
    host.stdout.close()
    until = time.monotonic() + 600
    while time.monotonic() < until and _segments(host.pid):
        time.sleep(0.01)
    assert _segments(host.pid) == 0
