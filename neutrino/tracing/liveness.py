"""Whether the process of a trace still runs, so that what is not there yet may come."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neutrino.abi.launches import LaunchState

if TYPE_CHECKING:
    from neutrino.tracing.trace import Trace

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


def is_running(trace: Trace) -> bool:
    """Return whether the process of a trace still runs, on this machine, as far as this one sees."""
    return not trace.has_end and runs_still(trace.process, trace.started)


def awaited(trace: Trace) -> int:
    """Return of how many launches of twins the data are not in a trace that the process has not ended: they come, if it
    still runs; else it was killed before they were written, and they are lost.
    """
    return 0 if trace.has_end else int(np.count_nonzero(trace.launches["state"] == LaunchState.SUBMITTED))


def awaited_words(trace: Trace) -> str:
    """Return what to say of these launches; "" if there are none."""
    count = awaited(trace)
    if not count:
        return ""
    launches = "1 launch" if count == 1 else f"{count:,} launches"
    if is_running(trace):
        return f"the data of {launches} are not here yet: the process runs on"
    return f"the data of {launches} are lost: the process was killed before they were written"


def _booted() -> float:
    """Return when the machine was started, in seconds since the epoch. Raises OSError, ValueError."""
    line = next(line for line in Path("/proc/stat").read_bytes().splitlines() if line.startswith(b"btime "))
    return float(line.split()[1])
