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
from neutrino.page.distributions import of_widths
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
_BARS = 30
"""Of kernels by time."""
_WARPS, _ROWS = 600, 64
"""Warps of a figure: of when they ran, and of what they did."""
_SERIES = 10
_MEASURES = 4
"""Of a kernel that are drawn by line."""
_LINES = 40
"""Rows of a figure of lines, or of changes."""
Figures = Iterator[tuple[str, Any]]


def write_figures(
    source: Source | None, folder: Path, form: str, comparison: Json = None, *,
    may_write: Callable[[Path], None] | None = None,
) -> tuple[list[Path], list[str], list[str]]:  # fmt: skip
    """Draw each view of a trace that has something to draw; return the files, the views without any, and what was left
    out, a line each.

    source: None for a comparison alone. folder: is made if need be. form: ``png`` or ``svg``. comparison: of two
    traces, as ``--diff --json`` has it. may_write: is called before a file is written; what it raises ends the drawing.
    Raises NeutrinoError without Matplotlib, and OSError.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise NeutrinoError(f"pictures as files need Matplotlib: pip install 'neutrino-gpu[viz]' ({error})") from error
    # Whatever the user's settings are; names of kernels hold no formulas, and text of SVG stays text.
    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    drawing = _Drawing(source, comparison)
    files: list[Path] = []
    without = []
    settings: Any = {
        "svg.fonttype": "none", "svg.hashsalt": "neutrino", "font.size": 8, "text.usetex": False,
        "text.parse_math": False, "figure.constrained_layout.use": True,
    }  # fmt: skip
    with matplotlib.rc_context(settings):
        for view, draw in VIEWS.items():
            count = 0
            for name, figure in draw(drawing):
                count += 1
                if count > _MOST:
                    continue
                path = folder / f"{view}-{_slug(name)}.{form}"
                # Names may differ in what no file's name has.
                if path in files:
                    path = path.with_name(f"{path.stem}-{count}.{form}")
                if may_write is not None:
                    may_write(path)
                figure.savefig(path, dpi=_DPI, metadata={"Date": None} if form == "svg" else None)
                files.append(path)
            drawing.leave_out(view, min(count, _MOST), count, "pictures")
            if not count and (view == "comparison") == (source is None):
                without.append(view)
    return files, without, drawing.left_out


def _slug(name: str) -> str:
    """Return a name as a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.")[:80] or "kernel"


def _plain(text: str, most: int = _NAME) -> str:
    """Return a text for a figure: without what is not printed, and without its middle if it is longer than most."""
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= most else f"{text[: most - 12]}…{text[-10:]}"


class _Drawing:
    """What figures are drawn from."""

    def __init__(self, source: Source | None, comparison: Json) -> None:
        """Prepare a trace's data as a page has them; what cannot be read is not drawn."""
        self.kept = KeptBlocks()
        self.left_out: list[str] = []
        self.comparison = comparison
        self.data: Json = {}
        self.kernels = source.summary.kernels if source else ()
        self.is_steps = source is not None and source.summary.trace.clock is Clock.STEPS
        self.not_probed = source.summary.not_probed if source else ()
        self.probed = sum(kernel.submitted for kernel in self.kernels)
        for name, prepare in DATA.items():
            if source is None:
                continue
            try:
                self.data[name] = prepare(source, self.kept)
            except (NeutrinoError, ValueError):
                self.data[name] = {}
        self._names = {kernel.kernel.id: kernel.kernel.demangled for kernel in self.kernels}

    def leave_out(self, view: str, shown: int, of: int, what: str) -> None:
        """Note that a view's pictures have only some of what there is, if so. what: is counted."""
        if shown < of:
            self.left_out.append(f"{view}: {shown:,} of {of:,} {what}")

    def rows(self, name: str, key: str = "kernels") -> list[Json]:
        """Return what was prepared of a view, by kernel; empty if it cannot be read."""
        rows: list[Json] = self.data.get(name, {}).get(key, [])
        return rows

    def name(self, kernel: int) -> str:
        """Return a kernel's name for titles: without what is not printed."""
        return _plain(self._names.get(kernel, str(kernel)))

    def unit(self, is_ns: bool) -> str:
        """Return the unit of times of a schedule."""
        return "steps" if self.is_steps else "ns" if is_ns else "cycles"


