"""Rows of parameters: any two values of two parameters are in one of them, and they are few."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from tests.pairs import pairs


@pytest.mark.parametrize("sizes", [(3, 2), (2, 2, 2, 2), (5, 4, 2, 2, 2), (3, 5, 3)])
def test_any_two_values_meet(sizes: tuple[int, ...]) -> None:
    axes = [[f"{place}.{number}" for number in range(size)] for place, size in enumerate(sizes)]
    rows = pairs(*axes)
    assert len(set(rows)) == len(rows)
    for (one, left), (other, right) in combinations(enumerate(axes), 2):
        assert {(row[one], row[other]) for row in rows} == set(product(left, right))
    longest = sorted(sizes)[-2:]
    least = longest[0] * longest[-1]
    assert least <= len(rows) <= least * 1.5 + 2


def test_a_single_parameter_has_all_of_its_values() -> None:
    assert pairs("abc") == [("a",), ("b",), ("c",)]
