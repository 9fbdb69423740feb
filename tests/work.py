"""The work that code does, counted: the same on every machine, however busy it is."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class Work:
    """What ran. calls: of functions, those in C included. lines: of Python that were executed."""

    calls: int = 0
    lines: int = 0


@contextmanager
def counted(*, lines: bool = False) -> Iterator[Work]:
    """Count what this thread does within; what single calls of C do is not seen. lines: count these, too (slow).

    The collector of cycles waits: when it runs, and whose finalizers and callbacks then, depends on what ran before.
    """
    work = Work()

    def called(_: FrameType, event: str, __: object) -> None:
        if event in ("call", "c_call"):
            work.calls += 1

    def entered(_: FrameType, __: str, ___: object) -> object:
        return stepped

    def stepped(_: FrameType, event: str, __: object) -> object:
        if event == "line":
            work.lines += 1
        return stepped

    profiler, tracer = sys.getprofile(), sys.gettrace()
    collects = gc.isenabled()
    gc.disable()
    sys.setprofile(called)
    if lines:
        sys.settrace(entered)
    try:
        yield work
    finally:
        sys.settrace(tracer)
        sys.setprofile(profiler)
        if collects:
            gc.enable()
