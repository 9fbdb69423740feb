"""Cubins that a compiler has just written, found before the program loads them.

Compilers that are part of a program, such as XLA and Triton, run ``ptxas`` on a file in the folder for temporary files,
read the cubin that it writes beside it, and delete both. XLA does that for hundreds of kernels side by side, and then
loads one after the other. A process that watches the folder has the cubins before; their twins (instrumented kernels)
are made meanwhile, on processors that are idle.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import select
import signal
import socket
import stat
import struct
import time
from collections import deque
from pathlib import Path

_CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x8, 0x40, 0x80, 0x100, 0x200
_IS_FOLDER = 0x40000000
_ONLY_FOLDER = 0x01000000
"""Bits of inotify(7)."""
_EVENT = struct.Struct("iIII")
"""watch, mask, cookie, size of the name; ``struct inotify_event``."""
_EVENTS_AT_ONCE = 1 << 16
"""Bytes of events that are read at once."""
_HELD = 64
"""Files at most that are held open from their creation until they are written."""
_QUEUED = 512
"""Cubins at most that wait to be taken. Twins of later ones are made when the program loads them."""
_PAUSE_S = 0.02
_RENAMING = ("nfs", "cifs", "smb", "afs")
"""How the names of file systems begin that rename a file which is deleted while a descriptor holds it."""
_OCTAL = re.compile(r"\\([0-7]{3})")
_MACHINE_CUDA = b"\xbe\x00"
_LEAST_BYTES, _MOST_BYTES = 512, 4 << 20
"""Of a cubin. Those of programs that compile while they run are small; twins of a big one take long, maybe in vain."""


def watch(folder: Path, channel: socket.socket) -> None:
    """Send a descriptor of each cubin that the user's processes write in a folder, until nobody reads the channel.

    channel: of type SOCK_SEQPACKET; a message is one byte and one descriptor, which is good also when the file has been
    deleted. Nothing is opened but regular files of the user. Raises OSError if the folder cannot be watched.
    """
    if _renames(folder):
        return
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    notify = _start(folder)
    names = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    channel.setblocking(False)
    held: dict[bytes, int] = {}
    queue: deque[int] = deque()
    poll = select.poll()
    poll.register(notify, select.POLLIN)
    while True:
        # A channel that nobody reads any more is reported whatever is asked for.
        poll.register(channel, select.POLLOUT if queue else 0)
        ready = dict(poll.poll())
        if ready.get(channel.fileno(), 0) & (select.POLLHUP | select.POLLERR):
            return
        if notify in ready:
            for mask, name in _events(notify):
                _follow(mask, name, names, held, queue)
        _send(channel, queue)


def _renames(folder: Path) -> bool:
    """Return whether a folder's file system renames what is deleted while a descriptor holds it; True if not known.

    The program may then not be able to delete the folder.
    """
    path = os.path.realpath(folder)
    found, longest = "", -1
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return True
    for line in lines:
        # ID, parent, device, root, mount point, options, optional fields, "-", type: proc_pid_mountinfo(5).
        mount, _, rest = line.partition(" - ")
        point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), mount.split(" ")[4])
        # Of several at one point the last one is on top.
        if len(point) >= longest and (path + "/").startswith(point.rstrip("/") + "/"):
            found, longest = rest.split(" ")[0], len(point)
    return not found or found.startswith(_RENAMING)


def _start(folder: Path) -> int:
    """Return a descriptor from which events of the folder are read. Raises OSError."""
    # Only a process that watches needs it, and each run imports this module.
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = int(libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
    mask = ctypes.c_uint32(_CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _ONLY_FOLDER)
    if descriptor < 0 or libc.inotify_add_watch(descriptor, os.fsencode(folder), mask) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(folder))
    return descriptor


def _events(notify: int) -> list[tuple[int, bytes]]:
    """Return the events so far: their bits, and the name of the file in the folder; "" for an event of the folder."""
    try:
        data = os.read(notify, _EVENTS_AT_ONCE)
    except BlockingIOError:
        return []
    events, position = [], 0
    while position < len(data):
        _, mask, _, size = _EVENT.unpack_from(data, position)
        position += _EVENT.size
        events.append((mask, data[position : position + size].rstrip(b"\0")))
        position += size
    return events


def _follow(mask: int, name: bytes, names: int, held: dict[bytes, int], queue: deque[int]) -> None:
    """Hold a file that was created, or queue one that was written, if it is a cubin. names: the folder, opened."""
    if not name or mask & _IS_FOLDER:
        return
    descriptor = held.pop(name, None)
    if mask & (_DELETE | _MOVED_FROM):
        # Before it was written: not what a compiler does, and a descriptor would keep the file's space on disk.
        if descriptor is not None:
            os.close(descriptor)
        return
    # O_PATH opens nothing that another process could notice, such as a FIFO without a reader.
    if descriptor is None or mask & _CREATE:
        if descriptor is not None:
            os.close(descriptor)
        try:
            descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=names)
        except OSError:
            return
    if mask & _CREATE:
        held[name] = descriptor
        if len(held) > _HELD:
            os.close(held.pop(next(iter(held))))
        return
    try:
        cubin = _opened_cubin(descriptor) if len(queue) < _QUEUED else None
    finally:
        os.close(descriptor)
    if cubin is not None:
        queue.append(cubin)


def _opened_cubin(descriptor: int) -> int | None:
    """Return a descriptor to read a file from if it is a cubin of this user; None if it is not. descriptor: O_PATH."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        return None
    if not _LEAST_BYTES <= status.st_size <= _MOST_BYTES:
        return None
    try:
        opened = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOATIME)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        start = os.pread(opened, 20, 0)
        if start[:4] == b"\x7fELF" and start[18:20] == _MACHINE_CUDA:
            return opened
    os.close(opened)
    return None


def _send(channel: socket.socket, queue: deque[int]) -> None:
    """Send what is queued, as far as the channel takes it."""
    while queue:
        try:
            socket.send_fds(channel, [b"c"], [queue[0]])
        except OSError as error:
            if error.errno == errno.ETOOMANYREFS:
                # As many descriptors are on their way as a user may have.
                time.sleep(_PAUSE_S)
            elif error.errno != errno.EAGAIN:
                os.close(queue.popleft())
            return
        os.close(queue.popleft())


def start_watcher(folder: Path) -> socket.socket | None:
    """Start a process that watches a folder; return the socket from which ``received`` takes cubins.

    None if no process can be started. It ends when no process has that socket any more.
    """
    try:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        watcher = os.fork()
    except OSError:
        return None
    if watcher == 0:
        try:
            signal.alarm(0)
            ours.close()
            watch(folder, its)
        finally:
            os._exit(0)
    its.close()
    ours.setblocking(False)
    return ours


def received(channel: socket.socket) -> bytes | None:
    """Return the next cubin that has arrived; None if there is none, or another process has taken it.

    Raises EOFError when the watcher has ended.
    """
    try:
        message, descriptors, _, _ = socket.recv_fds(channel, 16, 1)
    except OSError:
        return None
    if not message:
        raise EOFError
    for descriptor in descriptors:
        try:
            return os.pread(descriptor, _MOST_BYTES, 0)
        except OSError:
            return None
        finally:
            os.close(descriptor)
    return None
