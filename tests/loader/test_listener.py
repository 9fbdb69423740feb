"""The listener against many calls, and calls that go wrong."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from neutrino.errors import NeutrinoError, ToolMissingError
from neutrino.maker import serving
from neutrino.maker.store import Cache
from neutrino.probing.selection import Selection
from neutrino.run import listener
from neutrino.run.probes import RunProbes
from neutrino.toolchain.location import find_tool
from neutrino.verification import load_probes
from tests.loader.conftest import IMAGE, Bench

PROGRAM = """
import os, resource, socket, struct, sys, time
from pathlib import Path
from neutrino.maker.store import Cache
from neutrino.maker.serving import TwinSettings
from neutrino.run.listener import Settings, start_listener
from neutrino.run.probes import RunProbes
from neutrino.verification import load_probes
from neutrino.probing.selection import Selection

resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
probes = RunProbes.of(load_probes(["block_sched"]))
settings = Settings(TwinSettings(probes, Selection(), bytes(32), Cache(Path(sys.argv[1])), None))
path = str(start_listener(settings))

def call():
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    connection.settimeout(600)
    return connection

for _ in range(1100):
    with call() as connection:
        connection.sendall(struct.pack("<8sII32s16sIIQ", b"NTASK", 1, os.getpid(), bytes(32), b"", 0, 0, 0))
with call() as connection:
    connection.sendall(struct.pack("<8sII32s16sIIQ", b"NTASK", 2, os.getpid(), bytes(32), b"sm_90", 0, 0, 3) + b"ptx")
    reply = connection.recv(4096)
    print(reply[24:].decode(), flush=True)
# Of one that says nothing, and of one that says what it wants bit by bit, others take no notice.
with call() as silent, call() as slow:
    request = struct.pack("<8sII32s16sIIQ", b"NTASK", 2, os.getpid(), bytes(32), b"sm_90", 0, 0, 3) + b"ptx"
    slow.sendall(request[:50])
    time.sleep(0.1)
    with call() as connection:
        connection.sendall(request)
        print(connection.recv(4096)[24:].decode(), flush=True)
    slow.sendall(request[50:])
    print(slow.recv(4096)[24:].decode(), flush=True)
os.execv("/bin/true", ["true"])
"""


def test_a_process_that_calls_more_often_than_there_are_descriptors_is_answered(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=600, check=False
    )
    assert (result.stdout, result.returncode) == (3 * "the key does not fit the image\n", 0), result.stderr


def test_a_fault_of_the_patcher_is_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object) -> bytes:
        raise ModuleNotFoundError("No module named 'zstandard'\nand more")

    monkeypatch.setattr(serving, "begin_entry", fail)
    monkeypatch.setattr(serving, "image_key", lambda *_: bytes(32))
    probes = RunProbes.of(load_probes(["block_sched"]))
    settings = serving.TwinSettings(probes, Selection(), bytes(32), Cache(tmp_path), None)
    ours, its = socket.socketpair()
    with ours, its:
        header = struct.pack("<8sII32s16sIIQ", b"NTASK", 2, os.getpid(), bytes(32), b"sm_90", 0, 0, 3)
        ours.sendall(b"ptx")
        serving.serve_twins(its, header, settings)
        reply = ours.recv(4096)
    assert reply[24:].decode() == "a fault of Neutrino: ModuleNotFoundError: No module named 'zstandard'"


def test_a_reason_may_name_any_path() -> None:
    assert serving._reason(FileNotFoundError(2, "No such file", "/\udcff")) == b"[Errno 2] No such file: '/\\udcff'"
    assert serving._reason(NeutrinoError("no \udcff")) == b"no \\udcff"
    assert serving._reason(MemoryError()) == b"MemoryError"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_no_socket_is_made_in_another_users_runtime_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    # Not tmp_path, which is too long for a socket.
    folder = Path("/tmp") / f"neutrino-test-{os.getpid()}"
    folder.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    try:
        assert listener._runtime_folder() == str(folder)
        os.chown(folder, 65534, 65534)
        assert listener._runtime_folder() == "/tmp"
    finally:
        folder.rmdir()


@pytest.mark.parametrize(("options", "ends"), [((), True), (("--no-wait",), False)])
def test_helpers_end_with_the_last_client(bench: Bench, tmp_path: Path, options: tuple[str, ...], ends: bool) -> None:
    try:
        real = find_tool("ptxas")
    except ToolMissingError as error:
        pytest.skip(str(error))
    (tmp_path / "image").write_bytes(IMAGE)
    slow, started, release = tmp_path / "ptxas", tmp_path / "started", tmp_path / "release"
    slow.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec "{real}" --version\n'
        f'echo $$ >> "{started}"\nwhile ! [ -e "{release}" ]; do sleep 0.05; done\nexec "{real}" "$@"\n'
    )
    slow.chmod(0o755)
    # A socket's path must be short.
    with tempfile.TemporaryDirectory() as runtime:
        environment = {
            **os.environ, "HOST_IMAGE": str(tmp_path / "image"), "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "NEUTRINO_PTXAS": str(slow), "XDG_RUNTIME_DIR": runtime,
        }  # fmt: skip
        command = [sys.executable, "-m", "neutrino.cli.run", "--device", "embedded", "-p", "block_sched", *options]
        with subprocess.Popen([*command, str(bench.host), "plain"], cwd=tmp_path, env=environment) as program:
            _wait(lambda: started.exists() and bool(started.read_text().strip()))
            program.send_signal(signal.SIGKILL)
        pid = int(started.read_text().split()[0])
        if ends:
            _wait(lambda: not _runs(pid))
            _wait(lambda: not any(Path(runtime).iterdir()))
            return
        # What nobody has waited for is made for the next run.
        assert _runs(pid)
        release.touch()
        _wait(lambda: any(tmp_path.glob("cache/neutrino/twins/*/*.twins")))
        _wait(lambda: not any(Path(runtime).iterdir()))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _wait(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 600
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.02)
