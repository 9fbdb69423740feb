"""A map as a probe file declares it, and what a type of maps has to define."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from neutrino.abi.levels import PERS, RUN_OF_FLOATS, Level, Per
from neutrino.abi.records import Field, lay_out_fields
from neutrino.abi.scalars import ScalarType
from neutrino.errors import Span
from neutrino.ir.memory import Kept, MapStatement
from neutrino.ir.operands import Register
from neutrino.maps.builder import Lanes, SavedValues, SavesTogether
from neutrino.maps.float_sums import has_floats

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Rows = npt.NDArray[Any]

NO_LIMIT = 0
"""``copies_bytes`` of a type whose copies are not limited."""


class MapTable(Protocol):
    """A table ``[map.NAME]``, from which a map type reads its own keys. Faults are reported at the key's place."""

    def get(self, key: str) -> Any:
        """Return the value of a key of the map's table in the probe file, None without it."""

    def missing(self, key: str, hint: str) -> None:
        """Report that the map's table in the probe file lacks a key. hint: what to write."""

    def fault(self, key: str, message: str, hint: str) -> None:
        """Report what is wrong with the value of a key of the map's table in the probe file. hint: what to write."""


def count_in(table: MapTable, key: str, most: int) -> int | None:
    """Read an integer from 1 to most from a key of a map's table in a probe file; None, and a report, if it is anything
    else."""
    value = table.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        table.fault(key, f"{key} is {value!r:.40}", f"write an integer from 1 to {most}")
        return None
    return value


class Layout(enum.Enum):
    """Where a map's records are in the memory of a launch, see ``regions.py``.

    SLOTS: each thread, warp or block has a slot of up to ``cap`` records. COPIES: the launch has one record, of which
    there are several copies that the reader combines. CHUNKS: threads take chunks for their records, as they need them.
    """

    SLOTS = "slots"
    COPIES = "copies"
    CHUNKS = "chunks"


class Report(enum.Enum):
    """How reports show a map: the range of each field, the same with totals over the launches, bucket counts, the
    means of launches with the mean over all of them, or keys with what was saved for each."""

    RECORDS = "records"
    TOTALS = "totals"
    BUCKETS = "buckets"
    MEANS = "means"
    KEYS = "keys"


