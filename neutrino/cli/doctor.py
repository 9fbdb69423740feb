"""``neutrino --doctor``: what probing needs of this machine, what of it is there, and how to get the rest."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

from neutrino.cli.streams import escaped
from neutrino.errors import NeutrinoError, ToolMissingError
from neutrino.late_dataclass import dataclass
from neutrino.loader.driver import NAME, driver_version, find_driver, find_gpus, is_library
from neutrino.loader.embedded_driver import stand_in
from neutrino.places import cache_place, cache_root
from neutrino.private_files import private_folder
from neutrino.version import __version__

_COMPILED = Path(__file__).resolve().parent.parent / "loader" / "lib" / NAME
_CUDA_EXTRA = 'pip install "neutrino-gpu[cuda]"'


class State(Enum):
    """What a finding means for the user: nothing to do, something that some uses need, or no probing on a GPU."""

    OK = "ok"
    OPTIONAL = "--"
    MISSING = "no"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for. remedy: how to get it; "" if there is nothing to do."""

    state: State
    name: str
    text: str
    remedy: str = ""


def diagnose(driver: Path | None = None) -> Iterator[Finding]:
    """Yield what probing needs, in the order in which it is needed. driver: None to find it."""
    yield Finding(State.OK, "Neutrino", f"{__version__}, Python {platform.python_version()}")
    yield _system()
    yield _hook()
    library = driver or find_driver(os.environ)
    yield from _gpus(library)
    yield from _assemblers(_version_of(library))
    yield _cache()
    yield _embedded()
    yield Finding(State.OK, "counters", "no permission for performance counters is needed: none are read")


def print_diagnosis(driver: Path | None = None) -> int:
    """Print all findings; return the exit status: 0 if kernels can be probed on this machine's GPU, else 3."""
    findings = list(diagnose(driver))
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        print(f"{finding.state.value}  {finding.name.ljust(width)}  {escaped(finding.text)}")
        if finding.remedy:
            print(f"    {' ' * width}  {finding.remedy}")
    is_ready = all(finding.state is not State.MISSING for finding in findings)
    print(
        "\nKernels can be probed on this machine's GPU."
        if is_ready
        else "\nKernels cannot be probed on a GPU here; --device embedded runs them on the CPU."
    )
    return 0 if is_ready else 3


def _system() -> Finding:
    """Which system this is: the hook (Neutrino's library in the program) needs Linux on x86-64, and glibc as new as the
    one that it was built with.
    """
    machine, system = platform.machine(), platform.system()
    name, version = platform.libc_ver()
    text = f"{system} on {machine}, {name or 'no glibc'} {version}".rstrip()
    if (system, machine) != ("Linux", "x86_64"):
        return Finding(State.MISSING, "system", text, "Neutrino runs on Linux on x86-64")
    needed = _needed_glibc()
    if name != "glibc" or tuple(map(int, re.findall(r"\d+", version))) < needed:
        return Finding(State.MISSING, "system", text, f"the hook needs glibc {'.'.join(map(str, needed))} or newer")
    return Finding(State.OK, "system", text)


def _needed_glibc() -> tuple[int, ...]:
    """The newest version of glibc whose symbols the hook (Neutrino's library in the program) uses; () if the hook was
    not built.
    """
    try:
        found = re.findall(rb"GLIBC_(\d+)\.(\d+)\0", _COMPILED.read_bytes())
    except OSError:
        return ()
    return max(((int(major), int(minor)) for major, minor in found), default=())


def _hook() -> Finding:
    """Whether the hook, the C library that is loaded into programs, was built."""
    if is_library(_COMPILED):
        return Finding(State.OK, "hook", str(_COMPILED))
    return Finding(
        State.MISSING, "hook", "was not built", "install Neutrino again where there is a C compiler, or make setup"
    )


def _version_of(driver: Path | None) -> int | None:
    """The version of a driver, as cuDriverGetVersion has it; None if it is not known."""
    if driver is None:
        return None
    try:
        return driver_version(driver, cache_root())
    except (NeutrinoError, OSError):
        return None


def _gpus(driver: Path | None) -> Iterator[Finding]:
    """Yield what was found of the GPU driver, and of each GPU."""
    if driver is None:
        text = f"no {NAME} on this machine"
        yield Finding(State.MISSING, "driver", text, "install NVIDIA's driver; in a container, start it with GPUs")
        return
    version = _version_of(driver)
    if version is None:
        yield Finding(State.MISSING, "driver", f"{driver} does not say its version", "install NVIDIA's driver again")
        return
    yield Finding(State.OK, "driver", f"{driver}, CUDA {version // 1000}.{version % 1000 // 10}")
    gpus, problem = find_gpus(driver)
    for arch, name in gpus:
        yield Finding(State.OK, "GPU", f"{name or 'unknown'} ({arch})")
    if not gpus:
        yield Finding(State.MISSING, "GPU", problem, "nvidia-smi should list one; in a container, start it with GPUs")


def _assemblers(version: int | None) -> Iterator[Finding]:
    """Yield the ptxas that is used, and the linker that some libraries need. version: of the driver."""
    # Imported here, since no other command of this module's importers needs it.
    from neutrino.toolchain.tool_choice import find_assembler, find_linker

    try:
        assembler = find_assembler(version)
    except ToolMissingError as error:
        yield Finding(State.MISSING, "ptxas", str(error), f"{_CUDA_EXTRA}, or name one in NEUTRINO_PTXAS")
        return
    yield Finding(State.OK, "ptxas", f"{assembler.path}, {assembler.name.removeprefix('ptxas ')}")
    try:
        linker = find_linker(assembler)
        yield Finding(State.OK, "nvlink", f"{linker.path}, {linker.name.removeprefix('nvlink ')}")
    except ToolMissingError as error:
        remedy = "only neutrino-patch needs it, for libraries that were linked on the device (nvcc -rdc=true)"
        yield Finding(State.OPTIONAL, "nvlink", str(error).partition(";")[0], remedy)


def _cache() -> Finding:
    """Whether there is a cache of twins (kernels with probes), in a folder of the user's own; without it each run is
    slow.
    """
    try:
        place = cache_place()
        root = private_folder(place.path)
    except (NeutrinoError, OSError) as error:
        return Finding(State.MISSING, "cache", str(error), "set XDG_CACHE_HOME to a folder of your own")
    problem = ""
    if not os.access(root, os.W_OK | os.X_OK):
        problem = f"{root} cannot be written"
    elif any(character in str(root) for character in ":$"):
        problem = f"the hook cannot be loaded from {root}, since that has a colon or dollar sign"
    if problem:
        return Finding(State.MISSING, "cache", problem, "set XDG_CACHE_HOME to another folder of your own")
    entries = [file.stat().st_size for file in root.glob("twins/*/*.twins")]
    size = f"twins of {len(entries):,} images, {sum(entries) / 1e6:,.1f} MB"
    instead = f" (not in the usual folder: {place.instead})" if place.instead else ""
    return Finding(State.OK, "cache", f"{root}, {size}{instead}")


def _embedded() -> Finding:
    """Whether the embedded device, which runs kernels on the CPU, was built. Not all users need it."""
    try:
        return Finding(State.OK, "embedded", f"{stand_in()}, for --device embedded")
    except NeutrinoError as error:
        return Finding(State.OPTIONAL, "embedded", str(error).partition(":")[0], "--device embedded needs it")
