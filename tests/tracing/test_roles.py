"""Roles of warps by what they execute: of synthetic records, and of a kernel that the embedded device runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from neutrino.tracing import Trace, find_traces
from neutrino.tracing.roles import Kind, Role, WarpRoles, kind_of, roles_of
from tests.tracing.test_timeline import WAITS
from tests.tracing.trace_writer import BLOCK_SCHED, TraceWriter, fill_regions, make_map

WORK = make_map("Work", "array", "warp", {"copy": "u32", "tensor": "u32", "store": "u32", "waited": "u32"})
STEPS = make_map("Steps", "array", "warp", {"clock": "u64", "site": "u32"}, 4)
SITES = [
    {"site": number, "probe": "p", "tracepoint": "x", "line": number, "instruction": text}
    for number, text in enumerate(
        ("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd2, {%r3}], [%r5];",
         "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1}, %rd1, %rd2, 1, 1, 1, 0, 0;", "bar.sync 0;",
         "st.global.f32 [%rd1], %f1;", "wgmma.wait_group.sync.aligned 0;",
         "mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 16384;",
         "@%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 16;")
    )
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("cp.async.ca.shared.global [%r1], [%rd1], 16;", Kind.COPY), ("cp.async.wait_group 0;", Kind.WAIT),
        ("cp.async.commit_group;", None), ("cp.async.mbarrier.arrive.noinc.shared.b64 [%r1];", None),
        ("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r1, %r2}], [%r3];", Kind.STORE),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd1], [%r3], 64;", Kind.STORE),
        ("@!%p3 mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {…}", Kind.TENSOR), ("wmma.mma.sync …", Kind.TENSOR),
        ("tcgen05.mma.cta_group::1.kind::f16 [%r1], …", Kind.TENSOR), ("wgmma.fence.sync.aligned;", None),
        ("\t{ st.global.v4.f32 [%rd1], {%f1, %f2, %f3, %f4};", Kind.STORE), ("st.shared.f32 [%r1], %f1;", None),
        ("st.param.b64 [param0], %rd1;", None), ("red.global.add.f32 [%rd1], %f1;", Kind.STORE),
        ("atom.global.add.u32 %r1, [%rd1], 1;", Kind.ATOMIC), ("atom.shared.add.u32 %r1, [%r2], 1;", None),
        ("clusterlaunchcontrol.try_cancel.async.shared::cta.b128 [%r1], [%r2];", Kind.CLAIM),
        ("mbarrier.try_wait.parity.shared.b64 %p1, [%r1], %r2;", Kind.WAIT), ("bar.warp.sync 0xffffffff;", None),
        ("mbarrier.init.shared.b64 [%r1], 1;", None), ("ld.global.f32 %f1, [%rd1];", None),
        ("barrier.cta.sync.aligned 0;", Kind.WAIT),
        ("v_mfma_f32_32x32x8_f16 a[0:15], v[0:1], v[2:3], a[0:15]", Kind.TENSOR), ("s_barrier", Kind.WAIT),
        ("v_wmma_f32_16x16x16_f16 v[0:7], v[8:15], v[16:23], v[0:7]", Kind.TENSOR),
        ("global_store_dwordx4 v0, v[2:5], s[0:1]", Kind.STORE), ("global_load_dword v0, v1, s[0:1]", None),
        ("buffer_load_dword v0, s[0:3], 0 offen lds", Kind.COPY), ("global_load_lds_dwordx4 v0, s[0:1]", Kind.COPY),
        ("", None), ("\x1b[31m", None),
    ],
)  # fmt: skip
def test_kinds_of_instructions(text: str, kind: Kind | None) -> None:
    assert kind_of(text) is kind


def found(path: Path, maps: list, values: dict, *, blocks: int = 2, warps: int = 4, text: str = "") -> WarpRoles:
    writer = TraceWriter(path)
    writer.kernel(1, "gemm", maps=maps, sites=SITES)
    data = fill_regions(maps, warps, values, blocks=blocks)
    writer.launch(1, (blocks, 1, 1), (32 * warps, 1, 1), data)
    trace = Trace(writer.write())
    if text:
        (path / "kernel" / "1" / "original.ptx").write_text(text)
    return roles_of(trace.kernels[0])


def test_results_of_each_warp_tell_roles_and_who_is_waited_for(tmp_path: Path) -> None:
    rows = [(64, 0, 0, 700), (0, 32, 8, 100), (0, 32, 8, 100), (0, 0, 4, 900)]
    lives = [(1000, 1000, 0), (1000, 1000, 0), (1010, 990, 0), (1500, 1000, 0)]
    roles = found(tmp_path / "t", [WORK, BLOCK_SCHED], {"Work": rows * 2, "BlockSched": lives * 2})
    assert roles.names == {0: "producer", 1: "mma", 2: "mma", 3: "epilogue"}
    assert roles.critical is Role.MMA
    shares = {facts.role: facts.waiting_share for facts in roles.roles}
    assert shares[Role.PRODUCER] == pytest.approx(0.7)
    assert shares[Role.MMA] == pytest.approx(200 / 1990)
    # Together from 1000 to 2000, the epilogue alone until 2500.
    assert roles.overlap == pytest.approx(1000 / 1500)
    text = "\n".join(roles.sentences())
    assert "mma: warps 1 to 2 of a block (128 products on tensor cores, 32 stores to global memory); waits 10 %" in text
    assert "the critical role is mma: it waits 10 % of its time, others more (producer 70 %, epilogue 90 %)" in text


def test_records_of_sites_tell_roles(tmp_path: Path) -> None:
    steps = np.zeros((2, 4, 4), STEPS.dtype)
    steps["clock"] = 5
    steps["site"][:, 0, :2] = (0, 2)
    steps["site"][:, 1, :2] = (1, 2)
    steps["site"][:, 2, :2] = (3, 2)
    steps["site"][:, 3, :1] = 2
    counts = np.array([[2, 2, 2, 1]] * 2)
    values = {"Steps": steps, "Steps.counts": counts, "BlockSched": [(1, 10, 0), (1, 20, 0), (1, 5, 0), (1, 5, 0)] * 2}
    roles = found(tmp_path / "t", [STEPS, BLOCK_SCHED], values)
    assert roles.names == {0: "producer", 1: "mma", 2: "epilogue", 3: "other"}
    # Nothing tells how long they waited: the last one counts, and that is said.
    assert roles.critical is Role.MMA
    assert roles.why == "its warps end last in 100 % of the blocks; how long warps wait is not in the trace"


def test_the_last_record_of_a_warp_is_not_its_end(tmp_path: Path) -> None:
    """As ``dmat`` has of warps: when they accessed memory, and nothing of how long they lived."""
    steps = np.zeros((2, 2, 4), STEPS.dtype)
    steps["clock"][:, :, :2] = [[100, 500], [200, 900]]
    steps["site"][:, 0, :2], steps["site"][:, 1, :2] = 0, 3
    roles = found(tmp_path / "t", [STEPS], {"Steps": steps, "Steps.counts": np.full((2, 2), 2)}, warps=2)
    assert roles.names == {0: "producer", 1: "epilogue"}
    assert (roles.critical, roles.overlap) == (None, None)
    assert [facts.lifetime for facts in roles.roles] == [None, None]


def test_what_goes_with_a_kind_tells_it(tmp_path: Path) -> None:
    """As program_progress has of Hopper's kernels: barriers and waits alone."""
    steps = np.zeros((2, 3, 4), STEPS.dtype)
    steps["clock"] = 5
    steps["site"][:, 0, :2] = (5, 2)
    steps["site"][:, 1, :2] = (4, 2)
    steps["site"][:, 2, :2] = (2, 2)
    # All warps reach what one of them executes under a predicate.
    steps["site"][:, :, 2] = 6
    values = {"Steps": steps, "Steps.counts": np.full((2, 3), 3)}
    roles = found(tmp_path / "t", [STEPS], values, warps=3)
    assert roles.names == {0: "producer", 1: "mma", 2: "other"}
    assert roles.sentences()[0] == "producer: warp 0 of a block (by what goes with it)"


