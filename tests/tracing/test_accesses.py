"""What accesses are like: against NumPy on the same records, and for addresses of which the answer is known."""

from __future__ import annotations

import itertools
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from neutrino.emulator.device import Device
from neutrino.maps.declaration import Map
from neutrino.maps.log_reading import LOG_CONTROL, GroupLayout
from neutrino.ptx.instrument.programs import probe_module
from neutrino.ptx.text.module import parse
from neutrino.tracing.accesses import INTERVALS, KINDS, LINE, AccessFacts, Pattern, has_accesses, read_accesses
from neutrino.tracing.views import Geometry, MapView
from neutrino.verification import load_probes
from tests.oracle.twin_launch import Launch, LoadedTwin

Array = npt.NDArray[Any]
ROUNDS = 4
PAGE = 4096
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
        # Nothing is accessed where there are no bytes.
        if not record["bytes"]:
            continue
        key = (int(places["block"][number]), int(places["warp"][number]), int(record["clock"]), int(record["site"]))
        found.setdefault(key, []).append(
            (int(places["lane"][number]), int(record["address"]), int(record["bytes"]), int(record["kind"]))
        )
    return found


def pieces(lanes: list[tuple[int, int, int, int]], size: int) -> set[int]:
    return {
        piece for _, address, width, _ in lanes
        for piece in range(address // size, (address + max(width, 1) - 1) // size + 1)
    }  # fmt: skip


def check_all(view: MapView, facts: AccessFacts) -> None:
    """Every figure, against sums in Python."""
    groups = executions(view)
    everything = view.valid()
    records = everything[everything["bytes"] > 0]
    assert facts.empty == len(everything) - len(records)
    assert (facts.accesses, facts.bytes, facts.strange) == (len(records), int(records["bytes"].sum()), 0)
    for site in facts.sites:
        own = {key: lanes for key, lanes in groups.items() if key[3] == site.site}
        rows = [lane for lanes in own.values() for lane in lanes]
        assert (site.accesses, site.bytes) == (len(rows), sum(row[2] for row in rows))
        assert (site.executions, sum(site.patterns.values())) == (len(own), len(own))
        assert site.sectors == sum(len(pieces(lanes, 32)) for lanes in own.values())
        assert site.lines == sum(len(pieces(lanes, 128)) for lanes in own.values())
        kinds = Counter(row[3] for row in rows)
        assert kinds[KINDS.index(site.kind)] == max(kinds.values())
        assert (site.lowest, site.highest) == (min(row[1] for row in rows), max(row[1] + row[2] for row in rows))
        for pattern in (Pattern.BROADCAST, Pattern.LINEAR, Pattern.SINGLE):
            assert site.patterns.get(pattern, 0) == sum(pattern_of(lanes) is pattern for lanes in own.values())
    clocks = records["clock"]
    first, last = int(clocks.min()), int(clocks.max())
    assert (facts.first_clock, facts.last_clock) == (first, last)
    span = last - first + 1
    _kinds, times, columns = facts.grid.shape
    grid = np.zeros_like(facts.grid)
    seen = sorted(set().union(*(pieces(lanes, PAGE) for lanes in groups.values())))
    each = max(facts.page_bytes // PAGE, 1)
    assert facts.pages.tolist() == [
        seen[rank] * PAGE + begin for rank in range(0, len(seen), each) for begin in range(0, PAGE, facts.page_bytes)
    ]  # fmt: skip
    assert columns <= 2048
    for record in records:
        page, place = divmod(int(record["address"]), PAGE)
        column = seen.index(page) * PAGE // facts.page_bytes + (place // facts.page_bytes if each == 1 else 0)
        grid[record["kind"], (int(record["clock"]) - first) * times // span, column] += 1
    assert (grid == facts.grid).all()
    assert (facts.warp_grid.sum(axis=0) == grid.sum(axis=(0, 1))).all()
    touched = [set[int]() for _ in range(INTERVALS)]
    for (_, _, clock, _), lanes in groups.items():
        touched[(clock - first) * INTERVALS // span] |= pieces(lanes, LINE)
    assert facts.line == LINE
    assert facts.working_set.tolist() == [LINE * len(lines) for lines in touched]
    so_far = set[int]()
    for lines, footprint in zip(touched, facts.footprint.tolist(), strict=True):
        so_far |= lines
        assert footprint == LINE * len(so_far)
    for region in facts.regions:
        assert region.accesses == ((records["address"] >= region.begin) & (records["address"] < region.end)).sum()
        assert {region.begin // PAGE - 1, region.end // PAGE}.isdisjoint(seen)
    assert [page for region in facts.regions for page in range(region.begin // PAGE, region.end // PAGE)] == seen
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


def made_group(entry: Map, order: int, lanes: dict[int, tuple[int, int, int, int, int]]) -> bytes:
    """A group of a log in which each lane has all of its fields: by its number address, clock, site, bytes, kind."""
    layout = GroupLayout.of(entry.fields, entry.size)
    assert layout is not None
    rows = np.array([lanes[lane] for lane in sorted(lanes)], entry.dtype)
    mask, forms = sum(1 << lane for lane in lanes), sum(3 << 2 * number for number in range(len(entry.fields)))
    group = struct.pack("<3I", mask, forms, order).ljust(layout.record, b"\0") + rows[0].tobytes()
    group = group.ljust(layout.head, b"\0")
    for name in entry.dtype.names or ():
        values = rows[name].tobytes()
        group += values.ljust(-(-len(values) // 8) * 8, b"\0")
    return group.ljust(-(-len(group) // 16) * 16, b"\0")


def made_log(entry: Map, warps: list[list[bytes]]) -> MapView:
    """A log of one block in which each warp has a chunk for each of its groups."""
    layout = GroupLayout.of(entry.fields, entry.size)
    assert layout is not None
    chunks = b""
    for warp, groups in enumerate(warps):
        for group in groups:
            units = -(-(16 + len(group)) // 32)
            chunks += (struct.pack("<4I", warp, layout.shape, 0, units) + group).ljust(32 * units, b"\0")
    region = np.frombuffer(struct.pack("<Q", len(chunks) // 32).ljust(LOG_CONTROL, b"\0") + chunks, np.uint8)
    return MapView(entry, Geometry(1, 32 * len(warps), 32), region, None)


def scattered(random: np.random.Generator, number: int) -> dict[int, tuple[int, int, int, int, int]]:
    """What the lanes of one group access: in runs of pages that are far apart, with as much chance of the same sector
    or line for several lanes as of accesses that take two."""
    lanes = np.flatnonzero(random.random(32) < random.choice([0.1, 0.5, 1.0]))
    lanes = lanes if len(lanes) else np.array([7])
    runs = 0x7F00_0000_0000 + (random.integers(0, 40, len(lanes)) << int(random.choice([19, 24, 37])))
    near = int(random.choice([8, 12, 18]))
    addresses = runs * (random.random() < 0.5) + runs[0] * 2 + random.integers(0, 1 << near, len(lanes))
    addresses &= -int(random.choice([1, 4, 32]))
    order = random.integers(0, 3)
    addresses = [addresses, np.sort(addresses), np.sort(addresses)[::-1]][order]
    widths = random.choice([0, 1, 4, 16, 300], len(lanes)) if random.random() < 0.3 else np.full(len(lanes), 4)
    kinds = random.integers(0, len(KINDS), len(lanes)) if random.random() < 0.3 else np.full(len(lanes), 1)
    sites = 2 * (lanes >= random.integers(0, 40)) if random.random() < 0.3 else np.full(len(lanes), 1)
    return {
        int(lane): (int(address), 5000 + 7 * number, int(site), int(width), int(kind))
        for lane, address, site, width, kind in zip(lanes, addresses, sites, widths, kinds, strict=True)
    }


@pytest.mark.parametrize("seed", range(4))
def test_scattered_accesses_equal_numpy(seed: int) -> None:
    random = np.random.default_rng(seed)
    entry = next(entry for entry in load_probes(["dmat"]).maps if entry.name == "GlobalAccesses")
    groups = [scattered(random, number) for number in range(500)]
    whole = [made_group(entry, number, lanes) for number, lanes in enumerate(groups)]
    view = made_log(entry, [whole[:250], whole[250:]])
    facts = read_accesses(view, 3)
    # Columns have several pages, some of them those of several runs.
    assert facts.page_bytes > PAGE
    firsts = [region.columns[0] for region in facts.regions]
    assert len(set(firsts)) < len(firsts)
    check_all(view, facts)


def test_a_masked_copy_accesses_nothing() -> None:
    """Its address may be anywhere: no sector, line, page or execution is its own, and a warp of such ones is none."""
    entry = next(entry for entry in load_probes(["dmat"]).maps if entry.name == "GlobalAccesses")
    masked = dict.fromkeys(range(16, 32), (1 << 40, 9, 0, 0, 4))
    lanes = {lane: (4096 + 16 * lane, 9, 0, 16, 4) for lane in range(16)}
    alone = dict.fromkeys(range(32), (1 << 41, 11, 1, 0, 4))
    facts = read_accesses(made_log(entry, [[made_group(entry, 0, lanes | masked), made_group(entry, 1, alone)]]), 2)
    (site,) = facts.sites
    assert (site.accesses, site.bytes, site.executions, site.patterns) == (16, 256, 1, {Pattern.LINEAR: 1})
    assert (site.sectors, site.lines, site.highest) == (8, 2, 4096 + 256)
    assert (facts.accesses, facts.empty, len(facts.regions)) == (16, 48, 1)
    assert (facts.footprint[-1], facts.reuse_first) == (256, 2)


def test_an_execution_may_be_in_several_groups() -> None:
    entry = next(entry for entry in load_probes(["dmat"]).maps if entry.name == "GlobalAccesses")
    lanes = {lane: (4096 + 4 * lane, 9, 0, 4, 0) for lane in range(32)}
    parts = [{lane: lanes[lane] for lane in part} for part in (range(5), range(5, 19), range(19, 32))]
    view = made_log(entry, [[made_group(entry, number, part) for number, part in enumerate(parts)]])
    (site,) = read_accesses(view, 1).sites
    assert (site.executions, site.patterns, site.sectors) == (1, {Pattern.LINEAR: 1}, 4)
    # The same lanes again are another execution.
    view = made_log(entry, [[made_group(entry, number, part) for number, part in enumerate([*parts, *parts])]])
    (site,) = read_accesses(view, 1).sites
    assert (site.executions, site.patterns, site.sectors) == (2, {Pattern.LINEAR: 2}, 8)


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
from neutrino.tracing import accesses, log_records
log_records.LIBRARY = Path(sys.argv[1])
from neutrino.verification import load_probes
from tests.tracing.test_accesses import damaged, log_of
entry = next(entry for entry in load_probes(["dmat"]).maps if entry.name == "GlobalAccesses")
region = np.load(sys.argv[2])
for other in [region, *damaged(region, 160, 11)]:
    # In memory of its own, so that a byte too far is seen.
    view = log_of(entry, np.array(other))
    accesses.read_accesses(view, int(sys.argv[3]))
    for _ in view.pieces():
        pass
print("done")
"""


def test_no_report_of_the_sanitizers(address_sanitizer: tuple[str, Path], tmp_path: Path) -> None:
    runtime, library = address_sanitizer
    view, sites = accesses(spread(np.random.default_rng(5), 96, 1 << 16), blocks=1, threads=96)
    used = 128 + 32 * int(view.records[:8].view("<u8")[0])
    np.save(tmp_path / "log.npy", view.records[:used])
    done = subprocess.run(
        [sys.executable, "-c", _UNDER_SANITIZERS, library, tmp_path / "log.npy", str(sites)],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
        env={"LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0:exitcode=99", "PYTHONMALLOC": "malloc",
             "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert (done.stdout, done.stderr[-3000:], done.returncode) == ("done\n", "", 0)


def test_another_map_is_refused() -> None:
    view, sites = accesses(np.zeros((1, 64)), blocks=1, threads=64)
    stack = MapView(view.map, view.geometry, view.records[None], None)
    with pytest.raises(ValueError, match="of a log of one launch"):
        read_accesses(stack, sites)
