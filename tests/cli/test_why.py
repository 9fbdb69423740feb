"""``neutrino-report --why``, and the coverage in the report's head."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neutrino.abi.reasons import REASON_REMEDY, REASON_TEXT, Reason
from neutrino.cli.memory_report import usage_lines
from neutrino.cli.report import main
from neutrino.tracing.memory_usage import memory_usage
from neutrino.tracing.trace import Trace
from tests.tracing.trace_writer import BLOCK_SCHED, TraceWriter, fill_regions

SENTENCE = "2 of 1,262 launches probed (under 1 %), 1 of 3 kernels; not chosen: 40 more"


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "200")
    writer = TraceWriter(tmp_path / "Nov20_131500_4242")
    writer.event("image", id=1, kind="cubin", size=77, source="/lib/libvendor\x1b[2J.so")
    writer.kernel(1, "vecadd", maps=[BLOCK_SCHED])
    writer.kernel(2, "gemm", Reason.VENDOR, "libcublas")
    writer.kernel(3, "_Z4axpyPf", Reason.NO_PTX, "\x1b[31mred")
    writer.kernel(4, "left", Reason.NOT_SELECTED)
    writer.kernel(5, "idle", Reason.NUMERICS, "a sum is fused elsewhere")
    writer.kernel(6, "whole", maps=[BLOCK_SCHED])
    (gemm,) = (event for event in writer.events if event.get("name") == "gemm")
    gemm["image"] = 1
    for _ in range(2):
        regions = fill_regions([BLOCK_SCHED], 1, {"BlockSched": [(5, 6, 0)]})
        writer.launch(1, (1, 1, 1), (32, 1, 1), regions)
    writer.count(1, Reason.OCCUPANCY, 7)
    writer.count(1, Reason.POOL_FULL, 9)
    writer.count(2, Reason.VENDOR, 1234)
    writer.count(2, Reason.NOT_SELECTED, 30)
    writer.count(3, Reason.NO_PTX, 8)
    writer.count(4, Reason.NOT_SELECTED, 10)
    # Functions that the hook did not see obtained are no kernels.
    writer.count(0, Reason.LAUNCH_FORM, 2)
    writer.kernel(0, "(unknown)", Reason.LAUNCH_FORM)
    writer.event("note", text="a twin\x1b did not load")
    return writer.write()


def words(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines()]


def test_the_head_of_the_report_has_the_coverage(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(trace)]) == 0
    shown = words(capsys.readouterr().out)
    assert shown[2] == SENTENCE
    assert main([str(trace), "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)["traces"]
    assert document["coverage"] == {
        "probed": 2, "launches": 1262, "share": 2 / 1262, "kernels_probed": 1, "kernels": 3, "left_out": 40,
        "not_probed": {"vendor": 1234, "pool-full": 9, "no-ptx": 8, "occupancy": 7, "launch-form": 2},
    }  # fmt: skip
    # -k chooses what the report shows; what the run covered stays.
    assert main([str(trace), "-k", "vecadd"]) == 0
    assert words(capsys.readouterr().out)[2] == shown[2]


def test_the_summary_counts_launches_and_kernels(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(trace), "--summary"]) == 0
    shown = words(capsys.readouterr().out)
    assert f"not probed: 8 launches of 1 kernel: no-ptx: {REASON_TEXT[Reason.NO_PTX]}" in shown
    assert f"not probed: 40 launches of 2 kernels: not-selected: {REASON_TEXT[Reason.NOT_SELECTED]}" in shown


def test_kernels_with_most_launches_come_first_with_all_reasons(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(trace), "--why"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    shown = words(captured.out)
    names = {"gemm", "vecadd(int*)", "axpy(float*)", "(unknown)", "left", "idle"}
    assert [line for line in shown if line in names] == [
        "gemm", "vecadd(int*)", "axpy(float*)", "(unknown)",
    ]  # fmt: skip
    begin = shown.index("vecadd(int*)")
    assert shown[begin : shown.index("", begin)] == [
        "vecadd(int*)",
        "2 of 18 launches probed (11 %)",
        f"9 pool-full: {REASON_TEXT[Reason.POOL_FULL]}",
        "map BlockSched: array, 16 bytes per record, level warp",
        f"what helps: {REASON_REMEDY[Reason.POOL_FULL]}",
        f"7 occupancy: {REASON_TEXT[Reason.OCCUPANCY]}",
        "registers per thread: 18 → 20",
        f"what helps: {REASON_REMEDY[Reason.OCCUPANCY]}",
    ]
    begin = shown.index("gemm")
    assert shown[begin : shown.index("", begin)] == [
        "gemm",
        "none of 1,234 launches probed; not chosen: 30 more",
        "in /lib/libvendor\\x1b[2J.so (cubin)",
        f"1,234 vendor: {REASON_TEXT[Reason.VENDOR]}",
        "libcublas",
        f"what helps: {REASON_REMEDY[Reason.VENDOR]}",
        f"30 not-selected: {REASON_TEXT[Reason.NOT_SELECTED]}",
        f"what helps: {REASON_REMEDY[Reason.NOT_SELECTED]}",
    ]
    assert "\x1b" not in captured.out
    assert shown[-1] == "note: a twin\\x1b did not load"
    assert "\\x1b[31mred" in captured.out


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("vec", ["vecadd(int*)"]),
        ("axpy(", ["axpy(float*)"]),
        ("_Z4axpy*", ["axpy(float*)"]),
        ("/^(idle|left)$/", ["left", "idle"]),
        ("gemm:whole", ["gemm", "whole(int*)"]),
    ],
)
def test_a_kernel_is_asked_for_as_with_k(
    trace: Path, capsys: pytest.CaptureFixture[str], pattern: str, names: list[str]
) -> None:
    assert main([str(trace), "--why", pattern, "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)["traces"]
    assert [row["demangled"] for row in document["why"]] == names
    assert main([str(trace), "--why", pattern]) == 0
    assert set(names) <= set(words(capsys.readouterr().out))


def test_a_kernel_that_ran_never_or_was_left_out_says_why(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(trace), "--why", "idle:left"]) == 0
    shown = words(capsys.readouterr().out)
    assert shown[shown.index("idle") + 1 :][:3] == [
        "never launched",
        f"numerics: {REASON_TEXT[Reason.NUMERICS]}",
        "a sum is fused elsewhere",
    ]
    assert shown[shown.index("left") + 1] == "no launch was chosen"


def test_json(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(trace), "--why", "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)["traces"]
    assert document["coverage"]["launches"] == 1262
    assert document["notes"] == ["a twin\x1b did not load"]
    assert [(row["name"], row["launches"], row["probed"]) for row in document["why"]] == [
        ("gemm", 1234, 0), ("vecadd", 18, 2), ("_Z4axpyPf", 8, 0), ("(unknown)", 2, 0),
    ]  # fmt: skip
    assert document["why"][2]["reasons"] == [{
        "reason": "no-ptx", "launches": 8, "text": REASON_TEXT[Reason.NO_PTX], "detail": "\x1b[31mred",
        "facts": ["\x1b[31mred"], "remedy": REASON_REMEDY[Reason.NO_PTX],
    }]  # fmt: skip


def test_status_is_the_reports(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The word after --why is the trace if there is no other.
    assert main(["--why", str(trace)]) == 0
    assert "gemm" in capsys.readouterr().out
    assert main([str(trace), "--why", "nosuch"]) == 3
    assert "no kernel matches nosuch" in capsys.readouterr().err
    assert main([str(trace), "--why", "/(/"]) == 2
    assert main([str(tmp_path / "nothing"), "--why"]) == 2
    writer = TraceWriter(tmp_path / "none")
    writer.kernel(1, "gemm", Reason.VENDOR)
    writer.count(1, Reason.VENDOR, 5)
    path = writer.write()
    capsys.readouterr()
    assert main([str(path), "--why"]) == 3
    assert "nothing was probed: 0 of 5 launches, 0 of 1 kernels" in capsys.readouterr().out


def test_a_run_that_was_probed_throughout_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    writer = TraceWriter(tmp_path / "all")
    writer.kernel(1, "vecadd", maps=[BLOCK_SCHED])
    writer.launch(1, (1, 1, 1), (32, 1, 1), fill_regions([BLOCK_SCHED], 1, {"BlockSched": [(5, 6, 0)]}))
    path = writer.write()
    assert main([str(path), "--why"]) == 0
    captured = capsys.readouterr()
    assert "1 of 1 launches probed (100 %), 1 of 1 kernels" in captured.out
    assert "every launch that was chosen was probed" in captured.err


def test_memory_usage_has_kernels_of_one_reason_in_a_line(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "Nov20_131500_4242")
    writer.events[0]["memusage"] = True
    for number in range(1, 40):
        writer.kernel(number, f"gemm{number}", Reason.VENDOR, "libcublas")
        writer.count(number, Reason.VENDOR, 100)
    writer.kernel(40, "axpy", Reason.NO_PTX, "machine code")
    writer.count(40, Reason.NO_PTX, 8)
    usage = memory_usage(Trace(writer.write()))
    lines = list(usage_lines(usage))
    at = lines.index("Would not be probed")
    assert lines[at + 1 : at + 4] == [
        f"  3,900 launches of 39 kernels, vendor: {REASON_TEXT[Reason.VENDOR]}; "
        f"what helps: {REASON_REMEDY[Reason.VENDOR]}",
        f"  axpy: 8 launches, no-ptx: {REASON_TEXT[Reason.NO_PTX]} (machine code); "
        f"what helps: {REASON_REMEDY[Reason.NO_PTX]}",
        "  neutrino-report --all names the kernels",
    ]
    assert len([line for line in usage_lines(usage, shows_all=True) if ": 100 launches, vendor" in line]) == 39
