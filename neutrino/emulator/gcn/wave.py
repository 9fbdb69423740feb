"""The state of a wave: its registers, and what it waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.emulator.gcn.checks import Checks
from neutrino.emulator.gcn.memory import Memory
from neutrino.emulator.gcn.numbering import EXEC, SGPRS, VGPRS, WORD

Array = npt.NDArray[Any]

Step = Callable[["Wave"], "int | None"]
"""What an instruction does. Returns the place of the next instruction, None for the one behind it, or an event."""


class Group:
    """A work-group: what its waves share. index: x, y and z in the grid. lds: its bytes."""

    def __init__(self, index: tuple[int, int, int], lds: int, fill: int) -> None:
        """Set up a work-group without waves. lds: bytes of LDS (shared memory), each of which is ``fill`` at first."""
        self.index = index
        self.lds: npt.NDArray[np.uint8] = np.full(-(-lds // 4) * 4, fill, np.uint8)
        self.lds_size = lds
        self.waves: list[Wave] = []


class Wave:
    """A wave. lanes: 32 or 64. number: in its group. v: vector registers, a row of u32 each. s: scalar registers.
    scc: 0 or 1. mask: EXEC, a bool for each lane. full: whether all of them are set."""

    __slots__ = (
        "base",
        "checks",
        "code",
        "count",
        "f",
        "full",
        "group",
        "h",
        "hardware",
        "hf",
        "i",
        "index_mode",
        "lanes",
        "mask",
        "memory",
        "mode",
        "number",
        "observer",
        "pc",
        "place_of",
        "s",
        "scc",
        "scratch",
        "scratch_base",
        "state",
        "v",
        "valid",
        "watcher",
    )  # fmt: skip

    def __init__(self, lanes: int, number: int, group: Group, memory: Memory, scratch: int, base: int) -> None:
        """Set up a wave with all lanes active and all registers 0. number: in its group. scratch: bytes of private
        memory for each lane; base: the address at which buffer instructions see it."""
        self.lanes = lanes
        self.number = number
        self.group = group
        self.memory = memory
        self.v: npt.NDArray[np.uint32] = np.zeros((VGPRS, lanes), np.uint32)
        # The same registers as numbers of other types, and their halves.
        self.i = self.v.view(np.int32)
        self.f = self.v.view(np.float32)
        self.h = self.v.view(np.uint16).reshape(VGPRS, lanes, 2)
        self.hf = self.h.view(np.float16)
        self.s = [0] * SGPRS
        self.scc = 0
        self.mask: npt.NDArray[np.bool_] = np.ones(lanes, np.bool_)
        self.full = True
        self.valid: npt.NDArray[np.bool_] = self.mask
        """Lanes whose source lane of a DPP operand may be read."""
        self.scratch: npt.NDArray[np.uint8] = np.full((lanes, max(4, -(-scratch // 4) * 4)), 0xA5, np.uint8)
        self.scratch_base = base
        """Address at which its scratch begins for buffer instructions, which see the lanes' bytes interleaved."""
        self.mode = 0
        self.pc = 0
        self.count = 0
        """Instructions executed."""
        self.state = ""
        """``barrier`` while it waits at one, ``end`` when it has ended."""
        self.code: list[Step] = []
        self.checks: Checks | None = None
        self.observer: Callable[[Wave, int], None] | None = None
        """Is called for each instruction before it is executed, with its place in the program."""
        self.watcher: Callable[[Wave, str, Any, Array, Array, int], None] | None = None
        """Is called for each access: what it does, lanes, memory, places of their first bytes in it, and bytes."""
        self.index_mode = 0
        """Which operands M0 indexes (gfx9's S_SET_GPR_IDX_ON); 0 when that is off."""
        self.hardware: dict[str, int] = {}
        """Values of hardware registers by name."""
        self.base = 0
        """What is added to addresses within the code object to give those in memory."""
        self.place_of: Callable[[int], int] = int
        """Gives the place in the program of an address in memory."""

    def pair(self, number: int) -> int:
        """Return 64 bits of scalar registers."""
        return self.s[number] | self.s[number + 1] << 32

    def set_pair(self, number: int, value: int) -> None:
        """Write 64 bits of scalar registers, EXEC excepted."""
        self.s[number] = value & WORD
        self.s[number + 1] = value >> 32 & WORD

    def execute(self) -> int:
        """Return EXEC as a number."""
        return self.pair(EXEC) if self.lanes == 64 else self.s[EXEC]

    def set_exec(self) -> None:
        """Take over what was written to the scalar registers of EXEC."""
        value = self.execute()
        self.mask = bits(value, self.lanes)
        self.full = value == (1 << self.lanes) - 1

    def tick(self) -> int:
        """Return the clock, which no other read has returned."""
        memory = self.memory
        memory.clock += 16
        return memory.clock + 4 * self.count


def bits(value: int, lanes: int) -> npt.NDArray[np.bool_]:
    """Return the lanes' bools of a mask."""
    raw = np.frombuffer((value & (1 << lanes) - 1).to_bytes(lanes // 8, "little"), np.uint8)
    return np.unpackbits(raw, bitorder="little").view(np.bool_)


def mask_number(mask: Array) -> int:
    """Return a mask of the lanes' bools."""
    return int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little")
