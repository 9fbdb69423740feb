"""Threads that meet in numbers other than asked for: named barriers, member masks, mbarriers, absent sources."""

from __future__ import annotations

import numpy as np
import pytest

from neutrino.errors import DeviceFaultError, FaultKind
from tests.emulator.kernels_by_hand import Kernel

_SEEDS = [None, 1, 2]


@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.parametrize(
    "body",
    [
        # Three warps at a barrier for two: the third one waits for a fourth.
        "bar.sync 1, 64;",
        "mov.u32 %r5, 0; bar.sync 1, %r5;",
        "bar.sync 1, 40;",
        "setp.lt.u32 %p1, %r3, 32; @%p1 bra ONE; bar.sync 1, 64; bra END; ONE: bar.sync 1, 96; END:",
        "vote.sync.ballot.b32 %r5, 1, 0xffff;",
        "mov.u32 %r5, 7; mov.u32 %r6, 0xffff0000; shfl.sync.idx.b32 %r7, %r5, 16, 31, %r6;",
        "bar.warp.sync 0;",
        "setp.lt.u32 %p1, %r3, 16; @%p1 bra ONE; bar.sync 0; bra END; ONE: bar.sync 0; END:",
    ],
)
def test_wrong_numbers_are_told(body: str, seed: int | None) -> None:
    with pytest.raises(DeviceFaultError) as raised:
        Kernel(body, seed=seed).run(np.zeros(96, np.uint32), block=96)
    assert raised.value.kind is FaultKind.DEADLOCK


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_barrier_for_two_warps_serves_four_in_turns(seed: int | None) -> None:
    out = np.zeros(256, np.uint32)
    Kernel("bar.sync 1, 64; st.global.u32 [%d1], 1;", seed=seed).run(out, block=128, grid=2)
    assert (out == 1).all()


@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.parametrize(("count", "threads"), [(8, 24), (1, 32), (1, 33), (16, 64), (12, 40)])
def test_phases_that_end_within_one_instruction(count: int, threads: int, seed: int | None) -> None:
    body = f"""
    mov.u32 %r5, meeting;
    setp.eq.u32 %p1, %r3, 0;
    @%p1 mbarrier.init.shared.b64 [%r5], {count};
    bar.sync 0;
    mbarrier.arrive.shared.b64 %d5, [%r5];
    mbarrier.pending_count.b64 %r6, %d5;
    bar.sync 0;
    mbarrier.test_wait.parity.shared.b64 %p2, [%r5], 0;
    selp.u32 %r7, 256, 0, %p2;
    or.b32 %r6, %r6, %r7;
    st.global.u32 [%d1], %r6;
    """
    out = np.zeros(threads, np.uint32)
    Kernel(body, before=".shared .align 8 .b64 meeting;", seed=seed).run(out, block=threads)
    # Each thread saw the count that the ones before it had left; each phase that ended turned the parity.
    assert sorted((out & 255).tolist()) == sorted(count - number % count for number in range(threads))
    assert (out >> 8 == threads // count % 2).all()


@pytest.mark.parametrize("seed", _SEEDS)
@pytest.mark.parametrize("ends", ["", "setp.ge.u32 %p2, %r3, 20; @%p2 exit;"])
def test_a_shuffle_from_an_absent_thread_gives_no_plausible_number(ends: str, seed: int | None) -> None:
    body = f"mov.u32 %r5, 0; {ends} shfl.sync.down.b32 %r6, %r5, 16, 31, 0xffffffff; st.global.u32 [%d1], %r6;"
    out = np.zeros(20 if not ends else 32, np.uint32)
    Kernel(body, seed=seed).run(out, block=out.size)
    assert (out[:4] == 0).all()
    assert (out[4:16] == 0xA5A5A5A5).all()


@pytest.mark.parametrize("seed", _SEEDS)
def test_a_barrier_that_is_not_aligned_is_reached_from_two_places(seed: int | None) -> None:
    out = np.zeros(64, np.uint32)
    body = "setp.lt.u32 %p1, %r3, 16; @%p1 bra ONE; barrier.sync 0; bra END; ONE: barrier.sync 0; END:"
    Kernel(f"{body} st.global.u32 [%d1], 1;", seed=seed).run(out, block=64)
    assert (out == 1).all()
