"""How inserted code reads the probe block, and finds a thread's slot or the copy of a record that it adds to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from neutrino.abi.levels import Level
from neutrino.abi.probe_block import (
    BLOCK_COPY_MASK,
    BLOCK_HEADER,
    BLOCK_PER_MAP,
    BLOCK_PER_VARIABLE,
    BLOCK_WARP_CAPACITY,
    BLOCK_WARPS_PER_BLOCK,
)
from neutrino.maps.declaration import NO_LIMIT, Map
from neutrino.maps.regions import copy_stride, most_copies
from neutrino.ptx.instrument.registers import Take, bits
from neutrino.ptx.isa.scalars import WARP_LANES


class ProbeBlock:
    """The probe block as one body reads it. address: a parameter's name, or a register. space: that it is in.

    maps: their number. reads: what was read, offset → type.
    """

    def __init__(self, address: str, space: str, maps: int) -> None:
        self._address = address
        self._space = space
        self._maps = maps
        self.reads: dict[int, str] = {}

    def load(self, kind: str, register: str, offset: int) -> str:
        """The instruction that loads a word at an offset in bytes."""
        self.reads[offset] = kind
        return f"ld.{self._space}.{kind} {register}, [{self._address}{f'+{offset}' if offset else ''}];"

    def load_variable(self, index: int, register: str) -> str:
        """The instruction that loads the address of the index-th module variable."""
        return self.load("u64", register, BLOCK_HEADER + BLOCK_PER_MAP * self._maps + BLOCK_PER_VARIABLE * index)

    def copy(self, words: Mapping[int, str], state: str, take: Take) -> list[str]:
        """Copies of words, offset → type, to the same offsets of the kernel's state."""
        lines = []
        for offset, kind in sorted(words.items()):
            word = take(f"b{bits(kind)}")
            lines += [self.load(kind, word, offset), f"st.local.{kind} [{state}+{offset}], {word};"]
        return lines


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
            f"and.b32 {lane}, {lane}, {WARP_LANES - 1};",
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


def copy_address(
    entry: Map, index: int, block: ProbeBlock, take: Take, lines: list[str], lower: str | None = None
) -> str:
    """A register with the address of the copy. entry: the index-th map.

    lower: a register that is zero in the threads that add, but not known to be the same in all.
    """
    copy, mask, base = take("b32"), take("b32"), take("b64")
    lines += [
        f"mov.u32 {copy}, %smid;",
        block.load("u32", mask, BLOCK_COPY_MASK),
        f"and.b32 {copy}, {copy}, {mask};",
    ]
    if entry.kind.copies_bytes != NO_LIMIT:
        lines.append(f"and.b32 {copy}, {copy}, {most_copies(entry.kind, entry.size) - 1};")
    if lower is not None:
        # What is the same in all lanes ptxas computes apart from the others, which takes more instructions.
        lines.append(f"or.b32 {copy}, {copy}, {lower};")
    lines += [
        block.load("u64", base, BLOCK_HEADER + BLOCK_PER_MAP * index),
        f"mad.wide.u32 {base}, {copy}, {copy_stride(entry.size)}, {base};",
    ]
    return base
