"""Atomic operations and reductions (PTX ISA 9.7.13): threads that meet at one word take turns, in the order of threads,
or in a random order where the schedule is random."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from neutrino.emulator.access import Accesses
from neutrino.emulator.datatypes import Array
from neutrino.emulator.state import Indices

_SINGLE = np.dtype("f4")
_SMALLEST = np.float32(2.0**-126)
# Sums of larger numbers are zero or normal.
_NEVER_BELOW = np.float32(2.0**-100)

_UFUNCS: dict[str, Any] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
# For floating-point types min and max give the number where the other one is a NaN (PTX ISA 9.7.3, min).
_FLOAT_UFUNCS: dict[str, Any] = {"min": np.fmin, "max": np.fmax}


class Atomics(Accesses):
    """Read, change and write a word as one."""

    def atomic(
        self,
        number: int,
        space: int,
        operation: str | Callable[..., Any],
        base: Any,
        offset: Any,
        dtype: np.dtype[Any],
        operands: Sequence[Sequence[Any]],
        wanted: bool,
        at: Indices | None,
        guard: Any,
    ) -> list[Any]:
        """The words that were there before; without meaning where the guard does not hold.

        operation: its name, or the function that makes the new word of the old one and the operand.
        operands: for each of the instruction's, a word of each element.
        """
        addresses = base if offset is None else base + offset
        count = len(operands[0])
        size = self.threads if at is None else at.size
        chosen: Any = None
        lanes = at
        if guard is not None:
            chosen = np.flatnonzero(guard if guard.ndim else np.broadcast_to(guard, (size,)))
            if not chosen.size:
                return [np.zeros(size, dtype)] * count
            lanes = chosen if at is None else at[chosen]
            addresses = addresses[chosen] if addresses.ndim else addresses
        active = self.threads if lanes is None else lanes.size
        spread = np.broadcast_to(addresses, (active,))
        pieces = self.locate(number, space, spread, dtype, count, lanes, writing=True)
        results = [np.zeros(size, dtype) for _ in range(count)]
        for words, index, inner in pieces:
            for place in range(count):
                where = index[place] if isinstance(index, list) else index + place
                values = []
                for operand in operands:
                    value = operand[place]
                    if value.ndim and chosen is not None:
                        value = value[chosen]
                    value = np.broadcast_to(value, (active,))
                    values.append(value if inner is None else value[inner])
                old = self.take_turns(words, where, operation, values, wanted)
                if old is not None:
                    target: Any = chosen if chosen is not None else slice(None)
                    if inner is not None:
                        target = inner if chosen is None else chosen[inner]
                    results[place][target] = old
        return results

    def take_turns(
        self, words: Array, index: Indices, operation: str | Callable[..., Any], values: list[Array], wanted: bool
    ) -> Array | None:
        """Apply one operation a thread at ``words[index]``; the old words, where they are wanted."""
        if operation == "add" and words.dtype == _SINGLE and words is not self.shared_views.get(_SINGLE):
            operation = self.flushed_if_tiny(words, index, values[0])
        if self.random is None:
            return apply(words, index, operation, values, wanted)
        order = self.random.permutation(index.size)
        old = apply(words, index[order], operation, [value[order] for value in values], wanted)
        if old is None:
            return None
        back = np.empty_like(old)
        back[order] = old
        return back

    def flushed_if_tiny(self, words: Array, index: Indices, value: Array) -> str | Callable[..., Any]:
        """Addition of f32 in global memory takes subnormal numbers for zero (PTX ISA 9.7.13.5)."""
        for numbers in (np.abs(value), np.abs(words[index])):
            if ((numbers < _NEVER_BELOW) & (numbers > 0)).any():
                return _add_flushed
        return "add"


def apply(
    words: Array, index: Indices, operation: str | Callable[..., Any], values: list[Array], wanted: bool
) -> Array | None:
    """Apply an operation once an element, in the order of the elements."""
    dtype = words.dtype
    if isinstance(operation, str):
        function = (_FLOAT_UFUNCS if dtype.kind == "f" else {}).get(operation) or _UFUNCS.get(operation)
        if function is not None and not wanted:
            _reduce(words, index, function, values[0])
            return None
        step = _step(operation, function)
    else:
        step = operation
    if index.size == 1 or not _repeats(index):
        old: Array = words[index]
        words[index] = step(old, *values)
        return old
    if operation == "add" and dtype.kind in "iu":
        return _running_sum(words, index, values[0])
    return _rounds(words, index, step, values)


def _reduce(words: Array, index: Indices, function: Any, value: Array) -> None:
    first = index[0]
    if (index == first).all() and words.dtype.kind != "f":
        words[first] = function(words[first], function.reduce(value))
    else:
        function.at(words, index, value)


def _flushed(numbers: Array) -> Array:
    plain: Array = np.where(np.abs(numbers) < _SMALLEST, np.copysign(np.float32(0), numbers), numbers)
    return plain


def _add_flushed(old: Array, value: Array) -> Array:
    return _flushed(_flushed(old) + _flushed(value))


def _repeats(index: Indices) -> bool:
    ordered = np.sort(index)
    return bool((ordered[1:] == ordered[:-1]).any())


def _groups(index: Indices) -> tuple[Indices, Indices, Indices]:
    # The order that brings equal indices together, where each group starts in it, and each one's turn in its group.
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    lengths = np.diff(np.append(starts, index.size))
    turns = np.arange(index.size) - np.repeat(starts, lengths)
    return order, starts, turns


def _running_sum(words: Array, index: Indices, value: Array) -> Array:
    order, starts, _ = _groups(index)
    ordered = value[order]
    total = np.cumsum(ordered, dtype=words.dtype)
    before: Array = total - ordered
    lengths = np.diff(np.append(starts, index.size))
    before -= np.repeat(before[starts], lengths)
    places = index[order[starts]]
    old: Array = np.repeat(words[places], lengths) + before
    ends = starts + lengths - 1
    words[places] = old[ends] + ordered[ends]
    result = np.empty_like(old)
    result[order] = old
    return result


def _rounds(words: Array, index: Indices, step: Callable[..., Any], values: list[Array]) -> Array:
    # In round n, the n-th of the threads at each word.
    order, _, turns = _groups(index)
    result = np.empty(index.size, words.dtype)
    by_turn = order[np.argsort(turns, kind="stable")]
    lengths = np.bincount(turns)
    start = 0
    for length in lengths:
        now = by_turn[start : start + length]
        start += int(length)
        places = index[now]
        old = words[places]
        result[now] = old
        words[places] = step(old, *(value[now] for value in values))
    return result


def _step(operation: str, function: Any) -> Callable[..., Any]:
    if function is not None:
        chosen: Callable[..., Any] = function
        return chosen
    return _STEPS[operation]


def _exchange(old: Array, value: Array) -> Array:
    return value


def _compare_and_swap(old: Array, compared: Array, value: Array) -> Array:
    new: Array = np.where(old == compared, value, old)
    return new


def _increment(old: Array, limit: Array) -> Array:
    new: Array = np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1))
    return new


def _decrement(old: Array, limit: Array) -> Array:
    new: Array = np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1))
    return new


_STEPS: dict[str, Callable[..., Any]] = {
    "exch": _exchange,
    "cas": _compare_and_swap,
    "inc": _increment,
    "dec": _decrement,
}
