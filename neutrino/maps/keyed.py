"""``hash`` and ``topk``: how often each key was saved over all threads of a launch, and what was saved with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from neutrino.abi.records import MAX_TABLE, Field
from neutrino.ir.memory import Kept, MapStatement
from neutrino.ir.operands import Register
from neutrino.ir.types import Type
from neutrino.maps.builder import Builder, Lanes, SavedValues
from neutrino.maps.declaration import Map, MapTable, MapType, Report
from neutrino.maps.float_keys import as_key, kept_of, numbers_of_keys, numbers_of_places
from neutrino.maps.float_sums import added_in_pairs
from neutrino.maps.tables import KeyTable, add_to_key, add_to_site, begin_sites, bring_sites

if TYPE_CHECKING:
    from neutrino.maps.declaration import Rows

AGGREGATES = ("sum", "min", "max")
"""What can be kept of the values that are saved with a key, in the order of their words."""
_PROBES = 8
"""Places that each key may have in a table."""
_PLACES_PER_KEY = 4
"""Places of a table for each key that it is to have room for: so few are taken that a key hardly ever finds none."""
_DEFAULT_ROOM = 256
_LEAST_PERIOD = 16
"""So many entries of any size fill whole cache lines."""
_MORE_ENTRIES = 2
"""After the places: see ``_Keyed``."""


_AnyKeyed = TypeVar("_AnyKeyed", bound="_Keyed")


@dataclass(frozen=True)
class _Keyed(MapType):
    """A table for each copy of the record, which readers merge.

    A table is an array of entries of u64 words: a key with all bits inverted, how many saves it had, and the aggregates
    of the values saved with it. A first word of 0 is a free place. After the places there are two more entries: of the
    key whose inverse is 0, and of all saves whose keys found no place. An entry is never given up, so in one table
    either all saves of a key find it or none does.

    Where all saves of a set of probes have SITE as the key, none is searched for: the site's number is its place, and
    the first word stays 0.

    A kernel has few sites mostly, so that a table has room for several of each: threads on different multiprocessors
    add to different ones, which wait less for each other. Then the site is the place modulo ``period``.

    room: how many keys fit. period: a power of two, or 0 where each site has one place. keep: which ``AGGREGATES`` are
    kept, in their order; of the least value the inverse, so that a first value of 0 does not matter. is_by_site: in a
    kernel all of whose keys are sites. numbered: keys that are constants in the probes, which then are all keys there
    are: each has its number among them as its place.
    """

    room: int = _DEFAULT_ROOM
    keep: tuple[str, ...] = ()
    period: int = field(default=0, kw_only=True)
    is_by_site: bool = field(default=False, kw_only=True, compare=False)
    numbered: tuple[int, ...] = field(default=(), kw_only=True)

    copies_bytes = 1 << 19
    field_hint = "write a key, and at most one value, of an unsigned or a floating-point type"
    most_fields = 2
    stores_at_sites = True
    combines_lanes = True
    report = Report.KEYS

    def words(self, fields: Sequence[Field]) -> int:
        """Return how many u64 a table has."""
        return (self._places() + _MORE_ENTRIES) * self._entry_words()

    def for_sites(self: _AnyKeyed, sites: int) -> _AnyKeyed:
        """Return the type for a kernel all of whose keys are sites with numbers below this: with a ``period`` if its
        table has room for more."""
        period = max(_LEAST_PERIOD, _power_of_two(sites))
        return replace(self, period=period if period < self._places() else 0, is_by_site=True)

    def for_keys(self: _AnyKeyed, keys: Sequence[int]) -> _AnyKeyed:
        """Return the type for a kernel all of whose keys are these constants; the same if there is no room for them."""
        if len(keys) > self.room:
            return self
        return replace(self.for_sites(len(keys)), is_by_site=False, numbered=tuple(keys))

    def number_of(self, key: int) -> int | None:
        """Return the place of a key, if it is a constant of all that there are; else None."""
        return self.numbered.index(key) if key in self.numbered else None

    def as_made(self: _AnyKeyed, row: Mapping[str, Any]) -> _AnyKeyed | None:
        """Return the type with the period of a map's object in a manifest, and what its keys are; None if these are
        none."""
        period, is_by_site = row.get("period", 0), row.get("by_site", False)
        numbered = row.get("numbered", [])
        is_list = isinstance(numbered, list) and len(numbered) <= self._places()
        if not isinstance(is_by_site, bool) or not is_list or any(type(key) is not int for key in numbered):
            return None
        if any(not -(1 << 63) <= key < 1 << 64 for key in numbered):
            return None
        made = replace(self, is_by_site=is_by_site, numbered=tuple(numbered))
        if period == 0:
            return made
        whole = isinstance(period, int) and not isinstance(period, bool)
        if not whole or not _LEAST_PERIOD <= period < self._places() or period & (period - 1):
            return None
        return replace(made, period=period)

    @property
    def knows_sites(self) -> bool:
        """Whether all keys of a kernel are its sites."""
        return self.is_by_site

    @property
    def knows_keys(self) -> bool:
        """Whether all keys are constants in the probes."""
        return bool(self.numbered)

    def cells(self, fields: Sequence[Field]) -> tuple[Field, ...]:
        """Return nothing: a table has words, which have no names."""
        return ()

    def document(self, fields: Sequence[Field]) -> dict[str, Any]:
        """Return the type's members in the manifest: the options, and how the words are grouped."""
        # A key of this name is a site without being said to be one.
        is_said = self.is_by_site and fields[0].name != "site"
        of_sites: dict[str, Any] = {"by_site": True} if is_said else {}
        if self.numbered:
            of_sites["numbered"] = list(self.numbered)
        if self.period:
            of_sites["period"] = self.period
        return {**self.options(), "places": self._places(), "kept": list(self.keep), **of_sites}

    def save(self, entry: Map, saved: SavedValues) -> Sequence[MapStatement]:
        """Return the code that finds the key's entry in memory, and adds to it."""
        code, table, site = Builder(entry.span), self._table(), saved.site_key()
        values: Mapping[str, Register] = {}
        if len(entry.fields) > 1:
            value = code.saved(1, entry.fields[1])
            values = kept_of(code, value, self.keep) if value.type.is_float else dict.fromkeys(self.keep, value)
        if site is not None:
            add_to_site(code, entry, table, site if site < table.places else table.places + 1, values, saved)
            return code.statements
        key = code.saved(0, entry.fields[0])
        if key.type.is_float:
            key = as_key(code, key)
        elif key.type.bits < 64:
            key = code.convert(Type.S64 if key.type.is_signed else Type.U64, key)
        add_to_key(code, entry, table, code.as_bits(Type.U64, key), values, saved)
        return code.statements

    def begin(self, entry: Map, kept: Sequence[Kept], lanes: Lanes) -> Sequence[MapStatement]:
        """Return the code where a kernel begins."""
        code = Builder(entry.span)
        begin_sites(code, entry, self._table(), {register.key: register for register in kept})
        return code.statements

    def settle(self, entry: Map, kept: Sequence[Kept], lanes: Lanes) -> Sequence[MapStatement]:
        """Return the addition of what lanes hold of sites."""
        code = Builder(entry.span)
        bring_sites(code, self._table(), {register.key: register for register in kept}, lanes)
        return code.statements

    @staticmethod
    def read(copies: Rows, row: Mapping[str, Any]) -> Rows:
        """Return a row for each key of each launch: key, count, what is kept of the values, and missed.

        missed: how many saves of the key there may be besides, among those that found no place. The rows of a launch
        are in the order of the keys, of a topk map the greatest sums (without values counts) first and no more than n.
        copies: the tables; the last axis is the copy. row: the map's object in the manifest.
        """
        import numpy as np

        kept = row["kept"]
        tables = copies["words"].reshape(-1, copies.shape[-1], row["places"] + 2, 2 + len(kept))
        key_kind, *values = (field["type"] for field in row["fields"])
        key_type = {"s": "<i8", "u": "<u8"}.get(key_kind[0], f"<f{int(key_kind[1:]) // 8}")
        # The kind of the values, where they are floating-point numbers.
        floats = values[0] if values and values[0][0] == "f" else ""
        formats = [("key", key_type), ("count", "<u8")]
        for name in kept:
            formats.append((name, "<u8" if not floats else "<f8" if name == "sum" else f"<f{int(floats[1:]) // 8}"))
        formats.append(("missed", "<u8"))
        launches = [np.zeros(0, formats)]
        for table in tables:
            # The last entry is of the saves that found no place.
            entries, lost = table[:, :-1], table[:, -1, 1]
            copy, place = np.nonzero(entries[..., 1])
            found = entries[copy, place]
            # A place without a key is that of the site with its number; the one after all places has none, either.
            is_site = (found[:, 0] == 0) & (place < row["places"])
            site = (place % row.get("period", row["places"])).astype("<u8")
            if row.get("numbered"):
                numbered = np.array([key % (1 << 64) for key in row["numbered"]], "<u8")
                site = numbered.take(site.astype("<i8"), mode="clip")
            words = np.where(is_site, site, ~found[:, 0])
            numbers = numbers_of_keys(words, key_kind) if key_kind[0] == "f" else words.view(key_type)
            keys, group = np.unique(numbers, return_inverse=True)
            rows = np.zeros(len(keys), formats)
            rows["key"] = keys
            np.add.at(rows["count"], group, found[:, 1])
            for number, name in enumerate(kept):
                column = np.ascontiguousarray(found[:, 2 + number])
                if floats and name == "sum":
                    parts = np.zeros((len(keys), len(table)))
                    # NaNs need no warning.
                    with np.errstate(over="ignore", invalid="ignore"):
                        np.add.at(parts, (group, copy), column.view("<f8"))
                    rows[name] = added_in_pairs(parts)
                    continue
                total = np.zeros(len(keys), "<u8")
                combine = np.add if name == "sum" else np.maximum
                combine.at(total, group, column)
                total = ~total if name == "min" else total
                rows[name] = numbers_of_places(total, floats) if floats else total
            # Where a key has an entry, none of its saves is lost.
            rows["missed"] = lost.sum()
            np.subtract.at(rows["missed"], group, lost[copy])
            if "n" in row:
                # A stable sort of the inverted numbers, so that equal ones stay in the order of the keys; NaNs last.
                numbers = rows["sum" if kept else "count"]
                rows = rows[np.argsort(-numbers if kept and floats else ~numbers, kind="stable")][: row["n"]]
            launches.append(rows)
        return np.concatenate(launches)

    @staticmethod
    def lost(copies: Rows, row: Mapping[str, Any]) -> tuple[int, int | float]:
        """Return how many saves found no place for their key, in all launches, and the sum of their values, if kept.

        copies, row: as of ``read``.
        """
        import numpy as np

        kept = row["kept"]
        # The last entry of each table. By halves, since the sum of all may need more than 64 bits.
        entries = copies["words"][..., (row["places"] + 1) * (2 + len(kept)) :].reshape(-1, 2 + len(kept))
        values = entries[:, 2 + kept.index("sum")] if "sum" in kept else entries[:0, 0]
        if "sum" in kept and row["fields"][1]["type"][0] == "f":
            with np.errstate(over="ignore", invalid="ignore"):
                return int(entries[:, 1].sum()), float(np.ascontiguousarray(values).view("<f8").sum())
        return int(entries[:, 1].sum()), (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())

    @classmethod
    def _room(cls, table: MapTable, default: int, kept: int) -> int | None:
        """Return ``room`` of a map's table; None if it is invalid, which is reported. kept: number of aggregates."""
        most = _most_room(kept)
        room = table.get("room")
        if room is None:
            return default
        if isinstance(room, bool) or not isinstance(room, int) or not 1 <= room <= most:
            table.fault("room", f"room is {room!r:.40}", f"write an integer from 1 to {most}")
            return None
        return room

    def _table(self) -> KeyTable:
        return KeyTable(self._places(), _PROBES, self.keep, self.period)

    def _places(self) -> int:
        """Return how many places a table has, a power of two."""
        return _power_of_two(_PLACES_PER_KEY * self.room)

    def _entry_words(self) -> int:
        # A key, a count, and the aggregates.
        return 2 + len(self.keep)


