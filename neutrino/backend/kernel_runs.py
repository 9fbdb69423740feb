"""A launch of one kernel that an interpreter of machine code runs, and what came of it; as values for a process of its
own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from neutrino.backend.launch_memory import Extents, LaunchMemory
from neutrino.errors import NeutrinoError


class Use(Enum):
    """What a kernel does with a buffer, in the words of whoever shows it."""

    LOAD = "read"
    STORE = "written"
    UPDATE = "updated atomically"


Uses = Mapping[int, frozenset[tuple[int, Use]]]
"""By the number of a buffer: the addresses in the code of the instructions that access it, and how."""


@dataclass(frozen=True)
class Probed:
    """What a twin gets besides. memory: of its maps. block, block_size: place of the probe block in the arguments."""

    memory: LaunchMemory
    block: int
    block_size: int


@dataclass(frozen=True)
class KernelRun:
    """A launch.

    arch: the architecture of the device. image: with the kernel. grid: in blocks; block: in threads; shared: bytes of
    dynamic shared memory. arguments: their bytes, without those that a driver adds. pointers: by the number of an
    argument and a place in it, the number of the buffer whose address belongs there. buffers: what they hold. order:
    seed of the order in which warps run; None: one after the other. probed: of a twin. seconds: after which it gives
    up, None for never.
    """

    arch: str
    image: bytes
    kernel: str
    grid: Extents
    block: Extents
    shared: int
    arguments: tuple[bytes, ...]
    pointers: Mapping[tuple[int, int], int]
    buffers: tuple[bytes, ...]
    order: int | None = None
    probed: Probed | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class KernelResult:
    """What a launch has left.

    addresses: of the buffers. buffers: what they hold. variables: of the image, by name: before and after the launch.
    maps: their memory. uses: of the buffers. fault: why it ended early, "" if it has not; kind: of that, such as
    ``memory`` or ``lds``, ``limit`` if it ran for too long; missed: the address of an access that lies in no buffer,
    None without one.
    """

    addresses: tuple[int, ...]
    buffers: tuple[bytes, ...]
    variables: Mapping[str, tuple[bytes, bytes]]
    maps: bytes
    uses: Uses
    fault: str = ""
    kind: str = ""
    missed: int | None = None


class CannotRunError(NeutrinoError):
    """A kernel that the interpreter cannot run at all."""
