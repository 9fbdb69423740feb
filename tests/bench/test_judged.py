"""Every judge of recorded results: one line and status 2 for a file that it cannot judge, never a traceback."""

from __future__ import annotations

import copy
import importlib
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bench.judged import DAMAGE, judge_files

Json = Any


@dataclass(frozen=True)
class Judge:
    """A command that judges a file. before: its words before the file. slow: judging takes a while."""

    module: str
    before: tuple[str, ...] = ()
    slow: bool = False

    def run(self, *words: str | Path) -> int:
        main: Callable[[list[str]], int] = importlib.import_module(f"bench.{self.module}").main
        return main([*self.before, *map(str, words)])

    @property
    def recorded(self) -> Path:
        path: Path = importlib.import_module(f"bench.{self.module}").RESULTS
        return path


OUT = ("judge", "--out")
JUDGES = (
    Judge("verdicts"), Judge("ahead_verdicts"), Judge("counters_verdicts"), Judge("lines_verdicts"),
    Judge("placed_verdicts", slow=True), Judge("rounding_verdicts"), Judge("values", ("verdicts",)),
    Judge("slowdown", OUT), Judge("registers", OUT), Judge("registers", ("page", "--out")), Judge("parsing", OUT),
    Judge("listing", OUT),
    Judge("ahead_speed", OUT), Judge("ahead_size", OUT),
)  # fmt: skip
each_judge = pytest.mark.parametrize("judge", JUDGES, ids=lambda judge: " ".join([judge.module, *judge.before]))


def _only_line(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert "` makes it" in line
    return line


@each_judge
def test_a_missing_file(judge: Judge, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "nosuch.json"
    assert judge.run(path) == 2
    line = _only_line(capsys)
    assert line.startswith(f"{path}: cannot be read: No such file or directory; `python")
    assert line.count(str(path)) == 1


@each_judge
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("\udcff", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "holds a list"),
        ("null", "holds a NoneType"),
        ("{}", "has no "),
        ('{"a": 1}', "has no "),
    ],
)
def test_a_file_that_is_no_result(
    judge: Judge, text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "damaged.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    assert judge.run(path) == 2
    assert _only_line(capsys).startswith(f"{path}: {words}")


@each_judge
def test_results_with_something_lost(judge: Judge, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Parts of the recorded results are deleted, or something else is in their place."""
    if not judge.recorded.exists():
        pytest.skip("no run on a GPU has been recorded")
    recorded = json.loads(judge.recorded.read_text())
    if judge.module == "lines_verdicts":
        (tmp_path / "counters_h200.json").write_text(judge.recorded.with_name("counters_h200.json").read_text())
    source, path = random.Random(judge.module), tmp_path / "damaged.json"
    for other in (None, [], {}, "x"):
        path.write_text(json.dumps({key: other if isinstance(value, dict | list) else value
                                    for key, value in recorded.items()}))  # fmt: skip
        assert judge.run(path) in {1, 2}
    capsys.readouterr()
    for _ in range(3 if judge.slow else 20):
        damaged = copy.deepcopy(recorded)
        place, depth = damaged, source.randrange(5)
        for _ in range(depth):
            key = source.choice(list(place)) if isinstance(place, dict) else source.randrange(len(place))
            if not isinstance(place[key], dict | list) or not place[key]:
                break
            place = place[key]
        key = source.choice(list(place)) if isinstance(place, dict) else source.randrange(len(place))
        other = source.choice(("gone", None, [], {}, "x", -1))
        if other == "gone":
            del place[key]
        else:
            place[key] = other
        path.write_text(json.dumps(damaged))
        status = judge.run(path)
        assert status in {0, 1, 2}
        assert len(capsys.readouterr().err.splitlines()) == (status == 2)


def test_what_is_lost_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "one.json"
    path.write_text('{"rows": {}}')

    def say(results: Json) -> int:
        return len(results["rows"]["first"])

    assert judge_files([path], "make one", ("rows",), say) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"{path}: damaged: no 'first' where test_judged.py:")
    assert line.endswith('reads return len(results["rows"]["first"]); `make one` makes it\n')
    assert all(issubclass(kind, Exception) for kind in DAMAGE)


@each_judge
@pytest.mark.parametrize("words", [("--help",), ("-h",)])
def test_help(judge: Judge, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    bare = Judge(judge.module)
    with pytest.raises(SystemExit) as ended:
        bare.run(*words)
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: python -m bench.{judge.module}")


@each_judge
def test_options_that_are_not_there(judge: Judge, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        judge.run(*(("x.json",) if judge.before else ()), "-x")
    assert ended.value.code == 2
    assert "-x" in capsys.readouterr().err


def test_which_of_two_files_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    judge, lines, counters = Judge("lines_verdicts"), tmp_path / "lines.json", tmp_path / "counters_h200.json"
    lines.write_text('{"programs": {}}')
    assert judge.run(lines) == 2
    assert capsys.readouterr().err.startswith(f"{counters}: cannot be read")
    assert judge.run(lines, "--counters", tmp_path / "other.json") == 2
    assert capsys.readouterr().err.startswith(f"{tmp_path / 'other.json'}: cannot be read")
    counters.write_text('{"programs": {}}')
    assert judge.run(lines) == 1


def test_reports_of_named_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    judge = Judge("counters_verdicts")
    assert judge.run("--report", "transpose_padded") == 0
    told = capsys.readouterr().out
    assert "\ncounted 3 transpose_padded\n" in told
    assert "\ncounted 2 transpose\n" not in told
    assert judge.run("--report", "nosuch") == 2
    assert "no kernel's title holds that name" in capsys.readouterr().err


def test_whole_results_of_arithmetic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    judge, path = Judge("arithmetic", ("compare",)), tmp_path / "arithmetic.npz"
    assert judge.run(path) == 2
    assert _said_once(capsys, path) == "cannot be read: No such file or directory"
    for damaged in (b"", b"{}", b"PK\x03\x04damaged"):
        path.write_bytes(damaged)
        assert judge.run(path) == 2
        assert _said_once(capsys, path).startswith("cannot be read: ")


def test_recorded_examples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    document, path = tmp_path / "page.md", tmp_path / "examples.json"
    document.write_text("nothing to fill\n")
    monkeypatch.setattr("bench.examples.RECORDING", path)
    judge = Judge("examples", ("fill",))
    assert judge.run(document) == 2
    assert _said_once(capsys, path) == "cannot be read: No such file or directory"
    path.write_text('{"outputs": {}}')
    assert judge.run(document) == 0
    assert document.read_text() == "nothing to fill\n"
    with pytest.raises(SystemExit):
        judge.run(tmp_path / "other.md")


def _said_once(capsys: pytest.CaptureFixture[str], path: Path) -> str:
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{path}: ")
    return line.removeprefix(f"{path}: ").partition("; `python")[0]
