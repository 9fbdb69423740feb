"""The listener: an idle process beside COMMAND that has hooked processes get the twins for which they ask.

It is started before COMMAND, as a grandchild of the process that then becomes COMMAND by exec. It does not import the
patcher; the maker does (``maker/maker_process.py``), to which it hands requests for twins over. For anything else it
forks a worker. A process that begins a trace sends a message; if the probe files name scripts, a worker then runs them
until that process has ended.
The listener ends when COMMAND, every process that has connected to it, and all workers have ended.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import struct
import tempfile
import time
from pathlib import Path

from neutrino.errors import NeutrinoError
from neutrino.late_dataclass import dataclass
from neutrino.maker.maker_process import hand_over
from neutrino.maker.messages import BEGIN_TRACE, LARGEST_IMAGE, MAKE, MAKE_AHEAD, REQUEST, REQUEST_MAGIC, receive
from neutrino.maker.serving import WORKER_LIMIT_S, TwinSettings, serve_twins, start_run_maker
from neutrino.places import run_parents, scratch_parent
from neutrino.run.clean_process import exec_clean, is_injected
from neutrino.run.folders import make_run_folder
from neutrino.run.scripts import LONGEST_PATH, NO_SCRIPTS, Scripts, attend
from neutrino.run.terminal import Unused

_CREDENTIALS = struct.Struct("iii")
"""Of a socket's peer: pid, user, group; ``struct ucred`` of unix(7)."""
_LONGEST_RUNTIME_PATH = 64
"""Bytes of XDG_RUNTIME_DIR that leave room for the name of a socket, whose path has at most 107 bytes."""
_BACKLOG = 64
"""Connections that may wait to be accepted."""


@dataclass(frozen=True)
class Settings:
    """What the listener of a run needs.

    twins: what its maker needs to make twins (instrumented kernels). scripts: those to run for every trace. unused:
    says it if no process has called by COMMAND's end; None to be silent. cache_lock: descriptor of a cache that is
    removed at the run's end, None for one that stays. lifeline: the reading end of a pipe; once all writing ends are
    closed, nobody asks any more. None: as long as there are processes that may ask.
    """

    twins: TwinSettings
    scripts: Scripts = NO_SCRIPTS
    unused: Unused | None = None
    cache_lock: int | None = None
    lifeline: int | None = None


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
    begun = _Begun(listening.fileno(), command_pidfd, pid, settings, folder, scratch, (lock, scratch_lock))
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                _detach(begun.descriptors)
                if is_injected(os.environ):
                    exec_clean(_resume_listener, begun, begun.descriptors)
                _serve_run(begun)
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


@dataclass(frozen=True)
class _Begun:
    """What the listener of a run begins with. listening, command_pidfd, locks: descriptors. pid: COMMAND's. folder: of
    the socket; scratch: for temporary files.
    """

    listening: int
    command_pidfd: int
    pid: int
    settings: Settings
    folder: Path
    scratch: Path
    locks: tuple[int, int]

    @property
    def descriptors(self) -> set[int]:
        """All that it needs open."""
        others = (self.settings.cache_lock, self.settings.lifeline)
        return {self.listening, self.command_pidfd, *self.locks, *(one for one in others if one is not None)}


def _resume_listener(begun: _Begun) -> None:
    """Be the listener of a run, in a new program. Does not return."""
    try:
        _serve_run(begun)
    finally:
        os._exit(0)


