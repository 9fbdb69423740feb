"""What AMD's code object manager (libamd_comgr.so.2) reads of code objects: ``python -m tests.hsa.comgr FILE …`` prints
the names of the kernels in the metadata and of the symbols of each, as JSON."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

COMGR = "libamd_comgr.so.2"
_EXECUTABLE = 8
_NAME_LENGTH, _NAME = 0, 1


class _Handle(ctypes.Structure):
    _fields_ = (("handle", ctypes.c_uint64),)


_ON_SYMBOL = ctypes.CFUNCTYPE(ctypes.c_int, _Handle, ctypes.c_void_p)


class Comgr:
    """The library's functions."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(COMGR)

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, f"amd_comgr_{name}")(*arguments)
        if status:
            raise SystemExit(f"amd_comgr_{name}: {status}")

    def made(self, name: str, *arguments: Any) -> _Handle:
        """Call a function whose last parameter is a handle that it makes."""
        handle = _Handle()
        self.call(name, *arguments, ctypes.byref(handle))
        return handle

    def text(self, node: _Handle) -> str:
        size = ctypes.c_size_t()
        self.call("get_metadata_string", node, ctypes.byref(size), None)
        buffer = ctypes.create_string_buffer(size.value)
        self.call("get_metadata_string", node, ctypes.byref(size), buffer)
        return buffer.value.decode()

    def read(self, content: bytes) -> dict[str, list[str]]:
        """Names of kernels and of symbols."""
        data = self.made("create_data", _EXECUTABLE)
        self.call("set_data", data, ctypes.c_size_t(len(content)), content)
        kernels = self.made("metadata_lookup", self.made("get_data_metadata", data), b"amdhsa.kernels")
        count = ctypes.c_size_t()
        self.call("get_metadata_list_size", kernels, ctypes.byref(count))
        rows = [self.made("index_list_metadata", kernels, ctypes.c_size_t(row)) for row in range(count.value)]
        symbols: list[str] = []

        def on_symbol(symbol: _Handle, _: object) -> int:
            length = ctypes.c_size_t()
            self.call("symbol_get_info", symbol, _NAME_LENGTH, ctypes.byref(length))
            buffer = ctypes.create_string_buffer(length.value + 1)
            self.call("symbol_get_info", symbol, _NAME, buffer)
            symbols.append(buffer.value.decode())
            return 0

        self.call("iterate_symbols", data, _ON_SYMBOL(on_symbol), None)
        return {"kernels": [self.text(self.made("metadata_lookup", row, b".name")) for row in rows], "symbols": symbols}


if __name__ == "__main__":
    _comgr = Comgr()
    print(json.dumps([_comgr.read(Path(path).read_bytes()) for path in sys.argv[1:]]))
