"""The pictures of a page as files for papers, drawn by Matplotlib from what a page draws: PNG or SVG."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from neutrino.errors import NeutrinoError
from neutrino.page.registry import DATA
from neutrino.page.source import Json, KeptBlocks, Source
from neutrino.tracing.trace import Clock

Array = npt.NDArray[Any]
_COLUMNS = 1600
"""Of a schedule's picture."""
_DPI = 200
_WIDE = 7.0
"""Inches: the width of a page's text."""
_MOST = 24
"""Figures of one view."""
_NAME = 60
"""Characters of a kernel's name in a title."""
_SERIES = 10
Figures = Iterator[tuple[str, Any]]


def write_figures(source: Source, folder: Path, form: str) -> tuple[list[Path], list[str]]:
    """Draw each view of a trace that has something to draw; return the files, and the views without any.

    folder: is made if need be. form: ``png`` or ``svg``. Raises NeutrinoError without Matplotlib, and OSError.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise NeutrinoError(f"pictures as files need Matplotlib: pip install 'neutrino-gpu[viz]' ({error})") from error
    # Whatever the user's settings are; names of kernels hold no formulas, and text of SVG stays text.
    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    kept = KeptBlocks()
    data = {name: prepare(source, kept) for name, prepare in DATA.items()}
    files: list[Path] = []
    without = []
    settings: Any = {
        "svg.fonttype": "none", "svg.hashsalt": "neutrino", "font.size": 8, "text.usetex": False,
        "text.parse_math": False, "figure.constrained_layout.use": True,
    }  # fmt: skip
    with matplotlib.rc_context(settings):
        for view, draw in VIEWS.items():
            count = 0
            for name, figure in draw(_Drawing(source, data, kept)):
                path = folder / f"{view}-{_slug(name)}.{form}"
                if count >= _MOST or path in files:
                    continue
                figure.savefig(path, dpi=_DPI, metadata={"Date": None} if form == "svg" else None)
                files.append(path)
                count += 1
            if not count:
                without.append(view)
    return files, without


def _slug(name: str) -> str:
    """Return a name as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.")[:80] or "kernel"


class _Drawing:
    """What figures are drawn from."""

    def __init__(self, source: Source, data: Json, kept: KeptBlocks) -> None:
        """Give access to a trace's data as a page has them."""
        self.data = data
        self.kept = kept
        self.is_steps = source.summary.trace.clock is Clock.STEPS
        self._names = {kernel.kernel.id: kernel.kernel.demangled for kernel in source.summary.kernels}
        self.summary = source.summary

    def name(self, kernel: int) -> str:
        """Return a kernel's name for titles: without what is not printed."""
        text = "".join(letter if letter.isprintable() else "?" for letter in self._names.get(kernel, str(kernel)))
        return text if len(text) <= _NAME else f"{text[: _NAME - 12]}…{text[-10:]}"

    def unit(self, is_ns: bool) -> str:
        """Return the unit of times of a schedule."""
        return "steps" if self.is_steps else "ns" if is_ns else "cycles"