def _new(height: float, rows: int = 1, ratios: list[float] | None = None) -> tuple[Any, Any]:
    """Return a new figure of the width of a page's text, and its axes. height: in inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDE, height))
    axes = figure.subplots(rows, 1, sharex=rows > 1, gridspec_kw={"height_ratios": ratios} if ratios else None)
    # Long numbers have no room beside each other.
    for one in np.atleast_1d(axes):
        one.xaxis.set_major_formatter(lambda value, _: _short(value))
    return figure, axes


def _short(value: float) -> str:
    """Return a number for an axis, as those of a page are."""
    for limit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if letter == 'k' else limit):.4g}{letter}"
    return f"{value:.4g}"


def _kernels(drawing: _Drawing) -> Figures:
    """Draw kernels by the time of their launches."""
    rows = drawing.rows("spans")
    for is_ns in (False,) if drawing.is_steps else (True, False):
        rows = [row | {"ns": False} for row in rows] if drawing.is_steps else rows
        timed = sorted((row for row in rows if row["ns"] is is_ns), key=lambda row: -row["time"]["sum"])
        chosen = timed[:_BARS]
        if not chosen:
            continue
        drawing.leave_out("kernels", len(chosen), len(timed), "bars, of those with most time")
        figure, axes = _new(0.8 + 0.25 * len(chosen))
        labels = [f"{drawing.name(row['kernel'])} · {row['map']}" for row in chosen]
        axes.barh(range(len(chosen)), [float(row["time"]["sum"]) for row in chosen], color="tab:blue")
        axes.set_yticks(range(len(chosen)), labels)
        axes.invert_yaxis()
        axes.set_xlabel(f"time of all launches, {drawing.unit(is_ns)}")
        yield drawing.unit(is_ns), figure


def _launches(drawing: _Drawing) -> Figures:
    """Draw when launches were submitted, a row for each kernel."""
    data = drawing.data.get("launches", {})
    if not data.get("launches"):
        return
    columns = drawing.kept.columns(data["block"])
    if data["kind"] == "exact":
        kernels, counts = np.unique(columns["kernel"], return_counts=True)
        drawing.leave_out("launches", min(len(kernels), _LINES), len(kernels), "kernels, those with most launches")
        kernels = kernels[np.argsort(-counts, kind="stable")][:_LINES]
        times = [columns["time"][columns["kernel"] == kernel] / 1e6 for kernel in kernels]
        figure, axes = _new(0.9 + 0.25 * len(kernels))
        axes.eventplot(times, linelengths=0.8, linewidths=0.6, colors="tab:blue")
        axes.set_yticks(range(len(kernels)), [drawing.name(int(kernel)) for kernel in kernels])
        axes.invert_yaxis()
    else:
        # Those with a row in the page, and the others.
        known = len(columns["kernel"]) + data["left_out"]
        drawing.leave_out("launches", min(len(columns["kernel"]), _LINES), known, "kernels")
        cells = columns["cells"].reshape(len(columns["kernel"]), -1)[:_LINES]
        figure, axes = _new(0.9 + 0.25 * len(cells))
        axes.imshow(
            np.log1p(cells), aspect="auto", cmap="Blues", interpolation="nearest",
            extent=(0, data["time"] / 1e6, len(cells) - 0.5, -0.5),
        )  # fmt: skip
        axes.set_yticks(range(len(cells)), [drawing.name(int(kernel)) for kernel in columns["kernel"][:_LINES]])
    axes.set_xlabel("submitted after, ms")
    yield "submitted", figure


def _schedule(drawing: _Drawing) -> Figures:
    """Draw how many blocks were on each multiprocessor at each moment, and below it on all of them."""
    for row in drawing.rows("spans"):
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
            of = f" on {drawn['sms']} of {drawn['of']} multiprocessors" if drawn["of"] >= drawn["sms"] else ""
            axes.set_title(f"{drawing.name(row['kernel'])}, launch {drawn['launch']}: {drawn['blocks']:,} blocks{of}")
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
    for row in drawing.rows("spans"):
        chosen = [drawn for drawn in row["drawn"] if "warps" in drawn]
        for drawn in sorted(chosen, key=lambda drawn: -drawn["time"])[:1]:
            columns = drawing.kept.columns(drawn["warps"])
            all_mine = np.flatnonzero(columns["sm"] == columns["sm"][0])
            mine = all_mine[:_WARPS]
            named = f"warps of {drawing.name(row['kernel'])}, the first ones of the multiprocessor"
            drawing.leave_out("warps", len(mine), len(all_mine), named)
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
    for row in drawing.rows("ranges"):
        columns = drawing.kept.columns(row["block"])
        all_warps = np.flatnonzero(columns["sm"] == columns["sm"][0])
        warps = all_warps[:_ROWS]
        named = f"warps of {drawing.name(row['kernel'])}, the first ones of the multiprocessor"
        drawing.leave_out("inside", len(warps), len(all_warps), named)
        chosen = np.flatnonzero(columns["row"] <= warps[-1])
        names, counts = np.unique(columns["name"][chosen], return_counts=True)
        drawing.leave_out("inside", min(len(names), _SERIES), len(names), f"names in {drawing.name(row['kernel'])}")
        names = names[np.argsort(-counts, kind="stable")][:_SERIES]
        figure, axes = _new(1.4 + 0.12 * len(warps))
        axes.barh(np.arange(len(warps)), columns["took"][warps], left=columns["begin"][warps], height=0.9, color="0.85")
        for series, name in enumerate(names.tolist()):
            mine = chosen[columns["name"][chosen] == name]
            length = np.where(columns["mark"][mine] > 0, row["time"] / 500, columns["length"][mine])
            text = row["names"][name] if name < len(row["names"]) else "other"
            axes.barh(
                columns["row"][mine], length, left=columns["from"][mine], height=0.7, color=f"C{series}",
                label=_plain(text),
            )  # fmt: skip
        axes.invert_yaxis()
        step = max(len(warps) // 24, 1)
        names_of = [
            f"{warp // row['warps_of_block']}.{warp % row['warps_of_block']}"
            for warp in columns["warp"][warps].tolist()
        ]
        axes.set_yticks(range(0, len(warps), step), names_of[::step])
        axes.set_ylabel("block.warp")
        axes.set_xlabel(f"{row['unit']} from the first warp on")
        axes.set_title(f"{drawing.name(row['kernel'])}, launch {row['launch']}")
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
        yield drawing.name(row["kernel"]), figure


def _maps(drawing: _Drawing) -> Figures:
    """Draw histograms, and the distributions of records' fields."""
    for kernel in drawing.kernels:
        for entry in kernel.maps:
            buckets = [(row.low, row.high, row.count) for row in entry.buckets]
            if any(count for *_, count in buckets):
                yield _bars(drawing, kernel.kernel.id, entry.name, "value", buckets)
    for found in drawing.rows("distributions", "maps"):
        for field in found["fields"]:
            buckets = [
                (row["low"], row["high"], row["count"]) for row in field["buckets"] if not isinstance(row["low"], str)
            ]
            if len([count for *_, count in buckets if count]) > 1:
                yield _bars(drawing, found["kernel"], found["map"], field["name"], buckets)


