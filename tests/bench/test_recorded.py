"""The verdicts on the committed results are computed again, and each of them depends on what the results say."""

from __future__ import annotations

import copy
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bench import (
    accesses,
    choice,
    compatibility,
    corpus_sass,
    findings,
    findings_verdicts,
    first_runs,
    graphs,
    machine_code,
    passing,
    pictures,
    prices,
    published,
    questions,
    reading,
    road_verdicts,
    rounding_verdicts,
    sass_coverage,
    values,
)
from bench.figures import BENCH
from bench.recorded import judge_files, load
from bench.tree import ROOT
from neutrino.errors import ToolMissingError
from neutrino.toolchain.location import find_tool
from tests.corpus import real_libraries

Json = Any


def _unmet(judge: Callable[[Json], Any]) -> Callable[[Json], list[str]]:
    """The cases of a list of verdicts that are not good."""
    return lambda results: [verdict.case for verdict in judge(results) if not verdict.good]


_BENCHES: dict[str, tuple[Path, Callable[[Json], list[str]], tuple[str | int, ...], Json]] = {
    "road": (
        road_verdicts.RESULTS, _unmet(road_verdicts.judge), ("runs", "vecadd", "gmem_bytes", "outputs"), "0" * 32,
    ),
    "rounding": (rounding_verdicts.RESULTS, _unmet(rounding_verdicts.judge), ("runs", 3, "exit"), 1),
    "values": (values.RESULTS, values.verdicts, ("targets", "sm_90", "launches", 0, "recorded", "value"), None),
    "graphs": (graphs.RESULTS, graphs.verdicts, ("cases", "queue", "totals", "load"), 1),
    "compatibility": (
        compatibility.RESULTS, compatibility.verdicts, ("frameworks", "jax", "probed", 0, 1), "0",
    ),
    "first runs": (first_runs.RESULTS, _unmet(first_runs.judge), ("runs", "torch.compile", "second", 0, "result"), "0"),
    "questions": (questions.RESULTS, _unmet(questions.judge), ("runs", "JAX", "three", "asked", 1, "result"), "0" * 16),
    "choice": (choice.RESULTS, _unmet(choice.judge), ("runs", "off", 0, "launches", "probed"), 10_001),
    "corpus_sass": (corpus_sass.RESULTS, corpus_sass.verdicts, ("rows", 0, "unknown"), 1),
    "sass_coverage": (
        sass_coverage.RESULTS, sass_coverage.verdicts, ("rows", -1, "block_sched", "twinned"), 0,
    ),
    "machine_code": (
        machine_code.RESULTS, lambda results: ["missed"] * machine_code.say(results),
        ("results", 0, "modes", "identity", "same"), False,
    ),
    "accesses": (accesses.RESULTS, _unmet(accesses.judge), ("traced", "gathered", "sha256"), "0" * 64),
    "prices": (
        prices.RESULTS, _unmet(prices.judge), ("runs", "latency", "rows", "pool large", "output"), "0" * 64,
    ),
    "published": (
        published.RESULTS, _unmet(published.judge), ("cases", "gemm", "launches", "gemm_tiles", 0, "resident"), 2
    ),
    "findings": (
        findings.RESULTS, _unmet(findings_verdicts.judge), ("ncu", "pool", "metrics", "lts__t_sectors.max"), 1e9
    ),
    "passing": (passing.RESULTS, _unmet(passing.judge), ("numba", "printed"), []),
    "pictures": (pictures.RESULTS, pictures.verdicts, ("page", 0, "anonymous_bytes"), reading.MOST_BYTES + 1),
    "reading": (reading.RESULTS, reading.verdicts, ("big", 0, "anonymous_bytes"), reading.MOST_BYTES + 1),
    "check_corpus": (real_libraries.RESULTS, real_libraries.judge, ("rows", 0, "patched", "exit"), 2),
}  # fmt: skip
"""By name: the committed file, what is not met in it, and a place and a value there that must not be accepted."""


@pytest.mark.parametrize("name", _BENCHES)
def test_committed_results_meet_every_bound(name: str) -> None:
    path, unmet, place, wrong = _BENCHES[name]
    results = load(path)
    assert unmet(results) == []
    changed = copy.deepcopy(results)
    at = changed
    for step in place[:-1]:
        at = at[step]
    at[place[-1]] = wrong
    assert unmet(changed)


def test_nothing_passes_by_being_absent() -> None:
    empty = road_verdicts.judge({})
    assert len(empty) > 20
    assert not any(verdict.good for verdict in empty)


def test_a_file_that_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "none.json"
    assert judge_files([path], "python -m bench.none", ("runs",), lambda _: 0) == 2
    said = f"{path}: cannot be read: No such file or directory; record it with `python -m bench.none`\n"
    assert capsys.readouterr().err == said


def test_the_page_on_machine_code_holds_the_tables_of_kernels_with_twins() -> None:
    page = (ROOT / "docs" / "machine-code.md").read_text()
    assert f"```text\n{sass_coverage.table(load(sass_coverage.RESULTS))}\n```" in page


def test_the_page_holds_the_tables_of_latencies_first_runs_and_choices() -> None:
    page = BENCH.read_text()
    for bench in (accesses, first_runs, choice):
        assert f"```text\n{bench.table(load(bench.RESULTS))}\n```" in page


def test_the_page_holds_the_figures_of_pictures() -> None:
    page = BENCH.read_text()
    assert f"```text\n{pictures.table(load(pictures.RESULTS))}\n```" in page


def test_the_page_holds_the_figures_of_reading() -> None:
    page = BENCH.read_text()
    assert f"```text\n{reading.table(load(reading.RESULTS))}\n```" in page


@pytest.mark.parametrize("bench", [corpus_sass, sass_coverage])
def test_a_run_over_other_libraries_leaves_what_is_recorded(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        find_tool("nvdisasm", "")
        ptxas = find_tool("ptxas")
    except ToolMissingError as error:
        pytest.skip(str(error))
    text, cubin, recorded = tmp_path / "k.ptx", tmp_path / "k.cubin", bench.RESULTS.read_bytes()
    text.write_text(".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() { ret; }\n")
    subprocess.run([str(ptxas), "-arch=sm_90", "-o", str(cubin), str(text)], check=True)
    assert ROOT / "build" / bench.RESULTS.name == bench.OUTPUT
    monkeypatch.setattr(bench, "OUTPUT", ROOT / "build" / tmp_path.name / bench.RESULTS.name)
    assert bench.main([str(cubin)]) in {0, 1}
    assert f"written: {bench.OUTPUT}\n" in capsys.readouterr().err
    assert load(bench.OUTPUT)["rows"]
    assert bench.RESULTS.read_bytes() == recorded
    shutil.rmtree(bench.OUTPUT.parent)
