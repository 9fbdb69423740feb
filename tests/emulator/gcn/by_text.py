"""Runs instructions that are given as text, and shows the registers at their end."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.emulator.gcn.kernel import Descriptor, read_descriptor
from neutrino.emulator.gcn.launch import Statistics, launch
from neutrino.emulator.gcn.memory import Memory
from neutrino.emulator.gcn.program import Program
from neutrino.emulator.gcn.wave import Wave

_ALL_DENORMALS = 0xF0
_WAVE32 = 0x400
_KERNARG_POINTER = 8


def descriptor(
    lanes: int, mode: int = _ALL_DENORMALS, lds: int = 0, scratch: int = 0, kernarg: int = 16, registers: int = 0x37F
) -> Descriptor:
    """Return a descriptor: the address of the arguments in s[0:1], the work-group's x in s2. registers: the bits of
    COMPUTE_PGM_RSRC1 that say how many there are."""
    properties = _KERNARG_POINTER | (_WAVE32 if lanes == 32 else 0)
    rsrc2 = 2 << 1 | 1 << 7
    return read_descriptor(
        struct.pack("<III4xq20xIIIHH4x", lds, scratch, kernarg, 256, 63, mode << 12 | registers, rsrc2, properties, 0)
    )


@dataclass
class Ended:
    """Registers of the first wave when it ended: v, s, and SCC; EXEC as a mask."""

    v: npt.NDArray[np.uint32]
    s: list[int]
    scc: int
    mask: npt.NDArray[np.bool_]
    statistics: Statistics

    def f(self, number: int) -> npt.NDArray[np.float32]:
        """Return a vector register as floats."""
        return self.v[number].view(np.float32)


def run(
    text: str, processor: str = "gfx942", *, memory: Memory | None = None, kernarg: bytes = b"", **options: Any
) -> Ended:
    """Run lines of text, a wave of them unless ``block`` says otherwise. options: of ``descriptor`` and ``launch``.

    A line may have a label in front (``name:``), which branches name; v0 has the lane's number.
    """
    lanes = options.pop("lanes", 64 if processor.startswith("gfx9") else 32)
    names = ("mode", "lds", "scratch", "kernarg_size", "registers")
    settings = {name: options.pop(name) for name in names if name in options}
    rows, labels = [], {}
    for line in [*(part.strip() for part in text.split("\n") if part.strip()), "s_endpgm"]:
        if line.endswith(":"):
            labels[line[:-1]] = len(rows)
        else:
            rows.append(line)
    made = []
    for place, row in enumerate(rows):
        name, _, label = row.rpartition(" ")
        if label in labels:
            row = f"{name} {labels[label] - place - 1 & 0xFFFF}"
        made.append((4 * place, 4, row))
    ended: list[Ended] = []

    def observe(wave: Wave, place: int) -> None:
        if place == len(rows) - 1 and not wave.number and wave.group.index == (0, 0, 0):
            ended.append(Ended(wave.v.copy(), list(wave.s), wave.scc, wave.mask.copy(), Statistics()))

    memory = memory or Memory(1 << 20)
    size = settings.pop("kernarg_size", max(16, len(kernarg)))
    statistics = launch(
        Program(made, processor, lanes), descriptor(lanes, kernarg=size, **settings), 0, memory,
        options.pop("grid", (1, 1, 1)), options.pop("block", (lanes, 1, 1)), kernarg, observer=observe, **options,
    )  # fmt: skip
    (found,) = ended
    found.statistics = statistics
    return found
