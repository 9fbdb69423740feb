"""The probes that ship with Neutrino, on kernels of every kind: each figure against one computed from what the
emulator's tracer saw of the original."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from neutrino.emulator.address_space import Space
from neutrino.emulator.tracer import Access, Execution, Tracer
from neutrino.ptx.isa.opcodes import find
from neutrino.tracing.views import MapView
from neutrino.verification import load_probes
from tests.oracle.bench import Bench, Kernel, skip_of
from tests.oracle.probes import Probe
from tests.oracle.simulation import operands_of
from tests.oracle.test_matrix import ALL
from tests.twin_costs import PROBES

Array = npt.NDArray[Any]

_MARK = "%marked_for_the_test"
_BRANCH = re.compile(r"(?P<guard>@\s*!?\s*[\w$%]+\s+)(?=(?P<opcode>bra)\b)", re.ASCII)
_LANES = 32
_ROW = 128
# Which lanes of a split warp come to an instruction together depends on the schedule: the tracer's.
_FIXED = None


@cache
def _bench(name: str) -> Bench:
    return Bench(ALL[name], ())


def _views(probe: str, name: str, schedule: int | None = 1) -> dict[str, MapView]:
    """What the probe recorded under a schedule; the program's results have to be the original's."""
    bench = _bench(name)
    asked = Probe(probe, ())
    twins = bench.twins(asked)
    skip = skip_of(twins)
    assert skip is None, (skip.reason, skip.detail)
    (twin,) = twins.kernels
    views, results = bench.run(asked, twin, twins.render(), schedule)
    assert results == bench.results(None)
    return views


def _totals(probe: str, name: str, schedule: int | None = 1) -> dict[str, int]:
    totals: dict[str, int] = {}
    for view in _views(probe, name, schedule).values():
        totals |= view.total()
    return totals


def _trace(kernel: Kernel, *, registers: bool = False) -> Tracer:
    """All that the original, or a kernel made from it, does."""
    place = Bench(kernel, ()).place(None)
    launch = place.launch()
    tracer = Tracer(lambda _: True, registers=registers)
    place.device.launch(
        place.function, launch.grid, launch.block, launch.parameters, shared=launch.shared, observer=tracer
    )
    return tracer


@cache
def _seen(name: str) -> tuple[Execution, ...]:
    return tuple(_trace(ALL[name]).executions)


def _by_warp(threads: Array, name: str) -> dict[int, Array]:
    """The places of an execution's threads, warp by warp: the interpreter runs several warps at once."""
    size = prod(ALL[name].block)
    warps = threads // size * -(-size // _LANES) + threads % size // _LANES
    return {int(warp): np.flatnonzero(warps == warp) for warp in np.unique(warps)}


def test_every_probe_that_ships_is_judged_here() -> None:
    # The library is judged by tests/oracle/test_library.py.
    assert {*PROBES} == {"block_sched", "gmem_bytes", *_JUDGED}


# inst_count


@pytest.mark.parametrize(
    "name", ["memory", "bodies", "branches", "matmul_mma_bf16", "triton_attention", "bulk_copy", "shuffles", "votes"]
)
def test_instructions(name: str) -> None:
    expected: Counter[str] = Counter()
    for execution in _seen(name):
        facts = find(tuple(execution.site.opcode.split(".")))
        assert facts is not None
        expected["all"] += len(execution.threads)
        for group in facts.classes - {"memory"}:
            expected[group] += len(execution.threads)
    totals = _totals("inst_count", name)
    if not ALL[name].stable:
        # How often a loop waits depends on the schedule; copies do not.
        assert totals["store"] == expected["store"] > 0
        assert totals["all"] >= sum(totals[group] for group in ("load", "atomic", "branch"))
        return
    assert totals == {group: expected[group] for group in totals}
    assert expected["load"]


# branch_divergence


@dataclass
class _Visit:
    """Lanes of a warp that come to a branch together, and how many of them take it."""

    threads: frozenset[int]
    taken: int = 0


