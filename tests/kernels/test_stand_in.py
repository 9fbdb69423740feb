"""Every case through the stand-in driver: ctypes, modules, memory and launches as on a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import device
from tests.kernels.cases import cases
from tests.once import stand_in

ROOT = Path(__file__).resolve().parents[2]


def test_every_case_by_the_driver_api(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(stand_in(tmp_path_factory)))
    monkeypatch.setenv("NEUTRINO_EMBEDDED", f"python={sys.executable};root={ROOT}")
    command = [sys.executable, "-m", "bench.device", "run", "--out", str(tmp_path / "rows")]
    done = subprocess.run(command, cwd=ROOT, timeout=120, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    assert [row["name"] for row in rows] == [case.name for case in cases()]
    assert [line for row in rows for line in row["wrong"]] == []
    # And as bench.device records it: a case in a process of its own.
    alone = device._alone(rows[0]["name"], tmp_path)
    assert {**alone, "ms": 0} == {**rows[0], "ms": 0}
