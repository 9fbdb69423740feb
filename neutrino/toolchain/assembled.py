"""What an assembler makes, and reports of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Resources:
    """The resource usage of one kernel, as the assembler reports it (``ptxas -v``).

    registers: per thread. frame: stack frame; spill_stores, spill_loads: spilled registers. These three are in bytes
    per thread, without called functions. functions: stack frames, in bytes, of the functions that the kernel calls and
    that were assembled with it, by name.
    """

    registers: int
    frame: int
    spill_stores: int
    spill_loads: int
    functions: Mapping[str, int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class Assembled:
    """What an assembler has made. resources: by kernel name. warnings: texts of warnings and advisories, in order."""

    cubin: bytes
    resources: dict[str, Resources]
    warnings: tuple[str, ...]
