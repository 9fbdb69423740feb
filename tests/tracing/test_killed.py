"""Traces of processes that were killed, and of those that run on: what is missing of each, and the exit status."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from neutrino.abi.launches import LAUNCHES_HEADER, LaunchState
from neutrino.cli.report import main
from neutrino.tracing import Trace
from neutrino.tracing.liveness import is_running
from neutrino.tracing.processes import runs_still
from tests.tracing.trace_writer import BLOCK_SCHED, TraceWriter, fill_regions


def unfinished(path: Path, awaited: int, pid: int = 0, host: str = "") -> Path:
    """A trace without its end: some launches have data, and others were only submitted, by a process."""
    writer = TraceWriter(path)
    for event in writer.events:
        if event["event"] == "process":
            event |= {"pid": pid, "host": host or platform.node()}
    writer.kernel(1, "k", maps=[BLOCK_SCHED])
    regions = fill_regions([BLOCK_SCHED], 1, {"BlockSched": [(5, 6, 7)]})
    writer.launch(1, (1, 1, 1), (32, 1, 1), regions)
    for _ in range(awaited):
        writer.launch(1, (1, 1, 1), (32, 1, 1), None, LaunchState.SUBMITTED)
    written = writer.write(ended=False)
    data = bytearray((written / "launches.bin").read_bytes())
    np.frombuffer(data, LAUNCHES_HEADER.dtype, 1)["realtime_ns"] = time.time_ns()
    (written / "launches.bin").write_bytes(data)
    return written


def ended_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


@pytest.mark.parametrize("awaited", [0, 1, 1234])
def test_what_a_killed_process_has_not_written_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], awaited: int
) -> None:
    trace = unfinished(tmp_path / "t", awaited, ended_process())
    launches = "1 launch" if awaited == 1 else f"{awaited:,} launches"
    for form in ([], ["--summary"], ["--json"], ["--html", str(tmp_path / "page.html")]):
        assert main([str(trace), *form]) == (2 if awaited else 0)
        captured = capsys.readouterr()
        said = f"the data of {launches} are lost: the process was killed before they were written"
        assert (said in " ".join(captured.err.split())) == bool(awaited)
        if form in ([], ["--summary"]):
            assert (said in " ".join(captured.out.split())) == bool(awaited)


def test_what_a_process_that_runs_has_not_written_is_not_here_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = unfinished(tmp_path / "t", 24, os.getpid())
    assert main([str(trace)]) == 0
    out = capsys.readouterr().out
    assert "the data of 24 launches are not here yet: the process runs on" in out
    assert "k(int*): the data of 24 launches are not here yet" in out
    assert "the trace is not complete: the process is still running" in out
    assert "when the trace ended" not in out
    assert main([str(trace), "--summary"]) == 0
    assert "lost: the data of 0 launches" in capsys.readouterr().out


def test_another_process_with_the_number_is_not_that_of_the_trace(tmp_path: Path) -> None:
    process = {"pid": os.getpid(), "host": platform.node()}
    assert runs_still(process, time.time())
    assert not runs_still(process, time.time() - 1e6)
    assert not runs_still(process | {"host": "elsewhere"}, time.time())
    assert not runs_still(process | {"pid": "1"}, time.time())
    assert not runs_still({}, time.time())
    assert not is_running(Trace(unfinished(tmp_path / "t", 1, os.getpid(), "elsewhere")))
