"""Whether the process of a trace still runs, so that what is not there yet may come."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from neutrino.abi.launches import LaunchState
from neutrino.tracing.processes import runs_still

if TYPE_CHECKING:
    from neutrino.tracing.trace import Trace

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
