"""``sum``: fields that are added up over all threads of a launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neutrino.abi.scalars import ScalarType
from neutrino.maps.declaration import Map, MapType, Report
from neutrino.maps.target import SaveWriter

if TYPE_CHECKING:
    from neutrino.maps.declaration import Rows


@dataclass(frozen=True)
class Sum(MapType):
    """One record per launch: each field is summed up over all threads, modulo the field's width."""

    name = "sum"
    field_types = frozenset({ScalarType.U32, ScalarType.S32, ScalarType.U64, ScalarType.S64})
    field_hint = "a sum adds u32, s32, u64 or s64"
    adds_constants = True
    takes_per = True
    in_older_dialect = True
    whole = "a sum over all threads"
    report = Report.TOTALS

    def describe(self, entry: Map) -> str:
        """Return a map in words: ``a sum of 8 bytes per launch``."""
        return f"a sum of {entry.size} bytes per {entry.per.value}"

    def save(self, entry: Map, writer: SaveWriter) -> None:
        """Emit additions in registers, which the target combines over several saves where it can."""
        writer.add_fields()

    @staticmethod
    def read(copies: Rows, row: Mapping[str, Any]) -> Rows:
        """Return one row for each launch: the fields, summed over the copies, which are the last axis."""
        import numpy as np

        sums = np.zeros(copies.shape[:-1], copies.dtype)
        for name in copies.dtype.names or ():
            # In the field's own type, so that sums wrap around as on the device; NumPy would widen narrow ones.
            sums[name] = np.add.reduce(copies[name], axis=-1, dtype=copies[name].dtype)
        return sums
