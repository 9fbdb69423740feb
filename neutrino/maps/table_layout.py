"""Tables of keys in memory: their form, and how readers merge the copies of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neutrino.abi.records import MAX_TABLE
from neutrino.maps.float_keys import numbers_of_keys
from neutrino.maps.float_sums import added_in_pairs
from neutrino.maps.known_keys import KnownKeys, power_of_two
from neutrino.maps.order import numbers_of_places
from neutrino.maps.sampling import scale_counts

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[Any]

AGGREGATES = ("sum", "min", "max")
"""What can be kept of the values that are saved with a key, in the order of their words."""
_PLACES_PER_KEY = 4
"""Places of a table for each key that it is to have room for: so few are taken that a key hardly ever finds none."""
_MORE_ENTRIES = 2
"""After the places: see ``KeyTable``."""


@dataclass(frozen=True)
class KeyTable:
    """The form of a table, an array of entries of u64 words, all 0 at first.

    An entry has a key with all bits inverted, a count of saves, and the aggregates in keep, of the least value the
    inverse. A first word of 0 is a free place. places: of keys, a power of two; then comes an entry for the key whose
    inverse is 0, then one for saves whose keys found no place. An entry is never given up, so in one table either all
    saves of a key find it or none does. known: where all keys have numbers, the words of the places are cells without
    keys instead: a count and the aggregates. probes: how many places a key may have.
    """

    places: int
    keep: tuple[str, ...]
    known: KnownKeys
    probes: int = 8

    @property
    def words(self) -> int:
        """How many u64 words an entry of the table has: key, count, and one for each aggregate."""
        return 2 + len(self.keep)

    @property
    def all_words(self) -> int:
        """How many u64 words the table has: those of the keys' places, and two more entries."""
        return (self.places + _MORE_ENTRIES) * self.words

    @property
    def place_words(self) -> int:
        """How many u64 words the places of keys have together."""
        return self.places * self.words

    def count_of(self, number: int) -> int:
        """Return the index of the word of the table that counts the key with a number; the key's aggregates come next.

        Only where all keys have numbers. A number for which the table has no room is counted in the last entry, that of
        saves which found no place.
        """
        stride = self.known.stride
        fits = (number + 1) * stride <= self.place_words
        return number * stride if fits else (self.places + 1) * self.words + 1


def places_for(room: int) -> int:
    """Return how many places a table (hash table) has in which ``room`` keys are to fit."""
    return power_of_two(_PLACES_PER_KEY * room)


def most_room(kept: int) -> int:
    """Return the most keys that a map can be declared to have room for, as its table is limited to ``MAX_TABLE`` bytes.

    kept: number of aggregates of each key.
    """
    places = 1
    while (2 * places + _MORE_ENTRIES) * (2 + kept) * 8 <= MAX_TABLE:
        places *= 2
    return places // _PLACES_PER_KEY


def row_type(row: Mapping[str, Any]) -> np.dtype[Any]:
    """Return the NumPy type of a result's rows: key, count, the aggregates that are kept, of estimates the error, and
    missed.

    row: the map's object in the manifest, with its fields and the names of the aggregates, ``kept``.
    """
    import numpy as np

    key, *values = (field["type"] for field in row["fields"])
    formats = [("key", {"s": "<i8", "u": "<u8"}.get(key[0], f"<f{int(key[1:]) // 8}")), ("count", "<u8")]
    for name in row["kept"]:
        is_float = values[0][0] == "f"
        formats.append((name, "<u8" if not is_float else "<f8" if name == "sum" else f"<f{int(values[0][1:]) // 8}"))
    sampled = [("error", "<u8")] if "sample" in row else []
    return np.dtype([*formats, *sampled, ("missed", "<u8")])


