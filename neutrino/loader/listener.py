"""The listener: an idle process beside COMMAND that forks a worker when a hooked process asks for twins.

It is started before COMMAND, as a grandchild, and COMMAND then takes over the pid. It imports no patcher itself; the
workers do. A process that begins a trace says so; where the probe files name scripts, a worker then stays until that
process has ended and runs them. The listener ends when COMMAND, every process that has talked to it and its workers
have ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import signal
import socket
import struct
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from neutrino.cache.key import image_key
from neutrino.cache.store import Cache
from neutrino.device.kind import DeviceKind
from neutrino.errors import NeutrinoError
from neutrino.loader.scripts import LONGEST_PATH, NO_SCRIPTS, Scripts, attend
from neutrino.private_files import private_folder
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.probing.selection import Selection

_REQUEST = struct.Struct("<8sII32s16sIIQ")
_REPLY = struct.Struct("<8sIIQ")
_REQUEST_MAGIC = b"NTASK\0\0\0"
_REPLY_MAGIC = b"NTREPLY\0"
_BEGIN_TRACE, _MAKE = 1, 2
_LARGEST_IMAGE = 1 << 33
_WORKER_LIMIT_S = 600


@dataclass(frozen=True)
class Settings:
    """What a worker needs: the run's probes and selection, its 32-byte key, the cache, where to dump stages.

    retarget: twins may be made from PTX of another architecture than the machine code's.
    assembled: False where the run's key was made without an assembler, so that no entry under it has seen one.
    scripts: run for every trace.
    """

    probes: ProbeSet
    selection: Selection
    run_key: bytes
    cache: Cache
    save_temps: Path | None
    device: DeviceKind = DeviceKind.GPU
    assembled: bool = True
    retarget: bool = False
    scripts: Scripts = NO_SCRIPTS


def start_listener(settings: Settings) -> Path:
    """Start it for this process, which will become COMMAND. Returns the path of its socket.

    Raises NeutrinoError if the socket cannot be created, and OSError.
    """
    runtime = _runtime_folder()
    try:
        folder = Path(tempfile.mkdtemp(prefix="neutrino-", dir=runtime))
    except OSError as error:
        raise NeutrinoError(
            f"{runtime}: no socket can be made there: {error.strerror}; set XDG_RUNTIME_DIR"
        ) from error
    path = folder / "s"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(path))
    listening.listen(64)
    pid = os.getpid()
    command = os.pidfd_open(pid)
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                _detach({listening.fileno(), command})
                _listen(listening, command, pid, settings)
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os._exit(0)
    # There is nothing to wait for where SIGCHLD is ignored, as COMMAND is to inherit it.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)
    listening.close()
    os.close(command)
    return path


def _runtime_folder() -> str:
    # A socket's path has at most 107 bytes, so a long TMPDIR will not do.
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    usable = runtime.startswith("/") and len(os.fsencode(runtime)) < 64 and os.access(runtime, os.W_OK)
    return runtime if usable else "/tmp"


def _detach(kept: set[int]) -> None:
    """Close COMMAND's files: a pipe that stays open here would never end for its reader."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    highest = max(kept) + 1
    for descriptor in range(3, highest):
        if descriptor not in kept:
            with contextlib.suppress(OSError):
                os.close(descriptor)
    os.closerange(highest, os.sysconf("SC_OPEN_MAX"))
    os.chdir("/")
    # What COMMAND is to have ignored or blocked would keep workers from ending, or from being waited for.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD,
                   signal.SIGALRM):  # fmt: skip
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _listen(listening: socket.socket, command: int, pid_of_command: int, settings: Settings) -> None:
    # Every process once, however often it calls: a descriptor a call would run out.
    watched = {command: pid_of_command}
    # By the descriptor that signals its end, or by a number below 0 if no descriptor was free for that.
    workers: dict[int, int] = {}
    poll = select.poll()
    poll.register(listening, select.POLLIN)
    poll.register(command, select.POLLIN)
    # The last poll: a call that came while the last of them ended.
    while watched or workers or poll.poll(0):
        ready = {descriptor for descriptor, _ in poll.poll(500 if any(key < 0 for key in workers) else None)}
        ended = [key for key, pid in workers.items() if os.waitpid(pid, os.WNOHANG)[0]]
        for key in ended:
            del workers[key]
        for key in ready & watched.keys():
            del watched[key]
            ended.append(key)
        for key in ended:
            if key >= 0:
                poll.unregister(key)
                os.close(key)
        if listening.fileno() not in ready:
            continue
        try:
            connection, _ = listening.accept()
        except OSError:
            # No descriptor is free: a worker or a process that ends gives one back.
            time.sleep(0.1)
            continue
        with connection:
            pid, user, _ = struct.unpack("iii", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if user != os.getuid():
                continue
            caller = next((key for key, number in watched.items() if number == pid), None)
            if caller is None:
                caller = _watch(poll, pid)
                if caller is not None:
                    watched[caller] = pid
            try:
                worker = os.fork()
            except OSError:
                # No process can be started: this caller's kernels run unprobed.
                continue
            if worker == 0:
                try:
                    listening.close()
                    signal.alarm(_WORKER_LIMIT_S)
                    serve(connection, settings, pid, caller)
                finally:
                    os._exit(0)
            descriptor = _watch(poll, worker)
            workers[-worker if descriptor is None else descriptor] = worker


def _watch(poll: select.poll, pid: int) -> int | None:
    """A descriptor that is ready when the process ends, in poll; None where there is none."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    poll.register(descriptor, select.POLLIN)
    return descriptor


def serve(connection: socket.socket, settings: Settings, pid: int, caller: int | None) -> None:
    """Answer one request: send the entry, or why there is none; or run the scripts of a trace, until it has ended.

    pid: of the process that asks, 0 where it is in a PID namespace that is not visible from here: then nothing shows
    when its trace has ended, and no script is run. caller: a pidfd of it, None where it has ended.
    """
    header = _receive(connection, _REQUEST.size)
    if header is None:
        return
    magic, kind, _pid, key, arch, driver_version, _reserved, size = _REQUEST.unpack(header)
    if magic == _REQUEST_MAGIC and kind == _BEGIN_TRACE and size <= LONGEST_PATH and settings.scripts:
        trace = Path(os.fsdecode(_receive(connection, size) or b""))
        connection.close()
        if trace.is_absolute() and pid:
            signal.alarm(0)
            attend(trace, caller, settings.scripts)
        return
    if magic != _REQUEST_MAGIC or kind != _MAKE or size > _LARGEST_IMAGE:
        return
    image = _receive(connection, size)
    if image is None:
        return
    device = arch.rstrip(b"\0").decode("ascii", "replace")
    try:
        if image_key(settings.run_key, device, image) != key:
            raise NeutrinoError("the key does not fit the image")
        entry = make_entry(image, device, driver_version or None, key, settings)
    except (NeutrinoError, OSError, MemoryError) as error:
        message = str(error).splitlines()[0].encode() if str(error) else type(error).__name__.encode()
        connection.sendall(_REPLY.pack(_REPLY_MAGIC, 1, 0, len(message)) + message)
        return
    connection.sendall(_REPLY.pack(_REPLY_MAGIC, 0, 0, len(entry)) + entry)


def make_entry(image: bytes, arch: str, driver_version: int | None, key: bytes, settings: Settings) -> bytes:
    """The cache entry of an image: from the cache, or made and stored. Raises NeutrinoError, OSError.

    Requests for one key, of this run or another, wait for each other, so that it is made once. A cache that cannot be
    written costs only the next run's time. With save_temps nothing is stored: no later run has this key.
    """
    with _locked(settings.cache.root, key):
        try:
            entry = settings.cache.read(key)
        except OSError:
            entry = None
        if entry is not None:
            return entry
        # Imported by workers alone: a run whose twins are cached starts none.
        from neutrino.patch.image import patch_image
        from neutrino.toolchain.choice import find_assembler

        entry = patch_image(
            image,
            settings.probes,
            arch,
            selection=settings.selection,
            assembler=find_assembler(driver_version) if settings.assembled else None,
            key=key,
            device=settings.device,
            retarget=settings.retarget,
            save_temps=settings.save_temps,
        )
        if settings.save_temps is None:
            with contextlib.suppress(OSError):
                settings.cache.write(key, entry)
        return entry


@contextlib.contextmanager
def _locked(root: Path, key: bytes) -> Iterator[None]:
    try:
        private_folder(root)
        folder = private_folder(root / "locks")
        descriptor = os.open(folder / key.hex(), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        yield
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        with contextlib.suppress(OSError):
            (folder / key.hex()).unlink()
    finally:
        os.close(descriptor)


def _receive(connection: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(min(size - len(data), 1 << 20))
        if not piece:
            return None
        data += piece
    return bytes(data)
