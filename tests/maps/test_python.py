"""Maps of every type declared in Python: as in TOML, and as ``probe.toml`` of a trace says them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from neutrino.maps.average import Average
from neutrino.maps.hash import Hash
from neutrino.maps.ring import Ring
from neutrino.maps.topk import TopK
from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.ptx.snippets.lowering import lower
from neutrino.targets import trace_text
from neutrino.verification import load_probe_file, read_probes
from tests.maps.aggregates import run_all

_PYTHON = '''"""Probes of loads."""
from neutrino import probe, Map
import neutrino.language as nl


@Map(level="thread", type="topk", n=3)
class Hot:
    low: nl.u32
    value: nl.u32


@Map(level="thread", type="hash", room=9, keep=["min", "max"])
class Lows:
    low: nl.u32
    value: nl.u32


@Map(level="thread", type="avg")
class Mean:
    value: nl.u32


@Map(level="thread", type="ring", cap=2)
class Last:
    value: nl.u32


@probe(pos="ld.global", level="thread")
def loads():
    value: nl.u32 = nl.out()
    if value & 1 == 0:
        Hot.save(value & 7, value)
    Lows.save(value & 7, value)
    Last.save(value)


@probe(pos="ld.global", level="thread")
def other_loads():
    value: nl.u32 = nl.out()
    if value & 1 == 1:
        Hot.save(value & 7, value)
    Mean.save(value)
'''


def _probes(folder: Path) -> ProbeSet:
    path = folder / "probes.py"
    path.write_text(_PYTHON)
    return load_probe_file(path)


def test_they_are_declared_as_in_toml(tmp_path: Path) -> None:
    probes = _probes(tmp_path)
    kinds = {entry.name: (entry.kind, entry.cap) for entry in probes.maps}
    assert kinds == {
        "Hot": (TopK(256, ("sum",), 3), 1), "Lows": (Hash(9, ("min", "max")), 1), "Mean": (Average(), 1),
        "Last": (Ring(), 2),
    }  # fmt: skip
    again = read_probes("probe.toml", trace_text(lower(probes)))
    assert [entry.document() for entry in again.maps] == [entry.document() for entry in probes.maps]


def test_several_probes_share_a_map(tmp_path: Path) -> None:
    values = np.random.default_rng(2).integers(0, 90, 900).astype("<u4")
    groups = {low: [value for value in values.tolist() if value & 7 == low] for low in range(8)}
    rows = [(low, len(group), sum(group), 0) for low, group in groups.items() if group]
    for probes in (lower(_probes(tmp_path)), read_probes("probe.toml", trace_text(lower(_probes(tmp_path))))):
        views = run_all(probes, values, "u32", "sm_90")
        assert views["Hot"].valid().tolist() == sorted(rows, key=lambda row: (-row[2], row[0]))[:3]
        extremes = [(low, len(group), min(group), max(group), 0) for low, group in groups.items() if group]
        assert views["Lows"].valid().tolist() == extremes
        assert views["Mean"].valid()["mean"].tolist() == [sum(values.tolist()) / len(values)]
        assert views["Last"].valid().size == 2 * 210
