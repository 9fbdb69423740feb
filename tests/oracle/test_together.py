"""Probes in one twin record what each records alone. ``python -m tests.net_of_pairs`` takes more of them."""

from __future__ import annotations

import contextlib
from functools import cache
from itertools import combinations
from typing import Any

import pytest

from neutrino.ptx.instrument.registers import Scratch
from neutrino.ptx.instrument.unlikely_code import UnlikelyCode
from tests.net_of_pairs import OPTIONS, SHIPPED, WAITING, Net, covering, kernel
from tests.oracle.assembling import assemble
from tests.oracle.dense_kernels import dense

_SIZE = 7
_ROWS = covering(SHIPPED, _SIZE)


@cache
def net(name: str) -> Net:
    return Net(kernel(name), {probe: options[0] for probe, options in OPTIONS.items()})


def test_any_two_probes_are_together() -> None:
    together = {frozenset(pair) for row in _ROWS for pair in combinations(row, 2)}
    assert together == {frozenset(pair) for pair in combinations(SHIPPED, 2)}
    assert {len(set(row)) for row in _ROWS} == {_SIZE}


@pytest.mark.parametrize("names", _ROWS, ids=" ".join)
def test_several_probes_record_what_each_does(names: tuple[str, ...]) -> None:
    assert net("dense50").faults(names) == []
    assert net("dense50").refused == {}


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("names", [*combinations(WAITING, 2), *combinations(WAITING[::-1], 2)], ids=" ".join)
@pytest.mark.parametrize("number", [28, 38])
def test_probes_whose_code_waits(number: int, names: tuple[str, ...]) -> None:
    assert net(f"dense{number}").faults(names) == []
    assert net(f"dense{number}").refused == {}


@pytest.mark.parametrize(
    ("number", "names"), [(28, ("dmat", "nan_finder")), (38, ("dmat", "nan_finder")), (26, ("dmat", "value_watch"))]
)
def test_registers_of_saves_that_wait_are_seen_to_be_lost(
    number: int, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With code that waits in registers in which saves wait, as it once did."""
    one = net(f"dense{number}")
    for name in names:
        one.alone(name)
    monkeypatch.setattr(Scratch, "apart", contextlib.nullcontext)
    assert [fault.partition(":")[0] for fault in one.faults(names)] == ["GlobalAccesses"]


@pytest.mark.parametrize(("number", "missed"), [(64, "FirstNaN"), (47, "ValueCounts")])
def test_code_above_its_own_test_is_seen(number: int, missed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With unlikely code of the first of two probes inserted above its test at one site, as it once was."""
    one, names = net(f"dense{number}"), ("nan_finder", "value_watch")
    for name in names:
        one.alone(name)
    note = UnlikelyCode._note

    def above(self: UnlikelyCode, waiting: Any, spot: int, index: int, statement: Any, lines: Any) -> None:
        note(self, waiting, spot, index, statement, None)

    monkeypatch.setattr(UnlikelyCode, "_note", above)
    assert missed in {fault.partition(":")[0] for fault in one.faults(names) + one.faults(names[::-1])}


@pytest.mark.usefixtures("ptxas")
@pytest.mark.parametrize("number", range(8))
def test_generated_kernels_assemble(number: int) -> None:
    cubin, said = assemble(dense(number, size=9).text)
    assert cubin, said
