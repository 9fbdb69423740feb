"""Loads and stores of all threads of a batch at once, in every state space, with the checks that a GPU lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from neutrino.emulator.address_space import (
    CONST_BASE,
    LOCAL_BASE,
    PARAM_BASE,
    POISON,
    SHARED_BASE,
    Space,
    Window,
)
from neutrino.emulator.datatypes import DOUBLE_WORD, Array
from neutrino.emulator.state import Indices, State
from neutrino.errors import FaultKind

_U64 = np.dtype("u8")
_LARGEST_LOCAL = 512 << 10
_POISON_WORD = int.from_bytes(bytes([POISON]) * 8, "little")

# The upper bits of a generic address select its state space: upper bits → (space, first generic address of the space).
# Generic addresses of constant memory are the addresses in that space themselves, hence the 0.
_SPACE_SHIFT = np.uint64(40)
_SPACE_BY_UPPER_BITS = {
    SHARED_BASE >> 40: (Space.SHARED, SHARED_BASE),
    LOCAL_BASE >> 40: (Space.LOCAL, LOCAL_BASE),
    CONST_BASE >> 40: (Space.CONST, 0),
    PARAM_BASE >> 40: (Space.PARAM, PARAM_BASE),
}

Piece = tuple[Array, Any, Any]
"""Where the words of an access lie: (array of words, index into it, subset).

