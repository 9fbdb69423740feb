"""The functions that the device provides to kernels: formatted output, assertion, heap, conditions of graphs.

Each takes the batch, the index of the calling statement in its module (for fault reports), its arguments (an array with
one element per thread, or a scalar, each) and the indices of the calling threads in the batch.
"""

from __future__ import annotations

import operator
import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from neutrino.emulator.access import Accesses
from neutrino.emulator.address_space import OutOfMemoryError, Space
from neutrino.emulator.state import Indices
from neutrino.errors import FaultKind

_BYTE = np.dtype("u1")
_WORD = np.dtype("u4")
_LONGEST_STRING = 1 << 12
_CONVERSION = re.compile(
    rb"%(?P<flags>[-+ #0]*)(?P<width>\*|\d{0,4})(?P<precision>\.(?:\*|\d{0,4}))?"
    rb"(?P<length>hh|h|ll|l|j|z|t|L)?(?P<kind>[diouxXcsfFeEgGaAp%])"
)
# Length modifiers of 64-bit integers.
_WIDE = (b"l", b"ll", b"j", b"z", b"t")

DeviceFunction = Callable[[Accesses, int, list[Any], Indices], Any]
"""(batch, statement, arguments, threads) → the result: an array with one element per thread, or None.

statement: the index of the call in its module, for fault reports. arguments: for each, an array with one element per
thread, or a scalar. threads: the indices of the calling threads in the batch.
"""


def _read_string(batch: Accesses, statement: int, address: int, thread: int) -> bytes:
    """Read the zero-terminated string at a generic address, of which at most 4096 bytes count.

    batch: what the thread belongs to. statement: the index of the call in its module, for fault reports. thread: the
    index in the batch of the thread that reads.
    """
    content = bytearray()
    # The threads that load: this one.
    active = np.array([thread])
    while len(content) < _LONGEST_STRING:
        address_of_byte = np.uint64(address + len(content))
        (byte,) = batch.load_some(statement, Space.GENERIC, address_of_byte, _BYTE, 1, active)
        value = int(np.atleast_1d(byte)[0])
        if not value:
            break
        content.append(value)
    return bytes(content)


