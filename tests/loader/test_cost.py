"""What the hook asks of the driver: nothing on the launch path that waits, allocates or calls back."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from neutrino.verification import load_probes

from .conftest import Bench
from .trace_files import Files

WARM_UP, LAUNCHES = 256, 4_096


def _calls(bench: Bench, home: Path, launches: int, probe: str) -> dict[str, Counter[str]]:
    counts = home / "counts.json"
    result = bench.run(
        "many", home, probes=load_probes([probe]), device={"count": counts},
        extra={"HOST_LAUNCHES": str(launches), "NEUTRINO_POOL": str(64 << 20)},
    )
    assert (result.stdout, result.returncode) == (f"{launches}\n", 0)
    files = Files(home / "trace")
    counted = files.counted("count_p2")
    assert counted == {"probed": launches}
    assert len(files.written()) == launches
    calls = json.loads(counts.read_text())
    return {who: Counter(calls[who]) for who in ("hook", "hook-thread")}


@pytest.mark.parametrize("probe", ["block_sched", "gmem_bytes"])
def test_launches_cost_no_synchronisation_allocation_or_callback(bench: Bench, tmp_path: Path, probe: str) -> None:
    before = _calls(bench, tmp_path / "before", WARM_UP, probe)
    after = _calls(bench, tmp_path / "after", WARM_UP + LAUNCHES, probe)
    assert after["hook"]["cuLaunchKernel"] - before["hook"]["cuLaunchKernel"] == LAUNCHES
    added = after["hook"] - before["hook"]
    events = added.pop("cuEventRecord", 0)
    assert events <= LAUNCHES / 64
    # The hook's own calls are made in the relaxed capture mode, which is set and set back around them.
    assert added.pop("cuThreadExchangeStreamCaptureMode", 0) <= 2 * events + 2
    allowed = {"cuLaunchKernel", "cuStreamIsCapturing", "cuStreamGetCtx", "cuCtxGetCurrent", "cuCtxGetId"}
    assert set(added) <= allowed, added
    # The hook's own thread copies and zeroes on a stream of its own, and it waits for nothing else.
    aside = after["hook-thread"] - before["hook-thread"]
    waits = {name for name in aside if re.search("Synchronize|Alloc|Free|HostFunc|Callback|Create|Destroy|Load", name)}
    assert waits <= {"cuStreamSynchronize"}


def test_a_replay_costs_one_write_of_64_bits(bench: Bench, tmp_path: Path) -> None:
    calls = []
    for launches in (64, 1088):
        home = tmp_path / str(launches)
        counts = home / "counts.json"
        result = bench.run(
            "graph-many", home, device={"count": counts},
            extra={"HOST_LAUNCHES": str(launches), "NEUTRINO_POOL": str(64 << 20)},
        )
        assert result.returncode == 0
        assert Files(home / "trace").counted("count_p2") == {"probed": 5 * launches}
        calls.append(Counter(json.loads(counts.read_text())["hook"]))
    added = calls[1] - calls[0]
    # Waits of the program's own.
    del added["cuStreamSynchronize"], added["cuCtxGetCurrent"]
    # One after each replay, for one that may follow in another stream, and those of full segments.
    events = added.pop("cuEventRecord", 0) - 1024
    assert 0 <= events <= 1024 / 8
    assert added.pop("cuThreadExchangeStreamCaptureMode", 0) <= 2 * events + 2
    assert added.pop("cuStreamGetId", 0) == 1024
    # Which of the contexts at its address is the current one: before waits and launches.
    assert added.pop("cuCtxGetId") <= 1024 + 64
    assert added == {"cuGraphLaunch": 1024, "cuStreamWriteValue64_v2": 1024, "cuStreamIsCapturing": 1024}
