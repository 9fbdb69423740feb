"""``neutrino -e``: what one-liners print at the end of a program, on the embedded device; the examples of the page."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "one-liners.md"
EXAMPLES = re.findall(r"```console\n\$ neutrino (.*)\n((?:.*\n)*?)```", PAGE.read_text())
MANY_KEYS = "st.global { @a[ADDR] = sum(BYTES); @b[ADDR] = max(BYTES); @c[ADDR] = count(); @d[ADDR] = avg(BYTES) }"
OUTPUT = "y[6] = 37, sum of y = 77806\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with ``program``, whose kernels have 4 096 threads: saxpy runs three times, sum once."""
    path = tmp_path_factory.mktemp("demo")
    subprocess.run(
        ["make", "-s", "-C", str(ROOT / "examples" / "embedded"), f"OUT={path}", f"PYTHON={sys.executable}"], check=True
    )
    return path


def run(folder: Path, *arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "XDG_CACHE_HOME": str(home / "cache")}
    command = [sys.executable, "-m", "neutrino.cli.run", "--tracedir", str(home / "trace"), *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )  # fmt: skip


@pytest.mark.parametrize(("command", "printed"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_the_examples_of_the_page(
    folder: Path, command: str, printed: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    result = run(folder, *shlex.split(command), home=tmp_path_factory.getbasetemp())
    assert result.returncode == 0, result.stderr
    # A terminal shows both together.
    assert result.stdout + result.stderr == printed


def test_page_has_examples() -> None:
    assert len(EXAMPLES) > 3


def test_results_follow_the_coverage(folder: Path, tmp_path: Path) -> None:
    text = "ld.global { @loaded = sum(BYTES) } kernel { @threads = count(); @time = max(elapsed) }"
    result = run(folder, "--device", "embedded", "-e", text, "./program", home=tmp_path)
    assert (result.stdout, result.returncode) == (OUTPUT, 0)
    trace, coverage, *lines = result.stderr.splitlines()
    assert trace.startswith("neutrino: trace in ")
    assert coverage == "neutrino: 4 of 4 launches probed (100 %), 2 of 2 kernels"
    # 2 loads of 4 bytes by each of 3 x 4,096 threads, and one in the sum.
    assert lines[:9] == [
        "", "@loaded:", "  saxpy   98,304", "  sum     16,384", "  total  114,688",
        "", "@threads:", "  saxpy  12,288", "  sum     4,096",
    ]  # fmt: skip


def test_beside_another_probe_with_its_own_maps(folder: Path, tmp_path: Path) -> None:
    arguments = ["--device", "embedded", "-q", "-p", "gmem_bytes", "-e", "st.global { @ = count() }", "./program"]
    result = run(folder, *arguments, home=tmp_path)
    assert result.stderr == "\n@:\n  saxpy  12,288\n\n"


def test_launches_that_ran_without_probes_are_said(folder: Path, tmp_path: Path) -> None:
    arguments = ["--device", "embedded", "-q", "--max-device-memory", "4M", "-e", MANY_KEYS, "./program"]
    lines = run(folder, *arguments, home=tmp_path).stderr.splitlines()
    assert re.fullmatch(r"These are of [0-2] of 3 launches: the others ran without probes; .* --why", lines[-2])


def test_keys(folder: Path, tmp_path: Path) -> None:
    text = "kernel { @[lane & 1] = count(); @mean[lane & 1] = avg(lane) } ld.global { @lanes = topk(lane, 2) }"
    result = run(folder, "--device", "embedded", "-q", "-e", text, "./program", home=tmp_path)
    lines = result.stderr.splitlines()
    # Half of 3 x 4,096 and of 4,096 threads; of 32 lanes the even ones are 15 in the mean, the odd ones 16.
    assert lines[1:10] == [
        "@, saxpy:", "  0  6,144", "  1  6,144", "@, sum:", "  0  2,048", "  1  2,048", "@, all kernels:", "  0  8,192",
        "  1  8,192",
    ]  # fmt: skip
    assert lines[lines.index("@mean, all kernels:") :][1:3] == ["  1  16", "  0  15"]
    # Two loads in saxpy, one in sum, of 16,384 / 32 threads of each lane.
    assert lines[lines.index("@lanes, all kernels:") :][1:4] == ["  0  896", "  1  896", "  and 30 keys more"]


def test_nothing_saved(folder: Path, tmp_path: Path) -> None:
    arguments = ["--device", "embedded", "-q", "-e", "st.global /BYTES == 16/ { @wide = count() }", "./program"]
    assert run(folder, *arguments, home=tmp_path).stderr == "\n@wide: nothing was saved\n\n"


def test_faults_end_the_run_before_it_begins(folder: Path, tmp_path: Path) -> None:
    result = run(folder, "--device", "embedded", "-e", "ld.global { @a = cuont() }", "./program", home=tmp_path)
    assert (result.stdout, result.returncode) == ("", 125)
    assert result.stderr.startswith("-e:1:18: error: 'cuont' makes no map [one-liner]\n")


def test_results_survive_a_reader_that_is_slow(folder: Path, tmp_path: Path) -> None:
    """More lines than a pipe holds: they are written as it is read."""
    buckets = "ld.global { @ = lhist(ADDR & 4092, 0, 4096, 4) }"
    command = [sys.executable, "-m", "neutrino.cli.run", "--tracedir", str(tmp_path / "trace"), "--device", "embedded"]
    process = subprocess.Popen(
        [*command, "-q", "-e", buckets, "./program"], cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
    )  # fmt: skip
    out, err = process.communicate(timeout=120)
    assert out == OUTPUT
    assert len(re.findall(r" #+$", err, re.MULTILINE)) == 3 * 1024


def test_ranks_say_which_they_are(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    result = run(folder, "--device", "embedded", "-q", "-e", "st.global { @a = count() }", "./program", home=tmp_path)
    assert result.stderr == "\n@a (rank 3):\n  saxpy  12,288\n\n"
