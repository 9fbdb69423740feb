"""How long a page takes to draw its views again: a page of a large trace in Chromium, by ``bench.pictures``.

The trace fills each view as far as a page lets it: a launch of a million blocks, 2¹⁸ launches of sixty kernels, 2¹⁶
ranges of warps, a million random accesses to memory, and a text of 6,000 lines.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from neutrino.abi.launches import LAUNCH, LaunchState
from neutrino.abi.reasons import Reason
from neutrino.abi.results import FRAME
from neutrino.maps.log_reading import LOG_CONTROL, LOG_UNIT
from neutrino.page.launch_times import MOST_LAUNCHES
from neutrino.page.registry import VIEWS
from neutrino.verification import load_probes
from tests.page.browser import chromium, opened
from tests.page.made_pages import page_of
from tests.page.made_traces import BLOCKS, LANES, SITES, log_of, schedule_of
from tests.tracing.trace_writer import BLOCK_SCHED, TraceWriter, fill_regions, make_map

Json = Any
WIDTHS = (400, 1280)
MOST_REDRAW_MS = 100.0
_PICTURE = ("main canvas[tabindex]", "ArrowRight", "ArrowLeft")
REDRAWN = {
    "launches": _PICTURE, "schedule": _PICTURE, "warps": _PICTURE, "inside": _PICTURE, "memory": _PICTURE,
    "source": ("main .lines", "ArrowDown", "ArrowUp"),
}  # fmt: skip
"""Views that keys draw again: what has the keys, and two that are pressed in turns. Others are texts, tables and
charts, which do not change."""
_TIMES = 7
_WAITS = make_map("Waits", "array", "warp", {"start": "u64", "elapsed": "u32", "site": "u32"}, 16)
_BLOCKS, _WARPS, _KERNELS = 512, 8, 60
_REDRAWN = """async ({selector, keys, times}) => {
  const picture = document.querySelector(selector);
  const painted = () => new Promise(done => requestAnimationFrame(() => {
    const channel = new MessageChannel();
    channel.port1.onmessage = done;
    channel.port2.postMessage(0);
  }));
  picture.scrollIntoView();
  picture.focus();
  await painted();
  const found = [];
  for (let time = 0; time < times; time += 1) {
    const began = performance.now();
    picture.dispatchEvent(new KeyboardEvent("keydown", {key: keys[time % 2], bubbles: true}));
    await painted();
    found.push(performance.now() - began);
  }
  return found;
}"""
_SHOWN = """async (view) => {
  const painted = () => new Promise(done => requestAnimationFrame(() => {
    const channel = new MessageChannel();
    channel.port1.onmessage = done;
    channel.port2.postMessage(0);
  }));
  const began = performance.now();
  document.querySelector(`nav button[data-view=${view}]`).click();
  while (document.body.dataset.ready !== view) await new Promise(done => setTimeout(done));
  await painted();
  return performance.now() - began;
}"""


def record_redraws(folder: Path) -> Json:
    """Make the page of a large trace and open it; return milliseconds, by width and view.

    ``redraw``: from a key in the picture to when it is painted, each time, also until the next frame begins; ``shown``:
    from a click on the view's name, once its data have been read before; ``errors``: of the page. folder: empty.
    """
    page = page_of(write_large(folder / "large"), folder)
    found: Json = {}
    with chromium() as browser:
        for width in WIDTHS:
            with opened(browser, page, width) as one:
                for view in VIEWS:
                    one.go(view.name)
                    one.go("overview")
                    facts: Json = {"shown": round(one.page.evaluate(_SHOWN, view.name), 1)}
                    if view.name in REDRAWN:
                        selector, *keys = REDRAWN[view.name]
                        times = one.page.evaluate(_REDRAWN, {"selector": selector, "keys": keys, "times": _TIMES})
                        facts["redraw"] = [round(value, 1) for value in times]
                    found.setdefault(str(width), {})[view.name] = facts
                if one.said:
                    found.setdefault("errors", []).extend(one.said)
    return found


def judge_redraws(found: Json) -> list[str]:
    """Return which bounds recorded times break, a line each."""
    wrong = [f"page: {error}" for error in found.get("errors", [])]
    for width in map(str, WIDTHS):
        views = found.get(width, {})
        for name in REDRAWN:
            times = views.get(name, {}).get("redraw", [])
            if len(times) < _TIMES:
                wrong.append(f"{name}, {width} wide: {len(times)} times")
            elif median(times) > MOST_REDRAW_MS:
                wrong.append(f"{name}, {width} wide: {median(times)} ms, at most {MOST_REDRAW_MS:.0f}")
    return wrong


def redraw_table(found: Json) -> list[str]:
    """Return the times for people, a line for each view."""
    lines = []
    for name in REDRAWN:
        times = (f"{median(found[str(width)][name]['redraw']):.0f} ms {width} wide" for width in WIDTHS)
        lines.append(f"{name} drawn again: {', '.join(times)}")
    return lines


def write_large(
    path: Path, *, blocks: int = BLOCKS, launches: int = MOST_LAUNCHES, accesses: int = 1_000_000, lines: int = 5900
) -> Path:
    """Write a trace that fills each view; return its folder.

    blocks: of the launch with most. launches: of all kernels. accesses: to memory. lines: of a kernel's text.
    """
    random = np.random.default_rng(3)
    dmat = next(entry for entry in load_probes(["dmat"]).maps if entry.name == "GlobalAccesses")
    writer = TraceWriter(path)
    sites = [
        {"site": site, "probe": "p", "tracepoint": "ld", "line": 40 + 9 * site, "instruction": "ld.global.u32 %r, [%a]"}
        for site in range(SITES)
    ]  # fmt: skip
    writer.kernel(1, "gemm", maps=[BLOCK_SCHED])
    writer.kernel(2, "walk", maps=[dmat], sites=sites)
    writer.kernel(3, "waits", maps=[BLOCK_SCHED, _WAITS], sites=sites)
    for kernel in range(4, 4 + _KERNELS):
        writer.kernel(kernel, f"step{kernel}", maps=[])
    for kernel in (2, 3):
        text = [f"\tadd.s32 %r{line % 64}, %r{line % 63}, {line};" for line in range(lines)]
        (path / f"kernel/{kernel}/original.ptx").write_text("\n".join([".visible .entry k()", "{", *text, "}"]))
    rows = schedule_of(blocks)
    regions = fill_regions([BLOCK_SCHED], 1, {"BlockSched": rows}, blocks=blocks)
    writer.launch(1, (blocks, 1, 1), (LANES, 1, 1), regions)
    _launch_log(writer, log_of(dmat, "random", accesses, warps=_BLOCKS * _WARPS).records)
    _launch_waits(writer, random)
    records = np.zeros(launches - len(writer.records), LAUNCH.dtype)
    records["kernel"] = 4 + random.integers(0, _KERNELS, len(records))
    records["state"], records["grid"], records["block"] = LaunchState.SUBMITTED, (8, 1, 1), (256, 1, 1)
    records["submit_ns"] = np.sort(random.integers(10, 10**9, len(records)))
    records["stream"] = random.integers(1, 5, len(records))
    for kernel, count in zip(*np.unique(records["kernel"], return_counts=True), strict=True):
        writer.counters[kernel, Reason.PROBED] += count
    writer.records.extend(records)
    return writer.write()


def _launch_log(writer: TraceWriter, log: Any) -> None:
    """Write a launch with a log of ``dmat``. log: its region."""
    number = writer.launch(2, (_BLOCKS, 1, 1), (LANES * _WARPS, 1, 1), log.tobytes())
    record = writer.records[number]
    frame = np.frombuffer(writer.frames[2], FRAME.dtype, 1, offset=int(record["data_offset"]))
    record["log_units"] = frame["log_units"] = (len(log) - LOG_CONTROL) // LOG_UNIT


def _launch_waits(writer: TraceWriter, random: np.random.Generator) -> None:
    """Write a launch whose warps wait sixteen times each."""
    schedule = schedule_of(_BLOCKS, _WARPS)
    waits = np.zeros((_BLOCKS, _WARPS, _WAITS.cap), _WAITS.dtype)
    waits["start"] = schedule["start"][..., None] + np.arange(_WAITS.cap) * 700
    waits["elapsed"], waits["site"] = random.integers(100, 650, waits.shape), random.integers(0, SITES, waits.shape)
    values = {"BlockSched": schedule, "Waits": waits, "Waits.counts": np.full((_BLOCKS, _WARPS), _WAITS.cap)}
    regions = fill_regions([BLOCK_SCHED, _WAITS], _WARPS, values, blocks=_BLOCKS)
    writer.launch(3, (_BLOCKS, 1, 1), (LANES * _WARPS, 1, 1), regions)
