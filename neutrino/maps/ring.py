"""``ring``: each thread, warp or block keeps its last records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neutrino.ir.memory import MapStatement, StoreRecord
from neutrino.maps.builder import SavedValues
from neutrino.maps.declaration import Layout, Map, MapType


@dataclass(frozen=True)
class Ring(MapType):
    """The last ``cap`` records of each thread, warp or block, and how many it saved in all.

    With a cap of 1, too: so it tells slots that nothing was saved to from those with a record of zeros.

    Save number n, from 0, is at n modulo ``cap`` in its slot. Readers restore the order.
    """

    name = "ring"
    layout = Layout.SLOTS
    keeps_last = True
    stores_at_sites = True
    settles = False

    def describe(self, entry: Map) -> str:
        """Return a map in words: ``the last 4 records of 16 bytes per thread``."""
        records = "record" if entry.cap == 1 else f"{entry.cap:,} records"
        return f"the last {records} of {entry.size} bytes per {entry.level.value}"

    def save(self, entry: Map, saved: SavedValues) -> Sequence[MapStatement]:
        """Return the code (IR statements) of one save: a store of the record into the memory of this thread, or of its
        warp or block."""
        return [StoreRecord(entry.span)]
