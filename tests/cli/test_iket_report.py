"""neutrino-report events.json and --iket: what is printed, and exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neutrino.cli.report import main
from tests.tracing.test_perfetto import gemm
from tests.tracing.test_timeline import WAITS
from tests.tracing.trace_writer import BLOCK_SCHED


@pytest.fixture
def events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    values = {"BlockSched": [(1000, 50, 0), (1000, 90, 1)], "Waits": [[(1010, 5, 3)] * 4] * 2, "Waits.counts": [1, 2]}
    gemm(tmp_path / "trace", [BLOCK_SCHED, WAITS], values, threads=32, name="\x1b[31mred").write()
    out = tmp_path / "events.json"
    assert main(["--iket", str(out), str(tmp_path / "trace")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{out}: 1 launch, 2 warps, 3 ranges, 0 marks"
    assert lines[1].startswith("note: times are cycles")
    return out


def test_events_are_reported(events: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(events)]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "1 launch on 2 multiprocessors, times in cycles" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["launch", "1", "90.0", "90", "90", "90"] in rows
    assert ["warp", "0", "2", "70.0", "50", "90", "140"] in rows
    assert ["bar.sync", "0", "(gemm.cu:42)", "3", "5.0", "5", "5", "15"] in rows


def test_json(events: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(events), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "neutrino-iket 1"
    (kernel,) = document["kernels"]
    assert kernel["ranges"] == [{"name": "bar.sync 0 (gemm.cu:42)", "count": 3, "total": 15, "least": 5, "most": 5}]


def test_it_is_written_again(events: Path, tmp_path: Path) -> None:
    assert main([str(events), "--iket", str(tmp_path / "again.json")]) == 0
    assert json.loads((tmp_path / "again.json").read_text()) == json.loads(events.read_text())


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["{events}", "-k", "none"], 3, "no kernel to report"), (["{wrong}"], 2, "has no stringTable"),
        (["{text}"], 2, "a file, and traces are folders"),
        (["{events}", "--perfetto", "x"], 2, "--perfetto is of a trace"),
        (["{events}", "--rows", "3"], 2, "events.json and --rows do not go together"),
        (["{events}", "--launch", "1"], 2, "events.json and --launch do not go together"),
        (["{events}", "--iket", "nowhere/x"], 2, "nowhere/x: No such file or directory"),
    ],
)  # fmt: skip
def test_bad_input(
    arguments: list[str], status: int, says: str, events: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "wrong.json").write_text("{}")
    (tmp_path / "text").write_text("hello")
    names = {"events": events, "wrong": tmp_path / "wrong.json", "text": tmp_path / "text"}
    try:
        found = main([word.format(**names) for word in arguments])
    except SystemExit as error:
        found = int(error.code or 0)
    assert found == status
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("member", ["ranges", "warpLifetimes"])
def test_what_ends_before_it_begins_is_in_no_figure(
    events: Path, capsys: pytest.CaptureFixture[str], member: str
) -> None:
    document = json.loads(events.read_text())
    rows = document["launches"][0][member]
    rows[0]["endTs"] = rows[0]["startTs"] - 14_064_369
    events.write_text(json.dumps(document))
    assert main([str(events), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["doubts"] == ["1 ranges and lifetimes end before they begin: left out of figures"]
    (kernel,) = report["kernels"]
    times = kernel["ranges"] if member == "ranges" else kernel["warps"]
    assert sum(row["count"] for row in times) == len(rows) - 1
    shown = [*kernel["ranges"], *kernel["warps"], kernel["span"]]
    assert all(row["least"] >= 0 and row["total"] < 1000 for row in shown)
