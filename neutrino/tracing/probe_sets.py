"""The sets of probes of a trace: one, or several where a program has asked again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from neutrino.late_dataclass import dataclass


@dataclass(frozen=True)
class RecordedSet:
    """A set of probes that was in force for some launches.

    number: from 1; kernels and launch records name it. probes: their names, as the user gave them. file: the probes in
    the trace.
    """

    number: int
    probes: str
    file: str

    def __repr__(self) -> str:
        """The set in short: its number and probes."""
        return f"<set {self.number}: {self.probes}>"


def probe_files(path: Path) -> list[Path]:
    """Return the files with probes that are in a trace: of the run, or of the first patched library; then those of
    other libraries and sets, by number. Links are none of these: they are faults of the trace.
    """
    # Shorter names first, so that probe-2 comes before probe-10.
    numbered = sorted(path.glob("probe-*.toml"), key=lambda file: (len(file.name), file.name))
    return [file for file in (path / "probe.toml", *numbered) if file.is_file() and not file.is_symlink()]


def recorded_sets(process: dict[str, Any], events: Sequence[dict[str, Any]]) -> tuple[RecordedSet, ...]:
    """Return the sets of probes of a trace, by number. process: its event about that; events: those about sets."""
    found = {1: RecordedSet(1, str(process.get("probes") or ""), "probe.toml")}
    for event in events:
        number, file = event.get("number"), event.get("file")
        # A path that leads out of the trace is none.
        if isinstance(number, int) and number > 1 and isinstance(file, str) and "/" not in file:
            found[number] = RecordedSet(number, str(event.get("probes") or ""), file)
    return tuple(found[number] for number in sorted(found))
