"""The twins of a big module in several images, so that several processes assemble them: each kernel in one part.

A part is complete: what twins need of their module besides their own text (called functions, string literals) is in
each that needs it. Small modules have one part.
"""

from __future__ import annotations

from collections.abc import Sequence

from neutrino.ptx.instrument.twin import TwinKernel
from neutrino.ptx.text.module import Kind, Module

PART_SIZE = 1 << 19
"""Characters of twins' text from which on a part is worth an image of its own: ptxas takes half a second for it."""
_TIMES_COMMON = 8
"""How many times as much as it shares with all other parts a part must hold of its own."""


def split(module: Module, kernels: Sequence[TwinKernel]) -> list[tuple[TwinKernel, ...]]:
    """The twins of a module's kernels in parts of at least PART_SIZE characters, in order; one part of a small module.

    A kernel that is larger than that may be alone in its part. No part is empty.
    """
    # Debug sections tell of all kernels by their labels.
    if any(statement.kind is Kind.SECTION for statement in module.statements):
        return [tuple(kernels)]
    common = len(module.text) - sum(entry.statement.end - entry.statement.start for entry in module.entries)
    total = sum(len(kernel.probed_text) for kernel in kernels)
    count = total // max(PART_SIZE, _TIMES_COMMON * common)
    if count < 2:
        return [tuple(kernels)]
    parts: list[list[TwinKernel]] = [[] for _ in range(count)]
    position = 0
    for kernel in kernels:
        size = len(kernel.probed_text)
        middle = position + size // 2
        parts[min(middle * count // total, count - 1)].append(kernel)
        position += size
    return [tuple(part) for part in parts if part]
