"""Which maps a probe may save to, by its level."""

from __future__ import annotations

from neutrino.abi.levels import Level, Per
from neutrino.maps.declaration import Layout, Map

KEEP_ALL = 'keep all records with cap = "dynamic", or combine values, as type = "sum" does'
"""Hint for what wants slots at level group."""


def saves_for_warp(level: Level, target: Map) -> bool:
    """Return whether any thread may save to a map for its warp, not only the warp's first thread, as at level warp.

    So it is for a probe at level group and an array of one record per warp, which keeps what the warp's last group
    saved.
    """
    is_of_warp = target.level is Level.WARP and target.kind.layout is Layout.SLOTS and target.cap == 1
    return level is Level.GROUP and is_of_warp and not target.kind.keeps_last


def misfit(level: Level, target: Map) -> tuple[str, str] | None:
    """Return message and hint why a probe at a level (thread, warp …) may not save to a map; None if it may.

    Maps of groups are those of threads, without slots. A map at level group has been reported.
    """
    if target.level is level or target.level is Level.GROUP:
        return None
    if saves_for_warp(level, target):
        return None
    saves = f"a {level.value} probe saves to '{target.name}'"
    if level is not Level.GROUP or target.level is not Level.THREAD:
        hint = f'give both the same level: level = "{target.level.value}"'
        return f"{saves}, a {target.level.value} map", hint
    if target.kind.layout is Layout.SLOTS:
        hint = f"the lanes of a group have no place of their own together: {KEEP_ALL}"
        return f"{saves}, which keeps records of each thread", hint
    if target.per is Per.THREAD:
        return f"{saves}, which has a result for each thread", 'write per = "warp"'
    return None
