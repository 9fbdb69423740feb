"""Launches, loads and signals under ThreadSanitizer: some 10 s of what ``bench.signals`` does for 300 s."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import signals
from tests.loader.conftest import sanitized_bench

LOADS = 20_000
"""Work rather than time ends the run, so that a slow machine does as much."""


def test_nothing_races(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The hook that the loader's tests have.
    hook = sanitized_bench(tmp_path_factory, "thread").folder / "lib"
    monkeypatch.setattr(signals.build, "build", lambda target, **_: target.symlink_to(hook))
    folder = tmp_path / "bench"
    folder.mkdir()
    figures, errors = signals.run(folder, seconds=300, loads=LOADS)
    assert signals.judge(figures) == [], errors[:6000]
    assert figures["loads"] >= LOADS


@pytest.mark.parametrize(
    ("name", "value"), [("reports", 1), ("status", 66), ("counted", 9), ("signals", 0), ("probed", 0)]
)
def test_each_fault_is_judged(name: str, value: int) -> None:
    good = {"status": 0, "reports": 0, "counted": 10, "launches": 10, "loads": 4, "signals": 3, "probed": 10}
    assert signals.judge(good) == []
    assert len(signals.judge(good | {name: value})) == 1


def test_reports_of_threads_without_stderr_are_counted() -> None:
    text = "==================\nWARNING: ThreadSanitizer: data race (pid=1)\n"
    assert signals.reports_in("neutrino: trace in /tmp/t\n") == 0
    assert signals.reports_in(text) == 1
    assert signals.reports_in("neutrino: trace in /tmp/t\nThreadSanitizer: reported 2 warnings\n") == 2
    assert signals.reports_in(text + "ThreadSanitizer: reported 1 warnings\n") == 1
