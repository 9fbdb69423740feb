"""Histograms of floating-point numbers: each value is in the bucket that exact arithmetic says, at all boundaries."""

from __future__ import annotations

import importlib.util
import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.errors import ProbeError
from neutrino.maps.declaration import Map
from neutrino.maps.float_edges import StepEdges
from neutrino.resources import tool_path
from neutrino.tracing.views import MapView
from tests.maps.aggregates import Values, probes_of, run, twin_of
from tests.oracle.assembling import assemble

TYPES = {"f32": np.float32, "f64": np.float64}
LOG2 = 'type = "histogram"\nscale = "log2"'
ARCHITECTURES = ("sm_60", "sm_75", "sm_90")


def linear(low: float, high: float, step: float) -> str:
    return f'type = "histogram"\nscale = "linear"\nlow = {low!r}\nhigh = {high!r}\nstep = {step!r}'


def edges(*numbers: float) -> str:
    return f'type = "histogram"\nedges = {list(numbers)}'


def edges_of(low: float, high: float, step: float) -> list[float]:
    steps = StepEdges.between(low, high, step, 4096)
    return list(steps.edges) if steps else []


def around(numbers: list[float], kind: str) -> Values:
    """Numbers of a type at and next to some, and the special ones, in no order."""
    dtype = TYPES[kind]
    near = [dtype(number) for number in numbers]
    near += [np.nextafter(number, dtype(way)) for number in near for way in (-math.inf, math.inf)]
    info = np.finfo(dtype)
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, -math.nan, info.max, info.min, info.tiny, -info.tiny]
    special += [float(info.smallest_subnormal), -float(info.smallest_subnormal)]
    values = np.array([*near, *special], dtype)
    return np.random.default_rng(len(values)).permutation(np.tile(values, 3))


def assert_counted(view: MapView, values: Values, table: str) -> None:
    """Every value is in a bucket whose least and greatest number it is between, and no other."""
    rows = view.valid()
    assert rows.dtype["low"] == values.dtype
    numbers, nans = values[~np.isnan(values)], int(np.isnan(values).sum())
    assert int(rows["count"][-1]) == nans, table
    assert np.isnan([rows["low"][-1], rows["high"][-1]]).all()
    low, high = rows["low"][:-1], rows["high"][:-1]
    # The buckets are all numbers, each once.
    assert (low[0], high[-1]) == (-np.inf, np.inf)
    assert (low <= high).all()
    with np.errstate(over="ignore"):
        after = np.nextafter(high[:-1], values.dtype.type(np.inf))
    assert (after == low[1:]).all()
    expected = ((numbers[:, None] >= low) & (numbers[:, None] <= high)).sum(axis=0)
    assert rows["count"][:-1].tolist() == expected.tolist(), table
    assert int(rows["count"].sum()) == len(values)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_powers_of_two(kind: str, arch: str) -> None:
    """A bucket for each sign and exponent, as NumPy's frexp has it."""
    info = np.finfo(TYPES[kind])
    powers = [sign * 2.0**power for power in range(info.minexp, info.maxexp, 7) for sign in (1, -1)]
    values = around([*powers, 1.0, 3.0, -3.0, 0.1], kind)
    view = run(probes_of(LOG2, kind), values, kind, arch)
    assert_counted(view, values, LOG2)
    rows = view.valid()
    normal = (np.abs(rows["low"]) >= info.tiny) & np.isfinite(rows["low"]) & np.isfinite(rows["high"])
    _, first = np.frexp(rows["low"][normal])
    _, last = np.frexp(rows["high"][normal])
    assert (first == last).all()
    assert normal.sum() == 2 * (info.maxexp - info.minexp)


# From 17 buckets on code computes the bucket of a value, in place of comparisons with all edges.
SCALES = {
    "tenths": (0, 1, 0.1), "integers": (-3, 4, 1), "around zero": (-0.7, 0.7, 0.2), "tiny": (0, 1e-38, 1e-40),
    "far from zero": (1e6, 1e6 + 100, 0.5), "thirds": (-1, 1, 2 / 3), "large": (-1e38, 1e38, 2.5e36),
    "many": (0, 4096, 1), "one": (5, 7, 2), "half": (0.5, 2, 0.25),
    "all bits": (1.1, 9007199254740991 * 40 + 1.1, 9007199254740991), "hundredths": (0, 1, 0.01),
    "fiftieths": (-0.7, 0.7, 0.02), "small and far": (1e3, 1e3 + 2, 0.05),
}  # fmt: skip


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_linear(kind: str, scale: tuple[float, float, float]) -> None:
    ends = edges_of(*scale)
    values = around(ends if len(ends) < 300 else [*ends[:100], *ends[-100:]], kind)
    view = run(probes_of(linear(*scale), kind), values, kind, "sm_90")
    assert_counted(view, values, str(scale))
    assert len(view.valid()) == len(ends) + 2
    # A bucket begins with the number that is nearest to its edge.
    assert view.valid()["low"][1:-1].tolist() == np.array(ends, TYPES[kind]).tolist()