class _ArgumentReader:
    """Reads a thread's argument buffer of vprintf: values one after the other, each at its natural alignment."""

    def __init__(self, batch: Accesses, statement: int, address: int, thread: int) -> None:
        """address: generic address of the buffer. thread: index in the batch of the thread that reads it.

        statement: the index of the call in its module, for fault reports.
        """
        self.batch = batch
        self.statement = statement
        # Where the next value is read.
        self.address = address
        # The threads that load: this one.
        self.active = np.array([thread])

    def take(self, code: str) -> Any:
        """Read the next value. code: its format for the `struct` module."""
        size = struct.calcsize(code)
        # Round up to the alignment, which is the size.
        self.address = -(-self.address // size) * size
        address = np.uint64(self.address)
        (word,) = self.batch.load_some(self.statement, Space.GENERIC, address, np.dtype(f"u{size}"), 1, self.active)
        self.address += size
        # The word has the bits of the value, of whatever type.
        return struct.unpack(code, np.atleast_1d(word).tobytes())[0]


def _format(batch: Accesses, statement: int, template: bytes, arguments: _ArgumentReader, thread: int) -> bytes:
    """Return a printf template with its conversions replaced by the values that `arguments` reads.

    batch, statement, thread: for the strings among them, see `_read_string`.
    """

    def convert(match: re.Match[bytes]) -> bytes:
        """Return the text of one conversion, such as ``%5.2f``, with the next argument.

        A ``*`` takes the width or precision from the arguments, too, before the value. Floats are always doubles and
        small integers 32-bit, as in the variable arguments of C.
        """
        kind = match["kind"].decode()
        if kind == "%":
            # An escaped percent sign, which takes no argument.
            return b"%"
        width = str(arguments.take("<i")) if match["width"] == b"*" else match["width"].decode()
        precision = (match["precision"] or b"").decode()
        if precision == ".*":
            precision = f".{arguments.take('<i')}"
        flags = match["flags"].decode()
        wide = match["length"] in _WIDE
        value: Any
        if kind == "s":
            value = _read_string(batch, statement, arguments.take("<Q"), thread).decode("latin-1")
        elif kind == "c":
            value = arguments.take("<i") & 0xFF
        elif kind == "p":
            # A pointer prints like %#x.
            value, kind, flags = arguments.take("<Q"), "x", flags + "#"
        elif kind in "fFeEgGaA":
            value = arguments.take("<d")
            if kind in "aA":
                # Python's % operator has no hexadecimal floats.
                digits = float(value).hex()
                return (digits if kind == "a" else digits.upper()).encode()
        elif kind in "di":
            value = arguments.take("<q" if wide else "<i")
        else:
            value = arguments.take("<Q" if wide else "<I")
            # Python's integers have no sign bit: what was read as unsigned prints as such.
            kind = "d" if kind == "u" else kind
        # Python's % operator formats the conversions that are left as C does.
        conversion = f"%{flags}{width}{precision}{kind}"
        return str(operator.mod(conversion, (value,))).encode("latin-1", "replace")

    return _CONVERSION.sub(convert, template)


def _print(batch: Accesses, statement: int, arguments: list[Any], threads: Indices) -> Any:
    """Execute ``vprintf(template, buffer)``, thread by thread; return the number of values that each has printed.

    A `DeviceFunction`. Its arguments are generic addresses: of the zero-terminated template, and of the values.
    statement: the instruction's index in the module, for fault reports.
    """
    templates, buffers = (np.broadcast_to(argument, threads.shape) for argument in arguments)
    results = np.zeros(threads.size, np.uint32)
    for position, thread in enumerate(threads.tolist()):
        template = _read_string(batch, statement, int(templates[position]), thread)
        values = _ArgumentReader(batch, statement, int(buffers[position]), thread)
        batch.device_state.print(_format(batch, statement, template, values, thread))
        # %% prints no value.
        results[position] = sum(match["kind"] != b"%" for match in _CONVERSION.finditer(template))
    return results


def _fail(batch: Accesses, statement: int, arguments: list[Any], threads: Indices) -> Any:
    """Execute ``__assertfail(message, file, line, …)``: raise DeviceFaultError for the first of the threads.

    A `DeviceFunction`. message, file: generic addresses of zero-terminated strings. statement: the instruction's index
    in the module, for fault reports.
    """
    thread = int(threads[0])
    # Arguments may be scalars for all threads, hence the broadcasting.
    message, file = (
        _read_string(batch, statement, int(np.broadcast_to(address, threads.shape)[0]), thread).decode("latin-1")
        for address in arguments[:2]
    )
    line = int(np.broadcast_to(arguments[2], threads.shape)[0])
    batch.fault(FaultKind.TRAP, statement, f"assertion {message!r} of {file}:{line} failed", thread=thread)


def _allocate(batch: Accesses, statement: int, arguments: list[Any], threads: Indices) -> Any:
    """Execute ``malloc(size)`` for each thread; return the addresses, 0 for a size of 0 or if there is no room.

    A `DeviceFunction`, whose argument is the size in bytes. statement: the instruction's index in the module, for fault
    reports.
    """
    results = np.zeros(threads.size, np.uint64)
    for position, size in enumerate(np.broadcast_to(arguments[0], threads.shape).tolist()):
        try:
            # No allocation is empty, so that a size of 0 gives a null pointer.
            results[position] = batch.device_state.heap.allocate(size) if size else 0
        except OutOfMemoryError:
            results[position] = 0
    return results


def _free(batch: Accesses, statement: int, arguments: list[Any], threads: Indices) -> Any:
    """Execute ``free(address)`` for each thread; 0 does nothing.

    A `DeviceFunction`, whose argument is the address. Raise DeviceFaultError for any other address that is no
    allocation. statement: the instruction's index in the module, for fault reports.
    """
    for position, address in enumerate(np.broadcast_to(arguments[0], threads.shape).tolist()):
        try:
            if address:
                batch.device_state.heap.free(address)
        except KeyError:
            detail = "free of what malloc gave not"
            thread = int(threads[position])
            batch.fault(FaultKind.OUT_OF_BOUNDS, statement, detail, thread=thread, address=address)
    return None


def _set_conditional(batch: Accesses, statement: int, arguments: list[Any], threads: Indices) -> Any:
    """Execute ``cudaGraphSetConditional(handle, value)``: handles of the stand-in driver are the values' addresses.

    statement: the instruction's index in the module, for fault reports.
    """
    handles, values = (np.broadcast_to(argument, threads.shape) for argument in arguments)
    batch.store_some(statement, Space.GLOBAL, handles, _WORD, [values.astype(_WORD)], threads)


# By the names in PROVIDED.
DEVICE_FUNCTIONS: dict[str, DeviceFunction] = {
    "vprintf": _print,
    "__assertfail": _fail,
    "malloc": _allocate,
    "free": _free,
    "cudaGraphSetConditional": _set_conditional,
}
