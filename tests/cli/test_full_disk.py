"""A run whose disk is full: it says how many launches lost their records, and why, and so does the report."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from neutrino.tracing import Trace
from tests.example import build_example

ROOT = Path(__file__).parents[2]
SCRIPT = 'mount -t tmpfs -o size="$3"k none "$1" && shift 3 && "$@"; status=$?; cp -r "$DISK"/. "$COPY"; exit $status'


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of ``examples/embedded``."""
    return build_example(tmp_path_factory.mktemp("program"))


def run(tmp_path: Path, size: int, program: Path, *options: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Run the program with traces on a disk of so many KiB; return what was printed, and a copy of the traces."""
    disk, copy = tmp_path / "disk", tmp_path / "copy"
    disk.mkdir()
    copy.mkdir()
    inside = ["unshare", "--user", "--map-root-user", "--mount"]
    if not shutil.which("unshare") or subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no unshare, or no namespaces can be made here")
    neutrino = [sys.executable, "-m", "neutrino", "--device", "embedded"]
    command = [*neutrino, "--tracedir", str(disk), *options, str(program)]
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache"), "DISK": str(disk),
        "COPY": str(copy),
    }  # fmt: skip
    done = subprocess.run(
        [*inside, "sh", "-c", SCRIPT, "sh", str(disk), str(copy), str(size), *command],
        env=environment, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("y[6] = 37, sum of y = 77806\n", 0), done.stderr
    return done, copy


def report(trace: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "neutrino.cli.report", str(trace), *options],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip


@pytest.mark.parametrize("size", [4, 8, 24, 40])
@pytest.mark.parametrize("options", [("-p", "gmem_bytes"), ("-q", "-p", "gmem_bytes")])
def test_lost_records_are_said_with_the_reason(
    tmp_path: Path, program: Path, size: int, options: tuple[str, ...]
) -> None:
    done, copy = run(tmp_path, size, program, *options)
    assert "the records of 4 of 4 probed launches were lost" in done.stderr
    assert done.stderr.rstrip().endswith("the disk was full")
    if size == 40 and "-q" not in options:
        # How many lines of event.log find room depends on the moment.
        text = (ROOT / "docs/trace.md").read_text()
        (line,) = (line.strip() for line in text.splitlines() if " of 4 probed launches were lost" in line)
        assert re.fullmatch(re.sub(r"(?<=and )3 ", r"\\d+ ", line), done.stderr.splitlines()[-1])
    shown = report(copy)
    assert shown.returncode == 2
    assert "no launch of a kernel was seen" not in shown.stdout
    assert ("disk was full" if size > 4 else "it has no event: was the disk full?") in shown.stderr
    (folder,) = copy.iterdir()
    trace = Trace(folder)
    assert not trace.complete
    if size > 4:
        assert trace.lost == (4, "the records of 4 launches were lost: the disk was full")
        assert "the records of 4 launches were lost: the disk was full" in shown.stdout


def test_a_disk_with_room_loses_nothing(tmp_path: Path, program: Path) -> None:
    done, copy = run(tmp_path, 4096, program, "-p", "gmem_bytes")
    assert "lost" not in done.stderr
    assert "could not be written" not in done.stderr
    assert report(copy).returncode == 0
    (folder,) = copy.iterdir()
    assert Trace(folder).complete
    assert Trace(folder).lost == (0, "")


@pytest.mark.parametrize("size", [4, 8, 24, 56])
def test_results_that_were_lost_are_not_said_to_be_none(tmp_path: Path, program: Path, size: int) -> None:
    done, _ = run(tmp_path, size, program, "-e", "ld.global { @[site] = count() }")
    assert "the records of 4 of 4 probed launches were lost" in done.stderr
    assert "no process of it was seen loading GPU code" not in done.stderr
    assert "killed" not in done.stderr
    expected = "cannot be shown: its first event is missing" if size == 4 else "the records of 4 launches were lost"
    assert expected in done.stderr


@pytest.mark.parametrize("kept", [0, 192, 300, -1])
def test_damaged_counters_are_named_and_the_records_counted(tmp_path: Path, program: Path, kept: int) -> None:
    _, copy = run(tmp_path, 4096, program, "-p", "gmem_bytes")
    (folder,) = copy.iterdir()
    counters = folder / "counters.bin"
    whole = counters.read_bytes()
    counters.write_bytes(whole[:kept] if kept >= 0 else bytes(range(256)) * (len(whole) // 256 + 1))
    shown = report(folder)
    assert shown.returncode == 2
    assert "counters.bin" in shown.stderr
    assert "at least 4 launches probed; how many launches there were is not known" in shown.stdout
    (document,) = json.loads(report(folder, "--json").stdout)["traces"]
    coverage = document["coverage"]
    assert (coverage["probed"], coverage["kernels_probed"], coverage["share"]) == (4, 2, None)
    assert [kernel["launches"]["written"] for kernel in document["kernels"]] == [3, 1]


@pytest.mark.parametrize("share", [0.0, 0.5, 0.95])
def test_events_that_are_cut_off_make_a_damaged_trace(tmp_path: Path, program: Path, share: float) -> None:
    _, copy = run(tmp_path, 4096, program, "-p", "gmem_bytes")
    (folder,) = copy.iterdir()
    events = folder / "events.jsonl"
    whole = events.read_bytes()
    events.write_bytes(whole[: int(len(whole) * share)])
    shown = report(folder)
    assert shown.returncode == 2
    assert "events.jsonl: the last event is missing: it is cut off" in shown.stderr
    assert "killed" not in shown.stdout
