"""What each recipe of the pages must find in the program of bed.py, by what its page says that it counts.

The keys are the recipes' texts, as they stand on the pages. The figures come from model.py alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.recipes.bed import LAUNCHES, Model, texts
from tests.recipes.model import LANES, WINDOW, Step
from tests.recipes.printed import Figure, Rows

Judge = Callable[[Model], "dict[str, Figure | Rows]"]
JUDGES: dict[str, Judge] = {}
_SHARE = {"m16n8k16": 2 * 16 * 8 * 16 // LANES, "m16n8k8": 2 * 16 * 8 * 8 // LANES}
"""Operations of a matrix instruction, of one lane."""
_LOOPS = {"saxpy": ("OUTER", "INNER"), "sum": ("TURN", "INNER"), "matrix": ("TURN",), "copy": ("TURN",)}
"""The labels of the kernels' loops."""
MULTIPROCESSORS = 32
"""Of the embedded device; block b runs on b mod 32."""


def judge(*texts: str) -> Callable[[Judge], Judge]:
    """Name the recipes that a function knows the figures of."""

    def register(function: Judge) -> Judge:
        for text in texts:
            assert text not in JUDGES
            JUDGES[text] = function
        return function

    return register


def threads(model: Model, chosen: Callable[[Step], bool]) -> Iterator[tuple[Step, int]]:
    """Each execution of a chosen instruction by a thread: the step, and the lane."""
    return ((step, lane) for step in model.steps if chosen(step) for lane in step.executing)


def groups(model: Model, chosen: Callable[[Step], bool]) -> Iterator[Step]:
    """Each execution of a chosen instruction by lanes together."""
    return (step for step in model.steps if step.executing and chosen(step))


def entries() -> Iterator[tuple[int, str, int, int]]:
    """Each thread of each launch: the launch's number, the kernel, the block, the thread in its block."""
    for number, launch in enumerate(LAUNCHES):
        for block in range(launch.blocks):
            for thread in range(launch.threads):
                yield number, launch.kernel, block, thread


def row(step: Step, lane: int, *columns: Any) -> tuple[Any, ...]:
    """A row of a ``print``."""
    return step.launch, step.kernel, step.block, step.warp, lane, *columns


