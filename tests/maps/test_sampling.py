"""Counts of one save in so many: what is drawn, what is declared, and whether errors hold as often as they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from neutrino.errors import ProbeError
from neutrino.maps.sampling import _INCREMENT, _MIXING, _MULTIPLIER, scale_counts
from neutrino.maps.table_layout import row_type
from neutrino.probing.ir.structured import Save, walk
from neutrino.verification import load_all, load_probes

ROW = {"fields": [{"type": "u64"}], "kept": [], "sample": 32}
TEXT = """
import neutrino.language as nl
from neutrino import Map, probe

@Map(level="thread", type="topk", n=3, sample={sample})
class Hot:
    line: nl.u64{more}

@probe(pos="ld.global", level="thread", before=True)
def access():
    Hot.save(nl.addr{value})
"""


def _drawn(warps: int, saves: int, sample: int, first: int) -> np.ndarray:
    """Which saves of each warp are counted, ``[save][warp]``, by the generator as the module's docstring says it."""
    number = (np.arange(warps, dtype=np.uint64) * _MULTIPLIER % (1 << 32)) ^ np.uint64(first)
    for shift, factor in _MIXING:
        number = (number ^ (number >> np.uint64(shift))) * np.uint64(factor) % (1 << 32)
    chosen = np.zeros((saves, warps), bool)
    for save in range(saves):
        number = (number * np.uint64(_MULTIPLIER) + np.uint64(_INCREMENT)) % (1 << 32)
        chosen[save] = number < (1 << 32) // sample
    return chosen


def test_counts_and_sums_stand_for_more() -> None:
    """Of what a probe saves of one execution in 16; the least and the greatest are of these alone."""
    row = {"fields": [{"type": "u32"}, {"type": "u32"}], "kept": ["sum", "min", "max"], "sample": 16}
    rows = np.zeros(1, row_type(row))
    rows["count"], rows["sum"], rows["min"], rows["max"] = 64, 700, 3, 40
    scale_counts(rows, 16)
    assert [int(rows[name][0]) for name in ("count", "sum", "min", "max")] == [1024, 11200, 3, 40]
    text = TEXT.format(sample=8, more="\n    value: nl.u32", value=", 1")
    text = text.replace('"topk", n=3, sample', '"hash", stands_for')
    (entry,) = load_all(source=text).maps
    assert entry.document()["sample"] == 8
    with pytest.raises(ProbeError, match="stands_for is 3"):
        load_all(source=text.replace("=8", "=3"))


@pytest.mark.parametrize("sample", [8, 32, 256])
def test_errors_hold_in_95_of_100_cases(sample: int) -> None:
    """Warps in a loop over lines, as programs access memory: by turns, or a line all the time; 32 lanes a save."""
    inside = []
    for first in range(100):
        chosen = _drawn(256, 256, sample, 77777 * first)
        period = (1, 2, 3, 16)[first % 4]
        line = np.arange(256)[:, None] // (64 // period) % period * np.ones(256, np.int64)
        rows = np.zeros(period, row_type(ROW))
        rows["count"] = np.bincount(line[chosen], minlength=period) * 32
        true = np.bincount(line.ravel(), minlength=period) * 32
        scale_counts(rows, sample)
        inside += (np.abs(rows["count"].astype(float) - true) <= rows["error"]).tolist()
    assert np.mean(inside) >= 0.93
    # Nor are they so wide that they say nothing.
    assert np.mean(inside) <= 0.985


def test_warps_and_saves_are_chosen_as_often() -> None:
    """Of 2 to the 20 draws one in 32; and of each save and each warp, also at strides that are powers of two."""
    chosen = _drawn(1024, 1024, 32, 12345)
    parts = [chosen, *(chosen[begin::stride] for stride in (2, 8, 32) for begin in range(stride)), chosen[:, ::64]]
    for part in parts:
        assert abs(part.mean() - 1 / 32) < 5 * np.sqrt(1 / 32 / part.size)


@pytest.mark.parametrize("sample", [0, 3, -2, 1 << 17, True, 2.0])
def test_other_samples_are_refused(sample: object, tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "p.py"
    file.write_text(TEXT.format(sample=sample, more="", value=""))
    with pytest.raises(ProbeError, match="sample is"):
        load_probes([str(file)])


def test_values_are_not_sampled(tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "p.py"
    file.write_text(TEXT.format(sample=2, more="\n    bytes: nl.u32", value=", nl.bytes"))
    with pytest.raises(ProbeError, match="without values"):
        load_probes([str(file)])


def test_elsewhere_saves_go_to_the_complete_map(tmp_path: Path) -> None:
    path = tmp_path / "hot.py"
    inside = TEXT.format(sample=32, more="", value="").replace("    Hot.save", "    if nl.bytes > 2:\n        Hot.save")
    path.write_text(inside)
    for name in ("hot_lines", str(path)):
        probes = load_probes([name], platform="hip")
        snippets = [one for probe in probes.probes for one in (probe.before, probe.after) if one is not None]
        saved = [one.map for snippet in snippets for one in walk(snippet.statements) if isinstance(one, Save)]
        assert saved
        assert set(saved) == set(probes.maps)
        assert {entry.kind.sample for entry in saved} == {1}
