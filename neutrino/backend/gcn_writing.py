"""Writes twins: a plan's code goes between a kernel's instructions, and the result to the end of its code object."""

from __future__ import annotations

from collections.abc import Sequence

from neutrino.abi.reasons import Reason
from neutrino.backend.gcn_source import CodeObjectSource
from neutrino.backend.gcn_values import GcnCode, GcnKernel


def write_twins(source: CodeObjectSource, kernels: Sequence[GcnKernel]) -> GcnCode:
    """Write the twins (instrumented copies) of planned kernels, and the code object that has them."""
    why = "twins of kernels for AMD GPUs cannot be written yet"
    return GcnCode((), source.data, {kernel.name: (Reason.UNSUPPORTED, why) for kernel in kernels}, "")
