"""What is known of a table's keys when a twin is written: where they are sites or constants, each has a number then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_LEAST_PERIOD = 16
"""So many entries of any size fill whole cache lines."""


@dataclass(frozen=True)
class KnownKeys:
    """Of one kernel. An entry with a number is at the place of that number, and none is searched for.

    A kernel has few sites mostly, so that a table has room for several entries of each: threads on different
    multiprocessors add to different ones, which wait less for each other. Then the number is the place modulo
    ``period``.

    period: a power of two, or 0 where each key has one place. is_by_site: all keys are sites, whose numbers they are.
    numbered: all keys are these constants of the probes, each with its number among them.
    """

    period: int = 0
    is_by_site: bool = field(default=False, compare=False)
    numbered: tuple[int, ...] = ()

    @classmethod
    def of_sites(cls, sites: int, places: int) -> KnownKeys:
        """Return what is known where all keys are sites with numbers below this. places: of the table."""
        return cls(_period(sites, places), is_by_site=True)

    @classmethod
    def of_constants(cls, keys: Sequence[int], places: int) -> KnownKeys:
        """Return what is known where all keys are these constants. places: of the table."""
        return cls(_period(len(keys), places), numbered=tuple(keys))

    @classmethod
    def as_made(cls, row: Mapping[str, Any], places: int) -> KnownKeys | None:
        """Return what was known by a map's object in a manifest; None if that is damaged. places: of the table."""
        period, is_by_site, numbered = row.get("period", 0), row.get("by_site", False), row.get("numbered", [])
        if not isinstance(is_by_site, bool) or not isinstance(numbered, list) or len(numbered) > places:
            return None
        if any(type(key) is not int or not -(1 << 63) <= key < 1 << 64 for key in numbered):
            return None
        is_whole = isinstance(period, int) and not isinstance(period, bool)
        if period != 0 and not (is_whole and _LEAST_PERIOD <= period < places and not period & (period - 1)):
            return None
        # False is 0, too.
        return cls(period or 0, is_by_site, tuple(numbered))

    def document(self, *, is_site_said: bool) -> dict[str, Any]:
        """Return the members of a manifest that ``as_made`` reads. is_site_said: the key's name says that it is one."""
        known: dict[str, Any] = {"by_site": True} if self.is_by_site and not is_site_said else {}
        if self.numbered:
            known["numbered"] = list(self.numbered)
        if self.period:
            known["period"] = self.period
        return known

    def number_of(self, key: int) -> int | None:
        """Return the number of a constant; None if it has none."""
        return self.numbered.index(key) if key in self.numbered else None


def power_of_two(number: int) -> int:
    """Return the least power of two that is not below a number."""
    return 1 << (number - 1).bit_length()


def _period(keys: int, places: int) -> int:
    period = max(_LEAST_PERIOD, power_of_two(keys))
    return period if period < places else 0
