"""Measured shares in percent, as reports show them in text. How much of a run was probed is rounded down, and is in
``coverage``.
"""

from __future__ import annotations


def percent(share: float) -> str:
    """Return a share in percent, to the nearest one: ``17 %``, below 10 with a digit; 0 and 100 only if nothing, or
    nothing else, is there.
    """
    hundred = 100 * share
    if 0 < hundred < 0.05:
        return "under 0.1 %"
    if 99.5 <= hundred < 100:
        return "over 99 %"
    return f"{hundred:.1f} %" if hundred < 9.95 else f"{hundred:.0f} %"
