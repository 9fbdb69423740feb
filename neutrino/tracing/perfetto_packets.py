"""Perfetto's trace format, written with NumPy: many packets of one form at a time, which differ in numbers only.

A trace is a row of packets in the encoding of Protocol Buffers. Numbers there have as many bytes as they need; here
they have as many as their columns need, padded with bytes that add zeros, as the encoding allows. So packets of one
form have one length, and a table of bytes holds them. Field numbers are those of Perfetto's protos/perfetto/trace.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.late_dataclass import dataclass

Array = npt.NDArray[Any]
PACKET = 1
"""Of Trace: a packet."""
CLOCK_SNAPSHOT, TIMESTAMP, SEQUENCE, TRACK_EVENT, INTERNED_DATA, SEQUENCE_FLAGS = 6, 8, 10, 11, 12, 13
GPU_RENDER_STAGE, DEFAULTS, TRACK_DESCRIPTOR, GPU_INFO = 53, 59, 60, 128
"""Of TracePacket."""
STATE_CLEARED, NEEDS_STATE = 1, 2
"""Flags of a sequence: its interned names begin anew; the packet uses some."""
EVENT_NAME_IID, EVENT_TYPE, EVENT_TRACK = 10, 9, 11
EVENT_NAME, EVENT_ARGUMENT, EVENT_COUNT, EVENT_DOUBLE_COUNT, EVENT_FLOWS, EVENT_ENDING_FLOWS = 23, 4, 30, 44, 47, 48
EVENT_CORRELATION = 52
"""Of TrackEvent."""
SLICE_BEGIN, SLICE_END, INSTANT, COUNTER = 1, 2, 3, 4
"""Types of TrackEvent."""
ARGUMENT_NAME, ARGUMENT_UINT, ARGUMENT_INT, ARGUMENT_DOUBLE, ARGUMENT_TEXT, ARGUMENT_NAME_IID = 10, 3, 4, 5, 6, 1
"""Of DebugAnnotation."""
TRACK_UUID, TRACK_NAME, TRACK_PARENT, TRACK_COUNTER, TRACK_ORDERING, TRACK_RANK = 1, 2, 5, 8, 11, 12
TRACK_DESCRIPTION, TRACK_MERGING = 14, 15
"""Of TrackDescriptor."""
NOT_MERGED = 2
"""Of TrackDescriptor.SiblingMergeBehavior: tracks of one name stay apart."""
BY_RANK = 3
"""Of TrackDescriptor.ChildTracksOrdering: children are in the order of their ranks."""
MOST_NAME = 1000
"""Bytes of a name in a trace. Names of kernels have no limit of their own."""
_ONE_BYTE = tuple(bytes([value]) for value in range(0x80))
_FEW = 256
"""Packets that are few."""
_VARINT, _FIXED64, _BYTES = 0, 1, 2
"""Wire types of the encoding."""


def varint(value: int, width: int = 0) -> bytes:
    """Return a number in the encoding, from 0 to 2^64 - 1, in at least ``width`` bytes."""
    if value < 0x80 and width < 2:
        return _ONE_BYTE[value]
    found = bytearray()
    while True:
        more = value >> 7
        found.append((value & 0x7F) | (0x80 if more or len(found) + 1 < width else 0))
        value = more
        if not more and len(found) >= width:
            return bytes(found)


def number(field: int, value: int) -> bytes:
    """Return a field that is a number; a negative one as 64 bits of two's complement."""
    return varint(field << 3 | _VARINT) + varint(value & (1 << 64) - 1)


def fixed64(field: int, value: int) -> bytes:
    """Return a field that is a number of 8 bytes."""
    return varint(field << 3 | _FIXED64) + value.to_bytes(8, "little")


def double(field: int, value: float) -> bytes:
    """Return a field that is a fraction."""
    return varint(field << 3 | _FIXED64) + struct.pack("<d", value)


def data(field: int, value: bytes) -> bytes:
    """Return a field of bytes, or a message."""
    return varint(field << 3 | _BYTES) + varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    """Return a field that is a text, of ``MOST_NAME`` bytes at most: a longer one loses its middle."""
    return data(field, name_bytes(value))


