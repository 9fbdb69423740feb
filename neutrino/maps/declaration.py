"""A map as a probe file declares it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from neutrino.abi.levels import Level
from neutrino.abi.records import Field
from neutrino.abi.scalars import ScalarType
from neutrino.errors import Span


class MapKind(enum.Enum):
    """``ARRAY``: up to ``cap`` records a slot. ``SUM``: one record, added over all threads of the launch."""

    ARRAY = "array"
    SUM = "sum"


KINDS = (MapKind.ARRAY, MapKind.SUM)
"""By their numbers in files."""

DYNAMIC_CAP = 0
"""``cap`` of a map whose slots hold as many records as earlier launches of the kernel needed."""
SUM_TYPES = frozenset({ScalarType.U32, ScalarType.S32, ScalarType.U64, ScalarType.S64})
"""Types of fields that are added up."""


@dataclass(frozen=True)
class Map:
    """``[map.NAME]``. size: bytes of one record; cap: records a slot (1 for ``SUM``, or ``DYNAMIC_CAP``)."""

    name: str
    kind: MapKind
    level: Level
    size: int
    cap: int
    fields: tuple[Field, ...]
    span: Span
