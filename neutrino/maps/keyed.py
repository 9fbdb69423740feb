"""What ``hash`` and ``topk`` share: a table of keys, with what was saved with each over all threads of a launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from neutrino.abi.records import Field
from neutrino.ir.memory import Kept, MapStatement
from neutrino.ir.operands import Register
from neutrino.ir.types import Type
from neutrino.maps import tables
from neutrino.maps.builder import Builder, Lanes, SavedValues, SavesTogether
from neutrino.maps.declaration import Map, MapTable, MapType, Report
from neutrino.maps.float_keys import as_key, kept_of
from neutrino.maps.known_keys import KnownKeys
from neutrino.maps.sampling import begin_choice, choose_saves
from neutrino.maps.table_layout import KeyTable, lost_saves, places_for, row_type, rows_by_launch

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
    sample: of the saves of a warp one in so many, chosen at random, is counted, and the counts that readers give are
    estimates; 1 where keys are known, whose saves cost little.
    """

    room: int = DEFAULT_ROOM
    keep: tuple[str, ...] = ()
    known: KnownKeys = field(default=KnownKeys(), kw_only=True)
    sample: int = field(default=1, kw_only=True)

    copies_bytes = 1 << 19
    field_hint = "write a key, and at most one value, of an unsigned or a floating-point type"
    most_fields = 2
    stores_at_sites = True
    combines_lanes = True
    report = Report.KEYS

    def cells(self, fields: Sequence[Field]) -> tuple[Field, ...]:
        """Return no fields: a record of this type is a table of words, which have no names."""
        return ()

    def words(self, fields: Sequence[Field]) -> int:
        """Return how many u64 words a record, a table of keys, has."""
        return self._table().all_words

    def document(self, fields: Sequence[Field]) -> dict[str, Any]:
        """Return what a map of this type adds to its object in the manifest, by which readers find the keys in its
        table.

        fields: of the map; one that is named "site" says by its name that keys are sites (probed instructions).
        """
        known = self.known.document(is_site_said=fields[0].name == "site")
        return {**self.options(), "places": self._table().places, "kept": list(self.keep), **known}

    def as_made(self: AnyKeyed, row: Mapping[str, Any]) -> AnyKeyed | None:
        """Return the type that was used for a kernel of a trace, with what was known of the kernel's keys.

        row: the map's object in the manifest. None if that is damaged.
        """
        known = KnownKeys.as_made(row, self._table().places, len(self.keep))
        return None if known is None else replace(self, known=known)

    def for_sites(self: AnyKeyed, sites: int) -> AnyKeyed:
        """Return this type for a kernel all of whose keys are sites (probed instructions) with numbers below ``sites``.

        Their places in the table need no search.
        """
        return replace(self, known=KnownKeys.of_sites(sites, self._table().place_words, len(self.keep)), sample=1)

    def for_keys(self: AnyKeyed, keys: Sequence[int]) -> AnyKeyed:
        """Return this type for a kernel that saves no keys but these constants; unchanged if the table has no room for
        them.

        Their places in the table need no search.
        """
        if len(keys) > self.room:
            return self
        known = KnownKeys.of_constants(keys, self._table().place_words, len(self.keep))
        return replace(self, known=known, sample=1)

    def complete(self: AnyKeyed) -> AnyKeyed:
        """Return this type with all saves counted, none chosen."""
        return replace(self, sample=1)

    def estimate_words(self) -> str:
        """Say that counts are estimates, with what the error beside each means; "" if they are exact."""
        words = f", estimated from one save in {self.sample}; in 95 of 100 cases a true count is within the error"
        return "" if self.sample == 1 else words

    def number_of(self, key: int) -> int | None:
        """Return the number of a constant key among those that ``for_keys`` was given; None if it is none of them."""
        return self.known.number_of(key)

    @property
    def knows_sites(self) -> bool:
        """Whether all keys of the kernel are its sites (probed instructions), so that none is searched for."""
        return self.known.is_by_site

    @property
    def most_sites(self) -> int:
        """Where keys are sites (probed instructions): how many of them have cells of their own."""
        return self._table().place_words // self.known.stride

    @property
    def knows_keys(self) -> bool:
        """Whether all keys of the kernel are constants in the probes, so that none is searched for."""
        return bool(self.known.numbered)

    def save(self, entry: Map, saved: SavedValues) -> Sequence[MapStatement]:
        """Return the code (IR statements) by which a probe saves: it finds the entry of the key in the table and adds
        to it.

        entry: the map: its first field is the key, the second one, if any, the value. saved: what is known of the save.
        """
        code, table, site = Builder(entry.span), self._table(), saved.site_key()
        values: Mapping[str, Register] = {}
        if len(entry.fields) > 1:
            value = code.saved(1, entry.fields[1])
            values = kept_of(code, value, self.keep) if value.type.is_float else dict.fromkeys(self.keep, value)
        if site is not None:
            tables.add_to_site(code, entry, table, site, values, saved)
            return code.statements
        key = code.saved(0, entry.fields[0])
        if self.known.is_by_site:
            tables.add_to_numbered_site(code, entry, table, key, values, saved)
            return code.statements
        chosen = choose_saves(code, self.sample) if self.sample > 1 else None
        tables.add_to_key(code, entry, table, self._word(code, key), values, saved, chosen)
        return code.statements

    def gathers(self, entry: Map, lanes: Lanes) -> bool:
        """Return whether saves at several places that follow each other may be written together: where one of them at
        most is chosen, they share a search."""
        return self.sample > 1 and tables.combines(entry, self._table(), lanes)

    def save_all(self, entry: Map, saves: SavesTogether) -> Sequence[MapStatement]:
        """Return the code (IR statements) of several saves, of which one in ``sample`` is counted, chosen by one number
        for as many."""
        code = Builder(entry.span)
        keys = [self._word(code, code.saved(0, entry.fields[0], place)) for place in range(len(saves.each))]
        conditions = [code.saving(saved, place) for place, saved in enumerate(saves.each)]
        tables.add_some(code, self._table(), keys, conditions, self.sample)
        return code.statements

    def begin(self, entry: Map, kept: Sequence[Kept], lanes: Lanes) -> Sequence[MapStatement]:
        """Return the code (IR statements) for a kernel's start, which sets the registers that saves with known keys
        use."""
        code = Builder(entry.span)
        tables.begin_sites(code, entry, self._table(), kept)
        begin_choice(code, kept)
        return code.statements

    def settle(self, entry: Map, kept: Sequence[Kept], lanes: Lanes) -> Sequence[MapStatement]:
        """Return the code (IR statements) for a thread's end, which adds to memory what it holds in registers of known
        keys."""
        code = Builder(entry.span)
        tables.bring_sites(code, entry, self._table(), kept, lanes)
        return code.statements

    @staticmethod
    def read(copies: Rows, row: Mapping[str, Any]) -> Rows:
        """Return a row for each key of each launch, in the order of the keys: key, count, what is kept, and missed.

        Of a map with ``sample``, an error follows: half the width of the count's interval, see ``sampling.py``.

        missed: an upper bound of the saves of the key that found no place and are not counted. copies: the tables; the
        last axis is the copy, of which a launch has several. row: the map's object in the manifest.
        """
        import numpy as np

        return np.concatenate([np.zeros(0, row_type(row)), *rows_by_launch(copies, row)])

    @staticmethod
    def lost(copies: Rows, row: Mapping[str, Any]) -> tuple[int, int | float]:
        """Return how many saves found no place for their key, in all launches, and the sum of their values; see
        ``lost_saves``.
        """
        return lost_saves(copies, row)

    @staticmethod
    def _word(code: Builder, key: Register) -> Register:
        """Return a key as the table has it, a u64."""
        return as_key(code, key) if key.type.is_float else code.as_bits(Type.U64, code.widened(key))

    def _table(self) -> KeyTable:
        """Return the layout in memory of this map's table of keys."""
        return KeyTable(places_for(self.room), self.keep, self.known)


def value_fits(table: MapTable, fields: Sequence[Field]) -> bool:
    """Return whether the field after the key, if there is one, has a type whose values a table can keep.

    A signed integer has not, and is reported by ``table``.
    """
    for value in fields[1:]:
        if value.type.value[0] == "s":
            hint = "write u8, u16, u32, u64, f32 or f64"
            table.fault("data", f"the value '{value.name}' is {value.type.value}", hint)
            return False
    return True
