"""``neutrino-extract --coverage`` of large files: samples, progress on a terminal, and an end in between."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neutrino.cli.extract import main as extract
from neutrino.patched_files.sample import drawn, interval
from neutrino.toolchain.ptxas import Assembler
from tests.patched_files.libraries import SCALE, STORE, fatbin, link

DIFFERENT = 70
KERNELS = 2 * DIFFERENT + 2


@pytest.fixture(scope="module")
def many(assembler: Assembler, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library with 70 kernels of machine code alone, twice, and two with PTX."""
    head, body = STORE.split(".visible", 1)
    text = head + "".join(".visible" + body.replace("store", f"store_{number}") for number in range(DIFFERENT))
    alone = fatbin(assembler, text, cubins=["sm_90"])
    return link(
        tmp_path_factory.mktemp("many") / "libmany.so",
        [alone, fatbin(assembler, SCALE, cubins=["sm_90"], ptx=["sm_90"]), alone],
    )


def coverage(library: Path, *options: str) -> dict[str, Any]:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert extract([str(library), "--coverage", "--arch", "sm_90", "--json", *options]) == 0
    (found,) = json.loads(printed.getvalue())["coverage"]
    return dict(found)


@pytest.fixture(scope="module")
def whole(many: Path) -> dict[str, Any]:
    """The coverage of all kernels, not of a sample."""
    return coverage(many)


@pytest.mark.parametrize(("found", "size"), [(8, 10), (1, 300), (299, 300), (150, 300), (1, 1), (0, 7), (7, 7)])
def test_the_interval_is_wilsons(found: int, size: int) -> None:
    low, high = interval(found, size)
    assert 0 <= low <= found / size <= high <= 1
    # The shares that are as far from what was found as their own deviation allows.
    for share, is_end in ((low, found == 0), (high, found == size)):
        if not is_end:
            assert abs(found / size - share) == pytest.approx(1.959964 * math.sqrt(share * (1 - share) / size))


@pytest.mark.parametrize("share", [0.5, 0.9, 0.97])
def test_the_interval_has_the_true_share_as_often_as_it_says(share: float) -> None:
    found = np.random.default_rng(7).binomial(300, share, 4000)
    held = [low <= share <= high for low, high in (interval(int(one), 300) for one in found)]
    assert 0.935 < np.mean(held) < 0.97


def test_a_draw_is_the_same_each_time_and_has_nothing_twice() -> None:
    assert drawn(5, 9) == [0, 1, 2, 3, 4]
    assert drawn(1000, 30) == drawn(1000, 30)
    assert len(set(drawn(1000, 999))) == 999
    # Each part of the file is in it.
    assert max(np.diff([0, *drawn(100_000, 1000), 100_000])) < 1500


@pytest.mark.parametrize("size", [1, 20, 100])
def test_a_sample_is_a_part_of_the_coverage(many: Path, size: int, whole: dict[str, Any]) -> None:
    assert (whole["total"], whole["can_be_probed"]) == (KERNELS, KERNELS)
    assert "sample" not in whole
    found = coverage(many, "--sample", str(size))
    assert (found["total"], found["sample"]["of"], found["sample"]["seed"]) == (size, KERNELS, 1)
    low, high = interval(size, size)
    assert found["sample"]["share"] == {"low": low, "high": high, "confidence": 0.95}
    rows = [json.dumps(kernel) for kernel in whole["kernels"]]
    assert set(map(json.dumps, found["kernels"])) <= set(rows)
    containers = [kernel["container"] for kernel in found["kernels"]]
    assert containers == sorted(containers)
    # Copies of a kernel are drawn by themselves.
    if size == 100:
        assert {0, 2} <= set(containers)


def test_a_sample_is_the_same_each_time_and_of_all_is_no_sample(many: Path, whole: dict[str, Any]) -> None:
    assert coverage(many, "--sample", "20") == coverage(many, "--sample", "20")
    assert coverage(many, "--sample", str(KERNELS)) == whole


