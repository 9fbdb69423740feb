"""What fields hold by the probes' code, and clocks as the time since each launch's first one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neutrino.cli.report import main
from neutrino.targets import lowered, trace_text
from neutrino.tracing import Trace
from neutrino.tracing.saved_values import Meaning, meanings_of
from neutrino.tracing.since_first import times_since_first
from neutrino.verification import load_probes
from tests.tracing.trace_writer import BLOCK_SCHED, TraceWriter, fill_regions, make_map

HEAD = 'platform = "cuda"\n[map.M]\ntype = "array"\nlevel = "thread"\ncap = 4\ndata = { x = "u64" }\n'


def meaning_of(tmp_path: Path, body: str, position: str = "ld.global") -> Meaning | None:
    file = tmp_path / "probes.toml"
    file.write_text(f'{HEAD}[probe.p]\nposition = "{position}"\nlevel = "thread"\nbefore = """{body}"""\n')
    return meanings_of(load_probes([str(file)])).get(("M", "x"))


@pytest.mark.parametrize(
    ("body", "meaning"),
    [
        (".reg .u64 %$a; mov.u64 %$a, %clock64; SAVE [ M ] { %$a };", Meaning.CLOCK),
        (".reg .u64 %$a; mov.u64 %$a, %globaltimer; SAVE [ M ] { %$a };", Meaning.TIME),
        ("SAVE [ M ] { ADDR };", Meaning.ADDRESS),
        (".reg .u64 %$a; add.u64 %$a, ADDR, 16; SAVE [ M ] { %$a };", Meaning.ADDRESS),
        (".reg .u64 %$a; and.b64 %$a, ADDR, -128; SAVE [ M ] { %$a };", Meaning.ADDRESS),
        (".reg .u64 %$a; shr.u64 %$a, ADDR, 5; shl.b64 %$a, %$a, 5; SAVE [ M ] { %$a };", Meaning.ADDRESS),
        # A line's number, an offset, a duration, the lower half of a clock, and one of two.
        (".reg .u64 %$a; shr.u64 %$a, ADDR, 7; SAVE [ M ] { %$a };", None),
        (".reg .u64 %$a; and.b64 %$a, ADDR, 127; SAVE [ M ] { %$a };", None),
        (".reg .u64 %a; .reg .u64 %$b; mov.u64 %$b, %clock64; sub.u64 %$b, %$b, %a; mov.u64 %a, %clock64;"
         " SAVE [ M ] { %$b };", None),
        (".reg .u64 %$a; .reg .u32 %$b; mov.u64 %$a, %clock64; cvt.u32.u64 %$b, %$a; cvt.u64.u32 %$a, %$b;"
         " SAVE [ M ] { %$a };", None),
        (".reg .u64 %$a; mov.u64 %$a, %clock64; SAVE [ M ] { %$a }; SAVE [ M ] { ADDR };", None),
    ],
)  # fmt: skip
def test_meanings(tmp_path: Path, body: str, meaning: Meaning | None) -> None:
    assert meaning_of(tmp_path, body) is meaning


def test_a_register_that_several_probes_write(tmp_path: Path) -> None:
    both = (
        '{HEAD}[probe.p]\nposition = "kernel"\nlevel = "thread"\nbefore = """.reg .u64 %t; mov.u64 %t, {first};"""\n'
        '[probe.q]\nposition = "ld.global"\nlevel = "thread"\nbefore = """SAVE [ M ] {{ %t }};"""\n'
    )
    file = tmp_path / "probes.toml"
    for first, meaning in (("%clock64", Meaning.CLOCK), ("7", None)):
        file.write_text(both.format(HEAD=HEAD, first=first))
        assert meanings_of(load_probes([str(file)])).get(("M", "x")) is meaning


def written(path: Path, seed: int = 3, launches: int = 5, is_counted: bool = False) -> tuple[Path, list[Any]]:
    """A trace of block_sched with random clocks, some of them 0, and the clocks of each launch."""
    random = np.random.default_rng(seed)
    fields = {"start": "u64", "elapsed": "u32", "cuid": "u32"}
    entry = make_map("BlockSched", "array", "warp", fields, cap=3) if is_counted else BLOCK_SCHED
    writer = TraceWriter(path)
    writer.kernel(1, "vecadd", maps=[entry])
    clocks = []
    for number in range(launches):
        warps = 4 + 4 * (number % 2)
        rows = np.zeros((warps, entry.cap), entry.dtype)
        rows["start"] = 10**15 * number + random.integers(1, 1 << 40, rows.shape)
        rows["start"][random.random(rows.shape) < 0.2] = 0
        counts = random.integers(0, entry.cap + 1, warps)
        regions = {"BlockSched": rows.reshape(-1), "BlockSched.counts": counts}
        saved = np.arange(entry.cap) < counts[:, None] if is_counted else np.ones(rows.shape, bool)
        clocks.append(rows["start"][saved])
        writer.launch(1, (1, 1, 1), (32 * warps, 1, 1), fill_regions([entry], warps, regions))
    return writer.write(), clocks


@pytest.mark.parametrize("is_counted", [False, True])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_times_are_those_of_each_launch(tmp_path: Path, seed: int, is_counted: bool) -> None:
    path, clocks = written(tmp_path / "t", seed, is_counted=is_counted)
    (kernel,) = Trace(path).kernels
    found = times_since_first(kernel, {("BlockSched", "start"): Meaning.CLOCK})[("BlockSched", "start")]
    times = np.sort(np.concatenate([launch[launch != 0] - launch[launch != 0].min() for launch in clocks]))
    assert (found.minimum, found.maximum) == (0, times[-1])
    assert found.median == times[(len(times) - 1) // 2]
    assert found.zeros == sum((launch == 0).sum() for launch in clocks)
    # A launch alone, and what is no clock.
    (only,) = times_since_first(kernel, {("BlockSched", "start"): Meaning.CLOCK}, range(2, 3)).values()
    assert only.maximum == clocks[2].max() - clocks[2][clocks[2] != 0].min()
    assert not times_since_first(kernel, {("BlockSched", "start"): Meaning.ADDRESS})


def test_the_report_has_them_and_json_the_clocks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    path, clocks = written(tmp_path / "t")
    (path / "probe.toml").write_text(trace_text(lowered(load_probes(["block_sched"]))))
    assert main([str(path), "--rows", "3"]) == 0
    printed = capsys.readouterr().out
    (line,) = (line.split() for line in printed.splitlines() if line.split()[:1] == ["start"])
    zeros = sum((launch == 0).sum() for launch in clocks)
    assert " ".join(line[4:]) == (
        f"cycles since the launch's first; {zeros} records have none; not comparable between multiprocessors"
    )
    rows = [line.split() for line in printed.splitlines() if line.split()[:2] == ["0", "0"]]
    first = clocks[0][clocks[0] != 0].min()
    assert [row[4] for row in rows if len(row) == 7] == [str(clock - first) for clock in clocks[0][:3] if clock]
    main([str(path), "--json"])
    field = json.loads(capsys.readouterr().out)["traces"][0]["kernels"][0]["maps"][0]["fields"][0]
    assert (field["name"], field["unit"], field["max"]) == ("start", "cycles", max(map(max, clocks)))
    assert field["since_first"]["clocks"] == "multiprocessors"
