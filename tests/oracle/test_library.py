"""The library of probes in Python: each figure against one computed from what the emulator's tracer saw.

What the original does is traced without any probe. Clocks are those that the twin's own reads of them gave.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neutrino.emulator.address_space import Space
from neutrino.emulator.tracer import Execution, Tracer
from neutrino.ptx.isa.opcodes import find
from neutrino.resources import shipped_probes
from neutrino.tracing.views import MapView
from neutrino.verification import check_probes, load_all, load_probes
from tests.oracle.assembling import assemble
from tests.oracle.bench import Bench, Kernel, make_twins, skip_of
from tests.oracle.library import in_line, patterns, strided
from tests.oracle.simulation import operands_of
from tests.oracle.test_matrix import ALL
from tests.oracle.twin_launch import LoadedTwin
from tests.twin_costs import PROBES

PATTERNS = patterns()
STRIDED = {f"{make.__name__}{seed}": make(seed) for make in (strided, in_line) for seed in range(2)}
_LANES = 32
_TRACED = re.compile(r"(ldu?|st|atom|red|cp\.async\.c[ag])\.")
_KINDS = {"ld": 0, "ldu": 0, "st": 1, "atom": 2, "red": 3, "cp": 4}


@dataclass(frozen=True)
class Run:
    """One launch of a twin. views: its maps. lines: SITE → line of the original's text. tracer: what the twin did."""

    kernel: Kernel
    views: dict[str, MapView]
    lines: dict[int, int]
    tracer: Tracer

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The records of a map, with their places; of a site as its line."""
        view = self.views[name]
        records = view.valid().reshape(-1)
        columns = {field: records[field].tolist() for field in records.dtype.names or ()}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def by_line(self, name: str) -> dict[int, dict[str, int]]:
        """The rows of a hash whose keys are sites, by line."""
        assert self.views[name].dropped == 0
        return {self.lines[row.pop("key")]: row for row in self.rows(name)}


@cache
def bench(name: str) -> Bench:
    return Bench((PATTERNS | STRIDED).get(name) or ALL[name], ())


@cache
def probed(probe: str, name: str, defines: tuple[tuple[str, int], ...] = (), log_units: int = 1 << 15) -> Run:
    """The program's results have to be the original's."""
    one = bench(name) if log_units == 1 << 15 else Bench(bench(name).kernel, (), log_units=log_units)
    probes = load_probes([probe], defines=dict(defines))
    twins = make_twins(one.kernel, probes)
    assert skip_of(twins) is None, skip_of(twins)
    (twin,) = twins.kernels
    place = one.place(None)
    tracer = Tracer(lambda _: True, registers=True)
    loaded = LoadedTwin(twin, place.device.load(twins.render()), place.module.variables)
    views = loaded.launch(place.device, place.launch(), tracer)
    assert place.results() == one.results(None)
    return Run(one.kernel, views, {site.number: site.line for site in twin.sites if site.number is not None}, tracer)


@cache
def seen(name: str) -> tuple[Execution, ...]:
    """What the original does."""
    place = bench(name).place(None)
    launch = place.launch()
    tracer = Tracer(lambda _: True, registers=True)
    place.device.launch(
        place.function, launch.grid, launch.block, launch.parameters, shared=launch.shared, observer=tracer
    )
    return tuple(tracer.executions)


def warp_of(kernel: Kernel, thread: int) -> int:
    size = prod(kernel.block)
    return thread // size * -(-size // _LANES) + thread % size // _LANES


@dataclass(frozen=True)
class Request:
    """What the lanes of one warp execute together. addresses: of each lane in global memory; size: bytes of one."""

    opcode: str
    line: int
    warp: int
    threads: tuple[int, ...]
    addresses: tuple[int, ...]
    size: int


@cache
def requests(name: str, *, generic: bool = False) -> tuple[Request, ...]:
    """Accesses to global memory whose instruction names it. generic: those with a generic address, too."""
    kernel = bench(name).kernel
    found = []
    for execution in seen(name):
        opcode = execution.site.opcode
        is_generic = generic and not re.search(r"\.(global|shared|local|param|const)\b", opcode)
        if not _TRACED.match(opcode) or not (is_generic or ".global" in opcode):
            continue
        access = next((access for access in execution.accesses if (access.spaces == Space.GLOBAL).any()), None)
        if access is None:
            continue
        is_global = access.spaces == Space.GLOBAL
        assert is_generic or is_global.all()
        warps = np.array([warp_of(kernel, thread) for thread in access.threads.tolist()])
        for warp in np.unique(warps[is_global]).tolist():
            at = np.flatnonzero((warps == warp) & is_global)
            threads, addresses = (tuple(values[at].tolist()) for values in (access.threads, access.addresses))
            found.append(Request(opcode, execution.site.line, warp, threads, addresses, access.size))
    assert found
    return tuple(found)


def of_threads(requests: Sequence[Request]) -> Iterator[tuple[int, Request, int]]:
    for request in requests:
        for thread, address in zip(request.threads, request.addresses, strict=True):
            yield thread, request, address


def kind(request: Request) -> int:
    return _KINDS[request.opcode.partition(".")[0]]


def records_of(run: Run) -> dict[int, list[dict[str, Any]]]:
    """The records of dmat by thread of the grid, in order."""
    view = run.views["GlobalAccesses"]
    places = [view.places()[name].tolist() for name in ("block", "warp", "lane", "order")]
    by_thread: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row, block, warp, lane, order in zip(run.rows("GlobalAccesses"), *places, strict=True):
        thread = block * prod(run.kernel.block) + warp * _LANES + lane
        assert order == len(by_thread[thread])
        by_thread[thread].append(row)
    return by_thread


def readings(run: Run, register: str) -> dict[int, list[int]]:
    """What each thread read of a special register."""
    read: dict[int, list[int]] = defaultdict(list)
    for execution in run.tracer.executions:
        if register in execution.site.text:
            values = execution.after[operands_of(execution.site.text)[0]]
            for thread, value in zip(execution.threads.tolist(), values.tolist(), strict=True):
                read[thread].append(value)
    return read


def test_each_is_judged_here() -> None:
    judged = {"dmat", "latency", "barrier_wait", "coalescing", "reuse_distance", "hot_lines", "opcode_mix",
              "atomic_contention", "nan_finder", "launch_skew", "warp_timeline", "work_per_warp"}  # fmt: skip
    # The others are judged in tests/probing/test_shipped.py.
    assert {*shipped_probes()} - {*PROBES} == judged


# dmat


@pytest.mark.parametrize("name", [*PATTERNS, "memory", "matmul_mma_f16"])
def test_every_access_is_traced(name: str) -> None:
    run = probed("dmat", name)
    assert run.views["GlobalAccesses"].dropped == 0
    expected: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for thread, request, address in of_threads(requests(name, generic=True)):
        expected[thread].append((request.line, address, request.size, kind(request)))
    records = records_of(run)
    assert {
        thread: [(run.lines[row["site"]], row["address"], row["bytes"], row["kind"]) for row in rows]
        for thread, rows in records.items()
    } == expected
    # The twin also reads clocks in threads that a site is not for, and of generic addresses in other memory.
    has_generic = len(requests(name, generic=True)) > len(requests(name))
    assert has_generic == (name == "memory")
    clocks = {thread: [row["clock"] for row in rows] for thread, rows in records.items()}
    read = readings(run, "%clock64")
    for thread, times in clocks.items():
        assert set(times) <= set(read[thread])
    # Sorted by clock, a warp's records are its instructions, in the order in which it executed them.
    steps: dict[int, dict[int, set[tuple[int, int]]]] = defaultdict(lambda: defaultdict(set))
    for thread, rows in records.items():
        for row in rows:
            steps[warp_of(run.kernel, thread)][row["clock"]].add((run.lines[row["site"]], thread))
    order: dict[int, list[set[tuple[int, int]]]] = defaultdict(list)
    for request in requests(name, generic=True):
        order[request.warp].append({(request.line, thread) for thread in request.threads})
    assert {warp: [by_clock[at] for at in sorted(by_clock)] for warp, by_clock in steps.items()} == order
    assert run.views["NotTraced"].total() == {"matrix": 0, "other": 0}
    kinds = {row["kind"] for rows in records.values() for row in rows}
    assert kinds == ({1, 4} if name == "matmul_mma_f16" else {0, 1, 2, 3})


def test_bulk_copies_are_traced() -> None:
    run = probed("dmat", "bulk_copy")
    copies = Counter((row["address"], row["bytes"], row["kind"]) for row in run.rows("BulkCopies"))
    expected: Counter[tuple[int, int, int]] = Counter()
    for execution in seen("bulk_copy"):
        if re.match(r"cp\.async\.bulk\.(shared|global)", execution.site.opcode):
            for access in execution.accesses:
                is_global = access.spaces == Space.GLOBAL
                way = 1 if execution.site.opcode.startswith("cp.async.bulk.global") else 0
                expected.update((address, access.size, way) for address in access.addresses[is_global].tolist())
    assert copies == expected
    assert {way for _, _, way in copies} == {0, 1}


def test_a_part_of_the_accesses() -> None:
    """Each second block and warp, and of their threads each third access; without these nothing is divided."""
    run = probed("dmat", "random", (("BLOCKS", 2), ("WARPS", 2), ("ACCESSES", 3)))
    expected: dict[int, list[int]] = defaultdict(list)
    count: Counter[int] = Counter()
    size = prod(run.kernel.block)
    for thread, _, address in of_threads(requests("random")):
        if thread // size % 2 == 0 and thread % size // _LANES % 2 == 0 and count[thread] % 3 == 0:
            expected[thread].append(address)
        count[thread] += 1
    assert {thread: [row["address"] for row in rows] for thread, rows in records_of(run).items()} == expected
    sizes = [
        sum(1 for execution in one.tracer.executions if execution.site.opcode.startswith(("rem", "div")))
        for one in (run, probed("dmat", "random"))
    ]
    assert sizes[0] > 0 == sizes[1]


def test_what_does_not_fit_is_counted() -> None:
    run = probed("dmat", "random", log_units=200)
    view = run.views["GlobalAccesses"]
    assert view.dropped
    assert len(view.valid()) + view.dropped == sum(len(request.threads) for request in requests("random"))


@pytest.mark.usefixtures("ptxas")
def test_tensor_copies_are_traced() -> None:
    """The embedded device has none: each form, of each number of dimensions, has its probe, and the twin assembles."""
    copies = [
        f"cp.async.bulk.tensor.{n}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        f" [s], [%map, {{{at}}}], [s];"
        f" cp.async.bulk.tensor.{n}d.global.shared::cta.tile.bulk_group [%map, {{{at}}}], [s];"
        f" cp.reduce.async.bulk.tensor.{n}d.global.shared::cta.add.tile.bulk_group [%map, {{{at}}}], [s];"
        for n in range(1, 6)
        for at in [", ".join(["%c", "5", "6", "7", "8"][:n])]
    ]
    text = """.version 8.0
