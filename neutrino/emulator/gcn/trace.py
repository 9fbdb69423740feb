"""What a launch does, noted by the interpreter itself: what records of probes are compared with."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from neutrino.emulator.gcn.memory import BASE
from neutrino.emulator.gcn.program import Program
from neutrino.emulator.gcn.wave import Wave

Array = npt.NDArray[Any]
WaveKey = tuple[tuple[int, int, int], int]
"""A work-group, and the number of a wave in it."""


class Access(NamedTuple):
    """Lanes of a wave that access memory. address: of the instruction, in the code object. what: ``load``, ``store``,
    ``atomic``, or ``scalar load``, which is the wave's and has no lanes. space: ``global``, ``lds`` or ``scratch``.
    size: bytes a lane. lanes: their numbers. addresses: of what each accesses, in its space. exec: as a mask."""

    wave: WaveKey
    address: int
    what: str
    space: str
    size: int
    lanes: Array
    addresses: Array
    exec: int


@dataclass
class Trace:
    """Notes of launches of a program. accesses: in the order in which they happened. executed: how often each wave
    executed each instruction, by its address. lanes: with how many lanes altogether, by the same.

    Its ``observe`` is the observer of the launch. Lanes that a buffer instruction keeps out of memory, as they are out
    of the buffer's range, are in no access.
    """

    program: Program
    accesses: list[Access] = field(default_factory=list)
    executed: dict[WaveKey, Counter[int]] = field(default_factory=dict)
    lanes: dict[WaveKey, Counter[int]] = field(default_factory=dict)
    _address: int = 0

    def observe(self, wave: Wave, place: int) -> None:
        """Note an instruction that a wave is about to execute, and look at its accesses."""
        wave.watcher = self._watch
        key = wave.group.index, wave.number
        self._address = self.program.instructions[place].address
        self.executed.setdefault(key, Counter())[self._address] += 1
        self.lanes.setdefault(key, Counter())[self._address] += int(np.count_nonzero(wave.mask))

    def _watch(self, wave: Wave, what: str, lanes: Any, memory: Array, places: Array, size: int) -> None:
        """Note an access."""
        if memory is wave.memory.bytes:
            space, addresses = "global", (places + BASE).astype(np.uint64)
        elif memory is wave.group.lds:
            space, addresses = "lds", places
        else:
            space, addresses = "scratch", places % wave.scratch.shape[1]
        numbers = np.empty(0, int) if lanes is None else np.arange(wave.lanes)[lanes]
        key = wave.group.index, wave.number
        self.accesses.append(Access(key, self._address, what, space, size, numbers, addresses.copy(), wave.execute()))

    def bytes_of(self, what: str, space: str) -> dict[WaveKey, int]:
        """Return the bytes that each wave's lanes accessed, of the waves that executed anything."""
        found = dict.fromkeys(self.executed, 0)
        for access in self.accesses:
            if access.what == what and access.space == space:
                found[access.wave] += access.size * (1 if what == "scalar load" else access.lanes.size)
        return found
