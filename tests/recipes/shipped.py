"""What each shipped probe must record of the program of bed.py, by what its page says; from model.py alone.

Clocks and times are nobody's to know: of those it is held what must be so whatever they are.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tests.recipes.bed import LAUNCHES
from tests.recipes.judges import MULTIPROCESSORS, sectors
from tests.recipes.model import LANES, WINDOW, Step
from tests.recipes.recorded import Recorded

Steps = Sequence[Step]
Rows = list[dict[str, Any]]
Judge = Callable[[Recorded, Steps, int], None]
"""Holds one launch, by what it did and its number, and fails where something is otherwise."""
JUDGES: dict[str, Judge] = {}
ENTRY, EXIT = 4294967295, 4294967294
_CLASSES = {
    "ld": "load", "st": "store", "atom": "atomic", "red": "atomic", "bar": "barrier", "bra": "branch", "ret": "branch",
    "exit": "branch", "mma": "tensor", "cp": "barrier", "cvt": "convert", "cvta": "convert", "sqrt": "special",
}  # fmt: skip
_KINDS = {"ld": 0, "st": 1, "atom": 2, "red": 3, "cp": 4}
_ARITHMETIC = ("add", "sub", "mul", "mad", "fma", "rem", "max")


def judge(name: str) -> Callable[[Judge], Judge]:
    def register(function: Judge) -> Judge:
        JUDGES[name] = function
        return function

    return register


def executed(steps: Steps, chosen: Callable[[Step], bool] = lambda step: True) -> list[Step]:
    """The steps that some lane executes."""
    return [step for step in steps if step.executing and chosen(step)]


def lanes(steps: Iterable[Step]) -> int:
    return sum(len(step.executing) for step in steps)


def is_copy(step: Step) -> bool:
    return step.at.parts[0] == "cp" and step.at.size > 0


def is_access(step: Step) -> bool:
    return step.at.space not in ("", "param")


def in_global(step: Step) -> Step | None:
    """What of a step is in global memory; None for nothing."""
    if step.at.space == "global" or (step.at.space == "generic" and max(step.addresses.values()) < WINDOW):
        return step
    return None


def accesses(steps: Steps, *families: str) -> list[Step]:
    """Executed accesses of global memory by these opcodes."""
    return executed(steps, lambda step: step.at.parts[0] in families and in_global(step) is not None)


def table(steps: Iterable[tuple[Step, int]], *keep: str) -> dict[int, dict[str, int]]:
    """A table by line of values: how many, and what is kept of them."""
    values: dict[int, list[int]] = defaultdict(list)
    for step, value in steps:
        values[step.at.line].append(value)
    made: dict[str, Callable[[list[int]], int]] = {"sum": sum, "min": min, "max": max}
    return {
        line: {"count": len(found), **{name: made[name](found) for name in keep}, "missed": 0}
        for line, found in values.items()
    }


def same(found: Any, expected: Any) -> None:
    assert found == expected, f"{found} for {expected}"


@judge("atomic_contention")
def _atomics(found: Recorded, steps: Steps, number: int) -> None:
    chosen = executed(steps, lambda step: step.at.parts[0] in ("atom", "red"))
    same_address = [(step, Counter(step.addresses.values())) for step in chosen]
    expected = {
        "instructions": len(chosen), "lanes": lanes(chosen), "addresses": sum(len(found) for _, found in same_address),
    }  # fmt: skip
    same(found.rows["Atomics"], [expected])
    each = ((step, count) for step, counts in same_address for count in counts.values())
    same(found.by_line("PerAtomic"), table(each, "sum", "max"))


@judge("barrier_wait")
def _barriers(found: Recorded, steps: Steps, number: int) -> None:
    """Of each group of lanes that waits together one figure."""
    waits = executed(steps, lambda step: step.at.parts[0] == "bar" or "wait_all" in step.at.parts)
    counts = Counter(step.at.line for step in waits)
    rows = found.by_line("PerWait")
    same({line: row["count"] for line, row in rows.items()}, counts)
    for row in rows.values():
        assert 0 < row["min"] <= row["max"]
        assert row["min"] * row["count"] <= row["sum"] <= row["max"] * row["count"]


@judge("branch_divergence")
def _divergence(found: Recorded, steps: Steps, number: int) -> None:
    chosen = [step for step in steps if step.at.parts[0] == "bra" and step.at.predicate]
    split = [step for step in chosen if 0 < len(step.executing) < len(step.reaching)]
    expected = {
        "branches": len(chosen), "diverged": len(split), "taken": lanes(chosen),
        "passed": sum(len(step.reaching) - len(step.executing) for step in chosen),
    }  # fmt: skip
    same(found.rows["BranchDivergence"], [expected])


@judge("coalescing")
def _coalescing(found: Recorded, steps: Steps, number: int) -> None:
    for name, family in (("LoadRequests", "ld"), ("StoreRequests", "st")):
        chosen = accesses(steps, family)
        expected = {
            "requests": len(chosen), "lanes": lanes(chosen), "sectors": sum(len(sectors(step)) for step in chosen),
            "asked": sum(len(step.executing) * step.at.size for step in chosen),
            "distinct": sum(len(sectors(step, 1)) for step in chosen),
        }  # fmt: skip
        same(found.rows[name], [expected])
    chosen = accesses(steps, "ld", "st")
    same(found.by_line("PerAccess"), table(((step, len(sectors(step))) for step in chosen), "sum", "max"))


def by_thread(steps: Steps, *families: str) -> dict[tuple[int, int, int], list[tuple[Step, int]]]:
    """Accesses of global memory of each thread (block, warp, lane), in its order, with the addresses; by these opcodes,
    or by all."""
    found: dict[tuple[int, int, int], list[tuple[Step, int]]] = defaultdict(list)
    for step in accesses(steps, *(families or _KINDS)):
        for lane in step.executing:
            found[step.block, step.warp, lane].append((step, step.addresses[lane]))
    return found


@judge("dmat")
def _accesses(found: Recorded, steps: Steps, number: int) -> None:
    expected = [
        (*thread, order, address, step.at.line, step.at.size, _KINDS[step.at.parts[0]])
        for thread, mine in sorted(by_thread(steps).items())
        for order, (step, address) in enumerate(mine)
    ]
    names = ("[block]", "[warp]", "[lane]", "[order]", "address", "site", "bytes", "kind")
    rows = [tuple(row[name] for name in names) for row in found.rows["GlobalAccesses"]]
    same([(*row[:5], found.lines[row[5]], *row[6:]) for row in rows], expected)
    clocks: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row in sorted(found.rows["GlobalAccesses"], key=lambda row: int(row["clock"])):
        clocks[row["[block]"], row["[warp]"]].append(found.lines[row["site"]])
    # A warp's records by their clocks are in its order.
    in_order: dict[tuple[int, int], list[int]] = defaultdict(list)
    for step in accesses(steps, *_KINDS):
        in_order[step.block, step.warp] += [step.at.line] * len(step.executing)
    same(clocks, in_order)
    same([found.rows["BulkCopies"], found.rows["TensorCopies"]], [[], []])
    same(found.rows["NotTraced"], [{"matrix": 0, "other": 0}])


@judge("gmem_bytes")
def _bytes(found: Recorded, steps: Steps, number: int) -> None:
    def moved(*families: str) -> int:
        return sum(len(step.executing) * step.at.size for step in accesses(steps, *families))

    expected = {
        "load": moved("ld"), "store": moved("st"), "atomic": moved("atom", "red"), "async": moved("cp"), "uncounted": 0,
    }  # fmt: skip
    same(found.rows["GmemBytes"], [expected])


@judge("hot_lines")
def _lines(found: Recorded, steps: Steps, number: int) -> None:
    counts: Counter[int] = Counter()
    for step in accesses(steps, "ld", "st", "atom", "red"):
        counts.update(address // 128 * 128 for address in step.addresses.values())
    # Estimates; tests/oracle has the exact counts of -D SAMPLE=1.
    for row in found.rows["HotLines"]:
        assert row["count"] % 32 == 0
        assert abs(row["count"] - counts[row["key"]]) <= row["error"]


@judge("inst_count")
def _classes(found: Recorded, steps: Steps, number: int) -> None:
    counts: Counter[str] = Counter()
    for step in steps:
        counts["all"] += len(step.executing)
        for name in ("load", "store") if is_copy(step) else (_CLASSES.get(step.at.parts[0], ""),):
            counts[name] += len(step.executing)
    (row,) = found.rows["InstCount"]
    same(row, {name: counts[name] for name in row})


@judge("latency")
def _loads(found: Recorded, steps: Steps, number: int) -> None:
    chosen = executed(steps, lambda step: step.at.parts[0] == "ld" and step.at.space != "param")
    counts: Counter[int] = Counter()
    for step in chosen:
        counts[step.at.line] += len(step.executing)
    rows = found.by_line("PerLoad")
    # Estimates, each from 1 execution of a warp in 16. What has no row has been executed by few warps.
    assert rows.keys() <= counts.keys()
    for line, count in counts.items():
        row = rows.get(line, {"count": 0, "error": 32 * 16, "sum": 0, "min": 0, "max": 0})
        assert row["count"] % 16 == 0
        # Its error follows from what was found; where that is little by chance, from what there was.
        error = max(row["error"], 1.96 * (15 * 32 * count) ** 0.5)
        assert abs(row["count"] - count) <= 1.5 * error
        assert row["min"] * row["count"] <= row["sum"] <= row["max"] * row["count"]
    ((overhead,),) = (row.values() for row in found.rows["ClockOverhead"])
    assert all(overhead <= row["min"] <= row["max"] for row in rows.values())


@judge("launch_skew")
def _begins(found: Recorded, steps: Steps, number: int) -> None:
    blocks = range(LAUNCHES[number].blocks)
    same([(row["[block]"], row["sm"]) for row in found.rows["Begins"]], [(b, b % MULTIPROCESSORS) for b in blocks])
    times = [row["time"] for row in found.rows["Begins"]]
    same([found.rows["FirstBegin"], found.rows["LastBegin"]], [[{"time": min(times)}], [{"time": max(times)}]])


def _results(steps: Steps) -> list[tuple[Step, int, float]]:
    """The results of floating-point arithmetic, each with its lane."""
    families = ("add", "sub", "mul", "fma", "sqrt")
    chosen = executed(steps, lambda step: step.at.parts[0] in families and step.at.parts[-1] == "f32")
    return [(step, lane, step.outputs[lane][0]) for step in chosen for lane in step.executing]


@judge("nan_finder")
def _first_nan(found: Recorded, steps: Steps, number: int) -> None:
    first: dict[tuple[int, int, int], int] = {}
    for step, lane, value in _results(steps):
        if math.isnan(value):
            first.setdefault((step.block, step.warp, lane), step.at.line)
    same({line: row["count"] for line, row in found.by_line("FirstNaN").items()}, Counter(first.values()))


def _field(step: Step) -> str:
    family, kind = step.at.parts[0], step.at.parts[-1]
    if is_copy(step):
        return "copy"
    if family in _ARITHMETIC:
        return "fp32" if kind == "f32" else "integer"
    groups = {"setp": "compare", "and": "logic", "shl": "logic", "shr": "logic", "mov": "move"}
    return groups.get(family) or _CLASSES[family]


@judge("opcode_mix")
def _kinds(found: Recorded, steps: Steps, number: int) -> None:
    counts: Counter[str] = Counter()
    for step in steps:
        counts["all"] += len(step.executing)
        counts[_field(step)] += len(step.executing)
    (row,) = found.rows["OpcodeMix"]
    same(row, {name: counts[name] for name in row})
    same(sum(row.values()), 2 * row["all"])


@judge("program_progress")
def _progress(found: Recorded, steps: Steps, number: int) -> None:
    """Of each warp's first thread, in its order: the entry, each branch and barrier that it reaches, its end."""
    expected: dict[tuple[int, int], list[int]] = {warp: [ENTRY] for warp in _warps(number)}
    for step in steps:
        if step.reaching[0] == 0:
            mine = expected[step.block, step.warp]
            if _CLASSES.get(step.at.parts[0]) in ("branch", "barrier") and not is_copy(step):
                mine.append(step.at.line)
            if step.at.parts[0] in ("ret", "exit") and 0 in step.executing:
                mine.append(EXIT)
    rows: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for row in found.rows["ProgramProgress"]:
        line = found.lines.get(row["site"], row["site"])
        rows[row["[block]"], row["[warp]"]].append((row["clock"], line))
        same(row["sm"], row["[block]"] % MULTIPROCESSORS)
    for warp, mine in rows.items():
        same([line for _, line in mine], expected[warp])
        assert [clock for clock, _ in mine] == sorted(clock for clock, _ in mine)
    same(rows.keys(), expected.keys())


