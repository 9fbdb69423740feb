"""The device process of the stand-in driver: it runs the kernels that the host's streams launch, interleaved.

The host is the program that uses the driver. Requests come over a socket. Device memory, and the host's pinned memory,
are shared segments. The process ends when the host does.
"""

from __future__ import annotations

import ctypes
import math
import os
import random
import re
import select
import socket
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from neutrino.emulator.address_space import CONST_BASE, OutOfMemoryError, Window
from neutrino.emulator.code import module_code
from neutrino.emulator.device import Device, Function, Run
from neutrino.emulator.loaded_module import LoadedModule
from neutrino.emulator.loaded_ptx import ImageError, find_ptx
from neutrino.emulator.loading_checks import check_names
from neutrino.errors import DeviceFaultError, FaultKind, PtxRefusedError

SOCKET_FD = 3
HOST_PROCESS_FD = 4
SLICE = 24
"""Steps that one launch runs before the next one's turn and a look at the socket. A step takes some 10 µs or more, so
that a kernel that waits costs the others little, and a look costs little."""

# The structures of channel.c and channel.h.
_HEADER = struct.Struct("<IIQ")  # code, bytes after the header, id
_LAUNCH = struct.Struct("<QI3I3IIII")  # struct ed_launch_request
_READY_ID = 0  # of the reply that no request asks for: the process has started
_MAX_PRINTED = 64 << 20
"""Bytes of a launch's printed text that are sent, the latest ones. The host applies its own limit."""
# What a kernel in a cluster of one block would answer or do differently from one in a larger cluster.
_CLUSTERS = re.compile(r"%(?:n?clusterid|cluster_|is_explicit_cluster)|mapa|getctarank|multicast::cluster")
_MAX_THREADS = 1024  # of a block


class _Request(IntEnum):
    """The requests of the host: enum ed_request of channel.h."""

    LOAD = 1
    UNLOAD = 2
    LAUNCH = 3
    ALLOW = 4
    FORBID = 5


class _Status(IntEnum):
    """The status of a reply: values of CUresult."""

    SUCCESS = 0
    OUT_OF_MEMORY = 2
    INVALID_PTX = 218
    INVALID_HANDLE = 400
    ILLEGAL_INSTRUCTION = 715


# The CUresult that a GPU's driver reports: a trap is an unspecified failure; threads that wait forever are ended by the
# watchdog, where there is one.
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
    """A loaded module. kernels: by the index that the host uses for them."""

    loaded: LoadedModule
    kernels: tuple[Function, ...]


