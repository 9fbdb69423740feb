"""Whose result each row of a map is: those of maps with ``per = "block"``, ``"warp"``, ``"thread"`` or ``"sm"``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]


def row_owners(rows: Array, per: str, warps: int, lanes: int, threads: int, keeps_all: bool) -> dict[str, Array]:
    """Return which rows of a launch's record are results, under "row", and whose each is, under "block", "warp", "lane"
    or "sm".

    rows: the map's rows, one for each block, warp, thread or multiprocessor (``per``) in order, after a first one,
    which threads add to for whose owner there is no room; it belongs to none, and only with ``per = "sm"`` it is
    returned, as the last. Rows of zeros were not saved to, and are left out; keeps_all: unless they belong to a block,
    a warp or a thread of the launch. warps, threads: of a block. lanes: of a warp.
    """
    import numpy as np

    numbers = np.arange(1, len(rows) + (per == "sm")) % len(rows)
    is_saved = np.zeros(len(rows), bool)
    for name in rows.dtype.names or ():
        is_saved |= rows[name] != 0
    index = np.arange(len(numbers))
    if per == "sm":
        axes = {"sm": index}
    elif per == "block":
        axes = {"block": index}
    elif per == "warp":
        axes = {"block": index // warps, "warp": index % warps}
    else:
        axes = {"block": index // (warps * lanes), "warp": index // lanes % warps, "lane": index % lanes}
    exists = np.full(len(numbers), keeps_all and per != "sm")
    if per == "thread":
        exists &= index % (warps * lanes) < threads
    return {name: column[is_saved[numbers] | exists] for name, column in {"row": numbers, **axes}.items()}