def name_bytes(value: str) -> bytes:
    """Return a name as a trace may have it: UTF-8, without what is none, and with its middle cut out if it is long."""
    # What no character is, such as half of a surrogate pair, is shown as what Python writes for it.
    found = value.encode("utf-8", "backslashreplace")
    if len(found) <= MOST_NAME:
        return found
    half = (MOST_NAME - 3) // 2
    head, tail = found[:half].decode("utf-8", "ignore"), found[-half:].decode("utf-8", "ignore")
    return f"{head}…{tail}".encode()


def packet(*fields: bytes) -> bytes:
    """Return a packet of the trace, of its encoded fields."""
    return data(PACKET, b"".join(fields))


def argument(name: str, value: int | float | str) -> bytes:
    """Return an argument of a track's event, as TrackEvent has it."""
    if isinstance(value, str):
        encoded = text(ARGUMENT_TEXT, value)
    elif isinstance(value, float):
        encoded = double(ARGUMENT_DOUBLE, value)
    else:
        encoded = number(ARGUMENT_INT if value < 1 << 63 else ARGUMENT_UINT, value)
    return data(EVENT_ARGUMENT, text(ARGUMENT_NAME, name) + encoded)


@dataclass(frozen=True)
class Column:
    """A field of a form whose numbers differ from packet to packet.

    name: by which the numbers are given. width: bytes of the encoded number, 7 bits each. is_fixed: the number is one
    of 8 bytes, and no padded one.
    """

    name: str
    field: int
    width: int = 9
    is_fixed: bool = False


Piece = bytes | Column
"""Part of a message: what all packets have, or a number of each."""


@dataclass(frozen=True)
class Form:
    """Packets that differ in numbers only. template: a packet whose numbers are zeros. places: of each column, by its
    name, the offset and the width of its number, 0 for one of 8 bytes."""

    template: bytes
    places: Mapping[str, tuple[int, int]]

    def rows(self, count: int, **columns: Array | int) -> Array:
        """Return packets of this form, uint8 ``[packet][byte]``. columns: the numbers, below 2^63 and not negative.

        Raises ValueError for a number that the form has too few bytes for.
        """
        table = np.empty((count, len(self.template)), np.uint8)
        table[:] = np.frombuffer(self.template, np.uint8)
        for name, (offset, width) in self.places.items():
            _put(table, offset, width, columns[name])
        return table


def form(*pieces: Piece, **messages: tuple[int, tuple[Piece, ...]]) -> Form:
    """Return the form of packets. pieces: fields of the packet. messages: of messages in it, which follow these: each
    message's field and the pieces of it."""
    parts: list[Piece] = list(pieces)
    for field, inner in messages.values():
        size = sum(_size(piece) for piece in inner)
        parts += [varint(field << 3 | _BYTES) + varint(size), *inner]
    size = sum(_size(piece) for piece in parts)
    template = bytearray(varint(PACKET << 3 | _BYTES) + varint(size))
    places = {}
    for piece in parts:
        if isinstance(piece, bytes):
            template += piece
            continue
        template += varint(piece.field << 3 | (_FIXED64 if piece.is_fixed else _VARINT))
        places[piece.name] = (len(template), 0 if piece.is_fixed else piece.width)
        template += bytes(8) if piece.is_fixed else bytes(piece.width)
    return Form(bytes(template), places)


def _size(piece: Piece) -> int:
    """Return the bytes of a part of a message."""
    if isinstance(piece, bytes):
        return len(piece)
    return len(varint(piece.field << 3)) + (8 if piece.is_fixed else piece.width)


def _put(table: Array, offset: int, width: int, values: Array | int) -> None:
    """Write numbers into a column of a table of packets. width: of padded ones, 0 for those of 8 bytes."""
    wide = np.asarray(values, np.uint64)
    if not width:
        table[:, offset : offset + 8] = np.broadcast_to(wide, len(table)).astype("<u8")[:, None].view(np.uint8)
        return
    most = int(wide.max()) if wide.size else 0
    if most >> 7 * width:
        raise ValueError(f"{most} needs more than {width} bytes")
    if len(table) < _FEW:
        # All digits at once: less to call, more to compute.
        shifts = np.uint64(7) * np.arange(width, dtype=np.uint64)
        digits = (np.broadcast_to(wide, len(table))[:, None] >> shifts).astype(np.uint8) & np.uint8(0x7F)
        digits[:, :-1] |= np.uint8(0x80)
        table[:, offset : offset + width] = digits
        return
    # Digits that no number has are those of the zero.
    for digit in range(width):
        last = digit == width - 1
        if most >> 7 * digit:
            part = (wide >> np.uint64(7 * digit)).astype(np.uint8) & np.uint8(0x7F)
            table[:, offset + digit] = part if last else part | np.uint8(0x80)
        else:
            table[:, offset + digit] = 0 if last else 0x80


