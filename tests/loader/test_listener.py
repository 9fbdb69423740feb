"""The listener against many calls, and calls that go wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from neutrino.loader import listener

PROGRAM = """
import os, resource, socket, struct, sys, time
from pathlib import Path
from neutrino.cache.store import Cache
from neutrino.loader.listener import Settings, start_listener
from neutrino.loader.run_probes import RunProbes
from neutrino.verification import load_probes
from neutrino.probing.selection import Selection

resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
settings = Settings(RunProbes.of(load_probes(["block_sched"])), Selection(), bytes(32), Cache(Path(sys.argv[1])), None)
path = str(start_listener(settings))

def call():
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    connection.settimeout(20)
    return connection

for _ in range(1100):
    with call() as connection:
        connection.sendall(struct.pack("<8sII32s16sIIQ", b"NTASK", 1, os.getpid(), bytes(32), b"", 0, 0, 0))
with call() as connection:
    connection.sendall(struct.pack("<8sII32s16sIIQ", b"NTASK", 2, os.getpid(), bytes(32), b"sm_90", 0, 0, 3) + b"ptx")
    reply = connection.recv(4096)
    print(reply[24:].decode(), flush=True)
os.execv("/bin/true", ["true"])
"""


def test_a_process_that_calls_more_often_than_there_are_descriptors_is_answered(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=100, check=False
    )
    assert (result.stdout, result.returncode) == ("the key does not fit the image\n", 0), result.stderr


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
