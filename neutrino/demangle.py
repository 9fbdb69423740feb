"""Demangling of C++ names, by the C++ library of the machine."""

from __future__ import annotations

import functools
from collections.abc import Callable

_MAX_CACHED = 16 << 20
"""Characters of names that are cached: the images of a container mostly have the same kernels."""


def demangle(name: str) -> str:
    """Return the C++ declaration of an Itanium-mangled name; any other name is returned unchanged.

    Without libstdc++ on the machine every name is returned unchanged.
    """
    # __cxa_demangle also accepts types alone: it would turn the kernel name "f" into "float".
    if not name.startswith("_Z") or not name.isascii() or "\0" in name:
        return name
    return _names().readable(name)


class _Names:
    """A demangler with a cache, which is cleared when it would exceed ``_MAX_CACHED`` characters."""

    def __init__(self, demangle_one: Callable[[str], str]) -> None:
        """Set up a demangler with a cache. demangle_one: returns the declaration of a mangled name, and others
        unchanged."""
        self._demangle_one = demangle_one
        self._cache: dict[str, str] = {}
        self._characters_left = _MAX_CACHED
        """How many more characters may be cached, of names and declarations together."""

    def readable(self, name: str) -> str:
        """Return the demangled name, from the cache if it is there."""
        demangled = self._cache.get(name)
        if demangled is None:
            demangled = self._demangle_one(name)
            size = len(name) + len(demangled)
            if size > self._characters_left:
                self._cache.clear()
                self._characters_left = _MAX_CACHED
            self._characters_left -= size
            self._cache[name] = demangled
        return demangled


@functools.cache
def _names() -> _Names:
    """Return the demangler of libstdc++; without that library, one that returns names unchanged."""
    # Imported here because every listing imports this module, and few demangle names.
    import ctypes

    try:
        library = ctypes.CDLL("libstdc++.so.6")
        process = ctypes.CDLL(None)
        cxa_demangle, free = library.__cxa_demangle, process.free
    except (OSError, AttributeError):
        # str of a name is the name itself.
        return _Names(str)
    cxa_demangle.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
    cxa_demangle.restype = ctypes.c_void_p
    free.argtypes = [ctypes.c_void_p]
    free.restype = None

    def demangle_one(name: str) -> str:
        """Return the readable form of one name; the name itself if it is not mangled."""
        status = ctypes.c_int()
        # Without a buffer of the caller, the result is allocated, and must be freed. NULL: not a mangled name.
        pointer = cxa_demangle(name.encode("ascii"), None, None, ctypes.byref(status))
        if not pointer:
            return name
        try:
            return ctypes.string_at(pointer).decode("utf-8", "replace")
        finally:
            free(pointer)

    return _Names(demangle_one)
