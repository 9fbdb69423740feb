"""Generates ``_interface.py``, by which Python calls the driver through cffi in ABI mode, from the hook's headers.

    python -m neutrino.loader.interface    writes it

cffi parses C only here, since that takes half a second; importing the generated module takes some milliseconds.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

_CSRC = Path(__file__).resolve().parent / "csrc"
_PYTHON_ONLY = """
CUresult cuGetErrorName(CUresult, const char **);
CUresult cuMemcpyHtoD_v2(CUdeviceptr, const void *, size_t);
CUresult cuMemcpyDtoH_v2(void *, CUdeviceptr, size_t);
int prctl(int, ...);
"""
"""Functions of the driver that the hook neither calls nor intercepts, and what ``playground.program`` calls of libc."""


def declarations(header: str) -> str:
    """The types and functions of a header of ``csrc``, as cffi takes them: without directives and assertions."""
    text = re.sub(r"/\*.*?\*/", "", (_CSRC / header).read_text(), flags=re.DOTALL)
    text = text.replace("\\\n", " ")
    constants = re.findall(r"^#define \w+ \d+$", text, re.MULTILINE)
    kept = [line for line in text.splitlines() if not line.lstrip().startswith(("#", "static_assert"))]
    return "\n".join([*constants, *kept])


def driver_functions() -> str:
    """Declarations of all functions in the table of ``cuda_functions.h``."""
    text = re.sub(r"/\*.*?\*/", "", (_CSRC / "cuda_functions.h").read_text(), flags=re.DOTALL)
    text = text.replace("\\\n", " ")
    return "\n".join(f"CUresult {name}{parameters};" for name, parameters in _rows(text))


def _rows(text: str) -> Iterator[tuple[str, str]]:
    """The first two columns of each row ``X(name, (parameters), ...)``."""
    for match in re.finditer(r"\bX\((\w+),\s*(?=\()", text):
        depth, end = 0, match.end()
        while depth or end == match.end():
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        yield match[1], " ".join(text[match.end() : end].split())


def generate(target: Path) -> None:
    """Write the module ``neutrino.loader._interface`` into the file target."""
    from cffi import FFI

    ffi = FFI()
    ffi.cdef(declarations("cuda_abi.h") + driver_functions() + _PYTHON_ONLY)
    ffi.set_source("neutrino.loader._interface", None)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        written = Path(folder) / target.name
        ffi.emit_python_code(str(written))
        written.replace(target)


if __name__ == "__main__":
    generate(Path(__file__).with_name("_interface.py"))
