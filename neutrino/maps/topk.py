"""``topk``: the keys with most of what all threads of a launch saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neutrino.abi.records import Field
from neutrino.maps.declaration import Map, MapTable, MapType, count_in
from neutrino.maps.keyed import DEFAULT_ROOM, Keyed, value_fits
from neutrino.maps.sampling import SAMPLES
from neutrino.maps.table_layout import most_room, row_type, rows_by_launch

if TYPE_CHECKING:
    from neutrino.maps.declaration import Rows



@dataclass(frozen=True)
class TopK(Keyed):
    """The n keys with the greatest sum of the values that were saved with them; without values, the greatest count.

    n: how many. sample: one save in so many is counted (``Keyed``).
    """

    n: int = 0

    name = "topk"
    keys = ("n", "room", "sample")
    whole = "the keys with most over all threads"

    @classmethod
    def declared(cls, table: MapTable, fields: Sequence[Field]) -> MapType | None:
        """Read the type's options from a map's table in a probe file; None if its keys are invalid, which is reported.

        ``n`` is how many keys are shown, ``room`` how many fit in the table. fields: of the map: the key, and perhaps a
        value.
        """
        if not value_fits(table, fields):
            return None
        keep = ("sum",) if len(fields) > 1 else ()
        most = most_room(len(keep))
        if table.get("n") is None:
            table.missing("n", "n = 20")
            return None
        n = count_in(table, "n", most)
        if n is None:
            return None
        room = max(DEFAULT_ROOM, n) if table.get("room") is None else count_in(table, "room", most)
        if room is None:
            return None
        if room < n:
            table.fault("room", f"room is {room}, but n is {n}", f"write an integer from {n} to {most}")
            return None
        sample = table.get("sample")
        if sample is None:
            return cls(room, keep, n)
        if isinstance(sample, bool) or not isinstance(sample, int) or sample not in SAMPLES:
            table.fault("sample", f"sample is {sample!r:.40}", f"write a power of two from 1 to {SAMPLES[-1]}")
            return None
        if keep and sample > 1:
            table.fault("sample", "sample is for a map without values", "leave out the value, or sample")
            return None
        return cls(room, keep, n, sample=sample)

    def options(self) -> dict[str, Any]:
        """Return the keys of the map's table in a probe file, with their values."""
        return {"n": self.n, "room": self.room, **({"sample": self.sample} if self.sample > 1 else {})}

    def describe(self, entry: Map) -> str:
        """Describe a map of this type for users: ``the 20 keys with the greatest sum per launch``."""
        sampled = f", estimated from one save in {self.sample}" if self.sample > 1 else ""
        return f"the {self.n} keys with the greatest {'sum' if self.keep else 'count'} per launch{sampled}"

    @staticmethod
    def read(copies: Rows, row: Mapping[str, Any]) -> Rows:
        """Return up to n rows of each launch: those of the keys with the greatest sum, or count if there are no values.

        copies, row and the rows are those of ``Keyed.read``.
        """
        import numpy as np

        launches = [np.zeros(0, row_type(row))]
        for rows in rows_by_launch(copies, row):
            numbers = rows["sum" if row["kept"] else "count"]
            # A stable sort of the inverted numbers, so that equal ones stay in the order of the keys; NaNs last.
            order = np.argsort(-numbers if numbers.dtype.kind == "f" else ~numbers, kind="stable")
            launches.append(rows[order][: row["n"]])
        return np.concatenate(launches)
