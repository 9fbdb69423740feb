"""AMD's HIP runtime as Debian packages it (libamdhip64.so.5), on the stand-in of HSA's runtime. It is for a process of
its own, whose LD_LIBRARY_PATH begins with the folder of the stand-in."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

HIP = "libamdhip64.so.5"
_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2
_BUFFER, _SIZE, _END = 1, 2, 3
"""HIP_LAUNCH_PARAM_…"""


class HipError(Exception):
    """A function of HIP failed. name: of its error."""

    def __init__(self, function: str, name: str, problem: str) -> None:
        super().__init__(f"{function}: {name}{problem and f' ({problem})'}")
        self.name = name


class Packet(NamedTuple):
    """A dispatch. block, grid: in work-items. descriptor, code: addresses. kernarg: bytes of the arguments."""

    block: tuple[int, int, int]
    grid: tuple[int, int, int]
    group_segment: int
    descriptor: int
    code: int
    kernarg: bytes


_DISPATCH = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class Hip:
    """HIP's functions, and the packets that were dispatched. run: called with each."""

    def __init__(self, run: Callable[[Packet], None] | None = None) -> None:
        self.hsa = ctypes.CDLL("libhsa-runtime64.so.1", ctypes.RTLD_GLOBAL)
        self.hsa.hsa_stand_in_problem.restype = ctypes.c_char_p
        self.hsa.hsa_stand_in_arena.restype = ctypes.c_void_p
        self._hip = ctypes.CDLL(HIP, ctypes.RTLD_GLOBAL)
        self._hip.hipGetErrorName.restype = ctypes.c_char_p
        self.packets: list[Packet] = []
        self._run = run
        # Kept: the stand-in has its address.
        self._callback = _DISPATCH(self._dispatched)
        self.hsa.hsa_stand_in_on_dispatch(self._callback)
        self.call("hipInit", 0)

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function. Raises HipError."""
        status = getattr(self._hip, function)(*arguments)
        if status:
            problem = self.hsa.hsa_stand_in_problem().decode()
            raise HipError(function, self._hip.hipGetErrorName(status).decode(), problem)

    def module(self, data: bytes) -> ctypes.c_void_p:
        """Load a code object or a bundle of them."""
        module = ctypes.c_void_p()
        self.call("hipModuleLoadData", ctypes.byref(module), data)
        return module

    def function(self, module: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
        """Find a kernel."""
        function = ctypes.c_void_p()
        self.call("hipModuleGetFunction", ctypes.byref(function), module, name.encode())
        return function

    def variable(self, module: ctypes.c_void_p, name: str) -> tuple[int, int]:
        """Return the address and the size of a variable."""
        address, size = ctypes.c_void_p(), ctypes.c_size_t()
        self.call("hipModuleGetGlobal", ctypes.byref(address), ctypes.byref(size), module, name.encode())
        return address.value or 0, size.value

    def buffer(self, content: bytes) -> int:
        """Return the address of new memory of the GPU with a content."""
        address = ctypes.c_void_p()
        self.call("hipMalloc", ctypes.byref(address), ctypes.c_size_t(len(content)))
        self.write(address.value or 0, content)
        return address.value or 0

    def write(self, address: int, content: bytes) -> None:
        self.call("hipMemcpy", ctypes.c_void_p(address), content, ctypes.c_size_t(len(content)), _HOST_TO_DEVICE)

    def read(self, address: int, size: int) -> bytes:
        content = ctypes.create_string_buffer(size)
        self.call("hipMemcpy", content, ctypes.c_void_p(address), ctypes.c_size_t(size), _DEVICE_TO_HOST)
        return content.raw

    def launch(
        self, function: ctypes.c_void_p, grid: Sequence[int], block: Sequence[int], arguments: Sequence[bytes]
    ) -> None:
        """Launch a kernel, with its arguments by ``kernelParams``."""
        buffers = [ctypes.create_string_buffer(argument, len(argument)) for argument in arguments]
        pointers = (ctypes.c_void_p * len(buffers))(*map(ctypes.addressof, buffers))
        self.call("hipModuleLaunchKernel", function, *grid, *block, 0, None, pointers, None)
        self.call("hipDeviceSynchronize")

    def launch_packed(
        self, function: ctypes.c_void_p, grid: Sequence[int], block: Sequence[int], arguments: bytes
    ) -> None:
        """Launch a kernel, with its arguments by ``extra``, as they lie in memory."""
        size = ctypes.c_size_t(len(arguments))
        packed = ctypes.create_string_buffer(arguments, len(arguments))
        extra = (ctypes.c_void_p * 5)(_BUFFER, ctypes.addressof(packed), _SIZE, ctypes.addressof(size), _END)
        self.call("hipModuleLaunchKernel", function, *grid, *block, 0, None, None, extra)
        self.call("hipDeviceSynchronize")

    def _dispatched(self, packet: int, descriptor: int, code: int) -> None:
        """Take a packet. Called by the stand-in, to which no exception may go."""
        try:
            fields = struct.unpack("<HH3HH3III QQ", ctypes.string_at(packet, 48).ljust(48))
            kernarg_size = int.from_bytes(ctypes.string_at(descriptor + 8, 4), "little")
            kernarg = ctypes.string_at(fields[-1], kernarg_size) if kernarg_size else b""
            self.packets.append(Packet(fields[2:5], fields[6:9], fields[10], descriptor, code, kernarg))
            if self._run is not None:
                self._run(self.packets[-1])
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            sys.stderr.flush()
            raise SystemExit(9) from error