class Server:
    """Serves one host, the program whose CUDA calls the stand-in driver sends here as requests.

    A request and its reply carry the same id; a launch is replied to when it has ended.
    """

    def __init__(self, channel: socket.socket, device: Device, windows: Sequence[Window], seed: int | None) -> None:
        """windows: the memory that the host allocates itself. seed: for the order of launches, None for a fixed one."""
        self._channel = channel
        self._device = device
        self._windows = windows
        self._random = None if seed is None else random.Random(seed)
        # By id; ``_last_module`` is the highest one given out, so that no id is used twice.
        self._modules: dict[int, _Module] = {}
        self._last_module = 0
        # The launches that have not ended, and what each has printed so far, by the id of the request.
        self._running: dict[int, Run] = {}
        self._printed: dict[int, bytearray] = {}
        # Bytes of requests that have not been handled.
        self._received = bytearray()

    def serve(self) -> None:
        """Handle requests and run launches until the host has ended."""
        poll = select.poll()
        poll.register(self._channel, select.POLLIN)
        # The pidfd of the host. An old Linux has none; then only the end of the socket shows that the host has ended.
        if _is_open(HOST_PROCESS_FD):
            poll.register(HOST_PROCESS_FD, select.POLLIN)
        self._reply(_READY_ID, _Status.SUCCESS)
        while True:
            # Without a launch that runs, wait (None) for a request; with one, only look (0).
            for descriptor, _ in poll.poll(0 if self._running else None):
                if descriptor == HOST_PROCESS_FD or not self._receive():
                    return
            self._advance()

    def _receive(self) -> bool:
        """Read from the socket and handle every request that is complete. Returns False at the end of the socket."""
        data = self._channel.recv(1 << 20)  # at most a MiB at once; the rest comes with the next call
        self._received += data
        while len(self._received) >= _HEADER.size:
            code, size, request_id = _HEADER.unpack_from(self._received)
            end = _HEADER.size + size
            if len(self._received) < end:
                break
            body = bytes(self._received[_HEADER.size : end])
            del self._received[:end]
            self._handle(_Request(code), request_id, body)
        return bool(data)

    def _reply(self, request_id: int, status: int, body: bytes = b"") -> None:
        """Send the reply to a request of the host. status: a CUresult. body: what follows the header."""
        self._channel.sendall(_HEADER.pack(status, len(body), request_id) + body)

    def _handle(self, request: _Request, request_id: int, body: bytes) -> None:
        """Handle one request. request_id: for the reply; ALLOW and FORBID have none. body: as channel.h says."""
        if request is _Request.LAUNCH:
            self._launch(request_id, body)
        elif request is _Request.LOAD:
            self._load(request_id, body)
        elif request is _Request.UNLOAD:
            (module_id,) = struct.unpack("<Q", body)
            self._unload(request_id, module_id)
        elif request is _Request.ALLOW:
            address, size = struct.unpack("<QQ", body)
            self._window(address).allow(address, size)
        else:  # FORBID
            address, _size = struct.unpack("<QQ", body)
            self._window(address).forbid(address)

    def _window(self, address: int) -> Window:
        """Return the window of the host's memory that contains an address."""
        return next(window for window in self._windows if window.base <= address < window.end)

    # --- modules ---

    def _load(self, request_id: int, image: bytes) -> None:
        """Load the PTX of an image, and reply with a description of the module, or with the reason for a refusal.

        image: the bytes that the program gave to the driver, PTX or a container that may have PTX in it.
        """
        try:
            text = find_ptx(image)
            check_names(module_code(text))
            loaded = self._device.load(text)
        except ImageError as error:
            self._reply(request_id, error.fault, str(error).encode())
            return
        except PtxRefusedError as error:
            self._reply(request_id, _Status.INVALID_PTX, str(error).encode())
            return
        except OutOfMemoryError as error:
            self._reply(request_id, _Status.OUT_OF_MEMORY, f"no room for the module's variables: {error}".encode())
            return
        self._last_module += 1
        module = _Module(loaded, tuple(loaded.functions.values()))
        self._modules[self._last_module] = module
        self._reply(request_id, _Status.SUCCESS, _describe(self._last_module, module))

    def _unload(self, request_id: int, module_id: int) -> None:
        """Free a module, and reply to the request. An unknown id is no error."""
        module = self._modules.pop(module_id, None)
        if module is not None:
            self._device.unload(module.loaded)
        self._reply(request_id, _Status.SUCCESS)

    # --- launches ---

    def _launch(self, request_id: int, body: bytes) -> None:
        """Begin a launch and give it its first turn. A launch that cannot begin is replied to with the reason.

        body: a struct ed_launch_request, then the kernel's parameter buffer.
        """
        # Of a cooperative launch the host has checked that all blocks can be resident at once.
        module_id, kernel, *dimensions, shared, _cooperative, size = _LAUNCH.unpack_from(body)
        module = self._modules.get(module_id)
        if module is None:
            self._reply(request_id, _Status.INVALID_HANDLE, b"a kernel of an unloaded module was launched")
            return
        parameters = body[_LAUNCH.size : _LAUNCH.size + size]
        grid = (dimensions[0], dimensions[1], dimensions[2])
        block = (dimensions[3], dimensions[4], dimensions[5])
        try:
            run = self._device.begin(module.kernels[kernel], grid, block, parameters, shared=shared)
        except PtxRefusedError as error:
            self._reply(request_id, _Status.ILLEGAL_INSTRUCTION, str(error).encode())
            return
        except DeviceFaultError as error:
            self._reply(request_id, _FAULTS[error.kind], str(error).encode())
            return
        self._running[request_id] = run
        self._turn(request_id, run)

    def _advance(self) -> None:
        """Give every launch that is running one turn, in random order if there is a seed.

        Launches of different streams may wait for each other, so they run interleaved.
        """
        turns = list(self._running.items())
        if self._random is not None:
            self._random.shuffle(turns)
        for request_id, run in turns:
            self._turn(request_id, run)

    def _turn(self, request_id: int, run: Run) -> None:
        """Run a launch for SLICE steps. When it has ended, by finishing or by an error, reply to its request.

        The reply is two counters (instructions, summed over threads, and basic blocks), or after an error a message and
        a zero byte; then what the kernel printed. request_id: of the request to launch.
        """
        finished = False
        status = int(_Status.SUCCESS)
        message = b""
        try:
            finished = run.advance(SLICE)
        except DeviceFaultError as error:
            finished, status, message = True, _FAULTS[error.kind], str(error).encode() + b"\0"
        except PtxRefusedError as error:
            finished, status, message = True, _Status.ILLEGAL_INSTRUCTION, str(error).encode() + b"\0"

        # All launches print into one buffer of the device: empty it before another launch has its turn.
        if new_text := self._device.take_printed():
            printed = self._printed.setdefault(request_id, bytearray())
            printed += new_text
            del printed[:-_MAX_PRINTED]  # all but the latest bytes

        if finished:
            del self._running[request_id]
            statistics = run.statistics
            content = message or struct.pack("<QQ", statistics.thread_instructions, statistics.steps)
            self._reply(request_id, status, content + self._printed.pop(request_id, b""))