def test_some_blocks_of_many_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neutrino.tracing.roles._MOST_RECORDS", 10)
    monkeypatch.setattr("neutrino.tracing.recorded.MOST_RECORDS", 8)
    steps = np.zeros((50, 2, 4), STEPS.dtype)
    steps["site"][:, 0, 0], steps["site"][:, 1, 0] = 0, 1
    roles = found(tmp_path / "t", [STEPS], {"Steps": steps, "Steps.counts": np.full((50, 2), 1)}, warps=2, blocks=50)
    assert roles.names == {0: "producer", 1: "mma"}
    assert sum(facts.executed[Kind.COPY] for facts in roles.roles if facts.role is Role.PRODUCER) < 50


def test_waiting_is_that_of_ranges_at_barriers(tmp_path: Path) -> None:
    waits = np.zeros((2, 2, 4), WAITS.dtype)
    waits["start"], waits["site"] = 5, 2
    waits["elapsed"][:, :, 0] = [80, 30]
    waits["site"][:, 0, 1], waits["site"][:, 1, 1] = 0, 1
    values = {"Waits": waits, "Waits.counts": np.full((2, 2), 2), "BlockSched": [(1, 100, 0), (1, 100, 0)] * 2}
    roles = found(tmp_path / "t", [WAITS, BLOCK_SCHED], values, warps=2)
    assert {facts.role: facts.waiting_share for facts in roles.roles} == {Role.PRODUCER: 0.8, Role.MMA: 0.3}
    assert roles.critical is Role.MMA


