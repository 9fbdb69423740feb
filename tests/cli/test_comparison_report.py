"""neutrino-report A --diff B: what it prints, as text and JSON, and its exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neutrino.abi.reasons import Reason
from neutrino.cli.report import main
from neutrino.maps.regions import copies_in
from tests.tracing.test_comparison import KERNELS, run
from tests.tracing.trace_writer import BLOCK_SCHED, GMEM_BYTES, TraceWriter, fill_regions


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("traces")
    found = {"a": run(folder / "a", 11), "b": run(folder / "b", 12)}
    found["slow"] = run(folder / "slow", 13, slower={"gemm": 1.05}, slow_site=1.5)
    return {name: trace.path for name, trace in found.items()}


def test_the_same_build_is_silent(traces: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(traces["a"]), "--diff", str(traces["b"])]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "4 kernels compared: 0 changed, 4 not"
    assert lines[2].startswith("changed: differs by more than 2 % beyond the noise of the launches; 12 intervals")
    assert len(lines) == 3


def test_a_slower_kernel_is_named_with_its_range(traces: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(traces["a"]), "--diff", str(traces["slow"])]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "4 kernels compared: 1 changed (1 slower), 3 not"
    start = lines.index("gemm(int*): grid 6x1x1, block 64x1x1")
    assert lines[start + 1] == "  30 → 30 launches"
    assert lines[start + 2].split()[0] == "time"
    assert " % (+" in lines[start + 2]
    (at,) = [number for number, line in enumerate(lines) if line == "  by range"]
    assert lines[at + 1].startswith("    bar.sync 0 (gemm.cu:42), mean time")


def test_a_slower_gpu_is_told_from_a_slower_program(
    traces: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "throttled", 14, slower=dict.fromkeys(KERNELS, 1.06))
    assert main([str(traces["a"]), "--diff", str(tmp_path / "throttled")]) == 1
    assert "note: the times of all kernels differ by about +" in capsys.readouterr().out
    assert main([str(traces["a"]), "--diff", str(traces["slow"])]) == 1
    assert "the times of all kernels" not in capsys.readouterr().out
    assert main([str(traces["a"]), "--diff", str(traces["b"])]) == 0
    assert "the times of all kernels" not in capsys.readouterr().out


def test_the_threshold_decides(traces: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    command = [str(traces["a"]), "--diff", str(traces["slow"]), "-k", "copy", "-k", "gemm"]
    assert main([*command, "--threshold", "100%"]) == 0
    assert "2 kernels compared: 0 changed, 2 not" in capsys.readouterr().out


def test_json_has_all_figures(traces: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(traces["a"]), "--diff", str(traces["slow"]), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "neutrino-diff 1"
    assert document["changed"] is True
    assert document["kernels"][0]["name"] == "gemm"
    assert {kernel["name"] for kernel in document["kernels"]} == set(KERNELS)
    (time,) = [figure for figure in document["kernels"][0]["figures"] if figure["name"] == "time"]
    assert time["verdict"] == "changed"
    assert 1.02 < time["low"] < time["ratio"] < time["high"]
    # The counts have no noise, and did not change.
    exact = [figure for figure in document["kernels"][0]["figures"] if figure["without_noise"]]
    assert {figure["name"] for figure in exact} >= {"GmemBytes.load", "Waits.records"}
    assert {figure["verdict"] for figure in exact} == {"same"}


def test_everything_is_shown_with_all(traces: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(traces["a"]), "--diff", str(traces["b"]), "--all"]) == 0
    text = capsys.readouterr().out
    assert text.count("within noise and threshold") >= 2 * len(KERNELS)
    assert "reduce(int*): grid 6x1x1, block 64x1x1" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--diff", "nowhere"], "nowhere: no such folder"),
        (["--diff", "{b}", "-k", "none"], "no kernel has data in both"),
        (["--diff", "{b}", "--rows", "3"], "--diff and --rows do not go together"),
        (["--diff", "{b}", "--perfetto", "x"], "--perfetto and --diff do not go together"),
        (["--diff", "{b}", "--threshold", "-1"], "no number of percent"),
        (["--diff", "{b}", "--fail-if", "nan_count > 0", "--xml"], "--diff and --fail-if and --xml do not go together"),
        (["--diff", "{b}", "--launch", "3"], "--diff and --launch do not go together"),
    ],
)  # fmt: skip
def test_bad_input(
    arguments: list[str], says: str, traces: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.format(b=traces["b"]) for word in arguments]
    try:
        status = main([str(traces["a"]), *words])
    except SystemExit as error:
        status = int(error.code or 0)
    assert status == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (["--threshold", "3"], "--threshold goes with --diff"), (["--sass"], "--sass goes with --html or --open"),
        (["--source", "x"], "--source goes with --html"), (["--png", "x", "--sass"], "--sass goes with --html"),
    ],
)  # fmt: skip
def test_options_that_would_do_nothing_are_refused(
    option: list[str], says: str, traces: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(traces["a"]), *option])
    assert says in capsys.readouterr().err


def test_pictures_have_counts_which_have_no_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that are the same in all launches of each."""
    for name, loaded in (("a", 4096), ("b", 8192)):
        writer = TraceWriter(tmp_path / name)
        writer.kernel(1, "gemm", maps=[GMEM_BYTES])
        data = fill_regions([GMEM_BYTES], 1, {"GmemBytes": [(loaded, 0, 0, 0, 0)]})
        for _ in range(12):
            writer.launch(1, (1, 1, 1), (32, 1, 1), data)
        writer.write()
    assert main([str(tmp_path / "a"), "--diff", str(tmp_path / "b"), "--svg", str(tmp_path / "out")]) == 1
    assert "1 picture in" in capsys.readouterr().err
    (picture,) = (tmp_path / "out").iterdir()
    assert "GmemBytes.load" in picture.read_text()


