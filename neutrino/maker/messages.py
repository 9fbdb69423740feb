"""The messages between hooked processes and the listener, as bytes: heads, kinds and limits (``abi/requests.py``)."""

from __future__ import annotations

import socket
import struct

REQUEST = struct.Struct("<8sII32s16sIIQ")
"""magic, kind, pid, key, arch, driver version, reserved, size of what follows."""
REPLY = struct.Struct("<8sIIQ")
"""magic, status, reserved, size of what follows: an entry or a text."""
REQUEST_MAGIC = b"NTASK\0\0\0"
REPLY_MAGIC = b"NTREPLY\0"
BEGIN_TRACE, MAKE, MAKE_AHEAD = 1, 2, 4
"""Kinds of requests. ``MAKE_AHEAD`` asks for an entry that the process may need later; nobody may read the answer."""
ENTRY_FOLLOWS, TEXT_FOLLOWS, MAY_BE_CACHED = 0, 1, 2
"""Statuses of replies."""
LARGEST_IMAGE = 1 << 33
"""Bytes of an image that are accepted, at most."""
_PIECE = 1 << 20
"""Bytes that are received at once, at most."""


def receive(connection: socket.socket, size: int) -> bytes | None:
    """Receive exactly size bytes; None if the connection ends earlier."""
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(min(size - len(data), _PIECE))
        if not piece:
            return None
        data += piece
    return bytes(data)
