"""``avg``: count, sum and mean are what Python's integers give, for every type, level and architecture."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from neutrino.abi.scalars import ScalarType
from neutrino.errors import ProbeError
from tests.maps.aggregates import Values, probes_of, random_values, read_by, run, twin_of
from tests.oracle.assembling import assemble

INTEGERS = tuple(scalar.value for scalar in ScalarType if scalar.value[0] in "us")
AVERAGE = 'type = "avg"'


def expected(values: Values) -> list[tuple[int, int, float]]:
    """The only row: count, sum as 64 bits hold it, and mean."""
    numbers = [int(value) for value in values.tolist()]
    if not numbers:
        return []
    wrapped = sum(numbers) % (1 << 64)
    if values.dtype.kind == "i" and wrapped >> 63:
        wrapped -= 1 << 64
    return [(len(numbers), wrapped, float(Fraction(sum(numbers), len(numbers))))]


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("arch", ["sm_60", "sm_75", "sm_90"])
def test_means_are_exact(kind: str, arch: str) -> None:
    values = random_values(kind, 700, np.random.default_rng(11))
    assert run(probes_of(AVERAGE, kind), values, kind, arch).valid().tolist() == expected(values)


@pytest.mark.parametrize("kind", ["u64", "s64", "s8", "u8"])
def test_extreme_values_do_not_wrap_around(kind: str) -> None:
    info = np.iinfo(random_values(kind, 1, np.random.default_rng(0)).dtype)
    for value in (info.min, info.max):
        values = np.full(400, value, info.dtype)
        assert run(probes_of(AVERAGE, kind), values, kind, "sm_90").valid()["mean"].tolist() == [float(value)]


def test_nothing_saved_is_no_row() -> None:
    assert run(probes_of(AVERAGE, "u32"), np.zeros(0, "<u4"), "u32", "sm_90").valid().size == 0


@pytest.mark.parametrize("level", ["warp", "block"])
@pytest.mark.parametrize("kind", ["u32", "s64"])
def test_levels(level: str, kind: str) -> None:
    values = random_values(kind, 700, np.random.default_rng(3))
    rows = run(probes_of(AVERAGE, kind, level), values, kind, "sm_90").valid()
    assert rows.tolist() == expected(read_by(values, 70, 3, level))


def test_one_field() -> None:
    with pytest.raises(ProbeError, match="an average takes one field"):
        probes_of('type = "avg"\ncap = 1', 'u32", second = "u32')


@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"])
def test_they_assemble(arch: str) -> None:
    for kind in INTEGERS:
        text = twin_of(probes_of(AVERAGE, kind), kind, arch).render()
        if arch in ("sm_100", "sm_120"):
            text = text.replace(".version 7.8", ".version 8.7")
        cubin, said = assemble(text, quick=False)
        assert cubin, said