.target sm_90
.address_size 64
.visible .entry tensors(.param .u64 map, .param .u32 c) {
.shared .align 128 .b8 s[1024];
.reg .b64 %map; .reg .b32 %c;
ld.param.u64 %map, [map]; ld.param.u32 %c, [c];
COPIES
ret; }
""".replace("COPIES", "\n".join(copies))
    twins = make_twins(Kernel("tensors", text, "tensors", (1, 1, 1), (32, 1, 1), ()), load_probes(["dmat"]))
    assert skip_of(twins) is None, skip_of(twins)
    (twin,) = twins.kernels
    cubin, said = assemble(twins.render())
    assert cubin, said
    probes = Counter(site.probe for site in twin.sites if site.number is not None)
    assert probes == {f"tensor_{way}_{n}d": 1 for way in ("load", "store", "reduction") for n in range(1, 6)}


# latency, barrier_wait


def measured(run: Run, opcodes: str, *, leaders: bool = False) -> dict[int, list[int]]:
    """Line → the differences of the clocks that threads read last before and first after its instruction."""
    latest: dict[int, int] = {}
    waiting: dict[int, tuple[str, int]] = {}
    found: dict[str, list[int]] = defaultdict(list)
    for execution in run.tracer.executions:
        text = execution.site.text
        threads = execution.threads.tolist()
        if "%clock64" in text:
            values = execution.after[operands_of(text)[0]].tolist()
            for thread, value in zip(threads, values, strict=True):
                if thread in waiting:
                    place, begin = waiting.pop(thread)
                    found[place].append((value - begin) % (1 << 32))
                latest[thread] = value
        elif re.match(opcodes, execution.site.opcode) and "neutrino" not in text:
            for thread in threads:
                if not leaders or thread % prod(run.kernel.block) % _LANES == 0:
                    waiting[thread] = (" ".join(text.split()), latest[thread])
    assert not waiting
    place_of = {" ".join(e.site.text.split()): e.site.line for e in seen(run.kernel.name)}
    assert len(set(place_of.values()) & set(run.lines.values())) >= len(found)
    return {place_of[place]: values for place, values in found.items()}


@pytest.mark.parametrize(("name", "sites"), [("random", 2), ("memory", 8)])
def test_latencies(name: str, sites: int) -> None:
    run = probed("latency", name, (("HISTOGRAM", 1), ("SAMPLE", 1)))
    expected = measured(run, r"ld\.(?!param|const)")
    assert len(expected) == sites
    assert run.by_line("PerLoad") == {
        line: {"count": len(cycles), "sum": sum(cycles), "min": min(cycles), "max": max(cycles), "missed": 0}
        for line, cycles in expected.items()
    }
    buckets = {(row["low"], row["high"]): row["count"] for row in run.rows("LoadCycles") if row["count"]}
    counted: Counter[tuple[int, int]] = Counter()
    for cycles in chain.from_iterable(expected.values()):
        counted[1 << cycles.bit_length() - 1, (1 << cycles.bit_length()) - 1] += 1
    assert buckets == counted
    # The clocks at the entry: one that waits for the value, then the two that are compared.
    first = [clocks[:3] for clocks in readings(run, "%clock64").values()]
    assert run.rows("ClockOverhead") == [{"cycles": min(end - begin for _, begin, end in first)}]


def test_a_load_into_a_wider_register() -> None:
    """A probe gets the bits that are loaded: here a byte, which the kernel has in a register of 32 bits."""
    source = """import neutrino.language as nl
