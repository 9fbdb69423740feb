"""Worker processes that share a list of tasks, and the slots that limit how many tools run at once.

The workers end when the process that started them ends for any reason: a worker reads its tasks from a pipe whose other
end only that process holds. A worker and the tools that it starts are a process group, so that one signal ends them.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
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
from neutrino.places import scratch_parent

_Context = TypeVar("_Context")
_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

_END_TIMEOUT_S = 10
"""Seconds that a worker gets to end after SIGTERM."""
_SIGNAL_INTERVAL_S = 0.5
"""Seconds after which SIGTERM is repeated."""
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""What ends a worker; blocked while one is started, until it has its own handlers (see ``start_worker``)."""


_ending = threading.Event()
"""Set by ``_end`` in a worker that has to end; its threads that wait for one of the ``Slots`` then exit, too."""


class Slots:
    """A semaphore shared by this process and its workers: a thread holds a slot while it is in ``with``.

    reader, writer: a pipe, in which each byte is a free slot.
    """

    def __init__(self, count: int) -> None:
        """Set up a semaphore shared with worker processes. count: number of slots, at most 4096, which a pipe of any
        size holds."""
        # Both ends can be passed to a process, however it is started.
        self._reader, self._writer = multiprocessing.Pipe(duplex=False)
        os.write(self._writer.fileno(), bytes(count))

    def __enter__(self) -> None:
        """Wait for a free slot and take it. Raises SystemExit in a worker that has to end."""
        os.read(self._reader.fileno(), 1)
        if _ending.is_set():
            # The slot became free because another worker was ended. A tool that started now would not be.
            self.__exit__()
            raise SystemExit

    def __exit__(self, *_: object) -> None:
        """Give the slot (the right to run one assembler) back to all processes."""
        os.write(self._writer.fileno(), b"\0")

    def close(self) -> None:
        """Close the pipe, when no thread uses the slots any more."""
        self._reader.close()
        self._writer.close()


def processors() -> int:
    """Return how many processors this process may use: so many worker processes have one each."""
    return len(os.sched_getaffinity(0))


def share(
    prepare: Callable[[_Context], Callable[[_Task], _Result]],
    context: _Context,
    tasks: Sequence[_Task],
    workers: int,
    meanwhile: Callable[[], None] = lambda: None,
    unneeded: Sequence[int] = (),
) -> Iterator[tuple[int, _Result]]:
    """Run tasks in worker processes; yield (index, result) of each in the order in which they finish.

    Tasks are started in the order given. prepare: called with context once in each worker, returns the function that
    runs a task. workers: number of processes; with 1, or a single task, everything runs in this process. meanwhile:
    called once the workers have started; it may start threads. unneeded: file descriptors of this process that workers
    must close, since a worker may outlive this process until its task is done.

    A task's NeutrinoError, OSError or MemoryError is raised here, and NeutrinoError for a worker that died. All workers
    have ended then, and also if the caller stops iterating.
    """
    if workers <= 1 or len(tasks) <= 1:
        # Another process would not save any time.
        function = prepare(context)
        meanwhile()
        for index, task in enumerate(tasks):
            yield index, function(task)
        return
    # A forked process inherits locks that other threads hold, and nobody releases them there.
    method = "fork" if threading.active_count() == 1 else "forkserver"
    # The workers' temporary files are in this folder, so that those of a killed worker are removed, too.
    with tempfile.TemporaryDirectory(prefix="neutrino-", dir=scratch_parent(), ignore_cleanup_errors=True) as scratch:
        pool = _WorkerPool(multiprocessing.get_context(method), scratch, unneeded)
        try:
            for _ in range(min(workers, len(tasks))):
                pool.start_worker(prepare, context)
            yield from pool.run(tasks, meanwhile)
        finally:
            pool.stop()


