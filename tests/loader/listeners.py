"""What stands in the listener's place in tests of the hook: it says when twins are there."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from neutrino.abi.requests import REPLY, REPLY_MAGIC, REQUEST
from neutrino.maker.keys import image_key
from neutrino.maker.store import Cache
from tests.loader.conftest import RUN_KEY, entry_of

MAKE, MAKE_AHEAD = 2, 4
ENTRY, TEXT, MAY_BE_CACHED = 0, 1, 2


class Listener:
    """In the listener's place. status: of its answers to requests that are made ahead; None: it gives none yet.

    asked: requests by kind. data: what followed their heads. answers: whether others get entries.
    """

    def __init__(self, path: Path, cache: Cache, status: int | None, *, answers: bool) -> None:
        self.path = path
        self.cache = cache
        self.status = status
        self.answers = answers
        self.asked: Counter[int] = Counter()
        self.data: list[bytes] = []
        self.kept: list[tuple[socket.socket, bytes]] = []
        # Of what is above, while a request is answered or kept.
        self.lock = threading.Lock()

    def serve(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            self.answer(connection)

    def answer(self, connection: socket.socket) -> None:
        import numpy as np

        header = connection.recv(REQUEST.size, socket.MSG_WAITALL)
        request = np.frombuffer(header, REQUEST.dtype)[0]
        kind, size = int(request["kind"]), int(request["size"])
        data = connection.recv(size, socket.MSG_WAITALL) if size else b""
        with self.lock:
            self.asked[kind] += 1
            self.data.append(data)
            status, answer = None, b""
            if kind == MAKE_AHEAD:
                status, answer = self.status, b"said the test" if self.status == TEXT else b""
                if status == MAY_BE_CACHED and self.answers:
                    self.cache.write(image_key(RUN_KEY, "sm_90", data), entry_of(data))
            elif kind == MAKE and self.answers:
                status, answer = ENTRY, entry_of(data)
            if kind in (MAKE, MAKE_AHEAD) and status is None:
                # Whoever waits for it waits until answer_kept.
                self.kept.append((connection, data))
                return
            if status is not None:
                reply(connection, status, answer)
            connection.close()

    def answer_kept(self, containing: bytes | None = None) -> None:
        """Answer what was asked for so far, and all from now on; or of the first only images with these bytes."""
        with self.lock:
            if containing is None:
                self.status = MAY_BE_CACHED
            kept, self.kept = self.kept, []
            for connection, data in kept:
                if containing is not None and containing not in data:
                    self.kept.append((connection, data))
                    continue
                self.cache.write(image_key(RUN_KEY, "sm_90", data), entry_of(data))
                reply(connection, MAY_BE_CACHED, b"")
                connection.close()


def reply(connection: socket.socket, status: int, answer: bytes) -> None:
    """Answer a request, if who asked is still there: the process may have ended."""
    import numpy as np

    header = np.zeros((), REPLY.dtype)
    header["magic"], header["status"], header["size"] = REPLY_MAGIC, status, len(answer)
    with suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(header.tobytes() + answer)


@contextmanager
def listener(home: Path, status: int | None, *, answers: bool = True) -> Iterator[Listener]:
    home.mkdir(exist_ok=True)
    path = home / "socket"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(64)
        found = Listener(path, Cache(home / "cache"), status, answers=answers)
        thread = threading.Thread(target=found.serve, args=(listening,))
        thread.start()
        try:
            yield found
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection, _ in found.kept:
                connection.close()
