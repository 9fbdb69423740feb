"""The maker: a process that has the patcher imported, and forks workers that answer requests for twins (instrumented
kernels).

The listener starts it, idle, and workers of the listener hand connections over to it. So a run whose twins are all
cached imports no patcher, and others do once: at the first request, or while the program starts if twins are likely to
be missing. At most one worker is busy for each processor; more requests wait, in their order.

From the first request on, other workers make twins of the cubins that compilers of the program write
(``compiled_cubins.py``), before the program asks for them; from the start on, if an earlier run has left what the first
request will be. These have a low priority, so that the program's own compilers go first.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from neutrino.maker.compiled_cubins import received, start_watcher
from neutrino.maker.request_workers import RequestWorkers, Serve, begin_worker, kill_worker

_LONGEST = 4096
"""Bytes of what is handed over with a connection, at most."""
_LEAST_PROCESSORS = 4
"""With fewer, nothing is imported or made ahead: the program needs them."""
_NICE = 3
"""Of the workers that make twins ahead. A request for the same twins waits for them, so not much more."""
_PAUSE_S = 0.02
"""Between the starts of workers that make twins ahead: the first may have taken all there is."""
_LIMIT_S = 120
"""Seconds after which such a worker is ended by SIGALRM, if it still makes the same twins."""


@dataclass(frozen=True)
class Ahead:
    """What is made before it is asked for: twins (instrumented kernels) of cubins that compilers write in a folder.

    make: makes those of a cubin, in a worker. It gets the cubin, and the first request's message.
    """

    folder: Path
    make: Callable[[bytes, bytes], None]


def start_maker(
    prepare: Callable[[bytes | None], None],
    serve: Serve,
    ahead: Ahead | None = None,
    *,
    at_once: bool = False,
    expected: bytes = b"",
    asked: Callable[[bytes], None] = lambda _: None,
    ends_with_clients: bool = False,
) -> socket.socket | None:
    """Start the maker; return the socket for ``hand_over``, None if no process can be started.

    The maker ends when no process has that socket any more and its workers have ended. prepare: called in the maker
    with what was handed over with the first request, or None before that; what it imports and computes, all workers
    have. serve: answers a request, in a worker; gets the connection and what was handed over. ahead: what is made
    without one, or None. at_once: whether not to wait for the first request, if there are enough processors.
    expected: what is likely to be handed over with the first request, b"" if that is not known; with at_once, twins are
    then made ahead from the start on. asked: called in the maker with what was handed over with the first request.
    ends_with_clients: whether a worker, and what it has started, is killed when the process that asked has closed the
    connection; else the twins are made for the next run.
    """
    try:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        maker = os.fork()
    except OSError:
        return None
    if maker == 0:
        try:
            ours.close()
            _make(
                its, prepare, serve, ahead, at_once=at_once, expected=expected, asked=asked,
                ends_with_clients=ends_with_clients,
            )  # fmt: skip
        finally:
            # Also after an error: it must not go on as a second listener.
            os._exit(0)
    its.close()
    return ours


def hand_over(
    maker: socket.socket | None, connection: socket.socket, message: bytes, *, waits: bool = True
) -> bool:  # fmt: skip
    """Hand a connection over to the maker, with the message that was read from it; whether that was possible. waits:
    while so many others wait that there is no room."""
    if maker is None:
        return False
    try:
        socket.send_fds(maker, [message], [connection.fileno()], 0 if waits else socket.MSG_DONTWAIT)
    except OSError:
        return False
    return True


def _make(
    channel: socket.socket,
    prepare: Callable[[bytes | None], None],
    serve: Serve,
    ahead: Ahead | None,
    *,
    at_once: bool,
    expected: bytes,
    asked: Callable[[bytes], None],
    ends_with_clients: bool,
) -> None:
    """Serve as the maker process: have a worker answer on each connection (a request for twins) that arrives on the
    channel, until no more can arrive."""
    most = len(os.sched_getaffinity(0))
    poll = select.poll()
    workers = RequestWorkers(serve, channel, poll, most, ends_with_clients=ends_with_clients)
    is_open = True
    has_spare = most >= _LEAST_PROCESSORS
    is_prepared = at_once and has_spare
    # Before the imports, for which it would be large.
    cubins = start_watcher(ahead.folder) if ahead and is_prepared else None
    if is_prepared:
        _prepare(prepare, None)
    is_first = True
    workers_ahead: _WorkersAhead | None = None
    if ahead and cubins and expected:
        workers_ahead = _WorkersAhead(cubins, partial(ahead.make, expected), most)
    while is_open or workers.busy:
        # Further requests wait in the channel.
        if is_open and workers.have_room:
            poll.register(channel, select.POLLIN)
        else:
            with contextlib.suppress(KeyError):
                poll.unregister(channel)
        timeout_ms = workers_ahead.expect(poll) if workers_ahead is not None else None
        ready = {descriptor for descriptor, _ in poll.poll(timeout_ms)}
        workers.notice(ready)
        if workers_ahead is not None and workers_ahead.cubins.fileno() in ready:
            workers_ahead.start(channel)
        if channel.fileno() not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(channel, _LONGEST, 1)
        if not message or not descriptors:
            is_open = bool(message)
            continue
        if is_first:
            is_first = False
            asked(message)
            if not is_prepared:
                cubins = start_watcher(ahead.folder) if ahead and has_spare else None
                _prepare(prepare, message)
            if ahead and cubins and workers_ahead is None:
                workers_ahead = _WorkersAhead(cubins, partial(ahead.make, message), most)
        workers.hand(socket.socket(fileno=descriptors[0]), message)
    if workers_ahead is not None:
        workers_ahead.kill()
    workers.end()


def _prepare(prepare: Callable[[bytes | None], None], message: bytes | None) -> None:
    """Import and compute what all worker processes need, before they are forked."""
    # NumPy would start a thread for each processor.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    # What cannot be prepared, the workers find out.
    with contextlib.suppress(Exception):
        prepare(message)
    # What the garbage collector does not look at is not copied in workers.
    gc.freeze()


class _WorkersAhead:
    """Workers that make the twins of cubins as they arrive; each takes the next one when it has made one.

    cubins: from which they arrive. make: makes the twins of one. most: how many workers there may be.
    """

    def __init__(self, cubins: socket.socket, make: Callable[[bytes], None], most: int) -> None:
        """Prepare to start worker processes that make the twins (copies with probes) of images before these are asked
        for.

        cubins: the socket from which the images arrive. make: makes the twins of one. most: how many workers may be
        started.
        """
        self.cubins = cubins
        self._make = make
        self._left = most
        self._next_s = 0.0
        self._workers: list[int] = []
        # Its writing end is closed when this process ends: the workers end then.
        self._alive, self._ours = os.pipe2(os.O_CLOEXEC)

    def expect(self, poll: select.poll) -> int | None:
        """Have poll report cubins if a worker may be started; return how many milliseconds to wait, None for ever."""
        wait_s = self._next_s - time.monotonic()
        if self._left and wait_s <= 0:
            poll.register(self.cubins, select.POLLIN)
            return None
        with contextlib.suppress(KeyError):
            poll.unregister(self.cubins)
        return math.ceil(wait_s * 1000) if self._left else None

    def start(self, channel: socket.socket) -> None:
        """Start one more worker. channel: what the worker closes."""
        self._next_s = time.monotonic() + _PAUSE_S
        maker = os.getpid()
        try:
            worker = os.fork()
        except OSError:
            self._left = 0
            return
        self._left -= 1
        if worker:
            self._workers.append(worker)
            return
        try:
            begin_worker(maker)
            channel.close()
            os.close(self._ours)
            os.nice(_NICE)
            self._work()
        finally:
            os._exit(0)

    def kill(self) -> None:
        """End the workers, and what they have started: nobody is left to ask for what they make."""
        for worker in self._workers:
            kill_worker(worker)

    def _work(self) -> None:
        """Make twins until the maker or the watcher has ended."""
        poll = select.poll()
        poll.register(self.cubins, select.POLLIN)
        poll.register(self._alive, select.POLLIN)
        with contextlib.suppress(EOFError):
            while True:
                signal.alarm(0)
                if self._alive in dict(poll.poll()):
                    return
                cubin = received(self.cubins)
                signal.alarm(_LIMIT_S)
                if cubin is not None:
                    self._make(cubin)
