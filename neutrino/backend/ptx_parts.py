"""Split the twins of a big module into parts that several processes assemble; each kernel is in one part.

A part is complete: it holds everything of the module that its twins need (called functions, string literals). Small
modules have one part.
"""

from __future__ import annotations

from collections.abc import Sequence

from neutrino.ptx.instrument.twin import TwinKernel
from neutrino.ptx.text.module import Kind, Module

PART_SIZE = 1 << 19
"""Characters of twins' text that a part has at least: ptxas takes about half a second for them."""
_TIMES_COMMON = 8
"""A part's own text is at least this many times the text that all parts share."""


def split(module: Module, kernels: Sequence[TwinKernel]) -> list[tuple[TwinKernel, ...]]:
    """Split the twins of a module's kernels into parts of at least PART_SIZE characters of text, in order.

    So several processes can assemble a big module at the same time. kernels: the twins (instrumented copies). A small
    module has one part. A twin longer than PART_SIZE may be alone in its part. No part is empty.
    """
    # Debug sections refer to all kernels by their labels, so no kernel can be left out.
    if any(statement.kind is Kind.SECTION for statement in module.statements):
        return [tuple(kernels)]

    # What is outside of kernels is in every part.
    common_size = len(module.text) - sum(entry.statement.end - entry.statement.start for entry in module.entries)
    total = sum(len(kernel.probed_text) for kernel in kernels)
    # With a large common text, parts are larger, so that it is not most of what is assembled.
    count = total // max(PART_SIZE, _TIMES_COMMON * common_size)
    if count < 2:
        return [tuple(kernels)]

    # Each kernel goes to the part in which the middle of its text lies, if the total is divided evenly.
    parts: list[list[TwinKernel]] = [[] for _ in range(count)]
    position = 0
    for kernel in kernels:
        size = len(kernel.probed_text)
        middle = position + size // 2
        # min: an empty text at the end would be beyond the last part.
        parts[min(middle * count // total, count - 1)].append(kernel)
        position += size
    return [tuple(part) for part in parts if part]
