"""What a process says at its end: how many of its launches and kernels were probed, and why the others were not."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from neutrino.abi.reasons import CHOICE_OPTIONS, REASON_REMEDY, REASON_TEXT, Reason
from neutrino.maker.store import Cache
from neutrino.tracing import Trace
from neutrino.tracing.coverage import Coverage
from neutrino.twins.cache_entry import KernelEntry, read_entry, write_entry
from neutrino.verification import load_probe_file

from .conftest import IMAGE, POOL_LEAST, TICKETS, Bench, Reference, entry_of, second, write_reasons
from .trace_files import Files

MORE = "; see neutrino-report TRACE --why"


def said(home: Path, stderr: str) -> list[str]:
    """The lines after the one that names the trace, without the program's name before each."""
    first, *lines = stderr.splitlines()
    assert re.fullmatch(rf"neutrino: trace in {home}/trace/\w+", first)
    assert all(line.startswith("neutrino: ") for line in lines)
    return [line.removeprefix("neutrino: ") for line in lines]


def trace_of(home: Path) -> Trace:
    (path,) = (home / "trace").iterdir()
    return Trace(path)


def coverage(home: Path) -> Coverage:
    """Coverage as the reader of the trace computes it."""
    return trace_of(home).coverage


def in_words(reason: Reason, launches: str) -> str:
    remedy = REASON_REMEDY.get(reason)
    return f"{launches} {reason.word} ({REASON_TEXT[reason]}{f': {remedy}' if remedy else ''})"


def test_all_launches(any_bench: Bench, tmp_path: Path) -> None:
    result = any_bench.run("plain", tmp_path)
    assert said(tmp_path, result.stderr) == ["20 of 20 launches probed (100 %), 1 of 1 kernels"]
    assert coverage(tmp_path).sentence == said(tmp_path, result.stderr)[0]


def test_kernels_of_replays_count_each_time(any_bench: Bench, tmp_path: Path) -> None:
    result = any_bench.run("graph-replays", tmp_path, extra={"NEUTRINO_POOL": str(64 << 20)})
    assert said(tmp_path, result.stderr) == ["510 of 510 launches probed (100 %), 1 of 1 kernels"]


def test_mixed_reasons_in_the_order_of_their_launches(any_bench: Bench, tmp_path: Path, reference: Reference) -> None:
    result = any_bench.run("graph-crowd", tmp_path, extra={"NEUTRINO_POOL": str(POOL_LEAST)})
    assert (result.stdout, result.returncode) == reference("graph-crowd")
    share, reasons = said(tmp_path, result.stderr)
    found = coverage(tmp_path)
    assert share == found.sentence
    assert re.fullmatch(r"\d,\d{3} of 2,\d{3} launches probed \(\d\d %\), \d of \d kernels", share)
    counts = sorted(found.not_probed.items(), key=lambda row: -row[1])
    assert Reason.POOL_FULL in found.not_probed
    assert reasons == "not probed: " + "; ".join(in_words(reason, f"{count:,}") for reason, count in counts) + MORE
    counted = Files(tmp_path / "trace").counters.sum(axis=0)
    assert found.launches == counted.sum()


def write_mixture(home: Path) -> None:
    """Cache entries for the two images of the scenario mixture: one kernel has a twin, the others various reasons."""
    first, other = read_entry(entry_of(IMAGE), "entry"), read_entry(entry_of(second(IMAGE)), "entry")
    (twin,) = (kernel for kernel in first.kernels if kernel.name == "count_p2")
    reasons = {"count_p0": Reason.VENDOR, "loop_p2": Reason.NUMERICS, "raise_p1": Reason.OCCUPANCY}
    home.mkdir(exist_ok=True)
    for entry, kernels in (
        (first, [twin, *(KernelEntry(name, reason, "said the test") for name, reason in reasons.items())]),
        (other, [KernelEntry("count_p2", Reason.NO_SITE, ""), KernelEntry("loop_p2", Reason.NOT_SELECTED, "")]),
    ):
        maps = load_probe_file(TICKETS).maps
        Cache(home / "cache").write(entry.key, write_entry(entry.key, maps, kernels, entry.images))


