"""Registers that a snippet takes, and what is remembered of its statements."""

from __future__ import annotations

import pytest

from neutrino.gcn.instrument.code import Code, Mask, NoRegistersError, Scalar, Vector
from neutrino.gcn.instrument.machine import Machine
from neutrino.gcn.instrument.remembered import remembered
from neutrino.gcn.processors import PROCESSORS


def _code(scalars: range | tuple[int, ...], vectors: range | tuple[int, ...] = (), processor: str = "gfx90a") -> Code:
    return Code(Machine(PROCESSORS[processor], 64), scalars, vectors)


def test_the_lowest_registers_that_fit_are_taken() -> None:
    code = _code((3, 4, 7, 8, 9, 2001, 2002, 2003))
    assert code.scalar() == Scalar(3)
    assert code.scalar(2) == Scalar(8, 2)
    # Beyond any processor's registers, as for code that is only measured.
    assert code.mask() == Mask(2002, 2)
    assert [code.scalar().first for _ in range(3)] == [4, 7, 2001]
    with pytest.raises(NoRegistersError, match="no 1 scalar register in a row"):
        code.scalar()
    assert code.scalars_used == {3, 4, 7, 8, 9, 2001, 2002, 2003}


def test_pairs_of_vectors_begin_at_an_even_one_where_the_processor_wants_it() -> None:
    assert _code((), (5, 6, 7)).vector(2) == Vector(6, 2)
    assert _code((), (5, 6, 7), "gfx1030").vector(2) == Vector(5, 2)


def test_a_scope_gives_back_what_was_taken_in_it_but_for_what_is_pinned() -> None:
    code = _code(range(6))
    outer = code.scalar()
    with code.scope():
        kept, other = code.scalar(), code.scalar()
        code.pin(kept)
        code.release(other)
    assert code.scalar() == other
    code.release(kept, outer)
    assert [code.scalar().first for _ in range(5)] == [0, 1, 3, 4, 5]


def test_a_scope_that_an_exception_leaves_gives_nothing_back() -> None:
    code = _code((0,))
    with pytest.raises(NoRegistersError), code.scope():
        code.scalar(code.scalar().words)
    with pytest.raises(NoRegistersError):
        code.scalar()


def test_results_are_remembered_for_each_object() -> None:
    calls = []

    @remembered
    def size(node: tuple[int, ...]) -> int:
        calls.append(node)
        return len(node)

    first, second = (1, 2), tuple([1, 2])  # noqa: C409 (an equal one that is another object)
    assert [size(first), size(second), size(first), size(second)] == [2, 2, 2, 2]
    assert len(calls) == 2


def test_objects_that_are_gone_leave_their_ids_to_none_that_is_remembered() -> None:
    # More of them than are kept at once. Nobody else holds them, so that each may be where the one before was.
    length = remembered(len)
    assert all(length((0,) * (count % 100)) == count % 100 for count in range(10_000))
