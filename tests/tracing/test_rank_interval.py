"""Intervals of ratios: against counting all orders, and how often they miss."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from neutrino.tracing.rank_interval import MOST_SAMPLES, Interval, grouped, interval_of, rank_of_end, values_needed


@pytest.mark.parametrize(("first", "second"), [(1, 1), (2, 3), (4, 4), (5, 3)])
@pytest.mark.parametrize("doubt", [0.5, 0.2, 0.05, 0.01])
def test_the_rank_is_that_of_all_orders(first: int, second: int, doubt: float) -> None:
    us = []
    for places in itertools.combinations(range(first + second), first):
        others = [place for place in range(first + second) if place not in places]
        us.append(sum(other < place for place in places for other in others))
    # The greatest rank k so that U is below k with at most half of the doubt.
    best = max(k for k in range(first * second + 1) if sum(u < k for u in us) <= doubt / 2 * len(us))
    assert rank_of_end(first, second, doubt) == best


def test_too_few_values_have_no_interval() -> None:
    assert values_needed(0.01) == 5
    assert interval_of(np.ones(4), np.ones(4), 0.01) is None
    assert interval_of(np.ones(5), np.ones(5), 0.01) is not None


def test_many_values_are_medians_of_groups() -> None:
    values = grouped(np.arange(1000.0))
    assert len(values) == MOST_SAMPLES
    assert values[0] == np.median(np.arange(40))


def test_an_interval_misses_no_more_often_than_asked() -> None:
    random = np.random.default_rng(5)
    missed = 0
    for _ in range(2000):
        count = int(random.integers(6, 60))
        # Skewed, with outliers, as times of launches are.
        noise = np.exp(0.02 * random.standard_exponential((2, count))) * (1 + (random.random((2, count)) < 0.05))
        found = interval_of(100 * noise[0], 105 * noise[1], 0.1)
        assert found is not None
        missed += not found.low <= 1.05 <= found.high
    # 200 are allowed; 5 standard deviations more.
    assert missed <= 200 + 5 * (2000 * 0.1 * 0.9) ** 0.5
    assert missed > 20


def test_a_margin_is_exceeded_by_the_whole_interval() -> None:
    random = np.random.default_rng(2)
    first, second = (100 + random.standard_normal((2, 30))) * [[1.0], [1.05]]
    found = interval_of(first, second, 0.001)
    assert found is not None
    assert found.exceeds(0.02)
    assert not found.exceeds(0.05)
    slower = interval_of(second, first, 0.001)
    assert slower is not None
    assert slower.exceeds(0.02)


@pytest.mark.parametrize("percent", [1, 1.1, 2, 3, 5, 7, 12.5, 29])
@pytest.mark.parametrize("count", [1_000, 4_000, 6_000, 123_000])
def test_what_differs_by_the_threshold_itself_does_not_exceed_it(percent: float, count: int) -> None:
    margin = Fraction(str(percent)) / 100
    for sign in (1, -1):
        limit = int(count * (1 + sign * margin))
        for away in range(-3, 4):
            ratio = (limit + away) / count
            is_further = abs(Fraction(limit + away, count) - 1) > margin
            assert Interval(ratio, ratio, ratio).exceeds(margin) == is_further
            assert Interval(ratio, ratio, ratio).exceeds(float(percent) / 100) == is_further or percent == 1.1
