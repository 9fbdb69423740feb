"""Atomic operations and reductions (PTX ISA 9.7.13).

Threads that access the same word take turns: in the order of threads, or in a random order if the schedule is random.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from neutrino.emulator.access import Accesses
from neutrino.emulator.datatypes import Array
from neutrino.emulator.state import Indices

_SINGLE = np.dtype("f4")
_SMALLEST_NORMAL = np.float32(2.0**-126)
# Sums of f32 numbers that are zero or at least this large are never subnormal, as they are multiples of 2**-123.
_SAFE_MAGNITUDE = np.float32(2.0**-100)

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
    """Atomic read-modify-write operations of all threads of a batch.

    Threads that access the same word take turns: in the order of threads, or in a random order if the schedule is
    random (`self.random` is the generator, else None).
    """

    def atomic(
        self,
        statement: int,
        space: int,
        operation: str | Callable[..., Any],
        base: Any,
        offset: Any,
        dtype: np.dtype[Any],
        operands: Sequence[Sequence[Any]],
        returns_old: bool,
        active: Indices | None,
        guard: Any,
    ) -> list[Any]:
        """Execute ``atom`` or ``red`` at base + offset (None: 0) of each active thread; return the old words.

        statement: its index in the module, for fault reports. space: a value of `Space`. dtype: the type of a word.
        operation: its PTX name, or a function of the old word and the operands that returns the new word. operands: for
        each operand of the instruction, one array or scalar per vector element. returns_old: whether the caller uses
        the result. active: indices of the active threads in the batch, None: all. guard: predicate of these threads,
        None: no guard.

        The result has one array per vector element, with an element per active thread. It is meaningless for threads
        whose guard is false, and if `returns_old` is false.
        """
        addresses = base if offset is None else base + offset
        count = len(operands[0])
        size = self.threads if active is None else active.size

        # Drop the threads whose guard is false.
        selected: Any = None
        threads = active
        if guard is not None:
            selected = np.flatnonzero(guard if guard.ndim else np.broadcast_to(guard, (size,)))
            if not selected.size:
                return [np.zeros(size, dtype)] * count
            threads = selected if active is None else active[selected]
            addresses = addresses[selected] if addresses.ndim else addresses

        thread_count = self.threads if threads is None else threads.size
        thread_addresses = np.broadcast_to(addresses, (thread_count,))
        pieces = self.locate(statement, space, thread_addresses, dtype, count, threads, writing=True)
        results = [np.zeros(size, dtype) for _ in range(count)]
        for words, index, subset in pieces:
            for position in range(count):
                # A list has an index array per word; else the words follow each other.
                word_index = index[position] if isinstance(index, list) else index + position
                values = []
                for operand in operands:
                    value = operand[position]
                    if value.ndim and selected is not None:
                        value = value[selected]
                    value = np.broadcast_to(value, (thread_count,))
                    values.append(value if subset is None else value[subset])
                old = self.take_turns(words, word_index, operation, values, returns_old)
                if old is not None:
                    # Which active threads these words belong to.
                    target: Any = selected if selected is not None else slice(None)
                    if subset is not None:
                        target = subset if selected is None else selected[subset]
                    results[position][target] = old
        return results

    def take_turns(
        self,
        words: Array,
        index: Indices,
        operation: str | Callable[..., Any],
        values: list[Array],
        returns_old: bool,
    ) -> Array | None:
        """Apply one operation per thread at ``words[index]``, in a random order if the schedule is random.

        values: the operands, one array each. Return the old words in the order of `index`; None unless `returns_old`.
        """
        # Additions of f32 flush subnormal numbers everywhere but in shared memory.
        if operation == "add" and words.dtype == _SINGLE and words is not self.shared_views.get(_SINGLE):
            operation = self.flushed_if_tiny(words, index, values[0])
        if self.random is None:
            return apply(words, index, operation, values, returns_old)
        order = self.random.permutation(index.size)
        old_in_order = apply(words, index[order], operation, [value[order] for value in values], returns_old)
        if old_in_order is None:
            return None
        # Back from the random order to that of `index`.
        old = np.empty_like(old_in_order)
        old[order] = old_in_order
        return old

    def flushed_if_tiny(self, words: Array, index: Indices, value: Array) -> str | Callable[..., Any]:
        """Return the operation for an f32 addition of `value` at ``words[index]`` in global memory.

        It treats subnormal numbers as zero (PTX ISA 9.7.13.5). If no number is so small that this could matter, plain
        addition ("add") gives the same result faster.
        """
        for numbers in (np.abs(value), np.abs(words[index])):
            if ((numbers < _SAFE_MAGNITUDE) & (numbers > 0)).any():
                return _add_flushed
        return "add"


def apply(
    words: Array, index: Indices, operation: str | Callable[..., Any], values: list[Array], returns_old: bool
) -> Array | None:
    """Apply an operation at ``words[index]``, one element after the other; indices may repeat.

    operation: the PTX name, or a function of the old words and the operands that returns the new words. values: the
    operands, one array each, with an element per index. Return the words before each operation; None if the caller
    does not need them (`returns_old` is false) and NumPy has a faster way.
    """
    dtype = words.dtype
    if isinstance(operation, str):
        # Floats have a min and max of their own (see _FLOAT_UFUNCS); the other operations are the same for all types.
        ufunc = (_FLOAT_UFUNCS if dtype.kind == "f" else {}).get(operation) or _UFUNCS.get(operation)
        if ufunc is not None and not returns_old:
            # Operations that are ufuncs have one operand.
            _reduce(words, index, ufunc, values[0])
            return None
        step = ufunc if ufunc is not None else _STEPS[operation]
    else:
        step = operation
    if index.size == 1 or not _repeats(index):
        # Each thread has a word of its own: all can go at once.
        old: Array = words[index]
        words[index] = step(old, *values)
        return old
    if operation == "add" and dtype.kind in "iu":
        # Faster than rounds, and right since integer sums do not depend on the order.
        return _running_sum(words, index, values[0])
    return _apply_in_rounds(words, index, step, values)


def _reduce(words: Array, index: Indices, ufunc: Any, value: Array) -> None:
    """Combine each element of `value` into ``words[index]`` with a binary ufunc; indices may repeat.

    Floating-point values always go one by one: `ufunc.reduce` adds them in another order, which rounds differently.
    """
    first = index[0]
    if (index == first).all() and words.dtype.kind != "f":
        # All threads access the same word, and their order does not matter.
        words[first] = ufunc(words[first], ufunc.reduce(value))
    else:
        ufunc.at(words, index, value)


def _flushed(numbers: Array) -> Array:
    """Return f32 numbers with subnormal ones replaced by a zero of the same sign."""
    plain: Array = np.where(np.abs(numbers) < _SMALLEST_NORMAL, np.copysign(np.float32(0), numbers), numbers)
    return plain


def _add_flushed(old: Array, value: Array) -> Array:
    """Return the sums of f32 numbers, where subnormal operands and results count as zero (.ftz)."""
    return _flushed(_flushed(old) + _flushed(value))


def _repeats(index: Indices) -> bool:
    """Return whether any index occurs more than once."""
    ordered = np.sort(index)
    return bool((ordered[1:] == ordered[:-1]).any())


def _group_equal(index: Indices) -> tuple[Indices, Indices, Indices]:
    """Group the positions in `index` that hold equal indices.

    Return three arrays: the order of positions that puts equal indices side by side, where in that order each group
    starts, and the rank of each element of that order within its group (0, 1, …).
    """
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    lengths = np.diff(np.append(starts, index.size))
    ranks = np.arange(index.size) - np.repeat(starts, lengths)
    return order, starts, ranks


def _running_sum(words: Array, index: Indices, value: Array) -> Array:
    """Add integers at ``words[index]``, where indices may repeat, and return the words before each addition.

    value: one integer per index. The additions to a word take place in the order of `index`. As integer sums wrap
    around, one prefix sum over all groups of equal indices serves: what earlier groups add is subtracted again.
    """
    order, starts, _ = _group_equal(index)
    ordered = value[order]
    total = np.cumsum(ordered, dtype=words.dtype)

    # What the earlier elements of the same group add: subtract what the groups before it add.
    before: Array = total - ordered
    lengths = np.diff(np.append(starts, index.size))
    before -= np.repeat(before[starts], lengths)

    # One index per group, which all its elements share.
    group_index = index[order[starts]]
    old: Array = np.repeat(words[group_index], lengths) + before
    # The last element of a group finds what all others have added, and adds its own.
    ends = starts + lengths - 1
    words[group_index] = old[ends] + ordered[ends]
    # Back to the order of `index`.
    result = np.empty_like(old)
    result[order] = old
    return result


def _apply_in_rounds(words: Array, index: Indices, step: Callable[..., Any], values: list[Array]) -> Array:
    """Apply `step` at ``words[index]``, where indices may repeat, and return the words before each application.

    Round n handles the n-th occurrence of each index, so that no index repeats within a round.
    """
    if step is _compare_and_swap and (index == index[0]).all():
        return _compare_and_swap_one(words, index[0], *values)
    order, _, ranks = _group_equal(index)
    result = np.empty(index.size, words.dtype)
    # The positions of the first occurrences, then those of the second ones, and so on.
    by_rank = order[np.argsort(ranks, kind="stable")]
    round_sizes = np.bincount(ranks)
    start = 0
    for round_size in round_sizes:
        positions = by_rank[start : start + round_size]
        start += int(round_size)
        word_index = index[positions]
        old = words[word_index]
        result[positions] = old
        words[word_index] = step(old, *(value[positions] for value in values))
    return result


# The new word of the operations that NumPy does not have, from the old word and the operands.


def _exchange(old: Array, value: Array) -> Array:
    """Return the new words of atom.exch: the operand, whatever was there."""
    return value


def _compare_and_swap(old: Array, compared: Array, value: Array) -> Array:
    """Return the new words of atom.cas: `value` where the old word is the one that was compared, else the old word."""
    new: Array = np.where(old == compared, value, old)
    return new


def _compare_and_swap_one(words: Array, place: Any, compared: Array, value: Array) -> Array:
    """Let threads compare and swap one word in turns, as at a lock. Returns what each found there.

    Python's numbers are faster here than arrays of one element.
    """
    word = words[place].item()
    found = []
    for expected, new in zip(compared.tolist(), value.tolist(), strict=True):
        found.append(word)
        if word == expected:
            word = new
    words[place] = word
    return np.array(found, words.dtype)


def _increment(old: Array, limit: Array) -> Array:
    """Return the new words of atom.inc: one more, or 0 once the limit is reached."""
    new: Array = np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1))
    return new


def _decrement(old: Array, limit: Array) -> Array:
    """Return the new words of atom.dec: one less, or the limit if the old word is 0 or above the limit."""
    new: Array = np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1))
    return new


_STEPS: dict[str, Callable[..., Any]] = {
    "exch": _exchange,
    "cas": _compare_and_swap,
    "inc": _increment,
    "dec": _decrement,
}
