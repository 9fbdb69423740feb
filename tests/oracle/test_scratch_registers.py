"""Registers of inserted code that are used again never hold two values at once, whatever probes share a twin.

A twin is written twice: as it is, and with a register of its own for each value. Each read has to see the same
instructions' results in both texts.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set

import pytest

from neutrino.ptx.analysis.linkage import Linkage
from neutrino.ptx.instrument.registers import Scratch
from neutrino.ptx.isa.instruction import Instruction
from neutrino.ptx.text.module import parse
from tests.net_of_pairs import OPTIONS, SHIPPED, Defines, covering, kernel, loaded, some
from tests.oracle.bench import Kernel, make_twins
from tests.oracle.dense_kernels import dense

_SCRATCH = re.compile(r"%neutrino_ta?[hwdq]\d+\b")
_DEFINES: Mapping[str, Defines] = {name: options[0] for name, options in OPTIONS.items()}
# Any two shipped probes are in one of these.
_ROWS = covering(SHIPPED, 7)


def _instructions(text: str) -> Iterator[Instruction]:
    module = parse(text)
    linkage = Linkage(module)
    for function in (*module.entries, *module.functions):
        for statement in linkage.body(function):
            if statement.instruction is not None:
                yield statement.instruction


def _read(one: Instruction) -> list[str]:
    return _SCRATCH.findall(" ".join((one.predicate or "", *one.sources)))


def _wrong_reads(text: str, apart: str) -> list[str]:
    """The instructions of a text that read something else than in the one in which each value has its register."""
    found = []
    # By register, the numbers of the instructions that may have written what it holds.
    holds: tuple[defaultdict[str, Set[int]], ...] = (defaultdict(frozenset), defaultdict(frozenset))
    for number, both in enumerate(zip(_instructions(text), _instructions(apart), strict=True)):
        assert len({_SCRATCH.sub("", one.text) for one in both}) == 1
        for names in zip(*map(_read, both), strict=True):
            seen, meant = (known[name] for known, name in zip(holds, names, strict=True))
            # What was there before the first of them is the register's past.
            if not meant <= seen or any(writer > min(meant) for writer in seen - meant if meant):
                found.append(both[0].text)
        for known, one in zip(holds, both, strict=True):
            for name in filter(_SCRATCH.fullmatch, one.written):
                known[name] = (known[name] if one.predicate is not None else frozenset()) | {number}
    return found


def _text(one: Kernel, names: Sequence[str], defines: Mapping[str, Defines]) -> str | None:
    made = make_twins(one, loaded(names, defines))
    return made.render() if made.kernels else None


def _wrong(one: Kernel, names: Sequence[str], defines: Mapping[str, Defines]) -> list[str]:
    text = _text(one, names, defines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scratch, "release", lambda self, mark: None)
        apart = _text(one, names, defines)
    return _wrong_reads(text, apart) if text is not None and apart is not None else [""] * (text != apart)


@pytest.mark.parametrize("name", ["dense38", "fused21", "half_pairs", "calls"])
def test_probes_together(name: str) -> None:
    assert {names: found for names in _ROWS if (found := _wrong(kernel(name), names, _DEFINES))} == {}


@pytest.mark.parametrize("number", range(600, 610))
def test_kernels_and_probes_by_chance(number: int) -> None:
    defines, rows = some(random.Random(number), 4)
    one = dense(number, fuses=number % 2 == 1)
    assert {names: found for names in rows if (found := _wrong(one, names, defines))} == {}


def test_registers_that_are_not_apart_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scratch, "apart", contextlib.nullcontext)
    assert _wrong(dense(38), ("nan_finder", "value_watch"), {}) != []
    assert _wrong(dense(38), ("dmat", "nan_finder"), {}) != []
