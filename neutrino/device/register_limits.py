"""Registers of a multiprocessor, and how many a user may leave a thread."""

from __future__ import annotations

LEAST_CAP, MOST_CAP = 24, 255
"""Registers per thread that ``--max-registers`` may be: ``ptxas`` raises fewer to 24, from sm_75 on, and ignores
more."""
_OF_48_WARPS = frozenset({"sm_86", "sm_87", "sm_89", "sm_120", "sm_121"})
"""Architectures whose multiprocessors hold 48 warps (CUDA C++ Programming Guide, technical specifications)."""


def warps_by_registers(registers: int, arch: str) -> int:
    """Return how many warps fit on a multiprocessor if nothing but a thread's registers limits them.

    By the CUDA occupancy calculator, for sm_75 to sm_121: registers are handed out to threads in units of 8, from
    16,384 on each of a multiprocessor's four parts. arch: such as ``sm_90a``.
    """
    name = arch.rstrip("af")
    most = {"sm_75": 32}.get(name, 48 if name in _OF_48_WARPS else 64)
    of_a_warp = 32 * max(-(-registers // 8) * 8, 8)
    return min(most, 4 * (16_384 // of_a_warp))


def blocks_by_registers(registers: int, threads: int, arch: str) -> int:
    """Return how many blocks of so many threads fit on a multiprocessor if nothing else limits them."""
    return warps_by_registers(registers, arch) // max(-(-threads // 32), 1)
