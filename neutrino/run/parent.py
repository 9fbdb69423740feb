"""``neutrino`` as COMMAND's parent, where results are printed at the end: passes signals on, and ends as COMMAND ended.

COMMAND is in this process's group and has its terminal, as it would after an exec. What the terminal sends, or anybody
else to the group, reaches COMMAND by itself; only what is sent to this process alone is passed on, such as the SIGHUP
of a session's leader. siginfo does not tell them apart, so a second child, the witness, blocks all signals and reports
those that it gets as well.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

_BROADCAST_S = 0.1
"""Seconds within which the witness has got what was sent to the whole group."""
_BESIDE_S = 5.0
"""Seconds that what ran beside COMMAND is waited for after COMMAND's end."""
_PR_SET_PDEATHSIG = 1
"""prctl(2)."""
_ENDING = {signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP}
_MEANT_FOR_COMMAND_S = 3.0
"""Seconds after COMMAND's end in which such a signal does not end the printing."""
_REPORT = struct.Struct("=id")
"""A signal, and when it came, by ``time.monotonic()``. Shorter than what a pipe takes at once."""
_OWN = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
"""Signals that cannot be blocked, or are meant for this process."""


def run_beneath(
    command: Callable[[], NoReturn], afterwards: Callable[[int], None],
    meanwhile: Callable[[threading.Event], None] | None = None,
) -> NoReturn:
    """Run COMMAND as a child, then print what is to be printed, and end as COMMAND ended: its status, or its signal.

    command: becomes COMMAND, in the child. afterwards: is called once COMMAND has ended, with its exit status, or the
    signal as a negative number; signals have their usual effect on this process from then on. meanwhile: runs in a
    thread until the event is set, once COMMAND has ended.
    """
    ended = threading.Event()
    waits = signal.getsignal(signal.SIGCHLD)
    # All signals wait, so that none is lost between the fork and the loop that passes them on.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    # If it is ignored, as COMMAND may have inherited it, children leave no status.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    own = os.getpid()
    # The witness is first: it must get whatever COMMAND gets.
    with _Witness() as witness:
        child = os.fork()
        if child == 0:
            # What it raises is reported by the caller, past the end of this block.
            witness.leave()
            _die_with(own)
            signal.signal(signal.SIGCHLD, waits)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            command()
        # Whoever reads COMMAND's output to its end does not wait for this process.
        _close_standard_streams()
        beside = None
        if meanwhile is not None:
            # Signals stay blocked in it, too. It ends with this process, should it read a large trace.
            beside = threading.Thread(target=meanwhile, args=(ended,), daemon=True)
            beside.start()
        status = _wait(child, witness)
        ended.set()
        if beside is not None:
            beside.join(_BESIDE_S)
    _forget_pending()
    # COMMAND may have left the terminal to a group that is gone.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    # Whoever sends SIGINT twice means COMMAND; only where the printing takes long is it meant.
    end = time.monotonic()

    def interrupt(number: int, _: object) -> None:
        """Stop the printing of reports, by an exception, for a signal so late that it was not meant for the command
        that ended."""
        if time.monotonic() - end > _MEANT_FOR_COMMAND_S:
            raise _InterruptedPrintingError(signal.strsignal(number))

    for number in _ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, interrupt)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask - _ENDING)
    try:
        afterwards(os.waitstatus_to_exitcode(status))
    except _InterruptedPrintingError as interruption:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(f"\nneutrino: {interruption}: the results are in the trace; see neutrino-report\n")
    finally:
        # Whatever is wrong there, COMMAND's end is what counts.
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        _end_as(status)


class _InterruptedPrintingError(Exception):
    """A signal ended the printing of results that takes long."""