@pytest.mark.parametrize(
    ("rows", "text", "reason"),
    [
        ([(1, 2, 3, 0)] * 4, "", "the warps of a block do the same: they have no roles of their own"),
        ([(1, 2, 3, 0)] * 4, "clusterlaunchcontrol.try_cancel.async.shared::cta.b128 [a], [b];\n",
         "no record says which warps execute requests for a block's work (clusterlaunchcontrol), which the kernel has"),
    ],
)  # fmt: skip
def test_warps_that_do_the_same_have_no_roles(
    rows: list[tuple[int, ...]], text: str, reason: str, tmp_path: Path
) -> None:
    roles = found(tmp_path / "t", [WORK], {"Work": rows * 2}, text=text)
    assert (roles.names, roles.reason) == ({}, reason)


def test_what_no_record_tells_is_said(tmp_path: Path) -> None:
    roles = found(tmp_path / "a", [BLOCK_SCHED], {"BlockSched": [(1, 9, 0)] * 8})
    assert roles.names == {}
    assert roles.reason.startswith("no record says which warp executes what")
    # Stores alone, where the kernel has products: the others may be anything.
    stores = make_map("Work", "array", "warp", {"store": "u32"})
    text = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1}, %rd1, %rd2, 1, 1, 1, 0, 0;\nst.global.u32 [a], b;"
    roles = found(tmp_path / "b", [stores], {"Work": [(0,), (0,), (0,), (7,)] * 2}, text=text)
    assert roles.names == {}
    assert roles.reason == "no record says which warps execute products on tensor cores, which the kernel has"


def test_a_warp_has_a_role_in_nearly_all_blocks(tmp_path: Path) -> None:
    # The first block alone stores something at its end.
    rows = [(5, 0, 1, 0), (0, 5, 1, 0)] + [(5, 0, 0, 0), (0, 5, 0, 0)] * 3 + [(0, 0, 0, 0), (0, 5, 0, 0)]
    roles = found(tmp_path / "t", [WORK], {"Work": rows}, blocks=5, warps=2)
    # Copies in four of five blocks are too few.
    assert roles.names == {0: "other", 1: "mma"}


