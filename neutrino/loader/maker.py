"""The maker: a process that has the patcher imported, and forks a worker for each request for twins (instrumented
kernels).

The listener starts it, idle, and workers of the listener hand connections over to it. So a run whose twins are all
cached imports no patcher, and others do once. At most one worker runs for each processor; more requests wait, in their
order.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import socket
from collections.abc import Callable

_LONGEST = 4096
"""Bytes of what is handed over with a connection, at most."""
_WITHOUT_PIDFD_MS = 500
"""How often workers that have no pidfd are asked whether they have ended."""


def start_maker(
    prepare: Callable[[bytes], None], serve: Callable[[socket.socket, bytes], None]
) -> socket.socket | None:
    """Start the maker; return the socket for ``hand_over``, None if no process can be started.

    The maker ends when no process has that socket any more and its workers have ended. prepare: called in the maker
    with what was handed over with the first request; what it imports and computes, all workers have. serve: answers a
    request, in a worker of its own; gets the connection and what was handed over.
    """
    try:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        maker = os.fork()
    except OSError:
        return None
    if maker == 0:
        try:
            ours.close()
            _make(its, prepare, serve)
        finally:
            # Also after an error: it must not go on as a second listener.
            os._exit(0)
    its.close()
    return ours


def hand_over(maker: socket.socket | None, connection: socket.socket, message: bytes) -> bool:
    """Hand a connection over to the maker, with the message that was read from it; whether that was possible."""
    if maker is None:
        return False
    try:
        socket.send_fds(maker, [message], [connection.fileno()])
    except OSError:
        return False
    return True


def _make(
    channel: socket.socket, prepare: Callable[[bytes], None], serve: Callable[[socket.socket, bytes], None]
) -> None:
    """Fork a worker for each connection that arrives, until no more can arrive."""
    most = len(os.sched_getaffinity(0))
    # By pidfd, or -pid without one.
    workers: dict[int, int] = {}
    poll = select.poll()
    is_open = True
    is_prepared = False
    while is_open or workers:
        # Further requests wait in the channel.
        if is_open and len(workers) < most:
            poll.register(channel, select.POLLIN)
        else:
            with contextlib.suppress(KeyError):
                poll.unregister(channel)
        timeout_ms = _WITHOUT_PIDFD_MS if any(key < 0 for key in workers) else None
        ready = {descriptor for descriptor, _ in poll.poll(timeout_ms)}
        _forget_ended(poll, workers)
        if channel.fileno() not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(channel, _LONGEST, 1)
        if not message or not descriptors:
            is_open = bool(message)
            continue
        if not is_prepared:
            is_prepared = True
            # NumPy would start a thread for each processor.
            os.environ["OPENBLAS_NUM_THREADS"] = "1"
            # What cannot be prepared, the workers find out.
            with contextlib.suppress(Exception):
                prepare(message)
            # What the garbage collector does not look at is not copied in workers.
            gc.freeze()
        with socket.socket(fileno=descriptors[0]) as connection:
            _fork(connection, message, channel, serve, poll, workers)


def _fork(
    connection: socket.socket, message: bytes, channel: socket.socket, serve: Callable[[socket.socket, bytes], None],
    poll: select.poll, workers: dict[int, int],
) -> None:  # fmt: skip
    """Fork a worker that serves a connection, and add it to poll and workers. Without one the connection is closed."""
    try:
        worker = os.fork()
    except OSError:
        return
    if worker == 0:
        try:
            channel.close()
            serve(connection, message)
        finally:
            os._exit(0)
    try:
        key = os.pidfd_open(worker)
        poll.register(key, select.POLLIN)
    except OSError:
        key = -worker
    workers[key] = worker


def _forget_ended(poll: select.poll, workers: dict[int, int]) -> None:
    """Remove the workers that have ended."""
    for key, worker in list(workers.items()):
        ended, _ = os.waitpid(worker, os.WNOHANG)
        if not ended:
            continue
        del workers[key]
        if key >= 0:
            poll.unregister(key)
            os.close(key)