def in_order(rows: Iterator[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows by launch, block, warp and lane; those of one thread stay in their order."""
    return sorted(rows, key=lambda one: (one[0], one[2], one[3], one[4]))


def loads(step: Step) -> bool:
    """ld.global"""
    return step.of("ld", "global")


def single_loads(step: Step) -> bool:
    """ld.global.f32"""
    return step.of("ld", "global", "f32")


def single_stores(step: Step) -> bool:
    """st.global.f32"""
    return step.of("st", "global", "f32")


def atomics(step: Step) -> bool:
    """atom.global | red.global"""
    return step.at.parts[0] in ("atom", "red") and step.at.space == "global"


def accesses(step: Step) -> bool:
    """memory & global"""
    return step.at.space == "global"


def has_predicate(step: Step) -> bool:
    """* @"""
    return bool(step.at.predicate)


def branches(step: Step) -> bool:
    """bra"""
    return step.at.parts[0] == "bra"


def of_kernel(name: str) -> Callable[[Step], bool]:
    return lambda step: step.kernel == name


def first_of_block(step: Step, lane: int, count: int = 1) -> bool:
    """Whether a thread is among the first ones of the grid's first block."""
    return step.block == 0 and step.thread(lane) < count


@judge("ld.global { @loads = count() }")
def _loads(model: Model) -> dict[str, Figure | Rows]:
    return {"loads": Figure("count", [(step.kernel, None, 1) for step, _ in threads(model, loads)])}


@judge("ld.global { @loaded[line] = sum(BYTES) }")
def _loaded(model: Model) -> dict[str, Figure | Rows]:
    return {
        "loaded": Figure("sum", [(step.kernel, step.at.place, step.at.size) for step, _ in threads(model, loads)])
    }


@judge("memory & shared { @loaded[line] = sum(BYTES) }")
def _shared(model: Model) -> dict[str, Figure | Rows]:
    # Copies name both spaces.
    chosen = threads(model, lambda step: step.at.size > 0 and "shared" in step.at.parts)
    return {"loaded": Figure("sum", [(step.kernel, step.at.place, step.at.size) for step, _ in chosen])}


@judge("memory & global { @moved = sum(BYTES) }")
def _moved(model: Model) -> dict[str, Figure | Rows]:
    return {"moved": Figure("sum", [(step.kernel, None, step.at.size) for step, _ in threads(model, accesses)])}


@judge("memory & global { @moved[line] = sum(BYTES) }")
def _moved_by_line(model: Model) -> dict[str, Figure | Rows]:
    chosen = threads(model, accesses)
    return {"moved": Figure("sum", [(step.kernel, step.at.place, step.at.size) for step, _ in chosen])}


@judge("memory & generic /is_global(ADDR)/ { @moved = sum(BYTES) }")
def _moved_by_generic(model: Model) -> dict[str, Figure | Rows]:
    chosen = threads(model, lambda step: step.at.space == "generic")
    found = [(step.kernel, None, step.at.size) for step, lane in chosen if step.addresses[lane] < WINDOW]
    return {"moved": Figure("sum", found)}


@judge("memory & global { @width[BYTES] = count() }")
def _width(model: Model) -> dict[str, Figure | Rows]:
    return {"width": Figure("count", [(step.kernel, step.at.size, 1) for step, _ in threads(model, accesses)])}


@judge(
    "ld.global { n = popc(warp.ballot(warp.match(ADDR >> 5) & lanemask_lt == 0)); if leader: @lanes[line] = "
    "avg(popc(LANES)); @sectors[line] = avg(n) }"
)
def _sectors(model: Model) -> dict[str, Figure | Rows]:
    chosen = list(groups(model, loads))
    return {
        "lanes": Figure("avg", [(step.kernel, step.at.place, len(step.executing)) for step in chosen]),
        "sectors": Figure("avg", [(step.kernel, step.at.place, len(sectors(step))) for step in chosen]),
    }


def sectors(step: Step, size: int = 32) -> set[int]:
    """The pieces of memory that lanes touch together."""
    return {
        byte // size
        for address in step.addresses.values()
        for byte in range(address, address + step.at.size)
    }


@judge("atom.global | red.global { @hot = topk(ADDR, 3) }")
def _hot(model: Model) -> dict[str, Figure | Rows]:
    chosen = threads(model, atomics)
    return {"hot": Figure("topk", [(step.kernel, step.addresses[lane], 1) for step, lane in chosen], most=3)}


@judge("atom.global | red.global { @hot = topk(ADDR >> 7, 3) }")
def _hot_lines(model: Model) -> dict[str, Figure | Rows]:
    chosen = threads(model, atomics)
    return {"hot": Figure("topk", [(step.kernel, step.addresses[lane] // 128, 1) for step, lane in chosen], most=3)}


@judge("st.global.f32 /f32(IN2) == 37 and block == 0 and thread < 16/ { @writers = print(thread, ADDR, line) }")
def _writers(model: Model) -> dict[str, Figure | Rows]:
    rows = (
        row(step, lane, step.thread(lane), step.addresses[lane], step.at.place)
        for step, lane in threads(model, single_stores)
        if step.inputs[lane][1] == 37 and first_of_block(step, lane, 16)
    )
    return {"writers": Rows(("thread", "ADDR", "line"), in_order(rows))}


@judge("mul.f32 /block == 0 and thread < 2/ { @factors = print(line, IN1, IN2) }")
def _factors(model: Model) -> dict[str, Figure | Rows]:
    rows = (
        row(step, lane, step.at.place, *step.inputs[lane])
        for step, lane in threads(model, lambda step: step.of("mul", "f32"))
        if first_of_block(step, lane, 2)
    )
    return {"factors": Rows(("line", "IN1", "IN2"), in_order(rows))}


@judge("mul.f32 { @least = min(IN2); @greatest = max(IN2) }")
def _range(model: Model) -> dict[str, Figure | Rows]:
    values = [
        (step.kernel, None, step.inputs[lane][1])
        for step, lane in threads(model, lambda step: step.of("mul", "f32"))
    ]
    return {"least": Figure("min", values), "greatest": Figure("max", values)}


def _printed(form: str) -> Judge:
    def rows(model: Model) -> dict[str, Figure | Rows]:
        found = (
            row(step, lane, form.format(step.inputs[lane][1]))
            for step, lane in threads(model, single_stores)
            if step.block == 0 and step.thread(lane) == 6
        )
        return {"print": Rows(("text",), in_order(found))}

    return rows


judge('st.global.f32 /block == 0 and thread == 6/ { print("y[6] = {}", IN2) }')(_printed("y[6] = {}"))
judge('st.global.f32 /block == 0 and thread == 6/ { print("y[6] becomes {}", IN2) }')(_printed("y[6] becomes {}"))


@judge("add.f32 | mul.f32 | fma.rn.f32 { x = f32(OUT); if x != x: @nan[line] = count() }")
def _nan(model: Model) -> dict[str, Figure | Rows]:
    chosen = threads(model, lambda step: step.at.opcode in ("add.f32", "mul.f32", "fma.rn.f32"))
    found = [(step.kernel, step.at.place, 1) for step, lane in chosen if math.isnan(step.outputs[lane][0])]
    return {"nan": Figure("count", found)}


@judge("ld.global.f32 { if f32(OUT) == 0: @zeros[line] = count() }")
def _zeros(model: Model) -> dict[str, Figure | Rows]:
    chosen = threads(model, single_loads)
    found = [(step.kernel, step.at.place, 1) for step, lane in chosen if step.outputs[lane][0] == 0]
    return {"zeros": Figure("count", found)}


@judge("* func:saxpy { @executed = topk(line, 5) }")
def _executed(model: Model) -> dict[str, Figure | Rows]:
    chosen = threads(model, of_kernel("saxpy"))
    return {"executed": Figure("topk", [(step.kernel, step.at.place, 1) for step, _ in chosen], most=5)}


@judge("bra { @jumps[line] = count() }")
def _jumps(model: Model) -> dict[str, Figure | Rows]:
    return {"jumps": Figure("count", [(step.kernel, step.at.place, 1) for step, _ in threads(model, branches)])}


def heads(step: Step) -> bool:
    """Whether a step begins a turn of a loop: it is where a branch further down leads."""
    text = texts()[step.kernel]
    return step.at in [text.instructions[text.labels[label]] for label in _LOOPS[step.kernel]]


def _beginning(step: Step) -> str:
    """The place of a basic block: that of its first instruction, with the labels before it."""
    text = texts()[step.kernel]
    labels = [label for label, index in text.labels.items() if text.instructions[index] == step.at]
    return f"PTX line {step.at.line}: {''.join(f'{label}: ' for label in labels)}{step.at.text}"


@judge("loop-head { @turns[line] = count() }")
def _turns(model: Model) -> dict[str, Figure | Rows]:
    found = [(step.kernel, _beginning(step), 1) for step in model.steps if heads(step) for _ in step.reaching]
    return {"turns": Figure("count", found)}


@judge("block { @reached[line] = count() }")
def _reached(model: Model) -> dict[str, Figure | Rows]:
    found = [(step.kernel, _beginning(step), 1) for step in model.steps if step.begins_block for _ in step.reaching]
    return {"reached": Figure("count", found)}


@judge("setp.gt /OUT/ { @taken = count() }")
def _greater(model: Model) -> dict[str, Figure | Rows]:
    chosen = threads(model, lambda step: step.of("setp", "gt"))
    return {"taken": Figure("count", [(step.kernel, None, 1) for step, lane in chosen if step.outputs[lane][0]])}


@judge("* func:sum { @instructions[warpid] = count() }")
def _instructions(model: Model) -> dict[str, Figure | Rows]:
    chosen = threads(model, of_kernel("sum"))
    return {"instructions": Figure("count", [(step.kernel, step.warp, 1) for step, _ in chosen])}


@judge("* func:sum { @instructions[block] = count() }")
def _instructions_of_blocks(model: Model) -> dict[str, Figure | Rows]:
    chosen = threads(model, of_kernel("sum"))
    return {"instructions": Figure("count", [(step.kernel, step.block, 1) for step, _ in chosen])}


@judge("* @ /leader/ { @lanes[line] = avg(popc(LANES)) }")
def _few_lanes(model: Model) -> dict[str, Figure | Rows]:
    chosen = groups(model, has_predicate)
    return {"lanes": Figure("avg", [(step.kernel, step.at.place, len(step.executing)) for step in chosen])}


@judge("* /leader/ { @lanes[line] = avg(popc(LANES)) }")
def _lanes(model: Model) -> dict[str, Figure | Rows]:
    chosen = groups(model, lambda step: True)
    return {"lanes": Figure("avg", [(step.kernel, step.at.place, len(step.executing)) for step in chosen])}


@judge("bra @ /leader/ { @taken[line] = avg(popc(LANES)) }")
def _taken(model: Model) -> dict[str, Figure | Rows]:
    chosen = groups(model, lambda step: branches(step) and has_predicate(step))
    return {"taken": Figure("avg", [(step.kernel, step.at.place, len(step.executing)) for step in chosen])}


@judge("tensor { @operations[line] = sum(OPS) }")
def _operations(model: Model) -> dict[str, Figure | Rows]:
    chosen = threads(model, lambda step: step.at.parts[0] == "mma")
    return {
        "operations": Figure("sum", [(step.kernel, step.at.place, _SHARE[step.at.parts[3]]) for step, _ in chosen])
    }


@judge("kernel /thread == 0/ { @blocks = lhist(smid, 0, 32, 8) }")
def _blocks(model: Model) -> dict[str, Figure | Rows]:
    found = [(kernel, None, block % MULTIPROCESSORS) for _, kernel, block, thread in entries() if thread == 0]
    return {"blocks": Figure("lhist", found, steps=(0, 32, 8))}


@judge("kernel /thread == 0/ { @blocks[smid] = count() }")
def _blocks_by_number(model: Model) -> dict[str, Figure | Rows]:
    found = [(kernel, block % MULTIPROCESSORS, 1) for _, kernel, block, thread in entries() if thread == 0]
    return {"blocks": Figure("count", found)}


@judge("kernel { @threads = count(); if block == 0 and thread == 0: @launches = count() }")
def _launches(model: Model) -> dict[str, Figure | Rows]:
    return {
        "threads": Figure("count", [(kernel, None, 1) for _, kernel, *_ in entries()]),
        "launches": Figure("count", [(launch.kernel, None, 1) for launch in LAUNCHES]),
    }


@judge('kernel /block == 0 and thread == 0/ { @sizes = print(param("n")) }')
def _sizes(model: Model) -> dict[str, Figure | Rows]:
    rows = [(number, launch.kernel, 0, 0, 0, launch.arguments["n"]) for number, launch in enumerate(LAUNCHES)]
    return {"sizes": Rows(('param("n")',), rows)}


@judge("kernel { if block == 0 and thread == 0: @launches = count() }")
def _every_second(model: Model) -> dict[str, Figure | Rows]:
    """With --every 2."""
    seen: dict[str, int] = {}
    found: list[Any] = []
    for launch in LAUNCHES:
        number = seen[launch.kernel] = seen.get(launch.kernel, -1) + 1
        found += [(launch.kernel, None, 1)] * (number % 2 == 0)
    return {"launches": Figure("count", found)}


@judge("ld.global { @bytes = hist(BYTES) }")
def _sizes_of_loads(model: Model) -> dict[str, Figure | Rows]:
    return {"bytes": Figure("hist", [(step.kernel, None, step.at.size) for step, _ in threads(model, loads)])}


@judge("ld.global { @bytes = sum(BYTES); @loads = count() }")
def _bytes_and_loads(model: Model) -> dict[str, Figure | Rows]:
    return {
        "bytes": Figure("sum", [(step.kernel, None, step.at.size) for step, _ in threads(model, loads)]),
        **_loads(model),
    }


@judge("st.global /BYTES == 16/ { @wide = count() }")
def _wide(model: Model) -> dict[str, Figure | Rows]:
    chosen = threads(model, lambda step: step.of("st", "global") and step.at.size == 16)
    return {"wide": Figure("count", [(step.kernel, None, 1) for step, _ in chosen])}


@judge("st.global /ADDR & 4 == 0/ { @pages = topk(ADDR >> 12, 3) }")
def _pages(model: Model) -> dict[str, Figure | Rows]:
    found = [
        (step.kernel, step.addresses[lane] >> 12, 1)
        for step, lane in threads(model, lambda step: step.of("st", "global"))
        if step.addresses[lane] % 8 < 4
    ]
    return {"pages": Figure("topk", found, most=3)}


@judge("ld.global /warpid == 0 and lane < 3/ { @by_lane[lane] = sum(BYTES) }")
def _by_lane(model: Model) -> dict[str, Figure | Rows]:
    chosen = threads(model, loads)
    found = [(step.kernel, lane, step.at.size) for step, lane in chosen if step.warp == 0 and lane < 3]
    return {"by_lane": Figure("sum", found)}


@judge("block { @blocks = count() }")
def _basic_blocks(model: Model) -> dict[str, Figure | Rows]:
    found = [(step.kernel, None, 1) for step in model.steps if step.begins_block for _ in step.reaching]
    return {"blocks": Figure("count", found)}


@judge('ld.global.f32 /block == 0 and thread < 2/ { print("{:.1f} from {:#x}", OUT, ADDR) }')
def _first_loads(model: Model) -> dict[str, Figure | Rows]:
    rows = (
        row(step, lane, f"{step.outputs[lane][0]:.1f} from {step.addresses[lane]:#x}")
        for step, lane in threads(model, single_loads)
        if first_of_block(step, lane, 2)
    )
    return {"print": Rows(("text",), in_order(rows))}


@judge("st.global.f32 { x = f32(IN2); if x > 30: @high = max(x); @many = count() }")
def _high(model: Model) -> dict[str, Figure | Rows]:
    found = [
        (step.kernel, None, step.inputs[lane][1])
        for step, lane in threads(model, single_stores)
        if step.inputs[lane][1] > 30
    ]
    return {"high": Figure("max", found), "many": Figure("count", found)}


@judge("ld.global | st.global { @accesses = save(ADDR, BYTES, line) }")
def _saved(model: Model) -> dict[str, Figure | Rows]:
    rows = (
        row(step, lane) for step, lane in threads(model, lambda step: loads(step) or step.of("st", "global"))
    )
    return {"accesses": Rows((), in_order(rows), is_printed=False)}


Times = Sequence[tuple[int, str, int, int]]
"""How long each thread ran: the launch's number, the kernel, the block, the steps."""
TIMED: dict[str, Callable[[Times], dict[str, Figure | Rows]]] = {}
"""As JUDGES, of recipes with ``elapsed``."""
_NEAR = 100


def _elapsed(function: str, times: Times, key: Callable[[int, int], Any] = lambda launch, block: None) -> Figure:
    found = [(kernel, key(launch, block), steps) for launch, kernel, block, steps in times]
    return Figure(function, found, near=_NEAR)


TIMED["kernel { @slowest = max(elapsed) }"] = lambda times: {"slowest": _elapsed("max", times)}
TIMED["kernel { @slowest = max(elapsed); @threads = count() }"] = lambda times: {
    "slowest": _elapsed("max", times),
    "threads": Figure("count", [(kernel, None, 1) for _, kernel, *_ in entries()]),
}
TIMED["kernel { @mean = avg(elapsed); @longest = max(elapsed) }"] = lambda times: {
    "mean": _elapsed("avg", times), "longest": _elapsed("max", times),
}  # fmt: skip
TIMED["kernel { @longest[block] = max(elapsed) }"] = lambda times: {
    "longest": _elapsed("max", times, lambda launch, block: block)
}
TIMED['kernel { @time[param("n")] = avg(elapsed) }'] = lambda times: {
    "time": _elapsed("avg", times, lambda launch, block: LAUNCHES[launch].arguments["n"])
}
