"""What accesses are like: against NumPy on the same records, and for addresses of which the answer is known."""

from __future__ import annotations

import itertools
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from neutrino.emulator.device import Device
from neutrino.maps.declaration import Map
from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.text.module import parse
from neutrino.tracing.accesses import INTERVALS, KINDS, LINE, AccessFacts, Pattern, has_accesses, read_accesses
from neutrino.tracing.aggregate import LIBRARY
from neutrino.tracing.views import Geometry, MapView
from neutrino.verification import load_probes
from tests.oracle.twin_launch import Launch, LoadedTwin

Array = npt.NDArray[Any]
ROUNDS = 4
# Each thread reads its offsets, round by round, and what is there in the data.
KERNEL = """
.version 7.8
.target {arch}
.address_size 64
.visible .entry k(.param .u64 offsets, .param .u64 data, .param .u32 rounds)
{{
	.reg .pred %p;
	.reg .b32 %i, %n, %rounds, %round, %block, %v;
	.reg .b64 %at, %from, %data, %offset;
	ld.param.u64 %from, [offsets];
	ld.param.u64 %data, [data];
	ld.param.u32 %rounds, [rounds];
	mov.u32 %block, %ctaid.x;
	mov.u32 %n, %ntid.x;
	mov.u32 %i, %tid.x;
	mad.lo.u32 %i, %block, %n, %i;
	mov.u32 %block, %nctaid.x;
	mul.lo.u32 %n, %n, %block;
	mov.u32 %round, 0;
AGAIN:
	mad.wide.u32 %at, %i, 4, %from;
	ld.global.u32 %v, [%at];
	cvt.u64.u32 %offset, %v;
	add.s64 %at, %data, %offset;
	ld.global.u32 %v, [%at];
	st.global.u32 [%at], %v;
	add.u32 %i, %i, %n;
	add.u32 %round, %round, 1;
	setp.lt.u32 %p, %round, %rounds;
	@%p bra AGAIN;
	ret;
}}
"""


def accesses(
    offsets: Array, arch: str = "sm_90", blocks: int = 3, threads: int = 70, size: int = 1 << 20
) -> tuple[MapView, int]:
    """The log of a launch over offsets, uint32 ``[round][thread]``, and how many instructions there are."""
    twins = probe_module(parse(KERNEL.format(arch=arch)), load_probes(["dmat"]))
    device = Device(memory=16 << 20, seed=3)
    module = device.load(twins.render())
    source, data = device.allocate(offsets.nbytes), device.allocate(size)
    device.write(source, np.ascontiguousarray(offsets, "<u4"))
    device.write(data, bytes(size))
    launch = Launch((blocks, 1, 1), (threads, 1, 1), struct.pack("<QQI", source, data, len(offsets)))
    views = LoadedTwin(twins.kernels[0], module, {}).launch(device, launch)
    return views["GlobalAccesses"], 1 + int(views["GlobalAccesses"].valid()["site"].max())