@dataclass(frozen=True)
class MapType(ABC):
    """A map type: how its records are kept, combined and read, without knowing a target's instructions.

    ``registry.py`` lists the types. An instance has the options of one map's table, such as a histogram's scale.

    name: in probe files, manifests and reports. keys: keys that a map's table may have besides ``MAP_KEYS``. layout:
    where its records are. keeps_last: in a full slot a save replaces the oldest record; otherwise it is only counted.
    copies_bytes: limit of all copies together, in bytes, where it is in copies; ``NO_LIMIT`` for none. field_types,
    field_hint, most_fields: which fields ``data`` may have. stores_at_sites: a SAVE writes to memory at its site.
    settles: a SAVE leaves values in registers that are written to memory where the thread
    ends. adds_constants: saving a constant is an addition of it. combines_lanes: its code exchanges values between the
    lanes of a warp. takes_per: its results may be those of blocks, warps and so on. keeps_greatest: its
    cells are combined by their maximum, not their sum. counts_first: before sums of floats is a count of them.
    in_older_dialect: ``datamodel`` has a name for it. whole: the
    launch's result in words; "" with slots. report: how reports show such a map.
    """

    name: ClassVar[str]
    keys: ClassVar[tuple[str, ...]] = ()
    layout: ClassVar[Layout] = Layout.COPIES
    keeps_last: ClassVar[bool] = False
    copies_bytes: ClassVar[int] = NO_LIMIT
    field_types: ClassVar[frozenset[ScalarType]] = frozenset(ScalarType)
    field_hint: ClassVar[str] = ""
    most_fields: ClassVar[int | None] = None
    stores_at_sites: ClassVar[bool] = False
    settles: ClassVar[bool] = True
    adds_constants: ClassVar[bool] = False
    takes_per: ClassVar[bool] = False
    keeps_greatest: ClassVar[bool] = False
    counts_first: ClassVar[bool] = False
    combines_lanes: ClassVar[bool] = False
    in_older_dialect: ClassVar[bool] = False
    whole: ClassVar[str] = ""
    report: ClassVar[Report] = Report.RECORDS

    @property
    def knows_sites(self) -> bool:
        """Whether this type was made for a kernel (``for_sites``) all of whose keys are sites, which need no search."""
        return False

    @property
    def knows_keys(self) -> bool:
        """Whether this type was made for a kernel (``for_keys``) all of whose keys are known constants, which need no
        search."""
        return False

    @classmethod
    def declared(cls, table: MapTable, fields: Sequence[Field]) -> MapType | None:
        """Read a map type's options from a map's table in a probe file; None if its keys are invalid, which ``table``
        reports.

        fields: of the records.
        """
        return cls()

    def options(self) -> dict[str, Any]:
        """Return the keys that ``declared`` reads, with their values: for manifests, and for files that are written."""
        return {}

    def cells(self, fields: Sequence[Field]) -> tuple[Field, ...]:
        """Return the fields of a record as it is in memory: the map's fields, unless the type encodes them."""
        return tuple(fields)

    def as_made(self, row: Mapping[str, Any]) -> MapType | None:
        """Return the type as it was for a kernel of a trace, with what ``for_sites`` or ``for_keys`` had found out.

        row: the map's object in the manifest (the kernel's description). None if that is damaged.
        """
        return self

    def for_sites(self, sites: int) -> MapType:
        """Return the type for a kernel that saves no keys but its sites (probed instructions), numbered below
        ``sites``.

        Types with keys then need no search. Others, and all sizes, stay as they are.
        """
        return self

    def for_keys(self, keys: Sequence[int]) -> MapType:
        """Return the type for a kernel that saves no keys but these constants, ascending.

        Types with keys then need no search. Others, and all sizes, stay as they are.
        """
        return self

    def complete(self) -> MapType:
        """Return the type without sampling: all saves are counted, as on targets where the code has no choice of them.
        """
        return self

    def estimate_words(self) -> str:
        """Say for users, after what a map of the type combines, that it is an estimate; "" if it is exact."""
        return ""

    def number_of(self, key: int) -> int | None:
        """Return the number that ``for_keys`` gave a constant key, which tells its place in the table; None if it gave
        none."""
        return None

    def words(self, fields: Sequence[Field]) -> int:
        """Return of how many u64 words without names a record in memory consists; 0 for types whose words are
        ``cells``."""
        return 0

    def size(self, fields: Sequence[Field]) -> int:
        """Return the size of one record in memory, in bytes."""
        if words := self.words(fields):
            return 8 * words
        _, size, _ = lay_out_fields([(cell.name, cell.type) for cell in self.cells(fields)])
        return size

    def document(self, fields: Sequence[Field]) -> dict[str, Any]:
        """Return what this type adds to the description of a map in the manifest (JSON), which ``read`` gets.

        fields: of the map.
        """
        return self.options()

    @abstractmethod
    def describe(self, entry: Map) -> str:
        """Describe a map of this type for users: ``a sum of 8 bytes per launch``."""

    @abstractmethod
    def save(self, entry: Map, saved: SavedValues) -> Sequence[MapStatement]:
        """Return the code (IR statements) by which a probe saves values to this map: it puts them into registers or
        memory.

        entry: the map. saved: what is known of the values, so that less has to be computed by the kernel.
        """

    def gathers(self, entry: Map, lanes: Lanes) -> bool:
        """Return whether saves at several places that follow each other may be written together, by ``save_all``."""
        return False

    def save_all(self, entry: Map, saves: SavesTogether) -> Sequence[MapStatement]:
        """Return the statements of several saves, which stand at the place of the last one."""
        raise TypeError(f"{self.name} gathers no saves")

    def begin(self, entry: Map, kept: Sequence[Kept], lanes: Lanes) -> Sequence[MapStatement]:
        """Return the code (IR statements) for a kernel's start: it sets registers whose first value is not a constant.

        kept, lanes: see ``settle``.
        """
        return ()

    def settle(self, entry: Map, kept: Sequence[Kept], lanes: Lanes) -> Sequence[MapStatement]:
        """Return the code (IR statements) for a thread's end: it brings to memory what ``save`` left in registers.

        Nothing for types that leave none, and for what ``accumulate`` adds, which the target brings itself. entry: the
        map. kept: the registers that the saves of the kernel and its functions keep. lanes: what lanes can do together
        on the target.
        """
        return ()

    def rooms(self, entry: Map) -> tuple[int, ...]:
        """Return how many SAVEs (statements that add a record to the map) may share one check that memory is left for
        their records: possible numbers, the best first. () for types that never check.

        entry: the map.
        """
        return ()

    def make_room(self, entry: Map, need: int, most: int, when: Register | None) -> Sequence[MapStatement]:
        """Return the statements that make sure that there is room for so many records as are needed.

        most: the number of ``rooms`` that was chosen for all code of a body. when: a predicate of the save's
        statements, in which threads; None in all. Other registers have other names than those of these.
        """
        return ()

    @staticmethod
    def read(copies: Rows, row: Mapping[str, Any]) -> Rows:
        """Combine the copies of each launch's record into the rows of its result, for whoever reads a trace.

        copies: structured array by ``cells``, ``[copy]`` of one launch or ``[launch][copy]``. row: the map's object in
        the manifest, which ``Map.document`` returns. The source of this method is copied into ``read.py``, which knows
        maps only from the manifest and imports nothing of Neutrino, so it may use NumPy only. Raises TypeError for
        types with slots: their records are not combined.
        """
        raise TypeError(f"a map of type {row['kind']} has slots, whose records are not combined")

    @staticmethod
    def lost(copies: Rows, row: Mapping[str, Any]) -> tuple[int, int | float]:
        """Return how many saves of all launches found no memory left in the record, and the sum of their values.

        The sum is 0 for types that keep none. Copied into ``read.py`` like ``read``, which has the same parameters.
        """
        return 0, 0


