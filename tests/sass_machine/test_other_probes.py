"""Twins in machine code with probes that no GPU has shown, run by the interpreter: the kernel's results, the records
of the twin in PTX, and no register used too early.

What a record says of the machine, as cycles, differs; so the probes of kernels' ends save numbers of lanes.
"""

from __future__ import annotations

import pytest

from tests.sass_machine.launching import Host, records_of
from tests.sass_machine.test_twins import few_blocks
from tests.sass_twin.listing import tool

_CASES = {"vecadd": (2, 256), "collatz": (1, 64), "reduce_shuffle": (2, 256)}
AT_ENDS = (
    "kernel { @most = max(lane); @threads = count() }", "kernel { @least = min(lane); @mean = avg(lane) }",
    "kernel { @lanes = hist(lane) }", "kernel /leader/ { @sum = sum(popc(LANES)) }",
)  # fmt: skip
AT_ACCESSES = (
    "coalescing", "reuse_distance", "ld.global { @n = count(); @b = sum(BYTES) }", "ld.global { @bytes = hist(BYTES) }",
    "st.global { @first = min(ADDR); @last = max(ADDR) }", "ld.global /leader/ { @lanes = avg(popc(LANES)) }",
    "ld.global /warpid == 0 and lane < 3/ { @by_lane[lane] = sum(BYTES) }",
    "st.global /ADDR & 4 == 0/ { @pages = topk(ADDR >> 12, 3) }", "ld.global { @sectors = sum(SECTORS) }",
    "ld.global | st.global { @[SITE] = count() }", "ld.global { print('{:#x}', ADDR) }",
)  # fmt: skip
AT_ATOMICS = ("atomic_contention", "atom.global | red.global { @n = count(); @at = max(ADDR) }")
_PAIRS = [
    *(("vecadd", probe) for probe in (*AT_ENDS, *AT_ACCESSES)),
    *(("collatz", probe) for probe in (*AT_ENDS[:2], *AT_ACCESSES)),
    *(("reduce_shuffle", probe) for probe in (*AT_ENDS, *AT_ATOMICS)),
]


@pytest.fixture(scope="module")
def hosts() -> dict[str, Host]:
    tool("ptxas")
    return {name: Host(few_blocks(name, (blocks, 1, 1), (threads, 1, 1))) for name, (blocks, threads) in _CASES.items()}


@pytest.mark.parametrize(("kernel", "probe"), _PAIRS)
def test_results_and_records(kernel, probe, hosts):
    host = hosts[kernel]
    wanted = {place: array.tobytes() for place, array in host.run_ptx().items()}
    records = records_of(host.run_twin_of_ptx(probe))
    assert sum(map(len, records.values())) > 0
    for seed in (None, 1):
        views = host.run_twin(probe, seed=seed, in_graph=seed is None)
        assert {place: array.tobytes() for place, array in host.results().items()} == wanted
        assert records_of(views) == records


@pytest.mark.parametrize(("probe", "sizes"), [
    ("launch_skew", {"Begins": 2, "FirstBegin": 1, "LastBegin": 1}), ("warp_timeline", {"WarpTimes": 16}),
])  # fmt: skip
def test_times(probe, sizes, hosts):
    """Each block, or warp, has its own, which are those of its launch."""
    host = hosts["vecadd"]
    wanted = {place: array.tobytes() for place, array in host.run_ptx().items()}
    views = host.run_twin(probe)
    assert {place: array.tobytes() for place, array in host.results().items()} == wanted
    latest = max(host.launched.ends.values())
    for name in sizes:
        rows = views[name].valid().reshape(-1)
        assert len(rows) == sizes[name]
        for field in {"time", "begin", "end", "cycle"} & set(rows.dtype.names):
            assert 0 < int(rows[field].min()) <= int(rows[field].max()) <= latest
    if probe == "warp_timeline":
        times = views["WarpTimes"].valid().reshape(-1)
        assert all(int(row["begin"]) < int(row["end"]) and int(row["cycles"]) > 0 for row in times)
        assert {int(row["sm"]) for row in times} == {0, 1}
