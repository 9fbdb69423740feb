"""How many warps NVIDIA's multiprocessors have registers for."""

from __future__ import annotations

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
