"""Workers of the maker: which of them go on with further requests, and which are killed."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from neutrino.maker import maker_process, request_workers
from neutrino.maker.last_used import LastUsed
from neutrino.maker.request_workers import Answer

DEADLINE_S = 60


@pytest.fixture(autouse=True)
def any_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers begin with all the memory of the process of the tests, which may be much."""
    monkeypatch.setattr(request_workers, "_LARGEST", 1 << 50)


@contextmanager
def maker(serve: Callable[[socket.socket, bytes], Answer | None]) -> Iterator[Callable[[bytes], socket.socket]]:
    """Start a maker; gives what hands a request over and returns the connection of whoever asks."""
    channel = maker_process.start_maker(lambda _: None, serve, ends_with_clients=True)
    assert channel is not None

    def ask(message: bytes) -> socket.socket:
        ours, its = socket.socketpair()
        with its:
            assert maker_process.hand_over(channel, its, message)
        return ours

    with channel:
        yield ask


def answered(connection: socket.socket) -> str:
    """The whole answer on a connection."""
    connection.settimeout(DEADLINE_S)
    data = b""
    while piece := connection.recv(4096):
        data += piece
    return data.decode()


def pid_of(_: socket.socket, message: bytes) -> Answer:
    """Answers with the worker's pid, and may go on if it is asked to."""
    return Answer(str(os.getpid()).encode(), may_go_on=message == b"kernel")


def has_ended(pid: int) -> bool:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def test_a_worker_goes_on_with_further_kernels() -> None:
    with maker(pid_of) as ask:
        pids = []
        for message in (b"kernel", b"kernel", b"kernel", b"image", b"kernel"):
            with ask(message) as connection:
                pids.append(answered(connection))
        # The one that was asked for an image has ended.
        assert pids[0] == pids[1] == pids[2] == pids[3] != pids[4]
        assert has_ended(int(pids[0]))
    assert has_ended(int(pids[4]))


def test_one_that_has_taken_much_memory_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_workers, "_LARGEST", 1 << 20)
    with maker(pid_of) as ask, ask(b"kernel") as first, ask(b"kernel") as second:
        assert answered(first) != answered(second)


def test_one_that_waits_for_long_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_workers, "_LONGEST_WAIT_S", 0.05)
    with maker(pid_of) as ask:
        with ask(b"kernel") as first:
            pid = int(answered(first))
        assert has_ended(pid)
        # Requests that come just then are answered, by it or another one.
        for number in range(60):
            time.sleep(0.05 + (number % 20 - 10) / 5000)
            with ask(b"kernel") as connection:
                assert answered(connection)


def test_of_many_a_few_wait_for_further_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_workers, "_MOST_WAITING", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))

    def serve(connection: socket.socket, message: bytes) -> Answer:
        connection.send(b"+")
        connection.recv(1)
        return pid_of(connection, message)

    with maker(serve) as ask:
        connections = [ask(b"kernel") for _ in range(3)]
        # All of them are busy at once.
        assert all(connection.recv(1) == b"+" for connection in connections)
        for connection in connections:
            connection.send(b"!")
        pids = [int(answered(connection)) for connection in connections]
        assert len({*pids}) == 3
        with ask(b"kernel") as again:
            assert again.recv(1) == b"+"
            again.send(b"!")
            assert int(answered(again)) in pids
        deadline = time.monotonic() + DEADLINE_S
        while sum(Path(f"/proc/{pid}").exists() for pid in pids) > 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert sum(Path(f"/proc/{pid}").exists() for pid in pids) == 1


def slow(folder: Path, _: socket.socket, message: bytes) -> Answer:
    """Says who it is, and takes long: before it answers, or to finish what is left."""
    (folder / "pid.new").write_text(str(os.getpid()))
    (folder / "pid.new").rename(folder / "pid")
    if message == b"before":
        signal.pause()

    def finish() -> None:
        while not (folder / "gone").exists():
            time.sleep(0.01)
        (folder / "finished").touch()

    return Answer(b"answer", may_go_on=True, finish=finish)


@pytest.mark.parametrize("message", [b"before", b"after"])
def test_a_worker_is_killed_whose_client_has_gone_without_an_answer(message: bytes, tmp_path: Path) -> None:
    """One that has answered finishes what it does for others, also when nobody is left to ask."""
    with maker(partial(slow, tmp_path)) as ask:
        with ask(message) as connection:
            if message == b"after":
                assert connection.recv(6, socket.MSG_WAITALL) == b"answer"
            deadline = time.monotonic() + DEADLINE_S
            while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
        pid = int((tmp_path / "pid").read_text())
        if message == b"before":
            assert has_ended(pid)
            return
        # Time for the maker to see that the client has gone.
        time.sleep(0.3)
    # And that nobody asks any more.
    if message == b"after":
        time.sleep(0.3)
        (tmp_path / "gone").touch()
        deadline = time.monotonic() + DEADLINE_S
        while not (tmp_path / "finished").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (tmp_path / "finished").exists()


def test_what_was_used_longest_ago_is_forgotten() -> None:
    kept: LastUsed[str, int] = LastUsed(10)
    for number, key in enumerate("abc"):
        kept.put(key, number, 4)
    assert [kept.get(key) for key in "abc"] == [None, 1, 2]
    assert kept.get("b") == 1
    kept.put("d", 3, 4)
    assert [kept.get(key) for key in "bcd"] == [1, None, 3]
    # One alone is kept however large it is, and put again it counts once.
    kept.put("e", 4, 100)
    assert [kept.get(key) for key in "bde"] == [None, None, 4]
    kept.put("e", 5, 1)
    kept.put("f", 6, 9)
    assert [kept.get(key) for key in "ef"] == [5, 6]
