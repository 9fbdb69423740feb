"""A share is 0 or 100 percent only if nothing, or nothing else, is there."""

from __future__ import annotations

import pytest

from neutrino.tracing.coverage import percent as rounded_down
from neutrino.tracing.percent import percent
from neutrino.tracing.shown.maps import _share


@pytest.mark.parametrize(
    ("part", "whole", "text", "cell"),
    [
        (0, 7, "0.0 %", "0.0 %"),
        (1, 10_000, "under 0.1 %", "<0.1 %"),
        (999, 10_000, "10 %", "10.0 %"),
        (1, 13, "7.7 %", "7.7 %"),
        (12, 42, "29 %", "28.6 %"),
        (9_949, 10_000, "99 %", "99.5 %"),
        (9_999, 10_000, "over 99 %", ">99.9 %"),
        (10_000, 10_000, "100 %", "100.0 %"),
    ],
)
def test_a_share_is_not_rounded_to_all_or_nothing(part: int, whole: int, text: str, cell: str) -> None:
    assert percent(part / whole) == text
    assert _share(part, whole).text == cell


@pytest.mark.parametrize("whole", [7, 100, 1000, 12345, 10**17])
def test_how_much_was_probed_is_rounded_down_exactly(whole: int) -> None:
    for hundredth in range(1, 101):
        least = -(-hundredth * whole // 100)
        # A share of a few is not one of these.
        assert rounded_down(least, whole) == f"{100 * least // whole} %"
        if least > 1:
            before = 100 * (least - 1) // whole
            assert rounded_down(least - 1, whole) == (f"{before} %" if before else "under 1 %")
    assert rounded_down(29, 100) == "29 %"
    assert rounded_down(whole - 1, whole) != "100 %"
