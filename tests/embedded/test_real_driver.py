"""The stand-in driver gives the answers that a real one gave: ``python3 -m bench.driver record`` asked it."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bench import driver
from neutrino.emulator import build

from .conftest import Bench

# Where the stand-in answers otherwise, on purpose: pattern of "program group: question" -> reason.
DIFFERENCES: dict[str, str] = {
    "ask_graphs instances: a graph captured of a graph's launch": (
        "the type of a node that no call has given: the program's stack holds the handle of another one there"
    ),
    "ask_replays attributes: a packed buffer": "the address in the buffer is the real driver's",
    "ask_contexts destroyed-context: destroyed context": (
        "a destroyed context is destroyed again: the same driver answered 709 once and 201 once"
    ),
    "ask_images names: cuMemAlloc of 2000, flags 0": "there are no functions of CUDA before 3.2, of 32-bit addresses",
}
# Programs whose questions no real driver has been asked yet: what the stand-in answers there is by the documentation.
UNRECORDED: tuple[str, ...] = ()
WARNINGS = ("-Wall", "-Wextra", "-Werror")
WORKERS = 2

Recorded = dict[str, Any]


@pytest.fixture(scope="module")
def groups(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> dict[str, driver.Answers]:
    """The stand-in's answers by group."""
    folder = tmp_path_factory.mktemp("questions")
    driver.compile_programs(folder, build.compiler(), WARNINGS)
    asked = list(driver.find_groups(folder))
    environment = bench.environment()
    with ThreadPoolExecutor(WORKERS) as pool:
        answers = pool.map(lambda group: driver.ask(folder, group, environment), asked)
        return {str(group): answer for group, answer in zip(asked, answers, strict=True)}


def _by_question(group: str, lines: list[str]) -> dict[str, str]:
    # A question's name holds no ": ": what follows is codes.
    return {f"{group}: {name}": codes for name, _, codes in (line.rpartition(":") for line in lines)}


def _mismatches(recorded: Recorded, groups: dict[str, driver.Answers]) -> dict[str, tuple[str, str | None]]:
    # Question -> what the real driver answered, what the stand-in did.
    found = {}
    for group, row in recorded["answers"].items():
        lines = row["lines"]
        # Of a line that was not finished nobody knows the rest.
        whole = lines if row["end"] == 0 else lines[:-1]
        ours = _by_question(group, list(groups[group].lines))
        for question, codes in _by_question(group, whole).items():
            if ours.get(question) != codes:
                found[question] = (codes, ours.get(question))
    return found


def _is_intended(question: str) -> bool:
    return any(re.fullmatch(pattern, question) for pattern in DIFFERENCES)


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    if not driver.RESULTS.exists():
        pytest.skip(f"{driver.RESULTS.name} has not been recorded on a GPU yet")
    result: Recorded = json.loads(driver.RESULTS.read_text())
    return result


def test_every_group_of_questions_comes_to_its_end(groups: dict[str, driver.Answers]) -> None:
    assert {name: answers.end for name, answers in groups.items() if answers.end != 0} == {}
    assert sum(len(answers.lines) for answers in groups.values()) > 1000


def test_questions_have_names_of_their_own(groups: dict[str, driver.Answers]) -> None:
    for name, answers in groups.items():
        assert len(_by_question(name, list(answers.lines))) == len(answers.lines), name


def test_the_answers_are_to_these_questions(recorded: Recorded, groups: dict[str, driver.Answers]) -> None:
    programs = {name.split()[0] for name in recorded["answers"]}
    assert recorded["questions"] == driver.source_hash(programs), "the questions have changed since: record them again"
    assert set(recorded["answers"]) == {name for name in groups if name.split()[0] not in UNRECORDED}


def test_the_stand_in_answers_as_the_real_driver(recorded: Recorded, groups: dict[str, driver.Answers]) -> None:
    wrong = {name: pair for name, pair in _mismatches(recorded, groups).items() if not _is_intended(name)}
    said = "\n".join(f"{name}: real{real}, stand-in{ours}" for name, (real, ours) in sorted(wrong.items()))
    assert not wrong, f"{len(wrong)} answers differ\n{said}"


def test_every_intended_difference_is_one(recorded: Recorded, groups: dict[str, driver.Answers]) -> None:
    found = _mismatches(recorded, groups)
    unused = [pattern for pattern in DIFFERENCES if not any(re.fullmatch(pattern, name) for name in found)]
    assert unused == []


def test_a_different_answer_is_found(groups: dict[str, driver.Answers]) -> None:
    changed: Recorded = {"answers": {}}
    for name, answers in groups.items():
        lines = list(answers.lines)
        lines[0] += " 77"
        changed["answers"][name] = {"end": 0, "lines": lines}
    assert len(_mismatches(changed, groups)) == len(groups)


def test_recording_writes_what_was_asked(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: dict[str, driver.Answers]
) -> None:
    few = [group for group in ("ask_images names", "ask_contexts counts") if group in groups]
    asked = [driver.Group(*name.split()) for name in few]
    monkeypatch.setattr(driver, "made_with", lambda name: {"device": "a device", "driver": "1.2"})
    monkeypatch.setattr(driver, "find_groups", lambda folder: iter(asked))
    for name, value in bench.environment().items():
        monkeypatch.setenv(name, value)
    assert driver.record(tmp_path) == 0
    result = json.loads((tmp_path / "driver_h200.json").read_text())
    assert (result["device"], result["driver"]) == ("a device", "1.2")
    assert result["questions"] == driver.source_hash({group.program for group in asked})
    assert result["answers"] == {name: {"end": 0, "lines": list(groups[name].lines)} for name in few}
