"""A probe in Python through every command that takes one, beside the same in TOML."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from neutrino import open_trace
from neutrino.ptx.snippets.lowering import lower
from neutrino.verification import load_probe_file
from tests.playground.conftest import ROOT, Run

PYTHON, TOML = (ROOT / "examples" / "probes" / f"loads.{end}" for end in ("py", "toml"))
KERNELS = ROOT / "examples" / "embedded" / "kernels.ptx"


def test_check(run: Run, tmp_path: Path) -> None:
    result = run("probe", "check", PYTHON)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    words = r"\bmap Loads: up to 4 records of 16 bytes per thread: address u64, value f32, clock u32$"
    assert re.search(words, lines[1])
    # An address loaded and compared, the if, the clock read and converted.
    assert lines[2].strip() == "probe loads: after ld.global.f32, level thread, 5 statements"
    (tmp_path / "wrong.py").write_text(PYTHON.read_text().replace("nl.clock()", "nl.clok()"))
    result = run("probe", "check", "wrong.py")
    assert result.returncode == 2
    line = PYTHON.read_text().split("\n").index("        Loads.save(nl.addr(), nl.out(), nl.clock())") + 1
    assert f"wrong.py:{line}:41: error: 'nl.clok' is called [python-call]" in result.stderr
    (document,) = json.loads(run("probe", "check", "--json", "wrong.py").stdout)["files"]
    assert document["ok"] is False
    assert document["diagnostics"][0]["code"] == "python-call"


def test_sites_are_those_of_the_same_in_toml(run: Run) -> None:
    found = [run("probe", "sites", path, KERNELS) for path in (PYTHON, TOML)]
    assert [result.returncode for result in found] == [0, 0]
    assert found[0].stdout == found[1].stdout


def test_show(run: Run) -> None:
    result = run("probe", "show", PYTHON, KERNELS, "-k", "saxpy", "--text-only")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("// saxpy: 2 sites, ")
    assert result.stdout.count("// loads: after ld.global.f32\n") == 2


def test_try(run: Run) -> None:
    result = run("probe", "try", PYTHON, KERNELS, "-k", "saxpy")
    assert result.returncode == 0, result.stderr + result.stdout
    assert "Loads" in result.stdout


@pytest.mark.parametrize("names", [(PYTHON,), (PYTHON, "block_sched")], ids=["alone", "with TOML"])
def test_a_run_keeps_its_assembly_version(run: Run, demo: Path, tmp_path: Path, names: tuple[str | Path, ...]) -> None:
    options = [word for name in names for word in ("-p", name)]
    result = run("run", "--device", "embedded", *options, "--tracedir", "one", demo / "program")
    assert result.returncode == 0, result.stderr
    kept = next(tmp_path.glob("one*/**/probe.toml"))
    again = load_probe_file(kept)
    if len(names) == 1:
        assert again.digest == lower(load_probe_file(PYTHON)).digest
    result = run("run", "--device", "embedded", "-p", kept, "--tracedir", "two", demo / "program")
    assert result.returncode == 0, result.stderr
    traces = [open_trace(next(tmp_path.glob(f"{name}*/**/probe.toml")).parent) for name in ("one", "two")]
    assert [len(trace.launches) for trace in traces] == [len(traces[0].launches)] * 2
    assert len(traces[0].launches) > 0
    records = [
        next(path for path in trace.path.glob("result/*.bin")).stat().st_size for trace in traces
    ]
    assert records[0] == records[1] > 0


def test_patch(run: Run, demo: Path, tmp_path: Path) -> None:
    result = run("patch", demo / "libvector.so", "-p", PYTHON, "-o", tmp_path / "out.so")
    assert result.returncode == 0, result.stderr + result.stdout
    assert (tmp_path / "out.so").stat().st_size > (demo / "libvector.so").stat().st_size
    listed = run("extract", tmp_path / "out.so")
    assert listed.returncode == 0, listed.stderr
