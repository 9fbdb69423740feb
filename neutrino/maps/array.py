"""``array``: each thread, warp or block keeps records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neutrino.abi.levels import LEVELS
from neutrino.ir.memory import MapStatement, StoreRecord
from neutrino.maps.builder import SavedValues
from neutrino.maps.declaration import Layout, Map, MapType

_OWNERS = {level: f"per {level.value}" for level in LEVELS}


@dataclass(frozen=True)
class Array(MapType):
    """Up to ``cap`` records in the slot of each thread, warp or block, in the order in which they were saved.

    A slot with a cap of 1 holds the last record. Others count their saves, so that it is known how many did not fit.
    """

    name = "array"
    layout = Layout.SLOTS
    stores_at_sites = True
    settles = False
    in_older_dialect = True

    def describe(self, entry: Map) -> str:
        """Return a map in words: ``up to 4 records of 16 bytes per thread``."""
        owner = _OWNERS[entry.level]
        if entry.cap == 1:
            return f"{entry.size} bytes {owner}"
        return f"up to {entry.cap:,} records of {entry.size} bytes {owner}"

    def save(self, entry: Map, saved: SavedValues) -> Sequence[MapStatement]:
        """Return the code (IR statements) of one save: a store of the record into the memory of this thread, or of its
        warp or block."""
        return [StoreRecord(entry.span)]