def test_a_sample_says_of_how_many_and_how_sure(many: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [str(many), "--coverage", "--arch", "sm_90", "-p", "gmem_bytes", "-p", "block_sched", "--sample", "60"]
    assert extract(command) == 0
    out = capsys.readouterr().out
    found = coverage(many, *command[4:])
    low, high = interval(found["can_be_probed"], 60)
    assert 0 <= found["can_be_probed"] < 60
    assert f"  sm_90: {found['can_be_probed']} of 60 kernels, drawn at random, can be probed\n" in out
    of_all = f"of all {KERNELS} kernels {100 * low:.1f} to {100 * high:.1f} % can, with 95 % confidence"
    assert f"  {of_all} (Wilson's interval; seed 1)\n" in out


@pytest.mark.parametrize(("options", "said"), [
    (("--sample", "5"), "--sample goes with --coverage"),
    (("--coverage", "--sample", "0"), "is not a number of kernels"),
    (("--coverage", "--sample", "-3"), "--sample"), (("--coverage", "--sample", "1e3"), "is not a number of kernels"),
])  # fmt: skip
def test_wrong_samples(many: Path, options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        assert extract([str(many), *options]) == 2
    assert said in capsys.readouterr().err


@contextlib.contextmanager
def on_a_terminal(many: Path, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The command with stderr on a terminal, which is yielded, and temporary files in folder."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "neutrino.cli.extract", str(many), "--coverage", "--arch", "sm_90"]
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=environment)
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def until(terminal: int, wanted: bytes, seconds: float = 120) -> bytes:
    """What is printed on a terminal until it has some text, or its end."""
    found, end = b"", time.monotonic() + seconds
    while wanted not in found and time.monotonic() < end:
        if not select.select([terminal], [], [], 1)[0]:
            continue
        try:
            found += os.read(terminal, 4096)
        except OSError:
            break
    return found


def test_progress_is_shown_on_a_terminal_alone(many: Path, tmp_path: Path) -> None:
    with on_a_terminal(many, tmp_path) as (process, terminal):
        # Each kernel once, whatever copies there are; before the path, which may be too long.
        shown = until(terminal, b" of 70 kernels")
        assert b" of 70 kernels" in shown
        rest = until(terminal, b"never")
        out, _ = process.communicate()
    assert f"{KERNELS} of {KERNELS} kernels can be probed".encode() in out
    # The line is gone at the end.
    assert (shown + rest).endswith(b"\r\x1b[K")
    assert not list(tmp_path.iterdir())
    command = [sys.executable, "-m", "neutrino.cli.extract", str(many), "--coverage", "--arch", "sm_90"]
    assert subprocess.run(command, capture_output=True, check=True).stderr == b""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_end_in_between_leaves_nothing(many: Path, tmp_path: Path, number: signal.Signals) -> None:
    with on_a_terminal(many, tmp_path) as (process, terminal):
        until(terminal, b" of 70 kernels")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(number)
        rest = until(terminal, b"never")
        out, _ = process.communicate()
    assert process.returncode == (-signal.SIGINT if number == signal.SIGINT else 128 + signal.SIGTERM)
    assert b"Traceback" not in rest
    assert out == b""
    assert not list(tmp_path.iterdir())
    assert not [child for child in children if Path(f"/proc/{child}").exists()]


def test_a_report_of_patching_is_wide_in_a_pipe(many: Path) -> None:
    command = [sys.executable, "-m", "neutrino.cli.patch", str(many), "-n", "-p", "block_sched", "-k", "no_such_kernel"]
    # Without env a child would have what readline, in pytest, puts into the environment of C.
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    for variables, row in (({}, "store_69, store_68, store_67 …"), ({"COLUMNS": "70"}, "store_69,")):
        run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment | variables)
        assert run.returncode == 3
        (found,) = (line.rstrip() for line in run.stdout.splitlines() if "not-selected" in line)
        assert found.endswith(f"not chosen by -k or --filter: {row}")
