"""neutrino-report --records, --where, --group-by, --sort, --csv, --launch and --rank: held against the records."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neutrino.abi.launches import LAUNCH, LAUNCHES_HEADER, LAUNCHES_HEADER_SIZE, LaunchState
from neutrino.abi.reasons import Reason
from neutrino.cli import record_query
from neutrino.cli.report import main
from neutrino.tracing import queries
from tests.tracing.trace_writer import BLOCK_SCHED, GMEM_BYTES, TraceWriter, fill_regions, make_map

ROOT = Path(__file__).resolve().parents[2]
FIELDS = {"addr": "u64", "elapsed": "u32", "site": "u16", "bytes": "u16"}
ACCESSES = make_map("Accesses", "array", "warp", FIELDS, cap=2)
SITES = [
    {"probe": "p", "tracepoint": "ld", "line": 7, "instruction": "ld.global.u32 %r1, [%rd1];", "site": 0,
     "source": "a.cu:5"},
    {"probe": "p", "tracepoint": "ld", "line": 8, "instruction": "ld.global.u32 %r2, [%rd2];", "site": 1,
     "source": "a.cu:5"},
    {"probe": "p", "tracepoint": "ld", "line": 9, "instruction": 'st.global, "\x1b[31m"', "site": 2},
]  # fmt: skip
LONG = "a_kernel_with_a_long_name_" * 4
WARPS = 2


def write(path: Path, *, rank: int | None = None, launches: int = 6, seed: int = 1) -> Path:
    random = np.random.default_rng(seed)
    writer = TraceWriter(path)
    if rank is not None:
        writer.events[0]["RANK"] = str(rank)
    writer.kernel(1, "vecadd", maps=[ACCESSES, GMEM_BYTES], sites=SITES)
    writer.kernel(2, LONG, maps=[ACCESSES, BLOCK_SCHED], sites=SITES)
    writer.kernel(3, "idle", Reason.NO_PTX)
    for launch in range(launches):
        slots = 3 * WARPS
        values = np.zeros(slots * 2, ACCESSES.dtype)
        values["addr"] = random.integers(1 << 63, (1 << 63) + 4096, len(values), np.uint64)
        values["elapsed"] = random.integers(0, 20000, len(values))
        values["site"] = random.choice(np.array([0, 1, 2, 0xFFFF], "<u2"), len(values))
        values["bytes"] = random.choice(np.array([4, 8, 16], "<u2"), len(values))
        given: dict[str, Any] = {"Accesses": values, "Accesses.counts": random.integers(0, 4, slots)}
        maps = [ACCESSES, BLOCK_SCHED if launch % 2 else GMEM_BYTES]
        given["BlockSched"] = np.zeros(slots, BLOCK_SCHED.dtype)
        given["GmemBytes"] = [(launch, 1, 0, 2**63, 0)]
        writer.launch(1 + launch % 2, (3, 1, 1), (64, 1, 1), fill_regions(maps, WARPS, given, blocks=3))
    return writer.write()


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "trace" / "Nov20_131500_4242")


class Report:
    """Runs the command."""

    def __init__(self, trace: Path, captured: pytest.CaptureFixture[str]) -> None:
        self.trace = trace
        self._captured = captured

    def __call__(self, *options: str, status: int = 0, map_name: str = "Accesses") -> str:
        assert main([str(self.trace), "--map", map_name, *options]) == status
        captured = self._captured.readouterr()
        assert bool(captured.err) == (status != 0) or "note:" in captured.err
        return captured.out if status == 0 else captured.err

    def rows(self, *options: str, **more: Any) -> list[dict[str, str]]:
        """Those of CSV."""
        return list(csv.DictReader(io.StringIO(self(*options, "--csv", **more))))

    def document(self, *options: str, **more: Any) -> Any:
        return json.loads(self(*options, "--json", **more))


@pytest.fixture
def report(trace: Path, capsys: pytest.CaptureFixture[str]) -> Report:
    return Report(trace, capsys)


def records(trace: Path) -> list[dict[str, Any]]:
    """All records, from the files' bytes as the writer made them."""
    from neutrino.tracing import Trace

    found = []
    for kernel in Trace(trace).kernels:
        for launch in kernel.launches():
            view = launch.maps["Accesses"]
            assert view.counts is not None
            for block in range(3):
                for warp in range(WARPS):
                    for k in range(min(int(view.counts[block, warp]), 2)):
                        record = view.records[block, warp, k]
                        fields = {name: int(record[name]) for name in ("addr", "elapsed", "site", "bytes")}
                        found.append(
                            {"launch": launch.index, "kernel": f"{kernel.name}(int*)", "block": block, "warp": warp,
                             "k": k, **fields}
                        )  # fmt: skip
    return found