def test_edges_of_a_linear_scale_are_of_decimal_steps() -> None:
    for name, (low, high, step) in SCALES.items():
        if name == "all bits":
            continue
        ends = edges_of(low, high, step)
        exact = [float(number * Fraction(str(step))) + low for number in range(len(ends) - 1)]
        assert ends == [*exact, high]
    assert edges_of(0, 1, 0.1) == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    # 0 is an edge, though 5 times what f64 has for 0.1 is not 0.5.
    assert 0.0 in edges_of(-0.5, 0.5, 0.1)


@pytest.mark.parametrize("kind", TYPES)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_linear_scale(kind: str, data: st.DataObject) -> None:
    low = data.draw(st.floats(-1e6, 1e6, width=32))
    step = data.draw(st.floats(2.0**-10, 1e6))
    count = data.draw(st.integers(1, 60))
    high = float(Fraction(low) + count * Fraction(step))
    try:
        probes = probes_of(linear(low, high, step), kind)
    except ProbeError:
        # Steps that are too small for the type there.
        return
    values = around(edges_of(low, high, step), kind)
    assert_counted(run(probes, values, kind, "sm_90", threads=32), values, f"{low} {high} {step}")


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_edges(kind: str, arch: str) -> None:
    for numbers in ([-1.5, 0, 0.1, 7], [0.0, 1.0], [1e-40, 1e-39, 5], [-3e38, 3e38]):
        values = around([*map(float, numbers), 0.5, -9.0], kind)
        assert_counted(run(probes_of(edges(*numbers), kind), values, kind, arch), values, str(numbers))


@pytest.mark.parametrize("level", ["warp", "block"])
def test_levels(level: str) -> None:
    from tests.maps.aggregates import read_by

    values = around([1.0, 2.5], "f32")
    view = run(probes_of(LOG2, "f32", level), values, "f32", "sm_90")
    assert_counted(view, read_by(values, 70, 3, level), level)


@pytest.mark.parametrize("per", ["block", "warp", "run"])
def test_per(per: str) -> None:
    values = around([0.25, 1.0], "f32")
    view = run(probes_of(f'{edges(0, 0.25, 1)}\nper = "{per}"', "f32"), values, "f32", "sm_90")
    assert int(view.valid()["count"].sum()) == len(values)


@pytest.mark.parametrize("table", [LOG2, linear(0, 1, 0.1), edges(0.5, 1.5)])
@pytest.mark.parametrize("kind", TYPES)
def test_the_manifest_says_all(table: str, kind: str) -> None:
    """Its JSON is strict, and ``read.py`` reads the same rows by it."""
    values = around([0.5, 1.0], kind)
    view = run(probes_of(table, kind), values, kind, "sm_90")
    document = json.loads(json.dumps(view.map.document(), allow_nan=False))
    spec = importlib.util.spec_from_file_location("read", tool_path("read.py"))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows = module._read_histogram(view.records, document)
    assert rows.reshape(-1).tobytes() == view.valid().tobytes()
    assert type(view.map) is Map


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (linear(0, 1, 0), "is no scale of a f32"), (linear(1, 0, 0.5), "is no scale"),
        (linear(0, 1, 0.3), "is no scale"),
        (linear(1e8, 1e8 + 4, 1), "is no scale"), (linear(-3e38, 3.4e38, 1e30), "is no scale"),
        (linear(0, 5000, 1), "is no scale"), (linear(-3e38, 4e38, 1e38), "is no scale"),
        (edges(1, 1), "do not divide"), (edges(2, 1), "do not divide"), (edges(1 + 1e-12, 1 + 2e-12), "do not divide"),
        ('type = "histogram"\nedges = [nan, 1]', "no list of numbers"),
        ('type = "histogram"\nedges = [true, 2]', "no list of numbers"),
        ('type = "histogram"\nscale = "linear"\nlow = 0\nhigh = inf\nstep = 1', "high is no number"),
    ],
)  # fmt: skip
def test_faults(table: str, message: str) -> None:
    with pytest.raises(ProbeError, match=message):
        probes_of(table, "f32")


@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"])
def test_they_assemble(arch: str) -> None:
    for kind in TYPES:
        for table in (LOG2, linear(0, 1, 0.1), edges(0.5, 1.5)):
            text = twin_of(probes_of(table, kind), kind, arch).render()
            if arch in ("sm_100", "sm_120"):
                text = text.replace(".version 7.8", ".version 8.7")
            cubin, said = assemble(text, quick=False)
            assert cubin, said
