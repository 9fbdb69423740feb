"""The runner, with a made-up workload and a made-up Neutrino in front of it."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import programs, road
from bench.cases import ALL, WORKLOADS, Mode, Workload
from bench.programs import build, find_cuda_tool, run_program
from bench.road import Road
from bench.tree import tree_hash

Json = Any
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FAKE = Workload("fake", "fake_workload.py", ALL, seeds=3)


@pytest.fixture
def drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Road:
    """A road with a ptxas that only has to be startable, the made-up workload, and the made-up Neutrino."""
    tool = tmp_path / "ptxas"
    tool.write_text("#!/bin/sh\nexit 0\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(road, "find_cuda_tool", lambda name: tmp_path / name)
    monkeypatch.setattr(road, "build", lambda folder, workloads: {})
    monkeypatch.setattr(road, "SUBMIT_PROCESSES", 1)
    monkeypatch.setattr(programs, "SOURCES", HERE)
    neutrino = [sys.executable, str(HERE / "fake_neutrino.py")]
    folder = tmp_path / "scratch"
    folder.mkdir()
    submit = folder / "submit"
    submit.write_text(f'#!/bin/sh\nexec {sys.executable} {HERE / "fake_workload.py"} "$@"\n')
    submit.chmod(0o755)
    return Road(neutrino, folder)


def with_fault(fault: str) -> Workload:
    return Workload("fake", "fake_workload.py", ALL, seeds=3, variables={"FAKE_FAULT": fault})


def test_a_drive_keeps_every_run(drive: Road) -> None:
    kept: list[Json] = []
    drive.drive([FAKE], 2, lambda result: kept.append(sorted(result["runs"]["fake"])))
    assert [len(modes) for modes in kept] == [1, 2, 3, 4]
    result = json.loads(json.dumps(drive.result))
    assert result["tree"] == tree_hash(ROOT)
    assert result["device"]["sm_count"] == 132
    runs = result["runs"]["fake"]
    assert list(runs) == [mode.value for mode in ALL]
    for mode in ALL:
        run = runs[mode.value]
        assert (run["exit"], run["checks"], run["launches"]) == (0, "ok", 2)
        assert (run["seeds"], run["distinct"]) == (3, 3)
        assert [run[what] for what in ("outputs", "stdout")] == [runs["plain"][what] for what in ("outputs", "stdout")]
        assert ("trace" in run) == (mode is not Mode.PLAIN)
    both = runs["both"]["trace"]
    assert (both["good"], both["faults"]) == ({"BlockSched": {"work": 2}, "GmemBytes": {"work": 2}}, [])
    assert [len(samples) for samples in result["submit"].values()] == [1, 1, 1, 1]
    assert result["submit"]["not_probed"][0]["trace"]["kernels"][0]["counters"] == {"not-selected": 2}


def test_the_watches_see_the_assembler_and_the_patcher(drive: Road) -> None:
    plain = drive.run("plain", FAKE, Mode.PLAIN)
    assert (plain["ptxas_started"], plain["imported"]) == (0, [])
    probed = drive.run("probed", FAKE, Mode.BLOCK_SCHED)
    assert probed["ptxas_started"] == 1
    assert "neutrino.sass.arithmetic" in probed["imported"]
    counted = drive.run("counted", FAKE, Mode.GMEM_BYTES)
    assert (counted["ptxas_started"], counted["imported"]) == (0, [])


def test_what_another_program_asked_for_or_compiles_is_not_seen(drive: Road) -> None:
    """Neutrino notes in its cache who asked for twins, and watches the folder for temporary files."""
    places = {}
    for name, program in (("a_plain", "a"), ("a_warm", "a"), ("b_plain", "b")):
        environment = drive.environment(drive.folder / f"{name}.log", program)
        places[name] = environment["XDG_CACHE_HOME"], environment["TMPDIR"]
        assert all(stat.S_IMODE(Path(place).stat().st_mode) == 0o700 for place in places[name])
    caches, temporary = zip(*places.values(), strict=True)
    assert caches[0] == caches[1] != caches[2]
    assert len(set(temporary)) == 3


def test_a_run_that_hangs_is_ended_and_told(
    drive: Road, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(road, "PYTHON_LIMIT", 1.5)
    run = drive.run("hang", with_fault("hang"), Mode.BLOCK_SCHED)
    assert run["timed_out"]
    assert run["exit"] != 0
    assert "fake_workload.py" in capsys.readouterr().err


def test_the_tree_hash_follows_sources_alone(tmp_path: Path) -> None:
    for name in (
        "bench/results/r.json",
        "bench/a.py",
        "neutrino/b.c",
        "neutrino/__pycache__/x.py",
        "docs/d.py",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1")
    before = tree_hash(tmp_path)
    for name in ("bench/results/r.json", "neutrino/__pycache__/x.py", "docs/d.py"):
        (tmp_path / name).write_text("2")
    assert tree_hash(tmp_path) == before
    (tmp_path / "neutrino/b.c").write_text("2")
    changed = tree_hash(tmp_path)
    assert changed != before
    (tmp_path / "neutrino/b.c").rename(tmp_path / "neutrino/c.c")
    assert tree_hash(tmp_path) not in {before, changed}


def test_every_workload_is_there() -> None:
    for entry in WORKLOADS:
        assert (ROOT / "bench" / "workloads" / entry.source).is_file()
        if entry.is_python:
            compile((ROOT / "bench" / "workloads" / entry.source).read_text(), entry.source, "exec")


def test_nvcc_builds_a_program(tmp_path: Path) -> None:
    """One of them: make corpus compiles all, for every architecture."""
    try:
        find_cuda_tool("nvcc")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    first = next(entry for entry in WORKLOADS if not entry.is_python)
    assert build(tmp_path, [first]) == {}
    assert os.access(tmp_path / first.name, os.X_OK)


def test_pairs_reach_the_assembler_unfused(tmp_path: Path) -> None:
    try:
        nvcc = find_cuda_tool("nvcc")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    ptx = tmp_path / "half.ptx"
    source = str(ROOT / "bench" / "workloads" / "half.cu")
    done = run_program(
        [str(nvcc), "-O3", "-std=c++17", "-arch=sm_90", "-ptx", "-o", str(ptx), source],
        os.environ,
        tmp_path,
        "n",
        60,
    )
    assert done.status == 0, done.stderr
    text = ptx.read_text()
    for word in ("mul.f16x2 ", "mul.bf16x2 ", "mul.f16 ", "mul.f32 ", "mul.f64 "):
        assert word in text
    assert "fma.rn.f16" not in text