def test_the_three_reasons_with_most_launches_are_said(any_bench: Bench, tmp_path: Path, reference: Reference) -> None:
    write_mixture(tmp_path)
    result = any_bench.run("mixture", tmp_path, twins=False)
    assert (result.stdout, result.returncode) == reference("mixture")
    reasons = (in_words(Reason.VENDOR, "1,200"), in_words(Reason.NUMERICS, "4"), in_words(Reason.OCCUPANCY, "3"))
    assert said(tmp_path, result.stderr) == [
        "1 of 1,210 launches probed (under 1 %), 1 of 5 kernels; not chosen: 7 more",
        f"no instruction matches in the kernels of 2 launches; not probed: {'; '.join(reasons)}{MORE}",
    ]
    assert coverage(tmp_path).sentence == said(tmp_path, result.stderr)[0]


def test_forms_that_are_not_probed_are_named_with_what_helps(bench: Bench, tmp_path: Path) -> None:
    result = bench.run("forms", tmp_path)
    found = coverage(tmp_path)
    lines = said(tmp_path, result.stderr)
    assert lines[0] == found.sentence
    assert bool(found.not_probed) == (len(lines) == 2)


@pytest.mark.parametrize("reason", [Reason.VENDOR, Reason.NO_PTX])
def test_nothing_probed(any_bench: Bench, tmp_path: Path, reason: Reason) -> None:
    write_reasons(tmp_path, reason)
    result = any_bench.run("plain", tmp_path, twins=False)
    assert said(tmp_path, result.stderr) == [
        "nothing was probed: 0 of 20 launches, 0 of 1 kernels",
        f"not probed: {in_words(reason, '20')}{MORE}",
    ]
    assert coverage(tmp_path).sentence == said(tmp_path, result.stderr)[0]


def test_kernels_without_an_instruction_that_matches_are_no_failure(any_bench: Bench, tmp_path: Path) -> None:
    write_reasons(tmp_path, Reason.NO_SITE)
    result = any_bench.run("plain", tmp_path, twins=False)
    assert said(tmp_path, result.stderr) == [
        "nothing was probed: 0 of 20 launches, 0 of 1 kernels",
        "no instruction matches in the kernels of 20 launches",
    ]


def test_kernels_that_lack_probes_are_counted(any_bench: Bench, tmp_path: Path) -> None:
    """The entry of such a kernel has a detail, which its event has, too."""
    entry = read_entry(entry_of(IMAGE), "entry")
    kernels = [
        replace(kernel, detail="probe 'p' is left out: why") if kernel.name == "count_p2" else kernel
        for kernel in entry.kernels
    ]
    (tmp_path / "cache").mkdir(parents=True)
    maps = load_probe_file(TICKETS).maps
    Cache(tmp_path / "cache").write(entry.key, write_entry(entry.key, maps, kernels, entry.images))
    result = any_bench.run("plain", tmp_path, twins=False)
    (line,) = said(tmp_path, result.stderr)
    assert line.endswith("; without some of the probes: 1 kernel, see neutrino-report TRACE --why")
    (kernel,) = [kernel for kernel in trace_of(tmp_path).kernels if kernel.detail]
    assert (kernel.reason, kernel.detail) == (Reason.PROBED, "probe 'p' is left out: why")
    assert "probed; probe 'p' is left out: why" in (trace_of(tmp_path).path / "event.log").read_text()


def test_kernels_left_out_are_not_chosen(any_bench: Bench, tmp_path: Path) -> None:
    write_reasons(tmp_path, Reason.NOT_SELECTED)
    result = any_bench.run("plain", tmp_path, twins=False)
    assert said(tmp_path, result.stderr) == [f"nothing was probed: none of 20 launches was chosen ({CHOICE_OPTIONS})"]
    assert coverage(tmp_path).sentence == said(tmp_path, result.stderr)[0]


