"""What the oracle did in this session, for the summary lines."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Tally:
    """judged: kernels of the matrix by name, each with its twins, their launches, and the seconds they took. Plain
    values, since they go from one process to another."""

    judged: dict[str, tuple[int, int, float]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """What another process did; a kernel that both judged counts once."""
        self.judged |= other.judged
        self.lines += other.lines

    def __str__(self) -> str:
        twins, runs, seconds = map(sum, zip(*self.judged.values(), strict=True))
        return (
            f"oracle: {len(self.judged)} kernels: {twins} twins, {runs} runs under fixed and random schedules "
            f"in {seconds:.1f} s of one process"
        )


TALLY = Tally()