def test_a_kernel_that_lost_its_probe_is_no_new_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, is_probed in (("a", True), ("b", False)):
        writer = TraceWriter(tmp_path / name)
        data = fill_regions([BLOCK_SCHED], 1, {"BlockSched": [(1, 9, 0)]})
        for number, kernel in enumerate(("\x1b[31mred", "sum"), 1):
            if is_probed or number == 1:
                writer.kernel(number, kernel, maps=[BLOCK_SCHED])
                writer.launch(number, (1, 1, 1), (32, 1, 1), data)
            else:
                writer.kernel(number, kernel, Reason.NO_PTX)
                writer.count(number, Reason.NO_PTX, 5)
        writer.write()
    # One launch of each is too few to judge, which is no success.
    assert main([str(tmp_path / "a"), "--diff", str(tmp_path / "b")]) == 2
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "1 kernel compared: 0 changed, 0 not, 1 not judged" in text
    assert "are needed in each trace" in text
    assert "probed in one trace alone, and launched in both:\n  sum(int*)" in text


@pytest.mark.parametrize("launches", [1, 2, 3])
def test_what_cannot_be_judged_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], launches: int
) -> None:
    for name, size in (("a", 100), ("b", 200)):
        writer = TraceWriter(tmp_path / name)
        writer.kernel(1, "k", maps=[GMEM_BYTES])
        for number in range(launches):
            # Another number in each launch, so that it has noise.
            rows = [(size + number, 0, 0, 0, 0)] + [(0,) * 5] * (copies_in(1) - 1)
            writer.launch(1, (1, 1, 1), (32, 1, 1), fill_regions([GMEM_BYTES], 1, {"GmemBytes": rows}))
        writer.write()
    assert main([str(tmp_path / "a"), "--diff", str(tmp_path / "b"), "-k", "k"]) == 2
    captured = capsys.readouterr()
    # That there are no stores in any launch is known, and says nothing of the kernel.
    assert "nothing was judged, so it is not known whether something changed; " in captured.err
    assert "1 kernel compared: 0 changed, 0 not, 1 not judged" in captured.out


@pytest.mark.parametrize(("first", "second"), [(4_000, 4_080), (4_080, 3_998), (50_000, 49_000), (150, 153)])
def test_counts_that_differ_by_the_threshold_itself_are_not_changed(tmp_path: Path, first: int, second: int) -> None:
    for name, size in (("a", first), ("b", second)):
        writer = TraceWriter(tmp_path / name)
        writer.kernel(1, "k", maps=[GMEM_BYTES])
        rows = [(size, 0, 0, 0, 0)] + [(0,) * 5] * (copies_in(1) - 1)
        for _ in range(2):
            writer.launch(1, (1, 1, 1), (32, 1, 1), fill_regions([GMEM_BYTES], 1, {"GmemBytes": rows}))
        writer.write()
    is_more = abs(second - first) * 100 > 2 * first
    assert main([str(tmp_path / "a"), "--diff", str(tmp_path / "b"), "--threshold", "2"]) == int(is_more)


def test_better_and_worse_are_told_apart(traces: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(traces["slow"]), "--diff", str(traces["a"])]) == 1
    assert capsys.readouterr().out.splitlines()[1] == "4 kernels compared: 1 changed (1 faster), 3 not"