def as_csv(record: dict[str, Any]) -> dict[str, str]:
    places = {0: "a.cu:5", 1: "a.cu:5", 2: "PTX line 9", 0xFFFF: "instruction 65535"}
    site = record["site"]
    return {
        **{name: str(value) for name, value in record.items()}, "addr": hex(record["addr"]), "place": places[site],
        "instruction": SITES[site]["instruction"].replace("\x1b", "\\x1b") if site < 3 else "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "where", "order", "most"),
    [
        (("--records",), None, None, None),
        (("--records", "5"), None, None, 5),
        (("--where", "elapsed > 10000"), "elapsed > 10000", None, None),
        (("--where", "site < 2 and 4 < bytes <= 16 or k"), "site < 2 and 4 < bytes <= 16 or k", None, None),
        (("--sort", "elapsed"), None, "elapsed", None),
        (("--sort", "-addr", "--records", "7"), None, "-addr", 7),
        (("--sort=-addr", "--where", "warp == 1"), "warp == 1", "-addr", None),
        (("--where", "-elapsed < -100", "--sort", "bytes"), "-elapsed < -100", "bytes", None),
        (("--where", "launch == 3"), "launch == 3", None, None),
    ],
)
def test_records(
    report: Report, options: tuple[str, ...], where: str | None, order: str | None, most: int | None
) -> None:
    wanted = [record for record in records(report.trace) if where is None or eval(where, {}, record)]
    if order:
        wanted.sort(key=lambda record: eval(order, {}, record))
    total = len(wanted)
    wanted = wanted[:most]
    assert report.rows(*options) == list(map(as_csv, wanted))
    document = report.document(*options)
    names = ("launch", "kernel", "block", "warp", "k", "addr", "elapsed", "site", "bytes")
    assert [{name: row[name] for name in names} for row in document["rows"]] == wanted
    assert (document["records"], document["recorded"]) == (total, len(records(report.trace)))
    assert document["traces"] == [{"path": str(report.trace)}]
    assert (document["where"], document["sort"], document["map"]) == (where, order, "Accesses")
    assert document["columns"] == [*names, "place", "instruction"]
    # As text, 20 without a number.
    text = report(*options).splitlines()
    shown = wanted[: 20 if most is None else most]
    assert text[0] == str(report.trace)
    assert text[1].split() == ["launch", "kernel", "block", "warp", "k", "addr", "elapsed", "site", "bytes"]
    for line, record in zip(text[2:], shown, strict=False):
        words = line.split()
        first = [str(record[name]) for name in ("block", "warp", "k")]
        assert words[0] == str(record["launch"])
        assert words[2:7] == [*first, hex(record["addr"]), str(record["elapsed"])]
        assert words[-1] == str(record["bytes"])
    assert len([line for line in text[2:] if re.match(r" +\d+  ", line) and "0x" in line]) == len(shown)
    counts = f"{len(shown):,} of {total:,} records" if len(shown) < total else f"{total} record"
    assert any(line.startswith(f"  {counts}") for line in text)
    assert "\x1b" not in "".join(text)


