"""The listener: an idle process beside COMMAND that forks a worker when a hooked process asks for twins.

It is started before COMMAND, as a grandchild of the process that then becomes COMMAND by exec. It does not import the
patcher; the maker does (``maker.py``), to which its workers hand requests for twins over. A process that begins a trace
sends a message; if the probe files name scripts, a worker then runs them until that process has ended. The listener
ends when COMMAND, every process that has connected to it, and all workers have ended.
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
from typing import TYPE_CHECKING

from neutrino.device.kind import DeviceKind
from neutrino.errors import NeutrinoError
from neutrino.loader.history import History
from neutrino.loader.maker import Ahead, hand_over, start_maker
from neutrino.loader.run_folder import make_run_folder
from neutrino.loader.run_probes import RunProbes
from neutrino.loader.scripts import LONGEST_PATH, NO_SCRIPTS, Scripts, attend
from neutrino.loader.unused import Terminal, Unused
from neutrino.maker.keys import image_key
from neutrino.maker.store import Cache
from neutrino.places import run_parents, scratch_parent
from neutrino.private_files import private_folder
from neutrino.probing.selection import Selection

if TYPE_CHECKING:
    from neutrino.backend.protocol import Tools
    from neutrino.twins.values import Twin

_REQUEST = struct.Struct("<8sII32s16sIIQ")
"""magic, kind, pid, key, arch, driver version, reserved, size of what follows; ``neutrino/abi/requests.py``."""
_CREDENTIALS = struct.Struct("iii")
"""Of a socket's peer: pid, user, group; ``struct ucred`` of unix(7)."""
_REPLY = struct.Struct("<8sIIQ")
"""magic, status, reserved, size of what follows: an entry or a text."""
_ENTRY_FOLLOWS, _TEXT_FOLLOWS, _MAY_BE_CACHED = 0, 1, 2
_REQUEST_MAGIC = b"NTASK\0\0\0"
_REPLY_MAGIC = b"NTREPLY\0"
_BEGIN_TRACE, _MAKE, _MAKE_AHEAD = 1, 2, 4
_LARGEST_IMAGE = 1 << 33
"""Bytes of an image that are accepted, at most."""
_LONGEST_RUNTIME_PATH = 64
"""Bytes of XDG_RUNTIME_DIR that leave room for the name of a socket, whose path has at most 107 bytes."""
_BACKLOG = 64
"""Connections that may wait to be accepted."""
_PIECE = 1 << 20
"""Bytes that are received at once, at most."""
_LONGEST_REASON = 4096
"""Bytes of the text that says why there is no entry, at most."""
_WORKER_LIMIT_S = 600
"""Seconds after which a worker is ended by SIGALRM."""


@dataclass(frozen=True)
class Settings:
    """What a worker needs to make twins (instrumented kernels).

    run_key: 32 bytes that identify the run's settings in keys of cache entries. save_temps: a folder for the output of
    each stage. device: whether the program runs on a GPU or on the emulator. assembled: False if the run's key was made
    without an assembler, so that no entry under it may be assembled. retarget: whether twins may be made from PTX of
    another architecture than the machine code's. max_registers: the user's register cap of twins, None without one.
    scripts: those to run for every trace. unused: says it if no process
    has called by COMMAND's end; None to be silent. compiled: the folder in which compilers of the program write, None
    to make nothing before it is asked for. driver_version: as of ``cuDriverGetVersion``, None if it is not known.
    history: of runs with this key, None where nothing is imported before twins are asked for. cache_lock: descriptor of
    a cache that is removed at the run's end, None for one that stays. waits: whether the program waits for its twins,
    so that none are made when it has ended. terminal: where to say that an assembler takes long, None to be silent.
    """

    probes: RunProbes
    selection: Selection
    run_key: bytes
    cache: Cache
    save_temps: Path | None
    device: DeviceKind = DeviceKind.GPU
    assembled: bool = True
    retarget: bool = False
    max_registers: int | None = None
    scripts: Scripts = NO_SCRIPTS
    unused: Unused | None = None
    compiled: Path | None = None
    driver_version: int | None = None
    history: History | None = None
    cache_lock: int | None = None
    waits: bool = False
    terminal: Terminal | None = None


