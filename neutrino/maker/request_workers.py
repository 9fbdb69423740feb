"""Workers that answer requests for twins (instrumented kernels): forked from the maker, one request at a time each.

A worker whose request was of one kernel waits for the next one, with what it has read of the image and computed so far;
others end, as what they need memory for may be large. A worker says over its link to the maker when it begins to
answer, and when it has done so. Then it may get the next request, though it may still have to finish something: it has
done that before another process could begin with what this one has in memory. Where none comes for long it ends, when
the maker agrees.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_LONGEST = 4096
"""Bytes of what is handed over with a connection, at most."""
_ANSWERING, _DONE, _IDLE = b"a", b"d", b"i"
_MOST_WAITING = 8
"""Workers that wait for a request, at most: processes of a program ask for single kernels, one at a time each."""
_LONGEST_WAIT_S = 30.0
"""For which a worker keeps its memory for a next request."""
_LARGEST = 1 << 30
"""Bytes of memory with which a worker ends."""
_PR_SET_PDEATHSIG = 1
"""prctl(2)."""


def nothing_left() -> None:
    """Do nothing: there is nothing left to be done."""


@dataclass(frozen=True)
class Answer:
    """What a request gets. data: bytes for the connection. may_go_on: whether the worker may answer another one.
    finish: what is to be done when the data have been sent."""

    data: bytes
    may_go_on: bool = False
    finish: Callable[[], None] = nothing_left


Serve = Callable[[socket.socket, bytes], "Answer | None"]
"""Reads a request from a connection, of which the second argument was read already, and returns the answer; None where
there is nothing to send."""


@dataclass
class _Worker:
    """A worker. link: to it. client: whom it serves, for the maker to notice that nobody waits any more; None if that
    does not matter. is_busy: whether it has a request. is_answering: whether the answer to that is being sent."""

    pid: int
    link: socket.socket
    client: socket.socket | None
    is_busy: bool = True
    is_answering: bool = False


class RequestWorkers:
    """The workers of a maker. serve: answers a request in a worker. channel: of the maker, which workers close. most:
    how many may be busy. ends_with_clients: whether a worker, and what it has started, is killed when whoever asked has
    closed the connection."""

    def __init__(
        self, serve: Serve, channel: socket.socket, poll: select.poll, most: int, *, ends_with_clients: bool
    ) -> None:
        """poll: in which links and clients are registered. Others: of the class."""
        self._serve = serve
        self._channel = channel
        self._poll = poll
        self._most = most
        self._ends_with_clients = ends_with_clients
        # By descriptor of the link.
        self._workers: dict[int, _Worker] = {}

    @property
    def busy(self) -> int:
        """How many have a request."""
        return sum(worker.is_busy for worker in self._workers.values())

    @property
    def have_room(self) -> bool:
        """Whether one more request may be handed over."""
        return self.busy < self._most

    def notice(self, ready: set[int]) -> None:
        """Note what workers have said, which of them have ended, and whose clients have gone. ready: descriptors of
        which poll has reported something."""
        for worker in list(self._workers.values()):
            is_gone = worker.client is not None and worker.client.fileno() in ready
            if worker.link.fileno() in ready or is_gone:
                self._hear(worker)
            # A client that has its answer goes, too.
            if is_gone and worker.client is not None:
                self._forget_client(worker)
                if not worker.is_answering:
                    kill_worker(worker.pid)

    def hand(self, connection: socket.socket, message: bytes) -> None:
        """Hand a connection to a worker, with what was read of its request; it is closed here. Without a process for it
        nobody answers."""
        worker = next((one for one in self._workers.values() if not one.is_busy), None)
        if worker is None or not _sent(worker.link, connection, message):
            worker = self._start(connection, message)
        if worker is None or not self._ends_with_clients:
            connection.close()
        else:
            worker.client = connection
            self._poll.register(connection, select.POLLRDHUP)
        if worker is not None:
            worker.is_busy, worker.is_answering = True, False

    def end(self) -> None:
        """Have the workers end that wait for requests, when they have finished."""
        for worker in self._workers.values():
            with contextlib.suppress(OSError):
                worker.link.shutdown(socket.SHUT_WR)
        for worker in self._workers.values():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(worker.pid, 0)

    def _start(self, connection: socket.socket, message: bytes) -> _Worker | None:
        """Fork a worker for a request; None if that is not possible."""
        maker = os.getpid()
        try:
            ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            return None
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            its.close()
            return None
        if pid == 0:
            try:
                begin_worker(maker)
                ours.close()
                self._channel.close()
                # Else these would not know when the maker wants them to end.
                for other in self._workers.values():
                    other.link.close()
                    if other.client is not None:
                        other.client.close()
                self._work(its, connection, message)
            finally:
                os._exit(0)
        its.close()
        worker = self._workers[ours.fileno()] = _Worker(pid, ours, None)
        self._poll.register(ours, select.POLLIN)
        return worker

    def _work(self, link: socket.socket, connection: socket.socket, message: bytes) -> None:
        """Answer requests, in a worker, until the maker wants no more."""
        waiting = select.poll()
        waiting.register(link, select.POLLIN)
        while True:
            with connection:
                answer = self._serve(connection, message)
                if answer is not None:
                    link.send(_ANSWERING)
                    # Whoever asked may have gone: a signal would end this process.
                    with contextlib.suppress(OSError):
                        connection.sendall(answer.data, socket.MSG_NOSIGNAL)
                goes_on = answer is not None and answer.may_go_on and _memory() <= _LARGEST
                # Before whoever asked sees the connection's end, and may ask for more.
                if goes_on:
                    link.send(_DONE)
            if answer is not None:
                answer.finish()
            signal.alarm(0)
            if not goes_on:
                return
            # From now on between requests: of a kernel there is little, and somebody waits.
            gc.disable()
            gc.collect(0)
            if not waiting.poll(1000 * _LONGEST_WAIT_S):
                # The maker may just hand something over: then that is read next, else the link's end.
                link.send(_IDLE)
            message, descriptors, _, _ = socket.recv_fds(link, _LONGEST, 1)
            if not descriptors:
                return
            connection = socket.socket(fileno=descriptors[0])

    def _hear(self, worker: _Worker) -> None:
        """Read all that a worker has said."""
        while True:
            try:
                said = worker.link.recv(1, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                said = b""
            if said == _ANSWERING:
                worker.is_answering = True
            elif said == _DONE:
                worker.is_busy = worker.is_answering = False
                self._forget_client(worker)
                if len(self._workers) - self.busy > _MOST_WAITING:
                    self._dismiss(worker)
            elif said == _IDLE:
                if not worker.is_busy:
                    self._dismiss(worker)
            else:
                self._forget(worker)
                return

    def _dismiss(self, worker: _Worker) -> None:
        """Have a worker end, which it does when it reads the link's end; then the link ends here, too."""
        worker.is_busy = True
        worker.link.shutdown(socket.SHUT_WR)

    def _forget(self, worker: _Worker) -> None:
        """A worker has ended, or is about to: it has closed its link."""
        del self._workers[worker.link.fileno()]
        self._poll.unregister(worker.link)
        worker.link.close()
        # Not to be killed any more.
        worker.is_answering = True
        self._forget_client(worker)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(worker.pid, 0)

    def _forget_client(self, worker: _Worker) -> None:
        """Close the maker's copy of the connection of a worker."""
        if worker.client is not None:
            self._poll.unregister(worker.client)
            worker.client.close()
            worker.client = None


def _sent(link: socket.socket, connection: socket.socket, message: bytes) -> bool:
    """Send a connection to a worker that waits; whether that was possible."""
    try:
        socket.send_fds(link, [message], [connection.fileno()], socket.MSG_NOSIGNAL)
    except OSError:
        return False
    return True


def _memory() -> int:
    """Return how many bytes of memory this process has."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def begin_worker(maker: int) -> None:
    """Make this process, a worker, one that ends with the maker, and lead a group of what it starts."""
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # A maker that ended before that sends no signal.
    if os.getppid() != maker:
        os._exit(0)


def kill_worker(worker: int) -> None:
    """Kill a worker, and what it has started, such as ptxas."""
    # It may not lead a group yet, and have started nothing.
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            kill(worker, signal.SIGKILL)
