"""Which threads go when: what is never ordered shows, what waits for others ends, the same seed does the same."""

from __future__ import annotations

import numpy as np
import pytest

from neutrino.emulator.device import Device
from neutrino.errors import DeviceFaultError, FaultKind
from tests.emulator.kernels_by_hand import Kernel, module_text
from tests.work import counted

_LOCK = """
    ld.param.u64 %d3, [p1];
AGAIN:
    atom.global.acquire.gpu.cas.b32 %r4, [%d3], 0, 1;
    setp.ne.u32 %p0, %r4, 0;
    @%p0 bra AGAIN;
    ld.global.u32 %r5, [%d0];
    add.u32 %r5, %r5, 1;
    st.global.u32 [%d0], %r5;
    atom.global.release.gpu.exch.b32 %r4, [%d3], 0;
"""

# Every block counts itself, then waits until all have.
_GRID_WAIT = """
    ld.param.u64 %d3, [p1];
    bar.sync 0;
    mov.u32 %r6, %nctaid.x;
    setp.ne.u32 %p0, %r3, 0;
    @%p0 bra MEET;
    atom.global.add.u32 %r4, [%d3], 1;
WAIT:
    ld.acquire.gpu.global.u32 %r5, [%d3];
    setp.lt.u32 %p1, %r5, %r6;
    @%p1 bra WAIT;
MEET:
    bar.sync 0;
    ld.global.u32 %r7, [%d3];
    st.global.u32 [%d1], %r7;
"""

_NEIGHBOUR = """
    mov.u32 %r5, room;
    shl.b32 %r6, %r3, 2;
    add.u32 %r7, %r5, %r6;
    st.shared.u32 [%r7], %r3;
    {BARRIER}
    mov.u32 %r8, 252;
    sub.u32 %r8, %r8, %r6;
    add.u32 %r8, %r8, %r5;
    ld.shared.u32 %r9, [%r8];
    st.global.u32 [%d1], %r9;
"""
_ROOM = ".shared .align 4 .b8 room[256];"


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_lock_that_threads_of_one_warp_fight_for(seed: int | None) -> None:
    counter, lock = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    Kernel(_LOCK, parameters=2, seed=seed, step_limit=1_000_000).run(counter, lock, grid=4, block=64)
    assert counter[0] == 256
    assert lock[0] == 0


@pytest.mark.parametrize("turns", [10, 100, 500])
@pytest.mark.parametrize("atomics", [1, 3])
def test_lanes_of_a_loop_that_counts_meet_those_that_left_it(turns: int, atomics: int) -> None:
    """However often each turn touches what others may wait for; and each warp for itself."""
    body = f"""
    ld.param.u64 %d3, [p1];
    and.b32 %r4, %r3, 31;
    setp.eq.u32 %p0, %r4, 7;
    mov.u32 %r5, 1;
    shr.u32 %r6, %r3, 5;
    add.u32 %r6, %r6, 1;
    @%p0 mul.lo.u32 %r5, %r6, {turns};
AGAIN:
    {"atom.global.add.u32 %r7, [%d3], 1;" * atomics}
    sub.u32 %r5, %r5, 1;
    setp.ne.u32 %p1, %r5, 0;
    @%p1 bra AGAIN;
    activemask.b32 %r8;
    st.global.u32 [%d1], %r8;
    """
    masks, count = np.zeros(64, np.uint32), np.zeros(1, np.uint32)
    Kernel(body, parameters=2).run(masks, count, block=64)
    assert count[0] == atomics * (62 + 3 * turns)
    assert (masks == 0xFFFFFFFF).all()


@pytest.mark.parametrize("seed", [None, 1])
def test_blocks_wait_for_blocks_of_later_batches(seed: int | None) -> None:
    # More blocks than one batch takes, but no more than could be resident.
    results, arrived = np.zeros(1056 * 32, np.uint32), np.zeros(1, np.uint32)
    Kernel(_GRID_WAIT, parameters=2, seed=seed, memory=1 << 24).run(results, arrived, grid=1056, block=32)
    assert (results == 1056).all()