def start_listener(settings: Settings, pid: int | None = None) -> Path:
    """Start the listener for this process, which will become COMMAND; return the path of its socket.

    The listener is a process that makes twins (instrumented kernels) when processes of COMMAND ask for them.
    pid: of another process that it is for. Raises NeutrinoError if the folder for the socket cannot be created, and
    OSError.
    """
    runtime = _runtime_folder()
    try:
        folder, lock = make_run_folder(Path(runtime))
    except OSError as error:
        raise NeutrinoError(f"{runtime}: no socket can be made there: {error.strerror}; set XDG_RUNTIME_DIR") from error
    temporary = scratch_parent()
    try:
        scratch, scratch_lock = make_run_folder(temporary)
    except OSError as error:
        raise NeutrinoError(f"{temporary}: no file can be made there: {error.strerror}; set TMPDIR") from error
    path = folder / "s"
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(path))
    listening.listen(_BACKLOG)
    # This process becomes COMMAND, so they are COMMAND's.
    pid = pid or os.getpid()
    command_pidfd = os.pidfd_open(pid)
    # Forked twice, so that the listener is not a child of COMMAND.
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                locks = {lock, scratch_lock} | ({settings.cache_lock} if settings.cache_lock is not None else set())
                _detach({listening.fileno(), command_pidfd, *locks})
                # Of this process and all that it forks, so that nothing stays behind if they are killed.
                tempfile.tempdir = str(scratch)
                _listen(listening, command_pidfd, pid, settings)
                shutil.rmtree(folder, ignore_errors=True)
                # The maker may still make what nobody waits for, and needs the folder.
                with contextlib.suppress(ChildProcessError):
                    while True:
                        os.wait()
                shutil.rmtree(scratch, ignore_errors=True)
                if settings.cache_lock is not None:
                    shutil.rmtree(settings.cache.root, ignore_errors=True)
        finally:
            # Also in the listener, after an error: it must never return into the code that starts COMMAND.
            os._exit(0)
    # If SIGCHLD is ignored, which COMMAND will inherit, the child is gone and there is nothing to wait for.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)
    listening.close()
    for descriptor in (command_pidfd, lock, scratch_lock):
        os.close(descriptor)
    return path


def _runtime_folder() -> str:
    """Return the folder for sockets, where no other user can put another in the place of one. Raises NeutrinoError."""
    for folder in run_parents():
        if len(os.fsencode(folder)) < _LONGEST_RUNTIME_PATH:
            return str(folder)
    raise NeutrinoError(
        "there is no safe place for a socket: others can write to XDG_RUNTIME_DIR and /tmp, or to a folder above; set"
        f" XDG_RUNTIME_DIR to a folder of your own, with a path of less than {_LONGEST_RUNTIME_PATH} bytes"
    )


