"""PATH with folders that may not be searched, and with entries that are no folders."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from neutrino.toolchain.location import tool_candidates

ROOT = Path(__file__).resolve().parents[2]


def test_entries_of_path_that_are_no_folders_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "tools" / "ptxas"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("")
    entries = ["", tmp_path / "loop", tmp_path / "file", tmp_path / "missing", "x" * 300, "y" * 5000, tool.parent]
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, entries)))
    assert next(tool_candidates("ptxas")) == tool


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_folder_that_may_not_be_searched_is_passed_over(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0)
    tmp_path.chmod(0o755)
    program = f"""
import os, sys, sysconfig
sysconfig.get_paths()
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from neutrino.toolchain.location import *
os.environ["PATH"] = {f"{locked}:/usr/bin"!r}
os.setresuid(65534, 65534, 65534)
next(tool_candidates("sh"))
os.environ["NEUTRINO_PTXAS"] = {f"{locked}/ptxas"!r}
try:
    chosen_tool("ptxas")
except Exception as error:
    print(type(error).__name__)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("ToolMissingError\n", 0), done.stderr