def _serve_run(begun: _Begun) -> None:
    """Serve as the listener of a run until nobody asks any more; remove what it has on disk."""
    settings = begun.settings
    # Of this process and all that it forks, so that nothing stays behind if they are killed.
    tempfile.tempdir = str(begun.scratch)
    _listen(socket.socket(fileno=begun.listening), begun.command_pidfd, begun.pid, settings)
    shutil.rmtree(begun.folder, ignore_errors=True)
    # The maker may still make what nobody waits for, and needs the folder.
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    shutil.rmtree(begun.scratch, ignore_errors=True)
    if settings.cache_lock is not None:
        shutil.rmtree(settings.twins.cache.root, ignore_errors=True)


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
    """Accept connections and have each served, until COMMAND, all callers and all workers have ended.

    A caller is a process of COMMAND that has connected to ask for twins (copies of kernels with probes). The listener
    itself stays small: it hands requests for twins on to the maker, a process that makes them for the whole run, and
    forks workers for others. command_pidfd, command_pid: of COMMAND; a pidfd is a descriptor that becomes readable when
    its process ends.
    """
    # COMMAND and all callers: pidfd to pid. A process is in it once, however often it calls, so that descriptors do not
    # run out.
    callers = {command_pidfd: command_pid}
    # pidfd to pid, or -pid to pid if no descriptor was free for a pidfd.
    workers: dict[int, int] = {}

    def begin() -> None:
        """Close, in each worker that the maker forks, what it has inherited open from the listener."""
        listening.close()
        os.close(command_pidfd)

    maker = start_run_maker(settings.twins, begin)
    poll = select.poll()
    poll.register(listening, select.POLLIN)
    poll.register(command_pidfd, select.POLLIN)
    if settings.lifeline is not None:
        poll.register(settings.lifeline, select.POLLIN)
    has_call = False
    # By descriptor: connections on which nothing has arrived yet, with the caller's pid and its pidfd.
    silent: dict[int, tuple[socket.socket, int, int | None]] = {}

    def serve_in_worker(connection: socket.socket, pid: int, caller: int | None, header: bytes) -> None:
        """Fork a worker that serves a connection. Without one it is closed, and this caller's kernels run unprobed."""
        try:
            worker = os.fork()
        except OSError:
            return
        if worker == 0:
            try:
                listening.close()
                for other, _, _ in silent.values():
                    other.close()
                signal.alarm(WORKER_LIMIT_S)
                serve(connection, settings, pid, caller, maker, header)
            finally:
                # Also after an error: the worker must not go on as a second listener.
                os._exit(0)
        descriptor = _watch(poll, worker)
        workers[-worker if descriptor is None else descriptor] = worker

    # The final poll finds a connection that was made while the last caller ended.
    while callers or workers or silent or poll.poll(0):
        # Without a pidfd, the end of a worker is noticed only by asking from time to time.
        timeout_ms = 500 if any(key < 0 for key in workers) else None
        ready = {descriptor for descriptor, _ in poll.poll(timeout_ms)}
        if settings.lifeline in ready:
            poll.unregister(settings.lifeline)
            # As if they had ended.
            ready |= callers.keys()
        for descriptor in ready & silent.keys():
            connection, pid, caller = silent.pop(descriptor)
            poll.unregister(descriptor)
            with connection:
                header = _head(connection)
                if not _asks_for_twins(header) or not hand_over(maker, connection, header, waits=False):
                    watched = caller is not None and callers.get(caller) == pid
                    serve_in_worker(connection, pid, caller if watched else None, header)
        _forget_ended(poll, ready, callers, workers)
        if listening.fileno() not in ready:
            continue
        try:
            connection, _ = listening.accept()
        except OSError:
            # No descriptor is free, until a worker or a caller ends.
            time.sleep(0.1)
            continue
        with contextlib.ExitStack() as closing:
            closing.enter_context(connection)
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
            # Whoever has connected sends its request at once, but may not have done so yet.
            closing.pop_all()
            silent[connection.fileno()] = connection, pid, caller
            poll.register(connection, select.POLLIN)
    if maker:
        maker.close()
    # Without any call no process of COMMAND has used a GPU, or none of those that did could reach the listener.
    if settings.unused:
        settings.unused.say(was_called=has_call)


def _head(connection: socket.socket) -> bytes:
    """Read the head of a request if all of it has arrived, else nothing: return it, or b""."""
    try:
        arrived = connection.recv(REQUEST.size, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        return connection.recv(REQUEST.size) if len(arrived) == REQUEST.size else b""
    except OSError:
        return b""


def _asks_for_twins(header: bytes) -> bool:
    """Whether a request is for twins (copies of kernels with probes). header: its head, or b""."""
    if not header:
        return False
    magic, kind, *_, size = REQUEST.unpack(header)
    return magic == REQUEST_MAGIC and kind in (MAKE, MAKE_AHEAD) and size <= LARGEST_IMAGE


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
    connection: socket.socket, settings: Settings, pid: int, caller: int | None, maker: socket.socket | None = None,
    header: bytes = b"",
) -> None:  # fmt: skip
    """Answer one request, in a worker process: send twins (copies of kernels with probes), or run a trace's scripts.

    connection: gets a cache entry, the twins of an image, or an error. pid: of the process that asks; 0 if it is in a
    PID namespace that is not visible from here. Then the end of its trace cannot be seen, so no script is run. caller:
    its pidfd, None if it has ended. maker: the socket of the process that makes twins for the run; without it they are
    made here. header: what was read of the request, its head or nothing. A malformed request is ignored.
    """
    head = header or receive(connection, REQUEST.size)
    if head is None:
        return
    # The pid in the request is of the caller's own namespace, so that the socket's is used.
    magic, kind, _pid, _key, _arch, _driver_version, _reserved, size = REQUEST.unpack(head)
    if magic == REQUEST_MAGIC and kind == BEGIN_TRACE and size <= LONGEST_PATH and settings.scripts:
        trace = Path(os.fsdecode(receive(connection, size) or b""))
        # The process does not wait for an answer.
        connection.close()
        if trace.is_absolute() and pid:
            # The scripts run as long as the program does; each has a time limit of its own.
            signal.alarm(0)
            attend(trace, caller, settings.scripts)
        return
    if _asks_for_twins(head) and not hand_over(maker, connection, head):
        serve_twins(connection, head, settings.twins)
