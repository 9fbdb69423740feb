"""Start COMMAND: checks, keys, the listener, the environment, and exec."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import signal
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from neutrino.cache.key import patcher_identity, run_key
from neutrino.cache.store import Cache
from neutrino.device.kind import DeviceKind
from neutrino.errors import NeutrinoError, ToolError
from neutrino.loader.driver import driver_version, find_driver, is_library
from neutrino.loader.embedded import EmbeddedDevice, stand_in
from neutrino.loader.install import install_hook, preload
from neutrino.loader.listener import Settings, start_listener
from neutrino.loader.scripts import NO_SCRIPTS, Scripts
from neutrino.private_files import cache_root, private_folder, read_private, write_private
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.selection import Selection
from neutrino.probing.writing import trace_text
from neutrino.ptx.snippets.lowering import lower
from neutrino.resources import tool_path
from neutrino.toolchain.choice import assembler_identity
from neutrino.version import __version__

_WITHOUT_ASSEMBLER = {
    DeviceKind.GPU: "kernels that are not in the cache run without probes",
    DeviceKind.EMBEDDED: "twins are made, but neither their registers nor their arithmetic is verified",
}


@dataclass(frozen=True)
class Request:
    """The user's settings of a run. pool: bytes of device memory for maps, None for the default.

    probes: None uses those of patched libraries. device: the embedded device instead of the machine's GPU; driver is
    ignored then. retarget: twins may be made from PTX of another architecture than the machine code's. scripts: False
    disables the probes' analyze hooks and callbacks.
    """

    command: list[str]
    probes: ProbeSet | None
    probe_names: tuple[str, ...]
    selection: Selection
    tracedir: Path = field(default_factory=lambda: Path("trace"))
    driver: Path | None = None
    device: EmbeddedDevice | None = None
    pool: int | None = None
    timeout: int | None = None
    save_temps: Path | None = None
    quiet: bool = False
    retarget: bool = False
    scripts: bool = True


def prepare(request: Request) -> dict[str, str]:
    """The environment to start COMMAND with; with probes the listener is running then.

    Without a driver the environment is this process's own, and a line on stderr says so. Raises NeutrinoError, OSError.
    """
    environment = dict(os.environ)
    kind = DeviceKind.EMBEDDED if request.device else DeviceKind.GPU
    driver = stand_in() if request.device else request.driver or find_driver(environment)
    if driver is None:
        say("no CUDA driver (libcuda.so.1) on this machine: COMMAND runs without probes; --device embedded needs none")
        return environment
    if not is_library(driver):
        raise NeutrinoError(f"--driver {driver}: not a 64-bit ELF library that can be read")
    try:
        tracedir = request.tracedir.absolute()
    except FileNotFoundError:
        raise NeutrinoError("the current folder no longer exists; give --tracedir an absolute path") from None
    _check_writable(f"--tracedir {tracedir}: no trace", tracedir)
    if request.save_temps:
        _check_writable(f"--save-temps {request.save_temps}: nothing", request.save_temps.absolute())
    with _naming_the_cache():
        cache = private_folder(cache_root())
        folder = install_hook(driver.absolute(), cache)
    environment |= request.device.environment(environment) if request.device else {}
    # From an enclosing run, whose probes are not this one's.
    for name in _RUN_VARIABLES:
        environment.pop(name, None)
    if request.probes is None:
        environment["NEUTRINO_AHEAD"] = "1"
    else:
        environment |= _run(request, request.probes, driver, kind, cache)
    environment |= {
        "LD_PRELOAD": preload(folder, environment.get("LD_PRELOAD", "")),
        "NEUTRINO_DRIVER": str(driver.absolute()),
        "NEUTRINO_TRACEDIR": str(tracedir),
        "NEUTRINO_VERSION": __version__,
    }
    for name, value in {
        "POOL": request.pool,
        "TIMEOUT": request.timeout,
        "QUIET": int(request.quiet) or None,
    }.items():
        if value is not None:
            environment[f"NEUTRINO_{name}"] = str(value)
    return environment


_RUN_VARIABLES = (
    "NEUTRINO_AHEAD", "NEUTRINO_KEY", "NEUTRINO_CACHE", "NEUTRINO_SOCKET", "NEUTRINO_PROBE_FILE", "NEUTRINO_PROBES",
    "NEUTRINO_READER",
)  # fmt: skip


def _run(request: Request, probes: ProbeSet, driver: Path, kind: DeviceKind, cache: Path) -> dict[str, str]:
    """The environment that configures the hook for a run with probes; the listener is running then."""
    version = driver_version(driver, cache)
    try:
        assembler = assembler_identity(version)
    except ToolError as error:
        say(f"{error}: {_WITHOUT_ASSEMBLER[kind]}")
        assembler = "none"
    # With --save-temps the stages must run, so the key is one that no other run has.
    made_for = f"{__version__} {os.urandom(16).hex() if request.save_temps else patcher_identity()}"
    # A run without it must not find these twins in the cache.
    made_for += " retarget" if request.retarget else ""
    key = run_key(probes.digest, request.selection.digest, assembler, made_for, kind)
    with _naming_the_cache():
        probe_file = _keep_probes(cache, probes)
    # On a GPU nothing is loaded that was not assembled: there a worker looks for an assembler all the same.
    assembled = request.device is None or assembler != "none"
    socket = start_listener(
        Settings(
            probes, request.selection, key, Cache(cache), request.save_temps, kind, assembled, request.retarget,
            Scripts.of(probes) if request.scripts else NO_SCRIPTS,
        )
    )  # fmt: skip
    return {
        "NEUTRINO_KEY": key.hex(),
        "NEUTRINO_CACHE": str(cache),
        "NEUTRINO_SOCKET": str(socket),
        "NEUTRINO_PROBE_FILE": str(probe_file),
        "NEUTRINO_PROBES": " ".join(request.probe_names),
        "NEUTRINO_READER": str(tool_path("read.py")),
    }


def start(request: Request) -> NoReturn:
    """Become COMMAND. Exits with 127 when it is not found and 126 when it cannot be run, as env(1) does."""
    _occupy_closed()
    # Looked up first: a command that cannot run needs no listener.
    program = _find_program(request.command[0])
    environment = prepare(request)
    # Python ignores these two, and a program inherits what is ignored: it would not end with `| head`.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        try:
            os.execve(program, request.command, environment)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            # A script without a first line that names its interpreter, as execvp(3) takes it.
            os.execve("/bin/sh", ["sh", program, *request.command[1:]], environment)
    except OSError as error:
        say(f"{request.command[0]}: {error.strerror}")
        raise SystemExit(126) from None


def say(line: str) -> None:
    """Print a message on stderr. If that is closed or full, COMMAND starts all the same."""
    # print() takes a closed stderr, which is None, for stdout: COMMAND's.
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(f"neutrino: {line}", file=sys.stderr, flush=True)


def _occupy_closed() -> None:
    """Keep our descriptors from becoming COMMAND's stdin, stdout or stderr, which stay closed if they were."""
    while (descriptor := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= 2:
        pass
    os.close(descriptor)


@contextlib.contextmanager
def _naming_the_cache() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # What private_folder itself found wrong is a whole sentence, without a number.
        if error.strerror is None:
            raise
        raise NeutrinoError(
            f"{cache_root()}: the cache cannot be there: {error.strerror}; set XDG_CACHE_HOME to a folder of your own"
        ) from error


def _find_program(name: str) -> str:
    folders = [""] if "/" in name else os.environ.get("PATH", os.defpath).split(os.pathsep)
    found = False
    for folder in folders:
        path = Path(folder or ".") / name if "/" not in name else Path(name)
        try:
            mode = path.stat().st_mode
        except OSError:
            continue
        found = found or stat.S_ISREG(mode) or "/" in name
        if stat.S_ISREG(mode) and os.access(path, os.X_OK):
            return str(path)
    say(f"{name}: {'cannot be executed' if found else 'command not found'}")
    raise SystemExit(126 if found else 127)


def _check_writable(what: str, folder: Path) -> None:
    """Raise NeutrinoError when nothing can be made in folder, or where it is to be made."""
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    try:
        with tempfile.TemporaryDirectory(prefix=".neutrino-", dir=nearest):
            pass
    except OSError as error:
        raise NeutrinoError(f"{what} can be written there: {error.strerror}") from error


def _keep_probes(cache: Path, probes: ProbeSet) -> Path:
    """The probes as a file that outlives this process: hooked processes copy it into their traces."""
    data = trace_text(lower(probes)).encode()
    # Not by what the probes mean: sets of one meaning differ in their scripts.
    path = private_folder(cache / "probes") / f"{hashlib.sha256(data).hexdigest()}.toml"
    # Most runs find it: a cache that is full, or read only by now, still serves them.
    if read_private(path) != data:
        write_private(path, data)
    return path