def _detach(keep_open: set[int]) -> None:
    """Make this process independent of COMMAND: its files, its working directory and its signal settings.

    keep_open: descriptors that stay open. All others are closed, since the reader of a pipe waits until every copy of
    its writing end is closed.
    """
    # Descriptors 0 to 2, standard input, output and errors, must be open: else a socket would get such a number.
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    highest = max(keep_open) + 1
    for descriptor in range(3, highest):
        if descriptor not in keep_open:
            with contextlib.suppress(OSError):
                os.close(descriptor)
    os.closerange(highest, os.sysconf("SC_OPEN_MAX"))
    os.chdir("/")
    # Signals that COMMAND inherits as ignored or blocked would keep workers from ending, or from being waited for.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD,
                   signal.SIGALRM):  # fmt: skip
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _listen(listening: socket.socket, command_pidfd: int, command_pid: int, settings: Settings) -> None:
    """Accept connections and fork a worker for each, until COMMAND, all callers and all workers have ended.

    A caller is a process that has connected. command_pidfd, command_pid: of COMMAND. The listener itself stays small:
    the workers do what is asked for.
    """
    # COMMAND and all callers: pidfd to pid. A process is in it once, however often it calls, so that descriptors do not
    # run out.
    callers = {command_pidfd: command_pid}
    # pidfd to pid, or -pid to pid if no descriptor was free for a pidfd.
    workers: dict[int, int] = {}

    def make(connection: socket.socket, header: bytes) -> None:
        listening.close()
        os.close(command_pidfd)
        signal.alarm(_WORKER_LIMIT_S)
        serve_twins(connection, header, settings)

    def prepare(header: bytes | None) -> None:
        _prepare(header, settings)

    def make_ahead(header: bytes, cubin: bytes) -> None:
        _make_ahead(header, cubin, settings)

    ahead = Ahead(settings.compiled, make_ahead) if settings.compiled else None
    if history := settings.history:
        # Another size: the file is damaged, or of another version.
        expected = history.request if len(history.request) == _REQUEST.size else b""
        maker = start_maker(
            prepare, make, ahead, at_once=history.asks, expected=expected, asked=history.asked,
            ends_with_clients=settings.waits,
        )  # fmt: skip
    else:
        maker = start_maker(prepare, make, ahead, ends_with_clients=settings.waits)
    poll = select.poll()
    poll.register(listening, select.POLLIN)
    poll.register(command_pidfd, select.POLLIN)
    has_call = False
    # The final poll finds a connection that was made while the last caller ended.
    while callers or workers or poll.poll(0):
        # Without a pidfd, the end of a worker is noticed only by asking from time to time.
        timeout_ms = 500 if any(key < 0 for key in workers) else None
        ready = {descriptor for descriptor, _ in poll.poll(timeout_ms)}
        _forget_ended(poll, ready, callers, workers)
        if listening.fileno() not in ready:
            continue
        try:
            connection, _ = listening.accept()
        except OSError:
            # No descriptor is free, until a worker or a caller ends.
            time.sleep(0.1)
            continue
        with connection:
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            pid, user, _ = _CREDENTIALS.unpack(credentials)
            if user != os.geteuid():
                # Only this user's processes are served.
                continue
            has_call = True
            caller = next((pidfd for pidfd, caller_pid in callers.items() if caller_pid == pid), None)
            if caller is None:
                caller = _watch(poll, pid)
                if caller is not None:
                    callers[caller] = pid
            try:
                worker = os.fork()
            except OSError:
                # No process can be started: the connection is closed, and this caller's kernels run unprobed.
                continue
            if worker == 0:
                try:
                    listening.close()
                    signal.alarm(_WORKER_LIMIT_S)
                    serve(connection, settings, pid, caller, maker)
                finally:
                    # Also after an error: the worker must not go on as a second listener.
                    os._exit(0)
            descriptor = _watch(poll, worker)
            workers[-worker if descriptor is None else descriptor] = worker
    if maker:
        maker.close()
    # Every process that begins a trace calls, and one that has used the driver for nothing else at its end.
    if settings.unused:
        settings.unused.say(was_called=has_call)


def _forget_ended(poll: select.poll, ready: set[int], callers: dict[int, int], workers: dict[int, int]) -> None:
    """Remove the processes that have ended from callers, workers and poll, and close their pidfds.

    ready: descriptors that poll reported. callers: pidfd to pid. workers: pidfd to pid, or -pid to pid without a pidfd.
    """
    # All workers are asked, whatever poll reported; waitpid's first result is 0 for one that still runs.
    ended = []
    for key, worker_pid in list(workers.items()):
        ended_pid, _ = os.waitpid(worker_pid, os.WNOHANG)
        if ended_pid:
            del workers[key]
            ended.append(key)
    # Callers are not this process's children, so they cannot be waited for.
    for pidfd in ready & callers.keys():
        del callers[pidfd]
        ended.append(pidfd)
    for key in ended:
        # Those of workers without a pidfd are negative.
        if key >= 0:
            poll.unregister(key)
            os.close(key)


