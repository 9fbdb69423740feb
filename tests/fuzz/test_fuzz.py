"""The fuzzing harness finds what it is for, its seeds are sound, and what it has run is on record."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from bench import fuzz, fuzz_seeds
from bench.fuzz_fields import places
from bench.fuzz_mutate import mutate
from bench.fuzz_targets import TARGETS, UnsoundError
from neutrino.errors import FormatError

LEDGER = Path(__file__).parents[2] / "bench" / "results" / "fuzz.json"


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_read(name):
    """A seed that is refused at its first field would lead the fuzzing nowhere."""
    for data in TARGETS[name].seeds():
        assert len(data) <= fuzz_seeds.LIMIT
        TARGETS[name].run(data)


def _raise(error: BaseException) -> int:
    raise error


def _endless() -> int:
    while True:
        pass


def _busy() -> int:
    end = time.process_time() + 1.2
    while time.process_time() < end:
        pass
    return 0


def _greedy() -> int:
    return len(bytes([7]) * (60 << 20)) * 0


@pytest.mark.parametrize(
    ("run", "kind"),
    [
        (lambda data: _raise(IndexError()), "exception"),
        (lambda data: _raise(MemoryError()), "exception"),
        (lambda data: _raise(RecursionError()), "exception"),
        (lambda data: _raise(UnsoundError("two readings")), "unsound"),
        (lambda data: _endless(), "slow"),
        (lambda data: _busy(), "slow"),
        (lambda data: _greedy(), "memory"),
    ],
)
def test_failures_are_noticed(run, kind):
    judge = fuzz.Judge(run)
    # Other tests may have used more memory in this process than the input does.
    judge._peak = 0
    assert not judge(b"x")
    ((failure),) = judge.failures.values()
    assert (failure.kind, failure.data) == (kind, b"x")


def test_what_may_happen_is_no_failure():
    for run in (lambda data: _raise(FormatError("input", 0, "field", "this", "that")), lambda data: 0):
        judge = fuzz.Judge(run)
        assert judge(b"x")
        assert (judge.executions, judge.failures) == (1, {})


def test_memory_that_an_input_declares_is_allowed():
    judge = fuzz.Judge(lambda data: len(bytes([7]) * (60 << 20)))
    assert judge(b"x")


def test_coverage_sees_a_branch_once(tmp_path):
    """A child interpreter, since what is watched stays watched."""
    import subprocess
    import sys

    script = tmp_path / "watched" / "script.py"
    script.parent.mkdir()
    script.write_text("def f(x):\n    if x:\n        return 1\n    return 2\n")
    program = (
        f"import sys; sys.path[:0] = [{str(script.parent)!r}, {str(fuzz.ROOT)!r}]\n"
        "import script\nfrom bench.fuzz_coverage import Coverage\n"
        "coverage = Coverage(('watched/',)); coverage.start()\n"
        "counts = []\n"
        "for x in (0, 0, 1, 1, 0):\n    script.f(x); counts.append(len(coverage.seen))\n"
        "print(counts)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, second, third, *rest = json.loads(done.stdout)
    assert 0 < first == second < third
    assert rest == [third, third]


def test_a_planted_fault_is_found_by_following_branches(tmp_path):
    """Three bytes that must each be right: blind changes would need millions of tries."""
    import subprocess
    import sys

    script = tmp_path / "watched" / "target.py"
    script.parent.mkdir()
    script.write_text(
        "def run(data):\n    if len(data) == 7:\n        if data[2] == 0x42:\n            if data[5] == 0x17:\n"
        "                if data[0] > 0xF0:\n                    raise IndexError\n    return 0\n"
    )
    program = (
        f"import sys; sys.path[:0] = [{str(script.parent)!r}, {str(fuzz.ROOT)!r}]\n"
        "import pathlib, target\nfrom bench import fuzz, fuzz_targets\n"
        "fuzz_targets.INSTRUMENTED = ('watched/',)\n"
        "fuzz_targets.TARGETS['planted'] = fuzz_targets.Target('planted', target.run, lambda: [bytes(8)])\n"
        f"print(len(fuzz.Slice('planted', 4, pathlib.Path({str(tmp_path)!r}), 1).own()['failures']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1"]
    (crash,) = (tmp_path / "crashes").glob("*.bin")
    data = crash.read_bytes()
    assert (len(data), data[2], data[5]) == (7, 0x42, 0x17)


def test_changes_are_repeatable_and_limited():
    seed = fuzz_seeds.containers()[0]
    made = [mutate(seed, seed, random.Random(number), 300) for number in range(50)]
    assert made == [mutate(seed, seed, random.Random(number), 300) for number in range(50)]
    assert len(set(made)) > 40
    assert max(map(len, made)) <= 300


def test_every_format_has_fields():
    kinds = {place.structure for data in fuzz_seeds.hosts() for place in places(data)}
    assert {"container", "entry", "options", "wrapper", "ELF header", "section header", "program header", "symbol",
            "dynamic", "relocation", "note", "attribute", "bundle", "bundle entry", "compressed bundle",
            "archive member"} <= kinds  # fmt: skip


@pytest.mark.parametrize("jobs", [1, 14])
def test_time_is_dealt_out_whole(jobs):
    weights = {"a": 2, "b": 1}
    slices = fuzz.deal(list(weights), 480, jobs, weights)
    assert sum(seconds for _, seconds in slices) == pytest.approx(480 * jobs)
    assert len(slices) % jobs == 0
    dealt = {name: sum(seconds for target, seconds in slices if target == name) for name in weights}
    assert dealt["a"] > 1.4 * dealt["b"]


def ledger_of(seconds: float, failures: dict[str, dict[str, str]], answers: dict[str, str]) -> dict[str, object]:
    rows = {name: {"cpu_seconds": seconds, "executions": 9, "failures": {}} for name in TARGETS}
    first = {name: {**row, "failures": failures} for name, row in rows.items()}
    return {"runs": [{"targets": first}, {"targets": rows}], "answers": answers}


def test_a_ledger_is_judged():
    failure = {"abc": {"kind": "exception", "what": "IndexError"}}
    assert fuzz.faults(ledger_of(3700 / len(TARGETS), failure, {"abc": "refused"})) == []
    assert "CPU" in fuzz.faults(ledger_of(3500 / len(TARGETS), {}, {}))[0]
    assert "without an answer" in fuzz.faults(ledger_of(9999, failure, {}))[0]
    late = ledger_of(9999, {}, {"abc": "refused"})
    late["runs"][-1]["targets"]["file"] = {"cpu_seconds": 1, "executions": 1, "failures": failure}
    assert fuzz.faults(late) == ["file: fails in its last run"]
    del late["runs"][1:], late["runs"][0]["targets"]["cubin"]
    assert fuzz.faults(late) == ["cubin: never run"]


@pytest.mark.skipif(not LEDGER.exists(), reason="nothing was fuzzed yet: bench/results/fuzz.json is not there")
def test_the_ledger_has_what_is_asked_for():
    assert fuzz.faults(json.loads(LEDGER.read_text())) == []


def test_a_run_is_put_on_record(tmp_path):
    ledger = tmp_path / "fuzz.json"
    status = fuzz.main(["--seconds", "1", "--only", "cursor", "--engine", "own", "--out", str(tmp_path / "out"),
                        "--ledger", str(ledger)])  # fmt: skip
    assert status == 0
    (run,) = json.loads(ledger.read_text())["runs"]
    assert run["targets"]["cursor"]["executions"] > 10
    assert run["targets"]["cursor"]["cpu_seconds"] > 0
    assert run["source"] == fuzz.source_digest()
