"""Tables by site: every way to read them has the same rows, which are those of independent arithmetic."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from neutrino.cli.probe import main as probe_main
from neutrino.cli.report import main
from neutrino.tracing import Trace
from neutrino.tracing.recorded import RecordedMap

# Of 2 blocks of 16 × 4 threads those below n go on. Line 10 has a load of all and one of each fourth thread, which then
# calls a function; the load of line 20 is never executed.
KERNEL = """
.version 8.0
.target sm_80
.address_size 64
.file 1 "/src/walk.cu"
.func helper(.reg .b64 %a, .reg .b32 %n)
{
.reg .b32 %r;
.loc 1 30 2
ld.global.u32 %r, [%a];
.loc 1 31 2
st.global.u32 [%a], %n;
ret;
}
.visible .entry walk(.param .u64 x, .param .u32 n)
{
.reg .pred %p<4>; .reg .b32 %r<12>; .reg .b64 %d<5>;
ld.param.u64 %d1, [x]; ld.param.u32 %r1, [n]; cvta.to.global.u64 %d2, %d1;
mov.u32 %r2, %tid.x; mov.u32 %r3, %tid.y; mov.u32 %r4, %ntid.x; mad.lo.u32 %r5, %r3, %r4, %r2;
mov.u32 %r6, %ctaid.x; mov.u32 %r7, %ntid.y; mul.lo.u32 %r8, %r4, %r7; mad.lo.u32 %r9, %r6, %r8, %r5;
setp.ge.u32 %p1, %r9, %r1;
@%p1 ret;
mul.wide.u32 %d3, %r9, 4; add.u64 %d4, %d2, %d3;
.loc 1 10 2
ld.global.u32 %r10, [%d4];
and.b32 %r11, %r9, 3; setp.ne.u32 %p2, %r11, 0;
@%p2 bra SKIP;
.loc 1 10 9
ld.global.u32 %r10, [%d4];
.loc 1 12 2
call helper, (%d4, %r9);
SKIP:
.loc 1 20 2
setp.ne.u32 %p3, %r1, 77;
@%p3 bra DONE;
ld.global.u32 %r10, [%d4];
DONE:
ret;
}
"""
# Two probes at each load, which save to one table; a second table has loads only.
PROBES = """
[map.Columns]
type = "hash"
level = "thread"
keep = ["sum", "min", "max"]
data = { spot = "u64", column = "u32" }
[map.Loads]
type = "hash"
level = "thread"
data = { site = "u64" }
[probe.accesses]
position = "ld.global | st.global"
level = "thread"
before = '''
.reg .u32 %c;
mov.u32 %c, %tid.x;
SAVE [ Columns ] { SITE, %c };
'''
[probe.again]
position = "ld.global"
level = "thread"
before = '''
SAVE [ Columns ] { SITE, 100 };
SAVE [ Loads ] { SITE };
'''
"""
N = 101
LAUNCH = ["--grid", "2", "--block", "16,4", "--arg", f"n={N}"]
KEPT = ("count", "sum", "min", "max")
Rows = dict[tuple[str, str], tuple[int, ...]]


def expected() -> Rows:
    """By place and instruction: count, sum, least and greatest value."""
    saved = defaultdict(list)
    for thread in range(N):
        column = thread % 16
        saved["walk.cu:10", "ld.global.u32 %r10, [%d4]", 0] += [column, 100]
        if thread % 4 == 0:
            saved["walk.cu:10", "ld.global.u32 %r10, [%d4]", 1] += [column, 100]
            saved["walk.cu:30", "ld.global.u32 %r, [%a]", 2] += [column, 100]
            saved["walk.cu:31", "st.global.u32 [%a], %n", 3] += [column]
    return {key: (len(of), sum(of), min(of), max(of)) for key, of in saved.items()}


def lines() -> dict[str, tuple[int, ...]]:
    """By line: the same, and how many sites."""
    found: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for (place, *_), row in expected().items():
        found[place].append(row)
    return {
        place: (
            sum(row[0] for row in rows), sum(row[1] for row in rows), min(row[2] for row in rows),
            max(row[3] for row in rows), len(rows),
        )
        for place, rows in found.items()
    }  # fmt: skip


@dataclass
class Tried:
    """What ``try`` printed, and its trace."""

    text: str
    document: Any
    trace: Path


def tried(folder: Path, captured: pytest.CaptureFixture[str], kernel: str = KERNEL) -> Tried:
    (folder / "walk.ptx").write_text(kernel)
    (folder / "probes.toml").write_text(PROBES)
    command = ["try", str(folder / "probes.toml"), str(folder / "walk.ptx"), *LAUNCH]
    assert probe_main([*command, "--json"]) == 0
    document = json.loads(captured.readouterr().out)
    assert probe_main([*command, "--tracedir", str(folder / "trace")]) == 0
    (trace,) = (folder / "trace").iterdir()
    return Tried(captured.readouterr().out, document, trace)


def cells(text: str, head: str) -> list[dict[str, str]]:
    """The rows of a printed table below its map's line."""
    lines = text[text.index(head) :].splitlines()[1:]
    titles, *rows = (re.split(r" {2,}", line.strip()) for line in lines)
    return [
        dict(zip(titles, row, strict=True)) for row in rows[: [len(r) == len(titles) for r in [*rows, []]].index(0)]
    ]