The subset holds the positions, among the addresses that were looked up, of those that this piece covers; None: all.
`Accesses.locate` lists the kinds of index.
"""


class Accesses(State):
    """Loads and stores of all threads of a batch at once, in every state space, with the checks that a GPU lacks.

    In all methods, `statement` is the index of the PTX statement in its module (for fault reports and observers),
    `space` a value of `Space`, and `active` holds the indices of the active threads within the batch, None if all
    threads are active. `addresses` count bytes in that space: an array has one element per active thread, and a scalar
    is the same for all of them. Each thread accesses `count` consecutive words of the NumPy type `dtype` (1 to 16
    bytes each), which are `size` bytes together; `writing` says that it writes them.
    """

    def load(
        self,
        statement: int,
        space: int,
        base: Any,
        offset: Any,
        dtype: np.dtype[Any],
        count: int,
        active: Indices | None,
        guard: Any,
    ) -> list[Any]:
        """Load `count` consecutive words at base + offset per active thread; return one array or scalar per word.

        An offset of None is 0. Threads whose `guard` (predicate; None: no guard) is false load nothing, and their
        elements are meaningless. statement: its index in the module, for fault reports. active: the indices of the
        active threads in the batch, None: all. space: the state space of the addresses, a ``Space`` (global, shared …).
        """
        addresses = base if offset is None else base + offset
        if guard is None:
            return self.load_some(statement, space, addresses, dtype, count, active)
        if not guard.ndim:
            # One guard for all threads: all of them load, or none.
            if guard:
                return self.load_some(statement, space, addresses, dtype, count, active)
            return [np.zeros((), dtype)[()]] * count
        selected = np.flatnonzero(guard)
        if selected.size == guard.size:
            # All threads load: nothing has to be picked out.
            return self.load_some(statement, space, addresses, dtype, count, active)
        results = [np.zeros(guard.size, dtype) for _ in range(count)]
        if selected.size:
            threads = selected if active is None else active[selected]
            selected_addresses = addresses[selected] if addresses.ndim else addresses
            loaded = self.load_some(statement, space, selected_addresses, dtype, count, threads)
            for result, values in zip(results, loaded, strict=True):
                result[selected] = values
        return results

    def store(
        self,
        statement: int,
        space: int,
        base: Any,
        offset: Any,
        dtype: np.dtype[Any],
        values: Sequence[Any],
        active: Indices | None,
        guard: Any,
    ) -> None:
        """Store `values`, one array or scalar per consecutive word, at base + offset of each active thread.

        An offset of None is 0. Threads whose `guard` (predicate; None: no guard) is false store nothing. statement: its
        index in the module, for fault reports. active: the indices of the active threads in the batch, None: all.
        space: the state space of the addresses, a ``Space`` (global, shared …).
        """
        addresses = base if offset is None else base + offset
        if guard is not None:
            if guard.ndim:
                selected = np.flatnonzero(guard)
                if not selected.size:
                    return
                addresses = addresses[selected] if addresses.ndim else addresses
                values = [value[selected] if value.ndim else value for value in values]
                active = selected if active is None else active[selected]
            elif not guard:
                # One guard for all threads, which is false.
                return
        self.store_some(statement, space, addresses, dtype, values, active)

    def load_some(
        self, statement: int, space: int, addresses: Any, dtype: np.dtype[Any], count: int, active: Indices | None
    ) -> list[Any]:
        """Load `count` consecutive words at the address of every active thread, as `load` without a guard.

        Return one array or scalar per word. `locate` lists the kinds of index that occur here. active: the indices of
        these threads in the batch, None: all threads. statement: the instruction's index in the module, for fault
        reports. space: the state space of the addresses, a ``Space`` (global, shared …).
        """
        if dtype == DOUBLE_WORD and space in (Space.LOCAL, Space.GENERIC):
            return self.load_double(statement, space, addresses, count, active)
        pieces = self.locate(statement, space, addresses, dtype, count, active, writing=False)
        if len(pieces) == 1:
            words, index, _ = pieces[0]
            if isinstance(index, tuple):
                # Local memory at the same address in all threads: one strided row per word.
                rows = [words[row] for row in index]
                return [row.copy() if active is None else row[active] for row in rows]
            if isinstance(index, list):
                return [words[column] for column in index]
            if isinstance(index, int):
                scalars = [words[index + position] for position in range(count)]
                # A NumPy scalar of a structured type is a view into memory, so it needs a copy.
                return [scalar.copy() for scalar in scalars] if dtype == DOUBLE_WORD else scalars
            # The first word, which is the usual one, needs no addition.
            return [words[index + position] if position else words[index] for position in range(count)]
        # Threads in several windows or state spaces: each piece has the words of a subset of them. Their addresses
        # differ, so that indices are arrays or lists.
        size = self.threads if active is None else active.size
        results = [np.zeros(size, dtype) for _ in range(count)]
        for words, index, subset in pieces:
            for position in range(count):
                if isinstance(index, list):
                    results[position][subset] = words[index[position]]
                else:
                    results[position][subset] = words[index + position]
        return results

    def load_double(self, statement: int, space: int, addresses: Any, count: int, active: Indices | None) -> list[Any]:
        """Load `count` 128-bit words per active thread as pairs of 64-bit words.

        For local memory, which is stored as 64-bit words, and for generic addresses, which may be local. Return one
        array or scalar of DOUBLE_WORD structures (fields x, the low half, and y) per 128-bit word. statement: the
        instruction's index in the module, for fault reports. space: the state space of the addresses, a ``Space``
        (global, shared …). active: the indices of the active threads in the batch, None: all.
        """
        halves = self.load_some(statement, space, addresses, _U64, 2 * count, active)
        results = []
        for position in range(count):
            low, high = halves[2 * position : 2 * position + 2]
            double_words = np.empty(np.shape(low), DOUBLE_WORD)
            double_words["x"] = low
            double_words["y"] = high
            results.append(double_words)
        return results

    def store_some(
        self,
        statement: int,
        space: int,
        addresses: Any,
        dtype: np.dtype[Any],
        values: Sequence[Any],
        active: Indices | None,
    ) -> None:
        """Store consecutive words at the address of every active thread, as `store` without a guard.

        values: one array or scalar per word. active: the indices of these threads in the batch, None: all threads.
        statement: the instruction's index in the module, for fault reports. space: the state space of the addresses, a
        ``Space`` (global, shared …).
        """
        if dtype == DOUBLE_WORD and space in (Space.LOCAL, Space.GENERIC):
            # Local memory is stored as 64-bit words: store the low and the high half ("x", "y") of each 128-bit word.
            values = [value[half] for value in values for half in "xy"]
            dtype = _U64
        pieces = self.locate(statement, space, addresses, dtype, len(values), active, writing=True)
        # `locate` lists the kinds of index; each piece has the words of a subset of the threads (None: all).
        for words, index, subset in pieces:
            for position, value in enumerate(values):
                if subset is not None and value.ndim:
                    value = value[subset]
                if isinstance(index, tuple):
                    row = words[index[position]]
                    if active is None:
                        row[:] = value
                    else:
                        row[active] = value
                elif isinstance(index, list):
                    words[index[position]] = value
                elif isinstance(index, int):
                    # All threads write the same word: the value of the last one stays.
                    words[index + position] = value[-1] if value.ndim else value
                else:
                    words[index + position if position else index] = value

    # -- where words lie

    def locate(
        self,
        statement: int,
        space: int,
        addresses: Any,
        dtype: np.dtype[Any],
        count: int,
        active: Indices | None,
        *,
        writing: bool,
        aligned: int = 0,
    ) -> list[Piece]:
        """Check an access to `count` consecutive words at each address, and return where these words lie.

        Each piece of the result is an array of words, an index into it, and the positions among `addresses` that it
        covers (None: all). The index is one of:
        - an array: the first word of each thread; the others follow it;
        - an int: the first word, which all threads share; the others follow it;
        - a tuple: per word, the (plane, slice) of local memory with that word of every thread of the batch;
        - a list: per word, an array with its index for each thread, as they are not adjacent in local memory.

        statement: its index in the module, for fault reports. active: the indices of the active threads in the batch,
        None: all. aligned: the alignment in bytes to require; 0: the size of all words together. Raise DeviceFaultError
        if an address is misaligned or an access is out of bounds. space: the state space of the addresses, a ``Space``
        (global, shared …).
        """
        size = dtype.itemsize * count
        self.check_alignment(statement, addresses, aligned or size, active)
        if space in (Space.GLOBAL, Space.CONST):
            return self.locate_global(statement, Space(space), addresses, dtype, size, active, writing)
        if space == Space.SHARED:
            return [self.locate_shared(statement, addresses, dtype, size, active)]
        if space == Space.LOCAL:
            return [self.locate_local(statement, addresses, dtype, count, active)]
        if space == Space.PARAM:
            return [self.locate_parameter(statement, addresses, dtype, size, active)]
        return self.locate_generic(statement, addresses, dtype, count, active, writing)

    def check_alignment(self, statement: int, addresses: Any, size: int, active: Indices | None) -> None:
        """Raise DeviceFaultError unless all addresses are multiples of `size`, a power of two.

        statement: the instruction's index in the module, for fault reports. active: the indices of the active threads
        in the batch, None: all.
        """
        if not addresses.ndim:
            if int(addresses) & size - 1:
                self.fault_misaligned(statement, addresses, size, active)
        elif int(np.bitwise_or.reduce(addresses)) & size - 1:
            self.fault_misaligned(statement, addresses, size, active)

    def fault_misaligned(self, statement: int, addresses: Any, size: int, active: Indices | None) -> None:
        """Raise DeviceFaultError for the first address that is not a multiple of `size`, a power of two.

        statement: the instruction's index in the module, for fault reports. active: the indices of the active threads
        in the batch, None: all.
        """
        position = int(np.flatnonzero(np.atleast_1d(addresses) & addresses.dtype.type(size - 1))[0])
        address = int(np.atleast_1d(addresses)[position])
        self.fault(
            FaultKind.MISALIGNED, statement, f"{size} bytes", thread=self.one_of(active, position), address=address
        )

    def fault_out_of_bounds(
        self, statement: int, detail: str, addresses: Any, invalid: Any, active: Indices | None
    ) -> None:
        """Raise DeviceFaultError for the first address that the mask `invalid` marks (True: all are wrong).

        detail: what the message says about the access. active: the threads that `addresses` belong to, None: all.
        statement: the instruction's index in the module, for fault reports.
        """
        position = int(np.flatnonzero(np.atleast_1d(invalid))[0])
        address = int(np.atleast_1d(addresses)[position])
        self.fault(FaultKind.OUT_OF_BOUNDS, statement, detail, thread=self.one_of(active, position), address=address)

    def locate_global(
        self,
        statement: int,
        space: Space,
        addresses: Any,
        dtype: np.dtype[Any],
        size: int,
        active: Indices | None,
        writing: bool,
    ) -> list[Piece]:
        """Check an access to `size` bytes per thread in global or constant memory, and return where its words lie.

        The usual case, all threads in one allocation, needs only the lowest and the highest address. statement, active:
        the index of the statement, and the indices of the active threads (None: all), for fault reports. space: the
        state space of the addresses, a ``Space`` (global, shared …).
        """
        same_address = not addresses.ndim
        low = int(addresses) if same_address else int(addresses.min())
        high = low if same_address else int(addresses.max())
        # The part of the address space, with a buffer of its own, that has the lowest address.
        window = self.memory.find(low)
        if self.observer is not None:
            self.observe(statement, space, addresses, size, active)
        if window is None or not window.holds(low, high + size):
            return self.locate_scattered(statement, space, addresses, dtype, size, active, writing)
        self.check_window(statement, space, window, addresses, active, writing)
        words = window.view(dtype)
        if same_address:
            return [(words, (low - window.base) // dtype.itemsize, None)]
        return [(words, _word_indices(addresses, window, dtype), None)]

    def check_window(
        self, statement: int, space: Space, window: Window, addresses: Any, active: Indices | None, writing: bool
    ) -> None:
        """Raise DeviceFaultError if constant memory is written, or an access to it lies in global memory.

        window: the part of the address space that has all of `addresses`. statement: the instruction's index in the
        module, for fault reports. space: the state space of the addresses, a ``Space`` (global, shared …). active: the
        indices of the active threads in the batch, None: all.
        """
        # True: all of the addresses are wrong.
        if window.constant and writing:
            self.fault_out_of_bounds(statement, "constant memory is not written by kernels", addresses, True, active)
        if space is Space.CONST and not window.constant:
            self.fault_out_of_bounds(statement, "not in constant memory", addresses, True, active)

    def locate_scattered(
        self,
        statement: int,
        space: Space,
        addresses: Any,
        dtype: np.dtype[Any],
        size: int,
        active: Indices | None,
        writing: bool,
    ) -> list[Piece]:
        """Locate words in global or constant memory whose addresses lie in several allocations.

        There is one piece per window (range of addresses with a buffer of its own) that has any of them. Raise
        DeviceFaultError for the first address that lies in no allocation. statement, active: the index of the
        statement, and the indices of the active threads (None: all), for fault reports. space: the state space of the
        addresses, a ``Space`` (global, shared …).
        """
        addresses = np.atleast_1d(addresses).astype(np.uint64, copy=False)
        # The addresses that no window so far contains.
        unresolved = np.ones(addresses.shape, np.bool_)
        pieces: list[Piece] = []
        for window in self.memory.windows:
            inside = unresolved & (addresses >= np.uint64(window.base)) & (addresses < np.uint64(window.end))
            if not inside.any():
                continue
            selected = np.flatnonzero(inside)
            selected_addresses = addresses[selected]
            valid = window.valid(selected_addresses, size)
            if not valid.all():
                invalid = np.zeros(addresses.shape, np.bool_)
                invalid[selected[~valid]] = True
                self.fault_out_of_bounds(statement, f"{size} bytes", addresses, invalid, active)
            threads = selected if active is None else active[selected]
            self.check_window(statement, space, window, selected_addresses, threads, writing)
            unresolved[selected] = False
            # None stands for all addresses, which saves the caller from picking them out.
            subset = None if selected.size == addresses.size else selected
            pieces.append((window.view(dtype), _word_indices(selected_addresses, window, dtype), subset))
        if unresolved.any():
            self.fault_out_of_bounds(statement, f"{size} bytes", addresses, unresolved, active)
        return pieces

    def shared_view(self, dtype: np.dtype[Any]) -> Array:
        """Return the shared memory of all blocks of the batch, one after the other, as words of type `dtype`.

        Views are kept, as making one costs more than a small access.
        """
        view = self.shared_views.get(dtype)
        if view is None:
            view = self.shared_views[dtype] = self.shared.view(dtype)
        return view

    def locate_shared(
        self, statement: int, addresses: Any, dtype: np.dtype[Any], size: int, active: Indices | None
    ) -> Piece:
        """Check an access to `size` bytes per thread of its block's shared memory, and return where its words lie.

        Addresses count from the start of the block's shared memory. statement: its index, for fault reports. active:
        the indices of the active threads in the batch, None: all.
        """
        high = int(addresses.max()) if addresses.ndim else int(addresses)
        if high + size > self.shared_size:
            detail = f"{size} bytes of the block's {self.shared_size} of shared memory"
            invalid = _exceeding(addresses, size, self.shared_size)
            self.fault_out_of_bounds(statement, detail, addresses, invalid, active)
        if self.observer is not None:
            self.observe(statement, Space.SHARED, addresses, size, active)
        # Where each thread's block has its part of the batch's shared memory: a scalar if there is one block.
        base = self.shared_base
        if not addresses.ndim and not base.ndim:
            # All threads access the same word.
            return self.shared_view(dtype), high // dtype.itemsize, None
        if base.ndim and active is not None:
            base = base[active]
        offsets = addresses.astype(np.int64)
        # The shift divides by the size of a word.
        return self.shared_view(dtype), (offsets + base) >> (dtype.itemsize.bit_length() - 1), None

    def reserve_local(self, size: int) -> bool:
        """Provide at least `size` bytes of local memory per thread; return False if that exceeds a GPU's limit.

        `self.local` is an array [plane, thread] of 64-bit words: plane p has the bytes 8p to 8p + 7 of each thread.
        Planes that are added hold poison, so that the use of memory that was never written shows.
        """
        # Rounded up.
        planes = -(-size // 8)
        available = self.local.shape[0]
        if planes <= available:
            return True
        if size > _LARGEST_LOCAL:
            return False
        # Doubling keeps the cost of repeated growth low.
        grown = np.full((max(planes, 2 * available), self.threads), _POISON_WORD, np.uint64)
        grown[:available] = self.local
        self.local = grown
        return True

    def locate_local(
        self, statement: int, addresses: Any, dtype: np.dtype[Any], count: int, active: Indices | None
    ) -> Piece:
        """Check an access to `count` words per thread of its local memory, and return where these words lie.

        `self.local` is an array [plane, thread] of 64-bit words: plane p has the bytes 8p to 8p + 7 of each thread.
        Viewed as smaller words, a plane has `per_plane` adjacent words of each thread. statement: its index, for fault
        reports. active: the indices of the active threads in the batch, None: all.
        """
        size = dtype.itemsize * count
        limit = 8 * self.local.shape[0]
        high = int(addresses.max()) if addresses.ndim else int(addresses)
        if high + size > limit:
            detail = f"{size} bytes of the thread's {limit} of local memory"
            self.fault_out_of_bounds(statement, detail, addresses, _exceeding(addresses, size, limit), active)
        if self.observer is not None:
            self.observe(statement, Space.LOCAL, addresses, size, active)
        # In this method `>> 3` gives the plane of a byte, and `& 7` its position among the thread's eight in the plane.
        item = dtype.itemsize
        per_plane = 8 // item
        if not addresses.ndim:
            # The same word of every thread: [plane, thread * per_plane + word in the plane], for all threads.
            planes = self.local.view(dtype)
            rows = []
            for position in range(count):
                start = high + position * item
                rows.append((start >> 3, slice((start & 7) // item, None, per_plane)))
            # A tuple: so `locate` marks this kind of index.
            return planes, tuple(rows), None
        # A word of its own for each thread: indices into the planes one after the other.
        words = self.local.reshape(-1).view(dtype)
        threads = np.arange(self.threads, dtype=np.int64) if active is None else active
        offsets = addresses.astype(np.int64)
        columns = []
        for position in range(count):
            starts = offsets + position * item
            columns.append(((starts >> 3) * self.threads + threads) * per_plane + (starts & 7) // item)
        return words, columns, None

    def locate_parameter(
        self, statement: int, addresses: Any, dtype: np.dtype[Any], size: int, active: Indices | None
    ) -> Piece:
        """Check a read of `size` bytes per thread of the kernel's parameter buffer, and return where its words lie.

        Addresses count from the start of the buffer. statement, active: the index of the statement, and the indices of
        the active threads (None: all), for fault reports.
        """
        limit = self.kernel.parameter_size
        high = int(addresses.max()) if addresses.ndim else int(addresses)
        if high + size > limit:
            detail = f"{size} bytes of the kernel's {limit} of parameters"
            self.fault_out_of_bounds(statement, detail, addresses, _exceeding(addresses, size, limit), active)
        if self.observer is not None:
            self.observe(statement, Space.PARAM, addresses, size, active)
        words = self.parameters.view(dtype)
        if not addresses.ndim:
            return words, high // dtype.itemsize, None
        return words, addresses.astype(np.int64) // dtype.itemsize, None

    def locate_generic(
        self,
        statement: int,
        addresses: Any,
        dtype: np.dtype[Any],
        count: int,
        active: Indices | None,
        writing: bool,
    ) -> list[Piece]:
        """Resolve generic addresses to their state spaces by their upper bits, and locate the words in each space.

        statement: its index, for fault reports. active: the indices of the active threads in the batch, None: all.
        """
        upper_bits = addresses >> _SPACE_SHIFT
        if not upper_bits.ndim or (upper_bits == upper_bits[0]).all():
            common = int(upper_bits if not upper_bits.ndim else upper_bits[0])
            return self.locate_in_space(statement, common, addresses, dtype, count, active, writing)

        # All of global memory counts as one space (0), although its windows differ in the upper bits.
        is_fixed_space = np.isin(upper_bits, np.array(list(_SPACE_BY_UPPER_BITS), np.uint64))
        space_keys = np.where(is_fixed_space, upper_bits, np.uint64(0))

        pieces: list[Piece] = []
        for space_key in np.unique(space_keys):
            selected = np.flatnonzero(space_keys == space_key)
            threads = selected if active is None else active[selected]
            located = self.locate_in_space(
                statement, int(space_key), addresses[selected], dtype, count, threads, writing
            )
            # The subsets of these pieces are positions among the selected addresses: make them positions among all.
            for words, index, subset in located:
                pieces.append((words, index, selected if subset is None else selected[subset]))
        return pieces

    def locate_in_space(
        self,
        statement: int,
        upper_bits: int,
        addresses: Any,
        dtype: np.dtype[Any],
        count: int,
        active: Indices | None,
        writing: bool,
    ) -> list[Piece]:
        """Locate words at generic addresses that all lie in the state space that `upper_bits` select.

        statement: its index, for fault reports. active: the indices of the active threads in the batch, None: all.
        Raise DeviceFaultError if parameters are written.
        """
        # All other addresses belong to global memory.
        space, base = _SPACE_BY_UPPER_BITS.get(upper_bits, (Space.GLOBAL, 0))
        if space is Space.PARAM and writing:
            invalid = np.ones_like(addresses, bool)
            self.fault_out_of_bounds(statement, "the kernel's parameters are not written", addresses, invalid, active)
        return self.locate(statement, space, addresses - np.uint64(base), dtype, count, active, writing=writing)


def _exceeding(addresses: Any, size: int, limit: int) -> Any:
    """Return the mask of the addresses at which an access of `size` bytes ends beyond `limit`."""
    if limit < size:
        # The addresses are unsigned, so limit - size must not be negative.
        return np.ones_like(addresses, bool)
    return addresses > limit - size


def _word_indices(addresses: Any, window: Window, dtype: np.dtype[Any]) -> Any:
    """Return the index of the word at each address in the window, viewed as words of type `dtype`."""
    # A shift by the logarithm of the word's size, a power of two, divides by it.
    shift = dtype.itemsize.bit_length() - 1
    return ((addresses - np.uint64(window.base)) >> np.uint64(shift)).view(np.int64)