def _new(height: float, rows: int = 1, ratios: list[float] | None = None) -> tuple[Any, Any]:
    """Return a new figure of the width of a page's text, and its axes. height: in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDE, height))
    axes = figure.subplots(rows, 1, sharex=rows > 1, gridspec_kw={"height_ratios": ratios} if ratios else None)
    return figure, axes


def _kernels(drawing: _Drawing) -> Figures:
    """Draw kernels by the time of their launches."""
    rows = drawing.data["spans"]["kernels"]
    for is_ns in (False,) if drawing.is_steps else (True, False):
        rows = [row | {"ns": False} for row in rows] if drawing.is_steps else rows
        chosen = sorted((row for row in rows if row["ns"] is is_ns), key=lambda row: -row["time"]["sum"])[:30]
        if not chosen:
            continue
        figure, axes = _new(0.8 + 0.25 * len(chosen))
        labels = [f"{drawing.name(row['kernel'])} · {row['map']}" for row in chosen]
        axes.barh(range(len(chosen)), [row["time"]["sum"] for row in chosen], color="tab:blue")
        axes.set_yticks(range(len(chosen)), labels)
        axes.invert_yaxis()
        axes.set_xlabel(f"time of all launches, {drawing.unit(is_ns)}")
        yield drawing.unit(is_ns), figure


def _launches(drawing: _Drawing) -> Figures:
    """Draw when launches were submitted, a row for each kernel."""
    data = drawing.data["launches"]
    if not data["launches"]:
        return
    columns = drawing.kept.columns(data["block"])
    if data["kind"] == "exact":
        kernels, counts = np.unique(columns["kernel"], return_counts=True)
        kernels = kernels[np.argsort(-counts, kind="stable")][:40]
        times = [columns["time"][columns["kernel"] == kernel] / 1e6 for kernel in kernels]
        figure, axes = _new(0.9 + 0.25 * len(kernels))
        axes.eventplot(times, linelengths=0.8, linewidths=0.6, colors="tab:blue")
        axes.set_yticks(range(len(kernels)), [drawing.name(int(kernel)) for kernel in kernels])
        axes.invert_yaxis()
    else:
        cells = columns["cells"].reshape(len(columns["kernel"]), -1)[:40]
        figure, axes = _new(0.9 + 0.25 * len(cells))
        axes.imshow(
            np.log1p(cells), aspect="auto", cmap="Blues", interpolation="nearest",
            extent=(0, data["time"] / 1e6, len(cells) - 0.5, -0.5),
        )  # fmt: skip
        axes.set_yticks(range(len(cells)), [drawing.name(int(kernel)) for kernel in columns["kernel"][:40]])
    axes.set_xlabel("submitted after, ms")
    yield "submitted", figure


def _schedule(drawing: _Drawing) -> Figures:
    """Draw how many blocks were on each multiprocessor at each moment, and below it on all of them."""
    for row in drawing.data["spans"]["kernels"]:
        # The longest one that the page has.
        for drawn in sorted(row["drawn"], key=lambda drawn: -drawn["time"])[:1]:
            columns = drawing.kept.columns(drawn["block"])
            time = max(drawn["time"], 1)
            if drawn["kind"] == "grid":
                cells = columns["cells"].reshape(len(columns["sm"]), -1) / drawn["scale"]
            else:
                cells = _residency(columns, time, row["shared"])
            figure, (axes, below) = _new(min(1.6 + 0.03 * len(cells), 8), 2, [4, 1])
            image = axes.imshow(
                cells, aspect="auto", cmap="Blues", interpolation="nearest", vmin=0,
                extent=(0, time, len(cells) - 0.5, -0.5),
            )  # fmt: skip
            step = max(len(cells) // 12, 1)
            axes.set_yticks(range(0, len(cells), step), [str(sm) for sm in columns["sm"][::step].tolist()])
            axes.set_ylabel("multiprocessor")
            axes.set_title(f"{drawing.name(row['kernel'])}, launch {drawn['launch']}: {drawn['blocks']:,} blocks")
            figure.colorbar(image, ax=axes, label="blocks at once", pad=0.01)
            total = cells.sum(axis=0)
            below.fill_between(np.linspace(0, time, len(total)), total, step="mid", linewidth=0)
            below.set_ylim(0)
            below.set_ylabel("on all")
            origin = "" if row["shared"] else ", from each multiprocessor's first block on"
            below.set_xlabel(f"{drawing.unit(row['ns'])}{origin}")
            yield f"{drawing.name(row['kernel'])}-{row['map']}-{drawn['launch']}", figure


def _residency(columns: dict[str, Array], time: int, shared: bool) -> Array:
    """Return how many blocks were on each multiprocessor on average in each column of a picture, ``[sm][column]``."""
    counts = columns["count"]
    sm = np.repeat(np.arange(len(counts)), counts)
    since = np.cumsum(columns["gap"])
    firsts = np.concatenate([[0], np.cumsum(counts)])[:-1]
    begin = since - np.repeat(since[np.minimum(firsts, max(len(since) - 1, 0))], counts) if len(since) else since
    if shared:
        begin = begin + np.repeat(columns["first"], counts)
    cells = np.zeros((len(counts), _COLUMNS))
    scale = _COLUMNS / time
    # Sums of what begins and ends until each edge tell the time that was taken until then.
    edges = np.arange(_COLUMNS + 1) / scale
    for at in range(len(counts)):
        mine = sm == at if len(counts) < 2 else slice(firsts[at], firsts[at] + counts[at])
        taken = np.zeros(_COLUMNS + 1)
        for moments, sign in ((begin[mine], 1), (begin[mine] + columns["took"][mine], -1)):
            ordered = np.sort(moments)
            before = np.searchsorted(ordered, edges)
            sums = np.concatenate([[0], np.cumsum(ordered, dtype=np.float64)])
            taken += sign * (before * edges - sums[before])
        cells[at] = np.diff(taken) * scale
    return cells


def _warps(drawing: _Drawing) -> Figures:
    """Draw the warps of one multiprocessor, each in a row of its own in the order of their begins."""
    for row in drawing.data["spans"]["kernels"]:
        for drawn in row["drawn"][:1]:
            if "warps" not in drawn:
                continue
            columns = drawing.kept.columns(drawn["warps"])
            mine = np.flatnonzero(columns["sm"] == columns["sm"][0])[:600]
            begin = columns["begin"][mine] - columns["begin"][mine[0]]
            figure, axes = _new(min(1.0 + 0.03 * len(mine), 7))
            axes.barh(np.arange(len(mine)), columns["took"][mine], left=begin, height=0.8, color="tab:blue")
            axes.invert_yaxis()
            axes.set_ylabel("warps by their begin")
            axes.set_xlabel(f"{drawing.unit(row['ns'])} from the first warp on")
            axes.set_title(
                f"{drawing.name(row['kernel'])}, launch {drawn['launch']}, multiprocessor {columns['sm'][0]}"
            )
            yield f"{drawing.name(row['kernel'])}-{row['map']}", figure


def _inside(drawing: _Drawing) -> Figures:
    """Draw the ranges and marks of the first multiprocessor's warps."""
    for row in drawing.data["ranges"]["kernels"]:
        columns = drawing.kept.columns(row["block"])
        warps = np.flatnonzero(columns["sm"] == columns["sm"][0])[:64]
        chosen = np.flatnonzero(columns["row"] <= warps[-1])
        names, counts = np.unique(columns["name"][chosen], return_counts=True)
        names = names[np.argsort(-counts, kind="stable")][:_SERIES]
        figure, axes = _new(1.4 + 0.12 * len(warps))
        axes.barh(np.arange(len(warps)), columns["took"][warps], left=columns["begin"][warps], height=0.9, color="0.85")
        for series, name in enumerate(names.tolist()):
            mine = chosen[columns["name"][chosen] == name]
            length = np.where(columns["mark"][mine] > 0, row["time"] / 500, columns["length"][mine])
            text = row["names"][name] if name < len(row["names"]) else "other"
            axes.barh(
                columns["row"][mine], length, left=columns["from"][mine], height=0.7, color=f"C{series}",
                label="".join(letter if letter.isprintable() else "?" for letter in text)[:_NAME],
            )  # fmt: skip
        axes.invert_yaxis()
        axes.set_ylabel("warp")
        axes.set_xlabel(f"{row['unit']} from the first warp on")
        axes.set_title(f"{drawing.name(row['kernel'])}, launch {row['launch']}")
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
        yield drawing.name(row["kernel"]), figure


