"""The process of the stand-in driver that runs what the host's streams launch, interleaved.

It gets work over a socket, and sees the host's device memory, and its pinned memory, through shared segments. It ends
when the host does.
"""

from __future__ import annotations

import ctypes
import math
import os
import random
import select
import socket
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from neutrino.emulator.code import module_code
from neutrino.emulator.container import ImageError, find_ptx
from neutrino.emulator.device import Device, Function, Run
from neutrino.emulator.loading_checks import check_names
from neutrino.emulator.memory import CONST_BASE, OutOfMemoryError, Window
from neutrino.emulator.module import LoadedModule
from neutrino.errors import DeviceFaultError, FaultKind, PtxRefusedError

SOCKET_FD = 3
HOST_PROCESS_FD = 4
SLICE = 24
"""Steps of one launch before the next one has its turn, and a message is looked for. A step takes some 10 µs or more,
so that a kernel that waits costs others little, and looking costs little itself."""

_HEADER = struct.Struct("<IIQ")  # code, bytes after it, id: channel.c
_LAUNCH = struct.Struct("<QI3I3IIII")  # struct ed_launch_request
_READY_ID = 0
_MOST_PRINTED = 64 << 20
"""Bytes that one launch may print; of more the latest are kept. What the host keeps of them is its limit."""
_MAX_THREADS = 1024


class _Request(IntEnum):
    """enum ed_request of channel.h."""

    LOAD = 1
    UNLOAD = 2
    LAUNCH = 3
    ALLOW = 4
    FORBID = 5


class _Status(IntEnum):
    """The driver's errors that a reply may carry."""

    SUCCESS = 0
    OUT_OF_MEMORY = 2
    INVALID_PTX = 218
    INVALID_HANDLE = 400
    ILLEGAL_INSTRUCTION = 715


# What a GPU does: a trap is an unspecified failure; threads that wait for ever end by the watchdog where there is one.
_FAULTS = {
    FaultKind.OUT_OF_BOUNDS: 700,
    FaultKind.MISALIGNED: 716,
    FaultKind.DEADLOCK: 702,
    FaultKind.STEP_LIMIT: 702,
    FaultKind.TRAP: 719,
    FaultKind.BAD_CALL: 718,
}


@dataclass
class _Module:
    loaded: LoadedModule
    kernels: tuple[Function, ...]


class Server:
    """One host's device. seed: of the schedules, None for the fixed one."""

    def __init__(self, channel: socket.socket, device: Device, windows: Sequence[Window], seed: int | None) -> None:
        self._channel = channel
        self._device = device
        self._windows = windows
        self._random = None if seed is None else random.Random(seed)
        self._modules: dict[int, _Module] = {}
        self._last_module = 0
        self._running: dict[int, Run] = {}
        self._printed: dict[int, bytearray] = {}
        self._received = bytearray()

    def serve(self) -> None:
        """Answer until the host has ended."""
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        # Where the kernel has no such descriptors the socket's end must do.
        if _is_open(HOST_PROCESS_FD):
            poll.register(HOST_PROCESS_FD, select.POLLIN)
        self._reply(_READY_ID, _Status.SUCCESS)
        while True:
            for descriptor, _ in poll.poll(0 if self._running else None):
                if descriptor == HOST_PROCESS_FD or not self._receive():
                    return
            self._advance()

    def _receive(self) -> bool:
        data = self._channel.recv(1 << 20)
        self._received += data
        while len(self._received) >= _HEADER.size:
            code, size, number = _HEADER.unpack_from(self._received)
            end = _HEADER.size + size
            if len(self._received) < end:
                break
            body = bytes(self._received[_HEADER.size : end])
            del self._received[:end]
            self._handle(_Request(code), number, body)
        return bool(data)

    def _reply(self, number: int, status: int, body: bytes = b"") -> None:
        self._channel.sendall(_HEADER.pack(status, len(body), number) + body)

    def _handle(self, request: _Request, number: int, body: bytes) -> None:
        if request is _Request.LAUNCH:
            self._launch(number, body)
        elif request is _Request.LOAD:
            self._load(number, body)
        elif request is _Request.UNLOAD:
            self._unload(number, *struct.unpack("<Q", body))
        elif request is _Request.ALLOW:
            address, size = struct.unpack("<QQ", body)
            self._window(address).allow(address, size)
        else:
            address, _ = struct.unpack("<QQ", body)
            self._window(address).forbid(address)

    def _window(self, address: int) -> Window:
        return next(window for window in self._windows if window.base <= address < window.end)

    # --- modules ---

    def _load(self, number: int, image: bytes) -> None:
        try:
            text = find_ptx(image)
            check_names(module_code(text))
            loaded = self._device.load(text)
        except ImageError as error:
            self._reply(number, error.fault, str(error).encode())
            return
        except PtxRefusedError as error:
            self._reply(number, _Status.INVALID_PTX, str(error).encode())
            return
        except OutOfMemoryError as error:
            self._reply(number, _Status.OUT_OF_MEMORY, f"no room for the module's variables: {error}".encode())
            return
        self._last_module += 1
        module = _Module(loaded, tuple(loaded.functions.values()))
        self._modules[self._last_module] = module
        self._reply(number, _Status.SUCCESS, _describe(self._last_module, module))

    def _unload(self, number: int, module: int) -> None:
        found = self._modules.pop(module, None)
        if found is not None:
            self._device.unload(found.loaded)
        self._reply(number, _Status.SUCCESS)

    # --- launches ---

    def _launch(self, number: int, body: bytes) -> None:
        module, kernel, *shape, shared, _, size = _LAUNCH.unpack_from(body)
        found = self._modules.get(module)
        if found is None:
            self._reply(number, _Status.INVALID_HANDLE, b"a kernel of an unloaded module was launched")
            return
        parameters = body[_LAUNCH.size : _LAUNCH.size + size]
        grid = (shape[0], shape[1], shape[2])
        block = (shape[3], shape[4], shape[5])
        try:
            run = self._device.begin(found.kernels[kernel], grid, block, parameters, shared=shared)
        except PtxRefusedError as error:
            self._reply(number, _Status.ILLEGAL_INSTRUCTION, str(error).encode())
            return
        except DeviceFaultError as error:
            self._reply(number, _FAULTS[error.kind], str(error).encode())
            return
        self._running[number] = run
        self._turn(number, run)

    def _advance(self) -> None:
        turns = list(self._running.items())
        if self._random is not None:
            self._random.shuffle(turns)
        for number, run in turns:
            self._turn(number, run)

    def _turn(self, number: int, run: Run) -> None:
        finished, status, said = False, int(_Status.SUCCESS), b""
        try:
            finished = run.advance(SLICE)
        except DeviceFaultError as error:
            finished, status, said = True, _FAULTS[error.kind], str(error).encode() + b"\0"
        except PtxRefusedError as error:
            finished, status, said = True, _Status.ILLEGAL_INSTRUCTION, str(error).encode() + b"\0"
        # Before another launch has its turn: it is this one's.
        if printed := self._device.take_printed():
            mine = self._printed.setdefault(number, bytearray())
            mine += printed
            del mine[:-_MOST_PRINTED]
        if finished:
            del self._running[number]
            statistics = run.statistics
            said = said or struct.pack("<QQ", statistics.thread_instructions, statistics.steps)
            self._reply(number, status, said + self._printed.pop(number, b""))


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<I", len(data)) + data + b"\0"


