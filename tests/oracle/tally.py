"""What the oracle did in this session, for the summary line."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Tally:
    """runs: twins launched; seconds: of the matrix alone, by the clock."""

    kernels: int = 0
    probes: int = 0
    twins: int = 0
    runs: int = 0
    seconds: float = 0.0
    lines: list[str] = field(default_factory=list)


TALLY = Tally()