def test_blocks_that_cannot_be_resident_are_not_waited_for_for_ever() -> None:
    kernel = Kernel(_GRID_WAIT, parameters=2, step_limit=3000, memory=1 << 24)
    with pytest.raises(DeviceFaultError) as caught:
        kernel.run(np.zeros(5000 * 32, np.uint32), np.zeros(1, np.uint32), grid=5000, block=32)
    assert caught.value.kind is FaultKind.STEP_LIMIT


def test_a_dropped_barrier_shows() -> None:
    expected = np.arange(64, dtype=np.uint32)[::-1]

    def noticed(barrier: str, seed: int | None) -> bool:
        results = np.zeros(64, np.uint32)
        Kernel(_NEIGHBOUR.replace("{BARRIER}", barrier), before=_ROOM, seed=seed).run(results, block=64)
        return not np.array_equal(results, expected)

    assert not any(noticed("bar.sync 0;", seed) for seed in (None, *range(20)))
    assert sum(noticed("", seed) for seed in range(20)) >= 8


def test_the_same_seed_does_the_same() -> None:
    def order(seed: int) -> bytes:
        results, counter = np.zeros(256, np.uint32), np.zeros(1, np.uint32)
        body = "    ld.param.u64 %d3, [p1];\n    atom.global.add.u32 %r4, [%d3], 1;\n    st.global.u32 [%d1], %r4;"
        Kernel(body, parameters=2, seed=seed).run(results, counter, grid=4, block=64)
        assert sorted(results) == list(range(256))
        return results.tobytes()

    assert order(3) == order(3)
    assert len({order(seed) for seed in range(5)}) > 1


def test_launches_take_turns() -> None:
    # One spins on a flag that the other one sets.
    waiting = module_text("AGAIN:\n    ld.volatile.global.u32 %r4, [%d0];\n    setp.eq.u32 %p0, %r4, 0;\n"
                          "    @%p0 bra AGAIN;")
    setting = module_text("    st.volatile.global.u32 [%d0], 1;")
    device = Device(memory=1 << 20)
    flag = device.allocate(4)
    device.write(flag, np.zeros(1, np.uint32))
    parameters = flag.to_bytes(8, "little")
    first = device.begin(device.load(waiting).functions["k"], (1, 1, 1), (32, 1, 1), parameters)
    assert not first.advance(100)
    assert not first.advance(100)
    second = device.begin(device.load(setting).functions["k"], (1, 1, 1), (1, 1, 1), parameters)
    assert second.advance(100)
    assert first.advance(100)
    assert first.statistics.steps > 200


def test_threads_meet_again_after_a_branch() -> None:
    # Every thread leaves the loop in its own time: what follows runs once for all of them.
    body = ("    mov.u32 %r4, %r3;\nAGAIN:\n    setp.eq.u32 %p0, %r4, 0;\n    @%p0 bra OUT;\n    sub.u32 %r4, %r4, 1;\n"
            "    bra AGAIN;\nOUT:\n    activemask.b32 %r5;\n    st.global.u32 [%d1], %r5;")
    results = np.zeros(32, np.uint32)
    Kernel(body).run(results)
    assert (results == 0xFFFFFFFF).all()


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_a_barrier_of_a_warp_in_both_branches(seed: int | None) -> None:
    body = """
    mov.u32 %r4, room;
    shl.b32 %r5, %r3, 2;
    add.u32 %r5, %r5, %r4;
    xor.b32 %r6, %r3, 31;
    shl.b32 %r6, %r6, 2;
    add.u32 %r6, %r6, %r4;
    st.shared.u32 [%r5], %r3;
    setp.lt.u32 %p0, %r3, 16;
    @%p0 bra LOW;
    bar.warp.sync -1;
    ld.shared.u32 %r7, [%r6];
    bra DONE;
LOW:
    add.u32 %r8, %r3, 1;
    bar.warp.sync 0xffffffff;
    ld.shared.u32 %r7, [%r6];
DONE:
    st.global.u32 [%d1], %r7;
    """
    results = np.zeros(32, np.uint32)
    Kernel(body, before=_ROOM, seed=seed).run(results)
    assert results.tolist() == [thread ^ 31 for thread in range(32)]


