"""The table of map types. A new type is a class and a row here."""

from __future__ import annotations

from neutrino.maps.array import Array
from neutrino.maps.average import Average
from neutrino.maps.declaration import MapType
from neutrino.maps.extreme import Maximum, Minimum
from neutrino.maps.hash import Hash
from neutrino.maps.histogram import Histogram
from neutrino.maps.log import Log
from neutrino.maps.ring import Ring
from neutrino.maps.sum import Sum
from neutrino.maps.topk import TopK

MAP_TYPES: tuple[type[MapType], ...] = (
    Array,
    Sum,
    Histogram,
    Minimum,
    Maximum,
    Average,
    Ring,
    Hash,
    TopK,
    Log,
)
"""By their numbers in files: the order is part of the formats."""

ARRAY, SUM = Array(), Sum()

TYPE_KEYS = tuple(dict.fromkeys(key for kind in MAP_TYPES for key in kind.keys))
"""Keys of ``[map.NAME]`` tables that belong to some type."""

_NUMBERS = {kind.name: number for number, kind in enumerate(MAP_TYPES)}


def number_of(kind: MapType) -> int:
    """Return the number that stands for a map type (sum, histogram …) in binary files."""
    return _NUMBERS[kind.name]


def type_names() -> list[str]:
    """Return the names of all map types (sum, histogram …), in the order of their numbers in files."""
    return list(_NUMBERS)


def type_named(name: str) -> type[MapType] | None:
    """Return the map type with a name, such as "sum"; None if this version has none."""
    number = _NUMBERS.get(name)
    return None if number is None else MAP_TYPES[number]
