"""Machine code as text, by NVIDIA's disassembler."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Collection
from pathlib import Path

from neutrino.toolchain.location import find_tool
from neutrino.toolchain.process import run_tool

_TIMEOUT_S = 600.0
"""For one cubin: 100 MB of machine code take about two minutes."""
_HINT = "install the CUDA toolkit, or pip install nvidia-cuda-nvdisasm"
_SECTION = re.compile(r"^//-+ (\S+)[ \t]+-+$", re.MULTILINE)
_TEXT = ".text."


def disassemble(cubin: bytes, kernels: Collection[str] | None = None) -> str:
    """The code of a cubin as ``nvdisasm -c`` prints it. kernels: of these alone; None: all, device functions too.

    Raises ToolMissingError without nvdisasm, ToolError when it refuses the cubin, OSError as for any temporary file.
    """
    tool = find_tool("nvdisasm", _HINT)
    with tempfile.TemporaryDirectory(prefix="neutrino-") as folder:
        path = Path(folder) / "image.cubin"
        path.write_bytes(cubin)
        text = run_tool([tool, "-c", path], timeout=_TIMEOUT_S).stdout.decode("utf-8", "replace")
    return text if kernels is None else _only(text, kernels)


def _only(text: str, kernels: Collection[str]) -> str:
    starts = list(_SECTION.finditer(text))
    wanted = {_TEXT + kernel for kernel in kernels}
    pieces = []
    for index, start in enumerate(starts):
        end = starts[index + 1].start() if index + 1 < len(starts) else len(text)
        if start[1] in wanted:
            pieces.append(text[start.start() : end])
    return "".join(pieces)
