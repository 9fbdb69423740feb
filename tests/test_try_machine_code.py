"""The script for owners of GPUs that no twin of machine code has run on, as far as it goes without one."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neutrino import load_probes
from neutrino.backend.sass_probe_code import ProbeCode
from neutrino.sass.twin.cutting import Cutter
from neutrino.toolchain.tool_choice import find_assembler
from tests.sass_twin.listing import assemble, instructions, tool
from tools.try_machine_code import ARCHITECTURES, KERNELS, main, module_text, table, verdict

SCRIPT = Path(__file__).resolve().parent.parent / "tools" / "try_machine_code.py"


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """What the script prints and writes on the embedded device."""
    out = tmp_path_factory.mktemp("tried") / "machine_code.json"
    argv = [sys.executable, str(SCRIPT), "--ptx", "--out", str(out)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads(out.read_text())


def test_own_kernels_on_the_embedded_device(tried):
    printed, results = tried
    assert "all is right" in printed
    assert "gmem_bytes   5 own kernels, 0 operators, 5 of 5 kernels with records" in printed
    assert set(results["runs"]) == {"plain", "again", "block_sched", "gmem_bytes"}
    assert {row["name"] for row in results["runs"]["gmem_bytes"]["kernels"]} == set(KERNELS)


def test_what_is_wrong_is_said(tried):
    _, results = tried

    def lines(change) -> str:
        changed = copy.deepcopy(results)
        change(changed["runs"])
        assert verdict(changed)
        assert "all is right" not in table(changed)
        return "\n".join(verdict(changed))

    assert "block_sched: loops computes something else" in lines(
        lambda runs: runs["block_sched"]["own"].update(loops="0")
    )
    first = results["runs"]["block_sched"]["kernels"][0]["records"][0]["warps"]
    assert f"{first - 1} records of {first} warps" in lines(
        lambda runs: runs["block_sched"]["kernels"][0]["records"][0].update(records=first - 1)
    )
    assert "by arithmetic" in lines(lambda runs: runs["gmem_bytes"]["kernels"][0]["records"][0].update(load=1))
    assert "has no records: unsupported why" in lines(
        lambda runs: runs["gmem_bytes"]["kernels"][0].update(records=[], reason="unsupported", detail="why")
    )
    assert "was not seen" in lines(lambda runs: runs["gmem_bytes"]["kernels"].clear())
    assert "plain: exit status 1" in lines(lambda runs: runs.update(plain={"failed": "exit status 1: …"}))


def test_without_a_driver_it_says_so(tmp_path):
    argv = [sys.executable, str(SCRIPT), "--out", str(tmp_path / "out.json")]
    environment = {**os.environ, "LD_LIBRARY_PATH": ""}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 2:
        pytest.skip("this machine has a GPU")
    assert re.search(r"there is no NVIDIA driver here|the NVIDIA driver finds no GPU", done.stderr)
    assert not (tmp_path / "out.json").exists()


def test_a_gpu_that_twins_are_not_made_for(capsys, monkeypatch):
    class Newer:
        capability, name = (10, 0), "a newer GPU"

    monkeypatch.setattr("tools.try_machine_code.Driver", Newer)
    assert main([]) == 2
    assert "a newer GPU has compute capability 10.0: twins are made for 8.0" in capsys.readouterr().err


@pytest.mark.parametrize("arch", sorted({*ARCHITECTURES.values()}))
def test_the_own_kernels_have_the_accesses_that_arithmetic_counts(arch, tmp_path):
    tool("ptxas")
    whole = Cutter(assemble(module_text(arch), arch, tmp_path), "own")
    codes = [ProbeCode(load_probes([name]), arch, find_assembler()) for name in ("block_sched", "gmem_bytes")]
    for kernel in KERNELS:
        cut = whole.cut(kernel)
        for code in codes:
            assert code.twin_of(cut, kernel, "own").data
    lines = instructions(whole.cut("widths"), "widths", tmp_path).values()
    found = [re.sub(r".*?((?:LDG|STG)\S*).*", r"\1", line) for line in lines if re.search(r"\b(LDG|STG)\b", line)]
    assert sorted(re.sub(r"\.E\b|\.CONSTANT\b", "", name) for name in found) == [
        "LDG.128", "LDG.64", "LDG.U8", "STG.128", "STG.64", "STG.U8",
    ]  # fmt: skip
