"""AMD's target that can do less: what probes ask of it and it lacks does not depend on what any target can do."""

from __future__ import annotations

from pathlib import Path

import pytest

from neutrino.abi.levels import Level, Per
from neutrino.backend.gcn_target import GcnTarget
from neutrino.backend.gcn_twin import GcnTwins
from neutrino.fatbin import Container, read_file
from neutrino.maps.declaration import Map
from neutrino.probing.capabilities import Capabilities

LIBRARY = Path(__file__).parents[2] / "examples" / "amd" / "libvector.so"
"""Kernels ``saxpy`` and ``sum`` for gfx942 and gfx1100."""
DEVICE = "gfx942"
_OPERATIONS = ("move", "add", "sub", "mul", "clock", "cuid", "lane")


def _refuses_map(entry: Map) -> str:
    if entry.kind.name == "array" and (entry.level is not Level.WARP or entry.cap > 1):
        return "an array but one with a record for each warp"
    types = {cell.type.value for cell in entry.fields}
    if entry.kind.name == "sum" and (entry.per is not Per.LAUNCH or types != {"u64"}):
        return "a sum but one of u64 for each launch"
    return ""


LESS = Capabilities(
    tracepoints=frozenset({"kernel", "any", "load", "store", "atomic", "branch", "memory"}),
    operands=frozenset(),
    helpers=frozenset(_OPERATIONS),
    maps=frozenset({"array", "sum"}),
    statements=frozenset({"convert"}),
    types=frozenset({"u32", "u64"}),
    levels=frozenset({"thread", "group"}),
    refuses_map=_refuses_map,
)
"""Counts, and records of when each wave ran."""


def lessen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have AMD's target do no more than that."""
    monkeypatch.setattr(GcnTarget, "capabilities", LESS)


def forbid_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test if anybody asks where probes go."""
    monkeypatch.setattr(GcnTwins, "plan", lambda *_: pytest.fail("it was planned"))


def library() -> Container:
    """What the library hands to its driver."""
    (container,) = read_file(LIBRARY)
    return container
