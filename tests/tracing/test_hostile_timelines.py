"""Records that are damaged, or made to harm: files for other programs are written all the same, and can be read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neutrino.maps.regions import region_layout
from neutrino.tracing import Trace
from neutrino.tracing.comparison import compare
from neutrino.tracing.iket import read_iket, write_iket
from neutrino.tracing.iket_summary import kernel_events
from neutrino.tracing.perfetto import write_perfetto
from neutrino.tracing.roles import roles_of
from tests.tracing.test_perfetto import TIMES, seen
from tests.tracing.test_roles import SITES, WORK
from tests.tracing.test_timeline import EVENTS, WAITS
from tests.tracing.trace_writer import BLOCK_SCHED, TraceWriter, make_map

PROGRESS = make_map("Progress", "array", "warp", {"clock": "u64", "site": "u32", "sm": "u32"}, 4)
FRACTIONS = make_map("Fractions", "array", "warp", {"time": "u64", "verb": "u32", "payload": "f32"}, 4)
SETS = (
    [BLOCK_SCHED, EVENTS, WAITS], [TIMES, FRACTIONS, WORK], [PROGRESS, WORK], [BLOCK_SCHED, TIMES, EVENTS, FRACTIONS],
)  # fmt: skip
_BYTES = st.sampled_from([0, 1, 2, 3, 4, 127, 128, 255])


def written(path: Path, maps: list, seed: int, common: int, launches: int = 2) -> Trace:
    """A trace whose records are any bytes. common: a byte that half of them are: numbers are small or great."""
    random = np.random.default_rng(seed)
    writer = TraceWriter(path)
    writer.kernel(1, "gemm", maps=maps, sites=SITES)
    for _ in range(launches):
        _, size = region_layout(maps, 3, 2, 32)
        data = random.integers(0, 256, size).astype(np.uint8)
        data[random.random(size) < 0.5] = common
        writer.launch(1, (3, 1, 1), (64, 1, 1), data.tobytes())
    for record in writer.records:
        record["submit_ns"] = (0, 5, 2**40, 2**63 - 1, 2**64 - 1)[random.integers(0, 5)]
    return Trace(writer.write())


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(range(len(SETS))), st.integers(0, 2**32), _BYTES, st.integers(1, 7))
def test_any_records_are_written(
    tmp_path_factory: pytest.TempPathFactory, maps: int, seed: int, common: int, most: int
) -> None:
    folder = tmp_path_factory.mktemp("hostile")
    trace = written(folder / "trace", SETS[maps], seed, common)
    write_perfetto(trace, folder / "out.pftrace", roles=lambda kernel: roles_of(kernel).names, most=most)
    seen(folder / "out.pftrace")
    write_iket(trace, folder / "out.json")
    kernel_events(read_iket(folder / "out.json"))


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(range(len(SETS))), st.integers(0, 2**32), _BYTES)
def test_any_records_are_compared(tmp_path_factory: pytest.TempPathFactory, maps: int, seed: int, common: int) -> None:
    folder = tmp_path_factory.mktemp("hostile")
    traces = [written(folder / str(side), SETS[maps], seed + side, common, 6) for side in (0, 1)]
    compare(traces[0], traces[1], threshold=0.0, roles=lambda kernel: roles_of(kernel).names)