class _Witness:
    """A process in this group that reports which signals it gets, and when.

    Where it cannot be started, everything is passed on.
    """

    def __init__(self) -> None:
        """Start a process that reports which signals this group of processes gets."""
        self._reports, reporting = os.pipe()
        os.set_blocking(self._reports, False)
        self._got: dict[int, float] = {}
        parent = os.getpid()
        try:
            self._pid = os.fork()
        except OSError:
            self._pid = 0
        else:
            if self._pid == 0:
                _report_signals(parent, self._reports, reporting)
        os.close(reporting)

    def __enter__(self) -> _Witness:
        """Return the object itself, for a ``with`` block."""
        return self

    def leave(self) -> None:
        """Forget the witness, in a process that it does not belong to."""
        self._pid = 0

    def __exit__(self, *_: object) -> None:
        """End the helper process and close its pipe."""
        os.close(self._reports)
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)

    def has_got(self, number: int) -> bool:
        """Return whether the witness has just got the same signal as this process.

        If so, it was sent to the whole group, so that COMMAND has got it as well and it must not be passed on.
        """
        now = time.monotonic()
        deadline = now + _BROADCAST_S
        while self._read() and self._got.get(number, 0) < now - _BROADCAST_S:
            if (left := deadline - time.monotonic()) <= 0:
                return False
            # Not select, which takes no descriptor above 1023.
            arriving = select.poll()
            arriving.register(self._reports, select.POLLIN)
            arriving.poll(1000 * left)
        # One that comes again is another one.
        return self._got.pop(number, 0) >= now - _BROADCAST_S

    def _read(self) -> bool:
        """Read what the witness has reported so far; return False if there is no witness any more."""
        with contextlib.suppress(BlockingIOError):
            while report := os.read(self._reports, _REPORT.size):
                number, moment = _REPORT.unpack(report)
                self._got[number] = moment
            return False
        return True


def _report_signals(parent: int, unused: int, reporting: int) -> NoReturn:
    """Be the witness: write each signal that this process gets to a pipe, until the parent ends it or ends.

    unused: the end of the pipe that is read, which is closed. reporting: the end that is written.
    """
    try:
        _die_with(parent)
        os.close(unused)
        for descriptor in range(3):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        while True:
            number = signal.sigwaitinfo(signal.valid_signals() - _OWN).si_signo
            os.write(reporting, _REPORT.pack(number, time.monotonic()))
    finally:
        os._exit(0)


def _wait(child: int, witness: _Witness) -> int:
    """Pass signals on until COMMAND has ended; return its status, as waitpid(2) gives it."""
    awaited = signal.valid_signals() - (_OWN - {signal.SIGCHLD})
    while True:
        # Stops of COMMAND are this process's, so that a shell sees them; SIGCHLD comes for each change.
        while True:
            try:
                pid, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return 0
            if not pid:
                break
            if not os.WIFSTOPPED(status):
                return status
            os.kill(os.getpid(), signal.SIGSTOP)
            # The shell has continued the whole group, or somebody this process alone.
            os.kill(child, signal.SIGCONT)
        received = signal.sigwaitinfo(awaited)
        number = received.si_signo
        if number == signal.SIGCHLD:
            # Of the kernel, about a child; whoever sends one to a process that waits for children means that, too.
            continue
        # COMMAND may send to its parent, which after an exec is the shell: that is not passed back.
        if received.si_pid != child and not witness.has_got(number):
            # COMMAND may have taken another user's rights.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, number)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, even by SIGKILL, which the parent cannot pass on.

    parent: its process id.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # It may have ended before that.
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def _close_standard_streams() -> None:
    """Connect standard input and output to the null device, so that pipes end when COMMAND closes them.

    Standard error stays: the results go to it.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)
    if null > 2:
        os.close(null)


def _forget_pending() -> None:
    """Discard the signals that came while COMMAND ended and still wait to be handled: they were meant for COMMAND."""
    while signal.sigtimedwait(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}, 0):
        pass


def _end_as(status: int) -> NoReturn:
    """End this process as COMMAND ended. status: as waitpid(2) gives it."""
    # Nothing of Python is of interest any more; what was printed must have gone out.
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr is not None:
            sys.stderr.flush()
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        # One core file is enough.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