def _visits(name: str) -> list[_Visit]:
    """Of conditional branches: a move that every lane executes is written before each."""
    kernel = ALL[name]
    text = _BRANCH.sub(rf"mov.u32 {_MARK}, 0; \g<guard>", kernel.text)
    text = re.sub(r"(\.entry[^{]*\{)", rf"\1 .reg .u32 {_MARK};", text)
    visits: list[_Visit] = []
    latest: dict[int, _Visit] = {}
    for execution in _trace(replace(kernel, text=text)).executions:
        for warp, places in _by_warp(execution.threads, name).items():
            threads = frozenset(execution.threads[places].tolist())
            if _MARK in execution.site.text:
                latest[warp] = _Visit(threads)
                visits.append(latest[warp])
            elif execution.site.opcode.startswith("bra") and "@" in execution.site.text:
                assert threads <= latest[warp].threads
                latest[warp].taken += len(threads)
    return visits


@pytest.mark.parametrize("name", ["branches", "collatz", "early_returns", "mandelbrot", "scan_warp", "nested_loops"])
def test_branches(name: str) -> None:
    visits = _visits(name)
    split = sum(0 < visit.taken < len(visit.threads) for visit in visits)
    taken = sum(visit.taken for visit in visits)
    reached = sum(len(visit.threads) for visit in visits)
    assert _totals("branch_divergence", name, _FIXED) == {
        "branches": len(visits), "diverged": split, "taken": taken, "passed": reached - taken,
    }  # fmt: skip
    assert split
    assert split < len(visits)


# smem_bank_conflict


