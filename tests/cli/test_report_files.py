"""neutrino-report --perfetto: files, what is said of them, and exit statuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from neutrino.abi.reasons import Reason
from neutrino.cli.report import main
from neutrino.maps.regions import copies_in
from tests.tracing.test_perfetto import seen
from tests.tracing.test_roles import WORK
from tests.tracing.trace_writer import BLOCK_SCHED, GMEM_BYTES, TraceWriter, fill_regions


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    writer = TraceWriter(tmp_path / "Nov20_131500_4242")
    writer.kernel(1, "vecadd", maps=[BLOCK_SCHED])
    writer.kernel(2, "\x1b[31mred", maps=[BLOCK_SCHED])
    writer.kernel(3, "idle", Reason.NO_PTX)
    for kernel in (1, 2, 1):
        writer.launch(kernel, (1, 1, 1), (32, 1, 1), fill_regions([BLOCK_SCHED], 1, {"BlockSched": [(1, 9, 0)]}))
    return writer.write()


def test_perfetto_says_what_was_written(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.pftrace"
    assert main(["--perfetto", str(out), str(trace)]) == 0
    text = capsys.readouterr().out
    assert f"{out}: 3 launches, 9 slices; https" in text
    assert "note: times within a launch are cycles" in text
    assert "\x1b" not in text
    assert len(seen(out).stages) == 3


def test_kernels_and_launches_are_chosen(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.pftrace.gz"
    assert main(["--perfetto", str(out), str(trace), "-k", "vecadd"]) == 0
    assert {stage.name for _, stage in seen(out).stages} == {"vecadd(int*)"}
    assert main(["--perfetto", str(out), str(trace), "--launch", "1"]) == 0
    assert [stage.event_id for _, stage in seen(out).stages] == [2]


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["-k", "nothing"], 3, "-k and --filter leave no kernel"), (["-k", "idle"], 3, "no launch has data"),
        (["--launch", "99"], 2, "no such launch"), (["nowhere"], 2, "nowhere: no such folder"),
    ],
)  # fmt: skip
def test_what_cannot_be_written(
    arguments: list[str], status: int, says: str, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--perfetto", str(tmp_path / "out"), str(trace), *arguments]) == status
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_missing(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--perfetto", str(tmp_path / "nowhere" / "out"), str(trace)]) == 2
    assert "out: No such file or directory" in capsys.readouterr().err


def test_damaged_data_are_named(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = trace / "result" / "1.bin"
    data.write_bytes(data.read_bytes()[:-64])
    assert main(["--perfetto", str(tmp_path / "out"), str(trace)]) == 2
    assert "the data of 1 launch" in capsys.readouterr().err
    assert len(seen(tmp_path / "out").stages) == 2


def test_a_trace_without_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = TraceWriter(tmp_path / "trace")
    writer.kernel(1, "vecadd", maps=[GMEM_BYTES])
    writer.launch(1, (1, 1, 1), (32, 1, 1), fill_regions([GMEM_BYTES], 1, {"GmemBytes": [(1, 2, 3, 4, 5)]}))
    writer.write()
    assert main(["--perfetto", str(tmp_path / "out"), str(tmp_path / "trace")]) == 0
    assert "1 kernel has no record that tells when warps ran" in capsys.readouterr().out


def test_roles_are_named_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = TraceWriter(tmp_path / "trace")
    writer.kernel(1, "gemm", maps=[WORK, BLOCK_SCHED])
    values = {"Work": [(9, 0, 0, 5), (0, 9, 1, 2)], "BlockSched": [(1, 10, 0), (1, 10, 0)]}
    writer.launch(1, (1, 1, 1), (64, 1, 1), fill_regions([WORK, BLOCK_SCHED], 2, values))
    writer.write()
    assert main(["--perfetto", str(tmp_path / "out"), str(tmp_path / "trace")]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("roles in gemm(int*):")
    does = "9 asynchronous copies into shared memory"
    assert lines[at + 1] == f"  producer: warp 0 of a block ({does}); waits 50 % of its time"
    assert lines[at + 3].startswith("  the critical role is mma: it waits 20 % of its time")
    names = {path[-1] for path in seen(tmp_path / "out").slices}
    assert names >= {"Warp 0 (producer)", "Warp 1 (mma)"}


@pytest.mark.parametrize("option", ["--html", "--png", "--svg", "--perfetto", "--iket"])
def test_no_file_is_written_whose_name_is_a_dash(
    option: str, trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main([str(trace), option, "-"])
    assert ended.value.code == 2
    assert "it is not written to standard output: give a path" in capsys.readouterr().err
    assert not (tmp_path / "-").exists()


@pytest.mark.parametrize("launches", [1, 2])
def test_launches_that_are_drawn_at_their_submission_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], launches: int
) -> None:
    writer = TraceWriter(tmp_path / "t")
    writer.kernel(1, "k", maps=[GMEM_BYTES])
    rows = [(9, 0, 0, 0, 0)] + [(0,) * 5] * (copies_in(1) - 1)
    for _ in range(launches):
        writer.launch(1, (1, 1, 1), (32, 1, 1), fill_regions([GMEM_BYTES], 1, {"GmemBytes": rows}))
    assert main(["--perfetto", str(tmp_path / "out"), str(writer.write())]) == 0
    out = capsys.readouterr().out
    assert f"out: {launches} launch{'es' * (launches > 1)}, 0 slices" in out
    assert "their launches are drawn at their submission" in out
