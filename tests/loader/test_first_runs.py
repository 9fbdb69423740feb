"""Runs whose twins are not in the cache: when they are asked for, and who waits how long."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from neutrino.maker.store import Cache
from tests.loader.conftest import IMAGE, Bench, compile_c
from tests.loader.listeners import MAKE, MAKE_AHEAD, MAY_BE_CACHED, TEXT, listener
from tests.loader.trace_files import Files


@pytest.fixture(scope="module")
def program(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("many") / "many"
    compile_c(path, str(Path(__file__).parent / "programs" / "many.c"), str(bench.driver))
    return path


def run(bench: Bench, program: Path, home: Path, count: int, when: str, **extra: str) -> str:
    (home / "image").write_bytes(IMAGE)
    environment = bench.hooked(bench.environment(home), home) | {"NEUTRINO_SOCKET": str(home / "socket"), **extra}
    result = subprocess.run(
        [str(program), str(count), when], env=environment, capture_output=True, text=True, timeout=600, check=True
    )
    return result.stdout


def reasons(home: Path) -> Counter[str]:
    """Of the kernels that the program obtained."""
    return Counter(event["reason"] for event in Files(home / "trace").events if event["event"] == "kernel")


@pytest.mark.parametrize("when", ["later", "child", "each"])
def test_twins_are_asked_for_when_an_image_is_loaded(bench: Bench, program: Path, tmp_path: Path, when: str) -> None:
    with listener(tmp_path, MAY_BE_CACHED) as asked:
        assert run(bench, program, tmp_path, 20, when) == "20\n"
    assert (asked.asked[MAKE_AHEAD], asked.asked[MAKE]) == (20, 0)
    assert reasons(tmp_path) == {"probed": 20}


def test_a_whole_program(any_bench: Bench, tmp_path: Path) -> None:
    with listener(tmp_path, MAY_BE_CACHED) as asked:
        result = any_bench.run("plain", tmp_path, twins=False, extra={"NEUTRINO_SOCKET": str(tmp_path / "socket")})
    assert (result.stdout, result.returncode) == ("120\n", 0), result.stderr
    assert asked.asked[MAKE] == 0
    assert len(Files(tmp_path / "trace").written()) == 20


def test_what_the_cache_cannot_keep_is_asked_for_again(bench: Bench, program: Path, tmp_path: Path) -> None:
    with listener(tmp_path, MAY_BE_CACHED) as asked:
        asked.cache = Cache(tmp_path / "elsewhere")
        assert run(bench, program, tmp_path, 3, "later") == "3\n"
    assert (asked.asked[MAKE_AHEAD], asked.asked[MAKE]) == (3, 3)
    assert reasons(tmp_path) == {"probed": 3}


def test_a_reason_is_not_asked_for_again(bench: Bench, program: Path, tmp_path: Path) -> None:
    with listener(tmp_path, TEXT) as asked:
        assert run(bench, program, tmp_path, 3, "later") == "3\n"
    assert (asked.asked[MAKE_AHEAD], asked.asked[MAKE]) == (3, 0)
    assert reasons(tmp_path) == {"helper": 3}
    assert {event["detail"] for event in Files(tmp_path / "trace").events if event["event"] == "kernel"} == {
        "said the test"
    }


def test_cached_twins_are_not_asked_for(bench: Bench, program: Path, tmp_path: Path) -> None:
    with listener(tmp_path, MAY_BE_CACHED):
        run(bench, program, tmp_path, 3, "later")
    (tmp_path / "socket").unlink()
    with listener(tmp_path, MAY_BE_CACHED) as asked:
        run(bench, program, tmp_path, 3, "later")
    assert asked.asked[MAKE_AHEAD] + asked.asked[MAKE] == 0


def test_so_many_descriptors_at_most_are_in_use(bench: Bench, program: Path, tmp_path: Path) -> None:
    """The others are asked for when they are needed."""
    with listener(tmp_path, MAY_BE_CACHED) as asked:
        assert run(bench, program, tmp_path, 80, "later") == "80\n"
    # One that is answered makes room for another.
    assert asked.asked[MAKE_AHEAD] >= 64
    assert asked.asked[MAKE_AHEAD] + asked.asked[MAKE] == 80
    assert reasons(tmp_path) == {"probed": 80}


def test_so_many_wait_at_most_at_a_time(bench: Bench, program: Path, tmp_path: Path) -> None:
    with listener(tmp_path, None, answers=False) as asked:
        assert run(bench, program, tmp_path, 80, "later", NEUTRINO_TIMEOUT="5") == "80\n"
    assert (asked.asked[MAKE_AHEAD], asked.asked[MAKE]) == (64, 0)


def test_nobody_waits_once_two_took_too_long(bench: Bench, program: Path, tmp_path: Path) -> None:
    with listener(tmp_path, None, answers=False) as asked:
        assert run(bench, program, tmp_path, 10, "later", NEUTRINO_TIMEOUT="1") == "10\n"
    assert (asked.asked[MAKE_AHEAD], asked.asked[MAKE]) == (10, 0)
    details = Counter(event["detail"] for event in Files(tmp_path / "trace").events if event["event"] == "kernel")
    assert details == {
        "the helper took too long": 2, "the helper took too long for others, and is not waited for any more": 8,
    }  # fmt: skip


@pytest.mark.parametrize("quiet", ["", "1"])
def test_a_wait_of_more_than_a_second_is_explained_once(
    bench: Bench, program: Path, tmp_path: Path, quiet: str
) -> None:
    (tmp_path / "image").write_bytes(IMAGE)
    ours, its = pty.openpty()
    with listener(tmp_path, None, answers=False):
        environment = bench.hooked(bench.environment(tmp_path), tmp_path) | {
            "NEUTRINO_SOCKET": str(tmp_path / "socket"), "NEUTRINO_TIMEOUT": "2", "NEUTRINO_QUIET": quiet,
        }  # fmt: skip
        subprocess.run([program, "4", "later"], env=environment, stderr=its, check=True, timeout=600)
        os.close(its)
        said = b""
        # A terminal that nobody has open any more gives an error.
        with suppress(OSError):
            while piece := os.read(ours, 4096):
                said += piece
    os.close(ours)
    assert said.count(b"adding the probes to this program's kernels") == (not quiet)


AHEAD = """
import os, socket, struct, sys, time
from pathlib import Path
from neutrino.maker.keys import image_key
from neutrino.maker.store import Cache
from neutrino.device.kind import DeviceKind
from neutrino.maker.serving import TwinSettings
from neutrino.run.listener import Settings, start_listener
from neutrino.probing.selection import Selection
from neutrino.run.probes import RunProbes
from neutrino.verification import load_probes

