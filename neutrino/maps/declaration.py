"""A map as a probe file declares it, and what a type of maps has to define."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from neutrino.abi.levels import Level
from neutrino.abi.records import Field, lay_out_fields
from neutrino.abi.scalars import ScalarType
from neutrino.errors import Span
from neutrino.maps.target import EndWriter, SaveWriter

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Rows = npt.NDArray[Any]

DYNAMIC_CAP = 0
"""``cap`` of a map whose slots hold as many records as earlier launches of the kernel needed."""
NO_LIMIT = 0


class MapTable(Protocol):
    """``[map.NAME]`` as a type of maps reads its own keys of it. Faults are noted at the key's place."""

    def get(self, key: str) -> Any:
        """The value of a key, None without it."""

    def missing(self, key: str, hint: str) -> None:
        """Note that a key is not there; hint: what to write."""

    def fault(self, key: str, message: str, hint: str) -> None:
        """Note what is wrong with a key's value."""


class Report(enum.Enum):
    """How reports show a map: its records' fields; with their sums over the launches; as counts of buckets."""

    RECORDS = "records"
    TOTALS = "totals"
    BUCKETS = "buckets"


@dataclass(frozen=True)
class MapType:
    """A type of maps: everything about it but what a target's instructions are. ``registry.py`` lists the types.

    Instances hold what a map's table adds to the type, so that equal ones mean the same.

    name: in probe files, manifests and reports. keys: what a map's table may have besides ``MAP_KEYS``.
    in_slots: each thread, warp or block has a slot of up to ``cap`` records; else the launch has one record, of which
    there are several copies that the reader combines. copies_bytes: what these copies may take together, in bytes;
    ``NO_LIMIT`` for as many as the launch asks for. field_types, field_hint, most_fields: what ``data`` may hold.
    stores_at_sites: a SAVE writes to memory where it stands. settles: it leaves something in registers that is written
    where a thread ends. adds_constants: saving constants is the same as adding them. combines_lanes: its code
    lets lanes of a warp exchange values. in_older_dialect: ``datamodel`` has a word for it.
    whole: what a launch has of it, in words; "" with slots.
    """

    name: ClassVar[str]
    keys: ClassVar[tuple[str, ...]] = ()
    in_slots: ClassVar[bool] = False
    copies_bytes: ClassVar[int] = NO_LIMIT
    field_types: ClassVar[frozenset[ScalarType]] = frozenset(ScalarType)
    field_hint: ClassVar[str] = ""
    most_fields: ClassVar[int | None] = None
    stores_at_sites: ClassVar[bool] = False
    settles: ClassVar[bool] = True
    adds_constants: ClassVar[bool] = False
    combines_lanes: ClassVar[bool] = False
    in_older_dialect: ClassVar[bool] = False
    whole: ClassVar[str] = ""
    report: ClassVar[Report] = Report.RECORDS

    @classmethod
    def declared(cls, table: MapTable, fields: Sequence[Field]) -> MapType | None:
        """The type as a map's table has it; None when its keys are wrong, which is noted."""
        return cls()

    def options(self) -> dict[str, Any]:
        """The keys that ``declared`` reads, as TOML and JSON have them."""
        return {}

    def cells(self, fields: Sequence[Field]) -> tuple[Field, ...]:
        """What memory holds of a record: its fields, unless a type encodes them."""
        return tuple(fields)

    def size(self, fields: Sequence[Field]) -> int:
        """Bytes of one record in memory."""
        return lay_out_fields([(cell.name, cell.type) for cell in self.cells(fields)])[1]

    def document(self, fields: Sequence[Field]) -> dict[str, Any]:
        """What a manifest says of the type, besides the map's fields; ``read`` gets it."""
        return self.options()

    def words(self, entry: Map) -> str:
        """A map of the type in words: ``a sum of 8 bytes per launch``."""
        raise NotImplementedError

    def save(self, entry: Map, writer: SaveWriter) -> None:
        """The code of one SAVE."""
        raise NotImplementedError

    def settle(self, entry: Map, writer: EndWriter) -> None:
        """The code where a thread ends, for what ``save`` left in registers. Sums and counts the target settles."""

    @staticmethod
    def read(copies: Rows, row: Mapping[str, Any]) -> Rows:
        """The rows that the copies of launches' records mean.

        copies: structured array by ``cells``, ``[copy]`` of one launch or ``[launch][copy]``. row: the map's object in
        the manifest.
        A function of NumPy alone: ``read.py`` has its source.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Map:
    """``[map.NAME]``. size: bytes of one record in memory; cap: records a slot, or ``DYNAMIC_CAP``; 1 without slots."""

    name: str
    kind: MapType
    level: Level
    size: int
    cap: int
    fields: tuple[Field, ...]
    span: Span

    def document(self) -> dict[str, Any]:
        """The map's object in manifests."""
        cells = self.kind.cells(self.fields)
        return {
            "name": self.name,
            "kind": self.kind.name,
            "level": self.level.value,
            "size": self.size,
            "cap": self.cap,
            "fields": _rows(self.fields),
            **({} if cells == self.fields else {"cells": _rows(cells)}),
            **self.kind.document(self.fields),
        }

    @property
    def dtype(self) -> np.dtype[np.void]:
        """The NumPy type of one record in memory."""
        # Here, because reading a probe file needs this module but must not wait for NumPy.
        from neutrino.abi.records import record_dtype

        return record_dtype(self.kind.cells(self.fields), self.size)


def _rows(fields: Sequence[Field]) -> list[dict[str, Any]]:
    return [{"name": item.name, "type": item.type.value, "offset": item.offset} for item in fields]
