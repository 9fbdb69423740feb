"""Arrays with a cap of 1 do not count saves: what shows their records says which may never have been saved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neutrino import open_trace
from tests.playground.conftest import ROOT, Run

KERNELS = ROOT / "examples" / "embedded" / "kernels.ptx"
PROBE = """from neutrino import probe, Map
import neutrino.language as nl

@Map(level="{level}", type="{kind}", cap=1)
class Kept:
    value: nl.u32
    other: nl.u64

@probe(pos="kernel", level="{level}", before=True)
def p():
    if {condition}:
        Kept.save({value}, 0)
"""
CASES: dict[str, tuple[str, str, str, int, int]] = {
    # Level, condition and value; records of 2 blocks of 40 threads, and how many of them are all zeros.
    "one lane of each warp": ("thread", "nl.lane == 5", "7", 80, 76),
    "all lanes, some zeros": ("thread", "nl.lane >= 0", "nl.lane", 80, 4),
    "one block": ("block", "nl.ctaid.x == 1", "3", 2, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_try_says_how_many_are_all_zeros(name: str, run: Run, tmp_path: Path) -> None:
    level, condition, value, records, zeros = CASES[name]
    path = tmp_path / "p.py"
    path.write_text(PROBE.format(level=level, kind="array", condition=condition, value=value))
    arguments = (path, KERNELS, "-k", "saxpy", "--grid", "2", "--block", "40")
    result = run("probe", "try", *arguments, "--json")
    assert result.returncode == 0, result.stderr
    (kept,) = json.loads(result.stdout)["maps"]
    assert (len(kept["columns"]["value"]), kept["all_zero"]) == (records, zeros)
    text = run("probe", "try", *arguments).stdout
    assert f"{zeros} of them {'is' if zeros == 1 else 'are'} zeros: saved so, or never saved" in text


def test_what_is_written_instead_tells(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "p.py"
    path.write_text(PROBE.format(level="thread", kind="ring", condition="nl.lane == 5", value="0"))
    result = run("probe", "try", path, KERNELS, "-k", "saxpy", "--grid", "2", "--block", "40")
    assert "  Kept: 4 records\n" in result.stdout
    assert "saved so" not in result.stdout


def test_reports_say_how_many_are_all_zeros(run: Run, demo: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.py"
    path.write_text(PROBE.format(level="thread", kind="array", condition="nl.lane == 5", value="7"))
    result = run("run", "--device", "embedded", "-q", "-p", path, "--tracedir", tmp_path / "trace", demo / "program")
    assert result.returncode == 0, result.stderr
    (events,) = tmp_path.glob("trace/*/events.jsonl")
    (document,) = json.loads(run("report", events.parent, "--json").stdout)["traces"]
    counted = {kernel["name"]: kernel["maps"][0] for kernel in document["kernels"]}
    text = run("report", events.parent, "--all").stdout
    for kernel in open_trace(events.parent).kernels:
        zeros = records = 0
        for launch in kernel.launches():
            values = launch.maps["Kept"].valid()["value"]
            assert set(values.tolist()) == {0, 7}
            zeros, records = zeros + int((values == 0).sum()), records + len(values)
        if records:
            assert zeros * 32 == records * 31
            assert (counted[kernel.name]["records"], counted[kernel.name]["all_zero"]) == (records, zeros)
            assert f"{zeros:,} of them are zeros: saved so, or never saved" in text
