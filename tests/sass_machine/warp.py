"""A warp: its registers, its lanes in groups that go on together, and what they wait for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tests.sass_machine.lanes import LANES, lanes_of, mask_of
from tests.sass_machine.memory import Memory
from tests.sass_machine.timing import Timing

if TYPE_CHECKING:
    from tests.sass_machine.machine import Block


class MachineError(Exception):
    """A kernel does what it may not do, or waits for ever."""


@dataclass
class Group:
    """Lanes that go on together, from a place. waits: for what; "" if they can go on."""

    place: int
    mask: int
    waits: str = ""
    number: int = 0


class Warp:
    """32 lanes. r, ur, p, up: registers, [number, lane]; those that are always zero or true are rows too."""

    def __init__(self, block: Block, number: int, mask: int, timing: Timing) -> None:
        launch = block.launch
        self.block = block
        self.number = number
        self.alive = mask
        self.timing = timing
        garbage = launch.garbage
        self.r = garbage.integers(0, 1 << 32, (256, LANES), np.uint32)
        self.ur = garbage.integers(0, 1 << 32, (64, 1), np.uint32)
        self.p = garbage.integers(0, 2, (8, LANES)).astype(bool)
        self.up = garbage.integers(0, 2, (8, 1)).astype(bool)
        self.r[255], self.ur[63], self.p[7], self.up[7] = 0, 0, True, True
        self.barriers = np.zeros((16, LANES), np.uint32)
        self.groups = [Group(0, mask)]
        # Lanes for which the instruction runs that is being executed.
        self.executing = mask

    def constant(self, bank: int, at: int) -> np.uint32:
        """A word of a constant bank."""
        words = self.block.launch.constants.get(bank)
        if words is None or at % 4 or not 0 <= at // 4 < len(words):
            raise MachineError(f"reads c[{bank:#x}][{at:#x}], which is not there")
        return words[at // 4]

    @property
    def memory(self) -> Memory:
        """Global memory."""
        return self.block.launch.memory

    def threads(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32]]:
        """The lanes' threads, in x, y and z."""
        x, y, _ = self.block.launch.block
        linear = np.arange(LANES, dtype=np.uint32) + np.uint32(LANES * self.number)
        return linear % np.uint32(x), linear // np.uint32(x) % np.uint32(y), linear // np.uint32(x * y)

    # -- groups

    def split(self, group: Group, places: NDArray[np.int64]) -> None:
        """Let the lanes of a group go on at places of their own: those of one place together."""
        lanes = lanes_of(group.mask)
        different = np.unique(places[lanes])
        mine = [Group(int(place), mask_of(lanes & (places == place))) for place in different]
        if self.block.launch.turns is not None:
            self.block.launch.turns.shuffle(mine)
        group.place, group.mask = mine[0].place, mine[0].mask
        self.groups += mine[1:]

    def end(self, group: Group, mask: int) -> None:
        """Lanes of a group end."""
        self.alive &= ~mask
        group.mask &= ~mask
        self.groups = [one for one in self.groups if one.mask]

    def release(self) -> bool:
        """Let those go on together for whom all have come. Returns whether there are any."""
        waiting = [one for one in self.groups if one.waits in ("BSYNC", "WARPSYNC")]
        for one in waiting:
            if one.waits == "BSYNC":
                come, kind = 0, one.number
                for other in waiting:
                    if other.waits == "BSYNC" and other.number == kind:
                        come |= other.mask
                wanted = int(np.bitwise_or.reduce(self.barriers[kind][lanes_of(one.mask)])) & self.alive
            else:
                come, wanted = 0, one.number & self.alive
                for other in waiting:
                    if other.waits == "WARPSYNC" and other.number & self.alive == wanted:
                        come |= other.mask
            if wanted & ~come:
                continue
            together = [other for other in waiting if other.waits == one.waits and other.mask & (wanted | one.mask)]
            places = {other.place for other in together}
            self.groups = [other for other in self.groups if other not in together]
            for place in places:
                mask = 0
                for other in together:
                    mask |= other.mask if other.place == place else 0
                self.groups.append(Group(place, mask))
            return True
        return False
