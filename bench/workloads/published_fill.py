"""A published case: the kernel behind torch.zeros of 4096 x 4096 halves, as it is and was, and with two remedies."""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Callable
from typing import Any

import torch
from published import Prepared

SIDE = 4096
_THREADS = 128
"""In a block, as ATen/native/cuda/thread_constants.h has it: four warps."""
KERNELS = {
    "_ZN2at6native29vectorized_elementwise_kernelILi8ENS0_11FillFunctorIN3c104HalfEEESt5arrayIPcLm1EEEEviT0_T1_": 1024,
    "fill_published": 512,
    "fill_large_blocks": 4096,
    "fill_persistent": 0,
}
"""Kernel → elements that a block fills; 0: as many blocks as run at once, which share all of them.

The first one has the name that PyTorch's own has.
"""


class _Driver:
    """The driver's interface; every call is checked."""

    def __init__(self) -> None:
        """Load the driver that the environment leads to."""
        self._library = ctypes.CDLL("libcuda.so.1")

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call a function. Raises SystemExit when it answers with an error."""
        status = getattr(self._library, name)(*arguments)
        if status:
            raise SystemExit(f"{name}: error {status}")


def prepare(options: argparse.Namespace) -> dict[str, Prepared]:
    """Return the kernels of the image, and what PyTorch launches for the same, by name."""
    torch.zeros(1, device="cuda")
    driver = _Driver()
    module = ctypes.c_void_p()
    driver("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(options.image.read_bytes()))
    out = torch.empty(SIDE, SIDE, dtype=torch.half, device="cuda")
    want = torch.zeros_like(out)
    found = {name: _kernel(driver, module, name, elements, out, want) for name, elements in KERNELS.items()}
    found["torch"] = Prepared(out.zero_, out, want, is_framework=True)
    return found


def _kernel(
    driver: _Driver, module: ctypes.c_void_p, name: str, elements: int, out: torch.Tensor, want: torch.Tensor
) -> Prepared:
    """Return a kernel of the image with its arguments: the number of elements, the functor's zero, and the array."""
    function, resident = ctypes.c_void_p(), ctypes.c_int()
    driver("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
    no_shared = ctypes.c_size_t(0)
    driver("cuOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.byref(resident), function, _THREADS, no_shared)
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    grid = out.numel() // elements if elements else multiprocessors * resident.value
    values = (ctypes.c_int(out.numel()), ctypes.c_uint16(0), ctypes.c_uint64(out.data_ptr()))
    pointers = (ctypes.c_void_p * 3)(*(ctypes.addressof(value) for value in values))

    def launch(_values: tuple[Any, ...] = values) -> None:
        """Submit a launch on PyTorch's stream, the default one; ``pointers`` lead to ``_values``."""
        driver("cuLaunchKernel", function, grid, 1, 1, _THREADS, 1, 1, 0, None, pointers, None)

    run: Callable[[], object] = launch
    return Prepared(run, out, want, facts={"grid": grid, "block": _THREADS, "occupancy": resident.value})
