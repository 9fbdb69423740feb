"""What is known of a table's keys when a twin is written: where they are sites or constants, each has a number then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_LINE_WORDS = 16
"""Words in a cache line."""
_LEAST_PERIOD = 16
"""Of entries without a stride: so many of any size fill whole cache lines."""


@dataclass(frozen=True)
class KnownKeys:
    """Of one kernel. A key with a number has its cells at a place that the number says, and is not searched for.

    The cells are a count and the aggregates, in so many words that an access to them all is to one sector of a cache
    line. A kernel has few sites mostly, so that a table has room for several cells of each: threads on different
    multiprocessors add to different ones, in lines of their own, which wait less for each other. Then the number is the
    place modulo ``period``.

    period: fills whole cache lines; 0 where each key has one place. is_by_site: all keys are sites, whose numbers they
    are. numbered: all keys are these constants of the probes, each with its number among them. stride: u64 words from
    one place to the next; 0 in traces of older versions, where the places are entries without a key.
    """

    period: int = 0
    is_by_site: bool = field(default=False, compare=False)
    numbered: tuple[int, ...] = ()
    stride: int = 0

    @classmethod
    def of_sites(cls, sites: int, words: int, kept: int) -> KnownKeys:
        """Return the layout of a table whose keys are all sites (probed instructions), with numbers below ``sites``.

        words: u64 words that the table has for entries. kept: number of aggregates (sum, min, max) of each key.
        """
        return cls(_period(sites, words, kept), is_by_site=True, stride=_stride(kept))

    @classmethod
    def of_constants(cls, keys: Sequence[int], words: int, kept: int) -> KnownKeys:
        """Return the layout of a table whose keys are all among these constants. words, kept: see ``of_sites``."""
        return cls(_period(len(keys), words, kept), numbered=tuple(keys), stride=_stride(kept))

    @classmethod
    def as_made(cls, row: Mapping[str, Any], places: int, kept: int) -> KnownKeys | None:
        """Read what was known of a kernel's keys when it was recorded, from the map's object in the manifest; None if
        damaged.

        places: entries of the table. kept: number of aggregates of each key. It is checked, since a trace is a file
        that anybody may have written: a period fills whole cache lines, and fits the table more than once.
        """
        period, stride = row.get("period", 0), row.get("stride", 0)
        is_by_site, numbered = row.get("by_site", False), row.get("numbered", [])
        if not isinstance(is_by_site, bool) or not isinstance(numbered, list) or len(numbered) > places:
            return None
        if any(type(key) is not int or not -(1 << 63) <= key < 1 << 64 for key in numbered):
            return None
        if type(period) is not int or type(stride) is not int or stride not in (0, _stride(kept)):
            return None
        line = _LINE_WORDS // stride if stride else _LEAST_PERIOD
        most = places * (2 + kept) // stride if stride else places
        is_power = not period & (period - 1)
        if period != 0 and not (line <= period < most and period % line == 0 and (is_power or stride)):
            return None
        return cls(period, is_by_site, tuple(numbered), stride)

    def document(self, *, is_site_said: bool) -> dict[str, Any]:
        """Return what the map's object in the manifest (JSON) says of the kernel's keys, from which ``as_made`` reads
        it again.

        is_site_said: the key's name says already that keys are sites.
        """
        known: dict[str, Any] = {"by_site": True} if self.is_by_site and not is_site_said else {}
        if self.numbered:
            known["numbered"] = list(self.numbered)
        if self.period:
            known["period"] = self.period
        if self.stride:
            known["stride"] = self.stride
        return known

    def number_of(self, key: int) -> int | None:
        """Return the index of a constant key among the kernel's known ones, which tells its place in the table; None if
        unknown."""
        return self.numbered.index(key) if key in self.numbered else None


def power_of_two(number: int) -> int:
    """Return the least power of two that is at least a number, which is 1 or more."""
    return 1 << (number - 1).bit_length()


def _stride(kept: int) -> int:
    """Return the distance in words from one key's cells (a count and its aggregates) to the next: a power of two."""
    return power_of_two(1 + kept)


def _period(keys: int, words: int, kept: int) -> int:
    """Return after how many places of a table the cells for the same keys come again, in other cache lines; 0 if only
    once.

    Threads on different multiprocessors then use different cells. keys: how many there are. words: u64 words of the
    table. kept: number of aggregates.
    """
    stride = _stride(kept)
    lines = -(-keys * stride // _LINE_WORDS)
    # No power of two: a product with one is computed in a way that takes two registers more (measured on NVIDIA's).
    while not lines & (lines - 1):
        lines += 1
    return lines * _LINE_WORDS // stride if 2 * lines * _LINE_WORDS <= words else 0
