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
"""Functions of the driver that only Python code calls, and those of libc that ``playground.program`` calls."""


def declarations(header: str) -> str:
    """Return the types and functions of a header in ``csrc`` as cffi accepts them, and its numeric constants.

    cffi's parser accepts neither preprocessor directives, except for constants, nor ``static_assert``.
    """
    text = re.sub(r"/\*.*?\*/", "", (_CSRC / header).read_text(), flags=re.DOTALL)
    # Lines that a backslash continues.
    text = text.replace("\\\n", " ")
    constants = re.findall(r"^#define \w+ \d+$", text, re.MULTILINE)
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("#", "static_assert"))]
    return "\n".join([*constants, *lines])


def driver_functions() -> str:
    """Return C declarations, for cffi, of the driver's functions that ``cuda_functions.h`` lists as rows of a macro."""
    text = re.sub(r"/\*.*?\*/", "", (_CSRC / "base" / "cuda_functions.h").read_text(), flags=re.DOTALL)
    text = text.replace("\\\n", " ")
    return "\n".join(f"CUresult {name}{parameters};" for name, parameters in _rows(text))


def _rows(text: str) -> Iterator[tuple[str, str]]:
    """Yield (name, "(parameters)") of each row ``X(name, (parameters), ...)`` of the table."""
    for match in re.finditer(r"\bX\((\w+),\s*(?=\()", text):
        # Find the parenthesis that closes the parameters, which may contain others.
        depth, end = 0, match.end()
        # Before the first character, which is an opening parenthesis, the depth is 0, too.
        while depth or end == match.end():
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        # As one line.
        yield match[1], " ".join(text[match.end() : end].split())


def generate(target: Path) -> None:
    """Write the module ``neutrino.loader._interface`` into the file target. Needs cffi's C parser, pycparser."""
    from cffi import FFI

    ffi = FFI()
    ffi.cdef(declarations("base/cuda_abi.h") + driver_functions() + declarations("front/control.h") + _PYTHON_ONLY)
    # None: ABI mode, without C code to compile.
    ffi.set_source("neutrino.loader._interface", None)
    # Renamed into place, since another process may import the module meanwhile.
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        written = Path(folder) / target.name
        ffi.emit_python_code(str(written))
        written.replace(target)


if __name__ == "__main__":
    generate(Path(__file__).with_name("_interface.py"))
