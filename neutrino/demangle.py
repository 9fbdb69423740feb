"""C++ names, readable: the demangler of the machine's C++ library."""

from __future__ import annotations

import functools
from collections.abc import Callable

_MAX_KEPT = 16 << 20
"""Characters of names that are kept: the images of a container mostly have the same kernels."""


def demangle(name: str) -> str:
    """The C++ declaration that an Itanium-mangled name stands for; the name itself where it stands for none.

    Without libstdc++ on the machine every name is returned as it is.
    """
    # __cxa_demangle also reads bare types: the kernel "f" would come out as "float".
    if not name.startswith("_Z") or not name.isascii() or "\0" in name:
        return name
    return _names().readable(name)


class _Names:
    """Asks a demangler, and keeps its answers up to a size."""

    def __init__(self, ask: Callable[[str], str]) -> None:
        self._ask = ask
        self._kept: dict[str, str] = {}
        self._room = _MAX_KEPT

    def readable(self, name: str) -> str:
        found = self._kept.get(name)
        if found is None:
            found = self._ask(name)
            size = len(name) + len(found)
            if size > self._room:
                self._kept.clear()
                self._room = _MAX_KEPT
            self._room -= size
            self._kept[name] = found
        return found


@functools.cache
def _names() -> _Names:
    # Here, because every listing imports this module, and few need it.
    import ctypes

    try:
        library = ctypes.CDLL("libstdc++.so.6")
        process = ctypes.CDLL(None)
        cxa_demangle, free = library.__cxa_demangle, process.free
    except (OSError, AttributeError):
        return _Names(str)
    cxa_demangle.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
    cxa_demangle.restype = ctypes.c_void_p
    free.argtypes = [ctypes.c_void_p]
    free.restype = None

    def through_library(name: str) -> str:
        status = ctypes.c_int()
        text = cxa_demangle(name.encode("ascii"), None, None, ctypes.byref(status))
        if not text:
            return name
        try:
            return ctypes.string_at(text).decode("utf-8", "replace")
        finally:
            free(text)

    return _Names(through_library)
