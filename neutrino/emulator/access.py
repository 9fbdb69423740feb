"""Loads and stores of all threads of a batch at once, in every state space, with the checks that a GPU lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from neutrino.emulator.datatypes import DOUBLE_WORD, Array
from neutrino.emulator.memory import (
    CONST_BASE,
    LOCAL_BASE,
    PARAM_BASE,
    POISON,
    SHARED_BASE,
    Space,
    Window,
)
from neutrino.emulator.state import Indices, State
from neutrino.errors import FaultKind

_U64 = np.dtype("u8")
_LOW = np.uint64(7)
_THREE = np.uint64(3)
_LARGEST_LOCAL = 512 << 10
_SPACE_SHIFT = np.uint64(40)
_SPACE_OF_TOP = {
    SHARED_BASE >> 40: (Space.SHARED, SHARED_BASE),
    LOCAL_BASE >> 40: (Space.LOCAL, LOCAL_BASE),
    CONST_BASE >> 40: (Space.CONST, 0),
    PARAM_BASE >> 40: (Space.PARAM, PARAM_BASE),
}

# A place that words were found in: the words, which of them, and for which of the addresses (None: all).
Piece = tuple[Array, Any, Any]


class Accesses(State):
    """Loads and stores. Addresses are arrays, or scalars where all threads have the same."""

    def load(
        self,
        number: int,
        space: int,
        base: Any,
        offset: Any,
        dtype: np.dtype[Any],
        count: int,
        at: Indices | None,
        guard: Any,
    ) -> list[Any]:
        """``count`` consecutive words of each thread; without meaning where the guard does not hold."""
        addresses = base if offset is None else base + offset
        if guard is None:
            return self.load_some(number, space, addresses, dtype, count, at)
        if not guard.ndim:
            if guard:
                return self.load_some(number, space, addresses, dtype, count, at)
            return [np.zeros((), dtype)[()]] * count
        chosen = np.flatnonzero(guard)
        if chosen.size == guard.size:
            return self.load_some(number, space, addresses, dtype, count, at)
        found = [np.zeros(guard.size, dtype) for _ in range(count)]
        if chosen.size:
            some = addresses[chosen] if addresses.ndim else addresses
            loaded = self.load_some(number, space, some, dtype, count, chosen if at is None else at[chosen])
            for whole, part in zip(found, loaded, strict=True):
                whole[chosen] = part
        return found

    def store(
        self,
        number: int,
        space: int,
        base: Any,
        offset: Any,
        dtype: np.dtype[Any],
        values: Sequence[Any],
        at: Indices | None,
        guard: Any,
    ) -> None:
        """Write consecutive words of each thread for which the guard holds."""
        addresses = base if offset is None else base + offset
        if guard is not None:
            if guard.ndim:
                chosen = np.flatnonzero(guard)
                if not chosen.size:
                    return
                addresses = addresses[chosen] if addresses.ndim else addresses
                values = [value[chosen] if value.ndim else value for value in values]
                at = chosen if at is None else at[chosen]
            elif not guard:
                return
        self.store_some(number, space, addresses, dtype, values, at)

    def load_some(
        self, number: int, space: int, addresses: Any, dtype: np.dtype[Any], count: int, at: Indices | None
    ) -> list[Any]:
        """As ``load``, without a guard."""
        if dtype == DOUBLE_WORD and space in (Space.LOCAL, Space.GENERIC):
            return self.load_double(number, space, addresses, count, at)
        pieces = self.locate(number, space, addresses, dtype, count, at, writing=False)
        if len(pieces) == 1:
            words, index, _ = pieces[0]
            if isinstance(index, tuple):
                # Local memory at one address: strided rows of the planes.
                rows = [words[one] for one in index]
                return [row.copy() if at is None else row[at] for row in rows]
            if isinstance(index, list):
                return [words[one] for one in index]
            if isinstance(index, int):
                found = [words[index + place] for place in range(count)]
                return [one.copy() for one in found] if dtype == DOUBLE_WORD else found
            return [words[index + place] if place else words[index] for place in range(count)]
        size = self.threads if at is None else at.size
        result = [np.zeros(size, dtype) for _ in range(count)]
        for words, index, chosen in pieces:
            for place in range(count):
                if isinstance(index, list):
                    result[place][chosen] = words[index[place]]
                else:
                    result[place][chosen] = words[index + place]
        return result

    def load_double(self, number: int, space: int, addresses: Any, count: int, at: Indices | None) -> list[Any]:
        halves = self.load_some(number, space, addresses, _U64, 2 * count, at)
        found = []
        for place in range(count):
            low, high = halves[2 * place : 2 * place + 2]
            whole = np.empty(np.shape(low), DOUBLE_WORD)
            whole["x"] = low
            whole["y"] = high
            found.append(whole)
        return found

    def store_some(
        self, number: int, space: int, addresses: Any, dtype: np.dtype[Any], values: Sequence[Any], at: Indices | None
    ) -> None:
        """As ``store``, without a guard."""
        if dtype == DOUBLE_WORD and space in (Space.LOCAL, Space.GENERIC):
            values = [value[half] for value in values for half in "xy"]
            dtype = _U64
        pieces = self.locate(number, space, addresses, dtype, len(values), at, writing=True)
        for words, index, chosen in pieces:
            for place, value in enumerate(values):
                if chosen is not None and value.ndim:
                    value = value[chosen]
                if isinstance(index, tuple):
                    row = words[index[place]]
                    if at is None:
                        row[:] = value
                    else:
                        row[at] = value
                elif isinstance(index, list):
                    words[index[place]] = value
                elif isinstance(index, int):
                    # One word for all threads: some thread's value stays.
                    words[index + place] = value[-1] if value.ndim else value
                else:
                    words[index + place if place else index] = value

    # -- where words lie

    def locate(
        self,
        number: int,
        space: int,
        addresses: Any,
        dtype: np.dtype[Any],
        count: int,
        at: Indices | None,
        *,
        writing: bool,
        aligned: int = 0,
    ) -> list[Piece]:
        """Check ``count`` consecutive words at each address, and find them.

        An index is an array, an int for one word that all threads share, a tuple of rows of local memory, or a list of
        arrays, one per word, where the words of a thread do not lie side by side. aligned: to so many bytes, 0: to all.
        """
        size = dtype.itemsize * count
        self.check_alignment(number, addresses, aligned or size, at)
        if space in (Space.GLOBAL, Space.CONST):
            return self.locate_global(number, Space(space), addresses, dtype, size, at, writing)
        if space == Space.SHARED:
            return [self.locate_shared(number, addresses, dtype, size, at)]
        if space == Space.LOCAL:
            return [self.locate_local(number, addresses, dtype, count, at)]
        if space == Space.PARAM:
            return [self.locate_parameter(number, addresses, dtype, size, at)]
        return self.locate_generic(number, addresses, dtype, count, at, writing)

    def check_alignment(self, number: int, addresses: Any, size: int, at: Indices | None) -> None:
        if not addresses.ndim:
            if int(addresses) & size - 1:
                self.misaligned(number, addresses, size, at)
        elif int(np.bitwise_or.reduce(addresses)) & size - 1:
            self.misaligned(number, addresses, size, at)

    def misaligned(self, number: int, addresses: Any, size: int, at: Indices | None) -> None:
        place = int(np.flatnonzero(np.atleast_1d(addresses) & addresses.dtype.type(size - 1))[0])
        address = int(np.atleast_1d(addresses)[place])
        self.fault(
            FaultKind.MISALIGNED, number, f"{size} bytes", thread=self.one_of(at, place), address=address
        )

    def outside(self, number: int, detail: str, addresses: Any, bad: Any, at: Indices | None) -> None:
        place = int(np.flatnonzero(np.atleast_1d(bad))[0])
        address = int(np.atleast_1d(addresses)[place])
        self.fault(FaultKind.OUT_OF_BOUNDS, number, detail, thread=self.one_of(at, place), address=address)

    def locate_global(
        self,
        number: int,
        space: Space,
        addresses: Any,
        dtype: np.dtype[Any],
        size: int,
        at: Indices | None,
        writing: bool,
    ) -> list[Piece]:
        single = not addresses.ndim
        low = int(addresses) if single else int(addresses.min())
        high = low if single else int(addresses.max())
        window = self.memory.find(low)
        if self.observer is not None:
            self.observe(number, space, addresses, size, at)
        if window is None or not window.holds(low, high + size):
            return self.locate_scattered(number, space, addresses, dtype, size, at, writing)
        self.check_window(number, space, window, addresses, at, writing)
        words = window.view(dtype)
        if single:
            return [(words, (low - window.base) // dtype.itemsize, None)]
        return [(words, _index(addresses, window, dtype), None)]

    def check_window(
        self, number: int, space: Space, window: Window, addresses: Any, at: Indices | None, writing: bool
    ) -> None:
        if window.constant and writing:
            self.outside(number, "constant memory is not written by kernels", addresses, True, at)
        if space is Space.CONST and not window.constant:
            self.outside(number, "not in constant memory", addresses, True, at)

    def locate_scattered(
        self,
        number: int,
        space: Space,
        addresses: Any,
        dtype: np.dtype[Any],
        size: int,
        at: Indices | None,
        writing: bool,
    ) -> list[Piece]:
        # Threads in several allocations, or outside of all.
        every = np.atleast_1d(addresses).astype(np.uint64, copy=False)
        left = np.ones(every.shape, np.bool_)
        pieces: list[Piece] = []
        for window in self.memory.windows:
            inside = left & (every >= np.uint64(window.base)) & (every < np.uint64(window.end))
            if not inside.any():
                continue
            chosen = np.flatnonzero(inside)
            some = every[chosen]
            good = window.valid(some, size)
            if not good.all():
                bad = np.zeros(every.shape, np.bool_)
                bad[chosen[~good]] = True
                self.outside(number, f"{size} bytes", every, bad, at)
            self.check_window(number, space, window, some, chosen if at is None else at[chosen], writing)
            left[chosen] = False
            whole = chosen.size == every.size
            pieces.append((window.view(dtype), _index(some, window, dtype), None if whole else chosen))
        if left.any():
            self.outside(number, f"{size} bytes", every, left, at)
        return pieces

    def shared_view(self, dtype: np.dtype[Any]) -> Array:
        """The shared memory of all blocks of the batch, one after the other, as words."""
        found = self.shared_views.get(dtype)
        if found is None:
            found = self.shared_views[dtype] = self.shared.view(dtype)
        return found

    def locate_shared(
        self, number: int, addresses: Any, dtype: np.dtype[Any], size: int, at: Indices | None
    ) -> Piece:
        high = int(addresses.max()) if addresses.ndim else int(addresses)
        if high + size > self.shared_size:
            bad = addresses > self.shared_size - size if self.shared_size >= size else np.ones_like(addresses, bool)
            self.outside(number, f"{size} bytes of the block's {self.shared_size} of shared memory", addresses, bad, at)
        if self.observer is not None:
            self.observe(number, Space.SHARED, addresses, size, at)
        base = self.shared_base
        if not addresses.ndim and not base.ndim:
            return self.shared_view(dtype), high // dtype.itemsize, None
        if base.ndim and at is not None:
            base = base[at]
        inside = addresses.astype(np.int64)
        return self.shared_view(dtype), (inside + base) >> (dtype.itemsize.bit_length() - 1), None

    def reserve_local(self, size: int) -> bool:
        """Have so many bytes of local memory a thread. False: that is more than there can be."""
        planes = -(-size // 8)
        have = self.local.shape[0]
        if planes <= have:
            return True
        if size > _LARGEST_LOCAL:
            return False
        grown = np.full((max(planes, 2 * have), self.threads), _POISON_WORD, np.uint64)
        grown[:have] = self.local
        self.local = grown
        return True

    def locate_local(
        self, number: int, addresses: Any, dtype: np.dtype[Any], count: int, at: Indices | None
    ) -> Piece:
        size = dtype.itemsize * count
        limit = 8 * self.local.shape[0]
        high = int(addresses.max()) if addresses.ndim else int(addresses)
        if high + size > limit:
            bad = addresses > limit - size if limit >= size else np.ones_like(addresses, bool)
            self.outside(number, f"{size} bytes of the thread's {limit} of local memory", addresses, bad, at)
        if self.observer is not None:
            self.observe(number, Space.LOCAL, addresses, size, at)
        item = dtype.itemsize
        per_plane = 8 // item
        if not addresses.ndim:
            # Word i of a thread stands at [plane, thread * per_plane + place].
            planes = self.local.view(dtype)
            rows = []
            for place in range(count):
                start = high + place * item
                rows.append((start >> 3, slice((start & 7) // item, None, per_plane)))
            return planes, tuple(rows), None
        words = self.local.reshape(-1).view(dtype)
        lanes = np.arange(self.threads, dtype=np.int64) if at is None else at
        inside = addresses.astype(np.int64)
        index = []
        for place in range(count):
            start = inside + place * item
            index.append(((start >> 3) * self.threads + lanes) * per_plane + (start & 7) // item)
        return words, _Columns(index), None

    def locate_parameter(
        self, number: int, addresses: Any, dtype: np.dtype[Any], size: int, at: Indices | None
    ) -> Piece:
        limit = self.kernel.parameter_size
        high = int(addresses.max()) if addresses.ndim else int(addresses)
        if high + size > limit:
            bad = addresses > limit - size if limit >= size else np.ones_like(addresses, bool)
            self.outside(number, f"{size} bytes of the kernel's {limit} of parameters", addresses, bad, at)
        if self.observer is not None:
            self.observe(number, Space.PARAM, addresses, size, at)
        words = self.parameters.view(dtype)
        if not addresses.ndim:
            return words, high // dtype.itemsize, None
        return words, addresses.astype(np.int64) // dtype.itemsize, None

    def locate_generic(
        self,
        number: int,
        addresses: Any,
        dtype: np.dtype[Any],
        count: int,
        at: Indices | None,
        writing: bool,
    ) -> list[Piece]:
        tops = addresses >> _SPACE_SHIFT
        if not tops.ndim or (tops == tops[0]).all():
            top = int(tops if not tops.ndim else tops[0])
            return self.locate_in(number, top, addresses, dtype, count, at, writing)
        pieces: list[Piece] = []
        # All of global memory is one space: the tops of its windows differ.
        known = np.isin(tops, np.array(list(_SPACE_OF_TOP), np.uint64))
        kinds = np.where(known, tops, np.uint64(0))
        for kind in np.unique(kinds):
            chosen = np.flatnonzero(kinds == kind)
            lanes = chosen if at is None else at[chosen]
            found = self.locate_in(number, int(kind), addresses[chosen], dtype, count, lanes, writing)
            for words, index, inner in found:
                pieces.append((words, index, chosen if inner is None else chosen[inner]))
        return pieces

    def locate_in(
        self,
        number: int,
        top: int,
        addresses: Any,
        dtype: np.dtype[Any],
        count: int,
        at: Indices | None,
        writing: bool,
    ) -> list[Piece]:
        space, base = _SPACE_OF_TOP.get(top, (Space.GLOBAL, 0))
        if space is Space.PARAM and writing:
            every = np.ones_like(addresses, bool)
            self.outside(number, "the kernel's parameters are not written", addresses, every, at)
        return self.locate(
            number, space, addresses - np.uint64(base), dtype, count, at, writing=writing
        )


class _Columns(list[Any]):
    """Index arrays, one per word of a vector."""


_POISON_WORD = int.from_bytes(bytes([POISON]) * 8, "little")


def _index(addresses: Any, window: Window, dtype: np.dtype[Any]) -> Any:
    shift = dtype.itemsize.bit_length() - 1
    return ((addresses - np.uint64(window.base)) >> np.uint64(shift)).view(np.int64)
