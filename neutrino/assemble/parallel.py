"""Run jobs for the parts of a module in parallel, until one of them fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TypeVar

_Made = TypeVar("_Made")
_PARTS_AT_ONCE = 32
"""Parts in progress, each with one or two texts in memory; the assembler's slots limit how many run."""


def run_parallel(jobs: Sequence[Callable[[], _Made]], slots: StoppableSlots) -> list[_Made]:
    """The results of the jobs, in their order. If one fails, its error is raised and no other job starts.

    slots: those that the jobs' assembler takes.
    """
    if len(jobs) < 2:
        # It needs no thread, and an interrupt reaches it in this one.
        return [job() for job in jobs]
    with ThreadPoolExecutor(min(len(jobs), _PARTS_AT_ONCE)) as pool:
        try:
            started = [pool.submit(job) for job in jobs]
            ended = wait(started, return_when=FIRST_EXCEPTION).done
            return [job.result() for job in started if job in ended]
        except BaseException:
            slots.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


class StoppableSlots:
    """The slots of an assembler that can be stopped: then jobs that wait for a slot do not start."""

    def __init__(self, slots: AbstractContextManager[object]) -> None:
        self._slots = slots
        self._is_stopped = False

    def stop(self) -> None:
        """Let no further job start."""
        self._is_stopped = True

    def __enter__(self) -> None:
        self._slots.__enter__()
        if self._is_stopped:
            self._slots.__exit__(None, None, None)
            raise _StoppedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._slots.__exit__(kind, error, traceback)


class _StoppedError(Exception):
    """Another thread failed; its error is the one that is raised."""
