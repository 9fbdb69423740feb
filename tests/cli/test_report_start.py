"""How much work it is to start ``neutrino-report``: modules that are imported, and methods that are compiled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.tracing.trace_writer import BLOCK_SCHED, TraceWriter, fill_regions

_COUNTED = """
import dataclasses, json, os, sys
made, make = [], dataclasses._process_class
def counted(cls, *arguments):
    made.append(cls.__name__)
    return make(cls, *arguments)
dataclasses._process_class = counted
from neutrino.cli.report_start import main
status = main()
sys.stdout.flush()
print(json.dumps({"made": made, "modules": sorted(sys.modules), "status": status}), file=sys.stderr)
"""
_NOT_NEEDED = {
    "rich", "numpy.random", "statistics", "hashlib", "neutrino.verification", "neutrino.ptx", "neutrino.sass",
    "neutrino.backend", "neutrino.page", "neutrino.tracing.perfetto", "neutrino.tracing.iket", "matplotlib", "cffi",
    "subprocess", "multiprocessing",
}  # fmt: skip
_MOST_MADE, _MOST_MODULES = 90, 150
"""Dataclasses whose methods are compiled, of which each takes as long as importing a small module; and modules of
Neutrino."""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of one launch with records of blocks' times."""
    path = tmp_path_factory.mktemp("start") / "trace"
    writer = TraceWriter(path)
    writer.kernel(1, "vecadd", maps=[BLOCK_SCHED])
    rows = np.ones(4 * 2, BLOCK_SCHED.dtype)
    writer.launch(1, (4, 1, 1), (64, 1, 1), fill_regions([BLOCK_SCHED], 2, {"BlockSched": rows}, blocks=4))
    writer.write()
    return path


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_a_small_report_waits_for_little(trace: Path, options: list[str]) -> None:
    env = {**os.environ, "COLUMNS": "200"}
    command = [sys.executable, "-c", _COUNTED, *options, str(trace)]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert "vecadd" in ended.stdout
    found = json.loads(ended.stderr.splitlines()[-1])
    assert found["status"] == 0
    assert not _NOT_NEEDED.intersection(found["modules"])
    assert 0 < len(found["made"]) <= _MOST_MADE, found["made"]
    own = [name for name in found["modules"] if name.startswith("neutrino")]
    assert 0 < len(own) <= _MOST_MODULES, own
