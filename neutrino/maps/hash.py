"""``hash``: how often each key was saved over all threads of a launch, and what was saved with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neutrino.abi.records import Field
from neutrino.maps.declaration import Map, MapTable, MapType, count_in
from neutrino.maps.keyed import DEFAULT_ROOM, Keyed, value_fits
from neutrino.maps.sampling import SAMPLES
from neutrino.maps.table_layout import AGGREGATES, most_room


@dataclass(frozen=True)
class Hash(Keyed):
    """Each key with its count, and what is kept of the values that were saved with it.

    stands_for: so many saves are stood for by each, since probes save one in so many, chosen at random. The counts and
    sums that readers give are estimates for all.
    """

    stands_for: int = 1

    name = "hash"
    keys = ("room", "keep", "stands_for")
    whole = "keys over all threads"

    @classmethod
    def declared(cls, table: MapTable, fields: Sequence[Field]) -> MapType | None:
        """Return the type that a map's table in a probe file declares; None if its keys are invalid, which is reported.

        fields: of the map: the key, and perhaps a value. ``keep`` in the table says what is kept of the values, "sum"
        if it is missing, and ``room`` how many keys fit.
        """
        if not value_fits(table, fields):
            return None
        keep = table.get("keep")
        has_value = len(fields) > 1
        if keep is None:
            keep = ["sum"] if has_value else []
        if not isinstance(keep, list) or sorted({str(word) for word in keep}) != sorted(map(str, keep)):
            table.fault("keep", "keep is no list of different words", 'write keep = ["sum", "min", "max"]')
            return None
        if any(word not in AGGREGATES for word in keep) or (keep and not has_value):
            message = f"keep is {keep!r:.60}" + ("" if has_value else ", but the map has no value besides its key")
            table.fault("keep", message, 'write some of "sum", "min" and "max", of a value that is saved with the key')
            return None
        kept = tuple(word for word in AGGREGATES if word in keep)
        most = most_room(len(kept))
        room = min(DEFAULT_ROOM, most) if table.get("room") is None else count_in(table, "room", most)
        stands_for = 1 if table.get("stands_for") is None else table.get("stands_for")
        if isinstance(stands_for, bool) or not isinstance(stands_for, int) or stands_for not in SAMPLES:
            message = f"stands_for is {stands_for!r:.40}"
            table.fault("stands_for", message, f"write a power of two from 1 to {SAMPLES[-1]}")
            return None
        return None if room is None else cls(room, kept, stands_for)

    def options(self) -> dict[str, Any]:
        """Return the keys of the map's table in a probe file, with their values."""
        estimates = {"stands_for": self.stands_for} if self.stands_for > 1 else {}
        return {"room": self.room, "keep": list(self.keep), **estimates}

    def document(self, fields: Sequence[Field]) -> dict[str, Any]:
        """Return what a map of this type adds to its object in the manifest. fields: of the map."""
        estimates = {"sample": self.stands_for} if self.stands_for > 1 else {}
        return {**super().document(fields), **estimates}

    def estimate_words(self) -> str:
        """Say that counts and sums are estimates, and what the error beside each count means; "" if they are exact."""
        if self.stands_for == 1:
            return ""
        return (
            f", measured in one of {self.stands_for} executions: count and sum are estimates for all; "
            "in 95 of 100 cases a true count is within the error"
        )

    def describe(self, entry: Map) -> str:
        """Return a map in words: ``count, sum of up to 256 keys per launch``."""
        kept = "".join(f", {word}" for word in self.keep)
        return f"count{kept} of up to {self.room:,} keys per launch"
