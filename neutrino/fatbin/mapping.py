"""Mapping files into memory without keeping their descriptors open: a thin archive may name more files than a process
may have open."""

from __future__ import annotations

import mmap
import sys
from typing import BinaryIO


def map_file(file: BinaryIO, size: int) -> memoryview:
    """Map an open file into memory, read-only. It stays mapped until the last view of it is gone, even if it is closed.

    size: of the file in bytes, above 0. Raises OSError as ``mmap``.
    """
    if sys.version_info >= (3, 13):
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ, trackfd=False))
    return _map_by_libc(file.fileno(), size)


def _map_by_libc(descriptor: int, size: int) -> memoryview:
    """Map a file with the C library's mmap. Raises OSError.

    Before Python 3.13 the objects of the module ``mmap`` keep a duplicate of the descriptor open.
    """
    import ctypes
    import os
    import weakref

    libc = ctypes.CDLL(None, use_errno=True)
    pointer_type, size_type = ctypes.c_void_p, ctypes.c_size_t
    libc.mmap.argtypes = (pointer_type, size_type, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
    libc.mmap.restype = pointer_type
    libc.munmap.argtypes = (pointer_type, size_type)
    address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE, descriptor, 0)
    # MAP_FAILED is (void *) -1.
    if address == pointer_type(-1).value:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    content = (ctypes.c_char * size).from_address(address)
    # Unmapped with the last view; at exit the kernel does it.
    weakref.finalize(content, libc.munmap, address, size).atexit = False
    return memoryview(content).cast("B").toreadonly()
