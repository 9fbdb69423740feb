"""Numbers of registers, on every processor those of gfx9."""

from __future__ import annotations

VGPRS = 512
"""Vector registers of both files: accumulation registers are 256 and on."""
SGPRS = 128
UPPER_HALVES = VGPRS + SGPRS
"""In numbers with a bit for each register, the lower halves of vector registers come first, then the scalar registers,
and from here on the upper halves."""
FLAT_SCRATCH, XNACK_MASK, VCC, TTMP, M0, EXEC = 102, 104, 106, 108, 124, 126
"""Numbers of scalar registers with names."""
WORD = 0xFFFF_FFFF
