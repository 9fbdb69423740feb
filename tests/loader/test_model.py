"""The model of the segments' states: every order of a few launches and of the drain; and broken models, which fail."""

from __future__ import annotations

import pytest

from .model_segments import ViolationError, search


@pytest.mark.parametrize(("launches", "segments"), [((2, 2), 1), ((2, 1), 2), ((2, 2), 2), ((1, 1, 1), 1)])
def test_no_order_loses_or_doubles_a_launch(launches: tuple[int, ...], segments: int) -> None:
    assert search(launches, segments) > 100


@pytest.mark.parametrize("broken", ["hold", "event"])
def test_without_a_step_the_model_fails(broken: str) -> None:
    with pytest.raises(ViolationError):
        search((2, 2), 2, broken)