cache = Cache(Path(sys.argv[1]))
settings = Settings(TwinSettings(
    RunProbes.of(load_probes(["block_sched"])), Selection(), bytes(32), cache, None, device=DeviceKind.EMBEDDED,
    assembled=False,
))
path = str(start_listener(settings))
assert "neutrino.maker.patcher" not in sys.modules
text = Path(sys.argv[2]).read_bytes()
waiting = []
for number in range(24):
    image = text + b"// %d\\0" % number
    key = image_key(bytes(32), "sm_90", image)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    connection.sendall(struct.pack("<8sII32s16sIIQ", b"NTASK", 4, os.getpid(), key, b"sm_90", 0, 0, len(image)) + image)
    waiting.append((connection, key))
for connection, key in waiting:
    reply = connection.recv(4096, socket.MSG_WAITALL)
    assert reply == struct.pack("<8sIIQ", b"NTREPLY", 2, 0, 0), reply
    assert cache.read(key)
print(len(waiting), flush=True)
os.execv("/bin/true", ["true"])
"""


def test_the_listener_makes_them_ahead_for_the_cache(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(IMAGE)
    result = subprocess.run(
        [sys.executable, "-c", AHEAD, str(tmp_path / "cache"), str(tmp_path / "image")],
        capture_output=True, text=True, timeout=600, check=False, env=os.environ,
    )  # fmt: skip
    assert (result.stdout, result.returncode) == ("24\n", 0), result.stderr
