"""The copy of a map's record that a thread adds to: one of several, by the multiprocessor that it runs on."""

from __future__ import annotations

from neutrino.abi.probe_block import BLOCK_COPY_MASK, BLOCK_HEADER, BLOCK_PER_MAP
from neutrino.maps.declaration import NO_LIMIT, Map
from neutrino.maps.regions import copy_stride, most_copies
from neutrino.ptx.instrument.private_registers import Take
from neutrino.ptx.instrument.probe_block import ProbeBlock


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
