"""What commands and readers say of a probe that one of a program's kernels cannot take; and of maps that are empty."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from neutrino.cli.patch import main as patch
from neutrino.cli.report import main as report
from neutrino.errors import TraceError
from neutrino.tracing import Trace
from tests.cli.test_one_liners import OUTPUT, folder, run  # noqa: F401  # the fixture

from .conftest import EXAMPLE, ROOT, Probe

PROBES = """from neutrino import probe, Map
import neutrino.language as nl
@Map(level="thread", type="sum")
class Passed:
    low: nl.u64
@probe(pos="ld.global", level="thread", before=True)
def passed():
    Passed.save(nl.u64(nl.param("y")) & 3)
@Map(level="thread", type="sum")
class Threads:
    count: nl.u64
@probe(pos="kernel", level="thread", before=True)
def threads():
    Threads.save(1)
@Map(level="thread", type="sum", per="run")
class Run:
    low: nl.u64
@probe(pos="kernel", level="thread", after=True)
def whole():
    Run.save(nl.u64(nl.param("y")) | 1)
"""
"""``sum`` has no parameter y, ``saxpy`` has."""
CAUSE = "PARAM.y: sum has 3 parameters, x, total, n"


@pytest.fixture(scope="module")
def traced(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:  # noqa: F811
    """The trace of the demo with these probes and two clauses, and what was printed."""
    home = tmp_path_factory.mktemp("left")
    (home / "probes.py").write_text(PROBES)
    clauses = "ld.global { @bytes = sum(BYTES) } ld.shared { @shared = count() } st.global /BYTES > 99/ { @ = count() }"
    result = run(folder, "--device", "embedded", "-p", str(home / "probes.py"), "-e", clauses, "./program", home=home)
    assert (result.stdout, result.returncode) == (OUTPUT, 0)
    (path,) = (home / "trace").iterdir()
    return path, result.stderr


def said(arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "400")
    capsys.readouterr()
    report(arguments)
    return capsys.readouterr().out


def test_the_run_says_that_probes_are_missing_somewhere(traced: tuple[Path, str]) -> None:
    line = traced[1].splitlines()[1]
    assert line == (
        "neutrino: 4 of 4 launches probed (100 %), 2 of 2 kernels; without some of the probes: 1 kernel, see "
        "neutrino-report TRACE --why"
    )


def test_results_say_why_a_map_is_empty(traced: tuple[Path, str]) -> None:
    lines = traced[1].splitlines()
    assert "@shared: nothing was saved: no instruction of 2 launched kernels matches ld.shared" in lines
    (filtered,) = (line for line in lines if line.startswith("@: nothing was saved: "))
    assert "1 instruction matches" in filtered
    assert "filter or condition was never true" in filtered


def test_the_report_names_probe_reason_and_remedy_and_no_figure(
    traced: tuple[Path, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = said([str(traced[0]), "-k", "sum"], capsys, monkeypatch)
    for name, pattern in (("passed", "ld.global"), ("whole", "kernel")):
        assert re.search(rf"probe '{name}' \({pattern}\) is left out: .*{re.escape(CAUSE)}", text), text
    assert text.count("what helps: ") == 2
    assert "  Passed: not probed in this kernel\n  Run: not probed in this kernel\n" in text
    assert "Passed: 1 launch" not in text
    assert "  Threads: 1 launch of a sum" in text
    other = said([str(traced[0]), "-k", "saxpy"], capsys, monkeypatch)
    assert "left out" not in other
    assert "Passed: 0 in all fields: 2 instructions match" in other
    (document,) = json.loads(said([str(traced[0]), "--json"], capsys, monkeypatch))["traces"]
    by_name = {kernel["name"]: kernel for kernel in document["kernels"]}
    assert [probe["probe"] for probe in by_name["sum"]["probes_left_out"]] == ["passed", "whole"]
    assert by_name["saxpy"]["probes_left_out"] == []
    assert {"Passed", "Run"}.isdisjoint(entry["name"] for entry in by_name["sum"]["maps"])
    why = said([str(traced[0]), "--why"], capsys, monkeypatch)
    assert why.count(CAUSE) == 2
    assert "not probed in this kernel: Passed" in why
    assert "saxpy" not in why


def test_readers_have_no_view_of_it_and_say_why(traced: tuple[Path, str]) -> None:
    trace = Trace(traced[0])
    kernel = trace.kernels["sum"]
    (launch,) = kernel.launches()
    assert set(launch.maps) == {"Threads", "bytes", "shared", "unnamed"}
    assert int(launch.maps["Threads"].valid()["count"].sum()) == 4096
    with pytest.raises(TraceError, match=r"was not probed in this kernel: probe 'passed' .*3 parameters"):
        launch.maps["Passed"]
    with pytest.raises(TraceError, match="no map 'Other'; there are "):
        launch.maps["Other"]
    assert "Run" not in kernel.whole_run.maps
    assert int(trace.kernels["saxpy"].whole_run.maps["Run"].valid()["low"].sum()) > 0
    # The script that lies in the trace, which needs nothing of Neutrino.
    reader = _module(traced[0] / "read.py")
    _, sections, records = reader.parse(traced[0] / "result" / f"{kernel.id}.bin")
    assert set(records) == {section["name"] for section in sections} == set(launch.maps)
    _, _, whole = reader.parse_run(traced[0] / "result" / f"{kernel.id}.run")
    assert not whole


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("reader", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["reader"] = module
    spec.loader.exec_module(module)
    return module


def test_manifests_of_earlier_versions_and_damaged_ones(traced: tuple[Path, str], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(traced[0], copy)
    path = copy / "kernel" / str(Trace(copy).kernels["sum"].id) / "manifest.json"
    document = json.loads(path.read_text())
    rows = document.pop("probes_left_out")
    path.write_text(json.dumps(document))
    (launch,) = Trace(copy).kernels["sum"].launches()
    assert int(launch.maps["Passed"].valid()["low"].sum()) == 0
    for damaged in (1, [1], [rows[0] | {"maps": [1]}], [rows[0] | {"detail": None}]):
        path.write_text(json.dumps(document | {"probes_left_out": damaged}))
        with pytest.raises(TraceError, match=r"manifest\.json: "):
            _ = Trace(copy).kernels["sum"].manifest


def test_sites_show_and_try_name_it(probe: Probe, tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(PROBES.replace(', per="run"', ""))
    sites = probe("sites", "./p.py", EXAMPLE)
    assert (sites.status, sites.err) == (0, "")
    assert re.search(rf"passed \(ld.global\): in sum: .*{re.escape(CAUSE)}", sites.out)
    kernels = json.loads(probe("sites", "./p.py", EXAMPLE, "--json").out)["files"][0]["kernels"]
    assert {kernel["name"]: [row["probe"] for row in kernel["probes_left_out"]] for kernel in kernels} == {
        "saxpy": [], "sum": ["passed", "whole"],
    }  # fmt: skip
    shown = probe("show", "./p.py", EXAMPLE, "-k", "sum", "--diff")
    assert (shown.status, shown.err) == (0, "")
    assert re.search(rf"^// left out: passed \(ld.global\): .*{re.escape(CAUSE)}$", shown.out, re.MULTILINE)
    tried = probe("try", "./p.py", EXAMPLE, "-k", "sum")
    assert (tried.status, tried.err) == (0, "")
    assert "probe 'passed' (ld.global) is left out: " in tried.out
    assert "  Passed: not probed in this kernel" in tried.out
    assert "The same bits with and without the probe." in tried.out
    document = json.loads(probe("try", "./p.py", EXAMPLE, "-k", "sum", "--json").out)
    assert [row["probe"] for row in document["probes_left_out"]] == ["passed", "whole"]
    assert [entry["name"] for entry in document["maps"]] == ["Threads"]


def test_show_has_the_text_without_what_is_refused_once_it_is_assembled(probe: Probe, tmp_path: Path) -> None:
    """A count in a function that calls itself makes its stack frames larger, to an unknown depth."""
    calls = ROOT / "tests/fixtures/kernels/clang/calls.ptx"
    maps = "".join(f'[map.{name}]\ntype = "sum"\nlevel = "thread"\ndata = {{ v = "u64" }}\n' for name in "AB")
    (tmp_path / "p.toml").write_text(
        f'platform = "cuda"\n{maps}'
        '[probe.a]\nposition = "kernel"\nlevel = "thread"\nbefore = "SAVE [ A ] { 1 };"\n'
        '[probe.b]\nposition = "*"\nlevel = "thread"\nbefore = ".reg .u64 %n; add.u64 %n, %n, 1;"\n'
        '[probe.c]\nposition = "kernel"\nlevel = "thread"\nafter = "SAVE [ B ] { %n };"\n'
    )
    shown = json.loads(probe("show", "./p.toml", calls, "-k", "recursion", "--filter", "mutual", "--json").out)
    assert [(row["probe"], row["maps"]) for row in shown["probes_left_out"]] == [("b", []), ("c", ["B"])]
    assert "only probe 'c' reads what it computes" in shown["probes_left_out"][0]["detail"]
    assert "its stack frame grows" in shown["probes_left_out"][1]["detail"]
    assert {site["probe"] for site in shown["sites"]} == {"a"}
    arguments = ("show", "./p.toml", calls, "-k", "recursion", "--filter", "mutual", "--json", "--text-only")
    planned = json.loads(probe(*arguments).out)
    assert planned["probes_left_out"] == []
    assert {site["probe"] for site in planned["sites"]} == {"a", "b", "c"}
    assert planned["instructions_added"] > shown["instructions_added"]


def test_patched_files_say_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    (tmp_path / "p.py").write_text(PROBES)
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    subprocess.run(
        ["make", "-s", "-C", str(EXAMPLE.parent), f"OUT={tmp_path}", f"PYTHON={sys.executable}"], check=True
    )
    library = next(path for path in (tmp_path / "libvector.so", tmp_path / "program") if path.exists())
    arguments = [str(library), "-p", "./p.py", "--dry-run"]
    capsys.readouterr()
    status = patch([*arguments, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert status == 0
    left = {kernel["name"]: [row["probe"] for row in kernel["probes_left_out"]] for kernel in document["kernels"]}
    assert left == {"saxpy": [], "sum": ["passed", "whole"]}
    assert patch(arguments) == 0
    text = capsys.readouterr().out
    assert "probe 'passed' (ld.global) is left out of sum: " in text
    assert CAUSE in text


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-k", "softmax"], "-k or --filter leaves out every kernel that was launched: saxpy, sum"),
        (["--launches", "90:99"], "no launch was chosen (--launches, --every, --range, --duration, --device or"),
        (["--filter", "saxpy"], "no instruction of 1 launched kernel matches st.global"),
    ],
)
def test_nothing_was_saved_says_whether_anything_was_chosen(
    folder: Path, tmp_path: Path, options: list[str], expected: str  # noqa: F811
) -> None:
    arguments = ["--device", "embedded", "-q", *options, "-e", "st.global { @ = count() }", "./program"]
    lines = run(folder, *arguments, home=tmp_path).stderr.splitlines()
    assert lines[1].startswith(f"@: nothing was saved: {expected}"), lines


def test_times_are_called_steps(folder: Path, tmp_path: Path) -> None:  # noqa: F811
    text = "kernel { @t = max(elapsed) }"
    lines = run(folder, "--device", "embedded", "-q", "-e", text, "./program", home=tmp_path).stderr.splitlines()
    assert lines[-2] == "Times are steps of the embedded device's interpreter, neither cycles nor nanoseconds."
    text = "kernel { @t = count() }"
    lines = run(folder, "--device", "embedded", "-q", "-e", text, "./program", home=tmp_path).stderr.splitlines()
    assert not any("steps" in line for line in lines)
    arguments = ["--device", "embedded", "-q", "-p", "block_sched", "./program"]
    assert run(folder, *arguments, home=tmp_path / "blocks").returncode == 0
    (trace,) = (tmp_path / "blocks" / "trace").iterdir()
    tool = ROOT / "tools" / "analyze_block_sched.py"
    told = subprocess.run([sys.executable, str(tool), str(trace)], capture_output=True, text=True, check=True).stdout
    assert " steps, median " in told
    assert "cycles" not in told


def test_kernels_without_an_instruction_that_matches_are_counted(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:
    arguments = ["--device", "embedded", "-q", "-e", "st.global { @ = count() }", "./program"]
    run(folder, *arguments, home=tmp_path)
    (trace,) = (tmp_path / "trace").iterdir()
    text = said([str(trace)], capsys, monkeypatch)
    assert "1 kernel has no instruction that matches (1 launch)" in text
    assert "Not probed" not in text
    assert "sum" in said([str(trace), "--all"], capsys, monkeypatch)
    why = said([str(trace), "--why"], capsys, monkeypatch)
    assert "1 kernel has no instruction that matches (1 launch); --all lists them" in why
    assert "no-site" not in why
    assert "no-site" in said([str(trace), "--why", "sum"], capsys, monkeypatch)


def test_launches_and_kernels_that_do_not_exist_are_answered_with_those_that_do(
    traced: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    for more in ([], ["--records", "--map", "bytes"]):
        capsys.readouterr()
        assert report([str(traced[0]), "--launch", "99", *more]) == 2
        message = capsys.readouterr().err.strip()
        assert re.search(r"--launch 99: no such launch; there are launches \d+ to \d+$", message)
        assert report([str(traced[0]), "--launch", "90:", *more]) == 2
        assert "--launch 90:: no such launch" in capsys.readouterr().err
        assert report([str(traced[0]), "-k", "nope", *more]) == 3
        assert "-k and --filter leave no kernel; there are saxpy, sum" in capsys.readouterr().err
