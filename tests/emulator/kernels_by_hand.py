"""PTX written by hand, and a device to run it on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from neutrino.emulator.device import Device
from neutrino.emulator.launch import Statistics
from neutrino.emulator.loaded_module import LoadedModule
from neutrino.emulator.state import Observer

HEAD = ".version 8.5\n.target sm_90a\n.address_size 64\n"
REGISTERS = (
    "    .reg .pred %p<16>;\n    .reg .b16 %h<16>;\n    .reg .b32 %r<32>;\n    .reg .b64 %d<32>;\n"
    "    .reg .f32 %f<16>;\n    .reg .f64 %e<8>;\n"
)
# After it %d0 is the first parameter, %d1 the address of the thread's word of it, %r0 the linear thread.
PLACE = (
    "    ld.param.u64 %d0, [p0];\n    mov.u32 %r1, %ctaid.x;\n    mov.u32 %r2, %ntid.x;\n    mov.u32 %r3, %tid.x;\n"
    "    mad.lo.s32 %r0, %r1, %r2, %r3;\n    mul.wide.u32 %d2, %r0, 4;\n    add.s64 %d1, %d0, %d2;\n"
)


def module_text(body: str, *, before: str = "", parameters: int = 1, place: bool = True) -> str:
    """A module with one kernel ``k`` that takes so many 64-bit parameters ``p0``, ``p1`` …"""
    listed = ", ".join(f".param .u64 p{number}" for number in range(parameters))
    return f"{HEAD}{before}\n.visible .entry k({listed})\n{{\n{REGISTERS}{PLACE if place else ''}{body}\n    ret;\n}}\n"


class Kernel:
    """A kernel ``k`` on a device of its own."""

    def __init__(self, body: str, *, before: str = "", parameters: int = 1, place: bool = True, **device: Any) -> None:
        self.text = module_text(body, before=before, parameters=parameters, place=place)
        self.device = Device(**{"memory": 1 << 22, "step_limit": 100_000, **device})
        self.module: LoadedModule = self.device.load(self.text)

    def run(
        self,
        *arrays: NDArray[Any],
        grid: int = 1,
        block: int | tuple[int, int, int] = 32,
        shared: int = 0,
        observer: Observer | None = None,
    ) -> Statistics:
        """Launch with the arrays copied in, and copied back afterwards."""
        addresses = [self.device.allocate(array.nbytes) for array in arrays]
        for array, address in zip(arrays, addresses, strict=True):
            self.device.write(address, array)
        dimensions = block if isinstance(block, tuple) else (block, 1, 1)
        try:
            return self.device.launch(
                self.module.functions["k"], (grid, 1, 1), dimensions, addresses, shared=shared, observer=observer
            )
        finally:
            for array, address in zip(arrays, addresses, strict=True):
                array.reshape(-1).view(np.uint8)[:] = np.frombuffer(self.device.read(address, array.nbytes), np.uint8)
                self.device.free(address)


def words(body: str, *, grid: int = 1, block: int = 32, initial: Sequence[int] = (), **options: Any) -> NDArray[Any]:
    """What a kernel leaves in an array with one 32-bit word a thread."""
    array = np.zeros(grid * block, np.uint32)
    array[: len(initial)] = initial
    shared = options.pop("shared", 0)
    Kernel(body, **options).run(array, grid=grid, block=block, shared=shared)
    return array