@pytest.mark.parametrize("key", ["bytes", "block", "addr // 256", "elapsed > 9000", "launch", "kernel", "line", "site"])
@pytest.mark.parametrize("where", [None, "elapsed % 3 != 0"])
def test_groups(report: Report, key: str, where: str | None) -> None:
    lines = {0: "a.cu:5", 1: "a.cu:5", 2: 'PTX line 9: st.global, "\\x1b[31m"', 0xFFFF: "instruction 65535"}
    groups: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for record in records(report.trace):
        if where is None or eval(where, {}, record):
            whose: Any = eval(key, {}, record) if key != "line" else lines[record["site"]]
            groups[(record["kernel"], whose) if key in ("line", "site") else whose].append(record)
    options = ["--group-by", key, *(["--where", where] if where else [])]
    document = report.document(*options)
    rows = report.rows(*options)
    text = report(*options)
    fields = [name for name in ("addr", "elapsed", "bytes") if name != key]
    assert document["groups"] == len(groups) == len(rows) == len(document["rows"])
    assert [row["records"] for row in document["rows"]] == sorted(map(len, groups.values()), reverse=True)
    for row, shown in zip(document["rows"], rows, strict=True):
        assert list(row) == list(shown) == document["columns"]
        whose = row[key].replace("\x1b", "\\x1b") if key == "line" else row[key]
        found = groups[(row["kernel"], whose) if key in ("line", "site") else whose]
        assert (row["records"], shown["records"]) == (len(found), str(len(found)))
        for name in fields:
            values = [record[name] for record in found]
            assert (row[f"{name}_min"], row[f"{name}_max"]) == (min(values), max(values))
            if name == "addr":
                assert (shown["addr_min"], "addr_sum" in row) == (hex(min(values)), False)
                continue
            assert (row[f"{name}_sum"], row[f"{name}_mean"]) == (sum(values), sum(values) / len(values))
            assert (shown[f"{name}_sum"], float(shown[f"{name}_mean"])) == (str(sum(values)), row[f"{name}_mean"])
        if key == "addr // 256":
            assert shown[key] == hex(row[key])
        if key == "site":
            expected = as_csv({"site": row["site"], "addr": 0})
            assert (shown["place"], shown["instruction"]) == (expected["place"], expected["instruction"])
    assert f"group{'s' * (len(groups) != 1)} of Accesses by {key}" in text
    assert len(text.splitlines()) == 3 + len(rows) + text.count("note: ")


@pytest.mark.parametrize("order", ["elapsed_sum", "-elapsed_mean", "-records", "bytes", "bytes_max - elapsed_min"])
def test_groups_are_sorted_by_their_columns(report: Report, order: str) -> None:
    key = "bytes" if order == "bytes" else "block * 2 + warp"
    whole = report.document("--group-by", key)["rows"]
    found = report.document("--group-by", key, "--sort", order, "--records", "2")
    assert found["rows"] == sorted(whole, key=lambda row: eval(order, {}, row))[:2]
    assert found["groups"] == len(whole)
    assert "2 of " in report("--group-by", key, "--sort", order, "--records", "2")


def test_launches_are_chosen(report: Report) -> None:
    wanted = records(report.trace)
    for option, chosen in (("2", {2}), ("1:4", {1, 2, 3}), ("4:", {4, 5}), (":2", {0, 1})):
        rows = report.rows("--launch", option)
        assert rows == [as_csv(record) for record in wanted if record["launch"] in chosen]
        # Of the report itself, too.
        (document,) = report.document("--launch", option)["traces"]
        counted = [entry["records"] for kernel in document["kernels"] for entry in kernel["maps"]]
        assert sum(counted) == len(rows)
        assert document["kernels"][0]["launches"]["probed"] == 3
        assert any("alone" in note for note in document["notes"])
        text = report("--launch", option, "--rows", "99")
        assert len(re.findall(r"^ +\d+ .* 0x", text, re.MULTILINE)) == len(rows)
    for wrong in ("", ":", "x", "1:2:3", "-1", "1" * 30):
        with pytest.raises(SystemExit):
            main([str(report.trace), f"--launch={wrong}"])


