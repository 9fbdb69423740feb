"""The CUDA driver that a command will load, its version, and the architectures of this machine's GPUs."""

from __future__ import annotations

import contextlib
import os
import re
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neutrino.private_files import private_folder, read_private, write_private

NAME = "libcuda.so.1"
_USUAL = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/run/opengl-driver/lib",
)
_PATIENCE_S = 30
"""A driver that has to wake a GPU up takes seconds."""
_ELF_CLASS_64 = b"\x7fELF\x02"


def find_driver(environment: Mapping[str, str]) -> Path | None:
    """The driver library that a program started with this environment would load; None when there is none.

    The order is the dynamic loader's: LD_LIBRARY_PATH, its cache, its default folders; then places where containers
    keep drivers.
    """
    folders = [folder for folder in re.split("[:;]", environment.get("LD_LIBRARY_PATH", "")) if folder]
    for candidate in (
        *(Path(folder) / NAME for folder in folders),
        *_cached(),
        *(Path(f) / NAME for f in _USUAL),
    ):
        if is_library(candidate):
            return candidate.absolute()
    return None


def is_library(path: Path) -> bool:
    """Whether path is a 64-bit ELF file that can be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(_ELF_CLASS_64)) == _ELF_CLASS_64
    except OSError:
        return False


def _cached() -> list[Path]:
    for command in ("/sbin/ldconfig", "/usr/sbin/ldconfig", "ldconfig"):
        try:
            listing = subprocess.run([command, "-p"], capture_output=True, check=False, timeout=10).stdout
        except (OSError, subprocess.TimeoutExpired):
            continue
        found = re.findall(rb"^\s*libcuda\.so\.1 \([^)]*x86-64[^)]*\) => (\S+)$", listing, re.MULTILINE)
        found += re.findall(rb"^\s*libcuda\.so\.1 \([^)]*AArch64[^)]*\) => (\S+)$", listing, re.MULTILINE)
        return [Path(os.fsdecode(path)) for path in found]
    return []


def driver_version(driver: Path, cache: Path) -> int | None:
    """``cuDriverGetVersion`` of that library (13000 for 13.0), None if it fails.

    Asked in a child process, once for each file: the answer is kept under the folder cache.
    """
    status = driver.stat()
    identity = f"{driver.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\0".encode()
    note = cache / "driver-version"
    with contextlib.suppress(OSError):
        kept = read_private(note)
        if kept is not None and kept.startswith(identity) and kept[len(identity) :].isdigit():
            return int(kept[len(identity) :])
    version = _ask_version(driver)
    if version is not None:
        with contextlib.suppress(OSError):
            private_folder(cache)
            write_private(note, identity + str(version).encode())
    return version


def _ask_version(driver: Path) -> int | None:
    from neutrino.loader._interface import ffi

    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        # Nothing of this process runs on in the child: it answers and is gone.
        try:
            library: Any = ffi.dlopen(str(driver))
            value = ffi.new("int *")
            if library.cuDriverGetVersion(value) == 0:
                os.write(writing, struct.pack("<i", value[0]))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answers:
        answer = answers.read(4)
    # There is nothing to wait for where SIGCHLD is ignored.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)
    return int(struct.unpack("<i", answer)[0]) if len(answer) == 4 else None


_ASK_ARCHS = """
import runpy, sys
ffi = runpy.run_path(sys.argv[1])["ffi"]
driver = ffi.dlopen(sys.argv[2])
count, value = ffi.new("int *"), ffi.new("int *")
if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(count) == 0:
    for device in range(count[0]):
        numbers = []
        for part in ("MAJOR", "MINOR"):
            attribute = getattr(driver, "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_" + part)
            if driver.cuDeviceGetAttribute(value, attribute, device) == 0:
                numbers.append(str(value[0]))
        print("".join(numbers) if len(numbers) == 2 else "")
"""
_INTERFACE = Path(__file__).with_name("_interface.py")


def machine_archs() -> tuple[str, ...]:
    """The architectures of this machine's GPUs, as ``sm_90``, each once; none without a working driver."""
    driver = find_driver(os.environ)
    return () if driver is None else device_archs(driver)


def device_archs(driver: Path) -> tuple[str, ...]:
    """The architectures of the machine's GPUs, as ``sm_90``, each once; none if the driver fails.

    Asked in a separate process: state that the driver keeps in a process would be inherited by forks.
    """
    argv = [sys.executable, "-c", _ASK_ARCHS, str(_INTERFACE), str(driver)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(dict.fromkeys(f"sm_{line}" for line in done.stdout.split() if line.isdigit()))
