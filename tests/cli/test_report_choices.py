"""Which trace of a folder a report is about, and which map a query without --map."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from neutrino.cli.report import main
from tests.tracing.trace_writer import TraceWriter, fill_regions, make_map


def write(path: Path, kernel: str, age: int, run: str = "") -> None:
    """A trace of one launch, written some seconds ago, by the command with that word."""
    wide = make_map("Wide", "array", "warp", {"bytes": "u64", "shared": "u64"})
    narrow = make_map("Narrow", "array", "warp", {"shared": "u64", "count": "u32", "spare": "u32"})
    totals = make_map("Totals", "sum", "thread", {"bytes": "u64"})
    maps = [wide, narrow, totals]
    writer = TraceWriter(path)
    writer.events[0]["run"] = run or str(path)
    writer.kernel(1, kernel, maps=maps)
    values: Mapping[str, object] = {"Wide": [(4, 1), (8, 2)], "Narrow": [(7, 1, 0), (9, 2, 0)], "Totals": [(0,)]}
    writer.launch(1, (1, 1, 1), (64, 1, 1), fill_regions(maps, 2, values))
    launches = writer.write() / "launches.bin"
    os.utime(launches, ns=(10**18 - age * 10**9,) * 2)


def test_the_newest_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for age, name in enumerate(("third", "second", "first")):
        write(tmp_path / f"Nov20_13150{3 - age}_1", name, age)
    assert main([str(tmp_path)]) == 0
    captured = capsys.readouterr()
    assert ("third" in captured.out, "second" in captured.out) == (True, False)
    assert captured.err == f"neutrino-report: {tmp_path}: the newest trace; 2 other traces there (--all-traces)\n"
    assert main([str(tmp_path), "--all-traces"]) == 0
    captured = capsys.readouterr()
    assert [captured.out.index(name) for name in ("first", "second", "third")] == sorted(
        captured.out.index(name) for name in ("first", "second", "third")
    )
    assert not captured.err
    # One that is named is the one, and forms of the report are of the same.
    assert main([str(tmp_path / "Nov20_131501_1")]) == 0
    captured = capsys.readouterr()
    assert ("first" in captured.out, captured.err) == (True, "")
    assert main([str(tmp_path), "--json"]) == 0
    (trace,) = json.loads(capsys.readouterr().out)["traces"]
    assert trace["kernels"][0]["name"] == "third"


def test_conditions_are_of_a_whole_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for age, (name, run) in enumerate((("third", "b"), ("second", "b"), ("first", "a"))):
        write(tmp_path / f"Nov20_13150{3 - age}_1", name, age, run)
    main([str(tmp_path), "--fail-if", "nan_count > 0"])
    captured = capsys.readouterr()
    assert ("third" in captured.out, "second" in captured.out, "first_kernel" in captured.out) == (True, True, False)
    assert "the newest run; 1 other trace there (--all-traces)" in captured.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--where", "count > 1"], "1 record of Narrow"),
        (["--sort=-bytes", "--map", "Wide"], "2 records of Wide"),
        (["--sort=-shared + count"], "2 records of Narrow"),
        (["--group-by", "count", "--sort=-spare_sum"], "2 groups of Narrow"),
        # Nothing but zeros is nothing: Totals has bytes, too.
        (["--where", "bytes == 8"], "1 record of Wide"),
        (["--where", "shared > 0"], "there are several maps with shared: choose one with --map: Narrow, Wide"),
        (["--csv"], "there are several maps: choose one with --map: Narrow, Totals, Wide"),
        (["--where", "cuont > 1"], "no map has a field 'cuont'; Narrow has count, shared, spare"),
        (["--where", "cuont > 1"], "did you mean count?"),
        (["--where", "count > bytes"], "no map has all of bytes, count; Narrow has"),
        (["--map", "Narow", "--csv"], "no such map; there are Narrow, Totals, Wide; did you mean Narrow?"),
    ],
)
def test_the_map_that_has_the_fields(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    write(tmp_path / "Nov20_131500_1", "k", 0)
    main([str(tmp_path / "Nov20_131500_1"), *options])
    captured = capsys.readouterr()
    assert said in captured.out + captured.err
