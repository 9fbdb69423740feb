"""``control`` in a trace directory: what ``neutrino-ctl`` asks of a running process, and what that has answered."""

from __future__ import annotations

import enum
import struct

from neutrino.abi.structures import Member, Struct

CONTROL_MAGIC = b"NTCTRL\0\0"
CONTROL_VERSION = 1


class Command(enum.IntEnum):
    """What is asked. The numbers are part of the file format."""

    STATUS = 1
    ON = 2
    OFF = 3
    FLUSH = 4


class Recording(enum.IntFlag):
    """Why nothing is recorded now; 0 where something is. The bits are part of the file format."""

    STEERED = 1
    SWITCHED = 2
    OVER = 4
    ENDING = 8


CONTROL = Struct(
    "control",
    (
        Member("magic", "char", 8),
        Member("version", "u32"),
        Member("pid", "u32", note="as the process knows it"),
        Member("request", "u64", note="by neutrino-ctl: a number that is not used again, << 8 | the command"),
        Member("answer", "u64", note="by the process: the request that is answered; the rest is written before it"),
        Member("is_understood", "u32", note="0: the process does not know the command"),
        Member("off", "u32", note="why nothing is recorded, as bits; 0: it is"),
        Member("pool_bytes", "u64", note="device memory for maps, in all contexts"),
        Member("reserved", "u64", 2),
    ),
    "The file control in a trace directory, while the process runs.",
)


def last_answer(data: bytes) -> tuple[int, int]:
    """Return the number and the command of the request that the process answered last; zeros of none.

    data: the file's content; zeros, too, for what is no such content.
    """
    # Without NumPy, which whoever looks once a second need not load.
    letters = {"char": "{}s", "u32": "{}I", "u64": "{}Q"}
    layout = struct.Struct("<" + "".join(letters[member.type].format(member.count) for member in CONTROL.members))
    if len(data) != layout.size or not data.startswith(CONTROL_MAGIC):
        return 0, 0
    _, version, _, _, answer, *_ = layout.unpack(data)
    return (answer >> 8, answer & 0xFF) if version == CONTROL_VERSION else (0, 0)
