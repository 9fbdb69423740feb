"""A report whose reader has had enough, or whose disk is full: no traceback in any of its forms."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tracing.trace_writer import GMEM_BYTES, TraceWriter

FORMS = (
    "", "--json", "--xml", "--schema", "--summary", "--findings", "--proof", "--why", "--rows 3",
    "--records 2 --map GmemBytes",
)  # fmt: skip
_ALSO_CLOSED = ("", "--json", "--xml", "--proof", "--records 2 --map GmemBytes")
"""One of each way to write."""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    writer = TraceWriter(tmp_path_factory.mktemp("ends") / "trace")
    writer.kernel(1, "vecadd", maps=[GMEM_BYTES])
    return writer.write()


@pytest.mark.parametrize("form", FORMS)
def test_it_ends_in_a_word(trace: Path, form: str) -> None:
    command = f"{shlex.quote(sys.executable)} -m neutrino.cli.report_start {shlex.quote(str(trace))} {form}"
    endings: list[tuple[str, tuple[int, ...], str]] = [(">/dev/full", (2,), "No space left on device")]
    endings += [("| true", (0, 3), "")] if form in _ALSO_CLOSED else []
    for ending, statuses, said in endings:
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {command} {ending}"], capture_output=True, text=True, check=False
        )
        assert done.returncode in statuses, done.stderr
        assert "Traceback" not in done.stderr
        assert said in done.stderr