def _bars(
    drawing: _Drawing, kernel: int, map_name: str, field: str, buckets: list[tuple[float, float, int]]
) -> tuple[str, Any]:
    """Return a figure of counts by bucket. buckets: least value, greatest value and count of each."""
    filled = [at for at, (*_, count) in enumerate(buckets) if count]
    seen = [row for row in buckets[filled[0] : filled[-1] + 1] if math.isfinite(row[0])]
    figure, axes = _new(2.2)
    axes.bar(range(len(seen)), [float(count) for *_, count in seen], width=0.9, color="tab:blue")
    step = max(len(seen) // 8, 1)
    first = seen[0][0]
    # Of values that are close together and far from zero, such as addresses, how far they are from the first.
    is_far = first > 1e4 and seen[-1][0] - first < first / 50
    shown = [f"+{low - first:,.6g}" if is_far and at else f"{low:,.6g}" for at, (low, *_) in enumerate(seen[::step])]
    if is_far:
        shown[0] = f"{int(first):,}"
    axes.set_xticks(range(0, len(seen), step), shown)
    note = of_widths([(low, high) for low, high, _ in seen])
    axes.set_xlabel(f"{map_name}.{field}, from" + (f"\n{note}" if note else ""))
    axes.set_ylabel("count")
    axes.set_title(drawing.name(kernel))
    return f"{drawing.name(kernel)}-{map_name}-{field}", figure


def _memory(drawing: _Drawing) -> Figures:
    """Draw accesses by address, and time or the warps of the grid."""
    for row in drawing.rows("accesses"):
        for drawn in row["launches"]:
            if "fault" in drawn:
                continue
            columns = drawing.kept.columns(drawn["block"])
            # As the page begins: over time only where clocks say something of it.
            is_far, apart = drawn["far_apart"], drawn["starts_apart"]
            if is_far:
                cells = columns["warps"]
                label = (
                    f"warps of the grid, %; clocks of multiprocessors are {apart:,} of {drawn['time']:,} cycles apart"
                )
            else:
                cells = np.sum([columns[f"kind_{kind}"] for kind in drawn["kinds"]], axis=0)
                known = "how much is not known" if apart is None else f"here by {apart:,}"
                label = "steps" if drawing.is_steps else f"cycles; clocks of multiprocessors differ, {known}"
            picture = np.log1p(cells.reshape(-1, drawn["columns"]).T)
            figure, axes = _new(4.2)
            axes.imshow(
                np.where(picture > 0, picture, np.nan), aspect="auto", cmap="viridis", interpolation="nearest",
                extent=(0, 100 if is_far else max(drawn["time"], 1), drawn["columns"], 0),
            )  # fmt: skip
            regions = drawn["regions"][:24]
            axes.set_yticks([region["columns"][0] for region in regions], [region["begin"] for region in regions])
            for region in regions:
                axes.axhline(region["columns"][0], color="0.7", linewidth=0.5)
            axes.set_ylabel("touched pages by address")
            axes.set_xlabel(label)
            axes.set_title(f"{drawing.name(row['kernel'])}, launch {drawn['launch']}: {drawn['accesses']:,} accesses")
            yield f"{drawing.name(row['kernel'])}-{drawn['launch']}", figure


def _source(drawing: _Drawing) -> Figures:
    """Draw what was recorded at lines of a kernel's text: those with most, in the order of the text."""
    for row in drawing.rows("sources"):
        text = drawing.kept.json(row["block"])
        line_of, shown = dict(text["sites"]), dict(zip([at for at, _ in text["lines"]], text["shown"], strict=True))
        lines = dict(text["lines"])
        places = {line: f"{Path(row['files'][file]).name}:{at}" for line, file, at in text["places"]}
        measures = row["measures"][:_MEASURES]
        drawing.leave_out("source", len(measures), len(row["measures"]), f"measures of {drawing.name(row['kernel'])}")
        for measure in measures:
            values = {line: value for line, value in _by_line(measure, line_of).items() if line in lines}
            chosen = sorted(sorted(values, key=lambda line: -values[line])[:_LINES])
            if not chosen:
                continue
            named = f"lines of {drawing.name(row['kernel'])} with {_plain(measure['name'])}, those with most"
            drawing.leave_out("source", len(chosen), len(values), named)
            figure, axes = _new(0.8 + 0.18 * len(chosen))
            axes.barh(range(len(chosen)), [float(values[line]) for line in chosen], color="tab:orange")
            labels = [
                f"{_plain(' '.join(lines[line].split()))}  {_plain(places.get(line, f'line {shown[line]}'), 30)}"
                for line in chosen
            ]
            axes.set_yticks(range(len(chosen)), labels, fontfamily="monospace", fontsize=6)
            axes.invert_yaxis()
            axes.set_xlabel(_plain(measure["name"]))
            axes.set_title(drawing.name(row["kernel"]))
            yield f"{drawing.name(row['kernel'])}-{measure['name']}", figure


def _by_line(measure: Json, line_of: dict[int, int]) -> dict[int, float]:
    """Return a measure's values by line. line_of: of sites."""
    found: dict[int, list[tuple[float, int]]] = {}
    for site, value, *count in measure["values"]:
        if site in line_of:
            found.setdefault(line_of[site], []).append((value, count[0] if count else 1))
    if measure["kind"] in ("max", "min"):
        best = max if measure["kind"] == "max" else min
        return {line: best(value for value, _ in values) for line, values in found.items()}
    sums = {line: sum(value for value, _ in values) for line, values in found.items()}
    if measure["kind"] == "sum":
        return sums
    return {line: total / sum(count for _, count in found[line]) for line, total in sums.items()}


def _coverage(drawing: _Drawing) -> Figures:
    """Draw how many launches were probed, and how many were not by the reason."""
    counts = {"probed": drawing.probed} if drawing.probed else {}
    for row in drawing.not_probed:
        if not row.launches:
            continue
        counts[row.reason.word] = counts.get(row.reason.word, 0) + row.launches
    if not counts:
        return
    figure, axes = _new(0.9 + 0.25 * len(counts))
    reasons = ["probed"] * ("probed" in counts) + sorted(counts.keys() - {"probed"}, key=lambda word: -counts[word])
    bars = axes.barh(range(len(reasons)), [float(counts[reason]) for reason in reasons], color="tab:gray")
    if "probed" in counts:
        bars[0].set_color("tab:blue")
    axes.bar_label(bars, [f"{counts[reason]:,}" for reason in reasons], padding=2)
    axes.set_yticks(range(len(reasons)), reasons)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel("launches")
    yield "launches", figure


def _comparison(drawing: _Drawing) -> Figures:
    """Draw the changes of each kernel between two traces, with their intervals and the threshold."""
    found = drawing.comparison or {"kernels": []}
    for kernel in sorted(found["kernels"], key=lambda kernel: not kernel["changed"]):
        judged = [row for row in (*kernel["figures"], *kernel["details"]) if row["verdict"] != "not judged"]
        # From 0 on there is no ratio; of counts, which have no interval, only a change is something to draw.
        all_rows = [
            row for row in judged
            if isinstance(row["ratio"], float | int) and (row["low"] is not None or row["verdict"] == "changed")
        ]  # fmt: skip
        rows = all_rows[:_LINES]
        if not rows:
            continue
        drawing.leave_out("comparison", len(rows), len(all_rows), f"figures of {_plain(kernel['demangled'])}")
        figure, axes = _new(1.0 + 0.2 * len(rows))
        threshold = found["threshold_percent"]
        axes.axvspan(-threshold, threshold, color="0.9", linewidth=0)
        axes.axvline(0, color="0.6", linewidth=0.6)
        for at, row in enumerate(rows):
            ratio = 100 * (row["ratio"] - 1)
            colour = "tab:red" if row["verdict"] == "changed" else "tab:gray"
            if row["low"] is not None:
                ends = [100 * (row[name] - 1) for name in ("low", "high")]
                axes.plot(ends, [at, at], color=colour, linewidth=1.5)
            axes.plot([ratio], [at], "o", color=colour, markersize=3)
        labels = [_plain(f"{row['where']}, {row['name']}" if row["where"] else row["name"]) for row in rows]
        axes.set_yticks(range(len(rows)), labels)
        axes.invert_yaxis()
        axes.set_xlabel("change, %; the grey band is the threshold")
        axes.set_title(_plain(kernel["demangled"]))
        yield f"{_plain(kernel['demangled'])}-{'x'.join(map(str, kernel['grid']))}", figure


VIEWS: dict[str, Callable[[_Drawing], Figures]] = {
    "kernels": _kernels, "launches": _launches, "schedule": _schedule, "warps": _warps, "inside": _inside,
    "maps": _maps, "source": _source, "memory": _memory, "coverage": _coverage, "comparison": _comparison,
}  # fmt: skip
"""By the names of a page's views. The overview and the findings are sentences and tables, and are not drawn."""