def test_no_gpu_code(any_bench: Bench, tmp_path: Path, reference: Reference) -> None:
    result = any_bench.run("unused", tmp_path)
    assert (result.stdout, result.returncode) == reference("unused")
    assert re.fullmatch(
        r"neutrino: nothing was recorded: process \d+ called the CUDA driver and loaded no GPU code\n", result.stderr
    )
    assert not (tmp_path / "trace").exists()


def test_no_launch(any_bench: Bench, tmp_path: Path, reference: Reference) -> None:
    result = any_bench.run("loaded", tmp_path)
    assert (result.stdout, result.returncode) == reference("loaded")
    assert said(tmp_path, result.stderr) == ["nothing was probed: no launch of a kernel was seen"]
    assert coverage(tmp_path).sentence == said(tmp_path, result.stderr)[0]


@pytest.mark.parametrize("scenario", ["plain", "unused"])
def test_quiet(bench: Bench, tmp_path: Path, scenario: str) -> None:
    assert bench.run(scenario, tmp_path, extra={"NEUTRINO_QUIET": "1"}).stderr == ""


def test_a_rank_is_one_line(bench: Bench, tmp_path: Path) -> None:
    write_reasons(tmp_path, Reason.NO_PTX)
    result = bench.run("plain", tmp_path, twins=False, extra={"RANK": "3"})
    assert said(tmp_path, result.stderr) == [
        "rank 3: nothing was probed: 0 of 20 launches, 0 of 1 kernels; not probed: 20 no-ptx" + MORE
    ]


@pytest.mark.parametrize("rank", ["", "\x1b[2J", "1;2", "12345678901"])
def test_what_is_no_rank_is_not_printed(bench: Bench, tmp_path: Path, rank: str) -> None:
    result = bench.run("plain", tmp_path, extra={"RANK": rank})
    assert said(tmp_path, result.stderr) == ["20 of 20 launches probed (100 %), 1 of 1 kernels"]


@pytest.mark.parametrize(
    ("ranks", "variables", "is_chosen"),
    [
        ("3", {"RANK": "3"}, True),
        ("0,3,5", {"RANK": "5", "SLURM_PROCID": "0"}, True),
        ("0,3", {"OMPI_COMM_WORLD_RANK": "3"}, True),
        ("0", {}, True),
        ("3", {}, False),
        ("1,2", {"RANK": "12"}, False),
        ("0,1", {"SLURM_PROCID": "2"}, False),
    ],
)
def test_only_chosen_ranks_are_probed(
    bench: Bench, tmp_path: Path, ranks: str, variables: dict[str, str], is_chosen: bool
) -> None:
    result = bench.run("plain", tmp_path, extra={"NEUTRINO_ONLY_RANKS": ranks, **variables})
    assert (result.stdout, result.returncode) == ("120\n", 0)
    reason = Reason.PROBED if is_chosen else Reason.NOT_SELECTED
    assert Files(tmp_path / "trace").counted("count_p2") == {reason.word: 20}
    assert bool(result.stderr) == is_chosen


@pytest.mark.parametrize("closing", ["2>&-", "2>/dev/full"])
@pytest.mark.parametrize("scenario", ["plain", "unused"])
def test_stderr_that_takes_nothing(
    bench: Bench, tmp_path: Path, reference: Reference, closing: str, scenario: str
) -> None:
    bench.run(scenario, tmp_path)
    environment = bench.hooked(bench.environment(tmp_path), tmp_path)
    result = subprocess.run(
        ["sh", "-c", f"exec '{bench.host}' {scenario} {closing}"], env=environment, capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    assert (result.stdout, result.returncode, result.stderr) == (*reference(scenario), "")


def test_a_full_pipe_is_not_waited_for(bench: Bench, tmp_path: Path, reference: Reference) -> None:
    bench.run("plain", tmp_path)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writing, bytes(4096)):
            pass
    os.set_blocking(writing, True)
    with os.fdopen(reading, "rb"), os.fdopen(writing, "wb") as stderr:
        result = subprocess.run(
            [str(bench.host), "plain"], env=bench.hooked(bench.environment(tmp_path), tmp_path),
            stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=600, check=False,
        )  # fmt: skip
    assert (result.stdout, result.returncode) == reference("plain")