def _together(access: Access, lanes: Array, *, rows: bool) -> list[set[int]]:
    """The lanes that go together: all, or by halves, or by quarters, two of which may go together after all."""
    parts = {4: 1, 8: 2, 16: 4}[max(access.size, 4)]
    size = _LANES // parts
    groups = [set(range(first, first + size)) for first in range(0, _LANES, size)]
    if parts == 1 or rows:
        return groups
    asked = dict(zip(lanes.tolist(), access.addresses.tolist(), strict=True))
    found = []
    for one, other in zip(groups[::2], groups[1::2], strict=True):
        both = (one | other) & asked.keys()
        merge = any(all(asked.get(lane ^ step, asked[lane]) == asked[lane] for lane in both) for step in (1, 2))
        banks = [address // access.size % (_ROW // access.size) for address in {asked[lane] for lane in both}]
        merge = merge and len(banks) == len(set(banks))
        found += [one | other] if merge else [one, other]
    return found


def _wavefronts(access: Access, lanes: Array, *, rows: bool) -> tuple[int, int]:
    """What an access takes, and the least that accesses of its width and lanes can take."""
    total = least = 0
    for group in _together(access, lanes, rows=rows):
        inside = np.isin(lanes, sorted(group))
        words: dict[int, set[int]] = {}
        for address in access.addresses[inside].tolist():
            for word in range(address // 4, (address + access.size + 3) // 4):
                words.setdefault(word % 32, set()).add(word)
        total += max(map(len, words.values()), default=0)
        least += bool(inside.any())
    return total, least


@pytest.mark.parametrize(
    "name",
    ["memory", "transpose", "scan_blelloch", "stencil", "bodies", "triton_gather_i64_sm_90", "triton_transpose_i8",
     "fragments", "matmul_mma_f16", "triton_attention"],
)  # fmt: skip
def test_wavefronts(name: str) -> None:
    expected: Counter[str] = Counter()
    size = prod(ALL[name].block)
    for execution in _seen(name):
        opcode = execution.site.opcode
        if opcode.startswith(("ld.shared", "st.shared", "ld.volatile.shared", "st.volatile.shared")):
            kind = "load" if opcode.startswith("ld") else "store"
            (access,) = execution.accesses
            assert (access.spaces == Space.SHARED).all()
        elif opcode.startswith(("ldmatrix", "stmatrix")):
            kind = "matrix"
            access = _rows(execution)
        else:
            continue
        for places in _by_warp(access.threads, name).values():
            part = Access(access.threads[places], access.addresses[places], access.size, access.spaces[places])
            total, least = _wavefronts(part, part.threads % size % _LANES, rows=kind == "matrix")
            expected[kind] += 1
            expected[f"{kind}_wavefronts"] += total
            expected[f"{kind}_least"] += least
    totals = _totals("smem_bank_conflict", name, _FIXED)
    assert totals == {field: expected[field] for field in totals}
    assert any(expected.values())


def _rows(execution: Execution) -> Access:
    """The addresses that the first eight lanes, or 16, or 32 give, one for each row of 16 bytes."""
    count = {"x1": 8, "x2": 16, "x4": 32}[next(part for part in execution.site.opcode.split(".") if part[0] == "x")]
    told: dict[int, int] = {}
    spaces = execution.accesses[0].spaces[:1]
    for access in execution.accesses:
        for thread, address in zip(access.threads.tolist(), access.addresses.tolist(), strict=True):
            told.setdefault(thread, address)
    threads = np.array([thread for thread in sorted(told) if thread % _LANES < count])
    addresses = np.array([told[thread] for thread in threads.tolist()], np.uint64)
    return Access(threads, addresses, 16, np.repeat(spaces, len(threads)))


@pytest.mark.parametrize(("size", "taken"), [(8, (4, 10, 8, 4)), (16, (8, 11, 8, 16))])
def test_parts_that_go_together(size: int, taken: tuple[int, ...]) -> None:
    """What an H200 took for loads of 8 and of 16 bytes a lane from such places of shared memory."""
    lanes = np.arange(_LANES)
    patterns = (
        np.where(lanes % 2, lanes * 7, lanes // 2 * 3),
        np.where(lanes < 20, lanes // 2 * 16, lanes % 2 + lanes // 4 * 2),
        lanes // 4 * 16,
        (lanes & 21) * 8,
    )
    for places, wavefronts in zip(patterns, taken, strict=True):
        access = Access(lanes, (places * size).astype(np.uint64), size, np.full(_LANES, Space.SHARED, np.uint8))
        assert _wavefronts(access, lanes, rows=False) == (wavefronts, size // 4)
    # CUTLASS's products on CUDA cores: the left factor's rows, the right one's columns.
    for places in (lanes % 2 + lanes // 16 * 2, lanes // 2 % 8):
        access = Access(lanes, (places * 16).astype(np.uint64), 16, np.full(_LANES, Space.SHARED, np.uint8))
        assert _wavefronts(access, lanes, rows=False) == (2, 2)


_ANY_ADDRESSES = """.version 8.0
.target sm_80
.address_size 64
.visible .entry any_addresses(.param .u64 units, .param .u64 results) {{
.reg .u64 %a<4>; .reg .u32 %t, %s; .reg .{kind} %v<4>; .reg .pred %here;
.shared .align 16 .b8 room[32768];
ld.param.u64 %a1, [units];
ld.param.u64 %a2, [results];
mov.u32 %t, %ctaid.x;
shl.b32 %t, %t, 5;
mov.u32 %s, %tid.x;
add.u32 %t, %t, %s;
mul.wide.u32 %a3, %t, 4;
add.u64 %a1, %a1, %a3;
ld.global.s32 %s, [%a1];
setp.ge.s32 %here, %s, 0;
mul.lo.u32 %s, %s, {size};
mov.u32 %t, room;
add.u32 %s, %s, %t;
@%here ld.shared.{opcode} {destination}, [%s];
st.global.u32 [%a2], %t;
ret;
}}
"""


def _patterns(units: int) -> list[Array]:
    """Which unit of shared memory each lane of a warp asks for, -1 for a lane that does not."""
    random = np.random.default_rng(17)
    lanes = np.arange(_LANES)
    found = [lanes * stride % units for stride in (0, 1, 2, 3, 4, 8, 16, 17, 31, 32, 33)]
    found += [lanes + start for start in (1, 5, 31)] + [lanes[::-1] + 7, lanes ^ 5, lanes % 2 + lanes // 16 * 2]
    found += [lanes // 2 % 8, lanes // 4 * 16, (lanes & 21) * 8, np.where(lanes % 2, lanes * 7, lanes // 2 * 3)]
    for most in (2, 8, 32, 40, 70, units):
        for _ in range(4):
            pattern = random.integers(0, most, _LANES)
            found += [pattern, np.repeat(pattern[::2], 2), pattern[lanes & ~2], np.where(lanes < 16, pattern, lanes)]
    partly = [np.where(random.random(_LANES) < share, pattern, -1) for pattern in found for share in (0.1, 0.5, 0.9)]
    return [pattern for pattern in (*found, *partly) if (pattern >= 0).any()]


@pytest.mark.parametrize(("size", "opcode", "kind", "destination"), [
    (4, "u32", "u32", "%v0"), (8, "v2.u32", "u32", "{%v0, %v1}"), (16, "v4.f32", "f32", "{%v0, %v1, %v2, %v3}"),
])  # fmt: skip
def test_wavefronts_of_any_addresses(size: int, opcode: str, kind: str, destination: str) -> None:
    """Each warp with a pattern of its own, some with lanes that are not there."""
    patterns = _patterns(2048)
    units = np.concatenate(patterns).astype(np.int32)
    text = _ANY_ADDRESSES.format(size=size, opcode=opcode, kind=kind, destination=destination)
    grid = (len(patterns), 1, 1)
    arguments = (units, np.zeros(1, np.uint32))
    bench = Bench(Kernel("any_addresses", text, "any_addresses", grid, (_LANES, 1, 1), arguments), ())
    twins = bench.twins(Probe("smem_bank_conflict", ()))
    assert skip_of(twins) is None
    views, _ = bench.run(Probe("smem_bank_conflict", ()), twins.kernels[0], twins.render(), _FIXED)
    totals = views["SmemBankConflict"].total()
    total = least = 0
    for pattern in patterns:
        lanes = np.flatnonzero(pattern >= 0)
        addresses = (pattern[lanes] * size).astype(np.uint64)
        access = Access(lanes, addresses, size, np.full(len(lanes), Space.SHARED, np.uint8))
        more, fewest = _wavefronts(access, lanes, rows=False)
        total, least = total + more, least + fewest
    assert [totals["load"], totals["load_wavefronts"], totals["load_least"]] == [len(patterns), total, least]


# tensorop


_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")
_TYPES = {"f64": "f64", "tf32": "tf32", "f16": "f16", "bf16": "bf16", "e4m3": "f8", "e5m2": "f8", "s8": "i8",
          "u8": "i8", "s4": "i4", "u4": "i4", "b1": "b1"}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["mma_f64", "mma_f16", "mma_u8", "matmul_mma_bf16", "triton_matmul_int8", "triton_attention",
     "vecadd"],
)  # fmt: skip
def test_tensor_operations(name: str) -> None:
    operations: Counter[str] = Counter()
    instructions: Counter[str] = Counter()
    for execution in _seen(name):
        parts = execution.site.opcode.split(".")
        if parts[0] != "mma":
            continue
        shape = next(part for part in parts if _SHAPE.fullmatch(part))
        warps = len(_by_warp(execution.threads, name))
        assert len(execution.threads) == warps * _LANES
        m, n, k = (int(extent) for extent in _SHAPE.findall(shape)[0])
        # The type of the second factor: after the result's and the first factor's.
        operations[_TYPES[parts[-2]]] += 2 * m * n * k * warps
        instructions[f"mma_{shape}"] += warps
    totals = _totals("tensorop", name)
    others = instructions.total() - sum(instructions[field] for field in totals)
    assert totals == {
        field: others if field == "mma_other" else operations[field] + instructions[field] for field in totals
    }


# value_watch

_RESULTS = re.compile(
    r"(?:add|sub|mul|fma|mad|div|rcp|sqrt|rsqrt|sin|cos|lg2|ex2|tanh)(?:\.\w+)*\.(?P<kind>f32|f64|f16|bf16|f16x2|bf16x2)\Z"
    r"|cvt(?:\.\w+)*\.(?P<narrow>f32\.f64|f16\.f32|f16\.f64|bf16\.f32|f16x2\.f32|bf16x2\.f32)\Z"
)


def _results(execution: Execution) -> Array | None:
    """The floating-point results of an execution, a row for each lane; None of an instruction that has none."""
    match = _RESULTS.match(execution.site.opcode)
    if match is None:
        return None
    kind = match["kind"] or match["narrow"].partition(".")[0]
    values = execution.after[operands_of(execution.site.text)[0]]
    bits = np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}").reshape(-1, 1)
    if kind in {"f32", "f64"}:
        return bits.astype("u4" if kind == "f32" else "u8").view(kind.replace("f32", "f4").replace("f64", "f8"))
    parts = np.hstack([bits & 0xFFFF, bits >> 16 & 0xFFFF]) if kind.endswith("x2") else bits & 0xFFFF
    if kind.startswith("b"):
        return (parts.astype("u4") << np.uint32(16)).view("f4")
    return parts.astype("u2").view("f2")


@pytest.mark.parametrize(
    "name", ["floats", "doubles", "half_pairs", "half2_arithmetic", "bf16_scale", "odd_values", "mandelbrot",
             "float_to_float", "roundings_f64"],
)  # fmt: skip
def test_values(name: str) -> None:
    kernel = ALL[name]
    threads = prod(kernel.grid) * prod(kernel.block)
    least, greatest = np.full(threads, np.inf), np.full(threads, -np.inf)
    results, nan, infinite = (np.zeros(threads, np.int64) for _ in range(3))
    for execution in _trace(kernel, registers=True).executions:
        found = _results(execution)
        if found is None:
            continue
        wide = found.astype(np.float64)
        finite = np.isfinite(wide)
        at = execution.threads
        least[at] = np.minimum(least[at], np.where(finite, wide, np.inf).min(axis=1))
        greatest[at] = np.maximum(greatest[at], np.where(finite, wide, -np.inf).max(axis=1))
        results[at] += found.shape[1]
        nan[at] += np.isnan(wide).sum(axis=1)
        infinite[at] += np.isinf(wide).sum(axis=1)
    views = {name: view.valid().reshape(-1) for name, view in _views("value_watch", name).items()}
    (counts,) = views["ValueCounts"]
    assert [counts[field] for field in ("results", "nan", "infinite")] == [results.sum(), nan.sum(), infinite.sum()]
    # -0 is as small as 0. Without a finite result there is no record.
    finite = np.isfinite(least).any()
    assert views["ValueLeast"]["least"].tolist() == ([least.min()] if finite else [])
    assert views["ValueGreatest"]["greatest"].tolist() == ([greatest.max()] if finite else [])
    assert results.any()


# program_progress

_ENTRY, _END = 0xFFFFFFFF, 0xFFFFFFFE


@pytest.mark.parametrize("name", ["scan_warp", "reduce_shared", "early_returns"])
def test_progress(name: str) -> None:
    views = _views("program_progress", name)
    view = views["ProgramProgress"]
    places, records = view.places(), view.valid()
    starts = records["site"] == _ENTRY
    warps = prod(ALL[name].grid) * -(-prod(ALL[name].block) // _LANES)
    assert starts.sum() == warps
    assert view.dropped == 0
    for block, warp in {(int(b), int(w)) for b, w in zip(places["block"], places["warp"], strict=True)}:
        mine = records[(places["block"] == block) & (places["warp"] == warp)]
        clocks = mine["clock"].astype(np.int64)
        assert (np.diff(clocks) > 0).all()
        assert mine["site"][0] == _ENTRY
        assert mine["site"][-1] == _END
        assert not (mine["site"][1:] == _ENTRY).any()
    (twin,) = _bench(name).twins(Probe("program_progress", ())).kernels
    numbers = {site.number for site in twin.sites}
    assert set(records["site"].tolist()) - {_ENTRY, _END} <= numbers


@pytest.mark.parametrize("name", ["collatz", "scan_warp", "reduce_shared", "mandelbrot"])
def test_progress_counts_every_step(name: str) -> None:
    """Branches that a warp's first lane comes to, taken or not, and its barriers, ends and other branches."""
    size = prod(ALL[name].block)
    warps = -(-size // _LANES)
    expected = np.full((prod(ALL[name].grid), warps), 2)

    def step(threads: list[int]) -> None:
        for thread in threads:
            if thread % size % _LANES == 0:
                expected[thread // size, thread % size // _LANES] += 1

    for visit in _visits(name):
        step(list(visit.threads))
    for execution in _seen(name):
        facts = find(tuple(execution.site.opcode.split(".")))
        assert facts is not None
        if facts.classes & {"branch", "barrier"}:
            guarded = execution.site.text.startswith("@")
            assert not guarded or execution.site.opcode.startswith("bra")
            if not guarded:
                step(execution.threads.tolist())
    view = _views("program_progress", name, _FIXED)["ProgramProgress"]
    counts = np.zeros_like(expected)
    np.add.at(counts, (view.places()["block"], view.places()["warp"]), 1)
    assert counts.tolist() == expected.tolist()


_JUDGED: dict[str, Callable[..., None]] = {
    "inst_count": test_instructions,
    "branch_divergence": test_branches,
    "smem_bank_conflict": test_wavefronts,
    "tensorop": test_tensor_operations,
    "value_watch": test_values,
    "program_progress": test_progress,
}


@pytest.mark.parametrize("name", sorted(_JUDGED))
def test_first_line_says_what_it_shows(name: str) -> None:
    probes = load_probes([name])
    head, second = probes.source.splitlines()[:2]
    assert re.fullmatch(r"# .{20,110}\.", head)
    assert second == "#"
    assert not probes.warnings
