"""The parts of a module's twins, judged at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import replace
from types import TracebackType

from neutrino.assemble.attempts import judge_with_pins
from neutrino.assemble.dump import Dump
from neutrino.assemble.emit import Emit
from neutrino.assemble.one_module import OneModule
from neutrino.assemble.parts import Judged, join
from neutrino.assemble.retargeting import Retargeting
from neutrino.assemble.rewritten import Rewritten
from neutrino.cache.entry import KernelEntry
from neutrino.ptx.instrument.twin import TwinKernel
from neutrino.toolchain.ptxas import Assembler

_PARTS_AT_ONCE = 32
"""Parts under way, each with a text or two in memory; how many of them are being assembled the assembler tells."""


def judge_parts(
    parts: Sequence[tuple[TwinKernel, ...]],
    rewritten: Rewritten,
    assembler: Assembler,
    emit: Emit,
    retargeting: Retargeting | None,
    dump: Dump,
) -> tuple[dict[str, KernelEntry], tuple[bytes, ...]]:
    """As judge_with_pins, of each part by itself. Raises CutError when a part of several cannot be."""

    slots = _Slots(assembler.slots)
    stoppable = replace(assembler, slots=slots)

    def judged(number: int) -> Judged:
        is_part = len(parts) > 1
        assembly = OneModule(rewritten, stoppable, emit, dump, f"-{number}" if is_part else "", is_part)
        return judge_with_pins(parts[number], assembly, rewritten.probes, retargeting)

    with ThreadPoolExecutor(min(len(parts), _PARTS_AT_ONCE)) as pool:
        try:
            if len(parts) == 1:
                # It needs no thread, and an interrupt reaches it in this one.
                return join([judged(0)])
            jobs = [pool.submit(judged, number) for number in range(len(parts))]
            ended = wait(jobs, return_when=FIRST_EXCEPTION).done
            return join([job.result() for job in jobs if job in ended])
        except BaseException:
            slots.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


class _Slots:
    """The slots of an assembler until stop: from then on those that wait for one begin nothing."""

    def __init__(self, slots: AbstractContextManager[object]) -> None:
        self._slots = slots
        self._is_stopped = False

    def stop(self) -> None:
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
    """Another thread failed, whose error is raised."""
