"""Run jobs for the parts of a module in parallel, until one of them fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TypeVar

_Result = TypeVar("_Result")
_PARTS_AT_ONCE = 32
"""Parts in progress, each with one or two texts in memory; the assembler's slots limit how many run."""


def run_parallel(jobs: Sequence[Callable[[], _Result]], slots: StoppableSlots) -> list[_Result]:
    """Run jobs in threads and return their results in order. If one fails, its error is raised and no other job starts.

    slots: those that the jobs' assembler takes; they are stopped if a job fails.
    """
    if len(jobs) < 2:
        # Without a thread, so that KeyboardInterrupt, which only the main thread gets, interrupts the job.
        return [job() for job in jobs]
    with ThreadPoolExecutor(min(len(jobs), _PARTS_AT_ONCE)) as pool:
        try:
            futures = [pool.submit(job) for job in jobs]
            done = wait(futures, return_when=FIRST_EXCEPTION).done
            # All are done unless one has failed. Then its result() raises; those that are not done are left out, since
            # waiting for their results would delay that.
            return [future.result() for future in futures if future in done]
        except BaseException:
            # Jobs that wait for a slot fail, and those that have not begun are cancelled. So leaving the pool's block
            # waits only for the assemblers that run now.
            slots.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


class StoppableSlots:
    """The slots that limit how many assemblers run at once. After ``stop`` nobody gets one any more.

    slots: a semaphore, or what behaves like one.
    """

    def __init__(self, slots: AbstractContextManager[object]) -> None:
        """Set up a semaphore that can be stopped. slots: a semaphore, or what behaves like one."""
        self._slots = slots
        self._is_stopped = False

    def stop(self) -> None:
        """Make every thread that waits for a slot, or asks for one later, fail instead."""
        self._is_stopped = True

    def __enter__(self) -> None:
        """Wait for a slot. Raises _StoppedError after ``stop``."""
        self._slots.__enter__()
        # stop may have been called while this thread waited; the slot goes to the next one that waits.
        if self._is_stopped:
            self._slots.__exit__(None, None, None)
            raise _StoppedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the slot (the right to run one assembler) back."""
        self._slots.__exit__(kind, error, traceback)


class _StoppedError(Exception):
    """The job was not started because another one failed, whose error is raised instead."""
