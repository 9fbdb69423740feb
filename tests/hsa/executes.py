"""Kernels launched by AMD's HIP runtime, and executed by the interpreter: ``scaled`` of ``hidden.hip``, and its twin
that counts loads. A process of its own, ``python -m tests.hsa.executes BUNDLE CODE_OBJECT``: the latter is the bundle's
for this GPU. What came of it is printed as JSON."""

from __future__ import annotations

import ctypes
import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from neutrino.emulator.gcn.kernel import read_descriptor
from neutrino.emulator.gcn.launch import launch
from neutrino.emulator.gcn.memory import BASE, Memory
from neutrino.emulator.gcn.program import Program
from neutrino.fatbin.code_object_functions import code_object_functions
from neutrino.gcn.code import split_target
from neutrino.gcn.llvm import find_llvm
from tests.hsa.hip import Hip, Packet

_ARENA_SIZE = 1 << 30
COUNT, GROUPS, GROUP = 777, 7, 128


class Device:
    """The GPU: the stand-in's arena as the interpreter's memory, and the code of one code object.

    name: of the kernel that is launched next. observing: takes the program, returns what is called before each of its
    instructions. options: of ``launch``.
    """

    def __init__(self, data: bytes) -> None:
        self.take(data)
        self.name = ""
        self.hip = Hip(self.run)
        self.memory: Any = Memory(1 << 20)
        self.observing: Callable[[Program], Any] | None = None
        self.options: dict[str, Any] = {"seed": 3}

    def take(self, data: bytes) -> None:
        """Execute another code object from now on."""
        self.functions = code_object_functions(data, "")
        self.processor, self.features = split_target(self.functions.target)

    def run(self, packet: Packet) -> None:
        """Execute a dispatch of the kernel ``name``."""
        used = ctypes.c_size_t()
        assert self.hip.hsa.hsa_stand_in_arena(ctypes.byref(used)) == BASE
        memory = self.memory
        if memory.bytes.size != _ARENA_SIZE:
            memory.bytes = np.ctypeslib.as_array((ctypes.c_uint8 * _ARENA_SIZE).from_address(BASE))
            memory._words = memory.bytes.view(np.uint32)
            memory._valid = np.zeros(_ARENA_SIZE, np.bool_)
            # What the interpreter itself puts there is far behind.
            memory._top = _ARENA_SIZE // 2
        memory._valid[: used.value] = True
        (function,) = [function for function in self.functions.functions if function.name == self.name]
        rows = find_llvm(self.processor).disassemble(function.code, self.processor, self.features)
        program = Program(
            ((function.address + offset, size, text) for offset, size, text in rows), self.processor, function.wave
        )
        descriptor = read_descriptor(ctypes.string_at(packet.descriptor, 64))
        grid = tuple(-(-whole // part) for whole, part in zip(packet.grid, packet.block, strict=True))
        launch(
            program, descriptor, function.address, memory, (grid[0], grid[1], grid[2]), packet.block, packet.kernarg,
            base=packet.code - function.address, observer=self.observing(program) if self.observing else None,
            **self.options,
        )  # fmt: skip


def main(bundle: bytes, code_object: bytes) -> dict[str, Any]:
    device = Device(code_object)
    hip = device.hip
    module = hip.module(bundle)
    factors, size = hip.variable(module, "factors")
    launches, _ = hip.variable(module, "launches")
    hip.write(factors, struct.pack("<4I", 3, 5, 7, 11))
    values = np.random.default_rng(1).integers(0, 1 << 20, COUNT, np.uint32)
    source = hip.buffer(values.tobytes())
    counter = hip.buffer(bytes(8))
    found: dict[str, Any] = {"factors": size, "values": values.tolist()}
    for name in ("scaled", "scaled__neutrino"):
        device.name = name
        to = hip.buffer(bytes([0xCD]) * (4 * COUNT + 64))
        arguments = [struct.pack("<Q", to), struct.pack("<Q", source), struct.pack("<I", COUNT)]
        if name != "scaled":
            arguments.append(struct.pack("<QQ", 0, counter))
        hip.launch(hip.function(module, name), (GROUPS, 1, 1), (GROUP, 1, 1), arguments)
        found[name] = {
            "results": hip.read(to, 4 * COUNT + 64).hex(),
            "launches": int.from_bytes(hip.read(launches, 4), "little"),
            "loads": int.from_bytes(hip.read(counter, 8), "little"),
        }
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]).read_bytes(), Path(sys.argv[2]).read_bytes())))
