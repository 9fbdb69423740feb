"""``ring``: each thread, warp or block keeps its last records."""

from __future__ import annotations

from dataclasses import dataclass

from neutrino.maps.declaration import Layout, Map, MapType
from neutrino.maps.target import SaveWriter


@dataclass(frozen=True)
class Ring(MapType):
    """The last ``cap`` records of each thread, warp or block, and how many it saved in all.

    Save number n, from 0, is at n modulo ``cap`` in its slot. Readers restore the order.
    """

    name = "ring"
    layout = Layout.SLOTS
    keeps_last = True
    stores_at_sites = True
    settles = False

    def describe(self, entry: Map) -> str:
        """Return a map in words: ``the last 4 records of 16 bytes per thread``."""
        return f"the last {entry.cap:,} records of {entry.size} bytes per {entry.level.value}"

    def save(self, entry: Map, writer: SaveWriter) -> None:
        """Emit a store into the slot of this thread, or of its warp or block."""
        writer.append_record()
