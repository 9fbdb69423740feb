"""Files mapped into memory, without holding a descriptor for each: a thin archive may name more files than a process
may have open."""

from __future__ import annotations

import mmap
import sys
from typing import BinaryIO


def map_file(file: BinaryIO, size: int) -> memoryview:
    """The content of an open file, read-only, until the last view of it is gone. size: in bytes, above 0.

    Raises OSError as ``mmap``.
    """
    if sys.version_info >= (3, 13):
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ, trackfd=False))
    return _by_libc(file.fileno(), size)


def _by_libc(descriptor: int, size: int) -> memoryview:
    # Older mmap objects keep a duplicate of the descriptor.
    import ctypes
    import os
    import weakref

    libc = ctypes.CDLL(None, use_errno=True)
    pointer, word = ctypes.c_void_p, ctypes.c_size_t
    libc.mmap.argtypes = (pointer, word, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
    libc.mmap.restype = pointer
    libc.munmap.argtypes = (pointer, word)
    address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE, descriptor, 0)
    if address == pointer(-1).value:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    content = (ctypes.c_char * size).from_address(address)
    weakref.finalize(content, libc.munmap, address, size).atexit = False
    return memoryview(content).cast("B").toreadonly()