def _maps(drawing: _Drawing) -> Figures:
    """Draw histograms, and the distributions of records' fields."""
    for kernel in drawing.summary.kernels:
        for entry in kernel.maps:
            buckets = [(float(row.low), row.count) for row in entry.buckets]
            if any(count for _, count in buckets):
                yield _bars(drawing, kernel.kernel.id, entry.name, "value", buckets)
    for found in drawing.data["distributions"]["maps"]:
        for field in found["fields"]:
            buckets = [(row["low"], row["count"]) for row in field["buckets"] if not isinstance(row["low"], str)]
            if len([count for _, count in buckets if count]) > 1:
                yield _bars(drawing, found["kernel"], found["map"], field["name"], buckets)


def _bars(
    drawing: _Drawing, kernel: int, map_name: str, field: str, buckets: list[tuple[float, int]]
) -> tuple[str, Any]:
    """Return a figure of counts by bucket. buckets: least value and count of each."""
    filled = [at for at, (_, count) in enumerate(buckets) if count]
    seen = [row for row in buckets[filled[0] : filled[-1] + 1] if math.isfinite(row[0])]
    figure, axes = _new(2.2)
    axes.bar(range(len(seen)), [count for _, count in seen], width=0.9, color="tab:blue")
    step = max(len(seen) // 8, 1)
    first = seen[0][0]
    # Of values that are close together and far from zero, such as addresses, how far they are from the first.
    is_far = first > 1e4 and seen[-1][0] - first < first / 50
    shown = [f"+{low - first:,.6g}" if is_far and at else f"{low:,.6g}" for at, (low, _) in enumerate(seen[::step])]
    if is_far:
        shown[0] = f"{int(first):,}"
    axes.set_xticks(range(0, len(seen), step), shown)
    axes.set_xlabel(f"{map_name}.{field}, from")
    axes.set_ylabel("count")
    axes.set_title(drawing.name(kernel))
    return f"{drawing.name(kernel)}-{map_name}-{field}", figure


def _memory(drawing: _Drawing) -> Figures:
    """Draw accesses by address and time."""
    for row in drawing.data["accesses"]["kernels"]:
        for drawn in row["launches"]:
            if "fault" in drawn:
                continue
            columns = drawing.kept.columns(drawn["block"])
            cells = sum(columns[f"kind_{kind}"] for kind in drawn["kinds"])
            picture = np.log1p(np.asarray(cells).reshape(drawn["times"], drawn["columns"]).T)
            figure, axes = _new(4.2)
            axes.imshow(
                np.where(picture > 0, picture, np.nan), aspect="auto", cmap="viridis", interpolation="nearest",
                extent=(0, max(drawn["time"], 1), drawn["columns"], 0),
            )  # fmt: skip
            regions = drawn["regions"][:24]
            axes.set_yticks([region["columns"][0] for region in regions], [region["begin"] for region in regions])
            for region in regions:
                axes.axhline(region["columns"][0], color="0.7", linewidth=0.5)
            axes.set_ylabel("touched pages by address")
            axes.set_xlabel("steps" if drawing.is_steps else "cycles; clocks of multiprocessors have no common order")
            axes.set_title(f"{drawing.name(row['kernel'])}, launch {drawn['launch']}: {drawn['accesses']:,} accesses")
            yield f"{drawing.name(row['kernel'])}-{drawn['launch']}", figure


VIEWS: dict[str, Callable[[_Drawing], Figures]] = {
    "kernels": _kernels, "launches": _launches, "schedule": _schedule, "warps": _warps, "inside": _inside,
    "maps": _maps, "memory": _memory,
}  # fmt: skip
"""By the names of a page's views; those of text and tables alone are not drawn."""