KERNEL = """.version 8.0
.target sm_90
.address_size 64
.visible .entry staged(.param .u64 input, .param .u64 output)
{
    .reg .pred %p<4>;
    .reg .b32 %r<12>;
    .reg .f32 %f<8>;
    .reg .b64 %rd<8>;
    .shared .align 16 .b8 stage[512];
    ld.param.u64 %rd1, [input];
    ld.param.u64 %rd2, [output];
    cvta.to.global.u64 %rd1, %rd1;
    cvta.to.global.u64 %rd2, %rd2;
    mov.u32 %r1, %tid.x;
    shr.u32 %r2, %r1, 5;
    and.b32 %r3, %r1, 31;
    shl.b32 %r4, %r3, 4;
    mov.u32 %r5, stage;
    add.u32 %r5, %r5, %r4;
    setp.ne.u32 %p1, %r2, 0;
    @%p1 bra CONSUMERS;
    cvt.u64.u32 %rd3, %r4;
    add.u64 %rd4, %rd1, %rd3;
    cp.async.ca.shared.global [%r5], [%rd4], 16;
    cp.async.commit_group;
    cp.async.wait_group 0;
CONSUMERS:
    bar.sync 0;
    setp.ne.u32 %p2, %r2, 1;
    @%p2 bra LAST;
    mov.f32 %f1, 0f00000000;
    mov.f32 %f2, %f1;
    mov.f32 %f3, %f1;
    mov.f32 %f4, %f1;
    ld.shared.u32 %r6, [%r5];
    mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%f1, %f2, %f3, %f4}, {%r6, %r6}, {%r6}, {%f1, %f2, %f3, %f4};
    st.shared.f32 [%r5], %f1;
LAST:
    bar.sync 0;
    setp.ne.u32 %p3, %r2, 2;
    @%p3 bra DONE;
    ld.shared.f32 %f5, [%r5];
    cvt.u64.u32 %rd5, %r4;
    add.u64 %rd6, %rd2, %rd5;
    st.global.f32 [%rd6], %f5;
DONE:
    ret;
}
"""
PROBE = """
import neutrino.language as nl
from neutrino import Map, probe

copies: nl.u32 = 0
products: nl.u32 = 0
stores: nl.u32 = 0


@Map(level="thread", type="sum", per="warp")
class Work:
    copy: nl.u32
    tensor: nl.u32
    store: nl.u32


@probe(pos="cp.async.shared.global", level="thread", before=True)
def copying():
    copies += 1


@probe(pos="tensor", level="thread", before=True)
def multiplying():
    products += 1


@probe(pos="st.global", level="thread", before=True)
def storing():
    stores += 1


@probe(pos="kernel", level="thread", after=True)
def end():
    Work.save(copies, products, stores)
"""


def test_a_kernel_whose_warps_have_roles(tmp_path: Path) -> None:
    (tmp_path / "staged.ptx").write_text(KERNEL)
    (tmp_path / "roles.py").write_text(PROBE)
    subprocess.run(
        [sys.executable, "-m", "neutrino.cli.probe", "try", "roles.py", "warp_timeline", "staged.ptx", "--block", "128",
         "--grid", "3", "--tracedir", "trace"], cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    (path,) = find_traces(tmp_path / "trace")
    roles = roles_of(Trace(path).kernels[0])
    assert roles.names == {0: "producer", 1: "mma", 2: "epilogue", 3: "other"}
    assert roles.reason == ""
    assert roles.critical is not None
    executed = {facts.role: facts.executed for facts in roles.roles}
    assert executed[Role.PRODUCER] == {Kind.COPY: 96}
    assert executed[Role.MMA] == {Kind.TENSOR: 96}
    assert executed[Role.EPILOGUE] == {Kind.STORE: 96}