def entries_in(tables: Array, row: Mapping[str, Any]) -> Array:
    """Return the entries of tables, ``[copy][entry][word]``: key (inverted), count, aggregates; without that of lost
    saves.

    tables: their u64 words, ``[copy][word]``. row: the map's object in the manifest. With a ``stride`` in it keys are
    known by their places: then words hold no keys, and the result has 0 in place of each.
    """
    import numpy as np

    words, stride = 2 + len(row["kept"]), row.get("stride", 0)
    if not stride:
        return tables.reshape(len(tables), -1, words)[:, :-1]
    cells = tables[:, : row["places"] * words // stride * stride].reshape(len(tables), -1, stride)
    return np.concatenate([np.zeros_like(cells[..., :1]), cells[..., : words - 1]], axis=-1)


def keys_of_entries(first: Array, place: Array, row: Mapping[str, Any]) -> Array:
    """Return the keys of a table's entries, as u64, s64 or floating-point numbers, by the type of the map's first
    field.

    first: the first u64 word of each entry, its key with all bits inverted, since 0 says that an entry has no key of
    its own; place: the entry's index in its table. row: the map's object in the manifest. An entry without a key is at
    a place that says which key it is: its number is the place, modulo ``period`` if keys have several places; it is a
    site, or the key with that index in ``numbered``. The one entry after all ``places``, unless entries are known by
    ``stride``, is that of the key of all ones, whose inverse is 0.
    """
    import numpy as np

    kind = row["fields"][0]["type"]
    # Those after all places have no number, unless there are cells alone.
    is_numbered = (first == 0) & ((place < row["places"]) | ("stride" in row))
    number = (place % row["period"] if "period" in row else place).astype("<u8")
    if row.get("numbered"):
        numbered = np.array([key % (1 << 64) for key in row["numbered"]], "<u8")
        number = numbered.take(number.astype("<i8"), mode="clip")
    words = np.where(is_numbered, number, ~first)
    return numbers_of_keys(words, kind) if kind[0] == "f" else words.view("<i8" if kind[0] == "s" else "<u8")


def merged_rows(copies: Array, row: Mapping[str, Any]) -> Array:
    """Return the rows of one launch, a row for each key, in the order of the keys: copies of its table are put
    together.

    copies: the u64 words of the tables, ``[copy][word]``. row: the map's object in the manifest.
    """
    import numpy as np

    # The kind of the values, where they are floating-point numbers.
    floats = next((field["type"] for field in row["fields"][1:] if field["type"][0] == "f"), "")
    # The last entry is of the saves that found no place: after the key their count.
    entries, lost = entries_in(copies, row), copies[:, -1 - len(row["kept"])]
    copy, place = np.nonzero(entries[..., 1])
    found = entries[copy, place]
    keys, group = np.unique(keys_of_entries(found[:, 0], place, row), return_inverse=True)
    rows = np.zeros(len(keys), row_type(row))
    rows["key"] = keys
    np.add.at(rows["count"], group, found[:, 1])
    for number, name in enumerate(row["kept"]):
        column = np.ascontiguousarray(found[:, 2 + number])
        if floats and name == "sum":
            parts = np.zeros((len(keys), len(copies)))
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
    # In a copy where a key has an entry, none of its saves is lost.
    has_entry = np.zeros((len(keys), len(copies)), bool)
    has_entry[group, copy] = True
    rows["missed"] = (lost * ~has_entry).sum(axis=-1)
    if "sample" in row:
        scale_counts(rows, row["sample"])
    return rows


def rows_by_launch(copies: Array, row: Mapping[str, Any]) -> list[Array]:
    """Return an array of rows (``merged_rows``) for each launch. row: the map's object in the manifest.

    copies: the records; the last axis is the copy, of which a launch has several.
    """
    import numpy as np

    words = np.asarray(copies["words"])
    tables = words.reshape(-1, copies.shape[-1], words.shape[-1])
    return [merged_rows(table, row) for table in tables]


def lost_saves(copies: Array, row: Mapping[str, Any]) -> tuple[int, int | float]:
    """Return how many saves found no place for their key, in all launches, and the sum of their values (0 if not kept).

    copies: the records, each the words of a table. row: the map's object in the manifest.
    """
    import numpy as np

    kept = row["kept"]
    # The last entry of each table. By halves, since the sum of all may need more than 64 bits.
    sample = row.get("sample", 1)
    entries = copies["words"][..., (row["places"] + 1) * (2 + len(kept)) :].reshape(-1, 2 + len(kept))
    values = entries[:, 2 + kept.index("sum")] if "sum" in kept else entries[:0, 0]
    if "sum" in kept and row["fields"][1]["type"][0] == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            total = sample * float(np.ascontiguousarray(values).view("<f8").sum())
            return sample * int(entries[:, 1].sum()), total
    total = (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())
    return sample * int(entries[:, 1].sum()), sample * total
