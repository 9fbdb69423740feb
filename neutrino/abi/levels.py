"""Which threads something is for: each, the first of a warp, of a block or of a group; and whose values are one
result."""

from __future__ import annotations

import enum


class Level(enum.Enum):
    """Which threads a snippet runs for, and which threads own a slot of a map.

    ``GROUP`` is of snippets alone: the lowest of the lanes that execute an instruction together, another one each time.
    So it owns no slot, and maps are never at this level.
    """

    THREAD = "thread"
    WARP = "warp"
    BLOCK = "block"
    GROUP = "group"

    # By identity, which takes no call of a Python function: levels are looked up at every site.
    __hash__ = object.__hash__


LEVELS = (Level.THREAD, Level.WARP, Level.BLOCK)
"""Those of maps, by their numbers in files."""


class Per(enum.Enum):
    """Whose values a map combines: ``per = "block"`` has a result for each block of a launch."""

    LAUNCH = "launch"
    BLOCK = "block"
    WARP = "warp"
    THREAD = "thread"
    SM = "sm"
    RUN = "run"

    __hash__ = object.__hash__

    @property
    def has_rows(self) -> bool:
        """Whether a launch has several results, each a row of the map's region."""
        return self not in (Per.LAUNCH, Per.RUN)


PERS = (Per.LAUNCH, Per.BLOCK, Per.WARP, Per.THREAD, Per.SM, Per.RUN, Per.RUN)
"""By their numbers in files, of which ``RUN`` has two."""
RUN_OF_FLOATS = 6
"""The number of ``RUN`` where a map's words, but for a count before them, are sums of f64."""
