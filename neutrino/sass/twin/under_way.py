"""What of a kernel's may be under way where a thread ends: any of its instructions may have been the last one."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from neutrino.sass.decoder import Code
from neutrino.sass.fields import NO_BARRIER
from neutrino.sass.instruction import Latency, RegisterFile
from neutrino.sass.twin.hazards import LONGEST, OTHERS, State, kind, required

_ASYNCHRONOUS = "GMMA"
"""Part of the names of matrix products that go on after they were issued, without a scoreboard."""


def anywhere(code: Code) -> State:
    """Return the state that ``_anywhere`` describes, which the caller may change."""
    return _anywhere(code).copy()


@functools.lru_cache(maxsize=1)
def _anywhere(code: Code) -> State:
    """Return the state (``hazards``) in which every instruction of code was issued right before.

    What an instruction of variable latency writes or reads without a scoreboard is awaited for ever, and so are the
    registers of instructions of which it is not known how long they take.
    """
    state = State()
    reads, writes = code.reads[RegisterFile.GENERAL], code.writes[RegisterFile.GENERAL]
    variable = code.having(lambda form: form is not None and form.latency is Latency.VARIABLE)
    odd = code.having(lambda form: form is None or form.latency is Latency.UNKNOWN or _ASYNCHRONOUS in form.name)
    written_by, read_by = code.write_barrier, code.read_barrier
    awaited = variable | (written_by != NO_BARRIER) | (read_by != NO_BARRIER)
    for one in range(NO_BARRIER + 1):
        written = 1 << one if one != NO_BARRIER else 0
        _add(state.written.clauses, written, _mask(writes[awaited & (written_by == one)]))
        for other in range(NO_BARRIER + 1):
            taken = written | (1 << other if other != NO_BARRIER else 0)
            _add(state.read.clauses, taken, _mask(reads[awaited & (written_by == one) & (read_by == other)]))
    unknown = _mask((reads | writes)[odd])
    _add(state.written.clauses, 0, unknown)
    _add(state.read.clauses, 0, unknown)
    for form, row in zip(code.forms, code.joined(writes, ~awaited), strict=True):
        # Without a result, or one that a scoreboard speaks for, it is no producer.
        mask = _mask(row[None, :])
        if form is not None and mask:
            key = 0, kind(form.name)
            state.recent[key] = state.recent.get(key, 0) | mask
    return state


def _mask(rows: NDArray[np.uint64]) -> int:
    """All registers of the rows, as one mask."""
    words = np.bitwise_or.reduce(rows, axis=0, initial=0).tolist()
    return sum(word << 64 * number for number, word in enumerate(words))


def _add(clauses: dict[int, int], key: int, mask: int) -> None:
    if mask:
        clauses[key] = clauses.get(key, 0) | mask


def longest(producer: str, sm: int) -> int:
    """Return after how many cycles a result of fixed latency may be used in every way. producer: its ``kind``. sm: of
    the architecture, as 90."""
    known = required(sm)(producer, "R", OTHERS, 0)
    return LONGEST if known is None else known


def bits_of(mask: int) -> Iterator[int]:
    """Yield the numbers of the bits in a mask."""
    return (bit for bit in range(mask.bit_length()) if mask >> bit & 1)