def rows_of(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    def number(value: Any) -> int:
        # Some texts have commas between thousands.
        return int(str(value).replace(",", ""))

    return sorted(
        (row["place"], row["instruction"], number(row["spot"]), *(number(row[name]) for name in KEPT)) for row in rows
    )


def test_six_ways_have_the_same_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    run = tried(tmp_path, capsys)

    def report(*options: str) -> str:
        assert main([str(run.trace), "--map", "Columns", *options]) == 0
        return capsys.readouterr().out

    ways = {"report": rows_of(cells(report(), "  Columns: "))}
    (kernel,) = json.loads(report("--json"))["traces"][0]["kernels"]
    (entry,) = kernel["maps"]
    ways["--json"] = rows_of([{**row, **row["kept"], entry["key"]: row["key"]} for row in entry["keys"]])
    ways["--csv"] = rows_of(list(csv.DictReader(io.StringIO(report("--csv")))))
    ways["--records --json"] = rows_of(json.loads(report("--records", "--json"))["rows"])
    ways["try"] = rows_of(cells(run.text, "  Columns: "))
    columns = next(entry for entry in run.document["maps"] if entry["name"] == "Columns")["columns"]
    ways["try --json"] = rows_of([dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)])
    recorded = RecordedMap(Trace(run.trace).kernels, "Columns")
    assert recorded.site == "spot"
    ways["Python"] = rows_of(
        [
            {**{name: column[index] for name, column in part.columns.items()}, "place": place, "instruction": text}
            for part in recorded.rows()
            for index, (place, text) in enumerate(recorded.sites_of(part))
        ]
    )
    # Numbers are those of the text's order.
    wanted = sorted((place, text, *row) for (place, text, _), row in expected().items())
    for way, rows in ways.items():
        assert rows == ways["report"], way
        assert sorted((place, text, *row) for place, text, _, *row in rows) == wanted, way
    printed = cells(report("--records"), str(run.trace))
    assert sorted((row["spot"], *(int(row[name]) for name in KEPT)) for row in printed) == sorted(
        (f"{place}: {text}", *row) for place, text, *row in wanted
    )


def test_lines_add_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tried(tmp_path, capsys)

    def report(*options: str) -> str:
        assert main([str(run.trace), "--map", "Columns", "--group-by", "line", *options]) == 0
        return capsys.readouterr().out

    for rows in (
        json.loads(report("--json"))["rows"], list(csv.DictReader(io.StringIO(report("--csv")))),
        cells(report(), str(run.trace)),
    ):  # fmt: skip
        assert {row["line"]: tuple(int(row[name]) for name in (*KEPT, "sites")) for row in rows} == lines()
        for row in rows:
            assert float(row["mean"]) == pytest.approx(int(row["sum"]) / int(row["count"]), rel=1e-5)
        assert [int(row["sum"]) for row in rows] == sorted((row[1] for row in lines().values()), reverse=True)
    least = json.loads(report("--json", "--sort", "mean", "--where", "count > 30"))["rows"]
    wanted = [row for key, row in expected().items() if row[0] > 30]
    assert sum(row["count"] for row in least) == sum(row[0] for row in wanted)
    assert [row["mean"] for row in least] == sorted(row["mean"] for row in least)
    assert main([str(run.trace), "--map", "Columns", "--group-by", "kernel", "--json"]) == 0
    (whole,) = json.loads(capsys.readouterr().out)["rows"]
    assert (whole["count"], whole["sites"]) == (sum(row[0] for row in expected().values()), 4)


def test_what_has_no_lines_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tried(tmp_path, capsys, re.sub(r"^\.loc.*\n", "", KERNEL, flags=re.MULTILINE))
    assert main([str(run.trace), "--map", "Loads", "--group-by", "line", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["notes"] == ["walk has no source lines (-lineinfo): each line is one of its PTX"]
    assert {row["line"].split(":")[0] for row in document["rows"]} <= {f"PTX line {number}" for number in range(60)}
    assert sorted(row["count"] for row in document["rows"]) == [-(-N // 4), -(-N // 4), N]


def test_a_map_without_sites_has_no_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "walk.ptx").write_text(KERNEL)
    (tmp_path / "probes.toml").write_text(PROBES.replace("{ SITE, %c }", "{ %laneid, %c }"))
    command = ["try", str(tmp_path / "probes.toml"), str(tmp_path / "walk.ptx"), *LAUNCH]
    assert probe_main([*command, "--tracedir", str(tmp_path / "trace")]) == 0
    capsys.readouterr()
    assert main([str(tmp_path / "trace"), "--map", "Columns", "--group-by", "line"]) == 2
    assert "the records of map Columns have no site, so that they have no line" in capsys.readouterr().err
