"""Device processes of the stand-in driver, forked from a process that has imported what they need.

Starting Python for each is most of what a short program costs, reading PTX most of the rest. The stand-in starts
``interpreter.c`` in Python's place, which hands over to this process. It reads what two devices have loaded, for those
to come; and devices leave out what Python does at its end. Tests of ``tests/embedded`` start Python, as users do.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import gc
import hashlib
import importlib
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neutrino.emulator.code import ModuleCode

_SOCKET_FD = 3
_HERE = Path(__file__).parent


@functools.cache
def interpreter() -> Path:
    """What the stand-in is told to start, for as long as this process lives."""
    from neutrino.loader import build

    folder = Path(tempfile.mkdtemp(prefix="neutrino-devices-"))
    path, command = folder / "socket", folder / "python"
    names = [f'-DSOCKET="{path}"', f'-DPYTHON="{sys.executable}"']
    source = _HERE / "programs" / "interpreter.c"
    warnings = ("-Wall", "-Wextra", "-Werror")
    subprocess.run([*build.compiler(), "-D_GNU_SOURCE", *warnings, *names, str(source), "-o", str(command)], check=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(path))
        listening.listen(64)
        server = subprocess.Popen(
            [sys.executable, str(Path(__file__)), str(_HERE.parent.parent), str(listening.fileno()), str(folder)],
            stdin=subprocess.PIPE, pass_fds=[listening.fileno()],
        )  # fmt: skip
    atexit.register(_end, server, folder)
    return command


def _end(server: subprocess.Popen[bytes], folder: Path) -> None:
    server.communicate()
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def _serve(listening: socket.socket, folder: Path) -> None:
    """Until nobody holds the other end of standard input. folder: for what devices tell of the texts they load."""
    server = importlib.import_module("neutrino.emulator.server")
    # NumPy imports it when it is first used, which would be in each device.
    importlib.import_module("numpy.ctypeslib")
    # Of all texts that two devices have read: a device keeps fewer.
    read = functools.cache(server.module_code.__wrapped__)
    known: set[str] = set()
    # What is imported is no garbage of any device, and is not copied for being looked at.
    gc.set_threshold(1_000_000, 20, 100)
    gc.freeze()
    devices: set[int] = set()
    while sys.stdin.fileno() not in select.select([listening, sys.stdin.fileno()], [], [])[0]:
        connection, _ = listening.accept()
        with connection:
            for path in folder.glob("*.ptx"):
                if path.stem not in known:
                    known.add(path.stem)
                    _generate(read(path.read_bytes().decode()))
                    gc.freeze()
            device = os.fork()
            if not device:
                status = 1
                try:
                    vars(server)["module_code"] = _telling(read, folder, known)
                    _become_device(connection)
                    status = 0
                finally:
                    os._exit(status)
        devices.add(device)
        devices -= {one for one in devices if os.waitpid(one, os.WNOHANG)[0]}


def _generate(code: ModuleCode) -> None:
    """Have the kernels of a text generated, so that no device does it."""
    kernel = importlib.import_module("neutrino.emulator.kernel")
    errors = importlib.import_module("neutrino.errors")
    for name, function in code.texts.items():
        if function.entry and function.items is not None:
            with contextlib.suppress(errors.PtxRefusedError):
                kernel.kernel_of(code, name).units(observed=False)


def _telling(read: Callable[[str], ModuleCode], folder: Path, known: set[str]) -> Callable[[str], ModuleCode]:
    """What reads a text, and leaves it in the folder if another device has read it before."""

    def tell(text: str) -> ModuleCode:
        code = read(text)
        data = text.encode()
        name = hashlib.sha256(data).hexdigest()
        if name not in known:
            try:
                (folder / f"{name}.once").touch(exist_ok=False)
            except FileExistsError:
                part = folder / f"{name}.{os.getpid()}"
                part.write_bytes(data)
                part.rename(folder / f"{name}.ptx")
        return code

    return tell


def _become_device(connection: socket.socket) -> None:
    """What the stand-in does in a device process, and the program that it gives to the interpreter."""
    data, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 2)
    isolated, option, program, *arguments = data.decode().split("\0")[:-1]
    assert (isolated, option) == ("-I", "-c")
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.chdir("/")
    null = os.open("/dev/null", os.O_RDWR)
    above = [fcntl.fcntl(fd, fcntl.F_DUPFD, 64) for fd in (null, null, null, *descriptors)]
    connection.detach()
    os.closerange(_SOCKET_FD, 64)
    for target, fd in enumerate(above):
        os.dup2(fd, target)
    os.closerange(64, 64 + 16)
    sys.argv = [option, *arguments]
    exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    sys.path[0] = sys.argv[1]
    _serve(socket.socket(fileno=int(sys.argv[2])), Path(sys.argv[3]))
