"""Which slot of a launch's regions a thread saves to, computed anew from the special registers."""

from __future__ import annotations

from dataclasses import dataclass

from neutrino.abi.levels import Level
from neutrino.abi.probe_block import BLOCK_WARP_CAPACITY, BLOCK_WARPS_PER_BLOCK
from neutrino.maps.regions import LANES
from neutrino.ptx.instrument.private_registers import Take
from neutrino.ptx.instrument.probe_block import ProbeBlock


@dataclass(frozen=True)
class Slot:
    """index, lane: 32-bit registers; inside: predicate, this thread has a slot in the launch's regions.

    index: of the warp in the grid, at block level of the block.
    """

    index: str
    lane: str
    inside: str


class Slots:
    """The slots of a thread, each computed where it is first asked for: for code that runs as one."""

    def __init__(self, block: ProbeBlock, take: Take) -> None:
        self._block = block
        self._take = take
        self._found: dict[Level, Slot] = {}

    def at(self, level: Level, lines: list[str]) -> Slot:
        """The slot of this thread at the level, and whether it owns one and the launch has room for it."""
        if level not in self._found:
            self._found[level] = self._block_slot(lines) if level is Level.BLOCK else self._warp_slot(level, lines)
        return self._found[level]

    def _warp_slot(self, level: Level, lines: list[str]) -> Slot:
        warp, lane, a, b, c = (self._take("b32") for _ in range(5))
        inside = self._take("pred")
        lines += [
            f"mov.u32 {a}, %tid.z;",
            f"mov.u32 {b}, %ntid.y;",
            f"mov.u32 {c}, %tid.y;",
            f"mad.lo.u32 {a}, {a}, {b}, {c};",
            f"mov.u32 {b}, %ntid.x;",
            f"mov.u32 {c}, %tid.x;",
            f"mad.lo.u32 {lane}, {a}, {b}, {c};",
            *_block_index(a, b, c),
            self._block.load("u32", b, BLOCK_WARPS_PER_BLOCK),
            f"shr.u32 {c}, {lane}, 5;",
            f"mad.lo.u32 {warp}, {a}, {b}, {c};",
            f"and.b32 {lane}, {lane}, {LANES - 1};",
            self._block.load("u32", b, BLOCK_WARP_CAPACITY),
            f"setp.lt.u32 {inside}, {warp}, {b};",
        ]
        if level is Level.WARP:
            lines.append(f"setp.eq.and.u32 {inside}, {lane}, 0, {inside};")
        return Slot(warp, lane, inside)

    def _block_slot(self, lines: list[str]) -> Slot:
        block, lane, a, b = (self._take("b32") for _ in range(4))
        inside = self._take("pred")
        lines += [
            *_block_index(block, a, b),
            self._block.load("u32", a, BLOCK_WARPS_PER_BLOCK),
            f"mul.lo.u32 {a}, {block}, {a};",
            self._block.load("u32", b, BLOCK_WARP_CAPACITY),
            f"setp.lt.u32 {inside}, {a}, {b};",
            f"mov.u32 {lane}, %tid.x;",
            f"mov.u32 {a}, %tid.y;",
            f"or.b32 {lane}, {lane}, {a};",
            f"mov.u32 {a}, %tid.z;",
            f"or.b32 {lane}, {lane}, {a};",
            f"setp.eq.and.u32 {inside}, {lane}, 0, {inside};",
        ]
        return Slot(block, lane, inside)


def _block_index(index: str, a: str, b: str) -> list[str]:
    """The block's linear index in the grid; a and b are for other numbers meanwhile."""
    return [
        f"mov.u32 {index}, %ctaid.z;",
        f"mov.u32 {a}, %nctaid.y;",
        f"mov.u32 {b}, %ctaid.y;",
        f"mad.lo.u32 {index}, {index}, {a}, {b};",
        f"mov.u32 {a}, %nctaid.x;",
        f"mov.u32 {b}, %ctaid.x;",
        f"mad.lo.u32 {index}, {index}, {a}, {b};",
    ]
