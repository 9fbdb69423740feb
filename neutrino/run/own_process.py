"""The hook in this process, or in one that runs Python already: ``neutrino.install`` rather than the command."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from neutrino.errors import NeutrinoError
from neutrino.loader.driver import NAME, find_driver
from neutrino.loader.embedded_driver import stand_in
from neutrino.loader.install import LATE, built, is_installed_here
from neutrino.run.start import Request, prepare

_LEFT_OUT = frozenset({"LD_AUDIT", "GLIBC_TUNABLES"})
"""Variables that would put the hook into the programs that this process starts: these have no request of their own."""


_FAULTS = {
    1: "another thread asks for other probes at the moment",
    2: "a stream is being captured: ask for other probes before the capture, or after it",
    3: "there is no memory for other probes",
    4: "the process keeps its probes: it has ended its trace, or lacks that set",
}
"""What the results of ``neutrino_use`` mean (``csrc/front/control.h``)."""


class Hook:
    """The hook that is in this process: ``csrc/front/control.h``."""

    def __init__(self, library: Any, driver: Any = None) -> None:
        """Give access to the hook in this process, a library that intercepts calls of the CUDA driver. library: the
        hook, opened by cffi. driver: a library that must stay open as long as the hook, None for none."""
        self._library = library
        # cffi closes a library that nothing refers to.
        self._driver = driver

    @property
    def trace_dir(self) -> Path | None:
        """The folder of this process's trace; None before there is one."""
        from neutrino.loader._interface import ffi

        path: Any = ffi.string(self._library.neutrino_trace_dir())
        return Path(os.fsdecode(path)) if path else None

    def flush(self, milliseconds: int) -> bool:
        """Wait for all launches so far, and have their records written; whether they are in the trace."""
        return bool(self._library.neutrino_flush(milliseconds))

    def record(self, is_on: bool) -> None:
        """Switch recording on or off, if the process began with it off."""
        self._library.neutrino_record(is_on)

    def push_range(self, name: str) -> None:
        """Begin a range of the domain ``neutrino`` in this thread, for ``--range``."""
        self._library.neutrino_range_push(name.encode(errors="surrogateescape"))

    def pop_range(self) -> None:
        """End the range of launches that this thread has begun last."""
        self._library.neutrino_range_pop()

    def bring(self, request: Request) -> tuple[int, int]:
        """Make a set of probes known to the hook, and start what makes its twins.

        request: as for ``attach``, with the options of the process. Returns its number, and a descriptor: what makes
        twins ends when that is closed. Raises NeutrinoError, and OSError as ``prepare``.
        """
        reading, lifeline = os.pipe2(os.O_CLOEXEC)
        try:
            return self._brought(replace(request, lifeline=reading)), lifeline
        except BaseException:
            os.close(lifeline)
            raise
        finally:
            os.close(reading)

    def _brought(self, request: Request) -> int:
        """Do what ``bring`` does, and return the number of the set."""
        environment = {**os.environ, **_prepared(request)}
        texts = [
            os.fsencode(environment.get(name) or "")
            for name in ("NEUTRINO_KEY", "NEUTRINO_SOCKET", "NEUTRINO_PROBE_FILE", "NEUTRINO_PROBES")
        ]
        number = int(self._library.neutrino_set(*texts))
        if not number:
            raise NeutrinoError("the hook takes no other probes: the process has too many sets of them, or no memory")
        return number

    def use(self, number: int) -> None:
        """Have launches run with the probes of a set from now on. number: as ``bring`` gave it; the first has 1.

        Raises NeutrinoError if that cannot be, and nothing has changed then.
        """
        if fault := _FAULTS.get(int(self._library.neutrino_use(number))):
            raise NeutrinoError(fault)

    @property
    def now(self) -> int:
        """The time in nanoseconds, by the clock whose times the records of launches have."""
        return int(self._library.neutrino_now())


def find_hook() -> Hook | None:
    """Return the hook that this process was started with, by ``neutrino``; None without one."""
    from neutrino.loader._interface import ffi

    # Else the driver's own library would be loaded into a process that may not want it.
    if not is_installed_here():
        return None
    try:
        library: Any = ffi.dlopen(NAME)
        _ = library.neutrino_now
    except (OSError, AttributeError):
        return None
    return Hook(library)


def attach(request: Request) -> Hook:
    """Load the hook (which intercepts calls of the CUDA driver) into this process: what the program loads from now on
    is probed.

    The process may have used its GPU already. Raises NeutrinoError, and OSError where ``prepare`` does.
    """
    from neutrino.loader._interface import ffi

    # Else nothing could be prepared.
    if not request.device and not request.driver and find_driver(os.environ) is None:
        raise NeutrinoError("no CUDA driver (libcuda.so.1) on this machine; device='embedded' needs none")
    environment = _prepared(request)
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        elif name not in _LEFT_OUT:
            os.environ[name] = value
    # Whoever asks for the driver gets the embedded device, by its SONAME.
    driver = ffi.dlopen(str(stand_in()), ffi.RTLD_NOW | ffi.RTLD_GLOBAL) if request.device else None
    return Hook(ffi.dlopen(str(built(LATE)), ffi.RTLD_NOW | ffi.RTLD_LOCAL), driver)


def importing(folder: str) -> str:
    """Return the program text that imports neutrino from a folder, and from there alone.

    The current folder, which ``-c`` puts first, is left out: others may write there. Of the given folder only neutrino
    comes first, and the rest last: a checkout may have a file copy.so, which is no module of that name.
    """
    return (
        "import sys; sys.path = [*filter(None, sys.path)]; from importlib import machinery, util; "
        f"spec = machinery.PathFinder.find_spec('neutrino', [{folder!r}]); "
        "sys.modules['neutrino'] = module = util.module_from_spec(spec); spec.loader.exec_module(module); "
        f"sys.path.append({folder!r})"
    )


def _prepared(request: Request) -> dict[str, str | None]:
    """Return what ``prepare`` changes in the environment for this process; None for a variable that it removes.

    It runs in a process of its own, since it forks the listener, and a process with threads or a GPU should not be
    forked. Raises NeutrinoError.
    """
    # This package, whatever the current folder has.
    package = str(Path(__file__).resolve().parents[2])
    script = f"{importing(package)}; from neutrino.run.own_process import answer; answer()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=pickle.dumps(replace(request, pid=os.getpid())), stdout=subprocess.PIPE, check=False,
        pass_fds=() if request.lifeline is None else (request.lifeline,),
    )  # fmt: skip
    try:
        given = json.loads(done.stdout)
    except ValueError:
        raise NeutrinoError(f"the process that prepares the run ended with status {done.returncode}") from None
    if "error" in given:
        raise NeutrinoError(given["error"])
    found: dict[str, str | None] = given["environment"]
    return found


def answer() -> None:
    """Prepare a run for another process, which has started this one: read its request from stdin, print the answer as
    JSON.

    That is the changes of the environment, or an error.
    """
    request: Request = pickle.load(sys.stdin.buffer)
    before = dict(os.environ)
    try:
        after = prepare(request)
        found: dict[str, Any] = {
            "environment": {name: after.get(name) for name in {*before, *after} if before.get(name) != after.get(name)}
        }
    except (NeutrinoError, OSError) as error:
        found = {"error": str(error)}
    print(json.dumps(found))
