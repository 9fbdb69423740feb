"""Maps at block level, and maps whose cap the hook chooses for each launch."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from neutrino.tracing import Trace, TraceLaunch, summarize
from neutrino.verification import load_probe_file

from .conftest import POOL_LEAST, Bench, Reference
from .trace_files import Files

GROWING = Path(__file__).parent / "growing.toml"
PROBES = load_probe_file(GROWING)


def launches_of(home: Path) -> list[TraceLaunch]:
    (path,) = (home / "trace").iterdir()
    (kernel,) = (kernel for kernel in Trace(path).kernels if kernel.name == "loop_p2")
    return list(kernel.launches())


def check(launch: TraceLaunch, tickets: int) -> None:
    """The records of one launch of loop_p2: as many tickets of each warp as there was room for, each once."""
    maps = launch.maps
    cap = int(launch.record["dynamic_cap"])
    assert launch.record["lanes"] == 32
    blocks, threads = int(launch.record["grid"][0]), int(launch.record["block"][0])
    warps = -(-threads // 32)
    taken, firsts = maps["Tickets"], maps["Firsts"]
    assert taken.cap == firsts.cap == cap
    assert taken.records.shape == (blocks, warps, cap)
    assert firsts.records.shape == (blocks, cap)
    assert taken.counts is not None
    assert firsts.counts is not None
    assert (taken.counts == tickets).all()
    assert (firsts.counts == tickets).all()
    kept = min(tickets, cap)
    assert len(taken.valid()) == blocks * warps * kept
    assert taken.dropped == blocks * warps * (tickets - kept)
    assert firsts.dropped == blocks * (tickets - kept)
    assert (taken.valid()["seven"] == 7).all()
    assert len(np.unique(taken.valid()["ticket"])) == blocks * warps * kept
    places = taken.places()
    assert (taken.valid()["block"] == places["block"]).all()
    # What thread 0 took is what its warp took.
    np.testing.assert_array_equal(firsts.records["ticket"][:, :kept], taken.records["ticket"][:, 0, :kept])
    assert maps["Blocks"].records.shape == (blocks, 1)
    assert maps["Blocks"].valid()["block"].tolist() == list(range(blocks))
    assert set(maps["Blocks"].valid()["threads"]) == {threads}
    assert maps["Entered"].total() == {"threads": blocks * threads}


def test_the_launch_after_one_that_dropped_has_room(any_bench: Bench, tmp_path: Path, reference: Reference) -> None:
    result = any_bench.run("growing", tmp_path, probes=PROBES)
    assert (result.stdout, result.returncode) == reference("growing")
    launches = launches_of(tmp_path)
    assert [int(launch.record["dynamic_cap"]) for launch in launches] == [64, 64, 104, 104, 304, 304]
    for launch, tickets in zip(launches, (10, 100, 100, 300, 7, 300), strict=True):
        check(launch, tickets)
    (path,) = (tmp_path / "trace").iterdir()
    (note,) = (note for note in summarize(Trace(path)).notes if "Tickets" in note)
    dropped = 6 * (100 - 64 + 300 - 104)
    assert f"{dropped:,} records of map Tickets were dropped" in note
    assert "a slot wanted up to 300; later launches of this kernel had room for them" in note


def test_a_pool_without_room_gives_fewer_records_a_slot(bench: Bench, tmp_path: Path) -> None:
    """2 MiB for large launches: 4096 warps with records of 16 bytes, beside a sum, have room for fewer than 64."""
    result = bench.run("crowded", tmp_path, probes=PROBES, extra={"NEUTRINO_POOL": str(POOL_LEAST)})
    assert (result.stdout, result.returncode) == (f"{3 * 4096 * 20 + 131072}\n", 0)
    launches = launches_of(tmp_path)
    caps = [int(launch.record["dynamic_cap"]) for launch in launches]
    # What fits at all, then what was wanted.
    assert caps == [27, 24, 24]
    files = Files(tmp_path / "trace")
    assert files.counted("loop_p2") == {"probed": 3, "map-size": 1}
    for launch in launches:
        check(launch, 20)


def test_counts_are_found_in_what_is_copied_back_in_pieces(bench: Bench, tmp_path: Path) -> None:
    """Records of 128 bytes: 64 for each of 1200 warps are more than the 8 MiB that are copied at once."""
    more = {f"more{number}": "OUT" for number in range(14)}
    text = GROWING.read_text()
    text = text.replace("size = 16", "size = 128")
    text = text.replace('seven = "u32"', ", ".join(['seven = "u32"', *(f'{name} = "u64"' for name in more)]))
    text = text.replace("%block, 7", ", ".join(["%block, 7", *more.values()]))
    (tmp_path / "wide.toml").write_text(text)
    probes = load_probe_file(tmp_path / "wide.toml")
    result = bench.run("spread", tmp_path, probes=probes, extra={"NEUTRINO_POOL": str(64 << 20)})
    assert (result.stdout, result.returncode) == (f"{2 * 1200 * 70}\n", 0)
    launches = launches_of(tmp_path)
    assert [int(launch.record["dynamic_cap"]) for launch in launches] == [64, 72]
    assert all(int(launch.record["data_size"]) > 8 << 20 for launch in launches)
    for launch in launches:
        check(launch, 70)
