"""The tail of launches, and waves that are not full: multiprocessors that have no block left while others do."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from neutrino.tracing.analyses.block_times import BlockTimes, block_times, has_times, places
from neutrino.tracing.analyses.devices import device_figures
from neutrino.tracing.analyses.evidence import Analysis, Evidence, middle, shared, spread_of
from neutrino.tracing.analyses.finding import FigureKind, Finding, Threshold, brief
from neutrino.tracing.percent import percent

_FULL = 0.8
"""Of a last wave: from there on it is as good as full."""
_FEW_WAVES = 8
"""Waves from which on the last one hardly counts."""
_LONG = 2.0
"""How many times the median a block takes that makes a tail of its own."""


def run(analysis: Analysis, evidence: Evidence) -> Iterator[Finding]:
    """Yield for how much of a launch multiprocessors stand idle since they have no block left."""
    # One clock for all multiprocessors says it best.
    name = next((name for name in ("WarpTimes", "BlockSched") if has_times(evidence, name)), "")
    table = device_figures(evidence.device)
    shares, waves, last, longest, evens = [], [], [], [], []
    multiprocessors = at_once = 0
    for launch in block_times(evidence, name) if name else ():
        spans, room = _spans(launch)
        count = max(len(spans), table.multiprocessors if table is not None else 0)
        multiprocessors = max(multiprocessors, count)
        # Multiprocessors without a block have the room of those with some.
        of_each = math.ceil(room / len(spans))
        at_once, room = max(at_once, of_each), of_each * count
        shares.append(1 - shared(float(spans.sum()), count * float(spans.max())))
        waves.append(len(launch.sm) / room)
        last.append(waves[-1] - math.ceil(waves[-1]) + 1)
        evens.append(_idle_of_equal_blocks(len(launch.sm), of_each, count))
        lengths = launch.end - launch.begin
        longest.append(shared(float(lengths.max()), middle(lengths)))
    if not shares:
        return
    # The launches together, by their medians.
    idle, number, fullness, ratio, even = (middle(values) for values in (shares, waves, last, longest, evens))
    values = {
        "idle": idle, "idle_of_equal_blocks": even, "waves": number, "last_wave": fullness, "longest_block": ratio,
        "multiprocessors": multiprocessors, "at_once": at_once,
    }  # fmt: skip
    certainty = evidence.certainty([name], is_timed=True, spread=spread_of("idle", shares), launches=len(shares))
    is_quantised = number < _FEW_WAVES and fullness < _FULL
    is_uneven = even < idle / 2
    sentence = f"{multiprocessors} multiprocessors have no block left for {percent(idle)} of a launch, on average"
    waves_of_it = "1 wave" if number == 1 else f"{brief(number)} waves"
    sentence += f": its blocks make {waves_of_it}, of which the last is {percent(fullness)} full"
    if ratio >= _LONG:
        sentence += f", and the longest block takes {brief(ratio)} times the median"
    if is_uneven:
        sentence += f"; if all blocks took equally long, it would be {percent(even)}"
    remedies = []
    if is_uneven:
        remedies.append("begin with the longest blocks, split them, or spread the work more evenly over the blocks")
    if number < _FULL:
        remedies.append("launch more blocks: the grid has fewer than there are places (smaller tiles, split-K)")
    elif is_quantised:
        remedies.append("choose the size of blocks or tiles so that the last wave is full, or split the work of the "
                        "last one (stream-K, split-K), or make the kernel persistent")  # fmt: skip
    if at_once == 1 and number > 1:
        remedies.append("let two blocks run on a multiprocessor at once (fewer warps, registers, less shared memory), "
                        "so that one works while the other waits or ends")  # fmt: skip
    if ratio >= _LONG and not is_uneven:
        remedies.append("begin with the longest blocks, or split them")
    if not remedies:
        remedies.append("spread the work more evenly over the blocks")
    yield analysis.finding(evidence, sentence, values, certainty, remedies=tuple(remedies))


def _idle_of_equal_blocks(blocks: int, of_each: int, multiprocessors: int) -> float:
    """Return for how much of a launch multiprocessors have no block left, on average, if all blocks take as long.

    of_each: blocks that one runs at once. Each wave gives every multiprocessor a block before any a second one.
    """
    full, rest = divmod(blocks, of_each * multiprocessors)
    return (1 - rest / multiprocessors) / (full + 1) if 0 < rest < multiprocessors else 0.0


def _spans(launch: BlockTimes) -> tuple[np.ndarray, int]:
    """Return for each multiprocessor with blocks how long it took until its last one ended, and how many blocks all of
    them run at once.

    By one clock: since the launch's first begin. By clocks of their own: since their own first begin.
    """
    spans, room = [], 0
    for begins, ends in launch.by_multiprocessor():
        spans.append(int(ends[-1]) - (0 if launch.is_global else int(begins[0])))
        room += places(begins, ends)
    return np.array(spans, np.int64), room


ANALYSIS = Analysis(
    "tail",
    "Do multiprocessors stand idle while others finish the launch?",
    (("block_sched",), ("warp_timeline",)),
    (
        FigureKind("idle", "share", "time that multiprocessors have no block left, of the launch's, on average"),
        FigureKind("idle_of_equal_blocks", "share", "what that would be if all blocks took as long"),
        FigureKind("waves", "", "blocks of the grid, by those that all multiprocessors run at once"),
        FigureKind("last_wave", "share", "part of the last wave that has blocks"),
        FigureKind("longest_block", "", "time of the longest block, by the median of all"),
        FigureKind("multiprocessors", "", "of the device if its data sheet is known, else those that ran blocks"),
        FigureKind("at_once", "", "blocks that a multiprocessor runs at once, rounded up from the mean of all"),
    ),
    (Threshold("idle", 0.1, 0.25),),
    run,
    is_cheap=False,
)