def spread(random: np.random.Generator, threads: int, size: int) -> Array:
    """Offsets of all patterns, one after the other."""
    lanes = np.arange(threads)
    return np.array([
        4 * lanes, 64 * lanes % size, np.full(threads, 4096), 4 * random.integers(0, size // 4, threads),
        4096 * (lanes // 8) % size + 4 * (lanes % 8),
    ])  # fmt: skip


def executions(view: MapView) -> dict[tuple[int, int, int, int], list[tuple[int, int, int, int]]]:
    """By block, warp, clock and site: lane, address, bytes, kind of each record. Independent of the C code's order."""
    found: dict[tuple[int, int, int, int], list[tuple[int, int, int, int]]] = {}
    places = view.places()
    for number, record in enumerate(view.valid()):
        key = (int(places["block"][number]), int(places["warp"][number]), int(record["clock"]), int(record["site"]))
        found.setdefault(key, []).append(
            (int(places["lane"][number]), int(record["address"]), int(record["bytes"]), int(record["kind"]))
        )
    return found


def pieces(lanes: list[tuple[int, int, int, int]], size: int) -> set[int]:
    return {at // size for _, address, width, _ in lanes for at in (address, address + max(width, 1) - 1)}


def check_all(view: MapView, facts: AccessFacts) -> None:
    """Every figure, against sums in Python."""
    groups = executions(view)
    records = view.valid()
    assert (facts.accesses, facts.bytes, facts.strange) == (len(records), int(records["bytes"].sum()), 0)
    for site in facts.sites:
        own = {key: lanes for key, lanes in groups.items() if key[3] == site.site}
        rows = [lane for lanes in own.values() for lane in lanes]
        assert (site.accesses, site.bytes) == (len(rows), sum(row[2] for row in rows))
        assert (site.executions, sum(site.patterns.values())) == (len(own), len(own))
        assert site.sectors == sum(len(pieces(lanes, 32)) for lanes in own.values())
        assert site.lines == sum(len(pieces(lanes, 128)) for lanes in own.values())
        assert {KINDS.index(site.kind)} == {row[3] for row in rows}
        assert (site.lowest, site.highest) == (min(row[1] for row in rows), max(row[1] + row[2] for row in rows))
        for pattern in (Pattern.BROADCAST, Pattern.LINEAR, Pattern.SINGLE):
            assert site.patterns.get(pattern, 0) == sum(pattern_of(lanes) is pattern for lanes in own.values())
    clocks = records["clock"]
    first, last = int(clocks.min()), int(clocks.max())
    assert (facts.first_clock, facts.last_clock) == (first, last)
    span = last - first + 1
    _kinds, times, _columns = facts.grid.shape
    grid = np.zeros_like(facts.grid)
    for record in records:
        column = int(np.searchsorted(facts.pages, record["address"], side="right")) - 1
        assert int(record["address"]) - int(facts.pages[column]) < facts.page_bytes
        grid[record["kind"], (int(record["clock"]) - first) * times // span, column] += 1
    assert (grid == facts.grid).all()
    assert int(facts.warp_grid.sum()) == len(records)
    touched = [set[int]() for _ in range(INTERVALS)]
    for (_, _, clock, _), lanes in groups.items():
        touched[(clock - first) * INTERVALS // span] |= pieces(lanes, LINE)
    assert facts.line == LINE
    assert facts.working_set.tolist() == [LINE * len(lines) for lines in touched]
    so_far = set[int]()
    for lines, footprint in zip(touched, facts.footprint.tolist(), strict=True):
        so_far |= lines
        assert footprint == LINE * len(so_far)
    assert sum(region.accesses for region in facts.regions) == len(records)
    # Every line is followed where there are so few: the first accesses are as many as the lines.
    assert (facts.reuse_sample, facts.reuse_first) == (1.0, len(so_far))
    assert int(facts.reuse.sum()) + facts.reuse_first == sum(len(pieces(lanes, LINE)) for lanes in groups.values())


def pattern_of(lanes: list[tuple[int, int, int, int]]) -> Pattern | None:
    """The patterns that say all of an execution's addresses."""
    lanes = sorted(lanes)
    steps = {(after[1] - row[1]) / (after[0] - row[0]) for row, after in itertools.pairwise(lanes)}
    if not steps:
        return Pattern.SINGLE
    if len(steps) > 1:
        return None
    step = steps.pop()
    return Pattern.BROADCAST if step == 0 else Pattern.LINEAR if step == lanes[0][2] else None


# sm_70 has rows of lanes in place of groups.
@pytest.mark.parametrize("arch", ["sm_90", "sm_70"])
@pytest.mark.parametrize("threads", [70, 32, 1])
def test_all_figures_equal_numpy(arch: str, threads: int) -> None:
    random = np.random.default_rng(threads)
    view, sites = accesses(spread(random, 3 * threads, 1 << 18), arch, threads=threads)
    assert has_accesses(view.map)
    check_all(view, read_accesses(view, sites))


LANES = np.arange(64)
KNOWN = {
    "linear": (4 * LANES, Pattern.LINEAR, None, 4 * 32 // 32),
    "stride": (256 * LANES, Pattern.STRIDE, 256, 32),
    "falling": (256 * (63 - LANES), Pattern.STRIDE, -256, 32),
    "broadcast": (0 * LANES + 512, Pattern.BROADCAST, None, 1),
    # Rows of 128 bytes from anywhere, as of an embedding.
    "gather": ((LANES // 8 * 7919 % 61 << 12) + 16 * (LANES % 8), Pattern.GATHER, None, 4 * 4),
    "random": (np.random.default_rng(1).permutation(1 << 12)[:64] * 64, Pattern.RANDOM, None, 32),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_patterns_are_told_apart(name: str) -> None:
    offsets, pattern, stride, sectors = KNOWN[name]
    view, sites = accesses(np.tile(offsets, (ROUNDS, 1)), blocks=1, threads=64)
    indices, loads, stores = read_accesses(view, sites).sites
    assert (indices.pattern, indices.patterns, indices.sectors) == (Pattern.LINEAR, {Pattern.LINEAR: 8}, 8 * 4)
    for site, kind in ((loads, "load"), (stores, "store")):
        assert (site.kind, site.pattern, site.patterns) == (kind, pattern, {pattern: 2 * ROUNDS})
        assert (site.stride, site.sectors) == (stride, 2 * ROUNDS * sectors)


def test_distances_of_reuse_are_known() -> None:
    # One thread goes through 16 lines, again and again: a line comes again after 15 others, twice at once, since it is
    # read and written; between lie the line of the offset, too.
    offsets = np.tile(np.arange(16) * LINE, 8).reshape(-1, 1)
    view, sites = accesses(offsets, blocks=1, threads=1)
    facts = read_accesses(view, sites)
    data = 8 * 16
    # The offsets take 4 lines of 32 words, and come again after 2 lines: the data's last line is one of them.
    assert facts.reuse_first == 16 + data * 4 // LINE
    assert facts.reuse[0] == data, "the store comes at once after the load of the same line"
    assert facts.reuse[1] == data - data * 4 // LINE, "after the line of data alone"
    # 15 lines of data, and one or two of offsets.
    assert facts.reuse[5] == 7 * 16
    assert int(facts.reuse.sum()) == 2 * data - data * 4 // LINE + 7 * 16
    assert facts.hit_rate(LINE) == pytest.approx(data / (3 * data))
    assert facts.hit_rate(32 * LINE) == pytest.approx(1 - facts.reuse_first / (3 * data))


def test_an_empty_launch_has_no_accesses() -> None:
    view, sites = accesses(np.zeros((1, 64)), blocks=1, threads=64)
    empty = MapView(view.map, view.geometry, np.zeros_like(view.records), None)
    facts = read_accesses(empty, sites)
    assert (facts.accesses, facts.bytes, facts.sites, facts.regions) == (0, 0, (), ())
    assert facts.hit_rate(1 << 20) is None
    assert not facts.working_set.any()


def damaged(region: Array, times: int, seed: int) -> Iterator[Array]:
    """A log with a byte changed, or cut off, again and again."""
    random = np.random.default_rng(seed)
    used = 128 + 32 * int(region[:8].view("<u8")[0])
    for _ in range(times):
        other = np.array(region)
        other[int(random.integers(0, used))] = random.integers(0, 256)
        yield other[: int(random.integers(128, used))] if random.random() < 0.3 else other


def log_of(entry: Map, region: Array) -> MapView:
    return MapView(entry, Geometry(1, 96, 32), region, None)


@pytest.mark.parametrize("arch", ["sm_90", "sm_70"])
def test_damaged_logs_end_in_what_is_readable(arch: str) -> None:
    view, sites = accesses(spread(np.random.default_rng(5), 96, 1 << 16), arch, blocks=1, threads=96)
    whole = read_accesses(view, sites)
    for region in damaged(view.records, 60, 7):
        assert read_accesses(log_of(view.map, region), sites).accesses <= 64 * whole.accesses


# The C code under AddressSanitizer, whose runtime must be there before Python.
_UNDER_SANITIZERS = """
import sys
from pathlib import Path
import numpy as np
from neutrino.tracing import accesses
accesses.LIBRARY = Path(sys.argv[1])
from neutrino.verification import load_probes
from tests.tracing.test_accesses import damaged, log_of
entry = next(entry for entry in load_probes(["dmat"]).maps if entry.name == "GlobalAccesses")
region = np.load(sys.argv[2])
for other in [region, *damaged(region, 400, 11)]:
    # In memory of its own, so that a byte too far is seen.
    accesses.read_accesses(log_of(entry, np.array(other)), int(sys.argv[3]))
print("done")
"""


def test_no_report_of_the_sanitizers(address_sanitizer: str, tmp_path: Path) -> None:
    view, sites = accesses(spread(np.random.default_rng(5), 96, 1 << 16), blocks=1, threads=96)
    used = 128 + 32 * int(view.records[:8].view("<u8")[0])
    np.save(tmp_path / "log.npy", view.records[:used])
    done = subprocess.run(
        [sys.executable, "-c", _UNDER_SANITIZERS, tmp_path / LIBRARY.name, tmp_path / "log.npy", str(sites)],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
        env={"LD_PRELOAD": address_sanitizer, "ASAN_OPTIONS": "detect_leaks=0:exitcode=99", "PYTHONMALLOC": "malloc",
             "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert (done.stdout, done.stderr[-3000:], done.returncode) == ("done\n", "", 0)


def test_another_map_is_refused() -> None:
    view, sites = accesses(np.zeros((1, 64)), blocks=1, threads=64)
    stack = MapView(view.map, view.geometry, view.records[None], None)
    with pytest.raises(ValueError, match="of a log of one launch"):
        read_accesses(stack, sites)