def _watch(poll: select.poll, pid: int) -> int | None:
    """Return a pidfd that poll reports when the process ends; None if it has ended, or no descriptor is free."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    poll.register(descriptor, select.POLLIN)
    return descriptor


def serve(
    connection: socket.socket, settings: Settings, pid: int, caller: int | None, maker: socket.socket | None = None
) -> None:
    """Answer one request, in a worker process: send a cache entry (twins of an image) or an error, or run a trace's
    scripts.

    pid: of the process that asks; 0 if it is in a PID namespace that is not visible from here. Then the end of its
    trace cannot be seen, so no script is run. caller: its pidfd, None if it has ended. maker: takes requests for twins,
    which are answered here without one. A malformed request is ignored.
    """
    header = _receive(connection, _REQUEST.size)
    if header is None:
        return
    # The pid in the request is of the caller's own namespace, so that the socket's is used.
    magic, kind, _pid, _key, _arch, _driver_version, _reserved, size = _REQUEST.unpack(header)
    if magic == _REQUEST_MAGIC and kind == _BEGIN_TRACE and size <= LONGEST_PATH and settings.scripts:
        trace = Path(os.fsdecode(_receive(connection, size) or b""))
        # The process does not wait for an answer.
        connection.close()
        if trace.is_absolute() and pid:
            # The scripts run as long as the program does; each has a time limit of its own.
            signal.alarm(0)
            attend(trace, caller, settings.scripts)
        return
    is_request = magic == _REQUEST_MAGIC and kind in (_MAKE, _MAKE_AHEAD) and size <= _LARGEST_IMAGE
    if is_request and not hand_over(maker, connection, header):
        serve_twins(connection, header, settings)


def _prepare(header: bytes | None, settings: Settings) -> None:
    """Import the patcher, find the assembler and make a twin, so that processes that are forked need not begin with
    that. header: of the first request, None if there was none yet.

    Raises NeutrinoError, OSError.
    """
    from neutrino.backend.registry import EMBEDDED_DEVICE, target_of_device
    from neutrino.maker.patcher import patch_image

    driver_version = _REQUEST.unpack(header)[5] or None if header else settings.driver_version
    patch_image(
        target_of_device(EMBEDDED_DEVICE).sample, settings.probes.probe_set, EMBEDDED_DEVICE,
        selection=settings.selection, assembler=None, key=bytes(32), device=DeviceKind.EMBEDDED,
    )  # fmt: skip
    _tools(EMBEDDED_DEVICE, driver_version, settings)


def serve_twins(connection: socket.socket, header: bytes, settings: Settings) -> None:
    """Answer a request for the twins of an image. header: what was read of the request; the image follows."""
    _, kind, _, key, arch, driver_version, _, size = _REQUEST.unpack(header)
    image = _receive(connection, size)
    if image is None:
        return
    device = arch.rstrip(b"\0").decode("ascii", "replace")
    status, answer = _ENTRY_FOLLOWS, b""
    # An entry is stored under the key, where other processes find it, so the key is not taken on trust.
    try:
        if image_key(settings.run_key, device, image) != key:
            raise NeutrinoError("the key does not fit the image")
        # What is not stored is made when it is asked for.
        if kind == _MAKE or settings.save_temps is None:
            answer = make_entry(image, device, driver_version or None, key, settings)
    except Exception as error:  # noqa: BLE001 - else the kernel's reason would be that this worker has exited
        status, answer = _TEXT_FOLLOWS, _reason(error)
    # Nobody may read the answer to a request that was made ahead, so that it must fit into the socket.
    if kind == _MAKE_AHEAD and status == _ENTRY_FOLLOWS:
        status, answer = _MAY_BE_CACHED, b""
    connection.sendall(_REPLY.pack(_REPLY_MAGIC, status, 0, len(answer)) + answer)


def _reason(error: Exception) -> bytes:
    """Return the line about an error that the hook shows as the reason of kernels."""
    # MemoryError has no text.
    line, *_ = str(error).splitlines() or [type(error).__name__]
    if not isinstance(error, (NeutrinoError, OSError, MemoryError)):
        line = f"a fault of Neutrino: {type(error).__name__}: {line}"
    # A path may hold bytes that are no UTF-8.
    return line.encode(errors="backslashreplace")[:_LONGEST_REASON]


def _make_ahead(header: bytes, cubin: bytes, settings: Settings) -> None:
    """Make the cache entry of a cubin that no process has asked for yet, if it holds its PTX. header: of a request."""
    from neutrino.backend.ptx_source import DEBUG_SECTION

    # The hook asks for no twins of others.
    if DEBUG_SECTION.encode() not in cubin:
        return
    if settings.history:
        settings.history.compiled(header)
    _, _, _, _, arch, driver_version, _, _ = _REQUEST.unpack(header)
    device = arch.rstrip(b"\0").decode("ascii", "replace")
    key = image_key(settings.run_key, device, cubin)
    # Whoever asks for it makes it again, and gets the error.
    with contextlib.suppress(NeutrinoError, OSError, MemoryError):
        make_entry(cubin, device, driver_version or None, key, settings)


def make_entry(image: bytes, arch: str, driver_version: int | None, key: bytes, settings: Settings) -> bytes:
    """Return the cache entry of an image, which has its twins: from the cache, or made and stored.

    Raises NeutrinoError, OSError. arch: of the device. driver_version: as in ``cuDriverGetVersion``, None if it is not
    known. key: of the entry, 32 bytes. Requests for the same key, also of other runs, wait for each other, so that the
    entry is made once. A cache that cannot be written is not an error. With save_temps nothing is stored, because no
    later run has this key.
    """
    with _key_lock(settings.cache.root, key):
        try:
            entry = settings.cache.read(key)
        except OSError:
            entry = None
        if entry is not None:
            # Made meanwhile by another worker: the caller has not found it in the cache.
            return entry
        # The maker has imported it; neither the listener nor a run whose twins are all cached needs the patcher.
        from neutrino.maker.patcher import patch_image

        entry = patch_image(
            image,
            settings.probes.probe_set,
            arch,
            selection=settings.selection,
            assembler=_tools(arch, driver_version, settings),
            key=key,
            device=settings.device,
            retarget=settings.retarget,
            max_registers=settings.max_registers,
            save_temps=settings.save_temps,
            notice=lambda twin: _say_long(twin, settings),
        )
        if settings.save_temps is None:
            with contextlib.suppress(OSError):
                settings.cache.write(key, entry)
        return entry


def _say_long(twin: Twin, settings: Settings) -> None:
    """Say on the terminal that a twin (instrumented kernel) takes the assembler long; once in a run, by any worker."""
    if settings.terminal is None:
        return
    # In the run's own folder for temporary files.
    path = Path(tempfile.gettempdir()) / "told"
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError:
        return
    settings.terminal.say(
        f"{twin.name}: {twin.length_warning}; -k and --filter choose kernels, and probes at fewer instructions make it "
        "shorter"
    )


_found: dict[tuple[str, int | None], Tools | None] = {}
"""Tools by the name of their target and the driver's version."""


def _tools(arch: str, driver_version: int | None, settings: Settings) -> Tools | None:
    """Return the tools for devices of an architecture and a driver; None if nothing is to be assembled.

    Raises ToolMissingError.
    """
    if not settings.assembled:
        return None
    from neutrino.backend.registry import target_of_device

    target = target_of_device(arch)
    key = target.name, driver_version
    if key not in _found:
        _found[key] = target.run_tools(driver_version)
    return _found[key]


@contextlib.contextmanager
def _key_lock(root: Path, key: bytes) -> Iterator[None]:
    """Hold the lock file of a key during the block, so that only one process at a time makes that cache entry.

    root: the cache's folder; if it is not writable, nothing is locked.
    """
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
        # A process that has the removed file open and one that creates it anew then do not wait for each other. That is
        # right, since the entry is in the cache now.
        with contextlib.suppress(OSError):
            (folder / key.hex()).unlink()
    finally:
        os.close(descriptor)


def _receive(connection: socket.socket, size: int) -> bytes | None:
    """Receive exactly size bytes; None if the connection ends earlier."""
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(min(size - len(data), _PIECE))
        if not piece:
            return None
        data += piece
    return bytes(data)
