"""Pictures as files: what they are drawn from, and that names are no markup and no formulas."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from neutrino.cli.report import main
from neutrino.page import figures
from neutrino.page.schedule import prepare_spans
from neutrino.page.source import KeptBlocks, Source
from neutrino.tracing import Trace, summarize
from tests.page.made_pages import HOSTILE, write_schedule
from tests.tracing.trace_writer import BLOCK_SCHED, TraceWriter, fill_regions

pytest.importorskip("matplotlib", reason="Matplotlib is not installed (the extra viz)")


def test_a_schedule_is_drawn_from_exact_means(tmp_path: Path) -> None:
    """The mean number of blocks in each column of the picture, of each multiprocessor from its first block on."""
    (table,) = write_schedule(tmp_path / "trace", blocks=300, launches=1)
    kept = KeptBlocks()
    (row,) = prepare_spans(Source(summarize(Trace(tmp_path / "trace")), {}), kept)["kernels"]
    (drawn,) = row["drawn"]
    columns = kept.columns(drawn["block"])
    cells = figures._residency(columns, drawn["time"], row["shared"])
    edges = np.linspace(0, drawn["time"], cells.shape[1] + 1)
    for sm, seen in zip(columns["sm"], cells, strict=True):
        mine = table[table[:, 1] == sm]
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
    assert f"pictures in {folder}; nothing to draw for inside, memory" in said
    files = sorted(folder.iterdir())
    assert {path.name.partition("-")[0] for path in files} == {"kernels", "launches", "schedule", "warps", "maps"}
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