def _string(text: str) -> bytes:
    """Encode a string for image.c: its length, the bytes, and a zero byte."""
    data = text.encode()
    return struct.pack("<I", len(data)) + data + b"\0"


def _describe(module_id: int, module: _Module) -> bytes:
    """Return the description of a module for the host: its kernels and variables. describe() of image.c reads it."""
    needs_clusters = any(_CLUSTERS.search(statement.text) for statement in module.loaded.code.statements)
    parts = [struct.pack("<QII", module_id, needs_clusters, len(module.kernels))]
    for kernel in module.kernels:
        try:
            sizes = (kernel.shared_size, kernel.local_size)
        except PtxRefusedError:
            # A launch of this kernel will be refused; other kernels of the module may run.
            sizes = (0, 0)
        # The block dimensions that .reqntid requires (one to three, the others are 1), zeros without it.
        required = (*kernel.directives["reqntid"], 1, 1)[:3] if "reqntid" in kernel.directives else (0, 0, 0)
        # The most threads of a block.
        max_threads = math.prod(kernel.directives.get("maxntid", (_MAX_THREADS,)))
        if required[0]:
            max_threads = math.prod(required)
        parts.append(_string(kernel.name))
        parts.append(struct.pack("<III", kernel.parameter_size, *sizes))
        parts.append(struct.pack("<I3I", min(max_threads, _MAX_THREADS), *required))
        parts.append(struct.pack("<I", len(kernel.parameters)))
        parts += [struct.pack("<II", parameter.offset, parameter.size) for parameter in kernel.parameters]
    variables = module.loaded.variables
    parts.append(struct.pack("<I", len(variables)))
    parts += [_string(name) + struct.pack("<QQ", address, size) for name, (address, size) in variables.items()]
    return b"".join(parts)


def _is_open(descriptor: int) -> bool:
    """Whether a file descriptor is open in this process."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _attach(segment: int, size: int) -> NDArray[np.uint8]:
    """Attach a System V shared memory segment, and return it as an array of bytes. Raises OSError if that fails.

    segment: the id of the segment, which the host made. size: in bytes.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    # At an address that the system chooses, for reading and writing. (void *)-1 says that it failed.
    address = libc.shmat(ctypes.c_int(segment), None, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), f"shmat: {os.strerror(ctypes.get_errno())}")
    buffer: NDArray[np.uint8] = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
    return buffer


def main(arguments: Sequence[str]) -> None:
    """Run the device process until its host ends. arguments: device memory, host memory, seed or "", step limit or 0.

    Device memory is ``segment:base:size:constants_end:variables_end``, host memory ``segment:base:size``: the id of a
    System V segment, the address at which kernels see it, its size in bytes. Device memory up to ``constants_end``
    is for the constants of modules, up to ``variables_end`` for their variables; both are offsets from its begin.
    """
    segment, base, size, constants_end, variables_end = (int(word) for word in arguments[0].split(":"))
    host_segment, host_base, host_size = (int(word) for word in arguments[1].split(":"))
    seed = int(arguments[2], 0) if arguments[2] else None
    step_limit = int(arguments[3])
    memory = _attach(segment, size)
    constants = Window(CONST_BASE, memory[:constants_end], constant=True)
    modules = Window(base + constants_end, memory[constants_end:variables_end])
    allocations = Window(base + variables_end, memory[variables_end:])
    windows = (allocations, Window(host_base, _attach(host_segment, host_size)))
    # No step limit unless asked for: a kernel may run or poll for long. Deadlocks are detected without a limit. The
    # device gets no memory of its own, but these windows.
    device = Device(memory=0, seed=seed, step_limit=step_limit or sys.maxsize)
    device.place(modules, constants, windows)
    Server(socket.socket(fileno=SOCKET_FD), device, windows, seed).serve()
