"""What the functions that the device provides do: formatted output, assertion, heap."""

from __future__ import annotations

import operator
import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from neutrino.emulator.access import Accesses
from neutrino.emulator.memory import OutOfMemoryError, Space
from neutrino.emulator.state import Indices
from neutrino.errors import FaultKind

_BYTE = np.dtype("u1")
_LONGEST = 1 << 12
_CONVERSION = re.compile(
    rb"%(?P<flags>[-+ #0]*)(?P<width>\*|\d{0,4})(?P<precision>\.(?:\*|\d{0,4}))?"
    rb"(?P<length>hh|h|ll|l|j|z|t|L)?(?P<kind>[diouxXcsfFeEgGaAp%])"
)
_WIDE = (b"l", b"ll", b"j", b"z", b"t")

# A function of the batch, a statement's number, its arguments (an array or scalar each) and the threads → the result.
DeviceFunction = Callable[[Accesses, int, list[Any], Indices], Any]


def _string(batch: Accesses, number: int, address: int, thread: int) -> bytes:
    found = bytearray()
    at = np.array([thread])
    while len(found) < _LONGEST:
        (byte,) = batch.load_some(number, Space.GENERIC, np.uint64(address + len(found)), _BYTE, 1, at)
        value = int(np.atleast_1d(byte)[0])
        if not value:
            break
        found.append(value)
    return bytes(found)


class _Arguments:
    # The buffer of vprintf: arguments one after the other, each at its natural alignment.
    def __init__(self, batch: Accesses, number: int, address: int, thread: int) -> None:
        self.batch = batch
        self.number = number
        self.address = address
        self.at = np.array([thread])

    def take(self, code: str) -> Any:
        size = struct.calcsize(code)
        self.address = -(-self.address // size) * size
        address = np.uint64(self.address)
        (word,) = self.batch.load_some(self.number, Space.GENERIC, address, np.dtype(f"u{size}"), 1, self.at)
        self.address += size
        return struct.unpack(code, np.atleast_1d(word).tobytes())[0]


def _formatted(batch: Accesses, number: int, text: bytes, arguments: _Arguments, thread: int) -> bytes:
    def replaced(match: re.Match[bytes]) -> bytes:
        kind = match["kind"].decode()
        if kind == "%":
            return b"%"
        width = str(arguments.take("<i")) if match["width"] == b"*" else match["width"].decode()
        precision = (match["precision"] or b"").decode()
        if precision == ".*":
            precision = f".{arguments.take('<i')}"
        flags = match["flags"].decode()
        wide = match["length"] in _WIDE
        value: Any
        if kind == "s":
            value = _string(batch, number, arguments.take("<Q"), thread).decode("latin-1")
        elif kind == "c":
            value = arguments.take("<i") & 0xFF
        elif kind == "p":
            value, kind, flags = arguments.take("<Q"), "x", flags + "#"
        elif kind in "fFeEgGaA":
            value = arguments.take("<d")
            if kind in "aA":
                digits = float(value).hex()
                return (digits if kind == "a" else digits.upper()).encode()
        else:
            value = arguments.take(("<q" if kind in "di" else "<Q") if wide else ("<i" if kind in "di" else "<I"))
            kind = "d" if kind == "u" else kind
        conversion = f"%{flags}{width}{precision}{kind}"
        return str(operator.mod(conversion, (value,))).encode("latin-1", "replace")

    return _CONVERSION.sub(replaced, text)


def _print(batch: Accesses, number: int, arguments: list[Any], threads: Indices) -> Any:
    formats, buffers = (np.broadcast_to(one, threads.shape) for one in arguments)
    results = np.zeros(threads.size, np.uint32)
    for place, thread in enumerate(threads.tolist()):
        text = _string(batch, number, int(formats[place]), thread)
        values = _Arguments(batch, number, int(buffers[place]), thread)
        printed = _formatted(batch, number, text, values, thread)
        batch.device_state.print(printed)
        results[place] = sum(one["kind"] != b"%" for one in _CONVERSION.finditer(text))
    return results


def _fail(batch: Accesses, number: int, arguments: list[Any], threads: Indices) -> Any:
    thread = int(threads[0])
    message, file = (
        _string(batch, number, int(np.broadcast_to(one, threads.shape)[0]), thread).decode("latin-1")
        for one in arguments[:2]
    )
    line = int(np.broadcast_to(arguments[2], threads.shape)[0])
    batch.fault(FaultKind.TRAP, number, f"assertion {message!r} of {file}:{line} failed", thread=thread)


def _allocate(batch: Accesses, number: int, arguments: list[Any], threads: Indices) -> Any:
    results = np.zeros(threads.size, np.uint64)
    for place, size in enumerate(np.broadcast_to(arguments[0], threads.shape).tolist()):
        try:
            results[place] = batch.device_state.heap.allocate(size) if size else 0
        except OutOfMemoryError:
            results[place] = 0
    return results


def _free(batch: Accesses, number: int, arguments: list[Any], threads: Indices) -> Any:
    for place, address in enumerate(np.broadcast_to(arguments[0], threads.shape).tolist()):
        try:
            if address:
                batch.device_state.heap.free(address)
        except KeyError:
            thread = int(threads[place])
            batch.fault(FaultKind.OUT_OF_BOUNDS, number, "free of what malloc gave not", thread=thread, address=address)
    return None


# By the names of PROVIDED.
DEVICE_FUNCTIONS: dict[str, DeviceFunction] = {
    "vprintf": _print,
    "__assertfail": _fail,
    "malloc": _allocate,
    "free": _free,
}
