"""Several processes that share a list of tasks, largest first if the caller sorted it so.

They end when the process that started them ends for any reason: a worker reads its tasks from a pipe whose other end
only that process holds. A worker and the tools that it starts are a process group, so that one signal ends all of them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn, TypeVar

from neutrino.errors import NeutrinoError

_Context = TypeVar("_Context")
_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

_PATIENCE_S = 10
_REMINDER_S = 0.5


_ending = threading.Event()
"""Set in a worker that has to end."""


class Slots:
    """A semaphore shared by this process and its workers: a thread holds a slot while it is in ``with``.

    count: at most 4096, which a pipe of any size holds.
    """

    def __init__(self, count: int) -> None:
        # A byte in the pipe is a slot that is free. Both ends can be handed on to a process, however it is started.
        self._free, self._freed = multiprocessing.Pipe(duplex=False)
        os.write(self._freed.fileno(), bytes(count))

    def __enter__(self) -> None:
        os.read(self._free.fileno(), 1)
        if _ending.is_set():
            # The slot was freed because another worker was ended; a tool that starts now would not be ended.
            self.__exit__()
            raise SystemExit

    def __exit__(self, *_: object) -> None:
        os.write(self._freed.fileno(), b"\0")

    def close(self) -> None:
        """Release the slot."""
        self._free.close()
        self._freed.close()


def share(
    prepare: Callable[[_Context], Callable[[_Task], _Result]],
    context: _Context,
    tasks: Sequence[_Task],
    workers: int,
    meanwhile: Callable[[], None] = lambda: None,
    unneeded: Sequence[int] = (),
) -> Iterator[tuple[int, _Result]]:
    """The result of each task, with its index, in the order in which they end.

    prepare: called once in each worker, gives the function that does a task. workers: 1, or a single task, needs no
    other process. meanwhile: called once they have started; it may start threads. unneeded: descriptors that workers
    must close, since a worker may outlive this process until its task is done. NeutrinoError, OSError and MemoryError
    of a task are raised here, and NeutrinoError for a worker that died; all workers have ended then, and also if the
    caller stops iterating.
    """
    if workers <= 1 or len(tasks) <= 1:
        function = prepare(context)
        meanwhile()
        for index, task in enumerate(tasks):
            yield index, function(task)
        return
    # A fork of a process with threads may hold their locks for ever.
    method = "fork" if threading.active_count() == 1 else "forkserver"
    # What a worker that had to be killed leaves goes with this folder.
    with tempfile.TemporaryDirectory(prefix="neutrino-", ignore_cleanup_errors=True) as scratch:
        crew = _Crew(multiprocessing.get_context(method), scratch, unneeded)
        try:
            for _ in range(min(workers, len(tasks))):
                crew.hire(prepare, context)
            yield from crew.work(tasks, meanwhile)
        finally:
            crew.dismiss()


class _Crew:
    def __init__(self, context: Any, scratch: str, unneeded: Sequence[int]) -> None:
        self._context = context
        self._scratch = scratch
        self._unneeded = unneeded
        self._workers: dict[Connection, BaseProcess] = {}

    def hire(self, prepare: Callable[[Any], Callable[[Any], Any]], context: Any) -> None:
        ours, theirs = self._context.Pipe()
        is_fork = self._context.get_start_method() == "fork"
        inherited = ([*self._workers, ours], self._unneeded) if is_fork else ([], ())
        arguments = (theirs, inherited, self._scratch, prepare, context)
        process = self._context.Process(target=_serve, args=arguments, daemon=True)
        process.start()
        theirs.close()
        # Here as well as there: whoever comes first, the group is there when it is to be ended.
        with contextlib.suppress(OSError):
            os.setpgid(process.pid, process.pid)
        self._workers[ours] = process

    def work(self, tasks: Sequence[Any], meanwhile: Callable[[], None]) -> Iterator[tuple[int, Any]]:
        waiting = iter(enumerate(tasks))
        busy: dict[Connection, int] = {}
        for connection in self._workers:
            self._give(connection, waiting, busy)
        meanwhile()
        while busy:
            for ready in wait(list(busy)):
                connection = next(item for item in busy if item is ready)
                index = busy.pop(connection)
                try:
                    failed, value = connection.recv()
                except EOFError:
                    self._report_death(connection)
                if failed:
                    raise value
                self._give(connection, waiting, busy)
                yield index, value

    def _give(self, connection: Connection, waiting: Iterator[tuple[int, Any]], busy: dict[Connection, int]) -> None:
        for index, task in waiting:
            try:
                connection.send(task)
            except BrokenPipeError:
                self._report_death(connection)
            busy[connection] = index
            return

    def _report_death(self, connection: Connection) -> NoReturn:
        process = self._workers[connection]
        process.join(_PATIENCE_S)
        status = process.exitcode
        how = f"by signal {-status}" if status is not None and status < 0 else f"with exit status {status}"
        memory = "; out of memory?" if status == -signal.SIGKILL else ""
        raise NeutrinoError(f"a worker process ended {how}{memory}")

    def dismiss(self) -> None:
        for connection, process in self._workers.items():
            connection.close()
            _signal_group(process, signal.SIGTERM)
        for process in self._workers.values():
            until = time.monotonic() + _PATIENCE_S
            while process.is_alive() and time.monotonic() < until:
                process.join(_REMINDER_S)
                # A tool that began while the worker was being ended has not had the signal.
                _signal_group(process, signal.SIGTERM)
            _signal_group(process, signal.SIGKILL)
            process.join()


def _signal_group(process: BaseProcess, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if process.pid is not None and process.is_alive():
            os.killpg(process.pid, number)


def _end(*_: object) -> NoReturn:
    # Once: reminders are for the tools. A function rather than SIG_IGN, which they would inherit.
    signal.signal(signal.SIGTERM, lambda *_: None)
    _ending.set()
    sys.exit(0)


def _serve(
    connection: Connection,
    inherited: tuple[Sequence[Connection], Sequence[int]],
    scratch: str,
    prepare: Callable[[Any], Callable[[Any], Any]],
    context: Any,
) -> None:
    """The main function of a worker. scratch: the folder of its temporary files."""
    tempfile.tempdir = scratch
    # Raised in the middle of a task, so that its temporary folders go.
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    connections, descriptors = inherited
    for other in connections:
        other.close()
    for descriptor in descriptors:
        os.close(descriptor)
    function: Callable[[Any], Any] | None = None
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        try:
            function = function or prepare(context)
            answer: tuple[bool, Any] = (False, function(task))
        except (NeutrinoError, OSError, MemoryError) as error:
            answer = (True, error)
        try:
            connection.send(answer)
        except BrokenPipeError:
            return
