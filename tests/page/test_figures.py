"""Pictures as files: what they are drawn from, and that names are no markup and no formulas."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from neutrino.abi.reasons import Reason
from neutrino.cli.report import main
from neutrino.page import figures
from neutrino.page.registry import VIEWS
from neutrino.page.schedule import prepare_spans
from neutrino.page.source import KeptBlocks, Source
from neutrino.tracing import Trace, summarize
from tests.page.made_pages import HOSTILE, probed_patterns, write_accesses, write_schedule
from tests.tracing.test_comparison import run
from tests.tracing.trace_writer import BLOCK_SCHED, GMEM_BYTES, TraceWriter, fill_regions

matplotlib = pytest.importorskip("matplotlib", reason="Matplotlib is not installed (the extra viz)")


def test_a_schedule_is_drawn_from_exact_means(tmp_path: Path) -> None:
    """The mean number of blocks in each column of the picture, of each multiprocessor from its first block on."""
    (table,) = write_schedule(tmp_path / "trace", blocks=300, launches=1)
    kept = KeptBlocks()
    (row,) = prepare_spans(Source(summarize(Trace(tmp_path / "trace")), {}), kept)["kernels"]
    (drawn,) = row["drawn"]
    # Idle ones, too.
    assert (drawn["sms"], drawn["of"]) == (7, 132)
    columns = kept.columns(drawn["block"])
    assert columns["sm"].tolist() == list(range(132))
    cells = figures._residency(columns, drawn["time"], row["shared"])
    edges = np.linspace(0, drawn["time"], cells.shape[1] + 1)
    for sm, seen in zip(columns["sm"], cells, strict=True):
        mine = table[table[:, 1] == sm]
        if not len(mine):
            assert not seen.any()
            continue
        begin, end = mine[:, 2] - mine[:, 2].min(), mine[:, 3] - mine[:, 2].min()
        overlap = np.minimum(end[:, None], edges[1:]) - np.maximum(begin[:, None], edges[:-1])
        assert np.allclose(seen, np.maximum(overlap, 0).sum(axis=0) / (edges[1] - edges[0]), atol=1e-6)


@pytest.mark.parametrize("form", ["png", "svg"])
def test_files_of_a_trace_with_hostile_names(tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"$\\frac{{$ {HOSTILE} ../../x"
    writer = TraceWriter(tmp_path / "trace")
    writer.kernel(1, name, maps=[BLOCK_SCHED], demangled=name)
    rows = [(1000 + at, 50 + at, at % 3) for at in range(16)]
    writer.launch(1, (8, 1, 1), (64, 1, 1), fill_regions([BLOCK_SCHED], 16, {"BlockSched": rows}))
    trace = writer.write()
    folder = tmp_path / "out"
    assert main([str(trace), f"--{form}", str(folder)]) == 0
    said = capsys.readouterr().err
    assert f"pictures in {folder}; nothing to draw for inside, source, memory" in said
    files = sorted(folder.iterdir())
    assert {path.name.partition("-")[0] for path in files} == {
        "kernels", "launches", "schedule", "warps", "maps", "coverage"
    }  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "trace"]
    for path in files:
        data = path.read_bytes()
        if form == "png":
            assert data.startswith(b"\x89PNG")
            continue
        root = ElementTree.fromstring(data)
        assert not [one for one in root.iter() if one.tag.endswith(("script", "foreignObject"))]
    if form == "svg":
        (schedule,) = (path for path in files if path.name.startswith("schedule"))
        assert "launch 0: 8 blocks" in schedule.read_text()


def test_pictures_are_the_same_each_time(tmp_path: Path) -> None:
    write_schedule(tmp_path / "trace", blocks=30, launches=2)
    for name in ("one", "two"):
        assert main([str(tmp_path / "trace"), "--svg", str(tmp_path / name)]) == 0
    files = sorted((tmp_path / "one").iterdir())
    assert len(files) > 4
    assert all(path.read_bytes() == (tmp_path / "two" / path.name).read_bytes() for path in files)


def test_every_view_but_sentences_has_a_picture() -> None:
    assert {view.name for view in VIEWS} - set(figures.VIEWS) == {"overview", "findings"}


def test_lines_are_drawn_with_what_the_page_has_of_them(tmp_path: Path) -> None:
    """Bars, by their lengths and labels, are the records of each site at its line."""
    trace = probed_patterns(tmp_path / "trace")
    summary = summarize(Trace(trace))
    drawing = figures._Drawing(Source(summary, {}), None)
    found = dict(figures._source(drawing))
    (axes,) = found["patterns-GlobalAccesses: records"].axes
    (entry,) = (entry for entry in summary.kernels[0].maps if entry.name == "GlobalAccesses")
    lines = {site["site"]: site["line"] for site in json.loads((trace / "kernel/1/manifest.json").read_text())["sites"]}
    expected = sorted((lines[site.number], site.records) for site in entry.sites)
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert [bar.get_width() for bar in axes.patches] == [records for _, records in expected]
    for (line, _), label in zip(expected, labels, strict=True):
        assert label.endswith(f"line {line}")
    (entry,) = (entry for entry in summary.kernels[0].maps if entry.name == "PerAccess")
    means = sorted((lines[key.key], key.kept["sum"] / key.count) for key in entry.keys)
    (axes,) = found["patterns-PerAccess: mean"].axes
    assert [bar.get_width() for bar in axes.patches] == [mean for _, mean in means]


def test_changes_are_drawn_with_their_intervals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path / "a", 11)
    run(tmp_path / "b", 13, slower={"gemm": 1.05}, slow_site=1.5)
    command = [str(tmp_path / "a"), "--diff", str(tmp_path / "b")]
    assert main([*command, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert main([*command, "--svg", str(tmp_path / "out")]) == 1
    assert f"4 pictures in {tmp_path / 'out'}" in capsys.readouterr().err
    drawing = figures._Drawing(None, document)
    for kernel, (name, figure) in zip(
        sorted(document["kernels"], key=lambda kernel: not kernel["changed"]), figures._comparison(drawing), strict=True
    ):
        assert name.startswith(kernel["demangled"])
        (axes,) = figure.axes
        drawn = [line.get_xdata() for line in axes.lines if len(line.get_xdata()) == 2 and line.get_linewidth() > 1]
        rows = [row for row in [*kernel["figures"], *kernel["details"]] if row["low"] is not None]
        assert [list(ends) for ends in drawn] == [[100 * (row["low"] - 1), 100 * (row["high"] - 1)] for row in rows]
    assert (tmp_path / "out/comparison-gemm-int-6x1x1.svg").is_file()


@pytest.mark.parametrize("apart", [10**6, 1])
def test_memory_is_drawn_in_the_order_that_the_page_begins_with(tmp_path: Path, apart: int) -> None:
    summary = summarize(Trace(write_accesses(tmp_path / "trace", apart)))
    drawing = figures._Drawing(Source(summary, {}), None)
    ((_, figure),) = figures._memory(drawing)
    (axes,) = figure.axes
    (image,) = axes.images
    (drawn,) = drawing.rows("accesses")[0]["launches"]
    columns = drawing.kept.columns(drawn["block"])
    warps = np.log1p(columns["warps"].reshape(drawn["warp_rows"], -1).T)
    is_by_warps = image.get_array().shape == warps.shape and np.allclose(np.ma.filled(image.get_array(), 0), warps)
    assert is_by_warps is (apart > 1)
    assert axes.get_xlabel().startswith("warps of the grid, %" if apart > 1 else "cycles")
    assert 15 * apart <= drawn["starts_apart"] < 16 * apart + 100
    assert f"{drawn['starts_apart']:,}" in axes.get_xlabel()


def test_histograms_say_that_their_buckets_grow(tmp_path: Path) -> None:
    write_schedule(tmp_path / "trace", blocks=300, launches=1)
    drawing = figures._Drawing(Source(summarize(Trace(tmp_path / "trace")), {}), None)
    labels = {name: figure.axes[0].get_xlabel() for name, figure in figures._maps(drawing)}
    assert "wider the larger" in next(label for name, label in labels.items() if name.endswith("elapsed"))
    assert "wide" not in next(label for name, label in labels.items() if name.endswith("cuid"))


def test_what_pictures_leave_out_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 33 kernels with times: 24 schedules, and bars of 30; two whose names no file can tell apart have one each."""
    writer = TraceWriter(tmp_path / "trace")
    rows = [(1000 + at, 50 + at, at % 3) for at in range(16)]
    for kernel in range(1, 34):
        name = f"k{kernel}" if kernel > 2 else f"same{'<>'[kernel - 1]}"
        writer.kernel(kernel, name, maps=[BLOCK_SCHED], demangled=name)
        more = 1000 if kernel < 3 else 0
        times = [(start, elapsed + more, sm) for start, elapsed, sm in rows]
        writer.launch(kernel, (8, 1, 1), (64, 1, 1), fill_regions([BLOCK_SCHED], 16, {"BlockSched": times}))
    assert main([str(writer.write()), "--svg", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().err
    assert "not all is drawn: kernels: 30 of 33 bars, of those with most time" in said
    for view in ("schedule", "warps"):
        assert f"not all is drawn: {view}: 24 of 33 pictures" in said
        assert len(list((tmp_path / "out").glob(f"{view}-*"))) == 24
        assert len(list((tmp_path / "out").glob(f"{view}-same*"))) == 2


def test_numbers_of_an_axis_do_not_overlap(tmp_path: Path) -> None:
    """Where long names leave little room, and times are long."""
    writer = TraceWriter(tmp_path / "trace")
    name = ("fused_kernel_of_it_" * 4)[:60]
    writer.kernel(1, name, maps=[BLOCK_SCHED], demangled=name)
    times = [(1000, 640_000, 0)] * 16
    writer.launch(1, (8, 1, 1), (64, 1, 1), fill_regions([BLOCK_SCHED], 16, {"BlockSched": times}))
    drawing = figures._Drawing(Source(summarize(Trace(writer.write())), {}), None)
    # As they are when files are written.
    with matplotlib.rc_context({"font.size": 8, "figure.constrained_layout.use": True}):
        ((_, figure),) = figures._kernels(drawing)
        figure.draw_without_rendering()
    low, high = figure.axes[0].get_xlim()
    ticks = [tick for tick in figure.axes[0].xaxis.get_major_ticks() if low <= tick.get_loc() <= high]
    boxes = [tick.label1.get_window_extent() for tick in ticks]
    assert len(boxes) > 2
    assert all(one.x1 < other.x0 for one, other in itertools.pairwise(boxes))


def test_the_longest_launch_is_drawn(tmp_path: Path) -> None:
    """Of warps, too; the page begins with it."""
    write_schedule(tmp_path / "trace", blocks=60, launches=3, seed=4)
    drawing = figures._Drawing(Source(summarize(Trace(tmp_path / "trace")), {}), None)
    (row,) = drawing.rows("spans")
    longest = max(row["times"], key=lambda time: time[1])[0]
    assert longest != 0
    for draw in (figures._schedule, figures._warps):
        ((_, figure),) = draw(drawing)
        assert f"launch {longest}" in figure.axes[0].get_title()
    ((_, figure),) = figures._schedule(drawing)
    assert figure.axes[0].get_title().endswith("60 blocks on 7 of 132 multiprocessors")


def test_reasons_are_drawn_by_their_launches(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "trace")
    writer.kernel(1, "gemm", maps=[GMEM_BYTES])
    writer.kernel(2, "vendor", Reason.NO_PTX)
    writer.count(2, Reason.NO_PTX, 7)
    for _ in range(3):
        writer.launch(1, (1, 1, 1), (32, 1, 1), fill_regions([GMEM_BYTES], 1, {"GmemBytes": [(1, 2, 3, 4, 5)]}))
    summary = summarize(Trace(writer.write()))
    ((_, figure),) = figures._coverage(figures._Drawing(Source(summary, {}), None))
    (axes,) = figure.axes
    texts = [label.get_text() for label in axes.get_yticklabels()]
    assert dict(zip(texts, (bar.get_width() for bar in axes.patches), strict=True)) == {"probed": 3, "no-ptx": 7}
