"""Twins that a patched library carries, used by the preloaded hook: what the program gets, and what the trace says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .conftest import Bench
from .patched import Programs, section_of
from .trace_files import Files


@pytest.fixture(scope="module")
def programs(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(bench, tmp_path_factory.mktemp("patched"))


def test_a_patched_librarys_launches_are_recorded(programs: Programs, tmp_path: Path) -> None:
    library = programs.library("plain", section_of(), stub=None)
    result = programs.run(tmp_path, programs.user, f"+{library}", hook=True)
    assert (result.stdout, result.returncode) == ("120\n", 0)
    assert re.fullmatch(rf"neutrino: trace in {tmp_path}/trace/\w+\n", result.stderr)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"probed": 20}
    assert len(files.check_tickets(programs.bench.maps)) == 120


def test_the_stub_records_without_neutrino(programs: Programs, tmp_path: Path) -> None:
    library = programs.library("tied", section_of())
    result = programs.run(tmp_path, programs.user, f"+{library}")
    assert (result.stdout, result.returncode) == ("120\n", 0)
    assert re.fullmatch(rf"neutrino: trace in {tmp_path}/trace/\w+\n", result.stderr)
    files = Files(tmp_path / "trace")
    assert files.counted("count_p2") == {"probed": 20}
    assert len(files.check_tickets(programs.bench.maps)) == 120
