"""What an observer is called with, against what a kernel does by its text."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from neutrino.emulator.address_space import Space
from neutrino.emulator.text import Statement
from tests.emulator.kernels_by_hand import Kernel

_BODY = """
    setp.lt.u32 %p0, %r3, 10;
    @%p0 add.u32 %r4, %r3, 1;
    ld.global.u32 %r5, [%d1];
    @!%p0 st.global.u32 [%d1], %r5;
    mov.u32 %r6, room;
    st.shared.u32 [%r6+4], %r5;
    cvt.u64.u32 %d3, %r6;
    cvta.shared.u64 %d3, %d3;
    ld.u32 %r7, [%d3+4];
    ld.const.u32 %r8, [numbers+8];
    .local .align 8 .b8 mine[16];
    mov.u64 %d4, mine;
    cvta.local.u64 %d4, %d4;
    st.v2.u32 [%d4+8], {%r5, %r5};
    setp.lt.u32 %p1, %r3, 32;
    selp.b32 %r10, 0xfffffc00, 0xffffffff, %p1;
    @%p0 bra SHORT;
    shfl.sync.idx.b32 %r9, %r3, 31, 31, %r10;
SHORT:
    bar.sync 0;
"""
_BEFORE = ".shared .align 4 .b8 room[64];\n.const .align 4 .b32 numbers[4] = {1, 2, 3, 4};"


class Recorder:
    def __init__(self) -> None:
        self.ran: Counter[tuple[str, int]] = Counter()
        self.lines: dict[str, int] = {}
        self.accesses: list[tuple[str, NDArray[Any], NDArray[Any], int, NDArray[Any]]] = []

    def executed(self, statement: Statement, threads: NDArray[np.int64]) -> None:
        self.lines[statement.text] = statement.line
        for thread in threads.tolist():
            self.ran[statement.text, thread] += 1

    def accessed(
        self,
        statement: Statement,
        threads: NDArray[np.int64],
        addresses: NDArray[np.uint64],
        size: int,
        spaces: NDArray[np.uint8],
    ) -> None:
        self.accesses.append((statement.opcode, threads, addresses, size, spaces))


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("block", [32, 40])
def test_what_ran_and_what_was_touched(seed: int | None, block: int) -> None:
    kernel = Kernel(_BODY, before=_BEFORE, seed=seed)
    recorder = Recorder()
    grid = 2
    kernel.run(np.zeros(grid * block, np.uint32), grid=grid, block=block, observer=recorder)
    everyone = set(range(grid * block))
    low = {thread for thread in everyone if thread % block < 10}

    def ran(text: str) -> set[int]:
        found = {thread: count for (one, thread), count in recorder.ran.items() if one == text}
        assert set(found.values()) <= {1}
        assert kernel.text.splitlines()[recorder.lines[text] - 1].strip() == text
        return set(found)

    assert ran("@%p0 add.u32 %r4, %r3, 1;") == low
    assert ran("@!%p0 st.global.u32 [%d1], %r5;") == everyone - low
    assert ran("@%p0 bra SHORT;") == low
    assert ran("shfl.sync.idx.b32 %r9, %r3, 31, 31, %r10;") == everyone - low
    assert ran("bar.sync 0;") == everyone
    assert ran("ret;") == everyone

    def touched(opcode: str) -> tuple[set[int], set[int], set[int]]:
        found = [access for access in recorder.accesses if access[0] == opcode]
        threads = [thread for access in found for thread in access[1].tolist()]
        assert len(threads) == len(set(threads))
        return (
            set(threads),
            {access[3] for access in found},
            {space for access in found for space in access[4].tolist()},
        )

    assert touched("ld.global.u32") == (everyone, {4}, {Space.GLOBAL})
    assert touched("st.global.u32") == (everyone - low, {4}, {Space.GLOBAL})
    assert touched("ld.u32") == (everyone, {4}, {Space.SHARED})
    assert touched("ld.const.u32") == (everyone, {4}, {Space.CONST})
    assert touched("st.v2.u32") == (everyone, {8}, {Space.LOCAL})
    assert touched("ld.param.u64") == (everyone, {8}, {Space.PARAM})
    addresses = np.concatenate([access[2] for access in recorder.accesses if access[0] == "ld.global.u32"])
    assert sorted((addresses - addresses.min()).tolist()) == [4 * thread for thread in sorted(everyone)]


def test_generic_addresses_of_several_spaces_in_one_access() -> None:
    body = """
    mov.u64 %d3, room;
    cvta.shared.u64 %d3, %d3;
    and.b32 %r4, %r3, 1;
    setp.eq.u32 %p0, %r4, 1;
    selp.u64 %d4, %d1, %d3, %p0;
    st.u32 [%d4], 9;
    ld.u32 %r5, [%d4];
    st.global.u32 [%d1], %r5;
    """
    recorder = Recorder()
    array = np.zeros(32, np.uint32)
    Kernel(body, before=_BEFORE).run(array, observer=recorder)
    assert (array == 9).all()
    spaces = {}
    for opcode, threads, _, _, found in recorder.accesses:
        if opcode == "ld.u32":
            spaces.update(zip(threads.tolist(), found.tolist(), strict=True))
    assert spaces == {thread: Space.GLOBAL if thread % 2 else Space.SHARED for thread in range(32)}


def test_observed_results_are_the_same() -> None:
    plain, observed = np.arange(64, dtype=np.uint32), np.arange(64, dtype=np.uint32)
    kernel = Kernel(_BODY, before=_BEFORE)
    first = kernel.run(plain, grid=2)
    second = kernel.run(observed, grid=2, observer=Recorder())
    assert np.array_equal(plain, observed)
    assert first == second
