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
_BYPASS = "/."
"""Before an absolute path, it makes the auditing module ignore it: NT_FRONT_BYPASS in csrc/base/front.h."""
_DRIVER_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/run/opengl-driver/lib",
)
_LDCONFIG_TIMEOUT_S = 10
_QUERY_TIMEOUT_S = 30
"""A driver that has to wake a GPU up takes seconds."""
_ELF_CLASS_64 = b"\x7fELF\x02"
"""The first bytes of a 64-bit ELF file."""
_VERSION_ANSWER = struct.Struct("<i")


def find_driver(environment: Mapping[str, str]) -> Path | None:
    """Return the driver library that a program started with this environment would load; None if there is none.

    It is searched as by the dynamic loader: LD_LIBRARY_PATH, the loader's cache, its default folders; then where
    containers keep drivers.
    """
    folders = [folder for folder in re.split("[:;]", environment.get("LD_LIBRARY_PATH", "")) if folder]
    for candidate in (
        *(Path(folder) / NAME for folder in folders),
        *_loader_cache_paths(),
        *(Path(folder) / NAME for folder in _DRIVER_FOLDERS),
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


def bypassing(driver: Path) -> str:
    """Return a path by which a process gets the driver itself, also if it has the hook's auditing module.

    driver: its absolute path.
    """
    return _BYPASS + str(driver)


def _loader_cache_paths() -> list[Path]:
    """Return the paths of the driver in the dynamic loader's cache, by ``ldconfig -p``; empty without ldconfig."""
    for command in ("/sbin/ldconfig", "/usr/sbin/ldconfig", "ldconfig"):
        try:
            process = subprocess.run([command, "-p"], capture_output=True, check=False, timeout=_LDCONFIG_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired):
            continue
        # A line: libcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1
        listing = process.stdout
        paths = re.findall(rb"^\s*libcuda\.so\.1 \([^)]*x86-64[^)]*\) => (\S+)$", listing, re.MULTILINE)
        paths += re.findall(rb"^\s*libcuda\.so\.1 \([^)]*AArch64[^)]*\) => (\S+)$", listing, re.MULTILINE)
        return [Path(os.fsdecode(path)) for path in paths]
    return []


def driver_version(driver: Path, cache: Path) -> int | None:
    """Return ``cuDriverGetVersion`` of a driver library (13000 for 13.0), None if it fails.

    The answer is stored in the folder cache, and valid as long as the library's path, size and time stay the same.
    Raises OSError if there is no such file.
    """
    # A driver that was replaced differs in one of these.
    status = driver.stat()
    identity = f"{driver.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\0".encode()
    cache_file = cache / "driver-version"
    with contextlib.suppress(OSError):
        cached = read_private(cache_file)
        if cached is not None and cached.startswith(identity):
            # Damaged contents are as good as none.
            cached_version = cached.removeprefix(identity)
            if cached_version.isdigit():
                return int(cached_version)
    version = _query_version(driver)
    if version is not None:
        with contextlib.suppress(OSError):
            private_folder(cache)
            write_private(cache_file, identity + str(version).encode())
    return version


def _query_version(driver: Path) -> int | None:
    """Call ``cuDriverGetVersion`` in a forked child, since this process must not load the driver. None if it fails."""
    from neutrino.loader._interface import ffi

    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        # os._exit: no cleanup code of the parent may run in the child.
        try:
            library: Any = ffi.dlopen(bypassing(driver.absolute()))
            value = ffi.new("int *")
            # 0 is CUDA_SUCCESS.
            if library.cuDriverGetVersion(value) == 0:
                os.write(writing, _VERSION_ANSWER.pack(value[0]))
        finally:
            os._exit(0)
    # Only the child has the writing end now, so that reading ends when the child does, also without an answer.
    os.close(writing)
    with os.fdopen(reading, "rb") as answers:
        answer = answers.read(_VERSION_ANSWER.size)
    # If SIGCHLD is ignored, the child is gone and there is nothing to wait for.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)
    if len(answer) != _VERSION_ANSWER.size:
        return None
    (version,) = _VERSION_ANSWER.unpack(answer)
    return int(version)


_QUERY_GPUS = """
import runpy, sys
ffi = runpy.run_path(sys.argv[1])["ffi"]
driver = ffi.dlopen(sys.argv[2])
count, value, name = ffi.new("int *"), ffi.new("int *"), ffi.new("char[]", 256)
error = driver.cuInit(0) or driver.cuDeviceGetCount(count)
if error:
    text = ffi.new("const char **")
    driver.cuGetErrorName(error, text)
    print("error", ffi.string(text[0]).decode() if text[0] else error)
for device in range(0 if error else count[0]):
    numbers = []
    for part in ("MAJOR", "MINOR"):
        attribute = getattr(driver, "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_" + part)
        if driver.cuDeviceGetAttribute(value, attribute, device) == 0:
            numbers.append(str(value[0]))
    known = driver.cuDeviceGetName(name, len(name), device) == 0
    if len(numbers) == 2:
        print("gpu", "sm_" + "".join(numbers), ffi.string(name).decode("utf-8", "replace") if known else "")
"""
_INTERFACE = Path(__file__).with_name("_interface.py")


def machine_archs() -> tuple[str, ...]:
    """Return the architectures of this machine's GPUs, as ``sm_90``, each once; empty without a working driver."""
    driver = find_driver(os.environ)
    return () if driver is None else device_archs(driver)


def device_archs(driver: Path) -> tuple[str, ...]:
    """Return the architectures of the GPUs of a driver, as ``sm_90``, each once; empty if the driver fails."""
    gpus, _ = find_gpus(driver)
    return tuple(dict.fromkeys(arch for arch, _ in gpus))


def find_gpus(driver: Path) -> tuple[list[tuple[str, str]], str]:
    """Return the architecture (``sm_90``) and the name of each GPU of a driver, and why there are none, or "".

    The driver is loaded in a separate process: in this one it would keep state that forked processes inherit.
    """
    argv = [sys.executable, "-c", _QUERY_GPUS, str(_INTERFACE), bypassing(driver.absolute())]
    try:
        process = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", check=False, timeout=_QUERY_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return [], f"the driver did not answer within {_QUERY_TIMEOUT_S} s"
    except OSError as error:
        return [], error.strerror or str(error)
    rows = [line.split(" ", 2) for line in process.stdout.splitlines()]
    gpus = [(row[1], row[2]) for row in rows if row[0] == "gpu" and len(row) == 3]
    if gpus:
        return gpus, ""
    errors = [row[1] for row in rows if row[0] == "error" and len(row) == 2]
    if errors:
        return [], f"the driver says {errors[0]}"
    return [], "the driver has no GPU" if process.returncode == 0 else "the driver cannot be loaded"
