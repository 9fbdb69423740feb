"""What commands print for what somebody tries who has read the README alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from neutrino.cli import report
from tests.tracing.trace_writer import TraceWriter, fill_regions, make_map


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A trace of one launch, in the current folder."""
    monkeypatch.chdir(tmp_path)
    times = make_map("Times", "array", "warp", {"start": "u64", "elapsed": "u32"})
    writer = TraceWriter(tmp_path / "trace" / "Nov20_131500_1")
    writer.kernel(1, "saxpy", maps=[times])
    writer.launch(1, (1, 1, 1), (64, 1, 1), fill_regions([times], 2, {"Times": [(4, 1), (8, 2)]}))
    return writer.write().relative_to(tmp_path)


@pytest.mark.parametrize("option", ["--html", "--perfetto", "--iket"])
@pytest.mark.parametrize("text", ["import os\n", "\n" + "x = 1  # @\n" * 9, '{"a": 1}', "<!doctype html><title>mine"])
def test_a_file_of_somebody_else_is_not_overwritten(
    option: str, text: str, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path("copy.py")
    file.write_text(text)
    assert report.main([str(trace), option, "copy.py"]) == 2
    assert "copy.py: exists, and is not a " in capsys.readouterr().err
    assert file.read_text() == text
    # Its own are replaced, and empty ones.
    file.write_text("")
    for _ in range(2):
        assert report.main([str(trace), option, "copy.py"]) == 0
    assert file.stat().st_size > 100


def test_a_picture_of_somebody_else_is_not_overwritten(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    for form in ("png", "svg"):
        for _ in range(2):
            assert report.main([str(trace), f"--{form}", form]) == 0
        file = next(Path(form).iterdir())
        file.write_text("mine")
        capsys.readouterr()
        assert report.main([str(trace), f"--{form}", form]) == 2
        assert f"{file}: exists, and is not a picture of neutrino-report" in capsys.readouterr().err
        assert file.read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["traces"], "traces: no such folder; did you mean trace?"),
        (["nothing"], "nothing: no such folder; 'neutrino -p PROBE COMMAND' makes a trace in ./trace"),
        (["--perfetto", "x.pftrace", "tracce"], "tracce: no such folder; did you mean trace?"),
        (["--html", "trace"], "--html takes a file, and trace is a folder: neutrino-report trace --html page.html"),
        (["--html", "trace/", "p.html"], "and trace is a folder: neutrino-report trace --html page.html"),
        (["trace", "--perfetto", "trace"], "trace: a folder, where the name of a file is needed"),
    ],
)
@pytest.mark.usefixtures("trace")
def test_paths_of_reports(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.main(arguments) == 2
    assert said in capsys.readouterr().err


def test_open_takes_no_file(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        report.main([str(trace), "--open", "page.html"])
    assert "--open takes no file, --html does: --html page.html" in capsys.readouterr().err


def test_a_trace_without_its_launches_is_not_reported_as_if_it_had_them(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = trace / "launches.bin"
    whole = file.read_bytes()
    for size in (0, 1000):
        file.write_bytes(whole[:size])
        assert report.main([str(trace)]) == 2
        out, err = capsys.readouterr()
        assert "launches.bin" in err.splitlines()[0]
        assert "nothing is known of the launches without it: run the program again" in err
        assert "1970" not in out
        assert "launch" not in out
