"""What ``requests.py`` knows of the sites whose code it writes together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from neutrino.probing.ir.probe_set import Snippet
from neutrino.ptx.analysis.register_values import Sum
from neutrino.ptx.instrument.registers import Guard
from neutrino.ptx.instrument.site_values import SiteOperands
from neutrino.ptx.isa.scalars import WARP_LANES


@dataclass(frozen=True)
class Site:
    """A site that waits. number: of it. bytes_: of a thread's access. sum: what its address is the sum of, if that is
    known. operands: make the values at it anew."""

    number: int
    bytes_: int
    guard: Guard | None
    sum: Sum | None
    operands: Callable[[], SiteOperands]

    @property
    def lane(self) -> int:
        """The lane that is for it."""
        return self.number % WARP_LANES


Amounts = Sequence[tuple[Site, int]]
"""Sites whose addresses differ by known amounts: each with how many bytes it is beyond the first."""


@dataclass
class RequestGroup:
    """Sites of one snippet. key: of the group. at, is_after: where their code goes; index: of the last instruction
    before that. block: the basic block. until: the first instruction that changes a register which the code reads."""

    snippet: Snippet
    key: tuple[int, bool]
    block: int
    sites: list[Site] = field(default_factory=list)
    at: int = 0
    is_after: bool = False
    index: int = 0
    until: int = 0


@dataclass(frozen=True)
class Base:
    """Sites whose addresses differ by known amounts, in bytes beyond that of the first one. first: a register with that
    one's lowest 32 bits in lane 0. stride: how much it grows from lane to lane: a register, or a number."""

    amounts: Amounts
    first: str
    stride: str


class Facts(NamedTuple):
    """What there is to know of a site, as registers or numbers. lanes: that execute it. first: its address in lane 0,
    modulo the bytes of a sector. stride: how much that grows from lane to lane. size: bytes of an access."""

    lanes: str
    first: str
    stride: str
    size: str


@dataclass(frozen=True)
class Own:
    """Registers with what each lane knows. lane: its number. Of its own site: the lanes that execute it, the bytes of
    an access (maybe a number), the sectors, and the different bytes; and a predicate, whether any lane executes it."""

    lane: str
    lanes: str
    size: str
    sectors: str
    distinct: str
    saves: str
