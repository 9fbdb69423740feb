"""Captures: what the driver answers is the same with the hook, and nothing of the hook's becomes part of one."""

from __future__ import annotations

from pathlib import Path

from .conftest import Bench, Reference
from .trace_files import Files


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
    assert files.counted("count_p2") == {"probed": 320 + 40 * 3}
    assert len(files.written()) == 440
    files.check_tickets(any_bench.maps)
