"""neutrino-report: tables that fit, JSON that holds, exit codes that tell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from trace_writer import BLOCK_SCHED, GMEM_BYTES, TraceWriter, fill_regions, make_map

from neutrino.abi.reasons import Reason
from neutrino.cli.kernel_names import shorten
from neutrino.cli.report import main
from neutrino.maps.regions import copies_in
from neutrino.resources import tool_path

LONG = (
    "_ZN2at6native27unrolled_elementwise_kernelINS0_11FillFunctorIfEESt5arrayIPcLm1EELi4E"
    "23TrivialOffsetCalculatorILi0EjES7_NS0_6memory15LoadWithoutCastENS8_16StoreWithoutCastEEEviT_T0_T2_T3_T4_T5_"
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    writer = TraceWriter(tmp_path / "Nov20_131500_4242")
    writer.kernel(1, "vecadd", maps=[BLOCK_SCHED, GMEM_BYTES])
    writer.kernel(2, LONG, Reason.VENDOR, "libtorch_cuda.so")
    writer.kernel(3, "idle", Reason.NO_PTX)
    values = {
        "BlockSched": [(10**18 + 1, 900, 0), (10**18 + 4, 800, 1), (10**18 + 9, 700, 131)],
        "GmemBytes": [(4096, 2048, 0, 0, 0)] * copies_in(3),
    }
    for _ in range(2):
        regions = fill_regions([BLOCK_SCHED, GMEM_BYTES], 3, values)
        writer.launch(1, (3, 1, 1), (32, 1, 1), regions)
    writer.count(1, Reason.GRAPH, 5)
    writer.count(2, Reason.VENDOR, 1234)
    return writer.write()


def test_tables(trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main([str(trace)]) == 0
    text = capsys.readouterr().out
    assert "vecadd(int*)" in text
    assert "2 launches probed, 5 not; registers 18 → 20; spills 0 → 8/16 B" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["start", *(f"{10**18 + more:,}" for more in (1, 4, 9))] in rows
    assert ["elapsed", "700", "800", "900"] in rows
    assert ["load", "32,768", "32,768", "32,768", "65,536", "66.7", "%"] in rows
    assert "    0 in atomic, async, uncounted\n" in text
    assert "1,234" in text
    assert "a vendor-licensed library, never rewritten" in text
    assert "unrolled_elementwise_kernel" in text
    assert "1 kernel that was never launched" in text
    assert "idle" not in text
    assert "\x1b[" not in text


@pytest.mark.parametrize(
    ("same", "own", "says"),
    [
        (True, False, "it assembles to the code that runs"),
        (False, True, "the code that runs was compiled from it, but assembling it gives different code"),
        (False, False, "it is not proven to be the program that runs, so results may have differed"),
    ],
)
def test_retargeted_kernels_are_marked(
    same: bool,
    own: bool,
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    writer = TraceWriter(tmp_path / "Nov20_131500_4242")
    retargeted = {"target": "sm_120 → sm_90", "same_code": same, "own_text": own}
    writer.kernel(1, "vecadd", maps=[BLOCK_SCHED], retargeted=retargeted)
    writer.launch(1, (1, 1, 1), (32, 1, 1), fill_regions([BLOCK_SCHED], 1, {"BlockSched": [(5, 6, 0)]}))
    trace = writer.write()
    assert main([str(trace)]) == 0
    text = capsys.readouterr().out
    assert f"retargeted: the PTX is for another architecture (sm_120 → sm_90); {says}" in text
    assert main([str(trace), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["traces"][0]["kernels"][0]["retargeted"] == retargeted


def test_twins_of_machine_code_are_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Others have no such line and no such member."""
    writer = TraceWriter(tmp_path / "Nov20_131500_4242")
    for number, made in enumerate(({"made_of": "machine code"}, {}), 1):
        writer.kernel(number, f"kernel{number}", maps=[BLOCK_SCHED], **made)
        writer.launch(number, (1, 1, 1), (32, 1, 1), fill_regions([BLOCK_SCHED], 1, {"BlockSched": [(5, 6, 0)]}))
    trace = writer.write()
    assert main([str(trace)]) == 0
    assert capsys.readouterr().out.count("its twin was made of machine code, not of PTX") == 1
    assert main([str(trace), "--json"]) == 0
    kernels = json.loads(capsys.readouterr().out)["traces"][0]["kernels"]
    assert {row["name"]: row.get("made_of") for row in kernels} == {"kernel1": "machine code", "kernel2": None}
    assert sum("made_of" in row for row in kernels) == 1


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(
    trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main([str(trace), "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].strip()
    # The path stands on a line of its own, unbroken, so that it can be copied.
    assert max(len(line) for line in lines[1:]) <= width
    assert any("idle" in line for line in lines)


@pytest.fixture
def large_trace(tmp_path: Path) -> Path:
    """Kernels 1 to 30 have as many launches as their number, but none without a rest by 3; 31 to 50 are not probed."""
    writer = TraceWriter(tmp_path / "trace" / "Nov20_131500_4242")
    for number in range(1, 31):
        writer.kernel(number, f"kernel{number}", maps=[BLOCK_SCHED, GMEM_BYTES])
    for number in range(31, 51):
        writer.kernel(number, f"kernel{number}", Reason.NO_PTX if number % 2 else Reason.VENDOR)
        writer.count(number, Reason.NO_PTX if number % 2 else Reason.VENDOR, number)
    for number in range(1, 31):
        for _ in range(number if number % 3 else 0):
            values = {"BlockSched": [(5, number, 0)], "GmemBytes": [(number, 0, 0, 0, 0)] * copies_in(1)}
            writer.launch(number, (1, 1, 1), (32, 1, 1), fill_regions([BLOCK_SCHED, GMEM_BYTES], 1, values))
    return writer.write()


def test_many_kernels_have_an_overview(
    large_trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main([str(large_trace)]) == 0
    lines = capsys.readouterr().out.splitlines()
    sched, gmem = lines.index("BlockSched: records per warp"), lines.index("GmemBytes: a sum over all threads")
    # 20 kernels were launched, those with most first.
    numbers = [number for number in range(30, 0, -1) if number % 3]
    assert lines[sched + 1].split() == ["kernel", "launches", "records", "elapsed:", "median", "max", "sum"]
    assert [line.split() for line in lines[sched + 2 : sched + 22]] == [
        [f"kernel{number}(int*)", *[str(number)] * 4, str(number * number)] for number in numbers
    ]
    # Fields that are 0 everywhere have no column.
    assert lines[gmem + 1].split() == ["kernel", "launches", "load"]
    totals = [f"{number * number * copies_in(1):,}" for number in numbers]
    assert [line.split()[-1] for line in lines[gmem + 2 : gmem + 22]] == totals
    assert "10 kernels have no probed launch" in lines
    # The reasons, with what helps, instead of twenty kernels.
    reasons = lines[lines.index("Not probed") + 2 :]
    assert reasons[0].split()[:3] == [str(sum(range(32, 51, 2))), "10", "vendor:"]
    assert reasons[1].split()[:3] == [str(sum(range(31, 50, 2))), "10", "no-ptx:"]
    assert "else keep PTX with nvcc" in reasons[1]
    assert not any(line.endswith(" ") for line in lines)
    # Two screens at most.
    assert len(lines) < 100


@pytest.mark.parametrize("options", [["-k", "kernel"], ["--all"], ["--rows", "1"]])
def test_chosen_kernels_are_shown_one_by_one(
    large_trace: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    assert main([str(large_trace), *options]) == 0
    assert capsys.readouterr().out.count("launches probed") >= 19


def test_without_a_path_the_newest_trace_is_shown(
    large_trace: Path, trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = large_trace.parent / "Nov20_131600_4243"
    trace.rename(newer)
    os.utime(newer / "launches.bin", ns=(2**60 * 2, 2**60 * 2))
    monkeypatch.chdir(large_trace.parent.parent)
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("trace/Nov20_131600_4243\n")
    # With a pattern of kernels, too.
    assert main(["--why", "vecadd"]) == 0
    assert capsys.readouterr().out.startswith("trace/Nov20_131600_4243\n")
    monkeypatch.chdir(newer)
    assert main([]) == 2
    assert capsys.readouterr().err == (
        "neutrino-report: trace: cannot be read: No such file or directory; a program that loads no GPU code leaves no "
        "trace; give the path of one\n"
    )


def test_nothing_is_wrapped_in_a_pipe(
    trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main([str(trace), "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) > 80
    assert all(len(line.split()[1]) <= 100 for line in lines if "unrolled_elementwise" in line)


def test_wide_keeps_whole_names(
    trace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main([str(trace), "--wide"]) == 0
    text = "".join(line.strip() for line in capsys.readouterr().out.splitlines())
    assert "TrivialOffsetCalculator" in text


def test_json(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(trace), "--json"]) == 0
    captured = capsys.readouterr()
    (document,) = json.loads(captured.out)["traces"]
    assert captured.err == ""
    (kernel,) = document["kernels"]
    assert kernel["launches"] == {
        "probed": 2, "written": 2, "lost": 0, "pending": 0, "capped": 0, "fewer_blocks": 0, "not_probed": 5,
    }  # fmt: skip
    assert kernel["registers"] == {"original": 18, "twin": 20, "capped": None}
    sched, gmem = kernel["maps"]
    assert sched["records"] == 6
    assert sched["fields"][0] == {
        "name": "start", "type": "u64", "min": 10**18 + 1, "median": 10**18 + 4, "max": 10**18 + 9, "total": None,
    }  # fmt: skip
    assert gmem["fields"][1]["total"] == 2 * copies_in(3) * 2048
    assert [(row["reason"], row["launches"]) for row in document["not_probed"]] == [
        ("vendor", 1234),
        ("graph", 5),
        ("no-ptx", 0),
    ]
    assert document["not_probed"][0]["demangled"].startswith("void at::native::unrolled_elementwise_kernel<")


def write_sites(path: Path, number: int = 12) -> Path:
    """Two launches of a map with a field site, which drop what is beyond its cap; another by block."""
    loads = make_map("Loads", "array", "warp", {"value": "u32", "site": "u32"}, cap=7)
    ends = make_map("Ends", "array", "block", {"clock": "u64"})
    sites = [
        {"probe": probe, "site": number, "line": line, "source": source, "instruction": f"ld.f32 %f{number}, [%a]"}
        for probe, number, line, source in (("p", 0, 7, "a.cu:42"), ("q", 0, 7, "a.cu:42"), ("p", 1, 9, None))
    ]
    writer = TraceWriter(path)
    writer.kernel(1, "k", maps=[loads, ends], sites=sites)
    for _ in range(2):
        kept = min(7, number)
        # The last one as the shipped probes save it at a kernel's entry.
        rows = [(5, min(k, 2) if k < 6 else 0xFFFFFFFF) for k in range(kept)] + [(0, 0)] * (7 - kept)
        values = {"Loads": rows, "Loads.counts": [number], "Ends": [(9,)]}
        regions = fill_regions([loads, ends], 1, values, blocks=1)
        writer.launch(1, (1, 1, 1), (32, 1, 1), regions)
    return writer.write()


def test_caps_levels_and_sites(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    trace = write_sites(tmp_path / "Nov20_131500_4242")
    assert main([str(trace)]) == 0
    text = capsys.readouterr().out
    assert "Loads: 14 records, up to 7 per warp, 10 dropped" in text
    assert "Ends: 2 records, one per block" in text
    assert "10 records of map Loads were dropped: a slot keeps 7; raise cap" in text
    rows = [line.split() for line in text.splitlines()]
    at = rows.index(["site", "records", "share", "place", "instruction"])
    assert rows[at + 1] == ["2", "8", "57.1", "%", "not", "in", "the", "manifest"]
    assert rows[at + 2] == ["0", "2", "14.3", "%", "a.cu:42", "ld.f32", "%f0,", "[%a]"]
    assert rows[at + 3] == ["1", "2", "14.3", "%", "PTX", "line", "9", "ld.f32", "%f1,", "[%a]"]
    assert rows[at + 4] == ["4294967295", "2", "14.3", "%", "the", "kernel's", "entry"]
    assert main([str(trace), "--json"]) == 0
    loads, ends = json.loads(capsys.readouterr().out)["traces"][0]["kernels"][0]["maps"]
    assert (loads["cap"], loads["wanted"], loads["dropped"]) == (7, 12, 10)
    assert (ends["cap"], ends["wanted"], ends["level"]) == (1, 0, "block")
    assert [field["name"] for field in loads["fields"]] == ["value"]
    assert [(site["number"], site["records"], site["place"]) for site in loads["sites"]] == [
        (2, 8, ""), (0, 2, "a.cu:42"), (1, 2, "PTX line 9"), (0xFFFFFFFF, 2, ""),
    ]  # fmt: skip


def test_rows_of_chosen_maps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(write_sites(tmp_path / "Nov20_131500_4242"))
    assert main([trace, "--rows", "3", "--map", "Loads"]) == 0
    text = capsys.readouterr().out
    assert "Ends" not in text
    lines = text.splitlines()
    at = lines.index("    launch  block  warp  k  value  site")
    assert [line.split(maxsplit=5) for line in lines[at + 1 : at + 5]] == [
        ["0", "0", "0", "0", "5", "a.cu:42: ld.f32 %f0, [%a]"],
        ["0", "0", "0", "1", "5", "PTX line 9: ld.f32 %f1, [%a]"],
        ["0", "0", "0", "2", "5", "instruction 2"],
        ["3", "of", "14", "records"],
    ]
    assert main([trace, "--json", "--map", "Ends"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["traces"][0]["kernels"][0]["maps"]
    assert entry["name"] == "Ends"
    assert main([trace, "--map", "Lods"]) == 2
    assert "--map Lods: no such map; there are Ends, Loads" in capsys.readouterr().err
    for options in (["--rows", "-1"], ["--rows", "1", "--json"]):
        with pytest.raises(SystemExit):
            main([trace, *options])


def test_selection(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(trace), "--json", "-k", "at::native"]) == 3
    (document,) = json.loads(capsys.readouterr().out)["traces"]
    assert document["kernels"] == []
    assert [row["reason"] for row in document["not_probed"]] == ["vendor"]
    assert main([str(trace), "--json", "-k", "nothing_like_it"]) == 3
    said = capsys.readouterr().err
    assert "-k and --filter leave no kernel; there are at::native::" in said
    assert said.endswith(", idle, vecadd\n")
    assert main([str(trace), "--json", "-k", "/(/"]) == 2
    assert "not a regular expression" in capsys.readouterr().err


def test_bad_paths_are_one_line_and_status_2(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "absent")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    (trace / "launches.bin").write_bytes(b"")
    assert main([str(trace)]) == 2
    captured = capsys.readouterr()
    assert "launches.bin" in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("encoding", ["ascii", "utf-8:strict"])
def test_names_and_streams_of_odd_encodings(trace: Path, tmp_path: Path, encoding: str) -> None:
    odd = tmp_path / os.fsdecode(b"odd\xff")
    trace.rename(odd)
    done = subprocess.run(
        [sys.executable, "-m", "neutrino.cli.report", str(odd)],
        env={**os.environ, "PYTHONIOENCODING": encoding}, capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"odd\\udcff" in done.stdout


def test_arguments_of_the_program_do_not_steer_the_terminal(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = trace / "events.jsonl"
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    lines[0]["argv"] = ["sh", "-c", "a\n\x1b[31mb ü"]
    events.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main([str(trace)]) == 0
    assert "sh -c a\\n\\x1b[31mb ü: pid" in capsys.readouterr().out


def test_no_name_in_a_trace_steers_the_terminal(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x1b[2J\u202e\x9b31m"
    events = trace / "events.jsonl"
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    for line in lines:
        if line["event"] == "device":
            line["name"] += hostile
        if line["event"] == "kernel":
            line["name"] += hostile
            line["detail"] += hostile
    lines.append({"event": "note", "time_ns": 1, "text": f"note {hostile}"})
    events.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for path in trace.glob("kernel/*/manifest.json"):
        manifest = json.loads(path.read_text())
        manifest["demangled"] += hostile
        for entry in manifest["maps"]:
            for field in entry["fields"]:
                field["name"] += hostile
        path.write_text(json.dumps(manifest))
    for form in ((), ("--wide", "--all")):
        assert main([str(trace), *form]) == 0
        shown = capsys.readouterr()
        assert not {"\x1b", "\u202e", "\x9b"} & set(shown.out + shown.err)
        assert shown.out.count("\\x1b[2J\\u202e") >= 4
    script = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tool_path('read.py').parent)!r}); "
         f"import read; sys.exit(read.main([{str(trace / 'result/1.bin')!r}]))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert not {"\x1b", "\u202e", "\x9b"} & set(script.stdout)


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_closed_full_and_broken_outputs(trace: Path, form: tuple[str, ...]) -> None:
    command = f"'{sys.executable}' -m neutrino.cli.report '{trace}' {' '.join(form)}"
    for closing, status, said in ((">&-", 0, ""), (">/dev/full", 2, "neutrino-report: No space left on device\n")):
        done = subprocess.run(f"{command} {closing}", shell=True, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (status, "", said)
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            command, shell=True, stdout=write_end, stderr=subprocess.PIPE, text=True, check=False
        )
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "")


def test_one_damaged_trace_does_not_hide_the_others(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = trace.parent / "Nov20_131501_7"
    TraceWriter(broken).write()
    (broken / "launches.bin").write_bytes(b"NT")
    assert main([str(trace.parent), "--all-traces"]) == 2
    captured = capsys.readouterr()
    assert "vecadd(int*)" in captured.out
    assert "Nov20_131501_7" in captured.err


def test_one_absent_trace_does_not_hide_the_others(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(trace.parent / "absent"), str(trace)]) == 2
    captured = capsys.readouterr()
    assert "vecadd(int*)" in captured.out
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "width", "short"),
    [
        ("vecadd(int*)", 20, "vecadd(int*)"),
        ("void foo<int, 4>(int*, std::vector<int>)", 20, "foo<int, 4>"),
        ("void a::b::foo<std::array<char*, 2>, 4>(int*)", 24, "a::b::foo<…>"),
        ("void a::b::foo<std::array<char*, 2>, 4>(int*)", 30, "a::b::foo<std::array<…>, 4>"),
        (
            "void (anonymous namespace)::vecadd<float>(float*, int)",
            40,
            "(anonymous namespace)::vecadd<float>",
        ),
        ("ns::Functor::operator()(int, int) const", 25, "ns::Functor::operator()"),
        ("foo<decltype (a->b), int>::bar<float>(int)", 15, "foo<…>::bar<…>"),
        ("a_name_without_any_structure_at_all", 11, "a_nam…t_all"),
    ],
)
def test_short_names(name: str, width: int, short: str) -> None:
    assert shorten(name, width) == short
    assert len(shorten(name, width)) <= width


@pytest.mark.parametrize("assembled", [True, False])
def test_the_embedded_devices_time_is_no_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, assembled: bool
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    writer = TraceWriter(tmp_path / "t", "Neutrino embedded device (PTX interpreter, step clock)")
    writer.kernel(1, "vecadd", maps=[BLOCK_SCHED], assembled=assembled)
    writer.launch(1, (1, 1, 1), (32, 1, 1), fill_regions([BLOCK_SCHED], 1, {"BlockSched": [(1, 2, 0)]}))
    path = writer.write()
    (path / "read.py").write_bytes(Path(tool_path("read.py")).read_bytes())
    assert main([str(path)]) == 0
    text = capsys.readouterr().out
    assert "embedded device: times are steps of the interpreter, not cycles" in text
    assert ("not assembled: no ptxas" in text, "registers 18 → 20" in text) == (not assembled, assembled)
    assert main([str(path), "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)["traces"]
    assert document["clock"] == "steps"
    assert (document["kernels"][0]["assembler"] is None) == (not assembled)
    read = subprocess.run([sys.executable, str(path / "read.py")], capture_output=True, text=True, check=True)
    assert "steps of the interpreter" in read.stdout


def test_a_gpus_time_is_cycles(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(trace)]) == 0
    assert "steps" not in capsys.readouterr().out
    assert main([str(trace), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["traces"][0]["clock"] == "cycles"


def test_numpy_has_no_threads_and_scripts_the_environment_of_the_command(tmp_path: Path) -> None:
    code = """
import os, sys
from neutrino.cli import report_start
sys.argv = ["neutrino-report", "missing"]
status = report_start.main()
print(status, len(os.listdir("/proc/self/task")), os.environ.get("OPENBLAS_NUM_THREADS"))
"""
    plain = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    for given, said in ((plain, "2 1 None\n"), (plain | {"OPENBLAS_NUM_THREADS": "1"}, "2 1 1\n")):
        done = subprocess.run(
            [sys.executable, "-c", code], env=given, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert (done.stdout, done.returncode) == (said, 0), done.stderr


def with_launches(tmp_path: Path, shapes: list[tuple[int, int]], **manifest: object) -> Path:
    """A trace of launches of blocks of so many threads, each of a variant: 1 capped, 2 fewer blocks."""
    writer = TraceWriter(tmp_path / "Nov20_131500_4243")
    writer.kernel(1, "vecadd", **manifest)
    for threads, variant in shapes:
        number = writer.launch(1, (3, 1, 1), (threads // 2, 2, 1), None)
        writer.records[number]["variant"] = variant
    return writer.write()


REGISTERS = {"original": 40, "twin": 72, "capped": 40}
"""On sm_90 48 and 28 warps."""


@pytest.mark.parametrize(
    ("shapes", "said", "blocks"),
    [
        ([(256, 0), (256, 1)], "", []),
        (
            [(256, 2), (256, 0), (256, 2)],
            "2 launches: by registers alone 3 of 6 blocks of 256 threads fit on a multiprocessor",
            [{"threads": 256, "launches": 2, "original": 6, "twin": 3}],
        ),
        (
            [(100, 2)],
            "1 launch: by registers alone 7 of 12 blocks of 100 threads fit on a multiprocessor",
            [{"threads": 100, "launches": 1, "original": 12, "twin": 7}],
        ),
        (
            [(256, 2), (64, 2), (64, 2)],
            "3 launches: by registers alone 28 of 48 warps fit on a multiprocessor",
            [
                {"threads": 64, "launches": 2, "original": 24, "twin": 14},
                {"threads": 256, "launches": 1, "original": 6, "twin": 3},
            ],
        ),
    ],
)  # fmt: skip
def test_fewer_blocks_have_both_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shapes: list[tuple[int, int]], said: str, blocks: list[object]
) -> None:
    path = with_launches(tmp_path, shapes, registers=REGISTERS)
    assert main([str(path), "--wide"]) == 0
    text = capsys.readouterr().out
    assert said in text
    assert ("fewer blocks" in text) == bool(said)
    assert main([str(path), "--json"]) == 0
    (kernel,) = json.loads(capsys.readouterr().out)["traces"][0]["kernels"]
    assert kernel["by_registers"] == {"warps": {"original": 48, "twin": 28, "capped": 48}, "blocks": blocks}


def test_what_registers_do_not_explain_has_no_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The driver knows more than registers: of 18 and 20 all warps fit."""
    path = with_launches(tmp_path, [(256, 2)])
    assert main([str(path), "--wide"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "fewer blocks at a time in 1 launch" in lines


def test_a_cap_of_the_users_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = with_launches(tmp_path, [(256, 0)], max_registers=24)
    assert main([str(path)]) == 0
    assert "registers limited by --max-registers 24" in capsys.readouterr().out
    assert main([str(path), "--json"]) == 0
    (kernel,) = json.loads(capsys.readouterr().out)["traces"][0]["kernels"]
    assert kernel["max_registers"] == 24
    assert "by_registers" not in kernel
