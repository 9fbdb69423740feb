"""What ``hash`` and ``topk`` share: a table of keys, with what was saved with each over all threads of a launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from neutrino.abi.records import Field
from neutrino.ir.memory import Kept, MapStatement
from neutrino.ir.operands import Register
from neutrino.ir.types import Type
from neutrino.maps.builder import Builder, Lanes, SavedValues
from neutrino.maps.declaration import Map, MapTable, MapType, Report
from neutrino.maps.float_keys import as_key, kept_of
from neutrino.maps.known_keys import KnownKeys
from neutrino.maps.table_layout import KeyTable, lost_saves, places_for, row_type, rows_by_launch
from neutrino.maps.tables import add_to_key, add_to_site, begin_sites, bring_sites

if TYPE_CHECKING:
    from neutrino.maps.declaration import Rows

DEFAULT_ROOM = 256
"""Keys that fit if a map's table does not say how many."""

AnyKeyed = TypeVar("AnyKeyed", bound="Keyed")


@dataclass(frozen=True)
class Keyed(MapType):
    """A table for each copy of the record, which readers merge: ``table_layout.py``.

    A save finds the entry of its key, and adds to it. Where all keys of a kernel are sites or constants, each has a
    place of its own instead: ``known_keys.py``.

    room: how many keys fit. keep: which ``AGGREGATES`` are kept, in their order. known: of the keys of a kernel.
    """

    room: int = DEFAULT_ROOM
    keep: tuple[str, ...] = ()
    known: KnownKeys = field(default=KnownKeys(), kw_only=True)

    copies_bytes = 1 << 19
    field_hint = "write a key, and at most one value, of an unsigned or a floating-point type"
    most_fields = 2
    stores_at_sites = True
    combines_lanes = True
    report = Report.KEYS

    def cells(self, fields: Sequence[Field]) -> tuple[Field, ...]:
        """Return nothing: a table has words, which have no names."""
        return ()

    def words(self, fields: Sequence[Field]) -> int:
        """Return how many u64 a table has."""
        return self._table().all_words

    def document(self, fields: Sequence[Field]) -> dict[str, Any]:
        """Return the type's members in the manifest: the options, how the words are grouped, what is known of keys."""
        known = self.known.document(is_site_said=fields[0].name == "site")
        return {**self.options(), "places": self._table().places, "kept": list(self.keep), **known}

    def as_made(self: AnyKeyed, row: Mapping[str, Any]) -> AnyKeyed | None:
        """Return the type with what a map's object in a manifest says of its keys; None if that is damaged."""
        known = KnownKeys.as_made(row, self._table().places, len(self.keep))
        return None if known is None else replace(self, known=known)

    def for_sites(self: AnyKeyed, sites: int) -> AnyKeyed:
        """Return the type for a kernel all of whose keys are sites with numbers below this."""
        return replace(self, known=KnownKeys.of_sites(sites, self._table().place_words, len(self.keep)))

    def for_keys(self: AnyKeyed, keys: Sequence[int]) -> AnyKeyed:
        """Return the type for a kernel all of whose keys are these constants; the same if there is no room for them."""
        if len(keys) > self.room:
            return self
        return replace(self, known=KnownKeys.of_constants(keys, self._table().place_words, len(self.keep)))

    def number_of(self, key: int) -> int | None:
        """Return the number of a key, if it is a constant of all that there are; else None."""
        return self.known.number_of(key)

    @property
    def knows_sites(self) -> bool:
        """Whether all keys of a kernel are its sites."""
        return self.known.is_by_site

    @property
    def knows_keys(self) -> bool:
        """Whether all keys are constants in the probes."""
        return bool(self.known.numbered)

    def save(self, entry: Map, saved: SavedValues) -> Sequence[MapStatement]:
        """Return the code that finds the key's entry in memory, and adds to it."""
        code, table, site = Builder(entry.span), self._table(), saved.site_key()
        values: Mapping[str, Register] = {}
        if len(entry.fields) > 1:
            value = code.saved(1, entry.fields[1])
            values = kept_of(code, value, self.keep) if value.type.is_float else dict.fromkeys(self.keep, value)
        if site is not None:
            add_to_site(code, entry, table, site, values, saved)
            return code.statements
        key = code.saved(0, entry.fields[0])
        word = as_key(code, key) if key.type.is_float else code.as_bits(Type.U64, code.widened(key))
        add_to_key(code, entry, table, word, values, saved)
        return code.statements

    def begin(self, entry: Map, kept: Sequence[Kept], lanes: Lanes) -> Sequence[MapStatement]:
        """Return the code where a kernel begins."""
        code = Builder(entry.span)
        begin_sites(code, entry, self._table(), kept)
        return code.statements

    def settle(self, entry: Map, kept: Sequence[Kept], lanes: Lanes) -> Sequence[MapStatement]:
        """Return the addition of what lanes hold of sites."""
        code = Builder(entry.span)
        bring_sites(code, self._table(), kept, lanes)
        return code.statements

    @staticmethod
    def read(copies: Rows, row: Mapping[str, Any]) -> Rows:
        """Return a row for each key of each launch, in the order of the keys: key, count, what is kept, and missed.

        missed: how many saves of the key there may be besides, among those that found no place. copies: the tables; the
        last axis is the copy. row: the map's object in the manifest.
        """
        import numpy as np

        return np.concatenate([np.zeros(0, row_type(row)), *rows_by_launch(copies, row)])

    @staticmethod
    def lost(copies: Rows, row: Mapping[str, Any]) -> tuple[int, int | float]:
        """As of ``lost_saves``."""
        return lost_saves(copies, row)

    def _table(self) -> KeyTable:
        return KeyTable(places_for(self.room), self.keep, self.known)


def value_fits(table: MapTable, fields: Sequence[Field]) -> bool:
    """Return whether the value, if there is one, is no signed integer; reports one that is."""
    for value in fields[1:]:
        if value.type.value[0] == "s":
            hint = "write u8, u16, u32, u64, f32 or f64"
            table.fault("data", f"the value '{value.name}' is {value.type.value}", hint)
            return False
    return True
