"""Atomic operations on arrays against one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.emulator.atomics import apply
from tests.emulator.kernels_by_hand import words

_TYPES = ["u4", "i4", "u8", "i8", "f4"]
_OPERATIONS = ["add", "min", "max", "and", "or", "xor", "exch", "inc", "dec", "cas"]


def after(operation: str, word: Any, value: Any, compared: Any) -> Any:
    with np.errstate(all="ignore"):
        if operation in ("add", "and", "or", "xor"):
            function = {"add": np.add, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[operation]
            return function(word, value)
        if operation == "inc":
            return 0 if word >= value else word + 1
        if operation == "dec":
            return value if word == 0 or word > value else word - 1
        if operation == "cas":
            return value if word == compared else word
        return {"min": min(word, value), "max": max(word, value), "exch": value}[operation]


def one_after_the_other(
    memory: np.ndarray[Any, Any], places: list[int], operation: str, values: list[Any], compared: list[Any]
) -> list[Any]:
    old = []
    for place, value, expected in zip(places, values, compared, strict=True):
        old.append(memory[place])
        memory[place] = after(operation, memory[place], value, expected)
    return old


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(_TYPES),
    st.sampled_from(_OPERATIONS),
    # Up to six words: also one that all threads share.
    st.integers(0, 5).flatmap(
        lambda last: st.lists(
            st.tuples(st.integers(0, last), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=50
        )
    ),
    st.booleans(),
)
def test_threads_take_turns(kind: str, operation: str, turns: list[tuple[int, int, int]], wanted: bool) -> None:
    dtype = np.dtype(kind)
    if dtype.kind == "f" and operation not in ("add", "min", "max", "exch", "cas"):
        operation = "add"
    places = [turn[0] for turn in turns]
    values = [dtype.type(turn[1]) for turn in turns]
    compared = [dtype.type(turn[2]) for turn in turns]
    expected = np.arange(6).astype(dtype)
    found = expected.copy()
    old = one_after_the_other(expected, places, operation, values, compared)
    operands = [np.array(values)] if operation != "cas" else [np.array(compared), np.array(values)]
    result = apply(found, np.array(places), operation, operands, wanted)
    assert np.array_equal(found, expected)
    if wanted:
        assert result is not None
        assert result.tolist() == old


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_tickets_are_handed_out_once(seed: int | None) -> None:
    body = (
        "    mov.u32 %r5, counter;\n    setp.eq.u32 %p0, %r3, 0;\n    @%p0 st.shared.u32 [%r5], 0;\n    bar.sync 0;\n"
        "    atom.shared.inc.u32 %r4, [%r5], 1000;\n    st.global.u32 [%d1], %r4;"
    )
    array = words(body, before=".shared .align 4 .b32 counter;", block=64, seed=seed)
    assert sorted(array.tolist()) == list(range(64))
