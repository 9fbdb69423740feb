"""What a process prints at its end of the results of one-liners, which it asks the listener for: good ones and bad."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from neutrino.abi.requests import REPLY_MAGIC, REQUEST

from .conftest import Bench, Reference

REPLY = struct.Struct("<8sIIQ")
RESULTS = 3


def reply(text: bytes, magic: bytes = REPLY_MAGIC, size: int | None = None) -> bytes:
    return REPLY.pack(magic, 1, 0, len(text) if size is None else size) + text


@contextmanager
def listener(path: Path, answer: bytes) -> Iterator[list[str]]:
    """A listener that sends this answer, and the traces that it was asked about."""
    asked: list[str] = []

    def serve(listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as stream:
                header = stream.read(REQUEST.size)
                (size,) = struct.unpack("<Q", header[-8:])
                trace = stream.read(size).decode()
                if struct.unpack_from("<I", header, 8) == (RESULTS,):
                    asked.append(trace)
                    connection.sendall(answer)

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        try:
            yield asked
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    ("answer", "printed"),
    [
        (reply(b"\n@a:\n  k  1\n"), "\n@a:\n  k  1\n"),
        (reply(b""), ""),
        (reply(b"no end of line"), "no end of line\n"),
        (reply(b"\x1b[31m red\n"), "?[31m red\n"),
        (reply(b"x" * 9000 + b"\nafter\n"), "after\n"),
        (reply(b"a", magic=b"NOTHING\0"), None),
        (reply(b"a", size=1 << 40), None),
        (reply(b"a", size=100), None),
        (reply(b"")[:10], None),
        (b"", None),
    ],
    ids=["text", "empty", "no-newline", "escapes", "long-line", "magic", "size", "truncated", "header", "nothing"],
)
def test_results_are_printed_or_their_place_is(
    any_bench: Bench, tmp_path: Path, reference: Reference, answer: bytes, printed: str | None
) -> None:
    with listener(tmp_path / "socket", answer) as asked:
        extra = {"NEUTRINO_RESULTS": "1", "NEUTRINO_SOCKET": str(tmp_path / "socket"), "NEUTRINO_QUIET": "1"}
        result = any_bench.run("plain", tmp_path, extra=extra)
    assert (result.stdout, result.returncode) == reference("plain")
    (trace,) = (tmp_path / "trace").iterdir()
    assert asked == [str(trace)]
    missing = f"neutrino: the results could not be read in time; see neutrino-report {trace}\n"
    assert result.stderr == (missing if printed is None else printed)


def test_without_a_listener(any_bench: Bench, tmp_path: Path) -> None:
    result = any_bench.run("plain", tmp_path, extra={"NEUTRINO_RESULTS": "1", "NEUTRINO_SOCKET": "/nowhere/socket"})
    assert "the results could not be read in time; see neutrino-report " in result.stderr


def test_nothing_is_asked_without_one_liners(bench: Bench, tmp_path: Path) -> None:
    with listener(tmp_path / "socket", reply(b"never\n")) as asked:
        result = bench.run("plain", tmp_path, extra={"NEUTRINO_SOCKET": str(tmp_path / "socket")})
    assert asked == []
    assert "never" not in result.stderr
