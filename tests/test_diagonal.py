"""What ``diagonal(step)`` leaves to a thorough run: combinations of parameters, and no value of any."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

LETTERS = ("x", "y", "z")


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("letter", LETTERS)
def test_a_product(number: int, letter: str, pytestconfig: pytest.Config) -> None:
    assert pytestconfig.getoption("--thorough") or (number + LETTERS.index(letter)) % 2 == 0


def test_every_value_is_tried(request: pytest.FixtureRequest) -> None:
    """Of each marked test that was collected with this one."""
    if request.config.getoption("keyword") or any("::" in word for word in request.config.args):
        pytest.skip("tests were chosen by name")
    tried: dict[Any, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    marks: dict[Any, list[pytest.Mark]] = {}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("diagonal"):
            marks[item.function] = list(item.iter_markers("parametrize"))
            for name, value in item.callspec.params.items():
                tried[item.function][name].add(repr(value))
    assert test_a_product in marks
    for function, of_function in marks.items():
        for mark in of_function:
            names = mark.args[0].split(",") if isinstance(mark.args[0], str) else mark.args[0]
            for row in mark.args[1]:
                for name, value in zip(names, row if len(names) > 1 else [row], strict=True):
                    assert repr(value) in tried[function][name.strip()], (function, name, value)