def test_threads_that_ended_are_no_partners() -> None:
    # The others spin until the shuffle is done.
    body = """
    ld.param.u64 %d3, [p1];
    setp.gt.u32 %p0, %r3, 15;
    @%p0 bra SPIN;
    setp.gt.u32 %p1, %r3, 7;
    @%p1 exit;
    shfl.sync.idx.b32 %r4, %r3, 3, 31, 0xffff;
    st.global.u32 [%d1], %r4;
    st.volatile.global.u32 [%d3], 1;
    exit;
SPIN:
    ld.volatile.global.u32 %r5, [%d3];
    setp.eq.u32 %p2, %r5, 0;
    @%p2 bra SPIN;
    """
    for seed in (None, 1, 2):
        results, flag = np.zeros(32, np.uint32), np.zeros(1, np.uint32)
        Kernel(body, parameters=2, seed=seed).run(results, flag)
        assert results.tolist() == [3] * 8 + [0] * 24


def test_clocks_only_go_forward() -> None:
    body = ("    mov.u64 %d4, %clock64;\n    mov.u64 %d5, %globaltimer;\n    mov.u64 %d6, %clock64;\n"
            "    mov.u32 %r5, 0;\nAGAIN:\n    add.u32 %r5, %r5, 1;\n    setp.lt.u32 %p0, %r5, %r3;\n"
            "    @%p0 bra AGAIN;\n    mov.u64 %d7, %clock64;\n    mov.u64 %d8, %globaltimer;\n"
            "    setp.lt.u64 %p1, %d4, %d6;\n"
            "    setp.lt.and.u64 %p1, %d6, %d7, %p1;\n    setp.lt.and.u64 %p1, %d5, %d8, %p1;\n"
            "    selp.u32 %r6, 1, 0, %p1;\n    st.global.u32 [%d1], %r6;")
    for seed in (None, 1):
        results = np.zeros(64, np.uint32)
        Kernel(body, seed=seed).run(results, grid=2)
        assert results.all()


def test_a_small_launch_needs_few_steps() -> None:
    device = Device(memory=1 << 20)
    function = device.load(module_text("    st.global.u32 [%d1], %r0;")).functions["k"]
    array = device.allocate(128)
    device.launch(function, (1, 1, 1), (32, 1, 1), [array])
    with counted(lines=True) as work:
        device.launch(function, (1, 1, 1), (32, 1, 1), [array])
    assert work.calls < 350
    assert work.lines < 900


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("poll", ["atom.global.add.u32 %r6, [%d0], 0;", "ld.global.u32 %r6, [%d0];"])
def test_blocks_of_several_batches_wait_for_each_other(poll: str, seed: int | None) -> None:
    body = f"""
    setp.ne.u32 %p1, %r3, 0;
    @%p1 bra END;
    red.global.add.u32 [%d0], 1;
WAIT:
    {poll}
    setp.lt.u32 %p2, %r6, 20;
    @%p2 bra WAIT;
END:
    """
    count = np.zeros(1, np.uint32)
    Kernel(body, seed=seed, step_limit=500_000).run(count, grid=20, block=1024)
    assert count[0] == 20


def test_most_seeds_show_that_two_warps_need_a_barrier() -> None:
    body = """
    mov.u32 %r5, room;
    shl.b32 %r6, %r3, 2;
    add.u32 %r7, %r5, %r6;
    st.shared.u32 [%r7], %r3;
    xor.b32 %r6, %r6, 128;
    add.u32 %r7, %r5, %r6;
    ld.shared.u32 %r8, [%r7];
    st.global.u32 [%d1], %r8;
    """
    noticed = 0
    for seed in range(20):
        out = np.zeros(64, np.uint32)
        Kernel(body, before=".shared .u32 room[64];", seed=seed).run(out, block=64)
        noticed += not np.array_equal(out, np.arange(64) ^ 32)
    assert noticed >= 12
