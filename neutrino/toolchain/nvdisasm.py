"""Machine code as text, by NVIDIA's disassembler."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Collection
from pathlib import Path

from neutrino.places import scratch_parent
from neutrino.toolchain.location import find_tool
from neutrino.toolchain.process import run_tool

_TIMEOUT_S = 600.0
"""Seconds for one cubin: 100 MB of machine code take about two minutes."""
_HINT = "install the CUDA toolkit, or pip install nvidia-cuda-nvdisasm"
_SECTION = re.compile(r"^//-+ (\S+)[ \t]+-+$", re.MULTILINE)
"""The heading of a section: ``//----- .text.saxpy -----``."""
_TEXT = ".text."


def disassemble(cubin: bytes, kernels: Collection[str] | None = None) -> str:
    """Disassemble a cubin with ``nvdisasm -c``, and return what it prints.

    kernels: mangled names, to return the code of these alone; None: all code, including device functions. Raises
    ToolMissingError without nvdisasm, ToolError when it refuses the cubin, OSError when the temporary file cannot be
    written.
    """
    tool = find_tool("nvdisasm", _HINT)
    with tempfile.TemporaryDirectory(prefix="neutrino-", dir=scratch_parent()) as folder:
        path = Path(folder) / "image.cubin"
        path.write_bytes(cubin)
        text = run_tool([tool, "-c", path], timeout=_TIMEOUT_S).stdout.decode("utf-8", "replace")
    return text if kernels is None else _only(text, kernels)


def _only(text: str, kernels: Collection[str]) -> str:
    """Return those sections of the disassembler's output that have the code of these kernels (mangled names)."""
    headings = list(_SECTION.finditer(text))
    code_sections = {_TEXT + kernel for kernel in kernels}
    selected = []
    for index, heading in enumerate(headings):
        end = headings[index + 1].start() if index + 1 < len(headings) else len(text)
        if heading[1] in code_sections:
            selected.append(text[heading.start() : end])
    return "".join(selected)
