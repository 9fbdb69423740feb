"""Whether a process still runs, by its number and when it began."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SLACK_S = 2.0
"""Of two clocks: a process that began later than its trace, by more than this, is another one with the same number."""


def runs_still(process: Mapping[str, Any], started: float) -> bool:
    """Return whether a process runs on this machine. process: its event. started: when its trace began, in seconds
    since the epoch.
    """
    pid = process.get("pid")
    if not isinstance(pid, int) or isinstance(pid, bool) or process.get("host") != platform.node():
        return False
    try:
        # After the program's name, which may have any character: state, and 19 numbers later the start, in ticks.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        began = int(fields[19]) / os.sysconf("SC_CLK_TCK") + _booted()
    except (OSError, ValueError, IndexError):
        return False
    return fields[0] not in (b"Z", b"X") and began <= started + _SLACK_S


def _booted() -> float:
    """Return when the machine was started, in seconds since the epoch. Raises OSError, ValueError."""
    line = next(line for line in Path("/proc/stat").read_bytes().splitlines() if line.startswith(b"btime "))
    return float(line.split()[1])