def _describe(number: int, module: _Module) -> bytes:
    """module.c reads it: describe()."""
    parts = [struct.pack("<QI", number, len(module.kernels))]
    for kernel in module.kernels:
        try:
            sizes = (kernel.shared_size, kernel.local_size)
        except PtxRefusedError:
            # The launch will say so: others of the module may run.
            sizes = (0, 0)
        required = (*kernel.directives.get("reqntid", ()), 1, 1)[:3] if "reqntid" in kernel.directives else (0, 0, 0)
        most = math.prod(kernel.directives.get("maxntid", (_MAX_THREADS,)))
        if required[0]:
            most = math.prod(required)
        parts.append(_string(kernel.name))
        parts.append(struct.pack("<III", kernel.parameter_size, *sizes))
        parts.append(struct.pack("<I3I", min(most, _MAX_THREADS), *required))
        parts.append(struct.pack("<I", len(kernel.parameters)))
        parts += [struct.pack("<II", parameter.offset, parameter.size) for parameter in kernel.parameters]
    variables = module.loaded.variables
    parts.append(struct.pack("<I", len(variables)))
    parts += [_string(name) + struct.pack("<QQ", *place) for name, place in variables.items()]
    return b"".join(parts)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _attach(segment: int, size: int) -> NDArray[np.uint8]:
    """A System V segment as an array. OSError: it is not there."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    address = libc.shmat(ctypes.c_int(segment), None, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), f"shmat: {os.strerror(ctypes.get_errno())}")
    buffer: NDArray[np.uint8] = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
    return buffer


def main(arguments: Sequence[str]) -> None:
    """The process. arguments: device memory, host memory, seed, steps.

    Device memory is ``segment:base:size:constants:variables``, host memory ``segment:base:size``: a System V segment,
    the address of its first byte for kernels, bytes; the first bytes of device memory are for variables of modules,
    the first of those for constants.
    """
    segment, base, size, constant_part, part = (int(word) for word in arguments[0].split(":"))
    host_segment, host_base, host_size = (int(word) for word in arguments[1].split(":"))
    seed = int(arguments[2], 0) if arguments[2] else None
    memory = _attach(segment, size)
    constants = Window(CONST_BASE, memory[:constant_part], constant=True)
    modules = Window(base + constant_part, memory[constant_part:part])
    windows = (Window(base + part, memory[part:]), Window(host_base, _attach(host_segment, host_size)))
    # A kernel that runs or polls for long is right; threads that wait for one another are detected without a limit.
    device = Device(memory=0, seed=seed, step_limit=int(arguments[3]) or sys.maxsize)
    device.place(modules, constants, windows)
    Server(socket.socket(fileno=SOCKET_FD), device, windows, seed).serve()
