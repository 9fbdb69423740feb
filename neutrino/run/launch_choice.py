"""Which launches are probed of those of a process: by their number, device and time, and by the program's ranges."""

from __future__ import annotations

from collections.abc import Iterator

from neutrino.errors import NeutrinoError
from neutrino.late_dataclass import dataclass
from neutrino.run.range_choice import Scope, patterns

MOST_DEVICES = 64
"""Devices that can be named: ordinals are less."""


@dataclass(frozen=True)
class Choice:
    """The user's choice of launches; the rest run their original kernels and are counted as not chosen.

    first, end: of each kernel, the launches from number first on, before number end; None for no end. Numbers begin
    with 0. every: of these, the launches whose number is a multiple. devices: ordinals of CUDA devices, none for all;
    what runs on others has no number. duration_ms: milliseconds from when the process first loads GPU code, None for no
    end. ranges: as of ``--range``, none for all launches; those outside have no number. range_scope: for whose launches
    ranges count that a thread pushes.

    Raises NeutrinoError if no launch is chosen, or a range is ill-formed.
    """

    first: int = 0
    end: int | None = None
    every: int = 1
    devices: tuple[int, ...] = ()
    duration_ms: int | None = None
    ranges: tuple[str, ...] = ()
    range_scope: Scope = Scope.THREAD

    def __post_init__(self) -> None:
        """Raise NeutrinoError if no launch can ever be chosen, or a range is not written as it should be."""
        patterns(self.ranges)
        # The first multiple that is not below first.
        lowest = -(-self.first // self.every) * self.every
        if self.end is not None and lowest >= self.end:
            raise NeutrinoError(
                f"--launches {self.first}:{self.end} --every {self.every}: no launch has a number that both choose"
            )

    def options(self) -> list[str]:
        """Return the options that make this choice, as they are written on a command line."""
        found = []
        if self.first or self.end is not None:
            found.append(f"--launches {self.first}:{'' if self.end is None else self.end}")
        if self.every > 1:
            found.append(f"--every {self.every}")
        found += [f"--device {number}" for number in self.devices]
        found += [f"--range {name}" for name in self.ranges]
        if self.duration_ms is not None:
            found.append(f"--duration {self.duration_ms / 1000:g}")
        return found

    def variables(self) -> Iterator[tuple[str, str | None]]:
        """Yield the environment variables that tell the hook the choice, without ``NEUTRINO_``; None for one that is
        not needed.
        """
        has_range = self.first or self.end is not None
        yield "LAUNCHES", f"{self.first}:{'' if self.end is None else self.end}" if has_range else None
        yield "EVERY", str(self.every) if self.every > 1 else None
        yield "ONLY_DEVICES", ",".join(map(str, self.devices)) or None
        yield "RANGES", patterns(self.ranges)
        yield "RANGE_SCOPE", self.range_scope.value if self.ranges else None
        yield "DURATION", None if self.duration_ms is None else str(self.duration_ms)
