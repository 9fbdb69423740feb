"""SIGTERM that exits by an exception, so that a command removes its unfinished and temporary files."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def exiting_on_sigterm() -> Iterator[None]:
    """Make SIGTERM raise SystemExit in the main thread until the block ends; also a decorator.

    A handler that the caller installed stays.
    """
    # Only the main thread may install handlers. The exit status is that of shells for a process ended by a signal.
    is_main_thread = threading.current_thread() is threading.main_thread()
    if not is_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