def test_ranks_are_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "trace"
    for rank in range(3):
        write(folder / f"Nov20_131500_{rank}", rank=rank, seed=rank, launches=2 + rank)
    plain = write(folder / "Nov20_131500_9")
    assert main([str(folder), "--rank", "1", "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)["traces"]
    assert document["path"].endswith("_1")
    assert main([str(folder), "--rank", "0", "--rank", "2", "--map", "Accesses", "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    both = {name: records(folder / name) for name in ("Nov20_131500_0", "Nov20_131500_2")}
    assert rows == [{"trace": name, **as_csv(record)} for name, found in both.items() for record in found]
    # Without a path the newest that has it.
    monkeypatch.chdir(tmp_path)
    assert main(["--rank", "1", "--map", "Accesses"]) == 0
    assert capsys.readouterr().out.startswith("trace/Nov20_131500_1\n")
    assert main(["--rank", "7"]) == 2
    assert capsys.readouterr().err == "neutrino-report: --rank 7: no trace of it; there are 0, 1, 2\n"
    assert main([str(plain), "--rank", "7"]) == 2
    assert capsys.readouterr().err == "neutrino-report: --rank 7: no trace of it; no process was given a rank\n"


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        (
            ("--where", "elapsd > 1"),
            ["--where:1:1: error: no field 'elapsd'; there are launch, block, warp, k, addr, elapsed, site, bytes",
             "    1 | elapsd > 1", "      | ^~~~~~", "  hint: did you mean elapsed?"],
        ),
        (
            ("--where", "elapsed > 1 and bytes / 2"),
            ["--where:1:25: error: / is not allowed; // divides and rounds down",
             "    1 | elapsed > 1 and bytes / 2", "      |                         ^"],
        ),
        (("--where", "bytes // (k - k)"), ["--where:1:11: error: //: a division by zero"]),
        (("--sort", "elapsed."), ["--sort:1:"]),
        (("--sort", "-bytes << elapsed * 99"), ["--sort:1:1: error: a result that may need more than 128 bits"]),
        (("--group-by", "lines"), ["--group-by:1:1: error: no field 'lines'"]),
        (("--group-by", "bytes", "--sort", "elapsed"), ["--sort:1:1: error: no field 'elapsed'; there are records, "]),
        (("--group-by", "elapsed.real"), ["--group-by:1:1: error: attributes are not allowed"]),
        (("--where", "\x1b[2Jx > 1"), ["--where:1:"]),
        (("--where", "__import__('os').system('id')"), ["--where:1:1: error: calls are not allowed"]),
        (("--where", "10**10**10"), ["--where:1:5: error: ** is not allowed"]),
        (("--where", "(" * 5000), ["--where:1:1: error: longer than 2,000 characters"]),
        (("--where", ""), ["--where:1:1: error: an empty expression"]),
    ],
)  # fmt: skip
def test_wrong_expressions_are_shown(report: Report, options: tuple[str, ...], lines: list[str]) -> None:
    for form in ((), ("--csv",), ("--json",)):
        said = report(*options, *form, status=2)
        assert said.startswith(f"neutrino-report: {lines[0]}")
        assert [line for line in lines[1:] if line not in said.splitlines()] == []
        assert "\x1b" not in said
        assert len(said) < 2000


def test_other_wrong_options(report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(report.trace)
    assert main([path, "--records"]) == 2
    assert capsys.readouterr().err == (
        "neutrino-report: there are several maps: choose one with --map: Accesses, BlockSched, GmemBytes\n"
    )
    assert report("--records", map_name="Nothing", status=2) == (
        "neutrino-report: --map Nothing: no such map; there are Accesses, BlockSched, GmemBytes\n"
    )
    assert "one map" in report("--map", "BlockSched", "--records", status=2)
    assert main([path, "-k", "idle", "--records"]) == 3
    for wrong in (("--csv", "--json"), ("--where", "1", "--rows", "2"), ("--csv", "--why"), ("--records", "-3")):
        with pytest.raises(SystemExit) as caught:
            main([path, "--map", "Accesses", *wrong])
        assert caught.value.code == 2


def test_only_some_kernels(report: Report) -> None:
    rows = report.rows("-k", "vecadd")
    assert {row["kernel"] for row in rows} == {"vecadd(int*)"}
    assert len(rows) == sum(record["kernel"] == "vecadd(int*)" for record in records(report.trace))
    # A single kernel has no column as text.
    assert report("-k", "vecadd", "--records", "1").splitlines()[1].split()[:3] == ["launch", "block", "warp"]
    assert f"{LONG}(int*)" not in report("--records", "99")
    assert "…" in report("--records", "99")
    assert f"{LONG}(int*)" in report("--records", "99", "--wide")
    # A map that only one of them has; a launch's sum is a record.
    rows = report.rows(map_name="GmemBytes")
    assert [(row["launch"], row["load"], row["async"]) for row in rows] == [(n, n, str(2**63)) for n in "024"]
    assert report.rows("--where", "async > load > 1", map_name="GmemBytes") == rows[1:]


def test_fields_may_have_the_names_of_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("launch", "kernel", "block", "place", "instruction", "trace", "records", "site")
    odd = make_map("Odd", "array", "block", dict.fromkeys(names, "u32"))
    writer = TraceWriter(tmp_path / "t")
    writer.kernel(1, "k", maps=[odd], sites=SITES)
    values = [tuple(range(10 * block, 10 * block + 8)) for block in range(3)]
    writer.launch(1, (3, 1, 1), (32, 1, 1), fill_regions([odd], 1, {"Odd": values}, blocks=3))
    path = str(writer.write())
    assert main([path, path, "--json", "--where", "launch > 0 and block != 2"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [[row[name] for name in names] for row in document["rows"]] == [list(row) for row in values[1:]] * 2
    assert [(row["[launch]"], row["[block]"], row["[kernel]"]) for row in document["rows"]] == [
        (0, 1, "k(int*)"), (0, 2, "k(int*)"),
    ] * 2  # fmt: skip
    assert len(document["columns"]) == len(set(document["columns"])) == 15
    assert main([path, "--json", "--group-by", "records"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(row["[records]"], row["records"]) for row in document["rows"]] == [(6, 1), (16, 1), (26, 1)]
    assert main([path, "--group-by", "kernel", "--csv"]) == 0
    assert [row["records"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))] == ["1"] * 3


def test_an_option_without_a_number_takes_no_path(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--map", "Accesses", "--records", str(trace)]) == 0
    assert "of Accesses; --records N prints more" in capsys.readouterr().out


def test_csv_is_of_rfc_4180(report: Report) -> None:
    text = report("--records", "3", "--csv")
    assert text.count("\r\n") == text.count("\n") == 4
    quoted = report("--group-by", "site", "--csv")
    assert '"st.global, ""\\x1b[31m"""' in quoted


def test_the_examples_of_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    section = (ROOT / "docs/trace.md").read_text().split("## Tables of records\n")[1].split("\n## ")[0]
    writer = TraceWriter(tmp_path / "trace" / "Nov23_131746_13647")
    accesses = make_map("GlobalAccesses", "array", "warp", {"address": "u64", "site": "u32"}, cap=2)
    writer.kernel(1, "softmax", maps=[BLOCK_SCHED, accesses], sites=SITES)
    values = {
        "BlockSched": [(9, 20000, 1), (9, 5, 2), (8, 30000, 3)], "GlobalAccesses": [(256 * n, n % 3) for n in range(6)],
        "GlobalAccesses.counts": [1, 2, 2],
    }  # fmt: skip
    writer.launch(1, (3, 1, 1), (32, 1, 1), fill_regions([BLOCK_SCHED, accesses], 1, values, blocks=3))
    writer.write()
    monkeypatch.chdir(tmp_path)
    printed = []
    for line in re.findall(r"^    neutrino-report (.*)$", section, re.MULTILINE):
        assert main(shlex.split(line)) == 0
        printed.append(capsys.readouterr().out)
    slowest, lines, rows = printed
    assert [line.split()[-2] for line in slowest.splitlines()[2:4]] == ["30000", "20000"]
    assert sorted(row["records"] for row in csv.DictReader(io.StringIO(lines))) == ["2", "3"]
    assert "5 groups of GlobalAccesses by address >> 7, of 5 records" in rows
    (code,) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    exec(compile(code, "trace.md", "exec"), {})
    assert capsys.readouterr().out == "softmax(int*) [0 2] [20000 30000]\n"


def test_too_much_is_refused(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_query, "_MOST_SORTED", 4)
    said = report("--sort", "addr", "--csv", status=2)
    count = len(records(report.trace))
    assert said == (
        f"neutrino-report: {count} records, of which --sort keeps at most 4: give --records N, or a narrower --where\n"
    )
    assert len(report.rows("--sort", "addr", "--csv", "--records", "6")) == 6
    monkeypatch.setattr(queries, "MOST_GROUPS", 4)
    assert "error: more than 4 groups" in report("--group-by", "addr", status=2)


def test_what_is_missing_is_said(report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    from neutrino.tracing import Trace

    path = report.trace / "launches.bin"
    content = bytearray(path.read_bytes())
    state = LAUNCHES_HEADER_SIZE + 2 * LAUNCH.size
    content[state : state + 4] = int(LaunchState.LOST).to_bytes(4, "little")
    # As of a process that was killed.
    fields = LAUNCHES_HEADER.dtype.fields
    assert fields is not None
    ended = fields["ended"][1]
    content[ended : ended + 4] = bytes(4)
    path.write_bytes(content)
    (report.trace / "events.jsonl").write_text(
        "".join(line for line in (report.trace / "events.jsonl").open() if '"end"' not in line)
    )
    views = [launch.maps["Accesses"] for kernel in Trace(report.trace).kernels for launch in kernel.launches()]
    wanted = [
        "the trace is not complete: the process was killed or is still running",
        "vecadd(int*): the data of 1 launch were lost on their way back",
        f"{sum(view.dropped for view in views)} saves of map Accesses had no room and left no record",
    ]
    assert report("--records").splitlines()[-3:] == [f"note: {note}" for note in wanted]
    assert report("--group-by", "block").splitlines()[-3:] == [f"note: {note}" for note in wanted]
    assert report.document("--records")["notes"] == wanted
    assert main([str(report.trace), "--map", "Accesses", "--csv"]) == 0
    assert capsys.readouterr().err.splitlines() == [f"neutrino-report: note: {note}" for note in wanted]


def test_no_record_matches(report: Report) -> None:
    assert "0 records of Accesses where bytes > 99" in report("--where", "bytes > 99")
    assert report.rows("--where", "bytes > 99") == []
    assert report.document("--where", "bytes > 99")["rows"] == []
    assert "0 groups of Accesses" in report("--where", "bytes > 99", "--group-by", "line")
    assert report.document("--where", "bytes > 99", "--group-by", "bytes", "--sort", "records")["rows"] == []


@pytest.mark.parametrize("form", ["", "--csv", "--json", "--group-by addr", "--sort addr"])
def test_closed_and_full_outputs(trace: Path, form: str) -> None:
    command = f"'{sys.executable}' -m neutrino.cli.report '{trace}' --map Accesses --records {form}"
    endings = [(">/dev/full", 2, "No space left on device\n")]
    # Forms that are written record by record, and as a whole.
    endings += [("| head -c 1", 0, "")] if form in ("", "--csv", "--json") else []
    endings += [(">&-", 0, "")] if form in ("", "--json") else []
    for closing, status, said in endings:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", f"{command} {closing}"], capture_output=True, text=True, check=False
        )
        assert done.returncode == status
        assert done.stderr.endswith(said)
        assert "Traceback" not in done.stderr
