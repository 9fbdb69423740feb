"""The example that ``make demo`` runs: a real fatbin in a real library, and what the demo prints."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from .conftest import ROOT, Run

PTX = (ROOT / "examples" / "embedded" / "kernels.ptx").read_bytes()


def test_the_library_holds_a_fatbin(run: Run, demo: Path) -> None:
    result = run("extract", demo / "libvector.so", "--json")
    (container,) = json.loads(result.stdout)["containers"]
    (image,) = container["images"]
    assert (container["kind"], container["section"]) == ("cuda-fatbin", ".nv_fatbin")
    assert (image["kind"], image["arch"]) == ("ptx", "sm_75")
    assert [kernel["name"] for kernel in image["kernels"]] == ["saxpy", "sum"]


def test_nvidias_tool_takes_the_same_text_out(demo: Path, tmp_path: Path) -> None:
    wheels = sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin"))
    cuobjdump = shutil.which("cuobjdump", path=os.pathsep.join([os.environ.get("PATH", ""), *map(str, wheels)]))
    if cuobjdump is None:
        pytest.skip("cuobjdump is neither on PATH nor in a wheel of this Python")
    subprocess.run([cuobjdump, "-xptx", "all", demo / "libvector.so"], cwd=tmp_path, check=True, capture_output=True)
    (extracted,) = tmp_path.iterdir()
    assert extracted.read_bytes().strip() == PTX.strip()


def test_the_program_knows_nothing_of_neutrino(demo: Path) -> None:
    for name in ("program", "libvector.so"):
        assert b"neutrino" not in (demo / name).read_bytes().lower()


@pytest.mark.usefixtures("device")
def test_make_demo(cache: Path, tmp_path: Path) -> None:
    """Its recipe, with this Python in place of a new virtual environment."""
    if not shutil.which("make"):
        pytest.skip("make is not on this machine")
    commands = {"neutrino": "run"} | {f"neutrino-{name}": name for name in ("extract", "patch", "report")}
    for name, module in commands.items():
        script = tmp_path / "bin" / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m neutrino.cli.{module} "$@"\n')
        script.chmod(0o755)
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("build"))
    shutil.copy(ROOT / "Makefile", tmp_path)
    result = subprocess.run(
        ["make", "--old-file=setup", "demo", f"VENV={tmp_path}", "SHELL=/bin/sh"], cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(cache), "COLUMNS": "100"},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    for line in (
        "$ neutrino-extract libvector.so",
        "$ neutrino --device embedded -p block_sched -p gmem_bytes ./program",
        "y[6] = 37, sum of y = 77806",
        "$ neutrino-report trace",
        "$ neutrino-patch libvector.so -p gmem_bytes --device embedded -o patched/",
        "libvector.so → patched/libvector.so",
        "embedded device: times are steps of the interpreter, not cycles",
    ):
        assert line in result.stdout.splitlines()
    assert "3 launches probed" in result.stdout
