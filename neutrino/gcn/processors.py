"""AMD's processors whose code is read or probed: generations, waves, and what registers cost waves.

Sources: LLVM, "User Guide for AMDGPU Backend" (processors, granules of registers), and AMD's manuals of the instruction
sets. The waves computed here are judged by what LLVM writes of kernels that it compiles ("; Occupancy:").
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

_RESERVED_SGPRS = 6
"""SGPRs that gfx9 allocates besides those that a kernel names: VCC, FLAT_SCRATCH and XNACK_MASK."""
_SGPR_GRANULE = 16
_SGPR_FILE = 800
"""SGPRs of a SIMD of gfx9."""


class Clock(enum.Enum):
    """What counts cycles. ``MEMTIME``: ``s_memtime``, 64 bits. ``SHORT``: ``SHADER_CYCLES``, 20 bits. ``HALVES``:
    ``SHADER_CYCLES_LO`` and ``SHADER_CYCLES_HI``, which cannot be read at once."""

    MEMTIME = "memtime"
    SHORT = "short"
    HALVES = "halves"


class VectorFile(NamedTuple):
    """The VGPRs of a SIMD, for waves of one size.

    encoded: the unit of a kernel descriptor's field. allocated: the unit in which a wave gets them. total: how many
    registers a lane's waves share. waves: the most waves on a SIMD.
    """

    encoded: int
    allocated: int
    total: int
    waves: int


@dataclass(frozen=True, slots=True)
class Processor:
    """A processor. generation: 9 to 12, of its instruction set. family: AMD's name of it. sgprs: how many a kernel may
    name besides VCC. files: its VGPRs by the lanes of a wave, which are the sizes that its waves may have. is_unified:
    whether VGPRs and accumulators (AGPRs) are one file, in which tuples begin at even registers. is_probed: whether
    kernels for it get probes.
    """

    name: str
    generation: int
    family: str
    sgprs: int
    clock: Clock
    files: Mapping[int, VectorFile]
    is_unified: bool = False
    is_probed: bool = False

    def allocated_vectors(self, vgprs: int, wave: int) -> int:
        """Return how many VGPRs the hardware gives a wave that asks for this many: it hands them out in units.

        vgprs: accumulators included where they are of one file.
        """
        return _rounded(max(vgprs, 1), self.files[wave].allocated)

    def waves(self, vgprs: int, wave: int, sgprs: int = 0) -> int:
        """Return how many waves fit on a SIMD at most, as far as registers go.

        vgprs: as for ``allocated_vectors``. wave: 32 or 64. sgprs: the highest that is named, and one; they count on
        gfx9 alone.
        """
        file = self.files[wave]
        fitting = min(file.waves, file.total // self.allocated_vectors(vgprs, wave))
        if self.generation == 9 and sgprs:
            fitting = min(fitting, _SGPR_FILE // _rounded(sgprs + _RESERVED_SGPRS, _SGPR_GRANULE))
        return fitting

    def free_scalars_limit(self, sgprs: int, waves: int) -> int:
        """Return how many SGPRs a kernel may name at most (numbers below that) and keep its waves.

        sgprs: how many it names (the highest, and one). waves: that fit now.
        """
        if self.generation != 9:
            return self.sgprs
        most = _SGPR_FILE // max(waves, 1) // _SGPR_GRANULE * _SGPR_GRANULE - _RESERVED_SGPRS
        return max(min(self.sgprs, most), min(sgprs, self.sgprs))


def _rounded(number: int, unit: int) -> int:
    """Return a number, rounded up to a multiple of a unit."""
    return -(-number // unit) * unit


_GCN = {64: VectorFile(4, 4, 256, 10)}
_CDNA2 = {64: VectorFile(8, 8, 512, 8)}
_RDNA1 = {32: VectorFile(8, 8, 1024, 20), 64: VectorFile(4, 4, 512, 20)}
_RDNA2 = {32: VectorFile(8, 16, 1024, 16), 64: VectorFile(4, 8, 512, 16)}
_RDNA3 = {32: VectorFile(8, 24, 1536, 16), 64: VectorFile(4, 12, 768, 16)}
_GFX1250 = {32: VectorFile(16, 16, 1024, 16)}


def _row(
    names: str, generation: int, family: str, files: Mapping[int, VectorFile], *, unified: bool = False
) -> list[Processor]:
    """Return the table's entries for processors that differ in their names alone."""
    clock = Clock.MEMTIME if generation <= 10 else Clock.SHORT if generation == 11 else Clock.HALVES
    sgprs = 102 if generation == 9 else 106
    return [
        Processor(name, generation, family, sgprs, clock, files, unified, is_probed=name in _PROBED)
        for name in names.split()
    ]


_PROBED = frozenset({"gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201"})

PROCESSORS: Mapping[str, Processor] = {
    processor.name: processor
    for processor in (
        *_row("gfx900 gfx902 gfx904 gfx906 gfx909 gfx90c", 9, "GCN5", _GCN),
        *_row("gfx908", 9, "CDNA", _GCN),
        *_row("gfx90a", 9, "CDNA2", _CDNA2, unified=True),
        *_row("gfx940 gfx941 gfx942", 9, "CDNA3", _CDNA2, unified=True),
        *_row("gfx950", 9, "CDNA4", _CDNA2, unified=True),
        *_row("gfx1010 gfx1011 gfx1012 gfx1013", 10, "RDNA", _RDNA1),
        *_row("gfx1030 gfx1031 gfx1032 gfx1033 gfx1034 gfx1035 gfx1036", 10, "RDNA2", _RDNA2),
        *_row("gfx1100 gfx1101 gfx1151", 11, "RDNA3", _RDNA3),
        *_row("gfx1102 gfx1103 gfx1150 gfx1152 gfx1153", 11, "RDNA3", _RDNA2),
        *_row("gfx1200 gfx1201", 12, "RDNA4", _RDNA3),
        *_row("gfx1250", 12, "gfx1250", _GFX1250),
    )
}
"""By name, as LLVM has it."""


def processor_named(name: str) -> Processor | None:
    """Return the processor of a name, such as ``gfx942``; None for one that is not known."""
    return PROCESSORS.get(name)