@dataclass(frozen=True)
class NamedForm:
    """Packets whose last field is a name of any length. head: all of a packet but the name. message: the offset in it
    of the length of the message that the name is in."""

    head: Form
    message: int

    def rows(self, names: Array, lengths: Array, **columns: Array | int) -> tuple[Array, Array]:
        """Return packets, uint8 ``[packet][byte]``, and which of their bytes count, for ``joined``.

        names: uint8 ``[packet][byte]``. lengths: how many bytes of each count; a packet has less than 128.
        """
        count, width = names.shape
        size = len(self.head.template)
        table = np.zeros((count, size + width), np.uint8)
        table[:, :size] = self.head.rows(count, **columns)
        table[:, 1] += lengths.astype(np.uint8)
        table[:, self.message] += lengths.astype(np.uint8)
        table[:, size - 1] = lengths
        table[:, size:] = names
        used = np.ones(table.shape, bool)
        used[:, size:] = np.arange(width) < lengths[:, None]
        return table, used


def named_form(*pieces: Piece, message: int, inner: tuple[Piece, ...], name: int) -> NamedForm:
    """Return the form of packets with a name. pieces: fields of the packet. message: the field after them, of a message
    of the pieces ``inner`` and the field ``name``."""
    head = form(*pieces, last=(message, (*inner, varint(name << 3 | _BYTES) + b"\0")))
    inside = sum(_size(piece) for piece in inner) + len(varint(name << 3)) + 1
    return NamedForm(head, len(head.template) - inside - 1)


def joined(*rows: tuple[Array, Array]) -> bytes:
    """Return the bytes that count of tables side by side, row after row. rows: of each its bytes, and which count."""
    table = np.concatenate([part for part, _ in rows], axis=1)
    found: Array = table[np.concatenate([used for _, used in rows], axis=1)]
    return bytes(found.data)


def mixed(*groups: tuple[Array, Array]) -> bytes:
    """Return packets of several forms in one order. groups: of each form the places in the order, from 0, and the
    packets, uint8 ``[packet][byte]``."""
    if len(groups) == 1 and (np.diff(groups[0][0]) > 0).all():
        return groups[0][1].tobytes()
    count = sum(len(places) for places, _ in groups)
    width = max(rows.shape[1] for _, rows in groups)
    table = np.empty((count, width), np.uint8)
    used = np.zeros((count, width), bool)
    for places, rows in groups:
        table[places, : rows.shape[1]] = rows
        used[places, : rows.shape[1]] = True
    return bytes(table[used].data)


def decimals(parts: Iterable[bytes | Array]) -> tuple[Array, Array]:
    """Return texts that are put together of fixed words and decimal numbers: uint8 ``[text][byte]``, and their lengths.

    parts: in their order; numbers, int64 ``[text]``, not negative.
    """
    columns: list[Array] = []
    used: list[Array] = []
    parts = list(parts)
    count = next(len(part) for part in parts if not isinstance(part, bytes))
    for part in parts:
        if isinstance(part, bytes):
            columns += [np.full(count, byte, np.uint8) for byte in part]
            used += [np.ones(count, bool)] * len(part)
            continue
        digits = len(str(int(part.max()))) if count else 1
        for power in reversed(range(digits)):
            columns.append((part // 10**power % 10 + ord("0")).astype(np.uint8))
            used.append(part >= 10**power if power else np.ones(count, bool))
    table, mask = np.stack(columns, axis=1), np.stack(used, axis=1)
    lengths = mask.sum(axis=1)
    # To the left, in their order.
    order = np.argsort(~mask, axis=1, kind="stable")
    return np.take_along_axis(table, order, axis=1), lengths
