"""Which threads something is for: each, the first of a warp, the first of a block."""

from __future__ import annotations

import enum


class Level(enum.Enum):
    """Which threads a snippet runs for, and which threads own a slot of a map."""

    THREAD = "thread"
    WARP = "warp"
    BLOCK = "block"

    # By identity, which takes no call of a Python function: levels are looked up at every site.
    __hash__ = object.__hash__


LEVELS = (Level.THREAD, Level.WARP, Level.BLOCK)
"""By their numbers in files."""
