"""Probes in typed IR as a front end generates them, before verification."""

from __future__ import annotations

from neutrino.errors import Diagnostic
from neutrino.ir.operands import Register
from neutrino.ir.types import Type
from neutrino.late_dataclass import dataclass
from neutrino.maps.declaration import Map
from neutrino.probing.ir.probe_set import Probe
from neutrino.probing.model import DEFAULT_PLATFORM


@dataclass(frozen=True)
class DraftProbes:
    """The probes of one file. Members have the same meaning as in ``ProbeSet``; registers include local ones.

    There are no ``analyze_hooks``: only TOML files can name some. constants: the names of the file's constants, which
    ``-D`` can give other values. is_whole: False for what could be read of a file with faults. unread: the probes in it
    some of whose statements could not be read, by name. platform: of the target that it was read for.
    lane_mask: type of its sets of lanes.
    """

    file: str
    source: str
    maps: tuple[Map, ...]
    registers: tuple[Register, ...]
    probes: tuple[Probe, ...]
    warnings: tuple[Diagnostic, ...] = ()
    callbacks: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()
    is_whole: bool = True
    unread: frozenset[str] = frozenset()
    platform: str = DEFAULT_PLATFORM
    lane_mask: Type = Type.U32
