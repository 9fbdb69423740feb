"""Captures and graphs: what the driver answers is the same with the hook, and their launches run the originals."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Bench, Reference
from .trace_files import Files


@pytest.mark.parametrize(
    ("scenario", "counted"),
    [
        ("capture", {"probed": 18, "graph": 9}),
        ("fork-and-join", {"probed": 6, "graph": 7}),
        ("capture-first", {"probed": 3, "graph": 3}),
        ("nodes", {"graph": 2}),
    ],
)
def test_the_driver_answers_as_without_the_hook(
    any_bench: Bench, tmp_path: Path, reference: Reference, scenario: str, counted: dict[str, int]
) -> None:
    result = any_bench.run(scenario, tmp_path)
    assert (result.stdout, result.returncode) == reference(scenario)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == counted
    assert len(files.written()) == counted.get("probed", 0)
    files.check_tickets(any_bench.maps)


def test_what_is_refused_while_a_stream_is_captured(any_bench: Bench, tmp_path: Path, reference: Reference) -> None:
    result = any_bench.run("forbidden", tmp_path)
    expected, status = reference("forbidden")
    assert result.stdout.splitlines() == expected.splitlines()
    assert result.returncode == status == 0
    # All three errors that matter most are among the answers.
    answers = set(" ".join(expected.split()).replace("(", " ").replace(")", " ").split())
    assert {"900", "901", "906"} <= answers


def test_captures_while_another_thread_loads_and_launches(
    any_bench: Bench, tmp_path: Path, reference: Reference
) -> None:
    # Segments fill, so that the hook's own thread asks for events, which a capture in global mode forbids to others.
    result = any_bench.run("capture-amid", tmp_path, extra={"NEUTRINO_POOL": str(64 << 20)})
    assert (result.stdout, result.returncode) == reference("capture-amid")
    files = Files(tmp_path / "trace")
    counted = files.counted("count_p2")
    assert counted.pop("graph") == 120
    assert counted == {"probed": 320}
    assert len(files.written()) == 320
    files.check_tickets(any_bench.maps)
