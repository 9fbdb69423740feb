"""``neutrino -e``: what one-liners print at the end of a program, on the embedded device."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
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
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )  # fmt: skip


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
    out, err = process.communicate(timeout=600)
    assert out == OUTPUT
    assert len(re.findall(r" #+$", err, re.MULTILINE)) == 3 * 1024


def test_ranks_say_which_they_are(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    result = run(folder, "--device", "embedded", "-q", "-e", "st.global { @a = count() }", "./program", home=tmp_path)
    assert result.stderr == "\n@a (rank 3):\n  saxpy  12,288\n\n"


def test_rows(folder: Path, tmp_path: Path) -> None:
    # Four threads at the border of the first two blocks: x is their index modulo 7, and y begins with 1.
    chosen = "/tid == 0 and ctaid == 1 or tid == 127 and ctaid == 0/"
    texts = [
        f"ld.global.f32 {chosen} {{ print('{{:.2f}}\\x1b[2J\\n', OUT); @kept = save(OUT, lane) }}",
        f"ld.global {chosen} {{ @places[line] = count() }} kernel /tid == 1 and ctaid == 5/ {{ print(tid, warpid) }}",
        "st.global /BYTES == 16/ { print('wide') }",
    ]
    expressions = [word for text in texts for word in ("-e", text)]
    # Room for all launches at once, however late their records are copied back.
    command = ["--device", "embedded", "-q", "--max-device-memory", "64M", "--rows", "7", *expressions, "./program"]
    result = run(folder, *command, home=tmp_path)
    lines = result.stderr.splitlines()
    rows = []
    total = {127: 1.0, 128: 1.0}
    for launch in range(3):
        for thread in (127, 128):
            rows += [(launch, thread, value) for value in (float(thread % 7), total[thread])]
            total[thread] += 2 * (thread % 7)
    printed = [line.split() for line in lines[lines.index("print:") + 1 :][:9]]
    assert printed[0] == ["launch", "kernel", "block", "warp", "lane", "text"]
    assert printed[1:8] == [
        [str(launch), "saxpy", str(thread // 128), str(thread % 128 // 32), str(thread % 32), f"{value:.2f}\\x1b[2J"]
        for launch, thread, value in rows[:7]
    ]
    assert " ".join(printed[8]) == "7 of 14 rows: saxpy 12, sum 2; --rows N prints more", result.stderr
    at = lines.index("@kept:")
    (trace,) = (tmp_path / "trace").iterdir()
    assert lines[at + 1 : at + 3] == [
        "  14 rows: saxpy 12, sum 2", f"  to read them: neutrino-report {trace} --rows 20 --map kept",
    ]  # fmt: skip
    places = lines[lines.index("@places, all kernels:") + 1 :][:3]
    assert [line.rpartition("  ")[2] for line in places] == ["6", "6", "2"]
    assert "sum" not in "".join(places)
    assert all(line.startswith("  PTX line ") for line in places)
    second = [line.split() for line in lines[lines.index("print_2:") + 1 :][:6]]
    assert second[0] == ["launch", "kernel", "block", "warp", "lane", "tid", "warpid"]
    assert second[1] == ["0", "saxpy", "5", "0", "1", "1", "0"]
    assert [row[:2] for row in second[1:5]] == [["0", "saxpy"], ["1", "saxpy"], ["2", "saxpy"], ["3", "sum"]]
    assert second[5] == ["4", "rows:", "saxpy", "3,", "sum", "1"]
    assert lines[-2].startswith("print_3: nothing was saved: ")
    assert "the filter or condition was never true" in lines[-2]
    assert lines[-1] == ""


def test_an_operand_without_its_type_is_named(folder: Path, tmp_path: Path) -> None:
    result = run(folder, "--device", "embedded", "-q", "-e", "ld.global { print(OUT) }", "./program", home=tmp_path)
    lines = result.stderr.splitlines()
    assert lines[1] == "print: nothing was saved: none of 2 launched kernels could be probed"
    assert lines[3].startswith("These are of 0 of 4 launches")
    assert lines[4].endswith("OUT of ld.global.nc.f32 is .f32, but field 'out' is u64: write f32(OUT)")


def test_what_is_written_for_a_float_among_integers_works(folder: Path, tmp_path: Path) -> None:
    """It said f32(OUT) first, and then of that u64(OUT), which was none either."""
    told = run(folder, "--device", "embedded", "-q", "-e", "ld.global { @ = sum(OUT) }", "./program", home=tmp_path)
    (said,) = [line for line in told.stderr.splitlines() if line.startswith("  saxpy: ")]
    written = said.partition("write ")[2].partition(",")[0]
    assert written == "f32(OUT)"
    for position, value in (("ld.global", written), ("ld.global", "u64(f32(OUT))"), ("ld.global.f32", "OUT")):
        result = run(
            folder, "--device", "embedded", "-q", "-e", f"{position} {{ @ = sum({value}) }}", "./program", home=tmp_path
        )
        # The program itself prints the sum of what its last kernel loads.
        assert re.search(r"^  sum +77,?806$", result.stderr, re.MULTILINE), result.stderr


def test_fractions(folder: Path, tmp_path: Path) -> None:
    """Sums, means and histograms of what the kernels store."""
    text = (
        "st.global.f32 { @sum = sum(IN2); @mean = avg(IN2 * 0.5); @tenths = lhist(IN2 * 0.1, 1, 2, 0.1); "
        "@none = hist((IN2 - IN2) * 0.1) } red.global.add.f32 { @sum = sum(IN2) }"
    )
    result = run(folder, "--device", "embedded", "-q", "-e", text, "./program", home=tmp_path)
    lines = [" ".join(line.split()) for line in result.stderr.splitlines()]
    assert lines[1:5] == ["@sum:", "saxpy 159,708.0", "sum 77806", "total 237,514.0"], lines
    # Three launches of 4,096 threads.
    assert f"saxpy {159708 / 12288 / 2:.6g}" in lines
    assert "1.3 to <1.4 1,755 ############" in lines
    assert "0 12,288 ########################################" in lines
