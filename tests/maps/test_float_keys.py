"""Tables with floating-point keys and values, against NumPy and exact sums."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neutrino.probing.ir.probe_set import ProbeSet
from neutrino.ptx.snippets.lowering import lower
from neutrino.tracing.views import MapView
from neutrino.verification import load_probe_file
from tests.maps.aggregates import Values, random_values, run_all, twin_of
from tests.oracle.assembling import assemble

TYPES = {"f32": np.float32, "f64": np.float64}
ARCHITECTURES = ("sm_60", "sm_75", "sm_90")
_UNIT = Fraction(1, 1 << 53)
_PROBES = '''
from neutrino import probe, Map
import neutrino.language as nl


@Map(level="LEVEL", type="hash", keep=["sum", "min", "max"])
class Kept:
    low: nl.u32
    value: nl.KIND


@Map(level="LEVEL", type="hash", keep=["max"])
class Most:
    low: nl.u32
    value: nl.KIND


@Map(level="LEVEL", type="topk", n=3)
class Top:
    low: nl.u32
    value: nl.KIND


@Map(level="LEVEL", type="hash")
class Numbers:
    number: nl.KIND


@Map(level="LEVEL", type="hash")
class Sites:
    site: nl.u32
    value: nl.KIND


@Map(level="LEVEL", type="max", per="site")
class Greatest:
    value: nl.KIND


@probe(pos="ld.global", level="LEVEL")
def loads():
    value: nl.KIND = nl.out()
    low: nl.u32 = nl.u32(nl.bits(value) >> SHIFT) & 7
    Kept.save(low, value)
    Top.save(low, value)
    Numbers.save(value)
    Sites.save(nl.site, value)
    Greatest.save(value)
    if low > 3:
        Most.save(low, value)
'''


def probes_for(folder: Path, kind: str, level: str = "thread") -> ProbeSet:
    path = folder / "p.py"
    shift = "20" if kind == "f32" else "49"
    path.write_text(_PROBES.replace("KIND", kind).replace("LEVEL", level).replace("SHIFT", shift))
    return lower(load_probe_file(path))


def keys_of(values: Values) -> Values:
    """As the probe computes them."""
    shift = 20 if values.dtype.itemsize == 4 else 49
    return (values.view(f"<u{values.dtype.itemsize}") >> shift).astype("<u4") & 7


def assert_sum(total: float, values: Values) -> None:
    """Within the bound for a key: values are added one by one at the worst, and then 128 copies."""
    if not np.isfinite(values).all():
        with np.errstate(invalid="ignore", over="ignore"):
            expected = values.astype(np.float64).sum()
            if np.abs(values[np.isfinite(values)].astype(np.float64)).sum() == np.inf:
                # What overflows may come back or not.
                return
        assert total == expected or (math.isnan(total) and math.isnan(expected))
        return
    numbers = list(map(Fraction, values.tolist()))
    if sum(map(abs, numbers)) > Fraction(np.finfo(np.float64).max):
        # Beyond what f64 has, which others may come back from or not.
        assert abs(total) > 1e300 or not math.isfinite(total)
        return
    share = (len(values) + 140) * _UNIT
    assert abs(Fraction(total) - sum(numbers, Fraction())) <= share / (1 - share) * sum(map(abs, numbers), Fraction())


def assert_kept(views: dict[str, MapView], values: Values) -> None:
    keys = keys_of(values)
    rows = views["Kept"].valid()
    assert rows["key"].tolist() == sorted(set(keys.tolist()))
    for row in rows:
        own = values[keys == row["key"]]
        assert row["count"] == len(own)
        assert_sum(float(row["sum"]), own)
        numbers = own[~np.isnan(own)]
        if len(numbers):
            assert (row["min"], row["max"]) == (numbers.min(), numbers.max())
        else:
            assert np.isnan([row["min"], row["max"]]).all()
    assert views["Most"].valid()["key"].tolist() == [key for key in rows["key"].tolist() if key > 3]
    (site,) = views["Sites"].valid()
    assert site["count"] == len(values)
    assert_sum(float(site["sum"]), values)
    (greatest,) = views["Greatest"].valid()
    assert greatest["max"] == np.nanmax(values)
    assert greatest.dtype["max"] == values.dtype


def assert_numbers(view: MapView, values: Values) -> None:
    """Both zeros are one key, and all NaNs."""
    rows = view.valid()
    numbers, counts = np.unique(values + values.dtype.type(0), return_counts=True)
    assert rows.dtype["key"] == values.dtype
    assert np.array_equal(rows["key"], numbers, equal_nan=True)
    assert not np.signbit(rows["key"][rows["key"] == 0]).any()
    assert rows["count"].tolist() == counts.tolist()


def special_values(kind: str) -> Values:
    """Few different numbers, the special ones among them."""
    info = np.finfo(TYPES[kind])
    numbers = [0.0, -0.0, 1.5, -2.25, math.inf, info.max, info.min, info.tiny, float(info.smallest_subnormal), 7.0]
    return np.random.default_rng(4).choice(np.array(numbers, TYPES[kind]), 300)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_values_of_keys(kind: str, arch: str, tmp_path: Path) -> None:
    values = random_values(kind, 500, np.random.default_rng(8))
    views = run_all(probes_for(tmp_path, kind), values, kind, arch)
    assert_kept(views, values)
    sums = {int(row["key"]): float(row["sum"]) for row in views["Kept"].valid()}
    top = views["Top"].valid()
    assert top["key"].tolist() == sorted(sums, key=lambda key: -sums[key])[:3]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_special_numbers(kind: str, arch: str, tmp_path: Path) -> None:
    values = special_values(kind)
    views = run_all(probes_for(tmp_path, kind), values, kind, arch)
    assert_kept(views, values)
    assert_numbers(views["Numbers"], values)


@pytest.mark.parametrize("kind", TYPES)
def test_nans(kind: str, tmp_path: Path) -> None:
    """They are one key, make a sum NaN, are neither the least nor the greatest, and last of a topk."""
    dtype = TYPES[kind]
    nans = np.array([math.nan, -math.nan, math.nan], dtype)
    nans.view(f"<u{nans.itemsize}")[2] += 5
    values = np.random.default_rng(1).permutation(np.concatenate([nans, np.array([1.0, -3.0, 1e30, 2.0], dtype)] * 9))
    views = run_all(probes_for(tmp_path, kind), values, kind, "sm_90")
    assert_kept(views, values)
    assert_numbers(views["Numbers"], values)
    top = views["Top"].valid()["sum"]
    assert np.isnan(top[~np.isfinite(top)]).all()
    assert not np.isnan(top[0])


@pytest.mark.parametrize("level", ["warp", "block"])
@pytest.mark.parametrize("kind", TYPES)
def test_levels(level: str, kind: str, tmp_path: Path) -> None:
    from tests.maps.aggregates import read_by

    values = random_values(kind, 500, np.random.default_rng(8))
    views = run_all(probes_for(tmp_path, kind, level), values, kind, "sm_90")
    assert_kept(views, read_by(values, 70, 3, level))


@pytest.mark.parametrize("kind", TYPES)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_values(kind: str, data: st.DataObject, tmp_path: Path) -> None:
    numbers = data.draw(st.lists(st.floats(-(2.0**100), 2.0**100, width=int(kind[1:])), min_size=1, max_size=60))
    values = np.array(numbers, TYPES[kind])
    views = run_all(probes_for(tmp_path, kind), values, kind, "sm_90", threads=8, blocks=2)
    assert_kept(views, values)
    assert_numbers(views["Numbers"], values)


@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"])
def test_they_assemble(arch: str, tmp_path: Path) -> None:
    for kind in TYPES:
        text = twin_of(probes_for(tmp_path, kind), kind, arch).render()
        if arch in ("sm_100", "sm_120"):
            text = text.replace(".version 7.8", ".version 8.7")
        cubin, said = assemble(text, quick=False)
        assert cubin, said