@judge("reuse_distance")
def _distances(found: Recorded, steps: Steps, number: int) -> None:
    counts: Counter[int] = Counter()
    for mine in by_thread(steps, "ld", "st", "atom", "red").values():
        stack: list[int] = []
        for _, address in mine:
            line = address // 128
            counts[min(stack.index(line), 8) if line in stack else 8] += 1
            stack = [line, *(other for other in stack if other != line)]
    same({row["low"]: row["count"] for row in found.rows["Distances"] if row["count"]}, counts)


def _wavefronts(step: Step) -> tuple[int, int]:
    """The wavefronts that an access of shared memory takes, and those without conflicts."""
    width = {4: LANES, 8: LANES // 2, 16: LANES // 4}[max(step.at.size, 4)]
    parts = [
        {lane: address for lane, address in step.addresses.items() if lane // width == part}
        for part in range(LANES // width)
    ]
    if width < LANES:
        # Two parts are one where each lane's neighbour, the same way for all, asks for the same or is not there.
        pairs = [{**parts[n], **parts[n + 1]} for n in range(0, len(parts), 2)]
        whole = [pair if _is_paired(step, pair) and _conflicts(pair, step.at.size) == 1 else None for pair in pairs]
        parts = [
            part for number, pair in enumerate(whole)
            for part in ([pair] if pair is not None else parts[2 * number : 2 * number + 2])
        ]  # fmt: skip
    taken = [_conflicts(part, step.at.size) for part in parts if part]
    return sum(taken), len(taken)


def _is_paired(step: Step, part: dict[int, int]) -> bool:
    return any(all(part.get(lane ^ way, address) == address for lane, address in part.items()) for way in (1, 2))


def _conflicts(part: dict[int, int], size: int) -> int:
    """The different words in the busiest bank."""
    words = {address // 4 + word for address in part.values() for word in range(max(size // 4, 1))}
    return max(Counter(word % 32 for word in words).values(), default=0)


@judge("smem_bank_conflict")
def _banks(found: Recorded, steps: Steps, number: int) -> None:
    (row,) = found.rows["SmemBankConflict"]
    expected = {"matrix": 0, "matrix_wavefronts": 0, "matrix_least": 0}
    for name, family in (("load", "ld"), ("store", "st")):
        chosen = executed(steps, lambda step, family=family: step.of(family, "shared"))
        both = [_wavefronts(step) for step in chosen]
        expected[name] = len(chosen)
        expected[f"{name}_wavefronts"] = sum(taken for taken, _ in both)
        expected[f"{name}_least"] = sum(least for _, least in both)
    same(row, expected)


@judge("tensorop")
def _tensor(found: Recorded, steps: Steps, number: int) -> None:
    chosen = executed(steps, lambda step: step.at.parts[0] == "mma")
    shapes = Counter(step.at.parts[3] for step in chosen)
    counts: Counter[str] = Counter()
    for step in chosen:
        m, n, k = {"m16n8k16": (16, 8, 16), "m16n8k8": (16, 8, 8)}[step.at.parts[3]]
        counts["f16" if "f16" in step.at.parts else "tf32"] += 2 * m * n * k
    (row,) = found.rows["TensorOps"]
    same(row, {name: counts[name] for name in row})
    (row,) = found.rows["TensorInstructions"]
    same(row, {name: shapes[name.removeprefix("mma_")] for name in row})
    same(found.rows["TensorIssued"], [{"tcgen05": 0}])


@judge("value_watch")
def _values(found: Recorded, steps: Steps, number: int) -> None:
    values = [value for *_, value in _results(steps)]
    finite = [value for value in values if math.isfinite(value)]
    infinite = sum(map(math.isinf, values))
    expected = {"results": len(values), "nan": len(values) - len(finite) - infinite, "infinite": infinite}
    same(found.rows["ValueCounts"], [expected])
    same(found.rows["ValueLeast"], [{"least": min(finite)}] if finite else [])
    same(found.rows["ValueGreatest"], [{"greatest": max(finite)}] if finite else [])


def _warps(number: int) -> list[tuple[int, int]]:
    launch = LAUNCHES[number]
    return [(block, warp) for block in range(launch.blocks) for warp in range(-(-launch.threads // LANES))]


@judge("work_per_warp")
def _work(found: Recorded, steps: Steps, number: int) -> None:
    """Of each warp what the thread executes that has most of it."""
    instructions: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    accesses: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    for step in executed(steps):
        for lane in step.executing:
            instructions[step.block, step.warp][lane] += 1
            accesses[step.block, step.warp][lane] += is_access(step)
    rows = {(row["[block]"], row["[warp]"]): row for row in found.rows["WarpWork"]}
    same(list(rows), _warps(number))
    for warp, row in rows.items():
        most = max(instructions[warp].values()), max(accesses[warp].values())
        same((row["instructions"], row["accesses"]), most)


@judge("block_sched")
def _sched(found: Recorded, steps: Steps, number: int) -> None:
    rows = found.rows["BlockSched"]
    same([(row["[block]"], row["[warp]"]) for row in rows], _warps(number))
    _of_warps(found, rows, "elapsed", "cuid")


@judge("warp_timeline")
def _timeline(found: Recorded, steps: Steps, number: int) -> None:
    rows = found.rows["WarpTimes"]
    same([(row["[block]"], row["[warp]"]) for row in rows], _warps(number))
    _of_warps(found, rows, "cycles", "sm")
    # The embedded device's nanoseconds are its clock.
    assert all(abs(row["end"] - row["begin"] - row["cycles"]) <= NEAR for row in rows)


NEAR = 100
"""Steps that lie between readings of the clock by two probes in one place."""


def _of_warps(found: Recorded, rows: Rows, elapsed: str, place: str) -> None:
    """Warps end with their last thread, by the threads' own times (TIMES), which were read beside."""
    latest: dict[tuple[int, int], int] = defaultdict(int)
    for row in found.rows["Times"]:
        warp = row["[block]"], row["[warp]"]
        latest[warp] = max(latest[warp], row["cycles"])
    for row in rows:
        same(row[place], row["[block]"] % MULTIPROCESSORS)
        assert abs(row[elapsed] - latest[row["[block]"], row["[warp]"]]) <= NEAR, (row, latest)


TIMES = """import neutrino.language as nl
from neutrino import Map, probe

start: nl.u64 = 0

@Map(level="thread", type="ring", cap=1)
class Times:
    cycles: nl.u64

@probe(pos="kernel", level="thread", before=True)
def begin():
    start = nl.clock()

@probe(pos="kernel", level="thread", after=True)
def end():
    Times.save(nl.clock() - start)
"""
"""How long each thread ran."""