@nl.probe(pos="ld.global.u8", level="thread", after=True, cap=64)
def loads():
    x: nl.u8 = nl.out
    y: nl.u32 = nl.u32(x)
    nl.save((y, nl.site), dtype=nl.u32)
"""
    one = bench("crc32")
    probes = load_all(source=source)
    (twin,) = make_twins(one.kernel, probes).kernels
    place = one.place(None)
    loaded = LoadedTwin(twin, place.device.load(make_twins(one.kernel, probes).render()), {})
    found = Counter(loaded.launch(place.device, place.launch())["loads"].valid()["y"].tolist())
    expected: Counter[int] = Counter()
    for execution in seen("crc32"):
        if execution.site.opcode == "ld.global.u8":
            (destination, *_) = operands_of(execution.site.text)
            expected.update((execution.after[destination] & 0xFF).tolist())
    assert found == expected
    assert len(found) > 100


EARLY = """import neutrino.language as nl
start: nl.u64 = 0
@nl.probe(pos="POSITION", level="thread")
def issue():
    start = BEFORE
@nl.probe(pos="POSITION", level="thread", after=True)
def arrival():
    x: nl.u32 = nl.out
    nl.save(AFTER, dtype=nl.u64)
"""


@pytest.mark.parametrize(
    ("position", "before", "after", "column"),
    [
        ("ld.global.b32", "nl.clock()", "nl.clock() - start", 13),
        ("atom.global.add.u32", "nl.u64(nl.lane)", "nl.u64(nl.u32(nl.time()) - 5)", 27),
        ("ld.global.b32", "nl.clock()", "nl.clock(after=x) - start", 0),
        ("ld.global.b32", "nl.u64(nl.lane)", "nl.clock()", 0),
        ("add.u32", "nl.clock()", "nl.clock() - start", 0),
    ],
)
def test_a_clock_that_does_not_wait_is_warned_of(
    position: str, before: str, after: str, column: int, tmp_path: Path
) -> None:
    text = EARLY.replace("POSITION", position).replace("BEFORE", before).replace("AFTER", after)
    path = tmp_path / "early.py"
    path.write_text(text)
    warnings = [(one.code, one.severity, one.line, one.column) for one in check_probes([str(path)]).diagnostics]
    assert warnings == ([("early-clock", "warning", 9, column)] if column else [])


def test_waits_at_barriers() -> None:
    run = probed("barrier_wait", "gather")
    expected = measured(run, r"bar\.sync", leaders=True)
    assert run.by_line("PerWait") == {
        line: {"count": len(cycles), "sum": sum(cycles), "min": min(cycles), "max": max(cycles), "missed": 0}
        for line, cycles in expected.items()
    }
    # Three warps of each of three blocks, three times.
    assert [len(cycles) for cycles in expected.values()] == [27]


def test_waits_of_whole_warps() -> None:
    """Five barriers, all of the same text, which each of the block's four warps executes once, with all of its lanes.
    """
    run = probed("barrier_wait", "triton_softmax_sm_90")
    (cycles,) = measured(run, r"bar\.sync", leaders=True).values()
    rows = list(run.by_line("PerWait").values())
    assert [row["count"] for row in rows] == [4] * 5
    assert sum(row["sum"] for row in rows) == sum(cycles)
    assert {row["min"] for row in rows} | {row["max"] for row in rows} <= set(cycles)


# coalescing, reuse_distance, hot_lines, atomic_contention


@pytest.mark.parametrize("name", ["stride", "broadcast", "random", "memory", *STRIDED])
def test_sectors_and_different_bytes(name: str) -> None:
    run = probed("coalescing", name)
    for table, opcodes in (("LoadRequests", "ld"), ("StoreRequests", "st")):
        chosen = [request for request in requests(name, generic=True) if request.opcode.startswith(opcodes)]
        touched = [{byte for start in one.addresses for byte in range(start, start + one.size)} for one in chosen]
        assert run.views[table].total() == {
            "requests": len(chosen),
            "lanes": sum(len(one.threads) for one in chosen),
            "sectors": sum(len({byte // 32 for byte in bytes_}) for bytes_ in touched),
            "asked": sum(len(one.threads) * one.size for one in chosen),
            "distinct": sum(map(len, touched)),
        }
        assert chosen
    per_line: dict[int, list[int]] = defaultdict(list)
    for request in requests(name, generic=True):
        if request.opcode.startswith(("ld", "st")):
            per_line[request.line].append(len({address // 32 for address in request.addresses}))
    assert run.by_line("PerAccess") == {
        line: {"count": len(sectors), "sum": sum(sectors), "max": max(sectors), "missed": 0}
        for line, sectors in per_line.items()
    }
    if name == "broadcast":
        loads = run.views["LoadRequests"].total()
        assert loads["distinct"] < loads["asked"] / 2


@pytest.mark.parametrize("name", ["random", "linear", "memory"])
def test_reuse_and_hot_lines(name: str) -> None:
    distances: Counter[int] = Counter()
    lines: Counter[int] = Counter()
    latest: dict[int, list[int]] = defaultdict(list)
    for thread, request, address in of_threads(requests(name, generic=True)):
        if request.opcode.startswith("cp"):
            continue
        line = address // 128
        lines[line * 128] += 1
        stack = latest[thread]
        distances[min(stack.index(line), 8) if line in stack else 8] += 1
        latest[thread] = [line, *(other for other in stack if other != line)]
    rows = probed("reuse_distance", name).rows("Distances")
    assert {row["low"]: row["count"] for row in rows if row["count"]} == distances
    assert len(distances) > 2
    run = probed("hot_lines", name, (("SAMPLE", 1),))
    counts = {row["key"]: row["count"] for row in run.rows("HotLines")}
    assert run.views["HotLines"].dropped == 0
    assert counts == {line: lines[line] for line in counts}
    assert sorted(counts.values()) == sorted(sorted(lines.values())[-20:])
    # One access in eight, as seen once: few for so small a launch, so that some lines are in no sample.
    sampled = probed("hot_lines", name, (("SAMPLE", 8),)).rows("HotLines")
    assert sampled
    for row in sampled:
        assert row["count"] % 8 == 0
        assert abs(row["count"] - lines[row["key"]]) <= row["error"]


@pytest.mark.parametrize("name", ["random", "broadcast", "memory"])
def test_contention(name: str) -> None:
    run = probed("atomic_contention", name)
    chosen = [request for request in requests(name) if kind(request) in {2, 3}]
    shared = [
        (execution, access) for execution in seen(name)
        for access in execution.accesses
        if re.match(r"(atom|red)\.", execution.site.opcode) and ".global" not in execution.site.opcode
    ]  # fmt: skip
    groups: dict[int, list[int]] = defaultdict(list)
    for request in chosen:
        groups[request.line] += Counter(request.addresses).values()
    instructions = len(chosen)
    for execution, access in shared:
        warps: dict[int, Counter[int]] = defaultdict(Counter)
        for thread, address in zip(access.threads.tolist(), access.addresses.tolist(), strict=True):
            warps[warp_of(run.kernel, thread)][address] += 1
        instructions += len(warps)
        for counts in warps.values():
            groups[execution.site.line] += counts.values()
    every = list(chain.from_iterable(groups.values()))
    total = {"instructions": instructions, "lanes": sum(every), "addresses": len(every)}
    assert run.views["Atomics"].total() == total
    assert run.by_line("PerAtomic") == {
        line: {"count": len(lanes), "sum": sum(lanes), "max": max(lanes), "missed": 0}
        for line, lanes in groups.items()
    }


# opcode_mix

_MEMORY = {frozenset({"load"}): "load", frozenset({"store"}): "store", frozenset({"load", "store"}): "copy"}
_GROUPS = {
    "compare": "set setp selp slct testp", "logic": "and or xor not cnot lop3 shf shl shr", "move": "mov prmt",
    "lanes": "shfl vote match redux activemask elect",
    "integer": "mul24 mad24 popc clz bfind fns brev bfe bfi szext bmsk dp4a dp2a",
}  # fmt: skip
_NAMED = {word: field for field, words in _GROUPS.items() for word in words.split()}
_ARITHMETIC = re.compile(r"addc?|subc?|mul|madc?|fma|div|rem|min|max|abs|neg|sad|copysign")


def field_of(opcode: str) -> str | None:
    """The field of opcode_mix that an instruction is in."""
    parts = opcode.split(".")
    facts = find(tuple(parts))
    assert facts is not None
    for group in ("special", "barrier", "branch", "tensor", "convert", "atomic"):
        if group in facts.classes:
            return group
    if facts.classes & {"load", "store"}:
        return _MEMORY[facts.classes & {"load", "store"}]
    if _ARITHMETIC.fullmatch(parts[0]):
        if re.fullmatch(r"[us](16|32|64)(x2)?", parts[-1]):
            return "integer"
        kinds = {part for part in parts if re.fullmatch(r"b?f(16|32|64)(x2)?", part)}
        return next(f"fp{bits}" for bits in (64, 32, 16) if any(str(bits) in kind for kind in kinds))
    return _NAMED.get(parts[0])


@pytest.mark.parametrize("name", ["random", "memory", "matmul_mma_f16", "half2_arithmetic", "doubles", "shuffles"])
def test_opcodes(name: str) -> None:
    expected: Counter[str] = Counter()
    for execution in seen(name):
        expected["all"] += len(execution.threads)
        field = field_of(execution.site.opcode)
        if field:
            expected[field] += len(execution.threads)
    total = probed("opcode_mix", name).views["OpcodeMix"].total()
    assert total == {field: expected[field] for field in total}
    assert sum(total.values()) <= 2 * total["all"]


# nan_finder, launch_skew, warp_timeline, work_per_warp


def test_the_first_nan() -> None:
    run = probed("nan_finder", "random")
    first: dict[int, int] = {}
    for execution in seen("random"):
        if re.match(r"(add|sub|sqrt)\.(rn\.)?f32", execution.site.opcode):
            values = execution.after[operands_of(execution.site.text)[0]].view(np.float32)
            for thread in execution.threads[np.isnan(values)].tolist():
                first.setdefault(thread, execution.site.line)
    found = run.by_line("FirstNaN")
    assert {line: row["count"] for line, row in found.items()} == Counter(first.values())
    times = readings(run, "%globaltimer")
    assert {thread: len(values) for thread, values in times.items()} == dict.fromkeys(first, 1)
    for line, row in found.items():
        assert row["min"] == min(times[thread][0] for thread, place in first.items() if place == line)
    assert 0 < len(first) < prod(run.kernel.grid) * prod(run.kernel.block)


def test_when_blocks_and_warps_run() -> None:
    run = probed("launch_skew", "random")
    size = prod(run.kernel.block)
    begins = {thread // size: times for thread, times in readings(run, "%globaltimer").items() if thread % size == 0}
    assert [row["time"] for row in run.rows("Begins")] == [begins[block][0] for block in sorted(begins)]
    assert [row["sm"] for row in run.rows("Begins")] == [
        readings(run, "%smid")[block * size][0] for block in sorted(begins)
    ]
    assert run.rows("FirstBegin") == [{"time": min(times[0] for times in begins.values())}]
    assert run.rows("LastBegin") == [{"time": max(times[0] for times in begins.values())}]

    run = probed("warp_timeline", "random")
    times, clocks = readings(run, "%globaltimer"), readings(run, "%clock64")
    leaders = [thread for thread in sorted(times) if thread % size % _LANES == 0]
    assert [(row["begin"], row["end"], row["cycles"]) for row in run.rows("WarpTimes")] == [
        (times[thread][0], times[thread][-1], clocks[thread][-1] - clocks[thread][0]) for thread in leaders
    ]
    assert len(leaders) == 9


@pytest.mark.parametrize("name", ["random", "branches"])
def test_work(name: str) -> None:
    run = probed("work_per_warp", name)
    instructions: Counter[int] = Counter()
    accesses: Counter[int] = Counter()
    for execution in seen(name):
        facts = find(tuple(execution.site.opcode.split(".")))
        assert facts is not None
        is_access = "memory" in facts.classes and not re.search(r"\.(param|const)", execution.site.opcode)
        for thread in execution.threads.tolist():
            instructions[thread] += 1
            accesses[thread] += is_access
    warps = sorted({warp_of(run.kernel, thread) for thread in instructions})
    assert [(row["instructions"], row["accesses"]) for row in run.rows("WarpWork")] == [
        tuple(
            max(counts[thread] for thread in instructions if warp_of(run.kernel, thread) == warp)
            for counts in (instructions, accesses)
        )
        for warp in warps
    ]