@dataclass(frozen=True)
class Map:
    """A map that a probe file declares, ``[map.NAME]``.

    level: whether threads, warps or blocks have slots. size: bytes of one record in memory. cap: records that a slot
    can hold; 1 for types without slots, but 0 for a log that a kernel's twin never saves to. span: where the
    declaration is in the file. per: whose values are one result, of types that combine values. by_site: saves name the
    fields after the first one alone, which is ``SITE``; maps are equal with and without it.
    """

    name: str
    kind: MapType
    level: Level
    size: int
    cap: int
    fields: tuple[Field, ...]
    span: Span
    per: Per = Per.LAUNCH
    by_site: bool = field(default=False, compare=False)

    @property
    def adds_constants(self) -> bool:
        """Whether saving a constant to this map adds an integer that is known when the instrumented kernel is made, so
        that such saves may be added up in advance."""
        return self.kind.adds_constants and not has_floats(self.fields)

    @property
    def saved_fields(self) -> tuple[Field, ...]:
        """The fields for which a probe's save gives values: all but the site number that the first field may be."""
        return self.fields[1:] if self.by_site else self.fields

    def document(self) -> dict[str, Any]:
        """Return the description of this map in the manifest (JSON), by which readers of a trace find its records.

        ``cells``, the fields of a record in memory, are left out where they are the map's fields. A record of words
        without names has their number under ``words``.
        """
        cells = self.kind.cells(self.fields)
        words = self.kind.words(self.fields)
        layout: dict[str, Any] = {} if cells == self.fields else {"cells": _rows(cells)}
        if words:
            layout = {"words": words}
        if self.per is not Per.LAUNCH:
            layout["per"] = self.per.value
        return {
            "name": self.name,
            "kind": self.kind.name,
            "level": self.level.value,
            "size": self.size,
            "cap": self.cap,
            "fields": _rows(self.fields),
            **layout,
            **self.kind.document(self.fields),
        }

    @property
    def per_number(self) -> int:
        """The number by which files say whose values make one result (launch, block …).

        A run, all launches of a kernel, has another number where floating-point numbers are added up.
        """
        return RUN_OF_FLOATS if self.per is Per.RUN and self.sums_floats else PERS.index(self.per)

    @property
    def sums_floats(self) -> bool:
        """Whether a record of this map has sums of floating-point numbers."""
        return not self.kind.keeps_greatest and has_floats(self.kind.cells(self.fields))

    @property
    def whole(self) -> str:
        """What one result of this map is, for users, such as "a mean over all threads"; "" where each thread stores
        records."""
        return result_words(self.kind, self.per)

    @property
    def dtype(self) -> np.dtype[np.void]:
        """The NumPy type of one record of this map in memory."""
        # Here, because reading a probe file needs this module but must not wait for NumPy.
        import numpy as np

        from neutrino.abi.records import record_dtype

        if words := self.kind.words(self.fields):
            return np.dtype([("words", "<u8", (words,))])
        return record_dtype(self.kind.cells(self.fields), self.size)


def result_words(kind: MapType, per: Per) -> str:
    """Say for users what a map of a type combines: ``a sum over all threads``, ``a sum per block``; "" if it combines
    nothing."""
    whole = kind.whole if per is Per.LAUNCH else kind.whole.replace("over all threads", f"per {per.value}")
    return whole + kind.estimate_words()


def has_no_count(kind: MapType, cap: int) -> bool:
    """Return whether a map does not count its saves, so that a record of zeros may be one that nothing was saved to."""
    return kind.layout is Layout.SLOTS and cap == 1 and not kind.keeps_last


def all_zero_words(all_zero: int, records: int) -> str:
    """Return a remark for users on records that are all zeros: they may have been saved so or never saved.

    all_zero: how many are all zeros. records: how many the map has.
    """
    whole = "all" if all_zero == records else f"{all_zero:,}"
    are = "is" if all_zero == 1 and records > 1 else "are"
    return f'{whole} of them {are} zeros: saved so, or never saved (type = "ring" with cap = 1 tells which)'


def _rows(fields: Sequence[Field]) -> list[dict[str, Any]]:
    """Return fields of a record as JSON objects for the manifest."""
    return [{"name": item.name, "type": item.type.value, "offset": item.offset} for item in fields]
