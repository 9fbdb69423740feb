"""What a report shows is chosen once: text has every line and cell of it, JSON the same numbers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neutrino.abi.reasons import Reason
from neutrino.cli.report import main
from neutrino.cli.streams import escaped
from neutrino.maps.regions import copies_in
from neutrino.tracing import Trace, summarize
from neutrino.tracing.shown.model import Cell, Choice, Column, Kind, Line, Name, Section, ShownReport, Table, joined
from neutrino.tracing.shown.report import shown_report
from tests.tracing.trace_writer import BLOCK_SCHED, GMEM_BYTES, VALUES, TraceWriter, fill_regions

HOSTILE = "k<b>\x1b[2J\u202e\n& "
SCHED = [(10**18 + 1, 900, 0), (10**18 + 4, 800, 1), (10**18 + 9, 700, 131)]


PAIRS = Path(__file__).parent / "analyses"


def test_many_kernels_have_addresses_in_hexadecimal_and_times_since_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As each of them has alone; what none of them has recorded is in one line."""
    monkeypatch.setenv("COLUMNS", "200")
    kernels = [f"{name}_{way}" for name in ("uncoalesced", "divergence", "latency") for way in ("bad", "good")]
    command = [sys.executable, "-m", "neutrino.cli.run", "--device", "embedded", "-q", "--tracedir", tmp_path]
    program = [sys.executable, PAIRS / "launch_pairs.py", PAIRS / "pairs.ptx", *(f"{name}:2:64" for name in kernels)]
    subprocess.run([*command, "-p", "dmat", "-p", "hot_lines", "-DSAMPLE=1", *program], check=True, timeout=600)
    assert main([str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("GlobalAccesses: records by thread")
    assert "clock, steps since the first: median" in lines[at + 1]
    rows = {line.split()[0]: line.split()[3:7] for line in lines[at + 2 : at + 2 + len(kernels)]}
    assert rows.keys() == set(kernels)
    for name in kernels:
        assert main([str(tmp_path), "-k", name]) == 0
        alone = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
        fields = {words[0]: words for words in alone if words[0] in ("address", "clock")}
        assert rows[name] == [*fields["address"][2:4], *fields["clock"][2:4]]
        assert rows[name][0].startswith("0x")
    assert "BulkCopies, TensorCopies, NotTraced: nothing was saved, or 0, in any kernel" in lines
    at = next(at for at, line in enumerate(lines) if line.startswith("HotLines: the keys with most over all threads"))
    assert all(line.split()[3].startswith("0x") for line in lines[at + 2 : at + 2 + len(kernels)])


def written(path: Path, kernels: int) -> Path:
    """A trace of kernels with records, sums and a histogram, and of some that were not probed."""
    writer = TraceWriter(path)
    buckets = np.arange(copies_in(3) * VALUES.size // 8, dtype="<u8").view(VALUES.dtype)
    values = {"BlockSched": SCHED, "GmemBytes": [(4096, 2048, 0, 0, 0)] * copies_in(3), "Values": buckets}
    maps = [BLOCK_SCHED, GMEM_BYTES, VALUES]
    for kernel in range(1, kernels + 1):
        writer.kernel(kernel, f"{HOSTILE}{kernel}", maps=maps)
        for _ in range(kernel):
            writer.launch(kernel, (3, 1, 1), (32, 1, 1), fill_regions(maps, 3, values))
    writer.kernel(50, HOSTILE, Reason.VENDOR, HOSTILE)
    writer.count(50, Reason.VENDOR, 1234)
    writer.kernel(51, "idle", Reason.NO_PTX)
    return writer.write(ended=False)


def lines_of(report: ShownReport) -> list[Line]:
    lines = [*report.heading.lines, *report.notes]
    for section in report.sections:
        lines += section.lines()
        lines += [table.more for table in section.tables() if table.more is not None]
    return lines


def tables_of(report: ShownReport) -> list[Table]:
    return [table for section in report.sections for table in section.tables()]


@pytest.mark.parametrize("kernels", [2, 7])
@pytest.mark.parametrize("options", [(), ("--all",), ("-k", "*1*")])
def test_text_has_every_line_and_cell(
    kernels: int, options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Where lines have an end, cells are wrapped.
    monkeypatch.delenv("COLUMNS", raising=False)
    path = written(tmp_path / "t", kernels)
    is_chosen = "-k" in options
    summary = summarize(Trace(path), lambda kernel: not is_chosen or "1" in kernel.full_name)
    report = shown_report(summary, Choice(chosen=is_chosen, all="--all" in options))
    main([str(path), "--wide", *options])
    text = capsys.readouterr().out
    words = re.sub(r"\s+", " ", text)

    def is_there(shown: str) -> bool:
        return re.sub(r"\s+", " ", escaped(shown)).strip() in words

    for line in lines_of(report):
        assert is_there(line.text), line
    tables = tables_of(report)
    assert tables
    for table in tables:
        assert len({len(row) for row in table.rows} | {len(table.columns)}) == 1
        for row in table.rows:
            assert is_there(" ".join(escaped(cell.text) for cell in row if cell.text)), row
    # Choices of the report, and of nobody else: what is left out is counted.
    assert ("overview" in {section.kind for section in report.sections}) == (kernels == 7 and not options)


def test_json_has_the_same_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "t", 2)
    report = shown_report(summarize(Trace(path)), Choice(all=True))
    main([str(path), "--json"])
    (trace,) = json.loads(capsys.readouterr().out)["traces"]
    kernels: dict[int, Any] = {kernel["kernel"]: kernel for kernel in trace["kernels"]}
    compared = 0
    for section in report.of_kind("kernel"):
        for part in section.blocks:
            if not isinstance(part, Section):
                continue
            (entry,) = (found for found in kernels[section.kernel or 0]["maps"] if found["name"] == part.name)
            for table in part.tables():
                # Shares are of other numbers, and in the report alone.
                titles = [column.title for column in table.columns]
                rows = [dict(zip(titles, (cell.value for cell in row), strict=True)) for row in table.rows]
                if table.name == "fields":
                    known = [{**field, "field": field["name"]} for field in entry["fields"]]
                else:
                    known = [{"from": row["low"], "to": row["high"], "count": row["count"]} for row in entry["buckets"]]
                    first = next(at for at, row in enumerate(known) if row["count"])
                    known = known[first:]
                for row, other in zip(rows, known, strict=False):
                    share = row.pop("share", None)
                    if share is not None and table.name == "buckets":
                        assert share == row["count"] / sum(bucket["count"] for bucket in known)
                    assert row == {title: other[title] for title in titles if title != "share"}
                    compared += len(row)
    assert compared > 50


def test_names_in_the_model_are_as_the_trace_has_them(tmp_path: Path) -> None:
    """Renderers escape for their own media; what was escaped before would be shown twice escaped."""
    report = shown_report(summarize(Trace(written(tmp_path / "t", 1))))
    names = [part for line in lines_of(report) for part in line.parts if isinstance(part, Name)]
    assert names
    assert all(name.text.startswith(HOSTILE) for name in names)
    (table,) = (table for table in tables_of(report) if table.name == "not_probed")
    (row,) = table.rows
    assert (row[1].name, row[1].text) == (Name(HOSTILE, 50), HOSTILE)
    assert HOSTILE in row[2].text


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "t")
    for kernel in range(1, 31):
        writer.kernel(kernel, f"k{kernel}", maps=[BLOCK_SCHED])
        writer.launch(kernel, (3, 1, 1), (32, 1, 1), fill_regions([BLOCK_SCHED], 3, {"BlockSched": SCHED}))
    report = shown_report(summarize(Trace(writer.write())))
    (table,) = tables_of(report)
    assert (len(table.rows), table.left_out) == (20, 10)
    assert table.more is not None
    assert table.more.text == "and 10 kernels more"


def test_lines_and_tables() -> None:
    names = [Name(f"n{number}") for number in range(5)]
    assert Line.of("in ", *joined(names, 2), "!").text == "in n0, n1 and 3 more!"
    assert Line.of("in ", *joined(names[:1], 2)).text == "in n0"
    table = Table("t", (Column("a", Kind.NAME),), ((Cell.named(names[0]),),))
    inner = Section("map", Line.of("m"), (table, Line.of("x")))
    outer = Section("kernel", None, (Line.of("y"), inner))
    assert [line.text for line in outer.lines()] == ["y", "m", "x"]
    assert list(outer.tables()) == [table]