@dataclass(frozen=True)
class Hash(_Keyed):
    """Each key with its count, and what is kept of the values that were saved with it."""

    name = "hash"
    keys = ("room", "keep")
    whole = "keys over all threads"

    @classmethod
    def declared(cls, table: MapTable, fields: Sequence[Field]) -> MapType | None:
        """Return the type that a map's table declares; None if its keys are invalid, which is reported there."""
        if not _value_fits(table, fields):
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
        room = cls._room(table, min(_DEFAULT_ROOM, _most_room(len(kept))), len(kept))
        return None if room is None else cls(room, kept)

    def options(self) -> dict[str, Any]:
        """Return the keys of the map's table."""
        return {"room": self.room, "keep": list(self.keep)}

    def describe(self, entry: Map) -> str:
        """Return a map in words: ``counts of up to 256 keys per launch``."""
        kept = "".join(f", {word}" for word in self.keep)
        return f"count{kept} of up to {self.room:,} keys per launch"


@dataclass(frozen=True)
class TopK(_Keyed):
    """The n keys with the greatest sum of the values that were saved with them; without values, the greatest count.

    n: how many.
    """

    n: int = 0

    name = "topk"
    keys = ("n", "room")
    whole = "the keys with most over all threads"

    @classmethod
    def declared(cls, table: MapTable, fields: Sequence[Field]) -> MapType | None:
        """Return the type that a map's table declares; None if its keys are invalid, which is reported there."""
        if not _value_fits(table, fields):
            return None
        keep = ("sum",) if len(fields) > 1 else ()
        most = _most_room(len(keep))
        n = table.get("n")
        if n is None:
            table.missing("n", "n = 20")
            return None
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= most:
            table.fault("n", f"n is {n!r:.40}", f"write an integer from 1 to {most}")
            return None
        room = cls._room(table, max(_DEFAULT_ROOM, n), len(keep))
        if room is None:
            return None
        if room < n:
            table.fault("room", f"room is {room}, but n is {n}", f"write an integer from {n} to {most}")
            return None
        return cls(room, keep, n)

    def options(self) -> dict[str, Any]:
        """Return the keys of the map's table."""
        return {"n": self.n, "room": self.room}

    def describe(self, entry: Map) -> str:
        """Return a map in words: ``the 20 keys with the greatest sum per launch``."""
        return f"the {self.n} keys with the greatest {'sum' if self.keep else 'count'} per launch"


def _value_fits(table: MapTable, fields: Sequence[Field]) -> bool:
    """Return whether the value, if there is one, is no signed integer; reports one that is."""
    for value in fields[1:]:
        if value.type.value[0] == "s":
            hint = "write u8, u16, u32, u64, f32 or f64"
            table.fault("data", f"the value '{value.name}' is {value.type.value}", hint)
            return False
    return True


def _most_room(kept: int) -> int:
    """Return the greatest ``room`` of a map that keeps so many aggregates: a table is a record, of a limited size."""
    places = 1
    while (2 * places + _MORE_ENTRIES) * (2 + kept) * 8 <= MAX_TABLE:
        places *= 2
    return places // _PLACES_PER_KEY


def _power_of_two(number: int) -> int:
    """Return the least power of two that is not below a number."""
    return 1 << (number - 1).bit_length()
