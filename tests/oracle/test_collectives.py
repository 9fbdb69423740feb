"""Instructions between lanes in snippets: they see exactly the lanes that are there, and change nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.oracle.assembling import arithmetic, assemble
from tests.oracle.bench import Bench, skip_of
from tests.oracle.probes import Probe, probe_set
from tests.oracle.test_matrix import ALL

TEXT = """
[map.Lanes]
type = "sum"
level = "thread"
data = { threads = "u64", by_leaders = "u64", wrong = "u64" }
[probe.lanes]
position = "ld | st | setp | add | red | atom"
level = "thread"
LANES_KEY
before = \"\"\"
.reg .b32 %mask, %seen, %lowest, %own, %one = 1, %lane, %leader_lane, %bad;
.reg .pred %leader, %differs, %all;
.reg .u64 %count, %faults;
mov.b32 %mask, LANES;
match.any.sync.b32 %seen, %one, LANES;
xor.b32 %bad, %seen, %mask;
vote.sync.ballot.b32 %seen, 1, LANES;
xor.b32 %seen, %seen, %mask;
or.b32 %bad, %bad, %seen;
popc.b32 %own, %mask;
redux.sync.add.u32 %seen, 1, LANES;
xor.b32 %seen, %seen, %own;
or.b32 %bad, %bad, %seen;
match.all.sync.b32 %seen|%all, %one, LANES;
xor.b32 %seen, %seen, %mask;
or.b32 %bad, %bad, %seen;
neg.s32 %lowest, %mask;
and.b32 %lowest, %lowest, %mask;
mov.u32 %seen, %lanemask_eq;
setp.eq.u32 %leader, %seen, %lowest;
bfind.u32 %leader_lane, %lowest;
mov.u32 %lane, %laneid;
shfl.sync.idx.b32 %seen, %lane, %leader_lane, 31, LANES;
xor.b32 %seen, %seen, %leader_lane;
or.b32 %bad, %bad, %seen;
setp.ne.or.u32 %differs, %bad, 0, !%all;
selp.u64 %faults, 1, 0, %differs;
cvt.u64.u32 %count, %own;
selp.u64 %count, %count, 0, %leader;
SAVE [ Lanes ] { 1, %count, %faults };
\"\"\"
"""
KERNELS = (
    "branches", "choices", "exits", "gcd", "maximum_by_swap", "shuffles", "switch_table", "votes",
)  # fmt: skip
"""Small ones in which warps part in many ways: loops, guards, ends, jump tables, waiting for others."""


@pytest.mark.parametrize(("lanes", "seed"), [("executing", None), ("reaching", 1)])
def test_they_see_the_lanes_that_are_there(lanes: str, seed: int | None) -> None:
    """Counted by the leaders of what comes together, the threads are as many as they are one by one."""
    probe = Probe("lanes", (), text=TEXT.replace("LANES_KEY", f'lanes = "{lanes}"'))
    probe_set(probe)
    for name in KERNELS:
        bench = Bench(ALL[name], (), (seed,))
        twins = bench.twins(probe)
        assert skip_of(twins) is None, name
        bench.place(seed).device.step_limit = 1 << 22
        views, results = bench.run(probe, twins.kernels[0], twins.render(), seed)
        total = views["Lanes"].total()
        assert total["wrong"] == 0, name
        assert total["threads"] == total["by_leaders"] > 0, name
        for one, other in zip(results, bench.results(None), strict=True):
            assert bench.comparable(one) == bench.comparable(other), name


@pytest.mark.usefixtures("ptxas")
def test_they_assemble() -> None:
    probe = Probe("lanes", (), text=TEXT.replace("LANES_KEY", ""))
    for name in ("branches", "votes"):
        cubin, said = assemble(Bench(ALL[name], ()).twins(probe).render(), quick=False)
        assert cubin, said


@pytest.mark.usefixtures("ptxas")
def test_they_stand_between_a_product_and_its_sum() -> None:
    """Of f32, where they have no predicate; the pairs stay fused, as counted in the machine code."""
    probe = Probe("lanes", (), text=TEXT.replace("LANES_KEY", ""))
    bench = Bench(ALL["products"], (), (1,))
    twins = bench.twins(probe)
    assert skip_of(twins) is None
    original = arithmetic(ALL["products"].text, ALL["products"].entry)
    assert original["FFMA"] == 3
    assert arithmetic(twins.render(), twins.kernels[0].twin_name) == original
    views, results = bench.run(probe, twins.kernels[0], twins.render(), 1)
    total = views["Lanes"].total()
    assert total["wrong"] == 0
    assert total["threads"] == total["by_leaders"] > 0
    for one, other in zip(results, bench.results(None), strict=True):
        assert bench.comparable(one) == bench.comparable(other)


def test_under_a_predicate_they_do_not_part_a_product_from_its_sum() -> None:
    """For ptxas they end a basic block then, and it fuses within one only."""
    text = TEXT.replace("LANES_KEY", "")
    kernel = ALL["products"]
    predicated = kernel.text.replace("add.f32 %f4,", "setp.ne.u32 %p1, %r1, 99;\n\t@%p1 add.f32 %f4,")
    predicated = predicated.replace("\t.reg .f32", "\t.reg .pred %p<2>;\n\t.reg .f32", 1)
    skip = skip_of(Bench(replace(kernel, text=predicated), ()).twins(Probe("lanes", (), text=text)))
    assert skip is not None
    assert "between a product and its sum" in skip.detail
