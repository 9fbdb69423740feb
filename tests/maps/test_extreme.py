"""``min`` and ``max``: what is read is what NumPy finds, and an extreme value is never taken for none."""

from __future__ import annotations

import numpy as np
import pytest

from neutrino.abi.scalars import ScalarType
from tests.maps.aggregates import Values, probes_of, random_values, read_by, run, twin_of
from tests.oracle.assembling import assemble

TYPES = tuple(scalar.value for scalar in ScalarType)
ARCHITECTURES = ("sm_60", "sm_75", "sm_90")


def found(values: Values, kind: str, name: str, arch: str = "sm_90", level: str = "thread") -> Values:
    rows = run(probes_of(f'type = "{name}"', kind, level), values, kind, arch).valid()
    value: Values = rows["value"]
    return value


def best(values: Values, name: str) -> object:
    return (np.nanmin if name == "min" else np.nanmax)(values)


@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_extremes_are_numpys(name: str, kind: str, arch: str) -> None:
    values = random_values(kind, 700, np.random.default_rng(7))
    assert found(values, kind, name, arch).tolist() == [best(values, name)]


@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind[0] != "f"])
@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_the_ends_of_a_type_are_values(name: str, kind: str, arch: str) -> None:
    """Where all values are the type's least or greatest, 0 among them."""
    info = np.iinfo(random_values(kind, 1, np.random.default_rng(0)).dtype)
    for value in (info.min, info.max, 0):
        assert found(np.full(40, value, info.dtype), kind, name, arch).tolist() == [value]


@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize("kind", TYPES)
def test_nothing_saved_is_no_row(name: str, kind: str) -> None:
    assert found(random_values(kind, 0, np.random.default_rng(0)), kind, name).size == 0


@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_floating_point(name: str, kind: str) -> None:
    dtype = {"f32": np.float32, "f64": np.float64}[kind]
    nan, infinity = dtype("nan"), dtype("inf")
    assert found(np.array([nan, 3, nan, -2], dtype), kind, name).tolist() == [-2.0 if name == "min" else 3.0]
    assert found(np.array([nan, -nan], dtype), kind, name).size == 0
    assert found(np.array([infinity, -infinity], dtype), kind, name).tolist() == [
        -infinity if name == "min" else infinity
    ]
    zeros = found(np.array([0.0, -0.0], dtype), kind, name)
    assert np.signbit(zeros).tolist() == [name == "min"]
    tiny = np.nextafter(dtype(0), dtype(1))
    assert found(np.array([tiny], dtype), kind, name).tolist() == [tiny]


@pytest.mark.parametrize("level", ["warp", "block"])
@pytest.mark.parametrize("kind", ["u32", "s64", "f32"])
def test_levels(level: str, kind: str) -> None:
    values = random_values(kind, 700, np.random.default_rng(3))
    for name in ("min", "max"):
        assert found(values, kind, name, level=level).tolist() == [best(read_by(values, 70, 3, level), name)]


@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100"])
def test_they_assemble(name: str, arch: str) -> None:
    for kind in TYPES:
        text = twin_of(probes_of(f'type = "{name}"', kind), kind, arch).render()
        if arch == "sm_100":
            text = text.replace(".version 7.8", ".version 8.6")
        cubin, said = assemble(text, quick=False)
        assert cubin, said