class _WorkerPool:
    """Worker processes, each with the pipe through which it gets tasks and returns results.

    ``start_worker`` starts them one by one, ``run`` has them process a list of tasks, ``stop`` ends them.
    """

    def __init__(self, context: Any, scratch: str, unneeded: Sequence[int]) -> None:
        """Create a pool without workers.

        context: the multiprocessing context, which determines how workers are started. scratch: path of the folder for
        the workers' temporary files. unneeded: open file descriptors of this process (such as that of a locked file) of
        which forked workers close their copies, since a worker may outlive this process until its task is done.
        """
        self._context = context
        self._scratch = scratch
        self._unneeded = unneeded
        # This process's end of a worker's pipe → the worker.
        self._workers: dict[Connection, BaseProcess] = {}

    def start_worker(self, prepare: Callable[[Any], Callable[[Any], Any]], context: Any) -> None:
        """Start one worker process. It calls prepare(context), which returns the function that runs a task."""
        our_end, worker_end = self._context.Pipe()
        # A forked worker has copies of all pipes. It closes them, else no worker would see that this process has ended.
        # A worker of the method forkserver inherits nothing from this process.
        is_fork = self._context.get_start_method() == "fork"
        inherited = ([*self._workers, our_end], self._unneeded) if is_fork else ([], ())
        arguments = (worker_end, inherited, self._scratch, prepare, context)
        process = self._context.Process(target=_run_worker, args=arguments, daemon=True)
        # A signal that reached a forked process before it has handlers of its own would call this process's: their
        # exception would leave ``os.fork`` there, and a second process would go on with what only this one may do.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING_SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        # Only the worker may have its end open, so that its death ends the pipe.
        worker_end.close()
        # The worker does the same. Whichever is first, the process group exists before anything signals it.
        with contextlib.suppress(OSError):
            os.setpgid(process.pid, process.pid)
        self._workers[our_end] = process

    def run(self, tasks: Sequence[Any], meanwhile: Callable[[], None]) -> Iterator[tuple[int, Any]]:
        """Send the tasks to the workers and yield (index, result) as they arrive.

        meanwhile: called once all workers have a task. Raises the exception of a failed task, and NeutrinoError for a
        worker that died.
        """
        pending = iter(enumerate(tasks))
        # The index of the task that the worker at a connection runs; idle workers are not in it.
        running: dict[Connection, int] = {}
        for connection in self._workers:
            self._send_next(connection, pending, running)
        meanwhile()
        while running:
            for ready in wait(list(running)):
                # wait's results have a wider type than Connection.
                connection = next(item for item in running if item is ready)
                index = running.pop(connection)
                try:
                    failed, value = connection.recv()
                except (EOFError, ConnectionError):
                    self._raise_death(connection)
                if failed:
                    raise value
                # The worker gets its next task before the caller processes this result.
                self._send_next(connection, pending, running)
                yield index, value

    def _send_next(
        self, connection: Connection, pending: Iterator[tuple[int, Any]], running: dict[Connection, int]
    ) -> None:
        """Send the next pending task, if there is one, to a worker, and enter its index in running."""
        index, task = next(pending, (None, None))
        if index is None:
            return
        try:
            connection.send(task)
        except ConnectionError:
            self._raise_death(connection)
        running[connection] = index

    def _raise_death(self, connection: Connection) -> NoReturn:
        """Raise the NeutrinoError for a worker whose end of the pipe is closed."""
        process = self._workers[connection]
        # Its exit status is known shortly after the pipe is closed.
        process.join(_END_TIMEOUT_S)
        status = process.exitcode
        how = f"by signal {-status}" if status is not None and status < 0 else f"with exit status {status}"
        # Linux ends a process by SIGKILL when memory runs out.
        memory = "; out of memory?" if status == -signal.SIGKILL else ""
        raise NeutrinoError(f"a worker process ended {how}{memory}")

    def stop(self) -> None:
        """End all workers and their tools: by SIGTERM, and after ``_END_TIMEOUT_S`` by SIGKILL."""
        for connection, process in self._workers.items():
            connection.close()
            _signal_group(process, signal.SIGTERM)
        for process in self._workers.values():
            deadline = time.monotonic() + _END_TIMEOUT_S
            while process.is_alive() and time.monotonic() < deadline:
                process.join(_SIGNAL_INTERVAL_S)
                # A tool that was started after the first signal has not received it.
                _signal_group(process, signal.SIGTERM)
            # Nothing is signalled if the worker has ended.
            _signal_group(process, signal.SIGKILL)
            process.join()


def _signal_group(process: BaseProcess, number: int) -> None:
    """Send a signal to a worker and its tools, if the worker is alive: else another process may have its number."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if process.pid is not None and process.is_alive():
            os.killpg(process.pid, number)


def _end(*_: object) -> NoReturn:
    """Handle SIGTERM in a worker, as ``_WorkerPool.stop`` sends it to the worker's process group.

    Exits by an exception, so that temporary files are removed.
    """
    # stop repeats the signal, for tools that were not running yet; the worker must not be interrupted by that while it
    # cleans up. Not SIG_IGN, since the tools would inherit that.
    signal.signal(signal.SIGTERM, lambda *_: None)
    # For the worker's other threads, which are in Slots.__enter__: they must not start further tools.
    _ending.set()
    sys.exit(0)


def _free_memory() -> None:
    """Give back what a task has left in cycles, and what the C library's allocator keeps of it: the next task, or that
    of another worker, may need as much again."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _run_worker(
    connection: Connection,
    inherited: tuple[Sequence[Connection], Sequence[int]],
    scratch: str,
    prepare: Callable[[Any], Callable[[Any], Any]],
    context: Any,
) -> None:
    """Run tasks from the connection until it is closed: the main function of a worker process.

    Each answer is (whether the task failed, its result or exception). inherited: connections and descriptors that fork
    has copied, to be closed. scratch: the folder for temporary files. prepare: called with context before the first
    task, returns the function that runs a task.
    """
    tempfile.tempdir = scratch
    signal.signal(signal.SIGTERM, _end)
    # Else Python would print a traceback of KeyboardInterrupt for each worker.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING_SIGNALS)
    # The worker and its tools become a process group; start_worker does the same from outside.
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    connections, descriptors = inherited
    for other_connection in connections:
        other_connection.close()
    for descriptor in descriptors:
        os.close(descriptor)
    # Millions of small objects live until a kernel is done: looking through them less often saves a tenth.
    gc.set_threshold(20_000, 20, 50)
    function: Callable[[Any], Any] | None = None
    while True:
        try:
            task = connection.recv()
        except (EOFError, ConnectionError):
            # The process that started this one has ended.
            return
        try:
            # Here rather than above, so that an error of prepare reaches the caller as that of a task.
            function = function or prepare(context)
            answer: tuple[bool, Any] = (False, function(task))
        except (NeutrinoError, OSError, MemoryError) as error:
            answer = (True, error)
        try:
            connection.send(answer)
        except ConnectionError:
            # It has ended during the task.
            return
        del task, answer
        _free_memory()
