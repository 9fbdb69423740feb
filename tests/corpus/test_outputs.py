"""Runs over the corpora leave what is recorded, and say how they differ from it."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from bench.recorded import load
from bench.tree import ROOT
from tests.corpus import all_kernels
from tests.corpus.outputs import differences, output, write
from tests.gcn import corpus_text

RECORDED = [ROOT / "bench" / "results" / f"{name}.json" for name in (
    "corpus", "check_corpus", "corpus_amd", "exact_amd", "gcn_numpy", "probed_amd"
)]  # fmt: skip


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda path: path.stem)
def test_each_change_is_named_and_times_are_none(recorded: Path) -> None:
    before = load(recorded)
    assert differences(before, before, recorded.name) == [f"the same as in {recorded.name}, but for times"]
    (table,) = (key for key in ("rows", "sources") if key in before)
    slower = copy.deepcopy(before)
    slower["seconds"] = 1e9
    for row in slower[table]:
        row["seconds"] = 1e9
    assert len(differences(slower, before, recorded.name)) == 1
    other = copy.deepcopy(before)
    key = next(key for key, value in other[table][0].items() if isinstance(value, int))
    other[table][0][key] += 1
    first, *lines = differences(other, before, recorded.name)
    assert first.startswith(f"differs from {recorded.name} in 1 parts of ")
    assert [line[0] for line in lines] == ["+", "-"]
    lacking = copy.deepcopy(before)
    del lacking[table][0]
    assert "in 0 parts" in differences(lacking, before, recorded.name)[0]


def test_a_row_of_a_table_in_a_table_is_named_alone() -> None:
    before = load(all_kernels.RESULTS)
    other = copy.deepcopy(before)
    other["sources"][1]["rows"][0]["kernels"] += 1
    _, added, gone = differences(other, before, "corpus.json")
    source = other["sources"][1]["source"]
    assert added.startswith(f"+ sources {source} rows: ")
    assert gone.startswith(f"- sources {source} rows: ")


def test_results_go_below_build_unless_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert all(output(recorded) == ROOT / "build" / recorded.name for recorded in RECORDED)
    recorded = tmp_path / "recorded.json"
    recorded.write_text(json.dumps({"rows": [{"a": 1}]}))
    write(tmp_path / "deep" / "found.json", recorded, {"rows": [{"a": 2}]})
    assert json.loads(recorded.read_text()) == {"rows": [{"a": 1}]}
    assert load(tmp_path / "deep" / "found.json")["rows"] == [{"a": 2}]
    assert "differs from recorded.json in 1 parts of 1; 1 recorded ones are not there" in capsys.readouterr().err
    write(recorded, recorded, {"rows": [{"a": 2}]})
    assert load(recorded)["rows"] == [{"a": 2}]
    assert "differs" not in capsys.readouterr().err


def test_a_run_over_an_empty_corpus_leaves_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = corpus_text.RESULTS.read_bytes()
    monkeypatch.setattr(corpus_text, "corpus", lambda *_: iter(()))
    monkeypatch.setattr(corpus_text, "CLANG", "true")
    monkeypatch.setattr("tests.corpus.outputs.ROOT", tmp_path)
    monkeypatch.setattr(corpus_text, "say", lambda _: 0)
    assert corpus_text.main([]) == 0
    assert corpus_text.RESULTS.read_bytes() == before
    assert (tmp_path / "build" / "corpus_amd.json").exists()
    assert "differs from corpus_amd.json in " in capsys.readouterr().err
